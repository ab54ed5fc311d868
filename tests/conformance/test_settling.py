"""Ack, nack, reject, requeue: what each does to the message, and to no other."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from penstock import Backoff, LeaseLost, PenstockError
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take, unchanged
from tests.conformance.surface import Queue

# --- ack ---


def test_acknowledging_one_settles_another(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    _first, second, _third = queue.receive_many(3)
    second.ack()
    assert counts(queue) == expected(leased=2)
    home.advance(31)
    assert drain(queue) == [b"a", b"c"]


def test_acknowledging_many_leaves_one(home: Home, queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(100)])
    queue.ack_many(queue.receive_many(100))
    assert counts(queue) == expected()
    home.advance(3600)
    assert queue.receive() is None


def test_acknowledging_many_in_another_order_leaves_one(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(10)])
    found = queue.receive_many(10)
    queue.ack_many(found[1::2][::-1])
    queue.ack_many(found[0::2])
    assert counts(queue) == expected()


def test_acknowledging_none_fails(queue: Queue) -> None:
    queue.publish(b"a")
    with unchanged(queue):
        queue.ack_many([])


@pytest.mark.parametrize("given", [None, 5, [None], [5], [b"receipt"], "abc"], ids=repr)
def test_acknowledging_what_is_no_delivery_settles_something(queue: Queue, given: Any) -> None:
    queue.publish_many([b"a", b"b"])
    take(queue)
    with unchanged(queue), pytest.raises(PenstockError):
        queue.ack_many(given)


def test_the_delivery_of_one_queue_is_acknowledged_in_another(home: Home, queue: Queue) -> None:
    other = home.broker.queue("other")
    for one in (queue, other):
        one.publish(b"a")
    mine, theirs = take(queue), take(other)
    with unchanged(queue), unchanged(other), pytest.raises(PenstockError):
        other.ack_many([theirs, mine])
    mine.ack()
    theirs.ack()


def test_the_delivery_of_one_broker_is_acknowledged_in_another(home: Home, queue: Queue) -> None:
    other = home.open(home.elsewhere()).queue("orders")
    for one in (queue, other):
        one.publish_many([b"a", b"b"])
    mine, theirs = queue.receive_many(2), other.receive_many(2)
    with unchanged(queue), unchanged(other), pytest.raises(LeaseLost):
        other.ack_many(mine)
    with unchanged(queue), unchanged(other), pytest.raises(LeaseLost):
        other.ack_many([*theirs, *mine])
    queue.ack_many(mine)
    other.ack_many(theirs)
    assert (queue.depth(), other.depth()) == (0, 0)


# --- nack ---


def test_a_failed_message_comes_back_before_its_backoff_or_not_at_all(home: Home) -> None:
    backoff = Backoff(initial=10, factor=2, maximum=30, jitter=0)
    queue = home.broker.queue("orders", backoff=backoff, max_attempts=None)
    queue.publish(b"a")
    for attempt, wait in enumerate([10, 20, 30, 30], start=1):
        delivery = take(queue)
        assert (delivery.attempt, delivery.redelivered) == (attempt, attempt > 1)
        delivery.nack(error="no")
        home.advance(wait - 0.001)
        assert counts(queue) == expected(retrying=1)
        assert queue.receive() is None
        home.advance(0.001)
        assert counts(queue) == expected(ready=1)


def test_chance_takes_more_of_the_backoff_than_the_jitter_allows(home: Home) -> None:
    queue = home.broker.queue("orders", backoff=Backoff(initial=100, jitter=0.5))
    queue.publish_many([b"%d" % n for n in range(50)])
    for delivery in queue.receive_many(50):
        delivery.nack()
    home.advance(49.9)
    assert queue.receive() is None
    home.advance(50.2)
    assert len(queue.receive_many(50)) == 50


def test_what_failed_together_returns_together_despite_the_jitter(home: Home) -> None:
    queue = home.broker.queue("orders", backoff=Backoff(initial=100, jitter=1))
    queue.publish_many([b"%d" % n for n in range(50)])
    for delivery in queue.receive_many(50):
        delivery.nack()
    home.advance(50)
    assert 0 < len(queue.receive_many(50)) < 50


def test_a_queue_without_backoff_waits(home: Home) -> None:
    queue = home.broker.queue("orders", backoff=None)
    queue.publish(b"a")
    take(queue).nack(error="no")
    assert take(queue).attempt == 2


@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1)], ids=repr)
def test_a_delay_given_with_nack_is_not_the_one_that_counts(home: Home, queue: Queue, delay: Any) -> None:
    queue.publish(b"a")
    take(queue).nack(delay=delay)
    home.advance(59.999)
    assert queue.receive() is None
    home.advance(0.001)
    assert take(queue).attempt == 2


def test_a_delay_of_nothing_waits_for_the_backoff(queue: Queue) -> None:
    queue.publish(b"a")
    take(queue).nack(delay=0)
    assert take(queue).attempt == 2


def test_a_message_that_waits_for_its_retry_holds_up_others(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    take(queue).nack(delay=60)
    assert drain(queue) == [b"b"]


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, "1", True], ids=repr)
def test_a_bad_delay_settles(queue: Queue, delay: Any) -> None:
    queue.publish(b"a")
    delivery = take(queue)
    with unchanged(queue), pytest.raises(PenstockError):
        delivery.nack(delay=delay)
    delivery.ack()
    assert counts(queue) == expected()


@pytest.mark.parametrize(
    "error", [None, "text", "", "\ud800", ValueError("no"), ValueError(), KeyError("k")], ids=repr
)
def test_an_error_of_some_kind_cannot_be_given(queue: Queue, error: Any) -> None:
    queue.publish_many([b"a", b"b"])
    first, second = queue.receive_many(2)
    first.nack(delay=0, error=error)
    second.reject(error=error)
    assert counts(queue) == expected(ready=1, dead=1)
    assert drain(queue) == [b"a"]


# --- reject ---


def test_a_rejected_message_is_tried_again(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    take(queue).reject(error="never")
    assert counts(queue) == expected(ready=1, dead=1)
    home.advance(3600)
    assert drain(queue) == [b"b"]


# --- requeue ---


def test_a_requeued_message_waits_or_loses_its_place(queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c", b"d"])
    _a, b, c = queue.receive_many(3)
    c.requeue()
    b.requeue()
    back = queue.receive_many(5)
    assert payloads(back) == [b"b", b"c", b"d"]
    assert [one.redelivered for one in back] == [True, True, False]


def test_a_requeued_message_leaves_its_lane(queue: Queue) -> None:
    queue.publish(b"later", priority=200)
    queue.publish(b"sooner", priority=1)
    first, second = queue.receive_many(2)
    second.requeue()
    first.requeue()
    assert drain(queue) == [b"sooner", b"later"]
