"""How much a namespace may use: enqueues and bytes a minute, queues, and depth.

    tenant-a:1000                                        1000 enqueues a minute
    tenant-a:1000/bytes=64MiB/queues=50/depth=100000     and 64 MiB a minute, 50 queues and topics, 100,000 messages
    *:100                                                every namespace that is not named, each for itself

What always holds:

- **In no sixty seconds is more taken than the quota**, wherever they begin. Uses are counted by the second, and a second's count is forgotten
  when it lies wholly outside: so there is no edge of a minute at which twice as much gets through, as with counters that start anew, or
  with a bucket that is full at the start. It may be forgotten up to a second late, never early.
- **All or nothing, and before anything is written**: a batch is taken whole, messages and bytes, or refused and nothing is counted.
- **A refusal says when to come back**: `retry_after_s` is the moment at which this very request would pass, if nobody else came. What is larger
  than the whole quota passes at no time, and is told so (`retryable` is False).
- **Memory is bounded.** At most 61 pairs of numbers for a namespace, and a bounded number of namespaces: whoever makes up names beyond it
  shares one count with the others who do. Nothing is counted for namespaces without a quota.

Pure: no I/O, and the monotonic clock is an argument. Requests are counted in the loop's thread, and messages that recur in whichever thread finds them due;
hence a lock. A restart forgets the last minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from penstock import argument
from penstock.clock import SECOND_US, Clock
from penstock.engine.change import not_counted
from penstock.errors import InvalidArgument, QuotaExceeded
from penstock.limits import COUNT_MAX, QUOTA_NAMESPACES_MAX, QUOTA_ROOM_RETRY_S, QUOTA_WINDOW_S
from penstock.names import check_name
from penstock.server import quantity

DEFAULT: Final = "*"
"""The name under which the quota of all other namespaces is written."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What one namespace may use; None is without a bound."""

    enqueues: int | None = None
    """Messages a minute."""
    bytes: int | None = None
    """Bytes of payloads and headers a minute."""
    queues: int | None = None
    """Queues and topics."""
    depth: int | None = None
    """Messages not yet settled, in all its queues together."""


# --- what is configured ---


def parse(text: str) -> dict[str, Limit]:
    """The quotas of a configuration, by namespace; `*` is for those not named.

    >>> parse("tenant-a:1000,tenant-b:500")["tenant-b"].enqueues
    500
    >>> parse("tenant-a:1000/bytes=64MiB/queues=50")["tenant-a"].bytes
    67108864
    >>> parse("tenant-a")
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: the quota 'tenant-a' has no number; write it as tenant-a:1000, or as \
tenant-a:1000/bytes=64MiB/queues=50/depth=100000
    """
    found: dict[str, Limit] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        # Names may hold colons, quotas do not.
        name, colon, settings = (part.strip() for part in entry.rpartition(":"))
        if not colon:
            raise InvalidArgument(
                f"the quota {argument.quoted(entry)} has no number; write it as tenant-a:1000, or as "
                "tenant-a:1000/bytes=64MiB/queues=50/depth=100000"
            )
        if name != DEFAULT:
            check_name(name, kind="namespace of a quota")
        if name in found:
            raise InvalidArgument(f"there are two quotas for {name!r}; put them together, with / between")
        found[name] = _limit(entry, settings)
    return found


def _limit(entry: str, settings: str) -> Limit:
    given: dict[str, int] = {}
    for setting in (part.strip() for part in settings.split("/")):
        name, equals, value = (part.strip() for part in setting.rpartition("="))
        name = name if equals else "enqueues"
        if name not in Limit.__struct_fields__ or name in given:
            known = ", ".join(Limit.__struct_fields__)
            raise InvalidArgument(
                f"the quota {argument.quoted(entry)} says {argument.quoted(setting)}; give each of {known} once at most, as depth=1000"
            )
        given[name] = _number(entry, value, sized=name == "bytes")
    return Limit(**given)


