"""What the journal itself must remember when the segments that said it are gone.

- the next offset of every log, because an offset is never used again;
- the name that a log was declared under, so that Spark can read a directory without a broker;
- what the cleaner dropped: offsets by log and outcome, and segments by number, so that "cleaned" is told from "lost";
- which messages were lost to damage, and which damage has been accounted for.

It is rebuilt by replaying frames (`apply`), and travels in every snapshot beside the state of whoever uses the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from penstock.journal.rows import CLEANED, MESSAGES, METADATA, Section, Span
from penstock.ranges import RangeSet

#: Outcomes among the cleaned ranges that are the journal's own; those of its callers are not negative.
#: DAMAGED: these messages were lost. GIVEN_UP: damage may have held such offsets, so they are never used.
DAMAGED: Final = -1
GIVEN_UP: Final = -2

_TELLING: Final = frozenset({METADATA.number, CLEANED.number})


class Stored(msgspec.Struct, frozen=True):
    """The state as a snapshot holds it."""

    next_offsets: dict[int, int]
    names: dict[int, str]
    cleaned: dict[int, dict[int, list[int]]]
    dropped: list[int]
    accounted: list[tuple[int, int]]


class State:
    """What the journal remembers of its logs."""

    def __init__(self, stored: Stored | None = None) -> None:
        self.next_offsets: dict[int, int] = dict(stored.next_offsets) if stored else {}
        self.names: dict[int, str] = dict(stored.names) if stored else {}
        self.dropped = RangeSet.decode(stored.dropped) if stored else RangeSet()
        self.accounted: set[tuple[int, int]] = set(stored.accounted) if stored else set()
        self.cleaned: dict[int, dict[int, RangeSet]] = {}
        for log, outcomes in stored.cleaned.items() if stored else ():
            self.cleaned[log] = {outcome: RangeSet.decode(ranges) for outcome, ranges in outcomes.items()}

    def store(self) -> Stored:
        cleaned = {
            log: {outcome: ranges.encode() for outcome, ranges in outcomes.items()}
            for log, outcomes in self.cleaned.items()
        }
        return Stored(
            dict(self.next_offsets), dict(self.names), cleaned, self.dropped.encode(), sorted(self.accounted)
        )

    def apply(self, spans: Sequence[Span], sections: Callable[[], Sequence[Section]]) -> None:
        """Take in a frame that is written or replayed; its sections are looked at only if they tell more than spans do."""
        telling = False
        for kind, log, _, _, last, _, _ in spans:
            if kind == MESSAGES.number:
                if last >= self.next_offsets.get(log, 0):
                    self.next_offsets[log] = last + 1
            elif kind in _TELLING:
                telling = True
        for section in sections() if telling else ():
            if section.kind is METADATA:
                self._name(section.log, section.values("name"))
            elif section.kind is CLEANED:
                self._clean(section)

    def _name(self, log: int, names: Iterable[str | None]) -> None:
        for name in names:
            if name is not None:
                self.names[log] = name

    def _clean(self, section: Section) -> None:
        names = ("segment", "position", "first", "last", "outcome")
        for segment, position, first, last, outcome in zip(*map(section.values, names), strict=True):
            if position is not None:
                self.accounted.add((segment, position))
            elif segment is not None:
                self.dropped.add(segment, segment + 1)
                self.accounted = {damage for damage in self.accounted if damage[0] != segment}
            if first is not None and last is not None and 0 <= first <= last:
                self.record_cleaned(section.log, first, last, outcome if outcome is not None else GIVEN_UP)

    def record_cleaned(self, log: int, first: int, last: int, outcome: int) -> None:
        """Offsets `first` to `last` are gone: on purpose, or by damage."""
        self.cleaned.setdefault(log, {}).setdefault(outcome, RangeSet()).add(first, last + 1)
        if last >= self.next_offsets.get(log, 0):
            self.next_offsets[log] = last + 1

    def explained(self, log: int, first: int, stop: int) -> RangeSet:
        """Which offsets of a range are recorded as gone, for whatever reason."""
        found = RangeSet()
        for ranges in self.cleaned.get(log, {}).values():
            for part in ranges.overlap(first, stop):
                found.add(part.start, part.stop)
        return found
