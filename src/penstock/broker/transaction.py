"""Several things at once: publishes to any logs and settles, in one frame, all or nothing; and one message to many logs.

Theory of operation
-------------------
A transaction is a list of steps that its shell collects; nothing is done before it is handed in. Then everything that could be refused is looked at first, with nothing
changed: leases, sizes, limits of depth, dedup ids, room on the disk. What follows refuses nothing any more, and all its events are one unit: one frame, which holds whole or not at all.

Leases are settled before anything is published, so what takes a message from a full queue and publishes another to it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock import limits
from penstock.broker import compose
from penstock.broker.contents import DECLARATION_BYTES_MAX, SECTION_OVERHEAD_BYTES, bytes_of
from penstock.broker.handing import alive, not_found
from penstock.broker.monitor import Monitor
from penstock.broker.port import Handle, How, Operation, Receipts
from penstock.broker.ticket import Answer, Recorded, Ticket
from penstock.engine import cursors, dead, overflow
from penstock.engine.change import Change
from penstock.engine.engine import Engine, check_sizes, dead_letter_target
from penstock.engine.events import Batch
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.engine.pattern import compile_pattern, is_pattern
from penstock.errors import BatchTooLarge, InvalidArgument, LeaseLost, PenstockError, QueueNotFound
from penstock.journal.kinds import MESSAGES
from penstock.message import Message
from penstock.names import check_name, is_dead_letter_name
from penstock.policy import Policy

#: Steps of one transaction. Each may be a section of its frame, or two.
OPERATIONS_MAX: Final = 10_000

#: Queues that a transaction makes: each takes some 0.1 ms, in which others wait.
NEW_QUEUES_MAX: Final = 1000


def held_in(log: Log, name: str) -> Group:
    """The group whose leases are to end."""
    if name not in log.groups:
        raise LeaseLost(
            f"the group {name!r} of {log.name!r} has ended, and its leases with it: drop the result"
        )
    return log.group(name)


def settle(
    engine: Engine, log: Log, group: Group, receipts: Receipts, how: How, delay_us: int | None, error: str | None,
    now_us: int, change: Change,
) -> None:  # fmt: skip
    """End leases, all or none."""
    offsets, numbers = receipts.offsets, receipts.numbers
    cursors.heard_from(group, offsets, now_us)
    if how == "ack":
        engine.ack(log, group, offsets, numbers, now_us, change)
    elif how == "nack":
        engine.nack(log, group, offsets, numbers, delay_us, error, now_us, change)
    elif how == "reject":
        engine.reject(log, group, offsets, numbers, error, now_us, change)
    else:
        engine.give_back(log, group, offsets, numbers, now_us, change, seen=how == "requeue")


class _Plan:
    """What a transaction will do, and how full logs are then: made step by step, each refused if it cannot be done."""

    def __init__(
        self, engine: Engine, namespace: str, now_us: int, set_back_us: int, defaults: Policy
    ) -> None:
        self._engine = engine
        self._defaults = defaults  # of a log that is made by it
        self._new: dict[str, int] = {}  # messages for such logs
        self._namespace = namespace
        self._now_us = now_us
        self._set_back_us = set_back_us
        self.settles: list[tuple[Log, Group, Operation, Receipts]] = []
        self.publishes: list[tuple[Log | str, Batch]] = []
        self.bytes = 0
        self._ended: dict[Log, dict[str, set[int]]] = {}  # offsets that are settled for good, by group
        self._held: set[tuple[Log, str, int]] = set()
        self._coming: dict[Log, tuple[int, int]] = {}  # messages and bytes, by log
        self._repeated: dict[Log | str, set[str]] = {}
        self._payloads: set[tuple[int, ...]] = set()

    def settle(self, step: Operation, receipts: Receipts) -> None:
        log = alive(step.log)  # type: ignore[arg-type]
        if log.namespace != self._namespace:
            raise InvalidArgument(
                f"a delivery of the namespace {log.namespace!r} cannot be settled in a transaction of {self._namespace!r}: "
                "begin it where the delivery is from"
            )
        group = held_in(log, receipts.group)
        group.require_leases(receipts.offsets, receipts.numbers)
        for offset in receipts.offsets:
            if (log, group.name, offset) in self._held:
                raise InvalidArgument(
                    f"message {offset} of {log.name!r} is settled twice in one transaction: settle it once"
                )
            self._held.add((log, group.name, offset))
        self.settles.append((log, group, step, receipts))
        self.bytes += 2 * SECTION_OVERHEAD_BYTES + 64 * len(receipts.offsets) + 4 * len(step.error or "")
        over = receipts.offsets
        if step.how != "ack":  # some may go to the dead letters, which hold all of them once more
            late = [offset for offset in receipts.offsets if offset in group.overdue]
            if step.how == "nack":
                over = [*self._engine.at_their_last(log, group, receipts.offsets), *late]
            self.bytes += DECLARATION_BYTES_MAX + dead.buried_bytes(self._engine, log, receipts.offsets)
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

    def publish(self, step: Operation) -> None:
        target: Handle | str = step.log
        if isinstance(target, str):
            name = check_name(target, kind="queue name", reserved_ok=True)
            target = self._engine.find(self._namespace, name) or check_name(name, kind="queue name")
        log = None if isinstance(target, str) else alive(target)
        policy = log.policy if log is not None else self._defaults
        batch = compose.batch_of(list(step.messages), policy, self._now_us, self._set_back_us)
        check_sizes(policy, batch)
        self.publishes.append((log if log is not None else str(target), batch))
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
    """What does several things at once."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def transact(self, namespace: str, operations: Sequence[Operation]) -> Ticket[list[int]]:
        if len(operations) > OPERATIONS_MAX:
            raise BatchTooLarge(
                f"a transaction of {len(operations)} steps is over the bound of {OPERATIONS_MAX}: make it several"
            )
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin()
            if not operations:
                return Answer([])
            plan = self._planned(namespace, operations, now_us)
            self.monitor.require_room(MESSAGES, plan.bytes)
            return self._carried_out(namespace, plan, now_us)

    def _carried_out(self, namespace: str, plan: _Plan, now_us: int) -> Ticket[list[int]]:
        try:
            return self._done(namespace, plan, now_us)
        except PenstockError as error:  # the plan was wrong: something is done, and something is not
            self.monitor.fail(error)
            raise

    def _done(self, namespace: str, plan: _Plan, now_us: int) -> Ticket[list[int]]:
        engine, change = self.monitor.engine, Change(whole=True)
        for log, group, step, receipts in plan.settles:
            settle(engine, log, group, receipts, step.how, step.delay_us, step.error, now_us, change)
        ids: list[int] = []
        for target, batch in plan.publishes:
            found = target if isinstance(target, Log) else engine.find(namespace, target)
            if found is None:
                found = engine.declare(namespace, str(target), self.monitor.defaults, now_us, change)
                self.monitor.skip_what_was_given_up(found)
            batch.ids = self.monitor.ids.take(len(batch.payloads))
            ids += engine.publish(found, batch, now_us, change, planned=True)
        if self.monitor.draining:
            self.monitor.settled.notify_all()
        return Recorded(ids, self.monitor.record(change))

    def _planned(self, namespace: str, operations: Sequence[Operation], now_us: int) -> _Plan:
        """What is to be done, if all of it can be."""
        plan = _Plan(self.monitor.engine, namespace, now_us, self.monitor.set_back_us, self.monitor.defaults)
        for step in operations:
            if step.receipts is not None:
                plan.settle(step, step.receipts)
        for step in operations:
            if step.messages:
                plan.publish(step)
        if plan.bytes > limits.FRAME_BYTES_MAX:
            raise BatchTooLarge(
                f"a transaction of {plan.bytes} bytes is over the bound of {limits.FRAME_BYTES_MAX} bytes: make it several"
            )
        return plan

    # --- one message to many logs ---

    def route(self, namespace: str, pattern: str, message: bytes | Message) -> Ticket[dict[str, int]]:
        wanted = compile_pattern(pattern)
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin()
            logs = [
                log
                for log in self.monitor.engine.of_namespace(namespace)
                if _is_meant(log, wanted.text, wanted.matches(log.name))
            ]
            if not logs:
                if not is_pattern(wanted.text):
                    raise not_found("queue", wanted.text)
                raise QueueNotFound(
                    f"no queue or topic matches {wanted.text!r}: create one first, or take another pattern"
                )
            if len(logs) > OPERATIONS_MAX:
                raise BatchTooLarge(
                    f"{wanted.text!r} matches {len(logs)} queues and topics, and one publish goes to {OPERATIONS_MAX} at the most"
                )
            plan = self._planned(namespace, [Operation(log, [message]) for log in logs], now_us)
            self.monitor.require_room(MESSAGES, plan.bytes)
            ticket = self._carried_out(namespace, plan, now_us)
            return _Named(ticket, [log.name for log in logs])


def _is_meant(log: Log, text: str, matches: bool) -> bool:
    """Dead letters are meant only by their own name."""
    return matches and (not log.name.endswith(".dlq") or log.name == text)


class _Named:
    """The answer to a message that went to several logs."""

    def __init__(self, ticket: Ticket[list[int]], names: list[str]) -> None:
        self._ticket = ticket
        self._names = names

    def wait(self) -> dict[str, int]:
        return dict(zip(self._names, self._ticket.wait(), strict=True))

    async def get(self) -> dict[str, int]:
        return dict(zip(self._names, await self._ticket.get(), strict=True))
