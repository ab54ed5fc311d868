"""How a session ends."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

LETS_GO = """
from pyspark import SparkContext
from penstock.pipeline.session import end, session

spark = session(log="spark.log")
client, held = SparkContext._gateway._gateway_client, spark.range(1)._jdf
end(spark)
client.send_command = lambda command, **how: print("sent", command)
client.garbage_collect_object(held._target_id, enqueue=False)  # as a thread of the bridge does, some time later
"""


def test_who_lets_go_of_an_object_after_the_end_talks_to_a_spark_that_is_away(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LETS_GO],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


PLAIN = """
from pyspark.sql import SparkSession
from penstock.pipeline import register

spark = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF").getOrCreate()
try:
    register(spark)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_workers_whose_python_lacks_penstock_are_refused_before_a_job(tmp_path: Path) -> None:
    venv.create(tmp_path / "other")
    python = tmp_path / "other" / "bin" / "python"
    environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
    environment.pop("PYTHONPATH", None)  # what is there, workers have too
    done = subprocess.run(
        [sys.executable, "-c", PLAIN],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.stdout.startswith(
        f"MissingExtra Spark's workers run {python}, which has no penstock and no msgspec"
    )
    assert f"PYSPARK_PYTHON to {sys.executable}" in done.stdout
