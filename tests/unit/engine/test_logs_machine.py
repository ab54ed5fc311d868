"""Topics and queues with several groups against a naive model: the same commands, time jumps, crashes and snapshots, and everything agrees after every step.

The harness is all that a broker is to the engine. What is published arrives at once, as in memory; or it is held up for some commands, as on a disk, and arrives later in the order in which it
was published. A crash replays the recorded events into a new engine, from the beginning and from the last snapshot, and goes on with either; groups that are not durable are gone then.

What it would notice: a group that gets what it should not, or not what it should, or in another order; a count that drifts; something that is kept for too long, dropped too early,
said to be dropped twice or never; a message that comes back from the dead; an event that is not recorded or not replayed; a snapshot that leaves something out; an alarm that is set too late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.broker.reading import available
from penstock.clock import ManualClock
from penstock.engine import cursors, dead, engine, log, milestones, retention, schedules
from penstock.engine.change import Change, Chosen, Content, Firing
from penstock.engine.engine import Engine
from penstock.engine.events import Action, Declared, Event, Positioned
from penstock.engine.group import Group, Terms
from penstock.engine.history import replay
from penstock.engine.log import NOTHING_KEPT, Log, Position
from penstock.errors import PenstockError
from penstock.model.batch import Batch
from penstock.model.commands import Kind
from penstock.policy import Backoff, Policy, altered
from tests.faults import campaign
from tests.unit.engine import logs_model
from tests.unit.engine.logs_model import SECOND, Message, Model, Receipt, Row

pytestmark = pytest.mark.lengthy

Answer = TypeVar("Answer")
Place = tuple[int, int]

NAMES: Final = ("t", "q")
START: Final = ManualClock.START_US

#: Any filter will do: `choose` says what it wants.
FILTER: Final = "priority >= 0"

#: Limits of memory and of work at once that are reached soon, and as they are.
LIMITS: Final[list[tuple[Any, str, int]]] = [
    (log, "FEW_KEPT", 1),
    (milestones, "ENTRIES_MAX", 3),
    (engine, "FEW", 1),
    (engine, "SIFTED_AT_ONCE", 2),
    (engine, "SETTLED_AT_ONCE", 2),
    (dead, "BURIED_AT_ONCE", 2),
]


def wants(payload: bytes) -> bool:
    """What a group with a filter gets."""
    return sum(payload) % 2 == 0


class Harness:
    """An engine with what it needs: contents, ids, and a list in which events are recorded."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.disk: dict[Place, Content] = {}
        self.shelf: dict[Place, Content] = {}
        self.told: Counter[Place] = Counter()  # to be stored no more
        self.events: list[tuple[Event, int]] = []
        self.snapshot: tuple[bytes, int] | None = None
        self.held_up = False
        self.on_the_way: list[tuple[Log, int, Batch]] = []
        self.engine = self._engine()
        self.engine.begin_epoch(epoch)
        self._ids = epoch << 32

    def _engine(self) -> Engine:
        return Engine(
            seed=1, fetch=self._fetch, take_ids=self.take_ids, make_room=lambda _size, _settling: None,
            choose=self._choose, recur=self._recur,
        )  # fmt: skip

    def take_ids(self, count: int) -> range:
        first, self._ids = self._ids, self._ids + count
        return range(first, self._ids)

    def _fetch(self, found: Log, offsets: Sequence[int]) -> list[Content | None]:
        return [self.shelf[found.number, offset] for offset in offsets]

    def _choose(self, found: Log, offsets: Sequence[int], _filter: Any, steps_left: int) -> Chosen:
        chosen = [offset for offset in offsets if wants(self.shelf[found.number, offset].payload)]
        return Chosen(chosen, len(offsets), steps_left)

    def _recur(self, _log: Log, _name: str, body: bytes, due: int, now: int) -> Firing:
        period = int(body)
        while due <= now:
            due += period
        return Firing([Batch([b"tick"], self.take_ids(1), now, 100, size=4)], due)

    def log(self, name: str) -> Log:
        found = self.engine.find("default", name)
        assert found is not None, f"there is no {name}"
        return found

    def run(self, now: int, command: Callable[[Change], Answer], *, whole: bool = False) -> Answer:
        """Do what a broker does with a command. One that is refused has changed nothing."""
        change = Change(whole=whole)
        try:
            answer = command(change)
        except PenstockError:
            assert not change
            raise
        self._record(change, now)
        return answer

    def _record(self, change: Change, now: int) -> None:
        for unit in change.units():
            for found, first, batch in unit.arrivals:
                self._store(found.number, first, batch)
            self.events += [(event, now) for event in unit.events]
            self.on_the_way += unit.arrivals
        self._drop()
        self.arrive(now)

    def arrive(self, now: int) -> None:
        """What is on its way arrives, unless it is held up."""
        if self.held_up or not self.on_the_way:
            return
        arrivals, self.on_the_way = self.on_the_way, []
        self.engine.arrive(arrivals, now)
        change = Change()
        self.engine.advance(now, change)
        self._record(change, now)

    def _drop(self) -> None:
        for found, offsets in self.engine.released:
            for offset in offsets:
                self.told[found.number, offset] += 1
                self.shelf.pop((found.number, offset), None)
        self.engine.released.clear()
        self.engine.stirred.clear()

    def _store(self, number: int, first: int, batch: Batch) -> None:
        def at(column: Any, row: int) -> Any:
            return column[row] if isinstance(column, list) else column

        for row, payload in enumerate(batch.payloads):
            content = Content(
                batch.ids[row], payload, at(batch.headers, row), at(batch.key, row), at(batch.priority, row), None
            )  # fmt: skip
            self.disk[number, first + row] = self.shelf[number, first + row] = content

    def keep_snapshot(self, now: int) -> None:
        """What is on its way will have arrived when it is read."""
        state = self.engine.encode()
        if self.on_the_way:
            twin = self._engine()
            twin.restore(state)
            for found, first, batch in self.on_the_way:
                twin.arrive([(twin.logs[found.number], first, batch)], now)
            state = twin.encode()
        self.snapshot = (state, len(self.events))

    def reopened(self, now: int, *, from_snapshot: bool) -> Harness:
        """What a new owner makes of what this one recorded."""
        heir = Harness(self.epoch + 1)
        heir.disk, heir.shelf = dict(self.disk), dict(self.disk)
        heir.events, heir.snapshot = list(self.events), self.snapshot
        start = 0
        if from_snapshot and self.snapshot is not None:
            state, start = self.snapshot
            heir.engine.restore(state)
        for event, time in self.events[start:]:
            replay(heir.engine, event, time)
        heir.run(now, lambda change: heir.engine.settle_down(now, change))
        heir.told.clear()
        return heir


