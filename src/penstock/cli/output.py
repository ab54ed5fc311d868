"""How a command talks: tables and lines for people, JSON for programs, and how it ends.

What is asked for goes to stdout, everything else (progress, warnings, errors) to stderr. With `--json` stdout holds JSON and nothing
else. Stored text is shown with its control characters escaped: a payload must not move somebody's cursor.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from penstock.cli.streams import reason
from penstock.errors import InvalidArgument, PenstockError

FINE: Final = 0
DAMAGED: Final = 1
WRONG_USE: Final = 2

#: A pipe has no width. Wide enough for every table here, unless COLUMNS says otherwise.
PIPE_COLUMNS: Final = 160


def console() -> Console:
    """Tables for stdout, as wide as the terminal."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(file=sys.stdout, width=PIPE_COLUMNS if piped else None, highlight=False, soft_wrap=False)


def warn(text: str) -> None:
    """One line on stderr."""
    typer.echo(text, err=True)


def is_address(given: object) -> bool:
    """Whether somebody means a server, and not a directory. A `Path` has lost a slash of it."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", str(given)) is not None


@contextmanager
def answering(place: object) -> Iterator[None]:
    """Around a command on a directory (a `Path`) or on either kind of place: its errors are one clear line."""
    try:
        if isinstance(place, Path) and is_address(place):
            raise InvalidArgument(  # it is answered like all others
                "this command reads the files of a directory, and cannot reach them at a server's address; "
                "give the directory, on the machine where it is"
            )
        yield
        sys.stdout.flush()
    except PenstockError as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from None
        warn(f"penstock: {error}")
        raise typer.Exit(WRONG_USE) from None
    except OSError as error:
        warn(f"penstock: {reason(error, place)}")
        raise typer.Exit(WRONG_USE) from None


def _is_interrupted(error: BaseException | None) -> bool:
    """Whether an error only follows from Ctrl-C: what was interrupted could not be put in order either."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def progress_over(total_bytes: int | None, what: str) -> Iterator[Callable[[int], None]]:
    """A progress bar over bytes on stderr, if that is a terminal; otherwise nothing."""
    if not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done: bar.advance(task, done)


@contextmanager
def progress_of(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
    """The same over messages; None if nobody knows how many there will be."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def print_json(value: Any) -> None:
    """A value on stdout, indented."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table whose columns are named; those in `right` hold numbers."""
    wide = cell_len(title)  # a title that is wider than its table would be broken into lines
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", min_width=wide)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def moment(time_us: int) -> str:
    """A time for people, in UTC."""
    if not time_us:
        return "–"
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{time_us} µs"


def argument(path: Path | str) -> str:
    """A path as it may be typed behind a command: as it was given, quoted if it must be."""
    given = str(path)
    return shlex.quote(f"./{given}" if given.startswith("-") else given)


def size(count: int) -> str:
    """A number of bytes for people."""
    for unit, scale in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << scale:
            return f"{count / (1 << scale):.1f} {unit}"
    return f"{count} B"


def harmless(text: str) -> str:
    """Text with whatever could steer a terminal escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
