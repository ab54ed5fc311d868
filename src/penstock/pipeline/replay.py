"""Replay: messages of an archive, of a log or of its dead letters go into a log again, each once, however often the replay is killed and run again.

Theory of operation
-------------------
A replay has an id: the one that it is given, or one that is made of its arguments. When it begins for the first time, it looks which messages are meant, and cuts them into *chunks*, in the order of topic and
offset: a chunk is some stretches of offsets. That *plan* is stored before anything is published, and what a later run does goes by it. So the same command, run again, goes on where it was, and does nothing once it is
done; what was published meanwhile is not part of it.

Each chunk is one write of the sink with `txnAppId` (the id, and a hash of the plan) and `txnVersion` (the number of the chunk): the broker takes a chunk once, whole. How many chunks are done is noted beside the plan, but that only
saves time: a chunk that was taken and not noted is handed in again, and ignored::

    STATE/<id>/plan.json        the arguments, and the chunks
    STATE/<id>/0000000003.done  all chunks before the third are published

If that folder is lost, the plan is made again. If it comes out the same, nothing is published twice; if the log has grown since, it is another plan, and everything is.

What is replayed is a new message, with a new id and offset, due at once, with the payload, key and priority of the old one, and with its headers and these two, as a dead letter that goes back has (see `engine.letter`)::

    x-replayed-from   the log that it was read from
    x-origin-id       the id it had there (of the first time, if it had failed or was replayed before)

The headers that tell of a failure are left out. A dead letter stays where it is: to move it, redrive it. A dedup id is made of the replay's id and the message's, so that a log that promises exactly-once takes it,
and does not take it for the old one.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import BooleanType

from penstock import limits
from penstock.engine import letter
from penstock.errors import CorruptJournal, InvalidArgument, QueueNotFound
from penstock.names import check_name
from penstock.pipeline import archive, failure
from penstock.pipeline.catalog import Catalog
from penstock.pipeline.hadoop import Folder

VERSION: Final = 1

REPLAYED_FROM: Final = "x-replayed-from"

#: Messages in one chunk, and bytes of their payloads, at the most (unless one alone has more): a chunk is written by one task, in order.
CHUNK_ROWS: Final = 50_000
CHUNK_BYTES: Final = 32 << 20

#: Stretches of offsets in one chunk: each is a part of the condition by which it is read.
CHUNK_RANGES: Final = 50

#: A chunk is what a limited rate allows in so many seconds.
CHUNK_S: Final = 1.0

#: How many stretches are looked at to make a plan. With more offsets than that, a stretch has several, and chunks may be larger.
STRETCHES_MAX: Final = 1_000_000


class Range(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a topic that are meant, from one offset to another."""

    topic: str
    first: int
    last: int


class Chunk(msgspec.Struct, frozen=True):
    ranges: list[Range]
    rows: int


class Plan(msgspec.Struct, frozen=True):
    """What a replay is, from its beginning to its end."""

    arguments: dict[str, Any]
    chunks: list[Chunk]
    version: int = VERSION

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)


class Sent(msgspec.Struct, frozen=True):
    """How far a replay is: chunks and messages that are published, and how many there are."""

    chunks: int
    of_chunks: int
    messages: int
    of_messages: int


class Replayed(msgspec.Struct, frozen=True):
    """What a replay has come to: `messages` are in it; `resumed` if it had been begun before.

    `written` of them were handed in by this run: among them may be a chunk that an interrupted run had handed in already, and that was ignored now.
    """

    id: str
    messages: int
    written: int
    chunks: int
    resumed: bool


