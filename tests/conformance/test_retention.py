"""How long a settled message is kept, for whom, and that it is gone afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import InvalidArgument, LeaseLost, Message
from penstock.broker import upkeep
from tests.conformance.background import all_of, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import (
    EVERYTHING,
    counts,
    drain,
    expected,
    payloads,
    survives_a_restart,
    take,
)
from tests.conformance.surface import Broker, Log, Queue, Reader, Topic
from tests.unit.broker.patience import until

LETTERS = [b"a", b"b", b"c", b"d", b"e"]

#: A payload of a hundred bytes, by number.
HUNDRED = [b"%03d" % n + b"." * 97 for n in range(1000)]


def seen(log: Log, name: str = "looking") -> list[bytes]:
    """What somebody sees who comes now."""
    with log.reader(name) as reader:
        return payloads(reader.read_many(EVERYTHING))


def numbers(found: list[bytes]) -> list[int]:
    return [int(one[:3]) for one in found]


def one_by_one(log: Log, found: list[bytes]) -> None:
    for one in found:
        log.publish(one)


def now(home: Home) -> datetime:
    return datetime.fromtimestamp(home.clock.now_us() / 1e6, UTC)


@pytest.fixture(params=["queue", "topic", "silent topic"])
def kept(request: pytest.FixtureRequest, home: Home) -> Callable[..., Kept]:
    """Makes a log whose messages are settled as soon as `settle` is called."""
    return lambda **policy: Kept(home.broker, request.param, policy)


class Kept:
    """A queue, a topic with a subscription, or one without."""

    def __init__(self, broker: Broker, kind: str, policy: dict[str, Any]) -> None:
        self.kind = kind
        self.log: Log = broker.queue("log", **policy) if kind == "queue" else broker.topic("log", **policy)
        if kind == "topic":
            self.log.subscribe("s")

    def again(self, broker: Broker) -> None:
        self.log = broker.queue("log") if self.kind == "queue" else broker.topic("log")

    def settle(self) -> None:
        if self.kind == "queue":
            drain(self.log)  # type: ignore[arg-type]
        elif self.kind == "topic":
            drain(self.log.subscription("s"))  # type: ignore[attr-defined]

    def publish(self, *found: bytes | Message) -> None:
        for one in found:
            self.log.publish_many([one])
        self.settle()


# --- for a time ---


def test_a_settled_message_is_dropped_before_its_time_or_kept_after_it(
    home: Home, kept: Callable[..., Kept]
) -> None:
    place = kept(retain_seconds=60)
    for letter in LETTERS:
        place.publish(letter)
        home.advance(10)
    assert seen(place.log) == LETTERS  # the first is 50 seconds old
    home.advance(9)
    assert seen(place.log) == LETTERS
    for left in (4, 3, 2, 1):
        home.advance(2)
        assert seen(place.log) == LETTERS[5 - left :]
        home.advance(8)
    home.advance(2)
    assert seen(place.log) == []
    assert place.log.reader("r").position() == 5


def test_time_passes_only_for_a_log_that_is_used(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept(retain_seconds=60)
    reader = place.log.reader("r")
    place.publish(*LETTERS)
    home.advance(1000)
    assert reader.read() is None
    assert reader.missed == 5


def test_a_batch_is_dropped_too_early(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept(retain_seconds=60)
    place.log.publish_many(list(LETTERS))
    home.advance(30)
    place.log.publish_many([b"f", b"g"])
    place.settle()
    home.advance(29)
    assert seen(place.log) == [*LETTERS, b"f", b"g"]
    home.advance(2)
    assert seen(place.log) == [b"f", b"g"]


def test_an_unsettled_message_is_dropped_for_its_age(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=10, visibility_timeout=5000)
    queue.publish_many(list(LETTERS))
    queue.publish(b"later", delay=500)
    held = take(queue)
    take(queue).nack(delay=400)
    home.advance(300)
    assert seen(queue) == [*LETTERS, b"later"]
    held.ack()
    assert seen(queue) == [*LETTERS[1:], b"later"]
    assert drain(queue) == [b"c", b"d", b"e"]
    home.advance(300)
    assert drain(queue) == [b"b", b"later"]
    assert seen(queue) == []


def test_a_message_behind_an_unsettled_one_is_kept_or_before_it_dropped(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=10, visibility_timeout=5000)
    queue.publish_many(list(LETTERS))
    held = queue.receive_many(5)
    queue.ack_many([held[0], held[1], held[3]])
    reader = queue.reader("r")
    home.advance(11)
    assert payloads(reader.read_many(9)) == [b"c", b"e"]
    assert reader.missed == 3
    queue.ack_many([held[2], held[4]])
    assert seen(queue) == []


def test_a_group_that_is_behind_loses_what_another_has_settled(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=10)
    slow = queue.group("slow")
    quick = queue.group("quick")
    queue.publish_many(list(LETTERS))
    assert drain(quick) == LETTERS
    home.advance(1000)
    assert drain(slow) == LETTERS
    assert seen(queue) == []


def test_a_clock_that_was_set_back_drops_messages_early(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept(retain_seconds=60)
    home.advance(1000)
    place.publish(b"a")
    home.clock.set_back(seconds=500)
    place.publish(b"b")
    home.advance(59)
    assert seen(place.log) == [b"a", b"b"]


# --- for a number of bytes ---


def test_too_few_bytes_are_kept_or_too_many(kept: Callable[..., Kept]) -> None:
    place = kept(retain_bytes=1000)
    reader = place.log.reader("r")
    for n in range(30):
        place.publish(HUNDRED[n])
        found = numbers(seen(place.log))
        assert found[-1] == n
        assert found == list(range(found[0], n + 1))
        assert min(n + 1, 10) <= len(found) <= 11
    first = numbers(seen(place.log))[0]
    assert numbers(payloads(reader.read_many(99))) == list(range(first, 30))
    assert reader.missed == first


def test_an_unsettled_message_is_dropped_for_its_size(home: Home) -> None:
    queue = home.broker.queue("log", retain_bytes=500)
    one_by_one(queue, HUNDRED[:20])
    assert numbers(seen(queue)) == list(range(20))
    first = take(queue)
    assert len(drain(queue)) == 19
    found = numbers(seen(queue))
    assert found[0] == 0
    assert 6 <= len(found) <= 7
    first.nack(delay=0)
    assert numbers(drain(queue)) == [0]
    assert 0 not in numbers(seen(queue))


def test_a_message_larger_than_what_is_kept_cannot_be_kept(kept: Callable[..., Kept]) -> None:
    place = kept(retain_bytes=10)
    place.publish(HUNDRED[0])
    assert numbers(seen(place.log)) == [0]
    place.publish(HUNDRED[1])
    assert numbers(seen(place.log)) == [1]
    place.publish(b"")
    assert place.log.reader("r").read_many(9)[-1].payload == b""


def test_of_time_and_bytes_only_one_counts(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept(retain_bytes=500, retain_seconds=60)
    place.publish(*HUNDRED[:20])
    assert 5 <= len(seen(place.log)) <= 6
    home.advance(30)
    place.publish(HUNDRED[20])
    home.advance(31)
    assert numbers(seen(place.log)) == [20]
    home.advance(30)
    assert seen(place.log) == []


# --- until it is consumed ---


def test_a_log_that_keeps_nothing_keeps_something(home: Home) -> None:
    queue, topic = home.broker.queue("queue"), home.broker.topic("topic")
    subscribed = topic.subscribe("s")
    silent = home.broker.topic("silent")
    readers = [log.reader("r") for log in (queue, topic, silent)]
    for log in (queue, topic, silent):
        log.publish_many(list(LETTERS))
        log.publish(b"f")
    assert (seen(queue), seen(topic), seen(silent)) == ([*LETTERS, b"f"], [*LETTERS, b"f"], [])
    drain(queue)
    drain(subscribed)
    assert (seen(queue), seen(topic)) == ([], [])
    assert [reader.read() for reader in readers] == [None] * 3
    assert [reader.missed for reader in readers] == [0] * 3
    assert drain(silent.subscribe("late", start="earliest")) == []
    assert drain(topic.subscribe("late", start="earliest")) == []
    assert drain(queue.group("late")) == []


def test_a_queue_without_any_group_forgets_what_was_published_before_its_first(home: Home) -> None:
    queue = home.broker.queue("queue")
    queue.group("only")
    queue.publish_many(list(LETTERS))
    assert seen(queue) == LETTERS
    assert drain(queue.group("only")) == LETTERS
    assert seen(queue) == []
    assert list(queue.stats().groups) == ["only"]


# --- falling off the end ---


def fallen(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one for one in caplog.records if one.name == "penstock.reader"]
    assert all(one.levelno == logging.WARNING for one in found)
    return [one.getMessage() for one in found]


def test_a_reader_that_fell_off_the_end_is_not_told_or_stops(
    home: Home, kept: Callable[..., Kept], caplog: pytest.LogCaptureFixture
) -> None:
    place = kept(retain_seconds=60)
    reader, early = place.log.reader("slow"), place.log.reader("early")
    place.publish(*LETTERS)
    early.read_many(3)
    home.advance(61)
    place.publish(b"f", b"g")
    assert fallen(caplog) == []
    assert payloads(reader.read_many(1)) == [b"f"]
    (said,) = fallen(caplog)
    assert "'slow'" in said
    assert "5 messages" in said
    assert (reader.missed, reader.position()) == (5, 6)
    assert payloads(reader.read_many(9)) == [b"g"]
    assert (reader.missed, len(fallen(caplog))) == (5, 1)  # it is said once
    assert payloads(early.read_many(9)) == [b"f", b"g"]
    assert early.missed == 2
    home.advance(61)
    place.publish(b"h")
    assert payloads(reader.read_many(9)) == [b"h"]
    assert reader.missed == 5  # what it has read it has not missed
    assert len(fallen(caplog)) == 2


def test_a_reader_that_fell_off_the_end_and_finds_nothing_is_not_told(
    home: Home, kept: Callable[..., Kept], caplog: pytest.LogCaptureFixture
) -> None:
    place = kept(retain_seconds=60)
    reader = place.log.reader("slow")
    place.publish(*LETTERS)
    home.advance(61)
    assert reader.read() is None
    assert reader.read() is None
    assert (reader.missed, reader.position(), reader.lag(), len(fallen(caplog))) == (5, 5, 0, 1)


def test_a_reader_that_comes_anew_or_seeks_or_resets_is_told_that_it_missed_something(
    home: Home, kept: Callable[..., Kept], caplog: pytest.LogCaptureFixture
) -> None:
    place = kept(retain_seconds=60)
    place.publish(*LETTERS)
    readers = [place.log.reader("r"), place.log.reader("s"), place.log.reader("t")]
    home.advance(61)
    place.publish(b"f", b"g")
    readers[0].seek(offset=5)
    readers[1].seek(timestamp=now(home))
    readers[2].reset()
    readers.append(place.log.reader("new"))
    for reader in readers:
        assert payloads(reader.read_many(9)) == [b"f", b"g"]
        assert reader.missed == 0
    with pytest.raises(InvalidArgument, match="5"):
        readers[0].seek(offset=4)
    assert fallen(caplog) == []


def test_a_message_that_was_purged_expired_or_cancelled_counts_as_missed(
    home: Home, kept: Callable[..., Kept], caplog: pytest.LogCaptureFixture
) -> None:
    place = kept(retain_seconds=60)
    reader = place.log.reader("r")
    place.log.publish(b"brief", ttl=5)
    cancelled = place.log.publish(b"cancelled", delay=50)
    place.log.cancel(cancelled)
    home.advance(6)
    assert seen(place.log) == []
    home.advance(100)
    place.publish(b"a")
    assert payloads(reader.read_many(9)) == [b"a"]
    assert (reader.missed, fallen(caplog)) == (0, [])


def test_a_waiting_reader_is_not_told_what_it_missed(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept(retain_seconds=60)
    reader = place.log.reader("slow")
    place.publish(*LETTERS)
    home.advance(61)
    waiting = start(reader.read, None)
    place.publish(b"f")
    (found,) = all_of([waiting])
    assert found is not None
    assert (found.payload, reader.missed) == (b"f", 5)


def test_a_reader_that_was_away_is_not_told_what_it_missed(
    home: Home, kept: Callable[..., Kept], restart: Restart
) -> None:
    place = kept(retain_seconds=60)
    reader = place.log.reader("slow")
    place.publish(*LETTERS)
    reader.read_many(2)
    reader.commit()
    place.again(restart(away=100))
    place.publish(b"f")
    reader = place.log.reader("slow")
    assert reader.position() == 2
    assert payloads(reader.read_many(9)) == [b"f"]
    assert reader.missed == 3


# --- who comes anew, or goes back ---


def test_a_new_group_does_not_get_what_is_kept_or_gets_more(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=60)
    queue.publish(b"too old")
    home.advance(50)
    queue.publish_many([b"a", Message(b"brief", ttl=5), Message(b"later", delay=30)])
    queue.cancel(queue.publish(b"cancelled", delay=30))
    home.advance(11)
    queue.publish(b"b")
    assert drain(queue) == [b"too old", b"a", b"b"]
    late = queue.group("late")
    assert late.lag() == 3
    assert drain(late) == [b"a", b"b"]
    home.advance(20)
    assert (drain(late), drain(queue)) == ([b"later"], [b"later"])
    assert queue.receive() is None


def test_a_new_subscription_gets_other_than_it_asked_for(home: Home) -> None:
    topic = home.broker.topic("events", retain_seconds=1000)
    one_by_one(topic, LETTERS[:3])
    home.advance(10)
    moment = now(home)
    one_by_one(topic, LETTERS[3:])
    subscriptions = {
        "earliest": topic.subscribe("earliest", start="earliest"),
        "latest": topic.subscribe("latest"),
        "offset": topic.subscribe("offset", start=2),
        "time": topic.subscribe("time", start=moment),
        "filtered": topic.subscribe("filtered", start="earliest", filter="priority = 3"),
    }
    topic.publish(b"f", priority=3)
    assert {name: drain(one) for name, one in subscriptions.items()} == {
        "earliest": [b"f", *LETTERS],
        "latest": [b"f"],
        "offset": [b"f", *LETTERS[2:]],
        "time": [b"f", *LETTERS[3:]],
        "filtered": [b"f"],
    }
    with pytest.raises(InvalidArgument):
        topic.subscribe("beyond", start=7)
    assert topic.subscriber_count() == 5


def test_a_new_group_gets_what_was_expired_purged_or_dropped(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=1000, max_depth=3, overflow="drop-head")
    topic = home.broker.topic("events", retain_seconds=1000)
    topic.subscribe("slow")
    one_by_one(queue, LETTERS)  # the first two are dropped
    topic.publish(b"brief", ttl=5)
    topic.publish(b"purged")
    topic.purge()
    topic.publish(b"kept")
    home.advance(5)
    assert drain(queue.group("late")) == LETTERS[2:]
    assert drain(topic.subscribe("late", start="earliest")) == [b"kept"]
    assert seen(queue) == LETTERS[2:]
    assert seen(topic) == [b"kept"]


def test_an_expired_message_in_somebodys_hands_is_delivered_to_others(home: Home) -> None:
    for retained in (None, 1000):
        queue = home.broker.queue(f"log-{retained}", visibility_timeout=500, retain_seconds=retained)
        queue.publish(b"brief", ttl=5)
        held = take(queue)
        home.advance(6)
        assert drain(queue.group("late")) == []
        with pytest.raises(InvalidArgument):
            queue.group("default").seek(offset=0)
        held.ack()
        assert drain(queue.group("later")) == []


def test_a_dead_letter_comes_to_a_new_group(home: Home) -> None:
    """It failed in one group; whoever comes anew may do better."""
    queue = home.broker.queue("log", retain_seconds=1000)
    queue.publish(b"a")
    take(queue).reject()
    assert seen(queue) == [b"a"]
    assert drain(queue.group("late")) == [b"a"]
    assert queue.redrive() == 1
    assert drain(queue.group("late")) == []
    assert drain(queue) == [b"a"]


def test_a_new_group_gets_messages_out_of_order_or_without_their_keys(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=1000, ordering="key")
    queue.publish_many([Message(b"%d" % n, key="xy"[n % 2], priority=5 - n % 3) for n in range(8)])
    assert len(drain(queue)) == 8
    late = queue.group("late")
    first, second = late.receive_many(8)
    assert {first.payload, second.payload} == {b"0", b"1"}
    first.ack()
    second.ack()
    rest = drain(late)
    assert [one for one in rest if int(one) % 2] == [b"3", b"5", b"7"]
    assert [one for one in rest if not int(one) % 2] == [b"2", b"4", b"6"]


def test_a_group_cannot_go_back_over_what_is_kept(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=1000, max_attempts=2)
    ids = [queue.publish(letter) for letter in LETTERS]
    assert drain(queue) == LETTERS
    group = queue.group("default")
    group.seek(offset=1)
    assert (group.lag(), counts(queue)) == (4, expected(ready=4))
    assert drain(group) == LETTERS[1:]
    group.seek(message_id=ids[3])
    assert drain(queue) == LETTERS[3:]
    group.seek(timestamp=now(home))
    assert drain(queue) == LETTERS
    group.seek(offset=5)
    assert (drain(queue), group.lag()) == ([], 0)


def test_what_a_group_had_in_hand_when_it_went_back_counts(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=1000, max_attempts=2)
    one_by_one(queue, LETTERS)
    take(queue).ack()
    held = take(queue)
    take(queue).nack(delay=50)
    queue.group("default").seek(offset=0)
    for settle in (held.ack, held.nack, held.reject, held.requeue):
        with pytest.raises(LeaseLost):
            settle()
    again = queue.receive_many(9)
    assert [(one.payload, one.attempt) for one in again] == [(letter, 1) for letter in LETTERS]
    queue.ack_many(again)
    home.advance(100)
    assert queue.receive() is None
    assert queue.stats().dead == 0


def test_a_group_goes_back_to_what_is_gone(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=60)
    ids = queue.publish_many([b"a", b"b"])
    brief = queue.publish(b"brief", ttl=70)
    drain(queue)
    home.advance(61)
    queue.publish(b"c", ttl=5)
    queue.publish(b"d")
    home.advance(5)
    group = queue.group("default")
    for place in ({"offset": 0}, {"offset": 1}, {"offset": 3}, {"message_id": ids[1]}, {"message_id": brief}):
        with pytest.raises(InvalidArgument):
            group.seek(**place)  # type: ignore[arg-type]
    assert counts(queue) == expected(ready=1)
    group.seek(timestamp=datetime(2000, 1, 1, tzinfo=UTC))
    assert drain(queue) == [b"d"]


def test_a_group_that_went_back_loses_its_place(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("log", retain_seconds=1000)
    one_by_one(queue, LETTERS)
    drain(queue)
    queue.group("default").seek(offset=1)
    take(queue).ack()
    topic = home.broker.topic("events", retain_seconds=1000)
    one_by_one(topic, LETTERS)
    topic.subscribe("s", start=3)
    broker = restart()
    assert drain(broker.queue("log")) == LETTERS[2:]
    assert drain(broker.topic("events").subscription("s")) == LETTERS[3:]
    broker = restart()
    assert drain(broker.queue("log")) == drain(broker.topic("events").subscription("s")) == []
    assert seen(broker.queue("log")) == seen(broker.topic("events")) == LETTERS


def test_what_is_kept_counts_against_the_depth(home: Home) -> None:
    queue = home.broker.queue("log", retain_seconds=1000, max_depth=2, max_bytes=10)
    for letter in LETTERS * 3:
        queue.publish(letter)
        take(queue).ack()
    assert counts(queue) == expected()
    assert queue.peek(9) == []
    assert seen(queue) == LETTERS * 3


# --- other terms ---


def test_a_shorter_time_or_fewer_bytes_count_only_for_what_comes_later(
    home: Home, kept: Callable[..., Kept]
) -> None:
    place = kept(retain_seconds=1000)
    place.publish(*HUNDRED[:5])
    home.advance(50)
    place.publish(*HUNDRED[5:10])
    place.log.alter(retain_seconds=40)
    assert numbers(seen(place.log)) == [5, 6, 7, 8, 9]
    place.log.alter(retain_seconds=None, retain_bytes=300)
    assert 3 <= len(seen(place.log)) <= 4
    place.log.alter(retain_bytes=None)
    assert seen(place.log) == []


def test_a_longer_time_brings_back_what_is_gone_or_is_not_kept(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept(retain_seconds=10)
    place.publish(b"a")
    home.advance(11)
    place.publish(b"b")
    place.log.alter(retain_seconds=1000)
    home.advance(500)
    assert seen(place.log) == [b"b"]
    place.log.alter(retain_seconds=None)
    assert seen(place.log) == []
    place.log.alter(retain_seconds=1000)
    place.publish(b"c")
    home.advance(500)
    assert seen(place.log) == [b"c"]


def test_a_log_that_kept_nothing_cannot_begin_to(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept()
    place.publish(b"a", b"b")
    place.log.alter(retain_seconds=60)
    place.publish(b"c")
    home.advance(30)
    place.publish(b"d")
    assert seen(place.log) == [b"c", b"d"]
    home.advance(31)
    assert seen(place.log) == [b"d"]


def test_what_was_there_when_a_log_began_to_keep_messages_is_dropped_too_early(home: Home) -> None:
    queue = home.broker.queue("log")
    queue.publish(b"a")
    home.advance(50)
    queue.publish(b"b")
    queue.alter(retain_seconds=60)
    assert drain(queue) == [b"a", b"b"]
    home.advance(15)
    assert b"b" in seen(queue)  # it is fifteen seconds old
    home.advance(46)
    assert seen(queue) == []


def test_what_was_there_when_a_log_began_to_keep_bytes_is_dropped_too_early(home: Home) -> None:
    queue = home.broker.queue("log")
    one_by_one(queue, HUNDRED[:10])
    queue.alter(retain_bytes=500)
    drain(queue)
    assert numbers(seen(queue))[-5:] == [5, 6, 7, 8, 9]
    for n in range(10, 20):
        queue.publish(HUNDRED[n])
        drain(queue)
    assert numbers(seen(queue))[-5:] == [15, 16, 17, 18, 19]
    assert len(seen(queue)) <= 6


@pytest.mark.parametrize("policy", [{"retain_seconds": 0}, {"retain_seconds": -1}, {"retain_bytes": 0}, {"retain_bytes": 1.5}, {"retain": "for ever"}], ids=str)  # fmt: skip
def test_wrong_terms_are_taken(home: Home, policy: dict[str, Any]) -> None:
    queue = home.broker.queue("log", retain_seconds=60)
    queue.publish(b"a")
    drain(queue)
    with pytest.raises(InvalidArgument):
        queue.alter(**policy)
    assert seen(queue) == [b"a"]
    assert queue.policy.retain_seconds == 60


# --- readers who are waited for ---


def test_a_holding_reader_is_not_waited_for_where_messages_are_kept_for_a_time(
    home: Home, kept: Callable[..., Kept]
) -> None:
    place = kept(retain_seconds=60, retain_bytes=100)
    reader = place.log.reader("archive", hold=True)
    other = place.log.reader("other")
    place.publish(*LETTERS)
    home.advance(1000)
    assert seen(place.log) == LETTERS
    reader.read_many(3)
    reader.commit()
    assert seen(place.log) == [b"d", b"e"]
    assert payloads(other.read_many(9)) == [b"d", b"e"]
    assert other.missed == 3
    reader.reset()
    assert seen(place.log) == []
    assert reader.missed == 0


def test_a_reader_that_is_ahead_drops_what_is_kept_for_a_time(home: Home, kept: Callable[..., Kept]) -> None:
    place = kept(retain_seconds=60)
    reader = place.log.reader("archive", hold=True)
    place.publish(*LETTERS)
    reader.read_many(9)
    reader.commit()
    assert seen(place.log) == LETTERS
    home.advance(61)
    assert seen(place.log) == []


def test_a_reader_holds_what_was_dropped_before_it_asked(
    home: Home, kept: Callable[..., Kept], caplog: pytest.LogCaptureFixture
) -> None:
    place = kept(retain_seconds=60)
    reader = place.log.reader("archive")
    reader.commit()
    place.publish(*LETTERS)
    home.advance(61)
    reader = place.log.reader("archive", hold=True)
    place.publish(b"f")
    home.advance(61)
    assert reader.position() == 0
    assert payloads(reader.read_many(9)) == [b"f"]
    assert reader.missed == 5


# --- restarts ---


def test_a_restart_brings_back_or_drops_what_is_kept(
    home: Home, kept: Callable[..., Kept], restart: Restart
) -> None:
    place = kept(retain_seconds=100)
    place.publish(b"a")
    home.advance(60)
    place.publish(b"b")
    home.advance(30)
    place.again(restart())
    assert seen(place.log) == [b"a", b"b"]
    place.again(restart(away=20))
    assert seen(place.log) == [b"b"]
    place.publish(b"c")
    place.again(restart(away=85))
    assert seen(place.log) == [b"c"]
    place.again(restart(away=100))
    assert seen(place.log) == []
    place.publish(b"d")
    place.again(restart())
    assert seen(place.log) == [b"d"]


def test_a_restart_brings_back_or_drops_bytes(
    home: Home, kept: Callable[..., Kept], restart: Restart
) -> None:
    place = kept(retain_bytes=500)
    for n in range(20):
        place.publish(HUNDRED[n])
    before = seen(place.log)
    assert 5 <= len(before) <= 6
    for _ in range(2):
        place.again(restart())
        assert seen(place.log) == before
    for n in range(20, 40):
        place.publish(HUNDRED[n])
    assert 5 <= len(seen(place.log)) <= 6
    assert numbers(seen(place.log))[-1] == 39


def test_what_was_dropped_comes_back_after_a_restart_with_a_longer_time(
    home: Home, kept: Callable[..., Kept], restart: Restart
) -> None:
    place = kept(retain_seconds=10)
    place.publish(b"a")
    home.advance(11)
    place.publish(b"b")
    assert seen(place.log) == [b"b"]
    place.log.alter(retain_seconds=1000)
    place.again(restart())
    assert seen(place.log) == [b"b"]
    place.again(restart(away=500))
    assert seen(place.log) == [b"b"]


def test_what_was_dropped_comes_back_after_a_restart_for_a_reader_who_asked_late(
    home: Home, kept: Callable[..., Kept], restart: Restart
) -> None:
    place = kept(retain_seconds=10)
    place.log.reader("archive").commit()
    place.publish(b"a")
    home.advance(11)
    place.publish(b"b")
    place.log.reader("archive", hold=True)
    assert seen(place.log) == [b"b"]
    place.again(restart())
    assert seen(place.log) == [b"b"]
    place.again(restart(away=500))
    assert seen(place.log) == [b"b"]


def test_what_was_expired_purged_or_cancelled_comes_back_after_a_restart(
    home: Home, kept: Callable[..., Kept], restart: Restart
) -> None:
    place = kept(retain_seconds=1000)
    place.log.publish(b"purged")
    place.log.purge()
    place.log.publish(b"brief", ttl=5)
    place.log.cancel(place.log.publish(b"cancelled", delay=50))
    place.log.publish(b"kept")
    home.advance(5)
    assert seen(place.log) == [b"kept"]
    for _ in range(2):
        place.again(restart(away=60))
        assert seen(place.log) == [b"kept"]
    late = (
        place.log.group("late")  # type: ignore[attr-defined]
        if place.kind == "queue"
        else place.log.subscribe("late", start="earliest")  # type: ignore[attr-defined]
    )
    assert drain(late) == [b"kept"]


def test_terms_that_were_altered_are_forgotten_by_a_restart(
    home: Home, kept: Callable[..., Kept], restart: Restart
) -> None:
    place = kept()
    place.publish(b"gone")
    place.log.alter(retain_seconds=1000)
    place.publish(b"a", b"b")
    place.again(restart(away=10))
    assert seen(place.log) == [b"a", b"b"]
    place.log.alter(retain_seconds=None)
    assert seen(place.log) == []
    place.log.alter(retain_seconds=1000)
    place.again(restart())
    assert seen(place.log) == []
    place.publish(b"c")
    place.again(restart())
    assert seen(place.log) == [b"c"]


# --- space ---


def test_what_nobody_keeps_stays_in_memory(home: Home) -> None:
    """A reader sees whatever is stored; so it is looked at after each of many rounds."""
    queue = home.broker.queue("queue", retain_bytes=1000)
    topic = home.broker.topic("topic", retain_seconds=10)
    silent = home.broker.topic("silent")
    for n in range(50):
        queue.publish(HUNDRED[n])
        queue.publish_many(HUNDRED[:5])
        topic.publish_many(HUNDRED[:10])
        silent.publish_many(HUNDRED[:10])
        drain(queue)
        home.advance(3)
        assert len(seen(queue)) <= 20
        assert len(seen(topic)) <= 40
        assert seen(silent) == []


def journal(broker: Broker) -> Any:
    stats: Any = broker.stats()
    return stats.journal


def small(home: Home) -> Broker:
    """A broker whose segments are small."""
    return home.open(home.elsewhere(), segment_bytes=16384, durability="os")


def consumed(queue: Queue, rounds: int) -> None:
    for _ in range(rounds):
        queue.publish_many(HUNDRED[:100])
        queue.ack_many(queue.receive_many(100))


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is given back often."""
    monkeypatch.setattr(upkeep, "CHANGES_AT_ONCE", 5)


