"""What a source or sink of Spark's and a server say to each other: what goes over `/v1/namespaces/{namespace}/spark` and `…/spool` (their bodies are in `wire`), and how tables travel.

Theory of operation
-------------------
A planner (see `planning`) works at the server, on its own directory, and is asked from afar; what it is asked and what it answers is here. Whoever asks is not trusted:

- Options travel as they were given, and are read again by the server. Which logs a pattern means is worked out by whoever gave it, from the names: an expression may take for ever.
- A piece travels as a `Portion`: commits by sequence number, and logs with their offsets. There is no place in a file in it that could be pointed elsewhere; the server finds those again when it is read, and
  looks again whether the logs are of that namespace.
- Rows from the server travel as Arrow's IPC stream, which ends with an empty batch that says how it
  ended (`END`): a stream that was cut between two batches looks whole to Arrow.
- Rows for the sink are made into parts of staged files by their task (`staging`), and checked once
  more and staged by the server (`parts`), which never reads Arrow. What it has staged is known to it
  by name; only names come back.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import PenstockError, by_code

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
