"""Servers of the test's process, lent to one broker after another: to start one takes longer than most tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from penstock.broker.embedded import Embedded
from tests.server.running import Running

_free: Final[list[Running]] = []
_lock: Final = threading.Lock()


def lend(port: Embedded) -> Running:
    """A server over a broker's port, as if it had just been started."""
    with _lock:
        server = _free.pop() if _free else None
    if server is None:
        return Running(port)
    front: Any = server.front
    front.__init__(  # a new life: nothing of the last broker is known
        port, accounts=front.accounts, quotas=front.quotas, bounds=front.bounds, observer=front.observer,
        directory=None, intake=None, ready=front.ready,
    )  # fmt: skip
    _call(server, lambda: server.lead_for(port))
    return server


def give_back(server: Running) -> None:
    """Nobody waits there any longer, and its clients are gone."""
    _call(server, server.front.stop)
    with _lock:
        _free.append(server)


def _call(server: Running, function: Callable[[], None]) -> None:
    """Have a function called in the server's loop."""
    done = threading.Event()

    def call() -> None:
        function()
        done.set()

    if server.loop is not None:
        server.loop.call_soon_threadsafe(call)
        done.wait()