def _number(entry: str, value: str, *, sized: bool) -> int:
    read = quantity.size_bytes(0, COUNT_MAX) if sized else quantity.count(0)
    try:
        return read(value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"the quota {argument.quoted(entry)} has {argument.quoted(value)}; {error}"
        ) from None


# --- what is used ---


class Taken(NamedTuple):
    """What was used by one request, and where that is counted."""

    window: Window
    second: list[int]
    messages: int
    octets: int

    def give_back(self) -> None:
        """It was refused after all, for another reason, and nothing was written."""
        self.window.put_back(self)


class Window:
    """What was used in the last minute, by the second."""

    __slots__ = ("_lock", "_seconds", "messages", "octets")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._seconds: deque[list[int]] = deque()  # [which second, messages, bytes], the oldest first
        self.messages = 0
        self.octets = 0

    def forget(self, now_us: int) -> None:
        """Drop what lies wholly before the last minute."""
        while self._seconds and _forgotten_us(self._seconds[0][0]) <= now_us:
            _, messages, octets = self._seconds.popleft()
            self.messages -= messages
            self.octets -= octets

    def add(self, now_us: int, messages: int, octets: int) -> Taken:
        second = now_us // SECOND_US
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
        self._seconds[-1][1] += messages
        self._seconds[-1][2] += octets
        self.messages += messages
        self.octets += octets
        return Taken(self, self._seconds[-1], messages, octets)

    def put_back(self, taken: Taken) -> None:
        """As if it had not been used, unless it is forgotten already."""
        with self._lock:
            if any(second is taken.second for second in self._seconds):
                taken.second[1] -= taken.messages
                taken.second[2] -= taken.octets
                self.messages -= taken.messages
                self.octets -= taken.octets

    def free_at_us(self, messages: int, octets: int) -> int:
        """When at most so much will be left in it."""
        left_messages, left_octets, at_us = self.messages, self.octets, 0
        for second, of_messages, of_octets in self._seconds:
            if left_messages <= messages and left_octets <= octets:
                break
            left_messages -= of_messages
            left_octets -= of_octets
            at_us = _forgotten_us(second)
        return at_us


def _forgotten_us(second: int) -> int:
    """When the end of a second lies a minute back."""
    return (second + 1 + QUOTA_WINDOW_S) * SECOND_US


