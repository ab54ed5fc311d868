"""A stream of Spark beside a broker whose power is cut: its checkpoint is never ahead of what is on the disk, so it neither skips a message nor reads another in its place.

The stream is read as Spark's processes read it, without Spark. That reading past the mark would be noticed is shown by doing so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.journal import mark as marks
from penstock.journal.files import Files
from penstock.journal.mark import Mark
from tests.faults import campaign
from tests.faults.disk import Disk
from tests.unit.pipeline.tables import Query, offsets, payloads, table


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path) as disk:
        yield disk


def _cut_again_and_again(disk: Disk, cuts: int, durability: str) -> None:
    path = disk.path / "data"
    with penstock.open(path) as broker:
        broker.queue("orders", retain_seconds=86_400)
    checkpoint = None
    read: list[tuple[int, bytes]] = []
    for life in range(cuts):
        command = [sys.executable, "-m", "tests.pipeline.publisher", str(path), str(life), durability]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for batch in range(30):
                child.stdout.readline()
                if batch % 10 == 9:
                    query = Query(path, checkpoint, topic="orders", startingOffsets="earliest")
                    found = query.batch()
                    read += zip(offsets(found), payloads(found), strict=True)
                    checkpoint = query.checkpoint
            disk.cut()
            child.kill()
        disk.restore()
    with penstock.open(path) as broker:
        broker.queue("orders").publish(b"the last")
        found = Query(path, checkpoint, topic="orders").batch()
        read += zip(offsets(found), payloads(found), strict=True)
    stored = table(path, topic="orders")
    assert read == list(zip(offsets(stored), payloads(stored), strict=True))
    disk.wipe()


@pytest.mark.parametrize("durability", ["commit", "os"])
def test_a_power_cut_leaves_a_checkpoint_ahead_of_the_log(disk: Disk, durability: str) -> None:
    _cut_again_and_again(disk, 2, durability)


@pytest.mark.campaign
@pytest.mark.parametrize("durability", ["commit", "interval", "os"])
def test_many_power_cuts_leave_a_checkpoint_ahead_of_the_log(disk: Disk, durability: str) -> None:
    _cut_again_and_again(disk, campaign.rounds(), durability)


def test_a_stream_that_reads_past_the_mark_goes_unnoticed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_far(files: Files, path: Path) -> Mark | None:
        """As far as anything is written."""
        found = marks.read(files, path)
        if found is None:
            return None
        last = max(path.parent.glob("*.segment"))
        return found._replace(segment=int(last.stem), end=last.stat().st_size, sequence=1 << 40)

    monkeypatch.setattr(marks, "read_beside_owner", too_far)
    with pytest.raises((AssertionError, penstock.PenstockError)):
        _cut_again_and_again(disk, 5, "os")
