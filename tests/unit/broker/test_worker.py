"""A worker settles by its handler's outcome, keeps its leases, and stops without losing or keeping anything: in threads and in asyncio."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker import aio, sync
from penstock.broker import worker as worker_module
from penstock.broker.deliveries import receipts
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory, on_disk
from penstock.broker.worker import AioWorker, Worker
from penstock.clock import ManualClock
from penstock.errors import BrokerClosed, DiskFull, InvalidArgument, PenstockError, QueueNotFound
from penstock.model.commands import Settle
from penstock.policy import Backoff
from tests import asking
from tests.conformance.oddities import Mute, oddities
from tests.conformance.unheard import UnheardClock

Handler = Callable[[Any], object]


class Running:
    """A worker at work, in a thread of its own."""

    def __init__(self, worker: Worker | AioWorker) -> None:
        self.worker = worker
        self.ended: Future[bool] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            worker = self.worker
            done = asyncio.run(worker.run()) if isinstance(worker, AioWorker) else worker.run()
            self.ended.set_result(done)
        except BaseException as error:
            self.ended.set_exception(error)

    def beat(self) -> int:
        """Renew what is due now. If the worker did so by itself just before, nothing is left to be counted here."""
        if isinstance(self.worker, Worker):
            return self.worker.beat()
        assert self.worker._loop is not None
        return asyncio.run_coroutine_threadsafe(self.worker.beat(), self.worker._loop).result()

    def stop(self, *, now: bool = False) -> bool:
        self.worker.stop(now=now)
        return self.ended.result()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Processed, failed, lost."""
        return self.worker.processed, self.worker.failed, self.worker.lost


class Place:
    """A broker, and workers of one kind on its queues. Tests use the queues as threads do, whatever the workers are."""

    def __init__(self, port: Embedded, clock: ManualClock, kind: str) -> None:
        self.port = port
        self.clock = clock
        self.kind = kind
        self.broker = sync.Broker(port)

    def work(self, queue: sync.Queue, handler: Handler, **settings: Any) -> Running:
        return Running(self.worker(queue, handler, **settings))

    def worker(self, queue: sync.Queue, handler: Handler, **settings: Any) -> Worker | AioWorker:
        if self.kind == "threads":
            return Worker(queue, handler, **settings)

        async def awaited(delivery: aio.Delivery) -> object:
            return await asyncio.to_thread(handler, delivery)

        return AioWorker(aio.Queue(aio.Broker(queue._port), queue._log), awaited, **settings)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.port.wake()


@pytest.fixture(params=["memory", "disk"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Embedded, ManualClock]]:
    clock = UnheardClock()
    port = in_memory(clock) if request.param == "memory" else on_disk(tmp_path / "q", clock, durability="os")
    yield port, clock
    port.close()


@pytest.fixture(params=["threads", "asyncio"])
def place(request: pytest.FixtureRequest, home: tuple[Embedded, ManualClock]) -> Place:
    return Place(*home, request.param)


def on_the_loop(queue: sync.Queue, handler: Handler, **settings: Any) -> Running:
    """A worker whose coroutine calls a handler itself: there errors come out of it that do not come out of a thread."""

    async def awaited(delivery: aio.Delivery) -> object:
        return handler(delivery)

    return Running(AioWorker(aio.Queue(aio.Broker(queue._port), queue._log), awaited, **settings))


class Gate:
    """A handler that says which messages it has begun, and goes on when it is let."""

    def __init__(self, result: object = None) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.seen: list[bytes] = []
        self.result = result

    def __call__(self, delivery: Any) -> object:
        self.seen.append(delivery.payload)
        self.begun.release()
        self.open.wait()
        return self.result


class Counted:
    """A handler that ends, and lets somebody wait until it was called so often."""

    def __init__(self, *outcomes: object) -> None:
        self.calls = threading.Semaphore(0)
        self.seen: list[tuple[bytes, int]] = []
        self.outcomes = list(outcomes)

    def __call__(self, delivery: Any) -> object:
        self.seen.append((delivery.payload, delivery.attempt))
        self.calls.release()
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            self.calls.acquire()


