"""What every front and shell uses, and nothing else.

A port is narrow, batch by nature and non-blocking: each call gives a ticket that completes later (see `ticket`). Threads wait for it,
asyncio awaits it, and a broker over the network can sit behind it. Names are resolved once: `declare` and `describe` give a `Handle`, which
the other calls take; the handle of a queue that was deleted is refused.

`Embedded` is the port over one engine in this process, in memory or on a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from penstock.broker.shelf import Run
from penstock.broker.ticket import Ticket
from penstock.clock import Clock
from penstock.message import Message
from penstock.policy import Policy


class Handle(Protocol):
    """A log that exists, or existed."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def policy(self) -> Policy: ...


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


class Redriven(NamedTuple):
    """How many dead letters were moved, and the offsets that were not looked at yet."""

    moved: int
    left: range


How = Literal["ack", "nack", "reject", "requeue"]


class QueueStats(msgspec.Struct, frozen=True):
    """What a queue holds now. `depth` is what the group furthest behind has not settled."""

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


class BrokerStats(msgspec.Struct, frozen=True):
    """What the broker knows of itself. `journal` is None in memory."""

    queues: int
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
        self, namespace: str, name: str, policy: dict[str, Any], *, create: bool | None
    ) -> Ticket[Handle]:
        """A queue of that name: made if it does not exist (create=None), must not exist (True), or must (False)."""
        ...

    def names(self, namespace: str) -> Ticket[list[str]]:
        """The names of a namespace's queues."""
        ...

    def describe(self, log: Handle) -> Ticket[QueueStats]:
        """What a queue holds."""
        ...

    def change(
        self, log: Handle, what: Literal["alter", "delete", "purge", "dead-letters", "redrive"], **policy: Any
    ) -> Ticket[Any]:
        """Change a queue as a whole."""
        ...

    def publish(self, log: Handle, messages: Iterable[bytes | Message]) -> Ticket[Sequence[int]]:
        """Append messages, all or none; their ids."""
        ...

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool
    ) -> Ticket[Granted | None]:
        """Hand out messages; wait for some for a time, or for ever (None)."""
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

    def attach(self, log: Handle, group: str, consumer: str) -> Ticket[str]:
        """A consumer comes; the name it goes by, which is another one if that is taken.

        With `single_active`, only the one that came first is given messages.
        """
        ...

    def release(self, log: Handle, group: str, consumer: str) -> Ticket[None]:
        """A consumer goes: what it has goes back to its place."""
        ...

    def extend(self, log: Handle, receipts: Receipts, wait_us: int) -> Ticket[None]:
        """Let leases end later: so long from now."""
        ...

    def read(
        self, log: Handle, count: int, *, where: Callable[[Message], bool] | None = None
    ) -> Ticket[list[Message]]:
        """What would be handed out next, without taking it."""
        ...

    def redrive(
        self,
        log: Handle,
        count: int,
        *,
        where: Callable[[Message], bool] | None,
        to: str | None,
        span: range | None,
    ) -> Ticket[Redriven]:
        """Move dead letters with offsets in a span, or of all that are there now, back, in one unit, up to so many."""
        ...

    def stats(self) -> BrokerStats:
        """What the broker knows of itself."""
        ...

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse what comes, finish what is under way, and let go."""
        ...
