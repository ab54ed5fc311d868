"""Reads tables as Spark's processes do, in this process: planning, pickling, reading; so that most of the source is tried without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.pipeline import options, schema
from penstock.pipeline.options import Options
from penstock.pipeline.source import BatchReader, FilteringReader, TableStream
from tests.unit.pipeline.serving import reached


def parse(path: Path, **given: object) -> Options:
    return options.parse({**reached(path), **{name.lower(): str(value) for name, value in given.items()}})


def planned(path: Path, *filters: Any, **given: object) -> tuple[BatchReader, list[Any], list[Any]]:
    """A reader, the pieces that it would have read, and the filters that it left to Spark."""
    reader = FilteringReader(parse(path, **given).for_batch())
    left = list(reader.pushFilters(list(filters)))
    return reader, reader.partitions(), left


def table(path: Path, *filters: Any, **given: object) -> Any:
    """What is read, as one Arrow table."""
    reader, pieces, _ = planned(path, *filters, **given)
    return joined(parse(path, **given), (reader, pieces))


def joined(chosen: Options, *reads: tuple[Any, list[Any]]) -> Any:
    expected = schema.arrow(chosen.table, chosen.columns)
    batches = []
    for reader, pieces in reads:
        for piece in pieces:
            sent_reader, sent_piece = pickle.loads(pickle.dumps((reader, piece)))
            batches += list(sent_reader.read(sent_piece))
    for batch in batches:
        assert batch.schema.equals(expected)
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=expected)


class Query:
    """A streaming query: batches, one after the other, and a checkpoint that outlives it."""

    def __init__(self, path: Path, checkpoint: dict[str, Any] | None = None, **given: object) -> None:
        self._path = path
        self.options = parse(path, **given).for_stream()
        self.stream = TableStream(self.options)
        self.checkpoint = checkpoint if checkpoint is not None else self.stream.initialOffset()

    def batch(self) -> Any:
        """The next micro-batch."""
        reached(self._path)
        end = self.stream.latestOffset(self.checkpoint, self.stream.getDefaultReadLimit())
        pieces = self.stream.partitions(self.checkpoint, end)
        found = joined(self.options, (self.stream, pieces))
        self.checkpoint = end
        return found

    def payloads(self) -> list[bytes]:
        return payloads(self.batch())


def payloads(found: Any) -> list[bytes]:
    return list(found.column("payload").to_pylist())


def offsets(found: Any) -> list[int]:
    return list(found.column("offset").to_pylist())
