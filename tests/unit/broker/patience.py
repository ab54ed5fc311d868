"""Waiting for another thread, without guessing how long it takes."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections.abc import Callable

from penstock.broker.ticket import Waiting
from tests.conformance.background import PATIENCE_S, start

__all__ = ["PATIENCE_S", "interrupt_waiter", "start", "until"]


def until(condition: Callable[[], object]) -> None:
    """Return when it is so; look again as soon as another thread had its turn."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 10_000):
        if condition():
            return
        pause.wait(0.0001)
    raise AssertionError("it never came to that")


def _is_at_the_gate(thread: int) -> bool:
    lines, first = inspect.getsourcelines(Waiting.wait)
    gate = first + max(number for number, line in enumerate(lines) if "gate.acquire()" in line)
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code is Waiting.wait.__code__ and frame.f_lineno == gate


def interrupt_waiter(thread: int) -> None:
    """Ctrl-C for a thread, the main one, once it waits for messages."""
    until(lambda: _is_at_the_gate(thread))
    signal.pthread_kill(thread, signal.SIGINT)
