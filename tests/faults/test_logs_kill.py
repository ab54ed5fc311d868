"""`kill -9` of a process whose hands do everything there is to do with logs: at any time, again and again over one directory, and before and after each call that
changes what a crash leaves.

The next owner must find what was acknowledged, with what was under way or without it, and nothing else (see `logs_model`):

1.  what was published comes to every group and durable subscription that existed then, until it was acked there; it then comes again only after a seek that was acknowledged;
2.  what was never published, was cancelled, or was only wanted by an ephemeral subscription is not there; ephemeral subscriptions are not there either;
3.  seeks hold, readers stand where they committed, schedules, groups and logs are those that were made and not ended;
4.  what is retained, and what a reader holds, can be read;
5.  a transaction is all in or all out: the money in the accounts is never more, or less.

What it would notice is tried as well: see `SABOTAGE` in `logs_child`.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.journal.files import Files
from tests.faults import campaign
from tests.faults.faulty_files import UnsyncedFiles
from tests.faults.logs_child import SABOTAGE, Orders
from tests.faults.logs_hand import Hand, census, look, opened
from tests.faults.logs_model import Oracle
from tests.faults.nursery import Nursery

#: Steps of a process that is killed at each of its calls in turn.
STEPS = 60


def check_here(path: Path, oracle: Oracle, files: type[Files] = UnsyncedFiles) -> None:
    """Open it in this process: what there is to see is the same the second time, and is what it must be."""
    hands = sorted({*oracle.models, *oracle.under_way})
    with opened(path, files()) as broker:
        seen = {hand: look(broker.namespace(hand)) for hand in hands}
    with opened(path, files()) as broker:
        for hand in hands:
            again = look(broker.namespace(hand))
            assert again == seen[hand], "opened twice, it is not the same"
            oracle.hear("census", hand, census(broker.namespace(hand), again))


# --- at any time ---


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.faults.logs_child") as nursery:
        yield nursery


def _kill_again_and_again(
    nursery: Nursery, path: Path, kills: int, seed: object, sabotage: str = ""
) -> Oracle:
    chance = random.Random(f"{seed}")
    oracle = Oracle()
    for kill in range(kills):
        orders = Orders(str(path), f"{seed} {kill}", first=1 + kill * 10_000, sabotage=sabotage)
        in_opening = kill and chance.random() < 0.15
        reports = 0 if in_opening else chance.randrange(20, 250)
        seconds = chance.random() * (0.1 if in_opening else 0.002)
        for report in nursery.life(orders, reports=reports, seconds=seconds):
            assert report[0] != "failed", report
            oracle.hear(*report)
    try:
        check_here(path, oracle)
    except AssertionError:
        raise
    except Exception as error:  # what a child would tell as one
        oracle.hear("error", repr(error))
    return oracle


def test_killing_a_broker_of_logs_breaks_a_promise(nursery: Nursery, tmp_path: Path) -> None:
    oracle = _kill_again_and_again(nursery, tmp_path / "data", 12, "test")
    assert min(oracle.steps[what] for what in ("open", "close", "seek", "commit", "transact", "cancel")) > 3


@pytest.mark.campaign
def test_killing_a_broker_of_logs_for_long_breaks_a_promise(nursery: Nursery, tmp_path: Path) -> None:
    for part in range(-(-campaign.rounds() // 20)):
        _kill_again_and_again(nursery, tmp_path / f"{part}", min(20, campaign.rounds()), f"campaign {part}")
        shutil.rmtree(tmp_path / f"{part}")


# --- at each call ---


def _lived(nursery: Nursery, oracle: Oracle, orders: Orders) -> int | None:
    """The calls at which a process could have been killed; None if it was."""
    calls: int | None = None
    for report in nursery.whole_life(orders):
        assert report[0] != "failed", report
        if report[0] == "finished":
            calls = report[1]
        oracle.hear(*report)
    return calls


def _deadly(path: Path, seed: str, **how: Any) -> Orders:
    return Orders(str(path), seed, hands=1, steps=STEPS, files="mortal", **how)


def _killed_at_calls(
    nursery: Nursery, path: Path, when: str, seed: str, sample: int | None, sabotage: str = ""
) -> Iterator[Oracle]:
    whole = Oracle()
    calls = _lived(nursery, whole, _deadly(path / "whole", seed, sabotage=sabotage))
    assert calls
    check_here(path / "whole", whole)
    places = range(1, calls + 1)
    for call in places if sample is None else campaign.some(places, sample, (when, seed)):
        oracle = Oracle()
        orders = _deadly(path / f"{call}", seed, sabotage=sabotage, **{f"die_{when}": call})
        try:
            lived = _lived(nursery, oracle, orders)
            # How long frames are depends on the time, and on that, when segments are full: the last calls may not come.
            assert lived is None or call > calls - 5, "it lived to the end"
            check_here(path / f"{call}", oracle)
        except BaseException as error:
            error.add_note(f"killed {when} call {call} of {calls}, seed {seed}")
            raise
        shutil.rmtree(path / f"{call}")
        yield oracle


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_broker_of_logs_killed_at_a_sync_rename_or_unlink_breaks_a_promise(
    nursery: Nursery, tmp_path: Path, when: str
) -> None:
    for _ in _killed_at_calls(nursery, tmp_path, when, "0", 8):
        pass


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_broker_of_logs_killed_at_every_sync_rename_and_unlink_breaks_a_promise(
    nursery: Nursery, tmp_path: Path, when: str
) -> None:
    for seed in range(-(-campaign.rounds() // 100)):
        for _ in _killed_at_calls(nursery, tmp_path / f"{seed}", when, f"{seed}", None):
            pass


# --- what would be noticed ---

#: What the oracle says of each.
COMPLAINTS = {
    "a seek leaves no row": "do not come to|come to .*, and should not",
    "a subscription leaves no row": "' is gone",
    "the end of a subscription leaves no row": "or it had ended",
    "a commit leaves no row": "have committed",
    "a schedule leaves no row": "has the schedules",
    "cancelling leaves no row": "were cancelled, and are in",
    "an ephemeral subscription leaves a row": "nobody made it",
    "a transaction is several commits": r"and if \('transact', .* was done:",
    "the cleaner takes what is retained": "should be kept in",
    "a snapshot is older than it says": "do not come to|come to .*, and should not",
}


@pytest.mark.parametrize(
    "sabotage", [name for name in SABOTAGE if name and name != "a transaction is several commits"]
)
def test_a_broken_broker_of_logs_goes_unnoticed(nursery: Nursery, tmp_path: Path, sabotage: str) -> None:
    told: list[str] = []  # something else came of it first, such as a count that is wrong, or an error
    for part in range(12):
        try:
            _kill_again_and_again(nursery, tmp_path / f"{part}", 8, part, sabotage)
        except AssertionError as breach:
            if re.search(COMPLAINTS[sabotage], str(breach)):
                return
            told.append(str(breach))
    pytest.fail(f"nobody complained of it, but: {told}")


def test_a_transaction_in_several_commits_goes_unnoticed(nursery: Nursery, tmp_path: Path) -> None:
    sabotage = "a transaction is several commits"
    with pytest.raises(AssertionError, match=COMPLAINTS[sabotage]):
        for _ in _killed_at_calls(nursery, tmp_path, "after", "0", 60, sabotage):
            pass


# --- what the loops have found, and rarely meet ---


def test_what_a_reader_began_to_hold_is_gone_after_a_crash(tmp_path: Path) -> None:
    """Only an ephemeral subscription needed it until then."""
    oracle = Oracle()
    with opened(tmp_path / "data", UnsyncedFiles()) as broker:
        hand = Hand(broker, "hand", oracle.hear)
        hand.begin()
        consumer = broker.namespace("hand").topic("news.b").subscribe(durable=False)
        hand.publish("news.b", 3)
        hand.commit("news.b", "keeper", 1)
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
        consumer.close()
    check_here(tmp_path / "crashed", oracle)
