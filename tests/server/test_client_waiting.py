"""Who waits for messages over a network and goes away: by a cancelled task, a Ctrl-C, a closed consumer or connection. Nothing stays leased, and nobody sleeps on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import BrokerClosed
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from tests import asking
from tests.conformance.background import PATIENCE_S, all_of, interrupted_once, start, until
from tests.conformance.observations import payloads
from tests.server.running import Running

ROUNDS = 60


@pytest.fixture
def inside() -> Iterator[Embedded]:
    port = in_memory()
    yield port
    port.close()


@pytest.fixture
def server(inside: Embedded) -> Iterator[Running]:
    with Running(inside) as running:
        yield running


@pytest.fixture
def url(server: Running) -> str:
    return server.url


def stats(inside: Embedded) -> Any:
    return asking.stats(inside, asking.find(inside))


def in_line(inside: Embedded, count: int) -> None:
    until(lambda: stats(inside).waiting == count)


def test_a_cancelled_receive_takes_a_message_with_it(url: str, inside: Embedded) -> None:
    async def main() -> None:
        async with penstock.aio.connect(url) as broker:
            queue = await broker.queue("orders")
            for _ in range(3):
                waiting = asyncio.ensure_future(queue.receive(timeout=None))
                await asyncio.to_thread(in_line, inside, 1)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await asyncio.to_thread(in_line, inside, 0)
            await queue.publish(b"a")
            assert (await queue.stats()).leased == 0
            found = await queue.receive()
            assert found is not None
            assert found.attempt == 1

    asyncio.run(main())


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_receive_that_is_cancelled_as_its_message_comes_keeps_it(
    url: str, inside: Embedded, prefetch: int
) -> None:
    """In some rounds the answer is on its way already, in some it is there."""

    async def main() -> None:
        async with penstock.aio.connect(url) as broker:
            queue = await broker.queue("orders", max_attempts=None)
            receiver: Any = await queue.subscribe("w", prefetch=prefetch) if prefetch else queue
            for round_ in range(ROUNDS):
                waiting = asyncio.ensure_future(receiver.receive(timeout=None))
                await asyncio.to_thread(in_line, inside, 1)
                publishing = asyncio.ensure_future(queue.publish(b"%d" % round_))
                for _ in range(round_ % 20):
                    await asyncio.sleep(0)
                waiting.cancel()
                came: Any = (await asyncio.gather(waiting, publishing, return_exceptions=True))[0]
                if isinstance(came, asyncio.CancelledError):
                    came = await receiver.receive(timeout=PATIENCE_S)
                assert (came.payload, came.attempt) == (b"%d" % round_, 1)
                await came.ack()
            assert (await queue.stats()).depth == 0

    asyncio.run(main())


def test_an_interrupted_thread_leaves_its_message_leased(url: str, inside: Embedded) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("orders")
        with pytest.raises(KeyboardInterrupt), interrupted_once(lambda: stats(inside).waiting):
            queue.receive(timeout=None)
        in_line(inside, 0)
        queue.publish(b"a")
        found = queue.receive()
        assert found is not None
        assert found.attempt == 1


@pytest.mark.parametrize("what", ["consumer", "broker"])
def test_closing_leaves_somebody_asleep_or_something_leased(url: str, inside: Embedded, what: str) -> None:
    broker = penstock.connect(url)
    queue = broker.queue("orders")
    consumers = [queue.subscribe(f"w{n}", prefetch=1 + n) for n in range(5)]
    ending = [start(payloads, one) for one in consumers]
    in_line(inside, 5)
    if what == "broker":
        broker.close()
    else:
        for consumer in consumers:
            consumer.close()
    assert all_of(ending) == [[]] * 5
    until(lambda: stats(inside).consumers == 0)
    assert stats(inside).leased == stats(inside).waiting == 0
    broker.close()


def test_closing_a_connection_keeps_what_was_only_fetched_ahead(url: str, inside: Embedded) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("orders")
        queue.publish_many([b"%d" % n for n in range(10)])
        consumer = queue.subscribe("w", prefetch=4)
        assert next(consumer).payload == b"0"
        until(lambda: stats(inside).leased >= 4)
        assert stats(inside).leased <= 1 + 4
    assert (stats(inside).leased, stats(inside).ready) == (0, 10)
    with penstock.connect(url) as broker:
        back = broker.queue("orders").receive_many(10)
        assert [(one.payload, one.attempt) for one in back] == [(b"%d" % n, 1 + (n == 0)) for n in range(10)]


def test_what_is_in_hand_cannot_be_settled_while_the_connection_closes(url: str, inside: Embedded) -> None:
    broker = penstock.connect(url)
    queue = broker.queue("orders")
    queue.publish(b"a")
    found = queue.receive()
    assert found is not None
    closing = start(broker.close, timeout=PATIENCE_S)

    def refused() -> bool:
        try:
            queue.depth()
        except BrokerClosed:
            return True
        return False

    until(refused)
    found.ack()
    closing.result(PATIENCE_S)
    assert stats(inside).depth == 0
    with pytest.raises(BrokerClosed):
        found.ack()


def test_a_reader_sleeps_on_when_it_is_closed(server: Running) -> None:
    with penstock.connect(server.url) as broker:
        reader = broker.queue("orders").reader("r")
        waiting = start(lambda: [one.payload for one in reader])
        until(lambda: server.front.waiting == 1)
        reader.close()
        assert waiting.result(PATIENCE_S) == []
        until(lambda: server.front.waiting == 0)


def test_a_worker_that_is_stopped_gives_up_what_it_was_granted(url: str, inside: Embedded) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("orders", delivery="at-most-once")
        handled: list[bytes] = []
        for n in range(10):
            worker = penstock.Worker(queue, lambda delivery: handled.append(delivery.payload))
            working = start(worker.run)
            in_line(inside, 1)
            publishing = start(queue.publish, b"%d" % n)
            worker.stop()
            assert working.result(PATIENCE_S)
            publishing.result(PATIENCE_S)
        left = [one.payload for one in queue.receive_many(10)]
        assert sorted(handled + left) == [b"%d" % n for n in range(10)]
