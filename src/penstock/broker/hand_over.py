"""Report that messages leased ahead are handed to a consumer's code, and learn which leases still hold.

The report is recorded before the code runs, so that a message that kills its process loses an attempt
and one that was only buffered there does not. Reports that are made while one is under way share the
next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.errors import PenstockError, fresh_copy
from penstock.model.commands import Receipts

#: Records that these messages are handed over; gives the offsets of those that are still leased.
Send = Callable[[Receipts], Awaitable[list[int]]]


class HandOvers:
    """The reports of one consumer, on one event loop."""

    def __init__(self, group: str, send: Send) -> None:
        self._group = group
        self._send = send
        self._waiting: list[tuple[list[int], list[int], asyncio.Future[set[int]]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def report(self, offsets: list[int], numbers: list[int]) -> set[int]:
        """Report messages with the numbers of their leases; the offsets that may be handed over."""
        answer: asyncio.Future[set[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((offsets, numbers, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())
        return await answer

    async def _send_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            given = Receipts(
                self._group,
                [offset for offsets, _, _ in waiting for offset in offsets],
                [number for _, numbers, _ in waiting for number in numbers],
            )
            try:
                held = set(await self._send(given))
            except BaseException as error:
                for _, _, answer in waiting:
                    _refuse(answer, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for _, _, answer in waiting:
                    if not answer.done():  # its caller went away
                        answer.set_result(held)


def _refuse(answer: asyncio.Future[set[int]], error: BaseException) -> None:
    if answer.done():
        return
    if isinstance(error, asyncio.CancelledError):
        answer.cancel()
    else:
        answer.set_exception(fresh_copy(error) if isinstance(error, PenstockError) else error)
