"""One queue or topic: its policy, its groups, and what of it waits for a moment.

Theory of operation
-------------------
A log gives offsets when messages are published; they *arrive* in its groups when that is durable, or when they fall due. What is known of
each message beside its offset is kept only as far as something depends on it: its priority as runs of offsets, when it is due or expires
in timelines, its key while it is delayed. A plain message costs nothing.

The order of what is ready is the order of arrival. So before anything is published or leased at a moment, everything that fell due by
then must have arrived: `fall_due`.

Plain messages arrive in many groups at the cost of one: the log only counts them (`arrived`), and a group takes in what it has not `seen` when
somebody looks at it (`catch_up`). Whatever arrives in another way waits for that, so the order in a group is the same.

What is stored of a log is what some group has not settled, and what is *kept* besides: from an offset on (`kept_from`), for the time or the bytes that its policy says, or for
readers who asked to be waited for. Without either, nothing is kept once it was settled, and that offset is beyond all others. Whoever comes anew or goes back
gets what is `available`: stored, and neither expired nor purged.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from penstock.clock import SECOND_US
from penstock.engine import group as groups
from penstock.engine.dedup import DedupWindow
from penstock.engine.group import Group
from penstock.engine.lane import Lane, Lanes
from penstock.engine.milestones import STRIDE, Milestones
from penstock.engine.timeline import Timeline
from penstock.errors import InvalidArgument
from penstock.limits import OFFSET_MAX
from penstock.model.batch import Batch
from penstock.model.commands import DEFAULT_GROUP, Handle, Kind
from penstock.model.stats import Counts
from penstock.policy import Policy
from penstock.ranges import RangeSet

#: Nothing is kept.
NOTHING_KEPT: Final = OFFSET_MAX

#: So few runs of priorities, or moments of expiry, are not worth looking at.
FEW_KEPT: Final = 1000


class Runs:
    """A number for each offset, kept as runs of equal ones."""

    __slots__ = ("_starts", "_values", "last")

    def __init__(self, starts: Iterable[int] = (), values: Iterable[int] = ()) -> None:
        self._starts = array("q", starts)
        self._values = array("h", values)
        self.last = self._values[-1] if self._values else None  # the number of the last run

    def append(self, start: int, value: int) -> None:
        """From `start` on, behind all others, it is `value`."""
        if self.last != value:
            self._starts.append(start)
            self._values.append(value)
            self.last = value

    def at(self, offset: int) -> int:
        """The number of an offset."""
        if len(self._values) == 1:
            return self._values[0]
        return self._values[max(bisect_right(self._starts, offset) - 1, 0)]

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """A range of offsets as (number, start, stop), cut where the number changes."""
        place = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop:
            end = min(stop, self._starts[place + 1]) if place + 1 < len(self._starts) else stop
            yield self._values[place], start, end
            start = end
            place += 1

    def __len__(self) -> int:
        return len(self._starts)

    def forget_before(self, offset: int) -> None:
        """What is before that offset will not be asked for any more."""
        dead = bisect_right(self._starts, offset) - 1
        if dead > 0:
            del self._starts[:dead], self._values[:dead]

    def encode(self) -> tuple[list[int], list[int]]:
        return list(self._starts), list(self._values)


class Plain(NamedTuple):
    """What one plain message after the other touches, at hand. Where there is another group than the default one, or several, the first three are None."""

    group: Group | None
    lanes: Lanes | None
    lane: Lane | None
    contents: dict[int, Any]
    bytes_max: int
    visible_us: int | None


def is_plain(policy: Policy) -> bool:
    """Whether a message without any properties needs nothing but an offset, a lane and a lease."""
    return (
        policy.ttl is policy.max_depth is policy.max_bytes is policy.expires is None
        and policy.retain_seconds is policy.retain_bytes is None
        and policy.retain == "consumed"
        and policy.ordering == "fifo"
        and policy.delivery == "at-least-once"
        and not policy.single_active
    )


class Position(msgspec.Struct, array_like=True):
    """Where a reader is, as far as it said so; and whether what is behind that is kept for it."""

    offset: int
    holds: bool = False


class Hold(msgspec.Struct, frozen=True):
    """What is recorded of a reader that asks to be waited for, or no longer does: from its position on this was gone then.

    Who needs a message, and keeps it, may be a group of which nothing is recorded.
    """

    position: Position
    gone: list[int]


class Schedule(msgspec.Struct, array_like=True):
    """A message that is published again and again: when next, and by which rule. What it says, and the rule, are the broker's business."""

    due_us: int
    body: bytes
    again_us: int = 0  # not before: there was no room

    @property
    def next_us(self) -> int:
        return max(self.due_us, self.again_us)


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A log as a snapshot holds it."""

    number: int
    namespace: str
    name: str
    policy: bytes
    next_offset: int
    priorities: tuple[list[int], list[int]]
    delayed: Any
    expiries: Any
    dedup: Any
    keys: dict[int, str]
    held_ids: dict[int, str]
    groups: dict[str, groups.Stored]
    sizes: dict[int, int]
    published: int
    kind: Kind
    gone: list[int]
    targeted: dict[str, list[int]]
    floor: int
    kept_from: int
    readers: dict[str, Position]
    milestones: list[bytes | int]
    schedules: dict[str, Schedule]


class Log:
    """The state of one log."""

    def __init__(self, number: int, namespace: str, name: str, policy: Policy, kind: Kind = "queue") -> None:
        self.number = number
        self.namespace = namespace
        self.name = name
        self.policy = policy
        self.kind: Kind = kind
        self.deleted = False
        self.handle: Handle | None = None  # what callers hold of it
        self.next_offset = 0
        self.arrived = 0  # what is before this is durable, and due or waiting
        self.priorities = Runs()
        self.delayed = Timeline()
        self.withdrawn = 0  # entries of `delayed` whose message was settled meanwhile
        self.awaited: dict[int, int] = {}  # how many groups have settled a message that is not due yet
        self.receivers = 0  # who waits for a message
        self.used_us = 0
        self.expiries = Timeline()
        self.dedup = DedupWindow()
        self.keys: dict[int, str] = {}  # of delayed messages, where they matter
        self.held_ids: dict[int, str] = {}  # dedup ids that are remembered until their message is settled
        self.groups: dict[str, Group] = {}
        self.sizes: dict[int, int] = {}  # of payloads, where their sum is limited
        self.bytes = 0
        self.alarm_us: int | None = None  # when the engine will look at it next
        self.plain: Plain | None = None  # its short way, if it has one: see `broker.express`
        self.published = 0  # since it was declared
        self.published_before = 0  # and how many of them before the broker was opened
        self.dropped_before = 0  # what was dropped while it was still being recorded is before this
        self.runs_max = FEW_KEPT  # runs of priorities, before it is looked for those that nobody needs
        self.floor = NOTHING_KEPT  # from here on the policy keeps messages
        self.kept_from = NOTHING_KEPT
        self.gone = RangeSet()  # stored, perhaps, but for nobody who comes anew: expired, purged
        self.targeted: dict[str, RangeSet] = {}  # for one group only: redriven
        self.readers: dict[str, Position] = {}
        self.milestones = Milestones()
        self.schedules: dict[str, Schedule] = {}
        self.delivered = 0  # since it was opened
        self.acked = 0
        self.counts = Counts()

    def set_policy(self, policy: Policy) -> None:
        """Change the policy, as callers see it too."""
        self.policy = policy
        if self.handle is not None:
            self.handle.policy = policy

    # --- counting ---

    @property
    def depth(self) -> int:
        """Messages that the group furthest behind has not settled; published ones count before they are durable."""
        if not self.groups:
            return 0
        return self.next_offset - min(len(group.settled) for group in self.groups.values())

    @property
    def delayed_count(self) -> int:
        return len(self.delayed) - self.withdrawn

    @property
    def consumers(self) -> int:
        """How many are attached, in all groups."""
        return sum(len(group.members) for group in self.groups.values())

    # --- groups ---

    def group(self, name: str = DEFAULT_GROUP) -> Group:
        """A group that has seen everything; made if it does not exist, from what is available on."""
        found = self.groups.get(name)
        if found is None:
            found = self.join(Group(name), self.beginning(0, name), {})
        if found.seen < self.arrived:
            self.catch_up(found)
        return found

    def join(self, group: Group, settled: RangeSet, keys: Mapping[int, str]) -> Group:
        """A group comes, that has some messages behind it. Where keys matter, some may be `keys` that no other group remembers."""
        self.plain = None
        self.groups[group.name] = group
        self.place(group, settled, keys)
        return group

    def part(self, group: Group) -> None:
        """A group goes."""
        self.plain = None
        del self.groups[group.name]
        if not self.groups and self.kind == "queue":
            self.gone.add(0, min(self.kept_from, self.next_offset))
        self.recount_delayed()

    def place(self, group: Group, settled: RangeSet, keys: Mapping[int, str]) -> None:
        """Have a group begin with what is not settled, as if everything else were behind it."""
        others = [other for other in self.groups.values() if other is not group]
        if settled.overlap(
            self.arrived, self.next_offset
        ):  # what is on its way must be looked at when it arrives
            self.dropped_before = max(self.dropped_before, self.next_offset)
        group.begin(settled, self.arrived)
        waiting = {offset for _, offset in self.delayed.items()}
        for gap in settled.gaps(0, self.arrived):
            if self.policy.ordering != "key" and not waiting:
                for priority, start, stop in self.priorities.parts(gap.start, gap.stop):
                    group.lanes.append(priority, start, stop)
                continue
            for offset in gap:
                if offset not in waiting:
                    key = keys.get(offset) or next(
                        filter(None, (g.keys.key_of(offset) for g in others)), None
                    )
                    group.arrive_keyed(self.priorities.at(offset), offset, key)
        self.recount_delayed()

    def catch_up(self, group: Group) -> None:
        """Have everything arrive in a group that it has not seen."""
        seen, group.seen = group.seen, self.arrived
        if seen < self.arrived:
            for priority, start, stop in self.priorities.parts(seen, self.arrived):
                group.lanes.append(priority, start, stop)

    def all_groups(self) -> list[Group]:
        """All of them, each having seen everything."""
        found = list(self.groups.values())
        for group in found:
            if group.seen < self.arrived:
                self.catch_up(group)
        return found

    def recount_delayed(self) -> None:
        """Count anew which delayed messages nobody waits for."""
        self.withdrawn, self.awaited = 0, {}
        for _, offset in self.delayed.items():  # noqa: PERF102  # it is no dict
            self._count_delayed(offset)

    def _count_delayed(self, offset: int) -> None:
        settled = sum(offset in group.settled for group in self.groups.values())
        if settled == len(self.groups):
            self.withdrawn += 1
        elif settled:
            self.awaited[offset] = settled

    def skip_to(self, offset: int) -> None:
        """Give up the offsets before that one: the journal may have held them, and lost them."""
        if offset > self.next_offset:
            for group in self.all_groups():
                group.settled.add(self.next_offset, offset)
                group.seen = offset
            if self.kept_from < NOTHING_KEPT or not self.groups:
                self.gone.add(self.next_offset, offset)
            self.next_offset = self.arrived = offset

    # --- dedup ids ---

    def without_repeats(
        self, batch: Batch, now_us: int, *, planned: bool = False
    ) -> tuple[Batch | None, list[int]]:
        """The batch without what was published before, and the ids to answer with. Nothing is remembered yet.

        What was `planned` is not refused for the dedup ids that it has not.
        """
        dedup_ids = batch.dedup_id or []
        exact = self.policy.delivery == "exactly-once"
        ids = list(batch.ids)
        keep: list[int] = []
        here: dict[str, int] = {}
        for row, dedup_id in enumerate(dedup_ids):
            if dedup_id is None:
                if exact and not planned:
                    raise InvalidArgument(
                        f"{self.name!r} promises exactly-once: message {row} has no dedup_id"
                    )
                keep.append(row)
                continue
            first = here.get(dedup_id)
            if first is None:
                first = self.dedup.seen(dedup_id, now_us)
            if first is None:
                here[dedup_id] = ids[row]
                keep.append(row)
            else:
                ids[row] = first
        if len(keep) == len(ids):
            return batch, ids
        return (batch.rows(keep) if keep else None), ids

    def remember(self, first: int, batch: Batch) -> None:
        """Remember dedup ids: for the window from their publish on, or until their message is settled and the window after that."""
        exact = self.policy.delivery == "exactly-once"
        window_us = round(self.policy.dedup_window * SECOND_US)
        times = batch.timestamp_us
        for row, dedup_id in enumerate(batch.dedup_id or ()):
            if dedup_id is not None:
                published_us = times[row] if isinstance(times, list) else times
                self.dedup.remember(dedup_id, batch.ids[row], published_us + window_us)
                if exact:
                    self.dedup.hold(dedup_id)
                    self.held_ids[first + row] = dedup_id

    # --- arriving ---

    def arrive(self, first: int, batch: Batch) -> None:
        """Messages that were published are durable."""
        each = (
            self.policy.ordering == "key"
            or batch.deliver_at is not None
            or batch.target_group is not None
            or first < self.dropped_before
        )
        if each:
            self.all_groups()
        stop = self.arrived = first + batch.count
        self._note_priorities(first, batch)
        self._note_expiries(first, batch)
        if each:
            self._arrive_each(first, batch)
            for group in self.groups.values():
                group.seen = max(group.seen, stop)
        elif len(self.groups) == 1:
            self.all_groups()

    @staticmethod
    def _same_priority(first: int, priorities: Any) -> Iterator[tuple[int, int, int]]:
        start = first
        for priority, run in groupby(priorities):
            stop = start + sum(1 for _ in run)
            yield priority, start, stop
            start = stop

    def _note_priorities(self, first: int, batch: Batch) -> None:
        if type(batch.priority) is int:
            if self.priorities.last != batch.priority:
                self.note_priority(first, batch.priority)
        else:
            for priority, start, _ in self._same_priority(first, batch.priority):
                self.note_priority(start, priority)

    def note_priority(self, start: int, priority: int) -> None:
        """From `start` on, messages have another priority. Now and then it is looked for those that nobody needs any more."""
        self.priorities.append(start, priority)
        if len(self.priorities) > self.runs_max:
            self.forget_settled()

    def _note_expiries(self, first: int, batch: Batch) -> None:
        expires = batch.expires_at
        if expires is not None and len(self.expiries) > 2 * self.depth + FEW_KEPT:
            self._forget_expiries()
        if isinstance(expires, list):
            for offset, moment in enumerate(expires, first):
                if moment is not None:
                    self.expiries.add(moment, offset)
        elif expires is not None:
            self.expiries.add_many(expires, range(first, first + batch.count))

    def _forget_expiries(self) -> None:
        """What is settled need not expire: most messages are settled long before."""
        kept = Timeline()
        for moment, offset in self.expiries.items():
            if offset >= self.kept_from or not self.is_settled(offset):
                kept.add(moment, offset)
        self.expiries = kept

    def note_sizes(self, first: int, batch: Batch) -> None:
        """Count the bytes of messages, where they are limited."""
        self.sizes.update(enumerate(map(len, batch.payloads), first))
        self.bytes += batch.size

    def _arrive_each(self, first: int, batch: Batch) -> None:
        keyed = self.policy.ordering == "key"
        count = batch.count
        moments = batch.deliver_at
        due = moments if isinstance(moments, list) else [moments] * count
        times = batch.timestamp_us
        published = times if isinstance(times, list) else [times] * count
        keys = batch.key if keyed and batch.key is not None else [None] * count
        if batch.target_group is not None:
            self.targeted.setdefault(batch.target_group, RangeSet()).add(first, first + count)
            for name, group in self.groups.items():
                if name != batch.target_group:
                    group.settled.add(first, first + count)
        for offset, moment, since, key in zip(range(first, first + count), due, published, keys, strict=True):
            if moment is not None and moment > since:  # otherwise it was due before it was published
                self.delayed.add(moment, offset)
                self._count_delayed(offset)
                if key is not None:
                    self.keys[offset] = key
            elif offset >= self.dropped_before or not self.is_settled(offset):
                self._arrive_one(offset, key)

    def _arrive_one(self, offset: int, key: str | None) -> None:
        priority = self.priorities.at(offset)
        for group in self.groups.values():
            if offset not in group.settled:
                group.arrive_keyed(priority, offset, key)

    def fall_due(self, now_us: int) -> bool:
        """Have what is due by now arrive, in the order in which it fell due; whether anything did."""
        delayed = self.delayed.pop_due(now_us) if _over(self.delayed.next_us, now_us) else []
        keys = {offset: self.keys.pop(offset) for _, offset in delayed if offset in self.keys}
        if self.withdrawn:
            self.withdrawn -= sum(1 for _, offset in delayed if self.is_settled(offset))
        stirred = bool(delayed)
        for group in self.groups.values():
            retries = group.pop_retries(now_us) if _over(group.retries.next_us, now_us) else []
            stirred = stirred or bool(retries)
            if group.seen < self.arrived and (delayed or retries):
                self.catch_up(group)
            again = {offset for _, offset in retries}
            for _, offset in merge(delayed, retries):
                if offset in again:  # it is its key's foremost already
                    group.arrive(self.priorities.at(offset), offset, offset + 1)
                elif offset not in group.settled:
                    group.arrive_keyed(self.priorities.at(offset), offset, keys.get(offset))
        return stirred

    def is_settled(self, offset: int) -> bool:
        """Whether every group has settled a message."""
        return all(offset in group.settled for group in self.groups.values())

    def forget(self, offsets: Iterable[int], now_us: int) -> None:
        """Messages were settled in a group: forget what is known of those that no group needs any more."""
        if not (self.sizes or self.held_ids):
            return
        for offset in offsets:
            if not self.is_settled(offset):
                continue
            self.bytes -= self.sizes.pop(offset, 0)
            if offset in self.held_ids:
                self.dedup.release(
                    self.held_ids.pop(offset), now_us + round(self.policy.dedup_window * SECOND_US)
                )

    def settled_by_all(self, start: int, stop: int) -> list[range]:
        """Which offsets of a range every group has settled: of a topic without any, all; of a queue, which will get one yet, what is gone."""
        if not self.groups and self.kind == "queue":
            return self.gone.overlap(start, stop)
        found = [range(start, stop)]
        for group in self.groups.values():
            found = [part for run in found for part in group.settled.overlap(run.start, run.stop)]
        return found

    # --- what is stored ---

    def released(self, start: int, stop: int) -> list[range]:
        """Which offsets of a range nobody needs, and nothing keeps: what is kept is not what nobody can get any more."""
        found = self.settled_by_all(start, min(stop, self.kept_from)) if start < self.kept_from else []
        if self.gone and stop > self.kept_from:
            for run in self.gone.overlap(max(start, self.kept_from), stop):
                found += self.settled_by_all(run.start, run.stop)
        return found

    def unavailable(self, start: int, stop: int) -> RangeSet:
        """Which offsets of a range nobody gets who comes anew, or goes back."""
        found = RangeSet(self.gone.overlap(start, stop))
        for run in self.released(start, stop):
            found.add(run.start, run.stop)
        return found

    def beginning(self, offset: int, group: str) -> RangeSet:
        """What a group has behind it that begins at an offset, or goes there: all that is not for it, or not available any more."""
        found = self.unavailable(0, self.next_offset)
        found.add(0, min(offset, self.next_offset))
        for name, ranges in self.targeted.items():
            for run in ranges if name != group else ():
                found.add(run.start, run.stop)
        return found

    def keep_from(self, offset: int) -> list[range]:
        """From now on keep what is from an offset on; which offsets are released by that."""
        before, self.kept_from = self.kept_from, offset
        if offset > before:
            kept = self.gone.gaps(before, min(offset, self.next_offset))  # what is gone was released before
            return [part for run in kept for part in self.settled_by_all(run.start, run.stop)]
        for run in self.settled_by_all(offset, min(before, self.next_offset)):  # that is gone already
            self.gone.add(run.start, run.stop)
        return []

    def never_again(self, offsets: Iterable[range]) -> list[range]:
        """Messages that nobody gets who comes anew, or goes back; which of them were only kept, and are released by that."""
        found: list[range] = []
        for run in offsets:
            start = max(run.start, self.kept_from) if self.groups or self.kind == "topic" else run.start
            for fresh in self.gone.gaps(start, run.stop):
                found += self.settled_by_all(fresh.start, fresh.stop) if self.groups else [fresh]
            self.gone.add(run.start, run.stop)
        if self.gone.ranges > self.runs_max:
            self.forget_settled()
        return found

    def note_published(self, first: int, batch: Batch, *, joins: bool = False) -> None:
        """Remember when and with which id messages were published, where that is wanted.

        What joins others of its unit is noted with them: they are replayed as one batch.
        """
        exact = self.policy.retain_seconds is not None or self.policy.retain_bytes is not None
        times = batch.timestamp_us
        if exact and isinstance(times, list):  # they were published one by one, and replayed together
            for row, (time_us, given) in enumerate(zip(times, batch.ids, strict=True)):
                size = len(batch.payloads[row]) if batch.payloads else 0
                self.milestones.note(first + row, time_us, time_us, given, size, 1)
            return
        oldest, newest = (min(times), max(times)) if isinstance(times, list) else (times, times)
        if exact and joins:
            self.milestones.peak = max(self.milestones.peak, newest)
            self.milestones.total += batch.size
        elif exact or first >= self.milestones.next:
            self.milestones.note(first, oldest, newest, batch.ids[0], batch.size, 1 if exact else STRIDE)
        else:
            self.milestones.peak = max(self.milestones.peak, newest)

    # --- moments ---

    @property
    def next_us(self) -> int | None:
        """When something happens here by itself."""
        moments = [self.delayed.next_us, self.expiries.next_us, self.unused_us, self.too_old_us]
        for group in self.groups.values():
            moments += [group.retries.next_us, group.leases.next_us]
            moments += [member.dead_us for member in group.members.values()]
        moments += [schedule.next_us for schedule in self.schedules.values()]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def too_old_us(self) -> int | None:
        """When some message is kept no longer because of its age."""
        if self.policy.retain_seconds is None or self.floor >= self.next_offset:
            return None
        published_us = self.milestones.time_before(self.floor)
        if published_us is None:
            published_us = self.milestones.peak
        return published_us + round(self.policy.retain_seconds * SECOND_US) + 1

    @property
    def unused_us(self) -> int | None:
        """When it is to be deleted because nobody uses it."""
        if self.policy.expires is None or self.receivers or self.consumers:
            return None
        return self.used_us + round(self.policy.expires * SECOND_US)

    def forget_settled(self) -> None:
        """Give memory back that only settled messages needed."""
        # A queue without groups stores what it has until one comes.
        nobody = self.arrived if self.kind == "topic" else 0
        low = min((_low_water(group) for group in self.groups.values()), default=nobody)
        low = min(low, self.kept_from)
        self.priorities.forget_before(low)
        self.milestones.forget_before(low)
        for name, found in list(self.targeted.items()):
            found.discard(0, low)
            if not found:
                del self.targeted[name]
        if self.gone.ranges > FEW_KEPT:
            self.gone.discard(0, low)
        self.runs_max = max(FEW_KEPT, 2 * len(self.priorities), 2 * self.gone.ranges)

    # --- storing ---

    def encode(self) -> Stored:
        self.all_groups()
        self.forget_settled()
        return Stored(
            number=self.number,
            namespace=self.namespace,
            name=self.name,
            policy=msgspec.msgpack.encode(self.policy),
            next_offset=self.next_offset,
            priorities=self.priorities.encode(),
            delayed=self.delayed.encode(),
            expiries=self.expiries.encode(),
            dedup=self.dedup.encode(),
            keys=self.keys,
            held_ids=self.held_ids,
            groups={name: group.encode() for name, group in self.groups.items() if group.durable},
            sizes=self.sizes,
            published=self.published,
            kind=self.kind,
            gone=self.gone.encode(),
            targeted={name: found.encode() for name, found in self.targeted.items()},
            floor=self.floor,
            kept_from=self.kept_from,
            readers=self.readers,
            milestones=self.milestones.encode(),
            schedules=self.schedules,
        )

    @classmethod
    def decode(cls, stored: Stored) -> Log:
        """What `encode` gave."""
        policy = msgspec.msgpack.decode(stored.policy, type=Policy)
        log = cls(stored.number, stored.namespace, stored.name, policy, stored.kind)
        # What was on its way when it was stored arrives yet, unless it was dropped.
        log.next_offset = log.arrived = log.dropped_before = stored.next_offset
        log.priorities = Runs(*stored.priorities)
        log.delayed = Timeline.decode(stored.delayed)
        log.expiries = Timeline.decode(stored.expiries)
        log.dedup = DedupWindow.decode(stored.dedup)
        log.keys = stored.keys
        log.held_ids = stored.held_ids
        log.groups = {name: Group.decode(name, found) for name, found in stored.groups.items()}
        log.sizes = stored.sizes
        log.bytes = sum(stored.sizes.values())
        for group in log.groups.values():
            for offset in group.overdue:
                log.expiries.add(0, offset)
        log.published = stored.published
        log.gone = RangeSet.decode(stored.gone)
        log.targeted = {name: RangeSet.decode(found) for name, found in stored.targeted.items()}
        log.floor, log.kept_from = stored.floor, stored.kept_from
        log.readers = stored.readers
        log.milestones = Milestones.decode(stored.milestones)
        log.schedules = stored.schedules
        for group in log.groups.values():
            group.seen = log.arrived
        log.recount_delayed()
        # What only groups needed that are not stored.
        if log.groups or log.kind == "topic":
            log.forget([*log.sizes, *log.held_ids], log.milestones.peak)
        return log


def _over(moment: int | None, now_us: int) -> bool:
    return moment is not None and moment <= now_us


def _low_water(group: Group) -> int:
    first = next(iter(group.settled), None)
    return first.stop if first is not None and first.start == 0 else 0
