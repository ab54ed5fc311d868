"""A broker in use for long keeps no more of settled messages than one that was just opened: by the short way, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker import sync
from penstock.broker.handing import alive
from penstock.broker.opening import in_memory, on_disk
from penstock.clock import ManualClock
from penstock.engine import log as logs
from penstock.engine.log import Log


def log_of(queue: sync.Queue) -> Log:
    return alive(queue._log)


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    port = (
        in_memory(ManualClock())
        if request.param == "memory"
        else on_disk(tmp_path, ManualClock(), durability="os")
    )
    with sync.Broker(port) as found:
        yield found


def consume_one(queue: sync.Queue) -> None:
    delivery = queue.receive()
    assert delivery is not None
    delivery.ack()


def consume_all(queue: sync.Queue) -> None:
    queue.ack_many(queue.receive_many(100))


@pytest.mark.parametrize("most", [20, 21])  # so that one run too many begins by either way
@pytest.mark.parametrize("consume", [consume_one, consume_all])
def test_the_priorities_of_settled_messages_are_kept(
    broker: sync.Broker, monkeypatch: pytest.MonkeyPatch, consume: Any, most: int
) -> None:
    monkeypatch.setattr(logs, "FEW_KEPT", most)
    queue = broker.queue("q")
    log = log_of(queue)
    kept = 0
    for _ in range(100):
        queue.publish(b"urgent", priority=1)
        consume(queue)
        queue.publish(b"plain")  # by the short way
        consume(queue)
        kept = max(kept, len(log.priorities))
    assert log.plain is not None
    assert (queue.depth(), log.next_offset) == (0, 200)
    assert kept <= most


def test_the_attempts_of_settled_messages_are_kept(broker: sync.Broker) -> None:
    queue = broker.queue("q", backoff=None)
    group = log_of(queue).group()
    for _ in range(10):
        queue.publish(b"x")
        for how in ("nack", "requeue"):
            delivery = queue.receive()
            assert delivery is not None
            getattr(delivery, how)()
        assert len(group.tally) == 1
        consume_one(queue)
        assert len(group.tally) == 0
