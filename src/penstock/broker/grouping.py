"""Groups of queues and subscriptions of topics: made, ended, sent elsewhere, described."""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.contents import SECTION_OVERHEAD_BYTES
from penstock.broker.handing import Handing, alive, no_group
from penstock.broker.monitor import Monitor
from penstock.broker.reading import Reading
from penstock.broker.ticket import Answer, Recorded, Ticket
from penstock.clock import microseconds
from penstock.engine import cursors
from penstock.engine.filter import compile_filter
from penstock.engine.group import Group, Terms
from penstock.engine.log import Log
from penstock.errors import PolicyConflict
from penstock.journal.kinds import METADATA
from penstock.model.commands import CloseGroup, Handle, OpenGroup, Place, Seek
from penstock.model.queries import Lag
from penstock.model.stats import GroupStats
from penstock.policy import checked

#: What is published from now on.
LATEST: Final = Place(at="latest")


class Grouping:
    """What makes and ends the groups of a broker."""

    def __init__(self, monitor: Monitor, handing: Handing, reading: Reading) -> None:
        self.monitor = monitor
        self._handing = handing
        self._reading = reading

    def open_group(self, log: Handle, command: OpenGroup) -> Ticket[str | None]:
        # As it is stored, it does not matter how it was spaced and quoted.
        wanted = None if command.filter is None else str(compile_filter(command.filter))
        name, durable, strategy = command.group, command.durable, _strategy(command.strategy)
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            here = found.groups.get(name)
            if here is not None:
                _require_same(found, here, wanted, strategy, durable)
            else:
                engine = self.monitor.engine
                start = command.start or LATEST
                offset = 0 if start.at == "earliest" else self._reading.offset_of(found, start)
                begin = cursors.beginning(engine, found, name, offset, Terms(wanted, strategy))
                self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + len(begin.body))
                here = cursors.subscribe(engine, found, name, begin, now_us, change, durable=durable)
            consumer = None
            if command.consumer is not None:
                consumer = cursors.attach(here, command.consumer, now_us, microseconds(command.silence))
                if command.silence is not None:
                    self.monitor.engine.set_alarm(found)
            if not durable:
                self.monitor.follow()
                return Answer(consumer)
            # Another caller may have just made it, and it may not be durable yet.
            return Recorded(consumer, self.monitor.record(change))

    def close_group(self, log: Handle, command: CloseGroup) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            if command.group not in found.groups:
                raise no_group(found, command.group)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES)
            cursors.unsubscribe(self.monitor.engine, found, found.groups[command.group], now_us, change)
            return Recorded(None, self.monitor.record(change))

    def seek(self, log: Handle, command: Seek) -> Ticket[None]:
        with self.monitor.lock, self.monitor.whole:
            now_us, change = self.monitor.begin()
            found = alive(log)
            here = self._handing.group_of(found, command.group, now_us)
            engine = self.monitor.engine
            offset = self._reading.offset_of(found, command.place)
            begin = cursors.beginning(engine, found, command.group, offset, here.terms)
            self.monitor.require_room(METADATA, SECTION_OVERHEAD_BYTES + len(begin.body))
            cursors.seek(engine, found, here, begin, now_us, change)
            return Recorded(None, self.monitor.record(change))

    def lag(self, query: Lag) -> int:
        """With the lock held: how many messages a group has not settled."""
        found = alive(query.log)
        if query.group not in found.groups:
            raise no_group(found, query.group)
        return found.next_offset - len(found.groups[query.group].settled)

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


def _strategy(given: str | None) -> Any:
    """Check how a group's consumers share messages: None as the policy says."""
    return None if given is None else checked({"strategy": given})["strategy"]


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
