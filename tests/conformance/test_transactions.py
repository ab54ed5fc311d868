"""Transactions: everything in them happens, or nothing does, whatever goes wrong and whoever else is at work."""

# ruff: noqa: PT012  # what a transaction raises comes at the end of its block

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from penstock import (
    BatchTooLarge,
    BrokerClosed,
    InvalidArgument,
    InvalidName,
    LeaseLost,
    Message,
    MessageTooLarge,
    PenstockError,
    QueueFull,
    QueueNotFound,
)
from penstock.limits import FRAME_BYTES_MAX
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import (
    EVERYTHING,
    counts,
    drain,
    expected,
    payloads,
    survives_a_restart,
    take,
)
from tests.conformance.oddities import oddities
from tests.conformance.surface import Broker, Delivery, Log, Queue, Transaction

LETTERS = [b"a", b"b", b"c", b"d", b"e"]


def stored(log: Log) -> list[bytes]:
    """Whatever is stored of a log, and not settled by everybody."""
    with log.reader("looking") as reader:
        return payloads(reader.read_many(EVERYTHING))


def state(broker: Broker) -> dict[str, Any]:
    """Everything that can be seen of a broker's logs."""
    logs: list[Log] = [broker.get_queue(name) for name in broker.list_queues()]
    logs += [broker.get_topic(name) for name in broker.list_topics()]
    for log in list(logs):
        with suppress(QueueNotFound):
            logs.append(broker.get_queue(f"{log.name}.dlq"))
    return {log.name: (log.stats(), stored(log), log.peek(EVERYTHING)) for log in logs}


@contextmanager
def nothing_changes(broker: Broker, *held: Delivery) -> Iterator[None]:
    """Whatever happens inside, everything is as before, and what is in somebody's hands can be settled."""
    before = state(broker)
    yield
    assert state(broker) == before
    for delivery in held:
        delivery.extend(30)
        delivery.ack()
    for name in broker.list_queues():  # and it goes on
        broker.get_queue(name).stats()
    after = broker.queue("after")
    offset = len(stored(after))
    after.publish(b"goes on")
    assert len(stored(after)) == offset + 1


def held(queue: Queue, payload: bytes = b"x") -> Delivery:
    queue.publish(payload)
    return take(queue)


# --- everything ---


def test_a_part_of_a_transaction_is_left_out(home: Home) -> None:
    broker = home.broker
    orders, retries, bad = broker.queue("orders"), broker.queue("retries"), broker.queue("bad")
    events = broker.topic("events")
    first, second = events.subscribe("first"), events.subscribe("second")
    orders.publish_many([b"1", b"2"])
    events.publish(b"event")
    group = broker.queue("grouped").group("g")
    broker.queue("grouped").publish(b"for g")
    one, two = orders.receive_many(2)
    with broker.transaction() as tx:
        tx.ack(one)
        tx.publish("invoices", b"new")
        tx.nack(two, delay=60, error="later")
        tx.publish("events", b"to all")
        tx.reject(held(bad), error="broken")
        tx.ack(take(first))
        tx.publish("orders", b"3", priority=1)
        tx.nack(held(retries), delay=0)
        tx.ack(take(group))
    assert counts(orders) == expected(ready=1, retrying=1)
    assert drain(orders) == [b"3"]
    assert drain(broker.get_queue("invoices")) == [b"new"]
    assert drain(first) == [b"to all"]
    assert drain(second) == [b"event", b"to all"]
    assert [(one.payload, one.headers["x-error"]) for one in bad.dead_letters().peek(9)] == [(b"x", "broken")]
    assert drain(retries) == [b"x"]
    assert group.lag() == 0
    home.advance(60)
    assert [(one.payload, one.attempt) for one in orders.receive_many(9)] == [(b"2", 2)]


def test_something_happens_before_the_end(home: Home, queue: Queue) -> None:
    delivery = held(queue)
    with nothing_changes(home.broker, delivery):
        tx = home.broker.transaction()
        tx.publish("orders", b"a")
        tx.publish("unknown", b"b")
        tx.ack(delivery)
        assert tx.ids == []
        assert "unknown" not in home.broker.list_queues()
        tx.rollback()


def test_ids_come_in_another_order_or_not_at_all(home: Home, queue: Queue) -> None:
    topic = home.broker.topic("events")
    topic.subscribe("s")
    with home.broker.transaction() as tx:
        for n in range(6):
            tx.publish(("orders", "events", "new")[n % 3], b"%d" % n)
            tx.publish("orders", b"again", dedup_id="once")
        assert tx.ids == []
    assert len(tx.ids) == 12
    repeated = tx.ids[1::2]
    assert len(set(repeated)) == 1
    fresh = tx.ids[::2]
    assert fresh == sorted(set(fresh))
    by_id = {
        one.id: one.payload for log in (queue, topic, home.broker.get_queue("new")) for one in log.peek(99)
    }
    assert [by_id[one] for one in fresh] == [b"%d" % n for n in range(6)]
    assert by_id[repeated[0]] == b"again"


