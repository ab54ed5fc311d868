"""How a session ends."""

from __future__ import annotations

import subprocess
import sys
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
