"""The segments that the owner of a journal holds: those that are sealed, the one that is written, and used files to be recycled.

What always holds: a number is given once; a file is in one of three states (part of the journal, waiting to be recycled, being made ready
as a draft), and moves between them by one rename; what is listed here is there under its name, so a reader that finds a listed file
gone knows that nobody dropped it.

The caller sees to what goes around it: syncing, the mark, and that what a dropped segment held is on record.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress

from penstock import limits
from penstock.journal import summary as summaries
from penstock.journal.directory import FREE, SUMMARY, Directory
from penstock.journal.index import SegmentIndex
from penstock.journal.segment import Label, Writer
from penstock.journal.view import SegmentInfo


class Draft:
    """A segment that is made ready under another name: a new file, or the used one with the number `recycle`."""

    def __init__(self, writer: Writer, recycle: int | None) -> None:
        self.writer = writer
        self.recycle = recycle


class Holdings:
    """What the owner holds. `lock` guards it; `active` is the segment that is written, and `info` what is known of it."""

    def __init__(
        self,
        directory: Directory,
        lock: AbstractContextManager[object],
        infos: list[SegmentInfo],
        free: list[int],
        number: int,
        segment_bytes: int,
    ) -> None:
        self._directory = directory
        self._files = directory.files
        self.lock = lock
        self._infos = {info.number: info for info in infos}
        self._free = free
        self._number = number
        self._segment_bytes = segment_bytes
        self.active: Writer
        self.info: SegmentInfo

    # --- the one that is written ---

    def go_on(self, last: SegmentInfo) -> None:
        """Write on in a segment that exists."""
        self.active = Writer.reopened(self._directory, last.label, last.end)
        if self.active.room() > 0:
            self.active.claim_room()
        self.active.index = last.index
        self.info = last

    def draft(self, first_sequence: int, *, epoch: int, now_us: int, room: int) -> Draft:
        """Make the next segment ready, and sync it: on a full disk there is then none, and nothing has happened."""
        label = Label(self._number, self._files.random(), first_sequence, now_us, epoch)
        while True:
            with self.lock:  # taken out of the list at once, so that nobody gives its space back meanwhile
                recycle = self._free.pop(0) if self._free else None
            try:
                return Draft(self._drafted(label, recycle, room), recycle)
            except FileNotFoundError:
                if recycle is None:  # a used file that somebody removed is none; take the next
                    raise
            except BaseException:
                with self.lock:
                    self._free += [recycle] if recycle is not None else []
                raise

    def _drafted(self, label: Label, recycle: int | None, room: int) -> Writer:
        writer = Writer.draft(self._directory, label, recycle=recycle, reserve=limits.RESERVE_BYTES)
        try:
            writer.make_room(room)
            writer.sync()
        except BaseException:
            writer.close()
            writer.discard(self._directory, recycle=recycle)
            raise
        return writer

    def publish(self, draft: Draft) -> None:
        """Give a draft its name. From here on it is part of the journal, though nothing is written to it yet."""
        draft.writer.publish(self._directory, recycle=draft.recycle)

    def adopt(self, draft: Draft) -> None:
        """Write on in a draft that was published."""
        writer = draft.writer
        with self.lock:
            self.active = writer
            self._number = writer.label.number + 1
            self.info = SegmentInfo(writer.label, writer.end, writer.index, None, [])
            self._infos[writer.label.number] = self.info

    def close(self) -> None:
        if hasattr(self, "active"):
            self.active.close()

    # --- all of them ---

    def segments(self) -> list[SegmentInfo]:
        """Oldest first; the last one is being written."""
        with self.lock:
            return [self._infos[number] for number in sorted(self._infos)]

    def get(self, number: int) -> SegmentInfo | None:
        return self._infos.get(number)

    @property
    def free_segments(self) -> int:
        return len(self._free)

    def give_space_back(self) -> bool:
        """Remove a file that waits to be recycled; False if there is none. The lock is held."""
        if not self._free:
            return False
        with suppress(OSError):
            self._files.unlink(self._directory.file(self._free.pop(), FREE))
        return True

    def write_summary(self, info: SegmentInfo) -> None:
        """Say what a sealed segment holds."""
        found = summaries.of(info.label, info.end, info.next_sequence or 0, info.index, info.damage)
        summaries.write(self._directory, found)

    def drop(self, info: SegmentInfo) -> None:
        """Give a sealed segment's space back, or keep its file to be recycled. What it held must have been recorded."""
        with self.lock:
            del self._infos[info.number]
            recycle = len(self._free) < limits.RECYCLED_SEGMENTS_MAX and info.end >= self._segment_bytes
        path = self._directory.segment(info.number)
        try:
            if recycle:
                self._files.rename(path, self._directory.file(info.number, FREE))
            else:
                self._files.unlink(path)
        except BaseException:
            with self.lock:
                self._infos[info.number] = info
            raise
        if self._directory.file(info.number, SUMMARY).exists():
            self._files.unlink(self._directory.file(info.number, SUMMARY))
        self._files.sync_directory(self._directory.path)
        if recycle:
            with self.lock:
                self._free.append(info.number)

    def replace(self, info: SegmentInfo, rewritten: Writer) -> None:
        """Put a sealed, synced draft in a segment's place."""
        index: SegmentIndex = rewritten.index
        new = SegmentInfo(rewritten.label, rewritten.end, index, info.next_sequence, [])
        with self.lock:  # a reader that finds the old file gone looks here, and must find the new one
            rewritten.rename(self._directory, recycle=None)
            self._infos[info.number] = new
        self._files.sync_directory(self._directory.path)
        self.write_summary(new)
