"""The source as a stream: each message once, in order, from a checkpoint that is never ahead of what is on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.clock import ManualClock
from penstock.errors import CorruptJournal, MaintenanceFailed, QueueNotFound
from penstock.journal import mark as marks
from penstock.journal.files import Files
from penstock.journal.reading import JournalReader
from penstock.pipeline.catalog import Catalog
from penstock.pipeline.source import PenstockDataSource
from tests.unit.pipeline.tables import Query, offsets, payloads, table


def test_a_stream_begins_at_the_latest_offset_or_where_it_is_told(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b"])
        latest, earliest = (
            Query(data, topic="orders"),
            Query(data, topic="orders", startingOffsets="earliest"),
        )
        second = Query(data, topic="orders", startingOffsets='{"orders": 1}')
        assert (latest.payloads(), earliest.payloads(), second.payloads()) == ([], [b"a", b"b"], [b"b"])
        orders.publish(b"c")
        assert (latest.payloads(), earliest.payloads(), second.payloads()) == ([b"c"], [b"c"], [b"c"])
        assert latest.payloads() == []


def test_a_stream_goes_on_from_its_checkpoint(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 14) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a"] * 10)
        query = Query(data, startingOffsets="earliest")
        assert len(query.payloads()) == 10
        orders.publish_many([b"b%d" % number for number in range(1000)])
        again = Query(data, query.checkpoint)
        assert again.payloads() == [b"b%d" % number for number in range(1000)]
        # The same batch planned by another process gives the same rows.
        pieces = again.stream.partitions(query.checkpoint, again.checkpoint)
        assert sum(batch.num_rows for piece in pieces for batch in again.stream.read(piece)) == 1000


def test_limits_take_from_each_log_in_proportion(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("big").publish_many([b"x"] * 90)
        broker.queue("small").publish_many([b"y"] * 10)
        query = Query(data, startingOffsets="earliest", maxOffsetsPerTrigger=20)
        first = payloads(query.batch())
        assert (first.count(b"x"), first.count(b"y")) == (18, 2)
        taken = [first, *(payloads(query.batch()) for _ in range(6))]
        assert [len(batch) for batch in taken] == [20, 20, 20, 20, 20, 0, 0]
        assert sum(batch.count(b"y") for batch in taken) == 10


def test_available_now_ends_where_it_began(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a"] * 10)
        query = Query(data, startingOffsets="earliest", maxOffsetsPerTrigger=4)
        query.stream.prepareForTriggerAvailableNow()
        orders.publish_many([b"b"] * 10)
        assert [len(query.payloads()) for _ in range(4)] == [4, 4, 2, 0]
        assert query.stream.reportLatestOffset()["logs"]["default/orders"][2] == 20


def test_logs_that_come_later_are_read_from_their_beginning(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("a1").publish(b"old")
        query = Query(data, topicPattern="a.*")
        assert query.payloads() == []
        broker.queue("a2").publish(b"new")
        broker.queue("b").publish(b"other")
        assert query.payloads() == [b"new"]


def test_events_are_streamed_in_the_order_in_which_they_happened(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b", b"c", b"d"])
        query = Query(data, table="settlements", startingOffsets="earliest", maxOffsetsPerTrigger=2)
        late = Query(data, table="deliveries")
        assert query.batch().num_rows == 0
        for delivery in reversed(orders.receive_many(3)):
            delivery.ack()
        assert [offsets(query.batch()) for _ in range(3)] == [[2, 1], [0], []]
        assert offsets(late.batch()) == [0, 1, 2]
        query = Query(data, query.checkpoint, table="settlements")
        orders.ack_many(orders.receive_many(1))
        assert offsets(query.batch()) == [3]


def test_events_can_be_streamed_from_a_time_on(data: Path) -> None:
    clock = ManualClock()
    with penstock.open(data, clock=clock) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b"])
        first, second = orders.receive_many(2)
        first.ack()
        clock.advance(10)
        second.ack()
        query = Query(data, table="settlements", startingTimestamp=clock.now_us() // 1000 - 5000)
        assert offsets(query.batch()) == [1]


# --- the checkpoint is never ahead of the disk ---


def power_cut(data: Path, to: Path) -> None:
    """What is on the disk: every file as it is, but the journal's last segment only as far as it is synced, and no mark of that."""
    shutil.copytree(data, to)
    mark = marks.read(Files(), data / "mark")
    assert mark is not None
    segment = to / f"{mark.segment:020d}.segment"
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.truncate(mark.end)
        file.truncate(size)


