"""The short way gives the answers of the ordinary way, and stands back wherever it might not."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.broker import sync
from penstock.broker.express import Express
from penstock.broker.handing import alive
from penstock.engine.log import FEW_KEPT
from penstock.errors import (
    BrokerClosed,
    ForkedProcess,
    InvalidArgument,
    LeaseLost,
    MessageTooLarge,
    PenstockError,
    QueueNotFound,
)
from penstock.model.commands import Handle, Settle
from tests.conformance.unheard import UnheardClock
from tests.unit.broker.patience import PATIENCE_S, start, until


class Place:
    """A broker in memory, with the short way or without it."""

    def __init__(self, *, short: bool) -> None:
        self.clock = UnheardClock()
        self.broker = penstock.open(clock=self.clock)
        self.port = cast(Any, self.broker._port)  # not only what every port has
        if not short:
            self.port._express = None

    def queue(self, **policy: Any) -> sync.Queue:
        return self.broker.queue("q", **policy)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.port.wake()


@pytest.fixture(params=["short", "ordinary"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Both ways: what holds for one holds for the other."""
    found = Place(short=request.param == "short")
    yield found
    found.broker.close()


@pytest.fixture
def short() -> Iterator[Place]:
    found = Place(short=True)
    yield found
    found.broker.close()


def express_of(place: Place) -> Express:
    found = place.port._express
    assert isinstance(found, Express)
    return found


def acked(express: Express, log: Handle, offset: int, number: int) -> bool:
    return express.ack(log, Settle("default", [offset], [number]))


def test_settled_priorities_pile_up(place: Place) -> None:
    queue = place.queue()
    for number in range(3 * FEW_KEPT):
        queue.publish(b"x", priority=number % 2)
        delivery = queue.receive()
        assert delivery is not None
        delivery.ack()
    assert queue.depth() == 0
    assert len(place.port.monitor.engine.find("default", "q").priorities) <= FEW_KEPT + 1


# --- any plain program ---

