"""Those who wait are served one after the other: what is handed to one is never meant for another, or for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import sync
from penstock.message import Message
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.broker.test_embedded import Place


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


def keyed(*payloads: bytes) -> list[bytes | Message]:
    return [Message(payload, key="k") for payload in payloads]


def wait(queue: sync.Queue, consumers: list[sync.Consumer]) -> list[Any]:
    """Each waits for a message, in their order."""
    waiting = []
    for number, consumer in enumerate(consumers, 1):
        waiting.append(start(consumer.receive, None))
        until(lambda number=number: queue.stats().waiting == number)  # type: ignore[misc]
    return waiting


@pytest.mark.parametrize("how", ["policy", "auto_ack"])
def test_the_next_of_a_key_is_granted_to_one_who_was_granted_the_first(place: Place, how: str) -> None:
    """Settling the first of a key while handing it out makes the next one ready, in the middle of serving."""
    policy = {"delivery": "at-most-once"} if how == "policy" else {}
    queue = place.broker.queue("keyed", ordering="key", **policy)
    consumers = [queue.subscribe(name, auto_ack=how == "auto_ack") for name in "abc"]
    waiting = wait(queue, consumers)
    queue.publish_many(keyed(b"0", b"1"))
    first, second = (one.result(PATIENCE_S) for one in waiting[:2])
    assert (first.payload, second.payload) == (b"0", b"1")
    assert (queue.depth(), queue.stats().waiting) == (0, 1)
    queue.publish_many(keyed(b"2", b"3", b"4"))
    assert waiting[2].result(PATIENCE_S).payload == b"2"
    left = [consumers[0].receive() for _ in range(2)]
    assert [found.payload for found in left if found] == [b"3", b"4"]
    assert queue.depth() == 0


def test_one_who_gets_many_of_a_key_gets_more_than_is_ready(place: Place) -> None:
    queue = place.broker.queue("keyed", ordering="key", delivery="at-most-once")
    waiting = start(queue.receive_many, 5, None)
    until(lambda: queue.stats().waiting == 1)
    queue.publish_many(keyed(b"0", b"1"))
    got = [found.payload for found in waiting.result(PATIENCE_S)]
    got += [found.payload for found in queue.receive_many(5)]
    assert (got, queue.depth()) == ([b"0", b"1"], 0)


def test_behind_a_lost_message_of_a_key_others_are_leased_for_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read is dropped while serving, and makes the next of its key ready."""
    queue = place.broker.queue("keyed", ordering="key")
    shelf: Any = place.port.monitor.shelf
    whole = shelf.get
    monkeypatch.setattr(
        shelf, "get", lambda log, offset, *stop: None if offset == 0 else whole(log, offset, *stop)
    )
    waiting = start(queue.receive_many, 5, None)
    until(lambda: queue.stats().waiting == 1)
    queue.publish_many([*keyed(b"lost"), b"other", *keyed(b"next")])
    first = waiting.result(PATIENCE_S)
    assert [found.payload for found in first] == [b"other"]
    second = queue.receive_many(5)
    assert [found.payload for found in second] == [b"next"]
    assert (queue.stats().leased, queue.stats().waiting) == (2, 0)
    queue.ack_many([*first, *second])
    assert queue.depth() == 0
