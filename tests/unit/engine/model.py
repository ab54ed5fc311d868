"""What a queue does, said as simply as possible: a list of messages per queue, and loops over it.

Nothing here is quick, and nothing is shared with the engine but the policy and the errors. A message is in one state at a time:

    delayed    published with a moment that has not come
    ready      would be handed out
    parked     due, but another message of its key goes first
    leased     handed out, with a token that settles it
    retrying   failed, and waits for its next attempt
    gone       settled for good

The order of what is ready is priority (lower first), then arrival. A message arrives when it is published, or when it falls due; what falls due
in one jump of time arrives by due time, then by offset. What goes back (its lease ended, requeue, release, a crash) has its old place.

Dead letters and redriven messages arrive when the command that moved them is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import InvalidArgument, LeaseLost, QueueFull
from penstock.policy import Policy

SECOND: Final = 1_000_000

#: (queue, offset, token): what settles a message.
Receipt = tuple[str, int, int]


@dataclass
class Row:
    """A message as it is published."""

    payload: bytes
    id: int
    priority: int = 100
    due: int | None = None
    expires: int | None = None
    key: str | None = None
    dedup_id: str | None = None


@dataclass
class Item:
    """A message of a queue, and all that is known of it."""

    offset: int
    payload: bytes
    priority: int
    key: str | None
    headers: dict[str, str]
    id: int | None = None  # None: the engine's own affair
    due: int | None = None
    expires: int | None = None
    dedup_id: str | None = None
    state: str = "new"
    place: int = -1
    failures: int = 0
    token: int = 0
    consumer: str | None = None
    deadline: int | None = None
    ahead: bool = False  # leased, and not yet in the hands of the consumer's code

    def count(self) -> None:
        """Its lease ends without success: an attempt, if code had it."""
        self.failures += not self.ahead


@dataclass
class Queue:
    """One queue."""

    name: str
    policy: Policy
    items: list[Item] = field(default_factory=list)
    arrivals: int = 0
    published_ids: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def those(self, *states: str) -> list[Item]:
        return [item for item in self.items if item.state in states]

    @property
    def pending(self) -> list[Item]:
        return [item for item in self.items if item.state != "gone"]

    @property
    def order(self) -> list[Item]:
        """What is ready, in the order in which it would be handed out."""
        return sorted(self.those("ready"), key=lambda item: (item.priority, item.place))

    @property
    def bytes(self) -> int:
        return sum(len(item.payload) for item in self.pending)


class Model:
    """All queues."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self._coming: list[tuple[Queue, Item]] = []

    # --- declaring and looking ---

    def declare(self, name: str, policy: Policy) -> None:
        self.queues[name] = Queue(name, policy)

    def counts(self, name: str) -> dict[str, int]:
        queue = self.queues[name]
        dead = None if queue.name.endswith(".dlq") else self.queues.get(self.letters_of(queue))
        return {
            "ready": len(queue.those("ready", "parked")),
            "delayed": len(queue.those("delayed")),
            "leased": len(queue.those("leased")),
            "retrying": len(queue.those("retrying")),
            "depth": len(queue.pending),
            "dead": len(dead.pending) if dead is not None else 0,
        }

    def letters_of(self, queue: Queue) -> str:
        return queue.policy.dead_letter or queue.name + ".dlq"

    def holds_letters(self, queue: Queue) -> bool:
        """Whether it is where dead letters go."""
        named = any(other.policy.dead_letter == queue.name for other in self.queues.values())
        return named or queue.name.endswith(".dlq")

    def is_letter(self, queue: Queue, item: Item) -> bool:
        """Whether it is a dead letter: then it has neither an attempt limit nor another place to go."""
        told = "x-origin" in item.headers and "x-reason" in item.headers
        return queue.name.endswith(".dlq") or (self.holds_letters(queue) and told)

    def is_last(self, queue: Queue, item: Item) -> bool:
        """Whether it may not be attempted once more."""
        most = None if self.is_letter(queue, item) else queue.policy.max_attempts
        return most is not None and item.failures + 1 >= most

    def next_moment(self, name: str) -> int | None:
        """When something happens by itself."""
        moments: list[int | None] = []
        for item in self.queues[name].pending:
            moments += [item.due] if item.state in ("delayed", "retrying") else []
            moments += [item.deadline] if item.state == "leased" else [item.expires]
        return min((moment for moment in moments if moment is not None), default=None)

    # --- publishing ---

    def publish(self, name: str, rows: list[Row], now: int) -> list[int]:
        queue = self.queues[name]
        fresh, ids = self._without_repeats(queue, rows, now)
        if fresh:
            self._make_room(queue, fresh, now)
        for row in fresh:
            if row.dedup_id is not None:
                exact = queue.policy.delivery == "exactly-once"
                queue.published_ids[row.dedup_id] = (row.id, None if exact else now + self._window(queue))
            item = Item(
                len(queue.items),
                row.payload,
                row.priority,
                row.key,
                {},
                row.id,
                row.due,
                row.expires,
                row.dedup_id,
            )
            queue.items.append(item)
            if row.due is None:
                self._arrive(queue, item)
            else:
                item.state = "delayed"
        return ids

    @staticmethod
    def _window(queue: Queue) -> int:
        return round(queue.policy.dedup_window * SECOND)

    def _without_repeats(self, queue: Queue, rows: list[Row], now: int) -> tuple[list[Row], list[int]]:
        fresh: list[Row] = []
        ids: list[int] = []
        here: dict[str, int] = {}
        for row in rows:
            if row.dedup_id is None:
                if queue.policy.delivery == "exactly-once":
                    raise InvalidArgument("no dedup_id")
                fresh.append(row)
                ids.append(row.id)
                continue
            first, end = queue.published_ids.get(row.dedup_id, (0, 0))
            if row.dedup_id in here:
                ids.append(here[row.dedup_id])
            elif end is None or now < end:
                ids.append(first)
            else:
                here[row.dedup_id] = row.id
                fresh.append(row)
                ids.append(row.id)
        return fresh, ids

    def _make_room(self, queue: Queue, rows: list[Row], now: int) -> None:
        policy = queue.policy
        victims: list[Item] = []

        def fits() -> bool:
            left = [item for item in queue.pending if item not in victims]
            count = len(left) + len(rows)
            size = sum(len(item.payload) for item in left) + sum(len(row.payload) for row in rows)
            few = policy.max_depth is None or count <= policy.max_depth
            return few and (policy.max_bytes is None or size <= policy.max_bytes)

        candidates = queue.order if policy.overflow == "drop-head" else []
        while not fits():
            if not candidates:
                raise QueueFull("full")
            victims.append(candidates.pop(0))
        self._end(queue, victims, now)

    # --- arriving and ending ---

    def _is_foremost(self, item: Item) -> bool:
        return item.state in ("ready", "leased", "retrying")

    def _arrive(self, queue: Queue, item: Item) -> None:
        if queue.policy.ordering == "key" and item.key is not None:
            rivals = [other for other in queue.items if other.key == item.key and other is not item]
            foremost = next((other for other in rivals if self._is_foremost(other)), None)
            if foremost is not None and (
                foremost.offset < item.offset or foremost.state != "ready" or foremost.failures
            ):
                item.state = "parked"
                return
            if foremost is not None:  # the older one goes first
                foremost.state = "parked"
        item.state = "ready"
        item.place = queue.arrivals
        queue.arrivals += 1

    def _end(self, queue: Queue, items: Iterable[Item], now: int) -> None:
        """They are gone for good; then the next of their keys arrive."""
        ended = sorted(items, key=lambda item: item.offset)
        for item in ended:
            item.state = "gone"
            held = queue.published_ids.get(item.dedup_id) if item.dedup_id is not None else None
            if item.dedup_id is not None and held == (item.id, None):
                queue.published_ids[item.dedup_id] = (held[0], now + self._window(queue))
        for item in ended:
            alike = [other for other in queue.items if other.key == item.key and item.key is not None]
            parked = [other for other in alike if other.state == "parked"]
            if parked and not any(self._is_foremost(other) for other in alike):
                self._arrive(queue, parked[0])

    def _bury(self, queue: Queue, items: list[Item], reason: str, error: str | None, now: int) -> None:
        mortal = [item for item in items if not self.is_letter(queue, item)]
        if mortal:
            name = self.letters_of(queue)
            if name not in self.queues:
                self.declare(name, Policy.of(max_attempts=None))
            for item in sorted(mortal, key=lambda one: one.offset):
                headers = dict(item.headers)
                headers.pop("x-error", None)
                headers |= {
                    "x-origin": queue.name,
                    "x-origin-group": "default",
                    "x-reason": reason,
                    "x-attempts": str(item.failures + (item.state == "leased")),
                    "x-last-failure": str(now),
                }
                if error:
                    headers["x-error"] = error
                if item.id is not None:
                    headers.setdefault("x-origin-id", str(item.id))
                self._send(self.queues[name], Item(-1, item.payload, item.priority, item.key, headers))
        self._end(queue, items, now)

    def _send(self, queue: Queue, item: Item) -> None:
        """A dead letter or a redriven message: it arrives when the command is over."""
        item.offset = len(queue.items)
        queue.items.append(item)
        self._coming.append((queue, item))

    def _over(self) -> None:
        """The command is over."""
        coming, self._coming = self._coming, []
        for queue, item in coming:
            self._arrive(queue, item)

    # --- leasing and settling ---

    def lease(
        self,
        name: str,
        wanted: int,
        token: int,
        consumer: str | None,
        now: int,
        *,
        keep: bool,
        ahead: int = 0,
    ) -> list[Item]:
        queue = self.queues[name]
        found = queue.order[:wanted]
        if not keep or queue.policy.delivery == "at-most-once":
            self._end(queue, found, now)
            return found
        timeout = queue.policy.visibility_timeout
        for n, item in enumerate(found):
            item.state, item.token, item.consumer = "leased", token, consumer
            item.ahead = n >= wanted - ahead
            item.deadline = None if timeout is None else now + round(timeout * SECOND)
        return found

    def _held(self, name: str, receipts: list[Receipt]) -> list[Item]:
        items = self.queues[name].items
        found: dict[int, Item] = {}
        for _, offset, token in receipts:
            if items[offset].state != "leased" or items[offset].token != token:
                raise LeaseLost("too late")
            found[offset] = items[offset]
        return [found[offset] for offset in sorted(found)]

    def hand_over(self, name: str, receipts: list[Receipt], now: int) -> list[int]:
        queue = self.queues[name]
        found = [queue.items[offset] for offset in sorted({offset for _, offset, _ in receipts})]
        tokens = {(offset, token) for _, offset, token in receipts}
        held = [item for item in found if item.state == "leased" and (item.offset, item.token) in tokens]
        late = [item for item in held if item.ahead and item.expires is not None and item.expires <= now]
        self._put_back(queue, late, now)
        for item in held:
            item.ahead = False
        self._over()
        return [item.offset for item in held if item not in late]

    def ack(self, name: str, receipts: list[Receipt], now: int) -> int:
        held = self._held(name, receipts)
        self._end(self.queues[name], held, now)
        return len(held)

    def acked(self, name: str, receipts: list[Receipt], now: int) -> None:
        """The same, without saying how many."""
        self.ack(name, receipts, now)

    def nack(
        self, name: str, receipts: list[Receipt], delay: int | None, error: str | None, now: int
    ) -> None:
        queue = self.queues[name]
        backoff = queue.policy.backoff
        for item in self._held(name, receipts):
            item.ahead = False
            if item.expires is not None and item.expires <= now:
                self._expire(queue, [item], now)
            elif self.is_last(queue, item):
                self._bury(queue, [item], "max-attempts", error, now)
            else:
                item.failures += 1
                wait = delay
                if wait is None:
                    wait = 0
                    if backoff is not None:
                        seconds = min(
                            backoff.initial * backoff.factor ** (item.failures - 1), backoff.maximum
                        )
                        wait = round(seconds * SECOND)
                item.state, item.due = "retrying", now + wait
                self._fall_due(queue, now)
        self._over()

    def reject(self, name: str, receipts: list[Receipt], error: str | None, now: int) -> None:
        queue = self.queues[name]
        held = self._held(name, receipts)
        over = [item for item in held if item.expires is not None and item.expires <= now]
        self._bury(queue, [item for item in held if item not in over], "rejected", error, now)
        self._expire(queue, over, now)
        self._over()

    def requeue(self, name: str, receipts: list[Receipt], now: int) -> None:
        self._put_back(self.queues[name], self._held(name, receipts), now)
        self._over()

    def release(self, name: str, consumer: str, now: int) -> None:
        queue = self.queues[name]
        self._put_back(queue, [item for item in queue.those("leased") if item.consumer == consumer], now)
        self._over()

    def extend(self, name: str, receipts: list[Receipt], deadline: int) -> None:
        for item in self._held(name, receipts):
            item.deadline = deadline

    def _put_back(self, queue: Queue, items: list[Item], now: int) -> None:
        for item in items:
            item.count()
            item.state = "ready"  # in its old place
        over = [item for item in items if item.expires is not None and item.expires <= now]
        self._expire(queue, over, now)

    def purge(self, name: str, now: int) -> int:
        queue = self.queues[name]
        found = [item for item in queue.pending if item.state != "leased"]
        self._end(queue, found, now)
        return len(found)

    def redrive(self, name: str, count: int, to: str | None, now: int) -> int:
        """In the order in which they died; `QueueFull` if there is room for none."""
        queue = self.queues[name]
        moved: list[Item] = []
        for item in [item for item in queue.pending if item.state != "leased"]:
            target = self.queues.get(to or item.headers.get("x-origin", ""))
            if target is None or len(moved) == count:
                continue
            policy = target.policy
            size = sum(len(one.payload) for one in target.pending)
            if (policy.max_depth is not None and len(target.pending) >= policy.max_depth) or (
                policy.max_bytes is not None and size + len(item.payload) > policy.max_bytes
            ):
                if not moved:
                    raise QueueFull("full")
                break
            kept = {
                name: text
                for name, text in item.headers.items()
                if not name.startswith("x-") or name == "x-origin-id"
            }
            back = Item(-1, item.payload, item.priority, item.key, kept)
            back.expires = None if policy.ttl is None else now + round(policy.ttl * SECOND)
            self._send(target, back)
            moved.append(item)
        self._end(queue, moved, now)
        self._over()
        return len(moved)

    # --- what happens by itself ---

    def advance(self, now: int) -> None:
        """Time has passed."""
        for queue in list(self.queues.values()):
            self._fall_due(queue, now)
        for queue in list(self.queues.values()):
            over = [item for item in queue.pending if item.expires is not None and item.expires <= now]
            self._expire(queue, [item for item in over if item.state != "leased"], now)
            late = [
                item for item in queue.those("leased") if item.deadline is not None and item.deadline <= now
            ]
            self._end_leases(queue, late, now)
        self._over()

    def crash(self, now: int) -> None:
        """The owner is gone, and all leases with it; another one opens what is left."""
        for queue in list(self.queues.values()):
            self._fall_due(queue, now)
        for queue in list(self.queues.values()):
            over = [item for item in queue.pending if item.expires is not None and item.expires <= now]
            for item in over:
                if item.state == "leased":
                    item.state = "ready"
                    item.count()
            self._expire(queue, over, now)
            self._end_leases(queue, queue.those("leased"), now)
        self.advance(now)

    def has_overdue(self, now: int) -> bool:
        """Whether anything is handed out whose time is over."""
        leased = [item for queue in self.queues.values() for item in queue.those("leased")]
        return any(item.expires is not None and item.expires <= now for item in leased)

    def _fall_due(self, queue: Queue, now: int) -> None:
        waiting = [
            item for item in queue.those("delayed", "retrying") if item.due is not None and item.due <= now
        ]
        for item in sorted(waiting, key=lambda item: (item.due, item.offset)):
            self._arrive(queue, item)

    def _end_leases(self, queue: Queue, items: list[Item], now: int) -> None:
        over = [item for item in items if item.expires is not None and item.expires <= now]
        last = [i for i in items if self.is_last(queue, i) and i not in over and not i.ahead]
        self._bury(queue, last, "max-attempts", None, now)
        self._put_back(queue, [item for item in items if item not in last], now)

    def _expire(self, queue: Queue, items: list[Item], now: int) -> None:
        if queue.policy.on_expire == "dead-letter":
            self._bury(queue, items, "expired", None, now)
        else:
            self._end(queue, items, now)
