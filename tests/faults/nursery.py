"""A process that makes children, which are to be killed: starting Python takes longer than most of them live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

ROOT = Path(__file__).parents[2]


class Nursery:
    """The process that runs a module, which forks a child for each line of orders that it reads and passes on what that child says."""

    def __init__(self, module: str) -> None:
        self._lives = False  # somebody was born, and has not been said to have ended
        self._child = 0  # the process id of the living one, once that was told
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._end_the_last()
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.wait(30)
        self._process.stdout.close()

    def life(
        self,
        orders: msgspec.Struct,
        *,
        reports: int,
        seconds: float,
        before: Callable[[], None] = lambda: None,
    ) -> Iterator[list[Any]]:
        """What a child says until it ends. It is killed after so many reports, or after `seconds` if `reports` is 0; something may happen `before`."""
        killed, heard = False, 0
        for report in self.whole_life(orders):
            if report[0] != "pid":
                yield report
                heard += report[0] not in ("census", "begins")
            if self._child and not killed and heard >= reports:
                time.sleep(seconds)
                before()
                killed = self._kill()
        assert killed, "it died by itself"

    def whole_life(self, orders: msgspec.Struct) -> Iterator[list[Any]]:
        """What a child says until it ends by itself, or kills itself."""
        assert self._process.stdin is not None
        self._end_the_last()
        self._process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self._process.stdin.flush()
        self._lives = True
        yield from self._hear()

    def _hear(self) -> Iterator[list[Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = json.loads(line)
            if report[0] == "ended":
                self._lives, self._child = False, 0
                return
            if report[0] == "pid":
                self._child = report[1]
            yield report

    def _end_the_last(self) -> None:
        """If nobody listened to the end of it: something was wrong with what it said, maybe before it was known who it is."""
        if not self._lives:
            return
        reports = self._hear()
        while not self._child and next(reports, None) is not None:
            pass
        self._kill()
        for _ in reports:
            pass

    def _kill(self) -> bool:
        """Whether there was somebody to kill: it may have ended by itself, which is then the next thing to be heard."""
        if not self._child:
            return False
        try:
            os.kill(self._child, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
