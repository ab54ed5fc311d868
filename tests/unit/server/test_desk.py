"""Two threads at the desk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from penstock.pipeline.catalog import Catalog
from penstock.server.desk import Desk


class Contested(list[Catalog]):
    """Looks as if there were one, but another thread has taken it meanwhile."""

    def __bool__(self) -> bool:
        return True


def test_two_threads_take_the_same_catalog(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as broker:
        broker.queue("work").publish(b"one")
        intake: Any = None
        desk = Desk(tmp_path / "data", intake)
        desk._catalogs = Contested()
        assert desk.names("default").names == ["work"]
        assert len(desk._catalogs) == 1
        assert desk.names("default").names == ["work"]
        assert len(desk._catalogs) == 1
