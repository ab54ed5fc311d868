"""Where a broker lives, and all that a test may do with that place.

A home joins a *place* (memory, a directory) with a *shell* (sync, asyncio) and a clock that only the test moves. To run
the whole suite against another implementation, write its shell here and add a line to `HOMES`.

The four functions that may need to know a broker's insides stand together in `Home`: `advance`, `reopen`, `crash` and
`open`. Nothing else in the suite does.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from tests.conformance.bridge import Bridged, Loop
from tests.conformance.surface import Broker
from tests.conformance.unheard import UnheardClock


class Shell(Protocol):
    def open(self, path: Path | None, **options: Any) -> Any:
        """A broker with the sync API."""

    def wake(self, broker: Any) -> None:
        """Make a broker look at its clock, and return when it has done what was due."""

    def stop(self) -> None: ...


class SyncShell:
    def open(self, path: Path | None, **options: Any) -> Any:
        return importlib.import_module("penstock").open(path, **options)

    def wake(self, broker: Any) -> None:
        broker._port.wake()

    def stop(self) -> None:
        pass


class AsyncioShell:
    def __init__(self) -> None:
        self._loop = Loop()

    def open(self, path: Path | None, **options: Any) -> Any:
        aio = importlib.import_module("penstock.aio")
        return Bridged(self._loop.call(aio.open, path, **options), self._loop)

    def wake(self, broker: Any) -> None:
        broker._target._port.wake()  # from this thread: the loop may be busy with whoever is to be woken

    def stop(self) -> None:
        self._loop.stop()


class Kind(NamedTuple):
    place: str
    shell: Callable[[], Shell]

    @property
    def durable(self) -> bool:
        return self.place != "memory"

    @property
    def asynchronous(self) -> bool:
        return self.shell is AsyncioShell


#: Every home, by the name that pytest shows. Shards and HTTP are lines here.
HOMES: Final[dict[str, Kind]] = {
    "memory-sync": Kind("memory", SyncShell),
    "disk-sync": Kind("disk", SyncShell),
    "memory-asyncio": Kind("memory", AsyncioShell),
    "disk-asyncio": Kind("disk", AsyncioShell),
}


class Home:
    """One broker, its clock, and what can happen to it."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.kind = kind
        self.clock = UnheardClock()
        self._directory = directory
        self._shell = kind.shell()
        self._opened: list[Any] = []
        self._moves = 0
        self.path = directory / "data" if kind.durable else None
        self.raw: Any = self._open(self.path)

    @property
    def durable(self) -> bool:
        return self.kind.durable

    @property
    def broker(self) -> Broker:
        return cast("Broker", self.raw)

    # --- what may have to know a broker's insides ---

    def advance(self, seconds: float) -> None:
        """Let time pass; when this returns, what was due has happened."""
        self.clock.advance(seconds=seconds)
        self._shell.wake(self.raw)

    def reopen(self, away: float = 0) -> Broker:
        """Close the broker and open it again, `away` seconds later."""
        self.raw.close()
        self.clock.advance(seconds=away)
        self.raw = self._open(self.path)
        return self.broker

    def crash(self, away: float = 0) -> Broker:
        """Open what a kill at this moment would leave behind, `away` seconds later.

        The files are copied from under the running broker, so nothing of what it would still do on closing is seen.
        """
        if self.path is None:
            raise RuntimeError("memory leaves nothing behind; mark the test with @survives_a_restart")
        self._moves += 1
        left = self._directory / f"after-crash-{self._moves}"
        shutil.copytree(self.path, left)
        self.path = left
        self.clock.advance(seconds=away)
        self.raw = self._open(self.path)
        return self.broker

    def open(self, path: Path | None, **options: Any) -> Broker:
        """Another broker of the same kind beside this one, with the same clock; closed with the home."""
        return cast("Broker", self._open(path, **options))

    # --- the rest ---

    def elsewhere(self) -> Path | None:
        """A fresh place of the same kind."""
        self._moves += 1
        return self._directory / f"elsewhere-{self._moves}" if self.durable else None

    def advance_until(self, done: Future[Any], step: float = 1) -> None:
        """Let time pass until a background call returns, however long that call takes to begin."""
        while not done.done():
            self.advance(step)

    def _open(self, path: Path | None, **options: Any) -> Any:
        opened = self._shell.open(path, **{"clock": self.clock, **options})
        self._opened.append(opened)
        return opened

    def leave(self) -> None:
        """Close everything that was opened; closing twice is allowed."""
        try:
            for broker in reversed(self._opened):
                broker.close()
        finally:
            self._shell.stop()
