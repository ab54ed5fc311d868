"""Groups of a queue: each message once in each of them, shared by its consumers, whoever comes, goes or falls silent."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    BrokerClosed,
    InvalidArgument,
    InvalidName,
    LeaseLost,
    Message,
    PenstockError,
    PolicyConflict,
    QueueFull,
    QueueNotFound,
)
from penstock.clock import to_datetime
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import drain, payloads, survives_a_restart, take
from tests.conformance.surface import Consumer, Delivery, Group, Queue
from tests.conformance.waiters import in_line


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def groups(queue: Queue) -> list[str]:
    return sorted(queue.stats().groups)


def payload_of(waiting: Future[Delivery | None]) -> bytes:
    delivery = waiting.result(PATIENCE_S)
    assert delivery is not None
    return delivery.payload


# --- each message once per group ---


def test_a_group_misses_a_message_or_takes_it_from_another(queue: Queue) -> None:
    found = [queue.group(name) for name in ("one", "two", "three")]
    queue.publish_many(numbered(10))
    for n in range(10, 20):
        queue.publish(b"%d" % n)
    for group in found:
        assert drain(group) == numbered(20)
        assert drain(group) == []
    assert queue.depth() == 0


def test_a_group_and_the_default_one_share(queue: Queue) -> None:
    queue.publish_many(numbered(4))
    group = queue.group("one")
    queue.publish(b"4")
    assert take(queue).payload == take(group).payload == b"0"
    take(queue).ack()
    take(group).nack(delay=60)
    assert (queue.group("default").lag(), group.lag()) == (4, 5)
    assert drain(queue) == [b"2", b"3", b"4"]
    assert drain(group) == [b"2", b"3", b"4"]


def test_a_message_is_kept_or_dropped_wrongly_when_one_group_has_settled_it(queue: Queue) -> None:
    fast, slow = queue.group("fast"), queue.group("slow")
    queue.publish_many(numbered(100))
    assert drain(fast) == numbered(100)
    assert queue.depth() == 100
    assert drain(slow) == numbered(100)
    assert queue.depth() == 0
    assert drain(queue.group("late")) == []


def test_settling_in_one_group_settles_in_another(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=2, backoff=None)
    one, two = queue.group("one"), queue.group("two")
    queue.publish(b"a")
    for attempt in (1, 2):
        delivery = take(one)
        assert delivery.attempt == attempt
        delivery.nack(error="no")
    (dead,) = queue.dead_letters().peek(9)
    assert dead.headers["x-origin-group"] == "one"
    assert take(two).attempt == 1
    assert queue.redrive() == 1
    assert drain(one) == [b"a"]
    assert two.receive() is None
    assert two.lag() == 1


def test_a_redrive_forgets_its_group_at_a_restart(home: Home, queue: Queue, restart: Restart) -> None:
    one, _ = queue.group("one"), queue.group("two")
    queue.publish(b"a")
    take(one).reject()
    assert restart().queue("orders").redrive() == 1
    queue = restart().queue("orders")
    assert drain(queue.group("one")) == [b"a"]
    assert drain(queue.group("two")) == [b"a"]
    assert queue.depth() == 0


def test_a_redrive_leaves_dead_letters_in_another_group_of_theirs(home: Home, queue: Queue) -> None:
    dead = queue.dead_letters()
    looking = dead.group("looking")
    queue.publish(b"a")
    take(queue).reject()
    assert payloads(dead.peek(9)) == [b"a"]
    assert queue.redrive() == 1
    assert queue.redrive() == 0
    assert looking.receive() is None
    assert queue.stats().dead == 0
    assert drain(queue) == [b"a"]


# --- which exist, and where they begin ---


def test_a_queue_that_nobody_used_has_groups(queue: Queue) -> None:
    assert groups(queue) == []
    assert (queue.depth(), queue.peek(), queue.purge()) == (0, [], 0)
    assert groups(queue) == []


@pytest.mark.parametrize("call", ["publish", "publish_many", "receive", "receive_many", "subscribe"])
def test_the_default_group_is_not_made_by_its_first_use(queue: Queue, call: str) -> None:
    given: dict[str, tuple[Any, ...]] = {"publish": (b"a",), "publish_many": ([b"a"],), "receive_many": (1,)}
    getattr(queue, call)(*given.get(call, ()))
    assert groups(queue) == ["default"]


def test_a_publish_makes_a_default_group_beside_others(home: Home, queue: Queue) -> None:
    group = queue.group("jobs")
    queue.publish(b"a")
    queue.publish_many([b"b"])
    home.broker.publish("orders", b"c")
    with home.broker.transaction() as tx:
        tx.publish("orders", b"d")
    assert groups(queue) == ["jobs"]
    assert drain(group) == [b"a", b"b", b"c", b"d"]
    assert queue.depth() == 0


@pytest.mark.parametrize("call", ["receive", "subscribe"])
def test_a_late_default_group_does_not_begin_at_the_earliest(queue: Queue, call: str) -> None:
    group = queue.group("jobs")
    queue.publish_many(numbered(4))
    take(group).ack()
    receiver = queue if call == "receive" else queue.subscribe()
    assert drain(receiver) == [b"1", b"2", b"3"]
    assert groups(queue) == ["default", "jobs"]


def test_which_groups_exist_is_forgotten(home: Home, queue: Queue, restart: Restart) -> None:
    queue.group("jobs", strategy="least-busy")
    home.broker.queue("others").receive()
    home.broker.queue("plain").publish(b"a")
    broker = restart()
    assert groups(broker.queue("orders")) == ["jobs"]
    assert groups(broker.queue("plain")) == ["default"]
    broker.queue("orders").publish(b"a")
    broker = restart()
    assert groups(broker.queue("orders")) == ["jobs"]
    assert drain(broker.queue("orders").group("jobs")) == [b"a"]


@survives_a_restart
def test_a_default_group_that_only_received_is_not_there_after_a_restart(home: Home, queue: Queue) -> None:
    queue.receive()
    queue.group("jobs")
    queue.publish(b"a")
    queue = home.crash().queue("orders")
    assert groups(queue) == ["default", "jobs"]
    assert drain(queue) == [b"a"]


def test_a_new_group_does_not_begin_at_the_earliest_stored(home: Home) -> None:
    queue = home.broker.queue("orders", retain_seconds=60)
    queue.publish_many(numbered(3))
    assert drain(queue) == numbered(3)
    assert drain(queue.group("kept")) == numbered(3)
    home.advance(61)
    queue.publish(b"3")
    assert drain(queue.group("late")) == [b"3"]


def test_a_new_group_gets_what_was_purged_cancelled_or_has_expired(home: Home) -> None:
    queue = home.broker.queue("orders", retain_seconds=600)
    queue.group("keeper")
    queue.publish(b"purged")
    queue.purge()
    cancelled = queue.publish(b"cancelled", delay=60)
    queue.cancel(cancelled)
    queue.publish(b"expired", ttl=10)
    queue.publish(b"stays")
    home.advance(60)
    assert drain(queue.group("late")) == [b"stays"]


def test_an_expired_message_that_another_group_holds_is_delivered(home: Home) -> None:
    queue = home.broker.queue("orders", ttl=60, visibility_timeout=600)
    one, two = queue.group("one"), queue.group("two")
    queue.publish(b"a")
    held = take(one)
    home.advance(61)
    assert two.receive() is None
    assert queue.group("late").receive() is None
    with suppress(InvalidArgument):
        two.seek(offset=0)
    assert two.receive() is None
    held.ack()


def test_a_new_group_changes_the_order(home: Home) -> None:
    queue = home.broker.queue("orders")
    queue.publish_many([Message(b"%d-%d" % (n % 3, n), priority=n % 3) for n in range(12)])
    queue.publish(b"late", delay=60, priority=0)
    late = queue.group("late")
    wanted = [b"%d-%d" % (p, n) for p in range(3) for n in range(12) if n % 3 == p]
    assert drain(late) == drain(queue) == wanted
    home.advance(60)
    assert drain(late) == drain(queue) == [b"late"]


def test_a_group_of_the_same_name_is_another_one(queue: Queue) -> None:
    queue.group("jobs")
    queue.publish_many([b"a", b"b"])
    take(queue.group("jobs")).ack()
    assert drain(queue.group("jobs")) == [b"b"]
    assert queue.group("jobs").name == "jobs"


@pytest.mark.parametrize("name", ["", "a b", "x" * 300, "é", ".dlq", None, 7])
def test_a_group_has_a_bad_name(queue: Queue, name: Any) -> None:
    with pytest.raises(InvalidName, match="group name"):
        queue.group(name)
    assert groups(queue) == []


def test_a_group_of_a_deleted_queue_works_on(home: Home, queue: Queue) -> None:
    group = queue.group("jobs")
    consumer = group.add_consumer()
    queue.publish(b"a")
    home.broker.delete_queue("orders")
    for call in (
        group.receive,
        group.lag,
        group.stats,
        group.consumers,
        group.add_consumer,
        consumer.receive,
    ):
        with pytest.raises(QueueNotFound, match="was deleted"):
            call()
    with pytest.raises(QueueNotFound):
        group.seek(offset=0)
    home.broker.queue("orders").publish(b"b")
    with pytest.raises(QueueNotFound):
        group.receive()
    consumer.close()


def test_the_limit_of_a_queue_is_not_that_of_its_slowest_group(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=2)
    fast, slow = queue.group("fast"), queue.group("slow")
    queue.publish_many([b"a", b"b"])
    drain(fast)
    with pytest.raises(QueueFull):
        queue.publish(b"c")
    take(slow).ack()
    queue.publish(b"c")
    assert drain(fast) == [b"c"]


def test_bytes_of_what_a_group_skipped_fill_a_queue(home: Home) -> None:
    queue = home.broker.queue("orders", max_bytes=10)
    group = queue.group("jobs")
    queue.publish_many([b"12345", b"12345"])
    group.seek(offset=2)
    queue.publish_many([b"12345", b"12345"])
    assert drain(group) == [b"12345", b"12345"]


# --- strategies ---


def test_a_groups_strategy_is_changed_or_invented(queue: Queue) -> None:
    queue.group("jobs", strategy="least-busy")
    queue.group("jobs", strategy="least-busy")
    queue.group("jobs")
    with pytest.raises(PolicyConflict, match="least-busy"):
        queue.group("jobs", strategy="random")
    for bad in ("fair", "", 7, b"random", ["random"]):
        with pytest.raises(InvalidArgument, match="strategy"):
            queue.group("others", strategy=bad)  # type: ignore[arg-type]
    assert groups(queue) == ["jobs"]


def test_a_strategy_is_forgotten(home: Home, queue: Queue, restart: Restart) -> None:
    queue.group("jobs", strategy="random")
    queue = restart().queue("orders")
    with pytest.raises(PolicyConflict, match="random"):
        queue.group("jobs", strategy="least-busy")
    queue.group("jobs", strategy="random")


class Crew:
    """Consumers of a group, who wait whenever they have nothing to do."""

    def __init__(self, queue: Queue, group: Group, names: str) -> None:
        self._queue = queue
        self.consumers = {name: group.add_consumer(name) for name in names}
        self._waiting: dict[str, Future[Delivery | None]] = {}
        self.wait_for_work()

    def wait_for_work(self) -> None:
        for name, consumer in self.consumers.items():
            if name not in self._waiting:
                self._waiting[name] = start(consumer.receive, timeout=None)
        in_line(self._queue, len(self.consumers))

    def whoever_got(self, payload: bytes) -> tuple[str, Delivery]:
        """Publish it; who was given it, who then does not wait any more."""
        self._queue.publish(payload)
        wait(self._waiting.values(), PATIENCE_S, FIRST_COMPLETED)
        ((name, done),) = [(name, one) for name, one in self._waiting.items() if one.done()]
        del self._waiting[name]
        delivery = done.result(PATIENCE_S)
        assert delivery is not None
        assert delivery.payload == payload
        return name, delivery


def test_round_robin_passes_somebody_over(queue: Queue) -> None:
    crew = Crew(queue, queue.group("jobs", strategy="round-robin"), "abc")
    came = []
    for payload in numbered(12):
        name, delivery = crew.whoever_got(payload)
        delivery.ack()
        came.append(name)
        crew.wait_for_work()
    for first in range(0, 12, 3):
        assert sorted(came[first : first + 3]) == ["a", "b", "c"]


def test_round_robin_goes_by_who_came_first(queue: Queue) -> None:
    """Who was given nothing for the longest time comes first, however late he comes to wait."""
    group = queue.group("jobs", strategy="round-robin")
    consumers = [group.add_consumer(name) for name in "abc"]
    queue.publish_many(numbered(3))
    for consumer in consumers:
        take(consumer).ack()
    waiting = {}
    for place, consumer in enumerate(reversed(consumers), 1):
        waiting[consumer.name] = start(consumer.receive, timeout=None)
        in_line(queue, place)
    for name, payload in zip("abc", numbered(3), strict=True):
        queue.publish(payload)
        assert payload_of(waiting[name]) == payload


def test_least_busy_gives_to_who_has_most(queue: Queue) -> None:
    crew = Crew(queue, queue.group("jobs", strategy="least-busy"), "abc")
    held: defaultdict[str, list[Delivery]] = defaultdict(list)
    for payload in numbered(3):
        name, delivery = crew.whoever_got(payload)
        held[name].append(delivery)
        crew.wait_for_work()
    assert {name: len(found) for name, found in held.items()} == {"a": 1, "b": 1, "c": 1}
    held["b"].pop().ack()
    assert crew.whoever_got(b"next")[0] == "b"
    crew.wait_for_work()
    held["c"].pop().ack()
    assert crew.whoever_got(b"and next")[0] == "c"


@pytest.mark.parametrize("strategy", ["round-robin", "least-busy"])
def test_a_batch_is_not_shared_fairly(queue: Queue, strategy: str) -> None:
    group = queue.group("jobs", strategy=strategy)
    consumers = [group.add_consumer() for _ in range(3)]
    waiting = [start(consumer.receive_many, 100, timeout=None) for consumer in consumers]
    in_line(queue, 3)
    queue.publish_many(numbered(9))
    found = all_of(waiting)
    assert [len(part) for part in found] == [3, 3, 3]
    assert sorted(payloads(itertools.chain(*found))) == numbered(9)


def test_least_busy_does_not_see_what_somebody_has_in_hand(queue: Queue) -> None:
    group = queue.group("jobs", strategy="least-busy")
    busy, idle = group.add_consumer("busy"), group.add_consumer("idle")
    queue.publish_many(numbered(4))
    busy.receive_many(4)
    waiting = {one.name: start(one.receive_many, 100, timeout=None) for one in (busy, idle)}
    in_line(queue, 2)
    queue.publish_many([b"a", b"b", b"c", b"d"])
    assert len(waiting["idle"].result(PATIENCE_S)) == 4
    assert not waiting["busy"].done()


def test_a_strategy_of_the_policy_does_not_hold_for_a_group_without_one(home: Home) -> None:
    queue = home.broker.queue("orders", strategy="least-busy")
    group = queue.group("jobs")
    busy, idle = group.add_consumer("busy"), group.add_consumer("idle")
    queue.publish_many(numbered(4))
    busy.receive_many(4)
    waiting = {one.name: start(one.receive_many, 100, timeout=None) for one in (busy, idle)}
    in_line(queue, 2)
    queue.publish_many([b"a", b"b", b"c", b"d"])
    assert len(waiting["idle"].result(PATIENCE_S)) == 4


def test_random_leaves_somebody_out_or_loses_something(queue: Queue) -> None:
    group = queue.group("jobs", strategy="random")
    waiting = [start(group.add_consumer().receive_many, 300, timeout=None) for _ in range(3)]
    in_line(queue, 3)
    queue.publish_many(numbered(300))
    found = all_of(waiting)
    assert sorted(payloads(itertools.chain(*found))) == sorted(numbered(300))
    assert all(found)


@pytest.mark.parametrize("strategy", ["round-robin", "least-busy", "random"])
def test_a_consumer_gets_more_than_it_asked_for(queue: Queue, strategy: str) -> None:
    group = queue.group("jobs", strategy=strategy)
    asked = [1, 2, 5]
    waiting = [start(group.add_consumer().receive_many, count, timeout=None) for count in asked]
    in_line(queue, 3)
    queue.publish_many(numbered(20))
    assert [len(found) for found in all_of(waiting)] == asked
    assert group.stats().ready == 12


@pytest.mark.parametrize("strategy", ["round-robin", "least-busy", "random"])
def test_threads_lose_or_repeat_a_message_in_some_group(queue: Queue, strategy: str) -> None:
    found = [queue.group(f"g{n}", strategy=strategy) for n in range(2)]
    everything = Counter(b"%d-%d" % (p, n) for p in range(3) for n in range(40))

    def produce(producer: int) -> None:
        for n in range(40):
            queue.publish(b"%d-%d" % (producer, n))

    def consume(consumer: Consumer) -> Counter[bytes]:
        came: Counter[bytes] = Counter()
        for delivery in consumer:
            delivery.ack()
            came[delivery.payload] += 1
        return came

    crews = [[group.add_consumer() for _ in range(3)] for group in found]
    consuming = [[start(consume, one) for one in crew] for crew in crews]
    all_of([start(produce, p) for p in range(3)])
    for group, crew, calls in zip(found, crews, consuming, strict=True):
        while group.lag():
            pass
        for consumer in crew:
            consumer.close()
        assert sum(all_of(calls), Counter()) == everything


# --- consumers come and go ---


def test_consumers_are_not_listed_or_named(queue: Queue) -> None:
    group = queue.group("jobs")
    assert group.consumers() == []
    one, two = group.add_consumer("one"), group.add_consumer()
    again = group.add_consumer("one")
    assert len({one.name, two.name, again.name}) == 3
    assert group.consumers() == [one.name, two.name, again.name]
    assert queue.group("other").consumers() == []
    group.remove_consumer("one")
    assert group.consumers() == [two.name, again.name]
    two.close()
    assert queue.group("jobs").consumers() == [again.name]
    with pytest.raises(InvalidArgument, match="no consumer"):
        group.remove_consumer("one")
    with pytest.raises(InvalidArgument, match="no consumer"):
        group.remove_consumer("nobody")


def test_consumers_outlive_their_broker(home: Home, queue: Queue, restart: Restart) -> None:
    queue.group("jobs").add_consumer("one")
    assert restart().queue("orders").group("jobs").consumers() == []


@pytest.mark.parametrize("how", ["close", "remove"])
def test_what_a_consumer_had_is_not_given_to_the_others(queue: Queue, how: str) -> None:
    group = queue.group("jobs")
    one, two = group.add_consumer("one"), group.add_consumer("two")
    queue.publish_many(numbered(4))
    held = one.receive_many(3)
    held[0].ack()
    waiting = start(lambda: [two.receive(timeout=None) for _ in range(3)])
    if how == "close":
        one.close()
    else:
        group.remove_consumer("one")
    came = [(one.payload, one.attempt) for one in waiting.result(PATIENCE_S) if one]
    assert sorted(came) == [(b"1", 2), (b"2", 2), (b"3", 1)]
    for delivery in held[1:]:
        with pytest.raises(LeaseLost):
            delivery.ack()


def test_a_removed_consumer_waits_on(queue: Queue) -> None:
    group = queue.group("jobs")
    consumer = group.add_consumer("one")
    waiting = start(consumer.receive, timeout=None)
    in_line(queue, 1)
    group.remove_consumer("one")
    with suppress(PenstockError):
        assert waiting.result(PATIENCE_S) is None
    queue.publish(b"a")
    assert take(group).payload == b"a"
    consumer.close()


def test_an_iteration_of_a_removed_consumer_takes_messages(queue: Queue) -> None:
    """It was taken out: what comes is for the others."""
    group = queue.group("jobs")
    consumer, other = group.add_consumer("one"), group.add_consumer("two")
    iterating = start(lambda: [delivery.payload for delivery in consumer])
    in_line(queue, 1)
    group.remove_consumer("one")
    queue.publish(b"a")
    assert payload_of(start(other.receive, timeout=None)) == b"a"
    consumer.close()
    with suppress(PenstockError):
        assert iterating.result(PATIENCE_S) == []


def test_a_late_close_throws_out_the_next_consumer_of_that_name(queue: Queue) -> None:
    group = queue.group("jobs")
    old = group.add_consumer("worker")
    group.remove_consumer("worker")
    new = group.add_consumer("worker")
    queue.publish(b"a")
    held = take(new)
    assert old.heartbeat() is False
    old.close()
    assert group.consumers() == [new.name]
    held.ack()


def test_a_group_itself_cannot_receive(queue: Queue) -> None:
    group = queue.group("jobs")
    queue.publish_many(numbered(5))
    first = take(group)
    assert payloads(group.receive_many(2)) == [b"1", b"2"]
    first.ack()
    group.ack_many(group.receive_many(9))
    assert group.lag() == 2


def test_deliveries_of_another_queue_are_acknowledged(home: Home, queue: Queue) -> None:
    other = home.broker.queue("others")
    group = queue.group("jobs")
    other.publish(b"a")
    queue.publish(b"b")
    with pytest.raises(InvalidArgument):
        group.ack_many([take(other), take(group)])
    assert (other.depth(), group.lag()) == (1, 1)


def test_single_active_is_one_for_all_groups(home: Home) -> None:
    queue = home.broker.queue("orders", single_active=True)
    found = [queue.group(name) for name in ("one", "two")]
    crews = [[group.add_consumer("first"), group.add_consumer("second")] for group in found]
    queue.publish_many([b"a", b"b"])
    for first, second in crews:
        assert second.receive() is None
        assert take(first).payload == b"a"
    waiting = start(crews[0][1].receive_many, 9, timeout=None)
    in_line(queue, 1)
    crews[0][0].close()
    assert payloads(waiting.result(PATIENCE_S)) == [b"a", b"b"]
    assert crews[1][1].receive() is None
    assert take(crews[1][0]).payload == b"b"


def test_single_active_does_not_pass_on_when_the_active_one_falls_silent(home: Home) -> None:
    queue = home.broker.queue("orders", single_active=True, visibility_timeout=None)
    group = queue.group("jobs")
    first, second = group.add_consumer("first", heartbeat=10), group.add_consumer("second")
    queue.publish_many([b"a", b"b"])
    take(first)
    waiting = start(second.receive_many, 9, timeout=None)
    in_line(queue, 1)
    home.advance(11)
    assert payloads(waiting.result(PATIENCE_S)) == [b"a", b"b"]


# --- heartbeats ---


@pytest.fixture
def patient(home: Home) -> Queue:
    """Leases last longer than any silence."""
    return home.broker.queue("orders", visibility_timeout=3600, max_attempts=None)


def test_a_silent_consumer_keeps_its_work(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    silent, other = group.add_consumer("silent", heartbeat=10), group.add_consumer("other")
    patient.publish_many([b"a", b"b"])
    held = take(silent)
    home.advance(9.999)
    assert group.consumers() == ["silent", "other"]
    take(other).ack()
    assert other.receive() is None
    home.advance(0.001)
    assert group.consumers() == ["other"]
    again = take(other)
    assert (again.payload, again.attempt) == (b"a", 2)
    assert silent.heartbeat() is False
    with pytest.raises(LeaseLost):
        held.ack()
    again.ack()
    silent.close()
    assert group.lag() == 0


def test_nobody_is_woken_for_what_a_silent_consumer_had(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    silent, other = group.add_consumer(heartbeat=10), group.add_consumer(heartbeat=10)
    patient.publish(b"a")
    take(silent)
    waiting = start(other.receive, timeout=None)
    in_line(patient, 1)
    home.advance(11)
    assert payload_of(waiting) == b"a"


def test_a_consumer_that_is_heard_of_is_thought_dead(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    consumer = group.add_consumer("one", heartbeat=timedelta(seconds=10))
    patient.publish_many(numbered(2))
    held = take(consumer)
    for _ in range(5):
        home.advance(6)
        assert consumer.heartbeat() is True
    home.advance(6)
    assert take(consumer).payload == b"1"
    home.advance(6)
    assert consumer.receive() is None
    home.advance(6)
    held.ack()


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "requeue", "extend", "ack_many"])
def test_a_consumer_that_settles_is_thought_dead(home: Home, patient: Queue, how: str) -> None:
    group = patient.group("jobs")
    consumer = group.add_consumer("one", heartbeat=10)
    patient.publish_many(numbered(2))
    first, second = consumer.receive_many(2)
    home.advance(6)
    if how == "ack_many":
        consumer.ack_many([first])
    elif how == "extend":
        first.extend(600)
    else:
        getattr(first, how)()
    home.advance(6)
    assert group.consumers() == ["one"]
    second.ack()


def test_a_consumer_that_waits_is_thought_dead(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    consumer = group.add_consumer("one", heartbeat=10)
    waiting = start(consumer.receive, timeout=None)
    in_line(patient, 1)
    # Over a network a wait is a series of short ones: between two of them the clock must not jump.
    for step in [10] * 30 if home.kind.remote else [60] * 5:
        home.advance(step)
        in_line(patient, 1)
    assert group.consumers() == ["one"]
    patient.publish(b"a")
    delivery = waiting.result(PATIENCE_S)
    assert delivery is not None
    home.advance(9)
    assert consumer.heartbeat() is True
    delivery.ack()


def test_a_consumer_whose_wait_was_in_vain_is_thought_dead_at_once(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    consumer = group.add_consumer("one", heartbeat=10)
    waiting = start(consumer.receive, timeout=60)
    in_line(patient, 1)
    home.advance(60)
    assert waiting.result(PATIENCE_S) is None
    home.advance(9)
    assert group.consumers() == ["one"]
    home.advance(2)
    assert group.consumers() == []


def test_a_consumer_that_falls_silent_with_what_it_waited_for_keeps_it(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    consumer = group.add_consumer("one", heartbeat=10)
    waiting = start(consumer.receive, timeout=None)
    in_line(patient, 1)
    home.advance(60)
    patient.publish(b"a")
    assert payload_of(waiting) == b"a"
    home.advance(11)
    assert group.consumers() == []
    assert take(group).payload == b"a"


def test_a_consumer_that_was_removed_takes_messages(queue: Queue) -> None:
    group = queue.group("jobs")
    consumer = group.add_consumer("one")
    group.remove_consumer("one")
    queue.publish(b"a")
    with suppress(PenstockError):
        assert consumer.receive() is None
    assert take(group).payload == b"a"


def test_a_consumer_without_a_heartbeat_is_thought_dead(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    consumer = group.add_consumer("one")
    patient.publish(b"a")
    held = take(consumer)
    home.advance(3000)
    assert consumer.heartbeat() is True
    held.ack()


def test_a_consumer_thought_dead_cannot_come_back(home: Home, patient: Queue) -> None:
    group = patient.group("jobs")
    patient.publish_many([b"a", b"b"])
    with group.add_consumer("one", heartbeat=10) as silent:
        take(silent)
        home.advance(11)
        assert group.consumers() == []
    with group.add_consumer("one", heartbeat=10) as again:
        assert again.name == "one"
        assert drain(again) == [b"a", b"b"]


def test_what_a_consumer_thought_dead_takes_is_never_given_back(home: Home, patient: Queue) -> None:
    """Whether it may go on or not: what it takes must not be lost with it."""
    group = patient.group("jobs")
    silent, other = group.add_consumer("silent", heartbeat=10), group.add_consumer("other")
    home.advance(11)
    patient.publish(b"a")
    with suppress(PenstockError):
        silent.receive()
    home.advance(11)
    with suppress(PenstockError):
        silent.close()
    assert drain(other) == [b"a"]


def test_an_ephemeral_subscription_outlives_its_silent_consumer(home: Home) -> None:
    topic = home.broker.topic("events")
    topic.subscribe(durable=False, heartbeat=10)
    topic.publish(b"a")
    home.advance(11)
    assert topic.subscriber_count() == 0
    found: Any = topic.stats()
    assert found.depth == 0


def test_a_consumer_of_the_queue_or_a_subscription_has_no_heartbeat(home: Home, patient: Queue) -> None:
    topic = home.broker.topic("events", visibility_timeout=3600)
    silent = topic.subscribe("jobs", heartbeat=10), patient.subscribe(heartbeat=10)
    topic.publish(b"a")
    patient.publish(b"b")
    for consumer in silent:
        take(consumer)
    home.advance(11)
    assert drain(topic.subscribe("jobs")) == [b"a"]
    assert drain(patient) == [b"b"]


def test_a_message_that_silences_its_consumers_is_tried_for_ever(home: Home) -> None:
    queue = home.broker.queue("orders", visibility_timeout=None, max_attempts=3)
    group = queue.group("jobs")
    queue.publish(b"poison")
    for attempt in (1, 2, 3):
        delivery = take(group.add_consumer(heartbeat=10))
        assert delivery.attempt == attempt
        home.advance(11)
    assert group.receive() is None
    assert payloads(queue.dead_letters().peek(9)) == [b"poison"]


@pytest.mark.parametrize(
    "heartbeat", [0, -1, float("nan"), float("inf"), "10", timedelta(0), timedelta(days=-1), True]
)
def test_a_heartbeat_without_sense_is_taken(queue: Queue, heartbeat: Any) -> None:
    group = queue.group("jobs")
    with pytest.raises(InvalidArgument, match="heartbeat"):
        group.add_consumer(heartbeat=heartbeat)
    assert group.consumers() == []


# --- lag ---


def test_the_lag_of_a_group_is_wrong(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=2, backoff=None)
    group = queue.group("jobs")
    assert group.lag() == 0
    queue.publish_many(numbered(5))
    queue.publish(b"later", delay=60)
    queue.publish(b"short", ttl=10)
    other = queue.group("other")
    assert (group.lag(), other.lag()) == (7, 7)
    first, second, third, _fourth, _fifth, _sixth = group.receive_many(9)
    first.ack()
    second.reject()
    third.nack()
    assert group.lag() == 5
    home.advance(11)
    assert (group.lag(), other.lag()) == (5, 6)  # what is held has not ended yet
    queue.purge()
    assert other.lag() == 0


def test_the_lag_of_a_group_is_forgotten(home: Home, queue: Queue, restart: Restart) -> None:
    one, two = queue.group("one"), queue.group("two")
    queue.publish_many(numbered(10))
    one.ack_many(one.receive_many(3))
    two.ack_many(two.receive_many(7)[1::2])
    queue = restart().queue("orders")
    assert (queue.group("one").lag(), queue.group("two").lag(), queue.depth()) == (7, 7, 7)
    assert drain(queue.group("two")) == [b"0", b"2", b"4", b"6", b"7", b"8", b"9"]


# --- seeking ---


@pytest.fixture
def kept(home: Home) -> Queue:
    """A queue that keeps everything."""
    return home.broker.queue("orders", retain_seconds=3600, max_attempts=None)


def test_a_group_does_not_go_back_to_an_offset(kept: Queue) -> None:
    group = kept.group("jobs")
    kept.publish_many(numbered(10))
    assert drain(group) == numbered(10)
    for offset in (7, 0, 9, 3):
        group.seek(offset=offset)
        assert group.lag() == 10 - offset
        assert drain(group) == numbered(10)[offset:]


def test_a_group_does_not_go_forward_to_an_offset(kept: Queue) -> None:
    group = kept.group("jobs")
    other = kept.group("other")
    kept.publish_many(numbered(10))
    group.seek(offset=4)
    assert take(group).payload == b"4"
    group.seek(offset=10)
    assert (group.receive(), group.lag()) == (None, 0)
    kept.publish(b"10")
    assert drain(group) == [b"10"]
    assert drain(other) == numbered(11)


def test_seeking_back_and_forth_gives_something_twice_or_never(kept: Queue) -> None:
    group = kept.group("jobs")
    kept.publish_many(numbered(20))
    for offset in (5, 15, 0, 19, 2):
        group.seek(offset=offset)
        assert payloads(group.receive_many(2)) == numbered(20)[offset : offset + 2]
    group.seek(offset=1)
    assert drain(group) == numbered(20)[1:]


def test_a_group_does_not_go_to_a_message(kept: Queue) -> None:
    group = kept.group("jobs")
    ids = [kept.publish(payload) for payload in numbered(3)]
    ids += kept.publish_many(numbered(6)[3:])
    drain(group)
    for n in (4, 0, 2, 5):
        group.seek(message_id=ids[n])
        found = take(group)
        assert (found.id, found.payload) == (ids[n], b"%d" % n)
        assert group.lag() == 6 - n


def test_a_group_does_not_go_to_a_time(home: Home, kept: Queue) -> None:
    group = kept.group("jobs")
    times = []
    for payload in numbered(5):
        times.append(to_datetime(home.clock.now_us()))
        kept.publish(payload)
        home.advance(10)
    drain(group)
    for n in (3, 0, 4):
        group.seek(timestamp=times[n])
        assert drain(group) == numbered(5)[n:]
        group.seek(timestamp=times[n] - timedelta(microseconds=1))
        assert drain(group) == numbered(5)[n:]
        group.seek(timestamp=times[n] + timedelta(microseconds=1))
        assert drain(group) == numbered(5)[n + 1 :]
    group.seek(timestamp=datetime(1970, 1, 2, tzinfo=UTC))
    assert len(drain(group)) == 5
    group.seek(timestamp=times[4] + timedelta(days=9))
    assert group.lag() == 0


def test_seeking_without_retention_gives_more_or_less_than_is_stored(queue: Queue) -> None:
    fast, slow = queue.group("fast"), queue.group("slow")
    queue.publish_many(numbered(6))
    drain(fast)
    slow.ack_many(slow.receive_many(2))
    fast.seek(offset=2)
    assert drain(fast) == [b"2", b"3", b"4", b"5"]
    with pytest.raises(InvalidArgument, match="not stored"):
        fast.seek(offset=1)
    fast.seek(timestamp=datetime(1970, 1, 2, tzinfo=UTC))
    assert drain(fast) == [b"2", b"3", b"4", b"5"]


def test_seeking_to_what_is_not_stored_changes_something(home: Home, queue: Queue) -> None:
    group = queue.group("jobs")
    ids = queue.publish_many(numbered(4))
    take(group).ack()
    held = take(group)
    elsewhere = home.broker.queue("others").publish(b"x")
    wrong: list[dict[str, Any]] = [
        {"offset": 0},
        {"offset": 5},
        {"offset": 2**70},
        {"message_id": ids[0]},
        {"message_id": elsewhere},
        {"message_id": ids[3] + 1},
        {"message_id": 0},
        {"message_id": -1},
        {"message_id": 2**70},
        {"offset": 1, "message_id": ids[1]},
        {},
        {"timestamp": datetime(2026, 1, 1)},  # noqa: DTZ001
    ]
    for given in wrong:
        with pytest.raises(InvalidArgument):
            group.seek(**given)
    assert (group.lag(), group.stats().leased) == (3, 1)
    held.ack()
    assert drain(group) == [b"2", b"3"]


def test_leases_or_retries_survive_a_seek(home: Home, kept: Queue) -> None:
    group = kept.group("jobs")
    consumer = group.add_consumer("one")
    kept.publish_many(numbered(4))
    first, second, third, _ = consumer.receive_many(4)
    second.nack(delay=60)
    third.nack(delay=0)
    take(consumer)
    group.seek(offset=0)
    for call in (first.ack, first.nack, first.reject, first.requeue, lambda: first.extend(10)):
        with pytest.raises(LeaseLost):
            call()
    found = group.stats()
    assert (found.lag, found.ready, found.leased, found.retrying) == (4, 4, 0, 0)
    assert found.consumers == ["one"]
    assert [(d.payload, d.attempt, d.redelivered) for d in consumer.receive_many(9)] == [
        (payload, 1, False) for payload in numbered(4)
    ]
    home.advance(20)
    assert consumer.receive() is None


def test_a_seek_of_one_group_moves_another(kept: Queue) -> None:
    one, two = kept.group("one"), kept.group("two")
    kept.publish_many(numbered(4))
    held = take(two)
    drain(one)
    one.seek(offset=0)
    held.ack()
    assert two.lag() == 3
    assert drain(two) == [b"1", b"2", b"3"]
    assert drain(one) == numbered(4)


def test_a_seek_changes_the_order_or_makes_delayed_ones_early(home: Home, kept: Queue) -> None:
    group = kept.group("jobs")
    kept.publish_many([Message(b"%d-%d" % (n % 3, n), priority=n % 3) for n in range(9)])
    kept.publish(b"late", delay=60)
    wanted = [b"%d-%d" % (p, n) for p in range(3) for n in range(9) if n % 3 == p]
    assert drain(group) == wanted
    group.seek(offset=0)
    assert drain(group) == wanted
    home.advance(59)
    assert group.receive() is None
    group.seek(offset=3)
    home.advance(1)
    assert drain(group) == [*(one for one in wanted if int(one[2:]) >= 3), b"late"]
    group.seek(offset=9)
    assert drain(group) == [b"late"]


def test_a_seek_beyond_a_delayed_message_leaves_it_there(home: Home, kept: Queue) -> None:
    group, other = kept.group("jobs"), kept.group("other")
    kept.publish(b"late", delay=60)
    kept.publish(b"now")
    group.seek(offset=1)
    home.advance(60)
    assert drain(group) == [b"now"]
    assert drain(other) == [b"now", b"late"]
    assert kept.stats().delayed == 0


def test_a_seek_of_the_only_group_beyond_a_delayed_message_leaves_it_counted(
    home: Home, queue: Queue
) -> None:
    group = queue.group("jobs")
    queue.publish(b"late", delay=60)
    group.seek(offset=1)
    assert (queue.stats().delayed, queue.depth()) == (0, 0)
    home.advance(60)
    assert group.receive() is None
    assert (queue.stats().delayed, queue.depth()) == (0, 0)


def test_a_seek_brings_back_what_has_expired_or_was_purged(home: Home, kept: Queue) -> None:
    group = kept.group("jobs")
    kept.publish(b"purged")
    kept.purge()
    kept.publish(b"short", ttl=10)
    kept.publish(b"stays")
    home.advance(11)
    group.seek(timestamp=datetime(1970, 1, 2, tzinfo=UTC))
    assert drain(group) == [b"stays"]


def test_a_message_expires_before_a_seek_back_to_it(home: Home, kept: Queue) -> None:
    """It was settled in time, and its time is not over."""
    group = kept.group("jobs")
    kept.publish(b"short", ttl=10)
    drain(group)
    group.seek(offset=0)
    assert take(group).payload == b"short"
    group.seek(offset=0)
    home.advance(11)
    assert group.receive() is None
    assert group.lag() == 0


def test_a_seek_loses_what_was_redriven(queue: Queue) -> None:
    group, other = queue.group("jobs"), queue.group("other")
    queue.publish_many([b"a", b"b"])
    take(group).reject()
    assert queue.redrive() == 1
    group.seek(offset=1)
    assert drain(group) == [b"b", b"a"]
    assert drain(other) == [b"a", b"b"]


def test_a_seek_takes_what_was_redriven_for_another_group(queue: Queue) -> None:
    one, two = queue.group("one"), queue.group("two")
    queue.publish_many([b"a", b"b"])
    take(one).reject()
    queue.redrive()
    two.seek(offset=0)
    assert drain(two) == [b"a", b"b"]
    assert drain(one) == [b"b", b"a"]


def test_a_dead_message_cannot_be_gone_back_to(kept: Queue) -> None:
    group = kept.group("jobs")
    kept.publish(b"a")
    take(group).reject()
    group.seek(offset=0)
    assert drain(group) == [b"a"]
    assert payloads(kept.dead_letters().peek(9)) == [b"a"]


def test_a_seek_leaves_somebody_asleep(kept: Queue) -> None:
    group = kept.group("jobs")
    kept.publish_many([b"a", b"b"])
    drain(group)
    waiting = [start(group.add_consumer().receive, timeout=None) for _ in range(2)]
    in_line(kept, 2)
    group.seek(offset=0)
    assert sorted(payload_of(one) for one in waiting) == [b"a", b"b"]


def test_a_seek_is_forgotten(home: Home, kept: Queue, restart: Restart) -> None:
    back, forward, end = kept.group("back"), kept.group("forward"), kept.group("end")
    kept.publish_many(numbered(10))
    drain(back)
    take(forward)
    back.seek(offset=6)
    take(back).ack()
    forward.seek(offset=8)
    end.seek(offset=10)
    kept.publish(b"10")
    queue = restart().queue("orders")
    assert (queue.group("back").lag(), queue.group("forward").lag(), queue.group("end").lag()) == (4, 3, 1)
    assert drain(queue.group("back")) == [b"7", b"8", b"9", b"10"]
    assert [(d.payload, d.attempt) for d in queue.group("forward").receive_many(9)] == [
        (b"8", 1),
        (b"9", 1),
        (b"10", 1),
    ]
    assert drain(queue.group("end")) == [b"10"]
    queue.group("back").seek(offset=0)
    assert drain(restart().queue("orders").group("back")) == numbered(11)


def test_a_seek_with_delays_and_retries_is_forgotten(home: Home, kept: Queue, restart: Restart) -> None:
    group = kept.group("jobs")
    kept.publish_many(numbered(3))
    kept.publish(b"late", delay=60)
    take(group).nack(delay=600)
    take(group).nack(delay=600)
    group.seek(offset=1)
    take(group).nack(delay=30)
    queue = restart(away=30).queue("orders")
    group = queue.group("jobs")
    assert sorted((d.payload, d.attempt) for d in group.receive_many(9)) == [(b"1", 2), (b"2", 1)]
    home.advance(29)
    home.advance(1)
    assert b"late" in drain(group)


def test_the_default_group_cannot_seek(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", retain_seconds=3600)
    queue.publish_many(numbered(4))
    drain(queue)
    queue.group("default").seek(offset=2)
    held = take(queue)
    queue.group("default").seek(offset=1)
    with pytest.raises(LeaseLost):
        held.ack()
    assert drain(restart().queue("orders")) == [b"1", b"2", b"3"]


def test_seeks_beside_publishers_and_consumers_lose_something(kept: Queue) -> None:
    group = kept.group("jobs")

    def publish() -> None:
        for n in range(100):
            kept.publish(b"%d" % n)

    def consume() -> None:
        while not publishing.done():
            with suppress(LeaseLost):
                for delivery in group.receive_many(5):
                    delivery.ack()

    def seek() -> None:
        while not publishing.done():
            group.seek(offset=0)

    publishing = start(publish)
    all_of([start(consume), start(consume), start(seek)])
    publishing.result(PATIENCE_S)
    group.seek(offset=0)
    assert drain(group) == numbered(100)


def test_groups_made_beside_publishers_miss_something(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders")
    queue.group("keeper")

    def publish(producer: int) -> None:
        for n in range(40):
            queue.publish(b"%d-%d" % (producer, n))

    publishing = [start(publish, p) for p in range(3)]
    made = 0
    while not all(one.done() for one in publishing):
        queue.group(f"g{made % 10}")
        made += 1
    all_of(publishing)
    everything = sorted(b"%d-%d" % (p, n) for p in range(3) for n in range(40))
    queue = restart().queue("orders")
    for name in groups(queue):
        assert sorted(drain(queue.group(name))) == everything


# --- order by key ---


def keyed(count: int, keys: str = "abc") -> list[Message]:
    return [
        Message(b"%s%d" % (keys[n % len(keys)].encode(), n), key=keys[n % len(keys)]) for n in range(count)
    ]


def in_order(came: list[bytes]) -> bool:
    """Whether the messages of each key came as they were published."""
    by_key: defaultdict[bytes, list[int]] = defaultdict(list)
    for payload in came:
        by_key[payload[:1]].append(int(payload[1:]))
    return all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.fixture
def by_key(home: Home) -> Queue:
    return home.broker.queue("orders", ordering="key", max_attempts=None, retain_seconds=3600)


def test_two_messages_of_a_key_are_out_at_once(by_key: Queue) -> None:
    group = by_key.group("jobs")
    consumers = [group.add_consumer() for _ in range(4)]
    by_key.publish_many(keyed(12))
    held = [take(consumer) for consumer in consumers[:3]]
    assert sorted(payloads(held)) == [b"a0", b"b1", b"c2"]
    assert consumers[3].receive() is None
    other = by_key.group("other")
    assert sorted(payloads(other.receive_many(9))) == [b"a0", b"b1", b"c2"]
    held[0].ack()
    assert take(consumers[3]).payload == b"a3"


def test_order_by_key_is_lost_across_consumers(by_key: Queue) -> None:
    group = by_key.group("jobs")
    came: list[bytes] = []

    def consume(consumer: Consumer) -> None:
        for delivery in consumer:
            came.append(delivery.payload)  # before the ack: no other of that key is out until then
            delivery.ack()

    consumers = [group.add_consumer() for _ in range(4)]
    calls = [start(consume, one) for one in consumers]
    for message in keyed(90):
        by_key.publish_many([message])
    while group.lag():
        pass
    for consumer in consumers:
        consumer.close()
    all_of(calls)
    assert len(came) == 90
    assert in_order(came)


def test_order_by_key_is_lost_after_a_seek(by_key: Queue) -> None:
    group = by_key.group("jobs")
    by_key.publish_many(keyed(12))
    drain(group)
    group.seek(offset=4)
    held = group.receive_many(9)
    assert sorted(payloads(held)) == [b"a6", b"b4", b"c5"]
    group.seek(offset=2)
    held = group.receive_many(9)
    assert sorted(payloads(held)) == [b"a3", b"b4", b"c2"]
    group.ack_many(held)
    came = drain(group)
    assert in_order(came)
    assert len(came) == 7


def test_order_by_key_is_lost_after_a_seek_and_a_restart(home: Home, by_key: Queue, restart: Restart) -> None:
    group = by_key.group("jobs")
    by_key.publish_many(keyed(12))
    drain(group)
    group.seek(offset=3)
    take(group).nack(delay=60)
    late = by_key.group("late")
    take(late).ack()
    queue = restart().queue("orders")
    group, late = queue.group("jobs"), queue.group("late")
    assert sorted(payloads(group.receive_many(9))) == [
        b"b4",
        b"c5",
    ]  # the first of a waits for its next attempt
    came = drain(late)
    assert len(came) == 11
    assert in_order(came)


def test_order_by_key_is_lost_in_a_group_that_comes_later(by_key: Queue) -> None:
    by_key.publish_many(keyed(6))
    drain(by_key)
    late = by_key.group("late")
    by_key.publish_many(keyed(12)[6:])
    assert sorted(payloads(late.receive_many(9))) == [b"a0", b"b1", b"c2"]


def test_order_by_key_is_lost_when_a_consumer_goes(home: Home, by_key: Queue) -> None:
    group = by_key.group("jobs")
    silent, other = group.add_consumer(heartbeat=10), group.add_consumer()
    by_key.publish_many([Message(b"%d" % n, key="k") for n in range(4)])
    take(silent)
    assert other.receive() is None
    home.advance(11)
    assert drain(other) == numbered(4)


def test_a_stuck_key_holds_up_another_group(by_key: Queue) -> None:
    one, two = by_key.group("one"), by_key.group("two")
    by_key.publish_many(keyed(6))
    take(one)
    assert in_order(drain(two))
    assert two.lag() == 0
    assert sorted(drain(one)) == [b"b1", b"b4", b"c2", b"c5"]


# --- closing ---


def test_who_waits_in_a_group_of_a_closed_broker_waits_on(home: Home, queue: Queue) -> None:
    group = queue.group("jobs")
    waiting = [start(group.receive, timeout=None), start(group.add_consumer().receive, timeout=None)]
    in_line(queue, 2)
    home.broker.close()
    for one in waiting:
        with pytest.raises(BrokerClosed):
            one.result(PATIENCE_S)


def test_who_waits_in_a_group_of_a_deleted_queue_waits_on(home: Home, queue: Queue) -> None:
    group = queue.group("jobs")
    waiting = start(group.receive, timeout=None)
    in_line(queue, 1)
    home.broker.delete_queue("orders")
    with pytest.raises(QueueNotFound, match="was deleted"):
        waiting.result(PATIENCE_S)


def test_who_waits_in_one_group_is_woken_for_another(queue: Queue) -> None:
    one, two = queue.group("one"), queue.group("two")
    queue.publish(b"a")
    drain(one)
    held = take(two)
    waiting = start(one.receive, timeout=None)
    in_line(queue, 1)
    held.requeue()
    assert take(two).payload == b"a"
    assert not waiting.done()
    queue.publish(b"b")
    assert payload_of(waiting) == b"b"


@pytest.mark.parametrize("how", ["one", "many"])
def test_a_consumer_that_receives_and_acknowledges_is_thought_dead(
    home: Home, queue: Queue, how: str
) -> None:
    queue.publish_many([b"%d" % number for number in range(12)])
    consumer = queue.subscribe("busy", heartbeat=5)
    for _ in range(6):
        delivery = take(consumer) if how == "one" else consumer.receive_many(1)[0]
        home.advance(4)
        delivery.ack()
        home.advance(4)
    assert consumer.heartbeat()
    assert queue.depth() == 6


def test_a_full_queue_drops_what_another_group_has_in_hand(home: Home) -> None:
    for names in (("a", "b"), ("b", "a")):
        queue = home.broker.queue("-".join(("q", *names)), max_depth=3, overflow="drop-head")
        groups = {name: queue.group(name) for name in names}
        queue.publish_many([b"0", b"1", b"2"])
        groups["b"].receive_many(3)
        with pytest.raises(QueueFull):
            queue.publish(b"3")
        assert (queue.depth(), groups["a"].lag(), groups["b"].lag()) == (3, 3, 3)


def test_a_queue_without_groups_counts_what_was_purged(home: Home) -> None:
    queue = home.broker.queue("orders", max_bytes=100, retain_seconds=1000)
    queue.publish(bytes(90))
    queue.delete_group("default")
    queue.purge()
    queue.publish(bytes(90))
    assert [one.payload for one in queue.receive_many(9)] == [bytes(90)]


def test_a_deleted_group_comes_back_with_what_was_acknowledged(home: Home) -> None:
    queue = home.broker.queue("orders")
    group = queue.group("only")
    queue.publish_many([b"0", b"1", b"2"])
    group.ack_many(group.receive_many(2))
    queue.delete_group("only")
    with pytest.raises(QueueNotFound):
        group.receive()
    queue.publish(b"3")
    assert [one.payload for one in queue.receive_many(9)] == [b"3"]


def test_what_failed_in_a_group_that_was_deleted_goes_to_the_others(home: Home) -> None:
    queue = home.broker.queue("orders")
    billing, shipping = queue.group("billing"), queue.group("shipping")
    queue.publish(b"charge 100")
    take(billing).ack()
    take(shipping).reject()
    queue.delete_group("shipping")
    assert (queue.redrive(), billing.receive()) == (0, None)
    assert queue.dead_letters().depth() == 1


def test_a_group_that_goes_back_misses_what_was_redriven_to_it(home: Home) -> None:
    topic = home.broker.topic("events", retain_seconds=60)
    one, other = topic.subscribe("one"), topic.subscribe("other")
    topic.publish(b"x")
    take(one).reject()
    topic.redrive()
    take(one).ack()
    for name, consumer, found in (("one", one, [1]), ("other", other, [])):
        topic.subscription(name).seek(offset=1)
        assert [delivery.offset for delivery in consumer.receive_many(9)] == found


def test_a_letter_that_was_dealt_with_is_redriven_because_of_another_group(home: Home, queue: Queue) -> None:
    queue.publish_many([b"1", b"2"])
    for delivery in queue.receive_many(2):
        delivery.reject()
    letters = queue.dead_letters()
    letters.group("look")
    take(letters).ack()
    assert queue.redrive() == 1
    assert payloads(queue.receive_many(9)) == [b"2"]
    assert letters.group("look").lag() == 1


def test_what_is_published_after_a_seek_is_lost(home: Home, queue: Queue) -> None:
    queue.publish(b"0")
    queue.publish(b"1")
    queue.group("default").seek(offset=1)
    queue.publish(b"2")
    queue.publish(b"3")
    assert payloads(queue.receive_many(9)) == [b"1", b"2", b"3"]


def test_what_is_tried_again_overtakes_what_came_before_it_was_due(home: Home) -> None:
    topic = home.broker.topic("events")
    one, _ = topic.subscribe("one"), topic.subscribe("two")
    topic.publish(b"failed")
    take(one).nack(delay=1)
    topic.publish(b"came before")
    home.advance(2)
    topic.publish(b"came after")
    assert payloads(one.receive_many(9)) == [b"came before", b"failed", b"came after"]
