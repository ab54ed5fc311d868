"""Queues: made, opened, listed, altered, deleted; and brokers opened and closed."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Backoff,
    BrokerClosed,
    DirectoryLocked,
    ForkedProcess,
    InvalidArgument,
    InvalidName,
    PenstockError,
    Policy,
    PolicyConflict,
    QueueNotFound,
)
from tests.conformance.home import Home
from tests.conformance.observations import (
    drain,
    in_the_calling_thread,
    payloads,
    survives_a_restart,
    take,
    unchanged,
)
from tests.conformance.surface import Queue

#: Every field of the policy, each with something other than its default.
EVERY_FIELD: dict[str, Any] = {
    "visibility_timeout": 45.0,
    "max_attempts": 7,
    "backoff": Backoff(initial=2, factor=3, maximum=60, jitter=0.5),
    "dead_letter": "failures",
    "ttl": 3600.0,
    "on_expire": "dead-letter",
    "max_depth": 1000,
    "max_bytes": 1_000_000,
    "overflow": "drop-head",
    "max_message_bytes": 2048,
    "ordering": "key",
    "delivery": "exactly-once",
    "dedup_window": 60.0,
    "retain": "until-archived",
    "retain_seconds": 86400.0,
    "retain_bytes": 10_000_000,
    "strategy": "least-busy",
    "expires": 7200.0,
}

BAD_NAMES: list[Any] = [
    "",
    "new orders",
    "-orders",
    "orders/eu",
    "é",
    "orders\n",
    "x" * 252,
    None,
    5,
    b"orders",
]

BAD_POLICIES: list[dict[str, Any]] = [
    {"max_attempt": 3},
    {"max_attempts": 0},
    {"max_attempts": 1.5},
    {"visibility_timeout": -1},
    {"visibility_timeout": 0},
    {"backoff": 5},
    {"dead_letter": "not a name"},
    {"ttl": "1h"},
    {"on_expire": "keep"},
    {"max_depth": 0},
    {"max_bytes": -1},
    {"overflow": "block"},
    {"max_message_bytes": 0},
    {"ordering": "lifo"},
    {"delivery": "twice"},
    {"dedup_window": -1},
    {"delivery": "exactly-once", "dedup_window": 0},
    {"durable": 1},
    {"strategy": "first"},
]


# --- making and opening ---


def test_a_queue_made_on_first_use_lacks_the_defaults(home: Home) -> None:
    queue = home.broker.queue("orders")
    assert (queue.name, queue.policy) == ("orders", Policy())


@pytest.mark.parametrize("make", ["queue", "create_queue"])
def test_a_field_of_the_policy_is_lost_on_the_way(home: Home, make: str) -> None:
    queue = getattr(home.broker, make)("orders", **EVERY_FIELD)
    assert queue.policy == Policy.of(**EVERY_FIELD)
    assert home.broker.get_queue("orders").policy == Policy.of(**EVERY_FIELD)


def test_a_time_given_as_timedelta_is_another_than_in_seconds(home: Home) -> None:
    home.broker.queue("orders", visibility_timeout=timedelta(minutes=1), ttl=timedelta(days=1))
    again = home.broker.queue("orders", visibility_timeout=60, ttl=86400.0)
    assert (again.policy.visibility_timeout, again.policy.ttl) == (60.0, 86400.0)


def test_two_handles_of_one_name_are_two_queues(home: Home) -> None:
    first, second = home.broker.queue("orders"), home.broker.queue("orders")
    first.publish(b"a")
    assert second.depth() == 1
    take(second).ack()
    assert first.depth() == 0


def test_two_names_share_messages(home: Home) -> None:
    orders, invoices = home.broker.queue("orders"), home.broker.queue("invoices")
    orders.publish(b"a")
    assert invoices.receive() is None
    assert (orders.depth(), invoices.depth()) == (1, 0)


def test_names_that_differ_in_case_are_one_queue(home: Home) -> None:
    home.broker.queue("orders").publish(b"a")
    assert home.broker.queue("Orders").depth() == 0


def test_opening_what_exists_compares_arguments_that_were_not_given(home: Home) -> None:
    home.broker.queue("orders", max_attempts=5, visibility_timeout=60)
    assert home.broker.queue("orders").policy.max_attempts == 5
    assert home.broker.queue("orders", visibility_timeout=60).policy.max_attempts == 5


@pytest.mark.parametrize("make", ["queue", "create_queue"])
def test_a_conflicting_declaration_wins_or_does_not_say_what_differs(home: Home, make: str) -> None:
    queue = home.broker.queue("orders", max_attempts=5, ttl=60)
    with unchanged(queue), pytest.raises(PolicyConflict) as caught:
        getattr(home.broker, make)("orders", max_attempts=7, ttl=60)
    assert "max_attempts" in str(caught.value)
    assert "5" in str(caught.value)
    assert "7" in str(caught.value)
    assert "ttl" not in str(caught.value)


def test_an_unknown_queue_is_got_or_made_by_getting(home: Home) -> None:
    with pytest.raises(QueueNotFound, match="orders"):
        home.broker.get_queue("orders")
    assert list(home.broker.list_queues()) == []


def test_the_list_has_too_much_or_too_little(home: Home) -> None:
    assert list(home.broker.list_queues()) == []
    for name in ("b", "a", "c"):
        home.broker.queue(name)
    home.broker.delete_queue("c")
    assert sorted(home.broker.list_queues()) == ["a", "b"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_bad_name_makes_a_queue(home: Home, name: Any) -> None:
    for make in (home.broker.queue, home.broker.create_queue):
        with pytest.raises(InvalidName):
            make(name)
    for find in (home.broker.get_queue, home.broker.delete_queue):
        with pytest.raises(PenstockError):
            find(name)
    assert list(home.broker.list_queues()) == []


def test_the_suffix_of_dead_letters_is_not_reserved(home: Home) -> None:
    with pytest.raises(InvalidName, match="dlq"):
        home.broker.create_queue("orders.dlq")
    assert list(home.broker.list_queues()) == []


@pytest.mark.parametrize("policy", BAD_POLICIES, ids=repr)
def test_a_bad_policy_makes_a_queue_or_changes_one(home: Home, policy: dict[str, Any]) -> None:
    queue = home.broker.queue("orders")
    queue.publish(b"a")
    for make in (home.broker.queue, home.broker.create_queue):
        with pytest.raises(PenstockError):
            make("other", **policy)
    with unchanged(queue), pytest.raises(PenstockError):
        queue.alter(**policy)
    with unchanged(queue), pytest.raises(PenstockError):
        home.broker.queue("orders", **policy)
    assert list(home.broker.list_queues()) == ["orders"]


# --- altering ---


def test_altering_changes_other_fields_or_only_one_handle(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=5, ttl=60)
    other = home.broker.queue("orders")
    queue.alter(ttl=None, visibility_timeout=timedelta(seconds=5))
    for handle in (queue, other, home.broker.get_queue("orders")):
        assert handle.policy == Policy.of(max_attempts=5, ttl=None, visibility_timeout=5)


def test_an_altered_policy_does_not_apply_to_what_comes_after(home: Home) -> None:
    queue = home.broker.queue("orders", visibility_timeout=30, max_attempts=None)
    queue.publish(b"a")
    queue.alter(visibility_timeout=5)
    take(queue)
    home.advance(6)
    assert take(queue).redelivered


def test_a_declaration_after_altering_is_compared_with_the_old_policy(home: Home) -> None:
    queue = home.broker.queue("orders", max_attempts=5)
    queue.alter(max_attempts=7)
    home.broker.queue("orders", max_attempts=7)
    with pytest.raises(PolicyConflict):
        home.broker.queue("orders", max_attempts=5)


# --- deleting ---


def test_a_deleted_queue_is_still_there(home: Home) -> None:
    queue = home.broker.queue("orders")
    queue.publish(b"a")
    home.broker.delete_queue("orders")
    assert list(home.broker.list_queues()) == []
    with pytest.raises(QueueNotFound):
        home.broker.get_queue("orders")
    with pytest.raises(QueueNotFound):
        home.broker.delete_queue("orders")


def test_a_handle_of_a_deleted_queue_brings_it_back(home: Home) -> None:
    queue = home.broker.queue("orders")
    home.broker.delete_queue("orders")
    for call in (lambda: queue.publish(b"a"), queue.receive, queue.depth, queue.stats, queue.purge):
        with pytest.raises(QueueNotFound):
            call()
    assert list(home.broker.list_queues()) == []


def test_a_handle_of_a_deleted_queue_speaks_of_the_new_one(home: Home) -> None:
    old = home.broker.queue("orders")
    home.broker.delete_queue("orders")
    new = home.broker.queue("orders")
    new.publish_many([b"a", b"b"])
    for call in (old.depth, old.stats, old.peek, old.purge, old.receive, old.dead_letters, old.redrive):
        with unchanged(new), pytest.raises(QueueNotFound):
            call()


def test_a_queue_made_again_inherits_messages_policy_or_dedup_ids(home: Home) -> None:
    old = home.broker.queue("orders", max_attempts=5)
    old.publish(b"old", dedup_id="o-1")
    home.broker.delete_queue("orders")
    new = home.broker.queue("orders")
    assert (new.policy, new.depth(), new.receive()) == (Policy(), 0, None)
    new.publish(b"new", dedup_id="o-1")
    assert drain(new) == [b"new"]


def test_a_delivery_of_a_deleted_queue_is_settled_in_the_new_one(home: Home) -> None:
    queue = home.broker.queue("orders")
    queue.publish(b"old")
    delivery = take(queue)
    home.broker.delete_queue("orders")
    again = home.broker.queue("orders")
    again.publish(b"new")
    with unchanged(again), pytest.raises(PenstockError):
        delivery.ack()
    assert drain(again) == [b"new"]


def test_deleting_one_queue_takes_something_of_another(home: Home) -> None:
    home.broker.queue("orders").publish(b"a")
    home.broker.queue("invoices").publish(b"b")
    home.broker.delete_queue("orders")
    assert drain(home.broker.get_queue("invoices")) == [b"b"]


def test_an_unused_queue_outlives_its_expires(home: Home) -> None:
    home.broker.queue("session", expires=60)
    home.broker.queue("orders")
    home.advance(59)
    assert sorted(home.broker.list_queues()) == ["orders", "session"]
    home.advance(2)
    assert list(home.broker.list_queues()) == ["orders"]


def test_a_queue_with_a_consumer_counts_as_unused(home: Home) -> None:
    queue = home.broker.queue("session", expires=60)
    with queue.subscribe("worker"):
        home.advance(600)
        assert list(home.broker.list_queues()) == ["session"]
    home.advance(61)
    assert list(home.broker.list_queues()) == []


# --- the broker itself ---


def test_a_closed_broker_still_answers(home: Home, queue: Queue) -> None:
    queue.publish_many([b"a", b"b"])
    delivery = take(queue)
    home.broker.close()
    for call in (
        lambda: queue.publish(b"c"),
        lambda: queue.publish_many([b"c"]),
        queue.receive,
        lambda: queue.receive_many(5),
        queue.peek,
        queue.depth,
        queue.stats,
        queue.purge,
        queue.subscribe,
        delivery.ack,
        delivery.nack,
        lambda: delivery.extend(5),
        lambda: home.broker.queue("orders"),
        lambda: home.broker.get_queue("orders"),
        home.broker.list_queues,
    ):
        with pytest.raises(BrokerClosed):
            call()


def test_closing_twice_or_with_a_deadline_fails(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    home.broker.close(timeout=5)
    home.broker.close(timeout=5)
    home.broker.close()


def test_leaving_the_with_block_leaves_the_broker_open(home: Home) -> None:
    with home.open(home.elsewhere()) as broker:
        queue = broker.queue("orders")
        queue.publish(b"a")
    with pytest.raises(BrokerClosed):
        queue.publish(b"b")


@survives_a_restart
def test_two_brokers_own_one_directory(home: Home, queue: Queue) -> None:
    with pytest.raises(DirectoryLocked):
        home.open(home.path)
    queue.publish(b"a")
    assert drain(queue) == [b"a"]


def test_two_homes_share_messages(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    assert list(home.open(home.elsewhere()).list_queues()) == []


@pytest.mark.parametrize("options", [{"durability": "sometimes"}, {"durability": None}], ids=repr)
def test_a_bad_option_opens_a_broker(home: Home, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        home.open(home.elsewhere(), **options)


@survives_a_restart
@pytest.mark.parametrize("durability", ["commit", "interval", "os"])
def test_what_was_closed_in_good_order_depends_on_the_durability(home: Home, durability: str) -> None:
    place: Path | None = home.elsewhere()
    with home.open(place, durability=durability) as broker:
        broker.queue("orders").publish_many([b"a", b"b", b"c"])
        take(broker.queue("orders")).ack()
    with home.open(place) as broker:
        assert payloads(broker.queue("orders").peek(5)) == [b"b", b"c"]


@in_the_calling_thread
def test_a_forked_child_uses_its_parents_broker(home: Home, queue: Queue) -> None:
    queue.publish(b"a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking beside threads
        child = os.fork()
    if not child:
        outcome = 1
        try:
            queue.publish(b"from the child")
        except ForkedProcess:
            outcome = 0
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.publish(b"b")
    assert drain(queue) == [b"a", b"b"]
