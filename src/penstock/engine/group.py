"""One cursor over a log: what of it is ready, leased, waiting for another attempt, or settled.

Theory of operation
-------------------
A message that arrives in a group is in exactly one of these until it is settled for good::

                    arrive                    take
        (not here) ───────▶ ready in a lane ───────▶ leased ──── settle ───▶ settled
                                ▲   ▲                 │   │
                    falls due   │   │ goes back       │   │ nack
                                │   └─────────────────┘   ▼
                                └──────────────────── retrying

and with `ordering="key"` a message that is due may be *parked* before it is ready (see `keys`). Settled offsets are ranges; what is ready is
ranges; only what is leased, retrying or parked costs memory for each message.

Nothing is decided here: `log` and `engine` decide, and the same methods are called when events are replayed. So what is said to
have happened and what is in memory cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from penstock.engine.filter import stored_filter
from penstock.engine.keys import Keys
from penstock.engine.lane import Lanes, Piece
from penstock.engine.lease import Lease, Leases
from penstock.engine.tally import Tally
from penstock.engine.timeline import Timeline
from penstock.errors import InvalidArgument, LeaseLost
from penstock.ranges import RangeSet

Strategy = Literal["round-robin", "least-busy", "random"]


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was said when a group was made: which messages it wants, and how its consumers share them (None: as the log's policy says)."""

    filter: str | None = None
    strategy: Strategy | None = None


