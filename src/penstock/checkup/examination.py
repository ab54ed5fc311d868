"""One segment, looked at byte by byte: what is wrong in it, and what it says of messages that may be elsewhere.

Theory of operation
-------------------
`examine` scans a segment as recovery does, decodes every column of every good frame (`soundness`), and tells apart what is bad in the same
way: a bad end above the mark is torn (a crash left it, nobody was told that it was written), anything else is rot. It writes nothing.

Besides its findings, an examination keeps what is needed to account for messages across segments (`checkup`):

- the sequence numbers that are there;
- for each log its first and last offset, and the *gaps* between frames. A gap between two frames with nothing missing between them was
  left by the writer; one with sequence numbers missing in it may have been lost;
- what its rows record: names, cleaned offsets, dropped segments (`state.State`).

The owner may rotate, rewrite, drop or recycle the file meanwhile. A file with a new generation is `Moved`, never damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from penstock.checkup import soundness
from penstock.journal import frame as frames
from penstock.journal.damage import ROT, TORN, known_messages, offsets
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.index import SegmentIndex
from penstock.journal.rows import MESSAGES, Span, intact_spans
from penstock.journal.segment import GAPS, START, Bad, Label, Scan
from penstock.journal.state import State
from penstock.journal.view import Moved, current_generation
from penstock.ranges import RangeSet

#: The checksums are right and a column cannot be read.
COLUMNS: Final = "columns"
#: Only the frame that ends a segment is damaged or gone, which costs no message.
SEAL: Final = "seal"
SUMMARY: Final = "summary"
SNAPSHOT: Final = "snapshot"
MARK: Final = "mark"
#: Messages are gone, nobody recorded why, and no damage is left that could have held them.
OFFSETS: Final = "offsets"
#: A file that looks like one of ours and is none, or that has another segment's name.
FOREIGN: Final = "foreign"
#: Good frames above the mark: written, perhaps not synced. Opening rescues them.
UNSYNCED: Final = "unsynced"
#: Something a crash or an interrupted step left, which the next opening tidies up.
LEFTOVER: Final = "leftover"

Spans = list[tuple[int, int, int]]


class Finding(msgspec.Struct, frozen=True):
    """Something in a journal's directory that is not as it should be: which file, which bytes, which messages.

    `spans` names the messages as (log, first offset, last offset); `messages` counts them, and may know of more.
    """

    what: str
    file: str
    segment: int | None = None
    position: int = 0
    end: int = 0
    frames: int = 0
    messages: int = 0
    spans: Spans = []
    detail: str = ""

    @property
    def bytes(self) -> int:
        return self.end - self.position

    @property
    def key(self) -> tuple[str, str, int]:
        """The same in two looks at the same damage."""
        return self.what, self.file, self.position

    def blamed(self, log: int, first: int, last: int) -> Finding:
        """The same finding, which also cost these messages."""
        spans = [*self.spans, (log, first, last)]
        return msgspec.structs.replace(self, spans=spans, messages=max(self.messages, known_messages(spans)))


class Place(NamedTuple):
    """Where a frame is; places compare in the order in which frames were written."""

    segment: int
    position: int
    sequence: int


class Gap(NamedTuple):
    """Offsets of a log that are not between two frames where they could have been."""

    log: int
    start: int
    stop: int
    after: Place
    before: Place


class Reach:
    """What a segment holds of one log, from where to where."""

    __slots__ = ("first", "first_place", "last_place", "stop")

    def __init__(self, first: int, place: Place) -> None:
        self.first = first
        self.first_place = place
        self.stop = first
        self.last_place = place


class Examination:
    """What looking at one segment found."""

    def __init__(self, file: str, label: Label) -> None:
        self.file = file
        self.label = label
        self.size = 0
        self.end = START
        self.seal: frames.Header | None = None
        self.index = SegmentIndex()
        self.sequences = RangeSet()
        self.reaches: dict[int, Reach] = {}
        self.gaps: list[Gap] = []
        self.state = State()
        self.bad: list[Bad] = []
        self.trailing = 0
        self.unsynced = 0
        self.damage: list[Finding] = []
        self.notes: list[Finding] = []

    @property
    def number(self) -> int:
        return self.label.number

    @property
    def messages(self) -> int:
        return self.index.messages

    # --- while scanning ---

    def take(self, frame: Frame) -> None:
        """A good frame: remember what it says."""
        head, spans = frame.header, frame.spans()
        self.trailing = 0
        self.index.add(head, spans)
        self.sequences.add(head.sequence, head.sequence + 1)
        self.state.apply(spans, lambda: frame.sections)
        place = Place(self.number, head.position, head.sequence)
        for span in spans:
            if span.kind == MESSAGES.number:
                self._reach(span, place)

    def _reach(self, span: Span, place: Place) -> None:
        reach = self.reaches.get(span.log)
        if reach is None:
            reach = self.reaches[span.log] = Reach(span.first, place)
        elif span.first > reach.stop:
            self.gaps.append(Gap(span.log, reach.stop, span.first, reach.last_place, place))
        reach.stop = max(reach.stop, span.last + 1)
        reach.last_place = place

    def unsound(self, frame: Frame, flaw: str) -> None:
        """A frame whose checksums are right and whose content is not."""
        head = frame.header
        self.trailing = 0
        spans = offsets(intact_spans(frame.body))
        self.damage.append(
            Finding(
                COLUMNS, self.file, self.number, head.position, head.end, 1, head.messages, spans,
                f"{flaw}; the checksums are right",
            )
        )  # fmt: skip

    # --- afterwards ---

    def rotten(self, bad: Bad, detail: str = "") -> None:
        what, cost = ROT, offsets(bad.spans)
        if bad.header is not None and bad.header.seal:
            what, detail = SEAL, "the frame that ends the segment does not match its checksum"
        self.damage.append(
            Finding(
                what, self.file, self.number, bad.position, bad.end, 1 if bad.header else 0,
                max(bad.header.messages if bad.header else 0, known_messages(cost)), cost, detail or _reason(bad),
            )
        )  # fmt: skip

    def torn(self, bad: Bad) -> None:
        spans = offsets(bad.spans)
        messages = bad.header.messages if bad.header else 0
        self.notes.append(
            Finding(
                TORN, self.file, self.number, bad.position, bad.end, 1 if bad.header else 0, messages, spans,
                "a crash cut it off before it was acknowledged; opening the journal cuts it",
            )
        )  # fmt: skip

    def note(self, what: str, position: int, end: int, detail: str) -> None:
        self.notes.append(Finding(what, self.file, self.number, position, end, detail=detail))


def _reason(bad: Bad) -> str:
    if bad.header is None:
        return "there must be a frame, and its header is not whole"
    return "the frame does not match its checksum, or is cut short"


class Bounds(NamedTuple):
    """What is known of a segment from outside it.

    `limit`: look no further (the owner is writing there). `synced`: up to here it was on the disk. `successor`: the first
    sequence number of the next segment, if there is one. `finished`: a later segment is marked, so this one must be sealed.
    `marked`: there is a mark; without one a bad end may have been acknowledged.
    """

    limit: int | None
    synced: int
    successor: int | None
    finished: bool
    marked: bool


def examine(
    directory: Directory,
    label: Label,
    bounds: Bounds,
    progress: Callable[[int], None],
) -> Examination:
    """Look at every byte of a segment; `Moved` if it is no longer the file that its label was read from."""
    files = directory.files
    path = directory.segment(label.number)
    found = Examination(path.name, label)
    try:
        fd = files.open(path)
    except FileNotFoundError as error:
        raise Moved from error
    try:
        _scan(files, fd, found, bounds, progress)
        if bounds.finished or bounds.successor is not None or found.seal is not None:
            _judge_finished(found, bounds)
        else:
            _judge_end(files, fd, found, bounds)
        _check_generation(files, fd, label)
    finally:
        files.close(fd)
    return found


def _check_generation(files: Files, fd: int, label: Label) -> None:
    if current_generation(files, fd) not in (label.generation, None):
        raise Moved


def _scan(files: Files, fd: int, found: Examination, bounds: Bounds, progress: Callable[[int], None]) -> None:
    found.size = files.size(fd)
    limit = found.size if bounds.limit is None else min(bounds.limit, found.size)
    scan = Scan(files, fd, found.label, limit=limit, stop_sequence=bounds.successor)
    before = START
    for item in scan:
        if isinstance(item, Bad):
            _check_generation(files, fd, found.label)
            found.bad.append(item)
            found.trailing += 1
        elif (flaw := soundness.flaw(item)) is not None:
            found.unsound(item, flaw)
        else:
            found.take(item)
            found.unsynced += item.header.end > bounds.synced
        progress(scan.end - before)
        before = scan.end
    found.end = scan.end
    if scan.sealed:
        at = scan.end - frames.OVERHEAD
        found.seal = frames.header(memoryview(files.read(fd, frames.HEADER.size, at)), 0, None)
    progress(found.size - before)


def _judge_finished(found: Examination, bounds: Bounds) -> None:
    """A segment that is sealed or has a successor: what is bad in it is rot, unless the successor has taken its place."""
    following = found.seal.sequence if found.seal is not None else bounds.successor or 0
    void = max(found.index.last_sequence + 1, found.label.first_sequence) >= following
    bad = found.bad
    if void:
        bad = bad[: len(bad) - found.trailing] + [b for b in bad[len(bad) - found.trailing :] if _is_seal(b)]
    for item in bad:
        found.rotten(item)
    if found.seal is not None:
        _judge_sealed(found, following, void=void)
    elif not any(map(_is_seal, found.bad)):
        _judge_unsealed(found, following, void=void, finished=bounds.finished)


def _is_seal(bad: Bad) -> bool:
    return bad.header is not None and bad.header.seal


def _judge_sealed(found: Examination, following: int, *, void: bool) -> None:
    """Frames may have been gone before the seal was written: recovery seals what is left of a segment."""
    label = found.label
    if (
        void
        or found.trailing
        or label.flags & GAPS
        or not (found.index.frames or following > label.first_sequence)
    ):
        return
    at = found.end - frames.OVERHEAD
    missing = following - max(found.index.last_sequence + 1, label.first_sequence)
    if missing > 0:
        detail = "the last commits are gone; the segment was sealed without them"
        found.damage.append(Finding(ROT, found.file, found.number, at, at, missing, detail=detail))


def _judge_unsealed(found: Examination, following: int, *, void: bool, finished: bool) -> None:
    only_seal = found.size - found.end <= frames.OVERHEAD and not found.trailing
    gone_on_purpose = bool(found.label.flags & GAPS) and found.size - found.end == frames.OVERHEAD
    if not finished:
        detail = "recovery was interrupted before it sealed this segment; opening the journal goes on with it"
        found.note(LEFTOVER, found.end, found.size, detail)
    elif (void and only_seal) or (gone_on_purpose and only_seal):
        found.damage.append(
            Finding(
                SEAL, found.file, found.number, found.end, found.size,
                detail="the frame that ends the segment is damaged or gone",
            )
        )  # fmt: skip
    elif not found.trailing:
        missing = max(following - found.index.last_sequence - 1, 0)
        detail = "the end of the segment is damaged or gone"
        found.damage.append(
            Finding(ROT, found.file, found.number, found.end, found.size, missing, detail=detail)
        )


def _judge_end(files: Files, fd: int, found: Examination, bounds: Bounds) -> None:
    """The segment that is, or was, being written."""
    tail = found.bad[len(found.bad) - found.trailing :]
    for item in found.bad[: len(found.bad) - found.trailing]:
        found.rotten(item)
    if not tail and found.end < bounds.synced:
        tail = [Bad(found.number, found.end, bounds.synced, None, [])]
    elif tail and tail[-1].end < bounds.synced:  # what was behind it is gone as well
        tail[-1] = tail[-1]._replace(end=bounds.synced)
    elif not tail and bounds.limit is None and (left := _left_behind(files, fd, found)):
        tail = [Bad(found.number, found.end, left, None, [])]
    for item in tail:
        if item.position < bounds.synced or not bounds.marked:
            found.rotten(item)
        elif bounds.limit is None:
            found.torn(item)
    if found.unsynced and bounds.marked and bounds.limit is None:
        detail = f"{found.unsynced} commits above the mark; opening the journal copies and syncs them"
        found.note(UNSYNCED, bounds.synced, found.end, detail)


def _left_behind(files: Files, fd: int, found: Examination) -> int | None:
    """Where bytes that are not zero end, behind the last frame of a file that was never used before."""
    if found.label.recycled or found.end >= found.size:
        return None
    rest = files.read(fd, found.size - found.end, found.end).rstrip(b"\0")
    return found.end + len(rest) if rest else None
