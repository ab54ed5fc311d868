"""The API for asyncio: the objects that a user holds, each a thin cover over the port.

Nothing is decided here. A method checks what only the caller can get wrong, calls the port, and
awaits the ticket. `sync` is made from this file by `tools/twin.py`: change this one and run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self

from penstock.broker import calls
from penstock.broker.compose import publish_of
from penstock.broker.contents import messages_of
from penstock.broker.deliveries import Leased, deliveries, receipts
from penstock.broker.pauses_aio import close_port, pause
from penstock.broker.port import UPCOMING, Port
from penstock.broker.ticket import Stoppable, Ticket
from penstock.clock import Duration
from penstock.errors import BrokerClosed
from penstock.message import Message
from penstock.model import commands
from penstock.model.commands import (
    DEFAULT_GROUP,
    DEFAULT_NAMESPACE,
    Attach,
    Handle,
    How,
    Kind,
    Place,
    Receipts,
    Spec,
    Unit,
)
from penstock.model.queries import Lag, Locate, Names, OfLog, OfNamespace, RedriveSource, Timeline
from penstock.model.stats import BrokerStats, GroupStats, QueueStats, Step
from penstock.names import check_name
from penstock.policy import Policy

EARLIEST = Place(at="earliest")
LATEST = Place(at="latest")


class Delivery(Leased, gc=False, weakref=False):
    """A message that was handed out, until it is settled or its lease ends."""

    async def ack(self) -> None:
        """It was processed: it never comes again."""
        if self._number:
            await self._queue._do(commands.Settle(self._group, [self.offset], [self._number]))

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
        queue = self._queue
        await queue._port.extend(queue._log, self._receipts(), calls.extension(seconds)).get()


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

    async def _do(self, command: commands.Command) -> Any:
        """Do one command; its answer."""
        (answer,) = await self._port.commit(Unit(self._log.namespace, ((self._log, command),))).get()
        return answer

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
        ids = await self._do(calls.publish(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id))
        return int(ids[0])

    async def publish_many(self, messages: Iterable[bytes | Message]) -> list[int]:
        """Append messages, all or none; their ids."""
        return list(await self._do(publish_of(messages)))

    async def cancel(self, message_id: int) -> bool:
        """Remove a message that is not due yet; False if it is due already, or was settled. An id that is not stored is an error."""
        return bool(await self._do(commands.Cancel(calls.id_of(message_id))))

    async def schedule(
        self, name: str, cron: str, message: bytes | Message, *, timezone: str = "UTC", missed: str = "once"
    ) -> None:
        """Publish a message whenever a cron expression says so, in place of what has that name.

        `missed` says what becomes of due times that nobody was there for: "once" (the last one is made up for), "skip" or "all".
        """
        await self._do(calls.schedule(name, cron, message, timezone, missed))

    async def unschedule(self, name: str) -> bool:
        """Publish it no more; False if nothing has that name."""
        return bool(await self._do(commands.Unschedule(calls.schedule_name(name))))

    # --- receiving and settling ---

    async def _receive(
        self,
        group: str,
        count: int,
        timeout: Duration | None,
        consumer: str | None = None,
        *,
        settle: bool = False,
    ) -> list[Delivery]:
        ticket = self._port.lease(
            self._log, group, count, consumer=consumer, wait_us=calls.wait_us(timeout), settle=settle
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
        name, settle = calls.consumer_name(consumer), calls.flag("auto_ack", auto_ack)
        coming = Attach(name, calls.silence(heartbeat), calls.prefetch(prefetch))
        given: str = await self._port.consumer(self._log, group, coming).get()
        return Consumer(self, group, given, settle=settle)

    async def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        steps = [(self._log, calls.settle(settled)) for settled in receipts(found, self)]
        if steps:
            await self._port.commit(Unit(self._log.namespace, steps)).get()

    async def _settle(
        self, settled: Receipts, how: How = "ack", *, delay: Duration | None = None, error: object = None
    ) -> None:
        await self._do(calls.settle(settled, how, delay, error))

    # --- looking and changing ---

    async def reader(self, name: str, *, start: object = "earliest", hold: bool = False) -> Reader:
        """An independent position: what it committed before, or `start` ("earliest", "latest", an offset or a time).

        With `hold`, what is behind its committed position is kept for it, however long that takes.
        """
        name, place = calls.reader_name(name), calls.start(start)
        calls.flag("hold", hold)
        offset = await self._port.position(self._log, name).get()
        if offset is None:
            offset = await self._port.describe(Locate(self._log, place)).get()
        found = Reader(self, name, offset)
        if hold:
            found.missed = (await self._port.read(self._log, offset, 1).get()).missed
            await self._do(commands.Commit(name, offset, True))
        return found

    async def peek(self, count: int = 1) -> list[Message]:
        """The next messages, without taking them."""
        page = await self._port.read(self._log, UPCOMING, calls.count(count)).get()
        return messages_of(page.runs)

    async def stats(self) -> QueueStats:
        """What it holds now."""
        return await self._port.describe(OfLog(self._log)).get()

    async def purge(self) -> int:
        """Remove every message that is not leased; how many there were."""
        return int(await self._do(commands.Purge()))

    async def alter(self, **policy: Any) -> None:
        """Change its policy, from now on."""
        await self._do(commands.Alter(policy))

    # --- dead letters ---

    async def dead_letters(self) -> Queue:
        """The queue of what failed for good: an ordinary queue, which can also be redriven."""
        log = await self._port.declare(commands.DeadLetters(self._log)).get()
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
        dead: Handle | None = self._log
        if not self._of_dead_letters:
            dead = await self._port.describe(RedriveSource(self._log)).get()
        plan = calls.Redriving(dead, where, limit, rate, to)
        while dead is not None and plan.more():
            (moved,) = await self._port.commit(Unit(dead.namespace, ((dead, plan.step()),))).get()
            plan.took(moved)
            await pause(plan.pause_s())
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
        await self._do(commands.OpenGroup(name, strategy=strategy, start=EARLIEST))
        return Group(self, name)

    async def delete_group(self, name: str) -> None:
        """End a group with all that waits in it. A queue's own one is "default"; it is made again when it is needed."""
        await self._do(commands.CloseGroup(calls.group_name(name)))

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
        settle = calls.flag("auto_ack", auto_ack)
        opening = commands.OpenGroup(
            group, filter, None, calls.start(start), calls.flag("durable", durable),
            calls.consumer_name(consumer), calls.silence(heartbeat), calls.prefetch(prefetch),
        )  # fmt: skip
        return Consumer(self, group, str(await self._do(opening)), settle=settle)

    async def subscription(self, name: str) -> Group:
        """The subscription of that name, which must exist: its consumers, its lag, and seeking."""
        name = calls.subscription_name(name)
        found = Group(self, name)
        await found.stats()
        return found

    async def unsubscribe(self, name: str) -> None:
        """End a subscription with all that waits in it."""
        await self._do(commands.CloseGroup(calls.subscription_name(name)))

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
        await self._port.consumer(self._of._log, self.name, commands.Release(known, retire=True)).get()

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
        return await self._port.describe(Lag(self._of._log, self.name)).get()

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
        await self._of._do(commands.Seek(self.name, calls.place(offset, timestamp, message_id)))


