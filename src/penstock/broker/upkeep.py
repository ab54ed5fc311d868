"""Snapshots and cleaning while a broker is in use: so that opening stays quick, and consumed messages give their disk space back.

A thread of its own does it, now and then, counted in changes and bytes, and at once when the disk is full; the last time at the end. Publishers and consumers wait only while the engine's state is packed: plain queued messages
take no time in that, a million that are delayed, retried or deduplicated take a third of a second. What cannot be done (a full disk,
say) is said in the log and tried again later: nothing depends on it but time and space.

Opening reads only what the newest snapshot does not cover. A second thread then reads all commits
once, slowly, so that damage in old segments is logged when the owner starts, and not when a consumer
comes to it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.engine.engine import Engine
from penstock.engine.retention import ARCHIVE
from penstock.errors import BrokerClosed, PenstockError, fresh_copy
from penstock.journal.cleaner import Cleaned, DeadRange, clean
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED
from penstock.journal.rows import Rows

if TYPE_CHECKING:
    from penstock.broker.monitor import Monitor

#: Changes between two snapshots: replaying so many takes about a second.
CHANGES_AT_ONCE: Final = 20_000

#: Or so many bytes: what was consumed stays on the disk until then.
BYTES_AT_ONCE: Final = 64 << 20

#: On a full disk, between two attempts to give space back.
PRESSED_PAUSE_S: Final = 1.0

#: The look at old commits reads so many bytes, then pauses: a third of a processor at the most.
LOOK_BYTES: Final = 1 << 20
LOOK_PAUSE_S: Final = 0.02

#: Why the cleaner drops messages, as it is recorded: no group needs them, whatever each one's `Outcome` was (those begin at 1).
SETTLED_BY_ALL: Final = 0

_LOG: Final = logging.getLogger("penstock.broker")


class Upkeep:
    """What keeps a broker's journal short."""

    def __init__(self, monitor: Monitor, journal: Journal) -> None:
        self._monitor = monitor
        self._journal = journal
        self._changes = 0
        self._acked = 0
        # What earlier owners sealed counts too: they may never have written enough by themselves.
        self._written = journal.written - sum(info.end for info in journal.segments()[:-1])
        self._pressed = False
        self._due = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._look: threading.Thread | None = None

    def look(self) -> None:
        """Have a thread read every commit that is there now; damage is noted, and logged, as for any reader."""
        journal = self._journal
        thread = threading.Thread(
            target=_look_through,
            args=(weakref.ref(journal), journal.durable_sequence, self._stopped),
            name="penstock-look",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            _LOG.warning("old commits were not looked at: %s", error)
            return
        self._look = thread

    def count(self) -> None:
        """With the broker's lock held: something was recorded."""
        self._changes += 1
        if (
            self._changes >= CHANGES_AT_ONCE
            or (self._pressed and self._monitor.acked > self._acked)
            or self._journal.written - self._written >= BYTES_AT_ONCE
        ):
            self._begin()

    def press(self) -> None:
        """With the broker's lock held: there is no room on the disk. Until some was given back, what is acknowledged is cleaned soon.

        Not before something is: the snapshot that cleaning needs is written at the cost of what is reserved for acknowledging.
        """
        self._pressed = True
        if self._monitor.acked > self._acked:
            self._begin()

    def _begin(self) -> None:
        if self._stopped.is_set():
            return
        self._changes = 0
        self._acked = self._monitor.acked
        self._written = self._journal.written
        self._due.set()
        if self._thread is None:
            thread = threading.Thread(target=self._keep_up, name="penstock-upkeep", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                _LOG.warning("upkeep was not done, and will be tried again: %s", error)
                return
            self._thread = thread

    def _keep_up(self) -> None:
        while not self._stopped.is_set():
            self._due.wait()
            self._due.clear()
            if not self._stopped.is_set():
                self.run()
            if self._pressed:
                self._stopped.wait(PRESSED_PAUSE_S)

    def run(self) -> None:
        """Do it now."""
        try:
            self.snapshot()
            given_back = self._clean().bytes
            if self._pressed:  # what only this snapshot covers goes after another one, and nobody may acknowledge anything again before there is room
                self._commit_something()
                self.snapshot()
                given_back += self._clean().bytes
            if given_back:
                self._pressed = False
        except PenstockError as error:
            _LOG.warning("upkeep was not done, and will be tried again: %s", error)

    def _commit_something(self) -> None:
        """Two snapshots of one commit are one. On a full disk nobody else may be able to commit anything."""
        self._journal.commit(
            [Rows(CLEANED, 0, 1, {"outcome": SETTLED_BY_ALL, "time": self._journal.now_us()})]
        )

    def last(self) -> None:
        """Before the end: clean what takes no time, and keep a snapshot, so that the next opening is quick."""
        self._clean(rewriting=False)
        self.snapshot()

    def _clean(self, *, rewriting: bool = True) -> Cleaned:
        return clean(self._journal, self.dead_ranges, rewriting=rewriting, up_to=self.archived())

    def archived(self) -> int | None:
        """Up to which commit the archive has everything, if some log waits for it; None if none does.

        The archive takes leases and settlements too, which are not messages of that log's own: so until it has read a segment, the whole segment stays.
        """
        with self._monitor.lock, self._monitor.whole:
            engine = self._monitor.engine
            if all(log.policy.retain != "until-archived" for log in engine.logs.values()):
                return None
            return engine.sequences.get(ARCHIVE, 0)

    def snapshot(self) -> None:
        """Keep the engine's state. What is on its way will have arrived when the barrier is reached."""
        with self._monitor.lock, self._monitor.whole:
            self._require_trust()
            now_us = self._monitor.now()
            for log in self._monitor.engine.logs.values():
                if log.plain is not None:  # what goes the short way is not noted each time
                    log.milestones.peak = max(log.milestones.peak, now_us)
            state = self._monitor.engine.encode()
            coming = [
                (log.number, first, batch)
                for unit in self._monitor.on_the_way
                for log, first, batch in unit.arrivals
            ]
            barrier = self._journal.barrier()
        if coming:
            twin = Engine(
                seed=0,
                fetch=lambda _log, _offsets: [],
                take_ids=lambda _n: [],
                make_room=lambda _n, _settling: None,
            )
            twin.restore(state)
            for number, first, batch in coming:
                if number in twin.logs:
                    twin.arrive([(twin.logs[number], first, batch)], now_us)
            state = twin.encode()
        self._journal.snapshot(state, barrier.wait())

    def _require_trust(self) -> None:
        """With the lock held: nothing is kept, or thrown away, by what an engine says that may be half changed."""
        if self._monitor.failure is not None and not isinstance(self._monitor.failure, BrokerClosed):
            raise fresh_copy(self._monitor.failure)

    def dead_ranges(self, number: int, first: int, last: int) -> list[DeadRange]:
        """Which messages of a log nobody needs any more, for the cleaner."""
        with self._monitor.lock, self._monitor.whole:
            self._require_trust()
            log = self._monitor.engine.logs.get(number)
            if log is None:
                return [DeadRange(first, last, SETTLED_BY_ALL)]
            return [
                DeadRange(run.start, run.stop - 1, SETTLED_BY_ALL) for run in log.released(first, last + 1)
            ]

    def stop(self) -> None:
        """Return when nothing of it is under way any more."""
        self._stopped.set()
        self._due.set()
        for thread in (self._thread, self._look):
            if thread is not None:
                thread.join()


def _look_through(journal_of: Callable[[], Journal | None], last: int, stopped: threading.Event) -> None:
    """Read the commits up to `last`.

    Between two parts the thread holds no reference: a journal that is forgotten is collected.
    """
    done = 0
    try:
        while done < last and not stopped.wait(LOOK_PAUSE_S if done else 0):
            journal = journal_of()
            if journal is None:
                return
            done = _part(journal, done, last, stopped)
            del journal
    except PenstockError as error:
        if not stopped.is_set():
            _LOG.warning("old commits were not all looked at: %s", error)


def _part(journal: Journal, done: int, last: int, stopped: threading.Event) -> int:
    """Read some commits behind `done`; the last one that was read."""
    read = 0
    for frame in journal.frames(done):
        read += frame.header.bytes
        if frame.sequence >= last or read >= LOOK_BYTES or stopped.is_set():
            return frame.sequence
    return last
