"""What both shells do with a caller's arguments before they call the port."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from penstock import argument
from penstock.broker.compose import publish_of
from penstock.broker.deliveries import Leased
from penstock.broker.port import Port
from penstock.broker.recurring import missed_rule
from penstock.clock import SECOND_US, Duration, duration_us, to_us
from penstock.engine.filter import compile_filter
from penstock.engine.pattern import compile_pattern
from penstock.errors import BrokerClosed, InvalidArgument, LeaseLost, QueueNotFound, TopicNotFound
from penstock.limits import (
    COUNT_MAX,
    DELIVERIES_MAX,
    MESSAGE_BYTES_MAX,
    PREFETCH_MAX,
    PRIORITY_DEFAULT,
)
from penstock.message import Message, check
from penstock.model.commands import (
    Handle,
    How,
    Pattern,
    Place,
    Publish,
    Receipts,
    Redrive,
    Redriven,
    Schedule,
    Settle,
)
from penstock.model.stats import GroupStats, QueueStats
from penstock.names import check_name
from penstock.policy import checked

#: Dead letters that are moved in one unit.
REDRIVE_AT_ONCE: Final = 100

#: Who wants fewer than one in so long had better not wait for it.
PAUSE_S_MAX: Final = 24 * 3600.0

_numbers = itertools.count(1)
_LOG: Final = logging.getLogger("penstock.reader")


def publish(
    payload: bytes | Message,
    headers: Mapping[str, str] | None,
    key: str | None,
    priority: int | None,
    delay: Duration | None,
    deliver_at: datetime | None,
    ttl: Duration | None,
    dedup_id: str | None,
) -> Publish:
    """Return the command that publishes one message, given as `publish` takes it."""
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
        return Publish([payload])
    if issubclass(type(payload), Message):
        _refuse_beside_message(
            headers=headers, key=key, priority=priority, delay=delay, deliver_at=deliver_at, ttl=ttl, dedup_id=dedup_id
        )  # fmt: skip
        return publish_of([payload])
    message = Message(
        cast(bytes, payload),
        headers={} if headers is None else headers,  # type: ignore[arg-type]
        key=key,
        priority=PRIORITY_DEFAULT if priority is None else priority,
        delay=delay,
        deliver_at=deliver_at,
        ttl=ttl,
        dedup_id=dedup_id,
    )
    return publish_of([message])


def _refuse_beside_message(**options: object) -> None:
    """Raise if `publish` was given a Message and options: which of them counts would be a guess."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidArgument(
            f"{' and '.join(given)} is given beside a Message; put it in the Message: Message(payload, {given[0]}=…)"
        )


def wait_us(timeout: Duration | None) -> int | None:
    """How long to wait: None for ever."""
    if type(timeout) is int and not timeout:  # nearly always
        return 0
    return None if timeout is None else duration_us(timeout, "timeout")


def extension(given: Duration) -> float:
    """Return for how many seconds a lease is kept from now."""
    return duration_us(given, "seconds") / SECOND_US


def seconds(given: Duration | None, field: str = "timeout") -> float | None:
    return None if given is None else duration_us(given, field) / SECOND_US


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


def group_name(given: str) -> str:
    return check_name(given, kind="group name")


def subscription_name(given: str) -> str:
    return check_name(given, kind="subscription name")


def reader_name(given: str) -> str:
    return check_name(given, kind="reader name")


def strategy(given: str | None) -> str | None:
    """How a group's consumers share messages: None as the policy says."""
    return None if given is None else str(checked({"strategy": given})["strategy"])


def silence(heartbeat: Duration | None, field: str = "heartbeat") -> float | None:
    """Return after how many seconds without a word a consumer is thought dead: None for never."""
    if heartbeat is None:
        return None
    found = duration_us(heartbeat, field)
    if not found:
        raise InvalidArgument(f"{field} is 0; give more than 0 seconds, or leave it out")
    return found / SECOND_US


def place(offset: int | None, timestamp: datetime | None, message_id: int | None) -> Place:
    """Return the one place that was named."""
    given = [one for one in (offset, timestamp, message_id) if one is not None]
    if len(given) != 1:
        raise InvalidArgument("give one of offset, timestamp and message_id")
    if message_id is not None:
        plain = argument.integer(message_id)
        if plain is None:
            raise InvalidArgument(
                f"message_id is {argument.quoted(message_id)}; give the int that publish returned"
            )
        return Place(message_id=plain)
    if timestamp is not None:
        to_us(timestamp, "timestamp")
        return Place(timestamp=timestamp)
    plain = argument.integer(offset)
    if plain is None or plain < 0:
        raise InvalidArgument(f"offset is {argument.quoted(offset)}; give an int from 0 on")
    return Place(offset=plain)


