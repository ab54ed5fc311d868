"""Group commit: many callers, one write, one sync. The leader commits.

Theory of operation
-------------------
Rows to be committed wait in a queue, each with a `Ticket`. The thread that finds no commit under way *leads*: it takes everything that
waits (as far as a frame holds), has it written and synced, completes those tickets, and hands the lead to one of the threads whose
rows came meanwhile. So there is no committer thread to wake, and the more callers there are the larger the commits get.

asyncio never writes or syncs on its loop: when rows come from a loop and nobody leads, one worker thread does, from the end of the
loop's turn on. A loop hears of a commit once, however many of its futures that completes.

What always holds: tickets are committed in the order in which they were queued; a ticket's rows are in one frame; at most one thread leads; a
thread that is interrupted while it waits passes on a lead it was given. An error while writing is *sticky*: the
tickets of that commit and all that wait fail as indeterminate, and so does everything later.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from penstock import limits
from penstock.errors import JournalFailed, PenstockError
from penstock.journal.rows import Rows


class Ticket:
    """Rows that wait to be committed, and then their outcome."""

    # One is made for every commit of every caller: what most never use is only on the class.
    _gate: threading.Lock | None = None
    _futures: list[asyncio.Future[int]] | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _joined_by: asyncio.AbstractEventLoop | None = None  # whose single rows may be added while it waits
    _lead = False
    _waiters = 0
    at_rest: Callable[[], None] | None = None
    done = False
    error: PenstockError | None = None
    sequence = 0

    def __init__(self, group: GroupCommit, rows: list[Rows], size: int, *, sync: bool) -> None:
        self._group = group
        self.rows = rows
        self.bytes = size
        self.sync = sync

    def wait(self) -> int:
        """Have the rows committed, by this thread or another; the sequence number of their frame."""
        self._group.wait(self)
        if self.error is not None:
            raise again(self.error)
        return self.sequence

    def promise(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """A future of `loop` for its outcome. The caller holds the lock, and queued it just now."""
        future: asyncio.Future[int] = asyncio.Future(loop=loop)
        if self._futures is None:
            self._futures, self._loop = [], loop
            self._group.call(loop)
        self._futures.append(future)
        return future


def again(error: PenstockError) -> PenstockError:
    """The same error to be raised once more: an error that is shared would collect everybody's tracebacks."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh


Lock = AbstractContextManager[object]

NOBODY: Final = 0

#: How many single rows of one loop share a ticket: far fewer than a frame holds.
JOINED_ROWS_MAX: Final = 4096
JOINED_BYTES_MAX: Final = 1 << 20

Answer = TypeVar("Answer")
Write = Callable[[list[Ticket]], BaseException | None]


