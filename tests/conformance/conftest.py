"""The homes, as a fixture: every test that asks for `home` runs once in each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.conformance.home import HOMES, Home
from tests.conformance.surface import Broker, Queue

#: Homes that differ from another one in one thing, and the modules in which that could show: the others run there only if PENSTOCK_ALL_HOMES is set. Over HTTP on a disk everything runs.
SAMPLED: Final = {
    "memory-http": {"test_delivery_promises", "test_publishing", "test_receiving", "test_settling", "test_waiting"},
    "disk-http-asyncio": {
        "test_concurrency", "test_delivery_promises", "test_publishing", "test_receiving", "test_settling", "test_transactions", "test_waiting",
    },
    "memory-http-asyncio": {"test_examples", "test_leases", "test_waiting"},
}  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("PENSTOCK_ALL_HOMES"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        modules = None if callspec is None else SAMPLED.get(callspec.params.get("home", ""))
        (kept if modules is None or item.path.stem in modules else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


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
