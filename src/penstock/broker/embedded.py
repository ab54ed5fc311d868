"""The port over one engine in this process, in memory or on a journal.

Theory of operation
-------------------
One lock guards the engine, the shelf and those who wait. A call takes it, lets happen what has fallen due, applies its command, appends the
events to the ledger, and lets go: it never waits for the disk or for anybody while it holds the lock. What the call answers
is withheld by its ticket until the events are durable, and so is what it published: messages arrive in their lanes when the ledger says
that they are recorded, by whichever thread recorded them.

Room on the disk is made sure of before the engine is touched, so a refused command has changed nothing. If the ledger fails
afterwards, engine and disk differ: the broker refuses everything from then on and must be opened again. The same holds if a change is left
half done, as a Ctrl-C may do: what was acknowledged is on the disk, and only memory is in doubt.

Who waits for messages stands in line for its log and group. Whoever makes something ready (a publisher, a nack, the timer) leases on their
behalf; their threads and loops wake to find it. A timer thread sleeps until the engine's next moment, or the end of somebody's
patience; it is started when there is the first such moment.

Time. The engine's clock never goes back and never stands still: it is the monotonic clock, pushed forward whenever the wall clock is ahead of it.
So a wall clock that is set back neither stops delays nor makes leases immortal.

Locks: this broker's lock is taken before the journal's, never after.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from penstock.broker import compose
from penstock.broker.contents import MESSAGE_OVERHEAD_BYTES, bytes_of, fetching, message_of
from penstock.broker.express import Arrival, Express, JournalExpress, visible_us
from penstock.broker.ledger import DONE, JournalLedger, Ledger, MemoryLedger, events_of
from penstock.broker.lines import Lines
from penstock.broker.port import BrokerStats, Granted, Handle, How, QueueStats, Receipts, Redriven
from penstock.broker.shelf import JournalShelf, MemoryShelf, Shelf, runs_of
from penstock.broker.ticket import Answer, Leasing, Record, Recorded, Ticket, Waiting
from penstock.broker.upkeep import Upkeep
from penstock.clock import SECOND_US, Clock, SystemClock
from penstock.engine import dead
from penstock.engine.change import Change
from penstock.engine.engine import Engine, dead_letter_target
from penstock.engine.events import Batch
from penstock.engine.group import Group
from penstock.engine.history import replay as take_in
from penstock.engine.log import DEFAULT_GROUP, Log, Plain, is_plain
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    ForkedProcess,
    InvalidArgument,
    JournalFailed,
    PenstockError,
    PolicyConflict,
    QueueNotFound,
)
from penstock.ids import SnowflakeIds
from penstock.journal.cleaner import DeadRange
from penstock.journal.commit import fresh_copy, uninterrupted
from penstock.journal.files import at_fork
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import LEASES, MESSAGES, METADATA, SETTLEMENTS, Kind
from penstock.limits import DELIVERIES_MAX, FRAME_BYTES_MAX, PRIORITY_DEFAULT
from penstock.message import Message
from penstock.names import check_name, is_dead_letter_name
from penstock.policy import Policy, altered, differences

#: Dead letters that go back in one unit, at the most, unless one alone is larger; and how many are looked at for that, while others wait.
REDRIVEN_BYTES: Final = 8 << 20
SEEN_AT_ONCE: Final = 1000

#: The timer looks at the clock at least so often. A clock that is set may be noticed later by so long.
NAP_S: Final = 3600.0

#: What is recorded of messages that the cleaner drops: every group had settled them, one way or another.
SETTLED: Final = 0


class Embedded:
    """A broker in this process."""

    def __init__(self, ledger: Ledger, shelf: Shelf, clock: Clock, engine: Engine, ids: SnowflakeIds) -> None:
        self.clock = clock
        self._ledger = ledger
        self._journal = ledger.journal if isinstance(ledger, JournalLedger) else None
        self._shelf = shelf
        self._engine = engine
        self._ids = ids
        self._lock = threading.Lock()
        self._whole = _Whole(self)
        self._ahead_us = clock.now_us() - clock.monotonic_us()
        self._engine_us = 0  # when it was last looked at
        self._lines = Lines()
        self._following = False
        self._on_the_way: deque[Change | Arrival] = deque()  # published, and not yet durable
        self._failure: PenstockError | None = None
        self._upkeep: Upkeep | None = None
        self._loose: Record | None = None  # of what happened by itself: nobody waits for it yet
        self._draining = False  # only settling is allowed
        self._closing = threading.Lock()
        self._closed = False
        self._settled = threading.Condition(self._lock)
        self._timer: threading.Thread | None = None
        self._timer_us: int | None = None
        self._tick = threading.Condition(self._lock)
        self._delivered = 0
        self._acked = 0
        self._closed_to_express = False
        self.express = Express(self) if isinstance(shelf, MemoryShelf) else None
        self._short = JournalExpress(self, self._journal) if self._journal is not None else None
        _brokers.add(self)

    # --- time ---

    def _now(self) -> int:
        wall_us = self.clock.now_us()
        monotonic_us = self.clock.monotonic_us()  # read second: a pause in between must not push time on
        ahead_us = wall_us - monotonic_us
        if ahead_us > self._ahead_us:
            self._ahead_us = ahead_us
        self._engine_us = now_us = monotonic_us + self._ahead_us
        return now_us

    def _begin(self, *, settling: bool = False) -> tuple[int, Change]:
        """With the lock held: the present, and an empty change. What has fallen due by now has happened, and is recorded.

        A command that is refused afterwards leaves that as it is; if nobody commits meanwhile, the timer does.
        """
        if self._failure is not None:
            raise fresh_copy(self._failure)
        if self._draining and not settling:
            raise BrokerClosed(CLOSED)
        now_us = self._now()
        if self._advance(now_us):
            self._follow()
        return now_us, Change()

    def _advance(self, now_us: int) -> bool:
        """With the lock held: let happen what has fallen due, and have it recorded; whether there was anything."""
        next_us = self._engine.next_us
        if next_us is None or next_us > now_us:
            return False
        happened = Change()
        self._engine.advance(now_us, happened)
        if happened:
            self._loose = self._append(happened)
            self._set_timer(now_us)
        return True

    # --- recording ---

    def _record(self, change: Change, *, sync: bool = True) -> Record:
        """With the lock held: append what a command did, and do what follows from it."""
        record = self._append(change, sync=sync)
        self._follow()
        return record

    def _append(self, change: Change, *, sync: bool = True) -> Record:
        record: Record | None = None
        for unit in change.units():
            for log, _, batch in unit.arrivals:
                self._shelf.put(log.number, batch)
            if self._journal is None:  # it holds at once
                self._engine.arrive(unit.arrivals, self._engine_us)
                record = DONE
                continue
            try:
                # What arrives is always synced: then it arrives in the order in which it was appended.
                to_sync = sync or bool(unit.arrivals)
                record = self._ledger.append(unit.events, sync=to_sync, then=self._arrival(unit))
            except BaseException as error:
                self._fail(error)
                raise
        return self._ledger.flush() if record is None else record

    def _arrival(self, unit: Change) -> Callable[[], None] | None:
        """What is to be done when a unit is durable: its messages arrive, and who waits for them wakes."""
        if not unit.arrivals:
            return None

        def arrive() -> None:
            with self._lock, self._whole:
                self._on_the_way.remove(unit)
                self._have_arrive(unit.arrivals, self._now())

        self._on_the_way.append(unit)
        return arrive

    def _have_arrive(self, arrivals: Sequence[tuple[Log, int, Batch]], now_us: int) -> None:
        """With the lock held: what was published is durable, unless memory is in doubt anyway."""
        if self._failure is None or isinstance(self._failure, BrokerClosed):
            self._engine.arrive(arrivals, now_us)
            self._advance(now_us)  # what expired while it was being recorded is given to nobody
            self._follow()

    def _follow(self) -> None:
        """With the lock held: give messages that became ready to those who wait, and forget what nobody needs.

        Serving them records leases, and what is recorded is followed up: by the one who follows already.
        """
        if self._following:
            return
        self._following = True
        try:
            self._follow_up()
        finally:
            self._following = False

    def _follow_up(self) -> None:
        engine = self._engine
        while engine.stirred and self._failure is None:
            self._serve(engine.stirred.pop())
        self._closed_to_express = self._draining or self._failure is not None or self._lines.count > 0
        if self._upkeep is not None:
            self._upkeep.count()
        for gone in engine.gone:
            self._dismiss(gone)
            self._shelf.drop_log(gone.number)
        engine.gone.clear()
        if engine.released:
            for log, offsets in engine.released:
                self._shelf.drop(log.number, offsets)
            engine.released.clear()
        next_us = engine.next_us
        if next_us is not None and (self._timer_us is None or next_us < self._timer_us):
            self._set_timer(next_us)

    def _fail(self, error: BaseException) -> None:
        """Engine and ledger differ from here on."""
        self._closed_to_express = True
        if self._failure is None:
            self._failure = (
                error
                if isinstance(error, PenstockError) and not error.retryable
                else JournalFailed(
                    f"the broker failed and refuses everything until it is opened again: {error!r}"
                )
            )
        self._wake_all(self._failure)

    def _hear_of_failure(self, error: PenstockError) -> None:
        """The journal failed: refuse everything now, and wake those who wait as soon as the lock is free."""
        self._closed_to_express = True
        if self._failure is None:
            self._failure = error

            def wake() -> None:
                with self._lock:
                    self._wake_all(error)

            threading.Thread(target=wake, name="penstock-failure", daemon=True).start()

    def _require_room(self, kind: Kind, size: int) -> None:
        if self._journal is not None:
            self._journal.require_room(kind, size)
        elif size > FRAME_BYTES_MAX:
            raise BatchTooLarge(
                f"a batch of {size} bytes is over the bound of {FRAME_BYTES_MAX} bytes: make it several"
            )

    # --- logs ---

    def declare(
        self, namespace: str, name: str, policy: dict[str, Any], *, create: bool | None
    ) -> Ticket[Handle]:
        check_name(name, kind="queue name", reserved_ok=create is False)
        wanted = Policy.of(**policy)
        with self._lock, self._whole:
            now_us, change = self._begin()
            log = self._engine.find(namespace, name)
            if log is None:
                if create is False:
                    raise QueueNotFound(f"no queue named {name!r}; create it with create_queue({name!r})")
                self._require_room(METADATA, MESSAGE_OVERHEAD_BYTES)
                log = self._engine.declare(namespace, name, wanted, now_us, change)
                self._skip_what_was_given_up(log)
            elif create:
                differing = "; ".join(map(str, differences(log.policy, policy))) or "with the same policy"
                raise PolicyConflict(
                    f"the queue {name!r} exists already ({differing}); open it with queue({name!r})"
                )
            else:
                _require_same(log, policy)
                self._engine.use(log, now_us)
            self._open_short_way(log)
            return Recorded(log, self._record(change))

    def _skip_what_was_given_up(self, log: Log) -> None:
        """Offsets that damage may have held are never used again, whatever the engine remembers."""
        if self._journal is not None:
            log.group()
            log.skip_to(self._journal.next_offset(log.number))

    def _open_short_way(self, log: Log) -> None:
        """With the lock held: have plain messages of a plain queue take the short way."""
        log.plain = None
        if not is_plain(log.policy):
            return
        group = log.group()
        if len(log.groups) == 1 and not (group.keys or log.sizes or log.held_ids):
            lane = group.lanes.lane(PRIORITY_DEFAULT)
            contents = {} if self.express is None else self.express._shelf.of_log(log.number)
            log.plain = Plain(
                group, group.lanes, lane, contents, log.policy.max_message_bytes, visible_us(log)
            )

    def names(self, namespace: str) -> Ticket[list[str]]:
        with self._lock, self._whole:
            self._begin()
            return Answer(
                [found for found in self._engine.names(namespace) if not is_dead_letter_name(found)]
            )

    def describe(self, log: Handle) -> Ticket[QueueStats]:
        with self._lock, self._whole:
            self._begin()
            return Answer(self._stats_of(self._alive(log)))

    def _stats_of(self, log: Log) -> QueueStats:
        group = min(log.groups.values(), key=lambda found: len(found.settled), default=None)
        dead = None
        if not is_dead_letter_name(log.name):
            dead = self._engine.find(log.namespace, dead_letter_target(log))
        return QueueStats(
            name=log.name,
            depth=log.depth,
            ready=group.ready if group else 0,
            delayed=log.delayed_count,
            leased=len(group.leases) if group else 0,
            retrying=group.retrying if group else 0,
            dead=dead.depth if dead is not None else 0,
            bytes=log.bytes if log.policy.max_bytes is not None else None,
            next_offset=log.next_offset,
            published=log.published,
            consumers=len(log.consumers),
            waiting=log.receivers,
        )

    def stats(self) -> BrokerStats:
        """What the broker knows of itself."""
        with self._lock, self._whole:
            self._begin()
            each = [self._stats_of(log) for log in self._engine.logs.values()]
            journal = self._ledger.journal.stats() if isinstance(self._ledger, JournalLedger) else None
            return BrokerStats(
                queues=len(each),
                ready=sum(found.ready for found in each),
                leased=sum(found.leased for found in each),
                delayed=sum(found.delayed for found in each),
                retrying=sum(found.retrying for found in each),
                published=sum(found.published for found in each),
                delivered=self._delivered,
                acked=self._acked,
                journal=journal,
            )

    def change(
        self, log: Handle, what: Literal["alter", "delete", "purge", "dead-letters", "redrive"], **policy: Any
    ) -> Ticket[Any]:
        with self._lock, self._whole:
            now_us, change = self._begin()
            found = self._alive(log)
            self._require_room(METADATA, MESSAGE_OVERHEAD_BYTES)
            answer: Any = None
            if what == "alter":
                self._engine.alter(found, altered(found.policy, **policy), now_us, change)
                self._open_short_way(found)
            elif what == "delete":
                self._engine.delete(found, now_us, change)
            elif what == "purge":
                answer = self._engine.purge(found, now_us, change)
            elif (
                what == "redrive"
            ):  # what is to be redriven: its dead letters if it has some, or itself if it holds those of others
                answer = None
                if not is_dead_letter_name(found.name):
                    answer = self._engine.find(found.namespace, dead_letter_target(found))
                if answer is None and self._engine.holds_dead_letters(found):
                    answer = found
            else:
                answer = self._engine.dead_letters(found, now_us, change)
            return Recorded(answer, self._record(change)) if change else Answer(answer)

    def _alive(self, handle: Handle) -> Log:
        log = handle
        if not isinstance(log, Log):
            raise InvalidArgument(f"{log!r} is not a queue of this broker")
        if log.deleted:
            raise QueueNotFound(
                f"the queue {log.name!r} was deleted; create it with create_queue({log.name!r})"
            )
        return log

    # --- publishing ---

    def publish(self, log: Handle, messages: Iterable[bytes | Message]) -> Ticket[Sequence[int]]:
        found = self._alive(log)
        if self._short is not None and type(messages) is list and len(messages) == 1:
            payload = messages[0]
            if type(payload) is bytes and (ticket := self._short.publish(found, payload)) is not None:
                return ticket
        batch = compose.batch_of(messages, found.policy, self._now())
        with self._lock, self._whole:
            now_us, change = self._begin()
            if not batch.payloads:
                return Answer([])
            if found.deleted:
                self._alive(found)
            self._require_room(MESSAGES, bytes_of(batch))
            batch.ids = self._ids.take(len(batch.payloads))
            ids = self._engine.publish(found, batch, now_us, change)
            return Recorded(ids, self._record(change))

    # --- receiving ---

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool
    ) -> Ticket[Granted | None]:
        if type(count) is not int or not 1 <= count <= DELIVERIES_MAX:
            raise InvalidArgument(
                f"the number of messages is {count!r}; give an int from 1 to {DELIVERIES_MAX}"
            )
        if self._short is not None and count == 1 and keep and group == DEFAULT_GROUP:
            short = self._short.lease(self._alive(log), consumer)
            if short is not None:
                return short
        with self._lock, self._whole:
            now_us, change = self._begin()
            found = self._alive(log)
            found.used_us = now_us
            ticket = self._try_lease(found, found.group(group), count, consumer, keep, now_us, change)
            if ticket is not None:
                return ticket
            if wait_us is not None and wait_us <= 0:
                return _NOTHING
            waiting = Waiting(
                (found, group), count, consumer, keep=keep,
                deadline_us=None if wait_us is None else now_us + wait_us, give_up=self._give_up,
            )  # fmt: skip
            self._lines.join(waiting)
            self._closed_to_express = True
            deadline_us = waiting.deadline_us
            if deadline_us is not None and (self._timer_us is None or deadline_us < self._timer_us):
                self._set_timer(deadline_us)
            return waiting

    def _try_lease(
        self,
        log: Log,
        group: Group,
        count: int,
        consumer: str | None,
        keep: bool,
        now_us: int,
        change: Change,
    ) -> Ticket[Granted | None] | None:
        """With the lock held: lease what is ready; None if nothing is."""
        while group.lanes.count and _is_active(log, consumer):
            self._require_room(LEASES, MESSAGE_OVERHEAD_BYTES + 16 * min(count, group.lanes.count))
            grant = self._engine.lease(log, group, count, consumer, now_us, change, keep=keep)
            if grant is None:
                return None
            runs, lost = runs_of(self._shelf, log.number, grant.offsets)
            if lost and grant.number:
                self._engine.lose(log, group, lost, now_us, change)
            self._delivered += len(grant.offsets) - len(lost)
            record = self._record(change, sync=not grant.number)
            if runs:
                held = [offset for offset in grant.offsets if offset not in lost] if lost else grant.offsets
                attempts = grant.attempts
                if lost and isinstance(attempts, list):
                    attempts = [a for o, a in zip(grant.offsets, attempts, strict=True) if o not in lost]
                return Leasing(
                    Granted(group.name, grant.number, held, attempts, runs), record, self._take_back, log
                )
            change = Change()
        return None

    def _serve(self, log: Log) -> None:
        """With the lock held: lease for those who wait, in the order in which they came."""
        for name, group in log.groups.items():
            for waiting in self._lines.of(log, name):
                if not group.lanes.count:
                    break
                if not waiting.stands or not _is_active(log, waiting.consumer):
                    continue
                try:
                    ticket = self._try_lease(
                        log, group, waiting.count, waiting.consumer, waiting.keep, self._now(), Change()
                    )
                except PenstockError as error:
                    ticket = _Refused(error)
                if ticket is None:
                    break
                # He may have been answered meanwhile, if the queue was deleted, or the broker failed.
                self._answer(waiting, ticket)

    def _answer(self, waiting: Waiting, ticket: Ticket[Any]) -> None:
        if self._leave(waiting):
            waiting.grant(ticket)

    def _leave(self, waiting: Waiting) -> bool:
        """With the lock held: somebody no longer stands in line for a log, which may now be unused."""
        if not self._lines.leave(waiting):
            return False
        log: Log = waiting.place[0]
        if not log.deleted:
            self._engine.use(log, self._now())
        return True

    def _give_up(self, waiting: Waiting) -> None:
        """Somebody stops waiting. What was granted meanwhile goes back."""
        with self._lock, self._whole:
            self._leave(waiting)
        if isinstance(waiting.outcome, Leasing):
            waiting.outcome.abandon()

    def _take_back(self, log: Log, granted: Granted) -> None:
        """Whoever was granted messages will never see them: they go back to their places."""
        with self._lock, self._whole:
            if not granted.number or self._failure is not None or log.deleted:
                return
            now_us, change = self._begin(settling=True)
            self._settled.notify_all()
            group = log.group(granted.group)
            found = zip(granted.offsets, group.leases.of(granted.offsets), strict=True)
            held = [offset for offset, lease in found if lease is not None and lease.number == granted.number]
            if held:
                self._engine.give_back(log, group, held, [granted.number] * len(held), now_us, change)
                self._record(change, sync=False)

    # --- settling ---

    def settle(
        self,
        log: Handle,
        receipts: Receipts,
        how: How,
        *,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> Ticket[None]:
        offsets, numbers = receipts.offsets, receipts.numbers
        if self._short is not None and how == "ack" and len(offsets) == 1 and receipts.group == DEFAULT_GROUP:
            short = self._short.ack(self._alive(log), offsets[0], numbers[0])
            if short is not None:
                return short
        with self._lock, self._whole:
            now_us, change = self._begin(settling=True)
            found = self._alive(log)
            group = found.group(receipts.group)
            engine = self._engine
            self._require_room(SETTLEMENTS, MESSAGE_OVERHEAD_BYTES + 32 * len(offsets) + 4 * len(error or ""))
            if how == "ack":
                engine.ack(found, group, offsets, numbers, now_us, change)
                self._acked += len(set(offsets))
            elif how == "nack":
                engine.nack(found, group, offsets, numbers, delay_us, error, now_us, change)
            elif how == "reject":
                engine.reject(found, group, offsets, numbers, error, now_us, change)
            else:
                engine.give_back(found, group, offsets, numbers, now_us, change)
            if self._draining:
                self._settled.notify_all()
            return Recorded(None, self._record(change))

    def attach(self, log: Handle, group: str, consumer: str) -> Ticket[str]:
        with self._lock, self._whole:
            self._begin()
            found = self._alive(log)
            found.group(group)
            name, number = consumer, 1
            while name in found.consumers:
                number += 1
                name = f"{consumer}~{number}"
            found.consumers[name] = None
            return Answer(name)

    def release(self, log: Handle, group: str, consumer: str) -> Ticket[None]:
        with self._lock, self._whole:
            if self._failure is not None:
                return Answer(None)  # it has nothing any more
            now_us, change = self._begin(settling=True)
            found = log if isinstance(log, Log) else self._alive(log)
            self._settled.notify_all()
            if not found.deleted:
                self._detach(found, group, consumer, now_us)
                held = found.group(group).leases.held_for(consumer)
                if held:
                    numbers = [found.group(group).leases.number_of(offset) for offset in held]
                    self._engine.give_back(found, found.group(group), held, numbers, now_us, change)
            return Recorded(None, self._record(change, sync=False)) if change else Answer(None)

    def _detach(self, log: Log, group: str, consumer: str, now_us: int) -> None:
        """With the lock held: what a consumer waits for will not come, and the next one may be active."""
        log.consumers.pop(consumer, None)
        self._engine.use(log, now_us)
        for waiting in self._lines.of(log, group):
            if waiting.consumer == consumer:
                self._answer(waiting, _NOTHING)
        self._engine.stirred.add(log)

    def extend(self, log: Handle, receipts: Receipts, wait_us: int) -> Ticket[None]:
        with self._lock, self._whole:
            now_us, _ = self._begin(settling=True)
            found = self._alive(log)
            self._engine.extend(
                found, found.group(receipts.group), receipts.offsets, receipts.numbers, now_us + wait_us
            )
            self._follow()
            return Answer(None)

    # --- looking, and moving dead letters ---

    def read(
        self, log: Handle, count: int, *, where: Callable[[Message], bool] | None = None
    ) -> Ticket[list[Message]]:
        with self._lock, self._whole:
            self._begin()
            found = self._alive(log)
            return Answer([message for _, message in self._upcoming(found, count, where)])

    def _upcoming(
        self, log: Log, count: int, where: Callable[[Message], bool] | None
    ) -> list[tuple[int, Message]]:
        """With the lock held: the next messages in order, with their offsets."""
        found: list[tuple[int, Message]] = []
        for piece in log.group().lanes.pieces():
            for offset in range(piece[1], piece[2]):
                if len(found) >= count:
                    return found
                batch = self._shelf.get(log.number, offset)
                if batch is None:
                    continue
                message = message_of(batch, offset - batch.first)
                if where is None or where(message):
                    found.append((offset, message))
        return found

    def redrive(
        self,
        log: Handle,
        count: int,
        *,
        where: Callable[[Message], bool] | None,
        to: str | None,
        span: range | None,
    ) -> Ticket[Redriven]:
        with self._lock, self._whole:
            now_us, change = self._begin()
            found = self._alive(log)
            target = None
            if to is not None:
                target = self._engine.find(found.namespace, to)
                if target is None:
                    raise QueueNotFound(f"no queue named {to!r}; create it with create_queue({to!r})")
                if target is found:
                    raise InvalidArgument(f"{to!r} holds these dead letters: redrive them to another queue")
            chosen, left = self._to_redrive(
                found, target, count, where, range(found.arrived) if span is None else span
            )
            moved = dead.redrive(self._engine, found, chosen, target, now_us, change)
            if len(moved) < len(chosen):  # there was no room for all of them
                left = range(min(set(chosen) - set(moved)), found.arrived if span is None else span.stop)
            answer = Redriven(len(moved), left)
            return Recorded(answer, self._record(change)) if change else Answer(answer)

    def _to_redrive(
        self, log: Log, target: Log | None, count: int, where: Callable[[Message], bool] | None, span: range
    ) -> tuple[list[int], range]:
        """With the lock held: the first dead letters within a span of offsets that go back, and what of it was not looked at yet.

        One whose origin was deleted stays, and does not stand in the way of the others.
        """
        chosen: list[int] = []
        size = seen = 0
        group = log.group()
        for gap in group.settled.gaps(span.start, span.stop):
            for offset in gap:
                batch = self._shelf.get(log.number, offset)
                if batch is not None and offset not in group.leases:
                    message = message_of(batch, offset - batch.first)
                    whole = target is not None or dead.origin(self._engine, log, message.headers) is not None
                    if whole and (where is None or where(message)):
                        more = MESSAGE_OVERHEAD_BYTES + bytes_of(
                            batch.part(offset - batch.first, offset - batch.first + 1)
                        )
                        if chosen and size + more > REDRIVEN_BYTES:
                            return chosen, range(offset, span.stop)
                        chosen.append(offset)
                        size += more
                        self._require_room(MESSAGES, size)
                seen += 1
                if len(chosen) == count or seen == SEEN_AT_ONCE:
                    return chosen, range(offset + 1, span.stop)
        return chosen, range(0)

    # --- the timer ---

    def wake(self) -> None:
        """Look at the clock now: for clocks that are moved by hand."""
        with self._lock, self._whole:
            record = None if self._failure is not None else self._look_at_the_clock()
        if record is not None:
            record.wait()

    def _set_timer(self, moment_us: int) -> None:
        self._timer_us = moment_us
        if self._timer is None and isinstance(self.clock, SystemClock):
            self._timer = threading.Thread(target=self._keep_time, name="penstock-timer", daemon=True)
            self._timer.start()
        else:
            self._tick.notify_all()

    def _keep_time(self) -> None:
        while self._failure is None:
            with self._lock, self._whole:
                record = self._sleep_or_look()
            if record is not None:
                with suppress(PenstockError):  # everybody else hears of it
                    record.wait()

    def _sleep_or_look(self) -> Record | None:
        if self._failure is not None:
            return None
        if self._timer_us is None:
            self._tick.wait()
        elif self._timer_us > self._now():
            self._tick.wait(min((self._timer_us - self._now()) / SECOND_US, NAP_S))
        else:
            return self._look_at_the_clock()
        return None

    def _look_at_the_clock(self) -> Record | None:
        """With the lock held: let happen what has fallen due, and end the patience of those who waited long enough.

        What happens by itself has nobody who waits for it, so whoever calls must have it recorded.
        """
        now_us, _ = self._begin(settling=True)
        record, self._loose = self._loose, None
        for waiting in self._lines.out_of_patience(now_us):
            self._answer(waiting, _NOTHING)
        moments = [moment for moment in (self._lines.next_us, self._engine.next_us) if moment is not None]
        self._timer_us = min(moments, default=None)
        self._closed_to_express = self._draining or self._failure is not None or self._lines.count > 0
        self._settled.notify_all()  # leases may have ended
        return record

    # --- the end ---

    def _dismiss(self, log: Log) -> None:
        """With the lock held: a queue is gone, and those who wait for it wait in vain."""
        for waiting in self._lines.of_log(log):
            self._answer(waiting, _Refused(QueueNotFound(f"the queue {log.name!r} was deleted")))

    def _wake_all(self, error: PenstockError) -> None:
        for waiting in self._lines.everybody():
            if self._lines.leave(waiting):
                waiting.grant(_Refused(error))
        self._tick.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Wake those who wait, finish what is under way, keep a snapshot, and let go.

        With a timeout, what is handed out may be settled for so long before. Who closes it once more waits until it is closed.
        """
        with self._closing:
            if self._closed:
                return
            try:
                with self._lock, self._whole:
                    self._draining = self._closed_to_express = True
                    self._wake_all(BrokerClosed(CLOSED))
                if timeout_s is not None:
                    with self._lock:
                        self._settled.wait_for(self._nothing_is_leased, timeout_s)
            finally:  # an interruption ends the patience, not the closing
                uninterrupted(self._let_go)
                self._closed = True

    def _let_go(self) -> None:
        with self._lock:
            whole = self._failure is None
            self._failure = self._failure or BrokerClosed(CLOSED)
            self._tick.notify_all()
        try:
            if self._timer is not None and self._timer is not threading.current_thread():
                self._timer.join()
            if self._upkeep is not None:
                self._upkeep.stop()
            if whole and isinstance(self._ledger, JournalLedger):
                with suppress(PenstockError):  # it only saves time when the broker is opened again
                    self.snapshot(self._ledger.journal)
        finally:
            self._ledger.close()

    def _nothing_is_leased(self) -> bool:
        logs = self._engine.logs.values()
        return self._failure is not None or not any(g.leases for log in logs for g in log.groups.values())

    def settle_down(self) -> None:
        """After opening: put back what an earlier owner had handed out."""
        with self._lock, self._whole:
            now_us, change = self._now(), Change()
            for log in self._engine.logs.values():
                self._skip_what_was_given_up(log)
            self._engine.settle_down(now_us, change)
            record = self._record(change) if change else None
            self._follow()
        if record is not None:
            record.wait()

    def snapshot(self, journal: Journal) -> None:
        """Keep the engine's state. What is on its way will have arrived when the barrier is reached."""
        with self._lock, self._whole:
            self._require_trust()
            state = self._engine.encode()
            coming = [
                (log.number, first, batch) for unit in self._on_the_way for log, first, batch in unit.arrivals
            ]
            now_us = self._now()
            barrier = journal.barrier()
        if coming:
            twin = Engine(
                seed=0, fetch=lambda _log, _offsets: [], take_ids=lambda _n: [], make_room=lambda _n: None
            )
            twin.restore(state)
            for number, first, batch in coming:
                if number in twin.logs:
                    twin.arrive([(twin.logs[number], first, batch)], now_us)
            state = twin.encode()
        journal.snapshot(state, barrier.wait())

    def _require_trust(self) -> None:
        """With the lock held: nothing is kept, or thrown away, by what an engine says that may be half changed."""
        if self._failure is not None and not isinstance(self._failure, BrokerClosed):
            raise fresh_copy(self._failure)

    def dead_ranges(self, number: int, first: int, last: int) -> list[DeadRange]:
        """Which messages of a log nobody needs any more, for the cleaner."""
        with self._lock, self._whole:
            self._require_trust()
            log = self._engine.logs.get(number)
            if log is None:
                return [DeadRange(first, last, SETTLED)]
            return [
                DeadRange(run.start, run.stop - 1, SETTLED) for run in log.settled_by_all(first, last + 1)
            ]

    def _orphan(self) -> None:
        self._lock = threading.Lock()
        self._tick = self._settled = threading.Condition(self._lock)
        self._closed = True
        self._closing = threading.Lock()
        self._closed_to_express = True
        if self.express is not None:
            self.express._lock = self._lock  # the same one: every queue holds on to it
        self._failure = ForkedProcess(
            "this broker belongs to the parent process: open your own, or connect to a server"
        )


