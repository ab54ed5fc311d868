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
from penstock.broker.contents import messages_of
from penstock.broker.deliveries import Leased, deliveries, receipts
from penstock.broker.embedded import Embedded
from penstock.broker.ledger import DEFAULT_NAMESPACE
from penstock.broker.opening import port as open_port
from penstock.broker.port import (
    BrokerStats,
    GroupStats,
    Handle,
    How,
    Kind,
    Operation,
    Port,
    QueueStats,
    Receipts,
)
from penstock.broker.ticket import Stoppable, Ticket
from penstock.broker.trace import Step
from penstock.clock import Clock, Duration
from penstock.engine.log import DEFAULT_GROUP
from penstock.errors import BrokerClosed
from penstock.journal.tail import Durability
from penstock.message import Message
from penstock.names import check_name
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


class Log:
    """What a queue and a topic have in common: they are written, read and changed alike."""

    def __init__(self, broker: Broker, log: Handle, *, of_dead_letters: bool = False) -> None:
        self._broker = broker
        self._of_dead_letters = of_dead_letters  # of some queue: then they are what a redrive moves
        self._port = broker._port
        self._log = log

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

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
        payload: bytes | Message,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        ttl: Duration | None = None,
        dedup_id: str | None = None,
    ) -> int:
        """Append a payload or a whole `Message`; return its id. When this returns it is durable."""
        message = calls.message(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id)
        return (await self._port.publish(self._log, [message]).get())[0]

    async def publish_many(self, messages: Iterable[bytes | Message]) -> list[int]:
        """Append messages, all or none; their ids."""
        return list(await self._port.publish(self._log, messages).get())

    async def cancel(self, message_id: int) -> bool:
        """Remove a message that is not due yet; False if it is due already, or was settled. An id that is not stored is an error."""
        return await self._port.cancel(self._log, calls.id_of(message_id)).get()

    async def schedule(
        self, name: str, cron: str, message: bytes | Message, *, timezone: str = "UTC", missed: str = "once"
    ) -> None:
        """Publish a message whenever a cron expression says so, in place of what has that name.

        `missed` says what becomes of due times that nobody was there for: "once" (the last one is made up for), "skip" or "all".
        """
        found = calls.recurring(cron, timezone, missed, message, self.policy)
        await self._port.schedule(self._log, calls.schedule_name(name), found).get()

    async def unschedule(self, name: str) -> bool:
        """Publish it no more; False if nothing has that name."""
        return await self._port.schedule(self._log, calls.schedule_name(name), None).get()

    # --- receiving and settling ---

    async def _receive(
        self,
        group: str,
        count: int,
        timeout: Duration | None,
        consumer: str | None = None,
        *,
        keep: bool = True,
    ) -> list[Delivery]:
        ticket = self._port.lease(
            self._log, group, count, consumer=consumer, wait_us=calls.wait_us(timeout), keep=keep
        )
        return deliveries(Delivery, self, await ticket.get())

    async def _attach(
        self,
        group: str,
        consumer: str | None,
        prefetch: int,
        auto_ack: bool,
        heartbeat: Duration | None = None,
    ) -> Consumer:
        name = calls.consumer_name(consumer)
        prefetch = calls.prefetch(prefetch)
        keep = not calls.flag("auto_ack", auto_ack)
        given = await self._port.attach(self._log, group, name, calls.silence_us(heartbeat), prefetch).get()
        return Consumer(self, group, given, keep=keep)

    async def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        settled = receipts(found, self)
        if len(settled) == 1:
            await self._settle(settled[0], "ack")
        elif settled:
            steps = [Operation(self._log, receipts=of_group, how="ack") for of_group in settled]
            await self._port.transact(self._log.namespace, steps).get()

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

    async def reader(self, name: str, *, start: object = "earliest", hold: bool = False) -> Reader:
        """An independent position: what it committed before, or `start` ("earliest", "latest", an offset or a time).

        With `hold`, what is behind its committed position is kept for it, however long that takes.
        """
        name, place = calls.reader_name(name), calls.start(start)
        calls.flag("hold", hold)
        offset = await self._port.position(self._log, name, None).get()
        if offset is None:
            offset = await self._port.locate(self._log, place).get()
        found = Reader(self, name, offset)
        if hold:
            found.missed = (await self._port.read(self._log, offset, 1).get()).missed
            await self._port.position(self._log, name, offset, holds=True).get()
        return found

    async def peek(self, count: int = 1) -> list[Message]:
        """The next messages, without taking them."""
        return await self._port.peek(self._log, calls.count(count)).get()

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
        self,
        *,
        where: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        to: str | None = None,
    ) -> int:
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


