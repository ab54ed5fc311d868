"""What the objects of the API wait for beside the port's tickets; `pauses_aio` is the same for asyncio."""

from __future__ import annotations

import threading

from penstock.broker.port import Port


def pause(seconds: float) -> None:
    """Wait."""
    if seconds:
        threading.Event().wait(seconds)


def close_port(port: Port, timeout_s: float | None) -> None:
    """Close a port."""
    port.close(timeout_s)