class Member(msgspec.Struct):
    """A consumer of a group: when it was last heard of, and after how long a silence it is thought dead."""

    heard_us: int
    silence_us: int | None = None
    turn: int = 0  # when it was last given something, counted
    waits: int = 0  # in line for messages: then it is alive

    @property
    def dead_us(self) -> int | None:
        return None if self.silence_us is None or self.waits else self.heard_us + self.silence_us


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A group as a snapshot holds it."""

    lanes: list[list[int]]
    leased: list[Piece]
    retries: Any
    tally: Any
    settled: list[int]
    keys: dict[str, list[int]]
    overdue: list[int]
    terms: Terms
    # Added later: a reader from before counts an attempt for them, which harms nothing.
    ahead: list[int] = []


class Group:
    """The state of one cursor."""

    def __init__(self, name: str, terms: Terms | None = None, *, durable: bool = True) -> None:
        self.name = name
        self.terms = terms or Terms()
        self.filter = None if self.terms.filter is None else stored_filter(self.terms.filter)
        self.durable = (
            durable  # if not, nothing that happens in it is recorded, and it ends with its last consumer
        )
        self.seen = 0  # what the log has from here on has not arrived here yet
        self.members: dict[str, Member] = {}  # who is attached, in order
        self.retired: dict[str, None] = {}  # who was taken out, or thought dead, and may not know it yet
        self.turns = 0
        self._clear()

    def _clear(self) -> None:
        self.lanes = Lanes()
        self.leases = Leases()
        self.retries = Timeline()
        self.tally = Tally()
        self.settled = RangeSet()
        self.keys = Keys()
        # Their time is over, but they are handed out, or there is no room to bury them
        self.overdue: set[int] = set()
        self.withdrawn = 0  # entries of `retries` whose message was settled meanwhile

    def begin(self, settled: RangeSet, seen: int) -> None:
        """Have everything behind it that is settled, and nothing under way."""
        self._clear()
        self.settled = settled.copy()
        self.seen = seen

    # --- counting ---

    @property
    def ready(self) -> int:
        return self.lanes.count + self.keys.parked

    @property
    def retrying(self) -> int:
        return len(self.retries) - self.withdrawn

    # --- what happens to messages ---

    def arrive(self, priority: int, start: int, stop: int) -> None:
        """Messages without keys are due."""
        self.lanes.append(priority, start, stop)

    def arrive_keyed(self, priority: int, offset: int, key: str | None) -> None:
        """A message is due, in a log that orders by key. If it is older than the one that stands for its key, it takes its place.

        Not if that one was handed out already, or waits for its next attempt: what was begun is ended first.
        """
        foremost = None if key is None else self.keys.foremost(key)
        if (
            key is not None
            and foremost is not None
            and offset < foremost
            and foremost not in self.tally
            and self.lanes.remove_anywhere(foremost)
        ):
            self.keys.take_place(key, offset)
            self.lanes.append(priority, offset, offset + 1)
        elif key is None or self.keys.arrive(key, offset):
            self.lanes.append(priority, offset, offset + 1)

    def count_attempt(self, offset: int, now_us: int) -> None:
        """A message was handed out and not settled for good."""
        first_us = self.tally.first_failed(offset)
        self.tally.set(offset, self.tally.get(offset) + 1, now_us if first_us is None else first_us)

    def put_back(self, offset: int) -> None:
        """A leased message goes back to its place."""
        self.lanes.put_back(self.leases.remove(offset).place_of(offset))

    def retry(self, offset: int, due_us: int) -> None:
        """A leased message waits for its next attempt."""
        self.leases.remove(offset)
        self.retries.add(due_us, offset)

    def pop_retries(self, now_us: int) -> list[tuple[int, int]]:
        """Those whose next attempt is due, as (moment, offset), in order; the caller has them arrive again."""
        due = self.retries.pop_due(now_us)
        if not self.withdrawn:
            return due
        left = [entry for entry in due if entry[1] not in self.settled]
        self.withdrawn -= len(due) - len(left)
        return left

    def withdraw(self, offset: int, priority: int) -> bool:
        """Take a message out, wherever it is; the caller settles it. False if it never arrived: it is not due yet."""
        if offset in self.leases:
            self.leases.remove(offset)
        elif offset in self.overdue:  # it was taken out before, and could not be settled
            return True
        elif not self.keys.is_parked(offset) and not self.lanes.remove(priority, offset, offset + 1):
            if offset not in self.tally:
                return False
            self.withdrawn += 1
        return True

    # --- asking ---

    def attempts_of(self, offsets: Sequence[int]) -> int | list[int]:
        """Which attempt it is to hand these out, or was: one number if it is the first of all."""
        tally = self.tally
        return [tally.get(offset) + 1 for offset in offsets] if tally else 1

    def require_leases(self, offsets: list[int], numbers: list[int]) -> Lease:
        """The lease of the last one, if each message is held by the lease of its number; otherwise `LeaseLost`."""
        found = self.leases.of(offsets)
        if not found:
            raise InvalidArgument("nothing is given to settle")
        lease = found[0]
        if lease is not None and found.count(lease) == len(found) == numbers.count(lease.number):
            return lease  # nearly always: what was received together
        for offset, number, lease in zip(offsets, numbers, found, strict=True):
            if lease is None or lease.number != number:
                raise LeaseLost(
                    f"the lease of message {offset} in group {self.name!r} has ended: it was settled, its time was over, or the "
                    "broker was reopened. Drop the result, or ask for a longer visibility_timeout or extend"
                )
        return found[-1]  # type: ignore[return-value]  # none of them is None

    # --- storing ---

    def encode(self) -> Stored:
        """Everything that must survive. Leases do not: what they hold is stored as pieces that were handed out."""
        leased: list[Piece] = []
        for offset in self.leases.offsets():
            lease = self.leases.get(offset)
            if lease is not None:
                leased.append(lease.place_of(offset))
        return Stored(
            self.lanes.encode(),
            leased,
            self.retries.encode(),
            self.tally.encode(),
            self.settled.encode(),
            self.keys.encode(),
            sorted(self.overdue),
            self.terms,
            sorted(self.leases.ahead),
        )

    @classmethod
    def decode(cls, name: str, stored: Stored) -> Group:
        """What `encode` gave; what was handed out is held by nobody, until the engine puts it back."""
        group = cls(name, stored.terms)
        group.lanes = Lanes.decode(stored.lanes)
        group.retries = Timeline.decode(stored.retries)
        group.tally = Tally.decode(stored.tally)
        group.settled = RangeSet.decode(stored.settled)
        group.keys = Keys.decode(stored.keys)
        group.overdue = set(stored.overdue)
        group.withdrawn = sum(1 for _, offset in group.retries.items() if offset in group.settled)
        if stored.leased:
            group.leases.add(Lease(0, stored.leased, None, None))
            group.leases.ahead.update(stored.ahead)
        return group
