"""`kill -9` of a Spark driver and its JVM while it archives, compacts and replays, again and again: every row is in the archive once, at any moment, and every message is replayed once.

It is killed when a file of some kind was seen to come: one that is staged, an intent, a manifest, a moved file, a compacted one, a plan or a note of a replay. Messages are published between kills.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults import campaign, driver
from tests.unit.broker.patience import until

pytest.importorskip("pyspark")

import msgspec
import pyarrow.dataset as ds
import pyarrow.parquet as pq

#: Kills after which another replay is begun as well.
KILLS_PER_REPLAY = 3

#: What it is killed at: a file that matches one of these, and was not there before.
MOMENTS = (
    "lake/_archive/staging/*/*.parquet",
    "lake/_archive/staging/*/compact-*/_temporary",
    "lake/_archive/changes/*/*.intent",
    "lake/_archive/changes/*/*.manifest",
    "lake/messages/*/*/*/part-*.parquet",
    "lake/settlements/*/*/*/part-*.parquet",
    "lake/*/*/*/*/compact-*.parquet",
    "lake/_replays/*/plan.json",
    "lake/_replays/*/*.done",
    "target/spool/*.manifest",
)


def _start(home: Path, replays: int) -> subprocess.Popen[bytes]:
    places = home / "data", home / "lake", home / "target"
    return driver.start("tests.faults.archive_child", *places, replays)


def _publish(directory: Path, known: Counter[int], settled: Counter[int]) -> None:
    with driver.opened(directory) as broker:
        for name in ("orders", "invoices"):
            queue = broker.queue(name, retain="until-archived")
            known.update(queue.publish_many([b"x" * 50] * 200))
            deliveries = queue.receive_many(50)
            queue.ack_many(deliveries)
            settled.update(delivery.id for delivery in deliveries)


def _rows(home: Path, table: str) -> Counter[Any]:
    """What any reader of Parquet sees: nothing is under way."""
    return Counter(ds.dataset(home / "lake" / table, partitioning="hive").to_table(["id"])["id"].to_pylist())


def _counted(home: Path, table: str) -> Counter[Any]:
    """What counts by the changes, read without Spark, while something was interrupted."""
    hidden: set[str] = set()
    for path in (home / "lake/_archive/changes" / table).glob("*.intent"):
        hidden.update(msgspec.json.decode(path.read_bytes())["add"])
    for path in (home / "lake/_archive/changes" / table).glob("*.manifest"):
        hidden.update(msgspec.json.decode(path.read_bytes())["remove"])
    found: Counter[Any] = Counter()
    for file in (home / "lake" / table).glob("*/*/*/*.parquet"):
        if str(file.relative_to(home / "lake")) not in hidden:
            found.update(pq.ParquetFile(file).read(["id"])["id"].to_pylist())
    return found


def _kill_again_and_again(home: Path, kills: int, seed: object) -> None:
    known: Counter[int] = Counter()
    settled: Counter[int] = Counter()
    chance = random.Random(f"{seed}")
    for kill in range(kills):
        _publish(home / "data", known, settled)
        moment = chance.choice(MOMENTS)
        before = set(home.glob(moment))
        process = _start(home, kill // KILLS_PER_REPLAY + 1)
        try:
            assert driver.line(process) == b"begins"
            until(lambda: set(home.glob(moment)) - before or process.poll() is not None)  # noqa: B023
        finally:
            driver.kill(process)
        for table, all_of_them in (("messages", known), ("settlements", settled)):
            counted = _counted(home, table)
            assert counted <= all_of_them, f"{table} are doubled, or made up, after {moment}"
    replays = kills // KILLS_PER_REPLAY + 1
    process = _start(home, replays)
    try:
        assert [driver.line(process) for _ in range(3)] == [b"begins", b"archived", b"ends"]
    finally:
        driver.kill(process)
    _check(home, known, settled, replays)


def _check(home: Path, known: Counter[int], settled: Counter[int], replays: int) -> None:
    assert _rows(home, "messages") == known
    assert _rows(home, "settlements") == settled
    assert _rows(home, "deliveries") == settled
    with driver.opened(home / "target") as broker:
        for number in range(replays):
            again = broker.queue(f"again{number}").reader("test").read_many(10_000)
            origins = Counter(int(message.headers["x-origin-id"]) for message in again)
            assert set(origins.values()) == {1}, "replayed twice"
            assert origins <= known
            assert len(origins) in (400, 600), (
                "replayed in part: each of two logs has 200 messages, or 300 that are meant"
            )
    with driver.opened(home / "data") as broker:
        stats = broker.queue("orders").stats()
    assert stats.readers["penstock.archive"] == 0


@pytest.mark.campaign
def test_killing_the_driver_loses_or_doubles_a_row_of_the_archive(tmp_path: Path) -> None:
    rounds = min(campaign.rounds(20), 20)
    for part in range(0, rounds, 10):
        (tmp_path / f"{part}").mkdir()
        _kill_again_and_again(tmp_path / f"{part}", min(rounds - part, 10), f"campaign {part}")
