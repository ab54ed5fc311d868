"""One live lease per message: its deadline, its extension, and what an old receipt may still do."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import Backoff, LeaseLost, PenstockError
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take, unchanged
from tests.conformance.surface import Delivery, Queue

SETTLING: dict[str, Callable[[Delivery], None]] = {
    "ack": lambda delivery: delivery.ack(),
    "nack": lambda delivery: delivery.nack(),
    "nack now": lambda delivery: delivery.nack(delay=0, error="late"),
    "reject": lambda delivery: delivery.reject(error="late"),
    "requeue": lambda delivery: delivery.requeue(),
    "extend": lambda delivery: delivery.extend(60),
}

every_settling = pytest.mark.parametrize("settle", SETTLING.values(), ids=SETTLING)


@pytest.fixture
def queue(home: Home) -> Queue:
    return home.broker.queue("orders", visibility_timeout=30, max_attempts=None)


# --- the deadline ---


def test_a_lease_ends_early_or_never(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    take(queue)
    home.advance(29.9)
    assert queue.receive() is None
    assert counts(queue) == expected(leased=1)
    home.advance(0.2)
    assert counts(queue) == expected(ready=1)
    delivery = take(queue)
    assert (delivery.payload, delivery.attempt, delivery.redelivered) == (b"a", 2, True)


def test_returned_leases_come_back_behind_others_or_out_of_order(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c", b"d"])
    queue.receive_many(3)
    queue.publish(b"e")
    home.advance(31)
    assert drain(queue) == [b"a", b"b", b"c", b"d", b"e"]


def test_leases_that_end_at_different_times_change_places(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    first = take(queue)
    home.advance(10)
    take(queue)
    first.extend(60)
    home.advance(31)
    assert take(queue).payload == b"b"  # b is back, a is still held
    home.advance(31)
    assert drain(queue) == [b"a", b"b", b"c"]


def test_a_message_has_two_live_leases(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    receipts = set()
    for _ in range(5):
        receipts.add(take(queue).receipt)
        assert queue.receive() is None
        home.advance(31)
    assert len(receipts) == 5


def test_the_wall_clock_set_back_keeps_a_lease_for_ever(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    take(queue)
    home.clock.set_back(seconds=3600)
    home.advance(31)
    assert take(queue).payload == b"a"


def test_a_lease_without_a_deadline_ends(home: Home) -> None:
    queue = home.broker.queue("orders", visibility_timeout=None)
    queue.publish(b"a")
    with queue.subscribe("worker") as consumer:
        delivery = take(consumer)
        home.advance(365 * 86400)
        assert queue.receive() is None
        delivery.ack()
    assert counts(queue) == expected()


def test_a_lease_without_a_deadline_outlives_its_consumer(home: Home) -> None:
    queue = home.broker.queue("orders", visibility_timeout=None)
    queue.publish(b"a")
    with queue.subscribe("worker") as consumer:
        take(consumer)
    assert take(queue).payload == b"a"


# --- extending ---


def test_an_extension_is_shorter_or_longer_than_asked(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    delivery = take(queue)
    home.advance(20)
    delivery.extend(30)
    home.advance(29.9)
    assert queue.receive() is None
    home.advance(0.2)
    assert take(queue).payload == b"a"


def test_a_lease_cannot_be_extended_again_and_again(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    delivery = take(queue)
    for _ in range(20):
        home.advance(25)
        delivery.extend(timedelta(seconds=30))
    delivery.ack()
    assert counts(queue) == expected()


def test_extending_one_lease_extends_another(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    first, _second = queue.receive_many(2)
    first.extend(60)
    home.advance(31)
    assert payloads(queue.receive_many(5)) == [b"b"]


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "60", None, True], ids=repr)
def test_a_bad_extension_ends_or_prolongs_a_lease(home: Home, queue: Queue, seconds: Any) -> None:
    queue.publish(b"a")
    delivery = take(queue)
    with unchanged(queue), pytest.raises(PenstockError):
        delivery.extend(seconds)
    home.advance(31)
    assert take(queue).payload == b"a"


# --- old receipts ---


@every_settling
def test_a_late_settle_gets_no_lease_lost_or_changes_something(
    home: Home, queue: Queue, settle: Callable[[Delivery], None]
) -> None:
    queue.publish(b"a")
    late = take(queue)
    home.advance(31)
    with unchanged(queue), pytest.raises(LeaseLost):
        settle(late)
    assert drain(queue) == [b"a"]


@every_settling
def test_a_late_settle_ends_the_lease_of_somebody_else(
    home: Home, queue: Queue, settle: Callable[[Delivery], None]
) -> None:
    queue.publish(b"a")
    late = take(queue)
    home.advance(31)
    holder = take(queue)
    with unchanged(queue), pytest.raises(LeaseLost):
        settle(late)
    holder.ack()
    assert counts(queue) == expected()


@every_settling
@pytest.mark.parametrize(
    "first", [SETTLING["ack"], SETTLING["nack"], SETTLING["reject"], SETTLING["requeue"]]
)
def test_a_delivery_is_settled_twice(
    home: Home, first: Callable[[Delivery], None], settle: Callable[[Delivery], None]
) -> None:
    queue = home.broker.queue("twice", backoff=Backoff(initial=5, jitter=0))
    queue.publish(b"a")
    delivery = take(queue)
    first(delivery)
    with unchanged(queue), pytest.raises(LeaseLost):
        settle(delivery)


@every_settling
def test_a_purged_or_acknowledged_message_comes_back_by_a_late_settle(
    home: Home, queue: Queue, settle: Callable[[Delivery], None]
) -> None:
    queue.publish(b"a")
    late = take(queue)
    home.advance(31)
    take(queue).ack()
    with pytest.raises(LeaseLost):
        settle(late)
    home.advance(3600)
    assert counts(queue) == expected()


def test_acknowledging_many_with_an_old_receipt_among_them_does_a_part(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    late = take(queue)
    home.advance(31)
    first, second, third = queue.receive_many(3)
    with unchanged(queue), pytest.raises(LeaseLost):
        queue.ack_many([second, late, third])
    queue.ack_many([first, second, third])
    assert counts(queue) == expected()


# --- nobody has looked at the clock ---


@every_settling
def test_an_old_receipt_settles_before_anybody_noticed_that_its_time_is_over(
    home: Home, queue: Queue, settle: Callable[[Delivery], None]
) -> None:
    queue.publish(b"a")
    delivery = take(queue)
    home.clock.advance(30)  # the broker is not told
    with pytest.raises(LeaseLost):
        settle(delivery)
    assert counts(queue) == expected(ready=1)
    again = take(queue)
    assert (again.payload, again.attempt) == (b"a", 2)
    again.ack()


def test_an_old_receipt_is_acknowledged_among_others_before_anybody_noticed(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    first = take(queue)
    home.clock.advance(20)
    second = take(queue)
    home.clock.advance(10)
    with pytest.raises(LeaseLost):
        queue.ack_many([second, first])
    second.ack()
    assert counts(queue) == expected(ready=1)
