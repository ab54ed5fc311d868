"""The journal against a list of commits: append, crash, reopen, snapshot, rotate and clean in any order.

The model is the list of what was committed, what was said to be dead, and up to where both snapshots covered when the cleaner last ran. A
crash is a copy of the directory at that moment, as `kill -9` would leave it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.journal import cleaner
from penstock.journal.cleaner import DeadRange
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED, MESSAGES, METADATA, SETTLEMENTS
from penstock.journal.rows import Rows, messages

Answer = TypeVar("Answer")
Row = tuple[str, int, dict[str, Any]]

LOGS = (1, 2, 7)
OUTCOME = 3


class Unsynced(Files):
    """No power is cut here, so syncing is left to the kernel."""

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        if operation is os.fdatasync or operation is os.fsync:
            return None  # type: ignore[return-value]
        return operation(*arguments)


logs = st.sampled_from(LOGS)
payloads = st.lists(st.binary(max_size=900), min_size=1, max_size=8)


class Commit:
    """A commit in the model: the rows as they were given, with the offsets that they got."""

    def __init__(self, sequence: int, rows: list[Row]) -> None:
        self.sequence = sequence
        self.rows = rows


class JournalAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="penstock-property-"))
        self.lives = 0
        self.commits: list[Commit] = []
        self.following = dict.fromkeys(LOGS, 0)
        self.dead: dict[int, set[int]] = {log: set() for log in LOGS}
        self.covered = 0
        self.number = 0
        self.path = self.place / "journal-0"
        self._open()

    def teardown(self) -> None:
        try:
            self.reopen()
        finally:
            self.journal.close()
            shutil.rmtree(self.place)

    # --- what is done ---

    @rule(log=logs, given=payloads)
    def append_a_batch(self, log: int, given: list[bytes]) -> None:
        self._commit([self._messages(log, given)])

    @rule(one=logs, other=logs, given=payloads)
    def append_shared_payloads(self, one: int, other: int, given: list[bytes]) -> None:
        first = self._messages(one, given)
        ids = range(self._ids(len(given)), self.number)
        self._commit([first, messages(other, first, ids=ids, timestamp=self.number)])

    @rule(parts=st.lists(st.tuples(logs, st.binary(max_size=300)), min_size=1, max_size=6))
    def append_singles_of_several_callers(self, parts: list[tuple[int, bytes]]) -> None:
        """Queued one by one and committed as one frame."""
        everything = [self._messages(log, [payload]) for log, payload in parts]
        tickets = [self.journal.append([rows]) for rows in everything]
        sequences = {ticket.wait() for ticket in tickets}
        assert len(sequences) == 1
        self._remember(sequences.pop(), everything)

    @rule(log=logs, offsets=st.lists(st.integers(0, 50), min_size=1, max_size=4))
    def append_settlements_and_metadata(self, log: int, offsets: list[int]) -> None:
        self.number += 1
        self._commit(
            [
                Rows(
                    SETTLEMENTS,
                    log,
                    len(offsets),
                    {"group": "g", "offset": offsets, "outcome": 1, "time": self.number},
                ),
                Rows(METADATA, log, 1, {"action": 1, "name": f"log {log}", "time": self.number}),
            ]
        )

    @rule()
    def snapshot(self) -> None:
        self.journal.snapshot(b"%d" % len(self.commits))

    @rule()
    def rotate(self) -> None:
        self.journal.rotate()

    @precondition(lambda self: self.commits)
    @rule(keep=st.integers(0, 12), every=st.integers(1, 6))
    def clean(self, keep: int, every: int) -> None:
        """All but the last `keep` messages of each log are dead, except each `every`-th."""
        self.covered = max(self.covered, self.journal.covered_sequence())
        for log in LOGS:
            stop = self.following[log] - keep
            self.dead[log] |= {offset for offset in range(stop) if every == 1 or offset % every}
        cleaner.clean(self.journal, self._dead_ranges)

    def _dead_ranges(self, log: int, first: int, last: int) -> list[DeadRange]:
        return [DeadRange(o, o, OUTCOME) for o in range(first, last + 1) if o in self.dead[log]]

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self._open()
        assert self.journal.recovery.end == "clean"

    @rule()
    def crash(self) -> None:
        """Go on with a copy of the directory as it is now."""
        self.lives += 1
        copy = self.place / f"journal-{self.lives}"
        shutil.copytree(self.path, copy)
        self.journal.close()
        shutil.rmtree(self.path)
        self.path = copy
        self._open()

    # --- what must be so ---

    @invariant()
    def frames_are_the_commits(self) -> None:
        found = {frame.sequence: rows for frame in self.journal.frames() if (rows := _rows(frame))}
        self._compare(found, self.commits)

    @invariant()
    def reading_a_log_gives_its_messages(self) -> None:
        for log in LOGS:
            written = [row[2] for commit in self.commits for row in commit.rows if _is_message(row, log)]
            read = [
                record
                for batch in self.journal.read(log)
                for record in [_plain(r) for r in batch.section.records()][batch.start : batch.stop]
            ]
            here = {record["offset"] for record in read}
            assert read == [record for record in written if record["offset"] in here]
            for record in written:
                if record["offset"] not in here:
                    self._must_be_cleaned(log, record["offset"])
            assert self.journal.next_offset(log) == self.following[log]

    @invariant()
    def a_log_can_be_read_from_the_middle(self) -> None:
        for log in LOGS:
            whole = [offset for batch in self.journal.read(log) for offset in batch.offsets]
            middle = self.following[log] // 2
            rest = [offset for batch in self.journal.read(log, middle) for offset in batch.offsets]
            assert rest == [offset for offset in whole if offset >= middle]

    def _compare(self, found: dict[int, list[Row]], commits: list[Commit]) -> None:
        assert list(found) == sorted(found)
        assert found.keys() <= {commit.sequence for commit in commits}, (
            "something is there that was not committed"
        )
        for commit in commits:
            rows = found.get(commit.sequence, [])
            for log in LOGS:  # sections of different logs may change places when single rows are joined
                here = [row for row in rows if row[1] == log]
                assert here == [row for row in commit.rows if row[1] == log and row in here]
            for kind, log, record in commit.rows:
                if (kind, log, record) in rows:
                    continue
                if kind == MESSAGES.name:
                    self._must_be_cleaned(log, record["offset"])
                else:
                    assert commit.sequence <= self.covered, f"a row of {kind} is gone"

    def _must_be_cleaned(self, log: int, offset: int) -> None:
        assert offset in self.dead[log], f"offset {offset} of log {log} is gone and nobody said it was dead"
        assert offset in self.journal.state.cleaned[log][OUTCOME], "it is gone and not recorded as cleaned"

    # --- the parts ---

    def _open(self) -> None:
        restored: list[int] = []
        replayed: dict[int, list[Row]] = {}

        def replay(frame: Frame) -> None:
            if rows := _rows(frame):
                replayed[frame.sequence] = rows

        self.journal = Journal(
            self.path,
            segment_bytes=4096,
            files=Unsynced(),
            restore=lambda state: restored.append(int(state)),
            replay=replay,
        )
        assert self.journal.recovery.damage == []
        covered = restored[-1] if restored else 0
        self._compare(replayed, self.commits[covered:])

    def _ids(self, count: int) -> int:
        self.number += count
        return self.number - count

    def _messages(self, log: int, given: list[bytes]) -> Rows:
        first = self._ids(len(given))
        return messages(log, list(given), ids=range(first, first + len(given)), timestamp=self.number)

    def _commit(self, rows: list[Rows]) -> None:
        self._remember(self.journal.commit(rows), rows)

    def _remember(self, sequence: int, everything: list[Rows]) -> None:
        found: list[Row] = []
        for rows in everything:
            columns = dict(rows.columns)
            if rows.share is not None:
                columns["payload"] = rows.share.columns["payload"]
            for at in range(rows.count):
                record = {name: _at(given, at) for name, given in columns.items()}
                if rows.kind is MESSAGES:
                    record["offset"] = self.following[rows.log]
                    self.following[rows.log] += 1
                found.append((rows.kind.name, rows.log, record))
        self.commits.append(Commit(sequence, found))


def _at(given: Any, row: int) -> Any:
    return given[row] if isinstance(given, (list, range)) else given


def _rows(frame: Frame) -> list[Row]:
    return [
        (section.kind.name, section.log, _plain(record))
        for section in frame.sections
        if section.kind is not None and section.kind is not CLEANED
        for record in section.records()
    ]


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: bytes(value) if isinstance(value, memoryview) else value
        for name, value in record.items()
        if value is not None
    }


def _is_message(row: Row, log: int) -> bool:
    return row[0] == MESSAGES.name and row[1] == log


TestJournalAgainstList = pytest.mark.lengthy(JournalAgainstList.TestCase)
TestJournalAgainstList.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.campaign
def test_the_journal_against_a_list_for_long() -> None:
    rounds = int(os.environ.get("PENSTOCK_FAULT_ROUNDS", "100"))
    run_state_machine_as_test(
        JournalAgainstList,
        settings=settings(
            max_examples=rounds,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