class Consumer:
    """Messages of a group, one after the other, for one consumer.

    As an iterator it waits for messages until it, or the broker, is closed.
    """

    def __init__(self, log: Log, group: str, name: str, *, settle: bool) -> None:
        self._of = log
        self._group = group
        self._settle = settle
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
        return await self._of._receive(self._group, count, timeout, self.name, settle=self._settle)

    async def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        await self._of.ack_many(found)

    async def heartbeat(self) -> bool:
        """Say that it is alive; False if it was thought dead, and what it had was given to others."""
        beat = commands.Heartbeat(self.name)
        return bool(await self._of._port.consumer(self._of._log, self._group, beat).get())

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
            await self._of._port.consumer(self._of._log, self._group, commands.Release(self.name)).get()

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
        self._waiting: Ticket[Any] | None = None
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
        missed = 0
        while True:
            left_us = None if end_us is None else max(0, end_us - clock.monotonic_us())
            self._waiting = self._port.read(self._of._log, self._offset, count, wait_us=left_us)
            if self._closed:  # by another thread, which may have stopped the ticket before this one
                self._stop_waiting()
            page = await self._waiting.get()
            self._offset = page.next
            missed += page.missed
            if page.runs or self._closed or left_us == 0:
                break
        self.missed += missed
        calls.say_missed(self, missed)
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
        place = calls.place(offset, timestamp, message_id)
        self._offset = await self._port.describe(Locate(self._of._log, place)).get()

    async def commit(self) -> int:
        """Have its position survive this process; the position."""
        self._require_open()
        await self._of._do(commands.Commit(self.name, self._offset))
        return self._offset

    async def position(self) -> int:
        """The offset of the next message."""
        return self._offset

    async def lag(self) -> int:
        """How many messages were published behind its position, at the most."""
        return max(0, await self._port.describe(Locate(self._of._log, LATEST)).get() - self._offset)

    async def reset(self) -> None:
        """Go back to the earliest message that is stored, and forget what was committed. What was held for it is no longer."""
        self._require_open()
        await self._of._do(commands.Forget(self.name))
        self._offset = await self._port.describe(Locate(self._of._log, EARLIEST)).get()

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
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if isinstance(self._waiting, Stoppable):
            self._waiting.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Transaction:
    """Publishes and settles that happen together or not at all. Nothing is done before its end."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._steps: list[commands.Step] | None = []
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
        command = calls.publish(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id)
        self._add((check_name(name, kind="queue name", reserved_ok=True), command))

    async def ack(self, delivery: Delivery) -> None:
        """It was processed: it never comes again."""
        self._add(calls.settling(delivery, self._broker._port, "ack"))

    async def nack(self, delivery: Delivery, *, delay: Duration | None = None, error: object = None) -> None:
        """It failed: it is retried later, or dead-lettered if that was its last attempt."""
        self._add(calls.settling(delivery, self._broker._port, "nack", delay, error))

    async def reject(self, delivery: Delivery, *, error: object = None) -> None:
        """It failed for good: it goes straight to the dead letters."""
        self._add(calls.settling(delivery, self._broker._port, "reject", None, error))

    def _add(self, step: commands.Step) -> None:
        if self._steps is None:
            raise calls.ended()
        self._steps.append(step)

    async def commit(self) -> list[int]:
        """Do all of it, or raise why nothing was done; the ids of what was published. Leaving the `async with` block does that too."""
        if self._steps is None:
            raise calls.ended()
        steps, self._steps = self._steps, None
        answers = await self._broker._port.commit(Unit(self._broker._namespace, steps)).get()
        self.ids = [one for answer in answers if answer is not None for one in answer]
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
        return await self._port.declare(Spec(self._namespace, name, policy, create, kind)).get()

    async def _delete(self, kind: Kind, name: str) -> None:
        log = await self._declare(kind, name, {}, False)
        await self._port.commit(Unit(self._namespace, ((log, commands.Delete()),))).get()

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
        return await self._port.describe(Names(self._namespace, "queue")).get()

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
        return await self._port.describe(Names(self._namespace, "topic")).get()

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
        command = calls.publish(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id)
        step = (calls.pattern(pattern), command)
        (ids,) = await self._port.commit(Unit(self._namespace, (step,))).get()
        return {name: given[0] for name, given in ids.items()}

    def transaction(self) -> Transaction:
        """Publishes and settles that happen together or not at all: `async with broker.transaction() as tx`."""
        return Transaction(self)

    async def trace(self, message_id: int) -> list[Step]:
        """What became of a message, step by step, as far as it is remembered; nothing if it is not."""
        return await self._port.describe(Timeline(self._namespace, calls.id_of(message_id))).get()

    def namespace(self, name: str) -> Namespace:
        """The same for a tenant with names of its own: nothing is seen across."""
        return Namespace(self._port, check_name(name, kind="namespace"))

    async def stats(self) -> BrokerStats:
        """What the broker knows of itself, the journal's damage included."""
        return await self._port.describe(OfNamespace(self._namespace)).get()

    async def close(self, timeout: Duration | None = None) -> None:
        """Finish what is under way, sync, and let go of the directory."""
        await close_port(self._port, calls.seconds(timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Namespace(Broker):
    """A broker's queues and topics for one tenant. The broker it came from owns the directory, and is the one to be closed."""

    async def close(self, timeout: Duration | None = None) -> None:
        """Nothing: the broker stays open for others."""
        calls.seconds(timeout)
