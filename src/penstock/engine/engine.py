"""All logs of a broker: commands and the time go in, events and what is to arrive come out.

Theory of operation
-------------------
A command is a method. It looks whether it is allowed, changes the state, and adds to a `Change`: the *events* that must be recorded for it to
survive, and the messages that *arrive* in lanes once those are durable. A command that is refused raises and has changed nothing.
Whoever calls records the events as one unit, withholds every answer until that is durable, and calls `arrive` then. If recording
fails, this engine knows more than the disk does and must not be used any more.

Nothing here reads a clock or draws a number: the time is an argument, chance comes from a seed, and what a message contains is asked for
by `fetch` (only dead letters and redrives need it, and ids, which come from `take_ids`).

`history.replay` takes in the same events from a journal; `settle_down` ends a replay: what was handed out by an earlier owner goes back to its
place, the attempt counted, or to the dead letters if that was its last.

What happens by itself (delays, retries, deadlines, expiry) happens in `advance`, which must be called with the present time before any other
command. Each log has one alarm in a heap, so a broker with ten thousand idle queues looks at none of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock.clock import SECOND_US
from penstock.engine import cursors, dead, letter, overflow, retention, schedules
from penstock.engine import log as logs
from penstock.engine.chance import Chance
from penstock.engine.change import (
    Admits,
    Change,
    Choose,
    Chosen,
    Declaration,
    Fetch,
    Grant,
    Recur,
    not_counted,
)
from penstock.engine.events import (
    EVERYBODY,
    FOR_EVERYBODY,
    Action,
    Declared,
    Leased,
    Offsets,
    Outcome,
    Published,
    Settled,
    parcels,
    rising,
    runs,
)
from penstock.engine.group import Group, Terms
from penstock.engine.lane import Piece
from penstock.engine.lane import part as part_of
from penstock.engine.lease import Lease
from penstock.engine.log import Log
from penstock.engine.metadata import Metadata
from penstock.engine.producers import Progress
from penstock.errors import (
    CorruptJournal,
    DiskFull,
    InvalidArgument,
    MessageTooLarge,
    PenstockError,
    WrongKind,
)
from penstock.limits import FILTER_STEPS_AT_ONCE
from penstock.model.batch import Batch
from penstock.model.commands import DEFAULT_GROUP, Kind
from penstock.names import dead_letter_name, is_dead_letter_name, is_part_of
from penstock.policy import Policy
from penstock.ranges import RangeSet

#: The epoch of the journal's owner stands above the counter in a lease's number.
LEASE_NUMBER_BITS: Final = 40

#: Messages that are scattered over a log and settled at once are settled so many in a unit.
SETTLED_AT_ONCE: Final = 50_000

#: More than the settlement of one of them takes, and than a unit takes beside them.
SETTLED_BYTES: Final = 16
SETTLED_OVERHEAD_BYTES: Final = 1024

#: So few are looked for one by one.
FEW: Final = 8

#: Messages that a filter looks at before others may do something.
SIFTED_AT_ONCE: Final = 1000

#: Dead letters wait for a person, who must find them as they were left.
DEAD_LETTER_POLICY: Final = Policy.of(max_attempts=None)


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The engine as a snapshot holds it."""

    version: int
    next_log: int
    last_id: int
    logs: list[logs.Stored]
    # Added later: snapshots from before have neither.
    producers: dict[str, Progress] = {}
    sequences: dict[str, int] = {}
    metadata: dict[str, dict[str, bytes]] = {}


STORED_VERSION: Final = 2

#: Of a snapshot that holds metadata of fronts, which a reader of version 2 would lose.
STORED_WITH_METADATA: Final = 3


