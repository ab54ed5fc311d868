"""From a request to its answer: what is the same for every route.

Theory of operation
-------------------
One address is one ASGI callable, found by `app.Application`, which chooses the row of the request's method. No framework stands between: for a publish of one message
its request and response objects would cost as much as the publish. In this order: who is it, may he, are the parameters right, is the body; then the handler; then the answer. Nothing is read of the body
of somebody who may not send it.

Whatever is raised becomes a problem (see `problem`). A mistake of ours is written to the log under the request's id, and the client is told that id and nothing more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from ipaddress import ip_address
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

from penstock.errors import BatchTooLarge, Forbidden, InvalidArgument, PenstockError
from penstock.names import check_name
from penstock.server.accounts import ANYBODY
from penstock.server.http import problem
from penstock.server.http.bodies import (
    DECODED_AT_ONCE_BYTES,
    JSON_TYPE,
    MSGPACK_TYPE,
    Reading,
    encode_json,
    encode_msgpack,
    wants_msgpack,
)
from penstock.server.http.front import ClientGone, Front, Receive
from penstock.server.http.parties import CONNECTION, NoConnection
from penstock.server.http.problem import Headers, Refusal
from penstock.server.http.route import Call, Encoded, Events, Plain, Query, Route, Stream, parsed

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]

_LOG: Final = logging.getLogger("penstock.server.http")

#: A client's own id of a request is kept if it can stand in a log line and a header.
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}", re.ASCII)

#: Longer ones are read anew each time: a thousand are kept of each route, whoever sent them.
REMEMBERED_QUERY_BYTES_MAX: Final = 256

#: Of an id that we give. They are no numbers in a row: those would tell one tenant how much others ask.
REQUEST_ID_BYTES: Final = 8

_NO_CONNECTION: Final = NoConnection()


class Row:
    """A route, made ready."""

    __slots__ = ("parsed", "reading", "route", "unasked")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.reading = None if route.request is None else Reading(route.request, route.values_max)
        known = {one.name: one for one in route.all_queries()}
        # Those who hold a handle send its number each time: the same few queries come again and again.
        self.parsed = lru_cache(1024)(partial(_query, known))
        self.unasked = _query(known, b"")


def _query(known: dict[str, Query], given: bytes) -> Mapping[str, Any]:
    """The parameters of a request; all requests with the same ones share them, so nobody may write there."""
    return MappingProxyType(parsed(known, given))


class Endpoint:
    """One address, with a row for each method."""

    def __init__(self, front: Front, routes: list[Route]) -> None:
        self.front = front
        self.path = routes[0].path
        self._rows: dict[str, Row] = {route.method: Row(route) for route in routes}
        if routes[0].public:  # supervisors and proxies look that way; the body is left out below us
            self._rows["HEAD"] = self._rows["GET"]
        self.methods: list[Any] = sorted(self._rows)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        began = perf_counter()
        call = Call()
        call.request_id = ""
        call.scope = scope
        call.connection = scope.pop(CONNECTION, _NO_CONNECTION)  # it holds on to its scopes
        status = 499  # as others have it, of a client that has gone
        try:
            status = await self._answered(call, scope, receive, send)
        except ClientGone:
            call.connection.let_go()
        except asyncio.CancelledError:
            if not call.connection.is_closing():
                raise
            call.connection.let_go()  # the server stops, and has cut it
        except Exception as error:  # whatever it is, the client gets an answer
            status, headers, body = answer_to(error, call.request_id)
            await respond(call, send, status, [self.front.life, *headers], body)
        finally:
            seconds = perf_counter() - began
            self.front.observer.request(self.path, scope["method"], status, seconds)
            if _LOG.isEnabledFor(logging.DEBUG):
                _say(scope, status, seconds, call.request_id)

    async def _answered(self, call: Call, scope: Scope, receive: Receive, send: Send) -> int:
        front = self.front
        given: dict[bytes, bytes] = dict(scope["headers"])
        call.request_id = request_id(given.get(b"x-request-id"))
        if len(given) != len(scope["headers"]):
            _refuse_twice(scope["headers"])
        _require_plain(given)
        row = self._rows[scope["method"]]
        route = row.route
        call.front = front
        call.port = front.port
        if route.public:
            call.caller = ANYBODY
        else:
            if front.accounts.is_open:
                _require_local(given)
            authorization = given.get(b"authorization")
            call.caller = front.accounts.caller(
                None if authorization is None else authorization.decode("latin-1")
            )
        call.path = path = scope["path_params"]
        call.namespace = namespace = path.get("namespace", "")
        if route.permission:
            call.caller.require(namespace, *route.permission)
            if route.also:
                call.caller.require(namespace, *route.also)
            _check_namespace(namespace)
        query: bytes = scope["query_string"]
        if not query:
            call.query = row.unasked
        elif len(query) > REMEMBERED_QUERY_BYTES_MAX:
            call.query = row.parsed.__wrapped__(query)
        else:
            call.query = row.parsed(query)
        call.headers = given
        call.accept = accept = given.get(b"accept", b"")
        call.content_type = content_type = given.get(b"content-type", b"")
        call.packed = wants_msgpack(accept, content_type)
        call.receive = receive
        call.status = None
        call.body = None
        if row.reading is not None:
            body = await _body(front, receive, given.get(b"content-length", b""))
            if len(body) < DECODED_AT_ONCE_BYTES:
                call.body = row.reading(body, content_type)
            else:
                call.body = await front.decoding.run(row.reading, body, content_type)
            del body  # it may be large, and is decoded
        return await _sent(call, route, await route.handler(call), send)


def _say(scope: Scope, status: int, seconds: float, request: str) -> None:
    """What stands behind the question mark is left out, and so is who asked: the log is no place for it."""
    told = {**_named(request), "status": status, "seconds": round(seconds, 6)}
    _LOG.debug("%s %s", scope["method"], scope["path"], extra=told)


@lru_cache(4096)
def _check_namespace(name: str) -> None:
    check_name(name, kind="namespace")


async def _body(front: Front, receive: Receive, length: bytes) -> bytes:
    """The body of a request, counted as it comes: what its length claims is believed only if it is too much. One that never comes is the listener's to cut (see `connections`)."""
    most = front.bounds.body_bytes_max
    if length.isdigit() and int(length[:20]) > most:
        raise _too_large(most)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        return await _rest(receive, body, most)
    if len(body) > most:
        raise _too_large(most)
    return body


