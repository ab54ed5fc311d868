"""Readers: everything that is stored, in order, for anybody who looks; and nothing is taken away from anyone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    BrokerClosed,
    InvalidArgument,
    InvalidName,
    Message,
    PenstockError,
    QueueNotFound,
    TopicNotFound,
)
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import EVERYTHING, counts, drain, expected, payloads, take, unchanged
from tests.conformance.oddities import oddities
from tests.conformance.surface import Log, Queue, Reader, Topic

LETTERS = [b"a", b"b", b"c", b"d", b"e"]


def offsets(found: list[Message]) -> list[int | None]:
    return [one.offset for one in found]


def seen(log: Log, name: str = "looking") -> list[bytes]:
    """What somebody sees who comes now."""
    with log.reader(name) as reader:
        return payloads(reader.read_many(EVERYTHING))


def next_one(reader: Reader) -> bytes | None:
    found = reader.read()
    return None if found is None else found.payload


@pytest.fixture
def letters(queue: Queue) -> list[int]:
    """Five messages; their ids."""
    return queue.publish_many(list(LETTERS))


@pytest.fixture(params=["queue", "topic"])
def log(request: pytest.FixtureRequest, home: Home) -> Log:
    """One that keeps what is published, whichever kind it is."""
    if request.param == "queue":
        return home.broker.queue("log")
    topic = home.broker.topic("log")
    topic.subscribe("slow")
    return topic


# --- reading ---


def test_a_reader_skips_or_repeats_or_disorders(log: Log) -> None:
    ids = [log.publish(letter) for letter in LETTERS[:2]] + log.publish_many(list(LETTERS[2:]))
    reader = log.reader("r")
    found = [reader.read(), *reader.read_many(3), *reader.read_many(3)]
    assert [(one.payload, one.id, one.offset) for one in found if one] == [
        (letter, given, offset) for offset, (letter, given) in enumerate(zip(LETTERS, ids, strict=True))
    ]
    assert reader.read() is None
    assert reader.read_many(5) == []


def test_an_empty_log_has_something_to_read(log: Log) -> None:
    reader = log.reader("r")
    assert (reader.read(), reader.read_many(9), reader.position(), reader.lag()) == (None, [], 0, 0)
    assert (reader.name, reader.missed) == ("r", 0)


def test_a_reader_at_the_end_does_not_go_on(log: Log) -> None:
    reader = log.reader("r")
    for letter in LETTERS:
        assert reader.read() is None
        log.publish(letter)
        assert next_one(reader) == letter
    assert reader.missed == 0


def test_priority_or_delay_changes_what_a_reader_gets(log: Log) -> None:
    log.publish(b"last", priority=255)
    log.publish(b"later", delay=100)
    log.publish(b"first", priority=0)
    assert seen(log) == [b"last", b"later", b"first"]


def test_something_of_a_message_is_lost_to_a_reader(home: Home, log: Log) -> None:
    now = datetime.fromtimestamp(home.clock.now_us() / 1e6, UTC)
    log.publish_many(
        [
            b"",
            Message(bytes(range(256)), headers={"é": "✓", "empty": ""}, key="k", priority=0),
            Message(b"z" * 100_000, delay=60, ttl=600),
            Message(b"id", dedup_id="once", deliver_at=now + timedelta(hours=1), expires_at=now + timedelta(hours=2)),
            b"plain",
        ]
    )  # fmt: skip
    log.publish(b"alone", headers={"a": "b"}, key="x", priority=7)
    found = log.reader("r").read_many(9)
    assert payloads(found) == [b"", bytes(range(256)), b"z" * 100_000, b"id", b"plain", b"alone"]
    assert [one.headers for one in found] == [{}, {"é": "✓", "empty": ""}, {}, {}, {}, {"a": "b"}]
    assert [one.key for one in found] == [None, "k", None, None, None, "x"]
    assert [one.priority for one in found] == [100, 0, 100, 100, 100, 7]
    hour, minute, ten = timedelta(hours=1), timedelta(minutes=1), timedelta(minutes=10)
    assert [one.deliver_at for one in found] == [None, None, now + minute, now + hour, None, None]
    assert [one.expires_at for one in found] == [None, None, now + ten, now + 2 * hour, None, None]
    assert [one.dedup_id for one in found] == [None, None, None, "once", None, None]
    assert {one.timestamp for one in found} == {now}
    assert {(one.delay, one.ttl) for one in found} == {(None, None)}


def test_what_was_read_cannot_be_published_again(home: Home, log: Log) -> None:
    log.publish_many([b"plain", Message(b"whole", headers={"a": "b"}, key="k", priority=3, ttl=60)])
    read = log.reader("r").read_many(9)
    copy = home.broker.queue("copy")
    copy.publish_many(read)
    again = copy.reader("r").read_many(9)
    assert [(one.payload, one.headers, one.key, one.priority, one.expires_at) for one in again] == [
        (one.payload, one.headers, one.key, one.priority, one.expires_at) for one in read
    ]


@pytest.mark.parametrize("count", [1, 7, 300, EVERYTHING])
def test_the_size_of_a_read_changes_what_is_read(queue: Queue, count: int) -> None:
    everything = [b"%d" % n for n in range(700)]
    queue.publish_many(everything[:300])
    for one in everything[300:400]:
        queue.publish(one)
    queue.publish_many(everything[400:])
    reader = queue.reader("r")
    found: list[bytes] = []
    while more := reader.read_many(count):
        assert len(more) <= count
        found += payloads(more)
    assert found == everything


def test_a_message_that_was_consumed_is_a_hole_that_a_reader_falls_into(queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(100)])
    found = queue.receive_many(100)
    queue.ack_many([one for one in found if one.offset % 10])
    reader = queue.reader("r")
    assert payloads(reader.read_many(3)) == [b"0", b"10", b"20"]
    assert reader.position() == 21
    assert payloads(reader.read_many(99)) == [b"%d" % n for n in range(30, 100, 10)]
    assert (reader.position(), reader.lag(), reader.missed) == (100, 0, 0)


# --- taking nothing away ---


def test_a_reader_takes_something_away(queue: Queue, letters: list[int]) -> None:
    with unchanged(queue):
        readers = [queue.reader(f"r{n}") for n in range(5)]
        for reader in readers:
            assert payloads(reader.read_many(9)) == LETTERS
            reader.commit()
            reader.reset()
            reader.close()
    assert drain(queue) == LETTERS


def test_a_reader_counts_as_an_attempt(queue: Queue, letters: list[int]) -> None:
    seen(queue)
    assert [(one.attempt, one.redelivered) for one in queue.receive_many(9)] == [(1, False)] * 5


def test_readers_get_in_each_others_way(queue: Queue, letters: list[int]) -> None:
    readers = [queue.reader(f"r{n}") for n in range(100)]
    for n, reader in enumerate(readers):
        reader.read_many(n % 5 + 1)
    for n, reader in enumerate(readers):
        assert reader.position() == n % 5 + 1
        assert reader.lag() == 4 - n % 5
        assert next_one(reader) == (LETTERS[n % 5 + 1] if n % 5 < 4 else None)


def test_two_of_one_name_share_their_position_before_it_is_committed(
    queue: Queue, letters: list[int]
) -> None:
    one, other = queue.reader("r"), queue.reader("r")
    assert (next_one(one), next_one(other), next_one(one)) == (b"a", b"a", b"b")
    one.commit()
    assert next_one(other) == b"b"
    assert next_one(queue.reader("r")) == b"c"


def test_readers_of_one_name_on_two_logs_are_one(home: Home) -> None:
    first, second = home.broker.queue("first"), home.broker.topic("second")
    second.subscribe("s")
    for log in (first, second):
        log.publish_many(list(LETTERS))
    reader = first.reader("r")
    reader.read_many(3)
    reader.commit()
    assert second.reader("r").position() == 0
    assert second.stats().readers == {}


# --- what is stored ---


def test_a_leased_or_retried_message_is_hidden_from_readers(queue: Queue, letters: list[int]) -> None:
    held = take(queue)
    take(queue).nack(delay=50)
    take(queue).requeue()
    assert seen(queue) == LETTERS
    held.ack()
    assert seen(queue) == LETTERS[1:]


def test_a_settled_message_is_seen(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    assert next_one(reader) == b"a"
    take(queue).ack()
    take(queue).ack()
    assert next_one(reader) == b"c"
    assert seen(queue) == [b"c", b"d", b"e"]
    assert reader.missed == 0  # such a log promises nothing to readers


def test_a_reader_sees_what_only_one_group_has_settled_no_more(queue: Queue) -> None:
    slow = queue.group("slow")
    queue.publish_many(list(LETTERS))
    quick = queue.group("quick")
    assert drain(quick) == LETTERS
    assert seen(queue) == LETTERS
    slow.ack_many(slow.receive_many(2))
    assert seen(queue) == [b"c", b"d", b"e"]


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("retained", [None, 1000])
def test_an_expired_message_is_seen(home: Home, leased: bool, retained: int | None) -> None:
    queue = home.broker.queue("brief", visibility_timeout=500, retain_seconds=retained)
    queue.publish(b"brief", ttl=10)
    queue.publish(b"long", ttl=100)
    reader = queue.reader("r")
    if leased:
        take(queue)
    assert seen(queue) == [b"brief", b"long"]
    home.advance(9)
    assert seen(queue) == [b"brief", b"long"]
    home.advance(1)
    assert payloads(reader.read_many(9)) == seen(queue) == [b"long"]
    assert reader.missed == 0


def test_a_purged_message_is_seen(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    held = take(queue)
    queue.purge()
    queue.publish(b"f")
    assert payloads(reader.read_many(9)) == seen(queue) == [b"a", b"f"]
    held.ack()
    assert seen(queue) == [b"f"]
    assert reader.missed == 0


def test_a_message_that_is_retained_outlives_a_purge(home: Home) -> None:
    queue = home.broker.queue("kept", retain_seconds=1000)
    queue.publish_many([b"acked", b"ready"])
    take(queue).ack()
    queue.purge()
    assert seen(queue) == []
    assert drain(queue.group("new")) == []
    topic = home.broker.topic("events", retain_seconds=1000)
    topic.publish(b"kept")
    topic.purge()
    assert seen(topic) == []


def test_a_delayed_message_is_hidden_or_a_cancelled_one_seen(home: Home, log: Log) -> None:
    first, second = log.publish(b"first", delay=50), log.publish(b"second", delay=50)
    reader = log.reader("r")
    assert seen(log) == [b"first", b"second"]
    assert log.cancel(first)
    assert payloads(reader.read_many(9)) == seen(log) == [b"second"]
    home.advance(50)
    assert not log.cancel(second)
    assert seen(log) == [b"second"]


def test_a_topic_that_keeps_messages_for_nobody_cannot_cancel_one(home: Home) -> None:
    topic = home.broker.topic("events", retain_seconds=1000)
    cancelled = topic.publish(b"cancelled", delay=50)
    topic.publish(b"kept", delay=50)
    assert topic.cancel(cancelled)
    assert seen(topic) == [b"kept"]
    late = topic.subscribe("late", start="earliest")
    home.advance(50)
    assert drain(late) == [b"kept"]


def test_a_dropped_message_is_seen(home: Home) -> None:
    queue = home.broker.queue("short", max_depth=2, overflow="drop-head")
    reader = queue.reader("r")
    for letter in LETTERS:
        queue.publish(letter)
    assert payloads(reader.read_many(9)) == seen(queue) == [b"d", b"e"]


def test_a_dead_letter_or_one_that_was_redriven_is_seen_twice(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    reader.read_many(9)
    take(queue).reject(error="broken")
    dead = queue.dead_letters()
    assert seen(queue) == [b"b", b"c", b"d", b"e"]
    (letter,) = dead.reader("r").read_many(9)
    assert (letter.payload, letter.headers["x-error"]) == (b"a", "broken")
    assert queue.redrive() == 1
    assert seen(dead) == []
    assert seen(queue) == [b"b", b"c", b"d", b"e", b"a"]
    again = reader.read()
    assert again is not None
    assert (again.payload, again.offset) == (b"a", 5)
    assert again.headers["x-origin-id"] == str(letters[0])
    assert sorted(drain(queue)) == LETTERS
    assert seen(queue) == []


def test_a_deduplicated_publish_is_seen_twice(queue: Queue) -> None:
    first = queue.publish(b"a", dedup_id="1")
    assert queue.publish(b"a", dedup_id="1") == first
    queue.publish_many([Message(b"a", dedup_id="1"), Message(b"b", dedup_id="2")])
    assert seen(queue) == [b"a", b"b"]


def test_a_filter_hides_messages_from_readers(home: Home) -> None:
    topic = home.broker.topic("events")
    consumer = topic.subscribe("eu", filter="region = 'eu'")
    topic.publish(b"a", headers={"region": "us"})
    topic.publish(b"b", headers={"region": "eu"})
    assert seen(topic) == [b"a", b"b"]
    assert drain(consumer) == [b"b"]
    assert seen(topic) == []


def test_a_message_that_its_last_subscription_left_behind_is_seen(home: Home) -> None:
    topic = home.broker.topic("events")
    topic.subscribe("s")
    topic.publish_many(list(LETTERS))
    assert seen(topic) == LETTERS
    topic.unsubscribe("s")
    assert seen(topic) == []


# --- waiting ---


def test_a_reader_that_waits_is_not_woken(log: Log) -> None:
    reader = log.reader("r")
    waiting = start(reader.read, None)
    log.publish(b"a")
    found = waiting.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"a"
    several = start(reader.read_many, 5, timeout=timedelta(hours=1))
    log.publish_many([b"b", b"c"])
    assert payloads(several.result(PATIENCE_S)) == [b"b", b"c"]


def test_a_reader_waits_for_ever_or_not_at_all(home: Home, queue: Queue) -> None:
    reader = queue.reader("r")
    waiting = start(reader.read, 5)
    home.advance_until(waiting)
    assert waiting.result(PATIENCE_S) is None
    many = start(reader.read_many, 5, 0.5)
    home.advance_until(many)
    assert many.result(PATIENCE_S) == []
    assert reader.position() == 0
    queue.publish(b"a")
    assert next_one(reader) == b"a"


def test_a_waiting_reader_takes_what_it_may_not_see_for_a_message(home: Home) -> None:
    topic = home.broker.topic("events")
    reader = topic.reader("r")
    waiting = start(reader.read, 1000)
    for _ in range(50):
        topic.publish(b"for nobody")
    assert not waiting.done()
    topic.subscribe("s")
    topic.publish(b"kept")
    found = waiting.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"kept"


def test_only_one_of_many_who_wait_is_woken(log: Log) -> None:
    readers = [log.reader(f"r{n}") for n in range(20)]
    waiting = [start(reader.read, None) for reader in readers]
    log.publish(b"a")
    assert [one and one.payload for one in all_of(waiting)] == [b"a"] * 20


def test_a_delayed_message_wakes_no_reader(home: Home, queue: Queue) -> None:
    reader = queue.reader("r")
    waiting = start(reader.read, None)
    queue.publish(b"later", delay=1000)
    found = waiting.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"later"


def test_iteration_does_not_follow_the_tail(log: Log) -> None:
    log.publish_many([b"%d" % n for n in range(10)])
    reader = log.reader("r")
    following = start(lambda: payloads(itertools.islice(reader, 50)))
    for n in range(10, 30):
        log.publish(b"%d" % n)
    log.publish_many([b"%d" % n for n in range(30, 60)])
    assert following.result(PATIENCE_S) == [b"%d" % n for n in range(50)]
    assert reader.position() == 50


def test_iteration_goes_on_when_the_broker_is_closed(home: Home, log: Log) -> None:
    log.publish(b"a")
    following = [start(lambda: payloads(log.reader("r"))), start(lambda: payloads(log.reader("r")))]
    waiting = start(log.reader("s", start="latest").read, None)
    home.broker.close()
    for found in all_of(following):
        assert found in ([], [b"a"])  # it may have come too late
    with pytest.raises(BrokerClosed):
        waiting.result(PATIENCE_S)


def test_iteration_goes_on_when_the_reader_is_closed(log: Log) -> None:
    reader = log.reader("r")
    following = start(lambda: payloads(reader))
    log.publish(b"a")
    for _ in range(1000):  # it is there, or on its way
        if reader.position():
            break
        log.stats()
    reader.close()
    assert following.result(PATIENCE_S) in ([], [b"a"])
    with pytest.raises(BrokerClosed):
        reader.read()


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_reader_of_a_deleted_log_waits_or_reads_on(home: Home, kind: str) -> None:
    log: Log = home.broker.queue("log") if kind == "queue" else home.broker.topic("log")
    reader = log.reader("r")
    waiting = start(reader.read, None)
    if kind == "queue":
        home.broker.delete_queue("log")
    else:
        home.broker.delete_topic("log")
    error = QueueNotFound if kind == "queue" else TopicNotFound
    with pytest.raises(error):
        waiting.result(PATIENCE_S)
    calls: list[Callable[[], object]] = [
        reader.read,
        lambda: reader.read_many(5, 10),
        lambda: next(iter(reader)),
        reader.commit,
        reader.reset,
        reader.lag,
        lambda: reader.seek(offset=0),
        lambda: log.reader("r"),
        lambda: log.reader("other", hold=True),
    ]
    for call in calls:
        with pytest.raises(error):
            call()
    reader.close()


def test_a_new_log_of_an_old_name_knows_its_readers(home: Home, queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r", hold=True)
    reader.read_many(3)
    reader.commit()
    home.broker.delete_queue("orders")
    queue = home.broker.queue("orders")
    assert queue.stats().readers == {}
    queue.publish(b"new")
    assert next_one(queue.reader("r")) == b"new"


# --- seeking ---


def test_seek_misses_its_message_by_offset_or_id(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    for offset in (3, 0, 4, 4, 1, 2):
        reader.seek(offset=offset)
        assert (reader.position(), reader.lag()) == (offset, 5 - offset)
        assert next_one(reader) == LETTERS[offset]
        reader.seek(message_id=letters[offset])
        assert reader.position() == offset
        assert next_one(reader) == LETTERS[offset]


def test_the_end_cannot_be_sought(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    reader.seek(offset=5)
    assert reader.read() is None
    queue.publish(b"f")
    assert next_one(reader) == b"f"
    empty = queue.dead_letters().reader("r")
    empty.seek(offset=0)
    assert empty.read() is None


def test_seek_misses_its_message_by_time(home: Home, queue: Queue) -> None:
    moments = []
    for n in range(10):
        queue.publish_many([b"%d-%d" % (n, k) for k in range(3)])
        moments.append(datetime.fromtimestamp(home.clock.now_us() / 1e6, UTC))
        home.advance(10)
    reader = queue.reader("r")
    for n in (7, 0, 9, 3):
        reader.seek(timestamp=moments[n])
        assert next_one(reader) == b"%d-0" % n
        reader.seek(timestamp=moments[n] - timedelta(microseconds=1))
        assert next_one(reader) == b"%d-0" % n
        reader.seek(timestamp=moments[n] + timedelta(microseconds=1))
        assert next_one(reader) == (b"%d-0" % (n + 1) if n < 9 else None)
    reader.seek(timestamp=datetime(1999, 1, 1, tzinfo=UTC))
    assert next_one(reader) == b"0-0"
    reader.seek(timestamp=datetime(2999, 1, 1, tzinfo=UTC))
    assert reader.read() is None
    assert reader.position() == 30


def test_a_clock_that_was_set_back_hides_messages_from_a_seek_by_time(home: Home, queue: Queue) -> None:
    begun = datetime.fromtimestamp(home.clock.now_us() / 1e6, UTC)
    home.advance(100)
    queue.publish(b"late")
    home.clock.set_back(seconds=50)
    queue.publish(b"early")
    reader = queue.reader("r")
    reader.seek(timestamp=begun + timedelta(seconds=40))
    assert payloads(reader.read_many(9)) == [b"late", b"early"]
    reader.seek(timestamp=begun + timedelta(seconds=100))
    assert next_one(reader) == b"late"


def test_seek_loses_its_way_among_many(home: Home) -> None:
    queue = home.broker.queue("many")
    ids: list[int] = []
    for n in range(40):
        ids += queue.publish_many([b"%d" % k for k in range(n * 100, n * 100 + 100)])
        if n % 4 == 0:
            ids.append(queue.publish(b"single"))
        home.advance(1)
    reader = queue.reader("r")
    for offset in (0, 1, 255, 256, 257, 1999, 2000, 4009, 511):
        reader.seek(message_id=ids[offset])
        assert reader.position() == offset
        found = reader.read()
        assert found is not None
        assert found.id == ids[offset]
        assert found.timestamp is not None
        reader.seek(timestamp=found.timestamp)
        first = reader.read()
        assert first is not None
        assert first.timestamp == found.timestamp
        assert first.offset is not None
        assert first.offset <= offset
        if first.offset:
            reader.seek(offset=first.offset - 1)
            before = reader.read()
            assert before is not None
            assert before.timestamp is not None
            assert before.timestamp < found.timestamp


@pytest.mark.parametrize(
    "place",
    [
        {"offset": 1},
        {"offset": 6},
        {"offset": 10**15},
        {"message_id": 0},
        {"message_id": 1},
        {"message_id": 2**62},
    ],
    ids=str,
)
def test_what_is_not_stored_can_be_sought_or_moves_the_reader(
    queue: Queue, letters: list[int], place: dict[str, Any]
) -> None:
    for delivery in queue.receive_many(3)[:2]:
        delivery.ack()
    reader = queue.reader("r")
    assert next_one(reader) == b"c"
    reader.commit()
    with unchanged(queue), pytest.raises(InvalidArgument, match=r"not? .*stored"):
        reader.seek(**place)
    assert (reader.position(), reader.lag(), queue.stats().readers) == (3, 2, {"r": 2})
    assert next_one(reader) == b"d"


def test_a_consumed_expired_or_foreign_message_can_be_sought(
    home: Home, queue: Queue, letters: list[int]
) -> None:
    brief = queue.publish(b"brief", ttl=5)
    foreign = home.broker.queue("other").publish(b"x")
    take(queue).ack()
    home.advance(5)
    reader = queue.reader("r")
    for gone in (letters[0], brief, foreign):
        with pytest.raises(InvalidArgument, match=str(gone)):
            reader.seek(message_id=gone)
    for offset in (0, 5):
        with pytest.raises(InvalidArgument, match=f"offset {offset} "):
            reader.seek(offset=offset)
    assert next_one(reader) == b"b"


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"offset": 0, "message_id": 5},
        {"offset": 0, "timestamp": datetime(2026, 1, 1, tzinfo=UTC)},
        {"offset": -1},
        {"offset": 1.0},
        {"offset": "0"},
        {"offset": True},
        {"message_id": "7"},
        {"message_id": -1},
        {"message_id": 2**63},
        {"message_id": None},
        {"timestamp": 7},
        {"timestamp": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"timestamp": "2026-01-01"},
    ],
    ids=str,
)
def test_a_wrong_place_is_taken_or_moves_the_reader(
    queue: Queue, letters: list[int], place: dict[str, Any]
) -> None:
    reader = queue.reader("r")
    reader.read_many(2)
    with pytest.raises(InvalidArgument):
        reader.seek(**place)
    assert next_one(reader) == b"c"


# --- positions ---


def test_what_was_not_committed_is_remembered(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    reader.read_many(2)
    reader.close()
    assert queue.reader("r").position() == 0
    reader = queue.reader("r")
    reader.read_many(2)
    assert reader.commit() == 2
    reader.read()
    assert (reader.position(), reader.lag()) == (3, 2)
    assert queue.stats().readers == {"r": 3}
    assert next_one(queue.reader("r")) == b"c"


def test_a_commit_cannot_go_back(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    reader.read_many(4)
    reader.commit()
    reader.seek(offset=1)
    assert reader.commit() == 1
    assert next_one(queue.reader("r")) == b"b"


@pytest.mark.parametrize("place", ["earliest", "latest", 0, 4, datetime(2025, 1, 1, tzinfo=UTC)], ids=str)
def test_start_counts_where_something_was_committed(queue: Queue, letters: list[int], place: object) -> None:
    reader = queue.reader("r", start=place)
    reader.seek(offset=2)
    reader.commit()
    assert next_one(queue.reader("r", start=place)) == b"c"
    assert next_one(queue.reader("r", start="latest", hold=True)) == b"c"


def test_start_does_not_count_where_nothing_was_committed(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    home.advance(10)
    queue.publish(b"c")
    moment = datetime.fromtimestamp(home.clock.now_us() / 1e6, UTC)
    take(queue).ack()
    assert next_one(queue.reader("r")) == b"b"
    assert next_one(queue.reader("r", start="earliest")) == b"b"
    assert next_one(queue.reader("r", start=2)) == b"c"
    assert next_one(queue.reader("r", start=moment)) == b"c"
    latest = queue.reader("r", start="latest")
    assert latest.read() is None
    queue.publish(b"d")
    assert next_one(latest) == b"d"


@pytest.mark.parametrize("place", [0, 9, "first", -1, 1.5, None, True, b"earliest", datetime(2026, 1, 1)], ids=str)  # noqa: DTZ001  # fmt: skip
def test_a_wrong_start_makes_a_reader(queue: Queue, letters: list[int], place: object) -> None:
    take(queue).ack()
    with unchanged(queue), pytest.raises(InvalidArgument):
        queue.reader("r", start=place, hold=True)
    assert queue.stats().readers == {}


@pytest.mark.parametrize("name", ["", "a b", "x" * 1000, None, 7, "a\0"], ids=repr)
def test_a_wrong_name_makes_a_reader(queue: Queue, name: Any) -> None:
    with pytest.raises((InvalidName, InvalidArgument)):
        queue.reader(name, hold=True)
    assert queue.stats().readers == {}


@pytest.mark.parametrize("call", ["read", "read_many", "count", "hold"])
def test_an_odd_argument_to_a_reader_is_an_error_of_others_or_breaks_the_broker(
    home: Home, queue: Queue, letters: list[int], call: str
) -> None:
    reader = queue.reader("r")
    calls: dict[str, Callable[[Any], object]] = {
        "read": reader.read,
        "read_many": lambda odd: reader.read_many(1, odd),
        "count": reader.read_many,
        "hold": lambda odd: queue.reader("held", hold=odd),
    }
    for name, odd in oddities().items():
        reader.seek(offset=0)
        try:
            calls[call](odd)
        except PenstockError:
            pass
        except BaseException as error:
            pytest.fail(f"{call}, given {name}: {type(error).__name__}", pytrace=False)
    reader.seek(offset=0)
    assert payloads(reader.read_many(9)) == LETTERS


@pytest.mark.parametrize("call", ["seek offset", "seek timestamp", "seek message_id", "start", "name"])
def test_an_odd_place_is_an_error_of_others_or_breaks_the_broker(
    home: Home, queue: Queue, letters: list[int], call: str
) -> None:
    reader = queue.reader("r")
    calls: dict[str, Callable[[Any], object]] = {
        "seek offset": lambda odd: reader.seek(offset=odd),
        "seek timestamp": lambda odd: reader.seek(timestamp=odd),
        "seek message_id": lambda odd: reader.seek(message_id=odd),
        "start": lambda odd: queue.reader("s", start=odd),
        "name": queue.reader,
    }
    for name, odd in oddities().items():
        try:
            calls[call](odd)
        except PenstockError:
            pass
        except BaseException as error:
            pytest.fail(f"{call}, given {name}: {type(error).__name__}", pytrace=False)
        assert queue.depth() == 5
    assert seen(queue) == LETTERS


def test_reset_leaves_something_of_a_reader(queue: Queue, letters: list[int]) -> None:
    take(queue).ack()
    reader = queue.reader("r")
    reader.read_many(3)
    reader.commit()
    reader.reset()
    assert (reader.position(), queue.stats().readers) == (1, {})
    assert next_one(reader) == b"b"
    assert queue.reader("r", start="latest").read() is None
    reader.reset()  # with nothing to forget
    assert next_one(reader) == b"b"


def test_a_closed_reader_reads_on(queue: Queue, letters: list[int]) -> None:
    with queue.reader("r") as reader:
        reader.read_many(2)
        reader.commit()
    reader.close()
    calls: list[Callable[[], object]] = [
        reader.read,
        lambda: reader.read_many(3),
        lambda: reader.read(None),
        reader.commit,
        reader.reset,
        lambda: reader.seek(offset=0),
    ]
    for call in calls:
        with pytest.raises(BrokerClosed, match="'r'"):
            call()
    assert list(reader) == []
    assert next_one(queue.reader("r")) == b"c"


def test_a_reader_of_a_closed_broker_reads_on(home: Home, queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    home.broker.close()
    calls: list[Callable[[], object]] = [reader.read, reader.commit, reader.reset, reader.lag]
    for call in calls:
        with pytest.raises(BrokerClosed):
            call()
    reader.close()


def test_lag_is_not_what_is_ahead(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("r")
    assert reader.lag() == 5
    reader.read_many(2)
    assert reader.lag() == 3
    queue.publish(b"f")
    assert reader.lag() == 4
    assert queue.stats().readers == {}  # nothing was committed
    reader.commit()
    queue.publish(b"g")
    other = queue.reader("other", start="latest")
    other.commit()
    assert queue.stats().readers == {"r": 5, "other": 0}
    queue.purge()
    assert (reader.read(), reader.lag()) == (None, 0)


def test_a_committed_position_is_lost(home: Home, log: Log, restart: Restart) -> None:
    log.publish_many(list(LETTERS))
    for n in range(5):
        reader = log.reader(f"r{n}")
        reader.read_many(n + 1)
        reader.commit()
        reader.read()
    gone = log.reader("gone")
    gone.read()
    gone.commit()
    gone.reset()
    for _ in range(2):
        broker = restart()
        log = broker.queue("log") if "log" in broker.list_queues() else broker.topic("log")
        assert log.stats().readers == {f"r{n}": 4 - n for n in range(5)}
        for n in range(5):
            found = log.reader(f"r{n}", start="latest")
            assert found.position() == n + 1
            assert next_one(found) == (LETTERS[n + 1] if n < 4 else None)
        assert log.reader("gone").position() == 0


def test_a_restart_changes_what_a_reader_sees(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("log", retain_seconds=1000)
    queue.publish_many([*LETTERS, Message(b"brief", ttl=5), Message(b"later", delay=100, priority=3)])
    cancelled = queue.publish(b"cancelled", delay=50)
    queue.cancel(cancelled)
    queue.ack_many(queue.receive_many(2))
    home.advance(5)
    before = queue.reader("r").read_many(99)
    assert payloads(before) == [*LETTERS, b"later"]
    for _ in range(2):
        queue = restart().queue("log")
        assert queue.reader("r").read_many(99) == before


# --- being waited for ---


def test_what_a_reader_holds_is_dropped(home: Home, log: Log) -> None:
    reader = log.reader("archive", hold=True)
    log.publish_many(list(LETTERS))
    empty(log)
    assert seen(log) == LETTERS
    assert payloads(reader.read_many(2)) == [b"a", b"b"]
    assert seen(log) == LETTERS  # it has not said so
    reader.commit()
    assert seen(log) == [b"c", b"d", b"e"]
    reader.close()
    home.advance(10_000_000)
    assert seen(log) == [b"c", b"d", b"e"]
    reader = log.reader("archive")
    assert payloads(reader.read_many(9)) == [b"c", b"d", b"e"]
    assert (reader.commit(), reader.missed) == (5, 0)
    assert seen(log) == []


def empty(log: Log) -> None:
    """Settle everything in every group."""
    for name in log.stats().groups:
        group = log.subscription(name) if hasattr(log, "subscription") else log.group(name)  # type: ignore[attr-defined]
        drain(group)


def test_a_holding_reader_holds_what_was_settled_before_it_came(queue: Queue, letters: list[int]) -> None:
    take(queue).ack()
    reader = queue.reader("archive", hold=True)
    assert reader.position() == 1
    drain(queue)
    assert payloads(reader.read_many(9)) == LETTERS[1:]


def test_one_of_two_holding_readers_is_not_waited_for(log: Log) -> None:
    quick, slow = log.reader("quick", hold=True), log.reader("slow", hold=True)
    log.publish_many(list(LETTERS))
    empty(log)
    for reader, count in ((quick, 4), (slow, 2)):
        reader.read_many(count)
        reader.commit()
    assert seen(log) == [b"c", b"d", b"e"]
    slow.read_many(9)
    slow.commit()
    assert seen(log) == [b"e"]
    assert next_one(quick) == b"e"
    quick.commit()
    assert seen(log) == []
    assert (quick.missed, slow.missed) == (0, 0)


def test_reset_goes_on_holding(log: Log) -> None:
    first, second = log.reader("first", hold=True), log.reader("second", hold=True)
    log.publish_many(list(LETTERS))
    empty(log)
    second.read_many(3)
    second.commit()
    first.reset()
    assert seen(log) == [b"d", b"e"]
    assert next_one(first) == b"d"
    first.commit()  # that is a reader like any other now
    second.reset()
    assert seen(log) == []
    log.publish(b"f")
    empty(log)
    assert seen(log) == []
    assert log.reader("first", hold=True).position() == 4


def test_opening_a_holder_without_hold_ends_that(queue: Queue) -> None:
    queue.reader("archive", hold=True)
    queue.publish_many(list(LETTERS))
    with queue.reader("archive") as reader:
        reader.read()
        reader.commit()
    drain(queue)
    assert seen(queue) == LETTERS[1:]


def test_a_reader_that_did_not_hold_cannot_do_so_later(queue: Queue, letters: list[int]) -> None:
    reader = queue.reader("archive")
    reader.read_many(2)
    reader.commit()
    queue.reader("archive", hold=True)
    drain(queue)
    assert seen(queue) == [b"c", b"d", b"e"]


def test_hold_from_the_end_holds_what_is_there(queue: Queue, letters: list[int]) -> None:
    queue.reader("archive", start="latest", hold=True)
    queue.publish(b"f")
    drain(queue)
    assert seen(queue) == [b"f"]


def test_a_commit_further_back_brings_back_what_was_dropped(queue: Queue) -> None:
    reader = queue.reader("archive", hold=True)
    queue.publish_many(list(LETTERS))
    held = queue.receive_many(5)
    queue.ack_many(held[1:4])
    reader.seek(offset=4)
    reader.commit()
    assert seen(queue) == [b"a", b"e"]
    reader.seek(offset=0)
    reader.commit()
    held[0].ack()
    held[4].ack()
    assert seen(queue) == [b"a", b"e"]
    assert payloads(reader.read_many(9)) == [b"a", b"e"]


def test_expired_or_purged_messages_are_held(home: Home, log: Log) -> None:
    reader = log.reader("archive", hold=True)
    log.publish_many([b"a", Message(b"brief", ttl=5), b"b"])
    cancelled = log.publish(b"cancelled", delay=50)
    log.cancel(cancelled)
    home.advance(5)
    assert seen(log) == [b"a", b"b"]
    log.purge()
    log.publish(b"c")
    assert payloads(reader.read_many(9)) == [b"c"]
    assert reader.missed == 0


def test_a_new_group_does_not_get_what_is_held(home: Home, queue: Queue) -> None:
    reader = queue.reader("archive", hold=True)
    queue.publish_many(list(LETTERS))
    drain(queue)
    reader.read_many(2)
    reader.commit()
    late = queue.group("late")
    assert drain(late) == [b"c", b"d", b"e"]
    assert queue.receive() is None


def test_what_is_held_counts_as_not_settled(queue: Queue) -> None:
    queue.reader("archive", hold=True)
    queue.publish_many(list(LETTERS))
    drain(queue)
    assert counts(queue) == expected()
    assert queue.peek(9) == []
    assert queue.stats().readers == {"archive": 5}


def test_a_holder_does_not_survive(home: Home, log: Log, restart: Restart) -> None:
    reader = log.reader("archive", hold=True)
    log.reader("other", hold=True)
    log.publish_many(list(LETTERS))
    empty(log)
    reader.read_many(2)
    reader.commit()
    broker = restart(away=10_000)
    log = again(broker, log)
    assert seen(log) == LETTERS
    log.reader("other").reset()
    assert seen(log) == [b"c", b"d", b"e"]
    log = again(restart(), log)
    assert seen(log) == [b"c", b"d", b"e"]
    log.publish(b"f")
    empty(log)
    log = again(restart(away=10_000), log)
    reader = log.reader("archive")
    assert payloads(reader.read_many(9)) == [b"c", b"d", b"e", b"f"]
    assert reader.missed == 0
    reader.commit()
    assert seen(again(restart(), log)) == []


def again(broker: Any, log: Log) -> Log:
    """The same log of a broker that was opened again."""
    found: Log = broker.queue("log") if "log" in broker.list_queues() else broker.topic("log")
    return found


def test_until_archived_does_not_wait_for_the_archive(home: Home) -> None:
    queue = home.broker.queue("kept", retain="until-archived")
    queue.publish_many(list(LETTERS))
    drain(queue)
    home.advance(1_000_000)
    assert seen(queue) == LETTERS
    archive = queue.reader("penstock.archive", hold=True)
    archive.read_many(2)
    archive.commit()
    assert seen(queue) == [b"c", b"d", b"e"]


# --- everything at once ---


def consume(queue: Queue) -> None:
    """Until the broker is closed."""
    with suppress(BrokerClosed), queue.subscribe() as consumer:
        for delivery in consumer:
            delivery.ack()


def test_readers_lose_messages_while_others_publish_and_consume(home: Home) -> None:
    queue = home.broker.queue("busy", retain_seconds=1_000_000)
    total = 4 * 60

    def publish(publisher: int) -> None:
        for n in range(0, 60, 6):
            queue.publish(b"%d-%d" % (publisher, n))
            queue.publish_many([b"%d-%d" % (publisher, k) for k in range(n + 1, n + 6)])

    def read(name: str, step: int) -> list[bytes]:
        reader = queue.reader(name)
        found: list[Message] = []
        while len(found) < total:
            found += reader.read_many(step, None)
            if len(found) % 3 == 0:
                reader.commit()
                reader = queue.reader(name)
        assert offsets(found) == list(range(total))
        return payloads(found)

    consumers = [start(consume, queue) for _ in range(3)]
    readers = [start(read, f"r{n}", step) for n, step in enumerate((1, 7, 100, 1, 7, 100))]
    all_of([start(publish, publisher) for publisher in range(4)])
    everything = all_of(readers)
    assert all(found == everything[0] for found in everything)
    assert sorted(everything[0]) == sorted(b"%d-%d" % (p, n) for p in range(4) for n in range(60))
    home.broker.close()
    all_of(consumers)


def test_a_holder_loses_messages_while_others_consume_and_it_commits(home: Home) -> None:
    queue = home.broker.queue("busy")
    total = 300
    holders = [queue.reader(f"holder-{n}", hold=True) for n in range(2)]

    def read(reader: Reader, step: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < total:
            found += payloads(reader.read_many(step, None))
            reader.commit()
        return found

    consumers = [start(consume, queue) for _ in range(2)]
    readers = [start(read, reader, step) for reader, step in zip(holders, (3, 11), strict=True)]
    for n in range(total):
        queue.publish(b"%d" % n)
    assert all_of(readers) == [[b"%d" % n for n in range(total)]] * 2
    assert [reader.missed for reader in holders] == [0, 0]
    home.broker.close()
    all_of(consumers)


def test_one_reader_in_many_threads_breaks_the_broker(home: Home, queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(100)])
    reader = queue.reader("r")

    def use(n: int) -> None:
        for k in range(20):
            reader.read_many(3)
            reader.commit()
            reader.seek(offset=(n * 7 + k) % 100)
            reader.lag()
            if k % 5 == 0:
                reader.reset()

    all_of([start(use, n) for n in range(8)])
    reader.seek(offset=0)
    assert payloads(reader.read_many(100)) == [b"%d" % n for n in range(100)]


def test_a_reader_keeps_a_topic_from_being_read_by_subscriptions(home: Home) -> None:
    topic: Topic = home.broker.topic("events")
    first, second = topic.subscribe("first"), topic.subscribe("second")
    topic.publish_many(list(LETTERS))
    reader = topic.reader("first")  # the name of a subscription is free for a reader
    assert payloads(reader.read_many(9)) == LETTERS
    reader.commit()
    assert (drain(first), drain(second)) == (LETTERS, LETTERS)
    assert topic.subscriber_count() == 2
