"""What is handed in is published once: whoever dies, whatever fails, and however often it comes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import penstock
from penstock.broker import handover, opening, sync
from penstock.broker.handover import hand_over
from penstock.broker.intake import Intake
from penstock.clock import ManualClock
from penstock.engine.engine import Engine, Stored
from penstock.engine.retention import ARCHIVE
from penstock.errors import (
    CorruptJournal,
    DiskFull,
    InvalidArgument,
    InvalidName,
    MessageTooLarge,
    PenstockError,
    QueueFull,
)
from penstock.journal.directory import MOMENTARY, Directory, holder
from penstock.journal.files import Files
from penstock.journal.spool import Manifest, Report, Spool
from penstock.limits import ELSEWHERE_S, SEGMENT_BYTES_MIN
from tests.faults.faulty_files import EIO, ENOSPC, FaultyFiles, UnsyncedFiles
from tests.unit.broker.patience import until
from tests.unit.broker.staging import batch, spool_of, stage

Answer = TypeVar("Answer")
PARTS = [{"a": [b"1", b"2"], "b": [b"3"]}, {"b": [b"4"]}, {"a": [b"5"]}]


def opened(path: Path, files: Files | None = None, **settings: Any) -> sync.Broker:
    return sync.Broker(opening.on_disk(path, trace=False, files=files or UnsyncedFiles(), **settings))


def intake_of(broker: sync.Broker) -> Any:
    return broker._port.monitor.intake  # type: ignore[attr-defined]


def payloads(broker: sync.Broker, name: str) -> list[bytes]:
    return [one.payload for one in broker.queue(name).peek(1000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def spool(path: Path) -> Spool:
    return spool_of(path)


# --- taking in ---


def test_what_was_handed_in_while_nobody_was_there_is_not_published(path: Path, spool: Spool) -> None:
    spool.hand_in(batch(spool, 0, PARTS))
    with opened(path) as broker:
        assert payloads(broker, "a") == [b"1", b"2", b"5"]
        assert payloads(broker, "b") == [b"3", b"4"]
        until(lambda: not os.listdir(spool.path))  # staged files go last
    with opened(path) as broker:
        assert payloads(broker, "a") == [b"1", b"2", b"5"]


def test_the_owner_does_not_hear_what_is_handed_in(path: Path) -> None:
    with opened(path) as broker:
        assert not (path / "spool").exists(), "who uses no spool has none"
        spool = spool_of(path)
        taken = threading.Event()
        intake_of(broker).spool.remove = lambda _manifest: taken.set()
        assert hand_over(path, batch(spool, 0, PARTS), 0, UnsyncedFiles()) in (True, False)
        assert taken.wait(30)
        assert payloads(broker, "b") == [b"3", b"4"]


def test_a_batch_that_comes_again_is_published_again(path: Path, spool: Spool) -> None:
    again = [{"b": [b"4", b"3"]}, {"a": [b"5", b"2", b"1"]}]
    with opened(path) as broker:
        assert hand_over(path, batch(spool, 3, PARTS), 60, UnsyncedFiles())
        assert hand_over(path, batch(spool, 3, again), 60, UnsyncedFiles())
        assert hand_over(path, batch(spool, 2, again), 60, UnsyncedFiles()), "an older one"
        assert payloads(broker, "a") == [b"1", b"2", b"5"]
        until(lambda: not os.listdir(spool.path))  # staged files go last
        assert hand_over(path, batch(spool, 4, again), 60, UnsyncedFiles())
        assert hand_over(path, batch(spool, 3, again, producer="query:other"), 60, UnsyncedFiles())
        assert len(payloads(broker, "a")) == 9
    for closed in (False, True):  # from the snapshot, and from the rows
        copy = path.with_name(f"copy-{closed}")
        shutil.copytree(path, copy)
        if not closed:
            for snapshot in copy.glob("*.snapshot"):
                snapshot.unlink()
        there = spool_of(copy)
        there.hand_in(batch(there, 4, again))
        with opened(copy) as broker:
            assert len(payloads(broker, "a")) == 9
            assert os.listdir(there.path) == []


def test_the_owner_opens_it_for_the_moment_and_keeps_it(path: Path, spool: Spool) -> None:
    assert hand_over(path, batch(spool, 0, PARTS), 60, UnsyncedFiles())
    with opened(path) as broker:
        assert payloads(broker, "a") == [b"1", b"2", b"5"]


def test_an_owner_who_comes_at_the_same_moment_breaks_it(
    path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at who owns it and the opening."""
    seen: list[sync.Broker] = []

    def nobody(directory: Any) -> None:
        del directory
        if not seen:
            seen.append(opened(path))

    monkeypatch.setattr(handover, "holder", nobody)
    try:
        assert hand_over(path, batch(spool, 0, PARTS), 60, UnsyncedFiles())
        assert payloads(seen[0], "a") == [b"1", b"2", b"5"]
    finally:
        seen[0].close()


