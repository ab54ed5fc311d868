"""Which parts of the journal are read for a table, and by how many tasks.

Theory of operation
-------------------
A piece is what one task reads: stretches of commits within one segment, and of each log the offsets that are wanted. The summaries of segments say which hold any of that. Within a
segment the sparse index says in which strides a log occurs, so that a small log in a large journal costs little: runs of such strides become stretches.

Pieces are planned up to the mark and by sequence numbers, which stay the same when the owner rewrites segments meanwhile.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock import limits
from penstock.journal.kinds import MESSAGES, Kind
from penstock.journal.mark import Mark
from penstock.journal.reading import Stretch
from penstock.journal.view import SegmentInfo
from penstock.pipeline.assembly import Wanted

#: What a task reads at the most, about: a whole segment, which ends with the commit that fills it. A task costs Spark and Python 35 ms of a processor before it reads anything.
PIECE_BYTES: Final = limits.SEGMENT_BYTES + limits.SEGMENT_BYTES // 8

#: Pieces are not made smaller than that for the sake of several cores …
PIECE_BYTES_SHARED: Final = 32 << 20
#: … of which each is to have so many.
PIECES_EACH: Final = 2

#: Pieces are not made smaller than that for the sake of `minPartitions`.
PIECE_BYTES_MIN: Final = limits.INDEX_STRIDE_BYTES

#: An excerpt may be longer than a piece by such a share of it, and is one all the same.
SLACK: Final = 8

#: Strides of no interest that are read all the same, because jumping over them would cost more.
GAP_STRIDES: Final = 8


class Piece:
    """What one task reads."""

    def __init__(self, stretches: list[Stretch], logs: Mapping[int, Wanted]) -> None:
        self.stretches = stretches
        self.logs = logs


class Bounds:
    """What is wanted beside offsets: commits `first` up to `stop`, by sequence number, and messages of a time."""

    def __init__(self, mark: Mark, first: int = 0, stop: int | None = None) -> None:
        self.mark = mark
        self.first = first
        self.stop = mark.sequence + 1 if stop is None else min(stop, mark.sequence + 1)
        self.oldest_us: int | None = None
        self.newest_us: int | None = None

    def exclude(self, oldest_us: int, newest_us: int) -> bool:
        """Whether nothing between two times is wanted."""
        return (self.newest_us is not None and oldest_us > self.newest_us) or (
            self.oldest_us is not None and newest_us < self.oldest_us
        )


def pieces(
    segments: Iterable[SegmentInfo],
    kind: Kind,
    logs: Mapping[int, Wanted],
    bounds: Bounds,
    parts: int,
    most: int = PIECE_BYTES,
) -> list[Piece]:
    """What is to be read, in at least so many parts if there is that much, each of about so many bytes at the most."""
    excerpts = [
        Excerpt(info, kind, here, bounds)
        for info in segments
        if info.index.kinds.get(kind.number) and info.number <= bounds.mark.segment
        for here in [_there(info, kind, logs, bounds)]
        if here
    ]
    total = sum(excerpt.bytes for excerpt in excerpts)
    share = max(total // (PIECES_EACH * len(os.sched_getaffinity(0))), PIECE_BYTES_SHARED)
    size = min(most, share)
    demanded = max(total // parts, PIECE_BYTES_MIN)
    return [
        Piece(part, excerpt.logs)
        for excerpt in excerpts
        for part in excerpt.parts(
            max(-(-(excerpt.bytes - size // SLACK) // size), -(-excerpt.bytes // demanded), 1)
        )
    ]


def _there(info: SegmentInfo, kind: Kind, logs: Mapping[int, Wanted], bounds: Bounds) -> dict[int, Wanted]:
    """The logs of which something wanted is in a segment."""
    if kind is not MESSAGES:
        return dict(logs)  # which ones are in it, only its sections say
    found = {}
    for number, entry in info.index.logs.items():
        wanted = logs.get(number)
        if (
            wanted is not None
            and entry.first < wanted.stop
            and entry.last >= wanted.start
            and not bounds.exclude(entry.oldest, entry.newest)
        ):
            found[number] = wanted
    return found


class Excerpt:
    """What is wanted of one segment: runs of the strides of its index, each with a first and a last one."""

    def __init__(self, info: SegmentInfo, kind: Kind, logs: dict[int, Wanted], bounds: Bounds) -> None:
        self.logs = logs
        self._info = info
        self._positions, self._sequences = info.index.positions, info.index.sequences
        self._first = bounds.first
        sealed_at = info.next_sequence
        self._end = info.end if sealed_at is not None else min(info.end, bounds.mark.end)
        self._stop = bounds.stop if sealed_at is None else min(bounds.stop, sealed_at)
        begin = max(bisect_right(self._sequences, bounds.first) - 1, 0)
        stop = min(bisect_left(self._positions, self._end), bisect_left(self._sequences, self._stop))
        strides = _strides(info, logs) if kind is MESSAGES else range(stop)
        self._runs = _runs([stride for stride in strides if begin <= stride < stop])

    @property
    def bytes(self) -> int:
        return sum(self._place(last + 1) - self._place(first) for first, last in self._runs)

    def _place(self, stride: int) -> int:
        """Where a stride begins, or everything ends."""
        return min(self._positions[stride], self._end) if stride < len(self._positions) else self._end

    def parts(self, count: int) -> Iterator[list[Stretch]]:
        """Its stretches, in about so many parts of about the same length."""
        size = -(-self.bytes // count)
        part: list[Stretch] = []
        room = size
        for first, last in self._runs:
            at = first
            while at <= last:
                upto = min(max(bisect_left(self._positions, self._place(at) + room), at + 1), last + 1)
                part.append(self._stretch(at, upto))
                room -= part[-1].bytes
                at = upto
                if room <= 0:
                    yield part
                    part, room = [], size
        if part:
            yield part

    def _stretch(self, first: int, behind: int) -> Stretch:
        stop = self._sequences[behind] if behind < len(self._sequences) else self._stop
        return Stretch(
            self._info.label,
            self._place(first),
            self._place(behind),
            max(self._sequences[first], self._first),
            min(stop, self._stop),
        )


def _strides(info: SegmentInfo, logs: Mapping[int, Wanted]) -> list[int]:
    """In which strides of a segment the wanted offsets of logs are."""
    positions = info.index.positions
    found: set[int] = set()
    for number, wanted in logs.items():
        entry = info.index.logs[number]
        first = entry.entry_of_offset(wanted.start)
        for position in entry.positions[first : bisect_left(entry.offsets, wanted.stop)]:
            # Its rows are within one stride behind it, and in the frame that crosses the end of that.
            start = bisect_right(positions, position) - 1
            found.update(range(start, bisect_left(positions, position + limits.INDEX_STRIDE_BYTES)))
    return sorted(found)


def _runs(strides: Iterable[int]) -> list[tuple[int, int]]:
    """Strides that follow one another closely, from the first to the last of them."""
    found: list[tuple[int, int]] = []
    for stride in strides:
        if found and stride - found[-1][1] <= GAP_STRIDES:
            found[-1] = (found[-1][0], stride)
        else:
            found.append((stride, stride))
    return found
