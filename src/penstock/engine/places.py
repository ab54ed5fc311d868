"""A place for each of many integers, so that arrays can be used as a map.

`Places` has one array, `keys`, and finds where in it a key lies, with the slots of `slots`. Its owner has more arrays,
value i of each belonging to key i.

What always holds:

- Places are 0, 1, 2 and so on without gaps, in no order. Removing one moves the last entry into its place, and the
  owner does the same with its own arrays.
- The number in a slot is the place plus one, and never stale: a removed key leaves its slot at once, and those behind
  it in a walk move up.
- A key may be in more than once, for owners whose whole key is longer than 64 bits: see `find_all`.

The key costs 8 bytes and its slot 6 to 10. Arrays that grow by one have a sixteenth of their room to spare.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from penstock.engine.slots import PART_BITS, Part, Slots


class Places(Slots):
    """The places of 64-bit integers.

    >>> places = Places("q")
    >>> places.append(70), places.append(12), places.append(35)
    (0, 1, 2)
    >>> places.find(12), places.find(99)
    (1, -1)
    >>> places.remove(0)
    False
    >>> places.keys
    array('q', [35, 12])
    """

    __slots__ = ("keys",)

    def __init__(self, typecode: str, keys: array[int] | None = None) -> None:
        self.keys = array(typecode) if keys is None else keys
        self._lay_out_all()

    def find(self, key: int) -> int:
        """The place of `key`, or -1."""
        # The hash of a tuple mixes all bits of the integer in it, which the hash of the integer does not.
        hashed = hash((key,))
        slots, keys = self.parts[hashed & self.mask].slots, self.keys
        slot = (hashed >> PART_BITS) % len(slots)
        while number := slots[slot]:
            if keys[number - 1] == key:
                return number - 1
            slot -= 1
        return -1

    def find_all(self, key: int) -> list[int]:
        """Every place of `key`, when it may be in more than once."""
        found = []
        slots, slot = self._walk(key)
        while number := slots[slot]:
            if self.keys[number - 1] == key:
                found.append(number - 1)
            slot -= 1
        return found

    def append(self, key: int) -> int:
        """Give `key` the next place, whether or not it has one already."""
        self.keys.append(key)
        self.enter(hash((key,)), len(self.keys))
        return len(self.keys) - 1

    def remove(self, place: int) -> bool:
        """Let the last entry have `place`, whose own key goes; say whether to give memory back.

        The owner does the same with its arrays. When told so, it also copies them, for arrays that shrink by one
        at a time keep their memory.
        """
        self._vacate(place)
        last = len(self.keys) - 1
        if place != last:
            slots, slot = self._walk_to(last)
            slots[slot] = place + 1
            self.keys[place] = self.keys[last]
        self.keys.pop()
        if not self.is_roomy(last):
            return False
        self.keys = self.keys[:]
        self._lay_out_all()
        return True

    def living(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """As `Slots` asks for it: all of them."""
        keys = self.keys
        return [(hash((keys[number - 1],)), number) for number in numbers]

    def _lay_out_all(self) -> None:
        self.lay_out(len(self.keys))
        for number, key in enumerate(self.keys, 1):
            self.enter(hash((key,)), number)

    def _walk(self, key: int) -> tuple[array[int], int]:
        """Where a walk for `key` begins."""
        hashed = hash((key,))
        slots = self.parts[hashed & self.mask].slots
        return slots, (hashed >> PART_BITS) % len(slots)

    def _walk_to(self, place: int) -> tuple[array[int], int]:
        """The slot of an entry."""
        slots, slot = self._walk(self.keys[place])
        while slots[slot] != place + 1:
            slot -= 1
        return slots, slot % len(slots)

    def _vacate(self, place: int) -> None:
        """Empty the slot of an entry, and close the gap that it leaves in the walks of others."""
        part: Part = self.parts[hash((self.keys[place],)) & self.mask]
        slots, empty = self._walk_to(place)
        size = len(slots)
        slot = (empty - 1) % size
        while number := slots[slot]:
            # Only an entry whose walk comes by the empty slot may move up into it.
            walked = ((hash((self.keys[number - 1],)) >> PART_BITS) - slot) % size
            if walked >= (empty - slot) % size:
                slots[empty] = number
                empty = slot
            slot = (slot - 1) % size
        slots[empty] = 0
        part.used -= 1
