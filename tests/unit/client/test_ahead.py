"""Messages fetched ahead: how many, for how long, and where they go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import penstock
from penstock import LeaseLost
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from penstock.client.ahead import Ahead
from penstock.client.rows import RemoteHandle
from penstock.client.running import Halt
from penstock.clock import Clock, ManualClock
from penstock.errors import BrokerClosed
from penstock.model.commands import Receipts
from penstock.policy import Policy
from penstock.wire import DeliveryRow, Leases
from tests import asking
from tests.conformance.background import all_of, start
from tests.server.running import Running
from tests.unit.broker.patience import until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inside(clock: ManualClock) -> Iterator[Embedded]:
    port = in_memory(clock)
    yield port
    port.close()


@pytest.fixture
def broker(inside: Embedded, clock: ManualClock) -> Iterator[penstock.Broker]:
    with Running(inside) as server, penstock.connect(server.url, clock=clock) as found:
        yield found


def leased(queue: penstock.Queue) -> int:
    return queue.stats().leased


def ends(inside: Embedded) -> list[Any]:
    """When the leases of a queue end."""
    log: Any = inside.monitor.engine.find("default", "orders")
    group = log.group()
    found = group.leases.of(range(log.next_offset))
    return [one.deadline_us for one in found if one is not None]


def test_more_is_fetched_ahead_than_was_asked_for(broker: penstock.Broker) -> None:
    queue = broker.queue("orders")
    queue.publish_many([b"%d" % n for n in range(50)])
    with queue.subscribe("w", prefetch=4) as consumer:
        assert leased(queue) == 0  # nobody has asked yet
        for n in range(50):
            found = consumer.receive()
            assert found is not None
            assert found.payload == b"%d" % n
            found.ack()
            assert leased(queue) <= 4
        assert consumer.receive() is None


def test_a_lease_that_waits_in_the_buffer_ends(
    broker: penstock.Broker, inside: Embedded, clock: ManualClock
) -> None:
    queue = broker.queue("orders", visibility_timeout=0.3)
    queue.publish_many([b"a", b"b", b"c"])
    with queue.subscribe("w", prefetch=3) as consumer:
        first = consumer.receive()
        assert first is not None
        first.ack()
        for _ in range(5):  # longer than a lease lasts, in steps that are shorter
            before = min(ends(inside))
            clock.advance(0.2)
            until(lambda before=before: min(ends(inside)) > before)  # type: ignore[misc]
        found = [consumer.receive(), consumer.receive()]
        assert [(one.payload, one.attempt) for one in found if one] == [(b"b", 1), (b"c", 1)]
        for one in found:
            assert one is not None
            one.ack()
    assert queue.depth() == 0


def test_what_was_fetched_before_a_seek_is_handed_out_after_it(broker: penstock.Broker) -> None:
    topic = broker.topic("events")
    consumer = topic.subscribe("audit", prefetch=10)
    topic.publish_many([b"a", b"b", b"c"])
    found = consumer.receive()
    assert found is not None
    topic.subscription("audit").seek(offset=0)
    with pytest.raises(LeaseLost):
        found.ack()
    assert [one.payload for one in consumer.receive_many(10)] == [b"a", b"b", b"c"]


def test_a_consumer_that_was_taken_out_hands_out_what_it_had(broker: penstock.Broker) -> None:
    queue = broker.queue("orders")
    group = queue.group("jobs")
    queue.publish_many([b"a", b"b", b"c"])
    consumer = group.add_consumer("w", prefetch=10)
    assert consumer.receive() is not None
    group.remove_consumer("w")
    with pytest.raises(BrokerClosed):
        consumer.receive()
    assert [one.payload for one in group.receive_many(5)] == [b"a", b"b", b"c"]


def waiting(inside: Embedded) -> int:
    return asking.stats(inside, asking.find(inside)).waiting


def test_each_thread_fetches_ahead(broker: penstock.Broker, inside: Embedded) -> None:
    queue = broker.queue("orders")
    consumer = queue.subscribe("w", prefetch=10)
    receiving = [start(lambda: consumer.receive(timeout=None)) for _ in range(4)]
    until(lambda: waiting(inside) == 4)
    queue.publish_many([b"%d" % n for n in range(100)])
    found = all_of(receiving)
    assert len({one.payload for one in found if one is not None}) == 4
    assert leased(queue) <= 4 + 10
    consumer.close()


class Source:
    """What a buffer is over, and a server that answers when the test says so."""

    def __init__(self) -> None:
        self.hand = ManualClock()
        self.clock: Clock = self.hand
        self.life: bytes | None = b"one"
        self.asked: list[int] = []
        self.answers: list[asyncio.Future[Leases | None]] = []
        self._next = 0

    async def fetch(self, count: int, _ahead: int, wait_us: int | None, halt: Halt | None) -> Leases | None:
        answer: asyncio.Future[Leases | None] = asyncio.get_running_loop().create_future()
        self.asked.append(count)
        self.answers.append(answer)
        if wait_us == 0:
            return None

        def end() -> None:
            if not answer.done():
                answer.set_result(None)

        assert halt is not None
        halt.heed(end)
        return await answer

    def answer(self, number: int, count: int) -> None:
        made = [
            DeliveryRow(
                id=n, offset=n, timestamp=datetime(2026, 1, 1, tzinfo=UTC), payload=b"%d" % n, attempt=1, receipt="r"
            )
            for n in range(self._next, self._next + count)
        ]  # fmt: skip
        self._next += count
        self.answers[number].set_result(Leases(group="g", number=1, deliveries=made))

    async def renew(self, log: RemoteHandle, receipts: Receipts, seconds: float) -> None: ...

    async def unseen(self, log: RemoteHandle, receipts: Receipts) -> None: ...

    async def hand_over(self, log: RemoteHandle, receipts: Receipts) -> list[int]:
        return receipts.offsets

    def ahead(self, most: int, visibility_timeout: float | None = None) -> Ahead:
        policy = Policy.of(visibility_timeout=visibility_timeout)
        return Ahead(self, RemoteHandle("default", "orders", "queue", 1, policy), "g", most, self.fetch)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def offsets(task: asyncio.Task[Any]) -> list[int]:
    return list(task.result().offsets)


def test_who_waits_beside_sleeps_on_while_the_buffer_is_full() -> None:
    async def main() -> None:
        source = Source()
        ahead = source.ahead(10)
        one, two, three = (asyncio.ensure_future(ahead.take(1, None, Halt())) for _ in range(3))
        await turns()
        assert source.asked == [10, 1, 1]
        source.answer(0, 2)
        await turns()
        done = [task for task in (one, two, three) if task.done()]
        assert sorted(offset for task in done for offset in offsets(task)) == [0, 1]
        assert sorted(source.asked[3:]) in ([10], [1, 10])  # who is left is the one that fetches ahead
        source.answer(len(source.asked) - 1, 1)
        await turns()
        assert one.done()
        assert two.done()
        assert three.done()

    asyncio.run(main())


def test_who_does_not_wait_is_kept_by_somebody_who_does() -> None:
    async def main() -> None:
        source = Source()
        ahead = source.ahead(10)
        waits = asyncio.ensure_future(ahead.take(1, None, Halt()))
        await turns()
        assert await ahead.take(1, 0, Halt()) is None
        assert source.asked == [10, 1]
        source.answer(0, 1)
        await turns()
        assert offsets(waits) == [0]

    asyncio.run(main())


def test_what_was_fetched_in_another_life_is_handed_out() -> None:
    async def main() -> None:
        source = Source()
        ahead = source.ahead(10)
        for life, expected in ((b"one", 0), (b"two", 5)):
            source.life = life
            taking = asyncio.ensure_future(ahead.take(1, None, Halt()))
            await turns()
            source.answer(-1, 5)
            await turns()
            assert offsets(taking) == [expected]

    asyncio.run(main())


def test_what_nobody_renewed_in_time_is_handed_out() -> None:
    """The process stood still, and somebody else has it."""

    async def main() -> None:
        source = Source()
        ahead = source.ahead(10, visibility_timeout=30)
        for expected in (0, 5):
            taking = asyncio.ensure_future(ahead.take(1, None, Halt()))
            await turns()
            source.answer(-1, 5)
            await turns()
            assert offsets(taking) == [expected]
            source.hand.advance(31)
        await ahead.close()

    asyncio.run(main())
