"""The spool as files: what is handed in is found whole, once, whoever dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
from pathlib import Path

import pytest

from penstock import limits
from penstock.errors import BatchTooLarge, CorruptJournal, InvalidArgument, QueueFull
from penstock.journal import envelope
from penstock.journal.files import Files
from penstock.journal.spool import VERSION, WHAT, Manifest, Report, Share, Spool, Staged
from tests.faults.faulty_files import FaultyFiles, UnsyncedFiles
from tests.unit.broker.staging import batch, spool_of, stage


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return spool_of(tmp_path / "data")


def payloads(spool: Spool, manifest: Manifest, first: int = 0) -> list[tuple[int, str, list[bytes]]]:
    return [
        (part.number, topic, [bytes(one) for one in section.values("payload")])
        for part in spool.parts(manifest, first)
        for topic, section in part.sections
    ]


def test_what_was_staged_is_not_what_is_read(spool: Spool) -> None:
    files = [
        stage(spool, [{"a": [b"1", b"2"], "b": [b"3"]}, {"b": [b"4"]}]),
        stage(spool, [{"c": [b"5"]}, {"a": [b"6"]}]),
    ]
    manifest = Manifest("query:q", 0, "default", files)
    spool.examine(manifest)
    whole = [
        (0, "a", [b"1", b"2"]), (0, "b", [b"3"]), (1, "b", [b"4"]), (2, "c", [b"5"]), (3, "a", [b"6"]),
    ]  # fmt: skip
    assert payloads(spool, manifest) == whole
    for first in range(5):
        assert payloads(spool, manifest, first) == [part for part in whole if part[0] >= first]
    assert (manifest.parts, manifest.rows) == (4, 6)
    assert [(s.topic, s.rows, s.bytes) for s in manifest.shares().values()] == [
        ("a", 3, 3),
        ("b", 2, 2),
        ("c", 1, 1),
    ]


def test_nothing_staged_leaves_a_file(spool: Spool) -> None:
    assert spool.stage().finish([]) is None
    stager = spool.stage()
    stager.discard()
    assert os.listdir(spool.path) == []


def test_the_second_manifest_of_a_batch_counts(spool: Spool) -> None:
    first, second = batch(spool, 7, [{"a": [b"1"]}]), batch(spool, 7, [{"a": [b"2"]}])
    assert spool.hand_in(first)
    assert not spool.hand_in(second)
    (pending,) = spool.pending()
    assert pending.manifest == first
    assert spool.holds(second.name)
    assert not [name for name in os.listdir(spool.path) if name.endswith(".tmp")]


def test_batches_of_one_producer_change_places(spool: Spool) -> None:
    names = [("q", 2), ("p", 5), ("q", 1), ("p", 4)]
    for age, (producer, number) in enumerate(names):
        manifest = batch(spool, number, [{"a": [b"1"]}], producer=producer)
        spool.hand_in(manifest)
        os.utime(spool.path / manifest.name, (age, age))
    found = [
        (pending.manifest.producer, pending.manifest.batch) for pending in spool.pending() if pending.manifest
    ]
    assert found == [("q", 1), ("p", 4), ("q", 2), ("p", 5)]


def test_a_name_of_a_file_comes_from_a_users_text(spool: Spool) -> None:
    manifest = batch(spool, 0, [{"../../a": [b"1"]}], producer="../../../etc/passwd")
    spool.hand_in(manifest)
    spool.report(Report("../reader", 1, "../ns", "../log"))
    assert all(
        set(name) <= set("0123456789abcdef-.stagedmanifestposition") for name in os.listdir(spool.path)
    )


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_a_flipped_bit_in_a_staged_file_is_read(spool: Spool, position: int) -> None:
    manifest = batch(spool, 0, [{"a": [b"1" * 100]}, {"a": [b"2" * 100]}])
    path = spool.path / manifest.files[0].name
    data = bytearray(path.read_bytes())
    position = position if position >= 128 else position + 128  # the label is there twice
    data[position] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptJournal, match="cannot be used"):
        spool.examine(manifest)


def test_a_staged_file_that_was_cut_or_is_gone_is_read(spool: Spool) -> None:
    manifest = batch(spool, 0, [{"a": [b"1"]}, {"a": [b"2"]}])
    path = spool.path / manifest.files[0].name
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    with pytest.raises(CorruptJournal, match="bytes where"):
        spool.examine(manifest)
    path.unlink()
    with pytest.raises(CorruptJournal, match="is gone: write the batch again"):
        spool.examine(manifest)


def test_a_file_of_another_batch_is_read(spool: Spool) -> None:
    """A file that was exchanged for one of the same length."""
    manifest, other = batch(spool, 0, [{"a": [b"1", b"2"]}]), batch(spool, 1, [{"a": [b"1"]}, {"a": [b"2"]}])
    wrong = Staged(other.files[0].name, other.files[0].bytes, 2, manifest.files[0].shares)
    spool.examine(Manifest("query:q", 2, "default", [wrong]))
    with pytest.raises(CorruptJournal, match="other messages"):
        spool.examine(
            Manifest("query:q", 2, "default", [Staged(wrong.name, wrong.bytes, 2, [Share("a", 3)])])
        )


def test_a_damaged_manifest_is_read_or_stops_the_others(spool: Spool) -> None:
    good, bad, newer = (batch(spool, number, [{"a": [b"1"]}]) for number in range(3))
    for manifest in (good, bad, newer):
        spool.hand_in(manifest)
    data = bytearray((spool.path / bad.name).read_bytes())
    data[-3] ^= 1
    (spool.path / bad.name).write_bytes(data)
    (spool.path / newer.name).write_bytes(envelope.wrap(WHAT, VERSION + 1, b"?"))
    assert [pending.manifest for pending in spool.pending()] == [good, None, None]
    assert spool.sweep(older_s=-1) == 0, "nobody knows what they name"


def test_a_refusal_is_forgotten_or_outlives_its_manifest(spool: Spool) -> None:
    manifest = batch(spool, 0, [{"a": [b"1"]}])
    spool.hand_in(manifest)
    spool.refuse(manifest.name, QueueFull("'a' is full"), begun=False)
    assert [pending.refused for pending in spool.pending()] == [True]
    refusal = spool.refusal(manifest.name)
    assert refusal is not None
    assert isinstance(refusal.error(), QueueFull)
    assert str(refusal.error()) == "'a' is full"
    spool.withdraw(manifest)
    assert os.listdir(spool.path) == []
    # Whoever withdrew it died before the refusal was gone.
    spool.refuse(manifest.name, QueueFull("'a' is full"), begun=False)
    again = batch(spool, 0, [{"a": [b"2"]}])
    assert spool.hand_in(again)
    assert [pending.refused for pending in spool.pending()] == [False]


def test_a_damaged_refusal_lets_a_batch_be_withdrawn(spool: Spool) -> None:
    manifest = batch(spool, 0, [{"a": [b"1"]}])
    spool.hand_in(manifest)
    spool.refuse(manifest.name, QueueFull("'a' is full"), begun=False)
    (refused,) = spool.path.glob("*.refused")
    refused.write_bytes(b"x" * 50)
    refusal = spool.refusal(manifest.name)
    assert refusal is not None
    assert refusal.begun, "nobody can tell"


def test_the_sweep_takes_what_is_young_or_named(spool: Spool) -> None:
    handed_in, refused, left = (batch(spool, number, [{"a": [b"1"]}]) for number in range(3))
    spool.hand_in(handed_in)
    spool.hand_in(refused)
    spool.refuse(refused.name, QueueFull("full"), begun=False)
    (spool.path / "x.tmp").write_bytes(b"draft")
    (spool.path / "mine.txt").write_bytes(b"not ours")
    old = spool.path / left.files[0].name
    for path in spool.path.iterdir():
        os.utime(path, (0, 0))
    young = batch(spool, 3, [{"a": [b"1"]}])
    assert spool.sweep() == 2
    assert not old.exists()
    assert not (spool.path / "x.tmp").exists()
    assert (spool.path / "mine.txt").exists()
    for manifest in (handed_in, refused, young):
        assert (spool.path / manifest.files[0].name).exists()
        spool.examine(manifest)


def test_a_newer_report_is_lost_or_an_older_one_counts(spool: Spool) -> None:
    spool.report(Report("r", 1, log="a"))
    spool.report(Report("r", 2, log="a", holds=True))
    spool.report(Report("s", 9))
    taking = spool.reports()
    name, first = next(taking)
    assert first is not None
    spool.report(Report(first.reader, 50, log=first.log))  # while that one is being taken in
    others = dict(taking)
    assert sorted([first, *filter(None, others.values())], key=lambda one: one.offset) == [
        Report("r", 2, log="a", holds=True),
        Report("s", 9),
    ]
    spool.remove_reports([name, *others])
    assert heard(spool) == [50]
    spool.remove_reports(os.listdir(spool.path))
    assert os.listdir(spool.path) == []


def heard(spool: Spool) -> list[int]:
    return [one.offset for _, one in spool.reports() if one is not None]


def test_a_report_is_lost_with_its_owner(spool: Spool) -> None:
    spool.report(Report("r", 1, log="a"))
    assert heard(spool) == [1]  # and he dies
    assert heard(spool) == [1]
    spool.report(Report("r", 2, log="a"))
    assert heard(spool) == [2]
    spool.report(Report("r", 3, log="a"))
    assert heard(spool) == [3]


def test_a_batch_beyond_its_bounds_is_handed_in(spool: Spool) -> None:
    file = stage(spool, [{"a": [b"1"]}])
    wide = Staged(file.name, 1, 1, [Share(f"t{n}", 1) for n in range(limits.SPOOL_TOPICS_MAX + 1)])
    for manifest, error in (
        (Manifest("", 0, "default", [file]), InvalidArgument),
        (Manifest("p" * (limits.SPOOL_PRODUCER_BYTES_MAX + 1), 0, "default", [file]), InvalidArgument),
        (Manifest("p", -1, "default", [file]), InvalidArgument),
        (Manifest("p", limits.OFFSET_MAX + 1, "default", [file]), InvalidArgument),
        (Manifest("p", 0, "default", []), InvalidArgument),
        (Manifest("p", 0, "default", [file] * (limits.SPOOL_FILES_MAX + 1)), BatchTooLarge),
        (Manifest("p", 0, "default", [wide]), BatchTooLarge),
    ):
        with pytest.raises(error):
            spool.hand_in(manifest)
    assert spool.pending() == []


class Notes(UnsyncedFiles):
    """Writes down which calls were made."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def perform(self, operation, *arguments):  # type: ignore[no-untyped-def]
        self.calls.append(operation.__name__)
        return super().perform(operation, *arguments)


