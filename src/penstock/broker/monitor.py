"""The monitor: what every command of the embedded broker stands on. One lock and what it guards, the time, recording, the timer, the end.

Theory of operation
-------------------
One lock guards the engine, the shelf and those who wait. A command takes it, lets happen what has fallen due (`begin`), applies itself to the engine,
has the events appended to the journal (`record`), and lets go: it never waits for the disk or for anybody while it holds the lock. What it answers
is withheld by its ticket until the events are durable, and so is what it published: messages arrive in their lanes when the journal says
that they are recorded, by whichever thread recorded them.

Room on the disk is made sure of before the engine is touched, so a refused command has changed nothing. If the journal fails
afterwards, engine and disk differ: the broker refuses everything from then on and must be opened again. The same holds if a change is left
half done, as a Ctrl-C may do: what was acknowledged is on the disk, and only memory is in doubt.

A timer thread sleeps until the engine's next moment, or the end of somebody's patience; it is started when there is the first such moment. A clock that is
moved by hand has none: whoever moves it does, before he goes on, what the timer would do (`heed`).

Time. The engine's clock never goes back and never stands still: it is the monotonic clock, pushed forward whenever the wall clock is ahead of it.
So a wall clock that is set back neither stops delays nor makes leases immortal.

Locks: this one is taken before the journal's, never after.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from penstock import argument
from penstock.broker.ledger import rows_of
from penstock.broker.lines import Lines
from penstock.broker.port import Arrived
from penstock.broker.shelf import Shelf
from penstock.broker.ticket import DONE, Answer, Listed, Record, Recorded, Refused, Ticket, Waiting
from penstock.broker.trace import Tracer
from penstock.clock import SECOND_US, Clock, ManualClock, SystemClock
from penstock.engine import cursors
from penstock.engine.change import Change
from penstock.engine.engine import Engine
from penstock.engine.log import Log
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    DiskFull,
    ForkedProcess,
    InvalidArgument,
    JournalFailed,
    PenstockError,
    QuotaExceeded,
    fresh_copy,
)
from penstock.ids import SnowflakeIds
from penstock.journal.commit import uninterrupted
from penstock.journal.files import at_fork
from penstock.journal.journal import Journal
from penstock.journal.kinds import LEASES, MESSAGES, METADATA, Kind
from penstock.limits import FILTER_STEPS_AT_ONCE, FRAME_BYTES_MAX, QUOTA_ROOM_RETRY_S
from penstock.model.batch import Batch
from penstock.model.stats import Counts, Step
from penstock.policy import Policy

if TYPE_CHECKING:
    from penstock.broker.intake import Intake
    from penstock.broker.upkeep import Upkeep

#: The timer looks at the clock at least so often. A clock that is set may be noticed later by so long.
NAP_S: Final = 3600.0

#: And so often at a clock that is not the machine's own: nobody knows how fast it goes.
FOREIGN_NAP_S: Final = 0.05

#: The wall clock is set back by more than this, or it only goes a little slower than the other one.
SET_BACK_US: Final = SECOND_US

#: More than the ack of one message takes.
ACK_BYTES_MAX: Final = 512

#: A unit whose caller does not wait is recorded after so long at the most.
UNWAITED_US: Final = 2000

CLOSED: Final = "the broker is closed: open it again"


class Totals(msgspec.Struct):
    """What was counted in logs that are gone, since the broker was opened."""

    published: int = 0  # since they were declared
    published_since: int = 0  # since the broker was opened
    delivered: int = 0
    acked: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)

    def add(self, log: Log) -> None:
        self.published += log.published
        self.published_since += log.published - log.published_before
        self.delivered += log.delivered
        self.acked += log.acked
        self.counts.add(log.counts)


class Arrives(Protocol):
    """What was published, and is not yet durable."""

    arrivals: list[tuple[Log, int, Batch]]


class Monitor:
    """The state of a broker, and how it is changed. `serve` hands out what became ready, `dismiss` sends away who waits for a deleted log."""

    serve: Callable[[Log], None]
    dismiss: Callable[[Log], None]
    reopen: Callable[[Log], None]  # its short way, see `express`

    def __init__(
        self, journal: Journal | None, shelf: Shelf, clock: Clock, engine: Engine, ids: SnowflakeIds
    ) -> None:
        self.clock = clock
        self._nap_s = NAP_S if isinstance(clock, SystemClock) else FOREIGN_NAP_S
        self.journal = journal
        self.shelf = shelf
        self.engine = engine
        engine.make_sure_of_room = self.require_space
        self.ids = ids
        self.lock = threading.Lock()
        self.whole = _Whole(self)
        self.lines = Lines()
        self.on_the_way: deque[Arrives] = deque()
        self.failure: PenstockError | None = None
        self.upkeep: Upkeep | None = None
        self.intake: Intake | None = None
        self.draining = False  # only settling is allowed
        self.settled = threading.Condition(self.lock)  # something was settled, or given back
        self.express_closed = False  # the short ways of all logs: see `express`
        self.told: dict[tuple[Log, str], Arrived] = {}  # who is told that a group has something ready
        self.tracer: Tracer | None = None
        self.defaults = Policy()  # of logs that are made, in what they do not say themselves
        self.retired: dict[str, Totals] = {}  # what was counted in logs that are gone, by namespace
        self.ahead_us = clock.now_us() - clock.monotonic_us()
        self._engine_us = 0  # when it was last looked at
        self._following = False
        self._loose: Record | None = None  # of what happened by itself: nobody waits for it yet
        self._closing = threading.Lock()
        self._closed = False
        self._timer: threading.Thread | None = None
        self._timer_us: int | None = None
        self._tick = threading.Condition(self.lock)
        _monitors.add(self)

    # --- time ---

    def now(self) -> int:
        wall_us = self.clock.now_us()
        monotonic_us = self.clock.monotonic_us()  # read second: a pause in between must not push time on
        ahead_us = wall_us - monotonic_us
        if ahead_us > self.ahead_us:
            self.ahead_us = ahead_us
        self._engine_us = now_us = monotonic_us + self.ahead_us
        return now_us

    @property
    def set_back_us(self) -> int:
        """How far the wall clock was set back while it was open: so much later are the times that somebody reads off it."""
        found = self._engine_us - self.clock.now_us()
        return found if found > SET_BACK_US else 0

    def begin(self, *, settling: bool = False, renew: bool = False, turn: bool = False) -> tuple[int, Change]:
        """With the lock held: the present, and an empty change. What has fallen due by now has happened, and is recorded.

        Filters have new steps if the caller has waited for its turn (`renew`); all other commands
        share what is left.

        A command that is refused afterwards leaves that as it is; if nobody commits meanwhile, the timer does.
        """
        if self.failure is not None:
            raise fresh_copy(self.failure)
        if self.draining and not settling:
            raise BrokerClosed(CLOSED)
        now_us = self.now()
        if self.advance(now_us, turn=turn):
            self.follow()
        if renew:
            self.engine.steps_left = FILTER_STEPS_AT_ONCE
        return now_us, Change()

    def advance(self, now_us: int, *, turn: bool = False) -> bool:
        """With the lock held: let happen what has fallen due, and have it recorded; whether there was anything.

        What is done in turns is the timer's: it waits until a turn is recorded before it takes the next.
        """
        next_us = self.engine.next_us
        if next_us is None or next_us > now_us:
            return False
        happened = Change()
        self.engine.advance(now_us, happened, turn=turn)
        if happened:
            self._loose = self.append(happened)
            self.set_timer(now_us)
        return True

    # --- recording ---

    def record(self, change: Change, *, sync: bool = True) -> Record:
        """With the lock held: append what a command did, and do what follows from it."""
        record = self.append(change, sync=sync)
        self.follow()
        return record

    def append(self, change: Change, *, sync: bool = True) -> Record:
        record: Record | None = None
        for unit in change.units():
            if self.tracer is not None:
                self.tracer.note(unit.events, self._engine_us, self._name_of)
            for log, _, batch in unit.arrivals:
                self.shelf.put(log.number, batch)
            if self.journal is None:  # it holds at once
                self.engine.arrive(unit.arrivals, self._engine_us)
                record = DONE
                continue
            try:
                # What arrives is always synced: then it arrives in the order in which it was appended.
                to_sync = sync or bool(unit.arrivals)
                record = self.journal.append(
                    rows_of(unit.events), sync=to_sync, then=self._arrival(unit), promised=True
                )
            except BaseException as error:
                self.fail(error)
                raise
        if record is None:
            return DONE if self.journal is None else self.journal.barrier()
        return record

    def _name_of(self, number: int) -> tuple[str, str] | None:
        log = self.engine.logs.get(number)
        return None if log is None else (log.namespace, log.name)

    def timeline(self, namespace: str, id: int) -> list[Step]:
        """With the lock held: what is known of a message."""
        if self.tracer is None:
            raise InvalidArgument("this broker keeps no timelines: open it with trace on")
        return self.tracer.timeline(id, self._name_of, namespace)

    def _arrival(self, unit: Change) -> Callable[[], None] | None:
        """What is to be done when a unit is durable: its messages arrive, and who waits for them wakes."""
        if not unit.arrivals:
            return None

        def arrive() -> None:
            with self.lock, self.whole:
                self.on_the_way.remove(unit)
                self.have_arrive(unit.arrivals, self.now())

        self.on_the_way.append(unit)
        return arrive

    def have_arrive(self, arrivals: Sequence[tuple[Log, int, Batch]], now_us: int) -> None:
        """With the lock held: what was published is durable, unless memory is in doubt anyway."""
        if self.failure is None or isinstance(self.failure, BrokerClosed):
            self.engine.arrive(arrivals, now_us)
            self.advance(now_us)  # what expired while it was being recorded is given to nobody
            self.follow()

    def follow(self) -> None:
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
        engine = self.engine
        while engine.stirred and self.failure is None:
            self.serve(engine.stirred.pop())
        if self.upkeep is not None:
            self.upkeep.count()
        for gone in engine.gone:
            self.dismiss(gone)
            self.shelf.drop_log(gone.number)
            self.told = {place: tell for place, tell in self.told.items() if place[0] is not gone}
            self.retired.setdefault(gone.namespace, Totals()).add(gone)
        engine.gone.clear()
        for parted in engine.parted:
            self.dismiss(parted)
        engine.parted.clear()
        if engine.released:
            for log, offsets in engine.released:
                self.shelf.drop(log.number, offsets)
            engine.released.clear()
        next_us = engine.next_us
        if next_us is not None and (self._timer_us is None or next_us < self._timer_us):
            self.set_timer(next_us)

    # --- failing ---

    def fail(self, error: BaseException) -> None:
        """Engine and journal differ from here on."""
        self.express_closed = True
        if self.failure is None:
            self.failure = (
                error
                if isinstance(error, PenstockError) and not error.retryable
                else JournalFailed(
                    f"the broker failed and refuses everything until it is opened again: {argument.quoted(error)}"
                )
            )
        self.wake_all(self.failure)

    def hear_of_failure(self, error: PenstockError) -> None:
        """The journal failed: refuse everything now, and wake those who wait as soon as the lock is free."""
        self.express_closed = True
        if self.failure is None:
            self.failure = error

            def wake() -> None:
                with self.lock:
                    self.wake_all(error)

            with suppress(RuntimeError):  # no thread is left: whoever waits hears of it when his time is up
                threading.Thread(target=wake, name="penstock-failure", daemon=True).start()

    def require_depth(self, namespace: str, adding: int, depth_max: int | None) -> None:
        """With the lock held: refuse messages that a namespace may not hold beside those that it has."""
        if depth_max is None or (depth := self.engine.depth(namespace)) + adding <= depth_max:
            return
        if adding > depth_max:
            raise QuotaExceeded(
                f"{adding} messages at once are more than all that the namespace {namespace!r} may hold, {depth_max}; "
                "make it several, or ask for a larger quota",
                never=True,
            )
        raise QuotaExceeded(
            f"the namespace {namespace!r} holds {depth} messages, and {adding} more are above its {depth_max}; "
            "try again once consumers have caught up",
            retry_after_s=QUOTA_ROOM_RETRY_S,
        )

    def unwaited(self, ticket: Ticket[Any]) -> Ticket[Any]:
        """Have what a ticket waits for recorded soon, and give its answer now."""
        inner = ticket.ticket if isinstance(ticket, Listed) else ticket
        if not isinstance(inner, Recorded) or inner.record.done:
            return ticket
        with self.lock:
            self.record_soon(inner.record)
        return Answer([inner.value] if isinstance(ticket, Listed) else inner.value)

    def record_soon(self, record: Record) -> None:
        """With the lock held: have something recorded soon, with the next frame or by the timer."""
        if not record.done:
            self._loose = record
            soon_us = self.now() + UNWAITED_US
            if self._timer_us is None or soon_us < self._timer_us:
                self.set_timer(soon_us)

    def require_room(self, kind: Kind, size: int) -> None:
        if self.journal is not None:
            if kind is LEASES and not self.journal.has_room(size):
                size += (
                    ACK_BYTES_MAX * self._leased()
                )  # on a full disk, what is handed out can still be acknowledged
            try:
                self.journal.require_room(kind, size)
            except DiskFull:
                if self.upkeep is not None:
                    self.upkeep.press()
                raise
        elif size > FRAME_BYTES_MAX:
            raise BatchTooLarge(
                f"a batch of {size} bytes is over the bound of {FRAME_BYTES_MAX} bytes: make it several"
            )

    @property
    def acked(self) -> int:
        """How many messages were acknowledged since it was opened."""
        gone = sum(totals.acked for totals in self.retired.values())
        return gone + sum(log.acked for log in self.engine.logs.values())

    def require_space(self, size: int, settling: bool) -> None:
        """What the engine asks before messages die or expire, which may take several commits."""
        if self.journal is None:
            return
        try:
            # What expires or is purged leaves the last of the reserve to acknowledging.
            self.journal.require_space(METADATA if settling else MESSAGES, size)
        except DiskFull:
            if self.upkeep is not None:
                self.upkeep.press()
            raise

    def _leased(self) -> int:
        return sum(len(group.leases) for log in self.engine.logs.values() for group in log.groups.values())

    # --- the timer ---

    def wake(self) -> None:
        """Look at the clock now: for clocks that are moved by hand."""
        with self.lock, self.whole:
            record = None if self.failure is not None else self._look_at_the_clock()
        if record is not None:
            record.wait()

    def heed(self) -> None:
        """The clock was moved by hand."""
        with suppress(PenstockError):  # whoever asks next hears of it
            self.wake()

    def set_timer(self, moment_us: int) -> None:
        self._timer_us = moment_us
        if self._timer is None and not isinstance(self.clock, ManualClock):
            timer = threading.Thread(target=self._keep_time, name="penstock-timer", daemon=True)
            try:
                timer.start()
            except RuntimeError as error:
                _LOG.warning(
                    "nothing falls due until a thread can be started, which is tried again: %s", error
                )
                return
            self._timer = timer
        else:
            self._tick.notify_all()

    def _keep_time(self) -> None:
        while self.failure is None:
            with self.lock, self.whole:
                record = self._sleep_or_look()
            if record is not None:
                with suppress(PenstockError):  # everybody else hears of it
                    record.wait()

    def _sleep_or_look(self) -> Record | None:
        if self.failure is not None:
            return None
        if self._timer_us is None:
            self._tick.wait()
        elif self._timer_us > self.now():
            self._tick.wait(min((self._timer_us - self.now()) / SECOND_US, self._nap_s))
        else:
            return self._look_at_the_clock()
        return None

    def _look_at_the_clock(self) -> Record | None:
        """With the lock held: let happen what has fallen due, and end the patience of those who waited long enough.

        What happens by itself has nobody who waits for it, so whoever calls must have it recorded.
        """
        now_us, _ = self.begin(settling=True, turn=True)
        record, self._loose = self._loose, None
        for waiting in self.lines.out_of_patience(now_us):
            self.answer(waiting, NOTHING)
        moments = [moment for moment in (self.lines.next_us, self.engine.next_us) if moment is not None]
        self._timer_us = min(moments, default=None)
        self.settled.notify_all()  # leases may have ended
        return record

    # --- those who wait ---

    def is_watched(self, log: Log) -> bool:
        """With the lock held: whether anything waits for messages of a log, so that the short way must not pass it by."""
        return self.lines.stands_at(log) or any(told is log for told, _ in self.told)

    def wait_in_line(self, waiting: Waiting) -> None:
        """With the lock held: somebody waits until he is answered."""
        self.lines.join(waiting)
        waiting.place[0].plain = None
        if waiting.deadline_us is not None and (
            self._timer_us is None or waiting.deadline_us < self._timer_us
        ):
            self.set_timer(waiting.deadline_us)

    def answer(self, waiting: Waiting, ticket: Ticket[Any]) -> None:
        """With the lock held: end somebody's waiting, unless it has ended."""
        if self.leave(waiting):
            waiting.grant(ticket)

    def leave(self, waiting: Waiting) -> bool:
        """With the lock held: somebody no longer stands in line for a log, which may now be unused."""
        if not self.lines.leave(waiting):
            return False
        log: Log = waiting.place[0]
        if not log.deleted:
            if log.plain is None:
                self.reopen(log)
            now_us = self.now()
            self.engine.use(log, now_us)
            if waiting.place[1] in log.groups:
                cursors.heard(log.groups[waiting.place[1]], waiting.consumer, now_us)
                self.engine.set_alarm(log)
        return True

    # --- beginning and end ---

    def skip_what_was_given_up(self, log: Log) -> None:
        """Offsets that damage may have held are never used again, whatever the engine remembers."""
        if self.journal is not None:
            log.skip_to(self.journal.next_offset(log.number))

    def wake_all(self, error: PenstockError) -> None:
        for waiting in self.lines.everybody():
            if self.lines.leave(waiting):
                waiting.grant(Refused(error))
        self._tick.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Wake those who wait, finish what is under way, keep a snapshot, and let go.

        With a timeout, what is handed out may be settled for so long before. Who closes it once more waits until it is closed.
        """
        with self._closing:
            if self._closed:
                return
            try:
                with self.lock, self.whole:
                    self.draining = self.express_closed = True
                    self.wake_all(BrokerClosed(CLOSED))
                if timeout_s is not None:
                    with self.lock:
                        self.settled.wait_for(self.nothing_is_leased, timeout_s)
            finally:  # an interruption ends the patience, not the closing
                uninterrupted(self._let_go)
                self._closed = True

    def _let_go(self) -> None:
        with self.lock:
            whole = self.failure is None
            self.failure = self.failure or BrokerClosed(CLOSED)
            self._tick.notify_all()
        try:
            if self._timer is not None and self._timer is not threading.current_thread():
                self._timer.join()
            if self.intake is not None:
                self.intake.stop()
            if self.upkeep is not None:
                self.upkeep.stop()
            if whole and self.upkeep is not None:
                with suppress(PenstockError):  # it only saves time when the broker is opened again
                    self.upkeep.last()
        finally:
            if self.journal is not None:
                self.journal.close()

    def nothing_is_leased(self) -> bool:
        logs = self.engine.logs.values()
        return self.failure is not None or not any(g.leases for log in logs for g in log.groups.values())

    def settle_down(self) -> None:
        """After opening: put back what an earlier owner had handed out."""
        with self.lock, self.whole:
            now_us, change = self.now(), Change()
            for log in self.engine.logs.values():
                self.skip_what_was_given_up(log)
            self.engine.settle_down(now_us, change)
            record = self.record(change) if change else None
            self.follow()
        if record is not None:
            record.wait()

    def orphan(self) -> None:
        self.lock = threading.Lock()
        self._tick = self.settled = threading.Condition(self.lock)
        self._closed = True
        self._closing = threading.Lock()
        self.express_closed = True
        if self.intake is not None:
            self.intake.orphan()
        self.failure = ForkedProcess(
            "this broker belongs to the parent process: open your own, or connect to a server"
        )


class _Whole:
    """Stands around every change of the engine. What comes out of one and is no refusal, such as a Ctrl-C, has left it half done."""

    __slots__ = ("_monitor",)

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and not isinstance(error, PenstockError):
            self._monitor.fail(error)


NOTHING: Final[Ticket[Any]] = Answer(None)
_LOG: Final = logging.getLogger("penstock.broker")

_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


def _orphan_all() -> None:
    for monitor in list(_monitors):
        monitor.orphan()


at_fork(_orphan_all)
