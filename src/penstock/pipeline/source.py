"""`spark.read.format("penstock")` and `spark.readStream.format("penstock")`: the data source, in batches and as a stream.

Theory of operation
-------------------
What is read, and from where to where, an `Origin` decides: a directory (`planning`) or a server (`remote`); this is what Spark sees of it. Planning and reading happen in Python processes that Spark starts, so that everything
here can be pickled, and nothing is kept between them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.clock import to_us
from penstock.pipeline import options as parsing
from penstock.pipeline import schema as tables
from penstock.pipeline import sink
from penstock.pipeline.options import Options
from penstock.pipeline.planning import Offset, Origin, planner
from penstock.pipeline.remote import RemoteOrigin
from penstock.wire import Narrowing

NAME: Final = "penstock"


class PenstockDataSource(DataSource):
    """The format `penstock`. The parameters' names are Spark's: it passes them by keyword."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parsing.parse(self._given)
        origin(options).check()
        return tables.spark(options.table, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        options = parsing.parse(self._given).for_batch()
        return FilteringReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        del schema
        return TableStream(parsing.parse(self._given).for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return sink.writer(schema, self._given, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
        return sink.stream_writer(schema, self._given, overwrite=overwrite)


def origin(options: Options) -> Origin:
    """Where a table is read from."""
    return planner(options) if options.server is None else RemoteOrigin(options)


def spare_the_collector() -> None:
    """In a task: what is imported by now is no garbage.

    Spark's worker has Python look for garbage after every task, and walking through all that is imported takes as long as reading 100 MB of messages.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()


# --- batches ---

#: Columns by which a filter may choose logs, exactly.
_NAMING: Final = frozenset({"namespace", "topic", "log"})


class BatchReader(DataSourceReader):
    """One read of a table."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._origin = origin(options)
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(piece) for piece in self._origin.pieces(self._narrowing)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        spare_the_collector()
        return self._origin.read(partition.value)


class FilteringReader(BatchReader):
    """One read of a table by which Spark's filters are applied before anything is read.

    Only if that is asked for: Spark 4.3 keeps what a reader planned with the filters of one query, and uses it for every other query of the same DataFrame, without filters or with others.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take over what can be applied exactly; by times only segments are chosen, so these filters go back to Spark."""
        for one in filters:
            if not self._takes_over(one):
                yield one

    def _takes_over(self, one: Filter) -> bool:
        column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None  # type: ignore[attr-defined]
        if column in _NAMING and isinstance(one, EqualTo | In):
            values = {one.value} if isinstance(one, EqualTo) else set(one.value)
            names = self._narrowing.names
            names[column] = names.get(column, values) & values
            return True
        if column == "offset":
            return self._takes_offset(one)
        if column == "timestamp":
            self._heed_time(one)
        return False

    def _takes_offset(self, one: Filter) -> bool:
        value = getattr(one, "value", None)
        if type(value) is not int:
            return False
        if isinstance(one, EqualTo | GreaterThanOrEqual):
            self._narrowing.first = max(self._narrowing.first, value)
        elif isinstance(one, GreaterThan):
            self._narrowing.first = max(self._narrowing.first, value + 1)
        if isinstance(one, EqualTo | LessThanOrEqual):
            self._narrowing.behind = min(self._narrowing.behind, value + 1)
        elif isinstance(one, LessThan):
            self._narrowing.behind = min(self._narrowing.behind, value)
        return isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual)

    def _heed_time(self, one: Filter) -> None:
        """Leave out segments that are too old or too new."""
        value = getattr(one, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        moment = to_us(value, "timestamp")
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._narrowing.oldest_us = (
                moment if self._narrowing.oldest_us is None else max(self._narrowing.oldest_us, moment)
            )
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            self._narrowing.newest_us = (
                moment if self._narrowing.newest_us is None else min(self._narrowing.newest_us, moment)
            )


# --- streams ---


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A table as a stream, up to where `availableNow` ends it, if it does."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._origin = origin(options)
        self._final: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        return self._origin.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._final = self._origin.end(look=True)

    def reportLatestOffset(self) -> Offset:  # noqa: N802  # Spark's name
        return self._origin.end(look=False)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._origin.latest(start, rows, self._final)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [InputPartition(piece) for piece in self._origin.between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        spare_the_collector()
        return self._origin.read(partition.value)
