"""From commits of the journal to record batches of a table.

Theory of operation
-------------------
A section of a commit is nearly a record batch already: its plain columns are wrapped in place (see `journal.arrow`), columns that are stored once are
written out by Arrow. What a table has beside that is made once and used again: the log's name for so many rows, nulls, words for outcomes.

Spark takes every batch through a socket, at a price for each, so sections are joined into batches of `ROWS_AT_ONCE`. Messages that were published one by one are commits of
one row each; these are gathered in lists and become columns together, so that Arrow too is paid for by the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.events import EVERYBODY
from penstock.journal import arrow
from penstock.journal.frame import Frame
from penstock.journal.kinds import MESSAGES, Field
from penstock.journal.reading import JournalReader
from penstock.journal.section import Section
from penstock.pipeline import schema
from penstock.pipeline.schema import HEADERS, ID, OUTCOMES, TIME, Table

#: Rows in a batch for Spark, at the least, unless there are no more: its own batches have 10,000.
ROWS_AT_ONCE: Final = 10_000

#: Or so many bytes: payloads may be large.
BYTES_AT_ONCE: Final = 16 << 20

#: Messages whose ids are looked up, and kept, together; and how many such blocks are kept.
BLOCK: Final = 1 << 16
BLOCKS_KEPT: Final = 32


class Wanted(NamedTuple):
    """What is read of a log: its name, and the offsets `start` up to `stop`."""

    namespace: str
    name: str
    start: int
    stop: int


class Assembly:
    """Makes record batches of a table, with these columns, of these logs."""

    def __init__(
        self, table: Table, columns: tuple[str, ...], logs: Mapping[int, Wanted], reader: JournalReader
    ) -> None:
        self._table = table
        self._columns = columns
        self._logs = logs
        self._schema = schema.arrow(table, columns)
        self._ids = Ids(reader) if table.kind is not MESSAGES and ID in columns else None
        self._batches: list[Any] = []
        self._rows = self._bytes = 0
        self._singles: dict[int, list[tuple[int, int, int, int, Any]]] = {}

    def batches(self, frames: Iterable[Frame]) -> Iterator[Any]:
        """The record batches of what commits hold."""
        kind, logs = self._table.kind, self._logs
        singles = kind is MESSAGES
        for frame in frames:
            for section in frame.sections:
                span = section.span
                if span.kind != kind.number or span.log not in logs:
                    continue
                wanted = logs[span.log]
                if span.last < wanted.start or span.first >= wanted.stop:
                    continue
                if singles and span.rows == 1 and (plain := section.plain_message()) is not None:
                    self._singles.setdefault(span.log, []).append(plain)
                    self._rows += 1
                    self._bytes += len(plain[4])
                else:
                    self._add_section(section, wanted, frame.sequence)
                if self._rows >= ROWS_AT_ONCE or self._bytes >= BYTES_AT_ONCE:
                    yield self._joined()
        if self._rows:
            yield self._joined()

    def _add_section(self, section: Section, wanted: Wanted, sequence: int) -> None:
        if section.log in self._singles:  # what came before it comes before it
            self._add_singles(section.log)
        batch = self._record_batch(section, wanted, sequence)
        span = section.span
        if span.first < wanted.start or span.last >= wanted.stop:
            batch = _within(section, batch, wanted)
        if batch.num_rows:
            self._batches.append(batch)
            self._rows += batch.num_rows
            self._bytes += section.bytes

    def _joined(self) -> Any:
        for log in list(self._singles):
            self._add_singles(log)
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined]

    def _add_singles(self, log: int) -> None:
        """Plain messages that were published one by one."""
        offsets, ids, times, priorities, payloads = zip(*self._singles.pop(log), strict=True)
        given: dict[str, Any] = {
            "offset": offsets, "id": ids, "timestamp": times, "priority": priorities, "payload": payloads,
        }  # fmt: skip
        rows, wanted = len(offsets), self._logs[log]
        arrays = []
        for name, kind in zip(self._columns, self._schema.types, strict=True):
            if name in given:
                arrays.append(pa.array(given[name], kind))
            elif name == "namespace":
                arrays.append(_text(wanted.namespace, rows))
            elif name == "topic":
                arrays.append(_text(wanted.name, rows))
            else:
                arrays.append(_nulls(kind, rows))
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _record_batch(self, section: Section, wanted: Wanted, sequence: int) -> Any:
        found, rows, fields = section.columns(), section.rows, self._table.kind.fields
        arrays = []
        for name, kind in zip(self._columns, self._schema.types, strict=True):
            if name == "namespace":
                array = _text(wanted.namespace, rows)
            elif name == self._table.log:
                array = _text(wanted.name, rows)
            elif name == "sequence":
                array = _number(sequence, rows)
            elif name == ID and self._ids is not None:
                array = self._ids.of(
                    section.log, arrow.array(found[fields["offset"].number], fields["offset"].type, rows)
                )
            else:
                array = _column(found, fields[name], kind, rows, name)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _column(found: Mapping[int, Any], field: Field, kind: Any, rows: int, name: str) -> Any:
    column = found.get(field.number)
    if column is None:
        return _nulls(kind, rows)
    array = arrow.array(column, field.type, rows)
    if kind == TIME:
        return array.view(TIME)
    if name == "outcome":
        return _words(array)
    if name == "group":
        return _groups(array)
    if name == HEADERS:
        return array.cast(kind)
    return array


def _within(section: Section, batch: Any, wanted: Wanted) -> Any:
    """The rows of a section whose offsets are wanted. Messages rise; what happened to them need not."""
    field = section.kind.fields["offset"]  # type: ignore[union-attr]
    offsets = arrow.array(section.columns()[field.number], field.type, section.rows)
    numbers = offsets.to_numpy()
    if section.kind is MESSAGES:
        start, stop = np.searchsorted(numbers, [wanted.start, wanted.stop])
        return batch.slice(start, stop - start)
    return batch.filter(pa.array((numbers >= wanted.start) & (numbers < wanted.stop)))


@lru_cache(maxsize=1024)
def _text(value: str, rows: int) -> Any:
    return pa.repeat(pa.scalar(value, pa.string()), rows)


@lru_cache(maxsize=256)
def _nulls(kind: Any, rows: int) -> Any:
    return pa.nulls(rows, kind)


def _number(value: int, rows: int) -> Any:
    return pa.array(np.full(rows, value, dtype=np.int64))


_EVERYBODY: Final = pa.scalar(EVERYBODY, pa.string())
_NOBODY: Final = pa.scalar(None, pa.string())
_CODES: Final = pa.array(list(OUTCOMES), pa.int16())
_WORDS: Final = pa.array(list(OUTCOMES.values()), pa.string())


def _words(codes: Any) -> Any:
    """Outcomes as words; one that a newer version has written is its number."""
    words = _WORDS.take(pc.index_in(codes, _CODES))
    return words if not words.null_count else pc.coalesce(words, codes.cast(pa.string()))


def _groups(names: Any) -> Any:
    """Null where everybody is meant."""
    return pc.if_else(pc.equal(names, _EVERYBODY), _NOBODY, names)


class Ids:
    """Looks up the ids of messages by their offsets, a block at a time."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._block: Callable[[int, int], tuple[Any, Any]] = lru_cache(maxsize=BLOCKS_KEPT)(self._read)

    def of(self, log: int, offsets: Any) -> Any:
        """The id of each message; null where it is not stored any more."""
        wanted = offsets.to_numpy()
        ids = np.zeros(len(wanted), dtype=np.int64)
        there = np.zeros(len(wanted), dtype=bool)
        blocks = wanted // BLOCK
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            known, their = self._block(log, block)
            places = np.searchsorted(known, wanted[rows])
            hits = places < len(known)
            hits[hits] = known[places[hits]] == wanted[rows][hits]
            ids[rows[hits]] = their[places[hits]]
            there[rows[hits]] = True
        return pa.array(ids, mask=~there)

    def _read(self, log: int, block: int) -> tuple[Any, Any]:
        stop = (block + 1) * BLOCK
        offsets, ids = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for batch in self._reader.read(log, block * BLOCK):
            here = np.asarray(batch.offsets, dtype=np.int64)
            if not len(here) or here[0] >= stop:
                break
            offsets.append(here)
            ids.append(np.asarray(batch.values("id"), dtype=np.int64))
            if here[-1] >= stop:
                break
        return np.concatenate(offsets), np.concatenate(ids)
