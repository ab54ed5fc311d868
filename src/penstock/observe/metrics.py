"""Metrics for Prometheus: nothing is done for them before somebody asks.

Theory of operation
-------------------
A `Metrics` is a collector of prometheus_client. At a scrape it takes a survey of the broker (see `broker.survey`), which reads what commands and
commits count anyway, and writes it down in Prometheus' words. Every metric is a row of `TABLE`: its name, type, labels and meaning; the reference page is
checked against that.

Who may see what is the caller's business: `render(namespaces)` shows what belongs to some namespaces, and nothing of the process; `render(None)` shows everything.

Only requests are counted as they come (`request`), in plain dictionaries: routes are the server's own templates, so their number is bounded by its code, and by
`ROUTES_MAX` should that be wrong.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from penstock.broker.port import Port
from penstock.clock import SECOND_US
from penstock.limits import FRAME_ROWS_MAX
from penstock.model.damage import JournalStats, Report
from penstock.model.queries import Overview
from penstock.model.stats import COUNTED, Bounds, Flow, GroupView, Histogram, LogView, Meter, Survey

#: What `render` gives, for the header of that name.
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

#: Different (route, method) pairs that are counted apart; more than any version of the server has.
ROUTES_MAX: Final = 500
OTHER: Final = "other"

#: Upper bounds of a request's duration, in seconds: from a read in memory to a long poll.
REQUEST_BUCKETS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
    30.0,
    60.0,
)

#: Powers of two that are shown, as bounds: of a commit's nanoseconds, from 16 µs to 34 s, and of its messages, up to what a frame holds.
LATENCY_BITS: Final = range(14, 36)
SIZE_BITS: Final = range(1, FRAME_ROWS_MAX.bit_length())

Type = Literal["counter", "gauge", "histogram"]
QUEUE: Final = ("namespace", "queue")
GROUP: Final = ("namespace", "queue", "group")


class Row(NamedTuple):
    """One metric. A counter's samples end in `_total`, as its name does."""

    name: str
    type: Type
    labels: tuple[str, ...]
    meaning: str


#: How messages are counted, by the words of `Flow` and `Counts`; the same for a queue and for a namespace as a whole.
EVENTS: Final[dict[str, str]] = {
    "published": "Messages that were published",
    "delivered": "Messages that were handed out to consumers, each attempt anew",
    "acked": "Messages that were acknowledged, or settled when they were handed out",
    "nacked": "Messages of which a consumer said that they failed, whatever became of them",
    "rejected": "Messages of which a consumer said that they failed for good",
    "returned": "Messages that were given back unsettled, by a consumer or because it went",
    "lease_expired": "Messages that nobody settled in time, or that an earlier owner of the journal had in hand",
    "dead_lettered": "Messages that were moved from here to the dead letters",
    "expired": "Messages whose time was over: dropped, or moved to the dead letters, where they count too",
    "dropped": "Messages that were dropped to make room, could not be read any more, or were rejected where there are no dead letters",
    "purged": "Messages that were purged",
    "redriven": "Messages that were moved from these dead letters to where they failed",
    "deduplicated": "Messages that were published again, known by their dedup_id, and not stored",
}