class Engine:
    """The state of all logs."""

    def __init__(
        self,
        *,
        seed: int,
        fetch: Fetch,
        take_ids: Callable[[int], Sequence[int]],
        make_room: Callable[[int, bool], None],
        choose: Choose | None = None,
        recur: Recur | None = None,
        admits: Admits | None = None,
    ) -> None:
        self.logs: dict[int, Log] = {}
        self.last_id = 0  # the highest message id that was seen
        self.producers: dict[str, Progress] = {}
        self.metadata = Metadata()
        self.sequences: dict[str, int] = {}  # the last commit that a reader of the whole journal has read
        self.released: list[
            tuple[Log, Offsets]
        ] = []  # what no group needs any more; whoever calls empties it
        self.gone: list[Log] = []  # what was deleted; whoever calls empties it
        self._burials: deque[tuple[Log, Group, list[int]]] = deque()  # expired, and withdrawn for their turn
        self._burial_us: int | None = None  # when that is
        self._buried = 0  # in this turn
        self.parted: list[Log] = []  # from which a group went; whoever calls empties it
        self.stirred: set[Log] = set()  # where something became ready; whoever calls empties it
        self._by_name: dict[tuple[str, str], Log] = {}
        self._dead_targets: dict[tuple[str, str], int] = {}  # how many logs send their dead letters there
        self._next_log = 1
        self._lease_number = 0
        self.chance = Chance(seed)
        self.fetch = fetch
        self.take_ids = take_ids
        self.choose: Choose = choose or (
            lambda _log, offsets, _filter, left: Chosen(offsets, len(offsets), left)
        )
        self.steps_left = FILTER_STEPS_AT_ONCE  # of filters, until the broker renews it for another turn
        self.recur = recur
        self.admits: Admits = admits or (lambda _namespace, _octets, _depth: not_counted)
        self.make_sure_of_room = make_room  # for so many bytes, of settlements or of more: raises DiskFull
        self._alarms: list[tuple[int, int]] = []

    def begin_epoch(self, epoch: int) -> None:
        """Leases of an earlier owner are never mistaken for ours."""
        self._lease_number = epoch << LEASE_NUMBER_BITS

    # --- logs ---

    def find(self, namespace: str, name: str) -> Log | None:
        return self._by_name.get((namespace, name))

    def of_namespace(self, namespace: str) -> list[Log]:
        """The logs of a namespace, by name."""
        found = [log for (space, _), log in self._by_name.items() if space == namespace]
        return sorted(found, key=lambda log: log.name)

    def claimed_names(self, namespace: str) -> set[str]:
        """Return the names of logs that exist, and of queues that policies name for dead letters.

        The dead letters that a log has of its own are part of it.
        """
        there = {name for space, name in self._by_name if space == namespace}
        named = {name for (space, name), count in self._dead_targets.items() if space == namespace and count}
        return {name for name in there | named if not is_part_of(name, there)}

    def depth(self, namespace: str) -> int:
        """How many messages the logs of a namespace have that are not settled."""
        return sum(log.depth for (space, _), log in self._by_name.items() if space == namespace)

    def declare(
        self,
        namespace: str,
        name: str,
        policy: Policy,
        now_us: int,
        change: Change,
        kind: Kind = "queue",
    ) -> Log:
        """A new log. There must be none of that name."""
        self._require_grave(namespace, name, policy)
        if kind == "topic" and self._dead_targets.get((namespace, name)):
            raise WrongKind(
                f"{name!r} is named as the place of dead letters, which must be a queue: take another name for the topic"
            )
        log = self.add(self._next_log, namespace, name, policy, kind)
        self.use(log, now_us)
        change.events.append(_declared(log, Action.DECLARE, now_us))
        return log

    def use(self, log: Log, now_us: int) -> None:
        """Somebody uses a log: if it is to be deleted when it is unused, its time begins again."""
        log.used_us = now_us
        if log.policy.expires is not None:
            self.set_alarm(log)

    def alter(self, log: Log, policy: Policy, now_us: int, change: Change) -> None:
        """Change a log's policy, from now on."""
        self._require_grave(log.namespace, log.name, policy)
        self.aim(log, -1)
        log.milestones.begin_anew(log.next_offset, now_us)
        log.set_policy(policy)
        self.aim(log, 1)
        retention.update(self, log, now_us)
        self.set_alarm(log)
        self.stirred.add(log)  # others may be given messages now
        change.events.append(_declared(log, Action.ALTER, now_us))

    def delete(self, log: Log, now_us: int, change: Change) -> None:
        """A log is gone with all that is in it."""
        change.events.append(_declared(log, Action.DELETE, now_us))
        self.forget(log)

    def _require_grave(self, namespace: str, name: str, policy: Policy) -> None:
        """Dead letters go to another log, which is a queue: what nobody subscribes to would be lost."""
        if policy.dead_letter is None:
            return
        if policy.dead_letter == name:
            raise InvalidArgument(
                f"{name!r} cannot hold its own dead letters; name another queue, or none for {name}.dlq"
            )
        found = self.find(namespace, policy.dead_letter)
        if found is not None and found.kind == "topic":
            raise WrongKind(
                f"{policy.dead_letter!r} is a topic, and dead letters go to a queue: name a queue, or none for {name}.dlq"
            )

    def add(self, number: int, namespace: str, name: str, policy: Policy, kind: Kind) -> Log:
        log = Log(number, namespace, name, policy, kind)
        self.logs[number] = self._by_name[namespace, name] = log
        self._next_log = max(self._next_log, number + 1)
        self.aim(log, 1)
        retention.update(self, log, None)
        return log

    def aim(self, log: Log, step: int) -> None:
        """Count who sends dead letters where."""
        if log.policy.dead_letter is not None:
            target = (log.namespace, log.policy.dead_letter)
            self._dead_targets[target] = self._dead_targets.get(target, 0) + step

    def forget(self, log: Log) -> None:
        log.deleted = True
        if log.handle is not None:
            log.handle.deleted = True
        self.aim(log, -1)
        del self.logs[log.number], self._by_name[log.namespace, log.name]
        log.plain = None
        self.stirred.discard(log)
        self.gone.append(log)

    def holds_dead_letters(self, log: Log) -> bool:
        """Whether a log is where another one's dead letters go."""
        return is_dead_letter_name(log.name) or self.is_shared_grave(log)

    def is_shared_grave(self, log: Log) -> bool:
        """Whether others name a log as the place of their dead letters: beside them it may hold messages of its own."""
        return bool(self._dead_targets.get((log.namespace, log.name)))

    def dead_letters(self, log: Log, now_us: int, change: Change) -> Log:
        """The queue of a log's dead letters, made if it does not exist."""
        if is_dead_letter_name(log.name):
            raise WrongKind(f"{log.name!r} holds dead letters itself and has none of its own")
        name = dead_letter_target(log)
        return self.find(log.namespace, name) or self.declare(
            log.namespace, name, DEAD_LETTER_POLICY, now_us, change
        )

    # --- publishing ---

    def publish(
        self, log: Log, batch: Batch, now_us: int, change: Change, *, planned: bool = False
    ) -> Sequence[int]:
        """Append messages to a log; their ids. A repeated dedup id gives the id of the first message that had it.

        If it was `planned`, looked at before as a part of something that is done as a whole, nothing is refused any more: not for want of room,
        and not for what the policy says by now.
        """
        policy = log.policy
        ids = batch.ids
        if not planned:
            check_sizes(policy, batch)
        fresh: Batch | None = batch
        if batch.dedup_id is not None:
            log.dedup.expire(now_us)
            fresh, ids = log.without_repeats(batch, now_us, planned=planned)
            log.counts.deduplicated += len(ids) - (0 if fresh is None else len(fresh.ids))
        elif policy.delivery == "exactly-once" and not planned:
            raise InvalidArgument(
                f"{log.name!r} promises exactly-once: give each message a dedup_id by which a repetition is known"
            )
        if fresh is None:
            return ids
        if policy.max_depth is not None or policy.max_bytes is not None:
            overflow.make_room(self, log, fresh, now_us, change, planned=planned)
        if fresh.dedup_id is not None:
            log.remember(log.next_offset, fresh)
        self.append(log, fresh, change)
        return ids

    def append(self, log: Log, batch: Batch, change: Change) -> None:
        if not log.groups and log.kind == "queue":
            self._make_default_group(log, batch, change)
        first = log.next_offset
        count = len(batch.ids)
        log.next_offset = first + count
        log.published += count
        batch.first = first
        log.note_published(first, batch, joins=change.add_arrival(log, first, batch))
        self.last_id = max(self.last_id, batch.ids[-1])
        if log.policy.max_bytes is not None:
            log.note_sizes(first, batch)
        change.events.append(Published(log.number, first, batch))

    def _make_default_group(self, log: Log, batch: Batch, change: Change) -> None:
        """A queue's own group comes with its first message. If groups were there before, it is said what it begins with."""
        if not log.next_offset:
            log.group()
            return
        times = batch.timestamp_us
        now_us = times if isinstance(times, int) else max(times)
        begin = cursors.beginning(self, log, DEFAULT_GROUP, 0, Terms())
        cursors.subscribe(self, log, DEFAULT_GROUP, begin, now_us, change)

    def arrive(self, arrivals: Sequence[tuple[Log, int, Batch]], now_us: int) -> None:
        """What was published is durable."""
        for log, first, batch in arrivals:
            if log.deleted:
                continue
            if log.alarm_us is not None and log.alarm_us <= now_us:
                log.fall_due(now_us)  # what was due before these were published goes before them
            log.arrive(first, batch)
            if batch.deliver_at is not None or batch.expires_at is not None:
                self.set_alarm(log)
            if log.kept_from < logs.NOTHING_KEPT:
                retention.update(self, log, now_us)
            if (
                not log.groups or first < log.dropped_before
            ):  # nobody listens, or all have gone past it meanwhile
                self.release(log, [range(first, log.arrived)], now_us)
            self.stirred.add(log)

    def release(self, log: Log, offsets: Iterable[range], now_us: int) -> None:
        """Messages are needed by one group less: what none needs any more, and nothing keeps, is stored no longer."""
        for run in offsets:
            for part in log.settled_by_all(run.start, run.stop):
                log.forget(part, now_us)
            self.released += [(log, part) for part in log.released(run.start, run.stop)]

    # --- leasing ---

    def lease(
        self,
        log: Log,
        group: Group,
        wanted: int,
        consumer: str | None,
        now_us: int,
        change: Change,
        *,
        keep: bool = True,
        ahead: int = 0,
        fits: Callable[[Offsets], int] | None = None,
    ) -> Grant | None:
        """Hand out the next messages; None if nothing is ready. `keep=False` settles them at once.

        Of the messages wanted, the last `ahead` are leased ahead: see `lease`. `fits` says how many
        of some messages, from the first on, the answer has room for.
        """
        if group.filter is None:
            pieces = group.lanes.take(wanted)
        else:
            pieces = self._wanted(log, group, wanted, now_us, change)
        if fits is not None and pieces:
            pieces = _fitting(group, pieces, fits)
        if not pieces:
            return None
        offsets = _offsets_of(pieces)
        attempts = group.attempts_of(offsets)
        if not keep or log.policy.delivery == "at-most-once":
            ordered = offsets if type(offsets) is range else sorted(offsets)
            tried = group.attempts_of(ordered)
            self.end(log, group, ordered, now_us)
            log.acked += len(ordered)
            change.say(
                group,
                Settled(log.number, group.name, ordered, Outcome.ACKED, tried, None, consumer, None, now_us),
            )
            return Grant(0, offsets, attempts)
        self._lease_number += 1
        timeout = log.policy.visibility_timeout
        deadline_us = None if timeout is None else now_us + round(timeout * SECOND_US)
        group.leases.add(Lease(self._lease_number, pieces, consumer, deadline_us, 0, now_us))
        if ahead:
            group.leases.ahead.update(offsets[wanted - ahead :])
            self._begin(log, group, offsets[: wanted - ahead], consumer, now_us, change)
        else:
            change.say(group, Leased(log.number, group.name, offsets, attempts, consumer, now_us))
        if deadline_us is not None and (log.alarm_us is None or deadline_us < log.alarm_us):
            self._set_alarm_at(log, deadline_us)
        return Grant(self._lease_number, offsets, attempts)

    def _wanted(self, log: Log, group: Group, wanted: int, now_us: int, change: Change) -> list[Piece]:
        """Take the next messages that the group's filter wants, and settle the others before them.

        It looks at a bounded number of messages, and takes a bounded number of steps. Then there
        may be none, though more are ready: the caller asks again in another turn.
        """
        chosen: list[Piece] = []
        unwanted: list[int] = []
        taken: list[Piece] = []
        left = SIFTED_AT_ONCE if self.steps_left > 0 else 0
        while pieces := group.lanes.take(min(wanted - len(chosen), left)):
            taken += pieces
            offsets = [offset for _, start, stop, _ in pieces for offset in range(start, stop)]
            try:
                found = self.choose(log, offsets, group.filter, self.steps_left)
            except PenstockError:  # they cannot be read now
                for piece in taken:
                    group.lanes.put_back(piece)
                raise
            self.steps_left = found.steps_left
            wants, seen = set(found.wanted), offsets[: found.seen]
            for piece in _keep_first(group, pieces, found.seen):
                chosen += [part_of(piece, o, o + 1) for o in range(piece[1], piece[2]) if o in wants]
            unwanted += [offset for offset in seen if offset not in wants]
            left = left - len(seen) if len(seen) == len(offsets) else 0
        if unwanted:
            ordered = rising(sorted(unwanted))
            self.end(log, group, ordered, now_us)
            change.say(group, _ended(log, group, ordered, Outcome.FILTERED, now_us))
        return chosen

    def _begin(
        self, log: Log, group: Group, offsets: Offsets, consumer: str | None, now_us: int, change: Change
    ) -> None:
        """Record that a consumer's code gets these messages."""
        if offsets:
            attempts = group.attempts_of(offsets)
            change.say(group, Leased(log.number, group.name, offsets, attempts, consumer, now_us))

    def hand_over(
        self, log: Log, group: Group, offsets: list[int], numbers: list[int], now_us: int, change: Change
    ) -> list[int]:
        """A consumer hands messages over to its code: those whose lease still holds and that have not expired."""
        found = zip(offsets, numbers, group.leases.of(offsets), strict=True)
        held = sorted({o for o, number, lease in found if lease is not None and lease.number == number})
        late = [offset for offset in held if offset in group.overdue and offset in group.leases.ahead]
        self._put_back(log, group, late, now_us, change, count=False)
        if late:
            held = [offset for offset in held if offset in group.leases]
        self._reach(log, group, held, now_us, change)
        return held

    def _reach(self, log: Log, group: Group, offsets: Iterable[int], now_us: int, change: Change) -> None:
        """Messages that were leased ahead are in the hands of the consumer's code."""
        reached = rising([offset for offset in offsets if offset in group.leases.ahead])
        if reached:
            lease = group.leases.get(reached[0])
            self._begin(log, group, reached, lease.consumer if lease else None, now_us, change)
            group.leases.ahead.difference_update(reached)

    def take_back(self, group: Group, grant: Grant, change: Change) -> None:
        """Nobody gets what was just granted, nor is it recorded: it cannot be read now."""
        for offset in grant.offsets:
            group.put_back(offset)
        if change.events and isinstance(change.events[-1], Leased):
            change.events.pop()

    def extend(
        self, log: Log, group: Group, offsets: list[int], numbers: list[int], deadline_us: int
    ) -> None:
        """Let a consumer keep messages until later."""
        group.require_leases(offsets, numbers)
        for offset in offsets:
            group.leases.extend(offset, deadline_us)
        self._set_alarm_at(log, deadline_us)

    def never_again(self, log: Log, offsets: Iterable[range], now_us: int) -> None:
        """Messages are for nobody who comes anew, or goes back; those that were only kept are stored no longer."""
        for run in log.never_again(offsets):
            log.forget(run, now_us)
            self.released.append((log, run))

    def lose(self, log: Log, group: Group, offsets: list[int], now_us: int, change: Change) -> None:
        """Messages that are stored no more cannot be handed out: their life is over."""
        self.settle(log, group, rising(offsets), Outcome.DROPPED, now_us, change)

    # --- settling ---

    def ack(
        self, log: Log, group: Group, offsets: list[int], numbers: list[int], now_us: int, change: Change
    ) -> int:
        """Messages were processed: all of them, or LeaseLost and none; how many they are."""
        group.require_leases(offsets, numbers)
        found = rising(offsets)
        attempts = group.attempts_of(found)
        group.leases.remove_all(found)
        self.end(log, group, found, now_us)
        change.say(
            group, Settled(log.number, group.name, found, Outcome.ACKED, attempts, None, None, None, now_us)
        )
        log.acked += len(found)
        return len(found)

    def nack(
        self, log: Log, group: Group, offsets: list[int], numbers: list[int], delay_us: int | None, error: str | None,
        now_us: int, change: Change,
    ) -> None:  # fmt: skip
        """Messages failed: each waits for its next attempt, or that was its last."""
        lease = group.require_leases(offsets, numbers)
        self._reach(log, group, offsets, now_us, change)
        given = sorted(set(offsets))
        late = [offset for offset in given if offset in group.overdue]
        # First what may be refused for want of room.
        dead.bury(
            self,
            log,
            group,
            self.at_their_last(log, group, given),
            letter.MAX_ATTEMPTS,
            error,
            now_us,
            change,
        )
        self._expire_here(log, group, late, now_us, change)
        self._retry_the_rest(log, group, given, delay_us, error, lease.consumer, now_us, change)
        log.counts.nacked += len(given)

    def at_their_last(self, log: Log, group: Group, offsets: list[int]) -> list[int]:
        """Those that may not be attempted once more. What has expired meanwhile is not among them: that is what it died of."""
        most = None if is_dead_letter_name(log.name) else log.policy.max_attempts
        if most is None:
            return []
        last = [o for o in offsets if group.tally.get(o) + 1 >= most and o not in group.overdue]
        return dead.mortal(self, log, last)

    def _retry_the_rest(
        self, log: Log, group: Group, offsets: list[int], delay_us: int | None, error: str | None, consumer: str | None,
        now_us: int, change: Change,
    ) -> None:  # fmt: skip
        """Those that are still handed out wait for their next attempt."""
        for offset in offsets:
            if offset in group.leases:
                self._retry(log, group, offset, delay_us, error, consumer, now_us, change)

    def _retry(
        self, log: Log, group: Group, offset: int, delay_us: int | None, error: str | None, consumer: str | None,
        now_us: int, change: Change,
    ) -> None:  # fmt: skip
        attempt = group.tally.get(offset) + 1
        if delay_us is None:
            backoff = log.policy.backoff
            delay_us = 0 if backoff is None else backoff.delay_us(attempt, self.chance.unit())
        due_us = now_us + delay_us
        group.count_attempt(offset, now_us)
        group.retry(offset, due_us)
        change.say(
            group,
            Settled(
                log.number, group.name, [offset], Outcome.RETRY, attempt, due_us, consumer, error, now_us
            ),
        )
        if due_us <= now_us:
            log.fall_due(now_us)
            self.stirred.add(log)
        self.set_alarm(log)

    def reject(
        self, log: Log, group: Group, offsets: list[int], numbers: list[int], error: str | None, now_us: int, change: Change
    ) -> None:  # fmt: skip
        """Messages failed for good."""
        lease = group.require_leases(offsets, numbers)
        self._reach(log, group, offsets, now_us, change)
        given = sorted(set(offsets))
        late = [offset for offset in given if offset in group.overdue]
        fresh = [offset for offset in given if offset not in group.overdue]
        dead.bury(self, log, group, fresh, letter.REJECTED, error, now_us, change)
        self._expire_here(log, group, late, now_us, change)
        self._retry_the_rest(log, group, given, None, error, lease.consumer, now_us, change)
        log.counts.rejected += len(given)

    def give_back(
        self, log: Log, group: Group, offsets: list[int], numbers: list[int], now_us: int, change: Change,
        *, seen: bool = True,
    ) -> None:  # fmt: skip
        """Messages go back to their old places, without waiting: the attempt counts, unless nobody has seen them."""
        group.require_leases(offsets, numbers)
        log.counts.returned += len(set(offsets))
        given = self._put_back_ahead(log, group, sorted(set(offsets)), now_us, change)
        if given:
            how, attempts = Outcome.RETURNED if seen else Outcome.UNSEEN, group.attempts_of(given)
            change.say(group, Settled(log.number, group.name, given, how, attempts, None, None, None, now_us))
            self._put_back(log, group, given, now_us, change, count=seen)

    def _put_back_ahead(
        self, log: Log, group: Group, offsets: list[int], now_us: int, change: Change
    ) -> list[int]:
        """Put those back that were leased ahead, which changes nothing that is recorded; the others."""
        ahead = group.leases.ahead.intersection(offsets) if group.leases.ahead else None
        if not ahead:
            return offsets
        self._put_back(log, group, sorted(ahead), now_us, change, count=False)
        return [offset for offset in offsets if offset not in ahead]

    def _put_back(
        self, log: Log, group: Group, offsets: list[int], now_us: int, change: Change, *, count: bool = True
    ) -> None:
        for offset in offsets:
            if count:
                group.count_attempt(offset, now_us)
            group.put_back(offset)
        self.stirred.add(log)
        late = [offset for offset in offsets if offset in group.overdue] if group.overdue else []
        if late:
            group.overdue.difference_update(late)
            self._expire_here(log, group, late, now_us, change)

    def purge(self, log: Log, now_us: int, change: Change) -> int:
        """Remove everything that is not leased; how many messages that was, in the group that had most of them."""
        removed = 0
        for group in log.all_groups():
            before = len(group.settled)
            found = RangeSet()
            for gap in group.settled.gaps(0, log.arrived):
                found.add(gap.start, gap.stop)
            for offset in group.leases.offsets():
                found.discard(offset, offset + 1)
            try:
                self.settle_many(log, group, found, Outcome.PURGED, now_us, change)
            except DiskFull:
                if not change:
                    raise
                break
            removed = max(removed, len(group.settled) - before)
        kept = [part for run in _only_kept(log) for part in log.gone.gaps(run.start, run.stop)]
        if kept:  # nobody waits for these, and they are removed for all who might come
            self.remove_for_all(log, kept, Outcome.PURGED, now_us, change)
        return removed

    def remove_for_all(
        self, log: Log, offsets: Iterable[range], outcome: Outcome, now_us: int, change: Change
    ) -> None:
        """Remove messages that no group needs, and that are only kept."""
        for part in parcels(offsets, SETTLED_AT_ONCE):
            self.never_again(log, runs(part), now_us)
            change.events.append(
                Settled(log.number, EVERYBODY, part, outcome, None, None, None, None, now_us)
            )

    def settle_many(
        self, log: Log, group: Group, found: Iterable[range], outcome: Outcome, now_us: int, change: Change
    ) -> list[int]:
        """End the lives of messages, wherever they are, in as many units as they need. The ranges rise.

        On a full disk it raises `DiskFull`, with nothing changed; if it is full only for the later ones of many, those are given back.
        """
        parts = list(parcels(found, SETTLED_AT_ONCE))
        for number, part in enumerate(parts):
            size = SETTLED_BYTES * (len(part) if isinstance(part, list) else 1) + SETTLED_OVERHEAD_BYTES
            try:
                self.make_sure_of_room(change.bytes + size, True)
            except DiskFull:
                if not number:
                    raise
                return [offset for rest in parts[number:] for offset in rest]
            self.settle(log, group, part, outcome, now_us, change)
            change.bytes += size
            if len(parts) > 1:
                change.cut()
        return []

    def settle(
        self, log: Log, group: Group, offsets: Offsets, outcome: Outcome, now_us: int, change: Change
    ) -> None:
        """The same in one unit, for which there must be room."""
        if offsets:
            self.withdraw(log, group, offsets)
            if outcome is Outcome.DROPPED:
                log.counts.dropped += len(offsets)
            elif outcome is Outcome.REDRIVEN:
                log.counts.redriven += len(offsets)
            elif outcome is Outcome.PURGED:
                log.counts.purged += len(offsets)
            if outcome in FOR_EVERYBODY:
                self.never_again(log, runs(offsets), now_us)
            self.end(log, group, offsets, now_us)
            change.say(group, _ended(log, group, offsets, outcome, now_us))
            if (
                outcome in FOR_EVERYBODY and not group.durable
            ):  # of the group nothing is recorded, of the others it must be
                change.events.append(
                    Settled(log.number, EVERYBODY, offsets, outcome, None, None, None, None, now_us)
                )

    def withdraw(self, log: Log, group: Group, offsets: Offsets) -> None:
        """Take messages out, wherever they are: what is still being recorded is nowhere. Their offsets rise."""
        log.catch_up(group)
        offsets = [o for o in offsets if o < log.arrived] if log.arrived < log.next_offset else offsets
        if len(offsets) <= FEW:
            for offset in offsets:
                self._withdraw_one(log, group, offset)
            return
        leased = [offset for offset in offsets if offset in group.leases] if group.leases else []
        if leased:
            group.leases.remove_all(leased)
            offsets = sorted(set(offsets).difference(leased))
        by_priority: dict[int, list[range]] = {}
        for run in runs(offsets):
            for priority, start, stop in log.priorities.parts(run.start, run.stop):
                by_priority.setdefault(priority, []).append(range(start, stop))
        ready = RangeSet()
        taken = [
            piece
            for priority, found in by_priority.items()
            for piece in group.lanes.remove_all(priority, found)
        ]
        for _, start, stop, _ in sorted(taken, key=lambda piece: piece[1]):
            ready.add(start, stop)
        for run in runs(offsets):
            for gap in ready.gaps(run.start, run.stop):
                for offset in gap:
                    self._withdraw_one(log, group, offset)

    def _withdraw_one(self, log: Log, group: Group, offset: int) -> None:
        if not group.withdraw(offset, log.priorities.at(offset)) and offset < log.arrived:
            log.awaited[offset] = log.awaited.get(offset, 0) + 1
            if log.awaited[offset] == len(log.groups):
                del log.awaited[offset]
                log.withdrawn += 1

    def end(self, log: Log, group: Group, offsets: Offsets, now_us: int) -> None:
        """Messages that were taken out of lanes and leases are settled for good."""
        for run in [offsets] if type(offsets) is range else runs(offsets):
            group.settled.add(run.start, run.stop)
        if group.tally:
            for offset in offsets:
                group.tally.discard(offset)
        if group.overdue:
            group.overdue.difference_update(offsets)
        if group.keys:
            self._next_of_keys(log, group, offsets)
        if len(log.groups) == 1 and log.kept_from == logs.NOTHING_KEPT:
            log.forget(offsets, now_us)
            self.released.append((log, offsets))
        else:
            self.release(log, runs(offsets), now_us)

    def _next_of_keys(self, log: Log, group: Group, offsets: Offsets) -> None:
        for offset in offsets:
            following = group.keys.settled(offset)
            if following is not None and following not in group.settled:
                group.arrive(log.priorities.at(following), following, following + 1)
                self.stirred.add(log)

    # --- what happens by itself ---

    @property
    def next_us(self) -> int | None:
        """When something happens by itself next, at the earliest."""
        first_us = self._alarms[0][0] if self._alarms else None
        if self._burial_us is None or first_us is None:
            return first_us if self._burial_us is None else self._burial_us
        return min(first_us, self._burial_us)

    def advance(self, now_us: int, change: Change, *, turn: bool = True) -> None:
        """Let everything happen that happens by itself up to now.

        Of messages that go to the dead letters because they expired, some may be left to the next turns: what is left
        waits until the caller has a `turn` for it.
        """
        self._buried = 0
        if turn and self._burial_us is not None and self._burial_us <= now_us:
            self._bury_expired(now_us, change)
        alarms = self._alarms
        while alarms and alarms[0][0] <= now_us:
            moment, number = heapq.heappop(alarms)
            log = self.logs.get(number)
            if log is not None and log.alarm_us == moment:
                log.alarm_us = None
                self._advance(log, now_us, change)
                if not log.deleted:
                    self.set_alarm(log)

    def _advance(self, log: Log, now_us: int, change: Change) -> None:
        if log.fall_due(now_us):
            self.stirred.add(log)
        self._expire(log, now_us, change)
        for group in list(log.groups.values()):
            cursors.bury_silent_members(self, log, group, now_us, change)
            if log.groups.get(group.name) is not group:  # it lived only as long as they did
                continue
            overdue = group.leases.pop_overdue(now_us)
            if overdue:
                self.end_leases(log, group, overdue, now_us, change)
        retention.update(self, log, now_us)
        schedules.fire(self, log, now_us, change)
        if log.unused_us is not None and log.unused_us <= now_us:
            self.delete(log, now_us, change)

    def end_leases(self, log: Log, group: Group, offsets: list[int], now_us: int, change: Change) -> None:
        """Nobody settled them in time: they go back to their places, or that was their last attempt."""
        log.counts.lease_expired += len(offsets)
        offsets = self._put_back_ahead(log, group, offsets, now_us, change)
        with suppress(DiskFull):  # then they are attempted again, and die when there is room
            last = self.at_their_last(log, group, offsets)
            dead.bury(self, log, group, last, letter.MAX_ATTEMPTS, None, now_us, change)
        self._put_back(log, group, [offset for offset in offsets if offset in group.leases], now_us, change)

    def _expire(self, log: Log, now_us: int, change: Change, *, of_the_past: bool = False) -> None:
        """The time of messages is over. What is handed out is left to its consumer, and ends if it comes back.

        What an earlier owner had handed out (`of_the_past`) came back when he ended, in its order among the others.
        """
        next_us = log.expiries.next_us
        if next_us is None or next_us > now_us:
            return
        offsets = [offset for _, offset in log.expiries.pop_due(now_us)]
        self.never_again(log, runs(offsets), now_us)
        for group in log.groups.values():
            over = sorted(offset for offset in offsets if offset not in group.settled)
            for offset in over if of_the_past and group.leases else ():
                if offset in group.leases:
                    if offset not in group.leases.ahead:
                        group.count_attempt(offset, now_us)
                    group.put_back(offset)
                    group.overdue.discard(offset)
            group.overdue.update(offset for offset in over if offset in group.leases)
            free = [offset for offset in over if offset not in group.leases]
            if log.policy.on_expire == "drop":
                self._expire_here(log, group, free, now_us, change)
            elif free:
                self.withdraw(log, group, free)
                group.overdue.update(free)
                step = dead.BURIED_IN_A_TURN
                parts = (free[start : start + step] for start in range(0, len(free), step))
                self._burials += [(log, group, part) for part in parts]
                if self._burial_us is None:
                    self._bury_expired(now_us, change)

    def _bury_expired(self, now_us: int, change: Change) -> None:
        """Move messages that expired to the dead letters, as many as fit into one turn."""
        self._burial_us = None
        while self._burials and self._burial_us is None:
            log, group, offsets = self._burials.popleft()
            if log.deleted or log.groups.get(group.name) is not group:
                continue
            offsets = [offset for offset in offsets if offset in group.overdue]
            pause_us = dead.TURN_US
            try:
                left = dead.bury(
                    self, log, group, offsets, letter.EXPIRED, None, now_us, change,
                    bytes_max=dead.BURIED_BYTES,
                )  # fmt: skip
            except DiskFull:
                left, pause_us = offsets, SECOND_US
            self._buried += len(offsets) - len(left)
            log.counts.expired += len(offsets) - len(left)
            if left:
                self._burials.appendleft((log, group, left))
            if left or self._buried >= dead.BURIED_IN_A_TURN:
                self._burial_us = now_us + pause_us

    def _expire_here(self, log: Log, group: Group, offsets: list[int], now_us: int, change: Change) -> None:
        try:
            if log.policy.on_expire == "drop":
                left = self.settle_many(log, group, runs(offsets), Outcome.EXPIRED, now_us, change)
            else:
                left = dead.bury(self, log, group, offsets, letter.EXPIRED, None, now_us, change)
        except DiskFull:
            left = offsets
        log.counts.expired += len(offsets) - len(left)
        if left:  # they wait until there is room, where nobody gets them
            self.withdraw(log, group, left)
            group.overdue.update(left)
            for offset in left:
                log.expiries.add(now_us + SECOND_US, offset)
            self.set_alarm(log)

    def set_alarm(self, log: Log) -> None:
        moment = log.next_us
        if moment is not None:
            self._set_alarm_at(log, moment)

    def _set_alarm_at(self, log: Log, moment: int) -> None:
        if log.alarm_us is None or moment < log.alarm_us:
            log.alarm_us = moment
            heapq.heappush(self._alarms, (moment, log.number))

    # --- after a replay ---

    def settle_down(self, now_us: int, change: Change) -> None:
        """All was replayed. What an earlier owner had handed out goes back to its place, or that was its last attempt."""
        for log in list(self.logs.values()):
            log.published_before = log.published
            if not log.policy.durable:
                self.delete(log, now_us, change)
                continue
            retention.update(self, log, now_us)
            log.used_us = now_us
            log.fall_due(now_us)
            self._expire(log, now_us, change, of_the_past=True)
            for group in log.groups.values():
                self.end_leases(log, group, group.leases.offsets(), now_us, change)
            schedules.fire(self, log, now_us, change)
            self.set_alarm(log)
        self.advance(now_us, change)

    # --- storing ---

    def encode(self) -> bytes:
        """Everything that must survive, as bytes."""
        stored = Stored(
            STORED_WITH_METADATA if self.metadata.stored else STORED_VERSION,
            self._next_log,
            self.last_id,
            [log.encode() for log in self.logs.values()],
            self.producers,
            self.sequences,
            self.metadata.stored,
        )
        return msgspec.msgpack.encode(stored)

    def restore(self, data: bytes) -> None:
        """What `encode` gave, into an engine that is empty."""
        stored = msgspec.msgpack.decode(data, type=Stored)
        if stored.version not in (STORED_VERSION, STORED_WITH_METADATA):
            raise CorruptJournal(
                f"a snapshot of engine version {stored.version} is not known to this version of Penstock"
            )
        self._next_log = stored.next_log
        self.last_id = stored.last_id
        self.producers = stored.producers
        self.sequences = stored.sequences
        self.metadata = Metadata(stored.metadata)
        for found in stored.logs:
            log = Log.decode(found)
            self.logs[log.number] = self._by_name[log.namespace, log.name] = log
            self.aim(log, 1)


