from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.ranges import RangeSet

SPAN = 20

BOUNDS = st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(lambda pair: (min(pair), max(pair)))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "discard"]), BOUNDS), max_size=30)


def built(steps: list[tuple[str, tuple[int, int]]]) -> tuple[RangeSet, set[int]]:
    ranges, plain = RangeSet(), set[int]()
    for what, (start, stop) in steps:
        if what == "add":
            ranges.add(start, stop)
            plain.update(range(start, stop))
        else:
            ranges.discard(start, stop)
            plain.difference_update(range(start, stop))
        agree(ranges, plain)
    return ranges, plain


def agree(ranges: RangeSet, plain: set[int]) -> None:
    assert {number for one in ranges for number in one} == plain
    assert len(ranges) == len(plain)
    assert all(one.start < one.stop for one in ranges)
    assert all(left.stop < right.start for left, right in pairwise(ranges))


@given(STEPS)
def test_a_range_set_differs_from_a_plain_set(steps: list[tuple[str, tuple[int, int]]]) -> None:
    ranges, plain = built(steps)
    assert [number for number in range(-2, SPAN + 2) if number in ranges] == sorted(plain)


@given(STEPS, BOUNDS)
def test_an_answer_about_a_stretch_is_wrong(
    steps: list[tuple[str, tuple[int, int]]], bounds: tuple[int, int]
) -> None:
    ranges, plain = built(steps)
    stretch = range(*bounds)
    assert ranges.covers(*bounds) == plain.issuperset(stretch)
    assert [number for one in ranges.overlap(*bounds) for number in one] == [n for n in stretch if n in plain]
    assert [number for one in ranges.gaps(*bounds) for number in one] == [
        n for n in stretch if n not in plain
    ]
    assert all(len(one) for one in ranges.overlap(*bounds) + ranges.gaps(*bounds))


@given(STEPS)
def test_stored_ranges_come_back_changed(steps: list[tuple[str, tuple[int, int]]]) -> None:
    ranges, plain = built(steps)
    decoded = RangeSet.decode(ranges.encode())
    assert decoded == ranges == RangeSet(ranges)
    agree(decoded, plain)


@given(STEPS, STEPS)
def test_sets_with_the_same_integers_are_unequal(
    left: list[tuple[str, tuple[int, int]]], right: list[tuple[str, tuple[int, int]]]
) -> None:
    (one, plain_one), (two, plain_two) = built(left), built(right)
    assert (one == two) == (plain_one == plain_two)


def test_a_copy_changes_with_its_original() -> None:
    ranges = RangeSet([range(0, 5)])
    copy = ranges.copy()
    ranges.add(7, 9)
    ranges.discard(0, 1)
    ranges.discard(4, 5)
    assert list(copy) == [range(0, 5)]
    assert (len(copy), len(ranges)) == (5, 5)
    assert copy != ranges


def test_ranges_that_touch_are_not_joined() -> None:
    ranges = RangeSet([range(0, 5), range(10, 15)])
    ranges.add(5, 10)
    assert list(ranges) == [range(0, 15)]


def test_a_range_that_only_touches_is_said_to_overlap() -> None:
    ranges = RangeSet([range(0, 5), range(9, 12)])
    assert ranges.overlap(5, 9) == []
    assert ranges.gaps(5, 9) == [range(5, 9)]


def test_a_gap_of_one_is_closed() -> None:
    assert list(RangeSet([range(0, 5), range(6, 9)])) == [range(0, 5), range(6, 9)]


def test_appending_in_order_makes_more_ranges() -> None:
    ranges = RangeSet()
    for number in range(100_000):
        ranges.add(number, number + 1)
    assert list(ranges) == [range(100_000)]


def test_the_largest_offset_does_not_fit() -> None:
    ranges = RangeSet()
    ranges.add(2**63 - 2, 2**63 - 1)
    assert 2**63 - 2 in ranges
    assert len(ranges) == 1
    assert ranges.gaps(2**63 - 3, 2**63 - 1) == [range(2**63 - 3, 2**63 - 2)]


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 2**63)])
def test_a_senseless_range_is_taken(start: int, stop: int) -> None:
    ranges = RangeSet([range(0, 3)])
    with pytest.raises(InvalidArgument, match=f"{start} to {stop}"):
        ranges.add(start, stop)
    with pytest.raises(InvalidArgument, match=f"{start} to {stop}"):
        ranges.discard(start, stop)
    assert list(ranges) == [range(0, 3)]


def test_a_range_with_a_step_is_taken() -> None:
    with pytest.raises(InvalidArgument, match="step"):
        RangeSet([range(0, 10, 2)])
    assert len(RangeSet([range(5, 3)])) == 0


@pytest.mark.parametrize(
    "flat", [[0], [0, 0], [5, 3], [0, 5, 5, 9], [0, 5, 3, 9], [-1, 5], [0, 2**63], [0, 5, 7], [7, 9, 0, 5]]
)
def test_damaged_ranges_are_taken(flat: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="damaged"):
        RangeSet.decode(flat)


def test_something_that_is_no_integer_is_in() -> None:
    ranges = RangeSet([range(0, 3)])
    assert "1" not in ranges
    assert None not in ranges
    assert ranges != [range(0, 3)]


def test_a_set_that_can_change_is_hashed() -> None:
    unhashable: Any = RangeSet()
    with pytest.raises(TypeError):
        hash(unhashable)


def test_an_empty_set_answers_wrongly() -> None:
    empty = RangeSet()
    assert (len(empty), list(empty), empty.encode(), empty.gaps(0, 3)) == (0, [], [], [range(3)])
    assert empty.covers(5, 5)
    assert not empty.covers(0, 1)
    assert repr(RangeSet([range(1, 2)])) == "RangeSet([range(1, 2)])"
