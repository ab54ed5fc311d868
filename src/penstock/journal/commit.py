"""Group commit: many callers, one write, one sync. The leader commits.

Theory of operation
-------------------
Rows to be committed wait in a queue, each with a `Ticket`. The thread that finds no commit under way *leads*: it takes everything that
waits (as far as a frame holds), has it written and synced, completes those tickets, and passes the lead to one of the threads whose
rows came meanwhile. So there is no committer thread to wake, and the more callers there are the larger the commits get.

asyncio never writes or syncs on its loop: when rows come from a loop and nobody leads, one worker thread does, from the end of the
loop's turn on. A loop hears of a commit once, however many of its futures that completes. The loop of a server is the exception, and leads itself: see `hosting`.

Who leads is one value, `leader`: nobody, a thread, the worker, the host, or the ticket whose waiting thread is being woken to lead. What always
holds:

- tickets are committed in the order in which they were queued, and a ticket's rows are in one frame;
- a ticket that asks only for writing is complete when its frame is written, before that is synced for others;
- what a caller wants done when its rows are committed (`then`) is done in that order, before its ticket is complete;
- a thread that stops waiting (Ctrl-C) passes on the lead it has or was offered.

An error while writing is *sticky*: the tickets of that commit and all that wait fail as indeterminate, and so does everything later.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock import limits
from penstock.errors import JournalFailed, PenstockError, fresh_copy
from penstock.journal.rows import Rows

if TYPE_CHECKING:  # who does not use asyncio does not pay for importing it
    import asyncio
    from asyncio import AbstractEventLoop as Loop

    from penstock.journal.hosting import Host

Lock = AbstractContextManager[object]
Answer = TypeVar("Answer")

#: Who leads if no thread of a caller does.
NOBODY: Final = 0
WORKER: Final = -1
HOST: Final = -2

#: How often the main thread looks whether what it cannot be interrupted in has ended, if nobody tells it.
LOOK_S: Final = 0.05

#: How many single rows of one loop share a ticket: far fewer than a frame holds.
JOINED_ROWS_MAX: Final = 4096
JOINED_BYTES_MAX: Final = 1 << 20


class Ticket:
    """Rows that wait to be committed, and then their outcome."""

    # One is made for every commit of every caller: what most never use is only on the class.
    _gate: threading.Lock | None = None
    _futures: list[asyncio.Future[int]] | None = None
    _loop: Loop | None = None
    _joined_by: Loop | None = None  # whose single rows may be added while it waits
    at_rest: Callable[[], None] | None = None
    then: Callable[[], None] | None = None
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
        if not self.done:
            self._group.wait(self)
        if self.error is not None:
            raise fresh_copy(self.error)
        return self.sequence

    def promise(self, loop: Loop) -> asyncio.Future[int]:
        """A future of the running loop for the outcome; the worker commits."""
        return self._group.promise(self, loop)

    def open_gate(self) -> None:
        """With the lock held: let those who wait look again."""
        gate, self._gate = self._gate, None
        if gate is not None and gate.locked():
            gate.release()


class GroupCommit:
    """The queue of tickets, and who leads.

    `write` writes one frame with the rows of the tickets it is given and sets their sequence numbers; `sync` has what was written on
    the disk. Either returns an interruption (Ctrl-C) that is to be raised once everything is in order, and raises what makes
    the journal fail. `idle` is called by the leader after each commit.
    """

    def __init__(
        self,
        lock: Lock,
        write: Callable[[list[Ticket]], BaseException | None],
        sync: Callable[[], BaseException | None],
        idle: Callable[[], None],
    ) -> None:
        self._lock = lock
        self.write = write
        self._sync = sync
        self._idle = idle
        self._pending: deque[Ticket] = deque()
        self.in_hand: list[Ticket] = []
        self.leader: int | Ticket = NOBODY
        self._called: Loop | None = (
            None  # the loop that will lead, or have the worker lead, at the end of its next turn
        )
        self.host: Host | None = None
        self._worker: threading.Thread | None = None
        self._work = threading.Semaphore(0)
        self._stopping = False
        self._last: threading.Lock | None = None  # released when nobody leads any more, for `stop`
        self.pending_bytes = 0  # of what is queued or being written
        self.failure: PenstockError | None = None
        self.on_failure: Callable[[PenstockError], None] | None = (
            None  # told once; it must not wait for anything
        )

    # --- queueing (the caller holds the lock) ---

    def queue(self, rows: list[Rows], size: int, *, sync: bool) -> Ticket:
        """A ticket for rows that were prepared, and take `size` bytes at the most. Somebody must then wait for it."""
        if self.failure is not None:
            raise fresh_copy(self.failure)
        ticket = Ticket(self, rows, size, sync=sync)
        self._pending.append(ticket)
        self.pending_bytes += size
        return ticket

    def barrier(self, at_rest: Callable[[], None] | None = None) -> Ticket:
        """A ticket whose commit holds all that was queued before it, and nothing that was queued after it.

        `at_rest` is called by the leader once that is synced, while nothing else is being written.
        """
        ticket = self.queue([], 0, sync=True)
        ticket.at_rest = at_rest or _nothing
        return ticket

    def join(self, row: Rows, size: int, loop: Loop, *, sync: bool) -> Ticket:
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

    def promise(self, ticket: Ticket, loop: Loop) -> asyncio.Future[int]:
        """A future of `loop` for a ticket.

        The worker leads from the end of the loop's next turn on. Then everybody who publishes in this turn is in the same commit, with those whose requests
        came while it lasted, and the worker does not fight with the loop for the interpreter while they queue.
        """
        future: asyncio.Future[int] = loop.create_future()
        with self._lock:
            if ticket._futures is None:
                ticket._futures, ticket._loop = [], loop
                if self._called is not loop and (self.leader == NOBODY or self.leader == HOST):
                    self._called = loop
                    loop.call_soon(loop.call_soon, self._end_of_turn, loop)
            ticket._futures.append(future)
            if ticket.done:
                loop.call_soon(_resolve, [ticket])
        return future

    def _end_of_turn(self, loop: Loop) -> None:
        """Have what came in a loop's turn committed, unless somebody does already."""
        host = self.host if self.host is not None and self.host.leads_for(loop) else None
        with self._lock:
            self._called = None
            if self._pending and self.leader == NOBODY:
                if host is None:
                    self._wake_worker()
                else:
                    self.leader = HOST
        if host is not None:
            host.turn()

    # --- waiting ---

    def wait(self, ticket: Ticket) -> None:
        """Return when the ticket is done, leading if nobody does. Any number of threads may wait for one ticket."""
        me = threading.get_ident()
        try:
            while not ticket.done:
                with self._lock:
                    if (
                        ticket.done and self.leader is not ticket
                    ):  # while we waited for the lock: nobody would open a gate any more
                        return
                    gate = self._gate_of(ticket, me)
                if gate is None:
                    self._lead(ticket, me)
                else:
                    if self.host is None:
                        gate.acquire()
                    else:
                        self.host.wait_at(gate)
                    gate.release()  # the next one who waits for this ticket passes too
            if self.leader is ticket:  # it was offered the lead, and failed before it knew
                self._let_go(ticket, me)
        except BaseException:
            finishing(self._let_go, ticket, me)
            raise

    def _gate_of(self, ticket: Ticket, me: int) -> threading.Lock | None:
        """With the lock held: what to wait at until the ticket is done; None if this thread is to lead."""
        if self.leader == NOBODY or self.leader is ticket:
            self.leader = me
            return None
        gate = ticket._gate
        if gate is None:
            gate = ticket._gate = threading.Lock()
            gate.acquire()
        return gate

    def _let_go(self, ticket: Ticket, me: int) -> None:
        """A thread stops waiting, wherever it was. The lead that it had, or was offered, goes to the worker."""
        with self._lock:
            ticket.open_gate()  # others who wait for it look again, and nobody thinks that somebody still waits there
            if self.leader == me or self.leader is ticket:
                self._wake_worker()

    # --- leading ---

    def _lead(self, ticket: Ticket | None, me: int) -> None:
        """Commit until `ticket` is done, or nothing waits; then pass the lead on."""
        interrupted: BaseException | None = None
        while ticket is None or not ticket.done:
            if not self.take():
                break
            try:
                if self.failure is not None:
                    raise self.failure
                interrupted = self._commit(self.in_hand) or interrupted
                self._idle()
            except BaseException as error:
                finishing(self.fail, error, self.in_hand)
                interrupted = interrupted if isinstance(error, Exception) else error
        interrupted = finishing(self.pass_on, me)[1] or interrupted
        if interrupted is not None:
            raise interrupted

    def take(self) -> list[Ticket]:
        """Take in hand everything that waits: see `_take`."""
        with self._lock:
            return self._take()

    def put_down(self) -> None:
        """What was taken in hand is written, and the host's from here on."""
        self.in_hand = []

    def all_want_sync(self) -> bool:
        """Whether nobody who waits asks only for writing."""
        with self._lock:
            return all(ticket.sync for ticket in self._pending)

    def has_barrier(self) -> bool:
        """Whether somebody waits for everything to be at rest."""
        if not self._pending:  # as after most commits
            return False
        with self._lock:
            return any(ticket.at_rest is not None for ticket in self._pending)

    def _take(self) -> list[Ticket]:
        """With the lock held: take in hand everything that waits, as far as one frame holds.

        What an interrupted leader had in hand, and did not write, comes first.
        """
        batch = self.in_hand = [ticket for ticket in self.in_hand if not ticket.done] if self.in_hand else []
        if batch and self._pending and self._pending[0] is batch[-1]:
            self._pending.popleft()
        size = rows = sections = 0
        while self._pending and not (batch and batch[-1].at_rest):
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
        return batch

    def _commit(self, batch: list[Ticket]) -> BaseException | None:
        interrupted = self.write(batch)
        if len(batch) == 1 and not batch[0].sync and batch[0].at_rest is None:
            return self.finish(batch) or interrupted
        to_sync = [ticket for ticket in batch if ticket.sync]
        if to_sync:
            if len(to_sync) < len(batch):
                interrupted = self.finish([ticket for ticket in batch if not ticket.sync]) or interrupted
            interrupted = self._sync() or interrupted
        last = batch[-1]
        if last.at_rest is not None:
            last.at_rest()
        return self.finish(to_sync or batch) or interrupted

    def finish(self, batch: list[Ticket]) -> BaseException | None:
        """Do what the callers want done now, and complete their tickets."""
        for ticket in batch:
            if ticket.then is not None:
                ticket.then()
        return finishing(self._complete, batch, None)[1]

    def fail(self, error: BaseException, in_hand: Sequence[Ticket] = ()) -> None:
        """Refuse everything from now on: what is on the disk is no longer known. The leader names what it had in hand."""
        with self._lock:
            first = self.failure is None
            if self.failure is None and isinstance(error, PenstockError):
                self.failure = error
            elif self.failure is None:
                self.failure = JournalFailed(
                    f"the journal failed and refuses everything until it is reopened: {error}. Whether the last commit "
                    "is on the disk is not known; what was acknowledged before is"
                )
                self.failure.__cause__ = error
            waiting = [*in_hand, *self._pending]
            if isinstance(self.leader, Ticket):  # nothing is left to lead
                self.leader = NOBODY
        if first and self.on_failure is not None:
            self.on_failure(self.failure)
        self._complete(waiting, self.failure)
        with self._lock:
            while self._pending and self._pending[0].done:
                self._pending.popleft()

    def _complete(self, batch: Sequence[Ticket], error: PenstockError | None) -> None:
        loops: dict[Loop, list[Ticket]] | None = None
        with self._lock:
            for ticket in batch:
                if not ticket.done:
                    self.pending_bytes -= ticket.bytes
                    if error is not None:
                        ticket.error = error
                    ticket.done = True
                if ticket._gate is not None:
                    ticket.open_gate()
                if ticket._loop is not None:
                    loops = {} if loops is None else loops
                    loops.setdefault(ticket._loop, []).append(ticket)
        for loop, tickets in loops.items() if loops is not None else ():
            try:
                if self.host is not None and self.host.is_here(loop):
                    _resolve(tickets)
                else:
                    loop.call_soon_threadsafe(_resolve, tickets)
            except RuntimeError:  # the loop was closed: nobody is left to hear of it
                continue

    def pass_on(self, me: int) -> None:
        """Offer the lead to a thread that waits, or give it to the worker, or to nobody. Harmless if it was passed on already."""
        with self._lock:
            if self.leader != me:
                return
            for ticket in self._pending:
                if ticket._gate is not None:
                    self.leader = ticket
                    ticket.open_gate()
                    return
            if self._pending and any(ticket._loop is not None for ticket in self._pending):
                self.leader = HOST  # before it is called: it may look at once
                if self.host is None or me == HOST or not self.host.call():
                    self._wake_worker()
                return
            self.leader = NOBODY
            if self._last is not None and self._last.locked():
                self._last.release()

    # --- the worker, for asyncio and for what nobody waits for any more ---

    def have_worker_lead(self, me: int) -> None:
        """Give the lead to the worker: there is something to do that takes its time."""
        with self._lock:
            if self.leader == me:
                self._wake_worker()

    def _wake_worker(self) -> None:
        """With the lock held: have the worker lead."""
        self.leader = WORKER
        if self._worker is None:
            worker = threading.Thread(target=self._work_on, name="penstock-commit", daemon=True)
            try:
                worker.start()
            except RuntimeError as error:  # the system has no thread left, and somebody must write
                self.leader = NOBODY
                self.fail(error, self.in_hand)
                return
            self._worker = worker
        self._work.release()

    def _work_on(self) -> None:
        while True:
            self._work.acquire()
            if self.leader == WORKER:
                self._tidy_up()
                self._lead(None, WORKER)
            elif self._stopping:
                return

    def _tidy_up(self) -> None:
        """What is to be done between two commits, which the host leaves to the worker."""
        try:
            if self.failure is None:
                self._idle()
        except BaseException as error:
            self.fail(error)

    def orphan(self, lock: Lock, failure: PenstockError) -> None:
        """In a forked child: nobody else runs here, and nothing of the parent's may be touched."""
        self._lock = lock
        under_way = [] if self.host is None else self.host.drop()
        self._worker = self.host = None
        self.leader = NOBODY
        self._work = threading.Semaphore(0)
        self.failure = None
        in_hand = [*under_way, *self.in_hand]
        for ticket in (*in_hand, *self._pending):
            ticket._gate = ticket._loop = None
        self.fail(failure, in_hand)

    def stop(self) -> None:
        """Return when nobody leads any more, and end the worker. Everything that is queued must have failed before."""
        with self._lock:
            if self.leader != NOBODY:
                self._last = threading.Lock()
                self._last.acquire()
        if self.host is not None:
            self.host.finish()
        if self._last is not None:
            self._last.acquire()
        if self.host is not None:
            self.host.close()
        if self._worker is not None:
            self._stopping = True
            self._work.release()
            self._worker.join()


