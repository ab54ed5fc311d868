"""A broker in use keeps its journal short, and loses nothing by it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker import sync, upkeep
from penstock.broker.embedded import Embedded
from penstock.broker.opening import on_disk
from penstock.clock import ManualClock
from penstock.engine.lease import Lease, Leases
from penstock.errors import JournalFailed
from tests import asking
from tests.conformance.unheard import UnheardClock
from tests.unit.broker.patience import until
from tests.unit.journal.watched import Watched, failing, nothing

SEGMENT_BYTES = 16384


class Place:
    """A broker over small segments, and what a kill would leave of it."""

    def __init__(self, path: Path, clock: ManualClock | None = None) -> None:
        self.path = path
        self.clock = clock or UnheardClock()
        self.files = Watched()
        self.port = on_disk(path, self.clock, segment_bytes=SEGMENT_BYTES, files=self.files, durability="os")
        self.broker = sync.Broker(self.port)
        self.queue = self.broker.queue("q")

    @property
    def upkeep(self) -> upkeep.Upkeep:
        found = self.port.monitor.upkeep
        assert found is not None
        return found

    def segments(self) -> int:
        return len(list(self.path.glob("*.segment")))

    def crashed(self, name: str) -> Place:
        left = self.path.with_name(name)
        shutil.copytree(self.path, left)
        return Place(left, self.clock)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.broker.close()


def consume(queue: sync.Queue, count: int) -> None:
    for start in range(0, count, 10):
        queue.publish_many([b"%d " % (start + row) * 50 for row in range(10)])
        queue.ack_many(queue.receive_many(10))


def keep_up(place: Place) -> None:
    """What two snapshots cover is cleaned: let there be two, with something between them."""
    for _ in range(3):
        place.upkeep.run()
        consume(place.queue, 10)


def report(port: Embedded) -> int:
    """How many frames were replayed when it was opened."""
    return int(asking.broker_stats(port).journal.recovery.frames)


def test_consumed_segments_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "CHANGES_AT_ONCE", 60)
    kept = place.queue.publish_many([b"kept %d" % number for number in range(3)])
    held = place.queue.receive_many(3)
    grown = 0
    for _ in range(12):
        consume(place.queue, 200)
        until(lambda: not place.upkeep._due.is_set())
        grown = max(grown, place.segments())
    until(lambda: len(asking.broker_stats(place.port).journal.snapshots) == 2)
    keep_up(place)
    assert place.segments() <= 6
    after = place.crashed("after")
    assert report(after.port) < 200
    assert after.queue.depth() == 3
    assert [d.id for d in after.queue.receive_many(9)] == kept
    after.broker.close()
    place.queue.ack_many(held)


def test_opening_replays_what_a_snapshot_holds(place: Place) -> None:
    consume(place.queue, 500)
    before = place.crashed("before")
    assert report(before.port) > 100
    before.broker.close()
    place.upkeep.run()
    consume(place.queue, 10)
    after = place.crashed("after")
    assert report(after.port) < 12
    assert after.queue.stats().published == 510
    after.broker.close()


def test_a_message_in_the_middle_of_what_was_consumed_is_lost(place: Place) -> None:
    ids: dict[int, bytes] = {}
    for number in range(40):
        ids[place.queue.publish(b"kept %d" % number, delay=1000 + number)] = b"kept %d" % number
        consume(place.queue, 20)
    keep_up(place)
    assert asking.broker_stats(place.port).journal.messages < 400
    after = place.crashed("after")
    place.clock.advance(2000)
    after.port.wake()
    assert {d.id: d.payload for d in after.queue.receive_many(100)} == ids
    place.port.wake()
    assert {d.id: d.payload for d in place.queue.receive_many(100)} == ids
    after.broker.close()


def test_dead_letters_are_cleaned_with_the_messages_they_were(place: Place) -> None:
    for number in range(30):
        place.queue.publish(b"%d " % number * 50)
        delivery = place.queue.receive()
        assert delivery is not None
        delivery.reject(error="no")
        consume(place.queue, 20)
    keep_up(place)
    after = place.crashed("after")
    letters = after.queue.dead_letters().receive_many(100)
    assert [d.payload for d in letters] == [b"%d " % number * 50 for number in range(30)]
    assert after.queue.redrive() == 0  # they are handed out
    after.broker.close()


def test_a_deleted_queue_is_kept_on_the_disk(place: Place) -> None:
    other = place.broker.queue("other")
    other.publish_many([b"x" * 500] * 100)
    place.broker.delete_queue("other")
    consume(place.queue, 100)
    keep_up(place)
    assert asking.broker_stats(place.port).journal.messages < 80


def test_nothing_is_said_of_upkeep_that_was_not_done(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    consume(place.queue, 100)
    place.files.before = failing("open", errno.EIO, path=".snapshot")
    place.upkeep.run()
    assert "upkeep was not done" in caplog.text
    place.files.before = nothing
    consume(place.queue, 10)  # and the broker goes on
    place.upkeep.run()
    assert asking.broker_stats(place.port).journal.snapshots


@pytest.mark.parametrize("how", ["upkeep", "closing"])
def test_a_change_that_was_left_half_done_is_kept(
    place: Place, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.queue.publish_many([b"a", b"b", b"c"])

    def interrupted(leases: Leases, lease: Lease) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between the lanes and the leases
        patch.setattr(Leases, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            place.queue.receive_many(3)
    with pytest.raises(JournalFailed):
        place.queue.publish(b"d")
    if how == "upkeep":
        place.upkeep.run()
        assert "upkeep was not done" in caplog.text
        with pytest.raises(JournalFailed):
            place.upkeep.dead_ranges(1, 0, 9)
        after = place.crashed("after")
    else:
        place.broker.close()
        after = Place(place.path, place.clock)
    assert [delivery.payload for delivery in after.queue.receive_many(9)] == [b"a", b"b", b"c"]
    after.broker.close()


def test_upkeep_is_done_for_every_change(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "CHANGES_AT_ONCE", 50)
    while place.upkeep._changes < 48:
        place.queue.publish(b"x")
    assert place.upkeep._thread is None
    place.queue.publish_many([b"x"] * 10)
    place.queue.publish(b"x")
    assert place.upkeep._thread is not None
    until(lambda: asking.broker_stats(place.port).journal.snapshots)


def test_closing_leaves_upkeep_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "CHANGES_AT_ONCE", 5)
    place = Place(tmp_path / "data")
    consume(place.queue, 200)
    thread = place.upkeep._thread
    place.broker.close()
    assert thread is not None
    assert not thread.is_alive()
    place.upkeep.count()
    again = Place(tmp_path / "data", place.clock)
    assert report(again.port) == 0
    again.broker.close()
