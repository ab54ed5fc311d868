"""What is kept of what was settled: for its time, for its bytes, for readers who wait; nothing too short, and nothing for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import SECOND_US
from penstock.engine import retention
from penstock.engine.change import Change
from penstock.engine.events import Action, Declared, Positioned
from penstock.engine.log import NOTHING_KEPT, Log, Position
from penstock.policy import altered
from tests.unit.engine.specimen import Machine


def kept(log: Log) -> list[int]:
    """Which offsets can still be read."""
    return [offset for gap in log.unavailable(0, log.next_offset).gaps(0, log.next_offset) for offset in gap]


def consume(machine: Machine, log: Log, count: int = 99) -> None:
    machine.settle(log, "ack", *machine.lease(log, count))


def hold(machine: Machine, log: Log, name: str, offset: int) -> None:
    position = Position(offset, True)
    body = retention.hold(log, position)
    log.readers[name] = position
    change = Change()
    change.events.append(Declared(log.number, Action.READER, name, body, machine.now_us))
    retention.update(machine.engine, log, machine.now_us)
    machine.done(change)


def commit(machine: Machine, log: Log, name: str, offset: int) -> None:
    log.readers[name].offset = offset
    change = Change()
    change.events.append(Positioned(log.number, name, offset, machine.now_us))
    retention.update(machine.engine, log, machine.now_us)
    machine.done(change)


def machines(machine: Machine) -> list[Machine]:
    """This one, and two that take over from it."""
    return [machine, machine.replayed(), machine.restored()]


def alter(machine: Machine, log: Log, **policy: Any) -> None:
    change = Change()
    machine.engine.alter(log, altered(log.policy, **policy), machine.now_us, change)
    machine.done(change)


# --- for a time ---


def test_message_is_kept_until_its_time_is_over_to_the_microsecond() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=60)
    machine.publish(log, b"0")
    consume(machine, log)
    for late_us, expected in ((0, [0]), (1, [])):
        retention.update(machine.engine, log, machine.now_us + 60 * SECOND_US + late_us)
        assert kept(log) == expected


def test_without_retention_something_is_kept() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1")
    consume(machine, log, 1)
    for one in machines(machine):
        assert kept(one.log()) == [1]
        assert one.log().kept_from == NOTHING_KEPT


def test_a_settled_message_is_dropped_before_its_time_or_stays_after_it() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=60)
    for _ in range(3):
        machine.publish(log, b"x")
        consume(machine, log)
        machine.pass_time(10)
    machine.pass_time(30)  # the first is 60 s old
    assert kept(log) == [0, 1, 2]
    machine.pass_time(0.000001)
    for one in machines(machine):
        assert kept(one.log()) == [1, 2]
    machine.pass_time(20)
    for one in machines(machine):
        assert kept(one.log()) == []


def test_nobody_wakes_when_a_message_is_too_old() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=60)
    machine.publish(log, b"x")
    consume(machine, log)
    assert machine.engine.next_us is not None
    assert machine.engine.next_us <= machine.now_us + 60 * SECOND_US + 1
    machine.pass_time(61)
    assert machine.engine.next_us is None or machine.engine.next_us > machine.now_us


def test_an_unsettled_message_is_dropped_for_its_age() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=60, retain_bytes=1)
    machine.publish(log, b"0", b"1", b"2", b"3")
    assert machine.lease(log, 1) == [0]
    machine.settle(log, "ack", *machine.lease(log, 1))
    machine.pass_time(1000)
    for one in machines(machine):
        assert kept(one.log()) == [0, 2, 3]


def test_what_is_settled_late_is_kept_from_then_on() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=60)
    machine.publish(log, b"0")
    machine.pass_time(100)
    machine.publish(log, b"1")
    consume(machine, log)
    assert kept(log) == [1], "its age counts, not when it was settled"


def test_what_is_dropped_is_not_released_or_twice() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=60)
    machine.publish(log, b"0", b"1")
    machine.settle(log, "ack", *machine.lease(log, 1))
    machine.engine.released.clear()
    machine.pass_time(61)
    machine.settle(log, "ack", *machine.lease(log, 1))
    released = [offset for _, offsets in machine.engine.released for offset in offsets]
    assert released == [0, 1]


# --- for bytes ---


def test_fewer_or_many_more_bytes_are_kept() -> None:
    machine = Machine()
    log = machine.declare(retain_bytes=10)
    for n in range(20):
        machine.publish(log, b"x" * (n % 4 + 1))
        consume(machine, log)
        stored = kept(log)
        whole = sum(o % 4 + 1 for o in range(n + 1))
        assert sum(o % 4 + 1 for o in stored) >= min(10, whole)
        assert sum(o % 4 + 1 for o in stored[1:]) < 10, "one less would do as well"


def test_bytes_and_time_keep_what_only_one_of_them_says() -> None:
    machine = Machine()
    log = machine.declare(retain_bytes=2, retain_seconds=60)
    for _ in range(3):
        machine.publish(log, b"x")
        consume(machine, log)
    assert kept(log) == [1, 2]
    machine.pass_time(61)
    assert kept(log) == []


# --- for readers ---


def test_a_reader_that_asked_to_be_waited_for_finds_nothing() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2")
    hold(machine, log, "r", 0)
    consume(machine, log)
    machine.pass_time(10_000)
    for one in machines(machine):
        assert kept(one.log()) == [0, 1, 2]
    commit(machine, log, "r", 2)
    for one in machines(machine):
        assert kept(one.log()) == [2]


def test_the_fastest_reader_says_what_is_kept() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2")
    hold(machine, log, "fast", 2)
    hold(machine, log, "slow", 1)
    consume(machine, log)
    assert kept(log) == [1, 2]
    commit(machine, log, "slow", 3)
    for one in machines(machine):
        assert kept(one.log()) == [2]


def test_a_reader_that_goes_back_gets_what_is_gone() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2")
    hold(machine, log, "r", 2)
    consume(machine, log)
    commit(machine, log, "r", 0)
    for one in machines(machine):
        assert kept(one.log()) == [2]


def test_a_reader_that_does_not_hold_keeps_something() -> None:
    machine = Machine()
    log = machine.declare()
    log.readers["r"] = Position(0)
    machine.publish(log, b"0")
    consume(machine, log)
    assert kept(log) == []


def test_until_archived_drops_before_the_archive_came() -> None:
    machine = Machine()
    log = machine.declare(retain="until-archived")
    machine.publish(log, b"0", b"1")
    consume(machine, log)
    for one in machines(machine):
        assert kept(one.log()) == [0, 1]
    hold(machine, log, retention.ARCHIVE, 1)
    for one in machines(machine):
        assert kept(one.log()) == [1]


def test_until_archived_waits_for_no_reader_that_does_not_hold() -> None:
    machine = Machine()
    log = machine.declare(retain="until-archived")
    machine.publish(log, b"0", b"1")
    consume(machine, log)
    log.readers["r"], log.readers[retention.ARCHIVE] = Position(0), Position(0, True)
    commit(machine, log, retention.ARCHIVE, 1)
    assert kept(log) == [1]


def test_until_archived_drops_what_an_archive_has_not_that_asked_for_nothing() -> None:
    """It was there before the policy was, and had no reason to be waited for."""
    machine = Machine()
    log = machine.declare()
    log.readers[retention.ARCHIVE] = Position(0)
    alter(machine, log, retain="until-archived")
    machine.publish(log, b"0", b"1")
    consume(machine, log)
    assert kept(log) == [0, 1]


# --- another policy ---


def test_a_shorter_time_is_heeded_later_or_a_longer_one_brings_something_back() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=1000)
    machine.publish(log, b"0")
    consume(machine, log)
    machine.pass_time(100)
    machine.publish(log, b"1")
    consume(machine, log)
    alter(machine, log, retain_seconds=50)
    assert kept(log) == [1]
    alter(machine, log, retain_seconds=5000)
    for one in machines(machine):
        assert kept(one.log()) == [1]


@pytest.mark.parametrize("policy", [{"retain_seconds": None}, {"retain_bytes": 1, "retain_seconds": None}])
def test_a_policy_that_keeps_less_keeps_on(policy: dict[str, Any]) -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=1000)
    machine.publish(log, b"0", b"1")
    machine.publish(log, b"2")
    machine.settle(log, "ack", *machine.lease(log, 2))
    alter(machine, log, **policy)
    for one in machines(machine):
        assert kept(one.log()) == [2]


def test_what_nothing_kept_is_brought_back_by_a_policy() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1")
    machine.settle(log, "ack", *machine.lease(log, 1))
    alter(machine, log, retain_seconds=1000)
    consume(machine, log)
    for one in machines(machine):
        assert kept(one.log()) == [1]


# --- all of it ---


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["publish", "consume", "wait"]), st.integers(1, 40)), max_size=30
    ),
    seconds=st.integers(1, 100),
)
def test_something_young_is_dropped_or_something_old_stays(
    steps: list[tuple[str, int]], seconds: int
) -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=seconds)
    times: list[int] = []
    settled: set[int] = set()
    for what, n in steps:
        if what == "publish":
            machine.publish(log, *[b"x"] * n)
            times += [machine.now_us] * n
        elif what == "consume":
            offsets = machine.lease(log, n)
            settled |= set(offsets)
            if offsets:
                machine.settle(log, "ack", *offsets)
        else:
            machine.pass_time(n)
        oldest_us = machine.now_us - seconds * SECOND_US
        wanted = [o for o, time_us in enumerate(times) if o not in settled or time_us >= oldest_us]
        assert kept(log) == wanted
    for one in machines(machine):
        assert kept(one.log()) == kept(log)
