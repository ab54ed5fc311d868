"""What stored messages contain, in the forms that others want it: as a user sees it, as the engine asks for it, and how much it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from penstock.broker.shelf import Shelf
from penstock.clock import to_datetime
from penstock.engine.change import Choose, Chosen, Content, Fetch
from penstock.engine.filter import Filter
from penstock.engine.log import Log
from penstock.message import Message
from penstock.model.batch import Batch, Run

#: More than a section takes beside what its rows hold.
SECTION_OVERHEAD_BYTES: Final = 400

#: More than a declaration takes, whatever the names in it, and its policy.
DECLARATION_BYTES_MAX: Final = 2048

#: More than a range of offsets takes in a declaration.
RANGE_BYTES_MAX: Final = 20

#: About what a row takes beside its payload, key and headers, and what a header takes beside its letters.
ROW_BYTES: Final = 128
HEADER_BYTES: Final = 8

#: What a letter takes at the most, as JSON writes a control character.
LETTER_BYTES: Final = 6


def fetching(shelf: Shelf) -> Fetch:
    """What the engine asks for contents."""

    def fetch(log: Log, offsets: Sequence[int]) -> list[Content | None]:
        found: list[Content | None] = []
        for offset in offsets:
            batch = shelf.get(log.number, offset)
            found.append(None if batch is None else content_of(batch, offset - batch.first))
        return found

    return fetch


class Glance:
    """A stored message as a filter sees it: nothing is made of it that the filter does not ask for."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: Batch, row: int) -> None:
        self._batch = batch
        self._row = row

    @property
    def headers(self) -> Mapping[str, str]:
        return at(self._batch.headers, self._row) or {}

    @property
    def key(self) -> str | None:
        found: str | None = at(self._batch.key, self._row)
        return found

    @property
    def priority(self) -> int:
        found: int = at(self._batch.priority, self._row)
        return found

    @property
    def id(self) -> int:
        return self._batch.ids[self._row]

    @property
    def offset(self) -> int:
        return self._batch.first + self._row

    @property
    def timestamp(self) -> datetime:
        return to_datetime(at(self._batch.timestamp_us, self._row))

    @property
    def payload(self) -> bytes:
        return self._batch.payloads[self._row]


def choosing(shelf: Shelf) -> Choose:
    """What the engine asks for those messages that a filter wants."""

    def choose(log: Log, offsets: Sequence[int], wanted: Filter, steps_left: int) -> Chosen:
        chosen: list[int] = []
        batch: Batch | None = None
        for seen, offset in enumerate(offsets):
            if steps_left <= 0:
                return Chosen(chosen, seen, steps_left)
            if batch is None or not batch.first <= offset < batch.first + len(batch.ids):
                batch = shelf.get(log.number, offset)
            if batch is None:
                chosen.append(offset)
                continue
            message = Glance(batch, offset - batch.first)
            steps_left -= wanted.steps(message)
            if wanted.matches(message):
                chosen.append(offset)
        return Chosen(chosen, len(offsets), steps_left)

    return choose


def ranges_of(log: Log) -> int:
    """Return how many ranges a declaration of a log may list, at the most."""
    return log.gone.ranges + sum(group.settled.ranges for group in log.groups.values())


def bytes_of(batch: Batch) -> int:
    """More than a batch takes in a journal."""
    size = batch.size + SECTION_OVERHEAD_BYTES
    if batch.headers is None and batch.key is None and batch.dedup_id is None:
        return size + 64 * len(batch.payloads)
    texts = sum(4 * len(text) + 32 for column in (batch.key, batch.dedup_id) for text in column or () if text)
    pairs = (pair for headers in batch.headers or () if headers for pair in headers.items())
    return (
        size
        + texts
        + sum(4 * (len(name) + len(value)) + 32 for name, value in pairs)
        + 128 * len(batch.payloads)
    )


