"""Topics: every subscription gets every message, and what becomes of it there concerns no other."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
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
    TopicNotFound,
    WrongKind,
)
from penstock.clock import to_datetime
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import drain, payloads, survives_a_restart, take
from tests.conformance.surface import Broker, Consumer, Delivery, Topic
from tests.conformance.waiters import in_line


@pytest.fixture
def topic(home: Home) -> Topic:
    return home.broker.topic("events")


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def payload_of(waiting: Future[Delivery | None]) -> bytes:
    delivery = waiting.result(PATIENCE_S)
    assert delivery is not None
    return delivery.payload


def groups(topic: Topic) -> list[str]:
    return sorted(topic.stats().groups)


def holding(topic: Topic) -> tuple[int, int, int, int, int]:
    """What is said of a topic as a whole."""
    found: Any = topic.stats()
    return found.depth, found.ready, found.leased, found.retrying, found.delayed


NOTHING = (0, 0, 0, 0, 0)


# --- create, get, delete, list ---


def test_a_topic_is_not_listed_or_listed_as_a_queue(home: Home) -> None:
    for name in ("b", "a", "c"):
        home.broker.create_topic(name)
    home.broker.queue("orders")
    assert list(home.broker.list_topics()) == ["a", "b", "c"]
    assert list(home.broker.list_queues()) == ["orders"]


def test_a_topic_that_does_not_exist_is_found_or_deleted(home: Home) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        home.broker.get_topic("nowhere")
    with pytest.raises(TopicNotFound, match="nowhere"):
        home.broker.delete_topic("nowhere")
    assert list(home.broker.list_topics()) == []


def test_a_topic_is_created_twice(home: Home, topic: Topic) -> None:
    with pytest.raises(PolicyConflict):
        home.broker.create_topic("events")
    assert home.broker.get_topic("events").name == home.broker.topic("events").name == "events"


def test_a_deleted_topic_is_still_there(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("audit")
    topic.publish(b"a")
    held = take(consumer)
    topic.publish(b"b")
    home.broker.delete_topic("events")
    assert list(home.broker.list_topics()) == []
    for call in (
        lambda: topic.publish(b"c"),
        topic.stats,
        lambda: topic.subscribe("other"),
        lambda: topic.subscription("audit"),
        lambda: topic.unsubscribe("audit"),
        topic.subscriber_count,
        topic.purge,
        topic.peek,
        consumer.receive,
    ):
        with pytest.raises(TopicNotFound, match="was deleted"):
            call()
    with pytest.raises(PenstockError):
        held.ack()
    consumer.close()


def test_a_topic_of_a_deleted_ones_name_has_its_subscriptions_or_messages(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("audit")
    topic.publish(b"a")
    home.broker.delete_topic("events")
    again = home.broker.create_topic("events")
    assert again.subscriber_count() == 0
    assert holding(again) == NOTHING
    assert drain(again.subscribe("audit", start="earliest")) == []
    consumer.close()
    assert again.subscriber_count() == 1


@pytest.mark.parametrize("call", ["queue", "create_queue", "get_queue", "delete_queue"])
def test_a_topic_is_taken_for_a_queue(home: Home, topic: Topic, call: str) -> None:
    with pytest.raises(WrongKind, match="is a topic"):
        getattr(home.broker, call)("events")
    assert home.broker.get_topic("events").publish(b"a")


@pytest.mark.parametrize("call", ["topic", "create_topic", "get_topic", "delete_topic"])
def test_a_queue_is_taken_for_a_topic(home: Home, call: str) -> None:
    home.broker.queue("orders").publish(b"a")
    with pytest.raises(WrongKind, match="is a queue"):
        getattr(home.broker, call)("orders")
    assert drain(home.broker.get_queue("orders")) == [b"a"]


def test_a_name_is_not_free_for_the_other_kind_once_it_was_deleted(home: Home, topic: Topic) -> None:
    home.broker.delete_topic("events")
    home.broker.create_queue("events").publish(b"a")
    with pytest.raises(TopicNotFound):
        topic.publish(b"b")
    home.broker.delete_queue("events")
    assert home.broker.create_topic("events").subscriber_count() == 0


def test_the_dead_letters_name_is_given_to_a_topic(home: Home, topic: Topic) -> None:
    with pytest.raises(InvalidName, match="reserved"):
        home.broker.topic("events.dlq")
    topic.dead_letters()
    with pytest.raises(WrongKind):
        home.broker.get_topic("events.dlq")
    assert home.broker.get_queue("events.dlq").depth() == 0
    assert list(home.broker.list_topics()) == ["events"]


def test_a_log_made_on_first_use_is_a_topic(home: Home) -> None:
    with home.broker.transaction() as tx:
        tx.publish("new", b"a")
    with pytest.raises(WrongKind):
        home.broker.topic("new")
    assert drain(home.broker.get_queue("new")) == [b"a"]


def test_topics_and_their_kind_are_forgotten(home: Home, restart: Restart) -> None:
    home.broker.topic("events", max_attempts=7)
    home.broker.topic("gone")
    home.broker.delete_topic("gone")
    home.broker.queue("orders")
    broker = restart()
    assert list(broker.list_topics()) == ["events"]
    assert broker.get_topic("events").policy.max_attempts == 7
    with pytest.raises(WrongKind):
        broker.queue("events")
    with pytest.raises(WrongKind):
        broker.topic("orders")


def test_the_broker_counts_topics_as_queues(home: Home) -> None:
    for name in ("a", "b", "c"):
        home.broker.topic(name)
    home.broker.queue("orders")
    found: Any = home.broker.stats()
    assert (found.queues, found.topics) == (1, 3)


# --- policy ---


def test_a_topics_policy_is_not_compared_or_altered(home: Home) -> None:
    topic = home.broker.topic("events", max_attempts=5, ttl=60)
    home.broker.topic("events", ttl=timedelta(minutes=1))
    with pytest.raises(PolicyConflict, match="max_attempts"):
        home.broker.topic("events", max_attempts=4)
    topic.alter(max_attempts=4)
    assert home.broker.topic("events", max_attempts=4).policy.ttl == 60


def test_an_altered_policy_does_not_hold_for_subscriptions_that_exist(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("audit")
    topic.publish(b"a")
    topic.alter(max_attempts=1)
    take(consumer).nack(error="no")
    assert drain(topic.dead_letters()) == [b"a"]


def test_at_most_once_is_forgotten_in_a_subscription(home: Home, restart: Restart) -> None:
    topic = home.broker.topic("events", delivery="at-most-once")
    one, _two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many([b"a", b"b"])
    take(one)
    topic = restart().topic("events")
    assert drain(topic.subscribe("one")) == [b"b"]
    assert drain(topic.subscribe("two")) == [b"a", b"b"]


def test_an_unused_topic_is_kept_or_one_in_use_is_not(home: Home) -> None:
    used = home.broker.topic("used", expires=60)
    consumer = used.subscribe("audit")
    home.broker.topic("unused", expires=60).subscribe("audit").close()
    home.advance(61)
    assert list(home.broker.list_topics()) == ["used"]
    consumer.close()
    home.advance(61)
    assert list(home.broker.list_topics()) == []


# --- who gets what ---


def test_a_subscription_misses_a_message_or_takes_it_from_another(topic: Topic) -> None:
    consumers = [topic.subscribe(f"s{n}") for n in range(5)]
    topic.publish_many(numbered(10))
    for n in range(10, 15):
        topic.publish(b"%d" % n)
    for consumer in consumers:
        assert drain(consumer) == numbered(15)
    assert holding(topic) == NOTHING


def test_a_subscription_gets_what_was_published_before_it_began(topic: Topic) -> None:
    early = topic.subscribe("early")
    topic.publish(b"a")
    late = topic.subscribe("late")
    topic.publish(b"b")
    assert drain(late) == [b"b"]
    assert drain(early) == [b"a", b"b"]


def test_subscribing_again_begins_anew(topic: Topic) -> None:
    topic.subscribe("audit").close()
    topic.publish_many([b"a", b"b"])
    with topic.subscribe("audit") as consumer:
        take(consumer).ack()
    with topic.subscribe("audit", start="earliest") as consumer:
        assert drain(consumer) == [b"b"]
    topic.publish(b"c")
    with topic.subscribe("audit", start="latest") as consumer:
        assert drain(consumer) == [b"c"]


def test_messages_that_nobody_listens_to_are_kept(topic: Topic) -> None:
    topic.publish_many(numbered(10))
    assert holding(topic) == NOTHING
    assert topic.peek(10) == []
    assert drain(topic.subscribe("audit", start="earliest")) == []
    assert topic.publish(b"a")


def test_ids_and_offsets_differ_between_subscriptions(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    ids = topic.publish_many([b"a", Message(b"b", headers={"x": "y"}, key="k", priority=100)])
    for consumer in (one, two):
        found = consumer.receive_many(2)
        assert [delivery.id for delivery in found] == ids
        assert [delivery.offset for delivery in found] == [0, 1]
        assert [delivery.attempt for delivery in found] == [1, 1]
        assert (found[1].headers, found[1].key) == ({"x": "y"}, "k")


def test_earliest_is_not_what_others_have_still_before_them(topic: Topic) -> None:
    first = topic.subscribe("first")
    topic.publish_many(numbered(6))
    first.ack_many(first.receive_many(3))
    assert drain(topic.subscribe("second", start="earliest")) == [b"3", b"4", b"5"]


def test_earliest_is_not_what_is_retained(home: Home) -> None:
    topic = home.broker.topic("events", retain_seconds=60)
    topic.publish_many([b"a", b"b"])
    home.advance(30)
    topic.publish(b"c")
    assert drain(topic.subscribe("one", start="earliest")) == [b"a", b"b", b"c"]
    home.advance(31)
    assert drain(topic.subscribe("two", start="earliest")) == [b"c"]


def test_a_subscription_does_not_start_at_its_offset(topic: Topic) -> None:
    topic.subscribe("keeper")
    topic.publish_many(numbered(10))
    for offset in (0, 4, 9):
        assert drain(topic.subscribe(f"from-{offset}", start=offset)) == numbered(10)[offset:]
    at_the_end = topic.subscribe("from-10", start=10)
    assert drain(at_the_end) == []
    topic.publish(b"10")
    assert drain(at_the_end) == [b"10"]


def test_a_start_that_is_not_stored_is_taken(topic: Topic) -> None:
    keeper = topic.subscribe("keeper")
    topic.publish_many(numbered(4))
    take(keeper).ack()
    for start_at in (0, 5):
        with pytest.raises(InvalidArgument, match="not stored"):
            topic.subscribe("audit", start=start_at)
    with pytest.raises(InvalidArgument):
        topic.subscribe("audit", start=2**70)
    assert groups(topic) == ["keeper"]


def test_a_subscription_does_not_start_at_its_time(home: Home, topic: Topic) -> None:
    topic.subscribe("keeper")
    times = []
    for payload in numbered(3):
        times.append(to_datetime(home.clock.now_us()))
        topic.publish(payload)
        home.advance(10)
    assert drain(topic.subscribe("at", start=times[1])) == [b"1", b"2"]
    assert drain(topic.subscribe("behind", start=times[1] + timedelta(seconds=1))) == [b"2"]
    assert drain(topic.subscribe("before", start=times[0] - timedelta(days=1))) == numbered(3)
    future = topic.subscribe("future", start=times[2] + timedelta(days=1))
    assert drain(future) == []
    topic.publish(b"3")
    assert drain(future) == [b"3"]


def test_where_a_subscription_started_is_forgotten(home: Home, topic: Topic, restart: Restart) -> None:
    topic.subscribe("keeper")
    topic.publish_many(numbered(10))
    topic.subscribe("latest")
    topic.subscribe("fourth", start=4)
    topic.subscribe("earliest", start="earliest")
    topic.publish(b"10")
    topic = restart().topic("events")
    assert drain(topic.subscribe("latest")) == [b"10"]
    assert drain(topic.subscribe("fourth")) == numbered(11)[4:]
    assert drain(topic.subscribe("earliest")) == numbered(11)


# --- a cursor, leases, retries of its own ---


def test_an_ack_in_one_subscription_settles_for_another(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many([b"a", b"b"])
    held = take(two)
    assert drain(one) == [b"a", b"b"]
    assert topic.subscription("two").lag() == 2
    held.ack()
    assert drain(two) == [b"b"]
    assert (topic.subscription("one").lag(), topic.subscription("two").lag()) == (0, 0)


def test_a_lease_in_one_subscription_ends_in_another(home: Home) -> None:
    topic = home.broker.topic("events", visibility_timeout=30)
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish(b"a")
    first = take(one)
    home.advance(20)
    second = take(two)
    home.advance(11)
    with pytest.raises(LeaseLost):
        first.ack()
    second.ack()
    again = take(one)
    assert (again.attempt, two.receive()) == (2, None)
    again.ack()


def test_retries_in_one_subscription_are_seen_in_another(home: Home) -> None:
    topic = home.broker.topic("events", backoff=None, max_attempts=None)
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish(b"a")
    for attempt in (1, 2, 3):
        delivery = take(one)
        assert delivery.attempt == attempt
        delivery.nack()
    found = take(two)
    assert (found.attempt, found.redelivered) == (1, False)
    found.nack(delay=60)
    assert take(one).attempt == 4
    assert two.receive() is None
    home.advance(60)
    assert take(two).attempt == 2


def test_a_delivery_of_one_subscription_settles_in_another(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many(numbered(4))
    ones, twos = one.receive_many(4), two.receive_many(4)
    # Whoever is asked, a delivery belongs to the subscription it came from.
    one.ack_many([*twos[:2], ones[0]])
    assert (topic.subscription("one").lag(), topic.subscription("two").lag()) == (3, 2)
    for delivery in (*twos[:2], ones[0]):
        with pytest.raises(LeaseLost):
            delivery.ack()


def test_acking_deliveries_of_two_subscriptions_is_half_done(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many([b"a", b"b"])
    ones, twos = one.receive_many(2), two.receive_many(2)
    twos[1].ack()
    with pytest.raises(LeaseLost):
        one.ack_many([*ones, *twos])
    assert (topic.subscription("one").lag(), topic.subscription("two").lag()) == (2, 1)


def test_what_is_settled_or_retrying_in_a_subscription_is_forgotten(home: Home, restart: Restart) -> None:
    topic = home.broker.topic("events", max_attempts=None, visibility_timeout=600)
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many(numbered(4))
    first, second, _third, _ = one.receive_many(4)
    first.ack()
    second.nack(delay=60)
    take(two).ack()
    topic = restart().topic("events")
    one, two = topic.subscribe("one"), topic.subscribe("two")
    assert [(d.payload, d.attempt) for d in one.receive_many(9)] == [(b"2", 2), (b"3", 2)]
    assert [(d.payload, d.attempt) for d in two.receive_many(9)] == [(b"1", 1), (b"2", 1), (b"3", 1)]
    home.advance(60)
    assert [(d.payload, d.attempt) for d in one.receive_many(9)] == [(b"1", 2)]
    assert two.receive() is None


# --- dead letters ---


def kill(consumer: Consumer, error: str = "no") -> None:
    take(consumer).reject(error=error)


def test_a_failure_in_one_subscription_is_dead_in_another(home: Home, topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    published = topic.publish(b"a", headers={"x": "y"}, key="k")
    kill(one, "broken")
    assert drain(two) == [b"a"]
    assert topic.stats().dead == 1
    (dead,) = topic.dead_letters().peek(5)
    assert (dead.payload, dead.key) == (b"a", "k")
    wanted = {
        "x": "y",
        "x-origin": "events",
        "x-origin-group": "one",
        "x-origin-id": str(published),
        "x-reason": "rejected",
        "x-error": "broken",
        "x-attempts": "1",
    }
    assert {name: dead.headers[name] for name in wanted} == wanted


def test_a_message_that_fails_everywhere_is_dead_once(home: Home) -> None:
    topic = home.broker.topic("events", max_attempts=1)
    consumers = [topic.subscribe(f"s{n}") for n in range(3)]
    topic.publish(b"a")
    for consumer in consumers:
        take(consumer).nack()
    dead = topic.dead_letters().peek(9)
    assert sorted(one.headers["x-origin-group"] for one in dead) == ["s0", "s1", "s2"]
    assert holding(topic) == NOTHING


def test_a_redrive_reaches_another_subscription_than_the_one_that_failed(topic: Topic) -> None:
    one, two, three = (topic.subscribe(name) for name in ("one", "two", "three"))
    topic.publish_many([b"a", b"b"])
    kill(one)
    kill(two)
    assert (drain(one), drain(two), drain(three)) == ([b"b"], [b"b"], [b"a", b"b"])
    assert topic.redrive(where="\"x-origin-group\" = 'two'") == 1
    assert (drain(one), drain(three)) == ([], [])
    back = take(two)
    assert (back.payload, back.attempt, "x-origin-id" in back.headers) == (b"a", 1, True)
    back.ack()
    assert topic.dead_letters().redrive() == 1
    assert (drain(one), drain(two), drain(three)) == ([b"a"], [], [])
    assert topic.stats().dead == 0
    assert holding(topic) == NOTHING


def test_a_redriven_message_is_there_for_a_newcomer(home: Home) -> None:
    topic = home.broker.topic("events", retain_seconds=600)
    one = topic.subscribe("one")
    topic.publish(b"a")
    kill(one)
    assert topic.redrive() == 1
    # The first copy is retained; the redriven one was meant for one subscription.
    assert drain(topic.subscribe("late", start="earliest")) == [b"a"]
    assert drain(one) == [b"a"]


def test_a_redrive_after_a_restart_reaches_everybody(home: Home, topic: Topic, restart: Restart) -> None:
    one, _ = topic.subscribe("one"), topic.subscribe("two")
    topic.publish(b"a")
    kill(one)
    topic = restart().topic("events")
    assert topic.redrive() == 1
    topic = restart().topic("events")
    one, two = topic.subscribe("one"), topic.subscribe("two")
    assert (drain(one), drain(two)) == ([b"a"], [b"a"])
    topic = restart().topic("events")
    assert holding(topic) == NOTHING
    assert topic.stats().dead == 0


def test_what_failed_in_an_ended_subscription_goes_to_others(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many([b"a", b"b"])
    kill(one)
    kill(two)
    topic.unsubscribe("one")
    assert topic.redrive() == 1
    assert sorted(drain(two)) == [b"a", b"b"]
    assert topic.stats().dead == 1
    # Under its old name it is found again.
    again = topic.subscribe("one")
    assert topic.redrive() == 1
    assert drain(again) == [b"a"]


def test_a_redrive_to_a_queue_does_not_go_there(home: Home, topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    queue = home.broker.queue("orders")
    topic.publish(b"a")
    kill(one)
    topic.unsubscribe("one")
    assert topic.redrive(to="orders") == 1
    assert drain(queue) == [b"a"]
    assert drain(two) == [b"a"]


def test_dead_letters_of_an_ephemeral_subscription_vanish_or_come_back_to_others(topic: Topic) -> None:
    other = topic.subscribe("other")
    with topic.subscribe(durable=False) as passing:
        topic.publish_many([b"a", b"b"])
        kill(passing)
        assert topic.redrive() == 1
        assert drain(passing) == [b"b", b"a"]
        topic.publish(b"c")
        kill(passing)
    assert topic.redrive() == 0
    assert topic.stats().dead == 1
    assert drain(other) == [b"a", b"b", b"c"]


def test_a_topic_that_names_its_dead_letters_has_others(home: Home) -> None:
    topic = home.broker.topic("events", dead_letter="graves")
    one = topic.subscribe("one")
    topic.publish(b"a")
    kill(one)
    assert topic.dead_letters().name == "graves"
    assert payloads(home.broker.get_queue("graves").peek(5)) == [b"a"]
    assert topic.redrive() == 1
    assert drain(one) == [b"a"]


def test_a_topic_swallows_the_dead_letters_of_a_queue(home: Home, topic: Topic) -> None:
    with pytest.raises(WrongKind):
        home.broker.queue("orders", dead_letter="events")
    with pytest.raises(WrongKind):
        home.broker.queue("others").alter(dead_letter="events")
    home.broker.queue("jobs", dead_letter="graves")
    with pytest.raises(WrongKind):
        home.broker.topic("graves")


def test_an_expired_message_is_dead_in_a_subscription_that_had_it(home: Home) -> None:
    topic = home.broker.topic("events", ttl=60, on_expire="dead-letter")
    done, _ = topic.subscribe("done"), topic.subscribe("slow")
    topic.publish(b"a")
    assert drain(done) == [b"a"]
    home.advance(61)
    (dead,) = topic.dead_letters().peek(5)
    assert (dead.headers["x-origin-group"], dead.headers["x-reason"]) == ("slow", "expired")
    assert holding(topic) == NOTHING


# --- unsubscribing, counting ---


def test_subscriptions_are_not_counted(topic: Topic) -> None:
    assert topic.subscriber_count() == 0
    first, second = topic.subscribe("one"), topic.subscribe("one")
    assert topic.subscriber_count() == 1
    passing = topic.subscribe(durable=False)
    topic.subscribe("two")
    assert topic.subscriber_count() == 3
    passing.close()
    first.close()
    second.close()
    assert topic.subscriber_count() == 2
    topic.unsubscribe("one")
    assert topic.subscriber_count() == 1


def test_an_ended_subscription_keeps_messages(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many([b"a", b"b"])
    assert drain(two) == [b"a", b"b"]
    held = take(one)
    assert holding(topic) == (2, 1, 1, 0, 0)
    topic.unsubscribe("one")
    assert holding(topic) == NOTHING
    with pytest.raises(LeaseLost):
        held.ack()
    with pytest.raises(TopicNotFound, match="no subscription 'one'"):
        one.receive()
    with pytest.raises(TopicNotFound, match="'one'"):
        topic.subscription("one")
    with pytest.raises(TopicNotFound, match="'one'"):
        topic.unsubscribe("one")
    one.close()
    assert topic.subscriber_count() == 1


def test_a_subscription_made_anew_has_what_the_old_one_had(topic: Topic) -> None:
    old = topic.subscribe("one")
    topic.publish_many([b"a", b"b"])
    held = take(old)
    topic.unsubscribe("one")
    new = topic.subscribe("one", start="earliest")
    topic.publish(b"c")
    with pytest.raises(LeaseLost):
        held.nack()
    assert drain(new) == [b"c"]
    old.close()
    topic.publish(b"d")
    assert drain(new) == [b"d"]


def test_an_unsubscription_is_forgotten(home: Home, topic: Topic, restart: Restart) -> None:
    topic.subscribe("one")
    topic.subscribe("two")
    topic.publish(b"a")
    topic.unsubscribe("one")
    topic.publish(b"b")
    topic = restart().topic("events")
    assert groups(topic) == ["two"]
    assert drain(topic.subscribe("two")) == [b"a", b"b"]
    assert holding(topic) == NOTHING
    assert drain(topic.subscribe("one", start="earliest")) == []


def test_the_stats_of_a_subscription_are_wrong(home: Home) -> None:
    topic = home.broker.topic("events", max_attempts=None)
    consumer = topic.subscribe("one", consumer="worker")
    topic.subscribe("two", filter="a = '1'")
    topic.publish_many(numbered(5))
    topic.publish(b"later", delay=60)
    first, second, _ = consumer.receive_many(3)
    first.ack()
    second.nack(delay=60)
    found = topic.stats().groups["one"]
    assert (found.lag, found.ready, found.leased, found.retrying) == (5, 2, 1, 1)
    assert (found.consumers, found.filter, found.durable, found.lag_is_exact) == (
        ["worker"],
        None,
        True,
        True,
    )
    other = topic.subscription("two").stats()
    assert (other.lag, other.ready, other.filter, other.lag_is_exact) == (6, 5, "a = '1'", False)
    assert topic.stats().delayed == 1
    assert holding(topic)[0] == 6


# --- durable ones lose nothing ---


def test_an_absent_durable_subscription_loses_messages(home: Home, topic: Topic, restart: Restart) -> None:
    topic.subscribe("audit").close()
    fast = topic.subscribe("fast")
    sent = numbered(200)
    topic.publish_many(sent[:100])
    assert drain(fast) == sent[:100]
    topic = restart().topic("events")
    topic.publish_many(sent[100:])
    assert drain(topic.subscribe("fast")) == sent[100:]
    topic = restart().topic("events")
    assert topic.subscription("audit").lag() == 200
    assert drain(topic.subscribe("audit")) == sent


def test_a_slow_durable_subscription_loses_messages(home: Home, topic: Topic, restart: Restart) -> None:
    sent: list[bytes] = []
    came: dict[str, list[bytes]] = {"slow": [], "fast": []}
    for name in came:
        topic.subscribe(name)
    for round_ in range(6):
        fresh = [b"%d-%d" % (round_, n) for n in range(10)]
        topic.publish_many(fresh)
        sent += fresh
        slow, fast = topic.subscribe("slow"), topic.subscribe("fast")
        came["fast"] += drain(fast)
        for delivery in slow.receive_many(3):
            came["slow"].append(delivery.payload)
            delivery.ack()
        topic = restart().topic("events")
    came["slow"] += drain(topic.subscribe("slow"))
    assert came == {"slow": sent, "fast": sent}
    assert holding(topic) == NOTHING


@survives_a_restart
def test_a_subscription_comes_back_with_less_after_crash_upon_crash(home: Home, topic: Topic) -> None:
    topic.subscribe("audit")
    for round_ in range(5):
        topic.publish(b"%d" % round_)
        delivery = take(topic.subscribe("audit"))
        assert delivery.payload == b"%d" % round_
        home.crash()
        topic = home.broker.topic("events")
        again = take(topic.subscribe("audit"))
        assert (again.payload, again.attempt) == (b"%d" % round_, 2)
        again.ack()
        topic = home.crash().topic("events")
    assert holding(topic) == NOTHING


@survives_a_restart
def test_a_fan_out_to_ten_stores_payloads_ten_times(home: Home, topic: Topic) -> None:
    assert home.path is not None
    for n in range(10):
        topic.subscribe(f"s{n}")
    before = size_of(home.path)
    topic.publish(b"x" * 500_000)
    assert size_of(home.path) - before < 2 * 500_000


def size_of(path: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in path.rglob("*") if one.is_file())


# --- ephemeral ones leave nothing ---


def test_an_ephemeral_subscription_leaves_something_behind(topic: Topic) -> None:
    with topic.subscribe(durable=False) as consumer:
        topic.publish_many(numbered(5))
        assert topic.subscriber_count() == 1
        take(consumer).ack()
        take(consumer).nack(delay=60)
        held = take(consumer)
        assert holding(topic) == (4, 2, 1, 1, 0)
    assert groups(topic) == []
    assert holding(topic) == NOTHING
    assert topic.peek(10) == []
    with pytest.raises(LeaseLost):
        held.ack()


def test_a_durable_subscription_has_no_name(topic: Topic) -> None:
    with pytest.raises(InvalidArgument, match="needs a name"):
        topic.subscribe()
    assert topic.subscriber_count() == 0


def test_ephemeral_subscriptions_without_a_name_share(topic: Topic) -> None:
    one, two = topic.subscribe(durable=False), topic.subscribe(durable=False)
    topic.publish_many([b"a", b"b"])
    assert drain(one) == drain(two) == [b"a", b"b"]


def test_an_ephemeral_subscription_ends_before_its_last_consumer(topic: Topic) -> None:
    one = topic.subscribe("live", durable=False)
    two = topic.subscribe("live", durable=False)
    topic.publish_many(numbered(4))
    take(one)
    one.close()
    assert topic.subscriber_count() == 1
    assert drain(two) == numbered(4)
    two.close()
    assert topic.subscriber_count() == 0


def test_a_subscription_is_durable_and_is_not(topic: Topic) -> None:
    topic.subscribe("stays")
    live = topic.subscribe("passes", durable=False)
    with pytest.raises(PolicyConflict, match="durable"):
        topic.subscribe("stays", durable=False)
    with pytest.raises(PolicyConflict, match="durable"):
        topic.subscribe("passes")
    topic.publish(b"a")
    assert drain(live) == [b"a"]
    assert groups(topic) == ["passes", "stays"]


def test_an_ephemeral_subscription_outlives_its_broker(home: Home, topic: Topic, restart: Restart) -> None:
    live = topic.subscribe("live", durable=False)
    topic.subscribe(durable=False, filter="a = '1'")
    topic.publish_many(numbered(5))
    take(live)
    take(live).nack(delay=60)
    topic = restart().topic("events")
    assert (groups(topic), topic.subscriber_count(), holding(topic)) == ([], 0, NOTHING)
    assert topic.peek(10) == []
    assert drain(topic.subscribe("late", start="earliest")) == []
    home.advance(100)
    assert holding(topic) == NOTHING
    again = topic.subscribe("live")
    topic.publish(b"new")
    assert drain(again) == [b"new"]


def test_an_ephemeral_subscription_harms_a_durable_one_at_a_restart(
    home: Home, topic: Topic, restart: Restart
) -> None:
    topic.subscribe("audit")
    live = topic.subscribe("live", durable=False)
    topic.publish_many(numbered(4))
    drain(live)
    other = topic.subscribe("other", durable=False)
    topic.publish(b"4", delay=60)
    other.close()
    topic = restart().topic("events")
    audit = topic.subscribe("audit")
    assert drain(audit) == numbered(4)
    home.advance(60)
    assert drain(audit) == [b"4"]
    assert holding(topic) == NOTHING


@survives_a_restart
def test_an_ephemeral_subscription_that_ended_comes_back(home: Home, topic: Topic) -> None:
    topic.subscribe("live", durable=False).close()
    topic.subscribe("live").close()
    topic.publish(b"a")
    topic.unsubscribe("live")
    topic.subscribe("live", durable=False)
    topic.publish(b"b")
    topic = home.crash().topic("events")
    assert (groups(topic), holding(topic)) == ([], NOTHING)


def test_who_waits_in_an_ephemeral_subscription_waits_on_when_it_is_closed(topic: Topic) -> None:
    consumer = topic.subscribe(durable=False)
    waiting = start(consumer.receive, timeout=None)
    in_line(topic, 1)
    consumer.close()
    with suppress(PenstockError):  # it found nothing, or that it is closed
        assert waiting.result(PATIENCE_S) is None
    assert topic.subscriber_count() == 0


# --- several consumers of one subscription ---


def test_consumers_of_one_subscription_get_the_same_message(topic: Topic) -> None:
    consumers = [topic.subscribe("jobs", consumer=f"c{n}") for n in range(3)]
    other = topic.subscribe("other")
    topic.publish_many(numbered(9))
    came = [take(consumer).payload for _ in range(3) for consumer in consumers]
    assert came == numbered(9)
    assert all(consumer.receive() is None for consumer in consumers)
    assert drain(other) == numbered(9)
    assert topic.subscription("jobs").consumers() == ["c0", "c1", "c2"]


def test_what_a_consumer_had_is_not_given_to_the_others(topic: Topic) -> None:
    one, two = topic.subscribe("jobs"), topic.subscribe("jobs")
    topic.publish_many([b"a", b"b"])
    held = take(one)
    waiting = start(lambda: [two.receive(timeout=None), two.receive(timeout=None)])
    one.close()
    assert sorted(d.payload for d in waiting.result(PATIENCE_S) if d) == [b"a", b"b"]
    with pytest.raises(LeaseLost):
        held.ack()


def test_a_late_close_throws_out_the_next_consumer_of_that_name(topic: Topic) -> None:
    old = topic.subscribe("jobs", consumer="worker")
    topic.subscription("jobs").remove_consumer("worker")
    new = topic.subscribe("jobs", consumer="worker")
    topic.publish(b"a")
    held = take(new)
    old.close()
    assert topic.subscription("jobs").consumers() == [new.name]
    held.ack()


def test_automatic_acknowledgement_is_none_or_that_of_another(topic: Topic) -> None:
    auto = topic.subscribe("one", auto_ack=True)
    manual = topic.subscribe("two")
    topic.publish(b"a")
    assert take(auto).payload == b"a"
    take(manual)
    assert (topic.subscription("one").lag(), topic.subscription("two").lag()) == (0, 1)


def test_single_active_holds_for_all_subscriptions_together(home: Home) -> None:
    topic = home.broker.topic("events", single_active=True)
    one, spare, two = topic.subscribe("one"), topic.subscribe("one"), topic.subscribe("two")
    topic.publish(b"a")
    assert spare.receive() is None
    assert drain(two) == [b"a"]
    assert take(one).payload == b"a"
    one.close()
    assert take(spare).payload == b"a"


def test_many_threads_lose_or_repeat_a_message_in_some_subscription(home: Home, topic: Topic) -> None:
    each, producers = 30, 4
    everything = Counter(b"%d-%d" % (p, n) for p in range(producers) for n in range(each))
    names = ["one", "two", "three"]
    for name in names:
        topic.subscribe(name).close()

    def produce(producer: int) -> None:
        for n in range(each):
            topic.publish(b"%d-%d" % (producer, n))

    def consume(name: str) -> Counter[bytes]:
        came: Counter[bytes] = Counter()
        with topic.subscribe(name) as consumer:
            while topic.subscription(name).lag() or sum(totals[name].values()) < sum(everything.values()):
                for delivery in consumer.receive_many(7, timeout=0):
                    delivery.ack()
                    came[delivery.payload] += 1
                    totals[name][delivery.payload] += 1
                if all(one.done() for one in producing) and not topic.subscription(name).lag():
                    break
        return came

    totals: dict[str, Counter[bytes]] = {name: Counter() for name in names}
    producing = [start(produce, p) for p in range(producers)]
    consuming = {name: [start(consume, name) for _ in range(2)] for name in names}
    all_of(producing)
    for found in consuming.values():
        assert sum(all_of(found), Counter()) == everything
    assert holding(topic) == NOTHING


def test_coming_and_going_ephemeral_subscribers_disturb_the_durable_one(home: Home, topic: Topic) -> None:
    audit = topic.subscribe("audit")

    def pass_by(number: int) -> list[bytes]:
        came: list[bytes] = []
        for _ in range(10):
            with topic.subscribe(f"live-{number}", durable=False) as consumer:
                came += payloads(consumer.receive_many(5))
        return came

    passing = [start(pass_by, n) for n in range(4)]
    for n in range(100):
        topic.publish(b"%d" % n)
    all_of(passing)
    assert groups(topic) == ["audit"]
    assert drain(audit) == numbered(100)
    assert holding(topic) == NOTHING


def test_sharing_an_ephemeral_name_fails_when_the_last_one_goes(topic: Topic) -> None:
    def come_and_go() -> None:
        for _ in range(30):
            topic.subscribe("live", durable=False).close()

    all_of([start(come_and_go) for _ in range(4)])
    assert topic.subscriber_count() == 0


# --- delays, priorities, times to live, dedup, depth ---


def test_a_delay_is_early_or_forgotten_in_a_subscription(home: Home, topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish(b"late", delay=60)
    topic.publish(b"now")
    assert drain(one) == drain(two) == [b"now"]
    home.advance(59.999)
    assert (one.receive(), two.receive()) == (None, None)
    home.advance(0.001)
    assert drain(one) == drain(two) == [b"late"]
    assert holding(topic) == NOTHING


def test_a_delayed_message_reaches_who_subscribed_after_it(home: Home, topic: Topic) -> None:
    early = topic.subscribe("early")
    topic.publish(b"a", delay=60)
    late = topic.subscribe("late")
    all_of_it = topic.subscribe("all", start="earliest")
    home.advance(60)
    assert (drain(early), drain(late), drain(all_of_it)) == ([b"a"], [], [b"a"])
    assert holding(topic) == NOTHING


def test_a_delayed_message_that_nobody_will_get_is_counted(home: Home, topic: Topic) -> None:
    topic.publish(b"a", delay=60)
    assert topic.stats().delayed == 0
    consumer = topic.subscribe("audit")
    topic.publish(b"b", delay=60)
    assert topic.stats().delayed == 1
    topic.unsubscribe("audit")
    assert topic.stats().delayed == 0
    home.advance(60)
    assert holding(topic) == NOTHING
    consumer.close()


def test_a_delayed_message_is_lost_with_a_restart(home: Home, topic: Topic, restart: Restart) -> None:
    topic.subscribe("one")
    topic.publish(b"a", delay=60)
    topic.subscribe("two", start="earliest")
    topic.subscribe("three")
    topic = restart(away=30).topic("events")
    one, two, three = (topic.subscribe(name) for name in ("one", "two", "three"))
    assert one.receive() is None
    home.advance(30)
    assert (drain(one), drain(two), drain(three)) == ([b"a"], [b"a"], [])


def test_a_cancelled_message_comes_in_some_subscription(home: Home, topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    message_id = topic.publish(b"a", delay=60)
    topic.publish(b"b", delay=60)
    assert topic.cancel(message_id) is True
    home.advance(60)
    assert drain(one) == drain(two) == [b"b"]


def test_priorities_differ_between_subscriptions(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    for n in range(3):
        topic.publish_many([Message(b"%d-%d" % (p, n), priority=p) for p in (5, 1, 3)])
    late = topic.subscribe("late", start="earliest")
    wanted = [b"%d-%d" % (p, n) for p in (1, 3, 5) for n in range(3)]
    assert drain(one) == drain(two) == drain(late) == wanted


def test_an_expired_message_reaches_a_subscription(home: Home) -> None:
    topic = home.broker.topic("events", ttl=60, visibility_timeout=600)
    one = topic.subscribe("one")
    topic.subscribe("two")
    topic.publish(b"a")
    topic.publish(b"b", ttl=600)
    held = take(one)
    home.advance(61)
    assert drain(topic.subscribe("two")) == [b"b"]
    held.ack()
    assert drain(one) == [b"b"]
    assert drain(topic.subscribe("late", start="earliest")) == []
    assert holding(topic) == NOTHING


def test_a_repeated_publish_reaches_a_subscription_twice(home: Home) -> None:
    topic = home.broker.topic("events", dedup_window=60)
    one = topic.subscribe("one")
    first = topic.publish(b"a", dedup_id="1")
    two = topic.subscribe("two")
    assert topic.publish(b"a", dedup_id="1") == first
    assert (drain(one), drain(two)) == ([b"a"], [])
    home.advance(61)
    assert topic.publish(b"a", dedup_id="1") != first
    assert (drain(one), drain(two)) == ([b"a"], [b"a"])


def test_exactly_once_without_subscribers_remembers_for_ever(home: Home) -> None:
    topic = home.broker.topic("events", delivery="exactly-once", dedup_window=60)
    first = topic.publish(b"a", dedup_id="1")
    home.advance(59)
    assert topic.publish(b"a", dedup_id="1") == first
    home.advance(62)
    assert topic.publish(b"a", dedup_id="1") != first


def test_exactly_once_forgets_before_the_slowest_has_settled(home: Home) -> None:
    topic = home.broker.topic("events", delivery="exactly-once", dedup_window=60)
    fast, slow = topic.subscribe("fast"), topic.subscribe("slow")
    first = topic.publish(b"a", dedup_id="1")
    assert drain(fast) == [b"a"]
    home.advance(600)
    assert topic.publish(b"a", dedup_id="1") == first
    assert drain(slow) == [b"a"]
    home.advance(61)
    assert topic.publish(b"a", dedup_id="1") != first


def test_the_depth_of_a_topic_is_not_that_of_its_slowest(home: Home) -> None:
    topic = home.broker.topic("events", max_depth=3)
    for payload in numbered(10):
        topic.publish(payload)  # nobody listens
    slow, fast = topic.subscribe("slow"), topic.subscribe("fast")
    topic.publish_many(numbered(3))
    drain(fast)
    with pytest.raises(QueueFull):
        topic.publish(b"3")
    assert fast.receive() is None
    take(slow).ack()
    topic.publish(b"3")
    assert drain(fast) == [b"3"]
    topic.unsubscribe("slow")
    topic.publish_many(numbered(3))
    assert drain(fast) == numbered(3)


def test_a_full_topic_drops_what_its_fast_subscription_has_not_seen(home: Home) -> None:
    topic = home.broker.topic("events", max_depth=2, overflow="drop-head")
    slow, fast = topic.subscribe("slow"), topic.subscribe("fast")
    topic.publish_many([b"a", b"b"])
    assert drain(fast) == [b"a", b"b"]
    topic.publish(b"c")
    assert drain(slow) == [b"b", b"c"]
    assert drain(fast) == [b"c"]


def test_bytes_that_nobody_needs_fill_a_topic(home: Home) -> None:
    topic = home.broker.topic("events", max_bytes=10)
    for _ in range(5):
        topic.publish(b"12345")  # nobody listens
    consumer = topic.subscribe("audit")
    topic.publish_many([b"12345", b"12345"])
    with pytest.raises(QueueFull):
        topic.publish(b"x")
    take(consumer).ack()
    topic.publish(b"12345")
    topic.unsubscribe("audit")
    topic.publish_many([b"12345", b"12345"])
    passing = topic.subscribe(durable=False)
    topic.publish_many([b"12345", b"12345"])
    passing.close()
    topic.publish_many([b"12345", b"12345"])


def test_bytes_that_nobody_needs_fill_a_topic_after_a_restart(home: Home, restart: Restart) -> None:
    topic = home.broker.topic("events", max_bytes=10)
    topic.publish(b"12345")
    topic.subscribe("audit")
    topic.subscribe("live", durable=False)
    topic.publish_many([b"12345", b"12345"])
    topic.unsubscribe("audit")
    topic = restart().topic("events")
    topic.publish_many([b"12345", b"12345"])
    topic.subscribe("audit")
    topic.publish(b"1234567890")
    with pytest.raises(QueueFull):
        restart().topic("events").publish(b"x")


def test_order_by_key_is_kept_across_subscriptions_only(home: Home) -> None:
    topic = home.broker.topic("events", ordering="key", max_attempts=None)
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many([Message(b"a1", key="a"), Message(b"a2", key="a"), Message(b"b1", key="b")])
    assert payloads(one.receive_many(9)) == [b"a1", b"b1"]
    assert drain(two) == [b"a1", b"b1", b"a2"]
    assert one.receive() is None
    late = topic.subscribe("late", start="earliest")
    assert payloads(late.receive_many(9)) == [b"a1", b"b1"]


# --- purging, peeking ---


def test_a_purge_leaves_something_in_a_subscription(home: Home, topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish_many(numbered(4))
    topic.publish(b"later", delay=60)
    held = take(one)
    take(two).ack()
    assert topic.purge() == 4
    assert (one.receive(), two.receive()) == (None, None)
    held.ack()
    home.advance(60)
    assert (one.receive(), two.receive()) == (None, None)
    assert holding(topic) == NOTHING
    topic.publish(b"a")
    assert drain(one) == drain(two) == [b"a"]


def test_a_purge_is_forgotten(home: Home, topic: Topic, restart: Restart) -> None:
    one = topic.subscribe("one")
    topic.subscribe("two")
    topic.publish_many(numbered(4))
    take(one)
    topic.purge()
    topic = restart().topic("events")
    assert drain(topic.subscribe("one")) == [b"0"]
    assert drain(topic.subscribe("two")) == []


def test_peeking_takes_or_shows_what_nobody_gets(topic: Topic) -> None:
    one = topic.subscribe("one")
    topic.publish_many(numbered(3))
    assert payloads(topic.peek(2)) == [b"0", b"1"]
    assert drain(one) == numbered(3)
    assert topic.peek(2) == []


# --- waiting ---


def test_a_publish_leaves_a_subscriber_asleep(topic: Topic) -> None:
    consumers = [topic.subscribe(f"s{n}") for n in range(4)]
    waiting = [start(consumer.receive, timeout=None) for consumer in consumers]
    topic.publish(b"a")
    assert [payload_of(one) for one in waiting] == [b"a"] * 4


def test_a_publish_leaves_an_ephemeral_subscriber_asleep(topic: Topic) -> None:
    with topic.subscribe(durable=False) as consumer:
        waiting = start(consumer.receive_many, 10, timeout=None)
        in_line(topic, 1)
        topic.publish_many([b"a", b"b"])
        assert payloads(waiting.result(PATIENCE_S)) == [b"a", b"b"]


def test_a_routed_publish_leaves_a_subscriber_asleep(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("one")
    waiting = start(consumer.receive, timeout=None)
    home.broker.publish("*", b"a")
    assert payload_of(waiting) == b"a"


def test_a_redrive_leaves_a_subscriber_asleep_or_wakes_another(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    topic.publish(b"a")
    kill(one)
    drain(two)
    wrong, right = start(two.receive, timeout=None), start(one.receive, timeout=None)
    in_line(topic, 2)
    topic.redrive()
    assert payload_of(right) == b"a"
    assert not wrong.done()
    topic.publish(b"b")
    assert payload_of(wrong) == b"b"


def test_an_iteration_over_a_subscription_misses_something(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("one")

    def first_five() -> list[bytes]:
        came = []
        for delivery in consumer:
            came.append(delivery.payload)
            delivery.ack()
            if len(came) == 5:
                break
        return came

    waiting = start(first_five)
    for payload in numbered(5):
        topic.publish(payload)
    assert waiting.result(PATIENCE_S) == numbered(5)


def test_a_subscriber_waits_on_for_a_deleted_topic(home: Home, topic: Topic) -> None:
    waiting = [start(topic.subscribe(f"s{n}").receive, timeout=None) for n in range(3)]
    waiting.append(start(topic.subscribe(durable=False).receive, timeout=None))
    in_line(topic, 4)
    home.broker.delete_topic("events")
    for one in waiting:
        with pytest.raises(TopicNotFound, match="was deleted"):
            one.result(PATIENCE_S)


def test_a_subscriber_waits_on_in_an_ended_subscription(topic: Topic) -> None:
    one, two = topic.subscribe("one"), topic.subscribe("two")
    gone, stays = start(one.receive, timeout=None), start(two.receive, timeout=None)
    iterating = start(lambda: next(iter(topic.subscribe("one"))))
    in_line(topic, 3)
    topic.unsubscribe("one")
    for ended in (gone, iterating):
        with pytest.raises(TopicNotFound, match="no subscription 'one'"):
            ended.result(PATIENCE_S)
    assert not stays.done()
    topic.publish(b"a")
    assert payload_of(stays) == b"a"


def test_a_subscriber_waits_on_in_a_closed_broker(home: Home, topic: Topic) -> None:
    waiting = start(topic.subscribe("one").receive, timeout=None)
    in_line(topic, 1)
    home.broker.close()
    with pytest.raises(BrokerClosed):
        waiting.result(PATIENCE_S)


def test_a_subscriber_waits_longer_than_its_timeout(home: Home, topic: Topic) -> None:
    waiting = start(topic.subscribe("one").receive, timeout=5)
    home.advance_until(waiting)
    assert waiting.result(PATIENCE_S) is None


def test_subscribing_and_unsubscribing_while_others_publish_loses_or_breaks_something(
    home: Home, topic: Topic
) -> None:
    audit = topic.subscribe("audit")

    def come_and_go(number: int) -> None:
        for _ in range(8):
            with topic.subscribe(f"s{number}") as consumer:
                for delivery in consumer.receive_many(3):
                    delivery.ack()
            topic.unsubscribe(f"s{number}")

    coming = [start(come_and_go, n) for n in range(4)]
    for n in range(60):
        topic.publish(b"%d" % n)
    all_of(coming)
    assert drain(audit) == numbered(60)
    assert (groups(topic), holding(topic)) == (["audit"], NOTHING)


def test_deleting_and_making_a_topic_while_others_use_it_breaks_the_broker(home: Home) -> None:
    broker: Broker = home.broker

    def use() -> None:
        for n in range(20):
            with suppress(TopicNotFound, QueueNotFound, LeaseLost):
                topic = broker.topic("events")
                with topic.subscribe("one") as consumer:
                    topic.publish(b"%d" % n)
                    for delivery in consumer.receive_many(5):
                        delivery.ack()

    using = [start(use) for _ in range(3)]
    while not all(one.done() for one in using):
        with suppress(TopicNotFound):
            broker.delete_topic("events")
    all_of(using)
    topic = broker.topic("events")
    consumer = topic.subscribe("last")
    topic.publish(b"a")
    assert drain(consumer) == [b"a"]


def test_subscribers_that_come_beside_publishers_miss_something_after_they_began(
    home: Home, topic: Topic, restart: Restart
) -> None:
    """Each has everything from some message on: nothing is missing behind the first one it gets."""

    def publish(producer: int) -> None:
        for n in range(40):
            topic.publish(b"%d-%d" % (producer, n))

    topic.subscribe("keeper")
    publishing = [start(publish, p) for p in range(3)]
    made = 0
    while not all(one.done() for one in publishing):
        topic.subscribe(f"s{made % 10}").close()
        made += 1
    all_of(publishing)
    topic = restart().topic("events")
    for name in groups(topic):
        offsets = []
        with topic.subscribe(name) as consumer:
            while (delivery := consumer.receive()) is not None:
                offsets.append(delivery.offset)
                delivery.ack()
        assert offsets == list(range(120 - len(offsets), 120))
    assert holding(topic) == NOTHING
