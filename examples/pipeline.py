"""The pipeline: a queue is a table in Spark, a transform of one's own runs over it exactly once, and an audit says that nothing is lost.

python examples/pipeline.py        (needs pip install "penstock[spark]"; Spark takes some seconds to start)
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock import pipeline
from penstock.pipeline.archive import archive, tables
from penstock.pipeline.audit import audit_directory
from penstock.pipeline.transform import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What `penstock pipeline run` takes: a file of its own.
TRANSFORM = """
from pyspark.sql import functions as F

def transform(messages):
    order = F.from_json(messages.payload.cast("string"), "number INT, euros INT")
    return messages.where(order.euros >= 500).withColumn("payload", F.to_json(order))
"""


def trade(directory: Path) -> None:
    """An ordinary day: orders come in, most are dealt with, some fail for good."""
    chance = random.Random(7)
    with penstock.open(directory) as broker:
        orders = broker.queue("orders", max_attempts=1)
        orders.publish_many(
            penstock.Message(
                json.dumps({"number": number, "euros": chance.randrange(1000)}).encode(),
                key=chance.choice(["ada", "bob", "eve"]),
            )
            for number in range(1000)
        )
        for delivery in orders.receive_many(800):
            if delivery.offset % 50 == 0:
                delivery.nack(error="no such article")
            else:
                delivery.ack()


def look(spark: SparkSession, directory: Path) -> None:
    """Tables, read in place: no broker is needed, and none would notice."""
    source = spark.read.format("penstock").option("topic", "orders")
    messages = source.option("columns", "key,payload").load(str(directory))
    euros = messages.selectExpr("key", "from_json(cast(payload AS string), 'euros INT').euros AS euros")
    for row in euros.groupBy("key").sum("euros").orderBy("key").collect():
        print(f"{row['key']} has ordered for {row['sum(euros)']:,} euros")
    settlements = source.options(table="settlements", columns="outcome").load(str(directory))
    outcomes = {row.outcome: row["count"] for row in settlements.groupBy("outcome").count().collect()}
    print(f"what became of the orders: {dict(sorted(outcomes.items()))}")


def transform(spark: SparkSession, directory: Path, file: Path) -> None:
    """Into another queue, each order once: a run that is started again goes on where it was."""
    file.write_text(TRANSFORM)
    for _ in range(2):
        ran = run(spark, file, source=directory, topic="orders", to="large-orders", once=True)
        print(f"the transform read {ran.messages:,} orders")
    with penstock.open(directory) as broker:
        print(f"large orders: {broker.queue('large-orders').depth()}")


def keep(spark: SparkSession, directory: Path, lake: Path) -> None:
    """Everything as Parquet files, each row once; and whether everything is there."""
    done = archive(spark, directory, lake)
    stored = tables(spark, lake)["messages"].count()
    print(f"archived {done.rows['messages']:,} messages; the archive has {stored:,}")
    found = audit_directory(spark, directory)
    print(
        f"the audit of {found.messages:,} messages and {found.settlements:,} settlements found {len(found.breaches)} breaches"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "data"
        trade(directory)
        spark = pipeline.session(
            "example", "local[2]", log=Path(place) / "spark.log", **{"spark.sql.shuffle.partitions": 2}
        )
        look(spark, directory)
        transform(spark, directory, Path(place) / "large.py")
        keep(spark, directory, Path(place) / "lake")
        spark.stop()


if __name__ == "__main__":
    main()
