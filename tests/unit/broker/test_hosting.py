"""What a server asks of a broker besides: which namespaces there are, and what lease a message has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory, on_disk
from penstock.clock import ManualClock
from penstock.errors import LeaseLost
from penstock.model.commands import Delete, Handle, OpenGroup, Place, Receipts, Settle
from penstock.model.queries import HeldBy, Namespaces
from tests import asking


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "disk"])
def port(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Embedded]:
    found = in_memory(clock) if request.param == "memory" else on_disk(tmp_path / "data", clock)
    yield found
    found.close()


def namespaces(port: Embedded) -> list[str]:
    return port.describe(Namespaces()).wait()


def held(port: Embedded, log: Handle, id_: int) -> Receipts:
    return port.describe(HeldBy(log, id_)).wait()


def test_namespaces_are_those_that_have_something(port: Embedded) -> None:
    assert namespaces(port) == []
    asking.declare(port, namespace="b")
    asking.declare(port, namespace="a")
    asking.declare(port, "more", namespace="a")
    assert namespaces(port) == ["a", "b"]
    asking.do(port, asking.find(port, namespace="b"), Delete())
    assert namespaces(port) == ["a"]


def test_what_is_held_is_settled_by_what_is_given(port: Embedded) -> None:
    log = asking.declare(port)
    ids = asking.publish(port, log, [b"a", b"b", b"c"])
    port.lease(log, "default", 2).wait()
    asking.do(port, log, Settle(*held(port, log, ids[1])))
    assert asking.stats(port, log).leased == 1
    with pytest.raises(LeaseLost):
        held(port, log, ids[1])  # settled
    with pytest.raises(LeaseLost):
        held(port, log, ids[2])  # not handed out
    with pytest.raises(LeaseLost):
        held(port, log, 7)  # never there


def test_a_lease_that_is_over_is_not_held(port: Embedded, clock: ManualClock) -> None:
    log = asking.declare(port)
    (id_,) = asking.publish(port, log, [b"a"])
    port.lease(log, "default", 1).wait()
    clock.advance(seconds=31)
    with pytest.raises(LeaseLost):
        held(port, log, id_)


def test_a_lease_of_another_group_is_not_meant(port: Embedded) -> None:
    log = asking.declare(port)
    (id_,) = asking.publish(port, log, [b"a"])
    asking.do(port, log, OpenGroup("audit", start=Place(at="earliest")))
    port.lease(log, "audit", 1).wait()
    with pytest.raises(LeaseLost):
        held(port, log, id_)


def test_a_topic_has_no_group_of_its_own(port: Embedded) -> None:
    log = asking.declare(port, "events", kind="topic")
    (id_,) = asking.publish(port, log, [b"a"])
    with pytest.raises(LeaseLost):
        held(port, log, id_)
