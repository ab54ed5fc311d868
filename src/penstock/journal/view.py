"""The journal as a reader sees it: which segments there are, what they hold, and up to where it is synced.

Theory of operation
-------------------
Reading is the same from inside the owner and from another process; only where the knowledge comes from differs. The owner
has it in memory (`journal.OwnerView`). Any other process (`DirectoryView`) has the files: the mark says where to stop, summaries
say what sealed segments hold, and the segment that is being written is scanned as far as the mark, a little further each time.

A reader takes no lock, so the owner may rotate, rewrite, drop and recycle segments under it. It is safe because

- it reads only below the mark, and nothing below the mark is ever written again under the same generation;
- it checks checksum, generation and position on its own copy of the bytes, and never maps a file;
- a file is renamed, and given a new generation on its first bytes, before anything else in it is overwritten. So when a frame looks bad,
  the reader looks at the header again: another generation, and the file has a new life (`Moved`: look at the directory
  again and go on from the next offset); the same one, and it is rot.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from penstock.errors import CorruptJournal
from penstock.journal import mark as marks
from penstock.journal import summary as summaries
from penstock.journal.damage import HEADER, ROT, Damage, of_bad
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.index import SegmentIndex
from penstock.journal.mark import Mark
from penstock.journal.segment import START, Bad, Label, Scan, decode_label, read_label
from penstock.journal.summary import Summary


class Moved(Exception):
    """The file has been dropped, rewritten or recycled since the view was made."""


class SegmentInfo:
    """One segment: what its header says, where its frames end, what they hold and what of them is damaged.

    `next_sequence` is None while it is being written.
    """

    __slots__ = ("damage", "end", "index", "label", "next_sequence")

    def __init__(
        self, label: Label, end: int, index: SegmentIndex, next_sequence: int | None, damage: list[Damage]
    ) -> None:
        self.label = label
        self.end = end
        self.index = index
        self.next_sequence = next_sequence
        self.damage = damage

    @classmethod
    def from_summary(cls, label: Label, summary: Summary) -> SegmentInfo:
        return cls(
            label, summary.end, summaries.index_of(summary), summary.next_sequence, list(summary.damage)
        )

    @property
    def number(self) -> int:
        return self.label.number

    @property
    def sealed(self) -> bool:
        return self.next_sequence is not None

    def positions(self, log: int, *, offset: int | None = None, time_us: int | None = None) -> array[int]:
        """The positions of a log's entries from that offset or time on."""
        entry = self.index.logs[log]
        start = entry.entry_of_offset(offset or 0) if time_us is None else entry.entry_of_time(time_us)
        return entry.positions[start:]


class View(Protocol):
    """What reading needs to know."""

    directory: Directory
    #: Held while an index that may be growing is looked at.
    guard: AbstractContextManager[object]

    def refresh(self) -> Mark:
        """Look again; the mark up to which may be read."""

    def segments(self) -> list[SegmentInfo]:
        """The segments, oldest first."""

    def found(self, damage: Damage) -> None:
        """Reading came across damage."""


