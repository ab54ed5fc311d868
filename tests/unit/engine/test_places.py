from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.places import Places

# Few keys, so that they meet again; some in steps of a power of two, which hash alike in a careless table.
KEYS = st.one_of(st.integers(0, 12), st.integers(-6, 6).map(lambda n: n << 40))
STEPS = st.lists(st.tuples(st.sampled_from(["append", "append", "remove"]), KEYS), max_size=120)


def agree(places: Places, plain: list[int]) -> None:
    assert places.keys.tolist() == plain
    for key in {*plain, 5, 99}:
        assert sorted(places.find_all(key)) == [place for place, one in enumerate(plain) if one == key]
        assert places.find(key) in (places.find_all(key) or [-1])


@given(STEPS)
def test_places_differ_from_a_list(steps: list[tuple[str, int]]) -> None:
    places, plain = Places("q"), list[int]()
    for what, key in steps:
        if what == "append":
            assert places.append(key) == len(plain)
            plain.append(key)
        elif plain:
            place = key % len(plain)
            places.remove(place)
            plain[place] = plain[-1]
            plain.pop()
        agree(places, plain)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=80))
def test_keys_given_at_once_are_not_found(keys: list[int]) -> None:
    agree(Places("Q", array("Q", keys)), keys)


@pytest.mark.parametrize("step", [1, 3, 1 << 12, 1 << 22, 1 << 40])
def test_keys_in_steps_crowd_together(step: int) -> None:
    places = Places("q")
    for number in range(40_000):
        places.append(number * step)
    parts = [bytes(1 if number else 0 for number in part.slots) for part in places.parts]
    assert len(parts) <= 64
    assert max(len(run) for part in parts for run in part.split(b"\0")) < 400


def test_a_table_keeps_its_memory_when_its_keys_go() -> None:
    places = Places("q")
    for key in range(10_000):
        places.append(key)
    told = [places.remove(0) for _ in range(9_990)]
    assert any(told)
    assert places.slots_count <= 200
    agree(places, places.keys.tolist())
