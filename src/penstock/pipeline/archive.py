"""The archive: messages, settlements and deliveries as Parquet files by namespace, log and UTC day, each row once.

Theory of operation
-------------------
A stream of Spark for each table reads what is new. A batch is written to a staging folder and brought in by a change (see `changes`), which also records the number of the batch and where it ended. Spark's own
checkpoint says what the next batch is to be; when Spark repeats a batch because it was killed before it had noted its end, the number tells that the batch is in::

    TO/messages/namespace=default/topic=orders/day=2026-11-16/part-0000000012-00000.parquet     of batch 12
    TO/settlements/namespace=default/log=orders/day=2026-11-16/compact-0000000031-00000.parquet by change 31, out of smaller ones
    TO/_archive/archive.json     what it is an archive of
    TO/_archive/checkpoints/     Spark's, one for each table
    TO/_archive/changes/         see `changes`
    TO/_archive/staging/         worthless after a crash

No file in the tables' folders belongs to Spark's own bookkeeping, so that any reader of Parquet sees each row once while nothing is under way and nothing was interrupted. `tables` is exact at any moment.

What is damaged or missing in the journal is skipped, and told once: by the run that came across it
(`Archived.skipped`). Damage that was told is noted in TO/_archive/damage/, because
reading begins a little before what is wanted and may meet it again. Of messages, the offsets between
the ends of two batches that are neither in the archive nor recorded as cleaned are lost.

Once a batch is on the disk, its end is reported to the broker as the position of the reader `penstock.archive`: for each log the next offset, and for what happened to messages the last commit that all
archived tables of that kind have. That is what `retain="until-archived"` waits for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DateType, StructField, StructType

from penstock.engine.retention import ARCHIVE
from penstock.errors import CorruptJournal, InvalidArgument, QueueNotFound
from penstock.journal.files import Files
from penstock.journal.kinds import MESSAGES
from penstock.journal.spool import Report, Spool
from penstock.names import check_name
from penstock.pipeline import failure, noting, schema
from penstock.pipeline.audit import NAMED_MAX, Breach, damage_breach, missing_breach, unread_breach
from penstock.pipeline.catalog import Catalog, LogEntry
from penstock.pipeline.changes import Changes, Total
from penstock.pipeline.filing import DAY, Filed, Filing
from penstock.pipeline.filing import filing as filing_of
from penstock.pipeline.gathering import bitmaps
from penstock.pipeline.hadoop import Entry, Folder
from penstock.pipeline.options import EVERYWHERE
from penstock.pipeline.runs import Runs, between, of_flat
from penstock.pipeline.schema import Table

VERSION: Final = 1
HOME: Final = "_archive"
TOLD: Final = f"{HOME}/damage"

#: What happened comes before what it happened to: so each message that a settlement in the archive is of is in the archive too.
IN_ORDER: Final = ("deliveries", "settlements", "messages")

#: Messages in one batch: what a crash makes it write again at the most.
BATCH_ROWS: Final = 5_000_000

#: The size that files are compacted to, about; and below what a file is small.
FILE_BYTES: Final = 128 << 20
SMALL_BYTES: Final = FILE_BYTES // 2

#: Files that a task writes to at the same time, before it sorts its rows by file instead.
FILES_AT_ONCE: Final = 32

#: How often a continuous run asks whether it is to end.
LOOK_S: Final = 1.0

_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other readers have given INT96 up
    "spark.sql.maxConcurrentOutputFileWriters": str(FILES_AT_ONCE),
    "spark.sql.sources.partitionOverwriteMode": "static",
}


_LOG: Final = logging.getLogger("penstock.pipeline")


class Step(msgspec.Struct, frozen=True):
    """What was just done: `what` is archived, compacted, or recovered (brought to its end after a crash)."""

    what: str
    table: str
    rows: int = 0
    files: int = 0
    batch: int | None = None


Progress = Callable[[Step], None]


class Archived(msgspec.Struct, frozen=True):
    """What a run did: rows by table, files that were written for them, files that were compacted away; and logs that keep on waiting.

    `skipped` is what should have been there and could not be read by this run.
    `waiting` are logs with retain="until-archived" of which this archive does not hold everything: while there are any, the journal keeps what happened to messages.
    """

    rows: dict[str, int]
    files: int
    compacted: int
    waiting: list[str]
    skipped: list[Breach] = []


class Contents(msgspec.Struct, frozen=True):
    """What an archive is of."""

    namespace: str
    topics: list[str] | None
    version: int = VERSION
    path: str | None = None  # the broker's directory


def archive(
    spark: SparkSession,
    path: str | Path,
    to: str | Path,
    *,
    namespace: str = EVERYWHERE,
    topics: Sequence[str] | None = None,
    continuous: bool = False,
    interval_s: float = 10.0,
    tables: Sequence[str] = ("messages", "settlements", "deliveries"),
    compact: bool = True,
    batch_rows: int = BATCH_ROWS,
    report: bool = True,
    until: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Archived:
    """Bring what is new in a broker's directory into the archive in the folder `to`, each row once, however often it is killed and run again.

    It ends when everything is in that was there when it began; if it is `continuous`, it goes on with a batch every `interval_s` until `until()` is true, which it asks
    about once a second, or until it is interrupted. The same archive is always of the same namespace and topics. Small files of days that are over are compacted.
    With `report`, the broker is told what is archived. The broker may run meanwhile.

    >>> # archive(pipeline.session(), "data", "lake/orders")
    """
    job = Job(spark, path, to, _contents(namespace, topics), _tables(tables), progress)
    if not interval_s > 0 or batch_rows < 1:
        raise InvalidArgument("interval_s and batch_rows are numbers above 0")
    job.compacts, job.reports, job.batch_rows = compact, report, batch_rows
    with job.folder.owned(f"{HOME}/lock", "archiving into"):
        job.begin()
        if continuous:
            job.run_on(interval_s, until or (lambda: False))
        else:
            job.run_once()
        return job.done()


def tables(spark: SparkSession, archive_path: str | Path) -> dict[str, DataFrame]:
    """The tables of an archive, with the source's columns (headers too) and `day`; exact also while it is written, and after a crash.

    What is compacted away while a DataFrame is in use is not there any more, which Spark says: ask for the tables again.
    """
    folder = Folder(spark, archive_path)
    _require_archive(folder)
    return {
        name: _read(spark, folder, table, Changes(folder, HOME, name).files())
        for name, table in schema.TABLES.items()
    }


def compact(
    spark: SparkSession,
    archive_path: str | Path,
    *,
    every_day: bool = False,
    progress: Progress | None = None,
) -> int:
    """Make few large files of many small ones, of the days that are over or of `every_day`; how many were compacted away."""
    folder = Folder(spark, archive_path)
    _require_archive(folder)
    session = _own(spark)
    with folder.owned(f"{HOME}/lock", "archiving into"):
        gone = 0
        for name in IN_ORDER:
            changes = Changes(folder, HOME, name)
            if changes.recover() and progress is not None:
                progress(Step("recovered", name))
            gone += _compact(session, folder, changes, schema.TABLES[name], every_day, progress)
        return gone


# --- what it is of ---


def _contents(namespace: str, topics: Sequence[str] | None) -> Contents:
    if isinstance(topics, str):
        raise InvalidArgument(f"topics={topics!r}: give a list of names")
    if namespace != EVERYWHERE:
        check_name(namespace, kind="namespace")
    names = (
        None
        if topics is None
        else sorted({check_name(name, kind="topic", reserved_ok=True) for name in topics})
    )
    if names is not None and not names:
        raise InvalidArgument("topics is empty: name some, or leave it out for all of them")
    return Contents(namespace, names)


def _tables(names: Sequence[str]) -> list[Table]:
    unknown = [name for name in names if name not in schema.TABLES]
    if unknown or not names or isinstance(names, str):
        raise InvalidArgument(f"tables={names!r}: give some of {', '.join(schema.TABLES)}")
    return [schema.TABLES[name] for name in IN_ORDER if name in names]


def _own(spark: SparkSession) -> SparkSession:
    """A session with settings of its own, so that the caller's are left as they are."""
    session: Any = spark._jsparkSession
    own = SparkSession(spark.sparkContext, session.cloneSession())
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


