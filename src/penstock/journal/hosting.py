"""A loop that leads: what comes from it is written at the end of its next turn, and synced by the kernel while it goes on.

Theory of operation
-------------------
In a process that is there to serve (see `server.serving`), the loop is what everybody waits for. Had it the worker thread of `commit` lead, every commit would need the interpreter
four or five times, and each time win it from the loop, which then wins it back: at a thousand messages a second that takes longer than the disk. So the loop
of such a process is the *host*: it writes a frame itself, which takes some microseconds since the kernel only copies it, and has the kernel sync it (see `kernel`). This departs from the rule that asyncio never writes on
its loop, which holds for every other loop: a program's own loop belongs to the program.

While a sync is under way the host leads. What is queued meanwhile is written when it ends, as one frame, and the next sync begins: the fewer frames, the less of the loop's time they take. What
asks only for writing does not wait for that: it is written at once, with all that was queued before it, behind what is being synced, and is complete then. So two syncs never overlap, and a sync counts
for what was written before it began.

What takes its time is the worker's: a commit of many bytes, a barrier (others wait for everything to be at rest), the change to the next segment. The host hands the lead
over for it as soon as nothing is under way.

What always holds:

- steps are taken one at a time (`_steps`), by the loop, or by a thread that has waited for long, since the loop may not come to it any more;
- the lead is not passed on while anything is written and not yet synced;
- a step that is interrupted (Ctrl-C; a server hears of signals by its loop, others may not) is brought to its end before that is raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penstock.journal.commit import HOST, GroupCommit, Ticket, finishing

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop as Loop

#: Copying more than this takes too much of a loop's time.
HOSTED_BYTES_MAX: Final = 256 << 10


#: How long a thread waits for the loop before it looks whether it can help.
PATIENCE_S: Final = 0.05


class Syncing(Protocol):
    """The journal's end, as the host needs it."""

    @property
    def bell(self) -> int:
        """Readable when a sync has ended."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether the next segment is to be begun."""
        ...

    def begin_sync(self) -> bool:
        """Have what was written synced; False if all of it is."""
        ...

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether that is done, waiting for it for so long."""
        ...

    def end_sync(self) -> None:
        """Wait until it is, and raise what it failed with."""
        ...

    def hush(self) -> None:
        """Nobody waits for the bell: have it ring no more."""
        ...

    def let_go(self) -> None:
        """No more is synced so."""
        ...


class Host:
    """The loop that leads. To be made in its thread."""

    def __init__(self, group: GroupCommit, loop: Loop, syncing: Syncing) -> None:
        self._group = group
        self._loop = loop
        self._syncing = syncing
        self._thread = threading.get_ident()
        self._steps = threading.RLock()
        self._written: list[Ticket] = []  # and to be synced next
        self._under_way: list[Ticket] = []  # being synced
        self._is_syncing = False
        self._closed = False
        loop.add_reader(syncing.bell, self._hear)

    def leads_for(self, loop: Loop) -> bool:
        """Whether what comes from a loop is led by it."""
        return loop is self._loop and not self._closed

    def is_here(self, loop: Loop) -> bool:
        """Whether this is the thread of the loop, and it is the host's: then its futures need no waking."""
        return loop is self._loop and threading.get_ident() == self._thread

    def call(self) -> bool:
        """From any thread: have the loop take a turn soon; False if it does not run any more."""
        if self._closed or not self._loop.is_running():
            return False
        try:
            self._loop.call_soon_threadsafe(self.turn)
        except RuntimeError:
            return False
        return True

    # --- steps ---

    def turn(self) -> None:
        """Write what waits, if the lead is ours, and have it synced."""
        with self._steps:
            if self._group.leader == HOST:
                self._attempt(self._go_on)

    def _hear(self) -> None:
        """The bell rings: a sync has ended, unless somebody was here before, and the next one is under way."""
        with self._steps:
            if not self._is_syncing:
                self._syncing.hush()
            elif self._syncing.has_ended():
                self._next_step()

    def _next_step(self) -> None:
        if self._is_syncing:
            self._attempt(self._end_sync)
        if self._group.leader == HOST:
            self._attempt(self._go_on)

    def _attempt(self, step: Callable[[], BaseException | None]) -> None:
        """Take a step. What it raises is the journal's failure, and all that is in hand fails with it."""
        try:
            interrupted = step()
        except BaseException as error:
            in_hand = [*self.drop(), *self._group.in_hand]
            finishing(self._group.fail, error, in_hand)
            interrupted = finishing(self._pass_on)[1] or (None if isinstance(error, Exception) else error)
        if interrupted is not None:
            raise interrupted

    def drop(self) -> list[Ticket]:
        """What is written and not synced, for somebody who has it fail."""
        dropped = [*self._under_way, *self._written]
        self._under_way, self._written = [], []
        return dropped

    def _go_on(self) -> BaseException | None:
        group = self._group
        interrupted: BaseException | None = None
        while (
            group.failure is None
            and not (self._is_syncing and group.all_want_sync())
            and not self._is_the_workers()
            and (batch := group.take())
        ):
            interrupted = group.write(batch) or interrupted
            self._written += [ticket for ticket in batch if ticket.sync]
            if done := [ticket for ticket in batch if not ticket.sync]:
                interrupted = group.finish(done) or interrupted
            group.put_down()
        if self._written and not self._is_syncing:
            self._is_syncing = self._syncing.begin_sync()
            self._under_way, self._written = self._written, []
            if not self._is_syncing:
                interrupted = self._finish() or interrupted
        if not self._is_syncing:
            self._pass_on()
        return interrupted

    def _end_sync(self) -> BaseException | None:
        self._is_syncing = False
        self._syncing.end_sync()
        return self._finish()

    def _finish(self) -> BaseException | None:
        interrupted = self._group.finish(self._under_way)
        self._under_way = []
        return interrupted

    def _is_the_workers(self) -> bool:
        """Whether what waits takes too long to do it here."""
        group = self._group
        return group.pending_bytes > HOSTED_BYTES_MAX or self._syncing.is_full or group.has_barrier()

    def _pass_on(self) -> None:
        """Nothing is under way: pass the lead on."""
        if self._group.failure is None and self._is_the_workers():
            self._group.have_worker_lead(HOST)
        else:
            self._group.pass_on(HOST)

    # --- those who wait ---

    def wait_at(self, gate: threading.Lock) -> None:
        """Have a thread wait at a gate. If nothing moves, because it stands in the loop's way itself, or another does, it takes the steps that the loop does not come to."""
        is_ours = threading.get_ident() == self._thread
        while not gate.acquire(timeout=0 if is_ours and self._group.leader == HOST else PATIENCE_S):
            self.help()

    def help(self) -> None:
        """In any thread: take the step that comes next, waiting for the kernel. The loop must not wait meanwhile, so that is done before."""
        if self._is_syncing and not self._syncing.has_ended(PATIENCE_S):
            return
        with self._steps:
            if not self._is_syncing or self._syncing.has_ended():
                self._next_step()

    def finish(self) -> None:
        """In any thread, when no more is taken: bring what is under way to its end."""
        self.help()
        while self._is_syncing:
            self.help()

    # --- the end ---

    def close(self) -> None:
        """In any thread, when nothing is under way any more."""
        if self._closed:
            return
        self._closed = True
        if self._loop.is_running():
            with suppress(RuntimeError):  # it was just closed, and listens to nothing
                self._loop.call_soon_threadsafe(self._leave)
                return
        self._leave()

    def _leave(self) -> None:
        with suppress(Exception):  # a loop that is being closed
            self._loop.remove_reader(self._syncing.bell)
        self._syncing.let_go()
