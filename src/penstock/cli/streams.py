"""Standard streams that do not change what an exit code means: a reader may have gone, and a stream may be closed from the start.

Rich and typer end a command with 1 when its pipe is closed, and 1 means damage here. So whatever is written to a pipe that nobody reads goes
nowhere, below them both, and the command ends as it would have ended.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Outlet(io.FileIO):
    """A standard stream's descriptor. Once a write has failed, everything goes nowhere; a closed pipe is not even an error."""

    def __init__(self, fd: int, called: str) -> None:
        super().__init__(fd, "w", closefd=False)
        self._called = called
        self.unread = False  # its reader has gone
        self.absent = False  # it was closed when the process began

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except BrokenPipeError:
            self.unread = True
            _send_nowhere(self.fileno())
            return memoryview(data).nbytes
        except OSError as error:
            _send_nowhere(self.fileno())  # Python flushes again on exiting, and must not fail again
            raise OSError(error.errno, error.strerror, self._called) from None


def guard() -> None:
    """Make stdout and stderr safe to write to, whatever they are connected to."""
    for fd in range(3):  # a journal's file must never get the number of a standard stream
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _guarded(sys.stdout, 1, "standard output")
    if sys.stderr is sys.__stderr__:
        sys.stderr = _guarded(sys.stderr, 2, "standard error")


def _guarded(stream: TextIO | None, fd: int, called: str) -> TextIO:
    if stream is None:
        outlet = Outlet(os.open(os.devnull, os.O_WRONLY), called)
        outlet.absent = True
        return io.TextIOWrapper(io.BufferedWriter(outlet), encoding="utf-8")
    lines = bool(stream.line_buffering) or not hasattr(stream.buffer, "raw")  # the latter is `python -u`
    return io.TextIOWrapper(
        io.BufferedWriter(Outlet(fd, called)),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=lines,
    )


def _stdout_outlet() -> Outlet | None:
    outlet = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return outlet if isinstance(outlet, Outlet) else None


def stdout_is_unread() -> bool:
    """Whether the reader of stdout has gone, so that it is no use to go on."""
    outlet = _stdout_outlet()
    return outlet is not None and outlet.unread


def stdout_is_absent() -> bool:
    """Whether there is no stdout at all, so that what is written there is lost."""
    outlet = _stdout_outlet()
    return outlet is not None and outlet.absent


def give_up_stdout() -> None:
    """Forget what was not written yet: nobody waits for it, and a full pipe must not hold up the end."""
    outlet = _stdout_outlet()
    if outlet is not None:
        _send_nowhere(outlet.fileno())


def _send_nowhere(fd: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def reason(error: OSError, where: object = None) -> str:
    """An error of the operating system in one line: the path if one is known, and why."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        return f"{path}: {why}"
    return f"in {where}: {why}" if where is not None else why
