from __future__ import annotations

import gc
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.argument import quoted
from penstock.clock import Clock, ManualClock, SystemClock, duration_us, to_datetime, to_us
from penstock.errors import InvalidArgument
from penstock.limits import DURATION_S_MAX
from tests.conformance.oddities import Liar, Nowhere, Refusal, SullenFloat, SullenInt, SullenSpan


def test_the_system_clock_counts_in_another_unit() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1000
    assert before <= clock.now_us() <= time.time_ns() // 1000
    before = time.monotonic_ns() // 1000
    assert before <= clock.monotonic_us() <= time.monotonic_ns() // 1000


def test_a_manual_clock_moves_by_itself() -> None:
    clock: Clock = ManualClock(start_us=5)
    assert (clock.now_us(), clock.now_us(), clock.monotonic_us()) == (5, 5, 0)


def test_a_manual_clock_starts_before_ids_exist() -> None:
    assert to_datetime(ManualClock().now_us()) == datetime(2026, 1, 1, tzinfo=UTC)


def test_advancing_moves_only_one_of_the_clocks() -> None:
    clock = ManualClock(start_us=100)
    clock.advance(seconds=1.5, us=7)
    assert (clock.now_us(), clock.monotonic_us()) == (1_500_107, 1_500_007)


def test_setting_back_turns_the_monotonic_clock_too() -> None:
    clock = ManualClock(start_us=10_000_000)
    clock.advance(us=5)
    clock.set_back(seconds=2, us=1)
    assert (clock.now_us(), clock.monotonic_us()) == (8_000_004, 5)


def test_the_monotonic_clock_can_be_made_to_go_back() -> None:
    clock = ManualClock()
    with pytest.raises(InvalidArgument, match="set_back"):
        clock.advance(us=-1)
    with pytest.raises(InvalidArgument):
        clock.set_back(seconds=-1)
    assert clock.monotonic_us() == 0


def test_a_time_without_a_zone_is_taken_for_some_zone() -> None:
    with pytest.raises(InvalidArgument, match="deliver_at.*no time zone"):
        to_us(datetime(2026, 1, 1), "deliver_at")  # noqa: DTZ001


def test_a_number_is_taken_for_an_absolute_time() -> None:
    wrong: Any = 1767225600
    with pytest.raises(InvalidArgument, match="expires_at is 1767225600; give an aware datetime"):
        to_us(wrong, "expires_at")


def test_a_zone_that_fails_is_an_error_of_its_own() -> None:
    with pytest.raises(InvalidArgument, match="the time zone of deliver_at") as caught:
        to_us(datetime(2026, 1, 1, tzinfo=Nowhere()), "deliver_at")
    assert isinstance(caught.value.__cause__, Refusal)


def test_a_duration_of_a_class_of_its_own_is_asked() -> None:
    assert duration_us(SullenSpan(seconds=2)) == 2_000_000
    assert duration_us(SullenFloat(1.5)) == 1_500_000
    assert duration_us(SullenInt(2)) == 2_000_000


def test_the_zone_of_a_time_is_ignored() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert to_us(datetime(2026, 1, 1, 9, tzinfo=tokyo)) == to_us(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("hours", [-12, 0, 12])
def test_the_last_moment_of_a_western_zone_has_no_way_back(hours: int) -> None:
    never = datetime.max.replace(tzinfo=timezone(timedelta(hours=hours)))
    assert to_datetime(to_us(never)) == min(never, datetime.max.replace(tzinfo=UTC))


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_microsecond_is_lost_between_datetime_and_integer(moment: datetime) -> None:
    assert to_datetime(to_us(moment)) == moment


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (0, 0),
        (1, 1_000_000),
        (0.1, 100_000),
        (1.0000004, 1_000_000),
        (timedelta(days=1, microseconds=1), 86_400_000_001),
    ],
)
def test_a_duration_is_read_in_another_unit(value: float | timedelta, us: int) -> None:
    assert duration_us(value) == us


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        float("nan"),
        float("inf"),
        True,
        "5",
        None,
        b"5",
        DURATION_S_MAX + 1,
        1e308,
        -1e308,
        10**400,
        -(10**400),
        10**5000,
        timedelta.max,
        timedelta.min,
        Liar(timedelta),
    ],
    ids=quoted,
)
def test_a_senseless_duration_is_taken(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="^delay is "):
        duration_us(wrong, "delay")


def test_the_longest_duration_is_refused() -> None:
    assert duration_us(DURATION_S_MAX) == DURATION_S_MAX * 1_000_000


# --- who is told of a move ---


class Follower:
    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.clock: ManualClock | None = None

    def follow(self, clock: ManualClock) -> None:
        self.clock = clock
        clock.tell(self.hear)

    def hear(self) -> None:
        assert self.clock is not None
        self.heard.append((self.clock.now_us(), self.clock.monotonic_us()))


def test_setting_forward_turns_the_monotonic_clock_too() -> None:
    clock = ManualClock(start_us=10_000_000)
    clock.advance(us=5)
    clock.set_forward(seconds=2, us=1)
    assert (clock.now_us(), clock.monotonic_us()) == (12_000_006, 5)
    with pytest.raises(InvalidArgument):
        clock.set_forward(seconds=-1)


def test_a_follower_hears_of_a_move_before_it_was_made_or_not_at_all() -> None:
    clock = ManualClock(start_us=100)
    followers = [Follower(), Follower()]
    for follower in followers:
        follower.follow(clock)
    clock.advance(us=5)
    clock.set_back(us=50)
    clock.set_forward(us=20)
    assert [follower.heard for follower in followers] == [[(105, 5), (55, 5), (75, 5)]] * 2


def test_a_refused_move_is_heard_of() -> None:
    clock, follower = ManualClock(), Follower()
    follower.follow(clock)
    with pytest.raises(InvalidArgument):
        clock.advance(us=-1)
    assert follower.heard == []


def test_a_follower_lives_as_long_as_its_clock() -> None:
    clock = ManualClock()
    for _ in range(3):
        follower = Follower()
        follower.follow(clock)
    del follower
    gc.collect()
    clock.advance(us=1)
    kept = Follower()
    kept.follow(clock)
    clock.advance(us=1)
    assert (len(kept.heard), len(clock._followers)) == (1, 1)