# --- outcomes ---


def test_a_message_whose_handler_returned_comes_again(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish_many([b"a", b"b", b"c"])
    handler = Counted()
    running = place.work(queue, handler)
    handler.wait(3)
    assert running.stop() is True
    assert running.counts == (3, 0, 0)
    assert handler.seen == [(b"a", 1), (b"b", 1), (b"c", 1)]
    assert queue.depth() == 0


def test_a_message_whose_handler_raised_is_lost_or_says_nothing_of_the_error(place: Place) -> None:
    queue = place.broker.queue("orders", max_attempts=2, backoff=None)
    queue.publish(b"a")
    handler = Counted(ValueError("first"), ValueError("second"))
    running = place.work(queue, handler)
    handler.wait(2)
    running.stop()
    assert running.counts == (0, 2, 0)
    (dead,) = place.broker.get_queue("orders.dlq").peek()
    assert (dead.headers["x-reason"], dead.headers["x-error"]) == ("max-attempts", "ValueError: second")


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (penstock.Reject("no such customer"), "no such customer"),
        (penstock.Reject(KeyError("customer")), "KeyError: 'customer'"),
        (penstock.Reject(), None),
        (penstock.Reject, None),
    ],
)
@pytest.mark.parametrize("by", ["raising", "returning"])
def test_a_rejected_message_is_tried_again(place: Place, outcome: Any, error: str | None, by: str) -> None:
    queue = place.broker.queue("orders")
    queue.publish(b"a")
    called = threading.Event()

    def handler(_: object) -> object:
        called.set()
        if by == "raising":
            raise outcome
        return outcome

    running = place.work(queue, handler)
    called.wait()
    running.stop()
    assert running.counts == (0, 1, 0)
    (dead,) = place.broker.get_queue("orders.dlq").peek()
    assert (dead.headers["x-reason"], dead.headers.get("x-error")) == ("rejected", error)


def test_a_delayed_retry_comes_by_the_backoff(place: Place) -> None:
    queue = place.broker.queue("orders", backoff=Backoff(initial=1))
    queue.publish(b"a")
    handler = Counted(penstock.Retry("later", delay=60))
    running = place.work(queue, handler)
    handler.wait()
    running.stop()
    assert running.counts == (0, 1, 0)
    assert queue.stats().retrying == 1
    place.pass_time(59)
    assert queue.receive() is None
    place.pass_time(1)
    delivery = queue.receive()
    assert delivery is not None
    assert delivery.attempt == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_handler_that_exits_takes_the_worker_with_it(place: Place, error: BaseException) -> None:
    queue = place.broker.queue("orders", backoff=None)
    queue.publish(b"a")
    handler = Counted(error)
    running = on_the_loop(queue, handler) if place.kind == "asyncio" else place.work(queue, handler)
    handler.wait(2)
    running.stop()
    assert running.counts == (1, 1, 0)


class Ending(BaseException):
    """As some libraries end their own threads and tasks."""


class Later(penstock.Retry):
    def __init__(self) -> None:  # without what it is to call
        pass


def never() -> penstock.Retry:
    found = penstock.Retry(delay=1)
    found.delay = -1
    return found


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Mute(), "Mute"),
        (Ending("ended"), "Ending: ended"),
        (GeneratorExit(), "GeneratorExit: "),
        (StopIteration("no more"), "StopIteration"),
        (StopAsyncIteration("no more"), "StopAsyncIteration: no more"),
        (BaseExceptionGroup("several", [Ending()]), "BaseExceptionGroup: several (1 sub-exception)"),
        (Later(), None),
        (never(), "InvalidArgument: delay is -1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_any_kind_ends_the_worker_or_is_tried_for_ever(
    place: Place, error: BaseException, said: str | None
) -> None:
    queue = place.broker.queue("orders", max_attempts=2, backoff=None)
    queue.publish_many([b"poison", b"good"])
    handled = Counted(error, None, error)
    running = on_the_loop(queue, handled) if place.kind == "asyncio" else place.work(queue, handled)
    handled.wait(3)
    assert running.stop() is True
    assert running.counts == (1, 2, 0)
    (dead,) = place.broker.get_queue("orders.dlq").peek(9)
    assert (dead.payload, dead.headers["x-reason"]) == (b"poison", "max-attempts")
    assert (said or "") in dead.headers.get("x-error", "")


