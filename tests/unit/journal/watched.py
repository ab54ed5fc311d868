"""Real files with a say before and after each system call: what the tests of the owner look through."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from penstock.journal.files import Answer, Files

Before = Callable[[str, tuple[object, ...]], None]


def nothing(name: str, arguments: tuple[object, ...]) -> None:
    """No objection."""


def bells() -> int:
    """How many eventfds this process has. (Other files come and go, by threads that earlier tests have left.)"""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += "eventfd" in os.readlink(f"/proc/self/fd/{name}")
    return found


class Watched(Files):
    """Records the calls that were made, asks `before` each, and tells `after` it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before: Before = nothing
        self.after: Before = nothing

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        name = operation.__name__
        self.before(name, arguments)
        self.calls.append(name)
        answer = operation(*arguments)
        self.after(name, arguments)
        return answer


class Order:
    """Notes which calls were made on which files, in order, if one can lose by their order: a `before`."""

    names = ("pwrite", "pwritev", "fdatasync", "fsync", "rename", "unlink")

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def __call__(self, name: str, arguments: tuple[object, ...]) -> None:
        if name in self.names:
            file = arguments[0]
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)
            self.made.append((name, os.path.basename(path)))

    def last(self, name: str, file: str) -> int:
        """When the last such call was made on a file whose name ends so; -1 if none was."""
        return max(
            (n for n, made in enumerate(self.made) if made[0] == name and made[1].endswith(file)), default=-1
        )


def failing(name: str, error: int, *, times: int = 1 << 30, path: str = "") -> Before:
    """Fail the next calls of that name, only on paths that contain `path` if it is given."""
    left = [times]

    def before(called: str, arguments: tuple[object, ...]) -> None:
        if called == name and left[0] > 0 and path in str(arguments[0]):
            left[0] -= 1
            raise OSError(error, os.strerror(error))

    return before