#: What a round publishes and consumes; what is written of that is about twice as much.
ROUND_BYTES = 10_000

#: Several times what is alive in these tests, and much less than what was published.
FEW_BYTES = 40 * ROUND_BYTES


def shrinks(broker: Broker, go_on: Callable[[], object]) -> bool:
    """Whether it becomes small while it is in use."""
    for _ in range(50):
        before = journal(broker).sequence
        for _ in range(3):
            go_on()
        until(lambda before=before: any(one > before for one in journal(broker).snapshots))  # type: ignore[misc]
        if journal(broker).bytes < FEW_BYTES:
            return True
    return False


@survives_a_restart
def test_a_queue_in_use_never_gives_its_space_back(home: Home, busy: None) -> None:
    broker = small(home)
    queue = broker.queue("queue")
    kept = broker.queue("kept")
    kept.publish_many(HUNDRED[:100])
    consumed(queue, 100)
    assert shrinks(broker, lambda: consumed(queue, 1))
    assert numbers(drain(kept)) == list(range(100))


@survives_a_restart
def test_a_topic_never_gives_back_what_is_too_old_or_too_much(home: Home, busy: None) -> None:
    broker = small(home)
    topic = broker.topic("topic", retain_seconds=10)
    queue = broker.queue("queue", retain_bytes=2 * ROUND_BYTES)

    def go_on() -> None:
        topic.publish_many(HUNDRED[:100])
        consumed(queue, 1)
        home.clock.advance(seconds=5)

    for _ in range(60):
        go_on()
    assert shrinks(broker, go_on)
    topic.publish(b"last")
    assert seen(topic)[-1] == b"last"
    assert numbers(seen(queue))[-100:] == list(range(100))