def _batch(rows: list[Row], now: int) -> Batch:
    """Columns as a broker composes them: one value for all where it is the same."""

    def one_or_list(values: list[Any]) -> Any:
        return values[0] if values.count(values[0]) == len(values) else values

    def none_or_list(values: list[Any]) -> Any:
        return None if values.count(None) == len(values) else values

    return Batch(
        [row.payload for row in rows],
        [row.id for row in rows],
        now,
        one_or_list([row.priority for row in rows]),
        one_or_list([row.due for row in rows]),
        one_or_list([row.expires for row in rows]),
        none_or_list([row.key for row in rows]),
        size=sum(len(row.payload) for row in rows),
    )


retentions = st.fixed_dictionaries(
    {
        "retain_seconds": st.sampled_from([None, None, 3, 10]),
        "retain_bytes": st.sampled_from([None, None, 1, 8, 20]),
    }
)


def policies(late: bool) -> st.SearchStrategy[Policy]:
    """Policies whose limits are reached soon."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "visibility_timeout": st.sampled_from([None, 2, 5]),
        "max_attempts": st.sampled_from([None, 1, 2, 3]),
        "backoff": st.sampled_from(
            [None, Backoff(initial=1, factor=2, maximum=3, jitter=0), Backoff(initial=0, jitter=0)]
        ),
        "on_expire": st.sampled_from(["drop", "dead-letter"]),
        "ordering": st.sampled_from(["fifo", "key"]),
        "ttl": st.sampled_from([None, None, 4]),
    }
    del late
    return st.tuples(st.fixed_dictionaries(fields), retentions).map(
        lambda given: Policy.of(**given[0], **given[1])
    )


#: Few different moments, so that many things happen at once.
waits = st.integers(1, 6).map(lambda seconds: seconds * SECOND)
sketches = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([100, 100, 1, 200]),
        "delay": st.none() | waits,
        "ttl": st.none() | waits,
        "key": st.sampled_from([None, "k", "l"]),
        "size": st.integers(1, 6),
    }
)
names = st.sampled_from(NAMES)


class Machine(RuleBasedStateMachine):
    """The same commands for both."""

    #: Whether messages may be held up on their way.
    late = False

    @initialize(data=st.data(), tight=st.booleans())
    def declare(self, data: st.DataObject, tight: bool) -> None:
        self.before = [(module, name, getattr(module, name)) for module, name, _ in LIMITS]
        if tight:
            for module, name, value in LIMITS:
                setattr(module, name, value)
        self.tight = tight
        self.now = START
        self.model = Model()
        self.harness = Harness()
        self.receipts: list[Receipt] = []
        self.published = 0
        self.was_held_up = False
        self.inexact: set[str] = set()  # logs whose policy was another one
        self.floors: dict[str, int] = {}
        for name in NAMES:
            kind: Kind = "topic" if name == "t" else "queue"
            policy = data.draw(policies(self.late), label=name)
            self.model.declare(name, policy, kind)
            self.run(
                lambda change, n=name, p=policy, k=kind: self.engine.declare(  # type: ignore[misc]
                    "default", n, p, self.now, change, k
                )
            )
            for group in data.draw(st.sampled_from(["", "", "A", "AB"]), label="groups"):
                self.come(data, name, group, "latest", durable=True, filtered=False)

    def teardown(self) -> None:
        for module, name, value in getattr(self, "before", ()):
            setattr(module, name, value)

    @property
    def engine(self) -> Engine:
        return self.harness.engine

    def run(self, command: Callable[[Change], Answer]) -> Answer:
        return self.harness.run(self.now, command)

    def both(self, real: Callable[[Change], Answer], naive: Callable[[], Answer]) -> Answer | None:
        """Both do it, or both refuse it for the same reason; what they answered, if they did."""
        expected: Answer
        try:
            expected = naive()
        except PenstockError as error:
            with pytest.raises(type(error)):
                self.run(real)
            return None
        self.model.over(self.now)
        answer = self.run(real)
        assert answer == expected
        return answer

    @property
    def has_groups(self) -> bool:
        return any(self.model.logs[name].groups for name in NAMES)

    @property
    def has_members(self) -> bool:
        return any(group.members for name in NAMES for group in self.model.logs[name].groups.values())

    def group(self, name: str, group: str) -> Group:
        return self.harness.log(name).group(group)

    def some_group(self, data: st.DataObject, *, busy: bool = False) -> tuple[str, str] | None:
        found = sorted((name, group) for name in NAMES for group in self.model.logs[name].groups)
        if busy:  # rather one that has something to hand out
            found = [one for one in found if self.model.logs[one[0]].groups[one[1]].order] or found
        return data.draw(st.sampled_from(found), label="group") if found else None

    # --- publishing ---

    @rule(name=names, made=st.lists(sketches, min_size=1, max_size=4))
    def publish(self, name: str, made: list[dict[str, Any]]) -> None:
        self.publish_rows(name, [self.row(**sketch) for sketch in made])

    @rule(name=names, count=st.integers(1, 5), priority=st.sampled_from([100, 100, 1]))
    def publish_plain(self, name: str, count: int, priority: int) -> None:
        self.publish_rows(name, [self.row(priority=priority) for _ in range(count)])

    def row(
        self, priority: int, delay: int | None = None, ttl: int | None = None, key: str | None = None, size: int = 1
    ) -> Row:  # fmt: skip
        self.published += 1
        payload = (b"%d" % self.published).ljust(size, b".")
        due = None if delay is None else self.now + delay
        expires = None if ttl is None else self.now + ttl
        return Row(payload, self.harness.take_ids(1)[0], priority, due, expires, key)

    def publish_rows(self, name: str, rows: list[Row]) -> None:
        found, batch = self.harness.log(name), _batch(rows, self.now)
        self.model.publish(name, rows, self.now)
        self.model.over(self.now)
        self.run(lambda change: self.engine.publish(found, batch, self.now, change))

    @precondition(lambda self: self.late)
    @rule()
    def hold_up(self) -> None:
        """What is published from now on takes its time."""
        self.was_held_up = True
        self.model.held_up = self.harness.held_up = True

    @precondition(lambda self: self.late and self.model.held_up)
    @rule()
    def let_arrive(self) -> None:
        self.model.held_up = self.harness.held_up = False
        self.model.over(self.now)
        self.harness.arrive(self.now)

    # --- groups ---

    @rule(
        data=st.data(),
        name=names,
        group=st.sampled_from(["A", "B", "C"]),
        start=st.sampled_from(["earliest", "latest", "offset"]),
        durable=st.sampled_from([True, True, False]),
        filtered=st.sampled_from([False, False, True]),
    )
    def subscribe(
        self, data: st.DataObject, name: str, group: str, start: str, durable: bool, filtered: bool
    ) -> None:
        if group not in self.model.logs[name].groups:
            self.come(data, name, group, start, durable=durable, filtered=filtered)

    def come(
        self, data: st.DataObject, name: str, group: str, start: str, *, durable: bool, filtered: bool
    ) -> None:
        found = self.harness.log(name)
        if found.kind == "queue":  # its groups begin with what is stored, and stay
            start, durable = "earliest", True
        offset = {"earliest": 0, "latest": found.next_offset}.get(start, -1)
        if offset < 0:
            offset = data.draw(st.integers(0, found.next_offset), label="offset")
        terms = Terms(FILTER if filtered else None)
        begin = cursors.beginning(self.engine, found, group, offset, terms)
        self.model.subscribe(name, group, offset, durable=durable, wants=wants if filtered else None)
        here = self.run(
            lambda change: cursors.subscribe(
                self.engine, found, group, begin, self.now, change, durable=durable
            )
        )
        if not durable:
            self.attach(name, here, "c", data.draw(st.none() | waits, label="silence"))

    def attach(self, name: str, group: Group, consumer: str, silence: int | None) -> None:
        given = cursors.attach(group, consumer, self.now, silence)
        if silence is not None:
            self.engine.set_alarm(self.harness.log(name))
        self.model.attach(name, group.name, given, silence, self.now)

    @precondition(lambda self: self.has_groups)
    @rule(data=st.data(), silence=st.none() | waits)
    def consume(self, data: st.DataObject, silence: int | None) -> None:
        """A consumer comes."""
        found = self.some_group(data)
        if found is not None:
            self.attach(found[0], self.group(*found), "c", silence)

    def some_member(self, data: st.DataObject) -> tuple[str, str, str] | None:
        found = sorted(
            (name, group.name, member)
            for name in NAMES
            for group in self.model.logs[name].groups.values()
            for member in group.members
        )
        return data.draw(st.sampled_from(found), label="consumer") if found else None

    @precondition(lambda self: self.has_members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A consumer goes."""
        found = self.some_member(data)
        if found is None:
            return
        name, group, member = found
        here = self.group(name, group)
        home = self.model.logs[name]
        self.model.detach(home, home.groups[group], member, self.now)
        self.model.over(self.now)
        self.run(
            lambda change: cursors.detach(self.engine, self.harness.log(name), here, member, self.now, change)
        )

    @precondition(lambda self: self.has_members)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        found = self.some_member(data)
        if found is not None:
            name, group, member = found
            cursors.heard(self.group(name, group), member, self.now)
            self.model.heard(self.model.logs[name].groups[group], member, self.now)

    @precondition(lambda self: self.has_groups)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        found = self.some_group(data)
        if found is None:
            return
        name, group = found
        here = self.harness.log(name)
        if self.model.held_up and len(here.groups) == 1:  # replaying knows sooner what is kept no more
            return
        self.model.unsubscribe(name, group)
        self.run(lambda change: cursors.unsubscribe(self.engine, here, here.groups[group], self.now, change))

    @precondition(lambda self: self.has_groups)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        found = self.some_group(data)
        if found is None:
            return
        name, group = found
        here = self.harness.log(name)
        offset = data.draw(
            st.just(0) | st.just(here.next_offset) | st.integers(0, here.next_offset), label="offset"
        )
        begin = cursors.beginning(self.engine, here, group, offset, here.groups[group].terms)
        self.model.seek(name, group, offset)
        self.run(lambda change: cursors.seek(self.engine, here, here.groups[group], begin, self.now, change))

    # --- leasing ---

    @precondition(lambda self: self.has_groups)
    @rule(data=st.data(), wanted=st.integers(1, 5), keep=st.sampled_from([True] * 5 + [False]))
    def lease(self, data: st.DataObject, wanted: int, keep: bool) -> None:
        found = self.some_group(data, busy=True)
        if found is None:
            return
        name, group = found
        members = sorted(self.model.logs[name].groups[group].members)
        consumer = data.draw(st.sampled_from([None, "x", *members]), label="consumer")
        here, home = self.group(name, group), self.harness.log(name)
        cursors.heard(here, consumer, self.now)
        grant = self.run(
            lambda change: self.engine.lease(home, here, wanted, consumer, self.now, change, keep=keep)
        )
        token = grant.number if grant is not None else 0
        taken = self.model.lease(
            name, group, wanted, token, consumer, self.now, keep=keep, at_once=engine.SIFTED_AT_ONCE
        )
        if grant is None:
            assert not taken
            return
        attempts = (
            grant.attempts if isinstance(grant.attempts, list) else [grant.attempts] * len(grant.offsets)
        )
        assert list(grant.offsets) == [copy.offset for copy in taken]
        assert attempts == [copy.failures + 1 for copy in taken]
        if token:
            self.receipts += [(name, group, copy.offset, token) for copy in taken]

    @precondition(lambda self: self.has_groups)
    @rule(
        data=st.data(), name=names, made=st.lists(sketches, min_size=1, max_size=3), wanted=st.integers(1, 3)
    )
    def work(self, data: st.DataObject, name: str, made: list[dict[str, Any]], wanted: int) -> None:
        """Something is published, and something is handed out: what happens most."""
        self.publish(name, made)
        self.lease(data, wanted=wanted, keep=True)

    @precondition(lambda self: self.has_groups)
    @rule(data=st.data(), wanted=st.integers(1, 3))
    def hand_out(self, data: st.DataObject, wanted: int) -> None:
        self.lease(data, wanted=wanted, keep=True)

    def some_receipts(self, data: st.DataObject) -> list[Receipt]:
        """Those of one group: fresh ones and old ones, also twice the same."""
        alive = [one for one in self.receipts if one[1] in self.model.logs[one[0]].groups]
        if not alive:
            return []
        chosen = data.draw(st.sampled_from(sorted({one[:2] for one in alive})), label="group")
        mine = [one for one in alive if one[:2] == chosen]
        here = self.model.logs[chosen[0]].groups[chosen[1]]
        held = {(copy.offset, copy.token) for copy in here.those("leased")}
        fresh = [one for one in mine if one[2:] in held]
        choice = st.sampled_from(fresh[-8:] or mine[-8:])
        if data.draw(st.integers(0, 9), label="stale") == 0:
            choice = st.sampled_from(mine[-8:])
        return data.draw(st.lists(choice, min_size=1, max_size=4), label="receipts")

    def settled(
        self, how: str, chosen: list[Receipt], delay: int | None
    ) -> tuple[Callable[[Change], Any], Callable[[], Any]]:
        """What settles messages, in the engine and in the model."""
        home, here = self.harness.log(chosen[0][0]), self.group(*chosen[0][:2])
        offsets, tokens = [one[2] for one in chosen], [one[3] for one in chosen]
        given = (home, here, offsets, tokens)
        ways: dict[str, tuple[Callable[[Change], Any], Callable[[], Any]]] = {
            "ack": (
                lambda change: self.engine.ack(*given, self.now, change),
                lambda: self.model.ack(chosen, self.now),
            ),
            "nack": (
                lambda change: self.engine.nack(*given, delay, "oh", self.now, change),
                lambda: self.model.nack(chosen, delay, self.now),
            ),
            "reject": (
                lambda change: self.engine.reject(*given, None, self.now, change),
                lambda: self.model.reject(chosen, self.now),
            ),
            "requeue": (
                lambda change: self.engine.give_back(*given, self.now, change),
                lambda: self.model.give_back(chosen, self.now, seen=True),
            ),
            "unseen": (
                lambda change: self.engine.give_back(*given, self.now, change, seen=False),
                lambda: self.model.give_back(chosen, self.now, seen=False),
            ),
            "extend": (
                lambda change: self.engine.extend(*given, self.now + (delay or SECOND)),
                lambda: self.model.extend(chosen, self.now + (delay or SECOND)),
            ),
        }
        return ways[how]

    @precondition(lambda self: self.receipts)
    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "ack", "ack", "nack", "nack", "reject", "requeue", "unseen", "extend"]),
        delay=st.none() | st.just(0) | waits,
    )
    def settle(self, data: st.DataObject, how: str, delay: int | None) -> None:
        chosen = self.some_receipts(data)
        if chosen:
            self.both(*self.settled(how, chosen, delay))

    @precondition(lambda self: self.has_groups)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """A message is handed out and fails for good: so there are dead letters."""
        before = len(self.receipts)
        self.lease(data, wanted=1, keep=True)
        if len(self.receipts) > before:
            self.both(*self.settled("reject", self.receipts[before:], None))

    @precondition(lambda self: self.receipts)
    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "nack", "reject", "requeue"]),
        delay=st.none() | waits,
        to=names,
    )
    def transact(self, data: st.DataObject, how: str, delay: int | None, to: str) -> None:
        """Something is settled and something published, all or nothing."""
        chosen = self.some_receipts(data)
        if not chosen:
            return
        row = self.row(priority=100)
        real, naive = self.settled(how, chosen, delay)

        def do(change: Change) -> None:
            real(change)
            self.engine.publish(self.harness.log(to), _batch([row], self.now), self.now, change)

        def say() -> None:
            naive()
            self.model.publish(to, [row], self.now)

        self.both(do, say)

    # --- the rest ---

    @rule(name=names)
    def purge(self, name: str) -> None:
        self.both(
            lambda change: self.engine.purge(self.harness.log(name), self.now, change),
            lambda: self.model.purge(name),
        )

    @precondition(lambda self: any(one.waiting for n in NAMES for one in self.model.logs[n].messages))
    @rule(data=st.data(), name=names)
    def cancel(self, data: st.DataObject, name: str) -> None:
        messages = self.model.logs[name].messages
        choice = [one.offset for one in messages if one.waiting] or [one.offset for one in messages[-3:]]
        if not choice:
            return
        offset = data.draw(st.sampled_from(choice), label="offset")
        self.both(
            lambda change: schedules.cancel(
                self.engine,
                self.harness.log(name),
                offset,
                self.model.logs[name].messages[offset].due,
                self.now,
                change,
            ),
            lambda: self.model.cancel(name, offset),
        )

    @rule(name=names, period=st.none() | waits)
    def schedule(self, name: str, period: int | None) -> None:
        due = None if period is None else self.now + period
        self.model.logs[name].schedule = (
            None if period is None else logs_model.Schedule(self.now + period, period)
        )
        body = b"%d" % (period or 0)
        self.run(
            lambda change: schedules.put(
                self.engine, self.harness.log(name), "s", due, body, self.now, change
            )
        )

    @precondition(lambda self: len(self.model.logs) > len(NAMES))
    @rule(data=st.data(), count=st.integers(1, 3))
    def redrive(self, data: st.DataObject, count: int) -> None:
        graves = [name for name in self.model.logs if name.endswith(".dlq")]
        if not graves:
            return
        name = data.draw(st.sampled_from(sorted(graves)), label="dead letters")
        chosen = self.model.redrivable(name)
        grave = self.harness.log(name)
        found = [
            offset
            for gap in grave.group().settled.gaps(0, grave.arrived)
            for offset in gap
            if dead.has_way_back(
                self.engine, grave, self.harness.shelf[grave.number, offset].headers or {}, None
            )
        ]
        assert found == chosen
        if chosen:
            self.both(
                lambda change: len(dead.redrive(self.engine, grave, chosen[:count], None, self.now, change)),
                lambda: self.model.redrive(name, chosen[:count], self.now),
            )

    @rule(name=names, given=retentions, timeout=st.sampled_from([None, 2, 5]))
    def alter(self, name: str, given: dict[str, Any], timeout: int | None) -> None:
        home = self.model.logs[name]
        self.inexact.add(name)
        home.policy = policy = altered(home.policy, visibility_timeout=timeout, **given)
        if not _retains(policy):
            self.floors.pop(name, None)
        self.run(lambda change: self.engine.alter(self.harness.log(name), policy, self.now, change))

    # --- readers ---

    @rule(data=st.data(), name=names, reader=st.sampled_from(["r", "s"]), holds=st.booleans())
    def read(self, data: st.DataObject, name: str, reader: str, holds: bool) -> None:
        """A reader comes that is waited for, or not any more."""
        found = self.harness.log(name)
        known = found.readers.get(reader)
        if known is not None and known.holds == holds:
            return
        offset = data.draw(st.integers(0, found.next_offset), label="offset")
        position = Position(known.offset if known is not None else offset, holds)

        def do(change: Change) -> None:
            body = retention.hold(found, position)
            found.readers[reader] = position
            change.events.append(Declared(found.number, Action.READER, reader, body, self.now))
            retention.update(self.engine, found, self.now)

        self.run(do)
        home = self.model.logs[name]
        home.readers[reader] = position.offset
        home.holders.pop(reader, None)
        if holds:
            home.holders[reader] = position.offset

    @rule(data=st.data(), name=names, reader=st.sampled_from(["r", "s"]))
    def commit(self, data: st.DataObject, name: str, reader: str) -> None:
        found = self.harness.log(name)
        offset = data.draw(st.integers(0, found.next_offset), label="offset")

        def do(change: Change) -> None:
            found.readers.setdefault(reader, Position(offset)).offset = offset
            change.events.append(Positioned(found.number, reader, offset, self.now))
            retention.update(self.engine, found, self.now)

        self.run(do)
        home = self.model.logs[name]
        home.readers[reader] = offset
        if reader in home.holders:
            home.holders[reader] = offset

    @precondition(lambda self: any(self.model.logs[name].readers for name in NAMES))
    @rule(name=names, reader=st.sampled_from(["r", "s"]))
    def forget(self, name: str, reader: str) -> None:
        found = self.harness.log(name)
        if reader not in found.readers:
            return

        def do(change: Change) -> None:
            del found.readers[reader]
            change.events.append(Declared(found.number, Action.FORGET, reader, b"", self.now))
            retention.update(self.engine, found, self.now)

        self.run(do)
        home = self.model.logs[name]
        home.readers.pop(reader)
        home.holders.pop(reader, None)

    # --- time and what ends ---

    @rule(wait=waits | st.just(1) | st.just(SECOND // 2) | st.just(100 * SECOND))
    def pass_time(self, wait: int) -> None:
        self.now += wait
        self.run(lambda change: self.engine.advance(self.now, change))
        self.model.advance(self.now)

    @rule()
    def snapshot(self) -> None:
        self.harness.keep_snapshot(self.now)

    @precondition(lambda self: not (self.was_held_up and self.keyed))
    @rule(wait=st.just(0) | waits, from_snapshot=st.booleans())
    def crash(self, wait: int, from_snapshot: bool) -> None:
        self.now += wait
        self.model.crash(self.now)
        heirs = {way: self.harness.reopened(self.now, from_snapshot=way) for way in (True, False)}
        live = self.harness
        for way in (not from_snapshot, from_snapshot):
            self.harness = heirs[way]
            if self.was_held_up:
                self.adopt_order()
            self.agree()
            needed = {
                (self.harness.log(name).number, one.offset)
                for name, home in self.model.logs.items()
                for one in home.messages
                if not one.dropped
            }
            self.harness.shelf = {
                place: content for place, content in self.harness.shelf.items() if place in needed
            }
        del live

    @property
    def keyed(self) -> bool:
        return any(home.policy.ordering == "key" for home in self.model.logs.values())

    def adopt_order(self) -> None:
        """Of what was held up, and what came meanwhile, an heir knows only in which order it was recorded."""
        for name, home in self.model.logs.items():
            for group in home.groups.values():
                found = self.upcoming(self.harness.log(name), self.harness.log(name).groups[group.name])
                assert sorted(found) == [copy.offset for copy in group.those("ready")]
                for place, offset in enumerate(found):
                    group.copies[offset].place = place
                group.arrivals = len(found)

    # --- comparing ---

    @staticmethod
    def upcoming(found: Log, group: Group) -> list[int]:
        """What is ready, with what the group has not seen yet."""
        line = [(piece[3], o) for piece in group.lanes.pieces() for o in range(piece[1], piece[2])]
        for priority, start, stop in found.priorities.parts(group.seen, found.arrived):
            line += [(priority, offset) for offset in range(start, stop)]
        return [offset for _, offset in sorted(line, key=lambda entry: entry[0])]

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "floors"):
            return
        assert sorted(found.name for found in self.engine.of_namespace("default")) == sorted(self.model.logs)
        for name, home in self.model.logs.items():
            found = self.harness.log(name)
            assert found.next_offset == len(home.messages)
            self.agree_on_retention(name, found)
            self.model.drop(name, found.kept_from)
            self.agree_on_groups(name, found)
            self.agree_on_what_is_stored(name, found)
            if home.groups:
                assert found.depth == home.depth, name
                assert found.delayed_count == home.delayed, name
            moment = self.model.next_moment(name)
            if moment is not None:
                assert self.engine.next_us is not None, f"{name} would sleep for ever"
                assert found.alarm_us is not None, f"{name} would sleep for ever"
                assert self.engine.next_us <= found.alarm_us <= moment, f"{name} would sleep for too long"
            readers = {reader: place.offset for reader, place in found.readers.items()}
            assert readers == home.readers
            assert {r for r, place in found.readers.items() if place.holds} == set(home.holders)

    def agree_on_groups(self, name: str, found: Log) -> None:
        home = self.model.logs[name]
        assert list(found.groups) == list(home.groups), name
        for group in home.groups.values():
            here = found.groups[group.name]
            label = f"{name}/{group.name}"
            assert self.upcoming(found, here) == [copy.offset for copy in group.order], label
            assert here.leases.offsets() == [copy.offset for copy in group.those("leased")], label
            assert here.retrying == len(group.those("retrying")), label
            assert here.keys.parked == len(group.those("parked")), label
            assert here.durable == group.durable
            assert list(here.members) == list(group.members), label
            unsettled = [offset for gap in here.settled.gaps(0, found.next_offset) for offset in gap]
            assert unsettled == [one.offset for one in home.unsettled(group)], label
            for copy in group.copies.values():
                assert here.tally.get(copy.offset) == copy.failures, label

    def agree_on_retention(self, name: str, found: Log) -> None:
        """What is kept is what must be kept: nothing younger, or within the last bytes, is left out, and hardly anything else is in."""
        home = self.model.logs[name]
        assert found.kept_from == min([found.floor, *home.holders.values()])
        if not _retains(home.policy):
            assert found.floor == NOTHING_KEPT
            return
        before = self.floors.get(name, 0)
        best = max(before, _ideal_floor(home, self.now))
        assert before <= found.floor <= best, f"{name} keeps from {found.floor}, not from {best}"
        if not self.tight and not self.model.held_up and name not in self.inexact:
            assert found.floor == best, f"{name} keeps from {found.floor}, not only from {best}"
        self.floors[name] = found.floor

    def agree_on_what_is_stored(self, name: str, found: Log) -> None:
        home = self.model.logs[name]
        arrived = [one for one in home.messages if one.arrived]
        assert found.arrived == len(arrived)
        expected = [one.offset for one in arrived if one.available]
        assert [
            o for gap in found.unavailable(0, found.arrived).gaps(0, found.arrived) for o in gap
        ] == expected, name
        assert [o for run in available(found, 0, found.arrived) for o in run] == expected, name
        for message in home.messages:
            self.agree_on_one(found, message)
        stored = [one for one in arrived if not one.dropped]
        assert [_target(found, one.offset) for one in stored] == [one.target for one in stored]
        dropped = {one.offset for one in home.messages if one.dropped}
        told = {offset for number, offset in self.harness.told if number == found.number}
        assert told <= dropped, f"{name}: what is needed is dropped"
        if self.harness.epoch == 1 and not self.was_held_up:
            assert told == dropped, f"{name}: what nobody needs is kept"
            assert not told or max(self.harness.told[found.number, o] for o in told) == 1, (
                f"{name}: dropped twice"
            )

    def agree_on_one(self, found: Log, message: Message) -> None:
        if not message.dropped:
            content = self.harness.shelf.get((found.number, message.offset))
            assert content is not None, f"{message} of {found.name} is dropped too early"
            assert (content.payload, content.priority, content.key) == (
                message.payload, message.priority, message.key
            )  # fmt: skip


def _target(log: Log, offset: int) -> str | None:
    return next((name for name, ranges in log.targeted.items() if offset in ranges), None)


def _retains(policy: Policy) -> bool:
    return policy.retain_seconds is not None or policy.retain_bytes is not None


def _ideal_floor(home: logs_model.Log, now: int) -> int:
    """Batches are dropped as a whole: too old, or more bytes ago than are kept."""
    floor = 0
    total = sum(size for _, _, size in home.batches)
    so_far = 0
    for first, time, size in [*home.batches, (len(home.messages), now, 0)]:
        older = [moment for before, moment, _ in home.batches if before < first]
        seconds = home.policy.retain_seconds
        if seconds is not None and all(moment < now - round(seconds * SECOND) for moment in older):
            floor = max(floor, first)
        kept = home.policy.retain_bytes
        if kept is not None and first < len(home.messages) and so_far <= total - kept:
            floor = max(floor, first)
        so_far += size
        del time
    return floor


class LateMachine(Machine):
    """The same where messages take their time."""

    late = True


def _run(machine: type[Machine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )


@pytest.mark.parametrize("machine", [Machine, LateMachine])
def test_engine_and_model_of_logs_agree_after_every_step(machine: type[Machine]) -> None:
    _run(machine, examples=150, steps=40)


@pytest.mark.campaign
@pytest.mark.parametrize("machine", [Machine, LateMachine])
def test_engine_and_model_of_logs_agree_for_long(machine: type[Machine]) -> None:
    _run(machine, examples=30 * campaign.rounds(), steps=80)
