from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock, to_us
from penstock.errors import InvalidArgument
from penstock.ids import (
    EPOCH_US,
    ID_MAX,
    NODE_MAX,
    SEQUENCES,
    SnowflakeIds,
    first_id_at,
    node_of,
    sequence_of,
    time_us_of,
)

MS = 1000


def test_the_layout_of_an_id_has_changed() -> None:
    ids = SnowflakeIds(node=5, clock=ManualClock(start_us=EPOCH_US + 3 * MS))
    assert ids.next() == (3 << 22) | (5 << 12) | 0
    assert ids.next() == (3 << 22) | (5 << 12) | 1


def test_the_epoch_has_changed() -> None:
    assert to_us(datetime(2024, 1, 1, tzinfo=UTC)) == EPOCH_US


def test_an_id_tells_another_time_node_or_sequence() -> None:
    clock = ManualClock()
    ids = SnowflakeIds(node=NODE_MAX, clock=clock)
    ids.next()
    second = ids.next()
    assert time_us_of(second) == clock.now_us()
    assert (node_of(second), sequence_of(second)) == (NODE_MAX, 1)


def test_ids_go_back_when_the_clock_does() -> None:
    clock = ManualClock()
    ids = SnowflakeIds(node=1, clock=clock)
    before = ids.next()
    clock.set_back(seconds=3600)
    assert ids.next() == before + 1


def test_ids_do_not_follow_the_clock_again_once_it_has_caught_up() -> None:
    clock = ManualClock()
    ids = SnowflakeIds(node=1, clock=clock)
    ids.take(2 * SEQUENCES)
    clock.advance(seconds=1)
    assert time_us_of(ids.next()) == clock.now_us()


def test_a_full_millisecond_spills_into_the_node_bits() -> None:
    clock = ManualClock()
    ids = SnowflakeIds(node=1, clock=clock)
    ids.take(SEQUENCES)
    spilled = ids.next()
    assert (node_of(spilled), sequence_of(spilled), time_us_of(spilled)) == (1, 0, clock.now_us() + MS)


def test_a_batch_that_just_fits_moves_to_the_next_millisecond() -> None:
    ids = SnowflakeIds(node=1, clock=ManualClock())
    first = ids.take(SEQUENCES - 10)
    assert ids.take(10) == range(first[-1] + 1, first[-1] + 11)


def test_a_batch_is_torn_over_two_milliseconds() -> None:
    clock = ManualClock()
    ids = SnowflakeIds(node=1, clock=clock)
    ids.take(SEQUENCES - 10)
    batch = ids.take(11)
    assert isinstance(batch, range)
    assert (sequence_of(batch[0]), time_us_of(batch[0])) == (0, clock.now_us() + MS)
    assert ids.last == batch[-1]


@pytest.mark.parametrize("count", [0, 1, SEQUENCES - 1, SEQUENCES])
def test_a_batch_of_one_millisecond_costs_a_list(count: int) -> None:
    batch = SnowflakeIds(node=1, clock=ManualClock()).take(count)
    assert isinstance(batch, range)
    assert len(batch) == count


def test_a_large_batch_repeats_or_loses_ids() -> None:
    ids = SnowflakeIds(node=1, clock=ManualClock())
    ids.take(100)
    batch = ids.take(3 * SEQUENCES + 5)
    assert len(batch) == len(set(batch)) == 3 * SEQUENCES + 5
    assert list(batch) == sorted(batch)
    assert {node_of(one) for one in batch} == {1}
    assert ids.last == batch[-1]


def test_taking_nothing_uses_up_an_id() -> None:
    ids = SnowflakeIds(node=1, clock=ManualClock())
    last = ids.next()
    assert (len(ids.take(0)), ids.last) == (0, last)


def test_a_recovered_generator_gives_an_id_again() -> None:
    clock = ManualClock()
    seen = SnowflakeIds(node=1, clock=clock).take(50)[-1]
    clock.set_back(seconds=60)
    assert SnowflakeIds(node=1, clock=clock, last=seen).next() == seen + 1


@pytest.mark.parametrize("back_us", [0, MS, 3_600_000 * MS])
@pytest.mark.parametrize("other", [0, 4, 5, 6, NODE_MAX])
def test_the_last_id_of_another_node_is_not_passed(other: int, back_us: int) -> None:
    clock = ManualClock()
    seen = SnowflakeIds(node=other, clock=clock).take(SEQUENCES)[-1]
    clock.set_back(us=back_us)
    after = SnowflakeIds(node=5, clock=clock, last=seen).take(SEQUENCES)
    assert after[0] > seen
    assert {node_of(one) for one in after} == {5}


def test_after_lowers_what_was_already_given() -> None:
    ids = SnowflakeIds(node=1, clock=ManualClock())
    last = ids.next()
    ids.after(last - 1)
    assert ids.last == last
    ids.after(last + 7)
    assert ids.next() == last + 8


def test_a_clock_before_the_epoch_gives_negative_ids() -> None:
    ids = SnowflakeIds(node=0, clock=ManualClock(start_us=0))
    first, second = ids.next(), ids.next()
    assert 0 < first < second


def test_ids_overflow_at_the_end_of_time() -> None:
    ids = SnowflakeIds(node=NODE_MAX, clock=ManualClock(), last=ID_MAX - 1)
    assert ids.next() == ID_MAX
    with pytest.raises(InvalidArgument, match="clock"):
        ids.next()


@pytest.mark.parametrize("node", [-1, NODE_MAX + 1])
def test_a_node_that_does_not_fit_is_taken(node: int) -> None:
    with pytest.raises(InvalidArgument, match=f"node is {node}; give 0 to 1023"):
        SnowflakeIds(node=node, clock=ManualClock())


def test_a_senseless_argument_is_taken() -> None:
    ids = SnowflakeIds(node=0, clock=ManualClock())
    with pytest.raises(InvalidArgument, match="count"):
        ids.take(-1)
    for wrong in (-1, ID_MAX + 1):
        with pytest.raises(InvalidArgument, match="id is"):
            ids.after(wrong)


def test_seeking_by_time_skips_an_id_of_that_moment() -> None:
    clock = ManualClock()
    clock.advance(us=999)
    made = SnowflakeIds(node=0, clock=clock).next()
    assert first_id_at(clock.now_us()) <= made < first_id_at(clock.now_us() + MS)


def test_seeking_outside_the_range_of_ids_overflows() -> None:
    assert first_id_at(0) == 0
    assert first_id_at(2**62) <= ID_MAX


# Each step takes some ids, then moves the clock (in microseconds, either way).
STEPS = st.lists(st.tuples(st.integers(0, 3 * SEQUENCES), st.integers(-5000, 5000)), max_size=20)


@given(STEPS, st.integers(0, NODE_MAX))
def test_ids_do_not_rise_whatever_the_clock_does(steps: list[tuple[int, int]], node: int) -> None:
    clock = ManualClock()
    ids = SnowflakeIds(node, clock)
    batches = []
    for count, moved_us in steps:
        batches.append(ids.take(count))
        if moved_us < 0:
            clock.set_back(us=-moved_us)
        else:
            clock.advance(us=moved_us)
    given_ids = list(chain.from_iterable(batches))
    assert len(given_ids) == sum(count for count, _ in steps)
    assert all(left < right for left, right in pairwise(given_ids))
    assert {node_of(one) for one in given_ids} <= {node}
