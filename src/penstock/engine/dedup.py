"""Which dedup ids were published, for as long as a repetition must be dropped.

An id is kept as a 128-bit hash (BLAKE2b, two halves of 64 bits), the message that it was first published with, and the
moment when it is forgotten: 32 bytes in arrays, and 8 to 15 more for finding it and for room to spare. Two different ids share a hash with a
probability of 1 in 10**26 for a million ids, which is far below that of a broken disk.

Ids live in two tables:

    fading   those that came in the order in which they end, which with one window is all of them. They leave at the
             front, any number by one look-up and one move of memory.
    loose    those held until their message is settled, with no end yet (exactly-once), and those that end earlier than
             one that came before them, as after the window was made shorter. The latter are also in a timeline, which
             says when to take them out one by one.

What always holds:

- An id is in at most one table, and there once.
- An id ends at `expires_us`: it is a repetition before that moment and new from then on, whether or not `expire` was
  called. `expire` only gives memory back.
- `fading` is sorted by `expires_us`. An entry whose message is -1 was taken out of the middle. The slots of such
  entries, and of those that have ended, are stale until their part is made anew (see `slots`): so to forget an id costs
  nothing but its share of that.
- Nothing here knows the time: whoever publishes asks `seen` first, and calls `remember` only for what was new.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress, pairwise
from struct import Struct
from typing import Final

from penstock.engine.packed import INT64_MAX, INT64_MIN, pack, unpack
from penstock.engine.places import Places
from penstock.engine.slots import PART_BITS, Slots
from penstock.engine.timeline import Timeline
from penstock.errors import InvalidArgument

# The end of a held id: no moment is that late.
_HELD: Final = INT64_MAX

# The message of an entry that was taken out; ids of messages are never negative.
_GONE: Final = -1

# Gaps are closed when more entries were taken out than are left, and at least that many.
_GONE_MIN: Final = 64

# The share of entries at the front that have ended, above which the rest is moved over them.
_ENDED_SHARE: Final = 16

# Numbers in slots have 32 bits and grow with every id; long before they are used up, they begin anew.
_MOVED_MAX: Final = 2**31

_HALVES: Final = Struct("<QQ")


class DedupWindow:
    """Remembers dedup ids, each until its own moment.

    >>> window = DedupWindow()
    >>> window.seen("order-1", now_us=100)
    >>> window.remember("order-1", 7, expires_us=200)
    >>> window.seen("order-1", now_us=199), window.seen("order-1", now_us=200)
    (7, None)
    """

    __slots__ = ("_fading", "_loose", "_strays")

    def __init__(self) -> None:
        self._fading = _Fading()
        self._loose = _Loose()
        self._strays = (
            Timeline()
        )  # derived: when the loose ones that are not held end, with the lower half of the hash

    # --- asking ---

    def seen(self, dedup_id: str, now_us: int) -> int | None:
        """The message that `dedup_id` was first published with, if that is not over at `now_us`."""
        low, high = _hashed(dedup_id)
        table: _Fading | _Loose = self._fading
        place = table.find(low, high)
        if place < 0:
            table = self._loose
            place = table.find(low, high)
        return table.messages[place] if place >= 0 and now_us < table.expires[place] else None

    def __len__(self) -> int:
        return len(self._fading) + len(self._loose)

    def __repr__(self) -> str:
        return f"<DedupWindow of {len(self)}>"

    # --- changing ---

    def remember(self, dedup_id: str, message_id: int, expires_us: int | None) -> None:
        """Keep an id that was not `seen`, until `expires_us`; None holds it until it is released.

        What was kept for that id is replaced: it can only be over. (A repetition is dropped by whoever asked `seen`, and
        so does not prolong anything.)
        """
        _check(message_id, expires_us)
        low, high = _hashed(dedup_id)
        self._take(low, high)
        self._put(low, high, message_id, _HELD if expires_us is None else expires_us)

    def hold(self, dedup_id: str) -> bool:
        """Keep an id until it is released, and say whether it was there to be kept."""
        return self._move(dedup_id, _HELD)

    def release(self, dedup_id: str, expires_us: int) -> bool:
        """Keep a held id until `expires_us` only; one that is not held is left alone. Say whether it was held.

        >>> window = DedupWindow()
        >>> window.remember("order-1", 7, None)
        >>> window.expire(10**18)
        >>> window.release("order-1", 10**18 + 5), window.release("order-1", 10**18 + 9)
        (True, False)
        >>> window.seen("order-1", 10**18 + 5)
        """
        _check(0, expires_us)
        low, high = _hashed(dedup_id)
        place = self._loose.find(low, high)
        if place < 0 or self._loose.expires[place] != _HELD:
            return False
        self._put(low, high, self._loose.remove(place)[0], expires_us)
        return True

    def expire(self, now_us: int) -> None:
        """Forget what is over at `now_us`."""
        self._fading.expire(now_us)
        for due, low in self._strays.pop_due(now_us):
            for place in self._loose.places.find_all(_unsigned(low)):
                if self._loose.expires[place] == due:
                    self._loose.remove(place)
                    break

    def _move(self, dedup_id: str, expires_us: int) -> bool:
        low, high = _hashed(dedup_id)
        message_id = self._take(low, high)
        if message_id is None:
            return False
        self._put(low, high, message_id, expires_us)
        return True

    def _take(self, low: int, high: int) -> int | None:
        """Take an entry out, and give its message."""
        place = self._fading.find(low, high)
        if place >= 0:
            return self._fading.remove(place)
        place = self._loose.find(low, high)
        if place < 0:
            return None
        message_id, expires_us = self._loose.remove(place)
        if expires_us != _HELD:
            self._strays.discard(expires_us, _signed(low))
        return message_id

    def _put(self, low: int, high: int, message_id: int, expires_us: int) -> None:
        if expires_us == _HELD:
            self._loose.append(low, high, message_id, expires_us)
        elif expires_us >= self._fading.latest_us:
            self._fading.append(low, high, message_id, expires_us)
        else:
            self._loose.append(low, high, message_id, expires_us)
            self._strays.add(expires_us, _signed(low))

    # --- storing ---

    def encode(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Both halves of the hashes, the messages and the ends. It copies arrays and sorts nothing."""
        self._fading.pack()
        fading, loose = self._fading, self._loose
        return (
            pack(fading.lows + loose.places.keys),
            pack(fading.highs + loose.highs),
            pack(fading.messages + loose.messages),
            pack(fading.expires + loose.expires),
        )

    @classmethod
    def decode(cls, stored: Sequence[bytes]) -> DedupWindow:
        """The window that `encode` wrote. Checked: what was stored may have been damaged.

        >>> window = DedupWindow()
        >>> window.remember("order-1", 7, 200)
        >>> DedupWindow.decode(window.encode()).seen("order-1", 100)
        7
        """
        lows, highs, messages, expires = unpack("QQqq", stored)
        if messages and min(messages) < 0:
            raise InvalidArgument("a stored dedup id has no message; it is damaged")
        decoded = cls()
        sorted_count = _sorted_count(expires)
        columns = (lows, highs, messages, expires)
        decoded._fading = _Fading.of([column[:sorted_count] for column in columns])
        for entry in zip(*(column[sorted_count:] for column in columns), strict=True):
            decoded._put(*entry)
        return decoded


