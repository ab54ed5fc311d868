"""How often each item has failed, for the few that have.

Nearly every message succeeds at once and is never in here. One that fails is kept with its attempts and the moment of
its first failure until it is settled. When a consumer is down for a night those may be millions, so they are kept in
arrays: the item (8 bytes), its attempts (4), the first failure (8), and 6 to 10 bytes for finding it; see `places`.
That is 27 to 32 bytes per item. Asking an empty tally, as every hand-out of a healthy queue does, costs next to nothing.

What always holds: attempts and first failures lie in the order of `places.keys`. No item is in with neither attempts
nor a first failure, since that is the same as not being in.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from penstock.engine.packed import INT64_MAX, INT64_MIN, pack, unpack
from penstock.engine.places import Places
from penstock.errors import InvalidArgument
from penstock.limits import ATTEMPTS_MAX

# How "never failed" is kept beside moments.
_NEVER: Final = INT64_MIN


class Tally:
    """Attempts and the first failure of items.

    >>> tally = Tally()
    >>> tally.set(7, 2, 1000)
    >>> tally.get(7), tally.first_failed(7), tally.get(8), tally.first_failed(8)
    (2, 1000, 0, None)
    >>> tally.discard(7)
    >>> 7 in tally
    False
    """

    __slots__ = ("_attempts", "_firsts", "_places", "count")

    def __init__(self) -> None:
        self.count = 0  # asked for each message
        self._places = Places("q")
        self._attempts = array("i")
        self._firsts = array("q")

    # --- asking ---

    def get(self, item: int) -> int:
        """The attempts of `item`; 0 if it is not in."""
        if not self._attempts:
            return 0
        place = self._places.find(item)
        return self._attempts[place] if place >= 0 else 0

    def first_failed(self, item: int) -> int | None:
        """When `item` failed first, or None."""
        place = self._places.find(item)
        return _moment(self._firsts[place]) if place >= 0 else None

    def __contains__(self, item: object) -> bool:
        return isinstance(item, int) and self._places.find(item) >= 0

    def __len__(self) -> int:
        return self.count

    def items(self) -> Iterator[tuple[int, int, int | None]]:
        """Item, attempts and first failure, by item. Change nothing before it is done.

        >>> tally = Tally()
        >>> tally.set(9, 1, None)
        >>> tally.set(3, 2, 50)
        >>> list(tally.items())
        [(3, 2, 50), (9, 1, None)]
        """
        for place in self._order():
            yield self._places.keys[place], self._attempts[place], _moment(self._firsts[place])

    def __repr__(self) -> str:
        return f"<Tally of {len(self)}>"

    # --- changing ---

    def set(self, item: int, attempts: int, first_failed_us: int | None) -> None:
        """Keep both for `item`, in place of what was kept; 0 attempts and no failure is to forget it."""
        first = _NEVER if first_failed_us is None else first_failed_us
        if not (INT64_MIN <= item <= INT64_MAX and 0 <= attempts <= ATTEMPTS_MAX):
            raise InvalidArgument(
                f"item {item} is not a 64-bit integer, or {attempts} attempts not 0 to {ATTEMPTS_MAX}"
            )
        if first_failed_us is not None and not INT64_MIN < first_failed_us <= INT64_MAX:
            raise InvalidArgument(f"first_failed_us {first_failed_us} is not a moment in 64 bits")
        if not attempts and first == _NEVER:
            self.discard(item)
            return
        place = self._places.find(item)
        if place >= 0:
            self._attempts[place], self._firsts[place] = attempts, first
        else:
            self._places.append(item)
            self._attempts.append(attempts)
            self._firsts.append(first)
            self.count += 1

    def discard(self, item: int) -> None:
        """Forget `item`; it need not be in."""
        if not self._attempts:
            return
        place = self._places.find(item)
        if place >= 0:
            self._remove(place)

    def _remove(self, place: int) -> None:
        roomy = self._places.remove(place)
        attempts, first = self._attempts.pop(), self._firsts.pop()
        self.count -= 1
        if place < len(self._attempts):
            self._attempts[place], self._firsts[place] = attempts, first
        if roomy:
            self._attempts, self._firsts = self._attempts[:], self._firsts[:]

    def _order(self) -> list[int]:
        return sorted(range(len(self)), key=self._places.keys.__getitem__)

    # --- storing ---

    def encode(self) -> tuple[bytes, bytes, bytes]:
        """Items, attempts and first failures, by item; equal tallies give equal bytes."""
        order = self._order()
        return (
            pack(array("q", map(self._places.keys.__getitem__, order))),
            pack(array("i", map(self._attempts.__getitem__, order))),
            pack(array("q", map(self._firsts.__getitem__, order))),
        )

    @classmethod
    def decode(cls, stored: Sequence[bytes]) -> Tally:
        """The tally that `encode` wrote. Checked: what was stored may have been damaged.

        >>> tally = Tally()
        >>> tally.set(7, 2, None)
        >>> list(Tally.decode(tally.encode()).items())
        [(7, 2, None)]
        """
        items, attempts, firsts = unpack("qiq", stored)
        if any(left >= right for left, right in pairwise(items)):
            raise InvalidArgument("stored items do not rise; they are damaged")
        if attempts and min(attempts) < 0:
            raise InvalidArgument("stored attempts are negative; they are damaged")
        if any(not count and first == _NEVER for count, first in zip(attempts, firsts, strict=True)):
            raise InvalidArgument("a stored item has neither attempts nor a failure; it is damaged")
        decoded = cls()
        decoded._places = Places("q", items)
        decoded._attempts, decoded._firsts = attempts, firsts
        decoded.count = len(attempts)
        return decoded


def _moment(first: int) -> int | None:
    return first if first != _NEVER else None
