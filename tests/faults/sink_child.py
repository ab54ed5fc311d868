"""A driver of Spark that runs a streaming query into a directory until it is killed, or has nothing more to do: `python -m tests.faults.sink_child SOURCE DIRECTORY CHECKPOINT`.

It says when it begins a batch and when it has ended one, as Spark tells it.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F  # noqa: N812  # as everybody says

from tests.pipeline.conftest import started


def main(source: str, directory: str, checkpoint: str) -> None:
    session = started()
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    query = (
        session.readStream.option("maxFilesPerTrigger", 1)
        .text(source)
        # A shuffle: the rows of a batch that is run again come in another order.
        .repartition(2)
        .select(F.col("value").alias("payload"), F.concat(F.lit("t"), F.length("value") % 3).alias("topic"))
        .writeStream.format("penstock")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(directory)
    )
    query.awaitTermination()
    sys.stdout.write("ends\n")
    sys.stdout.flush()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
