"""A Spark session for one command: started quietly, and gone when the command ends.

What Spark, Java and the workers have to say goes into a file. If all went well, nobody reads it, and it is removed; otherwise the error names it. Spark's process ends
with the command, however that ends: it reads from a pipe that only the command holds open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from penstock.errors import InvalidArgument, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Where Spark runs: local[2], spark://host:7077, …; this machine, by default."
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark's; may be given again.")
]

#: How long Spark's process may take to end by itself. It only has to remove its temporary files.
END_S: Final = 15


@contextmanager
def sparking(what: str, master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """A session for a command, and Spark's errors as Penstock's."""
    settings = dict(_setting(one) for one in conf or ())
    from penstock import pipeline  # may say what to install
    from penstock.pipeline import failure

    log = _log_file()
    spark: SparkSession | None = None
    kept = False
    try:
        with _waiting("Starting Spark …"):
            spark = pipeline.session(f"penstock {what}", master, log=log, **settings)
        # Spark's own handler talks to its process from within whatever was interrupted; here it is enough to end it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield spark
    except (PenstockError, *failure.FROM_SPARK) as error:
        told = failure.told(error)
        if type(told) is not PenstockError:
            raise told from error
        kept = True  # it is not about anything of ours
        raise PenstockError(f"{told}\nWhat Spark has to say is in {log}") from error
    except BaseException:
        spark = None
        raise
    finally:
        _end(spark)
        if not kept:
            log.unlink(missing_ok=True)


def _setting(given: str) -> tuple[str, str]:
    key, equals, value = given.partition("=")
    if not equals or not key.startswith("spark."):
        raise InvalidArgument(f"--conf {given!r} is not KEY=VALUE, such as spark.driver.memory=4g")
    return key, value


def _log_file() -> Path:
    handle, name = tempfile.mkstemp(prefix=f"penstock-spark-{os.getpid()}-", suffix=".log")
    os.close(handle)
    return Path(name)


def _waiting(text: str) -> Any:
    """A sign of life on a terminal: this takes seconds."""
    return Console(stderr=True).status(text) if sys.stderr.isatty() else nullcontext()


def _end(spark: SparkSession | None) -> None:
    """Let Spark go, and its process with it. Who was interrupted does not talk to it any more: the answer to what was interrupted may still be on its way."""
    from pyspark import SparkContext

    if spark is not None:
        with suppress(Exception):  # it may be gone already
            spark.stop()
    process = getattr(SparkContext._gateway, "proc", None)
    if isinstance(process, subprocess.Popen):
        SparkContext._gateway = SparkContext._jvm = None
        SparkContext._active_spark_context = None
        _end_process(process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
