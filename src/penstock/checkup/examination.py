"""One segment, looked at byte by byte: what is wrong in it, and what it says of messages that may be elsewhere.

Theory of operation
-------------------
`examine` scans a segment as recovery does, decodes every column of every good frame (`soundness`), and tells apart what is bad in the same
way: a bad end above the mark is torn (a crash left it, nobody was told that it was written), anything else is rot. It writes nothing.

Besides its findings, an examination keeps what is needed to account for messages across segments (`checkup`):

- the sequence numbers that are there, and those that are *told*: in damage of which it is known which messages it cost;
- what it holds of each log, and the gaps between frames (`losses.Sightings`). A gap between two frames with nothing missing between them was
  left by the writer; one with sequence numbers missing in it may have been lost;
- what its rows record: names, cleaned offsets, dropped segments (`state.State`).

The owner may rotate, rewrite, drop or recycle the file meanwhile. A file with a new generation is `Moved`, never damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.checkup import soundness
from penstock.journal import frame as frames
from penstock.journal.damage import offsets
from penstock.journal.directory import Directory
from penstock.journal.ending import Bounds, Ending, Walk, judge
from penstock.journal.frame import Frame
from penstock.journal.index import SegmentIndex
from penstock.journal.kinds import Span
from penstock.journal.losses import Sightings
from penstock.journal.segment import GAPS, START, Bad, Label
from penstock.journal.state import State
from penstock.journal.view import opened, require_generation
from penstock.model.damage import ROT, TORN, Offsets, known_messages
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

Spans = list[Offsets]


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

    def told_by(self, state: State, bad: Bad | None) -> Finding:
        """The same finding, with what is on record that it cost; else with what it tells itself, and is not on record as gone for another reason."""
        place = self.segment or 0, self.position
        if recorded := state.lost_to(*place):
            return msgspec.structs.replace(self, spans=[]).costing(recorded)
        if bad is None or place in state.accounted:
            return self
        spans, messages = state.unrecorded(bad)
        return msgspec.structs.replace(self, spans=spans, messages=messages)

    def costing(self, spans: Spans) -> Finding:
        """The same finding, which also cost these messages."""
        spans = [*self.spans, *spans]
        return msgspec.structs.replace(self, spans=spans, messages=max(self.messages, known_messages(spans)))


class Examination:
    """What looking at one segment found."""

    def __init__(self, file: str, walk: Walk) -> None:
        self.file = file
        self.walk = walk
        self.label = walk.label
        self.index = SegmentIndex()
        self.sequences = RangeSet()
        self.told = RangeSet()
        self.seen = Sightings(walk.label.number)
        self.state = State()
        self.bad: dict[int, Bad] = {}  # by position
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
        self.index.add(head, spans)
        self.sequences.add(head.sequence, head.sequence + 1)
        self.state.apply(spans, lambda: frame.sections)
        self.seen.saw(head.position, head.sequence, spans)

    def unsound(self, head: frames.Header, spans: list[Span], flaw: str) -> None:
        """A frame whose checksums are right and whose content is not."""
        self.damage.append(
            Finding(
                COLUMNS, self.file, self.number, head.position, head.end, 1, head.messages, offsets(spans),
                f"{flaw}; the checksums are right",
            )
        )  # fmt: skip

    # --- afterwards ---

    def rotten(self, bad: Bad) -> None:
        if bad.header is not None and bad.flaw:
            self.unsound(bad.header, bad.spans, bad.flaw)
            return
        self.bad[bad.position] = bad
        what, detail, cost = ROT, _reason(bad), offsets(bad.spans)
        if bad.header is not None and bad.header.seal:
            what, detail = SEAL, "the frame that ends the segment does not match its checksum"
        elif bad not in self.walk.bad:
            detail = "the end of the segment is damaged or gone"
        if bad.header is not None and known_messages(cost) >= bad.header.messages:
            self.told.add(bad.header.sequence, bad.header.sequence + 1)
        self.damage.append(
            Finding(
                what, self.file, self.number, bad.position, bad.end, 1 if bad.header else 0,
                max(bad.header.messages if bad.header else 0, known_messages(cost)), cost, detail,
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


def examine(
    directory: Directory, label: Label, bounds: Bounds, progress: Callable[[int], None]
) -> Examination:
    """Look at every byte of a segment; `Moved` if it is no longer the file that its label was read from."""
    files = directory.files
    walk = Walk(label, bounds)
    found = Examination(directory.segment(label.number).name, walk)
    with opened(directory, label) as fd:
        before = START
        for item in walk.items(files, fd):
            if isinstance(item, Bad):
                require_generation(files, fd, label)
            elif (flaw := soundness.flaw(item)) is not None:
                found.unsound(item.header, item.spans(), flaw)
            else:
                found.take(item)
            progress(walk.end - before)
            before = walk.end
        progress(walk.size - before)
        require_generation(files, fd, label)
    _conclude(found, judge(walk), bounds)
    return found


def _conclude(found: Examination, ending: Ending, bounds: Bounds) -> None:
    """Say what the end of a segment means."""
    walk = found.walk
    for bad in ending.rot:
        found.rotten(bad)
    if walk.seal is not None:
        _look_before_seal(found, walk.seal)
    elif ending.finished and not bounds.finished:
        detail = "recovery was interrupted before it sealed this segment; opening the journal goes on with it"
        found.note(LEFTOVER, walk.end, walk.size, detail)
    elif ending.finished and ending.unsealed:
        detail = "the frame that ends the segment is damaged or gone"
        found.damage.append(Finding(SEAL, found.file, found.number, ending.end, walk.size, detail=detail))
    if bounds.limit is not None:
        return
    for bad in ending.torn:
        found.torn(bad)
    if not ending.finished and walk.unsynced and bounds.marked:
        detail = f"{walk.unsynced} commits above the mark; opening the journal copies and syncs them"
        found.note(UNSYNCED, bounds.synced, walk.end, detail)


def _look_before_seal(found: Examination, seal: frames.Header) -> None:
    """Frames may have been gone before the seal was written: recovery seals what is left of a segment."""
    walk, label = found.walk, found.label
    missing = seal.sequence - max(walk.last_sequence + 1, label.first_sequence)
    if missing > 0 and not walk.trailing and not label.flags & GAPS:
        detail = "the last commits are gone; the segment was sealed without them"
        at = seal.position
        found.damage.append(Finding(ROT, found.file, found.number, at, at, missing, detail=detail))
