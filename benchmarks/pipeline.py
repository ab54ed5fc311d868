"""How fast is Spark on a broker's directory, beside Spark on Parquet with the same rows?

Messages have 100 bytes and come in batches of 1000. Both sides run in one session, on this machine, with all its cores, and take turns. What is read was written just before, so it
comes from the kernel's memory: reading is measured, not the disk. Rounds are few, because each takes seconds.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition

import penstock
from benchmarks.answer import Answer
from benchmarks.rounds import contest, rate
from benchmarks.session import Question, Session, main
from penstock import pipeline
from penstock.pipeline import options
from penstock.pipeline.archive import archive
from penstock.pipeline.audit import audit_directory
from penstock.pipeline.source import BatchReader, PenstockDataSource

BATCH: Final = 1000
PAYLOAD_BYTES: Final = 100
MESSAGES: Final = 5_000_000

#: Seconds-long rounds: three of them, after one to warm up.
ROUNDS: Final = 3

#: Micro-batches that are timed, after some to warm up.
BATCHES: Final = 30
WARM_UP: Final = 10


def started() -> SparkSession:
    settings: dict[str, Any] = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": 4}
    return pipeline.session("benchmarks", **settings)


def payloads(batch: int) -> list[bytes]:
    start = batch * BATCH
    return [b"%-*d" % (PAYLOAD_BYTES, number) for number in range(start, start + BATCH)]


def fill(path: Path, count: int, *, settle: bool = False) -> None:
    """A directory with so many messages, which stay even when they are settled."""
    with penstock.open(path, durability="os") as broker:
        orders = broker.queue("orders", retain_seconds=30 * 86_400)
        for batch in range(count // BATCH):
            orders.publish_many(payloads(batch))
            if settle:
                orders.ack_many(orders.receive_many(BATCH))


def table(spark: SparkSession, path: Path, **given: Any) -> DataFrame:
    return spark.read.format("penstock").options(**given).load(str(path))


def read_through(frame: DataFrame) -> None:
    """Have every row made, and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


# --- reading ---


class Tuples(PenstockDataSource):
    """The same source, a Python tuple for each row."""

    @classmethod
    def name(cls) -> str:
        return "penstock_tuples"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        return TupleReader(options.parse(self._given).for_batch())


class TupleReader(BatchReader):
    """Reads rows one by one."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class Ready(PenstockDataSource):
    """What Spark takes of any source in Python: a record batch of the same columns that is ready, given again and again."""

    @classmethod
    def name(cls) -> str:
        return "penstock_ready"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        return ReadyReader(options.parse(self._given).for_batch())


class ReadyReader(BatchReader):
    """Reads one batch."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        rows = sum(stretch.stop - stretch.first for stretch in partition.value.stretches) * BATCH
        ready = next(super().read(partition))
        while rows > 0:
            yield ready
            rows -= ready.num_rows


