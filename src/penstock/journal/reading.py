"""Reading a journal: by log and offset, by time, or frame by frame, forwards, in batches of columns.

A batch is a section, or the part of one from the offset that was asked for: its columns are views into the copy of the frame that was
read, so nothing is decoded that nobody looks at. Reading stops at the mark; reading again later goes on.
What is damaged is reported to the view and skipped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock import limits
from penstock.errors import InvalidArgument, MaintenanceFailed
from penstock.journal import snapshot as snapshots
from penstock.journal.damage import of_bad
from penstock.journal.directory import checked_path
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.kinds import MESSAGES, Kind
from penstock.journal.mark import Mark
from penstock.journal.section import Section
from penstock.journal.segment import START, Bad, Label, Scan
from penstock.journal.snapshot import Snapshot
from penstock.journal.view import DirectoryView, Moved, SegmentInfo, View, opened, require_generation
from penstock.model.damage import MISSING, ROT, Damage


class Batch:
    """Consecutive messages of one log, as columns.

    >>> # for batch in journal.read(log=1, offset=0):
    >>> #     for offset, payload in zip(batch.offsets, batch.values("payload")): ...
    """

    __slots__ = ("section", "start", "stop")

    def __init__(self, section: Section, start: int, stop: int) -> None:
        self.section = section
        self.start = start
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def log(self) -> int:
        return self.section.log

    @property
    def offsets(self) -> Sequence[int]:
        return self.values("offset")

    def values(self, name: str) -> Sequence[Any]:
        """A value for each message of the batch."""
        values = self.section.values(name)
        return values if len(self) == self.section.rows else values[self.start : self.stop]


class JournalReader:
    """A journal read from outside, by any number of processes, while its owner writes it. It needs no lock and changes nothing.

    >>> import tempfile; from penstock.journal import Journal, messages
    >>> with tempfile.TemporaryDirectory() as path, Journal(path) as owner:
    ...     _ = owner.commit([messages(1, [b"a", b"b"], ids=range(2), timestamp=0)])
    ...     reader = JournalReader(path)
    ...     [bytes(payload) for batch in reader.read(1) for payload in batch.values("payload")]
    [b'a', b'b']
    """

    def __init__(self, path: str | Path, files: Files | None = None) -> None:
        self._view = DirectoryView(checked_path(path), files)
        self._view.directory.require_journal()

    def read(self, log: int, offset: int = 0) -> Iterator[Batch]:
        """The messages of a log from an offset on, in batches of columns, up to what is synced now."""
        return batches(self._view, log, offset)

    def frames(self, after: int = 0, kinds: Collection[Kind] = ()) -> Iterator[Frame]:
        """Every synced commit behind a sequence number; segments that hold none of these kinds of rows, if any are named, are skipped."""
        return frames(self._view, after, kinds)

    def segments(self) -> list[SegmentInfo]:
        """What each segment holds, oldest first, as of the last look at the mark."""
        return self._view.segments()

    def snapshots(self) -> list[int]:
        """The sequence numbers of the snapshots that are there."""
        return self._view.directory.contents().snapshots

    def snapshot(self, sequence: int) -> Snapshot | None:
        """The snapshot of a sequence number; None if it is damaged, or was replaced by a newer one."""
        return snapshots.read(self._view.directory, sequence)

    def stretch(self, stretch: Stretch) -> Iterator[Frame]:
        """The commits of a stretch, wherever they are by now."""
        return stretch_frames(self._view, stretch)

    def offset_at(self, log: int, time_us: int) -> int | None:
        """The offset of a log's first message that is not older than a time; None if there is none yet."""
        return offset_at(self._view, log, time_us)

    def epoch_of(self, log: int, offset: int) -> int | None:
        """In which of the journal's lives a message was written; None if it is not there."""
        return epoch_of(self._view, log, offset)

    def mark(self) -> Mark:
        """Up to where it is synced now."""
        return self._view.refresh()

    def unread(self) -> tuple[int, dict[int, int]] | None:
        """Without a mark, how far snapshots and unsealed segments go, which may not be read then.

        As of the last look.
        That is the last commit that they tell of, and of each log the next offset. None if there is
        a mark, or if they tell of nothing behind what is sealed.
        """
        if self._view.marked:
            return None
        mark = self.mark()
        found = [one for number in self.snapshots() if (one := self.snapshot(number)) is not None]
        last = max([one.sequence for one in found], default=0)
        ends = dict(found[-1].journal.next_offsets) if found else {}
        for info in self.segments():
            last = max(last, info.index.last_sequence)
            for log, entry in info.index.logs.items():
                ends[log] = max(ends.get(log, 0), entry.last + 1)
        return (last, ends) if last > mark.sequence else None

    def logs(self) -> dict[int, tuple[int, int]]:
        """The first and last offset that are there of each log."""
        self._view.refresh()
        found: dict[int, tuple[int, int]] = {}
        for info in self._view.segments():
            for log, entry in info.index.logs.items():
                found[log] = (found[log][0] if log in found else entry.first, entry.last)
        return found

    @property
    def damage(self) -> list[Damage]:
        """What reading came across so far."""
        return list(self._view.damage)


