"""Namespaces: the same API for each, and nothing of one is seen, counted, named or changed from another."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    BrokerClosed,
    InvalidArgument,
    InvalidName,
    LeaseLost,
    PolicyConflict,
    QueueNotFound,
    TopicNotFound,
    WrongKind,
)
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take, unchanged
from tests.conformance.surface import Broker


def all_of(broker: Broker) -> dict[str, Broker]:
    """The broker itself, which is a namespace too, and two more."""
    return {"default": broker, "a": broker.namespace("a"), "b": broker.namespace("b")}


def totals(broker: Broker) -> dict[str, int]:
    found: Any = broker.stats()
    names = ("queues", "topics", "ready", "leased", "delayed", "retrying", "published", "delivered", "acked")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


@pytest.fixture
def spaces(home: Home) -> dict[str, Broker]:
    return all_of(home.broker)


# --- names ---


def test_a_queue_of_the_same_name_is_the_same_queue(spaces: dict[str, Broker]) -> None:
    for name, space in spaces.items():
        space.queue("orders").publish(name.encode())
    assert {name: drain(space.queue("orders")) for name, space in spaces.items()} == {
        name: [name.encode()] for name in spaces
    }


def test_a_topic_of_the_same_name_is_the_same_topic(spaces: dict[str, Broker]) -> None:
    consumers = {name: space.topic("events").subscribe("s") for name, space in spaces.items()}
    for name, space in spaces.items():
        space.topic("events").publish(name.encode())
    assert {name: drain(one) for name, one in consumers.items()} == {name: [name.encode()] for name in spaces}


def test_one_namespace_asked_for_twice_is_two(home: Home) -> None:
    home.broker.namespace("a").queue("orders").publish(b"x")
    assert drain(home.broker.namespace("a").queue("orders")) == [b"x"]


def test_the_broker_itself_is_another_namespace_than_the_default_one(home: Home) -> None:
    home.broker.queue("orders").publish(b"x")
    assert drain(home.broker.namespace("default").queue("orders")) == [b"x"]


def test_a_namespace_of_a_namespace_is_another_one(home: Home) -> None:
    home.broker.namespace("a").queue("orders").publish(b"x")
    inner = home.broker.namespace("b").namespace("a")
    assert list(inner.list_queues()) == ["orders"]
    assert list(home.broker.namespace("b").list_queues()) == []
    assert drain(inner.queue("orders")) == [b"x"]


def test_kinds_and_policies_are_shared(spaces: dict[str, Broker]) -> None:
    spaces["default"].queue("log", max_attempts=5)
    spaces["a"].queue("log", max_attempts=7)
    spaces["b"].topic("log")
    assert spaces["a"].get_queue("log").policy.max_attempts == 7
    spaces["a"].queue("log").alter(max_attempts=9)
    assert spaces["default"].queue("log", max_attempts=5).policy.max_attempts == 5
    with pytest.raises(PolicyConflict):
        spaces["a"].queue("log", max_attempts=5)
    with pytest.raises(WrongKind):
        spaces["b"].queue("log")


def test_what_one_namespace_has_another_finds(spaces: dict[str, Broker]) -> None:
    spaces["a"].queue("orders")
    spaces["a"].topic("events")
    for name in ("default", "b"):
        space = spaces[name]
        with pytest.raises(QueueNotFound):
            space.get_queue("orders")
        with pytest.raises(TopicNotFound):
            space.get_topic("events")
        with pytest.raises(QueueNotFound):
            space.delete_queue("orders")
        with pytest.raises(TopicNotFound):
            space.delete_topic("events")
        assert (list(space.list_queues()), list(space.list_topics())) == ([], [])
        space.create_queue("orders")
        space.create_topic("events")


def test_lists_name_what_is_anothers(spaces: dict[str, Broker]) -> None:
    spaces["default"].queue("here")
    spaces["a"].queue("a-1")
    spaces["a"].queue("a-2")
    spaces["b"].topic("b-1")
    assert {name: list(space.list_queues()) for name, space in spaces.items()} == {
        "default": ["here"], "a": ["a-1", "a-2"], "b": [],
    }  # fmt: skip
    assert {name: list(space.list_topics()) for name, space in spaces.items()} == {
        "default": [], "a": [], "b": ["b-1"],
    }  # fmt: skip


def test_deleting_deletes_anothers(spaces: dict[str, Broker]) -> None:
    for space in spaces.values():
        space.queue("orders").publish(b"x")
        space.topic("events").subscribe("s")
    spaces["a"].delete_queue("orders")
    spaces["a"].delete_topic("events")
    for name in ("default", "b"):
        assert spaces[name].get_queue("orders").depth() == 1
        assert spaces[name].get_topic("events").subscriber_count() == 1
    assert (list(spaces["a"].list_queues()), list(spaces["a"].list_topics())) == ([], [])


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "../a", "x" * 256, "ä", ".a", None, 5, b"a", "a.dlq"], ids=repr
)
def test_a_bad_name_is_a_namespace(home: Home, name: Any) -> None:
    with pytest.raises(InvalidName, match="namespace"):
        home.broker.namespace(name)
    with pytest.raises(InvalidName, match="namespace"):
        home.broker.namespace("a").namespace(name)


def test_names_and_namespaces_run_into_each_other(home: Home) -> None:
    home.broker.namespace("a.b").queue("c").publish(b"1")
    home.broker.namespace("a").queue("b.c").publish(b"2")
    assert drain(home.broker.namespace("a.b").queue("c")) == [b"1"]
    assert drain(home.broker.namespace("a").queue("b.c")) == [b"2"]


# --- counts ---


def test_counts_include_anothers(home: Home, spaces: dict[str, Broker]) -> None:
    queue = spaces["a"].queue("orders")
    queue.publish_many([b"0", b"1", b"2", b"3"])
    queue.publish(b"later", delay=60)
    take(queue).ack()
    take(queue).nack(delay=60)
    take(queue)
    spaces["b"].topic("events")
    assert totals(spaces["a"]) == {
        "queues": 1, "ready": 1, "leased": 1, "delayed": 1, "retrying": 1, "published": 5, "delivered": 3, "acked": 1,
    }  # fmt: skip
    assert totals(spaces["b"]) == {"topics": 1}
    assert totals(spaces["default"]) == {}
    assert totals(home.broker.namespace("empty")) == {}


def test_what_was_deleted_counts_elsewhere(spaces: dict[str, Broker]) -> None:
    queue = spaces["a"].queue("orders")
    queue.publish_many([b"0", b"1"])
    take(queue).ack()
    spaces["a"].delete_queue("orders")
    assert totals(spaces["a"]) == {"published": 2, "delivered": 1, "acked": 1}
    assert (totals(spaces["default"]), totals(spaces["b"])) == ({}, {})


def test_the_journal_of_all_is_shown_to_one(spaces: dict[str, Broker]) -> None:
    found: Any = spaces["a"].stats()
    assert found.journal is None


def test_counts_of_queues_include_anothers(spaces: dict[str, Broker]) -> None:
    for space in spaces.values():
        space.queue("orders", max_depth=2)
    spaces["a"].queue("orders").publish_many([b"0", b"1"])
    spaces["a"].queue("orders").reader("r").commit()
    spaces["a"].queue("orders").group("g")
    spaces["a"].queue("orders").schedule("tick", "* * * * *", b"x")
    spaces["b"].queue("orders").publish(b"2")
    other = spaces["b"].queue("orders").stats()
    assert counts(spaces["b"].queue("orders")) == expected(ready=1)
    assert (list(other.groups), dict(other.readers), list(other.schedules)) == (["default"], {}, [])


# --- what goes from one log to another ---


def test_routing_crosses(spaces: dict[str, Broker]) -> None:
    for space in spaces.values():
        space.queue("orders.eu")
        space.topic("orders.us", retain_seconds=60)
    assert sorted(spaces["a"].publish("orders.*", b"x")) == ["orders.eu", "orders.us"]
    assert sorted(spaces["a"].publish("#", b"y")) == ["orders.eu", "orders.us"]
    assert {name: space.queue("orders.eu").depth() for name, space in spaces.items()} == {
        "default": 0, "a": 2, "b": 0,
    }  # fmt: skip
    found = {
        name: payloads(space.topic("orders.us").reader("r").read_many(9)) for name, space in spaces.items()
    }
    assert found == {"default": [], "a": [b"x", b"y"], "b": []}


def test_a_pattern_matches_only_what_is_elsewhere(spaces: dict[str, Broker]) -> None:
    spaces["a"].queue("orders")
    for pattern in ("orders", "*", "#", "a.orders", "a.*"):
        with pytest.raises(QueueNotFound):
            spaces["b"].publish(pattern, b"x")
    assert spaces["a"].queue("orders").depth() == 0


def test_dead_letters_die_elsewhere(spaces: dict[str, Broker]) -> None:
    for name, space in spaces.items():
        space.queue("orders").publish(name.encode())
    take(spaces["a"].queue("orders")).reject(error="no good")
    assert {name: space.queue("orders").stats().dead for name, space in spaces.items()} == {
        "default": 0, "a": 1, "b": 0,
    }  # fmt: skip
    assert spaces["b"].queue("orders").redrive() == 0
    assert spaces["a"].queue("orders").redrive() == 1
    assert {name: drain(space.queue("orders")) for name, space in spaces.items()} == {
        name: [name.encode()] for name in spaces
    }


def test_a_named_grave_is_shared(spaces: dict[str, Broker]) -> None:
    for space in spaces.values():
        space.queue("grave")
        space.queue("orders", dead_letter="grave").publish(b"x")
    take(spaces["a"].queue("orders")).reject()
    assert {name: space.queue("grave").depth() for name, space in spaces.items()} == {
        "default": 0, "a": 1, "b": 0,
    }  # fmt: skip


def test_a_dead_letter_goes_back_to_another_namespace(spaces: dict[str, Broker]) -> None:
    spaces["a"].queue("orders").publish(b"x")
    take(spaces["a"].queue("orders")).reject()
    letters = spaces["a"].queue("orders").dead_letters()
    spaces["a"].delete_queue("orders")
    spaces["b"].queue("orders")
    spaces["default"].queue("orders")
    assert letters.redrive() == 0, "there is no such queue here any more"
    assert [spaces[name].queue("orders").depth() for name in ("b", "default")] == [0, 0]
    assert letters.depth() == 1


def test_a_redrive_goes_to_anothers_queue(spaces: dict[str, Broker]) -> None:
    queue = spaces["a"].queue("orders")
    queue.publish(b"x")
    take(queue).reject()
    spaces["b"].queue("only-in-b")
    for name in ("only-in-b", "b.only-in-b"):
        with pytest.raises(QueueNotFound):
            queue.redrive(to=name)
    spaces["a"].queue("both")
    spaces["b"].queue("both")
    assert queue.redrive(to="both") == 1
    assert (spaces["a"].queue("both").depth(), spaces["b"].queue("both").depth()) == (1, 0)


def test_a_transaction_publishes_elsewhere(spaces: dict[str, Broker]) -> None:
    for space in spaces.values():
        space.queue("invoices")
    with spaces["a"].transaction() as tx:
        tx.publish("invoices", b"x")
        tx.publish("made", b"y")
    assert {name: space.queue("invoices").depth() for name, space in spaces.items()} == {
        "default": 0, "a": 1, "b": 0,
    }  # fmt: skip
    assert list(spaces["a"].list_queues()) == ["invoices", "made"]
    assert list(spaces["b"].list_queues()) == list(spaces["default"].list_queues()) == ["invoices"]


def test_dedup_ids_are_shared(spaces: dict[str, Broker]) -> None:
    sent = {
        space.queue("orders", delivery="exactly-once").publish(b"x", dedup_id="d")
        for space in spaces.values()
    }
    assert len(sent) == 3


def test_a_delivery_of_another_namespace_is_acknowledged_here(spaces: dict[str, Broker]) -> None:
    for name in ("a", "b"):
        spaces[name].queue("orders").publish(name.encode())
    of_a, of_b = take(spaces["a"].queue("orders")), take(spaces["b"].queue("orders"))
    with pytest.raises((LeaseLost, InvalidArgument)):
        spaces["b"].queue("orders").ack_many([of_a])
    with pytest.raises((LeaseLost, InvalidArgument)):
        spaces["b"].queue("orders").ack_many([of_b, of_a])
    assert [counts(spaces[name].queue("orders")) for name in ("a", "b")] == [expected(leased=1)] * 2
    of_a.ack()
    of_b.ack()


# --- positions ---


def test_groups_are_shared(home: Home, spaces: dict[str, Broker]) -> None:
    for name, space in spaces.items():
        queue = space.queue("orders")
        queue.group("g").add_consumer(f"of-{name}")
        queue.publish(name.encode())
    assert spaces["a"].queue("orders").group("g").consumers() == ["of-a"]
    assert drain(spaces["a"].queue("orders").group("g")) == [b"a"]
    assert [space.queue("orders").group("g").lag() for space in spaces.values()] == [1, 0, 1]


def test_subscriptions_are_shared(spaces: dict[str, Broker]) -> None:
    for space in spaces.values():
        space.topic("events").subscribe("s")
        space.topic("events").publish(b"x")
    spaces["a"].topic("events").unsubscribe("s")
    assert [space.topic("events").subscriber_count() for space in spaces.values()] == [1, 0, 1]
    assert drain(spaces["b"].topic("events").subscribe("s")) == [b"x"]


def test_readers_are_shared(spaces: dict[str, Broker]) -> None:
    for name, space in spaces.items():
        space.queue("orders", retain_seconds=60).publish_many([name.encode(), b"y"])
    reader = spaces["a"].queue("orders").reader("r")
    found = reader.read()
    assert found is not None
    assert found.payload == b"a"
    assert reader.commit() == 1
    assert spaces["a"].queue("orders").reader("r").position() == 1
    assert spaces["b"].queue("orders").reader("r").position() == 0
    spaces["b"].queue("orders").reader("r").reset()
    assert spaces["a"].queue("orders").reader("r").position() == 1


def test_a_seek_finds_a_message_of_another_namespace(spaces: dict[str, Broker]) -> None:
    sent = spaces["a"].queue("orders").publish(b"x")
    spaces["b"].queue("orders").publish(b"y")
    reader = spaces["b"].queue("orders").reader("r")
    with pytest.raises(InvalidArgument, match="is stored"):
        reader.seek(message_id=sent)
    with pytest.raises(InvalidArgument, match="is stored"):
        spaces["b"].queue("orders").cancel(sent)


def test_schedules_and_delays_are_shared(home: Home, spaces: dict[str, Broker]) -> None:
    for name, space in spaces.items():
        space.queue("orders").schedule("tick", "* * * * *", name.encode())
    assert spaces["a"].queue("orders").unschedule("tick") is True
    home.advance(60)
    assert [drain(space.queue("orders")) for space in spaces.values()] == [[b"default"], [], [b"b"]]


def test_purging_purges_anothers(spaces: dict[str, Broker]) -> None:
    for space in spaces.values():
        space.queue("orders").publish(b"x")
    spaces["a"].queue("orders").purge()
    assert [space.queue("orders").depth() for space in spaces.values()] == [1, 0, 1]


def test_a_message_wakes_those_who_wait_elsewhere(home: Home, spaces: dict[str, Broker]) -> None:
    waiting = spaces["a"].queue("orders").subscribe("w")
    with unchanged(spaces["a"].queue("orders")):
        spaces["b"].queue("orders").publish(b"x")
        assert waiting.receive() is None


# --- the end ---


def test_closing_a_namespace_closes_the_broker(home: Home) -> None:
    with home.broker.namespace("a") as view:
        view.queue("orders").publish(b"x")
    view.close()
    view.close(timeout=1)
    home.broker.queue("orders").publish(b"y")
    assert drain(view.queue("orders")) == [b"x"], "the view goes on as well: there is nothing to close"
    assert drain(home.broker.namespace("a").queue("orders")) == []


def test_a_namespace_outlives_its_broker(home: Home) -> None:
    broker = home.open(home.elsewhere())
    view = broker.namespace("a")
    queue = view.queue("orders")
    broker.close()
    with pytest.raises(BrokerClosed):
        queue.publish(b"x")
    with pytest.raises(BrokerClosed):
        view.queue("orders")


def test_a_restart_mixes_them_up(home: Home, restart: Restart) -> None:
    for name, space in all_of(home.broker).items():
        queue = space.queue("orders", retain_seconds=3600)
        queue.publish_many([name.encode(), b"dead of " + name.encode()])
        take(queue)
        take(queue).reject()
        reader = queue.reader(f"reader-of-{name}")
        reader.read()
        reader.commit()
        topic = space.topic("events")
        topic.subscribe(f"of-{name}")
        topic.schedule(name, "0 * * * *", name.encode())
        topic.publish(b"event of " + name.encode())
    for _ in range(2):
        spaces = all_of(restart())
    for name, space in spaces.items():
        queue, topic = space.get_queue("orders"), space.get_topic("events")
        assert list(space.list_queues()) == ["orders"]
        assert drain(queue) == [name.encode()]
        assert payloads(queue.dead_letters().peek(9)) == [b"dead of " + name.encode()]
        assert dict(queue.stats().readers) == {f"reader-of-{name}": 1}
        assert list(topic.stats().groups) == [f"of-{name}"]
        assert list(topic.stats().schedules) == [name]
        assert drain(topic.subscription(f"of-{name}")) == [b"event of " + name.encode()]


def test_a_deleted_log_of_one_namespace_takes_anothers_with_it_in_a_restart(
    home: Home, restart: Restart
) -> None:
    for space in all_of(home.broker).values():
        space.queue("orders").publish(b"x")
    home.broker.namespace("a").delete_queue("orders")
    spaces = all_of(restart())
    assert {name: list(space.list_queues()) for name, space in spaces.items()} == {
        "default": ["orders"], "a": [], "b": ["orders"],
    }  # fmt: skip
    assert spaces["b"].queue("orders").depth() == 1
