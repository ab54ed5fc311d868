"""Threads that keep no process alive, and are no more than they may be."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from penstock.server import threads
from penstock.server.http.spark import Tables
from penstock.server.threads import Threads


def test_what_spark_asks_for_is_waited_for_at_the_end() -> None:
    async def daemons() -> list[bool]:
        front: Any = None
        tables = Tables(front)
        return [
            await tables.work(lambda: threading.current_thread().daemon, waiting=one) for one in (False, True)
        ]

    assert asyncio.run(daemons()) == [True, True]


def test_one_that_nobody_waits_for_any_more_gives_its_place_away() -> None:
    async def scenario() -> None:
        pool, begun, end = Threads(1, "test"), threading.Event(), threading.Event()

        def stand() -> None:
            begun.set()
            end.wait()

        first = asyncio.create_task(pool.run(stand))
        await asyncio.to_thread(begun.wait)
        assert threads.any_busy()
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        second = asyncio.create_task(pool.run(lambda: "second"))
        await asyncio.sleep(0)
        assert not second.done()
        end.set()
        assert await second == "second"

    asyncio.run(scenario())


def test_what_it_raises_is_lost() -> None:
    def fail() -> None:
        raise ValueError("so it is")

    async def scenario() -> None:
        pool = Threads(1, "test")
        for _ in range(2):
            with pytest.raises(ValueError, match="so it is"):
                await pool.run(fail)
        assert await threads.in_thread(lambda: 3) == 3

    asyncio.run(scenario())


class Large:
    """Something that is handed to a thread."""


@pytest.mark.parametrize("pooled", [True, False])
def test_what_a_failed_function_was_given_is_let_go_at_once(*, pooled: bool) -> None:
    """Not only when the garbage collector comes by: it may be a body of many megabytes."""

    def fail(given: Large) -> None:
        raise ValueError(f"so it is with {given}")

    async def scenario() -> None:
        given = Large()
        seen = weakref.ref(given)
        pool = Threads(1, "test")
        try:
            await (pool.run(fail, given) if pooled else threads.in_thread(partial(fail, given)))
        except ValueError:
            del given
        for thread in threading.enumerate():
            if thread.name in {"penstock-test", "penstock-serve"}:
                thread.join()
        await asyncio.sleep(0)  # the loop has callbacks of futures that are done
        assert seen() is None

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
