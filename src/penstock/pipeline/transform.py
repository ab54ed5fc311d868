"""`run`: a user's `transform(messages: DataFrame) -> DataFrame`, from a log into a log or into Parquet files.

Theory of operation
-------------------
The file is imported, `transform` is called once with a streaming DataFrame of the messages, and what it returns becomes a streaming query. Spark's checkpoint
holds how far it is: a query that is started again with the same checkpoint goes on where it was, and repeats the batch that was interrupted.

- Into a log the format `penstock` is written, which takes a batch once however often it is repeated.
- Into Parquet Spark's own file sink is enough: it records in `_spark_metadata` which files belong to which batch, and a repeated batch is recognised by its number. Whoever
  reads the directory with Spark sees every row once; other readers may see the files of a batch that was interrupted.

A checkpoint belongs to one source and one target. Which, is written beside it (`penstock.json`), because Spark would go on with another target as if everything before were there.

Functions of the file that run in Spark's workers are sent there as code, and so are the modules beside it: nothing has to be installed there. They keep their file's name and line
numbers, so that an error in a worker points into the file.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import InvalidArgument, PenstockError
from penstock.names import check_name
from penstock.pipeline import failure, sink
from penstock.pipeline.failure import FROM_SPARK, Place
from penstock.pipeline.stopping import Stop, heeding

#: What the file has to define.
#: The option of the source by which topics are read whose names match.
PATTERN: Final = "topicPattern"

FUNCTION: Final = "transform"

#: What is stored beside a checkpoint.
IDENTITY: Final = "penstock.json"

#: Columns that a message has and a new one cannot be given. A result that still has them is what a transform usually returns.
_OF_THE_SOURCE: Final = ("namespace", "offset", "id", "timestamp", "expires_at", "target_group")

#: Between two looks at a query: whether it has ended, and whether somebody wants it to.
LOOK_S: Final = 0.2

#: The same while it is to stop.
LOOK_STOPPING_S: Final = 0.05

Transform = Callable[[DataFrame], DataFrame]


class Ran(msgspec.Struct, frozen=True):
    """What a run has done."""

    name: str
    checkpoint: str
    batches: int
    messages: int
    #: False: it was stopped at once, in the middle of a batch, which is repeated when it is started again.
    finished: bool = True


def run(
    spark: SparkSession,
    file: str | Path,
    *,
    source: str | Path,
    topic: str | None = None,
    to: str | None = None,
    parquet: str | Path | None = None,
    route: bool = False,
    target: str | Path | None = None,
    namespace: str = "default",
    name: str | None = None,
    checkpoint: str | Path | None = None,
    once: bool = False,
    every: float | None = None,
    max_per_batch: int | None = None,
    starting: str = "earliest",
    mode: str = "append",
    options: Mapping[str, str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    stop: Stop | None = None,
    signals: bool = False,
) -> Ran:
    """Run the `transform` of a Python file over the messages of a log, as a stream, exactly once.

    The messages come from `topic` (names separated by commas; None: all of the namespace) in the directory `source`, with their headers, from the earliest on unless `starting` says
    otherwise. The result goes into the log `to` of the directory `target` (the source's, by default), or by `route` into the logs that its column `topic` names, or as files into the
    directory `parquet`. `once`: what is there now, then it ends; otherwise it goes on until it is stopped, with a batch `every` so many seconds, or as soon as there is something.

    `on_progress` is called with how many batches and messages are done: when it has started, and then when there are more.

    Started again with the same `checkpoint` it goes on where it was. By default that lies with the Parquet files, or in the source's directory, by `name`.

    >>> # run(spark, "clean.py", source="data", topic="orders", to="clean-orders", once=True)
    """
    path = Path(file).resolve()
    _require_target(to, parquet, route)
    _require_mode(mode, once=once, every=every)
    given = dict(options or {})
    _require_arguments(topic, given)
    job = _Job(
        spark=spark, file=path, source=str(Path(source).resolve()), topic=topic, pattern=given.get(PATTERN), namespace=namespace,
        to=to, route=route, parquet=None if parquet is None else _located(parquet),
        target=str(Path(target or source).resolve()), name=_called(name, path, to, parquet),
    )  # fmt: skip
    job.refuse_loop()
    function, at = load(path)
    messages = job.messages({"startingOffsets": starting, **_limit(max_per_batch), **given})
    result = _applied(function, messages, path, at)
    where = job.checkpoint(checkpoint)
    writer = job.writer(result, at).outputMode(mode).queryName(job.name).option("checkpointLocation", where)
    writer = _triggered(writer, once=once, every=every)
    asked = stop or Stop()
    with heeding(asked) if signals else nullcontext():
        query = _started(writer, path, at)
        job.remember(where)
        try:
            batches, rows = _followed(query, asked, on_progress or (lambda _batches, _rows: None))
        except FROM_SPARK as error:
            raise _blamed(error, path, None) from None
        finally:
            if query.isActive:
                query.stop()
    return Ran(job.name, where, batches, rows, finished=asked.times < 2)


def _require_mode(mode: str, *, once: bool, every: float | None) -> None:
    if mode != "append":
        raise InvalidArgument(
            f"mode={mode!r} cannot be: a log and Parquet files are only appended to; give append, with a watermark for aggregations, "
            "or write a query of your own with foreachBatch"
        )
    if every is not None and (once or not every > 0):
        raise InvalidArgument(
            "every is a number of seconds above 0, and is not for once: that ends by itself"
        )


# --- the user's file ---


def load(path: Path) -> tuple[Transform, Place]:
    """The `transform` of a file, and where it is defined."""
    if not path.is_file():
        raise InvalidArgument(f"there is no file {path}")
    module = _imported(path)
    found = getattr(module, FUNCTION, None)
    if found is None:
        raise InvalidArgument(
            f"{path} defines no {FUNCTION}: it needs `def {FUNCTION}(messages): return messages`, of DataFrames"
        )
    code = getattr(inspect.unwrap(found), "__code__", None) if callable(found) else None
    at = Place(path, 1 if code is None or code.co_filename != str(path) else code.co_firstlineno, FUNCTION)
    if not callable(found):
        raise at.blames(f"{FUNCTION} is {_a(found)}, not a function")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise at.blames(f"{FUNCTION} is called with one argument, the messages: {error}") from None
    except ValueError:
        pass  # it does not say what it takes
    return found, at


def _imported(path: Path) -> ModuleType:
    """The file as a module. What is beside it can be imported by it, here and in the workers."""
    name = "penstock_transform_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        at = failure.place_in(error, path)
        if at is None:
            raise InvalidArgument(f"{path} cannot be imported: {failure.gist(error)}") from None
        raise at.blames(failure.gist(error)) from None
    for known in {name, *set(sys.modules) - before}:
        if _is_beside(sys.modules[known], path):
            cloudpickle.register_pickle_by_value(sys.modules[known])  # type: ignore[no-untyped-call]
    return module


def _is_beside(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and "site-packages" not in file and Path(file).is_relative_to(path.parent)


def _applied(function: Transform, messages: DataFrame, path: Path, at: Place) -> DataFrame:
    try:
        result = function(messages)
    except (Exception, SystemExit) as error:
        raise _blamed(error, path, at) from None
    if not isinstance(result, DataFrame):
        raise at.blames(
            f"{FUNCTION} returned {_a(result)}; it has to return a DataFrame, made from its argument"
        )
    if not result.isStreaming:
        raise at.blames(
            f"{FUNCTION} returned a DataFrame that is not made from its argument: it would never see a message"
        )
    twice = sorted({column for column in result.columns if result.columns.count(column) > 1})
    if twice:
        raise at.blames(
            f"{FUNCTION} returned more than one column {', '.join(twice)}: give each another name, with alias()"
        )
    return result


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _blamed(error: BaseException, path: Path, otherwise: Place | None) -> PenstockError:
    """An error with the place in the user's file, if it has to do with that."""
    at = failure.place_in(error, path)
    if at is not None:
        return at.blames(failure.gist(error))
    known = failure.told(error)
    return (
        known if otherwise is None else otherwise.blames(f"what {FUNCTION} returns cannot be used: {known}")
    )


# --- what is read and written ---


class _Job(msgspec.Struct):
    """Where messages come from and where they go."""

    spark: SparkSession
    file: Path
    source: str
    topic: str | None
    pattern: str | None
    namespace: str
    to: str | None
    route: bool
    parquet: str | None
    target: str
    name: str

    def messages(self, options: Mapping[str, str]) -> DataFrame:
        reader = (
            self.spark.readStream.format("penstock")
            .option("namespace", self.namespace)
            .option("includeHeaders", "true")
        )
        if self.topic is not None:
            reader = reader.option("topic", self.topic)
        try:
            return reader.options(**options).load(self.source)
        except FROM_SPARK as error:
            raise failure.told(error) from None

    def refuse_loop(self) -> None:
        """A query that writes to a log which it reads never ends."""
        if self.parquet is not None or self.target != self.source:
            return
        names = self._read_names()
        if self.route:
            comes_back = not names  # with names, each row is looked at
        elif self.pattern is not None:
            comes_back = _matches(self.pattern, self.to or "")
        else:
            comes_back = not names or self.to in names
        if comes_back:
            raise InvalidArgument(
                f"{self.to or 'what the rows are routed to'} would be read and written by the same query, without end: "
                "name the topics that are read, and another one to write to"
            )

    def _read_names(self) -> list[str]:
        """The logs that are read, if they are named."""
        return [] if self.topic is None else [one.strip() for one in self.topic.split(",")]

    def _routed(self, rows: DataFrame) -> DataFrame:
        """The same rows; one that would come back to the query ends it instead, with an error."""
        if not self.route or self.target != self.source:
            return rows
        comes_back = F.col("topic").isin(self._read_names())
        error = F.concat(F.lit(f"{FUNCTION} routes a row to "), "topic", F.lit(", which the query reads: it would come back without end"))  # fmt: skip
        checked = F.when(comes_back, F.raise_error(error).cast("string")).otherwise(F.col("topic"))
        return rows.withColumn("topic", checked)

    def writer(self, result: DataFrame, at: Place) -> DataStreamWriter:
        if self.parquet is not None:
            return result.writeStream.format("parquet").option("path", self.parquet)
        kept = [
            column
            for column in result.columns
            if column not in _OF_THE_SOURCE and (self.route or column != "topic")
        ]
        written = result.select(*("`" + column.replace("`", "``") + "`" for column in kept))
        try:
            sink.check_schema(written.schema, self.to)
        except InvalidArgument as error:
            raise at.blames(str(error)) from None
        writer = self._routed(written).writeStream.format("penstock")
        if self.to is not None:
            writer = writer.option("topic", self.to)
        return writer.option("namespace", self.namespace).option("path", self.target)

    def checkpoint(self, given: str | Path | None) -> str:
        """Where the query's progress is kept, if that fits this job."""
        if given is not None:
            where = _located(given)
        elif self.parquet is not None:
            where = f"{self.parquet}/_checkpoint"
        else:
            where = str(Path(self.source, "pipeline", self.name))
        if "://" not in where:
            self._require_mine(Path(where))
        return where

    def _require_mine(self, where: Path) -> None:
        stored = where / IDENTITY
        if stored.exists():
            other = msgspec.json.decode(stored.read_bytes(), type=dict[str, Any])
            for what, mine in self._identity().items():
                if other.get(what) != mine:
                    raise InvalidArgument(
                        f"the checkpoint {where} belongs to a run whose {what} is {other.get(what)}, not {mine}: give another name or checkpoint, "
                        "or remove it to begin anew"
                    )
        elif (
            self.parquet is not None
            and not (where / "offsets").exists()
            and Path(self.parquet, "_spark_metadata").exists()
        ):
            raise InvalidArgument(
                f"another run has written to {self.parquet}, and its checkpoint is not {where}: Spark would take new batches for old ones; "
                "give the checkpoint of that run, or another directory"
            )

    def remember(self, where: str) -> None:
        if "://" not in where:
            Path(where).mkdir(parents=True, exist_ok=True)
            Path(where, IDENTITY).write_bytes(msgspec.json.format(msgspec.json.encode(self._identity())))

    def _identity(self) -> dict[str, Any]:
        into = self.parquet or (
            f"{self.target} by its column topic" if self.route else f"{self.target} {self.to}"
        )
        return {"source": self.source, "namespace": self.namespace, "topic": self.topic, "target": into}


def _require_arguments(topic: str | None, options: Mapping[str, str]) -> None:
    """What is read is said by arguments, so that it is known here what would be written to what is read."""
    for option in options:
        if option.lower() in {"topic", "namespace", "path", "url"}:
            raise InvalidArgument(f"{option} stands among the options: give it as an argument of run")
        if option.lower() == PATTERN.lower() and (topic is not None or option != PATTERN):
            raise InvalidArgument(f"give either topic, or the option {PATTERN}, not both")


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:  # the source says what is wrong with it
        return False


def _require_target(to: str | None, parquet: str | Path | None, route: bool) -> None:
    if (to is not None) + (parquet is not None) + route != 1:
        raise InvalidArgument(
            "give one target: a log (to), logs by the column topic (route), or a directory (parquet)"
        )
    if to is not None:
        check_name(to, kind="topic")


def _called(name: str | None, path: Path, to: str | None, parquet: str | Path | None) -> str:
    """The query's name, by which its checkpoint is found again."""
    if name is not None:
        return check_name(name, kind="name of a run")
    into = to or ("routed" if parquet is None else Path(parquet).name)
    return check_name(
        re.sub(r"[^A-Za-z0-9._-]", "-", f"{path.stem}-{into}").lstrip(".-"), kind="name of a run"
    )


def _located(path: str | Path) -> str:
    """A path as every process finds it; an address such as hdfs://… as it is."""
    return str(path) if "://" in str(path) else str(Path(path).resolve())


def _limit(max_per_batch: int | None) -> dict[str, str]:
    return {} if max_per_batch is None else {"maxOffsetsPerTrigger": str(max_per_batch)}


# --- the query ---


def _triggered(writer: DataStreamWriter, *, once: bool, every: float | None) -> DataStreamWriter:
    if once:
        return writer.trigger(availableNow=True)
    return writer if every is None else writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")


def _started(writer: DataStreamWriter, path: Path, at: Place) -> StreamingQuery:
    try:
        return writer.start()
    except FROM_SPARK as error:
        raise _blamed(error, path, at) from None


def _followed(query: StreamingQuery, stop: Stop, tell: Callable[[int, int], None]) -> tuple[int, int]:
    """Wait for the end of a query; how many batches and messages it was. It is stopped between two batches, if it is asked once."""
    seen = _Progress(tell)
    tell(0, 0)
    while not query.awaitTermination(LOOK_S if not stop.times else LOOK_STOPPING_S):  # type: ignore[arg-type]  # it takes fractions
        seen.look(query)
        if stop.times and (stop.times > 1 or seen.is_between(query)):
            query.stop()
            break
    seen.look(query)
    failed = query.exception()
    if failed is not None:
        raise failed
    return seen.batches, seen.rows


class _Progress:
    """How far a query is, from what Spark remembers of its batches: the last hundred, so it is looked at often enough."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self.batches = self.rows = 0
        self._last = -1
        self._tell = tell
        self._busy_since: int | None = None

    def look(self, query: StreamingQuery) -> None:
        before = self.batches
        for one in query.recentProgress:
            if one["batchId"] > self._last and one["numInputRows"]:
                self._last = one["batchId"]
                self.batches += 1
                self.rows += one["numInputRows"]
        if self.batches > before:
            self._tell(self.batches, self.rows)

    def is_between(self, query: StreamingQuery) -> bool:
        """Whether the batch that was worked on when this was first asked is done."""
        if self._busy_since is None:
            self._busy_since = self._last
        return not query.status["isTriggerActive"] or self._last > self._busy_since