class DirectoryView:
    """A journal's directory, seen from a process that does not own it."""

    def __init__(
        self, path: Path, files: Files | None = None, progress: Callable[[int], None] | None = None
    ) -> None:
        self.directory = Directory(files or Files(), path)
        self.guard: AbstractContextManager[object] = nullcontext()
        self.damage: list[Damage] = []
        self._infos: dict[int, SegmentInfo] = {}
        self._progress = progress or (lambda _bytes: None)

    def segments(self) -> list[SegmentInfo]:
        return [self._infos[number] for number in sorted(self._infos)]

    def found(self, damage: Damage) -> None:
        if not any(
            known.segment == damage.segment and known.position == damage.position for known in self.damage
        ):
            self.damage.append(damage)

    def refresh(self) -> Mark:
        """Look at the directory again, and again if a segment was exchanged meanwhile."""
        while True:
            try:
                return self._refresh()
            except Moved:
                continue

    def _refresh(self) -> Mark:
        """In the order that makes what is found consistent: the mark, then the names."""
        while True:
            mark = self._mark()
            numbers = [n for n in self.directory.contents().segments if mark is None or n <= mark.segment]
            if mark is None or mark.segment in numbers:
                break
            if self._mark() == mark:  # it did not move on meanwhile: the segment it names is really not there
                break
        labels = {number: label for number in numbers if (label := self._label(number)) is not None}
        for number in self._infos.keys() - labels.keys():
            del self._infos[number]
        for number, label in labels.items():
            self._look(number, label, mark, _first_above(labels, number))
        return mark if mark is not None else self._last_sealed()

    def _mark(self) -> Mark | None:
        for _ in range(100):  # a mark that was read while it was being written is whole the next time
            if (mark := marks.read(self.directory.files, self.directory.mark)) is not None:
                return mark
            if not self.directory.mark.exists():
                return None
        return None

    def _last_sealed(self) -> Mark:
        """Without a mark, only what is sealed is known to be synced."""
        for info in reversed(self.segments()):
            if info.next_sequence is not None:
                return Mark(
                    info.next_sequence - 1, info.number, info.end, info.index.newest, info.index.epoch
                )
        return Mark(0, 0, 0, 0, 0)

    def _label(self, number: int) -> Label | None:
        try:
            fd = self.directory.files.open(self.directory.segment(number))
        except FileNotFoundError:
            return None
        try:
            label, intact = read_label(self.directory.files, fd, number)
            if not (label and intact) and not self.directory.segment(number).exists():
                return None  # it was dropped, and is being recycled
            if label is None:
                self.found(Damage(number, 0, self.directory.files.size(fd), ROT))
            elif not intact:
                self.found(Damage(number, 0, START, HEADER))
            return label
        finally:
            self.directory.files.close(fd)

    def _look(self, number: int, label: Label, mark: Mark | None, above: int | None) -> None:
        info = self._infos.get(number)
        if info is not None and info.label.generation != label.generation:
            info = None
        if info is None or not info.sealed:
            summary = summaries.read(self.directory, number)
            if summary is not None and summary.generation == label.generation:
                self._infos[number] = SegmentInfo.from_summary(label, summary)
                for damage in summary.damage:
                    self.found(damage)
                return
        if info is None:
            info = self._infos[number] = SegmentInfo(label, START, SegmentIndex(), None, [])
        if not info.sealed:
            self._scan(info, mark, above)

    def _scan(self, info: SegmentInfo, mark: Mark | None, above: int | None) -> None:
        """Look at what has been added to a segment, up to the mark."""
        files = self.directory.files
        try:
            fd = files.open(self.directory.segment(info.number))
        except FileNotFoundError as error:
            raise Moved from error
        try:
            if current_generation(files, fd) not in (info.label.generation, None):
                raise Moved
            size = files.size(fd)
            limit = mark.end if mark is not None and mark.segment == info.number else size
            scan = Scan(files, fd, info.label, position=info.end, limit=min(limit, size), stop_sequence=above)
            for item in scan:
                if isinstance(item, Frame):
                    info.index.add(item.header, item.spans())
                    self._progress(item.header.bytes)
                elif current_generation(files, fd) == info.label.generation:
                    self._note(info, item)
            info.end = scan.end
            if scan.sealed:
                info.next_sequence = above if above is not None else info.index.last_sequence + 1
        finally:
            files.close(fd)

    def _note(self, info: SegmentInfo, bad: Bad) -> None:
        damage = of_bad(bad, ROT)
        info.damage.append(damage)
        self.found(damage)


def _first_above(labels: dict[int, Label], number: int) -> int | None:
    above = [n for n in labels if n > number]
    return labels[min(above)].first_sequence if above else None


def current_generation(files: Files, fd: int) -> int | None:
    """The generation that an open segment has now; None if its header cannot be read."""
    label = decode_label(files.read(fd, START, 0))
    return label.generation if label is not None else None


def require_journal(directory: Directory) -> None:
    """A directory without segments is not a journal."""
    if not directory.path.is_dir() or not directory.contents().segments:
        raise CorruptJournal(f"{directory.path} is not a journal: there are no segments in it")
