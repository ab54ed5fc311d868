"""How a job that goes on for ever is asked to end: by its caller, or by SIGTERM and SIGINT."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from penstock.errors import InvalidArgument

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Asks a job to end: once, and it ends behind the batch that is being worked on; twice, and it ends at once."""

    def __init__(self) -> None:
        self.times = 0

    def ask(self) -> None:
        self.times += 1


@contextmanager
def heeding(stop: Stop) -> Iterator[None]:
    """Let SIGTERM and SIGINT ask. Spark's own handler of SIGINT is put back at the end."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgument("signals arrive in the main thread: run it there, or without signals=True")

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.ask()

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