def finishing(step: Callable[..., Answer], *arguments: Any) -> tuple[Answer, BaseException | None]:
    """Do a step that can be done again, to its end, whatever a signal handler raises meanwhile; its answer, and what was raised."""
    interrupted: BaseException | None = None
    while True:
        try:
            return step(*arguments), interrupted
        except Exception:
            raise
        except BaseException as error:
            interrupted = error


def uninterrupted(step: Callable[[], None]) -> None:
    """Do a step that cannot be done again, once and to its end: in a thread of its own, since signal handlers run only in the main one.

    What waits here may itself be interrupted at any point, and `threading`'s own objects do not bear that: so there are only locks, each
    asked again and again, and a thread that was begun twice does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        step()
        return
    raised: list[BaseException] = []
    ended: list[bool] = []
    once, end = threading.Lock(), threading.Lock()
    end.acquire()

    def run() -> None:
        if not once.acquire(blocking=False):
            return
        try:
            step()
        except BaseException as error:
            raised.append(error)
        ended.append(True)
        end.release()

    def run_to_the_end() -> None:
        if not once.locked():
            try:
                _thread.start_new_thread(run, ())
            except RuntimeError:  # the interpreter is shutting down: nobody interrupts it any more
                run()
        while not ended:
            end.acquire(timeout=LOOK_S)

    interrupted = finishing(run_to_the_end)[1]
    for error in (*raised, interrupted):
        if error is not None:
            raise error


def _nothing() -> None:
    """What a barrier does if it need only be one."""


def _resolve(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        error, sequence = ticket.error, ticket.sequence
        for future in ticket._futures or ():
            if future.done():  # its caller gave up
                continue
            if error is not None:
                future.set_exception(fresh_copy(error))
            else:
                future.set_result(sequence)