class _Whole:
    """Stands around every change of the engine. What comes out of one and is no refusal, such as a Ctrl-C, has left it half done."""

    __slots__ = ("_broker",)

    def __init__(self, broker: Embedded) -> None:
        self._broker = broker

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and not isinstance(error, PenstockError):
            self._broker._fail(error)


class _Refused:
    """The ticket of a call that was refused after it began to wait."""

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def wait(self) -> Any:
        raise fresh_copy(self._error)

    async def get(self) -> Any:
        raise fresh_copy(self._error)


_NOTHING: Final[Ticket[Any]] = Answer(None)
CLOSED: Final = "the broker is closed: open it again"
_brokers: weakref.WeakSet[Embedded] = weakref.WeakSet()


def _orphan_all() -> None:
    for broker in list(_brokers):
        broker._orphan()


at_fork(_orphan_all)


# --- opening ---


def in_memory(clock: Clock | None = None, *, node: int = 0, seed: int = 0) -> Embedded:
    """A broker that forgets everything when it is closed."""
    clock = clock or SystemClock()
    ids = SnowflakeIds(node, clock)
    shelf = MemoryShelf()
    engine = Engine(seed=seed, fetch=fetching(shelf), take_ids=ids.take, make_room=lambda _size: None)
    return Embedded(MemoryLedger(), shelf, clock, engine, ids)


