"""How a batch of the archive becomes Parquet files in its staging folder, by namespace, log and day.

Theory of operation
-------------------
On a file system that the tasks reach as files (this machine's, or a mount that all of a cluster share), they write themselves (`TaskFiling`): what a task reads stays in the columns in which it was stored, is
sorted out by file, and goes into Parquet as it is. Spark is only told which files there are: to it, a batch is a table of files (`FilingSource`), a few rows of it for each task. Spark's own way makes a row of each
message, twice, and columns of the rows again, which takes several times as long as reading and writing together.

A file counts when a task has named it. A task that was killed, or tried twice, leaves files that nobody names, and which go with the staging folder.

Elsewhere (HDFS, object stores) only Hadoop knows the way, and Spark writes (`SparkFiling`); so it does where files are to be encrypted. Both leave the same columns in the same folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from penstock.errors import InvalidArgument
from penstock.journal.kinds import MESSAGES
from penstock.model.damage import Damage
from penstock.pipeline import noting
from penstock.pipeline import options as parsing
from penstock.pipeline.gathering import by_key
from penstock.pipeline.hadoop import Folder
from penstock.pipeline.noting import DAMAGED, NotingSource
from penstock.pipeline.options import Options
from penstock.pipeline.schema import Table
from penstock.pipeline.source import PenstockDataSource, TableStream

DAY: Final = "day"
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)

#: What a task gathers for one file before it writes it, and for all of them: what is stored once for many messages takes more here than in the journal.
GROUP_BYTES: Final = 64 << 20
GATHERED_BYTES: Final = 192 << 20

#: Columns whose values hardly ever come twice: looking for those that do would take longer than everything else.
_PLAIN: Final = frozenset({"payload", "headers", "offset", "id", "dedup_id", "sequence"})

#: What Spark calls codecs, where Arrow calls them otherwise.
_CODECS: Final = {"uncompressed": "none", "lz4_raw": "lz4", "lz4raw": "lz4"}

_FILES_DDL: Final = "file string, namespace string, log string, day int, rows long"
_COLUMNS: Final[dict[str, Any]] = {
    "file": pa.string(), "namespace": pa.string(), "log": pa.string(), "day": pa.int32(), "rows": pa.int64(),
}  # fmt: skip
_FILES: Final = pa.schema(_COLUMNS)


class Filed(NamedTuple):
    """What was filed: of each staged file, by its name in the archive's folder, the table's folder that it belongs into; how many rows there are; and the damage that was met (see `noting`)."""

    files: dict[str, str]
    rows: int
    damage: list[str]


class Filing(Protocol):
    """A way of writing batches."""

    def rows(self, reader: DataStreamReader, path: str) -> DataFrame:
        """The stream whose batches are to be filed. What is read is said by the reader's options."""

    def file(self, batch: DataFrame) -> Filed:
        """Write a batch of it into the staging folder."""


def filing(spark: SparkSession, folder: Folder, table: Table, staging: str) -> Filing:
    """How batches of a table are written into the folder `staging` of an archive."""
    session: Any = spark._jsparkSession
    # A session that encrypts its Parquet files has Spark write them: only it knows the keys.
    encrypts = session.sessionState().newHadoopConf().get("parquet.crypto.factory.class") is not None
    kind = SparkFiling if folder.local is None or encrypts else TaskFiling
    return kind(spark, folder, table, staging)


def moment_of(table: Table) -> str:
    """The column that says on which day something was."""
    return "timestamp" if table.kind is MESSAGES else "time"


class SparkFiling:
    """Spark writes."""

    def __init__(self, spark: SparkSession, folder: Folder, table: Table, staging: str) -> None:
        spark.dataSource.register(NotingSource)
        self._folder = folder
        self._table = table
        self._staging = staging

    def rows(self, reader: DataStreamReader, path: str) -> DataFrame:
        # Not to_date: that goes by the time zone of the session. Nor `div` alone: days before 1970 are rounded down, too.
        micros = f"unix_micros({moment_of(self._table)})"
        day = F.expr(
            f"date_from_unix_date(cast(({micros} - pmod({micros}, {_DAY_US})) div {_DAY_US} as int))"
        )
        return reader.format(NotingSource.name()).load(path).withColumn(DAY, day)

    def file(self, batch: DataFrame) -> Filed:
        seen = Observation()
        log, is_damage = self._table.log, F.col("namespace") == DAMAGED
        told = F.collect_set(F.when(is_damage, F.col(log)))
        counted = batch.observe(seen, F.count_if(~is_damage).alias("rows"), told.alias("damage"))
        counted = counted.where(~is_damage)
        by = ("namespace", self._table.log, DAY)
        counted.write.mode("overwrite").partitionBy(*by).parquet(self._folder.path(self._staging))
        found = self._folder.files(self._staging)
        return Filed(
            {one.name: one.parent.removeprefix(f"{self._staging}/") for one in found},
            int(seen.get["rows"]),
            list(seen.get["damage"]),
        )


class TaskFiling:
    """The tasks write."""

    def __init__(self, spark: SparkSession, folder: Folder, table: Table, staging: str) -> None:
        spark.dataSource.register(FilingSource)
        self._codec = _codec(str(spark.conf.get("spark.sql.parquet.compression.codec", "snappy")))
        self._escaped: Any = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils  # type: ignore[union-attr]
        self._into = str(folder.local / staging)  # type: ignore[operator]
        self._table = table
        self._staging = staging

    def rows(self, reader: DataStreamReader, path: str) -> DataFrame:
        given = reader.format(FilingSource.name()).option("into", self._into).option("codec", self._codec)
        return given.load(path)

    def file(self, batch: DataFrame) -> Filed:
        told = batch.collect()
        found = [one for one in told if one.namespace != DAMAGED]
        return Filed(
            {f"{self._staging}/{one.file}": self._place(one.namespace, one.log, one.day) for one in found},
            sum(one.rows for one in found),
            [one.log for one in told if one.namespace == DAMAGED],
        )

    def _place(self, namespace: str, log: str, day: int) -> str:
        """The folder of a file, as Spark would name it."""
        parts = (
            ("namespace", namespace),
            (self._table.log, log),
            (DAY, (_EPOCH + timedelta(day)).isoformat()),
        )
        return "/".join(self._escaped.getPartitionPathString(name, value) for name, value in parts)


