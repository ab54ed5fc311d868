"""A directory that was written once must be opened for ever: what the broker puts into the journal's rows and snapshots is pinned here.

The golden directory was made by `python -m tests.unit.broker.test_golden` when the layout was frozen as version 1. It is never made anew: a later
version gets one of its own beside it. `crashed` has no snapshot, so that everything is replayed; `closed` is opened from its last one.
"""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Backoff, Message
from penstock.broker import sync
from penstock.clock import ManualClock

GOLDEN = Path(__file__).parent / "golden" / "v1"
START_US = 1_700_000_000_000_000


def write(path: Path, clock: ManualClock) -> sync.Broker:
    """One of everything that survives."""
    broker = penstock.open(path, clock=clock)
    orders = broker.queue(
        "orders", max_attempts=2, backoff=Backoff(initial=5), ordering="key", retain_seconds=3600
    )
    orders.publish_many(
        [Message(b"%d" % n, key=f"k{n % 2}", headers={"n": str(n)}, priority=n) for n in range(6)]
    )
    orders.publish(b"delayed", delay=600, ttl=6000, dedup_id="once")
    billing = orders.group("billing", "least-busy")
    for delivery in billing.receive_many(9):
        delivery.ack()
    failing = orders.receive()
    assert failing is not None
    failing.reject(error="broken")
    orders.reader("archive", hold=True).commit()
    reader = orders.reader("audit")
    reader.read_many(3)
    reader.commit()
    events = broker.topic("events", retain_bytes=10_000)
    events.subscribe("eu", filter="region = 'eu'").close()
    events.subscribe("all").close()
    events.publish_many([Message(b"e%d" % n, headers={"region": "eu" if n % 2 else "us"}) for n in range(4)])
    events.subscription("all").seek(offset=2)
    events.cancel(events.publish(b"never", delay=100))
    events.schedule("nightly", "0 3 * * *", b"tick", timezone="UTC")
    with broker.transaction() as tx:
        tx.publish("outputs", b"o1")
        tx.publish("outputs", b"o2")
    broker.namespace("team-a").queue("orders").publish(b"theirs")
    orders.alter(max_depth=1000)
    orders.redrive()
    return broker


def described(broker: sync.Broker) -> dict[str, Any]:
    """What somebody sees who opens it."""
    orders, events = broker.get_queue("orders"), broker.get_topic("events")
    return {
        "queues": broker.list_queues(),
        "topics": broker.list_topics(),
        "policy": (orders.policy.max_attempts, orders.policy.max_depth, orders.policy.retain_seconds),
        "orders": [(m.offset, m.payload, m.key, m.headers.get("n")) for m in orders.reader("look").read_many(99)],
        "lags": {name: found.lag for name, found in orders.stats().groups.items()},
        "readers": orders.stats().readers,
        "events": [m.payload for m in events.reader("look").read_many(99)],
        "subscriptions": {name: (g.lag, g.filter) for name, g in events.stats().groups.items()},
        "schedules": events.stats().schedules,
        "outputs": [m.payload for m in broker.get_queue("outputs").peek(9)],
        "theirs": [m.payload for m in broker.namespace("team-a").get_queue("orders").peek(9)],
        "next": [d.payload for d in orders.receive_many(9)],
    }  # fmt: skip


@pytest.mark.parametrize("how", ["closed", "crashed"])
def test_the_golden_directory_is_opened_as_it_was_left(tmp_path: Path, how: str) -> None:
    shutil.copytree(GOLDEN / how, tmp_path / "copy")
    clock = ManualClock(start_us=START_US + 60_000_000)
    with penstock.open(tmp_path / "copy", clock=clock) as broker:
        found = described(broker)
        assert repr(found) == (GOLDEN.parent / "v1.txt").read_text().strip()
        clock.advance(
            (datetime(2023, 11, 15, 3, tzinfo=UTC) - datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)).seconds
            + 1
        )
        consumer = broker.get_topic("events").subscribe("all")
        assert [one.payload for one in consumer.receive_many(9)][-1] == b"tick"


def _make() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    clock = ManualClock(start_us=START_US)
    broker = write(GOLDEN / "closed", clock)
    shutil.copytree(GOLDEN / "closed", GOLDEN / "crashed")
    broker.close()
    for file in GOLDEN.glob("*/lock"):
        file.write_text("the golden owner")
    for file in GOLDEN.glob("*/*.segment"):
        data = file.read_bytes().rstrip(b"\0")
        file.write_bytes(data + bytes(-len(data) % 4096))
    copy = GOLDEN.parent / "copy"
    shutil.copytree(GOLDEN / "crashed", copy)
    with penstock.open(copy, clock=ManualClock(start_us=START_US + 60_000_000)) as again:
        (GOLDEN.parent / "v1.txt").write_text(f"{described(again)!r}\n")
    shutil.rmtree(copy)
    sys.stdout.write(f"made {GOLDEN}\n")


if __name__ == "__main__":
    _make()
