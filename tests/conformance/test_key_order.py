"""`ordering="key"`: the messages of a key one after the other; a stuck key blocks only itself."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from penstock import Message
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take
from tests.conformance.surface import Consumer, Queue


@pytest.fixture
def queue(home: Home) -> Queue:
    return home.broker.queue("orders", ordering="key", visibility_timeout=30, max_attempts=2, backoff=None)


def publish(queue: Queue, *names: str) -> None:
    """Messages whose key is the first letter of their payload."""
    queue.publish_many([Message(name.encode(), key=name[0]) for name in names])


def test_two_messages_of_a_key_are_out_at_once(queue: Queue) -> None:
    publish(queue, "a1", "a2", "b1", "a3", "b2", "c1")
    out = queue.receive_many(10)
    assert payloads(out) == [b"a1", b"b1", b"c1"]
    assert queue.receive() is None
    out[1].ack()
    assert payloads(queue.receive_many(10)) == [b"b2"]
    out[0].ack()
    assert payloads(queue.receive_many(10)) == [b"a2"]


def test_a_key_changes_its_order(queue: Queue) -> None:
    names = [f"{key}{n:02}" for n in range(20) for key in "abc"]
    publish(queue, *names)
    came = drain(queue)
    for key in (b"a", b"b", b"c"):
        assert [one for one in came if one.startswith(key)] == [key + b"%02d" % n for n in range(20)]


def test_messages_without_a_key_wait_for_each_other(queue: Queue) -> None:
    queue.publish_many([b"1", b"2", Message(b"a1", key="a"), Message(b"a2", key="a"), b"3"])
    assert payloads(queue.receive_many(10)) == [b"1", b"2", b"a1", b"3"]


def test_a_stuck_key_is_passed_by_its_own_or_blocks_others(home: Home, queue: Queue) -> None:
    publish(queue, "a1", "a2", "b1")
    take(queue).nack(delay=60)
    assert drain(queue) == [b"b1"]
    publish(queue, "b2", "c1", "a3")
    assert drain(queue) == [b"b2", b"c1"]
    home.advance(60)
    assert drain(queue) == [b"a1", b"a2", b"a3"]


def test_a_returned_lease_is_passed_by_the_next_of_its_key(home: Home, queue: Queue) -> None:
    publish(queue, "a1", "a2")
    take(queue)
    home.advance(31)
    delivery = take(queue)
    assert (delivery.payload, delivery.attempt) == (b"a1", 2)
    assert queue.receive() is None


def test_a_requeued_message_is_passed_by_the_next_of_its_key(queue: Queue) -> None:
    publish(queue, "a1", "a2", "a3")
    take(queue).requeue()
    assert drain(queue) == [b"a1", b"a2", b"a3"]


@pytest.mark.parametrize("how", ["reject", "attempts", "expiry"])
def test_a_dead_message_blocks_its_key(home: Home, queue: Queue, how: str) -> None:
    queue.publish(b"a1", key="a", ttl=100)
    publish(queue, "a2")
    if how == "reject":
        take(queue).reject()
    elif how == "attempts":
        take(queue).nack()
        take(queue).nack()
    else:
        home.advance(101)
    assert drain(queue) == [b"a2"]
    assert queue.depth() == 0


def test_a_message_that_is_not_due_blocks_its_key(home: Home, queue: Queue) -> None:
    queue.publish(b"a1", key="a", delay=60)
    publish(queue, "a2")
    assert drain(queue) == [b"a2"]
    home.advance(60)
    assert drain(queue) == [b"a1"]


def test_a_younger_message_that_nobody_has_goes_before_an_older_one_that_is_due(
    home: Home, queue: Queue
) -> None:
    queue.publish(b"a1", key="a", delay=60)
    publish(queue, "a2", "a3", "b1")
    home.advance(60)
    assert counts(queue) == expected(ready=4)
    assert drain(queue) == [b"b1", b"a1", b"a2", b"a3"]


@pytest.mark.parametrize("how", ["leased", "requeued", "retrying"])
def test_an_older_message_that_falls_due_is_handed_out_beside_one_that_was_begun(
    home: Home, queue: Queue, how: str
) -> None:
    queue.publish(b"a1", key="a", delay=10)
    publish(queue, "a2", "a3")
    begun = take(queue)
    if how == "requeued":
        begun.requeue()
    elif how == "retrying":
        begun.nack(delay=20)
    home.advance(10)
    if how == "leased":
        assert queue.receive() is None
        begun.ack()
        assert drain(queue) == [b"a1", b"a3"]
    else:
        home.advance(10)
        assert drain(queue) == [b"a2", b"a1", b"a3"]


def test_an_older_message_with_another_priority_leaves_two_of_its_key(home: Home, queue: Queue) -> None:
    queue.publish(b"a1", key="a", delay=10, priority=200)
    queue.publish(b"a2", key="a", priority=0)
    queue.publish(b"b1", key="b", priority=100)
    home.advance(10)
    assert payloads(queue.receive_many(5)) == [b"b1", b"a1"]
    assert counts(queue) == expected(ready=1, leased=2)


def test_the_priority_breaks_the_order_of_a_key_or_does_not_count(queue: Queue) -> None:
    queue.publish(b"a1", key="a", priority=200)
    queue.publish(b"a2", key="a", priority=0)
    queue.publish(b"b1", key="b", priority=100)
    assert drain(queue) == [b"b1", b"a1", b"a2"]


def test_a_consumer_buffers_two_of_a_key(queue: Queue) -> None:
    publish(queue, "a1", "a2", "b1")
    with queue.subscribe("one", prefetch=10) as one, queue.subscribe("two", prefetch=10) as two:
        first = take(one)
        assert first.payload == b"a1"
        others = one.receive_many(5) + two.receive_many(5)
        assert payloads(others) == [b"b1"]
        first.ack()
        assert payloads(two.receive_many(5) + one.receive_many(5)) == [b"a2"]


def test_a_closed_consumer_leaves_its_key_blocked(queue: Queue) -> None:
    publish(queue, "a1", "a2")
    with queue.subscribe("worker", prefetch=5) as consumer:
        take(consumer)
    assert drain(queue) == [b"a1", b"a2"]


def test_parked_messages_are_not_counted(queue: Queue) -> None:
    publish(queue, "a1", "a2", "a3")
    take(queue)
    assert queue.depth() == 3
    assert queue.stats().leased == 1


def test_a_purged_key_stays_blocked(home: Home, queue: Queue) -> None:
    publish(queue, "a1", "a2")
    take(queue).nack(delay=60)
    queue.purge()
    publish(queue, "a3")
    assert drain(queue) == [b"a3"]
    home.advance(60)
    assert counts(queue) == expected()


def test_without_ordering_a_key_blocks(home: Home) -> None:
    queue = home.broker.queue("plain")
    publish(queue, "a1", "a2")
    assert payloads(queue.receive_many(5)) == [b"a1", b"a2"]


# --- settled when handed out, to those who wait ---


@pytest.mark.parametrize("how", ["at-most-once", "auto_ack"])
def test_a_message_of_a_key_is_settled_and_handed_to_nobody(home: Home, how: str) -> None:
    policy = {"delivery": "at-most-once"} if how == "at-most-once" else {}
    queue = home.broker.queue("settled", ordering="key", **policy)
    consumers = [queue.subscribe(name, auto_ack=how == "auto_ack") for name in ("a", "b", "c")]
    sent = [b"%d-%d" % (batch, n) for batch in range(10) for n in range(3)]
    came: SimpleQueue[bytes] = SimpleQueue()

    def consume(consumer: Consumer) -> None:
        for delivery in consumer:
            came.put(delivery.payload)

    ending = [start(consume, consumer) for consumer in consumers]
    for batch in range(10):
        queue.publish_many([Message(payload, key="k") for payload in sent[3 * batch : 3 * batch + 3]])
    assert sorted(came.get(timeout=PATIENCE_S) for _ in sent) == sorted(sent)
    assert counts(queue) == expected()
    for consumer in consumers:
        consumer.close()
    all_of(ending)
    assert came.empty()
