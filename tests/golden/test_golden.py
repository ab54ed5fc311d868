"""Directories that commit 8d71885 wrote open as they did then. `make.py` says what is in them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.clock import ManualClock
from tests.golden.make import FAR, NOW

HERE: Final = Path(__file__).parent
LATER_US: Final = int(NOW.timestamp()) * 1_000_000 + 60_000_000


def opened(name: str, scratch: Path) -> penstock.Broker:
    with tarfile.open(HERE / f"{name}.tar.xz") as packed:
        packed.extractall(scratch, filter="data")
    return penstock.open(scratch / name, clock=ManualClock(LATER_US))


def received(queue: penstock.Queue) -> list[tuple[bytes, int]]:
    """Everything that is ready, with its attempt; settled."""
    found = queue.receive_many(1000)
    queue.ack_many(found)
    return [(one.payload, one.attempt) for one in found]


def check_orders(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")
    dead = orders.dead_letters()
    (letter,) = dead.peek(10)
    assert letter.payload == b"order 0"
    assert letter.headers["number"] == "0"
    assert letter.headers["x-error"] == "no such customer"
    stats = orders.stats()
    assert (stats.published, stats.depth, stats.delayed, stats.dead) == (22, 17, 1, 1)
    assert orders.publish(b"again", dedup_id="d-1") == orders.publish(b"again", dedup_id="d-1")
    assert orders.stats().published == 22
    tenth = next(one for one in orders.peek(20) if one.payload == b"order 10")
    assert (tenth.key, tenth.priority, tenth.headers) == ("customer-1", 0, {"number": "10"})
    assert received(orders) == [
        (b"order 12", 1), (b"order 14", 1), (b"order 16", 1), (b"order 18", 1), (b"order 10", 2),
        *((b"order %d" % number, 1) for number in range(1, 20, 2)),
        (b"once", 1),
    ]  # fmt: skip
    (far,) = orders.reader("look", start=20).read_many(1)
    assert (far.payload, far.deliver_at) == (b"far", FAR)
    assert dead.redrive() == 1
    assert received(orders) == [(b"order 0", 1)]


def check_others(broker: penstock.Broker, invoices: int) -> None:
    events = broker.topic("events")
    audit, everything = events.subscription("audit"), events.subscription("all")
    assert [one.payload for one in audit.receive_many(10)] == [b"event 1", b"event 3", b"event 5"]
    assert [one.payload for one in everything.receive_many(10)] == [b"event %d" % one for one in range(6)]
    assert events.reader("billing", hold=True).position() == 1
    queue = broker.queue("invoices")
    assert queue.stats().schedules == ["nightly"]
    assert received(queue) == [(b"invoice %d" % (number + 1), 1) for number in range(invoices)]
    assert "gone" not in broker.list_queues()
    assert received(broker.namespace("tenant").queue("orders")) == [(b"a tenant's order", 1)]


def check_log(broker: penstock.Broker, *, leased: int = 0) -> None:
    """A message that was leased when the process died has used an attempt."""
    found = received(broker.queue("log"))
    assert [(int(payload[:4]), attempt) for payload, attempt in found] == [
        (number, 2 if number < 100 + leased else 1) for number in range(100, 300)
    ]


@pytest.mark.parametrize("name", ["closed", "killed", "snapshots"])
def test_directory_of_an_earlier_release_opens_with_all_it_held(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as broker:
        check_orders(broker)
        check_others(broker, invoices=3 if name == "killed" else 2)
        if name != "closed":
            check_log(broker, leased=10 if name == "killed" else 0)
        assert broker.stats().journal.damaged_messages == 0


def test_spool_of_an_earlier_release_is_taken_in_once(tmp_path: Path) -> None:
    with opened("spool", tmp_path) as broker:
        assert received(broker.queue("sunk")) == [(b"row 0", 1), (b"row 1", 1), (b"row 2", 1)]
        check_orders(broker)


def test_damage_in_a_directory_of_an_earlier_release_costs_only_its_messages(tmp_path: Path) -> None:
    with opened("damaged", tmp_path) as broker:
        found = [int(payload[:4]) for payload, _ in received(broker.queue("log"))]
        assert 150 < len(found) < 200
        assert found == sorted(set(found))
        assert broker.stats().journal.damaged_messages > 0