def on_disk(
    path: str | Path, clock: Clock | None = None, *, node: int = 0, seed: int = 0, **settings: Any
) -> Embedded:
    """A broker over the journal in a directory, which this process then owns."""
    clock = clock or SystemClock()
    ids = SnowflakeIds(node, clock)
    shelf = JournalShelf()
    engine = Engine(
        seed=seed,
        fetch=fetching(shelf),
        take_ids=ids.take,
        make_room=lambda size: shelf.journal.require_room(MESSAGES, size),
    )

    def sizes_matter(number: int) -> bool:
        log = engine.logs.get(number)
        return log is not None and log.policy.max_bytes is not None

    def replay(frame: Frame) -> None:
        for event in events_of(frame, payloads_of=sizes_matter):
            take_in(engine, event, frame.header.time_us)

    journal = Journal(path, restore=engine.restore, replay=replay, clock=clock, **settings)
    try:
        ids.after(engine.last_id)
        engine.begin_epoch(journal.epoch)
        shelf.journal = journal
        broker = Embedded(JournalLedger(journal), shelf, clock, engine, ids)
        broker.settle_down()
        journal.tell_of_failure(broker._hear_of_failure)
        broker._upkeep = Upkeep(broker, journal)
    except BaseException:
        journal.close()
        raise
    return broker


# --- the rest ---


def _is_active(log: Log, consumer: str | None) -> bool:
    """Whether a consumer may be given messages: with `single_active`, only the one that came first."""
    return not log.policy.single_active or not log.consumers or next(iter(log.consumers)) == consumer


def _require_same(log: Log, given: dict[str, Any]) -> None:
    differing = differences(log.policy, given)
    if differing:
        raise PolicyConflict(
            f"the queue {log.name!r} exists with another policy: {'; '.join(map(str, differing))}. "
            "Leave those arguments out, or call alter"
        )
