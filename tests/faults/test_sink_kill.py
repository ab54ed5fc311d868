"""`kill -9` of a Spark driver and its JVM in the middle of a batch, again and again over one checkpoint: the query that comes back loses no message and doubles none.

Half of the rounds a broker holds the directory, half of them nobody does, so that the driver opens it itself, and dies as its owner. It is killed when something was seen in the spool, so a batch is under way.
"""

from __future__ import annotations

import os
import random
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from penstock.limits import DELIVERIES_MAX
from tests.faults import campaign, driver
from tests.unit.broker.patience import until

FILES = 8
ROWS = 2000


def _names(spool: Path) -> list[str]:
    try:
        return os.listdir(spool)
    except FileNotFoundError:
        return []


def _wait_for_work(process: subprocess.Popen[bytes], spool: Path, suffix: str) -> None:
    """Until a batch is under way, as far as a file of that kind says, or the query has ended."""
    before = set(_names(spool))
    until(
        lambda: (
            any(name.endswith(suffix) for name in set(_names(spool)) - before) or process.poll() is not None
        )
    )


def _kill_again_and_again(tmp_path: Path, kills: int, seed: object) -> None:
    source, directory, checkpoint = (tmp_path / name for name in ("source", "data", "checkpoint"))
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:03d}.txt").write_text("\n".join(f"{number}-{n}" for n in range(ROWS)))
    chance = random.Random(f"{seed}")
    for kill in range(kills):
        with driver.opened(directory) if kill % 2 else nullcontext():
            process = driver.start("tests.faults.sink_child", source, directory, checkpoint)
            try:
                assert driver.line(process) == b"begins"
                _wait_for_work(process, directory / "spool", chance.choice([".tmp", ".staged", ".manifest"]))
                assert process.poll() is None, "it ended before it was killed: there was nothing left to do"
            finally:
                driver.kill(process)
    process = driver.start("tests.faults.sink_child", source, directory, checkpoint)
    try:
        assert driver.line(process) == b"begins"
        assert driver.line(process) == b"ends"
    finally:
        driver.kill(process)
    _check(directory)


def _check(directory: Path) -> None:
    with driver.opened(directory) as broker:
        found = [
            one.payload.decode()
            for name in broker.list_queues()
            for one in broker.queue(name).reader("test").read_many(DELIVERIES_MAX)
        ]
    expected = {f"{number}-{n}" for number in range(FILES) for n in range(ROWS)}
    assert sorted(found) == sorted(set(found)), "doubled"
    assert set(found) == expected, "lost, or made up"
    assert not [name for name in os.listdir(directory / "spool") if name.endswith(".manifest")]


@pytest.mark.campaign  # a minute: what it shows is tried call by call in `tests/unit/broker/test_intake.py`
@pytest.mark.timeout(600)
def test_killing_the_driver_loses_or_doubles_a_message(tmp_path: Path) -> None:
    _kill_again_and_again(tmp_path, 2, "test")


@pytest.mark.campaign
def test_killing_the_driver_for_long_loses_or_doubles_a_message(tmp_path: Path) -> None:
    rounds = min(campaign.rounds(20), 20)
    for part in range(-(-rounds // 5)):
        (tmp_path / f"{part}").mkdir()
        _kill_again_and_again(tmp_path / f"{part}", 5, f"campaign {part}")
