"""One request and its answer, over connections that are kept.

Theory of operation
-------------------
This is the only module that knows the HTTP package: `httpcore2`, the part of `httpx2` that speaks the protocol, since redirects, cookies and proxies of the environment are nothing
that a broker has. There are two pools, one of connections on which a call waits for messages, one for all others, so that those who wait never keep an ack from being sent.

Nobody cancels a request: what had been answered meanwhile would be lost, and with it the leases in it. Who waits no longer (`Halt`) closes his *half* of the connection instead. The server sees him go,
takes back what it had granted and closes; or it has answered already, and then that answer is still read. TLS cannot be closed by half: there the connection is cut, and what was under way in that very moment
comes back when its lease ends.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpcore2

from penstock.client.running import Halt
from penstock.errors import PenstockError
from penstock.wire import MSGPACK, PROBLEM

#: Connections for calls that are answered at once. More of them in flight wait for one another: the server has one loop.
CONNECTIONS_MAX: Final = 64

#: Connections on which calls wait for messages: one for each thread or task that does.
WAITING_MAX: Final = 4096

#: Who is not let in after so long is not let in: try again, perhaps at another address of the same name.
CONNECT_S_MAX: Final = 10.0

#: A connection that was idle for longer is not used again: servers close them after some time (uvicorn after 5 s), and what is sent in that moment has an unknown outcome.
IDLE_S_MAX: Final = 4.0

#: What an answer may have, more than any page or batch of deliveries that we ask for.
ANSWER_BYTES_MAX: Final = 256 << 20

#: A server says with this header which of its lives it is in: after a restart it knows no consumers and no leases.
LIFE: Final = b"penstock-life"


class NotSent(Exception):
    """The server heard nothing of it."""


class Untrusted(Exception):
    """The server is not who it says it is, as far as we can tell: trying again does not help."""


class NoAnswer(Exception):
    """It was sent, at least in part, and no answer came."""


class Reply(NamedTuple):
    status: int
    kind: str
    retry_after_s: float | None
    life: bytes | None
    body: bytes

    @property
    def is_problem(self) -> bool:
        return self.kind.startswith(PROBLEM)


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that tells who sends on it, and can be closed by half."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, *, encrypted: bool = False) -> None:
        self._inner = inner
        self._encrypted = encrypted

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        leaving = _LEAVING.get()
        if leaving is not None:
            leaving.on(self)
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(
            await self._inner.start_tls(ssl_context, server_hostname, timeout), encrypted=True
        )  # fmt: skip

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    def leave(self) -> None:
        """Send nothing more; what comes is still read, if that is possible."""
        found = self._inner.get_extra_info("socket")
        if found is None:
            return
        # By another descriptor of it: what uvloop shows of a socket has no `shutdown`.
        with (
            suppress(OSError),
            socket.socket(fileno=os.dup(found.fileno())) as same,
        ):  # it may be closed already
            same.shutdown(socket.SHUT_RDWR if self._encrypted else socket.SHUT_WR)


class _Backend(httpcore2.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(self, *args: Any, **given: Any) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._inner.connect_tcp(*args, **given))

    async def connect_unix_socket(self, *args: Any, **given: Any) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._inner.connect_unix_socket(*args, **given))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Leaving:
    """A request that is given up when a halt is said."""

    def __init__(self, halt: Halt) -> None:
        self._halt = halt
        self._stream: _Stream | None = None

    def on(self, stream: _Stream) -> None:
        self._stream = stream
        if self._halt.said:
            stream.leave()

    def leave(self) -> None:
        if self._stream is not None:
            self._stream.leave()


_LEAVING: ContextVar[_Leaving | None] = ContextVar("penstock_leaving", default=None)


class Exchange:
    """Requests to one server."""

    def __init__(self, url: str, token: str | None, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self.url = url
        self._scheme = parts.scheme.encode()
        self._host = (parts.hostname or "").encode(
            "idna" if not (parts.hostname or "").isascii() else "ascii"
        )
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        shown = parts.netloc.rpartition("@")[2].encode("ascii", "replace")
        self._headers = [(b"Host", shown), (b"Accept", MSGPACK.encode()), (b"User-Agent", b"penstock")]
        if token is not None:
            self._headers.append((b"Authorization", b"Bearer " + token.encode("ascii")))
        backend = _Backend()
        self._quick, self._waiting = (
            httpcore2.AsyncConnectionPool(
                ssl_context=tls, max_connections=most, max_keepalive_connections=most,
                keepalive_expiry=IDLE_S_MAX, network_backend=backend,
            )
            for most in (CONNECTIONS_MAX, WAITING_MAX)
        )  # fmt: skip

    async def send(
        self, method: str, target: str, body: bytes | None, *, timeout_s: float, wait_s: float = 0, halt: Halt | None = None
    ) -> Reply:  # fmt: skip
        """The answer, whatever it says. `wait_s` is how long the server may wait before it answers."""
        headers = self._headers
        if body is not None:
            length = str(len(body)).encode()
            headers = [*headers, (b"Content-Type", MSGPACK.encode()), (b"Content-Length", length)]
        limits = {
            "connect": min(timeout_s, CONNECT_S_MAX),
            "pool": timeout_s,
            "write": timeout_s,
            "read": timeout_s + wait_s,
        }
        request = httpcore2.Request(
            method,
            httpcore2.URL(scheme=self._scheme, host=self._host, port=self._port, target=self._prefix + target),
            headers=headers,
            content=body,
            extensions={"timeout": limits},
        )  # fmt: skip
        leaving = None if halt is None else _Leaving(halt)
        token = _LEAVING.set(leaving)
        try:
            if halt is not None and leaving is not None:
                halt.heed(leaving.leave)
            return await self._sent(request, wait=wait_s > 0)
        finally:
            _LEAVING.reset(token)
            if halt is not None and leaving is not None:
                halt.ignore(leaving.leave)

    async def _sent(self, request: httpcore2.Request, *, wait: bool) -> Reply:
        try:
            response = await (self._waiting if wait else self._quick).handle_async_request(request)
            try:
                body = await _read(response)
            finally:
                await response.aclose()
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout) as error:
            if _is_about_trust(error):
                raise Untrusted(_said(error)) from error
            raise NotSent(_said(error)) from error
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
            raise NoAnswer(_said(error)) from error
        return _reply(response, body)

    async def close(self) -> None:
        for pool in (self._quick, self._waiting):
            with suppress(Exception):  # whatever a broken connection says to that
                await pool.aclose()


async def _read(response: httpcore2.Response) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_stream():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise httpcore2.RemoteProtocolError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _reply(response: httpcore2.Response, body: bytes) -> Reply:
    kind, retry_after_s, life = "", None, None
    for name, value in response.headers:
        lower = name.lower()
        if lower == b"content-type":
            kind = value.decode("latin-1")
        elif lower == b"retry-after":
            with suppress(ValueError):  # a date: nobody we know sends one
                retry_after_s = max(0.0, float(value))
        elif lower == LIFE:
            life = value
    return Reply(response.status, kind, retry_after_s, life, body)


def _is_about_trust(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _said(error: BaseException) -> str:
    """What is behind an error of the package, in words."""
    text = str(error)
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, PenstockError):
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        text = text or str(seen)
        seen = seen.__cause__ or seen.__context__
    return text or type(error).__name__