class GroupCommit:
    """The queue of tickets, and who leads.

    `write` commits the tickets it is given and sets their sequence numbers; it returns an interruption (Ctrl-C) to be raised once
    everything is in order, and raises what makes the journal fail. `idle` is called by the leader after each commit.
    """

    def __init__(self, lock: Lock, write: Write, idle: Callable[[], None]) -> None:
        self._lock = lock
        self._write = write
        self._idle = idle
        self._pending: deque[Ticket] = deque()
        self._in_hand: list[Ticket] = []
        self._leading = False
        self._leader = NOBODY  # the thread that leads; nobody yet, while the lead is on its way to somebody
        self._called: asyncio.AbstractEventLoop | None = None  # the loop that will wake the worker
        self._worker: threading.Thread | None = None
        self._worker_leads = False
        self._work = threading.Semaphore(0)
        self._last: threading.Lock | None = None  # released when the last leader is done, for `stop`
        self.pending_bytes = 0  # of what is queued or being written
        self.failure: PenstockError | None = None

    # --- queueing (the caller holds the lock) ---

    def queue(
        self,
        rows: list[Rows],
        size: int,
        *,
        sync: bool,
        at_rest: Callable[[], None] | None = None,
    ) -> Ticket:
        """A ticket for rows that were prepared, and take `size` bytes at the most. Somebody must then wait for it.

        `at_rest` is called by the leader once they are synced, while nothing else is being written.
        """
        if self.failure is not None:
            raise again(self.failure)
        ticket = Ticket(self, rows, size, sync=sync)
        if at_rest is not None:
            ticket.at_rest = at_rest
        self._pending.append(ticket)
        self.pending_bytes += size
        return ticket

    def join(self, row: Rows, size: int, loop: asyncio.AbstractEventLoop, *, sync: bool) -> Ticket:
        """The ticket of a single row from `loop`: that of the rows before it, if they came from there too and still wait."""
        last = self._pending[-1] if self._pending else None
        if (
            last is None
            or last._joined_by is not loop
            or len(last.rows) >= JOINED_ROWS_MAX
            or last.bytes + size > JOINED_BYTES_MAX
        ):
            last = self.queue([row], size, sync=sync)
            last._joined_by = loop
            return last
        last.rows.append(row)
        last.bytes += size
        last.sync = last.sync or sync
        self.pending_bytes += size
        return last

    def call(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the worker lead from the end of the loop's turn on.

        Then everybody who publishes in that turn is in the same commit, and the worker does not fight with the loop for the
        interpreter while they queue.
        """
        if not self._leading and self._called is not loop:
            self._called = loop
            loop.call_soon(self._have_worker_lead)

    def _have_worker_lead(self) -> None:
        with self._lock:
            self._called = None
            if self._pending and not self._leading:
                self._leading = True
                self._take()
                self._wake_worker()

    # --- waiting ---

    def wait(self, ticket: Ticket) -> None:
        """Return when the ticket is done, leading if nobody does. Any number of threads may wait for one ticket."""
        me = threading.get_ident()
        while True:
            gate: threading.Lock | None = None
            with self._lock:
                if self._leading and self._leader == me:
                    self._recall()
                if ticket._lead and self._leader == NOBODY:
                    self._leader = me
                    ticket._gate = None
                elif ticket.done:
                    return
                elif not self._leading:
                    self._take()
                    self._leader = me
                    self._leading = True
                else:
                    ticket._waiters += 1
                    gate = ticket._gate
                    if gate is None:
                        gate = ticket._gate = threading.Lock()
                        gate.acquire()
            if gate is None:
                self._lead(ticket)
                continue
            try:
                gate.acquire()
                gate.release()
            except BaseException:
                self._abandon(ticket)
                raise
            with self._lock:
                ticket._waiters -= 1

    def _abandon(self, ticket: Ticket) -> None:
        """A thread stops waiting. If its ticket was handed the lead and nobody else waits for it, the worker gets it."""
        with self._lock:
            ticket._waiters -= 1
            if ticket._waiters:
                return
            ticket._gate = None
            if ticket._lead and self._leader == NOBODY:
                ticket._lead = False
                self._wake_worker()

    def _recall(self) -> None:
        """With the lock held: this thread had the lead when a signal's exception tore it out between two commits.

        What it had in hand was not written (or the journal would have failed): it goes back to the front of the queue.
        """
        self._pending.extendleft(taken for taken in reversed(self._in_hand) if not taken.done)
        self._in_hand = []
        self._leading = False

    # --- leading ---

    def _lead(self, ticket: Ticket | None) -> None:
        """Commit what was taken in hand, and go on until `ticket` is done, or nothing waits; the lead is passed on by then."""
        interrupted: BaseException | None = None
        leading = True
        while leading:
            try:
                if self.failure is not None:
                    raise self.failure
                interrupted = self._write(self._in_hand) or interrupted
                interrupted = finishing(self._complete, self._in_hand, None)[1] or interrupted
                self._idle()
            except BaseException as error:
                self.fail(error, [taken for taken in self._in_hand if not taken.done])
                interrupted = interrupted if isinstance(error, Exception) else error
            with self._lock:
                leading = self._go_on(ticket)
        if interrupted is not None:
            raise interrupted

    def _go_on(self, ticket: Ticket | None) -> bool:
        """With the lock held: take more in hand if this thread is to commit again, otherwise pass the lead on."""
        if self._pending and (ticket is None or not ticket.done):
            self._take()
            return True
        if ticket is not None:
            ticket._lead = False
        self._hand_over()
        return False

    def _take(self) -> None:
        """With the lock held: take in hand everything that waits, as far as one frame holds."""
        if (
            self._in_hand and not self._in_hand[-1].done
        ):  # a signal's exception tore an earlier leader out of this very function
            self._pending.extendleft(taken for taken in reversed(self._in_hand) if not taken.done)
        size = 0
        rows = 0
        sections = 0
        batch = self._in_hand = []
        while self._pending:
            ticket = self._pending[0]
            size += ticket.bytes
            sections += len(ticket.rows)
            for r in ticket.rows:
                rows += r.count
            if batch and (
                size > limits.FRAME_BYTES_MAX
                or rows > limits.FRAME_ROWS_MAX
                or sections > limits.FRAME_SECTIONS_MAX
            ):
                break
            batch.append(ticket)
            self._pending.popleft()

    def fail(self, error: BaseException, batch: Sequence[Ticket] = ()) -> None:
        """Refuse everything from now on: what is on the disk is no longer known."""
        with self._lock:
            if self.failure is None and isinstance(error, PenstockError):
                self.failure = error
            elif self.failure is None:
                self.failure = JournalFailed(
                    f"the journal failed and refuses everything until it is reopened: {error}. Whether the last commit "
                    "is on the disk is not known; what was acknowledged before is"
                )
                self.failure.__cause__ = error
            waiting = [*batch, *self._pending]
            self._pending.clear()
        self._complete(waiting, self.failure)

    def _complete(self, batch: Sequence[Ticket], error: PenstockError | None) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        with self._lock:
            for ticket in batch:
                if not ticket.done:
                    self.pending_bytes -= ticket.bytes
                if error is not None:
                    ticket.error = error
                ticket.done = True
                if ticket._gate is not None and ticket._gate.locked():
                    ticket._gate.release()
                if ticket._loop is not None:
                    loops.setdefault(ticket._loop, []).append(ticket)
        for loop, tickets in loops.items():
            try:
                loop.call_soon_threadsafe(_resolve, tickets)
            except RuntimeError:  # the loop was closed: nobody is left to hear of it
                continue

    def _hand_over(self) -> None:
        """With the lock held: give the lead, and what is then taken in hand, to a thread that waits, to the worker, or to nobody."""
        for ticket in self._pending:
            if ticket._gate is not None and ticket._gate.locked():
                self._take()
                ticket._lead = True
                self._leader = NOBODY
                ticket._gate.release()
                return
        if self._pending and any(ticket._loop is not None for ticket in self._pending):
            self._take()
            self._wake_worker()
            return
        self._leading = False
        self._leader = NOBODY
        if self._last is not None and self._last.locked():
            self._last.release()

    # --- the worker, for asyncio ---

    def _wake_worker(self) -> None:
        """With the lock held: have the worker commit what is in hand, and go on from there."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._work_on, name="penstock-commit", daemon=True)
            self._worker.start()
        self._worker_leads = True
        self._leader = NOBODY
        self._work.release()

    def _work_on(self) -> None:
        while True:
            self._work.acquire()
            if not self._worker_leads:
                return  # woken to stop
            self._worker_leads = False
            self._leader = threading.get_ident()
            self._lead(None)

    def orphan(self, lock: Lock, failure: PenstockError) -> None:
        """In a forked child: nobody else runs here, and nothing of the parent's may be touched."""
        self._lock = lock
        self.failure = failure
        self._worker = None

    def stop(self) -> None:
        """Return when nobody leads any more, and end the worker. Everything that is queued must have failed before."""
        with self._lock:
            if self._leading and self._leader == threading.get_ident():
                self._recall()
            if self._leading:
                self._last = threading.Lock()
                self._last.acquire()
        if self._last is not None:
            self._last.acquire()
        if self._worker is not None:
            self._work.release()
            self._worker.join()


def finishing(step: Callable[..., Answer], *arguments: object) -> tuple[Answer, BaseException | None]:
    """Do a step that can be done again, to its end, whatever a signal handler raises meanwhile; its answer, and what was raised."""
    interrupted: BaseException | None = None
    while True:
        try:
            return step(*arguments), interrupted
        except Exception:
            raise
        except BaseException as error:
            interrupted = error


def _resolve(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        error, sequence = ticket.error, ticket.sequence
        for future in ticket._futures or ():
            if future.done():  # its caller gave up
                continue
            if error is not None:
                future.set_exception(again(error))
            else:
                future.set_result(sequence)
