"""Plain messages one at a time, by the shortest way.

Theory of operation
-------------------
One publish, one receive and one ack of a plain message in a plain queue touch a handful of fields; going through columns, changes and events for
them would cost several times as much as the work itself. What is done here is what `engine` would do, to the same fields: an offset and an id are
given, the message stands at the end of its lane, a lease holds it, its offset is settled; and on a journal the same rows are appended.

Nothing here decides anything that could go two ways. Whatever is not the plain case is left to the ordinary way, by answering so with
nothing changed: a queue with another policy, something that has fallen due, a message that came back, somebody who waits, an error of any
kind.

In memory (`Express`) everything holds at once; time is the engine's, as the ordinary way last knew it. On a journal it is
`JournalExpress`. The port (`embedded`) asks here before it takes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.handing import Handing, LogHandle
from penstock.broker.ledger import ROW_BYTES_MAX, ack_row, lease_row, message_row
from penstock.broker.port import Granted
from penstock.broker.shelf import JournalShelf
from penstock.broker.ticket import DONE, Answer, Leasing, Record, Recorded, Ticket
from penstock.clock import SECOND_US, nanoseconds_of
from penstock.engine.cursors import heard
from penstock.engine.lane import Lane, Lanes
from penstock.engine.lease import Lease
from penstock.engine.log import Log, Plain
from penstock.engine.milestones import STRIDE
from penstock.ids import EPOCH_US
from penstock.journal.journal import Journal
from penstock.journal.rows import Rows
from penstock.limits import ID_NODE_BITS, ID_SEQUENCE_BITS, PRIORITY_DEFAULT
from penstock.model.batch import Batch, Run
from penstock.model.commands import DEFAULT_GROUP, Settle

if TYPE_CHECKING:
    from penstock.broker.monitor import Monitor

_TIME_SHIFT: Final = ID_NODE_BITS + ID_SEQUENCE_BITS
_LOOK_UP: Final = 0xFF
_SEQUENCE: Final = (1 << ID_SEQUENCE_BITS) - 1


# --- in memory ---


class Express:
    """The short way of a broker that is only in memory."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._engine = monitor.engine
        self._alarms = monitor.engine._alarms
        self._ids = monitor.ids
        self._shelf: Any = monitor.shelf
        self._monotonic_ns = nanoseconds_of(monitor.clock)

    def contents_of(self, log: Log) -> dict[int, Any]:
        """Where the messages of a log are that were published one by one."""
        found: dict[int, Any] = self._shelf.of_log(log.number)
        return found

    def publish(self, handle: Any, payload: bytes) -> int:
        """The message's id, or 0 if it must be published the ordinary way."""
        if type(handle) is not LogHandle:
            return 0
        log: Any = handle.log
        monitor = self._monitor
        with monitor.lock:
            try:
                now_us = self._monotonic_ns() // 1000 + monitor.ahead_us
                alarms = self._alarms
                plain = log.plain
                if (
                    plain is None
                    or len(payload) > plain.bytes_max
                    or (alarms and alarms[0][0] <= now_us)
                    or monitor.express_closed
                ):
                    return 0
                ids = self._ids
                given = ids._last + 1
                if not given & _SEQUENCE or given < ((now_us - EPOCH_US) // 1000) << _TIME_SHIFT:
                    given = ids.next()
                else:
                    ids._last = given
                offset = log.next_offset
                if not given & _LOOK_UP:  # now and then
                    monitor.now()  # the wall clock may have been set forward
                    log.milestones.note(offset, now_us, now_us, given, 0, STRIDE)
                log.next_offset = log.arrived = offset + 1
                log.published += 1
                if log.priorities.last != PRIORITY_DEFAULT:
                    log.note_priority(offset, PRIORITY_DEFAULT)
                plain.contents[offset] = (payload, given, now_us)
                group = plain.group
                if group is not None:  # otherwise each of them catches up when it is looked at
                    group.seen = offset + 1
                    plain.lane.append(offset, offset + 1)
                    plain.lanes.count += 1
                return given
            except BaseException as error:  # it may be half done
                monitor.fail(error)
                raise

    def lease(self, log: Log, consumer: str | None, *, rides: bool = False) -> Ticket[Granted | None] | None:  # noqa: ARG002  # it is recorded nowhere
        """The next message, or None if it must be leased the ordinary way."""
        monitor = self._monitor
        with monitor.lock:
            try:
                now_us = self._monotonic_ns() // 1000 + monitor.ahead_us
                alarms = self._alarms
                plain = log.plain
                if (
                    plain is None
                    or consumer is not None
                    or (alarms and alarms[0][0] <= now_us)
                    or monitor.express_closed
                ):
                    return None
                lanes, lane = plain.lanes, plain.lane
                if (
                    lanes is None
                    or not lanes.count
                    or lane.count != lanes.count  # type: ignore[union-attr]  # both are there or none
                    or lane._returned  # type: ignore[union-attr]
                    or plain.group.tally.count  # type: ignore[union-attr]
                ):
                    return None
                offset = lane._queue[0][1]  # type: ignore[union-attr]
                content = plain.contents.get(offset)
                if type(content) is not tuple:
                    return None
                number = _hold_first(monitor, log, plain, None, now_us)
            except BaseException as error:  # it may be half done
                monitor.fail(error)
                raise
        payload, given, time_us = content
        batch = Batch([payload], [given], time_us, PRIORITY_DEFAULT, first=offset)
        return Answer(Granted(DEFAULT_GROUP, number, (offset,), 1, [Run(batch, 0, 1)]))

    def ack(self, handle: Any, command: Settle) -> bool:
        """Whether it was acknowledged; if not, it must be tried the ordinary way."""
        if type(handle) is not LogHandle or command.group != DEFAULT_GROUP:
            return False
        log: Any = handle.log
        (offset,), (number,) = command.offsets, command.numbers
        monitor = self._monitor
        with monitor.lock:
            try:
                plain = log.plain
                if plain is None or monitor.express_closed:
                    return False
                group = plain.group
                if group is None:
                    return False
                leases = group.leases
                lease = leases._by_offset.get(offset)
                if (
                    lease is None
                    or lease.number != number
                    or group.tally.count
                    or group.overdue
                    or (
                        lease.deadline_us is not None
                        and lease.deadline_us <= self._monotonic_ns() // 1000 + monitor.ahead_us
                    )
                ):
                    return False
                if lease.consumer is not None:
                    heard(group, lease.consumer, self._monotonic_ns() // 1000 + monitor.ahead_us)
                leases.remove(offset)
                group.settled.add_one(offset)
                plain.contents.pop(offset, None)
                log.acked += 1
                return True
            except BaseException as error:  # it may be half done
                monitor.fail(error)
                raise


def _hold_first(monitor: Monitor, log: Log, plain: Plain, consumer: str | None, now_us: int) -> int:
    """Have a new lease hold the first message of the lane, which is in the queue's only piece or in its first; the lease's number."""
    lanes: Lanes = plain.lanes  # type: ignore[assignment]  # whoever calls has looked
    lane: Lane = plain.lane  # type: ignore[assignment]
    engine = monitor.engine
    place, offset, stop, priority = lane._queue[0]
    if stop == offset + 1:
        lane._queue.popleft()
    else:
        lane._queue[0] = (place + 1, offset + 1, stop, priority)
    lane.count -= 1
    lanes.count -= 1
    engine._lease_number = number = engine._lease_number + 1
    leases = plain.group.leases  # type: ignore[union-attr]
    deadline_us = None if plain.visible_us is None else now_us + plain.visible_us
    lease = Lease(number, [(place, offset, offset + 1, priority)], consumer, deadline_us, 1, now_us)
    leases._by_offset[offset] = lease
    if deadline_us is not None:
        heappush(leases._deadlines, (deadline_us, number, lease))
        if log.alarm_us is None or deadline_us < log.alarm_us:
            engine._set_alarm_at(log, deadline_us)
            monitor.follow()
    log.delivered += 1
    return number


# --- on a journal ---


class Arrival:
    """A plain message that is being recorded; called when it is durable."""

    __slots__ = ("_monitor", "_plain", "arrivals")

    def __init__(self, monitor: Monitor, plain: Plain, log: Log, batch: Batch) -> None:
        self._monitor = monitor
        self._plain = plain
        self.arrivals = [(log, batch.first, batch)]

    def __call__(self) -> None:
        monitor, plain = self._monitor, self._plain
        log, first, _ = self.arrivals[0]
        with monitor.lock, monitor.whole:
            monitor.on_the_way.remove(self)
            now_us = monitor.now()
            if (
                log.plain is not plain
                or monitor.express_closed
                or (log.alarm_us is not None and log.alarm_us <= now_us)
            ):
                monitor.have_arrive(self.arrivals, now_us)
                return
            log.arrived = first + 1
            if log.priorities.last != PRIORITY_DEFAULT:
                log.note_priority(first, PRIORITY_DEFAULT)
            if plain.group is not None and plain.lanes is not None and plain.lane is not None:
                plain.group.seen = first + 1
                plain.lane.append(first, first + 1)
                plain.lanes.count += 1


class JournalExpress:
    """The short way of a broker on a journal. Its answers are tickets; None sends the caller the ordinary way."""

    def __init__(self, monitor: Monitor, journal: Journal, shelf: JournalShelf, handing: Handing) -> None:
        self._monitor = monitor
        self._journal = journal
        self._handing = handing
        self._shelf = shelf
        self._ids = monitor.ids
        self._engine = monitor.engine

    def _now(self, size: int) -> int:
        """With the lock held: the present; 0 if something is to be done first, or there might be no room for so many bytes."""
        monitor = self._monitor
        if monitor.express_closed or not self._journal.has_room(size):
            return 0
        now_us = monitor.now()
        next_us = self._engine.next_us
        return 0 if next_us is not None and next_us <= now_us else now_us

    def _append(self, row: Rows, *, sync: bool, then: Arrival | None = None) -> Record:
        if self._monitor.upkeep is not None:
            self._monitor.upkeep.count()
        try:
            return self._journal.append_one(row, sync=sync, then=then)
        except BaseException as error:  # what was done to the engine is not recorded
            self._monitor.fail(error)
            raise

    def publish(self, log: Log, payload: bytes) -> Ticket[Sequence[int]] | None:
        monitor = self._monitor
        with monitor.lock, monitor.whole:
            plain = log.plain
            size = len(payload)
            if plain is None or size > plain.bytes_max or not (now_us := self._now(ROW_BYTES_MAX + size)):
                return None
            given = self._ids.next()
            first = log.next_offset
            log.next_offset = first + 1
            log.published += 1
            self._engine.last_id = given
            if first >= log.milestones.next:
                log.milestones.note(first, now_us, now_us, given, 0, STRIDE)
            batch = Batch([payload], [given], now_us, PRIORITY_DEFAULT, first=first, size=size)
            self._shelf.put_plain(log.number, first, payload, given, now_us)
            arrival = Arrival(monitor, plain, log, batch)
            monitor.on_the_way.append(arrival)
            if monitor.tracer is not None:
                monitor.tracer.published(log.number, first, given, now_us)
            row = message_row(log.number, first, given, now_us, payload)
            return Recorded(batch.ids, self._append(row, sync=True, then=arrival))

    def lease(self, log: Log, consumer: str | None, *, rides: bool = False) -> Ticket[Granted | None] | None:
        monitor = self._monitor
        with monitor.lock, monitor.whole:
            plain = log.plain
            if plain is None:
                return None
            lanes, lane, group = plain.lanes, plain.lane, plain.group
            if (
                group is None
                or lanes is None
                or lane is None
                or not lanes.count
                or (consumer is not None and consumer not in group.members)
                or lane.count != lanes.count
                or lane._returned
                or group.tally.count
                or not (now_us := self._now(2 * ROW_BYTES_MAX))
            ):
                return None
            offset = lane._queue[0][1]
            batch = self._shelf.get(log.number, offset)
            if batch is None:
                return None
            heard(group, consumer, now_us)
            number = _hold_first(monitor, log, plain, consumer, now_us)
            row = offset - batch.first
            granted = Granted(DEFAULT_GROUP, number, (offset,), 1, [Run(batch, row, row + 1)])
            if monitor.tracer is not None:
                monitor.tracer.leased(log.number, DEFAULT_GROUP, offset, consumer, now_us)
            record = self._append(lease_row(log.number, DEFAULT_GROUP, offset, consumer, now_us), sync=False)
            if rides:
                monitor.record_soon(record)
                record = DONE
            return Leasing(granted, record, self._handing.take_back, log)

    def ack(self, log: Log, offset: int, number: int) -> Ticket[None] | None:
        monitor = self._monitor
        with monitor.lock, monitor.whole:
            plain = log.plain
            if plain is None:
                return None
            group = plain.group
            lease = group.leases.get(offset) if group is not None else None
            if (
                group is None
                or lease is None
                or lease.number != number
                or group.tally.count
                or group.overdue
                or not (now_us := self._now(ROW_BYTES_MAX))
            ):
                return None
            heard(group, lease.consumer, now_us)
            group.leases.remove(offset)
            group.settled.add_one(offset)
            log.acked += 1
            if monitor.tracer is not None:
                monitor.tracer.acked(log.number, DEFAULT_GROUP, offset, now_us)
            return Recorded(None, self._append(ack_row(log.number, DEFAULT_GROUP, offset, now_us), sync=True))


def visible_us(log: Log) -> int | None:
    """How long a lease of a log lasts."""
    timeout = log.policy.visibility_timeout
    return None if timeout is None else round(timeout * SECOND_US)