class Queue(Log):
    """A log read by competing consumers: each message is processed once, in each of its groups."""

    async def receive(self, timeout: Duration | None = 0) -> Delivery | None:
        """The next message; None if there is none within `timeout`, which may be None for ever."""
        found = await self._receive(DEFAULT_GROUP, 1, timeout)
        return found[0] if found else None

    async def receive_many(self, count: int, timeout: Duration | None = 0) -> list[Delivery]:
        """Up to `count` messages, as soon as there is at least one."""
        return await self._receive(DEFAULT_GROUP, count, timeout)

    async def subscribe(
        self,
        consumer: str | None = None,
        *,
        prefetch: int = 1,
        auto_ack: bool = False,
        heartbeat: Duration | None = None,
    ) -> Consumer:
        """A consumer, to be iterated over; closing it gives back what it has not settled."""
        return await self._attach(DEFAULT_GROUP, consumer, prefetch, auto_ack, heartbeat)

    async def group(self, name: str, strategy: str | None = None) -> Group:
        """A group of that name, made if it does not exist: it gets each message once, whatever other groups do.

        A new one begins at the earliest message that is stored. `strategy` says how its consumers share: "round-robin", "least-busy" or "random".
        """
        name, strategy = calls.group_name(name), calls.strategy(strategy)
        await self._port.open_group(
            self._log, name, filter=None, strategy=strategy, start="earliest", durable=True
        ).get()
        return Group(self, name)

    async def delete_group(self, name: str) -> None:
        """End a group with all that waits in it. A queue's own one is "default"; it is made again when it is needed."""
        await self._port.close_group(self._log, calls.group_name(name)).get()

    async def depth(self) -> int:
        """How many messages are not yet settled."""
        return (await self.stats()).depth


class Topic(Log):
    """A log read by subscriptions: each of them gets every message."""

    async def subscribe(
        self,
        name: str | None = None,
        *,
        filter: str | None = None,
        durable: bool = True,
        start: object = "latest",
        consumer: str | None = None,
        prefetch: int = 1,
        auto_ack: bool = False,
        heartbeat: Duration | None = None,
    ) -> Consumer:
        """A consumer of the subscription of that name, which is made if it does not exist.

        A new one gets what is published from now on, or from `start` on. With `filter` it gets only what matches. A `durable` one stays, and loses nothing, until
        `unsubscribe`; another one ends with its last consumer, leaves nothing behind, and needs no name.
        """
        if name is None and calls.flag("durable", durable):
            raise calls.nameless()
        group = calls.consumer_name(None) if name is None else calls.subscription_name(name)
        prefetch = calls.prefetch(prefetch)
        keep = not calls.flag("auto_ack", auto_ack)
        given = await self._port.open_group(
            self._log, group, filter=filter, strategy=None, start=calls.start(start),
            durable=calls.flag("durable", durable), consumer=calls.consumer_name(consumer),
            silence_us=calls.silence_us(heartbeat), prefetch=prefetch,
        ).get()  # fmt: skip
        return Consumer(self, group, str(given), keep=keep)

    async def subscription(self, name: str) -> Group:
        """The subscription of that name, which must exist: its consumers, its lag, and seeking."""
        name = calls.subscription_name(name)
        found = Group(self, name)
        await found.stats()
        return found

    async def unsubscribe(self, name: str) -> None:
        """End a subscription with all that waits in it."""
        await self._port.close_group(self._log, calls.subscription_name(name)).get()

    async def subscriber_count(self) -> int:
        """How many subscriptions there are."""
        return len((await self.stats()).groups)