def _codec(given: str) -> str:
    """What Arrow calls the codec of a session."""
    codec: Any = _CODECS.get(given.lower(), given.lower())
    try:
        known = codec == "none" or pa.Codec.is_available(codec)
    except ValueError:
        known = False
    if not known:
        raise InvalidArgument(
            f"spark.sql.parquet.compression.codec is {given!r}, which the archive's files are not written with: set snappy, zstd, gzip, lz4_raw, brotli or none"
        )
    return str(codec)


# --- in the tasks ---


class FilingSource(PenstockDataSource):
    """The source `penstock` as a stream, with what its tasks read written to files: options as there, `into` which folder, and by which `codec`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._into = self._given.pop("into", "")
        self._codec = self._given.pop("codec", "snappy")

    @classmethod
    def name(cls) -> str:
        return "penstock-filing"

    def schema(self) -> Any:
        return _FILES_DDL

    def streamReader(self, schema: StructType) -> FilingStream:  # noqa: N802  # Spark's name
        del schema
        return FilingStream(parsing.parse(self._given).for_stream(), self._into, self._codec)


class FilingStream(TableStream):
    """A table as a stream of files."""

    def __init__(self, options: Options, into: str, codec: str) -> None:
        super().__init__(options)
        self._into = into
        self._codec = codec

    def read(self, partition: InputPartition) -> Iterator[Any]:
        drawers = Drawers(Path(self._into), self._options.table, self._codec)
        damage: list[Damage] = []
        try:
            for batch in noting.read(self._options, partition, damage):
                drawers.add(batch)
            yield drawers.finish()
            if damage:
                yield _named([("", DAMAGED, noting.text_of(one), 0, 0) for one in damage])
        finally:
            drawers.close()


def _named(rows: list[tuple[Any, ...]]) -> Any:
    """A record batch of files."""
    columns = zip(*rows, strict=True) if rows else [[] for _ in _FILES]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _FILES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_FILES)


class Key(NamedTuple):
    """What the rows of a file have in common."""

    namespace: str
    log: str
    day: int


class Drawer:
    """One file: rows that wait to be written to it, and its writer once there were many."""

    def __init__(self) -> None:
        self.name = f"{uuid4().hex}.parquet"
        self.waiting: list[Any] = []
        self.bytes = 0
        self.rows = 0
        self.writer: Any = None


class Drawers:
    """What a task sorts its rows into: a file for each log and day."""

    def __init__(self, into: Path, table: Table, codec: str) -> None:
        self._into = into
        self._table = table
        self._codec = codec
        self._drawers: dict[Key, Drawer] = {}
        self._bytes = 0  # that wait in all of them

    def add(self, batch: Any) -> None:
        """Sort rows in; what has become much is written."""
        for key, rows in sorted_out(batch, self._table):
            drawer = self._drawers.get(key)
            if drawer is None:
                drawer = self._drawers[key] = Drawer()
            drawer.waiting.append(rows)
            drawer.bytes += rows.nbytes
            drawer.rows += rows.num_rows
            self._bytes += rows.nbytes
            if drawer.bytes >= GROUP_BYTES:
                self._write(drawer)
            while self._bytes >= GATHERED_BYTES:
                self._write(max(self._drawers.values(), key=lambda one: one.bytes))

    def finish(self) -> Any:
        """Write the rest; the files that there are now."""
        for drawer in self._drawers.values():
            self._write(drawer)
            drawer.writer.close()
        return _named([(drawer.name, *key, drawer.rows) for key, drawer in sorted(self._drawers.items())])

    def close(self) -> None:
        """Leave no file open, whatever has happened."""
        for drawer in self._drawers.values():
            if drawer.writer is not None:
                with suppress(OSError, pa.ArrowException):  # the task has failed by something else already
                    drawer.writer.close()

    def _write(self, drawer: Drawer) -> None:
        if drawer.waiting:
            rows = pa.Table.from_batches(drawer.waiting)
            if drawer.writer is None:
                self._into.mkdir(parents=True, exist_ok=True)
                repeated = [name for name in rows.column_names if name not in _PLAIN]
                how: dict[str, Any] = {"compression": self._codec, "use_dictionary": repeated}
                drawer.writer = pq.ParquetWriter(self._into / drawer.name, rows.schema, **how)
            drawer.writer.write_table(rows, row_group_size=rows.num_rows)
        self._bytes -= drawer.bytes
        drawer.waiting, drawer.bytes = [], 0


def sorted_out(batch: Any, table: Table) -> Iterator[tuple[Key, Any]]:
    """The rows of a batch by log and day, without the columns that these stand for, in their order."""
    if not batch.num_rows:
        return
    days = batch.column(moment_of(table)).cast(pa.int64()).to_numpy() // _DAY_US
    kept = batch.drop_columns(["namespace", table.log])
    dated: Any = by_key(batch.append_column(DAY, pa.array(days)), ("namespace", table.log, DAY))
    for key, rows in dated:
        yield Key(*key), kept if rows is None else kept.take(pa.array(rows))
