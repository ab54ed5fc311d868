"""A deterministic workload over a journal, and an oracle that knows what must be there afterwards.

Commit number n is a pure function of n and of the offsets at which its messages begin, so whoever hears those numbers (a
parent process, over a pipe) can say to the byte what the commit held. Every row carries `time` or `timestamp` n, so a frame
that is found says which attempt it was.

Steps by number: mostly commits; now and then a snapshot, or a run of the cleaner. With segments of 4 KiB that rotates,
recycles, rewrites and drops within some dozens of steps.

The oracle hears of an attempt before it is made and of its acknowledgement afterwards. What was attempted and neither
acknowledged nor refused is *open*: it may be there, whole, or not at all, and the first check settles which.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.errors import DiskFull
from penstock.journal import cleaner, reading
from penstock.journal.cleaner import DeadRange
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED, MESSAGES, METADATA, POSITIONS, SETTLEMENTS
from penstock.journal.rows import Rows, messages
from penstock.journal.tail import Durability
from penstock.journal.view import DirectoryView
from penstock.model.damage import Damage

SEGMENT_BYTES: Final = 4096
LOGS: Final = (1, 2, 3)
OUTCOME: Final = 7

#: What is found of a row: its kind, its log, and the columns that are not null.
Row = tuple[str, int, dict[str, Any]]
Firsts = dict[int, int]


# --- what commit number n holds ---


def payload(number: int, row: int) -> bytes:
    """Bytes that no other message has, of a length that changes."""
    chance = random.Random(number * 1000 + row)
    return b"%d/%d " % (number, row) + chance.randbytes(chance.randrange(20, 300))


def commit(number: int) -> list[Rows]:
    """The rows of commit `number`; its messages go to the logs' next offsets."""
    log = LOGS[number % 3]
    match number % 6:
        case 0:
            return [_batch(number, log, 5), _settle(number, log)]
        case 1:
            return [
                messages(
                    log,
                    [payload(number, 0)],
                    ids=_id(number, 0),
                    timestamp=number,
                    priority=number % 256,
                    key=f"key {number}",
                    headers={"n": str(number), "ü": "ß"},
                )
            ]
        case 2:
            shared = _batch(number, 1, 3)
            return [
                shared,
                messages(2, shared, ids=range(_id(number, 100), _id(number, 103)), timestamp=number),
            ]
        case 3:
            return [_settle(number, log), _position(number, log)]
        case 4:
            return [
                _single(number, 1, 0),
                _single(number, 2, 1),
                _single(number, 1, 2),
                _single(number, 3, 3),
            ]
        case _:
            return [
                Rows(
                    METADATA,
                    log,
                    1,
                    {"action": 1, "name": f"log-{log}", "body": payload(number, 50), "time": number},
                ),
                _batch(number, log, 2),
            ]


def _id(number: int, row: int) -> int:
    return number * 1000 + row


def _batch(number: int, log: int, count: int) -> Rows:
    ids = range(_id(number, 0), _id(number, count))
    return messages(log, [payload(number, row) for row in range(count)], ids=ids, timestamp=number)


def _single(number: int, log: int, row: int) -> Rows:
    return messages(log, [payload(number, row)], ids=_id(number, row), timestamp=number, dedup_id=f"d{row}")


def _settle(number: int, log: int) -> Rows:
    return Rows(
        SETTLEMENTS,
        log,
        3,
        {"group": "g", "offset": [1, 5, number], "outcome": 1, "attempt": number, "time": number},
    )


def _position(number: int, log: int) -> Rows:
    return Rows(POSITIONS, log, 1, {"reader": "r", "offset": number, "time": number})


def expected(number: int, firsts: Firsts) -> list[Row]:
    """The rows of commit `number` as they must be found when its messages begin at `firsts`."""
    ahead = dict(firsts)
    found: list[Row] = []
    for rows in commit(number):
        for at in range(rows.count):
            source = rows.share.columns if rows.share is not None else {}
            values = {
                name: _at(given, at)
                for name, given in (
                    *rows.columns.items(),
                    *((n, v) for n, v in source.items() if n == "payload"),
                )
            }
            if rows.kind is MESSAGES:
                values["offset"] = ahead[rows.log]
                ahead[rows.log] += 1
            found.append((rows.kind.name, rows.log, {k: v for k, v in values.items() if v is not None}))
    return found


