"""A client and a server that is killed and started again: what it was told happened, and whoever waits goes on."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import penstock as library
from penstock import LeaseLost, Message, ServerUnavailable
from penstock.client import port as client_port
from tests.conformance.background import PATIENCE_S, start
from tests.server.process import Running, penstock

pytestmark = pytest.mark.timeout(180)


class Place:
    """A directory and an address, where one server runs after another."""

    def __init__(self, path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._path = path
        self.url = f"http://127.0.0.1:{self._port}"
        self.server = self._started()

    def _started(self) -> Running:
        server = penstock(
            "serve", str(self._path), "--http-addr", f"127.0.0.1:{self._port}", "--log-encoding", "console"
        )  # fmt: skip
        assert server.url == self.url
        return server

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.server.send(number)
        self.server.end()

    def start(self) -> None:
        self.server.__exit__(None, None, None)
        self.server = self._started()

    def restart(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.kill(number)
        self.start()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.server.__exit__(None, None, None)


@pytest.mark.parametrize("prefetch", [1, 10])
def test_a_killed_server_ends_a_subscription_or_loses_a_message(place: Place, prefetch: int) -> None:
    with library.connect(place.url) as broker:
        queue = broker.queue("orders", max_attempts=None)
        came: set[bytes] = set()
        half = threading.Event()

        def consume() -> str:
            with queue.subscribe("worker", prefetch=prefetch) as consumer:
                for delivery in consumer:
                    came.add(delivery.payload)
                    try:
                        delivery.ack()
                    except LeaseLost:
                        continue  # it was in hand when the server was killed: it comes again
                    half.set()
                    if len(came) == 100:
                        return consumer.name
            return ""

        consuming = start(consume)
        for n in range(100):
            queue.publish(b"%d" % n, dedup_id=str(n))
            if n == 50:
                assert half.wait(PATIENCE_S)
                place.restart()
        assert consuming.result(PATIENCE_S) == "worker"
        assert came == {b"%d" % n for n in range(100)}


def test_an_iteration_that_waits_when_the_server_is_killed_sleeps_for_ever(place: Place) -> None:
    with library.connect(place.url) as broker, library.connect(place.url) as other:
        queue = broker.topic("events")
        consumer = queue.subscribe("audit", filter="region = 'eu'", prefetch=5)
        waiting = start(lambda: next(iter(consumer)).payload)
        place.restart()
        other.topic("events").publish(b"elsewhere", headers={"region": "us"})
        other.topic("events").publish(b"here", headers={"region": "eu"})
        assert waiting.result(PATIENCE_S) == b"here"


def test_asyncio_does_not_survive_a_restart(place: Place) -> None:
    async def main() -> list[bytes]:
        async with library.aio.connect(place.url) as broker:
            queue = await broker.queue("orders")
            consumer = await queue.subscribe("worker")
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.to_thread(place.restart)
            await queue.publish(b"a")
            first = await waiting
            await first.ack()
            reader = await queue.reader("r")
            await asyncio.to_thread(place.restart)
            await queue.publish(b"b")
            return [first.payload, *(one.payload for one in await reader.read_many(5, 10))]

    assert asyncio.run(main()) == [b"a", b"b"]


class Sharing:
    """Consumers of one name, in threads and tasks: which of them handled the last message."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._handled: SimpleQueue[str] = SimpleQueue()
        self._end = threading.Event()
        self._stack = ExitStack()
        self._broker, other = (self._stack.enter_context(library.connect(url)) for _ in range(2))
        self._queue = self._broker.queue("orders", max_attempts=None)
        self._consumers = [self._queue.subscribe("w"), self._queue.subscribe("w", prefetch=10)]
        self._consumers.append(other.queue("orders").subscribe("w"))
        self._workers = [library.Worker(self._queue, self._handle("worker"), name="w")]
        self._workers.append(library.Worker(other.queue("orders"), self._handle("other"), name="w"))
        self._running: list[Future[Any]] = [start(one.run) for one in self._workers]
        self._running += [start(self._consume, n) for n in range(3)]
        self._running.append(start(asyncio.run, self._consume_aio()))
        self._wanted = {"worker", "other", "0", "1", "2", "aio", "aio-worker"}

    def _handle(self, who: str) -> Callable[[library.Delivery], None]:
        return lambda _: self._handled.put(who)

    def _consume(self, n: int) -> None:
        with suppress(library.BrokerClosed):
            for delivery in self._consumers[n]:
                with suppress(LeaseLost):  # it was in hand when the server ended
                    delivery.ack()
                self._handled.put(str(n))

    async def _consume_aio(self) -> None:
        async def handle(_: library.aio.Delivery) -> None:
            self._handled.put("aio-worker")

        async with library.aio.connect(self._url) as broker:
            queue = await broker.queue("orders")
            worker = library.aio.Worker(queue, handle, name="w")
            running = asyncio.ensure_future(worker.run())
            consuming = asyncio.ensure_future(self._consume_one(await queue.subscribe("w")))
            await asyncio.to_thread(self._end.wait)
            worker.stop()
            await running
            consuming.cancel()

    async def _consume_one(self, consumer: library.aio.Consumer) -> None:
        async for delivery in consumer:
            with suppress(LeaseLost):
                await delivery.ack()
            self._handled.put("aio")

    def all_work(self) -> None:
        """Publish until each consumer has handled something."""
        missing, end_s = set(self._wanted), time.monotonic() + PATIENCE_S
        while missing:
            assert time.monotonic() < end_s, f"{missing} got nothing"
            self._queue.publish(b"a")
            missing.discard(self._handled.get(timeout=PATIENCE_S))

    def close(self) -> None:
        self._end.set()
        for worker in self._workers:
            worker.stop()
        for consumer in self._consumers:
            consumer.close()
        for one in self._running:
            one.result(PATIENCE_S)
        self._stack.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_consumers_that_share_a_name_go_on_after_restarts(place: Place, number: signal.Signals) -> None:
    with closing(Sharing(place.url)) as sharing:
        sharing.all_work()
        for _ in range(2):
            place.restart(number)
            sharing.all_work()


