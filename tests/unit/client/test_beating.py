"""Consumers whose process is killed, hangs, or is only busy: who is thought dead, and who goes on.

A server's clock is moved by hand here, and the beats come by real time: so a test moves it by less than a silence and waits for the beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

import penstock
from penstock import wire
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from penstock.client.port import RemotePort
from penstock.clock import ManualClock
from penstock.errors import BrokerClosed, LeaseLost
from tests.server.running import Running
from tests.unit.broker.patience import until

#: Of the clients that beat while the test looks on.
SHORT_S = 0.3

#: The same, and long enough for a beat to be in time on any machine.
LONG_S = 3.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inside(clock: ManualClock) -> Iterator[Embedded]:
    port = in_memory(clock)
    yield port
    port.close()


@pytest.fixture
def server(inside: Embedded) -> Iterator[Running]:
    with Running(inside) as running:
        yield running


def killed(broker: penstock.Broker) -> None:
    """Nothing is heard of a client any more, as if its process were gone."""
    port: Any = broker._port
    asyncio.run_coroutine_threadsafe(port._server.close(), port._runner.loop).result()
    port._runner.stop()


def heard_us(inside: Embedded, consumer: str) -> int:
    log: Any = inside.monitor.engine.find("default", "orders")
    member = log.group().members.get(consumer)
    return -1 if member is None else int(member.heard_us)


def test_a_killed_client_is_a_member_for_ever(server: Running, clock: ManualClock) -> None:
    """And with it what it held, and the place of the one that is active."""
    first, second = (penstock.connect(server.url, clock=clock) for _ in range(2))
    queue = first.queue("orders", single_active=True, visibility_timeout=None)
    queue.publish_many([b"a", b"b"])
    assert queue.subscribe("first").receive() is not None
    with second:
        other = second.queue("orders").subscribe("second")
        assert other.receive() is None
        killed(first)
        clock.advance(wire.SILENCE_S / 2)
        assert other.receive() is None  # it may be alive
        clock.advance(wire.SILENCE_S / 2 + 1)
        assert second.queue("orders").group("default").consumers() == ["second"]
        found = [one for one in (other.receive(), other.receive()) if one]
        assert [(one.payload, one.attempt) for one in found] == [(b"a", 2), (b"b", 1)]


def test_a_consumer_is_thought_dead_while_its_handler_is_busy(
    server: Running, inside: Embedded, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemotePort, "silence_s", SHORT_S)
    with penstock.connect(server.url, clock=clock) as broker:
        queue = broker.queue("orders", visibility_timeout=None)
        queue.publish(b"a")
        one, two = queue.subscribe("one"), queue.subscribe("two")
        found = one.receive()
        assert found is not None
        for _ in range(5):  # longer than the silence, in steps that are shorter
            before = [heard_us(inside, name) for name in ("one", "two")]
            clock.advance(SHORT_S * 2 / 3)
            for name, since in zip(("one", "two"), before, strict=True):
                until(lambda name=name, since=since: heard_us(inside, name) > since)  # type: ignore[misc]
        found.ack()
        assert queue.group("default").consumers() == ["one", "two"]
        two.close()


def test_the_client_beats_for_a_program_that_does_so_itself(
    server: Running, inside: Embedded, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that hangs would never be noticed."""
    monkeypatch.setattr(RemotePort, "silence_s", SHORT_S)
    with penstock.connect(server.url, clock=clock) as broker:
        queue = broker.queue("orders")
        queue.subscribe("hangs", heartbeat=SHORT_S)
        queue.subscribe("works")
        clock.advance(SHORT_S / 2)
        since = heard_us(inside, "works")
        until(lambda: heard_us(inside, "works") > since)
        clock.advance(SHORT_S * 2 / 3)
        assert queue.group("default").consumers() == ["works"]


def test_who_could_not_be_heard_ends(server: Running, clock: ManualClock) -> None:
    """The process stood still, or the network was cut, for longer than the silence."""
    with penstock.connect(server.url, clock=clock) as broker:
        queue = broker.queue("orders")
        queue.publish_many([b"a", b"b"])
        consumer = queue.subscribe("one")
        held = consumer.receive()
        assert held is not None
        port: Any = broker._port
        (_, attached), *_ = port._consuming.attached.values()
        attached.heard_s -= wire.SILENCE_S + 1
        clock.advance(wire.SILENCE_S + 1)
        with pytest.raises(LeaseLost):
            held.ack()
        found = consumer.receive()
        assert found is not None
        assert (found.payload, found.attempt) == (b"a", 2)
        found.ack()


def test_who_was_taken_out_comes_again_after_a_while(
    server: Running, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemotePort, "silence_s", LONG_S)
    with penstock.connect(server.url, clock=clock) as broker, penstock.connect(server.url) as other:
        consumer = broker.queue("orders").subscribe("one")
        other.queue("orders").group("default").remove_consumer("one")
        port: Any = broker._port
        (_, attached), *_ = port._consuming.attached.values()
        until(lambda: not attached.is_beaten)
        attached.heard_s -= 2 * LONG_S
        with pytest.raises(BrokerClosed):
            consumer.receive()


def test_a_consumer_that_names_no_silence_is_for_ever(server: Running, clock: ManualClock) -> None:
    """Of whatever speaks to the routes."""

    with httpx2.Client(base_url=server.url) as client:
        client.put("/v1/namespaces/default/queues/orders", json={})
        group = "/v1/namespaces/default/logs/orders/groups/default"
        assert client.post(group + "/consumers", json={"consumer": "w"}).json() == {"consumer": "w"}
        clock.advance(wire.SILENCE_S - 1)
        assert client.post(group + "/consumers/w/heartbeat").json() == {"alive": True}
        clock.advance(wire.SILENCE_S + 1)
        assert client.post(group + "/consumers/w/heartbeat").json() == {"alive": False}
        jobs = "/v1/namespaces/default/logs/orders/groups/jobs"
        assert client.put(jobs, json={"consumer": "v"}).json() == {"consumer": "v"}
        clock.advance(wire.SILENCE_S + 1)
        assert client.post(jobs + "/consumers/v/heartbeat").json() == {"alive": False}
