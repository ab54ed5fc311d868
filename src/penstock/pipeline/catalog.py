"""The logs of a broker's directory, seen from outside: which there are, where they begin and end, and what of them is gone.

Theory of operation
-------------------
The broker's own knowledge is in its snapshots, and what happened since in the commits behind them. A catalog takes the names of the logs from
the newest snapshot, then goes through those later commits that say something of logs as a whole (declared, deleted, cleaned), and each time
it looks again only through what is new. Where logs end is in the index of each segment. It needs no lock, asks nobody, and changes nothing.

Nothing is known here beyond the mark, that is, beyond what is synced: so nobody who goes by a catalog can be ahead of the log after a power cut.
If the mark is gone, only sealed segments may be read; `unread` is then how far snapshots and other segments go.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.engine import log as logs
from penstock.engine.change import Declaration
from penstock.engine.engine import Stored
from penstock.engine.events import OF_THE_LOG, Action
from penstock.errors import InvalidArgument
from penstock.journal.kinds import CLEANED, MESSAGES, METADATA
from penstock.journal.mark import Mark
from penstock.journal.reading import JournalReader
from penstock.journal.section import Section
from penstock.journal.segment import GAPS
from penstock.journal.state import DAMAGED, GIVEN_UP, State
from penstock.journal.view import SegmentInfo
from penstock.policy import Policy
from penstock.ranges import RangeSet

_TELLING: Final = (METADATA, CLEANED)


class LogEntry(NamedTuple):
    """A queue or a topic that exists."""

    number: int
    namespace: str
    name: str
    kind: str
    until_archived: bool = False

    @property
    def qualified(self) -> str:
        """Its name among all namespaces; no name has a slash in it."""
        return f"{self.namespace}/{self.name}"


def _stored(log: logs.Stored) -> LogEntry:
    policy = msgspec.msgpack.decode(log.policy, type=Policy)
    return _entry(log.number, log.namespace, log.name, log.kind, policy)


def _entry(number: int, namespace: str, name: str, kind: str, policy: Policy) -> LogEntry:
    return LogEntry(number, namespace, name, kind, policy.retain == "until-archived")


class Catalog:
    """What is known of a directory as of the last look at it: `mark` is up to where, `segments` what was there.

    `reader` is for whoever wants rows. It is not the one that looks: reading looks further, and then one would plan by two different moments.
    """

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_dir():
            raise InvalidArgument(f"{path} is no directory: give the one that a broker keeps its journal in")
        self.reader = JournalReader(path)
        self.logs: dict[int, LogEntry] = {}
        self.state = State()
        self.mark = Mark(0, 0, 0, 0, 0)
        self.unread: tuple[int, dict[int, int]] | None = None
        self._looking = JournalReader(path)
        self._seen = 0  # sequence
        self._told: dict[
            int, tuple[int, ...]
        ] = {}  # by generation: rows of the telling kinds that were looked at
        self.refresh()

    def refresh(self) -> Mark:
        """Look again. Commits that were not seen may be gone once two newer snapshots cover them: then all that they said is in these."""
        for _ in range(limits.LOOKS_MAX):
            before, self.mark = self.mark, self._looking.mark()
            self.unread = self._looking.unread()
            self._take_snapshot()
            self._take_commits()
            older = self._looking.snapshots()[: -limits.SNAPSHOTS_KEPT + 1]
            # A mark that is older than the snapshots, and does not move, is what a power cut left.
            if not older or older[-1] <= self._seen or self.mark == before:
                break
            self._told = {}
        self._seen = max(self._seen, self.mark.sequence)
        return self.mark

    def _take_snapshot(self) -> None:
        """Begin with the newest snapshot, if it is newer than what is known.

        One beyond the mark knows offsets that must not be read yet. If the mark is gone, its names
        are needed all the same: see `end`.
        """
        limit = self.mark.sequence if self.unread is None else limits.OFFSET_MAX
        for sequence in reversed(self._looking.snapshots()):
            if not self._seen < sequence <= limit:
                continue
            snapshot = self._looking.snapshot(sequence)
            if snapshot is not None:
                self.state = State(snapshot.journal)
                stored = msgspec.msgpack.decode(snapshot.state, type=Stored).logs if snapshot.state else []
                self.logs = {log.number: _stored(log) for log in stored}
                self._seen, self._told = snapshot.sequence, {}
                return

    def _take_commits(self) -> None:
        """Go through what was committed since, if any of it says something of logs as a whole."""
        if self._seen >= self.mark.sequence:
            return
        told = {
            info.label.generation: tuple(info.index.kinds.get(kind.number, 0) for kind in _TELLING)
            for info in self.segments()
        }
        if told != self._told:
            for frame in self.reader.frames(self._seen, _TELLING):
                if frame.sequence > self.mark.sequence:
                    break
                # Where logs end is in the index. What is first seen of a log may be in its middle.
                spans = [span for span in frame.spans() if span.kind != MESSAGES.number]
                self.state.apply(spans, lambda sections=frame.sections: sections)  # type: ignore[misc]
                for section in frame.sections:
                    if section.kind is METADATA:
                        self._take_in(section)
            self._told = told

    def segments(self) -> list[SegmentInfo]:
        """The segments that may be read as of the last look, oldest first."""
        return [info for info in self._looking.segments() if info.number <= self.mark.segment]

    def _take_in(self, section: Section) -> None:
        for action, body in zip(section.values("action"), section.values("body"), strict=True):
            if action not in OF_THE_LOG:
                continue
            if action == Action.DELETE:
                self.logs.pop(section.log, None)
            else:
                declared = msgspec.msgpack.decode(body, type=Declaration)
                self.logs[section.log] = _entry(
                    section.log, declared.namespace, declared.name, declared.kind, declared.policy
                )

    # --- which logs, and where they begin and end ---

    def chosen(self, wants: Callable[[str, str], bool]) -> list[LogEntry]:
        """The logs that are wanted by namespace and name, in the order of their names."""
        found = [log for log in self.logs.values() if wants(log.namespace, log.name)]
        return sorted(found, key=lambda log: (log.namespace, log.name))

    def end(self, log: int) -> int:
        """The offset behind the last synced message."""
        found = self.state.next_offsets.get(log, self.state.floor) if self.unread is None else 0
        for info in self.segments():
            entry = info.index.logs.get(log)
            if entry is not None and entry.last >= found:
                found = entry.last + 1
        return found

    def earliest(self, log: int) -> int:
        """The offset of the first message that is stored, or the end if none is."""
        for info in self.segments():
            entry = info.index.logs.get(log)
            if entry is not None:
                return entry.first
        return self.end(log)

    def offset_at(self, log: int, time_us: int) -> int:
        """The offset of the first message that is not older than a time, or the end."""
        found = self.reader.offset_at(log, time_us)
        return self.end(log) if found is None else found

    # --- what is gone ---

    def lost(self, log: int, start: int, stop: int) -> RangeSet:
        """Which offsets of a range were lost to damage, as far as the journal knows."""
        found = RangeSet()
        for outcome in (DAMAGED, GIVEN_UP):
            ranges = self.state.cleaned.get(log, {}).get(outcome)
            for part in ranges.overlap(start, stop) if ranges is not None else ():
                found.add(part.start, part.stop)
        return found

    def gone(self, log: int, start: int, stop: int) -> RangeSet:
        """Which offsets of a range hold no message, for another reason than damage."""
        found = self.cleaned(log, start, stop)
        unused = self.state.cleaned.get(log, {}).get(GIVEN_UP)
        for part in unused.overlap(start, stop) if unused is not None else ():
            found.add(part.start, part.stop)
        return found

    def cleaned(self, log: int, start: int, stop: int = limits.OFFSET_MAX) -> RangeSet:
        """Which offsets of a range the cleaner dropped."""
        found = RangeSet()
        for outcome, ranges in self.state.cleaned.get(log, {}).items():
            for part in ranges.overlap(start, stop) if outcome >= 0 else ():
                found.add(part.start, part.stop)
        return found

    def missing_segments(self) -> list[int]:
        """The segments that are neither there nor recorded as dropped. One that was dropped during a look is known to be with the next."""
        found = self._missing_segments()
        if found:
            self.refresh()
            found = self._missing_segments()
        return found

    def _missing_segments(self) -> list[int]:
        there = [info.number for info in self.segments()]
        return self.state.missing_segments(there, up_to=self.mark.segment)

    def missing_commits(self, first: int, last: int) -> list[tuple[int, int]]:
        """Which commits of a range, from and to, were in segments that are gone and that nobody dropped."""
        found = RangeSet()
        infos = self.segments()
        for number in self.missing_segments():
            below = [info.next_sequence or 0 for info in infos if info.number < number]
            above = [info.label.first_sequence for info in infos if info.number > number]
            start, stop = max([first, *below]), min([last + 1, *above])
            if start < stop:
                found.add(start, stop)
        return [(part.start, part.stop - 1) for part in found]

    def without_events(self, first: int, last: int) -> tuple[int, int] | None:
        """The first commits behind `first`, up to `last`, whose settlements and leases are gone; None if all are there.

        A segment goes when nobody needs its messages; one that was rewritten has kept nothing else.
        """
        at = first + 1
        if at > last:
            return None
        for info in self.segments():
            stop = info.next_sequence if info.next_sequence is not None else self.mark.sequence + 1
            if stop <= at:
                continue
            if info.label.first_sequence > at:
                return at, min(info.label.first_sequence - 1, last)
            if info.label.flags & GAPS and set(info.index.kinds) <= {MESSAGES.number}:
                return at, min(stop - 1, last)
            at = stop
            if at > last:
                return None
        return (at, last) if at <= last else None  # the last segments are gone

    def sequence_at(self, time_us: int) -> int:
        """The last commit before a time; 0 if there is none."""
        found = 0
        for info in self.segments():
            if info.index.newest < time_us:
                found = info.index.last_sequence
                continue
            for frame in self.reader.frames(found):
                if frame.header.time_us >= time_us:
                    break
                found = frame.sequence
            break
        return min(found, self.mark.sequence)
