"""The archive: each row once, whatever breaks off when, for readers that know of nothing, and for the retention that waits for it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.clock import ManualClock, to_us
from penstock.errors import CorruptJournal, DirectoryLocked, InvalidArgument, QueueNotFound
from penstock.pipeline import archive as archiving
from penstock.pipeline.archive import Archived, Step, archive, compact, tables
from penstock.pipeline.changes import Changes
from penstock.pipeline.filing import SparkFiling, TaskFiling, filing
from penstock.pipeline.hadoop import Folder
from penstock.pipeline.schema import MESSAGES_TABLE
from tests.pipeline import injuries


class Killed(Exception):
    pass


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def publish(data: Path, count: int, queue: str = "orders", **policy: Any) -> list[int]:
    with penstock.open(data) as broker:
        return broker.queue(queue, **policy).publish_many([b"%d" % n for n in range(count)])


def ids(spark: SparkSession, to: Path) -> Counter[int]:
    """What the archive holds by its own account."""
    return Counter(row.id for row in tables(spark, to)["messages"].select("id").collect())


def plain(to: Path, table: str = "messages") -> list[dict[str, Any]]:
    """What any other reader of Parquet sees."""
    if not (to / table).exists():
        return []
    return ds.dataset(to / table, format="parquet", partitioning="hive").to_table().to_pylist()


def messages(spark: SparkSession, data: Path, to: Path, **options: Any) -> Archived:
    return archive(spark, data, to, tables=["messages"], **options)


# --- what is not in it ---


@pytest.mark.parametrize("way", [TaskFiling, SparkFiling])
def test_what_an_archive_could_not_read_is_told_once(
    spark: SparkSession, data: Path, to: Path, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "filing_of", way)
    segment, position = injuries.make(data)
    injuries.flip_message(data, 2, 8)
    injuries.flip(data, segment, position + 100)
    (data / f"{3:020d}.segment").unlink()
    done = archive(spark, data, to)
    assert done.rows == {"messages": 32, "settlements": 10, "deliveries": 0}
    lost = [one for one in done.skipped if one.kind == "lost"]
    assert [(one.namespace, one.log, one.count, one.offsets) for one in lost] == [
        ("default", "orders", 8, [(8, 8), (13, 19)])
    ]
    told = "; ".join(one.detail for one in done.skipped if one.kind == "missing-commits")
    for said in ("of segment 2 are", f"of segment {segment} are", "commits 16-22 of the journal are gone"):
        assert told.count(said) == 1
    with penstock.open(data) as broker:  # which takes in what was lost
        broker.queue("orders").publish(b"new")
    assert archive(spark, data, to).skipped == []


def test_an_archive_without_a_mark_says_what_it_could_not_read(
    spark: SparkSession, data: Path, to: Path
) -> None:
    injuries.make(data)
    (data / "mark").unlink()
    done = archive(spark, data, to)
    (unread,) = done.skipped
    assert "the mark is gone" in unread.detail
    before = done.rows["messages"]
    assert 30 < before < 40
    with penstock.open(data):
        pass
    done = archive(spark, data, to)
    assert (done.rows["messages"], done.skipped) == (40 - before, [])


# --- what is in it ---


def test_rows_are_missing_or_changed(spark: SparkSession, data: Path, to: Path) -> None:
    """All that the source gives is in the archive, by namespace, log and day, and what comes later is added."""
    clock = ManualClock(to_us(datetime(2026, 11, 15, 23, 59, 59, tzinfo=UTC), "start"))
    zone = spark.conf.get("spark.sql.session.timeZone")
    with penstock.open(data, clock=clock) as broker:
        orders = broker.queue("orders:eu", max_attempts=1)
        orders.publish(b"one", key="k", headers={"a": "1"}, priority=3)
        clock.advance(2)
        orders.publish(b"two")
        orders.receive().ack()  # type: ignore[union-attr]
        orders.receive().reject(error="no")  # type: ignore[union-attr]
        broker.namespace("other").topic("events").publish(b"three")
    spark.conf.set(
        "spark.sql.session.timeZone", "Asia/Tokyo"
    )  # a day of the archive is a day in UTC all the same
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        steps: list[Step] = []
        done = archive(spark, data, to, progress=steps.append)
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert done.rows == {"messages": 4, "settlements": 2, "deliveries": 2}
    assert [(step.what, step.table, step.rows) for step in steps] == [
        ("archived", "deliveries", 2), ("archived", "settlements", 2), ("archived", "messages", 4)
    ]  # fmt: skip
    found = tables(spark, to)
    for name, table in found.items():
        reader = spark.read.format("penstock").option("table", name).option("namespace", "*")
        if name == "messages":
            reader = reader.option("columns", ",".join(MESSAGES_TABLE.columns))
        source = reader.load(str(data))
        assert table.columns == [*source.columns, "day"]
        assert rows_of(table.drop("day")) == rows_of(source)
    days = {(row.topic, row.day) for row in found["messages"].collect()}
    assert ("orders:eu", date(2026, 11, 15)) in days
    assert ("orders:eu", date(2026, 11, 16)) in days
    assert sorted(row["payload"] for row in plain(to)) == [b"one", b"three", b"two", b"two"]
    assert {row["day"] for row in plain(to)} == {"2026-11-15", "2026-11-16"}
    assert (
        len(
            list(
                to.glob(
                    "messages/namespace=default/topic=orders%3Aeu/day=2026-11-15/part-0000000000-*.parquet"
                )
            )
        )
        == 1
    )
    [headed] = [dict(row["headers"]) for row in plain(to) if row["payload"] == b"one"]
    assert headed == {"a": "1"}
    assert (
        str(ds.dataset(to / "messages", partitioning="hive").schema.field("timestamp").type)
        == "timestamp[us, tz=UTC]"
    )


def rows_of(frame: Any) -> list[str]:
    return sorted(map(repr, frame.collect()))


def test_a_second_run_takes_in_nothing_or_everything_again(spark: SparkSession, data: Path, to: Path) -> None:
    first = publish(data, 25)
    assert messages(spark, data, to, batch_rows=10).rows == {"messages": 25}
    assert messages(spark, data, to).rows == {"messages": 0}
    second = publish(data, 5, "late")
    assert messages(spark, data, to).rows == {"messages": 5}
    assert ids(spark, to) == Counter([*first, *second])
    assert Counter(row["id"] for row in plain(to)) == Counter([*first, *second])
    numbers = {path.name[:15] for path in to.glob("messages/**/*.parquet")}
    assert numbers == {"part-0000000000", "part-0000000001", "part-0000000002", "part-0000000003"}


def test_what_happened_is_archived_again_with_what_happens_next(
    spark: SparkSession, data: Path, to: Path
) -> None:
    publish(data, 6)
    for _ in range(2):
        with penstock.open(data) as broker:
            orders = broker.queue("orders")
            orders.ack_many(orders.receive_many(3))
        assert archive(spark, data, to, tables=["settlements"]).rows == {"settlements": 3}
    assert sorted(row["offset"] for row in plain(to, "settlements")) == list(range(6))


def test_elsewhere_than_in_files_of_this_machine_the_archive_is_another(
    spark: SparkSession, data: Path, to: Path
) -> None:
    """On a file system that only Hadoop knows (here one that it makes of this machine's), Spark writes the files itself; what is in them is the same."""
    with penstock.open(data) as broker:
        for name in ("orders:eu", "invoices"):
            queue = broker.queue(name)
            queue.publish_many([b"%d" % number for number in range(20)])
            queue.ack_many(queue.receive_many(5))
        broker.queue("orders:eu").publish(b"x", key="k", headers={"a": "1"}, priority=3)
    settings: Any = spark._jsc.hadoopConfiguration()
    settings.set("fs.viewfs.mounttable.lakes.link./lake", to.with_name("mounted").as_uri())
    to.with_name("mounted").mkdir()
    there = "viewfs://lakes/lake/archive"
    assert Folder(spark, there).local is None
    assert archive(spark, data, there).rows == archive(spark, data, to).rows
    assert archive(spark, data, there).rows == dict.fromkeys(("messages", "settlements", "deliveries"), 0)
    ours, theirs = tables(spark, to), tables(spark, there)
    for name, table in ours.items():
        assert rows_of(table) == rows_of(theirs[name])
    mounted = to.with_name("mounted") / "archive"
    for name in ours:
        folders = {path.parent.relative_to(to) for path in to.glob(f"{name}/**/*.parquet")}
        assert folders == {path.parent.relative_to(mounted) for path in mounted.glob(f"{name}/**/*.parquet")}
        assert (
            ds.dataset(to / name, partitioning="hive")
            .schema.remove_metadata()
            .equals(ds.dataset(mounted / name, partitioning="hive").schema.remove_metadata())
        )


def test_files_that_are_to_be_encrypted_are_written_in_plain(spark: SparkSession, tmp_path: Path) -> None:
    """Only Spark knows the keys: then it writes them."""
    place = Folder(spark, tmp_path), MESSAGES_TABLE, "staging"
    assert isinstance(filing(spark, *place), TaskFiling)
    spark.conf.set("parquet.crypto.factory.class", "org.example.Keys")
    try:
        assert isinstance(filing(spark, *place), SparkFiling)
    finally:
        spark.conf.unset("parquet.crypto.factory.class")


# --- broken off ---


def break_off(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, after: int, *, done: bool = False
) -> None:
    """The n-th call of something dies, before or after it is done."""
    real: Callable[..., Any] = getattr(where, name)
    calls = 0

    def dying(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after and not done:
            raise Killed
        result = real(*arguments, **named)
        if calls == after:
            raise Killed
        return result

    monkeypatch.setattr(where, name, dying)


def test_a_batch_is_lost_or_doubled(
    spark: SparkSession, data: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four runs die at different places, each after what the one before has left."""
    known = [*publish(data, 10), *publish(data, 10, "invoices")]

    def dying(where: type, name: str, after: int, *, done: bool = False) -> Counter[int]:
        with monkeypatch.context() as patch:
            break_off(patch, where, name, after, done=done)
            with pytest.raises(Killed):
                messages(spark, data, to)
        return ids(spark, to)

    assert dying(Changes, "make", 1) == Counter(), "nothing is decided"
    assert not plain(to)
    assert dying(Changes, "_carry_out", 1) == Counter(), "it is decided, and nothing is moved"
    more = [*publish(data, 5), *publish(data, 5, "invoices")]
    # Three files get other names when the last change is brought to its end; then comes the next intent, and the first of two files.
    assert dying(Folder, "rename", 6) == Counter(known)
    assert len(plain(to)) == len(known) + 5, "half of it is moved, and readers who know of nothing see that"
    last = publish(data, 5)
    assert dying(Changes, "make", 1, done=True) == Counter([*known, *more, *last]), (
        "only Spark has not noted it"
    )
    publish(data, 0, "other")
    assert messages(spark, data, to).rows == {"messages": 0}
    assert ids(spark, to) == Counter([*known, *more, *last])
    assert Counter(row["id"] for row in plain(to)) == Counter([*known, *more, *last])
    assert not list(to.glob("_archive/staging/messages/*"))


def test_the_archive_trusts_a_strange_checkpoint(spark: SparkSession, data: Path, to: Path) -> None:
    publish(data, 3)
    messages(spark, data, to)
    kept = to / "kept"
    shutil.copytree(to / "_archive/checkpoints", kept)
    shutil.rmtree(to / "_archive/checkpoints")
    with pytest.raises(CorruptJournal, match="archive into another folder"):
        messages(spark, data, to)
    # A power cut may leave empty files that Spark has not synced; what it repeats then is known.
    shutil.rmtree(to / "_archive/checkpoints", ignore_errors=True)
    shutil.copytree(kept, to / "_archive/checkpoints")
    (to / "_archive/checkpoints/messages/commits/.0.crc").unlink()
    (to / "_archive/checkpoints/messages/commits/0").write_bytes(b"")
    publish(data, 2)
    assert messages(spark, data, to).rows == {"messages": 2}
    assert sum(ids(spark, to).values()) == 5


# --- small files ---


@pytest.fixture
def scattered(spark: SparkSession, data: Path, to: Path) -> list[int]:
    """Five small files, of a day that is over."""
    with penstock.open(
        data, clock=ManualClock(to_us(datetime(2026, 11, 14, 12, tzinfo=UTC), "start"))
    ) as broker:
        known = broker.queue("orders").publish_many([b"%d" % n for n in range(50)])
    messages(spark, data, to, batch_rows=10, compact=False)
    assert len(list(to.glob("messages/**/*.parquet"))) == 5
    return known


def test_compacting_loses_or_doubles_rows(
    spark: SparkSession, data: Path, to: Path, scattered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(tables(spark, to)["messages"])
    for where, name, after, done in [
        (Changes, "make", 1, False),
        (Changes, "_carry_out", 1, False),
        (Changes, "_carry_out", 1, True),
    ]:
        with monkeypatch.context() as patch:
            break_off(patch, where, name, after, done=done)
            with pytest.raises(Killed):
                compact(spark, to)
        assert rows_of(tables(spark, to)["messages"]) == before
    assert len(plain(to)) == 100, "what was compacted and what it was made of are both there now"
    steps: list[Step] = []
    assert compact(spark, to, progress=steps.append) == 0
    assert rows_of(tables(spark, to)["messages"]) == before
    assert [path.name for path in to.glob("messages/**/*.parquet")] == ["compact-0000000005-00000.parquet"]
    assert [row["offset"] for row in plain(to)] == list(range(50))
    publish(data, 1)
    assert messages(spark, data, to).rows == {"messages": 1}
    assert sum(ids(spark, to).values()) == 51


def test_files_of_today_or_large_ones_are_compacted(
    spark: SparkSession, data: Path, to: Path, scattered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_today", lambda: date(2026, 11, 14))
    assert compact(spark, to) == 0
    size = max(path.stat().st_size for path in to.glob("messages/**/*.parquet"))
    monkeypatch.setattr(archiving, "SMALL_BYTES", size + 1)
    monkeypatch.setattr(archiving, "FILE_BYTES", 2 * size)
    assert compact(spark, to, every_day=True) == 2
    assert len(list(to.glob("messages/**/*.parquet"))) == 3
    monkeypatch.setattr(archiving, "SMALL_BYTES", 1)
    assert compact(spark, to, every_day=True) == 0
    monkeypatch.undo()
    assert messages(spark, data, to).compacted == 2
    assert ids(spark, to) == Counter(scattered)


# --- the broker waits for it ---


def held(data: Path, queue: str = "orders") -> list[bytes]:
    with penstock.open(data) as broker:
        return [message.payload for message in broker.queue(queue).reader("somebody").read_many(100)]


def drain(data: Path, queue: str = "orders") -> None:
    with penstock.open(data) as broker:
        orders = broker.queue(queue)
        orders.ack_many(orders.receive_many(100))


def test_retention_drops_what_is_not_archived_or_keeps_what_is(
    spark: SparkSession, data: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(data, 3, retain="until-archived")
    drain(data)
    assert len(held(data)) == 3
    with monkeypatch.context() as patch:
        break_off(patch, Changes, "_carry_out", 1)
        with pytest.raises(Killed):
            messages(spark, data, to)
    assert len(held(data)) == 3, "it is not archived yet"
    done = archive(spark, data, to)
    assert done.waiting == []
    publish(data, 2)
    drain(data)
    assert held(data) == [b"0", b"1"]
    with penstock.open(data) as broker:
        assert broker.queue("orders").stats().readers["penstock.archive"] == 2, "so many behind"
        sequences = broker._port.monitor.engine.sequences  # type: ignore[attr-defined]
    settled, delivered = _ends(spark, to)
    assert sequences["penstock.archive"] == min(settled, delivered) > 0
    with monkeypatch.context() as patch:
        break_off(patch, Changes, "make", 2)
        with pytest.raises(Killed):
            archive(spark, data, to)
    assert _ends(spark, to)[0] == settled < _ends(spark, to)[1], "one is ahead, and the other counts"
    with penstock.open(data) as broker:
        assert broker._port.monitor.engine.sequences["penstock.archive"] == settled  # type: ignore[attr-defined]


def _ends(spark: SparkSession, to: Path) -> list[int]:
    """The last commits that settlements and deliveries are archived to."""
    ends = [
        Changes(Folder(spark, to), "_archive", name).total().end for name in ("settlements", "deliveries")
    ]
    return [end["sequence"] for end in ends if end is not None]


def test_an_archive_of_some_logs_speaks_for_all(spark: SparkSession, data: Path, to: Path) -> None:
    publish(data, 3, "orders", retain="until-archived")
    publish(data, 3, "invoices", retain="until-archived")
    done = archive(spark, data, to, topics=["orders"], tables=["settlements", "messages"])
    assert done.waiting == ["default/invoices"]
    assert done.rows == {"settlements": 0, "messages": 3}
    with penstock.open(data) as broker:
        assert broker._port.monitor.engine.sequences == {}  # type: ignore[attr-defined]
        assert broker.queue("orders").stats().readers == {"penstock.archive": 0}
        assert broker.queue("invoices").stats().readers == {}


# --- going on ---


def test_a_continuous_run_ends_or_misses_what_comes(spark: SparkSession, data: Path, to: Path) -> None:
    known = publish(data, 3)
    seen = 0

    def noticed(step: Step) -> None:
        nonlocal seen
        seen += step.rows

    def until() -> Iterator[bool]:
        while seen < 3:
            yield False
        known.extend(publish(data, 4))
        while seen < 7:
            yield False
        yield True

    asked = until()
    done = messages(
        spark, data, to, continuous=True, interval_s=0.2, until=lambda: next(asked), progress=noticed
    )
    assert done.rows == {"messages": 7}
    assert ids(spark, to) == Counter(known)
    assert not spark.streams.active


# --- what is refused ---


def test_what_cannot_be_archived_is_not_said(spark: SparkSession, data: Path, to: Path) -> None:
    publish(data, 1)
    with pytest.raises(InvalidArgument, match="is no archive"):
        tables(spark, to)
    with pytest.raises(InvalidArgument, match="give some of messages"):
        archive(spark, data, to, tables=["message"])
    with pytest.raises(InvalidArgument, match="give a list"):
        archive(spark, data, to, topics="orders")
    with pytest.raises(InvalidArgument, match="above 0"):
        archive(spark, data, to, interval_s=0)
    with pytest.raises(InvalidArgument, match="is no directory"):
        archive(spark, data / "nothing", to)
    with pytest.raises(
        QueueNotFound, match="there is no queue or topic nothing to archive; there are: orders"
    ):
        archive(spark, data, to, topics=["nothing"])
    archive(spark, data, to, topics=["orders"])
    with pytest.raises(
        InvalidArgument, match="is an archive of orders, not of everything in namespace default"
    ):
        archive(spark, data, to, namespace="default")
    publish(data.with_name("another"), 1)
    with pytest.raises(InvalidArgument, match="is an archive of the directory .*data, not of .*another"):
        archive(spark, data.with_name("another"), to, topics=["orders"])
    with Folder(spark, to).owned("_archive/lock", "x"), pytest.raises(DirectoryLocked):
        archive(spark, data, to, topics=["orders"])
    (to / "_archive/archive.json").write_text('{"version": 99, "namespace": "*", "topics": null}')
    (to / "_archive/.archive.json.crc").unlink()
    with pytest.raises(InvalidArgument, match="version 99"):
        tables(spark, to)
