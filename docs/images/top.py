"""Draws docs/images/top.svg: what `penstock top` shows of a shop at noon. `python docs/images/top.py`"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.cli.rates import Frame, Row, Share
from penstock.cli.top import Screen


def row(name: str, rates: tuple[float, float, float], **known: Any) -> Row:
    published, delivered, acked = rates
    zeros = dict.fromkeys(("depth", "ready", "delayed", "leased", "retrying", "dead", "lag", "consumers"), 0)
    said = {"kind": "queue", **zeros, "lag": known.get("depth", 0), "groups": {}, "readers": {}, **known}
    return Row(
        name=name, published_per_s=published, delivered_per_s=delivered, acked_per_s=acked, **said
    )  # fmt: skip


SHOP = [
    row("orders", (1204.5, 1198.0, 1196.5), depth=412, ready=92, leased=318, retrying=2, dead=3, consumers=8),
    row(
        "events", (310.0, 905.5, 905.5), kind="topic", depth=1893, ready=1877, leased=16, lag=1893, consumers=5,
        groups={
            "audit": Share(lag=4, ready=0, leased=4, retrying=0, consumers=2),
            "mail": Share(lag=12, ready=0, leased=12, retrying=0, consumers=2),
            "search": Share(lag=1893, ready=1893, leased=0, retrying=0, consumers=1),
        },
        readers={"report": 52_310},
    ),
    row("invoices", (41.0, 41.0, 40.5), depth=18, ready=0, leased=14, retrying=4, dead=27, consumers=4),
    row("newsletters", (0, 12.5, 12.5), depth=184_210, ready=180_000, delayed=4_200, leased=10, consumers=1),
    row("refunds", (0.5, 0.5, 0.5), depth=1, leased=1, consumers=1),
    row("thumbnails", (0, 0, 0)),
]  # fmt: skip


def picture() -> str:
    """The drawing."""
    console = Console(
        file=StringIO(), record=True, width=120, height=17, highlight=False, force_terminal=True
    )
    frame = Frame("https://queues.example.org", "shop", "2026-11-16T12:00:04+00:00", 2.0, SHOP)
    console.print(Screen(frame, "activity", 2.0))
    return console.export_svg(title="penstock top", unique_id="top")


if __name__ == "__main__":
    (Path(__file__).parent / "top.svg").write_text(picture())
