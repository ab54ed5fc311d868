"""Messages that recur: what is kept of one, and what it does when it is due.

A due time is fired once: that it was is recorded in the frame of the message itself (see `engine.schedules`). Due times that nobody was there for (the broker was closed, or stood still) are *missed*, and what becomes of
them is said when the message is set::

    once    the last of them is made up for, one message however many there were (the default)
    skip    none of them: the next message comes when it is due
    all     each of them, the last thousand at the most

A message says which due time it is for: in the headers `x-schedule` (the name) and `x-due` (ISO 8601, in UTC).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.broker.recurring import Missed, Recurrence, due_between, missed_rule, next_due_us, recurrence
from penstock.clock import SECOND_US, duration_us, to_datetime
from penstock.engine.change import Firing, Recur
from penstock.engine.log import Log
from penstock.errors import InvalidArgument, PenstockError
from penstock.message import check
from penstock.model.batch import Batch
from penstock.model.commands import Schedule
from penstock.policy import Policy

#: Due times that are made up for at once, at the most.
MADE_UP_MAX: Final = 1000

#: Later than this, a due time was missed: somebody slept, or the broker was closed.
LATE_US: Final = 60 * SECOND_US

_LOG: Final = logging.getLogger("penstock.broker")

NAME: Final = "x-schedule"
DUE: Final = "x-due"


class Recurring(msgspec.Struct, frozen=True):
    """A message and when it is published."""

    when: Recurrence
    missed: Missed
    payload: bytes
    headers: dict[str, str]
    key: str | None
    priority: int
    ttl_us: int | None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def first_us(self, now_us: int) -> int:
        """When it is due for the first time."""
        return next_due_us(self.when, now_us)


def recurring_of(command: Schedule, policy: Policy) -> Recurring:
    """Return what is kept of a message that recurs in a log of that policy, checked."""
    message = check(command.message, policy.max_message_bytes)
    ttl_us = None if message.ttl is None else duration_us(message.ttl, "ttl")
    if ttl_us is None and policy.ttl is not None:
        ttl_us = round(policy.ttl * SECOND_US)
    if policy.delivery == "exactly-once":
        raise InvalidArgument(
            "a log that promises exactly-once wants a dedup_id of each message: nothing recurs there"
        )
    when, missed = recurrence(command.cron, command.timezone), missed_rule(command.missed)
    if (
        message.delay is not None
        or message.deliver_at is not None
        or message.expires_at is not None
        or message.dedup_id
    ):
        raise InvalidArgument(
            "a recurring message has no delay, deliver_at, expires_at or dedup_id: its schedule says when it comes"
        )
    return Recurring(when, missed, message.payload, message.headers, message.key, message.priority, ttl_us)


def recur(take_ids: Callable[[int], Sequence[int]]) -> Recur:
    """What the engine asks when something is due."""

    def fire(log: Log, name: str, body: bytes, due_us: int, now_us: int) -> Firing:
        try:
            found = msgspec.msgpack.decode(body, type=Recurring)
            dues = _due_now(found, due_us, now_us)
            next_us = next_due_us(found.when, max(now_us, due_us))
        except (PenstockError, msgspec.MsgspecError) as error:
            _LOG.warning(
                "the schedule %r of %r cannot be followed now, and will be tried again: %s",
                name,
                log.name,
                error,
            )
            raise InvalidArgument(
                f"the schedule {name!r} of {log.name!r} cannot be followed: {error}"
            ) from error
        return Firing([_batch(found, name, due, now_us, take_ids) for due in dues], next_us)

    return fire


def _due_now(found: Recurring, due_us: int, now_us: int) -> list[int]:
    """The due times up to now for which a message is published now."""
    dues = [due_us, *due_between(found.when, due_us, now_us, MADE_UP_MAX)][-MADE_UP_MAX:]
    if found.missed == "all":
        return dues
    last = dues[-1]
    return [last] if found.missed == "once" or now_us - last <= LATE_US else []


def _batch(
    found: Recurring, name: str, due_us: int, now_us: int, take_ids: Callable[[int], Sequence[int]]
) -> Batch:
    headers: dict[str, str] = {**found.headers, NAME: name, DUE: to_datetime(due_us).isoformat()}
    return Batch(
        payloads=[found.payload],
        ids=take_ids(1),
        timestamp_us=now_us,
        priority=found.priority,
        expires_at=None if found.ttl_us is None else now_us + found.ttl_us,
        key=None if found.key is None else [found.key],
        headers=[headers],
        size=len(found.payload),
    )