def test_what_is_not_synced_is_not_read_so_a_power_cut_leaves_no_checkpoint_ahead_of_the_log(
    data: Path, tmp_path: Path
) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"synced"] * 3)
    broker = penstock.open(data, durability="os")
    orders = broker.queue("orders")
    orders.publish_many([b"unsynced"] * 3)
    query = Query(data, startingOffsets="earliest")
    before = query.payloads()
    assert before == [b"synced"] * 3
    power_cut(data, tmp_path / "after")
    broker.close()
    with penstock.open(tmp_path / "after") as revived:
        orders = revived.queue("orders")
        orders.publish_many([b"other"] * 3)
        resumed = Query(tmp_path / "after", query.checkpoint)
        after = resumed.payloads()
        assert before + after == payloads(table(tmp_path / "after"))
        assert after.count(b"other") == 3


def test_a_mark_that_is_older_than_the_truth_is_waited_for(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish(b"a")
        early = (data / "mark").read_bytes()
        orders.publish(b"b")
        query = Query(data, startingOffsets="earliest")
        events = Query(data, table="deliveries", startingOffsets="latest")
        assert query.payloads() == [b"a", b"b"]
        truth = (data / "mark").read_bytes()
        (data / "mark").write_bytes(early)  # it is synced only at a clean end
        behind = Query(data, query.checkpoint)
        assert behind.payloads() == []
        assert behind.checkpoint["logs"] == query.checkpoint["logs"]
        assert Query(data, events.checkpoint, table="deliveries").batch().num_rows == 0
        (data / "mark").write_bytes(truth)
        orders.publish(b"c")
        assert behind.payloads() == [b"c"]


@pytest.mark.directory_only
def test_a_batch_that_was_planned_before_a_power_cut_is_not_read_in_part(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish(b"a")
        early = (data / "mark").read_bytes()
        orders.publish(b"b")
        orders.ack_many(orders.receive_many(2))
        truth = (data / "mark").read_bytes()
        for table_name, rows in (("messages", 2), ("settlements", 2)):
            query = Query(data, table=table_name, startingOffsets="earliest")
            start, end = (
                query.checkpoint,
                query.stream.latestOffset(query.checkpoint, query.stream.getDefaultReadLimit()),
            )
            (data / "mark").write_bytes(early)
            again = Query(
                data, start, table=table_name
            ).stream  # Spark has noted the end of the batch, and was killed
            with pytest.raises(MaintenanceFailed, match="open it once"):
                again.partitions(start, end)
            (data / "mark").write_bytes(truth)
            assert (
                sum(batch.num_rows for piece in again.partitions(start, end) for batch in again.read(piece))
                == rows
            )


def test_a_snapshot_that_is_ahead_of_the_mark_skips_no_message(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish(b"a")
        early = (data / "mark").read_bytes()
        orders.publish_many([b"b", b"c"])
    truth = (data / "mark").read_bytes()
    (data / "mark").write_bytes(early)  # it was not synced when the power went, and the snapshot was
    query = Query(data, startingOffsets="earliest", topic="orders")
    heard = query.payloads()
    (data / "mark").write_bytes(truth)
    assert heard + query.payloads() == [b"a", b"b", b"c"]


@pytest.mark.directory_only
def test_a_mark_that_is_older_than_both_snapshots_is_looked_at_twice(data: Path) -> None:
    class Looks(Catalog):
        count = 0

        def _take_snapshot(self) -> None:
            self.count += 1
            super()._take_snapshot()

    with penstock.open(data) as broker:
        early = (data / "mark").read_bytes()
        broker.queue("orders").publish(b"a")
        broker._port.monitor.upkeep.run()  # type: ignore[attr-defined]
        broker.queue("orders").publish(b"b")
    (data / "mark").write_bytes(early)
    assert Looks(data).count == 2


# --- what was read is not what is there now ---


def test_a_log_that_was_cut_below_the_checkpoint_is_noticed(data: Path, tmp_path: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"a"] * 3)
    shutil.copytree(data, tmp_path / "backup")
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"b"] * 3)
    query = Query(data, startingOffsets="earliest")
    assert len(query.payloads()) == 6
    for _ in range(3):  # it has had other lives since
        with penstock.open(tmp_path / "backup"):
            pass
    with pytest.raises(
        CorruptJournal, match="default/orders was cut: the checkpoint is at offset 6, and the log ends at 3"
    ):
        Query(tmp_path / "backup", query.checkpoint).batch()
    with penstock.open(tmp_path / "backup") as broker:
        broker.queue("orders").publish_many([b"c"] * 5)
        with pytest.raises(CorruptJournal, match="default/orders was cut below offset 6, and written again"):
            Query(tmp_path / "backup", query.checkpoint).batch()
        going_on = Query(tmp_path / "backup", query.checkpoint, failOnDataLoss="false")
        assert going_on.payloads() == [b"c"] * 2