# --- handlers that only promise to work ---


async def shout(delivery: Any) -> None:
    await asyncio.sleep(0)
    heard.append(delivery.payload)
    if delivery.payload == b"bad":
        raise ValueError("bad one")


def traced(handler: Handler) -> Handler:
    """As decorators are that know nothing of coroutines."""

    @functools.wraps(handler)
    def wrapper(delivery: Any) -> object:
        return handler(delivery)

    return wrapper


async def passed_on(delivery: Any) -> Any:
    return shout(delivery)


def yielding(delivery: Any) -> Iterator[None]:
    heard.append(delivery.payload)
    yield


async def yielding_aio(delivery: Any) -> AsyncIterator[None]:
    heard.append(delivery.payload)
    yield


async def passing_on_a_generator(delivery: Any) -> Any:
    return yielding(delivery)


class Promise:
    def __await__(self) -> Iterator[None]:
        heard.append(b"awaited")
        yield


heard: list[bytes] = []


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    heard.clear()


def aio_queue(queue: sync.Queue) -> aio.Queue:
    return aio.Queue(aio.Broker(queue._port), queue._log)


@pytest.mark.parametrize(
    "handler",
    [traced(shout), passed_on, traced(passed_on)],
    ids=["by a function", "by a coroutine", "by both"],
)
def test_a_coroutine_that_was_returned_is_never_awaited(
    home: tuple[Embedded, ManualClock], handler: Handler
) -> None:
    port, _ = home
    queue = sync.Broker(port).queue("orders", max_attempts=1)
    queue.publish_many([b"a", b"bad", b"b"])
    left = threading.Semaphore(0)

    def counted(delivery: aio.Delivery) -> object:
        left.release()
        return handler(delivery)

    running = Running(AioWorker(aio_queue(queue), counted))
    for _ in range(3):
        left.acquire()
    assert running.stop() is True
    assert heard == [b"a", b"bad", b"b"]
    assert running.counts == (2, 1, 0)
    (dead,) = sync.Broker(port).get_queue("orders.dlq").peek(9)
    assert dead.headers["x-error"] == "ValueError: bad one"