STEP = st.one_of(
    st.tuples(st.sampled_from(["publish", "publish", "receive", "receive", "ack", "ack"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["nack", "requeue", "reject", "extend", "late ack"]), st.integers(0, 9)),
    st.tuples(
        st.sampled_from(["urgent", "delayed", "mortal", "keyed", "many", "receive many"]), st.integers(1, 5)
    ),
    st.tuples(
        st.sampled_from(["pass", "purge", "peek", "stats", "alter", "ack all", "dead"]), st.integers(1, 40)
    ),
)


class Program:
    """Does the same to any queue, and keeps what it answers."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.queue = place.queue(visibility_timeout=30, max_attempts=3)
        self.held: list[sync.Delivery] = []
        self.done: list[sync.Delivery] = []

    def answer(self, step: tuple[str, int]) -> Any:
        try:
            return self._perform(*step)
        except PenstockError as error:
            return type(error).__name__

    def _perform(self, what: str, number: int) -> Any:
        queue = self.queue
        if what == "publish":
            return queue.publish(b"%d" % number)
        if what == "urgent":
            return queue.publish(b"urgent", priority=number)
        if what == "delayed":
            return queue.publish(b"delayed", delay=number * 4)
        if what == "mortal":
            return queue.publish(b"mortal", ttl=number * 9)
        if what == "keyed":
            return queue.publish(b"keyed", key="k", headers={"n": str(number)}, dedup_id=str(number))
        if what == "many":
            return queue.publish_many([b"one of %d" % number] * number)
        if what == "receive":
            return self._keep([found] if (found := queue.receive()) else [])
        if what == "receive many":
            return self._keep(queue.receive_many(number))
        if what == "pass":
            return self.place.advance(number)
        if what == "peek":
            return [(found.id, found.payload) for found in queue.peek(number)]
        if what == "stats":
            return queue.stats(), self.place.broker.stats()
        if what == "purge":
            return queue.purge() if number > 30 else None
        if what == "alter":
            return queue.alter(visibility_timeout=None if number > 30 else number)
        if what == "dead":
            return [found.payload for found in queue.dead_letters().peek(9)]
        return self._settle(what, number)

    def _keep(self, found: list[sync.Delivery]) -> Any:
        self.held += found
        return [
            (d.id, d.offset, d.payload, d.attempt, d.receipt, d.priority, d.timestamp, d.headers)
            for d in found
        ]

    def _settle(self, what: str, number: int) -> Any:
        if what == "ack all":
            held, self.held = self.held, []
            self.done += held
            return self.queue.ack_many(held)
        if what == "late ack":
            return self.done[number % len(self.done)].ack() if self.done else None
        if not self.held:
            return None
        delivery = self.held[number % len(self.held)]
        if what == "extend":
            return delivery.extend(number)
        self.held.remove(delivery)
        self.done.append(delivery)
        return getattr(delivery, what)()


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_the_short_way_answers_something_else(steps: list[tuple[str, int]]) -> None:
    one, other = Program(Place(short=True)), Program(Place(short=False))
    for step in [
        *steps,
        ("stats", 0),
        ("receive many", 99),
        ("pass", 100),
        ("stats", 0),
        ("receive many", 99),
    ]:
        assert one.answer(step) == other.answer(step), step


def test_a_plain_queue_does_not_go_the_short_way(short: Place) -> None:
    queue, express = short.queue(), express_of(short)
    assert queue.receive() is None  # it has a group from now on
    queue.publish(b"first")
    queue.purge()
    assert express.publish(queue._log, b"x")
    ticket = express.lease(alive(queue._log), None)
    assert ticket is not None
    granted = ticket.wait()
    assert granted is not None
    assert acked(express, queue._log, granted.offsets[0], granted.number)
    assert express.lease(alive(queue._log), None) is None


@pytest.mark.parametrize(
    "policy",
    [{"ttl": 5}, {"max_depth": 5}, {"max_bytes": 5}, {"expires": 5}, {"ordering": "key"},
     {"delivery": "at-most-once"}, {"delivery": "exactly-once"}, {"single_active": True}],
)  # fmt: skip
def test_another_queue_goes_the_short_way(short: Place, policy: dict[str, Any]) -> None:
    queue, express = short.queue(**policy), express_of(short)
    assert queue.receive() is None
    assert express.publish(queue._log, b"x") == 0
    assert express.lease(alive(queue._log), None) is None
    assert not acked(express, queue._log, 0, 1)
    plain = short.broker.queue("plain")
    plain.publish(b"first")
    assert express.publish(plain._log, b"x")
    plain.alter(**policy)
    assert express.publish(plain._log, b"x") == 0


def test_a_second_group_is_left_out(short: Place) -> None:
    queue = short.queue()
    queue.publish(b"0")
    late = queue.group("late")
    assert late.receive() is not None
    queue.publish(b"1")
    assert express_of(short).publish(queue._log, b"2") > 0
    assert [one.offset for one in late.receive_many(9)] == [1, 2]
    assert [one.offset for one in queue.receive_many(9)] == [0, 1, 2]


def test_a_first_group_of_another_name_is_left_out(short: Place) -> None:
    queue = short.queue(ordering="key")
    early = queue.group("early")
    queue.alter(ordering="fifo")
    queue.publish(b"0")
    assert early.receive() is not None


# --- input ---


def test_a_message_that_is_too_large_goes_the_short_way(place: Place) -> None:
    queue = place.queue(max_message_bytes=3)
    queue.publish(b"abc")
    with pytest.raises(MessageTooLarge):
        queue.publish(b"abcd")
    queue.alter(max_message_bytes=4)
    queue.publish(b"abcd")
    assert queue.depth() == 2


@pytest.mark.parametrize("bad", ["text", 7, None, bytearray(b"x")])
def test_something_that_is_no_payload_goes_the_short_way(place: Place, bad: Any) -> None:
    queue = place.queue()
    with pytest.raises(InvalidArgument):
        queue.publish(bad)
    assert queue.depth() == 0


# --- time ---


def test_what_fell_due_is_passed_over(place: Place) -> None:
    queue = place.queue()
    queue.publish(b"leased")
    queue.receive()
    queue.publish(b"delayed", delay=29)
    place.clock.advance(30)  # and nobody looked at the clock
    queue.publish(b"later")
    got = [queue.receive() for _ in range(3)]
    assert [(d.payload, d.attempt) for d in got if d] == [(b"leased", 2), (b"delayed", 1), (b"later", 1)]


def test_a_lease_of_the_short_way_never_ends(place: Place) -> None:
    queue = place.queue(visibility_timeout=5)
    queue.publish(b"x")
    first = queue.receive()
    place.advance(5)
    again = queue.receive()
    assert first is not None and again is not None  # noqa: PT018
    assert again.attempt == 2
    with pytest.raises(LeaseLost):
        first.ack()
    again.ack()
    assert queue.depth() == 0


def test_an_altered_timeout_does_not_count(place: Place) -> None:
    queue = place.queue(visibility_timeout=5)
    queue.publish(b"x")
    queue.alter(visibility_timeout=50)
    queue.receive()
    place.advance(40)
    assert queue.receive() is None


def test_the_clock_that_is_behind_gives_ids_that_go_back(place: Place) -> None:
    queue = place.queue()
    ids = [queue.publish(b"0")]
    place.clock.set_back(60)
    ids += [queue.publish(b"1"), queue.publish(b"2")]
    place.clock.advance(61)
    ids += [queue.publish(b"3")]
    assert ids == sorted(ids)
    assert [found.id for found in queue.peek(9)] == ids


def test_a_lease_begins_when_the_clock_is_behind(place: Place) -> None:
    queue = place.queue(visibility_timeout=30)
    queue.publish(b"x")
    place.clock.set_back(60)
    delivery = queue.receive()
    place.advance(29)
    assert queue.receive() is None
    assert delivery is not None
    delivery.ack()


def test_a_lease_is_over_at_once_after_the_clock_was_set_back() -> None:
    place = Place(short=True)
    queue = place.queue(visibility_timeout=30)
    queue.publish(b"x")
    place.clock.set_back(60)
    place.clock.advance(61)
    delivery = queue.receive()
    place.port.wake()
    assert delivery is not None
    delivery.ack()


def test_what_is_due_is_passed_over_after_the_clock_was_set_back() -> None:
    place = Place(short=True)
    queue = place.queue()
    queue.publish(b"x", delay=30)
    place.clock.set_back(60)
    place.clock.advance(61)
    queue.publish(b"y")
    got = [queue.receive(), queue.receive()]
    assert [d.payload for d in got if d] == [b"x", b"y"]


def test_an_ack_that_is_too_late_is_taken_after_somebody_noticed() -> None:
    """The short ack looks at no clock: it is refused from when the timer, or any call, has seen that the lease is over."""
    place = Place(short=True)
    queue = place.queue(visibility_timeout=30)
    queue.publish(b"x")
    delivery = queue.receive()
    place.clock.advance(31)
    place.port.wake()
    assert delivery is not None
    with pytest.raises(LeaseLost):
        delivery.ack()


# --- what an earlier policy left behind ---


def test_what_waits_behind_a_key_waits_for_ever() -> None:
    place = Place(short=True)
    queue = place.queue(ordering="key")
    queue.publish(b"1", key="k")
    queue.publish(b"2", key="k")
    delivery = queue.receive()
    queue.alter(ordering="fifo")
    assert delivery is not None
    delivery.ack()
    assert queue.receive() is not None


def test_bytes_of_an_earlier_limit_are_counted_for_ever() -> None:
    place = Place(short=True)
    queue = place.queue(max_bytes=10)
    queue.publish(b"12345678")
    delivery = queue.receive()
    queue.alter(max_bytes=None)
    assert delivery is not None
    delivery.ack()
    queue.alter(max_bytes=10)
    assert queue.stats().bytes == 0


def test_an_id_that_was_held_is_held_for_ever() -> None:
    place = Place(short=True)
    queue = place.queue(delivery="exactly-once", dedup_window=5)
    queue.publish(b"1", dedup_id="a")
    delivery = queue.receive()
    queue.alter(delivery="at-least-once")
    assert delivery is not None
    delivery.ack()
    place.advance(60)
    queue.publish(b"2", dedup_id="a")
    assert queue.depth() == 1


# --- others ---


def test_a_waiting_receiver_is_passed_over(place: Place) -> None:
    queue, other = place.queue(), place.broker.queue("other")
    queue.publish(b"before")
    before = queue.receive()
    assert before is not None
    before.ack()
    waiter = start(queue.receive, None)
    until(lambda: queue.stats().waiting)
    other.publish(b"elsewhere")
    queue.publish(b"x")
    delivery = waiter.result(PATIENCE_S)
    assert delivery is not None
    assert (delivery.payload, queue.receive()) == (b"x", None)
    assert queue.publish(b"y")  # nobody waits any more
    assert queue.stats().ready == 1


def test_a_receiver_that_waits_closes_the_short_way_of_its_queue_alone(short: Place) -> None:
    queue, other, express = short.queue(), short.broker.queue("other"), express_of(short)
    assert other.receive() is None  # it has a group from now on
    other.publish(b"first")
    other.purge()
    waiter = start(queue.receive, 5)
    until(lambda: queue.stats().waiting)
    assert express.publish(queue._log, b"x") == 0
    assert express.publish(other._log, b"x")
    assert express.lease(alive(other._log), None) is not None
    short.advance(6)
    assert waiter.result(PATIENCE_S) is None
    assert express.publish(queue._log, b"y")


def test_on_disk_a_receiver_that_waits_closes_the_short_way_of_its_queue_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as broker:
        queue, other, express = broker.queue("q"), broker.queue("other"), cast(Any, broker._port)._short
        assert other.receive() is None
        other.publish(b"first")
        waiter = start(queue.receive, None)
        until(lambda: queue.stats().waiting)
        assert express.publish(alive(queue._log), b"x") is None
        assert express.publish(alive(other._log), b"x") is not None
        assert express.lease(alive(other._log), None) is not None
        queue.publish(b"end")
        assert waiter.result(PATIENCE_S) is not None
        assert express.publish(alive(queue._log), b"y") is not None


def test_a_closed_broker_takes_the_short_way(place: Place) -> None:
    queue = place.queue()
    queue.publish(b"x")
    queue.publish(b"y")
    delivery = queue.receive()
    assert delivery is not None
    place.broker.close()
    for call in (lambda: queue.publish(b"z"), queue.receive, delivery.ack):
        with pytest.raises(BrokerClosed):
            call()


def test_a_closing_broker_takes_the_short_way() -> None:
    place = Place(short=True)
    queue = place.queue()
    queue.publish_many([b"x", b"y"])
    first, second = queue.receive_many(2)
    closing = start(place.broker.close, PATIENCE_S)
    until(lambda: place.port.monitor.draining)
    first.ack()
    try:
        with pytest.raises(BrokerClosed):
            queue.publish(b"z")
    finally:
        queue.ack_many([second])
        closing.result(PATIENCE_S)


def test_a_deleted_queue_takes_the_short_way(place: Place) -> None:
    queue = place.queue()
    queue.publish(b"x")
    queue.publish(b"y")
    delivery = queue.receive()
    assert delivery is not None
    place.broker.delete_queue("q")
    for call in (lambda: queue.publish(b"z"), queue.receive, delivery.ack):
        with pytest.raises(QueueNotFound):
            call()


def _in_a_child(call: Any) -> int:
    """0 if the child was refused, and something else if it was not, or hangs."""
    pid = os.fork()
    if not pid:
        signal.setitimer(signal.ITIMER_REAL, 2)
        try:
            call()
        except ForkedProcess:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_takes_the_short_way(place: Place) -> None:
    queue = place.queue()
    queue.publish(b"x")
    queue.publish(b"y")
    delivery = queue.receive()
    assert delivery is not None
    for call in (lambda: queue.publish(b"z"), queue.receive, delivery.ack):
        assert _in_a_child(call) == 0
    assert queue.stats().depth == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_was_forked_while_another_thread_published_hangs() -> None:
    place = Place(short=True)
    queue = place.queue()
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with place.port.monitor.lock:
            held.set()
            enough.wait(PATIENCE_S)

    holding = start(hold)
    held.wait(PATIENCE_S)
    try:
        assert _in_a_child(lambda: queue.publish(b"z")) == 0
    finally:
        enough.set()
        holding.result(PATIENCE_S)