def _at(given: Any, row: int) -> Any:
    return given[row] if isinstance(given, (list, range)) else given


def found_rows(frame: Frame) -> list[Row]:
    """The rows of a frame in the same shape."""
    return [
        (section.kind.name, section.log, _plain(record))
        for section in frame.sections
        if section.kind is not None
        for record in section.records()
    ]


def _plain(record: Any) -> dict[str, Any]:
    return {
        name: bytes(value) if isinstance(value, memoryview) else value
        for name, value in record.items()
        if value is not None
    }


def time_of(row: Row) -> int:
    kind, _, values = row
    return int(values["timestamp" if kind == MESSAGES.name else "time"])


# --- who hears of it ---


class Witness(Protocol):
    """Whoever hears what the workload does."""

    def attempt(self, number: int, firsts: Firsts) -> None: ...

    def acknowledged(self, number: int, sequence: int) -> None: ...

    def refused(self, number: int) -> None: ...

    def dead(self, log: int, stop_most: int, stop_all: int) -> None: ...

    def covered(self, sequence: int) -> None: ...


class Attempt:
    """A commit that was tried."""

    __slots__ = ("firsts", "number", "rows", "sequence", "state")

    def __init__(self, number: int, firsts: Firsts) -> None:
        self.number = number
        self.firsts = firsts
        self.rows = expected(number, firsts)
        self.state = "open"  # then acknowledged, refused, or (settled by a check) kept or vanished
        self.sequence = 0


class Oracle:
    """What must be there, what may be, and what must not."""

    def __init__(self) -> None:
        self.attempts: dict[int, Attempt] = {}
        self.covered_sequence = 0
        self._dead: dict[int, tuple[int, int]] = dict.fromkeys(LOGS, (0, 0))

    def attempt(self, number: int, firsts: Firsts) -> None:
        self.attempts[number] = Attempt(number, firsts)

    def acknowledged(self, number: int, sequence: int) -> None:
        self.attempts[number].state = "acknowledged"
        self.attempts[number].sequence = sequence

    def refused(self, number: int) -> None:
        self.attempts[number].state = "refused"

    def dead(self, log: int, stop_most: int, stop_all: int) -> None:
        self._dead[log] = (stop_most, stop_all)

    def covered(self, sequence: int) -> None:
        self.covered_sequence = max(self.covered_sequence, sequence)

    def is_dead(self, log: int, offset: int) -> bool:
        stop_most, stop_all = self._dead[log]
        return offset < stop_all or (offset < stop_most and bool(offset % 5))

    def must_be_there(self) -> list[Attempt]:
        return [a for a in self.attempts.values() if a.state in ("acknowledged", "kept")]

    def acknowledged_count(self) -> int:
        return sum(a.state == "acknowledged" for a in self.attempts.values())

    def hear(self, line: str) -> None:
        """An event that a `Reporter` in another process wrote."""
        name, *arguments = json.loads(line)
        if name == "attempt":
            arguments[1] = {int(log): first for log, first in arguments[1].items()}
        getattr(self, name)(*arguments)


# --- doing it ---


class Workload:
    """Steps over an open journal."""

    def __init__(self, journal: Journal, witness: Witness, applied: Iterable[int] = ()) -> None:
        self.journal = journal
        self.witness = witness
        self.applied = set(applied)

    def step(self, number: int) -> None:
        """Step `number`: a commit, and every so often a snapshot or a run of the cleaner behind it."""
        self.commit(number)
        if number % 5 == 4:
            self.snapshot()
        if number % 13 == 12:
            self.clean()

    def commit(self, number: int) -> None:
        rows = commit(number)
        firsts = {log: self.journal.next_offset(log) for log in LOGS}
        self.witness.attempt(number, firsts)
        try:
            sequence = self.journal.commit(rows)
        except DiskFull:
            self.witness.refused(number)
            raise
        self.applied.add(number)
        self.witness.acknowledged(number, sequence)

    def snapshot(self) -> None:
        self.journal.snapshot(json.dumps(sorted(self.applied)).encode())

    def clean(self) -> cleaner.Cleaned:
        """Say that old messages are dead: all of the oldest, and four fifths of the less old."""
        stops: dict[int, tuple[int, int]] = {}
        for log in LOGS:
            following = self.journal.next_offset(log)
            stops[log] = (max(following - 6, 0), max(following - 14, 0))
            self.witness.dead(log, *stops[log])
        self.witness.covered(self.journal.covered_sequence())
        return cleaner.clean(self.journal, lambda log, first, last: dead_ranges(stops[log], first, last))