def test_the_driver_does_not_say_that_it_is_for_the_moment(
    path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []
    catch_up = Intake.catch_up

    def asked(intake: Intake) -> None:
        found.append(holder(Directory(Files(), path)))
        catch_up(intake)

    monkeypatch.setattr(Intake, "catch_up", asked)
    assert hand_over(path, batch(spool, 0, PARTS), 60, UnsyncedFiles())
    assert found[0] == Files().whoami() + MOMENTARY
    assert (path / "lock").read_text() == ""


def test_a_second_owner_comes_beside_one_on_another_machine(path: Path, spool: Spool) -> None:
    """Whose lock is not heard here: it looks as if nobody held the directory."""
    opened(path, Elsewhere()).close()
    journal = {found: found.read_bytes() for found in path.iterdir() if found.is_file()}
    assert not hand_over(path, batch(spool, 0, PARTS), 0, UnsyncedFiles())
    assert {found: found.read_bytes() for found in path.iterdir() if found.is_file()} == journal
    assert len(spool.pending()) == 1
    old = (path / "mark").stat().st_mtime - ELSEWHERE_S - 1
    os.utime(path / "mark", (old, old))
    assert hand_over(path, batch(spool, 0, PARTS), 60, UnsyncedFiles())


class Elsewhere(UnsyncedFiles):
    def whoami(self) -> str:
        return "process 7 on another.example"


def test_columns_are_lost_or_times_are_wrong(path: Path, spool: Spool) -> None:
    clock = ManualClock()
    now = clock.now_us()
    columns: dict[str, Any] = {
        "priority": [1, 2, 3],
        "key": ["k", None, "ü"],
        "headers": [{"a": "b"}, None, {"c": "", "d": "é"}],
        "dedup_id": ["x", "y", None],
        "deliver_at": [now + 5_000_000, now - 5, None],
        "expires_at": [None, 7_000_000, 9_000_000],
    }
    spool.hand_in(batch(spool, 0, [{"a": [b"1", b"2", b"3"]}], **columns))
    with opened(path, clock=clock) as broker:
        broker.queue("a")
        found = sorted(broker.queue("a").reader("r").read_many(9), key=lambda one: one.payload)
        assert [one.priority for one in found] == [1, 2, 3]
        assert [one.key for one in found] == ["k", None, "ü"]
        assert [one.headers for one in found] == [{"a": "b"}, {}, {"c": "", "d": "é"}]
        assert [one.dedup_id for one in found] == ["x", "y", None]
        us = [None if one.deliver_at is None else round(one.deliver_at.timestamp() * 1e6) for one in found]
        assert us == [now + 5_000_000, now - 5, None]
        us = [None if one.expires_at is None else round(one.expires_at.timestamp() * 1e6) for one in found]
        assert us == [None, now + 7_000_000, now + 9_000_000]
        assert {one.timestamp for one in found} == {penstock.clock.to_datetime(now)}
        assert len({one.id for one in found}) == 3
        assert [one.payload for one in broker.queue("a").receive_many(9)] == [b"2", b"3"]


def test_policies_do_not_hold_for_what_is_handed_in(path: Path, spool: Spool) -> None:
    clock = ManualClock()
    with opened(path, clock=clock) as broker:
        broker.queue("a", ttl=10, dedup_window=60).publish(b"0", dedup_id="x")
        broker.topic("t").subscribe("s").close()
        columns: dict[str, Any] = {"dedup_id": ["x", "y"]}
        assert hand_over(
            path, batch(spool, 0, [{"a": [b"1", b"2"], "t": [b"3", b"4"]}], **columns), 60, UnsyncedFiles()
        )
        assert payloads(broker, "a") == [b"0", b"2"], "a repetition"
        assert [one.payload for one in broker.get_topic("t").peek(9)] == [b"3", b"4"]
        clock.advance(11)
        assert broker.queue("a").receive() is None
        later = clock.now_us() + 11_000_000
        with pytest.raises(InvalidArgument, match="not before the end of the queue's ttl"):
            hand_over(
                path, batch(spool, 1, [{"a": [b"5", b"6"]}], deliver_at=[None, later]), 60, UnsyncedFiles()
            )


REFUSED: list[tuple[str, dict[str, Any], dict[str, list[bytes]], type[PenstockError]]] = [
    ("queue", {"max_depth": 3}, {"a": [b"1", b"2", b"3", b"4"]}, QueueFull),
    ("queue", {"max_bytes": 3}, {"a": [b"1", b"2", b"3", b"4"]}, QueueFull),
    ("queue", {"max_message_bytes": 3}, {"a": [b"1234"]}, MessageTooLarge),
    ("queue", {"delivery": "exactly-once"}, {"a": [b"1"]}, InvalidArgument),
    ("queue", {}, {"not a name": [b"1"]}, InvalidName),
    ("queue", {}, {"new.dlq": [b"1"]}, InvalidName),
]


@pytest.mark.parametrize(("kind", "policy", "part", "error"), REFUSED)
@pytest.mark.parametrize("held", [True, False])
def test_a_refused_batch_is_published_in_part_or_cannot_come_again(
    path: Path,
    spool: Spool,
    held: bool,
    kind: str,
    policy: dict[str, Any],
    part: Any,
    error: type[PenstockError],
) -> None:
    broker = opened(path)
    broker.queue("a", **policy)
    if not held:
        broker.close()
    with pytest.raises(error):
        hand_over(path, batch(spool, 0, [{"z": [b"first"]}, part]), 60, UnsyncedFiles())
    until(lambda: not os.listdir(spool.path))
    assert hand_over(path, batch(spool, 0, [{"b": [b"other"]}]), 60, UnsyncedFiles()), "with other contents"
    if not held:
        broker = opened(path)
    assert broker.list_queues() == ["a", "b"]
    assert payloads(broker, "a") == []
    assert payloads(broker, "b") == [b"other"]
    broker.close()


def test_a_refused_batch_stops_other_producers_or_is_overtaken(path: Path, spool: Spool) -> None:
    with opened(path) as broker:
        full = broker.queue("a", max_depth=2)
        spool.hand_in(batch(spool, 0, [{"a": [b"1", b"2", b"3"]}]))
        intake_of(broker).catch_up()
        spool.hand_in(batch(spool, 1, [{"a": [b"4"]}]))
        spool.hand_in(batch(spool, 0, [{"b": [b"5"]}], producer="query:other"))
        intake_of(broker).catch_up()
        assert payloads(broker, "a") == []
        assert payloads(broker, "b") == [b"5"]
        # The first was reported as written, since nobody waited so long: it stays, and the later one says why.
        with pytest.raises(QueueFull):
            hand_over(path, batch(spool, 1, [{"a": [b"4"]}]), 60, UnsyncedFiles())
        assert len(spool.pending()) == 2
        full.alter(max_depth=4)
        assert hand_over(path, batch(spool, 1, [{"a": [b"4"]}]), 60, UnsyncedFiles())
        assert payloads(broker, "a") == [b"1", b"2", b"3", b"4"]
        until(lambda: not os.listdir(spool.path))  # staged files go last


def test_a_batch_that_was_accepted_is_refused_in_the_middle(path: Path, spool: Spool) -> None:
    with opened(path) as broker:
        queue = broker.queue("a", max_depth=3)
        intake = intake_of(broker)
        publish = intake._publish_part

        def meanwhile(manifest: Any, part: Any, batches: Any) -> Any:
            record = publish(manifest, part, batches)
            if part.number == 0:
                queue.publish_many([b"x", b"x"])
            return record

        intake._publish_part = meanwhile
        assert hand_over(path, batch(spool, 0, [{"a": [b"1"]}, {"a": [b"2"]}]), 60, UnsyncedFiles())
        assert payloads(broker, "a") == [b"1", b"x", b"x", b"2"]


WHOLE = [b"1", b"11", b"22", b"222", b"3", b"33"]
ALTERED: list[tuple[dict[str, Any], dict[str, Any], list[bytes]]] = [
    ({"max_message_bytes": 1}, {}, WHOLE),
    ({"delivery": "exactly-once"}, {}, WHOLE),
    ({"delivery": "exactly-once"}, {"dedup_id": [None, "x"]}, [b"1", b"11", b"22", b"3"]),
    ({"ttl": 1}, {}, WHOLE),
    ({"max_depth": 1}, {}, WHOLE),
]


@pytest.mark.parametrize(("policy", "columns", "expected"), ALTERED)
def test_a_policy_that_is_altered_meanwhile_stops_a_batch_in_the_middle(
    path: Path, spool: Spool, policy: dict[str, Any], columns: dict[str, Any], expected: list[bytes]
) -> None:
    clock = ManualClock()
    with opened(path, clock=clock) as broker:
        queue = broker.queue("a")
        intake = intake_of(broker)
        publish = intake._publish_part

        def meanwhile(manifest: Any, part: Any, batches: Any) -> Any:
            record = publish(manifest, part, batches)
            if part.number == 0:
                queue.alter(**policy)
            return record

        intake._publish_part = meanwhile
        due = clock.now_us() + 3_000_000  # behind the end of the ttl that it gets
        parts = [{"a": [b"1", b"11"]}, {"a": [b"22", b"222"]}, {"a": [b"3", b"33"]}]
        columns = {"deliver_at": [None, due], **columns}
        assert hand_over(path, batch(spool, 0, parts, **columns), 60, UnsyncedFiles())
        assert [one.payload for one in queue.reader("r").read_many(9)] == expected
        until(lambda: not os.listdir(spool.path))  # staged files go last
        with pytest.raises(PenstockError):  # the next one is looked at
            hand_over(path, batch(spool, 1, parts, **columns), 60, UnsyncedFiles())


def test_what_cannot_go_on_in_the_middle_is_lost_or_doubled(path: Path, spool: Spool) -> None:
    """The disk became full while a batch was being taken in."""
    with opened(path) as broker:
        intake = intake_of(broker)
        publish = intake._publish_part

        def full(manifest: Any, part: Any, batches: Any) -> Any:
            if part.number == 1:
                raise DiskFull("no room")
            return publish(manifest, part, batches)

        intake._publish_part = full
        parts = [{"a": [b"1"]}, {"a": [b"22"]}, {"a": [b"3"]}]
        with pytest.raises(DiskFull):
            hand_over(path, batch(spool, 0, parts), 60, UnsyncedFiles())
        assert payloads(broker, "a") == [b"1"]
        intake._publish_part = publish
        other = [{"a": [b"3", b"22", b"1"]}]
        assert hand_over(path, batch(spool, 0, other), 60, UnsyncedFiles())
        assert payloads(broker, "a") == [b"1", b"22", b"3"], "it goes on with what it began with"
        until(lambda: not os.listdir(spool.path))  # staged files go last


class Watched(UnsyncedFiles):
    """Tells what is about to be removed, and counts how often a segment is synced."""

    def __init__(self) -> None:
        self.synced = 0
        self.removing: Callable[[Path], None] = lambda _path: None

    def sync(self, fd: int) -> None:
        self.synced += os.readlink(f"/proc/self/fd/{fd}").endswith(".segment")
        super().sync(fd)

    def unlink(self, path: Path) -> None:
        self.removing(path)
        super().unlink(path)


@pytest.mark.parametrize("durability", ["commit", "interval", "os"])
def test_a_power_cut_takes_what_was_removed_from_the_spool(path: Path, spool: Spool, durability: str) -> None:
    """What is left must be a manifest, or its messages on the disk; and so with reports."""
    files = Watched()
    # In such an interval nothing is synced by itself.
    with opened(path, files, durability=durability, commit_interval_ms=60_000) as broker:
        journal = broker._port.monitor.journal  # type: ignore[attr-defined]
        durable: list[tuple[str, bool]] = []

        def note(gone: Path) -> None:
            if gone.suffix in (".manifest", ".taken"):
                durable.append((gone.suffix, journal.durable_sequence == journal._tail.sequence))

        broker.queue("a").publish(b"0")
        with intake_of(broker)._one:  # one pass for all of it
            spool.report(Report("r", 1, log="a"))
            spool.report(Report(ARCHIVE, 1))
            spool.hand_in(batch(spool, 0, PARTS))
            spool.hand_in(batch(spool, 0, PARTS, producer="job:1", only=True))
            files.removing = note
            before = files.synced
        intake_of(broker).catch_up()
        assert sorted(durable) == [(".manifest", True)] * 2 + [(".taken", True)] * 2
        if durability != "commit":
            assert files.synced - before == 3, (
                "once for all reports and once for a manifest, not for each part"
            )


def test_a_spoilt_batch_stops_the_broker_or_is_published_in_part(
    path: Path, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = batch(spool, 0, [{"a": [b"1"]}, {"a": [b"2" * 100]}])
    staged = spool.path / manifest.files[0].name
    data = bytearray(staged.read_bytes())
    data[-60] ^= 1
    staged.write_bytes(data)
    spool.hand_in(manifest)
    spool.hand_in(batch(spool, 0, [{"b": [b"3"]}], producer="query:other"))
    with caplog.at_level(logging.ERROR, "penstock.spool"), opened(path) as broker:
        assert broker.list_queues() == ["b"]
        assert "was not taken in: the staged file" in caplog.text
        with pytest.raises(CorruptJournal, match="write the batch again"):
            hand_over(path, manifest, 60, UnsyncedFiles())


def test_a_manifest_that_cannot_be_read_is_removed(path: Path, spool: Spool) -> None:
    manifest = batch(spool, 0, PARTS)
    spool.hand_in(manifest)
    (spool.path / manifest.name).write_bytes(b"PENSTOCK?")
    with opened(path) as broker:
        with pytest.raises(CorruptJournal, match="move it away"):
            hand_over(path, batch(spool, 0, PARTS), 60, UnsyncedFiles())
        assert broker.list_queues() == []
        assert (spool.path / manifest.name).exists()


def test_nobody_waits_for_an_owner_who_is_busy(
    path: Path, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as broker:
        intake_of(broker)._one.acquire()
        with caplog.at_level(logging.WARNING, "penstock.spool"):
            assert not hand_over(path, batch(spool, 0, PARTS), 0, UnsyncedFiles())
        assert "will be taken in, but was not within 0 s" in caplog.text
        intake_of(broker)._one.release()
        until(lambda: not spool.pending())
        assert payloads(broker, "b") == [b"3", b"4"]


# --- producers of one batch ---


def test_a_job_is_remembered_for_ever_or_forgotten_too_early(path: Path, spool: Spool) -> None:
    def known(broker: sync.Broker) -> list[str]:
        return list(broker._port.monitor.engine.producers)  # type: ignore[attr-defined]

    with opened(path) as broker:
        assert hand_over(path, batch(spool, 0, PARTS, producer="job:1", only=True), 60, UnsyncedFiles())
        assert hand_over(path, batch(spool, 0, PARTS), 60, UnsyncedFiles())
        intake_of(broker).catch_up()
        assert known(broker) == ["query:q"]
        # The owner dies between removing a manifest and forgetting its producer.
        intake_of(broker)._forget = lambda _producer: None
        assert hand_over(path, batch(spool, 0, PARTS, producer="job:2", only=True), 60, UnsyncedFiles())
        assert known(broker) == ["query:q", "job:2"]
        # And between the last part and removing the manifest: it must be known then.
        stuck = batch(spool, 0, PARTS, producer="job:3", only=True)
        intake_of(broker).spool.remove = lambda _manifest: None
        spool.hand_in(stuck)
        intake_of(broker).catch_up()
        assert "job:3" in known(broker)
        count = len(payloads(broker, "a"))
    with opened(path) as broker:
        assert known(broker) == ["query:q"]
        assert len(payloads(broker, "a")) == count
        until(lambda: not os.listdir(spool.path))  # staged files go last
    with opened(path) as broker:
        assert known(broker) == ["query:q"], "also after a replay"


def test_a_record_is_forgotten_before_its_manifest_is_gone_for_good(path: Path, spool: Spool) -> None:
    """A power cut would bring the manifest back, and nobody would know it."""
    with opened(path) as broker:
        steps: list[str] = []
        intake = intake_of(broker)
        forget, sync_directory = intake._forget, intake.spool.files.sync_directory

        def synced(directory: Path) -> None:
            sync_directory(directory)
            if directory == spool.path:
                steps.append("synced" if not list(spool.path.glob("*.manifest")) else "settled")

        def forgotten(producer: str) -> None:
            steps.append("forgotten")
            forget(producer)

        intake.spool.files.sync_directory = synced
        intake._forget = forgotten
        spool.hand_in(batch(spool, 0, PARTS, producer="job:1", only=True))
        intake.catch_up()
    assert steps[:3] == ["settled", "synced", "forgotten"]


# --- readers ---


def test_how_far_a_reader_is_is_not_told(path: Path, spool: Spool) -> None:
    with opened(path) as broker:
        queue = broker.queue("a")
        queue.publish_many([b"%d" % n for n in range(10)])
        spool.report(Report("spark.q", 7, log="a"))
        spool.report(Report("spark.q", 7, log="unknown"))
        spool.report(Report("spark.far", 99, log="a", holds=True))
        intake_of(broker).catch_up()
        assert queue.stats().readers == {"spark.q": 3, "spark.far": 0}
        until(lambda: not os.listdir(spool.path))  # staged files go last
        spool.report(Report("spark.q", 9, log="a"))
        until(lambda: queue.stats().readers["spark.q"] == 1)
    with opened(path) as broker:
        assert broker.queue("a").stats().readers == {"spark.q": 1, "spark.far": 0}


def test_a_reader_of_a_log_that_is_gone_is_taken_for_one_of_its_successor(path: Path, spool: Spool) -> None:
    with opened(path) as broker:
        broker.queue("a").publish_many([b"%d" % n for n in range(10)])
        broker.delete_queue("a")
        queue = broker.queue("a")
        queue.publish_many([b"%d" % n for n in range(10)])
        spool.report(Report("spark.q", 7, log="a", number=1))
        spool.report(Report("spark.r", 7, log="a", number=2))
        intake_of(broker).catch_up()
        assert queue.stats().readers == {"spark.r": 3}


def test_what_a_reader_of_the_journal_has_read_is_forgotten(path: Path, spool: Spool) -> None:
    spool.report(Report(ARCHIVE, 12))
    for _ in range(3):
        with opened(path) as broker:
            assert broker._port.monitor.engine.sequences == {ARCHIVE: 12}  # type: ignore[attr-defined]
        for snapshot in list(path.glob("*.snapshot"))[1:]:
            snapshot.unlink()


def _churn(broker: sync.Broker, rounds: int) -> None:
    queue = broker.queue("a")
    for _ in range(rounds):
        queue.publish_many([bytes(500)] * 4)
        for delivery in queue.receive_many(4):
            delivery.ack()


def test_the_archive_misses_what_was_cleaned(path: Path, spool: Spool) -> None:
    with opened(path, segment_bytes=SEGMENT_BYTES_MIN) as broker:
        other = broker.queue("kept", retain="until-archived")
        upkeep = broker._port.monitor.upkeep  # type: ignore[attr-defined]
        _churn(broker, 20)

        def keep_up() -> list[int]:
            for _ in range(3):
                other.publish(b"x")  # two snapshots of one commit are one
                upkeep.run()
            return sorted(int(found.stem) for found in path.glob("*.segment"))

        assert keep_up()[0] == 1, "before it comes, everything is held"
        journal = broker._port.monitor.journal  # type: ignore[attr-defined]
        middle = journal.segments()[5]
        spool.report(Report(ARCHIVE, middle.next_sequence))
        intake_of(broker).catch_up()
        spool.report(Report("spark.other", 10**6))
        assert keep_up()[0] == middle.number + 1, "what it has read goes, and nothing else"
        other.alter(retain="consumed")
        assert keep_up()[0] > middle.number + 1


# --- snapshots from before ---


def test_a_snapshot_without_producers_is_not_read() -> None:
    import msgspec

    engine = Engine(seed=0, fetch=lambda _l, _o: [], take_ids=lambda _n: [], make_room=lambda _n, _s: None)
    before = msgspec.msgpack.encode(msgspec.msgpack.decode(engine.encode())[:4])
    engine.restore(before)
    assert (engine.producers, engine.sequences) == ({}, {})
    assert msgspec.msgpack.decode(engine.encode(), type=Stored).version == 2


# --- failing, and dying, at every call ---


def _prepared(path: Path) -> dict[str, list[bytes]]:
    """A directory with everything in its spool; what is in its queues when that is taken in."""
    with opened(path) as broker:
        broker.queue("a").publish(b"0")
    spool = spool_of(path)
    spool.hand_in(batch(spool, 0, PARTS))
    spool.hand_in(
        Manifest("query:q", 1, "default", [stage(spool, [{"b": [b"6"]}]), stage(spool, [{"c": [b"7"]}])])
    )
    spool.hand_in(batch(spool, 0, [{"d": [b"8"]}, {"e": [b"9"]}], producer="job:1", only=True))
    spool.report(Report("r", 1, log="a"))
    return {"a": [b"0", b"1", b"2", b"5"], "b": [b"3", b"4", b"6"], "c": [b"7"], "d": [b"8"], "e": [b"9"]}


def _check(path: Path, expected: dict[str, list[bytes]]) -> None:
    spool = spool_of(path)
    for name in [name for name in os.listdir(spool.path) if name.endswith(".refused")]:
        (spool.path / name).unlink()  # as whoever handed it in does, when he comes back
    for _ in range(2):
        with opened(path) as broker:
            found = {name: payloads(broker, name) for name in broker.list_queues()}
            assert found == expected
            assert broker.queue("a").stats().readers == {"r": 3}
            assert not [name for name in os.listdir(spool.path) if not name.endswith(".staged")]


#: `make test` tries some of the calls, `make faults` all of them.
EVERY = pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.campaign), 9])


