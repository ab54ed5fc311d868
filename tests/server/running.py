"""A server in the process of the test: real sockets, a real uvicorn, over a port that the test has too, so that it can move the clock."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import TracebackType
from typing import Any

import uvicorn

from penstock.server.http.app import create


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, listening: threading.Event) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()


class Running:
    """A server over a broker's port, on a free port of this machine, in a thread of its own.

    The broker is the test's: it outlives the server, unless the test closes it.
    """

    def __init__(self, port: Any, **create_kwargs: Any) -> None:
        self.app = create(port, **create_kwargs)
        self.front: Any = self.app.state.front
        self.loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            self.app, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="on", loop="uvloop",
            timeout_graceful_shutdown=10, ws="none",
        )  # fmt: skip
        self._listening = threading.Event()
        self._server = _Server(config, self._listening)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server of a test", daemon=True)
        self._thread.start()
        self._listening.wait(30)
        if self._failure is not None or not self._server.started:
            raise RuntimeError("the server did not start") from self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._listening.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self._server._serve()  # without its signals: this is not the main thread

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def stop(self) -> None:
        """Let nobody wait any longer, finish what is under way, and end."""
        if self.loop is not None and not self.loop.is_closed() and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._begin_to_stop)
        self._thread.join(30)
        if self._thread.is_alive():
            raise RuntimeError("the server does not end")

    def _begin_to_stop(self) -> None:
        self.front.stop()
        self._server.should_exit = True

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