def dead_ranges(stops: tuple[int, int], first: int, last: int) -> Iterator[DeadRange]:
    stop_most, stop_all = stops
    if first < stop_all:
        yield DeadRange(first, min(stop_all - 1, last), OUTCOME)
    for offset in range(max(first, stop_all), min(stop_most, last + 1)):
        if offset % 5:
            yield DeadRange(offset, offset, OUTCOME)


def opened(
    path: Path, files: Files | None = None, durability: Durability = "commit"
) -> tuple[Journal, set[int]]:
    """An open journal with tiny segments, and the numbers of the commits that its snapshot and frames tell of."""
    applied: set[int] = set()

    def restore(state: bytes) -> None:
        applied.clear()
        applied.update(json.loads(state))

    def replay(frame: Frame) -> None:
        applied.update(time_of(row) for row in found_rows(frame) if row[0] != CLEANED.name)

    journal = Journal(
        path, files=files, durability=durability, segment_bytes=SEGMENT_BYTES, restore=restore, replay=replay
    )
    return journal, applied


# --- what must be true afterwards ---


class Lost(AssertionError):
    """Something acknowledged is not there."""


class Invented(AssertionError):
    """Something is there that was never written, or not as it was written."""


def check(
    path: Path, oracle: Oracle, *, damage: bool = False, lossy: bool = False, files: Files | None = None
) -> None:
    """Reopen with sound files and compare with the oracle; then once more, which must change nothing.

    `damage` allows reported damage, `lossy` acknowledged commits that are gone (a power cut without syncs).
    """
    journal, applied = opened(path, files)
    try:
        _check_open(journal, applied, oracle, damage=damage, lossy=lossy)
        before = [(frame.sequence, found_rows(frame)) for frame in journal.frames()]
    finally:
        journal.close()
    again, applied_again = opened(path, files)
    try:
        assert again.recovery.end in ("clean", "rot" if damage else "clean"), again.recovery
        assert not again.recovery.cut
        assert applied_again == applied
        after = [(frame.sequence, found_rows(frame)) for frame in again.frames()]
        assert [item for item in after if item[1]] == [item for item in before if item[1]]
    finally:
        again.close()
    check_from_outside(path, before)


def _check_open(journal: Journal, applied: set[int], oracle: Oracle, *, damage: bool, lossy: bool) -> None:
    if not damage:
        assert journal.recovery.damage == [], journal.recovery
        assert journal.damage == []
    frames = _frames_by_attempt(journal)
    for number, frame in frames.items():
        _compare(oracle, number, frame, lossy=lossy)
    read = {log: _read(journal, log) for log in LOGS}
    _check_logs_are_frames(read, frames)
    for attempt in oracle.must_be_there():
        if attempt.number not in applied and not lossy:
            raise Lost(f"replaying does not give commit {attempt.number}, which was acknowledged")
        _check_rows_are_there(journal, attempt, frames.get(attempt.number), oracle, lossy=lossy)
    if invented := applied - {
        n for n, a in oracle.attempts.items() if a.state not in ("refused", "vanished")
    }:
        raise Invented(f"replaying gives commits {sorted(invented)}, which were never made")
    for log in LOGS:
        used = list(read[log])
        used += [row[2]["offset"] for a in oracle.must_be_there() for row in a.rows if _is_message(row, log)]
        if not lossy:
            assert journal.next_offset(log) > max(used, default=-1), "an offset would be used again"
    _settle_open_ones(oracle, frames, applied, lossy=lossy)
    assert list(journal.damage) == list(journal.recovery.damage), "reading found damage that recovery did not"


def _is_message(row: Row, log: int) -> bool:
    return row[0] == MESSAGES.name and row[1] == log


