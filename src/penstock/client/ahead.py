"""Messages that were fetched ahead for a consumer.

Theory of operation
-------------------
A consumer with `prefetch=n` leases up to n messages at a time and hands them out one by one, so that it asks the server once for n of them. The buffer is filled again in the background when half of it is gone, if the last time there was as much as was asked for; who finds it
empty asks, and waits, himself.

At any time one request fetches ahead, and asks for what is missing: there are never more than n in the buffer, however many threads take from it. Another one who finds it empty meanwhile asks for his own only, which he is given at once; when the buffer is filled before he has
something, he waits no longer, and takes from there.

What waits here is leased *ahead*: it is renewed as long as it waits, and whatever ends its lease (the
consumer goes, this process or the server is killed) counts no attempt. Before a message is handed to
the consumer's code, the server is told so and has recorded it; that attempt counts. A receive that
waits asks for its own messages as handed over, so only what comes from the buffer costs that request.

A server that was started again knows none of these leases: what it has would be handled here, refused, and handled again elsewhere. Each answer of a server says which of its lives it is in, and what was fetched in another one than the newest answer came from is dropped.

What is settled when it is handed out (`auto_ack`, at most once) is never fetched ahead: it would be gone with the buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.broker.hand_over import HandOvers
from penstock.broker.port import Granted
from penstock.client.rows import RemoteHandle, granted
from penstock.client.running import Halt
from penstock.clock import SECOND_US, Clock
from penstock.errors import LeaseLost, PenstockError
from penstock.model.commands import Receipts
from penstock.wire import DeliveryRow, Leases

#: A lease is renewed after this part of the visibility timeout: two renewals may fail before it is lost.
RENEW_AFTER: Final = 1 / 3

#: Leases so many messages, so many of them ahead.
Fetch = Callable[[int, int, int | None, Halt | None], Awaitable[Leases | None]]


class Settling(Protocol):
    """What the buffer needs of its port."""

    clock: Clock

    @property
    def life(self) -> bytes | None:
        """Which of its lives the server is in, by its newest answer."""

    async def renew(self, log: RemoteHandle, receipts: Receipts, seconds: float) -> None: ...

    async def unseen(self, log: RemoteHandle, receipts: Receipts) -> None: ...

    async def hand_over(self, log: RemoteHandle, receipts: Receipts) -> list[int]: ...


class _Held:
    __slots__ = ("is_ahead", "life", "number", "row", "since_us")

    def __init__(
        self, row: DeliveryRow, number: int, since_us: int, life: bytes | None, is_ahead: bool
    ) -> None:
        self.row = row
        self.number = number
        self.since_us = since_us
        self.life = life
        self.is_ahead = is_ahead  # the server does not know yet that code gets it


class Ahead:
    """The buffer of one consumer."""

    def __init__(self, port: Settling, log: RemoteHandle, group: str, most: int, fetch: Fetch) -> None:
        self._port = port
        self._log = log
        self._group = group
        self._most = most
        self._fetch = fetch
        self._held: deque[_Held] = deque()
        self._hand_overs = HandOvers(group, lambda receipts: port.hand_over(log, receipts))
        self._more = False  # the last time, there was as much as was asked for
        self._fetching = False  # one at a time
        self._filling: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._beside: set[Halt] = set()  # of those who ask for their own while somebody fetches ahead

    async def take(self, count: int, wait_us: int | None, halt: Halt) -> Granted | None:
        """The next messages, from the buffer if there are some."""
        end_us = None if wait_us is None else self._port.clock.monotonic_us() + wait_us
        while True:
            self._drop_ended()
            if self._held:
                found = await self._hand_out(count)
                if found is not None:
                    return found
                continue
            if self._filling is not None:
                await asyncio.wait((self._filling,))
                continue
            if end_us is not None:
                wait_us = max(0, end_us - self._port.clock.monotonic_us())
            if not self._fetching:
                await self._fetched(max(count, self._most), count, wait_us, halt)
                if not self._held:
                    return None
                continue
            found = await self._alone(count, wait_us, halt)
            if found is not None:
                return found
            is_over = end_us is not None and self._port.clock.monotonic_us() >= end_us
            if not self._held and (halt.said or is_over):
                return None

    async def _fetched(self, wanted: int, at_once: int, wait_us: int | None, halt: Halt | None) -> None:
        self._fetching = True
        try:
            self._put(await self._fetch(wanted, wanted - at_once, wait_us, halt), wanted, at_once)
        finally:
            self._fetching = False
            # Each wakes up for something, but for one: he is the next who fetches.
            for beside in list(self._beside)[: len(self._held) + 1]:
                beside.say()

    async def _alone(self, count: int, wait_us: int | None, halt: Halt) -> Granted | None:
        """What somebody needs himself, until there is something in the buffer."""
        beside = Halt()
        end = beside.say
        halt.heed(end)
        self._beside.add(beside)
        try:
            found = await self._fetch(count, 0, wait_us, beside)
        finally:
            self._beside.discard(beside)
            halt.ignore(end)
        if found is None or not found.deliveries:
            return None
        return granted(found.deliveries, self._group, found.number)

    async def _hand_out(self, count: int) -> Granted | None:
        """Up to so many of the same lease, once the server knows; None if their lease has ended."""
        number = self._held[0].number
        taken: list[_Held] = []
        while self._held and len(taken) < count and self._held[0].number == number:
            taken.append(self._held.popleft())
        self._fill_if_half_empty()
        return granted([one.row for one in await self._reported(taken)], self._group, number)

    async def _reported(self, taken: list[_Held]) -> list[_Held]:
        """Report what was leased ahead; those of `taken` that are still ours."""
        offsets = [one.row.offset for one in taken if one.is_ahead]
        if not offsets:
            return taken
        try:
            held = await self._hand_overs.report(offsets, [taken[0].number] * len(offsets))
        except BaseException:  # the next receive tries again
            self._held.extendleft(reversed(taken))
            raise
        return [one for one in taken if not one.is_ahead or one.row.offset in held]

    def _fill_if_half_empty(self) -> None:
        if self._more and not self._fetching and self._filling is None and len(self._held) <= self._most // 2:
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def _fill(self) -> None:
        wanted = self._most - len(self._held)
        try:
            with suppress(PenstockError):  # whoever finds the buffer empty asks himself, and hears of it
                await self._fetched(wanted, 0, 0, None)
        finally:
            self._filling = None

    def _put(self, found: Leases | None, wanted: int, at_once: int) -> None:
        rows = [] if found is None else found.deliveries
        self._more = len(rows) >= wanted
        if found is None or not rows:
            return
        now_us = self._port.clock.monotonic_us()
        life = self._port.life
        self._held.extend(_Held(row, found.number, now_us, life, n >= at_once) for n, row in enumerate(rows))
        if self._renewing is None and self._log.policy.visibility_timeout is not None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def _drop_ended(self) -> None:
        """What nobody renewed in time (the process stood still) is somebody else's by now, and so is what was fetched in another life of the server."""
        life, timeout = self._port.life, self._log.policy.visibility_timeout
        begun_us = None if timeout is None else self._port.clock.monotonic_us() - round(timeout * SECOND_US)
        self._held = deque(
            one for one in self._held if one.life == life and (begun_us is None or one.since_us > begun_us)
        )

    async def _renew(self) -> None:
        try:
            while self._held and (timeout := self._log.policy.visibility_timeout) is not None:
                await asyncio.sleep(timeout * RENEW_AFTER)
                self._drop_ended()
                for number in {one.number for one in self._held}:
                    await self._renew_lease(number, timeout)
        finally:
            self._renewing = None

    async def _renew_lease(self, number: int, timeout: float) -> None:
        kept = [one for one in self._held if one.number == number]
        if not kept:
            return
        try:
            if await self._renewed(kept, timeout):
                return
            for one in kept:  # some were handed out and settled meanwhile, or the group was sent elsewhere
                if one in self._held and not await self._renewed([one], timeout):
                    # It may have been handed out, or all of them forgotten, while that was asked.
                    self._held = deque(held for held in self._held if held is not one)
        except PenstockError:
            return  # the next time, or they end

    async def _renewed(self, held: list[_Held], timeout: float) -> bool:
        now_us = self._port.clock.monotonic_us()
        try:
            await self._port.renew(self._log, self._receipts(held), timeout)
        except LeaseLost:
            return False
        for one in held:
            one.since_us = now_us
        return True

    def _receipts(self, held: list[_Held]) -> Receipts:
        return Receipts(self._group, [one.row.offset for one in held], [one.number for one in held])

    def forget(self) -> None:
        """Their leases have ended: the group was sent elsewhere, or the server has begun a new life."""
        self._held.clear()

    async def close(self) -> None:
        """Give everything back, as if it had never been fetched."""
        tasks: list[asyncio.Task[Any]] = [one for one in (self._renewing,) if one is not None]
        for task in tasks:
            task.cancel()
        filling = self._filling
        if filling is not None:
            try:
                await asyncio.wait((filling,))
            except asyncio.CancelledError:  # the time to give something back is over
                filling.cancel()
                raise
        self._drop_ended()
        back, self._held = list(self._held), deque()
        if not back:
            return
        try:
            await self._port.unseen(self._log, self._receipts(back))
        except LeaseLost:
            for one in back:
                with suppress(PenstockError):
                    await self._port.unseen(self._log, self._receipts([one]))
        except PenstockError:
            return  # the end of the consumer gives them back
