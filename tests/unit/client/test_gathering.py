"""Publishes of several callers in one request: who goes with whom, and who hears of what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.client import gathering
from penstock.client.gathering import Gathering
from penstock.errors import MessageTooLarge, PenstockError, QueueFull, ServerUnavailable
from penstock.wire import Item

Items = list[bytes | Item]


class Server:
    """Answers when it is let, and keeps what it was sent."""

    def __init__(self, refuse: Callable[[Items, int], Exception | None] = lambda _, __: None) -> None:
        self.sent: list[tuple[Items, bool]] = []
        self.open = asyncio.Event()
        self._refuse = refuse
        self._ids = iter(range(1000))

    async def send(self, items: Items, safe: bool) -> list[int]:
        self.sent.append((items, safe))
        await self.open.wait()
        error = self._refuse(items, len(self.sent))
        if error is not None:
            raise error
        return [next(self._ids) for _ in items]

    @property
    def payloads(self) -> list[list[bytes]]:
        return [[one if isinstance(one, bytes) else one.payload for one in items] for items, _ in self.sent]


async def published(server: Server, *parties: Items) -> list[Any]:
    """What each hears, when all come while the first is under way."""
    found = Gathering(server.send, lambda: 300.0, 60.0)
    calls = [asyncio.ensure_future(found.publish(items)) for items in parties]
    await asyncio.sleep(0)  # all have begun
    server.open.set()
    return await asyncio.gather(*calls, return_exceptions=True)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def known(*names: str) -> Items:
    return [Item(payload=name.encode(), dedup_id=name) for name in names]


def test_who_comes_alone_waits_for_company() -> None:
    async def main() -> None:
        server = Server()
        server.open.set()
        found = Gathering(server.send, lambda: 300.0, 60.0)
        assert [await found.publish([b"a"]), await found.publish([b"b"])] == [[0], [1]]
        assert server.payloads == [[b"a"], [b"b"]]

    run(main())


def test_who_comes_meanwhile_goes_alone_or_out_of_order() -> None:
    async def main() -> None:
        server = Server()
        answers = await published(server, [b"a"], [b"b", b"c"], [b"d"], [b"e"])
        assert answers == [[0], [1, 2], [3], [4]]
        assert server.payloads == [[b"a"], [b"b", b"c", b"d", b"e"]]

    run(main())


def test_a_request_is_larger_than_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHERED_COUNT_MAX", 3)
    monkeypatch.setattr(gathering, "GATHERED_BYTES_MAX", 100)

    async def main() -> None:
        server = Server()
        answers = await published(
            server, [b"a"], [b"b"] * 5, [b"c", b"d"], [b"e"], [b"f"], [b"g" * 90], [b"h"]
        )
        assert [len(one) for one in answers] == [1, 5, 2, 1, 1, 1, 1]
        assert [len(one) for one in server.payloads] == [1, 5, 3, 1, 1, 1]

    run(main())


def test_a_refusal_of_one_is_heard_by_the_others_or_stores_something_twice() -> None:
    async def main() -> None:
        def refuse(items: Items, _: int) -> Exception | None:
            return MessageTooLarge("too large") if b"bad" in items else None

        server = Server(refuse)
        answers = await published(server, [b"a"], [b"b"], [b"bad"], [b"c"])
        assert [type(one) for one in answers] == [list, list, MessageTooLarge, list]
        assert server.payloads == [[b"a"], [b"b", b"bad", b"c"], [b"b"], [b"bad"], [b"c"]]

    run(main())


def test_room_for_some_is_given_to_others_than_came_first() -> None:
    async def main() -> None:
        def refuse(_: Items, number: int) -> Exception | None:
            return QueueFull("full") if number == 2 or number > 4 else None

        answers = await published(Server(refuse), [b"a"], [b"b"], [b"c"], [b"d"], [b"e"])
        assert [type(one) for one in answers] == [list, list, list, QueueFull, QueueFull]

    run(main())


def test_without_an_answer_something_unknown_is_sent_again() -> None:
    async def main() -> None:
        def lost(_: Items, number: int) -> Exception | None:
            return ServerUnavailable("no answer", indeterminate=True) if number == 2 else None

        server = Server(lost)
        answers = await published(server, [b"a"], [b"b"], known("c", "d"), [*known("e"), b"f"])
        assert [type(one) for one in answers] == [list, ServerUnavailable, list, ServerUnavailable]
        assert answers[1] is not answers[3]
        assert all(one.indeterminate for one in (answers[1], answers[3]))
        assert server.payloads[2:] == [[b"c", b"d"]]
        assert [safe for _, safe in server.sent] == [False, False, True]

    run(main())


def test_a_server_that_is_away_is_asked_for_each_caller() -> None:
    async def main() -> None:
        server = Server(lambda _, __: ServerUnavailable("refused"))
        answers = await published(server, known("a"), known("b"), [b"c"])
        assert [type(one) for one in answers] == [ServerUnavailable] * 3
        assert len(server.sent) == 2

    run(main())


def test_who_comes_after_a_failure_is_never_sent() -> None:
    async def main() -> None:
        server = Server(lambda _, number: RuntimeError("a mistake") if number == 1 else None)
        server.open.set()
        found = Gathering(server.send, lambda: 300.0, 60.0)
        with pytest.raises(RuntimeError):
            await found.publish([b"a"])
        assert await found.publish([b"b"]) == [0]

    run(main())


def test_a_mistake_of_the_server_is_taken_for_a_refusal_and_sent_again() -> None:
    class Mistake(PenstockError):
        indeterminate = True

    async def main() -> None:
        server = Server(lambda _, number: Mistake("a mistake") if number == 2 else None)
        answers = await published(server, [b"a"], [b"b"], known("c"))
        assert [type(one) for one in answers] == [list, Mistake, list]
        assert server.payloads[2:] == [[b"c"]]

    run(main())


def test_what_a_log_forgets_is_sent_again() -> None:
    async def main() -> None:
        server = Server()
        server.open.set()
        await Gathering(server.send, lambda: 60.0, 60.0).publish(known("a"))
        assert [safe for _, safe in server.sent] == [False]

    run(main())


def test_what_a_log_may_have_forgotten_meanwhile_is_sent_again() -> None:
    """Who goes alone after the others may go so late that the log knows his dedup id no longer."""

    async def main() -> None:
        now_s = 0.0
        asyncio.get_running_loop().time = lambda: now_s  # type: ignore[method-assign]

        def lost(_: Items, number: int) -> Exception | None:
            nonlocal now_s
            now_s += 100
            return ServerUnavailable("no answer", indeterminate=True) if number == 2 else None

        server = Server(lost)
        answers = await published(server, known("a"), known("b"), known("c"), known("d"))
        # The first request of the three came at 100; at 200 and 300 those before are tried, and at 400 it would be too late.
        assert [type(one) for one in answers] == [list, list, list, ServerUnavailable]
        assert answers[3].indeterminate
        assert server.payloads[2:] == [[b"b"], [b"c"]]

    run(main())
