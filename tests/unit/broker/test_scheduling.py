"""What a recurring message does when it is due, and what of it is kept: rules for missed ones, machines that lack what it needs, and a broker that fails on the way."""

from __future__ import annotations

import errno
import os
import shutil
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker import recurring, scheduling
from penstock.broker.recurring import Recurrence, missed_rule
from penstock.broker.scheduling import LATE_US, MADE_UP_MAX, Recurring, recur
from penstock.broker.sync import Queue
from penstock.clock import SECOND_US
from penstock.engine.log import Log
from penstock.errors import InvalidArgument, JournalFailed, MissingExtra, PenstockError
from penstock.message import Message
from penstock.policy import Policy
from tests.unit.broker.test_embedded import Place
from tests.unit.engine.specimen import NOW
from tests.unit.journal.watched import failing, nothing

HOUR_US = 3600 * SECOND_US
HOURLY = Recurrence("0 * * * *", "UTC")
MINUTELY = "* * * * *"


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.files.before = nothing
    found.broker.close()


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A time zone `Test/Zone` that this machine knows, until the call."""
    known = next(
        Path(each, "Europe", "Berlin") for each in zoneinfo.TZPATH if Path(each, "Europe", "Berlin").exists()
    )
    (tmp_path / "zones" / "Test").mkdir(parents=True)
    shutil.copy(known, tmp_path / "zones" / "Test" / "Zone")
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([os.fspath(tmp_path / "zones"), *before])

    def forget() -> None:
        zoneinfo.reset_tzpath(before)
        zoneinfo.ZoneInfo.clear_cache()

    yield forget
    forget()


def advance(place: Place, seconds: float) -> None:
    place.clock.advance(seconds)
    place.port.wake()


def dues(queue: Queue) -> list[str]:
    """For which due times there are messages; they are taken."""
    found = queue.receive_many(1000)
    if found:
        queue.ack_many(found)
    return [one.headers["x-due"][11:16] for one in found if "x-due" in one.headers]


# --- the rules ---


def fired(missed: Any, late_us: int, **more: Any) -> list[int]:
    """For which due times, in hours, there are messages, if the first one is looked at too late."""
    found = Recurring(HOURLY, missed, b"x", {}, None, 100, None)
    log = Log(1, "default", "q", Policy.of())
    due_us = NOW + HOUR_US
    firing = recur(lambda count: range(1, count + 1))(log, "tick", found.encode(), due_us, due_us + late_us)
    assert firing.due_us is not None
    assert firing.due_us > due_us + late_us >= firing.due_us - HOUR_US, "the next one is the next one"
    headers = [batch.headers[0]["x-due"] for batch in firing.batches if batch.headers and batch.headers[0]]
    return [int(one[11:13]) for one in headers]


@pytest.mark.parametrize(
    ("missed", "late_us", "hours"),
    [
        ("once", 0, [1]), ("skip", 0, [1]), ("all", 0, [1]),
        ("once", LATE_US, [1]), ("skip", LATE_US, [1]), ("skip", LATE_US + 1, []), ("once", LATE_US + 1, [1]),
        ("once", HOUR_US - 1, [1]), ("once", HOUR_US, [2]), ("skip", HOUR_US, [2]), ("all", HOUR_US, [1, 2]),
        ("once", 5 * HOUR_US + LATE_US + 1, [6]), ("skip", 5 * HOUR_US + LATE_US + 1, []),
        ("all", 5 * HOUR_US + LATE_US + 1, [1, 2, 3, 4, 5, 6]),
    ],
)  # fmt: skip
def test_a_rule_for_what_was_missed_is_another_one(missed: str, late_us: int, hours: list[int]) -> None:
    assert fired(missed, late_us) == hours


def test_an_absence_of_years_is_made_up_for_without_a_bound() -> None:
    found = fired("all", 10 * 365 * 24 * HOUR_US)
    assert len(found) == MADE_UP_MAX
    assert fired("once", 10 * 365 * 24 * HOUR_US) == found[-1:]


@pytest.mark.parametrize("wrong", ["twice", None, 5, [], "ONCE", b"once"], ids=repr)
def test_an_unknown_rule_is_taken(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="give one of 'once', 'skip', 'all'"):
        missed_rule(wrong)


def test_something_of_a_message_is_not_kept() -> None:
    found = Recurring(HOURLY, "all", b"x", {"a": "b"}, "k", 7, 90)
    assert msgspec.msgpack.decode(found.encode(), type=Recurring) == found
    firing = recur(lambda count: [77] * count)(
        Log(1, "default", "q", Policy.of()), "tick", found.encode(), NOW, NOW
    )
    (batch,) = firing.batches
    assert (batch.payloads, list(batch.ids), batch.key, batch.priority, batch.expires_at, batch.size) == (
        [b"x"], [77], ["k"], 7, NOW + 90, 1,
    )  # fmt: skip
    assert batch.headers == [{"a": "b", "x-schedule": "tick", "x-due": "2026-01-01T00:00:00+00:00"}]
    assert found.headers == {"a": "b"}


# --- what this machine does not know ---


def test_a_time_zone_that_is_not_known_any_more_stops_the_broker(
    place: Place, zone: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    place.queue.schedule("gone", MINUTELY, b"x", timezone="Test/Zone")
    place.queue.schedule("known", MINUTELY, b"y")
    place.queue.publish(b"precious")
    place.queue.publish(b"later", delay=90)
    zone()
    advance(place, 60)
    assert "Test/Zone" in caplog.text
    advance(place, 60)
    got = [one.payload for one in place.queue.receive_many(9)]
    assert sorted(got) == [b"later", b"precious", b"y", b"y"]


def test_a_time_zone_that_is_not_known_any_more_keeps_a_directory_shut(
    disk: Place, zone: Callable[[], None]
) -> None:
    disk.queue.schedule("gone", MINUTELY, b"x", timezone="Test/Zone")
    disk.queue.publish(b"precious")
    zone()
    disk.clock.advance(3600)
    after = disk.crashed()
    assert after.payloads() == [b"precious"]
    assert after.queue.stats().schedules == ["gone"]
    assert after.queue.unschedule("gone") is True
    after.broker.close()


def test_a_machine_without_cronsim_keeps_a_directory_shut(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.queue.schedule("tick", MINUTELY, b"x")
    disk.queue.publish(b"precious")

    def missing(*_: object) -> Any:
        raise MissingExtra("recurring messages need cronsim")

    with monkeypatch.context() as without:
        without.setattr(recurring, "_understood", missing)
        disk.clock.advance(3600)
        after = disk.crashed()
        assert after.payloads() == [b"precious"]
        with pytest.raises(MissingExtra):
            after.queue.schedule("tock", MINUTELY, b"y")
    advance(after, 120)
    assert len(dues(after.queue)) >= 1, "once it is there, what was due is made up for"
    after.broker.close()


def test_a_body_that_a_later_version_wrote_keeps_a_directory_shut(disk: Place) -> None:
    """What cannot be read is no reason to lose everything else."""
    disk.queue.schedule("tick", MINUTELY, b"x")
    disk.queue.publish(b"precious")
    log = disk.port.monitor.engine.find("default", "q")
    assert log is not None
    log.schedules["tick"].body = msgspec.msgpack.encode({"when": "new"})
    disk.port.monitor.upkeep.snapshot()  # type: ignore[union-attr]
    disk.clock.advance(3600)
    after = disk.crashed()
    assert after.payloads() == [b"precious"]
    after.broker.close()


# --- a broker that fails on the way ---


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_disk_that_fails_while_a_schedule_fires_fires_twice_or_never(disk: Place, call: str) -> None:
    disk.queue.schedule("tick", MINUTELY, b"x", missed="all")
    advance(disk, 60)
    disk.files.before = failing(call, errno.EIO)
    disk.clock.advance(60)
    with suppress(PenstockError):
        disk.port.wake()
    with pytest.raises(JournalFailed):
        disk.queue.depth()
    disk.files.before = nothing
    after = disk.crashed()
    assert dues(after.queue) == ["00:01", "00:02"]
    advance(after, 60)
    assert dues(after.queue) == ["00:03"]
    after.broker.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_schedule_that_was_refused_by_the_disk_is_half_there(disk: Place, call: str) -> None:
    disk.queue.schedule("old", MINUTELY, b"x")
    disk.files.before = failing(call, errno.EIO)
    with pytest.raises(PenstockError):
        disk.queue.schedule("new", MINUTELY, b"y")
    disk.files.before = nothing
    after = disk.crashed()
    assert "old" in after.queue.stats().schedules
    assert set(after.queue.stats().schedules) <= {"old", "new"}
    advance(after, 60)
    assert len(dues(after.queue)) == len(after.queue.stats().schedules)
    after.broker.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_cancelling_that_was_refused_by_the_disk_takes_another_message(disk: Place, call: str) -> None:
    first, second = disk.queue.publish_many([Message(b"0", delay=60), Message(b"1", delay=60)])
    assert disk.queue.cancel(second) is True
    disk.files.before = failing(call, errno.EIO)
    with pytest.raises(PenstockError):
        disk.queue.cancel(first)
    disk.files.before = nothing
    after = disk.crashed()
    advance(after, 60)
    assert after.payloads() in ([b"0"], [])
    after.broker.close()


def test_a_snapshot_forgets_that_a_schedule_fired(disk: Place) -> None:
    disk.queue.schedule("tick", MINUTELY, b"x", missed="all")
    advance(disk, 60)
    disk.port.monitor.upkeep.run()  # type: ignore[union-attr]
    advance(disk, 60)
    disk.port.monitor.upkeep.run()  # type: ignore[union-attr]
    after = disk.crashed()
    assert dues(after.queue) == ["00:01", "00:02"]
    after.broker.close()


def test_headers_say_another_name(place: Place) -> None:
    assert (scheduling.NAME, scheduling.DUE) == ("x-schedule", "x-due")
    place.queue.schedule("a.b:c@d", MINUTELY, b"x")
    advance(place, 60)
    delivery = place.queue.receive()
    assert delivery is not None
    assert delivery.headers["x-schedule"] == "a.b:c@d"
