"""Which messages are gone, and what took them (pure).

Offsets are given without a gap unless a writer wants one, and commits are numbered without any. So where a log's offsets jump between two
frames, and the sequence numbers of those frames jump as well, messages may have been lost there; what the cleaner or an earlier
owner recorded as gone is not. Damage that lies between the two frames is what they were lost to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from penstock.checkup.examination import COLUMNS, OFFSETS, Finding, Spans
from penstock.journal.directory import Directory
from penstock.journal.losses import Division, Gap, Promise
from penstock.journal.state import State
from penstock.model.damage import MISSING, ROT
from penstock.ranges import RangeSet


def merge(state: State, part: State) -> None:
    """Take into `state` what a later part of the journal says."""
    for log, offset in part.next_offsets.items():
        if state.floor:
            state.begin(log, offset)
        state.next_offsets[log] = max(state.next_offsets.get(log, 0), offset)
    state.floor = max(state.floor, part.floor)
    state.names.update(part.names)
    state.forget(part.mended)
    for where, end in part.accounted.items():
        state.accounted[where] = max(state.accounted.get(where, 0), end)
        for span in part.lost_to(*where):
            state.lose(where, *span)
    merge_gone(state, part)


def merge_gone(state: State, part: State) -> None:
    """Take into `state` what a later part of the journal says of messages and segments that are gone."""
    for numbers in part.dropped:
        state.dropped.add(numbers.start, numbers.stop)
    for log, outcomes in part.cleaned.items():
        for outcome, ranges in outcomes.items():
            for one in ranges:
                state.record_cleaned(log, one.start, one.stop - 1, outcome)


def blame(
    damage: list[Finding], lost: list[Gap], promises: Mapping[int, Promise], directory: Directory
) -> list[Finding]:
    """Say of each damage which messages it cost. What no damage can have held is a finding of its own."""
    wounds = [f for f in damage if f.what in COSTS_MESSAGES and f.segment is not None]
    division = Division(lost, wounds, promises)
    shares = {id(wound): share for wound, share in zip(wounds, division.shares, strict=True)}
    findings = [finding.costing(shares.get(id(finding), [])) for finding in damage]
    for gap in division.left:
        name = directory.segment(gap.before.segment).name if gap.before.segment < sys.maxsize else ""
        detail = "messages are gone, and nobody recorded that they were cleaned"
        findings.append(Finding(OFFSETS, name, detail=detail).costing([(gap.log, gap.start, gap.stop - 1)]))
    return findings


COSTS_MESSAGES: Final = frozenset({ROT, MISSING, COLUMNS})


def as_spans(ranges: dict[int, RangeSet]) -> Spans:
    return [(log, part.start, part.stop - 1) for log in sorted(ranges) for part in ranges[log]]
