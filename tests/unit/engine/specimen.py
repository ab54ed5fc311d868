"""An engine with nothing around it: what is published is durable at once, and everything is kept that was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from penstock.clock import SECOND_US, ManualClock
from penstock.engine.change import Change, Content, Grant
from penstock.engine.engine import Engine
from penstock.engine.events import Event, Published
from penstock.engine.history import replay
from penstock.engine.log import Log
from penstock.errors import DiskFull
from penstock.model.batch import Batch
from penstock.policy import Backoff, Policy

NOW = ManualClock.START_US
PROMPT = Backoff(initial=10, factor=1, maximum=10, jitter=0)


class Machine:
    """An engine, the time, and what it recorded."""

    def __init__(self, events: Sequence[tuple[int, Event]] = ()) -> None:
        self.now_us = NOW
        self.events: list[tuple[int, Event]] = list(events)
        self.units: list[list[Event]] = []
        self.room = True
        self._ids = count(1)
        self.engine = Engine(
            seed=1,
            fetch=self._fetch,
            take_ids=lambda wanted: [next(self._ids) for _ in range(wanted)],
            make_room=self._make_room,
        )

    def _make_room(self, size: int, settling: bool) -> None:
        if not self.room and not settling:
            raise DiskFull(f"no room for {size} bytes")

    def _fetch(self, log: Log, offsets: Sequence[int]) -> list[Content | None]:
        found: list[Content | None] = []
        for offset in offsets:
            batches = [e for _, e in self.events if isinstance(e, Published) and e.log == log.number]
            match = [e for e in batches if e.first <= offset < e.first + e.batch.count]
            found.append(_content(match[-1].batch, offset - match[-1].first) if match else None)
        return found

    def done(self, change: Change) -> None:
        """What a command did is durable."""
        for unit in change.units():
            self.units.append(unit.events)
            self.events += [(self.now_us, event) for event in unit.events]
            self.engine.arrive(unit.arrivals, self.now_us)

    def declare(self, name: str = "q", **policy: Any) -> Log:
        change = Change()
        log = self.engine.declare("default", name, Policy.of(backoff=PROMPT, **policy), self.now_us, change)
        self.done(change)
        return log

    def publish(self, log: Log, *payloads: bytes, **columns: Any) -> list[int]:
        batch = Batch(
            list(payloads), [next(self._ids) for _ in payloads], self.now_us, columns.pop("priority", 100),
            size=sum(map(len, payloads)), **columns,
        )  # fmt: skip
        change = Change()
        ids = self.engine.publish(log, batch, self.now_us, change)
        self.done(change)
        return list(ids)

    def lease(
        self, log: Log, wanted: int = 1, group: str = "default", consumer: str | None = None
    ) -> list[int]:
        grant = self.grant(log, wanted, group, consumer)
        return [] if grant is None else list(grant.offsets)

    def grant(
        self,
        log: Log,
        wanted: int = 1,
        group: str = "default",
        consumer: str | None = None,
        *,
        keep: bool = True,
    ) -> Grant | None:
        change = Change()
        found = self.engine.lease(log, log.group(group), wanted, consumer, self.now_us, change, keep=keep)
        self.done(change)
        return found

    def settle(self, log: Log, how: str, *offsets: int, group: str = "default", **arguments: Any) -> None:
        change, found = Change(), log.group(group)
        numbers = [found.leases.number_of(offset) for offset in offsets]
        given: list[Any] = [log, found, list(offsets), numbers]
        if how == "nack":
            given += [arguments.get("delay_us"), arguments.get("error")]
        if how == "reject":
            given += [arguments.get("error")]
        getattr(self.engine, how)(*given, self.now_us, change)
        self.done(change)

    def pass_time(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND_US)
        change = Change()
        self.engine.advance(self.now_us, change)
        self.done(change)

    # --- what outlives it ---

    def replayed(self) -> Machine:
        """Another one that is told everything that was recorded, and opened."""
        twin = Machine(self.events)
        for time_us, event in self.events:
            replay(twin.engine, event, time_us)
        return twin._opened(self)

    def restored(self) -> Machine:
        """Another one from a snapshot, and opened."""
        twin = Machine(self.events)
        twin.engine.restore(self.engine.encode())
        return twin._opened(self)

    def _opened(self, before: Machine) -> Machine:
        self.now_us, self._ids = before.now_us, before._ids
        change = Change()
        self.engine.settle_down(self.now_us, change)
        self.done(change)
        return self

    def log(self, name: str = "q") -> Log:
        found = self.engine.find("default", name)
        assert found is not None
        return found


def _content(batch: Batch, row: int) -> Content:
    def at(column: Any) -> Any:
        return column[row] if isinstance(column, list | range) else column

    return Content(
        batch.ids[row], batch.payloads[row], at(batch.headers), at(batch.key), at(batch.priority), at(batch.properties)
    )  # fmt: skip
