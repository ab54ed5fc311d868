"""One publish to many logs by a pattern: to all that match, or to none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BatchTooLarge,
    InvalidArgument,
    MessageTooLarge,
    PenstockError,
    QueueFull,
    QueueNotFound,
)
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, survives_a_restart, take
from tests.conformance.surface import Broker
from tests.conformance.waiters import in_line

NAMES = (
    "orders",
    "orders.eu",
    "orders.us",
    "orders.eu.created",
    "orders.eu.west.created",
    "invoices.eu",
    "Orders.eu",
)


@pytest.fixture
def broker(home: Home) -> Broker:
    for name in NAMES:
        home.broker.queue(name)
    return home.broker


# --- who is meant ---


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("orders", {"orders"}),
        ("orders.eu", {"orders.eu"}),
        ("orders.*", {"orders.eu", "orders.us"}),
        ("*.eu", {"orders.eu", "invoices.eu", "Orders.eu"}),
        ("orders.#", {"orders", "orders.eu", "orders.us", "orders.eu.created", "orders.eu.west.created"}),
        ("orders.#.created", {"orders.eu.created", "orders.eu.west.created"}),
        ("orders.*.created", {"orders.eu.created"}),
        ("#.eu", {"orders.eu", "invoices.eu", "Orders.eu"}),
        ("#.eu.#", {"orders.eu", "invoices.eu", "Orders.eu", "orders.eu.created", "orders.eu.west.created"}),
        ("*", {"orders"}),
        ("*.*", {"orders.eu", "orders.us", "invoices.eu", "Orders.eu"}),
        ("#", set(NAMES)),
        ("#.#", set(NAMES)),
        ("*.#", set(NAMES)),
        ("#.*.*.*", {"orders.eu.created", "orders.eu.west.created"}),
    ],
)
def test_a_pattern_means_others(broker: Broker, pattern: str, meant: set[str]) -> None:
    assert set(broker.publish(pattern, b"a")) == meant
    assert {name for name in NAMES if broker.get_queue(name).depth()} == meant


def test_a_routed_message_is_another_one(broker: Broker) -> None:
    ids = broker.publish("orders.*", b"a", headers={"x": "y"}, key="k", priority=7)
    assert len(set(ids.values())) == 2
    for name, message_id in ids.items():
        found = take(broker.get_queue(name))
        assert (found.id, found.payload, found.headers) == (message_id, b"a", {"x": "y"})
        assert (found.key, found.priority, found.offset) == ("k", 7, 0)


def test_topics_are_not_meant(home: Home) -> None:
    home.broker.queue("orders.jobs")
    topic, quiet = home.broker.topic("orders.events"), home.broker.topic("orders.quiet")
    one, two = topic.subscribe("one"), topic.subscribe("two", filter="region = 'eu'")
    found = home.broker.publish("orders.*", b"a", headers={"region": "us"})
    assert set(found) == {"orders.jobs", "orders.events", "orders.quiet"}
    assert (drain(one), drain(two)) == ([b"a"], [])
    assert quiet.subscriber_count() == 0
    assert drain(home.broker.get_queue("orders.jobs")) == [b"a"]


def test_a_plain_topic_is_not_reached_by_its_name(home: Home) -> None:
    consumer = home.broker.topic("events").subscribe("one")
    assert set(home.broker.publish("events", b"a")) == {"events"}
    assert drain(consumer) == [b"a"]


def test_dead_letters_are_meant_by_a_pattern(broker: Broker) -> None:
    orders = broker.get_queue("orders")
    orders.publish(b"bad")
    take(orders).reject()
    assert set(broker.publish("#", b"a")) == set(NAMES)
    assert set(broker.publish("orders.*", b"a")) == {"orders.eu", "orders.us"}
    with pytest.raises(QueueNotFound):
        broker.publish("*.dlq", b"a")
    assert payloads(orders.dead_letters().peek(9)) == [b"bad"]


def test_queues_made_or_deleted_since_are_not_or_still_meant(broker: Broker) -> None:
    broker.queue("orders.asia")
    broker.delete_queue("orders.us")
    assert set(broker.publish("orders.*", b"a")) == {"orders.eu", "orders.asia"}


def test_a_namespace_is_reached_from_another(home: Home) -> None:
    one, two = home.broker.namespace("one"), home.broker.namespace("two")
    for space in (home.broker, one, two):
        space.queue("orders")
    one.topic("only-here")
    assert set(one.publish("#", b"a")) == {"orders", "only-here"}
    assert (home.broker.get_queue("orders").depth(), two.get_queue("orders").depth()) == (0, 0)
    assert set(home.broker.publish("#", b"b")) == {"orders"}
    assert drain(one.get_queue("orders")) == [b"a"]
    with pytest.raises(QueueNotFound):
        two.publish("only-here", b"c")


# --- errors ---


@pytest.mark.parametrize("pattern", ["nothing", "nothing.*", "*.*.*.*.*", "orders.eu.#.none"])
def test_a_message_for_nobody_is_taken(broker: Broker, pattern: str) -> None:
    with pytest.raises(QueueNotFound) as caught:
        broker.publish(pattern, b"a")
    assert repr(pattern) in str(caught.value)
    assert "nothing" not in broker.list_queues()
    assert all(broker.get_queue(name).depth() == 0 for name in NAMES)


def test_the_error_of_a_pattern_says_to_create_a_queue_of_that_name(broker: Broker) -> None:
    with pytest.raises(QueueNotFound) as caught:
        broker.publish("nothing.*", b"a")
    assert "create_queue('nothing.*')" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "place"),
    [("orders..eu", 8), (".orders", 1), ("orders.", 8), ("orders.eu*", 10), ("or ders", 3), ("orders.#a", 8), ("ordérs", 4)],
)  # fmt: skip
def test_an_error_does_not_point_at_the_place(broker: Broker, pattern: str, place: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        broker.publish(pattern, b"a")
    said, text, caret = str(caught.value).splitlines()
    assert f"character {place}" in said
    assert text.strip() == pattern
    assert caret.index("^") - text.index(pattern[0]) == place - 1


@pytest.mark.parametrize("pattern", ["", "a" * 1000, ".".join("*" * 400), None, 7, b"orders", ["orders"]])
def test_what_is_no_pattern_is_taken(broker: Broker, pattern: Any) -> None:
    with pytest.raises(InvalidArgument, match="pattern"):
        broker.publish(pattern, b"a")


def test_a_bad_message_reaches_some(broker: Broker) -> None:
    bad: list[dict[str, Any]] = [
        {"payload": "text"},
        {"payload": None},
        {"payload": b"a", "priority": 300},
        {"payload": b"a", "headers": {"a": 1}},
        {"payload": b"a", "delay": -1},
        {"payload": b"a", "key": 7},
    ]
    for given in bad:
        with pytest.raises(PenstockError):
            broker.publish("#", **given)
    assert all(broker.get_queue(name).depth() == 0 for name in NAMES)


# --- all or nothing ---


def refuse(broker: Broker, error: type[PenstockError], **given: Any) -> None:
    """One publish to all of `a.*`, which is refused and changes none of them."""
    names = [name for name in (*broker.list_queues(), *broker.list_topics()) if name.startswith("a.")]
    before = [broker.get_queue(name).stats() for name in names if name in broker.list_queues()]
    with pytest.raises(error):
        broker.publish("a.*", **{"payload": b"xx", **given})
    assert [broker.get_queue(name).stats() for name in names if name in broker.list_queues()] == before
    beside = broker.queue("beside")
    beside.publish(b"goes on")
    assert drain(beside) == [b"goes on"]


@pytest.fixture
def around(home: Home) -> Broker:
    """Plain queues before and behind the one in question, which is `a.m`."""
    home.broker.queue("a.a")
    home.broker.queue("a.z")
    return home.broker


def test_one_full_queue_does_not_stop_the_others(around: Broker) -> None:
    full = around.queue("a.m", max_depth=1)
    full.publish(b"x")
    refuse(around, QueueFull)
    take(full).ack()
    assert set(around.publish("a.*", b"y")) == {"a.a", "a.m", "a.z"}


def test_one_queue_full_of_bytes_does_not_stop_the_others(around: Broker) -> None:
    around.queue("a.m", max_bytes=3).publish(b"xx")
    refuse(around, QueueFull)


def test_one_full_topic_does_not_stop_the_others(around: Broker) -> None:
    topic = around.topic("a.m", max_depth=1)
    consumer = topic.subscribe("one")
    topic.publish(b"x")
    refuse(around, QueueFull)
    assert drain(consumer) == [b"x"]
    assert set(around.publish("a.*", b"y")) == {"a.a", "a.m", "a.z"}


def test_a_queue_that_could_drop_but_has_nothing_to_drop_does_not_stop_the_others(around: Broker) -> None:
    full = around.queue("a.m", max_depth=1, overflow="drop-head")
    full.publish(b"x")
    held = take(full)
    refuse(around, QueueFull)
    held.ack()
    assert set(around.publish("a.*", b"y")) == {"a.a", "a.m", "a.z"}


def test_a_queue_that_drops_drops_nothing_for_a_routed_message(around: Broker) -> None:
    full = around.queue("a.m", max_depth=2, overflow="drop-head")
    full.publish_many([b"1", b"2"])
    around.publish("a.*", b"3")
    assert drain(full) == [b"2", b"3"]


def test_one_that_takes_only_smaller_messages_does_not_stop_the_others(around: Broker) -> None:
    around.queue("a.m", max_message_bytes=1)
    refuse(around, MessageTooLarge)


def test_one_that_wants_a_dedup_id_does_not_stop_the_others(around: Broker) -> None:
    around.queue("a.m", delivery="exactly-once")
    refuse(around, InvalidArgument)
    assert set(around.publish("a.*", b"y", dedup_id="1")) == {"a.a", "a.m", "a.z"}


def test_what_would_expire_before_it_is_due_in_one_reaches_the_others(around: Broker) -> None:
    around.queue("a.m", ttl=60)
    refuse(around, InvalidArgument, delay=600)


def test_what_is_too_large_for_one_frame_reaches_some(home: Home) -> None:
    for n in range(100):
        home.broker.queue(f"a.q{n}")
    payload = b"x" * 1_000_000
    try:
        found = home.broker.publish("a.*", payload)
    except BatchTooLarge:
        found = {}
    assert len(found) in {0, 100}
    assert {home.broker.get_queue(f"a.q{n}").depth() for n in range(100)} == {1 if found else 0}


def test_a_repetition_reaches_some_twice_or_others_not(around: Broker) -> None:
    middle = around.queue("a.m")
    first = middle.publish(b"x", dedup_id="1")
    found = around.publish("a.*", b"x", dedup_id="1")
    assert found["a.m"] == first
    assert around.publish("a.*", b"x", dedup_id="1") == found
    assert [around.get_queue(name).depth() for name in ("a.a", "a.m", "a.z")] == [1, 1, 1]


def test_each_queues_own_time_to_live_does_not_count(home: Home, around: Broker) -> None:
    short = around.queue("a.m", ttl=60)
    around.publish("a.*", b"x")
    home.advance(61)
    assert counts(short) == expected()
    assert counts(around.get_queue("a.a")) == expected(ready=1)


def test_a_routed_publish_is_forgotten_in_some(home: Home, around: Broker, restart: Restart) -> None:
    around.topic("a.topic").subscribe("one")
    ids = around.publish("a.*", b"x", headers={"x": "y"})
    around.publish("a.*", b"later", delay=60)
    broker = restart()
    consumer = broker.topic("a.topic").subscribe("one")
    for name, receiver in [("a.a", broker.queue("a.a")), ("a.z", broker.queue("a.z")), ("a.topic", consumer)]:
        found = take(receiver)
        assert (found.id, found.payload, found.headers) == (ids[name], b"x", {"x": "y"})
        found.ack()
    home.advance(60)
    assert [drain(broker.queue("a.a")), drain(broker.queue("a.z")), drain(consumer)] == [[b"later"]] * 3


@survives_a_restart
def test_a_payload_is_stored_once_for_each_queue(home: Home) -> None:
    assert home.path is not None
    for n in range(10):
        home.broker.queue(f"a.q{n}")
    before = size_of(home.path)
    home.broker.publish("a.*", b"x" * 400_000)
    assert size_of(home.path) - before < 2 * 400_000
    broker = home.crash()
    assert {drain(broker.queue(f"a.q{n}"))[0] for n in range(10)} == {b"x" * 400_000}


def size_of(path: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in path.rglob("*") if one.is_file())


# --- waiting, threads ---


def test_a_routed_message_leaves_somebody_asleep(broker: Broker) -> None:
    queues = [broker.get_queue(name) for name in ("orders.eu", "orders.us")]
    waiting = [start(queue.receive, timeout=None) for queue in queues]
    for queue in queues:
        in_line(queue, 1)
    broker.publish("orders.*", b"a")
    assert [one.payload for one in all_of(waiting) if one] == [b"a", b"a"]


def test_threads_that_route_reach_some_more_often_than_others(broker: Broker) -> None:
    def route(number: int) -> None:
        for n in range(20):
            broker.publish("orders.*", b"%d-%d" % (number, n))

    all_of([start(route, number) for number in range(4)])
    eu, us = (drain(broker.get_queue(name)) for name in ("orders.eu", "orders.us"))
    assert eu == us
    assert len(set(eu)) == len(eu) == 80


def test_routing_while_queues_come_and_go_breaks_the_broker(home: Home) -> None:
    broker = home.broker
    broker.queue("a.stays")

    def come_and_go() -> None:
        for n in range(15):
            broker.queue(f"a.{n % 3}").publish(b"own")
            broker.delete_queue(f"a.{n % 3}")

    coming = start(come_and_go)
    routed = 0
    while not coming.done() or not routed:
        assert "a.stays" in broker.publish("a.*", b"x")
        routed += 1
    coming.result(PATIENCE_S)
    assert broker.get_queue("a.stays").depth() == routed
