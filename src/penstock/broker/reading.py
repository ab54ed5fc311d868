"""Readers: what is stored of a log, in order of offsets, for anybody who wants to look; it takes nothing away from anyone.

Theory of operation
-------------------
A reader is an offset that its shell holds. Reading gives what is available from there on: what some group has not settled, and what is kept besides (see `engine.log`). So a reader costs
nothing but its reads, however many there are. What it commits is recorded, as a row; a reader that asks to be waited for holds what is behind that.

Looking for a time or an id begins at the nearest milestone before it, and goes on message by message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from penstock import argument
from penstock.broker.contents import SECTION_OVERHEAD_BYTES
from penstock.broker.handing import WATCHING, alive
from penstock.broker.monitor import NOTHING, Monitor
from penstock.broker.port import Handle, MessageId, Page
from penstock.broker.shelf import runs_of
from penstock.broker.ticket import Answer, Recorded, Ticket, Waiting
from penstock.clock import to_us
from penstock.engine import retention
from penstock.engine.events import Action, Declared, Positioned
from penstock.engine.log import NOTHING_KEPT, Log, Position
from penstock.errors import InvalidArgument
from penstock.journal.kinds import METADATA, POSITIONS

#: Offsets that are looked at together for what is available.
WINDOW: Final = 4096


class Reading:
    """What reads the logs of a broker."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def read(self, log: Handle, offset: int, count: int) -> Ticket[Page]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            found = alive(log)
            runs = []
            at, left = offset, count
            for part in available(found, offset, found.arrived):
                wanted = part[:left]
                here, lost = runs_of(self.monitor.shelf, found.number, wanted)
                runs += here
                left -= len(wanted) - len(lost)
                at = wanted.stop
                if not left:
                    break
            else:
                at = max(offset, found.arrived)
            return Answer(Page(runs, at, missed(found, offset, at)))

    def watch(self, log: Handle, offset: int, *, wait_us: int | None) -> Ticket[Any]:
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin()
            found = alive(log)
            if offset < found.arrived or (wait_us is not None and wait_us <= 0):
                return NOTHING
            waiting = Waiting(
                (found, WATCHING), offset, None, keep=False,
                deadline_us=None if wait_us is None else now_us + wait_us, give_up=self.give_up,
            )  # fmt: skip
            self.monitor.wait_in_line(waiting)
            return waiting

    def give_up(self, waiting: Waiting, *, granted: bool = True) -> None:
        """Somebody stops waiting."""
        del granted
        with self.monitor.lock, self.monitor.whole:
            self.monitor.answer(waiting, NOTHING)

    # --- places ---

    def locate(self, log: Handle, place: Any) -> Ticket[int]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            return Answer(self.offset_of(alive(log), place))

    def offset_of(self, log: Log, place: Any) -> int:
        """With the lock held: the offset that is meant by a place."""
        if place == "earliest":
            # What is not durable yet has not arrived, and will be the earliest when it has.
            return next((part.start for part in available(log, 0, log.arrived)), log.arrived)
        if place == "latest":
            return log.next_offset
        if isinstance(place, MessageId):
            return self._of_id(log, place.id)
        if isinstance(place, datetime):
            return self._of_time(log, to_us(place, "timestamp"))
        offset = argument.integer(place)
        if offset is None or offset < 0:
            raise InvalidArgument(
                f'{argument.quoted(place)} is no place in a log; give "earliest", "latest", an offset, a time or a message\'s id'
            )
        if offset != log.next_offset:
            self._require_stored(log, offset, f"offset {argument.quoted(offset)}")
        return offset

    def _require_stored(self, log: Log, offset: int, what: str) -> None:
        if offset >= log.next_offset or log.unavailable(offset, offset + 1):
            earliest = next((part.start for part in available(log, 0, log.arrived)), None)
            raise InvalidArgument(
                f"{what} is not stored in {log.name!r}: "
                + (
                    f"the next one will be {log.next_offset}"
                    if offset >= log.next_offset
                    else "it was consumed, dropped, or has expired"
                )
                + ("" if earliest is None else f"; the earliest that is stored is {earliest}")
            )

    def _of_id(self, log: Log, id: int) -> int:
        for batch in self.monitor.shelf.scan(log.number, log.milestones.before_id(id)):
            ids = batch.ids
            if ids[-1] >= id:
                row = bisect_left(ids, id)
                offset = batch.first + row
                if ids[row] == id and offset < log.arrived and not log.unavailable(offset, offset + 1):
                    return offset
                break
        raise InvalidArgument(
            f"no message with the id {argument.quoted(id)} is stored in {log.name!r}: it was never there, was consumed, dropped, or has expired"
        )

    def _of_time(self, log: Log, time_us: int) -> int:
        found = log.next_offset
        for batch in self.monitor.shelf.scan(log.number, log.milestones.before_time(time_us)):
            times = batch.timestamp_us
            if isinstance(times, list):
                row = next((row for row, time in enumerate(times) if time >= time_us), None)
            else:
                row = 0 if times >= time_us else None
            if row is not None:
                found = batch.first + row
                break
        return next((part.start for part in available(log, found, log.arrived)), log.next_offset)

    # --- positions ---

    def position(
        self, log: Handle, reader: str, offset: int | None, *, holds: bool | None = None, forget: bool = False
    ) -> Ticket[int | None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            known = found.readers.get(reader)
            if forget:
                if known is None:
                    return Answer(None)
                self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + 4 * len(reader))
                del found.readers[reader]
                change.events.append(Declared(found.number, Action.FORGET, reader, b"", now_us))
            elif holds is not None and (known is None or known.holds != holds):
                place = known.offset if known is not None and offset is None else offset or 0
                known = Position(place, holds)
                body = retention.hold(found, known)
                self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + 4 * len(reader) + len(body))
                found.readers[reader] = known
                change.events.append(Declared(found.number, Action.READER, reader, body, now_us))
            elif offset is not None:
                self.monitor.require_room(POSITIONS, SECTION_OVERHEAD_BYTES + 4 * len(reader))
                known = found.readers.setdefault(reader, Position(offset))
                known.offset = offset
                change.events.append(Positioned(found.number, reader, offset, now_us))
            else:
                return Answer(None if known is None else known.offset)
            retention.update(self.monitor.engine, found, now_us)
            answer = None if forget or known is None else known.offset
            return Recorded(answer, self.monitor.record(change))


def available(log: Log, start: int, stop: int) -> Iterator[range]:
    """What is stored from an offset on, as ranges in order, looked at a window at a time."""
    if log.kept_from < NOTHING_KEPT and not log.gone and start >= log.kept_from:
        if start < stop:
            yield range(start, stop)
        return
    while start < stop:
        end = min(start + WINDOW, stop)
        yield from log.unavailable(start, end).gaps(start, end)
        start = end


def missed(log: Log, start: int, stop: int) -> int:
    """How many messages from an offset on were dropped because nothing kept them any longer, in a log that keeps them for a time."""
    if log.floor == NOTHING_KEPT or start >= log.kept_from:
        return 0
    stop = min(stop, log.kept_from)
    return sum(
        len(part) for run in log.gone.gaps(start, stop) for part in log.settled_by_all(run.start, run.stop)
    )
