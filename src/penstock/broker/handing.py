"""Messages to consumers: leased at once, or when they come to those who wait for them.

Who waits stands in line for his log and group. Whoever makes something ready (a publisher, a nack, the timer) leases on his behalf; his thread
or loop wakes to find it. If he has gone meanwhile, what was leased for him goes back to its place.
"""

from __future__ import annotations

from penstock.broker.contents import SECTION_OVERHEAD_BYTES
from penstock.broker.monitor import NOTHING, Monitor
from penstock.broker.port import Granted, Handle
from penstock.broker.shelf import runs_of
from penstock.broker.ticket import Answer, Leasing, Recorded, Refused, Ticket, Waiting
from penstock.engine.change import Change
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.errors import InvalidArgument, PenstockError, QueueNotFound
from penstock.journal.kinds import LEASES


class Handing:
    """What hands out the messages of a broker."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        monitor.serve = self.serve
        monitor.dismiss = self.dismiss

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool
    ) -> Ticket[Granted | None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            found.used_us = now_us
            ticket = self._try_lease(found, found.group(group), count, consumer, keep, now_us, change)
            if ticket is not None:
                return ticket
            if wait_us is not None and wait_us <= 0:
                return NOTHING
            waiting = Waiting(
                (found, group), count, consumer, keep=keep,
                deadline_us=None if wait_us is None else now_us + wait_us, give_up=self.give_up,
            )  # fmt: skip
            self.monitor.wait_in_line(waiting)
            return waiting

    def _try_lease(
        self,
        log: Log,
        group: Group,
        count: int,
        consumer: str | None,
        keep: bool,
        now_us: int,
        change: Change,
    ) -> Ticket[Granted | None] | None:
        """With the lock held: lease what is ready; None if nothing is."""
        while group.lanes.count and _is_active(log, consumer):
            self.monitor.require_room(LEASES, SECTION_OVERHEAD_BYTES + 16 * min(count, group.lanes.count))
            grant = self.monitor.engine.lease(log, group, count, consumer, now_us, change, keep=keep)
            if grant is None:
                return None
            runs, lost = runs_of(self.monitor.shelf, log.number, grant.offsets)
            if lost and grant.number:
                self.monitor.engine.lose(log, group, lost, now_us, change)
            self.monitor.delivered += len(grant.offsets) - len(lost)
            record = self.monitor.record(change, sync=not grant.number)
            if runs:
                held = [offset for offset in grant.offsets if offset not in lost] if lost else grant.offsets
                attempts = grant.attempts
                if lost and isinstance(attempts, list):
                    attempts = [a for o, a in zip(grant.offsets, attempts, strict=True) if o not in lost]
                return Leasing(
                    Granted(group.name, grant.number, held, attempts, runs), record, self.take_back, log
                )
            change = Change()
        return None

    def serve(self, log: Log) -> None:
        """With the lock held: lease for those who wait, in the order in which they came."""
        for name, group in log.groups.items():
            for waiting in self.monitor.lines.of(log, name):
                if not group.lanes.count:
                    break
                if not waiting.stands or not _is_active(log, waiting.consumer):
                    continue
                try:
                    ticket = self._try_lease(
                        log,
                        group,
                        waiting.count,
                        waiting.consumer,
                        waiting.keep,
                        self.monitor.now(),
                        Change(),
                    )
                except PenstockError as error:
                    ticket = Refused(error)
                if ticket is None:
                    break
                # He may have been answered meanwhile, if the queue was deleted, or the broker failed.
                self.monitor.answer(waiting, ticket)

    def give_up(self, waiting: Waiting, *, granted: bool = True) -> None:
        """Somebody stops waiting. What was `granted` meanwhile goes back, unless he still wants that."""
        with self.monitor.lock, self.monitor.whole:
            self.monitor.answer(waiting, NOTHING)
        if granted and isinstance(waiting.outcome, Leasing):
            waiting.outcome.abandon()

    def take_back(self, log: Log, granted: Granted) -> None:
        """Whoever was granted messages will never see them: they go back to their places."""
        with self.monitor.lock, self.monitor.whole:
            if not granted.number or self.monitor.failure is not None or log.deleted:
                return
            now_us, change = self.monitor.begin(settling=True)
            self.monitor.settled.notify_all()
            group = log.group(granted.group)
            found = zip(granted.offsets, group.leases.of(granted.offsets), strict=True)
            held = [offset for offset, lease in found if lease is not None and lease.number == granted.number]
            if held:
                self.monitor.engine.give_back(log, group, held, [granted.number] * len(held), now_us, change)
                self.monitor.record(change, sync=False)

    def attach(self, log: Handle, group: str, consumer: str) -> Ticket[str]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            found = alive(log)
            found.group(group)
            name, number = consumer, 1
            while name in found.consumers:
                number += 1
                name = f"{consumer}~{number}"
            found.consumers[name] = None
            return Answer(name)

    def release(self, log: Handle, group: str, consumer: str) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            if self.monitor.failure is not None:
                return Answer(None)  # it has nothing any more
            now_us, change = self.monitor.begin(settling=True)
            found = log if isinstance(log, Log) else alive(log)
            self.monitor.settled.notify_all()
            if not found.deleted:
                self._detach(found, group, consumer, now_us)
                held = found.group(group).leases.held_for(consumer)
                if held:
                    numbers = [found.group(group).leases.number_of(offset) for offset in held]
                    self.monitor.engine.give_back(found, found.group(group), held, numbers, now_us, change)
            if change:
                return Recorded(None, self.monitor.record(change, sync=False))
            self.monitor.follow()  # the next one may be active now
            return Answer(None)

    def _detach(self, log: Log, group: str, consumer: str, now_us: int) -> None:
        """With the lock held: what a consumer waits for will not come, and the next one may be active."""
        log.consumers.pop(consumer, None)
        self.monitor.engine.use(log, now_us)
        for waiting in self.monitor.lines.of(log, group):
            if waiting.consumer == consumer:
                self.monitor.answer(waiting, NOTHING)
        self.monitor.engine.stirred.add(log)

    def dismiss(self, log: Log) -> None:
        """With the lock held: a queue is gone, and those who wait for it wait in vain."""
        for waiting in self.monitor.lines.of_log(log):
            self.monitor.answer(waiting, Refused(QueueNotFound(f"the queue {log.name!r} was deleted")))


def alive(handle: Handle) -> Log:
    """The log behind a handle, unless it was deleted."""
    log = handle
    if not isinstance(log, Log):
        raise InvalidArgument(f"{log!r} is not a queue of this broker")
    if log.deleted:
        raise QueueNotFound(f"the queue {log.name!r} was deleted; create it with create_queue({log.name!r})")
    return log


def _is_active(log: Log, consumer: str | None) -> bool:
    """Whether a consumer may be given messages: with `single_active`, only the one that came first."""
    return not log.policy.single_active or not log.consumers or next(iter(log.consumers)) == consumer
