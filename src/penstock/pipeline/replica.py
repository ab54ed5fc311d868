"""What a broker knows, from outside: its state at one commit, made from a snapshot and the commits behind it, by nobody's leave.

Theory of operation
-------------------
A snapshot and the commits after it give the engine's state at any later commit, exactly as when a broker opens the directory; only that
nothing is locked and nothing is written, so a broker may be at work meanwhile. All is as of the mark's sequence number, which is read once.

Two snapshots are always kept. The older one and the commits behind it must give the newer one: what does not agree, a broker has in its memory and not in its journal.

What can be proven depends on what is still on record. The cleaner drops what happened (settlements, groups that came or were sent elsewhere) with the segments it drops or rewrites. A
segment that is *whole* has all its rows. From the last one on that is not (`Facts.since`), every row is there: of a message that was published since, all that ever
happened to it is on record. Before that, only what is there can be held against what else is there.

Without a mark only sealed segments can be read, and the newest snapshot says what else there was: then all is as of that snapshot, and the commits between are missing.

The owner may drop and rewrite segments while they are read. So facts are gathered between two looks at the segments, and only those count that were the same in both; `Replica.again`
looks once more when the tables were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.broker.ledger import events_of
from penstock.broker.state_reader import COMMITS_AT_ONCE, drop_effects, passive_engine, snapshots_of
from penstock.engine.change import Declaration
from penstock.engine.cursors import Cursor
from penstock.engine.engine import Engine, dead_letter_target
from penstock.engine.events import OF_THE_LOG, Action
from penstock.engine.history import replay
from penstock.engine.log import Log
from penstock.errors import InvalidArgument
from penstock.journal.frame import Frame
from penstock.journal.kinds import MESSAGES, METADATA
from penstock.journal.reading import JournalReader
from penstock.journal.section import Section
from penstock.journal.segment import GAPS
from penstock.journal.snapshot import Snapshot
from penstock.journal.state import DAMAGED, GIVEN_UP, State
from penstock.journal.view import SegmentInfo
from penstock.names import dead_letter_name, is_dead_letter_name
from penstock.pipeline.catalog import Catalog
from penstock.ranges import RangeSet

#: Ranges of offsets as `RangeSet.encode` has them: start, stop, start, stop.
Flat = list[int]


class LogFacts(msgspec.Struct):
    """What a broker's own state says of one log, at one commit.

    `cleaned` are the offsets that the cleaner dropped, `damaged` those that were lost to damage, `unused` those that never held a message. `groups` has what each group has behind it.
    `witnessed` is the offset from which on everything that happened to a message is on record. `turns` are the commits at which a group came, went, or was sent elsewhere,
    and `placed` what it had behind it then.
    `graves` are the queues of its dead letters, `buried_since` the commit since which they are certain to be those; with `ordered`, order by key is promised, and of each group known from that offset on.
    """

    namespace: str
    name: str
    next_offset: int
    number: int = 0
    groups: dict[str, Flat] = {}
    cleaned: Flat = []
    damaged: Flat = []
    unused: Flat = []
    witnessed: int = 0
    turns: dict[str, list[int]] = {}
    placed: dict[str, Flat] = {}
    graves: list[str] = []
    buried_since: int = 0
    ordered: dict[str, int] | None = None


class Disagreement(msgspec.Struct, frozen=True):
    """Offsets that a broker has as settled in a group and did not record, or recorded and has not."""

    namespace: str
    log: str
    group: str
    settled: Flat
    recorded: Flat


class Facts(msgspec.Struct):
    """What a broker's own state says, as of the commit `sequence`.

    `since` is the commit behind which every row is on record. `breaks` are the commits at which rows are missing in between, in order: what is before and behind one cannot be compared.
    `missing` are commits (first, last) which are gone though nobody dropped them; those in `unread` are perhaps there, and cannot be read because the mark is gone.
    """

    sequence: int
    logs: list[LogFacts]
    since: int = 0
    breaks: list[int] = []
    disagreements: list[Disagreement] = []
    missing: list[tuple[int, int]] = []
    missing_segments: list[int] = []
    unread: tuple[int, int] | None = None


class Replica:
    """The state of a directory's broker at one commit, and what of its past is on record."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_dir():
            raise InvalidArgument(f"{path} is no directory: give the one that a broker keeps its journal in")
        self._path = Path(path).absolute()
        self._begin()
        before: list[tuple[int, int]] = []
        for _ in range(limits.LOOKS_MAX):
            if self._missing == before:
                break  # nothing is missing, or two looks agree on what is
            before = self._missing
            self._begin()  # perhaps the owner was tidying up

    def _begin(self) -> None:
        self._reader = JournalReader(self._path)
        kept = list(snapshots_of(self._path))
        self.mark = self._reader.mark()
        self.sequence = self.mark.sequence
        self._last = self.mark.segment
        before = [info for info in self._reader.segments() if info.number <= self.mark.segment]
        self.unread: tuple[int, int] | None = None
        if (unread := self._reader.unread()) is not None:
            self.unread = self.sequence + 1, unread[0]
            self.sequence = max([self.sequence, *(one.sequence for one in kept)])
            self._last = max([self._last + 1, *(one.active.number for one in kept)])
        self._missing: list[tuple[int, int]] = []
        self.disagreements: list[Disagreement] = []
        self._restore([one for one in kept if one.sequence <= self.sequence], before)
        self._past = Past(self.sequence)
        for frame in self._reader.frames(0, (METADATA,)):
            if frame.sequence > self.sequence:
                break
            self._past.take_in(frame)
        self._reader.mark()
        self._whole = _same(before, self._reader.segments(), self._reader)

    # --- the state ---

    def _restore(self, kept: list[Snapshot], segments: list[SegmentInfo]) -> None:
        newest = kept[-1] if kept else None
        self.engine, self.state = passive_engine(newest), State(None if newest is None else newest.journal)
        if newest is not None:
            older = kept[-2] if len(kept) > 1 else None
            if newest.sequence > self.mark.sequence:
                return  # what is between cannot be read
            if older is not None or _from_the_first(segments, newest.sequence):
                self._compare(older, newest)
        self._replay(self.engine, 0 if newest is None else newest.sequence, self.sequence, self.state)

    def _compare(self, older: Snapshot | None, newest: Snapshot) -> None:
        """Whether the older snapshot and what was recorded since give the newer one."""
        twin = passive_engine(older)
        if not self._replay(twin, 0 if older is None else older.sequence, newest.sequence):
            return  # what is missing is said; what follows from that need not be
        for number, log in self.engine.logs.items():
            other = twin.logs.get(number)
            for name, group in log.groups.items() if other is not None else ():
                recorded = other.groups.get(name) if other is not None else None
                if recorded is not None and recorded.settled != group.settled:
                    one = Disagreement(
                        log.namespace, log.name, name, _without(group.settled, recorded.settled), _without(recorded.settled, group.settled)
                    )  # fmt: skip
                    self.disagreements.append(one)

    def _replay(self, engine: Engine, after: int, upto: int, state: State | None = None) -> bool:
        """Take in the commits behind one, up to another; whether all were there."""
        expected = after + 1
        whole = True
        for frame in self._reader.frames(after):
            if frame.sequence > upto:
                break
            if frame.sequence > expected:
                self._missing.append((expected, frame.sequence - 1))
                whole = False
            expected = frame.sequence + 1
            for event in events_of(frame, payloads_of=lambda _log: False):
                replay(engine, event, frame.header.time_us)
            if state is not None:
                state.apply(frame.spans(), lambda sections=frame.sections: sections)  # type: ignore[misc]
            if not frame.sequence % COMMITS_AT_ONCE:
                drop_effects(engine)
        if expected <= upto:
            self._missing.append((expected, upto))
            whole = False
        drop_effects(engine)
        return whole

    # --- facts ---

    def facts(self, wanted: Callable[[str, str], bool] = lambda _namespace, _name: True) -> Facts:
        """What is known of the logs that are wanted."""
        since, breaks = _breaks(self._whole, self._last)
        logs = [
            self._log_facts(log, since)
            for log in self.engine.logs.values()
            if wanted(log.namespace, log.name)
        ]
        catalog = Catalog(self._path)
        return Facts(
            self.sequence,
            sorted(logs, key=lambda log: (log.namespace, log.name)),
            since,
            breaks,
            [one for one in self.disagreements if wanted(one.namespace, one.log)],
            sorted(set(self._missing)),
            catalog.missing_segments(),
            self.unread,
        )

    def _log_facts(self, log: Log, since: int) -> LogFacts:
        past, number = self._past, log.number
        spaced = set()
        if not is_dead_letter_name(log.name):
            spaced = {(log.namespace, dead_letter_name(log.name)), (log.namespace, dead_letter_target(log))}
        deletions = [past.deleted.get(grave, 0) for grave in spaced]
        return LogFacts(
            log.namespace,
            log.name,
            log.next_offset,
            number,
            groups={name: group.settled.encode() for name, group in log.groups.items()},
            **_gone(self.state, number),
            witnessed=_witnessed(self._whole, self._last, number, log.next_offset),
            turns={
                name: [one.sequence for one in turns]
                for (of, name), turns in past.turns.items()
                if of == number
            },
            placed={name: found.encode() for (of, name), found in past.placed.items() if of == number},
            graves=sorted({name for _, name in spaced}),
            buried_since=max(
                since, past.altered[number].sequence if number in past.altered else 0, *deletions
            ),
            ordered=self._ordered(log) if log.policy.ordering == "key" else None,
        )

    def _ordered(self, log: Log) -> dict[str, int]:
        """Messages before this may have been published under another policy, or before the group was where it is."""
        begun = _witnessed(self._whole, self._last, log.number, log.next_offset)
        begun = max(begun, self._end_at(log.number, self._past.altered.get(log.number)))
        return {
            name: max(begun, self._end_at(log.number, self._past.last_turn(log.number, name)))
            for name in log.groups
        }

    def _end_at(self, log: int, moment: Moment | None) -> int:
        """The next offset of a log at a commit that says something of it, at the latest."""
        if moment is None:
            return 0
        ends = [moment.next_offset]
        for info in self._whole:
            entry = info.index.logs.get(log)
            if entry is not None and info.index.last_sequence < moment.sequence:
                ends.append(entry.last + 1)
        return max(ends)

    def again(self, facts: Facts) -> Facts:
        """The same facts, as far as they hold after the tables were read: with what was cleaned meanwhile, and without logs that are gone."""
        catalog = Catalog(self._path)
        whole = _same(self._whole, catalog.segments(), catalog.reader)
        since, _ = _breaks(whole, self._last)
        logs = []
        for log in facts.logs:
            entry = catalog.logs.get(log.number)
            if entry is None:
                continue
            gone = {name: getattr(log, name) for name in _GONE}
            gone = {
                name: _joined(gone[name], flat) for name, flat in _gone(catalog.state, log.number).items()
            }
            witnessed = _witnessed(whole, self._last, log.number, log.next_offset)
            buried = max(log.buried_since, since)
            if any(catalog_lacks(catalog, self.engine, log.namespace, grave) for grave in log.graves):
                buried = facts.sequence  # its dead letters went with their queue
            logs.append(
                msgspec.structs.replace(
                    log, witnessed=witnessed, buried_since=buried, **gone,
                    ordered=None if log.ordered is None else {name: max(begun, witnessed) for name, begun in log.ordered.items()},
                )
            )  # fmt: skip
        missing = sorted(set(facts.missing_segments) & set(catalog.missing_segments()))
        return msgspec.structs.replace(
            facts, logs=logs, since=max(since, facts.since), missing_segments=missing
        )


