"""Finding an entry of parallel arrays by its hash.

A Python dictionary costs a hundred bytes per entry, most of them objects. The engine's large maps are arrays side by
side instead, value i of each belonging to entry i, and `Slots` finds i:

    parts, by the lower bits         slots of a part (4 bytes each),       the owner's arrays
    of the hash                      by the upper bits of the hash
    +---+                            +---+
    | 0 | -------------------------> | 2 | -------------------+       1   +----+----+
    | 1 | ---------> another part    | 0 |  empty             |           | .. | .. |
    +---+                            | 1 | ---------------+   +-----> 2   +----+----+
                                     | 0 |  empty         |               | .. | .. |
                                     +---+                +---------> 1   +----+----+

A number in a slot is the owner's: it says from it where the entry lies, or that it is stale.

What always holds:

- An entry has one slot, in the part of its hash: walking down from where its hash leads, it is found before the first
  empty slot (number 0). Below slot 0 comes the last one, which Python calls -1, so a walk needs no check for the end.
- At most two thirds of a part's slots are used, stale ones included. One more, and the part is made anew from its own
  numbers, without the stale, with 2.5 slots for each. So slots cost 6 to 10 bytes per entry.
- A part that would get more than 2048 entries becomes two, told apart by one more bit of the hash; the list of parts
  doubles when it has no more bits to tell (extendible hashing). So nobody who adds one waits for more than a few
  thousand to be moved, however many there are; in a table that grows as a whole, it would be all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

# Bits of the hash that choose the part; those above choose the slot. Enough for a hundred million entries; beyond that
# parts grow, and so they do when hashes are alike, instead of a list of parts without end.
PART_BITS: Final = 16

# Making a part anew takes a third of a microsecond per entry, and somebody waits for it.
_PART_ENTRIES_MAX: Final = 2048

# Of 2.5 slots for an entry 1.0 are used at first and 1.67 in the end.
_SLOTS_PER_ENTRY: Final = 2.5
_ROOM_PER_SLOT: Final = 2 / 3
_SLOTS_MIN: Final = 8

# More slots than that for each entry are worth giving back.
_SLOTS_PER_ENTRY_MAX: Final = 8


class Slots:
    """The slots of a map; its owner derives from it, and walks them itself since a call per step is too slow."""

    __slots__ = ("mask", "parts", "slots_count")

    def __init__(self) -> None:
        self.lay_out(0)

    def living(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """Hash and number of those entries that are not stale."""
        raise NotImplementedError

    def lay_out(self, count: int) -> None:
        """Begin anew with empty slots, enough for `count` entries."""
        depth = min(PART_BITS, (count // _PART_ENTRIES_MAX).bit_length())
        # Parts are not filled quite evenly; the eighth keeps most from growing at once.
        each = (count + count // 8) >> depth
        self.parts = [Part(depth, each) for _ in range(1 << depth)]
        self.mask = (1 << depth) - 1
        self.slots_count = sum(len(part.slots) for part in self.parts)

    def is_roomy(self, count: int) -> bool:
        """Whether laying out anew for the `count` entries that there are would give memory back."""
        return self.slots_count > _SLOTS_PER_ENTRY_MAX * (count + _SLOTS_MIN)

    def enter(self, hashed: int, number: int) -> None:
        """Give an entry a slot."""
        part = self.parts[hashed & self.mask]
        if part.used >= part.room:
            self._renew(part, hashed)
            part = self.parts[hashed & self.mask]
        part.enter(hashed, number)

    def _renew(self, part: Part, hashed: int) -> None:
        """Put another part, or two, in the place of a full one, which `hashed` leads to."""
        entries = self.living(filter(None, part.slots))
        depth, bit = part.depth, 1 << part.depth
        if len(entries) <= _PART_ENTRIES_MAX or depth == PART_BITS:
            twins = [_filled(depth, entries)] * 2
        else:
            twins = [
                _filled(depth + 1, [one for one in entries if bool(one[0] & bit) is upper])
                for upper in (False, True)
            ]
            if bit > self.mask:
                self.parts += self.parts
                self.mask += bit
        for place in range(hashed & (bit - 1), len(self.parts), bit):
            self.parts[place] = twins[place // bit % 2]
        self.slots_count += sum(len(twin.slots) for twin in set(twins)) - len(part.slots)


class Part:
    """Some of the slots, as many as can be made anew at once."""

    __slots__ = ("depth", "room", "slots", "used")

    def __init__(self, depth: int, count: int) -> None:
        slots = max(_SLOTS_MIN, int(count * _SLOTS_PER_ENTRY))
        self.slots = array("I", bytes(4 * slots))
        self.room = int(slots * _ROOM_PER_SLOT)
        self.used = 0
        self.depth = depth  # how many of the lower bits its hashes have in common

    def enter(self, hashed: int, number: int) -> None:
        slots = self.slots
        slot = (hashed >> PART_BITS) % len(slots)
        while slots[slot]:
            slot -= 1
        slots[slot] = number
        self.used += 1


def _filled(depth: int, entries: list[tuple[int, int]]) -> Part:
    part = Part(depth, len(entries))
    slots, size = part.slots, len(part.slots)
    # As `enter` does, without a call for each.
    for hashed, number in entries:
        slot = (hashed >> PART_BITS) % size
        while slots[slot]:
            slot -= 1
        slots[slot] = number
    part.used = len(entries)
    return part
