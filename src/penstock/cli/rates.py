"""What happens in queues and topics, from two looks at their counters: rates, depths and lags, as one frame of `penstock top`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar, get_args

import msgspec

from penstock.broker.port import Port
from penstock.broker.ticket import Ticket
from penstock.errors import QueueNotFound, TopicNotFound
from penstock.model.commands import Handle
from penstock.model.queries import Find, Names, OfLog
from penstock.model.stats import QueueStats

Order = Literal[
    "activity", "name", "published", "delivered", "acked", "depth", "leased", "dead", "lag", "consumers"
]
ORDERS: Final[tuple[str, ...]] = get_args(Order)

#: Questions that are under way at once: the line is never idle, and a server is not flooded by somebody who only looks.
AT_ONCE: Final = 32

#: It was deleted between two questions.
GONE: Final = (QueueNotFound, TopicNotFound)

T = TypeVar("T")
U = TypeVar("U")


class Snapshot(NamedTuple):
    """What the counters of all logs were, and when by the monotonic clock."""

    taken_s: float
    logs: dict[str, QueueStats]


class Share(msgspec.Struct, frozen=True):
    """A group, or a subscription, of a log."""

    lag: int
    ready: int
    leased: int
    retrying: int
    consumers: int | None


class Row(msgspec.Struct, frozen=True):
    """A queue or a topic. A rate is None if there was no look at it before, and consumers are None where only the owner knows them."""

    name: str
    kind: str
    published_per_s: float | None
    delivered_per_s: float | None
    acked_per_s: float | None
    depth: int
    ready: int
    delayed: int
    leased: int
    retrying: int
    dead: int
    lag: int
    consumers: int | None
    groups: dict[str, Share]
    readers: dict[str, int]

    @property
    def activity(self) -> float:
        return (self.published_per_s or 0) + (self.delivered_per_s or 0) + (self.acked_per_s or 0)


class Frame(msgspec.Struct, frozen=True):
    """All of them. `seconds` are between the two looks; `error` says why there was no new one, `note` where the numbers are from."""

    where: str
    namespace: str
    time: str
    seconds: float | None
    logs: list[Row]
    error: str | None = None
    note: str | None = None


class Watch:
    """Looks at all logs of a namespace, again and again, and uses none: names are resolved once, and looking counts as no use."""

    def __init__(self, port: Port, namespace: str) -> None:
        self._port = port
        self._namespace = namespace
        self._handles: dict[str, Handle] = {}

    def look(self) -> Snapshot:
        """What the counters are now."""
        asked = [self._port.describe(Names(self._namespace, kind)) for kind in ("queue", "topic")]
        names = [name for ticket in asked for name in ticket.wait()]
        known = {name: self._handles[name] for name in names if name in self._handles}
        new = [name for name in names if name not in known]
        found = _asked(new, lambda name: self._port.describe(Find(self._namespace, name)))
        known.update({name: handle for name, handle in found if handle is not None})
        self._handles = known
        logs: dict[str, QueueStats] = {}
        for name, stats in _asked(list(known), lambda name: self._port.describe(OfLog(known[name]))):
            if stats is None:
                del self._handles[name]
            else:
                logs[name] = stats
        return Snapshot(time.monotonic(), logs)


def _asked(names: Sequence[U], ask: Callable[[U], Ticket[T]]) -> Iterator[tuple[U, T | None]]:
    """An answer for each, several asked at once; None for what is gone."""
    for at in range(0, len(names), AT_ONCE):
        wave = names[at : at + AT_ONCE]
        tickets: list[Ticket[T] | None] = []
        for name in wave:
            try:
                tickets.append(ask(name))
            except GONE:
                tickets.append(None)
        for name, ticket in zip(wave, tickets, strict=True):
            try:
                yield name, None if ticket is None else ticket.wait()
            except GONE:
                yield name, None


# --- two snapshots, one frame ---


def rows(before: Snapshot | None, now: Snapshot, order: str = "activity") -> list[Row]:
    """What happened between two looks, in order."""
    seconds = None if before is None else now.taken_s - before.taken_s
    earlier: Mapping[str, QueueStats] = {} if before is None else before.logs
    found = [_row(earlier.get(name), stats, seconds) for name, stats in now.logs.items()]
    return in_order(found, order)


def _row(before: QueueStats | None, now: QueueStats, seconds: float | None) -> Row:
    def rate(count: Callable[[QueueStats], int]) -> float | None:
        if before is None or not seconds:
            return None
        past = count(before)
        # A counter that went back began anew: a queue was made again, or the broker opened again.
        return (count(now) - past if count(now) >= past else count(now)) / seconds

    groups = {
        name: Share(found.lag, found.ready, found.leased, found.retrying, len(found.consumers))
        for name, found in now.groups.items()
    }
    return Row(
        name=now.name,
        kind=now.kind,
        published_per_s=rate(lambda stats: stats.published),
        delivered_per_s=rate(lambda stats: stats.delivered),
        acked_per_s=rate(lambda stats: stats.acked),
        depth=now.depth,
        ready=now.ready,
        delayed=now.delayed,
        leased=now.leased,
        retrying=now.retrying,
        dead=now.dead,
        lag=max((found.lag for found in groups.values()), default=0),
        consumers=now.consumers,
        groups=groups,
        readers=dict(now.readers),
    )


def in_order(found: list[Row], order: str) -> list[Row]:
    """Most first; what is equal by depth, then by name."""
    if order == "name":
        return sorted(found, key=lambda row: row.name)
    field = f"{order}_per_s" if order in ("published", "delivered", "acked") else order
    return sorted(found, key=lambda row: (-(getattr(row, field) or 0), -row.depth, row.name))
