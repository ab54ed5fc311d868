"""The sink `penstock`: rows of a DataFrame become messages, each batch exactly once.

Theory of operation
-------------------
Tasks stage their rows (`staging`) in the spool of the directory, or have a server do that (`outlet`, `remote`); the driver's commit hands in which files make the batch, and waits until the owner of the directory has published them (`broker.handover`,
`journal.spool`, `broker.intake`). Nothing of a batch is published before all its tasks have ended well.

A streaming query hands its batches in under its query id, which its checkpoint keeps: the owner remembers the last one for ever, so tasks that are run again (their rows in another order or not), a driver that is killed at any
moment, and batches that Spark replays publish nothing twice and lose nothing, however long the driver was away. A new checkpoint is a new query.

A batch write is a job of its own: running it again by hand writes again. With the options `txnAppId` and `txnVersion` it is taken once for each version, which must grow: that is what `foreachBatch` needs::

    def write(df, batch_id):
        df.write.format("penstock").mode("append").option("topic", "invoices").option("txnAppId", "billing").option("txnVersion", batch_id).save(path)

What makes a write the same write is the directory, `namespace`, the option `topic`, `txnAppId` and `txnVersion`: two writes of one batch id to two topics are two writes. Rows that go by a column `topic`, without the option, have no topic in that:
two such writes of one version into a namespace are one, whatever their rows say, and need two `txnAppId`. A version at or below the last one that was taken is dropped without a word, since that is what a repetition looks like.

Who owns the directory: while a broker has it open (`penstock.open`, `penstock serve`), that broker takes the batch in, at once. While nobody does, the driver opens it for the moment. If the owner does not come to it within `commitTimeout`
seconds, the commit ends well all the same, with a warning: the batch is on the disk, in order, and is published when he does. What an owner refuses (a queue is full, a message too large for it) fails the
query with the owner's reason, with nothing of the batch published. The directory must be seen by all executors, under the same path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock import limits
from penstock.errors import InvalidArgument, JournalFailed
from penstock.journal.spool import Staged
from penstock.model.commands import DEFAULT_NAMESPACE
from penstock.names import check_name
from penstock.pipeline.options import Server, local_path, server_of
from penstock.pipeline.outlet import DirectoryOutlet, Outlet
from penstock.pipeline.progress import logs_read
from penstock.pipeline.remote import RemoteOutlet

_INTEGERS: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_TEXT: Final = (t.StringType,)

#: The columns that a DataFrame may have, with their types, as Spark's classes and as people say them.
COLUMNS: Final[dict[str, tuple[tuple[type[t.DataType], ...], str]]] = {
    "payload": ((t.BinaryType, t.StringType), "binary or string"),
    "topic": (_TEXT, "string"),
    "key": (_TEXT, "string"),
    "headers": ((t.MapType,), "map<string,string>"),
    "priority": (_INTEGERS, "an integer type"),
    "deliver_at": ((t.TimestampType,), "timestamp"),
    "ttl": (
        (*_INTEGERS, t.FloatType, t.DoubleType, t.DecimalType, t.DayTimeIntervalType),
        "a number of seconds or a day-time interval",
    ),
    "dedup_id": (_TEXT, "string"),
}

#: Its options as people write them. Spark lower-cases them before we see them.
OPTIONS: Final = ("path", "url", "token", "topic", "namespace", "txnAppId", "txnVersion", "commitTimeout")

#: What Spark hands on of a streaming query's own.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})

COMMIT_TIMEOUT_S: Final = 60.0


class Target(NamedTuple):
    """Where rows go: a directory, or a server."""

    path: str
    server: Server | None
    topic: str | None
    namespace: str
    timeout_s: float
    app: str | None
    version: int

    @property
    def place(self) -> str:
        return self.path if self.server is None else self.server.url

    @property
    def transactions(self) -> str:
        """The producer whose batches the versions of `txnAppId` are. Names have no slash in them, so no two are alike."""
        return f"txn:{self.namespace}/{self.topic or ''}/{self.app}"

    def outlet(self) -> Outlet:
        if self.server is not None:
            return RemoteOutlet(self.server, self.namespace)
        return DirectoryOutlet(self.path, self.namespace)


@dataclass
class Written(WriterCommitMessage):
    """What a task has staged, and for which query and batch, if it was a streaming one."""

    files: list[Staged]
    query: str | None = None
    batch: int | None = None


def writer(
    schema: t.StructType, options: Mapping[str, str], overwrite: bool = False
) -> DataSourceArrowWriter:
    """What `DataSource.writer` gives; raises what is wrong with schema or options."""
    if overwrite:
        raise InvalidArgument(
            'mode("overwrite") cannot be: a log is only appended to; write with mode("append"), and purge the queue first if you mean that'
        )
    return BatchWriter(target(schema, options))


def stream_writer(
    schema: t.StructType, options: Mapping[str, str], overwrite: bool = False
) -> DataSourceStreamArrowWriter:
    """What `DataSource.streamWriter` gives; raises what is wrong with schema or options."""
    if overwrite:
        raise InvalidArgument(
            'outputMode("complete") cannot be: a log is only appended to; write with outputMode("append"), or write each batch yourself in foreachBatch, '
            "with txnAppId and txnVersion"
        )
    found = target(schema, options, running=True)
    if found.app is not None:
        raise InvalidArgument(
            "options txnAppId and txnVersion are for batch writes: a streaming query has its own id and batches; leave them out"
        )
    checkpoint = {name.lower(): value for name, value in options.items()}.get("checkpointlocation")
    writer = StreamWriter(found, frozenset() if checkpoint is None else logs_read(checkpoint, found.place))
    writer.refuse_loop([] if found.topic is None else [found.topic])
    return writer


# --- what is wrong before anything is read ---


def target(schema: t.StructType, options: Mapping[str, str], *, running: bool = False) -> Target:
    """Where rows of this schema go by these options. Spark asks so for each batch of a `running` query: a server may be away meanwhile."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in OPTIONS}
    unknown = sorted(given.keys() - known - _SPARKS)
    if unknown:
        raise InvalidArgument(
            f"the penstock sink has no option {', '.join(map(repr, unknown))}; it has {', '.join(OPTIONS)}"
        )
    server = server_of(given)
    if server is None and not given.get("path"):
        raise InvalidArgument(
            'the penstock sink needs the directory of the queues: save("DIR"), or option("path", "DIR"); or option("url", "http://…") for a server'
        )
    path = "" if server is not None else str(Path(local_path(given["path"])).absolute())
    topic = given.get("topic")
    if topic is not None:
        check_name(topic, kind="topic", reserved_ok=True)
    check_schema(schema, topic)
    app, version = _transaction(given)
    namespace = check_name(given.get("namespace", DEFAULT_NAMESPACE), kind="namespace")
    found = Target(path, server, topic, namespace, _timeout_s(given), app, version)
    found.outlet().check(patient=running)
    return found


