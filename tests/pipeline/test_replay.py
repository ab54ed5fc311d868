"""Replay: what was meant goes into a log again, in order, each message once, whatever breaks off when."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import InvalidArgument, InvalidName, PenstockError, QueueFull, QueueNotFound
from penstock.message import Message
from penstock.pipeline import replay as replaying
from penstock.pipeline.archive import archive
from penstock.pipeline.hadoop import Folder
from penstock.pipeline.replay import Chunk, Pace, Range, Sent, replay


class Killed(Exception):
    pass


def fill(data: Path, count: int = 20, queue: str = "orders", **policy: Any) -> list[int]:
    with penstock.open(data) as broker:
        return broker.queue(queue, retain_seconds=3600, **policy).publish_many(
            [
                Message(b"%d" % n, key=f"k{n % 2}", priority=n, headers={"n": str(n), "old": "x"})
                for n in range(count)
            ]
        )


def found(data: Path, queue: str = "again") -> list[Message]:
    with penstock.open(data) as broker:
        log = broker.queue(queue.removesuffix(".dlq"))
        return (log.dead_letters() if queue.endswith(".dlq") else log).reader("test").read_many(1000)


def payloads(data: Path, queue: str = "again") -> list[int]:
    return [int(message.payload) for message in found(data, queue)]


# --- what is replayed ---


def test_what_is_replayed_is_not_what_it_was(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """From an archive of two logs, some messages, changed; and what the log itself does since makes no difference."""
    known, others = fill(data), fill(data, 4, "invoices")
    archive(spark, data, tmp_path / "lake", tables=["messages"])
    sent: list[Sent] = []
    done = replay(
        spark, tmp_path / "lake", "again", data, where="offset >= 2 and cast(payload as string) < '4'",
        set_headers={"new": "1", "n": "changed", "old": None}, set_priority=7, progress=sent.append,
    )  # fmt: skip
    assert (done.messages, done.written, done.chunks, done.resumed) == (14, 14, 1, False)
    assert sent == [Sent(1, 1, 14, 14)]
    again = found(data)
    chosen = [n for n in range(2, 20) if str(n) < "4"]
    assert [int(message.payload) for message in again] == [2, 3, *chosen]
    assert [message.key for message in again] == [f"k{int(message.payload) % 2}" for message in again]
    assert {message.priority for message in again} == {7}
    assert [message.headers for message in again] == [
        {"new": "1", "n": "changed", "x-replayed-from": topic, "x-origin-id": str(number)}
        for topic, number in [
            ("invoices", others[2]),
            ("invoices", others[3]),
            *(("orders", known[n]) for n in chosen),
        ]
    ]
    assert not {message.id for message in again} & {*known, *others}
    # The same again is done already; with another id it is another replay.
    same = {
        "where": "offset >= 2 and cast(payload as string) < '4'",
        "set_headers": {"old": None, "n": "changed", "new": "1"},
    }
    again_done = replay(spark, tmp_path / "lake", "again", data, set_priority=7, **same)  # type: ignore[arg-type]
    assert (again_done.id, again_done.written, again_done.resumed) == (done.id, 0, True)
    only = replay(spark, tmp_path / "lake", "third", data, topics=["invoices"], id="by-hand")
    assert (only.id, only.written) == ("by-hand", 4)
    assert [message.priority for message in found(data, "third")] == [0, 1, 2, 3]
    with pytest.raises(InvalidArgument, match="the replay by-hand was begun with another topics, into"):
        replay(spark, tmp_path / "lake", "fourth", data, id="by-hand")
    assert len(payloads(data)) == 14


def test_a_dead_letter_is_replayed_with_its_failure(spark: SparkSession, data: Path) -> None:
    """As a redrive would bring it back; but it stays."""
    [number] = fill(data, 1)
    with penstock.open(data) as broker:
        delivery = broker.queue("orders").receive()
        assert delivery is not None
        delivery.reject(error="no such customer")
    done = replay(spark, "orders.dlq", "orders", data, where="headers['x-reason'] = 'rejected'")
    assert done.written == 1
    _, back = found(data, "orders")
    assert back.headers == {"n": "0", "old": "x", "x-replayed-from": "orders.dlq", "x-origin-id": str(number)}
    assert len(found(data, "orders.dlq")) == 1
    # Replayed once more, it is still known by the id that it had first.
    assert replay(spark, "orders", "again", data, where=f"id <> {number}").written == 1
    [again] = found(data)
    assert again.headers["x-origin-id"] == str(number)
    assert again.headers["x-replayed-from"] == "orders"


def test_a_log_that_promises_exactly_once_takes_none_or_drops_all(spark: SparkSession, data: Path) -> None:
    with penstock.open(data) as broker:
        strict = broker.queue("strict", delivery="exactly-once", retain_seconds=3600)
        strict.publish_many([Message(b"%d" % n, dedup_id=f"d{n}") for n in range(3)])
    assert replay(spark, "strict", "strict", data).written == 3
    assert payloads(data, "strict") == [0, 1, 2, 0, 1, 2]


# --- broken off ---


def test_a_chunk_is_lost_or_doubled(spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies after each step of some chunks; what is published meanwhile is not part of it. No dedup id helps."""
    fill(data, dedup_window=0)
    fill(data, 0, "again", dedup_window=0)
    monkeypatch.setattr(replaying, "CHUNK_ROWS", 8)

    def dying(where: type, name: str, after: int, *, done: bool) -> None:
        real, calls = getattr(where, name), 0

        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == after and not done:
                raise Killed
            result = real(*arguments)
            if calls == after:
                raise Killed
            return result

        with monkeypatch.context() as patch:
            patch.setattr(where, name, call)
            with pytest.raises(Killed):
                replay(spark, "orders", "orders", data)

    dying(replaying.Job, "_write", 1, done=False)  # with a plan, and nothing published
    assert payloads(data, "orders") == list(range(20))
    fill(data, 5, dedup_window=0)
    dying(replaying.Job, "_write", 1, done=True)  # published, and not noted
    assert payloads(data, "orders") == [*range(20), *range(5), *range(8)]
    dying(Folder, "rename", 1, done=True)  # noted, and the earlier note is not removed
    dying(replaying.Job, "_write", 1, done=True)
    last = replay(spark, "orders", "orders", data)
    assert (last.messages, last.written, last.resumed) == (20, 12, True), "the chunk of 8 was handed in again"
    assert payloads(data, "orders") == [*range(20), *range(5), *range(20)]
    # What says how far it is only saves time.
    for note in (data / "replays" / last.id).glob("*.done"):
        note.unlink()
    replay(spark, "orders", "orders", data)
    assert len(payloads(data, "orders")) == 45
    shutil.rmtree(data / "replays")
    assert (
        replay(spark, "orders", "again", data, where="offset < 20", state=data.parent / "state").written == 20
    )
    shutil.rmtree(data.parent / "state")  # the plan comes out the same
    replay(spark, "orders", "again", data, where="offset < 20", state=data.parent / "state")
    assert len(payloads(data)) == 20


