"""What was consumed gives its disk space back: counted in bytes, and at the end of every process, however short."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import sync, upkeep
from penstock.checkup.verify import verify
from tests import asking
from tests.unit.broker.patience import until
from tests.unit.broker.test_upkeep import SEGMENT_BYTES, Place

#: Of a test's messages, so many bytes are consumed in a round.
ROUND_BYTES = 100_000


def one_by_one(queue: sync.Queue) -> None:
    for number in range(ROUND_BYTES // 2000):
        queue.publish(b"%03d " % number * 500)
        delivery = queue.receive()
        assert delivery is not None
        delivery.ack()


def at_once(queue: sync.Queue) -> None:
    """Few changes, many bytes."""
    queue.publish_many([b"%03d " % number * 500 for number in range(ROUND_BYTES // 2000)])
    queue.ack_many(queue.receive_many(1000))


def journal(place: Place) -> Any:
    return asking.broker_stats(place.port).journal


@pytest.mark.parametrize("consume", [one_by_one, at_once])
def test_consumed_bytes_stay_on_the_disk_until_there_were_many_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consume: Callable[[sync.Queue], None]
) -> None:
    monkeypatch.setattr(upkeep, "BYTES_AT_ONCE", ROUND_BYTES // 2)
    place = Place(tmp_path / "data")
    kept = place.queue.publish(b"kept", delay=1000)
    for _ in range(15):
        before = journal(place).sequence
        consume(place.queue)
        until(lambda before=before: [one for one in journal(place).snapshots if one > before])  # type: ignore[misc]
    until(lambda: journal(place).bytes < 4 * ROUND_BYTES)
    assert place.upkeep._changes < upkeep.CHANGES_AT_ONCE
    assert place.segments() < 5 * ROUND_BYTES // SEGMENT_BYTES
    place.broker.close()
    after = Place(tmp_path / "data", place.clock)
    place.clock.advance(1000)
    assert [found.id for found in after.queue.receive_many(9)] == [kept]
    after.broker.close()


def test_upkeep_is_done_for_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "BYTES_AT_ONCE", ROUND_BYTES)
    place = Place(tmp_path / "data")
    while place.port.monitor.journal.written < ROUND_BYTES - 5000:  # type: ignore[union-attr]
        place.queue.publish(b"x" * 2000)
    assert place.upkeep._thread is None
    at_once(place.queue)
    assert place.upkeep._thread is not None
    before = place.upkeep._changes
    place.queue.publish(b"x")
    assert place.upkeep._changes > before  # it counts from there
    place.broker.close()


def test_what_a_killed_process_sealed_is_not_counted_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "data")
    at_once(place.queue)
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    place.broker.close()
    monkeypatch.setattr(upkeep, "BYTES_AT_ONCE", ROUND_BYTES // 2)
    after = Place(tmp_path / "killed", place.clock)
    after.queue.publish(b"x")  # far less than is due by itself
    assert after.upkeep._thread is not None
    after.broker.close()


def test_without_a_thread_upkeep_is_given_up_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(upkeep, "BYTES_AT_ONCE", 1000)
    place = Place(tmp_path / "data")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(threading.Thread, "start", refuse)
        place.queue.publish(b"x" * 2000)
    assert "can't start new thread" in caplog.text
    assert place.upkeep._thread is None
    at_once(place.queue)
    until(lambda: journal(place).snapshots)
    place.broker.close()


@pytest.mark.parametrize("consume", [one_by_one, at_once])
def test_processes_that_do_little_fill_the_disk(
    tmp_path: Path, consume: Callable[[sync.Queue], None]
) -> None:
    place = Place(tmp_path / "data")
    kept = place.queue.publish(b"kept", delay=1000)
    for _ in range(12):
        consume(place.queue)
        place.broker.close()
        place = Place(tmp_path / "data", place.clock)
        assert place.upkeep._thread is None
    found = journal(place)
    assert found.bytes < 5 * ROUND_BYTES
    assert place.segments() < 6 * ROUND_BYTES // SEGMENT_BYTES
    place.clock.advance(1000)
    assert [one.id for one in place.queue.receive_many(99)] == [kept]
    place.broker.close()


def test_closing_takes_the_time_of_rewriting(tmp_path: Path) -> None:
    """A segment with something alive in it is left for a process that has time."""
    place = Place(tmp_path / "data")
    for _ in range(4):
        place.queue.publish(b"kept", delay=1000)
        at_once(place.queue)
        place.broker.close()
        before = {path.name: path.stat().st_ino for path in place.path.glob("*.segment")}
        place = Place(tmp_path / "data", place.clock)
    place.broker.close()
    after = {path.name: path.stat().st_ino for path in place.path.glob("*.segment")}
    assert all(after[name] == before[name] for name in after if name in before)


def test_on_a_full_disk_it_takes_two_turns_to_give_something_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "data")
    for _ in range(3):
        at_once(place.queue)
    before = journal(place).bytes
    snapshot = place.upkeep.snapshot

    def snapshot_while_others_go_on() -> None:
        snapshot()
        place.queue.publish(b"meanwhile")

    monkeypatch.setattr(place.upkeep, "snapshot", snapshot_while_others_go_on)
    # What is published meanwhile would have the thread clean too, and take what is counted here.
    monkeypatch.setattr(place.upkeep, "count", lambda: None)
    with place.port.monitor.lock:
        place.upkeep._pressed = True
    place.upkeep.run()  # what only the first snapshot covered is covered by the second
    assert journal(place).bytes < before // 2
    assert not place.upkeep._pressed
    place.broker.close()


def test_a_full_disk_is_forgotten_before_something_was_given_back(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    place.queue.publish_many([b"needed" * 300] * 50)
    with place.port.monitor.lock:
        place.upkeep._pressed = True
    place.upkeep.run()
    assert place.upkeep._pressed
    place.broker.close()


def test_on_a_full_disk_a_journal_without_snapshots_gives_nothing_back(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    for _ in range(3):
        at_once(place.queue)
    before = journal(place).bytes
    with place.port.monitor.lock:
        place.upkeep._pressed = True
    place.upkeep.run()
    assert journal(place).bytes < before // 2
    assert not place.upkeep._pressed
    place.broker.close()
    assert verify(tmp_path / "data").sound
