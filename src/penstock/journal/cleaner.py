"""Gives disk space back: drops segments with nothing live in them, rewrites those that are mostly dead.

Theory of operation
-------------------
Only what is *said* to be dead goes. `Dead` is a callback: asked for a log and a range of offsets, it names the ranges that nobody needs any
more, each with its outcome (acknowledged, expired, past retention, …: the caller's numbers). Everything else is live.

Rows that are not messages are needed for replaying until both snapshots cover them, so a segment is looked at only when its last frame
is covered by both. A segment with damage is left alone: it is evidence, and `penstock journal repair` deals with it.

Order, and what a crash leaves:

1. What is about to go is recorded, in a commit of its own (kind *cleaned*), and synced. A crash here: the rows are recorded as cleaned and
   still there; the next run drops them.
2. A dead segment's file is renamed to be recycled, or unlinked. A rewritten one is a draft, synced, and takes the old one's place by one
   rename. A crash leaves the old file or the new one.

Publishers are not paused: the commit of step 1 is one like any other, and the copying is done by the thread that called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import BatchTooLarge, InvalidArgument
from penstock.journal import frame as frames
from penstock.journal.damage import of_bad
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED, MESSAGES
from penstock.journal.rows import Rows
from penstock.journal.section import Section
from penstock.journal.segment import GAPS, Bad, Scan, Writer
from penstock.journal.view import SegmentInfo
from penstock.model.damage import ROT, Damage
from penstock.ranges import RangeSet


class DeadRange(NamedTuple):
    """Offsets `first` to `last` of a log are not needed any more, because of `outcome` (not negative)."""

    first: int
    last: int
    outcome: int


Dead = Callable[[int, int, int], Iterable[DeadRange]]


#: The largest outcome: its column is of 16 bits.
OUTCOME_MAX: Final = 2**15 - 1


class Cleaned(msgspec.Struct):
    """What a run of the cleaner did."""

    segments_dropped: int = 0
    segments_rewritten: int = 0
    messages: int = 0
    bytes: int = 0


def clean(journal: Journal, dead: Dead, *, rewriting: bool = True, up_to: int | None = None) -> Cleaned:
    """Drop and rewrite what `dead` says nobody needs; call it from any thread.

    Without `rewriting` only segments go in which nothing is live: that is quick. Segments with commits behind `up_to` are left alone:
    somebody has not read the rows in them yet that are not messages.
    """
    done = Cleaned()
    with journal.tidying("cleaning"):
        covered = journal.covered_sequence()
        if up_to is not None:
            covered = min(covered, up_to)
        for info in journal.segments():
            if info.next_sequence is not None and info.next_sequence - 1 <= covered and not info.damage:
                _clean_segment(journal, info, dead, done, rewriting=rewriting)
    return done


def _clean_segment(
    journal: Journal, info: SegmentInfo, dead: Dead, done: Cleaned, *, rewriting: bool
) -> None:
    plans = {log: Plan(journal, info, log, dead) for log in info.index.logs}
    gone = sum(plan.present for plan in plans.values())
    live = info.index.messages - gone
    if live > (info.index.messages * limits.REWRITE_LIVE_SHARE_MAX if rewriting else 0):
        return
    for record in _records(journal, info, plans, dropped=not live):
        journal.commit([record])
    journal.sync()
    if live:
        gone_by_log = {log: plan.dead for log, plan in plans.items()}
        kept = rewrite(journal, info, _without(journal, info, gone_by_log))
        if kept is None:
            return
        done.segments_rewritten += 1
    else:
        journal.drop(info)
        kept = 0
        done.segments_dropped += 1
    done.messages += gone
    done.bytes += info.end - kept


class Plan:
    """What is to go of one log in one segment: `dead` offsets, of which `present` are in it, and `new` are not on record yet.

    Offsets on record may still be there: a crash came between recording and dropping. What is neither there nor live is how
    many offsets the segment skips.
    """

    def __init__(self, journal: Journal, info: SegmentInfo, log: int, dead: Dead) -> None:
        entry = info.index.logs[log]
        self.dead = journal.state.explained(log, entry.first, entry.last + 1)
        self.new: list[DeadRange] = []
        for named in _checked(dead(log, entry.first, entry.last)):
            first, last = max(named.first, entry.first), min(named.last, entry.last)
            for gap in self.dead.gaps(first, last + 1) if first <= last else ():
                self.new.append(DeadRange(gap.start, gap.stop - 1, named.outcome))
                self.dead.add(gap.start, gap.stop)
        self.present = len(self.dead) - (entry.last - entry.first + 1 - entry.rows)


def _checked(answer: Iterable[DeadRange]) -> list[DeadRange]:
    """What a callback said, if it can be meant."""
    if not isinstance(answer, Iterable):
        raise InvalidArgument(f"`dead` returns a list of DeadRange, empty if nothing is dead, not {answer!r}")
    ranges = list(answer)
    for named in ranges:
        if type(named) is not DeadRange or not all(type(number) is int for number in named):
            raise InvalidArgument(
                f"`dead` returns a list of DeadRange, each of three whole numbers, not {named!r}"
            )
        if not 0 <= named.outcome <= OUTCOME_MAX:
            raise InvalidArgument(
                f"an outcome is 0 to {OUTCOME_MAX}, not {named.outcome}: negative ones are the journal's own"
            )
    return ranges


def _records(journal: Journal, info: SegmentInfo, plans: dict[int, Plan], *, dropped: bool) -> Iterator[Rows]:
    """Rows that say what is about to go: the offsets by log, and at last the segment's number if it goes as a whole."""
    now = journal.now_us()
    for log, plan in plans.items():
        for start in range(0, len(plan.new), limits.RECORDED_AT_ONCE):
            part = plan.new[start : start + limits.RECORDED_AT_ONCE]
            columns = {
                "first": [r.first for r in part],
                "last": [r.last for r in part],
                "outcome": [r.outcome for r in part],
                "time": now,
            }
            yield Rows(CLEANED, log, len(part), columns)
    if dropped:
        yield Rows(CLEANED, 0, 1, {"segment": info.number, "time": now})


