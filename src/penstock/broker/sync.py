"""The shell for threads: the objects of the API, each a thin cover over the port.

Nothing is decided here. A method checks what only the caller can get wrong, calls the port, and waits for the ticket. `aio` is the same
with `await`; what both need (checking, composing, deliveries) stands in modules of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self

from penstock.broker import calls
from penstock.broker.deliveries import Leased, deliveries, receipts
from penstock.broker.express import LATER, Express
from penstock.broker.ledger import DEFAULT_NAMESPACE
from penstock.broker.port import BrokerStats, Handle, How, Port, QueueStats, Receipts
from penstock.clock import Duration
from penstock.engine.log import DEFAULT_GROUP
from penstock.errors import BrokerClosed
from penstock.message import Message
from penstock.policy import Policy


class Delivery(Leased, gc=False, weakref=False):
    """A message that was handed out, until it is settled or its lease ends."""

    def ack(self) -> None:
        """It was processed: it never comes again."""
        queue = self._queue
        if self._number and not (
            queue._express and queue._express.ack(queue._log, self.offset, self._number)
        ):
            queue._settle(self._receipts(), "ack")

    def nack(self, *, delay: Duration | None = None, error: object = None) -> None:
        """It failed: it is retried later, by the policy's backoff or after `delay`, and dead-lettered after its last attempt."""
        self._queue._settle(self._receipts(), "nack", delay=delay, error=error)

    def reject(self, *, error: object = None) -> None:
        """It failed for good: it goes straight to the dead letters."""
        self._queue._settle(self._receipts(), "reject", error=error)

    def requeue(self) -> None:
        """Give it back to its old place, without waiting."""
        self._queue._settle(self._receipts(), "requeue")

    def extend(self, seconds: Duration) -> None:
        """Keep it for so long from now."""
        self._queue._extend(self._receipts(), seconds)