class _Fading(Slots):
    """Entries in the order in which they end."""

    __slots__ = ("_front", "_gone_count", "_moved", "expires", "highs", "lows", "messages")

    def __init__(self) -> None:
        self.lows = array("Q")  # the hash by which an entry is found
        self.highs = array("Q")
        self.messages = array("q")
        self.expires = array("q")
        self._front = 0  # what lies before has ended
        self._gone_count = 0  # derived: entries from the front on that were taken out
        self._moved = 1  # the number in a slot is the place of its entry plus this
        super().__init__()

    @classmethod
    def of(cls, columns: list[array[int]]) -> _Fading:
        made = cls()
        made.lows, made.highs, made.messages, made.expires = columns
        made._lay_out_all()
        return made

    def __len__(self) -> int:
        return len(self.lows) - self._front - self._gone_count

    @property
    def latest_us(self) -> int:
        return self.expires[-1] if self.expires else INT64_MIN

    def find(self, low: int, high: int) -> int:
        """The place of an entry, or -1."""
        lows, moved, front = self.lows, self._moved, self._front
        slots = self.parts[low & self.mask].slots
        slot = (low >> PART_BITS) % len(slots)
        while number := slots[slot]:
            place = number - moved
            if place >= front and lows[place] == low and self._is(place, high):
                return place
            slot -= 1
        return -1

    def _is(self, place: int, high: int) -> bool:
        return self.highs[place] == high and self.messages[place] != _GONE

    def living(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """As `Slots` asks for it: stale is what has ended or was taken out."""
        lows, messages, moved = self.lows, self.messages, self._moved
        first = moved + self._front
        return [
            (lows[number - moved], number)
            for number in numbers
            if number >= first and messages[number - moved] != _GONE
        ]

    def append(self, low: int, high: int, message_id: int, expires_us: int) -> None:
        self.lows.append(low)
        self.highs.append(high)
        self.messages.append(message_id)
        self.expires.append(expires_us)
        self.enter(low, len(self.lows) - 1 + self._moved)

    def remove(self, place: int) -> int:
        """Take out an entry from anywhere, and give its message."""
        message_id = self.messages[place]
        self.messages[place] = _GONE
        self._gone_count += 1
        if self._gone_count > _GONE_MIN + len(self):
            self.pack()
        return message_id

    def expire(self, now_us: int) -> None:
        """Let everything go that has ended."""
        if self._front == len(self.expires) or self.expires[self._front] > now_us:
            return
        end = bisect_right(self.expires, now_us, self._front)
        if self._gone_count:
            self._gone_count -= self.messages[self._front : end].count(_GONE)
        self._front = end
        if end * _ENDED_SHARE > len(self.expires):
            self._drop_front()
            if self.is_roomy(len(self.lows)) or self._moved > _MOVED_MAX:
                self._lay_out_all()

    def pack(self) -> None:
        """Give back the room of entries that ended or were taken out."""
        self._drop_front()
        if self._gone_count:
            kept = [message != _GONE for message in self.messages]
            self.lows = array("Q", compress(self.lows, kept))
            self.highs = array("Q", compress(self.highs, kept))
            self.messages = array("q", compress(self.messages, kept))
            self.expires = array("q", compress(self.expires, kept))
            self._gone_count = 0
            self._lay_out_all()

    def _drop_front(self) -> None:
        front = self._front
        del self.lows[:front], self.highs[:front], self.messages[:front], self.expires[:front]
        self._moved += front
        self._front = 0

    def _lay_out_all(self) -> None:
        self.lay_out(len(self.lows))
        self._moved = 1
        for number, low in enumerate(self.lows, 1):
            self.enter(low, number)


class _Loose:
    """Entries that leave one by one, in any order."""

    __slots__ = ("expires", "highs", "messages", "places")

    def __init__(self) -> None:
        self.places = Places("Q")  # of the lower halves
        self.highs = array("Q")
        self.messages = array("q")
        self.expires = array("q")

    def __len__(self) -> int:
        return len(self.highs)

    def find(self, low: int, high: int) -> int:
        """The place of an entry, or -1."""
        if not self.highs:
            return -1
        place = self.places.find(low)
        if place < 0 or self.highs[place] == high:
            return place
        return next((place for place in self.places.find_all(low) if self.highs[place] == high), -1)

    def append(self, low: int, high: int, message_id: int, expires_us: int) -> None:
        self.places.append(low)
        self.highs.append(high)
        self.messages.append(message_id)
        self.expires.append(expires_us)

    def remove(self, place: int) -> tuple[int, int]:
        """Take out an entry, and give its message and its end."""
        removed = self.messages[place], self.expires[place]
        roomy = self.places.remove(place)
        for column in (self.highs, self.messages, self.expires):
            last = column.pop()
            if place < len(column):
                column[place] = last
        if roomy:
            self.highs, self.messages, self.expires = self.highs[:], self.messages[:], self.expires[:]
        return removed


def _hashed(dedup_id: str) -> tuple[int, int]:
    digest = blake2b(dedup_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    low, high = _HALVES.unpack(digest)
    return low, high


def _signed(low: int) -> int:
    return low - (1 << 64) if low >> 63 else low


def _unsigned(low: int) -> int:
    return low & (1 << 64) - 1


def _sorted_count(expires: array[int]) -> int:
    """How many entries from the first on are in the order in which they end, before any that is held."""
    for place, (left, right) in enumerate(pairwise(expires), 1):
        if left > right or right == _HELD:
            return place if expires[0] != _HELD else 0
    return len(expires) if expires and expires[0] != _HELD else 0


def _check(message_id: int, expires_us: int | None) -> None:
    if not 0 <= message_id <= INT64_MAX:
        raise InvalidArgument(f"message id {message_id} is not 0 to {INT64_MAX}")
    if expires_us is not None and not INT64_MIN <= expires_us < _HELD:
        raise InvalidArgument(f"expires_us {expires_us} is not a moment in 64 bits")
