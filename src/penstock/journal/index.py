"""Where a log's offsets and times are in a segment: sparse, an entry per 16 KiB of file.

Theory of operation
-------------------
For each log in a segment there are three parallel arrays, one entry for each stretch of `INDEX_STRIDE_BYTES` in which
the log occurs: the first offset of the stretch, the position of the frame that holds it, and the *peak*, the newest time
of that log up to the end of the stretch. Peaks never fall, so that times can be searched like offsets even if the
clock went back. Rows of the log lie only within one stride (and the frame that crosses its end) behind an entry's position: a
reader looks there, then jumps to the next entry.

The memory is bounded by the file's length, not by the number of messages: ten million messages published one by
one cost what their bytes cost, 24 bytes for each 16 KiB.

A fourth pair of arrays does the same for sequence numbers. All of it is built from section headers (`Span`) alone, and is
stored in the segment's summary.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from penstock import limits
from penstock.journal.frame import Header
from penstock.journal.kinds import MESSAGES, Span


class LogIndex:
    """One log in one segment."""

    __slots__ = ("first", "last", "newest", "offsets", "oldest", "peaks", "positions", "rows")

    def __init__(self) -> None:
        self.first = -1
        self.last = -1
        self.rows = 0
        self.oldest = 0
        self.newest = 0
        self.offsets = array("q")
        self.positions = array("q")
        self.peaks = array("q")

    def add(self, span: Span, position: int) -> None:
        """Take in a section that is at `position`."""
        if not self.rows:
            self.first = span.first
            self.oldest = span.oldest
            self.newest = span.newest
        self.last = span.last
        self.rows += span.rows
        if span.oldest < self.oldest:
            self.oldest = span.oldest
        if span.newest > self.newest:
            self.newest = span.newest
        if not self.positions or position - self.positions[-1] >= limits.INDEX_STRIDE_BYTES:
            self.offsets.append(span.first)
            self.positions.append(position)
            self.peaks.append(self.newest)
        else:
            self.peaks[-1] = self.newest

    def entry_of_offset(self, offset: int) -> int:
        """The entry in whose stretch an offset is, or would be."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def entry_of_time(self, time_us: int) -> int:
        """The first entry in whose stretch the log reaches a time."""
        return bisect_left(self.peaks, time_us)


class SegmentIndex:
    """What one segment holds, and where."""

    __slots__ = (
        "epoch",
        "frames",
        "kinds",
        "last_sequence",
        "logs",
        "newest",
        "oldest",
        "positions",
        "sequences",
    )

    def __init__(self) -> None:
        self.logs: dict[int, LogIndex] = {}
        self.kinds: dict[int, int] = {}
        self.frames = 0
        self.last_sequence = 0
        self.epoch = 0
        self.oldest = 0
        self.newest = 0
        self.sequences = array("q")
        self.positions = array("q")

    def add(self, head: Header, spans: Iterable[Span]) -> None:
        """Take in a frame."""
        self.add_frame(head.position, head.sequence, head.time_us, head.epoch, spans)

    def add_frame(
        self, position: int, sequence: int, time_us: int, epoch: int, spans: Iterable[Span]
    ) -> None:
        """The same, of a frame that has no header yet."""
        if not self.positions or position - self.positions[-1] >= limits.INDEX_STRIDE_BYTES:
            self.sequences.append(sequence)
            self.positions.append(position)
        if not self.frames:
            self.oldest = time_us
        self.frames += 1
        self.last_sequence = sequence
        self.epoch = epoch
        self.newest = time_us
        for span in spans:
            self.kinds[span.kind] = self.kinds.get(span.kind, 0) + span.rows
            if span.kind == MESSAGES.number:
                log = self.logs.get(span.log)
                if log is None:
                    log = self.logs[span.log] = LogIndex()
                log.add(span, position)

    @property
    def messages(self) -> int:
        return self.kinds.get(MESSAGES.number, 0)

    def position_of(self, sequence: int) -> int | None:
        """A frame boundary at or before that of `sequence`."""
        entry = bisect_right(self.sequences, sequence) - 1
        return self.positions[entry] if entry >= 0 else None
