"""What a server asks of a broker besides: which namespaces there are, and what lease a message has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory, on_disk
from penstock.broker.port import Handle
from penstock.clock import ManualClock
from penstock.errors import LeaseLost


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "disk"])
def port(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Embedded]:
    found = in_memory(clock) if request.param == "memory" else on_disk(tmp_path / "data", clock)
    yield found
    found.close()


def made(port: Embedded, name: str = "orders", namespace: str = "default") -> Handle:
    return port.declare(namespace, name, {}, create=None).wait()


def test_namespaces_are_those_that_have_something(port: Embedded) -> None:
    assert port.namespaces().wait() == []
    made(port, namespace="b")
    made(port, namespace="a")
    made(port, "more", namespace="a")
    assert port.namespaces().wait() == ["a", "b"]
    port.change(made(port, namespace="b"), "delete").wait()
    assert port.namespaces().wait() == ["a"]


def test_what_is_held_is_settled_by_what_is_given(port: Embedded) -> None:
    log = made(port)
    ids = port.publish(log, [b"a", b"b", b"c"]).wait()
    port.lease(log, "default", 2, consumer=None, wait_us=0, keep=True).wait()
    port.settle(log, port.held(log, ids[1]).wait(), "ack").wait()
    assert port.describe(log).wait().leased == 1
    with pytest.raises(LeaseLost):
        port.held(log, ids[1])  # settled
    with pytest.raises(LeaseLost):
        port.held(log, ids[2])  # not handed out
    with pytest.raises(LeaseLost):
        port.held(log, 7)  # never there


def test_a_lease_that_is_over_is_not_held(port: Embedded, clock: ManualClock) -> None:
    log = made(port)
    (id_,) = port.publish(log, [b"a"]).wait()
    port.lease(log, "default", 1, consumer=None, wait_us=0, keep=True).wait()
    clock.advance(seconds=31)
    with pytest.raises(LeaseLost):
        port.held(log, id_)


def test_a_lease_of_another_group_is_not_meant(port: Embedded) -> None:
    log = made(port)
    (id_,) = port.publish(log, [b"a"]).wait()
    port.open_group(log, "audit", filter=None, strategy=None, start="earliest", durable=True).wait()
    port.lease(log, "audit", 1, consumer=None, wait_us=0, keep=True).wait()
    with pytest.raises(LeaseLost):
        port.held(log, id_)


def test_a_topic_has_no_group_of_its_own(port: Embedded) -> None:
    log = port.declare("default", "events", {}, create=None, kind="topic").wait()
    (id_,) = port.publish(log, [b"a"]).wait()
    with pytest.raises(LeaseLost):
        port.held(log, id_)