class Group:
    """One cursor over a queue or topic, shared by its consumers."""

    def __init__(self, log: Log, name: str) -> None:
        self._of = log
        self._port = log._port
        self.name = name

    def __repr__(self) -> str:
        return f"Group({self._of.name!r}, {self.name!r})"

    async def add_consumer(
        self,
        name: str | None = None,
        *,
        prefetch: int = 1,
        auto_ack: bool = False,
        heartbeat: Duration | None = None,
    ) -> Consumer:
        """A consumer that shares the group's messages with the others.

        With `heartbeat`, one that is not heard of for so long (it neither waits, receives, settles nor says so) is thought dead: what it has goes to the others.
        """
        return await self._of._attach(self.name, name, prefetch, auto_ack, heartbeat)

    async def remove_consumer(self, name: str) -> None:
        """Take a consumer out: what it has goes to the others."""
        known = calls.known_consumer(name, await self.consumers())
        await self._port.release(self._of._log, self.name, known, retire=True).get()

    async def consumers(self) -> list[str]:
        """Their names, in the order in which they came."""
        return (await self.stats()).consumers

    async def receive(self, timeout: Duration | None = 0) -> Delivery | None:
        """The next message; None if there is none within `timeout`, which may be None for ever."""
        found = await self._of._receive(self.name, 1, timeout)
        return found[0] if found else None

    async def receive_many(self, count: int, timeout: Duration | None = 0) -> list[Delivery]:
        """Up to `count` messages, as soon as there is at least one."""
        return await self._of._receive(self.name, count, timeout)

    async def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        await self._of.ack_many(found)

    async def stats(self) -> GroupStats:
        """What it has before it."""
        return calls.of_group(await self._of.stats(), self.name)

    async def lag(self) -> int:
        """How many messages it has not settled; with a filter, at the most."""
        return await self._port.lag(self._of._log, self.name).get()

    async def seek(
        self,
        *,
        offset: int | None = None,
        timestamp: datetime | None = None,
        message_id: int | None = None,
    ) -> None:
        """Send the whole group to a message: it gets that one and all behind it that are stored, again if need be.

        What its consumers have in hand is taken from them, and attempts begin anew.
        """
        await self._port.seek(self._of._log, self.name, calls.place(offset, timestamp, message_id)).get()


