"""`penstock.open`: a broker in memory, or over a directory that this process then owns."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

from penstock import argument, limits
from penstock.broker import sync
from penstock.broker.contents import choosing, fetching
from penstock.broker.embedded import Embedded
from penstock.broker.intake import Intake
from penstock.broker.ledger import events_of
from penstock.broker.monitor import Monitor
from penstock.broker.scheduling import recur
from penstock.broker.shelf import JournalShelf, MemoryShelf
from penstock.broker.trace import Tracer
from penstock.broker.upkeep import Upkeep
from penstock.clock import Clock, ManualClock, SystemClock
from penstock.engine.change import Admits
from penstock.engine.engine import Engine
from penstock.engine.history import replay as take_in
from penstock.errors import InvalidArgument
from penstock.ids import SnowflakeIds
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal, check_settings
from penstock.journal.tail import Durability
from penstock.model.damage import NEW
from penstock.policy import Policy

_LOG: Final = logging.getLogger("penstock.broker")


def open(  # noqa: A001  # it is the name in the API
    path: str | Path | None = None,
    *,
    durability: Durability = "commit",
    commit_interval_ms: float = limits.COMMIT_INTERVAL_MS,
    segment_bytes: int = limits.SEGMENT_BYTES,
    node: int = 0,
    clock: Clock | None = None,
    trace: bool | None = None,
) -> sync.Broker:
    """Open the queues and topics in a directory, or in memory if there is none.

    `trace` keeps timelines of recent messages (`Broker.trace`): by default on a disk, where it costs next to nothing, and not in memory.

    >>> with open() as broker:
    ...     orders = broker.queue("orders")
    ...     _ = orders.publish(b"an order")
    ...     delivery = orders.receive()
    ...     delivery.payload
    ...     delivery.ack()
    b'an order'
    """
    return sync.Broker(
        port(
            path, clock, node, trace, durability=durability, commit_interval_ms=commit_interval_ms, segment_bytes=segment_bytes
        )
    )  # fmt: skip


def port(
    path: str | Path | None,
    clock: Clock | None,
    node: int,
    trace: bool | None = None,
    *,
    defaults: Policy | None = None,
    admits: Admits | None = None,
    **settings: Any,
) -> Embedded:
    """A broker's port. `defaults` is the policy of what is made in it, as far as a caller does not say it himself; `admits` is asked for each message that recurs."""
    if issubclass(type(clock), type) or not all(
        clock is None or callable(getattr(clock, name, None)) for name in ("now_us", "monotonic_us")
    ):
        raise InvalidArgument(
            f"clock is {argument.quoted(clock)}; give one such as penstock.clock.ManualClock()"
        )
    # What failed together in several processes must not be retried together. Who brings a clock wants to see the same again.
    seed = 0 if clock is not None else int.from_bytes(os.urandom(8), "little")
    if type(trace) is not bool and trace is not None:
        raise InvalidArgument(f"trace is {argument.quoted(trace)}; give True or False")
    if path is None:
        check_settings(**settings)  # a mistake is one in memory too
        return in_memory(clock, node=node, seed=seed, trace=bool(trace), defaults=defaults, admits=admits)
    traced = True if trace is None else trace
    return on_disk(
        _directory(path),
        clock,
        node=node,
        seed=seed,
        trace=traced,
        defaults=defaults,
        admits=admits,
        **settings,
    )


def _directory(path: object) -> Path:
    try:
        named = argument.text(os.fspath(path))  # type: ignore[call-overload]
        if named and "\0" not in named and os.fsencode(named):
            return Path(named)
    except Exception:  # anybody's path, and texts that are no file's name
        pass
    raise InvalidArgument(
        f"path is {argument.quoted(path)}; give a directory as a str or a Path, or None to keep everything in memory"
    )


