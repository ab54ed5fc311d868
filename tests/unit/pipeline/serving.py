"""A directory behind a server, whoever has it open: the broker of the test, or, while it has none, one that is opened for the purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker import sync
from penstock.errors import BrokerClosed
from tests.server.running import Running

_open = penstock.open


class Serving:
    """Stands in for `penstock.open` for one directory. Its address stays the same from one server to the next."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self._settings = settings  # of the server
        self._broker: sync.Broker | None = None
        self._mine = False
        self._server: Running | None = None
        self._port = 0

    def open(self, path: Any = None, **settings: Any) -> sync.Broker:
        """What a test opens is served from then on."""
        if path is None or Path(path) != self.path:
            return _open(path, **settings)
        self.release()
        self._broker = _open(path, **settings)
        return self._broker

    @property
    def url(self) -> str:
        """Where the directory is served now."""
        if self._server is None or not self._is_open():
            if not self._is_open():
                self.release()
                self._broker, self._mine = _open(self.path), True
            assert self._broker is not None
            self._server = Running(
                self._broker._port, listen=self._port, directory=self.path, **self._settings
            )
            self._port = int(self._server.url.rpartition(":")[2])
        return self._server.url

    def _is_open(self) -> bool:
        try:
            return self._broker is not None and self._broker.list_queues() is not None
        except BrokerClosed:
            return False

    def release(self) -> None:
        """Let the directory go, unless it is the test that holds it."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._mine and self._broker is not None:
            self._broker.close()
        self._broker, self._mine = None, False


#: The directories that are read and written through a server.
SERVED: dict[Path, Serving] = {}


@contextmanager
def place(path: Path, how: str) -> Iterator[Path]:
    """A directory that is used as such, or through a server ("url")."""
    if how == "directory":
        yield path
        return
    SERVED[path] = serving = Serving(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penstock, "open", serving.open)
        try:
            yield path
        finally:
            serving.release()
            del SERVED[path]


def reached(path: Path | str) -> dict[str, str]:
    """The options that say where a directory's tables are."""
    served = SERVED.get(Path(path))
    return {"path": str(path)} if served is None else {"url": served.url}
