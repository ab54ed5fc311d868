"""Opening after whatever happened: scan, tell clean from torn from rotten, mend, and say so.

Theory of operation
-------------------
1. Drafts (`*.tmp`) are thrown away. The newest whole snapshot is loaded; a damaged one is set aside.
2. Segments are taken in order. One that the snapshot covers is known from its summary; the others are scanned, and the frames above
   the snapshot are replayed. A missing or damaged summary is made again.
3. At the end of the last segment it is decided what the end is:

   ===========================  =========================================================================
   nothing bad, all below mark  *clean*: appending goes on there
   bad, above the mark,         *torn tail*: never acknowledged. A copy is set aside, and it is cut off
   nothing good behind it
   bad, at or below the mark,   *rot*: it was synced once. The range is copied into quarantine and skipped, its messages
   or a good frame behind it    count as damaged, everything around it is served
   good, above the mark         perhaps only in the kernel's memory, perhaps after a failed sync: copied into a new
                                segment and synced before anybody is served
   ===========================  =========================================================================

   If the mark itself is damaged, nothing in the last segment is known to be synced, so it is copied; and a bad end counts as rot, because
   it may have been acknowledged.

A crash at any step leaves something that the next recovery understands: copies are made before the cut; the new segment is synced
before it gets its name; from then on the rule "a segment ends where its successor begins" makes the old tail void; and the seal that
then ends the old segment is written to the same place again if need be. Recovering twice gives the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.clock import Clock
from penstock.errors import CorruptJournal
from penstock.journal import mark as marks
from penstock.journal import snapshot as snapshots
from penstock.journal import summary as summaries
from penstock.journal.damage import HEADER, MISSING, ROT, STATE, TORN, Damage, known_messages, of_bad
from penstock.journal.directory import SNAPSHOT, SUMMARY, Directory
from penstock.journal.frame import Frame
from penstock.journal.index import SegmentIndex
from penstock.journal.mark import Mark, MarkFile
from penstock.journal.rows import CLEANED, MESSAGES, Rows
from penstock.journal.segment import GAPS, START, Bad, Label, Scan, Writer, read_label
from penstock.journal.snapshot import Snapshot
from penstock.journal.state import DAMAGED, GIVEN_UP, State
from penstock.journal.view import SegmentInfo
from penstock.ranges import RangeSet

NEW: Final = "new"
CLEAN: Final = "clean"

#: A message takes at least this much of a frame, the entry of its payload's end; so a lost range bounds its rows.
ROW_BYTES_MIN: Final = 4

#: An unreadable file whose number is this far above the others' is not a segment that rotted: it does not belong there.
FAR_OFF: Final = 1000

Restore = Callable[[bytes], None]
Replay = Callable[[Frame], None]
Progress = Callable[[int], None]


class Report(msgspec.Struct):
    """What opening found and did. `end` is how the journal was left: new, clean, torn, or rot that nobody had found before.

    `damage` lists all that is known, `cut` the torn ends that were cut off.
    """

    end: str = NEW
    frames: int = 0
    messages: int = 0
    segments: int = 0
    bytes: int = 0
    snapshot: int | None = None
    rescued_frames: int = 0
    summaries_rebuilt: int = 0
    snapshots_damaged: int = 0
    mark_damaged: bool = False
    seconds: float = 0.0
    cut: list[Damage] = []
    damage: list[Damage] = []


class Gap(NamedTuple):
    """Offsets that are missing before a frame, which is at `position` of `segment`."""

    segment: int
    position: int
    log: int
    first: int
    stop: int


class Walk:
    """What scanning one segment found: `bad` ranges in order, of which the last `trailing` have no good frame behind them."""

    def __init__(self, info: SegmentInfo) -> None:
        self.info = info
        self.bad: list[Bad] = []
        self.trailing = 0
        self.above: int | None = None  # the position of the first good frame that is not known to be synced
        self.sealed = False
        self.size = 0


class Recovery:
    """One recovery of a directory whose lock is held: `run` it once, then read its attributes.

    Afterwards the last of `infos` is sealed, or is the segment to go on with; `sequence` and `epoch` are the highest ever used.
    """

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        restore: Restore | None = None,
        replay: Replay | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._directory = directory
        self._files = directory.files
        self._clock = clock
        self._restore = restore
        self._replay = replay
        self._progress = progress or (lambda _bytes: None)
        self._mark: Mark | None = None
        self._snapshot: Snapshot | None = None
        self._gaps: list[Gap] = []
        self.report = Report(cut=[], damage=[])
        self.state = State()
        self.infos: list[SegmentInfo] = []
        self.snapshots: list[int] = []
        self.free: list[int] = []
        self.sequence = 0
        self.epoch = 0
        self.found: list[Damage] = []
        self._sizes: dict[int, int] = {}

    @property
    def next_number(self) -> int:
        """The number of the next new segment: none is ever used again."""
        used = [info.number for info in self.infos] + [damage.segment for damage in self.report.damage]
        return (
            max(
                [*used, self._mark.segment if self._mark else 0, *(r.stop - 1 for r in self.state.dropped)],
                default=0,
            )
            + 1
        )

    def run(self) -> None:
        started = self._clock.monotonic_us()
        contents = self._directory.contents()
        self.free = contents.free
        for name in contents.drafts:
            self._files.unlink(self._directory.path / name)
        for number in sorted(set(contents.summaries) - set(contents.segments)):
            self._files.unlink(self._directory.file(number, SUMMARY))
        self._load_mark(expected=bool(contents.segments))
        self._load_snapshot(contents.snapshots)
        labels = self._labels(contents.segments)
        successors = [*(label.first_sequence for label in labels[1:]), None]
        for label, next_sequence in zip(labels, successors, strict=False):
            self._segment(label, next_sequence)
        self._account_for_missing(contents.segments)
        self._account_for_state()
        self._account_for_gaps()
        self.found = self.new_damage()
        self.report.segments = len(contents.segments)
        if contents.segments or self._mark is not None or self._snapshot is not None:
            self.report.end = ROT if self.found else TORN if self.report.cut else CLEAN
        self.report.seconds = (self._clock.monotonic_us() - started) / 1e6

    # --- what is there ---

    def _load_mark(self, *, expected: bool) -> None:
        self._mark = marks.read(self._files, self._directory.mark)
        if self._mark is not None:
            self.sequence, self.epoch = self._mark.sequence, self._mark.epoch
        self.report.mark_damaged = expected and self._mark is None

    def _load_snapshot(self, sequences: list[int]) -> None:
        for sequence in reversed(sequences):
            found = snapshots.read(self._directory, sequence)
            if found is None:
                self._set_snapshot_aside(sequence)
                continue
            self.snapshots.insert(0, sequence)
            self._snapshot = self._snapshot or found
        if self._snapshot is None:
            return
        self.report.snapshot = self._snapshot.sequence
        self.state = State(self._snapshot.journal)
        self.sequence = max(self.sequence, self._snapshot.sequence)
        self.epoch = max(self.epoch, self._snapshot.epoch)
        if self._restore is not None:
            self._restore(self._snapshot.state)

    def _set_snapshot_aside(self, sequence: int) -> None:
        path = self._directory.file(sequence, SNAPSHOT)
        self._files.make_directory(self._directory.quarantine)
        self._files.rename(path, self._directory.quarantine / path.name)
        self._files.sync_directory(self._directory.quarantine)
        self._files.sync_directory(self._directory.path)
        self.report.snapshots_damaged += 1

    def _labels(self, numbers: list[int]) -> list[Label]:
        labels = []
        for number in numbers:
            path = self._directory.segment(number)
            fd = self._files.open(path)
            try:
                label, intact = read_label(self._files, fd, number)
                size = self._files.size(fd)
            finally:
                self._files.close(fd)
            if intact and label is None:
                raise CorruptJournal(
                    f"{path} holds another segment than its name says: give it its own name back"
                )
            self._sizes[number] = size
            if label is None and number > FAR_OFF + max(self._sizes.keys() - {number}, default=0):
                raise CorruptJournal(
                    f"{path} has a segment's name, a number that no segment of this journal is near, and nothing of a segment in it: "
                    "move it away if it does not belong there"
                )
            if label is None:
                self.report.damage.append(Damage(number, 0, size, ROT))
                continue
            if not intact:
                self.report.damage.append(Damage(number, 0, START, HEADER))
            labels.append(label)
        return labels

    # --- one segment ---

    def _segment(self, label: Label, next_sequence: int | None) -> None:
        summary = summaries.read(self._directory, label.number)
        if summary is not None and summary.generation == label.generation:
            self._known(SegmentInfo.from_summary(label, summary))
            return
        info = SegmentInfo(label, START, SegmentIndex(), next_sequence, [])
        start = START
        if (active := self._indexed(label)) is not None and self._reaches(active):
            info.index, info.end, info.damage = summaries.index_of(active), active.end, list(active.damage)
            self.report.damage += info.damage
            start = self._behind_snapshot(info)
        self.infos.append(info)
        walk = self._walk(info, start)
        if next_sequence is None and not walk.sealed:
            self._end_of_journal(walk)
        else:
            self._successor_known(walk, next_sequence or info.index.last_sequence + 1)

    def _known(self, info: SegmentInfo) -> None:
        """A segment with a good summary: only what is above the snapshot is read, to be replayed."""
        self.infos.append(info)
        self.report.damage += info.damage
        if (info.next_sequence or 0) - 1 <= self._covered():
            return
        again = SegmentInfo(info.label, START, SegmentIndex(), info.next_sequence, [])
        walk = self._walk(again, self._behind_snapshot(info))
        known = {damage.position for damage in info.damage}
        if new := [bad for bad in walk.bad if bad.position not in known]:
            self._rotten(info, new)
            self._write_summary(info)

    def _covered(self) -> int:
        return self._snapshot.sequence if self._snapshot else 0

    def _indexed(self, label: Label) -> summaries.Summary | None:
        """What the snapshot knows of a segment that was being written when it was taken."""
        active = self._snapshot.active if self._snapshot else None
        return active if active is not None and active.generation == label.generation else None

    def _reaches(self, active: summaries.Summary) -> bool:
        """Whether the file is still as long as it was when the snapshot was taken."""
        return self._sizes.get(active.number, 0) >= active.end

    def _behind_snapshot(self, info: SegmentInfo) -> int:
        """Where in a segment whose index is known the frames begin that the snapshot does not cover, or a little before."""
        if info.index.last_sequence <= self._covered():
            return info.end
        return info.index.position_of(self._covered() + 1) or START

    def _walk(self, info: SegmentInfo, start: int) -> Walk:
        """Scan a segment from `start`, replaying what is above the snapshot."""
        walk = Walk(info)
        synced = self._synced_end(info.label)
        fd = self._files.open(self._directory.segment(info.number))
        try:
            walk.size = self._files.size(fd)
            scan = Scan(
                self._files, fd, info.label, position=start, limit=walk.size, stop_sequence=info.next_sequence
            )  # fmt: skip
            for item in scan:
                if isinstance(item, Bad):
                    walk.bad.append(item)
                    walk.trailing += 1
                    continue
                walk.trailing = 0
                if walk.above is None and item.header.end > synced:
                    walk.above = item.header.position
                self._take(item, info)
            walk.sealed = scan.sealed
            info.end = scan.end
        finally:
            self._files.close(fd)
        self.report.bytes += info.end - start
        return walk

    def _take(self, frame: Frame, info: SegmentInfo) -> None:
        head = frame.header
        spans = frame.spans()
        if head.sequence > info.index.last_sequence:
            info.index.add(head, spans)
        self._progress(head.bytes)
        self.sequence = max(self.sequence, head.sequence)
        self.epoch = max(self.epoch, head.epoch)
        if head.sequence <= self._covered():
            return
        self.report.frames += 1
        self.report.messages += head.messages
        for span in spans:
            expected = self.state.next_offsets.get(span.log, 0)
            if span.kind == MESSAGES.number and span.first > expected:
                self._gaps.append(Gap(info.number, head.position, span.log, expected, span.first))
        self.state.apply(spans, lambda: frame.sections)
        if self._replay is not None:
            self._replay(frame)

    def _synced_end(self, label: Label) -> int:
        """Up to which byte a segment is known to be synced, if it is the last one."""
        active = self._indexed(label)
        known = active.end if active is not None else START
        if self._mark is None or self._mark.segment < label.number:
            return known
        return max(known, self._mark.end) if self._mark.segment == label.number else sys.maxsize

    # --- how it ends ---

    def _successor_known(self, walk: Walk, next_sequence: int) -> None:
        """A segment that is sealed or has a successor. Whatever is bad in it is rot, unless the successor has taken its place."""
        info = walk.info
        # A rescue that began at the segment's first frame leaves nothing of it, and a crash may have come before it was sealed.
        void = max(info.index.last_sequence + 1, info.label.first_sequence) >= next_sequence
        bad = walk.bad[: len(walk.bad) - walk.trailing] if void else walk.bad
        if void and walk.trailing:
            info.end = walk.bad[-walk.trailing].position
        elif not (void or walk.sealed or walk.trailing):
            bad = [*bad, self._lost_tail(walk)]
        self._rotten(info, bad)
        self._finish(info, next_sequence, sealed=walk.sealed)

    def _lost_tail(self, walk: Walk) -> Bad:
        """The end of a segment is gone, and not even a header is left of it."""
        info = walk.info
        end = min(max(self._synced_end(info.label), info.end), walk.size)
        if end <= info.end:
            end = walk.size
        lost = Bad(info.number, info.end, end, None, [])
        info.end = end
        return lost

    def _end_of_journal(self, walk: Walk) -> None:
        info = walk.info
        synced = self._synced_end(info.label)
        tail = walk.bad[len(walk.bad) - walk.trailing :]
        if info.end < synced < sys.maxsize and (self._mark is not None or self._indexed(info.label)):
            tail = [
                *tail,
                Bad(info.number, info.end, synced, None, []),
            ]  # perhaps the file does not even reach that far
            info.end = synced
        elif not tail and (left := self._left_behind(walk)):
            tail = [Bad(info.number, info.end, left, None, [])]
        rot = [bad for bad in tail if bad.position < synced or self._mark is None]
        torn = tail[len(rot) :]
        if tail or walk.above is not None:
            self._give_back(info, max([info.end, *(bad.end for bad in tail)]))
        self._rotten(info, walk.bad[: len(walk.bad) - walk.trailing] + rot)
        self.report.cut += [of_bad(bad, TORN, self._directory.set_range_aside(*bad[:3])) for bad in torn]
        if tail or walk.above is not None:
            cut = min(walk.above or sys.maxsize, torn[0].position if torn else info.end)
            self._rescue(info, cut)

    def _give_back(self, info: SegmentInfo, end: int) -> None:
        """Cut off the room behind the last bytes that mean anything: on a full disk, copying needs it."""
        writer = Writer.reopened(self._directory, info.label, end)
        try:
            writer.trim()
        finally:
            writer.close()

    def _left_behind(self, walk: Walk) -> int | None:
        """Where bytes that are not zero end, behind the last frame of a file that was never used before."""
        info = walk.info
        if info.label.recycled or info.end >= walk.size:
            return None
        fd = self._files.open(self._directory.segment(info.number))
        try:
            rest = self._files.read(fd, walk.size - info.end, info.end).rstrip(b"\0")
        finally:
            self._files.close(fd)
        return info.end + len(rest) if rest else None

    def _rescue(self, info: SegmentInfo, cut: int) -> None:
        """Copy the good frames behind `cut` into a new segment, sync it, then end the old one at `cut`."""
        fd = self._files.open(self._directory.segment(info.number))
        try:
            scan = Scan(self._files, fd, info.label, position=cut, limit=self._files.size(fd))
            items = [item for item in scan if isinstance(item, Frame)]
            first = items[0].sequence if items else self.sequence + 1
            label = Label(
                self.next_number,
                self._files.random(),
                first,
                self._clock.now_us(),
                self.epoch,
                GAPS if items else 0,
            )
            writer = Writer.draft(self._directory, label, recycle=None, reserve=0)
            try:
                for frame in items:
                    writer.append_moved(frame)
                writer.sync()
                writer.publish(self._directory, recycle=None)
            finally:
                writer.close()
        finally:
            self._files.close(fd)
        self.report.rescued_frames += len(items)
        self._rewind(info, cut)
        self._finish(info, first, sealed=False)
        self.infos.append(SegmentInfo(label, writer.end, writer.index, None, []))
        self._mark = Mark(self.sequence, label.number, writer.end, info.index.newest, self.epoch)
        self._write_mark(self._mark)

    def _write_mark(self, mark: Mark) -> None:
        """What was rescued is synced: recovering again finds nothing to do."""
        file = MarkFile(self._files, self._directory.mark)
        try:
            file.write(mark)
            file.sync()
        finally:
            file.close()

    def _rewind(self, info: SegmentInfo, cut: int) -> None:
        """Forget what a segment holds behind `cut`."""
        info.index, info.end = SegmentIndex(), cut
        fd = self._files.open(self._directory.segment(info.number))
        try:
            for item in Scan(self._files, fd, info.label, limit=cut):
                if isinstance(item, Frame):
                    info.index.add(item.header, item.spans())
        finally:
            self._files.close(fd)

    def _finish(self, info: SegmentInfo, next_sequence: int, *, sealed: bool) -> None:
        """End a segment: seal it where it ends, unless it is, and write its summary."""
        writer = Writer.reopened(self._directory, info.label, -(-info.end // 8) * 8)
        try:
            if not sealed and writer.allocated < writer.end:
                # The zeros of a hole could complete a frame that was cut within its last bytes and is given up as lost.
                self._files.write(
                    writer.fd, b"\xff" * min(8, writer.end - writer.allocated), writer.allocated
                )
            if not sealed:
                writer.seal(sequence=next_sequence, time_us=info.index.newest, epoch=info.index.epoch)
            writer.trim()
            info.end = writer.end
        finally:
            writer.close()
        info.next_sequence = next_sequence
        self._write_summary(info)

    def _write_summary(self, info: SegmentInfo) -> None:
        summaries.write(
            self._directory,
            summaries.of(info.label, info.end, info.next_sequence or 0, info.index, info.damage),
        )
        self.report.summaries_rebuilt += 1

    # --- what was lost ---

    def _rotten(self, info: SegmentInfo, bad: list[Bad]) -> None:
        for item in bad:
            damage = of_bad(item, ROT, self._directory.set_range_aside(*item[:3]))
            info.damage.append(damage)
            self.report.damage.append(damage)

    def _account_for_missing(self, numbers: list[int]) -> None:
        """A segment that is neither there nor recorded as dropped was lost as a whole."""
        there = self.state.dropped.copy()
        for number in [*numbers, *(info.number for info in self.infos)]:
            there.add(number, number + 1)
        mark = self._mark or Mark(0, 0, 0, 0, 0)
        for gap in there.gaps(1, max([*numbers, mark.segment]) + 1):
            for number in gap:
                self.report.damage.append(
                    Damage(number, 0, mark.end if mark.segment == number else 0, MISSING)
                )

    def _account_for_state(self) -> None:
        """Without a snapshot, what was only in snapshots is gone: the rows of segments that were dropped because both covered them."""
        if self._snapshot is None and self.report.snapshots_damaged and len(self.state.dropped):
            self.report.damage.append(Damage(0, 0, 0, STATE))

    def _account_for_gaps(self) -> None:
        """Offsets that are missing behind damage, and that nobody cleaned, were in it."""
        blamed = False
        gaps = [*self._gaps, *self._gaps_between_segments()] if self.report.damage else []
        for gap in gaps:
            before = [
                d
                for d in self.report.damage
                if d.what != STATE and (d.segment, d.position) < (gap.segment, gap.position)
            ]
            lost = self.state.explained(gap.log, gap.first, gap.stop).gaps(gap.first, gap.stop)
            if before and lost:
                self._blame(max(before, key=lambda d: (d.segment, d.position)), gap.log, lost)
                blamed = True
        for info in self.infos:
            if blamed and info.sealed and info.damage:
                self._write_summary(info)

    def _gaps_between_segments(self) -> list[Gap]:
        """What the segments' indexes skip between them: also where a snapshot spared us from reading."""
        found: list[Gap] = []
        expected: dict[int, int] = {}
        for info in self.infos:
            for log, entry in info.index.logs.items():
                if entry.first > expected.get(log, 0):
                    found.append(Gap(info.number, START, log, expected.get(log, 0), entry.first))
                expected[log] = entry.last + 1
        return found

    def _blame(self, old: Damage, log: int, lost: list[range]) -> None:
        known = RangeSet()
        for damage in self.report.damage:
            for which, first, last in damage.spans:
                if which == log:
                    known.add(first, last + 1)
        new_ones = [gap for part in lost for gap in known.gaps(part.start, part.stop)]
        if not new_ones:
            return
        spans = [*old.spans, *((log, gap.start, gap.stop - 1) for gap in new_ones)]
        new = msgspec.structs.replace(old, spans=spans, messages=max(old.messages, known_messages(spans)))
        self.report.damage[self.report.damage.index(old)] = new
        for info in self.infos:
            info.damage = [new if damage is old else damage for damage in info.damage]

    def new_damage(self) -> list[Damage]:
        """The damage that no earlier owner has accounted for."""
        return [d for d in self.report.damage if (d.segment, d.position) not in self.state.accounted]

    def _snapshot_is_later(self, damage: Damage) -> bool:
        """Whether the snapshot was taken after what is damaged was written: then it knows every log's next offset."""
        active = self._snapshot.active if self._snapshot else None
        return active is not None and (damage.segment, damage.end) <= (active.number, active.end)

    def _longest(self) -> int:
        """How long a segment that is gone may have been."""
        return max(self._sizes.values(), default=limits.SEGMENT_BYTES)

    def losses(self) -> list[Rows]:
        """Rows that account for new damage: what was lost, and which offsets no log may use because they may have been."""
        now = self._clock.now_us()
        found: list[Rows] = []
        ahead = dict(self.state.next_offsets)
        for damage in self.new_damage():
            where = {"segment": damage.segment, "position": damage.position, "time": now}
            lost = [(log, first, last, DAMAGED) for log, first, last in damage.spans]
            for log, _, last in damage.spans:
                ahead[log] = max(ahead.get(log, 0), last + 1)
            if not damage.complete and not self._snapshot_is_later(damage):
                rows = (damage.bytes or self._longest()) // ROW_BYTES_MIN
                lost += [(log, start, start + rows - 1, GIVEN_UP) for log, start in ahead.items() if rows]
                ahead = {log: start + rows for log, start in ahead.items()}
            found += [
                Rows(CLEANED, log, 1, {**where, "first": first, "last": last, "outcome": outcome})
                for log, first, last, outcome in lost
            ]
            if not lost:
                found.append(Rows(CLEANED, 0, 1, where))
        return found
