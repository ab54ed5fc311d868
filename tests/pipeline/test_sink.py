"""The sink: what it refuses before anything is read, what tasks stage, and that each batch is published once."""

from __future__ import annotations

import datetime
import decimal
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody says
from pyspark.sql import types as t

import penstock
from penstock import limits
from penstock.broker import sync
from penstock.broker.handover import hand_over
from penstock.errors import BatchTooLarge, InvalidArgument, InvalidName, MessageTooLarge, PenstockError
from penstock.journal import arrow
from penstock.journal.arrow import values_of
from penstock.journal.columns import Type
from penstock.journal.files import Files
from penstock.journal.kinds import MESSAGES
from penstock.journal.rows import Rows
from penstock.journal.section import Section
from penstock.journal.spool import Manifest, Spool, Staged
from penstock.pipeline import sink
from penstock.pipeline.sink import Written
from penstock.pipeline.staging import Staging
from tests.unit.pipeline.serving import place, reached

FORMAT = "penstock"


both_ways = pytest.mark.parametrize("path", ["directory", "url"], indirect=True)


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with place(tmp_path / "data", getattr(request, "param", "directory")) as found:
        yield str(found)


def left(path: str) -> list[str]:
    """What is in the spool. Files that have no name are on their way through a server."""
    return sorted(os.listdir(Path(path) / "spool"))


# --- what is wrong before anything is read ---


TYPES: dict[str, t.DataType] = {
    "binary": t.BinaryType(),
    "string": t.StringType(),
    "int": t.IntegerType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "map<string,int>": t.MapType(t.StringType(), t.IntegerType()),
}