TABLE: Final[tuple[Row, ...]] = (
    *(Row(f"penstock_messages_{event}_total", "counter", QUEUE, meaning) for event, meaning in EVENTS.items()),
    Row("penstock_namespace_messages_total", "counter", ("namespace", "event"), "The same for a namespace as a whole: what was deleted, or is left out here, included"),
    Row("penstock_queue_messages", "gauge", (*QUEUE, "state"), "Messages that the group furthest behind has not settled, by state: ready, delayed, leased, retrying; and dead, in its dead letters"),
    Row("penstock_queue_consumers", "gauge", QUEUE, "Consumers that are attached, in all groups"),
    Row("penstock_queue_waiting", "gauge", QUEUE, "Receives that wait for a message"),
    Row("penstock_group_lag", "gauge", GROUP, "Messages that a group has not settled; with a filter, at the most"),
    Row("penstock_group_messages", "gauge", (*GROUP, "state"), "Messages of a group, by state: ready, leased, retrying"),
    Row("penstock_group_consumers", "gauge", GROUP, "Consumers of a group"),
    Row("penstock_group_oldest_lease_seconds", "gauge", GROUP, "How long the message has been in hand that was handed out first; 0 if none is"),
    Row("penstock_reader_lag", "gauge", ("namespace", "queue", "reader"), "Messages that were published behind what a reader has committed"),
    Row("penstock_metrics_left_out", "gauge", ("what",), "Namespaces, queues, groups and readers that are not shown here, because there are too many"),
    Row("penstock_build_info", "gauge", ("version",), "Always 1"),
    Row("penstock_up", "gauge", (), "Whether the broker takes commands: 0 once it failed, or was closed"),
    Row("penstock_queues", "gauge", ("kind",), "Queues and topics there are, those left out included"),
    Row("penstock_journal_commit_seconds", "histogram", (), "How long a commit took until it was synced, of those that somebody waits for: publishes and acks, not leases"),
    Row("penstock_journal_sync_seconds", "histogram", (), "How long a sync of the journal took, whoever waited for it; its count is how often it was synced"),
    Row("penstock_journal_commit_messages", "histogram", (), "Messages published in one commit, of the commits that have any"),
    Row("penstock_journal_written_bytes_total", "counter", (), "Bytes that were committed"),
    Row("penstock_journal_bytes", "gauge", (), "Bytes in the journal's segments"),
    Row("penstock_journal_segments", "gauge", (), "Segments of the journal"),
    Row("penstock_journal_messages", "gauge", (), "Messages in the journal's segments, settled ones that were not cleaned yet included"),
    Row("penstock_journal_sequence", "gauge", (), "Number of the last commit"),
    Row("penstock_journal_epoch", "gauge", (), "How many owners the journal has had"),
    Row("penstock_journal_snapshot_age_seconds", "gauge", (), "Since the newest snapshot; not there if there is none"),
    Row("penstock_journal_replay_commits", "gauge", (), "Commits behind the newest snapshot: what a crash would have to be replayed from"),
    Row("penstock_journal_damage", "gauge", ("what",), "Damaged ranges that are known: rot, torn, missing, header or state"),
    Row("penstock_journal_damaged_messages", "gauge", (), "Messages in them"),
    Row("penstock_recovery_seconds", "gauge", (), "How long opening the journal took"),
    Row("penstock_recovery_frames", "gauge", (), "Commits that were replayed by that"),
    Row("penstock_recovery_messages", "gauge", (), "Messages in them"),
    Row("penstock_recovery_rescued_frames", "gauge", (), "Commits above the mark that were copied and synced"),
    Row("penstock_recovery_cut", "gauge", (), "Torn ends, never acknowledged, that were cut off"),
    Row("penstock_recovery_quarantined", "gauge", (), "Ranges of which a copy was set aside: torn ends and damage"),
    Row("penstock_recovery_info", "gauge", ("end",), "Always 1; how the journal had been left: new, clean, torn or rot"),
    Row("penstock_http_requests_total", "counter", ("route", "method", "status"), "Requests that were answered, by the route's template"),
    Row("penstock_connections_refused_total", "counter", ("reason",), "Connections that were refused or cut, by why"),
    Row("penstock_http_request_seconds", "histogram", ("route", "method"), "How long they took, waiting for messages included"),
)  # fmt: skip
ROWS: Final = {row.name: row for row in TABLE}


Value = tuple[tuple[str, ...], float]


