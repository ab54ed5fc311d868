"""Publishes of many threads over one connection: they travel together, and each hears only of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Message, MessageTooLarge, QueueFull
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from tests.conformance.background import all_of, start
from tests.server.running import Running

THREADS = 100
EACH = 20


class Counting:
    """Counts requests by address."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests[f"{method} {route.rpartition('/')[2]}"] += 1

    def render(self, namespaces: object) -> bytes:
        return b""


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def inside() -> Iterator[Embedded]:
    port = in_memory()
    yield port
    port.close()


@pytest.fixture
def url(inside: Embedded, counting: Counting) -> Iterator[str]:
    with Running(inside, observer=counting) as server:
        yield server.url


def together(calls: list[Any]) -> list[Any]:
    """Begin them as nearly at once as threads can."""
    gate = threading.Barrier(len(calls))

    def run(call: Any) -> Any:
        gate.wait()
        return call()

    return all_of([start(run, call) for call in calls])


def test_a_hundred_threads_send_a_request_for_each_message_or_get_anothers_id(
    url: str, counting: Counting
) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("orders")

        def publish(thread: int) -> dict[int, bytes]:
            return {queue.publish(b"%d-%d" % (thread, n)): b"%d-%d" % (thread, n) for n in range(EACH)}

        given: dict[int, bytes] = {}
        for found in together([lambda n=n: publish(n) for n in range(THREADS)]):
            given.update(found)
        stored = queue.peek(THREADS * EACH)
    assert {message.id: message.payload for message in stored} == given
    assert len(given) == THREADS * EACH
    for thread in range(THREADS):
        mine = [one.payload for one in stored if one.payload.startswith(b"%d-" % thread)]
        assert mine == [b"%d-%d" % (thread, n) for n in range(EACH)]
    assert counting.requests["POST messages"] < THREADS * EACH / 4


def test_a_full_queue_refuses_those_for_whom_there_is_room(url: str) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("small", max_depth=50)

        def publish(n: int) -> bool:
            try:
                queue.publish(b"%d" % n)
            except QueueFull:
                return False
            return True

        taken = together([lambda n=n: publish(n) for n in range(THREADS)])
        assert sum(taken) == queue.depth() == 50
        assert sorted(one.payload for one in queue.peek(100)) == sorted(b"%d" % n for n in range(THREADS) if taken[n])  # fmt: skip


def test_one_message_that_is_too_large_is_everybodys_error(url: str) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("orders", max_message_bytes=100)

        def publish(n: int) -> str:
            try:
                queue.publish_many([b"a", b"x" * (101 if n % 10 == 0 else 99)])
            except MessageTooLarge:
                return "too large"
            return "taken"

        said = together([lambda n=n: publish(n) for n in range(THREADS)])
        assert said == ["too large" if n % 10 == 0 else "taken" for n in range(THREADS)]
        assert queue.depth() == 2 * 90


def test_a_repetition_in_the_same_request_is_stored_twice(url: str) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("orders")
        ids = together([lambda: queue.publish(b"a", dedup_id="same") for _ in range(THREADS)])
        assert len(set(ids)) == 1
        assert queue.depth() == 1


def test_tasks_of_a_loop_do_not_travel_together_or_change_their_order(url: str, counting: Counting) -> None:
    async def main() -> list[int]:
        async with penstock.aio.connect(url) as broker:
            queue = await broker.queue("orders")
            ids = await asyncio.gather(
                *(
                    queue.publish_many([b"%d-a" % n, Message(b"%d-b" % n, headers={"n": str(n)})])
                    for n in range(200)
                )
            )
            stored = await queue.peek(1000)
            assert [one.payload for one in stored] == [
                b"%d-%s" % (n, x) for n in range(200) for x in (b"a", b"b")
            ]
            assert [one.id for one in stored] == [one for pair in ids for one in pair]
            return [one for pair in ids for one in pair]

    assert len(asyncio.run(main())) == 400
    assert counting.requests["POST messages"] <= 5


def test_a_hundred_who_wait_keep_a_publish_from_being_sent(url: str) -> None:
    with penstock.connect(url) as broker:
        queue = broker.queue("orders")
        waiting = [start(queue.receive, timeout=None) for _ in range(THREADS)]
        for n in range(THREADS):
            queue.publish(b"%d" % n)
        found = all_of(waiting)
        queue.ack_many([one for one in found if one is not None])
        assert queue.depth() == 0