def check_schema(schema: t.StructType, topic: str | None) -> None:
    """Raise what is wrong with the columns of a DataFrame."""
    allowed = ", ".join(f"{name} ({said})" for name, (_, said) in COLUMNS.items())
    names = schema.fieldNames()
    for name in names:
        if name not in COLUMNS:
            raise InvalidArgument(
                f"the penstock sink has no column {name!r}: drop or rename it; it has {allowed}"
            )
        if names.count(name) > 1:
            raise InvalidArgument(f"there are two columns {name!r}: drop one of them")
    if "payload" not in names:
        raise InvalidArgument(
            f"there is no column 'payload', which is what is published; the penstock sink has {allowed}"
        )
    for field in schema.fields:
        types, said = COLUMNS[field.name]
        fits = isinstance(field.dataType, types)
        if isinstance(field.dataType, t.MapType):
            fits = isinstance(field.dataType.keyType, t.StringType) and isinstance(
                field.dataType.valueType, t.StringType
            )
        if not fits:
            raise InvalidArgument(
                f"column {field.name!r} is of type {field.dataType.simpleString()}, and must be {said}: cast it"
            )
    if "topic" not in names and topic is None:
        raise InvalidArgument("nobody knows where to: give option topic, or a column 'topic' (string)")


def _transaction(given: Mapping[str, str]) -> tuple[str | None, int]:
    app, version = given.get("txnappid"), given.get("txnversion")
    if (app is None) != (version is None):
        raise InvalidArgument("give both txnAppId and txnVersion, or neither")
    if app is None or version is None:
        return None, 0
    if not app or len(app.encode()) > limits.SPOOL_APP_BYTES_MAX:
        raise InvalidArgument(f"txnAppId has 1 to {limits.SPOOL_APP_BYTES_MAX} bytes")
    number = int(version) if version.isascii() and version.isdigit() else -1
    if not 0 <= number <= limits.OFFSET_MAX:
        raise InvalidArgument(
            f"txnVersion is {version!r}; give a whole number that grows with each write, such as the batch id of foreachBatch"
        )
    return app, number


