"""When a recurring message is due: a cron expression, read in a time zone.

An expression has five fields (minute, hour, day of month, month, day of week), or six with seconds before them, or is a
name such as ``@daily``. What a field may say, and which days are meant, is the affair of the library cronsim, which does
as Debian's cron does and also knows ``L``, ``LW``, ``5L`` and ``MON#1``. It is imported when it is first needed, since the core
depends on msgspec alone: ``pip install penstock[schedule]``.

Inside Penstock a due time is microseconds since 1970 UTC; the zone only says how an expression is read. Where clocks are
put forward some local times do not exist, and where they are put back some exist twice. The rule has two cases:

- **The hour is given** (``30 2 * * *``, ``0 */6 * * *``): each local time is meant once. Of two that are called the same the first
  is due; one that does not exist is due at the moment of the jump, and several of them together are due once.
- **Every hour** (``*/15 * * * *``, ``@hourly``): what is meant is how long to wait, so it goes on as time passes. The hour
  that comes twice is due twice, and the one that is left out is not due.

So ``30 2 * * *`` in Berlin is due once a day, every day, and ``@hourly`` once an hour, always. cronsim has a rule like that, as
Debian has, but decides by the spelling (``*/6`` would be due twice), not at all with six fields, and passes over a due time where
clocks are put back by half an hour. So cronsim is only asked for local times, as if they were UTC's, and the rule is
applied here.

What always holds:

- Due times rise: the one after a moment is later than it, so asking again with the answer never gives it again.
- There is no state and no clock: the same question has the same answer, in another process too, as long as the time zone
  data are the same. When a government changes its mind and the data follow, due times that were not reached yet follow.
- A `Recurrence` from `recurrence` is due some day. One that was stored may name a time zone that this machine does not
  know; asking for its due times says so.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, Literal, NoReturn, get_args
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from penstock import argument
from penstock.clock import SECOND_US, to_datetime, to_us
from penstock.errors import InvalidArgument, MissingExtra

if TYPE_CHECKING:
    from cronsim import CronSim

#: Every minute, hour, day and month in full is below that; a longer one is a slip of the pen.
CRON_CHARS_MAX: Final = 1024

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

# As cronsim calls them in its errors, and what each may be. Without seconds the first one is left out.
_FIELDS: Final = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW",
    "month": "1 to 12, or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday), SUN to SAT, 5L or MON#1",
}
_DAY, _MONTH = list(_FIELDS).index("day-of-month"), list(_FIELDS).index("month")
_FIVE: Final = "minute hour day-of-month month day-of-week"
_HOURS: Final = 24

# How much of a long expression an error shows on each side of the place.
_SHOWN_CHARS: Final = 50

# Where the search for a first due time begins. Within the 50 years that cronsim looks ahead from here no leap year is
# left out, so every weekday falls on the 29th of February: what is not due then never is.
_SEARCH_START: Final = datetime(2024, 1, 1, tzinfo=UTC)

# Looking back goes in windows. The first one is short enough to hold few due times, whatever the expression;
# one that turns out to hold more than this is divided.
_WINDOW_US: Final = 3600 * SECOND_US
_WINDOW_DUES_MAX: Final = 10_000
_WINDOW_DIVISOR: Final = 16


class Recurrence(msgspec.Struct, frozen=True):
    """When a message recurs. Made by `recurrence`.

    `cron` has five or six fields, with one space between two: an alias was translated.
    """

    cron: str
    timezone: str


#: What becomes of due times that the broker was not there for: see `scheduling`.
Missed = Literal["once", "skip", "all"]


def missed_rule(given: object) -> Missed:
    """Check what becomes of due times that were missed."""
    plain = argument.text(given)
    if plain not in get_args(Missed):
        raise InvalidArgument(
            f"missed is {argument.quoted(given)}; give one of {', '.join(map(repr, get_args(Missed)))}"
        )
    return plain  # type: ignore[return-value]


def recurrence(cron: object, timezone: object) -> Recurrence:
    """Check an expression and the name of a time zone; an `InvalidArgument` says what is wrong with which.

    >>> recurrence("30 2 * * MON-FRI", "Europe/Berlin")
    Recurrence(cron='30 2 * * MON-FRI', timezone='Europe/Berlin')
    >>> recurrence("@daily", "UTC").cron
    '0 0 * * *'
    >>> recurrence("30 25 * * *", "UTC")
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: the cron expression is wrong: bad hour '25' at character 4; give 0 to 23, or * for \
each, and with - , / ranges, lists and steps
      30 25 * * *
         ^
    """
    expression = _expression(cron)
    name = argument.text(timezone)
    if name is None:
        raise InvalidArgument(
            f"the time zone is {argument.quoted(timezone)}; give its name as a str, such as 'Europe/Berlin'"
        )
    _zone(name)
    if next(_simulation(expression, _SEARCH_START), None) is None:
        _fail_never(expression)
    return Recurrence(" ".join(expression.split()), name)


def next_due_us(recurrence: Recurrence, after_us: int) -> int:
    """The first due time after a moment, strictly.

    >>> from datetime import datetime, UTC
    >>> noon = Recurrence("0 12 * * *", "Europe/Berlin")
    >>> due_us = next_due_us(noon, to_us(datetime(2026, 7, 1, tzinfo=UTC)))
    >>> to_datetime(due_us).isoformat()
    '2026-07-01T10:00:00+00:00'
    >>> to_datetime(next_due_us(noon, due_us)).isoformat()
    '2026-07-02T10:00:00+00:00'
    """
    for due_us in _dues(recurrence, after_us):
        return due_us
    raise InvalidArgument(
        f"the cron expression {argument.quoted(recurrence.cron)} is not due in the years after {after_us} us; give another"
    )


def due_between(recurrence: Recurrence, after_us: int, until_us: int, most: int) -> list[int]:
    """The due times after a moment and up to another, itself included; of more than `most`, the last.

    The work goes with what is given back, not with the length of the time: a broker that was down for a year asks too.

    >>> minutely = Recurrence("* * * * *", "UTC")
    >>> due_between(minutely, 0, 3_600_000_000, 2)
    [3540000000, 3600000000]
    """
    found: deque[int] = deque()
    end_us, window_us = until_us, _WINDOW_US
    while end_us > after_us and len(found) < most:
        start_us = max(after_us, end_us - window_us)
        inside = _inside(recurrence, start_us, end_us)
        if len(inside) > _WINDOW_DUES_MAX:
            window_us = max(_WINDOW_US, window_us // _WINDOW_DIVISOR)
            continue
        found.extendleft(reversed(inside))
        end_us = start_us
        window_us *= 2
    return list(found)[-most:]


def _inside(recurrence: Recurrence, start_us: int, end_us: int) -> list[int]:
    """The due times of a window; one more than it may hold if there are too many."""
    dues = takewhile(lambda due_us: due_us <= end_us, _dues(recurrence, start_us))
    return list(islice(dues, _WINDOW_DUES_MAX + 1))


# --- due times, one after the other ---


def _dues(recurrence: Recurrence, after_us: int) -> Iterator[int]:
    zone = _zone(recurrence.timezone)
    every_hour = len(_simulation(recurrence.cron, _SEARCH_START).hours) == _HOURS
    walk = _as_time_passes if every_hour else _once_each
    try:
        yield from walk(recurrence.cron, zone, after_us)
    except OverflowError:
        return  # the calendar ends with the year 9999


def _once_each(cron: str, zone: tzinfo, after_us: int) -> Iterator[int]:
    """Each local time once, whether it exists or not."""
    for local in _simulation(cron, to_datetime(after_us + _offset_us(zone, after_us))):
        due_us = _moment_us(zone, local)
        # In the hour that comes twice, its first pass is over; and what a jump left out is due at one moment.
        if due_us > after_us:
            yield due_us
            after_us = due_us


def _as_time_passes(cron: str, zone: tzinfo, after_us: int) -> Iterator[int]:
    """Each moment that has the right local time: from one change of the clocks to the next they just count."""
    offset_us = _offset_us(zone, after_us)
    while True:
        for local in _simulation(cron, to_datetime(after_us + offset_us)):
            due_us = to_us(local) - offset_us
            if _offset_us(zone, due_us) != offset_us:
                break
            yield due_us
            after_us = due_us
        else:
            return
        # They were changed on the way: count again, from that moment on.
        changed_us = _change_us(zone, offset_us, after_us, due_us)
        after_us, offset_us = changed_us - SECOND_US, _offset_us(zone, changed_us)


def _moment_us(zone: tzinfo, local: datetime) -> int:
    """When a local time is: of two moments the first, and the moment of the jump if there is none."""
    first_us, second_us = (to_us(local.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    if first_us <= second_us:
        return first_us
    # A local time that was left out is counted as before the jump for the first, which is a moment after it, and as after the
    # jump for the second, which is a moment before it.
    return _change_us(zone, to_us(local) - first_us, second_us, first_us)


def _change_us(zone: tzinfo, offset_us: int, after_us: int, until_us: int) -> int:
    """The first second, after a moment and up to another, with another offset than this one."""
    seconds = range(after_us // SECOND_US + 1, until_us // SECOND_US + 1)
    changed = bisect_left(seconds, True, key=lambda second: _offset_us(zone, second * SECOND_US) != offset_us)
    return seconds[changed] * SECOND_US


def _offset_us(zone: tzinfo, us: int) -> int:
    """What a zone's clocks are ahead of UTC at a moment."""
    return to_us(to_datetime(us).astimezone(zone).replace(tzinfo=UTC)) - us