def test_messages_of_a_transaction_change_their_order(home: Home) -> None:
    with home.broker.transaction() as tx:
        for n in range(50):
            tx.publish("orders", b"%d" % n)
            tx.publish("other", b"%d" % n, priority=n % 2)
    assert drain(home.broker.queue("orders")) == [b"%d" % n for n in range(50)]
    assert drain(home.broker.queue("other")) == [b"%d" % n for n in (*range(0, 50, 2), *range(1, 50, 2))]


def test_something_of_a_message_is_lost_in_a_transaction(home: Home) -> None:
    with home.broker.transaction() as tx:
        tx.publish("q", bytes(range(256)), headers={"é": "✓"}, key="k", priority=7, dedup_id="d")
        tx.publish("q", b"later", delay=timedelta(seconds=60))
        tx.publish("q", b"brief", ttl=30)
        tx.publish("q", b"")
    queue = home.broker.queue("q")
    assert counts(queue) == expected(ready=3, delayed=1)
    first = take(queue)
    assert (first.payload, first.headers, first.key, first.priority) == (
        bytes(range(256)),
        {"é": "✓"},
        "k",
        7,
    )
    assert queue.publish(b"repeated", dedup_id="d") == tx.ids[0]
    first.ack()
    home.advance(30)
    assert drain(queue) == [b""]
    home.advance(30)
    assert drain(queue) == [b"later"]


def test_headers_that_change_before_the_end_are_published(home: Home) -> None:
    headers = {"a": "before"}
    with home.broker.transaction() as tx:
        tx.publish("q", b"x", headers=headers)
        headers["a"] = "after"
        headers["b"] = "more"
    assert take(home.broker.queue("q")).headers == {"a": "before"}


def test_an_empty_transaction_does_something(home: Home, queue: Queue) -> None:
    delivery = held(queue)
    with nothing_changes(home.broker, delivery):
        with home.broker.transaction() as tx:
            pass
        assert tx.ids == []
        assert home.broker.transaction().commit() == []


def test_a_queue_that_is_not_known_is_not_made_or_made_when_it_fails(home: Home, queue: Queue) -> None:
    with home.broker.transaction() as tx:
        tx.publish("new", b"a")
        tx.publish("new", b"b")
    assert drain(home.broker.get_queue("new")) == [b"a", b"b"]
    with pytest.raises(MessageTooLarge), home.broker.transaction() as tx:
        tx.publish("newer", b"a")
        tx.publish("newest", b"x" * 2_000_000)
    assert sorted(home.broker.list_queues()) == ["new", "orders"]


def test_dead_letters_cannot_be_published_to_or_are_made_by_it(home: Home, queue: Queue) -> None:
    with nothing_changes(home.broker), pytest.raises(InvalidName), home.broker.transaction() as tx:
        tx.publish("orders", b"a")
        tx.publish("orders.dlq", b"b")
    queue.dead_letters()
    with home.broker.transaction() as tx:
        tx.publish("orders.dlq", b"b")
    assert payloads(queue.dead_letters().peek(9)) == [b"b"]


def test_waiting_consumers_and_readers_are_not_woken(home: Home, queue: Queue) -> None:
    topic = home.broker.topic("events")
    subscription = topic.subscribe("s")
    waiting = [start(queue.receive, None), start(subscription.receive, None)]
    reading = start(topic.reader("r").read, None)
    with home.broker.transaction() as tx:
        tx.publish("orders", b"a")
        tx.publish("events", b"b")
    assert [one and one.payload for one in all_of(waiting)] == [b"a", b"b"]
    found = reading.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"b"


# --- nothing ---


class Oops(Exception):
    pass


@pytest.mark.parametrize("error", [Oops, KeyboardInterrupt, SystemExit, LeaseLost])
def test_an_error_in_the_block_commits_or_is_hidden(
    home: Home, queue: Queue, error: type[BaseException]
) -> None:
    if home.kind.asynchronous and not issubclass(error, Exception):
        pytest.skip("it would end the loop of the tests")
    delivery = held(queue)
    with nothing_changes(home.broker, delivery):
        with pytest.raises(error), home.broker.transaction() as tx:
            tx.publish("orders", b"a")
            tx.publish("new", b"b")
            tx.ack(delivery)
            raise error("in the block")
        with pytest.raises(BrokerClosed):
            tx.publish("orders", b"c")


def test_a_transaction_that_has_ended_goes_on(home: Home, queue: Queue) -> None:
    delivery = held(queue)
    committed, rolled_back, left = (home.broker.transaction() for _ in range(3))
    committed.publish("other", b"a")
    assert committed.commit() == committed.ids
    rolled_back.publish("other", b"b")
    rolled_back.rollback()
    with left:
        left.publish("other", b"c")
    failed = home.broker.transaction()
    failed.publish("other", b"x" * 2_000_000)
    with pytest.raises(MessageTooLarge):
        failed.commit()
    with nothing_changes(home.broker, delivery):
        for tx in (committed, rolled_back, left, failed):
            calls: list[Callable[[], object]] = [
                lambda tx=tx: tx.publish("other", b"again"),  # type: ignore[misc]
                lambda tx=tx: tx.ack(delivery),  # type: ignore[misc]
                lambda tx=tx: tx.nack(delivery),  # type: ignore[misc]
                lambda tx=tx: tx.reject(delivery),  # type: ignore[misc]
                tx.commit,
            ]
            for call in calls:
                with pytest.raises(BrokerClosed, match="transaction has ended"):
                    call()
            tx.rollback()  # once more is once more nothing
    assert drain(home.broker.queue("other")) == [b"a", b"c"]


