"""Lower first; then due time; then offset."""

from __future__ import annotations

import random

from penstock import Message
from tests.conformance.home import Home
from tests.conformance.observations import drain, payloads, take
from tests.conformance.surface import Queue


def test_a_higher_number_goes_first(queue: Queue) -> None:
    for priority in (200, 0, 100, 255, 1):
        queue.publish(b"%d" % priority, priority=priority)
    assert drain(queue) == [b"0", b"1", b"100", b"200", b"255"]


def test_a_message_without_priority_is_not_in_the_middle(queue: Queue) -> None:
    queue.publish(b"later", priority=101)
    queue.publish(b"plain")
    queue.publish(b"sooner", priority=99)
    queue.publish(b"the same", priority=100)
    assert drain(queue) == [b"sooner", b"plain", b"the same", b"later"]


def test_messages_of_one_priority_change_places(queue: Queue) -> None:
    sent = [Message(b"%d-%d" % (n % 3, n), priority=n % 3) for n in range(30)]
    queue.publish_many(sent)
    assert drain(queue) == [one.payload for one in sorted(sent, key=lambda one: one.priority)]


def test_an_urgent_message_waits_behind_what_was_there(queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    assert take(queue).payload == b"a"
    queue.publish(b"urgent", priority=0)
    assert payloads(queue.receive_many(5)) == [b"urgent", b"b", b"c"]


def test_peeking_shows_another_order_than_receiving(queue: Queue) -> None:
    queue.publish_many([Message(b"%d" % n, priority=n % 4) for n in range(20)])
    assert payloads(queue.peek(20)) == payloads(queue.receive_many(20))


def test_an_urgent_message_is_delivered_before_it_is_due(home: Home, queue: Queue) -> None:
    queue.publish(b"urgent", priority=0, delay=60)
    queue.publish_many([b"a", b"b"])
    take(queue).ack()
    home.advance(60)
    assert drain(queue) == [b"urgent", b"b"]


def test_the_due_time_decides_before_the_priority(home: Home, queue: Queue) -> None:
    queue.publish(b"soon, not urgent", priority=200, delay=1)
    queue.publish(b"later, urgent", priority=0, delay=10)
    home.advance(20)
    assert drain(queue) == [b"later, urgent", b"soon, not urgent"]


def test_the_offset_decides_before_the_due_time(home: Home, queue: Queue) -> None:
    queue.publish(b"published first", priority=5, delay=10)
    queue.publish(b"due first", priority=5, delay=1)
    home.advance(20)
    assert drain(queue) == [b"due first", b"published first"]


def test_a_returned_message_loses_its_priority(home: Home) -> None:
    queue = home.broker.queue("orders", visibility_timeout=30)
    queue.publish(b"urgent", priority=0)
    take(queue)
    queue.publish_many([b"a", Message(b"urgent too", priority=0)])
    home.advance(31)
    assert drain(queue) == [b"urgent", b"urgent too", b"a"]


def test_a_retried_message_loses_its_priority(home: Home, queue: Queue) -> None:
    queue.publish(b"urgent", priority=0)
    take(queue).nack(delay=5)
    queue.publish_many([b"a", b"b"])
    home.advance(5)
    delivery = take(queue)
    assert (delivery.payload, delivery.priority) == (b"urgent", 0)


def test_any_mixture_is_delivered_in_another_order(home: Home, queue: Queue) -> None:
    chance = random.Random(7)
    sent = [
        Message(b"%d" % n, priority=chance.choice([0, 1, 100, 255]), delay=chance.choice([None, 0, 1, 5, 9]))
        for n in range(200)
    ]
    for one in sent[:50]:
        queue.publish(one.payload, priority=one.priority, delay=one.delay)
    queue.publish_many(sent[50:])
    home.advance(10)
    # Sorting keeps the order of what is equal, which is the order of offsets.
    in_order = sorted(sent, key=lambda one: (one.priority, one.delay or 0))
    assert drain(queue) == payloads(in_order)
