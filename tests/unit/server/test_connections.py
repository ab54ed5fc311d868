"""An answer that goes out in pieces, in the wrong order, to somebody else, or with somebody's text in its head; an end that nobody hears of. (Bounds: `tests/server/test_connections.py`.)"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from penstock.server import connections
from penstock.server.http.parties import CONNECTION, NoConnection
from penstock.server.listening import HttpFront
from penstock.server.quantity import Address
from tests.server.running import BOUND

App = Callable[[Any, Any, Any], Awaitable[None]]


class Transport:
    """Remembers what was done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.is_reading = True
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("close")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.done.append("end of what is written")

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.done.append("close")

    def is_closing(self) -> bool:
        return "close" in self.done

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        if "end of what is written" in self.done:
            self.done.append("reads")


#: What is done to a connection: bytes come, or something is called.
Step = bytes | Callable[[Any], object]


def on_a_connection(app: App, *steps: Step) -> list[Any]:
    """What a transport sees, if all of that happens to its connection one after the other."""

    async def play() -> list[Any]:
        front = HttpFront(Address("127.0.0.1", 0), BOUND)
        front._config.loaded_app = app
        connection, transport = front._connection(), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for step in steps:
            connection.data_received(step) if isinstance(step, bytes) else step(connection)
            for _ in range(10):
                await asyncio.sleep(0)
        return transport.done

    return asyncio.run(play())


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path."""
    del receive
    body = scope["path"].encode()
    headers = [(b"x-a", b"b"), (b"content-length", b"%d" % len(body))]
    if scope[CONNECTION].answer(scope, 200, headers, body):
        return
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def get(path: str, *lines: str, version: str = "1.1", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: localhost", *lines, "", ""]).encode()


HEAD = b"HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 2\r\n\r\n"
WHOLE = HEAD + b"/1"


def test_an_answer_is_more_than_one_write() -> None:
    assert on_a_connection(hello, get("/1")) == [WHOLE]
    assert on_a_connection(hello, get("/1"), get("/2")) == [HEAD + b"/1", HEAD + b"/2"]


def test_requests_that_come_at_once_are_answered_out_of_order_or_not_at_all() -> None:
    found = on_a_connection(hello, get("/1") + get("/2") + get("/3"))
    assert b"".join(found) == b"".join(HEAD + path for path in (b"/1", b"/2", b"/3"))


@pytest.mark.parametrize("beginning", [b"G", b"GET /2 HT", get("/2")[:-2]])
def test_what_comes_behind_a_request_breaks_its_answer(beginning: bytes) -> None:
    """The rest of its head is not there when the first one is answered."""
    assert on_a_connection(hello, get("/1") + beginning) == [WHOLE]
    found = on_a_connection(hello, get("/1") + beginning, get("/2")[len(beginning) :])
    assert found == [WHOLE, HEAD + b"/2"]


def test_requests_without_end_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PIPELINED_MAX", 3)
    go_on = asyncio.Event()
    served: list[str] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["path"])
        await go_on.wait()
        await hello(scope, receive, send)

    def many(connection: Any) -> None:
        for number in range(100):
            connection.data_received(get(f"/{number}") * 100)
        assert len(connection.pipeline) == 3

    def release(connection: Any) -> None:
        del connection
        go_on.set()

    found = on_a_connection(slow, many, release)
    assert served == ["/0"] * 4
    *answers, end, reads = found
    assert [answer.count(b"HTTP/1.1 200") for answer in answers] == [1, 1, 1, 1]
    assert [b"connection: close" in answer for answer in answers] == [False, False, False, True]
    assert (end, reads) == ("end of what is written", "reads"), "the client can read all that was answered"


def test_who_goes_is_answered_or_leaves_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Also one whose request is not the last that came."""

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        ended = asyncio.Event()
        scope[CONNECTION].at_its_end(ended.set)
        await ended.wait()

    def lose(connection: Any) -> None:
        connection.eof_received()
        connection.transport.close()

    assert set(on_a_connection(waits, get("/1") + get("/2"), lose)) == {"close"}
    assert not caplog.records


def test_a_body_that_is_not_wanted_is_waited_for() -> None:
    head = get("/1", "content-length: 10", method="POST")
    closed = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert on_a_connection(hello, head + b"12345", b"67890", get("/2")) == [
        closed,
        "end of what is written",
        "reads",
    ]


