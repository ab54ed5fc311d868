"""Recurring messages and cancelled ones in the engine: each due time once, whatever is lost around it, and the same after a replay or a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import SECOND_US
from penstock.engine import schedules
from penstock.engine.change import Change, Firing
from penstock.engine.events import Event, Outcome, Published, Scheduled, Settled
from penstock.engine.history import replay
from penstock.engine.log import Log
from penstock.errors import InvalidArgument
from penstock.model.batch import Batch
from tests.unit.engine.specimen import NOW, Machine

MINUTE = 60


class Clockwork(Machine):
    """A machine whose schedules say in their body after how many seconds they are due again. Each due time is one message that says it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.engine.recur = self._recur
        self.knows = True

    def _recur(self, log: Log, name: str, body: bytes, due_us: int, now_us: int) -> Firing:
        del log
        if not self.knows:
            raise InvalidArgument("nobody knows that zone")
        every_us = int(body) * SECOND_US
        dues = list(range(due_us, now_us + 1, every_us))
        batches = []
        for due in dues:
            payload = f"{name} {(due - NOW) // SECOND_US}".encode()
            batches.append(Batch([payload], [next(self._ids)], now_us, 100, size=len(payload)))
        return Firing(batches, dues[-1] + every_us)

    def schedule(self, log: Log, name: str = "tick", every: int | None = MINUTE) -> None:
        change = Change()
        due_us = None if every is None else self.now_us + every * SECOND_US
        schedules.put(self.engine, log, name, due_us, b"%d" % (every or 0), self.now_us, change)
        self.done(change)

    def cancel(self, log: Log, offset: int) -> bool:
        change = Change()
        due_us = next((due for due, found in log.delayed.items() if found == offset), None)
        done = schedules.cancel(self.engine, log, offset, due_us, self.now_us, change)
        assert done == bool(change)
        self.done(change)
        return done

    def told(self, log: Log) -> list[bytes]:
        """What was published to a log, in order."""
        found = [e for _, e in self.events if isinstance(e, Published) and e.log == log.number]
        return [payload for event in found for payload in event.batch.payloads]

    def twins(self) -> list[Clockwork]:
        """Two that take over from here: one that is told everything that was recorded, one from a snapshot."""
        return [self.after(self.events), self._from_snapshot()]

    def after(self, events: Sequence[tuple[int, Event]]) -> Clockwork:
        """Another one that is told what was recorded."""
        twin = Clockwork(events)
        for time_us, event in events:
            replay(twin.engine, event, time_us)
        twin._opened(self)
        return twin

    def _from_snapshot(self) -> Clockwork:
        twin = Clockwork(self.events)
        twin.engine.restore(self.engine.encode())
        twin._opened(self)
        return twin


def clockwork(**policy: Any) -> tuple[Clockwork, Log]:
    machine = Clockwork()
    return machine, machine.declare(**policy)


# --- recurring ---


def test_a_due_time_fires_early_twice_or_not_at_all() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    machine.pass_time(59.999999)
    assert machine.told(log) == []
    machine.pass_time(0.000001)
    machine.pass_time(0)
    assert machine.told(log) == [b"tick 60"]
    machine.pass_time(60)
    assert machine.told(log) == [b"tick 60", b"tick 120"]


def test_a_message_and_that_it_fired_are_in_two_units() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    machine.schedule(log, "tock", 30)
    machine.units.clear()
    machine.pass_time(60)
    found = [[type(event) for event in unit] for unit in machine.units]
    assert found == [[Published, Scheduled], [Published, Published, Scheduled]]
    for unit in machine.units:
        fired = unit[-1]
        assert isinstance(fired, Scheduled)
        assert fired.due_us is not None
        assert fired.due_us > machine.now_us


def test_the_engine_does_not_wake_when_a_schedule_is_due() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    assert machine.engine.next_us == NOW + MINUTE * SECOND_US
    machine.schedule(log, "tock", 30)
    assert machine.engine.next_us == NOW + 30 * SECOND_US
    for twin in machine.twins():
        assert twin.engine.next_us == NOW + 30 * SECOND_US


def test_a_schedule_that_was_removed_fires() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    machine.schedule(log, every=None)
    for one in (machine, *machine.twins()):
        one.pass_time(600)
        assert one.told(one.log()) == []
        assert one.log().schedules == {}


def test_without_a_rule_a_schedule_is_lost() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    machine.engine.recur = None
    machine.pass_time(600)
    assert machine.told(log) == []
    assert list(log.schedules) == ["tick"]


def test_a_full_log_stops_its_schedule_or_loses_the_rest_of_the_unit() -> None:
    machine, log = clockwork(max_depth=2)
    machine.schedule(log)
    machine.pass_time(300)
    assert machine.told(log) == [b"tick 60", b"tick 120"]
    machine.settle(log, "ack", *machine.lease(log, 9))
    machine.pass_time(60)
    assert machine.told(log)[2:] == [b"tick 360"]
    assert log.schedules["tick"].due_us == NOW + 420 * SECOND_US


def test_a_full_disk_loses_a_due_time() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    machine.room = False
    machine.pass_time(60)
    assert machine.told(log) == []
    assert machine.engine.next_us == machine.now_us + SECOND_US, (
        "it is tried again soon, and not at once for ever"
    )
    machine.room = True
    machine.pass_time(0.5)
    assert machine.told(log) == []
    machine.pass_time(0.5)
    assert machine.told(log) == [b"tick 60"]
    machine.pass_time(59)
    assert machine.told(log) == [b"tick 60", b"tick 120"]


