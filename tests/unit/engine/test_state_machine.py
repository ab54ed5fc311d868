"""The engine against a naive model: the same commands, time jumps, crashes and snapshots, and everything agrees after every step.

The harness is all that a broker is to the engine: it keeps contents in a dict, records events in a list, and lets messages arrive at once.
A crash replays the recorded events into a new engine, from the beginning and from the last snapshot, and goes on with either.

What it would notice: a wrong order or place, a count that drifts, an attempt that is not counted, an event that is not recorded or not replayed, a
snapshot that leaves something out, an alarm that is set too late, a content that is dropped too early or never.
"""

from __future__ import annotations

from collections.abc import Callable
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

from penstock.clock import ManualClock, to_datetime
from penstock.engine import dead
from penstock.engine.change import Change, Content
from penstock.engine.engine import Engine
from penstock.engine.events import Event
from penstock.engine.history import replay
from penstock.engine.log import Log
from penstock.errors import PenstockError
from penstock.model.batch import Batch
from penstock.policy import Backoff, Policy, altered
from tests.faults import campaign
from tests.unit.engine.model import SECOND, Item, Model, Receipt, Row

pytestmark = pytest.mark.lengthy

Answer = TypeVar("Answer")

NAMES: Final = ("a", "b")
START: Final = ManualClock.START_US


class Harness:
    """An engine with what it needs: contents, ids, and a list in which events are recorded."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.disk: dict[tuple[int, int], Content] = {}
        self.shelf: dict[tuple[int, int], Content] = {}
        self.events: list[tuple[Event, int]] = []
        self.snapshot: tuple[bytes, int] | None = None
        self.engine = Engine(
            seed=1, fetch=self._fetch, take_ids=self.take_ids, make_room=lambda _size, _settling: None
        )
        self.engine.begin_epoch(epoch)
        self._ids = epoch << 32

    def take_ids(self, count: int) -> range:
        first, self._ids = self._ids, self._ids + count
        return range(first, self._ids)

    def _fetch(self, log: Log, offsets: Any) -> list[Content | None]:
        return [self.shelf[log.number, offset] for offset in offsets]

    def log(self, name: str) -> Log:
        found = self.engine.find("default", name)
        assert found is not None, f"there is no {name}"
        return found

    def run(self, now: int, command: Callable[[Change], Answer]) -> Answer:
        """Do what a broker does with a command. One that is refused has changed nothing."""
        change = Change()
        try:
            answer = command(change)
        except PenstockError:
            assert not change
            raise
        for unit in change.units():
            for log, first, batch in unit.arrivals:
                self._store(log.number, first, batch)
            self.events += [(event, now) for event in unit.events]
            self.engine.arrive(unit.arrivals, now)
        for log, offsets in self.engine.released:
            for offset in offsets:
                self.shelf.pop((log.number, offset), None)
        self.engine.released.clear()
        self.engine.stirred.clear()
        return answer

    def _store(self, log: int, first: int, batch: Batch) -> None:
        def at(column: Any, row: int) -> Any:
            return column[row] if isinstance(column, list) else column

        for row, payload in enumerate(batch.payloads):
            content = Content(
                batch.ids[row],
                payload,
                at(batch.headers, row),
                at(batch.key, row),
                at(batch.priority, row),
                None,
            )
            self.disk[log, first + row] = self.shelf[log, first + row] = content

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
        live = {(log.number, o) for log in heir.engine.logs.values() for o in _unsettled(log)}
        heir.shelf = {place: content for place, content in heir.shelf.items() if place in live}
        return heir


def _unsettled(log: Log) -> list[int]:
    if not log.groups:
        return list(range(log.next_offset))
    return [offset for gap in log.group().settled.gaps(0, log.next_offset) for offset in gap]


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
        none_or_list([row.dedup_id for row in rows]),
        size=sum(len(row.payload) for row in rows),
    )


def policies(dead_letter: str) -> st.SearchStrategy[Policy]:
    """Policies whose limits are reached soon. Each queue has dead letters of its own, so that their order is known."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "visibility_timeout": st.sampled_from([None, 2, 5]),
        "max_attempts": st.sampled_from([None, 1, 2, 3]),
        "backoff": st.sampled_from(
            [None, Backoff(initial=1, factor=2, maximum=3, jitter=0), Backoff(initial=0, jitter=0)]
        ),
        "dead_letter": st.sampled_from([None, dead_letter]),
        "on_expire": st.sampled_from(["drop", "dead-letter"]),
        "max_depth": st.sampled_from([None, None, 3, 6]),
        "max_bytes": st.sampled_from([None, None, 30]),
        "overflow": st.sampled_from(["reject", "drop-head"]),
        "ordering": st.sampled_from(["fifo", "key"]),
        "delivery": st.sampled_from(["at-least-once"] * 4 + ["at-most-once", "exactly-once"]),
        "dedup_window": st.sampled_from([2, 5]),
    }
    return st.fixed_dictionaries(fields).map(lambda given: Policy.of(**given))


