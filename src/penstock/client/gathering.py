"""Publishes made close together, in one request.

Theory of operation
-------------------
For each log at most one request with messages is under way. Who publishes while none is goes at once, so nobody waits for company; whoever comes meanwhile is gathered, and goes with all others when the answer is
there. So the busier a log is, the larger its requests become, and the order in which publishes were begun is the order in which they are stored.

Each caller gets his own answer. A request is all or none, so one that was refused is taken apart and sent again, one caller after the other: who is to blame hears of it, and the others do not. If no answer came, those go again whose messages are all
known again by their dedup ids; what became of the others is not known, and they are told so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.client.rows import is_known_again, size_of
from penstock.errors import PenstockError, ServerUnavailable
from penstock.journal.commit import fresh_copy
from penstock.wire import Item

#: Messages, and bytes, of several callers in one request. A single caller's may be larger.
GATHERED_COUNT_MAX: Final = 2000
GATHERED_BYTES_MAX: Final = 1 << 20

Send = Callable[[list[bytes | Item], bool], Awaitable[list[int]]]


class _Party:
    """What one caller publishes."""

    __slots__ = ("answer", "bytes", "items", "safe")

    def __init__(
        self, items: list[bytes | Item], answer: asyncio.Future[list[int]], *, remembered: bool
    ) -> None:
        self.items = items
        self.answer = answer
        self.bytes = sum(map(size_of, items))
        self.safe = remembered and all(map(is_known_again, items))


class Gathering:
    """What is about to be published to one log. `remembers`: whether it knows a dedup id for as long as a request may be on its way."""

    def __init__(self, send: Send, remembers: Callable[[], bool]) -> None:
        self._send = send
        self._remembers = remembers
        self._waiting: deque[_Party] = deque()
        self._busy = False
        self._sending: asyncio.Task[None] | None = None  # a loop itself does not hold on to it

    async def publish(self, items: list[bytes | Item]) -> list[int]:
        """Append messages, all or none; their ids."""
        answer = asyncio.get_running_loop().create_future()
        party = _Party(items, answer, remembered=self._remembers())
        self._waiting.append(party)
        if self._busy:
            return await party.answer
        self._busy = True
        try:
            # Whoever comes first sends for the others too, until nobody waits. He has his own answer long before.
            await self._next()
        finally:
            if not self._waiting:
                self._busy = False
            else:
                self._hand_over()
        return await party.answer

    def _hand_over(self) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._rest())

    async def _rest(self) -> None:
        while self._waiting:
            await self._next()
        self._busy = False

    async def _next(self) -> None:
        parties = [self._waiting.popleft()]
        count, size = len(parties[0].items), parties[0].bytes
        while self._waiting:
            party = self._waiting[0]
            count, size = count + len(party.items), size + party.bytes
            if count > GATHERED_COUNT_MAX or size > GATHERED_BYTES_MAX:
                break
            parties.append(self._waiting.popleft())
        if len(parties) == 1:
            await self._alone(parties[0])
        else:
            await self._together(parties)

    async def _together(self, parties: list[_Party]) -> None:
        items = [one for party in parties for one in party.items]
        try:
            ids = await self._send(items, all(party.safe for party in parties))
        except PenstockError as error:
            for party in parties:
                if _may_go_again(party, error):
                    await self._alone(party)
                else:
                    _refuse(party, fresh_copy(error))
        except BaseException as error:
            for party in parties:
                _refuse(party, error)
            raise
        else:
            at = 0
            for party in parties:
                _answer(party, ids[at : at + len(party.items)])
                at += len(party.items)

    async def _alone(self, party: _Party) -> None:
        try:
            ids = await self._send(party.items, party.safe)
        except Exception as error:
            _refuse(party, error)
        except BaseException as error:
            _refuse(party, error)
            raise
        else:
            _answer(party, ids)


def _may_go_again(party: _Party, error: PenstockError) -> bool:
    """Whether what was refused together is tried alone. If it is not known what became of it, only by whom that does no harm; if nobody is there, not by all of them one after the other."""
    if getattr(error, "indeterminate", False):
        return party.safe
    return not isinstance(error, ServerUnavailable)


def _answer(party: _Party, ids: list[int]) -> None:
    if not party.answer.done():
        party.answer.set_result(ids)


def _refuse(party: _Party, error: BaseException) -> None:
    if not party.answer.done():
        party.answer.set_exception(error)
