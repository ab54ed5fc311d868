"""What a command does beside changing the engine: events to record, and messages that arrive once they are durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.engine.events import Event, Leased, Offsets, Settled
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.model.batch import Batch
from penstock.model.commands import Kind
from penstock.policy import Policy


class Content(msgspec.Struct, frozen=True, gc=False):
    """What a stored message says."""

    id: int
    payload: bytes
    headers: dict[str, str] | None
    key: str | None
    priority: int
    properties: bytes | None


Fetch = Callable[[Log, Sequence[int]], list[Content | None]]


class Chosen(NamedTuple):
    """What a filter wants of some messages, how many it looked at, and how many steps are left."""

    wanted: Sequence[int]
    seen: int
    steps_left: int


#: Which of some messages a filter wants, looking at them in order until a budget of steps (see
#: `Filter.steps`) is used up; what cannot be read is among them.
Choose = Callable[[Log, Sequence[int], Any, int], Chosen]


class Firing(NamedTuple):
    """What a schedule does now: the messages that it publishes, and when it is due next."""

    batches: list[Batch]
    due_us: int | None


#: What the schedule of a log with that name and body does, which was due at a moment, now.
Recur = Callable[[Log, str, bytes, int, int], Firing]

#: Whether a message of so many bytes that nobody publishes now may come into a namespace, whose depth can be asked for: None if not,
#: else what takes back that it was counted.
Admits = Callable[[str, int, Callable[[], int]], Callable[[], None] | None]


def not_counted() -> None:
    """Takes back that nothing was counted."""


class Grant(NamedTuple):
    """What a lease handed out: the number that settles it, the offsets in order, and which attempt it is."""

    number: int
    offsets: Offsets
    attempts: int | list[int]


class Change:
    """What a command did: one unit, whose events are recorded together or not at all, and what arrives then.

    What happens by itself may be many units, so that none grows without a bound: `cut` ends one, unless it must stay `whole`.
    """

    __slots__ = ("_earlier", "_reached", "_whole", "arrivals", "bytes", "events")

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        # More than is needed for those of its units that were measured, and are not recorded yet
        self.bytes = 0
        self._earlier: list[Change] | None = None
        self.events: list[Event] = []
        self.arrivals: list[tuple[Log, int, Batch]] = []
        self._reached: set[Log] = set()  # the logs of `arrivals`

    def add_arrival(self, log: Log, first: int, batch: Batch) -> bool:
        """Add messages that arrive when durable; return whether the unit has others of the log."""
        joins = log in self._reached
        self._reached.add(log)
        self.arrivals.append((log, first, batch))
        return joins

    def cut(self) -> None:
        """What follows is another unit."""
        if self.events and not self._whole:
            done = Change()
            done.events, done.arrivals = self.events, self.arrivals
            self.events, self.arrivals, self._reached = [], [], set()
            self._earlier = [*(self._earlier or ()), done]

    def say(self, group: Group, event: Leased | Settled) -> None:
        """Something happened in a group: it is recorded, if the group is."""
        if group.durable:
            self.events.append(event)

    def __bool__(self) -> bool:
        return bool(self.events or self._earlier)

    def units(self) -> Sequence[Change]:
        """All of them, in order."""
        if self._earlier is None:
            return [self] if self.events else []
        return [*self._earlier, self] if self.events else self._earlier


class Declaration(msgspec.Struct, frozen=True):
    """What is recorded of a log."""

    namespace: str
    name: str
    policy: Policy
    kind: Kind = "queue"
    gone: list[int] | None = None  # when it was altered, of what is kept since


def add_row(batch: Batch, content: Content, headers: dict[str, str]) -> None:
    """Add a stored message to a batch whose columns are lists, with other headers."""
    batch.payloads.append(content.payload)
    batch.size += len(content.payload)
    columns: list[tuple[Any, Any]] = [
        (batch.priority, content.priority),
        (batch.key, content.key),
        (batch.headers, headers),
        (batch.properties, content.properties),
    ]
    for column, value in columns:
        column.append(value)


def empty_batch(now_us: int) -> Batch:
    """A batch to which stored messages are added."""
    return Batch([], [], now_us, priority=[], key=[], headers=[], properties=[])
