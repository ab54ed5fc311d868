"""SIGTERM: as Ctrl-C, for commands that leave something behind which must be put in order (a terminal, or a queue); and as an end in order, for a server that has not begun."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def sigterm_ends() -> None:
    """Until somebody else asks for it, SIGTERM ends the process with 0: nothing has been begun that would have to be put in order."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """While this lasts, SIGTERM raises `KeyboardInterrupt`. Only the main thread is asked, and only there it can be arranged."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
