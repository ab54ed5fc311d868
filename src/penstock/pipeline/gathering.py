"""Which offsets there are, and how they ended, as sets of runs: gathered where the rows are, so that only the sets travel.

Theory of operation
-------------------
Of a directory, the tasks that read it gather (`GatheringSource`): rows never leave them, which is several times as fast as handing them to Spark only to have them
counted. A task gives one row for each key (a log; or a log, a group, an outcome and an era), with the runs of its offsets as bytes.

Of data frames, Spark gathers by itself: 32,768 neighbouring offsets become the bits of one bitmap, and rows that are more than bits tell that something is there twice.

Both end as the same sets in the driver, by the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.journal.kinds import MESSAGES
from penstock.model.damage import Damage
from penstock.pipeline import noting
from penstock.pipeline import options as parsing
from penstock.pipeline.noting import DAMAGED
from penstock.pipeline.options import Options
from penstock.pipeline.runs import EMPTY, Runs, joined, runs_of
from penstock.pipeline.source import BatchReader

#: Values that a task collects before it makes runs of them.
VALUES_AT_ONCE: Final = 1 << 20

#: Offsets in one bitmap of Spark's.
BITS: Final = 32_768

MESSAGE_COLUMNS: Final = "namespace,topic,offset,id,target_group"
SETTLEMENT_COLUMNS: Final = "namespace,log,group,offset,outcome,sequence"

Key = tuple[str | None, ...]

#: All ids, under no log's name.
IDS: Final[Key] = (None, None, None)


class Found(msgspec.Struct):
    """A set that was put together from what tasks found: how many rows it was, the numbers, and those that came more than once."""

    rows: int = 0
    once: Any = EMPTY
    again: Any = EMPTY


class Turns(msgspec.Struct):
    """The commits at which groups were sent elsewhere, by namespace, log and group; and those at which nobody knows (for all groups)."""

    breaks: list[int] = []
    groups: list[tuple[str, str, str, list[int]]] = []

    def points(self) -> dict[Key, Any]:
        """For each group that has any, the commits that end its eras."""
        return {
            (namespace, log, group): np.unique(np.array([*self.breaks, *turns], dtype=np.int64))
            for namespace, log, group, turns in self.groups
        }


def era_of(points: Any, sequences: Any) -> Any:
    """The era of each commit: even ones are between two points, odd ones are the points themselves."""
    return np.searchsorted(points, sequences, "left") + np.searchsorted(points, sequences, "right")


# --- in the tasks ---


class Gathering:
    """Numbers by key, as sets of runs; and which of them came more than once."""

    def __init__(self) -> None:
        self._raw: dict[Key, list[Any]] = {}
        self._sets: dict[Key, list[tuple[Runs, Runs]]] = {}
        self._rows: dict[Key, int] = {}
        self._waiting = 0

    def add(self, key: Key, numbers: Any) -> None:
        self._raw.setdefault(key, []).append(numbers)
        self._rows[key] = self._rows.get(key, 0) + len(numbers)
        self._waiting += len(numbers)
        if self._waiting >= VALUES_AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        for key, parts in self._raw.items():
            self._sets.setdefault(key, []).append(runs_of(parts))
        self._raw, self._waiting = {}, 0

    def batch(self) -> Any:
        """Everything, as rows: the key, how many there were, the set, and what came more than once."""
        self._pack()
        rows = []
        for key, parts in self._sets.items():
            once, twice = joined(part for part, _ in parts)
            again = joined([twice, *(part for _, part in parts)])[0]
            rows.append((list(key), self._rows[key], *(_bytes(one) for one in (*once, *again))))
        columns = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


_SCHEMA: Final = pa.schema([
    ("key", pa.list_(pa.field("element", pa.string()))), ("rows", pa.int64()), ("starts", pa.binary()), ("stops", pa.binary()),
    ("again_starts", pa.binary()), ("again_stops", pa.binary()),
])  # fmt: skip
_DDL: Final = (
    "key array<string>, rows bigint, starts binary, stops binary, again_starts binary, again_stops binary"
)


def _bytes(numbers: Any) -> bytes:
    return np.ascontiguousarray(numbers, dtype="<i8").tobytes()


def by_key(batch: Any, names: Iterable[str]) -> Iterator[tuple[Key, Any]]:
    """The keys of a batch, each with the numbers of its rows; None for all rows, as it often is."""
    columns = [batch.column(name).dictionary_encode(null_encoding="encode") for name in names]
    if all(len(column.dictionary) == 1 for column in columns):
        yield tuple(column.dictionary[0].as_py() for column in columns), None
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    for column in columns:
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        at = int(rows[0])
        yield tuple(column.dictionary[column.indices[at].as_py()].as_py() for column in columns), rows


def _numbers(batch: Any, name: str, rows: Any = None) -> Any:
    numbers = batch.column(name).to_numpy(zero_copy_only=False)
    return numbers if rows is None else numbers[rows]


def gather_messages(batches: Iterable[Any]) -> Gathering:
    """Which offsets each log has, and for which group if for one only; and all ids."""
    found = Gathering()
    for batch in batches:
        for key, rows in by_key(batch, ("namespace", "topic", "target_group")):
            found.add(key, _numbers(batch, "offset", rows))
        found.add(IDS, _numbers(batch, "id"))
    return found


def gather_settlements(batches: Iterable[Any], turns: Turns) -> Gathering:
    """Which offsets ended how, by log, group, outcome and era."""
    found = Gathering()
    points, breaks = turns.points(), np.array(turns.breaks, dtype=np.int64)
    for batch in batches:
        for key, rows in by_key(batch, ("namespace", "log", "group", "outcome")):
            offsets = _numbers(batch, "offset", rows)
            here = points.get(key[:3], breaks)
            if not len(here):
                found.add((*key, "0"), offsets)
                continue
            eras = era_of(here, _numbers(batch, "sequence", rows))
            for era in np.unique(eras).tolist():
                found.add((*key, str(era)), offsets[eras == era])
    return found


def take_damage(found: dict[Key, Found]) -> dict[int, Runs]:
    """Take out which bytes of which segments are damaged. Their keys are `DAMAGED` and the segment."""
    keys = [key for key in found if key[0] == DAMAGED and len(key) == 2]
    return {int(key[1] or 0): found.pop(key).once for key in keys}


class GatheringSource(DataSource):
    """The source `penstock`, with what its tasks read gathered: options as there, and `turns` as JSON."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        self._turns = self._given.pop("turns", "{}")

    @classmethod
    def name(cls) -> str:
        return "penstock-gathering"

    def schema(self) -> str:
        return _DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _GatheringReader(parsing.parse(self._given).for_batch(), self._turns)


