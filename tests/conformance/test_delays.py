"""Delayed messages: never early, and there when they are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock import Message
from penstock.clock import to_datetime
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, take
from tests.conformance.surface import Queue


@pytest.mark.parametrize(
    ("delay", "seconds"), [(60, 60), (60.0, 60), (timedelta(minutes=1), 60), (0.5, 0.5)], ids=repr
)
def test_a_delayed_message_is_early_or_does_not_come(
    home: Home, queue: Queue, delay: Any, seconds: float
) -> None:
    queue.publish(b"a", delay=delay)
    assert queue.receive() is None
    assert counts(queue) == expected(delayed=1)
    home.advance(seconds - 0.001)
    assert queue.receive() is None
    home.advance(0.001)
    assert counts(queue) == expected(ready=1)
    delivery = take(queue)
    assert (delivery.payload, delivery.attempt) == (b"a", 1)


def test_a_message_for_a_moment_is_early_or_does_not_come(home: Home, queue: Queue) -> None:
    due = to_datetime(home.clock.now_us()) + timedelta(hours=1)
    queue.publish(b"a", deliver_at=due.astimezone(UTC))
    home.advance(3599.999)
    assert queue.receive() is None
    home.advance(0.001)
    assert take(queue).payload == b"a"


def test_a_moment_in_another_time_zone_is_another_moment(home: Home, queue: Queue) -> None:
    due = to_datetime(home.clock.now_us()) + timedelta(seconds=60)
    queue.publish(b"a", deliver_at=due.astimezone(timezone(timedelta(hours=9))))
    home.advance(59)
    assert queue.receive() is None
    home.advance(1)
    assert take(queue).payload == b"a"


def test_a_moment_in_the_past_is_refused_or_goes_first(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    queue.publish(b"b", deliver_at=datetime(2025, 1, 1, tzinfo=UTC))
    queue.publish(b"c", delay=0)
    assert counts(queue) == expected(ready=3)
    assert drain(queue) == [b"a", b"b", b"c"]


def test_delayed_messages_come_in_the_order_of_publishing(home: Home, queue: Queue) -> None:
    queue.publish(b"third", delay=30)
    queue.publish(b"first", delay=10)
    queue.publish(b"second", delay=20)
    home.advance(60)
    assert drain(queue) == [b"first", b"second", b"third"]


def test_messages_due_at_one_moment_change_places(home: Home, queue: Queue) -> None:
    sent = [b"%d" % n for n in range(20)]
    queue.publish_many([Message(one, delay=10) for one in sent])
    home.advance(10)
    assert drain(queue) == sent


def test_a_due_message_goes_before_what_was_there_already_or_after_what_came_later(
    home: Home, queue: Queue
) -> None:
    queue.publish(b"due at 10", delay=10)
    home.advance(5)
    queue.publish(b"published at 5")
    home.advance(15)
    queue.publish(b"published at 20")
    assert drain(queue) == [b"published at 5", b"due at 10", b"published at 20"]


def test_a_delayed_message_holds_up_others(queue: Queue) -> None:
    queue.publish(b"later", delay=60)
    queue.publish(b"now")
    assert drain(queue) == [b"now"]
    assert counts(queue) == expected(delayed=1)


def test_a_batch_with_delays_forgets_which(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", Message(b"b", delay=60), b"c", Message(b"d", delay=30)])
    assert counts(queue) == expected(ready=2, delayed=2)
    assert drain(queue) == [b"a", b"c"]
    home.advance(30)
    assert drain(queue) == [b"d"]
    home.advance(30)
    assert drain(queue) == [b"b"]


def test_a_delayed_message_that_fails_is_delayed_twice(home: Home, queue: Queue) -> None:
    queue.publish(b"a", delay=60)
    home.advance(60)
    take(queue).nack(delay=1)
    home.advance(1)
    assert take(queue).attempt == 2


def test_the_wall_clock_set_back_makes_a_message_early(home: Home, queue: Queue) -> None:
    queue.publish(b"a", delay=60)
    home.clock.set_back(seconds=30)
    home.advance(59)
    assert queue.receive() is None
    home.advance(31)
    assert take(queue).payload == b"a"


def test_many_delays_lose_one(home: Home, queue: Queue) -> None:
    sent = [Message(b"%d" % n, delay=(n * 37) % 100 + 1) for n in range(300)]
    queue.publish_many(sent)
    came = []
    for _ in range(100):
        home.advance(1)
        came += drain(queue)
    assert sorted(came) == sorted(one.payload for one in sent)
    assert counts(queue) == expected()


def test_a_wall_clock_that_was_set_back_makes_a_time_early(home: Home, queue: Queue) -> None:
    home.advance(5)
    queue.publish(b"first")
    take(queue).ack()
    home.clock.set_back(seconds=3600)
    now = to_datetime(home.clock.now_us())
    queue.publish(b"later", deliver_at=now + timedelta(minutes=10))
    with home.broker.transaction() as tx:
        tx.publish(queue.name, b"much later", deliver_at=now + timedelta(minutes=20))
    assert queue.receive() is None
    home.advance(599)
    assert queue.receive() is None
    home.advance(1)
    delivery = take(queue)
    assert delivery.payload == b"later"
    delivery.ack()
    home.advance(600)
    assert take(queue).payload == b"much later"