#: Writes what is to stay of an open segment into a draft; False if the segment is to be left as it is.
Copy = Callable[[int, Writer], bool]


def rewrite(journal: Journal, info: SegmentInfo, copy: Copy) -> int | None:
    """Replace a segment by what `copy` takes over of it, by one rename; its new length in bytes, or None if it was left as it is."""
    directory = journal.directory
    label = info.label._replace(generation=directory.files.random(), flags=GAPS)
    with directory.files.opened(directory.segment(info.number)) as fd:
        writer = Writer.draft(directory, label, recycle=None, reserve=0)
        try:
            if not copy(fd, writer):
                writer.discard(directory, recycle=None)
                return None
            epoch = max(writer.index.epoch, info.index.epoch)
            writer.seal(sequence=info.next_sequence or 0, time_us=info.index.newest, epoch=epoch)
            writer.trim()
            journal.replace(info, writer)
            return writer.end
        except BaseException:
            writer.discard(directory, recycle=None)
            raise
        finally:
            writer.close()


def _without(journal: Journal, info: SegmentInfo, gone: dict[int, RangeSet]) -> Copy:
    """Copy a segment without the offsets in `gone` and without rows of other kinds.

    It is left as it is when damage comes to light, which must not go with the rest; when it holds columns of a newer version, which
    this one cannot copy; and when nothing would be won, or payloads that were shared no longer fit one frame.
    """

    def copy(fd: int, writer: Writer) -> bool:
        scan = Scan(journal.directory.files, fd, info.label, limit=info.end, stop_sequence=info.next_sequence)
        for item in scan:
            if isinstance(item, Bad):
                journal.note_damage(of_bad(item, ROT))
                return False
            if not all(map(_is_known, item.sections)):
                return False
            try:
                _copy_live(item, writer, gone)
            except BatchTooLarge:
                return False
        if not scan.sealed:
            journal.note_damage(Damage(info.number, scan.end, info.end, ROT))
        return scan.sealed and writer.end < info.end

    return copy


def _is_known(section: Section) -> bool:
    """Whether this version knows every column of a section."""
    if section.kind is None:
        return False
    numbers = {field.number for field in section.kind.fields.values()}
    return bool(len(numbers & section.columns().keys()) == section.columns_count)


def _copy_live(frame: Frame, writer: Writer, gone: dict[int, RangeSet]) -> None:
    """Payloads stay shared among the sections that keep the same rows, whichever of them had held the payloads."""
    kept: list[Rows] = []
    holders: dict[tuple[int, tuple[int, ...]], Rows] = {}
    for index, section in enumerate(frame.sections):
        if section.kind is not MESSAGES:
            continue
        dead = gone.get(section.log, RangeSet())
        keep = [row for row, offset in enumerate(section.values("offset")) if offset not in dead]
        if not keep:
            continue
        held_by = section.shares()
        key = (index if held_by is None else held_by, tuple(keep))
        rows = _selected(section, keep, holders.get(key))
        holders.setdefault(key, rows)
        kept.append(rows)
    if kept:
        for rows in kept:
            rows.prepare(alone=True)
        head = frame.header
        content = frames.body(kept)
        writer.write(content, head.sequence, head.time_us, head.epoch)
        writer.advance(content, head.sequence, head.time_us, head.epoch)


def _selected(section: Section, keep: list[int], share: Rows | None) -> Rows:
    """Some rows of a section; payloads stay shared if the section they are shared with kept the same ones."""
    columns = {}
    for name in MESSAGES.fields:
        if name == "payload" and share is not None:
            continue
        column = section.column(name)
        if column is None:
            continue
        values = column.values()
        picked = values if len(keep) == section.rows else [values[row] for row in keep]
        columns[name] = picked if isinstance(picked, range) else list(picked)
    return Rows(MESSAGES, section.log, len(keep), columns, share)
