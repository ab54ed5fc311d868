"""What logs with several groups do, said as simply as possible: a list of messages per log, a set of settled offsets per group, and loops.

Nothing here is quick, and nothing is shared with the engine but the policy and the errors. What is true of a message in its log:

    on its way   published, and not durable yet: in no group
    waiting      published with a moment that has not come
    never        nobody gets it who comes anew or goes back: expired, purged, cancelled
    dropped      stored no more: no group needed it, and nothing kept it. It never comes back
    target       redriven for one group: no other one gets it, but readers see it

and in a group, unless it has settled it: ready, parked behind another one of its key, leased, or retrying.

From which offset on settled messages are kept is not said here: the machine looks whether the engine's answer is right, and tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import LeaseLost
from penstock.policy import Policy

SECOND: Final = 1_000_000

#: (log, group, offset, token): what settles a message.
Receipt = tuple[str, str, int, int]


@dataclass
class Row:
    """A message as it is published."""

    payload: bytes
    id: int
    priority: int = 100
    due: int | None = None
    expires: int | None = None
    key: str | None = None


@dataclass
class Message:
    """A message of a log."""

    offset: int
    payload: bytes
    priority: int
    key: str | None
    published: int
    due: int | None = None
    expires: int | None = None
    target: str | None = None
    origin: tuple[str, str, str] | None = None  # of a dead letter: log, group, reason
    arrived: bool = False
    waiting: bool = False
    over: bool = False
    never: bool = False
    dropped: bool = False

    @property
    def available(self) -> bool:
        return not (self.never or self.dropped)


@dataclass
class Copy:
    """A message in a group that has not settled it."""

    message: Message
    state: str = "new"
    place: int = -1
    failures: int = 0
    token: int = 0
    consumer: str | None = None
    deadline: int | None = None
    due: int | None = None

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def is_foremost(self) -> bool:
        return self.state in ("ready", "leased", "retrying")


@dataclass
class Group:
    """One cursor."""

    name: str
    durable: bool = True
    wants: Callable[[bytes], bool] | None = None
    settled: set[int] = field(default_factory=set)
    copies: dict[int, Copy] = field(default_factory=dict)
    arrivals: int = 0
    members: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # heard of, and silence

    def those(self, *states: str) -> list[Copy]:
        return [copy for _, copy in sorted(self.copies.items()) if copy.state in states]

    @property
    def order(self) -> list[Copy]:
        """What is ready, in the order in which it would be handed out."""
        return sorted(self.those("ready"), key=lambda copy: (copy.message.priority, copy.place))


@dataclass
class Schedule:
    """A message that recurs."""

    due: int
    period: int


@dataclass
class Log:
    """One queue or topic."""

    name: str
    kind: str
    policy: Policy
    messages: list[Message] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first offset, time, bytes
    holders: dict[str, int] = field(default_factory=dict)  # readers that are waited for
    readers: dict[str, int] = field(default_factory=dict)
    schedule: Schedule | None = None
    kept_from: int = 0  # settled messages are stored from here on

    @property
    def is_grave(self) -> bool:
        return self.name.endswith(".dlq")

    def unsettled(self, group: Group) -> list[Message]:
        return [message for message in self.messages if message.offset not in group.settled]

    def is_needed(self, message: Message) -> bool:
        """Whether some group has not settled it; a queue without any gets one yet."""
        if not self.groups:
            return self.kind == "queue" and not message.never
        return any(message.offset not in group.settled for group in self.groups.values())

    @property
    def depth(self) -> int:
        return max((len(self.unsettled(group)) for group in self.groups.values()), default=0)

    @property
    def delayed(self) -> int:
        return sum(message.waiting and self.is_needed(message) for message in self.messages)

    @property
    def bytes(self) -> int:
        return sum(len(message.payload) for message in self.messages if self.is_needed(message))


class Model:
    """All logs."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.held_up = False  # what is published does not arrive for now
        self._coming: list[tuple[Log, list[Message]]] = []

    def declare(self, name: str, policy: Policy, kind: str = "queue") -> None:
        self.logs[name] = Log(name, kind, policy)

    # --- groups ---

    def subscribe(
        self, name: str, group: str, offset: int, *, durable: bool, wants: Callable[[bytes], bool] | None
    ) -> None:
        log = self.logs[name]
        log.groups[group] = Group(group, durable, wants)
        self.seek(name, group, offset)

    def seek(self, name: str, group: str, offset: int) -> None:
        """It gets what is available from an offset on; what it had in hand is lost."""
        log = self.logs[name]
        here = log.groups[group]
        here.copies.clear()
        others = {
            one.offset
            for one in log.messages
            if one.target is not None and one.arrived and one.target != group
        }
        here.settled = others | {
            one.offset for one in log.messages if not one.available or one.offset < offset
        }
        for message in log.unsettled(here):
            if message.arrived and not message.waiting:
                self._arrive(log, here, Copy(message))

    def unsubscribe(self, name: str, group: str) -> None:
        log = self.logs[name]
        del log.groups[group]
        if not log.groups and log.kind == "queue":  # all that was there only for its groups
            for message in log.messages:
                message.never = message.never or message.offset < log.kept_from

    def group_of(self, log: Log) -> Group:
        """The one that a queue has by itself."""
        if "default" not in log.groups:
            self.subscribe(log.name, "default", 0, durable=True, wants=None)
        return log.groups["default"]

    # --- publishing ---

    def publish(self, name: str, rows: list[Row], now: int, target: str | None = None) -> None:
        log = self.logs[name]
        if not log.groups and log.kind == "queue":
            self.group_of(log)
        made = [
            Message(
                len(log.messages) + place, row.payload, row.priority, row.key, now, row.due, row.expires, target
            )
            for place, row in enumerate(rows)
        ]  # fmt: skip
        log.batches.append((len(log.messages), now, sum(len(row.payload) for row in rows)))
        log.messages += made
        self._coming.append((log, made))

    def over(self, now: int) -> None:
        """The command is over: what it published arrives, unless it is held up."""
        if self.held_up or not self._coming:
            return
        coming, self._coming = self._coming, []
        for log, made in coming:
            self._fall_due(log, now)  # what was due before goes before them
            for message in made:
                message.arrived = True
                if message.target is not None:
                    for group in log.groups.values():
                        if group.name != message.target:
                            group.settled.add(message.offset)
            for message in made:
                if message.due is not None:
                    message.waiting = True
                    continue
                for group in log.groups.values():
                    if message.offset not in group.settled:
                        self._arrive(log, group, Copy(message))
        self.advance(now)

    def drop(self, name: str, kept_from: int) -> None:
        """What nobody needs, and nothing keeps, is stored no more."""
        log = self.logs[name]
        log.kept_from = kept_from
        for message in log.messages:
            if (message.offset < kept_from or message.never) and not log.is_needed(message):
                message.dropped = True

    # --- arriving and ending ---

    def _arrive(self, log: Log, group: Group, copy: Copy) -> None:
        key = copy.message.key
        group.copies[copy.offset] = copy
        if log.policy.ordering == "key" and key is not None:
            rivals = [one for one in group.copies.values() if one.message.key == key and one is not copy]
            foremost = next((one for one in rivals if one.is_foremost), None)
            if foremost is not None and (
                foremost.offset < copy.offset or foremost.state != "ready" or foremost.failures
            ):
                copy.state = "parked"
                return
            if foremost is not None:  # the older one goes first
                foremost.state = "parked"
        copy.state = "ready"
        copy.place = group.arrivals
        group.arrivals += 1

    def _end(self, log: Log, group: Group, offsets: Iterable[int]) -> None:
        """They are settled for good; then the next of their keys arrive."""
        ended = sorted(offsets)
        group.settled.update(ended)
        for offset in ended:
            group.copies.pop(offset, None)
        for offset in ended:
            key = log.messages[offset].key
            alike = [one for one in group.copies.values() if one.message.key == key and key is not None]
            parked = [one for one in alike if one.state == "parked"]
            if parked and not any(one.is_foremost for one in alike):
                self._arrive(log, group, min(parked, key=lambda one: one.offset))

    def _bury(self, log: Log, group: Group, offsets: Iterable[int], reason: str, now: int) -> None:
        buried = sorted(offsets)
        if buried and not log.is_grave:
            name = log.name + ".dlq"
            if name not in self.logs:
                self.declare(name, Policy.of(max_attempts=None))
            grave = self.logs[name]
            first = len(grave.messages)
            dead = [log.messages[offset] for offset in buried]
            self.publish(name, [Row(one.payload, 0, one.priority, key=one.key) for one in dead], now)
            for letter in grave.messages[first:]:
                letter.origin = (log.name, group.name, reason)
        self._end(log, group, buried)

    # --- leasing and settling ---

    def lease(
        self, name: str, group: str, wanted: int, token: int, consumer: str | None, now: int, *, keep: bool,
        at_once: int,
    ) -> list[Copy]:  # fmt: skip
        log = self.logs[name]
        here = log.groups[group]
        self.heard(here, consumer, now)
        line = here.order
        found: list[Copy] = []
        seen = 0
        while line and len(found) < wanted and (here.wants is None or seen < at_once):
            count = wanted - len(found)
            if here.wants is not None:
                count = min(count, at_once - seen)
            taken, line = line[:count], line[count:]
            found += [copy for copy in taken if here.wants is None or here.wants(copy.message.payload)]
            seen += len(taken)
            if here.wants is None:
                break
        looked_at = here.order[:seen]
        timeout = log.policy.visibility_timeout
        for copy in found:
            copy.state, copy.token, copy.consumer = "leased", token, consumer
            copy.deadline = None if timeout is None else now + round(timeout * SECOND)
        self._end(log, here, [copy.offset for copy in looked_at if copy not in found])
        if not keep:
            self._end(log, here, [copy.offset for copy in found])
        return found

    def held(self, receipts: list[Receipt]) -> tuple[Log, Group, list[Copy]]:
        log = self.logs[receipts[0][0]]
        group = log.groups[receipts[0][1]]
        found: dict[int, Copy] = {}
        for _, _, offset, token in receipts:
            copy = group.copies.get(offset)
            if copy is None or copy.state != "leased" or copy.token != token:
                raise LeaseLost("too late")
            found[offset] = copy
        return log, group, [found[offset] for offset in sorted(found)]

    def ack(self, receipts: list[Receipt], now: int) -> int:
        del now
        log, group, held = self.held(receipts)
        self._end(log, group, [copy.offset for copy in held])
        return len(held)

    def nack(self, receipts: list[Receipt], delay: int | None, now: int) -> None:
        log, group, held = self.held(receipts)
        late = [copy for copy in held if copy.message.over]
        last = [copy for copy in held if copy not in late and self._is_last(log, copy)]
        self._bury(log, group, [copy.offset for copy in last], "max-attempts", now)
        self._expire_here(log, group, late, now)
        self._retry(log, group, [copy for copy in held if copy not in late and copy not in last], delay, now)

    def _retry(self, log: Log, group: Group, copies: list[Copy], delay: int | None, now: int) -> None:
        backoff = log.policy.backoff
        for copy in copies:
            copy.failures += 1
            wait = delay
            if wait is None:
                wait = 0
                if backoff is not None:
                    seconds = min(backoff.initial * backoff.factor ** (copy.failures - 1), backoff.maximum)
                    wait = round(seconds * SECOND)
            copy.state, copy.due = "retrying", now + wait
            self._fall_due(log, now)
        del group

    def reject(self, receipts: list[Receipt], now: int) -> None:
        log, group, held = self.held(receipts)
        late = [copy for copy in held if copy.message.over]
        self._bury(log, group, [copy.offset for copy in held if copy not in late], "rejected", now)
        self._expire_here(log, group, late, now)

    def give_back(self, receipts: list[Receipt], now: int, *, seen: bool) -> None:
        log, group, held = self.held(receipts)
        self._put_back(log, group, held, now, count=seen)

    def extend(self, receipts: list[Receipt], deadline: int) -> None:
        _, _, held = self.held(receipts)
        for copy in held:
            copy.deadline = deadline

    def _is_last(self, log: Log, copy: Copy) -> bool:
        most = None if log.is_grave else log.policy.max_attempts
        return most is not None and copy.failures + 1 >= most

    def _put_back(self, log: Log, group: Group, copies: list[Copy], now: int, *, count: bool = True) -> None:
        for copy in copies:
            copy.failures += count
            copy.state = "ready"  # in its old place
        self._expire_here(log, group, [copy for copy in copies if copy.message.over], now)

    def purge(self, name: str) -> int:
        """Everything that is not leased; how many that was, where it was most."""
        log = self.logs[name]
        most = 0
        for group in log.groups.values():
            leased = {copy.offset for copy in group.those("leased")}
            found = [one for one in log.unsettled(group) if one.arrived and one.offset not in leased]
            for message in found:
                message.never = True
            self._end(log, group, [one.offset for one in found])
            most = max(most, len(found))
        for message in log.messages:  # what is only kept
            message.never = message.never or (message.arrived and not any(
                message.offset not in group.settled for group in log.groups.values()
            ))  # fmt: skip
        return most

    def cancel(self, name: str, offset: int) -> bool:
        log = self.logs[name]
        message = log.messages[offset]
        if not message.waiting or not message.available:
            return False
        message.never = True
        for group in log.groups.values():
            if offset not in group.settled:
                self._end(log, group, [offset])
        return True

    def redrivable(self, name: str) -> list[int]:
        grave = self.logs[name]
        group = self.group_of(grave)
        found = []
        for message in grave.messages:
            if message.origin is None or message.offset in group.settled or not message.arrived:
                continue
            home = self.logs[message.origin[0]]
            if home.kind == "queue" or message.origin[1] in home.groups:
                found.append(message.offset)
        return found

    def redrive(self, name: str, offsets: list[int], now: int) -> int:
        grave = self.logs[name]
        for offset in offsets:
            letter = grave.messages[offset]
            assert letter.origin is not None
            home = self.logs[letter.origin[0]]
            expires = None if home.policy.ttl is None else now + round(home.policy.ttl * SECOND)
            row = Row(letter.payload, 0, letter.priority, None, expires, letter.key)
            self.publish(home.name, [row], now, letter.origin[1] if letter.origin[1] in home.groups else None)
        self._end(grave, self.group_of(grave), offsets)
        return len(offsets)

    # --- consumers ---

    def attach(self, name: str, group: str, consumer: str, silence: int | None, now: int) -> None:
        self.logs[name].groups[group].members[consumer] = (now, silence)

    def heard(self, group: Group, consumer: str | None, now: int) -> None:
        if consumer in group.members:
            group.members[consumer] = (now, group.members[consumer][1])

    def detach(self, log: Log, group: Group, consumer: str, now: int) -> None:
        group.members.pop(consumer, None)
        self._put_back(log, group, [copy for copy in group.those("leased") if copy.consumer == consumer], now)
        if not group.durable and not group.members:
            log.groups.pop(group.name, None)

    # --- what happens by itself ---

    def advance(self, now: int) -> None:
        """Time has passed."""
        for log in list(self.logs.values()):
            self._fall_due(log, now)
        for log in list(self.logs.values()):
            self._expire(log, now)
            for group in list(log.groups.values()):
                self._bury_silent_members(log, group, now)
                late = [c for c in group.those("leased") if c.deadline is not None and c.deadline <= now]
                if group.name in log.groups:
                    self._end_leases(log, group, late, now)
            self._fire(log, now)
        self.over(now)

    def _bury_silent_members(self, log: Log, group: Group, now: int) -> None:
        silent = [
            name for name, (heard, wait) in group.members.items() if wait is not None and heard + wait <= now
        ]
        for name in silent:
            del group.members[name]
            self._end_leases(log, group, [one for one in group.those("leased") if one.consumer == name], now)
        if silent and not group.durable and not group.members:
            del log.groups[group.name]

    def crash(self, now: int) -> None:
        """The owner is gone, and all leases and consumers with it; another one opens what is left."""
        self.held_up = False
        for log in self.logs.values():
            log.groups = {name: group for name, group in log.groups.items() if group.durable}
            for group in log.groups.values():
                group.members.clear()
        self._over_quietly()
        for log in list(self.logs.values()):
            self._fall_due(log, now)
            self._expire(log, now, of_the_past=True)
            for group in log.groups.values():
                self._end_leases(log, group, group.those("leased"), now)
            self._fire(log, now)
        self.over(now)
        self.advance(now)

    def _over_quietly(self) -> None:
        """What was on its way had arrived, as replaying sees it."""
        coming, self._coming = self._coming, []
        for log, made in coming:
            for message in made:
                message.arrived = True
                if message.target is not None:
                    for group in log.groups.values():
                        if group.name != message.target:
                            group.settled.add(message.offset)
                if message.due is not None:
                    message.waiting = True
                    continue
                for group in log.groups.values():
                    if message.offset not in group.settled:
                        self._arrive(log, group, Copy(message))

    def _fall_due(self, log: Log, now: int) -> None:
        due = [one for one in log.messages if one.waiting and one.due is not None and one.due <= now]
        for message in due:
            message.waiting = False
        for group in log.groups.values():
            line = [(one.due, one.offset, Copy(one)) for one in due if one.offset not in group.settled]
            line += [
                (copy.due, copy.offset, copy)
                for copy in group.those("retrying")
                if copy.due is not None and copy.due <= now
            ]
            for _, _, copy in sorted(line, key=lambda entry: entry[:2]):
                self._arrive(log, group, copy)

    def _expire(self, log: Log, now: int, *, of_the_past: bool = False) -> None:
        over = [
            one
            for one in log.messages
            if one.arrived and not one.over and one.expires is not None and one.expires <= now
        ]
        for message in over:
            message.over = message.never = True
        for group in log.groups.values():
            here = {one.offset for one in over if one.offset not in group.settled}
            leased = [copy for copy in group.those("leased") if copy.offset in here]
            if of_the_past:
                for copy in leased:
                    copy.failures += 1
                    copy.state = "ready"
            else:
                here -= {copy.offset for copy in leased}
            self._expire_offsets(log, group, here, now)

    def _expire_here(self, log: Log, group: Group, copies: list[Copy], now: int) -> None:
        self._expire_offsets(log, group, [copy.offset for copy in copies], now)

    def _expire_offsets(self, log: Log, group: Group, offsets: Iterable[int], now: int) -> None:
        if log.policy.on_expire == "dead-letter":
            self._bury(log, group, offsets, "expired", now)
        else:
            self._end(log, group, offsets)

    def _end_leases(self, log: Log, group: Group, copies: list[Copy], now: int) -> None:
        last = [copy for copy in copies if self._is_last(log, copy) and not copy.message.over]
        self._bury(log, group, [copy.offset for copy in last], "max-attempts", now)
        self._put_back(log, group, [copy for copy in copies if copy not in last], now)

    def _fire(self, log: Log, now: int) -> None:
        found = log.schedule
        if found is not None and found.due <= now:
            self.publish(log.name, [Row(b"tick", 0)], now)
            while found.due <= now:
                found.due += found.period

    def next_moment(self, name: str) -> int | None:
        """When something happens by itself."""
        log = self.logs[name]
        moments: list[int | None] = [log.schedule.due] if log.schedule is not None else []
        for message in log.messages:
            if message.arrived and log.is_needed(message):
                moments += [message.due] if message.waiting else []
                moments += [] if message.over else [message.expires]
        for group in log.groups.values():
            moments += [copy.due for copy in group.those("retrying")]
            moments += [copy.deadline for copy in group.those("leased")]
            moments += [heard + silence for heard, silence in group.members.values() if silence is not None]
        return min((moment for moment in moments if moment is not None), default=None)
