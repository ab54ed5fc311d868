"""What went wrong in Spark, in a line or two: Spark wraps an error in plans, stack traces and the names of its own classes.

An error of Penstock that was raised in a process that Spark started (planning, a task, a commit) is found in the text, and is that error again. An error in a
file of the user's is told with the place in that file.
"""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path
from typing import Final, NamedTuple

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import StreamingQueryException

from penstock import errors
from penstock.errors import InvalidArgument, PenstockError

#: What Spark and its bridge raise.
FROM_SPARK: Final = (PySparkException, Py4JError)

_OURS: Final = re.compile(r"^\s*penstock\.errors\.(\w+): (.+)$", re.MULTILINE)
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+;?")
_FRAME: Final = re.compile(
    r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE
)
_CALLED: Final = re.compile(
    r'^"(?P<name>[^"\n]*)" was called from\n(?P<file>.+):(?P<line>\d+)$', re.MULTILINE
)
_RAISED: Final = re.compile(
    r"^(?:[\w.]+(?:Error|Exception|Warning|Interrupt|Exit|Group)|[A-Za-z_][\w.]*): .*$|^[\w.]*(?:Error|Exception)$",
    re.MULTILINE,
)


class Place(NamedTuple):
    """A line of somebody's file."""

    file: Path
    line: int
    name: str | None = None

    def blames(self, what: str) -> InvalidArgument:
        """An error that points here: where, what, and the line itself."""
        where = f"{self.file}, line {self.line}" + (f", in {self.name}" if self.name else "")
        shown = linecache.getline(str(self.file), self.line).strip()
        return InvalidArgument(f"{where}: {what}" + (f"\n    {shown}" if shown else ""))


def told(error: BaseException) -> PenstockError:
    """An error as one of Penstock's."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return PenstockError("Spark has stopped: its process was ended, or ran out of memory")
    text = words(error)
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind: type[PenstockError] = getattr(errors, name, PenstockError)
        return kind(_STATE.sub("", message).strip())
    return PenstockError(short(text) if isinstance(error, FROM_SPARK) else f"{type(error).__name__}: {error}")


def words(error: BaseException) -> str:
    """What an error says, without what Spark puts around that of a stream."""
    if isinstance(error, StreamingQueryException):
        parameters = error.getMessageParameters() or {}
        return parameters.get("message") or str(error)
    return str(error)


def short(text: str) -> str:
    """The gist of what Spark says: what Python raised, if it did; otherwise the first line."""
    text = _STATE.sub("", text)
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text.partition("Traceback (most recent call last)")[2])
        if raised:
            return str(raised[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed, and does not say why"


def place_in(error: BaseException, file: Path) -> Place | None:
    """The innermost line of a file that an error went through, here or in a process that Spark started."""
    if isinstance(error, SyntaxError) and error.filename == str(file) and error.lineno:
        return Place(file, error.lineno)
    here = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if here:
        return Place(file, here[-1].lineno or 1, None if here[-1].name == "<module>" else here[-1].name)
    text = words(error)
    found = [one for one in _FRAME.finditer(text) if one["file"] == str(file)]
    if found:
        return Place(file, int(found[-1]["line"]), found[-1]["name"])
    called = [one for one in _CALLED.finditer(text) if one["file"] == str(file)]
    return Place(file, int(called[0]["line"]), called[0]["name"]) if called else None


def gist(error: BaseException) -> str:
    """What an error says, in one line, with its kind if it is Python's own."""
    if isinstance(error, PenstockError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    if isinstance(error, FROM_SPARK):
        return short(words(error))
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
