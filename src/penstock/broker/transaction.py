"""Several commands in one unit, all or none; and one message to many logs.

Theory of operation
-------------------
Everything that could be refused is looked at first, with nothing changed: leases, sizes, limits of
depth, dedup ids, room on the disk (`_Plan`). What follows refuses nothing any more, and all its
events are one unit of records: one frame, which holds whole or not at all.

Leases are settled before anything is published, so what takes a message from a full queue and
publishes another to it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from penstock import limits
from penstock.broker import compose
from penstock.broker.contents import DECLARATION_BYTES_MAX, SECTION_OVERHEAD_BYTES, bytes_of
from penstock.broker.handing import alive, handle_of
from penstock.broker.monitor import Monitor
from penstock.broker.reading import Reading, bytes_of_commit
from penstock.broker.ticket import DONE, Answer, Record, Recorded, Ticket
from penstock.clock import microseconds
from penstock.engine import cursors, dead, overflow
from penstock.engine.change import Change
from penstock.engine.engine import Engine, check_sizes, dead_letter_target
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.engine.pattern import compile_pattern, is_pattern
from penstock.errors import BatchTooLarge, InvalidArgument, LeaseLost, PenstockError, QueueNotFound
from penstock.journal.kinds import MESSAGES
from penstock.model.batch import Batch
from penstock.model.commands import Commit, Handle, Pattern, Publish, PutMetadata, Settle, Target, Unit
from penstock.names import check_name, is_dead_letter_name, not_found
from penstock.policy import Policy

#: Queues that a transaction makes: each takes some 0.1 ms, in which others wait.
NEW_QUEUES_MAX: Final = 1000


def held_in(log: Log, name: str) -> Group:
    """The group whose leases are to end."""
    if name not in log.groups:
        raise LeaseLost(
            f"the group {name!r} of {log.name!r} has ended, and its leases with it: drop the result"
        )
    return log.group(name)


def settle(engine: Engine, log: Log, group: Group, command: Settle, now_us: int, change: Change) -> None:
    """End leases, all or none."""
    offsets, numbers, how, error = command.offsets, command.numbers, command.how, command.error
    cursors.heard_from(group, offsets, now_us)
    if how == "ack":
        engine.ack(log, group, offsets, numbers, now_us, change)
    elif how == "nack":
        engine.nack(log, group, offsets, numbers, microseconds(command.delay), error, now_us, change)
    elif how == "reject":
        engine.reject(log, group, offsets, numbers, error, now_us, change)
    else:
        engine.give_back(log, group, offsets, numbers, now_us, change, seen=how == "requeue")


class _Plan:
    """What a unit will do, and how full logs are then: made step by step, each refused if it cannot be done."""

    def __init__(
        self, engine: Engine, namespace: str, now_us: int, set_back_us: int, defaults: Policy
    ) -> None:
        self._engine = engine
        self._defaults = defaults  # of a log that is made by it
        self._new: dict[str, int] = {}  # messages for such logs
        self._namespace = namespace
        self._now_us = now_us
        self._set_back_us = set_back_us
        self.settles: list[tuple[Log, Group, Settle]] = []
        self.publishes: dict[int, list[tuple[Log | str, Batch]]] = {}  # by the step they are of
        self.commits: list[tuple[int, Log, Commit]] = []
        self.metadata: list[PutMetadata] = []
        self.adding = 0  # messages
        self.bytes = 0
        self._ended: dict[Log, dict[str, set[int]]] = {}  # offsets that are settled for good, by group
        self._held: set[tuple[Log, str, int]] = set()
        self._coming: dict[Log, tuple[int, int]] = {}  # messages and bytes, by log
        self._repeated: dict[Log | str, set[str]] = {}
        self._payloads: set[tuple[int, ...]] = set()

    def settle(self, target: Handle, command: Settle) -> None:
        log = alive(target)
        if log.namespace != self._namespace:
            raise InvalidArgument(
                f"a delivery of the namespace {log.namespace!r} cannot be settled in a transaction of {self._namespace!r}: "
                "begin it where the delivery is from"
            )
        group = held_in(log, command.group)
        group.require_leases(command.offsets, command.numbers)
        for offset in command.offsets:
            if (log, group.name, offset) in self._held:
                raise InvalidArgument(
                    f"message {offset} of {log.name!r} is settled twice in one transaction: settle it once"
                )
            self._held.add((log, group.name, offset))
        self.settles.append((log, group, command))
        self.bytes += 2 * SECTION_OVERHEAD_BYTES + 64 * len(command.offsets) + 4 * len(command.error or "")
        over = command.offsets
        if command.how != "ack":  # some may go to the dead letters, which hold all of them once more
            late = [offset for offset in command.offsets if offset in group.overdue]
            if command.how == "nack":
                over = [*self._engine.at_their_last(log, group, command.offsets), *late]
            self.bytes += DECLARATION_BYTES_MAX + dead.buried_bytes(self._engine, log, command.offsets)
            dropped = late if log.policy.on_expire == "drop" else []
            self._letters(log, [offset for offset in over if offset not in dropped])
        self._ended.setdefault(log, {}).setdefault(group.name, set()).update(over)

    def _letters(self, log: Log, offsets: list[int]) -> None:
        """Dead letters come whether there is room or not; what is published beside them must find some."""
        grave = (
            None
            if is_dead_letter_name(log.name)
            else self._engine.find(log.namespace, dead_letter_target(log))
        )
        if grave is not None and offsets:
            count, size = self._coming.get(grave, (0, 0))
            found = self._engine.fetch(log, offsets)
            payloads = sum(len(one.payload) for one in found if one is not None)
            self._coming[grave] = (count + len(offsets), size + payloads)

    def publish(self, number: int, target: Target | Log, command: Publish) -> None:
        """Plan one step's messages for one log, or for the queue of a name."""
        if isinstance(target, str):
            name = check_name(target, kind="queue name", reserved_ok=True)
            log = self._engine.find(self._namespace, name)
            if log is None:
                check_name(name, kind="queue name")
        else:
            log = target if isinstance(target, Log) else alive(cast(Handle, target))
        policy = log.policy if log is not None else self._defaults
        batch = compose.stored(command, policy, self._now_us, self._set_back_us)
        check_sizes(policy, batch)
        self.publishes.setdefault(number, []).append((log if log is not None else str(target), batch))
        self.adding += len(batch.payloads)
        self.bytes += bytes_of(batch) + (DECLARATION_BYTES_MAX if log is None else 0)
        payloads = tuple(map(id, batch.payloads))
        if payloads in self._payloads:  # they are stored once
            self.bytes -= batch.size
        self._payloads.add(payloads)
        if log is None:
            self._new[str(target)] = self._new.get(str(target), 0) + len(batch.payloads)
            if len(self._new) > NEW_QUEUES_MAX:
                raise BatchTooLarge(
                    f"a transaction makes at most {NEW_QUEUES_MAX} queues: create some of them first, or make it several"
                )
            overflow.require_room_anew(str(target), self._new[str(target)], policy)
            return
        fresh = self._without_repeats(log, batch)
        if fresh is not None:
            count, size = self._coming.get(log, (0, 0))
            self._coming[log] = (count + len(fresh.payloads), size + fresh.size)
            overflow.require_room(log, *self._coming[log], *self._left(log))

    def commit(self, number: int, target: Handle, command: Commit) -> None:
        """Plan where a reader is."""
        log = alive(target)
        self.bytes += bytes_of_commit(log, command)
        self.commits.append((number, log, command))

    def _without_repeats(self, log: Log, batch: Batch) -> Batch | None:
        """What of a batch was not published before, be it in the same transaction."""
        if batch.dedup_id is None:
            if log.policy.delivery == "exactly-once":
                raise InvalidArgument(
                    f"{log.name!r} promises exactly-once: give each message a dedup_id by which a repetition is known"
                )
            return batch
        batch.ids = range(len(batch.payloads))  # to be replaced
        log.dedup.expire(self._now_us)
        fresh, _ = log.without_repeats(batch, self._now_us)
        if fresh is None:
            return None
        seen = self._repeated.setdefault(log, set())
        rows = [row for row, one in enumerate(fresh.dedup_id or ()) if one is None or one not in seen]
        seen.update(one for one in fresh.dedup_id or () if one is not None)
        return fresh.rows(rows) if rows else None

    def _left(self, log: Log) -> tuple[int, int]:
        """How many messages a log has, and of how many bytes, once everything is settled that is to be."""
        ended = self._ended.get(log)
        if ended is None:
            return log.depth, log.bytes
        settled = min(len(group.settled) + len(ended.get(name, ())) for name, group in log.groups.items())
        over = set().union(*ended.values())
        freed = sum(
            log.sizes.get(offset, 0)
            for offset in over
            if all(
                offset in group.settled or offset in ended.get(name, ()) for name, group in log.groups.items()
            )
        )
        return log.next_offset - settled, log.bytes - freed


