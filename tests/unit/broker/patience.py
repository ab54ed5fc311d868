"""Waiting for another thread, without guessing how long it takes."""

from __future__ import annotations

import inspect
import sys
import threading
from contextlib import AbstractContextManager

from penstock.broker.ticket import Waiting
from tests.conformance.background import PATIENCE_S, interrupted_once, start, until

__all__ = ["PATIENCE_S", "interrupted_at_the_gate", "start", "until"]


def _is_at_the_gate(thread: int) -> bool:
    lines, first = inspect.getsourcelines(Waiting.wait)
    gate = first + max(number for number, line in enumerate(lines) if "gate.acquire()" in line)
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code is Waiting.wait.__code__ and frame.f_lineno == gate


def interrupted_at_the_gate() -> AbstractContextManager[None]:
    """Ctrl-C for the main thread, which this is, once it waits for messages."""
    thread = threading.get_ident()
    return interrupted_once(lambda: _is_at_the_gate(thread))
