"""The shell for asyncio: the objects of `sync`, with `await`.

The loop neither writes nor syncs: commits are made by a thread. It reads messages that are no longer in memory, and waits for the broker's lock as
threads do. Opening and closing take as long as they take, each in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from penstock import limits
from penstock.broker import calls
from penstock.broker.deliveries import Leased, deliveries, receipts
from penstock.broker.embedded import Embedded
from penstock.broker.ledger import DEFAULT_NAMESPACE
from penstock.broker.opening import port as open_port
from penstock.broker.port import BrokerStats, Handle, How, Port, QueueStats, Receipts
from penstock.clock import Clock, Duration
from penstock.engine.log import DEFAULT_GROUP
from penstock.errors import BrokerClosed
from penstock.journal.tail import Durability
from penstock.message import Message
from penstock.policy import Policy

T = TypeVar("T")


class Delivery(Leased, gc=False, weakref=False):
    """A message that was handed out, until it is settled or its lease ends."""

    async def ack(self) -> None:
        """It was processed: it never comes again."""
        if self._number:
            await self._queue._settle(self._receipts(), "ack")

    async def nack(self, *, delay: Duration | None = None, error: object = None) -> None:
        """It failed: it is retried later, by the policy's backoff or after `delay`, and dead-lettered after its last attempt."""
        await self._queue._settle(self._receipts(), "nack", delay=delay, error=error)

    async def reject(self, *, error: object = None) -> None:
        """It failed for good: it goes straight to the dead letters."""
        await self._queue._settle(self._receipts(), "reject", error=error)

    async def requeue(self) -> None:
        """Give it back to its old place, without waiting."""
        await self._queue._settle(self._receipts(), "requeue")

    async def extend(self, seconds: Duration) -> None:
        """Keep it for so long from now."""
        await self._queue._extend(self._receipts(), seconds)


class Queue:
    """A log read by competing consumers: each message is processed once."""

    def __init__(self, broker: Broker, log: Handle, *, of_dead_letters: bool = False) -> None:
        self._broker = broker
        self._of_dead_letters = of_dead_letters  # of some queue: then they are what a redrive moves
        self._port = broker._port
        self._log = log

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def policy(self) -> Policy:
        """How it behaves now."""
        return self._log.policy

    # --- publishing ---

    async def publish(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        ttl: Duration | None = None,
        dedup_id: str | None = None,
    ) -> int:
        """Append a message; its id. When this returns it is durable."""
        message = calls.message(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id)
        return (await self._port.publish(self._log, [message]).get())[0]

    async def publish_many(self, messages: Iterable[bytes | Message]) -> list[int]:
        """Append messages, all or none; their ids."""
        return list(await self._port.publish(self._log, messages).get())

    # --- receiving ---

    async def receive(self, timeout: Duration | None = 0) -> Delivery | None:
        """The next message; None if there is none within `timeout`, which may be None for ever."""
        found = await self._receive(1, timeout)
        return found[0] if found else None

    async def receive_many(self, count: int, timeout: Duration | None = 0) -> list[Delivery]:
        """Up to `count` messages, as soon as there is at least one."""
        return await self._receive(count, timeout)

    async def _receive(
        self, count: int, timeout: Duration | None, consumer: str | None = None, *, keep: bool = True
    ) -> list[Delivery]:
        ticket = self._port.lease(
            self._log, DEFAULT_GROUP, count, consumer=consumer, wait_us=calls.wait_us(timeout), keep=keep
        )
        return deliveries(Delivery, self, await ticket.get())

    async def subscribe(
        self, consumer: str | None = None, *, prefetch: int = 1, auto_ack: bool = False
    ) -> Consumer:
        """A consumer, to be iterated over; closing it gives back what it has not settled."""
        name = calls.consumer_name(consumer)
        calls.prefetch(prefetch)  # a receive is a function call here: nothing is sent ahead
        keep = not calls.flag("auto_ack", auto_ack)
        given = await self._port.attach(self._log, DEFAULT_GROUP, name).get()
        return Consumer(self, given, keep=keep)

    # --- settling ---

    async def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        for of_group in receipts(found, self):
            await self._settle(of_group, "ack")

    async def _settle(
        self, settled: Receipts, how: How, *, delay: Duration | None = None, error: object = None
    ) -> None:
        ticket = self._port.settle(
            self._log, settled, how, delay_us=calls.delay_us(delay), error=calls.error_text(error)
        )
        await ticket.get()

    async def _extend(self, kept: Receipts, seconds: Duration) -> None:
        await self._port.extend(self._log, kept, calls.extension_us(seconds)).get()

    # --- looking and changing ---

    async def peek(self, count: int = 1) -> list[Message]:
        """The next messages, without taking them."""
        return await self._port.read(self._log, calls.count(count)).get()

    async def depth(self) -> int:
        """How many messages are not yet settled."""
        return (await self.stats()).depth

    async def stats(self) -> QueueStats:
        """What it holds now."""
        return await self._port.describe(self._log).get()

    async def purge(self) -> int:
        """Remove every message that is not leased; how many there were."""
        removed: int = await self._port.change(self._log, "purge").get()
        return removed

    async def alter(self, **policy: Any) -> None:
        """Change its policy, from now on."""
        await self._port.change(self._log, "alter", **policy).get()

    # --- dead letters ---

    async def dead_letters(self) -> Queue:
        """The queue of what failed for good: an ordinary queue, which can also be redriven."""
        log = await self._port.change(self._log, "dead-letters").get()
        return Queue(self._broker, log, of_dead_letters=True)

    async def redrive(
        self, *, where: str | None = None, limit: int | None = None, rate: float | None = None, to: str | None = None
    ) -> int:  # fmt: skip
        """Move dead letters back to where they failed, or to another queue; how many were moved.

        `where` is a filter, `limit` the most that are moved, `rate` the most in a second.
        """
        dead = self._log
        if not self._of_dead_letters:
            dead = await self._port.change(self._log, "redrive").get()
        plan = calls.Redrive(self._port, dead, where, limit, rate, to)
        while plan.more():
            plan.took(await plan.step().get())
            await asyncio.sleep(plan.pause_s())  # also to let others run: a step may need no waiting at all
        return plan.moved


