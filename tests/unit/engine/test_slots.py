from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine import slots
from penstock.engine.slots import PART_BITS, Slots


class Plain(Slots):
    """Slots over a list; number n is entry n - 1, and stale if that is None."""

    def __init__(self) -> None:
        self.hashes: list[int | None] = []
        super().__init__()

    def living(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        return [(hashed, number) for number in numbers if (hashed := self.hashes[number - 1]) is not None]

    def add(self, hashed: int) -> None:
        self.hashes.append(hashed)
        self.enter(hashed, len(self.hashes))

    def found(self, hashed: int) -> set[int]:
        part = self.parts[hashed & self.mask]
        slot, found = (hashed >> PART_BITS) % len(part.slots), set()
        while number := part.slots[slot]:
            if self.hashes[number - 1] == hashed:
                found.add(number)
            slot -= 1
        return found


# Negative hashes are as good as others; equal ones, and those with equal lower bits, must not be lost.
HASHES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 3), st.integers(0, 9).map(lambda n: n << 30)
)
STEPS = st.lists(st.tuples(HASHES, st.booleans()), max_size=150)


@settings(deadline=None)
@given(STEPS)
def test_an_entry_is_lost_among_parts(steps: list[tuple[int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "_PART_ENTRIES_MAX", 12)
        plain = Plain()
        for hashed, stale in steps:
            plain.add(hashed)
            if stale:
                plain.hashes[len(plain.hashes) // 2] = None
    living = {one for one in plain.hashes if one is not None}
    for hashed in living:
        assert plain.found(hashed) == {n for n, one in enumerate(plain.hashes, 1) if one == hashed}
    assert plain.slots_count == sum(len(part.slots) for part in set(plain.parts))
    assert all(part.used == sum(map(bool, part.slots)) <= part.room < len(part.slots) for part in plain.parts)


def test_a_part_becomes_too_large_to_be_made_anew_quickly() -> None:
    plain = Plain()
    for number in range(60_000):
        plain.add(hash((number,)))
    assert max(len(part.slots) for part in plain.parts) <= 2.5 * 2048
    assert len(plain.parts) <= 128


def test_hashes_that_are_alike_make_endless_parts() -> None:
    plain = Plain()
    for number in range(10_000):
        plain.add(number << PART_BITS)
    assert len(plain.parts) <= 64
    assert plain.found(9_999 << PART_BITS) == {10_000}