async def _rest(receive: Receive, first: bytes, most: int) -> bytes:
    parts, size, more = [first], len(first), True
    while more:
        if size > most:
            raise _too_large(most)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    if size > most:
        raise _too_large(most)
    return b"".join(parts)


#: Of these headers there is one: which of several counts is not to depend on who looks.
_SINGLE: Final = frozenset(
    {b"authorization", b"host", b"origin", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"}
)  # fmt: skip


_PLAIN: Final = frozenset({b"", b"identity", b"chunked"})


def _refuse_twice(headers: Sequence[tuple[bytes, bytes]]) -> None:
    seen = set()
    for name, _ in headers:
        if name in seen and name in _SINGLE:
            raise Refusal(
                400, InvalidArgument.code, f"there are two {name.decode().title()} headers: send one"
            )
        seen.add(name)


def _require_plain(headers: Mapping[bytes, bytes]) -> None:
    """Raise if the body is compressed."""
    if headers.get(b"content-encoding", b"identity").lower() not in _PLAIN:
        raise Refusal(415, "unsupported_media_type", "the body has a Content-Encoding: send it as it is", close=True)  # fmt: skip
    if headers.get(b"transfer-encoding", b"chunked").lower() not in _PLAIN:
        raise Refusal(501, "not_implemented", "the only Transfer-Encoding is chunked", close=True)


def _require_local(headers: Mapping[bytes, bytes]) -> None:
    """Where everybody on this machine may do everything, that is not so for every page in a browser on this machine.

    A page of another site can send requests here, and its browser says so (Origin; of a picture's address only Sec-Fetch-Site); with a name of its own that leads to this machine it could read the answers too, but then it
    asks for that name (Host).
    """
    host, origin = headers.get(b"host"), headers.get(b"origin")
    is_theirs = headers.get(b"sec-fetch-site", b"").lower() == b"cross-site"
    if is_theirs or (host and not _is_local(b"//" + host)) or (origin and not _is_local(origin)):
        raise Refusal(
            403, Forbidden.code,
            "this server has no key, and so answers only those on this machine who ask for it by a name of this machine, such as localhost; "
            "start it with a key (PENSTOCK_JWT_SECRET), and send a token",
            close=True,
        )  # fmt: skip


#: What may stand in Host, behind two slashes, and in Origin: of more than that, readers make different names.
_ORIGIN: Final = re.compile(rb"(?:[a-z][a-z0-9+.-]*:)?//(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")


@lru_cache(1024)
def _is_local(url: bytes) -> bool:
    found = _ORIGIN.fullmatch(url.lower())
    if found is None:
        return False
    name = found[1].decode().strip("[]")
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def _too_large(most: int) -> Refusal:
    return Refusal(
        413, BatchTooLarge.code, f"the body is over the bound of {most} bytes: send it in several requests", close=True
    )  # fmt: skip


async def _sent(call: Call, route: Route, answer: Any, send: Send) -> int:
    """Send the answer; its status."""
    if answer is None:
        status = call.status or 204
        await respond(call, send, status, [call.front.life], b"")
        return status
    if type(answer) is Plain:
        extra = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
        headers = [(b"content-type", answer.content_type.encode()), *extra]
        await respond(call, send, answer.status, headers, answer.body)
        return answer.status
    if type(answer) is Events:
        return await _stream(call, answer, send)
    if type(answer) is Stream:
        return await _flow(call, answer, send)
    status = call.status or route.succeeds
    kind = MSGPACK_TYPE if call.packed else JSON_TYPE
    if type(answer) is Encoded:
        body = answer.body
    elif call.packed:
        body = encode_msgpack(answer)
    else:
        body = encode_json(answer)
    await respond(call, send, status, [(b"content-type", kind), call.front.life], body)
    return status


async def _stream(call: Call, answer: Events, send: Send) -> int:
    """Send events; the status that the stream would have had, had it been known at its beginning how it ends."""
    status = 200
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", call.request_id.encode()),
    ]
    with call.front.place(call.caller):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with aclosing(answer.events) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except ClientGone:
            raise
        except Exception as error:  # its status has gone out already: it is told as the last event
            status, _, told = answer_to(error, call.request_id)
            last = b"event: problem\ndata: " + told + b"\n\n"
            await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    return status


