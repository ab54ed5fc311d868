"""Real files with a say before each system call: what the tests of the owner look through."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.journal.files import Answer, Files

Before = Callable[[str, tuple[object, ...]], None]


def nothing(name: str, arguments: tuple[object, ...]) -> None:
    """No objection."""


class Watched(Files):
    """Records the calls that were made, and asks `before` each."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before: Before = nothing

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        name = operation.__name__
        self.before(name, arguments)
        self.calls.append(name)
        return operation(*arguments)


def failing(name: str, error: int, *, times: int = 1 << 30, path: str = "") -> Before:
    """Fail the next calls of that name, only on paths that contain `path` if it is given."""
    left = [times]

    def before(called: str, arguments: tuple[object, ...]) -> None:
        if called == name and left[0] > 0 and path in str(arguments[0]):
            left[0] -= 1
            raise OSError(error, os.strerror(error))

    return before
