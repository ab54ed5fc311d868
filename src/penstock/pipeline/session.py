"""A Spark session that knows Penstock: an existing one is told (`register`), or a local one is started (`session`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.errors import MissingExtra, PenstockError
from penstock.pipeline import java, progress
from penstock.pipeline.source import PenstockDataSource

#: For a session of one machine: no web page, no console noise, and nothing that listens on the network.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # What Arrow's columns are read by in the JVM then does not look whether each byte is within its bounds: a tenth of reading a table. They come from Arrow in a process of ours.
    "spark.driver.defaultJavaOptions": "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false",
}
#: What a worker imports for a table of Penstock.
WORKERS_NEED: Final = ("penstock", "msgspec", "pyarrow", "numpy")

#: How long Spark's process may take to end by itself. It only has to remove its temporary files.
END_S: Final = 15

#: Rows go to and from Python through a socket. A local one and long reads take a quarter of the time off reading a whole table, and 20 ms off a micro-batch.
_SWIFT: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": str(1 << 20),
}

#: Spark gives files a buffer of the same size, which makes Parquet slower: theirs stays what it was.
_FILES: Final = {"io.file.buffer.size": str(64 << 10)}

_QUIET: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def register(spark: SparkSession) -> SparkSession:
    """Let a session know the format `penstock`, for reading and writing, in batches and streams; the same session.

    Progress of its streaming queries is reported to the brokers they read from: see `penstock.pipeline.progress`.
    A Python of its workers that lacks Penstock is refused here, before a task fails with an ImportError.
    """
    _require_workers(spark)
    spark.dataSource.register(PenstockDataSource)
    progress.follow(spark)
    return spark


def _require_workers(spark: SparkSession) -> None:
    """Raise if the Python of the workers, as far as this machine has it, lacks what they import."""
    context: Any = spark.sparkContext
    python = shutil.which(context.pythonExec)
    # What is sent along with a job is not looked into.
    if (
        python is None
        or os.path.abspath(python) == os.path.abspath(sys.executable)
        or context._python_includes
    ):
        return
    if missing := missing_in(python):
        raise MissingExtra(
            f"Spark's workers run {python}, which has no {' and no '.join(missing)}: set the environment variable "
            f"PYSPARK_PYTHON to {sys.executable} before the session is made, or install penstock[spark] there"
        )


def missing_in(python: str) -> list[str]:
    """Return the packages that a Python lacks of those that a worker imports."""
    code = "import sys, importlib.util as u; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"
    done = subprocess.run([python, "-c", code, *WORKERS_NEED], capture_output=True, text=True, check=False)
    return done.stdout.split() if not done.returncode else [WORKERS_NEED[0]]


def session(
    name: str = "penstock", master: str | None = None, *, log: str | Path | None = None, **conf: Any
) -> SparkSession:
    """A session that knows Penstock, with Spark's settings by their names: `session(**{"spark.driver.memory": "4g"})`.

    Under `spark-submit` it is the one that was submitted. Otherwise it runs on this machine, unless `master` names a cluster. With `log`, whatever Spark and its workers have to
    say goes into that file, and not to stderr.
    """
    settings = {"spark.app.name": name, **_QUIET, **_SWIFT}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has chosen these already
        java.prepare()
        master = master or os.environ.get("SPARK_MASTER") or "local[*]"
        if master.startswith("local"):
            settings |= _LOCAL
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # where Penstock is installed
    if master is not None:
        settings["spark.master"] = master
    settings |= conf
    if log is not None:
        _divert(Path(log), settings)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for key, value in _FILES.items():
        spark.conf.set(key, value)
    return register(spark)


def _divert(log: Path, settings: dict[str, Any]) -> None:
    """Start Spark's process with its output in a file, and have PySpark itself say nothing beside what it raises."""
    for told_by in (
        "DataFrameQueryContextLogger",
        "SQLQueryContextLogger",
    ):  # they print stack traces as JSON
        PySparkLogger.getLogger(told_by).disabled = True
    warnings.filterwarnings("ignore", module="pyspark")
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return  # it runs already, and writes where it was told to
    given = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        given.set(key, str(value))
    with log.open("ab") as out:
        try:
            gateway = launch_gateway(given, {"stdout": out, "stderr": subprocess.STDOUT})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise PenstockError("Spark does not start") from error
    SparkContext._ensure_initialized(gateway=gateway)


def end(spark: SparkSession | None) -> None:
    """Let Spark go, and wait until its process has gone too.

    Who was interrupted gives None, and does not talk to it any more: the answer to what was interrupted may still be on its way.
    """
    if spark is not None:
        with suppress(Exception):  # it may be gone already
            spark.stop()
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or not isinstance(process, subprocess.Popen):
        return  # somebody else's
    # A thread of the bridge tells Spark of objects that are needed no more, and logs whatever comes of it: from here on it has nobody to tell.
    gateway._gateway_client.is_connected = False
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    if process.stdin is not None:
        process.stdin.close()  # that is what it waits for
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
