"""Waiting for a ticket on behalf of a client, who may go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest

from penstock.broker.opening import in_memory
from penstock.broker.ticket import Answer, Stoppable
from penstock.server.http.app import create
from penstock.server.http.front import ClientGone, Front
from penstock.server.http.parties import NoConnection


class Waited(Stoppable):
    """A ticket that is granted something, or stopped."""

    def __init__(self) -> None:
        self.found: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        if not self.found.done():
            self.found.set_result(None)

    def wait(self) -> str | None:
        raise NotImplementedError

    async def get(self) -> str | None:
        return await self.found


class Client(NoConnection):
    """One who may go."""

    def __init__(self) -> None:
        self.taken_back: list[Any] = []
        self._is_gone = False
        self._tell: Callable[[], object] | None = None

    def is_closing(self) -> bool:
        return self._is_gone

    def at_its_end(self, tell: Callable[[], object] | None) -> None:
        self._tell = tell

    def go(self) -> None:
        self._is_gone = True
        if self._tell is not None:
            self._tell()

    @property
    def is_watched(self) -> bool:
        return self._tell is not None

    async def take_back(self, found: Any) -> None:
        self.taken_back.append(found)


def play(scene: Callable[[Front, Client], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        client = Client()
        await scene(create(port).front, client)
        assert not client.is_watched, "somebody still looks whether the client has gone"

    with closing(in_memory()) as port:
        asyncio.run(all_of_it())


def test_what_was_granted_is_given() -> None:
    async def scene(front: Front, client: Client) -> None:
        ticket = Waited()
        asyncio.get_running_loop().call_soon(ticket.found.set_result, "a message")
        assert await front.outcome(ticket, client, client.take_back) == "a message"
        assert client.taken_back == []

    play(scene)


def test_who_goes_waits_no_longer() -> None:
    async def scene(front: Front, client: Client) -> None:
        asyncio.get_running_loop().call_soon(client.go)
        with pytest.raises(ClientGone):
            await front.outcome(Waited(), client, client.take_back)
        assert client.taken_back == [None]

    play(scene)


def test_what_is_granted_to_one_who_has_gone_is_taken_back() -> None:
    async def scene(front: Front, client: Client) -> None:
        for ticket in (Answer("a message"), Waited()):
            if isinstance(ticket, Waited):
                ticket.found.set_result("a message")
            client.go()
            with pytest.raises(ClientGone):
                await front.outcome(ticket, client, client.take_back)
        assert client.taken_back == ["a message", "a message"]

    play(scene)


def test_nobody_waits_at_a_server_that_stops() -> None:
    async def scene(front: Front, client: Client) -> None:
        front.stop()
        assert await front.outcome(Waited(), client, client.take_back) is None

    play(scene)


def test_who_waits_when_a_server_stops_is_answered() -> None:
    async def scene(front: Front, client: Client) -> None:
        asyncio.get_running_loop().call_soon(front.stop)
        assert await front.outcome(Waited(), client, client.take_back) is None

    play(scene)


def test_what_is_settled_and_on_its_way_is_given_up_when_the_server_stops() -> None:
    class Settled:
        """A message of a queue that delivers at most once, behind whatever stands between: it is nobody else's."""

        def wait(self) -> str:
            raise NotImplementedError

        async def get(self) -> str:
            for _ in range(10):
                await asyncio.sleep(0)
            return "a message"

    async def scene(front: Front, client: Client) -> None:
        asyncio.get_running_loop().call_soon(front.stop)
        assert await front.outcome(Settled(), client, client.take_back) == "a message"

    play(scene)
