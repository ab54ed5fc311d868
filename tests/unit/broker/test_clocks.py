"""Whose clock it is: the machine's, one that is moved by hand, somebody's own; set forward, set back, or looked at too late."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker import monitor, sync
from penstock.broker.opening import in_memory, on_disk
from penstock.clock import SECOND_US, ManualClock, SystemClock, to_datetime
from penstock.errors import BrokerClosed, JournalFailed
from penstock.message import Message
from penstock.policy import Backoff
from tests.conformance.unheard import UnheardClock
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.journal.watched import Watched, failing, nothing

Opening = Callable[[Any], sync.Broker]


@pytest.fixture(params=["memory", "disk"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening]:
    """Opens brokers with a clock, in memory or on the disk; they are closed in the end."""
    opened: list[sync.Broker] = []

    def begin(clock: Any) -> sync.Broker:
        path = tmp_path / f"data-{len(opened)}"
        opened.append(sync.Broker(in_memory(clock) if request.param == "memory" else on_disk(path, clock)))
        return opened[-1]

    yield begin
    for broker in opened:
        broker.close()


def core_of(broker: sync.Broker) -> monitor.Monitor:
    found: Any = broker._port
    assert isinstance(found.monitor, monitor.Monitor)
    return found.monitor


def waiting(queue: sync.Queue, timeout: float | None) -> Any:
    call = start(queue.receive, timeout)
    until(lambda: queue.stats().waiting == 1)
    return call


# --- moved by hand ---


def test_a_move_by_hand_leaves_somebody_asleep(opening: Opening) -> None:
    clock = ManualClock()
    queue = opening(clock).queue("q")
    queue.publish(b"x", delay=5)
    call = waiting(queue, 10)
    clock.advance(4.999)
    assert queue.stats().waiting == 1
    clock.advance(0.001)
    found = call.result(PATIENCE_S)
    assert found.payload == b"x"
    call = waiting(queue, 10)
    clock.advance(10)
    assert call.result(PATIENCE_S) is None


def test_a_move_by_hand_is_over_before_what_was_due_has_happened(opening: Opening) -> None:
    clock = ManualClock()
    queue = opening(clock).queue("q", visibility_timeout=30, max_attempts=1)
    dead = queue.dead_letters()
    queue.publish(b"x")
    queue.receive()
    clock.advance(31)
    counted = core_of(queue._broker).engine.find("default", "q.dlq")
    assert counted is not None
    assert counted.group().lanes.count == 1  # it has arrived, without anybody asking
    assert [found.headers["x-reason"] for found in dead.peek(9)] == ["max-attempts"]


def test_a_move_by_hand_is_heard_by_one_of_two(opening: Opening) -> None:
    clock = ManualClock()
    queues = [opening(clock).queue("q") for _ in range(2)]
    calls = [waiting(queue, 5) for queue in queues]
    clock.advance(5)
    assert [call.result(PATIENCE_S) for call in calls] == [None, None]


def test_a_clock_that_is_moved_by_hand_has_a_timer(opening: Opening) -> None:
    clock = ManualClock()
    broker = opening(clock)
    broker.queue("q").publish(b"x", delay=5)
    assert core_of(broker)._timer is None


def test_a_task_hears_of_no_move(opening: Opening) -> None:
    clock = ManualClock()
    port: Any = opening(clock)._port

    async def run() -> Any:
        queue = await penstock.aio.Broker(port).queue("q")
        task = asyncio.create_task(queue.receive(60))
        await asyncio.sleep(0)  # it waits: a call of the port never blocks
        clock.advance(60)
        return await asyncio.wait_for(task, PATIENCE_S)

    assert asyncio.run(run()) is None


def test_a_worker_hears_of_no_move(opening: Opening) -> None:
    clock = ManualClock()
    queue = opening(clock).queue("q", backoff=Backoff(initial=60, factor=1, maximum=60, jitter=0))
    queue.publish(b"x")
    attempts: list[int] = []

    def handle(delivery: Any) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) < 3:
            raise ValueError("not yet")

    worker = penstock.Worker(queue, handle)
    running = start(worker.run)
    for number in (1, 2):
        until(lambda number=number: len(attempts) == number and queue.stats().retrying == 1)  # type: ignore[misc]
        clock.advance(60)
    until(lambda: queue.depth() == 0)
    worker.stop()
    assert running.result(PATIENCE_S) is True
    assert attempts == [1, 2, 3]


def test_a_closed_broker_is_woken_or_kept_alive_by_its_clock(opening: Opening) -> None:
    clock = ManualClock()
    broker = sync.Broker(in_memory(clock))
    broker.queue("q").publish(b"x", delay=5)
    broker.close()
    clock.advance(10)
    with pytest.raises(BrokerClosed):
        broker.queue("q")
    gone = weakref.ref(core_of(broker))
    del broker
    gc.collect()
    assert gone() is None
    clock.advance(10)
    opening(clock)
    assert len(clock._followers) == 1


def test_moving_the_clock_of_a_failed_broker_fails(tmp_path: Path) -> None:
    clock, files = ManualClock(), Watched()
    broker = sync.Broker(on_disk(tmp_path / "data", clock, files=files))
    queue = broker.queue("q", visibility_timeout=5, max_attempts=1)
    queue.publish(b"x")
    queue.receive()
    files.before = failing("fdatasync", errno.EIO)
    clock.advance(6)  # the dead letter cannot be recorded
    clock.advance(6)
    with pytest.raises(JournalFailed):
        queue.publish(b"y")
    files.before = nothing
    broker.close()


# --- somebody's own ---


class Ticking:
    """The machine's clock, by another name; it may be ahead."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000 + self.ahead_us


