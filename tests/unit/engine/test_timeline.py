from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from penstock.engine import timeline
from penstock.engine.timeline import Timeline
from penstock.errors import InvalidArgument

INT64 = st.integers(-(2**63), 2**63 - 1)
# Few values, so that equal entries, equal dues and cancellations that hit something are common.
DUES = st.integers(0, 30)
ITEMS = st.integers(0, 8)


class WaitingTwice(RuleBasedStateMachine):
    """A timeline beside a sorted list of the same entries."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline, self.plain = Timeline(), list[tuple[int, int]]()

    @rule(due=DUES, item=ITEMS)
    def add(self, due: int, item: int) -> None:
        self.timeline.add(due, item)
        self.plain.append((due, item))

    @rule(due=DUES, items=st.lists(ITEMS, max_size=24))
    def add_together(self, due: int, items: list[int]) -> None:
        self.timeline.add_many(due, items)
        self.plain.extend((due, item) for item in items)

    @rule(pairs=st.lists(st.tuples(DUES, ITEMS), max_size=24))
    def add_each(self, pairs: list[tuple[int, int]]) -> None:
        self.timeline.add_many([due for due, _ in pairs], [item for _, item in pairs])
        self.plain.extend(pairs)

    @rule(due=DUES, item=ITEMS)
    def discard_any(self, due: int, item: int) -> None:
        assert self.timeline.discard(due, item) == ((due, item) in self.plain)
        if (due, item) in self.plain:
            self.plain.remove((due, item))

    @rule(data=st.data())
    def discard_present(self, data: st.DataObject) -> None:
        if self.plain:
            gone = data.draw(st.lists(st.sampled_from(self.plain), max_size=10, unique=True))
            for due, item in gone:
                assert self.timeline.discard(due, item)
                self.plain.remove((due, item))

    @rule(now=DUES)
    def pop(self, now: int) -> None:
        assert self.timeline.pop_due(now) == sorted(pair for pair in self.plain if pair[0] <= now)
        self.plain = [pair for pair in self.plain if pair[0] > now]

    @rule()
    def store_and_load(self) -> None:
        self.timeline = Timeline.decode(self.timeline.encode())

    @rule()
    def store(self) -> None:
        self.timeline.encode()

    @invariant()
    def agree(self) -> None:
        assert len(self.timeline) == len(self.plain)
        assert self.timeline.next_us == min((due for due, _ in self.plain), default=None)
        assert list(self.timeline.items()) == sorted(self.plain)


@pytest.mark.lengthy
@pytest.mark.parametrize(("fresh", "stretch"), [(1, 1), (4, 2), (8, 4096)])
def test_a_timeline_differs_from_a_sorted_list(
    fresh: int, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tiny bounds take a few entries through spilling, merging and packing.
    monkeypatch.setattr(timeline, "_FRESH_MAX", fresh)
    monkeypatch.setattr(timeline, "_STRETCH", stretch)
    run_state_machine_as_test(
        WaitingTwice, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )


@given(st.lists(st.tuples(INT64, INT64), max_size=40))
def test_an_extreme_value_is_lost(pairs: list[tuple[int, int]]) -> None:
    waiting = Timeline()
    waiting.add_many([due for due, _ in pairs], [item for _, item in pairs])
    assert waiting.next_us == min((due for due, _ in pairs), default=None)
    assert waiting.pop_due(2**63 - 1) == sorted(pairs)


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
def test_many_entries_come_out_of_order_or_make_many_runs(order: str) -> None:
    dues = list(range(60_000))
    if order == "falling":
        dues.reverse()
    elif order == "shuffled":
        Random(1).shuffle(dues)
    waiting = Timeline()
    for item, due in enumerate(dues):
        waiting.add(due, item)
    assert len(waiting._runs) <= 7 * 3
    assert waiting.pop_due(29_999) == sorted((due, item) for item, due in enumerate(dues) if due < 30_000)
    assert waiting.next_us == 30_000
    assert [due for due, _ in waiting.items()] == list(range(30_000, 60_000))


def test_entries_in_order_are_merged() -> None:
    waiting = Timeline()
    for due in range(60_000):
        waiting.add(due, due)
    assert len(waiting._runs) == 1


def held(waiting: Timeline) -> int:
    return len(waiting._fresh) + sum(len(run.dues) for run in waiting._runs)


def test_cancelled_entries_stay_in_memory() -> None:
    waiting = Timeline()
    waiting.add_many(range(50_000), range(50_000))
    for due in Random(2).sample(range(50_000), 49_000):
        assert waiting.discard(due, due)
    assert len(waiting) == 1000
    assert held(waiting) <= 2 * 1000 + 512


def test_entries_that_left_stay_in_memory() -> None:
    waiting = Timeline()
    for now in range(100_000):
        waiting.add(now + 1000, now)
        waiting.pop_due(now)
    assert len(waiting) == 1000
    assert held(waiting) <= 2 * 1000 + 512


def test_an_entry_can_be_cancelled_twice() -> None:
    waiting = Timeline()
    waiting.add_many(5, range(1000))
    assert waiting.discard(5, 500)
    assert not waiting.discard(5, 500)
    assert len(waiting) == 999


def test_equal_timelines_are_stored_differently() -> None:
    pairs = [(due % 700, due) for due in range(5000)]
    one, other = Timeline(), Timeline()
    for due, item in pairs:
        one.add(due, item)
    other.add_many(*zip(*reversed(pairs), strict=True))
    assert one.encode() == other.encode()


@pytest.mark.parametrize("pair", [(2**63, 1), (1, 2**63), (-(2**63) - 1, 1), (1, -(2**63) - 1)])
def test_a_number_beyond_64_bits_is_taken(pair: tuple[int, int]) -> None:
    waiting = Timeline()
    with pytest.raises(InvalidArgument, match="64-bit"):
        waiting.add(*pair)
    with pytest.raises(InvalidArgument, match="64-bit"):
        waiting.add_many(pair[0], [1, pair[1]])
    with pytest.raises(InvalidArgument, match="64-bit"):
        waiting.add_many([1, pair[0]], [1, pair[1]])
    assert (len(waiting), waiting.next_us) == (0, None)


def test_dues_and_items_of_different_number_are_taken() -> None:
    with pytest.raises(InvalidArgument, match="one for each"):
        Timeline().add_many([1, 2], [1])


def test_damaged_entries_are_taken() -> None:
    waiting = Timeline()
    waiting.add_many([1, 2], [2, 1])
    dues, items = waiting.encode()
    for stored in [(dues, items[:8]), (dues[:9], items[:9]), (dues[8:] + dues[:8], items), (dues,)]:
        with pytest.raises(InvalidArgument, match="damaged"):
            Timeline.decode(stored)