# --- the plan and the pace ---


def test_a_plan_leaves_something_out_or_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "CHUNK_BYTES", 100)
    monkeypatch.setattr(replaying, "CHUNK_RANGES", 2)
    stretches = [
        (Range("a", 0, 3), 4, 10), (Range("a", 4, 7), 3, 10),  # joined
        (Range("a", 9, 11), 3, 10),  # one row too many
        (Range("b", 0, 0), 1, 90),  # its bytes fit
        (Range("b", 1, 1), 1, 1), (Range("c", 0, 0), 1, 1), (Range("d", 0, 0), 1, 1),  # one range too many
        (Range("d", 1, 1), 1, 1000), (Range("d", 2, 2), 50, 1),  # one that is too large alone
    ]  # fmt: skip
    assert replaying._cut(stretches, 9) == [
        Chunk([Range("a", 0, 7)], 7),
        Chunk([Range("a", 9, 11), Range("b", 0, 0)], 4),
        Chunk([Range("b", 1, 1), Range("c", 0, 0)], 2),
        Chunk([Range("d", 0, 0)], 1),
        Chunk([Range("d", 1, 1)], 1),
        Chunk([Range("d", 2, 2)], 50),
    ]
    assert replaying._cut([], 9) == []


def test_a_rate_is_exceeded_or_not_reached() -> None:
    moment, waited = 0.0, 0.0

    def pause(seconds: float) -> None:
        nonlocal moment, waited
        moment += seconds
        waited += seconds

    pace = Pace(10, pause, lambda: moment)
    for _ in range(5):
        pace.wait()
        pace.passed(10)
        moment += 0.25  # a write takes its time, which counts
    assert moment == 4.25
    moment += 60  # one that took a minute does not allow a burst of 600
    pace.wait()
    pace.passed(10)
    before = waited
    pace.wait()
    pace.passed(10)
    pace.wait()
    assert waited - before == pytest.approx(1.0)
    free = Pace(None, pause, lambda: moment)
    free.passed(1000)
    free.wait()
    assert waited - before == pytest.approx(1.0)


