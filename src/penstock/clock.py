"""Where the time comes from, and the only place that converts it.

Inside Penstock a moment is an integer, microseconds since 1970 UTC, and a duration is an integer of microseconds:
exact, ordered, and eight bytes in a column. What a user writes (seconds as a number, a `timedelta`, an aware
`datetime`) is converted here, once, at the edge.

There are two clocks and they answer different questions. The wall clock says what time it is, is stored, and may jump
either way (somebody sets it, a machine wakes up). The monotonic clock says how long something took, means nothing to
another process, and never goes back. Waiting and deadlines in memory use the second; due times that must survive a
restart use the first.

Code takes a `Clock` as an argument and never calls `time` itself, so that a test owns the time and nobody sleeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from weakref import WeakMethod

from penstock import argument
from penstock.errors import InvalidArgument
from penstock.limits import DURATION_S_MAX

Duration = int | float | timedelta
"""What a user may write for a length of time: seconds as a number, or a `timedelta`."""

SECOND_US: Final = 1_000_000

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - _UNIX_EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _UNIX_EPOCH) // _MICROSECOND


class Clock(Protocol):
    """A source of time."""

    def now_us(self) -> int:
        """The wall clock: microseconds since 1970 UTC. May jump either way."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds since some fixed moment of this process. Never goes back."""
        ...


class SystemClock:
    """The machine's own clocks.

    >>> clock = SystemClock()
    >>> clock.monotonic_us() <= clock.monotonic_us()
    True
    """

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000


def nanoseconds_of(clock: Clock) -> Callable[[], int]:
    """A clock's monotonic time in nanoseconds, for those who ask it a million times a second: the machine's own in one call."""
    return time.monotonic_ns if type(clock) is SystemClock else lambda: clock.monotonic_us() * 1000


class ManualClock:
    """A clock that stands still until it is told to move.

    A broker that was opened with it hears of every move: when `advance` returns, what was due has happened, and who waited for it is awake.

    >>> clock = ManualClock(start_us=1_000_000)
    >>> clock.advance(seconds=2.5)
    >>> clock.now_us(), clock.monotonic_us()
    (3500000, 2500000)
    >>> clock.set_back(seconds=1)  # the wall clock only
    >>> clock.now_us(), clock.monotonic_us()
    (2500000, 2500000)
    >>> clock.set_forward(seconds=10)
    >>> clock.now_us(), clock.monotonic_us()
    (12500000, 2500000)
    """

    # 2026-01-01 UTC: a plausible present, after the epoch of the ids.
    START_US: Final = 1_767_225_600 * SECOND_US

    def __init__(self, start_us: int = START_US) -> None:
        self._now_us = start_us
        self._monotonic_us = 0
        self._followers: list[WeakMethod[Callable[[], object]]] = []

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def advance(self, seconds: float = 0, *, us: int = 0) -> None:
        """Let time pass, on both clocks."""
        passed_us = _forward_us(seconds, us)
        self._now_us += passed_us
        self._monotonic_us += passed_us
        self._tell()

    def set_back(self, seconds: float = 0, *, us: int = 0) -> None:
        """Let somebody turn the wall clock back; the monotonic one does not notice."""
        self._now_us -= _forward_us(seconds, us)
        self._tell()

    def set_forward(self, seconds: float = 0, *, us: int = 0) -> None:
        """Let somebody turn the wall clock forward, or the machine sleep; the monotonic one does not notice."""
        self._now_us += _forward_us(seconds, us)
        self._tell()

    def tell(self, follower: Callable[[], object]) -> None:
        """Have a bound method called after every move, as long as its object is alive."""
        alive = [one for one in self._followers if one() is not None]
        self._followers = [*alive, WeakMethod(follower)]

    def _tell(self) -> None:
        for one in self._followers:
            follower = one()
            if follower is not None:
                follower()


def _forward_us(seconds: float, us: int) -> int:
    total_us = round(seconds * SECOND_US) + us
    if total_us < 0:
        raise InvalidArgument(
            f"time moves by {total_us} us; give a positive amount (set_back turns the wall clock back)"
        )
    return total_us


def to_us(moment: datetime, field: str = "time") -> int:
    """Microseconds since 1970 UTC of an aware `datetime`, exactly; within the moments that UTC has.

    >>> to_us(datetime(2026, 1, 1, tzinfo=UTC))
    1767225600000000
    """
    if not issubclass(type(moment), datetime):
        raise InvalidArgument(
            f"{field} is {argument.quoted(moment)}; give an aware datetime, such as datetime.now(UTC)"
        )
    try:
        since = datetime.__sub__(moment, _UNIX_EPOCH) if moment.utcoffset() is not None else None
    except Exception as error:  # time zones are anybody's code
        raise InvalidArgument(
            f"the time zone of {field} cannot tell the time ({argument.quoted(error)}); give another"
        ) from error
    if since is None:
        raise InvalidArgument(
            f"{field} is {argument.quoted(moment)}, which has no time zone; give an aware datetime (tzinfo=UTC)"
        )
    return min(max(since // _MICROSECOND, _FIRST_US), _LAST_US)


def to_datetime(us: int) -> datetime:
    """The aware `datetime`, in UTC, of microseconds since 1970.

    >>> to_datetime(1767225600000000).isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    return _UNIX_EPOCH + timedelta(microseconds=us)


def microseconds(seconds: float | None) -> int | None:
    """Convert a length of time of the port, which was checked where it entered."""
    return None if seconds is None else round(seconds * SECOND_US)


def duration_us(value: Duration, field: str = "duration") -> int:
    """A length of time as microseconds; never negative, never above `DURATION_S_MAX`.

    >>> duration_us(1.5), duration_us(timedelta(minutes=1))
    (1500000, 60000000)
    """
    us = _whole_us(value, field)
    if not 0 <= us <= DURATION_S_MAX * SECOND_US:
        raise InvalidArgument(f"{field} is {argument.quoted(value)}; give 0 to {DURATION_S_MAX} seconds")
    return us


def _whole_us(value: Duration, field: str) -> int:
    if issubclass(type(value), timedelta):
        return timedelta.__floordiv__(value, _MICROSECOND)  # type: ignore[operator]
    seconds = argument.number(value)
    if seconds is None or (type(seconds) is float and math.isnan(seconds)):
        raise InvalidArgument(
            f"{field} is {argument.quoted(value)}; give seconds as a number, or a timedelta"
        )
    # What is out of bounds need not be exact, and cannot be: an int may be larger than any float.
    return round(min(max(seconds, -1), DURATION_S_MAX + 1) * SECOND_US)