def test_a_log_that_was_made_again_is_noticed_and_read_from_its_beginning_if_that_is_wanted(
    data: Path,
) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"old"] * 3)
        query = Query(data, startingOffsets="earliest")
        query.batch()
        broker.delete_queue("orders")
        broker.queue("orders").publish_many([b"new"] * 5)
        with pytest.raises(CorruptJournal, match="deleted and made again since the checkpoint"):
            Query(data, query.checkpoint).batch()
        with pytest.raises(CorruptJournal, match="deleted and made again since the checkpoint"):
            query.batch()
        assert Query(data, query.checkpoint, failOnDataLoss="false").payloads() == [b"new"] * 5


def test_a_log_that_was_deleted_is_noticed(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"a")
        broker.queue("others").publish(b"a")
        query = Query(data, startingOffsets="earliest")
        query.batch()
        broker.delete_queue("orders")
        with pytest.raises(CorruptJournal, match="default/orders was deleted since the checkpoint"):
            query.batch()
        assert Query(data, query.checkpoint, failOnDataLoss="false").payloads() == []
        with pytest.raises(QueueNotFound):
            Query(data, topic="orders")


# --- while the owner works ---


def test_a_stream_is_not_disturbed_by_rotation_cleaning_and_rewriting(data: Path) -> None:
    said: list[bytes] = []
    heard: list[bytes] = []
    with penstock.open(data, segment_bytes=1 << 14) as broker:
        orders = broker.queue("orders")
        kept = broker.queue("kept")
        query = Query(data, startingOffsets="earliest", maxOffsetsPerTrigger=150)
        for number in range(80):
            batch = [b"%d-%d %s" % (number, row, b"x" * 50) for row in range(50)]
            orders.publish_many(batch)
            kept.publish(b"%d" % number)
            said += [*batch, b"%d" % number]
            heard += query.payloads()
            if (
                number % 5 == 4
            ):  # only what was read is settled: nothing holds it for a stream that has no reader
                orders.ack_many(orders.receive_many(200))
                broker._port.monitor.upkeep.run()  # type: ignore[attr-defined]
        heard += query.payloads()
    assert sorted(heard) == sorted(said)


def test_pieces_are_read_even_if_their_segments_were_rewritten_meanwhile(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 14) as broker:
        orders, kept = broker.queue("orders"), broker.queue("kept")
        for number in range(40):
            orders.publish_many([b"%d-%d %s" % (number, row, b"x" * 50) for row in range(50)])
            kept.publish(b"%d" % number)
        query = Query(data, topic="kept", startingOffsets="earliest")
        end = query.stream.latestOffset(query.checkpoint, query.stream.getDefaultReadLimit())
        pieces = query.stream.partitions(query.checkpoint, end)
        while deliveries := orders.receive_many(1000):
            orders.ack_many(deliveries)
        names = {path.name: path.stat().st_ino for path in data.glob("*.segment")}
        for _ in range(3):
            kept.publish(b"more")
            broker._port.monitor.upkeep.run()  # type: ignore[attr-defined]
        assert any(names.get(path.name) not in (None, path.stat().st_ino) for path in data.glob("*.segment"))
        found = [
            payload
            for piece in pieces
            for batch in query.stream.read(piece)
            for payload in batch.column("payload").to_pylist()
        ]
    assert found == [b"%d" % number for number in range(40)]


