"""What a broker is opened with; what is wrong with that is said before anything is made."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.argument import quoted
from penstock.clock import ManualClock, SystemClock
from penstock.errors import InvalidArgument, PenstockError
from tests.conformance.oddities import Refusal, oddities
from tests.unit.broker.patience import until


def chances(broker: penstock.broker.sync.Broker) -> list[float]:
    port: Any = broker._port
    return [port.monitor.engine.chance.unit() for _ in range(5)]


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


def test_opening_after_a_kill_logs_what_was_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.broker")
    with penstock.open(tmp_path / "data") as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b", b"c"])
        assert len(orders.receive_many(2)) == 2
        orders.publish(b"d")  # written behind the leases, which do not wait for their own sync
        shutil.copytree(tmp_path / "data", tmp_path / "killed")  # as a kill leaves it
    with penstock.open(tmp_path / "data") as broker:  # which was closed in order
        assert not caplog.records
    with penstock.open(tmp_path / "killed"):
        (line,) = [one.getMessage() for one in caplog.records]
    assert re.fullmatch(
        rf"recovered {tmp_path / 'killed'} in [\d.]+ s: read \d+ commits with 4 messages since the last snapshot; ended the leases of 2 messages",
        line,
    )


@pytest.mark.parametrize("injury", ["flipped", "gone"])
def test_opening_logs_damage_in_old_segments(
    injury: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    with penstock.open(data, segment_bytes=8192) as broker:
        for number in range(30):
            broker.queue("q").publish(b"%01000d" % number)
    segment = sorted(data.glob("*.segment"))[1]
    if injury == "gone":
        segment.unlink()
    else:
        content = bytearray(segment.read_bytes())
        content[content.index(b"%01000d" % 8)] ^= 1
        segment.write_bytes(content)
    caplog.set_level(logging.INFO, "penstock")
    with penstock.open(data) as broker:
        until(lambda: bool(caplog.records))
        (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert " in segment 2, bytes " in line.getMessage()
        assert broker.stats().journal.damaged_messages == (7 if injury == "gone" else 1)
    caplog.clear()
    with penstock.open(data) as broker:
        port: Any = broker._port
        until(lambda: not port.monitor.upkeep._look.is_alive())
        assert broker.queue("q").receive() is not None
    assert not caplog.records  # it is on record, and said once


SETTINGS = ["durability", "commit_interval_ms", "segment_bytes", "node", "clock"]


class Pathless:
    def __fspath__(self) -> str:
        raise Refusal


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("field", SETTINGS)
def test_an_odd_setting_is_an_error_of_others(where: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "q" if where == "disk" else None
    for odd in oddities().values():
        given: dict[str, Any] = {field: odd}
        with suppress(PenstockError):
            penstock.open(path, **given).close()


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", b"q", 7, True, object(), Pathless()], ids=quoted)
def test_an_odd_path_is_an_error_of_others_or_taken(
    path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="^path is "):
        penstock.open(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_another(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    with penstock.open(kind(tmp_path / "q"), clock=SystemClock()) as broker:
        broker.queue("orders")
    assert (tmp_path / "q").is_dir()


# --- the same for asyncio ---


async def open_for_asyncio(*given: Any, **settings: Any) -> None:
    async with penstock.aio.open(*given, **settings):
        pass


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", b"q", 7, True, object(), Pathless()], ids=quoted)
def test_an_odd_path_is_an_error_of_others_or_taken_for_asyncio(
    path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="^path is "):
        asyncio.run(open_for_asyncio(path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("shell", ["threads", "asyncio"])
@pytest.mark.parametrize(
    "given",
    [
        {"node": "1"}, {"node": True}, {"node": None}, {"node": 1.0}, {"node": -1}, {"node": 1024},
        {"clock": 5}, {"clock": "now"}, {"clock": ManualClock}, {"clock": SystemClock}, {"clock": object()},
    ],
    ids=quoted,
)  # fmt: skip
def test_a_wrong_node_or_clock_is_taken(
    where: str, shell: str, given: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "q" if where == "disk" else None
    (field,) = given
    opened: Any = (
        penstock.open if shell == "threads" else lambda *a, **k: asyncio.run(open_for_asyncio(*a, **k))
    )
    with pytest.raises(InvalidArgument, match=f"^{field} is "):
        opened(path, **given)
    assert list(tmp_path.iterdir()) == []
