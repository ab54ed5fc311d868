"""Commands change everything they say or nothing, and what happens by itself comes in units of a bounded size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.clock import SECOND_US
from penstock.engine import dead as dead_letters
from penstock.engine import engine as engines
from penstock.engine.change import Change
from penstock.engine.engine import Engine
from penstock.engine.events import Leased, Outcome, Published, Settled
from penstock.engine.log import Log
from penstock.errors import (
    CorruptJournal,
    DiskFull,
    InvalidArgument,
    LeaseLost,
    MessageTooLarge,
    PenstockError,
    QueueFull,
    WrongKind,
)
from penstock.model.batch import Batch
from tests.unit.engine.specimen import NOW, Machine

# --- a refused command ---


def _nack_foreign(machine: Machine, log: Log) -> None:
    machine.engine.nack(log, log.group(), [0, 2], [1, 99], None, None, NOW, Change())


def _ack_unknown(machine: Machine, log: Log) -> None:
    machine.engine.ack(log, log.group(), [0, 50], [1, 1], NOW, Change())


def _reject_on_a_full_disk(machine: Machine, log: Log) -> None:
    machine.room = False
    machine.settle(log, "reject", 0, 2)


def _extend_foreign(machine: Machine, log: Log) -> None:
    machine.engine.extend(log, log.group(), [0, 2], [1, 99], NOW + 1)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (lambda machine, log: machine.publish(log, b"x" * 11), MessageTooLarge),
        (lambda machine, log: machine.publish(log, *[b"x"] * 6), QueueFull),
        (_nack_foreign, LeaseLost),
        (_ack_unknown, LeaseLost),
        (_extend_foreign, LeaseLost),
        (_reject_on_a_full_disk, DiskFull),
    ],
)
def test_a_refused_command_changes_something(
    command: Callable[[Machine, Log], object], error: type[PenstockError]
) -> None:
    machine = Machine()
    log = machine.declare(max_depth=8, max_message_bytes=10)
    machine.publish(log, b"0", b"1", b"2", priority=[1, 2, 1])
    machine.lease(log, 2)
    machine.publish(log, b"3", dedup_id=["a"])
    before, events = machine.engine.encode(), len(machine.events)
    with pytest.raises(error):
        command(machine, log)
    assert machine.engine.encode() == before
    assert len(machine.events) == events


def test_an_exactly_once_batch_with_one_id_missing_is_taken_in_part() -> None:
    machine = Machine()
    log = machine.declare(delivery="exactly-once")
    before = machine.engine.encode()
    for dedup_id in (None, ["a", None]):
        with pytest.raises(InvalidArgument):
            machine.publish(log, b"0", b"1", dedup_id=dedup_id)
    assert machine.engine.encode() == before


# --- arriving ---


def test_a_message_is_leased_before_it_is_durable() -> None:
    machine = Machine()
    log = machine.declare()
    change = Change()
    machine.engine.publish(log, Batch([b"0"], [1], NOW, 100, size=1), NOW, change)
    assert (machine.lease(log), log.depth) == ([], 1)
    machine.done(change)
    assert machine.lease(log) == [0]


def test_what_arrives_in_a_deleted_log_breaks_the_others() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0")
    change = Change()
    machine.engine.delete(log, NOW, change)
    event = next(event for _, event in machine.events if isinstance(event, Published))
    machine.engine.arrive([(log, 1, event.batch)], NOW)
    assert log not in machine.engine.stirred
    assert machine.engine.find("default", "q") is None


def test_a_batch_of_one_priority_takes_a_piece_for_each_message() -> None:
    machine = Machine()
    log = machine.declare()
    for _ in range(50):
        machine.publish(log, *[b""] * 20)
    assert log.group().lanes.encode() == [[100, 1000, 0, 0, 1000]]


# --- leasing ---


def test_numbers_of_an_earlier_owner_are_used_again() -> None:
    machine = Machine()
    machine.engine.begin_epoch(3)
    log = machine.declare()
    machine.publish(log, b"0", b"1")
    first, second = machine.grant(log), machine.grant(log)
    assert first is not None and second is not None  # noqa: PT018
    assert [first.number >> engines.LEASE_NUMBER_BITS, second.number - first.number] == [3, 1]


def test_what_is_settled_when_it_is_handed_out_is_recorded_in_no_order() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2", priority=[3, 2, 1])
    grant = machine.grant(log, 3, keep=False)
    assert grant is not None
    assert (grant.number, list(grant.offsets)) == (0, [2, 1, 0])
    settled = machine.events[-1][1]
    assert isinstance(settled, Settled)
    assert (list(settled.offsets), settled.outcome, log.depth) == ([0, 1, 2], Outcome.ACKED, 0)


def test_nothing_ready_uses_a_number() -> None:
    machine = Machine()
    log = machine.declare()
    assert machine.grant(log) is None
    assert not any(isinstance(event, Leased) for _, event in machine.events)
    assert machine.engine._lease_number == 0


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "give_back"])
def test_a_message_that_is_named_twice_is_settled_twice(how: str) -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1")
    machine.lease(log, 2)
    machine.settle(log, how, 1, 0, 1)
    group = log.group()
    assert len(group.leases) == 0
    assert group.ready + group.retrying + len(group.settled) == 2
    assert group.tally.get(1) <= 1


# --- by itself ---


def test_ten_thousand_idle_logs_are_looked_at() -> None:
    machine = Machine()
    logs = [machine.declare(f"q{number}") for number in range(50)]
    for log in logs:
        machine.publish(log, b"0")
        machine.settle(log, "ack", *machine.lease(log))
    assert machine.engine.next_us == NOW + 30 * SECOND_US
    machine.pass_time(31)
    assert machine.engine.next_us is None


def test_alarms_pile_up() -> None:
    machine = Machine()
    log = machine.declare()
    for _ in range(2000):
        machine.publish(log, b"0")
        machine.settle(log, "ack", *machine.lease(log))
        machine.pass_time(0.01)
    assert len(machine.engine._alarms) <= 2
    assert len(log.group().leases._deadlines) <= 2000


def test_an_extended_lease_ends_at_its_old_deadline() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1")
    machine.lease(log, 2)
    numbers = [log.group().leases.number_of(0)]
    machine.engine.extend(log, log.group(), [0], numbers, NOW + 100 * SECOND_US)
    machine.pass_time(30)
    assert machine.lease(log, 9) == [1]
    machine.pass_time(70)
    assert machine.lease(log, 1) == [0]


def test_a_thousand_deaths_are_one_unit() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=1)
    machine.publish(log, *[b"x"] * 350)
    machine.lease(log, 350)
    machine.units.clear()
    machine.pass_time(30)
    sizes = [sum(e.batch.count for e in unit if isinstance(e, Published)) for unit in machine.units]
    assert (sum(sizes), max(sizes)) == (350, dead_letters.BURIED_AT_ONCE)
    for unit in machine.units:  # a letter and the end of its message are never torn apart
        settled = [e for e in unit if isinstance(e, Settled)]
        assert sum(len(e.offsets) for e in settled) == sum(
            e.batch.count for e in unit if isinstance(e, Published)
        )
    assert (log.depth, machine.log("q.dlq").depth) == (0, 350)


def test_large_letters_are_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "BURIED_BYTES", 25)
    machine = Machine()
    log = machine.declare(max_attempts=1)
    machine.publish(log, b"x" * 10, b"x" * 10, b"x" * 10, b"x" * 40, b"x")
    machine.lease(log, 5)
    machine.units.clear()
    machine.pass_time(30)
    assert [[e.batch.size for e in unit if isinstance(e, Published)] for unit in machine.units] == [
        [20],
        [10],
        [40],
        [1],
    ]


def test_a_letter_that_cannot_be_read_takes_others_with_it() -> None:
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"0", b"1", b"2")
    machine.lease(log, 3)
    real = machine.engine.fetch
    machine.engine.fetch = lambda found, offsets: [
        None if offset == 1 else real(found, [offset])[0] for offset in offsets
    ]
    machine.settle(log, "reject", 0, 1, 2)
    assert (log.depth, machine.log("q.dlq").depth) == (0, 2)


@pytest.mark.parametrize("how", ["purge", "expire"])
def test_scattered_messages_that_end_together_are_one_unit(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "SETTLED_AT_ONCE", 10)
    machine = Machine()
    log = machine.declare()
    mortal = [NOW + SECOND_US if number % 2 else None for number in range(95)]
    machine.publish(log, *[b"x"] * 95, expires_at=mortal, priority=[number % 2 for number in range(95)])
    assert machine.lease(log, 48) == list(range(0, 95, 2))
    machine.units.clear()
    if how == "purge":
        change = Change()
        assert machine.engine.purge(log, NOW, change) == 47
        machine.done(change)
    else:
        machine.pass_time(1)
    assert [len(unit) for unit in machine.units] == [1] * 5
    ended = [event for unit in machine.units for event in unit if isinstance(event, Settled)]
    assert [len(event.offsets) for event in ended] == [10, 10, 10, 10, 7]
    assert [offset for event in ended for offset in event.offsets] == list(range(1, 95, 2))
    for twin in (machine.replayed(), machine.restored()):
        assert (twin.log().depth, twin.lease(twin.log(), 99)) == (48, list(range(0, 95, 2)))


def test_what_is_ended_with_many_others_stays_somewhere() -> None:
    machine = Machine()
    log = machine.declare(ordering="key", visibility_timeout=None)
    keys = ["a" if number % 3 == 0 else None for number in range(60)]
    later = [NOW + 99 * SECOND_US if number % 7 == 0 else None for number in range(60)]
    end = NOW + 50 * SECOND_US
    ends = [end if number % 2 else None for number in range(60)]
    machine.publish(log, *[b"x"] * 60, key=keys, deliver_at=later, expires_at=ends)
    held = machine.lease(log, 20)
    machine.settle(log, "nack", *held[:10], delay_us=60 * SECOND_US)
    machine.pass_time(50)
    kept = {offset for offset in range(60) if offset % 2 == 0} | set(held[10:])
    assert {offset for gap in log.group().settled.gaps(0, 60) for offset in gap} == kept
    machine.settle(log, "ack", *held[10:])
    came = list[int]()
    for _ in range(60):  # one of the key at a time
        machine.pass_time(10)
        offsets = machine.lease(log, 60)
        if offsets:
            machine.settle(log, "ack", *offsets)
        came += offsets
    assert sorted(came) == sorted(kept - set(held[10:]))
    assert (log.depth, log.delayed_count, log.group().retrying, log.group().ready) == (0, 0, 0, 0)


# --- a full disk ---


def test_on_a_full_disk_a_last_attempt_is_lost_or_never_ends() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=1)
    machine.publish(log, b"0", b"1")
    machine.lease(log)
    machine.room = False
    machine.pass_time(30)
    assert (log.depth, log.group().ready) == (2, 2)
    machine.lease(log)
    machine.room = True
    machine.pass_time(30)
    assert (log.depth, machine.log("q.dlq").depth) == (1, 1)


def test_on_a_full_disk_an_expired_message_is_delivered_or_lost() -> None:
    machine = Machine()
    log = machine.declare(on_expire="dead-letter")
    machine.publish(log, b"0", b"1", expires_at=[NOW + SECOND_US, NOW + 90 * SECOND_US])
    machine.room = False
    machine.pass_time(1)
    assert (machine.lease(log, 9), log.depth) == ([1], 2)
    twin = machine.restored()
    assert twin.log().depth == 1  # there was room, and it was buried
    assert twin.log("q.dlq").depth == 1
    machine.room = True
    machine.pass_time(1)
    assert (log.depth, machine.log("q.dlq").depth, log.group().overdue) == (1, 1, set())


def test_on_a_full_disk_a_nack_of_several_is_done_in_part() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=2)
    machine.publish(log, b"0", b"1", priority=[2, 1])
    machine.settle(log, "give_back", *machine.lease(log))
    assert machine.lease(log, 2) == [1, 0]
    before = machine.engine.encode()
    machine.room = False
    with pytest.raises(DiskFull):
        machine.settle(log, "nack", 0, 1)
    assert machine.engine.encode() == before


# --- dead letters ---


def test_dead_letters_have_dead_letters() -> None:
    machine = Machine()
    dead = machine.declare("graves")
    log = machine.declare(dead_letter="graves")
    assert machine.engine.holds_dead_letters(dead)
    with pytest.raises(WrongKind):
        machine.engine.dead_letters(machine.declare("q.dlq"), NOW, Change())
    change = Change()
    machine.engine.delete(log, NOW, change)
    assert not machine.engine.holds_dead_letters(dead)


@pytest.mark.parametrize("opened", ["replayed", "restored"])
def test_who_sends_dead_letters_where_is_forgotten(opened: str) -> None:
    machine = Machine()
    machine.declare("graves")
    machine.declare(dead_letter="graves")
    twin: Machine = getattr(machine, opened)()
    assert twin.engine.holds_dead_letters(twin.log("graves"))


def test_an_altered_target_still_counts_as_one() -> None:
    machine = Machine()
    dead, log = machine.declare("graves"), machine.declare(dead_letter="graves")
    change = Change()
    policy = msgspec.structs.replace(log.policy, dead_letter=None)
    machine.engine.alter(log, policy, NOW, change)
    machine.done(change)
    assert not machine.engine.holds_dead_letters(dead)
    assert not machine.replayed().engine.holds_dead_letters(machine.replayed().log("graves"))


def test_a_redriven_message_is_counted_in_both_places_or_goes_to_other_groups() -> None:
    machine = Machine()
    log = machine.declare()
    log.group("a"), log.group("b")
    machine.publish(log, b"0", priority=7, key=["k"])
    machine.lease(log, 1, "a")
    machine.settle(log, "reject", 0, group="a")
    dead = machine.log("q.dlq")
    change = Change()
    assert dead_letters.redrive(machine.engine, dead, [0, 5], None, NOW, change) == [0]
    machine.done(change)
    assert len(change.units()) == 1
    assert dead.depth == 0
    assert (machine.lease(log, 9, "a"), machine.lease(log, 9, "b")) == ([1], [0])
    back = machine.engine.fetch(log, [1])[0]
    assert back is not None
    assert (back.payload, back.priority, back.key, back.headers) == (b"0", 7, "k", {"x-origin-id": "1"})


# --- storing ---


def test_a_snapshot_of_another_version_is_taken_for_ours() -> None:
    data = msgspec.msgpack.encode([engines.STORED_WITH_METADATA + 1, 1, 0, []])
    machine = Machine()
    with pytest.raises(CorruptJournal):
        machine.engine.restore(data)


def test_a_number_of_a_deleted_log_is_given_again_after_a_snapshot() -> None:
    machine = Machine()
    log = machine.declare()
    change = Change()
    machine.engine.delete(log, NOW, change)
    twin = machine.restored()
    assert twin.declare().number == log.number + 1
    assert twin.engine.logs.keys() == {log.number + 1}


def test_a_queue_that_is_not_durable_survives() -> None:
    machine = Machine()
    machine.publish(machine.declare(durable=False), b"0")
    for twin in (machine.replayed(), machine.restored()):
        assert twin.engine.logs == {}


def test_an_unused_queue_is_counted_from_before_the_restart() -> None:
    machine = Machine()
    machine.declare(expires=50)
    machine.now_us += 40 * SECOND_US
    twin = machine.restored()
    twin.pass_time(49)
    assert twin.log().name == "q"
    twin.pass_time(1)
    assert twin.engine.find("default", "q") is None


def test_the_same_seed_gives_other_backoffs() -> None:
    def dues() -> list[Any]:
        machine = Machine()
        change = Change()
        from penstock.policy import Backoff, Policy

        policy = Policy.of(backoff=Backoff(initial=10, jitter=0.5))
        log = machine.engine.declare("default", "q", policy, NOW, change)
        machine.publish(log, *[b""] * 8)
        machine.settle(log, "nack", *machine.lease(log, 8))
        return list(log.group().retries.items())

    assert dues() == dues()
    assert len({due for due, _ in dues()}) > 5


def test_an_engine_that_knows_nothing_has_names() -> None:
    engine = Engine(seed=0, fetch=lambda *_: [], take_ids=lambda _n: [], make_room=lambda _n, _settling: None)
    assert engine.of_namespace("default") == []
    assert engine.next_us is None
