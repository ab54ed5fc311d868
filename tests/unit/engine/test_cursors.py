"""Groups that come, go, and go elsewhere: what they get, what is recorded of them, and that it is the same after a replay or a snapshot."""

from __future__ import annotations

import pytest

from penstock.clock import SECOND_US
from penstock.engine import cursors
from penstock.engine.change import Change
from penstock.engine.events import Action, Declared, Event
from penstock.engine.group import Group, Terms
from penstock.engine.log import Log
from penstock.errors import BatchTooLarge
from penstock.policy import Policy
from tests.unit.engine.specimen import NOW, Machine


def topic() -> tuple[Machine, Log]:
    machine, change = Machine(), Change()
    made = machine.engine.declare("default", "q", Policy.of(), machine.now_us, change, "topic")
    machine.done(change)
    return machine, made


def come(
    machine: Machine,
    log: Log,
    name: str,
    offset: int = 0,
    terms: Terms | None = None,
    *,
    durable: bool = True,
) -> Group:
    change = Change()
    begin = cursors.beginning(machine.engine, log, name, offset, terms or Terms())
    found = cursors.subscribe(machine.engine, log, name, begin, machine.now_us, change, durable=durable)
    machine.done(change)
    return found


def go(machine: Machine, log: Log, group: Group) -> None:
    change = Change()
    cursors.unsubscribe(machine.engine, log, group, machine.now_us, change)
    machine.done(change)


def seek(machine: Machine, log: Log, group: Group, offset: int) -> None:
    change = Change()
    begin = cursors.beginning(machine.engine, log, group.name, offset, group.terms)
    cursors.seek(machine.engine, log, group, begin, machine.now_us, change)
    machine.done(change)


def machines(machine: Machine) -> list[Machine]:
    """This one, and two that take over from it."""
    return [machine, machine.replayed(), machine.restored()]


def said(machine: Machine) -> list[tuple[Action, str]]:
    events: list[Event] = [event for _, event in machine.events]
    return [(Action(e.action), e.name) for e in events if isinstance(e, Declared) and e.name != "q"]


# --- coming ---


def test_a_group_gets_what_was_settled_by_all_before_it_came() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2")
    machine.settle(log, "ack", *machine.lease(log, 1))
    come(machine, log, "g")
    for one in machines(machine):
        assert one.lease(one.log(), 9, "g") == [1, 2]
        assert sorted(one.log().groups) == ["default", "g"]


def test_a_group_gets_less_than_is_stored() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=3600)
    machine.publish(log, b"0", b"1", b"2")
    machine.settle(log, "ack", *machine.lease(log, 9))
    come(machine, log, "all")
    come(machine, log, "later", 2)
    come(machine, log, "end", 3)
    for one in machines(machine):
        assert [one.lease(one.log(), 9, name) for name in ("all", "later", "end")] == [[0, 1, 2], [2], []]


def test_a_group_that_comes_does_not_wait_for_what_is_delayed() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", deliver_at=[NOW + 10 * SECOND_US, None])
    come(machine, log, "g")
    for one in machines(machine):
        assert one.lease(one.log(), 9, "g") == [1]
        one.pass_time(10)
        assert one.lease(one.log(), 9, "g") == [0]


def test_a_group_forgets_priorities() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", priority=200)
    machine.publish(log, b"1", priority=5)
    come(machine, log, "g")
    for one in machines(machine):
        assert one.lease(one.log(), 9, "g") == [1, 0]


def test_a_group_forgets_keys_that_nobody_else_remembers() -> None:
    machine = Machine()
    log = machine.declare(ordering="key", retain_seconds=3600)
    machine.publish(log, b"0", b"1", b"2", key=["k", "k", None])
    while found := machine.lease(log, 9):
        machine.settle(log, "ack", *found)
    come(machine, log, "g")
    for one in machines(machine):
        there = one.log()
        assert sorted(one.lease(there, 9, "g")) == [0, 2], "the second of its key waits"
        one.settle(there, "ack", 0, group="g")
        assert one.lease(there, 9, "g") == [1]


def test_terms_are_forgotten() -> None:
    machine, log = topic()
    come(machine, log, "g", terms=Terms("key = 'k'", "least-busy"))
    for one in machines(machine):
        assert one.log().groups["g"].terms == Terms("key = 'k'", "least-busy")
        assert one.log().groups["g"].filter is not None


