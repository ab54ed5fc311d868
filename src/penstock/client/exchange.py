"""One request and its answer, over connections that are kept.

Theory of operation
-------------------
This is the only module that knows the HTTP package: `httpcore2`, the part of `httpx2` that speaks the protocol, since redirects, cookies and proxies of the environment are nothing
that a broker has. There are two pools, one of connections on which a call waits for messages, one for all others, so that those who wait never keep an ack from being sent.

Nobody cancels a request that waits: what had been answered meanwhile would be lost, and with it the leases in it. Each has a name, and who waits no longer (`Halt`) asks the server, on another connection, to answer it now. Then the answer
comes as any other: with what was granted, or with nothing. Only if the server does not hear that is the connection cut; what it had granted it takes back when it notices, or its lease ends.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import anyio  # noqa: F401  # httpcore2 needs it, and says so only when it connects
import httpcore2
import msgspec

from penstock.client.running import Halt
from penstock.errors import PenstockError
from penstock.wire import MSGPACK, PROBLEM, Was

#: Connections for calls that are answered at once. More of them in flight wait for one another: the server has one loop.
CONNECTIONS_MAX: Final = 64

#: Connections on which calls wait for messages: one for each thread or task that does.
WAITING_MAX: Final = 4096

#: Who is not let in after so long is not let in: try again, perhaps at another address of the same name.
CONNECT_S_MAX: Final = 10.0

#: A connection that was idle for longer is not used again: servers close them after some time (uvicorn after 5 s), and what is sent in that moment has an unknown outcome.
IDLE_S_MAX: Final = 4.0

#: Who waits no longer tells the server so often, until it has come there, before the connection is cut; and how long that may take each time.
ENDING_TRIES: Final = 20
ENDING_PAUSE_S: Final = 0.005
_ENDING: Final = {"connect": 1.0, "pool": 1.0, "write": 1.0, "read": 2.0}
_WAS: Final = msgspec.msgpack.encode(Was(was=True))

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
        self._ending: set[asyncio.Task[None]] = set()  # a loop itself does not hold on to them
        self._quick, self._waiting = (
            httpcore2.AsyncConnectionPool(
                ssl_context=tls, max_connections=most, max_keepalive_connections=most,
                keepalive_expiry=IDLE_S_MAX,
            )
            for most in (CONNECTIONS_MAX, WAITING_MAX)
        )  # fmt: skip

    def _url(self, target: str) -> httpcore2.URL:
        return httpcore2.URL(
            scheme=self._scheme, host=self._host, port=self._port, target=self._prefix + target
        )

    async def send(
        self, method: str, target: str, body: bytes | None, *, timeout_s: float, wait_s: float = 0, halt: Halt | None = None,
        life: bytes | None = None,
    ) -> Reply:  # fmt: skip
        """The answer, whatever it says. `wait_s` is how long the server may wait before it answers."""
        headers = self._headers if life is None else [*self._headers, (b"Penstock-Life", life)]
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
            self._url(target),
            headers=headers,
            content=body,
            extensions={"timeout": limits},
        )  # fmt: skip
        if halt is None or not wait_s:
            return await self._sent(request, wait=False)
        name = secrets.token_hex(8)
        request.headers.append((b"Penstock-Wait", name.encode()))
        sending = asyncio.ensure_future(self._sent(request, wait=True))

        def end() -> None:
            ending = asyncio.ensure_future(self._end(name, sending))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

        halt.heed(end)
        try:
            await asyncio.wait((sending,))
            if sending.cancelled():
                raise NoAnswer("nobody waits for it any longer")
            return sending.result()
        finally:
            halt.ignore(end)
            sending.cancel()

    async def _end(self, name: str, sending: asyncio.Task[Reply]) -> None:
        """Have the server answer a request that waits. It may not have come there yet: then it is told again."""
        for tries in range(ENDING_TRIES):
            with suppress(NotSent, NoAnswer, Untrusted):
                url = self._url(f"/v1/waits/{name}")
                request = httpcore2.Request(
                    "DELETE", url, headers=self._headers, extensions={"timeout": _ENDING}
                )
                reply = await self._sent(request, wait=False)
                if sending.done() or (reply.status == 200 and reply.body == _WAS):
                    return
                if reply.status == 200:
                    await asyncio.sleep(ENDING_PAUSE_S * (1 + tries))
                    continue
            break
        sending.cancel()

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
        except (
            httpcore2.NetworkError,
            httpcore2.TimeoutException,
            httpcore2.ProtocolError,
            ssl.SSLError,
        ) as error:
            raise NoAnswer(_said(error)) from error
        return _reply(response, body)

    async def close(self, timeout_s: float | None = None) -> None:
        """Let go of all connections. Nothing may be under way any more: what ends after this would leave its connection open. What ends a wait may take so long."""
        if self._ending:
            _, late = await asyncio.wait(set(self._ending), timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
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
    """A handshake can fail for many reasons that pass, such as a balancer that is started again; that a certificate is not the right one does not."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _said(error: BaseException) -> str:
    """What is behind an error of the package, in words."""
    text = str(error)
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, PenstockError):
        if isinstance(seen, ssl.SSLError):  # which is an OSError, with numbers of its own
            if seen.reason == "WRONG_VERSION_NUMBER":
                return "what answers there does not speak TLS: is it http://?"
            return str(getattr(seen, "verify_message", "") or seen.reason or seen)
        if isinstance(seen, OSError) and seen.strerror:
            known = seen.errno is not None and seen.errno > 0  # asyncio puts words of its own there
            return os.strerror(seen.errno) if known else seen.strerror  # type: ignore[arg-type]
        text = text or str(seen)
        seen = seen.__cause__ or seen.__context__
    return text or type(error).__name__
