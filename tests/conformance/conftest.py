"""The homes, as a fixture: every test that asks for `home` runs once in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.conformance.home import HOMES, Home
from tests.conformance.surface import Broker, Queue


class Restart(Protocol):
    def __call__(self, away: float = 0) -> Broker: ...


@pytest.fixture(params=list(HOMES))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A broker with nothing in it, in one of the homes."""
    found = Home(HOMES[request.param], tmp_path)
    yield found
    found.leave()


@pytest.fixture
def queue(home: Home) -> Queue:
    """A queue with the default policy."""
    return home.broker.queue("orders")


@pytest.fixture
def durable(home: Home) -> None:
    """What `@survives_a_restart` asks for."""
    if not home.durable:
        pytest.skip("what is kept in memory is gone after a restart")


@pytest.fixture
def sync_shell(home: Home) -> None:
    """What `@in_the_calling_thread` asks for."""
    if home.kind.asynchronous:
        pytest.skip("the event loop's thread does not exist in a forked child")


@pytest.fixture(params=["closed", "crashed"])
def restart(request: pytest.FixtureRequest, home: Home, durable: None) -> Restart:
    """Ends the broker, in good order or not, and gives the one that opens after it."""
    return home.reopen if request.param == "closed" else home.crash
