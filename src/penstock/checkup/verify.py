"""Verify a journal: look at every byte, and believe nothing that can be checked.

Theory of operation
-------------------
Frames and their columns, labels, seals, summaries against a fresh scan, snapshots, the mark, segments that are gone, and messages that are
gone though nobody recorded that they were cleaned. `verify` never writes and takes no lock, so it may run beside the owner; then it
looks up to the mark.

Beside a live owner what looks wrong may only be in motion. So damage is believed only if a second look finds it again. The second
look reads a later mark than the first one's list of files, and whatever went away was recorded, and synced, before it
went: what is missing in both looks is really missing. A record may go itself, with its segment, while a look comes to it, but not before a snapshot
has it: so each look ends with the newest one.

What is wrong comes in three sorts: *damage* (something must be done), *known* (lost, and recorded as lost: nothing more can be
done), *notes* (what a crash left; the next opening, or `repair`, deals with it).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import zip_longest
from pathlib import Path
from typing import Final

import msgspec

from penstock import limits
from penstock.checkup.accounting import COSTS_MESSAGES, as_spans, blame, merge, merge_gone
from penstock.checkup.examination import (
    FOREIGN,
    LEFTOVER,
    MARK,
    OFFSETS,
    SNAPSHOT,
    SUMMARY,
    Examination,
    Finding,
    Spans,
    examine,
)
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidArgument
from penstock.journal import labels
from penstock.journal import mark as marks
from penstock.journal import snapshot as snapshots
from penstock.journal import summary as summaries
from penstock.journal.directory import SNAPSHOT as SNAPSHOT_FILE
from penstock.journal.directory import SUMMARY as SUMMARY_FILE
from penstock.journal.directory import Directory, checked_path, holder
from penstock.journal.ending import Bounds, bounds_of
from penstock.journal.files import Files, read_whole
from penstock.journal.losses import Gap, Place, Promise, by_log, chain, furthest
from penstock.journal.mark import Mark
from penstock.journal.segment import GAPS, START, Label
from penstock.journal.state import DAMAGED, State, Stored
from penstock.journal.view import Moved
from penstock.model.damage import HEADER, MISSING, ROT
from penstock.ranges import RangeSet

Progress = Callable[[int], None]

_LABEL_DETAILS: Final = {
    ROT: "neither its header nor any frame of it near its start is whole",
    HEADER: "the segment's own header does not match its checksum; it costs no message",
}


class Checked(msgspec.Struct, frozen=True):
    """One segment as a checkup saw it."""

    number: int
    bytes: int
    frames: int
    messages: int
    sealed: bool
    damaged: bool


class Checkup(msgspec.Struct):
    """What `verify` found. `damage` wants repair; `lost` and `gone` are known; `notes` are dealt with by the next opening.

    `lost` are messages (log, first, last) recorded as lost, `gone` the numbers of segments known to be missing, and
    `unrecorded` the messages that are lost and that nobody has recorded yet. `skipped` are offsets around damage which a writer left out; once
    the damage is gone, only a record can tell them from lost ones.
    """

    path: str
    holder: str | None = None
    mark: Mark | None = None
    frames: int = 0
    messages: int = 0
    bytes: int = 0
    segments: list[Checked] = []
    snapshots: list[int] = []
    damage: list[Finding] = []
    notes: list[Finding] = []
    lost: Spans = []
    gone: list[int] = []
    unrecorded: Spans = []
    skipped: Spans = []
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing must be done."""
        return not self.damage


