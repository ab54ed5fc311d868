"""A hand that does everything there is to do with logs, step by step, in a namespace of its own, and tells each step before it begins and when it is done.

Topics with durable, filtered and ephemeral subscriptions; groups of a queue, which are sent back and forth; readers that commit, one of which holds; retention by bytes; transactions
that turn an input into outputs and move money; schedules, cancelling, dead letters; logs that are deleted and made again; snapshots and cleaning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from penstock.broker import opening
from penstock.broker.sync import Broker, Delivery, Group, Log, Queue, Reader, Topic
from penstock.errors import DiskFull, QueueNotFound
from penstock.journal.files import Files
from penstock.message import Message
from tests.faults.logs_model import ACCOUNTS, DEPOSIT, FILTER, RETAINED_BYTES, payload, region

Answer = TypeVar("Answer")

#: Small, so that rotation, dropping, rewriting and recycling come every few steps.
SEGMENT_BYTES: Final = 8 << 10

#: Above this, publishing pauses: taking the census costs time by the message.
DEPTH: Final = 40

TOPICS: Final = ("news.a", "news.b", "fleeting")
QUEUES: Final = ("work", "orders", "later", "temp", *ACCOUNTS)
WITH_LETTERS: Final = ("news.a", "news.b", "work")  # where messages are rejected
OUTPUTS: Final = ("out.a", "out.b")  # made by the transactions that publish to them

#: Not in any test's life.
LATER_S: Final = 10 * 24 * 3600
YEARLY: Final = "0 0 1 1 *"

ALL: Final = 10_000


class Taking(Protocol):
    """Whatever messages are received from."""

    def receive_many(self, count: int) -> list[Delivery]: ...
    def ack_many(self, found: Sequence[Delivery]) -> None: ...


def opened(path: object, files: Files) -> Broker:
    return Broker(opening.on_disk(str(path), files=files, segment_bytes=SEGMENT_BYTES))


def number_of(one: Message | Delivery) -> int:
    return int(one.payload.split(b" ")[0])


def _whole(one: Message | Delivery) -> bool:
    number = number_of(one)
    return one.payload == payload(number) and one.headers.get("region") == region(number)


def stored(log: Log) -> list[Message]:
    return log.reader("onlooker").read_many(ALL)


# --- what there is ---


def _queues(broker: Broker) -> Iterator[str]:
    """Those of dead letters too, which are not listed."""
    yield from broker.list_queues()
    for name in WITH_LETTERS:
        with suppress(QueueNotFound):
            yield broker.get_queue(f"{name}.dlq").name


def _logs(broker: Broker) -> list[Log]:
    queues = [broker.get_queue(name) for name in _queues(broker)]
    return [*queues, *(broker.get_topic(name) for name in broker.list_topics())]


def look(broker: Broker) -> dict[str, Any]:
    """Everything that can be seen without taking anything."""
    found: dict[str, Any] = {}
    for log in _logs(broker):
        stats, messages = log.stats(), stored(log)
        found[log.name] = {
            "kind": stats.kind,
            "groups": {
                name: {"durable": one.durable, "filter": one.filter, "lag": one.lag}
                for name, one in stats.groups.items()
            },
            "readers": {name: log.reader(name).position() for name in stats.readers},
            "schedules": sorted(stats.schedules),
            "stored": [number_of(one) for one in messages],
            "whole": all(map(_whole, messages)),
        }
    return found


def _unlimited(log: Log) -> None:
    """What a transaction made has the usual policy, by which the third census would bury everything."""
    if log.policy.max_attempts is not None:
        log.alter(max_attempts=None)


def census(broker: Broker, seen: dict[str, Any] | None = None) -> dict[str, Any]:
    """What was seen, and what comes to each group; it is given back."""
    found = look(broker) if seen is None else seen
    for log in _logs(broker):
        here = found[log.name]
        _unlimited(log)
        for name, one in here["groups"].items():
            with Group(log, name).add_consumer() as consumer:
                taken = consumer.receive_many(ALL)
                one["numbers"] = [number_of(delivery) for delivery in taken]
                one["amounts"] = [int(delivery.headers.get("amount", 0)) for delivery in taken]
                here["whole"] = here["whole"] and all(map(_whole, taken))
    return found


# --- the work ---


class Hand:
    """One namespace, one thread. `tell` hears every step."""

    def __init__(
        self, broker: Broker, name: str, tell: Callable[..., None], *, seed: object = 0, first: int = 1
    ) -> None:
        self.root = broker
        self.broker = broker.namespace(name)
        self.name = name
        self.tell = tell
        self.chance = random.Random(f"{seed} {name}")
        self.next = first
        self.readers: dict[tuple[str, str], Reader] = {}
        self.ids: dict[int, int] = {}  # of what is to be delivered later, and may be cancelled
        self.open_ends: list[Any] = []  # consumers of ephemeral subscriptions

    def _do(self, act: Callable[[], Answer], *step: Any) -> Answer:
        self.tell("do", self.name, *step)
        try:
            answer = act()
        except DiskFull:  # nothing was changed
            self.tell("refused", self.name)
            raise
        self.tell("done", self.name)
        return answer

    def _numbers(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    def _log(self, name: str) -> Log:
        return self.broker.get_topic(name) if name in TOPICS else self.broker.get_queue(name)

    def _taking(self, name: str, group: str) -> Taking:
        log = self._log(name)
        return log if isinstance(log, Queue) and group == "default" else Group(log, group)

    def groups(self, name: str) -> list[str]:
        return sorted(name for name, one in self._log(name).stats().groups.items() if one.durable)

    def begin(self) -> None:
        """Make what is not there: the first time all of it, later what a kill left undone."""
        known = {*self.broker.list_queues(), *self.broker.list_topics()}
        for name in TOPICS:
            if name not in known:
                make = partial(
                    self.broker.create_topic, name, max_attempts=None, retain_bytes=RETAINED_BYTES.get(name)
                )
                self._do(make, "make", name, "topic")
        for name in QUEUES:
            if name not in known:
                self.make(name)
        if not self.groups("work"):
            self.come("work", "a")
        for name in ACCOUNTS:
            if not self.broker.get_queue(name).depth():
                (number,) = self._numbers(1)
                self._transact([], [(name, number, DEPOSIT)])

    def step(self) -> None:
        steps, weights = zip(*_STEPS, strict=True)
        self.chance.choices(steps, weights)[0](self)

    # --- logs ---

    def make(self, name: str) -> None:
        self._do(lambda: self.broker.create_queue(name, max_attempts=None), "make", name, "queue")

    def drop(self, name: str) -> None:
        if name in self.broker.list_queues():
            self._do(lambda: self.broker.delete_queue(name), "drop", name)

    def make_or_drop(self) -> None:
        name = self.chance.choice(["temp", "temp", "out.b"])
        if name in self.broker.list_queues():
            self.drop(name)
        elif name == "temp":
            self.make(name)

    # --- publishing ---

    def publish(self, name: str, count: int | None = None) -> None:
        numbers = self._numbers(count or self.chance.choice([1, 1, 2, 4]))
        messages = [Message(payload(number), headers={"region": region(number)}) for number in numbers]
        log = self._log(name)
        if len(numbers) == 1:
            only = messages[0]
            self._do(lambda: log.publish(only.payload, headers=only.headers), "put", [name], numbers)
        else:
            self._do(lambda: log.publish_many(messages), "put", [name], numbers)

    def route(self) -> None:
        (number,) = self._numbers(1)
        headers = {"region": region(number)}
        self._do(
            lambda: self.broker.publish("news.*", payload(number), headers=headers), "put", ["news.a", "news.b"], [number],
        )  # fmt: skip

    def publish_somewhere(self) -> None:
        name = self.chance.choice(
            ["news.a", "news.a", "news.b", "work", "work", "orders", "fleeting", "temp"]
        )
        known = name in TOPICS or name in self.broker.list_queues()
        if known and self._log(name).stats().depth < DEPTH:
            self.publish(name)

    def route_somewhere(self) -> None:
        if all(self._log(name).stats().depth < DEPTH for name in ("news.a", "news.b")):
            self.route()

    def publish_later(self) -> None:
        if len(self.ids) > 5:
            return
        (number,) = self._numbers(1)
        queue = self.broker.get_queue("later")
        headers = {"region": region(number)}
        act = lambda: queue.publish(payload(number), headers=headers, delay=LATER_S)  # noqa: E731
        self.ids[number] = self._do(act, "later", "later", number)

    def cancel(self) -> None:
        queue = self.broker.get_queue("later")
        known = {number_of(one): one.id or 0 for one in stored(queue)}
        if known:
            number = self.chance.choice(sorted(known))
            assert self._do(lambda: queue.cancel(known[number]), "cancel", "later", number)
            self.ids.pop(number, None)

    def recur(self) -> None:
        log = self._log(self.chance.choice(["news.a", "work"]))
        name = self.chance.choice(["s1", "s2"])
        if name in log.stats().schedules:
            self._do(lambda: log.unschedule(name), "unschedule", log.name, name)
        else:
            self._do(lambda: log.schedule(name, YEARLY, b"a new year"), "schedule", log.name, name)

    # --- groups and subscriptions ---

    def come(self, name: str, group: str, *, filtered: bool = False, earliest: bool = True) -> None:
        log = self._log(name)
        here = [number_of(one) for one in stored(log)] if earliest or isinstance(log, Queue) else []
        if isinstance(log, Topic):
            start = "earliest" if earliest else "latest"
            wanted = FILTER if filtered else None
            act: Callable[[], Any] = lambda: log.subscribe(group, filter=wanted, start=start).close()  # noqa: E731
        else:
            assert isinstance(log, Queue)
            act = lambda: log.group(group)  # noqa: E731
        self._do(act, "open", name, group, filtered and isinstance(log, Topic), here)

    def go(self, name: str, group: str) -> None:
        log = self._log(name)
        end = log.unsubscribe if isinstance(log, Topic) else log.delete_group  # type: ignore[attr-defined]
        self._do(lambda: end(group), "close", name, group)

    def come_or_go(self) -> None:
        name = self.chance.choice(["news.a", "news.a", "news.b", "work"])
        group = self.chance.choice(["b", "c", "d"])
        if group in self.groups(name):
            self.go(name, group)
        else:
            self.come(name, group, filtered=self.chance.random() < 0.4, earliest=self.chance.random() < 0.6)

    def seek(self, name: str, group: str, share: float) -> None:
        """To the message that stands behind such a share of what is stored; 1 is the end."""
        log = self._log(name)
        messages = stored(log)
        left = messages[round(len(messages) * share) :]
        place: dict[str, Any] = {"offset": log.stats().next_offset}
        if left:
            first = left[0]
            place = self.chance.choice([{"message_id": first.id}, {"offset": first.offset}])
        numbers = [number_of(one) for one in left]
        self._do(lambda: Group(log, group).seek(**place), "seek", name, group, numbers)

    def seek_somewhere(self) -> None:
        name = self.chance.choice(["news.a", "news.a", "news.b", "work"])
        groups = self.groups(name)
        if groups:
            share = self.chance.choice([0, 0, 1, self.chance.random()])
            self.seek(name, self.chance.choice(groups), share)

    def glance(self) -> None:
        """An ephemeral subscription, which takes some of what comes; it ends now, later, or with the process."""
        name = self.chance.choice(["fleeting", "fleeting", "news.a", "news.b"])
        log = self._log(name)
        assert isinstance(log, Topic)
        consumer = self._do(lambda: log.subscribe(durable=False, start="earliest"), "nothing")
        self.publish(name)
        taken = consumer.receive_many(2)
        if taken:
            self._do(lambda: consumer.ack_many(taken), "nothing")
        self.open_ends.append(consumer)
        while len(self.open_ends) > self.chance.choice([0, 0, 2]):
            ending = self.open_ends.pop(0)
            self._do(ending.close, "nothing")

    # --- receiving ---

    def consume(self, name: str, group: str, count: int, hows: Sequence[str]) -> None:
        taking = self._taking(name, group)
        taken = taking.receive_many(count)
        self.tell("received", self.name, name, group, [number_of(one) for one in taken])
        assert all(map(_whole, taken)), "a payload is not what it was"
        if len(taken) > 1 and self.chance.random() < 0.4:
            part = self.chance.sample(taken, self.chance.randrange(1, len(taken)))
            numbers = [number_of(one) for one in part]
            self._do(lambda: taking.ack_many(part), "settle", name, group, "ack", numbers)
            taken = [one for one in taken if one not in part]
        for one in taken:
            how = self.chance.choice(hows)
            if how == "leave":
                continue
            act = getattr(one, how)
            settling = (lambda one=one: one.nack(delay=0)) if how == "nack" else act
            self._do(settling, "settle", name, group, how, [number_of(one)])

    def consume_somewhere(self) -> None:
        name = self.chance.choice(
            ["news.a", "news.a", "news.b", "work", "work", "temp", "out.a", "out.b", "work.dlq", "news.a.dlq"]
        )
        if name in TOPICS or name in _queues(self.broker):
            groups = self.groups(name)
            hows = ["ack"] * 6 + ["nack", "requeue", "leave"] + ["reject"] * (name in WITH_LETTERS)
            if groups:
                self.consume(name, self.chance.choice(groups), self.chance.randrange(1, 7), hows)

    # --- readers ---

    def commit(self, name: str, reader: str, count: int) -> None:
        """Read on, and commit. The reader that is called keeper asks to be waited for."""
        log = self._log(name)
        holds = reader == "keeper"
        one = self.readers.get((name, reader)) or log.reader(reader)
        if (name, reader) not in self.readers and holds:
            kept = [number_of(message) for message in log.reader(reader).read_many(ALL)]
            self._do(lambda: log.reader(reader, hold=True), "commit", name, reader, one.position(), kept)
        self.readers[name, reader] = one
        one.read_many(count)
        behind = Reader(log, "onlooker", one.position()).read_many(ALL)
        kept = [number_of(message) for message in behind]
        self._do(one.commit, "commit", name, reader, one.position(), kept if holds else None)

    def commit_somewhere(self) -> None:
        name, reader = self.chance.choice(
            [("news.a", "r"), ("news.a", "r"), ("news.b", "keeper"), ("work", "r"), ("work", "keeper")]
        )
        if self.chance.random() < 0.1:
            one = self.readers.pop((name, reader), None) or self._log(name).reader(reader)
            self._do(one.reset, "forget", name, reader)
        else:
            self.commit(name, reader, self.chance.randrange(1, 8))

    # --- transactions ---

    def _transact(self, settles: list[tuple[str, Delivery]], puts: list[tuple[str, int, int | None]]) -> None:
        def act() -> None:
            with self.broker.transaction() as tx:
                for _, one in settles:
                    tx.ack(one)
                for name, number, amount in puts:
                    headers = {"region": region(number)} | ({} if amount is None else {"amount": str(amount)})
                    tx.publish(name, payload(number), headers=headers)

        told = [(name, "default", [number_of(one)]) for name, one in settles]
        self._do(act, "transact", told, puts)

    def fulfil(self) -> None:
        """An input becomes two outputs."""
        queue = self.broker.get_queue("orders")
        if not queue.stats().ready:
            self.publish("orders")
        one = queue.receive()
        if one is not None:
            self.tell("received", self.name, "orders", "default", [number_of(one)])
            numbers = self._numbers(2)
            self._transact([("orders", one)], [(name, number, None) for name, number in zip(OUTPUTS, numbers, strict=True)])  # fmt: skip
            for name in OUTPUTS:
                self._do(partial(_unlimited, self._log(name)), "nothing")

    def transfer(self) -> None:
        """Money goes from one account to another."""
        names = self.chance.sample(ACCOUNTS, 2)
        taken = [one for name in names if (one := self.broker.get_queue(name).receive()) is not None]
        if len(taken) < 2:
            for one in taken:
                one.requeue()
            return
        sums = [int(one.headers["amount"]) for one in taken]
        amount = self.chance.randrange(0, sums[0] + 1)
        numbers = self._numbers(2)
        left = (sums[0] - amount, sums[1] + amount)
        puts: list[tuple[str, int, int | None]] = list(zip(names, numbers, left, strict=True))
        self._transact(list(zip(names, taken, strict=True)), puts)

    # --- upkeep ---

    def keep_up(self) -> None:
        """A snapshot, and cleaning with all that it can do."""
        upkeep = self.root._port.monitor.upkeep  # type: ignore[attr-defined]
        self._do(upkeep.run, "nothing")


_STEPS: Final[list[tuple[Callable[[Hand], None], float]]] = [
    (Hand.publish_somewhere, 20), (Hand.route_somewhere, 4), (Hand.consume_somewhere, 25), (Hand.seek_somewhere, 8), (Hand.come_or_go, 6), (Hand.glance, 5),
    (Hand.commit_somewhere, 8), (Hand.fulfil, 6), (Hand.transfer, 8), (Hand.publish_later, 3), (Hand.cancel, 3), (Hand.recur, 3), (Hand.make_or_drop, 2), (Hand.keep_up, 5),
]  # fmt: skip