#: Few different moments, so that many things happen at once.
waits = st.integers(1, 6).map(lambda seconds: seconds * SECOND)
sketches = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([100, 100, 1, 200]),
        "delay": st.none() | waits,
        "ttl": st.none() | waits,
        "key": st.sampled_from([None, "k", "l"]),
        "dedup_id": st.sampled_from([None, None, "x", "y"]),
        "size": st.integers(1, 12),
    }
)


class Machine(RuleBasedStateMachine):
    """The same commands for both."""

    @initialize(first=policies("b"), second=policies("c"))
    def declare(self, first: Policy, second: Policy) -> None:
        self.now = START
        self.model = Model()
        self.harness = Harness()
        self.receipts: list[Receipt] = []
        self.published = 0
        for name, policy in zip(NAMES, (first, second), strict=True):
            self.model.declare(name, policy)
            change = Change()
            self.engine.declare("default", name, policy, self.now, change)
            self.harness.events += [(event, self.now) for event in change.events]

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
        answer = self.run(real)
        assert answer == expected
        return answer

    def some_queue(self, data: st.DataObject) -> str:
        return str(data.draw(st.sampled_from(sorted(self.model.queues)), label="queue"))

    # --- publishing ---

    @rule(data=st.data(), made=st.lists(sketches, min_size=1, max_size=4))
    def publish(self, data: st.DataObject, made: list[dict[str, Any]]) -> None:
        name = data.draw(st.sampled_from(NAMES), label="queue")
        self.publish_rows(name, [self.row(**sketch) for sketch in made])

    @rule(data=st.data(), count=st.integers(1, 5), priority=st.sampled_from([100, 1]))
    def publish_plain(self, data: st.DataObject, count: int, priority: int) -> None:
        name = data.draw(st.sampled_from(NAMES), label="queue")
        exact = self.model.queues[name].policy.delivery == "exactly-once"
        rows = [self.row(priority=priority) for _ in range(count)]
        for row in rows:
            row.dedup_id = f"plain-{row.id}" if exact else None
        self.publish_rows(name, rows)

    def row(
        self, priority: int, delay: int | None = None, ttl: int | None = None, key: str | None = None,
        dedup_id: str | None = None, size: int = 1,
    ) -> Row:  # fmt: skip
        self.published += 1
        payload = (b"%d" % self.published).ljust(size, b".")
        due = None if delay is None else self.now + delay
        expires = None if ttl is None else self.now + ttl
        return Row(payload, self.harness.take_ids(1)[0], priority, due, expires, key, dedup_id)

    def publish_rows(self, name: str, rows: list[Row]) -> None:
        batch = _batch(rows, self.now)
        log = self.harness.log(name)
        self.both(
            lambda change: list(self.engine.publish(log, batch, self.now, change)),
            lambda: self.model.publish(name, rows, self.now),
        )

    # --- leasing ---

    @rule(
        data=st.data(),
        wanted=st.integers(1, 5),
        consumer=st.sampled_from([None, "c", "d"]),
        keep=st.sampled_from([True] * 5 + [False]),
        ahead=st.sampled_from([0, 0, 1, 5]),
    )
    def lease(self, data: st.DataObject, wanted: int, consumer: str | None, keep: bool, ahead: int) -> None:
        ahead = min(ahead, wanted)
        name = self.some_queue(data)
        log = self.harness.log(name)
        grant = self.run(
            lambda change: self.engine.lease(
                log, log.group(), wanted, consumer, self.now, change, keep=keep, ahead=ahead
            )
        )
        token = grant.number if grant is not None else 0
        found = self.model.lease(name, wanted, token, consumer, self.now, keep=keep, ahead=ahead)
        if grant is None:
            assert not found
            return
        attempts = (
            grant.attempts if isinstance(grant.attempts, list) else [grant.attempts] * len(grant.offsets)
        )
        assert list(grant.offsets) == [item.offset for item in found]
        assert attempts == [item.failures + 1 for item in found]
        if token:
            self.receipts += [(name, item.offset, token) for item in found]

    def some_receipts(self, data: st.DataObject) -> tuple[str, list[Receipt], list[int], list[int]]:
        """Those of one queue: fresh ones and old ones, also twice the same."""
        name = data.draw(st.sampled_from(sorted({receipt[0] for receipt in self.receipts})), label="queue")
        mine = [receipt for receipt in self.receipts if receipt[0] == name]
        held = {(item.offset, item.token) for item in self.model.queues[name].those("leased")}
        fresh = [receipt for receipt in mine if receipt[1:] in held]
        choice = st.sampled_from(fresh[-8:]) if fresh else st.sampled_from(mine[-8:])
        if data.draw(st.integers(0, 9), label="stale") == 0:
            choice = st.sampled_from(mine[-8:])
        chosen = data.draw(st.lists(choice, min_size=1, max_size=4), label="receipts")
        return name, chosen, [offset for _, offset, _ in chosen], [token for _, _, token in chosen]

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        name, chosen, offsets, tokens = self.some_receipts(data)
        log = self.harness.log(name)
        self.both(
            lambda change: self.engine.hand_over(log, log.group(), offsets, tokens, self.now, change),
            lambda: self.model.hand_over(name, chosen, self.now),
        )

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        name, chosen, offsets, tokens = self.some_receipts(data)
        log = self.harness.log(name)
        self.both(
            lambda change: self.engine.ack(log, log.group(), offsets, tokens, self.now, change),
            lambda: self.model.ack(name, chosen, self.now),
        )

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), delay=st.none() | st.just(0) | waits, error=st.sampled_from([None, "oh"]))
    def nack(self, data: st.DataObject, delay: int | None, error: str | None) -> None:
        name, chosen, offsets, tokens = self.some_receipts(data)
        log = self.harness.log(name)
        self.both(
            lambda change: self.engine.nack(
                log, log.group(), offsets, tokens, delay, error, self.now, change
            ),
            lambda: self.model.nack(name, chosen, delay, error, self.now),
        )

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), error=st.sampled_from([None, "oh"]))
    def reject(self, data: st.DataObject, error: str | None) -> None:
        name, chosen, offsets, tokens = self.some_receipts(data)
        log = self.harness.log(name)
        self.both(
            lambda change: self.engine.reject(log, log.group(), offsets, tokens, error, self.now, change),
            lambda: self.model.reject(name, chosen, error, self.now),
        )

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        name, chosen, offsets, tokens = self.some_receipts(data)
        log = self.harness.log(name)
        self.both(
            lambda change: self.engine.give_back(log, log.group(), offsets, tokens, self.now, change),
            lambda: self.model.requeue(name, chosen, self.now),
        )

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), wait=waits)
    def extend(self, data: st.DataObject, wait: int) -> None:
        name, chosen, offsets, tokens = self.some_receipts(data)
        log = self.harness.log(name)
        self.both(
            lambda change: self.engine.extend(log, log.group(), offsets, tokens, self.now + wait),
            lambda: self.model.extend(name, chosen, self.now + wait),
        )

    @rule(data=st.data(), consumer=st.sampled_from(["c", "d"]))
    def release(self, data: st.DataObject, consumer: str) -> None:
        name = self.some_queue(data)
        log = self.harness.log(name)
        held = log.group().leases.held_for(consumer)
        expected = [
            item.offset for item in self.model.queues[name].those("leased") if item.consumer == consumer
        ]
        assert held == expected
        if held:
            numbers = [log.group().leases.number_of(offset) for offset in held]
            self.run(lambda change: self.engine.give_back(log, log.group(), held, numbers, self.now, change))
            self.model.release(name, consumer, self.now)

    # --- the rest ---

    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        name = self.some_queue(data)
        self.both(
            lambda change: self.engine.purge(self.harness.log(name), self.now, change),
            lambda: self.model.purge(name, self.now),
        )

    @precondition(lambda self: len(self.model.queues) > len(NAMES))
    @rule(data=st.data(), count=st.integers(1, 5))
    def redrive(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.model.queues) - {"a"})), label="dead letters")
        others = sorted(set(self.model.queues) - {name})
        to = data.draw(st.none() | st.sampled_from(others), label="to")
        target = None if to is None else self.harness.log(to)
        log = self.harness.log(name)
        group = log.group()
        whole = [o for gap in group.settled.gaps(0, log.arrived) for o in gap if o not in group.leases]
        known = [
            offset
            for offset, found in zip(whole, self.engine.fetch(log, whole), strict=True)
            if found is not None
            and (target is not None or dead.origin(self.engine, log, found.headers or {}) is not None)
        ]
        self.both(
            lambda change: len(dead.redrive(self.engine, log, known[:count], target, self.now, change)),
            lambda: self.model.redrive(name, count, to, self.now),
        )

    @rule(data=st.data(), more=st.integers(0, 2), timeout=st.sampled_from([None, 2, 5]))
    def alter(self, data: st.DataObject, more: int, timeout: int | None) -> None:
        """Attempts are not made fewer: replay would find that a lease was the last one that was not when it ended."""
        name = data.draw(st.sampled_from(NAMES), label="queue")
        queue = self.model.queues[name]
        most = None if queue.policy.max_attempts is None else queue.policy.max_attempts + more
        queue.policy = policy = altered(queue.policy, max_attempts=most, visibility_timeout=timeout)
        self.run(lambda change: self.engine.alter(self.harness.log(name), policy, self.now, change))

    @rule(wait=waits | st.just(1) | st.just(SECOND // 2) | st.just(100 * SECOND))
    def pass_time(self, wait: int) -> None:
        self.now += wait
        self.run(lambda change: self.engine.advance(self.now, change))
        self.model.advance(self.now)

    @rule()
    def snapshot(self) -> None:
        self.harness.snapshot = (self.engine.encode(), len(self.harness.events))

    @rule(wait=st.just(0) | waits, from_snapshot=st.booleans())
    def crash(self, wait: int, from_snapshot: bool) -> None:
        if not self.model.has_overdue(self.now):  # else the order of dead letters would be anybody's guess
            self.now += wait
        self.model.crash(self.now)
        heirs = {way: self.harness.reopened(self.now, from_snapshot=way) for way in (False, True)}
        for heir in heirs.values():
            self.harness = heir
            self.agree()
        self.harness = heirs[from_snapshot]

    # --- comparing ---

    @staticmethod
    def upcoming(log: Log) -> list[int]:
        return [offset for _, start, stop, _ in log.group().lanes.pieces() for offset in range(start, stop)]

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        assert sorted(log.name for log in self.engine.of_namespace("default")) == sorted(self.model.queues)
        for name, queue in self.model.queues.items():
            log = self.harness.log(name)
            found, expected = self.counts(log), self.model.counts(name)
            assert found == expected, f"{name}: {found}, not {expected}"
            assert log.next_offset == len(queue.items)
            assert self.upcoming(log) == [item.offset for item in queue.order], name
            assert _unsettled(log) == [item.offset for item in queue.pending]
            if log.policy.max_bytes is not None:
                assert log.bytes == queue.bytes
            self.agree_on_contents(log, queue.pending)
            moment = self.model.next_moment(name)
            if moment is not None:
                assert log.alarm_us is not None, f"{name} would sleep for ever"
                assert log.alarm_us <= moment, f"{name} would sleep for too long"

    def counts(self, log: Log) -> dict[str, int]:
        group = log.group()
        letters = log.policy.dead_letter or f"{log.name}.dlq"
        grave = None if log.name.endswith(".dlq") else self.engine.find("default", letters)
        return {
            "ready": group.ready,
            "delayed": log.delayed_count,
            "leased": len(group.leases),
            "retrying": group.retrying,
            "depth": log.depth,
            "dead": grave.depth if grave is not None else 0,
        }

    def agree_on_contents(self, log: Log, pending: list[Item]) -> None:
        kept = sorted(offset for number, offset in self.harness.shelf if number == log.number)
        assert kept == [item.offset for item in pending], f"contents of {log.name}"
        for item in pending:
            content = self.harness.shelf[log.number, item.offset]
            assert (content.payload, content.priority, content.key) == (item.payload, item.priority, item.key)
            headers = dict(content.headers or {})
            first, last = headers.pop("x-first-failure", None), headers.pop("x-last-failure", None)
            expected = dict(item.headers)
            moment = expected.pop("x-last-failure", None)
            if "x-origin-id" not in expected:  # the model does not know the ids of what was redriven
                headers.pop("x-origin-id", None)
            assert headers == expected
            if moment is not None:
                assert last == to_datetime(int(moment)).isoformat()
                assert first is not None
                assert first <= last


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Machine,
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


def test_engine_and_model_agree_after_every_step() -> None:
    _run(examples=250, steps=40)


@pytest.mark.campaign
def test_engine_and_model_agree_for_long() -> None:
    _run(examples=30 * campaign.rounds(), steps=80)
