"""What only the shell for asyncio can get wrong: tasks that go away, and a loop whose threads are busy."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import DirectoryLocked, InvalidArgument


class Held(SystemClock):
    """A clock that keeps whoever opens a directory until it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def now_us(self) -> int:
        self.asked.set()
        self.go_on.wait()
        return super().now_us()


def wait_for_threads() -> None:
    """Until nobody opens or closes anything any more."""
    while found := [one for one in threading.enumerate() if one.name in {"penstock-open", "penstock-close"}]:
        found[0].join()


def test_a_cancelled_opening_keeps_the_directory(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Held()
        opening = asyncio.ensure_future(penstock.aio.open(tmp_path / "q", clock=clock))
        await asyncio.to_thread(clock.asked.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with pytest.raises(DirectoryLocked):
            await penstock.aio.open(tmp_path / "q")
        clock.go_on.set()
        await asyncio.to_thread(wait_for_threads)
        async with penstock.aio.open(tmp_path / "q") as broker:
            assert await broker.list_queues() == []

    asyncio.run(main())


def test_an_opening_that_is_cancelled_when_it_is_done_keeps_the_directory(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Held()
        opening = asyncio.ensure_future(penstock.aio.open(tmp_path / "q", clock=clock))
        await asyncio.to_thread(clock.asked.wait)
        clock.go_on.set()
        wait_for_threads()  # the loop stands still, and has not heard that it is open
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.to_thread(wait_for_threads)
        await (await penstock.aio.open(tmp_path / "q")).close()

    asyncio.run(main())


def test_an_opening_that_outlives_its_loop_keeps_the_directory(tmp_path: Path) -> None:
    clock = Held()

    async def main() -> None:
        opening = asyncio.ensure_future(penstock.aio.open(tmp_path / "q", clock=clock))
        await asyncio.to_thread(clock.asked.wait)
        assert not opening.done()

    asyncio.run(main())
    clock.go_on.set()
    wait_for_threads()
    penstock.open(tmp_path / "q").close()


def test_an_opening_that_fails_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match="node is 5000"):
            await penstock.aio.open(tmp_path / "q", node=5000)

    asyncio.run(main())


def test_a_broker_cannot_be_opened_or_closed_while_the_threads_of_the_loop_are_busy(tmp_path: Path) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        begun, go_on = threading.Event(), threading.Event()

        def handle() -> None:
            begun.set()
            go_on.wait()

        handling = asyncio.create_task(asyncio.to_thread(handle))
        async with penstock.aio.open(tmp_path / "q") as broker:
            await broker.queue("orders")
        assert not handling.done()
        go_on.set()
        await handling
        assert begun.is_set()

    asyncio.run(main())
