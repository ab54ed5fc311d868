"""A waiting receive wakes for what it waits for.

The waiting call runs in another thread. Whether it waits already when the main thread acts cannot be seen, and need not
be: either it finds what it came for, or it is woken. A call that is not woken runs out of the test's patience, which is
the only time here that is real.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress

import pytest

from penstock import BrokerClosed, Message, PenstockError
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.home import Home
from tests.conformance.observations import counts, expected, payloads, take
from tests.conformance.surface import Consumer, Delivery, Queue


@pytest.fixture
def queue(home: Home) -> Queue:
    return home.broker.queue("orders", visibility_timeout=30, max_attempts=None)


def payload_of(waiting: Future[Delivery | None]) -> bytes:
    delivery = waiting.result(PATIENCE_S)
    assert delivery is not None
    return delivery.payload


# --- a publish ---


def test_a_publish_does_not_wake_a_receiver(queue: Queue) -> None:
    waiting = start(queue.receive, timeout=None)
    queue.publish(b"a")
    assert payload_of(waiting) == b"a"


def test_a_publish_does_not_wake_a_receiver_of_many(queue: Queue) -> None:
    waiting = start(queue.receive_many, 100, timeout=None)
    queue.publish(b"a")
    assert payloads(waiting.result(PATIENCE_S)) == [b"a"]


def test_a_publish_does_not_wake_a_consumer(queue: Queue) -> None:
    with queue.subscribe("worker") as consumer:
        waiting = start(consumer.receive, timeout=None)
        queue.publish(b"a")
        assert payload_of(waiting) == b"a"


def test_a_publish_does_not_wake_an_iteration(queue: Queue) -> None:
    def first_three(consumer: Consumer) -> list[bytes]:
        came = []
        for delivery in consumer:
            came.append(delivery.payload)
            delivery.ack()
            if len(came) == 3:
                break
        return came

    with queue.subscribe("worker") as consumer:
        waiting = start(first_three, consumer)
        for payload in (b"a", b"b", b"c"):
            queue.publish(payload)
        assert waiting.result(PATIENCE_S) == [b"a", b"b", b"c"]


def test_a_batch_wakes_fewer_receivers_than_it_has_messages(queue: Queue) -> None:
    waiting = [start(queue.receive, timeout=None) for _ in range(5)]
    queue.publish_many([b"%d" % n for n in range(5)])
    assert sorted(payload_of(one) for one in waiting) == [b"%d" % n for n in range(5)]


def test_publishes_one_by_one_leave_a_receiver_asleep(queue: Queue) -> None:
    waiting = [start(queue.receive, timeout=None) for _ in range(10)]
    for n in range(10):
        queue.publish(b"%d" % n)
    assert Counter(payload_of(one) for one in waiting) == Counter(b"%d" % n for n in range(10))


def test_a_publish_to_another_queue_wakes_a_receiver(home: Home, queue: Queue) -> None:
    other = home.broker.queue("other")
    waiting = start(queue.receive, timeout=None)
    other.publish(b"not this")
    queue.publish(b"this")
    assert payload_of(waiting) == b"this"


def test_what_is_there_already_is_waited_for(queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    assert payload_of(start(queue.receive, timeout=None)) == b"a"
    assert payloads(start(queue.receive_many, 5, timeout=None).result(PATIENCE_S)) == [b"b"]


# --- time ---


def test_a_due_delay_does_not_wake_a_receiver_or_is_early(home: Home, queue: Queue) -> None:
    queue.publish(b"a", delay=60)
    waiting = start(queue.receive, timeout=None)
    home.advance(59.999)
    assert not waiting.done()
    home.advance(0.001)
    assert payload_of(waiting) == b"a"


def test_a_nearer_delay_does_not_replace_a_farther_one(home: Home, queue: Queue) -> None:
    def receive_and_ack() -> bytes:
        delivery = queue.receive(timeout=None)
        assert delivery is not None
        delivery.ack()
        return delivery.payload

    waiting = [start(receive_and_ack) for _ in range(2)]
    queue.publish(b"far", delay=600)
    queue.publish(b"near", delay=60)
    home.advance(60)
    done, _ = wait(waiting, PATIENCE_S, FIRST_COMPLETED)
    assert all_of(list(done)) == [b"near"]
    home.advance(540)
    assert set(all_of(waiting)) == {b"near", b"far"}


def test_a_retry_that_is_due_does_not_wake_a_receiver(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    take(queue).nack(delay=60)
    waiting = start(queue.receive, timeout=None)
    home.advance(60)
    assert payload_of(waiting) == b"a"


def test_a_lease_that_ends_does_not_wake_a_receiver(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    take(queue)
    waiting = start(queue.receive, timeout=None)
    home.advance(31)
    assert payload_of(waiting) == b"a"


def test_a_receiver_waits_longer_than_its_timeout(home: Home, queue: Queue) -> None:
    waiting = start(queue.receive, timeout=5)
    home.advance_until(waiting)
    assert waiting.result(PATIENCE_S) is None


def test_a_receiver_of_many_waits_longer_than_its_timeout(home: Home, queue: Queue) -> None:
    with queue.subscribe("worker") as consumer:
        waiting = [start(one.receive_many, 5, timeout=5) for one in (queue, consumer)]
        for one in waiting:
            home.advance_until(one)
        assert all_of(waiting) == [[], []]


def test_a_receiver_that_gave_up_takes_a_message_with_it(home: Home, queue: Queue) -> None:
    for _ in range(5):
        waiting = start(queue.receive, timeout=1)
        home.advance_until(waiting)
        assert waiting.result(PATIENCE_S) is None
    queue.publish(b"a")
    assert counts(queue) == expected(ready=1)
    assert take(queue).attempt == 1


# --- what comes back ---


@pytest.mark.parametrize("how", ["nack", "requeue"])
def test_a_message_given_back_does_not_wake_a_receiver(queue: Queue, how: str) -> None:
    queue.publish(b"a")
    delivery = take(queue)
    waiting = start(queue.receive, timeout=None)
    if how == "nack":
        delivery.nack(delay=0)
    else:
        delivery.requeue()
    assert payload_of(waiting) == b"a"


def test_a_consumer_that_goes_does_not_wake_the_others(queue: Queue) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    going = queue.subscribe("going", prefetch=10)
    take(going)
    waiting = [start(queue.receive, timeout=None) for _ in range(3)]
    going.close()
    assert sorted(payload_of(one) for one in waiting) == [b"a", b"b", b"c"]


def test_a_settled_key_does_not_wake_a_receiver(home: Home) -> None:
    queue = home.broker.queue("keyed", ordering="key")
    queue.publish_many([Message(b"a1", key="a"), Message(b"a2", key="a")])
    first = take(queue)
    waiting = start(queue.receive, timeout=None)
    first.ack()
    assert payload_of(waiting) == b"a2"


def test_a_dead_letter_does_not_wake_who_waits_for_it(queue: Queue) -> None:
    queue.publish(b"a")
    waiting = start(queue.dead_letters().receive, timeout=None)
    take(queue).reject()
    assert payload_of(waiting) == b"a"


def test_redriving_does_not_wake_a_receiver(queue: Queue) -> None:
    queue.publish(b"a")
    take(queue).reject()
    waiting = start(queue.receive, timeout=None)
    queue.redrive()
    assert payload_of(waiting) == b"a"


# --- closing ---


@pytest.mark.parametrize("timeout", [None, 3600])
def test_closing_the_broker_leaves_a_receiver_asleep(home: Home, queue: Queue, timeout: float | None) -> None:
    waiting: list[Future[object]] = [start(queue.receive, timeout=timeout) for _ in range(3)]
    waiting.append(start(queue.receive_many, 5, timeout=timeout))
    home.broker.close()
    for one in waiting:
        with pytest.raises(BrokerClosed):
            one.result(PATIENCE_S)


def test_closing_the_broker_leaves_an_iteration_asleep(home: Home, queue: Queue) -> None:
    consumer = queue.subscribe("worker")
    waiting = start(lambda: payloads(consumer))
    home.broker.close()
    assert waiting.result(PATIENCE_S) == []


def test_closing_a_consumer_leaves_its_iteration_asleep_or_ends_another(queue: Queue) -> None:
    closing, staying = queue.subscribe("closing"), queue.subscribe("staying")
    ending = start(lambda: payloads(closing))
    waiting = start(staying.receive, timeout=None)
    closing.close()
    assert ending.result(PATIENCE_S) == []
    queue.publish(b"a")
    assert payload_of(waiting) == b"a"
    staying.close()


def test_closing_a_consumer_ends_the_patience_of_another_of_its_name(queue: Queue) -> None:
    closing, staying = queue.subscribe("worker"), queue.subscribe("worker")
    waiting = start(staying.receive, timeout=None)
    ending = start(closing.receive, timeout=None)
    closing.close()
    with suppress(BrokerClosed):  # if it came too late to wait
        assert ending.result(PATIENCE_S) is None
    queue.publish(b"a")
    assert payload_of(waiting) == b"a"
    staying.close()


def test_deleting_a_queue_leaves_a_receiver_asleep(home: Home, queue: Queue) -> None:
    waiting = start(queue.receive, timeout=None)
    home.broker.delete_queue("orders")
    with pytest.raises(PenstockError):
        waiting.result(PATIENCE_S)


def test_a_message_is_handed_to_a_receiver_that_the_close_has_sent_away(home: Home, queue: Queue) -> None:
    waiting = [start(queue.receive, timeout=None) for _ in range(5)]
    queue.publish(b"a")
    home.broker.close()
    came = [one.result(PATIENCE_S) for one in waiting if one.exception(PATIENCE_S) is None]
    assert len(came) <= 1
    if home.durable:
        assert counts(home.reopen().queue("orders")) == expected(ready=1)


# --- taking over ---


@pytest.mark.parametrize("holds", [False, True])
def test_the_next_consumer_does_not_take_over_while_it_waits(home: Home, holds: bool) -> None:
    queue = home.broker.queue("single", single_active=True)
    first, second = queue.subscribe("first"), queue.subscribe("second")
    waiting = start(second.receive, timeout=None)
    queue.publish(b"a")
    if holds:
        take(first)
    first.close()
    assert payload_of(waiting) == b"a"


def test_an_iteration_does_not_take_over_while_it_waits(home: Home) -> None:
    queue = home.broker.queue("single", single_active=True)
    first, second = queue.subscribe("first"), queue.subscribe("second")
    waiting = start(lambda: next(iter(second)).payload)
    queue.publish(b"a")
    first.close()
    assert waiting.result(PATIENCE_S) == b"a"


def test_a_second_consumer_that_may_be_active_now_is_not_woken(home: Home) -> None:
    queue = home.broker.queue("single", single_active=True)
    _, second = queue.subscribe("first"), queue.subscribe("second")
    waiting = start(second.receive, timeout=None)
    queue.publish(b"a")
    queue.alter(single_active=False)
    assert payload_of(waiting) == b"a"