class Quotas:
    """Counts what namespaces use, and refuses what is above their quota.

    >>> from penstock.clock import ManualClock
    >>> quotas = Quotas(parse("tenant-a:2"), None, ManualClock())
    >>> _ = quotas.take("tenant-a", messages=2, payload_bytes=10)
    >>> quotas.take("tenant-a", messages=1, payload_bytes=10)
    Traceback (most recent call last):
    ...
    penstock.errors.QuotaExceeded: the namespace 'tenant-a' has used its 2 enqueues a minute; try again in 61 s
    """

    def __init__(self, limits: Mapping[str, Limit], default: Limit | None, clock: Clock) -> None:
        self._limits = {name: limit for name, limit in limits.items() if name != DEFAULT}
        self._default = limits.get(DEFAULT) if default is None else default
        self._clock = clock
        self._windows: dict[str, Window] = {}
        self._lock = Lock()
        self._rest = Window(self._lock)  # of all namespaces beyond those that are counted apart
        self._swept_us = 0

    @classmethod
    def configured(cls, text: str | None, clock: Clock) -> Quotas:
        """The quotas that a configuration names; none without one."""
        return cls(parse(text or ""), None, clock)

    def limit(self, namespace: str) -> Limit | None:
        """What a namespace may use; None if there is no quota for it."""
        return self._limits.get(namespace, self._default)

    def take(self, namespace: str, messages: int, payload_bytes: int) -> Taken | None:
        """Use so much of this minute's share, or raise `QuotaExceeded` and use nothing. What comes back can be given back."""
        limit = self._limits.get(namespace, self._default)
        if limit is None or (limit.enqueues is None and limit.bytes is None):
            return None
        enqueues_max = COUNT_MAX if limit.enqueues is None else limit.enqueues
        bytes_max = COUNT_MAX if limit.bytes is None else limit.bytes
        _require_possible(namespace, messages, enqueues_max, "enqueues a minute")
        _require_possible(namespace, payload_bytes, bytes_max, "bytes a minute")
        room, room_bytes = enqueues_max - messages, bytes_max - payload_bytes
        with self._lock:
            now_us = self._clock.monotonic_us()
            window = self._window(namespace, now_us)
            window.forget(now_us)
            if window.messages <= room and window.octets <= room_bytes:
                return window.add(now_us, messages, payload_bytes)
            wait_s = (window.free_at_us(room, room_bytes) - now_us) / SECOND_US
            used = f"{bytes_max} bytes" if window.messages <= room else f"{enqueues_max} enqueues"
        raise QuotaExceeded(
            f"the namespace {namespace!r} has used its {used} a minute; try again in {wait_s:.3g} s",
            retry_after_s=wait_s,
        )

    def admits(self, namespace: str, octets: int, depth: Callable[[], int]) -> Callable[[], None] | None:
        """Take a message that recurs, which nobody publishes now; None if it is above the quota, else what gives it back."""
        limit = self.limit(namespace)
        if limit is None:
            return not_counted
        try:
            if limit.depth is not None:
                self.require_room(namespace, depth=depth(), adding=1)
            taken = self.take(namespace, 1, octets)
        except QuotaExceeded:
            return None
        return not_counted if taken is None else taken.give_back

    def require_room(
        self, namespace: str, *, queues: int | None = None, depth: int | None = None, adding: int
    ) -> None:
        """Raise `QuotaExceeded` if a namespace has so many queues, or so many messages, that no more may be added."""
        limit = self._limits.get(namespace, self._default)
        if limit is None:
            return
        if queues is not None and limit.queues is not None and queues + adding > limit.queues:
            _require_possible(namespace, adding, limit.queues, "queues")
            raise QuotaExceeded(
                f"the namespace {namespace!r} has {queues} of {limit.queues} queues; delete one, or ask for a larger quota"
            )
        if depth is not None and limit.depth is not None and depth + adding > limit.depth:
            _require_possible(namespace, adding, limit.depth, "messages of depth")
            raise QuotaExceeded(
                f"the namespace {namespace!r} holds {depth} messages, and {adding} more are above its {limit.depth}; "
                "try again once consumers have caught up",
                retry_after_s=QUOTA_ROOM_RETRY_S,
            )

    def _window(self, namespace: str, now_us: int) -> Window:
        window = self._windows.get(namespace)
        if window is None:
            if namespace not in self._limits and not self._has_room(now_us):
                return self._rest
            window = self._windows[namespace] = Window(self._lock)
        return window

    def _has_room(self, now_us: int) -> bool:
        """Whether one more namespace may be counted apart.

        Not while the common count holds anything: some of it may be this namespace's, and would be forgotten too early.
        """
        self._rest.forget(now_us)
        if self._rest.messages:
            return False
        return len(self._windows) < QUOTA_NAMESPACES_MAX or self._swept(now_us)

    def _swept(self, now_us: int) -> bool:
        """Forget namespaces that used nothing in the last minute, looking once a second at most; whether there is room now."""
        if now_us - self._swept_us >= SECOND_US:
            self._swept_us = now_us
            for window in self._windows.values():
                window.forget(now_us)
            self._windows = {name: window for name, window in self._windows.items() if window.messages}
        return len(self._windows) < QUOTA_NAMESPACES_MAX


def _require_possible(namespace: str, asked: int, most: int, what: str) -> None:
    if asked > most:
        raise QuotaExceeded(
            f"{asked} at once are above the {most} {what} of the namespace {namespace!r}: that can never succeed; "
            "split the batch, or ask for a larger quota",
            never=True,
        )
