"""The process that is killed, or whose power is cut: it runs the workload and reports each event on its standard output.

Run as `python -m tests.faults.writer DIRECTORY '{"durability": "commit", …}'`; see `Orders`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.journal.kernel import KernelSync
from penstock.journal.rows import Rows
from penstock.journal.tail import Durability
from tests.faults.faulty_files import UnsyncedFiles
from tests.faults.workload import Firsts, Workload, opened

Answer = TypeVar("Answer")

#: The calls at which a process is killed in turn: those that change what a crash leaves.
DEADLY: Final[tuple[Callable[..., object], ...]] = (os.fdatasync, os.fsync, os.rename, os.unlink)


class Orders(msgspec.Struct):
    """What the process is to do. `files` is the name of a class in `FILES`; `die_before` and `die_after` number deadly calls.

    `stop_in_used_file`: stand still after the first acknowledged commits in a recycled segment. They overwrite blocks that
    the file already has, so syncing them writes nothing of the directory: only a synced name can save them.
    `hosted`: an event loop commits, and the kernel syncs for it, as in a server.
    """

    start: int = 1
    steps: int = 1 << 60
    durability: Durability = "commit"
    files: str = "sound"
    die_before: int = 0
    die_after: int = 0
    stop_in_used_file: bool = False
    hosted: bool = False


class HostedJournal:
    """A journal whose commits come from an event loop, which leads them. The rest is the journal's."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        if not asyncio.run_coroutine_threadsafe(self._host(), self._loop).result():
            raise RuntimeError("this kernel does not sync by itself")

    async def _host(self) -> bool:
        return self._journal.host(self._loop)

    async def _committed(self, rows: Sequence[Rows], sync: bool) -> int:
        return await self._journal.submit(rows, sync=sync)

    def commit(self, rows: Sequence[Rows], *, sync: bool = True) -> int:
        return asyncio.run_coroutine_threadsafe(self._committed(rows, sync), self._loop).result()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


class MortalFiles(Files):
    """Kills its own process before or after the Nth deadly call."""

    def __init__(self, before: int, after: int) -> None:
        self._before, self._after = before, after
        self.calls = 0

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        if operation not in DEADLY:
            return super().perform(operation, *arguments)
        self.calls += 1
        if self.calls == self._before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = super().perform(operation, *arguments)
        if self.calls == self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


class NoFileSync(Files):
    """The bug that a power cut must bring to light: what was written is not synced."""

    def sync(self, fd: int) -> None:
        pass

    def begin_sync(self, kernel: KernelSync, fd: int) -> None:
        del fd
        os.eventfd_write(kernel.bell, 1)

    def end_sync(self, kernel: KernelSync) -> None:
        os.eventfd_read(kernel.bell)


class NoSummarySync(Files):
    """Leaves out the sync of summaries, which can be made again: no bug.

    It brings the next one to light: ext4 keeps one log for all names, so that syncing any new file, as a summary is, happens
    to make a rename before it durable too.
    """

    def sync(self, fd: int) -> None:
        if ".summary" not in os.readlink(f"/proc/self/fd/{fd}"):
            super().sync(fd)


class NoDirectorySync(NoSummarySync):
    """The other bug: a file has its name, and the name is not synced."""

    def sync_directory(self, directory: Path) -> None:
        pass


FILES: Final[dict[str, type[Files]]] = {
    "sound": Files,
    "unsynced": UnsyncedFiles,
    "no file sync": NoFileSync,
    "no summary sync": NoSummarySync,
    "no directory sync": NoDirectorySync,
}


class Reporter:
    """A witness that tells another process, a line for each event. A line is written whole or not at all."""

    def _tell(self, *event: object) -> None:
        os.write(1, json.dumps(event).encode() + b"\n")

    def attempt(self, number: int, firsts: Firsts) -> None:
        self._tell("attempt", number, firsts)

    def acknowledged(self, number: int, sequence: int) -> None:
        self._tell("acknowledged", number, sequence)

    def refused(self, number: int) -> None:
        self._tell("refused", number)

    def dead(self, log: int, stop_most: int, stop_all: int) -> None:
        self._tell("dead", log, stop_most, stop_all)

    def covered(self, sequence: int) -> None:
        self._tell("covered", sequence)

    def stopped(self) -> None:
        self._tell("stopped")

    def finished(self, calls: int) -> None:
        self._tell("finished", calls)


def main(path: Path, orders: Orders) -> None:
    files = (
        MortalFiles(orders.die_before, orders.die_after)
        if orders.files == "mortal"
        else FILES[orders.files]()
    )
    reporter = Reporter()
    journal, applied = opened(path, files, orders.durability)
    owner: Any = HostedJournal(journal) if orders.hosted else journal
    workload = Workload(owner, reporter, applied)
    if orders.stop_in_used_file:
        _stop_in_used_file(workload)
    for number in range(orders.start, orders.start + orders.steps):
        workload.step(number)
    journal.close()
    reporter.finished(files.calls if isinstance(files, MortalFiles) else 0)


def _stop_in_used_file(workload: Workload) -> None:
    journal = workload.journal
    number = 0
    while not journal.segments()[-1].label.recycled:
        number += 1
        if journal.stats().free_segments:
            workload.commit(number)
        else:
            workload.step(number)
    for following in range(3, 16, 6):  # commits of two small rows
        workload.commit((number // 6 + 1) * 6 + following)
    Reporter().stopped()
    os.read(0, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Orders))
