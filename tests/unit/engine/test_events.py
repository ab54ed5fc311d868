"""Offsets in any order become the same ranges, and part of a batch is still that batch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.events import Action, Outcome, parcels, rising, runs
from penstock.model.batch import Batch

OFFSETS = st.lists(st.integers(0, 40), max_size=60)


@given(OFFSETS)
def test_an_order_loses_or_repeats_an_offset(offsets: list[int]) -> None:
    found = runs(offsets)
    assert [offset for run in found for offset in run] == sorted(set(offsets))
    assert all(left.stop < right.start for left, right in itertools.pairwise(found))
    assert list(rising(offsets)) == sorted(set(offsets))


@given(OFFSETS)
def test_the_caller_sees_its_own_list_change(offsets: list[int]) -> None:
    before = offsets.copy()
    rising(offsets)
    runs(offsets)
    assert offsets == before


def test_offsets_that_follow_one_another_are_no_range() -> None:
    assert rising([4, 5, 6]) == range(4, 7)
    assert rising(range(4, 7)) == range(4, 7)
    assert type(rising([4, 5, 6])) is range


@pytest.mark.parametrize("offsets", [[4, 6, 5, 7], [7, 6, 5, 4], [4, 5, 5, 7], [4, 4, 5]])
def test_the_ends_alone_decide_what_follows_one_another(offsets: list[int]) -> None:
    assert list(rising(offsets)) == sorted(set(offsets))


def test_nothing_has_a_range() -> None:
    assert runs([]) == runs(range(0)) == []
    assert rising([]) == range(0)


def test_a_stored_number_changes() -> None:
    assert {one.name: one.value for one in Outcome} == {
        "ACKED": 1, "RETRY": 2, "DEAD": 3, "EXPIRED": 4, "PURGED": 5, "RETURNED": 6, "DROPPED": 7, "REDRIVEN": 8,
        "UNSEEN": 9, "FILTERED": 10, "CANCELLED": 11,
    }  # fmt: skip
    assert {one.name: one.value for one in Action} == {
        "DECLARE": 1, "ALTER": 2, "DELETE": 3, "SUBSCRIBE": 4, "UNSUBSCRIBE": 5, "SEEK": 6, "READER": 7, "FORGET": 8,
    }  # fmt: skip


@given(st.sets(st.integers(0, 60)), st.integers(1, 12))
def test_parcels_lose_or_repeat_something_or_are_too_large(offsets: set[int], most: int) -> None:
    found = list(parcels(runs(sorted(offsets)), most))
    assert [offset for parcel in found for offset in parcel] == sorted(offsets)
    assert all(isinstance(parcel, range) or len(parcel) <= most for parcel in found)


def test_scattered_messages_take_a_parcel_each() -> None:
    assert len(list(parcels(runs(list(range(0, 200, 2))), 10))) == 10
    assert list(parcels([range(0, 30), range(40, 41), range(42, 43)], 10)) == [range(0, 30), [40, 42]]


def batch() -> Batch:
    return Batch(
        payloads=[b"a", b"bb", b"ccc", b"dddd"],
        ids=range(50, 54),
        timestamp_us=[1, 2, 3, 4],
        priority=[0, 1, 2, 3],
        deliver_at=None,
        expires_at=99,
        key=["k", None, "l", None],
        dedup_id=None,
        headers=[{"n": "0"}, None, {"n": "2"}, None],
        target_group="g",
        properties=[None, b"p", None, b"q"],
        first=20,
        size=10,
    )


def test_part_of_a_batch_has_a_column_of_another_length() -> None:
    found = batch().part(1, 3)
    assert found.count == 2
    assert found.first == 21
    assert (found.payloads, found.ids, found.timestamp_us, found.priority) == (
        [b"bb", b"ccc"],
        range(51, 53),
        [2, 3],
        [1, 2],
    )
    assert (found.key, found.headers, found.properties) == ([None, "l"], [None, {"n": "2"}], [b"p", None])
    assert (found.deliver_at, found.expires_at, found.dedup_id, found.target_group) == (None, 99, None, "g")


def test_rows_of_a_batch_are_mixed_up() -> None:
    found = batch().rows([3, 0])
    assert (found.payloads, found.ids, found.timestamp_us, found.priority) == (
        [b"dddd", b"a"],
        [53, 50],
        [4, 1],
        [3, 0],
    )
    assert (found.key, found.headers, found.properties) == ([None, "k"], [None, {"n": "0"}], [b"q", None])
    assert (found.deliver_at, found.expires_at, found.target_group, found.size) == (None, 99, "g", 5)


def test_taking_a_part_changes_the_whole() -> None:
    whole = batch()
    whole.part(0, 2).payloads.clear()
    whole.rows([1]).payloads.clear()
    assert whole == batch()
