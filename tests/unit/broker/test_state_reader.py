"""A broker's state, read from outside while its owner is at work."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.broker.state_reader import StateReader
from penstock.errors import CorruptJournal, QueueNotFound
from penstock.message import Message
from penstock.model.stats import QueueStats

#: What only the owner's process knows.
LIVE = ("consumers", "waiting", "delivered", "acked")


def known(stats: QueueStats) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(stats)
    for name in LIVE:
        del found[name]
    return found


def seen(broker: penstock.Broker) -> dict[str, Any]:
    queues = [broker.get_queue(name) for name in broker.list_queues()]
    shown = [*queues, *(broker.get_topic(name) for name in broker.list_topics())]
    return {one.name: (known(one.stats()), [m.payload for m in one.peek(1000)]) for one in shown}


def files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(path.iterdir()) if one.is_file()}


def work(broker: penstock.Broker, chance: random.Random, number: int) -> None:
    """Some of everything. The last of it is durable when this returns, and so is what was before."""
    orders = broker.queue("orders")
    orders.publish_many(
        [Message(b"%d.%d" % (number, n), priority=chance.choice([1, 100]), delay=chance.choice([None, 3600])) for n in range(chance.randrange(1, 200))]
    )  # fmt: skip
    for delivery in orders.receive_many(chance.randrange(1, 150)):
        ends: list[Any] = [delivery.ack, delivery.ack, delivery.nack, delivery.reject, None]
        if end := chance.choice(ends):
            end()
    broker.topic("events").publish(b"event %d" % number, headers={"n": str(number)})
    broker.queue("bounded", max_bytes=1 << 20).publish(b"x" * number)


def test_it_is_the_owners_state_after_any_work_and_cleaning(tmp_path: Path) -> None:
    chance = random.Random(8)
    with penstock.open(tmp_path / "q", segment_bytes=1 << 16) as broker:
        broker.queue("orders", visibility_timeout=None, backoff=penstock.Backoff(initial=3600, maximum=3600))
        broker.topic("events").subscribe("audit").close()
        work(broker, chance, 0)
        following = penstock.Broker(StateReader(tmp_path / "q"))
        upkeep: Any = broker._port.monitor.upkeep  # type: ignore[attr-defined]
        for number in range(1, 25):
            work(broker, chance, number)
            if chance.random() < 0.4:
                upkeep.run()
            if chance.random() < 0.5:  # now and then it falls behind what was cleaned
                assert seen(following) == seen(broker)
            if not number % 8:
                assert seen(penstock.Broker(StateReader(tmp_path / "q"))) == seen(broker)
        assert seen(following) == seen(broker)
        assert sum(one.damaged_messages for one in [following.stats().journal, broker.stats().journal]) == 0


def test_it_counts_what_is_delivered_and_acked_while_it_looks(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q") as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b", b"c"])
        reader = penstock.Broker(StateReader(tmp_path / "q"))
        orders.ack_many(orders.receive_many(2))
        reader.list_queues()
        found = reader.get_queue("orders").stats()
        assert (found.delivered, found.acked, found.depth) == (2, 2, 1)


def test_what_falls_due_is_ready_though_no_commit_says_so(tmp_path: Path) -> None:
    clock = penstock.clock.ManualClock()  # years before the clock of the reader
    with penstock.open(tmp_path / "q", clock=clock) as broker:
        broker.queue("orders").publish(b"later", delay=60)
        found = penstock.Broker(StateReader(tmp_path / "q")).get_queue("orders")
        assert (found.stats().ready, found.stats().delayed) == (1, 0)
        assert broker.queue("orders").stats().delayed == 1


def test_looking_writes_nothing(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q") as broker:
        broker.queue("orders", expires=1).publish_many([b"a", b"b"])
        before = files(tmp_path / "q")
        reader = penstock.Broker(StateReader(tmp_path / "q"))
        assert [one.payload for one in reader.get_queue("orders").peek(9)] == [b"a", b"b"]
        with pytest.raises(QueueNotFound):
            reader.get_queue("nowhere")
        reader.stats()
        reader.close()
        assert files(tmp_path / "q") == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptJournal):
        StateReader(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