class Timings:
    """Requests to one route by one method."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(REQUEST_BUCKETS_S) + 1)
        self.seconds = 0.0


class Metrics(Collector):
    """What there is to know of a broker, for Prometheus. May be registered with any registry of prometheus_client.

    >>> import penstock
    >>> with penstock.open() as broker:
    ...     _ = broker.queue("orders").publish(b"a valve")
    ...     metrics = Metrics(broker._port, version="1.0")
    ...     print([line for line in metrics.render(None).decode().splitlines() if line.startswith("penstock_messages_pub")])
    ['penstock_messages_published_total{namespace="default",queue="orders"} 1.0']
    """

    def __init__(self, port: Port, *, version: str, bounds: Bounds | None = None) -> None:
        self._port = port
        self._version = version
        self._bounds = bounds or Bounds()
        self._lock = threading.Lock()
        # Who counts refused connections sets this to what gives his numbers, by reason.
        self.refusals: Callable[[], Mapping[str, int]] = dict
        self._requests: dict[tuple[str, str, int], int] = {}
        self._timings: dict[tuple[str, str], Timings] = {}
        # Of its own: what else the process has registered is not ours to show.
        self._registry = CollectorRegistry()
        self._process = ProcessCollector(registry=None)
        self._registry.register(self)

    # --- counting requests ---

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request was answered. `route` is the template, never the path, which is anybody's text."""
        timings = self._timings.get((route, method))
        if timings is None:
            route, method, timings = self._begin(route, method)
        with self._lock:
            timings.buckets[bisect_left(REQUEST_BUCKETS_S, seconds)] += 1
            timings.seconds += seconds
            key = (route, method, status)
            self._requests[key] = self._requests.get(key, 0) + 1

    def _begin(self, route: str, method: str) -> tuple[str, str, Timings]:
        with self._lock:
            if len(self._timings) >= ROUTES_MAX:
                route, method = OTHER, OTHER
            return route, method, self._timings.setdefault((route, method), Timings())

    # --- asking ---

    def render(self, namespaces: Collection[str] | None) -> bytes:
        """The text that Prometheus reads: of some namespaces, or of all and of the process itself (None).

        It takes about 15 µs for each time series: in a server, not on the loop.
        """
        return generate_latest(self._registry if namespaces is None else _Families(self._of(namespaces)))

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering it does not take a survey."""
        return ()

    def collect(self) -> Iterable[Metric]:
        yield from self._of(None)
        yield from self._process.collect()

    def _of(self, namespaces: Collection[str] | None) -> list[Metric]:
        survey = self._port.describe(Overview(namespaces, self._bounds)).wait()
        found = [*_flows(survey), *_queues(survey.logs), *_groups(survey.logs), *_left_out(survey)]
        if namespaces is None:
            found += [*self._process_wide(survey), *self._http()]
            if survey.journal is not None:
                found += [*_journal(survey.journal, survey.now_us), *_recovery(survey.journal.recovery)]
                found += _commits(survey.meter) if survey.meter is not None else []
        return found

    def _process_wide(self, survey: Survey) -> Iterator[Metric]:
        yield _family("penstock_build_info", [((self._version,), 1)])
        yield _family("penstock_up", [((), survey.up)])
        yield _family("penstock_queues", [((kind,), count) for kind, count in survey.kinds.items()])

    def _http(self) -> Iterator[Metric]:
        with self._lock:
            requests = list(self._requests.items())
            timings = [(key, list(one.buckets), one.seconds) for key, one in self._timings.items()]
        yield _family(
            "penstock_http_requests_total",
            [((route, method, str(status)), count) for (route, method, status), count in requests],
        )
        yield _family(
            "penstock_connections_refused_total", [((why,), n) for why, n in self.refusals().items()]
        )
        durations = _histogram("penstock_http_request_seconds")
        for key, buckets, seconds in timings:
            durations.add_metric(key, _cumulated(buckets, REQUEST_BUCKETS_S), seconds)
        yield durations


class _Families(Collector):
    """Metrics that were collected already."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


# --- of namespaces ---


def _flows(survey: Survey) -> Iterator[Metric]:
    for event in EVENTS:
        samples = [((log.namespace, log.name), float(_count(log.flow, event))) for log in survey.logs]
        yield _family(f"penstock_messages_{event}_total", samples)
    yield _family(
        "penstock_namespace_messages_total",
        [((name, event), _count(flow, event)) for name, flow in survey.totals.items() for event in EVENTS],
    )


def _count(flow: Flow, event: str) -> int:
    found: int = getattr(flow.counts if event in COUNTED else flow, event)
    return found


def _queues(logs: list[LogView]) -> Iterator[Metric]:
    states = ("ready", "delayed", "leased", "retrying", "dead")
    yield _family(
        "penstock_queue_messages",
        [((log.namespace, log.name, state), getattr(log, state)) for log in logs for state in states],
    )
    yield _family("penstock_queue_consumers", [((log.namespace, log.name), log.consumers) for log in logs])
    yield _family("penstock_queue_waiting", [((log.namespace, log.name), log.waiting) for log in logs])


