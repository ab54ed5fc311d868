"""A Spark session that knows Penstock: an existing one is told (`register`), or a local one is started (`session`)."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.pipeline import java, progress
from penstock.pipeline.source import PenstockDataSource

#: For a session of one machine: no web page, no console noise, and nothing that listens on the network.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}
_QUIET: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def register(spark: SparkSession) -> SparkSession:
    """Let a session know the format `penstock`, for reading and writing, in batches and streams; the same session.

    Progress of its streaming queries is reported to the brokers they read from: see `penstock.pipeline.progress`.
    """
    spark.dataSource.register(PenstockDataSource)
    progress.follow(spark)
    return spark


def session(name: str = "penstock", master: str | None = None, **conf: Any) -> SparkSession:
    """A session that knows Penstock, with Spark's settings by their names: `session(**{"spark.driver.memory": "4g"})`.

    Under `spark-submit` it is the one that was submitted. Otherwise it runs on this machine, unless `master` names a cluster.
    """
    builder = SparkSession.builder.appName(name)
    settings = dict(_QUIET)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has chosen these already
        java.prepare()
        master = master or os.environ.get("SPARK_MASTER") or "local[*]"
        if master.startswith("local"):
            settings |= _LOCAL
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # where Penstock is installed
        builder = builder.master(master)
    elif master is not None:
        builder = builder.master(master)
    for key, value in {**settings, **conf}.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())
