"""Source, sink and a job on a cluster: a standalone master and two workers, processes of their own, that get the package with the job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import penstock

SPARK = Path(pyspark.__file__).parent
ORDERS = [f"order {number} {'x' * 300}" for number in range(2000)]
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

#: What is submitted: it has nothing in it that says where it runs.
SCRIPT = """
import json, sys
from pathlib import Path
from penstock import pipeline
from penstock.pipeline.transform import run

data, lake, out = sys.argv[1:]
spark = pipeline.session("on a cluster")
messages = spark.read.format("penstock").option("topic", "orders").option("minPartitions", 4).load(data)

def where(rows):
    import os
    import penstock
    yield os.getcwd(), penstock.__file__

places = messages.select("offset").rdd.mapPartitions(where).distinct().collect()
messages.selectExpr("concat('copy of ', cast(payload as string)) payload", "key").write.format("penstock").mode("append").option("topic", "copies").save(data)
ran = run(spark, Path(__file__).with_name("upper.py"), source=data, topic="orders", to="upper", once=True)
into_files = run(spark, Path(__file__).with_name("upper.py"), source=data, topic="orders", parquet=lake, once=True)
Path(out).write_text(json.dumps({
    "master": spark.sparkContext.master, "places": sorted({place for place, _ in places}), "packages": sorted({package for _, package in places}),
    "ran": ran.messages, "rows": spark.read.parquet(lake).count(),
}))
spark.stop()
"""

UPPER = """
from pyspark.sql.functions import udf

@udf("string", useArrow=False)
def upper(payload):
    return payload.decode().upper()

def transform(messages):
    return messages.withColumn("payload", upper("payload"))
"""


@contextmanager
def daemon(log: Path, environment: dict[str, str], *command: str) -> Iterator[Iterator[str]]:
    """A process of Spark's, and what it says."""
    process = subprocess.Popen(
        [SPARK / "bin" / "spark-class", *command], env=environment, cwd=log.parent, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        with log.open("w") as kept:
            yield (line for line in process.stderr if kept.write(line))
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def told(lines: Iterator[str], pattern: str) -> str:
    """What a daemon says in the line that is waited for."""
    for line in lines:
        found = re.search(pattern, line)
        if found:
            return found[1]
    pytest.fail(f"it ended without saying {pattern}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers."""
    environment = {
        **os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": LIGHT, "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        lines = stack.enter_context(
            daemon(tmp_path / "master.log", environment, "org.apache.spark.deploy.master.Master", *here)
        )
        url = told(lines, r"Starting Spark master at (spark://\S+)")
        workers = [
            stack.enter_context(daemon(
                tmp_path / f"worker{number}.log", environment, "org.apache.spark.deploy.worker.Worker", *here,
                "--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"work{number}"), url,
            ))
            for number in range(2)
        ]  # fmt: skip
        for one in workers:
            told(one, r"(Successfully registered) with master")
        yield url


def packed(path: Path) -> Path:
    """The package as one file, as `--py-files` takes it."""
    source = Path(penstock.__file__).parent
    with zipfile.ZipFile(path, "w") as made:
        for file in sorted(source.rglob("*.py")):
            made.write(file, file.relative_to(source.parent))
    return path


@pytest.mark.timeout(600)
@pytest.mark.campaign
def test_a_job_does_other_things_on_a_cluster_than_on_one_machine(cluster: str, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out.json"
    with penstock.open(data) as broker:
        for part in range(
            0, len(ORDERS), 100
        ):  # a partition is some commits, and some of the journal's strides
            broker.queue("orders").publish_many([order.encode() for order in ORDERS[part : part + 100]])
        broker.queue("copies")
        broker.queue("upper")
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "upper.py").write_text(UPPER)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [
            SPARK / "bin" / "spark-submit", "--master", cluster, "--py-files", packed(tmp_path / "penstock.zip"),
            "--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1", "--conf", "spark.cores.max=2",
            "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR",
            "--conf", f"spark.executor.extraJavaOptions={LIGHT}", "--driver-java-options", LIGHT,
            "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0", "--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=300s",
            tmp_path / "job.py", data, tmp_path / "lake", out,
        ],
        env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["master"] == cluster
    assert len(found["places"]) == 2, "only one worker had something to do"
    assert {place.partition("/app-")[0] for place in found["places"]} == {
        str(tmp_path / "work0"),
        str(tmp_path / "work1"),
    }
    assert all("penstock.zip" in package for package in found["packages"]), "the package came from elsewhere"
    assert (found["ran"], found["rows"]) == (2000, 2000)
    with penstock.open(data) as broker:
        for queue, change in (("copies", "copy of {}".format), ("upper", str.upper)):
            payloads = sorted(message.payload.decode() for message in broker.get_queue(queue).peek(5000))
            assert payloads == sorted(change(order) for order in ORDERS)
