"""Everything at a glance, for whoever watches a broker: how many messages went where, what waits, and how the journal is.

Theory of operation
-------------------
Whoever publishes and consumes counts as he goes, in whole commands (see `engine.counts`, `journal.meter`); a survey reads what they counted. It changes
nothing, not even what has fallen due, and answers of a broker that failed as well.

The lock is held for a few logs at a time, so that nobody waits for a survey of ten thousand queues. So a log's own numbers belong
together; two logs are seen at slightly different moments.

The names of queues, groups and readers are anybody's. A survey is bounded: the logs that were declared first are in it, always the same ones, and it says
how many it left out. Totals by namespace hold everything, what was left out and what was deleted since the broker was opened included.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.engine.engine import dead_letter_target
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.model.commands import Kind
from penstock.model.stats import Bounds, Flow, GroupView, LeftOut, LogView, Survey
from penstock.names import is_dead_letter_name

if TYPE_CHECKING:
    from penstock.broker.monitor import Monitor

#: Logs that are looked at before others may do something: well under a millisecond.
AT_ONCE: Final = 50


def take_survey(monitor: Monitor, namespaces: Collection[str] | None, bounds: Bounds) -> Survey:
    """See the logs of some namespaces, or of all (None); then also the journal, which is everybody's."""
    with monitor.lock:
        up = monitor.failure is None
        found = [
            log for log in monitor.engine.logs.values() if namespaces is None or log.namespace in namespaces
        ]
        kinds: dict[Kind, int] = {"queue": 0, "topic": 0}
        for log in found:
            kinds[log.kind] += 1
        survey = Survey(up, {}, [], LeftOut(), kinds, None, None, monitor.now())
        for name, gone in monitor.retired.items():
            if namespaces is None or name in namespaces:
                flow = survey.totals.setdefault(name, Flow())
                flow.add(gone.published_since, gone.delivered, gone.acked, gone.counts)
    room = bounds.cursors
    for start in range(0, len(found), AT_ONCE):
        with monitor.lock:
            now_us = monitor.now()
            for log in found[start : start + AT_ONCE]:
                room = _see(monitor, log, survey, bounds, room, now_us)
    _bound_namespaces(survey, bounds)
    if namespaces is None and monitor.journal is not None:
        survey.journal, survey.meter = monitor.journal.stats(), monitor.journal.meter
    return survey


def _see(monitor: Monitor, log: Log, survey: Survey, bounds: Bounds, room: int, now_us: int) -> int:
    """With the lock held: add a log to a survey; for how many more groups and readers there is room."""
    flow = Flow(log.published - log.published_before, log.delivered, log.acked, log.counts)
    total = survey.totals.setdefault(log.namespace, Flow())
    total.add(flow.published, flow.delivered, flow.acked, flow.counts)
    if log.deleted:  # meanwhile: what it counted is not among what was retired yet
        return room
    if len(survey.logs) >= bounds.logs:
        survey.left_out.logs += 1
        return room
    shown = min(room, bounds.cursors_of_one)
    groups = [_group(log, group, now_us) for group in list(log.groups.values())[:shown]]
    left = shown - len(groups)
    readers = {name: max(0, log.next_offset - at.offset) for name, at in list(log.readers.items())[:left]}
    survey.left_out.groups += len(log.groups) - len(groups)
    survey.left_out.readers += len(log.readers) - len(readers)
    flow.counts = msgspec.structs.replace(log.counts)
    survey.logs.append(_log(monitor, log, flow, groups, readers))
    return room - len(groups) - len(readers)


def _log(monitor: Monitor, log: Log, flow: Flow, groups: list[GroupView], readers: dict[str, int]) -> LogView:
    behind = min(log.groups.values(), key=lambda group: len(group.settled), default=None)
    dead = None
    if not is_dead_letter_name(log.name):
        dead = monitor.engine.find(log.namespace, dead_letter_target(log))
    return LogView(
        namespace=log.namespace,
        name=log.name,
        kind=log.kind,
        flow=flow,
        ready=_ready(log, behind) if behind else 0,
        delayed=log.delayed_count,
        leased=len(behind.leases) if behind else 0,
        retrying=behind.retrying if behind else 0,
        dead=dead.depth if dead is not None else 0,
        consumers=log.consumers,
        waiting=log.receivers,
        groups=groups,
        readers=readers,
    )


def _ready(log: Log, group: Group) -> int:
    """What has arrived, whether the group has looked at it or not."""
    return group.ready + max(0, log.arrived - group.seen)


def _group(log: Log, group: Group, now_us: int) -> GroupView:
    oldest_us = group.leases.oldest_us
    return GroupView(
        name=group.name,
        lag=log.next_offset - len(group.settled),
        ready=_ready(log, group),
        leased=len(group.leases),
        retrying=group.retrying,
        consumers=len(group.members),
        oldest_lease_us=None if oldest_us is None else max(0, now_us - oldest_us),
    )


def _bound_namespaces(survey: Survey, bounds: Bounds) -> None:
    """Those with a queue first: in the order of declaring."""
    names = list(dict.fromkeys([log.namespace for log in survey.logs] + list(survey.totals)))
    for name in names[bounds.namespaces :]:
        del survey.totals[name]
        survey.left_out.namespaces += 1
