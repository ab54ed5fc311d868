"""A sparse index of a log: at some of its offsets, when and with which id messages were published, and how many bytes came before.

Theory of operation
-------------------
Ids rise with offsets, and so does the highest time seen so far, whatever clocks do. So a few entries are enough to find by bisection where to begin looking for a
message of a time or an id; the last steps are made by whoever can read messages. Retention asks the same entries which messages are too old, or too
many bytes ago: it then drops whole stretches between two entries, never one message too many.

There is an entry for the first message of a batch, if it is at least `stride` behind the last entry. When there are too many, every second one goes and the stride doubles: the memory
is bounded however long the log is, and what remains is spread evenly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

#: Entries kept of one log, at 32 bytes each. Ten million messages then have one in less than a hundred: a millisecond of looking.
ENTRIES_MAX: Final = 262_144

#: Messages between two entries, where nothing is retained: they only save time.
STRIDE: Final = 64


class Milestones:
    """The entries of one log."""

    __slots__ = ("_before", "_bytes", "_ids", "_offsets", "_stride", "next", "peak", "total")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._before = array("q")  # no message before that offset is younger
        self._ids = array("q")
        self._bytes = array("q")  # of payloads before that offset
        self._stride = 1
        self.next = 0  # the offset from which on an entry is wanted
        self.peak = 0  # the highest time, as far as messages were noted
        self.total = 0  # bytes of payloads, as far as they were noted

    def note(self, first: int, oldest_us: int, newest_us: int, id: int, size: int, stride: int) -> None:
        """Messages were published, from an offset on. With a stride of 1 all must be noted, otherwise those that are not before `next`."""
        if first >= self.next:
            self._offsets.append(first)
            self._before.append(self.peak if stride == 1 else max(self.peak, oldest_us))
            self._ids.append(id)
            self._bytes.append(self.total)
            if len(self._offsets) > ENTRIES_MAX:
                self._thin_out()
            self.next = first + max(stride, self._stride)
        self.peak = max(self.peak, newest_us)
        self.total += size

    def begin_anew(self, offset: int, now_us: int) -> None:
        """From an offset on everything is noted, perhaps, and not all was that is before it: none of that is younger than now."""
        self.next = min(self.next, offset)
        self.peak = max(self.peak, now_us)

    def _thin_out(self) -> None:
        for column in (self._offsets, self._before, self._ids, self._bytes):
            del column[1::2]
        self._stride *= 2

    # --- looking ---

    def before_id(self, id: int) -> int:
        """An offset from which on to look for the message of an id."""
        place = bisect_right(self._ids, id) - 1
        return self._offsets[place] if place >= 0 else 0

    def before_time(self, time_us: int) -> int:
        """An offset before which every message is older than a time."""
        place = bisect_left(self._before, time_us) - 1
        return self._offsets[place] if place >= 0 else 0

    def beyond_bytes(self, kept: int) -> int:
        """An offset from which on at least the last `kept` bytes stand, if there are so many."""
        place = bisect_right(self._bytes, self.total - kept) - 1
        return self._offsets[place] if place >= 0 else 0

    def time_before(self, offset: int) -> int | None:
        """When the youngest was published of those that stand before the first entry behind an offset; None if there is no such entry."""
        place = bisect_right(self._offsets, offset)
        return self._before[place] if place < len(self._before) else None

    def forget_before(self, offset: int) -> None:
        """What is before that offset will not be asked for any more."""
        dead = bisect_right(self._offsets, offset) - 1
        if dead > 0:
            for column in (self._offsets, self._before, self._ids, self._bytes):
                del column[:dead]

    def __len__(self) -> int:
        return len(self._offsets)

    # --- storing ---

    def encode(self) -> list[bytes | int]:
        columns = [column.tobytes() for column in (self._offsets, self._before, self._ids, self._bytes)]
        return [*columns, self._stride, self.next, self.peak, self.total]

    @classmethod
    def decode(cls, stored: Sequence[bytes | int]) -> Milestones:
        """What `encode` gave."""
        found = cls()
        for column, data in zip(
            (found._offsets, found._before, found._ids, found._bytes), stored, strict=False
        ):
            column.frombytes(data)  # type: ignore[arg-type]
        found._stride, found.next, found.peak, found.total = (int(number) for number in stored[4:])
        return found