async def _flow(call: Call, answer: Stream, send: Send) -> int:
    """Send parts; the status, as above. What fails in the middle is not ended: whoever reads it sees that something is missing."""
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"x-request-id", call.request_id.encode()),
    ]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(answer.parts) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
    except ClientGone:
        raise
    except Exception as error:  # the listener closes a connection whose answer has no end
        return answer_to(error, call.request_id)[0]
    finally:
        answer.close()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return 200


async def respond(call: Call, send: Send, status: int, headers: Headers, body: bytes) -> None:
    if status != 204:  # which has no length to tell
        headers.append((b"content-length", b"%d" % len(body)))
    headers.append((b"x-request-id", call.request_id.encode("latin-1")))
    if call.connection.answer(call.scope, status, headers, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def request_id(given: bytes | None) -> str:
    """The id that a request goes by: its own if that will do."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return os.urandom(REQUEST_ID_BYTES).hex()


def answer_to(error: Exception, request: str) -> tuple[int, Headers, bytes]:
    """The problem that an error is."""
    if isinstance(error, PenstockError):
        found = problem.failed(error, request)
        if found[0] >= 500 and not error.retryable:
            _LOG.error("request %s failed: %s", request, error, extra=_named(request))
        return found
    if isinstance(error, Refusal):
        return problem.refused(error, request)
    if isinstance(error, UnicodeError):  # whatever did not check it, it is the client's text
        _LOG.warning("request %s has unreadable text: %s", request, error, extra=_named(request))
        refusal = InvalidArgument("the request holds text that is not valid Unicode: send it as UTF-8")
        return problem.failed(refusal, request)
    _LOG.error("request %s found a mistake of ours", request, exc_info=error, extra=_named(request))
    return problem.unexpected(request)


def _named(request: str) -> Mapping[str, str]:
    return {"request_id": request}
