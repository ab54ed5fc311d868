"""A broker in memory, whose clock the test moves, and a server over it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from penstock.clock import ManualClock
from tests.server.running import Running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def port(clock: ManualClock) -> Iterator[Embedded]:
    broker = in_memory(clock)
    yield broker
    broker.close()


@pytest.fixture
def running(port: Embedded) -> Iterator[Running]:
    with Running(port) as found:
        yield found


@pytest.fixture
def client(running: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running.url, timeout=30) as found:
        yield found
