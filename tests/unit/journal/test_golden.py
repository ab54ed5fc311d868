"""The layout on disk, pinned: a journal that was written once must be read as it was, and written again byte for byte.

This is version 1, and it never changes. A new version gets its own golden journal, made with `python -m tests.unit.journal.test_golden`
into a directory of its own; this one must still be read then.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from penstock.clock import ManualClock
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.journal.kinds import LEASES, METADATA, POSITIONS, PRODUCER_COMMITS, SCHEDULES, SETTLEMENTS
from penstock.journal.rows import Rows, messages
from tests.unit.journal.specimen import content

GOLDEN = Path(__file__).parent / "golden" / "v1"


class Reproducible(Files):
    """Real files, but every life of a file gets the next generation in a row, and the owner has no name."""

    def __init__(self) -> None:
        self._generation = 0

    def random(self) -> int:
        self._generation += 1
        return 0x5EED_0000_0000_0000 + self._generation

    def whoami(self) -> str:
        return "the golden owner"


def write(path: Path) -> None:
    """One of everything that a journal can hold."""
    clock = ManualClock(start_us=1_700_000_000_000_000)
    with Journal(path, segment_bytes=4096, clock=clock, files=Reproducible()) as journal:
        journal.commit(
            [Rows(METADATA, 1, 1, {"action": 1, "name": "orders", "body": b'{"max_attempts":3}', "time": 1})]
        )
        for n in range(12):
            clock.advance(seconds=1)
            first = messages(
                1, [b"payload %d" % n, b"", b"\x00\xff"], ids=range(n * 3, n * 3 + 3), timestamp=clock.now_us(),
                priority=[1, 100, 255], deliver_at=[None, 5, None], expires_at=9, key=["k", None, "ü"], dedup_id=["d", None, None],
                headers=[{"type": "order"}, None, {}], properties=[None, b"p", None], target_group=[None, "g", None],
            )  # fmt: skip
            copy = messages(2, first, ids=range(100 + n * 3, 103 + n * 3), timestamp=clock.now_us())
            journal.commit([first, copy])
            journal.commit([messages(3, [b"single"], ids=n, timestamp=clock.now_us())])
        journal.commit(
            [
                Rows(LEASES, 1, 2, {"group": "default", "offset": [0, 2], "attempt": 1, "consumer": "c", "time": 2}),
                Rows(SETTLEMENTS, 1, 3, {"group": "default", "offset": range(3), "outcome": [1, 2, 3], "attempt": [1, 2, 3],
                                         "due": [None, 7, None], "consumer": "c", "error": [None, "boom", "é"], "time": 3}),
                Rows(POSITIONS, 1, 1, {"reader": "billing", "offset": 5, "time": 4}),
                Rows(METADATA, 1, 1, {"action": 4, "about": "billing", "body": b"a cursor", "time": 4}),
                Rows(SCHEDULES, 2, 1, {"name": "nightly", "due": 99, "body": b"cron", "time": 5}),
                Rows(PRODUCER_COMMITS, 1, 1, {"producer": "query", "batch": 1, "part": 0, "final": 1, "time": 6}),
            ]
        )  # fmt: skip
        journal.snapshot(b"first state")
        journal.commit([messages(3, [b"between"], ids=50, timestamp=clock.now_us())])
        journal.snapshot(b"second state")
        clean(journal, lambda log, first, last: [DeadRange(first, min(last, 17), 1)] if log < 3 else [])
        journal.commit([messages(3, [b"last"], ids=51, timestamp=clock.now_us())])
        active = journal.segments()[-1]
    with journal.directory.segment(active.number).open("r+b") as file:
        file.truncate(active.end)


def described(path: Path) -> str:
    """All that a journal gives, as text that a person can compare."""
    lines: list[str] = []
    with Journal(
        path,
        restore=lambda state: lines.append(f"restored {state!r}"),
        replay=lambda frame: lines.append(f"replayed {frame.sequence}"),
        clock=ManualClock(start_us=1_800_000_000_000_000),
    ) as journal:
        for frame in journal.frames():
            head = frame.header
            lines.append(
                f"frame {head.sequence} epoch {head.epoch} time {head.time_us} segment {frame.segment}"
            )
            lines += [f"    {dict(row)}" for row in content(frame)[1]]
        lines.append(f"names {journal.state.names} next {journal.state.next_offsets} damage {journal.damage}")
    return "\n".join(lines) + "\n"


def test_the_golden_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "copy")
    assert described(tmp_path / "copy") == (GOLDEN.parent / "v1.txt").read_text()


def test_the_golden_journal_is_written_again_byte_for_byte(tmp_path: Path) -> None:
    write(tmp_path / "again")
    expected = {file.name: file.read_bytes() for file in GOLDEN.iterdir()}
    assert {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()} == expected


def _make() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write(GOLDEN)
    copy = GOLDEN.parent / "copy"
    shutil.copytree(GOLDEN, copy)
    (GOLDEN.parent / "v1.txt").write_text(described(copy))
    shutil.rmtree(copy)
    sys.stdout.write(f"made {GOLDEN}\n")


if __name__ == "__main__":
    _make()
