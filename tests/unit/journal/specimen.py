"""Small journals to be damaged, and what they must still give afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock import limits
from penstock.journal import mark as marks
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED, METADATA, SETTLEMENTS
from penstock.journal.mark import Mark
from penstock.journal.rows import Rows, messages

Commit = tuple[int, tuple[tuple[tuple[str, Any], ...], ...]]


def content(frame: Frame) -> Commit:
    """A commit as plain, comparable values: its sequence number and all rows that its writer asked for."""
    rows = []
    for section in frame.sections:
        if section.kind is CLEANED:  # the journal's own: what it lost
            continue
        for record in section.records():
            plain = [(k, tuple(sorted(v.items())) if isinstance(v, dict) else v) for k, v in record.items()]
            rows.append((("log", section.log), *plain))
    return frame.sequence, tuple(rows)


class Specimen(NamedTuple):
    """A journal that was closed cleanly, and its commits."""

    path: Path
    commits: list[Commit]

    @property
    def segments(self) -> list[Path]:
        return sorted(self.path.glob("*.segment"))

    def mark(self) -> Mark:
        found = marks.read(Files(), self.path / "mark")
        assert found is not None
        return found

    def copy(self, path: Path) -> Path:
        if path.exists():
            shutil.rmtree(path)
        shutil.copytree(self.path, path)
        return path


def batch(log: int, first: int, count: int) -> Rows:
    """Messages whose content tells where they belong."""
    payloads = [f"log {log} message {n}".encode() for n in range(first, first + count)]
    return messages(
        log, payloads, ids=range(1000 + first, 1000 + first + count), timestamp=first * 1000, key=f"key-{log}"
    )


def commits_of(number: int) -> Iterator[list[Rows]]:
    """The commits of a specimen: several logs, single messages and batches, other kinds of rows, a shared payload."""
    yield [Rows(METADATA, 1, 1, {"action": 1, "name": "orders", "body": b"{}", "time": 5})]
    for n in range(number):
        if n % 4 == 3:
            original = batch(1, n * 10, 2)
            yield [original, messages(3, original, ids=range(n, n + 2), timestamp=n * 1000)]
        elif n % 4 == 2:
            done = {"group": "default", "offset": range(n), "outcome": 1, "time": n * 1000}
            yield [Rows(SETTLEMENTS, 1, n, done)]
        else:
            yield [batch(1 + n % 2, n * 10, 1 + n % 3)]


def make(path: Path, number: int = 9, *, segment_bytes: int = 1 << 20, snapshots: bool = False) -> Specimen:
    """A journal of a few commits, closed cleanly."""
    with Journal(path, segment_bytes=segment_bytes) as journal:
        for n, rows in enumerate(commits_of(number)):
            journal.commit(rows)
            if snapshots and n in (number // 3, 2 * number // 3):
                journal.snapshot(b"state %d" % n)
        commits = [content(frame) for frame in journal.frames()]
        last = journal.segments()[-1]
    with (path / f"{last.number:020d}.segment").open("r+b") as file:
        file.truncate(last.end)  # without the room taken in advance it is quicker to copy
    return Specimen(path, [commit for commit in commits if commit[1]])


def reopened(path: Path) -> tuple[list[Commit], Journal]:
    """What a journal still gives: what it replays, checked against what it reads. It is closed again."""
    replayed: list[Commit] = []
    with Journal(path, replay=lambda frame: replayed.append(content(frame))) as journal:
        read = [content(frame) for frame in journal.frames()]
        old = [commit for commit in read if commit[0] < journal.stats().sequence]
        if journal.recovery.snapshot is None:
            assert old == replayed
    return [commit for commit in old if commit[1]], journal


def give_room(path: Path) -> None:
    """Give the last segment of a specimen its room back: without a mark, a file that has none is taken for one that was cut."""
    last = max(path.glob("*.segment"))
    os.truncate(last, last.stat().st_size + limits.RESERVE_LAST_BYTES)


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit >> 3] ^= 1 << (bit & 7)
    path.write_bytes(data)


def set_mark(path: Path, mark: Mark) -> None:
    (path / "mark").write_bytes(marks.encode(mark))


def offsets_of(commit: Commit) -> set[tuple[int, int]]:
    """The messages in a commit, as (log, offset)."""
    rows = [dict(row) for row in commit[1]]
    return {(row["log"], row["offset"]) for row in rows if "payload" in row}
