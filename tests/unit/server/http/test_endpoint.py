"""An answer that comes in parts keeps what it holds, or is counted as a success when it failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, MutableMapping
from typing import Any

import pytest

from penstock.broker.opening import in_memory
from penstock.clock import ManualClock
from penstock.errors import Unauthorized
from penstock.server.http import app as application
from penstock.server.http.app import create
from penstock.server.http.route import Call, Events, Route, Stream


class Statuses:
    """An observer that remembers how requests ended."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        del route, method, seconds
        self.seen.append(status)

    def render(self, namespaces: Collection[str] | None) -> bytes:
        raise NotImplementedError(namespaces)


class Served:
    """An address whose answer is of the test's making, and what came of asking it once."""

    def __init__(
        self, kind: str, error: Exception | None = None, failing: type[BaseException] | None = None
    ) -> None:
        self.closed = 0
        self.sent: list[MutableMapping[str, Any]] = []
        self._kind = kind
        self._error = error
        self._failing = failing
        port = in_memory(ManualClock())
        statuses = Statuses()
        route = Route(
            method="GET", path="/made-up", summary="", handler=self._handler, public=True, answer=str
        )
        try:
            asyncio.run(self._ask(create(port, observer=statuses, routes=(route,))))
        except asyncio.CancelledError:
            pass
        finally:
            port.close()
        self.statuses = statuses.seen

    async def _handler(self, call: Call) -> Any:
        del call
        return Events(self._parts()) if self._kind == "events" else Stream(self._parts(), "x/y", self._close)

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        yield b"first"
        if self._error is not None:
            raise self._error

    def _close(self) -> None:
        self.closed += 1

    async def _ask(self, app: Any) -> None:
        scope = {"type": "http", "method": "GET", "path": "/made-up", "raw_path": b"/made-up", "query_string": b"", "headers": [],
                 "scheme": "http", "server": ("here", 80), "client": ("there", 1), "http_version": "1.1", "asgi": {"version": "3.0"},
                 "root_path": "", "extensions": {}}  # fmt: skip

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if self._failing is not None:
                raise self._failing
            self.sent.append(message)

        await app(scope, receive, send)

    @property
    def is_ended(self) -> bool:
        return self.sent[-1].get("more_body") is False


def test_what_came_whole_is_not_given_back() -> None:
    served = Served("parts")
    assert (served.closed, served.statuses, served.is_ended) == (1, [200], True)


@pytest.mark.parametrize(("error", "status"), [(ValueError("a mistake"), 500), (Unauthorized("over"), 401)])
def test_what_failed_in_the_middle_counts_as_a_success(error: Exception, status: int) -> None:
    served = Served("parts", error)
    assert (served.closed, served.statuses) == (1, [status])
    assert not served.is_ended, "whoever reads it would take it for whole"
    served = Served("events", error)
    assert served.statuses == [status]
    assert served.is_ended
    assert served.sent[-2]["body"].startswith(b"event: problem")


def test_what_was_never_begun_is_not_given_back() -> None:
    """It was cancelled while its head was sent: its generator has not run, so nothing in there is ever done."""
    served = Served("parts", failing=asyncio.CancelledError)
    assert served.closed == 1


# --- addresses ---


async def answered(app: Any, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> int:
    """The status of one request."""
    sent: list[MutableMapping[str, Any]] = []
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers,
             "scheme": "http", "server": ("here", 80), "client": ("there", 1), "http_version": "1.1", "asgi": {"version": "3.0"},
             "root_path": "", "extensions": {}}  # fmt: skip

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found: int = sent[0]["status"]
    return found


HOST = (b"host", b"here")
QUEUE = "/v1/namespaces/default/queues/orders"


def asked(*requests: tuple[str, str, list[tuple[bytes, bytes]]]) -> list[int]:
    """The statuses of some requests, one after the other."""

    async def ask(app: Any) -> list[int]:
        return [await answered(app, *request) for request in requests]

    port = in_memory(ManualClock())
    try:
        return asyncio.run(ask(create(port)))
    finally:
        port.close()


def test_an_address_that_is_known_is_another_for_another_method_path_or_host() -> None:
    odd = (b"host", b"no host at all")
    assert asked(
        ("PUT", QUEUE, [HOST]), ("PUT", QUEUE, [HOST]), ("GET", QUEUE, [HOST]), ("GET", QUEUE, [HOST]), ("GET", QUEUE + "2", [HOST]),
        ("GET", QUEUE + "2", [HOST]), ("POST", QUEUE, [HOST]), ("POST", QUEUE, [HOST]), ("GET", QUEUE, [odd]), ("GET", QUEUE, [odd]),
    ) == [201, 200, 200, 200, 404, 404, 405, 405, 400, 400]  # fmt: skip


def test_addresses_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "FOUND_MAX", 3)
    port = in_memory(ManualClock())
    app = create(port)

    async def ask() -> None:
        for number in range(10):
            await answered(app, "GET", f"{QUEUE}{number}", [HOST])
        await answered(app, "GET", QUEUE + "x" * application.FOUND_LENGTH_MAX, [HOST])

    try:
        asyncio.run(ask())
    finally:
        port.close()
    assert 1 <= len(app._found) <= 3
    assert all(len(path) < 100 for _, path, _ in app._found)


def test_one_of_two_tokens_is_believed() -> None:
    assert asked(
        ("GET", QUEUE, [HOST, (b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")])
    ) == [400]
