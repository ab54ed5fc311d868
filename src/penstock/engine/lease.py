"""What is handed out: to whom, until when, and where it goes back to.

Theory of operation
-------------------
One `Lease` stands for all messages that one call handed out; `Leases` maps each of their offsets to it. A lease has a number that is never used
again (it holds the epoch of the journal's owner), which is the fencing token in a receipt: a settle names offset and number, and is refused
unless that very lease still holds the message. Extending one message moves it to a lease of its own with the same number.

Deadlines stand in a heap; those of leases that were settled in time are skipped when they come up. A lease without a deadline is held
until its consumer goes.

Leases live in memory only. What survives is that a message was handed out, and how often (see `events.Leased`): after a restart
everything that was leased is ready again, in its place, with the attempt counted.

A message may be leased *ahead*: it is on its way to a consumer whose code does not have it yet. Until
the consumer reports that it hands the message over, no `events.Leased` is recorded and the end of the
lease counts no attempt; a restart finds the message ready.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from penstock.engine.lane import Piece, part

#: How many deadlines of ended leases are kept at the least before they are swept.
ENDED_LEASES_MAX: Final = 1000


class Lease(msgspec.Struct, eq=False, gc=False):
    """Messages that were handed out together."""

    number: int
    pieces: list[Piece]
    consumer: str | None
    deadline_us: int | None
    held: int = 0
    since_us: int = 0  # when they were handed out
    _places: dict[int, Piece] | None = None  # made when it is first asked for

    def __lt__(self, other: Lease) -> bool:
        return id(self) < id(other)  # two of one number, after extending: either may go first

    def place_of(self, offset: int) -> Piece:
        """Where a message of it goes back to."""
        if self._places is None:
            self._places = {o: piece for piece in self.pieces for o in range(piece[1], piece[2])}
        return part(self._places[offset], offset, offset + 1)


class Leases:
    """What is handed out in a group."""

    __slots__ = ("_by_offset", "_deadlines", "_ended", "ahead")

    def __init__(self) -> None:
        self._by_offset: dict[int, Lease] = {}
        self.ahead: set[int] = set()  # of these, the messages that no code has yet
        self._deadlines: list[tuple[int, int, Lease]] = []
        self._ended = 0  # leases with a deadline that hold nothing any more

    def __len__(self) -> int:
        return len(self._by_offset)

    def __contains__(self, offset: object) -> bool:
        return offset in self._by_offset

    def get(self, offset: int) -> Lease | None:
        return self._by_offset.get(offset)

    def of(self, offsets: Iterable[int]) -> list[Lease | None]:
        """For each message the lease that holds it."""
        return list(map(self._by_offset.get, offsets))

    def number_of(self, offset: int) -> int:
        """The number of the lease that holds a message."""
        return self._by_offset[offset].number

    def add(self, lease: Lease) -> None:
        """Hand out the pieces of a lease."""
        by_offset = self._by_offset
        for _, start, stop, _ in lease.pieces:
            if stop - start == 1:
                by_offset[start] = lease
            else:
                by_offset.update(dict.fromkeys(range(start, stop), lease))
            lease.held += stop - start
        if lease.deadline_us is not None:
            heapq.heappush(self._deadlines, (lease.deadline_us, lease.number, lease))

    def remove(self, offset: int) -> Lease:
        """A message is no longer handed out."""
        lease = self._by_offset.pop(offset)
        self.ahead.discard(offset)
        lease.held -= 1
        if not lease.held:
            self._ended += 1
            if self._ended > ENDED_LEASES_MAX and 2 * self._ended > len(self._deadlines):
                self._forget_ended()
        return lease

    def remove_all(self, offsets: Iterable[int]) -> None:
        """Messages are no longer handed out."""
        gone = list(map(self._by_offset.pop, offsets))
        if self.ahead:
            self.ahead.difference_update(offsets)
        first = gone[0]
        if gone.count(first) == len(gone):  # nearly always: what was received together
            first.held -= len(gone)
            self._ended += not first.held
        else:
            for lease in gone:
                lease.held -= 1
                self._ended += not lease.held
        if self._ended > ENDED_LEASES_MAX and 2 * self._ended > len(self._deadlines):
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Deadlines of leases that were settled in time would otherwise be kept until they come up."""
        self._deadlines = [entry for entry in self._deadlines if entry[2].held]
        heapq.heapify(self._deadlines)
        self._ended = 0

    def extend(self, offset: int, deadline_us: int) -> None:
        """Give one message a later deadline."""
        lease = self._by_offset[offset]  # it keeps its place there: see `oldest_us`
        lease.held -= 1
        self._ended += not lease.held
        if self._ended > ENDED_LEASES_MAX and 2 * self._ended > len(self._deadlines):
            self._forget_ended()
        self.add(
            Lease(lease.number, [lease.place_of(offset)], lease.consumer, deadline_us, 0, lease.since_us)
        )

    @property
    def oldest_us(self) -> int | None:
        """When that was handed out which has been in hand longest: what is in hand stands in the order of handing out."""
        first = next(iter(self._by_offset.values()), None)
        return None if first is None else first.since_us

    @property
    def next_us(self) -> int | None:
        """The first deadline that anybody has to keep."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].held:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def pop_overdue(self, now_us: int) -> list[int]:
        """The messages whose deadline is over, still handed out: the caller takes them back."""
        overdue: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now_us:
            overdue += self.held_by([heapq.heappop(self._deadlines)[2]])
        return sorted(overdue)

    def held_by(self, leases: Iterable[Lease]) -> Iterator[int]:
        """The messages that these leases still hold."""
        for lease in leases:
            for piece in lease.pieces if lease.held else ():
                for offset in range(piece[1], piece[2]):
                    if self._by_offset.get(offset) is lease:
                        yield offset

    def held_for(self, consumer: str) -> list[int]:
        """The messages that a consumer has, oldest first."""
        return sorted(offset for offset, lease in self._by_offset.items() if lease.consumer == consumer)

    def by_consumer(self) -> Counter[str | None]:
        """How many messages each consumer has."""
        return Counter(lease.consumer for lease in self._by_offset.values())

    def offsets(self) -> list[int]:
        """Everything that is handed out, oldest first."""
        return sorted(self._by_offset)