@survives_a_restart
def test_what_a_reader_holds_is_cleaned_away_or_kept_after_it_has_read_it(home: Home, busy: None) -> None:
    broker = small(home)
    queue = broker.queue("queue")
    reader = queue.reader("archive", hold=True)
    consumed(queue, 60)
    broker.queue("beside").publish_many(HUNDRED[:100])
    for _ in range(60):
        consumed(broker.queue("beside"), 1)
    assert journal(broker).bytes > 60 * ROUND_BYTES
    found = read_all(reader, 60 * 100)
    assert numbers(found) == list(range(100)) * 60
    reader.commit()
    assert shrinks(broker, lambda: consumed(broker.queue("beside"), 1))
    assert reader.missed == 0


def read_all(reader: Reader, total: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < total:
        more = payloads(reader.read_many(EVERYTHING))
        assert more, f"only {len(found)} of {total} are there"
        found += more
    return found


@survives_a_restart
def test_an_old_segment_with_a_few_live_messages_is_kept_or_they_are_lost(home: Home, busy: None) -> None:
    path = home.elsewhere()
    broker = home.open(path, segment_bytes=16384, durability="os")
    queue = broker.queue("queue", max_attempts=None, visibility_timeout=None)
    held = []
    for n in range(50):
        queue.publish_many(HUNDRED[:100])
        found = queue.receive_many(100)
        held.append(found.pop(n))
        queue.ack_many(found)
    beside = broker.queue("beside")
    assert shrinks(broker, lambda: consumed(beside, 1))
    assert numbers(seen(queue)) == list(range(50))
    queue.ack_many(held[:25])
    assert numbers(seen(queue)) == list(range(25, 50))
    broker.close()
    after = home.open(path)
    assert numbers(drain(after.queue("queue"))) == list(range(25, 50))


@survives_a_restart
@pytest.mark.parametrize("on_expire", ["drop", "dead-letter"])
@pytest.mark.parametrize("how", ["requeue", "nack", "reject", "close"])
def test_an_expired_message_that_was_given_back_comes_again_after_a_crash(
    home: Home, on_expire: str, how: str
) -> None:
    """It was in somebody's hands when a snapshot was taken."""
    queue = home.broker.queue("q", visibility_timeout=500, on_expire=on_expire)
    consumer = queue.subscribe("w")
    queue.publish(b"brief", ttl=10)
    delivery = take(consumer)
    home.advance(11)
    home.inside.monitor.upkeep.run()
    assert len(journal(home.broker).snapshots) == 1
    if how == "close":
        consumer.close()
    else:
        getattr(delivery, how)()
    found = counts(queue)
    queue = home.crash().queue("q")
    assert counts(queue) == found
    assert queue.receive() is None


# --- everything at once ---


def test_a_reader_that_races_with_retention_loses_count(home: Home) -> None:
    """What a reader got and what it missed is everything, whatever is dropped before its eyes."""
    topic: Topic = home.broker.topic("busy", retain_bytes=2000)
    total = 400

    def publish(publisher: int) -> None:
        for n in range(publisher, total, 4):
            topic.publish(HUNDRED[n])

    def read(reader: Reader) -> int:
        found: list[int] = []
        while reader.position() < total:
            found += [one.offset or 0 for one in reader.read_many(3, None)]
        assert found == sorted(set(found))
        assert len(found) + reader.missed == total
        return len(found)

    readers = [start(read, topic.reader(f"r{n}")) for n in range(4)]
    all_of([start(publish, publisher) for publisher in range(4)])
    assert all(20 <= count <= total for count in all_of(readers))


def test_a_new_group_loses_or_repeats_messages_while_others_publish_and_consume(home: Home) -> None:
    queue = home.broker.queue("busy", retain_seconds=1000)
    total = 200

    def publish(publisher: int) -> None:
        for n in range(publisher, total, 2):
            queue.publish(b"%d" % n)

    def consume(name: str) -> list[bytes]:
        group = queue.group(name)
        found: list[bytes] = []
        while len(found) < total:
            more = group.receive_many(10, None)
            found += payloads(more)
            group.ack_many(more)
        return found

    groups = [start(consume, f"g{n}") for n in range(3)]
    publishers = [start(publish, publisher) for publisher in range(2)]
    groups += [start(consume, f"late-{n}") for n in range(3)]
    all_of(publishers)
    everything = [b"%d" % n for n in range(total)]
    for found in all_of(groups):
        assert sorted(found, key=int) == everything
    late = consume("last")
    assert late == seen(queue)


def test_what_a_transaction_published_comes_back_after_a_restart(home: Home, restart: Restart) -> None:
    topic = home.broker.topic("bytes", retain_bytes=100)
    for first in range(0, 40, 10):
        with home.broker.transaction() as tx:
            for number in range(first, first + 10):
                tx.publish("bytes", b"%010d" % number)
    before = [one.offset for one in topic.reader("look").read_many(99)]
    assert len(before) <= 20
    topic = restart().get_topic("bytes")
    assert [one.offset for one in topic.reader("look").read_many(99)] == before
