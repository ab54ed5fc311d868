"""Where a broker lives, and all that a test may do with that place.

A home joins a *place* (memory, a directory) with a *shell* (sync, asyncio) and a clock that only the test moves. To run
the whole suite against another implementation, write its shell here and add a line to `HOMES`.

What may need to know a broker's insides stands together in `Home`: `inside`, `advance`, `reopen`, `crash` and `open`. Nothing else in
the suite does.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from penstock import limits
from penstock.broker import aio, sync
from penstock.broker.embedded import Embedded
from penstock.broker.opening import port as open_port
from penstock.client.asking import Server as Asking
from penstock.client.exchange import Exchange
from penstock.client.port import RemotePort
from penstock.client.running import Runner
from tests.conformance.bridge import Bridged, Loop
from tests.conformance.serving import give_back, lend
from tests.conformance.surface import Broker
from tests.conformance.unheard import UnheardClock
from tests.server.running import Running


class Shell(Protocol):
    def open(self, path: Path | None, **options: Any) -> Any:
        """A broker with the sync API."""

    def inside(self, broker: Any) -> Any:
        """The port of this process that does the work in the end."""

    def stop(self) -> None: ...


class SyncShell:
    def open(self, path: Path | None, **options: Any) -> Any:
        return importlib.import_module("penstock").open(path, **options)

    def inside(self, broker: Any) -> Any:
        return broker._port

    def stop(self) -> None:
        pass


class AsyncioShell:
    def __init__(self) -> None:
        self._loop = Loop()

    def open(self, path: Path | None, **options: Any) -> Any:
        aio = importlib.import_module("penstock.aio")
        return Bridged(self._loop.call(aio.open, path, **options), self._loop)

    def inside(self, broker: Any) -> Any:
        return broker._target._port

    def stop(self) -> None:
        self._loop.stop()


class _Served(RemotePort):
    """A client's port that takes its server with it when it is closed, as an embedded broker takes its directory."""

    # A client says in real time that its consumers live, and the silence is by the clock that a test moves, by years if it likes: none may be thought dead between two beats. (What becomes of them is in tests/unit/client/test_beating.py.)
    silence_s = limits.DURATION_S_MAX

    def __init__(self, server: Running, inside: Embedded, runner: Runner) -> None:
        super().__init__(Asking(Exchange(server.url, None, None), 30), runner, inside.clock)
        self.server: Running | None = server
        self.inside = inside
        self._once = threading.Lock()

    def close(self, timeout_s: float | None = None) -> None:
        with self._once:
            super().close(timeout_s)
            if self.server is not None:
                give_back(self.server)
                self.server = None
            self.inside.close()


def _serve(path: Path | None, options: dict[str, Any], loop: asyncio.AbstractEventLoop | None) -> _Served:
    """A server over a broker of the test's process, and a client of it. Both have the test's clock."""
    settings = {
        "clock": None, "node": 0, "durability": "commit", "commit_interval_ms": limits.COMMIT_INTERVAL_MS,
        "segment_bytes": limits.SEGMENT_BYTES, **options,
    }  # fmt: skip
    inside = open_port(path, **settings)
    try:
        server = lend(inside)
    except BaseException:
        inside.close()
        raise
    return _Served(server, inside, Runner(loop) if loop is not None else Runner.in_a_thread())


class HttpShell:
    """A client for threads, over HTTP."""

    def open(self, path: Path | None, **options: Any) -> Any:
        return sync.Broker(_serve(path, options, None))

    def inside(self, broker: Any) -> Any:
        return broker._port.inside

    def stop(self) -> None:
        pass


class HttpAsyncioShell:
    """A client for asyncio, over HTTP."""

    def __init__(self) -> None:
        self._loop = Loop()

    def open(self, path: Path | None, **options: Any) -> Any:
        port = _serve(path, options, self._loop._loop)
        return Bridged(aio.Broker(port), self._loop)

    def inside(self, broker: Any) -> Any:
        return broker._target._port.inside

    def stop(self) -> None:
        self._loop.stop()


