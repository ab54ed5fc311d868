"""What the objects of the API await beside the port's tickets; `pauses` is the same for threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from penstock.broker.port import Port

T = TypeVar("T")


async def pause(seconds: float) -> None:
    """Wait, and let others run at the least."""
    await asyncio.sleep(seconds)


async def close_port(port: Port, timeout_s: float | None) -> None:
    """Close a port in a thread, which may wait for the disk."""
    await asyncio.wrap_future(in_a_thread(partial(port.close, timeout_s), "penstock-close"))


def in_a_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Have something done by a thread of its own: all those of the loop may be busy with handlers that hang."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who waits for it may go away, and it is done to its end

    def do() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=do, name=name).start()
    return future
