"""A real power cut: an ext4 file system on a loop device is shut down under a writing process, and mounted again.

Unlike `kill -9` it takes the kernel's memory along, so it shows whether what was acknowledged had been synced. That it would show a
missing sync is shown by leaving one out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal.tail import Durability
from tests.faults import campaign
from tests.faults.child import Child
from tests.faults.disk import Disk
from tests.faults.workload import Oracle, check, opened
from tests.faults.writer import Orders


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path) as disk:
        yield disk


def _write_until_the_cut(disk: Disk, oracle: Oracle, orders: Orders, acknowledgements: int) -> Path:
    """A writer whose power goes after so many acknowledgements, or a little later; its directory, with the power back."""
    path = disk.path / "journal"
    with Child(path, oracle, orders) as child:
        assert child.hear(acknowledgements), child.complaint()
        disk.cut()
        child.kill()
    disk.restore()
    return path


# --- with the default durability nothing acknowledged is lost ---


def _cut_again_and_again(disk: Disk, cuts: int, seed: int, *, hosted: bool) -> None:
    chance = random.Random(seed)
    oracle = Oracle()
    start = 1
    for _ in range(cuts):
        orders = Orders(start=start, hosted=hosted)
        path = _write_until_the_cut(disk, oracle, orders, chance.randrange(1, 60))
        check(path, oracle)
        start = max(oracle.attempts) + 1
    disk.wipe()


by_whom = pytest.mark.parametrize("hosted", [False, True], ids=["by a thread", "by a loop"])


@by_whom
def test_a_power_cut_loses_nothing_acknowledged(disk: Disk, hosted: bool) -> None:
    _cut_again_and_again(disk, 8, seed=1, hosted=hosted)


@pytest.mark.campaign
@by_whom
def test_many_power_cuts_lose_nothing_acknowledged(disk: Disk, hosted: bool) -> None:
    for part in range(-(-campaign.rounds() // 10)):
        _cut_again_and_again(disk, 10, seed=part, hosted=hosted)


# --- with the others what is there is right ---


def _cut_without_promise(disk: Disk, durability: Durability, cuts: int) -> None:
    chance = random.Random(durability)
    for _ in range(cuts):
        oracle = Oracle()
        path = _write_until_the_cut(disk, oracle, Orders(durability=durability), chance.randrange(1, 80))
        check(path, oracle, damage=True, lossy=True)
        _check_it_is_a_prefix(path, oracle)
        disk.wipe()


def _check_it_is_a_prefix(path: Path, oracle: Oracle) -> None:
    journal, applied = opened(path)
    journal.close()
    if not journal.recovery.damage:
        assert sorted(applied) == list(range(1, len(applied) + 1)), (
            "a commit is gone and a later one is there"
        )


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_power_cut_leaves_a_beginning_where_syncing_was_not_asked_for(
    disk: Disk, durability: Durability
) -> None:
    _cut_without_promise(disk, durability, 4)


@pytest.mark.campaign
@pytest.mark.parametrize("durability", ["interval", "os"])
def test_many_power_cuts_leave_a_beginning_where_syncing_was_not_asked_for(
    disk: Disk, durability: Durability
) -> None:
    _cut_without_promise(disk, durability, campaign.rounds())


# --- it would show a missing sync ---


def _lost_without(disk: Disk, files: str, cuts: int, *, hosted: bool) -> Iterator[list[int]]:
    """For each cut, the acknowledged commits that are gone when a process uses such files."""
    chance = random.Random(files)
    for _ in range(cuts):
        oracle = Oracle()
        orders = Orders(files=files, hosted=hosted)
        path = _write_until_the_cut(disk, oracle, orders, chance.randrange(20, 50))
        yield _lost(path, oracle)
        disk.wipe()


def _lost_in_used_file(disk: Disk, files: str) -> list[int]:
    """The acknowledged commits that are gone when the power goes just after a rotation into a recycled file."""
    oracle = Oracle()
    path = disk.path / "journal"
    with Child(path, oracle, Orders(files=files, stop_in_used_file=True)) as child:
        assert child.hear_until_it_stops(), child.complaint()
        disk.cut()
        child.kill()
    disk.restore()
    return _lost(path, oracle)


def _lost(path: Path, oracle: Oracle) -> list[int]:
    journal, applied = opened(path)
    journal.close()
    return [attempt.number for attempt in oracle.must_be_there() if attempt.number not in applied]


@by_whom
def test_a_missing_file_sync_is_caught(disk: Disk, hosted: bool) -> None:
    # One cut usually shows it; the kernel may write everything out just in time, but not again and again.
    assert any(_lost_without(disk, "no file sync", 30, hosted=hosted))


def test_a_missing_directory_sync_is_caught(disk: Disk) -> None:
    assert _lost_in_used_file(disk, "no directory sync")


@pytest.mark.parametrize("files", ["sound", "no summary sync"])
def test_a_used_file_that_was_just_begun_survives(disk: Disk, files: str) -> None:
    assert not _lost_in_used_file(disk, files)
