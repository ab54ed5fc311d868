"""A real Spark session and a real server: what is said when something is wrong, what is seen of a token, and a server that is killed under a query.

That the source and the sink do through a server what they do with a directory is tried in `test_source` and `test_sink`, which run both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.clock import SystemClock
from tests.server.process import Running
from tests.server.process import penstock as command
from tests.unit.server import specimen

COUNT = 2000


def token() -> str:
    return specimen.token({"sub": "spark", "exp": SystemClock().now_us() // 1_000_000 + 3600})


def serve(path: Path, port: str = "0") -> Running:
    return command(
        "serve", str(path), "--port", port, "--log-encoding", "console", PENSTOCK_JWT_SECRET=specimen.SECRET
    )


@pytest.fixture
def server(data: Path) -> Iterator[Running]:
    with penstock.open(data) as broker:
        broker.queue("in").publish_many([b"%d" % number for number in range(COUNT)])
    with serve(data) as found:
        yield found


def source(spark: SparkSession, url: str, shown: str, **more: Any) -> Any:
    given = {"url": url, "token": shown, "topic": "in", "startingOffsets": "earliest", **more}
    return spark.readStream.format("penstock").options(**given).load()


def into(frame: Any, url: str, shown: str, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    rows = frame.select("payload", "key").writeStream.format("penstock")
    given = {"url": url, "token": shown, "topic": "out", "checkpointLocation": str(checkpoint)}
    query: StreamingQuery = rows.options(**given).trigger(**trigger).start()
    return query


def reach(query: StreamingQuery, batch: int) -> None:
    """Wait until a batch is done."""
    while query.lastProgress is None or query.lastProgress.batchId < batch:
        assert not query.awaitTermination(0.1), query.exception()  # type: ignore[arg-type]


def test_a_server_that_is_killed_under_a_query_loses_or_doubles_messages(
    spark: SparkSession, server: Running, data: Path, tmp_path: Path
) -> None:
    shown = token()
    url, (_, port) = server.url, server.address
    frame = source(spark, url, shown, maxOffsetsPerTrigger=COUNT // 12)
    query = into(frame, url, shown, tmp_path / "checkpoint", processingTime="0 seconds")
    try:
        for life in range(2):
            reach(query, 2 + 3 * life)
            server.process.kill()  # in the middle of whatever batch there is
            server.end()
            server.process.stdout.close()  # type: ignore[union-attr]
            server = serve(data, str(port))
            assert server.url == url
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
        server.__exit__(None, None, None)
    with penstock.open(data) as broker:
        found = [one.payload for one in broker.queue("out").reader("test").read_many(2 * COUNT)]
    assert sorted(found, key=int) == [b"%d" % number for number in range(COUNT)]
    left = [
        name.name
        for name in (data / "spool").iterdir()
        if not name.name.endswith((".staged", ".note", ".tmp"))
    ]
    assert left == [], "of a request that was cut, what was staged may stay for a day"


def test_a_token_is_seen_in_a_plan_or_a_checkpoint(
    spark: SparkSession, server: Running, tmp_path: Path
) -> None:
    shown = token()
    url = server.url
    table = spark.read.format("penstock").options(url=url, token=shown).load()
    plan = table._jdf.queryExecution().toString()
    assert table.count() == COUNT
    frame = source(spark, url, shown)
    query = into(frame, url, shown, tmp_path / "checkpoint", availableNow=True)
    assert query.awaitTermination(100)
    told = [plan, frame._jdf.queryExecution().toString(), str(query.lastProgress)]
    kept = [file.read_bytes() for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    assert len(kept) > 3
    signature = shown.rpartition(".")[2]
    assert not any(signature in text for text in told)
    assert not any(signature.encode() in text for text in kept)


def test_what_is_wrong_with_a_server_is_said_when_a_table_is_loaded(
    spark: SparkSession, server: Running
) -> None:
    url = server.url
    wrong = specimen.token(secret=specimen.OTHER_SECRET)
    for given, said in (
        ({"url": url, "token": wrong}, "the token was not accepted"),
        ({"url": "http://127.0.0.1:1"}, "http://127.0.0.1:1 does not answer"),
        ({"url": url, "token": token(), "path": "data"}, "path and url contradict each other"),
    ):
        with pytest.raises(AnalysisException, match=said) as refused:
            spark.read.format("penstock").options(**given).load()
        assert wrong not in str(refused.value)
    rows = spark.range(3).selectExpr("cast(id as string) as payload").write.format("penstock").mode("append")
    with pytest.raises(AnalysisException, match="the token was not accepted"):
        rows.options(url=url, token=wrong, topic="out").save()
