"""`report`: what queues and topics did, per group and minute, as Parquet tables and one page to look at.

Theory of operation
-------------------
Six small tables are made of the three large ones; each is written as Parquet below the report's directory and read again for the page (`page`), so that
what one sees is what was written.

===========  =====================================================================================================
table        a row for each
===========  =====================================================================================================
published    log and minute: messages
activity     log, group and minute: deliveries, redeliveries, and settlements by outcome
latency      log, group and minute: from publishing to the first delivery, and to the acknowledgement, in milliseconds
groups       log and group: the same over the whole time
dead         log, group, reason and signature of the error: how often, when first and last, and an example
lag          log, group and minute: messages not settled at its end
keys         log and key, for the biggest: messages
===========  =====================================================================================================

A message that was delayed counts as published when it was due: the wait that was asked for is not slowness. Errors that differ only in numbers, addresses or quoted text have one signature.
What the cleaner has dropped is not counted any more; only lag is certain, because it is counted backwards from what is pending now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from penstock.engine import letter
from penstock.errors import QueueNotFound
from penstock.pipeline import audit, gathering, noting, page
from penstock.pipeline.audit import PASSING, Breach
from penstock.pipeline.noting import NotingSource
from penstock.pipeline.options import EVERYWHERE
from penstock.pipeline.replica import Replica

#: Keys that are named of each log.
KEYS_MAX: Final = 20

#: Errors are cut there before they are compared.
SIGNATURE_CHARS_MAX: Final = 200

#: How exactly percentiles are found: the rank is off by one in so many.
ACCURACY: Final = 10_000

PAGE: Final = "report.html"

Progress = Callable[[str, int, int], None]

#: How many messages wait now, by namespace, log and group.
Pending = Mapping[tuple[str, str, str], int]

_OF_GROUP: Final = ("namespace", "log", "group")


class Written(msgspec.Struct, frozen=True):
    """What a report wrote: where the page is, how many rows each table has, and what they add up to.

    `skipped` is what should have been there and could not be read, so that the numbers are too low.
    """

    page: str
    tables: dict[str, int]
    published: int
    delivered: int
    acked: int
    retries: int
    dead: int
    skipped: list[Breach] = []


class Report:
    """The tables of a report, as data frames that are computed when they are asked for."""

    def __init__(self, tables: dict[str, DataFrame], title: str) -> None:
        self.tables = tables
        self.skipped: list[Breach] = []
        self._title = title

    def write(self, to: str | Path, progress: Progress | None = None) -> Written:
        """Write the tables below a directory, and the page into it; what is there of an earlier report is replaced."""
        place = Path(to)
        place.mkdir(parents=True, exist_ok=True)
        rows: dict[str, list[dict[str, Any]]] = {}
        for number, (name, frame) in enumerate(self.tables.items()):
            if progress is not None:
                progress(name, number, len(self.tables) + 1)
            path = str(place / name)
            frame.coalesce(1).write.mode("overwrite").parquet(path)
            rows[name] = frame.sparkSession.read.parquet(path).toArrow().to_pylist()
        if progress is not None:
            progress("page", len(self.tables), len(self.tables) + 1)
        html = page.render(self._title, rows, datetime.now(UTC), list(map(str, self.skipped)))
        (place / PAGE).write_text(html, encoding="utf-8")
        activity = rows["activity"]

        def total(column: str) -> int:
            return sum(row[column] for row in activity)

        return Written(
            str(place / PAGE), {name: len(found) for name, found in rows.items()},
            sum(row["published"] for row in rows["published"]), total("delivered"), total("acked"), total("retries"), total("dead"),
            self.skipped,
        )  # fmt: skip


def report(
    messages: DataFrame,
    settlements: DataFrame,
    deliveries: DataFrame,
    *,
    pending: Pending | None = None,
    title: str = "Penstock",
) -> Report:
    """The report of three tables, of a directory or of an archive. Reasons of dead letters are known if `messages` has headers.

    >>> # report(messages, settlements, deliveries).write("report")
    """
    return Report(
        {
            "published": _published(messages),
            "activity": _activity(settlements, deliveries),
            "latency": _latency(messages, settlements, deliveries, "minute"),
            "groups": _latency(messages, settlements, deliveries),
            "dead": _dead(messages, settlements),
            "lag": _lag(messages, settlements, pending or {}),
            "keys": _keys(messages),
        },
        title,
    )


def report_directory(
    spark: SparkSession,
    path: str | Path,
    to: str | Path,
    *,
    namespace: str = EVERYWHERE,
    topics: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write the report of a broker's directory, of all logs or of some; a broker may be at work in it.

    What cannot be read is skipped, and named on the page and in `skipped`.
    """
    names = None if topics is None else sorted(set(topics))
    replica = Replica(path)
    facts = replica.facts(
        lambda space, name: namespace in (EVERYWHERE, space) and (names is None or name in names)
    )
    missing = set(names or ()) - {log.name for log in facts.logs}
    if missing:
        raise QueueNotFound(
            f"there is no queue or topic {', '.join(sorted(missing))} in {path} (namespace {namespace})"
        )

    spark.dataSource.register(NotingSource)

    def read(table: str, columns: str) -> DataFrame:
        source = (
            spark.read.format(NotingSource.name()).option("table", table).option("namespace", namespace).option("columns", columns)
            .option("failOnDataLoss", "false").option("asOf", max(facts.sequence, 1))
        )  # fmt: skip
        return (source if names is None else source.option("topic", ",".join(names))).load(str(path))

    pending = {
        (log.namespace, log.name, group): log.next_offset - sum(flat[1::2]) + sum(flat[0::2])
        for log in facts.logs
        for group, flat in log.groups.items()
    }
    frames = [
        read("messages", "namespace,topic,offset,timestamp,deliver_at,key,headers").persist(),
        read("settlements", "namespace,log,group,offset,outcome,time,error").persist(),
        read("deliveries", "namespace,log,group,offset,attempt,time").persist(),
    ]  # each is looked at several times
    try:
        messages, damage = noting.split(frames[0], "topic")
        settlements, of_settlements = noting.split(frames[1], "log")
        deliveries, of_deliveries = noting.split(frames[2], "log")
        made = report(messages, settlements, deliveries, pending=pending, title=Path(path).absolute().name)
        stored = {
            (str(space), str(log)): found.once
            for (space, log), found in gathering.bitmaps(messages, ["namespace", "topic"]).items()
        }
        damage += [*of_settlements, *of_deliveries]
        made.skipped = audit.skipped(replica.again(facts), stored, damage)
        return made.write(to, progress)
    finally:
        for frame in frames:
            frame.unpersist()


