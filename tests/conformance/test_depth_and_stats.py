"""The counts agree with what is there, at every step of a message's life."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Backoff, Message
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take
from tests.conformance.surface import Queue


def test_a_step_in_a_messages_life_is_counted_wrongly(home: Home) -> None:
    backoff = Backoff(initial=10, jitter=0)
    queue = home.broker.queue("orders", max_attempts=2, visibility_timeout=30, backoff=backoff)
    assert counts(queue) == expected()
    queue.publish(b"a", delay=60)
    assert counts(queue) == expected(delayed=1)
    home.advance(60)
    assert counts(queue) == expected(ready=1)
    delivery = take(queue)
    assert counts(queue) == expected(leased=1)
    delivery.nack(error="no")
    assert counts(queue) == expected(retrying=1)
    home.advance(10)
    assert counts(queue) == expected(ready=1)
    take(queue)
    assert counts(queue) == expected(leased=1)
    home.advance(31)
    assert counts(queue) == expected(dead=1)
    queue.redrive()
    assert counts(queue) == expected(ready=1)
    take(queue).ack()
    assert counts(queue) == expected()


def test_counts_do_not_add_up_in_a_mixture(home: Home, queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(10)])
    queue.publish_many([Message(b"later", delay=60)] * 3)
    first, second, third, *_ = queue.receive_many(5)
    first.ack()
    second.nack(delay=60)
    third.reject()
    assert counts(queue) == expected(ready=5, delayed=3, leased=2, retrying=1, dead=1)


def test_the_depth_is_no_int(queue: Queue) -> None:
    queue.publish(b"a")
    assert type(queue.depth()) is int


def test_stats_can_be_changed_or_change_by_themselves(queue: Queue) -> None:
    before = queue.stats()
    with pytest.raises(AttributeError):
        before.ready = 99  # type: ignore[misc]
    queue.publish(b"a")
    assert (before.ready, queue.stats().ready) == (0, 1)


def test_one_queue_counts_messages_of_another(home: Home, queue: Queue) -> None:
    other = home.broker.queue("other")
    other.publish_many([b"a", b"b"])
    take(other).reject()
    assert counts(queue) == expected()
    assert counts(other) == expected(ready=1, dead=1)


def test_the_broker_has_no_stats(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    assert home.broker.stats() is not None


def test_a_repeated_ack_is_counted_again(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    first, second = queue.receive_many(2)
    queue.ack_many([first, first, second])
    stats: Any = home.broker.stats()
    assert (stats.acked, stats.delivered) == (2, 2)


def test_purging_leaves_something(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b", Message(b"later", delay=60), Message(b"first", priority=0)])
    take(queue).nack(delay=60)
    queue.purge()
    assert counts(queue) == expected()
    home.advance(3600)
    assert queue.receive() is None
    assert queue.peek(5) == []


def test_purging_takes_what_comes_after_or_belongs_to_others(home: Home, queue: Queue) -> None:
    other = home.broker.queue("other")
    for one in (queue, other):
        one.publish(b"before")
    queue.purge()
    queue.publish(b"after")
    assert payloads(other.peek(5)) == [b"before"]
    assert drain(queue) == [b"after"]


def test_purging_takes_dead_letters(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    take(queue).reject()
    queue.purge()
    assert counts(queue) == expected(dead=1)


def test_purging_nothing_fails(queue: Queue) -> None:
    queue.purge()
    queue.purge()
    assert counts(queue) == expected()
