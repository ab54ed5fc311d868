"""Messages at a time: one that is cancelled before it is due, and those that recur, once for each due time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import BrokerClosed, InvalidArgument, InvalidName, Message, MessageTooLarge, QueueNotFound
from penstock.broker import embedded
from penstock.clock import to_us
from tests.conformance.background import PATIENCE_S, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import EVERYTHING, counts, drain, expected, payloads, take
from tests.conformance.surface import Broker, Log, Queue, Receiver

MINUTELY = "* * * * *"
DAY = 24 * 3600.0

#: In 2026 Berlin's clocks go from 02:00 to 03:00 on March 29th, and from 03:00 back to 02:00 on October 25th.
BERLIN = "Europe/Berlin"


def go_to(home: Home, *moment: int) -> None:
    """Let time pass, in one step, up to a moment in UTC."""
    us = to_us(datetime(*moment, tzinfo=UTC)) - home.clock.now_us()  # type: ignore[misc,arg-type]
    home.advance(us / 1_000_000)


def dues(receiver: Receiver) -> list[str]:
    """For which due times there are messages, without seconds and zone; they are taken."""
    found = []
    while (delivery := receiver.receive()) is not None:
        found.append(delivery.headers["x-due"].removesuffix(":00+00:00"))
        delivery.ack()
    return found


# --- cancelling ---


def test_a_cancelled_message_comes_all_the_same(home: Home, queue: Queue) -> None:
    sent = queue.publish(b"a", delay=60)
    queue.publish(b"b", delay=60)
    assert queue.cancel(sent) is True
    assert counts(queue) == expected(delayed=1)
    home.advance(60)
    assert counts(queue) == expected(ready=1)
    assert drain(queue) == [b"b"]


def test_a_message_is_cancelled_a_moment_before_it_is_due_and_comes(home: Home, queue: Queue) -> None:
    sent = queue.publish(b"a", delay=60)
    home.advance(59.999999)
    assert queue.cancel(sent) is True
    home.advance(60)
    assert queue.receive() is None


def test_a_message_that_is_due_can_be_cancelled(home: Home, queue: Queue) -> None:
    sent = queue.publish(b"a", delay=60)
    home.clock.advance(60)  # nobody has noticed yet
    assert queue.cancel(sent) is False
    assert drain(queue) == [b"a"]


def test_a_message_without_a_delay_can_be_cancelled(queue: Queue) -> None:
    sent = queue.publish(b"a")
    assert queue.cancel(sent) is False
    held = take(queue)
    assert queue.cancel(sent) is False
    held.nack(delay=60)
    assert queue.cancel(sent) is False, "it waits for another attempt, not for its time"
    assert counts(queue) == expected(retrying=1)


def test_cancelling_twice_is_done_twice_or_takes_another_message(home: Home, queue: Queue) -> None:
    first, second = queue.publish(b"a", delay=60), queue.publish(b"b", delay=60)
    assert queue.cancel(first) is True
    with pytest.raises(InvalidArgument, match=f"{first} is stored in 'orders'"):
        queue.cancel(first)
    assert counts(queue) == expected(delayed=1)
    assert queue.cancel(second) is True
    assert counts(queue) == expected()


def test_what_is_cancelled_and_kept_is_cancelled_once_more(home: Home) -> None:
    queue = home.broker.queue("kept", retain_seconds=3600)
    sent = queue.publish(b"a", delay=60)
    settled = queue.publish(b"b")
    assert queue.cancel(sent) is True
    assert drain(queue) == [b"b"]
    assert queue.cancel(settled) is False
    with pytest.raises(InvalidArgument, match="is stored"):
        queue.cancel(sent)


@pytest.mark.parametrize("wrong", ["1", None, 1.5, True, b"1", [1]], ids=repr)
def test_what_is_no_id_is_taken_for_one(queue: Queue, wrong: Any) -> None:
    queue.publish(b"a", delay=60)
    with pytest.raises(InvalidArgument, match="give the int that publish returned"):
        queue.cancel(wrong)
    assert counts(queue) == expected(delayed=1)


@pytest.mark.parametrize("unknown", [0, -1, 1, 2**63, 10**30])
def test_an_unknown_id_is_thought_cancelled(queue: Queue, unknown: int) -> None:
    queue.publish(b"a", delay=60)
    with pytest.raises(InvalidArgument, match=f"{unknown} is stored"):
        queue.cancel(unknown)
    assert counts(queue) == expected(delayed=1)


def test_an_id_of_another_queue_is_cancelled_there(home: Home, queue: Queue) -> None:
    sent = queue.publish(b"a", delay=60)
    other = home.broker.queue("other")
    other.publish(b"b", delay=60)
    with pytest.raises(InvalidArgument, match="'other'"):
        other.cancel(sent)
    assert (counts(queue), counts(other)) == (expected(delayed=1), expected(delayed=1))


def test_each_of_many_is_cancelled_or_another_one_is(home: Home, queue: Queue) -> None:
    sent = queue.publish_many([Message(b"%d" % n, delay=(n * 37) % 100 + 1) for n in range(300)])
    for each in sent[::3]:
        assert queue.cancel(each) is True
    assert counts(queue) == expected(delayed=200)
    home.advance(100)
    assert sorted(drain(queue)) == sorted(b"%d" % n for n in range(300) if n % 3)
    assert counts(queue) == expected()


def test_a_cancelled_message_is_seen_by_readers(home: Home, queue: Queue) -> None:
    kept = home.broker.queue("kept", retain_seconds=3600)
    for log in (queue, kept):
        sent = log.publish(b"a", delay=60)
        log.publish(b"b")
        assert payloads(log.reader("r").read_many(9)) == [b"a", b"b"]
        log.cancel(sent)
        assert payloads(log.reader("r").read_many(9)) == [b"b"]


def test_a_cancelled_message_fills_a_queue(home: Home) -> None:
    queue = home.broker.queue("small", max_depth=1, max_bytes=4)
    sent = queue.publish(b"abcd", delay=60)
    assert queue.cancel(sent) is True
    queue.publish(b"efgh")
    assert drain(queue) == [b"efgh"]


def test_a_cancelled_message_expires_as_well(home: Home) -> None:
    queue = home.broker.queue("orders", on_expire="dead-letter")
    sent = queue.publish(b"a", delay=60, ttl=90)
    assert queue.cancel(sent) is True
    home.advance(90)
    assert counts(queue) == expected()


def test_every_subscription_but_one_is_spared_a_cancelled_message(home: Home) -> None:
    topic = home.broker.topic("events")
    first, second = topic.subscribe("first"), topic.subscribe("second", filter="priority < 200")
    third = topic.subscribe(durable=False)
    sent = topic.publish(b"a", delay=60)
    topic.publish(b"b", delay=60)
    fourth = topic.subscribe("fourth", start="earliest")
    assert topic.cancel(sent) is True
    fifth = topic.subscribe("fifth", start="earliest")
    home.advance(60)
    assert [drain(one) for one in (first, second, third, fourth, fifth)] == [[b"b"]] * 5


def test_a_delayed_message_that_nobody_subscribed_to_yet_cannot_be_cancelled(home: Home) -> None:
    topic = home.broker.topic("events", retain_seconds=3600)
    sent = topic.publish(b"a", delay=60)
    topic.publish(b"b", delay=60)
    topic.subscribe("late")
    assert topic.cancel(sent) is True
    early = topic.subscribe("early", start="earliest")
    home.advance(60)
    assert drain(early) == [b"b"]


def test_a_queue_with_several_groups_cancels_in_one(home: Home, queue: Queue) -> None:
    groups = [queue.group("a"), queue.group("b")]
    sent = queue.publish(b"0", delay=60)
    assert queue.cancel(sent) is True
    later = queue.group("c")
    home.advance(60)
    assert [drain(one) for one in (*groups, later)] == [[], [], []]
    assert [one.lag() for one in (*groups, later)] == [0, 0, 0]


def test_a_cancelled_message_of_a_key_blocks_the_others(home: Home) -> None:
    queue = home.broker.queue("orders", ordering="key")
    first = queue.publish(b"0", key="k", delay=60)
    second = queue.publish(b"1", key="k", delay=60)
    queue.publish(b"2", key="k", delay=60)
    queue.publish(b"3", key="other", delay=60)
    assert queue.cancel(first) is True
    home.advance(60)
    held = take(queue)
    assert (held.payload, take(queue).payload) == (b"1", b"3")
    assert queue.receive() is None, "its key is taken"
    assert queue.cancel(second) is False
    held.ack()
    assert take(queue).payload == b"2"


def test_a_cancelled_message_is_published_again_in_its_window(home: Home, queue: Queue) -> None:
    sent = queue.publish(b"a", delay=60, dedup_id="d")
    assert queue.cancel(sent) is True
    assert queue.publish(b"b", dedup_id="d") == sent, (
        "the id is remembered for the window, whatever became of it"
    )
    assert counts(queue) == expected()
    home.advance(301)
    assert queue.publish(b"c", dedup_id="d") != sent
    assert drain(queue) == [b"c"]


def test_with_exactly_once_a_cancelled_message_holds_its_dedup_id_for_ever(home: Home) -> None:
    queue = home.broker.queue("orders", delivery="exactly-once", dedup_window=10)
    sent = queue.publish(b"a", delay=60, dedup_id="d")
    home.advance(50)
    assert queue.cancel(sent) is True
    home.advance(9)
    assert queue.publish(b"b", dedup_id="d") == sent
    home.advance(2)
    assert queue.publish(b"c", dedup_id="d") != sent
    assert drain(queue) == [b"c"]


def test_a_cancelled_message_comes_back(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders")
    first, second = queue.publish(b"a", delay=60), queue.publish(b"b", delay=60)
    assert queue.cancel(first) is True
    queue = restart().queue("orders")
    assert counts(queue) == expected(delayed=1)
    with pytest.raises(InvalidArgument, match="is stored"):
        queue.cancel(first)
    queue.publish(b"c", delay=60)
    assert queue.cancel(second) is True, "one of before"
    queue = restart(60).queue("orders")
    assert drain(queue) == [b"c"]


@pytest.mark.parametrize("away", [30, 90])
def test_a_cancelled_message_comes_back_to_some_subscription(
    home: Home, restart: Restart, away: float
) -> None:
    topic = home.broker.topic("events", retain_seconds=3600, ordering="key")
    topic.subscribe("first")
    topic.subscribe("second")
    sent = topic.publish(b"a", key="k", delay=60, dedup_id="d")
    topic.publish(b"b", key="k", delay=60)
    assert topic.cancel(sent) is True
    topic = restart(away).topic("events")
    home.advance(60)
    found = [drain(topic.subscribe(name, start="earliest")) for name in ("first", "second", "third")]
    assert found == [[b"b"]] * 3
    assert topic.publish(b"c", dedup_id="d") == sent


def test_a_message_cancelled_where_only_an_ephemeral_subscription_is_comes_back(
    home: Home, restart: Restart
) -> None:
    topic = home.broker.topic("events", retain_seconds=3600)
    topic.subscribe(durable=False)
    sent = topic.publish(b"a", delay=60)
    topic.publish(b"b")
    assert topic.cancel(sent) is True
    topic = restart().topic("events")
    assert payloads(topic.reader("r").read_many(9)) == [b"b"]


def test_a_queue_that_is_gone_cancels(home: Home, queue: Queue) -> None:
    sent = queue.publish(b"a", delay=60)
    home.broker.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        queue.cancel(sent)


# --- recurring: once for each due time ---


@pytest.fixture(params=["queue", "topic"])
def log(request: pytest.FixtureRequest, home: Home) -> tuple[Log, Receiver]:
    """A queue or a topic, and somebody who gets its messages."""
    if request.param == "queue":
        queue = home.broker.queue("orders")
        return queue, queue
    topic = home.broker.topic("events")
    return topic, topic.subscribe("everything")


def test_a_recurring_message_is_early_late_or_comes_twice(home: Home, log: tuple[Log, Receiver]) -> None:
    written, read = log
    written.schedule("tick", MINUTELY, b"x")
    assert read.receive() is None, "it is not due yet"
    home.advance(59.999)
    assert read.receive() is None
    home.advance(0.001)
    delivery = take(read)
    assert (delivery.payload, delivery.attempt, delivery.priority, delivery.key) == (b"x", 1, 100, None)
    assert dict(delivery.headers) == {"x-schedule": "tick", "x-due": "2026-01-01T00:01:00+00:00"}
    delivery.ack()
    assert read.receive() is None
    home.advance(59)
    assert read.receive() is None
    home.advance(1)
    assert dues(read) == ["2026-01-01T00:02"]


@pytest.mark.parametrize("step", [1, 7, 20, 30, 59, 60])
def test_small_steps_lose_or_repeat_a_due_time(home: Home, queue: Queue, step: int) -> None:
    queue.schedule("tick", MINUTELY, b"x")
    passed = 0
    while passed < 600:
        home.advance(min(step, 600 - passed))
        passed += step
    assert dues(queue) == [f"2026-01-01T00:{minute:02}" for minute in range(1, 11)]


@pytest.mark.parametrize("missed", ["once", "all"])
def test_every_second_loses_or_repeats_one(home: Home, queue: Queue, missed: str) -> None:
    queue.schedule("tick", "* * * * * *", b"x", missed=missed)
    for _ in range(90):
        home.advance(0.5)
    found = [one.headers["x-due"][17:19] for one in queue.receive_many(EVERYTHING)]
    assert found == [f"{second:02}" for second in range(1, 46)]


def test_a_schedule_set_at_a_due_time_fires_for_it(home: Home, queue: Queue) -> None:
    home.advance(60)
    queue.schedule("tick", MINUTELY, b"x")
    assert queue.receive() is None
    home.advance(60)
    assert dues(queue) == ["2026-01-01T00:02"]


def test_who_waits_for_a_recurring_message_is_left_waiting(home: Home, queue: Queue) -> None:
    waiting = start(queue.receive, None)
    queue.schedule("tick", MINUTELY, b"x")
    home.advance_until(waiting, 30)
    found = waiting.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"x"


def test_schedules_without_end_are_set(home: Home, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SCHEDULES_MAX", 3)
    for name in ("a", "b", "c"):
        queue.schedule(name, MINUTELY, b"")
    with pytest.raises(InvalidArgument, match="has 3 schedules"):
        queue.schedule("d", MINUTELY, b"")
    queue.schedule("a", "@daily", b"")  # one of them is set anew
    assert queue.unschedule("b")
    queue.schedule("d", MINUTELY, b"")
    home.advance(60)
    assert len(dues(queue)) == 2


def test_several_schedules_stand_in_each_others_way(home: Home, queue: Queue) -> None:
    queue.schedule("second", "*/2 * * * *", b"2")
    queue.schedule("third", "*/3 * * * *", b"3")
    home.broker.queue("other").schedule("second", MINUTELY, b"other")
    for _ in range(6):
        home.advance(60)
    found = [(one.headers["x-schedule"], one.headers["x-due"][15:16]) for one in queue.receive_many(99)]
    assert sorted(found) == [
        ("second", "2"), ("second", "4"), ("second", "6"), ("third", "3"), ("third", "6"),
    ]  # fmt: skip
    assert home.broker.queue("other").depth() == 6


def test_a_recurring_message_that_fails_is_not_retried(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=2, backoff=None)
    queue.schedule("tick", "0 * * * *", b"x")
    home.advance(3600)
    take(queue).nack()
    take(queue).nack(error="no good")
    assert counts(queue) == expected(dead=1)
    letter = take(queue.dead_letters())
    assert (letter.headers["x-schedule"], letter.headers["x-due"]) == ("tick", "2026-01-01T01:00:00+00:00")
    home.advance(3600)
    assert dues(queue) == ["2026-01-01T02:00"]


# --- what it says ---


def test_a_recurring_message_loses_what_was_given_with_it(home: Home) -> None:
    queue = home.broker.queue("orders", ordering="key")
    given = Message(b"x", headers={"type": "report", "x-due": "mine"}, key="k", priority=7, ttl=90)
    queue.schedule("tick", MINUTELY, given)
    home.advance(60)
    home.advance(60)
    first = take(queue)
    assert (first.payload, first.key, first.priority) == (b"x", "k", 7)
    assert dict(first.headers) == {
        "type": "report", "x-schedule": "tick", "x-due": "2026-01-01T00:01:00+00:00",
    }  # fmt: skip
    assert queue.receive() is None, "its key is taken"
    first.ack()
    assert take(queue).headers["x-due"] == "2026-01-01T00:02:00+00:00"


def test_a_recurring_message_outlives_its_ttl(home: Home, queue: Queue) -> None:
    queue.schedule("tick", "0 * * * *", Message(b"x", ttl=90))
    home.advance(3600)
    home.advance(89)
    assert queue.depth() == 1
    home.advance(1)
    assert counts(queue) == expected()


def test_a_recurring_message_forgets_the_ttl_of_its_queue(home: Home) -> None:
    queue = home.broker.queue("orders", ttl=90)
    queue.schedule("tick", "0 * * * *", b"x")
    home.advance(3600)
    assert queue.depth() == 1
    home.advance(90)
    assert counts(queue) == expected()


def test_a_recurring_message_goes_before_more_urgent_ones(home: Home, queue: Queue) -> None:
    queue.schedule("urgent", MINUTELY, Message(b"urgent", priority=0))
    queue.schedule("later", MINUTELY, Message(b"later", priority=200))
    home.advance(60)
    queue.publish(b"plain")
    assert drain(queue) == [b"urgent", b"plain", b"later"]


def test_the_time_of_a_recurring_message_is_when_it_was_due(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"x")
    home.advance(75)
    assert take(queue).timestamp == datetime(2026, 1, 1, 0, 1, 15, tzinfo=UTC), "it was published then"


def test_a_recurring_message_has_the_id_of_the_last_one(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"x", missed="all")
    home.advance(600)
    found = queue.receive_many(99)
    assert len({one.id for one in found}) == 10
    assert [one.offset for one in found] == list(range(10))
    assert sorted(one.id for one in found) == [one.id for one in found]


# --- time zones ---


def test_a_daily_message_comes_twice_or_never_where_clocks_change(home: Home, queue: Queue) -> None:
    go_to(home, 2026, 3, 27)
    queue.schedule("night", "30 2 * * *", b"x", timezone=BERLIN)
    for _ in range(24 * 5):
        home.advance(3600)
    assert dues(queue) == [
        "2026-03-27T01:30", "2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30", "2026-03-31T00:30",
    ]  # fmt: skip
    go_to(home, 2026, 10, 24)
    dues(queue)
    for _ in range(24 * 3):
        home.advance(3600)
    assert dues(queue) == ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]


def test_an_hourly_message_is_not_hourly_where_clocks_change(home: Home, queue: Queue) -> None:
    for day, hours in ((29, 3), (25, 10)):
        go_to(home, 2026, hours, day)
        queue.purge()
        queue.schedule("hourly", "@hourly", b"x", timezone=BERLIN)
        for _ in range(16):
            home.advance(900)
        assert [one[11:13] for one in dues(queue)] == ["01", "02", "03", "04"]


def test_a_missed_night_with_a_change_of_clocks_counts_wrong(home: Home, restart: Restart) -> None:
    go_to(home, 2026, 3, 28)
    queue = home.broker.queue("orders")
    queue.schedule("quarters", "*/15 2 * * *", b"x", timezone=BERLIN, missed="all")
    queue = restart(3 * DAY - 1).queue("orders")
    assert dues(queue) == [
        "2026-03-28T01:00", "2026-03-28T01:15", "2026-03-28T01:30", "2026-03-28T01:45",
        "2026-03-29T01:00",
        "2026-03-30T00:00", "2026-03-30T00:15", "2026-03-30T00:30", "2026-03-30T00:45",
    ]  # fmt: skip


def test_zones_are_mixed_up(home: Home, queue: Queue) -> None:
    queue.schedule("east", "0 12 * * *", b"x", timezone="Asia/Tokyo")
    queue.schedule("utc", "0 12 * * *", b"x")
    queue.schedule("west", "0 12 * * *", b"x", timezone="America/New_York")
    for _ in range(24):
        home.advance(3600)
    found = [(one.headers["x-schedule"], one.headers["x-due"][11:13]) for one in queue.receive_many(99)]
    assert found == [("east", "03"), ("utc", "12"), ("west", "17")]


# --- restarts ---


@pytest.mark.parametrize("before", [0, 1, 59, 60, 61])
@pytest.mark.parametrize("away", [0, 1, 30])
def test_a_restart_around_a_due_time_loses_or_repeats_it(
    home: Home, restart: Restart, before: float, away: float
) -> None:
    home.broker.queue("orders").schedule("tick", MINUTELY, b"x")
    home.advance(before)
    queue = restart(away).queue("orders")
    go_to(home, 2026, 1, 1, 0, 2)
    queue = restart().queue("orders")
    go_to(home, 2026, 1, 1, 0, 3)
    found = dues(queue)
    # What came late by the long step is made up for by the last of them.
    assert found == sorted(set(found))
    assert found[-2:] == ["2026-01-01T00:02", "2026-01-01T00:03"]
    assert queue.stats().schedules == ["tick"]


def test_a_due_time_that_fired_fires_again_after_a_restart(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders")
    queue.schedule("tick", MINUTELY, b"x", missed="all")
    home.advance(60)
    for _ in range(3):
        queue = restart().queue("orders")
    assert dues(queue) == ["2026-01-01T00:01"]
    queue = restart(60).queue("orders")
    queue = restart().queue("orders")
    assert dues(queue) == ["2026-01-01T00:02"]


def test_a_wall_clock_that_went_back_fires_a_due_time_again(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders")
    queue.schedule("tick", MINUTELY, b"x", missed="all")
    home.advance(120)
    assert len(dues(queue)) == 2
    home.clock.set_back(seconds=90)
    queue = restart().queue("orders")
    home.advance(89)
    assert dues(queue) == []
    home.advance(61)
    assert dues(queue) == ["2026-01-01T00:03"]


ABSENCES: list[tuple[str, str, float, list[str]]] = [
    ("once", "0 * * * *", 5.5 * 3600, ["05:00"]),
    ("skip", "0 * * * *", 5.5 * 3600, []),
    ("all", "0 * * * *", 5.5 * 3600, ["01:00", "02:00", "03:00", "04:00", "05:00"]),
    ("once", "0 * * * *", 3599, []),
    ("all", "0 * * * *", 3599, []),
    ("once", "0 * * * *", 3600, ["01:00"]),
    ("skip", "0 * * * *", 3600, ["01:00"]),
    ("all", "0 * * * *", 3600, ["01:00"]),
    ("skip", "0 * * * *", 3660, ["01:00"]),
    ("skip", "0 * * * *", 3661, []),
]


@pytest.mark.parametrize(("missed", "cron", "away", "made_up"), ABSENCES)
def test_missed_due_times_are_made_up_for_by_another_rule(
    home: Home, restart: Restart, missed: str, cron: str, away: float, made_up: list[str]
) -> None:
    home.broker.queue("orders").schedule("tick", cron, b"x", missed=missed)
    queue = restart(away).queue("orders")
    assert [one[11:] for one in dues(queue)] == made_up
    go_to(home, 2026, 1, 1, 7)
    assert dues(queue)[-1] == "2026-01-01T07:00"


@pytest.mark.parametrize(("missed", "cron", "away", "made_up"), ABSENCES)
def test_a_long_step_is_another_absence_than_a_closed_broker(
    home: Home, queue: Queue, missed: str, cron: str, away: float, made_up: list[str]
) -> None:
    queue.schedule("tick", cron, b"x", missed=missed)
    home.advance(away)
    assert [one[11:] for one in dues(queue)] == made_up


def test_a_year_of_absence_has_no_bound(home: Home, restart: Restart) -> None:
    broker = home.broker
    for missed in ("once", "skip", "all"):
        broker.queue(missed).schedule("tick", "*/10 * * * *", b"x", missed=missed)
    broker.queue("yearly").schedule("tick", "@yearly", b"x", missed="all")
    broker = restart(400 * DAY + 300)
    assert {name: broker.queue(name).depth() for name in ("once", "skip", "all", "yearly")} == {
        "once": 1, "skip": 0, "all": 1000, "yearly": 1,
    }  # fmt: skip
    newest = broker.queue("all").receive_many(EVERYTHING)[-1]
    assert (
        newest.headers["x-due"] == take(broker.queue("once")).headers["x-due"] == "2027-02-05T00:00:00+00:00"
    )


def test_large_messages_made_up_for_at_once_are_too_much(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", max_bytes=64 << 20)
    queue.schedule("tick", MINUTELY, b"x" * (1 << 20), missed="all")
    queue = restart(80 * 60).queue("orders")
    assert queue.depth() == 64, "what does not fit counts as missed"
    queue.purge()
    home.advance(60)
    assert queue.depth() == 1


def test_a_schedule_is_forgotten(home: Home, restart: Restart) -> None:
    broker = home.broker
    broker.queue("orders").schedule(
        "tick",
        "0 12 * * *",
        Message(b"x", headers={"a": "b"}, key="k", priority=3, ttl=60),
        timezone="Asia/Tokyo",
    )
    broker.topic("events").schedule("tock", MINUTELY, b"y", missed="skip")
    broker.topic("events").subscribe("s")
    broker = restart()
    broker = restart()
    assert broker.queue("orders").stats().schedules == ["tick"]
    assert broker.topic("events").stats().schedules == ["tock"]
    home.advance(60)
    assert drain(broker.topic("events").subscribe("s")) == [b"y"]
    go_to(home, 2026, 1, 1, 3)
    found = take(broker.queue("orders"))
    assert (found.payload, found.headers["a"], found.key, found.priority) == (b"x", "b", "k", 3)
    home.advance(60)
    assert broker.queue("orders").depth() == 0


# --- replacing and removing ---


def test_a_schedule_of_the_same_name_stands_beside_the_old_one(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"old")
    home.advance(30)
    queue.schedule("tick", "*/5 * * * *", b"new", missed="all")
    assert queue.stats().schedules == ["tick"]
    home.advance(30)
    assert drain(queue) == []
    home.advance(540)
    assert drain(queue) == [b"new", b"new"]


def test_a_schedule_that_is_replaced_at_its_due_time_fires_twice(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"old")
    home.clock.advance(60)
    queue.schedule("tick", MINUTELY, b"new")  # first comes what was due
    assert drain(queue) == [b"old"]
    home.advance(60)
    assert drain(queue) == [b"new"]


def test_an_unscheduled_message_comes_once_more(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"x")
    queue.schedule("tock", MINUTELY, b"y")
    assert queue.unschedule("tick") is True
    assert queue.unschedule("tick") is False
    assert queue.unschedule("never") is False
    assert list(queue.stats().schedules) == ["tock"]
    home.advance(60)
    assert drain(queue) == [b"y"]


def test_an_unscheduled_or_replaced_message_comes_back(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders")
    for name in ("gone", "replaced", "kept"):
        queue.schedule(name, MINUTELY, name.encode(), missed="all")
    home.advance(60)
    assert sorted(drain(queue)) == [b"gone", b"kept", b"replaced"]
    assert queue.unschedule("gone") is True
    queue.schedule("replaced", "*/2 * * * *", b"other", missed="all")
    queue = restart(60).queue("orders")
    assert sorted(queue.stats().schedules) == ["kept", "replaced"]
    assert sorted(drain(queue)) == [b"kept", b"other"]
    assert queue.unschedule("gone") is False


def test_purging_removes_a_schedule(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"x")
    home.advance(60)
    queue.purge()
    assert queue.stats().schedules == ["tick"]
    home.advance(60)
    assert dues(queue) == ["2026-01-01T00:02"]


def test_a_deleted_log_goes_on(home: Home) -> None:
    def check(delete: Callable[[str], None], make: Callable[[str], Log]) -> None:
        made = make("log")
        made.schedule("tick", MINUTELY, b"x", missed="all")
        delete("log")
        home.advance(60)
        made = make("log")
        assert list(made.stats().schedules) == []
        home.advance(60)
        assert made.peek() == []
        delete("log")

    check(home.broker.delete_queue, home.broker.queue)
    check(home.broker.delete_topic, home.broker.topic)


def test_a_deleted_queue_comes_back_by_its_schedule(home: Home, restart: Restart) -> None:
    home.broker.queue("orders").schedule("tick", MINUTELY, b"x", missed="all")
    home.broker.delete_queue("orders")
    broker = restart(600)
    assert list(broker.list_queues()) == []
    assert broker.queue("orders").depth() == 0


# --- policies ---


def test_a_full_queue_is_overfilled_or_stops_its_schedule(home: Home) -> None:
    queue = home.broker.queue("small", max_depth=2)
    queue.schedule("tick", MINUTELY, b"x")
    for _ in range(5):
        home.advance(60)
    assert dues(queue) == ["2026-01-01T00:01", "2026-01-01T00:02"]
    home.advance(60)
    assert dues(queue) == ["2026-01-01T00:06"], "what found no room counts as missed"


def test_a_queue_that_drops_its_head_keeps_the_oldest(home: Home) -> None:
    queue = home.broker.queue("small", max_depth=2, overflow="drop-head")
    queue.schedule("tick", MINUTELY, b"x", missed="all")
    home.advance(300)
    assert dues(queue) == ["2026-01-01T00:04", "2026-01-01T00:05"]


def test_at_most_once_keeps_a_recurring_message(home: Home) -> None:
    queue = home.broker.queue("orders", delivery="at-most-once")
    queue.schedule("tick", MINUTELY, b"x")
    home.advance(60)
    assert take(queue).payload == b"x"
    assert counts(queue) == expected()


def test_exactly_once_takes_messages_without_a_dedup_id(home: Home) -> None:
    queue = home.broker.queue("orders", delivery="exactly-once")
    with pytest.raises(InvalidArgument, match="dedup_id"):
        queue.schedule("tick", MINUTELY, b"x")
    assert list(queue.stats().schedules) == []


def test_a_policy_that_was_altered_lets_the_schedule_through(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"x" * 10)
    queue.alter(max_message_bytes=5)
    home.advance(60)
    assert counts(queue) == expected(), "what it takes no more counts as missed"
    queue.alter(max_message_bytes=50)
    home.advance(60)
    assert dues(queue) == ["2026-01-01T00:02"]


def test_a_topic_keeps_what_recurs_for_those_who_come_later(home: Home) -> None:
    topic = home.broker.topic("events")
    topic.schedule("tick", MINUTELY, b"x")
    home.advance(60)
    late = topic.subscribe("late")
    home.advance(60)
    other = topic.subscribe("filtered", filter="\"x-schedule\" = 'tick' AND key IS NULL")
    none = topic.subscribe("nothing", filter="key = 'k'")
    home.advance(60)
    assert dues(late) == ["2026-01-01T00:02", "2026-01-01T00:03"]
    assert dues(other) == ["2026-01-01T00:03"]
    assert dues(none) == []


def test_a_reader_does_not_see_what_recurs(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"x")
    reader = queue.reader("r")
    home.advance(60)
    found = reader.read()
    assert found is not None
    assert found.headers["x-due"] == "2026-01-01T00:01:00+00:00"


def test_a_recurring_message_is_cancelled(home: Home, queue: Queue) -> None:
    queue.schedule("tick", MINUTELY, b"x")
    home.advance(60)
    assert queue.cancel(take(queue).id) is False


# --- mistakes ---


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no cron": ({"cron": "every minute"}, "2 fields"),
    "four fields": ({"cron": "* * * *"}, "4 fields"),
    "a bad hour": ({"cron": "0 25 * * *"}, "bad hour '25' at character 3"),
    "never due": ({"cron": "0 0 30 2 *"}, "never due"),
    "an unknown alias": ({"cron": "@sometimes"}, "@hourly"),
    "empty": ({"cron": ""}, "0 fields"),
    "cron as a number": ({"cron": 5}, "give a str"),
    "cron as none": ({"cron": None}, "give a str"),
    "a long cron": ({"cron": "0," * 1000 + "0 * * * *"}, "at most 1024"),
    "a city": ({"timezone": "Berlin"}, "'Berlin' is not known; did you mean"),
    "a path": ({"timezone": "../../etc/passwd"}, "not known"),
    "no zone": ({"timezone": ""}, "not known"),
    "zone as none": ({"timezone": None}, "give its name"),
    "zone as utc": ({"timezone": UTC}, "give its name"),
    "missed": ({"missed": "twice"}, "missed is 'twice'; give one of 'once', 'skip', 'all'"),
    "missed as none": ({"missed": None}, "give one of"),
    "missed as a list": ({"missed": ["once"]}, "give one of"),
    "a text": ({"message": "x"}, "bytes"),
    "no message": ({"message": None}, "bytes"),
    "a delay": ({"message": Message(b"x", delay=5)}, "no delay"),
    "a moment": (
        {"message": Message(b"x", deliver_at=datetime(2027, 1, 1, tzinfo=UTC))},
        "no delay, deliver_at",
    ),
    "a dedup id": ({"message": Message(b"x", dedup_id="d")}, "dedup_id"),
    "a bad priority": ({"message": Message(b"x", priority=256)}, "priority"),
    "a bad ttl": ({"message": Message(b"x", ttl=-1)}, "ttl"),
    "bad headers": ({"message": Message(b"x", headers={"a": 5})}, "header"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_mistake_is_taken_for_a_schedule_or_removes_the_old_one(
    home: Home, queue: Queue, case: str
) -> None:
    wrong, said = WRONG[case]
    queue.schedule("tick", MINUTELY, b"old")
    arguments: dict[str, Any] = {"cron": MINUTELY, "message": b"new", **wrong}
    with pytest.raises(InvalidArgument, match=said.replace("*", r"\*")) as raised:
        queue.schedule("tick", arguments.pop("cron"), arguments.pop("message"), **arguments)
    assert len(str(raised.value)) < 1000
    assert queue.stats().schedules == ["tick"]
    home.advance(60)
    assert drain(queue) == [b"old"]


def test_a_message_that_is_too_large_is_found_out_when_it_is_due(home: Home) -> None:
    queue = home.broker.queue("small", max_message_bytes=5)
    with pytest.raises(MessageTooLarge):
        queue.schedule("tick", MINUTELY, b"123456")
    assert list(queue.stats().schedules) == []


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 256, None, 5, "tick.dlq", "ä"], ids=repr)
def test_a_bad_name_is_taken(queue: Queue, name: Any) -> None:
    with pytest.raises(InvalidName, match="schedule name"):
        queue.schedule(name, MINUTELY, b"x")
    with pytest.raises(InvalidName, match="schedule name"):
        queue.unschedule(name)
    assert list(queue.stats().schedules) == []


def test_a_deleted_queue_is_scheduled(home: Home, queue: Queue) -> None:
    home.broker.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        queue.schedule("tick", MINUTELY, b"x")
    with pytest.raises(QueueNotFound):
        queue.unschedule("tick")


def test_a_closed_broker_is_scheduled(home: Home) -> None:
    broker: Broker = home.open(home.elsewhere())
    queue = broker.queue("orders")
    broker.close()
    for call in (lambda: queue.schedule("tick", MINUTELY, b"x"), lambda: queue.cancel(1)):
        with pytest.raises(BrokerClosed):
            call()
