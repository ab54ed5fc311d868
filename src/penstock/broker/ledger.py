"""How events are written down in a journal, and read again: the only place that knows both events and rows.

Theory of operation
-------------------
The engine gives events, the journal takes rows; here one becomes the other, and back when a journal is opened. An event is one section of
rows, and all events of a change are one append: they are recorded together or not at all.

Payloads of a dead letter are written again in its queue: where a message is stored and where it came from are cleaned at
different times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from penstock import limits
from penstock.engine.events import (
    OF_THE_LOG,
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
)
from penstock.journal.frame import Frame
from penstock.journal.kinds import (
    FRONT_METADATA,
    LEASES,
    MESSAGES,
    METADATA,
    POSITIONS,
    PRODUCER_COMMITS,
    SCHEDULES,
    SETTLEMENTS,
)
from penstock.journal.rows import Rows
from penstock.journal.section import Section
from penstock.model.batch import Batch

# --- events to rows ---


def rows_of(events: Sequence[Event]) -> list[Rows]:
    """The rows that events are recorded as, together. What goes to several logs is stored once."""
    if len(events) == 1:
        return _rows_of(events[0])
    found: list[Rows] = []
    holders: dict[tuple[int, ...], Rows] = {}
    for event in events:
        if isinstance(event, Published):
            payloads = tuple(map(id, event.batch.payloads))
            rows = _messages(event, holders.get(payloads))
            holders.setdefault(payloads, rows)
            found.append(rows)
        else:
            found += _rows_of(event)
    return found


def _rows_of(event: Event) -> list[Rows]:
    """One section, unless it is longer than sections may be."""
    if isinstance(event, Published):
        return [_messages(event)]
    if isinstance(event, Positioned):
        place = {"reader": event.reader, "offset": event.offset, "time": event.time_us}
        return [Rows(POSITIONS, event.log, 1, place)]
    if isinstance(event, Scheduled):
        return [Rows(SCHEDULES, event.log, 1, _schedule(event))]
    if isinstance(event, Produced):
        return [Rows(PRODUCER_COMMITS, 0, 1, _part_of_batch(event))]
    if isinstance(event, Noted):
        note = {"namespace": event.namespace, "key": event.key, "value": event.value, "time": event.time_us}
        return [Rows(FRONT_METADATA, 0, 1, note)]
    if isinstance(event, Declared):
        # The journal knows logs by their names; groups and readers are nothing to it.
        named = "name" if event.action in OF_THE_LOG else "about"
        columns = {"action": int(event.action), named: event.name, "body": event.body, "time": event.time_us}
        return [Rows(METADATA, event.log, 1, columns)]
    count = len(event.offsets)
    parts = [slice(start, start + limits.FRAME_ROWS_MAX) for start in range(0, count, limits.FRAME_ROWS_MAX)]
    if isinstance(event, Leased):
        return [_leases(event, part) for part in parts]
    return [_settlements(event, part) for part in parts]


def _schedule(event: Scheduled) -> dict[str, Any]:
    return {"name": event.name, "due": event.due_us, "body": event.body, "time": event.time_us}


def _part_of_batch(event: Produced) -> dict[str, Any]:
    return {
        "producer": event.producer, "batch": event.batch, "part": event.part, "final": event.final, "time": event.time_us,
    }  # fmt: skip


def _messages(event: Published, share: Rows | None = None) -> Rows:
    batch = event.batch
    columns: dict[str, Any] = {
        "offset": range(event.first, event.first + len(batch.ids)),
        "id": batch.ids if len(batch.ids) > 1 else batch.ids[0],
        "timestamp": batch.timestamp_us,
        "priority": batch.priority,
    }
    if batch.deliver_at is not None:
        columns["deliver_at"] = batch.deliver_at
    if batch.expires_at is not None:
        columns["expires_at"] = batch.expires_at
    if batch.key is not None:
        columns["key"] = batch.key
    if batch.dedup_id is not None:
        columns["dedup_id"] = batch.dedup_id
    if batch.headers is not None:
        columns["headers"] = [headers or None for headers in batch.headers]
    if batch.target_group is not None:
        columns["target_group"] = batch.target_group
    if batch.properties is not None:
        columns["properties"] = batch.properties
    columns["payload"] = batch.payloads  # last: see `journal.plan`
    if len(batch.ids) == 1:
        columns["offset"] = event.first
        columns = {name: value[0] if type(value) is list else value for name, value in columns.items()}
    if share is not None:
        del columns["payload"]
    return Rows(MESSAGES, event.log, len(batch.ids), columns, share)


def _leases(event: Leased, part: slice) -> Rows:
    offsets = event.offsets[part]
    columns = {
        "group": event.group,
        "offset": offsets,
        "attempt": _part(event.attempts, part),
        "consumer": event.consumer,
        "time": event.time_us,
    }
    return Rows(LEASES, event.log, len(offsets), columns)


def _settlements(event: Settled, part: slice) -> Rows:
    offsets = event.offsets[part]
    columns = {
        "group": event.group,
        "offset": offsets,
        "outcome": int(event.outcome),
        "attempt": _part(event.attempts, part),
        "due": _part(event.due, part),
        "consumer": event.consumer,
        "error": event.error,
        "time": event.time_us,
    }
    return Rows(SETTLEMENTS, event.log, len(offsets), columns)


def _part(column: Any, part: slice) -> Any:
    return column[part] if type(column) is list else column


# --- one plain message: the same rows as for events, without the events ---

#: More than one such row takes beside its payload and texts, alone or among others.
ROW_BYTES_MAX: Final = 320


def message_row(log: int, offset: int, id: int, time_us: int, payload: bytes) -> Rows:
    columns = {
        "offset": offset, "id": id, "timestamp": time_us, "priority": limits.PRIORITY_DEFAULT, "payload": payload,
    }  # fmt: skip
    return Rows.one(MESSAGES, log, columns, place=offset, time_us=time_us, size=ROW_BYTES_MAX + len(payload))


def lease_row(log: int, group: str, offset: int, consumer: str | None, time_us: int) -> Rows:
    columns = {"group": group, "offset": offset, "attempt": 1, "consumer": consumer, "time": time_us}
    size = ROW_BYTES_MAX + 4 * len(group) + 4 * len(consumer or "")
    return Rows.one(LEASES, log, columns, place=offset, time_us=time_us, size=size)


def ack_row(log: int, group: str, offset: int, time_us: int) -> Rows:
    columns = {"group": group, "offset": offset, "outcome": _ACKED, "attempt": 1, "time": time_us}
    size = ROW_BYTES_MAX + 4 * len(group)
    return Rows.one(SETTLEMENTS, log, columns, place=offset, time_us=time_us, size=size)


_ACKED: Final = int(Outcome.ACKED)


# --- rows to events ---


def events_of(frame: Frame, *, payloads_of: Callable[[int], bool]) -> Iterator[Event]:
    """What a frame says. Payloads are left out unless `payloads_of` a log's number says that they are needed."""
    for section in frame.sections:
        if section.kind is MESSAGES:
            for batch in batches_of(section, payloads=payloads_of(section.log)):
                yield Published(section.log, batch.first, batch)
        elif section.kind is LEASES:
            yield from _leased(section)
        elif section.kind is SETTLEMENTS:
            yield from _settled(section)
        elif section.kind is METADATA:
            names = ("action", "name", "about", "body", "time")
            for action, name, about, body, time_us in zip(*map(section.values, names), strict=True):
                yield Declared(section.log, action, name or about, bytes(body), time_us)
        elif section.kind is POSITIONS:
            for reader, offset, time_us in zip(
                *map(section.values, ("reader", "offset", "time")), strict=True
            ):
                yield Positioned(section.log, reader, offset, time_us)
        elif section.kind is SCHEDULES:
            for name, due, body, time_us in zip(
                *map(section.values, ("name", "due", "body", "time")), strict=True
            ):
                yield Scheduled(section.log, name, due, bytes(body), time_us)
        elif section.kind is FRONT_METADATA:
            for namespace, key, value, time_us in zip(
                *map(section.values, ("namespace", "key", "value", "time")), strict=True
            ):
                yield Noted(namespace, key, None if value is None else bytes(value), time_us)
        elif section.kind is PRODUCER_COMMITS:
            names = ("producer", "batch", "part", "final", "time")
            for row in zip(*map(section.values, names), strict=True):
                yield Produced(*row)


