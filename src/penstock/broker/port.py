"""What every front and shell uses, and nothing else.

A port is narrow, batch by nature and non-blocking: each call gives a ticket that completes later (see `ticket`). Threads wait for it,
asyncio awaits it, and a broker over the network can sit behind it. Names are resolved once: `declare` and `describe` give a `Handle`, which
the other calls take; the handle of a queue that was deleted is refused.

`Embedded` is the port over one engine in this process, in memory or on a journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from penstock.broker.shelf import Run
from penstock.broker.ticket import Ticket
from penstock.broker.trace import Step
from penstock.clock import Clock
from penstock.engine.filter import Filter
from penstock.message import Message
from penstock.policy import Policy

How = Literal["ack", "nack", "reject", "requeue", "unseen"]
Kind = Literal["queue", "topic"]
What = Literal["alter", "delete", "purge", "dead-letters", "redrive"]


class Handle(Protocol):
    """A log that exists, or existed."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def number(self) -> int: ...

    @property
    def kind(self) -> Kind: ...


class Receipts(NamedTuple):
    """Leased messages of one group: offsets, and the numbers of the leases they are held by."""

    group: str
    offsets: list[int]
    numbers: list[int]


class Granted(NamedTuple):
    """Messages that were handed out: the lease that holds them, and where their contents are, in order."""

    group: str
    number: int
    offsets: Sequence[int]
    attempts: int | list[int]
    runs: list[Run]


class MessageId(NamedTuple):
    """A place in a log: where the message of that id is."""

    id: int


class Redriven(NamedTuple):
    """How many dead letters were moved, and the offsets that were not looked at yet."""

    moved: int
    left: range


class GroupStats(msgspec.Struct, frozen=True):
    """What a group, or a subscription, has before it. With a filter, `lag` is an upper bound: nobody has looked at what is ready yet."""

    lag: int
    lag_is_exact: bool
    ready: int
    leased: int
    retrying: int
    consumers: list[str]
    filter: str | None
    durable: bool


class QueueStats(msgspec.Struct, frozen=True):
    """What a queue or a topic holds now. `depth` is what the group furthest behind has not settled, and the counts behind it are of that group."""

    name: str
    depth: int
    ready: int
    delayed: int
    leased: int
    retrying: int
    dead: int
    bytes: int | None
    next_offset: int
    published: int
    consumers: int
    waiting: int
    kind: Kind
    groups: dict[str, GroupStats]
    readers: dict[str, int]  # how far each is behind, by what it has committed
    schedules: list[str]
    delivered: int = 0  # these two since the broker was opened
    acked: int = 0


class Page(NamedTuple):
    """What a reader gets: messages in order, the offset behind them, and how many were dropped before it came."""

    runs: list[Run]
    next: int
    missed: int


class Operation(NamedTuple):
    """A step of a transaction: messages for a log, or the end of leases."""

    log: Handle | str
    messages: Sequence[bytes | Message] = ()
    receipts: Receipts | None = None
    how: How = "ack"
    delay_us: int | None = None
    error: str | None = None


class BrokerStats(msgspec.Struct, frozen=True):
    """What the broker knows of itself. `journal` is None in memory."""

    queues: int
    topics: int
    ready: int
    leased: int
    delayed: int
    retrying: int
    published: int
    delivered: int
    acked: int
    journal: Any


