"""A front: something that listens, and can be told to stop. This one speaks HTTP, by uvicorn's protocol and an ASGI application.

uvicorn's `Server` is not used: it takes the signals for itself, binds where it likes, and ends by a clock of tenths of seconds. Its `Config`,
its protocol classes and its lifespan are.

A front listens before the broker is open, and answers until then that it is starting (`/health` that it lives): a supervisor that looks sees a
server, and a port that is taken is found before a long recovery.

Stopping: nothing new is accepted, connections that wait for a request are closed, requests under way are answered with `connection: close`. What is not done by the deadline is cut.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final, Protocol

from uvicorn.config import Config
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from penstock.errors import InvalidArgument
from penstock.server.connections import Bound, Door, Guard, Refusal, address_of, protocol
from penstock.server.quantity import Address

log = logging.getLogger("penstock.server")

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
#: An ASGI application; frameworks have types of their own for what it is called with.
App = Callable[[Any, Any, Any], Awaitable[None]]

#: Connections that the kernel may hold for us while we are busy.
BACKLOG: Final = 2048

#: Who does not finish a TLS handshake in that time is cut. Until then it is counted as any connection is.
HANDSHAKE_S: Final = 10.0

#: Handshakes of those who are only to hear that they are refused; beyond it they are closed at once.
REFUSED_HANDSHAKES_MAX: Final = 64

#: How long nothing is accepted if there is no file left for it.
NO_FILES_S: Final = 1.0

#: How often the date is set, and everybody looked at; more often if some time is shorter.
TICK_S: Final = 1.0
TICK_S_MIN: Final = 0.05

#: A client whose machine is gone is noticed after idle + probes × interval seconds, be it in the middle of a long poll.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class Front(Protocol):
    """What `serving` can start and stop."""

    async def start(self) -> None:
        """Listen. Raises if it cannot."""
        ...

    async def stop(self, timeout_s: float) -> bool:
        """Accept nothing more, let what is under way end; whether it did in that time. The rest is cut."""
        ...

    def cut(self) -> None:
        """End what is under way, at once."""
        ...


class HttpFront:
    """HTTP on one address."""

    def __init__(self, address: Address, bound: Bound, *, context: ssl.SSLContext | None = None) -> None:
        self.address = address
        self.door = Door(bound)
        self._context = context
        self._state = ServerState()
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._refusing: set[asyncio.Task[None]] = set()  # those of them that end with a refusal
        self._ticking: asyncio.Task[None] | None = None
        self._lifespan: LifespanOn | None = None
        self._config = Config(
            starting, http=protocol(self.door), ws="none", interface="asgi3", lifespan="on", log_config=None,
            access_log=False, proxy_headers=False, server_header=False,
        )  # fmt: skip
        self._config.load()

    @property
    def url(self) -> str:
        """Where it can be reached from this machine."""
        address = Address(*self._sockets[0].getsockname()[:2]) if self._sockets else self.address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
        return f"{'http' if self._context is None else 'https'}://{Address(host, address.port)}"

    def refused(self) -> dict[str, int]:
        """How many connections were refused, by why."""
        return {
            why.name.lower().replace("_", "-"): times for why, times in self.door.refused.items() if times
        }

    def bind(self) -> None:
        """Take the address, so that nobody else does; nothing is accepted yet."""
        self._sockets = bound_sockets(self.address)

    async def start(self) -> None:
        if not self._sockets:
            self.bind()
        self._ticking = asyncio.create_task(self._tick())
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            if self._context is None:
                self._servers.append(await loop.create_server(self._connection, sock=bound, backlog=BACKLOG))
            else:
                bound.listen(BACKLOG)
                self._accepting.append(asyncio.create_task(self._accept(bound, self._context)))

    def _connection(self) -> asyncio.Protocol:
        state = {} if self._lifespan is None else self._lifespan.state
        return self._config.http_protocol_class(  # type: ignore[call-arg]
            config=self._config, server_state=self._state, app_state=state, _loop=asyncio.get_running_loop()
        )

    # --- TLS ---

    # A server of the loop tells of a connection when its handshake is done: any number of them could stand before that, and have every file there is.

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                made, peer = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    log.error("a connection cannot be accepted: %s", error.strerror)
                    await asyncio.sleep(NO_FILES_S)
                continue
            address = address_of(peer)
            refusal = self.door.enter(address)
            if refusal is not None and len(self._refusing) >= REFUSED_HANDSHAKES_MAX:
                self.door.refused[refusal] += 1
                made.close()
                continue
            connection = self._connection()
            assert isinstance(connection, Guard)
            connection.expect(address, refusal)
            task = asyncio.create_task(self._shake_hands(connection, made, context))
            for group in (self._handshakes,) if refusal is None else (self._handshakes, self._refusing):
                group.add(task)
                task.add_done_callback(group.discard)

    async def _shake_hands(self, connection: Guard, made: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: connection, made, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:  # an SSLError is one, too
            log.debug("a TLS handshake failed: %s", error)
        finally:
            connection.give_up()

    async def serve(self, app: App) -> None:
        """Have an application answer from now on, on connections that are there already, too."""
        self._config.loaded_app = app
        self._lifespan = LifespanOn(self._config)
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise RuntimeError("the application did not start; its error is in the log")
        for connection in list(self._state.connections):
            connection.app = app  # type: ignore[union-attr]
            connection.app_state = self._lifespan.state

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        bound = self.door.bound
        tick_s = max(TICK_S_MIN, min(TICK_S, bound.head_s / 2, bound.body_s / 2, bound.idle_s / 2))
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            self.door.sweep(self._state.connections, loop.time())
            await asyncio.sleep(tick_s)

    # --- the end ---

    async def stop(self, timeout_s: float) -> bool:
        self.door.stopping = True  # for those that were accepted before the sockets are closed
        for server in self._servers:
            server.close()
        # Who is in the middle of a handshake has asked for nothing yet.
        early = [*self._accepting, *self._handshakes]
        for task in early:
            task.cancel()
        await asyncio.gather(*early, return_exceptions=True)
        for bound in self._sockets:
            bound.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        in_time = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._finished()
        except TimeoutError:
            in_time = False
            log.warning(
                "%d requests and %d connections did not end in %g s and were cut",
                len(self._state.tasks),
                self.door.inside,
                timeout_s,
            )
        self.cut()
        await self._after_cut()
        if self._lifespan is not None:
            await self._lifespan.shutdown()
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        return in_time

    async def _finished(self) -> None:
        """Wait until every request is answered, and every answer is on its way."""
        while self._state.tasks:
            await asyncio.wait(self._state.tasks)
        await self.door.empty.wait()

    def cut(self) -> None:
        self.door.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()

    async def _after_cut(self) -> None:
        """A cancelled request may hold something of the broker: let it put that back. One that does not hear is left behind."""
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=1.0)


async def starting(
    scope: Scope, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The application until there is one: it is alive, and not ready."""
    del receive
    if scope["type"] != "http":
        return
    alive = scope["path"] == "/health"
    headers = (
        [("content-type", "text/plain"), ("content-length", "2")] if alive else Refusal.STARTING.headers[:-1]
    )
    body = b"OK" if alive else Refusal.STARTING.body
    start = {"type": "http.response.start", "status": 200 if alive else Refusal.STARTING.status}
    await send({**start, "headers": [(name.encode(), value.encode()) for name, value in headers]})
    await send({"type": "http.response.body", "body": body})


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach it."""
    if address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def bound_sockets(address: Address) -> list[socket.socket]:
    """Sockets that have the address: one for each address that the name has, or for IPv4 and IPv6 together."""
    host = address.host or "::" if socket.has_dualstack_ipv6() else address.host or "0.0.0.0"
    try:
        found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"{address} is no address of this machine: {error}") from None
    made: list[socket.socket] = []
    try:
        port = address.port
        for family, _, _, _, where in dict.fromkeys(found):
            one = socket.socket(family, socket.SOCK_STREAM)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not address.host else 1)
            _watch_for_lost_clients(one)
            try:
                one.bind((where[0], port, *where[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise
                made.pop().close()  # `localhost` is ::1, too, also where there is no IPv6
                continue
            port = one.getsockname()[1]  # `localhost` has two addresses, and port 0 is to be one port
            one.setblocking(False)
        if not made:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except OSError as error:
        for one in made:
            one.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(
                f"{address} is taken: another program listens there. Stop it, or take another port (--port 0 takes any that is free)"
            ) from None
        raise InvalidArgument(f"cannot listen on {address}: {error.strerror or error}") from None
    return made


class AddressTaken(InvalidArgument):
    """Somebody listens there already."""


def _watch_for_lost_clients(listening: socket.socket) -> None:
    """Connections inherit it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