def batches_of(section: Section, *, payloads: bool = True) -> Iterator[Batch]:
    """The messages of a section: one batch, unless offsets are skipped (it was rewritten) or groups differ (single rows met)."""
    if section.rows == 1:
        yield _only_message(section, payloads=payloads)
        return
    offsets, groups = section.values("offset"), section.values("target_group")
    whole = Batch(
        payloads=list(section.values("payload")) if payloads else [],
        ids=_plain(section.values("id")),
        timestamp_us=_one_or_list(section, "timestamp"),
        priority=_one_or_list(section, "priority"),
        deliver_at=_one_or_list(section, "deliver_at"),
        expires_at=_one_or_list(section, "expires_at"),
        key=_listed(section, "key"),
        dedup_id=_listed(section, "dedup_id"),
        headers=_listed(section, "headers"),
        target_group=groups[0],
        properties=_listed(section, "properties"),
    )
    consecutive = offsets[-1] - offsets[0] + 1 == section.rows
    for start, stop in (
        [(0, section.rows)]
        if consecutive and groups.count(groups[0]) == len(groups)
        else [part for run in _consecutive(offsets) for part in _alike_within(run, groups)]
    ):
        batch = whole if stop - start == section.rows else whole.part(start, stop)
        batch.first = offsets[start]
        batch.target_group = groups[start]
        batch.size = sum(map(len, batch.payloads))
        yield batch


