"""Damage to a summary costs the time to scan a segment, never data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal import summary as summaries
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from tests.unit.journal.specimen import Specimen, flip, make, reopened


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    return make(tmp_path_factory.mktemp("many") / "journal", 40, segment_bytes=4096)


def bits(specimen: Specimen, step: int) -> Iterator[tuple[str, int]]:
    for summary in sorted(specimen.path.glob("*.summary"))[:2]:
        for bit in range(0, summary.stat().st_size * 8, step):
            yield summary.name, bit


def check(specimen: Specimen, path: Path, name: str, bit: int) -> None:
    flip(specimen.copy(path) / name, bit)
    assert summaries.read(Directory(Files(), path), int(name.split(".", maxsplit=1)[0])) is None, (
        "the damage was not noticed"
    )
    served, journal = reopened(path)
    assert served == specimen.commits
    assert journal.recovery.summaries_rebuilt == 1
    assert journal.damage == []
    assert (path / name).read_bytes() == (specimen.path / name).read_bytes(), "it is made again as it was"


@pytest.mark.lengthy
def test_a_flipped_bit_in_a_summary_costs_no_data(many: Specimen, tmp_path: Path) -> None:
    for name, bit in bits(many, 61):
        check(many, tmp_path / "copy", name, bit)


@pytest.mark.campaign
def test_every_flipped_bit_of_a_summary_costs_no_data(many: Specimen, tmp_path: Path) -> None:
    for name, bit in bits(many, 1):
        check(many, tmp_path / "copy", name, bit)


def test_a_cut_or_missing_summary_costs_no_data(many: Specimen, tmp_path: Path) -> None:
    name = min(many.path.glob("*.summary")).name
    data = (many.path / name).read_bytes()
    for size in (None, *range(0, len(data), 37)):
        path = many.copy(tmp_path / "copy")
        if size is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(data[:size])
        assert reopened(path)[0] == many.commits


def test_a_summary_of_another_generation_is_not_believed(many: Specimen, tmp_path: Path) -> None:
    path = many.copy(tmp_path / "copy")
    other = make(tmp_path / "other", 40, segment_bytes=4096)
    name = min(other.path.glob("*.summary")).name
    (path / name).write_bytes((other.path / name).read_bytes())
    served, journal = reopened(path)
    assert served == many.commits
    assert journal.recovery.summaries_rebuilt == 1


def test_a_summary_without_its_segment_is_thrown_away(many: Specimen, tmp_path: Path) -> None:
    path = many.copy(tmp_path / "copy")
    orphan = path / "00000000000000000999.summary"
    orphan.write_bytes(min(path.glob("*.summary")).read_bytes())
    Journal(path).close()
    assert not orphan.exists()


def test_a_summary_says_which_logs_offsets_and_times_a_segment_holds(many: Specimen) -> None:
    found = summaries.read(Directory(Files(), many.path), 1)
    assert found is not None
    log = next(entry for entry in found.logs if entry.log == 1)
    mine = [dict(row) for commit in many.commits if commit[0] <= found.last_sequence for row in commit[1]]
    messages = [row for row in mine if row["log"] == 1 and "payload" in row]
    assert (log.first, log.last, log.rows) == (messages[0]["offset"], messages[-1]["offset"], len(messages))
    assert (log.oldest, log.newest) == (messages[0]["timestamp"], max(row["timestamp"] for row in messages))
