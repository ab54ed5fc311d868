"""A log keeps of each message only what something depends on, and gives it up again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND_US
from penstock.engine.change import Change
from penstock.engine.group import Member
from penstock.engine.log import FEW_KEPT, Log, Runs, is_plain
from penstock.policy import Policy
from tests.unit.engine.specimen import NOW, Machine

# --- runs ---

VALUES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=30)


@given(VALUES, st.integers(0, 60), st.integers(0, 30), st.integers(0, 60))
def test_runs_differ_from_a_list(values: list[tuple[int, int]], start: int, length: int, forget: int) -> None:
    runs, plain = Runs(), list[int]()
    for times, value in values:
        runs.append(len(plain), value)
        plain += [value] * times
    start, forget = start % len(plain), forget % len(plain)
    stop = min(start + length, len(plain))
    runs.forget_before(min(start, forget))
    runs = Runs(*runs.encode())
    parts = list(runs.parts(start, stop))
    assert [value for value, low, high in parts for _ in range(low, high)] == plain[start:stop]
    assert [low for _, low, _ in parts][1:] == [high for _, _, high in parts][:-1]
    assert all(left[0] != right[0] for left, right in itertools.pairwise(parts))
    assert [runs.at(offset) for offset in range(start, len(plain))] == plain[start:]
    assert runs.last == plain[-1]


def test_equal_numbers_take_a_run_each() -> None:
    runs = Runs()
    for offset in range(10_000):
        runs.append(offset, 100)
    assert runs.encode() == ([0], [100])
    assert list(Runs().parts(5, 5)) == []


def test_the_numbers_of_settled_messages_are_kept() -> None:
    machine = Machine()
    log = machine.declare()
    for number in range(500):
        machine.publish(log, b"", priority=number % 2)
    machine.settle(log, "ack", *machine.lease(log, 500))
    machine.publish(log, b"", priority=7)
    log.forget_settled()
    assert log.priorities.encode() == ([500], [7])
    assert log.priorities.at(500) == 7


def test_the_numbers_of_what_another_group_still_needs_are_forgotten() -> None:
    machine = Machine()
    log = machine.declare()
    log.group(), log.group("slow")
    for priority in (1, 2, 3):
        machine.publish(log, b"", priority=priority)
    machine.settle(log, "ack", *machine.lease(log, 3))
    log.forget_settled()
    assert log.priorities.at(0) == 1
    assert machine.lease(log, 3, "slow") == [0, 1, 2]


# --- falling due ---


def test_delayed_and_retried_messages_come_in_another_order_than_they_fall_due() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1")
    machine.lease(log, 2)
    machine.publish(log, b"2", b"3", deliver_at=[NOW + 3 * SECOND_US, NOW + SECOND_US])
    machine.settle(log, "nack", 0, delay_us=4 * SECOND_US)
    machine.settle(log, "nack", 1, delay_us=2 * SECOND_US)
    machine.now_us += 5 * SECOND_US
    machine.publish(log, b"4")  # what was due before it was published goes before it
    assert machine.lease(log, 9) == [3, 1, 2, 0, 4]


def test_messages_due_at_one_moment_change_places() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0")
    machine.lease(log)
    machine.publish(log, b"1", b"2", deliver_at=NOW + SECOND_US)
    machine.settle(log, "nack", 0, delay_us=SECOND_US)
    machine.pass_time(1)
    assert machine.lease(log, 9) == [0, 1, 2]


def test_a_moment_before_the_due_time_is_late_enough() -> None:
    log = Machine().declare()
    log.group()
    log.delayed.add(NOW + 1, 0)
    log.priorities.append(0, 100)
    assert not log.fall_due(NOW)
    assert log.fall_due(NOW + 1)
    assert not log.fall_due(NOW + 1)


# --- counting ---


def test_what_was_purged_before_it_was_due_is_still_counted() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2", deliver_at=[NOW + SECOND_US, NOW + 2 * SECOND_US, None])
    machine.lease(log)
    machine.settle(log, "nack", 2)
    assert (log.delayed_count, log.group().retrying, log.depth) == (2, 1, 3)
    change = Change()
    assert machine.engine.purge(log, machine.now_us, change) == 3
    machine.done(change)
    assert (log.delayed_count, log.group().retrying, log.group().ready, log.depth) == (0, 0, 0, 0)
    twin = machine.restored()
    machine.publish(log, b"3", deliver_at=NOW + 3 * SECOND_US)
    assert log.delayed_count == 1
    machine.pass_time(60)
    assert (log.delayed_count, log.group().retrying, len(log.delayed)) == (0, 0, 0)
    assert machine.lease(log, 9) == [3]
    twin.pass_time(60)
    assert (twin.log().delayed_count, twin.log().group().retrying, twin.lease(twin.log(), 9)) == (0, 0, [])


def test_a_delayed_message_is_gone_for_all_when_one_group_dropped_it() -> None:
    machine = Machine()
    log = machine.declare()
    first, second = log.group("a"), log.group("b")
    machine.publish(log, b"0", deliver_at=NOW + SECOND_US)
    for group, left in ((first, 1), (second, 0)):
        change = Change()
        machine.engine.lose(log, group, [0], machine.now_us, change)
        machine.done(change)
        assert log.delayed_count == left
    machine.pass_time(1)
    assert (log.delayed_count, first.ready, second.ready) == (0, 0, 0)


def test_a_delayed_message_that_some_groups_dropped_is_counted_wrong_after_a_snapshot() -> None:
    machine = Machine()
    log = machine.declare()
    log.group("a"), log.group("b")
    machine.publish(log, b"0", deliver_at=NOW + SECOND_US)
    change = Change()
    machine.engine.lose(log, log.group("a"), [0], machine.now_us, change)
    machine.done(change)
    twin = machine.restored()
    change = Change()
    twin.engine.lose(twin.log(), twin.log().group("b"), [0], machine.now_us, change)
    assert twin.log().delayed_count == 0


def test_the_depth_is_that_of_a_group_which_caught_up() -> None:
    machine = Machine()
    log = machine.declare()
    assert log.depth == 0
    log.group("a"), log.group("b")
    machine.publish(log, b"0", b"1", b"2")
    machine.settle(log, "ack", *machine.lease(log, 2, "a"), group="a")
    assert log.depth == 3
    machine.settle(log, "ack", *machine.lease(log, 3, "b"), group="b")
    assert log.depth == 1


# --- more than one group ---


def test_a_message_is_released_before_every_group_settled_it() -> None:
    machine = Machine()
    log = machine.declare()
    log.group("a"), log.group("b")
    machine.publish(log, *[b""] * 6)
    machine.settle(log, "ack", *machine.lease(log, 4, "a"), group="a")
    assert log.settled_by_all(0, 6) == []
    got = machine.lease(log, 6, "b")
    machine.settle(log, "ack", got[1], got[2], got[5], group="b")
    assert log.settled_by_all(0, 6) == [range(1, 3)]
    assert log.settled_by_all(2, 9) == [range(2, 3)]
    assert [offset for _, offsets in machine.engine.released for offset in offsets] == [1, 2]


def test_a_log_without_a_group_has_settled_something() -> None:
    assert Log(1, "default", "q", Policy.of()).settled_by_all(0, 5) == []


def test_a_new_group_misses_what_others_still_have_or_gets_what_is_gone() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2", b"3", priority=[100, 5, 100, 100])
    machine.publish(log, b"4", deliver_at=NOW + SECOND_US)
    machine.settle(log, "ack", *machine.lease(log, 2))  # 1 and 0
    assert machine.lease(log, 9, "late") == [2, 3]
    machine.pass_time(1)
    assert machine.lease(log, 9, "late") == [4]


def test_a_new_group_gets_two_messages_of_a_key_at_once() -> None:
    machine = Machine()
    log = machine.declare(ordering="key")
    machine.publish(log, b"0", b"1", key=["k", "k"])
    assert machine.lease(log, 9, "late") == [0]


def test_what_is_meant_for_one_group_arrives_in_another() -> None:
    machine = Machine()
    log = machine.declare()
    log.group("a"), log.group("b")
    machine.publish(log, b"0", target_group="b")
    assert (machine.lease(log, 9, "a"), machine.lease(log, 9, "b")) == ([], [0])


# --- dedup ids and sizes ---


def test_a_batch_that_is_refused_is_remembered() -> None:
    machine = Machine()
    log = machine.declare(max_depth=1)
    with pytest.raises(Exception, match="limit"):
        machine.publish(log, b"0", b"1", dedup_id=["a", "b"])
    assert len(machine.publish(log, b"0", dedup_id=["a"])) == 1
    assert log.next_offset == 1


def test_a_repetition_within_a_batch_gets_an_id_of_its_own() -> None:
    machine = Machine()
    log = machine.declare()
    first = machine.publish(log, b"0", b"1", b"2", b"3", dedup_id=["a", None, "a", "b"])
    assert first[0] == first[2]
    assert log.next_offset == 3
    again = machine.publish(log, b"4", b"5", dedup_id=["b", "a"])
    assert again == [first[3], first[0]]
    assert log.next_offset == 3


def test_bytes_are_counted_after_their_message_is_gone() -> None:
    machine = Machine()
    log = machine.declare(max_bytes=100)
    machine.publish(log, b"123", b"4567", deliver_at=[None, NOW + SECOND_US])
    assert log.bytes == 7
    machine.settle(log, "ack", *machine.lease(log))
    assert log.bytes == 4
    assert machine.restored().log().bytes == 4
    machine.engine.purge(log, machine.now_us, Change())
    assert (log.bytes, log.sizes) == (0, {})


# --- moments ---


def test_the_next_moment_of_some_kind_is_missed() -> None:
    machine = Machine()
    log = machine.declare(visibility_timeout=50, expires=90)
    moments = []
    machine.publish(log, b"0")
    moments.append(log.next_us)
    machine.lease(log)
    moments.append(log.next_us)
    machine.publish(log, b"1", expires_at=NOW + 40 * SECOND_US)
    moments.append(log.next_us)
    machine.publish(log, b"2", deliver_at=NOW + 30 * SECOND_US)
    moments.append(log.next_us)
    machine.settle(log, "nack", 0, delay_us=20 * SECOND_US)
    moments.append(log.next_us)
    assert moments == [NOW + seconds * SECOND_US for seconds in (90, 50, 40, 30, 20)]
    log.group().members["c"] = Member(NOW)
    assert log.unused_us is None


@pytest.mark.parametrize(
    "policy",
    [{"ttl": 5}, {"max_depth": 5}, {"max_bytes": 5}, {"expires": 5}, {"ordering": "key"},
     {"delivery": "at-most-once"}, {"delivery": "exactly-once"}, {"single_active": True}],
)  # fmt: skip
def test_a_policy_that_needs_more_is_plain(policy: dict[str, Any]) -> None:
    assert is_plain(Policy.of())
    assert not is_plain(Policy.of(**policy))


def test_the_expiry_of_what_was_settled_long_ago_is_kept() -> None:
    machine = Machine()
    log = machine.declare()
    for number in range(5 * FEW_KEPT):
        machine.publish(log, b"x", expires_at=NOW + 3600 * SECOND_US)
        machine.lease(log)
        machine.settle(log, "ack", number)
    assert len(log.expiries) <= FEW_KEPT + 2
    machine.publish(log, b"y", expires_at=NOW + 10 * SECOND_US)
    machine.pass_time(11)
    assert log.depth == 0
