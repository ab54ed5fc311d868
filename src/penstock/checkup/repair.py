"""Repair a journal: mend what `verify` names, and nothing else.

Order, and what an interruption leaves:

1. Under the lock, what opening would overwrite is copied into `quarantine/`: a damaged mark, damaged labels. Wrong summaries are moved there.
2. The journal is opened, which recovers it: torn ends are cut, damaged snapshots set aside, summaries and the mark written again, and
   new damage is accounted for.
3. Every lost message is recorded as cleaned with the outcome `DAMAGED`, in commits of its own.
4. Each damaged segment is replaced by a copy with all of its good frames, whole, and none of its bad ranges, which are copied into
   `quarantine/` first. The copy takes the old one's place by one rename. A file of which nothing can be read is moved to `quarantine/`.
5. Look again. What became visible only by that is mended in another round, until the journal is sound or a round changes nothing.

Each step leaves a journal that opens, and doing it again does only what is left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from penstock import limits
from penstock.checkup import soundness
from penstock.checkup.examination import (
    FOREIGN,
    LEFTOVER,
    MARK,
    OFFSETS,
    SNAPSHOT,
    SUMMARY,
    Finding,
    Spans,
)
from penstock.checkup.verify import Checkup, Progress, verify
from penstock.clock import Clock
from penstock.errors import CorruptJournal
from penstock.journal.cleaner import rewrite
from penstock.journal.directory import SUMMARY as SUMMARY_FILE
from penstock.journal.directory import Directory, Ownership
from penstock.journal.files import Files, read_whole
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED
from penstock.journal.rows import Rows
from penstock.journal.segment import Bad, Scan, Writer
from penstock.journal.state import DAMAGED, GIVEN_UP, MENDED
from penstock.journal.view import SegmentInfo
from penstock.model.damage import HEADER, MISSING, ROT

#: Opening a journal may make visible what was not before, when several segments are missing for example. Two rounds suffice in every
#: case that is tested; the bound is for those that are not.
ROUNDS_MAX: Final = 8

Item = TypeVar("Item")

RECOVER: Final = "recover"
RECORD: Final = "record"
REWRITE: Final = "rewrite"
SET_ASIDE: Final = "set aside"
BY_HAND: Final = "by hand"


class Action(msgspec.Struct, frozen=True):
    """A step of a repair: what is done, to which file, how many bytes of it go into quarantine, and why."""

    what: str
    file: str
    bytes: int = 0
    detail: str = ""


class Repair(msgspec.Struct):
    """What `repair` would do, or did: the plan, what was found before and after, and the copies that were kept."""

    path: str
    done: bool
    plan: list[Action]
    before: Checkup
    after: Checkup | None = None
    kept: list[str] = []

    @property
    def needed(self) -> bool:
        """Whether there is something to be done, or left to be done."""
        return not (self.after or self.before).sound


def repair(
    path: str | Path,
    *,
    yes: bool,
    files: Files | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Repair:
    """Mend a journal that nobody holds. Without `yes` nothing is changed, and the report says what would be done."""
    before = verify(path, files, progress, clock)
    plan = _plan(before)
    if not yes or not plan:
        return Repair(before.path, False, plan, before)
    if by_hand := _by_hand(plan):
        raise CorruptJournal(
            f"{Path(before.path) / by_hand[0].file}: {by_hand[0].detail}. Nothing was changed"
        )
    done: list[Action] = []
    kept: list[str] = []
    checkup, after = before, None
    for _ in range(ROUNDS_MAX):
        kept += _keep_what_opening_overwrites(Directory(files or Files(), Path(before.path)), checkup)
        with Journal(before.path, files=files, clock=clock) as journal:
            kept += _mend(journal, checkup)
        done += plan
        after = verify(path, files, None, clock)
        plan = _plan(after)
        if after.sound or _by_hand(plan) or _is_the_same(checkup, after):
            break
        checkup = after
    return Repair(before.path, True, _once(done), before, after, _once(kept))


def _by_hand(plan: list[Action]) -> list[Action]:
    return [action for action in plan if action.what == BY_HAND]


def _is_the_same(earlier: Checkup, later: Checkup) -> bool:
    """Whether a round has changed nothing, so that another one would not either."""
    return (earlier.damage, earlier.unrecorded) == (later.damage, later.unrecorded)


def _once(items: list[Item]) -> list[Item]:
    """Without repetitions, in order."""
    return list(dict.fromkeys(items))


def _plan(checkup: Checkup) -> list[Action]:
    actions = [
        Action(BY_HAND, finding.file, detail=finding.detail)
        for finding in checkup.damage
        if finding.what == FOREIGN
    ]
    actions += [
        Action(SET_ASIDE, finding.file, finding.bytes, f"damaged {finding.what}: keep a copy, make it again")
        for finding in checkup.damage
        if finding.what in (SUMMARY, SNAPSHOT, MARK)
    ]
    if checkup.damage or checkup.notes:
        detail = "open the journal: cut a torn end, rescue what is above the mark, throw drafts away, begin a new epoch"
        actions.append(Action(RECOVER, "", detail=detail))
    if checkup.unrecorded:
        text = ", ".join(f"log {log} offsets {first}–{last}" for log, first, last in checkup.unrecorded)
        actions.append(Action(RECORD, "", detail=f"record as lost: {text}"))
    for finding in checkup.damage:
        if finding.what == MISSING:
            actions.append(Action(RECORD, finding.file, detail="record the segment as lost"))
    return actions + [_plan_segment(number, found) for number, found in _hurt(checkup).items()]


def _plan_segment(number: int, findings: list[Finding]) -> Action:
    name, size = findings[0].file, sum(finding.bytes for finding in findings)
    if _unreadable(findings):
        return Action(SET_ASIDE, name, size, "nothing in it can be read: keep it in quarantine")
    ranges = ", ".join(f"{finding.position}–{finding.end}" for finding in findings)
    return Action(
        REWRITE, name, size, f"copy segment {number} without bytes {ranges}, which are kept in quarantine"
    )


def _hurt(checkup: Checkup) -> dict[int, list[Finding]]:
    """The segments that must be written again, and why."""
    found: dict[int, list[Finding]] = {}
    for finding in checkup.damage:
        if finding.segment is not None and finding.what not in (SUMMARY, MISSING, FOREIGN, OFFSETS):
            found.setdefault(finding.segment, []).append(finding)
    return found


def _unreadable(findings: list[Finding]) -> bool:
    """Whether not even a generation is known, so that no frame of the file can be told from other bytes."""
    return any(finding.what == ROT and finding.position == 0 for finding in findings)


def _keep_what_opening_overwrites(directory: Directory, checkup: Checkup) -> list[str]:
    owner = Ownership(directory)
    try:
        kept = []
        for finding in checkup.damage:
            path = directory.path / finding.file
            if finding.what == HEADER or (finding.what == MARK and path.exists()):
                data = read_whole(directory.files, path)[: finding.end]
                kept.append(directory.keep(f"{finding.what}-of-{finding.file}.bytes", data))
            elif finding.what == SUMMARY:
                kept.append(directory.move_aside(path))
        for finding in checkup.notes:  # what is still known of a segment that is gone
            path = directory.path / finding.file
            if finding.what == LEFTOVER and finding.file.endswith(SUMMARY_FILE) and path.exists():
                kept.append(directory.keep(path.name, read_whole(directory.files, path)))
        return kept
    finally:
        owner.release()


def _mend(journal: Journal, checkup: Checkup) -> list[str]:
    hurt = _hurt(checkup)
    infos = {info.number: info for info in journal.segments()}
    damaged = {number for number in infos if number in hurt or infos[number].damage}
    with journal.tidying("repairing"):
        _record(journal, checkup)
        if any(not infos[number].sealed for number in damaged):
            journal.rotate()  # only a finished segment can be replaced
        kept = []
        _forget(journal, damaged)
        for number in sorted(damaged):
            kept += _rewrite(journal, infos[number])
        for number, findings in hurt.items():
            path = journal.directory.segment(number)
            if _unreadable(findings) and number not in infos:
                paths = (path, journal.directory.file(number, SUMMARY_FILE))
                kept += [journal.directory.move_aside(path) for path in paths if path.exists()]
        return kept


def _record(journal: Journal, checkup: Checkup) -> None:
    """Record lost messages, as far as recovery has not; then offsets around them that nobody used."""
    for spans, outcome in ((checkup.unrecorded, DAMAGED), (checkup.skipped, GIVEN_UP)):
        _record_as(journal, spans, outcome)
    journal.sync()


def _record_as(journal: Journal, spans: Spans, outcome: int) -> None:
    lost = [
        (log, part.start, part.stop - 1)
        for log, first, last in spans
        for part in journal.state.explained(log, first, last + 1).gaps(first, last + 1)
    ]
    now = journal.now_us()
    for start in range(0, len(lost), limits.RECORDED_AT_ONCE):
        journal.commit(
            [
                Rows(CLEANED, log, 1, {"first": first, "last": last, "outcome": outcome, "time": now})
                for log, first, last in lost[start : start + limits.RECORDED_AT_ONCE]
            ]
        )


def _forget(journal: Journal, numbers: set[int]) -> None:
    """Have damage in these segments called new again, before they are exchanged for whole ones: it will be."""
    now = journal.now_us()
    rows = [
        Rows(CLEANED, 0, 1, {"segment": number, "position": MENDED, "time": now})
        for number in sorted(numbers)
    ]
    for start in range(0, len(rows), limits.RECORDED_AT_ONCE):
        journal.commit(rows[start : start + limits.RECORDED_AT_ONCE])
    journal.sync()


def _rewrite(journal: Journal, info: SegmentInfo) -> list[str]:
    """Replace a segment by its good frames, whole; the names of the copies of everything else."""
    kept: list[str] = []

    def copy(fd: int, writer: Writer) -> bool:
        files = journal.directory.files
        limit = min(info.end, files.size(fd))
        scan = Scan(files, fd, info.label, limit=limit, stop_sequence=info.next_sequence)
        bad: list[tuple[int, int]] = []
        for item in scan:
            if isinstance(item, Bad):
                bad.append((item.position, item.end))
            elif soundness.flaw(item) is None:
                writer.append_moved(item)
            else:
                bad.append((item.header.position, item.header.end))
        if not scan.sealed and scan.end < limit:
            bad.append((scan.end, limit))
        copies = [journal.directory.set_range_aside(info.number, *place) for place in bad]
        kept.extend(copy for copy in copies if copy is not None)
        return True

    rewrite(journal, info, copy)
    return kept