def _require_archive(folder: Folder) -> Contents:
    data = folder.read(f"{HOME}/archive.json")
    if data is None:
        raise InvalidArgument(f"{folder.root} is no archive: give the folder that was archived into")
    try:
        found = msgspec.json.decode(data, type=Contents)
    except msgspec.DecodeError as error:
        raise CorruptJournal(f"{folder.path(HOME)}/archive.json is not what was written: {error}") from error
    if found.version != VERSION:
        raise InvalidArgument(
            f"{folder.root} is an archive of version {found.version}, and this Penstock knows version {VERSION}: use a newer one"
        )
    return found


# --- reading ---


def _columns(table: Table) -> StructType:
    whole = schema.spark(table, tuple(table.columns))
    return StructType([*whole.fields, StructField(DAY, DateType())])


def _read(spark: SparkSession, folder: Folder, table: Table, files: list[Entry]) -> DataFrame:
    columns = _columns(table)
    if not files:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option("basePath", folder.path(table.name))
    return reader.parquet(*(folder.path(file.name) for file in files)).select(columns.names)


# --- compacting ---


def _today() -> date:
    return datetime.now(UTC).date()


def _compact(
    spark: SparkSession,
    folder: Folder,
    changes: Changes,
    table: Table,
    every_day: bool,
    progress: Progress | None,
) -> int:
    """Compact a table of which nothing is under way; how many files are gone by that."""
    gone = 0
    for parts in _groups(changes.files(), every_day):
        rows = _rewrite(spark, folder, changes, table, parts)
        gone += len(parts) - 1
        if progress is not None:
            progress(Step("compacted", table.name, rows, len(parts)))
    return gone


