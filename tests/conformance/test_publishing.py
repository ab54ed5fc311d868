"""What goes in comes out, whole, in order, or not at all."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import InvalidArgument, Message, PenstockError
from penstock.clock import to_datetime
from penstock.limits import (
    DEDUP_ID_BYTES_MAX,
    DURATION_S_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_DEFAULT,
)
from tests.conformance.home import Home
from tests.conformance.observations import drain, payloads, take, unchanged
from tests.conformance.surface import Queue

PAYLOADS = {
    "empty": b"",
    "one": b"a",
    "zeros": bytes(1000),
    "every byte": bytes(range(256)),
    "not text": b"\xff\xfe\x00\r\n",
    "odd length": b"x" * 4097,
    "largest": b"y" * MESSAGE_BYTES_DEFAULT,
}

BAD_ARGUMENTS: list[dict[str, Any]] = [
    {"payload": "text"},
    {"payload": None},
    {"payload": 5},
    {"payload": bytearray(b"a")},
    {"payload": [b"a"]},
    {"headers": [("a", "b")]},
    {"headers": {"a": 1}},
    {"headers": {"a": None}},
    {"headers": {1: "a"}},
    {"headers": {"": "a"}},
    {"headers": {"a": "\ud800"}},
    {"headers": {str(n): "" for n in range(HEADERS_COUNT_MAX + 1)}},
    {"headers": {"a": "x" * HEADERS_BYTES_MAX}},
    {"key": ""},
    {"key": 5},
    {"key": b"k"},
    {"key": "k" * (KEY_BYTES_MAX + 1)},
    {"priority": -1},
    {"priority": 256},
    {"priority": 1.5},
    {"priority": True},
    {"priority": "1"},
    {"delay": -1},
    {"delay": math.nan},
    {"delay": math.inf},
    {"delay": "1s"},
    {"delay": True},
    {"delay": timedelta(seconds=-1)},
    {"delay": DURATION_S_MAX + 1},
    {"deliver_at": datetime(2026, 1, 2)},  # noqa: DTZ001 - without a zone, on purpose
    {"deliver_at": "tomorrow"},
    {"deliver_at": 1767225600},
    {"delay": 1, "deliver_at": datetime(2026, 1, 2, tzinfo=UTC)},
    {"ttl": 0},
    {"ttl": -1},
    {"ttl": math.nan},
    {"ttl": "1h"},
    {"delay": 10, "ttl": 10},
    {"dedup_id": ""},
    {"dedup_id": 5},
    {"dedup_id": "d" * (DEDUP_ID_BYTES_MAX + 1)},
]

BAD_ELEMENTS: list[Any] = [
    "text",
    None,
    5,
    bytearray(b"a"),
    (b"a", 1),
    Message("text"),  # type: ignore[arg-type]
    Message(b"a", priority=-1),
    Message(b"a", key=""),
    Message(b"a", delay=-1),
    Message(b"a", headers={"a": 1}),  # type: ignore[dict-item]
    Message(b"a", dedup_id=""),
]


def _short(given: object) -> str:
    return repr(given)[:40]


# --- what goes in comes out ---


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_comes_out_as_something_else(queue: Queue, payload: bytes) -> None:
    queue.publish(payload)
    queue.publish_many([payload, Message(payload)])
    assert payloads(queue.peek(3)) == [payload] * 3
    assert drain(queue) == [payload] * 3


def test_something_said_about_a_message_is_lost(home: Home, queue: Queue) -> None:
    published = queue.publish(
        b"a", headers={"type": "order", "ünicode": "✓ \n"}, key="customer-7", priority=1
    )
    delivery = take(queue)
    assert delivery.id == published
    assert dict(delivery.headers) == {"type": "order", "ünicode": "✓ \n"}
    assert (delivery.key, delivery.priority) == ("customer-7", 1)
    assert (delivery.attempt, delivery.redelivered) == (1, False)
    assert delivery.timestamp == to_datetime(home.clock.now_us())


def test_a_whole_message_is_published_wherever_a_payload_is(home: Home, queue: Queue) -> None:
    whole = Message(b"a", headers={"type": "order"}, key="customer-7", priority=1)
    topic = home.broker.topic("events")
    subscription = topic.subscribe("audit")
    queue.publish(whole)
    topic.publish(whole)
    home.broker.publish("orders", whole)
    with home.broker.transaction() as tx:
        tx.publish("orders", whole)
    found = [*queue.receive_many(3), *subscription.receive_many(1)]
    assert [(one.payload, dict(one.headers), one.key, one.priority) for one in found] == [
        (b"a", {"type": "order"}, "customer-7", 1)
    ] * 4


@pytest.mark.parametrize(
    "said", [{"priority": 1}, {"headers": {}}, {"delay": 0}, {"dedup_id": "d"}], ids=_short
)
def test_a_whole_message_with_options_beside_it_is_refused(
    home: Home, queue: Queue, said: dict[str, Any]
) -> None:
    [name] = said
    complaint = f"{name} is given beside a Message; put it in the Message"
    with unchanged(queue):
        with pytest.raises(InvalidArgument, match=complaint):
            queue.publish(Message(b"a"), **said)
        with pytest.raises(InvalidArgument, match=complaint):
            home.broker.publish("orders", Message(b"a"), **said)
        with home.broker.transaction() as tx, pytest.raises(InvalidArgument, match=complaint):
            tx.publish("orders", Message(b"a"), **said)


def test_a_plain_message_has_something_that_nobody_said(queue: Queue) -> None:
    queue.publish(b"a")
    delivery = take(queue)
    assert (dict(delivery.headers), delivery.key, delivery.priority) == ({}, None, 100)


def test_a_batch_confuses_what_is_said_about_its_messages(queue: Queue) -> None:
    queue.publish_many(
        [
            Message(b"a", headers={"n": "1"}, key="k1"),
            b"b",
            Message(b"c", headers={"n": "3", "m": ""}, key="k3"),
        ]
    )
    found = queue.receive_many(3)
    assert [(one.payload, dict(one.headers), one.key) for one in found] == [
        (b"a", {"n": "1"}, "k1"),
        (b"b", {}, None),
        (b"c", {"n": "3", "m": ""}, "k3"),
    ]


def test_a_message_that_was_read_keeps_its_old_id_when_published_again(queue: Queue) -> None:
    queue.publish(b"a", headers={"n": "1"})
    [read] = queue.peek()
    [again] = queue.publish_many([read])
    assert again != read.id
    assert [(one.payload, dict(one.headers), one.offset) for one in queue.receive_many(2)] == [
        (b"a", {"n": "1"}, 0),
        (b"a", {"n": "1"}, 1),
    ]


def test_changing_what_was_given_changes_what_was_published(queue: Queue) -> None:
    headers = {"n": "1"}
    queue.publish(b"a", headers=headers)
    headers["n"] = "2"
    assert dict(take(queue).headers) == {"n": "1"}


# --- ids, offsets, order ---


def test_ids_repeat_or_go_back(home: Home, queue: Queue) -> None:
    ids = [queue.publish(b"a"), *queue.publish_many([b"b"] * 50), queue.publish(b"c")]
    home.advance(1)
    ids += queue.publish_many([b"d"] * 5)
    assert all(isinstance(one, int) for one in ids)
    assert ids == sorted(set(ids))
    assert [one.id for one in queue.receive_many(len(ids))] == ids


def test_ids_of_two_queues_are_the_same(home: Home) -> None:
    first, second = home.broker.queue("first"), home.broker.queue("second")
    ids = [one for _ in range(20) for one in (first.publish(b""), second.publish(b""))]
    assert len(set(ids)) == 40


def test_offsets_do_not_count_from_zero_or_are_used_again(queue: Queue) -> None:
    queue.publish(b"a")
    queue.publish_many([b"b", b"c"])
    assert [one.offset for one in queue.receive_many(3)] == [0, 1, 2]
    queue.purge()
    queue.publish(b"d")
    assert take(queue).offset == 3


def test_messages_are_delivered_out_of_order(queue: Queue) -> None:
    sent = [b"%d" % n for n in range(100)]
    for one in sent[:30]:
        queue.publish(one)
    queue.publish_many(sent[30:90])
    for one in sent[90:]:
        queue.publish(one)
    assert drain(queue) == sent


def test_what_was_not_published_is_delivered(queue: Queue) -> None:
    assert queue.receive() is None
    assert queue.receive_many(10) == []
    assert queue.peek(10) == []


# --- batches ---


def test_an_empty_batch_is_refused(queue: Queue) -> None:
    with unchanged(queue):
        assert queue.publish_many([]) == []


def test_a_batch_of_a_thousand_loses_one(queue: Queue) -> None:
    sent = [b"%d" % n for n in range(1000)]
    assert len(set(queue.publish_many(sent))) == 1000
    assert payloads(queue.receive_many(1000)) == sent


@pytest.mark.parametrize("bad", BAD_ELEMENTS, ids=_short)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_part_of_a_refused_batch_is_kept(queue: Queue, bad: Any, place: int) -> None:
    queue.publish(b"before")
    batch: list[Any] = [b"a", Message(b"b", delay=5, dedup_id="b")]
    batch.insert(place, bad)
    with unchanged(queue), pytest.raises(PenstockError):
        queue.publish_many(batch)
    # Its dedup id is not remembered either.
    queue.publish(b"b", dedup_id="b")
    assert drain(queue) == [b"before", b"b"]


@pytest.mark.parametrize("batch", [None, b"abc", "abc", 5, Message(b"a")], ids=_short)
def test_what_is_not_a_batch_is_published(queue: Queue, batch: Any) -> None:
    with unchanged(queue), pytest.raises(InvalidArgument):
        queue.publish_many(batch)


# --- bad input ---


@pytest.mark.parametrize("given", BAD_ARGUMENTS, ids=_short)
def test_bad_input_is_published_or_raises_something_else(queue: Queue, given: dict[str, Any]) -> None:
    queue.publish(b"before")
    with unchanged(queue), pytest.raises(PenstockError) as caught:
        queue.publish(**{"payload": b"a", **given})
    assert caught.value.message
    queue.publish(b"after")
    assert drain(queue) == [b"before", b"after"]


def test_what_is_just_allowed_is_refused(queue: Queue) -> None:
    queue.publish(b"a", key="k" * KEY_BYTES_MAX, priority=0, dedup_id="d" * DEDUP_ID_BYTES_MAX)
    queue.publish(b"b", headers={str(n): "" for n in range(HEADERS_COUNT_MAX)}, priority=255)
    queue.publish(b"c", headers={"a": "x" * (HEADERS_BYTES_MAX - 1)}, delay=0, priority=254)
    found = queue.receive_many(3)
    assert payloads(found) == [b"a", b"c", b"b"]
    assert (len(found[1].headers["a"]), len(found[2].headers)) == (HEADERS_BYTES_MAX - 1, HEADERS_COUNT_MAX)


@pytest.mark.parametrize("headers", [0, [], "", (), b"", False, set()], ids=_short)
def test_something_empty_is_taken_for_no_headers(queue: Queue, headers: Any) -> None:
    with unchanged(queue), pytest.raises(InvalidArgument, match="^headers is a "):
        queue.publish(b"a", headers=headers)
    with unchanged(queue), pytest.raises(InvalidArgument, match="^headers is a "):
        queue.publish_many([b"a", Message(b"b", headers=headers)])
    queue.publish(b"a", headers={})
    assert dict(take(queue).headers) == {}
