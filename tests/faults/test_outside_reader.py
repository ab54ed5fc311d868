"""A reader in another process reads a live journal, while its segments rotate, are rewritten, dropped and recycled under it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from penstock.journal import cleaner
from penstock.journal.cleaner import Cleaned, DeadRange
from penstock.journal.journal import Journal
from penstock.journal.rows import messages
from tests.faults import campaign
from tests.faults.faulty_files import UnsyncedFiles
from tests.faults.outside_reader import END, LOGS, never_dead, payload

ROOT = Path(__file__).parents[2]

#: Messages that stay although they are old, so that a reader finds something to lose them from.
KEPT: Final = 30

#: Far more than any reader needs: a writer that gets here has waited for a reader that hangs.
COMMITS_MAX: Final = 200_000


class Reader:
    """The reading process."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.outside_reader", str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self.passes = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def listen(self) -> bool:
        """Count the passes it has reported; False once it is gone."""
        try:
            said = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return True
        self.passes += said.count(b"pass")
        return bool(said)

    def finish(self) -> str:
        """What it complains of, at its end; nothing if all was well."""
        os.set_blocking(self._pipe, True)
        said, complaint = self._process.communicate()
        return (
            ""
            if self._process.returncode == 0 and b"end" in said
            else complaint.decode() or "it did not end well"
        )


class Writer:
    """The owner: it publishes, takes snapshots and cleans, as fast as it can."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._commits = 0
        self.done = Cleaned()
        self.recycled = 0

    def write(self, commits: int) -> None:
        for _ in range(commits):
            self._commits += 1
            assert self._commits < COMMITS_MAX, "the reader hangs"
            log = LOGS[self._commits % 2]
            self._publish(log, 1 + self._commits % 9)
            self.recycled += self._journal.segments()[-1].label.recycled

    def tidy(self) -> None:
        self._journal.snapshot(b"")
        done = cleaner.clean(self._journal, self._dead)
        self.done.segments_dropped += done.segments_dropped
        self.done.segments_rewritten += done.segments_rewritten

    def end(self) -> None:
        for log in LOGS:
            self._publish(log, 1, key=END)

    def _publish(self, log: int, count: int, key: str | None = None) -> None:
        first = self._journal.next_offset(log)
        given = [payload(log, first + row) for row in range(count)]
        self._journal.commit([messages(log, given, ids=range(first, first + count), timestamp=0, key=key)])

    def _dead(self, log: int, first: int, last: int) -> Iterator[DeadRange]:
        for offset in range(first, min(last + 1, self._journal.next_offset(log) - KEPT)):
            if not never_dead(offset):
                yield DeadRange(offset, offset, 1)


def _read_under_load(path: Path, passes: int) -> None:
    with Journal(path, segment_bytes=4096, files=UnsyncedFiles()) as journal:
        writer = Writer(journal)
        writer.write(5)
        with Reader(path) as reader:
            while reader.passes < passes and reader.listen():
                writer.write(15)
                writer.tidy()
            writer.end()
            assert reader.finish() == ""
        assert writer.done.segments_dropped
        assert writer.done.segments_rewritten
        assert writer.recycled


def test_a_reader_outside_sees_everything_while_segments_change_under_it(tmp_path: Path) -> None:
    _read_under_load(tmp_path / "journal", 12)


@pytest.mark.campaign
def test_a_reader_outside_sees_everything_for_long(tmp_path: Path) -> None:
    for part in range(-(-campaign.rounds() // 10)):
        _read_under_load(tmp_path / f"journal-{part}", 25)
