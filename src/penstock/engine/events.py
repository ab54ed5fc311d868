"""What happened, as it is recorded and replayed.

Every command that changes something that must survive gives events; replaying the same events gives the same state. Events say
outcomes (attempt, due time, destination), never commands: replaying evaluates no policy, clock or chance. The broker turns
them into rows of the journal and back; the engine knows nothing of that.

Columns are as a caller brings them: one value for all rows, a `range`, or a list with a value for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.model.batch import Batch

Offsets = range | list[int]


class Outcome(IntEnum):
    """How a message left a group, or went back. The numbers are stored: never renumber."""

    ACKED = 1
    RETRY = 2  # failed, and waits for its next attempt
    DEAD = 3  # moved to the dead letters
    EXPIRED = 4  # its time was over, and it was dropped
    PURGED = 5
    RETURNED = 6  # given back to its old place
    DROPPED = 7  # to make room, or rejected where there are no dead letters
    REDRIVEN = 8  # moved from the dead letters to where it failed
    UNSEEN = 9  # given back to its old place by somebody who never looked at it: that was no attempt
    FILTERED = 10  # the group does not want it
    CANCELLED = 11  # before it was due


#: In the place of a group: no group needed them any more, and they were removed for all who might come.
EVERYBODY = ""

#: How messages end that nobody gets any more who comes anew, or goes back.
FOR_EVERYBODY = frozenset({Outcome.EXPIRED, Outcome.PURGED, Outcome.DROPPED, Outcome.CANCELLED})


class Action(IntEnum):
    """What happened to a log as a whole. The numbers are stored: never renumber."""

    DECLARE = 1
    ALTER = 2
    DELETE = 3
    SUBSCRIBE = 4  # a group came
    UNSUBSCRIBE = 5  # a group went
    SEEK = 6  # a group was sent elsewhere
    READER = 7  # a reader asked to be waited for, or no longer does
    FORGET = 8  # a reader is forgotten


#: What is said of a log itself; the rest is said of a group or a reader of it.
OF_THE_LOG = frozenset({Action.DECLARE, Action.ALTER, Action.DELETE})


class Published(NamedTuple):
    """Messages were appended to a log, from an offset on."""

    log: int
    first: int
    batch: Batch


class Leased(NamedTuple):
    """Messages were handed out; how often that was is one number, or one for each."""

    log: int
    group: str
    offsets: Offsets
    attempts: int | list[int]
    consumer: str | None
    time_us: int


class Settled(NamedTuple):
    """Messages left a group, or go round again: RETRY with the moment they are due, one for all or one for each."""

    log: int
    group: str
    offsets: Offsets
    outcome: int
    attempts: int | list[int] | None
    due: int | list[int] | None
    consumer: str | None
    error: str | None
    time_us: int


class Declared(NamedTuple):
    """Something was said about a log (its name, and its policy in `body`), or about a group or a reader of it (its name, and what in `body`)."""

    log: int
    action: int
    name: str
    body: bytes
    time_us: int


class Positioned(NamedTuple):
    """A reader said how far it is: the offset that it reads next. Of log 0: in the journal, the last commit that it has read."""

    log: int
    reader: str
    offset: int
    time_us: int


class Scheduled(NamedTuple):
    """A recurring message was set, fired or removed: it is due next at a moment (None: never again), and `body` says what and by which rule."""

    log: int
    name: str
    due_us: int | None
    body: bytes
    time_us: int


class Produced(NamedTuple):
    """A part of a producer's batch was published, by the other events of the same unit; `final`, see `producers`, says whether it was the last."""

    producer: str
    batch: int
    part: int
    final: int
    time_us: int

    @property
    def log(self) -> int:
        """It is of no log, and may be of many."""
        return 0


class Noted(NamedTuple):
    """A front has put opaque bytes under a key of a namespace, or removed them (None)."""

    namespace: str
    key: str
    value: bytes | None
    time_us: int

    @property
    def log(self) -> int:
        """It is of no log."""
        return 0


Event = Published | Leased | Settled | Declared | Positioned | Scheduled | Produced | Noted


def runs(offsets: Sequence[int]) -> list[range]:
    """Offsets as ranges, in order, whatever order they came in.

    >>> runs([3, 4, 5, 9]), runs([1, 0])
    ([range(3, 6), range(9, 10)], [range(0, 2)])
    """
    ordered = rising(offsets)
    if isinstance(ordered, range):
        return [ordered] if ordered else []
    found: list[range] = []
    start = previous = ordered[0]
    for offset in ordered:
        if offset > previous + 1:
            found.append(range(start, previous + 1))
            start = offset
        previous = offset
    found.append(range(start, previous + 1))
    return found


def parcels(found: Iterable[range], most: int) -> Iterator[Offsets]:
    """Ranges that rise, in as few parts as can be: long ones as they are, short ones together, at most so many messages in each.

    >>> list(parcels([range(0, 2), range(2, 5), range(7, 8)], 4))
    [range(0, 5), range(7, 8)]
    """
    scattered: list[int] = []
    for run in _joined(found):
        if len(run) >= most:
            if scattered:
                yield scattered
                scattered = []
            yield run
            continue
        if len(scattered) + len(run) > most:
            yield scattered
            scattered = []
        scattered += run
    if scattered:
        yield rising(scattered)


def _joined(found: Iterable[range]) -> Iterator[range]:
    """Ranges that touch become one."""
    last: range | None = None
    for run in found:
        if last is not None and last.stop == run.start:
            last = range(last.start, run.stop)
        else:
            if last is not None:
                yield last
            last = run
    if last is not None:
        yield last


def rising(offsets: Sequence[int]) -> Offsets:
    """Offsets in order, each once: as a range if they follow one another, as they nearly always do."""
    if isinstance(offsets, range):
        return offsets
    if not offsets:
        return range(0)
    found = range(offsets[0], offsets[0] + len(offsets))
    if offsets[-1] == found[-1] and list(offsets) == list(found):
        return found
    return sorted(set(offsets))
