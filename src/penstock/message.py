"""What a message is.

A `Message` is what goes in and what comes out. Its fields stand in three groups:

- what the publisher says and the log keeps: payload, headers, key, priority, deliver_at, expires_at, dedup_id;
- what only a publisher says: `delay` and `ttl`, lengths of time counted from the publish. The broker turns them into
  `deliver_at` and `expires_at` with its own clock (the publisher's may be wrong), so they are None on a message that
  was read;
- what the broker gives: id, offset, timestamp. They are None on a message that was not published yet, and are ignored
  when a message that was read is published again: it gets new ones.

A message cannot be changed; `msgspec.structs.replace` makes another. Absolute times are aware datetimes here and
microseconds everywhere below. `check` is called once, before anything is done with a message, so the layers below may
rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from penstock import argument
from penstock.clock import duration_us, to_us
from penstock.errors import InvalidArgument, MessageTooLarge
from penstock.limits import (
    DEDUP_ID_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_DEFAULT,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    PRIORITY_MIN,
)


# The garbage collector leaves messages alone (`gc=False`): they hold nothing that could hold them, and readers get a million in a second.
# The payload has a class of its own because msgspec makes all fields of a class keyword-only, or none.
class _Payload(msgspec.Struct, frozen=True, gc=False):
    payload: bytes


class Message(_Payload, frozen=True, kw_only=True, repr_omit_defaults=True, gc=False):
    """A payload and what is said about it.

    >>> Message(b"hello", priority=0, delay=60, headers={"type": "greeting"})
    Message(payload=b'hello', headers={'type': 'greeting'}, priority=0, delay=60)
    """

    headers: dict[str, str] = {}
    key: str | None = None
    priority: int = PRIORITY_DEFAULT
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    dedup_id: str | None = None

    delay: float | timedelta | None = None
    ttl: float | timedelta | None = None

    id: int | None = None
    offset: int | None = None
    timestamp: datetime | None = None


def check(message: Message, max_bytes: int = MESSAGE_BYTES_DEFAULT) -> Message:
    """Give back a message that is about to be published, or raise what is wrong with it; nothing was changed.

    What comes back has plain values, and headers that nobody else can change.

    >>> check(Message("text"))
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: payload is a str; give bytes, such as payload.encode()
    """
    payload = _checked_payload(message.payload, max_bytes)
    headers = _checked_headers(message.headers)
    key = _checked_text("key", message.key, KEY_BYTES_MAX)
    dedup_id = _checked_text("dedup_id", message.dedup_id, DEDUP_ID_BYTES_MAX)
    priority = _checked_priority(message.priority)
    _check_times(message)
    if (
        payload is message.payload
        and headers is message.headers
        and key is message.key
        and dedup_id is message.dedup_id
        and priority is message.priority
    ):
        return message
    return msgspec.structs.replace(
        message, payload=payload, headers=headers, key=key, dedup_id=dedup_id, priority=priority
    )


def _checked_payload(payload: bytes, max_bytes: int) -> bytes:
    plain = argument.octets(payload)
    if plain is None:
        raise InvalidArgument(f"payload is a {type(payload).__name__}; give bytes{_advice(payload)}")
    if len(plain) > max_bytes:
        raise MessageTooLarge(
            f"the payload has {len(plain)} bytes and the limit is {max_bytes}; "
            "publish a reference to it instead, or raise max_message_bytes"
        )
    return plain


def _advice(payload: object) -> str:
    """How to make bytes of a payload that is none."""
    kind = type(payload)
    if issubclass(kind, str):
        return ", such as payload.encode()"
    if issubclass(kind, bytearray | memoryview):
        return ", such as bytes(payload)"
    if issubclass(kind, dict | list | tuple | int | float):
        return ", such as json.dumps(payload).encode()"
    if payload is None:
        return ', such as b""'
    # A message or a delivery.
    return ", such as payload.payload" if hasattr(kind, "payload") else ": serialize it first"


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A copy, unless there are none."""
    if type(headers) is dict and not headers:
        return headers
    copied = _copied(headers)
    if len(copied) > HEADERS_COUNT_MAX:
        raise InvalidArgument(f"there are {len(copied)} headers; give at most {HEADERS_COUNT_MAX}")
    size_bytes = sum(_header_bytes(name, value) for name, value in copied.items())
    if size_bytes > HEADERS_BYTES_MAX:
        raise InvalidArgument(
            f"the headers have {size_bytes} bytes; give at most {HEADERS_BYTES_MAX} and put the rest into the payload"
        )
    return copied