def _timeout_s(given: Mapping[str, str]) -> float:
    text = given.get("committimeout", str(COMMIT_TIMEOUT_S))
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= limits.DURATION_S_MAX:
        raise InvalidArgument(f"commitTimeout is {text!r}; give seconds, such as 60")
    return found


# --- writing ---


def _files(messages: Sequence[Any]) -> list[Staged]:
    return [file for one in messages if isinstance(one, Written) for file in one.files]


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("penstock")`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        # Drawn once, when the write is planned: tasks and commit know the same one.
        self._outlet = target.outlet()
        self._producer = self._outlet.producer_of_one() if target.app is None else target.transactions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = TaskContext.get()
        where = "the data" if context is None else f"partition {context.partitionId()}"
        return Written(self._outlet.stage(self._target.topic, iterator, where))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = _files(messages)
        if files:  # otherwise there is nothing that could be written twice
            self._outlet.commit(self._producer, self._target.version, files, self._target.timeout_s)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._outlet.abort(self._producer, self._target.version, _files(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock")`. `read` names the logs of the same place that the query reads."""

    def __init__(self, target: Target, read: frozenset[str]) -> None:
        self._target = target
        self._outlet = target.outlet()
        self._read = read

    def refuse_loop(self, topics: Iterable[str]) -> None:
        """Raise if rows go to a log that the query reads: each batch would be the source of the next."""
        for topic in topics:
            if f"{self._target.namespace}/{topic}" in self._read:
                raise InvalidArgument(
                    f"{topic!r} is read by this query: what it writes there would come back to it without end; write to another topic. "
                    "If the query does not read it any more, begin with a new checkpoint"
                )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if context is None or query is None:
            raise JournalFailed(
                "Spark did not say which streaming query this is, so its batches could not be told from others: "
                "nothing was written",
                indeterminate=False,
            )
        batch = context.getLocalProperty("streaming.sql.batchId")
        where = f"partition {context.partitionId()} of batch {batch}"
        files = self._outlet.stage(self._target.topic, iterator, where)
        return Written(files, query, None if batch is None else int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        producer, files = self._producer(messages), _files(messages)
        self.refuse_loop({share.topic for file in files for share in file.shares})  # by the column `topic`
        if producer is not None and files:
            self._outlet.commit(producer, batchId, files, self._target.timeout_s)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        producer = self._producer(messages)
        if producer is not None:
            self._outlet.abort(producer, batchId, _files(messages))

    def _producer(self, messages: Sequence[Any]) -> str | None:
        """The producer that a streaming query is; None if no task has written anything."""
        found = {one.query for one in messages if isinstance(one, Written)}
        if len(found) > 1:
            raise InvalidArgument(f"tasks of several queries are in one batch: {sorted(map(str, found))}")
        return f"query:{self._target.namespace}/{found.pop()}" if found else None
