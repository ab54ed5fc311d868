"""What filters look at is bounded for each turn: the broker's other callers never wait for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from penstock.broker import monitor
from penstock.broker.embedded import Embedded
from penstock.broker.handing import alive
from penstock.broker.opening import in_memory
from penstock.message import Message
from penstock.model.commands import DeadLetters, Handle, OpenGroup, Redrive, Settle
from tests import asking

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


def subscribed(port: Embedded) -> Handle:
    topic = asking.declare(port, "events", kind="topic")
    for group in range(GROUPS):
        asking.do(port, topic, OpenGroup(f"g{group}", filter="n = 'yes'"))
    return topic


def publish(port: Embedded, topic: Handle) -> None:
    no, yes = Message(b"", headers={"n": "no"}), Message(b"x", headers={"n": "yes"})
    asking.publish(port, topic, [no] * (EACH - 1) + [yes])


async def turn_by_turn(topic: Handle, *work: Awaitable[Any]) -> tuple[list[Any], list[int]]:
    """Return what the work gave, and how many messages were looked at in each turn of the loop."""
    running = asyncio.gather(*work)
    looked_at: list[int] = []
    before = settled(topic)
    while not running.done():
        await asyncio.sleep(0)
        looked_at.append(settled(topic) - before)
        before = settled(topic)
    return await running, looked_at


def settled(topic: Handle) -> int:
    log = alive(topic)
    return sum(log.published - group.lanes.count for group in log.groups.values())


def test_filtered_leases_share_the_steps_of_a_turn(port: Embedded) -> None:
    topic = subscribed(port)
    publish(port, topic)
    leases = [port.lease(topic, f"g{group}", 1) for group in range(GROUPS)]
    found, looked_at = asyncio.run(turn_by_turn(topic, *(lease.get() for lease in leases)))
    assert [list(granted.offsets) for granted in found] == [[EACH - 1]] * GROUPS
    assert (max(looked_at), sum(looked_at)) == (1, GROUPS * EACH)


def test_a_publish_leaves_filters_of_waiting_receivers_to_later_turns(port: Embedded) -> None:
    topic = subscribed(port)

    waits = [port.lease(topic, f"g{group}", 1, wait_us=None) for group in range(GROUPS)]
    publish(port, topic)
    assert settled(topic) == 0
    found, looked_at = asyncio.run(turn_by_turn(topic, *(lease.get() for lease in waits)))
    assert [list(granted.offsets) for granted in found] == [[EACH - 1]] * GROUPS
    assert (max(looked_at), sum(looked_at)) == (1, GROUPS * EACH)


def test_redrives_with_a_filter_share_the_steps_of_a_turn(port: Embedded) -> None:
    queue = asking.declare(port, max_attempts=1)
    asking.publish(port, queue, [Message(b"", headers={"n": "yes"})] * EACH)
    held = port.lease(queue, "default", EACH).wait()
    assert held is not None
    asking.do(port, queue, Settle("default", list(held.offsets), [held.number] * EACH, "reject"))
    letters = port.declare(DeadLetters(queue)).wait()

    async def redrive(first: int) -> int:
        (done,) = await asking.begin(port, letters, Redrive(where="n = 'yes'", span=(first, EACH))).get()
        return int(done.moved)

    moved, looked_at = asyncio.run(turn_by_turn(letters, *map(redrive, range(0, EACH, 2))))
    assert moved == [1] * (EACH // 2)
    assert max(looked_at) == 1
