"""What only looks: `Port.describe` takes one of these and gives what its docstring says."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

import msgspec

from penstock.model.commands import Handle, Kind, Place, Receipts
from penstock.model.stats import Bounds, BrokerStats, QueueStats, Step, Survey

T = TypeVar("T")


class Query(msgspec.Struct, Generic[T]):
    """A question whose answer is a `T`."""


class Find(Query[Handle | None]):
    """The queue or topic of a name, if there is one; its use is not counted."""

    namespace: str
    name: str


class Names(Query[list[str]]):
    """The names of a namespace's queues, or topics."""

    namespace: str
    kind: Kind = "queue"


class Namespaces(Query[list[str]]):
    """The namespaces that have queues or topics."""


class ClaimedNames(Query[set[str]]):
    """The names of logs, and of queues that policies name for dead letters."""

    namespace: str


class OfLog(Query[QueueStats]):
    """What a queue or topic holds."""

    log: Handle


class OfNamespace(Query[BrokerStats]):
    """What the broker knows of a namespace, and of itself if that is the default one."""

    namespace: str


class Overview(Query[Survey]):
    """Everything at a glance, of some namespaces or of all (None)."""

    namespaces: Collection[str] | None
    bounds: Bounds


class Lag(Query[int]):
    """How many messages a group has not settled."""

    log: Handle
    group: str


class Locate(Query[int]):
    """The offset that a place means."""

    log: Handle
    place: Place


class Timeline(Query[list[Step]]):
    """What became of a message."""

    namespace: str
    id: int


class HeldBy(Query[Receipts]):
    """What settles the message of an id, if it is leased in the queue's own group."""

    log: Handle
    id: int


class RedriveSource(Query[Handle | None]):
    """Where the dead letters of a log are, or the log itself if it holds those of others."""

    log: Handle


class Metadata(Query[dict[str, bytes]]):
    """What fronts have stored in a namespace under keys that begin so."""

    namespace: str
    prefix: str = ""
