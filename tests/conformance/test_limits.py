"""Depth, bytes and sizes: what is too much is refused whole, or makes room as the policy says."""

from __future__ import annotations

import pytest

from penstock import BatchTooLarge, Message, MessageTooLarge, QueueFull
from penstock.limits import FRAME_BYTES_MAX, MESSAGE_BYTES_DEFAULT
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, take, unchanged
from tests.conformance.surface import Queue

# --- depth ---


def test_a_full_queue_takes_another(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=3)
    queue.publish_many([b"a", b"b", b"c"])
    with unchanged(queue), pytest.raises(QueueFull):
        queue.publish(b"d")
    with unchanged(queue), pytest.raises(QueueFull):
        queue.publish_many([b"d"])
    assert drain(queue) == [b"a", b"b", b"c"]


def test_part_of_a_batch_that_does_not_fit_is_kept(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=3)
    queue.publish(b"a")
    with unchanged(queue), pytest.raises(QueueFull):
        queue.publish_many([b"b", b"c", b"d"])
    queue.publish_many([b"b", b"c"])
    assert drain(queue) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("how", ["leased", "delayed", "retrying"])
def test_what_cannot_be_received_does_not_count(home: Home, how: str) -> None:
    queue = home.broker.queue("orders", max_depth=1)
    queue.publish(b"a", delay=60 if how == "delayed" else None)
    if how != "delayed":
        delivery = take(queue)
        if how == "retrying":
            delivery.nack(delay=60)
    with unchanged(queue), pytest.raises(QueueFull):
        queue.publish(b"b")


@pytest.mark.parametrize("how", ["ack", "reject", "purge", "expire"])
def test_a_queue_stays_full_after_it_was_relieved(home: Home, how: str) -> None:
    queue = home.broker.queue("orders", max_depth=1)
    queue.publish(b"a", ttl=60)
    if how == "purge":
        queue.purge()
    elif how == "expire":
        home.advance(61)
        assert queue.receive() is None
    else:
        getattr(take(queue), how)()
    queue.publish(b"b")
    assert drain(queue) == [b"b"]


def test_a_repetition_counts(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=2)
    queue.publish(b"a", dedup_id="1")
    queue.publish_many([Message(b"a", dedup_id="1"), Message(b"b", dedup_id="2")])
    assert drain(queue) == [b"a", b"b"]


def test_altering_the_limit_changes_nothing(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=1)
    queue.publish(b"a")
    queue.alter(max_depth=2)
    queue.publish(b"b")
    queue.alter(max_depth=1)
    assert queue.depth() == 2
    with pytest.raises(QueueFull):
        queue.publish(b"c")
    queue.alter(max_depth=None)
    queue.publish(b"c")
    assert drain(queue) == [b"a", b"b", b"c"]


# --- bytes ---


def test_more_bytes_than_allowed_are_kept(home: Home) -> None:
    queue = home.broker.queue("orders", max_bytes=1000)
    queue.publish(b"x" * 600)
    with unchanged(queue), pytest.raises(QueueFull):
        queue.publish(b"y" * 600)
    with unchanged(queue), pytest.raises(QueueFull):
        queue.publish_many([b"y", b"z" * 600])
    queue.publish(b"y" * 100)
    take(queue).ack()
    queue.publish(b"z" * 600)
    assert [len(one) for one in drain(queue)] == [100, 600]


# --- drop-head ---


def test_a_full_queue_drops_its_newest_or_refuses(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=3, overflow="drop-head")
    ids = [queue.publish(b"%d" % n) for n in range(10)]
    assert len(set(ids)) == 10
    assert queue.depth() == 3
    assert drain(queue) == [b"7", b"8", b"9"]


def test_a_batch_drops_its_own_head_before_older_ones(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=3, overflow="drop-head")
    queue.publish_many([b"a", b"b"])
    queue.publish_many([b"c", b"d"])
    assert drain(queue) == [b"b", b"c", b"d"]


def test_too_many_bytes_drop_the_newest_or_are_refused(home: Home) -> None:
    queue = home.broker.queue("orders", max_bytes=1000, overflow="drop-head")
    for letter in (b"a", b"b", b"c"):
        queue.publish(letter * 400)
    assert [one[:1] for one in drain(queue)] == [b"b", b"c"]


def test_a_dropped_message_comes_back(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=1, overflow="drop-head")
    queue.publish_many([b"a"])
    queue.publish_many([b"b"])
    home.advance(3600)
    assert drain(queue) == [b"b"]
    home.advance(3600)
    assert queue.depth() == 0
    assert queue.receive() is None


# --- sizes ---


def test_a_message_above_the_limit_is_taken(home: Home) -> None:
    queue = home.broker.queue("orders", max_message_bytes=100)
    with unchanged(queue), pytest.raises(MessageTooLarge, match="100"):
        queue.publish(b"x" * 101)
    with unchanged(queue), pytest.raises(MessageTooLarge):
        queue.publish_many([b"a", b"x" * 101, b"b"])
    queue.publish(b"x" * 100)
    assert counts(queue) == expected(ready=1)


def test_the_default_limit_is_another(queue: Queue) -> None:
    with unchanged(queue), pytest.raises(MessageTooLarge):
        queue.publish(b"x" * (MESSAGE_BYTES_DEFAULT + 1))


def test_a_batch_above_what_a_frame_holds_is_taken_in_part(queue: Queue) -> None:
    queue.publish(b"before")
    large = b"x" * MESSAGE_BYTES_DEFAULT
    with unchanged(queue), pytest.raises(BatchTooLarge):
        queue.publish_many([large] * (FRAME_BYTES_MAX // MESSAGE_BYTES_DEFAULT + 1))
    queue.publish(b"after")
    assert drain(queue) == [b"before", b"after"]
