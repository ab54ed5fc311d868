"""Which messages damage cost.

Theory of operation
-------------------
Damage is a range of bytes. Which messages were in it is known, in this order, from

1. the record: whoever found it has written down what it cost (`state.State.lost_to`), and everybody repeats that;
2. what is still whole of it: a frame's header says how many messages it holds, a section's header of which log and which offsets;
3. what is missing around it. A log's offsets are given without a gap. Where they jump between two frames that are whole (a *gap*), and nobody recorded
   that something was cleaned or given up there, damage between the two has held them. Behind a log's last frame, snapshots and
   summaries say how far it went, and a summary, or the owner's own index, what a segment held at all (a *promise*).

Opening, reading and `verify` ask for the third in the same way: `Sightings` remember what was come across in a segment, `chain` finds the gaps of a chain of
segments, and `divide` deals them out, so that each missing message is the loss of exactly one damage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from penstock.journal.index import SegmentIndex
from penstock.journal.kinds import MESSAGES, Span
from penstock.model.damage import Damage, Offsets, known_messages
from penstock.ranges import RangeSet


class Place(NamedTuple):
    """Where a frame is; places compare in the order in which frames were written."""

    segment: int
    position: int
    sequence: int = 0


NOWHERE: Final = Place(0, 0)


class Gap(NamedTuple):
    """Offsets of a log that are not between two frames where they could have been."""

    log: int
    start: int
    stop: int
    after: Place
    before: Place

    def parts(self, ranges: Iterable[range]) -> list[Gap]:
        """The same gap, for some of its offsets."""
        return [self._replace(start=part.start, stop=part.stop) for part in ranges]


class Reach:
    """What a segment holds of one log, from where to where."""

    __slots__ = ("first", "first_place", "last_place", "stop")

    def __init__(self, first: int, place: Place) -> None:
        self.first = first
        self.first_place = place
        self.stop = first
        self.last_place = place


class Sightings:
    """What was come across in one segment: how far each log goes in it, and the gaps between its frames."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.frames = 0
        self.reaches: dict[int, Reach] = {}
        self.gaps: list[Gap] = []

    @classmethod
    def told_by(cls, number: int, index: SegmentIndex) -> Sightings:
        """Those of a segment that nobody has looked into, and that its index vouches for. Places are those of its entries, at or a little before the frames'."""
        found = cls(number)
        found.frames = index.frames
        for log, entry in index.logs.items():
            reach = found.reaches[log] = Reach(entry.first, Place(number, entry.positions[0]))
            reach.stop, reach.last_place = entry.last + 1, Place(number, entry.positions[-1])
        return found

    def saw(self, position: int, sequence: int, spans: Iterable[Span]) -> None:
        """A good frame."""
        self.frames += 1
        for span in spans:
            if span.kind == MESSAGES.number:
                self._reach(span, Place(self.number, position, sequence))

    def _reach(self, span: Span, place: Place) -> None:
        reach = self.reaches.get(span.log)
        if reach is None:
            reach = self.reaches[span.log] = Reach(span.first, place)
        elif span.first > reach.stop:
            self.gaps.append(Gap(span.log, reach.stop, span.first, reach.last_place, place))
        reach.stop = max(reach.stop, span.last + 1)
        reach.last_place = place


def chain(
    found: Iterable[Sightings],
    next_offsets: Mapping[int, int],
    *,
    first_offsets: Mapping[int, int] | None = None,
    next_sequence: int = 0,
) -> Iterator[Gap]:
    """The gaps of every log, within segments and between them, from its first offset (0 unless given) up to its next one."""
    stops = {log: (first, NOWHERE) for log, first in (first_offsets or {}).items()}
    for one in found:
        for log, reach in one.reaches.items():
            stop, place = stops.get(log, (0, NOWHERE))
            if reach.first > stop:
                yield Gap(log, stop, reach.first, place, reach.first_place)
            stops[log] = (max(stop, reach.stop), reach.last_place)
        yield from one.gaps
    end = Place(sys.maxsize, 0, next_sequence)
    for log, offset in next_offsets.items():
        stop, place = stops.get(log, (0, NOWHERE))
        if offset > stop:
            yield Gap(log, stop, offset, place, end)


