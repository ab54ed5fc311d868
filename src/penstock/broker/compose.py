"""From what a caller gives to columns: one `Batch` for each publish.

Everything is checked here, before anything is changed, so that a batch is taken whole or not at all. Lengths of time (`delay`, `ttl`) are
counted from the broker's own clock, since the publisher's may be wrong. A column that no message uses is left out, one that all
messages share is one value: a batch of plain payloads costs a pass over them and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.clock import SECOND_US, duration_us, to_us
from penstock.engine.events import Batch
from penstock.errors import BatchTooLarge, InvalidArgument, MessageExpired
from penstock.limits import MESSAGES_MAX, PRIORITY_DEFAULT
from penstock.message import Message, check
from penstock.policy import Policy


def batch_of(messages: Iterable[bytes | Message], policy: Policy, now_us: int, set_back_us: int = 0) -> Batch:
    """The columns of messages that are about to be published. Their ids are given later.

    Absolute times are the wall clock's. If that was set back, the broker's time is ahead of it by so much, and so are they then.
    """
    given = messages if type(messages) is list else _listed(messages)
    if not given:
        return Batch([], (), now_us, PRIORITY_DEFAULT)
    if len(given) > MESSAGES_MAX:  # before they are looked at one by one
        raise BatchTooLarge(
            f"a batch of {len(given)} messages is over the bound of {MESSAGES_MAX}: make it several"
        )
    if set(map(type, given)) == {bytes}:
        payloads: Any = given.copy()  # the caller's list may change
        batch = Batch(payloads, (), now_us, PRIORITY_DEFAULT)
    else:
        whole: Any = (one if issubclass(type(one), Message) else Message(one) for one in given)  # type: ignore[arg-type]
        batch = _columns([check(message, policy.max_message_bytes) for message in whole], now_us, set_back_us)
    batch.size = sum(map(len, batch.payloads))
    if policy.ttl is not None:
        _expire_by_default(batch, now_us + round(policy.ttl * SECOND_US))
    return batch


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


def _columns(messages: list[Message], now_us: int, set_back_us: int) -> Batch:
    due = [_due(message, now_us, set_back_us) for message in messages]
    ends = [_end(message, now_us, set_back_us) for message in messages]
    for moment in ends:
        if moment is not None and moment <= now_us:
            raise MessageExpired("a message's expires_at is over: give it a later one, or do not publish it")
    return Batch(
        payloads=[message.payload for message in messages],
        ids=(),
        timestamp_us=now_us,
        priority=_one_or_list([message.priority for message in messages]),
        deliver_at=_one_or_list(due),
        expires_at=_one_or_list(ends),
        key=_none_or_list([message.key for message in messages]),
        dedup_id=_none_or_list([message.dedup_id for message in messages]),
        headers=_none_or_list([message.headers or None for message in messages]),
    )


def _due(message: Message, now_us: int, set_back_us: int) -> int | None:
    if message.delay is not None:
        delay_us = duration_us(message.delay, "delay")
        return now_us + delay_us if delay_us else None
    return (
        None
        if message.deliver_at is None
        else _later(to_us(message.deliver_at, "deliver_at"), now_us, set_back_us)
    )


def _later(moment: int, now_us: int, set_back_us: int) -> int:
    """When a message is due by the broker's time. What was due already is kept as it was given."""
    return moment + set_back_us if moment + set_back_us > now_us else moment


def _end(message: Message, now_us: int, set_back_us: int) -> int | None:
    if message.ttl is not None:
        return now_us + duration_us(message.ttl, "ttl")
    return None if message.expires_at is None else to_us(message.expires_at, "expires_at") + set_back_us


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
