"""Where a client's coroutines run, and the tickets by which threads and tasks wait for them.

Theory of operation
-------------------
There is one implementation of the client, in coroutines. For asyncio they run on the caller's own loop; for threads on a private loop in a daemon thread. A call of the port is begun at
once and gives a ticket: threads wait for it, tasks of any loop await it (a `Worker` has a loop of its own, and a port of threads behind it).

What always holds:

- Who goes away (a cancelled task, a Ctrl-C) does not stop a call halfway: it runs to its end, and its answer is dropped. What a receive was granted goes back then (see `Receiving`).
- A forked child has no loop and shares its parent's sockets: every call of it raises `ForkedProcess`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from penstock.broker.ticket import Stoppable
from penstock.errors import BrokerClosed, ForkedProcess, InvalidArgument

T = TypeVar("T")


class Runner:
    """A loop on which coroutines are begun, from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread | None = None) -> None:
        self.loop = loop
        self._thread = thread
        self._process = os.getpid()
        self._tasks: set[asyncio.Task[Any]] = set()  # a loop itself does not hold on to them

    @classmethod
    def in_a_thread(cls) -> Runner:
        """On a loop of its own, in a thread that does not keep the process from ending."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name="penstock-client", daemon=True)
        runner = cls(loop, thread)
        thread.start()
        return runner

    def is_here(self) -> bool:
        """Whether the caller is on the loop."""
        return asyncio._get_running_loop() is self.loop

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Have it done; its task, if the caller is on the loop."""
        try:
            self.require_own_process()
            if self.is_here():
                return self._spawn(work)
            self.loop.call_soon_threadsafe(self._spawn, work)
        except BaseException as error:
            work.close()
            if isinstance(error, RuntimeError):
                raise _over() from None
            raise
        return None

    def require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedProcess("this broker belongs to the parent process: connect in the child itself")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, timeout_s: float) -> None:
        """Wait for what is under way, but not for long: then it is cancelled."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in set(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def tell(self, call: Callable[[], object]) -> None:
        """Have something called on the loop; nothing if it is over."""
        if self.is_here():
            call()
            return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """End a loop of our own."""
        if self._thread is not None and os.getpid() == self._process:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.loop.stop)
            if self._thread is not threading.current_thread():
                self._thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _over() -> BrokerClosed:
    return BrokerClosed("the connection is closed, or its event loop has ended: connect again")


def _cut_off() -> BrokerClosed:
    error = BrokerClosed(
        "the connection was closed before the server answered: what became of the request is not known. Connect again, and look before you do it again"
    )
    error.indeterminate = True  # type: ignore[attr-defined]  # as it is of a server that does not answer
    return error


class Call(Generic[T]):
    """A call that was begun: a ticket."""

    __slots__ = ("_future", "_runner", "_task")

    def __init__(self, runner: Runner, work: Coroutine[Any, Any, T]) -> None:
        self._runner = runner
        self._future: Future[T] = Future()
        self._future.set_running_or_notify_cancel()  # who waits may go away; it is done to its end
        try:
            self._task = runner.begin(self._run(work))
        except BaseException:
            work.close()
            raise

    async def _run(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            value = await work
        except asyncio.CancelledError:
            self._future.set_exception(_cut_off())
            raise
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(value)

    def wait(self) -> T:
        if self._runner.is_here():
            raise InvalidArgument("this connection belongs to the event loop of this thread: await it")
        try:
            return self._future.result()
        except BaseException:
            if not self._future.done():  # a Ctrl-C
                self.abandon()
            raise

    async def get(self) -> T:
        try:
            if self._task is not None and self._runner.is_here():
                await asyncio.wait((self._task,))
            else:
                elsewhere = asyncio.wrap_future(self._future)
                elsewhere.add_done_callback(_heard)
                await asyncio.wait((elsewhere,))
        except asyncio.CancelledError:
            self.abandon()
            raise
        return self._future.result()

    def abandon(self) -> None:
        """Nobody waits for it any more."""


def _heard(future: asyncio.Future[Any]) -> None:
    """It is raised from the one that all share, so nobody asks this one."""
    if not future.cancelled():
        future.exception()


class Halt:
    """Said to those who wait for something on the loop: wait no longer."""

    __slots__ = ("_calls", "said")

    def __init__(self) -> None:
        self.said = False
        self._calls: list[Callable[[], object]] = []

    def say(self) -> None:
        """On the loop."""
        self.said = True
        for call in self._calls[:]:
            call()

    def heed(self, call: Callable[[], object]) -> None:
        """Have something called when it is said, be it already."""
        self._calls.append(call)
        if self.said:
            call()

    def ignore(self, call: Callable[[], object]) -> None:
        self._calls = [one for one in self._calls if one is not call]


class Receiving(Call[T], Stoppable):
    """A call that waits for messages. What was granted to somebody who went away is given back."""

    __slots__ = ("_give_back", "_halt")

    def __init__(
        self, runner: Runner, work: Coroutine[Any, Any, T], halt: Halt, give_back: Callable[[T], object] | None = None
    ) -> None:  # fmt: skip
        self._halt = halt
        self._give_back = give_back
        super().__init__(runner, work)

    def stop(self) -> None:
        self._runner.tell(self._halt.say)

    def abandon(self) -> None:
        self.stop()
        if self._give_back is not None:
            self._future.add_done_callback(self._unseen)

    def _unseen(self, future: Future[T]) -> None:
        if future.exception() is None and self._give_back is not None:
            self._give_back(future.result())
