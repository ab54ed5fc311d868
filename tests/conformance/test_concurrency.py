"""Many threads (tasks, for asyncio): nothing lost, nothing acknowledged comes back."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from penstock import BrokerClosed, LeaseLost, Message, QueueFull
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.home import Home
from tests.conformance.observations import counts, expected, payloads
from tests.conformance.surface import Delivery, Queue

PRODUCERS, CONSUMERS, EACH = 10, 5, 40
TOTAL = PRODUCERS * EACH


class Ledger:
    """What was published, delivered and acknowledged, as the threads saw it."""

    def __init__(self) -> None:
        self.complete = threading.Event()
        self.returned = 0  # deliveries of what had been acknowledged already
        self._lock = threading.Lock()
        self._acknowledged: Counter[bytes] = Counter()

    def delivered(self, payload: bytes) -> None:
        with self._lock:
            self.returned += payload in self._acknowledged

    def acknowledged(self, payload: bytes) -> None:
        """To be called when the ack has returned."""
        with self._lock:
            self._acknowledged[payload] += 1
            if len(self._acknowledged) == TOTAL:
                self.complete.set()

    def check(self) -> None:
        assert self.returned == 0
        assert self._acknowledged == Counter(everything())


def everything() -> list[bytes]:
    return [b"%d-%d" % (producer, n) for producer in range(PRODUCERS) for n in range(EACH)]


def produce(queue: Queue, producer: int) -> None:
    """Half of them one by one, half in batches."""
    mine = [b"%d-%d" % (producer, n) for n in range(EACH)]
    for payload in mine[: EACH // 2]:
        queue.publish(payload)
    for at in range(EACH // 2, EACH, 10):
        queue.publish_many(mine[at : at + 10])


def consume(queue: Queue, ledger: Ledger, name: str, dies_every: int | None) -> None:
    """Until the broker closes. A consumer that dies goes with a delivery in hand, and another takes its place."""
    seen = 0
    while not ledger.complete.is_set():
        with queue.subscribe(name, prefetch=4) as consumer:
            for delivery in consumer:
                seen += 1
                ledger.delivered(delivery.payload)
                if dies_every and seen % dies_every == 0:
                    break
                delivery.ack()
                ledger.acknowledged(delivery.payload)


def consume_until_closed(queue: Queue, ledger: Ledger, name: str, dies_every: int | None) -> None:
    try:
        consume(queue, ledger, name, dies_every)
    except BrokerClosed:
        assert ledger.complete.is_set()


@pytest.mark.parametrize("strategy", ["round-robin", "least-busy", "random"])
def test_ten_producers_and_five_consumers_of_which_some_die_lose_a_message(home: Home, strategy: str) -> None:
    queue = home.broker.queue("orders", max_attempts=None, strategy=strategy)
    ledger = Ledger()
    consumers = [
        start(consume_until_closed, queue, ledger, f"worker-{n}", 7 if n % 2 else None)
        for n in range(CONSUMERS)
    ]
    all_of([start(produce, queue, n) for n in range(PRODUCERS)])
    assert ledger.complete.wait(PATIENCE_S)
    assert counts(queue) == expected()
    home.broker.close()
    all_of(consumers)
    ledger.check()
    if home.durable:
        assert counts(home.reopen().queue("orders")) == expected()


def settle_or_forget(queue: Queue, ledger: Ledger, forget_every: int) -> None:
    """Take until nothing is ready; every so often, take and never settle."""
    seen = 0
    while found := queue.receive_many(3):
        for delivery in found:
            seen += 1
            ledger.delivered(delivery.payload)
            if seen % forget_every:
                delivery.ack()
                ledger.acknowledged(delivery.payload)


def test_consumers_that_forget_lose_a_message(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=None, visibility_timeout=30)
    ledger = Ledger()
    all_of([start(produce, queue, n) for n in range(PRODUCERS)])
    while queue.depth():
        all_of([start(settle_or_forget, queue, ledger, 3 + n) for n in range(CONSUMERS)])
        home.advance(31)
    ledger.check()


def fail_often(queue: Queue, acknowledged: list[bytes]) -> None:
    while (delivery := queue.receive()) is not None:
        if delivery.offset % 3 == 0 or (delivery.offset % 3 == 1 and delivery.attempt == 1):
            delivery.nack(delay=0, error="no")
        else:
            delivery.ack()
            acknowledged.append(delivery.payload)


def test_a_message_is_in_the_dead_letters_twice_or_lost_between(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=3)
    queue.publish_many(everything())
    acknowledged: list[bytes] = []
    all_of([start(fail_often, queue, acknowledged) for _ in range(CONSUMERS)])
    dead = payloads(queue.dead_letters().receive_many(TOTAL))
    assert len(dead) == (TOTAL + 2) // 3
    assert Counter(acknowledged + dead) == Counter(everything())


def test_threads_share_an_id_or_an_offset(queue: Queue) -> None:
    def publish() -> list[int]:
        return [queue.publish(b"a") for _ in range(20)] + queue.publish_many([b"a"] * 20)

    ids = [one for some in all_of([start(publish) for _ in range(PRODUCERS)]) for one in some]
    found = queue.receive_many(1000)
    assert len(set(ids)) == len(ids) == len(found)
    assert sorted(one.id for one in found) == sorted(ids)
    assert sorted(one.offset for one in found) == list(range(len(ids)))


def test_messages_of_one_producer_change_places(queue: Queue) -> None:
    all_of([start(produce, queue, n) for n in range(PRODUCERS)])
    came = payloads(queue.receive_many(TOTAL))
    for producer in range(PRODUCERS):
        mine = [one for one in came if one.startswith(b"%d-" % producer)]
        assert mine == [b"%d-%d" % (producer, n) for n in range(EACH)]


def test_a_batch_is_torn_by_another(queue: Queue) -> None:
    def publish(producer: int) -> None:
        for n in range(10):
            queue.publish_many([b"%d-%d-%d" % (producer, n, place) for place in range(10)])

    all_of([start(publish, n) for n in range(PRODUCERS)])
    came = payloads(queue.receive_many(1000))
    assert len(came) == 1000
    for at in range(0, 1000, 10):
        name = came[at].rsplit(b"-", 1)[0]
        assert came[at : at + 10] == [name + b"-%d" % place for place in range(10)]


def test_one_message_is_leased_by_two_threads(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(200)])

    def grab() -> list[bytes]:
        mine = []
        while (delivery := queue.receive()) is not None:
            mine.append(delivery.payload)
        return mine

    taken = [one for some in all_of([start(grab) for _ in range(8)]) for one in some]
    assert Counter(taken) == Counter(b"%d" % n for n in range(200))


def test_one_delivery_is_acknowledged_by_two_threads(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(20)])

    def ack(delivery: Delivery) -> bool:
        try:
            delivery.ack()
        except LeaseLost:
            return False
        return True

    for delivery in queue.receive_many(20):
        assert sorted(all_of([start(ack, delivery) for _ in range(4)])) == [False, False, False, True]
    assert counts(queue) == expected()


def test_one_dedup_id_is_taken_from_two_threads(queue: Queue) -> None:
    def publish(producer: int) -> list[int]:
        return queue.publish_many([Message(b"%d" % n, dedup_id=str(n)) for n in range(20)])

    answers = all_of([start(publish, n) for n in range(PRODUCERS)])
    assert all(one == answers[0] for one in answers)
    assert queue.depth() == 20


def test_a_full_queue_is_overfilled_by_threads(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=50)

    def publish() -> int:
        taken = 0
        for _ in range(20):
            try:
                queue.publish(b"a")
            except QueueFull:
                continue
            taken += 1
        return taken

    assert sum(all_of([start(publish) for _ in range(PRODUCERS)])) == 50
    assert queue.depth() == 50


def test_a_queue_that_drops_refuses_threads(home: Home) -> None:
    queue = home.broker.queue("latest", max_depth=5, overflow="drop-head")

    def publish(producer: int) -> list[int]:
        return [queue.publish(b"%d-%d" % (producer, n)) for n in range(20)]

    ids = all_of([start(publish, n) for n in range(PRODUCERS)])
    assert len({one for each in ids for one in each}) == 20 * PRODUCERS
    assert counts(queue) == expected(ready=5)
    assert len(set(payloads(queue.receive_many(100)))) == 5


def test_a_queue_is_made_twice_by_two_threads(home: Home) -> None:
    def use(n: int) -> None:
        home.broker.queue("new", max_attempts=5).publish(b"%d" % n)

    all_of([start(use, n) for n in range(PRODUCERS)])
    assert list(home.broker.list_queues()) == ["new"]
    assert sorted(payloads(home.broker.queue("new").receive_many(100))) == sorted(
        b"%d" % n for n in range(PRODUCERS)
    )


def test_redriving_in_two_threads_makes_two_of_something(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(100)])
    for delivery in queue.receive_many(100):
        delivery.reject()

    def redrive() -> int:
        return queue.redrive()

    assert sum(all_of([start(redrive) for _ in range(4)])) == 100
    assert Counter(payloads(queue.receive_many(1000))) == Counter(b"%d" % n for n in range(100))
