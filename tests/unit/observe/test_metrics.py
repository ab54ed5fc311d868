"""Every number, after a history that is known."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import penstock
from penstock.broker import survey
from penstock.broker.handing import alive
from penstock.clock import ManualClock
from penstock.model.stats import Bounds
from penstock.observe import metrics as module
from penstock.observe.metrics import EVENTS, TABLE, Metrics
from tests.unit.observe.scrape import scrape

HISTORY = ["memory", "disk"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=HISTORY)
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[penstock.Broker]:
    with penstock.open(None if request.param == "memory" else tmp_path, clock=clock) as found:
        yield found


def metrics_of(broker: penstock.Broker, **settings: Any) -> Metrics:
    return Metrics(broker._port, version="1.2.3", **settings)


def counted(broker: penstock.Broker, queue: str = "orders") -> dict[str, float]:
    """What was counted of a queue, without what was not."""
    found = scrape(metrics_of(broker))
    values = {event: found.of(f"penstock_messages_{event}_total", queue) for event in EVENTS}
    return {event: value for event, value in values.items() if value}


def states(broker: penstock.Broker, queue: str = "orders") -> dict[str, float]:
    found = scrape(metrics_of(broker))
    values = {
        state: found.of("penstock_queue_messages", queue, state=state)
        for state in ("ready", "delayed", "leased", "retrying", "dead")
    }
    return {state: value for state, value in values.items() if value}


# --- messages ---


def test_a_message_by_the_shortest_way_is_not_counted(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")
    for number in range(3):
        orders.publish(b"%d" % number)
    assert (counted(broker), states(broker)) == ({"published": 3}, {"ready": 3})
    delivery = orders.receive()
    assert delivery is not None
    assert (counted(broker), states(broker)) == ({"published": 3, "delivered": 1}, {"ready": 2, "leased": 1})
    delivery.ack()
    assert (counted(broker), states(broker)) == ({"published": 3, "delivered": 1, "acked": 1}, {"ready": 2})


def test_a_batch_counts_as_one(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")
    orders.publish_many([b"x"] * 10)
    orders.ack_many(orders.receive_many(4))
    assert counted(broker) == {"published": 10, "delivered": 4, "acked": 4}
    assert states(broker) == {"ready": 6}


def test_what_is_settled_when_it_is_handed_out_is_not_acknowledged(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")
    orders.publish_many([b"a", b"b"])
    with orders.subscribe(auto_ack=True) as consumer:
        consumer.receive_many(2)
    assert counted(broker) == {"published": 2, "delivered": 2, "acked": 2}


def test_a_failure_is_counted_where_it_did_not_happen(broker: penstock.Broker, clock: ManualClock) -> None:
    orders = broker.queue("orders", max_attempts=2, backoff=penstock.Backoff(initial=5, jitter=0))
    orders.publish_many([b"a", b"b"])
    first = orders.receive()
    assert first is not None
    first.nack()
    assert counted(broker) == {"published": 2, "delivered": 1, "nacked": 1}
    assert states(broker) == {"ready": 1, "retrying": 1}
    clock.advance(seconds=6)
    assert states(broker) == {"ready": 2}
    for delivery in orders.receive_many(2):
        if delivery.attempt == 2:
            delivery.nack(error="no such part")
        else:
            delivery.reject(error="no such customer")
    assert counted(broker) == {"published": 2, "delivered": 3, "nacked": 2, "rejected": 1, "dead_lettered": 2}
    assert states(broker) == {"dead": 2}
    assert counted(broker, "orders.dlq") == {"published": 2}
    assert states(broker, "orders.dlq") == {"ready": 2}
    assert orders.redrive() == 2
    assert counted(broker)["published"] == 4
    assert counted(broker, "orders.dlq") == {"published": 2, "redriven": 2}
    assert states(broker) == {"ready": 2}


def test_what_expired_is_counted_as_something_else(broker: penstock.Broker, clock: ManualClock) -> None:
    orders = broker.queue("orders", ttl=10)
    kept = broker.queue("kept", ttl=10, on_expire="dead-letter")
    orders.publish_many([b"a", b"b"])
    kept.publish(b"c")
    held = orders.receive()
    assert held is not None
    clock.advance(seconds=11)
    assert counted(broker) == {"published": 2, "delivered": 1, "expired": 1}
    assert counted(broker, "kept") == {"published": 1, "expired": 1, "dead_lettered": 1}
    held.requeue()
    assert counted(broker) == {"published": 2, "delivered": 1, "expired": 2, "returned": 1}


def test_a_lease_that_nobody_settles_is_not_seen(broker: penstock.Broker, clock: ManualClock) -> None:
    orders = broker.queue("orders", visibility_timeout=30)
    orders.publish_many([b"a", b"b"])
    orders.receive()
    clock.advance(seconds=20)
    late = orders.receive()
    assert late is not None
    age = scrape(metrics_of(broker)).of("penstock_group_oldest_lease_seconds", group="default")
    assert age == 20
    clock.advance(seconds=15)
    assert counted(broker) == {"published": 2, "delivered": 2, "lease_expired": 1}
    assert scrape(metrics_of(broker)).of("penstock_group_oldest_lease_seconds", group="default") == 15
    late.extend(100)
    clock.advance(seconds=40)
    assert scrape(metrics_of(broker)).of("penstock_group_oldest_lease_seconds", group="default") == 55
    late.ack()
    assert scrape(metrics_of(broker)).of("penstock_group_oldest_lease_seconds", group="default") == 0


def test_an_extended_lease_is_not_the_oldest_any_more(broker: penstock.Broker, clock: ManualClock) -> None:
    orders = broker.queue("orders", visibility_timeout=300)
    orders.publish_many([b"a", b"b"])
    old = orders.receive()
    clock.advance(seconds=7)
    assert old is not None
    assert orders.receive() is not None
    old.extend(1000)
    assert scrape(metrics_of(broker)).of("penstock_group_oldest_lease_seconds", group="default") == 7


def test_what_is_thrown_away_is_thrown_away_in_silence(broker: penstock.Broker) -> None:
    orders = broker.queue("orders", max_depth=2, overflow="drop-head", delivery="exactly-once")
    for number in range(4):
        orders.publish(b"x", dedup_id=str(number))
    orders.publish_many([penstock.Message(b"x", dedup_id="3"), penstock.Message(b"y", dedup_id="2")])
    assert counted(broker) == {"published": 4, "dropped": 2, "deduplicated": 2}
    assert orders.purge() == 2
    assert counted(broker) == {"published": 4, "dropped": 2, "deduplicated": 2, "purged": 2}


def test_delayed_messages_are_ready_or_nowhere(broker: penstock.Broker, clock: ManualClock) -> None:
    orders = broker.queue("orders")
    orders.publish(b"later", delay=60)
    assert states(broker) == {"delayed": 1}
    clock.advance(seconds=61)
    assert states(broker) == {"ready": 1}


# --- groups, readers, consumers ---


def test_groups_and_readers_are_mixed_up(broker: penstock.Broker) -> None:
    events = broker.topic("events", retain_seconds=3600)
    audit = events.subscribe("audit", consumer="one")
    events.subscribe("europe", filter="region = 'eu'")
    events.publish_many([b"a", b"b", b"c"])
    audit.ack_many(audit.receive_many(2))
    reader = events.reader("report")
    reader.read()
    reader.commit()
    found = scrape(metrics_of(broker))
    assert found.of("penstock_group_lag", "events", group="audit") == 1
    assert found.of("penstock_group_lag", "events", group="europe") == 3
    assert found.of("penstock_group_messages", "events", group="europe", state="ready") == 3
    assert found.of("penstock_group_messages", "events", group="audit", state="leased") == 0
    assert found.of("penstock_group_consumers", "events", group="audit") == 1
    assert found.of("penstock_queue_consumers", "events") == 2
    assert found.of("penstock_reader_lag", "events", reader="report") == 2
    assert found.of("penstock_messages_delivered_total", "events") == 2
    assert found.get("penstock_queues", kind="topic") == 1
    assert found.get("penstock_queues", kind="queue") == 0


def test_who_waits_is_not_seen(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")
    ticket = broker._port.lease(orders._log, "default", 1, wait_us=None)  # stands in line, as a thread would
    assert scrape(metrics_of(broker)).of("penstock_queue_waiting") == 1
    ticket.stop()  # type: ignore[attr-defined]
    assert scrape(metrics_of(broker)).of("penstock_queue_waiting") == 0


def test_a_scrape_changes_something(broker: penstock.Broker, clock: ManualClock) -> None:
    topic = broker.topic("events")
    topic.subscribe("audit")
    topic.publish_many([b"a", b"b"])
    log = alive(topic._log)
    seen = log.groups["audit"].seen
    assert (
        scrape(metrics_of(broker)).of("penstock_group_messages", "events", group="audit", state="ready") == 2
    )
    assert log.groups["audit"].seen == seen


# --- namespaces ---


def test_a_tenant_sees_another_one_or_the_process(broker: penstock.Broker) -> None:
    broker.queue("orders").publish(b"x")
    broker.namespace("tenant-a").queue("orders").publish_many([b"a", b"b"])
    broker.namespace("tenant-b").queue("secret").publish(b"b")
    metrics = metrics_of(broker)
    metrics.request("/v1/queues/{queue}", "GET", 200, 0.01)
    found = scrape(metrics, ["tenant-a"])
    assert found.get("penstock_messages_published_total", namespace="tenant-a", queue="orders") == 2
    seen = {labels.get("namespace") for name in found.names() for labels in found.labelled(name)}
    assert seen == {"tenant-a", None}
    assert {
        name for name in found.names() if not any("namespace" in one for one in found.labelled(name))
    } == {"penstock_metrics_left_out"}
    assert b"secret" not in metrics.render(["tenant-a"])
    assert scrape(metrics, []).names() == {"penstock_metrics_left_out"}
    assert scrape(metrics, ["nobody"]).names() == {"penstock_metrics_left_out"}
    everything = scrape(metrics)
    assert everything.get("penstock_messages_published_total", namespace="tenant-b", queue="secret") == 1
    assert everything.get("penstock_up") == 1
    assert everything.get("penstock_build_info", version="1.2.3") == 1
    assert "process_cpu_seconds_total" in everything.names()


def test_a_deleted_queue_takes_what_it_counted_with_it(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")
    orders.publish_many([b"a", b"b"])
    delivery = orders.receive()
    assert delivery is not None
    delivery.nack()
    broker.queue("others").publish(b"c")
    broker.delete_queue("orders")
    found = scrape(metrics_of(broker))
    assert found.of("penstock_messages_published_total", "orders") is None  # the series ends
    assert found.of("penstock_queue_messages", "orders", state="ready") is None
    total = "penstock_namespace_messages_total"
    assert found.get(total, namespace="default", event="published") == 3
    assert found.get(total, namespace="default", event="nacked") == 1
    broker.queue("orders").publish(b"d")
    found = scrape(metrics_of(broker))
    assert found.of("penstock_messages_published_total", "orders") == 1  # and begins anew
    assert found.get(total, namespace="default", event="published") == 4


class Between:
    """A lock before whose third taking something else happens."""

    def __init__(self, monitor: Any, then: Callable[[], object]) -> None:
        self._monitor, self._real, self._then, self._taken = monitor, monitor.lock, then, 0
        monitor.lock = self

    def __enter__(self) -> None:
        self._taken += 1
        if self._taken == 3:
            self._monitor.lock = self._real
            self._then()
        self._real.acquire()

    def __exit__(self, *_: object) -> None:
        self._real.release()


def test_a_queue_that_is_deleted_during_a_scrape_counts_twice_or_not_at_all(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "AT_ONCE", 1)
    for name in ("a", "b", "c"):
        broker.queue(name).publish(b"x")
    Between(broker._port.monitor, lambda: broker.delete_queue("b"))  # type: ignore[attr-defined]
    found = scrape(metrics_of(broker))
    assert found.of("penstock_messages_published_total", "b") is None
    for view in (found, scrape(metrics_of(broker))):
        assert view.get("penstock_namespace_messages_total", namespace="default", event="published") == 3
        assert view.of("penstock_messages_published_total", "c") == 1


# --- how many series there are ---


def test_names_that_anybody_makes_up_fill_the_memory_of_prometheus(broker: penstock.Broker) -> None:
    for number in range(10):
        broker.queue(f"q{number}").publish(b"x")
        broker.namespace(f"n{number}").queue("only").publish(b"x")
    topic = broker.topic("events")
    for number in range(6):
        topic.subscribe(f"s{number}")
        topic.reader(f"r{number}").commit()
    bounds = Bounds(namespaces=3, logs=1000, cursors=1000, cursors_of_one=8)
    found = scrape(metrics_of(broker, bounds=bounds))
    assert len(found.labelled("penstock_group_lag")) == 20 + 6
    assert len(found.labelled("penstock_reader_lag")) == 2
    assert found.get("penstock_metrics_left_out", what="readers") == 4
    assert found.get("penstock_metrics_left_out", what="namespaces") == 8
    assert len(found.labelled("penstock_namespace_messages_total")) == 3 * len(EVENTS)
    found = scrape(metrics_of(broker, bounds=Bounds(logs=5, cursors=3)))
    assert len(found.labelled("penstock_messages_published_total")) == 5
    assert len(found.labelled("penstock_group_lag")) == 3
    assert found.get("penstock_metrics_left_out", what="queues") == 16
    assert found.get("penstock_queues", kind="queue") == 20
    # Nothing that is left out is lost: it is in the namespace's total. And it is always the same ones that are shown.
    assert found.get("penstock_namespace_messages_total", namespace="default", event="published") == 10
    again = scrape(metrics_of(broker, bounds=Bounds(logs=5, cursors=3)))
    assert again.labelled("penstock_queue_consumers") == found.labelled("penstock_queue_consumers")
    # A tenant is not kept out by the others.
    alone = scrape(metrics_of(broker, bounds=Bounds(namespaces=1, logs=1)), ["n9"])
    assert alone.get("penstock_messages_published_total", namespace="n9", queue="only") == 1


def test_text_in_a_label_breaks_out_of_it(broker: penstock.Broker) -> None:
    metrics, text = metrics_of(broker), 'a"} 1\nup 0\\'
    metrics.request(text, "GET", 200, 0.1)
    found = scrape(metrics)
    assert found.get("penstock_http_requests_total", route=text, method="GET", status="200") == 1
    assert found.get("up") is None


def test_routes_that_are_no_templates_are_kept_for_ever(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUTES_MAX", 3)
    metrics = metrics_of(broker)
    for number in range(10):
        metrics.request(f"/v1/queues/{number}", "GET", 200, 0.001)
    found = scrape(metrics)
    assert len(found.labelled("penstock_http_requests_total")) == 4
    assert found.get("penstock_http_requests_total", route="other", method="other", status="200") == 7


# --- requests ---


def test_requests_are_counted_under_another_route(broker: penstock.Broker) -> None:
    metrics = metrics_of(broker)
    metrics.request("/enqueue", "POST", 200, 0.002)
    metrics.request("/enqueue", "POST", 200, 0.0005)
    metrics.request("/enqueue", "POST", 429, 99)
    found = scrape(metrics)
    route = {"route": "/enqueue", "method": "POST"}
    assert found.get("penstock_http_requests_total", **route, status="200") == 2
    assert found.get("penstock_http_requests_total", **route, status="429") == 1
    assert found.get("penstock_http_request_seconds_count", **route) == 3
    assert found.get("penstock_http_request_seconds_sum", **route) == pytest.approx(99.0025)
    assert found.get("penstock_http_request_seconds_bucket", **route, le="0.0005") == 1
    assert found.get("penstock_http_request_seconds_bucket", **route, le="0.0025") == 2
    assert found.get("penstock_http_request_seconds_bucket", **route, le="60.0") == 2
    assert found.get("penstock_http_request_seconds_bucket", **route, le="+Inf") == 3


def test_refused_connections_are_not_shown(broker: penstock.Broker) -> None:
    metrics = metrics_of(broker)
    metrics.refusals = lambda: {"crowded": 3, "slow": 0}
    found = scrape(metrics)
    assert found.get("penstock_connections_refused_total", reason="crowded") == 3
    assert found.get("penstock_connections_refused_total", reason="slow") == 0


def test_requests_of_several_threads_are_lost(broker: penstock.Broker) -> None:
    metrics = metrics_of(broker)

    def many() -> None:
        for number in range(500):
            metrics.request(f"/{number % 7}", "GET", 200, 0.1)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    scrape(metrics)
    for thread in threads:
        thread.join()
    found = scrape(metrics)
    requests = [value for (name, _), value in found.values.items() if name == "penstock_http_requests_total"]
    assert sum(requests) == 2000


# --- the journal ---


def test_commits_are_not_counted(tmp_path: Path, clock: ManualClock) -> None:
    with penstock.open(tmp_path, clock=clock) as broker:
        before = scrape(metrics_of(broker))
        orders = broker.queue("orders")  # a commit without messages
        orders.publish(b"one")
        orders.publish_many([b"x"] * 5)
        orders.receive()  # a lease, which is only written
        found = scrape(metrics_of(broker))
        assert before.get("penstock_journal_commit_messages_count") == 0
        assert found.get("penstock_journal_commit_messages_count") == 2
        assert found.get("penstock_journal_commit_messages_sum") == 6
        assert found.get("penstock_journal_commit_messages_bucket", le="1.0") == 1
        assert found.get("penstock_journal_commit_messages_bucket", le="3.0") == 1
        assert found.get("penstock_journal_commit_messages_bucket", le="7.0") == 2
        assert found.get("penstock_journal_commit_seconds_count") == 3
        journal: Any = broker._port.monitor.journal  # type: ignore[attr-defined]
        journal.sync()  # a sync is not a commit
        assert scrape(metrics_of(broker)).get("penstock_journal_commit_seconds_count") == 3
        stats: Any = broker.stats().journal
        assert found.get("penstock_journal_bytes") == stats.bytes
        assert found.get("penstock_journal_sequence") == stats.sequence
        assert found.get("penstock_journal_segments") == 1
        assert found.get("penstock_journal_messages") == 6
        assert found.get("penstock_journal_epoch") == 1
        synced = found.get("penstock_journal_sync_seconds_count")
        assert synced is not None
        assert synced - (before.get("penstock_journal_sync_seconds_count") or 0) == 3
        written = found.get("penstock_journal_written_bytes_total")
        assert written is not None
        assert written > (before.get("penstock_journal_written_bytes_total") or 0)


class SlowClock(ManualClock):
    """Time passes by being looked at: 3 ms each time."""

    def monotonic_us(self) -> int:
        self._monotonic_us += 3000
        return self._monotonic_us


def test_a_slow_commit_is_in_a_quick_ones_bucket(tmp_path: Path) -> None:
    with penstock.open(tmp_path, clock=SlowClock()) as broker:
        broker.queue("orders").publish(b"x")
        found = scrape(metrics_of(broker))
    name = "penstock_journal_commit_seconds"
    count, total = found.get(f"{name}_count"), found.get(f"{name}_sum")
    assert count == 2
    assert total is not None
    assert total / count >= 0.003
    assert found.get(f"{name}_bucket", le="0.002097152") == 0
    assert found.get(f"{name}_bucket", le="+Inf") == count


def test_a_snapshot_is_younger_than_it_is(tmp_path: Path, clock: ManualClock) -> None:
    with penstock.open(tmp_path, clock=clock) as broker:
        broker.queue("orders").publish(b"x")
        assert scrape(metrics_of(broker)).get("penstock_journal_snapshot_age_seconds") is None
        monitor: Any = broker._port.monitor  # type: ignore[attr-defined]
        monitor.upkeep.snapshot()
        clock.advance(seconds=90)
        found = scrape(metrics_of(broker))
        assert found.get("penstock_journal_snapshot_age_seconds") == 90
        replay = found.get("penstock_journal_replay_commits")
        broker.queue("orders").publish(b"y")
        assert scrape(metrics_of(broker)).get("penstock_journal_replay_commits") == (replay or 0) + 1


def test_counters_survive_a_restart_or_gauges_do_not(tmp_path: Path, clock: ManualClock) -> None:
    with penstock.open(tmp_path, clock=clock) as broker:
        orders = broker.queue("orders", max_attempts=1)
        orders.publish_many([b"x"] * 5)
        orders.ack_many(orders.receive_many(2))
        failed = orders.receive()
        assert failed is not None
        failed.nack()
    clock.advance(seconds=50)
    with penstock.open(tmp_path, clock=clock) as broker:
        assert counted(broker) == {}
        assert states(broker) == {"ready": 2, "dead": 1}
        found = scrape(metrics_of(broker))
        assert found.get("penstock_journal_epoch") == 2
        assert found.get("penstock_journal_snapshot_age_seconds") == 50
        assert found.get("penstock_recovery_info", end="clean") == 1
        assert found.get("penstock_recovery_cut") == 0
        broker.queue("orders").publish(b"y")
        assert counted(broker) == {"published": 1}
        assert found.get("penstock_namespace_messages_total", namespace="default", event="published") == 0


def test_what_a_crash_left_in_hand_is_not_told(tmp_path: Path, clock: ManualClock) -> None:
    """The directory as it is while the owner is alive is what `kill -9` leaves."""
    left = tmp_path / "left"
    with penstock.open(tmp_path / "data", clock=clock) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"x"] * 5)
        orders.receive_many(2)
        left.mkdir()
        for file in (tmp_path / "data").iterdir():
            if file.is_file() and not file.name.startswith("lock"):
                (left / file.name).write_bytes(file.read_bytes())
    with penstock.open(left, clock=clock) as broker:
        assert counted(broker) == {"lease_expired": 2}
        assert states(broker) == {"ready": 5}
        found = scrape(metrics_of(broker))
        assert (
            found.get("penstock_recovery_frames") == 4
        )  # the epoch's beginning, the queue, the messages, the leases
        assert found.get("penstock_recovery_messages") == 5


def test_rot_is_not_told(tmp_path: Path, clock: ManualClock) -> None:
    with penstock.open(tmp_path, clock=clock) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"needle-%d" % number for number in range(4)])
        orders.publish(b"another one")
    segment = next(tmp_path.glob("*.seg*"), None) or max(
        tmp_path.iterdir(), key=lambda one: one.stat().st_size
    )
    data = bytearray(segment.read_bytes())
    data[data.index(b"needle-2")] ^= 0xFF
    segment.write_bytes(data)
    for snapshot in tmp_path.glob("*snap*"):
        snapshot.unlink()
    for summary in tmp_path.glob("*sum*"):
        summary.unlink()
    with penstock.open(tmp_path, clock=clock) as broker:
        found = scrape(metrics_of(broker))
        assert found.get("penstock_recovery_info", end="rot") == 1
        assert found.get("penstock_journal_damage", what="rot") == 1
        assert found.get("penstock_journal_damaged_messages") == 4
        assert found.get("penstock_recovery_quarantined") == 1


def test_a_broker_that_ended_says_nothing_at_all(broker: penstock.Broker) -> None:
    broker.queue("orders").publish(b"x")
    metrics = metrics_of(broker)
    broker.close()
    found = scrape(metrics)
    assert found.get("penstock_up") == 0
    assert found.of("penstock_messages_published_total") == 1


def test_a_broker_in_memory_has_a_journal() -> None:
    with penstock.open() as broker:
        assert not [
            name for name in scrape(metrics_of(broker)).names() if name.startswith("penstock_journal")
        ]


# --- the exposition ---


def test_it_cannot_be_registered_beside_others(broker: penstock.Broker) -> None:
    registry = CollectorRegistry()
    registry.register(metrics_of(broker))
    assert b"penstock_up 1.0" in generate_latest(registry)


def test_a_metric_is_another_type_than_the_table_says(tmp_path: Path, clock: ManualClock) -> None:
    with penstock.open(tmp_path, clock=clock) as broker:
        metrics = metrics_of(broker)
        found = scrape(metrics)
        ours = {name: kind for name, kind in found.types.items() if name.startswith("penstock_")}
        expected = {row.name.removesuffix("_total"): row.type for row in TABLE}
        del expected["penstock_journal_snapshot_age_seconds"]  # there is none yet
        assert ours == expected


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def test_a_metric_is_not_in_the_reference_or_is_another_one_there() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    described = {name: (kind, labels) for name, kind, labels, _ in rows}
    expected = {
        row.name: (row.type, ", ".join(f"`{label}`" for label in row.labels) or "none") for row in TABLE
    }
    assert described == expected
    assert all(meaning for *_, meaning in rows)