# --- the tables ---


def _minute(column: str) -> Column:
    return F.date_trunc("minute", F.col(column)).alias("minute")


def _published(messages: DataFrame) -> DataFrame:
    found = messages.groupBy("namespace", F.col("topic").alias("log"), _minute("timestamp"))
    return found.agg(F.count("*").alias("published")).orderBy("namespace", "log", "minute")


#: Columns of `activity`, and the outcomes that they count.
COUNTED: Final = {"acked": "acked", "retries": "retry", "dead": "dead", "expired": "expired"}


def _activity(settlements: DataFrame, deliveries: DataFrame) -> DataFrame:
    nothing = F.lit(0).cast("bigint")
    handed = deliveries.groupBy(*_OF_GROUP, _minute("time")).agg(
        F.count("*").alias("delivered"),
        F.count_if(F.col("attempt") > 1).alias("redelivered"),
        *[F.lit(0).cast("bigint").alias(name) for name in (*COUNTED, "other")],
    )
    settled = settlements.where("group is not null").groupBy(*_OF_GROUP, _minute("time")).agg(
        nothing.alias("delivered"),
        nothing.alias("redelivered"),
        *[F.count_if(F.col("outcome") == outcome).alias(name) for name, outcome in COUNTED.items()],
        F.count_if(~F.col("outcome").isin(*COUNTED.values())).alias("other"),
    )  # fmt: skip
    columns = ("delivered", "redelivered", *COUNTED, "other")
    return (
        handed.unionByName(settled)
        .groupBy(*_OF_GROUP, "minute")
        .agg(*[F.sum(name).alias(name) for name in columns])
        .orderBy(*_OF_GROUP, "minute")
    )


def _latency(messages: DataFrame, settlements: DataFrame, deliveries: DataFrame, *per: str) -> DataFrame:
    """Percentiles, for each group and, with `per` "minute", for each minute in which messages were handed out or acknowledged."""
    born = messages.select(
        "namespace",
        F.col("topic").alias("log"),
        "offset",
        F.greatest("timestamp", "deliver_at").alias("born"),
    )
    place = (*_OF_GROUP, "offset")
    first = deliveries.groupBy(*place).agg(F.min("time").alias("time")).withColumn("what", F.lit("delivery"))
    acked = settlements.where("outcome = 'acked' and group is not null")
    last = acked.groupBy(*place).agg(F.min("time").alias("time")).withColumn("what", F.lit("ack"))
    waited = F.greatest(F.expr("(unix_micros(time) - unix_micros(born)) / 1000"), F.lit(0.0))
    rows = (
        first.unionByName(last)
        .join(born, ["namespace", "log", "offset"])
        .select(*_OF_GROUP, "what", waited.alias("ms"), _minute("time"))
    )
    found = rows.groupBy(*_OF_GROUP, *per).pivot("what", ["delivery", "ack"]).agg(
        F.count("ms").alias("count"), F.percentile_approx("ms", [0.5, 0.95, 0.99], ACCURACY).alias("ms"), F.max("ms").alias("max")
    )  # fmt: skip
    columns = []
    for what in ("delivery", "ack"):
        columns.append(F.coalesce(F.col(f"{what}_count"), F.lit(0)).alias(f"{what}_count"))
        for place_of, name in enumerate(("p50", "p95", "p99")):
            columns.append(F.col(f"{what}_ms")[place_of].alias(f"{what}_{name}_ms"))
        columns.append(F.col(f"{what}_max").alias(f"{what}_max_ms"))
    return found.select(*_OF_GROUP, *per, *columns).orderBy(*_OF_GROUP, *per)


