"""Bodies in JSON and msgpack, and what cannot be read."""

from __future__ import annotations

import re

import msgspec
import pytest

from penstock import wire
from penstock.errors import BatchTooLarge, InvalidArgument
from penstock.limits import BODY_VALUES_MAX, MESSAGES_MAX
from penstock.server.http.bodies import (
    DECODED_AT_ONCE_BYTES,
    ITEM_VALUES_MAX,
    JSON_TYPE,
    Reading,
    wants_msgpack,
)
from penstock.server.http.mqueue import EnqueueItem

PUBLISH = Reading(wire.Publish)


@pytest.mark.parametrize(
    "content_type", [b"application/json", b"", b"application/x-www-form-urlencoded", b"text/plain"]
)
def test_json_is_read_whatever_it_is_called(content_type: bytes) -> None:
    found = PUBLISH(b'{"messages": ["aGk=", {"payload": "aGk=", "priority": 1}]}', content_type)
    assert found.messages == [b"hi", wire.Item(payload=b"hi", priority=1)]


def test_msgpack_is_read_when_it_is_said_to_be_that() -> None:
    body = msgspec.msgpack.encode({"messages": [b"hi", {"payload": b"hi"}]})
    assert PUBLISH(body, b"application/msgpack").messages == [b"hi", wire.Item(payload=b"hi")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"messages": [1]}',
        b'{"messages": ["not base64!"]}',
        b'{"messages": [], "massages": []}',
        b'{"messages": [{"payload": "aGk=", "priority": 1e999}]}',
        b'{"messages": ["\xff"]}',
        b'{"messages": ' + b"[" * 40_000,
        b'{"messages": [{"payload": "aGk=", "headers": ' + b'{"a":' * 40_000,
    ],
)
def test_what_cannot_be_read_is_the_callers_mistake(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="body"):
        PUBLISH(body, b"application/json")


def test_what_is_nested_too_deep_is_the_callers_mistake() -> None:
    anything = Reading(wire.Declare)  # whose policy may hold anything
    for body, kind in (
        (b'{"policy": {"a":' + b"[" * 40_000, b"application/json"),
        (b"\x81\xa6policy\x81\xa1a" + b"\x91" * 40_000, b"application/msgpack"),
    ):
        with pytest.raises(InvalidArgument, match="cannot be read|is not"):
            anything(body, kind)


def test_a_body_of_which_nothing_must_be_said_may_be_left_out() -> None:
    assert Reading(wire.Lease)(b"", b"") == wire.Lease()
    assert Reading(wire.Lease)(b"", b"application/msgpack") == wire.Lease()
    with pytest.raises(InvalidArgument):
        Reading(list[EnqueueItem])(b"", b"")


@pytest.mark.parametrize(
    ("accept", "content_type", "packed"),
    [
        (b"", b"", False),
        (b"", b"application/json", False),
        (b"", b"application/msgpack", True),
        (b"*/*", b"application/msgpack", True),
        (b"application/json", b"application/msgpack", False),
        (b"application/msgpack", b"application/json", True),
        (b"application/msgpack, application/json", b"", True),
        (b"application/json, application/msgpack", b"", False),
        (b"text/html", b"application/msgpack", False),
    ],
)
def test_an_answer_is_what_was_asked_for(accept: bytes, content_type: bytes, packed: bool) -> None:
    assert wants_msgpack(accept, content_type) is packed


def test_items_of_a_large_body_are_decoded_one_by_one_with_the_same_result() -> None:
    item = wire.Item(payload=b"x" * 400_000, headers={"a": "b"}, key="k")
    items: list[bytes | wire.Item] = [b"plain", item, item, item, item]
    for packed, encode in ((False, msgspec.json.encode), (True, msgspec.msgpack.encode)):
        kind = b"application/msgpack" if packed else JSON_TYPE
        body = encode(wire.Publish(messages=items))
        assert len(body) > DECODED_AT_ONCE_BYTES
        assert Reading(wire.Publish, BODY_VALUES_MAX)(body, kind) == wire.Publish(messages=items)
        listed = encode([{"topic": "orders", "payload": item.payload}] * 4)
        found = Reading(list[EnqueueItem], BODY_VALUES_MAX)(listed, kind)
        assert [(one.topic, len(one.payload)) for one in found] == [("orders", 400_000)] * 4


def test_wrong_item_of_a_large_body_is_named() -> None:
    body = msgspec.json.encode({"messages": [b"x" * DECODED_AT_ONCE_BYTES, {"payload": "", "key": 7}]})
    with pytest.raises(InvalidArgument, match=re.escape("$.messages[1].key")):
        Reading(wire.Publish, BODY_VALUES_MAX)(body, JSON_TYPE)


def test_item_with_too_many_values_is_refused_before_it_is_decoded() -> None:
    headers = {str(number): "" for number in range(ITEM_VALUES_MAX)}
    body = msgspec.json.encode(
        {"messages": [b"x" * DECODED_AT_ONCE_BYTES, {"payload": "", "headers": headers}]}
    )
    with pytest.raises(BatchTooLarge, match=f"more than {ITEM_VALUES_MAX} values"):
        Reading(wire.Publish, BODY_VALUES_MAX)(body, JSON_TYPE)


def test_batch_that_no_frame_holds_is_refused_before_its_items_are_decoded() -> None:
    body = b'{"messages":[' + b",".join([b"7"] * (MESSAGES_MAX + 1)) + b"]}"  # each is wrong besides
    with pytest.raises(BatchTooLarge, match="make it several"):
        Reading(wire.Publish, BODY_VALUES_MAX)(body, JSON_TYPE)