def _groups(files: list[Entry], every_day: bool) -> Iterator[list[Entry]]:
    """Small files of the same folder that together make one of about the right size, two at the least."""
    today = f"{DAY}={_today().isoformat()}"
    small: dict[str, list[Entry]] = {}
    for file in files:
        if file.bytes < SMALL_BYTES and (every_day or file.parent.rpartition("/")[2] < today):
            small.setdefault(file.parent, []).append(file)
    for there in small.values():
        group: list[Entry] = []
        for file in there:
            if group and sum(one.bytes for one in group) + file.bytes > FILE_BYTES:
                if len(group) > 1:
                    yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def _rewrite(spark: SparkSession, folder: Folder, changes: Changes, table: Table, parts: list[Entry]) -> int:
    inside = {"namespace", table.log}
    columns = StructType(
        [field for field in schema.spark(table, tuple(table.columns)) if field.name not in inside]
    )
    order = ["offset", "id"] if table.kind is MESSAGES else ["sequence", "offset"]
    rows = spark.read.schema(columns).parquet(*(folder.path(part.name) for part in parts))
    before = rows.count()  # by the footers of the files
    last = changes.last()
    number = 0 if last is None else last.number + 1
    staging = f"{changes.staging}/compact-{number:010d}"
    rows.coalesce(1).sortWithinPartitions(*order).write.mode("overwrite").parquet(folder.path(staging))
    made = list(folder.files(staging))
    after = spark.read.schema(columns).parquet(folder.path(staging)).count()
    if after != before:
        raise CorruptJournal(
            f"{len(parts)} files of {folder.path(parts[0].parent)} have {before} rows, and {after} were written of them"
        )
    add = {
        one.name: f"{parts[0].parent}/compact-{number:010d}-{at:05d}.parquet" for at, one in enumerate(made)
    }
    changes.make(add, [part.name for part in parts], changes.total())
    return before


# --- archiving ---