class Consumer:
    """Messages of a queue, one after the other, for one consumer.

    As an iterator it waits for messages until it, or the broker, is closed.
    """

    def __init__(self, queue: Queue, name: str, *, keep: bool) -> None:
        self._queue = queue
        self._keep = keep
        self._closed = False
        self.name = name

    async def receive(self, timeout: Duration | None = 0) -> Delivery | None:
        """The next message; None if there is none within `timeout`."""
        found = await self.receive_many(1, timeout)
        return found[0] if found else None

    async def receive_many(self, count: int, timeout: Duration | None = 0) -> list[Delivery]:
        """Up to `count` messages, as soon as there is at least one."""
        if self._closed:
            raise BrokerClosed(f"the consumer {self.name!r} is closed: subscribe again")
        return await self._queue._receive(count, timeout, self.name, keep=self._keep)

    async def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        await self._queue.ack_many(found)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message, however long it takes; the end is when this consumer, or the broker, is closed."""
        while not self._closed:
            try:
                found = await self.receive_many(1, None)
            except BrokerClosed:
                break
            if found:
                return found[0]
        raise StopAsyncIteration

    async def close(self) -> None:
        """Give back what was handed out and not settled."""
        if not self._closed:
            self._closed = True
            await self._queue._port.release(self._queue._log, DEFAULT_GROUP, self.name).get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Broker:
    """Queues in this process."""

    def __init__(self, port: Port, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._port = port
        self._namespace = namespace

    async def queue(self, name: str, **policy: Any) -> Queue:
        """The queue of that name, made if it does not exist; what is given must be what is stored."""
        return Queue(self, await self._port.declare(self._namespace, name, policy, create=None).get())

    async def create_queue(self, name: str, **policy: Any) -> Queue:
        """A new queue; an error if there is one of that name."""
        return Queue(self, await self._port.declare(self._namespace, name, policy, create=True).get())

    async def get_queue(self, name: str) -> Queue:
        """The queue of that name; an error if there is none."""
        return Queue(self, await self._port.declare(self._namespace, name, {}, create=False).get())

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it; an error if there is none of that name."""
        log = await self._port.declare(self._namespace, name, {}, create=False).get()
        await self._port.change(log, "delete").get()

    async def list_queues(self) -> list[str]:
        """The names of all queues, but not those of dead letters."""
        return await self._port.names(self._namespace).get()

    async def stats(self) -> BrokerStats:
        """What the broker knows of itself, the journal's damage included."""
        return self._port.stats()

    async def close(self, timeout: Duration | None = None) -> None:
        """Finish what is under way, sync, and let go of the directory."""
        timeout_s = calls.seconds(timeout)
        await asyncio.wrap_future(_in_a_thread(partial(self._port.close, timeout_s), "penstock-close"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Opening:
    """What `aio.open` gives: await it, or use it with `async with`."""

    def __init__(
        self, path: str | Path | None, clock: Clock | None, node: int, settings: dict[str, Any]
    ) -> None:
        self._arguments = (path, clock, node)
        self._settings = settings
        self._broker: Broker | None = None

    async def _open(self) -> Broker:
        opening = _in_a_thread(partial(open_port, *self._arguments, **self._settings), "penstock-open")
        try:
            port = await asyncio.wrap_future(opening)
        except BaseException:  # nobody waits for it any more; it goes on all the same
            opening.add_done_callback(_let_go)
            raise
        self._broker = Broker(port)
        return self._broker

    def __await__(self) -> Generator[Any, None, Broker]:
        return self._open().__await__()

    async def __aenter__(self) -> Broker:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        if self._broker is not None:
            await self._broker.close()


def _in_a_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Have something done by a thread of its own: all those of the loop may be busy with handlers that hang."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who waits for it may go away, and it is done to its end

    def do() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=do, name=name).start()
    return future


def _let_go(opening: Future[Embedded]) -> None:
    """Close what was opened for nobody. Perhaps on the loop, so not here."""
    if opening.exception() is None:
        _in_a_thread(opening.result().close, "penstock-close")


def open(  # noqa: A001  # it is the name in the API
    path: str | Path | None = None,
    *,
    durability: Durability = "commit",
    commit_interval_ms: float = limits.COMMIT_INTERVAL_MS,
    segment_bytes: int = limits.SEGMENT_BYTES,
    node: int = 0,
    clock: Clock | None = None,
) -> Opening:
    """The same for asyncio: `broker = await penstock.aio.open(…)`, or `async with penstock.aio.open(…) as broker`."""
    settings = {
        "durability": durability,
        "commit_interval_ms": commit_interval_ms,
        "segment_bytes": segment_bytes,
    }
    return Opening(path, clock, node, settings)
