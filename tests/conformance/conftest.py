"""The homes, as a fixture: every test that asks for `home` runs once in each of them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.conformance.home import HOMES, Home
from tests.conformance.surface import Broker, Queue

#: Over HTTP a test takes ten times as long, so `make test` runs all of these modules there, and of the others one test in `ONE_OF`, always the same ones; with PENSTOCK_ALL_HOMES all of them.
#: The other homes over HTTP differ from the first in one thing each: their modules are those in which it could show, and of the others nothing runs there.
WHOLE: Final = {
    "disk-http": {
        "test_concurrency", "test_dead_letters", "test_declaring", "test_dedup", "test_delivery_promises", "test_examples", "test_groups", "test_leases", "test_namespaces",
        "test_publishing", "test_readers", "test_receiving", "test_settling", "test_topics", "test_transactions", "test_waiting",
    },
    "memory-http": {"test_delivery_promises", "test_receiving", "test_settling"},
    "disk-http-asyncio": {"test_concurrency", "test_delivery_promises", "test_settling", "test_waiting"},
    "memory-http-asyncio": {"test_examples", "test_waiting"},
}  # fmt: skip
SAMPLED: Final = "disk-http"
ONE_OF: Final = 4


def _is_run(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    home = "" if callspec is None else callspec.params.get("home", "")
    if home not in WHOLE or item.path.stem in WHOLE[home]:
        return True
    return home == SAMPLED and zlib.crc32(item.name.encode()) % ONE_OF == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("PENSTOCK_ALL_HOMES"):
        return
    left_out = [item for item in items if not _is_run(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_run(item)]


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
