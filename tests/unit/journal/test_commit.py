"""Group commit by itself: who leads, in which order tickets are completed, and what an interrupt leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import pytest

from penstock.errors import BrokerClosed, JournalFailed, PenstockError
from penstock.journal.commit import NOBODY, GroupCommit, Ticket


class Interrupted(BaseException):
    """What a signal handler may raise, anywhere."""


class Trap:
    """A lock that raises in one thread, on entering it for the nth time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._armed: dict[int, int] = {}

    def arm(self, entries: int) -> None:
        """For the calling thread."""
        self._armed[threading.get_ident()] = entries

    def disarm(self) -> None:
        self._armed.pop(threading.get_ident(), None)

    def __enter__(self) -> None:
        me = threading.get_ident()
        if me in self._armed:
            self._armed[me] -= 1
            if not self._armed[me]:
                del self._armed[me]
                raise Interrupted
        self._lock.acquire()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._lock.release()


class Disk:
    """What is written and synced, in order; the first write can be held."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.batches: list[list[Ticket]] = []
        self.writing = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def write(self, batch: list[Ticket]) -> None:
        self.writing.set()
        self.go_on.wait()
        self.events.append("write")
        self.batches.append(list(batch))
        for ticket in batch:
            ticket.sequence = len(self.batches)

    def sync(self) -> None:
        self.events.append("sync")


def group_on(disk: Disk, lock: Trap | None = None) -> GroupCommit:
    return GroupCommit(lock or Trap(), disk.write, disk.sync, lambda: None)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def until_waiting(ticket: Ticket) -> None:
    while ticket._gate is None and not ticket.done:
        pass


def test_what_only_wants_writing_is_complete_before_the_sync() -> None:
    disk = Disk()
    group = group_on(disk)
    for name, sync in (("lease", False), ("publish", True)):
        group.queue([], 0, sync=sync).then = lambda name=name: disk.events.append(name)
    group.queue([], 0, sync=True).wait()
    assert disk.events == ["write", "lease", "sync", "publish"]


def test_what_follows_a_commit_is_done_in_order_before_anybody_goes_on() -> None:
    disk = Disk()
    group = group_on(disk)
    seen: list[tuple[int, bool]] = []
    tickets = [group.queue([], 0, sync=True) for _ in range(5)]
    for number, ticket in enumerate(tickets):
        ticket.then = lambda number=number, ticket=ticket: seen.append((number, ticket.done))
    tickets[-1].wait()
    assert seen == [(number, False) for number in range(5)]
    assert all(ticket.done for ticket in tickets)


def test_what_follows_and_fails_is_the_journals_failure() -> None:
    disk = Disk()
    group = group_on(disk)
    ticket = group.queue([], 0, sync=True)

    def fail() -> None:
        raise ValueError("a bug")

    ticket.then = fail
    with pytest.raises(JournalFailed, match="a bug"):
        ticket.wait()
    with pytest.raises(JournalFailed):
        group.queue([], 0, sync=True)


def test_who_was_offered_the_lead_and_fails_first_passes_it_on() -> None:
    disk = Disk()
    group = group_on(disk)
    ticket = group.queue([], 0, sync=True)
    group.leader = 1  # somebody
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            ticket.wait()
        except PenstockError as error:
            raised.append(error)

    thread = started(wait)
    until_waiting(ticket)
    with group._lock:
        group.leader = ticket
        ticket.error, ticket.done = BrokerClosed("closed"), True
        group._pending.clear()
        ticket.open_gate()
    thread.join(30)
    group.stop()  # hangs, if the lead was lost
    leader: object = group.leader
    assert (len(raised), leader) == (1, NOBODY)


def test_a_barrier_ends_its_commit() -> None:
    disk = Disk()
    group = group_on(disk)
    first, barrier, later = group.queue([], 0, sync=True), group.barrier(), group.queue([], 0, sync=True)
    later.wait()
    assert disk.batches == [[first, barrier], [later]]
    assert (first.sequence, barrier.sequence, later.sequence) == (1, 1, 2)


@pytest.mark.parametrize("entry", range(1, 9))
@pytest.mark.parametrize("waits", [True, False])
def test_an_interrupt_anywhere_leaves_nobody_waiting(entry: int, waits: bool) -> None:
    """The thread in the middle is interrupted when it takes the lock for the nth time: waiting, waking, or leading."""
    disk, lock = Disk(), Trap()
    group = group_on(disk, lock)
    if waits:
        disk.go_on.clear()
    first = group.queue([], 0, sync=True)
    threads = [started(first.wait)] if waits else []
    if waits:
        disk.writing.wait()
    middle = group.queue([], 0, sync=True)

    def be_interrupted() -> None:
        lock.arm(entry)
        with suppress(Interrupted):
            middle.wait()
        lock.disarm()

    threads.append(started(be_interrupted))
    if waits and entry > 1:
        until_waiting(middle)
    last = group.queue([], 0, sync=True)
    threads.append(started(last.wait))
    disk.go_on.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "somebody waits for ever"
    group.queue([], 0, sync=True).wait()
    written = [ticket for batch in disk.batches for ticket in batch]
    assert all(ticket.done for ticket in (first, middle, last))
    assert len(written) == len(set(map(id, written))), "something was written twice"
    assert group.failure is None
    group.fail(BrokerClosed("the end"))
    group.stop()


def test_a_failure_reaches_all_that_wait_and_whoever_was_to_lead() -> None:
    disk = Disk()
    disk.go_on.clear()
    group = group_on(disk)
    outcomes: list[type[PenstockError] | None] = []

    def wait_for(ticket: Ticket) -> None:
        try:
            ticket.wait()
            outcomes.append(None)
        except PenstockError as error:
            outcomes.append(type(error))

    first = group.queue([], 0, sync=True)
    threads = [started(lambda: wait_for(first))]
    disk.writing.wait()
    tickets = [group.queue([], 0, sync=True) for _ in range(3)]
    threads += [started(lambda ticket=ticket: wait_for(ticket)) for ticket in tickets]  # type: ignore[misc]
    for ticket in tickets:
        until_waiting(ticket)
    group.fail(BrokerClosed("closing"))
    disk.go_on.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    group.stop()
    assert sorted(outcomes, key=str) == [BrokerClosed, BrokerClosed, BrokerClosed, None]


def test_a_ticket_that_is_completed_while_its_thread_comes_for_the_lock_is_not_waited_for() -> None:
    """It was open when the thread looked, and done when the thread had the lock: nobody would wake it any more."""
    disk = Disk()
    disk.go_on.clear()
    idle, go_on = threading.Event(), threading.Event()

    class Late(Trap):
        late = 0

        def __enter__(self) -> None:
            if threading.get_ident() == self.late:
                disk.go_on.set()
                idle.wait()  # the leader has completed the ticket, and still leads
            super().__enter__()

    def rest() -> None:
        idle.set()
        go_on.wait()

    lock = Late()
    group = GroupCommit(lock, disk.write, disk.sync, rest)
    first, second = (group.queue([], 0, sync=True) for _ in range(2))

    def come_late() -> None:
        lock.late = threading.get_ident()
        second.wait()

    leader = threading.Thread(target=first.wait, daemon=True)
    leader.start()
    disk.writing.wait()
    waiter = threading.Thread(target=come_late, daemon=True)
    waiter.start()
    waiter.join(5)
    assert not waiter.is_alive()
    go_on.set()
    leader.join()
