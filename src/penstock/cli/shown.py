"""Messages as lines: for people, for programs, or as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.broker.sync import Delivery
from penstock.cli.dump import plain, shown
from penstock.cli.output import harmless, moment
from penstock.clock import to_us
from penstock.message import Message

#: Column of the table, and how wide it is. Key, headers and payload come behind them.
COLUMNS: Final = (("id", 19), ("published", 24), ("attempt", 7), ("priority", 8))

Show = Callable[[Message | Delivery], None]


def as_text() -> Show:
    """Lines under a heading, which is printed with the first."""
    headed = False

    def show(message: Message | Delivery) -> None:
        nonlocal headed
        if not headed:
            sys.stdout.write("  ".join(name.ljust(width) for name, width in COLUMNS) + "  message\n")
            headed = True
        attempt = str(message.attempt) if isinstance(message, Delivery) else "–"
        published = moment(to_us(message.timestamp)) if message.timestamp else "–"
        cells = (str(message.id), published, attempt, str(message.priority))
        head = "  ".join(cell.ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
        sys.stdout.write(f"{head}  {_rest(message)}\n")

    return show


def _rest(message: Message | Delivery) -> str:
    key = f"key={harmless(message.key)} " if message.key is not None else ""
    headers = message.headers
    said = f"headers={harmless(msgspec.json.encode(headers).decode())} " if headers else ""
    return f"{key}{said}payload={shown(message.payload)}"


def as_json() -> Show:
    """One JSON object per line."""

    def show(message: Message | Delivery) -> None:
        said: dict[str, Any] = {
            "id": message.id,
            "offset": message.offset,
            "timestamp": message.timestamp,
            "priority": message.priority,
        }
        if isinstance(message, Delivery):
            said["attempt"] = message.attempt
        if message.key is not None:
            said["key"] = message.key
        if headers := message.headers:
            said["headers"] = headers
        said["payload"] = plain(message.payload)
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")

    return show


def as_it_is() -> Show:
    """The payload's own bytes, and a newline behind each, as `penstock publish --lines` reads them."""

    def show(message: Message | Delivery) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(message.payload + b"\n")

    return show
