"""Snapshots and cleaning while a broker is in use: so that opening stays quick, and consumed messages give their disk space back.

A thread of its own does it, now and then, counted in changes. Publishers and consumers wait only while the engine's state is packed: plain queued messages
take no time in that, a million that are delayed, retried or deduplicated take a third of a second. What cannot be done (a full disk,
say) is said in the log and tried again later: nothing depends on it but time and space.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.journal.cleaner import clean
from penstock.journal.journal import Journal

if TYPE_CHECKING:
    from penstock.broker.embedded import Embedded

#: Changes between two snapshots: replaying so many takes about a second.
CHANGES_AT_ONCE: Final = 20_000

_LOG: Final = logging.getLogger("penstock.broker")


class Upkeep:
    """What keeps a broker's journal short."""

    def __init__(self, broker: Embedded, journal: Journal) -> None:
        self._broker = broker
        self._journal = journal
        self._changes = 0
        self._due = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def count(self) -> None:
        """With the broker's lock held: something was recorded."""
        self._changes += 1
        if self._changes < CHANGES_AT_ONCE or self._stopped:
            return
        self._changes = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_up, name="penstock-upkeep", daemon=True)
            self._thread.start()
        self._due.set()

    def _keep_up(self) -> None:
        while not self._stopped:
            self._due.wait()
            self._due.clear()
            if not self._stopped:
                self.run()

    def run(self) -> None:
        """Do it now."""
        try:
            self._broker.snapshot(self._journal)
            clean(self._journal, self._broker.dead_ranges)
        except PenstockError as error:
            _LOG.warning("upkeep was not done, and will be tried again: %s", error)

    def stop(self) -> None:
        """Return when nothing of it is under way any more."""
        self._stopped = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()
