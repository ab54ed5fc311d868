"""The source `penstock` with rows that tell of damage, for jobs that go on past it and say what they skipped.

A task that comes across damage knows it, and the driver does not: what a task logs is on another
machine. So the task adds a row for each damaged range, with `DAMAGED` in the place of a namespace
and the range in the place of a log's name. Whoever reads takes these rows out again (`split`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.model.damage import Damage
from penstock.pipeline import options as parsing
from penstock.pipeline import schema
from penstock.pipeline.options import Options
from penstock.pipeline.planning import planner
from penstock.pipeline.schema import Table
from penstock.pipeline.source import BatchReader, PenstockDataSource, TableStream, spare_the_collector

#: No namespace has a slash in its name.
DAMAGED: Final = "/damaged"


class NotingSource(PenstockDataSource):
    """A directory's tables, with rows that tell of damage; options as for `penstock`."""

    @classmethod
    def name(cls) -> str:
        return "penstock-noting"

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _Reader(parsing.parse(self._given).for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        del schema
        return _Stream(parsing.parse(self._given).for_stream())


class _Reader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _noted(self._options, partition)


class _Stream(TableStream):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _noted(self._options, partition)


def _noted(options: Options, partition: InputPartition) -> Iterator[Any]:
    damage: list[Damage] = []
    yield from read(options, partition, damage)
    if damage:
        yield _rows(options.table, options.columns, list(map(text_of, damage)))


def read(options: Options, partition: InputPartition, damage: list[Damage]) -> Iterator[Any]:
    """What a task reads of a directory; damage is noted instead of logged."""
    spare_the_collector()
    return planner(options).read(partition.value, damage)


def text_of(damage: Damage) -> str:
    """A damaged range, as it stands in the place of a log's name."""
    return f"{damage.segment}-{damage.position}-{damage.end}"


def ranges_of(texts: Iterable[str]) -> dict[int, list[range]]:
    """Damaged ranges by segment, each once."""
    found: dict[int, list[range]] = {}
    for segment, position, end in sorted({tuple(map(int, text.split("-"))) for text in texts}):
        found.setdefault(segment, []).append(range(position, end))
    return found


def _rows(table: Table, columns: tuple[str, ...], texts: list[str]) -> Any:
    names = {"namespace": [DAMAGED] * len(texts), table.log: texts}
    expected = schema.arrow(table, columns)
    arrays: list[Any] = []
    for field in expected:
        if field.name in names:
            arrays.append(pa.array(names[field.name]))
        elif field.nullable:
            arrays.append(pa.nulls(len(texts), field.type))
        elif pa.types.is_binary(field.type):
            arrays.append(pa.array([b""] * len(texts)))
        else:
            arrays.append(pa.array([0] * len(texts)).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=expected)


def split(frame: DataFrame, log: str) -> tuple[DataFrame, list[str]]:
    """The rows of a table, whose logs are named by the column `log`, and the damage that was met."""
    is_damage = F.col("namespace") == DAMAGED
    return frame.where(~is_damage), [row[0] for row in frame.where(is_damage).select(log).collect()]
