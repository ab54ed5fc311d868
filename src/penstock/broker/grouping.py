"""Groups of queues and subscriptions of topics: made, ended, sent elsewhere, described."""

from __future__ import annotations

from typing import Any

from penstock.broker.contents import SECTION_OVERHEAD_BYTES
from penstock.broker.handing import Handing, alive, no_group
from penstock.broker.monitor import Monitor
from penstock.broker.port import GroupStats, Handle
from penstock.broker.reading import Reading
from penstock.broker.ticket import Answer, Recorded, Ticket
from penstock.engine import cursors
from penstock.engine.filter import compile_filter
from penstock.engine.group import Group, Terms
from penstock.engine.log import Log
from penstock.errors import PolicyConflict
from penstock.journal.kinds import METADATA


class Grouping:
    """What makes and ends the groups of a broker."""

    def __init__(self, monitor: Monitor, handing: Handing, reading: Reading) -> None:
        self.monitor = monitor
        self._handing = handing
        self._reading = reading

    def open_group(
        self, log: Handle, group: str, *, filter: str | None, strategy: Any, start: Any, durable: bool,
        consumer: str | None = None, silence_us: int | None = None,
    ) -> Ticket[str | None]:  # fmt: skip
        # As it is stored, it does not matter how it was spaced and quoted.
        wanted = None if filter is None else str(compile_filter(filter))
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            here = found.groups.get(group)
            if here is not None:
                _require_same(found, here, wanted, strategy, durable)
            else:
                engine = self.monitor.engine
                offset = 0 if start == "earliest" else self._reading.offset_of(found, start)
                begin = cursors.beginning(engine, found, group, offset, Terms(wanted, strategy))
                self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + len(begin.body))
                here = cursors.subscribe(engine, found, group, begin, now_us, change, durable=durable)
            name = None if consumer is None else cursors.attach(here, consumer, now_us, silence_us)
            if silence_us is not None:
                self.monitor.engine.set_alarm(found)
            if not durable:
                self.monitor.follow()
                return Answer(name)
            # It may just have been made, by somebody else, and not be durable yet.
            return Recorded(name, self.monitor.record(change))

    def close_group(self, log: Handle, group: str) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            if group not in found.groups:
                raise no_group(found, group)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES)
            cursors.unsubscribe(self.monitor.engine, found, found.groups[group], now_us, change)
            return Recorded(None, self.monitor.record(change))

    def seek(self, log: Handle, group: str, place: Any) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            here = self._handing.group_of(found, group, now_us)
            engine = self.monitor.engine
            offset = self._reading.offset_of(found, place)
            begin = cursors.beginning(engine, found, group, offset, here.terms)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + len(begin.body))
            cursors.seek(engine, found, here, begin, now_us, change)
            return Recorded(None, self.monitor.record(change))

    def lag(self, log: Handle, group: str) -> Ticket[int]:
        with self.monitor.lock, self.monitor.whole:
            self.monitor.begin()
            found = alive(log)
            if group not in found.groups:
                raise no_group(found, group)
            return Answer(found.next_offset - len(found.groups[group].settled))

    def heartbeat(self, log: Handle, group: str, consumer: str) -> Ticket[bool]:
        with self.monitor.lock, self.monitor.whole:
            now_us, _ = self.monitor.begin(settling=True)
            here = alive(log).groups.get(group)
            if here is None or consumer not in here.members:
                return Answer(False)
            cursors.heard(here, consumer, now_us)
            return Answer(True)


def describe(log: Log) -> dict[str, GroupStats]:
    """With the lock held: what each group of a log has before it."""
    return {
        group.name: GroupStats(
            lag=log.next_offset - len(group.settled),
            lag_is_exact=group.filter is None,
            ready=group.ready,
            leased=len(group.leases),
            retrying=group.retrying,
            consumers=list(group.members),
            filter=group.terms.filter,
            durable=group.durable,
        )
        for group in log.all_groups()
    }


def _require_same(log: Log, group: Group, filter: str | None, strategy: Any, durable: bool) -> None:
    given = {"filter": filter, "strategy": strategy, "durable": durable}
    stored = {"filter": group.terms.filter, "strategy": group.terms.strategy, "durable": group.durable}
    for field, value in given.items():
        if value != stored[field] and (value is not None or field == "filter"):
            what = "subscription" if log.kind == "topic" else "group"
            raise PolicyConflict(
                f"the {what} {group.name!r} of {log.name!r} exists with {field}={stored[field]!r}, not {value!r}: "
                "give the same, or end it first"
            )
