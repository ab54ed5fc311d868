"""At-most-once and exactly-once, chosen by policy; at-least-once is what every other file shows."""

from __future__ import annotations

import pytest

from penstock import InvalidArgument, Message
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take, unchanged
from tests.conformance.surface import Queue


@pytest.fixture
def once_at_most(home: Home) -> Queue:
    return home.broker.queue("at-most-once", delivery="at-most-once")


@pytest.fixture
def once(home: Home) -> Queue:
    return home.broker.queue("exactly-once", delivery="exactly-once", dedup_window=60)


# --- at most once ---


def test_what_was_handed_out_at_most_once_comes_back(home: Home, once_at_most: Queue) -> None:
    once_at_most.publish_many([b"a", b"b", b"c"])
    assert take(once_at_most).payload == b"a"
    assert counts(once_at_most) == expected(ready=2)
    assert payloads(once_at_most.receive_many(1)) == [b"b"]
    home.advance(3600)
    assert payloads(once_at_most.receive_many(5)) == [b"c"]
    assert counts(once_at_most) == expected()


def test_a_consumer_gives_back_what_it_got_at_most_once(home: Home, once_at_most: Queue) -> None:
    once_at_most.publish_many([b"a", b"b", b"c"])
    with once_at_most.subscribe("worker", prefetch=10) as consumer:
        take(consumer)
    # What was only buffered was not handed out.
    assert payloads(once_at_most.receive_many(5)) == [b"b", b"c"]


# --- exactly once ---


def test_a_publish_that_cannot_be_recognised_is_taken(once: Queue) -> None:
    with unchanged(once), pytest.raises(InvalidArgument, match="dedup_id"):
        once.publish(b"a")
    with unchanged(once), pytest.raises(InvalidArgument, match="dedup_id"):
        once.publish_many([Message(b"a", dedup_id="1"), Message(b"b"), b"c"])
    once.publish(b"a", dedup_id="1")
    assert drain(once) == [b"a"]


def test_an_id_is_forgotten_while_its_message_is_unsettled(home: Home, once: Queue) -> None:
    first = once.publish(b"a", dedup_id="1")
    home.advance(3600)
    assert once.publish(b"a", dedup_id="1") == first
    delivery = take(once)
    assert once.publish(b"a", dedup_id="1") == first
    delivery.nack(delay=600)
    home.advance(600)
    assert once.publish(b"a", dedup_id="1") == first
    assert drain(once) == [b"a"]


def test_the_window_does_not_begin_with_the_settlement(home: Home, once: Queue) -> None:
    first = once.publish(b"a", dedup_id="1")
    home.advance(3600)
    take(once).ack()
    home.advance(59)
    assert once.publish(b"a", dedup_id="1") == first
    assert once.depth() == 0
    home.advance(2)
    assert once.publish(b"a", dedup_id="1") != first
    assert once.depth() == 1


def test_a_dead_message_is_published_again_within_the_window(home: Home, once: Queue) -> None:
    first = once.publish(b"a", dedup_id="1")
    take(once).reject()
    assert once.publish(b"a", dedup_id="1") == first
    assert counts(once) == expected(dead=1)


def test_a_producer_that_repeats_everything_makes_two_of_something(home: Home, once: Queue) -> None:
    batch = [Message(b"%d" % n, dedup_id=str(n)) for n in range(50)]
    ids = once.publish_many(batch)
    assert once.publish_many(batch[::-1]) == ids[::-1]
    came = drain(once)
    once.publish_many(batch)
    assert came + drain(once) == [one.payload for one in batch]
