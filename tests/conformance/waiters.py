"""Who waits in line, for tests in which it matters who does: with others it is enough that a call is made some time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.conformance.background import PATIENCE_S
from tests.conformance.surface import Log


def until(true: Callable[[], bool]) -> None:
    """Look again and again. It is no measure of speed: who waits for so long has failed."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never happened"


def in_line(log: Log, count: int) -> None:
    """Return when so many calls wait for messages of a queue or topic."""

    def enough() -> bool:
        found: Any = log.stats()
        return bool(found.waiting >= count)

    until(enough)