@EVERY
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("kind", [EIO, ENOSPC])
def test_a_failing_call_loses_or_doubles_a_message(
    tmp_path: Path, kind: str, forever: bool, step: int
) -> None:
    expected = _prepared(tmp_path / "whole")
    for nth in range(1 + forever, 2000, step):
        path = tmp_path / f"{nth}"
        shutil.copytree(tmp_path / "whole", path)
        files = FaultyFiles()
        files.arm(kind, nth, forever=forever)
        with contextlib.suppress(PenstockError):
            opened(path, files).close()
        fired = files.fired
        files.disarm()
        try:
            _check(path, expected)
        except BaseException as error:
            error.add_note(f"{kind}, call {nth}")
            raise
        shutil.rmtree(path)
        if not fired:
            assert nth > 30
            return
    raise AssertionError("it never came to its end")


class MortalFiles(UnsyncedFiles):
    """The process is killed at the Nth call: before it, or after it."""

    def __init__(self, nth: int, *, after: bool) -> None:
        self._left = nth
        self._after = after

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        self._left -= 1
        if not self._left and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return super().perform(operation, *arguments)
        finally:
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def _killed(path: Path, nth: int, *, after: bool) -> bool:
    child = os.fork()
    if not child:
        try:
            opened(path, MortalFiles(nth, after=after)).close()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@EVERY