class Wound(Protocol):
    """Damage, as far as dividing asks for it. `frames` is 0 where not even the header of a frame is whole."""

    @property
    def segment(self) -> int | None: ...
    @property
    def position(self) -> int: ...
    @property
    def frames(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def spans(self) -> list[Offsets]: ...


class Promise:
    """What a segment is known to have held, whatever is left of it: frames, and offsets by log."""

    __slots__ = ("frames", "logs")

    def __init__(self, index: SegmentIndex) -> None:
        self.frames = index.frames
        self.logs = {log: range(entry.first, entry.last + 1) for log, entry in index.logs.items()}


def furthest(
    next_offsets: Mapping[int, int], promises: Iterable[Promise], wounds: Iterable[Wound]
) -> dict[int, int]:
    """The next offset of each log, as far as anything tells it: what is on record, promises, and what is still whole of damage."""
    found = dict(next_offsets)
    stops = [(log, held.stop) for promise in promises for log, held in promise.logs.items()]
    stops += [(log, last + 1) for wound in wounds for log, _, last in wound.spans]
    for log, stop in stops:
        found[log] = max(found.get(log, 0), stop)
    return found


class Division:
    """Missing messages, dealt out to the wounds that may have held them: `shares` are by the wounds' order, `left` could have been in none.

    Offsets rise with positions, so a gap's go to the wounds in it from the first to the last. A wound whose frame says how many messages it held
    takes no more than those; one of which nothing is known takes what the others leave.
    """

    def __init__(
        self, gaps: Iterable[Gap], wounds: Sequence[Wound], promises: Mapping[int, Promise] | None = None
    ) -> None:
        self._wounds = wounds
        self._promises = promises or {}
        self._wanting = [self._wanting_of(wound) for wound in wounds]
        self._order = sorted(
            range(len(wounds)), key=lambda at: (wounds[at].segment or 0, wounds[at].position)
        )
        self.shares: list[list[Offsets]] = [[] for _ in wounds]
        self.left: list[Gap] = []
        named = by_log(span for wound in wounds for span in wound.spans)
        nobodys = [
            part
            for gap in gaps
            for part in gap.parts(named.get(gap.log, RangeSet()).gaps(gap.start, gap.stop))
        ]
        nobodys.sort(key=lambda part: len(self._within(part)))  # first what only one can have held
        for part in nobodys:
            self._deal_out(part)

    @staticmethod
    def _wanting_of(wound: Wound) -> int:
        """How many of a wound's messages are not known by name."""
        return wound.messages - known_messages(wound.spans) if wound.frames else sys.maxsize

    def _deal_out(self, gap: Gap) -> None:
        within = self._within(gap)
        start = gap.start
        for turn, at in enumerate(within):
            first, stop = self._bounds(gap, at, start)
            if self._is_bounded(at):
                stop = min(stop, first + self._wanting[at])
                self._wanting[at] -= max(0, stop - first)
            else:
                stop = min(stop, self._left_by(gap, within[turn + 1 :], first))
            if first < stop:
                self.left += gap.parts([range(start, first)] if start < first else [])
                self.shares[at].append((gap.log, first, stop - 1))
                start = stop
        if start < gap.stop:
            self.left.append(gap._replace(start=start))

    def _is_bounded(self, at: int) -> bool:
        return bool(self._wounds[at].frames)

    def _left_by(self, gap: Gap, later: list[int], start: int) -> int:
        """Up to where a gap's offsets are left by later wounds that know how many they held."""
        limit = gap.stop
        for at in reversed(later):
            first, stop = self._bounds(gap, at, start)
            if self._is_bounded(at) and first < stop:
                limit = max(first, min(limit, stop) - self._wanting[at])
        return limit

    def _within(self, gap: Gap) -> list[int]:
        """The wounds that can have held some of a gap's offsets, in order."""
        first, stop = gap.after[:2], gap.before[:2]
        places = [(at, (self._wounds[at].segment or 0, self._wounds[at].position)) for at in self._order]
        return [at for at, place in places if self._wanting[at] > 0 and first <= place < stop]

    def _bounds(self, gap: Gap, at: int, start: int) -> tuple[int, int]:
        """Which of a gap's offsets, from `start` on, a wound can have held: not what an earlier or later segment is known to have held."""
        segment, stop = self._wounds[at].segment or 0, gap.stop
        for number, promise in self._promises.items():
            held = promise.logs.get(gap.log)
            if held is None:
                stop = start if number == segment else stop
                continue
            if number <= segment:
                start = max(start, held.start if number == segment else held.stop)
            if number >= segment:
                stop = min(stop, held.stop if number == segment else held.start)
        return start, stop


def named(
    wounds: Sequence[Damage],
    gaps: Iterable[Gap],
    promises: Mapping[int, Promise],
    found: Iterable[Sightings],
    known: Iterable[Damage],
) -> list[Damage]:
    """Damage with the messages that it cost. `known` is all damage, these wounds included, `found` what was come across around them.

    What a segment promised and is not there was in its damage: then it is also known how many frames are gone, and that no more messages are.
    """
    shares = Division(gaps, wounds, promises).shares
    told = [wound.costing(share) for wound, share in zip(wounds, shares, strict=True)]
    there = {one.number: one.frames for one in found}
    known = list(known)
    for number, promise in promises.items():
        gone = promise.frames - there.get(number, 0)
        gone -= sum(damage.frames for damage in known if damage.segment == number)
        unknown = [at for at, damage in enumerate(told) if damage.segment == number and not damage.frames]
        for at in unknown:  # where one ends and the next begins cannot be told: the last has what is left
            frames = max(1, gone) if at == unknown[-1] else 1
            told[at] = structs.replace(told[at], frames=frames)
            gone -= frames
    return told


def by_log(spans: Iterable[Offsets]) -> dict[int, RangeSet]:
    found: dict[int, RangeSet] = {}
    for log, first, last in spans:
        found.setdefault(log, RangeSet()).add(first, last + 1)
    return found
