"""The same events give the same engine, to the byte; and a log looks the same to everybody, however it was opened.

Random commands over a queue and a topic with everything that a log has: groups that come, go and seek, readers that hold, retention, delays, keys, expiry,
schedules, purges, cancelled messages, dead letters. Then the engine is taken over three ways: by replaying all, by replaying all once more, and from a snapshot with the
rest replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.clock import SECOND_US
from penstock.engine import cursors, retention, schedules
from penstock.engine.change import Change, Firing
from penstock.engine.events import Action, Declared, Event, Positioned
from penstock.engine.group import Terms
from penstock.engine.history import replay
from penstock.engine.log import Log, Position
from penstock.errors import PenstockError
from penstock.model.batch import Batch
from penstock.policy import altered
from tests.unit.engine.specimen import PROMPT, Machine

GROUPS = ("default", "a", "b")
POLICIES: list[dict[str, Any]] = [
    {},
    {"ordering": "key"},
    {"retain_seconds": 50},
    {"retain_bytes": 4, "max_attempts": 1},
    {"retain_seconds": 50, "ordering": "key"},
    {"max_depth": 5, "overflow": "drop-head", "retain_bytes": 3},
    {"delivery": "at-most-once", "retain_seconds": 50},
    {"ttl": 40, "on_expire": "dead-letter", "dedup_window": 20},
]


class Subject(Machine):
    """A machine that can do everything, and what was recorded after the last snapshot."""

    def __init__(self, events: Sequence[tuple[int, Event]] = ()) -> None:
        super().__init__(events)
        self.engine.recur = self._recur
        self.snapshot: tuple[bytes, int] | None = None

    def _recur(self, log: Log, name: str, body: bytes, due_us: int, now_us: int) -> Firing:
        del log
        every_us = int(body) * SECOND_US
        last_us = due_us + (now_us - due_us) // every_us * every_us
        batch = Batch([name.encode()], [next(self._ids)], now_us, 100, size=len(name))
        return Firing([batch], last_us + every_us)

    # --- commands ---

    def command(self, log: Log, what: str, n: int, m: int) -> None:
        change = Change()
        try:
            getattr(self, f"do_{what}")(log, n, m, change)
        except PenstockError:
            assert not change
        self.done(change)

    def do_publish(self, log: Log, n: int, m: int, change: Change) -> None:
        count = n % 4 + 1
        delays = [None if (m + k) % 3 else self.now_us + 10 * (k + 1) * SECOND_US for k in range(count)]
        ttl = log.policy.ttl
        expires: Any = None if ttl is None else self.now_us + int(ttl * SECOND_US)
        if m % 5 == 4 and not any(delays):
            expires = self.now_us + 15 * SECOND_US
        batch = Batch(
            [b"xy"[: 1 + k % 2] for k in range(count)], [next(self._ids) for _ in range(count)], self.now_us,
            [100 + (m + k) % 2 for k in range(count)], deliver_at=delays if any(delays) else None,
            expires_at=expires, key=["k" if k % 2 else None for k in range(count)],
            dedup_id=[f"d{m % 6}" if not k and m % 2 else None for k in range(count)],
        )  # fmt: skip
        batch.size = sum(map(len, batch.payloads))
        self.engine.publish(log, batch, self.now_us, change)

    def do_lease(self, log: Log, n: int, m: int, change: Change) -> None:
        if (group := log.groups.get(GROUPS[m % 3])) is not None:
            self.engine.lease(log, log.group(group.name), n % 3 + 1, f"c{n % 2}", self.now_us, change)

    def _settle(self, log: Log, n: int, m: int, how: str, change: Change) -> None:
        group = log.groups.get(GROUPS[m % 3])
        if group is not None and (held := sorted(group.leases.offsets())):
            offsets = held[: n % 3 + 1]
            numbers = [group.leases.number_of(offset) for offset in offsets]
            rest: dict[str, list[Any]] = {"nack": [None, "no"], "reject": ["no"]}
            more = rest.get(how, [])
            getattr(self.engine, how)(log, group, offsets, numbers, *more, self.now_us, change)

    def do_ack(self, log: Log, n: int, m: int, change: Change) -> None:
        self._settle(log, n, m, "ack", change)

    def do_nack(self, log: Log, n: int, m: int, change: Change) -> None:
        self._settle(log, n, m, "nack", change)

    def do_reject(self, log: Log, n: int, m: int, change: Change) -> None:
        self._settle(log, n, m, "reject", change)

    def do_give_back(self, log: Log, n: int, m: int, change: Change) -> None:
        self._settle(log, n, m, "give_back", change)

    def do_subscribe(self, log: Log, n: int, m: int, change: Change) -> None:
        name = GROUPS[m % 3]
        begin = cursors.beginning(self.engine, log, name, min(n, log.next_offset), Terms())
        if name in log.groups:
            cursors.seek(self.engine, log, log.group(name), begin, self.now_us, change)
        else:
            cursors.subscribe(self.engine, log, name, begin, self.now_us, change)

    def do_unsubscribe(self, log: Log, n: int, m: int, change: Change) -> None:
        del n
        if (group := log.groups.get(GROUPS[m % 3])) is not None and len(log.groups) > 1:
            cursors.unsubscribe(self.engine, log, group, self.now_us, change)

    def do_purge(self, log: Log, n: int, m: int, change: Change) -> None:
        if not n % 3:
            self.engine.purge(log, self.now_us, change)

    def do_cancel(self, log: Log, n: int, m: int, change: Change) -> None:
        waiting = list(log.delayed.items())
        if waiting:
            due_us, offset = waiting[n % len(waiting)]
            schedules.cancel(self.engine, log, offset, due_us, self.now_us, change)

    def do_schedule(self, log: Log, n: int, m: int, change: Change) -> None:
        due_us = None if not n % 4 else self.now_us + (m + 1) * SECOND_US
        schedules.put(self.engine, log, "ts"[n % 2], due_us, b"%d" % (m + 1), self.now_us, change)

    def do_position(self, log: Log, n: int, m: int, change: Change) -> None:
        name, offset = "rs"[m % 2], min(n, log.next_offset)
        if m % 3 == 0:
            position = Position(offset, n % 2 == 0)
            body = retention.hold(log, position)
            log.readers[name] = position
            change.events.append(Declared(log.number, Action.READER, name, body, self.now_us))
        elif m % 3 == 1:
            log.readers.setdefault(name, Position(offset)).offset = offset
            change.events.append(Positioned(log.number, name, offset, self.now_us))
        elif name in log.readers:
            del log.readers[name]
            change.events.append(Declared(log.number, Action.FORGET, name, b"", self.now_us))
        retention.update(self.engine, log, self.now_us)

    def do_alter(self, log: Log, n: int, m: int, change: Change) -> None:
        choice: list[dict[str, Any]] = [
            {"retain_seconds": 30}, {"retain_seconds": None, "retain_bytes": None}, {"retain_bytes": 5},
        ]  # fmt: skip
        self.engine.alter(log, altered(log.policy, **choice[n % 3]), self.now_us, change)

    def do_wait(self, log: Log, n: int, m: int, change: Change) -> None:
        self.now_us += (n * 7 + m) * SECOND_US
        self.engine.advance(self.now_us, change)

    def do_snapshot(self, log: Log, n: int, m: int, change: Change) -> None:
        self.snapshot = self.engine.encode(), len(self.events)

    # --- taking over ---

    def taken_over(self, *, snapshot: tuple[bytes, int] | None = None, settled: bool = True) -> Subject:
        twin = Subject(self.events)
        state, start = snapshot or (None, 0)
        if state is not None:
            twin.engine.restore(state)
        for time_us, event in self.events[start:]:
            replay(twin.engine, event, time_us)
        twin.now_us = self.now_us
        if settled:
            twin._opened(self)
        return twin


def seen(machine: Subject, log: Log) -> dict[str, Any]:
    """What anybody can see of a log, leaving out who has what in hand: that ends with its owner."""
    gone = log.unavailable(0, log.next_offset)
    return {
        "stored": [list(gap) for gap in gone.gaps(0, log.next_offset)],
        "depth": log.depth,
        "delayed": log.delayed_count,
        "groups": {
            name: (
                [list(gap) for gap in group.settled.gaps(0, log.next_offset)], group.ready, group.retrying,
                len(group.leases), {o: group.tally.get(o) for gap in group.settled.gaps(0, log.next_offset) for o in gap},
            )
            for name, group in sorted((group.name, group) for group in log.all_groups())
        },
        "readers": {name: (one.offset, one.holds) for name, one in sorted(log.readers.items())},
        "schedules": {name: (one.due_us, one.body) for name, one in sorted(log.schedules.items())},
        "kept": log.kept_from,
        "bytes": log.bytes,
        "published": log.published,
    }  # fmt: skip


def order(machine: Subject) -> dict[str, Any]:
    """What each group gets, in order; this takes the machine apart."""
    found: dict[str, Any] = {}
    for log in sorted(machine.engine.logs.values(), key=lambda log: log.name):
        for group in log.all_groups():
            grant = machine.grant(log, 1000, group.name, keep=True)
            found[f"{log.name} {group.name}"] = grant and (list(grant.offsets), grant.attempts)
    return found


COMMANDS = sorted(name.removeprefix("do_") for name in vars(Subject) if name.startswith("do_"))
commands = st.lists(
    st.tuples(st.sampled_from([*COMMANDS, "publish", "publish", "lease", "ack", "wait"]), st.integers(0, 1), st.integers(0, 12), st.integers(0, 12)),
    min_size=3, max_size=40,
)  # fmt: skip


def played(policy: dict[str, Any], given: list[tuple[str, int, int, int]]) -> Subject:
    machine = Subject()
    queue = machine.declare(**policy)
    change = Change()
    topic = machine.engine.declare(
        "default", "t", altered(queue.policy, backoff=PROMPT), machine.now_us, change, "topic"
    )
    machine.done(change)
    for what, which, n, m in given:
        machine.command((queue, topic)[which], what, n, m)
    change = Change()
    machine.engine.advance(machine.now_us, change)
    machine.done(change)
    return machine


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(given=commands)
def test_the_same_events_give_another_engine(
    policy: dict[str, Any], given: list[tuple[str, int, int, int]]
) -> None:
    machine = played(policy, given)
    one, two = machine.taken_over(settled=False), machine.taken_over(settled=False)
    assert one.engine.encode() == two.engine.encode()
    assert one.engine.encode() == one.engine.encode(), "asking changes something"
    again = Subject()
    again.engine.restore(one.engine.encode())
    assert again.engine.encode() == one.engine.encode(), "a snapshot of a snapshot is another one"


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(given=commands)
def test_it_matters_how_an_engine_was_opened(
    policy: dict[str, Any], given: list[tuple[str, int, int, int]]
) -> None:
    machine = played(policy, given)
    ways = {
        "replayed": machine.taken_over(),
        "from the end": machine.taken_over(snapshot=(machine.engine.encode(), len(machine.events))),
    }
    if machine.snapshot is not None:
        ways["from a snapshot"] = machine.taken_over(snapshot=machine.snapshot)
    found = {way: {log.name: seen(one, log) for log in one.engine.logs.values()} for way, one in ways.items()}
    for way, states in found.items():
        assert states == found["replayed"], f"{way}, and replayed"
    orders = {way: order(one) for way, one in ways.items()}
    for way, taken in orders.items():
        assert taken == orders["replayed"], f"{way}, and replayed"


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(given=commands)
@example(given=[("publish", 1, 0, 0), ("wait", 0, 8, 0), ("position", 1, 0, 0)])
@example(given=[("publish", 1, 0, 0), ("publish", 1, 0, 0), ("publish", 1, 1, 0), ("position", 1, 0, 0)])
@example(given=[("publish", 0, 0, 0), ("publish", 0, 1, 0), ("subscribe", 0, 1, 0), ("position", 0, 0, 0)])
def test_an_owner_who_takes_over_sees_something_else(
    policy: dict[str, Any], given: list[tuple[str, int, int, int]]
) -> None:
    """Where nothing is in anybody's hands, and nothing is late, taking over changes nothing."""
    machine = played(policy, given)
    for log in list(machine.engine.logs.values()):
        for group in log.all_groups():
            held = sorted(group.leases.offsets())
            if held:
                machine.settle(log, "ack", *held, group=group.name)
    after = machine.taken_over()
    assert {log.name: seen(after, log) for log in after.engine.logs.values()} == {
        log.name: seen(machine, log) for log in machine.engine.logs.values()
    }
    assert order(after) == order(machine)