def verify(
    path: str | Path,
    files: Files | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Checkup:
    """Look at every byte of a journal, which may be in use; `progress` hears of the bytes that were looked at."""
    clock = clock or SystemClock()
    started = clock.monotonic_us()
    directory = Directory(files or Files(), checked_path(path))
    directory.require_journal()
    first = _Look(directory, {}, progress or (lambda _bytes: None))
    if first.damage or first.lost:
        second = _Look(directory, first.sound, lambda _bytes: None)
        second.believe_only(first)
        first = second
    report = first.report()
    report.seconds = (clock.monotonic_us() - started) / 1e6
    return report


def _flaw_of_snapshot(found: snapshots.Snapshot | None, sequence: int) -> str:
    if found is None:
        return "it does not match its checksum"
    if found.sequence != sequence:
        return f"it is the snapshot of commit {found.sequence}, and its name says another"
    try:
        State(found.journal)
    except InvalidArgument as error:
        return f"its checksum is right, and what it says cannot be: {error}"
    return ""


class _Look:
    """One look at a directory. What `known` found sound before is not looked at again if it is still the same file."""

    def __init__(self, directory: Directory, known: dict[int, Examination], progress: Progress) -> None:
        self._directory = directory
        self._known = known
        self._progress = progress
        self._examined: list[Examination] = []
        self._promises: dict[int, Promise] = {}
        self._told_by_summaries: list[Promise] = []
        self.damage: list[Finding] = []
        self.notes: list[Finding] = []
        self.lost: list[Gap] = []
        self.gone: list[int] = []
        self.skipped: Spans = []
        self.snapshots: list[int] = []
        # The order makes it consistent: a snapshot is never ahead of a mark that was read after it, and whatever the mark
        # says was in the directory before it said so.
        self._holder = holder(directory)
        self._snapshot = self._look_at_snapshots(directory.survey()[0].snapshots)
        self._mark = self._look_at_mark()
        self._contents, foreign = directory.survey()
        self._look_at_segments(self._labels(self._numbers()))
        self.state = self._replayed()
        self._recall()
        self._look_for_missing_segments()
        self._look_for_missing_messages()
        self._look_at_leftovers(foreign)

    @property
    def sound(self) -> dict[int, Examination]:
        """The finished segments in which nothing was wrong."""
        return {
            e.number: e for e in self._examined if e.walk.seal is not None and not e.damage and not e.notes
        }

    def believe_only(self, earlier: _Look) -> None:
        """Forget what an earlier look did not find: it was in motion."""
        keys = {finding.key for finding in earlier.damage}
        self.damage = [finding for finding in self.damage if finding.key in keys]
        before = by_log((gap.log, gap.start, gap.stop - 1) for gap in earlier.lost)
        self.lost = [
            gap._replace(start=part.start, stop=part.stop)
            for gap in self.lost
            for part in before.get(gap.log, RangeSet()).overlap(gap.start, gap.stop)
        ]

    # --- the small files ---

    def _look_at_snapshots(self, sequences: list[int]) -> snapshots.Snapshot | None:
        newest: snapshots.Snapshot | None = None
        for sequence in sequences:
            found = snapshots.read_named(self._directory, sequence)
            flaw = _flaw_of_snapshot(found, sequence)
            if not flaw:
                newest = found
                self.snapshots.append(sequence)
            else:
                self._damaged_file(SNAPSHOT, self._directory.file(sequence, SNAPSHOT_FILE), flaw)
        return newest

    def _look_at_mark(self) -> Mark | None:
        if (
            self._directory.mark.name in self._directory.survey()[1]
        ):  # a directory, say: it is told with what does not belong here
            return None
        mark = marks.read_beside_owner(self._directory.files, self._directory.mark)
        if mark is not None:
            return mark
        if self._directory.mark.exists():
            self._damaged_file(MARK, self._directory.mark, "it does not match its checksum")
        else:
            self.damage.append(Finding(MARK, self._directory.mark.name, detail="it is gone"))
        return None

    def _damaged_file(self, what: str, path: Path, detail: str) -> None:
        """A small file that can be made again. If it is gone by now, somebody else has dealt with it; a directory in its place is told of with what is foreign."""
        try:
            size = len(read_whole(self._directory.files, path))
        except (FileNotFoundError, IsADirectoryError):
            return
        self.damage.append(Finding(what, path.name, end=size, detail=detail))

    # --- segments ---

    def _numbers(self) -> list[int]:
        """The segments to look at: beside an owner, only those that the mark has reached."""
        numbers = self._contents.segments
        if self._holder is None or self._mark is None:
            return numbers
        return [number for number in numbers if number <= self._mark.segment]

    def _labels(self, numbers: Collection[int]) -> list[Label]:
        """The headers that can be believed; what is wrong with the others is damage."""
        found = labels.load(self._directory, numbers, self._mark, self._snapshot)
        for one in found:
            name = self._directory.segment(one.number).name
            if one.foreign:
                self.damage.append(
                    Finding(FOREIGN, name, one.number, 0, one.size, detail=f"it {one.foreign}")
                )
            elif one.damage is not None:
                what, end = one.damage.what, one.damage.end
                self.damage.append(Finding(what, name, one.number, 0, end, detail=_LABEL_DETAILS[what]))
                if one.damage.whole_file:
                    self._recall_summary(one.number)
        return [one.label for one in found if one.label is not None]

    def _look_at_segments(self, chain: list[Label]) -> None:
        for label, successor in zip_longest(chain, chain[1:]):
            found = self._examined_now(label, successor)
            if found is None:
                continue
            self._examined.append(found)
            self.damage += found.damage
            self.notes += found.notes
            if found.walk.seal is not None:
                self._look_at_summary(found)

    def _examined_now(self, label: Label | None, successor: Label | None) -> Examination | None:
        """A segment as it is now, or None if it is gone: whether somebody recorded that is asked later.

        A rewritten one must be looked at again at once. If it were passed over, it could be dropped before the second look,
        and would be missing in both.
        """
        while label is not None:
            known = self._known.get(label.number)
            if known is not None and known.label == label:
                return known
            try:
                return examine(self._directory, label, self._bounds(label, successor), self._progress)
            except Moved:
                label = next(iter(self._labels([label.number])), None)
        return None

    def _bounds(self, label: Label, successor: Label | None) -> Bounds:
        """What is known of a segment from outside. A summary that is whole says how long it was, and what it held."""
        active = self._snapshot.active if self._snapshot is not None else None
        synced = active.end if active is not None and active.generation == label.generation else START
        bounds = bounds_of(label, successor, self._mark, synced=synced, owned=self._holder is not None)
        stored = summaries.read(self._directory, label.number)
        if stored is None or stored.generation != label.generation:
            return bounds
        promise = Promise(summaries.index_of(stored))
        self._told_by_summaries.append(promise)
        if not stored.damage:  # else it may be of what was left
            self._promises[label.number] = promise
        return bounds._replace(end=stored.end)

    def _look_at_summary(self, found: Examination) -> None:
        path = self._directory.file(found.number, SUMMARY_FILE)
        stored = summaries.read(self._directory, found.number)
        if stored is None and path.exists():
            self._damaged_file(SUMMARY, path, "it does not match its checksum")
        elif stored is None or stored.generation != found.label.generation:
            if self._holder is None:  # an owner may be about to write it
                detail = "there is no summary of this segment; opening the journal makes it"
                self.notes.append(Finding(LEFTOVER, path.name, found.number, detail=detail))
        elif not found.damage and stored != self._fresh(found, stored):
            self._damaged_file(SUMMARY, path, "it says something else than the segment that it is about")
        elif stored.damage and not found.damage:
            detail = "it lists damage that opening has cut off since, and that keeps the segment from being cleaned; `repair` forgets it"
            self.notes.append(Finding(LEFTOVER, path.name, found.number, detail=detail))

    @staticmethod
    def _fresh(found: Examination, stored: summaries.Summary) -> summaries.Summary:
        """The summary that the segment would get now.

        Which damage it had once, only the stored one knows. Where it ends is its seal's word, or, when the next segment was
        gone as the summary was made, that of the one behind it.
        """
        following = max(found.walk.seal.sequence if found.walk.seal is not None else 0, stored.next_sequence)
        return summaries.of(found.label, found.walk.end, following, found.index, stored.damage)

    # --- what is gone ---

    def _replayed(self) -> State:
        """What the journal remembers: the newest snapshot, and all that the frames say. Later names win."""
        covered = self._snapshot.sequence if self._snapshot else 0
        older = [e.state for e in self._examined if e.index.last_sequence <= covered]
        newer = [e.state for e in self._examined if e.index.last_sequence > covered]
        state = State()
        for part in older:
            merge(state, part)
        if self._snapshot is not None:
            state.forget(
                {segment for segment, _ in state.accounted}
            )  # what was mended since those frames were written
            merge(state, State(self._snapshot.journal))
        for part in newer:
            merge(state, part)
        return state

    def _recall(self) -> None:
        """Take in what an owner recorded as gone while we looked. Not what it wrote since: that was not looked at."""
        if self._holder is None:
            return
        next_offsets = dict(self.state.next_offsets)
        merge_gone(self.state, State(self._newest_state()))
        self.state.next_offsets = next_offsets

    def _newest_state(self) -> Stored | None:
        """In the newest whole snapshot now. A slow look may find that those it knew by name are no longer kept."""
        for _ in range(limits.LOOKS_MAX):
            listed = self._directory.survey()[0].snapshots
            for sequence in reversed(listed):
                found = snapshots.read(self._directory, sequence)
                if found is not None and not _flaw_of_snapshot(found, sequence):
                    return found.journal
            if self._directory.survey()[0].snapshots == listed:
                break
        return None

    def _look_for_missing_segments(self) -> None:
        last = self._examined[-1] if self._examined else None
        sealed = last.number if last is not None and last.walk.seal is not None else 0
        top = labels.highest(self._directory, self._numbers(), self._mark, self._snapshot, sealed=sealed)
        for number in self.state.missing_segments(self._contents.segments, up_to=top):
            if not self.state.parts_not_recorded(number, 0, limits.OFFSET_MAX):
                self.gone.append(number)
            else:
                name = self._directory.segment(number).name
                self.damage.append(Finding(MISSING, name, number, detail="the whole segment is gone"))
                self._recall_summary(number)

    def _recall_summary(self, number: int) -> None:
        """Of a segment that is gone, or of which nothing can be read, its summary may still say what it held."""
        stored = summaries.read(self._directory, number)
        if stored is not None and not stored.damage:
            self._promises[number] = Promise(summaries.index_of(stored))
            self._told_by_summaries.append(self._promises[number])

    def _look_for_missing_messages(self) -> None:
        """Offsets that are not there, that nobody recorded, and between which commits are missing."""
        seen = RangeSet(part for found in self._examined for part in found.sequences)
        told = RangeSet(part for found in self._examined for part in (*found.sequences, *found.told))
        seen_in = [found.seen for found in self._examined]
        stops = furthest(self.state.next_offsets, self._told_by_summaries, self.damage)
        for gap in chain(seen_in, stops, next_sequence=self._next_sequence()):
            between = gap.after.sequence + 1, gap.before.sequence
            if not told.covers(*between) and not self._may_be_cleaned(gap):
                self._lose(gap)
            elif not seen.covers(*between):
                self.skipped.append((gap.log, gap.start, gap.stop - 1))
        for finding in self.damage:
            for log, first, last in finding.spans:
                place = Place(finding.segment or 0, finding.position, 0)
                self._lose(Gap(log, first, last + 1, place, place))

    def _may_be_cleaned(self, gap: Gap) -> bool:
        """Whether the cleaner may have left a gap, and the record of that is in what was damaged since; nothing in the gap itself is."""
        rewritten = {found.number for found in self._examined if found.label.flags & GAPS}
        if not rewritten & {gap.after.segment, gap.before.segment}:
            return False
        hurt = [
            (f.segment, f.position) for f in self.damage if f.what in COSTS_MESSAGES and f.segment is not None
        ]
        return any(place > gap.before[:2] for place in hurt) and not any(
            gap.after[:2] <= place <= gap.before[:2] for place in hurt
        )

    def _lose(self, gap: Gap) -> None:
        self.lost += self.state.unexplained([gap])

    def _next_sequence(self) -> int:
        """Behind the last commit that anything tells of."""
        told = [e.index.last_sequence for e in self._examined]
        told += [self._mark.sequence if self._mark is not None else 0]
        told += [self._snapshot.sequence if self._snapshot is not None else 0]
        return max(told) + 1

    def _look_at_leftovers(self, foreign: list[str]) -> None:
        for name in foreign:
            detail = (
                "it looks like a file of a journal and is not one that this version of Penstock knows: move it away if it "
                "does not belong there, or use the version that wrote it"
            )
            self.damage.append(Finding(FOREIGN, name, detail=detail))
        if self._holder is not None:  # drafts are what the owner is working on
            return
        for name in self._contents.drafts:
            detail = "a draft that a crash left; opening the journal throws it away"
            self.notes.append(Finding(LEFTOVER, name, detail=detail))
        for number in sorted(set(self._contents.summaries) - set(self._contents.segments)):
            detail = "a summary without its segment; opening the journal throws it away"
            name = self._directory.file(number, SUMMARY_FILE).name
            self.notes.append(Finding(LEFTOVER, name, number, detail=detail))

    # --- the report ---

    def report(self) -> Checkup:
        bad = {(e.number, position): bad for e in self._examined for position, bad in e.bad.items()}
        told = [f.told_by(self.state, bad.get((f.segment or 0, f.position))) for f in self.damage]
        blamed = blame(told, self.lost, self._promises, self._directory)
        hurt = {finding.segment for finding in blamed if finding.what not in (SUMMARY, OFFSETS)}
        segments = [
            Checked(
                e.number, e.walk.size, e.index.frames, e.messages, e.walk.seal is not None, e.number in hurt
            )
            for e in self._examined
        ]
        recorded = by_log(
            (log, part.start, part.stop - 1)
            for log, outcomes in self.state.cleaned.items()
            for part in outcomes.get(DAMAGED, ())
        )
        return Checkup(
            str(self._directory.path),
            self._holder,
            self._mark,
            frames=sum(s.frames for s in segments),
            messages=sum(s.messages for s in segments),
            bytes=sum(s.bytes for s in segments),
            segments=segments,
            snapshots=self.snapshots,
            damage=blamed,
            notes=self.notes,
            lost=as_spans(recorded),
            gone=self.gone,
            unrecorded=as_spans(by_log((gap.log, gap.start, gap.stop - 1) for gap in self.lost)),
            skipped=self.skipped,
        )
