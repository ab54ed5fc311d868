"""Who stops waiting leaves the line, and what was granted to him goes back: but never what another holds by then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import aio, sync
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.broker.test_embedded import Place


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


def pass_time(place: Place, seconds: float) -> None:
    place.clock.advance(seconds)
    place.port.wake()


# --- what another holds ---


def granted(place: Place, queue: sync.Queue, count: int) -> Any:
    """Somebody who waited was granted messages, and has not looked yet."""
    ticket = place.port.lease(queue._log, "default", count, wait_us=None)
    queue.publish_many([b"%d" % number for number in range(count)])
    assert queue.stats().leased == count
    return ticket


def test_one_who_gives_up_late_takes_a_message_from_its_present_holder(place: Place) -> None:
    queue = place.broker.queue("leased", visibility_timeout=30)
    ticket = granted(place, queue, 1)
    pass_time(place, 31)
    present = queue.receive()
    assert present is not None
    place.port._handing.give_up(ticket)
    assert (queue.stats().leased, queue.receive()) == (1, None)
    present.ack()
    assert queue.depth() == 0


def test_one_who_gives_up_late_counts_an_attempt_of_what_went_back_before(place: Place) -> None:
    queue = place.broker.queue("leased", visibility_timeout=30)
    ticket = granted(place, queue, 3)
    pass_time(place, 31)
    present = queue.receive()
    assert present is not None
    place.port._handing.give_up(ticket)
    assert [(found.payload, found.attempt) for found in queue.receive_many(9)] == [(b"1", 2), (b"2", 2)]
    present.ack()


def test_a_task_that_is_cancelled_late_takes_a_message_from_its_present_holder(place: Place) -> None:
    queue = place.broker.queue("leased", visibility_timeout=30)

    async def run() -> sync.Delivery:
        waits = await aio.Broker(place.port).queue("leased")
        task = asyncio.create_task(waits.receive(None))
        await asyncio.sleep(0)  # it waits: a call of the port never blocks
        queue.publish(b"0")
        pass_time(place, 31)  # it was granted the message, and its turn has not come since
        present = queue.receive()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert present is not None
        return present

    present = asyncio.run(run())
    assert queue.stats().leased == 1
    present.ack()
    assert queue.depth() == 0


# --- a queue that nobody uses any more ---


def _runs_out_of_patience(place: Place, queue: sync.Queue) -> None:
    waiting = start(queue.receive, 5)
    until(lambda: queue.stats().waiting == 1)
    pass_time(place, 5)
    assert waiting.result(PATIENCE_S) is None


def _gets_a_message(place: Place, queue: sync.Queue) -> None:
    waiting = start(queue.receive, None)
    until(lambda: queue.stats().waiting == 1)
    queue.publish(b"0")
    assert waiting.result(PATIENCE_S) is not None


def _gives_up(place: Place, queue: sync.Queue) -> None:
    ticket: Any = place.port.lease(queue._log, "default", 1, wait_us=None)
    assert queue.stats().waiting == 1
    place.port._handing.give_up(ticket)


def _is_closed(place: Place, queue: sync.Queue) -> None:
    consumer = queue.subscribe("c")
    waiting = start(consumer.receive, None)
    until(lambda: queue.stats().waiting == 1)
    consumer.close()
    assert waiting.result(PATIENCE_S) is None


@pytest.mark.parametrize("end", [_runs_out_of_patience, _gets_a_message, _gives_up, _is_closed])
def test_a_queue_for_which_somebody_once_waited_never_expires(place: Place, end: Any) -> None:
    queue = place.broker.queue("unused", expires=60, visibility_timeout=None)
    end(place, queue)
    assert queue.stats().waiting == 0
    pass_time(place, 59)
    assert "unused" in place.broker.list_queues()
    pass_time(place, 1)
    assert "unused" not in place.broker.list_queues()


def test_a_queue_expires_under_one_who_waits(place: Place) -> None:
    queue = place.broker.queue("used", expires=60)
    waiting = start(queue.receive, None)
    until(lambda: queue.stats().waiting == 1)
    pass_time(place, 600)
    queue.publish(b"0")
    found = waiting.result(PATIENCE_S)
    assert found is not None
    assert found.payload == b"0"
