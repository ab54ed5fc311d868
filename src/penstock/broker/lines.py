"""Who waits for messages: a line for each log and group, in the order in which they came.

Those who wait for a limited time also stand in a heap, by the end of their patience. Who has left his line is not looked for in that heap: he is
passed over when he comes up, or swept out with others.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final

from penstock.broker.ticket import Waiting
from penstock.engine.log import Log

#: So many who have left are not worth sweeping.
FEW: Final = 64


class Lines:
    """All lines of a broker. Its lock guards them."""

    def __init__(self) -> None:
        self._lines: dict[Log, dict[str, deque[Waiting]]] = {}
        self._patience: list[tuple[int, int, Waiting]] = []
        self._joined = 0
        self.count = 0  # who waits, in all lines

    def join(self, waiting: Waiting) -> None:
        """Somebody comes."""
        log, group = waiting.place
        self._lines.setdefault(log, {}).setdefault(group, deque()).append(waiting)
        waiting.stands = True
        self.count += 1
        log.receivers += bool(group)  # who only watches takes nothing
        _count(waiting, 1)
        if waiting.deadline_us is not None:
            self._joined += 1  # so that no two entries are compared by who waits
            heapq.heappush(self._patience, (waiting.deadline_us, self._joined, waiting))

    def leave(self, waiting: Waiting) -> bool:
        """Somebody goes, with or without what he waited for; False if he had gone before."""
        if not waiting.stands:
            return False
        log, group = waiting.place
        lines = self._lines[log]
        lines[group].remove(waiting)  # nearly always the first
        if not lines[group]:
            del lines[group]
            if not lines:
                del self._lines[log]
        waiting.stands = False
        self.count -= 1
        log.receivers -= bool(group)
        _count(waiting, -1)
        if not self.count:
            self._patience.clear()
        elif len(self._patience) > 2 * self.count + FEW:
            self._patience = [entry for entry in self._patience if entry[2].stands]
            heapq.heapify(self._patience)
        return True

    def of(self, log: Log, group: str) -> list[Waiting]:
        """Who stands in a line, the first one first."""
        return list(self._lines.get(log, {}).get(group, ()))

    def groups_of(self, log: Log) -> list[str]:
        """In which groups somebody waits."""
        return list(self._lines.get(log, ()))

    def stands_at(self, log: Log) -> bool:
        """Whether somebody waits for a log."""
        return log in self._lines

    def of_log(self, log: Log) -> list[Waiting]:
        """Who waits for a log, in whichever group."""
        return [waiting for line in self._lines.get(log, {}).values() for waiting in line]

    def everybody(self) -> list[Waiting]:
        return [waiting for log in self._lines for waiting in self.of_log(log)]

    @property
    def next_us(self) -> int | None:
        """When somebody's patience ends next."""
        while self._patience and not self._patience[0][2].stands:
            heapq.heappop(self._patience)
        return self._patience[0][0] if self._patience else None

    def out_of_patience(self, now_us: int) -> Iterator[Waiting]:
        """Who has waited long enough; the caller has them leave."""
        while (next_us := self.next_us) is not None and next_us <= now_us:
            yield heapq.heappop(self._patience)[2]


def _count(waiting: Waiting, step: int) -> None:
    """Somebody who waits for messages is alive."""
    log, name = waiting.place
    group = log.groups.get(name)
    member = group.members.get(waiting.consumer) if group is not None else None
    if member is not None:
        member.waits += step
