"""A Spark session for one command: started quietly, and gone when the command ends.

What Spark, Java and the workers have to say goes into a file. If all went well, nobody reads it, and it is removed; otherwise the error names it. Spark's process ends
with the command, however that ends: it reads from a pipe that only the command holds open.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.errors import InvalidArgument, PenstockError

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Where Spark runs: local[2], spark://host:7077, …; this machine, by default."
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark's; may be given again.")
]


@contextmanager
def sparking(what: str, master: str | None, conf: list[str] | None) -> Iterator[Any]:
    """A session for a command, and Spark's errors as Penstock's."""
    settings = dict(_setting(one) for one in conf or ())
    from penstock import pipeline

    started = pipeline.session  # may say what to install
    from penstock.pipeline import failure

    log = _log_file()
    spark = None
    kept = False
    try:
        with _waiting("Starting Spark …"):
            spark = started(f"penstock {what}", master, log=log, **settings)
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


def _end(spark: Any) -> None:
    from penstock.pipeline.session import end

    end(spark)
