"""Two snapshots are kept; damage to one or both costs replaying, never data."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidArgument, MaintenanceFailed
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.journal import Journal
from penstock.journal.rows import messages
from penstock.model.damage import STATE
from tests.unit.journal.specimen import Specimen, batch, content, flip, make, reopened
from tests.unit.journal.watched import Watched, failing, nothing


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    return make(tmp_path_factory.mktemp("snapshots") / "journal", 30, segment_bytes=4096, snapshots=True)


def replayed(path: Path) -> tuple[list[bytes], list[int], Journal]:
    restored: list[bytes] = []
    sequences: list[int] = []
    with Journal(
        path, restore=restored.append, replay=lambda frame: sequences.append(frame.sequence)
    ) as journal:
        pass
    return restored, sequences, journal


def test_opening_restores_the_newest_snapshot_and_replays_what_came_after(
    specimen: Specimen, tmp_path: Path
) -> None:
    restored, sequences, journal = replayed(specimen.copy(tmp_path / "copy"))
    assert restored == [b"state 20"]
    assert sequences == list(range((journal.recovery.snapshot or 0) + 1, specimen.commits[-1][0] + 1))
    assert reopened(tmp_path / "copy")[0] == specimen.commits


def newest(path: Path) -> Path:
    return max(path.glob("*.snapshot"))


def check(specimen: Specimen, path: Path, bit: int) -> None:
    damaged = newest(specimen.copy(path))
    flip(damaged, bit)
    restored, sequences, journal = replayed(path)
    assert restored == [b"state 10"], "the older one is loaded instead"
    assert sequences == list(range((journal.recovery.snapshot or 0) + 1, specimen.commits[-1][0] + 1))
    assert journal.recovery.snapshots_damaged == 1
    assert not damaged.exists()
    assert (path / "quarantine" / damaged.name).exists()
    assert reopened(path)[0] == specimen.commits


def bits(specimen: Specimen, step: int) -> Iterator[int]:
    yield from range(0, newest(specimen.path).stat().st_size * 8, step)


def test_a_flipped_bit_in_a_snapshot_costs_replaying(specimen: Specimen, tmp_path: Path) -> None:
    for bit in bits(specimen, 91):
        check(specimen, tmp_path / "copy", bit)


@pytest.mark.campaign
def test_every_flipped_bit_of_a_snapshot_costs_replaying(specimen: Specimen, tmp_path: Path) -> None:
    for bit in bits(specimen, 1):
        check(specimen, tmp_path / "copy", bit)


def test_two_damaged_snapshots_cost_replaying_everything(specimen: Specimen, tmp_path: Path) -> None:
    path = specimen.copy(tmp_path / "copy")
    for snapshot in path.glob("*.snapshot"):
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    restored, sequences, journal = replayed(path)
    assert restored == []
    assert sequences == list(range(1, specimen.commits[-1][0] + 1))
    assert journal.recovery.snapshots_damaged == 2
    assert journal.damage == []


def test_two_snapshots_are_kept(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        taken = []
        for n in range(5):
            journal.commit([batch(1, n, 1)])
            taken.append(journal.snapshot(b"%d" % n))
        assert journal.stats().snapshots == taken[-2:]
    assert [int(file.stem) for file in sorted(tmp_path.glob("*.snapshot"))] == taken[-2:]


def test_what_the_journal_itself_knows_survives_in_a_snapshot(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.commit([batch(1, 0, 5), batch(7, 0, 3)])
        journal.snapshot(b"")
    with Journal(tmp_path) as journal:
        assert journal.recovery.frames == 0
        assert (journal.next_offset(1), journal.next_offset(7)) == (5, 3)
        assert [len(found) for found in journal.read(1)] == [5]


def test_a_snapshot_of_an_earlier_commit_replays_from_there(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=4096) as journal:
        early = journal.commit([batch(1, 0, 1)])
        later = [journal.commit([batch(1, n, 2)]) for n in range(60)]
        assert journal.snapshot(b"early", early) == early
        last = [journal.commit([batch(1, n, 2)]) for n in range(3)]
        expected = [content(frame) for frame in journal.frames()]
    restored, sequences, _ = replayed(tmp_path)
    assert restored == [b"early"]
    assert sequences == [*later, *last]
    with Journal(tmp_path) as journal:
        assert [content(frame) for frame in journal.frames()][: len(expected)] == expected


def test_a_snapshot_of_a_commit_that_was_never_made_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, pytest.raises(InvalidArgument, match="not been committed"):
        journal.snapshot(b"", journal.stats().sequence + 1)


def test_a_snapshot_never_covers_what_is_not_synced(tmp_path: Path) -> None:
    with Journal(tmp_path, durability="os") as journal:
        sequence = journal.commit([messages(1, [b"x"], ids=1, timestamp=0)])
        assert journal.durable_sequence < sequence
        assert journal.snapshot(b"") == sequence
        assert journal.durable_sequence == sequence


def test_a_state_that_is_not_bytes_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for state in ("text", 5, None):
            with pytest.raises(InvalidArgument, match="bytes"):
                journal.snapshot(state)  # type: ignore[arg-type]


def test_rows_that_were_only_queued_are_replayed_after_the_snapshot(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        ticket = journal.append([batch(1, 0, 1)])
        journal.snapshot(b"without it")
    assert ticket.sequence in replayed(tmp_path)[1]


def test_two_damaged_snapshots_after_cleaning_are_damage_and_not_a_clean_end(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=4096) as journal:
        for n in range(40):
            journal.commit([batch(1, n * 3, 3)])
        for n in range(2):
            journal.commit([batch(9, n, 1)])
            journal.snapshot(b"state")
        assert clean(journal, lambda log, first, last: [DeadRange(first, last, 1)]).segments_dropped
    for snapshot in tmp_path.glob("*.snapshot"):
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    with Journal(tmp_path, segment_bytes=4096) as journal:
        assert journal.recovery.end == "rot"
        assert [damage.what for damage in journal.damage] == ["state"]


def test_a_snapshot_that_could_not_be_written_keeps_no_room(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        journal.commit([batch(1, 0, 1)])
        files.before = failing("rename", errno.EIO, path=".snapshot")
        with pytest.raises(MaintenanceFailed):
            journal.snapshot(b"state" * 1000)
        assert list(tmp_path.glob("*.tmp")) == []


def test_a_second_damaged_snapshot_of_the_same_number_keeps_the_first_ones_copy(
    specimen: Specimen, tmp_path: Path
) -> None:
    path = specimen.copy(tmp_path / "copy")
    damaged = newest(path)
    original = damaged.read_bytes()
    for bit in (800, 1600):
        damaged.write_bytes(original)
        flip(damaged, bit)
        Journal(path).close()
    kept = {copy.read_bytes() for copy in (path / "quarantine").iterdir()}
    assert len(kept) == 2


@pytest.mark.parametrize("gone", [True, False])
def test_offsets_that_only_lost_snapshots_knew_are_never_used_again(tmp_path: Path, gone: bool) -> None:
    """Log 2 was dropped as a whole, and then so was the segment that said so: twice, because the second loss is a new one."""
    used: dict[int, int] = {}
    for _ in range(2):
        with Journal(tmp_path) as journal:
            for log in (1, 2):
                assert journal.next_offset(log) >= used.get(log, 0)
                journal.commit([messages(log, [b"a"] * 50, ids=range(50), timestamp=0)])
            for _ in range(2):
                journal.rotate()
                for _ in range(2):
                    journal.commit([messages(1, [b"x"], ids=1, timestamp=0)])
                    journal.snapshot(b"state")
                assert clean(journal, lambda log, first, last: [DeadRange(first, last, 1)]).segments_dropped
            used = {log: journal.next_offset(log) for log in (1, 2)}
        for snapshot in tmp_path.glob("*.snapshot"):
            if gone:
                snapshot.unlink()
            else:
                flip(snapshot, 300)
    with Journal(tmp_path) as journal:
        assert STATE in [damage.what for damage in journal.damage]
        assert journal.recovery.end == "rot"
        assert all(journal.next_offset(log) >= used[log] for log in used)
        used = {log: journal.next_offset(log) for log in used}
    with Journal(tmp_path) as journal:
        assert journal.recovery.end == "clean", "it is known by now"
        assert {log: journal.next_offset(log) for log in used} == used


def test_a_snapshot_under_another_ones_name_is_not_believed(specimen: Specimen, tmp_path: Path) -> None:
    path = specimen.copy(tmp_path / "copy")
    misnamed = newest(path).rename(path / f"{10**6:020d}.snapshot")
    restored, _, journal = replayed(path)
    assert restored == [b"state 10"], "the older one is loaded instead"
    assert journal.recovery.snapshots_damaged == 1
    assert (path / "quarantine" / misnamed.name).exists()
    assert reopened(path)[0] == specimen.commits


def test_a_snapshot_that_the_disk_keeps_differently_gets_no_name(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        journal.commit([batch(1, 0, 1)])
        kept = journal.snapshot(b"good")
        journal.commit([batch(1, 1, 1)])

        def after(name: str, arguments: tuple[object, ...]) -> None:
            for draft in tmp_path.glob("*.snapshot.tmp") if name == "fdatasync" else ():
                flip(draft, 8 * 40)

        files.after = after
        with pytest.raises(MaintenanceFailed, match="reads back differently"):
            journal.snapshot(b"bad")
        files.after = nothing
        assert journal.stats().snapshots == [kept]
        journal.commit([batch(1, 2, 1)])
    assert [int(file.stem) for file in tmp_path.glob("*.snapshot")] == [kept]
    assert replayed(tmp_path)[0] == [b"good"]
