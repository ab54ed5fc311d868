"""Threads for what blocks, that keep no process alive.

Python joins the threads of a `ThreadPoolExecutor` at its exit, what they have not begun yet included: a server that was told to stop would stand there past its deadline. These are not
joined. A process that ends while one is at work (`any_busy`) must do so by `os._exit`: a thread that is in C++ when the interpreter goes takes the process down.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
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
        try:
            return await asyncio.shield(found)
        finally:
            del found  # it holds the error, whose traceback holds this frame


async def in_thread(function: Callable[[], T]) -> T:
    """What a function gives that takes its time."""
    return await _begun(function, "serve")


def any_busy() -> bool:
    """Whether a thread is still at work."""
    return any(thread.is_alive() for thread in list(_busy))


def _begun(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # it runs also if nobody waits for it any more
    thread = threading.Thread(target=_run, args=(done, function), name=_PREFIX + name, daemon=True)
    _busy.add(thread)
    try:
        thread.start()
    except BaseException:
        _busy.discard(thread)
        raise
    return asyncio.wrap_future(done)


def _run(done: Future[T], function: Callable[[], T]) -> None:
    try:
        result = function()
    except BaseException as error:
        _busy.discard(threading.current_thread())
        done.set_exception(error)
    else:
        _busy.discard(threading.current_thread())
        done.set_result(result)
    finally:
        del done, function  # an error holds this frame by its traceback, and `done` holds the error
