"""The port over one engine in this process, in memory or on a journal.

A command is checked, applied to the engine and recorded, under the lock and in the order that
`monitor` describes. A unit of one command goes to that command's method here; a unit of several is
planned as a whole first (`transaction`). Handing out messages is `handing`'s; plain messages one at
a time take a short way (`express`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from penstock import argument
from penstock.broker import compose, grouping
from penstock.broker.contents import (
    DECLARATION_BYTES_MAX,
    RANGE_BYTES_MAX,
    SECTION_OVERHEAD_BYTES,
    bytes_of,
    due_of,
    message_of,
    ranges_of,
)
from penstock.broker.express import Express, JournalExpress, visible_us
from penstock.broker.grouping import Grouping
from penstock.broker.handing import Handing, alive, handle_of
from penstock.broker.monitor import Monitor, Totals
from penstock.broker.port import Arrived, Granted, Page
from penstock.broker.reading import Reading
from penstock.broker.scheduling import recurring_of
from penstock.broker.shelf import JournalShelf, MemoryShelf
from penstock.broker.survey import take_survey
from penstock.broker.ticket import Again, Answer, Listed, Recorded, Ticket
from penstock.broker.transaction import Transactions, held_in, settle
from penstock.clock import SECOND_US, Clock
from penstock.engine import cursors, dead, schedules
from penstock.engine.engine import dead_letter_target
from penstock.engine.filter import Filter, compile_filter
from penstock.engine.group import Group
from penstock.engine.log import NOTHING_KEPT, Log, Plain, is_plain
from penstock.errors import InvalidArgument, LeaseLost, PolicyConflict, WrongKind
from penstock.journal.kinds import MESSAGES, METADATA, SETTLEMENTS
from penstock.limits import DELIVERIES_MAX, PRIORITY_DEFAULT, SCHEDULES_MAX
from penstock.loop import running_loop
from penstock.message import Message
from penstock.model import commands, queries
from penstock.model.batch import Run
from penstock.model.commands import (
    DEFAULT_GROUP,
    DEFAULT_NAMESPACE,
    DeadLetters,
    Handle,
    Publish,
    Receipts,
    Redriven,
    Settle,
    Spec,
)
from penstock.model.stats import BrokerStats, QueueStats
from penstock.names import check_name, is_dead_letter_name, not_found
from penstock.policy import altered, checked, differences

T = TypeVar("T")

#: Dead letters that go back in one unit, at the most, unless one alone is larger; and how many are looked at for that, while others wait.
REDRIVEN_BYTES: Final = 8 << 20
SEEN_AT_ONCE: Final = 1000


class Embedded:
    """A broker in this process."""

    def __init__(self, monitor: Monitor, *, traced: bool = False) -> None:
        self.monitor = monitor
        self.clock: Clock = monitor.clock
        self._handing = Handing(monitor)
        self._reading = Reading(monitor)
        self._grouping = Grouping(monitor, self._handing, self._reading)
        self._transactions = Transactions(monitor, self._reading)
        monitor.reopen = self._open_short_way
        self._express = (
            Express(monitor)
            if isinstance(monitor.shelf, MemoryShelf) and not traced  # the short way leaves no trace
            else None
        )
        self._short = (
            JournalExpress(monitor, monitor.journal, monitor.shelf, self._handing)
            if monitor.journal is not None and isinstance(monitor.shelf, JournalShelf)
            else None
        )
        self._any_short = self._express or self._short
        #: What does a command that is alone in its unit.
        self._alone: Final[dict[type[commands.Command], Callable[..., Ticket[Any]]]] = {
            commands.Publish: self._publish,
            commands.Cancel: self._cancel,
            commands.Schedule: self._schedule,
            commands.Unschedule: self._unschedule,
            commands.Settle: self._settle,
            commands.HandOver: self._handing.hand_over,
            commands.OpenGroup: self._grouping.open_group,
            commands.CloseGroup: self._grouping.close_group,
            commands.Seek: self._grouping.seek,
            commands.Commit: self._reading.commit,
            commands.Forget: self._reading.forget,
            commands.Alter: self._alter,
            commands.Delete: self._delete,
            commands.Purge: self._purge,
            commands.Redrive: self._redrive,
        }
        self._answers: Final[dict[type[queries.Query[Any]], Callable[..., Any]]] = {
            queries.Find: self._find,
            queries.Names: self._names,
            queries.Namespaces: self._namespaces,
            queries.ClaimedNames: lambda query: monitor.engine.claimed_names(query.namespace),
            queries.OfLog: lambda query: self._stats_of(alive(query.log)),
            queries.OfNamespace: self._stats,
            queries.Lag: self._grouping.lag,
            queries.Locate: self._reading.locate,
            queries.Timeline: lambda query: monitor.timeline(query.namespace, query.id),
            queries.HeldBy: self._held,
            queries.RedriveSource: self._redrive_source,
            queries.Metadata: lambda query: monitor.engine.metadata.of(query.namespace, query.prefix),
        }

    def close(self, timeout_s: float | None = None) -> None:
        """Wake those who wait, finish what is under way, keep a snapshot, and let go.

        With a timeout, what is handed out may be settled for so long before.
        """
        self.monitor.close(timeout_s)

    def host(self) -> bool:
        """Have the running loop commit what comes from it, for a process that is there to serve; False if a thread has to."""
        return self.monitor.journal is None or self.monitor.journal.host(running_loop())

    def wake(self) -> None:
        """Look at the clock now: for clocks that are moved by hand."""
        self.monitor.wake()

    # --- the ten calls ---

    def declare(self, spec: Spec | DeadLetters) -> Ticket[Handle]:
        if isinstance(spec, DeadLetters):
            return self._dead_letters(spec.log)
        kind, create, given = spec.kind, spec.create, spec.policy
        name = check_name(spec.name, kind=f"{kind} name", reserved_ok=create is False)
        policy = checked(given)
        wanted = altered(self.monitor.defaults, **policy)
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            log = self.monitor.engine.find(spec.namespace, name)
            if log is None:
                if create is False:
                    raise not_found(kind, name)
                self.monitor.require_room(METADATA, DECLARATION_BYTES_MAX)
                log = self.monitor.engine.declare(spec.namespace, name, wanted, now_us, change, kind)
                self.monitor.skip_what_was_given_up(log)
            elif log.kind != kind:
                raise WrongKind(
                    f"{name!r} is a {log.kind}, not a {kind}: use it as a {log.kind}, or take another name"
                )
            elif create:
                differing = "; ".join(map(str, differences(log.policy, policy))) or "with the same policy"
                raise PolicyConflict(
                    f"the {kind} {name!r} exists already ({differing}); use that one, or take another name"
                )
            else:
                _require_same(log, policy)
                self.monitor.engine.use(log, now_us)
            self._open_short_way(log)
            return Recorded(handle_of(log), self.monitor.record(change))

    def describe(self, query: queries.Query[T]) -> Ticket[T]:
        if isinstance(query, queries.Overview):  # takes the lock for a few logs at a time
            return cast(Ticket[T], Answer(take_survey(self.monitor, query.namespaces, query.bounds)))
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin(settling=type(query) is queries.HeldBy)
            return Answer(self._answers[type(query)](query))

    def commit(self, unit: commands.Unit) -> Ticket[list[Any]]:
        if len(unit.steps) == 1:
            target, command = unit.steps[0]
            if self._express is not None:
                if type(command) is Publish:
                    if _is_plain(command) and (given := self._express.publish(target, command.payloads[0])):
                        return Answer([[given]])
                elif (
                    type(command) is Settle
                    and len(command.offsets) == 1
                    and command.how == "ack"
                    and self._express.ack(target, command)
                ):
                    return Answer([None])
            ticket = self._one(unit, target, command)
        else:
            ticket = self._transactions.commit(unit)
        return ticket if unit.wait else self.monitor.unwaited(ticket)

    def _one(self, unit: commands.Unit, target: Any, command: commands.Command) -> Ticket[list[Any]]:
        alone = self._alone.get(type(command))
        if alone is None or not isinstance(target, Handle):
            return self._transactions.commit(unit)
        return Listed(alone(target, command))

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None = None, wait_us: int | None = 0,
        settle: bool = False, ahead: int = 0, bytes_max: int | None = None, rides: bool = False,
    ) -> Ticket[Granted | None]:  # fmt: skip
        if type(count) is not int or not 1 <= count <= DELIVERIES_MAX:
            raise InvalidArgument(
                f"the number of messages is {argument.quoted(count)}; give an int from 1 to {DELIVERIES_MAX}"
            )
        if type(ahead) is not int or not 0 <= ahead <= count:
            raise InvalidArgument(
                f"{argument.quoted(ahead)} of {count} messages are to be leased ahead; give an int from 0 to {count}"
            )
        if count == 1 and not settle and not ahead and group == DEFAULT_GROUP and self._any_short is not None:
            ticket = self._any_short.lease(alive(log), consumer, rides=rides)
            if ticket is not None:
                return ticket
        return self._handing.lease(
            log, group, count, consumer=consumer, wait_us=wait_us, settle=settle, ahead=ahead,
            bytes_max=bytes_max, rides=rides,
        )  # fmt: skip

    def extend(self, log: Handle, receipts: Receipts, seconds: float) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin(settling=True)
            found = alive(log)
            group = held_in(found, receipts.group)
            cursors.heard_from(group, receipts.offsets, now_us)
            until_us = now_us + round(seconds * SECOND_US)
            self.monitor.engine.extend(found, group, receipts.offsets, receipts.numbers, until_us)
            self.monitor.follow()
            return Answer(None)

    def read(
        self, log: Handle, place: int | str | commands.Place, count: int, *, wait_us: int | None = 0
    ) -> Ticket[Page]:
        if not isinstance(place, str):
            return self._reading.read(log, place, count, wait_us)
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            return Answer(Page(self._upcoming(alive(log), count), 0, 0))

    def commit_position(self, log: Handle, command: commands.Commit) -> Ticket[Any]:
        """Store how far a reader is, for what takes in reports of readers."""
        return self._reading.commit(log, command)

    def position(self, log: Handle, reader: str) -> Ticket[int | None]:
        return self._reading.position(log, reader)

    def consumer(self, log: Handle, group: str, presence: commands.Presence) -> Ticket[Any]:
        if isinstance(presence, commands.Attach):
            return self._handing.attach(log, group, presence)
        if isinstance(presence, commands.Heartbeat):
            return self._grouping.heartbeat(log, group, presence.consumer)
        return self._handing.release(log, group, presence.consumer, retire=presence.retire)

    def arrivals(self, log: Handle, group: str, tell: Arrived | None) -> None:
        with self.monitor.lock, self.monitor.whole:
            self._handing.tell_of(alive(log), group, tell)

    # --- logs ---

    def _open_short_way(self, log: Log) -> None:
        """With the lock held: have plain messages of a plain log take the short way, unless a receiver waits there."""
        log.plain = None
        if (
            not is_plain(log.policy)
            or log.kept_from < NOTHING_KEPT
            or not log.groups
            or log.sizes
            or log.held_ids
            or any(group.keys for group in log.groups.values())
            or self.monitor.is_watched(log)
        ):
            return
        contents = {} if self._express is None else self._express.contents_of(log)
        group, lanes, lane = None, None, None
        if len(log.groups) == 1 and DEFAULT_GROUP in log.groups:
            group = log.group()
            lanes, lane = group.lanes, group.lanes.lane(PRIORITY_DEFAULT)
        log.plain = Plain(group, lanes, lane, contents, log.policy.max_message_bytes, visible_us(log))

    def _find(self, query: queries.Find) -> Handle | None:
        found = self.monitor.engine.find(query.namespace, query.name)
        return None if found is None else handle_of(found)

    def _names(self, query: queries.Names) -> list[str]:
        logs = self.monitor.engine.of_namespace(query.namespace)
        return [log.name for log in logs if log.kind == query.kind and not is_dead_letter_name(log.name)]

    def _namespaces(self, _: queries.Namespaces) -> list[str]:
        return sorted({log.namespace for log in self.monitor.engine.logs.values()})

    def _stats_of(self, log: Log) -> QueueStats:
        group = _furthest_behind(log)
        dead = None
        if not is_dead_letter_name(log.name):
            dead = self.monitor.engine.find(log.namespace, dead_letter_target(log))
        return QueueStats(
            name=log.name,
            depth=log.depth,
            ready=group.ready if group else 0,
            delayed=log.delayed_count,
            leased=len(group.leases) if group else 0,
            retrying=group.retrying if group else 0,
            dead=dead.depth if dead is not None else 0,
            bytes=log.bytes if log.policy.max_bytes is not None else None,
            next_offset=log.next_offset,
            published=log.published,
            consumers=log.consumers,
            waiting=log.receivers,
            kind=log.kind,
            groups=grouping.describe(log),
            readers={name: log.next_offset - found.offset for name, found in log.readers.items()},
            schedules=list(log.schedules),
            delivered=log.delivered,
            acked=log.acked,
        )

    def _stats(self, query: queries.OfNamespace) -> BrokerStats:
        """What the broker knows of a namespace; of itself only where everything is, which is the default one."""
        logs = self.monitor.engine.of_namespace(query.namespace)
        behind = [group for log in logs if (group := _furthest_behind(log)) is not None]
        gone = self.monitor.retired.get(query.namespace, Totals())
        journal = None
        if self.monitor.journal is not None and query.namespace == DEFAULT_NAMESPACE:
            journal = self.monitor.journal.stats()
        return BrokerStats(
            queues=sum(log.kind == "queue" for log in logs),
            topics=sum(log.kind == "topic" for log in logs),
            ready=sum(group.ready for group in behind),
            leased=sum(len(group.leases) for group in behind),
            delayed=sum(log.delayed_count for log in logs),
            retrying=sum(group.retrying for group in behind),
            published=gone.published + sum(log.published for log in logs),
            delivered=gone.delivered + sum(log.delivered for log in logs),
            acked=gone.acked + sum(log.acked for log in logs),
            journal=journal,
            depth=self.monitor.engine.depth(query.namespace),
        )

    def _require_room_to_change(self, log: Log) -> None:
        """With the lock held: there is room to record what is said of a log as a whole."""
        self.monitor.require_room(METADATA, DECLARATION_BYTES_MAX + RANGE_BYTES_MAX * ranges_of(log))

    def _alter(self, log: Handle, command: commands.Alter) -> Ticket[None]:
        fields = checked(command.policy)
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            self._require_room_to_change(found)
            self.monitor.engine.alter(found, altered(found.policy, **fields), now_us, change)
            self._open_short_way(found)
            return Recorded(None, self.monitor.record(change))

    def _delete(self, log: Handle, _: commands.Delete) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            self._require_room_to_change(found)
            self.monitor.engine.delete(found, now_us, change)
            return Recorded(None, self.monitor.record(change))

    def _purge(self, log: Handle, _: commands.Purge) -> Ticket[int]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            self._require_room_to_change(found)
            removed = self.monitor.engine.purge(found, now_us, change)
            return Recorded(removed, self.monitor.record(change))

    def _dead_letters(self, log: Handle) -> Ticket[Handle]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            self._require_room_to_change(found)
            dead_letters = self.monitor.engine.dead_letters(found, now_us, change)
            # What another caller has just changed may not be durable yet: then this answer waits for that too.
            return Recorded(handle_of(dead_letters), self.monitor.record(change))

    def _redrive_source(self, query: queries.RedriveSource) -> Handle | None:
        """The log's dead letters if it has some, or itself if it holds those of others."""
        found = alive(query.log)
        source = None
        if not is_dead_letter_name(found.name):
            source = self.monitor.engine.find(found.namespace, dead_letter_target(found))
        if source is None and self.monitor.engine.holds_dead_letters(found):
            source = found
        return None if source is None else handle_of(source)

    # --- publishing ---

    def _publish(self, log: Handle, command: commands.Publish) -> Ticket[Any]:
        found = alive(log)
        payloads = command.payloads
        if self._short is not None and _is_plain(command):
            ticket = self._short.publish(found, payloads[0])
            if ticket is not None:
                return ticket
        if command.each:
            return self._transactions.publish_each(found, command)
        batch = compose.stored(command, found.policy, self.monitor.now(), self.monitor.set_back_us)
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            if not batch.payloads:
                return Answer([])
            if found.deleted:
                alive(log)
            self.monitor.require_depth(found.namespace, len(batch.payloads), command.depth_max)
            self.monitor.require_room(MESSAGES, bytes_of(batch))
            batch.ids = self.monitor.ids.take(len(batch.payloads))
            ids = self.monitor.engine.publish(found, batch, now_us, change)
            if found.plain is None:
                self._open_short_way(found)
            return Recorded(ids, self.monitor.record(change))

    def _cancel(self, log: Handle, command: commands.Cancel) -> Ticket[bool]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            offset = self._reading.offset_of(found, commands.Place(message_id=command.id))
            self.monitor.require_room(SETTLEMENTS, SECTION_OVERHEAD_BYTES * (1 + len(found.groups)))
            batch = self.monitor.shelf.get(found.number, offset)
            due_us = None if batch is None else due_of(batch, offset - batch.first)
            if not schedules.cancel(self.monitor.engine, found, offset, due_us, now_us, change):
                return Answer(False)
            return Recorded(True, self.monitor.record(change))

    def _schedule(self, log: Handle, command: commands.Schedule) -> Ticket[bool]:
        recurring = recurring_of(command, log.policy)
        body = recurring.encode()
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found, name = alive(log), command.name
            known = name in found.schedules
            if not known and len(found.schedules) >= SCHEDULES_MAX:
                raise InvalidArgument(
                    f"{log.name!r} has {SCHEDULES_MAX} schedules, and that is the bound; remove one, or have one message stand for several"
                )
            due_us = recurring.first_us(now_us)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + len(body) + 4 * len(name))
            schedules.put(self.monitor.engine, found, name, due_us, body, now_us, change)
            return Recorded(known, self.monitor.record(change))

    def _unschedule(self, log: Handle, command: commands.Unschedule) -> Ticket[bool]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found, name = alive(log), command.name
            if name not in found.schedules:
                return Answer(False)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + 4 * len(name))
            schedules.put(self.monitor.engine, found, name, None, b"", now_us, change)
            return Recorded(True, self.monitor.record(change))

    # --- settling ---

    def _settle(self, log: Handle, command: commands.Settle) -> Ticket[None]:
        offsets, numbers = command.offsets, command.numbers
        if not offsets:
            raise InvalidArgument("nothing is given to settle")
        if (
            self._short is not None
            and command.how == "ack"
            and len(offsets) == 1
            and command.group == DEFAULT_GROUP
        ):
            short = self._short.ack(alive(log), offsets[0], numbers[0])
            if short is not None:
                return short
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin(settling=True)
            found = alive(log)
            group = held_in(found, command.group)
            self.monitor.require_room(
                SETTLEMENTS, 2 * SECTION_OVERHEAD_BYTES + 64 * len(offsets) + 4 * len(command.error or "")
            )
            settle(self.monitor.engine, found, group, command, now_us, change)
            if self.monitor.draining:
                self.monitor.settled.notify_all()
            if not change and not group.durable:
                self.monitor.follow()
                return Answer(None)
            return Recorded(None, self.monitor.record(change))

    def _held(self, query: queries.HeldBy) -> Receipts:
        """What settles the message of that id: a message has one lease in the queue's own group at the most."""
        found = alive(query.log)
        group = found.groups.get(DEFAULT_GROUP)
        try:
            offset = self._reading.offset_of(found, commands.Place(message_id=query.id))
        except InvalidArgument:
            offset = -1
        lease = None if group is None else group.leases.get(offset)
        if lease is None:
            raise LeaseLost(
                f"the message {query.id} of {found.name!r} is not handed out (any more): it was settled, its time was over, or it was never there. "
                "Drop the result"
            )
        return Receipts(DEFAULT_GROUP, [offset], [lease.number])

    # --- looking, and moving dead letters ---

    def _upcoming(self, log: Log, count: int) -> list[Run]:
        """With the lock held: the next messages in order; of a topic, what the subscription furthest behind gets next."""
        group = log.group() if DEFAULT_GROUP in log.groups else min(
            log.all_groups(), key=lambda one: len(one.settled), default=None
        )  # fmt: skip
        found: list[Run] = []
        for piece in group.lanes.pieces() if group is not None else ():
            for offset in range(piece[1], piece[2]):
                if len(found) >= count:
                    return found
                batch = self.monitor.shelf.get(log.number, offset)
                if batch is not None:
                    found.append(Run(batch, offset - batch.first, offset - batch.first + 1))
        return found

    def _redrive(self, log: Handle, command: commands.Redrive) -> Ticket[Redriven]:
        where = None if command.where is None else compile_filter(command.where)
        if where is not None and self.monitor.engine.steps_left <= 0:
            return Again(lambda: self._redriven(log, command, where, renew=True))
        return self._redriven(log, command, where)

    def _redriven(
        self, log: Handle, command: commands.Redrive, where: Filter | None, *, renew: bool = False
    ) -> Ticket[Redriven]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin(renew=renew)
            found = alive(log)
            target = None
            if command.to is not None:
                target = self.monitor.engine.find(found.namespace, command.to)
                if target is None:
                    raise not_found("queue", command.to)
                if target is found:
                    raise InvalidArgument(
                        f"{command.to!r} holds these dead letters: redrive them to another queue"
                    )
            whole = range(found.arrived) if command.span is None else range(*command.span)
            chosen, left = self._to_redrive(found, target, command.count, where, whole)
            moved = dead.redrive(self.monitor.engine, found, chosen, target, now_us, change)
            if len(moved) < len(chosen):  # there was no room for all of them
                left = range(next(offset for offset in chosen if offset not in moved), whole.stop)
            answer = Redriven(len(moved), (left.start, left.stop))
            return Recorded(answer, self.monitor.record(change)) if change else Answer(answer)

    def _matches(self, where: Filter, message: Message) -> bool:
        """With the lock held: whether a filter matches, which takes steps of this turn."""
        self.monitor.engine.steps_left -= where.steps(message)
        return where.matches(message)

    def _to_redrive(
        self, log: Log, target: Log | None, count: int, where: Filter | None, span: range
    ) -> tuple[list[int], range]:
        """With the lock held: the first dead letters within a span of offsets that go back, and what of it was not looked at yet.

        One whose origin was deleted stays, and does not stand in the way of the others.
        """
        chosen: list[int] = []
        size = seen = 0
        for gap in dead.pending(log, span):
            for offset in gap:
                batch = self.monitor.shelf.get(log.number, offset)
                if batch is not None and not dead.is_leased(log, offset):
                    message = message_of(batch, offset - batch.first)
                    if dead.has_way_back(self.monitor.engine, log, message.headers, target) and (
                        where is None or self._matches(where, message)
                    ):
                        more = SECTION_OVERHEAD_BYTES + bytes_of(
                            batch.part(offset - batch.first, offset - batch.first + 1)
                        )
                        if chosen and size + more > REDRIVEN_BYTES:
                            return chosen, range(offset, span.stop)
                        chosen.append(offset)
                        size += more
                        self.monitor.require_room(MESSAGES, size)
                seen += 1
                spent = where is not None and self.monitor.engine.steps_left <= 0
                if len(chosen) == count or seen == SEEN_AT_ONCE or spent:
                    return chosen, range(offset + 1, span.stop)
        return chosen, range(0)


def _is_plain(command: commands.Publish) -> bool:
    """Whether one payload is published and nothing else is said."""
    return len(command.payloads) == 1 and command.columns is None and command.depth_max is None


def _furthest_behind(log: Log) -> Group | None:
    return min(log.all_groups(), key=lambda found: len(found.settled), default=None)


def _require_same(log: Log, given: dict[str, Any]) -> None:
    differing = differences(log.policy, given)
    if differing:
        raise PolicyConflict(
            f"the {log.kind} {log.name!r} exists with another policy: {'; '.join(map(str, differing))}. "
            f"Leave out what differs, or alter the {log.kind}"
        )
