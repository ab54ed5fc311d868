"""A streaming query's progress appears in the broker as a reader."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.pipeline.progress import Reporter
from tests.unit.pipeline.tables import Query


def progressed(query: Query, name: str | None = None, rows: int = 1) -> Any:
    """What Spark would tell of a batch that is done."""
    sources = [
        SimpleNamespace(endOffset=json.dumps(query.checkpoint), numInputRows=rows),
        SimpleNamespace(endOffset="17"),
        SimpleNamespace(endOffset=None),
    ]
    return SimpleNamespace(progress=SimpleNamespace(sources=sources, name=name, id="0f-12"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_progress_is_a_readers_position_at_once_if_there_is_an_owner(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a"] * 5)
        query = Query(data, startingOffsets="earliest", maxOffsetsPerTrigger=3)
        query.batch()
        Reporter().onQueryProgress(progressed(query))
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        assert orders.stats().readers == {"spark.0f-12": 2}
        query.batch()
        Reporter().onQueryProgress(progressed(query, "billing"))
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        assert orders.stats().readers == {"spark.0f-12": 2, "spark.billing": 0}
        assert orders.reader("spark.billing").lag() == 0


def test_progress_waits_for_an_owner(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"a"] * 5)
    query = Query(data, startingOffsets="earliest", reader="lake")
    query.batch()
    Reporter().onQueryProgress(progressed(query, "not a valid name"))
    with penstock.open(data) as broker:
        assert broker.queue("orders").stats().readers == {"lake": 0}


def test_what_a_query_has_not_read_is_kept_for_it(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"%d" % number for number in range(5)])
        query = Query(data, startingOffsets="earliest", maxOffsetsPerTrigger=2)
        query.batch()
        Reporter().onQueryProgress(progressed(query))
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        orders.ack_many(orders.receive_many(5))
        kept = orders.reader("anybody").read_many(10)
        assert [message.payload for message in kept] == [b"2", b"3", b"4"]
        query.batch()
        query.batch()
        Reporter().onQueryProgress(progressed(query))
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        assert orders.reader("anybody").read_many(10) == []


def test_the_progress_of_events_is_a_commit_of_the_journal(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"a")
        query = Query(data, table="settlements", startingOffsets="earliest")
        query.batch()
        Reporter().onQueryProgress(progressed(query, "audit"))
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        engine = broker._port.monitor.engine  # type: ignore[attr-defined]
        assert engine.sequences == {"spark.audit": query.checkpoint["sequence"]}


def test_a_directory_that_may_only_be_read_is_read_all_the_same(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"a")
    query = Query(data, startingOffsets="earliest")
    query.batch()
    (data / "spool").write_text("in the way")
    reporter = Reporter()
    with caplog.at_level(logging.WARNING, "penstock.pipeline"):
        reporter.onQueryProgress(progressed(query))
        reporter.onQueryProgress(progressed(query))
    assert len([record for record in caplog.records if "cannot be left" in record.message]) == 1


def test_events_without_rows_are_no_progress_or_reports_would_never_end(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"a")
        query = Query(data, table="settlements", startingOffsets="earliest")
        query.batch()
        Reporter().onQueryProgress(progressed(query, "audit", rows=0))
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        assert broker._port.monitor.engine.sequences == {}  # type: ignore[attr-defined]


def test_the_archive_speaks_for_itself(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish(b"a")
        query = Query(data, startingOffsets="earliest", reader="penstock.archive")
        query.batch()
        Reporter().onQueryProgress(progressed(query))
        broker._port.monitor.intake.catch_up()  # type: ignore[attr-defined]
        assert orders.stats().readers == {}
