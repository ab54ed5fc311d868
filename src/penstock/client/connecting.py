"""`penstock.connect` and `penstock.aio.connect`: the same objects as those of an embedded broker, and a server behind them.

What speaks HTTP, and TLS, is imported when somebody connects.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock import argument
from penstock.broker import sync
from penstock.clock import SECOND_US, Clock, Duration, SystemClock, duration_us
from penstock.errors import InvalidArgument, MissingExtra
from penstock.model.commands import DEFAULT_NAMESPACE
from penstock.names import check_name

if TYPE_CHECKING:
    import ssl

    from penstock.broker import aio
    from penstock.client.port import RemotePort
    from penstock.client.running import Runner

#: How long a call goes on trying while the server is away: an outage of 30 s and the start after it.
TIMEOUT_S: Final = 60.0

#: How long connecting waits for a server that is not there yet or is starting.
WAIT_S: Final = 10.0


def connect(
    url: str,
    token: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    *,
    wait: Duration = WAIT_S,
    timeout: Duration = TIMEOUT_S,
    ca: str | Path | None = None,
    verify: bool = True,
    clock: Clock | None = None,
) -> sync.Broker:
    """Connect to a server (`penstock serve`): the same broker as `penstock.open` gives, over the network.

    `url` is such as "http://127.0.0.1:8080" or "https://queues.example.org"; `token` is what `penstock token` prints.
    `wait` is how long to wait now for a server that is not there or is starting, and `timeout` how
    long a later call tries to reach it, before `ServerUnavailable` is raised. A token that the
    server does not take is refused at once. `ca` is a file with the certificate of an authority to
    be trusted, `verify=False` trusts any certificate.
    """
    return Plan(url, token, namespace, wait, timeout, ca, verify, clock).connect()


def aio_connect(
    url: str,
    token: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    *,
    wait: Duration = WAIT_S,
    timeout: Duration = TIMEOUT_S,
    ca: str | Path | None = None,
    verify: bool = True,
    clock: Clock | None = None,
) -> Connecting:
    """The same for asyncio: `broker = await penstock.aio.connect(…)`, or `async with penstock.aio.connect(…) as broker`. It belongs to the event loop on which it was connected."""
    return Connecting(Plan(url, token, namespace, wait, timeout, ca, verify, clock))


class Plan:
    """Where to connect, checked."""

    def __init__(
        self, url: str, token: str | None, namespace: str, wait: Duration, timeout: Duration, ca: str | Path | None,
        verify: bool, clock: Clock | None,
    ) -> None:  # fmt: skip
        self._url = _address(url)
        self._token = _plain_token(token)
        self.namespace = check_name(namespace, kind="namespace")
        self._wait_s = duration_us(wait, "wait") / SECOND_US
        self._timeout_s = duration_us(timeout, "timeout") / SECOND_US
        if not self._timeout_s:
            raise InvalidArgument("timeout is 0; give more than 0 seconds")
        if type(verify) is not bool:
            raise InvalidArgument(f"verify is {argument.quoted(verify)}; give True or False")
        self._ca = None if ca is None else _file(ca)
        self._verify = verify
        self._clock = clock or SystemClock()

    def connect(self) -> sync.Broker:
        port, runner = self._port(None)
        from penstock.client.running import Call

        try:
            Call(runner, port.greet(self._wait_s)).wait()
        except BaseException:
            port.close()
            raise
        return sync.Broker(port, self.namespace)

    async def connect_here(self) -> aio.Broker:
        import asyncio

        from penstock.broker import aio

        port, _ = self._port(asyncio.get_running_loop())
        broker = aio.Broker(port, self.namespace)
        try:
            await port.greet(self._wait_s)
        except BaseException:
            await broker.close()
            raise
        return broker

    def _port(self, loop: Any) -> tuple[RemotePort, Runner]:
        try:
            from penstock.client.exchange import Exchange
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"httpcore2", "anyio", "h11", "httpx2"}:
                raise
            raise MissingExtra(
                f"connecting to a server needs the package {error.name}: run pip install 'penstock[client]'"
            ) from error
        from penstock.client.asking import Server
        from penstock.client.port import RemotePort
        from penstock.client.running import Runner

        exchange = Exchange(self._url, self._token, self._tls())
        runner = Runner.in_a_thread() if loop is None else Runner(loop)
        return RemotePort(Server(exchange, self._timeout_s), runner, self._clock), runner

    def _tls(self) -> ssl.SSLContext | None:
        if not self._url.startswith("https:"):
            return None
        import ssl

        try:
            context = ssl.create_default_context(cafile=self._ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"ca is {self._ca!r}, which cannot be read: {error}") from error
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Connecting:
    """What `aio.connect` gives: await it, or use it with `async with`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._broker: aio.Broker | None = None

    async def _connect(self) -> aio.Broker:
        self._broker = await self._plan.connect_here()
        return self._broker

    def __await__(self) -> Generator[Any, None, aio.Broker]:
        return self._connect().__await__()

    async def __aenter__(self) -> aio.Broker:
        return await self._connect()

    async def __aexit__(self, *_: object) -> None:
        if self._broker is not None:
            await self._broker.close()


def _address(url: object) -> str:
    plain = argument.text(url)
    try:
        parts = urlsplit(plain or "")
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and plain
            and plain.isascii()
            and not any(char.isspace() for char in plain)
        ):
            if parts.username or parts.password or parts.query or parts.fragment:
                raise InvalidArgument(
                    "url is more than an address such as http://127.0.0.1:8080: leave the rest out; a token is given apart from it"
                )
            return plain.rstrip("/")
    except InvalidArgument:  # a ValueError too
        raise
    except ValueError:  # no port, or no host
        pass
    raise InvalidArgument(f'url is {argument.quoted(url)}; give one such as "http://127.0.0.1:8080"')


def _plain_token(token: object) -> str | None:
    if token is None:
        return None
    plain = argument.text(token)
    if not plain or not plain.isascii() or not plain.isprintable() or " " in plain:
        raise InvalidArgument("the token is not one; give what `penstock token` prints")
    return plain


def _file(path: object) -> str:
    try:
        plain = argument.text(os.fspath(path))  # type: ignore[call-overload]
    except Exception:  # anybody's path
        plain = None
    if not plain:
        raise InvalidArgument(f"ca is {argument.quoted(path)}; give the path of a file with certificates")
    return plain
