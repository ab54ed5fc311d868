"""The places that commands are tested at: a directory, and a server over one. Both hold the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner, Result

import penstock
from penstock.cli.app import app
from tests.server.running import Running

#: No variable of whoever runs the tests says where queues are.
NOWHERE: Final = {"PENSTOCK_URL": None, "PENSTOCK_TOKEN": None, "PENSTOCK_CA": None}

KINDS: Final = ("directory", "server")


def run(*arguments: object, given: bytes | None = None, **variables: Any) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=given, env={**NOWHERE, **variables})


class Home:
    """A place, as it is typed, and a broker to look at it with."""

    def __init__(self, where: str, path: Path, broker: penstock.Broker | None) -> None:
        self.where = where
        self._path = path
        self._broker = broker

    def opened(self) -> AbstractContextManager[penstock.Broker]:
        return penstock.open(self._path) if self._broker is None else nullcontext(self._broker)


@contextmanager
def home_of(kind: str, path: Path, **settings: Any) -> Iterator[Home]:
    with penstock.open(path) as broker:
        if kind == "server":
            with Running(broker._port, **settings) as server:
                yield Home(server.url, path, broker)
            return
    yield Home(str(path), path, None)
