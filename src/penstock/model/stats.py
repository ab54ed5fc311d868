"""What queries answer: how much there is of what, and how it is doing."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from penstock.model.damage import JournalStats

Kind = Literal["queue", "topic"]


class GroupStats(msgspec.Struct, frozen=True):
    """What a group, or a subscription, has before it. With a filter, `lag` is an upper bound: nobody has looked at what is ready yet."""

    lag: int
    lag_is_exact: bool
    ready: int
    leased: int
    retrying: int
    consumers: list[str]
    filter: str | None
    durable: bool


class QueueStats(msgspec.Struct, frozen=True):
    """What a queue or a topic holds now. `depth` is what the group furthest behind has not settled, and the counts behind it are of that group."""

    name: str
    depth: int
    ready: int
    delayed: int
    leased: int
    retrying: int
    dead: int
    bytes: int | None
    next_offset: int
    published: int
    consumers: int
    waiting: int
    kind: Kind
    groups: dict[str, GroupStats]
    readers: dict[str, int]  # how far each is behind, by what it has committed
    schedules: list[str]
    delivered: int = 0  # these two since the broker was opened
    acked: int = 0


class Step(msgspec.Struct, frozen=True):
    """One thing that happened to a message. `id` is the one it had then: a dead letter has another than the message that failed."""

    what: str
    at: datetime
    queue: str
    group: str | None
    consumer: str | None
    attempt: int | None
    error: str | None
    due: datetime | None
    id: int


class Counts(msgspec.Struct):
    """In messages; one that several groups see is counted in each of them."""

    nacked: int = 0  # a consumer said that it failed, whatever became of it
    rejected: int = 0  # a consumer said that it failed for good
    returned: int = 0  # given back unsettled, by a consumer or because it went
    lease_expired: int = 0  # nobody settled it in time, or an earlier owner of the journal had it in hand
    dead_lettered: int = 0  # moved to the dead letters
    expired: int = 0  # its time was over: dropped, or dead-lettered
    dropped: int = 0  # to make room, unreadable, or rejected where there are no dead letters
    purged: int = 0
    redriven: int = 0  # moved from these dead letters to where it failed
    deduplicated: int = 0  # published again, and known by its dedup id

    def add(self, other: Counts) -> None:
        """Count what another one has counted, too."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTED: Final = Counts.__struct_fields__


#: More nanoseconds than anybody waits, more messages than a frame holds.
BUCKETS: Final = 64


class Histogram:
    """Numbers above 0, by how many bits they have: those of bucket `n` are below 2^n, and not below half of that."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.total = 0


class Meter:
    """What a journal counts of its own commits since it was opened."""

    __slots__ = ("commits", "messages", "syncs")

    def __init__(self) -> None:
        self.commits = Histogram()  # ns from the start of a commit to its sync, of those that wait for it
        self.syncs = Histogram()  # ns of the syncs alone
        self.messages = Histogram()  # in a commit that has some


class BrokerStats(msgspec.Struct, frozen=True):
    """What the broker knows of itself. `journal` is None in memory."""

    queues: int
    topics: int
    ready: int
    leased: int
    delayed: int
    retrying: int
    published: int
    delivered: int
    acked: int
    journal: Any  # a `JournalStats`, or what a newer server says
    depth: int = 0  # messages that are not settled, published ones before they are durable


class Bounds(msgspec.Struct, frozen=True):
    """How much is in one survey, at the most. What is beyond that is counted, and left out.

    A queue is about 20 time series, a group 6: together no more than one Prometheus server takes from one target without noticing.
    """

    namespaces: int = 100
    logs: int = 500
    cursors: int = 1000  # groups and readers of all logs together
    cursors_of_one: int = 100  # and of one log, so that one topic does not keep all others out


class Flow(msgspec.Struct):
    """Messages that were counted since the broker was opened."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)

    def add(self, published: int, delivered: int, acked: int, counts: Counts) -> None:
        self.published += published
        self.delivered += delivered
        self.acked += acked
        self.counts.add(counts)


class GroupView(msgspec.Struct, frozen=True):
    """A group, or a subscription."""

    name: str
    lag: int
    ready: int
    leased: int
    retrying: int
    consumers: int
    oldest_lease_us: int | None  # how long that has been in hand which was handed out first


class LogView(msgspec.Struct, frozen=True):
    """A queue or topic. What waits is of the group furthest behind, as in `QueueStats`."""

    namespace: str
    name: str
    kind: Kind
    flow: Flow
    ready: int
    delayed: int
    leased: int
    retrying: int
    dead: int
    consumers: int
    waiting: int
    groups: list[GroupView]
    readers: dict[str, int]


class LeftOut(msgspec.Struct):
    """What a survey does not show, for its bounds."""

    namespaces: int = 0
    logs: int = 0
    groups: int = 0
    readers: int = 0


class Survey(msgspec.Struct):
    """What was seen."""

    up: bool
    totals: dict[str, Flow]
    logs: list[LogView]
    left_out: LeftOut
    kinds: dict[Kind, int]  # how many there are, shown or not
    journal: JournalStats | None
    meter: Meter | None
    now_us: int