def hurried(after_s: float, taken_bytes: int = 0) -> Callable[[Any], None]:
    """A look some time later, when the client has taken so much in all."""

    def look(connection: Any) -> None:
        connection._line = lambda: (taken_bytes, True)
        connection.hurry(connection.loop.time() + after_s)

    return look


def test_a_rest_that_nobody_reads_is_kept_for_ever() -> None:
    steps = [hurried(1), hurried(connections.STALLED_S / 2), hurried(connections.STALLED_S + 2)]
    assert on_a_connection(hello, get("/1"), unread(10), *steps[:2]) == [WHOLE]
    assert on_a_connection(hello, get("/1"), unread(10), *steps) == [WHOLE, "close"]


def test_who_reads_slowly_is_taken_for_one_who_does_not_read() -> None:
    """What is to be sent may be as much as before at each look: a stream goes on, and the kernel takes more in large steps only."""
    looks = [hurried(20.0 * number, number) for number in range(10)]
    assert on_a_connection(hello, get("/1"), unread(10), *looks) == [WHOLE]


def test_a_body_that_came_fast_and_then_stands_still_is_waited_for() -> None:
    def look(after_s: float) -> Callable[[Any], None]:
        return lambda connection: connection.hurry(connection.loop.time() + after_s)

    head = get("/1", "content-length: 50000000", method="POST")
    steps: list[Step] = [head, b"x" * 40_000_000, look(1), look(61)]

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    found = on_a_connection(reads, *steps)
    assert found[0].startswith(b"HTTP/1.1 408")
    assert b"408" not in statuses(on_a_connection(reads, *steps[:3], b"x", look(61)))


def test_a_head_that_began_behind_a_request_is_waited_for_as_if_nothing_had_come() -> None:
    def hurry(connection: Any) -> None:
        connection.hurry(connection.loop.time())
        assert connection._stage is connections.Stage.HEAD

    assert on_a_connection(hello, get("/1") + b"GET /2", hurry) == [WHOLE]


LARGE = b"x" * connections.LARGE_ANSWER_BYTES


async def large(scope: Any, receive: Any, send: Any) -> None:
    del receive, send
    connection = scope[CONNECTION]
    room = connection.has_room_for(len(LARGE))
    assert connection.answer(scope, 200 if room else 503, [], LARGE if room else b"")


def statuses(found: list[Any]) -> list[bytes]:
    return [part.split(b" ")[1] for part in found if isinstance(part, bytes)]


def unread(octets: int) -> Callable[[Any], None]:
    def leave(connection: Any) -> None:
        connection.transport.unsent = octets

    return leave


def test_answers_that_nobody_reads_take_all_the_memory() -> None:
    forgotten: list[bool] = []
    assert statuses(on_a_connection(large, get("/1"), unread(BOUND.bodies_bytes - 1), get("/2"))) == [
        b"200",
        b"503",
    ]
    found = on_a_connection(
        large,
        get("/1"),
        unread(0),
        get("/2"),
        lambda one: forgotten.append(one.door.has_room_for(1) and not one.door.slow),
    )
    assert (statuses(found), forgotten) == ([b"200", b"200"], [True])
    some = unread(BOUND.bodies_bytes - 2 * len(LARGE))
    assert statuses(on_a_connection(large, get("/1"), some, get("/2"), get("/3"))) == [b"200", b"200", b"200"]


def test_who_has_gone_still_takes_room() -> None:
    def lose(connection: Any) -> None:
        connection.connection_lost(None)
        assert not connection.door.slow

    on_a_connection(large, get("/1"), unread(BOUND.bodies_bytes), lose)


def test_an_answer_larger_than_all_the_room_is_never_sent() -> None:
    def narrow(connection: Any) -> None:
        connection.door.bound = msgspec.structs.replace(BOUND, bodies_bytes=1, body_bytes=1 - (64 << 10))

    assert statuses(on_a_connection(large, narrow, get("/1"))) == [b"200"]


