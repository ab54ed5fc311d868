"""A load for a queue, and what became of it: how many messages in a second, and how long a call took.

Threads publish, threads receive and acknowledge; all of them go through the same broker, as in a program that uses it. There are three parts, one
after the other: publishing as fast as it goes, receiving what is there as fast as it goes, and both at once at a given rate, for how long a message
is on its way. Only this process looks at the clock, so that two machines need not agree on the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.broker.sync import Queue

#: How long the third part takes, unless the messages are used up before.
END_TO_END_S: Final = 5.0

#: How long a consumer waits for messages before it looks whether it is to stop.
PATIENCE_S: Final = 0.25

#: How many times longer than planned the third part may take.
PATIENCE: Final = 2

MILLISECOND_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000

Advance = Callable[[int], None]


class Load(msgspec.Struct, frozen=True):
    """What is put on the queue. `rate` is of the third part, in messages a second; 0 leaves it out."""

    messages: int
    size: int
    batch: int
    producers: int
    consumers: int
    rate: float

    @property
    def end_to_end_messages(self) -> int:
        return min(self.messages, max(1, round(self.rate * END_TO_END_S))) if self.rate else 0


class Part(msgspec.Struct, frozen=True):
    """What one part gave. The times are of calls, or of messages on their way."""

    messages: int
    seconds: float
    per_second: float
    mib_per_second: float
    timed: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class Results(msgspec.Struct, frozen=True):
    """All of it."""

    publish: Part
    receive: Part
    end_to_end: Part | None


class Bench:
    """A queue under load. Setting `stop` ends it after the calls that are under way."""

    def __init__(self, queue: Queue, load: Load) -> None:
        self._queue = queue
        self._load = load
        self._payload = b"\xb5" * load.size
        self._last_ns = 0  # when the last call ended that did something
        self.stop = threading.Event()

    def publish(self, advance: Advance) -> Part:
        """Publish all messages, in batches, as fast as it goes."""
        left = Remaining(self._load.messages)
        took: list[int] = []

        def produce(_: int) -> None:
            while not self.stop.is_set() and (count := left.take(self._load.batch)):
                began = time.perf_counter_ns()
                if count == 1:
                    self._queue.publish(self._payload)
                else:
                    self._queue.publish_many([self._payload] * count)
                self._last_ns = at = time.perf_counter_ns()
                took.append(at - began)
                advance(count)

        seconds = self._together([(produce, self._load.producers)])
        return self._part(self._load.messages, seconds, took)

    def receive(self, advance: Advance) -> Part:
        """Receive and acknowledge as many, as fast as it goes."""
        took: list[int] = []
        left = Remaining(self._load.messages)

        def consume(_: int) -> None:
            with self._queue.subscribe(prefetch=self._load.batch) as consumer:
                while left.count and not self.stop.is_set():
                    began = time.perf_counter_ns()
                    found = consumer.receive_many(self._load.batch, PATIENCE_S)
                    if found:
                        consumer.ack_many(found)
                        self._last_ns = at = time.perf_counter_ns()
                        took.append(at - began)
                        advance(left.take(len(found)))

        seconds = self._together([(consume, self._load.consumers)])
        return self._part(self._load.messages, seconds, took)

    def end_to_end(self, advance: Advance) -> Part:
        """Publish single messages at the rate, and receive them as they come: from the beginning of a publish until it is in somebody's hands.

        Where the rate is too high for the place, it ends before all are published.
        """
        count = self._load.end_to_end_messages
        producing = Remaining(self._load.producers)
        began: dict[int, int] = {}
        came: dict[int, int] = {}
        start_s = time.monotonic()
        end_s = start_s + PATIENCE * max(1.0, count / self._load.rate)

        def produce(number: int) -> None:
            for turn in range(number, count, self._load.producers):
                left_s = start_s + turn / self._load.rate - time.monotonic()
                if self.stop.wait(max(0.0, left_s)) or time.monotonic() > end_s:
                    break
                at = time.perf_counter_ns()
                began[self._queue.publish(self._payload)] = at
            producing.take(1)

        def consume(_: int) -> None:
            with self._queue.subscribe(prefetch=self._load.batch) as consumer:
                while not self.stop.is_set() and (producing.count or len(came) < len(began)):
                    found = consumer.receive_many(self._load.batch, PATIENCE_S)
                    at = time.perf_counter_ns()
                    for delivery in found:
                        came.setdefault(delivery.id, at)
                    if found:
                        consumer.ack_many(found)
                        self._last_ns = time.perf_counter_ns()
                        advance(len(found))

        seconds = self._together([(consume, self._load.consumers), (produce, self._load.producers)])
        on_their_way = [at - began[which] for which, at in came.items() if which in began]
        return self._part(len(began), seconds, on_their_way)

    def _together(self, works: Sequence[tuple[Callable[[int], None], int]]) -> float:
        """Run threads until all have ended; how long it took until the last call that did something. If one fails all stop, and that is raised."""
        failures: list[BaseException] = []

        def run(work: Callable[[int], None], number: int) -> None:
            try:
                work(number)
            except BaseException as error:  # whatever it is, the others must not go on without it
                failures.append(error)
                self.stop.set()

        threads = [
            threading.Thread(target=run, args=(work, number), name=f"bench {number}")
            for work, count in works
            for number in range(count)
        ]
        began = time.perf_counter_ns()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            self.stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if failures:
            raise failures[0]
        return max(1, self._last_ns - began) / SECOND_NS

    def _part(self, messages: int, seconds: float, took_ns: list[int]) -> Part:
        took_ns.sort()
        per_second = messages / seconds
        p50, p95, p99, most = (round(_quantile(took_ns, q) / MILLISECOND_NS, 3) for q in (0.5, 0.95, 0.99, 1))
        return Part(
            messages=messages,
            seconds=round(seconds, 3),
            per_second=round(per_second, 1),
            mib_per_second=round(per_second * self._load.size / (1 << 20), 2),
            timed=len(took_ns),
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            max_ms=most,
        )


def _quantile(ordered: list[int], part: float) -> int:
    """The smallest one that so great a part does not exceed."""
    if not ordered:
        return 0
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


class Remaining:
    """How many messages are left, for several threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()

    def take(self, most: int) -> int:
        """Some of them; how many."""
        with self._lock:
            taken = min(most, self.count)
            self.count -= taken
            return taken
