"""Plain messages one at a time, in memory, by the shortest way.

Theory of operation
-------------------
One publish, one receive and one ack of a plain message in a plain queue touch a handful of fields; going through columns, changes and tickets for
them would cost ten times as much as the work itself. So the shell for threads asks here first. What is done here is what `engine` would
do, to the same fields: an offset and an id are given, the message stands at the end of its lane, a lease holds it, its offset is
settled.

Nothing here decides anything that could go two ways. Whatever is not the plain case is left to the ordinary way, by answering `LATER` (or
False) with nothing changed: a queue with another policy, something that has fallen due, a message that came back, somebody who waits, an error of any kind. Time is the engine's, as the ordinary way last knew it; only an ack does not look at it, so
one that comes late is taken as long as nobody has noticed that its lease is over.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING, Any, Final

from penstock.clock import SECOND_US
from penstock.engine.lease import Lease
from penstock.engine.log import DEFAULT_GROUP, Log
from penstock.ids import EPOCH_US
from penstock.limits import ID_NODE_BITS, ID_SEQUENCE_BITS, PRIORITY_DEFAULT

if TYPE_CHECKING:
    from penstock.broker.embedded import Embedded

#: The answer that it must be done the ordinary way.
LATER: Final = object()

_TIME_SHIFT: Final = ID_NODE_BITS + ID_SEQUENCE_BITS
_LOOK_UP: Final = 0xFF
_SEQUENCE: Final = (1 << ID_SEQUENCE_BITS) - 1


class Express:
    """The short way of a broker that is only in memory."""

    def __init__(self, broker: Embedded) -> None:
        self._broker = broker
        self._lock = broker._lock
        self._engine = broker._engine
        self._alarms = broker._engine._alarms
        self._ids = broker._ids
        self._shelf: Any = broker._shelf
        self._monotonic = broker.clock.monotonic_us
        self._calls = 0

    def publish(self, log: Any, payload: bytes) -> int:
        """The message's id, or 0 if it must be published the ordinary way."""
        with self._lock:
            try:
                broker = self._broker
                now_us = self._monotonic() + broker._ahead_us
                alarms = self._alarms
                plain = log.plain
                if (
                    plain is None
                    or type(payload) is not bytes
                    or len(payload) > plain.bytes_max
                    or (alarms and alarms[0][0] <= now_us)
                    or broker._closed_to_express
                ):
                    return 0
                self._calls += 1
                if not self._calls & _LOOK_UP:
                    broker._now()  # the wall clock may have been set forward
                ids = self._ids
                given = ids._last + 1
                if not given & _SEQUENCE or given < ((now_us - EPOCH_US) // 1000) << _TIME_SHIFT:
                    given = ids.next()
                else:
                    ids._last = given
                offset = log.next_offset
                log.next_offset = log.arrived = offset + 1
                log.published += 1
                if log.priorities.last != PRIORITY_DEFAULT:
                    log.priorities.append(offset, PRIORITY_DEFAULT)
                plain.contents[offset] = (payload, given, now_us)
                plain.lane.append(offset, offset + 1)
                plain.lanes.count += 1
                return given
            except BaseException as error:  # it may be half done
                self._broker._fail(error)
                raise

    def receive(self, log: Any, make: Any, queue: Any) -> Any:
        """The next message, None if there is none, or `LATER`."""
        with self._lock:
            try:
                broker = self._broker
                now_us = self._monotonic() + broker._ahead_us
                alarms = self._alarms
                plain = log.plain
                if plain is None or (alarms and alarms[0][0] <= now_us) or broker._closed_to_express:
                    return LATER
                lanes, lane = plain.lanes, plain.lane
                if not lanes.count:
                    return None
                if lane.count != lanes.count or lane._returned or plain.group.tally:
                    return LATER
                place, offset, stop, priority = lane._queue[0]
                content = plain.contents.get(offset)
                if type(content) is not tuple:
                    return LATER
                if stop == offset + 1:
                    lane._queue.popleft()
                else:
                    lane._queue[0] = (place + 1, offset + 1, stop, priority)
                lane.count -= 1
                lanes.count -= 1
                engine = self._engine
                engine._lease_number = number = engine._lease_number + 1
                leases = plain.group.leases
                deadline_us = None if plain.visible_us is None else now_us + plain.visible_us
                lease = Lease(number, [(place, offset, offset + 1, priority)], None, deadline_us)
                lease.held = 1
                leases._by_offset[offset] = lease
                if deadline_us is not None:
                    heappush(leases._deadlines, (deadline_us, number, lease))
                    if log.alarm_us is None or deadline_us < log.alarm_us:
                        engine._set_alarm_at(log, deadline_us)
                        broker._follow()
                broker._delivered += 1
            except BaseException as error:  # it may be half done
                self._broker._fail(error)
                raise
        payload, given, time_us = content
        return make(queue, DEFAULT_GROUP, number, offset, 1, payload, given, time_us, priority, None, None)

    def ack(self, log: Any, offset: int, number: int) -> bool:
        """Whether it was acknowledged; if not, it must be tried the ordinary way."""
        with self._lock:
            try:
                plain = log.plain
                if plain is None or self._broker._closed_to_express:
                    return False
                group = plain.group
                leases = group.leases
                lease = leases._by_offset.get(offset)
                if lease is None or lease.number != number or group.tally or group.overdue:
                    return False
                leases.remove(offset)
                group.settled.add_one(offset)
                plain.contents.pop(offset, None)
                self._broker._acked += 1
                return True
            except BaseException as error:  # it may be half done
                self._broker._fail(error)
                raise


def visible_us(log: Log) -> int | None:
    """How long a lease of a log lasts."""
    timeout = log.policy.visibility_timeout
    return None if timeout is None else round(timeout * SECOND_US)
