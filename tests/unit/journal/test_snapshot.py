"""Two snapshots are kept; damage to one or both costs replaying, never data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidArgument
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.journal import Journal
from penstock.journal.rows import messages
from tests.unit.journal.specimen import Specimen, batch, content, flip, make, reopened


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
