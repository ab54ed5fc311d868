"""The seam: ten calls that every front and every API object uses, and nothing else.

A port takes and gives data of `penstock.model`. The embedded broker (`embedded`), the client over
HTTP and the shards implement it; importing this module loads none of them.

Each call is non-blocking and gives a ticket (see `ticket`): a thread waits on it, asyncio awaits it.
A log is named by the handle that `declare` gives; the handle of a log that was deleted is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.broker.ticket import Ticket
from penstock.clock import Clock
from penstock.model.batch import Run
from penstock.model.commands import DeadLetters, Handle, Place, Presence, Receipts, Spec, Unit
from penstock.model.queries import Query

T = TypeVar("T")


class Granted(msgspec.Struct, gc=False):
    """Messages that were handed out: the lease that holds them, and where their contents are, in order.

    The number is 0 if they were settled when they were handed out.
    """

    group: str
    number: int
    offsets: Sequence[int]
    attempts: int | list[int]
    runs: list[Run]


class Page(NamedTuple):
    """Messages in order, the offset behind them, and how many were dropped before they could be read."""

    runs: list[Run]
    next: int
    missed: int


#: The place of `read` that means what would be handed out next.
UPCOMING = "upcoming"

#: Told the number of a log and the name of a group that has something ready.
Arrived = Callable[[int, str], None]


class Port(Protocol):
    """What a broker can do."""

    clock: Clock

    def declare(self, spec: Spec | DeadLetters) -> Ticket[Handle]:
        """Make a queue or topic, open it, or refuse."""
        ...

    def describe(self, query: Query[T]) -> Ticket[T]:
        """Answer a query; nothing changes."""
        ...

    def commit(self, unit: Unit) -> Ticket[list[Any]]:
        """Do all of a unit or nothing; one answer for each step."""
        ...

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None = None, wait_us: int | None = 0,
        settle: bool = False, ahead: int = 0, bytes_max: int | None = None, rides: bool = False,
    ) -> Ticket[Granted | None]:  # fmt: skip
        """Hand out up to `count` messages; wait for one for a time, or without end (None).

        `settle` acknowledges them at once. The last `ahead` of `count` are leased ahead: the caller
        keeps them until its code asks for them, and commits a `HandOver` then; until that the end of
        the lease counts no attempt. They have at most `bytes_max` bytes, unless one alone has more.
        With `rides` the record of the lease is written with the next frame, not before the answer:
        for consumers in other processes, which cannot take this one down.
        """
        ...

    def extend(self, log: Handle, receipts: Receipts, seconds: float) -> Ticket[None]:
        """Let leases end later: so long from now."""
        ...

    def read(
        self, log: Handle, place: int | str | Place, count: int, *, wait_us: int | None = 0
    ) -> Ticket[Page]:
        """Read what is stored from a place on without taking it, or what is `UPCOMING`.

        If there is nothing yet, wait for a time, or without end (None).
        """
        ...

    def position(self, log: Handle, reader: str) -> Ticket[int | None]:
        """Return what a reader has committed."""
        ...

    def consumer(self, log: Handle, group: str, presence: Presence) -> Ticket[Any]:
        """Say that a consumer comes (its name), is alive (whether it is still known), or goes."""
        ...

    def arrivals(self, log: Handle, group: str, tell: Arrived | None) -> None:
        """Have `tell` called whenever a group has something ready; None ends it.

        It is called by any thread, in the middle of another call: it must only pass the word on.
        """
        ...

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse what comes, finish what is under way, and let go."""
        ...
