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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Final, Protocol

from penstock import limits
from penstock.errors import MaintenanceFailed
from penstock.journal import labels
from penstock.journal import mark as marks
from penstock.journal import snapshot as snapshots
from penstock.journal import summary as summaries
from penstock.journal.damage import of_bad
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.index import SegmentIndex
from penstock.journal.mark import Mark
from penstock.journal.segment import START, Bad, Label, Scan, decode_label
from penstock.journal.summary import Summary
from penstock.model.damage import ROT, Damage

#: The identity of a file that is not there.
GONE: Final = (-1, -1, -1)


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
        self._identities: dict[int, tuple[int, int, int]] = {}
        self.marked = True  # whether the mark was there, and whole, at the last look
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
        for _ in range(limits.LOOKS_MAX):
            try:
                return self._refresh()
            except Moved:
                continue
        raise MaintenanceFailed(
            f"{self.directory.path} changed in each of {limits.LOOKS_MAX} looks at it: read it again when its owner is less busy"
        )

    def _refresh(self) -> Mark:
        """In the order that makes what is found consistent: the mark, then the names."""
        mark = self._mark()
        numbers = [n for n in self.directory.contents().segments if mark is None or n <= mark.segment]
        # If the mark has not moved on meanwhile, the segment that it names is really not there.
        if mark is not None and mark.segment not in numbers and self._mark() != mark:
            raise Moved
        identities = {number: self._identity(number) for number in numbers}
        chain = self._labels(numbers, mark, identities)
        for number in self._infos.keys() - {label.number for label in chain}:
            del self._infos[number]
        for label, above in zip_longest(chain, chain[1:]):
            self._look(label.number, label, mark, above.first_sequence if above is not None else None)
        # Only now: a look that was spoilt halfway has not taken in every file that it saw exchanged.
        self._identities = identities
        self.marked = mark is not None
        return mark if mark is not None else self._last_sealed()

    def _mark(self) -> Mark | None:
        return marks.read_beside_owner(self.directory.files, self.directory.mark)

    def _labels(
        self, numbers: list[int], mark: Mark | None, identities: dict[int, tuple[int, int, int]]
    ) -> list[Label]:
        """The headers that can be believed. Those of sealed segments whose file is as it was are not read again."""
        known = {
            number: info.label
            for number, info in self._infos.items()
            if info.sealed and identities.get(number, GONE) == self._identities.get(number)
        }
        chain: list[Label] = []
        for one in labels.load(self.directory, numbers, mark, known=known):
            if one.label is not None:
                chain.append(one.label)
            if one.damage is not None:
                self.found(one.damage)
        return chain

    def _identity(self, number: int) -> tuple[int, int, int]:
        try:
            return self.directory.files.identity(self.directory.segment(number))
        except FileNotFoundError:
            return GONE

    def _last_sealed(self) -> Mark:
        """Without a mark, only what is sealed is known to be synced."""
        for info in reversed(self.segments()):
            if info.next_sequence is not None:
                return Mark(
                    info.next_sequence - 1, info.number, info.end, info.index.newest, info.index.epoch
                )
        return Mark(0, 0, 0, 0, 0)

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
            info = self._infos[number] = self._begun(label, mark) or SegmentInfo(
                label, START, SegmentIndex(), None, []
            )
        if not info.sealed:
            self._scan(info, mark, above)

    def _begun(self, label: Label, mark: Mark | None) -> SegmentInfo | None:
        """A segment that is being written, as far as a snapshot knows what it holds: only the rest need be looked at."""
        for sequence in reversed(self.directory.contents().snapshots if mark is not None else []):
            found = snapshots.read(self.directory, sequence)
            if found is None or mark is None or found.sequence > mark.sequence:
                continue
            known = found.active
            if (known.number, known.generation) != (label.number, label.generation) or known.damage:
                return None
            return SegmentInfo(label, known.end, summaries.index_of(known), None, [])
        return None

    def _scan(self, info: SegmentInfo, mark: Mark | None, above: int | None) -> None:
        """Look at what has been added to a segment, up to the mark."""
        files = self.directory.files
        with opened(self.directory, info.label) as fd:
            size = files.size(fd)
            limit = mark.end if mark is not None and mark.segment == info.number else size
            scan = Scan(files, fd, info.label, position=info.end, limit=min(limit, size), stop_sequence=above)
            for item in scan:
                if isinstance(item, Frame):
                    info.index.add(item.header, item.spans())
                    self._progress(item.header.bytes)
                elif generation_now(files, fd) == info.label.generation:
                    self._require_mark(mark, info)
                    self._note(info, item)
            info.end = scan.end
            if scan.sealed:
                info.next_sequence = above if above is not None else info.index.last_sequence + 1

    def _require_mark(self, mark: Mark | None, info: SegmentInfo) -> None:
        """`Moved` if a segment is looked at by a mark that the owner has left behind: it may have rewritten the segment since."""
        if mark is None or mark.segment != info.number:
            return
        now = self._mark()
        if now is not None and now.segment != mark.segment:
            raise Moved

    def _note(self, info: SegmentInfo, bad: Bad) -> None:
        damage = of_bad(bad, ROT)
        info.damage.append(damage)
        self.found(damage)


@contextmanager
def opened(directory: Directory, label: Label) -> Iterator[int]:
    """A segment's file, open for reading; `Moved` if it is gone or has begun another life."""
    files = directory.files
    try:
        fd = files.open(directory.segment(label.number))
    except FileNotFoundError as error:
        raise Moved from error
    try:
        require_generation(files, fd, label)
        yield fd
    finally:
        files.close(fd)


def require_generation(files: Files, fd: int, label: Label) -> None:
    """`Moved` if an open file has begun another life. One whose header cannot be read has not."""
    if generation_now(files, fd) not in (label.generation, None):
        raise Moved


def generation_now(files: Files, fd: int) -> int | None:
    """The generation that an open segment has now; None if its header cannot be read."""
    label = decode_label(files.read(fd, START, 0))
    return label.generation if label is not None else None
