"""A Spark driver in a process of its own, which is killed with all that belongs to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import penstock
from penstock.broker import sync
from penstock.errors import DirectoryLocked
from tests.unit.broker.patience import until

ROOT = Path(__file__).parents[2]


def start(module: str, *arguments: object) -> subprocess.Popen[bytes]:
    """In a session of its own, so that the JVM and the workers are killed with it."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that it says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def opened(directory: Path) -> sync.Broker:
    """Spark's workers have a process group of their own, and end when they notice that their driver has: one may own the directory yet."""
    found: list[sync.Broker] = []

    def open_it() -> bool:
        with suppress(DirectoryLocked):
            found.append(penstock.open(directory))
        return bool(found)

    until(open_it)
    return found[0]
