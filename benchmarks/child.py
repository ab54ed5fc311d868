"""Work in a process of its own: its memory is nobody else's, and it may end as abruptly as a crash does."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn


def reports(work: Callable[..., None], *arguments: object) -> Iterator[Any]:
    """Run `work(send, *arguments)` in a fresh interpreter; what it sends, until it ends."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sending, arguments))
    process.start()
    sending.close()
    try:
        while True:
            try:
                yield receiving.recv()
            except EOFError:
                break
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{work.__name__} ended with exit code {process.exitcode} in its own process")
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        receiving.close()


def last_report(work: Callable[..., None], *arguments: object) -> Any:
    """The last of what `work` sends."""
    *_, last = reports(work, *arguments)
    return last


def _run(work: Callable[..., None], sending: Connection, arguments: tuple[object, ...]) -> None:
    work(sending.send, *arguments)


def crash() -> NoReturn:
    """End at once, as `kill -9` would: nothing is closed, flushed or told."""
    os._exit(0)


def resident_bytes() -> int:
    """What this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