def test_a_name_of_before_the_restart_is_not_used_for_another_consumer(place: Place) -> None:
    with library.connect(place.url) as broker, library.connect(place.url) as other:
        queue, group = broker.queue("orders"), broker.queue("orders").group("default")
        first, idle = queue.subscribe("w"), queue.subscribe("w")
        second = other.queue("orders").subscribe("w")
        assert (first.name, idle.name, second.name) == ("w", "w~2", "w~3")
        place.restart()
        assert second.receive() is None  # it is "w" from now on
        assert first.receive() is None
        assert group.consumers() == ["w", "w~2"]
        idle.close()
        assert group.consumers() == ["w", "w~2"]
        second.close()
        third = queue.subscribe("w")
        group.remove_consumer("w~2")
        with pytest.raises(library.BrokerClosed):
            first.receive()
        third.close()
        assert group.consumers() == []


def test_a_receipt_of_before_the_kill_settles_something(place: Place) -> None:
    with library.connect(place.url) as broker:
        queue = broker.queue("orders")
        queue.publish(b"a")
        old = queue.receive()
        assert old is not None
        place.restart()
        with pytest.raises(LeaseLost):
            old.ack()
        again = queue.receive()
        assert again is not None
        assert (again.payload, again.attempt) == (b"a", 2)


def test_what_was_acknowledged_to_many_threads_is_lost_in_a_kill(place: Place) -> None:
    """And nothing is stored twice that can be known again."""
    with library.connect(place.url) as broker:
        queue = broker.queue("orders")
        published: set[bytes] = set()
        enough = threading.Event()

        def publish(thread: int) -> None:
            for n in range(50):
                payload = b"%d-%d" % (thread, n)
                queue.publish_many([Message(payload, dedup_id=payload.decode())])
                published.add(payload)
                if len(published) > 200:
                    enough.set()

        publishing = [start(publish, n) for n in range(10)]
        assert enough.wait(PATIENCE_S)
        place.restart()
        for one in publishing:
            one.result(PATIENCE_S)
        stored = [message.payload for message in queue.peek(1000)]
    assert sorted(stored) == sorted(published)
    assert len(published) == 500


def test_a_server_that_stays_away_is_waited_for_ever_or_blamed_on_nobody(place: Place) -> None:
    with library.connect(place.url, timeout=0.5) as broker:
        queue = broker.queue("orders")
        place.kill()
        for call in (queue.stats, lambda: queue.publish(b"a"), lambda: queue.receive(timeout=None)):
            with pytest.raises(ServerUnavailable, match=rf"{place.url}.*times within 0.5 s.*penstock serve") as caught:  # fmt: skip
                call()
            assert not caught.value.indeterminate
    with pytest.raises(ServerUnavailable, match="penstock serve"):
        library.connect(place.url, wait=0)
    with pytest.raises(ServerUnavailable, match="penstock serve"):
        asyncio.run(_connected(place.url))