@pytest.mark.parametrize(
    ("kind", "handler", "advice"),
    [
        ("threads", traced(shout), "a coroutine function"),
        ("threads", lambda _: Promise(), "a coroutine function"),
        ("threads", yielding, "yield"),
        ("threads", yielding_aio, "yield"),
        ("asyncio", yielding, "yield"),
        ("asyncio", yielding_aio, "yield"),
        ("asyncio", passing_on_a_generator, "yield"),
    ],
)  # fmt: skip
def test_a_promise_of_work_is_acknowledged(
    home: tuple[Embedded, ManualClock],
    kind: str,
    handler: Handler,
    advice: str,
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    port, _ = home
    queue = sync.Broker(port).queue("orders", max_attempts=2, backoff=None)
    queue.publish_many([b"a", b"b"])
    left = threading.Semaphore(0)

    def counted(delivery: Any) -> object:
        left.release()
        return handler(delivery)

    running = Running(Worker(queue, counted) if kind == "threads" else AioWorker(aio_queue(queue), counted))
    for _ in range(4):
        left.acquire()
    assert running.stop() is True
    assert (heard, running.counts) == ([], (0, 4, 0))
    dead = sync.Broker(port).get_queue("orders.dlq").peek(9)
    assert [one.payload for one in dead] == [b"a", b"b"]
    assert all("the handler returned" in one.headers["x-error"] for one in dead)
    assert all(advice in one.headers["x-error"] for one in dead)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    gc.collect()
    assert [str(one.message) for one in recwarn] == []


def test_messages_are_handled_one_after_the_other_whatever_the_concurrency(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish_many([b"a", b"b", b"c"])
    together = threading.Barrier(4)
    running = place.work(queue, lambda _: together.wait() and None, concurrency=3)
    together.wait()
    running.stop()
    assert running.counts == (3, 0, 0)


def test_a_message_is_handled_twice_or_never_by_many_hands(place: Place) -> None:
    queue = place.broker.queue("orders")
    handler = Counted()
    running = [place.work(queue, handler, concurrency=4, prefetch=40) for _ in range(2)]
    sent = [b"%d" % n for n in range(600)]
    for at in range(0, 600, 100):
        queue.publish_many(sent[at : at + 100])
    handler.wait(600)
    assert [one.stop() for one in running] == [True, True]
    assert sorted(payload for payload, _ in handler.seen) == sorted(sent)
    assert sum(one.worker.processed for one in running) == 600
    assert queue.depth() == 0


def test_at_most_once_is_settled_again_or_given_back(place: Place) -> None:
    queue = place.broker.queue("orders", delivery="at-most-once")
    queue.publish_many([b"a", b"b"])
    handler = Counted(ValueError("gone"))
    running = place.work(queue, handler, prefetch=10)
    handler.wait(2)
    running.stop()
    assert running.counts == (1, 1, 0)
    assert queue.depth() == 0


# --- leases ---


def test_a_long_handler_loses_its_lease(place: Place) -> None:
    queue = place.broker.queue("orders", visibility_timeout=30)
    queue.publish_many([b"a", b"b", b"c"])
    gate = Gate()
    running = place.work(queue, gate, prefetch=3)
    gate.begun.acquire()
    assert running.beat() == 0  # it is too early
    for _ in range(10):
        place.pass_time(11)
        running.beat()
    assert queue.stats().leased == 3  # those that were not begun, too
    gate.open.set()
    for _ in range(2):
        gate.begun.acquire()
    running.stop()
    assert running.counts == (3, 0, 0)
    assert gate.seen == [b"a", b"b", b"c"]


def test_leases_without_an_end_are_renewed(place: Place) -> None:
    queue = place.broker.queue("orders", visibility_timeout=None)
    queue.publish(b"a")
    gate = Gate()
    running = place.work(queue, gate)
    gate.begun.acquire()
    place.pass_time(1000)
    assert running.beat() == 0
    gate.open.set()
    running.stop()
    assert running.counts == (1, 0, 0)


def test_a_lease_that_need_not_end_any_more_ends(place: Place) -> None:
    queue = place.broker.queue("orders", visibility_timeout=30)
    queue.publish(b"a")
    gate = Gate()
    running = place.work(queue, gate)
    gate.begun.acquire()
    queue.alter(visibility_timeout=None)
    place.pass_time(25)
    running.beat()
    place.pass_time(1000)
    gate.open.set()
    running.stop()
    assert running.counts == (1, 0, 0)


@pytest.mark.parametrize("noticed", ["by the heartbeat", "when settling"])
def test_the_outcome_of_a_lost_lease_counts(
    place: Place, noticed: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = place.broker.queue("orders", visibility_timeout=30)
    queue.publish(b"a")
    gate = Gate()
    running = place.work(queue, gate)
    gate.begun.acquire()
    place.pass_time(31)
    other = queue.receive()
    assert other is not None
    if noticed == "by the heartbeat":
        assert running.beat() == 0
        assert running.counts == (0, 0, 1)
    gate.open.set()
    running.stop()
    assert running.counts == (0, 0, 1)
    assert "its outcome is dropped" in caplog.text
    other.ack()  # it is the other's
    assert queue.depth() == 0


def test_one_lost_lease_takes_the_others_with_it(place: Place) -> None:
    queue = place.broker.queue("orders", visibility_timeout=30)
    queue.publish_many([b"a", b"b"])
    gate = Gate()
    running = place.work(queue, gate, concurrency=2)
    for _ in range(2):
        gate.begun.acquire()
    held = list(running.worker._holding._held.values())
    (receipt,) = receipts([held[0].delivery], running.worker._queue)
    asking.do(place.port, queue._log, Settle(*receipt))  # behind its back
    place.pass_time(11)
    running.beat()
    assert running.counts == (0, 0, 1)
    place.pass_time(25)  # of a lease that was not renewed, nothing would be left
    gate.open.set()
    running.stop()
    assert running.counts == (1, 0, 1)


# --- stopping ---


def test_stopping_drops_what_is_in_hand_or_keeps_what_was_not_begun(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish_many([b"a", b"b", b"c", b"d"])
    gate = Gate()
    running = place.work(queue, gate, prefetch=4)
    gate.begun.acquire()
    running.worker.stop()
    back: list[bytes] = []
    while len(back) < 3:  # it waits until they are given back
        back += [delivery.payload for delivery in queue.receive_many(3, timeout=None)]
    assert back == [b"b", b"c", b"d"]
    assert not running.ended.done()
    gate.open.set()
    assert running.ended.result() is True
    assert running.counts == (1, 0, 0)
    assert gate.seen == [b"a"]


def test_stopping_at_once_waits_or_keeps_the_lease(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish_many([b"a", b"b", b"c"])
    gate = Gate()
    running = place.work(queue, gate, concurrency=2, prefetch=3)
    for _ in range(2):
        gate.begun.acquire()
    running.worker.stop(now=True)
    back: list[bytes] = []
    while len(back) < 3:
        back += [delivery.payload for delivery in queue.receive_many(3, timeout=None)]
    assert sorted(back) == [b"a", b"b", b"c"]
    gate.open.set()  # asyncio.run waits for the threads of to_thread
    assert running.ended.result() is False
    assert running.counts == (0, 0, 0)


def test_stopping_again_at_once_does_not_help(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish(b"a")
    gate = Gate()
    running = place.work(queue, gate)
    gate.begun.acquire()
    running.worker.stop()
    running.worker.stop(now=True)
    assert queue.receive(timeout=None) is not None
    gate.open.set()
    assert running.ended.result() is False


def test_a_worker_stopped_before_it_ran_begins_something(place: Place) -> None:
    queue = place.broker.queue("orders")
    worker = place.worker(queue, Counted())
    worker.stop()
    queue.publish(b"a")
    assert Running(worker).ended.result() is True
    assert queue.stats().ready == 1


def test_a_handler_cannot_stop_its_worker(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish_many([b"a", b"b"])
    worker = place.worker(queue, lambda _: worker.stop())
    assert Running(worker).ended.result() is True
    assert (worker.processed, queue.depth()) == (1, 1)


class Deaf:
    """A coroutine function that does not hear when it is cancelled, and ends when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.seen: list[bytes] = []

    async def __call__(self, delivery: aio.Delivery) -> None:
        self.seen.append(delivery.payload)
        self.begun.release()
        while not self.go_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.to_thread(self.go_on.wait)
        self.ended.release()


@pytest.mark.parametrize("how", ["stopped at once", "stopped, then at once", "cancelled"])
def test_a_handler_that_swallows_cancellation_keeps_the_worker_or_the_lease(
    home: tuple[Embedded, ManualClock],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(worker_module, "GRACE_S", 0.0)
    port, _ = home
    queue = sync.Broker(port).queue("orders")
    queue.publish_many([b"a", b"b", b"c"])
    deaf = Deaf()

    async def main() -> None:
        worker = AioWorker(aio_queue(queue), deaf, concurrency=2, prefetch=3)
        running = asyncio.create_task(worker.run())
        for _ in range(2):
            await asyncio.to_thread(deaf.begun.acquire)
        if how == "cancelled":
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            if how == "stopped, then at once":
                worker.stop()
            worker.stop(now=True)
            assert await running is False
        assert (queue.stats().ready, queue.stats().leased) == (3, 0)
        deaf.go_on.set()  # at last: its outcome comes too late, and it begins nothing more
        for _ in range(2):
            await asyncio.to_thread(deaf.ended.acquire)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        assert (worker.processed, worker.failed, worker.lost) == (0, 0, 2)

    asyncio.run(main())
    assert deaf.seen == [b"a", b"b"]
    assert queue.stats().ready == 3
    assert "2 handlers of 'orders' have not ended" in caplog.text


def test_a_cancelled_handler_is_disturbed_while_it_clears_up(home: tuple[Embedded, ManualClock]) -> None:
    port, _ = home
    queue = sync.Broker(port).queue("orders")
    queue.publish(b"a")
    cleared: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(_delivery: aio.Delivery) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(20):  # while the worker goes about ending
                    await asyncio.sleep(0)
                cleared.append("up")

        worker = AioWorker(aio_queue(queue), handler)
        running = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop(now=True)
        assert await running is False

    asyncio.run(main())
    assert cleared == ["up"]
    assert queue.stats().ready == 1


def test_a_handler_that_ends_by_itself_after_all_is_given_another_message(
    home: tuple[Embedded, ManualClock],
) -> None:
    port, _ = home
    queue = sync.Broker(port).queue("orders")
    queue.publish_many([b"a", b"b", b"c"])
    seen: list[bytes] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(delivery: aio.Delivery) -> None:
            seen.append(delivery.payload)
            begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        worker = AioWorker(aio_queue(queue), handler, prefetch=3)
        running = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop(now=True)
        assert await running is False
        assert worker.processed == 1

    asyncio.run(main())
    assert seen == [b"a"]
    assert queue.stats().ready == 2


def test_two_workers_of_one_name_take_from_one_another(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish_many([b"a", b"b"])
    gates = [Gate(), Gate()]
    running = []
    for gate in gates:
        running.append(place.work(queue, gate, name="w"))
        gate.begun.acquire()
    running[0].worker.stop(now=True)
    assert queue.receive(timeout=None) is not None  # what the first had
    for gate in gates:
        gate.open.set()
    assert [one.stop() for one in running] == [False, True]
    assert [one.worker.name for one in running] == ["w", "w~2"]
    assert running[1].counts == (1, 0, 0)


def test_a_cancelled_run_keeps_its_leases(home: tuple[Embedded, ManualClock]) -> None:
    port, _ = home

    async def main() -> None:
        queue = await aio.Broker(port).queue("orders")
        await queue.publish(b"a")
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(_: aio.Delivery) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        running = asyncio.create_task(AioWorker(queue, handler).run())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert cancelled.is_set()
        assert (await queue.stats()).ready == 1

    asyncio.run(main())


def test_a_plain_function_blocks_the_loop(home: tuple[Embedded, ManualClock]) -> None:
    port, _ = home

    async def main() -> None:
        queue = await aio.Broker(port).queue("orders")
        await queue.publish(b"a")
        seen = []

        def handler(delivery: aio.Delivery) -> None:
            seen.append((delivery.payload, threading.current_thread() is threading.main_thread()))
            worker.stop()

        worker = AioWorker(queue, handler)
        assert await worker.run() is True
        assert seen == [(b"a", False)]

    asyncio.run(main())


# --- when the broker cannot ---


def test_a_closed_broker_leaves_the_worker_waiting(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish(b"a")
    handler = Counted()
    running = place.work(queue, handler)
    handler.wait()
    place.port.close()
    assert running.ended.result() is True


def test_a_closed_broker_takes_a_running_handler_for_done(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    queue = place.broker.queue("orders")
    queue.publish(b"a")
    gate = Gate()
    running = place.work(queue, gate)
    gate.begun.acquire()
    place.port.close()
    gate.open.set()
    assert running.ended.result() is True
    assert running.counts == (0, 0, 1)
    assert "the broker is closed" in caplog.text


def test_a_deleted_queue_is_waited_for(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish(b"a")
    handler = Counted()
    running = place.work(queue, handler)
    handler.wait()
    place.broker.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        running.ended.result()


class Refusing:
    """A broker that cannot lease a few times."""

    def __init__(self, port: Embedded, *errors: PenstockError) -> None:
        self._port = port
        self._errors = list(errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def lease(self, *args: Any, **kwargs: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return self._port.lease(*args, **kwargs)


def test_a_full_disk_ends_the_worker(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    log = place.broker.queue("orders")._log
    refusing: Any = Refusing(place.port, DiskFull("no room"), DiskFull("still none"))
    queue = sync.Queue(sync.Broker(refusing), log)
    queue.publish(b"a")
    handler = Counted()
    running = place.work(queue, handler, receive_backoff=Backoff(initial=0, jitter=0))
    handler.wait()
    running.stop()
    assert running.counts == (1, 0, 0)
    assert "still none" in caplog.text


def test_a_broker_that_says_closed_is_asked_again(place: Place) -> None:
    log = place.broker.queue("orders")._log
    refusing: Any = Refusing(place.port, BrokerClosed("closed"))
    queue = sync.Queue(sync.Broker(refusing), log)
    assert place.work(queue, Counted()).ended.result() is True


# --- wrong use ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"concurrency": 5000}, "from 1 to 4096"),
        ({"concurrency": 4, "prefetch": 3}, "not below"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"receive_backoff": 1}, "receive_backoff is 1"),
    ],
)
def test_bad_settings_are_taken(settings: dict[str, Any], said: str) -> None:
    with penstock.open() as broker, pytest.raises(InvalidArgument, match=said):
        penstock.Worker(broker.queue("orders"), print, **settings)


def test_an_odd_setting_is_an_error_of_others() -> None:
    with penstock.open() as broker:
        queue = broker.queue("orders")
        for odd in oddities().values():
            for field in ("queue", "handler", "concurrency", "prefetch", "name", "receive_backoff"):
                with suppress(PenstockError):
                    penstock.Worker(**{"queue": queue, "handler": print, field: odd})
            with suppress(PenstockError):
                penstock.Retry(odd, delay=odd)
            penstock.Reject(odd)


def test_the_wrong_kind_of_queue_or_handler_is_taken() -> None:
    async def handler(_: object) -> None: ...

    class Handling:
        async def __call__(self, _: object) -> None: ...

    wrong: Any = "orders"
    with penstock.open() as broker:
        queue = broker.queue("orders")
        for bad in (handler, Handling()):
            with pytest.raises(InvalidArgument, match="penstock.aio.Worker"):
                penstock.Worker(queue, bad)
        with pytest.raises(InvalidArgument, match="penstock.Worker"):
            penstock.aio.Worker(queue, handler)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="penstock.aio.Worker"):
            penstock.Worker(wrong, print)
        with pytest.raises(InvalidArgument, match="takes a delivery"):
            penstock.Worker(queue, wrong)


def test_a_worker_runs_twice_or_beats_before_it_runs(place: Place) -> None:
    queue = place.broker.queue("orders")
    worker = place.worker(queue, Counted())
    with pytest.raises(InvalidArgument, match="does not run yet"):
        worker.beat() if isinstance(worker, Worker) else asyncio.run(worker.beat())
    worker.stop()
    Running(worker).ended.result()
    with pytest.raises(InvalidArgument, match="runs once"):
        Running(worker).ended.result()


def test_signals_are_taken_outside_the_main_thread() -> None:
    with penstock.open() as broker:
        worker = penstock.Worker(broker.queue("orders"), print)
        failed: Future[None] = Future()

        def run() -> None:
            try:
                worker.run(signals=True)
            except InvalidArgument as error:
                failed.set_exception(error)

        threading.Thread(target=run).start()
        with pytest.raises(InvalidArgument, match="main thread"):
            failed.result()


def test_a_threads_worker_blocks_a_running_loop() -> None:
    async def main() -> None:
        with penstock.open() as broker, pytest.raises(InvalidArgument, match="penstock.aio.Worker"):
            penstock.Worker(broker.queue("orders"), print).run()

    asyncio.run(main())


def test_signal_handlers_are_not_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with penstock.open() as broker:
        worker = penstock.Worker(broker.queue("orders"), print)
        worker.stop()
        assert worker.run(signals=True) is True
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# --- real signals ---

SCRIPT = """
import asyncio, logging, sys, threading
import penstock
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")

def handle(delivery):
    print("begun", delivery.payload.decode(), flush=True)
    sys.stdin.readline()

async def main():
    async with penstock.aio.open(sys.argv[1]) as broker:
        worker = penstock.aio.Worker(await broker.get_queue("orders"), handle, prefetch=3)
        return await worker.run(signals=True)

if sys.argv[2] == "asyncio":
    print(asyncio.run(main()))
else:
    with penstock.open(sys.argv[1]) as broker:
        print(penstock.Worker(broker.get_queue("orders"), handle, prefetch=3).run(signals=True))
"""


@pytest.fixture(params=["threads", "asyncio"])
def child(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that works on three messages, and has begun the first."""
    with penstock.open(tmp_path / "q") as broker:
        broker.queue("orders").publish_many([b"a", b"b", b"c"])
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "q"), request.param]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun a\n"
        yield process


def left(path: Path) -> list[tuple[bytes, int]]:
    with penstock.open(path) as broker:
        return [(one.payload, one.attempt) for one in broker.get_queue("orders").receive_many(10)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_breaks_off_what_is_in_hand(
    child: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    assert child.stderr is not None
    child.send_signal(number)
    assert number.name in child.stderr.readline()  # now it knows
    out, err = child.communicate("go on\n", timeout=60)
    assert (child.returncode, out, err) == (0, "True\n", "")
    assert [payload for payload, _ in left(tmp_path / "q")] == [b"b", b"c"]


def test_a_second_signal_waits_for_the_handler(child: subprocess.Popen[str], tmp_path: Path) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.send_signal(signal.SIGTERM)
    assert "SIGTERM" in child.stderr.readline()
    child.send_signal(signal.SIGTERM)
    assert "again" in child.stderr.readline()
    assert child.stdout.readline() == "False\n"  # while the handler still waits for its line
    assert child.wait(60) == 0
    assert [payload for payload, _ in left(tmp_path / "q")] == [b"a", b"b", b"c"]


def test_fetched_messages_keep_their_attempts_when_the_process_dies(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with penstock.open(directory) as broker:
        queue = broker.queue("orders")
        queue.publish_many([b"a", b"b", b"c"])
        gate = Gate()
        running = Running(Worker(queue, gate, prefetch=10))
        gate.begun.acquire()
        shutil.copytree(directory, tmp_path / "after a kill")
        gate.open.set()
        running.stop()
    with penstock.open(tmp_path / "after a kill") as broker:
        found = broker.queue("orders").receive_many(9)
    assert [(one.payload, one.attempt) for one in found] == [(b"a", 2), (b"b", 1), (b"c", 1)]


def test_fetched_messages_whose_lease_ended_are_not_handled_twice(place: Place) -> None:
    queue = place.broker.queue("orders")
    queue.publish_many([b"a", b"b", b"c"])
    gate = Gate()
    running = place.work(queue, gate, prefetch=10, concurrency=1)
    gate.begun.acquire()
    queue.group("default").seek(offset=0)
    gate.open.set()
    for _ in range(3):
        gate.begun.acquire()
    running.stop()
    assert gate.seen == [b"a", b"a", b"b", b"c"]
    assert queue.depth() == 0
