"""A message is in one place of its group at a time, wherever a command finds it."""

from __future__ import annotations

import msgspec
import pytest

from penstock.engine.group import Group, Stored
from penstock.engine.lease import Lease
from penstock.errors import InvalidArgument, LeaseLost


def group_with(*offsets: int) -> Group:
    group = Group("default")
    for offset in offsets:
        group.arrive(100, offset, offset + 1)
    return group


def lease(group: Group, number: int, wanted: int) -> None:
    group.leases.add(Lease(number, group.lanes.take(wanted), "c", None))


# --- leases ---


def test_a_lease_that_ended_settles_something() -> None:
    group = group_with(0, 1, 2)
    lease(group, 1, 2)
    lease(group, 2, 1)
    assert group.require_leases([0, 1], [1, 1]).number == 1
    assert group.require_leases([2, 0], [2, 1]).number == 1
    for offsets, numbers in (([0, 1], [1, 2]), ([0, 2], [1, 1]), ([7], [1]), ([0, 1], [2, 2])):
        with pytest.raises(LeaseLost):
            group.require_leases(offsets, numbers)
    with pytest.raises(InvalidArgument):
        group.require_leases([], [])


def test_one_wrong_number_among_many_of_a_lease_is_taken() -> None:
    group = group_with(0, 1, 2)
    lease(group, 1, 3)
    with pytest.raises(LeaseLost):
        group.require_leases([0, 1, 2], [1, 1, 9])


# --- attempts ---


def test_an_attempt_is_not_counted_or_moves_the_first_failure() -> None:
    group = group_with(0, 1)
    assert group.attempts_of([0, 1]) == 1
    group.count_attempt(0, 500)
    group.count_attempt(0, 900)
    assert group.attempts_of([0, 1]) == [3, 1]
    assert group.tally.first_failed(0) == 500


# --- taking out ---


def test_a_message_is_found_in_none_of_its_places() -> None:
    group = group_with(0, 1, 2, 3)
    lease(group, 1, 2)
    group.count_attempt(0, 1)
    group.retry(0, 50)
    group.overdue.add(9)
    assert (group.retrying, len(group.leases), group.ready) == (1, 1, 2)
    assert all(group.withdraw(offset, 100) for offset in (0, 1, 2, 9))
    assert (group.retrying, len(group.leases), group.ready) == (0, 0, 1)
    assert not group.withdraw(7, 100)  # it never arrived


def test_a_parked_message_is_taken_out_of_a_lane() -> None:
    group = Group("default")
    for offset in (0, 1):
        group.arrive_keyed(100, offset, "k")
    group.arrive_keyed(100, 2, None)
    assert (group.lanes.count, group.ready) == (2, 3)
    assert group.withdraw(1, 100)
    assert group.lanes.count == 2


def test_a_retry_that_was_settled_meanwhile_arrives() -> None:
    group = group_with(0, 1)
    lease(group, 1, 2)
    for offset in (0, 1):
        group.count_attempt(offset, 1)
        group.retry(offset, 50 - offset)
    group.withdraw(0, 100)
    group.settled.add(0, 1)
    assert group.pop_retries(60) == [(49, 1)]
    assert (group.withdrawn, group.retrying) == (0, 0)


# --- storing ---


def test_a_stored_group_differs() -> None:
    group = group_with(*range(8))
    lease(group, 1, 4)
    group.count_attempt(0, 5)
    group.retry(0, 77)
    group.count_attempt(1, 6)
    group.retry(1, 78)
    group.withdraw(1, 100)
    group.settled.add(1, 2)
    group.arrive_keyed(100, 8, "k")
    group.arrive_keyed(100, 9, "k")
    group.overdue.add(2)
    data = msgspec.msgpack.encode(group.encode())
    twin = Group.decode("default", msgspec.msgpack.decode(data, type=Stored))
    assert (
        (twin.ready, twin.retrying, twin.withdrawn)
        == (group.ready, group.retrying, group.withdrawn)
        == (6, 1, 1)
    )
    assert twin.leases.offsets() == [2, 3]
    assert (twin.overdue, twin.settled) == (group.overdue, group.settled)
    twin.put_back(3)
    twin.put_back(2)
    assert [piece[1] for piece in twin.lanes.take(2)] == [2, 3]
    assert msgspec.msgpack.encode(Group.decode("default", group.encode()).encode()) == data