def _groups(logs: list[LogView]) -> Iterator[Metric]:
    found: list[tuple[tuple[str, str, str], GroupView]] = [
        ((log.namespace, log.name, group.name), group) for log in logs for group in log.groups
    ]
    yield _family("penstock_group_lag", [(labels, group.lag) for labels, group in found])
    yield _family(
        "penstock_group_messages",
        [
            ((*labels, state), getattr(group, state))
            for labels, group in found
            for state in ("ready", "leased", "retrying")
        ],
    )
    yield _family("penstock_group_consumers", [(labels, group.consumers) for labels, group in found])
    yield _family(
        "penstock_group_oldest_lease_seconds",
        [(labels, (group.oldest_lease_us or 0) / SECOND_US) for labels, group in found],
    )
    yield _family(
        "penstock_reader_lag",
        [((log.namespace, log.name, name), lag) for log in logs for name, lag in log.readers.items()],
    )


def _left_out(survey: Survey) -> Iterator[Metric]:
    left = survey.left_out
    yield _family(
        "penstock_metrics_left_out",
        [
            (("namespaces",), left.namespaces),
            (("queues",), left.logs),
            (("groups",), left.groups),
            (("readers",), left.readers),
        ],
    )


# --- of the journal ---


def _commits(counted: Meter) -> Iterator[Metric]:
    bounds = {bits: 2**bits / 1e9 for bits in LATENCY_BITS}
    for name, taken in (("commit", counted.commits), ("sync", counted.syncs)):
        durations = _histogram(f"penstock_journal_{name}_seconds")
        durations.add_metric([], _by_bits(taken, bounds), taken.total / 1e9)
        yield durations
    sizes = _histogram("penstock_journal_commit_messages")
    most = {
        bits: 2**bits - 1 for bits in SIZE_BITS
    }  # whole numbers: what is below a power of two is at most one less
    sizes.add_metric([], _by_bits(counted.messages, most), counted.messages.total)
    yield sizes


def _journal(stats: JournalStats, now_us: int) -> Iterator[Metric]:
    newest = stats.snapshots[-1] if stats.snapshots else 0
    kinds = {damage.what for damage in stats.damage}
    figures: dict[str, list[Value]] = {
        "written_bytes_total": [((), stats.written)],
        "bytes": [((), stats.bytes)],
        "segments": [((), stats.segments)],
        "messages": [((), stats.messages)],
        "sequence": [((), stats.sequence)],
        "epoch": [((), stats.epoch)],
        "replay_commits": [((), stats.sequence - newest)],
        "damage": [((kind,), sum(one.what == kind for one in stats.damage)) for kind in sorted(kinds)],
        "damaged_messages": [((), stats.damaged_messages)],
    }
    if stats.snapshot_us is not None:
        figures["snapshot_age_seconds"] = [((), max(0, now_us - stats.snapshot_us) / SECOND_US)]
    for name, samples in figures.items():
        yield _family(f"penstock_journal_{name}", samples)


def _recovery(report: Report) -> Iterator[Metric]:
    figures = {
        "seconds": report.seconds,
        "frames": report.frames,
        "messages": report.messages,
        "rescued_frames": report.rescued_frames,
        "cut": len(report.cut),
        "quarantined": sum(one.copy is not None for one in (*report.cut, *report.damage)),
    }
    for name, value in figures.items():
        yield _family(f"penstock_recovery_{name}", [((), value)])
    yield _family("penstock_recovery_info", [((report.end,), 1)])


# --- in Prometheus' words ---


def _family(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    row = ROWS[name]
    family: CounterMetricFamily | GaugeMetricFamily
    if row.type == "counter":
        family = CounterMetricFamily(name, row.meaning, labels=row.labels)
    else:
        family = GaugeMetricFamily(name, row.meaning, labels=row.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family


def _histogram(name: str) -> HistogramMetricFamily:
    row = ROWS[name]
    return HistogramMetricFamily(name, row.meaning, labels=row.labels)


def _by_bits(counted: Histogram, bounds: dict[int, float]) -> list[tuple[str, float]]:
    """What is at or below each bound, of numbers that were counted by their bits."""
    sums = list(accumulate(counted.buckets))
    return [
        *((str(float(bound)), float(sums[bits])) for bits, bound in bounds.items()),
        ("+Inf", float(sums[-1])),
    ]


def _cumulated(buckets: list[int], bounds: Iterable[float]) -> list[tuple[str, float]]:
    """Prometheus wants to know how many are at or below each bound."""
    names = [*map(str, map(float, bounds)), "+Inf"]
    return list(zip(names, map(float, accumulate(buckets)), strict=True))
