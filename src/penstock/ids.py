"""Message ids: 64-bit Snowflakes that sort by time and are never given twice.

    63            62                              22 21        12 11             0
    +---+------------------------------------------+------------+---------------+
    | 0 | milliseconds since 2024-01-01 UTC (41)   |  node (10) | sequence (12) |
    +---+------------------------------------------+------------+---------------+

What always holds: every id from one `SnowflakeIds` is larger than all before it, and larger than the `last` that it was
given. Two nodes never give the same id, since the node is part of it; giving each node its own number is the
operator's duty.

The clock is only a floor. When it goes back, or when more than 4096 ids are wanted in one millisecond, the generator
does not wait: it goes on counting in a millisecond that has not come yet, and is "ahead" until the clock has caught up.
Ids then say a slightly late time, which is why a message carries its timestamp separately.

After a crash the generator knows nothing; whoever recovers passes the highest id ever seen as `last`, and the new ids
continue above it even if the clock was turned back in between.

A batch gets its ids at once: up to 4096 as a `range` (no memory, no loop), because consecutive ids of one millisecond
are consecutive integers. When the rest of the current millisecond is too small the batch begins in the next one.

Not thread-safe: callers hold the lock that orders their commits anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from penstock import argument
from penstock.clock import Clock, to_us
from penstock.errors import InvalidArgument
from penstock.limits import ID_NODE_BITS, ID_SEQUENCE_BITS, ID_TIME_BITS

EPOCH_US: Final = to_us(datetime(2024, 1, 1, tzinfo=UTC))

NODE_MAX: Final = (1 << ID_NODE_BITS) - 1
SEQUENCES: Final = 1 << ID_SEQUENCE_BITS
ID_MAX: Final = (1 << (ID_TIME_BITS + ID_NODE_BITS + ID_SEQUENCE_BITS)) - 1

_TIME_SHIFT: Final = ID_NODE_BITS + ID_SEQUENCE_BITS
_MS_MAX: Final = (1 << ID_TIME_BITS) - 1
_MS_US: Final = 1000


class SnowflakeIds:
    """Gives ids that only go up.

    >>> from penstock.clock import ManualClock
    >>> ids = SnowflakeIds(node=7, clock=ManualClock())
    >>> first, second = ids.next(), ids.next()
    >>> second - first, node_of(first)
    (1, 7)
    >>> batch = ids.take(1000)
    >>> isinstance(batch, range), batch[0] > second
    (True, True)
    """

    def __init__(self, node: int, clock: Clock, last: int = 0) -> None:
        plain = argument.integer(node)
        if plain is None or not 0 <= plain <= NODE_MAX:
            raise InvalidArgument(
                f"node is {argument.quoted(node)}; give 0 to {NODE_MAX}, a different one to each node"
            )
        self._node_bits = plain << ID_SEQUENCE_BITS
        self._clock = clock
        self._last = 0
        self.after(last)

    @property
    def last(self) -> int:
        """The highest id given, or seen by `after`."""
        return self._last

    def after(self, id: int) -> None:
        """Continue above `id`; one below `last` changes nothing."""
        if not 0 <= id <= ID_MAX:
            raise InvalidArgument(f"id is {id}; an id is 0 to {ID_MAX}")
        self._last = max(self._last, id)

    def next(self) -> int:
        """One id."""
        self._last = self._room_for(1)
        return self._last

    def take(self, count: int) -> Sequence[int]:
        """`count` ids, rising: a `range` up to 4096, else a list."""
        if count < 0:
            raise InvalidArgument(f"count is {count}; give 0 or more")
        if count <= SEQUENCES:
            return self._take_range(count)
        ids: list[int] = []
        for taken in range(0, count, SEQUENCES):
            ids.extend(self._take_range(min(SEQUENCES, count - taken)))
        return ids

    def _take_range(self, count: int) -> range:
        if not count:
            return range(0)
        start = self._room_for(count)
        self._last = start + count - 1
        return range(start, start + count)

    def _room_for(self, count: int) -> int:
        """Where `count` consecutive ids of this node begin: above `last`, not before the clock, in one millisecond."""
        last_ms = self._last >> _TIME_SHIFT
        start = max(self._first_of(self._clock_ms()), self._first_of(last_ms))
        if start <= self._last:
            start = self._first_free(last_ms, count)
        if start + count - 1 > ID_MAX:
            raise InvalidArgument("ids have run out of milliseconds; set the machine's clock right")
        return start

    def _first_free(self, last_ms: int, count: int) -> int:
        """The place after `last` when `count` fit there, else the beginning of the next millisecond."""
        used = self._last + 1 - self._first_of(last_ms)
        if used + count <= SEQUENCES:
            return self._last + 1
        return self._first_of(last_ms + 1)

    def _first_of(self, ms: int) -> int:
        return (ms << _TIME_SHIFT) | self._node_bits

    def _clock_ms(self) -> int:
        # Negative when the clock is wrong (a machine without a battery); `last` is the higher floor then.
        return (self._clock.now_us() - EPOCH_US) // _MS_US


def time_us_of(id: int) -> int:
    """When an id was made: microseconds since 1970 UTC, in steps of a millisecond.

    >>> time_us_of(first_id_at(1767225600123456))
    1767225600123000
    """
    return (id >> _TIME_SHIFT) * _MS_US + EPOCH_US


def node_of(id: int) -> int:
    """The node that made an id."""
    return (id >> ID_SEQUENCE_BITS) & NODE_MAX


def sequence_of(id: int) -> int:
    """Its place among the ids of its node and millisecond."""
    return id & (SEQUENCES - 1)


def first_id_at(time_us: int) -> int:
    """The smallest id of the millisecond that holds `time_us`: no id made at or after that moment is smaller."""
    ms = (time_us - EPOCH_US) // _MS_US
    return min(max(0, ms), _MS_MAX) << _TIME_SHIFT
