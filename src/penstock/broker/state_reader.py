"""Rebuild a broker's state read-only from a snapshot and later commits, without the lock.

What always holds:

- Nothing is locked and nothing is written, so another process may own the directory and be at work.
- All is as of the mark: what the owner has not synced yet is not seen, and neither is what is only
  in its memory (consumers, waiters, leases that ended by themselves).
- Commits behind the older of the two snapshots are whole; before it, the cleaner may have dropped
  some. A reader that fell behind it begins again with the newest snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import structs

from penstock import limits
from penstock.broker.embedded import Embedded
from penstock.broker.ledger import events_of
from penstock.broker.monitor import Monitor
from penstock.broker.opening import sizes_matter
from penstock.broker.shelf import JournalShelf
from penstock.broker.ticket import Answer, Ticket
from penstock.clock import ManualClock, SystemClock
from penstock.engine.engine import Engine
from penstock.engine.events import Event, Leased, Outcome, Settled
from penstock.engine.history import replay
from penstock.ids import SnowflakeIds
from penstock.journal import snapshot as snapshots
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.mark import Mark
from penstock.journal.reading import JournalReader
from penstock.journal.snapshot import Snapshot
from penstock.model.commands import DEFAULT_NAMESPACE
from penstock.model.damage import Damage
from penstock.model.queries import Names, OfNamespace, Query

T = TypeVar("T")

#: Effects of replayed commits are dropped after so many: a reader needs none of them.
COMMITS_AT_ONCE: Final = 1000


def snapshots_of(path: Path) -> Iterator[Snapshot]:
    """The undamaged snapshots of a directory, oldest first."""
    directory = Directory(Files(), path)
    for sequence in directory.contents().snapshots:
        if (found := snapshots.read(directory, sequence)) is not None:
            yield found


def passive_engine(snapshot: Snapshot | None) -> Engine:
    """An engine to replay into: it is never asked to hand out or to publish anything."""
    engine = Engine(
        seed=0, fetch=lambda _log, _offsets: [], take_ids=lambda _n: [], make_room=lambda _n, _settling: None
    )
    if snapshot is not None and snapshot.state:
        engine.restore(snapshot.state)
    return engine


def drop_effects(engine: Engine) -> None:
    """Forget what replaying has done at once."""
    for found in (engine.released, engine.gone, engine.parted, engine.stirred):
        found.clear()


class JournalFacts(msgspec.Struct, frozen=True):
    """What is known of a journal from outside."""

    sequence: int
    epoch: int
    segments: int
    bytes: int
    snapshots: list[int]
    damaged_messages: int
    damage: list[Damage]


class _Still(Monitor):
    """A monitor of a copy: nothing falls due, expires or recurs in it by itself."""

    def advance(self, now_us: int, *, turn: bool = False) -> bool:
        del now_us, turn
        return False


class StateReader(Embedded):
    """A broker's port for looking only, at a directory that another process may own.

    `delivered` and `acked` count what was read since this reader began.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._reader = JournalReader(self._path)
        self._now = ManualClock(SystemClock().now_us())
        self._sequence: int | None = None
        self.mark = Mark(0, 0, 0, 0, 0)
        shelf = JournalShelf()
        shelf.journal = self._reader
        super().__init__(_Still(None, shelf, self._now, passive_engine(None), SnowflakeIds(0, self._now)))
        self.refresh()

    @property
    def damage(self) -> list[Damage]:
        """What reading came across so far."""
        return self._reader.damage

    def describe(self, query: Query[T]) -> Ticket[T]:
        if isinstance(query, Names | OfNamespace):
            self.refresh()
        found: Any = super().describe(query)
        if isinstance(query, OfNamespace) and query.namespace == DEFAULT_NAMESPACE:
            return cast(Ticket[T], Answer(structs.replace(found.wait(), journal=self._journal_facts())))
        return cast(Ticket[T], found)

    def _journal_facts(self) -> JournalFacts:
        segments = self._reader.segments()
        return JournalFacts(
            sequence=self.mark.sequence,
            epoch=self.mark.epoch,
            segments=len(segments),
            bytes=sum(one.end for one in segments),
            snapshots=self._reader.snapshots(),
            damaged_messages=sum(one.messages for one in self.damage),
            damage=self.damage,
        )

    def refresh(self) -> None:
        """Take in what was committed since the last look."""
        with self.monitor.lock:
            for _ in range(limits.LOOKS_MAX):
                before, self.mark = self.mark, self._reader.mark()
                since = self._begin() if self._sequence is None else self._sequence
                self._replay(since)
                older = self._reader.snapshots()[: -limits.SNAPSHOTS_KEPT + 1]
                # A mark that is older than the snapshots, and does not move, is what a power cut left.
                if not older or older[-1] <= since or self.mark == before:
                    break
                self._sequence = None  # commits behind `since` may have been cleaned while they were read
            self._now.set_forward(us=max(0, SystemClock().now_us() - self._now.now_us()))
            for log in self.monitor.engine.logs.values():
                log.fall_due(self._now.now_us())

    def _begin(self) -> int:
        """Restore the newest snapshot up to the mark; its sequence number."""
        newest = None
        for found in snapshots_of(self._path):
            if found.sequence <= self.mark.sequence:
                newest = found
        before, self.monitor.engine = self.monitor.engine, passive_engine(newest)
        for number, log in before.logs.items():
            log.deleted = True
            if log.handle is not None:
                log.handle.deleted = True  # they are looked up again
            if (same := self.monitor.engine.logs.get(number)) is not None:
                same.delivered, same.acked = log.delivered, log.acked
        return 0 if newest is None else newest.sequence

    def _replay(self, after: int) -> None:
        engine = self.monitor.engine
        for frame in self._reader.frames(after):
            if frame.sequence > self.mark.sequence:
                break
            for event in events_of(frame, payloads_of=lambda log: sizes_matter(engine, log)):
                replay(engine, event, frame.header.time_us)
                _count(engine, event)
            if not frame.sequence % COMMITS_AT_ONCE:
                drop_effects(engine)
        drop_effects(engine)
        self._sequence = self.mark.sequence


def _count(engine: Engine, event: Event) -> None:
    log = engine.logs.get(event.log) if isinstance(event, Leased | Settled) else None
    if log is None:
        return
    if isinstance(event, Leased):
        log.delivered += len(event.offsets)
    elif isinstance(event, Settled) and event.outcome == Outcome.ACKED:
        log.acked += len(event.offsets)