def batches(view: View, log: int, offset: int = 0) -> Iterator[Batch]:
    """The messages of a log from `offset` on, up to the mark."""
    require_number("a log's number", log)
    require_number("an offset", offset)
    return _batches(view, log, offset)


def require_number(what: str, value: object, *, least: int = 0) -> None:
    """Numbers are whole numbers, and most are not negative."""
    if type(value) is not int or value < least:
        raise InvalidArgument(f"{what} is a whole number, {least} or more, not {value!r}")


def _batches(view: View, log: int, offset: int) -> Iterator[Batch]:
    for _, section in _sections(view, log, offset):
        if section.span.last >= offset:
            yield _from(section, offset)
            offset = section.span.last + 1


def _sections(view: View, log: int, offset: int) -> Iterator[tuple[Frame, Section]]:
    """The sections that hold a log's messages from an offset on, each with its frame."""

    def wanted(info: SegmentInfo) -> bool:
        entry = info.index.logs.get(log)
        return entry is not None and entry.last >= offset

    def behind(info: SegmentInfo, mark: Mark) -> Iterator[Frame]:
        return _stretches(view, info, mark, log, offset)

    for frame in _frames_of(view, wanted, behind):
        for section in frame.sections:
            if section.log == log and section.kind is MESSAGES and section.span.last >= offset:
                yield frame, section
                offset = section.span.last + 1


def epoch_of(view: View, log: int, offset: int) -> int | None:
    """In which of the journal's lives a message was written; None if it is not there."""
    for frame, section in _sections(view, log, offset):
        return frame.header.epoch if offset in section.values("offset") else None
    return None


def frames(view: View, after: int = 0, kinds: Collection[Kind] = ()) -> Iterator[Frame]:
    """Every commit with a sequence number above `after`, up to the mark; without segments that hold none of some kinds of rows."""
    require_number("a sequence number", after)
    return _frames(view, after, kinds)


def _frames(view: View, after: int, kinds: Collection[Kind] = ()) -> Iterator[Frame]:
    def wanted(info: SegmentInfo) -> bool:
        return info.index.last_sequence > after and (
            not kinds or any(kind.number in info.index.kinds for kind in kinds)
        )

    def behind(info: SegmentInfo, mark: Mark) -> Iterator[Frame]:
        with view.guard:
            position = info.index.position_of(after + 1)
        return _scan(view, info, mark, START if position is None else position)

    for frame in _frames_of(view, wanted, behind):
        if frame.sequence > after:
            yield frame
            after = frame.sequence


class Stretch(NamedTuple):
    """Consecutive commits within one segment, by sequence numbers, and where they are in it: what somebody else is asked to read.

    A segment may be rewritten, dropped or recycled before that is done. Sequence numbers stay what they are, so the commits are then looked for
    by these, and what was dropped is not found.
    """

    label: Label
    position: int
    end: int
    first: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.end - self.position


def stretch_frames(view: View, stretch: Stretch) -> Iterator[Frame]:
    """The commits of a stretch: where they were, or wherever they are by now."""
    done = stretch.first - 1
    try:
        with opened(view.directory, stretch.label) as fd:
            for frame in _good(view, fd, stretch.label, stretch.position, stretch.end, stretch.stop):
                # Reading begins at an entry of the index, the stretch maybe behind it.
                if frame.sequence > done:
                    yield frame
                    done = frame.sequence
    except OSError as error:
        raise MaintenanceFailed(f"segment {stretch.label.number} cannot be read: {error}") from error
    except Moved:
        for frame in _frames(view, done):
            if frame.sequence >= stretch.stop:
                return
            yield frame