class Consumer:
    """Messages of a group, one after the other, for one consumer.

    As an iterator it waits for messages until it, or the broker, is closed.
    """

    def __init__(self, log: Log, group: str, name: str, *, keep: bool) -> None:
        self._of = log
        self._group = group
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
        return await self._of._receive(self._group, count, timeout, self.name, keep=self._keep)

    async def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        await self._of.ack_many(found)

    async def heartbeat(self) -> bool:
        """Say that it is alive; False if it was thought dead, and what it had was given to others."""
        return await self._of._port.heartbeat(self._of._log, self._group, self.name).get()

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
            await self._of._port.release(self._of._log, self._group, self.name).get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Reader:
    """An independent position over a queue or topic. It sees what is stored, in order of offsets, and takes nothing away from anyone.

    As an iterator it follows the tail until it, or the broker, is closed.
    """

    def __init__(self, log: Log, name: str, offset: int) -> None:
        self._of = log
        self._port = log._port
        self._offset = offset
        self._closed = False
        self.name = name
        self._watching: Ticket[Any] | None = None
        self.missed = 0  #: How many messages were dropped before it came to read them.

    def __repr__(self) -> str:
        return f"Reader({self._of.name!r}, {self.name!r}, at {self._offset})"

    async def read(self, timeout: Duration | None = 0) -> Message | None:
        """The next message; None if there is none within `timeout`."""
        found = await self.read_many(1, timeout)
        return found[0] if found else None

    async def read_many(self, count: int, timeout: Duration | None = 0) -> list[Message]:
        """Up to `count` messages, as soon as there is at least one."""
        count, wait_us = calls.count(count), calls.wait_us(timeout)
        self._require_open()
        clock = self._port.clock
        end_us = None if wait_us is None else clock.monotonic_us() + wait_us
        while True:
            page = await self._port.read(self._of._log, self._offset, count).get()
            left_us = None if end_us is None else end_us - clock.monotonic_us()
            if page.runs or self._closed or (left_us is not None and left_us <= 0):
                break
            self._watching = self._port.watch(self._of._log, page.next, wait_us=left_us)
            await self._watching.get()
        self._offset = page.next
        self.missed += page.missed
        calls.say_missed(self, page.missed)
        return messages_of(page.runs)

    async def seek(
        self,
        *,
        offset: int | None = None,
        timestamp: datetime | None = None,
        message_id: int | None = None,
    ) -> None:
        """Go to a message: the next read returns that very one, or the first that is not older than `timestamp`. One that is not stored is an error."""
        self._require_open()
        self._offset = await self._port.locate(
            self._of._log, calls.place(offset, timestamp, message_id)
        ).get()

    async def commit(self) -> int:
        """Have its position survive this process; the position."""
        self._require_open()
        await self._port.position(self._of._log, self.name, self._offset).get()
        return self._offset

    async def position(self) -> int:
        """The offset of the next message."""
        return self._offset

    async def lag(self) -> int:
        """How many messages were published behind its position, at the most."""
        return max(0, await self._port.locate(self._of._log, "latest").get() - self._offset)

    async def reset(self) -> None:
        """Go back to the earliest message that is stored, and forget what was committed. What was held for it is no longer."""
        self._require_open()
        await self._port.position(self._of._log, self.name, None, forget=True).get()
        self._offset = await self._port.locate(self._of._log, "earliest").get()

    def _require_open(self) -> None:
        if self._closed:
            raise BrokerClosed(f"the reader {self.name!r} is closed: open another one")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message, however long it takes; the end is when this reader, or the broker, is closed."""
        while not self._closed:
            try:
                found = await self.read(None)
            except BrokerClosed:
                break
            if found is not None:
                return found
        raise StopAsyncIteration

    async def close(self) -> None:
        """Read no more. What was committed, or is held, stays so."""
        self._closed = True
        if isinstance(self._watching, Stoppable):
            self._watching.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Transaction:
    """Publishes and settles that happen together or not at all. Nothing is done before its end."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._steps: list[Operation] | None = []
        self.ids: list[int] = []  #: Of what it published, in order, once it has ended.

    async def publish(
        self,
        name: str,
        payload: bytes | Message,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        ttl: Duration | None = None,
        dedup_id: str | None = None,
    ) -> None:
        """Append a message to a queue or topic; a queue is made if there is none of that name."""
        message = calls.message(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id)
        self._add(Operation(check_name(name, kind="queue name", reserved_ok=True), [calls.whole(message)]))

    async def ack(self, delivery: Delivery) -> None:
        """It was processed: it never comes again."""
        log, settled = calls.settling(delivery, self._broker._port)
        self._add(Operation(log, receipts=settled, how="ack"))

    async def nack(self, delivery: Delivery, *, delay: Duration | None = None, error: object = None) -> None:
        """It failed: it is retried later, or dead-lettered if that was its last attempt."""
        log, settled = calls.settling(delivery, self._broker._port)
        wait_us, text = calls.delay_us(delay), calls.error_text(error)
        self._add(Operation(log, receipts=settled, how="nack", delay_us=wait_us, error=text))

    async def reject(self, delivery: Delivery, *, error: object = None) -> None:
        """It failed for good: it goes straight to the dead letters."""
        log, settled = calls.settling(delivery, self._broker._port)
        self._add(Operation(log, receipts=settled, how="reject", error=calls.error_text(error)))

    def _add(self, step: Operation) -> None:
        if self._steps is None:
            raise calls.ended()
        self._steps.append(step)

    async def commit(self) -> list[int]:
        """Do all of it, or raise why nothing was done; the ids of what was published. Leaving the `async with` block does that too."""
        if self._steps is None:
            raise calls.ended()
        steps, self._steps = self._steps, None
        self.ids = await self._broker._port.transact(self._broker._namespace, steps).get()
        return self.ids

    async def rollback(self) -> None:
        """Do nothing of it."""
        self._steps = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            await self.rollback()
        elif self._steps is not None:
            await self.commit()


