"""An answer waits until what it rests on is durable, also where whoever asks has written nothing himself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.sync import Delivery
from penstock.message import Message
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.broker.test_embedded import Place, Stop

Stopping = Callable[[], Stop]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.broker.close()


@pytest.fixture
def stopping(disk: Place) -> Iterator[Stopping]:
    """Holds up syncs from a moment on; whatever becomes of the test, they pass in the end."""
    stops: list[Stop] = []

    def begin() -> Stop:
        stops.append(Stop(disk.files))
        return stops[-1]

    yield begin
    for stop in stops:
        stop.open()


def held_up(stop: Stop, call: Future[Any]) -> bool:
    """Return when a call is held up by a sync, or was answered without one."""
    until(lambda: call.done() or stop.reached.acquire(blocking=False))
    return not call.done()


def waits_for_others(place: Place, call: Future[Any]) -> bool:
    """Return when a call that has nothing to write waits for what others write, or was answered without that."""
    group = place.port.monitor.journal._group  # type: ignore[union-attr]
    until(lambda: call.done() or any(ticket.at_rest for ticket in list(group._pending)))
    return not call.done()


def payload_of(call: Future[Delivery | None]) -> bytes:
    found = call.result(PATIENCE_S)
    assert found is not None
    return found.payload


# --- what is published and settled ---


@pytest.mark.parametrize("how", ["publish", "publish with headers", "ack", "nack", "reject"])
def test_publish_and_settlement_return_when_they_are_on_the_disk(
    disk: Place, stopping: Stopping, how: str
) -> None:
    disk.queue.publish(b"0")
    delivery = disk.queue.receive()
    assert delivery is not None
    calls: dict[str, Callable[[], object]] = {
        "publish": lambda: disk.queue.publish(b"1"),
        "publish with headers": lambda: disk.queue.publish(b"1", headers={"a": "b"}),
        "ack": delivery.ack,
        "nack": delivery.nack,
        "reject": delivery.reject,
    }
    stop = stopping()
    call = start(calls[how])
    assert held_up(stop, call)
    stop.open()
    call.result(PATIENCE_S)


# --- what is settled when it is handed out ---


@pytest.mark.parametrize("how", ["policy", "auto_ack"])
def test_a_message_is_handed_out_before_it_is_durable_that_it_was(
    disk: Place, stopping: Stopping, how: str
) -> None:
    queue = disk.broker.queue("once", delivery="at-most-once" if how == "policy" else "at-least-once")
    consumer = queue.subscribe("c", auto_ack=how == "auto_ack")
    queue.publish(b"0")
    stop = stopping()
    receiving = start(consumer.receive)
    assert held_up(stop, receiving)
    stop.open()
    assert payload_of(receiving) == b"0"
    after = disk.crashed()
    assert after.broker.queue("once").depth() == 0
    after.broker.close()


@pytest.mark.parametrize("how", ["policy", "auto_ack"])
def test_a_message_is_handed_to_one_who_waits_before_it_is_durable_that_it_was(
    disk: Place, stopping: Stopping, how: str
) -> None:
    queue = disk.broker.queue("once", delivery="at-most-once" if how == "policy" else "at-least-once")
    consumer = queue.subscribe("c", auto_ack=how == "auto_ack")
    receiving = start(consumer.receive, None)
    until(lambda: queue.stats().waiting == 1)
    stop = stopping()
    publishing = start(queue.publish, b"0")
    assert held_up(stop, publishing)
    stop.let_one_pass()
    publishing.result(PATIENCE_S)
    assert held_up(stop, receiving)
    stop.open()
    assert payload_of(receiving) == b"0"


# --- what another is just making ---


@pytest.mark.parametrize("call", ["queue", "get_queue"])
def test_a_queue_is_there_before_its_declaration_is_durable(
    disk: Place, stopping: Stopping, call: str
) -> None:
    stop = stopping()
    first = start(disk.broker.queue, "new")
    assert held_up(stop, first)
    second = start(getattr(disk.broker, call), "new")
    assert waits_for_others(disk, second)
    stop.open()
    assert (first.result(PATIENCE_S).name, second.result(PATIENCE_S).name) == ("new", "new")


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_repeated_publish_is_answered_before_the_first_is_durable(
    disk: Place, stopping: Stopping, delivery: str
) -> None:
    queue = disk.broker.queue("deduplicated", delivery=delivery)
    stop = stopping()
    first = start(queue.publish, b"0", dedup_id="a")
    assert held_up(stop, first)
    second = start(queue.publish, b"0", dedup_id="a")
    assert waits_for_others(disk, second)
    stop.open()
    assert first.result(PATIENCE_S) == second.result(PATIENCE_S)
    assert queue.depth() == 1


def test_a_batch_of_repetitions_is_answered_before_the_first_is_durable(
    disk: Place, stopping: Stopping
) -> None:
    batch = [Message(b"0", dedup_id="a"), Message(b"1", dedup_id="b")]
    stop = stopping()
    first = start(disk.queue.publish_many, batch)
    assert held_up(stop, first)
    second = start(disk.queue.publish_many, batch[::-1])
    assert waits_for_others(disk, second)
    stop.open()
    assert first.result(PATIENCE_S) == second.result(PATIENCE_S)[::-1]


# --- what comes of a consumer that goes ---


def test_a_dead_letter_of_one_who_went_is_there_before_it_is_durable(disk: Place, stopping: Stopping) -> None:
    mortal = disk.broker.queue("mortal", on_expire="dead-letter", visibility_timeout=None)
    dead = mortal.dead_letters()
    mortal.publish(b"letter", ttl=5)
    consumer = mortal.subscribe("c")
    assert consumer.receive() is not None
    disk.clock.advance(6)
    disk.port.wake()  # its time is over, and it is still handed out
    stop = stopping()
    closing = start(consumer.close)
    assert held_up(stop, closing)
    assert dead.peek() == []
    stop.open()
    closing.result(PATIENCE_S)
    assert [found.payload for found in dead.peek(9)] == [b"letter"]
    after = disk.crashed()
    assert [found.payload for found in after.broker.get_queue("mortal.dlq").peek(9)] == [b"letter"]
    assert after.broker.queue("mortal").depth() == 0
    after.broker.close()


# --- what another has just done ---


def test_dead_letters_are_there_before_their_declaration_is_durable(disk: Place, stopping: Stopping) -> None:
    stop = stopping()
    first = start(disk.queue.dead_letters)
    assert held_up(stop, first)
    second = start(disk.queue.dead_letters)
    assert waits_for_others(disk, second)
    stop.open()
    assert first.result(PATIENCE_S).name == second.result(PATIENCE_S).name == "q.dlq"


def test_a_queue_is_empty_before_its_purge_is_durable(disk: Place, stopping: Stopping) -> None:
    disk.queue.publish_many([b"0", b"1"])
    stop = stopping()
    first = start(disk.queue.purge)
    assert held_up(stop, first)
    second = start(disk.queue.purge)
    assert waits_for_others(disk, second)
    stop.open()
    assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == (2, 0)
