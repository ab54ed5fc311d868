"""What a caller gets wrong is said before the port is called."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock.broker import calls
from penstock.broker.compose import publish_of
from penstock.clock import SECOND_US, ManualClock
from penstock.errors import InvalidArgument, InvalidName
from penstock.limits import COUNT_MAX, DELIVERIES_MAX, PREFETCH_MAX
from penstock.message import Message
from penstock.model.batch import Columns
from penstock.model.commands import Handle, Publish, Redrive, Redriven
from penstock.policy import Policy
from tests import asking


def test_a_plain_payload_has_columns() -> None:
    nothing: Any = (None, None, None, None, None, None)
    assert calls.publish(b"x", None, *nothing) == Publish([b"x"])
    assert calls.publish(b"x", {}, *nothing) == Publish([b"x"])
    with pytest.raises(InvalidArgument, match="payload"):
        calls.publish("x", None, *nothing)  # type: ignore[arg-type]


def test_something_that_was_said_of_a_message_is_lost() -> None:
    whole = Message(b"x", headers={"h": "1"}, key="k", priority=0, delay=5, ttl=6, dedup_id="d")
    found = calls.publish(b"x", {"h": "1"}, "k", 0, 5, None, 6, "d")
    assert found == calls.publish(whole, *[None] * 7) == publish_of([whole])
    assert found.columns == Columns(
        [{"h": "1"}], ["k"], 0, delay_us=5 * SECOND_US, ttl_us=6 * SECOND_US, dedup_id=["d"]
    )
    delayed = calls.publish(b"x", None, None, None, 0, None, None, None)
    assert delayed.columns == Columns(delay_us=0)


@pytest.mark.parametrize(
    ("timeout", "us"),
    [(0, 0), (0.0, 0), (timedelta(0), 0), (None, None), (1.5, 1_500_000), (timedelta(minutes=1), 60_000_000)],
)
def test_a_timeout_is_another(timeout: Any, us: int | None) -> None:
    assert calls.wait_us(timeout) == us
    assert calls.seconds(timeout) == (None if us is None else us / 1_000_000)


@pytest.mark.parametrize("bad", [-1, "1", float("nan"), float("inf"), timedelta(-1), object()])
def test_a_bad_length_of_time_is_waited_for(bad: Any) -> None:
    for check in (calls.wait_us, calls.extension, calls.seconds):
        with pytest.raises(InvalidArgument):
            check(bad)


def test_a_lease_is_extended_for_ever() -> None:
    with pytest.raises(InvalidArgument):
        calls.extension(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("check", "most"), [(calls.count, DELIVERIES_MAX), (calls.prefetch, PREFETCH_MAX)])
def test_a_number_out_of_bounds_is_taken(check: Any, most: int) -> None:
    assert (check(1), check(most)) == (1, most)
    for bad in (0, -1, most + 1, 1.0, True, "1", None):
        with pytest.raises(InvalidArgument):
            check(bad)


@pytest.mark.parametrize("bad", [0, 1, None, "yes"])
def test_something_else_is_taken_for_yes_or_no(bad: Any) -> None:
    assert calls.flag("auto_ack", True) is True
    with pytest.raises(InvalidArgument, match="auto_ack"):
        calls.flag("auto_ack", bad)


def test_two_consumers_without_a_name_have_the_same() -> None:
    assert calls.consumer_name("worker-1") == "worker-1"
    assert calls.consumer_name(None) != calls.consumer_name(None)
    with pytest.raises(InvalidName):
        calls.consumer_name("")


# --- redriving in steps ---


LETTERS = Handle("default", "q.dlq", "queue", 1, Policy())


def planned(log: Handle = LETTERS, **given: Any) -> calls.Redriving:
    return calls.Redriving(log, **{"where": None, "limit": None, "rate": None, "to": None, **given})


def run(letters: int, **given: Any) -> tuple[int, list[int], list[float]]:
    """How many of so many dead letters are moved, how many are asked for in each step, and the pauses behind them."""
    plan = planned(**given)
    asked, pauses = [], []
    while plan.more():
        asked.append(plan.step().count)
        moved = min(asked[-1], letters)
        letters -= moved
        plan.took(Redriven(moved, (0, letters)))
        pauses.append(plan.pause_s())
    return plan.moved, asked, pauses


def test_redriving_of_no_dead_letters_takes_a_step() -> None:
    assert not calls.Redriving(None, None, None, None, None).more()


def test_a_step_leaves_out_the_filter_or_the_target() -> None:
    plan = planned(where="n  =  'yes'", to="other")
    assert plan.step() == Redrive(100, "n = 'yes'", "other")
    plan.took(Redriven(0, (7, 9)))
    assert plan.step() == Redrive(100, "n = 'yes'", "other", (7, 9))


def test_redriving_stops_early_or_never() -> None:
    assert run(0) == (0, [100], [0.0])
    assert run(250) == (250, [100] * 3, [0.0] * 3)


def test_redriving_goes_beyond_its_limit() -> None:
    assert run(500, limit=150)[:2] == (150, [100, 50])
    assert run(5, limit=1)[:2] == (1, [1])
    assert run(5, limit=COUNT_MAX)[0] == 5


def test_redriving_so_slowly_that_no_clock_can_count_it_breaks_off() -> None:
    assert run(2, rate=1e-11) == (2, [1, 1], [calls.PAUSE_S_MAX, 0.0])


def failing(
    monkeypatch: pytest.MonkeyPatch, letters: int
) -> tuple[penstock.broker.sync.Queue, Handle, calls.Redriving]:
    """A queue with dead letters, and a plan to move them, one at a time."""
    monkeypatch.setattr(calls, "REDRIVE_AT_ONCE", 1)
    queue = penstock.open().queue("q", max_attempts=1)
    queue.publish_many([b"%d" % number for number in range(letters)])
    for delivery in queue.receive_many(letters):
        delivery.reject(error="no")
    log = queue.dead_letters()._log
    return queue, log, planned(log)


def test_what_fails_again_meanwhile_is_moved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, log, plan = failing(monkeypatch, 5)
    moved: list[bytes] = []
    while plan.more() and len(moved) < 20:
        plan.took(asking.do(queue._port, log, plan.step()))
        for delivery in queue.receive_many(9):
            moved.append(delivery.payload)
            delivery.reject(error="still broken")
    assert (plan.moved, moved) == (5, [b"0", b"1", b"2", b"3", b"4"])
    assert queue.stats().dead == 5


def test_redriving_is_faster_than_its_rate() -> None:
    assert run(25, rate=10) == (25, [10, 10, 10], [1.0, 1.0, 0.0])
    assert run(2, rate=0.5) == (2, [1, 1], [2.0, 0.0])
    assert run(150, rate=1000)[2] == [0.1, 0.0]


@pytest.mark.parametrize(
    "bad",
    [{"limit": 0}, {"limit": -1}, {"limit": 1.5}, {"limit": True}, {"limit": "1"}, {"rate": 0}, {"rate": -1},
     {"rate": float("nan")}, {"rate": "1"}, {"rate": True}, {"where": "("}, {"where": ""}, {"to": ""}, {"to": 7}],
)  # fmt: skip
def test_a_bad_plan_moves_something(bad: dict[str, Any]) -> None:
    with pytest.raises(penstock.PenstockError):
        run(5, **bad)


def test_an_endless_rate_is_no_error_of_ours() -> None:
    with penstock.open(clock=ManualClock()) as broker:
        queue = broker.queue("q")
        queue.dead_letters()
        with contextlib.suppress(penstock.PenstockError):
            assert queue.redrive(rate=float("inf")) == 0