def test_the_head_of_an_answer_has_somebodys_text() -> None:
    refused: list[str] = []

    async def odd(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        for value in (b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b"):
            with pytest.raises(RuntimeError, match="header") as error:
                scope[CONNECTION].answer(scope, 200, [(b"x", value)], b"")
            refused.append(str(error.value))
        scope[CONNECTION].answer(scope, 204, [], b"")

    assert on_a_connection(odd, get("/")) == [b"HTTP/1.1 204 No Content\r\n\r\n"]
    assert len(refused) == 4


def test_a_connection_that_is_to_be_closed_is_kept() -> None:
    closed = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert on_a_connection(hello, get("/1", "connection: close")) == [closed, "close"]
    assert on_a_connection(hello, get("/1", version="1.0")) == [closed, "close"]


def test_a_server_closes_and_does_not_say_so() -> None:
    async def last(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        scope[CONNECTION].answer(scope, 413, [(b"connection", b"close")], b"")

    assert on_a_connection(last, get("/1")) == [
        b"HTTP/1.1 413 Request Entity Too Large\r\nconnection: close\r\n\r\n",
        "close",
    ]


def test_somebody_who_asked_for_the_head_gets_a_body() -> None:
    assert b"".join(on_a_connection(hello, get("/1", method="HEAD"))) == HEAD


def test_somebody_who_does_not_read_gets_more() -> None:
    def look(connection: Any) -> None:
        assert connection.transport.done == []

    found = on_a_connection(
        hello, lambda one: one.pause_writing(), get("/1"), look, lambda one: one.resume_writing()
    )
    assert found == [HEAD, b"/1"]


def test_an_answer_comes_twice() -> None:
    async def twice(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        assert not scope[CONNECTION].answer(scope, 200, [], b"again")

    assert on_a_connection(twice, get("/1")) == [WHOLE]


def test_who_waits_does_not_hear_of_the_end() -> None:
    heard: list[str] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        connection, ended = scope[CONNECTION], asyncio.Event()
        connection.at_its_end(ended.set)
        await ended.wait()
        connection.at_its_end(None)
        heard.append(scope["path"])
        assert not connection.answer(scope, 200, [], b"nobody hears")

    def lose(connection: Any) -> None:
        connection.transport.close()
        connection.connection_lost(None)

    assert b"nobody" not in b"".join(x for x in on_a_connection(waits, get("/1"), lose) if x != "close")
    assert heard == ["/1"]
    on_a_connection(waits, get("/2"), lambda one: one.turn_away(next(iter(one.door.refused))))
    assert heard == ["/1", "/2"]


def test_one_who_asks_behind_a_wait_is_not_read_from_and_not_seen_to_go() -> None:
    seen: list[bool] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        await asyncio.sleep(0)
        scope[CONNECTION].at_its_end(lambda: None)
        seen.append(scope[CONNECTION].transport.is_reading)
        scope[CONNECTION].at_its_end(None)

    on_a_connection(waits, get("/1") + get("/2"))
    assert seen[0] is True


CHUNKED = b"POST /1 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


async def headers_of(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the headers, once the body is there."""
    while (await receive()).get("more_body"):
        pass
    await hello({**scope, "path": repr(scope["headers"]), CONNECTION: NoConnection()}, receive, send)


@pytest.mark.parametrize("cut", [0, len(CHUNKED), len(CHUNKED) + 20])
def test_trailers_are_no_headers(cut: int) -> None:
    whole = CHUNKED + b"authorization: Bearer x\r\nexpect: 100-continue\r\n\r\n"
    found = b"".join(on_a_connection(headers_of, whole[:cut], whole[cut:], get("/2")))
    assert found.count(b"HTTP/1.1 200") == 2
    assert b"transfer-encoding" in found
    assert not any(text in found for text in (b"authorization", b"Bearer", b"100"))


@pytest.mark.parametrize("trailers", [[b"a: 1\r\n" * 20_000] * 20, [b"a: ", *[b"1" * 100_000] * 20]])
@pytest.mark.parametrize("at_once", [True, False])
def test_trailers_are_bounded_as_headers_are(trailers: list[bytes], *, at_once: bool) -> None:
    """Also if one never ends, and if they come together with the body."""
    parts = [CHUNKED, *trailers, b"\r\n\r\n"]
    found = on_a_connection(headers_of, *([b"".join(parts)] if at_once else parts))
    assert b"".join(one for one in found if isinstance(one, bytes)).startswith(b"HTTP/1.1 431")
    assert "end of what is written" in found


def test_a_large_body_in_chunks_needs_no_large_head() -> None:
    """What stands between parts of a body is not counted with what stood there before."""
    chunk = [b"1;" + b"e" * 1000 + b"\r\n", b"x", b"\r\n"]
    found = on_a_connection(headers_of, CHUNKED[:-3], *chunk * 1200, b"0\r\n\r\n")
    assert b"".join(found).startswith(b"HTTP/1.1 200")