def _frames_by_attempt(journal: Journal) -> dict[int, tuple[int, list[Row]]]:
    """The frames of the workload's commits, by their number; order and uniqueness of sequences are checked."""
    found: dict[int, tuple[int, list[Row]]] = {}
    last = 0
    for frame in journal.frames():
        assert frame.sequence > last, "sequence numbers do not rise"
        last = frame.sequence
        rows = [row for row in found_rows(frame) if row[0] != CLEANED.name]
        numbers = {time_of(row) for row in rows}
        if not numbers:
            continue
        if len(numbers) > 1:
            raise Invented(f"frame {frame.sequence} mixes commits {sorted(numbers)}")
        number = numbers.pop()
        if number in found:
            raise Invented(f"commit {number} is there twice, as {found[number][0]} and {frame.sequence}")
        found[number] = (frame.sequence, rows)
    return found


def _compare(oracle: Oracle, number: int, frame: tuple[int, list[Row]], *, lossy: bool) -> None:
    attempt = oracle.attempts.get(number)
    if attempt is None or attempt.state in ("refused", "vanished"):
        raise Invented(f"commit {number} is there and was {attempt.state if attempt else 'never made'}")
    sequence, rows = frame
    if attempt.state == "acknowledged" and attempt.sequence != sequence:
        raise Invented(f"commit {number} has sequence {sequence}, and was told {attempt.sequence}")
    for log in LOGS:  # sections of different logs may change places when single rows are joined
        wanted = iter([row for row in attempt.rows if row[1] == log])
        for row in (row for row in rows if row[1] == log):
            if not any(other == row for other in wanted):
                raise Invented(f"commit {number} holds {row}, which was not written so: {attempt.rows}")


def _check_rows_are_there(
    journal: Journal,
    attempt: Attempt,
    frame: tuple[int, list[Row]] | None,
    oracle: Oracle,
    *,
    lossy: bool,
) -> None:
    rows = frame[1] if frame else []
    for row in attempt.rows:
        if row in rows:
            continue
        kind, log, values = row
        if kind == MESSAGES.name and oracle.is_dead(log, values["offset"]):
            told = journal.state.cleaned.get(log, {}).get(OUTCOME)
            if told is not None and values["offset"] in told:
                continue
            raise Lost(f"offset {values['offset']} of log {log} is gone and is not recorded as cleaned")
        if kind != MESSAGES.name and attempt.sequence <= oracle.covered_sequence:
            continue
        if not lossy:
            raise Lost(f"commit {attempt.number} ({attempt.state}, sequence {attempt.sequence}) lost {row}")


def _read(journal: Journal, log: int) -> dict[int, dict[str, Any]]:
    return by_offset(journal.read(log))


def by_offset(batches: Iterable[reading.Batch]) -> dict[int, dict[str, Any]]:
    """Messages by offset, which must rise."""
    found: dict[int, dict[str, Any]] = {}
    last = -1
    for batch in batches:
        columns: dict[str, Sequence[Any]] = {name: batch.values(name) for name in MESSAGES.fields}
        for at in range(len(batch)):
            record = _plain({name: values[at] for name, values in columns.items()})
            assert record["offset"] > last, "offsets do not rise"
            last = record["offset"]
            found[last] = record
    return found


def _check_logs_are_frames(
    read: dict[int, dict[int, dict[str, Any]]], frames: dict[int, tuple[int, list[Row]]]
) -> None:
    for log in LOGS:
        in_frames = [row[2] for number in frames for row in frames[number][1] if _is_message(row, log)]
        assert list(read[log].values()) == in_frames, f"reading log {log} differs from reading its frames"


def _settle_open_ones(
    oracle: Oracle, frames: dict[int, tuple[int, list[Row]]], applied: set[int], *, lossy: bool
) -> None:
    """What was open is known now, and must stay so."""
    for attempt in oracle.attempts.values():
        if attempt.state == "open" or lossy:
            there = attempt.number in frames or attempt.number in applied
            if attempt.state == "refused":
                continue
            attempt.state = "kept" if there else "vanished"
            if attempt.number in frames:
                attempt.sequence = frames[attempt.number][0]
                attempt.rows = attempt.rows if not lossy else frames[attempt.number][1]


def check_from_outside(path: Path, before: list[tuple[int, list[Row]]]) -> None:
    """Another process, without the lock, reads the same."""
    view = DirectoryView(path)
    outside = [(frame.sequence, found_rows(frame)) for frame in reading.frames(view)]
    assert [item for item in outside if item[1]] == [item for item in before if item[1]]
    found: list[Damage] = view.damage
    assert all(damage.what != "missing" for damage in found)
