"""Messages to consumers: leased at once, or when they come to those who wait for them.

Who waits stands in line for his log and group. Whoever makes something ready (a publisher, a nack, the timer) leases on his behalf; his thread
or loop wakes to find it. If he has gone meanwhile, what was leased for him goes back to its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock import argument
from penstock.broker.contents import SECTION_OVERHEAD_BYTES, fitting
from penstock.broker.monitor import NOTHING, Monitor
from penstock.broker.port import Arrived, Granted
from penstock.broker.shelf import runs_of
from penstock.broker.ticket import DONE, Again, Answer, Leasing, Record, Recorded, Refused, Ticket, Waiting
from penstock.clock import microseconds
from penstock.engine import cursors
from penstock.engine.change import Change
from penstock.engine.events import Offsets
from penstock.engine.group import Group, Terms
from penstock.engine.log import Log
from penstock.engine.strategy import Want, shares
from penstock.errors import BrokerClosed, InvalidArgument, PenstockError, QueueNotFound, TopicNotFound
from penstock.journal.kinds import LEASES, METADATA
from penstock.model.commands import DEFAULT_GROUP, Attach, Handle, HandOver
from penstock.names import not_found


class LogHandle(Handle):
    """A handle of this broker."""

    log: Log | None = None


def handle_of(log: Log) -> Handle:
    """Return the handle of a log: all callers have the same one."""
    if log.handle is None:
        log.handle = LogHandle(log.namespace, log.name, log.kind, log.number, log.policy, log.deleted, log)
    return log.handle


class Handing:
    """What hands out the messages of a broker."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        monitor.serve = self.serve
        monitor.dismiss = self.dismiss

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, settle: bool,
        ahead: int, bytes_max: int | None, rides: bool, renew: bool = False,
    ) -> Ticket[Granted | None]:  # fmt: skip
        """Lease what is ready, or wait; filters take what steps are left, or new ones (`renew`)."""
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin(renew=renew)
            found = alive(log)
            found.used_us = now_us
            here = self.group_of(found, group, now_us)
            if consumer is not None and consumer not in here.members:
                raise BrokerClosed(
                    f"the consumer {consumer!r} was closed, taken out, or thought dead, and what it had went to others: subscribe again"
                )
            cursors.heard(here, consumer, now_us)
            waiting = Waiting(
                (found, group), count, consumer, settle=settle, give_up=self.give_up, ahead=ahead,
                bytes_max=bytes_max, rides=rides, deadline_us=wait_us and now_us + wait_us,
            )  # fmt: skip
            ticket = self._try_lease(waiting, here, count, now_us, change)
            if ticket is UNDECIDED:
                return self._again(waiting)
            if ticket is not None:
                return ticket
            if wait_us == 0:
                return NOTHING
            self.monitor.wait_in_line(waiting)
            return waiting

    def group_of(self, log: Log, name: str, now_us: int) -> Group:
        """With the lock held: a group of a log. A queue's own one is made when it is first asked for."""
        if name not in log.groups:
            if log.kind == "topic" or name != DEFAULT_GROUP:
                raise no_group(log, name)
            engine = self.monitor.engine
            begin = cursors.beginning(engine, log, name, 0, Terms())
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + len(begin.body))
            change = Change()
            cursors.subscribe(engine, log, name, begin, now_us, change)
            self.monitor.record(change, sync=False)
        return log.group(name)

    def _again(self, one: Waiting) -> Again:
        """Have the caller ask once more in another turn, until its deadline."""

        def ask() -> Ticket[Granted | None]:
            wait_us = one.deadline_us and one.deadline_us - self.monitor.now()
            if wait_us is not None and wait_us < 0:
                return NOTHING
            log, group = one.place
            return self.lease(
                handle_of(log), group, one.count, consumer=one.consumer, wait_us=wait_us, settle=one.settle,
                ahead=one.ahead, bytes_max=one.bytes_max, rides=one.rides, renew=True,
            )  # fmt: skip

        return Again(ask)

    def _try_lease(
        self, one: Waiting, group: Group, count: int, now_us: int, change: Change
    ) -> Ticket[Granted | None] | None:
        """With the lock held: lease up to `count` messages that are ready; None if none is.

        `UNDECIDED` if a filter has not looked at everything yet.
        """
        log, consumer = one.place[0], one.consumer
        while group.lanes.count and _is_active(log, group, consumer):
            self.monitor.require_room(LEASES, SECTION_OVERHEAD_BYTES + 32 * min(count, group.lanes.count))
            try:
                grant = self.monitor.engine.lease(
                    log, group, count, one.consumer, now_us, change, keep=not one.settle, fits=self._fits(one),
                    ahead=max(0, count - one.count + one.ahead),
                )  # fmt: skip
            except PenstockError:
                if change:
                    self.monitor.record(change, sync=False)  # what was not wanted
                raise
            if grant is None:
                if change:
                    self.monitor.record(change, sync=False)  # what was not wanted
                return UNDECIDED if group.lanes.count else None
            try:
                runs, lost = runs_of(self.monitor.shelf, log.number, grant.offsets)
            except PenstockError as error:
                if not grant.number:  # they are settled, and nobody has them
                    self.monitor.fail(error)
                    raise
                self.monitor.engine.take_back(group, grant, change)
                if change:
                    self.monitor.record(change, sync=False)
                raise
            if lost and grant.number:
                self.monitor.engine.lose(log, group, lost, now_us, change)
            log.delivered += len(grant.offsets) - len(lost)
            record = self._recorded(change, sync=not grant.number)
            if runs:
                held = [offset for offset in grant.offsets if offset not in lost] if lost else grant.offsets
                attempts = grant.attempts
                if lost and isinstance(attempts, list):
                    attempts = [a for o, a in zip(grant.offsets, attempts, strict=True) if o not in lost]
                member = group.members.get(consumer) if consumer is not None else None
                if member is not None:
                    group.turns += 1
                    member.turn = group.turns
                granted = Granted(group.name, grant.number, held, attempts, runs)
                if one.rides and grant.number:
                    self.monitor.record_soon(record)
                    record = DONE
                return Leasing(granted, record, self.take_back, log)
            change = Change()
        return None

    def _fits(self, one: Waiting) -> Callable[[Offsets], int] | None:
        log, most = one.place[0], one.bytes_max
        if most is None or one.count == 1:
            return None
        return lambda offsets: fitting(self.monitor.shelf, log.number, offsets, most)

    def _recorded(self, change: Change, *, sync: bool) -> Record:
        """With the lock held: record what was done in a group, if there is anything to record."""
        if change:
            return self.monitor.record(change, sync=sync)
        self.monitor.follow()
        return DONE

    def serve(self, log: Log) -> None:
        """With the lock held: lease for those who wait, and tell those who only watch."""
        for name in self.monitor.lines.groups_of(log):
            if name == WATCHING:
                for one in self.monitor.lines.of(log, WATCHING):
                    if one.count < log.arrived:
                        self.monitor.answer(one, NOTHING)
            elif name in log.groups:
                self._serve_group(log, log.group(name))
        for (told, name), tell in self.monitor.told.items():
            if told is log and name in log.groups and log.group(name).lanes.count:
                tell(log.number, name)

    def tell_of(self, log: Log, group: str, tell: Arrived | None) -> None:
        """With the lock held: tell of what is ready in a group, now and from now on, or no more."""
        if tell is None:
            self.monitor.told.pop((log, group), None)
            self.monitor.reopen(log)
            return
        self.monitor.told[log, group] = tell
        log.plain = None
        if self.group_of(log, group, self.monitor.now()).lanes.count:
            tell(log.number, group)

    def _serve_group(self, log: Log, group: Group) -> None:
        """Share out what is ready, as the group's strategy says, among those who wait and may be given something."""
        while group.lanes.count:
            line = self.monitor.lines.of(log, group.name)
            waiting = [one for one in line if one.stands and _is_active(log, group, one.consumer)]
            if not waiting:
                return
            for one, share in self._shares(log, group, waiting):
                if not share or not one.stands:
                    continue
                try:
                    ticket = self._try_lease(one, group, share, self.monitor.now(), Change())
                except PenstockError as error:
                    ticket = Refused(error)
                if ticket is None:
                    break
                if ticket is UNDECIDED:
                    ticket = self._again(one)
                # He may have been answered meanwhile, if the queue was deleted, or the broker failed.
                self.monitor.answer(one, ticket)
            else:
                continue
            return

    def _shares(self, log: Log, group: Group, waiting: list[Waiting]) -> list[tuple[Waiting, int]]:
        """Who gets how many, in the order in which they get them."""
        strategy = group.terms.strategy or log.policy.strategy
        busy = group.leases.by_consumer() if strategy == "least-busy" else {}
        wants = []
        for one in waiting:
            member = group.members.get(one.consumer) if one.consumer is not None else None
            wants.append(Want(one.count, member.turn if member else 0, busy.get(one.consumer, 0)))
        given = shares(strategy, group.lanes.count, wants, self.monitor.engine.chance.unit)
        return sorted(zip(waiting, given, strict=True), key=lambda pair: wants[waiting.index(pair[0])].turn)

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
            if granted.group not in log.groups:
                return
            group = log.group(granted.group)
            found = zip(granted.offsets, group.leases.of(granted.offsets), strict=True)
            held = [offset for offset, lease in found if lease is not None and lease.number == granted.number]
            if held:
                self.monitor.engine.give_back(
                    log, group, held, [granted.number] * len(held), now_us, change, seen=False
                )
                self._recorded(change, sync=False)

    def hand_over(self, log: Handle, command: HandOver) -> Ticket[list[int]]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin(settling=True)
            found = alive(log)
            if command.group not in found.groups:
                return Answer([])
            group, offsets = found.group(command.group), command.offsets
            cursors.heard_from(group, offsets, now_us)
            self.monitor.require_room(LEASES, SECTION_OVERHEAD_BYTES + 32 * len(offsets))
            held = self.monitor.engine.hand_over(found, group, offsets, command.numbers, now_us, change)
            return Recorded(held, self._recorded(change, sync=False))

    def attach(self, log: Handle, group: str, coming: Attach) -> Ticket[str]:
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin()
            found = alive(log)
            here = self.group_of(found, group, now_us)
            name = cursors.attach(here, coming.consumer, now_us, microseconds(coming.silence))
            if coming.silence is not None:
                self.monitor.engine.set_alarm(found)
                self.monitor.follow()
            return Answer(name)

    def release(self, log: Handle, group: str, consumer: str, *, retire: bool = False) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            if self.monitor.failure is not None:
                return Answer(None)  # it has nothing any more
            now_us, change = self.monitor.begin(settling=True)
            found = log_of(log)
            self.monitor.settled.notify_all()
            if not found.deleted and group in found.groups:
                for waiting in self.monitor.lines.of(found, group):
                    if waiting.consumer == consumer:
                        self.monitor.answer(waiting, NOTHING)
                cursors.detach(
                    self.monitor.engine, found, found.group(group), consumer, now_us, change, retire=retire
                )
                self.monitor.engine.use(found, now_us)
            if change:
                return Recorded(None, self.monitor.record(change, sync=False))
            self.monitor.follow()  # the next one may be active now
            return Answer(None)

    def dismiss(self, log: Log) -> None:
        """With the lock held: a log, or a group of it, is gone, and those who wait there wait in vain."""
        for waiting in self.monitor.lines.of_log(log):
            if log.deleted:
                self.monitor.answer(waiting, Refused(not_found(log.kind, log.name, "was deleted")))
            elif waiting.place[1] not in log.groups and waiting.place[1] != WATCHING:
                self.monitor.answer(waiting, Refused(no_group(log, waiting.place[1])))