def _copied(headers: Mapping[str, str]) -> dict[str, str]:
    if type(headers) is dict:
        copied = headers.copy()
        if {*map(type, copied), *map(type, copied.values())} == {str}:
            return copied  # nearly always
    if not issubclass(type(headers), Mapping):
        raise InvalidArgument(f"headers is a {type(headers).__name__}; give a dict of str to str")
    try:
        pairs = list(headers.items())
    except Exception as error:  # a mapping may be anybody's code, and a dict may change while it is read
        raise InvalidArgument(f"headers cannot be read ({argument.quoted(error)}); give a dict") from error
    copied = {}
    for name, value in pairs:
        plain, content = argument.text(name), argument.text(value)
        if plain is None or content is None:
            raise InvalidArgument(
                f"the header {argument.quoted(name)} is {argument.quoted(value)}; names and values are str"
            )
        copied[plain] = content
    return copied


def _header_bytes(name: str, value: str) -> int:
    if not name:
        raise InvalidArgument(f"the header with the value {value!r} has an empty name; give it one")
    if name.isascii() and value.isascii():
        return len(name) + len(value)
    return _utf8_bytes("the header", name) + _utf8_bytes(f"the header {name!r}", value)


def _checked_text(field: str, value: str | None, bytes_max: int) -> str | None:
    if value is None:
        return None
    plain = argument.text(value)
    if plain is None:
        raise InvalidArgument(f"{field} is {argument.quoted(value)}; give a str or None")
    # An empty dedup_id would make every message without an id of its own a repetition of the first.
    if not plain:
        raise InvalidArgument(f"{field} is empty; leave it out for no {field}")
    size_bytes = _utf8_bytes(field, plain)
    if size_bytes > bytes_max:
        raise InvalidArgument(f"{field} has {size_bytes} bytes; give at most {bytes_max}, or a hash of it")
    return plain


def _utf8_bytes(field: str, text: str) -> int:
    # ASCII needs no encoding to be measured, and almost everything is ASCII.
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{field} {argument.quoted(text)} cannot be stored as UTF-8 ({error.reason}); remove it"
        ) from None


def _checked_priority(priority: int) -> int:
    plain = argument.integer(priority)
    if plain is None or not PRIORITY_MIN <= plain <= PRIORITY_MAX:
        raise InvalidArgument(
            f"priority is {argument.quoted(priority)}; give an int from {PRIORITY_MIN} (first) to {PRIORITY_MAX} (last)"
        )
    return plain


def _check_times(message: Message) -> None:
    if message.delay is not None and message.deliver_at is not None:
        raise InvalidArgument("both delay and deliver_at are given; give one of them")
    if message.ttl is not None and message.expires_at is not None:
        raise InvalidArgument("both ttl and expires_at are given; give one of them")
    if message.deliver_at is not None and message.expires_at is not None:
        _check_order(
            "deliver_at",
            to_us(message.deliver_at, "deliver_at"),
            "expires_at",
            to_us(message.expires_at, "expires_at"),
        )
    elif message.deliver_at is not None:
        to_us(message.deliver_at, "deliver_at")
    elif message.expires_at is not None:
        to_us(message.expires_at, "expires_at")
    delay_us = 0 if message.delay is None else duration_us(message.delay, "delay")
    if message.ttl is not None:
        _check_order("delay", delay_us, "ttl", duration_us(message.ttl, "ttl"))


def _check_order(due: str, due_us: int, end: str, end_us: int) -> None:
    if end_us <= due_us:
        raise InvalidArgument(
            f"{end} is not after {due}: the message would expire before it is due; make {end} later"
        )
