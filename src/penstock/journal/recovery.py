"""Opening after whatever happened: scan, tell clean from torn from rotten, mend, and say so.

Theory of operation
-------------------
1. The mark, the newest whole snapshot and the segments' headers are read (`labels`). What does not belong there stops the start, and nothing was touched.
   Then drafts (`*.tmp`) are thrown away, and damaged snapshots are set aside.
2. Segments are taken in order. One that the snapshot covers is known from its summary; the others are scanned, and the frames above
   the snapshot are replayed. A missing or damaged summary is made again.
3. How each segment ends is judged by `ending`. Rot is copied into quarantine and skipped, its messages count as damaged, everything around it is
   served. A torn end was never acknowledged: a copy is set aside, and it is cut off.
4. Good frames above the mark are perhaps only in the kernel's memory, perhaps behind a failed sync: they are copied into a new segment, which is synced
   before anybody is served. If the mark itself is damaged, that is the whole last segment.
5. What was lost (see `losses`) is accounted for in the commit that begins the epoch: messages that are known to be gone, and, where it is not known what
   a lost range held, offsets that no log uses any more because it may have. An offset that somebody may have seen is never given to another message.

A crash at any step leaves something that the next recovery understands: copies are made before the cut; the new segment is synced
before it gets its name; from then on the rule "a segment ends where its successor begins" makes the old tail void; and the seal that
then ends the old segment is written to the same place again if need be. Recovering twice gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import zip_longest
from typing import Final

from msgspec import structs

from penstock import limits
from penstock.clock import Clock
from penstock.errors import CorruptJournal
from penstock.journal import labels
from penstock.journal import mark as marks
from penstock.journal import snapshot as snapshots
from penstock.journal import summary as summaries
from penstock.journal.damage import new_parts, of_bad
from penstock.journal.directory import SNAPSHOT, SUMMARY, Contents, Directory
from penstock.journal.ending import Bounds, Ending, Walk, bounds_of, bounds_within, judge, look_through
from penstock.journal.files import as_far_as_there_is_room
from penstock.journal.frame import Frame
from penstock.journal.index import SegmentIndex
from penstock.journal.kinds import CLEANED
from penstock.journal.losses import Promise, Sightings, chain, furthest, named
from penstock.journal.mark import Mark, MarkFile
from penstock.journal.rows import Rows
from penstock.journal.segment import GAPS, START, Bad, Label, Scan, Writer
from penstock.journal.snapshot import Snapshot
from penstock.journal.state import DAMAGED, GIVEN_UP, UNKNOWN, State, Where
from penstock.journal.view import SegmentInfo
from penstock.model.damage import MISSING, ROT, STATE, TORN, Damage, Report

CLEAN: Final = "clean"

#: An unreadable file whose number is this far above the others' is not a segment that rotted: it does not belong there.
FAR_OFF: Final = 1000

Restore = Callable[[bytes], None]
Replay = Callable[[Frame], None]
Progress = Callable[[int], None]


def _commit(frame: Frame) -> tuple[int, int, int, int]:
    """The same for a frame and for its copy in another place."""
    head = frame.header
    return head.sequence, head.time_us, head.epoch, head.body_bytes


def rows_of(damage: Damage, lost: list[tuple[int, int, int, int]], now_us: int) -> list[Rows]:
    """Rows that account for damage, and for what was `lost` by it: (log, first, last, outcome)."""
    where = {"segment": damage.segment, "position": damage.position, "end": damage.reach, "time": now_us}
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for log, first, last, outcome in lost:
        alike.setdefault((log, outcome), []).append((first, last))
    rows = []
    for (log, outcome), ranges in alike.items():
        for start in range(0, len(ranges), limits.RECORDED_AT_ONCE):
            firsts, lasts = zip(*ranges[start : start + limits.RECORDED_AT_ONCE], strict=True)
            columns = {**where, "first": list(firsts), "last": list(lasts), "outcome": outcome}
            rows.append(Rows(CLEANED, log, len(firsts), columns))
    return rows or [Rows(CLEANED, 0, 1, where)]


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
        # Of segments in which damage was found now: what they are known to have held, what is rotten in them by segment and position, what was
        # seen in those that have been changed since, and where damage begins that may have cost more than its bytes.
        self._promises: dict[int, Promise] = {}
        self._bad: dict[Where, Bad] = {}
        self._seen: dict[int, Sightings] = {}
        self._endless: set[Where] = set()
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
        used = [self._mark.segment if self._mark else 0]
        used += [info.number for info in self.infos] + [damage.segment for damage in self.report.damage]
        return 1 + max([*used, *(numbers.stop - 1 for numbers in self.state.dropped)])

    @property
    def snapshot_us(self) -> int | None:
        """When the newest whole snapshot was taken, by the last commit that it covers."""
        return None if self._snapshot is None else self._snapshot.time_us

    def run(self) -> None:
        started = self._clock.monotonic_us()
        contents = self._directory.contents()
        self.free = contents.free
        self._load_mark(expected=bool(contents.segments))
        damaged = self._load_snapshot(contents.snapshots)
        chain = self._labels(contents.segments)
        # Up to here nothing is touched: what does not belong here stops the start.
        self._tidy_up(contents, damaged)
        if self._restore is not None and self._snapshot is not None:
            self._restore(self._snapshot.state)
        for label, successor in zip_longest(chain, chain[1:]):
            self._segment(label, successor)
        # Not before all is replayed: a later segment may say what was found before, and what was cleaned.
        self._find_again_what_is_on_record()
        self._account_for_missing(contents.segments)
        self._account_for_state()
        self._recall_what_is_gone()
        self._name_losses()
        for number in sorted(set(contents.summaries) - set(contents.segments)):
            self._files.unlink(self._directory.file(number, SUMMARY))
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

    def _load_snapshot(self, sequences: list[int]) -> list[int]:
        """Load the newest whole one; those that are damaged."""
        damaged: list[int] = []
        for sequence in reversed(sequences):
            found = snapshots.read(self._directory, sequence)
            if found is None:
                damaged.append(sequence)
                continue
            self.snapshots.insert(0, sequence)
            self._snapshot = self._snapshot or found
        self.report.snapshots_damaged = len(damaged)
        if self._snapshot is not None:
            self.report.snapshot = self._snapshot.sequence
            self.state = State(self._snapshot.journal)
            self.sequence = max(self.sequence, self._snapshot.sequence)
            self.epoch = max(self.epoch, self._snapshot.epoch)
        return damaged

    def _tidy_up(self, contents: Contents, damaged: list[int]) -> None:
        for name in contents.drafts:
            self._files.unlink(self._directory.path / name)
        for sequence in damaged:
            with as_far_as_there_is_room():  # where it is, it is as useless, and found so again
                self._directory.move_aside(self._directory.file(sequence, SNAPSHOT))

    def _labels(self, numbers: list[int]) -> list[Label]:
        found = labels.load(self._directory, numbers, self._mark, self._snapshot)
        self._sizes = {one.number: one.size for one in found}
        for one, before in zip(found, [0, *numbers], strict=False):
            path = self._directory.segment(one.number)
            if one.foreign:
                raise CorruptJournal(f"{path} {one.foreign}")
            if one.label is None and one.number > FAR_OFF + before:
                raise CorruptJournal(
                    f"{path} has a segment's name, a number that no segment of this journal is near, and nothing of a segment in it: "
                    "move it away if it does not belong there"
                )
            self.report.damage += [one.damage] if one.damage is not None else []
        return [one.label for one in found if one.label is not None]

    # --- one segment ---

    def _segment(self, label: Label, successor: Label | None) -> None:
        summary = summaries.read(self._directory, label.number)
        if summary is not None and summary.generation == label.generation:
            self._known(SegmentInfo.from_summary(label, summary))
            return
        info = SegmentInfo(label, START, SegmentIndex(), None, [])
        start = START
        if (active := self._indexed(label)) is not None and self._reaches(active):
            info.index, info.end, info.damage = summaries.index_of(active), active.end, list(active.damage)
            self.report.damage += info.damage
            # Without a mark nothing vouches for what is behind the snapshot, and where its frames end is known only from those before.
            start = self._behind_snapshot(info) if self._mark is not None else START
        self.infos.append(info)
        synced = active.end if active is not None else START
        walk = self._walk(info, start, bounds_of(label, successor, self._mark, synced=synced))
        ending = judge(walk)
        if ending.rot and start > START:  # the snapshot has spared us from looking at all of it
            walk, _ = self._looked_through(label, walk.bounds)
            ending = judge(walk)
        if ending.endless:
            self._endless.add((label.number, ending.rot[-1].position))
        info.end = ending.end
        if not ending.finished:
            self._end_of_journal(info, walk, ending)
            return
        self._rotten(info, ending.rot)
        if walk.seal is None and successor is not None:
            self._keep_what_is_void(walk, ending, successor)
        following = walk.seal.sequence if walk.seal is not None else walk.bounds.successor
        self._finish(info, following or walk.last_sequence + 1, sealed=walk.seal is not None)

    def _known(self, info: SegmentInfo) -> None:
        """A segment with a good summary: only what is above the snapshot is read, to be replayed. All of it, if the file is too short."""
        self.infos.append(info)
        self.report.damage += info.damage
        cut = self._sizes.get(info.number, 0) < info.end
        if info.index.last_sequence <= self._covered() and not cut:
            return
        again = SegmentInfo(info.label, START, SegmentIndex(), info.next_sequence, [])
        start = START if cut else self._behind_snapshot(info)
        walk = self._walk(again, start, bounds_within(info.end, info.next_sequence))
        if judge(walk).rot:
            self._look_again(info)

    def _look_again(self, info: SegmentInfo) -> None:
        """Look at every byte of a segment in which something is wrong, and take in what was not known before."""
        walk, _ = self._looked_through(info.label, bounds_within(info.end, info.next_sequence))
        if self._rotten(info, judge(walk).rot, stays=True):
            self._promises[info.number] = Promise(info.index)

    def _looked_through(self, label: Label, bounds: Bounds) -> tuple[Walk, Sightings]:
        with self._files.opened(self._directory.segment(label.number)) as fd:
            return look_through(self._files, fd, label, bounds)

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

    def _walk(self, info: SegmentInfo, start: int, bounds: Bounds) -> Walk:
        """Go through a segment from `start`, replaying what is above the snapshot."""
        walk = Walk(info.label, bounds, last_sequence=info.index.last_sequence)
        with self._files.opened(self._directory.segment(info.number)) as fd:
            for item in walk.items(self._files, fd, start):
                if isinstance(item, Frame):
                    self._take(item, info)
        self.report.bytes += walk.end - start
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
        self.state.apply(spans, lambda: frame.sections)
        if self._replay is not None:
            self._replay(frame)

    # --- how it ends ---

    def _keep_what_is_void(self, walk: Walk, ending: Ending, successor: Label) -> None:
        """What is behind the end of a segment is about to be cut off. The successor has taken it over; what it does not hold is kept aside."""
        end = ending.end
        for bad in walk.tail if ending.unsealed else ():
            self._directory.set_range_aside(*bad[:3])
        void = self._frames_behind(walk.label, end)
        held = {_commit(frame) for frame in self._frames_behind(successor, START)} if void else set()
        if any(_commit(frame) not in held for frame in void):
            bad = Bad(walk.label.number, end, void[-1].header.end, None, [])
            self.report.cut.append(of_bad(bad, TORN, self._directory.set_range_aside(*bad[:3])))

    def _frames_behind(self, label: Label, position: int) -> list[Frame]:
        """The good frames of a segment from a position on, whatever follows it."""
        with self._files.opened(self._directory.segment(label.number)) as fd:
            scan = Scan(self._files, fd, label, position=position, limit=self._files.size(fd))
            return [item for item in scan if isinstance(item, Frame)]

    def _end_of_journal(self, info: SegmentInfo, walk: Walk, ending: Ending) -> None:
        rotten_end = len(ending.rot) > len(walk.bad) - walk.trailing
        mend = walk.above is not None or rotten_end or bool(ending.torn)
        if ending.rot:  # before its frames are copied elsewhere
            self._seen[info.number] = self._looked_through(info.label, walk.bounds)[1]
        if mend:
            self._give_back(info, max([info.end, *(bad.end for bad in ending.rot + ending.torn)]))
        self._rotten(info, ending.rot, stays=not mend)
        self.report.cut += [
            of_bad(bad, TORN, self._directory.set_range_aside(*bad[:3])) for bad in ending.torn
        ]
        if mend:
            cut = ending.torn[0].position if ending.torn else info.end
            self._rescue(info, min(cut, cut if walk.above is None else walk.above))

    def _give_back(self, info: SegmentInfo, end: int) -> None:
        """Cut off the room behind the last bytes that mean anything: on a full disk, copying needs it."""
        writer = Writer.reopened(self._directory, info.label, end)
        try:
            writer.trim()
        finally:
            writer.close()

    def _rescue(self, info: SegmentInfo, cut: int) -> None:
        """Copy the good frames behind `cut` into a new segment, sync it, then end the old one at `cut`."""
        items = self._frames_behind(info.label, cut)
        first = items[0].sequence if items else self.sequence + 1
        flags = GAPS if items else 0
        label = Label(self.next_number, self._files.random(), first, self._clock.now_us(), self.epoch, flags)
        writer = Writer.draft(self._directory, label, recycle=None, reserve=0)
        try:
            for frame in items:
                writer.append_moved(frame)
            writer.sync()
            writer.publish(self._directory, recycle=None)
        finally:
            writer.close()
        self.report.rescued_frames += len(items)
        if info.number in self._seen:  # where they came from
            self._seen[label.number] = Sightings(label.number)
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
        with self._files.opened(self._directory.segment(info.number)) as fd:
            for item in Scan(self._files, fd, info.label, limit=cut):
                if isinstance(item, Frame):
                    info.index.add(item.header, item.spans())
                else:  # perhaps below the snapshot, where nobody has looked yet
                    self._rotten(info, [item])

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
        found = summaries.of(info.label, info.end, info.next_sequence or 0, info.index, info.damage)
        with as_far_as_there_is_room():  # it only saves time
            summaries.write(self._directory, found)
            self.report.summaries_rebuilt += 1

    # --- what was lost ---

    def _rotten(self, info: SegmentInfo, rot: list[Bad], *, stays: bool = False) -> bool:
        """Take in what is rotten in a segment, and keep a copy; whether any of it was not known before. Where it stays there may be no room for that."""
        new = [part for bad in rot for part in new_parts(bad, info.damage)]
        for item in new:
            copy = None
            with as_far_as_there_is_room() if stays else nullcontext():
                copy = self._directory.set_range_aside(*item[:3])
            damage = of_bad(item, ROT, copy)
            info.damage.append(damage)
            self.report.damage.append(damage)
            self._bad[damage.segment, damage.position] = item
        return bool(new)

    def _account_for_missing(self, numbers: list[int]) -> None:
        """A segment that is neither there nor recorded as dropped was lost as a whole."""
        mark = self._mark or Mark(0, 0, 0, 0, 0)
        there = [*numbers, *(info.number for info in self.infos)]
        last = self.infos[-1] if self.infos else None
        sealed = last.number if last is not None and last.sealed else 0
        top = labels.highest(self._directory, numbers, self._mark, self._snapshot, sealed=sealed)
        for number in self.state.missing_segments(there, up_to=top):
            end = mark.end if mark.segment == number else 0
            self.report.damage.append(Damage(number, 0, end, MISSING))

    def _recall_what_is_gone(self) -> None:
        """Of a segment that is gone, or of which nothing can be read, its summary may still say what it held."""
        for damage in self.new_damage():
            summary = summaries.read(self._directory, damage.segment) if damage.whole_file else None
            if summary is not None and not summary.damage:
                self._promises[damage.segment] = Promise(summaries.index_of(summary))

    def _account_for_state(self) -> None:
        """Without a snapshot, what was only in snapshots is gone: the rows of segments that were dropped because both covered them.

        Its position is how many segments are gone, so that it is new when it happens again after more of them went.
        """
        if self._snapshot is None and len(self.state.dropped):
            gone = self._segments_gone()
            self.report.damage.append(Damage(0, gone, gone, STATE))

    def _segments_gone(self) -> int:
        return self.next_number - 1 - len({*self._sizes, *(info.number for info in self.infos)})

    def _find_again_what_is_on_record(self) -> None:
        """Damage that an owner came across while reading, where a snapshot spares us from looking."""
        known = {(damage.segment, damage.position) for damage in self.report.damage}
        unseen = {segment for segment, position in self.state.accounted.keys() - known if position >= START}
        for info in self.infos:
            if info.number in unseen:
                self._look_again(info)

    def _name_losses(self) -> None:
        """Say of all damage which messages it cost: what is on record, or else what is missing around it and nobody recorded."""
        state = self.state
        self._tell_what_is_on_record()
        for old in list(self.report.damage):
            bad = self._bad.get((old.segment, old.position))
            if bad is not None and bad.end == old.end and self._is_new(old):
                spans, messages = state.unrecorded(bad)
                self._exchange(old, structs.replace(old, spans=spans, messages=messages))
        wounds = [damage for damage in self.new_damage() if damage.what in (ROT, MISSING)]
        if not all(damage.complete for damage in wounds):
            hurt = {damage.segment for damage in wounds}
            found = [self._sightings(info, hurt) for info in self.infos]
            gaps = state.unexplained(
                chain(found, furthest(state.next_offsets, self._promises.values(), wounds))
            )
            for old, new in zip(
                wounds, named(wounds, gaps, self._promises, found, self.report.damage), strict=True
            ):
                # A promise that was made after the damage says nothing of it.
                fresh = old.whole_file or (old.segment, old.position) in self._bad
                self._exchange(old, new if fresh else structs.replace(new, frames=old.frames))
        for info in self.infos:
            if info.sealed and any(damage.segment == info.number for damage in self.new_damage()):
                self._write_summary(info)

    def _tell_what_is_on_record(self) -> None:
        """Damage that an earlier owner has recorded is told as it was then, whatever is left there; what it has grown by is new."""
        state = self.state
        for old in list(self.report.damage):
            if old.what != ROT or old.position < START:
                continue
            left = state.parts_not_recorded(old.segment, old.position, old.end)
            if left != [range(old.position, old.end)] and (
                left or (old.segment, old.position) not in state.accounted
            ):
                self._exchange(
                    old, *(Damage(old.segment, part.start, part.stop, ROT, copy=old.copy) for part in left)
                )
        told = {(damage.segment, damage.position): damage for damage in self.report.damage}
        for where, end in state.accounted.items():
            spans = state.lost_to(*where)
            if where in told and spans:
                old = told[where]
                # What it has grown by is on record by itself, once it is.
                new = structs.replace(old, end=min(old.end, end or old.end), spans=[])
                self._exchange(old, new.costing(spans))
            elif spans:
                what = MISSING if end == limits.OFFSET_MAX else ROT
                self.report.damage.append(Damage(*where, 0 if what == MISSING else end, what).costing(spans))

    def _sightings(self, info: SegmentInfo, hurt: set[int]) -> Sightings:
        if info.number in self._seen:
            return self._seen[info.number]
        if info.number not in hurt:
            return Sightings.told_by(info.number, info.index)
        return self._looked_through(info.label, bounds_within(info.end, info.next_sequence))[1]

    def _exchange(self, old: Damage, *new: Damage) -> None:
        """Tell of damage otherwise, in the report and in what is known of its segment."""
        for listed in (self.report.damage, *(info.damage for info in self.infos if old in info.damage)):
            at = listed.index(old)
            listed[at : at + 1] = new

    def new_damage(self) -> list[Damage]:
        """The damage that no earlier owner has accounted for."""
        return [damage for damage in self.report.damage if self._is_new(damage)]

    def _is_new(self, damage: Damage) -> bool:
        return bool(self.state.parts_not_recorded(damage.segment, damage.position, damage.reach))

    def _snapshot_is_later(self, damage: Damage) -> bool:
        """Whether the snapshot was taken after what is damaged was written: then it knows every log's next offset."""
        active = self._snapshot.active if self._snapshot else None
        if active is None:
            return False
        if damage.segment == active.number:
            return not damage.whole_file and not self._is_endless(damage) and damage.end <= active.end
        return damage.segment < active.number

    def _bytes_gone(self, damage: Damage) -> int:
        """How many bytes of frames damage may have cost. Where nothing tells how long a file was, it was as long as a segment gets."""
        longest = max([limits.SEGMENT_BYTES, *self._sizes.values()]) + limits.FRAME_BYTES_MAX
        if damage.what == STATE:
            return longest * damage.position
        return longest if damage.whole_file or self._is_endless(damage) else damage.bytes

    def _is_endless(self, damage: Damage) -> bool:
        return (damage.segment, damage.position) in self._endless

    def losses(self) -> list[Rows]:
        """Rows that account for new damage: what was lost, and which offsets no log may use because they may have been."""
        now = self._clock.now_us()
        found: list[Rows] = []
        ahead, floor = dict(self.state.next_offsets), self.state.floor
        for damage in self.new_damage():
            lost = [(log, first, last, DAMAGED) for log, first, last in damage.spans]
            for log, _, last in damage.spans:
                ahead[log] = max(ahead.get(log, 0), last + 1)
            unknown = not damage.complete or self._is_endless(damage)
            if unknown and not self._snapshot_is_later(damage):
                rows = self._bytes_gone(damage) // limits.ROW_BYTES_MIN
                behind = {log: min(start + rows, limits.OFFSET_MAX) for log, start in ahead.items()}
                lost += [
                    (log, ahead[log], stop - 1, GIVEN_UP) for log, stop in behind.items() if stop > ahead[log]
                ]
                ahead, floor = behind, floor + rows
                lost += [(0, 0, floor - 1, UNKNOWN)] if rows else []
            found += rows_of(damage, lost, now)
        return found
