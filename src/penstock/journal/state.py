"""What the journal itself must remember when the segments that said it are gone.

- the next offset of every log, because an offset is never used again, and the *floor*, where a log begins of which nothing is known;
- the name that a log was declared under, so that Spark can read a directory without a broker;
- what the cleaner dropped: offsets by log and outcome, and segments by number, so that "cleaned" is told from "lost";
- which messages were lost to which damage that has been accounted for, until its segment is mended.

It is rebuilt by replaying frames (`apply`), and travels in every snapshot beside the state of whoever uses the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import zip_longest
from typing import Final

import msgspec

from penstock import limits
from penstock.journal.damage import parts_outside
from penstock.journal.kinds import CLEANED, MESSAGES, METADATA, Span
from penstock.journal.losses import Gap
from penstock.journal.section import Section
from penstock.journal.segment import Bad
from penstock.model.damage import Offsets, known_messages
from penstock.ranges import RangeSet

#: Outcomes among the cleaned ranges that are the journal's own; those of its callers are not negative.
#: DAMAGED: these messages were lost. GIVEN_UP: damage may have held such offsets, so they are never used.
#: UNKNOWN: damage may have held whole logs, so every log of which nothing is known begins behind this range.
DAMAGED: Final = -1
GIVEN_UP: Final = -2
UNKNOWN: Final = -3

#: In the place of a position, beyond any file: the segment is about to be exchanged for a whole one, so that damage found in it from now on is new.
MENDED: Final = limits.OFFSET_MAX

_TELLING: Final = frozenset({METADATA.number, CLEANED.number})


#: The place where damage begins: a segment, and a position in it.
Where = tuple[int, int]


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state as a snapshot holds it."""

    next_offsets: dict[int, int]
    names: dict[int, str]
    cleaned: dict[int, dict[int, list[int]]]
    dropped: list[int]
    accounted: list[tuple[int, int]]
    floor: int = 0
    lost: list[tuple[int, int, int, int, int]] = []  # (segment, position, log, first, last)
    ends: list[int] = []  # of the damage in `accounted`


