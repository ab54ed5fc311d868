"""A real power cut under a whole broker: an ext4 file system on a loop device is shut down while hands do everything there is to do with logs, and mounted again.

What was acknowledged must be there, as after a kill (see `test_logs_kill`), and here it must have been synced. That a missing sync would be seen is shown by leaving it out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal.files import Files
from tests.faults import campaign
from tests.faults.disk import Disk
from tests.faults.logs_child import Orders
from tests.faults.logs_model import Oracle
from tests.faults.nursery import Nursery
from tests.faults.test_logs_kill import check_here


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path) as disk:
        yield disk


def _cut_again_and_again(disk: Disk, cuts: int, seed: object, files: str = "sound") -> None:
    """One directory, in use when the power goes, so many times."""
    chance = random.Random(f"{seed}")
    oracle = Oracle()
    path = disk.path / "data"
    with Nursery("tests.faults.logs_child") as nursery:
        for cut in range(cuts):
            orders = Orders(str(path), f"{seed} {cut}", first=1 + cut * 10_000, files=files)
            reports = chance.randrange(20, 250)
            for report in nursery.life(
                orders, reports=reports, seconds=chance.random() * 0.005, before=disk.cut
            ):
                oracle.hear(*report)
            disk.restore()
            if chance.random() < 0.3:  # at other times it is the next process that finds what is left
                check_here(path, oracle, Files)
    check_here(path, oracle, Files)
    disk.wipe()


def test_a_power_cut_under_a_broker_of_logs_breaks_a_promise(disk: Disk) -> None:
    _cut_again_and_again(disk, 4, seed=1)


@pytest.mark.campaign
def test_many_power_cuts_under_a_broker_of_logs_break_a_promise(disk: Disk) -> None:
    for part in range(-(-campaign.rounds() // 10)):
        _cut_again_and_again(disk, min(10, campaign.rounds()), seed=f"campaign {part}")


def test_a_broker_of_logs_that_does_not_sync_goes_unnoticed(disk: Disk) -> None:
    # One cut usually shows it; the kernel may write everything out just in time, but not again and again.
    with pytest.raises(AssertionError, match=r"hand\d: |census"):
        _cut_again_and_again(disk, 10, seed=2, files="no file sync")
