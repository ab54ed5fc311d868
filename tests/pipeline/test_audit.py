"""Audits: every kind of breach is found where it was planted, and nothing where nothing is wrong, whatever a broker does meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import InvalidArgument, QueueNotFound
from penstock.journal import mark as marks
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED, LEASES, SETTLEMENTS
from penstock.journal.rows import Rows, messages
from penstock.pipeline.audit import KINDS, Audit, audit, audit_directory
from penstock.pipeline.replica import Facts, LogFacts, Replica
from tests.pipeline.busy import SEGMENT_BYTES, Day

pytestmark = pytest.mark.lengthy

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
LETTER = {"x-origin": "q", "x-origin-group": "g", "x-reason": "rejected"}

MESSAGES = (
    "namespace string, topic string, offset bigint, id bigint, timestamp timestamp, key string, headers map<string,string>, "
    "priority smallint, deliver_at timestamp, target_group string"
)
SETTLEMENTS_DDL = "namespace string, log string, group string, offset bigint, outcome string, time timestamp, sequence bigint"
DELIVERIES = "namespace string, log string, group string, offset bigint, sequence bigint"


class Tables:
    """Rows of the three tables, and what the broker knows."""

    def __init__(self) -> None:
        self.messages: list[tuple[Any, ...]] = []
        self.settlements: list[tuple[Any, ...]] = []
        self.deliveries: list[tuple[Any, ...]] = []
        self.logs: list[LogFacts] = []

    def message(self, log: str, offset: int, id: int, **more: Any) -> None:
        row = {
            "key": None,
            "headers": None,
            "priority": 100,
            "deliver_at": None,
            "target_group": None,
            **more,
        }
        self.messages.append(("ns", log, offset, id, NOON, *row.values()))

    def ended(
        self, log: str, offset: int, sequence: int, outcome: str = "acked", group: str | None = "g"
    ) -> None:
        self.settlements.append(("ns", log, group, offset, outcome, NOON, sequence))

    def out(self, log: str, offset: int, sequence: int) -> None:
        self.deliveries.append(("ns", log, "g", offset, sequence))

    def log(self, name: str, next_offset: int, **more: Any) -> None:
        self.logs.append(LogFacts("ns", name, next_offset, **more))

    def audit(self, spark: SparkSession, *, facts: bool = True) -> Audit:
        return audit(
            spark.createDataFrame(self.messages, MESSAGES),
            spark.createDataFrame(self.settlements, SETTLEMENTS_DDL),
            spark.createDataFrame(self.deliveries, DELIVERIES),
            facts=Facts(100, self.logs) if facts else None,
        )


def found(report: Audit) -> dict[tuple[str, str, str | None], tuple[int, list[tuple[int, int]]]]:
    return {(one.kind, one.log, one.group): (one.count, one.offsets) for one in report.breaches}


def test_every_kind_of_breach_is_found_in_tables(spark: SparkSession) -> None:
    t = Tables()
    # lost: 1 and 2 are nowhere; 3 is cleaned, 4 damaged, 5 was never used. Group g settled 0 and 6, and recorded only 0.
    t.log("q", 8, groups={"g": [0, 1, 3, 7]}, cleaned=[3, 4], damaged=[4, 5], unused=[5, 6], graves=["q.dlq"])
    for offset in (0, 6, 7):
        t.message("q", offset, 100 + offset)
    t.ended("q", 0, 10)
    t.ended("q", 7, 11)  # settled, and the broker does not know of it
    t.ended("q", 9, 12)  # never published
    # cleaned though pending; offset 0 twice, and with it an id twice
    t.log("c", 3, groups={"g": []}, cleaned=[1, 2])
    t.message("c", 0, 200)
    t.message("c", 0, 201)
    t.message("c", 2, 200)
    # settled twice; going back in between is no breach
    t.log("s", 3, groups={"g": [0, 3]}, turns={"g": [50]})
    for offset in range(3):
        t.message("s", offset, 300 + offset)
        t.ended("s", offset, 20, "expired" if offset == 1 else "acked")
    t.ended("s", 1, 21)
    t.ended("s", 2, 60)
    t.ended("s", 0, 60, "retry")
    # a death without a letter; and a letter too many
    t.log("d", 2, groups={"g": [0, 2]}, graves=["d.dlq"])
    t.log("d.dlq", 1, groups={"g": []})
    t.message("d", 0, 400)
    t.message("d", 1, 401)
    t.ended("d", 0, 30, "dead")
    t.ended("d", 1, 30, "dead")
    headers = {**LETTER, "x-origin": "d", "x-origin-id": "400"}
    t.message("d.dlq", 0, 410, headers=headers)
    t.log("e", 1, groups={"g": [0, 1]}, graves=["e.dlq"])
    t.log("e.dlq", 2, groups={"g": []})
    t.message("e", 0, 420)
    t.ended("e", 0, 31, "dead")
    for offset in range(2):
        t.message("e.dlq", offset, 430 + offset, headers={**LETTER, "x-origin": "e", "x-origin-id": "420"})
    # order: 1 is out before 0 has ended, 3 before 2 which is pending; a delayed, another priority and another key do not count
    t.log("k", 9, groups={"g": [0, 2, 3, 9]}, ordered={"g": 0})
    keys = ["a", "a", "b", "b", "c", "c", "d", "d", "e"]
    for offset, key in enumerate(keys):
        later = {"deliver_at": NOON} if offset == 4 else {}
        t.message("k", offset, 500 + offset, key=key, priority=1 if offset == 6 else 100, **later)
    for offset, out, end in [
        (0, 40, 43),
        (1, 42, 44),
        (3, 41, 45),
        (4, 50, 60),
        (5, 41, 42),
        (6, 50, 60),
        (7, 41, 42),
        (8, 41, 42),
    ]:
        t.out("k", offset, out)
        t.ended("k", offset, end)
    t.ended("unheard", 0, 70)
    report = t.audit(spark)
    assert found(report) == {
        ("damaged", "q", None): (1, [(4, 4)]),
        ("lost", "q", None): (2, [(1, 2)]),
        ("not-settled", "q", "g"): (1, [(7, 7)]),
        ("not-recorded", "q", "g"): (1, [(6, 6)]),
        ("no-message", "q", "g"): (1, [(9, 9)]),
        ("cleaned-unsettled", "c", "g"): (1, [(1, 1)]),
        ("offset-twice", "c", None): (1, [(0, 0)]),
        ("id-twice", "c", None): (1, []),
        ("settled-twice", "s", "g"): (1, [(1, 1)]),
        ("dead-letter-lost", "d", "g"): (1, [(0, 1)]),
        ("dead-letter-twice", "e.dlq", None): (2, [(0, 1)]),
        ("order", "k", "g"): (2, [(1, 1), (3, 3)]),
        ("unknown-log", "unheard", None): (1, []),
    }
    ids = {one.kind: one.ids for one in report.breaches}
    assert ids["offset-twice"] == [200, 201]
    assert ids["id-twice"] == [200]
    assert ids["order"] == [501, 503]
    assert ids["lost"] == []
    assert not report.ok
    assert {one.kind for one in report.breaches} | {"missing-commits"} == set(KINDS)
    assert all(str(one) for one in report.breaches)
    count = next(one for one in report.groups if one.log == "q")
    assert (count.published, count.stored, count.cleaned, count.lost) == (7, 3, 1, 3)
    assert (count.pending, count.settled) == (1, 4)
    assert next(one for one in report.groups if one.log == "s").outcomes == {
        "acked": 4,
        "expired": 1,
        "retry": 1,
    }

    alone = t.audit(spark, facts=False)
    assert {("offset-twice", "c", None), ("dead-letter-twice", "e.dlq", None)} <= set(found(alone))
    assert not {"lost", "settled-twice"} & {one.kind for one in alone.breaches}
    assert alone.notes


def test_the_page_names_every_kind() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "audit-and-report.md").read_text()
    assert set(
        re.findall(
            r"`([a-z]+(?:-[a-z]+)*)`", "\n".join(line for line in text.splitlines() if line.startswith("| `"))
        )
    ) >= set(KINDS)


def _plant(path: Path, change: Callable[[Journal, Replica], None]) -> None:
    """Write into a journal what no broker would."""
    replica = Replica(path)
    with Journal(path) as journal:
        change(journal, replica)


def test_breaches_are_found_in_a_directory(spark: SparkSession, data: Path) -> None:
    with penstock.open(data) as broker:
        plain = broker.queue("plain", retain_seconds=3600)
        ids = plain.publish_many([b"%d" % i for i in range(10)])
        plain.ack_many(plain.receive_many(5))
        keyed = broker.queue("keyed", ordering="key")
        keyed.publish_many([penstock.Message(b"a", key="k"), penstock.Message(b"b", key="k")])
        keyed.receive()
        dying = broker.queue("dying")
        dying.publish_many([b"x", b"y"])
        dying.receive().reject()  # type: ignore[union-attr]
        broker._port.monitor.upkeep.run()  # type: ignore[attr-defined]
        plain.publish(b"after the snapshot")
    assert audit_directory(spark, data).ok

    def plant(journal: Journal, replica: Replica) -> None:
        def of(name: str) -> Any:
            return replica.engine.find("default", name)

        def settle(log: str, offset: int, outcome: int) -> None:
            columns = {
                "group": "default",
                "offset": offset,
                "outcome": outcome,
                "attempt": 1,
                "time": journal.now_us(),
            }
            journal.commit([Rows(SETTLEMENTS, of(log).number, 1, columns)])

        settle("plain", 4, 1)  # acknowledged a second time
        settle("plain", 99, 1)  # never published
        settle("dying", 1, 3)  # dead, and no letter
        lease = {"group": "default", "offset": 1, "attempt": 1, "time": journal.now_us()}
        journal.commit([Rows(LEASES, of("keyed").number, 1, lease)])  # the first one is still out
        cleaned = {"first": 7, "last": 8, "outcome": 0, "time": journal.now_us()}
        journal.commit([Rows(CLEANED, of("plain").number, 1, cleaned)])  # and nobody had settled them
        number = of("plain").number
        journal.commit(
            [messages(number, [b"again"], ids=[ids[0]], timestamp=journal.now_us(), offset=20)]
        )  # 11 to 19 are nowhere
        twin = Replica(data)
        group = twin.engine.find("default", "plain").groups["default"]  # type: ignore[union-attr]
        group.settled.add(6, 7)  # the broker forgot that 6 is pending,
        group.settled.discard(2, 3)  # and that 2 was acknowledged
        journal.snapshot(twin.engine.encode())

    _plant(data, plant)
    report = audit_directory(spark, data)
    kinds = found(report)
    assert kinds == {
        ("settled-twice", "plain", "default"): (1, [(4, 4)]),
        ("no-message", "plain", "default"): (1, [(99, 99)]),
        ("dead-letter-lost", "dying", "default"): (1, [(1, 1)]),
        ("order", "keyed", "default"): (1, [(1, 1)]),
        ("cleaned-unsettled", "plain", "default"): (2, [(7, 8)]),
        ("id-twice", "plain", None): (1, []),
        ("lost", "plain", None): (9, [(11, 19)]),
        ("not-recorded", "plain", "default"): (1, [(6, 6)]),
        ("not-settled", "plain", "default"): (1, [(2, 2)]),
    }
    with pytest.raises(QueueNotFound, match="orders"):
        audit_directory(spark, data, topics=["orders"])
    with pytest.raises(InvalidArgument, match="no directory"):
        audit_directory(spark, data / "nowhere")


class Looks(Replica):
    """A replica that counts how often it looks at the directory."""

    count = 0

    def _begin(self) -> None:
        self.count += 1
        super()._begin()


def test_what_is_missing_is_believed_when_two_looks_agree(data: Path) -> None:
    with penstock.open(data, segment_bytes=8192) as broker:
        for number in range(30):
            broker.queue("q").publish(b"%01000d" % number)
    assert Looks(data).count == 1
    (newest,) = data.glob("*.snapshot")
    newest.unlink()
    flipped = sorted(data.glob("*.segment"))[2]
    content = bytearray(flipped.read_bytes())
    content[content.index(b"%01000d" % 15)] ^= 1
    flipped.write_bytes(content)
    max(data.glob("*.segment")).unlink()
    found = Looks(data)
    assert found.count == 2
    assert len(found.facts().missing) == 2


def test_without_a_mark_an_audit_goes_by_the_snapshots(spark: SparkSession, data: Path) -> None:
    with penstock.open(data, segment_bytes=8192) as broker:
        queue = broker.queue("q")
        for number in range(30):
            queue.publish(b"%01000d" % number)
        queue.ack_many(queue.receive_many(3))
    (data / "mark").unlink()
    report = audit_directory(spark, data)
    (count,) = report.groups
    assert (count.published, count.stored, count.cleaned, count.pending) == (30, 27, 0, 24)
    assert count.lost == 3
    assert found(report)["lost", "q", None] == (3, [(27, 29)])
    (unread,) = [one for one in report.breaches if one.kind == "missing-commits"]
    assert "the mark is gone" in unread.detail
    assert len(report.breaches) == 2
    with penstock.open(data):  # which takes in what is there
        pass
    assert audit_directory(spark, data).ok


def test_a_segment_that_is_gone_is_a_loss(spark: SparkSession, data: Path) -> None:
    with penstock.open(data, segment_bytes=8192) as broker:
        queue = broker.queue("q")
        for number in range(30):
            queue.publish(b"%1000d" % number)
    segments = sorted(data.glob("*.segment"))
    index = {info.number: info.index.logs for info in Replica(data)._whole}
    entry = index[2][1]
    assert len(segments) > 3
    segments[1].unlink()
    report = audit_directory(spark, data)
    (count,) = report.groups
    assert (count.lost, count.cleaned) == (entry.rows, 0)
    assert found(report)["lost", "q", None] == (entry.rows, [(entry.first, entry.last)])
    assert any(one.kind == "missing-commits" for one in report.breaches)


def test_a_damaged_commit_of_settlements_is_not_passed_over(spark: SparkSession, data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders", retain_seconds=3600)
        orders.publish_many([b"%d" % number for number in range(20)])
        deliveries = orders.receive_many(20)
        segment = max(data.glob("*.segment"))
        mark = marks.read(Files(), data / "mark")
        assert mark is not None
        orders.ack_many(deliveries)
        orders.publish(b"behind it")
    assert audit_directory(spark, data).ok
    content = bytearray(segment.read_bytes())
    content[mark.end + 100] ^= 1  # in the commit that followed
    segment.write_bytes(content)
    found = audit_directory(spark, data).breaches
    assert [one.kind for one in found if "are damaged" in one.detail] == ["missing-commits"]


def test_a_busy_directory_has_no_breach(spark: SparkSession, data: Path) -> None:
    with penstock.open(data, durability="os", segment_bytes=SEGMENT_BYTES) as broker:
        day = Day(broker, 7)
        for _ in range(400):
            day.step()
        day.tidy()
    report = audit_directory(spark, data)
    assert [str(one) for one in report.breaches] == []
    assert {how for one in report.groups for how in one.outcomes} >= {"acked", "dead", "retry"}
    assert sum(one.cleaned for one in report.groups) > 0
    whole = {(one.log, one.group): one for one in report.groups if one.namespace == "default"}
    with penstock.open(data) as broker:
        for group in ("all", "eu"):
            assert whole["events", group].pending == broker.topic("events").subscription(group).lag()


def test_no_false_alarm_beside_a_broker_that_works_and_is_killed(spark: SparkSession, data: Path) -> None:
    for seed in range(2):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.busy", str(data), str(seed)],
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"working\n"
            report = audit_directory(spark, data)
            assert child.poll() is None
        finally:
            child.kill()
            child.communicate()
        assert [str(one) for one in report.breaches] == []
        assert report.messages
    assert audit_directory(spark, data).ok
