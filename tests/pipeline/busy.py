"""A broker's busy day: everything that may lawfully happen to messages, at random, so that an audit has something to be wrong about.

As a program (`python -m tests.pipeline.busy DIR SEED`) it works until it is killed, and says so once it has begun.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import penstock
from penstock.errors import PenstockError

SEGMENT_BYTES = 512 * 1024


class Day:
    """The work of one broker."""

    def __init__(self, broker: Any, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        backoff = penstock.Backoff(initial=0.001, factor=1, maximum=0.001, jitter=0)
        self.plain = broker.queue("plain", backoff=backoff, max_attempts=2)
        self.brief = broker.queue("brief", ttl=0.01)
        self.mortal = broker.queue("mortal", ttl=0.01, on_expire="dead-letter")
        self.keyed = broker.queue("keyed", ordering="key", backoff=backoff, max_attempts=3)
        self.kept = broker.topic("kept", retain_seconds=2)
        self.short = broker.queue("short", max_depth=50, overflow="drop-head")
        self.once = broker.queue("once", delivery="at-most-once")
        self.other = broker.namespace("other").queue(
            "plain", dead_letter="graves", backoff=backoff, max_attempts=1
        )
        self.events = broker.topic("events")
        self.kept.subscribe("all", start="earliest").close()
        self.events.subscribe("eu", filter="region = 'eu'").close()
        self.events.subscribe("all").close()

    def step(self) -> None:
        action = self.random.choice(_ACTIONS)
        try:
            action(self)
        except PenstockError as error:  # a queue is full, a lease was lost
            if not error.code:
                raise

    def publish(self) -> None:
        chance = self.random
        n = chance.randint(1, 20)
        queue = chance.choice([self.plain, self.brief, self.mortal, self.short, self.once, self.other])
        queue.publish_many([chance.randbytes(200) for _ in range(n)])
        self.keyed.publish_many([
            penstock.Message(chance.randbytes(50), key=f"k{chance.randint(0, 5)}", priority=chance.choice([100, 100, 1])) for _ in range(n // 4 + 1)
        ])  # fmt: skip
        if chance.random() < 0.3:
            self.keyed.publish(b"later", key="k1", delay=0.001)
        for topic in (self.kept, self.events):
            topic.publish(chance.randbytes(300), headers={"region": chance.choice(["eu", "us"])})

    def consume(self) -> None:
        chance = self.random
        from_groups = [
            self.kept.subscription("all"),
            self.events.subscription("eu"),
            self.events.subscription("all"),
        ]
        source = chance.choice(
            [
                self.plain,
                self.plain,
                self.keyed,
                self.keyed,
                self.brief,
                self.mortal,
                self.short,
                self.once,
                self.other,
                *from_groups,
            ]
        )
        found = source.receive_many(chance.randint(1, 60))
        chance.shuffle(found)
        if source is self.once:
            return
        kept = [one for one in found if chance.random() < 0.8]
        if kept:
            source.ack_many(kept)
        for one in found:
            if one not in kept:
                self._fail(one)

    def _fail(self, delivery: Any) -> None:
        how = self.random.randint(0, 3)
        if how == 0:
            delivery.nack(error=ValueError(f"no such customer {self.random.randint(0, 9)}"))
        elif how == 1:
            delivery.reject(error="not wanted")
        elif how == 2:
            delivery.requeue()

    def transact(self) -> None:
        found = self.plain.receive_many(3)
        with self.broker.transaction() as tx:
            for one in found:
                tx.ack(one)
                tx.publish("keyed", one.payload, key="k0")

    def redrive(self) -> None:
        queue = self.random.choice([self.plain, self.keyed, self.mortal, self.other])
        queue.redrive()

    def bury(self) -> None:
        letters = self.random.choice([self.plain, self.mortal]).dead_letters()
        found = letters.receive_many(10)
        if found:
            letters.ack_many(found)

    def purge(self) -> None:
        self.random.choice([self.plain, self.short, self.kept]).purge()

    def cancel(self) -> None:
        self.plain.cancel(self.plain.publish(b"never", delay=60))

    def seek(self) -> None:
        group = self.random.choice(
            [self.kept.subscription("all"), self.keyed.group("default"), self.plain.group("default")]
        )
        group.seek(offset=self.random.randint(0, 2000))

    def come_and_go(self) -> None:
        self.kept.subscribe("guest", start="earliest").close()
        for one in self.kept.subscription("guest").receive_many(30):
            one.ack()
        if self.random.random() < 0.5:
            self.kept.unsubscribe("guest")
        with self.events.subscribe("ephemeral", durable=False) as consumer:
            self.events.publish(b"x", headers={"region": "eu"})
            for one in consumer.receive_many(2):
                one.reject(error="no")

    def delete(self) -> None:
        queue = self.broker.queue("brieflife")
        queue.publish_many([b"x" * 100] * 20)
        for one in queue.receive_many(20):
            one.reject()
        self.broker.delete_queue("brieflife")
        if self.random.random() < 0.2:
            self.broker.delete_queue("mortal.dlq")

    def tidy(self) -> None:
        self.broker._port.monitor.upkeep.run()


_ACTIONS: list[Any] = (
    [Day.publish] * 12
    + [Day.consume] * 24
    + [Day.transact, Day.redrive, Day.bury, Day.tidy] * 2
    + [Day.purge, Day.cancel, Day.seek, Day.come_and_go, Day.delete]
)


def main() -> None:
    path, seed = Path(sys.argv[1]), int(sys.argv[2])
    with penstock.open(path, durability="os", segment_bytes=SEGMENT_BYTES) as broker:
        day = Day(broker, seed)
        for number in range(10**9):
            day.step()
            if number == 200:
                print("working", flush=True)


if __name__ == "__main__":
    main()
