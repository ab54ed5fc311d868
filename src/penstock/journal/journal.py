"""The owner of a journal: what may be done with it, by any number of threads and loops.

Theory of operation
-------------------
`append` checks rows, gives them offsets, makes sure of room on the disk and queues them; a ticket's `wait` (or a future) has them
committed (see `commit`), at the journal's end (see `tail`).

Durability is a name:

    commit     synced before returning (the default): it survives a power cut
    interval   written before returning, synced every few milliseconds: it survives `kill -9`, a power cut may take the last ones
    os         written before returning; the kernel decides when to sync, or a thread does behind much that was written

An error on writing or syncing the journal is sticky (`JournalFailed`): nothing is acknowledged any more, and nothing syncs that file
again. Reopening rescues what was written. Errors in snapshots, summaries and cleaning are not: they are
raised as `MaintenanceFailed`, and the journal goes on.

Locks: `_tidy` is held by whoever writes a snapshot, drops or replaces a segment, `_lock` guards what is in memory. They are taken in the
order tidy, examining, the tail's sync lock, lock. `_examining` is held by whoever looks at damage.
"""

from __future__ import annotations

import errno
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from msgspec import structs

from penstock import argument, limits
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    ForkedProcess,
    InvalidArgument,
    JournalFailed,
    MaintenanceFailed,
    PenstockError,
)
from penstock.journal import frame as frames
from penstock.journal import reading
from penstock.journal import snapshot as snapshots
from penstock.journal import summary as summaries
from penstock.journal.commit import Ticket, uninterrupted
from penstock.journal.damage import new_parts, of_bad, parts_outside
from penstock.journal.directory import Directory, Ownership, checked_path
from penstock.journal.ending import bounds_within, judge, look_through
from penstock.journal.files import NO_SPACE, Files, at_fork, require_little_endian
from penstock.journal.frame import Frame
from penstock.journal.kinds import MESSAGES, Kind
from penstock.journal.losses import Gap, Promise, Sightings, chain, named
from penstock.journal.mark import Mark
from penstock.journal.reading import Batch
from penstock.journal.recovery import Recovery, Replay, Restore, rows_of
from penstock.journal.rows import Rows, taken
from penstock.journal.segment import Bad, Writer
from penstock.journal.snapshot import Snapshot
from penstock.journal.state import DAMAGED, State
from penstock.journal.tail import DURABILITIES, Durability, Tail
from penstock.journal.view import Moved, SegmentInfo, opened, require_generation
from penstock.loop import running_loop
from penstock.model.damage import MISSING, ROT, Damage, JournalStats
from penstock.model.stats import Meter

if TYPE_CHECKING:
    import asyncio


