"""An answer that comes later: threads wait for it, asyncio awaits it.

Every call of the port gives a ticket at once and never blocks. A ticket is one of three things:

- `Answer`: it is there already (in memory nearly everything is);
- `Recorded`: it is there when the journal has recorded what it rests on. The thread that waits may be the one that commits;
- `Waiting`: a receive that waits for messages. It is granted some, or given up, by whoever notices first: a publisher, the timer,
  close. Then what was granted is recorded like anything else.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from penstock.errors import PenstockError, fresh_copy
from penstock.loop import running_loop

if TYPE_CHECKING:  # who does not use asyncio does not pay for importing it
    import asyncio

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Record(Protocol):
    """A ticket of the journal."""

    done: bool

    def wait(self) -> int: ...

    def promise(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]: ...


class _Done:
    """The record of what needs no recording."""

    done = True

    def wait(self) -> int:
        return 0

    def promise(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        future.set_result(0)
        return future


DONE: Final = _Done()


async def _held(record: Record) -> None:
    """Until a record holds. One that does already costs no turn of the loop."""
    if record.done:
        record.wait()
    else:
        await record.promise(running_loop())


class Ticket(Protocol[T_co]):
    """What every call of the port gives."""

    def wait(self) -> T_co:
        """Block until the answer is there; give it or raise it."""
        ...

    async def get(self) -> T_co:
        """The same for asyncio."""
        ...


class Answer(Generic[T]):
    """An answer that is there."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def wait(self) -> T:
        return self.value

    async def get(self) -> T:
        return self.value


class Recorded(Generic[T]):
    """An answer that holds once its record does."""

    __slots__ = ("record", "value")

    def __init__(self, value: T, record: Record) -> None:
        self.value = value
        self.record = record

    def wait(self) -> T:
        self.record.wait()
        return self.value

    async def get(self) -> T:
        await _held(self.record)
        return self.value


class Listed:
    """The answer to a unit of one command."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: Ticket[Any]) -> None:
        self.ticket = ticket

    def wait(self) -> list[Any]:
        return [self.ticket.wait()]

    async def get(self) -> list[Any]:
        return [await self.ticket.get()]


class Refused:
    """The answer of a call that was refused after it began to wait."""

    __slots__ = ("_error",)

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def wait(self) -> Any:
        raise fresh_copy(self._error)

    async def get(self) -> Any:
        raise fresh_copy(self._error)


class Leasing(Generic[T]):
    """Messages that were granted. If whoever asked for them goes away before it gets them, they are taken back."""

    __slots__ = ("_log", "_record", "_take_back", "_value")

    def __init__(self, value: T, record: Record, take_back: Callable[[Any, T], None], log: Any) -> None:
        self._value = value
        self._record = record
        self._take_back = take_back
        self._log = log

    def wait(self) -> T:
        try:
            self._record.wait()
        except BaseException:
            self.abandon()
            raise
        return self._value

    def abandon(self) -> None:
        """Nobody will see them."""
        self._take_back(self._log, self._value)

    async def get(self) -> T:
        try:
            await _held(self._record)
        except BaseException:
            self.abandon()
            raise
        return self._value


class Stoppable:
    """A ticket that may be told to wait no longer. Any other is waited for to its end: what it brings may be settled already, and is nobody else's."""

    __slots__ = ()

    def stop(self) -> None:
        """Wait no longer: the answer is what was granted, or nothing."""
        raise NotImplementedError


#: For each event loop, a lock that the one holds whose turn it is to ask again.
_turns: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = (
    weakref.WeakKeyDictionary()
)


class Again(Stoppable):
    """The answer of a call that has to be made once more, in a later turn.

    In a turn of an event loop only one such call is made, however many wait for theirs: other
    tasks never wait for more than that.
    """

    __slots__ = ("_ask", "_asked", "_stopped")

    def __init__(self, ask: Callable[[], Ticket[Any]]) -> None:
        self._ask = ask
        self._asked: Ticket[Any] | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if isinstance(self._asked, Stoppable):
            self._asked.stop()

    def wait(self) -> Any:
        while isinstance(ticket := self._next(), Again):
            self._ask = ticket._ask
            time.sleep(0)  # other threads take the lock meanwhile
        return None if ticket is None else ticket.wait()

    async def get(self) -> Any:
        while isinstance(ticket := await self._next_turn(), Again):
            self._ask = ticket._ask
        return None if ticket is None else await ticket.get()

    async def _next_turn(self) -> Ticket[Any] | None:
        async with _turns.setdefault(running_loop(), sys.modules["asyncio"].Lock()):
            await sys.modules["asyncio"].sleep(0)
            return self._next()

    def _next(self) -> Ticket[Any] | None:
        """What asking gives; None if nobody wants it any more."""
        if self._stopped:
            return None
        ticket = self._asked = self._ask()
        if self._stopped:  # meanwhile, by another thread
            self.stop()
        return ticket


class Waiting(Stoppable):
    """A receive that waits at a place: a log and a group. `outcome` is the ticket of what was granted, set once, by `grant`."""

    __slots__ = (
        "_future", "_gate", "_loop", "_thread", "ahead", "bytes_max", "consumer", "count", "deadline_us", "give_up", "outcome", "place", "rides", "settle", "stands",
    )  # fmt: skip

    def __init__(
        self, place: tuple[Any, str], count: int, consumer: str | None, *, deadline_us: int | None, give_up: Any,
        settle: bool = False, ahead: int = 0, bytes_max: int | None = None, rides: bool = False,
    ) -> None:  # fmt: skip
        self.place = place
        self.count = count
        self.ahead = ahead
        self.consumer = consumer
        self.settle = settle
        self.rides = rides
        self.bytes_max = bytes_max
        self.deadline_us = deadline_us
        self.stands = False  # in a line: see `lines`
        self.give_up = give_up
        self.outcome: Ticket[Any] | None = None
        self._gate: threading.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # of the loop
        self._future: asyncio.Future[None] | None = None

    def grant(self, outcome: Ticket[Any]) -> None:
        """With the broker's lock held: here it is."""
        self.outcome = outcome
        if self._gate is not None:
            self._gate.release()
        if self._loop is not None and self._future is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody is left to hear of it
                if (
                    threading.get_ident() == self._thread
                ):  # it hears of it a turn sooner, and before whoever published
                    _resolve(self._future)
                else:
                    self._loop.call_soon_threadsafe(_resolve, self._future)

    def stop(self) -> None:
        """Wait no longer: the answer is what was granted, or nothing."""
        self.give_up(self, granted=False)

    def wait(self) -> Any:
        gate = threading.Lock()
        gate.acquire()
        self._gate = gate
        try:
            while self.outcome is None:
                gate.acquire()
            return self.outcome.wait()
        except BaseException:
            self.give_up(self)
            raise

    async def get(self) -> Any:
        self._loop = running_loop()
        self._thread = threading.get_ident()
        self._future = self._loop.create_future()
        try:
            while self.outcome is None:
                await self._future
            return await self.outcome.get()
        except BaseException:
            self.give_up(self)
            raise


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():  # its caller gave up
        future.set_result(None)
