"""What was found broken, said once and the same way by recovery, reading, `verify`, `stats()` and the metrics.

Corruption is never absence: a damaged range is named by segment and bytes, its messages are counted as damaged, its bytes are
copied into quarantine, and everything around it is served.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.journal.frame import OVERHEAD
from penstock.journal.kinds import MESSAGES, Span
from penstock.journal.segment import Bad
from penstock.model.damage import Damage, Offsets
from penstock.ranges import RangeSet


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