def octets_of(runs: Iterable[Run]) -> int:
    """About what rows take in an answer: a header of a few bytes, or a row without any, costs more than its letters."""
    found = 0
    for batch, start, stop in runs:
        if stop - start == 1:  # what was published one by one, of which there may be many
            found += ROW_BYTES + len(batch.payloads[start])
        else:
            found += ROW_BYTES * (stop - start) + sum(map(len, batch.payloads[start:stop]))
        if batch.headers is not None or batch.key is not None or batch.dedup_id is not None:
            found += _octets_beside(batch, start, stop)
    return found


def _octets_beside(batch: Batch, start: int, stop: int) -> int:
    """About what keys and headers take at the most: in JSON some letters take six bytes."""
    found = 0
    for column in (batch.key, batch.dedup_id):
        if column is not None:
            found += LETTER_BYTES * sum(len(one) for one in column[start:stop] if one is not None)
    if batch.headers is not None:
        for headers in filter(None, batch.headers[start:stop]):
            texts = sum(len(name) + len(value) for name, value in headers.items())
            found += HEADER_BYTES * len(headers) + LETTER_BYTES * texts
    return found


def rows_within(runs: Iterable[Run], most: int) -> int:
    """How many rows, from the first on, fit into so many bytes."""
    rows = 0
    for batch, start, stop in runs:
        for row in range(start, stop):
            most -= octets_of([Run(batch, row, row + 1)])
            if most < 0:
                return rows
            rows += 1
    return rows


def fitting(shelf: Shelf, log: int, offsets: Sequence[int], most: int) -> int:
    """Return how many of some messages, from the first on, fit into an answer; one always does."""
    fit = 0
    while fit < len(offsets):
        offset = offsets[fit]
        rest = len(offsets) - fit if type(offsets) is range else 1
        batch = shelf.get(log, offset, offset + rest)
        if batch is None:  # it is lost
            fit += 1
            continue
        start = offset - batch.first
        run = Run(batch, start, min(start + rest, len(batch.ids)))
        octets = octets_of([run])
        if octets > most:
            return max(1, fit + rows_within([run], most))
        most -= octets
        fit += run.stop - run.start
    return fit


def at(column: Any, row: int) -> Any:
    return column[row] if isinstance(column, list | range) else column


def content_of(batch: Batch, row: int) -> Content:
    return Content(
        id=batch.ids[row],
        payload=batch.payloads[row],
        headers=at(batch.headers, row),
        key=at(batch.key, row),
        priority=at(batch.priority, row),
        properties=at(batch.properties, row),
    )


def due_of(batch: Batch, row: int) -> int | None:
    """When a stored message is due, if it was not at once."""
    found: int | None = at(batch.deliver_at, row)
    return found


def messages_of(runs: Iterable[Run]) -> list[Message]:
    """Stored messages, as a user sees them."""
    found: list[Message] = []
    for batch, start, stop in runs:
        if (
            batch.deliver_at is batch.expires_at is None
            and batch.key is batch.dedup_id is None
            and batch.headers is None
            and type(batch.priority) is int
            and type(batch.timestamp_us) is int
        ):
            priority, timestamp = batch.priority, to_datetime(batch.timestamp_us)
            found += [
                Message(payload, headers={}, priority=priority, id=given, offset=offset, timestamp=timestamp)
                for offset, payload, given in zip(
                    range(batch.first + start, batch.first + stop),
                    batch.payloads[start:stop],
                    batch.ids[start:stop],
                    strict=True,
                )
            ]
        else:
            found += [message_of(batch, row) for row in range(start, stop)]
    return found


def message_of(batch: Batch, row: int) -> Message:
    """A stored message, as a user sees it."""
    due, end = at(batch.deliver_at, row), at(batch.expires_at, row)
    return Message(
        batch.payloads[row],
        headers=dict(at(batch.headers, row) or {}),
        key=at(batch.key, row),
        priority=at(batch.priority, row),
        deliver_at=None if due is None else to_datetime(due),
        expires_at=None if end is None else to_datetime(end),
        dedup_id=at(batch.dedup_id, row),
        id=batch.ids[row],
        offset=batch.first + row,
        timestamp=to_datetime(at(batch.timestamp_us, row)),
    )
