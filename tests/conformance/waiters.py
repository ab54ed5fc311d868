"""Who waits in line, for tests in which it matters who does: with others it is enough that a call is made some time."""

from __future__ import annotations

from typing import Any

from tests.conformance.background import until
from tests.conformance.surface import Log


def in_line(log: Log, count: int) -> None:
    """Return when so many calls wait for messages of a queue or topic."""

    def enough() -> bool:
        found: Any = log.stats()
        return bool(found.waiting >= count)

    until(enough)
