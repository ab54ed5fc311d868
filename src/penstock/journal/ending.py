"""How a segment ends: what of it is rot, what a crash left, what is void. Opening and `verify` ask the same judge.

Theory of operation
-------------------
A `Walk` goes through a segment once and remembers what is bad in it, and whether a good frame came behind. `judge` then says what that means, from
what is known of the segment from outside (`Bounds`):

=====================  ==============================================================================================
it is sealed           whatever is bad was written before the seal, so it was synced once: rot
a later one follows    A segment ends where its successor begins. If its good frames reach that far, what is behind them is void: the successor
                       has taken it over, or it is only the seal that is damaged. If they do not, the rest is rot,
                       even if not a byte of it is left
it is the last one     Bad, at or below the mark: rot. Bad, above it, with nothing good behind: torn, because a crash leaves such a thing and
                       nobody was told that it was written. Without a mark it may have been acknowledged, and counts as rot; and a file that
                       ends without the room that is always taken in advance was cut
=====================  ==============================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from penstock import limits
from penstock.journal import frame as frames
from penstock.journal.files import Files
from penstock.journal.frame import Frame, Header
from penstock.journal.losses import Sightings
from penstock.journal.mark import Mark
from penstock.journal.segment import GAPS, START, Bad, Label, Scan


class Bounds(NamedTuple):
    """What is known of a segment from outside it.

    `synced`: up to here it was on the disk. `successor`: the first sequence number of the next segment, if there is one. `finished`: a later segment is
    marked, so this one must be sealed. `marked`: there is a mark; without one a bad end may have been acknowledged. `limit`: look no
    further (the owner is writing there). `end`: where its summary says that it ended.
    """

    synced: int
    successor: int | None
    finished: bool
    marked: bool
    limit: int | None = None
    end: int = 0


def bounds_of(
    label: Label, successor: Label | None, mark: Mark | None, *, synced: int = START, owned: bool = False
) -> Bounds:
    """What the mark and the next segment say of a segment; `synced` is what the snapshot says, `owned` whether somebody is writing it."""
    following = successor.first_sequence if successor is not None else None
    if mark is None:
        limit = sys.maxsize if owned else None
        return Bounds(synced, following, finished=following is not None, marked=owned, limit=limit)
    here, finished = mark.segment == label.number, mark.segment > label.number
    synced = sys.maxsize if finished else max(synced, mark.end) if here else synced
    return Bounds(synced, following, finished, marked=True, limit=mark.end if here and owned else None)


def bounds_within(end: int, next_sequence: int | None) -> Bounds:
    """What is known of a segment whose frames were synced up to `end`. If it is sealed, the commit that follows it is known, and the file goes no further."""
    if next_sequence is None:
        return Bounds(end, None, finished=False, marked=True, limit=end)
    return Bounds(sys.maxsize, next_sequence, finished=True, marked=True, end=end)


class Walk:
    """One pass through a segment: `bad` ranges in order, of which the last `trailing` have no good frame behind them.

    `above` is where the first good frame is that is not known to be synced, `left` where bytes end that are not zero and are behind
    everything, in a file that was never used before.
    """

    def __init__(self, label: Label, bounds: Bounds, *, last_sequence: int = 0) -> None:
        self.label = label
        self.bounds = bounds
        self.last_sequence = last_sequence
        self.bad: list[Bad] = []
        self.trailing = 0
        self.above: int | None = None
        self.unsynced = 0
        self.seal: Header | None = None
        self.size = 0
        self.end = START
        self.left = 0

    def items(self, files: Files, fd: int, position: int = START) -> Iterator[Frame | Bad]:
        """Everything from a position on, as it is come across."""
        self.size = files.size(fd)
        limit = self.size if self.bounds.limit is None else min(self.bounds.limit, self.size)
        scan = Scan(
            files, fd, self.label, position=position, limit=limit, stop_sequence=self.bounds.successor
        )
        for item in scan:
            self.end = scan.end
            if isinstance(item, Frame):
                self._pass(item.header)
            else:
                self.bad.append(item)
                self.trailing = 0 if item.flaw else self.trailing + 1
            yield item
        self.end, self.seal = scan.end, scan.seal
        self.last_sequence = max(self.last_sequence, scan.last_sequence)
        if self.seal is None and self.bounds.limit is None and not self.label.recycled:
            self.left = self.end + len(files.read(fd, self.size - self.end, self.end).rstrip(b"\0"))

    def _pass(self, head: Header) -> None:
        self.trailing = 0
        if head.end > self.bounds.synced:
            self.above = head.position if self.above is None else self.above
            self.unsynced += 1

    @property
    def tail(self) -> list[Bad]:
        """What is bad with nothing good behind it."""
        return self.bad[len(self.bad) - self.trailing :]


def look_through(files: Files, fd: int, label: Label, bounds: Bounds) -> tuple[Walk, Sightings]:
    """Go through an open segment from its beginning, for nothing but what is there and what is not."""
    walk, seen = Walk(label, bounds), Sightings(label.number)
    for item in walk.items(files, fd):
        if isinstance(item, Frame):
            seen.saw(item.header.position, item.sequence, item.spans())
    return walk, seen


class Ending(NamedTuple):
    """What a walk found: `end` is where the segment ends, behind its rot and before what is torn or void.

    `finished`: nothing more is to be written to it. `unsealed`: only its seal is damaged or gone, which costs no message.
    `endless`: nothing tells how long it was, so that its last rot may have cost more than there are bytes of it.
    """

    end: int
    rot: list[Bad]
    torn: list[Bad]
    finished: bool = True
    unsealed: bool = False
    endless: bool = False


def judge(walk: Walk) -> Ending:
    """Tell rot, torn and void apart."""
    if walk.seal is not None:
        return Ending(walk.end, walk.bad, [])
    if walk.bounds.finished or walk.bounds.successor is not None:
        return _judge_finished(walk)
    return _judge_last(walk)


def _judge_finished(walk: Walk) -> Ending:
    label, successor = walk.label, walk.bounds.successor
    # A rescue that began at the segment's first frame leaves nothing of it, and a crash may have come before it was sealed.
    void = successor is not None and max(walk.last_sequence + 1, label.first_sequence) >= successor
    if void:
        end = walk.tail[0].position if walk.tail else walk.end
        return Ending(end, walk.bad[: len(walk.bad) - walk.trailing], [], unsealed=True)
    end = max(walk.size, walk.end, walk.bounds.end)
    rest = end - walk.end
    if walk.trailing:
        if not _is_more_gone(walk):
            return Ending(walk.end, walk.bad, [])
    elif rest <= frames.OVERHEAD and (successor is None or (label.flags & GAPS and rest == frames.OVERHEAD)):
        return Ending(walk.end, walk.bad, [], unsealed=True)
    rot = [*walk.bad, Bad(label.number, walk.end, end, None, [])]
    return Ending(end, rot, [], endless=not walk.bounds.end)


def _is_more_gone(walk: Walk) -> bool:
    """Whether there was more than a seal behind the bad frame that a segment ends with now."""
    bounds = walk.bounds
    sequences = [bad.header.sequence for bad in walk.tail if bad.header is not None]
    more = bounds.successor is not None and bool(sequences) and sequences[-1] + 1 < bounds.successor
    return more or bounds.end - walk.end > frames.OVERHEAD


def _judge_last(walk: Walk) -> Ending:
    number, bounds = walk.label.number, walk.bounds
    tail, end = list(walk.tail), walk.end
    if end < bounds.synced:  # perhaps the file does not even reach that far
        tail.append(Bad(number, end, bounds.synced, None, []))
        end = bounds.synced
    elif walk.left > end:
        tail.append(Bad(number, end, walk.left, None, []))
    elif (
        not bounds.marked and walk.size - end < limits.RESERVE_LAST_BYTES
    ):  # its owner never had so little room left
        tail.append(Bad(number, end, end, None, []))
    rot = [bad for bad in tail if bad.position < bounds.synced or not bounds.marked]
    torn = tail[len(rot) :]
    before = walk.bad[: len(walk.bad) - walk.trailing]
    return Ending(end, before + rot, torn, finished=False, endless=bool(rot) and not bounds.marked)
