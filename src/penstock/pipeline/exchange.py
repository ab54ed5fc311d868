"""What a source or sink of Spark's and a server say to each other: what goes over `/v1/namespaces/{namespace}/spark` and `…/spool` (their bodies are in `wire`), and how tables travel.

Theory of operation
-------------------
A planner (see `planning`) works at the server, on its own directory, and is asked from afar; what it is asked and what it answers is here. Whoever asks is not trusted:

- Options travel as they were given, and are read again by the server. Which logs a pattern means is worked out by whoever gave it, from the names: an expression may take for ever.
- A piece travels as a `Portion`: commits by sequence number, and logs with their offsets. There is no place in a file in it that could be pointed elsewhere; the server finds those again when it is read, and
  looks again whether the logs are of that namespace.
- Rows travel as Arrow's IPC stream. One from the server ends with an empty batch that says how it ended (`END`): a stream that was cut between two batches looks whole to Arrow.
- Rows for the sink are checked and staged by the server, as a task does it with a directory. What it has staged is known to it by name; only names come back.
"""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError, by_code

#: Rows on their way: in memory, or in a file if there are many.
File = tempfile.SpooledTemporaryFile[bytes] | io.BufferedIOBase

#: What is said at the end of a stream of rows, in the metadata of an empty batch.
END: Final = b"penstock"


# --- tables on the wire ---


class Problem(msgspec.Struct):
    """How a stream of rows ended: well, or with an error."""

    code: str | None = None
    detail: str = ""
    warnings: list[str] = []


class _Parts(io.RawIOBase):
    """A file that keeps what is written until somebody takes it."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def writable(self) -> bool:
        return True

    def take(self) -> bytes:
        found, self._parts = b"".join(self._parts), []
        return found


def encoded(schema: pa.Schema, batches: Iterator[Any], warnings: list[str]) -> Iterator[bytes]:
    """Record batches as an IPC stream, in parts. What goes wrong on the way is its end."""
    parts = _Parts()
    end = Problem()
    with pa.ipc.new_stream(parts, schema) as writer:
        try:
            for batch in batches:
                writer.write_batch(batch)
                yield parts.take()
        except PenstockError as error:
            end = Problem(error.code, str(error))
        end.warnings = warnings
        empty = pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)
        writer.write_batch(empty, custom_metadata={END: msgspec.json.encode(end)})
    yield parts.take()


class Cut(Exception):
    """A stream has no end: whoever sent it was interrupted."""


def decoded(file: File) -> tuple[list[Any], list[str]]:
    """The record batches of a whole stream, and what was said with them."""
    try:
        reader = pa.ipc.open_stream(file)
        batches: list[Any] = []
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            if metadata is not None and END in metadata:
                end = msgspec.json.decode(metadata[END], type=Problem)
                if end.code is not None:
                    raise by_code(end.code)(end.detail)
                return batches, end.warnings
            batches.append(batch)
    except (pa.ArrowException, StopIteration, OSError, EOFError) as error:
        raise Cut(str(error)) from error


def rows_of(file: File) -> Iterator[pa.RecordBatch]:
    """The record batches that somebody has sent, whom nobody need trust: each is looked through before it is used."""
    try:
        messages = pa.ipc.MessageReader.open_stream(file)
        schema = pa.ipc.read_schema(messages.read_next_message())
        require_columns(schema)
        for message in messages:
            if message.type != "record batch" or _is_compressed(message.metadata):
                raise InvalidArgument(
                    "rows come as plain record batches: without compression, without dictionaries"
                )
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError, EOFError, StopIteration, struct.error, MemoryError) as error:
        raise InvalidArgument(f"the rows cannot be read as an Arrow IPC stream: {error}") from None


def _is_compressed(metadata: Any) -> bool:
    """Whether a record batch says that it grows when it is read: a few bytes could become anything.

    Arrow's metadata are a FlatBuffers table, `Message`, whose third field, `header`, is the table `RecordBatch`, whose fourth is `compression`. A table begins with how far before it its list of fields lies.
    """
    data = memoryview(metadata)

    def field(table: int, index: int) -> int | None:
        fields = table - struct.unpack_from("<i", data, table)[0]
        at = 4 + 2 * index
        found = (
            struct.unpack_from("<H", data, fields + at)[0]
            if at < struct.unpack_from("<H", data, fields)[0]
            else 0
        )
        return table + found if found else None

    header = field(struct.unpack_from("<I", data, 0)[0], 2)
    return header is not None and field(header + struct.unpack_from("<I", data, header)[0], 3) is not None


def _is_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and pa.types.is_string(kind.item_type)


def _is_number(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_duration(kind)
    )


#: The columns of rows for the sink as Arrow has them: those of `sink.COLUMNS`.
COLUMNS: Final[dict[str, Any]] = {
    "payload": lambda kind: pa.types.is_binary(kind) or pa.types.is_string(kind),
    "topic": pa.types.is_string,
    "key": pa.types.is_string,
    "headers": _is_map,
    "priority": pa.types.is_signed_integer,
    "deliver_at": lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    "ttl": _is_number,
    "dedup_id": pa.types.is_string,
}


def require_columns(schema: pa.Schema) -> None:
    """Raise what is wrong with the columns of rows for the sink."""
    names = schema.names
    if "payload" not in names or len(set(names)) < len(names):
        raise InvalidArgument(
            f"rows have a column payload, and each column once; these have {', '.join(names)}"
        )
    for field in schema:
        if field.name not in COLUMNS or not COLUMNS[field.name](field.type):
            raise InvalidArgument(
                f"the column {field.name!r} of type {field.type} cannot be published; there are {', '.join(COLUMNS)}"
            )


def parcels(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[tuple[bytes, int]]:
    """Rows for the server, in streams of about so many bytes at the most, unless a row has more; and how many each has."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for part in _halves(batch, most):
            if waiting and size + part.nbytes > most:
                yield _parcel(waiting)
                waiting, size = [], 0
            waiting.append(part)
            size += part.nbytes
    if waiting:
        yield _parcel(waiting)


def _halves(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """A batch in parts that are small enough; none if it is empty."""
    if batch.nbytes <= most or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    middle = batch.num_rows // 2
    yield from _halves(batch.slice(0, middle), most)
    yield from _halves(batch.slice(middle), most)


def _parcel(batches: list[pa.RecordBatch]) -> tuple[bytes, int]:
    parts = _Parts()
    with pa.ipc.new_stream(parts, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return parts.take(), sum(batch.num_rows for batch in batches)
