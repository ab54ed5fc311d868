"""A set of integers that is mostly runs.

Offsets are published, settled and cleaned in runs, so a set of a million of them is usually a handful of ranges. A
`RangeSet` keeps just those: two arrays of 64-bit integers, `starts` and `ends`, where range i is ``starts[i]`` up to
but not including ``ends[i]``.

What always holds: every range is non-empty, they rise, and between two of them is a gap of at least one integer (ranges
that touch are joined). So equal sets have equal arrays, and each array is sorted, which is what bisecting needs.

Looking up costs O(log n) in the number of ranges, growing at the end O(1), changing the middle one `memmove`. A range
costs 16 bytes, with no Python object per range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from penstock.errors import InvalidArgument

_STOP_MAX: Final = 2**63 - 1


class RangeSet:
    """A set of non-negative integers, kept as sorted disjoint ranges.

    >>> settled = RangeSet()
    >>> settled.add(0, 10)
    >>> settled.add(10, 20)
    >>> settled.discard(5, 7)
    >>> list(settled), len(settled), 6 in settled
    ([range(0, 5), range(7, 20)], 18, False)
    >>> settled.gaps(0, 25)
    [range(5, 7), range(20, 25)]
    """

    __slots__ = ("_count", "_ends", "_starts")

    def __init__(self, ranges: Iterable[range] = ()) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._count = 0  # derived: how many integers the ranges hold
        for one in ranges:
            if one.step != 1:
                raise InvalidArgument(f"{one} has a step; give ranges of consecutive integers")
            self.add(one.start, max(one.start, one.stop))

    # --- changing ---

    def add_one(self, value: int) -> None:
        """Put in one integer, which is nearly always the one behind the last."""
        ends = self._ends
        if ends and ends[-1] == value:
            ends[-1] = value + 1
            self._count += 1
        else:
            self.add(value, value + 1)

    def add(self, start: int, stop: int) -> None:
        """Put in every integer from `start` up to but not including `stop`."""
        _check_bounds(start, stop)
        if start == stop:
            return
        if not self._ends or start > self._ends[-1]:
            self._append(start, stop)
        elif start >= self._starts[-1]:
            self._grow_last(stop)
        else:
            self._join(start, stop)

    def discard(self, start: int, stop: int) -> None:
        """Take out every integer from `start` up to but not including `stop`; absent ones do not matter."""
        _check_bounds(start, stop)
        first, end = self._overlapping(start, stop)
        if first >= end:
            return
        kept = []
        if self._starts[first] < start:
            kept.append((self._starts[first], start))
        if stop < self._ends[end - 1]:
            kept.append((stop, self._ends[end - 1]))
        self._replace(first, end, kept)

    def _append(self, start: int, stop: int) -> None:
        self._starts.append(start)
        self._ends.append(stop)
        self._count += stop - start

    def _grow_last(self, stop: int) -> None:
        if stop > self._ends[-1]:
            self._count += stop - self._ends[-1]
            self._ends[-1] = stop

    def _join(self, start: int, stop: int) -> None:
        # Ranges that only touch are joined too, hence `left` of the ends and `right` of the starts.
        first = bisect_left(self._ends, start)
        end = bisect_right(self._starts, stop)
        if first < end:
            start = min(start, self._starts[first])
            stop = max(stop, self._ends[end - 1])
        self._replace(first, end, [(start, stop)])

    def _replace(self, first: int, end: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Put `ranges` in place of the ranges number `first` up to `end`."""
        self._count -= sum(self._ends[first:end]) - sum(self._starts[first:end])
        self._starts[first:end] = array("q", [start for start, _ in ranges])
        self._ends[first:end] = array("q", [stop for _, stop in ranges])
        self._count += sum(stop - start for start, stop in ranges)

    # --- asking ---

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.covers(value, value + 1)

    def covers(self, start: int, stop: int) -> bool:
        """Whether every integer from `start` up to but not including `stop` is in; an empty range always is."""
        if start >= stop:
            return True
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and stop <= self._ends[place]

    def overlap(self, start: int, stop: int) -> list[range]:
        """What is in, from `start` up to but not including `stop`."""
        first, end = self._overlapping(start, stop)
        return [
            range(max(start, self._starts[place]), min(stop, self._ends[place]))
            for place in range(first, end)
        ]

    def gaps(self, start: int, stop: int) -> list[range]:
        """What is not in, from `start` up to but not including `stop`."""
        found = []
        for present in self.overlap(start, stop):
            if start < present.start:
                found.append(range(start, present.start))
            start = present.stop
        if start < stop:
            found.append(range(start, stop))
        return found

    def _overlapping(self, start: int, stop: int) -> tuple[int, int]:
        """The ranges, as numbers `first` up to `end`, that share an integer with the given one."""
        if start >= stop:
            return 0, 0
        return bisect_right(self._ends, start), bisect_left(self._starts, stop)

    @property
    def ranges(self) -> int:
        """How many ranges it is made of."""
        return len(self._starts)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[range]:
        return map(range, self._starts, self._ends)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    # --- copying and storing ---

    def copy(self) -> RangeSet:
        """Another set with the same integers."""
        twin = RangeSet()
        twin._starts = self._starts[:]
        twin._ends = self._ends[:]
        twin._count = self._count
        return twin

    def encode(self) -> list[int]:
        """The ranges as one flat list: start, end, start, end.

        >>> RangeSet([range(0, 5), range(7, 9)]).encode()
        [0, 5, 7, 9]
        """
        flat = [0] * (2 * len(self._starts))
        flat[0::2] = self._starts
        flat[1::2] = self._ends
        return flat

    @classmethod
    def decode(cls, flat: Sequence[int]) -> RangeSet:
        """The set that `encode` wrote. Checked: what was stored may have been damaged."""
        # Valid bounds rise strictly from start to end to the next start, and so does any list of them.
        rising = all(left < right for left, right in pairwise(flat))
        if len(flat) % 2 or not rising or (flat and not 0 <= flat[0] <= flat[-1] <= _STOP_MAX):
            raise InvalidArgument("stored ranges are not sorted pairs of start and end; they are damaged")
        decoded = cls()
        decoded._starts = array("q", flat[0::2])
        decoded._ends = array("q", flat[1::2])
        decoded._count = sum(decoded._ends) - sum(decoded._starts)
        return decoded


def _check_bounds(start: int, stop: int) -> None:
    if not 0 <= start <= stop <= _STOP_MAX:
        raise InvalidArgument(f"the range {start} to {stop} is not within 0 to {_STOP_MAX}, start first")
