"""What was found broken, said once and the same way by recovery, reading, `verify`, `stats()` and the metrics.

Corruption is never absence: a damaged range is named by segment and bytes, its messages are counted as damaged, its bytes are
copied into quarantine, and everything around it is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import structs

from penstock import limits
from penstock.journal.frame import OVERHEAD
from penstock.journal.kinds import MESSAGES, Span
from penstock.journal.segment import Bad
from penstock.ranges import RangeSet

ROT: Final = "rot"
TORN: Final = "torn"
MISSING: Final = "missing"
HEADER: Final = "header"
STATE: Final = "state"

#: Messages, as (log, first offset, last offset).
Offsets = tuple[int, int, int]


class Damage(msgspec.Struct, frozen=True):
    """A range of a segment that cannot be served.

    `what` is `rot` (it was whole once), `torn` (a crash cut it off before it was acknowledged), `missing` (the whole
    segment is gone), `header` (the segment's own header, which costs no message) or `state` (every snapshot is damaged, and what
    they alone still knew of segments that were dropped is gone).
    `messages` counts those known to be in it, by log and offsets in `spans`; `frames` is 0 where it cannot be told.
    """

    segment: int
    position: int
    end: int
    what: str
    frames: int = 0
    messages: int = 0
    spans: list[Offsets] = []
    copy: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it is known which messages it cost."""
        return self.what == HEADER or (bool(self.frames) and known_messages(self.spans) >= self.messages)

    @property
    def bytes(self) -> int:
        return self.end - self.position

    @property
    def reach(self) -> int:
        """Where it ends. A segment that is gone, or of which nothing can be read, is gone to its end, wherever that was."""
        return limits.OFFSET_MAX if self.whole_file else self.end

    @property
    def whole_file(self) -> bool:
        """Whether nothing of a segment could be read, so that it is not known either how long it was."""
        return self.what == MISSING or (self.what == ROT and self.position == 0)

    def costing(self, spans: list[Offsets]) -> Damage:
        """The same damage, which cost these messages as well."""
        spans = [*self.spans, *spans]
        return structs.replace(self, spans=spans, messages=max(self.messages, known_messages(spans)))

    def __str__(self) -> str:
        logs = ", ".join(f"log {log} offsets {first}–{last}" for log, first, last in self.spans)
        return (
            f"{self.what} in segment {self.segment}, bytes {self.position}–{self.end}: {self.messages} messages"
            + (f" ({logs})" if logs else "")
        )


def parts_outside(position: int, end: int, known: Iterable[range]) -> list[range]:
    """What of a range of bytes is not in ranges that are known: all of it, or the parts that are left and could have held a frame."""
    known = list(known)
    if position == end:
        return [] if any(one.start == position for one in known) else [range(position, end)]
    left = RangeSet(one for one in known if one).gaps(position, end)
    return left if left == [range(position, end)] else [part for part in left if len(part) >= OVERHEAD]


def new_parts(bad: Bad, known: Iterable[Damage]) -> list[Bad]:
    """What is bad and not known yet: as it is, or what is left of it, of which no header tells. Known damage may have grown."""
    ranges = [range(d.position, d.reach) for d in known if d.segment == bad.segment]
    left = parts_outside(bad.position, bad.end, ranges)
    if left == [range(bad.position, bad.end)]:
        return [bad]
    return [Bad(bad.segment, part.start, part.stop, None, []) for part in left]


def of_bad(bad: Bad, what: str, copy: str | None = None) -> Damage:
    """The damage that a scan came across, with the messages that its intact headers tell of."""
    messages = bad.header.messages if bad.header else 0
    return Damage(
        bad.segment, bad.position, bad.end, what, 1 if bad.header else 0, messages, offsets(bad.spans), copy
    )


def offsets(spans: list[Span]) -> list[Offsets]:
    """The messages among spans."""
    return [(span.log, span.first, span.last) for span in spans if span.kind == MESSAGES.number]


def known_messages(spans: list[Offsets]) -> int:
    """How many messages are named."""
    return sum(last - first + 1 for _, first, last in spans)
