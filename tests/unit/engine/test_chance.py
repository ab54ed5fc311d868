"""Chance is the same for the same seed, and evenly spread."""

from __future__ import annotations

import pytest

from penstock.engine.chance import Chance


def drawn(seed: int, count: int) -> list[float]:
    chance = Chance(seed)
    return [chance.unit() for _ in range(count)]


def test_chance_of_a_seed_changes() -> None:
    # SplitMix64 of seed 0 begins with e220a8397b1dcdaf.
    assert Chance(0).unit() == (0xE220A8397B1DCDAF >> 11) / 2**53
    assert drawn(7, 50) == drawn(7, 50)


def test_two_seeds_give_the_same() -> None:
    assert not set(drawn(1, 100)) & set(drawn(2, 100))


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, 2**70, -1])
def test_chance_is_not_from_0_to_1_or_prefers_a_part(seed: int) -> None:
    found = drawn(seed, 10_000)
    assert 0 <= min(found) <= max(found) < 1
    parts = [sum(1 for one in found if part <= 10 * one < part + 1) for part in range(10)]
    assert 880 < min(parts) <= max(parts) < 1120
