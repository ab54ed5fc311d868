"""The seam: ten calls of plain data, and what fronts can do with them that no object of the API does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory, on_disk
from penstock.broker.port import UPCOMING, Port
from penstock.clock import ManualClock, SystemClock
from penstock.errors import InvalidArgument, LeaseLost, PenstockError, QueueFull, QuotaExceeded, Unsupported
from penstock.limits import METADATA_BYTES_MAX, SEGMENT_BYTES_MIN
from penstock.model.batch import Columns
from penstock.model.commands import (
    Command,
    Commit,
    Handle,
    HandOver,
    Publish,
    Purge,
    PutMetadata,
    Settle,
    Spec,
    Target,
    Unit,
)
from penstock.model.queries import Metadata, OfLog
from tests.faults.faulty_files import UnsyncedFiles
from tests.server.running import Running
from tests.unit.broker.patience import until


def opened(path: Path | None) -> Embedded:
    clock = ManualClock()
    if path is None:
        return in_memory(clock)
    return on_disk(path, clock, files=UnsyncedFiles(), segment_bytes=SEGMENT_BYTES_MIN)


@pytest.fixture(params=["memory", "disk"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded]:
    found = opened(tmp_path / "data" if request.param == "disk" else None)
    yield found
    found.close()


def log_of(port: Port, name: str = "orders", **policy: Any) -> Handle:
    return port.declare(Spec("default", name, policy)).wait()


def do(port: Port, *steps: tuple[Target | None, Command], wait: bool = True) -> list[Any]:
    return port.commit(Unit("default", steps, wait)).wait()


def payloads(port: Port, log: Handle) -> list[bytes]:
    found = port.read(log, UPCOMING, 100).wait()
    return [payload for batch, start, stop in found.runs for payload in batch.payloads[start:stop]]


def test_port_has_ten_calls_and_loads_no_broker() -> None:
    assert len([name for name in vars(Port) if not name.startswith("_")]) == 10
    code = (
        "import sys, penstock.broker.port\n"
        "print([m for m in sys.modules if m.startswith(('penstock.engine', 'penstock.journal'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unit_of_publishes_settlements_positions_and_metadata_holds_together(port: Embedded) -> None:
    log, other = log_of(port), log_of(port, "other", max_depth=1)
    do(port, (log, Publish([b"work"])))
    granted = port.lease(log, "default", 1).wait()
    assert granted is not None
    settling = Settle("default", list(granted.offsets), [granted.number])
    steps = (
        (log, settling),
        (other, Publish([b"a", b"b"])),
        (log, Commit("reader", 1)),
        (None, PutMetadata("amqp/x", b"1")),
    )
    with pytest.raises(QueueFull):
        do(port, *steps)
    assert port.describe(Metadata("default")).wait() == {}
    assert (port.position(log, "reader").wait(), port.describe(OfLog(log)).wait().leased) == (None, 1)
    ids, *rest = do(port, (other, Publish([b"a"])), *steps[2:], (log, settling))
    assert (len(ids), rest) == (1, [1, None, None])
    assert port.describe(Metadata("default")).wait() == {"amqp/x": b"1"}
    assert (port.position(log, "reader").wait(), port.describe(OfLog(log)).wait().depth) == (1, 0)


def test_unit_of_many_dead_letters_is_recorded_as_one(tmp_path: Path) -> None:
    port = opened(tmp_path)
    journal: Any = port.monitor.journal
    log = log_of(port)
    do(port, (log, Publish([b"a"] * 150)))
    granted = port.lease(log, "default", 150).wait()
    assert granted is not None
    rejecting = Settle("default", list(granted.offsets), [granted.number] * 150, "reject")
    ticket = port.commit(Unit("default", ((log, rejecting), (log, Publish([b"b"])))))
    assert len(journal._group._pending) == 1, "a crash may come between two"
    ticket.wait()
    port.close()


def test_command_that_must_be_alone_is_refused_beside_others(port: Embedded) -> None:
    log = log_of(port)
    with pytest.raises(InvalidArgument, match="purge is done by itself"):
        do(port, (log, Publish([b"a"])), (log, Purge()))
    assert payloads(port, log) == []


def test_each_message_that_fits_is_published_and_each_other_has_its_error(port: Embedded) -> None:
    log = log_of(port, max_depth=2)
    ((first, second, third),) = do(port, (log, Publish([b"a", b"b", b"c"], each=True)))
    assert (type(first), type(second), type(third)) == (int, int, QueueFull)
    assert payloads(port, log) == [b"a", b"b"]


def test_each_is_refused_where_it_would_mean_nothing(port: Embedded) -> None:
    log = log_of(port)
    publish = Publish([b"a"], each=True)
    for steps in ([("new", publish)], [(log, publish), (log, Publish([b"b"]))]):
        with pytest.raises(InvalidArgument, match="by itself"):
            do(port, *steps)
    assert payloads(port, log) == []


def test_publish_is_refused_above_the_depth_of_its_namespace(port: Embedded) -> None:
    log, other = log_of(port), log_of(port, "other")
    do(port, (log, Publish([b"a"], depth_max=3)))
    for steps in (
        [(log, Publish([b"b"] * 3, depth_max=3))],
        [(log, Publish([b"b"], depth_max=3)), (other, Publish([b"c"] * 2, depth_max=3))],
    ):
        with pytest.raises(QuotaExceeded):
            do(port, *steps)
    with pytest.raises(QuotaExceeded):
        do(port, (log, Publish([b"b"], depth_max=0)), (log, Publish([b"c"], depth_max=None)))
    with pytest.raises(QuotaExceeded) as refused:
        do(port, (log, Publish([b"b"] * 4, depth_max=3)))
    assert not refused.value.retryable
    do(port, (log, Publish([b"b"], depth_max=3)), (other, Publish([b"c"], depth_max=3)))
    assert (payloads(port, log), payloads(port, other)) == ([b"a", b"b"], [b"c"])


def test_arrivals_are_told_of_what_is_ready_and_of_what_comes(port: Embedded) -> None:
    log, other = log_of(port), log_of(port, "other")
    told: list[tuple[int, str]] = []
    do(port, (log, Publish([b"a"])))
    port.arrivals(log, "default", lambda number, group: told.append((number, group)))
    assert told == [(log.number, "default")]
    do(port, (other, Publish([b"b"])))
    assert len(told) == 1
    do(port, (log, Publish([b"c"])))
    assert told[1:] == [(log.number, "default")]
    port.arrivals(log, "default", None)
    do(port, (log, Publish([b"d"])))
    assert len(told) == 2


def test_properties_come_with_a_message_and_its_dead_letter(port: Embedded) -> None:
    log = log_of(port)
    do(port, (log, Publish([b"a", b"b"], Columns(properties=[b"p", None]))))
    granted = port.lease(log, "default", 2).wait()
    assert granted is not None
    assert [run.batch.properties for run in granted.runs] == [[b"p", None]]
    do(port, (log, Settle("default", list(granted.offsets), [granted.number] * 2, "reject")))
    letters = port.declare(Spec("default", "orders.dlq", create=False)).wait()
    dead = port.read(letters, 0, 2).wait()
    assert [run.batch.properties for run in dead.runs] == [[b"p", None]]


def test_metadata_survives_restarts_snapshots_and_cleaning(tmp_path: Path) -> None:
    port = opened(tmp_path)
    do(port, (None, PutMetadata("amqp/orders", b"\x00\xff")), (None, PutMetadata("amqp/gone", b"x")))
    do(port, (None, PutMetadata("amqp/gone", None)))
    for _ in range(3):
        log = log_of(port)
        do(port, (log, Publish([b"x" * 5000] * 20)))
        granted = port.lease(log, "default", 100).wait()
        assert granted is not None
        do(port, (log, Settle("default", list(granted.offsets), [granted.number] * 20)))
        port.close()
        port = opened(tmp_path)
        assert port.describe(Metadata("default", "amqp/")).wait() == {"amqp/orders": b"\x00\xff"}
    assert port.describe(Metadata("default", "http/")).wait() == {}
    port.close()
    assert min(int(one.stem) for one in tmp_path.glob("*.segment")) > 1, "nothing was cleaned"


def test_metadata_survives_a_crash(tmp_path: Path) -> None:
    port = opened(tmp_path / "data")
    do(port, (None, PutMetadata("amqp/orders", b"x")))
    shutil.copytree(tmp_path / "data", tmp_path / "left")
    after = opened(tmp_path / "left")
    assert after.describe(Metadata("default")).wait() == {"amqp/orders": b"x"}
    port.close()
    after.close()


@pytest.mark.parametrize(
    ("key", "value"), [("", b""), ("k" * 513, b""), ("k", b"x" * (METADATA_BYTES_MAX + 1))]
)
def test_metadata_is_bounded(port: Embedded, key: str, value: bytes) -> None:
    with pytest.raises(InvalidArgument):
        do(port, (None, PutMetadata(key, value)))


def test_unit_that_is_not_waited_for_is_durable_soon(tmp_path: Path) -> None:
    port = on_disk(tmp_path, SystemClock())
    journal: Any = port.monitor.journal
    log = log_of(port)
    sequence = journal.durable_sequence
    ((given,),) = do(port, (log, Publish([b"a"])), wait=False)
    assert given
    until(lambda: journal.durable_sequence > sequence)
    assert payloads(port, log) == [b"a"]
    port.close()


def test_lease_that_rides_is_written_with_the_next_frame(tmp_path: Path) -> None:
    port = opened(tmp_path)
    journal: Any = port.monitor.journal
    log = log_of(port)
    do(port, (log, Publish([b"a"])))
    written = journal.stats().sequence
    assert port.lease(log, "default", 1, rides=True).wait() is not None
    assert journal.stats().sequence == written
    do(port, (log, Publish([b"b"])))
    port.close()
    port = opened(tmp_path)
    granted = port.lease(log_of(port), "default", 1).wait()
    assert granted is not None
    assert granted.attempts in (2, [2])
    port.close()


@pytest.mark.parametrize("count", [1, 2])
def test_lease_that_rides_is_recorded_soon_though_nobody_commits(tmp_path: Path, count: int) -> None:
    port = on_disk(tmp_path, SystemClock())
    journal: Any = port.monitor.journal
    log = log_of(port)
    do(port, (log, Publish([b"a", b"b"])))
    written = journal.stats().sequence
    assert port.lease(log, "default", count, rides=True).wait() is not None
    until(lambda: journal.stats().sequence > written)
    port.close()


def test_receipt_of_a_lease_that_went_back_unseen_settles_nothing(port: Embedded) -> None:
    log = log_of(port)
    do(port, (log, Publish([b"a"])))
    do(port, (log, Publish([b"b"])))
    first = port.lease(log, "default", 1).wait()
    assert first is not None
    do(port, (log, Settle("default", [0], [first.number], "unseen")))
    second = port.lease(log, "default", 1).wait()
    assert second is not None
    assert list(second.offsets) == [0], "what comes back goes first"
    with pytest.raises(LeaseLost):
        do(port, (log, Settle("default", [0], [first.number])))
    assert port.describe(OfLog(log)).wait().leased == 1
    do(port, (log, Settle("default", [0], [second.number])))


def test_message_leased_ahead_counts_an_attempt_once_it_is_handed_over(port: Embedded) -> None:
    log = log_of(port)
    do(port, (log, Publish([b"a", b"b"])))
    attempts = []
    for ahead in (1, 2, 0):
        granted = port.lease(log, "default", 2, ahead=ahead).wait()
        assert granted is not None
        attempts.append(granted.attempts)
        if ahead == 2:
            assert do(port, (log, HandOver("default", [0], [granted.number]))) == [[0]]
        do(port, (log, Settle("default", [0, 1], [granted.number] * 2, "requeue")))
    assert attempts == [1, [2, 1], [3, 1]]


def test_message_that_expires_ahead_is_not_handed_over(port: Embedded) -> None:
    log = log_of(port, ttl=5)
    do(port, (log, Publish([b"a"])))
    granted = port.lease(log, "default", 1, ahead=1).wait()
    assert granted is not None
    port.clock.advance(6)  # type: ignore[attr-defined]
    assert do(port, (log, HandOver("default", [0], [granted.number]))) == [[]]
    assert port.describe(OfLog(log)).wait().depth == 0


def test_purge_leaves_what_is_handed_out(port: Embedded) -> None:
    log = log_of(port)
    do(port, (log, Publish([b"a", b"b"])))
    granted = port.lease(log, "default", 1).wait()
    assert granted is not None
    assert do(port, (log, Purge())) == [1]
    do(port, (log, Settle("default", [0], [granted.number])))
    assert port.describe(OfLog(log)).wait().depth == 0


def test_waiter_elsewhere_adds_no_python_calls(port: Embedded) -> None:
    """A consumer that waits on one queue changes nothing for another."""
    log, other = log_of(port), log_of(port, "other")

    def work() -> None:
        do(port, (log, Publish([b"a"])))
        granted = port.lease(log, "default", 1).wait()
        if granted is None:
            raise PenstockError("nothing was leased")
        do(port, (log, Settle("default", list(granted.offsets), [granted.number])))

    alone = calls_of(work)
    waiting = threading.Thread(target=lambda: port.lease(other, "default", 1, wait_us=None).wait())
    waiting.start()
    until(lambda: port.describe(OfLog(other)).wait().waiting == 1)
    assert calls_of(work) == alone
    do(port, (other, Publish([b"b"])))
    waiting.join()


def calls_of(work: Callable[[], None]) -> int:
    """How many Python functions are called, but for what a full segment takes now and then."""
    return min(_calls_once(work) for _ in range(5))


def _calls_once(work: Callable[[], None]) -> int:
    count = 0

    def profile(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_what_does_not_travel_over_http_is_refused_and_changes_nothing() -> None:
    inside = in_memory(ManualClock())
    with Running(inside) as server, penstock.connect(server.url) as broker:
        port, log = broker._port, broker.queue("orders")._log
        for target, command in (
            (log, Publish([b"a"], each=True)),
            (log, Publish([b"a"], depth_max=1)),
            ("new", Publish([b"a"], Columns(properties=[b"p"]))),
            (None, PutMetadata("key", b"value")),
        ):
            for steps in ([(target, command)], [(target, command), (log, Publish([b"b"]))]):
                with pytest.raises(Unsupported):
                    port.commit(Unit("default", steps)).wait()
        assert broker.stats().published == 0
    inside.close()