def signature(error: Column) -> Column:
    """An error without what differs between alike ones: quoted text, addresses and ids, numbers."""
    found = F.substring(error, 1, SIGNATURE_CHARS_MAX)
    found = F.regexp_replace(found, r"\"[^\"]*\"|'[^']*'|`[^`]*`", "'…'")
    found = F.regexp_replace(
        found,
        r"(?i)\b(0x[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*\d)[0-9a-f]{8,})\b",
        "#",
    )
    return F.regexp_replace(found, r"\d+([.,:]\d+)*", "#")


def _dead(messages: DataFrame, settlements: DataFrame) -> DataFrame:
    """A settlement has the error, or the reason if there was none; the letter of the same moment has both."""
    died = settlements.where("outcome = 'dead'").select(
        *_OF_GROUP, "time", F.coalesce("error", F.lit("")).alias("error")
    )
    if "headers" in messages.columns:
        headers = F.col("headers")
        letters = (
            messages.where(headers[letter.ORIGIN].isNotNull() & headers[letter.REASON].isNotNull())
            .select(
                "namespace", headers[letter.ORIGIN].alias("log"), headers[letter.ORIGIN_GROUP].alias("group"),
                F.col("timestamp").alias("time"), F.coalesce(headers[letter.ERROR], headers[letter.REASON]).alias("error"),
                headers[letter.REASON].alias("reason"),
            )
            .groupBy(*_OF_GROUP, "time", "error").agg(F.min("reason").alias("reason"))
        )  # fmt: skip
        died = died.join(letters, [*_OF_GROUP, "time", "error"], "left")
    else:
        died = died.withColumn("reason", F.lit(None).cast("string"))
    told = F.col("error").isin(letter.MAX_ATTEMPTS, letter.REJECTED, letter.EXPIRED)
    reason = F.coalesce(F.col("reason"), F.when(told, F.col("error")), F.lit("unknown"))
    error = F.when(told, F.lit("")).otherwise(F.col("error"))
    return (
        died.withColumn("reason", reason).withColumn("error", error).withColumn("signature", signature(F.col("error")))
        .groupBy(*_OF_GROUP, "reason", "signature")
        .agg(F.count("*").alias("count"), F.min("time").alias("first"), F.max("time").alias("last"), F.min("error").alias("example"))
        .orderBy(F.desc("count"), *_OF_GROUP, "reason", "signature")
    )  # fmt: skip


def _lag(messages: DataFrame, settlements: DataFrame, pending: Pending) -> DataFrame:
    """What was not settled at the end of each minute in which anything happened: counted back from what waits now, or on from nothing."""
    ended = settlements.where(~F.col("outcome").isin(*PASSING) & F.col("group").isNotNull())
    down = ended.groupBy(*_OF_GROUP, _minute("time")).agg((-F.count("*")).alias("step"))
    groups = ended.select(*_OF_GROUP).distinct()
    known = [(*key, waiting) for key, waiting in pending.items()]
    now = messages.sparkSession.createDataFrame(
        known, "namespace string, log string, group string, now bigint"
    )
    groups = groups.join(now, list(_OF_GROUP), "full")
    came = messages.groupBy("namespace", F.col("topic").alias("log"), _minute("timestamp")).agg(
        F.count("*").alias("step")
    )
    up = came.join(groups, ["namespace", "log"]).select(*_OF_GROUP, "minute", "step")
    steps = (
        up.unionByName(down)
        .groupBy(*_OF_GROUP, "minute")
        .agg(F.sum("step").alias("step"))
        .join(groups, list(_OF_GROUP))
    )
    whole = Window.partitionBy(*_OF_GROUP)
    so_far = F.sum("step").over(whole.orderBy("minute").rowsBetween(Window.unboundedPreceding, 0))
    start = F.coalesce(F.col("now") - F.sum("step").over(whole), F.lit(0))
    return steps.select(*_OF_GROUP, "minute", F.greatest(start + so_far, F.lit(0)).alias("lag")).orderBy(
        *_OF_GROUP, "minute"
    )


def _keys(messages: DataFrame) -> DataFrame:
    counted = (
        messages.where("key is not null")
        .groupBy("namespace", F.col("topic").alias("log"), "key")
        .agg(F.count("*").alias("messages"))
    )
    place = F.row_number().over(Window.partitionBy("namespace", "log").orderBy(F.desc("messages"), "key"))
    return (
        counted.withColumn("place", place)
        .where(F.col("place") <= KEYS_MAX)
        .drop("place")
        .orderBy("namespace", "log", F.desc("messages"), "key")
    )