class Kind(NamedTuple):
    place: str
    shell: Callable[[], Shell]

    @property
    def durable(self) -> bool:
        return self.place != "memory"

    @property
    def asynchronous(self) -> bool:
        return self.shell in {AsyncioShell, HttpAsyncioShell}

    @property
    def remote(self) -> bool:
        """Whether there is a network between the test and the broker. What differs then is in docs/reference/client.md."""
        return self.shell in {HttpShell, HttpAsyncioShell}


#: Every home, by the name that pytest shows. Shards are lines here.
HOMES: Final[dict[str, Kind]] = {
    "memory-sync": Kind("memory", SyncShell),
    "disk-sync": Kind("disk", SyncShell),
    "memory-asyncio": Kind("memory", AsyncioShell),
    "disk-asyncio": Kind("disk", AsyncioShell),
    "disk-http": Kind("disk", HttpShell),
    "memory-http": Kind("memory", HttpShell),
    "disk-http-asyncio": Kind("disk", HttpAsyncioShell),
    "memory-http-asyncio": Kind("memory", HttpAsyncioShell),
}


class Home:
    """One broker, its clock, and what can happen to it."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.kind = kind
        self.clock = UnheardClock()
        self._directory = directory
        self._shell = kind.shell()
        self._opened: list[Any] = []
        self._moves = 0
        self.path = directory / "data" if kind.durable else None
        self.raw: Any = self._open(self.path)

    @property
    def durable(self) -> bool:
        return self.kind.durable

    @property
    def broker(self) -> Broker:
        return cast("Broker", self.raw)

    # --- what may have to know a broker's insides ---

    @property
    def inside(self) -> Any:
        """The port of this process that does the work in the end: an `Embedded`."""
        return self._shell.inside(self.raw)

    def advance(self, seconds: float) -> None:
        """Let time pass; when this returns, what was due has happened."""
        self.clock.advance(seconds=seconds)
        self.inside.wake()  # from this thread: a loop may be busy with whoever is to be woken

    def reopen(self, away: float = 0) -> Broker:
        """Close the broker and open it again, `away` seconds later."""
        self.raw.close()
        self.clock.advance(seconds=away)
        self.raw = self._open(self.path)
        return self.broker

    def crash(self, away: float = 0) -> Broker:
        """Open what a kill at this moment would leave behind, `away` seconds later.

        The files are copied from under the running broker, so nothing of what it would still do on closing is seen.
        """
        if self.path is None:
            raise RuntimeError("memory leaves nothing behind; mark the test with @survives_a_restart")
        self._moves += 1
        left = self._directory / f"after-crash-{self._moves}"
        shutil.copytree(self.path, left)
        self.path = left
        self.clock.advance(seconds=away)
        self.raw = self._open(self.path)
        return self.broker

    def open(self, path: Path | None, **options: Any) -> Broker:
        """Another broker of the same kind beside this one, with the same clock; closed with the home."""
        return cast("Broker", self._open(path, **options))

    # --- the rest ---

    def elsewhere(self) -> Path | None:
        """A fresh place of the same kind."""
        self._moves += 1
        return self._directory / f"elsewhere-{self._moves}" if self.durable else None

    def advance_until(self, done: Future[Any], step: float = 1) -> None:
        """Let time pass until a background call returns, however long that call takes to begin."""
        while not done.done():
            self.advance(step)

    def _open(self, path: Path | None, **options: Any) -> Any:
        opened = self._shell.open(path, **{"clock": self.clock, **options})
        self._opened.append(opened)
        return opened

    def leave(self) -> None:
        """Close everything that was opened; closing twice is allowed."""
        try:
            for broker in reversed(self._opened):
                broker.close()
        finally:
            self._shell.stop()