def test_a_commit_in_the_block_is_done_twice_or_undone(home: Home) -> None:
    with home.broker.transaction() as tx:
        tx.publish("q", b"a")
        assert len(tx.commit()) == 1
    with home.broker.transaction() as tx:
        tx.publish("q", b"b")
        tx.rollback()
    with pytest.raises(Oops), home.broker.transaction() as tx:
        tx.publish("q", b"c")
        tx.commit()
        raise Oops
    assert drain(home.broker.queue("q")) == [b"a", b"c"]


Step = Callable[[Broker, Transaction], object]


def too_large(broker: Broker, tx: Transaction) -> None:
    tx.publish("full", b"x" * 1000)


def too_many(broker: Broker, tx: Transaction) -> None:
    tx.publish("full", b"a")
    tx.publish("full", b"b")


def too_many_bytes(broker: Broker, tx: Transaction) -> None:
    tx.publish("narrow", b"12345")
    tx.publish("narrow", b"123456")


def nothing_to_drop(broker: Broker, tx: Transaction) -> None:
    tx.publish("dropping", b"b")


def without_dedup_id(broker: Broker, tx: Transaction) -> None:
    tx.publish("exact", b"a", dedup_id="1")
    tx.publish("exact", b"b")


def too_much(broker: Broker, tx: Transaction) -> None:
    for _ in range(FRAME_BYTES_MAX // 1_000_000 + 2):
        tx.publish("wide", b"x" * 1_000_000)


def too_many_steps(broker: Broker, tx: Transaction) -> None:
    for _ in range(10_001):
        tx.publish("wide", b"x")


def twice(broker: Broker, tx: Transaction) -> None:
    delivery = broker.get_queue("work").receive_many(9)[0]
    tx.ack(delivery)
    tx.nack(delivery)


def no_name(broker: Broker, tx: Transaction) -> None:
    tx.publish("no name", b"a")


def no_bytes(broker: Broker, tx: Transaction) -> None:
    tx.publish("wide", "text")  # type: ignore[arg-type]


def no_priority(broker: Broker, tx: Transaction) -> None:
    tx.publish("wide", b"a", priority=256)


def no_ttl(broker: Broker, tx: Transaction) -> None:
    tx.publish("wide", b"a", ttl=-1)


def no_delivery(broker: Broker, tx: Transaction) -> None:
    tx.ack(Message(b"a"))  # type: ignore[arg-type]


REFUSED: list[tuple[Step, type[PenstockError]]] = [
    (too_large, MessageTooLarge),
    (too_many, QueueFull),
    (too_many_bytes, QueueFull),
    (nothing_to_drop, QueueFull),
    (without_dedup_id, InvalidArgument),
    (too_much, BatchTooLarge),
    (too_many_steps, BatchTooLarge),
    (twice, InvalidArgument),
    (no_name, InvalidName),
    (no_bytes, InvalidArgument),
    (no_priority, InvalidArgument),
    (no_ttl, InvalidArgument),
    (no_delivery, InvalidArgument),
]


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize(("step", "error"), REFUSED, ids=[step.__name__ for step, _ in REFUSED])
def test_one_step_that_is_refused_leaves_the_others_done(
    home: Home, step: Step, error: type[PenstockError], last: bool
) -> None:
    broker = home.broker
    broker.queue("full", max_depth=1, max_message_bytes=100)
    broker.queue("narrow", max_bytes=10)
    held(broker.queue("dropping", max_depth=1, overflow="drop-head"))
    broker.queue("exact", delivery="exactly-once")
    broker.queue("work", max_attempts=1).publish_many([b"1", b"2"])
    topic = broker.topic("events")
    subscription = topic.subscribe("s")
    topic.publish(b"event")
    acked, nacked, rejected = (
        held(broker.queue("acked")),
        held(broker.queue("nacked", max_attempts=1)),
        take(subscription),
    )
    if step is twice:  # what it takes is taken before
        broker.get_queue("work").publish(b"3")

    def steps(tx: Transaction) -> None:
        if not last:
            step(broker, tx)
        tx.publish("wide", b"a", dedup_id="only")
        tx.publish("new", b"b")
        tx.publish("events", b"c")
        tx.ack(acked)
        tx.nack(nacked)
        tx.reject(rejected)
        if last:
            step(broker, tx)

    broker.queue("wide")
    tx = broker.transaction()
    before = None
    with pytest.raises(error):
        try:
            steps(tx)
        finally:
            before = state(broker)
        tx.commit()
    tx.rollback()
    assert state(broker) == before
    assert "new" not in broker.list_queues()
    first = broker.queue("wide").publish(b"goes on", dedup_id="only")
    assert drain(broker.queue("wide")) == [b"goes on"]
    assert first not in tx.ids
    for delivery in (acked, nacked, rejected):
        delivery.extend(30)
        delivery.ack()


def test_a_lost_lease_loses_only_itself(home: Home) -> None:
    broker = home.broker
    brief, long = broker.queue("brief", visibility_timeout=10), broker.queue("long", visibility_timeout=1000)
    lost, kept = held(brief), held(long)
    home.advance(10)
    with nothing_changes(broker, kept), pytest.raises(LeaseLost), broker.transaction() as tx:
        tx.ack(kept)
        tx.publish("new", b"a")
        tx.ack(lost)
    assert "new" not in broker.list_queues()


@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "requeue"])
def test_what_was_settled_before_the_end_is_settled_again(home: Home, queue: Queue, settle: str) -> None:
    first, second = held(queue), held(queue)
    tx = home.broker.transaction()
    tx.ack(second)
    tx.publish("other", b"a")
    tx.ack(first)
    getattr(first, settle)()
    with nothing_changes(home.broker, second), pytest.raises(LeaseLost):
        tx.commit()


