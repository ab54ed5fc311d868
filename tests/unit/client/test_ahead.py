"""Messages fetched ahead: how many, for how long, and where they go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import LeaseLost
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from penstock.clock import ManualClock
from penstock.errors import BrokerClosed
from tests.server.running import Running
from tests.unit.broker.patience import until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inside(clock: ManualClock) -> Iterator[Embedded]:
    port = in_memory(clock)
    yield port
    port.close()


@pytest.fixture
def broker(inside: Embedded, clock: ManualClock) -> Iterator[penstock.Broker]:
    with Running(inside) as server, penstock.connect(server.url, clock=clock) as found:
        yield found


def leased(queue: penstock.Queue) -> int:
    return queue.stats().leased


def ends(inside: Embedded) -> list[Any]:
    """When the leases of a queue end."""
    log: Any = inside.find("default", "orders").wait()
    group = log.group()
    found = group.leases.of(range(log.next_offset))
    return [one.deadline_us for one in found if one is not None]


def test_more_is_fetched_ahead_than_was_asked_for(broker: penstock.Broker) -> None:
    queue = broker.queue("orders")
    queue.publish_many([b"%d" % n for n in range(50)])
    with queue.subscribe("w", prefetch=4) as consumer:
        assert leased(queue) == 0  # nobody has asked yet
        for n in range(50):
            found = consumer.receive()
            assert found is not None
            assert found.payload == b"%d" % n
            found.ack()
            assert leased(queue) <= 4
        assert consumer.receive() is None


def test_a_lease_that_waits_in_the_buffer_ends(
    broker: penstock.Broker, inside: Embedded, clock: ManualClock
) -> None:
    queue = broker.queue("orders", visibility_timeout=0.3)
    queue.publish_many([b"a", b"b", b"c"])
    with queue.subscribe("w", prefetch=3) as consumer:
        first = consumer.receive()
        assert first is not None
        first.ack()
        for _ in range(5):  # longer than a lease lasts, in steps that are shorter
            before = min(ends(inside))
            clock.advance(0.2)
            until(lambda before=before: min(ends(inside)) > before)  # type: ignore[misc]
        found = [consumer.receive(), consumer.receive()]
        assert [(one.payload, one.attempt) for one in found if one] == [(b"b", 1), (b"c", 1)]
        for one in found:
            assert one is not None
            one.ack()
    assert queue.depth() == 0


def test_what_was_fetched_before_a_seek_is_handed_out_after_it(broker: penstock.Broker) -> None:
    topic = broker.topic("events")
    consumer = topic.subscribe("audit", prefetch=10)
    topic.publish_many([b"a", b"b", b"c"])
    found = consumer.receive()
    assert found is not None
    topic.subscription("audit").seek(offset=0)
    with pytest.raises(LeaseLost):
        found.ack()
    assert [one.payload for one in consumer.receive_many(10)] == [b"a", b"b", b"c"]


def test_a_consumer_that_was_taken_out_hands_out_what_it_had(broker: penstock.Broker) -> None:
    queue = broker.queue("orders")
    group = queue.group("jobs")
    queue.publish_many([b"a", b"b", b"c"])
    consumer = group.add_consumer("w", prefetch=10)
    assert consumer.receive() is not None
    group.remove_consumer("w")
    with pytest.raises(BrokerClosed):
        consumer.receive()
    assert [one.payload for one in group.receive_many(5)] == [b"a", b"b", b"c"]
