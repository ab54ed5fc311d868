"""Stored messages as an Arrow stream, for whoever reads many: columns as the pipeline's tables have them.

This is the only module of the server that needs pyarrow, which `pip install penstock[spark]` brings; without it an Arrow stream is refused.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from penstock.model.batch import Run

#: In this order. Times are microseconds in UTC; headers a map of texts.
COLUMNS: Final = (
    "offset", "id", "timestamp", "key", "payload", "headers", "priority", "deliver_at", "expires_at", "dedup_id",
)  # fmt: skip


@cache
def is_there() -> bool:
    """Whether Arrow streams can be made here."""
    return find_spec("pyarrow") is not None


@cache
def _schema() -> Any:
    import pyarrow as pa

    time = pa.timestamp("us", tz="UTC")
    kinds: tuple[Any, ...] = (
        pa.int64(), pa.int64(), time, pa.string(), pa.binary(), pa.map_(pa.string(), pa.string()), pa.int16(), time, time, pa.string(),
    )  # fmt: skip
    return pa.schema(list(zip(COLUMNS, kinds, strict=True)))


def stream_of(runs: list[Run]) -> bytes:
    """The messages of some runs as an Arrow stream: a batch for each run."""
    import pyarrow as pa

    schema = _schema()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch, start, stop in runs:
            rows = stop - start
            columns = (
                range(batch.first + start, batch.first + stop), batch.ids, batch.timestamp_us, batch.key, batch.payloads,
                batch.headers, batch.priority, batch.deliver_at, batch.expires_at, batch.dedup_id,
            )  # fmt: skip
            arrays = [
                _array(pa, column, field, start, stop, rows)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _array(pa: Any, column: Any, field: Any, start: int, stop: int, rows: int) -> Any:
    """A column of a batch, of which one value may stand for all."""
    if column is None:
        return pa.nulls(rows, field.type)
    if isinstance(column, range) and len(column) == rows:
        return pa.array(column, field.type)
    if isinstance(column, list | range):
        part: Any = column[start:stop]
        if field.name == "headers":
            part = [None if one is None else list(one.items()) for one in part]
        return pa.array(part, field.type)
    if not isinstance(column, int | str | bytes):
        return pa.array(list(column[start:stop]), field.type)
    return pa.array([column] * rows, field.type)
