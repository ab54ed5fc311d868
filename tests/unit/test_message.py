from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidArgument, MessageTooLarge
from penstock.limits import (
    DEDUP_ID_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_DEFAULT,
)
from penstock.message import Message, check
from tests.conformance.oddities import Level, Refusal, SullenBytes, SullenText, Unreadable, Word

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1, 12)  # noqa: DTZ001


def wrong(**fields: Any) -> Message:
    return Message(**{"payload": b"x", **fields})


def test_a_plain_message_has_other_defaults() -> None:
    plain = Message(b"x")
    assert msgspec.structs.asdict(plain) == {
        "payload": b"x",
        "headers": {},
        "key": None,
        "priority": 100,
        "deliver_at": None,
        "expires_at": None,
        "dedup_id": None,
        "delay": None,
        "ttl": None,
        "id": None,
        "offset": None,
        "timestamp": None,
    }
    check(plain)


def test_two_messages_share_their_headers() -> None:
    assert Message(b"x").headers is not Message(b"x").headers


def test_a_message_can_be_changed() -> None:
    fixed: Any = Message(b"x")
    with pytest.raises(AttributeError):
        fixed.priority = 1


def test_anything_but_the_payload_is_positional() -> None:
    make: Any = Message
    with pytest.raises(TypeError):
        make(b"x", {})


def test_everything_allowed_at_once_is_refused() -> None:
    check(
        Message(
            b"x" * MESSAGE_BYTES_DEFAULT,
            headers={f"h{number}": "größe" for number in range(HEADERS_COUNT_MAX)},
            key="k" * KEY_BYTES_MAX,
            priority=0,
            dedup_id="d" * DEDUP_ID_BYTES_MAX,
            delay=1.5,
            ttl=timedelta(hours=1),
        )
    )
    check(Message(b"", priority=255, deliver_at=NOON, expires_at=NOON + timedelta(microseconds=1)))


def test_a_message_that_was_read_cannot_be_published_again() -> None:
    check(
        Message(b"x", id=1, offset=0, timestamp=NOON, deliver_at=NOON, expires_at=NOON + timedelta(hours=1))
    )


class _Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("payload", "made"),
    [
        ("täxt", "täxt".encode()),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ({"item": "valve"}, b'{"item": "valve"}'),
        ([1, 2], b"[1, 2]"),
        ((1, 2), b"[1, 2]"),
        (5, b"5"),
        (_Level.HIGH, b"3"),
        (1.5, b"1.5"),
        (True, b"true"),
        (None, b""),
        (Message(b"x"), b"x"),
    ],
)
def test_the_advice_about_a_wrong_payload_works(payload: Any, made: bytes) -> None:
    with pytest.raises(InvalidArgument, match=f"^payload is a {type(payload).__name__}; ") as refused:
        check(Message(payload))
    advice = refused.value.message.rpartition(" such as ")[2]
    assert eval(advice, {"payload": payload, "json": json}) == made


@pytest.mark.parametrize("payload", [{1, 2}, object(), NOON])
def test_the_advice_about_an_object_names_no_call_that_fails(payload: Any) -> None:
    with pytest.raises(InvalidArgument, match="give bytes: serialize it first$"):
        check(Message(payload))


def test_a_payload_above_the_limit_is_taken() -> None:
    check(Message(b"12345"), max_bytes=5)
    with pytest.raises(MessageTooLarge, match="6 bytes and the limit is 5; .*raise max_message_bytes"):
        check(Message(b"123456"), max_bytes=5)
    with pytest.raises(MessageTooLarge):
        check(Message(b"x" * (MESSAGE_BYTES_DEFAULT + 1)))


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (None, "give a dict"),
        ([("a", "b")], "give a dict"),
        ({"a": 1}, "the header 'a' is 1"),
        ({1: "a"}, "the header 1 is 'a'"),
        ({"": "a"}, "empty name"),
        ({"a": "\ud800"}, "UTF-8"),
        ({"\ud800": "a"}, "UTF-8"),
        ({f"h{number}": "" for number in range(HEADERS_COUNT_MAX + 1)}, f"at most {HEADERS_COUNT_MAX}"),
        ({"a": "x" * HEADERS_BYTES_MAX}, f"the headers have {HEADERS_BYTES_MAX + 1} bytes"),
        ({"a": "ö" * (HEADERS_BYTES_MAX // 2)}, f"the headers have {HEADERS_BYTES_MAX + 1} bytes"),
    ],
)
def test_senseless_headers_are_taken(headers: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check(wrong(headers=headers))


def test_headers_of_exactly_the_limit_are_refused() -> None:
    check(Message(b"x", headers={"a": "x" * (HEADERS_BYTES_MAX - 1)}))


@pytest.mark.parametrize(("field", "bytes_max"), [("key", KEY_BYTES_MAX), ("dedup_id", DEDUP_ID_BYTES_MAX)])
def test_a_senseless_key_or_dedup_id_is_taken(field: str, bytes_max: int) -> None:
    for value, said in [
        ("", "is empty; leave it out"),
        (7, "give a str or None"),
        (b"k", "give a str or None"),
        ("\udfff", "UTF-8"),
        ("x" * (bytes_max + 1), f"at most {bytes_max}"),
        ("ö" * (bytes_max // 2 + 1), f"at most {bytes_max}"),
    ]:
        with pytest.raises(InvalidArgument, match=f"^{field} .*{said}"):
            check(wrong(**{field: value}))


@pytest.mark.parametrize("priority", [-1, 256, 1.0, True, None, "1"])
def test_a_senseless_priority_is_taken(priority: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"priority is .*from 0 \(first\) to 255 \(last\)"):
        check(wrong(priority=priority))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"delay": 1, "deliver_at": NOON}, "both delay and deliver_at"),
        ({"ttl": 1, "expires_at": NOON}, "both ttl and expires_at"),
        ({"deliver_at": NAIVE}, "deliver_at .*no time zone"),
        ({"expires_at": NAIVE}, "expires_at .*no time zone"),
        ({"deliver_at": NAIVE, "expires_at": NOON}, "deliver_at .*no time zone"),
        ({"deliver_at": 5}, "deliver_at is 5"),
        ({"delay": -1}, "delay is -1"),
        ({"delay": "1"}, "delay is '1'"),
        ({"ttl": -1}, "ttl is -1"),
        ({"ttl": 0}, "ttl is not after delay"),
        ({"delay": 60, "ttl": 60}, "ttl is not after delay"),
        ({"deliver_at": NOON, "expires_at": NOON}, "expires_at is not after deliver_at"),
    ],
)
def test_senseless_times_are_taken(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check(wrong(**fields))


def test_a_checked_message_shares_its_headers_or_is_of_its_callers_classes() -> None:
    given = {"name": "value"}
    found = check(
        Message(SullenBytes(b"x"), headers=given, key=SullenText("k"), priority=Level.FIVE, dedup_id=Word.KEY)
    )
    given["name"] = "another"
    assert found == Message(b"x", headers={"name": "value"}, key="k", priority=5, dedup_id="key")
    assert [type(one) for one in (found.payload, found.key, found.priority, found.dedup_id)] == [
        bytes,
        str,
        int,
        str,
    ]


def test_a_plain_message_is_copied() -> None:
    plain = Message(b"x", key="k", priority=7)
    assert check(plain) is plain


def test_headers_that_cannot_be_read_are_an_error_of_their_own() -> None:
    with pytest.raises(InvalidArgument, match="headers cannot be read") as caught:
        check(wrong(headers=Unreadable()))
    assert isinstance(caught.value.__cause__, Refusal)
