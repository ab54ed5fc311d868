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

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from penstock import limits
from penstock.journal import frame as frames
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.rows import CLEANED, MESSAGES, Rows, Section
from penstock.journal.segment import GAPS, Bad, Label, Scan, Writer
from penstock.journal.view import SegmentInfo
from penstock.ranges import RangeSet


class DeadRange(NamedTuple):
    """Offsets `first` to `last` of a log are not needed any more, because of `outcome` (not negative)."""

    first: int
    last: int
    outcome: int


Dead = Callable[[int, int, int], Iterable[DeadRange]]


class Cleaned(msgspec.Struct):
    """What a run of the cleaner did."""

    segments_dropped: int = 0
    segments_rewritten: int = 0
    messages: int = 0
    bytes: int = 0


def clean(journal: Journal, dead: Dead) -> Cleaned:
    """Drop and rewrite what `dead` says nobody needs; call it from any thread."""
    done = Cleaned()
    with journal.tidying("cleaning"):
        covered = journal.covered_sequence()
        for info in journal.segments():
            if info.next_sequence is not None and info.next_sequence - 1 <= covered and not info.damage:
                _clean_segment(journal, info, dead, done)
    return done


def _clean_segment(journal: Journal, info: SegmentInfo, dead: Dead, done: Cleaned) -> None:
    plans = {log: Plan(journal, info, log, dead) for log in info.index.logs}
    gone = sum(plan.present for plan in plans.values())
    live = info.index.messages - gone
    if live > info.index.messages * limits.REWRITE_LIVE_SHARE_MAX:
        return
    record = _record(journal, info, plans, dropped=not live)
    if record:
        journal.commit(record)
        journal.sync()
    before = info.end
    if live:
        kept = rewrite(journal, info, {log: plan.dead for log, plan in plans.items()})
        done.segments_rewritten += 1
    else:
        journal.drop(info)
        kept = 0
        done.segments_dropped += 1
    done.messages += gone
    done.bytes += before - kept


class Plan:
    """What is to go of one log in one segment: `dead` offsets, of which `present` are in it, and `new` are not on record yet.

    Offsets on record may still be there: a crash came between recording and dropping. What is neither there nor live is how
    many offsets the segment skips.
    """

    def __init__(self, journal: Journal, info: SegmentInfo, log: int, dead: Dead) -> None:
        entry = info.index.logs[log]
        self.dead = journal.state.explained(log, entry.first, entry.last + 1)
        self.new: list[DeadRange] = []
        for named in dead(log, entry.first, entry.last):
            first, last = max(named.first, entry.first), min(named.last, entry.last)
            for gap in self.dead.gaps(first, last + 1) if first <= last else ():
                self.new.append(DeadRange(gap.start, gap.stop - 1, named.outcome))
                self.dead.add(gap.start, gap.stop)
        self.present = len(self.dead) - (entry.last - entry.first + 1 - entry.rows)


def _record(journal: Journal, info: SegmentInfo, plans: dict[int, Plan], *, dropped: bool) -> list[Rows]:
    """Rows that say what is about to go: the offsets by log, and the segment's number if it goes as a whole."""
    now = journal.now_us()
    rows = [
        Rows(
            CLEANED, log, len(ranges),
            {
                "segment": info.number if dropped else None,
                "first": [r.first for r in ranges],
                "last": [r.last for r in ranges],
                "outcome": [r.outcome for r in ranges],
                "time": now,
            },
        )
        for log, plan in plans.items() if (ranges := plan.new)
    ]  # fmt: skip
    if dropped and not rows:
        rows.append(Rows(CLEANED, 0, 1, {"segment": info.number, "time": now}))
    return rows


def rewrite(journal: Journal, info: SegmentInfo, gone: dict[int, RangeSet]) -> int:
    """Replace a segment by one without the offsets in `gone` and without rows of other kinds; its new length in bytes."""
    files = journal.directory.files
    label = Label(
        info.number, files.random(), info.label.first_sequence, info.label.created_us, info.label.epoch, GAPS
    )
    writer = Writer.draft(journal.directory, label, recycle=None, reserve=0)
    try:
        fd = files.open(journal.directory.segment(info.number))
        try:
            for item in Scan(files, fd, info.label, limit=info.end, stop_sequence=info.next_sequence):
                if not isinstance(item, Bad):
                    _copy_live(item, writer, gone)
        finally:
            files.close(fd)
        writer.seal(
            sequence=info.next_sequence or 0,
            time_us=info.index.newest,
            epoch=max(writer.index.epoch, info.index.epoch),
        )
        writer.trim()
        journal.replace(info, writer)
        return writer.end
    finally:
        writer.close()


def _copy_live(frame: Frame, writer: Writer, gone: dict[int, RangeSet]) -> None:
    kept: list[Rows] = []
    copies: dict[int, tuple[list[int], Rows]] = {}
    for index, section in enumerate(frame.sections):
        if section.kind is not MESSAGES:
            continue
        offsets = section.values("offset")
        dead = gone.get(section.log, RangeSet())
        keep = [row for row, offset in enumerate(offsets) if offset not in dead]
        if not keep:
            continue
        shared = copies.get(section.shares() if section.shares() is not None else -1)  # type: ignore[arg-type]
        rows = _selected(section, keep, shared[1] if shared is not None and shared[0] == keep else None)
        copies[index] = (keep, rows)
        kept.append(rows)
    if kept:
        for rows in kept:
            rows.prepare(alone=True)
        head = frame.header
        content = frames.body(kept)
        writer.write(writer.encoded(content, sequence=head.sequence, time_us=head.time_us, epoch=head.epoch))
        writer.advance(
            head._replace(position=writer.end, body_bytes=content.bytes, messages=content.messages),
            content.spans,
        )


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
