"""What both shells do with a caller's arguments before they call the port."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from penstock import argument
from penstock.broker.deliveries import Leased
from penstock.broker.port import GroupStats, Handle, MessageId, Port, QueueStats, Receipts, Redriven
from penstock.broker.recurring import recurrence
from penstock.broker.scheduling import Recurring, missed_rule
from penstock.broker.scheduling import recurring as make_recurring
from penstock.broker.ticket import Ticket
from penstock.clock import SECOND_US, Duration, duration_us, to_us
from penstock.engine import letter
from penstock.engine.filter import compile_filter
from penstock.errors import BrokerClosed, InvalidArgument, LeaseLost, QueueNotFound, TopicNotFound
from penstock.limits import (
    COUNT_MAX,
    DELIVERIES_MAX,
    MESSAGE_BYTES_MAX,
    PREFETCH_MAX,
    PRIORITY_DEFAULT,
)
from penstock.message import Message, check
from penstock.names import check_name
from penstock.policy import Policy, checked

#: Dead letters that are moved in one unit.
REDRIVE_AT_ONCE: Final = 100

#: Who wants fewer than one in so long had better not wait for it.
PAUSE_S_MAX: Final = 24 * 3600.0

_numbers = itertools.count(1)
_LOG: Final = logging.getLogger("penstock.reader")


def message(
    payload: bytes | Message,
    headers: Mapping[str, str] | None,
    key: str | None,
    priority: int | None,
    delay: Duration | None,
    deliver_at: datetime | None,
    ttl: Duration | None,
    dedup_id: str | None,
) -> bytes | Message:
    """Return what `publish` was given: the payload or message itself, if nothing is said beside it."""
    if (
        type(payload) is bytes
        and (headers is None or (type(headers) is dict and not headers))
        and key is None
        and priority is None
        and delay is None
        and deliver_at is None
        and ttl is None
        and dedup_id is None
    ):
        return payload
    if issubclass(type(payload), Message):
        _refuse_beside_message(
            headers=headers, key=key, priority=priority, delay=delay, deliver_at=deliver_at, ttl=ttl, dedup_id=dedup_id
        )  # fmt: skip
        return payload
    return Message(
        cast(bytes, payload),
        headers={} if headers is None else headers,  # type: ignore[arg-type]
        key=key,
        priority=PRIORITY_DEFAULT if priority is None else priority,
        delay=delay,
        deliver_at=deliver_at,
        ttl=ttl,
        dedup_id=dedup_id,
    )


def _refuse_beside_message(**options: object) -> None:
    """Raise if `publish` was given a Message and options: which of them counts would be a guess."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidArgument(
            f"{' and '.join(given)} is given beside a Message; put it in the Message: Message(payload, {given[0]}=…)"
        )


def whole(message_: bytes | Message) -> bytes | Message:
    """What a caller gave, checked now, and never changed by him later."""
    return message_ if type(message_) is bytes else check(cast(Message, message_), MESSAGE_BYTES_MAX)


def wait_us(timeout: Duration | None) -> int | None:
    """How long to wait: None for ever."""
    if type(timeout) is int and not timeout:  # nearly always
        return 0
    return None if timeout is None else duration_us(timeout, "timeout")


def delay_us(delay: Duration | None) -> int | None:
    """How long a message waits for its next attempt: None as the policy says."""
    return None if delay is None else duration_us(delay, "delay")


def extension_us(seconds: Duration) -> int:
    """How long a lease is kept from now."""
    return duration_us(seconds, "seconds")


def seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration_us(timeout, "timeout") / SECOND_US


def count(given: int) -> int:
    plain = argument.integer(given)
    if plain is None or not 1 <= plain <= DELIVERIES_MAX:
        raise InvalidArgument(
            f"the number of messages is {argument.quoted(given)}; give an int from 1 to {DELIVERIES_MAX}"
        )
    return plain


def flag(field: str, given: bool) -> bool:
    if type(given) is not bool:
        raise InvalidArgument(f"{field} is {argument.quoted(given)}; give True or False")
    return given


def prefetch(given: int) -> int:
    plain = argument.integer(given)
    if plain is None or not 1 <= plain <= PREFETCH_MAX:
        raise InvalidArgument(f"prefetch is {argument.quoted(given)}; give an int from 1 to {PREFETCH_MAX}")
    return plain


def consumer_name(given: str | None) -> str:
    """A consumer's name, or one that nobody else in this process has."""
    if given is None:
        return f"consumer-{next(_numbers)}"
    return check_name(given, kind="consumer name")


def error_text(error: object) -> str | None:
    """What is recorded of a failure."""
    return letter.error_text(error)


def group_name(given: str) -> str:
    return check_name(given, kind="group name")


def subscription_name(given: str) -> str:
    return check_name(given, kind="subscription name")


def reader_name(given: str) -> str:
    return check_name(given, kind="reader name")


def strategy(given: str | None) -> str | None:
    """How a group's consumers share messages: None as the policy says."""
    return None if given is None else str(checked({"strategy": given})["strategy"])


def silence_us(heartbeat: Duration | None, field: str = "heartbeat") -> int | None:
    """After how long a silence a consumer is thought dead: None for never."""
    if heartbeat is None:
        return None
    found = duration_us(heartbeat, field)
    if not found:
        raise InvalidArgument(f"{field} is 0; give more than 0 seconds, or leave it out")
    return found


