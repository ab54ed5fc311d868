"""The process that is killed while its threads use a broker, and the one that makes such processes.

Starting Python takes longer than most of these processes live, so one process (`python -m tests.faults.broker_child`) loads everything once and
forks for each line of orders that it reads. A child opens the broker, says what it finds (the census), and then publishes, leases, settles and
redrives with several threads until it is killed. Every line it writes is one JSON list, written whole: what it is about to do before it
begins, what was done once the broker has said so.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.broker import monitor, opening, ticket, upkeep
from penstock.broker.ledger import rows_of
from penstock.broker.sync import Broker, Delivery, Queue
from penstock.engine import history
from penstock.engine.engine import Engine
from penstock.engine.events import Event, Leased, Outcome, Settled
from penstock.errors import LeaseLost
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.message import Message
from penstock.policy import Backoff
from tests.faults.faulty_files import UnsyncedFiles

MAX_ATTEMPTS: Final = 3
POLICY: Final[dict[str, Any]] = {
    "max_attempts": MAX_ATTEMPTS,
    "backoff": Backoff(initial=0.001, factor=1, maximum=0.001, jitter=0),
}
#: Above this, publishing pauses: taking the census costs time by the message.
DEPTH: Final = 80


class Orders(msgspec.Struct):
    """What a child is to do. Its messages are numbered from `first` on."""

    path: str
    seed: int
    first: int
    synced: bool = False
    sabotage: str = ""


def payload(number: int) -> bytes:
    """The payload of a message, which can be told from its number."""
    return b"%d " % number + random.Random(number).randbytes(number % 300)


def tell(*report: object) -> None:
    os.write(1, json.dumps(report).encode() + b"\n")


# --- what may be broken on purpose ---


def _no_lease_rows() -> None:
    monitor.rows_of = lambda events: rows_of([one for one in events if not isinstance(one, Leased)])  # type: ignore[attr-defined]
    whole = Journal.append

    def append(self: Journal, rows: Any, **how: Any) -> Any:
        return whole(self, rows, **how) if rows else self.barrier()

    Journal.append = append  # type: ignore[method-assign]


def _answers_early() -> None:
    ticket.Recorded.wait = lambda self: self.value  # type: ignore[method-assign]


def _acks_forgotten() -> None:
    replay = history.replay

    def forgetful(engine: Engine, event: Event, time_us: int) -> None:
        acked = isinstance(event, Settled) and event.outcome == Outcome.ACKED
        if not (acked and event.offsets[0] % 8 == 0):  # type: ignore[union-attr]
            replay(engine, event, time_us)

    opening.take_in = forgetful  # type: ignore[attr-defined]


def _letters_without_removal() -> None:
    def without(events: Sequence[Event]) -> Any:
        *rest, last = events
        dead = rest and isinstance(last, Settled) and last.outcome == Outcome.DEAD
        return rows_of(rest if dead else events)

    monitor.rows_of = without  # type: ignore[attr-defined]


def _batches_in_two() -> None:
    many = Queue.publish_many

    def publish_many(self: Queue, messages: Iterable[bytes | Message]) -> list[int]:
        first, *rest = messages
        return [*many(self, [first]), *many(self, rest)]

    Queue.publish_many = publish_many  # type: ignore[method-assign, assignment]


SABOTAGE: Final[dict[str, Callable[[], None]]] = {
    "": lambda: None,
    "a lease leaves no row": _no_lease_rows,
    "answers do not wait for the journal": _answers_early,
    "some acks are not replayed": _acks_forgotten,
    "what was dead-lettered is not removed": _letters_without_removal,
    "a batch is two commits": _batches_in_two,
}


# --- the work ---


def opened(path: str, files: Files) -> Broker:
    return Broker(opening.on_disk(path, files=files, segment_bytes=1 << 16))


def census(broker: Broker) -> dict[str, Any]:
    """Everything there is, once all that waits for a moment has fallen due: by queue its depth, and number, attempts and reason of each."""
    work = broker.queue("work", **POLICY)
    dead = work.dead_letters()
    while (stats := work.stats()).retrying or stats.delayed or dead.stats().retrying:
        threading.Event().wait(0.001)
    found: dict[str, Any] = {}
    for queue in (work, dead):
        rows = []
        for message in queue.peek(10_000):
            number = int(message.payload.split(b" ")[0])
            whole = message.payload == payload(number)
            headers = message.headers
            rows.append((number, whole, int(headers.get("x-attempts", 0)), headers.get("x-reason", "")))
        found[queue.name] = (queue.stats().depth, rows)
    return found


class Hand:
    """A thread that does one thing after the other, by chance."""

    def __init__(self, work: Queue, orders: Orders, hand: int) -> None:
        self.work, self.dead = work, work.dead_letters()
        self.chance = random.Random(f"{orders.seed} {hand}")
        self.next = orders.first + hand * 1_000_000

    def run(self) -> None:
        try:
            while True:
                self.step()
        except BaseException as error:
            tell("error", repr(error))
            raise

    def step(self) -> None:
        chance = self.chance.random()
        if chance < 0.35 and self.work.depth() < DEPTH:
            self.publish()
        elif chance < 0.90:
            self.consume(self.work)
        elif chance < 0.95:
            self.consume(self.dead)
        else:
            tell("redrive?")
            self.work.redrive(limit=self.chance.randrange(1, 9))
            tell("redriven")

    def publish(self) -> None:
        count = self.chance.choice([1, 1, 2, 5])
        numbers = list(range(self.next, self.next + count))
        self.next += count
        tell("publish?", numbers)
        messages = [
            Message(
                payload(number),
                priority=self.chance.choice([1, 100, 100]),
                delay=self.chance.choice([None, None, 0.002]),
            )
            for number in numbers
        ]
        if count == 1:
            only = messages[0]
            self.work.publish(only.payload, priority=only.priority, delay=only.delay)
        else:
            self.work.publish_many(messages)
        tell("published", numbers)

    def consume(self, queue: Queue) -> None:
        found = queue.receive_many(self.chance.randrange(1, 6))
        if not found:
            return
        numbers = {one.offset: int(one.payload.split(b" ")[0]) for one in found}
        whole = all(one.payload == payload(numbers[one.offset]) for one in found)
        tell("leased", queue.name, [(numbers[one.offset], one.attempt) for one in found], whole)
        if self.chance.random() < 0.3:
            chosen = self.chance.sample(found, self.chance.randrange(1, len(found) + 1))
            self.settle("ack", lambda: queue.ack_many(chosen), [numbers[one.offset] for one in chosen])
            found = [one for one in found if one not in chosen]
        for one in found:
            self.settle_one(one, numbers[one.offset])

    def settle_one(self, one: Delivery, number: int) -> None:
        how = self.chance.choice(["ack", "ack", "ack", "nack", "nack", "requeue", "reject", "leave"])
        if how == "reject" and one._queue is self.dead:
            how = "nack"  # rejecting a dead letter ends it for good
        if how == "requeue" and one.attempt >= MAX_ATTEMPTS:
            how = "nack"  # it would be handed out once more than it may: nobody said that it failed
        if how != "leave":
            act = getattr(one, how)
            if how == "nack" and one._queue is self.dead:
                act = partial(
                    one.nack, delay=0
                )  # their own backoff is of seconds, for which the census would wait
            self.settle(how, act, [number])
        if how != "leave" and self.chance.random() < 0.1:
            try:
                one.ack()
            except LeaseLost:
                return
            tell("error", f"{number} was settled twice")

    @staticmethod
    def settle(how: str, act: Callable[[], None], numbers: list[int]) -> None:
        tell(how + "?", numbers)
        act()
        tell(how, numbers)


def live(orders: Orders) -> None:
    """Until it is killed."""
    SABOTAGE[orders.sabotage]()
    upkeep.CHANGES_AT_ONCE = 400  # type: ignore[misc]
    broker = opened(orders.path, Files() if orders.synced else UnsyncedFiles())
    for name, found in census(broker).items():
        tell("census", name, *found)
    tell("begins")
    hands = [Hand(broker.queue("work", **POLICY), orders, hand) for hand in range(4)]
    threads = [threading.Thread(target=hand.run) for hand in hands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    for line in sys.stdin.buffer:
        orders = msgspec.json.decode(line, type=Orders)
        pid = os.fork()
        if pid == 0:
            try:
                live(orders)
            except BaseException as error:
                tell("error", repr(error))
            finally:
                os._exit(1)
        tell("pid", pid)
        os.waitpid(pid, 0)
        tell("ended")


if __name__ == "__main__":
    Path.cwd()
    main()
