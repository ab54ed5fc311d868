"""A server in the process of the test: real sockets, the listener of `penstock serve`, over a port that the test has too, so that it can move the clock."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Final

import uvloop

from penstock.broker.embedded import Embedded
from penstock.server.connections import Bound
from penstock.server.http.app import create
from penstock.server.listening import HttpFront
from penstock.server.quantity import Address

#: Nothing that a test of the routes does is to be refused by the listener: that has tests of its own.
BOUND: Final = Bound(
    connections=10_000, connections_per_address=10_000, head_bytes=1 << 20, body_bytes=1 << 30, bodies_bytes=1 << 32, head_s=60, body_s=60, idle_s=60
)  # fmt: skip


class Running:
    """A server over a broker's port, on a free port of this machine, in a thread of its own.

    The broker is the test's: it outlives the server, unless the test closes it.
    """

    def __init__(self, port: Any, *, listen: int = 0, **create_kwargs: Any) -> None:
        intake = port.monitor.intake if isinstance(port, Embedded) else None
        self.app = create(port, intake=intake, **create_kwargs)
        self._port = port
        self.front: Any = self.app.front
        self.loop: asyncio.AbstractEventLoop | None = None
        self.url = ""
        self._listener = HttpFront(Address("127.0.0.1", listen), BOUND)
        self._listening = threading.Event()
        self._ending: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server of a test", daemon=True)
        self._thread.start()
        self._listening.wait(30)
        if self._failure is not None or not self.url:
            raise RuntimeError("the server did not start") from self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._listening.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.lead_for(self._port)
        self._ending = asyncio.Event()
        await self._listener.start()
        await self._listener.serve(self.app)
        self.url = self._listener.url
        self._listening.set()
        await self._ending.wait()
        self.front.stop()
        await self._listener.stop(10)

    def lead_for(self, port: Any) -> None:
        """In the loop's thread: commit what comes from here, as `penstock serve` does."""
        if isinstance(port, Embedded):
            port.host()

    def stop(self) -> None:
        """Let nobody wait any longer, finish what is under way, and end."""
        if self.loop is not None and self._ending is not None and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(30)
        if self._thread.is_alive():
            raise RuntimeError("the server does not end")
        if self._failure is not None:
            raise RuntimeError("the server failed") from self._failure

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
