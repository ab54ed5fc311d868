"""What filters look at is bounded for each turn: the broker's other callers never wait for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from penstock.broker import monitor
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from penstock.engine.filter import compile_filter
from penstock.message import Message

GROUPS = 3
EACH = 10


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded]:
    """A broker whose filters look at one message in a turn."""
    monkeypatch.setattr(monitor, "FILTER_STEPS_AT_ONCE", 1)
    found = in_memory()
    found.monitor.engine.steps_left = 0
    yield found
    found.close()


def subscribed(port: Embedded) -> Any:
    topic = port.declare("default", "events", {}, create=None, kind="topic").wait()
    for group in range(GROUPS):
        port.open_group(
            topic, f"g{group}", filter="n = 'yes'", strategy=None, start="latest", durable=True
        ).wait()
    return topic


def publish(port: Embedded, topic: Any) -> None:
    port.publish(
        topic, [Message(b"", headers={"n": "no"})] * (EACH - 1) + [Message(b"x", headers={"n": "yes"})]
    ).wait()


async def turn_by_turn(topic: Any, *work: Awaitable[Any]) -> tuple[list[Any], list[int]]:
    """Return what the work gave, and how many messages were looked at in each turn of the loop."""
    running = asyncio.gather(*work)
    looked_at: list[int] = []
    before = settled(topic)
    while not running.done():
        await asyncio.sleep(0)
        looked_at.append(settled(topic) - before)
        before = settled(topic)
    return await running, looked_at


def settled(topic: Any) -> int:
    return sum(topic.published - group.lanes.count for group in topic.groups.values())


def test_filtered_leases_share_the_steps_of_a_turn(port: Embedded) -> None:
    topic = subscribed(port)
    publish(port, topic)
    leases = [
        port.lease(topic, f"g{group}", 1, consumer=None, wait_us=0, keep=True) for group in range(GROUPS)
    ]
    found, looked_at = asyncio.run(turn_by_turn(topic, *(lease.get() for lease in leases)))
    assert [list(granted.offsets) for granted in found] == [[EACH - 1]] * GROUPS
    assert (max(looked_at), sum(looked_at)) == (1, GROUPS * EACH)


def test_a_publish_leaves_filters_of_waiting_receivers_to_later_turns(port: Embedded) -> None:
    topic = subscribed(port)

    waits = [
        port.lease(topic, f"g{group}", 1, consumer=None, wait_us=None, keep=True) for group in range(GROUPS)
    ]
    publish(port, topic)
    assert settled(topic) == 0
    found, looked_at = asyncio.run(turn_by_turn(topic, *(lease.get() for lease in waits)))
    assert [list(granted.offsets) for granted in found] == [[EACH - 1]] * GROUPS
    assert (max(looked_at), sum(looked_at)) == (1, GROUPS * EACH)


def test_redrives_with_a_filter_share_the_steps_of_a_turn(port: Embedded) -> None:
    queue = port.declare("default", "orders", {"max_attempts": 1}, create=None).wait()
    port.publish(queue, [Message(b"", headers={"n": "yes"})] * EACH).wait()
    held = port.lease(queue, "default", EACH, consumer=None, wait_us=0, keep=True).wait()
    assert held is not None
    for offset in held.offsets:
        port.settle(queue, port.held(queue, held.runs[0].batch.ids[offset]).wait(), "reject").wait()
    letters = port.change(queue, "dead-letters").wait()
    where = compile_filter("n = 'yes'")

    async def redrive(first: int) -> int:
        done = await port.redrive(letters, 100, where=where, to=None, span=range(first, EACH)).get()
        return done.moved

    moved, looked_at = asyncio.run(turn_by_turn(letters, *map(redrive, range(0, EACH, 2))))
    assert moved == [1] * (EACH // 2)
    assert max(looked_at) == 1
