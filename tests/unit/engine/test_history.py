"""What was recorded, taken in again, gives what there was: as a snapshot of it does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import SECOND_US
from penstock.engine.change import Change
from penstock.engine.engine import Engine
from penstock.engine.events import Leased, Outcome, Published, Settled
from penstock.engine.history import replay
from penstock.engine.log import Log
from penstock.model.batch import Batch
from tests.unit.engine.specimen import NOW, Machine


def told(machine: Machine) -> Any:
    """Everything that can be seen of a queue, by taking it apart."""
    log = machine.log()
    group = log.group()
    seen: list[Any] = [log.depth, log.next_offset, log.delayed_count, group.ready, group.retrying, log.bytes]
    dead = machine.engine.find("default", "q.dlq")
    seen.append(None if dead is None else dead.depth)
    for _ in range(4):
        grant = machine.grant(log, 1000)
        seen.append(grant and (list(grant.offsets), grant.attempts))
        machine.pass_time(100)
    return seen


def opened_both_ways(machine: Machine) -> Any:
    """What is seen after a restart, which must not depend on how it was opened."""
    replayed, restored = told(machine.replayed()), told(machine.restored())
    assert replayed == restored
    return replayed


# --- what left no trace ---


def test_an_attempt_whose_lease_ended_by_itself_is_not_counted() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=9)
    machine.publish(log, b"0", b"1")
    machine.lease(log)
    machine.pass_time(31)
    machine.lease(log, 2)
    twin = machine.replayed()
    grant = twin.grant(twin.log(), 2)
    assert grant is not None
    assert (list(grant.offsets), grant.attempts) == ([0, 1], [3, 2])
    opened_both_ways(machine)


def test_a_message_that_was_leased_twice_is_in_two_places() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=None)
    machine.publish(log, b"0")
    for _ in range(3):
        machine.lease(log)
        machine.pass_time(31)
    twin = machine.replayed()
    assert twin.log().group().ready == 1
    assert twin.lease(twin.log(), 9) == [0]


def test_a_clock_that_was_set_back_has_what_was_due_go_behind_what_came_later() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"delayed", deliver_at=NOW + 5 * SECOND_US)
    machine.pass_time(10)
    machine.publish(log, b"1")
    machine.publish(log, b"2", b"3")
    twin = Machine()
    for _, event in machine.events:
        replay(twin.engine, event, NOW - 3600 * SECOND_US)  # what the wall clock said
    assert twin.log().group().ready == 4
    assert twin.lease(twin.log(), 9) == machine.lease(log, 9) == [0, 1, 2, 3]


def test_the_lease_of_a_delayed_message_is_forgotten_if_the_clock_of_its_frame_is_behind() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=1)
    machine.publish(log, b"0", deliver_at=NOW + SECOND_US)
    machine.pass_time(5)
    machine.lease(log)
    machine.events = [(NOW, event) for _, event in machine.events]
    twin = machine.replayed()
    assert twin.log("q.dlq").depth == 1


def test_a_run_of_messages_is_taken_for_one_priority() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=1)
    machine.publish(log, b"0", b"1", b"2", priority=[1, 100, 1])
    machine.lease(log, 3)
    twin = machine.replayed()
    assert (twin.log().depth, twin.log("q.dlq").depth) == (0, 3)


@pytest.mark.parametrize("outcome", [Outcome.ACKED, Outcome.EXPIRED, Outcome.PURGED, Outcome.DROPPED])
def test_settlements_in_another_order_are_lost(outcome: Outcome) -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, *[b""] * 5, priority=[1, 2, 1, 2, 1])
    settled = Settled(log.number, "default", [4, 1, 0], outcome, None, None, None, None, NOW)
    replay(machine.engine, settled, NOW)
    assert log.group().settled.encode() == [0, 2, 4, 5]
    assert machine.lease(log, 9) == [2, 3]


def test_a_settlement_that_is_told_twice_frees_a_key_twice() -> None:
    machine = Machine()
    log = machine.declare(ordering="key")
    machine.publish(log, b"0", b"1", b"2", key=["k", "k", "k"])
    settled = Settled(log.number, "default", [0], Outcome.ACKED, None, None, None, None, NOW)
    replay(machine.engine, settled, NOW)
    replay(machine.engine, settled, NOW)
    assert machine.lease(log, 9) == [1]


def test_a_retry_of_what_nobody_had_makes_a_second_one() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0")
    for outcome in (Outcome.RETRY, Outcome.RETURNED):
        replay(machine.engine, Settled(log.number, "default", [0], outcome, 1, NOW, None, None, NOW), NOW)
    machine.pass_time(1)
    assert machine.lease(log, 9) == [0]


def test_offsets_that_were_cleaned_are_waited_for() -> None:
    machine = Machine()
    log = machine.declare()
    batch = Batch([b"x"], [9], NOW, 100)
    replay(machine.engine, Published(log.number, 7, batch), NOW)
    assert (log.depth, log.next_offset, machine.engine.last_id) == (1, 8, 9)
    assert machine.lease(log, 9) == [7]


def test_what_is_said_of_a_deleted_log_stops_the_replay() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0")
    machine.lease(log)
    change = Change()
    machine.engine.delete(log, machine.now_us, change)
    machine.done(change)
    # The cleaner may drop the declaration before it drops the rest.
    machine.events = [entry for entry in machine.events if not hasattr(entry[1], "action")]
    assert machine.replayed().engine.logs == {}


def test_a_second_declaration_of_a_log_begins_it_anew() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0")
    twin = machine.replayed()
    replay(twin.engine, machine.events[0][1], NOW)
    assert twin.log().depth == 1


def test_the_name_of_a_deleted_log_gives_its_messages_to_the_next() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0")
    change = Change()
    machine.engine.delete(log, machine.now_us, change)
    machine.done(change)
    fresh = machine.declare()
    assert fresh.number != log.number
    machine.publish(fresh, b"1", b"2")
    assert machine.replayed().log().depth == machine.restored().log().depth == 2


def test_a_leased_event_about_what_is_settled_brings_it_back() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0")
    machine.settle(log, "ack", *machine.lease(log))
    replay(machine.engine, Leased(log.number, "default", [0], 1, None, NOW), NOW)
    assert len(log.group().leases) == 0


# --- any program ---

STEP = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4), st.sampled_from([1, 100])),
    st.tuples(st.just("mixed"), st.lists(st.sampled_from([1, 100]), min_size=2, max_size=4), st.just(0)),
    st.tuples(st.just("delayed"), st.integers(1, 3), st.integers(1, 40)),
    st.tuples(st.just("mortal"), st.integers(1, 3), st.integers(1, 60)),
    st.tuples(st.just("lease"), st.integers(1, 4), st.just(0)),
    st.tuples(
        st.sampled_from(["ack", "nack", "reject", "give_back", "extend"]),
        st.integers(0, 9),
        st.integers(1, 3),
    ),
    st.tuples(st.just("pass"), st.sampled_from([1, 9, 11, 31, 60]), st.just(0)),
    st.tuples(st.just("purge"), st.just(0), st.just(0)),
)
POLICIES = st.sampled_from(
    [{}, {"max_attempts": 1}, {"ordering": "key"}, {"on_expire": "dead-letter"}, {"max_bytes": 1 << 20}]
)


def perform(machine: Machine, log: Log, step: tuple[str, Any, int]) -> None:
    what, first, second = step
    now_us = machine.now_us
    keys = ["a", "b", None, "a"]
    if what == "publish":
        machine.publish(log, *[b"x"] * first, priority=second, key=keys[:first])
    elif what == "mixed":
        machine.publish(log, *[b"y"] * len(first), priority=first)
    elif what == "delayed":
        machine.publish(log, *[b"z"] * first, deliver_at=now_us + second * SECOND_US, key=keys[:first])
    elif what == "mortal":
        machine.publish(log, *[b"m"] * first, expires_at=now_us + second * SECOND_US)
    elif what == "lease":
        machine.lease(log, first)
    elif what == "pass":
        machine.pass_time(first)
    elif what == "purge":
        change = Change()
        machine.engine.purge(log, now_us, change)
        machine.done(change)
    else:
        held = log.group().leases.offsets()
        some = held[first % len(held) :][:second] if held else []
        if some and what == "extend":
            numbers = [log.group().leases.number_of(offset) for offset in some]
            machine.engine.extend(log, log.group(), some, numbers, now_us + second * 20 * SECOND_US)
        elif some:
            machine.settle(log, what, *some)


@settings(max_examples=150, deadline=None)
@given(POLICIES, st.lists(STEP, max_size=30))
def test_replaying_and_restoring_give_two_queues(
    policy: dict[str, Any], steps: list[tuple[str, Any, int]]
) -> None:
    machine = Machine()
    log = machine.declare(**policy)
    for step in steps:
        perform(machine, log, step)
    opened_both_ways(machine)


@settings(max_examples=60, deadline=None)
@given(POLICIES, st.lists(STEP, max_size=20), st.lists(STEP, max_size=20))
def test_a_snapshot_in_the_middle_and_what_came_after_give_another_queue(
    policy: dict[str, Any], before: list[tuple[str, Any, int]], after: list[tuple[str, Any, int]]
) -> None:
    machine = Machine()
    log = machine.declare(**policy)
    for step in before:
        perform(machine, log, step)
    state, known = machine.engine.encode(), len(machine.events)
    for step in after:
        perform(machine, log, step)
    twin = Machine(machine.events)
    twin.engine.restore(state)
    for time_us, event in machine.events[known:]:
        replay(twin.engine, event, time_us)
    assert told(twin._opened(machine)) == told(machine.restored())


def test_an_engine_that_is_restored_gives_other_bytes() -> None:
    machine = Machine()
    log = machine.declare(ordering="key")
    for step in (("publish", 4, 1), ("delayed", 3, 40), ("mortal", 2, 60), ("lease", 2, 0), ("nack", 0, 1)):
        perform(machine, log, step)
    data = machine.engine.encode()
    twin = Engine(seed=0, fetch=lambda *_: [], take_ids=lambda _n: [], make_room=lambda _n, _settling: None)
    twin.restore(data)
    assert twin.encode() == data
