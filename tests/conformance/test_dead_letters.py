"""What failed for good: in the dead letters exactly once, with its reason, and back by redriving."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from penstock import Backoff, InvalidArgument, InvalidName, PenstockError, QueueFull
from penstock.clock import to_datetime
from penstock.limits import HEADERS_COUNT_MAX, MESSAGE_BYTES_MAX
from tests.conformance.background import PATIENCE_S, start
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, payloads, take, unchanged
from tests.conformance.surface import Queue


def kill(queue: Queue, *sent: bytes, error: str = "no") -> None:
    """Publish these and reject them."""
    queue.publish_many(list(sent))
    for delivery in queue.receive_many(len(sent)):
        delivery.reject(error=error)


# --- how a message gets there ---


def test_a_message_is_tried_more_or_less_often_than_its_attempts(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=3, backoff=None)
    queue.publish(b"a")
    for attempt in (1, 2, 3):
        assert counts(queue) == expected(ready=1)
        delivery = take(queue)
        assert delivery.attempt == attempt
        delivery.nack(error=f"failure {attempt}")
    assert counts(queue) == expected(dead=1)
    assert queue.receive() is None
    assert payloads(queue.dead_letters().peek(5)) == [b"a"]


def test_one_attempt_means_two(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=1)
    queue.publish(b"a")
    take(queue).nack()
    assert counts(queue) == expected(dead=1)


def test_the_last_failure_waits_for_the_delay_it_asks_for(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=1)
    queue.publish(b"a")
    take(queue).nack(delay=60)
    assert counts(queue) == expected(dead=1)


def test_a_queue_without_a_limit_gives_up(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=None, backoff=None)
    queue.publish(b"a")
    for attempt in range(1, 21):
        delivery = take(queue)
        assert delivery.attempt == attempt
        delivery.nack(error="no")
    assert counts(queue) == expected(ready=1)


def test_a_message_that_nobody_settles_is_tried_for_ever(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=3, visibility_timeout=30)
    queue.publish(b"poison")
    for _ in range(3):
        take(queue)
        home.advance(31)
    assert queue.receive() is None
    assert counts(queue) == expected(dead=1)
    dead = take(queue.dead_letters())
    assert (dead.payload, dead.headers["x-reason"], dead.headers["x-attempts"]) == (
        b"poison",
        "max-attempts",
        "3",
    )


def test_failures_and_ended_leases_are_counted_apart(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=3, visibility_timeout=30, backoff=None)
    queue.publish(b"a")
    take(queue).nack(error="one")
    take(queue)
    home.advance(31)
    take(queue).nack(error="three")
    assert counts(queue) == expected(dead=1)


def test_a_dead_message_is_there_twice(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=1, visibility_timeout=30)
    queue.publish(b"a")
    take(queue).nack()
    home.advance(3600)
    assert queue.receive() is None
    assert drain(queue.dead_letters()) == [b"a"]
    assert counts(queue) == expected()


def test_dead_letters_change_their_order(queue: Queue) -> None:
    kill(queue, b"a", b"b", b"c")
    assert drain(queue.dead_letters()) == [b"a", b"b", b"c"]


# --- what is said about it ---


def test_the_headers_do_not_say_what_happened(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=2, backoff=Backoff(initial=10, jitter=0))
    published = queue.publish(b"a", headers={"type": "order"}, key="customer-7", priority=5)
    home.advance(5)
    first = home.clock.now_us()
    take(queue).nack(error=ConnectionError("refused by peer"))
    home.advance(10)
    last = home.clock.now_us()
    take(queue).nack(error=TimeoutError("timeout after 5 s"))

    dead = take(queue.dead_letters())
    assert (dead.payload, dead.key, dead.priority) == (b"a", "customer-7", 5)
    assert (dead.attempt, dead.redelivered) == (1, False)
    headers = dead.headers
    assert headers["type"] == "order"
    assert headers["x-origin"] == "orders"
    assert headers["x-origin-id"] == str(published)
    assert headers["x-origin-group"] == "default"
    assert headers["x-reason"] == "max-attempts"
    assert headers["x-attempts"] == "2"
    assert "timeout after 5 s" in headers["x-error"]
    assert datetime.fromisoformat(headers["x-first-failure"]) == to_datetime(first)
    assert datetime.fromisoformat(headers["x-last-failure"]) == to_datetime(last)


def test_a_rejected_message_does_not_say_so(queue: Queue) -> None:
    kill(queue, b"a", error="not an order")
    headers = take(queue.dead_letters()).headers
    assert (headers["x-reason"], headers["x-attempts"], headers["x-origin"]) == ("rejected", "1", "orders")
    assert "not an order" in headers["x-error"]


def test_a_publisher_forges_the_reason(queue: Queue) -> None:
    queue.publish(b"a", headers={"x-reason": "forged", "x-origin": "forged", "x-attempts": "99"})
    take(queue).reject(error="no")
    headers = take(queue.dead_letters()).headers
    assert (headers["x-reason"], headers["x-origin"], headers["x-attempts"]) == ("rejected", "orders", "1")


@pytest.mark.parametrize(
    "error", ["x" * 1_000_000, "é" * 100_000, "\ud800", "a\x00b\n"], ids=lambda text: text[:3]
)
def test_an_error_that_fits_no_header_keeps_a_message_from_dying(queue: Queue, error: str) -> None:
    queue.publish(b"a")
    take(queue).reject(error=error)
    assert counts(queue) == expected(dead=1)
    assert take(queue.dead_letters()).headers["x-reason"] == "rejected"


def test_a_message_full_of_headers_cannot_die(queue: Queue) -> None:
    queue.publish(b"a", headers={str(n): "" for n in range(HEADERS_COUNT_MAX)})
    take(queue).reject(error="no")
    assert counts(queue) == expected(dead=1)
    assert take(queue.dead_letters()).headers["x-reason"] == "rejected"


def test_a_message_larger_than_the_default_cannot_die(home: Home) -> None:
    queue = home.broker.queue("orders", max_message_bytes=2 * 1024 * 1024)
    queue.publish(b"x" * (2 * 1024 * 1024))
    take(queue).reject(error="no")
    assert len(take(queue.dead_letters()).payload) == 2 * 1024 * 1024


# --- the queue of dead letters ---


def test_asking_for_dead_letters_before_there_are_any_fails(queue: Queue) -> None:
    dead = queue.dead_letters()
    assert (dead.name, dead.depth(), dead.receive()) == ("orders.dlq", 0, None)
    assert queue.redrive() == 0


def test_dead_letters_are_no_ordinary_queue(home: Home, queue: Queue) -> None:
    kill(queue, b"a", b"b")
    dead = home.broker.get_queue("orders.dlq")
    assert payloads(dead.peek(5)) == [b"a", b"b"]
    with dead.subscribe("janitor") as janitor:
        take(janitor).ack()
    assert dead.depth() == 1
    dead.purge()
    assert counts(queue) == expected()


def test_dead_letters_die(home: Home, queue: Queue) -> None:
    kill(queue, b"a")
    dead = queue.dead_letters()
    for _ in range(10):
        take(dead).nack(delay=0, error="still no")
    assert drain(dead) == [b"a"]


def test_dead_letters_have_dead_letters(queue: Queue) -> None:
    kill(queue, b"a")
    with pytest.raises(PenstockError):
        queue.dead_letters().dead_letters()


def test_a_named_dead_letter_queue_is_not_used(home: Home) -> None:
    first = home.broker.queue("first", dead_letter="failures")
    second = home.broker.queue("second", dead_letter="failures")
    kill(first, b"a")
    kill(second, b"b")
    assert first.dead_letters().name == second.dead_letters().name == "failures"
    found = home.broker.get_queue("failures").receive_many(5)
    assert [(one.payload, one.headers["x-origin"]) for one in found] == [(b"a", "first"), (b"b", "second")]


# --- a working queue that is also where another one's dead letters go ---


@pytest.fixture
def shared(home: Home) -> tuple[Queue, Queue]:
    """A queue with messages and attempts of its own, and one whose dead letters go there."""
    orders = home.broker.queue("orders", max_attempts=1)
    return orders, home.broker.queue("mails", dead_letter="orders")


@pytest.mark.parametrize("how", ["nack", "reject", "lease"])
def test_a_queue_that_another_one_names_loses_its_own_messages(
    home: Home, shared: tuple[Queue, Queue], how: str
) -> None:
    orders, _ = shared
    orders.publish(b"an order")
    delivery = take(orders)
    if how == "lease":
        home.advance(31)
    else:
        getattr(delivery, how)(error="no")
    assert counts(orders) == expected(dead=1)
    assert (orders.dead_letters().name, orders.redrive()) == ("orders.dlq", 1)
    assert drain(orders) == [b"an order"]


def test_a_letter_in_a_working_queue_dies_again(shared: tuple[Queue, Queue]) -> None:
    orders, mails = shared
    kill(mails, b"a mail")
    orders.publish(b"an order")
    for _ in range(5):
        letter = take(orders)
        assert (letter.payload, letter.headers["x-origin"]) == (b"a mail", "mails")
        letter.requeue()
    take(orders).nack(delay=0)
    assert (mails.stats().dead, orders.stats().dead) == (2, 0)  # what is there, an order among it
    assert (mails.redrive(), drain(mails), drain(orders)) == (1, [b"a mail"], [b"an order"])


def test_a_rejected_letter_in_a_working_queue_goes_round(shared: tuple[Queue, Queue]) -> None:
    orders, mails = shared
    kill(mails, b"a mail")
    take(orders).reject(error="nor this")
    assert (counts(orders), counts(mails)) == (expected(), expected())


# --- redriving ---


def test_a_redriven_message_is_not_as_good_as_new(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=2, backoff=None)
    published = queue.publish(b"a", headers={"type": "order"}, key="k", priority=5)
    for _ in range(2):
        take(queue).nack(error="no")
    assert queue.dead_letters().redrive() == 1
    assert counts(queue) == expected(ready=1)

    delivery = take(queue)
    assert (delivery.payload, delivery.key, delivery.priority) == (b"a", "k", 5)
    assert (delivery.attempt, delivery.redelivered) == (1, False)
    assert delivery.id > published
    assert delivery.offset == 1
    assert delivery.headers["type"] == "order"
    assert delivery.headers["x-origin-id"] == str(published)
    delivery.nack(error="no")
    take(queue).nack(error="again")
    assert [one.headers["x-attempts"] for one in queue.dead_letters().receive_many(5)] == ["2"]


@pytest.mark.parametrize("through", ["queue", "dead letters"])
def test_redriving_loses_or_repeats(queue: Queue, through: str) -> None:
    kill(queue, b"a", b"b", b"c")
    where = queue if through == "queue" else queue.dead_letters()
    assert where.redrive() == 3
    assert where.redrive() == 0
    assert counts(queue) == expected(ready=3)
    assert drain(queue) == [b"a", b"b", b"c"]
    assert queue.dead_letters().depth() == 0


def test_redriving_some_moves_all(queue: Queue) -> None:
    kill(queue, b"a", b"b", b"c")
    assert queue.redrive(limit=2) == 2
    assert counts(queue) == expected(ready=2, dead=1)
    assert drain(queue) == [b"a", b"b"]
    assert payloads(queue.dead_letters().peek(5)) == [b"c"]


@pytest.mark.parametrize(
    ("where", "moved"),
    [
        ("x-error LIKE '%timeout%'", [b"b"]),
        ("x-reason = 'rejected'", [b"a", b"b", b"c"]),
        ("x-reason = 'expired'", []),
        ("x-error LIKE '%refused%' OR x-error LIKE '%timeout%'", [b"a", b"b"]),
        ("x-origin = 'orders' AND NOT x-error LIKE '%timeout%'", [b"a", b"c"]),
    ],
)
def test_a_condition_moves_what_does_not_meet_it(queue: Queue, where: str, moved: list[bytes]) -> None:
    kill(queue, b"a", error="connection refused")
    kill(queue, b"b", error="timeout after 5 s")
    kill(queue, b"c", error="bad request")
    assert queue.dead_letters().redrive(where=where) == len(moved)
    assert drain(queue) == moved
    assert queue.dead_letters().depth() == 3 - len(moved)


def test_a_condition_and_a_limit_are_not_taken_together(queue: Queue) -> None:
    for payload, error in ((b"a", "timeout"), (b"b", "refused"), (b"c", "timeout"), (b"d", "timeout")):
        kill(queue, payload, error=error)
    assert queue.redrive(where="x-error = 'timeout'", limit=2) == 2
    assert drain(queue) == [b"a", b"c"]


def test_redriving_elsewhere_goes_back_to_the_origin(home: Home, queue: Queue) -> None:
    other = home.broker.queue("second-chance")
    kill(queue, b"a")
    assert queue.redrive(to="second-chance") == 1
    assert (queue.depth(), queue.dead_letters().depth()) == (0, 0)
    assert drain(other) == [b"a"]


def test_shared_dead_letters_go_back_to_the_wrong_queue(home: Home) -> None:
    first = home.broker.queue("first", dead_letter="failures")
    second = home.broker.queue("second", dead_letter="failures")
    kill(first, b"a")
    kill(second, b"b")
    assert home.broker.get_queue("failures").redrive() == 2
    assert (drain(first), drain(second)) == ([b"a"], [b"b"])


@pytest.mark.parametrize("through", ["queue", "dead letters"])
def test_a_redrive_to_its_own_queue_never_ends(queue: Queue, through: str) -> None:
    kill(queue, b"a", b"b")
    dead = queue.dead_letters()
    with unchanged(queue), unchanged(dead), pytest.raises(InvalidArgument, match="another queue"):
        (queue if through == "queue" else dead).redrive(to="orders.dlq")


def test_a_redrive_never_ends_while_its_messages_fail_again(queue: Queue) -> None:
    sent = [b"%d" % n for n in range(150)]  # more than are moved at once
    kill(queue, *sent)

    def fail_again() -> int:
        seen = 0
        while seen < 150:
            delivery = queue.receive(timeout=None)
            assert delivery is not None
            delivery.reject(error="still broken")
            seen += 1
        return seen

    failing = start(fail_again)
    assert start(queue.redrive, rate=2000).result(PATIENCE_S) == 150
    assert failing.result(PATIENCE_S) == 150
    assert counts(queue) == expected(dead=150)
    assert sorted(payloads(queue.dead_letters().peek(500))) == sorted(sent)


def test_a_redrive_goes_by_priority(home: Home, queue: Queue) -> None:
    for payload, priority in ((b"a", 200), (b"b", 0), (b"c", 100)):
        queue.publish(payload, priority=priority)
        take(queue).reject(error="no")
    dead = queue.dead_letters()
    assert take(dead).payload == b"b"
    home.advance(31)
    assert queue.redrive(limit=2) == 2  # in the order in which they died
    assert payloads(dead.peek(5)) == [b"c"]
    assert drain(queue) == [b"b", b"a"]


@pytest.mark.parametrize("letters", [4, 130])
def test_a_redrive_fills_a_queue_above_its_depth(home: Home, letters: int) -> None:
    queue = home.broker.queue("orders")
    kill(queue, *[b"%d" % n for n in range(letters)])
    room = letters - 2
    queue.alter(max_depth=room)
    with pytest.raises(QueueFull):
        queue.redrive()
    assert counts(queue) == expected(ready=room, dead=2)
    with unchanged(queue), unchanged(queue.dead_letters()), pytest.raises(QueueFull):
        queue.redrive()
    assert drain(queue) == [b"%d" % n for n in range(room)]
    assert queue.redrive() == 2
    assert drain(queue) == [b"%d" % n for n in range(room, letters)]


def test_a_redrive_fills_a_queue_above_its_bytes(home: Home) -> None:
    queue = home.broker.queue("orders", max_bytes=1000)
    for letter in (b"a", b"b", b"c"):
        kill(queue, letter * 400)
    with pytest.raises(QueueFull):
        queue.redrive()
    assert [one[:1] for one in drain(queue)] == [b"a", b"b"]
    assert queue.redrive() == 1


def test_a_redriven_message_outlives_the_queues_ttl(home: Home) -> None:
    queue = home.broker.queue("orders", ttl=60)
    kill(queue, b"a")
    home.advance(3600)  # a dead letter does not expire
    assert queue.redrive() == 1
    home.advance(59)
    assert payloads(queue.peek()) == [b"a"]
    home.advance(1)
    assert (counts(queue), queue.receive()) == (expected(), None)


def test_a_message_of_the_greatest_size_cannot_be_redriven(home: Home) -> None:
    queue = home.broker.queue("orders", max_message_bytes=MESSAGE_BYTES_MAX)
    kill(queue, b"x" * MESSAGE_BYTES_MAX)
    kill(queue, b"behind it")
    assert queue.redrive() == 2
    assert [len(one) for one in drain(queue)] == [MESSAGE_BYTES_MAX, len(b"behind it")]


def test_a_leased_dead_letter_is_redriven_under_its_holder(queue: Queue) -> None:
    kill(queue, b"a", b"b")
    held = take(queue.dead_letters())
    assert queue.redrive() == 1
    assert drain(queue) == [b"b"]
    held.ack()
    assert queue.redrive() == 0
    assert counts(queue) == expected()


def test_redriving_slowly_loses_or_repeats(home: Home, queue: Queue) -> None:
    kill(queue, *[b"%d" % n for n in range(10)])
    moving = start(queue.redrive, rate=5)
    home.advance_until(moving)
    assert moving.result(PATIENCE_S) == 10
    home.advance(10)
    assert drain(queue) == [b"%d" % n for n in range(10)]
    assert counts(queue) == expected()


@pytest.mark.parametrize(
    "given",
    [
        {"where": "x-error LIKE"},
        {"where": "; DROP TABLE messages"},
        {"where": ""},
        {"where": 5},
        {"limit": -1},
        {"limit": 1.5},
        {"limit": "1"},
        {"rate": 0},
        {"rate": -1},
        {"rate": "fast"},
        {"to": 5},
    ],
    ids=repr,
)
def test_a_bad_redrive_moves_something(queue: Queue, given: dict[str, Any]) -> None:
    kill(queue, b"a", b"b")
    dead = queue.dead_letters()
    with unchanged(queue), unchanged(dead), pytest.raises(PenstockError):
        dead.redrive(**given)


@pytest.mark.parametrize(
    "given", [{"where": "x-error LIKE"}, {"limit": 0}, {"rate": 0}, {"to": "not a name"}], ids=repr
)
def test_a_bad_redrive_is_taken_where_there_are_no_dead_letters(queue: Queue, given: dict[str, Any]) -> None:
    with unchanged(queue), pytest.raises(PenstockError):
        queue.redrive(**given)
    assert queue.redrive() == 0


def test_redriving_to_a_bad_name_moves_something(queue: Queue) -> None:
    kill(queue, b"a")
    with unchanged(queue), pytest.raises(InvalidName):
        queue.redrive(to="not a name")