def catalog_lacks(catalog: Catalog, engine: Engine, namespace: str, name: str) -> bool:
    """Whether a log was there at the replica's commit and is not any more."""
    log = engine.find(namespace, name)
    return log is not None and log.number not in catalog.logs


class Moment(NamedTuple):
    """A commit that says something of a log, and the log's next offset then, as far as the segment of that commit says it."""

    sequence: int
    next_offset: int


class Past:
    """What is on record of logs as a whole, and of their groups: when each was sent elsewhere, and with what behind it."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.turns: dict[tuple[int, str], list[Moment]] = {}
        self.placed: dict[tuple[int, str], RangeSet] = {}
        self.deleted: dict[tuple[str, str], int] = {}  # the last commit that deleted a log of that name
        self.altered: dict[int, Moment] = {}  # the last time
        self._next: dict[int, int] = {}

    def last_turn(self, log: int, group: str) -> Moment | None:
        turns = self.turns.get((log, group))
        return turns[-1] if turns else None

    def take_in(self, frame: Frame) -> None:
        spans = frame.spans()
        for span in spans:
            if span.kind == MESSAGES.number:
                self._next[span.log] = max(self._next.get(span.log, 0), span.last + 1)
        if any(span.kind == METADATA.number for span in spans):
            for section in frame.sections:
                if section.kind is METADATA:
                    self._take_in(section, frame.sequence)

    def _take_in(self, section: Section, sequence: int) -> None:
        log = section.log
        for action, about, body in zip(*map(section.values, ("action", "about", "body")), strict=True):
            if action in OF_THE_LOG:
                declared = msgspec.msgpack.decode(body, type=Declaration)
                if action == Action.DELETE:
                    self.deleted[declared.namespace, declared.name] = sequence
                elif action == Action.ALTER:
                    self.altered[log] = Moment(sequence, self._next.get(log, 0))
            elif action in (Action.SUBSCRIBE, Action.UNSUBSCRIBE, Action.SEEK):
                self.turns.setdefault((log, about), []).append(Moment(sequence, self._next.get(log, 0)))
                if action != Action.UNSUBSCRIBE:
                    cursor = msgspec.msgpack.decode(body, type=Cursor)
                    known = self.placed.setdefault((log, about), RangeSet())
                    for run in RangeSet.decode(cursor.settled):
                        known.add(run.start, run.stop)


# --- what is on record ---


def _same(
    before: Iterable[SegmentInfo], after: Iterable[SegmentInfo], reader: JournalReader
) -> list[SegmentInfo]:
    """The segments that were there with all their rows in both looks."""
    generations = {info.number: info.label.generation for info in before}
    hurt = {damage.segment for damage in reader.damage}
    return [
        info
        for info in after
        if generations.get(info.number) == info.label.generation
        and info.number not in hurt
        and _is_whole(info)
    ]


def _is_whole(info: SegmentInfo) -> bool:
    """Whether a segment has all its rows: one that the cleaner has rewritten has only messages, and not all of them."""
    return not info.damage and not (info.label.flags & GAPS and set(info.index.kinds) <= {MESSAGES.number})


def _from_the_first(segments: list[SegmentInfo], sequence: int) -> bool:
    """Whether every commit up to one is still there with all its rows."""
    numbers = [info.number for info in segments if info.label.first_sequence <= sequence]
    return numbers == list(range(1, len(numbers) + 1)) and all(map(_is_whole, segments[: len(numbers)]))


def _breaks(whole: list[SegmentInfo], last: int) -> tuple[int, list[int]]:
    """The commit behind which nothing is missing up to the end, and every commit at which something is missing."""
    breaks: list[int] = []
    expected = 1
    for info in whole:
        if info.number != expected:
            breaks.append(info.label.first_sequence - 1)
        expected = info.number + 1
    if expected <= last:  # the segment that is being written is not whole itself
        breaks.append(limits.OFFSET_MAX)
    return (breaks[-1] if breaks else 0), breaks


def _witnessed(whole: list[SegmentInfo], last: int, log: int, next_offset: int) -> int:
    """The first message of a log that was published since everything is on record."""
    found, expected = next_offset, last
    for info in reversed(whole):
        if info.number != expected:
            break
        expected -= 1
        if (entry := info.index.logs.get(log)) is not None:
            found = min(found, entry.first)
    return found


_GONE: Final = ("cleaned", "damaged", "unused")


def _gone(state: State, log: int) -> dict[str, Flat]:
    """Which offsets hold no message any more, by why."""
    found = {name: RangeSet() for name in _GONE}
    for outcome, ranges in state.cleaned.get(log, {}).items():
        name = "damaged" if outcome == DAMAGED else "unused" if outcome == GIVEN_UP else "cleaned"
        for run in ranges:
            found[name].add(run.start, run.stop)
    return {name: ranges.encode() for name, ranges in found.items()}


def _joined(one: Flat, other: Flat) -> Flat:
    found = RangeSet.decode(one)
    for run in RangeSet.decode(other):
        found.add(run.start, run.stop)
    return found.encode()


def _without(one: RangeSet, other: RangeSet) -> Flat:
    return RangeSet(gap for run in one for gap in other.gaps(run.start, run.stop)).encode()