class Journal:
    """A durable, columnar log in a directory that this process owns.

    >>> import tempfile; from penstock.journal.rows import messages
    >>> with tempfile.TemporaryDirectory() as path, Journal(path) as journal:
    ...     sequence = journal.commit([messages(1, [b"a", b"b"], ids=range(10, 12), timestamp=0)])
    ...     [bytes(p) for batch in journal.read(log=1) for p in batch.values("payload")]
    [b'a', b'b']
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "commit",
        commit_interval_ms: float = limits.COMMIT_INTERVAL_MS,
        segment_bytes: int = limits.SEGMENT_BYTES,
        restore: Restore | None = None,
        replay: Replay | None = None,
        progress: Callable[[int], None] | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
        momentary: bool = False,
    ) -> None:
        check_settings(durability, commit_interval_ms, segment_bytes)
        require_little_endian()
        self.directory = Directory(files or Files(), checked_path(path))
        self.durability = durability
        self.segment_bytes = segment_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._tidy = threading.Lock()
        self._tidier = 0  # the thread that holds it
        self._closing = threading.Lock()
        self._examining = threading.Lock()
        self._closed = False
        self._tail = Tail(
            self.directory,
            self._lock,
            self._clock,
            durability=durability,
            interval_s=commit_interval_ms / 1000,
            segment_bytes=segment_bytes,
        )
        self._group = self._tail.group
        with _telling_what_failed("opening the journal"):
            self._open(restore, replay, progress, momentary)
        _opened.add(self)

    # --- opening ---

    def _open(
        self,
        restore: Restore | None,
        replay: Replay | None,
        progress: Callable[[int], None] | None,
        momentary: bool,
    ) -> None:
        self.directory.files.make_directory(self.directory.path)
        self._owner = Ownership(self.directory, momentary=momentary)
        try:
            recovery = Recovery(self.directory, self._clock, restore, replay, progress)
            recovery.run()
            self.recovery = recovery.report
            self.damage: list[Damage] = list(recovery.report.damage)
            self._snapshots = recovery.snapshots
            self._snapshot_us = recovery.snapshot_us
            self._tail.begin(recovery)
            # Of what is queued; the state's are of what is written.
            self._next_offsets = dict(self.state.next_offsets)
            _say(recovery)
        except BaseException:
            self._tail.close()
            self._owner.release()
            raise

    # --- writing ---

    @property
    def epoch(self) -> int:
        """Counts the owners this journal has had."""
        return self._tail.epoch

    @property
    def durable_sequence(self) -> int:
        """The last commit that is known to be on the disk."""
        return self._tail.durable.sequence

    @property
    def state(self) -> State:
        """What the journal remembers of its logs."""
        return self._tail.state

    def next_offset(self, log: int) -> int:
        """The offset that a log's next message gets."""
        reading.require_number("a log's number", log)
        with self._lock:
            return self._next_offsets.get(log, self.state.floor)

    def append(
        self,
        rows: Sequence[Rows],
        *,
        sync: bool = True,
        then: Callable[[], None] | None = None,
        promised: bool = False,
    ) -> Ticket:
        """Queue rows for the next commit: all of them or none. Nothing is written before somebody waits for a ticket.

        `sync=False` asks only for writing, whatever the durability: enough to survive this process. `then` is called once they are
        committed as asked, by whichever thread commits, in the order of appending, before anybody's waiting for them ends; if it
        raises, the journal fails. `promised`: the caller asked for their room before (`require_room`).
        """
        with self._lock:
            ticket = self._queue(rows, sync=sync, promised=promised)
            if then is not None:
                ticket.then = then
            return ticket

    def append_one(self, row: Rows, *, sync: bool, then: Callable[[], None] | None) -> Ticket:
        """The same for a row made by `Rows.one`: a message with an offset of its own, a lease, an ack. Its values are not looked at."""
        with self._lock:
            _require_fresh(row)
            if self._group.failure is not None:
                raise self._tail.failure()
            size = row.bytes + frames.OVERHEAD
            self._tail.take_room((row.kind,), size, promised=True)
            if row.kind is MESSAGES:
                log, place = row.log, row.span().first
                if place < self._next_offsets.get(log, self.state.floor):
                    raise taken(log, place, self._next_offsets.get(log, self.state.floor))
                self._next_offsets[log] = place + 1
            row.spent = True
            ticket = self._group.queue([row], size, sync=sync and self.durability == "commit")
            if then is not None:
                ticket.then = then
            return ticket

    def commit(self, rows: Sequence[Rows], *, sync: bool = True) -> int:
        """Append and wait; the commit's sequence number."""
        return self.append(rows, sync=sync).wait()

    def submit(self, rows: Sequence[Rows], *, sync: bool = True) -> asyncio.Future[int]:
        """Append, and get a future of the running loop; the writing is done by a thread."""
        loop = running_loop()
        with self._lock:
            return self._queue(rows, sync=sync, loop=loop).promise(loop)

    def sync(self) -> int:
        """Have everything that was committed so far on the disk; the last sequence number that is."""
        with self._lock:
            ticket = self._group.queue([], 0, sync=True)
        ticket.wait()
        return self.durable_sequence

    @property
    def written(self) -> int:
        """Bytes of rows that were committed since it was opened."""
        return self._tail.written

    @property
    def meter(self) -> Meter:
        """How its commits went since it was opened."""
        return self._tail.meter

    def has_room(self, size: int) -> bool:
        """Whether rows of `size` bytes in all, of any kind, surely fit. If so, that room is kept for the same caller's append."""
        return self._tail.promise(size + frames.OVERHEAD)

    def require_room(self, kind: Kind, size: int) -> None:
        """Raise what appending rows of a kind, of `size` bytes in all, would raise for want of room; and keep that room for them.

        For a caller who must know before it changes anything; there may be one at a time, who then appends what was `promised` room.
        """
        if self.has_room(size):
            return
        if size + frames.OVERHEAD > limits.FRAME_BYTES_MAX:
            self._require_open()
            raise BatchTooLarge(
                f"a commit of {size} bytes is over the bound of {limits.FRAME_BYTES_MAX} bytes: make it several"
            )
        self.require_space(kind, size)

    def require_space(self, kind: Kind, size: int) -> None:
        """The same for rows that are appended in several commits."""
        with self._lock:
            self._require_open()
            self._tail.promised = 0
            self._tail.take_room([kind], size + frames.OVERHEAD)
            self._tail.promised = size + frames.OVERHEAD

    def host(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have a loop, which runs in this thread and is there for nothing else, write what comes from it, and the kernel sync it (see `hosting`).

        False if the kernel does not offer that: then a thread does both, as for every loop.
        """
        return self._tail.host(loop)

    def tell_of_failure(self, callback: Callable[[PenstockError], None]) -> None:
        """Have `callback` called when the journal fails or is closed, by whichever thread notices. It must not wait for anything."""
        self._group.on_failure = callback

    def barrier(self) -> Ticket:
        """A ticket whose commit holds all rows that were appended before it, and none that come after it."""
        with self._lock:
            return self._group.barrier()

    def _queue(
        self,
        rows: Sequence[Rows],
        *,
        sync: bool,
        loop: asyncio.AbstractEventLoop | None = None,
        promised: bool = False,
    ) -> Ticket:
        if self._group.failure is not None:
            raise self._tail.failure()
        if not isinstance(rows, list | tuple) or not rows:
            raise InvalidArgument("give a list of at least one section of rows to commit")
        offsets = self._prepare_one(rows[0]) if len(rows) == 1 else self._prepare(rows)
        size = frames.OVERHEAD
        kinds: list[Kind] = []
        for r in rows:
            size += r.bytes
            kinds.append(r.kind)
        if size > limits.FRAME_BYTES_MAX or len(rows) > limits.FRAME_SECTIONS_MAX:
            raise BatchTooLarge(
                f"a commit of {size} bytes in {len(rows)} sections is over the bound of {limits.FRAME_BYTES_MAX} bytes, "
                f"or {limits.FRAME_SECTIONS_MAX} sections: make it several"
            )
        self._tail.take_room(kinds, size, promised=promised)
        self._next_offsets.update(offsets)
        for r in rows:
            r.spent = True
        sync = sync and self.durability == "commit"
        if loop is not None and len(rows) == 1 and rows[0].count == 1:
            return self._group.join(rows[0], size, loop, sync=sync)
        return self._group.queue(list(rows), size, sync=sync)

    def _prepare_one(self, r: Rows) -> dict[int, int]:
        """Give messages their offsets and check every value; their log's next offset, not yet taken."""
        _require_fresh(r)
        if r.share is not None:
            raise InvalidArgument(SHARING)
        ahead = (
            {r.log: r.place(self._next_offsets.get(r.log, self.state.floor))} if r.kind is MESSAGES else {}
        )
        r.prepare(alone=False)
        return ahead

    def _prepare(self, rows: Sequence[Rows]) -> dict[int, int]:
        """The same for several."""
        ahead: dict[int, int] = {}
        seen: set[int] = set()
        shared = {id(r.share) for r in rows if type(r) is Rows and r.share is not None}
        for r in rows:
            _require_fresh(r)
            if r.kind is MESSAGES:
                log = r.log
                ahead[log] = r.place(
                    ahead[log] if log in ahead else self._next_offsets.get(log, self.state.floor)
                )
            if r.share is not None and id(r.share) not in seen:
                raise InvalidArgument(SHARING)
            if id(r) in seen:
                raise InvalidArgument("the same rows stand twice in one append")
            seen.add(id(r))
            r.prepare(alone=id(r) in shared)
        return ahead

    def rotate(self) -> None:
        """Seal the segment that is being written and go on in the next one now, whatever its length."""
        with self._lock:
            ticket = self._group.barrier(self._tail.rotate)
        ticket.wait()

    # --- reading ---

    def read(self, log: int, offset: int = 0) -> Iterator[Batch]:
        """The messages of a log from an offset on, in batches of columns, up to the last that was acknowledged."""
        return reading.batches(OwnerView(self), log, offset)

    def frames(self, after: int = 0) -> Iterator[Frame]:
        """Every commit behind a sequence number, as far as they are durable by the durability that was chosen."""
        return reading.frames(OwnerView(self), after)

    def offset_at(self, log: int, time_us: int) -> int | None:
        """The offset of a log's first message that is not older than a time; None if there is none yet."""
        return reading.offset_at(OwnerView(self), log, time_us)

    # --- snapshots, and what the cleaner does ---

    def snapshot(self, state: bytes, sequence: int | None = None) -> int:
        """Keep `state`, which is what replaying up to `sequence` gives; that sequence number.

        Unless given, it is the last commit's. Where others commit at the same time, take the state and a `barrier` under a lock of your
        own, and give the barrier's sequence number once it is done. Others are not paused; the caller's thread does the writing.
        """
        if type(state) is not bytes:
            raise InvalidArgument(f"a snapshot's state is bytes, not {type(state).__name__}")
        taken: list[Snapshot] = []
        with self.tidying("writing a snapshot"):
            with self._lock:
                number = self._tail.sequence if sequence is None else sequence
                self._require_sequence(number)
                ticket = self._group.barrier(lambda: taken.append(self._snapshot_now(state, number)))
            ticket.wait()  # without the lock: another thread may lead, and needs it
            snapshot = taken[0]
            self._write_snapshot(snapshot)
            with self._lock:
                self._snapshots = sorted({*self._snapshots, snapshot.sequence})[-limits.SNAPSHOTS_KEPT :]
                self._snapshot_us = self._clock.now_us()
            return snapshot.sequence

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        """On a full disk, out of the reserve: without snapshots nothing could be cleaned, and no room would ever come back."""
        try:
            snapshots.write(self.directory, snapshot)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            with self._lock:
                self._tail.held.active.trim(keep=self._tail.spoken_for + limits.RESERVE_BYTES // 2)
            try:
                snapshots.write(self.directory, snapshot)
            finally:
                with self._lock:
                    self._tail.top_up()

    def _require_sequence(self, sequence: int) -> None:
        if type(sequence) is not int or not 0 < sequence <= self._tail.sequence:
            raise InvalidArgument(
                f"commit {sequence} has not been committed: the last one is {self._tail.sequence}"
            )
        if self._snapshots and sequence < self._snapshots[-1]:
            raise InvalidArgument(f"there is a snapshot of commit {self._snapshots[-1]}: {sequence} is older")

    def _snapshot_now(self, state: bytes, sequence: int) -> Snapshot:
        """By the leader, when everything that was written is synced."""
        tail = self._tail
        with self._lock:
            info = tail.held.info
            active = summaries.of(info.label, info.end, 0, info.index, info.damage)
            return Snapshot(sequence, tail.epoch, tail.time_us, self.state.store(), active, state)

    def covered_sequence(self) -> int:
        """Up to where both snapshots cover: what is behind needs no replaying, and other rows than messages no keeping."""
        with self._lock:
            return self._snapshots[0] if len(self._snapshots) == limits.SNAPSHOTS_KEPT else 0

    def segments(self) -> list[SegmentInfo]:
        """What the segments hold, oldest first; the last one is being written."""
        return self._tail.held.segments()

    @contextmanager
    def tidying(self, what: str) -> Iterator[None]:
        """One at a time may write snapshots, drop or replace segments; an I/O error in it is not the journal's end."""
        self._require_not_tidying(what)
        with self._tidy, _telling_what_failed(what, MaintenanceFailed):
            self._require_open()
            self._tidier = threading.get_ident()
            try:
                yield
            finally:
                self._tidier = 0

    def _require_not_tidying(self, what: str) -> None:
        """A callback that is asked while tidying cannot wait for the end of it."""
        if self._tidier == threading.get_ident():
            raise InvalidArgument(
                f"{what} must wait until cleaning is done: do not ask for it in its callback"
            )

    def _require_open(self) -> None:
        if self._group.failure is not None:
            raise self._tail.failure()

    def drop(self, info: SegmentInfo) -> None:
        """Give a sealed segment's space back, while tidying. What it held must have been recorded."""
        self._tail.held.drop(info)

    def replace(self, info: SegmentInfo, rewritten: Writer) -> None:
        """Put a sealed, synced draft in a segment's place, while tidying."""
        self._tail.held.replace(info, rewritten)

    # --- the rest ---

    def now_us(self) -> int:
        """The time that this journal goes by."""
        return self._clock.now_us()

    def note_damage(self, damage: Damage) -> None:
        """Reading came across damage: look at all of its segment, keep copies, find out which messages are gone, and say so, once."""
        with self._examining:  # one at a time: what one finds, the next takes for known
            with self._lock:
                ranges = [range(d.position, d.reach) for d in self.damage if d.segment == damage.segment]
                info = self._tail.held.get(damage.segment)
            if not parts_outside(damage.position, damage.reach, ranges):
                return
            if damage.what == MISSING and info is not None and not info.sealed:
                # Whatever is written to it from here on is gone when it is closed.
                self._tail.group.fail(OSError(errno.ENOENT, f"{self.directory.segment(info.number)}, which is being written, was removed"))  # fmt: skip
            found = self._examined(info, damage) if info is not None else []
            with self._lock:
                for one in found or [damage]:
                    _LOG.error("%s: %s", self.directory.path, one)
                    self.damage.append(one)
                    if info is not None and found:
                        self._take_in(one, info)
            if info is not None and info.sealed and found and damage.what != MISSING:
                with suppress(OSError):  # it can be found again
                    self._tail.held.write_summary(info)

    def _take_in(self, damage: Damage, info: SegmentInfo) -> None:
        """Have it in the next commit which messages damage cost, so that later owners know of it."""
        info.damage.append(damage)
        lost = [(log, first, last, DAMAGED) for log, first, last in damage.spans]
        for log, first, last, _ in lost:
            self.state.record_cleaned(log, first, last, DAMAGED)
        with suppress(PenstockError):  # then the next opening finds it and says so
            self._queue(rows_of(damage, lost, self._clock.now_us()), sync=False)

    def _examined(self, info: SegmentInfo, damage: Damage) -> list[Damage]:
        """All that is wrong in a segment, with the messages it cost and copies of its bytes; nothing if it is gone or cannot be read now."""
        with self._lock:
            bounds, promise = bounds_within(info.end, info.next_sequence), Promise(info.index)
        if damage.what == MISSING:
            return named([damage], self._unexplained(promise, []), {info.number: promise}, [], [])
        with suppress(Moved, OSError):
            with opened(self.directory, info.label) as fd:
                walk, seen = look_through(self.directory.files, fd, info.label, bounds)
                require_generation(self.directory.files, fd, info.label)
            wounds = [self._wound(part) for bad in judge(walk).rot for part in new_parts(bad, info.damage)]
            gaps = self._unexplained(promise, [seen])
            return named(wounds, gaps, {info.number: promise}, [seen], [*info.damage, *wounds])
        return []

    def _wound(self, bad: Bad) -> Damage:
        """A bad range, with what it tells itself of the messages that were in it, and a copy of its bytes."""
        copy = None
        with suppress(OSError):  # on a full disk, say: it is named all the same
            copy = self.directory.set_range_aside(*bad[:3])
        with self._lock:
            spans, messages = self.state.unrecorded(bad)
        return structs.replace(of_bad(bad, ROT, copy), spans=spans, messages=messages)

    def _unexplained(self, promise: Promise, found: list[Sightings]) -> list[Gap]:
        """What a segment promises, was not found in it, and is not on record as gone."""
        firsts = {log: held.start for log, held in promise.logs.items()}
        stops = {log: held.stop for log, held in promise.logs.items()}
        with self._lock:
            return list(self.state.unexplained(chain(found, stops, first_offsets=firsts)))

    def stats(self) -> JournalStats:
        """What the journal knows of itself, damage included."""
        with self._lock:
            infos = self.segments()
            return JournalStats(
                sequence=self._tail.sequence,
                durable_sequence=self.durable_sequence,
                epoch=self.epoch,
                segments=len(infos),
                bytes=sum(info.end for info in infos),
                written=self._tail.written,
                messages=sum(info.index.messages for info in infos),
                free_segments=self._tail.held.free_segments,
                snapshots=list(self._snapshots),
                snapshot_us=self._snapshot_us,
                damaged_messages=sum(damage.messages for damage in self.damage),
                damage=list(self.damage),
                failure=str(self._group.failure) if self._group.failure else None,
                recovery=self.recovery,
            )

    def close(self) -> None:
        """Commit what is queued, sync, and let go of the directory. After a failure nothing is synced any more.

        Not in a signal handler: it may have interrupted the very thread that commits. Raise there, or set a flag.
        """
        self._require_not_tidying("closing the journal")
        uninterrupted(self._close)

    def _close(self) -> None:
        with self._closing:
            if self._closed:
                return
            try:
                if self._group.failure is None:
                    self.sync()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Refuse what comes, wait for what is under way, sync a last time, and only then give up the lock."""
        whole = self._tail.stop(BrokerClosed("the journal is closed: open it again"))
        self._closed = True
        with self._tidy:
            try:
                if whole:
                    with _telling_what_failed("closing the journal"):
                        self._tail.sync_all()
            finally:
                self._tail.close()
                self._owner.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _orphan(self) -> None:
        """In a forked child: drop the lock's copy, so that it ends with the parent, and refuse everything."""
        self._lock = threading.RLock()
        self._tidy, self._closing, self._examining = (threading.Lock() for _ in range(3))
        self._tidier = 0
        self._closed = True
        self._tail.orphan(
            self._lock,
            ForkedProcess(
                "this journal belongs to the parent process: open your own, or connect to a server"
            ),
        )
        self._owner.release()


class OwnerView:
    """The journal as its own readers see it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.directory = journal.directory
        self.guard: AbstractContextManager[object] = journal._lock

    def refresh(self) -> Mark:
        journal = self._journal
        if journal._closed:
            raise journal._tail.failure()
        with self.guard:
            return journal._tail.durable if journal.durability == "commit" else journal._tail.position()

    def segments(self) -> list[SegmentInfo]:
        return self._journal.segments()

    def found(self, damage: Damage) -> None:
        self._journal.note_damage(damage)


_opened: weakref.WeakSet[Journal] = weakref.WeakSet()


_LOG: Final = logging.getLogger("penstock.journal")


def _say(recovery: Recovery) -> None:
    """What opening found, in the log, if it was anything but an ordinary end."""
    report = recovery.report
    for damage in recovery.found:
        _LOG.error("found while opening: %s", damage)
    for cut in report.cut:
        _LOG.warning("cut off what a crash left, never acknowledged: %s", cut)
    if report.snapshots_damaged or report.mark_damaged:
        _LOG.warning(
            "%d damaged snapshots were set aside; the mark was %s",
            report.snapshots_damaged,
            "damaged" if report.mark_damaged else "whole",
        )


def _orphan_all() -> None:
    for journal in list(_opened):
        journal._orphan()


at_fork(_orphan_all)


SHARING: Final = "rows that share payloads must come after those they share, in the same append"


def _require_fresh(rows: object) -> None:
    if type(rows) is not Rows or rows.spent:
        raise InvalidArgument("append a list of rows, each made for this append: rows are appended once")


@contextmanager
def _telling_what_failed(what: str, kind: type[PenstockError] = JournalFailed) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(f"{what} failed: {error}") from error


def check_settings(durability: str, commit_interval_ms: float, segment_bytes: int) -> None:
    """Raise what is wrong with how a journal is to be kept."""
    if type(commit_interval_ms) not in {int, float} or type(segment_bytes) is not int:
        raise InvalidArgument("commit_interval_ms and segment_bytes are numbers")
    if type(durability) is not str or durability not in DURABILITIES:
        raise InvalidArgument(
            f"durability is one of {', '.join(DURABILITIES)}, not {argument.quoted(durability)}"
        )
    if not 0 < commit_interval_ms <= limits.COMMIT_INTERVAL_MS_MAX:
        raise InvalidArgument(
            f"commit_interval_ms is above 0 and at most {limits.COMMIT_INTERVAL_MS_MAX:.0f}, not {argument.quoted(commit_interval_ms)}"
        )
    if segment_bytes < limits.SEGMENT_BYTES_MIN:
        raise InvalidArgument(
            f"segment_bytes is at least {limits.SEGMENT_BYTES_MIN}, not {argument.quoted(segment_bytes)}"
        )