def place(offset: int | None, timestamp: datetime | None, message_id: int | None) -> Any:
    """The one place that was named: see `Port.locate`."""
    given = [one for one in (offset, timestamp, message_id) if one is not None]
    if len(given) != 1:
        raise InvalidArgument("give one of offset, timestamp and message_id")
    if message_id is not None:
        plain = argument.integer(message_id)
        if plain is None:
            raise InvalidArgument(
                f"message_id is {argument.quoted(message_id)}; give the int that publish returned"
            )
        return MessageId(plain)
    if timestamp is not None:
        to_us(timestamp, "timestamp")
        return timestamp
    plain = argument.integer(offset)
    if plain is None or plain < 0:
        raise InvalidArgument(f"offset is {argument.quoted(offset)}; give an int from 0 on")
    return plain


def start(given: object) -> Any:
    """Where somebody begins who was never there: "earliest", "latest", an offset, or a time."""
    plain = argument.text(given)
    if plain in ("earliest", "latest"):
        return plain
    if issubclass(type(given), datetime):
        to_us(cast(datetime, given), "start")
        return given
    number = argument.integer(given)
    if number is None or number < 0:
        raise InvalidArgument(
            f'start is {argument.quoted(given)}; give "earliest", "latest", an offset, or an aware datetime'
        )
    return number


def id_of(given: int) -> int:
    plain = argument.integer(given)
    if plain is None:
        raise InvalidArgument(f"the id is {argument.quoted(given)}; give the int that publish returned")
    return plain


def schedule_name(given: str) -> str:
    return check_name(given, kind="schedule name")


def recurring(cron: str, timezone: str, missed: str, message_: bytes | Message, policy: Policy) -> Recurring:
    """A message that is published again and again, checked."""
    whole = message_ if isinstance(message_, Message) else Message(message_)
    whole = check(whole, policy.max_message_bytes)
    ttl_us = None if whole.ttl is None else duration_us(whole.ttl, "ttl")
    if ttl_us is None and policy.ttl is not None:
        ttl_us = round(policy.ttl * SECOND_US)
    if policy.delivery == "exactly-once":
        raise InvalidArgument(
            "a log that promises exactly-once wants a dedup_id of each message: nothing recurs there"
        )
    return make_recurring(recurrence(cron, timezone), missed_rule(missed), whole, ttl_us)


def settling(found: Any, port: Port) -> tuple[Handle, Receipts]:
    """What of a delivery a transaction needs. It must be of this broker."""
    if not issubclass(type(found), Leased):
        raise InvalidArgument(f"{argument.quoted(found)} is not a delivery")
    if found._queue._port is not port:
        raise LeaseLost(
            "a delivery was handed out by another broker, or by this one before it was opened again: drop the result"
        )
    if not found._number:
        raise InvalidArgument("the delivery was settled when it was handed out: there is nothing to settle")
    return found._queue._log, found._receipts()


def nameless() -> InvalidArgument:
    return InvalidArgument(
        "a durable subscription needs a name, by which it is found again: give one, or durable=False"
    )


def known_consumer(name: str, known: list[str]) -> str:
    plain = argument.text(name)
    if plain is None or plain not in known:
        raise InvalidArgument(f"there is no consumer {argument.quoted(name)}; there are {known}")
    return plain


def of_group(stats: QueueStats, name: str) -> GroupStats:
    """What is said of one group. It is gone if nothing is."""
    found = stats.groups.get(name)
    if found is None:
        error = TopicNotFound if stats.kind == "topic" else QueueNotFound
        raise error(
            f"{stats.name!r} has no {'subscription' if stats.kind == 'topic' else 'group'} {name!r} (any more)"
        )
    return found


def say_missed(reader: Any, missed: int) -> None:
    """Tell a reader that fell off the end."""
    if missed:
        _LOG.warning(
            "the reader %r missed %d messages: they were dropped before it came to read them",
            reader.name,
            missed,
        )


def ended() -> BrokerClosed:
    return BrokerClosed("the transaction has ended: begin another one")


class Redrive:
    """A redrive in steps, each of them one unit: stopped anywhere, every message is in one place."""

    def __init__(
        self,
        port: Port,
        log: Handle | None,
        where: str | None,
        limit: int | None,
        rate: float | None,
        to: str | None,
    ) -> None:
        self._port = port
        self._log = log
        self._where = None if where is None else compile_filter(where)
        self._left = COUNT_MAX if limit is None else _positive("limit", limit)
        if type(self._left) is not int:
            raise InvalidArgument(f"limit is {argument.quoted(limit)}; give an int, or None for no limit")
        self._rate = None if rate is None else _positive("rate", rate)
        self._to = None if to is None else check_name(to, kind="queue name", reserved_ok=True)
        self._span: range | None = (
            None  # offsets that are left to be looked at; at first, of all that are there
        )
        self._last = 0
        self.moved = 0

    def more(self) -> bool:
        return self._log is not None and self._left > 0 and (self._span is None or len(self._span) > 0)

    def step(self) -> Ticket[Any]:
        """Move some."""
        most = REDRIVE_AT_ONCE if self._rate is None else max(1, min(REDRIVE_AT_ONCE, int(self._rate)))
        if self._log is None:
            raise InvalidArgument("there are no dead letters to move")
        return self._port.redrive(
            self._log, int(min(most, self._left)), where=self._where, to=self._to, span=self._span
        )

    def took(self, step: Redriven) -> None:
        """What became of a step."""
        self._last = step.moved
        self.moved += step.moved
        self._left -= step.moved
        self._span = step.left

    def pause_s(self) -> float:
        """How long to wait before the next step, to keep the rate."""
        if self._rate is None or not self.more():
            return 0.0
        return float(min(self._last / self._rate, PAUSE_S_MAX))

    def pause(self) -> None:
        if pause_s := self.pause_s():
            threading.Event().wait(pause_s)


def _positive(field: str, value: Any) -> Any:
    plain = argument.number(value)
    if plain is None or not 0 < plain <= COUNT_MAX:
        raise InvalidArgument(
            f"{field} is {argument.quoted(value)}; give a number above 0, or None for no {field}"
        )
    return plain