class Transactions:
    """What does several commands at once, or sends one message to several logs."""

    def __init__(self, monitor: Monitor, reading: Reading) -> None:
        self.monitor = monitor
        self._reading = reading

    def commit(self, unit: Unit) -> Ticket[list[Any]]:
        """Do a unit of publishes, settlements, positions and metadata."""
        if len(unit.steps) > limits.STEPS_MAX:
            raise BatchTooLarge(
                f"a transaction of {len(unit.steps)} steps is over the bound of {limits.STEPS_MAX}: make it several"
            )
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin()
            if not unit.steps:
                return Answer([])
            plan = self._planned(unit, now_us)
            self.monitor.require_room(MESSAGES, plan.bytes)
            return self._carried_out(unit, plan, now_us)

    def _planned(self, unit: Unit, now_us: int) -> _Plan:
        """With the lock held: what is to be done, if all of it can be."""
        engine = self.monitor.engine
        plan = _Plan(engine, unit.namespace, now_us, self.monitor.set_back_us, self.monitor.defaults)
        for target, command in unit.steps:
            if isinstance(command, Settle):
                plan.settle(cast(Handle, target), command)
        depths = []
        for number, (target, command) in enumerate(unit.steps):
            if isinstance(command, Publish):
                if command.each:
                    raise InvalidArgument(
                        "publishing each message that fits is done by itself, to a log that exists: leave out each"
                    )
                depths.append(command.depth_max)
                for log in self._targets(unit.namespace, target):
                    plan.publish(number, log, command)
            elif isinstance(command, Commit):
                plan.commit(number, cast(Handle, target), command)
            elif isinstance(command, PutMetadata):
                plan.bytes += engine.metadata.bytes_of(unit.namespace, command.key, command.value)
                plan.metadata.append(command)
            elif not isinstance(command, Settle):
                raise InvalidArgument(
                    f"{type(command).__name__.lower()} is done by itself; together may be done publishes, "
                    "settlements, positions and metadata"
                )
        for depth_max in depths:
            self.monitor.require_depth(unit.namespace, plan.adding, depth_max)
        if plan.bytes > limits.FRAME_BYTES_MAX:
            raise BatchTooLarge(
                f"a transaction of {plan.bytes} bytes is over the bound of {limits.FRAME_BYTES_MAX} bytes: make it several"
            )
        return plan

    def _targets(self, namespace: str, target: Target | None) -> list[Any]:
        """With the lock held: the logs that a publish goes to."""
        if not isinstance(target, Pattern):
            return [target]
        wanted = compile_pattern(target.text)
        found = self.monitor.engine.of_namespace(namespace)
        logs = [log for log in found if _is_meant(log, wanted.text, wanted.matches(log.name))]
        if not logs:
            if not is_pattern(wanted.text):
                raise not_found("queue", wanted.text)
            raise QueueNotFound(
                f"no queue or topic matches {wanted.text!r}: create one first, or take another pattern"
            )
        if len(logs) > limits.STEPS_MAX:
            raise BatchTooLarge(
                f"{wanted.text!r} matches {len(logs)} queues and topics, and one publish goes to {limits.STEPS_MAX} at the most"
            )
        return logs

    def _carried_out(self, unit: Unit, plan: _Plan, now_us: int) -> Recorded[list[Any]]:
        """With the lock held: do what was planned; if the plan was wrong, only a part is done, and the broker fails."""
        try:
            return self._done(unit, plan, now_us)
        except PenstockError as error:
            self.monitor.fail(error)
            raise

    def _done(self, unit: Unit, plan: _Plan, now_us: int) -> Recorded[list[Any]]:
        """With the lock held: do what was planned, in one frame."""
        engine, change = self.monitor.engine, Change(whole=True)
        answers: list[Any] = [None] * len(unit.steps)
        for log, group, command in plan.settles:
            settle(engine, log, group, command, now_us, change)
        for number, publishes in plan.publishes.items():
            ids = [self._published(unit.namespace, *one, now_us, change) for one in publishes]
            if isinstance(unit.steps[number][0], Pattern):
                answers[number] = {
                    log.name: given
                    for (log, _), given in zip(publishes, ids, strict=True)
                    if isinstance(log, Log)
                }
            else:
                (answers[number],) = ids
        for number, log, commit in plan.commits:
            answers[number] = self._reading.committed(log, commit, now_us, change)
        for put in plan.metadata:
            engine.metadata.put(unit.namespace, put.key, put.value, now_us, change)
        if self.monitor.draining:
            self.monitor.settled.notify_all()
        return Recorded(answers, self.monitor.record(change))

    def _published(
        self, namespace: str, target: Log | str, batch: Batch, now_us: int, change: Change
    ) -> Sequence[int]:
        engine = self.monitor.engine
        found = target if isinstance(target, Log) else engine.find(namespace, target)
        if found is None:
            found = engine.declare(namespace, str(target), self.monitor.defaults, now_us, change)
            self.monitor.skip_what_was_given_up(found)
        batch.ids = self.monitor.ids.take(len(batch.payloads))
        return engine.publish(found, batch, now_us, change, planned=True)

    def publish_each(self, log: Log, command: Publish) -> Ticket[list[int | PenstockError]]:
        """Publish what fits, one message after the other; an id or an error for each."""
        answers: list[int | PenstockError] = []
        record: Record = DONE
        for row, payload in enumerate(command.payloads):
            columns = None if command.columns is None else command.columns.row(row)
            one = Publish([payload], columns, depth_max=command.depth_max)
            with self.monitor.lock, self.monitor.whole:
                now_us, _ = self.monitor.begin()
                unit = Unit(log.namespace, [(handle_of(log), one)])
                try:
                    plan = self._planned(unit, now_us)
                    self.monitor.require_room(MESSAGES, plan.bytes)
                except PenstockError as error:
                    answers.append(error)
                    continue
                ticket = self._carried_out(unit, plan, now_us)
            answers.append(ticket.value[0][0])
            record = ticket.record
        return Recorded(answers, record)


def _is_meant(log: Log, text: str, matches: bool) -> bool:
    """Dead letters are meant only by their own name."""
    return matches and (not log.name.endswith(".dlq") or log.name == text)