def reading(session: Session) -> Iterator[Answer]:
    """Five million messages into a sink that does nothing."""
    count, spark = session.work(MESSAGES), started()
    data, rows = session.place("data"), session.place("rows") / "parquet"
    fill(data, count)
    table(spark, data).write.parquet(str(rows))
    spark.dataSource.register(Tuples)
    spark.dataSource.register(Ready)
    few = str({"orders": count // 10}).replace("'", '"')
    played = contest(
        [
            lambda: rate(lambda: read_through(table(spark, data)), count),
            lambda: rate(lambda: read_through(spark.read.parquet(str(rows))), count),
            lambda: rate(
                lambda: read_through(
                    spark.read.format("penstock_tuples").option("endingOffsets", few).load(str(data))
                ),
                count // 10,
            ),
            lambda: rate(lambda: read_through(table(spark, data, columns="offset,payload")), count),
            lambda: rate(lambda: read_through(spark.read.format("penstock_ready").load(str(data))), count),
        ],
        ROUNDS,
    )
    yield Answer(
        name="read", question=f"{count:,} messages into a no-op sink", unit="messages/s", ours=played.ours,
        baseline=played.baseline(1), against="Spark reading the same rows from Parquet", ratio=played.ratio(1), target=0.8, how=played.how,
    )  # fmt: skip
    yield Answer(
        name="read-tuples", question="the same, beside the source yielding tuples", unit="messages/s", ours=played.ours,
        baseline=played.baseline(2), against="a tuple for each row, a tenth of the messages", ratio=played.ratio(2), target=4, how=played.how,
    )  # fmt: skip
    yield Answer(
        name="read-ready", question="… beside a source that only hands over, again and again, one batch that is ready", unit="messages/s", ours=played.ours,
        baseline=played.baseline(4), against="as many rows of one batch: nothing is read", ratio=played.ratio(4), how=played.how,
    )  # fmt: skip
    yield Answer(
        name="read-columns", question="two columns of it (columns=offset,payload)", unit="messages/s", ours=played.baseline(3),
        judged="ours", how=played.how,
    )  # fmt: skip


# --- archiving ---


def archiving(session: Session) -> Iterator[Answer]:
    """Five million messages to Parquet by topic and day."""
    count, spark = session.work(MESSAGES), started()
    data, rows, out = session.place("data"), session.place("rows") / "parquet", session.place("out")
    fill(data, count)
    table(spark, data, includeHeaders=True).write.parquet(str(rows))

    def ours() -> None:
        shutil.rmtree(out / "archive", ignore_errors=True)
        archive(spark, data, out / "archive", tables=("messages",))

    def theirs() -> None:
        shutil.rmtree(out / "copy", ignore_errors=True)
        days = spark.read.parquet(str(rows)).selectExpr("*", "to_date(timestamp) as day")
        days.write.partitionBy("namespace", "topic", "day").parquet(str(out / "copy"))

    played = contest([lambda: rate(ours, count), lambda: rate(theirs, count)], ROUNDS)
    yield Answer(
        name="archive", question=f"archiving {count:,} messages to Parquet", unit="messages/s", ours=played.ours,
        baseline=played.baseline(), against="Parquet to Parquet, partitioned the same way", ratio=played.ratio(), target=0.8, how=played.how,
    )  # fmt: skip


# --- the sink ---


def writing(session: Session) -> Iterator[Answer]:
    """Messages out of Spark into a queue, each durable."""
    count, spark = session.work(1_000_000), started()
    rows = session.place("rows") / "parquet"
    made = spark.range(count).selectExpr(
        f"cast(rpad(cast(id as string), {PAYLOAD_BYTES}, ' ') as binary) as payload"
    )
    made.write.parquet(str(rows))
    places = (session.place(f"into-{number}") for number in range(1000))

    def ours() -> None:
        spark.read.parquet(str(rows)).write.format("penstock").mode("append").option("topic", "orders").save(
            str(next(places))
        )

    with penstock.open(session.place("held")) as broker:
        held = broker._port.monitor.journal.directory.path  # type: ignore[attr-defined]

        def through_the_owner() -> None:
            spark.read.parquet(str(rows)).write.format("penstock").mode("append").option(
                "topic", "orders"
            ).save(str(held))

        played = contest([lambda: rate(ours, count), lambda: rate(through_the_owner, count)], ROUNDS)
    yield Answer(
        name="sink", question=f"{count:,} messages from Parquet into a queue", unit="messages/s", ours=played.ours, judged="ours",
        target=100_000, how=f"{played.how}; {played.baseline():,.0f}/s where a broker of another process holds the directory",
    )  # fmt: skip


# --- micro-batches ---


def micro_batches(session: Session) -> Iterator[Answer]:
    """What a warm micro-batch takes."""
    spark = started()
    data = session.place("data")
    spark.conf.set("spark.sql.streaming.metricsEnabled", "false")
    with penstock.open(data) as broker:
        orders = broker.queue("orders", retain_seconds=86_400)
        for batch in range(WARM_UP + BATCHES):
            orders.publish_many(payloads(batch))
        ours = (
            spark.readStream.format("penstock")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", BATCH)
        )
        theirs = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", BATCH)
            .option("numPartitions", 1)
        )
        own, other = [
            _durations(frame, session.place(name) / "checkpoint")
            for name, frame in (("ours", ours.load(str(data))), ("theirs", theirs.load()))
        ]
    yield Answer(
        name="micro-batch", question="a warm micro-batch of 1000 messages, beyond Spark's own", unit="s", ours=max(own - other, 0.0),
        judged="ours", wanted="at most", target=0.1,
        how=f"median of {BATCHES} batches: {own:.3f} s, and {other:.3f} s with Spark's own source of numbers (rate-micro-batch)",
    )  # fmt: skip


def _durations(frame: DataFrame, checkpoint: Path) -> float:
    """The median seconds of a query's batches."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    seen: dict[int, float] = {}
    while len(seen) < WARM_UP + BATCHES:
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                seen[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
        time.sleep(0.05)
    query.stop()
    return median(list(seen.values())[WARM_UP : WARM_UP + BATCHES])


# --- the audit ---


def auditing(session: Session) -> Iterator[Answer]:
    """Five million messages and their settlements."""
    count, spark = session.work(MESSAGES), started()
    data = session.place("data")
    fill(data, count, settle=True)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        found = audit_directory(spark, data)
        seconds.append(time.perf_counter() - begun)
        if not found.ok:
            raise AssertionError(found)
    yield Answer(
        name="audit", question=f"auditing {count:,} messages and their settlements", unit="s", ours=median(seconds), judged="ours",
        wanted="at most", target=60, how=f"median of {ROUNDS} runs",
    )  # fmt: skip


QUESTIONS: Final[dict[str, Question]] = {
    "read": reading,
    "archive": archiving,
    "sink": writing,
    "micro-batch": micro_batches,
    "audit": auditing,
}

if __name__ == "__main__":
    sys.exit(main("pipeline", "Penstock on Spark, 100-byte messages", QUESTIONS))