def in_memory(
    clock: Clock | None = None,
    *,
    node: int = 0,
    seed: int = 0,
    trace: bool = False,
    defaults: Policy | None = None,
    admits: Admits | None = None,
) -> Embedded:
    """A broker that forgets everything when it is closed."""
    clock = clock or SystemClock()
    ids = SnowflakeIds(node, clock)
    shelf = MemoryShelf()
    engine = Engine(
        seed=seed,
        fetch=fetching(shelf),
        take_ids=ids.take,
        make_room=lambda _size, _settling: None,
        choose=choosing(shelf),
        recur=recur(ids.take),
        admits=admits,
    )
    broker = Embedded(Monitor(None, shelf, clock, engine, ids), traced=trace)
    broker.monitor.defaults = defaults or Policy()
    if trace:
        broker.monitor.tracer = Tracer()
    _follow(clock, broker.monitor)
    return broker


def on_disk(
    path: str | Path,
    clock: Clock | None = None,
    *,
    node: int = 0,
    seed: int = 0,
    trace: bool = True,
    defaults: Policy | None = None,
    admits: Admits | None = None,
    **settings: Any,
) -> Embedded:
    """A broker over the journal in a directory, which this process then owns."""
    clock = clock or SystemClock()
    ids = SnowflakeIds(node, clock)
    shelf = JournalShelf()
    engine = Engine(
        seed=seed,
        fetch=fetching(shelf),
        take_ids=ids.take,
        make_room=lambda _size, _settling: None,  # replaying asks for none; then the monitor answers
        choose=choosing(shelf),
        recur=recur(ids.take),
        admits=admits,
    )
    tracer = Tracer() if trace else None

    def name_of(number: int) -> tuple[str, str] | None:
        log = engine.logs.get(number)
        return None if log is None else (log.namespace, log.name)

    def replay(frame: Frame) -> None:
        events = list(events_of(frame, payloads_of=lambda log: sizes_matter(engine, log)))
        for event in events:
            take_in(engine, event, frame.header.time_us)
        if tracer is not None:
            tracer.note(events, frame.header.time_us, name_of)

    journal = Journal(path, restore=engine.restore, replay=replay, clock=clock, **settings)
    try:
        ids.after(engine.last_id)
        engine.begin_epoch(journal.epoch)
        shelf.journal = journal
        monitor = Monitor(journal, shelf, clock, engine, ids)
        monitor.tracer = tracer
        monitor.defaults = defaults or Policy()
        broker = Embedded(monitor)
        _log_recovery(journal, engine)
        monitor.settle_down()
        journal.tell_of_failure(monitor.hear_of_failure)
        monitor.upkeep = Upkeep(monitor, journal)
        _follow(clock, monitor)
        monitor.intake = Intake(monitor, journal, broker.commit_position)
    except BaseException:
        journal.close()
        raise
    try:
        monitor.intake.begin()
        if journal.recovery.end != NEW:
            monitor.upkeep.look()
    except BaseException:  # such as a Ctrl-C while it takes in much
        broker.close()
        raise
    return broker


def sizes_matter(engine: Engine, number: int) -> bool:
    """Whether replaying needs the sizes of a log's payloads."""
    log = engine.logs.get(number)
    return log is not None and (
        log.policy.max_bytes is not None
        or log.policy.retain_bytes is not None
        or log.policy.retain_seconds is not None
    )


def _log_recovery(journal: Journal, engine: Engine) -> None:
    """Log what was read again if the last owner kept no snapshot at its end, as after a kill."""
    report = journal.recovery
    if report.frames:
        leases = sum(len(group.leases) for log in engine.logs.values() for group in log.groups.values())
        _LOG.info(
            "recovered %s in %.1f s: read %d commits with %d messages since the last snapshot; ended the leases of %d messages",
            journal.directory.path, report.seconds, report.frames, report.messages, leases,
        )  # fmt: skip


def _follow(clock: Clock, monitor: Monitor) -> None:
    """A clock that is moved by hand says so: there is no timer then."""
    if isinstance(clock, ManualClock):
        clock.tell(monitor.heed)
