"""The parent's side of `writer`: start it, hear it out, kill it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.faults.workload import Oracle
from tests.faults.writer import Orders

ROOT = Path(__file__).parents[2]


class Child:
    """A writing process; what it reports goes to an oracle. Leaving the block kills it, whatever happened."""

    def __init__(self, path: Path, oracle: Oracle, orders: Orders) -> None:
        self._oracle = oracle
        self.acknowledged = 0
        self.calls: int | None = None
        self._stopped = False
        command = [
            sys.executable,
            "-m",
            "tests.faults.writer",
            str(path),
            msgspec.json.encode(orders).decode(),
        ]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def hear(self, acknowledgements: int) -> bool:
        """Listen until so many commits were acknowledged; False if it ended before."""
        while self.acknowledged < acknowledgements:
            if not self._line():
                return False
        return True

    def hear_until_it_stops(self) -> bool:
        """Listen until it stands still; False if it ended before."""
        while not self._stopped:
            if not self._line():
                return False
        return True

    def kill(self) -> None:
        """SIGKILL, then hear what it had still said."""
        self._process.kill()
        self.hear_out()
        self._process.wait()

    def hear_out(self) -> None:
        """Listen to its end."""
        while self._line():
            pass

    def complaint(self) -> str:
        """What it died of, if not of us."""
        self._process.wait()
        return self._process.stderr.read() if self._process.stderr and not self._process.stderr.closed else ""

    def _line(self) -> bool:
        assert self._process.stdout is not None
        if self._process.stdout.closed or not (line := self._process.stdout.readline()):
            return False
        name, *arguments = json.loads(line)
        if name == "finished":
            self.calls = arguments[0]
            return True
        if name == "stopped":
            self._stopped = True
            return True
        self.acknowledged += name == "acknowledged"
        self._oracle.hear(line)
        return True