def test_a_clock_of_ones_own_wakes_nobody(opening: Opening) -> None:
    queue = opening(Ticking()).queue("q")
    assert queue.receive(timeout=0.02) is None
    queue.publish(b"x", delay=0.02)
    found = queue.receive(timeout=PATIENCE_S)
    assert found is not None
    assert found.payload == b"x"


def test_a_clock_of_ones_own_that_jumps_is_noticed_by_those_who_call(opening: Opening) -> None:
    clock = Ticking()
    queue = opening(clock).queue("q")
    queue.publish(b"x", delay=3600)
    call = waiting(queue, None)
    clock.ahead_us += 3600 * SECOND_US
    assert call.result(PATIENCE_S).payload == b"x"


def test_the_machines_clock_is_looked_at_all_the_time(opening: Opening) -> None:
    assert core_of(opening(SystemClock()))._nap_s == monitor.NAP_S
    assert core_of(opening(Ticking()))._nap_s == monitor.FOREIGN_NAP_S


def test_the_timer_of_a_clock_of_ones_own_outlives_its_broker() -> None:
    broker = sync.Broker(in_memory(Ticking()))
    broker.queue("q").publish(b"x", delay=3600)
    timer = core_of(broker)._timer
    assert timer is not None
    assert timer in threading.enumerate()
    broker.close()
    assert not timer.is_alive()


# --- set forward ---


@pytest.mark.parametrize("clock", [ManualClock, UnheardClock])
def test_what_is_due_by_a_clock_that_was_set_forward_waits(
    opening: Opening, clock: Callable[[], ManualClock]
) -> None:
    given = clock()
    queue = opening(given).queue("q", visibility_timeout=30)
    moment = to_datetime(given.now_us()) + timedelta(hours=8)
    queue.publish_many(
        [Message(b"later", deliver_at=moment), Message(b"mortal", expires_at=moment), b"leased"]
    )
    held = [found.payload for found in queue.receive_many(9)]
    assert held == [b"mortal", b"leased"]
    given.set_forward(8 * 3600)  # the machine slept
    found = queue.receive_many(9)
    # What went back is in its old place, the expired one is not delivered, and what fell due has just arrived.
    assert [(one.payload, one.attempt) for one in found] == [(b"leased", 2), (b"later", 1)]


def test_one_who_waits_sleeps_on_when_the_clock_is_set_forward(opening: Opening) -> None:
    clock = ManualClock()
    queue = opening(clock).queue("q")
    queue.publish(b"later", deliver_at=to_datetime(clock.now_us()) + timedelta(hours=8))
    call = waiting(queue, None)
    clock.set_forward(8 * 3600)
    assert call.result(PATIENCE_S).payload == b"later"


def test_time_goes_back_with_a_clock_that_was_set_forward_for_a_while(opening: Opening) -> None:
    clock = ManualClock()
    queue = opening(clock).queue("q", visibility_timeout=30)
    clock.set_forward(3600)
    queue.publish(b"x")
    found = queue.receive()
    assert found is not None
    assert found.timestamp == to_datetime(clock.now_us())
    clock.set_back(3600)
    clock.advance(29)
    assert queue.receive() is None
    clock.advance(1)  # half a minute is half a minute, whatever the time is
    again = queue.receive()
    assert again is not None
    assert again.attempt == 2


# --- looked at too late ---


def _receive(queue: sync.Queue) -> bytes | None:
    found = queue.receive()
    return None if found is None else found.payload


def _receive_many(queue: sync.Queue) -> bytes | None:
    found = queue.receive_many(1)
    return found[0].payload if found else None


def _peek(queue: sync.Queue) -> bytes | None:
    found = queue.peek()
    return found[0].payload if found else None


@pytest.mark.parametrize("look", [_receive, _receive_many, _peek])
@pytest.mark.parametrize("behind", [0, 1])
def test_what_fell_due_is_not_there_before_the_timer_noticed(
    opening: Opening, look: Callable[[sync.Queue], bytes | None], behind: int
) -> None:
    clock = UnheardClock()
    queue = opening(clock).queue("q")
    queue.publish(b"due", delay=5, priority=1)
    for _ in range(behind):
        queue.publish(b"plain")
    clock.advance(5)
    assert look(queue) == b"due"


@pytest.mark.parametrize("look", [_receive, _receive_many, _peek])
def test_what_expired_is_there_before_the_timer_noticed(
    opening: Opening, look: Callable[[sync.Queue], bytes | None]
) -> None:
    clock = UnheardClock()
    queue = opening(clock).queue("q")
    queue.publish(b"mortal", ttl=5)
    queue.publish(b"plain")
    clock.advance(5)
    assert look(queue) == b"plain"


@pytest.mark.parametrize("look", [_receive, _receive_many, _peek])
def test_what_went_back_is_not_there_before_the_timer_noticed(
    opening: Opening, look: Callable[[sync.Queue], bytes | None]
) -> None:
    clock = UnheardClock()
    queue = opening(clock).queue("q", visibility_timeout=30)
    queue.publish(b"leased")
    queue.publish(b"plain")
    assert _receive(queue) == b"leased"
    clock.advance(30)
    assert look(queue) == b"leased"
