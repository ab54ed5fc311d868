"""Queues on a disk that is really full: consuming gives the space back, without anybody's help and whoever consumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker import upkeep
from penstock.broker.embedded import Embedded
from penstock.broker.opening import on_disk
from penstock.broker.sync import Broker, Queue
from penstock.errors import DiskFull
from tests.faults.disk import SmallDisk
from tests.unit.broker.patience import until

SEGMENT_BYTES = 1 << 20
PAYLOAD = b"x" * 20_000


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    monkeypatch.setattr(upkeep, "PRESSED_PAUSE_S", 0.01)
    with SmallDisk(tmp_path, 12) as disk:
        yield disk


def opened(disk: SmallDisk) -> Broker:
    return Broker(on_disk(disk.path / "data", segment_bytes=SEGMENT_BYTES))


def publishes(queue: Queue) -> bool:
    """Whether there is room for one more."""
    try:
        queue.publish(PAYLOAD)
    except DiskFull:
        return False
    return True


def fill(queue: Queue) -> int:
    """How many messages there are when the disk is full."""
    while publishes(queue):
        pass
    return queue.depth()


def consume(queue: Queue, left: int = 0) -> None:
    while (count := min(50, queue.stats().ready - left)) > 0:
        queue.ack_many(queue.receive_many(count))


def test_a_full_disk_stays_full_after_everything_was_consumed(disk: SmallDisk) -> None:
    with opened(disk) as broker:
        queue = broker.queue("q")
        full = fill(queue)
        assert full > 100
        for _ in range(3):
            consume(queue)
            until(lambda: fill(queue) > full // 2)  # as cleaning goes on
    with opened(disk) as broker:
        assert broker.queue("q").depth() > full // 2


def test_what_only_the_newest_snapshot_covers_stays_until_somebody_acknowledges_again(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may: there is nothing left to acknowledge, and no room to publish."""
    monkeypatch.setattr(upkeep.Upkeep, "_begin", lambda _self: None)
    with opened(disk) as broker:
        queue, port = broker.queue("q"), broker._port
        assert isinstance(port, Embedded)
        assert port.monitor.upkeep is not None
        full = fill(queue)
        consume(queue, left=full // 2)
        for _ in range(3):
            port.monitor.upkeep.run()
            assert fill(queue) > full // 2
            consume(queue)


def test_a_full_disk_stays_full_after_the_first_half_was_consumed(disk: SmallDisk) -> None:
    with opened(disk) as broker:
        queue = broker.queue("q")
        full = fill(queue)
        consume(queue, left=full // 2)
        until(lambda: publishes(queue))
        assert queue.depth() == full // 2 + 1


def test_a_disk_that_was_full_when_its_owner_went_stays_full(disk: SmallDisk) -> None:
    with opened(disk) as broker:
        queue = broker.queue("q")
        full = fill(queue)
        consume(queue)
    with opened(disk) as broker:
        queue = broker.queue("q")
        assert queue.depth() == 0
        until(lambda: fill(queue) > full // 2)


def test_owners_who_publish_nothing_leave_a_full_disk_full(disk: SmallDisk) -> None:
    with opened(disk) as broker:
        full = fill(broker.queue("q"))
    with opened(disk) as broker:
        consume(broker.queue("q"))
    for _ in range(3):  # what is cleaned must be covered by two snapshots, and each of them keeps one
        opened(disk).close()
    with opened(disk) as broker:
        queue = broker.queue("q")
        assert publishes(queue)
        assert fill(queue) > full // 2


def test_a_disk_that_is_full_of_what_is_needed_loses_something_of_it(disk: SmallDisk) -> None:
    with opened(disk) as broker:
        queue = broker.queue("q")
        ids = [found.id for found in queue.peek(fill(queue))]
        for _ in range(20):
            assert not publishes(queue)
        delivery = queue.receive()
        assert delivery is not None
        delivery.ack()
    with opened(disk) as broker:
        assert [found.id for found in broker.queue("q").peek(len(ids))] == ids[1:]
