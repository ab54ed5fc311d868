"""`penstock bench`: what it counts, that it leaves nothing behind, and that it says so where it must."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli import load
from penstock.cli.load import Bench, Load, _quantile
from penstock.clock import SystemClock
from penstock.server.accounts import Accounts
from penstock.server.keys import Keys, Signer
from tests.unit.cli.places import KINDS, Home, home_of, run

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]
SECRET = "a secret of thirty-two bytes, or more"


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    with home_of(request.param, tmp_path / "q") as found:
        yield found


def nothing(_: int) -> None:
    """Nobody looks at the progress."""


# --- the load ---


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_messages_are_published_or_received_more_or_less_often(batch: int) -> None:
    with penstock.open() as broker:
        queue = broker.queue("bench")
        bench = Bench(queue, Load(messages=50, size=9, batch=batch, producers=3, consumers=2, rate=10_000))
        told: list[int] = []
        published = bench.publish(told.append)
        assert (sum(told), queue.stats().published, queue.peek()[0].payload) == (50, 50, b"\xb5" * 9)
        assert published.timed == -(-50 // batch)
        received = bench.receive(nothing)
        assert (received.messages, queue.depth(), queue.stats().acked) == (50, 0, 50)
        on_its_way = bench.end_to_end(nothing)
        assert (on_its_way.timed, queue.depth(), queue.stats().acked) == (50, 0, 100)
        for part in (published, received, on_its_way):
            assert 0 < part.p50_ms <= part.p95_ms <= part.p99_ms <= part.max_ms
            assert part.per_second > 0


def test_the_last_part_takes_longer_than_it_says() -> None:
    load = Load(messages=1_000_000, size=1, batch=1, producers=1, consumers=1, rate=100)
    assert load.end_to_end_messages == 500
    assert Load(10, 1, 1, 1, 1, 100).end_to_end_messages == 10
    assert Load(10, 1, 1, 1, 1, 0).end_to_end_messages == 0
    assert Load(10, 1, 1, 1, 1, 0.01).end_to_end_messages == 1


def test_a_rate_that_is_too_high_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PATIENCE", 0)  # no time at all
    with penstock.open() as broker:
        queue = broker.queue("bench")
        found = Bench(queue, Load(10**6, 1, 1, producers=2, consumers=2, rate=1)).end_to_end(nothing)
        assert found.messages < 5
        assert (queue.depth(), queue.stats().acked) == (0, found.messages)


@pytest.mark.parametrize(
    ("part", "of", "expected"),
    [(0.5, 1, 1), (0.5, 100, 50), (0.99, 100, 99), (1, 100, 100), (0.99, 10, 10), (0.95, 1000, 950), (0.5, 0, 0)],
)  # fmt: skip
def test_a_percentile_is_its_neighbour(part: float, of: int, expected: int) -> None:
    assert _quantile(list(range(1, of + 1)), part) == expected


def test_a_thread_that_fails_leaves_the_others_running() -> None:
    with penstock.open() as broker:
        queue = broker.queue("bench", max_depth=10)
        bench = Bench(queue, Load(messages=10**9, size=1, batch=3, producers=4, consumers=1, rate=0))
        with pytest.raises(penstock.QueueFull):
            bench.publish(nothing)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("bench ")]


# --- the command ---


@pytest.mark.lengthy
def test_a_bench_leaves_its_queue_or_touches_another_one(home: Home) -> None:
    with home.opened() as broker:
        broker.queue("orders").publish(b"mine")
    result = run("bench", home.where, "-n", "40", "--batch", "8", "--rate", "1000", "--size", "10", "--json")
    assert (result.exit_code, result.stderr.count("could not")) == (0, 0)
    found = json.loads(result.stdout)
    assert (found["where"], found["deleted"]) == (home.where, True)
    assert found["durability"] == ("commit" if not home.where.startswith("http") else None)
    assert found["load"] == {
        "messages": 40, "size": 10, "batch": 8, "producers": 16, "consumers": 4, "rate": 1000.0,
    }  # fmt: skip
    assert {name: part["messages"] for name, part in found["results"].items()} == {
        "publish": 40,
        "receive": 40,
        "end_to_end": 40,
    }
    with home.opened() as broker:
        assert broker.list_queues() == ["orders"]
        assert broker.get_queue("orders").depth() == 1


@pytest.mark.lengthy
def test_a_table_is_without_its_numbers(home: Home) -> None:
    shown = run("bench", home.where, "-n", "40", "--rate", "2000", "--producers", "2").stdout
    assert "publish, 100 at once, 2 producers" in shown
    assert "receive + ack, 100 at once, 4 consumers" in shown
    assert "end to end, 2,000/s" in shown
    assert "Messages of 256 B. Durability: " in shown
    assert "p99 ms" in shown
    assert (
        "end to end" not in run("bench", home.where, "-n", "4", "--rate", "0", "--namespace", "shop").stdout
    )


@pytest.mark.lengthy
def test_a_large_message_does_not_fit_into_the_queue(home: Home) -> None:
    result = run("bench", home.where, "-n", "2", "--size", "2000000", "--batch", "1", "--rate", "0", "--json")
    assert (result.exit_code, json.loads(result.stdout)["results"]["receive"]["messages"]) == (0, 2)


@pytest.mark.lengthy
def test_a_durability_is_not_that_of_the_directory(tmp_path: Path) -> None:
    with home_of("server", tmp_path / "q") as home:
        refused = run("bench", home.where, "--durability", "os")
        assert (refused.exit_code, "--durability is for a directory" in refused.stderr) == (2, True)
    found = run("bench", tmp_path / "q", "--durability", "os", "-n", "4", "--rate", "0", "--json")
    assert json.loads(found.stdout)["durability"] == "os"
    assert run("bench", tmp_path / "q", "--durability", "sometimes").exit_code == 2


@pytest.mark.lengthy
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_its_queue(how: signal.Signals, tmp_path: Path) -> None:
    with home_of("server", tmp_path / "q") as home, home.opened() as broker:
        heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        command = [sys.executable, "-c", f"{heeding}; {COMMAND[-1]}", "bench", home.where, "-n", str(10**9)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as benching:
            while not broker.stats().published:  # until it has begun, or the test's time is over
                assert benching.poll() is None
            benching.send_signal(how)
            out, err = benching.communicate(timeout=60)
        assert (benching.returncode, out, err) == (130, "", "")
        assert broker.list_queues() == []


@pytest.mark.lengthy
def test_a_queue_that_may_not_be_deleted_is_left_in_silence(tmp_path: Path) -> None:
    claims = {"namespaces": ["default"], "permissions": ["publish", "consume"], "exp": 2**33}
    token = Signer.from_secret(SECRET).sign(claims)
    accounts = Accounts(Keys.from_secret(SECRET), clock=SystemClock())
    with home_of("server", tmp_path / "q", accounts=accounts) as home, home.opened() as broker:
        result = run("bench", home.where, "-n", "4", "--rate", "0", "--json", PENSTOCK_TOKEN=token)
        found = json.loads(result.stdout)
        assert (result.exit_code, found["deleted"]) == (0, False)
        (left,) = broker.list_queues()
        assert f"the queue {left!r} could not be deleted" in result.stderr
        assert broker.get_queue(left).policy.expires == 600