def test_what_is_committed_while_somebody_looks_is_in_the_next_batch(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        query = Query(data, topic="orders", startingOffsets="earliest")
        said: list[bytes] = []
        heard: list[bytes] = []
        for name in ("frames", "offset_at", "epoch_of"):
            original = getattr(JournalReader, name)

            def busy(*arguments: object, original: Any = original) -> Any:
                """The broker does not wait for whoever looks."""
                payload = b"%d" % len(said)
                orders.publish(payload)
                said.append(payload)
                return original(*arguments)

            monkeypatch.setattr(JournalReader, name, busy)
        for number in range(5):
            broker.queue(f"other-{number}")  # something that must be looked at
            orders.publish(b"+%d" % number)
            said.append(b"+%d" % number)
            heard += query.payloads()
            query = Query(data, query.checkpoint, topic="orders")
        monkeypatch.undo()
        heard += query.payloads()
    assert heard == said
    assert len(said) > 8


def test_what_two_snapshots_cover_is_known_though_its_segment_is_gone(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        orders = broker.queue("orders")
        query = Query(data, topicPattern=".*", startingOffsets="earliest", failOnDataLoss="false")
        query.batch()
        broker.queue("late")
        upkeep = broker._port.monitor.upkeep  # type: ignore[attr-defined]
        first = max(data.glob("*.segment"))
        for _ in range(6):
            orders.publish_many([b"%d %s" % (row, b"x" * 100) for row in range(100)])
            orders.ack_many(orders.receive_many(100))
            upkeep.run()
        assert not first.exists()
        broker.queue("late").publish(b"hello")
        assert query.payloads()[-1:] == [b"hello"]


def test_a_segment_that_is_dropped_while_somebody_looks_is_not_missing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        orders = broker.queue("orders")
        for _ in range(5):
            orders.publish_many([b"%d %s" % (row, b"x" * 100) for row in range(100)])
        upkeep = broker._port.monitor.upkeep  # type: ignore[attr-defined]
        upkeep.run()
        query = Query(data, topic="orders", startingOffsets="earliest")
        query.batch()
        read = marks.read_beside_owner
        cleaned: list[bool] = []

        def slow(files: Files, path: Path) -> Any:
            """Between the mark and the names, the cleaner comes by."""
            mark = read(files, path)
            if not cleaned:
                cleaned.append(True)
                while deliveries := orders.receive_many(100):
                    orders.ack_many(deliveries)
                for _ in range(2):
                    orders.publish(b"more")
                    upkeep.run()
            return mark

        monkeypatch.setattr(marks, "read_beside_owner", slow)
        query.batch()  # it would say that segments are missing
    assert cleaned


def consume(broker: Any, name: str, rounds: int) -> None:
    """Publish, acknowledge and clean."""
    queue = broker.queue(name)
    for _ in range(rounds):
        queue.publish_many([b"%d %s" % (row, b"x" * 100) for row in range(100)])
        queue.ack_many(queue.receive_many(100))
        broker._port.monitor.upkeep.run()


def test_messages_that_were_cleaned_before_they_were_read_are_noticed(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        orders = broker.queue("orders")
        orders.publish(b"a")
        query = Query(data, topicPattern="o.*|new", startingOffsets="earliest")
        assert query.payloads() == [b"a"]
        orders.publish_many([b"b"] * 9)
        planned = query.stream.latestOffset(query.checkpoint, query.stream.getDefaultReadLimit())
        orders.ack_many(orders.receive_many(10))
        consume(broker, "orders", 6)
        consume(broker, "new", 6)
        said = r"\d+ messages of default/{} were cleaned before .* \(offsets {} to \d+\); to read the rest"
        with pytest.raises(CorruptJournal, match=said.format("(orders|new)", "[01]")):
            Query(data, query.checkpoint, topicPattern="o.*|new").batch()
        again = Query(data, query.checkpoint, topicPattern="o.*|new")
        with pytest.raises(CorruptJournal, match=said.format("orders", 1)):
            again.stream.partitions(query.checkpoint, planned)  # which an earlier process had planned
        with pytest.raises(CorruptJournal, match=said.format("new", 0)):
            Query(data, {**query.checkpoint, "logs": {}}, topic="new").batch()
        going_on = Query(data, query.checkpoint, topicPattern="o.*|new", failOnDataLoss="false")
        assert 0 < len(going_on.payloads()) < 1200
        strict = Query(data, going_on.checkpoint, topicPattern="o.*|new")  # it was said once
        orders.publish(b"c")
        assert strict.payloads() == [b"c"]


def test_what_was_cleaned_before_a_stream_began_is_no_loss_to_it(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"%d %s" % (row, b"x" * 100) for row in range(40)])
        orders.publish_many([b"%d %s" % (row, b"x" * 100) for row in range(40, 100)])
        taken = orders.receive_many(100)
        orders.ack_many([one for row, one in enumerate(taken) if row % 10])
        consume(broker, "aside", 3)  # both snapshots cover that, and segments are rewritten
        there = offsets(table(data, topic="orders"))
        assert there == list(range(0, 100, 10))
        checkpoint, heard = None, []
        for _ in range(20):  # a process for each batch
            query = Query(
                data, checkpoint, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger=7
            )
            heard += offsets(query.batch())
            checkpoint = query.checkpoint
        assert heard == there


@pytest.mark.directory_only
def test_no_events_are_gone_between_a_commit_and_itself(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        consume(broker, "orders", 6)
        catalog = Catalog(data)
        assert catalog.without_events(1, catalog.mark.sequence) is not None
        assert not any(catalog.without_events(one, one) for one in range(catalog.mark.sequence))


def test_events_whose_last_segment_is_gone_are_noticed(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        consume(broker, "orders", 1)
        query = Query(data, table="settlements", startingOffsets="earliest")
        assert query.batch().num_rows == 100
        broker.queue("orders").publish_many([b"x" * 100] * 100)
        broker.queue("orders").ack_many(broker.queue("orders").receive_many(100))
    if len(list(data.glob("*.segment"))) > 1:
        max(data.glob("*.segment")).unlink()
    with pytest.raises(CorruptJournal, match="was cleaned before it was read|are missing"):
        Query(data, query.checkpoint, table="settlements").batch()
    with pytest.raises(CorruptJournal, match="are missing"):
        Query(data, table="settlements", startingOffsets="earliest").batch()


@pytest.mark.directory_only
def test_without_a_mark_what_is_not_sealed_is_a_loss_until_the_directory_was_opened(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        for number in range(30):
            broker.queue("orders").publish(b"%01000d" % number)
    (data / "mark").unlink()
    said = r"the mark .* is gone, so commits \d+ to \d+ \(offsets default/orders 27 to 29\) cannot be read"
    ways: list[dict[str, Any]] = [{}, {"topic": "orders"}, {"table": "settlements"}]
    for given in ways:
        with pytest.raises(CorruptJournal, match=said):
            table(data, **given)
        with pytest.raises(CorruptJournal, match=said):
            Query(data, startingOffsets="earliest", **given).batch()
    query = Query(data, startingOffsets="earliest", failOnDataLoss="false")
    assert len(query.payloads()) == table(data, failOnDataLoss="false").num_rows == 27
    assert "is gone, so commits" in caplog.text
    with penstock.open(data):
        assert len(query.payloads()) == 3  # nothing was skipped


def test_events_that_were_cleaned_before_they_were_read_are_noticed(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        orders = broker.queue("orders")
        query = Query(data, table="settlements", startingOffsets="earliest")
        orders.publish(b"a")
        orders.ack_many(orders.receive_many(1))
        assert query.batch().num_rows == 1
        upkeep = broker._port.monitor.upkeep  # type: ignore[attr-defined]
        for _ in range(6):
            orders.publish_many([b"%d %s" % (row, b"x" * 100) for row in range(100)])
            orders.ack_many(orders.receive_many(100))
            upkeep.run()
        with pytest.raises(
            CorruptJournal, match=r"what happened in commits \d+ to \d+ was cleaned before it was read"
        ):
            Query(data, query.checkpoint, table="settlements").batch()
        going_on = Query(data, query.checkpoint, table="settlements", failOnDataLoss="false")
        assert 0 < going_on.batch().num_rows < 600
        assert Query(data, table="settlements", startingOffsets="earliest").batch().num_rows < 601
        orders.publish(b"b")
        orders.ack_many(orders.receive_many(1))
        assert going_on.batch().num_rows == 1


def test_a_stream_of_named_logs_can_go_on_without_one_that_was_deleted(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("a").publish(b"1")
        broker.queue("b").publish(b"1")
        query = Query(data, topic="a,b", startingOffsets="earliest")
        query.batch()
        broker.delete_queue("b")
        broker.queue("a").publish(b"2")
        with pytest.raises(CorruptJournal, match="default/b was deleted"):
            Query(data, query.checkpoint, topic="a,b").batch()
        again = Query(data, query.checkpoint, topic="a,b", failOnDataLoss="false")
        assert again.payloads() == [b"2"]
        PenstockDataSource({"path": str(data), "topic": "a,b", "failondataloss": "false"}).schema()