async def _connected(url: str) -> None:
    await library.aio.connect(url, wait=0)


def test_a_worker_ends_with_its_server(place: Place) -> None:
    """Or does not notice that it lost what it had in hand."""
    with library.connect(place.url) as broker:
        queue = broker.queue("orders")
        handled: set[tuple[bytes, int]] = set()
        held, restarted = threading.Event(), threading.Event()

        def handle(delivery: library.Delivery) -> None:
            handled.add((delivery.payload, delivery.attempt))
            if delivery.attempt == 1 and delivery.payload == b"first":
                held.set()
                restarted.wait(PATIENCE_S)
            if len(handled) == 3:
                worker.stop()

        worker = library.Worker(queue, handle, concurrency=4)
        queue.publish(b"first")
        working = start(worker.run)
        assert held.wait(PATIENCE_S)
        place.restart()
        restarted.set()
        queue.publish(b"last")
        assert working.result(PATIENCE_S)
        assert handled == {(b"first", 1), (b"first", 2), (b"last", 1)}
        assert worker.lost == 1


def test_what_was_fetched_from_a_server_that_is_no_more_is_handed_out(place: Place) -> None:
    """It would be handled here, refused, and handled again."""
    with library.connect(place.url) as broker:
        queue = broker.queue("orders")
        queue.publish_many([b"%d" % n for n in range(10)])
        with queue.subscribe("worker", prefetch=10) as consumer:
            held = consumer.receive()
            assert held is not None
            place.restart()
            assert queue.depth() == 10  # this answer says that the server is another one
            found = [consumer.receive(timeout=PATIENCE_S) for _ in range(10)]
            assert [one and (one.payload, one.attempt) for one in found] == [
                (b"%d" % n, 1 if n else 2) for n in range(10)
            ]
            for one in found:
                assert one is not None
                one.ack()
            with pytest.raises(LeaseLost):
                held.ack()
        assert queue.depth() == 0


def test_closing_waits_for_a_server_that_is_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """For more than the time that is meant for it, whatever was fetched, however many consumers there are."""
    monkeypatch.setattr(client_port, "PARTING_S", 0.5)
    broker = library.connect(place.url, timeout=3600)
    queue = broker.queue("orders")
    queue.publish_many([b"%d" % n for n in range(20)])
    for name in ("one", "two"):
        assert queue.subscribe(name, prefetch=5).receive() is not None
    place.kill()
    publishing = start(queue.publish, b"never")
    start(broker.close).result(PATIENCE_S)
    with pytest.raises(library.BrokerClosed):
        publishing.result(PATIENCE_S)


#: A client that holds a message of a queue, and says so.
HOLDING = """
import sys
import penstock
from penstock.client.port import RemotePort

RemotePort.silence_s = 1.0
queue = penstock.connect(sys.argv[1]).queue("orders")
found = queue.subscribe("first").receive(timeout=60)
print("holding", found.payload, flush=True)
while True:
    queue.subscribe("idle").receive(timeout=None)
"""


def test_a_killed_client_is_active_for_ever(place: Place) -> None:
    with library.connect(place.url) as broker:
        queue = broker.queue("orders", single_active=True, visibility_timeout=None)
        queue.publish(b"a")
        with Running("-c", HOLDING, place.url) as client:
            client.wait_for("holding b'a'")
            second = queue.subscribe("second")
            client.send(signal.SIGKILL)
            client.end()
            found = second.receive(timeout=PATIENCE_S)
            assert found is not None
            assert (found.payload, found.attempt) == (b"a", 2)
            found.ack()


def test_workers_of_the_command_wait_for_their_server_and_outlast_it(place: Place) -> None:
    with ExitStack() as stack:
        with library.connect(place.url) as broker:
            queue = broker.queue("orders")
            place.kill()
            work = ("work", place.url, "orders", "logging:warning")
            workers = [stack.enter_context(penstock(*work)) for _ in range(3)]
            for worker in workers:
                worker.wait_for(r"no answer from .*refused")
            place.start()
            for worker in workers:
                worker.wait_for("working on 'orders'")
            place.restart(signal.SIGTERM)
            for worker in workers:
                worker.wait_for("answers again after")
            idle, end_s = set(workers), time.monotonic() + PATIENCE_S
            while idle:
                assert time.monotonic() < end_s
                queue.publish(b"a")
                idle = {one for one in idle if "Delivery" not in one.said}
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.end() for worker in workers] == [0, 0, 0]