class Broker:
    """Queues and topics in this process."""

    def __init__(self, port: Port, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._port = port
        self._namespace = namespace

    async def _declare(self, kind: Kind, name: str, policy: dict[str, Any], create: bool | None) -> Handle:
        return await self._port.declare(self._namespace, name, policy, create=create, kind=kind).get()

    async def _delete(self, kind: Kind, name: str) -> None:
        await self._port.change(await self._declare(kind, name, {}, False), "delete").get()

    # --- queues ---

    async def queue(self, name: str, **policy: Any) -> Queue:
        """The queue of that name, made if it does not exist; what is given must be what is stored."""
        return Queue(self, await self._declare("queue", name, policy, None))

    async def create_queue(self, name: str, **policy: Any) -> Queue:
        """A new queue; an error if there is one of that name."""
        return Queue(self, await self._declare("queue", name, policy, True))

    async def get_queue(self, name: str) -> Queue:
        """The queue of that name; an error if there is none."""
        return Queue(self, await self._declare("queue", name, {}, False))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it; an error if there is none of that name."""
        await self._delete("queue", name)

    async def list_queues(self) -> list[str]:
        """The names of all queues, but not those of dead letters."""
        return await self._port.names(self._namespace, "queue").get()

    # --- topics ---

    async def topic(self, name: str, **policy: Any) -> Topic:
        """The topic of that name, made if it does not exist; what is given must be what is stored."""
        return Topic(self, await self._declare("topic", name, policy, None))

    async def create_topic(self, name: str, **policy: Any) -> Topic:
        """A new topic; an error if there is one of that name."""
        return Topic(self, await self._declare("topic", name, policy, True))

    async def get_topic(self, name: str) -> Topic:
        """The topic of that name; an error if there is none."""
        return Topic(self, await self._declare("topic", name, {}, False))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its subscriptions and everything in it; an error if there is none of that name."""
        await self._delete("topic", name)

    async def list_topics(self) -> list[str]:
        """The names of all topics."""
        return await self._port.names(self._namespace, "topic").get()

    # --- all of them ---

    async def publish(
        self,
        pattern: str,
        payload: bytes | Message,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        ttl: Duration | None = None,
        dedup_id: str | None = None,
    ) -> dict[str, int]:
        """Append a message to every queue and topic whose name matches, all or none; its ids by name.

        In a pattern, `*` stands for one word between dots and `#` for any number of them: `orders.*`, `orders.#`. If nothing matches it is an error.
        """
        message = calls.message(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id)
        return await self._port.route(self._namespace, pattern, message).get()

    def transaction(self) -> Transaction:
        """Publishes and settles that happen together or not at all: `async with broker.transaction() as tx`."""
        return Transaction(self)

    async def trace(self, message_id: int) -> list[Step]:
        """What became of a message, step by step, as far as it is remembered; nothing if it is not."""
        return await self._port.trace(self._namespace, calls.id_of(message_id)).get()

    def namespace(self, name: str) -> Namespace:
        """The same for a tenant with names of its own: nothing is seen across."""
        return Namespace(self._port, check_name(name, kind="namespace"))

    async def stats(self) -> BrokerStats:
        """What the broker knows of itself, the journal's damage included."""
        return await self._port.stats(self._namespace).get()

    async def close(self, timeout: Duration | None = None) -> None:
        """Finish what is under way, sync, and let go of the directory."""
        timeout_s = calls.seconds(timeout)
        await asyncio.wrap_future(_in_a_thread(partial(self._port.close, timeout_s), "penstock-close"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Namespace(Broker):
    """A broker's queues and topics for one tenant. The broker it came from owns the directory, and is the one to be closed."""

    async def close(self, timeout: Duration | None = None) -> None:
        """Nothing: the broker stays open for others."""
        calls.seconds(timeout)


class Opening:
    """What `aio.open` gives: await it, or use it with `async with`."""

    def __init__(
        self,
        path: str | Path | None,
        clock: Clock | None,
        node: int,
        trace: bool | None,
        settings: dict[str, Any],
    ) -> None:
        self._arguments = (path, clock, node, trace)
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
    trace: bool | None = None,
) -> Opening:
    """The same for asyncio: `broker = await penstock.aio.open(…)`, or `async with penstock.aio.open(…) as broker`."""
    settings = {
        "durability": durability,
        "commit_interval_ms": commit_interval_ms,
        "segment_bytes": segment_bytes,
    }
    return Opening(path, clock, node, trace, settings)
