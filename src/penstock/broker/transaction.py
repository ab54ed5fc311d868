"""Several things at once: publishes to any logs and settles, in one frame, all or nothing; and one message to many logs.

Theory of operation
-------------------
A transaction is a list of steps that its shell collects; nothing is done before it is handed in. Then everything that could be refused is looked at first, with nothing
changed: leases, sizes, limits of depth, dedup ids, room on the disk. What follows cannot fail, and all its events are one unit: one frame, which holds whole or not at all.

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
from penstock.engine import dead, overflow
from penstock.engine.change import Change
from penstock.engine.engine import Engine, check_sizes
from penstock.engine.events import Batch
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.engine.pattern import compile_pattern, is_pattern
from penstock.errors import BatchTooLarge, InvalidArgument, LeaseLost
from penstock.journal.kinds import MESSAGES
from penstock.message import Message
from penstock.names import check_name
from penstock.policy import Policy

#: Steps of one transaction. Each may be a section of its frame, or two.
OPERATIONS_MAX: Final = 10_000


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
    if how == "ack":
        engine.ack(log, group, offsets, numbers, now_us, change)
    elif how == "nack":
        engine.nack(log, group, offsets, numbers, delay_us, error, now_us, change)
    elif how == "reject":
        engine.reject(log, group, offsets, numbers, error, now_us, change)
    else:
        engine.give_back(log, group, offsets, numbers, now_us, change, seen=how == "requeue")


class _Plan:
    """What a transaction will do, once it is known that it can."""

    def __init__(self) -> None:
        self.new: dict[str, Batch] = {}
        self.settles: list[tuple[Log, Group, Operation, Receipts]] = []
        self.publishes: list[tuple[Log | str, Batch]] = []
        self.bytes = 0


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
        engine, change = self.monitor.engine, Change(whole=True)
        for log, group, step, receipts in plan.settles:
            settle(engine, log, group, receipts, step.how, step.delay_us, step.error, now_us, change)
        ids: list[int] = []
        for target, batch in plan.publishes:
            found = target if isinstance(target, Log) else engine.find(namespace, target)
            if found is None:
                found = engine.declare(namespace, str(target), Policy.of(), now_us, change)
                self.monitor.skip_what_was_given_up(found)
            batch.ids = self.monitor.ids.take(len(batch.payloads))
            ids += engine.publish(found, batch, now_us, change)
        if self.monitor.draining:
            self.monitor.settled.notify_all()
        return Recorded(ids, self.monitor.record(change))

    # --- whether it can be done ---

    def _planned(self, namespace: str, operations: Sequence[Operation], now_us: int) -> _Plan:
        plan = _Plan()
        ended: dict[Log, int] = {}
        once: set[tuple[Log, str, int]] = set()
        for step in operations:
            if step.receipts is not None:
                self._plan_settling(plan, step, step.receipts, ended, once)
        coming: dict[Log, tuple[int, int]] = {}
        for step in operations:
            if step.messages:
                self._plan_publishing(plan, namespace, step, ended, coming, now_us)
        if plan.bytes > limits.FRAME_BYTES_MAX:
            raise BatchTooLarge(
                f"a transaction of {plan.bytes} bytes is over the bound of {limits.FRAME_BYTES_MAX} bytes: make it several"
            )
        return plan

    def _plan_settling(
        self, plan: _Plan, step: Operation, receipts: Receipts, ended: dict[Log, int], once: set[tuple[Log, str, int]]
    ) -> None:  # fmt: skip
        log = alive(step.log)  # type: ignore[arg-type]
        group = held_in(log, receipts.group)
        group.require_leases(receipts.offsets, receipts.numbers)
        for offset in receipts.offsets:
            if (log, group.name, offset) in once:
                raise InvalidArgument(
                    f"message {offset} of {log.name!r} is settled twice in one transaction: settle it once"
                )
            once.add((log, group.name, offset))
        plan.settles.append((log, group, step, receipts))
        plan.bytes += SECTION_OVERHEAD_BYTES + 32 * len(receipts.offsets) + 4 * len(step.error or "")
        if step.how == "ack":
            if len(log.groups) == 1:
                ended[log] = ended.get(log, 0) + len(receipts.offsets)
        else:  # it may go to the dead letters, which hold all of it once more
            plan.bytes += DECLARATION_BYTES_MAX + dead.buried_bytes(
                self.monitor.engine, log, receipts.offsets
            )

    def _plan_publishing(
        self, plan: _Plan, namespace: str, step: Operation, ended: dict[Log, int],
        coming: dict[Log, tuple[int, int]], now_us: int,
    ) -> None:  # fmt: skip
        target: Handle | str = step.log
        if isinstance(target, str):
            name = check_name(target, kind="queue name", reserved_ok=True)
            target = self.monitor.engine.find(namespace, name) or check_name(name, kind="queue name")
        log = None if isinstance(target, str) else alive(target)
        policy = log.policy if log is not None else Policy.of()
        batch = compose.batch_of(list(step.messages), policy, now_us)
        check_sizes(policy, batch)
        plan.publishes.append((log if log is not None else str(target), batch))
        plan.bytes += bytes_of(batch) + (DECLARATION_BYTES_MAX if log is None else 0)
        if log is None:
            return
        fresh = batch
        if batch.dedup_id is not None or policy.delivery == "exactly-once":
            batch.ids = range(len(batch.payloads))  # to be replaced
            log.dedup.expire(now_us)
            found, _ = log.without_repeats(batch, now_us) if batch.dedup_id is not None else (batch, [])
            if batch.dedup_id is None:
                raise InvalidArgument(
                    f"{log.name!r} promises exactly-once: give each message a dedup_id by which a repetition is known"
                )
            if found is None:
                return
            fresh = found
        count, size = coming.get(log, (0, 0))
        coming[log] = (count + len(fresh.payloads), size + fresh.size)
        overflow.require_room(log, *coming[log], ended.get(log, 0))

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
                raise not_found("queue", wanted.text, "matches no queue or topic")
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