def _only_message(section: Section, *, payloads: bool) -> Batch:
    """The same for the one message of a section, of which there are many where messages were published one by one."""
    plain = section.plain_message()
    if plain is not None:
        offset, given, time_us, priority, payload = plain
        size = len(payload) if payloads else 0
        return Batch([payload] if payloads else [], [given], time_us, priority, first=offset, size=size)
    found: dict[str, Any] = {
        _MESSAGE_NAMES[number]: column.values()[0]
        for number, column in section.columns().items()
        if number in _MESSAGE_NAMES
    }
    payload = found["payload"]
    listed = {name: [found[name]] for name in _LISTED if name in found}
    return Batch(
        [payload] if payloads else [], [found["id"]], found["timestamp"], found["priority"], found.get("deliver_at"),
        found.get("expires_at"), target_group=found.get("target_group"), first=found["offset"],
        size=len(payload) if payloads else 0, **listed,
    )  # fmt: skip


_MESSAGE_NAMES: Final = {field.number: name for name, field in MESSAGES.fields.items()}
_LISTED: Final = ("key", "dedup_id", "headers", "properties")


def _consecutive(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for row in range(1, len(offsets)):
        if offsets[row] != offsets[row - 1] + 1:
            yield start, row
            start = row
    yield start, len(offsets)


def _alike_within(part: tuple[int, int], column: Sequence[Any]) -> Iterator[tuple[int, int]]:
    start, stop = part
    for first, last in _alike(column[start:stop]):
        yield start + first, start + last


def _leased(section: Section) -> Iterator[Leased]:
    offsets, attempts = section.values("offset"), section.values("attempt")
    groups, consumers, times = section.values("group"), section.values("consumer"), section.values("time")
    for start, stop in _alike(groups, consumers, times):
        yield Leased(
            section.log, groups[start], _plain(offsets[start:stop]), list(attempts[start:stop]), consumers[start], times[start]
        )  # fmt: skip


def _settled(section: Section) -> Iterator[Settled]:
    names = ("group", "outcome", "consumer", "error", "time")
    columns = [section.values(name) for name in names]
    offsets, attempts, dues = section.values("offset"), section.values("attempt"), section.values("due")
    for start, stop in _alike(*columns):
        group, outcome, consumer, error, time_us = (column[start] for column in columns)
        attempt = list(attempts[start:stop]) if attempts[start] is not None else None
        due = list(dues[start:stop]) if dues[start] is not None else None
        yield Settled(
            section.log, group, _plain(offsets[start:stop]), outcome, attempt, due, consumer, error, time_us
        )


def _alike(*columns: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Where rows begin and end that are the same in all these columns: single rows of several callers become one section."""
    rows = len(columns[0])
    start = 0
    for row in range(1, rows):
        if any(column[row] != column[start] for column in columns):
            yield start, row
            start = row
    yield start, rows


def _plain(values: Sequence[int]) -> Any:
    return values if isinstance(values, range | list) else list(values)


def _one_or_list(section: Section, name: str) -> Any:
    column = section.column(name)
    if column is None:
        return None
    return column.values()[0] if column.constant and not column.nulls else list(column.values())


def _listed(section: Section, name: str) -> Any:
    column = section.column(name)
    return None if column is None else list(column.values())
