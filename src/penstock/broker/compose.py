"""From what a caller gives to columns, and from those to what is stored: one `Batch` for each publish.

Messages are checked where they enter (`publish_of`), before anything is changed, so that a batch is
taken whole or not at all. Lengths of time (`delay`, `ttl`) are counted from the broker's own clock,
since the publisher's may be wrong. A column that no message uses is left out, one that all messages
share is one value: a batch of plain payloads costs a pass over them and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, cast

from penstock.clock import SECOND_US, Duration, duration_us, to_us
from penstock.errors import BatchTooLarge, InvalidArgument, MessageExpired
from penstock.limits import MESSAGE_BYTES_MAX, MESSAGES_MAX, PRIORITY_DEFAULT
from penstock.message import Message, check
from penstock.model.batch import Batch, Columns, Microseconds
from penstock.model.commands import Publish
from penstock.policy import Policy


def publish_of(messages: Iterable[bytes | Message]) -> Publish:
    """Return the command that publishes messages as a caller gives them, checked."""
    given = messages if type(messages) is list else _listed(messages)
    _require_count(given)
    if set(map(type, given)) <= {bytes}:
        return Publish(cast(list[bytes], given.copy()))  # the caller's list may change
    whole = (one if issubclass(type(one), Message) else Message(one) for one in given)  # type: ignore[arg-type]
    checked = [check(cast(Message, message), MESSAGE_BYTES_MAX) for message in whole]
    return Publish([message.payload for message in checked], _columns(checked))


def stored(command: Publish, policy: Policy, now_us: int, set_back_us: int = 0) -> Batch:
    """Return the batch that is stored of a publish. Its ids are given later.

    Absolute times are the wall clock's. If that was set back, the broker's time is ahead of it by so much, and so are they then.
    """
    payloads, columns = command.payloads, command.columns
    _require_count(payloads)
    batch = Batch(payloads, (), now_us, PRIORITY_DEFAULT, size=sum(map(len, payloads)))
    if columns is not None:
        batch.priority = columns.priority
        batch.key, batch.dedup_id = columns.key, columns.dedup_id
        batch.headers, batch.properties = columns.headers, columns.properties
        if columns.delay_us is not None or columns.deliver_at is not None:
            batch.deliver_at = _due(columns, now_us, set_back_us)
        if columns.ttl_us is not None or columns.expires_at is not None:
            batch.expires_at = _end(columns, now_us, set_back_us)
            _require_lasting(batch, now_us)
    if policy.ttl is not None:
        _expire_by_default(batch, now_us + round(policy.ttl * SECOND_US))
    return batch


def _require_lasting(batch: Batch, now_us: int) -> None:
    if any(moment is not None and moment <= now_us for moment in _each(batch.expires_at, batch)):
        raise MessageExpired("a message's expires_at is over: give it a later one, or do not publish it")


def _require_count(messages: Sequence[object]) -> None:
    if len(messages) > MESSAGES_MAX:
        raise BatchTooLarge(
            f"a batch of {len(messages)} messages is over the bound of {MESSAGES_MAX}: make it several"
        )


def date(batch: Batch, policy: Policy, now_us: int, set_back_us: int = 0) -> None:
    """Give staged messages (see `journal.spool`) the times at which they are published, are due, and end. What is due after its end is not refused: it ends."""
    batch.timestamp_us = now_us
    due, ends = batch.deliver_at, batch.expires_at
    if type(due) is list:
        later = [None if one is None else _later(one, now_us, set_back_us) for one in due]
        batch.deliver_at = _one_or_list(later)
    elif due is not None:
        batch.deliver_at = _later(due, now_us, set_back_us)  # type: ignore[arg-type]
    if type(ends) is list:
        batch.expires_at = [None if length is None else now_us + length for length in ends]
    elif ends is not None:
        batch.expires_at = now_us + ends  # type: ignore[operator]
    if policy.ttl is not None:
        _fill_ends(batch, now_us + round(policy.ttl * SECOND_US))


def _listed(messages: Any) -> list[bytes | Message]:
    kind = type(messages)
    if issubclass(kind, bytes | str | Message) or not issubclass(kind, Iterable):
        raise InvalidArgument(
            f"messages is a {kind.__name__}; give a list of bytes or Message, or use publish for one"
        )
    return list(messages)


def _columns(messages: list[Message]) -> Columns:
    if len(messages) == 1:
        return _columns_of_one(messages[0])
    return Columns(
        headers=_none_or_list([message.headers or None for message in messages]),
        key=_none_or_list([message.key for message in messages]),
        priority=_one_or_list([message.priority for message in messages]),
        delay_us=_one_or_list([_length(message.delay, "delay") for message in messages]),
        deliver_at=_one_or_list([_moment(message.deliver_at, "deliver_at") for message in messages]),
        ttl_us=_one_or_list([_length(message.ttl, "ttl") for message in messages]),
        expires_at=_one_or_list([_moment(message.expires_at, "expires_at") for message in messages]),
        dedup_id=_none_or_list([message.dedup_id for message in messages]),
    )


def _columns_of_one(message: Message) -> Columns:
    """The same of one message, as most publishes are."""
    return Columns(
        headers=[message.headers] if message.headers else None,
        key=None if message.key is None else [message.key],
        priority=message.priority,
        delay_us=_length(message.delay, "delay"),
        deliver_at=_moment(message.deliver_at, "deliver_at"),
        ttl_us=_length(message.ttl, "ttl"),
        expires_at=_moment(message.expires_at, "expires_at"),
        dedup_id=None if message.dedup_id is None else [message.dedup_id],
    )


def _length(given: Duration | None, field: str) -> int | None:
    return None if given is None else duration_us(given, field)


def _moment(given: datetime | None, field: str) -> int | None:
    return None if given is None else to_us(given, field)


def _due(columns: Columns, now_us: int, set_back_us: int) -> Microseconds:
    """When messages are due: a delay of 0 is none."""

    def due(delay_us: int | None, moment: int | None) -> int | None:
        if delay_us is not None:
            return now_us + delay_us if delay_us else None
        return None if moment is None else _later(moment, now_us, set_back_us)

    return _both(due, columns.delay_us, columns.deliver_at)


def _end(columns: Columns, now_us: int, set_back_us: int) -> Microseconds:
    """When messages end."""

    def end(ttl_us: int | None, moment: int | None) -> int | None:
        if ttl_us is not None:
            return now_us + ttl_us
        return None if moment is None else moment + set_back_us

    return _both(end, columns.ttl_us, columns.expires_at)


def _both(
    join: Callable[[int | None, int | None], int | None], first: Microseconds, second: Microseconds
) -> Microseconds:
    """Join two columns, each one value or a list."""
    if not isinstance(first, list) and not isinstance(second, list):
        return join(first, second)
    firsts = first if isinstance(first, list) else repeat(first)
    seconds = second if isinstance(second, list) else repeat(second)
    joined: Microseconds = _one_or_list([join(*pair) for pair in zip(firsts, seconds, strict=False)])
    return joined


def _later(moment: int, now_us: int, set_back_us: int) -> int:
    """When a message is due by the broker's time. What was due already is kept as it was given."""
    return moment + set_back_us if moment + set_back_us > now_us else moment


def _one_or_list(values: list[Any]) -> Any:
    return values[0] if values.count(values[0]) == len(values) else values


def _none_or_list(values: Sequence[Any]) -> Any:
    return None if values.count(None) == len(values) else values


def _expire_by_default(batch: Batch, end_us: int) -> None:
    """What has no end of its own ends with the queue's ttl, and must be due before that."""
    if batch.deliver_at is not None:
        moments = zip(_each(batch.deliver_at, batch), _each(batch.expires_at, batch), strict=True)
        if any(end is None and due is not None and due >= end_us for due, end in moments):
            raise never_due()
    _fill_ends(batch, end_us)


def never_due() -> InvalidArgument:
    return InvalidArgument(
        "delay or deliver_at is not before the end of the queue's ttl: the message would expire before it is due; "
        "make it due earlier, or give it a later expires_at"
    )


def _fill_ends(batch: Batch, end_us: int) -> None:
    if batch.expires_at is None:
        batch.expires_at = end_us
    elif type(batch.expires_at) is list:
        batch.expires_at = [end_us if moment is None else moment for moment in batch.expires_at]


def _each(column: Any, batch: Batch) -> list[Any]:
    return column if isinstance(column, list) else [column] * len(batch.payloads)
