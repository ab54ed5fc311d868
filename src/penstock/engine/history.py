"""What an earlier owner recorded, taken in again.

Replaying evaluates no policy, clock or chance: events say what became of messages, and the same methods put them there as when it
happened. What lies between events and left no trace (a lease that ended by itself, a delay that was over) is made up for: a
message that is leased again was given back before, and everything that was due when an event was recorded had fallen due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.engine import cursors, producers, retention, schedules
from penstock.engine.change import Declaration
from penstock.engine.events import (
    EVERYBODY,
    FOR_EVERYBODY,
    OF_THE_LOG,
    Action,
    Declared,
    Event,
    Leased,
    Noted,
    Outcome,
    Positioned,
    Produced,
    Published,
    Scheduled,
    Settled,
    parcels,
    runs,
)  # fmt: skip
from penstock.engine.group import Group
from penstock.engine.lane import Piece
from penstock.engine.lease import Lease
from penstock.engine.log import NOTHING_KEPT, Hold, Log, Position
from penstock.ranges import RangeSet

if TYPE_CHECKING:
    from penstock.engine.engine import Engine


def replay(engine: Engine, event: Event, time_us: int) -> None:
    """Take in what an earlier owner recorded, at the time it did."""
    _keep(engine, event, time_us)  # as it was before, and is after
    _take_in(engine, event, time_us)
    _keep(engine, event, time_us)


def _keep(engine: Engine, event: Event, time_us: int) -> None:
    """Where messages are kept for a time, or for readers: those that were kept no longer by then."""
    log = engine.logs.get(event.log)
    if log is not None and (log.kept_from < NOTHING_KEPT or log.floor < NOTHING_KEPT or log.readers):
        happened_us = 0 if isinstance(event, Published) else event.time_us
        retention.update(engine, log, max(time_us, happened_us))


def _take_in(engine: Engine, event: Event, time_us: int) -> None:
    if isinstance(event, Published):
        _published(engine, event, time_us)
    elif isinstance(event, Produced):
        producers.take_in(engine, event)
    elif isinstance(event, Noted):
        engine.metadata.take_in(event)
    elif isinstance(event, Positioned) and not event.log:
        engine.sequences[event.reader] = event.offset
    elif isinstance(event, Declared) and event.action in OF_THE_LOG:
        _declared(engine, event)
    else:
        log = engine.logs.get(event.log)
        if log is None:  # it was deleted later
            return
        if isinstance(event, Declared):
            log.fall_due(max(time_us, event.time_us))
            _said(engine, log, event)
        elif isinstance(event, Positioned):
            log.readers.setdefault(event.reader, Position(event.offset)).offset = event.offset
        elif isinstance(event, Scheduled):
            schedules.take_in(log, event.name, event.due_us, event.body)
        else:
            log.fall_due(max(time_us, event.time_us))  # the engine's time may be ahead of the wall clock
            if event.group == EVERYBODY:
                engine.never_again(log, runs(event.offsets), event.time_us)
            elif isinstance(event, Leased):
                _leased(log, log.group(event.group), event)
            else:
                _settled(engine, log, log.group(event.group), event)


def _said(engine: Engine, log: Log, event: Declared) -> None:
    """Of a group or a reader."""
    group = log.groups.get(event.name)
    if event.action in (Action.SUBSCRIBE, Action.SEEK):
        cursor = msgspec.msgpack.decode(event.body, type=cursors.Cursor)
        if group is None:
            cursors.join(log, event.name, cursor)
        else:
            cursors.place(engine, log, group, cursor, event.time_us)
    elif event.action == Action.UNSUBSCRIBE and group is not None:
        cursors.part(engine, log, group, event.time_us)
    elif event.action == Action.READER:
        _held(engine, log, event)
    elif event.action == Action.FORGET:
        log.readers.pop(event.name, None)


def _held(engine: Engine, log: Log, event: Declared) -> None:
    found = msgspec.msgpack.decode(event.body, type=Hold)
    log.readers[event.name] = found.position
    retention.update(engine, log, event.time_us)
    if found.position.holds:
        _set_gone(log, found.position.offset, found.gone)


def _set_gone(log: Log, start: int, gone: list[int]) -> None:
    """What was gone from an offset on when it began to be kept: it may have been needed by groups of which nothing is recorded."""
    log.gone.discard(min(start, log.next_offset), log.next_offset)
    for run in RangeSet.decode(gone):
        log.gone.add(run.start, run.stop)


def _declared(engine: Engine, event: Declared) -> None:
    declared = msgspec.msgpack.decode(event.body, type=Declaration)
    log = engine.logs.get(event.log)
    if log is None and event.action != Action.DELETE:
        engine.add(event.log, declared.namespace, declared.name, declared.policy, declared.kind)
    elif log is not None and event.action == Action.DELETE:
        engine.forget(log)
    elif log is not None:
        engine.aim(log, -1)
        log.milestones.begin_anew(log.next_offset, event.time_us)
        log.set_policy(declared.policy)
        engine.aim(log, 1)
        retention.update(engine, log, event.time_us)
        if declared.gone is not None:
            _set_gone(log, log.kept_from, declared.gone)


def _published(engine: Engine, event: Published, time_us: int) -> None:
    log = engine.logs.get(event.log)
    if log is None:  # it was deleted later
        return
    batch = event.batch
    stamps = batch.timestamp_us
    # The engine's time may be ahead of the wall clock.
    log.fall_due(max(time_us, max(stamps) if isinstance(stamps, list) else stamps))
    if not log.groups and log.kind == "queue":
        log.group()
    log.skip_to(event.first)  # what is not there was cleaned, or is lost
    log.next_offset = event.first + len(batch.ids)
    log.published += len(batch.ids)
    engine.last_id = max(engine.last_id, batch.ids[-1])
    log.note_published(event.first, batch)
    if batch.dedup_id is not None:
        log.remember(event.first, batch)
    if log.policy.max_bytes is not None:
        log.note_sizes(event.first, batch)
    log.arrive(event.first, batch)
    if not log.groups:
        engine.release(log, [range(event.first, log.arrived)], time_us)


def _settled(engine: Engine, log: Log, group: Group, event: Settled) -> None:
    if event.outcome == Outcome.RETRY:
        dues = event.due if isinstance(event.due, list) else [event.due or event.time_us] * len(event.offsets)
        for offset, due_us in zip(event.offsets, dues, strict=True):
            if offset in group.leases:
                group.count_attempt(offset, event.time_us)
                group.retry(offset, due_us)
    elif event.outcome in (Outcome.RETURNED, Outcome.UNSEEN):
        for offset in event.offsets:
            if offset in group.leases:
                if event.outcome == Outcome.RETURNED:
                    group.count_attempt(offset, event.time_us)
                group.put_back(offset)
                group.overdue.discard(offset)
    else:
        if event.outcome in FOR_EVERYBODY:
            engine.never_again(log, runs(event.offsets), event.time_us)
        gaps = (gap for run in runs(event.offsets) for gap in group.settled.gaps(run.start, run.stop))
        for left in parcels(list(gaps), len(event.offsets)):
            engine.withdraw(log, group, left)
            engine.end(log, group, left, event.time_us)


def _leased(log: Log, group: Group, event: Leased) -> None:
    """Somebody had these. If somebody had them already, that lease had ended without a word."""
    given = event.attempts
    attempts = given if isinstance(given, list) else [given] * len(event.offsets)
    fresh: list[int] = []
    for offset, attempt in zip(event.offsets, attempts, strict=True):
        if attempt > 1 and group.tally.get(offset) < attempt - 1:
            first_us = group.tally.first_failed(offset)
            group.tally.set(offset, attempt - 1, event.time_us if first_us is None else first_us)
        if offset not in group.leases and offset not in group.settled:
            fresh.append(offset)
    group.leases.ahead.difference_update(event.offsets)
    pieces: list[Piece] = []
    for run in runs(sorted(fresh)):
        for priority, start, stop in log.priorities.parts(run.start, run.stop):
            pieces += group.lanes.remove(priority, start, stop)
    if pieces:
        group.leases.add(Lease(0, pieces, event.consumer, None))
