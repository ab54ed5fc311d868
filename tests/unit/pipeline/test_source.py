"""The source in batches: everything comes out as it went in, once; options and filters choose exactly; damage is said."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema

import penstock
from penstock.clock import ManualClock, to_us
from penstock.errors import CorruptJournal, InvalidArgument, PenstockError, QueueNotFound
from penstock.pipeline import options, schema
from penstock.pipeline.source import PenstockDataSource
from tests.unit.pipeline.tables import offsets, payloads, planned, table

BEGIN = datetime(2026, 11, 16, tzinfo=UTC)


def test_both_schemas_of_a_table_agree_to_the_letter() -> None:
    for one in schema.TABLES.values():
        columns = tuple(one.columns)
        assert to_arrow_schema(schema.spark(one, columns), timezone="UTC").equals(schema.arrow(one, columns))


def test_a_message_comes_out_as_it_went_in(data: Path) -> None:
    clock = ManualClock(to_us(BEGIN, "BEGIN"))
    with penstock.open(data, clock=clock) as broker:
        orders = broker.queue("orders")
        given = orders.publish(
            b"\x00\xff", key="k", priority=3, delay=60, ttl=3600, headers={"a": "1", "ü": ""}, dedup_id="d-1"
        )
        plain = orders.publish(b"")
    found = table(data, includeHeaders="true").to_pylist()
    assert found == [
        {
            "namespace": "default", "topic": "orders", "offset": 0, "id": given, "timestamp": BEGIN, "key": "k",
            "payload": b"\x00\xff", "headers": [("a", "1"), ("ü", "")], "priority": 3, "deliver_at": BEGIN + timedelta(seconds=60),
            "expires_at": BEGIN + timedelta(seconds=3600), "target_group": None, "dedup_id": "d-1",
        },
        {
            "namespace": "default", "topic": "orders", "offset": 1, "id": plain, "timestamp": BEGIN, "key": None, "payload": b"",
            "headers": None, "priority": 100, "deliver_at": None, "expires_at": None, "target_group": None, "dedup_id": None,
        },
    ]  # fmt: skip


def test_what_happened_to_messages_are_tables(data: Path) -> None:
    clock = ManualClock(to_us(BEGIN, "BEGIN"))
    with penstock.open(data, clock=clock) as broker:
        orders = broker.queue("orders", max_attempts=1)
        first, second, third = orders.publish_many([b"a", b"b", b"c"])
        with orders.subscribe("worker") as worker:
            one = worker.receive()
            assert one is not None
            clock.advance(2)
            one.ack()
            two = worker.receive()
            assert two is not None
            two.nack(error=ValueError("no"))
        orders.purge()
    end = BEGIN + timedelta(seconds=2)
    settled = table(data, table="settlements", topic="orders").to_pylist()
    assert [
        (row["group"], row["offset"], row["id"], row["outcome"], row["attempt"], row["error"])
        for row in settled
    ] == [
        ("default", 0, first, "acked", 1, None),
        ("default", 1, second, "dead", 1, "ValueError: no"),
        ("default", 2, third, "purged", None, None),
    ]
    assert {row["time"] for row in settled} == {end}
    assert [row["sequence"] for row in settled] == sorted(row["sequence"] for row in settled)
    delivered = table(data, table="deliveries", topic="orders").to_pylist()
    assert [(row["offset"], row["id"], row["consumer"], row["time"]) for row in delivered] == [
        (0, first, "worker", BEGIN),
        (1, second, "worker", end),
    ]
    letter = table(data, topic="orders.dlq", includeHeaders="true").to_pylist()
    assert [row["payload"] for row in letter] == [b"b"]
    assert dict(letter[0]["headers"])["x-origin-id"] == str(second)


def fill(path: Path, *, segment_bytes: int = 1 << 16) -> list[bytes]:
    """A large log and a small one, in many segments, in batches and one by one."""
    said = []
    with penstock.open(path, segment_bytes=segment_bytes) as broker:
        big, small = broker.queue("big"), broker.queue("small")
        for number in range(60):
            batch = [b"%d-%d-%s" % (number, row, b"x" * 80) for row in range(100)]
            big.publish_many(batch)
            for row in range(3):
                big.publish(b"single %d-%d" % (number, row))
                batch.append(b"single %d-%d" % (number, row))
            said += batch
            if number % 20 == 10:
                small.publish(b"small %d" % number)
    return said


def test_every_message_is_read_once_in_order(data: Path) -> None:
    said = fill(data)
    found = table(data, topic="big")
    assert payloads(found) == said
    assert offsets(found) == list(range(len(said)))
    assert payloads(table(data, topic="small")) == [b"small 10", b"small 30", b"small 50"]
    assert table(data).num_rows == len(said) + 3


@pytest.mark.parametrize("parts", [1, 7, 100])
def test_more_partitions_hold_the_same(data: Path, parts: int) -> None:
    said = fill(data)
    _, pieces, _ = planned(data, topic="big", minPartitions=parts)
    assert len(pieces) >= min(parts, 20)
    assert payloads(table(data, topic="big", minPartitions=parts)) == said


def size(pieces: list[Any]) -> int:
    return sum(stretch.bytes for piece in pieces for stretch in piece.value.stretches)


@pytest.mark.directory_only
def test_a_task_where_the_directory_is_not_says_on_which_machine(data: Path) -> None:
    fill(data)
    reader, pieces, _ = planned(data, topic="small")
    data.rename(data.with_name("elsewhere"))
    with pytest.raises(InvalidArgument, match=f"{platform.node()}.*every worker"):
        list(reader.read(pieces[0]))


@pytest.mark.directory_only
def test_of_a_small_log_only_its_surroundings_are_read(data: Path) -> None:
    fill(data, segment_bytes=1 << 20)
    _, all_of_it, _ = planned(data)
    _, small, _ = planned(data, topic="small")
    assert size(small) < size(all_of_it) / 2


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 5), (99, 101), (100, 350), (6179, 6180), (0, 6180)])
def test_offsets_are_chosen_exactly(data: Path, start: int, stop: int) -> None:
    said = fill(data)
    places = {"startingOffsets": json.dumps({"big": start}), "endingOffsets": json.dumps({"big": stop})}
    found = table(data, topic="big", **places)
    assert offsets(found) == list(range(start, stop))
    assert payloads(found) == said[start:stop]


def test_times_are_chosen_exactly(data: Path) -> None:
    clock = ManualClock(to_us(BEGIN, "BEGIN"))
    with penstock.open(data, clock=clock) as broker:
        orders = broker.queue("orders")
        for number in range(10):
            orders.publish_many([b"%d" % number] * 3)
            clock.advance(1)

    def moment(seconds: int) -> str:
        return (BEGIN + timedelta(seconds=seconds)).isoformat()

    found = table(data, startingTimestamp=moment(2), endingTimestamp=moment(4))
    assert payloads(found) == [b"2"] * 3 + [b"3"] * 3
    assert payloads(table(data, startingTimestamp=moment(9))) == [b"9"] * 3
    assert payloads(table(data, startingTimestamp=moment(100))) == []


MANY = [
    EqualTo(("topic",), "big"), In(("topic",), ("big", "none")), GreaterThan(("offset",), 6000), GreaterThanOrEqual(("offset",), 6000),
    LessThan(("offset",), 7), LessThanOrEqual(("offset",), 7), EqualTo(("offset",), 103), EqualTo(("namespace",), "other"),
]  # fmt: skip
PASSES: dict[type, Any] = {
    EqualTo: lambda a, b: a == b, In: lambda a, b: a in b, GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b, LessThan: lambda a, b: a < b, LessThanOrEqual: lambda a, b: a <= b,
}  # fmt: skip


@pytest.mark.parametrize("filter", MANY, ids=str)
def test_a_filter_that_is_taken_over_is_applied_exactly(data: Path, filter: Any) -> None:
    fill(data)
    everything = table(data).to_pylist()
    _, _, left = planned(data, filter)
    assert left == []
    expected = [row for row in everything if PASSES[type(filter)](row[filter.attribute[0]], filter.value)]
    found = table(data, filter).to_pylist()
    key = lambda row: (row["topic"], row["offset"])  # noqa: E731
    assert sorted(found, key=key) == sorted(expected, key=key)


@pytest.mark.directory_only
def test_filters_by_time_leave_out_segments_and_go_back_to_spark(data: Path) -> None:
    clock = ManualClock(to_us(BEGIN, "BEGIN"))
    with penstock.open(data, clock=clock, segment_bytes=1 << 14) as broker:
        orders = broker.queue("orders")
        for number in range(20):
            orders.publish_many([b"%d-%d %s" % (number, row, b"x" * 100) for row in range(100)])
            clock.advance(60)
    _, everything, _ = planned(data)
    late = GreaterThan(("timestamp",), BEGIN + timedelta(minutes=18))
    early = LessThan(("timestamp",), BEGIN + timedelta(minutes=1))
    for one in (late, early):
        _, some, left = planned(data, one)
        assert left == [one]
        assert size(some) < size(everything) / 3
        wanted = [row for row in table(data).to_pylist() if PASSES[type(one)](row["timestamp"], one.value)]
        assert [
            row for row in table(data, one).to_pylist() if PASSES[type(one)](row["timestamp"], one.value)
        ] == wanted


def test_other_filters_go_back_to_spark(data: Path) -> None:
    fill(data)
    others = [IsNotNull(("topic",)), EqualTo(("key",), "k"), EqualTo(("headers", "a"), "b")]
    _, _, left = planned(data, *others)
    assert left == others


def test_a_table_can_be_read_as_it_was_at_a_commit(data: Path) -> None:
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b"])
        orders.publish(b"c")
        for delivery in orders.receive_many(3):
            delivery.ack()
    commits = table(data, table="settlements").column("sequence").to_pylist()
    found = table(data, table="settlements", asOf=commits[1])
    assert offsets(found) == [0, 1]
    assert payloads(table(data, asOf=commits[0] - 2)) == [b"a", b"b", b"c"]
    assert payloads(table(data, asOf=2)) in ([b"a", b"b"], [])


def test_settled_messages_may_be_gone_and_their_ids_with_them(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 14) as broker:
        orders = broker.queue("orders")
        for number in range(30):
            orders.publish_many([b"%d-%d %s" % (number, row, b"x" * 100) for row in range(50)])
        for _ in range(29):
            orders.ack_many(orders.receive_many(50))
        for _ in range(3):  # dropped are segments that two snapshots cover
            orders.publish(b"more")
            upkeep = broker._port.monitor.upkeep  # type: ignore[attr-defined]
            upkeep.run()
    found = table(data)
    assert 50 <= found.num_rows < 1500
    assert payloads(found)[-1] == b"more"


@pytest.mark.directory_only
def test_namespaces_are_apart_unless_all_are_wanted(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"mine")
        broker.namespace("tenant").queue("orders").publish(b"theirs")
    assert payloads(table(data)) == [b"mine"]
    assert payloads(table(data, namespace="tenant")) == [b"theirs"]
    found = table(data, namespace="*", startingOffsets='{"tenant/orders": 1}').to_pylist()
    assert [(row["namespace"], row["payload"]) for row in found] == [("default", b"mine")]


def test_a_log_that_was_deleted_is_gone_and_its_successor_is_another(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"old")
        broker.queue("gone").publish(b"old")
        broker.delete_queue("orders")
        broker.delete_queue("gone")
        broker.queue("orders").publish(b"new")
        assert payloads(table(data)) == [b"new"]
    assert payloads(table(data)) == [b"new"]
    with pytest.raises(QueueNotFound, match="there is no queue or topic gone .* there are: orders"):
        table(data, topic="gone")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": '{"orders": 4}'}, "orders has no offset 4 yet, its next one is 3"),
        ({"endingOffsets": '{"orders": 4}'}, "orders has no offset 4 yet, its next one is 3"),
        ({"startingOffsets": '{"other": 0}'}, "has offsets for other, which are not read; read are orders"),
    ],
)
def test_places_that_are_not_there_are_refused(data: Path, given: dict[str, str], said: str) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"a", b"b", b"c"])
    with pytest.raises(InvalidArgument, match=said):
        table(data, **given)


def test_what_is_no_directory_of_a_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is no directory"):
        table(tmp_path / "nowhere")
    with pytest.raises(CorruptJournal, match="is not a journal"):
        table(tmp_path)


def test_a_broker_in_which_nothing_is_yet_has_empty_tables(data: Path) -> None:
    with penstock.open(data):
        for name in schema.TABLES:
            assert table(data, table=name).num_rows == 0


# --- loss ---


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_damage_fails_a_read_unless_it_is_told_to_go_on(data: Path) -> None:
    said = fill(data)
    victim = sorted(data.glob("*.segment"))[2]
    flip(victim, victim.stat().st_size // 2)
    with pytest.raises(
        CorruptJournal,
        match="are damaged; to read the rest all the same, set the option failOnDataLoss to false",
    ):
        table(data, topic="big")
    rest = payloads(table(data, topic="big", failOnDataLoss="false"))
    assert len(said) - 150 < len(rest) < len(said)
    assert set(rest) < set(said)
    with penstock.open(data):  # who accounts for it
        pass
    with pytest.raises(CorruptJournal, match="failOnDataLoss"):
        table(data, topic="big")
    assert payloads(table(data, topic="big", failOnDataLoss="false")) == rest


def test_a_missing_segment_fails_a_read_unless_it_is_told_to_go_on(data: Path) -> None:
    said = fill(data)
    sorted(data.glob("*.segment"))[2].unlink()
    with pytest.raises(CorruptJournal, match=r"segments \[3\] .* are missing"):
        table(data, topic="big")
    rest = payloads(table(data, topic="big", failOnDataLoss="false"))
    assert 0 < len(rest) < len(said)
    assert set(rest) < set(said)


def test_a_start_before_what_there_is_fails_a_read_unless_it_is_told_to_go_on(data: Path) -> None:
    with penstock.open(data, segment_bytes=1 << 13) as broker:
        orders = broker.queue("orders")
        for _ in range(6):
            orders.publish_many([b"%d %s" % (row, b"x" * 100) for row in range(100)])
            orders.ack_many(orders.receive_many(100))
            broker._port.monitor.upkeep.run()  # type: ignore[attr-defined]
    rest = table(data, topic="orders", startingOffsets="earliest")
    first = offsets(rest)[0]
    said = f"startingOffsets of default/orders is 3, and messages 3 to {first - 1} were cleaned"
    with pytest.raises(CorruptJournal, match=said):
        table(data, topic="orders", startingOffsets='{"orders": 3}')
    given = {"topic": "orders", "startingOffsets": '{"orders": 3}', "failOnDataLoss": "false"}
    assert offsets(table(data, **given)) == offsets(rest)
    assert table(data, topic="orders", startingOffsets=f'{{"orders": {first}}}').num_rows == len(rest)


# --- what a stranger found ---


def test_what_happened_is_chosen_by_time_too(data: Path) -> None:
    clock = ManualClock(to_us(BEGIN, "BEGIN"))
    with penstock.open(data, clock=clock) as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"%d" % number for number in range(6)])
        deliveries = orders.receive_many(6)
        for delivery in deliveries:
            delivery.ack()
            clock.advance(1)
    start, stop = (BEGIN + timedelta(seconds=seconds) for seconds in (2, 4))
    times = {"startingTimestamp": start.isoformat(), "endingTimestamp": stop.isoformat()}
    assert offsets(table(data, table="settlements", **times)) == [2, 3]
    assert table(data, table="deliveries", startingTimestamp=start.isoformat()).num_rows == 0
    assert table(data, table="settlements", endingTimestamp="0").num_rows == 0


def test_a_directory_is_named_as_spark_names_it(data: Path) -> None:
    named = data.with_name("with a space")
    with penstock.open(named) as broker:
        broker.queue("orders").publish(b"a")
    for path in (f"file:{named}", f"file://{named}", f"file://{named}".replace(" ", "%20"), str(named)):
        assert options.parse({"path": path}).path == str(named)
    for path in ("hdfs://host/x", "s3a://bucket/x", "file://host/x"):
        with pytest.raises(InvalidArgument, match="is not on a file system of this machine"):
            options.parse({"path": path})


def test_what_is_wrong_with_places_is_said_when_a_table_is_loaded(data: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"a"] * 5)
    for given, said in (
        ({"startingoffsets": '{"nope": 1}'}, "which are not read"),
        ({"startingoffsets": '{"orders": 99}'}, "has no offset 99 yet"),
        ({"startingoffsets": '{"orders": 4}', "endingoffsets": '{"orders": 3}'}, "exchange them"),
        ({"namespace": "nope"}, "there is no queue or topic at all"),
        ({"startingtimestamp": "9" * 5000}, "milliseconds since 1970"),
        ({"startingtimestamp": "１"}, "milliseconds since 1970"),
    ):
        with pytest.raises(PenstockError, match=said):
            PenstockDataSource({"path": str(data), **given}).schema()


def test_logs_that_take_turns_are_told_apart_in_one_batch(data: Path) -> None:
    with penstock.open(data) as broker:
        for turn in range(4):
            for name in ("a", "b", "c"):
                broker.queue(name).publish_many(
                    [b"%s %d %d" % (name.encode(), turn, row) for row in range(7 + turn)]
                )
    for given in ({}, {"topic": "a,c"}, {"topic": "b"}):
        found = [
            (row["topic"], row["offset"], row["payload"].split()[0].decode())
            for row in table(data, **given).to_pylist()
        ]
        names = given.get("topic", "a,b,c").split(",")
        assert sorted(found) == [(name, offset, name) for name in names for offset in range(34)]


@pytest.mark.parametrize("count", range(1, 12))
def test_a_log_that_ends_between_two_entries_of_the_index_is_read_to_its_end(data: Path, count: int) -> None:
    with penstock.open(data, durability="os", segment_bytes=1 << 22) as broker:
        big, small = broker.queue("big"), broker.queue("small")
        for number in range(count):
            small.publish_many([b"%d" % number, b"+"])
            big.publish_many([b"%d-%d %s" % (number, row, b"x" * 90) for row in range(30)])
        for number in range(20):
            big.publish_many([b"%d+%d %s" % (number, row, b"x" * 90) for row in range(300)])
    assert table(data, topic="small").num_rows == 2 * count


@pytest.mark.parametrize("before", range(0, 160, 10))
def test_the_last_rows_of_a_log_are_in_the_stride_behind_the_one_of_its_last_entry(
    data: Path, before: int
) -> None:
    """Its entry is near the end of a stride, its last message at the beginning of the next, which has no entry of it."""

    def filling(rows: int) -> list[bytes]:
        return [b"%-100d" % row for row in range(rows)]

    with penstock.open(data, durability="os", segment_bytes=1 << 22) as broker:
        big, small = broker.queue("big"), broker.queue("small")
        big.publish_many(filling(before + 1))
        small.publish_many([b"first", b"+"])
        big.publish_many(filling(60))
        small.publish_many([b"last", b"+"])
        for _ in range(20):
            big.publish_many(filling(300))
    assert table(data, topic="small")["payload"].to_pylist() == [b"first", b"+", b"last", b"+"]