def replay(
    spark: SparkSession,
    source: str | Path,
    into: str,
    path: str | Path,
    *,
    topics: Sequence[str] | None = None,
    where: str | None = None,
    set_headers: Mapping[str, str | None] | None = None,
    set_priority: int | None = None,
    rate: float | None = None,
    namespace: str = "default",
    source_path: str | Path | None = None,
    source_namespace: str | None = None,
    id: str | None = None,
    state: str | Path | None = None,
    progress: Callable[[Sent], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Replayed:
    """Publish messages again, into the log `into` of the broker's directory `path`.

    `source` is the folder of an archive (of which `topics` chooses some), or a log of `source_path` (by default of the same directory), such as "orders", or "orders.dlq" for its dead letters. `where` is an
    expression of Spark's SQL over the columns of messages. `set_headers` adds or changes headers, and removes those that are None; `set_priority` gives all the same priority. `rate` is
    messages per second. `state` is a folder for the plan; by default it is in the archive, or in the directory. The same replay under another `id` publishes everything again.

    >>> # replay(spark, "lake/orders", "orders", "data", where="key = 'k7' and day = '2026-11-16'", rate=500)
    """
    check_name(into, kind="queue name", reserved_ok=True)
    check_name(namespace, kind="namespace")
    headers = _headers(set_headers or {})
    _require_priority(set_priority)
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise InvalidArgument(f"rate={rate!r}: give messages per second, a number above 0")
    given = Request(spark, source, source_path or path, source_namespace or namespace, topics, where)
    arguments = {
        **given.arguments, "into": into, "path": str(Path(path).absolute()), "namespace": namespace, "where": where,
        "headers": headers, "priority": set_priority,
    }  # fmt: skip
    name = _id(id, arguments)
    folder = Folder(spark, given.state(path) if state is None else state)
    with folder.owned(f"{name}/lock", f"the replay {name} in"):
        job = Job(folder, name, arguments, given)
        job.headers, job.priority, job.progress = headers, set_priority, progress
        try:
            job.begin(_chunk_rows(rate))
            return job.run(Pace(rate, pause, now))
        except failure.FROM_SPARK as error:
            raise failure.told(error) from error


# --- what is asked for ---


class Request:
    """Which messages are meant."""

    def __init__(
        self, spark: SparkSession, source: str | Path, path: str | Path, namespace: str, topics: Sequence[str] | None,
        where: str | None,
    ) -> None:  # fmt: skip
        check_name(namespace, kind="namespace")
        if isinstance(topics, str):
            raise InvalidArgument(f"topics={topics!r}: give a list of names")
        self._archive: Folder | None = None
        if _is_log(source, path, namespace):
            if topics is not None:
                raise InvalidArgument(
                    "topics chooses logs of an archive, and the source is a log: leave topics out"
                )
            reader = spark.read.format("penstock").option("topic", str(source)).option("namespace", namespace)
            found = reader.option("includeHeaders", "true").load(str(path))
            of = str(Path(path).absolute())
        else:
            self._archive = _archive_at(spark, source, path, namespace)
            of = self._archive.root
            found = archive.tables(spark, of)["messages"].where(F.col("namespace") == namespace)
            if topics is not None:
                found = found.where(F.col("topic").isin(list(topics)))
        self.messages = found if where is None else _filtered(found, where)
        self.arguments = {
            "source": None if self._archive is not None else str(source), "of": of, "source_namespace": namespace,
            "topics": None if topics is None else sorted(topics),
        }  # fmt: skip

    def state(self, path: str | Path) -> str:
        """Where the plan is kept unless somebody says otherwise."""
        return (
            str(Path(path).absolute() / "replays")
            if self._archive is None
            else self._archive.path("_replays")
        )


def _is_log(source: str | Path, path: str | Path, namespace: str) -> bool:
    if isinstance(source, Path) or "/" in source or not Path(path).is_dir():
        return False
    return any((log.namespace, log.name) == (namespace, source) for log in Catalog(path).logs.values())


def _archive_at(spark: SparkSession, source: str | Path, path: str | Path, namespace: str) -> Folder:
    folder = Folder(spark, source)
    if not folder.exists(f"{archive.HOME}/archive.json"):
        raise QueueNotFound(
            f"{source} is neither a queue or topic in {path} (namespace {namespace}) nor the folder of an archive"
        )
    return folder


def _filtered(messages: DataFrame, where: str) -> DataFrame:
    try:
        if not isinstance(messages.select(F.expr(where)).schema[0].dataType, BooleanType):
            raise InvalidArgument(f"where: {where!r} is not true or false; compare it with something")
        return messages.where(F.expr(where))
    except (ParseException, AnalysisException) as error:
        columns = ", ".join(messages.columns)
        raise InvalidArgument(
            f"where: {_said(error)}\n{_pointed(where, error)}\nThe columns are {columns}."
        ) from None


def _said(error: ParseException | AnalysisException) -> str:
    """What Spark says, without the names and numbers it gives to errors."""
    first = str(error).strip().splitlines()[0]
    first = re.sub(r"\s*SQLSTATE: \w+;?", "", first)
    return re.sub(r"^\[[A-Z_.]+\]\s*", "", first)


def _pointed(where: str, error: ParseException | AnalysisException) -> str:
    """The expression, with a mark under the place that is meant, if Spark says which."""
    found = re.search(r"line (\d+),? pos(?:ition)? (\d+)", str(error))
    lines = where.splitlines() or [""]
    if found is None or int(found[1]) > len(lines):
        return "\n".join(f"    {line}" for line in lines)
    at = int(found[1])
    lines.insert(at, " " * int(found[2]) + "^")
    return "\n".join(f"    {line}" for line in lines)


def _headers(given: Mapping[str, str | None]) -> dict[str, str | None]:
    for name, value in given.items():
        if not isinstance(name, str) or not name or not isinstance(value, str | None):
            raise InvalidArgument(
                f"set_headers has {name!r}: {value!r}; give text, or None to remove a header"
            )
    return dict(sorted(given.items()))


def _require_priority(priority: int | None) -> None:
    if priority is not None and (
        type(priority) is not int or not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX
    ):
        raise InvalidArgument(
            f"set_priority={priority!r}: give a whole number from {limits.PRIORITY_MIN} to {limits.PRIORITY_MAX}"
        )


def _id(given: str | None, arguments: Mapping[str, Any]) -> str:
    if given is not None:
        return check_name(given, kind="id of a replay")
    return hashlib.sha256(msgspec.json.encode(arguments, order="sorted")).hexdigest()[:16]


def _chunk_rows(rate: float | None) -> int:
    return CHUNK_ROWS if rate is None else max(1, min(CHUNK_ROWS, math.ceil(rate * CHUNK_S)))


# --- the plan ---


def _planned(messages: DataFrame, rows_max: int) -> list[Chunk]:
    """Chunks of messages in the order of topic and offset. Messages are counted by stretches of offsets, so that not each is looked at by the driver."""
    ends = messages.agg(F.min("offset"), F.max("offset")).first()
    if ends is None or ends[0] is None:
        return []
    width = max(rows_max // 8, (ends[1] - ends[0]) // STRETCHES_MAX, 1)
    stretch = F.expr(f"offset div {width}")
    counted = messages.groupBy("topic", stretch.alias("stretch")).agg(
        F.count("offset").alias("rows"),
        F.sum(F.length("payload")).alias("bytes"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    )
    found = counted.orderBy("topic", "stretch").toArrow().to_pylist()
    return _cut(
        [(Range(one["topic"], one["first"], one["last"]), one["rows"], one["bytes"]) for one in found],
        rows_max,
    )


def _cut(stretches: Sequence[tuple[Range, int, int]], rows_max: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    ranges: list[Range] = []
    rows = size = 0
    for stretch, more, bytes_more in stretches:
        joins = bool(ranges) and ranges[-1].topic == stretch.topic
        if ranges and (
            rows + more > rows_max
            or size + bytes_more > CHUNK_BYTES
            or (not joins and len(ranges) == CHUNK_RANGES)
        ):
            chunks.append(Chunk(ranges, rows))
            ranges, rows, size, joins = [], 0, 0, False
        if joins:
            ranges[-1] = Range(stretch.topic, ranges[-1].first, stretch.last)
        else:
            ranges.append(stretch)
        rows, size = rows + more, size + bytes_more
    if ranges:
        chunks.append(Chunk(ranges, rows))
    return chunks


class Pace:
    """Waits as long as a rate demands."""

    def __init__(self, rate: float | None, pause: Callable[[float], None], now: Callable[[], float]) -> None:
        self._rate = rate
        self._pause = pause
        self._now = now
        self._due = now()

    def wait(self) -> None:
        """Until the next messages may go."""
        left = self._due - self._now()
        if left > 0:
            self._pause(left)

    def passed(self, messages: int) -> None:
        """So many have gone. A chunk that took long is not made up for by a faster one."""
        if self._rate is not None:
            self._due = max(self._due, self._now() - CHUNK_S) + messages / self._rate


# --- the run ---


class Job:
    """One run of a replay."""

    headers: dict[str, str | None]
    priority: int | None
    progress: Callable[[Sent], None] | None

    def __init__(self, folder: Folder, name: str, arguments: dict[str, Any], request: Request) -> None:
        self._folder = folder
        self._name = name
        self._arguments = arguments
        self._messages = request.messages
        self._resumed = False

    def begin(self, rows_max: int) -> None:
        """Have a plan, on the disk, before anything is published."""
        place = f"{self._name}/plan.json"
        data = self._folder.read(place)
        self._resumed = data is not None
        if data is None:
            plan = Plan(self._arguments, _planned(self._messages, rows_max))
            data = msgspec.json.encode(plan)
            self._folder.make(self._name)
            self._folder.write(place, data)
        try:
            self.plan = msgspec.json.decode(data, type=Plan)
        except msgspec.DecodeError as error:
            raise CorruptJournal(f"{self._folder.path(place)} is not what was written: {error}") from error
        if self.plan.version != VERSION:
            raise InvalidArgument(
                f"{self._folder.path(place)} is of version {self.plan.version}, and this Penstock knows version {VERSION}: use a newer one"
            )
        if self.plan.arguments != self._arguments:
            other = [key for key, value in self._arguments.items() if self.plan.arguments.get(key) != value]
            raise InvalidArgument(
                f"the replay {self._name} was begun with another {', '.join(other)}: give the same, or another id"
            )
        self._app = f"replay:{self._name}:{hashlib.sha256(data).hexdigest()[:16]}"

    def run(self, pace: Pace) -> Replayed:
        plan, written = self.plan, 0
        done = self._done()
        for number, chunk in enumerate(plan.chunks[done:], done):
            pace.wait()
            count = self._write(number, chunk)
            written += count
            pace.passed(count)
            self._note(number + 1)
            self._tell(number + 1)
        return Replayed(self._name, plan.rows, written, len(plan.chunks), self._resumed)

    def _tell(self, done: int) -> None:
        if self.progress is not None:
            chunks = self.plan.chunks
            self.progress(Sent(done, len(chunks), sum(chunk.rows for chunk in chunks[:done]), self.plan.rows))

    def _done(self) -> int:
        names = self._folder.names(self._name)
        return max((int(name.removesuffix(".done")) for name in names if name.endswith(".done")), default=0)

    def _note(self, done: int) -> None:
        earlier = [name for name in self._folder.names(self._name) if name.endswith(".done")]
        self._folder.write(f"{self._name}/{done:010d}.done", b"")
        for name in earlier:
            self._folder.remove(f"{self._name}/{name}")

    def _write(self, number: int, chunk: Chunk) -> int:
        """Have a chunk published; how many messages there were. Some may have been cleaned away since the plan was made."""
        topic, offset = F.col("topic"), F.col("offset")
        meant = F.lit(False)
        for part in chunk.ranges:
            meant = meant | ((topic == part.topic) & (offset >= part.first) & (offset <= part.last))
        wanted = [part.topic for part in chunk.ranges]
        seen = Observation()
        (
            self._messages.where(topic.isin(wanted))
            .where(meant)
            .coalesce(1)
            .sortWithinPartitions("topic", "offset", "id")
            .select(*self._columns())
            .observe(seen, F.count(F.lit(1)).alias("rows"))
            .write.format("penstock")
            .mode("append")
            .option("topic", self._arguments["into"])
            .option("namespace", self._arguments["namespace"])
            .option("txnAppId", self._app)
            .option("txnVersion", number)
            .save(self._arguments["path"])
        )
        return int(seen.get["rows"])

    def _columns(self) -> list[Column]:
        priority = F.col("priority") if self.priority is None else F.lit(self.priority)
        dedup = F.concat(F.lit(f"replay:{self._name}:"), F.col("id").cast("string"))
        return [
            F.col("payload"), F.col("key"), self._new_headers().alias("headers"), priority.cast("int").alias("priority"),
            dedup.alias("dedup_id"),
        ]  # fmt: skip

    def _new_headers(self) -> Column:
        none = F.create_map().cast("map<string,string>")
        old = F.coalesce(F.col("headers"), none)
        is_letter = F.map_contains_key(old, letter.ORIGIN) & F.map_contains_key(old, letter.REASON)
        ours = {
            REPLAYED_FROM: F.col("topic"),
            letter.ORIGIN_ID: F.coalesce(
                F.try_element_at(old, F.lit(letter.ORIGIN_ID)), F.col("id").cast("string")
            ),
        }
        ours |= {name: F.lit(value) for name, value in self.headers.items() if value is not None}
        ours = {name: value for name, value in ours.items() if self.headers.get(name, "") is not None}
        replaced = [*ours, *self.headers]
        failed = sorted(letter.OF_THE_FAILURE)
        left = F.map_filter(old, lambda name, _: ~name.isin(replaced) & ~(is_letter & name.isin(failed)))
        if not ours:
            return left
        return F.map_concat(
            left, F.create_map(*(part for name, value in ours.items() for part in (F.lit(name), value)))
        )