def test_a_name_is_there_before_its_content_is_on_the_disk(tmp_path: Path) -> None:
    notes = Notes()
    spool = spool_of(tmp_path / "data", notes)
    notes.calls.clear()
    file = stage(spool, [{"a": [b"1"]}])
    synced, renamed = notes.calls.index("fdatasync"), notes.calls.index("rename")
    assert synced < renamed < notes.calls.index("fsync"), "content, name, directory"
    assert "pwrite" not in notes.calls[synced:]
    notes.calls.clear()
    spool.hand_in(Manifest("query:q", 0, "default", [file]))
    assert notes.calls.index("fdatasync") < notes.calls.index("link") < notes.calls.index("fsync")
    notes.calls.clear()
    assert not spool.hand_in(Manifest("query:q", 0, "default", [file]))
    assert notes.calls.index("link") < notes.calls.index("fsync"), (
        "the other's manifest may not be on the disk yet"
    )


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
def test_handing_in_on_a_failing_disk_leaves_half_a_manifest(tmp_path: Path, kind: str) -> None:
    for nth in range(1, 60):
        files = FaultyFiles()
        spool = spool_of(tmp_path / f"{nth}", files)
        file = stage(spool, [{"a": [b"1"]}, {"a": [b"2"]}])
        manifest = Manifest("query:q", 0, "default", [file])
        files.arm(kind, nth, forever=False)
        with contextlib.suppress(OSError):
            spool.hand_in(manifest)
        done = not files.fired
        files.disarm()
        assert [pending.manifest for pending in spool.pending()] in ([manifest], [])
        spool.hand_in(manifest)
        (pending,) = spool.pending()
        assert pending.manifest == manifest
        spool.examine(manifest)
        if done:
            return
    raise AssertionError("it never came to its end")


# --- the bell ---


def test_a_bell_is_not_heard_where_many_files_are_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4000, hard), hard))
    bell = Files().listen(tmp_path)
    assert bell is not None
    try:
        with socket.socket(fileno=fcntl.fcntl(bell.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)) as high:
            Files().ring(tmp_path)
            assert Files().heard(high, 0)
    finally:
        bell.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nobody_hears_the_bell(tmp_path: Path) -> None:
    files = Files()
    assert not files.ring(tmp_path), "nobody listens"
    bell = files.listen(tmp_path)
    assert bell is not None
    try:
        assert files.listen(tmp_path) is None, "one listens at a time"
        assert not files.heard(bell, 0)
        for _ in range(3000):  # more than it can keep
            assert files.ring(tmp_path / ".." / tmp_path.name)
        assert files.heard(bell, 0)
        assert not files.heard(bell, 0), "all of it was heard"
    finally:
        bell.close()
    assert not files.ring(tmp_path)
    assert not files.ring(tmp_path / "missing")
    assert files.listen(tmp_path / "missing") is None