def test_a_lease_that_somebody_else_has_now_is_settled(home: Home) -> None:
    queue = home.broker.queue("q", visibility_timeout=10)
    old = held(queue)
    home.advance(10)
    new = take(queue)
    assert new.id == old.id
    with nothing_changes(home.broker, new), pytest.raises(LeaseLost), home.broker.transaction() as tx:
        tx.publish("other", b"a")
        tx.ack(old)
    assert "other" not in home.broker.list_queues()


def test_a_delivery_whose_group_or_log_has_ended_is_settled(home: Home, queue: Queue) -> None:
    topic = home.broker.topic("events")
    subscription = topic.subscribe("s")
    topic.publish(b"a")
    of_group, of_queue, kept = take(subscription), held(home.broker.queue("doomed")), held(queue)
    topic.unsubscribe("s")
    home.broker.delete_queue("doomed")
    for delivery, error in ((of_group, LeaseLost), (of_queue, QueueNotFound)):
        before = state(home.broker)
        with pytest.raises((error, LeaseLost)), home.broker.transaction() as tx:
            tx.ack(kept)
            tx.ack(delivery)
            tx.publish("new", b"a")
        assert state(home.broker) == before
    kept.ack()


def test_a_delivery_that_a_consumer_gave_back_is_settled(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    with queue.subscribe("w") as consumer:
        delivery = take(consumer)
    with nothing_changes(home.broker), pytest.raises(LeaseLost), home.broker.transaction() as tx:
        tx.ack(delivery)
        tx.publish("new", b"a")


def test_a_foreign_delivery_is_settled(home: Home, queue: Queue) -> None:
    other = home.open(home.elsewhere())
    foreign, mine = held(other.queue("orders")), held(queue)
    with nothing_changes(home.broker, mine), pytest.raises(LeaseLost), home.broker.transaction() as tx:
        tx.ack(mine)
        tx.ack(foreign)
    foreign.ack()


def test_a_delivery_that_was_settled_when_it_was_handed_out_is_settled(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    delivery = take(queue.subscribe(auto_ack=True))
    once = held(home.broker.queue("once", delivery="at-most-once"))
    for found in (delivery, once):
        with nothing_changes(home.broker), pytest.raises(InvalidArgument), home.broker.transaction() as tx:
            tx.publish("new", b"a")
            tx.ack(found)


def test_a_transaction_of_a_closed_broker_is_done(home: Home, queue: Queue) -> None:
    delivery = held(queue)
    tx = home.broker.transaction()
    tx.ack(delivery)
    tx.publish("orders", b"a")
    empty = home.broker.transaction()
    home.broker.close()
    with pytest.raises(BrokerClosed):
        tx.commit()
    with pytest.raises(BrokerClosed):
        empty.commit()


@survives_a_restart
def test_a_delivery_of_before_a_restart_is_settled(home: Home, queue: Queue, restart: Restart) -> None:
    delivery = held(queue)
    broker = restart()
    with nothing_changes(broker), pytest.raises(LeaseLost), broker.transaction() as tx:
        tx.publish("new", b"a")
        tx.ack(delivery)


# --- failing inside ---


def test_a_nack_in_a_transaction_counts_no_attempt_or_its_letter_comes_twice(home: Home) -> None:
    queue = home.broker.queue("q", max_attempts=2, backoff=None)
    queue.publish(b"x", headers={"a": "b"})
    with home.broker.transaction() as tx:
        tx.nack(take(queue), error="first")
        tx.publish("log", b"1")
    second = take(queue)
    assert (second.attempt, second.redelivered) == (2, True)
    with home.broker.transaction() as tx:
        tx.nack(second, error=ValueError("second"))
        tx.publish("log", b"2")
    assert counts(queue) == expected(dead=1)
    (letter,) = queue.dead_letters().peek(9)
    assert letter.headers["a"] == "b"
    assert "second" in letter.headers["x-error"]
    home.advance(1000)
    assert queue.receive() is None
    assert drain(home.broker.queue("log")) == [b"1", b"2"]
    assert queue.redrive() == 1
    assert drain(queue) == [b"x"]


def test_a_nack_in_a_transaction_does_not_wait(home: Home) -> None:
    queue = home.broker.queue("q", backoff=None)
    delivery = held(queue)
    with home.broker.transaction() as tx:
        tx.nack(delivery, delay=timedelta(seconds=10))
    assert counts(queue) == expected(retrying=1)
    home.advance(9)
    assert queue.receive() is None
    home.advance(1)
    assert drain(queue) == [b"x"]


def test_many_rejected_in_one_transaction_are_lost(home: Home) -> None:
    """More than the dead letters take at once otherwise."""
    queue = home.broker.queue("q")
    queue.publish_many([b"%d" % n for n in range(250)])
    with home.broker.transaction() as tx:
        for delivery in queue.receive_many(250):
            tx.reject(delivery)
    assert counts(queue) == expected(dead=250)
    assert sorted(drain(queue.dead_letters()), key=int) == [b"%d" % n for n in range(250)]


def test_a_dead_letter_that_is_rejected_in_a_transaction_is_moved(home: Home, queue: Queue) -> None:
    held(queue).reject()
    dead = queue.dead_letters()
    with home.broker.transaction() as tx:
        tx.reject(take(dead))
    assert stored(dead) == []
    assert queue.stats().dead == 0


@pytest.mark.parametrize("how", ["reject", "nack"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_letter_and_a_message_for_one_queue_are_half_done(home: Home, how: str, depth: int) -> None:
    broker = home.broker
    grave = broker.queue("grave", max_depth=depth)
    queue = broker.queue("q", dead_letter="grave", max_attempts=1)
    delivery = held(queue)
    before = state(broker)
    tx = broker.transaction()
    getattr(tx, how)(delivery)
    tx.publish("grave", b"y")
    tx.publish("new", b"z")
    try:
        tx.commit()
    except QueueFull:
        assert depth == 1
        assert state(broker) == before
        delivery.ack()
        assert drain(grave) == []
    else:
        assert sorted(drain(grave)) == [b"x", b"y"]
        assert drain(broker.get_queue("new")) == [b"z"]
        assert counts(queue)["depth"] == 0
    grave.publish(b"goes on")
    assert drain(grave) == [b"goes on"]


# --- full queues ---


@pytest.mark.parametrize("how", ["ack", "reject"])
@pytest.mark.parametrize("limit", [{"max_depth": 1}, {"max_bytes": 10}], ids=str)
def test_what_takes_one_and_publishes_one_does_not_fit(home: Home, how: str, limit: dict[str, int]) -> None:
    queue = home.broker.queue("q", **limit)
    delivery = held(queue, b"0123456789")
    with home.broker.transaction() as tx:
        tx.publish("q", b"9876543210")
        getattr(tx, how)(delivery)
    assert drain(queue) == [b"9876543210"]


def test_what_takes_one_in_the_last_group_and_publishes_one_does_not_fit(home: Home) -> None:
    queue = home.broker.queue("q", max_depth=1)
    slow, quick = queue.group("slow"), queue.group("quick")
    queue.publish(b"a")
    assert drain(quick) == [b"a"]
    with home.broker.transaction() as tx:
        tx.ack(take(slow))
        tx.publish("q", b"b")
    assert (drain(slow), drain(quick)) == ([b"b"], [b"b"])


def test_what_takes_one_in_a_group_that_is_ahead_makes_room(home: Home) -> None:
    queue = home.broker.queue("q", max_depth=1)
    slow, quick = queue.group("slow"), queue.group("quick")
    queue.publish(b"a")
    delivery = take(quick)
    before = state(home.broker)
    with pytest.raises(QueueFull), home.broker.transaction() as tx:
        tx.ack(delivery)
        tx.publish("q", b"b")
    assert state(home.broker) == before
    delivery.ack()
    assert drain(slow) == [b"a"]


def test_a_nack_makes_room(home: Home) -> None:
    queue = home.broker.queue("q", max_depth=1)
    delivery = held(queue)
    with nothing_changes(home.broker, delivery), pytest.raises(QueueFull), home.broker.transaction() as tx:
        tx.nack(delivery)
        tx.publish("q", b"b")


def test_a_transaction_drops_nothing_or_its_own_where_the_oldest_goes(home: Home) -> None:
    queue = home.broker.queue("q", max_depth=3, overflow="drop-head")
    queue.publish_many([b"old-1", b"old-2", b"old-3"])
    leased = take(queue)
    with home.broker.transaction() as tx:
        tx.publish("q", b"new-1")
        tx.publish("q", b"new-2")
    assert counts(queue) == expected(ready=2, leased=1)
    assert payloads(queue.peek(9)) == [b"new-1", b"new-2"]
    leased.ack()
    assert drain(queue) == [b"new-1", b"new-2"]


def test_a_repeated_dedup_id_takes_room(home: Home) -> None:
    queue = home.broker.queue("q", max_depth=1)
    with home.broker.transaction() as tx:
        tx.publish("q", b"a", dedup_id="1")
        tx.publish("q", b"a", dedup_id="1")
    assert len(set(tx.ids)) == 1
    with home.broker.transaction() as again:
        again.publish("q", b"a", dedup_id="1")
        again.publish("other", b"b")
    assert again.ids[0] == tx.ids[0]
    assert drain(queue) == [b"a"]
    assert drain(home.broker.queue("other")) == [b"b"]


def test_exactly_once_is_twice_in_transactions(home: Home) -> None:
    source = home.broker.queue("source")
    target = home.broker.queue("target", delivery="exactly-once")
    for n in range(3):
        source.publish(b"%d" % n)
    for _ in range(2):  # the first time the work is done and the process goes
        for delivery in source.receive_many(9):
            tx = home.broker.transaction()
            tx.ack(delivery)
            tx.publish("target", delivery.payload, dedup_id=delivery.payload.decode())
            if delivery.attempt == 1:
                tx.rollback()
                delivery.requeue()
            else:
                tx.commit()
    assert drain(target) == [b"0", b"1", b"2"]
    assert drain(source) == []


def test_dedup_ids_of_a_transaction_that_failed_are_remembered(home: Home, queue: Queue) -> None:
    delivery = held(queue)
    tx = home.broker.transaction()
    tx.publish("q", b"a", dedup_id="1")
    tx.ack(delivery)
    delivery.ack()
    with pytest.raises(LeaseLost):
        tx.commit()
    home.broker.queue("q").publish(b"b", dedup_id="1")
    assert drain(home.broker.queue("q")) == [b"b"]


def test_order_by_key_does_not_hold_in_a_transaction(home: Home) -> None:
    queue = home.broker.queue("q", ordering="key")
    with home.broker.transaction() as tx:
        for n in range(4):
            tx.publish("q", b"%d" % n, key="k")
    first = take(queue)
    assert queue.receive() is None
    with home.broker.transaction() as tx:
        tx.ack(first)
        tx.publish("q", b"4", key="k")
    second = take(queue)
    assert (second.payload, queue.receive()) == (b"1", None)
    with home.broker.transaction() as tx:
        tx.nack(second, delay=0)
    assert drain(queue) == [b"1", b"2", b"3", b"4"]


# --- crashes ---


def test_a_committed_transaction_is_lost_in_part(home: Home, restart: Restart) -> None:
    orders, bad = home.broker.queue("orders"), home.broker.queue("bad", max_attempts=1)
    topic = home.broker.topic("events")
    subscription = topic.subscribe("s")
    topic.publish(b"old")
    orders.publish_many([b"1", b"2"])
    first, second = orders.receive_many(2)
    with home.broker.transaction() as tx:
        tx.ack(first)
        tx.nack(second, delay=100)
        tx.nack(held(bad))
        tx.ack(take(subscription))
        tx.publish("events", b"new")
        tx.publish("made", b"a", dedup_id="1", headers={"h": "v"}, delay=50)
    for _ in range(2):
        broker = restart()
        assert counts(broker.queue("orders")) == expected(retrying=1)
        assert payloads(broker.queue("bad").dead_letters().peek(9)) == [b"x"]
        assert payloads(broker.topic("events").reader("r").read_many(9)) == [b"new"]
        made = broker.get_queue("made")
        assert counts(made) == expected(delayed=1)
        assert made.publish(b"again", dedup_id="1") == tx.ids[-1]
    home.advance(100)
    assert drain(broker.get_queue("made")) == [b"a"]
    assert [(one.payload, one.attempt) for one in broker.queue("orders").receive_many(9)] == [(b"2", 2)]
    assert drain(broker.topic("events").subscription("s")) == [b"new"]


def test_a_transaction_that_was_not_committed_survives(home: Home, queue: Queue, restart: Restart) -> None:
    delivery = held(queue)
    for end in ("none", "rollback"):
        tx = home.broker.transaction()
        tx.ack(delivery)
        tx.publish("orders", b"a")
        tx.publish("new", b"b")
        if end == "rollback":
            tx.rollback()
    broker = restart()
    assert list(broker.list_queues()) == ["orders"]
    again = broker.queue("orders").receive_many(9)
    assert [(one.payload, one.attempt) for one in again] == [(b"x", 2)]


@pytest.mark.parametrize("grave", [None, "grave"])
def test_a_refused_transaction_shows_after_a_restart(home: Home, restart: Restart, grave: str | None) -> None:
    broker = home.broker
    held(broker.queue("full", max_depth=1, overflow="drop-head"))
    broker.queue("grave", max_depth=1)
    queue = broker.queue("q", dead_letter=grave)
    delivery = held(queue)
    with suppress(QueueFull), broker.transaction() as tx:
        tx.publish("other", b"a")
        tx.reject(delivery)
        tx.publish("grave", b"b")
        tx.publish("full", b"c")
    broker.queue("other").publish(b"later")
    queue.publish(b"y")
    before = {name: stored(broker.get_queue(name)) for name in broker.list_queues()}
    assert before == {"full": [b"x"], "grave": [], "q": [b"x", b"y"], "other": [b"later"]}
    broker = restart()
    assert {name: stored(broker.get_queue(name)) for name in broker.list_queues()} == before
    assert sorted(drain(broker.queue("q"))) == [b"x", b"y"]
    assert drain(broker.queue("other")) == [b"later"]


@survives_a_restart
def test_a_crash_among_many_transactions_leaves_a_part_of_one(home: Home) -> None:
    """The files are copied while others commit: each transaction is in the copy, or is not."""
    everything = 60
    broker = home.broker
    for name in ("left", "right"):
        broker.queue(name)

    def transact(worker: int) -> None:
        for n in range(everything):
            with broker.transaction() as tx:
                for name in ("left", "right", f"of-{worker}"):
                    tx.publish(name, b"%d-%d" % (worker, n))

    workers = [start(transact, worker) for worker in range(3)]
    for _ in range(3):
        before = broker
        home.crash()
        found = home.broker
        left, right = stored(found.queue("left")), stored(found.queue("right"))
        assert left == right
        for worker in range(3):
            mine = stored(found.queue(f"of-{worker}"))
            assert mine == [one for one in left if one.startswith(b"%d-" % worker)]
            assert mine == [b"%d-%d" % (worker, n) for n in range(len(mine))]
        assert before is broker
    all_of(workers)
    assert len(stored(broker.queue("left"))) == 3 * everything


# --- many at once ---


def test_two_transactions_settle_the_same_delivery(home: Home, queue: Queue) -> None:
    for n in range(30):
        delivery = held(queue)
        transactions = [home.broker.transaction() for _ in range(4)]
        for k, tx in enumerate(transactions):
            tx.publish("done", b"%d-%d" % (n, k))
            tx.ack(delivery)

        def commit(tx: Transaction) -> bool:
            try:
                tx.commit()
            except LeaseLost:
                return False
            return True

        assert sum(all_of([start(commit, tx) for tx in transactions])) == 1
    assert len(drain(home.broker.queue("done"))) == 30
    assert counts(queue) == expected()


def test_one_transaction_in_many_threads_is_done_twice(home: Home) -> None:
    tx = home.broker.transaction()

    def publish(worker: int) -> None:
        for n in range(20):
            tx.publish("q", b"%d-%d" % (worker, n))

    all_of([start(publish, worker) for worker in range(4)])

    def commit() -> bool:
        try:
            tx.commit()
        except BrokerClosed:
            return False
        return True

    assert sum(all_of([start(commit) for _ in range(8)])) == 1
    found = drain(home.broker.queue("q"))
    assert sorted(found) == sorted(b"%d-%d" % (worker, n) for worker in range(4) for n in range(20))


def test_a_transaction_in_another_is_part_of_it(home: Home, queue: Queue) -> None:
    first, second = held(queue), held(queue)
    with pytest.raises(Oops), home.broker.transaction() as outer:
        outer.publish("outer", b"a")
        outer.ack(first)
        with home.broker.transaction() as inner:
            inner.publish("inner", b"b")
            inner.ack(second)
        queue.publish(b"between")
        raise Oops
    assert drain(home.broker.queue("inner")) == [b"b"]
    assert "outer" not in home.broker.list_queues()
    first.ack()
    assert drain(queue) == [b"between"]


ACCOUNTS, BALANCE = 6, 100


def test_money_is_made_or_lost(home: Home) -> None:
    """Each account is a queue with one message: its balance. A transfer takes two of them and writes two anew."""
    names = [f"account-{n}" for n in range(ACCOUNTS)]
    for name in names:
        home.broker.queue(name, max_depth=1, max_attempts=None, backoff=None).publish(b"%d" % BALANCE)
    done: Counter[str] = Counter()
    lock = threading.Lock()

    def transfer(worker: int) -> None:
        chance = random.Random(worker)
        for _ in range(25):
            first, second = sorted(chance.sample(range(ACCOUNTS), 2))
            a = home.broker.queue(names[first]).receive(None)
            b = home.broker.queue(names[second]).receive(None)
            assert a is not None
            assert b is not None
            amount = chance.randrange(-30, 30)
            how = chance.choice(["commit", "commit", "commit", "rollback", "error", "refused"])
            try:
                with home.broker.transaction() as tx:
                    tx.ack(a)
                    tx.publish(names[first], b"%d" % (int(a.payload) - amount))
                    tx.publish(names[second], b"%d" % (int(b.payload) + amount))
                    tx.ack(b)
                    tx.publish("ledger", b"%d" % amount)
                    if how == "rollback":
                        tx.rollback()
                    elif how == "error":
                        raise Oops
                    elif how == "refused":
                        tx.publish(names[first], b"too many")
            except (Oops, QueueFull):
                pass
            if how != "commit":
                a.requeue()
                b.requeue()
            with lock:
                done[how] += 1

    all_of([start(transfer, worker) for worker in range(6)])
    assert done.total() == 150
    balances = [drain(home.broker.queue(name)) for name in names]
    assert [len(one) for one in balances] == [1] * ACCOUNTS
    assert sum(int(one[0]) for one in balances) == ACCOUNTS * BALANCE
    assert home.broker.queue("ledger").depth() == done["commit"]


def test_a_pipeline_of_transactions_loses_or_repeats_something(home: Home, restart: Restart) -> None:
    """Three stages, each takes and gives in one transaction; the broker ends in between, as often as there are rounds."""
    stages = ["one", "two", "three", "end"]
    total = 40
    for name in stages:
        home.broker.queue(name, max_attempts=None)
    home.broker.queue("one").publish_many([b"%d" % n for n in range(total)])

    def step(broker: Broker, source: str, target: str, count: int) -> None:
        for delivery in broker.queue(source).receive_many(count):
            with broker.transaction() as tx:
                tx.ack(delivery)
                tx.publish(target, delivery.payload)

    for _ in range(6):
        broker = home.broker
        for source, target in pairwise(stages):
            step(broker, source, target, 7)
        for name in broker.list_queues():
            broker.queue(name).receive_many(2)  # that nobody settles
        restart()
    broker = home.broker
    for source, target in pairwise(stages):
        step(broker, source, target, total)
    found = drain(broker.queue("end"))
    assert sorted(found, key=int) == [b"%d" % n for n in range(total)]
    assert all(drain(broker.queue(name)) == [] for name in stages[:-1])


def test_consumers_see_a_part_of_a_transaction(home: Home) -> None:
    """Whoever has got its last message finds all the others."""
    broker = home.broker
    names = [f"q{n}" for n in range(4)]
    queues = [broker.queue(name) for name in names]

    def transact() -> None:
        for n in range(50):
            with broker.transaction() as tx:
                for name in names:
                    tx.publish(name, b"%d" % n)

    def watch(order: Sequence[Queue]) -> None:
        first, *others = order
        for n in range(50):
            delivery = first.receive(None)
            assert delivery is not None
            assert delivery.payload == b"%d" % n
            for other in others:
                found = other.receive()
                assert found is not None, "a part came before the rest"
                assert found.payload == b"%d" % n
                found.ack()
            delivery.ack()

    watching = start(watch, queues)
    all_of([start(transact)])
    all_of([watching])


@pytest.mark.parametrize("field", ["name", "payload", "headers", "key", "priority", "delay", "deliver_at", "ttl", "dedup_id"])  # fmt: skip
def test_an_odd_argument_to_a_transaction_is_an_error_of_others_or_breaks_the_broker(
    home: Home, queue: Queue, field: str
) -> None:
    for name, odd in oddities().items():
        given: dict[str, Any] = {"name": "orders", "payload": b"x", field: odd}
        before = queue.depth()
        try:
            with home.broker.transaction() as tx:
                tx.publish("orders", b"a")
                tx.publish(**given)
        except PenstockError:
            assert queue.depth() == before
        except BaseException as error:
            pytest.fail(f"{field}, given {name}: {type(error).__name__}", pytrace=False)
        else:
            assert queue.depth() > before


@pytest.mark.parametrize("call", ["ack", "nack", "reject", "delay", "error"])
def test_an_odd_settle_in_a_transaction_is_an_error_of_others_or_breaks_the_broker(
    home: Home, call: str
) -> None:
    queue = home.broker.queue("orders", max_attempts=None, backoff=None)
    for name, odd in oddities().items():
        delivery = held(queue)
        tx = home.broker.transaction()
        tx.publish("other", b"a")
        calls: dict[str, Callable[[Any], object]] = {
            "ack": tx.ack,
            "nack": tx.nack,
            "reject": tx.reject,
            "delay": lambda odd, tx=tx, delivery=delivery: tx.nack(delivery, delay=odd),  # type: ignore[misc]
            "error": lambda odd, tx=tx, delivery=delivery: tx.reject(delivery, error=odd),  # type: ignore[misc]
        }
        try:
            calls[call](odd)
            tx.commit()
        except PenstockError:
            delivery.ack()
        except BaseException as error:
            pytest.fail(f"{call}, given {name}: {type(error).__name__}", pytrace=False)
        queue.depth()
    assert all(one == b"a" for one in drain(home.broker.queue("other")))


# --- what could be refused half way ---


def test_an_expired_message_that_is_nacked_leaves_a_transaction_half_done(home: Home) -> None:
    grave = home.broker.queue("grave", max_depth=1)
    queue = home.broker.queue("orders", dead_letter="grave", on_expire="dead-letter", visibility_timeout=500)
    queue.publish(b"a", ttl=10)
    delivery = take(queue)
    home.advance(11)
    with pytest.raises(QueueFull), home.broker.transaction() as tx:
        tx.nack(delivery)
        tx.publish("grave", b"b")
    assert (queue.depth(), grave.depth()) == (1, 0)
    with home.broker.transaction() as tx:
        tx.nack(delivery)
        tx.publish("other", b"b")
    assert (queue.depth(), grave.depth(), home.broker.get_queue("other").depth()) == (0, 1, 1)


def test_dropping_for_a_transaction_looks_at_another_group_than_the_plan(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=3, overflow="drop-head")
    first, second = queue.group("first"), queue.group("second")
    queue.publish_many([b"0", b"1", b"2"])
    held = take(first)
    second.receive_many(3)
    try:
        with home.broker.transaction() as tx:
            tx.ack(held)
            tx.publish("orders", b"3")
    except QueueFull:
        assert (queue.depth(), first.lag(), second.lag()) == (3, 3, 3)
    queue.stats()  # the broker goes on