def no_group(log: Log, name: str) -> PenstockError:
    if log.kind == "topic":
        return TopicNotFound(
            f"the topic {log.name!r} has no subscription {name!r} (any more): make one, or check the name"
        )
    return QueueNotFound(f"the queue {log.name!r} has no group {name!r}: make one, or check the name")


def log_of(handle: Handle) -> Log:
    """Return the log of a handle of this broker."""
    log = handle.log if type(handle) is LogHandle else None
    if log is None:
        raise InvalidArgument(f"{argument.quoted(handle)} is not a queue or topic of this broker")
    return log


def alive(handle: Handle) -> Log:
    """Return the log of a handle, unless it was deleted."""
    log = handle.log if type(handle) is LogHandle else log_of(handle)
    if log is None or log.deleted:
        log = log_of(handle)
        raise not_found(log.kind, log.name, "was deleted")
    return log


def _is_active(log: Log, group: Group, consumer: str | None) -> bool:
    """Whether a consumer may be given messages: with `single_active`, only the one that came first."""
    return not log.policy.single_active or not group.members or next(iter(group.members)) == consumer


#: Where those stand in line who take nothing, but want to know when a message of an offset comes.
WATCHING: Final = ""

#: The filter of a group has looked at many messages, and found none of those wanted, but not at all that are ready.
UNDECIDED: Final[Ticket[Any]] = Answer(None)
