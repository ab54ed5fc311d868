"""The running event loop, for code that asyncio may be absent from: importing it costs 30 ms."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread; `RuntimeError` if none runs."""
    if "asyncio" not in sys.modules:
        raise RuntimeError("no running event loop")
    loop: asyncio.AbstractEventLoop = sys.modules["asyncio"].get_running_loop()
    return loop
