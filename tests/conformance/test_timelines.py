"""What became of a message: `broker.trace` tells each step of it, of its copies, and of nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import BrokerClosed, InvalidArgument, Message
from penstock.broker.trace import ROWS_MAX
from penstock.clock import to_datetime
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import take
from tests.conformance.surface import Broker


@pytest.fixture
def broker(home: Home) -> Broker:
    """A broker that keeps timelines: on a disk they all do, in memory those that were asked to."""
    return home.broker if home.durable else home.open(None, trace=True)


def told(broker: Broker, id: int) -> list[str]:
    return [step.what for step in broker.trace(id)]


def facts(step: Any) -> dict[str, Any]:
    """What a step says beside what happened, when and to whom; what it leaves out is left out."""
    names = ("queue", "group", "consumer", "attempt", "error", "due")
    found = {name: getattr(step, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


# --- what happens to a message ---


def test_a_plain_life_leaves_something_out(home: Home, broker: Broker) -> None:
    queue = broker.queue("orders")
    began = to_datetime(home.clock.now_us())
    sent = queue.publish(b"a")
    home.clock.advance(1)
    with queue.subscribe("worker-1") as consumer:
        delivery = take(consumer)
        home.clock.advance(1)
        delivery.ack()
    published, leased, acked = broker.trace(sent)
    assert [one.what for one in (published, leased, acked)] == ["published", "leased", "acked"]
    assert [one.at - began for one in (published, leased, acked)] == [timedelta(seconds=n) for n in range(3)]
    assert {one.id for one in (published, leased, acked)} == {sent}
    assert facts(published) == {"queue": "orders"}
    assert facts(leased) == {"queue": "orders", "group": "default", "consumer": "worker-1", "attempt": 1}
    assert (acked.group, acked.attempt) == ("default", 1)


@pytest.mark.parametrize("how", ["publish", "publish_many", "headers", "delayed", "route", "transaction"])
def test_a_way_of_publishing_leaves_no_trace(home: Home, broker: Broker, how: str) -> None:
    queue = broker.queue("orders")
    if how == "publish":
        sent = queue.publish(b"a")
    elif how == "publish_many":
        sent = queue.publish_many([b"0", b"a", b"2"])[1]
    elif how == "headers":
        sent = queue.publish(b"a", headers={"a": "b"}, key="k", priority=3, ttl=60)
    elif how == "delayed":
        sent = queue.publish(b"a", delay=60)
    elif how == "route":
        sent = broker.publish("#", b"a")["orders"]
    else:
        with broker.transaction() as tx:
            tx.publish("orders", b"a")
        sent = tx.ids[0]
    assert told(broker, sent) == ["published"]
    home.clock.advance(60 if how == "delayed" else 1)
    found = queue.receive_many(9)
    queue.ack_many(found)
    assert told(broker, sent) == ["published", "leased", "acked"]


def test_a_failure_does_not_say_why(home: Home, broker: Broker) -> None:
    queue = broker.queue("orders", max_attempts=2)
    sent = queue.publish(b"a")
    with queue.subscribe("ann") as ann:
        take(ann).nack(delay=30, error="the first time")
    home.clock.advance(30)
    with queue.subscribe("bob") as bob:
        take(bob).nack(error=ValueError("the last time"))
    steps = broker.trace(sent)
    assert [one.what for one in steps] == [
        "published", "leased", "nacked", "leased", "dead-lettered", "published",
    ]  # fmt: skip
    first, last = steps[2], steps[4]
    assert (first.error, first.attempt, first.due) == (
        "the first time", 1, first.at + timedelta(seconds=30),
    )  # fmt: skip
    assert (steps[1].consumer, steps[3].consumer, steps[3].attempt) == ("ann", "bob", 2)
    assert last.error is not None
    assert "the last time" in last.error
    assert last.attempt == 2
    assert (steps[5].queue, steps[5].id != sent) == ("orders.dlq", True)


def test_a_rejection_is_a_retry(broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish(b"a")
    take(queue).reject(error="no good")
    assert told(broker, sent) == ["published", "leased", "dead-lettered", "published"]
    assert broker.trace(sent)[2].error == "no good"


def test_a_redriven_message_is_lost_sight_of(broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish(b"a")
    other = queue.publish(b"b")
    take(queue).reject(error="no good")
    take(queue).reject(error="nor this")
    letter = queue.dead_letters().peek()[0].id
    assert letter is not None
    assert queue.redrive() == 2
    again = take(queue)
    again.ack()
    steps = broker.trace(sent)
    assert [(one.what, one.queue) for one in steps] == [
        ("published", "orders"), ("leased", "orders"), ("dead-lettered", "orders"), ("published", "orders.dlq"),
        ("redriven", "orders.dlq"), ("published", "orders"), ("leased", "orders"), ("acked", "orders"),
    ]  # fmt: skip
    assert [one.id for one in steps] == [sent] * 3 + [letter] * 2 + [again.id] * 3
    assert [one.what for one in broker.trace(letter)] == [
        "published",
        "redriven",
        "published",
        "leased",
        "acked",
    ]
    assert told(broker, again.id) == ["published", "leased", "acked"]
    assert told(broker, other)[-1] == "published", "it waits, and is not mixed up with the first"


def test_a_message_redriven_elsewhere_is_lost_sight_of(broker: Broker) -> None:
    queue, other = broker.queue("orders"), broker.queue("other")
    sent = queue.publish(b"a")
    take(queue).reject()
    assert queue.redrive(to="other") == 1
    take(other).ack()
    assert [one.queue for one in broker.trace(sent)][-3:] == ["other"] * 3
    assert told(broker, sent)[-4:] == ["redriven", "published", "leased", "acked"]


def test_an_expired_message_ends_without_a_word(home: Home, broker: Broker) -> None:
    queue, grave = broker.queue("orders", ttl=60), broker.queue("kept", ttl=60, on_expire="dead-letter")
    dropped, buried = queue.publish(b"a"), grave.publish(b"a")
    home.clock.advance(60)
    assert (queue.depth(), grave.depth()) == (0, 0)
    assert told(broker, dropped) == ["published", "expired"]
    assert told(broker, buried) == ["published", "dead-lettered", "published"]
    assert broker.trace(buried)[1].error == "expired"


def test_a_purged_message_ends_without_a_word(broker: Broker) -> None:
    queue = broker.queue("orders")
    held, waiting = queue.publish(b"held"), queue.publish(b"a")
    take(queue)
    queue.purge()
    assert (told(broker, held), told(broker, waiting)) == (["published", "leased"], ["published", "purged"])


def test_a_cancelled_message_ends_without_a_word(home: Home, broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish(b"a", delay=60)
    queue.cancel(sent)
    assert told(broker, sent) == ["published", "cancelled"]
    home.clock.advance(60)
    assert queue.receive() is None
    assert told(broker, sent) == ["published", "cancelled"]


def test_a_dropped_message_ends_without_a_word(broker: Broker) -> None:
    queue = broker.queue("small", max_depth=1, overflow="drop-head")
    first, second = queue.publish(b"a"), queue.publish(b"b")
    assert (told(broker, first), told(broker, second)) == (["published", "dropped"], ["published"])


def test_what_was_given_back_looks_kept(broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish(b"a")
    take(queue).requeue()
    with queue.subscribe("ann") as ann:
        take(ann)
    assert told(broker, sent) == ["published", "leased", "returned", "leased", "returned"]
    assert [one.attempt for one in broker.trace(sent)] == [None, 1, 1, 2, 2]


def test_a_lease_that_ended_by_itself_is_not_seen_by_the_next(home: Home, broker: Broker) -> None:
    queue = broker.queue("orders", visibility_timeout=30)
    sent = queue.publish(b"a")
    take(queue)
    home.clock.advance(31)
    take(queue)
    assert [(one.what, one.attempt) for one in broker.trace(sent)][1:] == [("leased", 1), ("leased", 2)]


def test_what_is_settled_when_it_is_handed_out_looks_unread(broker: Broker) -> None:
    queue = broker.queue("orders", delivery="at-most-once")
    sent = queue.publish(b"a")
    with queue.subscribe("ann") as ann:
        take(ann)
    assert told(broker, sent)[-1] == "acked"
    assert broker.trace(sent)[-1].consumer == "ann"


def test_a_topic_forgets_which_subscription_it_was(broker: Broker) -> None:
    topic = broker.topic("events")
    names = ("first", "second")
    consumers = [topic.subscribe(name, consumer=f"of-{name}") for name in names]
    other = topic.subscribe("choosy", filter="key = 'k'")
    sent = topic.publish(b"a")
    take(consumers[0]).ack()
    take(consumers[1]).reject(error="no good")
    assert other.receive() is None
    steps = broker.trace(sent)
    assert [(one.what, one.group, one.consumer) for one in steps if one.what in {"leased", "acked"}] == [
        ("leased", "first", "of-first"), ("acked", "first", None), ("leased", "second", "of-second"),
    ]  # fmt: skip
    assert [one.group for one in steps if one.what == "dead-lettered"] == ["second"]
    assert [one.group for one in steps if one.what == "filtered"] == ["choosy"]
    assert [one.queue for one in steps if one.what == "published"] == ["events", "events.dlq"]
    assert topic.redrive() == 1
    take(consumers[1]).ack()
    assert told(broker, sent)[-4:] == ["redriven", "published", "leased", "acked"]


def test_a_transaction_is_seen_in_part(broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish_many([b"a", b"b", b"c"])
    first, second, third = queue.receive_many(3)
    with broker.transaction() as tx:
        tx.ack(first)
        tx.nack(second, delay=60, error="later")
        tx.reject(third, error="never")
        tx.publish("invoices", b"x", headers={"a": "b"})
    assert [told(broker, one)[2:] for one in sent] == [["acked"], ["nacked"], ["dead-lettered", "published"]]
    assert broker.trace(sent[1])[2].error == "later"
    assert [one.queue for one in broker.trace(tx.ids[0])] == ["invoices"]


def test_a_transaction_that_was_rolled_back_left_a_trace(broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish(b"a")
    delivery = take(queue)
    tx = broker.transaction()
    tx.ack(delivery)
    tx.rollback()
    assert told(broker, sent) == ["published", "leased"]


def test_each_copy_of_a_routed_message_has_the_others_timeline(broker: Broker) -> None:
    queue, topic = broker.queue("orders.eu"), broker.topic("orders.us")
    topic.subscribe("s")
    sent = broker.publish("orders.*", b"a")
    take(queue).ack()
    assert told(broker, sent["orders.eu"]) == ["published", "leased", "acked"]
    assert told(broker, sent["orders.us"]) == ["published"]


def test_one_message_of_a_batch_has_the_timeline_of_another(broker: Broker) -> None:
    queue = broker.queue("orders", backoff=None)
    sent = queue.publish_many([b"%d" % n for n in range(20)])
    found = queue.receive_many(20)
    queue.ack_many(found[::2])
    for one in found[1::2]:
        one.nack(error=f"of {one.payload.decode()}")
    for n, one_id in enumerate(sent):
        steps = broker.trace(one_id)
        assert [one.what for one in steps] == ["published", "leased", "nacked" if n % 2 else "acked"]
        assert steps[2].error == (f"of {n}" if n % 2 else None)


def test_a_recurring_message_leaves_no_trace(home: Home, broker: Broker) -> None:
    queue = broker.queue("orders")
    queue.schedule("tick", "* * * * *", b"x")
    home.advance(60)
    assert queue.depth() == 1
    sent = queue.peek()[0].id
    assert sent is not None
    take(queue).ack()
    assert told(broker, sent) == ["published", "leased", "acked"]


def test_reading_is_seen(broker: Broker) -> None:
    queue = broker.queue("orders", retain_seconds=3600)
    sent = queue.publish(b"a")
    reader = queue.reader("r", hold=True)
    reader.read_many(9)
    reader.commit()
    reader.reset()
    assert told(broker, sent) == ["published"]


def test_a_group_that_goes_back_is_not_seen_to_read_again(broker: Broker) -> None:
    queue = broker.queue("orders", retain_seconds=3600)
    group = queue.group("g")
    sent = queue.publish(b"a")
    take(group).ack()
    group.seek(offset=0)
    take(group).ack()
    assert told(broker, sent) == ["published", "leased", "acked", "leased", "acked"]


# --- asking ---


def test_memory_keeps_timelines_unasked_or_does_not_say_that_it_does_not(home: Home) -> None:
    broker = home.open(None)
    sent = broker.queue("orders").publish(b"a")
    with pytest.raises(InvalidArgument, match="open it with trace on"):
        broker.trace(sent)
    with pytest.raises(InvalidArgument, match="open it with trace on"):
        broker.namespace("other").trace(sent)


def test_a_disk_keeps_timelines_though_it_was_told_not_to(home: Home) -> None:
    broker = home.open(home.elsewhere(), trace=False)
    sent = broker.queue("orders").publish(b"a")
    with pytest.raises(InvalidArgument, match="open it with trace on"):
        broker.trace(sent)


@pytest.mark.parametrize("wrong", [1, "yes", 0, b""], ids=repr)
def test_a_setting_that_is_no_flag_is_taken(home: Home, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="trace is .*; give True or False"):
        home.open(home.elsewhere(), trace=wrong)


@pytest.mark.parametrize("unknown", [0, -1, 1, 2**63, 10**30])
def test_an_unknown_id_has_a_timeline(broker: Broker, unknown: int) -> None:
    broker.queue("orders").publish(b"a")
    assert list(broker.trace(unknown)) == []


@pytest.mark.parametrize("wrong", ["1", None, 1.0, True, b"1"], ids=repr)
def test_what_is_no_id_is_taken_for_an_unknown_one(broker: Broker, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="give the int that publish returned"):
        broker.trace(wrong)


def test_a_closed_broker_tells(home: Home) -> None:
    broker = home.open(home.elsewhere(), trace=True)
    sent = broker.queue("orders").publish(b"a")
    broker.close()
    with pytest.raises(BrokerClosed):
        broker.trace(sent)


def test_a_repeated_publish_is_told_twice(broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish(b"a", dedup_id="d")
    assert queue.publish(b"a", dedup_id="d") == sent
    assert told(broker, sent) == ["published"]


def test_a_deleted_queue_takes_its_timelines_with_it(broker: Broker) -> None:
    queue = broker.queue("orders")
    sent = queue.publish(b"a")
    take(queue).ack()
    broker.delete_queue("orders")
    again = broker.queue("orders").publish(b"b")
    assert [(one.what, one.queue) for one in broker.trace(sent)] == [
        ("published", "orders"), ("leased", "orders"), ("acked", "orders"),
    ]  # fmt: skip
    assert told(broker, again) == ["published"]


def test_a_header_of_the_users_own_makes_one_message_anothers_copy_in_another_namespace(
    broker: Broker,
) -> None:
    sent = broker.queue("orders").publish(b"a")
    copy = broker.namespace("other").queue("orders").publish(b"b", headers={"x-origin-id": str(sent)})
    assert told(broker, sent) == ["published"]
    assert told(broker.namespace("other"), copy) == ["published"]


# --- bounds ---


def test_timelines_grow_without_a_bound(home: Home) -> None:
    broker = home.open(None, trace=True)
    queue = broker.queue("orders")
    first = queue.publish(b"first")
    batch = [b""] * 10_000
    for _ in range(ROWS_MAX // len(batch) + 1):
        queue.publish_many(batch)
    last = queue.publish(b"last")
    assert (told(broker, first), told(broker, last)) == ([], ["published"])


def test_timelines_grow_old_without_a_bound(home: Home, broker: Broker) -> None:
    queue = broker.queue("orders")
    first = queue.publish(b"first")
    home.clock.advance(23 * 3600)
    queue.publish(b"second")
    assert told(broker, first) == ["published"]
    home.clock.advance(3 * 3600)
    queue.publish(b"third")
    assert told(broker, first) == []


# --- afterwards ---


def test_a_crash_forgets_what_the_journal_still_has(home: Home) -> None:
    if not home.durable:
        pytest.skip("what is kept in memory is gone after a restart")
    queue = home.broker.queue("orders")
    sent = queue.publish(b"a", headers={"a": "b"})
    other = queue.publish_many([Message(b"b"), Message(b"c", delay=60)])
    with queue.subscribe("ann") as ann:
        take(ann).reject(error="no good")
    queue.cancel(other[1])
    before = [broker_steps(home.broker, one) for one in (sent, *other)]
    after = home.crash()
    assert [broker_steps(after, one) for one in (sent, *other)] == before


def broker_steps(broker: Broker, id: int) -> list[tuple[Any, ...]]:
    return [
        (one.what, one.at, one.queue, one.group, one.consumer, one.attempt, one.error, one.id)
        for one in broker.trace(id)
    ]


def test_what_happens_after_a_restart_is_not_told(home: Home, restart: Restart) -> None:
    home.broker.queue("orders").publish(b"before")
    broker = restart()
    queue = broker.queue("orders")
    sent = queue.publish(b"a")
    for delivery in queue.receive_many(9):
        delivery.ack()
    assert told(broker, sent) == ["published", "leased", "acked"]


def test_a_restart_gives_an_old_timeline_to_a_new_message(home: Home, restart: Restart) -> None:
    old = home.broker.queue("orders").publish(b"a")
    take(home.broker.queue("orders")).ack()
    broker = restart()
    new = broker.queue("orders").publish(b"b")
    assert new != old
    assert told(broker, new) == ["published"]


# --- namespaces ---


def test_a_namespace_sees_the_timelines_of_another(broker: Broker) -> None:
    a, b = broker.namespace("a"), broker.namespace("b")
    sent = {one: one.queue("orders").publish(b"x") for one in (broker, a, b)}
    for one in sent:
        take(one.queue("orders")).reject(error="no good")
        assert one.queue("orders").redrive() == 1
    for one, known in sent.items():
        assert len(told(one, known)) == 6
        for other in sent.keys() - {one}:
            assert list(other.trace(known)) == []


def test_a_namespace_sees_the_timelines_of_anothers_deleted_queues(broker: Broker) -> None:
    a, b = broker.namespace("a"), broker.namespace("b")
    sent = a.queue("orders").publish(b"x")
    a.delete_queue("orders")
    b.queue("orders")
    assert told(a, sent) == ["published"]
    assert list(b.trace(sent)) == list(broker.trace(sent)) == []
