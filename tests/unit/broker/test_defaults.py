"""A broker may have a policy of its own for what is made in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import errors
from penstock.broker import opening, sync
from penstock.policy import Policy

DEFAULTS = Policy.of(ttl=60, max_depth=3, max_attempts=7, max_message_bytes=10)


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sync.Broker]:
    path = tmp_path / "data" if request.param == "disk" else None
    settings: dict[str, Any] = {"durability": "os", "commit_interval_ms": 5.0, "segment_bytes": 1 << 20}
    with sync.Broker(opening.port(path, None, 0, defaults=DEFAULTS, **settings)) as opened:
        yield opened


def stored(broker: sync.Broker, name: str) -> Policy:
    return broker.get_queue(name).policy


def test_a_queue_that_says_nothing_does_not_get_them(broker: sync.Broker) -> None:
    broker.queue("orders")
    assert stored(broker, "orders") == DEFAULTS


def test_they_override_what_a_queue_says(broker: sync.Broker) -> None:
    broker.queue("orders", ttl=None, max_attempts=2)
    policy = stored(broker, "orders")
    assert (policy.ttl, policy.max_attempts, policy.max_depth) == (None, 2, 3)


def test_opening_an_existing_queue_without_arguments_is_a_conflict(broker: sync.Broker) -> None:
    broker.queue("orders", max_attempts=2)
    broker.queue("orders")


def test_they_apply_to_dead_letters(broker: sync.Broker) -> None:
    broker.queue("orders").dead_letters()
    assert stored(broker, "orders.dlq").max_attempts is None


def test_a_queue_that_a_transaction_makes_is_without_them(broker: sync.Broker) -> None:
    with broker.transaction() as tx:
        tx.publish("made", b"1")
    assert stored(broker, "made") == DEFAULTS


def test_a_transaction_overfills_a_queue_that_it_makes(broker: sync.Broker) -> None:
    tx = broker.transaction()
    for _ in range(4):
        tx.publish("made", b"1")
    with pytest.raises(errors.QueueFull):
        tx.commit()
    assert broker.list_queues() == []


def test_a_transaction_puts_too_large_a_message_into_a_queue_that_it_makes(broker: sync.Broker) -> None:
    with pytest.raises(errors.MessageTooLarge), broker.transaction() as tx:
        tx.publish("made", b"x" * 11)
    assert broker.list_queues() == []
