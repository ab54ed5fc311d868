"""Which messages are gone, and what took them (pure).

Offsets are given without a gap unless a writer wants one, and commits are numbered without any. So where a log's offsets jump between two
frames, and the sequence numbers of those frames jump as well, messages may have been lost there; what the cleaner or an earlier
owner recorded as gone is not. Damage that lies between the two frames is what they were lost to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.checkup.examination import COLUMNS, OFFSETS, Examination, Finding, Gap, Place, Spans
from penstock.journal.damage import MISSING, ROT
from penstock.journal.directory import Directory
from penstock.journal.state import State
from penstock.ranges import RangeSet


def merge(state: State, part: State) -> None:
    """Take into `state` what a later part of the journal says."""
    for log, offset in part.next_offsets.items():
        if state.floor:
            state.begin(log, offset)
        state.next_offsets[log] = max(state.next_offsets.get(log, 0), offset)
    state.floor = max(state.floor, part.floor)
    state.names.update(part.names)
    state.accounted = {damage for damage in state.accounted if damage[0] not in part.mended} | part.accounted
    merge_gone(state, part)


def merge_gone(state: State, part: State) -> None:
    """Take into `state` what a later part of the journal says of messages and segments that are gone."""
    for numbers in part.dropped:
        state.dropped.add(numbers.start, numbers.stop)
    for log, outcomes in part.cleaned.items():
        for outcome, ranges in outcomes.items():
            for one in ranges:
                state.record_cleaned(log, one.start, one.stop - 1, outcome)


def chain_gaps(examined: Iterable[Examination], next_offsets: dict[int, int]) -> Iterator[Gap]:
    """The gaps of every log, within segments and between them, up to the next offset."""
    stops: dict[int, tuple[int, Place]] = {}
    nothing = (0, Place(0, 0, 0))
    last = 0
    for found in examined:
        for log, reach in found.reaches.items():
            stop, place = stops.get(log, nothing)
            if reach.first > stop:
                yield Gap(log, stop, reach.first, place, reach.first_place)
            stops[log] = (max(stop, reach.stop), reach.last_place)
        yield from found.gaps
        last = max(last, found.index.last_sequence)
    end = Place(sys.maxsize, 0, last + 1)
    for log, offset in next_offsets.items():
        stop, place = stops.get(log, nothing)
        if offset > stop:
            yield Gap(log, stop, offset, place, end)


def blame(damage: list[Finding], lost: list[Gap], directory: Directory) -> list[Finding]:
    """Say of each damage which messages it cost: those missing between the frames before and behind it."""
    findings = list(damage)
    told = by_log(span for finding in damage for span in finding.spans)
    for gap in lost:
        for part in told.setdefault(gap.log, RangeSet()).gaps(gap.start, gap.stop):
            at = _culprit(findings, gap)
            if at is None:
                name = directory.segment(gap.before.segment).name if gap.before.segment < sys.maxsize else ""
                findings.append(
                    Finding(
                        OFFSETS, name, detail="messages are gone, and nobody recorded that they were cleaned"
                    )
                )
                at = len(findings) - 1
            findings[at] = findings[at].blamed(gap.log, part.start, part.stop - 1)
            told[gap.log].add(part.start, part.stop)
    return findings


_COSTS_MESSAGES: Final = frozenset({ROT, MISSING, COLUMNS})


def _culprit(findings: list[Finding], gap: Gap) -> int | None:
    for at, finding in enumerate(findings):
        if finding.what in _COSTS_MESSAGES and finding.segment is not None:
            place = (finding.segment, finding.position)
            if gap.after[:2] <= place <= gap.before[:2]:
                return at
    return None


def by_log(spans: Iterable[tuple[int, int, int]]) -> dict[int, RangeSet]:
    found: dict[int, RangeSet] = {}
    for log, first, last in spans:
        found.setdefault(log, RangeSet()).add(first, last + 1)
    return found


def as_spans(ranges: dict[int, RangeSet]) -> Spans:
    return [(log, part.start, part.stop - 1) for log in sorted(ranges) for part in ranges[log]]
