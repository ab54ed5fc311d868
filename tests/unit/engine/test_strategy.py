"""Who gets how many: nothing is left over or given twice, and nobody gets more than he waits for."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.strategy import Want, shares

STRATEGIES: Any = ["round-robin", "least-busy", "random"]

wants = st.lists(
    st.builds(Want, st.integers(0, 20), st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=8
)


@given(strategy=st.sampled_from(STRATEGIES), ready=st.integers(0, 100), wants=wants, seed=st.integers(0, 99))
def test_something_is_left_over_or_given_twice(
    strategy: Any, ready: int, wants: list[Want], seed: int
) -> None:
    given = shares(strategy, ready, wants, Random(seed).random)
    assert sum(given) == min(ready, sum(want.most for want in wants))
    assert all(0 <= share <= want.most for share, want in zip(given, wants, strict=True))


@given(ready=st.integers(0, 100), wants=wants)
def test_in_turn_somebody_gets_two_more_than_another_who_waits(ready: int, wants: list[Want]) -> None:
    given = shares("round-robin", ready, wants, float)
    for share, want in zip(given, wants, strict=True):
        if share < want.most:
            assert max(given) <= share + 1


@given(ready=st.integers(0, 100), wants=wants)
def test_somebody_busy_is_given_more_before_one_who_is_idle(ready: int, wants: list[Want]) -> None:
    given = shares("least-busy", ready, wants, float)
    for share, want in zip(given, wants, strict=True):
        if share < want.most:
            for other, theirs in zip(given, wants, strict=True):
                assert not other or theirs.busy + other <= want.busy + share + 1


def test_who_was_given_something_last_comes_first() -> None:
    waiting = [Want(5, 3, 0), Want(5, 1, 0), Want(5, 2, 0)]
    assert shares("round-robin", 1, waiting, float) == [0, 1, 0]
    assert shares("round-robin", 2, waiting, float) == [0, 1, 1]
    assert shares("least-busy", 4, waiting, float) == [1, 2, 1]


def test_load_counts_where_it_is_somebodys_turn() -> None:
    waiting = [Want(5, 0, 9), Want(5, 1, 0)]
    assert shares("round-robin", 1, waiting, float) == [1, 0]
    assert shares("least-busy", 1, waiting, float) == [0, 1]
    assert shares("least-busy", 7, [Want(9, 0, 4), Want(9, 0, 1)], float) == [2, 5]


def test_those_who_came_first_wait_for_those_who_came_later() -> None:
    assert shares("round-robin", 2, [Want(1, 0, 0)] * 3, float) == [1, 1, 0]


def test_one_alone_is_given_more_than_he_wants() -> None:
    assert [shares(strategy, 9, [Want(4, 0, 7)], float) for strategy in STRATEGIES] == [[4]] * 3
    assert shares("random", 0, [Want(4, 0, 7)], float) == [0]


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1 - 2**-53, 1.0])
def test_an_extreme_draw_falls_off_the_line(drawn: float) -> None:
    given = shares("random", 5, [Want(2, 0, 0), Want(0, 0, 0), Want(2, 0, 0)], lambda: drawn)
    assert (sum(given), given[1]) == (4, 0)


def test_chance_prefers_somebody() -> None:
    given = shares("random", 3000, [Want(9999, 0, 0)] * 3, Random(7).random)
    assert all(800 < share < 1200 for share in given)


def test_chance_is_drawn_for_those_who_can_take_nothing() -> None:
    drawn = []

    def unit() -> float:
        drawn.append(1)
        return 0.0

    assert shares("random", 9, [Want(0, 0, 0), Want(2, 0, 0)], unit) == [0, 2]
    assert len(drawn) == 2
