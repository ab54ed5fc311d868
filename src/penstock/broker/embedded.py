"""The port over one engine in this process, in memory or on a journal.

A command is checked, applied to the engine and recorded, under the lock and in the order that `monitor` describes. Handing out messages is `handing`'s;
plain messages one at a time take a short way (`express`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from penstock import argument
from penstock.broker import compose, grouping
from penstock.broker.contents import (
    DECLARATION_BYTES_MAX,
    SECTION_OVERHEAD_BYTES,
    bytes_of,
    due_of,
    message_of,
)
from penstock.broker.express import Express, JournalExpress, visible_us
from penstock.broker.grouping import Grouping
from penstock.broker.handing import Handing, alive, not_found
from penstock.broker.ledger import DEFAULT_NAMESPACE
from penstock.broker.monitor import Monitor, Totals
from penstock.broker.port import (
    BrokerStats,
    Granted,
    Handle,
    How,
    Kind,
    MessageId,
    Operation,
    Page,
    QueueStats,
    Receipts,
    Redriven,
    What,
)
from penstock.broker.reading import Reading
from penstock.broker.scheduling import Recurring
from penstock.broker.shelf import JournalShelf, MemoryShelf
from penstock.broker.survey import Bounds, Survey, take_survey
from penstock.broker.ticket import Again, Answer, Recorded, Ticket
from penstock.broker.trace import Step
from penstock.broker.transaction import Transactions, held_in, settle
from penstock.clock import Clock
from penstock.engine import cursors, dead, schedules
from penstock.engine.engine import dead_letter_target
from penstock.engine.filter import Filter
from penstock.engine.group import Group
from penstock.engine.log import DEFAULT_GROUP, NOTHING_KEPT, Log, Plain, is_plain
from penstock.errors import InvalidArgument, LeaseLost, PolicyConflict, WrongKind
from penstock.journal.commit import running_loop
from penstock.journal.kinds import MESSAGES, METADATA, SETTLEMENTS
from penstock.limits import DELIVERIES_MAX, PRIORITY_DEFAULT, SCHEDULES_MAX
from penstock.message import Message
from penstock.names import check_name, is_dead_letter_name
from penstock.policy import altered, checked, differences

#: More than a range of offsets takes in a declaration.
RANGE_BYTES_MAX: Final = 20

#: Dead letters that go back in one unit, at the most, unless one alone is larger; and how many are looked at for that, while others wait.
REDRIVEN_BYTES: Final = 8 << 20
SEEN_AT_ONCE: Final = 1000


class Embedded:
    """A broker in this process."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.clock: Clock = monitor.clock
        self._handing = Handing(monitor)
        self._reading = Reading(monitor)
        self._grouping = Grouping(monitor, self._handing, self._reading)
        self._transactions = Transactions(monitor)
        self.express = Express(monitor) if isinstance(monitor.shelf, MemoryShelf) else None
        self._short = (
            JournalExpress(monitor, monitor.journal, monitor.shelf, self._handing)
            if monitor.journal is not None and isinstance(monitor.shelf, JournalShelf)
            else None
        )

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

    # --- logs ---

    def declare(
        self, namespace: str, name: str, policy: dict[str, Any], *, create: bool | None, kind: Kind = "queue"
    ) -> Ticket[Handle]:
        name = check_name(name, kind=f"{kind} name", reserved_ok=create is False)
        policy = checked(policy)
        wanted = altered(self.monitor.defaults, **policy)
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            log = self.monitor.engine.find(namespace, name)
            if log is None:
                if create is False:
                    raise not_found(kind, name)
                self.monitor.require_room(METADATA, DECLARATION_BYTES_MAX)
                log = self.monitor.engine.declare(namespace, name, wanted, now_us, change, kind)
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
            return Recorded(log, self.monitor.record(change))

    def _open_short_way(self, log: Log) -> None:
        """With the lock held: have plain messages of a plain log take the short way."""
        log.plain = None
        if (
            not is_plain(log.policy)
            or log.kept_from < NOTHING_KEPT
            or not log.groups
            or log.sizes
            or log.held_ids
            or any(group.keys for group in log.groups.values())
        ):
            return
        contents = {} if self.express is None else self.express.contents_of(log)
        group, lanes, lane = None, None, None
        if len(log.groups) == 1 and DEFAULT_GROUP in log.groups:
            group = log.group()
            lanes, lane = group.lanes, group.lanes.lane(PRIORITY_DEFAULT)
        log.plain = Plain(group, lanes, lane, contents, log.policy.max_message_bytes, visible_us(log))

    def find(self, namespace: str, name: str) -> Ticket[Handle | None]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            return Answer(self.monitor.engine.find(namespace, name))

    def names(self, namespace: str, kind: Kind = "queue") -> Ticket[list[str]]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            logs = self.monitor.engine.of_namespace(namespace)
            return Answer(
                [log.name for log in logs if log.kind == kind and not is_dead_letter_name(log.name)]
            )

    def namespaces(self) -> Ticket[list[str]]:
        """The namespaces that have queues or topics."""
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            return Answer(sorted({log.namespace for log in self.monitor.engine.logs.values()}))

    def claimed_names(self, namespace: str) -> set[str]:
        """Return the names of a namespace that its limit of queues counts."""
        with self.monitor.lock:
            return self.monitor.engine.claimed_names(namespace)

    def depth(self, namespace: str) -> int:
        """How many messages of a namespace are not settled yet, those among them that are not durable yet."""
        with self.monitor.lock:
            return self.monitor.engine.depth(namespace)

    def describe(self, log: Handle) -> Ticket[QueueStats]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            return Answer(self._stats_of(alive(log)))

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

    def stats(self, namespace: str = DEFAULT_NAMESPACE) -> Ticket[BrokerStats]:
        """What the broker knows of a namespace; of itself only where everything is, which is the default one."""
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            logs = self.monitor.engine.of_namespace(namespace)
            behind = [group for log in logs if (group := _furthest_behind(log)) is not None]
            gone = self.monitor.retired.get(namespace, Totals())
            journal = None
            if self.monitor.journal is not None and namespace == DEFAULT_NAMESPACE:
                journal = self.monitor.journal.stats()
            found = BrokerStats(
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
            )
            return Answer(found)

    def survey(self, namespaces: Collection[str] | None, bounds: Bounds) -> Survey:
        """What there is to know for whoever watches: see `survey`."""
        return take_survey(self.monitor, namespaces, bounds)

    def change(self, log: Handle, what: What, **policy: Any) -> Ticket[Any]:
        fields = checked(policy)
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            ranges = found.gone.ranges + sum(group.settled.ranges for group in found.groups.values())
            self.monitor.require_room(METADATA, DECLARATION_BYTES_MAX + RANGE_BYTES_MAX * ranges)
            answer: Any = None
            if what == "alter":
                self.monitor.engine.alter(found, altered(found.policy, **fields), now_us, change)
                self._open_short_way(found)
            elif what == "delete":
                self.monitor.engine.delete(found, now_us, change)
            elif what == "purge":
                answer = self.monitor.engine.purge(found, now_us, change)
            elif what == "redrive":
                # Its dead letters if it has some, or itself if it holds those of others.
                if not is_dead_letter_name(found.name):
                    answer = self.monitor.engine.find(found.namespace, dead_letter_target(found))
                if answer is None and self.monitor.engine.holds_dead_letters(found):
                    answer = found
            else:
                answer = self.monitor.engine.dead_letters(found, now_us, change)
            # What another caller has just changed may not be durable yet: then this answer waits for that too.
            return Answer(answer) if what == "redrive" else Recorded(answer, self.monitor.record(change))

    # --- publishing ---

    def publish(self, log: Handle, messages: Iterable[bytes | Message]) -> Ticket[Sequence[int]]:
        found = alive(log)
        if self._short is not None and type(messages) is list and len(messages) == 1:
            payload = messages[0]
            if type(payload) is bytes and (ticket := self._short.publish(found, payload)) is not None:
                return ticket
        batch = compose.batch_of(messages, found.policy, self.monitor.now(), self.monitor.set_back_us)
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            if not batch.payloads:
                return Answer([])
            if found.deleted:
                alive(found)
            self.monitor.require_room(MESSAGES, bytes_of(batch))
            batch.ids = self.monitor.ids.take(len(batch.payloads))
            ids = self.monitor.engine.publish(found, batch, now_us, change)
            if found.plain is None:
                self._open_short_way(found)
            return Recorded(ids, self.monitor.record(change))

    def route(self, namespace: str, pattern: str, message: bytes | Message) -> Ticket[dict[str, int]]:
        return self._transactions.route(namespace, pattern, message)

    def transact(self, namespace: str, operations: Sequence[Operation]) -> Ticket[list[int]]:
        return self._transactions.transact(namespace, operations)

    def cancel(self, log: Handle, id: int) -> Ticket[bool]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            offset = self._reading.offset_of(found, MessageId(id))
            self.monitor.require_room(SETTLEMENTS, SECTION_OVERHEAD_BYTES * (1 + len(found.groups)))
            batch = self.monitor.shelf.get(found.number, offset)
            due_us = None if batch is None else due_of(batch, offset - batch.first)
            if not schedules.cancel(self.monitor.engine, found, offset, due_us, now_us, change):
                return Answer(False)
            return Recorded(True, self.monitor.record(change))

    def schedule(self, log: Handle, name: str, recurring: Recurring | None) -> Ticket[bool]:
        body = b"" if recurring is None else recurring.encode()
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            known = name in found.schedules
            if recurring is None and not known:
                return Answer(False)
            if not known and len(found.schedules) >= SCHEDULES_MAX:
                raise InvalidArgument(
                    f"{log.name!r} has {SCHEDULES_MAX} schedules, and that is the bound; remove one, or have one message stand for several"
                )
            due_us = None if recurring is None else recurring.first_us(now_us)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + len(body) + 4 * len(name))
            schedules.put(self.monitor.engine, found, name, due_us, body, now_us, change)
            return Recorded(known, self.monitor.record(change))

    # --- groups ---

    def open_group(
        self, log: Handle, group: str, *, filter: str | None, strategy: str | None, start: Any, durable: bool,
        consumer: str | None = None, silence_us: int | None = None, prefetch: int = 1,  # noqa: ARG002  # a receive is a function call here
    ) -> Ticket[str | None]:  # fmt: skip
        return self._grouping.open_group(
            log, group, filter=filter, strategy=strategy, start=start, durable=durable, consumer=consumer,
            silence_us=silence_us,
        )  # fmt: skip

    def close_group(self, log: Handle, group: str) -> Ticket[None]:
        return self._grouping.close_group(log, group)

    def seek(self, log: Handle, group: str, place: Any) -> Ticket[None]:
        return self._grouping.seek(log, group, place)

    def lag(self, log: Handle, group: str) -> Ticket[int]:
        return self._grouping.lag(log, group)

    def heartbeat(self, log: Handle, group: str, consumer: str) -> Ticket[bool]:
        return self._grouping.heartbeat(log, group, consumer)

    # --- receiving ---

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool,
        ahead: int = 0, bytes_max: int | None = None,
    ) -> Ticket[Granted | None]:  # fmt: skip
        if type(count) is not int or not 1 <= count <= DELIVERIES_MAX:
            raise InvalidArgument(
                f"the number of messages is {argument.quoted(count)}; give an int from 1 to {DELIVERIES_MAX}"
            )
        if type(ahead) is not int or not 0 <= ahead <= count:
            raise InvalidArgument(
                f"{argument.quoted(ahead)} of {count} messages are to be leased ahead; give an int from 0 to {count}"
            )
        if self._short is not None and count == 1 and keep and not ahead and group == DEFAULT_GROUP:
            short = self._short.lease(alive(log), consumer)
            if short is not None:
                return short
        return self._handing.lease(
            log, group, count, consumer=consumer, wait_us=wait_us, keep=keep, ahead=ahead, bytes_max=bytes_max
        )

    def hand_over(self, log: Handle, receipts: Receipts) -> Ticket[list[int]]:
        return self._handing.hand_over(log, receipts)

    def attach(
        self,
        log: Handle,
        group: str,
        consumer: str,
        silence_us: int | None = None,
        prefetch: int = 1,  # noqa: ARG002  # a receive is a function call here: nothing is sent ahead
    ) -> Ticket[str]:
        return self._handing.attach(log, group, consumer, silence_us)

    def release(self, log: Handle, group: str, consumer: str, *, retire: bool = False) -> Ticket[None]:
        return self._handing.release(log, group, consumer, retire=retire)

    # --- settling ---

    def settle(
        self,
        log: Handle,
        receipts: Receipts,
        how: How,
        *,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> Ticket[None]:
        offsets, numbers = receipts.offsets, receipts.numbers
        if not offsets:
            raise InvalidArgument("nothing is given to settle")
        if self._short is not None and how == "ack" and len(offsets) == 1 and receipts.group == DEFAULT_GROUP:
            short = self._short.ack(alive(log), offsets[0], numbers[0])
            if short is not None:
                return short
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin(settling=True)
            found = alive(log)
            group = held_in(found, receipts.group)
            engine = self.monitor.engine
            self.monitor.require_room(
                SETTLEMENTS, 2 * SECTION_OVERHEAD_BYTES + 64 * len(offsets) + 4 * len(error or "")
            )
            settle(engine, found, group, receipts, how, delay_us, error, now_us, change)
            if self.monitor.draining:
                self.monitor.settled.notify_all()
            if not change and not group.durable:
                self.monitor.follow()
                return Answer(None)
            return Recorded(None, self.monitor.record(change))

    def held(self, log: Handle, id: int) -> Ticket[Receipts]:
        """What settles the message of that id, if it is leased in the queue's own group: a message has one lease there at the most."""
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin(settling=True)
            found = alive(log)
            group = found.groups.get(DEFAULT_GROUP)
            try:
                offset = self._reading.offset_of(found, MessageId(id))
            except InvalidArgument:
                offset = -1
            lease = None if group is None else group.leases.get(offset)
            if lease is None:
                raise LeaseLost(
                    f"the message {id} of {found.name!r} is not handed out (any more): it was settled, its time was over, or it was never there. "
                    "Drop the result"
                )
            return Answer(Receipts(DEFAULT_GROUP, [offset], [lease.number]))

    def extend(self, log: Handle, receipts: Receipts, wait_us: int) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin(settling=True)
            found = alive(log)
            cursors.heard_from(held_in(found, receipts.group), receipts.offsets, now_us)
            self.monitor.engine.extend(
                found, held_in(found, receipts.group), receipts.offsets, receipts.numbers, now_us + wait_us
            )
            self.monitor.follow()
            return Answer(None)

    # --- looking, and moving dead letters ---

    def peek(self, log: Handle, count: int) -> Ticket[list[Message]]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            return Answer(self._upcoming(alive(log), count))

    def _upcoming(self, log: Log, count: int) -> list[Message]:
        """With the lock held: the next messages in order; of a topic, what the subscription furthest behind gets next."""
        group = log.group() if DEFAULT_GROUP in log.groups else min(
            log.all_groups(), key=lambda one: len(one.settled), default=None
        )  # fmt: skip
        found: list[Message] = []
        for piece in group.lanes.pieces() if group is not None else ():
            for offset in range(piece[1], piece[2]):
                if len(found) >= count:
                    return found
                batch = self.monitor.shelf.get(log.number, offset)
                if batch is not None:
                    found.append(message_of(batch, offset - batch.first))
        return found

    def read(self, log: Handle, offset: int, count: int) -> Ticket[Page]:
        return self._reading.read(log, offset, count)

    def watch(self, log: Handle, offset: int, *, wait_us: int | None) -> Ticket[Any]:
        return self._reading.watch(log, offset, wait_us=wait_us)

    def locate(self, log: Handle, place: Any) -> Ticket[int]:
        return self._reading.locate(log, place)

    def position(
        self, log: Handle, reader: str, offset: int | None, *, holds: bool | None = None, forget: bool = False
    ) -> Ticket[int | None]:
        return self._reading.position(log, reader, offset, holds=holds, forget=forget)

    def trace(self, namespace: str, id: int) -> Ticket[list[Step]]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            return Answer(self.monitor.timeline(namespace, id))

    def redrive(
        self,
        log: Handle,
        count: int,
        *,
        where: Filter | None,
        to: str | None,
        span: range | None,
    ) -> Ticket[Redriven]:
        if where is not None and self.monitor.engine.steps_left <= 0:
            return Again(lambda: self._redrive(log, count, where, to, span, renew=True))
        return self._redrive(log, count, where, to, span)

    def _redrive(
        self, log: Handle, count: int, where: Filter | None, to: str | None, span: range | None, *, renew: bool = False
    ) -> Ticket[Redriven]:  # fmt: skip
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin(renew=renew)
            found = alive(log)
            target = None
            if to is not None:
                target = self.monitor.engine.find(found.namespace, to)
                if target is None:
                    raise not_found("queue", to)
                if target is found:
                    raise InvalidArgument(f"{to!r} holds these dead letters: redrive them to another queue")
            whole = range(found.arrived) if span is None else span
            chosen, left = self._to_redrive(found, target, count, where, whole)
            moved = dead.redrive(self.monitor.engine, found, chosen, target, now_us, change)
            if len(moved) < len(chosen):  # there was no room for all of them
                left = range(next(offset for offset in chosen if offset not in moved), whole.stop)
            answer = Redriven(len(moved), left)
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


def _furthest_behind(log: Log) -> Group | None:
    return min(log.all_groups(), key=lambda found: len(found.settled), default=None)


def _require_same(log: Log, given: dict[str, Any]) -> None:
    differing = differences(log.policy, given)
    if differing:
        raise PolicyConflict(
            f"the {log.kind} {log.name!r} exists with another policy: {'; '.join(map(str, differing))}. "
            f"Leave out what differs, or alter the {log.kind}"
        )
