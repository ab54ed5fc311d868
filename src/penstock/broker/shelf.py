"""What stored messages contain: kept in memory, or read back from the journal.

Theory of operation
-------------------
The engine knows offsets; whoever hands a message out needs its payload. A shelf finds the batch in which an offset was published, so fetching
costs a look-up and no decoding.

In memory the shelf is the store: a message is on it until every group has settled it. Over a journal it is a cache of what was
published or read last, bounded in bytes: consumers who keep up never read the disk, and one who catches up reads ahead, so that a
section is read once however its messages are asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

from penstock.broker.ledger import batches_of
from penstock.journal.journal import Journal
from penstock.journal.reading import JournalReader
from penstock.limits import PRIORITY_DEFAULT
from penstock.model.batch import Batch, Run

#: Payloads kept of a journal: enough that producers and consumers who run side by side never read back.
CACHE_BYTES: Final = 16 << 20

#: What is read ahead when a message is not on the shelf.
READ_AHEAD_BYTES: Final = 1 << 20
READ_AHEAD_SECTIONS: Final = 256
READ_AHEAD_LOGS: Final = 16

#: Places at the front that are needed no more are given back so many at a time.
GONE_MAX: Final = 1000

#: About what a batch takes beside its payloads, and a plain message that came by the short way.
BATCH_OVERHEAD_BYTES: Final = 500
PLAIN_OVERHEAD_BYTES: Final = 150


class Shelf(Protocol):
    """Where contents are found."""

    def put(self, log: int, batch: Batch) -> None:
        """Messages were published."""
        ...

    def get(self, log: int, offset: int, stop: int = 0) -> Batch | None:
        """A batch that a message is in, at its place behind `batch.first`; None if it is lost. Those before `stop` are wanted too, if they are at hand."""
        ...

    def scan(self, log: int, offset: int) -> Iterator[Batch]:
        """What is stored from an offset on, in order, without looking at payloads. The first batch may begin before it."""
        ...

    def drop(self, log: int, offsets: Iterable[int]) -> None:
        """Messages are not needed any more."""
        ...

    def drop_log(self, log: int) -> None:
        """A log is gone."""
        ...


class MemoryShelf:
    """The store of a broker that is only in memory."""

    def __init__(self) -> None:
        self._logs: dict[int, MemoryLog] = {}

    def _of(self, log: int) -> MemoryLog:
        return self._logs.get(log) or self._logs.setdefault(log, MemoryLog())

    def of_log(self, log: int) -> dict[int, Any]:
        """The messages of one log that were published one by one, by offset."""
        return self._of(log).singles

    def put(self, log: int, batch: Batch) -> None:
        found = self._of(log)
        if len(batch.ids) == 1:
            found.singles[batch.first] = batch
        else:
            found.add(batch)

    def get(self, log: int, offset: int, stop: int = 0) -> Batch | None:
        del stop  # messages that came one by one stand alone here
        kept = self._of(log)
        found = kept.singles.get(offset)
        if type(found) is tuple:
            payload, given, time_us = found
            return Batch([payload], [given], time_us, PRIORITY_DEFAULT, first=offset)
        return found or kept.find(offset)

    def scan(self, log: int, offset: int) -> Iterator[Batch]:
        kept = self._of(log)
        last = max(kept.last, next(reversed(kept.singles), -1))
        while offset <= last:
            batch = self.get(log, offset)
            if batch is not None:
                yield batch
            offset = offset + 1 if batch is None else batch.first + len(batch.ids)

    def drop(self, log: int, offsets: Iterable[int]) -> None:
        kept = self._of(log)
        for run in [offsets] if type(offsets) is range else map(_alone, offsets):
            if kept.drop(run) < len(run) and kept.singles:
                # A loop without a body: there is a call for each message that was ever published.
                deque(map(kept.singles.pop, run, repeat(None)), maxlen=0)

    def drop_log(self, log: int) -> None:
        self._logs.pop(log, None)


class MemoryLog:
    """The messages of one log. A batch is kept as long as any of its messages is; there is nothing for each of them."""

    __slots__ = ("_batches", "_gone", "_left", "_starts", "last", "singles")

    def __init__(self) -> None:
        # Of a plain message that came by the short way only (payload, id, time) is kept.
        self.singles: dict[int, Any] = {}
        self._starts: list[int] = []
        self._batches: list[Batch | None] = []
        self._left: list[int] = []  # how many of each are still needed
        self._gone = 0  # so many at the front are needed no more
        self.last = -1  # the last offset that was in a batch

    def add(self, batch: Batch) -> None:
        self.last = batch.first + len(batch.ids) - 1
        self._starts.append(batch.first)
        self._batches.append(batch)
        self._left.append(len(batch.ids))

    def find(self, offset: int) -> Batch | None:
        """The batch that holds an offset."""
        place = bisect_right(self._starts, offset) - 1
        batch = self._batches[place] if place >= 0 else None
        return batch if batch is not None and offset < batch.first + len(batch.ids) else None

    def drop(self, run: range) -> int:
        """Messages are needed no more, each said once; how many of them were in batches."""
        dropped = 0
        place = max(bisect_right(self._starts, run.start) - 1, 0)
        while place < len(self._starts) and self._starts[place] < run.stop:
            batch = self._batches[place]
            if batch is not None:
                count = min(run.stop, batch.first + len(batch.ids)) - max(run.start, batch.first)
                if count > 0:
                    dropped += count
                    self._left[place] -= count
                    if not self._left[place]:
                        self._batches[place] = None
            place += 1
        if dropped:
            self._forget()
        return dropped

    def _forget(self) -> None:
        """Give back what stands at the front and is needed no more."""
        while self._gone < len(self._batches) and self._batches[self._gone] is None:
            self._gone += 1
        if self._gone == len(self._batches) or self._gone > GONE_MAX:
            del self._starts[: self._gone], self._batches[: self._gone], self._left[: self._gone]
            self._gone = 0


class Row:
    """Batches of one log by their offsets, which only grow at the end and go at the front.

    Of a plain message that came by the short way only the payload is kept, and its id and time in arrays: nothing that Python's garbage collector
    would look at, which stops a server for milliseconds where there are many.
    """

    __slots__ = ("_batches", "_gone", "_ids", "_starts", "_times")

    def __init__(self, batches: list[Batch] | None = None) -> None:
        self._batches: list[Batch | bytes | None] = []
        self._starts: list[int] = []
        self._ids = array("q")
        self._times = array("q")
        self._gone = 0  # so many at the front were dropped
        for batch in batches or ():
            self.append(batch)

    def append(self, batch: Batch) -> None:
        self._append(batch.first, batch, 0, 0)

    def append_plain(self, offset: int, payload: bytes, id: int, time_us: int) -> None:
        self._append(offset, payload, id, time_us)

    def _append(self, first: int, what: Batch | bytes, id: int, time_us: int) -> None:
        self._starts.append(first)
        self._batches.append(what)
        self._ids.append(id)
        self._times.append(time_us)

    def drop_first(self) -> int:
        """Let go of the first one; how many bytes it took."""
        size = size_of(self._batches[self._gone])
        self._batches[self._gone] = None
        self._gone += 1
        if self._gone > GONE_MAX and 2 * self._gone > len(self._starts):
            for column in (self._starts, self._batches, self._ids, self._times):
                del column[: self._gone]
            self._gone = 0
        return size

    @property
    def size(self) -> int:
        """About how many bytes all that is here takes."""
        return sum(map(size_of, self._batches))

    @property
    def stop(self) -> int:
        """The offset behind the last one; below every other one if there is none."""
        last = self._at(-1) if self._batches else None
        return -READ_AHEAD_SECTIONS if last is None else last.first + len(last.ids)

    def find(self, offset: int, stop: int = 0) -> Batch | None:
        """A batch that holds an offset, if it is here: that which was published, or, of plain messages, those before `stop`."""
        place = bisect_right(self._starts, offset) - 1
        batch = self._at(place, stop - offset) if place >= self._gone else None
        return batch if batch is not None and offset < batch.first + len(batch.ids) else None

    def _at(self, place: int, wanted: int = 1) -> Batch | None:
        found = self._batches[place]
        if type(found) is not bytes:
            return found  # type: ignore[return-value]
        first = self._starts[place]
        if wanted < 2:
            return Batch(
                [found],
                [self._ids[place]],
                self._times[place],
                PRIORITY_DEFAULT,
                first=first,
                size=len(found),
            )
        end = place + self._plain_from(place, wanted)
        payloads: list[Any] = self._batches[place:end]
        ids, times = self._ids[place:end].tolist(), self._times[place:end].tolist()
        return Batch(payloads, ids, times, PRIORITY_DEFAULT, first=first, size=sum(map(len, payloads)))

    def _plain_from(self, place: int, most: int) -> int:
        """How many plain messages follow one another there, without a gap."""
        kept = zip(self._batches[place : place + most], self._starts[place : place + most], strict=True)
        for count, (what, start) in enumerate(kept):
            if type(what) is not bytes or start != self._starts[place] + count:
                return count
        return min(most, len(self._batches) - place)


def size_of(kept: Batch | bytes | None) -> int:
    """What is taken by what a row keeps, about."""
    if kept is None:
        return 0
    return PLAIN_OVERHEAD_BYTES + len(kept) if isinstance(kept, bytes) else BATCH_OVERHEAD_BYTES + kept.size


class JournalShelf:
    """What was published last, and what was read last of a few logs. The caller's lock guards it."""

    journal: Journal | JournalReader  # set once it is open: while it is being opened, nobody asks

    def __init__(self) -> None:
        self._published: dict[int, Row] = {}
        self._order: deque[int] = deque()  # of which log the batches are, in the order in which they came
        self._bytes = 0
        self._read_ahead: OrderedDict[int, Row] = OrderedDict()

    def put(self, log: int, batch: Batch) -> None:
        self._of(log).append(batch)
        self._count(log, BATCH_OVERHEAD_BYTES + batch.size)

    def put_plain(self, log: int, offset: int, payload: bytes, id: int, time_us: int) -> None:
        """One plain message was published."""
        self._of(log).append_plain(offset, payload, id, time_us)
        self._count(log, PLAIN_OVERHEAD_BYTES + len(payload))

    def _of(self, log: int) -> Row:
        row = self._published.get(log)
        if row is None:
            row = self._published[log] = Row()
        return row

    def _count(self, log: int, size: int) -> None:
        """So many bytes more are here: let go of the oldest ones, if they are too many."""
        self._order.append(log)
        self._bytes += size
        while self._bytes > CACHE_BYTES and len(self._order) > 1:
            self._bytes -= self._published[self._order.popleft()].drop_first()

    def get(self, log: int, offset: int, stop: int = 0) -> Batch | None:
        for row in (self._published.get(log), self._read_ahead.get(log)):
            batch = row.find(offset, stop) if row is not None else None
            if batch is not None:
                return batch
        return self._read(log, offset)

    def _read(self, log: int, offset: int) -> Batch | None:
        """Read the section that holds an offset; None if it is lost, or was cleaned.

        Whoever goes on where he was gets some of what follows too. Not who jumps: what falls due, and other priorities, come from anywhere.
        """
        before = self._read_ahead.get(log)
        goes_on = before is not None and 0 <= offset - before.stop < READ_AHEAD_SECTIONS
        most = READ_AHEAD_SECTIONS if goes_on else 1
        found: list[Batch] = []
        size = 0
        for sections, read in enumerate(self.journal.read(log, offset), 1):
            if read.section.span.first > offset and not found:
                return None
            found += batches_of(read.section)
            size += read.section.bytes
            if size >= READ_AHEAD_BYTES or sections >= most:
                break
        self._read_ahead[log] = row = Row(found)
        self._read_ahead.move_to_end(log)
        if len(self._read_ahead) > READ_AHEAD_LOGS:
            self._read_ahead.popitem(last=False)
        return row.find(offset)

    def scan(self, log: int, offset: int) -> Iterator[Batch]:
        for read in self.journal.read(log, offset):
            yield from batches_of(read.section, payloads=False)

    def drop(self, log: int, offsets: Iterable[int]) -> None:
        del log, offsets  # it forgets by itself

    def drop_log(self, log: int) -> None:
        gone = self._published.pop(log, None)
        self._read_ahead.pop(log, None)
        if gone is not None:
            self._order = deque(other for other in self._order if other != log)
            self._bytes -= gone.size


def runs_of(shelf: Shelf, log: int, offsets: Sequence[int]) -> tuple[list[Run], list[int]]:
    """Messages as runs of the batches they are in, in order, and the offsets of those that are lost."""
    found: list[Run] = []
    lost: list[int] = []
    for part in [offsets] if type(offsets) is range else map(_alone, offsets):
        offset, stop = part[0], part[-1] + 1
        while offset < stop:
            batch = shelf.get(log, offset, stop)
            if batch is None:
                lost.append(offset)
                offset += 1
                continue
            end = min(stop, batch.first + len(batch.ids))
            start = offset - batch.first
            if found and found[-1].batch is batch and found[-1].stop == start:
                found[-1] = Run(batch, found[-1].start, end - batch.first)
            else:
                found.append(Run(batch, start, end - batch.first))
            offset = end
    return found, lost


def _alone(offset: int) -> range:
    return range(offset, offset + 1)
