from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from penstock.engine import dedup
from penstock.engine.dedup import DedupWindow
from penstock.errors import InvalidArgument

NAMES = [f"id-{number}" for number in range(40)]
IDS = st.sampled_from(NAMES)
WINDOWS = st.sampled_from([10, 10, 10, 10, 3, 30])


class RememberedTwice(RuleBasedStateMachine):
    """A window beside a dictionary of id to message and end; None is held."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.plain = DedupWindow(), dict[str, tuple[int, int | None]]()
        self.now, self.forgotten, self.message_id = 0, -1, 0

    def lives(self, dedup_id: str, now: int) -> bool:
        end = self.plain.get(dedup_id, (0, -1))[1]
        return end is None or now < end

    @rule(seconds=st.integers(0, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(dedup_ids=st.lists(IDS, max_size=20), window=st.none() | WINDOWS)
    def publish(self, dedup_ids: list[str], window: int | None) -> None:
        for dedup_id in dedup_ids:
            first = self.window.seen(dedup_id, self.now)
            assert (first is not None) == self.lives(dedup_id, self.now)
            if first is None:
                self.message_id += 1
                expires = None if window is None else self.now + window
                self.window.remember(dedup_id, self.message_id, expires)
                self.plain[dedup_id] = (self.message_id, expires)

    @rule(dedup_id=IDS)
    def hold(self, dedup_id: str) -> None:
        kept = dedup_id in self.plain and self.lives(dedup_id, self.forgotten)
        assert self.window.hold(dedup_id) == kept
        if kept:
            self.plain[dedup_id] = (self.plain[dedup_id][0], None)

    @rule(dedup_ids=st.lists(IDS, max_size=10), window=WINDOWS)
    def release(self, dedup_ids: list[str], window: int) -> None:
        for dedup_id in dedup_ids:
            held = self.plain.get(dedup_id, (0, 0))[1] is None
            assert self.window.release(dedup_id, self.now + window) == held
            if held:
                self.plain[dedup_id] = (self.plain[dedup_id][0], self.now + window)

    @rule()
    def expire(self) -> None:
        self.window.expire(self.now)
        self.forgotten = self.now

    @rule()
    def store_and_load(self) -> None:
        self.window = DedupWindow.decode(self.window.encode())

    @invariant()
    def agree(self) -> None:
        for now in (self.now, self.now + 9, self.now + 10):
            for dedup_id in NAMES:
                expected = self.plain[dedup_id][0] if self.lives(dedup_id, now) else None
                assert self.window.seen(dedup_id, now) == expected
        assert len(self.window) == sum(self.lives(dedup_id, self.forgotten) for dedup_id in self.plain)


@pytest.mark.lengthy
def test_a_window_differs_from_a_dictionary() -> None:
    run_state_machine_as_test(
        RememberedTwice, settings=settings(max_examples=80, stateful_step_count=30, deadline=None)
    )


def test_ids_that_share_half_of_their_hash_are_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every id has the same lower half, and some meet in it modulo anything.
    monkeypatch.setattr(dedup, "_hashed", lambda dedup_id: (2**64 - 5, NAMES.index(dedup_id)))
    run_state_machine_as_test(
        RememberedTwice, settings=settings(max_examples=50, stateful_step_count=20, deadline=None)
    )


@given(st.text(), st.text())
def test_two_ids_are_taken_for_each_other(one: str, other: str) -> None:
    window = DedupWindow()
    window.remember(one, 1, 10)
    assert window.seen(one, 9) == 1
    assert window.seen(other, 9) == (1 if one == other else None)


def test_an_id_is_dropped_a_moment_too_early_or_too_late() -> None:
    window = DedupWindow()
    window.remember("a", 5, 100)
    for _ in range(2):
        assert (window.seen("a", 99), window.seen("a", 100)) == (5, None)
        window.expire(99)
    assert len(window) == 1
    window.expire(100)
    assert (len(window), window.seen("a", 0)) == (0, None)


def test_remembering_again_without_asking_leaves_the_older_one() -> None:
    window = DedupWindow()
    window.remember("a", 1, 10)
    window.remember("a", 2, 30)
    window.expire(10)
    assert (window.seen("a", 25), len(window)) == (2, 1)


def test_a_shorter_window_is_forgotten_only_after_the_longer_one() -> None:
    window = DedupWindow()
    window.remember("long", 1, 10_000)
    for number in range(1000):
        window.remember(f"short-{number}", number, 100 + number % 7)
    window.expire(103)
    assert len(window) == 1 + sum(number % 7 > 3 for number in range(1000))
    window.expire(106)
    assert len(window) == 1


def room_bytes(window: DedupWindow) -> int:
    fading, loose = window._fading, window._loose
    columns = [fading.lows, fading.highs, fading.messages, fading.expires]
    columns += [loose.places.keys, loose.highs, loose.messages, loose.expires]
    columns += [part.slots for part in {*fading.parts, *loose.places.parts}]
    return sum(map(sys.getsizeof, columns))


def test_steady_traffic_takes_ever_more_memory() -> None:
    window, most = DedupWindow(), 0.0
    for now in range(60_000):
        window.remember(str(now), now, now + 5000)
        window.expire(now)
        if now > 5000:
            assert len(window) == 5000
            most = max(most, room_bytes(window) / 5000)
    assert most < 52


@pytest.mark.parametrize("expires_us", [None, 60_000])
def test_an_id_costs_much_more_than_48_bytes(expires_us: int | None) -> None:
    window = DedupWindow()
    for number in range(20_000):
        window.remember(str(number), number, expires_us)
        if number > 1000 and not number % 500:
            assert room_bytes(window) / number < 52


def test_a_window_that_empties_keeps_its_memory() -> None:
    window = DedupWindow()
    for number in range(20_000):
        window.remember(str(number), number, number)
        window.remember(f"held-{number}", number, None)
    window.expire(19_990)
    for number in range(20_000):
        window.release(f"held-{number}", 19_991)
    window.expire(19_991)
    assert len(window) == 8
    assert room_bytes(window) < 10_000


def test_ids_taken_out_of_the_middle_keep_their_memory() -> None:
    window = DedupWindow()
    window.remember("first", 1, 10)
    for number in range(10_000):
        window.remember("again", number, 10 + number)
    assert len(window) == 2
    assert room_bytes(window) < 10_000


@pytest.mark.parametrize(
    "arguments", [("a", -1, 5), ("a", 2**63, 5), ("a", 1, 2**63 - 1), ("a", 1, -(2**63) - 1)]
)
def test_a_number_out_of_bounds_is_taken(arguments: Any) -> None:
    window = DedupWindow()
    with pytest.raises(InvalidArgument):
        window.remember(*arguments)
    assert len(window) == 0


def test_releasing_or_holding_what_is_unknown_makes_it_known() -> None:
    window = DedupWindow()
    assert not window.hold("a")
    assert not window.release("a", 10)
    assert (len(window), window.seen("a", 0)) == (0, None)


def test_damaged_ids_are_taken() -> None:
    window = DedupWindow()
    window.remember("a", 1, 10)
    stored = window.encode()
    for damaged in [
        stored[:3],
        (*stored[:3], b""),
        (stored[0][:7], *stored[1:]),
        (*stored[:2], b"\xff" * 8, stored[3]),
    ]:
        with pytest.raises(InvalidArgument, match="damaged"):
            DedupWindow.decode(damaged)
