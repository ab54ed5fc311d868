"""A worker: receive, call the handler, settle by its outcome, until it is told to stop.

Theory of operation
-------------------
There is one set of rules, `_Work`, which runs on an event loop and speaks to the port. `Worker`, for threads, runs it on a private loop in the thread that
calls `run`, and has the handler called by threads of its own (`hands`); `AioWorker` runs it on the caller's loop and awaits the
handler there. Nothing else differs: a receive that waits can be cancelled on a loop, and cannot be in a thread.

Three kinds of tasks share what is in hand (`verdict.Holding`):

- one *fetches*: it leases as much as there is room for (`prefetch`), and waits while there is none; what no idle handler takes
  at once is leased ahead;
- `concurrency` of them *handle*: each takes the next message that was not begun, reports it if it was leased ahead, has the
  handler called, and settles it;
- one *renews*: leases that are older than a third of the visibility timeout, all that are due in one call.

What always holds:

- A message in hand is renewed, begun or not, until its settling begins. If its lease is lost anyway (the process stood still for
  longer than the visibility timeout), somebody else may have it: that is logged, and the outcome is dropped.
- Nothing that a handler raises or returns ends the worker: it is the outcome of one message.
- `stop()` ends fetching, gives back what was not begun, and waits for what was. `stop(now=True)` does not wait: coroutines are cancelled, and those
  that have not ended a little later are left behind; threads are left behind at once (Python cannot stop them). Their messages are given back.
- Everything is leased in the name of one consumer, which is released at the end, however it comes: nothing stays leased.

A crash leaves what any consumer's crash leaves: leases, which end by themselves. The attempt counts for messages whose handler
had begun, and not for those that only waited here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, NoReturn

from penstock import argument
from penstock.broker import aio, calls, sync
from penstock.broker.deliveries import Leased, deliveries, receipts
from penstock.broker.hand_over import HandOvers
from penstock.broker.hands import Hands
from penstock.broker.port import Port
from penstock.broker.ticket import Stoppable, Ticket
from penstock.broker.verdict import (
    ACK,
    GIVE_BACK,
    Ending,
    Held,
    Holding,
    Reject,
    Retry,
    Unfinished,
    Verdict,
    finished,
    is_awaitable,
    raised,
    returned,
)
from penstock.clock import SECOND_US
from penstock.errors import BrokerClosed, InvalidArgument, LeaseLost, PenstockError
from penstock.limits import CONCURRENCY_MAX
from penstock.model.commands import DEFAULT_GROUP, Attach, Command, HandOver, Receipts, Release, Settle, Unit
from penstock.policy import Backoff

__all__ = ["AioWorker", "Reject", "Retry", "Worker"]

#: A lease is renewed after this part of the visibility timeout: two renewals may fail before it is lost.
RENEW_AFTER: Final = 1 / 3

#: How long to wait after a receive that failed, if it is worth trying again at all.
RECEIVE_BACKOFF: Final = Backoff(initial=0.1, factor=2, maximum=30, jitter=0.5)

#: How long a coroutine that was cancelled may take to end. Long enough to close a connection; whoever stops a worker at once is waiting.
GRACE_S: Final = 3.0

#: What `run(signals=True)` heeds.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

#: What a lease is renewed for that need not end any more.
DAY_S: Final = 24 * 3600.0

_LOG: Final = logging.getLogger("penstock.worker")


class _Work:
    """The rules, on an event loop. The shells say which kind of queue and delivery it is about."""

    _queue_kind: type[Any]
    _group_kind: type[Any]
    _delivery_kind: type[Leased]
    _instead: str

    def __init__(
        self,
        queue: Any,
        handler: Callable[[Any], Any],
        *,
        concurrency: int,
        prefetch: int | None,
        name: str | None,
        receive_backoff: Backoff,
    ) -> None:
        group = DEFAULT_GROUP
        if issubclass(type(queue), self._group_kind):
            queue, group = queue._of, queue.name
        elif not issubclass(type(queue), self._queue_kind):
            raise InvalidArgument(
                f"{argument.quoted(queue)} is not a queue or group of this kind; {self._instead}"
            )
        if not callable(handler):
            raise InvalidArgument(
                f"the handler is {argument.quoted(handler)}; give a function that takes a delivery"
            )
        if not issubclass(type(receive_backoff), Backoff):
            raise InvalidArgument(
                f"receive_backoff is {argument.quoted(receive_backoff)}; give a Backoff, such as Backoff(initial=1)"
            )
        #: Messages that were acknowledged; that were retried or rejected; and those whose outcome could not be recorded.
        self.processed = 0
        self.failed = 0
        self.lost = 0
        self.name = calls.consumer_name(name)
        self._queue = queue
        self._group = group
        self._port: Port = queue._port
        self._handler = handler
        self._concurrency = _concurrency(concurrency)
        self._prefetch = self._concurrency if prefetch is None else calls.prefetch(prefetch)
        if self._prefetch < self._concurrency:
            raise InvalidArgument(
                f"prefetch is {prefetch} and concurrency is {concurrency}: some would never have anything to do; "
                "give a prefetch that is not below it"
            )
        if queue.policy.delivery == "at-most-once":
            self._prefetch = self._concurrency  # what is fetched there is settled: it must be begun
        self._backoff = receive_backoff
        self._holding = Holding()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = False
        self._now = False  # stopped at once
        self._receiving: Ticket[Any] | None = None
        self._over = False  # nothing more is to be begun
        self._told_of_unfinished = False
        self._error: BaseException | None = None
        self._handling: list[asyncio.Task[None]] = []
        self._hand_overs = HandOvers(group, self._report)
        self._hands: Hands | None = None

    # --- running and stopping ---

    def stop(self, *, now: bool = False) -> None:
        """Fetch nothing more, give back what was not begun, and let `run` return when what was begun is finished.

        With `now` that is not waited for: it is given back too. This may be called from anywhere: another thread, a signal handler, the handler itself.
        """
        self._asked_to_stop = True
        self._now = self._now or now
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: it has stopped
                self._loop.call_soon_threadsafe(self._on_stop)

    def _on_stop(self) -> None:
        self._stopping.set()
        if self._now and not self._at_once.done():
            self._over = True
            self._at_once.set_result(None)
            for task in self._handling:
                task.cancel()

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._asked_to_stop:
            _LOG.warning("%s again: giving back what is in hand", name)
            self.stop(now=True)
        else:
            _LOG.info("%s: finishing what is in hand; once more to stop at once", name)
            self.stop()

    async def _run(self, *, signals: bool) -> bool:
        """Work until stopped; whether everything that was begun was also finished."""
        if self._loop is not None:
            raise InvalidArgument("a worker runs once: make another")
        if signals and threading.current_thread() is not threading.main_thread():
            raise InvalidArgument(
                "signals arrive in the main thread: run the worker there, or without signals=True"
            )
        self._stopping = asyncio.Event()
        self._has_room = asyncio.Event()
        self._took = asyncio.Event()
        self._begun_next: asyncio.Queue[Held | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._at_once: asyncio.Future[None] = self._loop.create_future()
        with _heeding(self._loop, self._on_signal) if signals else nullcontext():
            await self._work()
        if self._error is not None:
            raise self._error
        return not self._now

    async def _work(self) -> None:
        self._has_room.set()
        self.name = await self._port.consumer(self._queue._log, self._group, Attach(self.name)).get()
        fetching = self._task(self._fetch_all())
        renewing = self._task(self._renew_all())
        self._handling = [self._task(self._handle_all()) for _ in range(self._concurrency)]
        done = False
        try:
            if self._asked_to_stop:  # before there was a loop to be told
                self._on_stop()
            await self._stopping.wait()
            await self._end(fetching)
            await self._give_back_unbegun()
            for _ in self._handling:
                self._begun_next.put_nowait(None)
            await self._handled()
            done = not self._now
        finally:
            self._over = True
            try:
                # Who was cancelled once has had his time, and is not to be disturbed while he clears up.
                await _cancelled([fetching, renewing, *(() if self._at_once.done() else self._handling)])
                self._leave_behind([task for task in self._handling if not task.done()])
            finally:
                if self._hands is not None:
                    self._hands.close(wait=done)
                with suppress(PenstockError):  # then nobody holds anything any more
                    await self._port.consumer(self._queue._log, self._group, Release(self.name)).get()

    async def _handled(self) -> None:
        """What was begun has ended; or we are stopped at once, and it has had some time for that."""
        handled: asyncio.Future[Any] = asyncio.gather(*self._handling, return_exceptions=True)
        either: list[asyncio.Future[Any]] = [handled, self._at_once]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({handled}, timeout=GRACE_S)

    def _leave_behind(self, tasks: list[asyncio.Task[None]]) -> None:
        if tasks:
            _LOG.error(
                "%d handlers of %r have not ended though they were cancelled; they are left behind, and their messages are given back",
                len(tasks),
                self._queue.name,
            )

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """A task that fails ends the worker: it would go on with a hand less, or with none."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self.stop()

    # --- fetching ---

    async def _fetch_all(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            await self._has_room.wait()
            try:
                await self._receive(self._prefetch - len(self._holding))
            except BrokerClosed:
                _LOG.info("the broker is closed: the worker on %r ends", self._queue.name)
                self.stop()
                return
            except PenstockError as error:
                if not error.retryable:
                    raise
                failures += 1
                pause_s = self._backoff.delay_us(failures, random.random()) / SECOND_US
                _LOG.warning(
                    "receiving from %r: %s; trying again in %.1f s", self._queue.name, error, pause_s
                )
                await asyncio.sleep(pause_s)
            else:
                failures = 0

    async def _receive(self, count: int) -> None:
        """Wait for messages and take them: those that no idle handler takes at once are leased ahead."""
        ahead = max(0, count - max(0, self._concurrency - len(self._holding)))
        self._receiving = self._port.lease(
            self._queue._log, self._group, count, consumer=self.name, wait_us=None, ahead=ahead
        )
        try:
            found = deliveries(self._delivery_kind, self._queue, await self._receiving.get())
        finally:
            self._receiving = None
        self._take(found, count - ahead)

    async def _end(self, fetching: asyncio.Task[None]) -> None:
        """Fetch no more. What was granted already is taken: at most once means that nobody else will get it."""
        if self._receiving is not None and not self._now:
            if isinstance(self._receiving, Stoppable):
                self._receiving.stop()
            await asyncio.wait([fetching])
        await _cancelled([fetching])

    def _take(self, found: list[Leased], at_once: int) -> None:
        renew_us = self._renew_us()
        for n, delivery in enumerate(found):
            held = self._holding.take(delivery, renew_us if delivery._number else None)
            held.is_ahead = bool(delivery._number) and n >= at_once
            self._begun_next.put_nowait(held)
        self._took.set()
        self._look_for_room()

    def _look_for_room(self) -> None:
        """Fetch when somebody is idle or half of what is fetched ahead is begun: not one by one, if it can be helped."""
        ahead = (self._prefetch - self._concurrency) // 2
        if len(self._holding) < self._prefetch and self._begun_next.qsize() <= ahead:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def _give_back_unbegun(self) -> None:
        unbegun = []
        while not self._begun_next.empty():
            held = self._begun_next.get_nowait()
            if held is not None:
                unbegun.append(held)
        for held in unbegun:
            if not held.delivery._number:  # at most once: it is gone if it is not begun now
                self._begun_next.put_nowait(held)
        back = [held for held in unbegun if held.delivery._number]
        for held in back:
            self._holding.put_down(held)
        with suppress(PenstockError):  # the end of the consumer gives back what is left
            await self._all_or_each(back, lambda one: self._settling(one, GIVE_BACK))

    # --- handling ---

    async def _handle_all(self) -> None:
        while not self._over and (held := await self._begun_next.get()) is not None:
            self._look_for_room()
            if await self._is_ours(held):
                verdict = await self._judge(held.delivery)
                await self._settle(held, verdict)
            self._holding.put_down(held)
            self._look_for_room()

    async def _is_ours(self, held: Held) -> bool:
        """Whether the message may be handled, once the broker knows that it is."""
        if held.is_ahead and not held.lost:
            delivery, why = held.delivery, "its lease has ended"
            try:
                held.lost = delivery.offset not in await self._hand_overs.report(
                    [delivery.offset], [delivery._number]
                )
            except PenstockError as error:
                held.lost, why = True, str(error)
            if held.lost:
                _LOG.info("message %d of %r comes again: %s", delivery.id, self._queue.name, why)
        return not held.lost

    async def _report(self, given: Receipts) -> list[int]:
        (held,) = await self._do(HandOver(*given)).get()
        return list(held)

    async def _judge(self, delivery: Leased) -> Verdict:
        try:
            ending = await self._call(delivery)
        except BaseException as error:  # a handler must not end the worker by accident
            if _comes_from_around(error):
                raise  # it is given back at the end
            ending = Ending(error=error)
        try:
            return returned(ending.result) if ending.error is None else self._failure(delivery, ending.error)
        except Exception as error:  # somebody's own kind of `Retry`, or of error, that cannot be read
            return raised(error)

    async def _call(self, delivery: Leased) -> Ending:
        """Have the handler called: on the loop if it is a coroutine function, otherwise by a thread."""
        if is_coroutine_function(self._handler):
            result = self._handler(delivery)
        else:
            if self._hands is None:
                self._hands = Hands(self._called_by_hand(), self._concurrency, self.name)
            ending = await self._hands.call(delivery)
            if ending.error is not None:
                return ending
            result = ending.result
        while is_awaitable(result):
            result = await result
        return Ending(finished(result))

    def _called_by_hand(self) -> Callable[[Any], object]:
        """What a thread calls; what that returns may have to be awaited on the loop."""
        return self._handler

    def _failure(self, delivery: Leased, error: BaseException) -> Verdict:
        if isinstance(error, Unfinished) and not self._told_of_unfinished:
            self._told_of_unfinished = True
            _LOG.error("a message of %r failed, and the others will: %s", self._queue.name, error)
        elif not isinstance(error, Reject | Retry):
            what = (delivery.id, self._queue.name, delivery.attempt)
            _LOG.warning("message %d of %r failed on attempt %d", *what, exc_info=error)
        return raised(error)

    async def _settle(self, held: Held, verdict: Verdict) -> None:
        held.renew_us = None  # from here on it is not ours to renew
        try:
            if held.lost:
                return
            if held.delivery._number:
                await self._settling([held], verdict).get()
        except PenstockError as error:
            self._lose(held, error)
        else:
            if verdict is ACK:
                self.processed += 1
            else:
                self.failed += 1

    def _settling(self, found: list[Held], verdict: Verdict) -> Ticket[Any]:
        (one,) = receipts([held.delivery for held in found], self._queue)
        return self._do(Settle(*one, verdict.how, verdict.delay, verdict.error))

    def _do(self, command: Command) -> Ticket[list[Any]]:
        log = self._queue._log
        return self._port.commit(Unit(log.namespace, ((log, command),)))

    def _lose(self, held: Held, error: PenstockError) -> None:
        held.lost = True
        held.renew_us = None
        self.lost += 1
        what = (held.delivery.id, self._queue.name, held.delivery.attempt)
        _LOG.error("message %d of %r, attempt %d: its outcome is dropped, because %s", *what, error)

    # --- renewing ---

    def _renew_us(self) -> int | None:
        """When leases that begin now must be renewed; None if they have no end."""
        timeout_s: float | None = self._queue.policy.visibility_timeout
        if timeout_s is None:
            return None
        return self._port.clock.monotonic_us() + round(timeout_s * SECOND_US * RENEW_AFTER)

    async def _renew_all(self) -> None:
        while True:
            next_us = self._holding.next_us()
            if next_us is None:
                self._took.clear()
                await self._took.wait()
            else:
                await asyncio.sleep(max(0, next_us - self._port.clock.monotonic_us()) / SECOND_US)
                await self._beat()

    async def _beat(self) -> int:
        """Renew what is due; how many."""
        due = self._holding.due(self._port.clock.monotonic_us())
        for held in due:
            held.renew_us = self._renew_us()
        try:
            lost = await self._all_or_each(due, self._extending)
        except BrokerClosed:
            return 0  # whoever fetches ends the worker
        except PenstockError as error:
            _LOG.warning("renewing %d leases of %r: %s", len(due), self._queue.name, error)
            return 0
        for held, why in lost:
            if held.renew_us is not None:  # otherwise it was settled meanwhile
                self._lose(held, why)
        return len(due) - len(lost)

    def _visible_s(self) -> float:
        """For how long a lease is renewed: only those that end are. If leases no longer end, these ended when they were begun."""
        timeout: float | None = self._queue.policy.visibility_timeout
        return DAY_S if timeout is None else timeout

    def _extending(self, found: list[Held]) -> Ticket[None]:
        (one,) = receipts([held.delivery for held in found], self._queue)
        return self._port.extend(self._queue._log, one, self._visible_s())

    async def _all_or_each(
        self, found: list[Held], call: Callable[[list[Held]], Ticket[Any]]
    ) -> list[tuple[Held, LeaseLost]]:
        """In one call; if some of the leases are lost, one by one, so that the others do not suffer. Those that are lost."""
        if not found:
            return []
        with suppress(LeaseLost):
            await call(found).get()
            return []
        lost = []
        for held in found:
            try:
                await call([held]).get()
            except LeaseLost as error:
                lost.append((held, error))
        return lost


class Worker(_Work):
    """Handles the messages of a queue in threads, until it is stopped.

    The handler gets a delivery. When it returns, the message is acknowledged; when it raises, it is retried by the queue's backoff and dead-lettered
    after its last attempt; `Retry` and `Reject`, raised or returned, say it otherwise. It must not settle the delivery itself. A handler
    that takes longer than the visibility timeout keeps its message: the lease is renewed while it runs.

    `concurrency` is how many messages are handled at once. `prefetch` is how many are held at once, begun or not; as many as are handled, unless
    more are asked for. `name` is the consumer's; if another one has it, a number is added.

    >>> import penstock
    >>> with penstock.open() as broker:
    ...     orders = broker.queue("orders")
    ...     _ = orders.publish(b"an order")
    ...     def handle(delivery):
    ...         print(delivery.payload)
    ...         worker.stop()
    ...     worker = penstock.Worker(orders, handle)
    ...     worker.run()
    b'an order'
    True
    """

    _queue_kind = sync.Queue
    _group_kind = sync.Group
    _delivery_kind = sync.Delivery
    _instead = "give a queue of penstock.open(), a group of one or a topic's subscription, or use penstock.aio.Worker"

    def __init__(
        self,
        queue: sync.Queue | sync.Group,
        handler: Callable[[sync.Delivery], object],
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        name: str | None = None,
        receive_backoff: Backoff = RECEIVE_BACKOFF,
    ) -> None:
        super().__init__(
            queue,
            handler,
            concurrency=concurrency,
            prefetch=prefetch,
            name=name,
            receive_backoff=receive_backoff,
        )
        if is_coroutine_function(handler):
            raise InvalidArgument(
                f"{argument.quoted(handler)} is a coroutine function; use penstock.aio.Worker"
            )

    def _called_by_hand(self) -> Callable[[Any], object]:
        """The thread itself sees to it that the work is done: nothing is awaited here."""
        handler = self._handler
        return lambda delivery: finished(handler(delivery))

    def run(self, *, signals: bool = False) -> bool:
        """Work until `stop()`, or until the broker is closed; whether everything that was begun was also finished.

        With `signals`, which needs the main thread, SIGTERM and SIGINT stop it; the second one stops it at once.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._run(signals=signals))
        raise InvalidArgument(
            "an event loop runs in this thread; use penstock.aio.Worker, or run it in a thread of its own"
        )

    def beat(self) -> int:
        """Renew the leases that are due; how many. It happens by itself: this is for clocks that are moved by hand."""
        if self._loop is None:
            _not_running()
        return asyncio.run_coroutine_threadsafe(self._beat(), self._loop).result()


class AioWorker(_Work):
    """The same for asyncio, as `penstock.aio.Worker`: handlers are coroutine functions; any other function is called in a thread, and what it returns
    is awaited if it can be.

    >>> import asyncio, penstock
    >>> async def main():
    ...     async with penstock.aio.open() as broker:
    ...         orders = await broker.queue("orders")
    ...         await orders.publish(b"an order")
    ...         async def handle(delivery):
    ...             print(delivery.payload)
    ...             worker.stop()
    ...         worker = penstock.aio.Worker(orders, handle, concurrency=10)
    ...         await worker.run()
    >>> asyncio.run(main())
    b'an order'
    """

    _queue_kind = aio.Queue
    _group_kind = aio.Group
    _delivery_kind = aio.Delivery
    _instead = "give a queue of penstock.aio.open(), a group of one or a topic's subscription, or use penstock.Worker"

    def __init__(
        self,
        queue: aio.Queue | aio.Group,
        handler: Callable[[aio.Delivery], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        name: str | None = None,
        receive_backoff: Backoff = RECEIVE_BACKOFF,
    ) -> None:
        super().__init__(
            queue,
            handler,
            concurrency=concurrency,
            prefetch=prefetch,
            name=name,
            receive_backoff=receive_backoff,
        )

    async def run(self, *, signals: bool = False) -> bool:
        """Work until `stop()`, or until the broker is closed; whether everything that was begun was also finished.

        With `signals`, which needs the main thread, SIGTERM and SIGINT stop it; the second one stops it at once. Cancelling it
        does so too.
        """
        return await self._run(signals=signals)

    async def beat(self) -> int:
        """Renew the leases that are due; how many. It happens by itself: this is for clocks that are moved by hand."""
        if self._loop is None:
            _not_running()
        return await self._beat()


def is_coroutine_function(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives something to be awaited: also for objects whose `__call__` is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _not_running() -> NoReturn:
    raise InvalidArgument("the worker does not run yet")


def _concurrency(given: int) -> int:
    plain = argument.integer(given)
    if plain is None or not 1 <= plain <= CONCURRENCY_MAX:
        raise InvalidArgument(
            f"concurrency is {argument.quoted(given)}; give an int from 1 to {CONCURRENCY_MAX}"
        )
    return plain


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks, and give them time to end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=GRACE_S)


def _comes_from_around(error: BaseException) -> bool:
    """Whether an error came to a handler, and not out of it: its task is cancelled, or thrown away with its loop."""
    if isinstance(error, GeneratorExit):
        return asyncio._get_running_loop() is None
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


@contextmanager
def _heeding(loop: asyncio.AbstractEventLoop, call: Callable[[int], None]) -> Iterator[None]:
    """Have a loop called for signals, and put everything back afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, call, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