class State:
    """What the journal remembers of its logs."""

    def __init__(self, stored: Stored | None = None) -> None:
        self.next_offsets: dict[int, int] = dict(stored.next_offsets) if stored else {}
        self.names: dict[int, str] = dict(stored.names) if stored else {}
        self.dropped = RangeSet.decode(stored.dropped) if stored else RangeSet()
        #: Where damage begins, by segment and position, and where it ends; 0 if that was not recorded.
        self.accounted: dict[Where, int] = {}
        self._lost: dict[Where, dict[int, RangeSet]] = {}  # what each of them cost, by log
        self.floor = stored.floor if stored else 0  # where a log begins of which nothing is known
        self.mended: set[int] = set()  # since it was stored
        self.cleaned: dict[int, dict[int, RangeSet]] = {}
        for log, outcomes in stored.cleaned.items() if stored else ():
            self.cleaned[log] = {outcome: RangeSet.decode(ranges) for outcome, ranges in outcomes.items()}
        if stored is not None:
            self.accounted = dict(zip_longest(stored.accounted, stored.ends, fillvalue=0))  # type: ignore[arg-type]
            for segment, position, *span in stored.lost:
                self.lose((segment, position), *span)

    def store(self) -> Stored:
        cleaned = {
            log: {outcome: ranges.encode() for outcome, ranges in outcomes.items()}
            for log, outcomes in self.cleaned.items()
        }
        return Stored(
            dict(self.next_offsets),
            dict(self.names),
            cleaned,
            self.dropped.encode(),
            sorted(self.accounted),
            self.floor,
            [(*where, *span) for where in sorted(self._lost) for span in self.lost_to(*where)],
            [self.accounted[where] for where in sorted(self.accounted)],
        )

    def next_offset(self, log: int) -> int:
        """The offset that a log's next message gets."""
        return self.next_offsets.get(log, self.floor)

    def apply(self, spans: Sequence[Span], sections: Callable[[], Sequence[Section]]) -> None:
        """Take in a frame that is written or replayed; its sections are looked at only if they tell more than spans do."""
        telling = False
        for kind, log, _, first, last, _, _ in spans:
            if kind == MESSAGES.number:
                if self.floor:
                    self.begin(log, first)
                if last >= self.next_offsets.get(log, 0):
                    self.next_offsets[log] = last + 1
            elif kind in _TELLING:
                telling = True
        for section in sections() if telling else ():
            if section.kind is METADATA:
                self._name(section.log, section.values("name"))
            elif section.kind is CLEANED:
                self._clean(section)

    def begin(self, log: int, first: int) -> None:
        """If a log is new, and begins above the floor, the offsets below it were given up for it."""
        if log not in self.next_offsets and first >= self.floor:
            self.record_cleaned(log, 0, self.floor - 1, GIVEN_UP)

    def _name(self, log: int, names: Iterable[str | None]) -> None:
        for name in names:
            if name is not None:
                self.names[log] = name

    def _clean(self, section: Section) -> None:
        names = ("segment", "position", "end", "first", "last", "outcome")
        for segment, position, end, first, last, outcome in zip(*map(section.values, names), strict=True):
            if position is not None and position != MENDED:
                where = segment, position
                self.accounted[where] = max(self.accounted.get(where, 0), end or 0)
                if outcome == DAMAGED and first is not None and last is not None:
                    self.lose(where, section.log, first, last)
            elif segment is not None:
                self.forget({segment})
                if position == MENDED:
                    self.mended.add(segment)
                else:
                    self.dropped.add(segment, segment + 1)
            if outcome == UNKNOWN and last is not None:
                self.floor = max(self.floor, last + 1)
            elif first is not None and last is not None and 0 <= first <= last:
                self.record_cleaned(section.log, first, last, outcome if outcome is not None else GIVEN_UP)

    def lose(self, where: Where, log: int, first: int, last: int) -> None:
        """Damage has cost these messages."""
        self._lost.setdefault(where, {}).setdefault(log, RangeSet()).add(first, last + 1)

    def lost_to(self, segment: int, position: int) -> list[Offsets]:
        """Which messages damage has cost that begins there, as it is on record."""
        by_log = self._lost.get((segment, position), {})
        return [(log, part.start, part.stop - 1) for log, parts in by_log.items() for part in parts]

    def parts_not_recorded(self, segment: int, position: int, end: int) -> list[range]:
        """What of damage is not on record: all of it, or what it has grown by since."""
        if self.accounted.get((segment, position)) == 0 and position < end:
            return []  # an earlier version did not record where it ended
        ranges = [range(start, stop) for (number, start), stop in self.accounted.items() if number == segment]
        return parts_outside(position, end, ranges)

    def forget(self, segments: Set[int]) -> None:
        """These segments are gone, or mended: damage that is found in them from now on is new."""
        self.accounted = {where: end for where, end in self.accounted.items() if where[0] not in segments}
        self._lost = {where: lost for where, lost in self._lost.items() if where[0] not in segments}

    def record_cleaned(self, log: int, first: int, last: int, outcome: int) -> None:
        """Offsets `first` to `last` are gone: on purpose, or by damage."""
        self.cleaned.setdefault(log, {}).setdefault(outcome, RangeSet()).add(first, last + 1)
        if last >= self.next_offsets.get(log, 0):
            self.next_offsets[log] = last + 1

    def missing_segments(self, there: Iterable[int], *, up_to: int) -> list[int]:
        """The segments that are neither there nor recorded as dropped: they were lost as a whole."""
        known = self.dropped.copy()
        for number in there:
            known.add(number, number + 1)
        return [number for gap in known.gaps(1, up_to + 1) for number in gap]

    def unexplained(self, gaps: Iterable[Gap]) -> Iterator[Gap]:
        """What of gaps is not on record as gone."""
        for gap in gaps:
            known = self.explained(gap.log, gap.start, gap.stop)
            yield from gap.parts(known.gaps(gap.start, gap.stop))

    def unrecorded(self, bad: Bad) -> tuple[list[Offsets], int]:
        """Which messages a damaged frame cost, as far as it tells that itself, and how many: without those that are on record as gone.

        A section of a rewritten segment skips offsets, which were cleaned; others may have been recorded and not dropped yet.
        """
        found: list[Offsets] = []
        messages = bad.header.messages if bad.header is not None else 0
        for kind, log, rows, first, last, _, _ in bad.spans:
            if kind == MESSAGES.number:
                known = self.explained(log, first, last + 1)
                found += [(log, part.start, part.stop - 1) for part in known.gaps(first, last + 1)]
                messages -= max(0, len(known) - (last - first + 1 - rows))
        return found, max(messages, known_messages(found))

    def explained(self, log: int, first: int, stop: int) -> RangeSet:
        """Which offsets of a range are recorded as gone, for whatever reason."""
        found = RangeSet()
        for ranges in self.cleaned.get(log, {}).values():
            for part in ranges.overlap(first, stop):
                found.add(part.start, part.stop)
        return found
