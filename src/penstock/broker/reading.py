"""Readers: what is stored of a log, in order of offsets, for anybody who wants to look; it takes nothing away from anyone.

Theory of operation
-------------------
A reader is an offset that its shell holds. Reading gives what is available from there on: what some group has not settled, and what is kept besides (see `engine.log`). So a reader costs
nothing but its reads, however many there are. What it commits is recorded, as a row; a reader that asks to be waited for holds what is behind that.

Looking for a time or an id begins at the nearest milestone before it, and goes on message by message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from penstock import argument
from penstock.broker.contents import RANGE_BYTES_MAX, SECTION_OVERHEAD_BYTES, ranges_of
from penstock.broker.handing import WATCHING, alive
from penstock.broker.monitor import NOTHING, Monitor
from penstock.broker.port import Page
from penstock.broker.shelf import runs_of
from penstock.broker.ticket import Answer, Recorded, Stoppable, Ticket, Waiting
from penstock.clock import to_us
from penstock.engine import retention
from penstock.engine.change import Change
from penstock.engine.events import Action, Declared, Positioned
from penstock.engine.log import NOTHING_KEPT, Log, Position
from penstock.errors import InvalidArgument
from penstock.journal.kinds import METADATA
from penstock.model.batch import Run
from penstock.model.commands import Commit, Forget, Handle, Place
from penstock.model.queries import Locate

#: Offsets that are looked at together for what is available.
WINDOW: Final = 4096


class Reading:
    """What reads the logs of a broker."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def read(self, log: Handle, place: int | Place, count: int, wait_us: int | None) -> Ticket[Page]:
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin()
            found = alive(log)
            offset = self.offset_of(found, place) if isinstance(place, Place) else place
            if offset < found.arrived or (wait_us is not None and wait_us <= 0):
                return Answer(self._page(found, offset, count))
            waiting = Waiting(
                (found, WATCHING), offset, None, give_up=self.give_up,
                deadline_us=None if wait_us is None else now_us + wait_us,
            )  # fmt: skip
            self.monitor.wait_in_line(waiting)
            return WaitingPage(waiting, lambda: self.read(log, offset, count, 0))

    def _page(self, log: Log, offset: int, count: int) -> Page:
        """With the lock held: what is stored from an offset on."""
        runs: list[Run] = []
        at, left = offset, count
        for part in available(log, offset, log.arrived):
            wanted = part[:left]
            here, lost = runs_of(self.monitor.shelf, log.number, wanted)
            runs += here
            left -= len(wanted) - len(lost)
            at = wanted.stop
            if not left:
                break
        else:
            at = max(offset, log.arrived)
        return Page(runs, at, missed(log, offset, at))

    def give_up(self, waiting: Waiting, *, granted: bool = True) -> None:
        """Somebody stops waiting."""
        del granted
        with self.monitor.lock, self.monitor.whole:
            self.monitor.answer(waiting, NOTHING)

    # --- places ---

    def locate(self, query: Locate) -> int:
        """With the lock held: the offset that is meant by a place."""
        return self.offset_of(alive(query.log), query.place)

    def offset_of(self, log: Log, place: Place) -> int:
        """With the lock held: the offset that is meant by a place."""
        if place.at == "earliest":
            # What is not durable yet has not arrived, and will be the earliest when it has.
            return next((part.start for part in available(log, 0, log.arrived)), log.arrived)
        if place.message_id is not None:
            return self._of_id(log, place.message_id)
        if place.timestamp is not None:
            return self._of_time(log, to_us(place.timestamp, "timestamp"))
        if place.offset is None:
            return log.next_offset
        if place.offset != log.next_offset:
            self._require_stored(log, place.offset, f"offset {argument.quoted(place.offset)}")
        return place.offset

    def _require_stored(self, log: Log, offset: int, what: str) -> None:
        if not 0 <= offset < log.next_offset or log.unavailable(offset, offset + 1):
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

    def position(self, log: Handle, reader: str) -> Ticket[int | None]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            known = alive(log).readers.get(reader)
            return Answer(None if known is None else known.offset)

    def commit(self, log: Handle, command: Commit) -> Ticket[int | None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            self.monitor.require_room(METADATA, bytes_of_commit(found, command))
            offset = self.committed(found, command, now_us, change)
            return Recorded(offset, self.monitor.record(change)) if change else Answer(offset)

    def committed(self, log: Log, command: Commit, now_us: int, change: Change) -> int | None:
        """With the lock held: store a reader's position; what it is then."""
        reader, offset, holds = command.reader, command.offset, command.holds
        known = log.readers.get(reader)
        if holds is not None and (known is None or known.holds != holds):
            place = known.offset if known is not None and offset is None else offset or 0
            known = Position(place, holds)
            body = retention.hold(log, known)
            log.readers[reader] = known
            change.events.append(Declared(log.number, Action.READER, reader, body, now_us))
        elif offset is not None:
            known = log.readers.setdefault(reader, Position(offset))
            known.offset = offset
            change.events.append(Positioned(log.number, reader, offset, now_us))
        else:
            return None if known is None else known.offset
        retention.update(self.monitor.engine, log, now_us)
        return known.offset

    def forget(self, log: Handle, command: Forget) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            if command.reader not in found.readers:
                return Answer(None)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + 4 * len(command.reader))
            del found.readers[command.reader]
            change.events.append(Declared(found.number, Action.FORGET, command.reader, b"", now_us))
            retention.update(self.monitor.engine, found, now_us)
            return Recorded(None, self.monitor.record(change))


def bytes_of_commit(log: Log, command: Commit) -> int:
    """More than a reader's position takes in a journal; one that holds messages lists those that are gone."""
    size = 2 * SECTION_OVERHEAD_BYTES + 4 * len(command.reader)
    return size if command.holds is None else size + RANGE_BYTES_MAX * ranges_of(log)


class WaitingPage(Stoppable):
    """A read that waits for a first message."""

    __slots__ = ("_read", "_waiting")

    def __init__(self, waiting: Waiting, read: Callable[[], Ticket[Page]]) -> None:
        self._waiting = waiting
        self._read = read

    def stop(self) -> None:
        self._waiting.stop()

    def wait(self) -> Page:
        self._waiting.wait()
        return self._read().wait()

    async def get(self) -> Page:
        await self._waiting.get()
        return await self._read().get()


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
