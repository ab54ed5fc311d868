"""The end of a journal, where it grows: frames are written there, synced, and segments follow one another.

Theory of operation
-------------------
The leader of a group commit (see `commit`) is the only one who writes here. It writes one frame for everything that waits, syncs it as the
durability says, and moves the mark. When a segment has grown past its length, the leader rotates after the commit, so no caller waits
for it: the next file is made ready, the old one is sealed and synced, the next one gets its name, the old one its summary.

Room is taken before rows are queued, never while they are written. New messages leave a reserve, which leases may use most of and
settlements nearly all: on a full disk publishing is refused with `DiskFull`, with nothing changed, and acknowledging goes on.
Who must know beforehand is *promised* room: it is counted when a segment follows another and when others take room, until he appends.

An error on writing or syncing is sticky: nothing is acknowledged any more, and nothing syncs that file again.

Locks: `lock` guards everything in memory and is held briefly; `_sync_lock` is held while the active file is synced or exchanged. They are
taken in that order: sync, lock.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock import limits
from penstock.clock import Clock, nanoseconds_of
from penstock.errors import DiskFull, JournalFailed, PenstockError, fresh_copy
from penstock.journal import frame as frames
from penstock.journal.commit import GroupCommit, Ticket, finishing
from penstock.journal.directory import Directory
from penstock.journal.files import NO_ROOM
from penstock.journal.frame import Body
from penstock.journal.holdings import Draft, Holdings
from penstock.journal.hosting import Host
from penstock.journal.kernel import KernelSync
from penstock.journal.kinds import CLEANED, LEASES, METADATA, POSITIONS, SETTLEMENTS, Kind
from penstock.journal.mark import Mark, MarkFile
from penstock.journal.recovery import Recovery
from penstock.journal.rows import Rows, merge
from penstock.journal.segment import Writer
from penstock.journal.state import State
from penstock.journal.view import SegmentInfo
from penstock.model.stats import Histogram, Meter

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop as Loop

Durability = Literal["commit", "interval", "os"]
DURABILITIES: Final = ("commit", "interval", "os")

#: How much of the reserve rows of a kind must leave on a full disk; what is not named here is treated like new messages.
FLOORS: Final[dict[Kind, int]] = {
    SETTLEMENTS: limits.RESERVE_LAST_BYTES,
    CLEANED: limits.RESERVE_LAST_BYTES,
    # Half of it may be taken for a snapshot, without which nothing is cleaned; and then somebody must still be able to consume.
    LEASES: limits.RESERVE_BYTES // 4,
    POSITIONS: limits.RESERVE_BYTES // 4,
    METADATA: limits.RESERVE_BYTES // 2,  # deleting and purging make room
}


class UnderWay(NamedTuple):
    """A sync that the kernel does: up to where it counts, since when its oldest commit waits (below 0: none does), and when it began."""

    position: Mark
    commit_ns: int
    sync_ns: int


class Tail:
    """Where the journal is written. `group` has the tickets; `held` the segments; `state` what was said by what is written."""

    def __init__(
        self,
        directory: Directory,
        lock: AbstractContextManager[object],
        clock: Clock,
        *,
        durability: Durability,
        interval_s: float,
        segment_bytes: int,
    ) -> None:
        self.directory = directory
        self.durability = durability
        self.segment_bytes = segment_bytes
        self.lock = lock
        self.group = GroupCommit(lock, self._write, self._sync_commit, self._after_commit)
        self._clock = clock
        self.meter = Meter()
        self._now_ns = nanoseconds_of(clock)
        self._began_ns = -1  # when the frame was begun that is to be synced; below 0 if there is none
        self._under_way: UnderWay
        self._is_whole = True  # nothing has failed that makes what is on the disk uncertain
        self._interval_s = interval_s
        self._sync_lock = threading.Lock()
        self._dirty = threading.Event()
        self._stopped = threading.Event()
        self._syncer: threading.Thread | None = None
        self.written = 0  # bytes of rows, since it was opened
        self._synced = 0  # how many of them were synced, or are about to be
        self.promised = 0  # bytes that somebody was told he has room for, and has not appended yet
        self.held: Holdings
        self.state: State
        self._mark_file: MarkFile

    # --- beginning ---

    def begin(self, recovery: Recovery) -> None:
        """Go on where the last owner ended, in an epoch of our own."""
        self._adopt(recovery)
        self._begin_epoch(recovery.losses())
        if self.durability == "interval":
            self._start_syncer()

    def _adopt(self, recovery: Recovery) -> None:
        self.state = recovery.state
        self.sequence = recovery.sequence
        self.time_us = max((info.index.newest for info in recovery.infos), default=0)
        self.epoch = recovery.epoch + 1
        self.held = Holdings(
            self.directory,
            self.lock,
            recovery.infos,
            recovery.free,
            recovery.next_number,
            self.segment_bytes,
        )
        last = recovery.infos[-1] if recovery.infos else None
        if last is None or last.sealed:
            draft = self._draft()
            self.held.adopt(draft)  # first, so that it is closed with the rest if publishing fails
            self.held.publish(draft)
        else:
            self.held.go_on(last)
        self.top_up()

    def _begin_epoch(self, losses: Sequence[Rows]) -> None:
        """A synced frame that begins an epoch: from here on, nothing that an earlier owner handed out is valid.

        It accounts for damage that was just found, so that later owners tell old damage from new.
        """
        files = self.directory.files
        self._mark_file = MarkFile(files, self.directory.mark)
        self.durable = Mark(0, 0, 0, 0, 0)
        for rows in losses:
            rows.prepare(alone=False)
        merged = merge(losses)
        for start in range(0, max(len(merged), 1), limits.RECORDED_AT_ONCE):
            self._commit_frame(merged[start : start + limits.RECORDED_AT_ONCE])
        self._sync()
        self._mark_file.sync()
        files.sync_directory(self.directory.path)

    # --- room (the caller holds the lock) ---

    def has_room(self, size: int) -> bool:
        """Whether rows of `size` bytes, of any kind, surely fit; without the lock, for a caller who is alone in appending."""
        room = self.held.active.room() - self.group.pending_bytes
        return (
            room >= size + limits.RESERVE_BYTES
            and size <= limits.FRAME_BYTES_MAX
            and self.group.failure is None
        )

    def promise(self, size: int) -> bool:
        """Whether rows of `size` bytes surely fit, and will when they are appended; without the lock, for one caller at a time."""
        self.promised = size  # first: from here on a segment that follows has room for them
        fits = self.has_room(size)
        if not fits:
            self.promised = 0
        return fits

    def take_room(self, kinds: Sequence[Kind], size: int, *, promised: bool = False) -> None:
        """Make sure that rows of these kinds, of `size` bytes, can be written, leaving what they must leave.

        As long as the disk has room the whole reserve is left, whatever the rows are. What was promised is kept for whom it was promised; should
        somebody outside have filled the disk meanwhile, he gets it out of the reserve.
        """
        if promised:
            self.promised = max(0, self.promised - size)
        if self.has_room(size + self.promised) or self._made_room(size + self.promised):
            return
        floor = 0
        for kind in kinds:
            floor = max(floor, FLOORS.get(kind, limits.RESERVE_BYTES))
        if promised:
            floor = limits.RESERVE_LAST_BYTES
        wanted = self.group.pending_bytes + self.promised + size + floor
        active = self.held.active
        while active.room() < wanted:
            try:
                active.make_room(wanted, to_the_last_byte=floor < limits.RESERVE_BYTES)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    self.group.fail(error)
                    raise self.failure() from error
                if not self.held.give_space_back():
                    raise self._full(size, floor) from error

    def _made_room(self, size: int) -> bool:
        try:
            self.held.active.make_room(self.group.pending_bytes + size + limits.RESERVE_BYTES)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self.group.fail(error)
                raise self.failure() from error
            return False
        return True

    def _full(self, size: int, floor: int) -> DiskFull:
        return DiskFull(
            f"no room for {size} more bytes on the disk of {self.directory.path}: nothing was written. Make room"
            + (
                ", or consume: acknowledging still works, and then cleaning gives space back"
                if floor == limits.RESERVE_BYTES
                else ": even what was reserved for acknowledging is used up"
            )
        )

    def top_up(self) -> None:
        """Take room for what was queued while rotating. On a full disk, what was taken with the draft must do."""
        try:
            self.held.active.make_room(self.spoken_for + limits.RESERVE_BYTES)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    @property
    def spoken_for(self) -> int:
        """Bytes that are queued or promised."""
        return self.group.pending_bytes + self.promised

    def failure(self) -> PenstockError:
        """What everything is refused with, to be raised."""
        return fresh_copy(self.group.failure or JournalFailed("the journal failed"))

    # --- writing (the leader) ---

    def _write(self, batch: list[Ticket]) -> BaseException | None:
        """Write one frame for all of the batch."""
        rows = batch[0].rows if len(batch) == 1 else [r for ticket in batch for r in ticket.rows]
        # What is only written is not measured: that would take a part of the time that it takes.
        if self._began_ns < 0 and rows and _is_synced(batch):
            self._began_ns = self._now_ns()
        interrupted = self._commit_frame(rows) if rows else None
        for ticket in batch:
            ticket.sequence = self.sequence
        if self.durability == "interval":
            self._dirty.set()
        elif self.written - self._synced >= limits.WRITE_BEHIND_BYTES and self.durability == "os":
            self._synced = self.written  # asked for once
            with suppress(OSError):  # without a thread, the commit that fills the segment waits for all of it
                self._start_syncer()
            self._dirty.set()
        return interrupted

    def _commit_frame(self, rows: Sequence[Rows]) -> BaseException | None:
        """Write a frame, then take in what it says. The only place where a sequence number is given."""
        held = self.held
        active = held.active
        sequence = self.sequence + 1
        time_us = self._clock.now_us()
        if time_us < self.time_us:
            time_us = self.time_us
        self.time_us = time_us
        content, interrupted = finishing(self._write_frame, rows, sequence, time_us)
        with self.lock:
            active.advance(content, sequence, time_us, self.epoch)
            self.written += content.bytes
            if content.messages:
                counted = self.meter.messages
                counted.total += content.messages
                counted.buckets[content.messages.bit_length()] += 1
            held.info.end = active.end
            self.sequence = sequence
            self.state.apply(content.spans, content.sections)
        return interrupted

    def _write_frame(self, rows: Sequence[Rows], sequence: int, time_us: int) -> Body:
        """Write the commit behind the last frame, and change nothing else."""
        content = frames.body(merge(rows) if len(rows) > 1 else rows)
        self.held.active.write(content, sequence, time_us, self.epoch)
        return content

    # --- syncing ---

    def position(self) -> Mark:
        """Up to where frames are written. The caller holds the lock, or leads."""
        active = self.held.active
        return Mark(self.sequence, active.label.number, active.end, self.time_us, self.epoch)

    def _sync_commit(self) -> BaseException | None:
        interrupted = finishing(self._sync)[1]
        if self._began_ns >= 0:
            self._note(self.meter.commits, self._began_ns)
            self._began_ns = -1
        return interrupted

    def _note(self, counted: Histogram, began_ns: int) -> None:
        taken_ns = self._now_ns() - began_ns
        counted.total += taken_ns
        counted.buckets[taken_ns.bit_length()] += 1

    def _sync(self) -> None:
        """Sync what has been written, then move the mark. A failure of either is the journal's, before anybody else may sync."""
        with self._sync_lock:
            with self.lock:
                position, active = self.position(), self.held.active
                if self.group.failure is not None and not self._stopped.is_set():
                    raise fresh_copy(self.group.failure)
            if position.sequence > self.durable.sequence:
                try:
                    if self.durability == "commit":
                        active.prefill()
                    began_ns = self._now_ns()
                    active.sync()
                    self._note(self.meter.syncs, began_ns)
                    self._advance_mark(position)
                except OSError as error:
                    self._fail(error)
                    raise

    def _fail(self, error: OSError) -> None:
        """A sync failed: the journal does, unless it is being closed, and nothing of that file is synced again in either case."""
        self._is_whole = False
        self.group.fail(error)

    # --- syncing by the kernel, for a loop that leads ---

    def begin_sync(self, kernel: KernelSync) -> bool:
        """Have the kernel sync what has been written; False if all of it is. Nobody else syncs or rotates until `end_sync`."""
        self._sync_lock.acquire()
        try:
            with self.lock:
                position, active = self.position(), self.held.active
                if self.group.failure is not None:
                    raise fresh_copy(self.group.failure)
            if position.sequence > self.durable.sequence:
                if self.durability == "commit":
                    active.prefill()
                self._under_way = UnderWay(position, self._began_ns, self._now_ns())
                self._began_ns = -1
                active.begin_sync(kernel)
                return True
        except BaseException:
            self._sync_lock.release()
            raise
        self._sync_lock.release()
        return False

    def end_sync(self, kernel: KernelSync) -> None:
        """Wait until that is done, then move the mark."""
        position, commit_ns, sync_ns = self._under_way
        try:
            self.directory.files.end_sync(kernel)
            self._note(self.meter.syncs, sync_ns)
            self._advance_mark(position)
            if commit_ns >= 0:
                self._note(self.meter.commits, commit_ns)
        except OSError as error:
            self._fail(error)
            raise
        finally:
            self._sync_lock.release()

    @property
    def is_full(self) -> bool:
        """Whether the next segment is to be begun."""
        return self.held.active.end >= self.segment_bytes

    def host(self, loop: Loop) -> bool:
        """Have a loop, which runs in this thread, lead what comes from it; whether that can be."""
        kernel = KernelSync.open()
        if kernel is None:
            return False
        if self.group.host is not None:
            self.group.host.finish()
            self.group.host.close()
        self.group.host = Host(self.group, loop, Hosted(self, kernel))
        return True

    def _advance_mark(self, mark: Mark) -> None:
        self._mark_file.write(mark)
        self.durable = mark

    def _start_syncer(self) -> None:
        if self._syncer is None:
            syncer = threading.Thread(target=self._keep_syncing, name="penstock-sync", daemon=True)
            try:
                syncer.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from error
            self._syncer = syncer

    def _keep_syncing(self) -> None:
        """The thread behind `interval`, which syncs a little after something was written, and behind `os`.

        There it syncs whenever much was written. Else the commit that fills a segment would have to wait for all of it.
        """
        while not self._stopped.is_set() and self.group.failure is None:
            self._dirty.wait()
            if self.durability == "interval":
                self._stopped.wait(self._interval_s)
            self._dirty.clear()
            if not self._stopped.is_set():
                with suppress(
                    OSError, PenstockError
                ):  # it is the journal's failure, which everybody hears of
                    self._sync()

    # --- rotation (the leader) ---

    def _after_commit(self) -> None:
        if self.is_full:
            self.rotate()

    def _draft(self) -> Draft:
        room = self.spoken_for + limits.RESERVE_BYTES
        return self.held.draft(self.sequence + 1, epoch=self.epoch, now_us=self._clock.now_us(), room=room)

    def rotate(self) -> None:
        """Seal the active segment and go on in the next one. On a full disk there is no next one: then go on in this one."""
        try:
            draft = self._draft()
        except OSError as error:
            if error.errno in NO_ROOM:
                return
            raise
        old, info = self.held.active, self.held.info
        try:
            with self._sync_lock:
                if self.group.failure is not None:
                    raise fresh_copy(self.group.failure)
                old.seal(sequence=self.sequence + 1, time_us=self.time_us, epoch=self.epoch)
                self.held.publish(draft)
                with self.lock:
                    info.end, info.next_sequence = old.end, self.sequence + 1
                    with suppress(OSError):  # the room that it had left is what the next one may need
                        old.trim()
                    self.held.adopt(draft)
                    self.top_up()
                self._advance_mark(self.position())
        except BaseException:
            (draft.writer if self.held.active is old else old).close()
            raise
        self._finish(old, info)

    def _finish(self, old: Writer, info: SegmentInfo) -> None:
        """Say what the segment holds, which can be done again by recovery."""
        try:
            self.held.write_summary(info)
        except OSError:
            return
        finally:
            old.close()

    # --- the end ---

    def stop(self, why: PenstockError) -> bool:
        """Refuse what comes, and wait for what is under way; whether the journal is whole, so that `sync_all` may follow."""
        self._is_whole = self._is_whole and self.group.failure is None
        self.group.fail(why)
        self.group.stop()
        self._stopped.set()
        self._dirty.set()
        if self._syncer is not None:
            self._syncer.join()
        return self._is_whole and self.group.failure is why

    def sync_all(self) -> None:
        """Sync a last time, the mark included."""
        self._sync()
        self._mark_file.sync()

    def close(self) -> None:
        """Let go of the files, as far as they were opened."""
        for held in (getattr(self, "held", None), getattr(self, "_mark_file", None)):
            if held is not None:
                held.close()

    def orphan(self, lock: AbstractContextManager[object], why: PenstockError) -> None:
        """In a forked child: nothing of the parent's may be touched or waited for."""
        self.lock = self.held.lock = lock
        self._sync_lock = threading.Lock()
        self._stopped.set()
        self.group.orphan(lock, why)


def _is_synced(batch: list[Ticket]) -> bool:
    """Whether somebody waits for a batch to be synced."""
    return batch[-1].sync or batch[0].sync or (len(batch) > 2 and any(ticket.sync for ticket in batch))


class Hosted:
    """The end of a journal, as the loop that leads there has it synced."""

    def __init__(self, tail: Tail, kernel: KernelSync) -> None:
        self._tail = tail
        self._kernel = kernel
        self.bell = kernel.bell

    @property
    def is_full(self) -> bool:
        return self._tail.is_full

    def begin_sync(self) -> bool:
        return self._tail.begin_sync(self._kernel)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        return self._kernel.has_ended(timeout_s)

    def end_sync(self) -> None:
        self._tail.end_sync(self._kernel)

    def hush(self) -> None:
        self._kernel.hush()

    def let_go(self) -> None:
        self._kernel.close()