def schema(text: str) -> t.StructType:
    """A schema as SQL says it; Spark's own parser needs a session."""
    return t.StructType([t.StructField(name, TYPES[kind]) for name, kind in map(str.split, text.split(", "))])


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("key string", "no column 'payload'"),
        ("payload binary, colour string", "no column 'colour': drop or rename it; it has payload \\(binary or string\\), topic"),
        ("payload int", "column 'payload' is of type int, and must be binary or string"),
        ("payload binary, key int", "column 'key' is of type int, and must be string"),
        ("payload binary, headers map<string,int>", "'headers' is of type map<string,int>, and must be map<string,string>"),
        ("payload binary, headers string", "'headers' is of type string"),
        ("payload binary, priority string", "'priority' is of type string, and must be an integer type"),
        ("payload binary, deliver_at timestamp_ntz", "'deliver_at' is of type timestamp_ntz, and must be timestamp"),
        ("payload binary, ttl string", "'ttl' is of type string, and must be a number of seconds or a day-time interval"),
        ("payload binary, dedup_id binary", "'dedup_id' is of type binary"),
        ("payload binary, topic int", "'topic' is of type int"),
    ],
)  # fmt: skip
def test_a_wrong_schema_is_not_noticed(path: str, columns: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        sink.writer(schema(columns), {"path": path, "topic": "a"})


def test_two_columns_of_one_name_are_not_noticed(path: str) -> None:
    with pytest.raises(InvalidArgument, match="two columns 'payload'"):
        sink.writer(schema("payload binary").add("payload", "binary"), {"path": path, "topic": "a"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "give option topic, or a column 'topic'"),
        ({"topic": "no name"}, "the topic 'no name' has ' '"),
        ({"topic": "a", "namespace": ""}, "the namespace is empty"),
        ({"topic": "a", "topik": "b", "colour": "c"}, "no option 'colour', 'topik'; it has path, url, token, topic, namespace, txnAppId"),
        ({"topic": "a", "txnappid": "x"}, "both txnAppId and txnVersion"),
        ({"topic": "a", "txnversion": "1"}, "both txnAppId and txnVersion"),
        ({"topic": "a", "txnappid": "", "txnversion": "1"}, "txnAppId has 1 to"),
        ({"topic": "a", "txnappid": "x", "txnversion": "-1"}, "txnVersion is '-1'; give a whole number"),
        ({"topic": "a", "txnappid": "x", "txnversion": "²"}, "txnVersion is"),
        ({"topic": "a", "committimeout": "soon"}, "commitTimeout is 'soon'; give seconds"),
        ({"topic": "a", "committimeout": "-1"}, "commitTimeout is '-1'"),
        ({"topic": "a", "committimeout": "nan"}, "commitTimeout is 'nan'"),
        ({"topic": "a", "path": ""}, "needs the directory"),
        ({"topic": "a", "path": "s3://bucket/x"}, "is not on a file system of this machine"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_not_noticed(path: str, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(PenstockError, match=complaint):
        sink.writer(schema("payload binary"), {"path": path, **options})
    with pytest.raises(PenstockError, match=complaint):
        sink.stream_writer(schema("payload binary"), {"path": path, **options})


def test_overwriting_and_a_transaction_of_a_stream_are_not_refused(path: str) -> None:
    options = {"path": path, "topic": "a"}
    with pytest.raises(InvalidArgument, match='with mode\\("append"\\)'):
        sink.writer(schema("payload binary"), options, overwrite=True)
    with pytest.raises(InvalidArgument, match='outputMode\\("append"\\), or .* foreachBatch'):
        sink.stream_writer(schema("payload binary"), options, overwrite=True)
    with pytest.raises(InvalidArgument, match="for batch writes"):
        sink.stream_writer(schema("payload binary"), {**options, "txnappid": "x", "txnversion": "1"})
    sink.stream_writer(schema("payload binary"), {**options, "checkpointlocation": "/x", "queryname": "q"})


# --- staging ---


def stage(spool: Spool, *batches: pa.RecordBatch, topic: str | None = "a") -> Staged:
    """Stage record batches as a task does."""
    spool.make()
    staging, stager = Staging(topic, "partition 3"), spool.stage()
    for part in staging.parts(batches):
        stager.add(part)
    file = stager.finish(staging.shares)
    assert file is not None
    return file


def staged(path: str, *batches: pa.RecordBatch, topic: str | None = "a") -> list[tuple[str, dict[str, Any]]]:
    """The messages that record batches become, in order of parts and topics."""
    spool = Spool(Files(), Path(path))
    file = stage(spool, *batches, topic=topic)
    manifest = Manifest("job:1", 0, "default", [file])
    spool.examine(manifest)
    parts = list(spool.parts(manifest, 0))
    assert len(parts) == file.parts
    return [
        (found, dict(row)) for part in parts for found, section in part.sections for row in section.records()
    ]


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = {
        name: found if isinstance(found, pa.Array) else pa.array(found) for name, found in columns.items()
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


MAP = pa.map_(pa.string(), pa.string())


def test_a_column_is_staged_wrongly(path: str) -> None:
    moment = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    found = staged(
        path,
        batch(
            payload=["é", "", "c"],
            key=["k", None, "ü"],
            dedup_id=[None, "d", None],
            priority=pa.array([0, None, 255], pa.int64()),
            headers=pa.array([[("a", "1"), ("b", "")], None, []], MAP),
            deliver_at=pa.array([moment, None, None], pa.timestamp("us", "Europe/Berlin")),
            ttl=pa.array([1.5, None, 1e-9]),
        ),
    )
    us = round(moment.timestamp() * 1e6)
    names = ("payload", "key", "dedup_id", "priority", "headers", "deliver_at", "expires_at")
    assert [tuple(row[name] for name in names) for _, row in found] == [
        ("é".encode(), "k", None, 0, {"a": "1", "b": ""}, us, 1_500_000),
        (b"", None, "d", 100, None, None, None),
        (b"c", "ü", None, 255, {}, None, 1),
    ]
    assert {topic for topic, _ in found} == {"a"}


@pytest.mark.parametrize(
    ("lengths", "us"),
    [
        (pa.array([2, None], pa.int8()), 2_000_000),
        (pa.array([2, None], pa.int64()), 2_000_000),
        (pa.array([2.5, None], pa.float32()), 2_500_000),
        (pa.array([decimal.Decimal("2.25"), None], pa.decimal128(10, 2)), 2_250_000),
        (pa.array([datetime.timedelta(days=1), None], pa.duration("us")), 86_400_000_000),
    ],
)
def test_a_time_to_live_is_staged_wrongly(path: str, lengths: Any, us: int) -> None:
    found = staged(path, batch(payload=[b"a", b"b"], ttl=lengths))
    assert [row["expires_at"] for _, row in found] == [us, None]


def test_topics_are_mixed_up(path: str) -> None:
    topics = ["b", None, "a", "b", None, "c.dlq"]
    found = staged(path, batch(payload=[b"%d" % n for n in range(6)], topic=topics), topic="a")
    assert [(topic, row["payload"]) for topic, row in found] == [
        ("b", b"0"), ("b", b"3"), ("a", b"1"), ("a", b"2"), ("a", b"4"), ("c.dlq", b"5"),
    ]  # fmt: skip
    found = staged(path, batch(payload=[b"x"], topic=pa.array([None], pa.string())), topic="a")
    assert [topic for topic, _ in found] == ["a"]


def test_a_part_is_larger_than_it_may_be_or_rows_are_lost_between_parts(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPOOL_PART_ROWS", 10)
    monkeypatch.setattr(limits, "SPOOL_PART_BYTES", 2000)
    chance = np.random.default_rng(7)
    for _ in range(20):
        sizes = [
            int(size)
            for size in chance.choice([0, 10, 100, 500, 5000], size=60, p=[0.2, 0.5, 0.2, 0.08, 0.02])
        ]
        rows = [b"%05d" % n + bytes(size) for n, size in enumerate(sizes)]
        cuts = sorted(int(cut) for cut in chance.choice(60, size=4, replace=False))
        pieces = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, 60], strict=True)]
        spool = Spool(Files(), Path(path))
        file = stage(spool, *(batch(payload=pa.array(piece, pa.binary())) for piece in pieces))
        found = []
        for part in spool.parts(Manifest("p", 0, "default", [file]), 0):
            ((_, section),) = part.sections
            payloads = [bytes(one) for one in section.values("payload")]
            assert len(payloads) <= 10
            assert len(payloads) == 1 or sum(map(len, payloads)) <= 2000
            found += payloads
        assert found == rows


WRONG: list[tuple[dict[str, Any], str, type[PenstockError]]] = [
    ({"payload": [b"a", None]}, "column 'payload', row 1 of partition 3: a payload is not null", InvalidArgument),
    ({"payload": [b"a", bytes(limits.MESSAGE_BYTES_MAX + 1)]}, "'payload', row 1 of partition 3: .* at most", MessageTooLarge),
    ({"priority": [0, 256]}, "'priority', row 1 of partition 3: a priority is 0 \\(first\\) to 255", InvalidArgument),
    ({"priority": [0, -1]}, "'priority', row 1", InvalidArgument),
    ({"priority": pa.array([0, 2**40])}, "'priority', row 1", InvalidArgument),
    ({"key": ["", "a"]}, "'key', row 0 of partition 3: it is empty; give null", InvalidArgument),
    ({"key": ["a", "é" * 257]}, "'key', row 1 of partition 3: it has at most 512 bytes", InvalidArgument),
    ({"dedup_id": [None, ""]}, "'dedup_id', row 1", InvalidArgument),
    ({"key": pa.array([b"a", b"\xff"]).view(pa.string())}, "'key' of partition 3: .*must be UTF-8", InvalidArgument),
    ({"headers": pa.array([None, [("a", "b"), ("", "x")]], MAP)}, "'headers', row 1 .*empty name", InvalidArgument),
    ({"headers": pa.array([None, [("a", None)]], MAP)}, "'headers', row 1 .*value is null", InvalidArgument),
    ({"headers": pa.array([[], [(f"h{n}", "") for n in range(129)]], MAP)}, "'headers', row 1 .*at most 128 headers", InvalidArgument),
    ({"headers": pa.array([[], [("h", "x" * 65536)]], MAP)}, "'headers', row 1 .*at most 65536 bytes", InvalidArgument),
    ({"deliver_at": pa.array([0, -1], pa.timestamp("us", "UTC"))}, "'deliver_at', row 1 .*between 1970", InvalidArgument),
    ({"ttl": [1, 0]}, "'ttl', row 1 .*more than 0", InvalidArgument),
    ({"ttl": [1.0, float("nan")]}, "'ttl', row 1", InvalidArgument),
    ({"ttl": [1.0, float("inf")]}, "'ttl', row 1", InvalidArgument),
    ({"ttl": pa.array([1, -1], pa.duration("us"))}, "'ttl', row 1", InvalidArgument),
    ({"topic": ["a", "no name"]}, "the topic 'no name' has ' '", InvalidName),
    ({"topic": ["a", ""]}, "the topic is empty", InvalidName),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "complaint", "error"), WRONG)
def test_a_wrong_row_is_staged(
    path: str, columns: dict[str, Any], complaint: str, error: type[PenstockError]
) -> None:
    columns = {"payload": [b"1", b"2"], **columns}
    with pytest.raises(error, match=complaint):
        staged(path, batch(**columns))
    with pytest.raises(error, match=complaint.replace("row 1", "row 4").replace("row 0", "row 3")):
        staged(path, batch(payload=[b"1", b"2", b"3"]), batch(**columns))


def test_a_row_without_a_topic_is_staged(path: str) -> None:
    for topics in (["a", None], pa.array([None, None], pa.string())):
        with pytest.raises(
            InvalidArgument,
            match="'topic', row [01] of partition 3: it is null; fill it, or give option topic",
        ):
            staged(path, batch(payload=[b"1", b"2"], topic=topics), topic=None)


def test_more_topics_than_anybody_means_are_staged(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPOOL_TOPICS_MAX", 3)
    with pytest.raises(BatchTooLarge, match="more than 3 different values"):
        staged(path, batch(payload=[b""] * 4, topic=["a", "b", "c", "d"]))


@pytest.mark.parametrize("start", [0, 3])
def test_an_array_that_is_part_of_another_is_laid_out_wrongly(start: int) -> None:
    rows = 6
    given: list[tuple[str, Type, list[Any]]] = [
        ("deliver_at", Type.I64, [1, None, 3, 4, None, 6, 7, 8, 9]),
        ("priority", Type.I16, [5] * 9),
        ("key", Type.UTF8, ["a", None, "", "ü", None, "f", "gg", "h", None]),
        ("properties", Type.BINARY, [b"a", b"b", b"", None, b"e", b"ff", b"g", None, b"i"]),
        ("headers", Type.MAP, [[("a", "b")], None, [], [("c", "d"), ("e", "ü")], None, [("f", "")], [], [("g", "h")], None]),
    ]  # fmt: skip
    for name, kind, values in given:
        part: Any = pa.array(values, arrow.TYPES[kind]).slice(start, rows)
        columns: dict[str, Any] = {
            "offset": range(rows),
            "id": range(rows),
            "timestamp": 0,
            "payload": [b""] * rows,
        }
        section = Rows(MESSAGES, 1, rows, {**columns, name: values_of(part, kind)})
        section.prepare(alone=True)
        parts, _ = section.encoded(None)
        read = Section(memoryview(b"".join(parts)))
        column = read.column(name)
        assert column is not None
        assert arrow.array(column, kind, rows).equals(part), kind
    assert values_of(pa.nulls(3, pa.string()), Type.UTF8) is None


# --- committing, without Spark ---


@both_ways
def test_a_commit_message_does_not_travel(path: str) -> None:
    writer = sink.writer(schema("payload binary"), {**reached(path), "topic": "a"})
    message = writer.write(iter([batch(payload=[b"1"])]))
    copy = pickle.loads(pickle.dumps(message))
    assert copy == message
    again = pickle.loads(pickle.dumps(writer))
    again.commit([copy, None])
    with penstock.open(path) as broker:
        assert [one.payload for one in broker.queue("a").peek(9)] == [b"1"]


@both_ways
def test_an_aborted_write_leaves_its_files(path: str) -> None:
    writer = sink.writer(schema("payload binary"), {**reached(path), "topic": "a"})
    message = writer.write(iter([batch(payload=[b"1"])]))
    with pytest.raises(InvalidArgument):
        writer.write(iter([batch(payload=[b"1"]), batch(payload=pa.array([None], pa.binary()))]))
    assert len([name for name in left(path) if name.endswith(".staged")]) == 1
    writer.abort([message, None])
    assert left(path) == []


@both_ways
def test_an_abort_after_a_failed_commit_removes_what_was_handed_in(path: str) -> None:
    options = {**reached(path), "topic": "a", "txnappid": "x", "txnversion": "1", "committimeout": "0"}
    writer = sink.writer(schema("payload binary"), options)
    message = writer.write(iter([batch(payload=[b"1"])]))
    assert isinstance(message, Written)
    assert len(message.files) == 1
    with penstock.open(path) as broker:
        reached(path)
        intake: Any = broker._port.monitor.intake  # type: ignore[attr-defined]
        with intake._one:  # the owner is busy
            writer.commit([message])
            writer.abort([message])
            later = writer.write(iter([batch(payload=[b"1"])]))
            writer.abort([later])
    with penstock.open(path) as broker:
        assert [one.payload for one in broker.queue("a").peek(9)] == [b"1"]
    assert left(path) == []


@both_ways
def test_a_version_for_one_topic_is_taken_for_another_ones(path: str) -> None:
    def write(payload: bytes, schema_: str = "payload binary", **options: str) -> None:
        given = {**reached(path), "txnappid": "app/x", "txnversion": "7", **options}
        writer = sink.writer(schema(schema_), given)
        columns: dict[str, Any] = {"payload": [payload]}
        if "topic" in schema_:
            columns["topic"] = ["a"]
        writer.commit([writer.write(iter([batch(**columns)]))])

    for _ in range(2):  # the second time is a repetition of each
        write(b"a", topic="a")
        write(b"b", topic="b")
        write(b"elsewhere", topic="a", namespace="other")
        write(b"another", topic="a", txnappid="app")
        write(b"by column", "payload binary, topic string")
        write(b"the same by column", "payload binary, topic string")
    with penstock.open(path) as broker:
        assert [one.payload for one in broker.queue("a").peek(9)] == [b"a", b"another", b"by column"]
        assert [one.payload for one in broker.queue("b").peek(9)] == [b"b"]
        assert [one.payload for one in broker.namespace("other").queue("a").peek(9)] == [b"elsewhere"]


def test_the_longest_names_make_a_producer_too_long(path: str) -> None:
    options = {
        "path": path,
        "topic": "t" * (limits.NAME_CHARS_MAX - 4) + ".dlq",
        "namespace": "n" * (limits.NAME_CHARS_MAX - 4),
        "txnappid": "x" * limits.SPOOL_APP_BYTES_MAX,
        "txnversion": "1",
    }
    producer = sink.target(schema("payload binary"), options).transactions
    assert len(producer.encode()) <= limits.SPOOL_PRODUCER_BYTES_MAX


def test_a_directory_that_the_driver_does_not_see_is_not_noticed(path: str) -> None:
    writer = sink.writer(schema("payload binary"), {**reached(path), "topic": "a"})
    message = writer.write(iter([batch(payload=[b"1"])]))
    for file in (Path(path) / "spool").iterdir():
        file.unlink()
    with pytest.raises(PenstockError, match="must be shared by all executors"):
        writer.commit([message])


# --- with Spark ---


def payloads(path: str, name: str = "a", namespace: str = "default") -> list[bytes]:
    with penstock.open(path) as broker:
        found: sync.Queue = broker.namespace(namespace).queue(name)
        return [one.payload for one in found.reader("test").read_many(100_000)]


def rows(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("payload"))


@both_ways
def test_a_batch_write_loses_or_doubles_a_row(spark: SparkSession, path: str) -> None:
    rows(spark, 50_000, 3).write.format(FORMAT).mode("append").option("topic", "a").options(
        **reached(path)
    ).save()
    assert payloads(path) == [b"%d" % n for n in range(50_000)]
    rows(spark, 10).write.format(FORMAT).mode("append").option("topic", "a").options(**reached(path)).save()
    assert len(payloads(path)) == 50_010, "a rerun by hand is a new write"
    assert left(path) == []


@both_ways
def test_all_columns_do_not_arrive(spark: SparkSession, path: str) -> None:
    df = spark.sql(
        """select 'p' as payload, 'b' as topic, 'k' as key, map('h', 'v') as headers, 7 as priority, 'd' as dedup_id,
                  timestamp'2100-01-01 00:00:00' as deliver_at, interval '30000' day as ttl
           union all select 'q', null, null, null, null, null, null, null"""
    )
    with penstock.open(path) as broker:
        df.write.format(FORMAT).mode("append").option("topic", "a").option("namespace", "team").options(
            **reached(path)
        ).save()
        team = broker.namespace("team")
        (found,) = team.queue("b").reader("r").read_many(9)
        assert (found.payload, found.key, found.headers, found.priority, found.dedup_id) == (
            b"p",
            "k",
            {"h": "v"},
            7,
            "d",
        )
        assert found.deliver_at == datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
        assert found.timestamp is not None
        assert found.expires_at == found.timestamp + datetime.timedelta(days=30_000)
        (plain,) = team.queue("a").reader("r").read_many(9)
        assert (plain.payload, plain.key, plain.headers, plain.priority, plain.deliver_at) == (
            b"q",
            None,
            {},
            100,
            None,
        )
        assert broker.list_queues() == []


def test_spark_does_not_tell_what_is_wrong(spark: SparkSession, path: str) -> None:
    df = rows(spark, 3)
    write = df.withColumn("colour", F.lit("red")).write.format(FORMAT).mode("append").option("topic", "a")
    with pytest.raises(AnalysisException, match="no column 'colour'"):
        write.options(**reached(path)).save()
    with pytest.raises(AnalysisException, match="a log is only appended to"):
        df.write.format(FORMAT).mode("overwrite").option("topic", "a").options(**reached(path)).save()
    with pytest.raises(PySparkException, match="column 'priority', row 0 of partition"):
        df.withColumn("priority", F.lit(300)).write.format(FORMAT).mode("append").option(
            "topic", "a"
        ).options(**reached(path)).save()
    with penstock.open(path) as broker:
        broker.queue("a", max_depth=2)
        with pytest.raises(PySparkException, match="more of 3 bytes are over its limit"):
            df.write.format(FORMAT).mode("append").option("topic", "a").options(**reached(path)).save()
        assert broker.queue("a").depth() == 0
    assert left(path) == []


@both_ways
def test_a_version_is_written_twice(spark: SparkSession, path: str) -> None:
    for version, count in ((3, 10), (3, 10), (2, 10), (4, 5)):
        df = rows(spark, count, 1 + version % 2)
        options = {"topic": "a", "txnAppId": "billing", "txnVersion": str(version)}
        df.write.format(FORMAT).mode("append").options(**options).options(**reached(path)).save()
    assert len(payloads(path)) == 15


@both_ways
def test_a_task_that_is_run_again_doubles_rows(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """After a shuffle, with its rows in another order; and its first attempt fails after it has staged much."""
    marker = tmp_path / "failed"

    def fail_once(payload: str) -> str:
        if payload == "10000" and not marker.exists():
            marker.touch()
            raise RuntimeError("the task fails in the middle")
        return payload

    anyhow = F.udf(lambda _: random.random(), "double", useArrow=False).asNondeterministic()
    shuffled = (
        rows(spark, 20_000)
        .repartition(2)
        .withColumn("place", anyhow("payload"))
        .sortWithinPartitions("place")
    )
    df = shuffled.select(F.udf(fail_once, "string", useArrow=False)("payload").alias("payload"))
    df.write.format(FORMAT).mode("append").option("topic", "a").options(**reached(path)).save()
    assert marker.exists()
    assert sorted(map(int, payloads(path))) == list(range(20_000))
    there = [name for name in left(path) if not name.endswith(".tmp")]
    assert there == [], "the attempt that failed may leave a draft"


def run_to_the_end(spark: SparkSession, source: Path, path: str, checkpoint: Path) -> None:
    query = (
        spark.readStream.schema("payload string")
        .text(str(source))
        .writeStream.format(FORMAT)
        .option("topic", "a")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .options(**reached(path))
        .start()
    )
    assert query.awaitTermination(100)


@both_ways
def test_a_stream_doubles_what_it_replays(spark: SparkSession, path: str, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text("\n".join(f"{number}-{n}" for n in range(100)))
        run_to_the_end(spark, source, path, checkpoint)
    expected = sorted(b"%d-%d" % (number, n) for number in range(3) for n in range(100))
    assert sorted(payloads(path)) == expected
    # The driver died before it noted that batch 2 was written: Spark runs it again.
    for commit in (checkpoint / "commits" / "2", checkpoint / "commits" / ".2.crc"):
        commit.unlink()
    run_to_the_end(spark, source, path, checkpoint)
    assert sorted(payloads(path)) == expected
    with penstock.open(path):  # and once more, with an owner who is there
        for commit in (checkpoint / "commits" / "2", checkpoint / "commits" / ".2.crc"):
            commit.unlink()
        run_to_the_end(spark, source, path, checkpoint)
    assert sorted(payloads(path)) == expected
    assert left(path) == []
    run_to_the_end(spark, source, path, tmp_path / "another")
    assert len(payloads(path)) == 600, "a new checkpoint is a new query"


@both_ways
def test_a_stream_into_a_log_that_it_reads_is_refused(spark: SparkSession, path: str, tmp_path: Path) -> None:
    with penstock.open(path) as broker:
        broker.queue("a").publish(b"1")
        broker.queue("b")
    read = spark.readStream.format(FORMAT).option("topic", "a").option("startingOffsets", "earliest")
    found = read.options(**reached(path)).load()
    by_column = found.select("payload", "topic")
    for rows_, option in ((found.select("payload"), {"topic": "a"}), (by_column, {})):
        writer = rows_.writeStream.format(FORMAT).options(**option).options(**reached(path))
        checkpoint = str(tmp_path / f"checkpoint{len(option)}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        with pytest.raises(PySparkException, match="'a' is read by this query: .* without end"):
            query.awaitTermination(100)
    assert payloads(path) == [b"1"]
    assert left(path) == []
    writer = found.select("payload").writeStream.format(FORMAT).option("topic", "b").options(**reached(path))
    writer = writer.option("checkpointLocation", str(tmp_path / "other")).trigger(availableNow=True)
    assert writer.start().awaitTermination(100)
    assert payloads(path, "b") == [b"1"]


def test_a_batch_that_was_half_taken_in_is_mixed_with_its_repetition(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    (source / "0.txt").write_text("first")
    run_to_the_end(spark, source, path, checkpoint)
    with penstock.open(path) as broker:
        (producer,) = broker._port.monitor.engine.producers  # type: ignore[attr-defined]
    # The driver had handed in batch 1, with its rows in some order, and died.
    (source / "1.txt").write_text("\n".join(str(n) for n in range(10)))
    spool = Spool(Files(), Path(path))
    file = stage(spool, batch(payload=[str(n) for n in reversed(range(10))]))
    spool.hand_in(Manifest(producer, 1, "default", [file]))
    run_to_the_end(spark, source, path, checkpoint)
    assert payloads(path) == [b"first", *(b"%d" % n for n in reversed(range(10)))]


def test_the_hand_over_of_a_stream_goes_another_way_than_spark(path: str) -> None:
    """Two writers of one query, as Spark makes them: one for the tasks, one for the commit."""
    spool = Spool(Files(), Path(path))
    first = stage(spool, batch(payload=[b"1"]))
    message = Written([first], "q", 0)
    writer = sink.stream_writer(schema("payload binary"), {**reached(path), "topic": "a"})
    writer.commit([message, Written([], "q", 0)], 0)
    writer.commit([Written([], "q", 1)], 1)
    writer.commit([], 2)
    writer.abort([None], 3)
    with pytest.raises(InvalidArgument, match="several queries"):
        writer.commit([Written([], "q", 1), Written([], "p", 1)], 1)
    assert payloads(path) == [b"1"]
    file = stage(spool, batch(payload=[b"1"]))
    assert hand_over(Path(path), Manifest("query:default/q", 0, "default", [file]), 60)
    assert payloads(path) == [b"1"]