# --- expressions ---


def _expression(cron: object) -> str:
    plain = argument.text(cron)
    if plain is None:
        raise InvalidArgument(
            f"the cron expression is {argument.quoted(cron)}; give a str, such as '0 6 * * MON-FRI'"
        )
    if len(plain) > CRON_CHARS_MAX:
        raise InvalidArgument(
            f"the cron expression has {len(plain)} characters; give at most {CRON_CHARS_MAX}"
        )
    if plain.strip().startswith("@"):
        return _translated(plain.strip())
    if not plain.isascii():
        # Some letters become others in upper case, which is how cronsim reads an expression.
        at = next(at for at, character in enumerate(plain) if not character.isascii())
        _fail(plain, at, f"unexpected {plain[at]!r}", "give ASCII digits, letters and * , - / # only")
    count = len(plain.split())
    if count not in (5, 6):
        raise InvalidArgument(
            f"the cron expression {argument.quoted(plain)} has {count} fields; give five ({_FIVE}), or six with seconds first"
        )
    return plain


def _translated(alias: str) -> str:
    known = ALIASES.get(alias.lower())
    if known is None:
        raise InvalidArgument(
            f"the cron expression is {argument.quoted(alias)}; give {', '.join(ALIASES)}, or five fields ({_FIVE})"
        )
    return known


