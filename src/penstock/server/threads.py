"""Threads for what blocks, that keep no process alive.

Python joins the threads of a `ThreadPoolExecutor` at its exit, what they have not begun yet included: a server that was told to stop would stand there past its deadline. These are not
joined. A process that ends while one is at work (`any_busy`) must do so by `os._exit`: a thread that is in C++ when the interpreter goes takes the process down.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

_PREFIX: Final = "penstock-"
_busy: set[threading.Thread] = set()


class Threads:
    """So many threads at the most; who comes when all are busy waits for one."""

    def __init__(self, most: int, name: str) -> None:
        self._places = asyncio.Semaphore(most)
        self._name = name

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a function gives. Its place is taken until it ends, also if whoever waits for it does no longer."""
        await self._places.acquire()
        try:
            found = _begun(lambda: function(*arguments), self._name)
        except BaseException:
            self._places.release()
            raise
        found.add_done_callback(lambda _: self._places.release())
        return await asyncio.shield(found)


async def in_thread(function: Callable[[], T]) -> T:
    """What a function gives that takes its time."""
    return await _begun(function, "serve")


def any_busy() -> bool:
    """Whether a thread is still at work."""
    return any(thread.is_alive() for thread in list(_busy))


def _begun(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:
            error = caught
        _busy.discard(threading.current_thread())
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, result, error)

    thread = threading.Thread(target=run, name=_PREFIX + name, daemon=True)
    _busy.add(thread)
    try:
        thread.start()
    except BaseException:
        _busy.discard(thread)
        raise
    return done