class Queue:
    """A log read by competing consumers: each message is processed once."""

    def __init__(self, broker: Broker, log: Handle, *, of_dead_letters: bool = False) -> None:
        self._broker = broker
        self._of_dead_letters = of_dead_letters  # of some queue: then they are what a redrive moves
        self._port = broker._port
        self._express = broker._express
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

    def publish(
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
        if (
            self._express is not None
            and headers is None
            and key is None
            and priority is None
            and delay is None
            and deliver_at is None
            and ttl is None
            and dedup_id is None
            and (given := self._express.publish(self._log, payload))
        ):
            return given
        message = calls.message(payload, headers, key, priority, delay, deliver_at, ttl, dedup_id)
        return self._port.publish(self._log, [message]).wait()[0]

    def publish_many(self, messages: Iterable[bytes | Message]) -> list[int]:
        """Append messages, all or none; their ids."""
        return list(self._port.publish(self._log, messages).wait())

    # --- receiving ---

    def receive(self, timeout: Duration | None = 0) -> Delivery | None:
        """The next message; None if there is none within `timeout`, which may be None for ever."""
        if self._express is not None and type(timeout) is int and not timeout:
            quick = self._express.receive(self._log, Delivery, self)
            if quick is not LATER:
                return quick  # type: ignore[no-any-return]
        found = self._receive(1, timeout)
        return found[0] if found else None

    def receive_many(self, count: int, timeout: Duration | None = 0) -> list[Delivery]:
        """Up to `count` messages, as soon as there is at least one."""
        return self._receive(count, timeout)

    def _receive(
        self, count: int, timeout: Duration | None, consumer: str | None = None, *, keep: bool = True
    ) -> list[Delivery]:
        ticket = self._port.lease(
            self._log, DEFAULT_GROUP, count, consumer=consumer, wait_us=calls.wait_us(timeout), keep=keep
        )
        return deliveries(Delivery, self, ticket.wait())

    def subscribe(
        self, consumer: str | None = None, *, prefetch: int = 1, auto_ack: bool = False
    ) -> Consumer:
        """A consumer, to be iterated over; closing it gives back what it has not settled."""
        name = calls.consumer_name(consumer)
        calls.prefetch(prefetch)  # a receive is a function call here: nothing is sent ahead
        keep = not calls.flag("auto_ack", auto_ack)
        given = self._port.attach(self._log, DEFAULT_GROUP, name).wait()
        return Consumer(self, given, keep=keep)

    # --- settling ---

    def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        for of_group in receipts(found, self):
            self._settle(of_group, "ack")

    def _settle(
        self, settled: Receipts, how: How, *, delay: Duration | None = None, error: object = None
    ) -> None:
        ticket = self._port.settle(
            self._log, settled, how, delay_us=calls.delay_us(delay), error=calls.error_text(error)
        )
        ticket.wait()

    def _extend(self, kept: Receipts, seconds: Duration) -> None:
        self._port.extend(self._log, kept, calls.extension_us(seconds)).wait()

    # --- looking and changing ---

    def peek(self, count: int = 1) -> list[Message]:
        """The next messages, without taking them."""
        return self._port.read(self._log, calls.count(count)).wait()

    def depth(self) -> int:
        """How many messages are not yet settled."""
        return self.stats().depth

    def stats(self) -> QueueStats:
        """What it holds now."""
        return self._port.describe(self._log).wait()

    def purge(self) -> int:
        """Remove every message that is not leased; how many there were."""
        removed: int = self._port.change(self._log, "purge").wait()
        return removed

    def alter(self, **policy: Any) -> None:
        """Change its policy, from now on."""
        self._port.change(self._log, "alter", **policy).wait()

    # --- dead letters ---

    def dead_letters(self) -> Queue:
        """The queue of what failed for good: an ordinary queue, which can also be redriven."""
        log = self._port.change(self._log, "dead-letters").wait()
        return Queue(self._broker, log, of_dead_letters=True)

    def redrive(
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
            dead = self._port.change(self._log, "redrive").wait()
        plan = calls.Redrive(self._port, dead, where, limit, rate, to)
        while plan.more():
            plan.took(plan.step().wait())
            plan.pause()
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

    def receive(self, timeout: Duration | None = 0) -> Delivery | None:
        """The next message; None if there is none within `timeout`."""
        found = self.receive_many(1, timeout)
        return found[0] if found else None

    def receive_many(self, count: int, timeout: Duration | None = 0) -> list[Delivery]:
        """Up to `count` messages, as soon as there is at least one."""
        if self._closed:
            raise BrokerClosed(f"the consumer {self.name!r} is closed: subscribe again")
        return self._queue._receive(count, timeout, self.name, keep=self._keep)

    def ack_many(self, found: Iterable[Delivery]) -> None:
        """They were processed: all of them, or an error and none."""
        self._queue.ack_many(found)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        """The next message, however long it takes; the end is when this consumer, or the broker, is closed."""
        while not self._closed:
            try:
                found = self.receive_many(1, None)
            except BrokerClosed:
                break
            if found:
                return found[0]
        raise StopIteration

    def close(self) -> None:
        """Give back what was handed out and not settled."""
        if not self._closed:
            self._closed = True
            self._queue._port.release(self._queue._log, DEFAULT_GROUP, self.name).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Broker:
    """Queues in this process."""

    def __init__(self, port: Port, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._port = port
        self._express: Express | None = getattr(port, "express", None)
        self._namespace = namespace

    def queue(self, name: str, **policy: Any) -> Queue:
        """The queue of that name, made if it does not exist; what is given must be what is stored."""
        return Queue(self, self._port.declare(self._namespace, name, policy, create=None).wait())

    def create_queue(self, name: str, **policy: Any) -> Queue:
        """A new queue; an error if there is one of that name."""
        return Queue(self, self._port.declare(self._namespace, name, policy, create=True).wait())

    def get_queue(self, name: str) -> Queue:
        """The queue of that name; an error if there is none."""
        return Queue(self, self._port.declare(self._namespace, name, {}, create=False).wait())

    def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it; an error if there is none of that name."""
        log = self._port.declare(self._namespace, name, {}, create=False).wait()
        self._port.change(log, "delete").wait()

    def list_queues(self) -> list[str]:
        """The names of all queues, but not those of dead letters."""
        return self._port.names(self._namespace).wait()

    def stats(self) -> BrokerStats:
        """What the broker knows of itself, the journal's damage included."""
        return self._port.stats()

    def close(self, timeout: Duration | None = None) -> None:
        """Finish what is under way, sync, and let go of the directory."""
        self._port.close(calls.seconds(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
