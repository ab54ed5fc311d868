"""Open a broker from asyncio: opening and closing take as long as they take, each in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from penstock import limits
from penstock.broker.aio import Broker
from penstock.broker.embedded import Embedded
from penstock.broker.opening import port as open_port
from penstock.broker.pauses_aio import in_a_thread
from penstock.clock import Clock
from penstock.journal.tail import Durability


class Opening:
    """What `aio.open` gives: await it, or use it with `async with`."""

    def __init__(
        self,
        path: str | Path | None,
        clock: Clock | None,
        node: int,
        trace: bool | None,
        settings: dict[str, Any],
    ) -> None:
        self._arguments = (path, clock, node, trace)
        self._settings = settings
        self._broker: Broker | None = None

    async def _open(self) -> Broker:
        opening = in_a_thread(partial(open_port, *self._arguments, **self._settings), "penstock-open")
        try:
            port = await asyncio.wrap_future(opening)
        except BaseException:  # nobody waits for it any more; it goes on all the same
            opening.add_done_callback(_let_go)
            raise
        self._broker = Broker(port)
        return self._broker

    def __await__(self) -> Generator[Any, None, Broker]:
        return self._open().__await__()

    async def __aenter__(self) -> Broker:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        if self._broker is not None:
            await self._broker.close()


def _let_go(opening: Future[Embedded]) -> None:
    """Close what was opened for nobody. Perhaps on the loop, so not here."""
    if opening.exception() is None:
        in_a_thread(opening.result().close, "penstock-close")


def open(  # noqa: A001  # it is the name in the API
    path: str | Path | None = None,
    *,
    durability: Durability = "commit",
    commit_interval_ms: float = limits.COMMIT_INTERVAL_MS,
    segment_bytes: int = limits.SEGMENT_BYTES,
    node: int = 0,
    clock: Clock | None = None,
    trace: bool | None = None,
) -> Opening:
    """The same for asyncio: `broker = await penstock.aio.open(…)`, or `async with penstock.aio.open(…) as broker`."""
    settings = {
        "durability": durability,
        "commit_interval_ms": commit_interval_ms,
        "segment_bytes": segment_bytes,
    }
    return Opening(path, clock, node, trace, settings)
