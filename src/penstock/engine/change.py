"""What a command does beside changing the engine: events to record, and messages that arrive once they are durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.engine.events import Batch, Event, Offsets
from penstock.engine.log import Log
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


class Grant(NamedTuple):
    """What a lease handed out: the number that settles it, the offsets in order, and which attempt it is."""

    number: int
    offsets: Offsets
    attempts: int | list[int]


class Change:
    """What a command did: one unit, whose events are recorded together or not at all, and what arrives then.

    What happens by itself may be many units, so that none grows without a bound: `cut` ends one.
    """

    __slots__ = ("_earlier", "arrivals", "bytes", "events")

    def __init__(self) -> None:
        self.bytes = (
            0  # more than is needed for those of its units that were measured, and are not recorded yet
        )
        self._earlier: list[Change] | None = None
        self.events: list[Event] = []
        self.arrivals: list[tuple[Log, int, Batch]] = []

    def cut(self) -> None:
        """What follows is another unit."""
        if self.events:
            done = Change()
            done.events, done.arrivals = self.events, self.arrivals
            self.events, self.arrivals = [], []
            self._earlier = [*(self._earlier or ()), done]

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