@pytest.mark.parametrize("after", [False, True])
def test_an_owner_killed_at_any_call_loses_or_doubles_a_message(
    tmp_path: Path, after: bool, step: int
) -> None:
    expected = _prepared(tmp_path / "whole")
    for nth in range(1 + 4 * after, 2000, step):
        path = tmp_path / f"{nth}"
        shutil.copytree(tmp_path / "whole", path)
        killed = _killed(path, nth, after=after)
        try:
            _check(path, expected)
        except BaseException as error:
            error.add_note(f"killed at call {nth}")
            raise
        shutil.rmtree(path)
        if not killed:
            assert nth > 60
            return
    raise AssertionError("it never came to its end")


@EVERY
@pytest.mark.parametrize("after", [False, True])
def test_a_driver_killed_at_any_call_loses_or_doubles_a_batch(tmp_path: Path, after: bool, step: int) -> None:
    """He comes back, and hands in the same batch in another order."""
    for nth in range(1 + 4 * after, 2000, step):
        path = tmp_path / f"{nth}"
        child = os.fork()
        if not child:
            try:
                mortal = MortalFiles(nth, after=after)
                spool = spool_of(path, mortal)
                hand_over(path, batch(spool, 0, PARTS), 60, mortal)
            finally:
                os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        spool = spool_of(path)
        assert hand_over(
            path, batch(spool, 0, [{"b": [b"4", b"3"]}, {"a": [b"5", b"2", b"1"]}]), 60, UnsyncedFiles()
        )
        with opened(path) as broker:
            assert sorted(payloads(broker, "a")) == [b"1", b"2", b"5"], f"killed at call {nth}"
            assert sorted(payloads(broker, "b")) == [b"3", b"4"], f"killed at call {nth}"
        shutil.rmtree(path)
        if not killed:
            assert nth > 60
            return
    raise AssertionError("it never came to its end")


# --- closing ---


def test_closing_waits_for_what_was_not_begun(path: Path, spool: Spool) -> None:
    broker = opened(path)
    intake = intake_of(broker)
    publish = intake._publish_part
    closing = threading.Event()

    def meanwhile(manifest: Any, part: Any, batches: Any) -> Any:
        record = publish(manifest, part, batches)
        closing.set()
        until(lambda: broker._port.monitor.draining)  # type: ignore[attr-defined]
        return record

    intake._publish_part = meanwhile
    spool.hand_in(batch(spool, 0, PARTS))
    spool.ring()
    assert closing.wait(30)
    broker.close()
    assert len(spool.pending()) == 1
    with opened(path) as broker:
        assert payloads(broker, "a") == [b"1", b"2", b"5"]
        assert payloads(broker, "b") == [b"3", b"4"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(
        threading.enumerate()
    )  # other tests let brokers crash, whose threads end when they are next looked for
    yield
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "penstock-intake"]
