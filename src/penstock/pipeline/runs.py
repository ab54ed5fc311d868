"""Sets of whole numbers that are mostly runs, as two NumPy arrays: millions of offsets in a handful of ranges, and no loop over either.

`penstock.ranges.RangeSet` is for a set that grows message by message; this one is for sets that are made whole, compared and thrown away.
Run i is ``starts[i]`` up to but not including ``stops[i]``. Runs rise and do not touch, so that equal sets have equal arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np


class Runs(NamedTuple):
    """A set of whole numbers.

    >>> stored, twice = runs_of([np.array([3, 4, 5, 9, 5])])
    >>> stored.pairs(), twice.pairs(), stored.size
    ([(3, 5), (9, 9)], [(5, 5)], 4)
    >>> between(0, 11).minus(stored).pairs()
    [(0, 2), (6, 8), (10, 10)]
    """

    starts: Any
    stops: Any

    @property
    def size(self) -> int:
        """How many numbers are in it."""
        return int((self.stops - self.starts).sum())

    def minus(self, other: Runs) -> Runs:
        """What is in this one and not in the other."""
        points, here, there = _sweep(self, other)
        return _joined(points, (here > 0) & (there == 0))

    def both(self, other: Runs) -> Runs:
        """What is in both."""
        points, here, there = _sweep(self, other)
        return _joined(points, (here > 0) & (there > 0))

    def plus(self, *others: Runs) -> Runs:
        """What is in any of them."""
        return joined([self, *others])[0]

    def pairs(self, most: int | None = None) -> list[tuple[int, int]]:
        """The first and the last number of each run, of so many runs at the most."""
        return [
            (int(start), int(stop) - 1)
            for start, stop in zip(self.starts[:most], self.stops[:most], strict=True)
        ]

    def numbers(self, most: int) -> list[int]:
        """The first so many numbers."""
        found: list[int] = []
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            found += range(start, min(stop, start + most - len(found)))
            if len(found) >= most:
                break
        return found

    def flat(self) -> list[int]:
        """Start, stop, start, stop: as `RangeSet.encode` has it."""
        found = np.empty(2 * len(self.starts), dtype=np.int64)
        found[0::2], found[1::2] = self.starts, self.stops
        return [int(number) for number in found]


EMPTY: Final = Runs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def of_flat(flat: Sequence[int]) -> Runs:
    """What `Runs.flat` or `RangeSet.encode` gave."""
    numbers = np.asarray(flat, dtype=np.int64)
    return Runs(numbers[0::2], numbers[1::2])


def between(start: int, stop: int) -> Runs:
    """Every number from `start` up to but not including `stop`."""
    if start >= stop:
        return EMPTY
    return Runs(np.array([start], dtype=np.int64), np.array([stop], dtype=np.int64))


def runs_of(parts: Sequence[Any]) -> tuple[Runs, Runs]:
    """The numbers of some arrays, and those that are in them more than once."""
    if not parts:
        return EMPTY, EMPTY
    numbers = np.sort(np.concatenate(parts).astype(np.int64, copy=False))
    if not len(numbers):
        return EMPTY, EMPTY
    step = np.diff(numbers)
    twice = np.unique(numbers[1:][step == 0])
    if len(twice):
        numbers = numbers[np.concatenate(([True], step != 0))]
    return _runs(numbers), _runs(twice)


def _runs(rising: Any) -> Runs:
    """Numbers that rise, each once."""
    if not len(rising):
        return EMPTY
    breaks = np.flatnonzero(np.diff(rising) != 1)
    starts = rising[np.concatenate(([0], breaks + 1))]
    stops = rising[np.concatenate((breaks, [len(rising) - 1]))] + 1
    return Runs(starts, stops)


def joined(parts: Iterable[Runs]) -> tuple[Runs, Runs]:
    """What is in any of some sets, and what is in more than one of them."""
    found = [part for part in parts if len(part.starts)]
    if not found:
        return EMPTY, EMPTY
    if len(found) == 1:
        return found[0], EMPTY
    whole = Runs(
        np.concatenate([part.starts for part in found]), np.concatenate([part.stops for part in found])
    )
    points, depth, _ = _sweep(whole, EMPTY)
    return _joined(points, depth > 0), _joined(points, depth > 1)


def _sweep(one: Runs, other: Runs) -> tuple[Any, Any, Any]:
    """Where anything begins or ends, and how many runs of each side cover what is behind that point."""
    sizes = (len(one.starts), len(other.starts))
    points = np.concatenate((one.starts, one.stops, other.starts, other.stops))
    here = np.repeat(np.array([1, -1, 0, 0], dtype=np.int64), (sizes[0], sizes[0], sizes[1], sizes[1]))
    there = np.repeat(np.array([0, 0, 1, -1], dtype=np.int64), (sizes[0], sizes[0], sizes[1], sizes[1]))
    order = np.argsort(points, kind="stable")
    return points[order], np.cumsum(here[order]), np.cumsum(there[order])


def _joined(points: Any, wanted: Any) -> Runs:
    """The stretches behind points that are wanted, as runs that do not touch."""
    if not len(points):
        return EMPTY
    real = np.concatenate((points[:-1] < points[1:], [False]))  # several things may begin or end at one point
    inside = wanted[real]
    starts, stops = points[:-1][real[:-1]], points[1:][real[:-1]]
    starts, stops = starts[inside], stops[inside]
    if not len(starts):
        return EMPTY
    apart = starts[1:] != stops[:-1]
    return Runs(starts[np.concatenate(([True], apart))], stops[np.concatenate((apart, [True]))])
