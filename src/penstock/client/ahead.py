"""Messages that were fetched ahead for a consumer.

Theory of operation
-------------------
A consumer with `prefetch=n` leases up to n messages at a time and hands them out one by one, so that it asks the server once for n of them. The buffer is filled again in the background when half of it is gone, if the last time there was as much as was asked for; who finds it
empty asks, and waits, himself.

What waits here is leased: it is renewed as long as it does, and goes back unseen (no attempt is counted) when the consumer goes. A crash of this process leaves what any consumer's crash leaves: leases, which end by themselves, with the attempt counted.

What is settled when it is handed out (`auto_ack`, at most once) is never fetched ahead: it would be gone with the buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.broker.port import Granted, Receipts
from penstock.client.rows import RemoteHandle, granted
from penstock.client.running import Halt
from penstock.clock import SECOND_US, Clock
from penstock.errors import LeaseLost, PenstockError
from penstock.wire import DeliveryRow, Leases

#: A lease is renewed after this part of the visibility timeout: two renewals may fail before it is lost.
RENEW_AFTER: Final = 1 / 3

Fetch = Callable[[int, int | None, Halt | None], Awaitable[Leases | None]]


class Settling(Protocol):
    """What the buffer needs of its port."""

    clock: Clock

    async def renew(self, log: RemoteHandle, receipts: Receipts, seconds: float) -> None: ...

    async def unseen(self, log: RemoteHandle, receipts: Receipts) -> None: ...


class _Held:
    __slots__ = ("number", "row", "since_us")

    def __init__(self, row: DeliveryRow, number: int, since_us: int) -> None:
        self.row = row
        self.number = number
        self.since_us = since_us


class Ahead:
    """The buffer of one consumer."""

    def __init__(self, port: Settling, log: RemoteHandle, group: str, most: int, fetch: Fetch) -> None:
        self._port = port
        self._log = log
        self._group = group
        self._most = most
        self._fetch = fetch
        self._held: deque[_Held] = deque()
        self._more = False  # the last time, there was as much as was asked for
        self._filling: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, count: int, wait_us: int | None, halt: Halt) -> Granted | None:
        """The next messages, from the buffer if there are some."""
        while True:
            self._drop_ended()
            if self._held:
                return self._hand_out(count)
            if self._filling is None:
                break
            await asyncio.wait((self._filling,))
        found = await self._fetch(max(count, self._most), wait_us, halt)
        self._put(found, max(count, self._most))
        return self._hand_out(count) if self._held else None

    def _hand_out(self, count: int) -> Granted | None:
        """Up to so many of the same lease."""
        number = self._held[0].number
        rows: list[DeliveryRow] = []
        while self._held and len(rows) < count and self._held[0].number == number:
            rows.append(self._held.popleft().row)
        if self._more and self._filling is None and len(self._held) <= self._most // 2:
            self._filling = asyncio.get_running_loop().create_task(self._fill())
        return granted(rows, self._group, number)

    async def _fill(self) -> None:
        wanted = self._most - len(self._held)
        try:
            with suppress(PenstockError):  # whoever finds the buffer empty asks himself, and hears of it
                self._put(await self._fetch(wanted, 0, None), wanted)
        finally:
            self._filling = None

    def _put(self, found: Leases | None, wanted: int) -> None:
        rows = [] if found is None else found.deliveries
        self._more = len(rows) >= wanted
        if found is None or not rows:
            return
        now_us = self._port.clock.monotonic_us()
        self._held.extend(_Held(row, found.number, now_us) for row in rows)
        if self._renewing is None and self._log.policy.visibility_timeout is not None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def _drop_ended(self) -> None:
        """What nobody renewed in time (the process stood still) is somebody else's by now."""
        timeout = self._log.policy.visibility_timeout
        if timeout is None:
            return
        begun_us = self._port.clock.monotonic_us() - round(timeout * SECOND_US)
        self._held = deque(one for one in self._held if one.since_us > begun_us)

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
        if self._filling is not None:
            await asyncio.wait((self._filling,))
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
