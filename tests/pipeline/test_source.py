"""The source in a real Spark session; that it reads what it should is tried without one in `tests/unit/pipeline`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock
from penstock.pipeline.progress import Place, Reporter
from tests.pipeline.publisher import BATCH
from tests.unit.pipeline.serving import reached

both_ways = pytest.mark.parametrize("data", ["directory", "url"], indirect=True)


def read(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("penstock").options(**reached(path), **options).load()


def stream(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("penstock").options(**reached(path), **options).load()


def drained(frame: DataFrame, to: Path) -> None:
    """Append what is there now to Parquet, going on from the last time."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(to / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(to / "rows"))
    query.awaitTermination()
    assert query.exception() is None


@both_ways
def test_tables_are_read_filtered_and_joined(spark: SparkSession, data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        ids = orders.publish_many([b"%d" % number for number in range(500)])
        orders.publish(b"last", headers={"type": "end"}, key="k")
        orders.ack_many(orders.receive_many(200))
        messages = read(spark, data, includeHeaders=True)
        assert messages.count() == 501
        assert [bytes(row.payload) for row in messages.filter("headers['type'] = 'end'").collect()] == [
            b"last"
        ]
        some = messages.filter(
            (f.col("topic") == "orders") & (f.col("offset") >= 100) & (f.col("offset") < 300)
        )
        assert sorted(row.id for row in some.select("id").collect()) == list(ids[100:300])
        settlements = read(spark, data, table="settlements")
        pending = messages.join(settlements, "id", "left_anti")
        assert pending.count() == 301


def test_filters_are_pushed_into_the_source_if_that_is_asked_for(spark: SparkSession, data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"%d" % number for number in range(500)])
        broker.queue("others").publish_many([b"%d" % number for number in range(50)])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        chosen = read(spark, data, pushFilters=True).filter("topic = 'orders' and offset >= 490")
        assert chosen.count() == 10
        plan = chosen._jdf.queryExecution().executedPlan().toString()
        assert "490" not in plan.split("BatchScan")[0], plan  # it has left Spark's plan
        assert (
            read(spark, data, pushFilters=True).filter("offset < 5 and timestamp < '2000-01-01'").count() == 0
        )
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_that_is_used_twice_is_filtered_by_each_use_alone(spark: SparkSession, data: Path) -> None:
    """Spark 4.3 would mix them up if the source took filters over: see `FilteringReader`."""
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"%d" % number for number in range(100)])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        messages = read(spark, data)
        first, last = messages.filter("offset < 10"), messages.filter("offset >= 90")
        assert first.count() == 10
        assert messages.count() == 100
        assert sorted(row.offset for row in first.union(last).collect()) == [*range(10), *range(90, 100)]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_what_is_wrong_is_said_when_a_table_is_loaded(spark: SparkSession, data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"a")
    for options, said in (
        ({"startingOffset": "earliest"}, "has no option 'startingoffset'; it has path, url, token, table"),
        ({"topic": "order"}, "there is no queue or topic order in .* there are: orders"),
        ({"topic": "a", "topicPattern": "b"}, "contradict each other"),
        ({"columns": "body"}, "messages have the columns"),
    ):
        with pytest.raises(AnalysisException, match=said):
            read(spark, data, **options)
        with pytest.raises(AnalysisException, match=said):
            stream(spark, data, **options)
    with pytest.raises(AnalysisException, match="is no directory"):
        read(spark, data / "nowhere")


@both_ways
def test_a_stream_goes_on_from_its_checkpoint_each_message_once(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        for life in range(2):
            orders.publish_many([b"%d-%d" % (life, row) for row in range(250)])
            drained(stream(spark, data, startingOffsets="earliest", maxOffsetsPerTrigger=100), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.offset for row in rows) == list(range(500))
    assert {bytes(row.payload) for row in rows} == {
        b"%d-%d" % (life, row) for life in range(2) for row in range(250)
    }


def test_a_stream_reads_each_message_once_while_a_broker_rotates_cleans_and_crashes(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders", retain_seconds=86_400)
    said: list[str] = []
    for life in range(3):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.publisher", str(data), str(life)],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            said += [child.stdout.readline().strip() for _ in range(20)]
            drained(
                stream(spark, data, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger=3000),
                tmp_path,
            )
            child.kill()
            said += [line.strip() for line in child.stdout if line.endswith("\n")]
    drained(stream(spark, data, topic="orders", startingOffsets="earliest"), tmp_path)
    with penstock.open(data):
        drained(stream(spark, data, topic="orders", startingOffsets="earliest"), tmp_path)
    found = Counter(
        bytes(row.payload).decode() for row in spark.read.parquet(str(tmp_path / "rows")).collect()
    )
    assert set(found.values()) == {1}
    wanted = {f"{batch}-{row}" for batch in said for row in range(BATCH)}
    assert wanted <= set(found)
    assert len(list(data.glob("*.segment"))) > 3


@both_ways
def test_a_querys_progress_appears_in_the_broker(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    reporter: Reporter = spark._penstock_reporter  # type: ignore[attr-defined]
    report = reporter.report

    def heard(place: Place, query: str) -> None:
        report(place, query)
        told.set()

    monkeypatch.setattr(reporter, "report", heard)
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a"] * 10)
        frame = stream(spark, data, startingOffsets="earliest", reader="lake")
        drained(frame, tmp_path)
        assert told.wait(60)
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        assert orders.stats().readers == {"lake": 0}
        orders.publish(b"b")
        assert orders.stats().readers == {"lake": 1}