def start(given: object) -> Place:
    """Return where somebody begins who was never there: "earliest", "latest", an offset, or a time."""
    plain = argument.text(given)
    if plain in ("earliest", "latest"):
        return Place(at=plain)  # type: ignore[arg-type]
    if issubclass(type(given), datetime):
        to_us(cast(datetime, given), "start")
        return Place(timestamp=cast(datetime, given))
    number = argument.integer(given)
    if number is None or number < 0:
        raise InvalidArgument(
            f'start is {argument.quoted(given)}; give "earliest", "latest", an offset, or an aware datetime'
        )
    return Place(offset=number)


def pattern(given: str) -> Pattern:
    """Return the logs that a publish goes to."""
    return Pattern(compile_pattern(given).text)


def id_of(given: int) -> int:
    plain = argument.integer(given)
    if plain is None:
        raise InvalidArgument(f"the id is {argument.quoted(given)}; give the int that publish returned")
    return plain


def schedule_name(given: str) -> str:
    return check_name(given, kind="schedule name")


def schedule(name: str, cron: str, message_: bytes | Message, timezone: str, missed: str) -> Schedule:
    """Return the command that has a message recur."""
    whole = message_ if isinstance(message_, Message) else Message(message_)
    return Schedule(schedule_name(name), cron, check(whole, MESSAGE_BYTES_MAX), timezone, missed_rule(missed))


def settling(
    found: Any, port: Port, how: How, delay: Duration | None = None, error: object = None
) -> tuple[Handle, Settle]:
    """Return the step of a transaction that settles a delivery, which must be of this broker."""
    if not issubclass(type(found), Leased):
        raise InvalidArgument(f"{argument.quoted(found)} is not a delivery")
    if found._queue._port is not port:
        raise LeaseLost(
            "a delivery was handed out by another broker, or by this one before it was opened again: drop the result"
        )
    if not found._number:
        raise InvalidArgument("the delivery was settled when it was handed out: there is nothing to settle")
    return found._queue._log, settle(found._receipts(), how, delay, error)


def settle(
    receipts: Receipts, how: How = "ack", delay: Duration | None = None, error: object = None
) -> Settle:
    """Return the command that ends leases."""
    return Settle(*receipts, how, seconds(delay, "delay"), argument.error_text(error))


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


class Redriving:
    """A redrive in steps, each of them one unit: stopped anywhere, every message is in one place."""

    def __init__(
        self, log: Handle | None, where: str | None, limit: int | None, rate: float | None, to: str | None
    ) -> None:
        self._log = log
        self._where = None if where is None else str(compile_filter(where))
        self._left = COUNT_MAX if limit is None else _positive("limit", limit)
        if type(self._left) is not int:
            raise InvalidArgument(f"limit is {argument.quoted(limit)}; give an int, or None for no limit")
        self._rate = None if rate is None else _positive("rate", rate)
        self._to = None if to is None else check_name(to, kind="queue name", reserved_ok=True)
        self._span: tuple[int, int] | None = None  # offsets left to be looked at; at first all that are there
        self._last = 0
        self.moved = 0

    def more(self) -> bool:
        """Return whether there is another step."""
        return (
            self._log is not None and self._left > 0 and (self._span is None or self._span[0] < self._span[1])
        )

    def step(self) -> Redrive:
        """Return the command that moves some."""
        most = REDRIVE_AT_ONCE if self._rate is None else max(1, min(REDRIVE_AT_ONCE, int(self._rate)))
        return Redrive(int(min(most, self._left)), self._where, self._to, self._span)

    def took(self, step: Redriven) -> None:
        """Take in what became of a step."""
        self._last = step.moved
        self.moved += step.moved
        self._left -= step.moved
        self._span = step.left

    def pause_s(self) -> float:
        """Return how long to wait before the next step, to keep the rate."""
        if self._rate is None or not self.more():
            return 0.0
        return float(min(self._last / self._rate, PAUSE_S_MAX))


def _positive(field: str, value: Any) -> Any:
    plain = argument.number(value)
    if plain is None or not 0 < plain <= COUNT_MAX:
        raise InvalidArgument(
            f"{field} is {argument.quoted(value)}; give a number above 0, or None for no {field}"
        )
    return plain
