"""The ready messages of a group: one lane for each priority, ranges of offsets in each.

Theory of operation
-------------------
A lane is a queue of *pieces*: ranges of offsets with a place. A message's place is counted when it arrives in the lane, so places say the
order of arrival: the order of offsets, except that a delayed or retried message arrives when it falls due. Whoever calls sees to
it that what is due arrives before what is published later; then the order of places is that of due times.

A batch of one priority is one piece, however many messages it has, and joins the piece before it where both offsets and places
go on: ten million plain messages are one piece.

What was taken and comes back keeps its place. It waits in a heap beside the queue, and whichever is earlier goes first: so it is at the
head of its lane, in order, at the cost of a logarithm.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator

#: Offsets from `start` up to, not including, `stop`, at consecutive places of one lane: (place, start, stop, priority). A plain tuple, because
#: one is made for every single message.
Piece = tuple[int, int, int, int]


def part(piece: Piece, start: int, stop: int) -> Piece:
    """The piece from offset `start` up to `stop`, which are within it."""
    return piece[0] + start - piece[1], start, stop, piece[3]


def size(pieces: Iterable[Piece]) -> int:
    """How many messages there are in pieces."""
    return sum(piece[2] - piece[1] for piece in pieces)


class Lane:
    """The ready messages of one priority."""

    __slots__ = ("_queue", "_returned", "arrivals", "count", "priority")

    def __init__(self, priority: int, arrivals: int = 0) -> None:
        self.priority = priority
        self.count = 0
        self.arrivals = arrivals  # the place that the next message gets
        self._queue: deque[Piece] = deque()
        self._returned: list[Piece] = []  # a heap

    def append(self, start: int, stop: int) -> None:
        """Messages arrive, behind all others."""
        arrivals = self.arrivals
        queue = self._queue
        self.arrivals = arrivals + stop - start
        self.count += stop - start
        if queue:
            place, first, last, priority = queue[-1]
            if last == start and place + start - first == arrivals:
                queue[-1] = (place, first, stop, priority)
                return
        queue.append((arrivals, start, stop, self.priority))

    def put_back(self, piece: Piece) -> None:
        """Messages that were taken come back to their places."""
        heapq.heappush(self._returned, piece)
        self.count += piece[2] - piece[1]

    def take(self, wanted: int) -> list[Piece]:
        """The first messages, at most so many."""
        taken: list[Piece] = []
        queue, returned = self._queue, self._returned
        while wanted and self.count:
            from_returned = bool(returned) and (not queue or returned[0] < queue[0])
            piece = heapq.heappop(returned) if from_returned else queue.popleft()
            place, start, stop, priority = piece
            length = stop - start
            if length > wanted:
                piece = (place, start, start + wanted, priority)
                rest = (place + wanted, start + wanted, stop, priority)
                length = wanted
                if from_returned:
                    heapq.heappush(returned, rest)
                else:
                    queue.appendleft(rest)
            self.count -= length
            wanted -= length
            taken.append(piece)
        return taken

    def remove(self, start: int, stop: int) -> list[Piece]:
        """Take out those offsets of a range that are here, wherever they stand."""
        if not self.count:
            return []
        taken: list[Piece] = []
        queue = self._queue
        at = self._piece_with(start, stop)
        if at is not None:
            piece = queue[at]
            del queue[at]
            for rest in reversed(list(_without([piece], [range(start, stop)], taken))):
                queue.insert(at, rest)
            self.count -= stop - start
            return taken
        return self.remove_all([range(start, stop)])

    def _piece_with(self, start: int, stop: int) -> int | None:
        """Which piece of the queue holds a whole range, if that is quickly told: nearly always offsets rise with places."""
        queue = self._queue
        at = bisect_right(queue, start, key=_start_of) - 1
        return at if at >= 0 and queue[at][1] <= start and stop <= queue[at][2] else None

    def remove_all(self, runs: list[range]) -> list[Piece]:
        """The same for many ranges, which rise, in one pass."""
        taken: list[Piece] = []
        if self.count:
            self._queue = deque(_without(self._queue, runs, taken))
            if self._returned:
                self._returned = list(_without(self._returned, runs, taken))
                heapq.heapify(self._returned)
            self.count -= size(taken)
        return taken

    def pieces(self) -> Iterator[Piece]:
        """All of it, in order."""
        return heapq.merge(sorted(self._returned), self._queue)


def _start_of(piece: Piece) -> int:
    return piece[1]


def _without(pieces: Iterable[Piece], runs: list[range], taken: list[Piece]) -> Iterator[Piece]:
    stops = [run.stop for run in runs]
    for piece in pieces:
        _, start, end, _ = piece
        at = bisect_right(stops, start)
        while at < len(runs) and runs[at].start < end:
            low, high = max(start, runs[at].start), min(end, runs[at].stop)
            taken.append(part(piece, low, high))
            if start < low:
                yield part(piece, start, low)
            start = high
            at += 1
        if start == piece[1]:
            yield piece
        elif start < end:
            yield part(piece, start, end)


class Lanes:
    """All lanes of a group, the lowest priority number first."""

    __slots__ = ("_by_priority", "_order", "count")

    def __init__(self) -> None:
        self._by_priority: dict[int, Lane] = {}
        self._order: list[int] = []
        self.count = 0

    def lane(self, priority: int) -> Lane:
        """The lane of a priority. It stays once it was made, because what was taken from it has places in it."""
        lane = self._by_priority.get(priority)
        if lane is None:
            lane = self._by_priority[priority] = Lane(priority)
            insort(self._order, priority)
        return lane

    def append(self, priority: int, start: int, stop: int) -> None:
        """Messages of one priority arrive."""
        (self._by_priority.get(priority) or self.lane(priority)).append(start, stop)
        self.count += stop - start

    def put_back(self, piece: Piece) -> None:
        """Messages that were taken come back to their places."""
        self.lane(piece[3]).put_back(piece)
        self.count += piece[2] - piece[1]

    def take(self, wanted: int) -> list[Piece]:
        """The messages that go first, at most so many."""
        taken: list[Piece] = []
        for priority in self._order:
            lane = self._by_priority[priority]
            if not lane.count:
                continue
            before = lane.count
            taken += lane.take(wanted)
            wanted -= before - lane.count
            self.count -= before - lane.count
            if not wanted:
                break
        return taken

    def remove_all(self, priority: int, runs: list[range]) -> list[Piece]:
        """Take many offsets out of the lane of a priority, as far as they are in it. The ranges rise."""
        lane = self._by_priority.get(priority)
        taken = lane.remove_all(runs) if lane is not None else []
        self.count -= size(taken)
        return taken

    def remove_anywhere(self, offset: int) -> list[Piece]:
        """Take one out of whichever lane it is in."""
        for priority in self._order:
            taken = self.remove(priority, offset, offset + 1)
            if taken:
                return taken
        return []

    def remove(self, priority: int, start: int, stop: int) -> list[Piece]:
        """Take those offsets out of the lane of a priority that are in it."""
        lane = self._by_priority.get(priority)
        taken = lane.remove(start, stop) if lane is not None else []
        self.count -= size(taken)
        return taken

    def pieces(self) -> Iterator[Piece]:
        """Everything that is ready, in the order in which it would be taken."""
        for priority in self._order:
            yield from self._by_priority[priority].pieces()

    # --- storing ---

    def encode(self) -> list[list[int]]:
        """For each lane: its priority, its next place, then place, start and stop of its pieces."""
        stored = []
        for priority in self._order:
            lane = self._by_priority[priority]
            flat = [priority, lane.arrivals]
            for piece in lane.pieces():
                flat += piece[:3]
            stored.append(flat)
        return stored

    @classmethod
    def decode(cls, stored: list[list[int]]) -> Lanes:
        """What `encode` gave."""
        lanes = cls()
        for priority, arrivals, *flat in stored:
            lane = lanes.lane(priority)
            lane.arrivals = arrivals
            places = iter(flat)
            for place, start, stop in zip(places, places, places, strict=True):
                lane._queue.append((place, start, stop, priority))
                lane.count += stop - start
            lanes.count += lane.count
        return lanes
