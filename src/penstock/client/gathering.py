"""Publishes made close together, in one request.

Theory of operation
-------------------
For each log at most one request with messages is under way. Who publishes while none is goes at once, so nobody waits for company; whoever comes meanwhile is gathered, and goes with all others when the answer is
there. So the busier a log is, the larger its requests become, and the order in which publishes were begun is the order in which they are stored.

Each caller gets his own answer. A request is all or none, so one that was refused is taken apart and sent again, one caller after the other: who is to blame hears of it, and the others do not. If no answer came, those go again whose messages are all
known again by their dedup ids, for as long as the log remembers those, counted from when they first went out; what became of the others is not known, and they are told so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.client.rows import is_known_again, size_of
from penstock.errors import PenstockError, ServerUnavailable, fresh_copy
from penstock.wire import Item

#: Messages, and bytes, of several callers in one request. A single caller's may be larger.
GATHERED_COUNT_MAX: Final = 2000
GATHERED_BYTES_MAX: Final = 1 << 20

Send = Callable[[list[bytes | Item], bool], Awaitable[list[int]]]


class _Party:
    """What one caller publishes."""

    __slots__ = ("answer", "bytes", "is_known_again", "items", "sent_s")

    def __init__(self, items: list[bytes | Item], answer: asyncio.Future[list[int]]) -> None:
        self.items = items
        self.answer = answer
        self.bytes = sum(map(size_of, items))
        self.is_known_again = all(map(is_known_again, items))
        self.sent_s: float | None = None  # for the first time


class Gathering:
    """What is about to be published to one log. `remembered_s`: for how long it knows a dedup id; `trying_s`: how long after its first try a request may come there for the last time."""

    def __init__(self, send: Send, remembered_s: Callable[[], float], trying_s: float) -> None:
        self._send = send
        self._remembered_s = remembered_s
        self._trying_s = trying_s
        self._waiting: deque[_Party] = deque()
        self._busy = False
        self._sending: asyncio.Task[None] | None = None  # a loop itself does not hold on to it

    async def publish(self, items: list[bytes | Item]) -> list[int]:
        """Append messages, all or none; their ids."""
        answer = asyncio.get_running_loop().create_future()
        party = _Party(items, answer)
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
        try:
            ids = await self._sent(parties)
        except PenstockError as error:
            for party in parties:
                if self._may_go_again(party, error):
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
            ids = await self._sent([party])
        except Exception as error:
            _refuse(party, error)
        except BaseException as error:
            _refuse(party, error)
            raise
        else:
            _answer(party, ids)

    async def _sent(self, parties: list[_Party]) -> list[int]:
        """What the server says to the messages of some callers, in one request."""
        now_s = asyncio.get_running_loop().time()
        for party in parties:
            party.sent_s = now_s if party.sent_s is None else party.sent_s
        items = [one for party in parties for one in party.items]
        return await self._send(items, all(self._is_safe(party, now_s) for party in parties))

    def _is_safe(self, party: _Party, now_s: float) -> bool:
        """Whether a request of now does no harm if what is in it was stored before. The log may have known it since it was first sent, whoever waited for whom meanwhile."""
        since_s = 0.0 if party.sent_s is None else now_s - party.sent_s
        return party.is_known_again and since_s + self._trying_s < self._remembered_s()

    def _may_go_again(self, party: _Party, error: PenstockError) -> bool:
        """Whether what was refused together is tried alone. If it is not known what became of it, only by whom that does no harm; if nobody is there, not by all of them one after the other."""
        if getattr(error, "indeterminate", False):
            return self._is_safe(party, asyncio.get_running_loop().time())
        return not isinstance(error, ServerUnavailable)


def _answer(party: _Party, ids: list[int]) -> None:
    if not party.answer.done():
        party.answer.set_result(ids)


def _refuse(party: _Party, error: BaseException) -> None:
    if party.answer.done():
        return
    if isinstance(error, asyncio.CancelledError):
        party.answer.cancel()
    else:
        party.answer.set_exception(error)
