"""`penstock.open`: a broker in memory, or over a directory that this process then owns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock import limits
from penstock.broker import sync
from penstock.broker.embedded import Embedded, in_memory, on_disk
from penstock.clock import Clock
from penstock.journal.journal import check_settings
from penstock.journal.tail import Durability


def open(  # noqa: A001  # it is the name in the API
    path: str | Path | None = None,
    *,
    durability: Durability = "commit",
    commit_interval_ms: float = limits.COMMIT_INTERVAL_MS,
    segment_bytes: int = limits.SEGMENT_BYTES,
    node: int = 0,
    clock: Clock | None = None,
) -> sync.Broker:
    """Open the queues in a directory, or in memory if there is none.

    >>> with open() as broker:
    ...     orders = broker.queue("orders")
    ...     _ = orders.publish(b"an order")
    ...     delivery = orders.receive()
    ...     delivery.payload
    ...     delivery.ack()
    b'an order'
    """
    return sync.Broker(
        port(path, clock, node, durability=durability, commit_interval_ms=commit_interval_ms, segment_bytes=segment_bytes)
    )  # fmt: skip


def port(path: str | Path | None, clock: Clock | None, node: int, **settings: Any) -> Embedded:
    # What failed together in several processes must not be retried together. Who brings a clock wants to see the same again.
    seed = 0 if clock is not None else int.from_bytes(os.urandom(8), "little")
    if path is None:
        check_settings(**settings)  # a mistake is one in memory too
        return in_memory(clock, node=node, seed=seed)
    return on_disk(path, clock, node=node, seed=seed, **settings)
