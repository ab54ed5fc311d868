"""Sections as Arrow record batches, in place: plain columns are wrapped, not copied, and there is no loop over rows.

A plain column's buffers in a frame are Arrow's own, so `pa.Array.from_buffers` takes them as they are; the array keeps the frame's bytes
alive. Constant columns and sequences, which are stored once, are written out by Arrow and NumPy.

`values_of` goes the other way, for what is staged from Arrow.

This is the only module of the journal that needs pyarrow and NumPy (`pip install penstock[spark]`).
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptJournal
from penstock.journal.columns import CACHED_ROWS_MAX, FIXED, SEQUENCE, Buffers, Column, Encoding, Type
from penstock.journal.kinds import Kind
from penstock.journal.section import Section

TYPES: Final[dict[int, Any]] = {
    Type.I16: pa.int16(),
    Type.I32: pa.int32(),
    Type.I64: pa.int64(),
    Type.UTF8: pa.string(),
    Type.BINARY: pa.binary(),
    Type.MAP: pa.map_(pa.string(), pa.string()),
}


WIDTHS: Final[dict[int, Any]] = {Type.I16: np.int16, Type.I32: np.int32, Type.I64: np.int64}
_PLAIN, _SEQUENCE = int(Encoding.PLAIN), int(Encoding.SEQUENCE)
_ONE: Final = {kind: struct.Struct(f"<{form}").unpack_from for kind, (form, _) in FIXED.items()}
_PAIR: Final = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())])


@cache
def schema(kind: Kind, columns: tuple[str, ...] | None = None) -> pa.Schema:
    """The columns of a kind, or some of them, all nullable, in their order."""
    return pa.schema([(name, TYPES[kind.fields[name].type]) for name in columns or kind.fields])


def record_batch(section: Section, columns: tuple[str, ...] | None = None) -> pa.RecordBatch:
    """A section as a record batch: all its columns, or only those named."""
    kind = section.kind
    if kind is None:
        raise CorruptJournal(f"rows of kind {section.span.kind} are not known to this version of Penstock")
    found, rows = section.columns(), section.rows
    if rows <= CACHED_ROWS_MAX:
        fields = _fields(kind, columns, rows)
    else:
        fields = _fields.__wrapped__(kind, columns, rows)
    arrays = [
        array(found[number], type_, rows) if number in found else nulls for number, type_, nulls in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(kind, columns))


@lru_cache(maxsize=64)
def _fields(kind: Kind, columns: tuple[str, ...] | None, rows: int) -> list[tuple[int, Type, Any]]:
    """The number and type of each column, and what it is if it is not stored: most are all null, and batches have few lengths."""
    wanted = [kind.fields[name] for name in columns or kind.fields]
    nulls = {type_: pa.nulls(rows, TYPES[type_]) for _, type_ in wanted}
    return [(number, type_, nulls[type_]) for number, type_ in wanted]


def array(column: Column, kind: Type, rows: int) -> Any:
    """A column as an Arrow array of `rows` values."""
    if column.encoding == _PLAIN:
        return _plain(column, kind, rows)
    if column.encoding == _SEQUENCE:
        start, step = SEQUENCE.unpack(column.buffers[0])
        if step == 1:
            return _numbers(kind, np.arange(start, start + rows, dtype=WIDTHS[kind]))
        return _numbers(kind, np.arange(rows, dtype=WIDTHS[kind]) * step + start)
    if kind in FIXED:
        # Times and offsets are hardly ever the same in the next batch.
        make = _constant if kind is not Type.I64 and rows <= CACHED_ROWS_MAX else _constant.__wrapped__
        return make(kind, _ONE[kind](column.buffers[-1])[0], rows)
    return _repeated(_plain(column, kind, 1), rows)


@lru_cache(maxsize=256)
def _constant(kind: Type, value: int, rows: int) -> Any:
    values = np.empty(rows, dtype=WIDTHS[kind])
    values.fill(value)
    return _numbers(kind, values)


def _numbers(kind: Type, values: Any) -> Any:
    return pa.Array.from_buffers(TYPES[kind], len(values), [None, pa.py_buffer(values)], 0)


def _repeated(one: Any, rows: int) -> Any:
    """One stored value for every row, written out by Arrow."""
    if rows == 1:
        return one
    if pa.types.is_map(one.type):  # pa.repeat does not know maps
        return one.take(pa.array(np.zeros(rows, dtype=np.int64)))
    return pa.repeat(one[0], rows)


def _plain(column: Column, kind: Type, rows: int) -> Any:
    buffers = [pa.py_buffer(buffer) for buffer in column.buffers]
    validity = buffers.pop(0) if column.nulls else None
    if kind is not Type.MAP:
        return pa.Array.from_buffers(TYPES[kind], rows, [validity, *buffers], column.nulls)
    entries = int(np.frombuffer(column.buffers[-5], dtype="<i4")[rows])
    keys = pa.Array.from_buffers(pa.string(), entries, [None, *buffers[1:3]])
    values = pa.Array.from_buffers(pa.string(), entries, [None, *buffers[3:5]])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_PAIR))
    return pa.Array.from_buffers(TYPES[kind], rows, [validity, buffers[0]], column.nulls, children=[pairs])


# --- the other way round: arrays as columns to be written ---


def values_of(found: Any, kind: Type) -> Any:
    """An Arrow array of a type that fits as a column of `Rows`, with no loop over rows: laid out already, one number where all are the same, or None where all are null."""
    if found.null_count == len(found):
        return None
    if kind is Type.MAP:
        return _map_buffers(found)
    found = found.cast(TYPES[kind])
    validity = _validity(found)
    if kind in FIXED:
        numbers = np.asarray(found.fill_null(0) if found.null_count else found)
        if not found.null_count and (numbers == numbers[0]).all():
            return int(numbers[0])
        return Buffers(_PLAIN, found.null_count, [*validity, numbers.tobytes()])
    filled = found.fill_null(b"" if kind is Type.BINARY else "") if found.null_count else found
    return Buffers(_PLAIN, found.null_count, [*validity, *_bytes_buffers(filled)])


def _validity(found: Any) -> list[bytes]:
    if not found.null_count:
        return []
    return [np.packbits(np.asarray(found.is_valid()), bitorder="little").tobytes()]


def _bytes_buffers(found: Any) -> list[bytes]:
    """Where each value ends, counted from the first, and the bytes of all."""
    _, ends, data = found.buffers()
    places = np.frombuffer(ends, dtype="<i4")[found.offset : found.offset + len(found) + 1]
    content = b"" if data is None else memoryview(data)[places[0] : places[-1]].tobytes()
    return [(places - places[0]).astype("<i4").tobytes(), content]


def _map_buffers(found: Any) -> Buffers:
    places = np.asarray(found.offsets)
    lengths = np.diff(places)
    nulls = found.null_count
    validity = _validity(found)
    if nulls:
        lengths = np.where(np.asarray(found.is_valid()), lengths, 0)
        found = found.drop_null()
        places = np.asarray(found.offsets)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype("<i4")
    entries = slice(int(places[0]), int(places[-1]))
    parts = [
        part
        for child in (found.keys, found.items)
        for part in _bytes_buffers(child[entries].cast(pa.string()))
    ]
    return Buffers(_PLAIN, nulls, [*validity, ends.tobytes(), *parts])
