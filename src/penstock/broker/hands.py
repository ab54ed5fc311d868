"""Threads that call a worker's handler.

They are daemons, which those of `concurrent.futures` are not: a handler that hangs must not keep a process alive that was told to stop at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from penstock.broker.verdict import Ending, ending_of


class Hands:
    """Up to so many threads, begun when they are first needed."""

    def __init__(self, handler: Callable[[Any], object], count: int, name: str) -> None:
        self._handler = handler
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[tuple[Future[Ending], Any] | None] = SimpleQueue()

    def call(self, delivery: Any) -> asyncio.Future[Ending]:
        """Have the handler called with it; how that ends, for the running loop."""
        future: Future[Ending] = Future()
        self._work.put((future, delivery))
        if len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return asyncio.wrap_future(future)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            future, delivery = work
            if not future.set_running_or_notify_cancel():
                continue
            future.set_result(ending_of(self._handler, delivery))
            del work, future, delivery  # they are not to live until the next one comes

    def close(self, *, wait: bool) -> None:
        """Let the threads end when they are done; `wait` for that if all of them are idle."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()
