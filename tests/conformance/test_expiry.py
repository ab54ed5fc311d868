"""Time to live: an expired message is never delivered, and is dropped or dead-lettered as the policy says."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from penstock import InvalidArgument, Message, MessageExpired
from penstock.clock import to_datetime
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take, unchanged
from tests.conformance.surface import Queue


def assert_nothing_left(queue: Queue, *, dead: int = 0) -> None:
    assert queue.receive() is None
    assert queue.peek(10) == []
    assert counts(queue) == expected(dead=dead)


@pytest.mark.parametrize("ttl", [60, 60.0, timedelta(minutes=1)], ids=repr)
def test_an_expired_message_is_delivered(home: Home, queue: Queue, ttl: Any) -> None:
    queue.publish(b"a", ttl=ttl)
    home.advance(60)
    assert_nothing_left(queue)


def test_a_message_expires_early(home: Home, queue: Queue) -> None:
    queue.publish(b"a", ttl=60)
    home.advance(59.9)
    assert take(queue).payload == b"a"


def test_an_expired_message_hides_those_behind_it(home: Home, queue: Queue) -> None:
    queue.publish_many([Message(b"a", ttl=10), b"b", Message(b"c", ttl=10), Message(b"d", ttl=100)])
    home.advance(10)
    assert payloads(queue.peek(5)) == [b"b", b"d"]
    assert payloads(queue.receive_many(5)) == [b"b", b"d"]


def test_the_time_to_live_of_the_queue_does_not_count(home: Home) -> None:
    queue = home.broker.queue("orders", ttl=60)
    queue.publish_many([b"a", b"b"])
    home.advance(30)
    queue.publish(b"c")
    home.advance(31)
    assert drain(queue) == [b"c"]


@pytest.mark.parametrize("ttl", [10, 100])
def test_the_queues_time_to_live_wins_over_the_messages_own(home: Home, ttl: int) -> None:
    queue = home.broker.queue("orders", ttl=60)
    queue.publish(b"a", ttl=ttl)
    home.advance(ttl - 1)
    assert payloads(queue.peek()) == [b"a"]
    home.advance(2)
    assert_nothing_left(queue)


def test_a_message_with_a_last_moment_outlives_it(home: Home, queue: Queue) -> None:
    end = to_datetime(home.clock.now_us()) + timedelta(seconds=60)
    queue.publish_many([Message(b"a", expires_at=end)])
    home.advance(59)
    assert payloads(queue.peek()) == [b"a"]
    home.advance(2)
    assert_nothing_left(queue)


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_never_in_some_zone_breaks_the_broker(home: Home, queue: Queue, hours: int) -> None:
    never = datetime.max.replace(tzinfo=timezone(timedelta(hours=hours)))
    queue.publish_many([Message(b"a", expires_at=never), Message(b"b", deliver_at=never)])
    assert payloads(queue.peek(5)) == [b"a"]
    home.advance(3600)
    assert drain(queue) == [b"a"]
    assert counts(queue) == expected(delayed=1)


def test_a_message_that_has_expired_already_is_published(home: Home, queue: Queue) -> None:
    past = to_datetime(home.clock.now_us()) - timedelta(seconds=1)
    with unchanged(queue), pytest.raises(MessageExpired):
        queue.publish_many([b"a", Message(b"b", expires_at=past)])


def test_a_delayed_message_expires_before_it_is_due_or_after(home: Home, queue: Queue) -> None:
    queue.publish(b"a", delay=60, ttl=90)
    queue.publish(b"b", delay=60, ttl=70)
    home.advance(61)
    assert payloads(queue.peek(5)) == [b"a", b"b"]
    home.advance(10)
    assert drain(queue) == [b"a"]


def test_what_is_leased_expires_under_its_holder(home: Home) -> None:
    queue = home.broker.queue("orders", visibility_timeout=300)
    queue.publish(b"a", ttl=60)
    delivery = take(queue)
    home.advance(100)
    delivery.ack()
    assert_nothing_left(queue)


@pytest.mark.parametrize("how", ["nack", "requeue", "lease"])
def test_what_expired_while_it_was_leased_is_delivered_again(home: Home, how: str) -> None:
    queue = home.broker.queue("orders", visibility_timeout=90)
    queue.publish(b"a", ttl=60)
    delivery = take(queue)
    home.advance(70)
    if how == "nack":
        delivery.nack(delay=0)
    elif how == "requeue":
        delivery.requeue()
    else:
        home.advance(30)
    assert_nothing_left(queue)


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter"])
@pytest.mark.parametrize("how", ["nack", "reject", "requeue", "lease", "close"])
def test_what_expired_at_its_last_attempt_dies_of_something_else(
    home: Home, how: str, on_expire: str
) -> None:
    queue = home.broker.queue("orders", max_attempts=1, visibility_timeout=90, on_expire=on_expire)
    queue.publish(b"a", ttl=60)
    consumer = queue.subscribe("worker")
    delivery = take(consumer)
    home.advance(70)
    if how == "lease":
        home.advance(30)
    elif how == "close":
        consumer.close()
    else:
        getattr(delivery, how)()
    if on_expire == "drop":
        assert_nothing_left(queue)
        assert queue.dead_letters().depth() == 0
    else:
        assert_nothing_left(queue, dead=1)
        [letter] = queue.dead_letters().peek(5)
        assert (letter.headers["x-reason"], letter.headers["x-attempts"]) == ("expired", "1")


def test_a_lease_and_a_life_that_end_together_make_a_last_attempt(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=1, visibility_timeout=60)
    queue.publish(b"a", ttl=60)
    take(queue)
    home.advance(60)
    assert_nothing_left(queue)


@pytest.mark.parametrize("given", [{"delay": 60}, {"delay": 61}, {"delay": timedelta(days=1)}], ids=repr)
def test_a_message_that_cannot_be_delivered_in_the_queues_time_is_taken(
    home: Home, given: dict[str, Any]
) -> None:
    queue = home.broker.queue("orders", ttl=60)
    with unchanged(queue), pytest.raises(InvalidArgument, match="ttl"):
        queue.publish(b"a", **given)
    with unchanged(queue), pytest.raises(InvalidArgument, match="ttl"):
        queue.publish_many([b"a", Message(b"b", ttl=5), Message(b"c", **given)])


def test_a_message_that_can_be_delivered_in_the_queues_time_or_its_own_is_refused(home: Home) -> None:
    queue = home.broker.queue("orders", ttl=60)
    past = to_datetime(home.clock.now_us()) - timedelta(days=1)
    queue.publish_many(
        [Message(b"a", delay=59), Message(b"b", delay=600, ttl=601), Message(b"c", deliver_at=past)]
    )
    assert drain(queue) == [b"c"]
    home.advance(59)
    assert drain(queue) == [b"a"]
    home.advance(541)
    assert drain(queue) == [b"b"]


def test_what_expires_while_it_waits_for_its_retry_is_delivered_again(home: Home, queue: Queue) -> None:
    queue.publish(b"a", ttl=60)
    take(queue).nack(delay=100)
    home.advance(101)
    assert_nothing_left(queue)


def test_an_expired_message_that_should_be_dropped_is_kept(home: Home) -> None:
    queue = home.broker.queue("orders", on_expire="drop")
    queue.publish(b"a", ttl=60)
    home.advance(61)
    assert_nothing_left(queue)
    assert queue.dead_letters().depth() == 0


def test_an_expired_message_that_should_be_kept_is_dropped(home: Home) -> None:
    queue = home.broker.queue("orders", on_expire="dead-letter")
    published = queue.publish(b"a", ttl=60, headers={"type": "order"})
    queue.publish(b"b")
    home.advance(61)
    assert take(queue).payload == b"b"
    [dead] = queue.dead_letters().receive_many(5)
    assert (dead.payload, dead.headers["type"]) == (b"a", "order")
    assert (dead.headers["x-reason"], dead.headers["x-origin"]) == ("expired", "orders")
    assert (dead.headers["x-origin-id"], dead.headers["x-attempts"]) == (str(published), "0")


def test_a_dead_letter_expires_again(home: Home) -> None:
    queue = home.broker.queue("orders", on_expire="dead-letter", ttl=60)
    queue.publish(b"a")
    home.advance(61)
    assert_nothing_left(queue, dead=1)
    home.advance(3600)
    assert payloads(queue.dead_letters().receive_many(5)) == [b"a"]


def test_an_expired_message_cannot_be_redriven(home: Home) -> None:
    queue = home.broker.queue("orders", on_expire="dead-letter")
    queue.publish(b"a", ttl=60)
    home.advance(61)
    assert_nothing_left(queue, dead=1)
    assert queue.redrive() == 1
    assert drain(queue) == [b"a"]


def test_many_expired_messages_hide_one_that_lives(home: Home, queue: Queue) -> None:
    queue.publish_many([Message(b"%d" % n, ttl=10, priority=n % 5) for n in range(500)])
    queue.publish(b"alive", priority=200)
    home.advance(11)
    assert drain(queue) == [b"alive"]
    assert counts(queue) == expected()
