"""An answer that comes in parts keeps what it holds, or is counted as a success when it failed; a request is answered that should not be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Collection, MutableMapping
from contextlib import closing
from typing import Any

import httpx2
import jwt
import msgspec
import pytest

from penstock.broker.opening import in_memory
from penstock.clock import ManualClock
from penstock.errors import Unauthorized
from penstock.server.accounts import Accounts
from penstock.server.http.app import create
from penstock.server.http.bodies import DECODED_AT_ONCE_BYTES
from penstock.server.http.front import ClientGone
from penstock.server.http.parties import CONNECTION, Connection, NoConnection
from penstock.server.http.route import Call, Events, Route, Stream
from penstock.server.keys import Keys
from tests.server.running import Running

HOST = (b"host", b"localhost:8080")
ELSEWHERE = NoConnection()


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


class Closed(NoConnection):
    """A connection that has been closed."""

    def __init__(self) -> None:
        self.is_let_go = False

    def is_closing(self) -> bool:
        return True

    def let_go(self) -> None:
        self.is_let_go = True


@pytest.mark.parametrize("failing", [ClientGone, asyncio.CancelledError])
def test_who_is_gone_leaves_an_error_in_the_log(failing: type[BaseException]) -> None:
    """Whoever listens believes that an answer was forgotten, unless it is told that there will be none."""

    async def gone(call: Call) -> None:
        raise failing

    connection = Closed()
    route = Route(method="GET", path="/made-up", summary="", handler=gone, public=True)
    with closing(in_memory(ManualClock())) as port:
        app = create(port, routes=(route,))
        with pytest.raises(IndexError):  # nothing is sent
            asyncio.run(answered(app, "GET", "/made-up", [HOST], connection))
    assert connection.is_let_go


def test_a_request_that_is_cancelled_is_not() -> None:
    async def cancelled(call: Call) -> None:
        raise asyncio.CancelledError

    route = Route(method="GET", path="/made-up", summary="", handler=cancelled, public=True)
    with closing(in_memory(ManualClock())) as port, pytest.raises(asyncio.CancelledError):
        asyncio.run(answered(create(port, routes=(route,)), "GET", "/made-up", [HOST]))


# --- addresses ---


async def answered(
    app: Any, method: str, path: str, headers: list[tuple[bytes, bytes]], connection: Connection = ELSEWHERE
) -> int:
    """The status of one request."""
    sent: list[MutableMapping[str, Any]] = []
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers,
             "scheme": "http", "server": ("here", 80), "client": ("there", 1), "http_version": "1.1", "asgi": {"version": "3.0"},
             "root_path": "", "extensions": {}, CONNECTION: connection}  # fmt: skip

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found: int = sent[0]["status"]
    return found


QUEUE = "/v1/namespaces/default/queues/orders"


def asked(
    *requests: tuple[str, str, list[tuple[bytes, bytes]]], accounts: Accounts | None = None
) -> list[int]:
    """The statuses of some requests, one after the other."""

    async def ask(app: Any) -> list[int]:
        return [await answered(app, *request) for request in requests]

    port = in_memory(ManualClock())
    try:
        return asyncio.run(ask(create(port, accounts=accounts)))
    finally:
        port.close()


def test_address_is_looked_at_with_its_method_and_its_host() -> None:
    odd = (b"host", b"no host at all")
    assert asked(
        ("PUT", QUEUE, [HOST]), ("PUT", QUEUE, [HOST]), ("GET", QUEUE, [HOST]), ("GET", QUEUE, [HOST]), ("GET", QUEUE + "2", [HOST]),
        ("GET", QUEUE + "2", [HOST]), ("POST", QUEUE, [HOST]), ("POST", QUEUE, [HOST]), ("GET", QUEUE, [odd]), ("GET", QUEUE, [odd]),
    ) == [201, 200, 200, 200, 404, 404, 405, 405, 403, 403]  # fmt: skip


def test_one_of_two_tokens_or_hosts_is_believed() -> None:
    assert asked(
        ("GET", QUEUE, [HOST, (b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")]),
        ("GET", QUEUE, [(b"host", b"site.example"), HOST]), ("GET", QUEUE, [HOST, HOST]),
        ("GET", QUEUE, [HOST, (b"x-mine", b"a"), (b"x-mine", b"b")]),
    ) == [400, 400, 400, 404]  # fmt: skip


def test_a_compressed_body_is_taken_as_it_stands() -> None:
    assert asked(
        ("PUT", QUEUE, [HOST, (b"content-encoding", b"gzip")]), ("GET", QUEUE, [HOST]),
        ("PUT", QUEUE, [HOST, (b"content-encoding", b"gzip"), (b"content-encoding", b"identity")]),
        ("PUT", QUEUE, [HOST, (b"transfer-encoding", b"gzip, chunked")]), ("GET", QUEUE, [HOST]),
        ("PUT", QUEUE, [HOST, (b"content-encoding", b"Identity"), (b"transfer-encoding", b"Chunked")]),
    ) == [415, 404, 400, 501, 404, 201]  # fmt: skip


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "rebound.example:8080"},
        {"host": "localhost.example"},
        {"host": "192.0.2.1:8080"},
        {"host": "site@localhost"},
        {"host": "[::1]site.example"},
        {"host": "[::1"},
        {"host": "localhost:80:site.example"},
        {"host": "localhost", "origin": "http://[::1]site.example"},
        {"host": "localhost", "origin": "https://site.example"},
        {"host": "localhost", "origin": "http://localhost.site.example"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost", "sec-fetch-site": "cross-site"},  # a picture's address: no Origin comes with it
    ],
)
def test_a_page_from_elsewhere_reaches_a_server_without_a_key(headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert asked(("PUT", QUEUE, raw), ("GET", QUEUE, [HOST])) == [403, 404]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8080"},
        {"host": "127.1.2.3"},
        {"host": "[::1]:8080"},
        {"host": "LOCALHOST"},
        {"host": "queue.localhost:8080", "origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
        {},  # HTTP/1.0
    ],
)
def test_who_is_on_this_machine_is_refused(headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert asked(("PUT", QUEUE, raw)) == [201]


def test_with_a_key_a_name_of_elsewhere_is_refused() -> None:
    """Who may come is told by tokens then, which no page has of itself; and servers have names."""
    secret = "s" * 32
    accounts = Accounts(Keys.configured(secret, None, None), clock=ManualClock())
    claims = {"exp": 2**33, "namespaces": ["*"], "permissions": ["publish", "consume", "admin"]}
    token = jwt.encode(claims, secret, algorithm="HS256")
    from_elsewhere = [(b"host", b"queue.example"), (b"origin", b"https://site.example")]
    assert asked(
        ("PUT", QUEUE, from_elsewhere), ("PUT", QUEUE, [*from_elsewhere, (b"authorization", f"Bearer {token}".encode())]),
        accounts=accounts,
    ) == [401, 201]  # fmt: skip


class Decoded(msgspec.Struct):
    """A body that knows in which thread it was decoded."""

    payload: bytes
    thread: str = ""

    def __post_init__(self) -> None:
        self.thread = threading.current_thread().name


@pytest.mark.parametrize(
    ("octets", "thread"), [(10, "server of a test"), (DECODED_AT_ONCE_BYTES, "penstock-bodies")]
)
def test_a_large_body_is_decoded_in_a_thread_of_its_own(octets: int, thread: str) -> None:
    async def handler(call: Call) -> str:
        return str(call.body.thread)

    route = Route(method="POST", path="/made-up", summary="", handler=handler, request=Decoded, answer=str)
    body = msgspec.msgpack.encode({"payload": bytes(octets)})
    kind = {"content-type": "application/msgpack"}
    with (
        closing(in_memory(ManualClock())) as port,
        Running(port, routes=(route,)) as running,
        httpx2.Client() as client,
    ):
        answer = client.post(running.url + "/made-up", content=body, headers=kind)
        assert msgspec.msgpack.decode(answer.content) == thread
        answer = client.post(running.url + "/made-up", content=body[:-1] + b"\xc1\xc1", headers=kind)
        assert answer.status_code == 400
