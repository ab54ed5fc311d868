"""What stored messages contain, in the forms that others want it: as a user sees it, as the engine asks for it, and how much it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.broker.shelf import Shelf
from penstock.clock import to_datetime
from penstock.engine.change import Content, Fetch
from penstock.engine.events import Batch
from penstock.engine.log import Log
from penstock.message import Message

#: More than a section takes beside what its rows hold.
SECTION_OVERHEAD_BYTES: Final = 400

#: More than a declaration takes, whatever the names in it, and its policy.
DECLARATION_BYTES_MAX: Final = 2048


def fetching(shelf: Shelf) -> Fetch:
    """What the engine asks for contents."""

    def fetch(log: Log, offsets: Sequence[int]) -> list[Content | None]:
        found: list[Content | None] = []
        for offset in offsets:
            batch = shelf.get(log.number, offset)
            found.append(None if batch is None else content_of(batch, offset - batch.first))
        return found

    return fetch


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


def _at(column: Any, row: int) -> Any:
    return column[row] if isinstance(column, list | range) else column


def content_of(batch: Batch, row: int) -> Content:
    return Content(
        id=batch.ids[row],
        payload=batch.payloads[row],
        headers=_at(batch.headers, row),
        key=_at(batch.key, row),
        priority=_at(batch.priority, row),
        properties=_at(batch.properties, row),
    )


def message_of(batch: Batch, row: int) -> Message:
    """A stored message, as a user sees it."""
    due, end = _at(batch.deliver_at, row), _at(batch.expires_at, row)
    return Message(
        batch.payloads[row],
        headers=dict(_at(batch.headers, row) or {}),
        key=_at(batch.key, row),
        priority=_at(batch.priority, row),
        deliver_at=None if due is None else to_datetime(due),
        expires_at=None if end is None else to_datetime(end),
        dedup_id=_at(batch.dedup_id, row),
        id=batch.ids[row],
        offset=batch.first + row,
        timestamp=to_datetime(_at(batch.timestamp_us, row)),
    )
