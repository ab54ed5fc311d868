"""Sections as Arrow record batches, in place: plain columns are wrapped, not copied, and there is no loop over rows.

A plain column's buffers in a frame are Arrow's own, so `pa.Array.from_buffers` takes them as they are; the array keeps the frame's bytes
alive. Constant columns and sequences, which are stored once, are written out by Arrow and NumPy.

This is the only module of the journal that needs pyarrow and NumPy (`pip install penstock[spark]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.journal.columns import FIXED, SEQUENCE, Column, Encoding, Type
from penstock.journal.rows import Kind, Section

TYPES: Final[dict[int, Any]] = {
    Type.I16: pa.int16(),
    Type.I32: pa.int32(),
    Type.I64: pa.int64(),
    Type.UTF8: pa.string(),
    Type.BINARY: pa.binary(),
    Type.MAP: pa.map_(pa.string(), pa.string()),
}


def schema(kind: Kind) -> pa.Schema:
    """The columns of a kind, all nullable, in their order."""
    return pa.schema([(name, TYPES[field.type]) for name, field in kind.fields.items()])


def record_batch(section: Section, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """A section as a record batch: all its columns, or only those named."""
    kind = section.kind
    if kind is None:
        raise ValueError(f"rows of kind {section.span.kind} are not known to this version")
    names = list(columns if columns is not None else kind.fields)
    arrays = [array(section.column(name), kind.fields[name].type, section.rows) for name in names]
    fields = [(name, TYPES[kind.fields[name].type]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def array(column: Column | None, kind: Type, rows: int) -> Any:
    """A column as an Arrow array of `rows` values."""
    if column is None:
        return pa.nulls(rows, TYPES[kind])
    if column.encoding == Encoding.SEQUENCE:
        start, step = SEQUENCE.unpack(column.buffers[0])
        return pa.array(np.arange(rows, dtype=np.int64) * step + start).cast(TYPES[kind])
    if column.encoding == Encoding.CONSTANT:
        return _repeated(_plain(column, kind, 1), rows)
    return _plain(column, kind, rows)


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
    if kind in FIXED:
        return pa.Array.from_buffers(TYPES[kind], rows, [validity, buffers[0]], column.nulls)
    if kind is not Type.MAP:
        return pa.Array.from_buffers(TYPES[kind], rows, [validity, *buffers], column.nulls)
    entries = int(np.frombuffer(column.buffers[-5], dtype="<i4")[rows])
    keys = pa.Array.from_buffers(pa.string(), entries, [None, *buffers[1:3]])
    values = pa.Array.from_buffers(pa.string(), entries, [None, *buffers[3:5]])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_PAIR))
    return pa.Array.from_buffers(TYPES[kind], rows, [validity, buffers[0]], column.nulls, children=[pairs])


_PAIR: Final = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())])
