"""Whatever is given to topics, groups, routing and transactions: it is taken, or refused with an error of ours, and what is refused changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import InvalidArgument, PenstockError, Policy
from tests.conformance.home import Home
from tests.conformance.observations import drain
from tests.conformance.oddities import Level, Mixed, Word, oddities
from tests.conformance.surface import Broker, Queue, Topic

_numbers = itertools.count()


def fresh(**given: Any) -> dict[str, Any]:
    return {"name": f"beside-{next(_numbers)}", **given}


def briefly(consumer: Any) -> None:
    consumer.close()


def removed(group: Any, name: Any) -> None:
    with group.add_consumer("one"):
        group.remove_consumer(name)


def in_transaction(broker: Any, name: str = "publish", **given: Any) -> None:
    with broker.transaction() as tx:
        tx.publish("orders", b"first")
        getattr(tx, name)(**given)


POLICY = [*Policy.__struct_fields__, "no_such_field"]
PUBLISH = ["headers", "key", "priority", "delay", "deliver_at", "ttl", "dedup_id"]
CONSUMER = ["prefetch", "auto_ack", "heartbeat"]
PLACE = ["offset", "timestamp", "message_id"]

#: What is called, with each of its arguments in turn: the broker, a topic, a group of a queue, and the argument by name come in.
CALLS: dict[str, tuple[list[str], Callable[[Any, Any, Any, dict[str, Any]], object]]] = {
    "topic": (["name", *POLICY], lambda broker, _, __, given: broker.topic(**fresh(**given))),
    "create_topic": (["name"], lambda broker, _, __, given: broker.create_topic(**fresh(**given))),
    "get_topic": (["name"], lambda broker, _, __, given: broker.get_topic(**given)),
    "delete_topic": (["name"], lambda broker, _, __, given: broker.delete_topic(**given)),
    "publish": (["payload", *PUBLISH], lambda _, topic, __, given: topic.publish(**{"payload": b"x", **given})),
    "publish_many": (["messages"], lambda _, topic, __, given: topic.publish_many(**given)),
    "subscribe": (
        ["name", "filter", "durable", "start", "consumer", *CONSUMER],
        lambda _, topic, __, given: briefly(topic.subscribe(**fresh(**given))),
    ),
    "subscribe briefly": (
        ["name", "filter", "start", "consumer", *CONSUMER],
        lambda _, topic, __, given: briefly(topic.subscribe(durable=False, **given)),
    ),
    "subscribe again": (
        ["filter", "durable", "start", "consumer", *CONSUMER],
        lambda _, topic, __, given: briefly(topic.subscribe("audit", **given)),
    ),
    "subscription": (["name"], lambda _, topic, __, given: topic.subscription(**given)),
    "unsubscribe": (["name"], lambda _, topic, __, given: topic.unsubscribe(**given)),
    "peek": (["count"], lambda _, topic, __, given: topic.peek(**given)),
    "redrive": (
        ["where", "limit", "rate", "to"],
        lambda _, topic, __, given: topic.redrive(**{"limit": 1, **given}),
    ),
    "cancel": (["message_id"], lambda _, topic, __, given: topic.cancel(**given)),
    "group": (
        ["name", "strategy"],
        lambda broker, _, __, given: broker.queue("beside").group(**fresh(**given)),
    ),
    "add_consumer": (["name", *CONSUMER], lambda _, __, group, given: briefly(group.add_consumer(**given))),
    "remove_consumer": (["name"], lambda _, __, group, given: removed(group, **given)),
    "receive": (["timeout"], lambda _, __, group, given: group.receive(**given)),
    "receive_many": (["count"], lambda _, __, group, given: group.receive_many(**given)),
    "receive_many for": (["timeout"], lambda _, __, group, given: group.receive_many(1, **given)),
    "ack_many": (["found"], lambda _, __, group, given: group.ack_many(**given)),
    "ack one": (["one"], lambda _, __, group, given: group.ack_many([given["one"]])),
    "seek": (PLACE, lambda _, __, group, given: group.seek(**given)),
    "seek of a subscription": (PLACE, lambda _, topic, __, given: topic.subscription("audit").seek(**given)),
    "route": (
        ["pattern", "payload", *PUBLISH],
        lambda broker, _, __, given: broker.publish(**{"pattern": "*", "payload": b"x", **given}),
    ),
    "namespace": (["name"], lambda broker, _, __, given: broker.namespace(**given).list_topics()),
    "transaction": (
        ["name", "payload", *PUBLISH],
        lambda broker, _, __, given: _published_in_transaction(broker, given),
    ),
    "transaction ack": (["delivery"], lambda broker, _, __, given: in_transaction(broker, "ack", **given)),
    "transaction nack": (["delivery"], lambda broker, _, __, given: in_transaction(broker, "nack", **given)),
    "transaction reject": (["delivery"], lambda broker, _, __, given: in_transaction(broker, "reject", **given)),
}  # fmt: skip


def _published_in_transaction(broker: Any, given: dict[str, Any]) -> None:
    with broker.transaction() as tx:
        tx.publish("orders", b"first")
        tx.publish(**{"name": "orders", "payload": b"x", **given})


@pytest.fixture
def topic(home: Home) -> Topic:
    topic = home.broker.topic("events", max_attempts=None, dedup_window=0)
    topic.subscribe("audit")
    return topic


@pytest.fixture
def queue(home: Home) -> Queue:
    queue = home.broker.queue("orders", max_attempts=None, dedup_window=0)
    queue.group("jobs")
    return queue


def everything(broker: Broker) -> list[Any]:
    """All that can be seen of a broker that something may have been done to."""
    topic, queue = broker.get_topic("events"), broker.get_queue("orders")
    seen = [topic.stats(), topic.policy, queue.stats(), queue.policy]
    return [broker.list_topics(), broker.list_queues(), *seen]


#: They make what they are given something to do with, even if that is refused.
MAKERS = {"group", "remove_consumer"}


@pytest.mark.parametrize(("call", "field"), [(call, field) for call in CALLS for field in CALLS[call][0]])
def test_an_odd_argument_is_an_error_of_others_or_changes_something(
    home: Home, topic: Topic, queue: Queue, call: str, field: str
) -> None:
    group = queue.group("jobs")
    for name, odd in {"none": None, **oddities()}.items():
        if not group.stats().ready:  # so that nobody waits
            queue.publish(b"x")
        before = everything(home.broker)
        try:
            CALLS[call][1](home.broker, topic, group, {field: odd})
        except PenstockError:
            if call not in MAKERS and everything(home.broker) != before:
                pytest.fail(
                    f"{call}, given {name} as {field}, was refused and changed something", pytrace=False
                )
        except BaseException as error:
            pytest.fail(f"{call}, given {name} as {field}: {type(error).__name__}", pytrace=False)
        try:
            topic.stats()
        except PenstockError as error:
            pytest.fail(f"{call}, given {name} as {field}, broke the broker: {error}", pytrace=False)
    goes_on(home)


def goes_on(home: Home) -> None:
    topic = home.broker.create_topic("after")
    one, two = topic.subscribe("one"), topic.subscribe("two", filter="a = 'b'")
    topic.publish(b"one", headers={"a": "b"}, key="k", priority=7)
    topic.publish(b"two", delay=5)
    assert drain(one) == drain(two) == [b"one"]
    home.advance(5)
    assert (drain(one), drain(two)) == ([b"two"], [])


def test_values_of_an_enum_break_the_broker_or_come_out_as_such(home: Home) -> None:
    topic = home.broker.topic(Word.KEY, ordering=Mixed.KEY, max_attempts=Level.FIVE)
    consumer = topic.subscribe(Word.KEY, consumer=Mixed.KEY, prefetch=Level.FIVE, heartbeat=Level.FIVE)
    topic.publish(b"a", key=Word.KEY)
    found = topic.stats().groups
    assert list(found) == ["key"]
    assert [type(name) for name in found] == [str]
    assert [type(name) for name in topic.subscription(Mixed.KEY).consumers()] == [str]
    assert drain(consumer) == [b"a"]
    group = home.broker.queue("orders").group(Word.KEY)
    assert type(group.name) is str


def test_the_names_of_groups_readers_and_logs_are_one_set(home: Home) -> None:
    queue = home.broker.queue("orders")
    for _ in range(2):
        assert queue.group("orders").name == "orders"
        assert queue.reader("orders").name == "orders"
        assert queue.group("orders").add_consumer("orders").name.startswith("orders")


@pytest.mark.parametrize("more", [{"offset": 0}, {"message_id": 1}])
def test_two_places_are_taken_for_one(home: Home, queue: Queue, more: dict[str, Any]) -> None:
    queue.publish(b"x")
    moment = queue.peek()[0].timestamp
    assert moment is not None
    with pytest.raises(InvalidArgument, match="one of"):
        queue.group("jobs").seek(timestamp=moment + timedelta(0), **more)
