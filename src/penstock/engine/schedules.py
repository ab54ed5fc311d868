"""Messages at a time: cancelling one that is not due yet, and those that recur.

A recurring message is published when it is due, and that it was is recorded in the same unit, with the moment when it is due next: so it fires once for each due time, whatever crashes in between. By which rule it
recurs is the broker's business (`Engine.recur`); here it is bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.clock import SECOND_US
from penstock.engine.change import Change, Firing
from penstock.engine.events import Outcome, Scheduled
from penstock.engine.log import Log, Schedule
from penstock.errors import DiskFull, PenstockError
from penstock.model.batch import Batch

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

#: More than a message of a schedule, and the record that it fired, take beside what they hold.
OVERHEAD_BYTES: Final = 2048

#: How long a schedule waits that cannot be followed now.
PAUSE_US: Final = 60 * SECOND_US


def put(
    engine: Engine, log: Log, name: str, due_us: int | None, body: bytes, now_us: int, change: Change
) -> None:
    """Have a message recur from a moment on, in place of the one of that name; or no more."""
    take_in(log, name, due_us, body)
    change.events.append(Scheduled(log.number, name, due_us, body, now_us))
    engine.set_alarm(log)


def take_in(log: Log, name: str, due_us: int | None, body: bytes) -> None:
    if due_us is None:
        log.schedules.pop(name, None)
    else:
        log.schedules[name] = Schedule(due_us, body)


def fire(engine: Engine, log: Log, now_us: int, change: Change) -> None:
    """Publish what is due by now."""
    for name, schedule in list(log.schedules.items()):
        if schedule.next_us <= now_us:
            firing = _firing(engine, log, name, schedule, now_us)
            if firing is None:
                schedule.again_us = now_us + PAUSE_US
                continue
            size = sum(batch.size for batch in firing.batches) + len(schedule.body)
            try:
                engine.make_sure_of_room(
                    change.bytes + size + OVERHEAD_BYTES * (1 + len(firing.batches)), False
                )
            except DiskFull:
                schedule.again_us = now_us + SECOND_US
                continue
            change.cut()
            for batch in firing.batches:
                _come(engine, log, batch, now_us, change)
            put(engine, log, name, firing.due_us, schedule.body, now_us, change)
            change.cut()


def _come(engine: Engine, log: Log, batch: Batch, now_us: int, change: Change) -> None:
    """Publish what is due. If its namespace or its log does not take it, or no such message any more, it counts as missed."""
    take_back = engine.admits(log.namespace, _octets(batch), lambda: engine.depth(log.namespace))
    if take_back is None:
        return
    try:
        engine.publish(log, batch, now_us, change)
    except PenstockError:
        take_back()


def _octets(batch: Batch) -> int:
    """The bytes of its payloads, and of what is said about them."""
    said = [text for one in batch.headers or () for pair in (one or {}).items() for text in pair]
    texts = [*(key for key in batch.key or () if key is not None), *said]
    return batch.size + sum(len(text.encode()) for text in texts)


def _firing(engine: Engine, log: Log, name: str, schedule: Schedule, now_us: int) -> Firing | None:
    """What it does now; None if nobody can say: this machine does not know the time zone, perhaps. Everything else goes on."""
    try:
        return (
            None if engine.recur is None else engine.recur(log, name, schedule.body, schedule.due_us, now_us)
        )
    except PenstockError:
        return None


def cancel(engine: Engine, log: Log, offset: int, due_us: int | None, now_us: int, change: Change) -> bool:
    """Remove a message that is not due yet; False if it is due, or nobody can get it any more."""
    if due_us is None or due_us <= now_us or log.unavailable(offset, offset + 1):
        return False
    only = range(offset, offset + 1)
    if log.is_settled(offset):
        engine.remove_for_all(log, [only], Outcome.CANCELLED, now_us, change)
    for group in log.all_groups():
        if offset not in group.settled:
            engine.settle(log, group, only, Outcome.CANCELLED, now_us, change)
    return True
