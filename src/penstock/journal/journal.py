"""The owner of a journal: it joins group commit, segments, the mark, snapshots, the index and the lock.

Theory of operation
-------------------
`append` checks rows, gives them offsets, makes sure of room on the disk and queues them; a ticket's `wait` (or a future) has them
committed (see `commit`). The leader writes one frame for everything that waits, syncs it as the durability says, and moves the mark. When a
segment has grown past `segment_bytes`, the leader rotates after the commit, so no caller waits for it: the
next file is made ready, the old one is sealed and synced, the next one gets its name, the old one its summary.

Durability is a name:

    commit     synced before returning (the default): it survives a power cut
    interval   written before returning, synced every few milliseconds: it survives `kill -9`, a power cut may take the last ones
    os         written before returning; the kernel decides when to sync

Room is taken before rows are queued, never while they are written. New messages leave a reserve, which leases may use half of and
settlements nearly all: on a full disk publishing is refused with `DiskFull`, with nothing changed, and acknowledging goes on.

An error on writing or syncing the journal is sticky (`JournalFailed`): nothing is acknowledged any more, and nothing syncs that file
again. Reopening rescues what was written. Errors in snapshots, summaries and cleaning are not: they are
raised as `MaintenanceFailed`, and the journal goes on.

Locks: `_lock` guards everything in memory and is held briefly; `_sync_lock` is held while the active file is synced or exchanged;
`_tidy` by whoever writes a snapshot, drops or replaces a segment. They are taken in the order tidy, sync, lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, Self

import msgspec
from msgspec import structs

from penstock import limits
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    DiskFull,
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
from penstock.journal.commit import GroupCommit, Ticket, again, finishing
from penstock.journal.damage import Damage, known_messages
from penstock.journal.directory import Directory, Ownership
from penstock.journal.files import NO_ROOM, NO_SPACE, Files, at_fork, require_little_endian
from penstock.journal.frame import Body, Frame
from penstock.journal.holdings import Draft, Holdings
from penstock.journal.mark import Mark, MarkFile
from penstock.journal.reading import Batch
from penstock.journal.recovery import Recovery, Replay, Report, Restore
from penstock.journal.rows import (
    CLEANED,
    LEASES,
    MESSAGES,
    POSITIONS,
    SETTLEMENTS,
    Kind,
    Rows,
    merge,
)
from penstock.journal.segment import Writer
from penstock.journal.snapshot import Snapshot
from penstock.journal.state import DAMAGED, State
from penstock.journal.view import Moved, SegmentInfo

Durability = Literal["commit", "interval", "os"]
DURABILITIES: Final = ("commit", "interval", "os")

#: How much of the reserve rows of a kind must leave on a full disk; what is not named here is treated like new messages.
FLOORS: Final[dict[Kind, int]] = {
    SETTLEMENTS: limits.RESERVE_LAST_BYTES,
    CLEANED: limits.RESERVE_LAST_BYTES,
    LEASES: limits.RESERVE_BYTES // 2,
    POSITIONS: limits.RESERVE_BYTES // 2,
}


#: Sections in one frame when opening accounts for damage: far below what a frame holds.
LOSSES_AT_ONCE: Final = 10_000


class Stats(msgspec.Struct, frozen=True):
    """What the journal knows of itself."""

    sequence: int
    durable_sequence: int
    epoch: int
    segments: int
    bytes: int
    messages: int
    free_segments: int
    snapshots: list[int]
    damaged_messages: int
    damage: list[Damage]
    failure: str | None
    recovery: Report


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
    ) -> None:
        _check_settings(durability, commit_interval_ms, segment_bytes)
        require_little_endian()
        self.directory = Directory(files or Files(), Path(path).absolute())
        self.durability = durability
        self.segment_bytes = segment_bytes
        self._interval_s = commit_interval_ms / 1000
        self._files = self.directory.files
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._tidy = threading.Lock()
        self._group = GroupCommit(self._lock, self._write, self._after_commit)
        self._closing = threading.Lock()
        self._dirty = threading.Event()
        self._stopped = threading.Event()
        self._closed = False
        with _telling_what_failed("opening the journal"):
            self._open(restore, replay, progress)
        _opened.add(self)
        if durability == "interval":
            self._syncer = threading.Thread(target=self._keep_syncing, name="penstock-sync", daemon=True)
            self._syncer.start()

    # --- opening ---

    def _open(
        self, restore: Restore | None, replay: Replay | None, progress: Callable[[int], None] | None
    ) -> None:
        self._files.make_directory(self.directory.path)
        self._owner = Ownership(self.directory)
        try:
            recovery = Recovery(self.directory, self._clock, restore, replay, progress)
            recovery.run()
            self._adopt(recovery)
            self._begin_epoch(recovery.losses())
            _say(recovery)
        except BaseException:
            for held in (getattr(self, "_held", None), getattr(self, "_mark_file", None)):
                if held is not None:
                    held.close()
            self._owner.release()
            raise

    def _adopt(self, recovery: Recovery) -> None:
        self.recovery = recovery.report
        self.state: State = recovery.state
        self.damage: list[Damage] = list(recovery.report.damage)
        self._snapshots = recovery.snapshots
        self._sequence = recovery.sequence
        self._time_us = max((info.index.newest for info in recovery.infos), default=0)
        self._epoch = recovery.epoch + 1
        self._held = Holdings(
            self.directory,
            self._lock,
            recovery.infos,
            recovery.free,
            recovery.next_number,
            self.segment_bytes,
        )
        last = recovery.infos[-1] if recovery.infos else None
        if last is None or last.sealed:
            draft = self._draft()
            self._held.adopt(draft)  # first, so that it is closed with the rest if publishing fails
            self._held.publish(draft)
        else:
            self._held.go_on(last)
        self._top_up()

    def _begin_epoch(self, losses: Sequence[Rows]) -> None:
        """A synced frame that begins an epoch: from here on, nothing that an earlier owner handed out is valid.

        It accounts for damage that was just found, so that later owners tell old damage from new.
        """
        self._mark_file = MarkFile(self._files, self.directory.mark)
        self._durable = Mark(0, 0, 0, 0, 0)
        for rows in losses:
            rows.prepare(alone=False)
        merged = merge(losses)
        for start in range(0, max(len(merged), 1), LOSSES_AT_ONCE):
            self._commit_frame(merged[start : start + LOSSES_AT_ONCE])
        # Of what is queued; the state's are of what is written.
        self._next_offsets = dict(self.state.next_offsets)
        self._sync()
        self._mark_file.sync()
        self._files.sync_directory(self.directory.path)

    # --- writing ---

    @property
    def epoch(self) -> int:
        """Counts the owners this journal has had."""
        return self._epoch

    @property
    def durable_sequence(self) -> int:
        """The last commit that is known to be on the disk."""
        return self._durable.sequence

    def next_offset(self, log: int) -> int:
        """The offset that a log's next message gets."""
        with self._lock:
            return self._next_offsets.get(log, 0)

    def append(self, rows: Sequence[Rows], *, sync: bool = True) -> Ticket:
        """Queue rows for the next commit: all of them or none. Nothing is written before somebody waits for a ticket.

        `sync=False` asks only for writing, whatever the durability: enough to survive this process.
        """
        with self._lock:
            return self._queue(rows, sync=sync)

    def commit(self, rows: Sequence[Rows], *, sync: bool = True) -> int:
        """Append and wait; the commit's sequence number."""
        return self.append(rows, sync=sync).wait()

    def submit(self, rows: Sequence[Rows], *, sync: bool = True) -> asyncio.Future[int]:
        """Append, and get a future of the running loop; the writing is done by a thread."""
        loop = asyncio.get_running_loop()
        with self._lock:
            return self._queue(rows, sync=sync, loop=loop).promise(loop)

    def sync(self) -> int:
        """Have everything that was committed so far on the disk; the last sequence number that is."""
        with self._lock:
            ticket = self._group.queue([], 0, sync=True)
        ticket.wait()
        return self._durable.sequence

    def _queue(
        self, rows: Sequence[Rows], *, sync: bool, loop: asyncio.AbstractEventLoop | None = None
    ) -> Ticket:
        if self._group.failure is not None:
            raise again(self._group.failure)
        if not isinstance(rows, list | tuple) or not rows:
            raise InvalidArgument("give a list of at least one section of rows to commit")
        offsets = self._prepare(rows)
        size = frames.OVERHEAD
        floor = 0
        for r in rows:
            size += r.bytes
            floor = max(floor, FLOORS.get(r.kind, limits.RESERVE_BYTES))
        if size > limits.FRAME_BYTES_MAX or len(rows) > limits.FRAME_SECTIONS_MAX:
            raise BatchTooLarge(
                f"a commit of {size} bytes in {len(rows)} sections is over the bound of {limits.FRAME_BYTES_MAX} bytes, "
                f"or {limits.FRAME_SECTIONS_MAX} sections: make it several"
            )
        if self._held.active.room() < self._group.pending_bytes + size + floor:
            self._make_room(size, floor)
        self._next_offsets.update(offsets)
        for r in rows:
            r.spent = True
        sync = sync and self.durability == "commit"
        if loop is not None and len(rows) == 1 and rows[0].count == 1:
            return self._group.join(rows[0], size, loop, sync=sync)
        return self._group.queue(list(rows), size, sync=sync)

    def _prepare(self, rows: Sequence[Rows]) -> dict[int, int]:
        """Give messages their offsets and check every value; the next offset of each log, not yet taken."""
        ahead: dict[int, int] = {}
        seen: set[int] = set()
        shared: set[int] = set()
        if len(rows) > 1:
            shared = {id(r.share) for r in rows if type(r) is Rows and r.share is not None}
        for r in rows:
            if type(r) is not Rows or r.spent:
                raise InvalidArgument(
                    "append a list of rows, each made for this append: rows are appended once"
                )
            if r.kind is MESSAGES:
                log = r.log
                ahead[log] = r.place(ahead[log] if log in ahead else self._next_offsets.get(log, 0))
            if r.share is not None and id(r.share) not in seen:
                raise InvalidArgument(
                    "rows that share payloads must come after those they share, in the same append"
                )
            if id(r) in seen:
                raise InvalidArgument("the same rows stand twice in one append")
            seen.add(id(r))
            r.prepare(alone=id(r) in shared)
        return ahead

    def _make_room(self, size: int, floor: int) -> None:
        wanted = self._group.pending_bytes + size + floor
        active = self._held.active
        while active.room() < wanted:
            try:
                active.make_room(wanted, to_the_last_byte=floor < limits.RESERVE_BYTES)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    self._group.fail(error)
                    raise self._failure() from error
                if not self._held.give_space_back():
                    raise DiskFull(
                        f"no room for {size} more bytes on the disk of {self.directory.path}: nothing was written. Make room"
                        + (
                            ", or consume: acknowledging still works, and then cleaning gives space back"
                            if floor == limits.RESERVE_BYTES
                            else ": even what was reserved for acknowledging is used up"
                        )
                    ) from error

    def _failure(self) -> PenstockError:
        return again(self._group.failure or JournalFailed("the journal failed"))

    def _write(self, batch: list[Ticket]) -> BaseException | None:
        """Write one frame for all of the batch. Called by the leader only."""
        rows = batch[0].rows if len(batch) == 1 else [r for ticket in batch for r in ticket.rows]
        interrupted: BaseException | None = None
        if rows:
            interrupted = self._commit_frame(rows)
        sync = False
        for ticket in batch:
            ticket.sequence = self._sequence
            sync = sync or ticket.sync
        if sync:
            interrupted = finishing(self._sync)[1] or interrupted
        elif self.durability == "interval":
            self._dirty.set()
        for ticket in batch:
            if ticket.at_rest is not None:
                ticket.at_rest()
        return interrupted

    def _commit_frame(self, rows: Sequence[Rows]) -> BaseException | None:
        """Write a frame, then take in what it says. The only place where a sequence number is given."""
        active = self._held.active
        sequence = self._sequence + 1
        self._time_us = time_us = max(self._clock.now_us(), self._time_us)
        (content, data), early = finishing(self._frame, rows, sequence, time_us)
        _, late = finishing(active.write, data)
        with self._lock:
            head = frames.Header(
                0, len(content.spans), active.label.generation, sequence, active.end, time_us, self._epoch,
                content.bytes, content.messages, 0,
            )  # fmt: skip
            active.advance(head, content.spans)
            self._held.info.end = active.end
            self._sequence = sequence
            self.state.apply(content.spans, content.sections)
        return late or early

    def _frame(self, rows: Sequence[Rows], sequence: int, time_us: int) -> tuple[Body, list[bytes]]:
        """The commit's sections, and its bytes for the place behind the last frame. It changes nothing."""
        content = frames.body(merge(rows) if len(rows) > 1 else rows)
        data = self._held.active.encoded(content, sequence=sequence, time_us=time_us, epoch=self._epoch)
        return content, data

    # --- syncing ---

    def _position(self) -> Mark:
        active = self._held.active
        return Mark(self._sequence, active.label.number, active.end, self._time_us, self._epoch)

    def _sync(self) -> None:
        """Sync what has been written, then move the mark. A failure of either is the journal's, before anybody else may sync."""
        with self._sync_lock:
            with self._lock:
                position, active = self._position(), self._held.active
                if self._group.failure is not None and not self._closed:
                    raise again(self._group.failure)
            if position.sequence > self._durable.sequence:
                try:
                    if self.durability == "commit":
                        active.prefill()
                    active.sync()
                    self._advance_mark(position)
                except OSError as error:
                    self._group.fail(error)
                    raise

    def _advance_mark(self, mark: Mark) -> None:
        self._mark_file.write(mark)
        self._durable = mark

    def _keep_syncing(self) -> None:
        """The thread behind `interval`: sync a little after something was written."""
        while not self._stopped.is_set() and self._group.failure is None:
            self._dirty.wait()
            self._stopped.wait(self._interval_s)
            self._dirty.clear()
            if not self._stopped.is_set():
                with suppress(
                    OSError, PenstockError
                ):  # it is the journal's failure, which everybody hears of
                    self._sync()

    # --- rotation ---

    def _after_commit(self) -> None:
        if self._held.active.end >= self.segment_bytes:
            self._rotate()

    def rotate(self) -> None:
        """Seal the segment that is being written and go on in the next one now, whatever its length."""
        with self._lock:
            ticket = self._group.queue([], 0, sync=True, at_rest=self._rotate)
        ticket.wait()

    def _draft(self) -> Draft:
        room = self._group.pending_bytes + limits.RESERVE_BYTES
        return self._held.draft(self._sequence + 1, epoch=self._epoch, now_us=self._clock.now_us(), room=room)

    def _rotate(self) -> None:
        """Seal the active segment and go on in the next one. On a full disk there is no next one: then go on in this one."""
        try:
            draft = self._draft()
        except OSError as error:
            if error.errno in NO_ROOM:
                return
            raise
        old, info = self._held.active, self._held.info
        try:
            with self._sync_lock:
                if self._group.failure is not None:
                    raise again(self._group.failure)
                old.seal(sequence=self._sequence + 1, time_us=self._time_us, epoch=self._epoch)
                self._held.publish(draft)
                with self._lock:
                    info.end, info.next_sequence = old.end, self._sequence + 1
                    self._held.adopt(draft)
                    self._top_up()
                self._advance_mark(self._position())
        except BaseException:
            (draft.writer if self._held.active is old else old).close()
            raise
        self._finish(old, info)

    def _top_up(self) -> None:
        """Take room for what was queued while rotating. On a full disk, what was taken with the draft must do."""
        try:
            self._held.active.make_room(self._group.pending_bytes + limits.RESERVE_BYTES)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def _finish(self, old: Writer, info: SegmentInfo) -> None:
        """Cut off the room that was not used, and say what the segment holds. Either can be done again by recovery."""
        try:
            old.trim()
            self._held.write_summary(info)
        except OSError:
            return
        finally:
            old.close()

    # --- reading ---

    def read(self, log: int, offset: int = 0) -> Iterator[Batch]:
        """The messages of a log from an offset on, in batches of columns, up to the last one that is durable."""
        return reading.batches(OwnerView(self), log, offset)

    def frames(self, after: int = 0) -> Iterator[Frame]:
        """Every durable commit behind a sequence number."""
        return reading.frames(OwnerView(self), after)

    def offset_at(self, log: int, time_us: int) -> int | None:
        """The offset of a log's first message that is not older than a time; None if there is none yet."""
        return reading.offset_at(OwnerView(self), log, time_us)

    # --- snapshots, and what the cleaner does ---

    def snapshot(self, state: bytes, sequence: int | None = None) -> int:
        """Keep `state`, which is what replaying up to `sequence` gives; that sequence number.

        It is the last commit's unless given: give it where others commit at the same time. They are not paused; the caller's
        thread does the writing.
        """
        if type(state) is not bytes:
            raise InvalidArgument(f"a snapshot's state is bytes, not {type(state).__name__}")
        taken: list[Snapshot] = []
        with self.tidying("writing a snapshot"):
            with self._lock:
                if sequence is None:
                    sequence = self._sequence
                if type(sequence) is not int or not 0 < sequence <= self._sequence:
                    raise InvalidArgument(
                        f"commit {sequence} has not been committed: the last one is {self._sequence}"
                    )
                number = sequence
                ticket = self._group.queue(
                    [], 0, sync=True, at_rest=lambda: taken.append(self._snapshot_now(state, number))
                )
            ticket.wait()  # without the lock: another thread may lead, and needs it
            snapshot = taken[0]
            self._write_snapshot(snapshot)
            with self._lock:
                self._snapshots = sorted({*self._snapshots, snapshot.sequence})[-limits.SNAPSHOTS_KEPT :]
            return snapshot.sequence

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        """On a full disk, out of the reserve: without snapshots nothing could be cleaned, and no room would ever come back."""
        try:
            snapshots.write(self.directory, snapshot)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            with self._lock:
                self._held.active.trim(keep=self._group.pending_bytes + limits.RESERVE_BYTES // 2)
            snapshots.write(self.directory, snapshot)
            with self._lock:
                self._top_up()

    def _snapshot_now(self, state: bytes, sequence: int) -> Snapshot:
        """By the leader, when everything that was written is synced."""
        info = self._held.info
        active = summaries.of(info.label, info.end, 0, info.index, info.damage)
        return Snapshot(
            sequence,
            self._epoch,
            self._time_us,
            self.state.store(),
            active,
            state,
        )

    def covered_sequence(self) -> int:
        """Up to where both snapshots cover: what is behind needs no replaying, and other rows than messages no keeping."""
        with self._lock:
            return self._snapshots[0] if len(self._snapshots) == limits.SNAPSHOTS_KEPT else 0

    def segments(self) -> list[SegmentInfo]:
        """What the segments hold, oldest first; the last one is being written."""
        return self._held.segments()

    @contextmanager
    def tidying(self, what: str) -> Iterator[None]:
        """One at a time may write snapshots, drop or replace segments; an I/O error in it is not the journal's end."""
        with self._tidy, _telling_what_failed(what, MaintenanceFailed):
            self._require_open()
            yield

    def _require_open(self) -> None:
        if self._group.failure is not None:
            raise again(self._group.failure)

    def drop(self, info: SegmentInfo) -> None:
        """Give a sealed segment's space back, while tidying. What it held must have been recorded."""
        self._held.drop(info)

    def replace(self, info: SegmentInfo, rewritten: Writer) -> None:
        """Put a sealed, synced draft in a segment's place, while tidying."""
        self._held.replace(info, rewritten)

    # --- the rest ---

    def now_us(self) -> int:
        """The time that this journal goes by."""
        return self._clock.now_us()

    def note_damage(self, damage: Damage) -> None:
        """Reading came across damage: say so once, keep a copy, and find out which messages it cost."""
        with self._lock:
            if any(d.segment == damage.segment and d.position == damage.position for d in self.damage):
                return
            self.damage.append(damage)
            info = self._held.get(damage.segment)
        _LOG.error("%s: %s", self.directory.path, damage)
        known = self._examined(info, damage) if info is not None else damage
        with self._lock:
            self.damage[self.damage.index(damage)] = known
            for log, first, last in known.spans:
                self.state.record_cleaned(log, first, last, DAMAGED)

    def _examined(self, info: SegmentInfo, damage: Damage) -> Damage:
        """Damage with the messages it cost and a copy of its bytes; the segment's summary will say it to later owners."""
        spans = damage.spans
        with suppress(Moved, OSError):
            if not damage.complete:
                lost = reading.missing_offsets(QuietView(self), info) if not info.damage else []
                with self._lock:
                    spans = [
                        (log, gap.start, gap.stop - 1)
                        for log, first, last in lost
                        for gap in self.state.explained(log, first, last + 1).gaps(first, last + 1)
                    ]
            copy = self.directory.set_range_aside(damage.segment, damage.position, damage.end)
            known = structs.replace(
                damage, spans=spans, messages=max(damage.messages, known_messages(spans)), copy=copy
            )
            info.damage.append(known)
            if info.next_sequence is not None:
                self._held.write_summary(info)
            return known
        return damage

    def stats(self) -> Stats:
        """What the journal knows of itself, damage included."""
        with self._lock:
            infos = self.segments()
            return Stats(
                sequence=self._sequence,
                durable_sequence=self._durable.sequence,
                epoch=self._epoch,
                segments=len(infos),
                bytes=sum(info.end for info in infos),
                messages=sum(info.index.messages for info in infos),
                free_segments=self._held.free_segments,
                snapshots=list(self._snapshots),
                damaged_messages=sum(damage.messages for damage in self.damage),
                damage=list(self.damage),
                failure=str(self._group.failure) if self._group.failure else None,
                recovery=self.recovery,
            )

    def close(self) -> None:
        """Commit what is queued, sync, and let go of the directory. After a failure nothing is synced any more."""
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
        whole = self._group.failure is None
        self._group.fail(BrokerClosed("the journal is closed: open it again"))
        self._group.stop()
        self._closed = True
        self._stopped.set()
        self._dirty.set()
        if self.durability == "interval":
            self._syncer.join()
        with self._tidy:
            try:
                if whole and isinstance(self._group.failure, BrokerClosed):
                    with _telling_what_failed("closing the journal"):
                        self._sync()
                        self._mark_file.sync()
            finally:
                self._held.close()
                self._mark_file.close()
                self._owner.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _orphan(self) -> None:
        """In a forked child: drop the lock's copy, so that it ends with the parent, and refuse everything."""
        self._lock = threading.RLock()
        self._sync_lock, self._tidy, self._closing = threading.Lock(), threading.Lock(), threading.Lock()
        self._closed = True
        self._group.orphan(
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
        if self._journal._closed:
            raise self._journal._failure()
        return self._journal._durable

    def segments(self) -> list[SegmentInfo]:
        return self._journal.segments()

    def found(self, damage: Damage) -> None:
        self._journal.note_damage(damage)


class QuietView(OwnerView):
    """Looks without telling: what is damaged is being examined already."""

    def found(self, damage: Damage) -> None:
        del damage


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


@contextmanager
def _telling_what_failed(what: str, kind: type[PenstockError] = JournalFailed) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(f"{what} failed: {error}") from error


def _check_settings(durability: str, commit_interval_ms: float, segment_bytes: int) -> None:
    if not isinstance(commit_interval_ms, int | float) or not isinstance(segment_bytes, int):
        raise InvalidArgument("commit_interval_ms and segment_bytes are numbers")
    if durability not in DURABILITIES:
        raise InvalidArgument(f"durability is one of {', '.join(DURABILITIES)}, not {durability!r}")
    if not 0 < commit_interval_ms <= limits.COMMIT_INTERVAL_MS_MAX:
        raise InvalidArgument(
            f"commit_interval_ms is above 0 and at most {limits.COMMIT_INTERVAL_MS_MAX:.0f}, not {commit_interval_ms}"
        )
    if segment_bytes < limits.SEGMENT_BYTES_MIN:
        raise InvalidArgument(f"segment_bytes is at least {limits.SEGMENT_BYTES_MIN}, not {segment_bytes}")
