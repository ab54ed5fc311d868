"""Taking messages: from the queue, and through a consumer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from penstock import LeaseLost, PenstockError
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take, unchanged
from tests.conformance.surface import Queue

BAD_COUNTS: list[Any] = [-1, 1.5, "1", None, True]
BAD_TIMEOUTS: list[Any] = [-1, math.nan, "1"]


# --- receive and receive_many ---


def test_one_message_is_delivered_twice(queue: Queue) -> None:
    queue.publish(b"a")
    take(queue)
    assert queue.receive() is None
    assert queue.receive_many(5) == []


def test_an_acknowledged_message_comes_back(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    take(queue).ack()
    home.advance(3600)
    assert queue.receive() is None
    assert counts(queue) == expected()


def test_receive_many_gives_more_than_asked_or_less_than_there_is(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(7)])
    assert payloads(queue.receive_many(3)) == [b"0", b"1", b"2"]
    assert payloads(queue.receive_many(100)) == [b"3", b"4", b"5", b"6"]
    assert queue.receive_many(100) == []


def test_receive_many_gives_leases_that_cannot_be_settled_alone(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    first, second, third = queue.receive_many(3)
    second.ack()
    third.requeue()
    assert take(queue).payload == b"c"
    first.ack()
    assert counts(queue) == expected(leased=1)


@pytest.mark.parametrize("n", BAD_COUNTS, ids=repr)
def test_a_bad_count_takes_something(queue: Queue, n: Any) -> None:
    queue.publish_many([b"a", b"b"])
    with queue.subscribe("worker", prefetch=5) as consumer:
        for call in (queue.receive_many, queue.peek, consumer.receive_many):
            with unchanged(queue), pytest.raises(PenstockError):
                call(n)


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS, ids=repr)
def test_a_bad_timeout_takes_something(queue: Queue, timeout: Any) -> None:
    queue.publish(b"a")
    with unchanged(queue), pytest.raises(PenstockError):
        queue.receive(timeout=timeout)
    with unchanged(queue), pytest.raises(PenstockError):
        queue.receive_many(5, timeout=timeout)


def test_peeking_takes_something(home: Home, queue: Queue) -> None:
    ids = queue.publish_many([b"a", b"b", b"c"])
    for _ in range(3):
        assert payloads(queue.peek()) == [b"a"]
        assert payloads(queue.peek(2)) == [b"a", b"b"]
        assert [one.id for one in queue.peek(10)] == ids
    assert counts(queue) == expected(ready=3)
    delivery = take(queue)
    assert (delivery.attempt, delivery.redelivered) == (1, False)


def test_peeking_tells_something_else_than_a_delivery(queue: Queue) -> None:
    queue.publish(b"a", headers={"n": "1"}, key="k", priority=7)
    [seen], delivery = queue.peek(), take(queue)
    assert (seen.id, seen.offset, seen.payload, seen.key, seen.priority, seen.timestamp) == (
        delivery.id,
        delivery.offset,
        delivery.payload,
        delivery.key,
        delivery.priority,
        delivery.timestamp,
    )
    assert dict(seen.headers) == dict(delivery.headers)


# --- consumers ---


def test_a_consumer_gives_another_order_than_the_queue(queue: Queue) -> None:
    sent = [b"%d" % n for n in range(20)]
    queue.publish_many(sent)
    with queue.subscribe("worker", prefetch=7) as consumer:
        assert drain(consumer) == sent
    assert counts(queue) == expected()


def test_iterating_stops_before_everything_came(queue: Queue) -> None:
    sent = [b"%d" % n for n in range(10)]
    queue.publish_many(sent)
    came = []
    with queue.subscribe("worker") as consumer:
        for delivery in consumer:
            came.append(delivery.payload)
            delivery.ack()
            if len(came) == len(sent):
                break
    assert came == sent
    assert counts(queue) == expected()


def test_a_consumer_without_a_name_is_refused(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    with queue.subscribe() as first, queue.subscribe() as second:
        assert {take(first).payload, take(second).payload} == {b"a", b"b"}


def test_a_consumer_is_no_iterator(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    consumer = queue.subscribe("worker")
    assert payloads([next(consumer), next(consumer)]) == [b"a", b"b"]
    consumer.close()
    with pytest.raises(StopIteration):
        next(consumer)


def test_a_consumer_takes_what_another_of_its_name_has(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    one, two = queue.subscribe("worker"), queue.subscribe("worker")
    assert (one.name, two.name) == ("worker", "worker~2")
    first, second = take(one), take(two)
    one.close()
    second.ack()
    with pytest.raises(LeaseLost):
        first.ack()
    assert payloads(queue.receive_many(5)) == [b"a"]
    with queue.subscribe("worker") as again:
        assert again.name == "worker"
    two.close()


def test_a_made_up_name_is_one_that_somebody_has(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    made_up = queue.subscribe()
    chosen = queue.subscribe(made_up.name)
    assert chosen.name != made_up.name
    held = take(chosen)
    made_up.close()
    held.ack()
    chosen.close()


def test_two_consumers_get_the_same_message(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(20)])
    came = []
    with queue.subscribe("one", prefetch=3) as one, queue.subscribe("two", prefetch=3) as two:
        while (delivery := one.receive() or two.receive()) is not None:
            came.append(delivery.payload)
            delivery.ack()
    assert sorted(came) == sorted(b"%d" % n for n in range(20))


def test_receiving_many_through_a_consumer_loses_or_repeats(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(10)])
    with queue.subscribe("worker", prefetch=10) as consumer:
        first = consumer.receive_many(4)
        consumer.ack_many(first)
        rest = consumer.receive_many(10)
        consumer.ack_many(rest)
    assert payloads(first) + payloads(rest) == [b"%d" % n for n in range(10)]
    assert counts(queue) == expected()


def test_a_closed_consumer_keeps_what_it_did_not_finish(queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c", b"d"])
    with queue.subscribe("worker", prefetch=10) as consumer:
        first, _second, _third = consumer.receive_many(3)
        first.ack()
    assert counts(queue) == expected(ready=3)
    back = queue.receive_many(5)
    assert payloads(back) == [b"b", b"c", b"d"]
    assert [one.redelivered for one in back] == [True, True, False]


def test_a_consumer_that_fails_keeps_what_it_had(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])

    def fail() -> None:
        with queue.subscribe("worker") as consumer:
            for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert payloads(queue.receive_many(5)) == [b"a", b"b"]


def test_what_is_only_buffered_loses_no_attempt_when_time_passes(home: Home) -> None:
    queue = home.broker.queue("orders", visibility_timeout=30)
    queue.publish_many([b"a", b"b"])
    with queue.subscribe("worker", prefetch=10) as consumer:
        take(consumer).ack()
        home.advance(1000)
        delivery = take(consumer)
        assert (delivery.payload, delivery.attempt, delivery.redelivered) == (b"b", 1, False)
        delivery.ack()
    assert counts(queue) == expected()


def test_what_was_only_buffered_loses_no_attempt_when_the_consumer_closes(queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    with queue.subscribe("worker", prefetch=10) as consumer:
        take(consumer).ack()
    back = queue.receive_many(5)
    assert [(one.payload, one.attempt, one.redelivered) for one in back] == [
        (b"b", 1, False),
        (b"c", 1, False),
    ]


def test_a_delivery_is_settled_after_its_consumer_closed(queue: Queue) -> None:
    queue.publish(b"a")
    with queue.subscribe("worker") as consumer:
        delivery = take(consumer)
    with unchanged(queue), pytest.raises(PenstockError):
        delivery.ack()
    assert drain(queue) == [b"a"]


def test_a_closed_consumer_still_receives(queue: Queue) -> None:
    queue.publish(b"a")
    consumer = queue.subscribe("worker")
    consumer.close()
    consumer.close()
    for call in (consumer.receive, lambda: consumer.receive_many(5)):
        with unchanged(queue), pytest.raises(PenstockError):
            call()
    assert drain(queue) == [b"a"]


@pytest.mark.parametrize(
    "given",
    [
        {"consumer": ""},
        {"consumer": "a b"},
        {"consumer": 5},
        {"prefetch": 0},
        {"prefetch": -1},
        {"prefetch": 1.5},
        {"prefetch": "1"},
        {"prefetch": True},
        {"prefetch": None},
        {"auto_ack": 1},
        {"auto_ack": "yes"},
    ],
    ids=repr,
)
def test_a_bad_subscription_takes_something(queue: Queue, given: dict[str, Any]) -> None:
    queue.publish(b"a")
    with unchanged(queue), pytest.raises(PenstockError):
        queue.subscribe(**given)


# --- automatic acknowledgement ---


def test_what_is_acknowledged_automatically_comes_back(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    with queue.subscribe("worker", auto_ack=True) as consumer:
        assert take(consumer).payload == b"a"
        assert queue.depth() == 2
        assert payloads(consumer.receive_many(1)) == [b"b"]
    home.advance(3600)
    assert drain(queue) == [b"c"]


def test_what_was_only_buffered_is_acknowledged_automatically(queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    with queue.subscribe("worker", prefetch=10, auto_ack=True) as consumer:
        take(consumer)
    assert drain(queue) == [b"b", b"c"]


# --- one active consumer ---


def test_a_second_consumer_is_active_beside_the_first(home: Home) -> None:
    queue = home.broker.queue("orders", single_active=True)
    queue.publish_many([b"a", b"b", b"c"])
    with queue.subscribe("first", prefetch=5) as first, queue.subscribe("second", prefetch=5) as second:
        assert second.receive() is None
        assert drain(first) == [b"a", b"b", b"c"]


def test_the_next_consumer_does_not_take_over(home: Home) -> None:
    queue = home.broker.queue("orders", single_active=True)
    queue.publish_many([b"a", b"b", b"c"])
    first, second = queue.subscribe("first", prefetch=5), queue.subscribe("second", prefetch=5)
    take(first).ack()
    take(first)
    assert second.receive() is None
    first.close()
    assert drain(second) == [b"b", b"c"]
    second.close()
