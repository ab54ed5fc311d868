"""Reports: known data gives known numbers; the page opens without a network, and nobody's text becomes part of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.clock import ManualClock
from penstock.errors import QueueNotFound
from penstock.pipeline import page
from penstock.pipeline.report import report_directory, signature

START = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)


def make(data: Path) -> None:
    """A hundred messages at 8:00; message i is handed out after i + 1 ms and acknowledged after twice that. Then three that fail, at 8:01."""
    clock = ManualClock(int(START.timestamp()) * 1_000_000)
    with penstock.open(data, clock=clock) as broker:
        backoff = penstock.Backoff(initial=1, factor=1, maximum=1, jitter=0)
        queue = broker.queue("orders", retain_seconds=86_400, max_attempts=2, backoff=backoff)
        queue.publish_many([penstock.Message(b"x", key="big" if i < 60 else f"k{i}") for i in range(100)])
        out = []
        for _ in range(100):
            clock.advance(us=1000)
            out.append(queue.receive())
        for one in out:
            clock.advance(us=1000)
            one.ack()  # type: ignore[union-attr]
        clock.advance(60)
        queue.publish_many([b"bad"] * 3)
        queue.publish(b"later", delay=3600)
        for attempt in range(2):
            for number, one in enumerate(queue.receive_many(3)):
                one.nack(error=ValueError(f"no customer '{number}' at 0xdeadbeef{attempt}, line {number}"))
            clock.advance(2)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("report")
    make(place / "data")
    written = report_directory(spark, place / "data", place / "out")
    with pytest.raises(QueueNotFound, match="nothing"):
        report_directory(spark, place / "data", place / "out", topics=["nothing"])
    rows = {
        name: spark.read.parquet(str(place / "out" / name)).toArrow().to_pylist() for name in written.tables
    }
    return {"written": written, "html": Path(written.page).read_text(), **rows}


def of(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def test_counts_per_minute(made: dict[str, Any]) -> None:
    published = [(row["minute"], row["published"]) for row in of(made["published"], log="orders")]
    assert published == [(START, 100), (START + timedelta(minutes=1), 4)]
    first, second = of(made["activity"], log="orders")
    assert (first["delivered"], first["redelivered"], first["acked"], first["retries"], first["dead"]) == (
        100,
        0,
        100,
        0,
        0,
    )
    assert (
        second["delivered"],
        second["redelivered"],
        second["acked"],
        second["retries"],
        second["dead"],
    ) == (6, 3, 0, 3, 3)
    written = made["written"]
    assert (written.published, written.delivered, written.acked, written.retries, written.dead) == (
        107,
        106,
        100,
        3,
        3,
    )


def test_latency_percentiles(made: dict[str, Any]) -> None:
    first = of(made["latency"], log="orders", minute=START)[0]
    assert [first[f"delivery_{name}_ms"] for name in ("p50", "p95", "p99", "max")] == [50, 95, 99, 100]
    # Handed out up to 100 ms after publishing, then acknowledged one by one.
    assert [first[f"ack_{name}_ms"] for name in ("p50", "p95", "p99", "max")] == [150, 195, 199, 200]
    whole = of(made["groups"], log="orders")[0]
    assert (whole["delivery_count"], whole["ack_count"]) == (103, 100)


def test_alike_errors_are_one_line(made: dict[str, Any]) -> None:
    (row,) = made["dead"]
    assert (row["log"], row["group"], row["reason"], row["count"]) == ("orders", "default", "max-attempts", 3)
    assert row["signature"] == "ValueError: no customer '…' at #, line #"
    assert row["example"].startswith("ValueError: no customer '0' at 0xdeadbeef")


def test_signatures_keep_words(spark: SparkSession) -> None:
    errors = [
        "deadline exceeded",
        "id 550e8400-e29b-41d4-a716-446655440000 of 10.0.0.1:80",
        'bad "a b" and `c`',
        "cafe 12,5",
    ]
    frame = spark.createDataFrame([(error,) for error in errors], "error string")
    found = [row[0] for row in frame.select(signature(frame.error)).collect()]
    assert found == ["deadline exceeded", "id # of #", "bad '…' and '…'", "cafe #"]


def test_lag_ends_with_what_is_pending(made: dict[str, Any]) -> None:
    lag = [row["lag"] for row in of(made["lag"], log="orders", group="default")]
    assert lag == [0, 1]
    assert [row["lag"] for row in of(made["lag"], log="orders.dlq")] == [3]


def test_biggest_keys(made: dict[str, Any]) -> None:
    keys = of(made["keys"], log="orders")
    assert (keys[0]["key"], keys[0]["messages"], len(keys)) == ("big", 60, 20)


class Strict(HTMLParser):
    """What a page loads, and whether its tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")
        ]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "line", "path", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(html: str) -> Strict:
    found = Strict()
    found.feed(html)
    assert not found.open
    return found


def test_the_page_opens_offline(made: dict[str, Any]) -> None:
    found = parsed(made["html"])
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"https?://|//[a-z]|url\(|@import", made["html"])
    assert not {"script", "link", "img", "iframe", "object"} & found.tags
    assert {"svg", "table"} <= found.tags
    assert "orders.dlq" in made["html"]


def test_hostile_text_stays_text() -> None:
    evil = "\"><script>alert(1)</script><img src=x onerror='a'>&"
    place = {"namespace": evil, "log": evil, "group": evil, "minute": START}
    numbers = dict.fromkeys(("delivered", "redelivered", "acked", "retries", "dead", "expired", "other"), 1)
    times = {
        f"{what}_{name}": 1.5
        for what in ("delivery", "ack")
        for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms", "count")
    }
    rows = {
        "published": [{**place, "published": 1}, {**place, "log": "other", "published": 2}],
        "activity": [{**place, **numbers}],
        "latency": [{**place, **times}],
        "groups": [{**place, **times}],
        "dead": [
            {
                **place,
                "reason": evil,
                "signature": evil,
                "example": evil,
                "count": 1,
                "first": START,
                "last": START,
            }
        ],
        "lag": [{**place, "lag": 5}],
        "keys": [{**place, "key": evil, "messages": 1}],
    }
    html = page.render(evil, rows, START)
    found = parsed(html)
    assert not {"script", "img"} & found.tags
    assert "&lt;script&gt;" in html


def test_an_empty_report_is_a_page() -> None:
    names = ("published", "activity", "latency", "groups", "dead", "lag", "keys")
    assert "Nothing has happened yet" in page.render("empty", {name: [] for name in names}, START)


def test_a_long_time_is_drawn_in_few_points() -> None:
    axis = page.Axis([START, START + timedelta(days=7)])
    rows = [{"minute": START + timedelta(minutes=number), "n": 1} for number in range(7 * 24 * 60)]
    values = axis.sums(rows, "n")
    assert len(values) <= page.POINTS_MAX
    assert sum(value or 0 for value in values) == len(rows)
