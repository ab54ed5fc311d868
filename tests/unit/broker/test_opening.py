"""What a broker is opened with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.clock import ManualClock


def chances(broker: penstock.broker.sync.Broker) -> list[float]:
    port: Any = broker._port
    return [port.core.engine._chance.unit() for _ in range(5)]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_failed_together_in_two_processes_is_retried_together(where: str, tmp_path: Path) -> None:
    seen = []
    for name in ("one", "two", "one"):  # the last is the first again
        with penstock.open(tmp_path / name if where == "disk" else None) as broker:
            seen.append(tuple(chances(broker)))
    assert len(set(seen)) == 3


def test_who_brings_a_clock_never_sees_the_same_again() -> None:
    one, two = (penstock.open(clock=ManualClock()) for _ in range(2))
    assert chances(one) == chances(two)
