from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.tally import Tally
from penstock.errors import InvalidArgument
from penstock.limits import ATTEMPTS_MAX

ITEMS = st.integers(-3, 60)
FAILURES = st.tuples(st.integers(0, 3), st.none() | st.integers(-2, 2**63 - 1))


class CountedTwice(RuleBasedStateMachine):
    """A tally beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.tally, self.plain = Tally(), dict[int, tuple[int, int | None]]()

    @rule(item=ITEMS, failure=FAILURES)
    def set(self, item: int, failure: tuple[int, int | None]) -> None:
        self.tally.set(item, *failure)
        self.plain[item] = failure
        if failure == (0, None):
            del self.plain[item]

    @rule(start=ITEMS, count=st.integers(0, 40))
    def set_many(self, start: int, count: int) -> None:
        for item in range(start, start + count):
            self.set(item, (item % 5 + 1, None))

    @rule(item=ITEMS)
    def discard(self, item: int) -> None:
        self.tally.discard(item)
        self.plain.pop(item, None)

    @rule()
    def store_and_load(self) -> None:
        self.tally = Tally.decode(self.tally.encode())

    @invariant()
    def agree(self) -> None:
        assert list(self.tally.items()) == [(item, *one) for item, one in sorted(self.plain.items())]
        assert len(self.tally) == len(self.plain)
        for item in range(-5, 105):
            assert (self.tally.get(item), self.tally.first_failed(item)) == self.plain.get(item, (0, None))
            assert (item in self.tally) == (item in self.plain)


TestTallyDiffersFromADictionary = CountedTwice.TestCase
TestTallyDiffersFromADictionary.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def room_bytes(tally: Tally) -> int:
    columns = [part.slots for part in set(tally._places.parts)]
    columns += [tally._places.keys, tally._attempts, tally._firsts]
    return sum(map(sys.getsizeof, columns))


@pytest.mark.parametrize("count", [1000, 43_000, 44_000, 60_000])
def test_an_entry_costs_much_more_than_32_bytes(count: int) -> None:
    tally = Tally()
    for item in range(count):
        tally.set(item, 1, item)
    assert room_bytes(tally) / count < 34


def test_a_tally_that_empties_keeps_its_memory() -> None:
    tally = Tally()
    for item in range(50_000):
        tally.set(item, 1, item)
    for item in range(49_990):
        tally.discard(item)
    assert len(tally) == 10
    assert room_bytes(tally) < 10_000


@pytest.mark.parametrize(
    "arguments",
    [(2**63, 1, None), (1, ATTEMPTS_MAX + 1, None), (1, -1, None), (1, 1, 2**63), (1, 1, -(2**63))],
)
def test_a_number_out_of_bounds_is_taken(arguments: Any) -> None:
    tally = Tally()
    with pytest.raises(InvalidArgument):
        tally.set(*arguments)
    assert (len(tally), list(tally.items())) == (0, [])


def test_the_largest_attempts_are_lost() -> None:
    tally = Tally()
    tally.set(1, ATTEMPTS_MAX, None)
    assert Tally.decode(tally.encode()).get(1) == ATTEMPTS_MAX


def test_damaged_entries_are_taken() -> None:
    tally = Tally()
    tally.set(1, 1, None)
    tally.set(2, 1, None)
    items, attempts, firsts = tally.encode()
    for stored in [
        (items, attempts),
        (items, attempts, firsts[:8]),
        (items[8:] + items[:8], attempts, firsts),
        (items[:8] * 2, attempts, firsts),
        (items, b"\xff" * 8, firsts),
        (items, bytes(8), firsts),
    ]:
        with pytest.raises(InvalidArgument, match="damaged"):
            Tally.decode(stored)
