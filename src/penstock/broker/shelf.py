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

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

from penstock.broker.ledger import batches_of
from penstock.engine.events import Batch
from penstock.journal.journal import Journal
from penstock.limits import PRIORITY_DEFAULT

#: Payloads kept of a journal: enough that producers and consumers who run side by side never read back.
CACHE_BYTES: Final = 16 << 20

#: What is read ahead when a message is not on the shelf.
READ_AHEAD_BYTES: Final = 1 << 20
READ_AHEAD_SECTIONS: Final = 256
READ_AHEAD_LOGS: Final = 16

#: Places at the front that are needed no more are given back so many at a time.
GONE_MAX: Final = 1000

#: About what a batch takes beside its payloads.
BATCH_OVERHEAD_BYTES: Final = 500


class Shelf(Protocol):
    """Where contents are found."""

    def put(self, log: int, batch: Batch) -> None:
        """Messages were published."""
        ...

    def get(self, log: int, offset: int) -> Batch | None:
        """The batch that a message is in, at its place behind `batch.first`; None if it is lost."""
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

    def get(self, log: int, offset: int) -> Batch | None:
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
    """Batches of one log by their offsets, which only grow at the end and go at the front."""

    __slots__ = ("_batches", "_gone", "_starts")

    def __init__(self, batches: list[Batch] | None = None) -> None:
        self._batches: list[Batch | None] = list(batches or ())
        self._starts = [batch.first for batch in batches or ()]
        self._gone = 0  # so many at the front were dropped

    def append(self, batch: Batch) -> None:
        self._starts.append(batch.first)
        self._batches.append(batch)

    def drop_first(self) -> None:
        self._batches[self._gone] = None
        self._gone += 1
        if self._gone > GONE_MAX and 2 * self._gone > len(self._starts):
            del self._starts[: self._gone], self._batches[: self._gone]
            self._gone = 0

    @property
    def stop(self) -> int:
        """The offset behind the last one; below every other one if there is none."""
        last = self._batches[-1] if self._batches else None
        return -READ_AHEAD_SECTIONS if last is None else last.first + len(last.ids)

    def find(self, offset: int) -> Batch | None:
        """The batch that holds an offset, if it is here."""
        place = bisect_right(self._starts, offset) - 1
        batch = self._batches[place] if place >= self._gone else None
        return batch if batch is not None and offset < batch.first + len(batch.ids) else None


class JournalShelf:
    """What was published last, and what was read last of a few logs. The caller's lock guards it."""

    journal: Journal  # set once it is open: while it is being opened, nobody asks

    def __init__(self) -> None:
        self._published: dict[int, Row] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._read_ahead: OrderedDict[int, Row] = OrderedDict()

    def put(self, log: int, batch: Batch) -> None:
        row = self._published.get(log)
        if row is None:
            row = self._published[log] = Row()
        row.append(batch)
        size = batch.size + BATCH_OVERHEAD_BYTES
        self._order.append((log, size))
        self._bytes += size
        while self._bytes > CACHE_BYTES and len(self._order) > 1:
            oldest, size = self._order.popleft()
            self._bytes -= size
            if oldest in self._published:
                self._published[oldest].drop_first()

    def get(self, log: int, offset: int) -> Batch | None:
        for row in (self._published.get(log), self._read_ahead.get(log)):
            batch = row.find(offset) if row is not None else None
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
        self._published.pop(log, None)
        self._read_ahead.pop(log, None)
        self._order = deque(entry for entry in self._order if entry[0] != log)
        self._bytes = sum(size for _, size in self._order)


class Run(NamedTuple):
    """Messages `start` up to, not including, `stop` of a batch."""

    batch: Batch
    start: int
    stop: int


def runs_of(shelf: Shelf, log: int, offsets: Sequence[int]) -> tuple[list[Run], list[int]]:
    """Messages as runs of the batches they are in, in order, and the offsets of those that are lost."""
    found: list[Run] = []
    lost: list[int] = []
    for part in [offsets] if type(offsets) is range else map(_alone, offsets):
        offset, stop = part[0], part[-1] + 1
        while offset < stop:
            batch = shelf.get(log, offset)
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
