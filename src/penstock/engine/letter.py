"""What a dead letter says of itself, and how it finds its way back.

A dead letter is an ordinary message: the payload, key and priority of the one that failed, its headers, and these::

    x-origin          the log in which it failed
    x-origin-group    the group in which it failed
    x-origin-id       the id it had there (of the first time, if it failed again after a redrive)
    x-reason          max-attempts, rejected or expired
    x-error           what the last nack or reject said, if it said anything
    x-attempts        how often it was handed out
    x-first-failure   when it failed first and last, as ISO 8601 in UTC
    x-last-failure

Pure functions, which the shards use too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.clock import to_datetime

ORIGIN: Final = "x-origin"
ORIGIN_GROUP: Final = "x-origin-group"
ORIGIN_ID: Final = "x-origin-id"
REASON: Final = "x-reason"
ERROR: Final = "x-error"
ATTEMPTS: Final = "x-attempts"
FIRST_FAILURE: Final = "x-first-failure"
LAST_FAILURE: Final = "x-last-failure"

#: What a message loses when it goes back: all but where it came from.
OF_THE_FAILURE: Final = frozenset(
    {ORIGIN, ORIGIN_GROUP, REASON, ERROR, ATTEMPTS, FIRST_FAILURE, LAST_FAILURE}
)

MAX_ATTEMPTS: Final = "max-attempts"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"


def headers_of(
    headers: Mapping[str, str] | None,
    *,
    origin: str,
    group: str,
    id: int,
    reason: str,
    error: str | None,
    attempts: int,
    first_us: int,
    last_us: int,
) -> dict[str, str]:
    """The headers of a message that failed for good."""
    found = dict(headers or {})
    found.update({ORIGIN: origin, ORIGIN_GROUP: group, REASON: reason, ATTEMPTS: str(attempts)})
    found.setdefault(ORIGIN_ID, str(id))
    found[FIRST_FAILURE] = to_datetime(first_us).isoformat()
    found[LAST_FAILURE] = to_datetime(last_us).isoformat()
    if error:
        found[ERROR] = error
    else:
        found.pop(ERROR, None)
    return found


def is_letter(headers: Mapping[str, str] | None) -> bool:
    """Whether a message with these headers is a dead letter."""
    return headers is not None and ORIGIN in headers and REASON in headers


def headers_back(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a dead letter that goes back: its own ones, and the id that it had."""
    return {name: value for name, value in headers.items() if name not in OF_THE_FAILURE}