def _simulation(cron: str, after: datetime) -> CronSim:
    """The local times that an expression means, after one; both as if they were UTC's."""
    fields = cron.split()
    six = ["0", *fields] if len(fields) < len(_FIELDS) else fields
    found = _understood(six, after)
    return _fail_field(cron, six, found) if isinstance(found, str) else found


def _understood(six: list[str], after: datetime) -> CronSim | str:
    """What cronsim makes of six fields, or what it says against them."""
    try:
        import cronsim
    except ImportError as error:
        raise MissingExtra(
            'recurring messages need cronsim; install with: pip install "penstock[schedule]"'
        ) from error
    try:
        return cronsim.CronSim(" ".join(six), after)
    except cronsim.CronSimError as error:
        return str(error)


# --- what is wrong with one ---


def _fail_field(cron: str, six: list[str], said: str) -> NoReturn:
    name = said.removeprefix("Bad ")
    if name not in _FIELDS:
        raise InvalidArgument(
            f"the cron expression {argument.quoted(cron)} is wrong: {said.lower()}; give five fields ({_FIVE})"
        )
    place = list(_FIELDS).index(name)
    # cronsim also blames a good day that none of the months has; in all months together only a bad one is bad.
    all_year = [*six[:_MONTH], "*", *six[_MONTH + 1 :]]
    if place == _DAY and not isinstance(_understood(all_year, _SEARCH_START), str):
        _fail_never(cron)
    starts = [found.start() for found in re.finditer(r"\S+", cron)]
    _fail(
        cron,
        starts[place - len(six) + len(starts)],
        f"bad {name} {argument.quoted(six[place])}",
        f"give {_FIELDS[name]}, or * for each, and with - , / ranges, lists and steps",
    )


def _fail_never(cron: str) -> NoReturn:
    raise InvalidArgument(
        f"the cron expression {argument.quoted(cron)} is never due: no day is like that; change its day-of-month, month or"
        " day-of-week"
    )


def _fail(cron: str, at: int, what: str, advice: str) -> NoReturn:
    start, end = max(0, at - _SHOWN_CHARS), at + _SHOWN_CHARS
    before, after = "…" if start else "", "…" if end < len(cron) else ""
    # A tab or a line end would put the caret elsewhere.
    shown = "".join(each if each.isprintable() else " " for each in cron[start:end])
    line, caret = f"{before}{shown}{after}".rstrip(), " " * (len(before) + at - start) + "^"
    raise InvalidArgument(
        f"the cron expression is wrong: {what} at character {at + 1}; {advice}\n  {line}\n  {caret}"
    )


# --- time zones ---


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # there is no need of data to know it
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        # Not found; a path that leads elsewhere; a directory, or what is no time zone in it.
        raise InvalidArgument(
            f"the time zone {argument.quoted(name)} is not known; {_advice(name)}"
        ) from error


def _advice(name: str) -> str:
    known = available_timezones()
    if not known:
        return "this machine has no time zone data: pip install tzdata"
    spelled = {each.lower(): each for each in sorted(known)}
    close = difflib.get_close_matches(name[: argument.QUOTED_CHARS_MAX].lower(), spelled, n=1)
    return f"did you mean {spelled[close[0]]!r}?" if close else "give a name such as 'Europe/Berlin' or 'UTC'"
