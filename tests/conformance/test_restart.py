"""What survives: each test ends the broker in good order, and once more without any."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import (
    Backoff,
    InvalidArgument,
    LeaseLost,
    Message,
    PenstockError,
    Policy,
    QueueFull,
    QueueNotFound,
)
from penstock.clock import to_datetime
from tests.conformance.conftest import Restart
from tests.conformance.home import Home
from tests.conformance.observations import (
    counts,
    drain,
    expected,
    payloads,
    survives_a_restart,
    take,
    unchanged,
)
from tests.conformance.surface import Delivery, Queue
from tests.conformance.test_declaring import EVERY_FIELD


def facts(delivery: Delivery) -> tuple[object, ...]:
    """All that the log keeps of a message."""
    return (
        delivery.id,
        delivery.offset,
        delivery.payload,
        dict(delivery.headers),
        delivery.key,
        delivery.priority,
        delivery.timestamp,
    )


# --- declarations ---


def test_a_policy_is_forgotten(home: Home, restart: Restart) -> None:
    home.broker.queue("plain")
    home.broker.queue("special", **EVERY_FIELD)
    broker = restart()
    assert sorted(broker.list_queues()) == ["plain", "special"]
    assert broker.get_queue("plain").policy == Policy()
    assert broker.get_queue("special").policy == Policy.of(**EVERY_FIELD)


def test_an_alteration_is_forgotten(home: Home, restart: Restart) -> None:
    home.broker.queue("orders", max_attempts=5).alter(ttl=timedelta(hours=1))
    assert restart().queue("orders", max_attempts=5, ttl=3600).policy == Policy.of(max_attempts=5, ttl=3600)


def test_a_deleted_queue_comes_back(home: Home, restart: Restart) -> None:
    home.broker.queue("orders").publish(b"a")
    home.broker.delete_queue("orders")
    broker = restart()
    with pytest.raises(QueueNotFound):
        broker.get_queue("orders")
    assert drain(broker.queue("orders")) == []


def test_a_transient_queue_outlives_its_broker(home: Home, restart: Restart) -> None:
    home.broker.queue("session", durable=False).publish(b"a")
    home.broker.queue("orders").publish(b"b")
    broker = restart()
    assert list(broker.list_queues()) == ["orders"]
    assert broker.queue("session", durable=False).receive() is None


# --- messages ---


def test_something_of_a_message_is_lost(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish(b"a", headers={"type": "order"}, key="k", priority=7)
    home.advance(5)
    queue.publish_many([b"", bytes(range(256)), Message(b"z" * 100_000, headers={"é": "✓"})])
    before = [facts(one) for one in queue.receive_many(10)]
    assert [facts(one) for one in restart().queue("orders").receive_many(10)] == before


def test_messages_change_their_order(home: Home, queue: Queue, restart: Restart) -> None:
    for n in range(20):
        queue.publish_many([Message(b"%d-%d" % (p, n), priority=p) for p in (5, 1, 3)])
    assert drain(restart().queue("orders")) == [b"%d-%d" % (p, n) for p in (1, 3, 5) for n in range(20)]


def test_an_acknowledged_message_comes_back(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish_many([b"%d" % n for n in range(20)])
    found = queue.receive_many(20)
    queue.ack_many(found[1::2])
    found[0].ack()
    queue = restart().queue("orders")
    assert drain(queue) == [b"%d" % n for n in range(2, 20, 2)]
    assert drain(restart().queue("orders")) == []


def test_ids_or_offsets_are_used_again(home: Home, queue: Queue, restart: Restart) -> None:
    ids = queue.publish_many([b"a", b"b", b"c"])
    queue.ack_many(queue.receive_many(3))
    queue = restart().queue("orders")
    # The clock stands still, so only what was stored can tell.
    assert queue.publish(b"d") > max(ids)
    assert take(queue).offset == 3


def test_ids_go_back_with_the_wall_clock(home: Home, queue: Queue, restart: Restart) -> None:
    first = queue.publish(b"a")
    home.clock.set_back(seconds=3600)
    assert restart().queue("orders").publish(b"b") > first


def test_a_purged_message_comes_back(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish_many([b"a", Message(b"later", delay=60)])
    queue.purge()
    queue.publish(b"b")
    queue = restart().queue("orders")
    home.advance(60)
    assert drain(queue) == [b"b"]


def test_opening_again_and_again_changes_something(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", max_attempts=5)
    queue.publish_many([b"a", b"b", Message(b"later", delay=600), b"c"])
    take(queue).ack()
    take(queue).nack(delay=600)
    queue = restart().queue("orders")
    before = (counts(queue), queue.peek(10))
    for _ in range(3):
        queue = restart().queue("orders")
        assert (counts(queue), queue.peek(10)) == before


# --- leases and attempts ---


def test_what_was_leased_is_lost_or_loses_its_place_or_its_attempt(
    home: Home, queue: Queue, restart: Restart
) -> None:
    queue.publish_many([b"a", b"b", b"c", b"d"])
    _a, b, _c = queue.receive_many(3)
    b.ack()
    queue = restart().queue("orders")
    assert counts(queue) == expected(ready=3)
    back = queue.receive_many(5)
    assert [(one.payload, one.attempt, one.redelivered) for one in back] == [
        (b"a", 2, True),
        (b"c", 2, True),
        (b"d", 1, False),
    ]


def test_a_message_that_ends_the_broker_each_time_never_dies(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", max_attempts=3)
    queue.publish_many([b"poison", b"good"])
    for attempt in (1, 2, 3):
        delivery = take(queue)
        assert (delivery.payload, delivery.attempt) == (b"poison", attempt)
        queue = restart().queue("orders")
    assert drain(queue) == [b"good"]
    assert counts(queue) == expected(dead=1)
    [dead] = queue.dead_letters().receive_many(5)
    assert (dead.headers["x-reason"], dead.headers["x-attempts"]) == ("max-attempts", "3")


def test_failures_before_the_restart_are_not_counted(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", max_attempts=3, backoff=None)
    queue.publish(b"a")
    take(queue).nack(error="one")
    queue = restart().queue("orders")
    take(queue).nack(error="two")
    queue = restart().queue("orders")
    assert take(queue).attempt == 3


def test_an_old_receipt_settles_something(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish(b"a")
    old = take(queue)
    queue = restart().queue("orders")
    with unchanged(queue), pytest.raises(LeaseLost):
        queue.ack_many([old])
    holder = take(queue)
    with unchanged(queue), pytest.raises(LeaseLost):
        queue.ack_many([old])
    holder.ack()
    assert counts(queue) == expected()


@survives_a_restart
def test_a_delivery_of_a_closed_broker_settles_something(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    old = take(queue)
    queue = home.reopen().queue("orders")
    for settle in (old.ack, old.nack, old.reject, old.requeue):
        with unchanged(queue), pytest.raises(PenstockError):
            settle()
    assert drain(queue) == [b"a"]


def test_a_retry_is_early_or_lost(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", backoff=Backoff(initial=60, jitter=0))
    queue.publish(b"a")
    take(queue).nack(error="no")
    queue = restart(away=10).queue("orders")
    assert counts(queue) == expected(retrying=1)
    home.advance(49)
    assert queue.receive() is None
    home.advance(1)
    assert take(queue).attempt == 2


def test_a_requeued_message_loses_its_place(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish_many([b"a", b"b", b"c"])
    take(queue).requeue()
    assert drain(restart().queue("orders")) == [b"a", b"b", b"c"]


def test_what_was_only_buffered_counts_as_attempted(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish_many([b"a", b"b"])
    consumer = queue.subscribe("worker", prefetch=10)
    take(consumer).ack()
    # Over a network it was leased, and a crash gives nobody the time to say that it was not seen.
    attempt = 2 if home.kind.remote and restart == home.crash else 1
    [back] = restart().queue("orders").receive_many(5)
    assert (back.payload, back.attempt) == (b"b", attempt)


# --- delays and expiry ---


def test_a_delayed_message_is_early_or_lost(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish(b"a", delay=60)
    queue = restart(away=30).queue("orders")
    assert counts(queue) == expected(delayed=1)
    home.advance(29.999)
    assert queue.receive() is None
    home.advance(0.001)
    assert take(queue).payload == b"a"


def test_what_became_due_while_nobody_was_there_is_lost_or_out_of_order(
    home: Home, queue: Queue, restart: Restart
) -> None:
    queue.publish(b"second", delay=60)
    queue.publish(b"first", delay=30)
    queue.publish(b"not yet", delay=600)
    assert drain(restart(away=100).queue("orders")) == [b"first", b"second"]


def test_what_expired_while_nobody_was_there_is_delivered(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", on_expire="dead-letter")
    queue.publish_many([Message(b"a", ttl=60), b"b", Message(b"c", ttl=600)])
    queue = restart(away=61).queue("orders")
    assert drain(queue) == [b"b", b"c"]
    [dead] = queue.dead_letters().receive_many(5)
    assert (dead.payload, dead.headers["x-reason"]) == (b"a", "expired")


def test_a_clock_that_was_set_back_changes_the_order(home: Home, queue: Queue, restart: Restart) -> None:
    queue.publish(b"delayed", delay=5)
    home.advance(10)
    home.clock.set_back(seconds=3600)
    queue.publish(b"first")
    queue.publish_many([b"second", Message(b"third", key="k")])
    assert drain(restart().queue("orders")) == [b"delayed", b"first", b"second", b"third"]


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter"])
def test_what_expired_in_the_hands_of_an_earlier_owner_dies_of_something_else(
    home: Home, restart: Restart, on_expire: str
) -> None:
    queue = home.broker.queue("orders", max_attempts=1, on_expire=on_expire)
    queue.publish(b"a", ttl=10)
    take(queue)
    queue = restart(away=11).queue("orders")
    letters = queue.dead_letters().peek(5)
    assert [one.headers["x-reason"] for one in letters] == (["expired"] if on_expire == "dead-letter" else [])
    assert queue.depth() == 0


def test_an_older_message_of_a_key_that_fell_due_loses_its_place(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", ordering="key")
    queue.publish(b"a1", key="a", delay=10)
    queue.publish_many([Message(b"a2", key="a"), Message(b"a3", key="a")])
    home.advance(10)
    take(queue).ack()
    assert drain(restart().queue("orders")) == [b"a2", b"a3"]


# --- dedup ---


def test_a_dedup_id_is_forgotten_or_kept_too_long(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", dedup_window=60)
    first = queue.publish(b"a", dedup_id="1")
    take(queue).ack()
    queue = restart(away=30).queue("orders")
    assert queue.publish(b"a", dedup_id="1") == first
    assert queue.depth() == 0
    queue = restart(away=31).queue("orders")
    assert queue.publish(b"a", dedup_id="1") != first
    assert drain(queue) == [b"a"]


def test_an_exactly_once_id_is_forgotten_while_its_message_is_unsettled(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", delivery="exactly-once", dedup_window=60)
    first = queue.publish(b"a", dedup_id="1")
    queue = restart(away=3600).queue("orders")
    assert queue.publish(b"a", dedup_id="1") == first
    take(queue).ack()
    queue = restart(away=59).queue("orders")
    assert queue.publish(b"a", dedup_id="1") == first
    with pytest.raises(InvalidArgument):
        queue.publish(b"a")
    assert queue.depth() == 0


def test_what_was_handed_out_at_most_once_comes_back(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", delivery="at-most-once")
    queue.publish_many([b"a", b"b"])
    assert take(queue).payload == b"a"
    assert payloads(restart().queue("orders").receive_many(5)) == [b"b"]


# --- dead letters ---


def test_a_dead_letter_is_lost_or_in_both_places(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", max_attempts=1)
    queue.publish_many([b"a", b"b"])
    first, second = queue.receive_many(2)
    first.nack(error="timeout")
    second.reject(error="never")
    before = [dict(one.headers) for one in queue.dead_letters().peek(5)]
    queue = restart().queue("orders")
    assert counts(queue) == expected(dead=2)
    assert [dict(one.headers) for one in queue.dead_letters().peek(5)] == before
    assert queue.receive() is None
    assert drain(queue.dead_letters()) == [b"a", b"b"]


def test_redriving_with_a_restart_between_loses_or_repeats(
    home: Home, queue: Queue, restart: Restart
) -> None:
    sent = [b"%d" % n for n in range(10)]
    queue.publish_many(sent)
    for delivery in queue.receive_many(10):
        delivery.reject()
    assert queue.redrive(limit=4) == 4
    queue = restart().queue("orders")
    assert counts(queue) == expected(ready=4, dead=6)
    assert queue.redrive() == 6
    queue = restart().queue("orders")
    assert queue.redrive() == 0
    assert [(one.payload, one.attempt) for one in queue.receive_many(20)] == [(one, 1) for one in sent]


# --- keys, limits ---


def test_a_key_loses_its_order(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", ordering="key")
    queue.publish_many(
        [Message(b"%s%d" % (key, n), key=key.decode()) for n in range(3) for key in (b"a", b"b")]
    )
    take(queue)
    queue = restart().queue("orders")
    out = queue.receive_many(10)
    assert payloads(out) == [b"a0", b"b0"]
    out[1].ack()
    queue = restart().queue("orders")
    assert payloads(queue.receive_many(10)) == [b"a0", b"b1"]


def test_a_full_queue_has_room(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", max_depth=2, overflow="drop-head")
    for n in range(5):
        queue.publish(b"%d" % n)
    queue = restart().queue("orders")
    assert queue.depth() == 2
    queue.publish(b"5")
    assert drain(queue) == [b"4", b"5"]


# --- exactly-once, to the end of the window ---


def test_an_exactly_once_id_is_kept_for_ever_after_a_restart(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", delivery="exactly-once", dedup_window=60)
    first = queue.publish(b"a", dedup_id="1")
    queue = restart(away=3600).queue("orders")
    take(queue).ack()
    home.advance(59)
    assert queue.publish(b"a", dedup_id="1") == first
    home.advance(2)
    second = queue.publish(b"a", dedup_id="1")
    assert second != first
    assert drain(queue) == [b"a"]
    queue = restart(away=59).queue("orders")
    assert queue.publish(b"a", dedup_id="1") == second
    queue = restart(away=2).queue("orders")
    assert queue.publish(b"a", dedup_id="1") not in (first, second)


# --- what a kill forgets, and the reference says so ---


def test_the_first_failure_is_another_than_the_reference_says(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders", visibility_timeout=30, max_attempts=3)
    queue.publish(b"a")
    take(queue)
    home.advance(30)  # its lease ends by itself
    failed = to_datetime(home.clock.now_us()).isoformat()
    home.advance(3600)
    take(queue)
    handed_out = to_datetime(home.clock.now_us()).isoformat()
    closed = restart == home.reopen
    queue = restart(away=3600).queue("orders")
    take(queue).nack()
    (letter,) = queue.dead_letters().peek(5)
    assert letter.headers["x-first-failure"] == (failed if closed else handed_out)


def test_the_first_failure_of_what_a_kill_interrupted_is_before_it_was_opened_again(
    home: Home, restart: Restart
) -> None:
    queue = home.broker.queue("orders", max_attempts=2)
    queue.publish(b"a")
    take(queue)
    queue = restart(away=3600).queue("orders")
    opened = to_datetime(home.clock.now_us()).isoformat()
    take(queue).nack()
    (letter,) = queue.dead_letters().peek(5)
    assert letter.headers["x-first-failure"] == opened


def test_bytes_from_before_the_limit_are_counted_after_a_restart(home: Home, restart: Restart) -> None:
    queue = home.broker.queue("orders")
    queue.publish(b"x" * 100)
    queue.alter(max_bytes=50)
    queue.publish(b"y" * 50)
    queue = restart().queue("orders")
    with pytest.raises(QueueFull):
        queue.publish(b"z")
    assert drain(queue) == [b"x" * 100, b"y" * 50]
    queue.publish(b"z" * 50)