def _only_kept(log: Log) -> list[range]:
    """What is stored though no group needs it. A queue without any stores what it has until one comes."""
    if not log.groups and log.kind == "queue":
        return [range(log.arrived)]
    return log.settled_by_all(min(log.kept_from, log.arrived), log.arrived)


def dead_letter_target(log: Log) -> str:
    """The name of the queue that gets a log's dead letters."""
    return log.policy.dead_letter or dead_letter_name(log.name)


def _declared(log: Log, action: Action, now_us: int) -> Declared:
    gone = None
    if action == Action.ALTER and log.kept_from < log.next_offset:
        gone = log.unavailable(log.kept_from, log.next_offset).encode()
    body = msgspec.msgpack.encode(Declaration(log.namespace, log.name, log.policy, log.kind, gone))
    return Declared(log.number, action, log.name, body, now_us)


def _ended(log: Log, group: Group, offsets: Offsets, outcome: Outcome, now_us: int) -> Settled:
    return Settled(log.number, group.name, offsets, outcome, None, None, None, None, now_us)


def _fitting(group: Group, pieces: list[Piece], fits: Callable[[Offsets], int]) -> list[Piece]:
    try:
        count = fits(_offsets_of(pieces))
    except PenstockError:  # they cannot be read now
        _keep_first(group, pieces, 0)
        raise
    return _keep_first(group, pieces, count)


def _keep_first(group: Group, pieces: list[Piece], count: int) -> list[Piece]:
    """Return the first `count` of the messages that were taken, and put the others back."""
    kept: list[Piece] = []
    for piece in pieces:
        stop = min(piece[2], piece[1] + count)
        count -= stop - piece[1]
        if stop > piece[1]:
            kept.append(part_of(piece, piece[1], stop))
        if stop < piece[2]:
            group.lanes.put_back(part_of(piece, stop, piece[2]))
    return kept


def _offsets_of(pieces: list[Piece]) -> Offsets:
    if len(pieces) == 1:
        return range(pieces[0][1], pieces[0][2])
    return [offset for _, start, stop, _ in pieces for offset in range(start, stop)]


def check_sizes(policy: Policy, batch: Batch) -> None:
    if batch.size <= policy.max_message_bytes:
        return
    longest = max(map(len, batch.payloads))
    if longest > policy.max_message_bytes:
        raise MessageTooLarge(
            f"the payload has {longest} bytes and the limit is {policy.max_message_bytes}; "
            "publish a reference to it instead, or raise max_message_bytes"
        )