class Port(Protocol):
    """What a broker can do."""

    clock: Clock

    def declare(
        self, namespace: str, name: str, policy: dict[str, Any], *, create: bool | None, kind: Kind = "queue"
    ) -> Ticket[Handle]:
        """A queue or topic of that name: made if it does not exist (create=None), must not exist (True), or must (False)."""
        ...

    def find(self, namespace: str, name: str) -> Ticket[Handle | None]:
        """The queue or topic of that name, if there is one; its use is not counted."""
        ...

    def names(self, namespace: str, kind: Kind = "queue") -> Ticket[list[str]]:
        """The names of a namespace's queues, or topics."""
        ...

    def describe(self, log: Handle) -> Ticket[QueueStats]:
        """What a queue or topic holds."""
        ...

    def change(self, log: Handle, what: What, **policy: Any) -> Ticket[Any]:
        """Change a queue or topic as a whole."""
        ...

    def publish(self, log: Handle, messages: Iterable[bytes | Message]) -> Ticket[Sequence[int]]:
        """Append messages, all or none; their ids."""
        ...

    def route(self, namespace: str, pattern: str, message: bytes | Message) -> Ticket[dict[str, int]]:
        """Append a message to every queue and topic whose name matches, all or none; its ids by name."""
        ...

    def transact(self, namespace: str, operations: Sequence[Operation]) -> Ticket[list[int]]:
        """Do all of it or nothing, in one unit; the ids of what was published, in order."""
        ...

    def cancel(self, log: Handle, id: int) -> Ticket[bool]:
        """Remove a message that is not due yet; whether it was there."""
        ...

    def schedule(self, log: Handle, name: str, recurring: Any) -> Ticket[bool]:
        """Have a message recur (see `recurring`), in place of the one of that name, or no more (None); whether there was one."""
        ...

    def open_group(
        self, log: Handle, group: str, *, filter: str | None, strategy: str | None, start: Any, durable: bool,
        consumer: str | None = None, silence_us: int | None = None, prefetch: int = 1,
    ) -> Ticket[str | None]:  # fmt: skip
        """A group of that name, made if it does not exist; what is given must be what is stored. A consumer may come with it: see `attach`."""
        ...

    def close_group(self, log: Handle, group: str) -> Ticket[None]:
        """End a group with all that waits in it."""
        ...

    def seek(self, log: Handle, group: str, place: Any) -> Ticket[None]:
        """Send a whole group to a place: see `locate`."""
        ...

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool,
        ahead: int = 0,
    ) -> Ticket[Granted | None]:  # fmt: skip
        """Hand out messages; wait for some for a time, or for ever (None).

        The last `ahead` of `count` are leased ahead: the caller keeps them until its code asks for
        them, and reports that by `hand_over`. Until then the end of the lease counts no attempt.
        """
        ...

    def hand_over(self, log: Handle, receipts: Receipts) -> Ticket[list[int]]:
        """Record that code gets messages that were leased ahead; the offsets whose lease still holds."""
        ...

    def settle(
        self,
        log: Handle,
        receipts: Receipts,
        how: How,
        *,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> Ticket[None]:
        """End leases, all or none."""
        ...

    def attach(
        self, log: Handle, group: str, consumer: str, silence_us: int | None = None, prefetch: int = 1
    ) -> Ticket[str]:
        """A consumer comes; the name it goes by, which is another one if that is taken.

        `prefetch` is how many messages may be sent ahead to it, where there is a way to be sent on.

        With `single_active`, only the one that came first is given messages. One that is not heard of for `silence_us` is thought dead.
        """
        ...

    def lag(self, log: Handle, group: str) -> Ticket[int]:
        """How many messages a group has not settled."""
        ...

    def heartbeat(self, log: Handle, group: str, consumer: str) -> Ticket[bool]:
        """A consumer is alive; False if it was thought dead, and what it had was given to others."""
        ...

    def release(self, log: Handle, group: str, consumer: str, *, retire: bool = False) -> Ticket[None]:
        """A consumer goes, or is taken out (`retire`): what it has goes back to its place."""
        ...

    def extend(self, log: Handle, receipts: Receipts, wait_us: int) -> Ticket[None]:
        """Let leases end later: so long from now."""
        ...

    def peek(self, log: Handle, count: int) -> Ticket[list[Message]]:
        """What would be handed out next, without taking it."""
        ...

    def read(self, log: Handle, offset: int, count: int) -> Ticket[Page]:
        """What is stored from an offset on, in order of offsets, up to so many."""
        ...

    def watch(self, log: Handle, offset: int, *, wait_us: int | None) -> Ticket[Any]:
        """Wait until a message of that offset was published, for a time, or for ever (None)."""
        ...

    def locate(self, log: Handle, place: Any) -> Ticket[int]:
        """The offset that is meant: "earliest", "latest", an int, a datetime, or a `MessageId`."""
        ...

    def position(
        self, log: Handle, reader: str, offset: int | None, *, holds: bool | None = None, forget: bool = False
    ) -> Ticket[int | None]:
        """What a reader has committed, after it has committed an offset, asked to be waited for, or was forgotten."""
        ...

    def trace(self, namespace: str, id: int) -> Ticket[list[Step]]:
        """What became of a message."""
        ...

    def redrive(
        self,
        log: Handle,
        count: int,
        *,
        where: Filter | None,
        to: str | None,
        span: range | None,
    ) -> Ticket[Redriven]:
        """Move dead letters with offsets in a span, or of all that are there now, back, in one unit, up to so many."""
        ...

    def stats(self, namespace: str) -> Ticket[BrokerStats]:
        """What the broker knows of a namespace, and of itself."""
        ...

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse what comes, finish what is under way, and let go."""
        ...


class HostedPort(Port, Protocol):
    """What a server needs besides: it hosts many namespaces, and speaks to clients who hold no receipts."""

    def namespaces(self) -> Ticket[list[str]]:
        """The namespaces that have queues or topics."""
        ...

    def claimed_names(self, namespace: str) -> set[str]:
        """Return the names of queues and topics, and of queues that policies name for dead letters."""
        ...

    def depth(self, namespace: str) -> int:
        """How many messages of a namespace are not settled yet. Published ones count before they are durable, so that nobody comes between this and a publish."""
        ...

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool,
        ahead: int = 0, bytes_max: int | None = None,
    ) -> Ticket[Granted | None]:  # fmt: skip
        """The same, of at most so many bytes (`contents.octets_of`), unless one message has more."""
        ...

    def held(self, log: Handle, id: int) -> Ticket[Receipts]:
        """What settles the message of that id, if it is leased in the queue's own group; otherwise `LeaseLost`."""
        ...