class Job:
    """One run of the archive. Batches of different tables may come from different threads."""

    def __init__(
        self, spark: SparkSession, path: str | Path, to: str | Path, contents: Contents, chosen: list[Table],
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self.compacts = self.reports = True
        self.batch_rows = BATCH_ROWS
        self.folder = Folder(spark, to)
        self._path = Path(path).absolute()
        self._spark = _own(spark)
        self._contents = contents
        self._tables = chosen
        self._progress = progress
        self._changes = {name: Changes(self.folder, HOME, name) for name in IN_ORDER}
        self._positions = Positions(self._path, contents)
        self._lock = threading.Lock()
        self._rows = dict.fromkeys((table.name for table in chosen), 0)
        self._files = self._compacted = 0
        self._compacted_on: dict[str, date] = {}
        self._busy = {table.name: threading.Lock() for table in chosen}
        self._failure: BaseException | None = None
        self._skipped: list[Breach] = []
        self._told: set[str] = set()  # damage

    def begin(self) -> None:
        """Bring to an end what an earlier run was killed in, and see that this is an archive of the same things."""
        if self.folder.exists(f"{HOME}/archive.json"):
            known = _require_archive(self.folder)
            if known.path not in (None, str(self._path)):
                # Offsets of one would be taken for those of the other.
                raise InvalidArgument(
                    f"{self.folder.root} is an archive of the directory {known.path}, not of {self._path}: give another folder; "
                    f"if the directory was moved, change `path` in {self.folder.path(HOME)}/archive.json"
                )
            if (known.namespace, known.topics) != (self._contents.namespace, self._contents.topics):
                raise InvalidArgument(
                    f"{self.folder.root} is an archive of {_said(known)}, not of {_said(self._contents)}: give the same, or another folder"
                )
        else:
            self._positions.require_there()
            self.folder.make(HOME)
            contents = msgspec.structs.replace(self._contents, path=str(self._path))
            self.folder.write(f"{HOME}/archive.json", msgspec.json.encode(contents))
        for name, changes in self._changes.items():
            if changes.recover():
                self._tell(Step("recovered", name, batch=changes.total().batch))
        for table in self._tables:
            self._require_checkpoint(table)
        self._told = set(self.folder.names(TOLD))
        self._report(self._changes)

    def done(self) -> Archived:
        if self.compacts:
            for table in self._tables:
                self._compact(table)
        waiting = self._positions.uncovered()
        if (unread := self._positions.unread()) is not None:
            self._skip([unread_breach(*unread)])
        return Archived(dict(self._rows), self._files, self._compacted, waiting, self._skipped)

    # --- what cannot be read ---

    def _skip(self, found: list[Breach]) -> None:
        for one in found:
            if one not in self._skipped:
                self._skipped.append(one)
                _LOG.warning("skipped in %s: %s", self._path, one)

    def _note_losses(self, table: Table, start: dict[str, Any], end: dict[str, Any], filed: Filed) -> None:
        """After a batch: what was between its beginning and its end, and is not in it."""
        with self._lock:
            new = set(filed.damage) - self._told
            self._told |= new
            found = [
                damage_breach(segment, [(one.start, one.stop - 1) for one in ranges])
                for segment, ranges in noting.ranges_of(new).items()
            ]
            if table.kind is MESSAGES:
                found += self._lost(self._positions.given(start, end), filed.rows)
            else:
                first = start["sequence"] + 1 if start else 1
                missing = self._positions.missing_commits(first, end["sequence"])
                found += [missing_breach(*missing)] if missing else []
            self._skip(found)
            for one in new:
                self.folder.write(f"{TOLD}/{one}", b"")

    def _lost(self, given: dict[tuple[str, str], Runs], rows: int) -> list[Breach]:
        """Of the offsets that a batch should have, those that the archive has not. Nearly always, counting tells that it has them all."""
        if sum(runs.size for runs in given.values()) == rows:
            return []
        table = schema.MESSAGES_TABLE
        archived = _read(self._spark, self.folder, table, self._changes[table.name].files())
        first = min(int(runs.starts[0]) for runs in given.values() if runs.size)
        there = bitmaps(archived.where(F.col("offset") >= first), ["namespace", "topic"])
        found = []
        for name, runs in given.items():
            lost = runs.minus(there[name].once) if name in there else runs
            if lost.size:
                found.append(Breach("lost", *name, None, lost.size, lost.pairs(NAMED_MAX)))
        return found

    def _tell(self, step: Step) -> None:
        with self._lock:
            if step.what == "archived":
                self._rows[step.table] += step.rows
                self._files += step.files
            elif step.what == "compacted":
                self._compacted += step.files - 1
            if self._progress is not None:
                self._progress(step)

    # --- streams ---

    def run_once(self) -> None:
        for table in self._tables:
            with self._stopping() as queries:
                queries.append(self._start(table, availableNow=True))
                queries[0].awaitTermination()

    def run_on(self, interval_s: float, until: Callable[[], bool]) -> None:
        every = f"{round(interval_s * 1000)} milliseconds"
        with self._stopping() as queries:
            for table in self._tables:
                queries.append(self._start(table, processingTime=every))
            while not until():
                for query in queries:
                    if query.awaitTermination(LOOK_S / len(queries)):  # type: ignore[arg-type]
                        raise CorruptJournal(f"the stream {query.name} was stopped by somebody else")

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[list[StreamingQuery]]:
        """Whatever happens, no batch is under way afterwards. An error in a batch is raised as it was, not as Spark tells it."""
        queries: list[StreamingQuery] = []
        try:
            yield queries
        except Exception as error:
            cause = self._failure or error
            raise (failure.told(cause) if isinstance(cause, failure.FROM_SPARK) else cause) from None
        finally:
            for query in queries:
                query.stop()
            for busy in self._busy.values():
                busy.acquire()
                busy.release()

    def _start(self, table: Table, **trigger: Any) -> StreamingQuery:
        reader = (
            self._spark.readStream.option("table", table.name)
            .option("namespace", self._contents.namespace)
            .option("startingOffsets", "earliest")
            .option("reader", ARCHIVE)
            # What is lost cannot be archived, and is not found by stopping; what was deleted need not be.
            .option("failOnDataLoss", "false")
        )
        if self._contents.topics is not None:
            reader = reader.option("topic", ",".join(self._contents.topics))
        if table.kind is MESSAGES:
            reader = reader.option("includeHeaders", "true").option("maxOffsetsPerTrigger", self.batch_rows)
        filing = filing_of(self._spark, self.folder, table, self._changes[table.name].staging)
        rows = filing.rows(reader, str(self._path))
        return (
            rows.writeStream.queryName(f"{ARCHIVE}.{table.name}")
            .option("checkpointLocation", self.folder.path(f"{HOME}/checkpoints/{table.name}"))
            .trigger(**trigger)
            .foreachBatch(lambda batch, number: self._take(table, filing, batch, number))
            .start()
        )

    def _take(self, table: Table, filing: Filing, rows: DataFrame, number: int) -> None:
        with self._busy[table.name]:
            try:
                self._take_batch(table, filing, rows, number)
            except BaseException as error:
                self._failure = self._failure or error
                raise

    def _take_batch(self, table: Table, filing: Filing, rows: DataFrame, number: int) -> None:
        changes = self._changes[table.name]
        total, query, end = changes.total(), self._query(table), self._end_of(table, number)
        if number <= total.batch:
            if number == total.batch and end != total.end:
                raise self._foreign(table)
            return  # it was archived, and Spark was killed before it had noted that
        if number != total.batch + 1:
            raise self._foreign(table)
        filed = filing.file(rows)
        files, count = filed.files, filed.rows
        add = {
            staged: f"{table.name}/{place}/part-{number:010d}-{at:05d}.parquet"
            for at, (staged, place) in enumerate(sorted(files.items(), key=lambda one: one[1]))
        }
        self._sync_checkpoint(table, number)
        changes.make(add, [], Total(number, query, end, total.rows + count))
        self._tell(Step("archived", table.name, count, len(add), number))
        self._note_losses(table, total.end or {}, end, filed)
        if count:  # a report is a commit too: reporting each commit would never end
            self._report({table.name: changes})
        if self.compacts and self._compacted_on.get(table.name, _today()) < _today():
            self._compact(table)
        self._compacted_on[table.name] = _today()

    def _compact(self, table: Table) -> None:
        _compact(self._spark, self.folder, self._changes[table.name], table, False, self._tell)

    # --- Spark's checkpoint ---

    def _checkpoint(self, table: Table, name: str) -> str:
        return f"{HOME}/checkpoints/{table.name}/{name}"

    def _query(self, table: Table) -> str:
        data = self.folder.read(self._checkpoint(table, "metadata"))
        return "" if data is None else str(msgspec.json.decode(data)["id"])

    def _end_of(self, table: Table, number: int) -> dict[str, Any]:
        """Where a batch ends, which Spark has noted before it began."""
        data = self.folder.read(self._checkpoint(table, f"offsets/{number}"))
        if data is None:
            raise self._foreign(table)
        end: dict[str, Any] = msgspec.json.decode(data.splitlines()[-1])
        return end

    def _require_checkpoint(self, table: Table) -> None:
        """See that the checkpoint is the one that the archive was made with; and take away what a power cut left of files in it.

        Spark does not sync its files. What a batch depends on is synced before the batch counts (`_sync_checkpoint`): an empty file is of something later.
        """
        for kind in ("offsets", "commits"):
            for file in self.folder.files(self._checkpoint(table, kind)):
                if not file.bytes:
                    self.folder.remove(file.name)
        total = self._changes[table.name].total()
        if total.batch >= 0 and self._query(table) != total.query:
            raise self._foreign(table)

    def _sync_checkpoint(self, table: Table, number: int) -> None:
        names = [
            self._checkpoint(table, name)
            for name in ("metadata", f"offsets/{number}", f"commits/{number - 1}")
        ]
        self.folder.sync(name for name in names if self.folder.exists(name))
        self.folder.sync_folders(names)

    def _foreign(self, table: Table) -> CorruptJournal:
        return CorruptJournal(
            f"the checkpoint of {table.name} in {self.folder.path(HOME)} is not the one that this archive was made with: "
            "put it back, or archive into another folder"
        )

    # --- telling the broker ---

    def _report(self, news: Mapping[str, Changes]) -> None:
        if not self.reports:
            return
        with self._lock:
            if "messages" in news:
                end = news["messages"].total().end
                if end is not None:
                    self._positions.report_logs(end["logs"])
            wanted = {table.name for table in self._tables}
            ends = [
                self._changes[name].total().end
                for name in IN_ORDER
                if name != "messages" and (name in wanted or self._changes[name].last() is not None)
            ]
            if not ends:
                self._positions.report_all()
            elif all(end is not None for end in ends):
                self._positions.report_commit(min(int(end["sequence"]) for end in ends if end is not None))


class Positions:
    """What the broker is told: how far the archive is."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self._contents = contents
        self._catalog = Catalog(path)
        self._spool = Spool(Files(), path)
        self._told: dict[tuple[str, str], tuple[int, bool | None]] = {}

    def require_there(self) -> None:
        """Each topic that is named must be there when an archive begins; it may be deleted later."""
        there = {log.name for log in self._catalog.logs.values() if self._holds(log)}
        missing = sorted(set(self._contents.topics or ()) - there)
        if missing:
            raise QueueNotFound(
                f"there is no queue or topic {', '.join(missing)} to archive; there are: {', '.join(self._known()) or 'none'}"
            )

    def _known(self) -> list[str]:
        return sorted(
            log.name
            for log in self._catalog.logs.values()
            if self._contents.namespace in (EVERYWHERE, log.namespace)
        )

    def uncovered(self) -> list[str]:
        """Logs that wait for the archive, and are not in this one."""
        self._catalog.refresh()
        waiting = [log for log in self._catalog.logs.values() if log.until_archived]
        return sorted(log.qualified for log in waiting if not self._holds(log))

    def unread(self) -> tuple[int, int] | None:
        """The commits that cannot be read because the mark is gone."""
        self._catalog.refresh()
        unread = self._catalog.unread
        return None if unread is None else (self._catalog.mark.sequence + 1, unread[0])

    def missing_commits(self, first: int, last: int) -> list[tuple[int, int]]:
        self._catalog.refresh()
        return self._catalog.missing_commits(first, last)

    def given(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[tuple[str, str], Runs]:
        """The offsets between two offsets of a stream that hold messages, unless these were cleaned."""
        catalog = self._catalog
        catalog.refresh()
        found = {}
        for name, (number, _, stop) in end["logs"].items():
            log = catalog.logs.get(number)
            if log is None or log.qualified != name:
                continue  # it was deleted
            known = start.get("logs", {}).get(name)
            first = known[2] if known is not None and known[0] == number else 0
            gone = catalog.gone(number, first, stop)
            found[log.namespace, log.name] = between(first, stop).minus(of_flat(gone.encode()))
        return found

    def _holds(self, log: LogEntry) -> bool:
        namespace, topics = self._contents.namespace, self._contents.topics
        return namespace in (EVERYWHERE, log.namespace) and (topics is None or log.name in topics)

    def report_logs(self, ends: Mapping[str, Sequence[int]]) -> None:
        self._catalog.refresh()
        for name, (number, _, offset) in ends.items():
            log = self._catalog.logs.get(number)
            if log is not None and log.qualified == name:  # it is not gone, nor another one of that name
                self._tell(Report(ARCHIVE, offset, log.namespace, log.name, log.until_archived, log.number))

    def report_commit(self, sequence: int) -> None:
        """Unless other logs wait for another archive, which may not have what happened to their messages."""
        if not self.uncovered():
            self._tell(Report(ARCHIVE, sequence))

    def report_all(self) -> None:
        """Nothing of what happens to messages is archived, so it need not be kept for that."""
        self._catalog.refresh()
        self.report_commit(self._catalog.mark.sequence)

    def _tell(self, report: Report) -> None:
        place, said = (report.namespace, report.log), (report.offset, report.holds)
        if self._told.get(place) != said:
            self._spool.make()
            self._spool.report(report)
            self._told[place] = said


def _said(contents: Contents) -> str:
    what = "everything" if contents.topics is None else ", ".join(contents.topics)
    return what if contents.namespace == EVERYWHERE else f"{what} in namespace {contents.namespace}"