def test_a_rule_that_nobody_knows_stops_everything_else() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    machine.publish(log, b"delayed", deliver_at=NOW + 90 * SECOND_US)
    machine.knows = False
    machine.pass_time(60)
    machine.pass_time(30)
    assert machine.lease(log) == [0], "what else waits in that log comes"
    machine.knows = True
    machine.pass_time(300)
    assert machine.told(log)[1:] == [b"tick %d" % due for due in range(60, 391, 60)]


def test_a_log_that_is_deleted_fires() -> None:
    machine, log = clockwork()
    machine.schedule(log)
    change = Change()
    machine.engine.delete(log, machine.now_us, change)
    machine.done(change)
    machine.pass_time(600)
    assert machine.told(log) == []
    for twin in machine.twins():
        assert twin.engine.logs == {}


def test_a_log_whose_time_is_over_fires_for_ever() -> None:
    machine, log = clockwork(expires=90)
    machine.schedule(log)
    machine.pass_time(90)
    assert log.deleted
    machine.pass_time(600)
    assert machine.told(log) == [b"tick 60"]


@given(
    steps=st.lists(st.sampled_from([1, 10, 25, 59, 60, 61, 150]), min_size=1, max_size=12), crashes=st.data()
)
def test_steps_and_crashes_lose_or_repeat_a_due_time(steps: list[int], crashes: Any) -> None:
    machine, log = clockwork()
    machine.schedule(log)
    machine.schedule(log, "tock", 25)
    for step in steps:
        machine.pass_time(step)
        if crashes.draw(st.booleans()):
            machine = crashes.draw(st.sampled_from(machine.twins()))
    passed = sum(steps)
    found = machine.told(machine.log())
    assert [one for one in found if one.startswith(b"tick")] == [
        b"tick %d" % n for n in range(60, passed + 1, 60)
    ]
    assert [one for one in found if one.startswith(b"tock")] == [
        b"tock %d" % n for n in range(25, passed + 1, 25)
    ]


def test_a_crash_between_message_and_record_fires_again() -> None:
    """Every beginning of what was recorded, unit by unit, is what a crash may leave."""
    machine, log = clockwork()
    machine.schedule(log)
    machine.schedule(log, "tock", 45)
    for _ in range(4):
        machine.pass_time(40)
    for kept in range(3, len(machine.units) + 1):
        left = [(machine.now_us, event) for unit in machine.units[:kept] for event in unit]
        after = machine.after(left)
        found = sorted(after.told(after.log()))
        assert found == sorted([b"tick 60", b"tick 120", b"tock 45", b"tock 90", b"tock 135"])


# --- cancelling ---


def test_what_is_cancelled_still_waits_somewhere() -> None:
    machine, log = clockwork(max_bytes=100, ordering="key")
    machine.publish(log, b"0", b"1", deliver_at=NOW + 60 * SECOND_US, key=["k", "k"])
    assert machine.cancel(log, 0) is True
    for one in (machine, *machine.twins()):
        there = one.log()
        assert (there.delayed_count, there.depth, there.bytes) == (1, 1, 1)
        one.pass_time(60)
        assert one.lease(there, 9) == [1]
        assert (there.delayed_count, there.withdrawn, there.awaited, dict(there.keys)) == (0, 0, {}, {})


@pytest.mark.parametrize("state", ["ready", "leased", "retrying", "acked", "due", "unknown"])
def test_what_is_not_delayed_is_cancelled(state: str) -> None:
    machine, log = clockwork()
    machine.publish(log, b"0", **({"deliver_at": NOW + SECOND_US} if state == "due" else {}))
    if state in ("leased", "retrying", "acked"):
        machine.lease(log)
    if state == "retrying":
        machine.settle(log, "nack", 0)
    if state == "acked":
        machine.settle(log, "ack", 0)
    if state == "due":
        machine.pass_time(1)
    before = msgspec.msgpack.encode(log.encode())
    assert machine.cancel(log, 7 if state == "unknown" else 0) is False
    assert msgspec.msgpack.encode(log.encode()) == before


def test_cancelling_settles_in_one_group_or_twice() -> None:
    machine, log = clockwork()
    machine.publish(log, b"0", deliver_at=NOW + 60 * SECOND_US)
    for name in ("a", "b"):
        log.group(name)
    machine.units.clear()
    assert machine.cancel(log, 0) is True
    assert machine.cancel(log, 0) is False
    (unit,) = machine.units
    assert [(e.group, list(e.offsets), e.outcome) for e in unit if isinstance(e, Settled)] == [
        (name, [0], Outcome.CANCELLED) for name in ("default", "a", "b")
    ]


def test_a_cancelled_message_holds_its_dedup_id() -> None:
    machine, log = clockwork(delivery="exactly-once", dedup_window=10)
    (first,) = machine.publish(log, b"0", deliver_at=NOW + 60 * SECOND_US, dedup_id=["d"])
    machine.pass_time(50)
    machine.cancel(log, 0)
    for one in (machine, *machine.twins()):
        assert one.publish(one.log(), b"1", dedup_id=["d"]) == [first]
        one.pass_time(11)
        assert one.publish(one.log(), b"2", dedup_id=["d"]) != [first]


@settings(max_examples=60)
@given(
    delays=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    cancelled=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 19)), max_size=20),
)
def test_a_cancelled_message_comes_or_takes_another_with_it(
    delays: list[int], cancelled: list[tuple[int, int]]
) -> None:
    machine, log = clockwork()
    machine.publish(
        log, *[b"x"] * len(delays), deliver_at=[NOW + d * 10 * SECOND_US if d else None for d in delays]
    )
    gone = set()
    for second in range(6):
        for at, offset in cancelled:
            if at == second and machine.cancel(log, offset):
                assert delays[offset] * 10 > second * 10
                gone.add(offset)
        machine.pass_time(10)
    expected = sorted(set(range(len(delays))) - gone)
    for one in (machine, *machine.twins()):
        assert sorted(one.lease(one.log(), 99)) == expected
