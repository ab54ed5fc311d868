"""What waits for a moment: delayed messages, retries, leases that end.

An entry is a pair of 64-bit integers, the moment it is due and the item that waits. Entries come in any order and
leave in the order of (due, item). There may be millions, so only the newest few are Python objects:

    new entries --> fresh: a sorted list of tuples, at most 512
                      | full
                      v
                    runs: each two sorted arrays, `dues` and `items`, at most 7 of about the same size
                      | 8 of about the same size
                      v
                    one run, eight times as long

What always holds:

- `fresh` and every run are sorted by (due, item). In a run, what lies before `head` has left, and the entry at `head`
  is alive unless the run is empty; an empty run is dropped at once. So the earliest of all is the smallest of a few.
- Sizes of runs grow by a factor of eight from level to level, so that n entries make O(log n) runs and each entry is
  merged O(log n) times. Entries that come in order, as those of one constant delay do, are appended to a run that ends
  before them and never merged at all.
- A cancelled entry is only marked (`alive`, one byte per entry of a run that had a cancellation) and is never counted.
  A run that has lost half of its entries, at its head or in its middle, is packed. So an entry costs 16 bytes in
  the long run, at most 34 while a run is half empty, and as much again for the moment of a merge.
- Equal entries may be in more than once, and leave one by one.

Merging goes by stretches of bounded length, since it makes a tuple per entry: its memory does not grow with the run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import compress, islice, pairwise, repeat
from typing import Final

from penstock.engine.packed import INT64_MAX, INT64_MIN, pack, unpack
from penstock.errors import InvalidArgument

# A tuple of two integers costs about 130 bytes, so few of them; fewer still and runs are made too often.
_FRESH_MAX: Final = 512

# Putting fewer than that in one by one is quicker than sorting all that is fresh.
_SINGLES_MAX: Final = 16

# Runs of one level that are merged into one of the next. More merge less often, but each pop asks every run.
_FAN_IN_BITS: Final = 3
_FAN_IN: Final = 1 << _FAN_IN_BITS

# Entries that a merge takes from each run at a time: large enough for C to do the work, small enough for any memory.
_STRETCH: Final = 4096

# Later than any entry.
_NEVER: Final = INT64_MAX + 1


class Timeline:
    """Items that wait, each for its moment.

    >>> waiting = Timeline()
    >>> waiting.add(50, 7)
    >>> waiting.add_many(20, [3, 1, 2])
    >>> waiting.discard(20, 2), len(waiting), waiting.next_us
    (True, 3, 20)
    >>> waiting.pop_due(30)
    [(20, 1), (20, 3)]
    >>> waiting.next_us
    50
    """

    __slots__ = ("_fresh", "_next_us", "_runs", "_runs_count")

    def __init__(self) -> None:
        self._fresh: list[tuple[int, int]] = []
        self._runs: list[_Run] = []
        self._runs_count = 0  # derived: the entries of all runs
        self._next_us = _NEVER  # derived: the earliest due of all

    # --- changing ---

    def add(self, due_us: int, item: int) -> None:
        """Let `item` wait until `due_us`."""
        if not (INT64_MIN <= due_us <= INT64_MAX and INT64_MIN <= item <= INT64_MAX):
            raise InvalidArgument(f"due {due_us} or item {item} is not a signed 64-bit integer")
        insort(self._fresh, (due_us, item))
        if due_us < self._next_us:
            self._next_us = due_us
        if len(self._fresh) >= _FRESH_MAX:
            self._spill()

    def add_many(self, due_us: Sequence[int] | int, items: Sequence[int]) -> None:
        """Let every one of `items` wait: until one moment for all, or each for its own.

        >>> waiting = Timeline()
        >>> waiting.add_many([30, 10], [1, 2])
        >>> waiting.pop_due(30)
        [(10, 2), (30, 1)]
        """
        if not items:
            return
        dues, places = _sorted_columns(due_us, items)
        if len(dues) < _SINGLES_MAX:
            for due, item in zip(dues, places, strict=True):
                self.add(due, item)
            return
        self._next_us = min(self._next_us, dues[0])
        if len(dues) >= _FRESH_MAX:
            self._keep(dues, places)
            return
        self._fresh.extend(zip(dues, places, strict=True))
        self._fresh.sort()
        if len(self._fresh) >= _FRESH_MAX:
            self._spill()

    def discard(self, due_us: int, item: int) -> bool:
        """Take out one entry, and say whether it was in."""
        place = bisect_left(self._fresh, (due_us, item))
        if place < len(self._fresh) and self._fresh[place] == (due_us, item):
            del self._fresh[place]
        elif not self._discard_kept(due_us, item):
            return False
        if due_us == self._next_us:
            self._look_ahead()
        return True

    def pop_due(self, now_us: int) -> list[tuple[int, int]]:
        """Take out everything due at `now_us` or before: pairs of due and item, in order."""
        if now_us < self._next_us:
            return []
        # Sorting finds the sorted parts by itself and merges them.
        popped = self._pop_fresh(now_us)
        for dues, items in self._pop_runs(now_us):
            popped.extend(zip(dues, items, strict=True))
        popped.sort()
        self._look_ahead()
        return popped

    def _pop_fresh(self, now_us: int) -> list[tuple[int, int]]:
        if not self._fresh or self._fresh[0][0] > now_us:
            return []
        end = bisect_right(self._fresh, (now_us, INT64_MAX))
        popped = self._fresh[:end]
        del self._fresh[:end]
        return popped

    def _pop_runs(self, now_us: int) -> list[tuple[array[int], array[int]]]:
        popped = []
        for run in self._runs:
            if run.next_us <= now_us:
                columns = run.pop_due(now_us)
                self._runs_count -= len(columns[0])
                popped.append(columns)
        return popped

    def _discard_kept(self, due_us: int, item: int) -> bool:
        for run in self._runs:
            if run.discard(due_us, item):
                self._runs_count -= 1
                if run.next_us == _NEVER:
                    self._runs.remove(run)
                return True
        return False

    def _look_ahead(self) -> None:
        """Drop runs that became empty, and find the earliest due again."""
        dues = [run.next_us for run in self._runs]
        if _NEVER in dues:
            self._runs = [run for run in self._runs if run.next_us != _NEVER]
        if self._fresh:
            dues.append(self._fresh[0][0])
        self._next_us = min(dues, default=_NEVER)

    # --- keeping the runs few ---

    def _spill(self) -> None:
        """Make a run of what is fresh."""
        dues, items = _columns(self._fresh)
        self._fresh.clear()
        self._keep(dues, items)

    def _keep(self, dues: array[int], items: array[int]) -> None:
        """Append sorted entries to a run that ends before them, or make them a run of their own."""
        self._runs_count += len(dues)
        for run in self._runs:
            if run.ends_before(dues[0], items[0]):
                run.extend(dues, items)
                return
        self._runs.append(_Run(dues, items))
        self._thin_out()

    def _thin_out(self) -> None:
        """Merge runs of about the same size while there are too many of them."""
        # A merged run may be one too many for the next level, so levels are walked upwards.
        level = 0
        while len(self._runs) >= _FAN_IN and level <= max(run.level for run in self._runs):
            crowd = [run for run in self._runs if run.level == level]
            if len(crowd) >= _FAN_IN:
                self._runs = [run for run in self._runs if run.level != level]
                self._runs.append(_merged(crowd))
            level += 1

    # --- asking ---

    @property
    def next_us(self) -> int | None:
        """The earliest due of all, or None when nothing waits."""
        return self._next_us if self._next_us != _NEVER else None

    def __len__(self) -> int:
        return len(self._fresh) + self._runs_count

    def items(self) -> Iterator[tuple[int, int]]:
        """Pairs of due and item, in order, leaving them in. Change nothing before it is done.

        >>> waiting = Timeline()
        >>> waiting.add_many(20, [3, 1])
        >>> list(waiting.items())
        [(20, 1), (20, 3)]
        """
        return merge(self._fresh, *self._runs)

    def __repr__(self) -> str:
        return f"<Timeline of {len(self)}, next at {self.next_us}>"

    # --- storing ---

    def encode(self) -> tuple[bytes, bytes]:
        """The dues and the items, in order; equal timelines give equal bytes.

        Everything becomes one run on the way, so it costs a merge of all, unless little has changed since the last
        time or entries come in order.
        """
        if self._fresh:
            self._spill()
        if not self._runs:
            return b"", b""
        self._runs = [_merged(self._runs)]
        return pack(self._runs[0].dues), pack(self._runs[0].items)

    @classmethod
    def decode(cls, stored: Sequence[bytes]) -> Timeline:
        """The timeline that `encode` wrote. Checked: what was stored may have been damaged.

        >>> waiting = Timeline()
        >>> waiting.add(50, 7)
        >>> list(Timeline.decode(waiting.encode()).items())
        [(50, 7)]
        """
        dues, items = unpack("qq", stored)
        if any(left > right for left, right in pairwise(zip(dues, items, strict=True))):
            raise InvalidArgument("stored entries are not in the order of their time; they are damaged")
        decoded = cls()
        if dues:
            decoded._keep(dues, items)
            decoded._look_ahead()
        return decoded


class _Run:
    """Sorted entries in two arrays, which leave at the head, and a few from the middle."""

    __slots__ = ("alive", "dead_count", "dues", "head", "items", "next_us")

    def __init__(self, dues: array[int], items: array[int]) -> None:
        self.dues = dues
        self.items = items
        self.head = 0
        self.alive: bytearray | None = None  # a 1 or a 0 for each entry, once one was cancelled
        self.dead_count = 0  # derived: cancelled entries from `head` on
        self.next_us = dues[0]  # derived: the due at `head`, and _NEVER when nothing is left

    @property
    def level(self) -> int:
        """Which of its neighbours it is as large as: by eights."""
        size = len(self.dues) - self.head - self.dead_count
        return (size // _FRESH_MAX).bit_length() // _FAN_IN_BITS

    def __iter__(self) -> Iterator[tuple[int, int]]:
        pairs = zip(islice(self.dues, self.head, None), islice(self.items, self.head, None), strict=True)
        return pairs if self.alive is None else compress(pairs, islice(self.alive, self.head, None))

    def ends_before(self, due_us: int, item: int) -> bool:
        return self.dues[-1] < due_us or (self.dues[-1] == due_us and self.items[-1] <= item)

    def extend(self, dues: array[int], items: array[int]) -> None:
        self.dues.extend(dues)
        self.items.extend(items)
        if self.alive is not None:
            self.alive.extend(repeat(1, len(dues)))

    def pop_due(self, now_us: int) -> tuple[array[int], array[int]]:
        end = bisect_right(self.dues, now_us, self.head)
        dues, items = self.dues[self.head : end], self.items[self.head : end]
        if self.alive is not None:
            alive = self.alive[self.head : end]
            self.dead_count -= alive.count(0)
            dues, items = array("q", compress(dues, alive)), array("q", compress(items, alive))
        self._advance(end)
        return dues, items

    def discard(self, due_us: int, item: int) -> bool:
        place = self._find(due_us, item)
        if place < 0:
            return False
        if self.alive is None:
            self.alive = bytearray(b"\x01") * len(self.dues)
        self.alive[place] = 0
        self.dead_count += 1
        if place == self.head:
            self._advance(place)
        if self.dead_count * 2 > len(self.dues) - self.head:
            self.pack()
        return True

    def _find(self, due_us: int, item: int) -> int:
        """The place of a living entry, or -1."""
        if not self.next_us <= due_us <= self.dues[-1]:
            return -1
        first = bisect_left(self.dues, due_us, self.head)
        end = bisect_right(self.dues, due_us, first)
        place = bisect_left(self.items, item, first, end)
        # Of entries that are equal, the earlier ones may be dead already.
        while place < end and self.items[place] == item:
            if self.alive is None or self.alive[place]:
                return place
            place += 1
        return -1

    def _advance(self, head: int) -> None:
        """Let everything before `head` go, and the dead that follow."""
        if self.alive is not None and self.dead_count:
            living = self.alive.find(1, head)
            skipped_to = living if living >= 0 else len(self.alive)
            self.dead_count -= skipped_to - head
            head = skipped_to
        self.head = head
        self.next_us = self.dues[head] if head < len(self.dues) else _NEVER
        # Moving the rest is paid for by as many entries that have left.
        if head > _FRESH_MAX and head * 2 > len(self.dues):
            self.pack()

    def pack(self) -> None:
        """Give back the room of entries that have left."""
        if self.dead_count and self.alive is not None:
            alive = self.alive[self.head :]
            self.dues = array("q", compress(self.dues[self.head :], alive))
            self.items = array("q", compress(self.items[self.head :], alive))
        elif self.head:
            del self.dues[: self.head], self.items[: self.head]
        self.alive, self.dead_count, self.head = None, 0, 0


def _merged(runs: list[_Run]) -> _Run:
    """One run with the entries of all."""
    for run in runs:
        run.pack()
    if len(runs) == 1:
        return runs[0]
    dues, items = array("q"), array("q")
    sources = [_Source(run) for run in runs]
    while len(sources) > 1:
        # Up to the least of the last entries within reach, every source is known whole.
        bound = min(source.reach() for source in sources)
        parts = [part for source in sources if (part := source.take(bound))[0]]
        if len(parts) == 1:
            dues.extend(parts[0][0])
            items.extend(parts[0][1])
        else:
            _merge_stretch(parts, dues, items)
        sources = [source for source in sources if source.place < len(source.run.dues)]
    for source in sources:
        dues.extend(source.run.dues[source.place :])
        items.extend(source.run.items[source.place :])
    return _Run(dues, items)


def _merge_stretch(parts: list[tuple[array[int], array[int]]], dues: array[int], items: array[int]) -> None:
    """Append the entries of all `parts`, sorted, to `dues` and `items`."""
    pairs: list[tuple[int, int]] = []
    for part in parts:
        pairs.extend(zip(*part, strict=True))
    pairs.sort()
    merged_dues, merged_items = _columns(pairs)
    dues.extend(merged_dues)
    items.extend(merged_items)


class _Source:
    """A run that is being merged, and how far it has been taken."""

    __slots__ = ("place", "run")

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.place = 0

    def _limit(self) -> int:
        return min(self.place + _STRETCH, len(self.run.dues))

    def reach(self) -> tuple[int, int]:
        """The last entry of the next stretch."""
        last = self._limit() - 1
        return self.run.dues[last], self.run.items[last]

    def take(self, bound: tuple[int, int]) -> tuple[array[int], array[int]]:
        """The next entries up to and including `bound`, at most a stretch."""
        start, limit = self.place, self._limit()
        first = bisect_left(self.run.dues, bound[0], start, limit)
        end = bisect_right(self.run.dues, bound[0], first, limit)
        self.place = bisect_right(self.run.items, bound[1], first, end)
        return self.run.dues[start : self.place], self.run.items[start : self.place]


def _columns(pairs: list[tuple[int, int]]) -> tuple[array[int], array[int]]:
    return array("q", [due for due, _ in pairs]), array("q", [item for _, item in pairs])


def _sorted_columns(due_us: Sequence[int] | int, items: Sequence[int]) -> tuple[array[int], array[int]]:
    """The entries as arrays in order, or an error before anything has changed."""
    try:
        if isinstance(due_us, int):
            return array("q", [due_us]) * len(items), array("q", sorted(items))
        if len(due_us) != len(items):
            raise InvalidArgument(
                f"{len(due_us)} dues for {len(items)} items; give one for each, or one for all"
            )
        return _columns(sorted(zip(due_us, items, strict=True)))
    except OverflowError:
        raise InvalidArgument("a due or an item is not a signed 64-bit integer") from None
