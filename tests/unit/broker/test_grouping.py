"""Groups made, ended and sent elsewhere while others publish, receive and fail."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import JournalFailed, LeaseLost, PenstockError, PolicyConflict, TopicNotFound
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.broker.test_embedded import Place, Stop
from tests.unit.journal.watched import failing, nothing


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.files.before = nothing
    found.broker.close()


def payloads(found: Any) -> list[bytes]:
    return [one.payload for one in found]


# --- terms ---


def test_another_spelling_of_a_filter_is_another_filter(place: Place) -> None:
    topic = place.broker.topic("events")
    topic.subscribe("s", filter="region = 'eu' AND priority < 3")
    topic.subscribe("s", filter="  region='eu'   and priority<3 ")
    for other in (None, "region = 'us'"):
        with pytest.raises(PolicyConflict, match="filter="):
            topic.subscribe("s", filter=other)
    assert topic.stats().groups["s"].consumers == topic.subscription("s").consumers()


def test_a_strategy_that_was_not_given_is_compared(place: Place) -> None:
    place.queue.group("g", strategy="random")
    place.queue.group("g")
    with pytest.raises(PolicyConflict, match="strategy="):
        place.queue.group("g", strategy="least-busy")


def test_terms_are_forgotten(disk: Place) -> None:
    disk.queue.group("g", strategy="random")
    disk.broker.topic("events").subscribe("s", filter="key = 'k'")
    after = disk.crashed()
    with pytest.raises(PolicyConflict, match="strategy="):
        after.queue.group("g", strategy="least-busy")
    assert after.broker.topic("events").stats().groups["s"].filter == "key = 'k'"
    after.broker.close()


# --- durable before it is said ---


def test_a_group_is_said_to_be_there_before_it_is_durable(disk: Place) -> None:
    stop = Stop(disk.files)
    making = start(disk.queue.group, "g")
    stop.wait()
    assert not making.done()
    stop.open()
    assert making.result(PATIENCE_S).name == "g"
    after = disk.crashed()
    assert "g" in after.queue.stats().groups
    after.broker.close()


@pytest.mark.parametrize("what", ["subscribe", "unsubscribe", "seek"])
@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_disk_that_fails_leaves_a_group_in_two_places(disk: Place, what: str, call: str) -> None:
    topic = disk.broker.topic("events", retain_seconds=3600)
    first = topic.subscribe("first")
    topic.publish(b"0")
    topic.publish(b"1")
    for one in first.receive_many(2):
        one.ack()
    subscription = topic.subscription("first")
    disk.files.before = failing(call, errno.EIO)
    calls: dict[str, Callable[[], object]] = {
        "subscribe": lambda: topic.subscribe("second", start="earliest"),
        "unsubscribe": lambda: topic.unsubscribe("first"),
        "seek": lambda: subscription.seek(offset=1),
    }
    with pytest.raises(PenstockError):
        calls[what]()
    with pytest.raises(JournalFailed):
        topic.publish(b"2")
    disk.files.before = nothing
    after = disk.crashed()
    topic = after.broker.topic("events")
    groups = {name: found.lag for name, found in topic.stats().groups.items()}
    expected: list[dict[str, int]] = {
        "subscribe": [{"first": 0}, {"first": 0, "second": 2}],
        "unsubscribe": [{"first": 0}, {}],
        "seek": [{"first": 0}, {"first": 1}],
    }[what]
    assert groups in expected
    after.broker.close()


# --- those who wait ---


def test_who_waits_in_a_group_that_ends_waits_for_ever(place: Place) -> None:
    topic = place.broker.topic("events")
    consumer = topic.subscribe("s")
    waiting = start(consumer.receive, None)
    until(lambda: topic.stats().waiting == 1)
    topic.unsubscribe("s")
    with pytest.raises(TopicNotFound):
        waiting.result(PATIENCE_S)
    assert topic.stats().waiting == 0


def test_who_waits_is_not_woken_by_a_seek(place: Place) -> None:
    queue = place.broker.queue("kept", retain_seconds=3600)
    group = queue.group("g")
    queue.publish(b"0")
    found = group.receive()
    assert found is not None
    found.ack()
    waiting = start(group.receive, None)
    until(lambda: queue.stats().waiting == 1)
    group.seek(offset=0)
    again = waiting.result(PATIENCE_S)
    assert again is not None
    assert (again.payload, again.attempt) == (b"0", 1)


def test_one_who_waits_takes_what_another_groups_message_is(place: Place) -> None:
    groups = [place.queue.group(name) for name in "abc"]
    waiting = [start(group.receive, None) for group in groups]
    place.waiting(3)
    place.queue.publish(b"x")
    got = [one.result(PATIENCE_S) for one in waiting]
    assert [found.payload for found in got if found] == [b"x"] * 3


def test_a_lease_outlives_a_seek_or_the_end_of_its_group(place: Place) -> None:
    topic = place.broker.topic("events", retain_seconds=3600)
    consumer = topic.subscribe("s")
    topic.publish(b"0")
    first = consumer.receive()
    assert first is not None
    topic.subscription("s").seek(offset=0)
    for settle in (first.ack, first.nack, first.reject, first.requeue):
        with pytest.raises(LeaseLost):
            settle()
    second = consumer.receive()
    assert second is not None
    topic.unsubscribe("s")
    with pytest.raises(LeaseLost):
        second.ack()
    topic.subscribe("s", start="earliest")
    with pytest.raises(LeaseLost):
        second.ack()


# --- fan-out ---


def test_a_snapshot_forgets_where_a_group_is(disk: Place) -> None:
    topic = disk.broker.topic("events", retain_seconds=3600)
    consumers = {name: topic.subscribe(name) for name in "abc"}
    topic.publish_many([b"%d" % n for n in range(10)])
    for count, consumer in enumerate(consumers.values()):
        for one in consumer.receive_many(3 * count) if count else []:
            one.ack()
    disk.port.monitor.upkeep.run()  # type: ignore[union-attr]
    topic.publish(b"last")
    after = disk.crashed()
    topic = after.broker.topic("events")
    assert [topic.subscription(name).lag() for name in "abc"] == [11, 8, 5]
    assert payloads(topic.subscription("c").receive_many(99)) == [b"6", b"7", b"8", b"9", b"last"]
    after.broker.close()


def test_fan_out_writes_a_message_more_than_once(disk: Place) -> None:
    topic = disk.broker.topic("events")
    for n in range(10):
        topic.subscribe(f"s{n}")
    journal = disk.port.monitor.journal
    assert journal is not None
    before = journal.written
    topic.publish(b"x" * 100_000)
    assert journal.written - before < 110_000


def test_an_ephemeral_subscription_writes_something(disk: Place) -> None:
    topic = disk.broker.topic("events")
    consumer = topic.subscribe(durable=False)
    topic.publish(b"0")
    disk.files.calls.clear()
    delivery = consumer.receive()
    assert delivery is not None
    delivery.ack()
    consumer.close()
    assert {"pwrite", "pwritev", "fdatasync"}.isdisjoint(disk.files.calls)
    assert topic.subscriber_count() == 0