def offset_at(view: View, log: int, time_us: int) -> int | None:
    """The offset of the log's first message that is not older than a time; None if there is none yet."""
    require_number("a log's number", log)
    require_number("a time in microseconds", time_us, least=-limits.OFFSET_MAX)

    def wanted(info: SegmentInfo) -> bool:
        entry = info.index.logs.get(log)
        return entry is not None and entry.newest >= time_us

    for frame in _frames_of(view, wanted, lambda i, mark: _stretches(view, i, mark, log, time_us=time_us)):
        if (offset := _first_at(frame, log, time_us)) is not None:
            return offset
    return None


def _frames_of(
    view: View, wanted: Callable[[SegmentInfo], bool], of: Callable[[SegmentInfo, Mark], Iterator[Frame]]
) -> Iterator[Frame]:
    """The frames `of` each segment that is `wanted`, in order. When a file has moved, look again, and go on behind what is done."""
    mark = view.refresh()
    done = -1
    moved = True
    while moved:
        moved = False
        for info in view.segments():
            if not done < info.number <= mark.segment or not wanted(info):
                continue
            try:
                yield from of(info, mark)
                done = info.number
            except OSError as error:
                raise MaintenanceFailed(f"segment {info.number} cannot be read: {error}") from error
            except Moved:
                mark, gone = _look_again(view, info)
                done = info.number if gone else done
                moved = True
                break


def _look_again(view: View, info: SegmentInfo) -> tuple[Mark, bool]:
    """After a file moved: the new mark, and whether the segment is gone though nobody dropped it."""
    mark = view.refresh()
    same = any(
        i.number == info.number and i.label.generation == info.label.generation for i in view.segments()
    )
    gone = same and not _is_there(view, info)
    if gone:
        view.found(Damage(info.number, 0, info.end, MISSING, messages=info.index.messages))
    return mark, gone


def _is_there(view: View, info: SegmentInfo) -> bool:
    """Whether the file is there in the life that the view knows."""
    try:
        with opened(view.directory, info.label):
            return True
    except Moved:
        return False


def _from(section: Section, offset: int) -> Batch:
    if section.span.first >= offset:
        return Batch(section, 0, section.rows)
    return Batch(section, bisect_left(section.values("offset"), offset), section.rows)


def _first_at(frame: Frame, log: int, time_us: int) -> int | None:
    for section in frame.sections:
        if section.log == log and section.kind is MESSAGES and section.span.newest >= time_us:
            times = section.values("timestamp")
            row = next(i for i, time in enumerate(times) if time >= time_us)
            return int(section.values("offset")[row])
    return None


def _stretches(
    view: View, info: SegmentInfo, mark: Mark, log: int, offset: int | None = None, time_us: int | None = None
) -> Iterator[Frame]:
    """The frames among which a log's rows are, from an offset or a time on: jump from entry to entry where they are far apart."""
    with view.guard:
        positions = info.positions(log, offset=offset, time_us=time_us)
    at = 0
    while at < len(positions):
        for frame in _scan(view, info, mark, positions[at]):
            position = frame.header.position
            while at + 1 < len(positions) and positions[at + 1] <= position:
                at += 1
            if position - positions[at] < limits.INDEX_STRIDE_BYTES:
                yield frame
            elif at + 1 == len(positions):
                return
            elif positions[at + 1] - position > limits.READ_CHUNK_BYTES:
                break
        else:
            return
        at += 1


def _scan(view: View, info: SegmentInfo, mark: Mark, position: int) -> Iterator[Frame]:
    """The good frames of a segment from a position on, up to the mark."""
    with opened(view.directory, info.label) as fd:
        # A sealed segment is known to its end, while the mark may be of its earlier life: it was rewritten since the mark was read.
        limit = mark.end if mark.segment == info.number and not info.sealed else info.end
        yield from _good(view, fd, info.label, position, limit, info.next_sequence)


def _good(view: View, fd: int, label: Label, position: int, limit: int, stop: int | None) -> Iterator[Frame]:
    """The good frames of an open segment between two positions; what is not good is reported."""
    files = view.directory.files
    scan = Scan(files, fd, label, position=position, limit=limit, stop_sequence=stop)
    for item in scan:
        if isinstance(item, Frame):
            yield item
        else:
            require_generation(files, fd, label)  # it is rot, and not the file's next life
            view.found(of_bad(item, ROT))
    if scan.end < limit and not scan.sealed and not scan.stopped:
        require_generation(files, fd, label)
        view.found(of_bad(Bad(label.number, scan.end, limit, None, []), ROT))
