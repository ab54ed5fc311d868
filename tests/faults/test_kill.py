"""`kill -9` of a writing process: at any time, and before and after each call that changes what a crash leaves.

The kernel's memory survives a kill, so nothing that was acknowledged may be lost, whatever the durability.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.journal.tail import DURABILITIES, Durability
from tests.faults import campaign
from tests.faults.child import Child
from tests.faults.faulty_files import UnsyncedFiles
from tests.faults.workload import Oracle, check
from tests.faults.writer import Orders

#: Steps that rotate, snapshot, rewrite, drop and recycle.
STEPS = 30


def _kill_again_and_again(path: Path, durability: Durability, kills: int) -> None:
    """One directory, killed so many times, a commit number for each attempt."""
    chance = random.Random(f"{durability} {kills}")
    oracle = Oracle()
    start = 1
    for _ in range(kills):
        with Child(path, oracle, Orders(start=start, durability=durability)) as child:
            assert child.hear(chance.randrange(1, 40)), child.complaint()
            child.kill()
        check(path, oracle, files=UnsyncedFiles())
        start = max(oracle.attempts) + 1
        _forget_the_oldest(oracle)


def _forget_the_oldest(oracle: Oracle) -> None:
    """Comparing costs time by the attempt: keep those whose rows can still be there."""
    for number in sorted(oracle.attempts)[:-200]:
        attempt = oracle.attempts[number]
        if all(kind == "messages" and oracle.is_dead(log, row["offset"]) for kind, log, row in attempt.rows):
            attempt.rows = []


@pytest.mark.parametrize("durability", DURABILITIES)
def test_killing_a_writer_loses_nothing_acknowledged(tmp_path: Path, durability: Durability) -> None:
    _kill_again_and_again(tmp_path / "journal", durability, 7)


@pytest.mark.campaign
@pytest.mark.parametrize("durability", DURABILITIES)
def test_killing_a_writer_for_long_loses_nothing_acknowledged(tmp_path: Path, durability: Durability) -> None:
    for part in range(-(-campaign.rounds() // 25)):
        _kill_again_and_again(tmp_path / f"journal-{part}", durability, min(25, campaign.rounds()))


def _deadly_calls(path: Path) -> int:
    """How many calls a process makes on its way at which it could be killed."""
    oracle = Oracle()
    with Child(path, oracle, Orders(steps=STEPS, files="mortal")) as child:
        child.hear_out()
        assert child.calls, child.complaint()
    check(path, oracle, files=UnsyncedFiles())
    return child.calls


def _deadly(when: str, call: int) -> Orders:
    orders = Orders(steps=STEPS, files="mortal")
    setattr(orders, f"die_{when}", call)
    return orders


def _killed_at(path: Path, orders: Orders) -> None:
    oracle = Oracle()
    with Child(path, oracle, orders) as child:
        child.hear_out()
        assert child.calls is None, "it lived to the end"
    try:
        check(path, oracle, files=UnsyncedFiles())
    except BaseException as error:
        error.add_note(f"killed before {orders.die_before}, after {orders.die_after}")
        raise


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_sync_rename_or_unlink_loses_nothing_acknowledged(tmp_path: Path, when: str) -> None:
    calls = range(1, _deadly_calls(tmp_path / "whole") + 1)
    for call in campaign.some(calls, 12, when):
        _killed_at(tmp_path / f"{call}", _deadly(when, call))


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_sync_rename_and_unlink_loses_nothing_acknowledged(tmp_path: Path, when: str) -> None:
    for call in range(1, _deadly_calls(tmp_path / "whole") + 1):
        _killed_at(tmp_path / f"{call}", _deadly(when, call))