def test_a_limited_replay_goes_out_at_once(spark: SparkSession, data: Path) -> None:
    fill(data, 5)
    pauses: list[float] = []
    sent: list[Sent] = []
    done = replay(
        spark, "orders", "again", data, rate=2, progress=sent.append, pause=pauses.append, now=lambda: 0.0
    )
    assert done.chunks == 3
    assert [one.messages for one in sent] == [2, 4, 5]
    assert pauses == [1.0, 2.0]
    assert payloads(data) == [0, 1, 2, 3, 4]


# --- what is refused ---


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            "priority >> ",
            r"(?s)where: Syntax error.*\n    priority >> \n +\^\nThe columns are namespace, topic",
        ),
        ("pirority > 3", r"(?s)where: .*pirority.*\n    pirority > 3\n\^?.*The columns are"),
        ("priority + 1", "is not true or false"),
        ("count(*) > 1", "(?s)where: .*The columns are"),
    ],
)
def test_a_wrong_expression_is_not_pointed_at(spark: SparkSession, data: Path, where: str, said: str) -> None:
    if not data.exists():
        fill(data, 1)
    with pytest.raises(InvalidArgument, match=said):
        replay(spark, "orders", "again", data, where=where)
    assert "again" not in penstock.open(data).list_queues()


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"source": "nothing"}, QueueNotFound, "neither a queue or topic in .* nor the folder of an archive"),
        ({"source": "/nothing/here"}, QueueNotFound, "neither a queue or topic"),
        ({"into": "no such name"}, InvalidName, "queue name"),
        ({"rate": 0}, InvalidArgument, "messages per second"),
        ({"rate": float("inf")}, InvalidArgument, "messages per second"),
        ({"set_priority": 256}, InvalidArgument, "from 0 to 255"),
        ({"set_priority": True}, InvalidArgument, "from 0 to 255"),
        ({"set_headers": {"a": 1}}, InvalidArgument, "give text, or None"),
        ({"topics": ["orders"]}, InvalidArgument, "leave topics out"),
        ({"topics": "orders"}, InvalidArgument, "a list of names"),
        ({"id": "a/b"}, InvalidName, "id of a replay"),
    ],
)
def test_a_wrong_argument_is_taken(
    spark: SparkSession, data: Path, wrong: dict[str, Any], error: type[PenstockError], said: str
) -> None:
    fill(data, 1)
    with pytest.raises(error, match=said):
        replay(spark, wrong.pop("source", "orders"), wrong.pop("into", "again"), data, **wrong)
    assert not (data / "replays").exists()


def test_a_full_queue_ends_a_replay_for_good(spark: SparkSession, data: Path) -> None:
    fill(data, 3)
    with penstock.open(data) as broker:
        broker.queue("again", max_depth=2, overflow="reject")
    with pytest.raises(QueueFull):
        replay(spark, "orders", "again", data)
    with penstock.open(data) as broker:
        broker.queue("again").alter(max_depth=None)
    assert replay(spark, "orders", "again", data).written == 3
    assert payloads(data) == [0, 1, 2]
