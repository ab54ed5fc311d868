"""The segments' headers, read together, because only together they can be believed.

Theory of operation
-------------------
A segment ends where its successor begins, so a wrong header does not only hide its own segment: it voids the one before. Three things can be wrong:

- One copy of a header is damaged. The other one is the truth, and nothing is lost.
- Both are. Then the header is pieced together from the first whole frame. But a recycled file is full of whole frames of its earlier life, which
  were written long before: a frame is believed only if its sequence number lies where that segment's must, between its
  neighbours, and as the mark, the snapshot and the summaries of earlier segments say. If it does not, nothing in the file is believed: it is rot.
- Both are whole, and it is not the header that belongs there: of another segment, or of one that began before an earlier one did. No damage makes
  such a thing, so a hand did: whoever would write must refuse, before anything is touched.

Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.journal import summary as summaries
from penstock.journal.directory import Directory
from penstock.journal.frame import Header
from penstock.journal.mark import Mark
from penstock.journal.segment import START, Label, Reading, read_label
from penstock.journal.snapshot import Snapshot
from penstock.model.damage import HEADER, ROT, Damage


class Labelled(NamedTuple):
    """A segment's file, with its header if that can be believed; `foreign` says why the file does not belong there."""

    number: int
    size: int
    label: Label | None
    intact: bool
    foreign: str = ""

    @property
    def damage(self) -> Damage | None:
        if self.label is None:
            return Damage(self.number, 0, self.size, ROT)
        return None if self.intact else Damage(self.number, 0, START, HEADER)


def load(
    directory: Directory,
    numbers: Collection[int],
    mark: Mark | None,
    snapshot: Snapshot | None = None,
    known: Mapping[int, Label] | None = None,
) -> list[Labelled]:
    """The segments of these numbers that are there, in order. Those in `known` are not read again."""
    known = known or {}
    read: dict[int, tuple[Reading, int]] = {}
    for number in sorted(numbers):
        one = (Reading(known[number]), 0) if number in known else _read(directory, number)
        if one is not None:
            read[number] = one
    told = {number: found.label for number, (found, _) in read.items() if found.label and not found.pieced}
    believed: list[Labelled] = []
    floor = 0
    for number, (found, size) in read.items():
        label, foreign = found.label, ""
        if found.pieced is not None:
            above = min((told[n].first_sequence for n in told if n > number), default=None)
            life = Life(max(floor, _summed_up(directory, number)), above, mark, snapshot)
            label = label if life.allow(number, found.pieced) else None
        elif label is not None and label.first_sequence < floor:
            foreign = f"begins at commit {label.first_sequence}, and an earlier segment at {floor}: move away what does not belong there"
        elif label is None and found.intact:
            foreign = "holds another segment than its name says: give it its own name back"
        label = None if foreign else label
        floor = max(floor, label.first_sequence if label is not None else 0)
        believed.append(Labelled(number, size, label, found.intact, foreign))
    return believed


def highest(
    directory: Directory,
    numbers: Collection[int],
    mark: Mark | None,
    snapshot: Snapshot | None,
    *,
    sealed: int,
) -> int:
    """The number of the last segment that anything tells of. `sealed` is that of the last one there, if it is sealed, else 0."""
    told = [*numbers, 0]
    if mark is not None:
        told.append(mark.segment)
    elif directory.mark.exists():
        told.append(1)  # the mark is made after the first segment
    if mark is None and sealed:
        told.append(sealed + 1)  # what is sealed is followed by another, at once
    if snapshot is not None:
        told.append(snapshot.active.number)
    return max(told)


def _read(directory: Directory, number: int) -> tuple[Reading, int] | None:
    """A file's header and length; None if it is gone, or is being recycled just now."""
    files, path = directory.files, directory.segment(number)
    try:
        with files.opened(path) as fd:
            found = read_label(files, fd, number)
            whole = found.label is not None and found.intact
            return (found, files.size(fd)) if whole or path.exists() else None
    except FileNotFoundError:
        return None


def _summed_up(directory: Directory, number: int) -> int:
    """The commit that everything before a segment goes up to, as the summaries have it. Even one of a rewritten segment is right in that."""
    earlier = [n for n in directory.survey()[0].summaries if n < number]
    found = [summary.next_sequence for n in earlier if (summary := summaries.read(directory, n)) is not None]
    return max(found, default=0)


class Life(NamedTuple):
    """The present life of a segment's file: between which sequence numbers its frames must be."""

    lowest: int
    above: int | None
    mark: Mark | None
    snapshot: Snapshot | None

    def allow(self, number: int, head: Header) -> bool:
        """Whether a frame can be one of that segment's."""
        if head.sequence < self.lowest or (self.above is not None and head.sequence > self.above):
            return False
        if self.mark is not None:
            here = (self.mark.segment, self.mark.end) > (number, head.position)
            if here != (head.sequence <= self.mark.sequence):
                return False
        active = self.snapshot.active if self.snapshot is not None else None
        if active is None or active.number > number:
            return True
        return head.sequence >= (
            active.first_sequence if active.number == number else active.last_sequence + 1
        )
