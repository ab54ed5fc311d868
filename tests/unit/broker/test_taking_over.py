"""With `single_active` the next consumer takes over, also if it waits at that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from penstock.broker import sync
from penstock.broker.sync import Delivery
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.broker.test_embedded import Place


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


def payload_of(waiting: Future[Delivery | None]) -> bytes:
    found = waiting.result(PATIENCE_S)
    assert found is not None
    return found.payload


def standby(place: Place) -> tuple[sync.Queue, sync.Consumer, sync.Consumer, Future[Delivery | None]]:
    """A queue, its active consumer, and another one that waits."""
    queue = place.broker.queue("single", single_active=True)
    first, second = queue.subscribe("first"), queue.subscribe("second")
    waiting = start(second.receive, None)
    until(lambda: queue.stats().waiting == 1)
    return queue, first, second, waiting


def test_the_next_one_is_not_woken_when_the_active_one_goes_with_nothing_in_hand(place: Place) -> None:
    queue, first, _, waiting = standby(place)
    queue.publish(b"x")
    assert not waiting.done()
    first.close()
    assert payload_of(waiting) == b"x"


def test_the_next_one_is_not_woken_when_the_active_one_goes_with_a_message_in_hand(place: Place) -> None:
    queue, first, second, waiting = standby(place)
    queue.publish_many([b"x", b"y"])
    assert first.receive() is not None
    first.close()
    assert payload_of(waiting) == b"x"  # in its old place
    found = second.receive()
    assert found is not None
    assert (found.payload, found.attempt) == (b"y", 1)


def test_one_behind_the_next_is_woken(place: Place) -> None:
    queue, first, second, waiting = standby(place)
    third = queue.subscribe("third")
    later = start(third.receive, None)
    until(lambda: queue.stats().waiting == 2)
    queue.publish_many([b"x", b"y"])
    first.close()
    assert payload_of(waiting) == b"x"
    assert not later.done()
    second.close()
    assert payload_of(later) == b"x"


def test_one_who_came_earlier_into_the_line_takes_over_before_one_who_subscribed_earlier(
    place: Place,
) -> None:
    queue = place.broker.queue("single", single_active=True)
    first, second, third = (queue.subscribe(name) for name in ("first", "second", "third"))
    waiting = []
    for number, consumer in enumerate((third, second), 1):
        waiting.append(start(consumer.receive, None))
        until(lambda number=number: queue.stats().waiting == number)  # type: ignore[misc]
    queue.publish(b"x")
    first.close()
    assert payload_of(waiting[1]) == b"x"
    assert not waiting[0].done()


@pytest.mark.parametrize("waits", ["a consumer", "a plain receive"])
def test_one_who_waits_is_not_woken_when_everybody_may_be_active(place: Place, waits: str) -> None:
    queue = place.broker.queue("single", single_active=True)
    _, second = queue.subscribe("first"), queue.subscribe("second")
    call: Callable[[None], Delivery | None] = second.receive if waits == "a consumer" else queue.receive
    waiting = start(call, None)
    until(lambda: queue.stats().waiting == 1)
    queue.publish(b"x")
    assert not waiting.done()
    queue.alter(single_active=False)
    assert payload_of(waiting) == b"x"


def test_a_plain_receive_is_not_woken_when_no_consumer_is_left(place: Place) -> None:
    queue = place.broker.queue("single", single_active=True)
    only = queue.subscribe("only")
    waiting = start(queue.receive, None)
    until(lambda: queue.stats().waiting == 1)
    queue.publish(b"x")
    assert not waiting.done()
    only.close()
    assert payload_of(waiting) == b"x"
