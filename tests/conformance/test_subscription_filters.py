"""Subscriptions that want only some of a topic's messages: what does not match is never seen, and is behind them all the same."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

import pytest

from penstock import InvalidArgument, LeaseLost, Message, PolicyConflict
from penstock.clock import to_datetime
from penstock.limits import FILTER_CHARS_MAX
from tests.conformance.background import PATIENCE_S, all_of, start
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import drain, payloads, take
from tests.conformance.surface import Delivery, Topic
from tests.conformance.waiters import in_line

EU = {"region": "eu"}
US = {"region": "us"}


@pytest.fixture
def topic(home: Home) -> Topic:
    return home.broker.topic("events", max_attempts=None)


def payload_of(waiting: Future[Delivery | None]) -> bytes:
    delivery = waiting.result(PATIENCE_S)
    assert delivery is not None
    return delivery.payload


# --- the language ---

SPECIMENS = {
    b"eu": Message(b"eu", headers={"region": "eu", "kind": "order"}, key="customer-7", priority=1),
    b"us": Message(b"us", headers={"region": "us", "attempts": "12"}, key="customer-8", priority=5),
    b"asia": Message(b"asia", headers={"region": "asia", "kind": "100%"}, priority=200),
    b"bare": Message(b"bare"),
}


@pytest.mark.parametrize(
    ("filter_", "wanted"),
    [
        ("region = 'eu'", {b"eu"}),
        ("region <> 'eu'", {b"us", b"asia"}),
        ("region != 'eu'", {b"us", b"asia"}),
        ("region IN ('eu', 'asia')", {b"eu", b"asia"}),
        ("region NOT IN ('eu', 'asia')", {b"us"}),
        ("region LIKE '%u%'", {b"eu", b"us"}),
        ("region LIKE '_s'", {b"us"}),
        ("region NOT LIKE '%u%'", {b"asia"}),
        ("kind LIKE '%!%' ESCAPE '!'", {b"asia"}),
        ("NOT region = 'eu'", {b"us", b"asia"}),
        ("NOT (region = 'eu' OR region = 'us')", {b"asia"}),
        ("region IS NULL", {b"bare"}),
        ("region IS NOT NULL", {b"eu", b"us", b"asia"}),
        ("key IS NULL", {b"asia", b"bare"}),
        ("key = 'customer-7'", {b"eu"}),
        ("key LIKE 'customer-%'", {b"eu", b"us"}),
        ("priority < 3", {b"eu"}),
        ("priority >= 100", {b"asia", b"bare"}),
        ("priority BETWEEN 2 AND 100", {b"us", b"bare"}),
        ("priority IN (1, 200)", {b"eu", b"asia"}),
        ("attempts > 9", {b"us"}),  # as numbers: as texts, '12' would be less
        ("payload_bytes = 2", {b"eu", b"us"}),
        ("region = 'eu' AND priority < 3", {b"eu"}),
        ("region = 'eu' AND priority > 3", set()),
        ("region = 'eu' OR priority > 100", {b"eu", b"asia"}),
        ("region = 'us' OR region = 'eu' AND kind = 'none'", {b"us"}),  # AND binds more tightly
        ("(region = 'us' OR region = 'eu') AND kind = 'order'", {b"eu"}),
        ("region = 'EU'", set()),
        ("\"region\" = 'eu'", {b"eu"}),
        ("TRUE", {b"eu", b"us", b"asia", b"bare"}),
        ("FALSE", set()),
        ("NULL", set()),
        ("NOT NULL", set()),
        ("region = NULL", set()),
        ("no-such-header = 'x' OR region = 'eu'", {b"eu"}),
    ],
)
def test_a_filter_lets_the_wrong_ones_through(topic: Topic, filter_: str, wanted: set[bytes]) -> None:
    before = topic.subscribe("before", filter=filter_)
    topic.publish_many(list(SPECIMENS.values()))
    after = topic.subscribe("after", filter=filter_, start="earliest")
    passing = topic.subscribe(filter=filter_, durable=False, start="earliest")
    assert set(drain(before)) == set(drain(after)) == set(drain(passing)) == wanted


def test_a_filter_by_time_or_id_lets_the_wrong_ones_through(home: Home, topic: Topic) -> None:
    topic.subscribe("keeper")
    topic.publish(b"a")
    home.advance(60)
    moment = to_datetime(home.clock.now_us()).isoformat().replace("+00:00", "Z")
    second = topic.publish(b"b")
    topic.publish(b"c")
    assert drain(topic.subscribe("time", filter=f"timestamp >= '{moment}'", start="earliest")) == [b"b", b"c"]
    assert drain(topic.subscribe("id", filter=f"id = {second}", start="earliest")) == [b"b"]
    assert drain(topic.subscribe("offset", filter="offset > 1", start="earliest")) == [b"c"]


# --- what is no filter ---


@pytest.mark.parametrize(
    ("filter_", "place"),
    [
        ("region LKE 'eu'", 8),
        ("region = ", 10),
        ("region = 'eu", 10),
        ("region = 'eu' AND", 18),
        ("(region = 'eu'", 15),
        ("region = 'eu')", 14),
        ("region IN ()", 12),
        ("priority < 'low'", 12),
        ("region == 'eu'", 9),
        ("region = 'eu' && TRUE", 15),
    ],
)
def test_an_error_does_not_point_at_the_place(topic: Topic, filter_: str, place: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        topic.subscribe("audit", filter=filter_)
    said, text, caret = str(caught.value).splitlines()
    assert "the filter is wrong" in said
    assert text.strip() == filter_.strip()
    assert (
        text[caret.index("^") :] == (filter_ + " ")[place - 1 :].rstrip("\n")[: len(text) - caret.index("^")]
    )
    assert f"character {place}" in said or "end" in said
    assert topic.subscriber_count() == 0


def test_a_bad_filter_ends_or_changes_what_exists(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    with pytest.raises(InvalidArgument):
        topic.subscribe("audit", filter="region = ")
    topic.publish(b"a", headers=EU)
    assert drain(consumer) == [b"a"]


def test_a_filter_of_the_greatest_length_cannot_be_stored(home: Home, topic: Topic) -> None:
    filter_ = " OR ".join(f"h{n} = '{n}'" for n in range(2000))[: FILTER_CHARS_MAX - 20].rpartition(" OR ")[0]
    consumer = topic.subscribe("audit", filter=filter_)
    topic.publish(b"a", headers={"h3": "3"})
    topic.publish(b"b", headers={"h3": "4"})
    assert drain(consumer) == [b"a"]
    if home.durable:
        topic = home.crash().topic("events")
        again = topic.subscribe("audit", filter=filter_)
        topic.publish(b"c", headers={"h4": "4"})
        assert drain(again) == [b"c"]


def test_a_filter_is_longer_than_its_limit(topic: Topic) -> None:
    with pytest.raises(InvalidArgument):
        topic.subscribe("audit", filter="a = '" + "x" * FILTER_CHARS_MAX + "'")
    # It is stored with spaces around operators: it must not be too long then either.
    with pytest.raises(InvalidArgument, match="written out"):
        topic.subscribe("audit", filter=" OR ".join("a='1'" for _ in range(FILTER_CHARS_MAX // 10)))
    assert topic.subscriber_count() == 0


def test_another_filter_is_taken_for_the_same(topic: Topic) -> None:
    topic.subscribe("audit", filter="region = 'eu'")
    topic.subscribe("plain")
    for other in ("region = 'us'", "region = 'eu' AND TRUE", None):
        with pytest.raises(PolicyConflict, match="filter"):
            topic.subscribe("audit", filter=other)
    with pytest.raises(PolicyConflict, match="filter"):
        topic.subscribe("plain", filter="region = 'eu'")
    assert topic.subscription("audit").consumers() == topic.subscription("audit").consumers()[:1]


def test_the_same_filter_is_taken_for_another(topic: Topic) -> None:
    topic.subscribe("audit", filter="region = 'eu' AND priority < 3")
    for same in (
        "region='eu' and priority<3",
        "  region   =  'eu'  AND (priority < 3)",
        "\"region\" = 'eu' AND priority < 3",
    ):
        topic.subscribe("audit", filter=same)
    assert len(topic.subscription("audit").consumers()) == 4


# --- settling ---


def test_what_does_not_match_is_not_behind_a_subscription(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish_many([Message(b"%d" % n, headers=EU if n % 3 == 0 else US) for n in range(10)])
    found = topic.subscription("audit")
    assert (found.lag(), found.stats().lag_is_exact) == (10, False)
    assert drain(consumer) == [b"0", b"3", b"6", b"9"]
    assert found.lag() == 0
    assert topic.stats().ready == 0


def test_the_lag_of_a_filtered_subscription_is_too_low(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    exact = topic.subscribe("all")
    topic.publish_many([Message(b"%d" % n, headers=EU if n % 2 else US) for n in range(10)])
    left = 5
    while left:
        assert topic.subscription("audit").lag() >= left
        take(consumer).ack()
        left -= 1
    assert topic.subscription("all").stats().lag_is_exact
    assert topic.subscription("all").lag() == 10
    assert len(drain(exact)) == 10


def test_a_filter_takes_messages_from_other_subscriptions(topic: Topic) -> None:
    eu, us, both = (
        topic.subscribe("eu", filter="region = 'eu'"),
        topic.subscribe("us", filter="region = 'us'"),
        topic.subscribe("both"),
    )
    topic.publish_many([Message(b"a", headers=EU), Message(b"b", headers=US), b"c"])
    assert (drain(eu), drain(us), drain(both)) == ([b"a"], [b"b"], [b"a", b"b", b"c"])


def test_a_filter_changes_the_order(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    sent = [Message(b"%d-%d" % (n % 4, n), headers=EU if n % 3 else US, priority=n % 4) for n in range(40)]
    topic.publish_many(sent)
    wanted = [one.payload for one in sorted(sent, key=lambda one: one.priority) if one.headers == EU]
    assert drain(consumer) == wanted


def test_failures_of_a_filtered_subscription_are_lost(home: Home) -> None:
    topic = home.broker.topic("events", max_attempts=2, backoff=None)
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish_many([Message(b"us", headers=US), Message(b"eu", headers=EU), Message(b"us", headers=US)])
    first = take(consumer)
    first.nack(error="one")
    second = take(consumer)
    assert (second.payload, second.attempt) == (b"eu", 2)
    second.nack(error="two")
    assert consumer.receive() is None
    (dead,) = topic.dead_letters().peek(9)
    assert (dead.payload, dead.headers["x-origin-group"], dead.headers["region"]) == (b"eu", "audit", "eu")
    assert topic.redrive() == 1
    assert drain(consumer) == [b"eu"]
    assert topic.stats().dead == 0


def test_a_lease_in_a_filtered_subscription_does_not_end(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish_many([Message(b"a", headers=US), Message(b"b", headers=EU), Message(b"c", headers=EU)])
    late = take(consumer)
    take(consumer).requeue()
    home.advance(31)
    with pytest.raises(LeaseLost):
        late.ack()
    assert [(d.payload, d.attempt) for d in consumer.receive_many(9)] == [(b"b", 2), (b"c", 2)]


def test_a_filter_and_an_order_by_key_hold_each_other_up(home: Home) -> None:
    topic = home.broker.topic("events", ordering="key", max_attempts=None)
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish_many(
        [
            Message(b"a1", key="a", headers=US),
            Message(b"a2", key="a", headers=EU),
            Message(b"a3", key="a", headers=US),
            Message(b"a4", key="a", headers=EU),
            Message(b"b1", key="b", headers=EU),
        ]
    )
    held = [*consumer.receive_many(9), *consumer.receive_many(9), *consumer.receive_many(9)]
    assert sorted(payloads(held)) == [b"a2", b"b1"]
    next(one for one in held if one.payload == b"a2").ack()
    assert drain(consumer) == [b"a4"]
    assert topic.subscription("audit").lag() == 1


def test_a_filtered_subscription_gets_delayed_or_expired_ones_wrongly(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish(b"late", headers=EU, delay=60)
    topic.publish(b"late us", headers=US, delay=60)
    topic.publish(b"short", headers=EU, ttl=10)
    home.advance(11)
    assert drain(consumer) == []
    home.advance(50)
    assert drain(consumer) == [b"late"]
    assert topic.subscription("audit").lag() == 0


def test_seeking_goes_back_to_what_the_filter_does_not_want(topic: Topic) -> None:
    topic.subscribe("keeper")
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish_many([Message(b"%d" % n, headers=EU if n % 2 else US) for n in range(6)])
    assert drain(consumer) == [b"1", b"3", b"5"]
    topic.subscription("audit").seek(offset=2)
    assert drain(consumer) == [b"3", b"5"]


def test_automatic_acknowledgement_settles_what_was_not_handed_out(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'", auto_ack=True)
    topic.publish_many([Message(b"%d" % n, headers=EU if n % 2 else US) for n in range(6)])
    assert take(consumer).payload == b"1"
    assert payloads(consumer.receive_many(9)) == [b"3", b"5"]
    assert consumer.receive() is None


# --- many that do not match ---

MANY = 3500  # more than are looked at in one go


def many(topic: Topic, *, wanted: bool) -> None:
    sent = [Message(b"%d" % n, headers=US) for n in range(MANY)]
    topic.publish_many([*sent, Message(b"last", headers=EU)] if wanted else sent)


def test_the_one_that_matches_is_not_found_behind_thousands(topic: Topic) -> None:
    one, two = (topic.subscribe(name, filter="region = 'eu'") for name in ("one", "two"))
    many(topic, wanted=True)
    assert take(one).payload == b"last"
    assert payloads(two.receive_many(10)) == [b"last"]


def test_a_filter_that_matches_nothing_does_not_come_to_an_end(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    many(topic, wanted=False)
    assert consumer.receive() is None
    assert topic.subscription("audit").lag() == 0
    topic.publish(b"a", headers=EU)
    assert drain(consumer) == [b"a"]


def test_who_waits_behind_thousands_that_do_not_match_is_not_woken(topic: Topic) -> None:
    consumers = [topic.subscribe("audit", filter="region = 'eu'") for _ in range(2)]
    waiting = [start(consumer.receive, timeout=None) for consumer in consumers]
    in_line(topic, 2)
    many(topic, wanted=True)
    topic.publish(b"next", headers=EU)
    assert sorted(payload_of(one) for one in waiting) == [b"last", b"next"]
    assert topic.subscription("audit").lag() == 2


def test_who_waits_among_thousands_that_do_not_match_waits_too_long(home: Home, topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    waiting = start(consumer.receive, timeout=5)
    in_line(topic, 1)
    many(topic, wanted=False)
    home.advance_until(waiting)
    assert waiting.result(PATIENCE_S) is None


def test_others_are_kept_from_the_topic_by_a_filter(topic: Topic) -> None:
    filtered, plain = topic.subscribe("audit", filter="region = 'eu'"), topic.subscribe("all")
    many(topic, wanted=True)
    looking = start(filtered.receive, timeout=None)
    assert payloads(plain.receive_many(3)) == [b"0", b"1", b"2"]
    assert payload_of(looking) == b"last"


def test_what_was_looked_at_and_did_not_match_is_looked_at_again(
    home: Home, topic: Topic, restart: Restart
) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    many(topic, wanted=False)
    assert consumer.receive() is None
    topic.publish(b"x", headers=US)  # what was looked at is recorded with whatever comes next
    topic = restart().topic("events")
    assert topic.subscription("audit").lag() == 1
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish(b"a", headers=EU)
    assert drain(consumer) == [b"a"]


# --- restarts, waiting, threads ---


def test_a_filter_is_forgotten(home: Home, topic: Topic, restart: Restart) -> None:
    topic.subscribe("audit", filter="region='eu'")
    topic.publish_many([Message(b"a", headers=EU), Message(b"b", headers=US)])
    topic = restart().topic("events")
    found = topic.subscription("audit").stats()
    assert (found.filter, found.lag, found.lag_is_exact) == ("region = 'eu'", 2, False)
    with pytest.raises(PolicyConflict):
        topic.subscribe("audit")
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish_many([Message(b"c", headers=US), Message(b"d", headers=EU)])
    assert drain(consumer) == [b"a", b"d"]


def test_a_filtered_subscription_hands_out_again_what_it_settled(
    home: Home, topic: Topic, restart: Restart
) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    topic.publish_many([Message(b"%d" % n, headers=EU if n % 2 else US) for n in range(8)])
    first, _second = consumer.receive_many(2)
    first.ack()
    consumer = restart().topic("events").subscribe("audit", filter="region = 'eu'")
    assert [(d.payload, d.attempt) for d in consumer.receive_many(9)] == [(b"3", 2), (b"5", 1), (b"7", 1)]


def test_who_waits_in_a_filtered_subscription_is_woken_by_the_wrong_one(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    waiting = start(consumer.receive, timeout=None)
    in_line(topic, 1)
    topic.publish(b"us", headers=US)
    topic.publish(b"none")
    assert not waiting.done()
    topic.publish(b"eu", headers=EU)
    assert payload_of(waiting) == b"eu"


def test_who_waits_for_many_gets_what_does_not_match(topic: Topic) -> None:
    consumer = topic.subscribe("audit", filter="region = 'eu'")
    waiting = start(consumer.receive_many, 10, timeout=None)
    in_line(topic, 1)
    topic.publish_many([Message(b"%d" % n, headers=EU if n % 2 else US) for n in range(6)])
    assert payloads(waiting.result(PATIENCE_S)) == [b"1", b"3", b"5"]


def test_consumers_of_a_filtered_subscription_lose_or_repeat_something(topic: Topic) -> None:
    consumers = [topic.subscribe("audit", filter="region = 'eu'") for _ in range(3)]
    sent = [Message(b"%d" % n, headers=EU if n % 3 == 0 else US) for n in range(300)]
    wanted = Counter(one.payload for one in sent if one.headers == EU)

    def publish() -> None:
        for at in range(0, len(sent), 7):
            topic.publish_many(sent[at : at + 7])

    publishing = start(publish)

    def consume(number: int) -> Counter[bytes]:
        came: Counter[bytes] = Counter()
        while True:
            done = publishing.done()
            found = consumers[number].receive_many(4)
            for delivery in found:
                delivery.ack()
                came[delivery.payload] += 1
            if done and not found:
                return came

    found = all_of([start(consume, n) for n in range(3)])
    assert sum(found, Counter()) == wanted
    assert topic.subscription("audit").lag() == 0


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_wanted_behind_much_that_is_not_is_never_found(home: Home, durable: bool) -> None:
    topic = home.broker.topic("events")
    consumer = topic.subscribe("rare" if durable else None, filter="key = 'rare'", durable=durable)
    topic.publish_many([Message(b"common", key="common") for _ in range(2500)])
    waiting = start(consumer.receive, None)
    topic.publish(b"rare", key="rare")
    found = waiting.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"rare"
    topic.publish_many(
        [*(Message(b"common", key="common") for _ in range(2500)), Message(b"last", key="rare")]
    )
    assert take(consumer).payload == b"last"
