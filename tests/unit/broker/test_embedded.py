"""Engine, journal and those who wait, together: who is served, who is refused, and what is left when something fails."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker import aio, embedded, sync
from penstock.broker.compose import publish_of
from penstock.broker.embedded import Embedded
from penstock.broker.monitor import Monitor
from penstock.broker.opening import in_memory, on_disk
from penstock.broker.port import UPCOMING
from penstock.clock import ManualClock, SystemClock
from penstock.errors import (
    BrokerClosed,
    DiskFull,
    ForkedProcess,
    InvalidArgument,
    JournalFailed,
    LeaseLost,
    PenstockError,
    QueueNotFound,
)
from penstock.limits import FRAME_SECTIONS_MAX
from penstock.message import Message
from penstock.model.commands import Publish, Purge, Redrive, Redriven, Settle, Unit
from penstock.model.queries import OfLog
from tests import asking
from tests.conformance.unheard import UnheardClock
from tests.unit.broker.patience import PATIENCE_S, interrupted_at_the_gate, start, until
from tests.unit.journal.watched import Watched, failing, nothing


class Place:
    """A broker, its clock and, on disk, what is between it and the operating system."""

    def __init__(self, path: Path | None, clock: ManualClock | None = None, **settings: Any) -> None:
        self.path = path
        self.clock = clock or UnheardClock()
        self.files = Watched()
        self.port: Embedded
        if path is None:
            self.port = in_memory(self.clock)
        else:
            self.port = on_disk(path, self.clock, files=self.files, **settings)
        self.broker = sync.Broker(self.port)
        self.queue = self.broker.queue("q")

    def waiting(self, count: int) -> None:
        """Return when so many wait."""
        until(lambda: self.queue.stats().waiting == count)

    def crashed(self, name: str = "crashed") -> Place:
        assert self.path is not None
        left = self.path.with_name(name)
        journal = self.port.monitor.journal
        assert journal is not None
        with journal._tidy:  # no file goes while it is copied
            shutil.copytree(self.path, left, ignore=shutil.ignore_patterns("*.tmp"))  # drafts come and go
        return Place(left, self.clock)

    def payloads(self) -> list[bytes]:
        return [found.payload for found in self.queue.peek(1000)]


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.files.before = nothing
    found.broker.close()


class Stop:
    """Holds up whoever makes a system call of a name, until it is opened."""

    def __init__(self, files: Watched, name: str = "fdatasync") -> None:
        self._name = name
        self.reached = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._files = files
        files.before = self._before

    def _before(self, name: str, arguments: tuple[object, ...]) -> None:
        if name == self._name:
            self.reached.release()
            assert self._go.acquire(timeout=PATIENCE_S)

    def wait(self) -> None:
        """Return when somebody is held up."""
        assert self.reached.acquire(timeout=PATIENCE_S)

    def let_one_pass(self) -> None:
        self._go.release()

    def open(self) -> None:
        self._files.before = nothing
        for _ in range(100):
            self._go.release()


# --- who waits ---


def test_a_later_waiter_is_served_before_an_earlier_one(place: Place) -> None:
    waiters = []
    for number in range(4):
        waiters.append(start(place.queue.receive, None))
        place.waiting(number + 1)
    place.queue.publish_many([b"0", b"1"])
    got = [waiter.result(PATIENCE_S) for waiter in waiters[:2]]
    assert [found.payload for found in got if found] == [b"0", b"1"]
    assert not waiters[2].done()
    place.queue.publish(b"2")
    place.queue.publish(b"3")
    got = [waiter.result(PATIENCE_S) for waiter in waiters[2:]]
    assert [found.payload for found in got if found] == [b"2", b"3"]
    assert place.queue.stats().waiting == 0


def test_receiver_that_comes_while_a_message_is_recorded_gets_it(disk: Place) -> None:
    disk.queue.publish(b"0")
    before = disk.queue.receive()
    assert before is not None
    before.ack()
    stop = Stop(disk.files)
    publishing = start(disk.queue.publish, b"1")
    stop.wait()
    receiving = start(disk.queue.receive, None)
    disk.waiting(1)
    stop.open()
    publishing.result(PATIENCE_S)
    found = receiving.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"1"


def test_one_who_came_first_takes_more_than_it_asked_for(place: Place) -> None:
    many, one = start(place.queue.receive_many, 3, None), None
    place.waiting(1)
    one = start(place.queue.receive, None)
    place.waiting(2)
    place.queue.publish_many([b"%d" % number for number in range(5)])
    first, second = many.result(PATIENCE_S), one.result(PATIENCE_S)
    assert [found.payload for found in first] == [b"0", b"1", b"2"]
    assert second is not None
    assert second.payload == b"3"
    assert place.payloads() == [b"4"]


def test_one_who_was_interrupted_takes_a_message(place: Place) -> None:
    with pytest.raises(KeyboardInterrupt), interrupted_at_the_gate():
        place.queue.receive(None)
    assert place.queue.stats().waiting == 0
    assert (place.port.monitor.lines.count, place.port.monitor.lines.next_us) == (0, None)
    place.queue.publish(b"x")
    delivery = place.queue.receive()
    assert delivery is not None
    assert delivery.attempt == 1


def test_a_task_that_was_cancelled_takes_a_message(place: Place) -> None:
    async def run() -> None:
        queue = await aio.Broker(place.port).queue("q")
        task = asyncio.create_task(queue.receive(60))
        await asyncio.sleep(0)  # it waits: a call of the port never blocks
        assert place.queue.stats().waiting
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert (place.queue.stats().waiting, place.port.monitor.lines.next_us) == (0, None)
    place.queue.publish(b"x")
    assert place.queue.receive() is not None


def test_what_was_granted_to_one_who_gives_up_is_kept(place: Place) -> None:
    ticket: Any = place.port.lease(place.queue._log, "default", 1, wait_us=None)
    place.queue.publish(b"x")
    assert place.queue.stats().leased == 1
    place.port._handing.give_up(ticket)
    delivery = place.queue.receive()
    assert delivery is not None
    assert delivery.attempt == 1  # nobody has seen it


def test_waiting_uses_up_the_line_of_a_deleted_queue(place: Place) -> None:
    waiter = start(place.queue.receive, 60)
    place.waiting(1)
    place.broker.delete_queue("q")
    with pytest.raises(QueueNotFound):
        waiter.result(PATIENCE_S)
    assert (place.port.monitor.lines.count, place.port.monitor.lines.next_us) == (0, None)


def test_the_timer_does_not_wake_anybody(tmp_path: Path) -> None:
    with sync.Broker(on_disk(tmp_path / "data", SystemClock())) as broker:
        queue = broker.queue("q")
        queue.publish(b"x", delay=0.02)
        delivery = queue.receive(PATIENCE_S)
        assert delivery is not None
        assert queue.receive(0.02) is None


def test_many_queues_that_wake_at_one_moment_exhaust_the_stack(place: Place) -> None:
    logs = [place.broker.queue(f"q{number}")._log for number in range(300)]
    for log in logs:
        asking.begin(place.port, log, publish_of([Message(b"x", delay=5)]))

    def wait_for_all() -> list[Any]:
        return [place.port.lease(log, "default", 1, wait_us=60_000_000) for log in logs]

    place.queue.publish(b"x")  # what was published is durable
    waiting = wait_for_all()
    place.clock.advance(5)
    place.port.wake()
    assert [one.wait().attempts for one in waiting] == [1] * 300
    waiting = wait_for_all()
    place.clock.advance(31)  # and their leases end together, too
    place.port.wake()
    assert [one.wait().attempts for one in waiting] == [[2]] * 300
    place.queue.publish(b"x")


def require_alive(port: Embedded) -> None:
    """The timer has looked at the next moment, sleeps, and wakes for another."""
    tick: Any = port.monitor._tick
    until(lambda: tick._waiters or port.monitor.failure)
    near = sync.Broker(port).queue("near")
    near.publish(b"x", delay=0.01)
    delivery = near.receive(PATIENCE_S)
    assert delivery is not None
    delivery.ack()


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("field", ["deliver_at", "expires_at"])
@pytest.mark.parametrize("moment", [datetime(2400, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_a_moment_that_no_timer_can_wait_for_breaks_the_broker_for_good(
    tmp_path: Path, where: str, field: str, moment: datetime
) -> None:
    path = tmp_path / "data"
    port = on_disk(path) if where == "disk" else in_memory()
    queue = sync.Broker(port).queue("q")
    queue.publish_many([msgspec.structs.replace(Message(b"far"), **{field: moment})])
    require_alive(port)
    for _ in range(2 if where == "disk" else 0):
        port.close()
        port = on_disk(path)
        require_alive(port)
    found = sync.Broker(port).queue("q")
    assert [one.payload for one in found.receive_many(9)] == ([] if field == "deliver_at" else [b"far"])
    assert found.depth() == 1
    port.close()


# --- time passes between a publish and its being durable ---


def passing(clock: ManualClock, seconds: float) -> Callable[[str, tuple[object, ...]], None]:
    """A disk that takes so long to sync."""

    def before(name: str, arguments: tuple[object, ...]) -> None:
        if name == "fdatasync":
            clock.advance(seconds)

    return before


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter"])
def test_what_expired_while_it_was_being_recorded_is_delivered(disk: Place, on_expire: str) -> None:
    queue = disk.broker.queue("mortal", on_expire=on_expire)
    waiting: Any = disk.port.lease(queue._log, "default", 5, wait_us=None)
    disk.files.before = passing(disk.clock, 10)
    queue.publish_many([Message(b"over", ttl=5)])
    disk.files.before = nothing
    disk.port.wake()
    assert waiting.outcome is None
    assert (queue.depth(), queue.stats().dead) == (0, 1 if on_expire == "dead-letter" else 0)
    queue.publish(b"alive", ttl=5)
    granted = waiting.wait()
    assert list(granted.offsets) == [1]


def test_what_fell_due_while_another_was_being_recorded_goes_behind_it(disk: Place) -> None:
    disk.queue.publish(b"delayed", delay=5)
    disk.files.before = passing(disk.clock, 10)
    disk.queue.publish(b"plain")
    disk.files.before = nothing
    assert [found.payload for found in disk.queue.receive_many(9)] == [b"delayed", b"plain"]


# --- drop-head while others are being recorded ---


def crowd(place: Place, queue: sync.Queue, stop: Stop, count: int) -> list[Future[int]]:
    """Publish so many, none of which is durable before the stop is opened."""
    publishing: list[Future[int]] = []
    before = len(place.port.monitor.on_the_way)
    for number in range(count):
        publishing.append(start(queue.publish, b"%d" % number))
        until(lambda: len(place.port.monitor.on_the_way) == before + len(publishing) or publishing[-1].done())
        if publishing[-1].done():  # it was refused
            stop.open()
            publishing[-1].result()
        elif not number:
            stop.wait()
    return publishing


@pytest.mark.parametrize("fresh", [True, False])
def test_a_queue_of_what_is_being_recorded_is_full_of_what_cannot_be_dropped(
    disk: Place, fresh: bool
) -> None:
    queue = disk.broker.queue("latest", max_depth=3, overflow="drop-head")
    if not fresh:
        queue.publish(b"old")
    stop = Stop(disk.files)
    publishing = crowd(disk, queue, stop, 15)
    assert queue.depth() == 3
    stop.open()
    assert len({one.result(PATIENCE_S) for one in publishing}) == 15
    assert [found.payload for found in queue.peek(99)] == [b"12", b"13", b"14"]
    after = disk.crashed()
    again = after.broker.queue("latest")
    assert [found.payload for found in again.receive_many(99)] == [b"12", b"13", b"14"]
    assert again.depth() == 3
    after.broker.close()


def test_a_snapshot_brings_back_what_was_dropped_before_it_was_recorded(disk: Place) -> None:
    queue = disk.broker.queue("latest", max_depth=3, overflow="drop-head")
    queue.publish(b"old")
    stop = Stop(disk.files)
    publishing = crowd(disk, queue, stop, 8)
    journal = disk.port.monitor.journal
    assert journal is not None
    snapshot = start(disk.port.monitor.upkeep.snapshot)  # type: ignore[union-attr]
    until(lambda: any(ticket.at_rest for ticket in list(journal._group._pending)))
    stop.open()
    for done in (*publishing, snapshot):
        done.result(PATIENCE_S)
    after = disk.crashed()
    assert asking.broker_stats(after.port).journal.recovery.snapshot is not None
    again = after.broker.queue("latest")
    assert (again.depth(), again.stats().ready) == (3, 3)
    assert [found.payload for found in again.receive_many(99)] == [b"5", b"6", b"7"]
    after.broker.close()


# --- many at once ---


@pytest.mark.lengthy
@pytest.mark.parametrize("how", ["purged", "expired", "expired while closed"])
def test_more_messages_than_a_frame_has_sections_end_at_once_and_break_the_directory(
    tmp_path: Path, how: str
) -> None:
    place = Place(tmp_path / "data", durability="os")
    half = FRAME_SECTIONS_MAX + 10  # each of them between two that stay
    place.queue.publish_many(
        [Message(b"x", priority=number % 2, ttl=60 if number % 2 else None) for number in range(2 * half)]
    )
    if how == "purged":
        place.queue.receive_many(half)
        assert place.queue.purge() == half
    elif how == "expired":
        place.clock.advance(61)
        place.port.wake()
    else:
        place.broker.close()
        place.clock.advance(61)
        place = Place(tmp_path / "data", place.clock)
    assert place.queue.depth() == half
    place.queue.publish(b"after")
    for _ in range(2):
        place.broker.close()
        place = Place(tmp_path / "data", place.clock)
        assert place.queue.stats().ready == half + 1
    place.broker.close()


# --- the journal fails ---
# --- the journal fails ---


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_a_failure_leaves_somebody_asleep_or_answered(disk: Place, call: str) -> None:
    other = disk.broker.queue("other")
    waiters = [start(disk.queue.receive, None), start(disk.queue.receive_many, 5, 60)]
    disk.waiting(2)
    assert disk.path is not None
    held = disk.broker.queue("held")
    held.publish(b"x")
    delivery = held.receive()
    assert delivery is not None
    disk.files.before = failing(call, errno.EIO)
    with pytest.raises(JournalFailed):
        other.publish_many([b"x" * 10, b"y"])
    for waiter in waiters:
        with pytest.raises(JournalFailed):
            waiter.result(PATIENCE_S)  # type: ignore[attr-defined]
    calls: list[Callable[[], object]] = [
        lambda: disk.queue.publish(b"x"), disk.queue.receive, lambda: disk.queue.receive(1), disk.queue.peek, disk.queue.stats,
        disk.queue.purge, disk.broker.list_queues, disk.broker.stats, delivery.ack, delivery.nack, lambda: delivery.extend(5),
        lambda: disk.broker.queue("new"), lambda: disk.queue.alter(ttl=5), disk.queue.dead_letters,
    ]  # fmt: skip
    for refused in calls:
        with pytest.raises(JournalFailed):
            refused()
    disk.files.before = nothing
    disk.broker.close()
    again = Place(disk.path, disk.clock)  # the directory was let go
    assert again.broker.queue("held").depth() == 1
    again.broker.close()


def test_two_who_hear_of_a_failure_share_an_error(disk: Place) -> None:
    disk.files.before = failing("fdatasync", errno.EIO)
    errors = []
    for _ in range(3):
        with pytest.raises(JournalFailed) as caught:
            disk.queue.publish(b"x")
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3


# --- a full disk ---


def fill(queue: sync.Queue) -> None:
    for _ in range(10_000):
        queue.publish(b"x" * 1000)


def test_a_full_disk_changes_something_or_stops_acks(tmp_path: Path) -> None:
    place = Place(tmp_path / "data", segment_bytes=65536)
    queue = place.queue
    queue.publish_many([b"%d " % number * 500 for number in range(8)])
    held = queue.receive_many(4)
    place.files.before = failing("posix_fallocate", errno.ENOSPC)
    with pytest.raises(DiskFull):
        fill(queue)
    published = queue.stats().published
    before = queue.stats()
    assert before.depth == published
    for _ in range(3):
        with pytest.raises(DiskFull):
            queue.publish_many([b"x" * 3000] * 3)
        with pytest.raises(DiskFull):
            held[0].reject(error="no")
    assert queue.stats() == before
    held[0].ack()
    queue.ack_many(held[1:3])
    held[3].nack(error="again")
    assert (queue.stats().depth, queue.stats().retrying) == (published - 3, 1)
    after = place.crashed()
    assert after.queue.depth() == published - 3
    after.broker.close()
    place.files.before = nothing
    queue.publish(b"there is room")
    assert queue.depth() == published - 2
    place.broker.close()


def test_a_refused_publish_uses_up_an_offset_or_a_dedup_id(tmp_path: Path) -> None:
    place = Place(tmp_path / "data", segment_bytes=65536)
    place.queue.publish(b"0")
    place.files.before = failing("posix_fallocate", errno.ENOSPC)
    for _ in range(100):
        try:
            place.queue.publish(b"x" * 20_000, dedup_id="a")
        except DiskFull:
            break
        place.clock.advance(1000)  # the window of the id is over
    else:
        raise AssertionError("the disk never got full")
    following = place.queue.stats().next_offset
    place.files.before = nothing
    place.clock.advance(1000)
    place.queue.publish(b"z", dedup_id="a")
    assert place.queue.stats().next_offset == following + 1
    place.broker.close()


# --- closing ---


def test_closing_with_a_deadline_refuses_what_is_settled(place: Place) -> None:
    place.queue.publish_many([b"0", b"1", b"2"])
    first, second, third = place.queue.receive_many(3)
    waiter = start(place.queue.receive, None)
    place.waiting(1)
    closing = start(place.broker.close, PATIENCE_S)
    until(lambda: place.port.monitor.draining)
    with pytest.raises(BrokerClosed):
        waiter.result(PATIENCE_S)
    for refused in (place.queue.receive_many, place.queue.peek):
        with pytest.raises(BrokerClosed):
            refused(1)
    with pytest.raises(BrokerClosed):
        place.queue.publish_many([b"x"])
    second.extend(60)
    place.queue.ack_many([first])
    second.nack()
    assert not closing.done()
    place.queue.ack_many([third])
    closing.result(PATIENCE_S)
    with pytest.raises(BrokerClosed):
        third.ack()
    place.broker.close()  # again


def test_closing_with_a_deadline_waits_longer_than_that(place: Place) -> None:
    place.queue.publish(b"x")
    place.queue.receive()
    place.broker.close(0.01)
    with pytest.raises(BrokerClosed):
        place.queue.depth()


def test_closing_waits_for_leases_that_have_ended_by_themselves(place: Place) -> None:
    place.queue.publish_many([b"0", b"1"])
    place.queue.receive_many(2)
    closing = start(place.broker.close, PATIENCE_S * 10)
    until(lambda: place.port.monitor.draining)
    assert not closing.done()
    place.clock.advance(31)
    place.port.wake()
    try:
        closing.result(PATIENCE_S)
    finally:
        with place.port.monitor.lock:
            place.port.monitor.settled.notify_all()


@pytest.mark.parametrize("interrupted", ["wake_all", "nothing_is_leased"])
def test_an_interruption_of_closing_keeps_the_directory_locked(
    tmp_path: Path, interrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "data")
    place.queue.publish(b"x")
    real = getattr(Monitor, interrupted)

    def once(*_: Any) -> None:
        monkeypatch.setattr(Monitor, interrupted, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(Monitor, interrupted, once)
    with pytest.raises(KeyboardInterrupt):
        place.broker.close(PATIENCE_S)
    again = Place(tmp_path / "data", place.clock)
    assert again.payloads() == [b"x"]
    again.broker.close()


def test_closing_with_nothing_handed_out_waits(place: Place) -> None:
    place.queue.publish(b"x")
    start(place.broker.close, PATIENCE_S * 10).result(PATIENCE_S)


def test_a_consumer_that_goes_while_the_broker_closes_is_refused_or_keeps_what_it_has() -> None:
    place = Place(None)
    place.queue.publish(b"x")
    consumer = place.queue.subscribe("c")
    consumer.receive()
    closing = start(place.broker.close, 2)
    until(lambda: place.port.monitor.draining)
    try:
        consumer.close()
        assert place.port.monitor.nothing_is_leased()
    finally:
        closing.result(PATIENCE_S)


def test_what_was_handed_out_is_lost_when_the_broker_closes(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    place.queue.publish_many([b"0", b"1"])
    place.queue.receive()
    place.broker.close()
    again = Place(tmp_path / "data", place.clock)
    assert [(d.payload, d.attempt) for d in again.queue.receive_many(9)] == [(b"0", 2), (b"1", 1)]
    again.broker.close()


def test_a_snapshot_that_fails_keeps_the_directory_locked(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    place.queue.publish(b"x")
    place.files.before = failing("open", errno.EIO, path=".snapshot")
    place.broker.close()
    again = Place(tmp_path / "data", place.clock)
    assert again.payloads() == [b"x"]
    again.broker.close()


def test_a_replay_that_fails_keeps_the_directory_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "data")
    place.queue.publish(b"x")
    place.broker.close()

    def broken(self: Embedded) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "settle_down", broken)
        with pytest.raises(RuntimeError):
            on_disk(tmp_path / "data")
    Place(tmp_path / "data", place.clock).broker.close()


# --- a fork ---


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_its_parents_broker(place: Place) -> None:
    place.queue.publish(b"x", key="k")
    delivery = place.queue.receive()
    assert delivery is not None
    calls: list[Callable[[], object]] = [
        lambda: place.queue.publish(b"x", key="k"), place.queue.receive, lambda: place.queue.receive(None), place.queue.stats,
        delivery.ack, delivery.nack, lambda: place.broker.queue("new"), place.broker.list_queues, place.queue.purge,
    ]  # fmt: skip
    pid = os.fork()
    if not pid:
        signal.setitimer(signal.ITIMER_REAL, 5)
        refused = 0
        for call in calls:
            try:
                call()
            except ForkedProcess:
                refused += 1
            except BaseException:
                os._exit(100)
        os._exit(0 if refused == len(calls) else 50 + refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    delivery.ack()
    assert place.queue.depth() == 0


# --- snapshots ---


def test_a_snapshot_loses_or_repeats_what_is_on_its_way(disk: Place) -> None:
    disk.queue.publish_many([b"0", b"1"])
    stop = Stop(disk.files)
    publishing = [start(disk.queue.publish_many, [b"2", Message(b"3", priority=1)])]
    stop.wait()  # it is written, and not yet durable
    publishing.append(start(disk.queue.publish_many, [Message(b"4", delay=5), b"5"]))
    until(lambda: len(disk.port.monitor.on_the_way) == 2)
    journal = disk.port.monitor.journal
    assert journal is not None
    snapshot = start(disk.port.monitor.upkeep.snapshot)  # type: ignore[union-attr]
    until(lambda: any(ticket.at_rest for ticket in list(journal._group._pending)))
    publishing.append(start(disk.queue.publish_many, [b"6"]))
    until(lambda: len(disk.port.monitor.on_the_way) == 3)
    assert disk.payloads() == [b"0", b"1"]
    stop.open()
    for done in publishing:
        done.result(PATIENCE_S)
    snapshot.result(PATIENCE_S)
    after = disk.crashed()
    assert asking.broker_stats(after.port).journal.recovery.snapshot is not None
    assert after.payloads() == [b"3", b"0", b"1", b"2", b"5", b"6"]
    assert (after.queue.depth(), after.queue.stats().delayed) == (7, 1)
    disk.clock.advance(5)
    assert sorted(d.payload for d in after.queue.receive_many(99)) == [b"%d" % number for number in range(7)]
    after.broker.close()


def test_a_snapshot_holds_a_lease_or_an_ack_that_came_after_it(disk: Place) -> None:
    disk.queue.publish_many([b"%d" % number for number in range(6)])
    held = disk.queue.receive_many(3)
    disk.queue.ack_many(held[:1])
    disk.port.monitor.upkeep.snapshot()  # type: ignore[union-attr]
    disk.queue.ack_many(held[1:2])
    disk.queue.receive_many(1)
    after = disk.crashed()
    assert [(d.payload, d.attempt) for d in after.queue.receive_many(9)] == [
        (b"2", 2), (b"3", 2), (b"4", 1), (b"5", 1)
    ]  # fmt: skip
    after.broker.close()


def test_a_snapshot_loses_what_a_letter_without_sync_overtook(disk: Place) -> None:
    mortal = disk.broker.queue("mortal", on_expire="dead-letter", visibility_timeout=None)
    mortal.publish(b"letter", ttl=5)
    consumer = mortal.subscribe("c")
    assert consumer.receive() is not None
    disk.clock.advance(6)
    disk.port.wake()  # its time is over, and it is still handed out
    stop = Stop(disk.files)
    leader = start(disk.queue.publish, b"0")
    stop.wait()
    publishing = start(disk.queue.publish, b"1")
    until(lambda: len(disk.port.monitor.on_the_way) == 2)
    closing = start(consumer.close)
    until(lambda: len(disk.port.monitor.on_the_way) == 3)
    stop.let_one_pass()  # the leader's; then both of the others are in one frame
    stop.wait()
    journal = disk.port.monitor.journal
    assert journal is not None
    snapshot = start(disk.port.monitor.upkeep.snapshot)  # type: ignore[union-attr]
    until(lambda: any(ticket.at_rest for ticket in list(journal._group._pending)))
    stop.open()
    for done in (leader, publishing, closing, snapshot):
        done.result(PATIENCE_S)
    after = disk.crashed()
    assert after.payloads() == [b"0", b"1"]
    assert len(after.broker.queue("mortal").dead_letters().receive_many(9)) == 1
    after.broker.close()


# --- what is stored and cannot be read ---


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_a_lost_message_is_handed_out_or_stops_the_others(delivery: str) -> None:
    place = Place(None)
    queue = place.broker.queue("lossy", delivery=delivery)
    for number in range(4):
        queue.publish(b"%d" % number, headers={"not": "plain"})
    log = queue._log
    place.port.monitor.shelf.drop(log.number, [0, 2])
    got = queue.receive_many(9)
    assert [(d.payload, d.offset) for d in got] == [(b"1", 1), (b"3", 3)]
    assert queue.receive() is None
    found = queue.stats()
    assert (found.depth, found.leased) == ((2, 2) if delivery == "at-least-once" else (0, 0))
    place.broker.close()


def test_a_lost_message_is_counted_as_delayed() -> None:
    place = Place(None)
    queue = place.broker.queue("lossy", delivery="at-most-once")
    queue.publish(b"0")
    queue.publish(b"1")
    place.port.monitor.shelf.drop(queue._log.number, [0])
    queue.receive_many(9)
    assert queue.stats().delayed == 0


def test_only_lost_messages_give_an_empty_answer() -> None:
    place = Place(None)
    for number in range(3):
        place.queue.publish(b"%d" % number, headers={"not": "plain"})
    place.port.monitor.shelf.drop(place.queue._log.number, [0, 1])
    delivery = place.queue.receive()
    assert delivery is not None
    assert delivery.payload == b"2"
    place.broker.close()


# --- the port ---


def test_a_foreign_handle_is_taken(place: Place) -> None:
    foreign: Any = object()
    for call in (
        lambda: place.port.commit(Unit("default", ((foreign, Publish([b"x"])),))),
        lambda: place.port.commit(Unit("default", ((foreign, Purge()),))),
        lambda: place.port.lease(foreign, "default", 1),
        lambda: place.port.read(foreign, UPCOMING, 1),
        lambda: place.port.describe(OfLog(foreign)),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "requeue"])
def test_receipts_of_which_one_is_old_are_settled_in_part(place: Place, how: Any) -> None:
    place.queue.publish_many([b"0", b"1"])
    first, second = place.queue.receive_many(2)
    number = first._number
    with pytest.raises(LeaseLost):
        asking.begin(place.port, place.queue._log, Settle("default", [0, 1], [number, number + 1], how))
    assert place.queue.stats().leased == 2
    place.queue.ack_many([first, second])


def test_a_redrive_looks_at_everything_before_it_lets_others_pass(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SEEN_AT_ONCE", 10)
    queue = place.broker.queue("mortal", max_attempts=1)
    queue.publish_many([b"%d" % number for number in range(35)])
    for delivery in queue.receive_many(35):
        delivery.reject()
    seen: list[int] = []

    class Seen:
        def matches(self, message: Message) -> bool:
            assert message.offset is not None
            seen.append(message.offset)
            return message.offset % 5 == 4

        def steps(self, _message: Message) -> int:
            return 1

    monkeypatch.setattr(embedded, "compile_filter", lambda _text: Seen())
    letters = queue.dead_letters()._log
    span: tuple[int, int] | None = None
    steps = []
    while span is None or span[0] < span[1]:
        before = len(seen)
        step = asking.do(place.port, letters, Redrive(where="every fifth", span=span))
        steps.append((step.moved, len(seen) - before))
        span = step.left
    assert steps == [(2, 10), (2, 10), (2, 10), (1, 5)]
    assert seen == list(range(35))  # each of them once
    assert (queue.depth(), queue.stats().dead) == (7, 28)


def test_large_letters_go_back_in_one_unit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "REDRIVEN_BYTES", 25_000)
    queue = place.broker.queue("mortal", max_attempts=1)
    queue.publish_many([b"x" * 10_000] * 5)
    for delivery in queue.receive_many(5):
        delivery.reject()
    letters = queue.dead_letters()._log
    assert asking.do(place.port, letters, Redrive()) == Redriven(2, (2, 5))
    assert (queue.redrive(), queue.depth()) == (3, 5)


def test_nothing_to_settle_is_settled(place: Place) -> None:
    with pytest.raises(InvalidArgument):
        asking.begin(place.port, place.queue._log, Settle("default", [], []))


def test_nothing_to_publish_is_an_error_or_not_by_its_type(place: Place) -> None:
    answers: list[Any] = []
    given: list[Any] = [[], (), iter([])]
    for empty in given:
        try:
            answers.append(place.queue.publish_many(empty))
        except PenstockError as error:
            answers.append(type(error))
    assert answers.count(answers[0]) == 3