class _GatheringReader(DataSourceReader):
    def __init__(self, options: Options, turns: str) -> None:
        self._options = options
        self._turns = turns

    def partitions(self) -> list[InputPartition]:
        return BatchReader(self._options).partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        damage: list[Damage] = []
        batches = (batch for batch in noting.read(self._options, partition, damage) if batch.num_rows)
        if self._options.table.kind is MESSAGES:
            found = gather_messages(batches)
        else:
            found = gather_settlements(batches, msgspec.json.decode(self._turns, type=Turns))
        for one in damage:
            found.add((DAMAGED, str(one.segment)), np.arange(one.position, one.end, dtype=np.int64))
        yield found.batch()


# --- in the driver ---


def put_together(frame: DataFrame) -> dict[Key, Found]:
    """What all tasks gathered, by key."""
    parts: dict[Key, list[tuple[int, Runs, Runs]]] = {}
    for row in frame.toArrow().to_pylist():
        starts, stops, again_starts, again_stops = (
            np.frombuffer(row[name], dtype="<i8")
            for name in ("starts", "stops", "again_starts", "again_stops")
        )
        one = (row["rows"], Runs(starts, stops), Runs(again_starts, again_stops))
        parts.setdefault(tuple(row["key"]), []).append(one)
    found = {}
    for key, sets in parts.items():
        once, twice = joined(one for _, one, _ in sets)
        again = joined([twice, *(again for _, _, again in sets)])[0]
        found[key] = Found(sum(rows for rows, _, _ in sets), once, again)
    return found


# --- by Spark itself ---


def messages_of(frame: DataFrame) -> dict[Key, Found]:
    """The same as `gather_messages`, of a data frame."""
    found = bitmaps(frame, ["namespace", "topic", "target_group"])
    again = frame.groupBy("id").count().where("count > 1").select("id").toArrow().column("id").to_numpy()
    found[IDS] = Found(0, EMPTY, runs_of([again])[0])
    return found


def settlements_of(frame: DataFrame, turns: Turns) -> dict[Key, Found]:
    """The same as `gather_settlements`, of a data frame."""
    points: Mapping[Key, Any] = turns.points()
    keys = ["namespace", "log", "group"]
    rows = [(*key, [int(point) for point in here]) for key, here in points.items()]
    breaks = F.array(*[F.lit(point).cast("bigint") for point in turns.breaks]).cast("array<bigint>")
    if rows:
        known = frame.sparkSession.createDataFrame(
            rows, "namespace string, log string, group string, points array<bigint>"
        )
        frame = frame.join(F.broadcast(known), keys, "left").withColumn(
            "points", F.coalesce("points", breaks)
        )
    else:
        frame = frame.withColumn("points", breaks)
    era = F.expr("size(filter(points, p -> p < sequence)) + size(filter(points, p -> p <= sequence))")
    return bitmaps(frame.withColumn("era", era.cast("string")), [*keys, "outcome", "era"])


def bitmaps(frame: DataFrame, keys: list[str]) -> dict[Key, Found]:
    """The offsets of each key."""
    bucket = F.expr(f"offset div {BITS}").alias("bucket")
    bits = F.bitmap_construct_agg(F.expr(f"offset % {BITS}"))
    buckets = (
        frame.groupBy(*keys, bucket).agg(F.count("*").alias("rows"), bits.alias("bits")).toArrow().to_pylist()
    )
    parts: dict[Key, list[Runs]] = {}
    counts: dict[Key, int] = {}
    more = False
    for row in buckets:
        key = tuple(row[name] for name in keys)
        numbers = np.flatnonzero(np.unpackbits(np.frombuffer(row["bits"], dtype=np.uint8), bitorder="little"))
        parts.setdefault(key, []).append(runs_of([numbers + row["bucket"] * BITS])[0])
        counts[key] = counts.get(key, 0) + row["rows"]
        more = more or row["rows"] > len(numbers)
    found = {key: Found(counts[key], joined(sets)[0]) for key, sets in parts.items()}
    if more:
        twice: dict[Key, list[int]] = {}
        for one in frame.groupBy(*keys, "offset").count().where("count > 1").collect():
            twice.setdefault(tuple(one[name] for name in keys), []).append(one["offset"])
        for key, offsets in twice.items():
            found[key].again = runs_of([np.array(offsets, dtype=np.int64)])[0]
    return found