def test_too_much_to_begin_with_changes_something(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    log = machine.declare(ordering="key")
    machine.publish(log, *[b"x"] * 50, key=[f"key-{n}" for n in range(50)])
    monkeypatch.setattr(cursors, "FRAME_BYTES_MAX", 200)
    before = machine.engine.encode()
    with pytest.raises(BatchTooLarge, match="begin at a later offset"):
        cursors.beginning(machine.engine, log, "brief", 0, Terms())
    assert machine.engine.encode() == before
    assert cursors.beginning(machine.engine, log, "brief", 49, Terms()).cursor.keys == {49: "key-49"}


def test_a_beginning_takes_something() -> None:
    machine = Machine()
    log = machine.declare(ordering="key")
    machine.publish(log, b"0", b"1", key=["k", "k"])
    before = machine.engine.encode()
    cursors.beginning(machine.engine, log, "brief", 0, Terms())
    assert machine.engine.encode() == before


def test_an_ephemeral_group_is_recorded() -> None:
    machine, log = topic()
    group = come(machine, log, "e", durable=False)
    machine.publish(log, b"0")
    machine.settle(log, "ack", *machine.lease(log, 1, "e"), group="e")
    go(machine, log, group)
    assert said(machine) == []
    assert machine.replayed().log().groups == {}


# --- going ---


def test_a_group_that_went_comes_back_or_holds_messages() -> None:
    machine, log = topic()
    staying, leaving = come(machine, log, "stays"), come(machine, log, "leaves")
    machine.publish(log, b"0", b"1")
    machine.settle(log, "ack", *machine.lease(log, 1, staying.name), group=staying.name)
    machine.engine.released.clear()
    go(machine, log, leaving)
    assert [(one.name, list(offsets)) for one, offsets in machine.engine.released] == [("q", [0])]
    for one in machines(machine):
        assert list(one.log().groups) == ["stays"]
        assert one.log().depth == 1


def test_the_last_subscription_leaves_messages_behind() -> None:
    machine, log = topic()
    group = come(machine, log, "g")
    machine.publish(log, b"0", b"1", deliver_at=[None, NOW + 10 * SECOND_US])
    go(machine, log, group)
    come(machine, log, "again")
    for one in machines(machine):
        one.pass_time(10)
        assert one.lease(one.log(), 9, "again") == []
        assert (one.log().depth, one.log().delayed_count) == (0, 0)


# --- going elsewhere ---


def test_a_group_that_goes_back_keeps_leases_or_attempts() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=3600, max_attempts=2)
    machine.publish(log, b"0", b"1", b"2")
    machine.settle(log, "ack", *machine.lease(log, 1))
    machine.settle(log, "nack", *machine.lease(log, 1), delay_us=0)
    machine.lease(log, 1)
    seek(machine, log, log.group(), 0)
    assert not log.group().leases
    for one in machines(machine):
        grant = one.grant(one.log(), 9)
        assert grant is not None
        assert (list(grant.offsets), grant.attempts) == ([0, 1, 2], 1)


def test_a_group_that_goes_forward_leaves_something_behind() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2")
    machine.engine.released.clear()
    seek(machine, log, log.group(), 2)
    assert [list(offsets) for _, offsets in machine.engine.released] == [[0, 1]]
    for one in machines(machine):
        assert one.lease(one.log(), 9) == [2]
        assert one.log().depth == 1


def test_what_comes_after_a_seek_is_lost() -> None:
    machine = Machine()
    log = machine.declare(retain_seconds=3600)
    machine.publish(log, b"0")
    seek(machine, log, log.group(), 1)
    machine.publish(log, b"1")
    for one in machines(machine):
        assert one.lease(one.log(), 9) == [1]


# --- consumers ---


def test_two_consumers_have_one_name() -> None:
    group = Group("g")
    names = [cursors.attach(group, "ann", NOW, None) for _ in range(3)]
    assert names == ["ann", "ann~2", "ann~3"]
    del group.members["ann~2"]
    assert cursors.attach(group, "ann", NOW, None) == "ann~2"
    group.retired["ann~4"] = None  # it may still settle what it had
    assert cursors.attach(group, "ann", NOW, None) == "ann~5"


def test_a_consumer_that_goes_keeps_its_messages() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1")
    group = log.group()
    cursors.attach(group, "ann", NOW, None)
    cursors.attach(group, "bob", NOW, None)
    assert (machine.lease(log, 1, consumer="ann"), machine.lease(log, 1, consumer="bob")) == ([0], [1])
    change = Change()
    cursors.detach(machine.engine, log, group, "ann", machine.now_us, change)
    machine.done(change)
    assert list(group.members) == ["bob"]
    grant = machine.grant(log, 9)
    assert grant is not None
    assert (list(grant.offsets), grant.attempts) == ([0], [2])


def test_an_ephemeral_group_outlives_its_last_consumer_or_ends_with_the_first() -> None:
    machine, log = topic()
    group = come(machine, log, "e", durable=False)
    for name in ("ann", "bob"):
        cursors.attach(group, name, NOW, None)
    for name, left in (("ann", ["e"]), ("bob", [])):
        change = Change()
        cursors.detach(machine.engine, log, group, name, machine.now_us, change)
        machine.done(change)
        assert list(log.groups) == left


def test_a_silent_consumer_lives_or_a_quiet_one_dies() -> None:
    machine = Machine()
    log = machine.declare(visibility_timeout=None)
    machine.publish(log, b"0", b"1", b"2")
    group = log.group()
    for name, silence_us in (("silent", 10 * SECOND_US), ("heard", 10 * SECOND_US), ("quiet", None)):
        cursors.attach(group, name, NOW, silence_us)
        machine.lease(log, 1, consumer=name)
    machine.engine.set_alarm(log)
    machine.pass_time(9)
    cursors.heard(group, "heard", machine.now_us)
    cursors.heard(group, "nobody", machine.now_us)
    cursors.heard(group, None, machine.now_us)
    machine.pass_time(0.999999)
    assert list(group.members) == ["silent", "heard", "quiet"]
    machine.pass_time(0.000001)
    assert list(group.members) == ["heard", "quiet"]
    assert machine.lease(log, 9) == [0]
    machine.pass_time(9)
    assert list(group.members) == ["quiet"]


def test_an_ephemeral_group_that_ended_goes_on_ending_leases() -> None:
    machine = Machine()
    log = machine.declare(visibility_timeout=5, max_attempts=1)
    log.group()
    group = cursors.subscribe(
        machine.engine, log, "brief", cursors.beginning(machine.engine, log, "brief", 0, Terms()), machine.now_us, Change(),
        durable=False,
    )  # fmt: skip
    cursors.attach(group, "silent", machine.now_us, 5 * SECOND_US)
    machine.publish(log, b"x")
    machine.lease(log, 1, "brief")
    machine.pass_time(6)
    assert list(log.groups) == ["default"]
    assert (log.group().ready, machine.engine.find("default", "q.dlq")) == (1, None)
