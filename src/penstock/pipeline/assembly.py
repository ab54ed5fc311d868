"""From commits of the journal to record batches of a table.

Theory of operation
-------------------
A section of a commit is nearly a record batch already: its plain columns are wrapped in place (see `journal.arrow`). But Spark takes every batch through a socket, at a price for each, so sections are gathered until
there are `ROWS_AT_ONCE`, and then made into one batch column by column: what no section has is null once for all of them, what each has stored once (a timestamp, a priority, offsets that follow one another) is
written out by NumPy for all of them, and only what remains, payloads mostly, is wrapped section by section and joined by Arrow. So Python is paid by the section, for two or three columns of it.

Messages that were published one by one are commits of one row each; these are gathered in lists and become columns together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.events import EVERYBODY
from penstock.journal import arrow
from penstock.journal.columns import FIXED, SEQUENCE, Column, Encoding, Type
from penstock.journal.frame import Frame
from penstock.journal.kinds import MESSAGES, Field, Kind, Span
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

_PLAIN: Final = int(Encoding.PLAIN)


class Wanted(NamedTuple):
    """What is read of a log: its name, and the offsets `start` up to `stop`."""

    namespace: str
    name: str
    start: int
    stop: int


class Part(NamedTuple):
    """A section of which every row is wanted: its columns by number."""

    found: Mapping[int, Column]
    rows: int
    log: int
    sequence: int


#: Rows that are gathered: a section as it is, or a record batch that was made of some of its rows.
Gathered = Part | Any


class Assembly:
    """Makes record batches of a table, with these columns, of these logs. `times` are those of the rows that are wanted, from and before, if not all are."""

    times: tuple[int | None, int | None] = (None, None)

    def __init__(
        self, table: Table, columns: tuple[str, ...], logs: Mapping[int, Wanted], reader: JournalReader
    ) -> None:
        self._table = table
        self._columns = columns
        self._logs = logs
        self._schema = schema.arrow(table, columns)
        self._ids = Ids(reader) if table.kind is not MESSAGES and ID in columns else None
        self._gathered: list[Gathered] = []
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
                if span.last < wanted.start or span.first >= wanted.stop or self._is_untimely(span):
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

    def _is_untimely(self, span: Span) -> bool:
        oldest, newest = self.times
        return (oldest is not None and span.newest < oldest) or (newest is not None and span.oldest >= newest)

    def _add_section(self, section: Section, wanted: Wanted, sequence: int) -> None:
        if section.log in self._singles:  # what came before it comes before it
            self._add_singles(section.log)
        span = section.span
        part: Gathered = Part(section.columns(), span.rows, span.log, sequence)
        rows = span.rows
        oldest, newest = self.times
        if (
            span.first < wanted.start
            or span.last >= wanted.stop
            or (oldest is not None and span.oldest < oldest)
            or (newest is not None and span.newest >= newest)
        ):
            part = self._within(part, wanted)
            rows = part.num_rows
        if rows:
            self._gathered.append(part)
            self._rows += rows
            self._bytes += section.bytes

    def _within(self, part: Part, wanted: Wanted) -> Any:
        """A record batch of the rows that are wanted by offset and time."""
        kind = self._table.kind
        fields = kind.fields["offset"], kind.fields[kind.time]
        offsets, times = [
            arrow.array(part.found[number], type_, part.rows).to_numpy() for number, type_ in fields
        ]
        chosen = (offsets >= wanted.start) & (offsets < wanted.stop)
        oldest, newest = self.times
        if oldest is not None:
            chosen &= times >= oldest
        if newest is not None:
            chosen &= times < newest
        whole = self._record_batch([part])
        rows = np.flatnonzero(chosen)
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):  # as nearly always
            return whole.slice(rows[0], len(rows))
        return whole.filter(pa.array(chosen))

    def _joined(self) -> Any:
        for log in list(self._singles):
            self._add_singles(log)
        gathered, self._gathered, self._rows, self._bytes = self._gathered, [], 0, 0
        batches: list[Any] = []
        for are_parts, some in groupby(gathered, lambda one: type(one) is Part):
            found = list(some)
            batches += [self._record_batch(found)] if are_parts else found
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
        self._gathered.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    # --- columns of many sections ---

    def _record_batch(self, parts: list[Part]) -> Any:
        counts = [part.rows for part in parts]
        total = sum(counts)
        one = parts[0].log if all(part.log == parts[0].log for part in parts) else None
        arrays = []
        for name, kind in zip(self._columns, self._schema.types, strict=True):
            if name in ("namespace", self._table.log):
                place = 0 if name == "namespace" else 1
                if one is not None:
                    array = _text(self._logs[one][place], total)
                else:
                    array = pa.concat_arrays(
                        [_text(self._logs[part.log][place], part.rows) for part in parts]
                    )
            elif name == "sequence":
                array = pa.array(np.repeat([part.sequence for part in parts], counts))
            elif name == ID and self._ids is not None:
                array = pa.concat_arrays(
                    [self._ids.of(part.log, _offsets(part, self._table.kind)) for part in parts]
                )
            else:
                array = _column(parts, counts, total, self._table.kind.fields[name], kind, name)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _offsets(part: Part, kind: Kind) -> Any:
    number, type_ = kind.fields["offset"]
    return arrow.array(part.found[number], type_, part.rows)


def _column(parts: list[Part], counts: list[int], total: int, field: Field, kind: Any, name: str) -> Any:
    columns = [part.found.get(field.number) for part in parts]
    if not any(columns):
        return _nulls(kind, total)
    array = _written_out(columns, counts, total, field.type) if field.type in FIXED else None
    if array is None:
        arrays = [
            _nulls(arrow.TYPES[field.type], rows) if column is None else arrow.array(column, field.type, rows)
            for column, rows in zip(columns, counts, strict=True)
        ]
        array = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    if kind == TIME:
        return array.view(TIME)
    if name == "outcome":
        return _words(array)
    if name == "group":
        return _groups(array)
    if name == HEADERS:
        return array.cast(kind)
    return array


def _written_out(columns: Sequence[Column | None], counts: list[int], total: int, type_: Type) -> Any:
    """Numbers that each section has stored as one, or as a sequence; None if some has others."""
    starts: list[int] = []
    steps = set()
    for column in columns:
        if column is None or column.nulls or column.encoding == _PLAIN:
            return None
        if column.constant:
            starts.append(column.numbers(1)[0])
            steps.add(0)
        else:
            start, step = SEQUENCE.unpack(column.buffers[0])
            starts.append(start)
            steps.add(step)
    width = arrow.WIDTHS[type_]
    if steps == {0}:
        return pa.array(np.repeat(np.array(starts, dtype=width), counts))
    if steps != {1}:
        return None
    if all(start + rows == behind for start, rows, behind in zip(starts, counts, starts[1:], strict=False)):
        return pa.array(np.arange(starts[0], starts[0] + total, dtype=width))
    return pa.array(
        np.concatenate(
            [np.arange(start, start + rows, dtype=width) for start, rows in zip(starts, counts, strict=True)]
        )
    )


@lru_cache(maxsize=1024)
def _text(value: str, rows: int) -> Any:
    return pa.repeat(pa.scalar(value, pa.string()), rows)


@lru_cache(maxsize=256)
def _nulls(kind: Any, rows: int) -> Any:
    return pa.nulls(rows, kind)


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
