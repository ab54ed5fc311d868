"""What is reserved on the disk is there for acknowledging."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.broker.sync import Delivery
from penstock.errors import DiskFull
from penstock.limits import RESERVE_BYTES
from tests.unit.broker.test_embedded import Place
from tests.unit.journal.watched import nothing


def _receive_all(place: Place, held: list[Delivery]) -> None:
    while found := place.queue.receive_many(1):
        held += found


def test_what_was_handed_out_on_a_full_disk_cannot_be_acknowledged(tmp_path: Path) -> None:
    place = Place(tmp_path / "data", durability="os")
    place.queue.publish_many([b"x"] * 5000)

    def full(name: str, _arguments: tuple[object, ...]) -> None:
        if name == "posix_fallocate":
            raise OSError(errno.ENOSPC, "full")

    place.files.before = full
    held: list[Delivery] = []
    with pytest.raises(DiskFull):
        _receive_all(place, held)
    assert len(held) > 100
    for delivery in held:
        delivery.ack()
    assert place.queue.depth() == 5000 - len(held)
    place.files.before = nothing
    place.broker.close()


def test_consuming_uses_up_the_reserve_of_a_disk_that_has_room(tmp_path: Path) -> None:
    place = Place(tmp_path / "data", durability="os")
    place.queue.publish_many([b"x"] * 3000)
    journal = place.port.monitor.journal
    assert journal is not None
    for _ in range(3000):
        place.queue.ack_many(place.queue.receive_many(1))
        assert journal._tail.held.active.room() >= RESERVE_BYTES
    place.broker.close()
