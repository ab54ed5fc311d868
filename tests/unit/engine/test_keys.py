"""Of each key one message is foremost, and the others wait for it in order."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.keys import Keys


def test_two_messages_of_one_key_are_foremost() -> None:
    keys = Keys()
    assert [keys.arrive("a", 0), keys.arrive("a", 1), keys.arrive("b", 2)] == [True, False, True]
    assert keys.parked == 1
    assert [keys.is_parked(offset) for offset in (0, 1, 2, 3)] == [False, True, False, False]


def test_a_younger_message_takes_the_place_before_an_older_one() -> None:
    keys = Keys()
    for offset in (0, 9, 4, 7):  # in the order in which they fell due
        keys.arrive("a", offset)
    assert [keys.settled(offset) for offset in (0, 4, 7, 9)] == [4, 7, 9, None]
    assert not keys


def test_a_parked_message_that_is_gone_takes_a_place() -> None:
    keys = Keys()
    for offset in (0, 1, 2):
        keys.arrive("a", offset)
    assert keys.settled(1) is None
    assert keys.parked == 1
    assert keys.settled(0) == 2
    assert keys.parked == 0


def test_a_key_that_had_its_last_message_blocks_the_next() -> None:
    keys = Keys()
    keys.arrive("a", 0)
    keys.settled(0)
    assert keys.arrive("a", 5)


def test_a_message_without_a_key_frees_somebody() -> None:
    keys = Keys()
    keys.arrive("a", 0)
    keys.arrive("a", 1)
    assert keys.settled(17) is None
    assert keys.is_parked(1)


def test_an_older_message_that_takes_the_place_loses_the_younger_one() -> None:
    keys = Keys()
    for offset in (5, 9):
        keys.arrive("a", offset)
    keys.take_place("a", 2)
    assert (keys.foremost("a"), keys.parked) == (2, 2)
    assert [keys.is_parked(offset) for offset in (2, 5, 9)] == [False, True, True]
    assert [keys.settled(offset) for offset in (2, 5, 9)] == [5, 9, None]
    assert (bool(keys), keys.parked) == (False, 0)


def test_settling_moves_up_everything_that_waits_behind_a_key() -> None:
    keys = Keys()
    for offset in range(1000):
        keys.arrive("k", offset)
    parked = keys._parked["k"]
    assert type(parked) is deque  # which gives its first away without moving the others
    assert [keys.settled(offset) for offset in range(5)] == [1, 2, 3, 4, 5]
    assert keys._parked["k"] is parked
    assert len(parked) == 994


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 99)), max_size=80)


@given(STEPS)
def test_keys_differ_from_lists(steps: list[tuple[bool, str, int]]) -> None:
    keys, foremost, waiting = Keys(), dict[str, int](), dict[str, list[int]]()
    of: dict[int, str] = {}
    for number, (arrives, key, pick) in enumerate(steps):
        if arrives:
            offset = (number * 37) % 1009  # in no order
            of[offset] = key
            assert keys.arrive(key, offset) == (key not in foremost)
            if foremost.setdefault(key, offset) != offset:
                waiting.setdefault(key, []).append(offset)
        elif of:
            offset = sorted(of)[pick % len(of)]
            mine = of.pop(offset)
            line = sorted(waiting.get(mine, []))
            following = None
            if foremost[mine] != offset:
                line.remove(offset)
            elif line:
                following = foremost[mine] = line.pop(0)
            else:
                del foremost[mine]
            waiting[mine] = line
            assert keys.settled(offset) == following
        keys = Keys.decode(keys.encode())
        assert keys.parked == sum(map(len, waiting.values()))
        assert bool(keys) == bool(of)
        assert [offset for offset in of if keys.is_parked(offset)] == [
            offset for offset in of if offset in waiting.get(of[offset], [])
        ]
