"""What all requests of a server share: the broker's port, who may do what, the bounds, the handles of logs, and who waits.

What always holds:

- A handle is kept by namespace and name, so that a request costs no look-up; one whose log was deleted is let go when it is next asked for.
- A long poll has a place among a bounded number, in all and for each caller. One whose client goes away leaves nothing leased behind.
- Once the server stops, nobody waits any longer: long polls end with what they have, and what comes then does not wait.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.broker.port import Port
from penstock.broker.ticket import Stoppable, Ticket
from penstock.errors import PenstockError
from penstock.model.commands import Handle, Kind
from penstock.model.queries import Find
from penstock.names import not_found
from penstock.server.bounds import Bounds
from penstock.server.http.parties import Accounts, Caller, Connection, Observer, Quotas
from penstock.server.http.problem import Refusal
from penstock.server.threads import Threads

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

#: Handles that are kept at the most: about a megabyte. Beyond it all of them are looked up anew.
HANDLES_MAX: Final = 10_000


class ClientGone(Exception):
    """Whoever asked has gone: nobody hears the answer."""


class Front:
    """What the requests of a server share."""

    def __init__(
        self,
        port: Port,
        *,
        accounts: Accounts,
        quotas: Quotas,
        bounds: Bounds,
        observer: Observer,
        directory: Path | None,
        intake: Any,
        ready: Callable[[], bool],
    ) -> None:
        self.port = port
        self.accounts = accounts
        self.quotas = quotas
        self.bounds = bounds
        self.observer = observer
        self.directory = directory
        self.intake = intake  # of the spool, where there is a directory
        self.ready = ready
        self.stopping = False
        self.decoding = Threads(1, "bodies")  # only one at a time takes memory
        self.tables: Any = None  # made when Spark first asks: see `spark`
        #: In every answer: by it a client knows that it speaks to another server than before, which knows no consumers and no leases.
        self.life = (b"penstock-life", os.urandom(8).hex().encode())
        #: The last statistics of each namespace that has streams of them, and who makes some: see `streams`.
        self.statistics: dict[str, Any] = {}
        self.describing = asyncio.Lock()
        self._handles: dict[tuple[str, str], Handle] = {}
        self._kinds: dict[tuple[str, str | int], Kind] = {}  # of logs that are, or were, there
        self._polls = 0
        self._polls_by_party: Counter[str] = Counter()
        self._waits: set[Any] = set()
        self._named: dict[tuple[str, str], Stoppable] = {}  # by the caller's party and the name that it gave

    # --- logs ---

    async def found(self, namespace: str, name: str) -> Handle | None:
        """The log of a name, if there is one."""
        found = self._kept(namespace, name)
        if found is None:
            found = await self.port.describe(Find(namespace, name)).get()
            if found is not None:
                self.keep(found)
        return found

    async def log(self, namespace: str, name: str, number: int | None = None) -> Handle:
        """The log of a name, and of that number if one is given."""
        found = await self.found(namespace, name)
        if found is not None and (number is None or found.number == number):
            return found
        raise self._missing(namespace, name, found, number)

    def _kept(self, namespace: str, name: str) -> Handle | None:
        found = self._handles.get((namespace, name))
        if found is not None and found.deleted:
            del self._handles[namespace, name]
            self._kinds[namespace, name] = found.kind
            found = None
        return found

    def keep(self, log: Handle) -> None:
        """A log was found, or made."""
        if len(self._handles) >= HANDLES_MAX:
            self._handles.clear()
        if len(self._kinds) >= HANDLES_MAX:
            self._kinds.clear()
        self._handles[log.namespace, log.name] = log
        self._kinds[log.namespace, log.number] = log.kind

    def _missing(self, namespace: str, name: str, found: Handle | None, number: int | None) -> PenstockError:
        kind = self._kinds.get((namespace, name), "queue") if found is None else found.kind
        if number is None:
            return not_found(kind, name)
        return not_found(self._kinds.get((namespace, number), kind), name, "was deleted")

    # --- waiting ---

    @contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """A place for somebody who waits, or has events sent."""
        party = caller.party
        if self._polls >= self.bounds.long_polls_max:
            raise self._no_place(f"{self._polls} requests wait already, which is all that this server holds")
        if self._polls_by_party[party] >= self.bounds.long_polls_per_caller_max:
            raise self._no_place(f"{self._polls_by_party[party]} requests of {caller.subject!r} wait already")
        self._polls += 1
        self._polls_by_party[party] += 1
        try:
            yield
        finally:
            self._polls -= 1
            self._polls_by_party[party] -= 1
            if not self._polls_by_party[party]:
                del self._polls_by_party[party]

    def _no_place(self, why: str) -> Refusal:
        return Refusal(
            503,
            "too_many_waiting",
            f"{why}: ask without waiting, or try again later",
            retry_after_s=self.bounds.retry_after_s,
        )

    async def outcome(
        self, ticket: Ticket[Any], connection: Connection, take_back: Callable[[Any], Awaitable[None]] | None = None,
        name: tuple[str, str] | None = None,
    ) -> Any:  # fmt: skip
        """What a ticket gives, unless the client goes first: then what it was given is taken back. By its `name`, if it has one, the client may end the wait."""
        if not isinstance(ticket, Stoppable):  # it is there, or on its way
            return await _unless_gone(await ticket.get(), connection, take_back)
        self._waits.add(ticket)
        if name is not None:
            self._named[name] = ticket
        if self.stopping:
            ticket.stop()
        connection.at_its_end(ticket.stop)
        try:
            # Between what was found and the answer nothing is waited for, so this is the last look.
            return await _unless_gone(await ticket.get(), connection, take_back)
        finally:
            connection.at_its_end(None)
            self._waits.discard(ticket)
            if name is not None and self._named.get(name) is ticket:
                del self._named[name]

    def end_wait(self, caller: Caller, name: str) -> bool:
        """Have a caller's own request answered with what it was granted, or nothing; whether there was one of that name."""
        found = self._named.get((caller.party, name))
        if found is not None:
            found.stop()
        return found is not None

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._polls

    def stop(self) -> None:
        """Nobody waits any longer. To be called in the loop's thread."""
        self.stopping = True
        for wait in list(self._waits):
            wait.stop()


async def _unless_gone(
    found: Any, connection: Connection, take_back: Callable[[Any], Awaitable[None]] | None
) -> Any:
    """What somebody was given, if he is still there; otherwise it is taken back."""
    if not connection.is_closing():
        return found
    if take_back is not None:
        await take_back(found)
    raise ClientGone


async def require_present(connection: Connection) -> None:
    """Raise `ClientGone` if nobody is there any more. Others have a turn first: what is sent to one who has gone never waits, so nobody else would run, nor would its going be noticed."""
    await asyncio.sleep(0)
    if connection.is_closing():
        raise ClientGone
