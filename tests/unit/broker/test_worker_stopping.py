"""A worker that is told to stop while messages are on their way to it."""

from __future__ import annotations

from pathlib import Path

import penstock
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.broker.test_embedded import Place, Stop


def test_what_was_settled_for_a_worker_that_stops_is_handled_by_nobody(tmp_path: Path) -> None:
    """At most once: the settlement is being synced when the worker is told to stop."""
    place = Place(tmp_path / "data")
    queue = place.broker.queue("once", delivery="at-most-once")
    handled: list[bytes] = []
    worker = penstock.Worker(queue, lambda delivery: handled.append(delivery.payload))
    running = start(worker.run)
    until(lambda: queue.stats().waiting == 1)
    stop = Stop(place.files)
    publishing = start(queue.publish, b"x")
    stop.wait()  # the message
    stop.let_one_pass()
    stop.wait()  # its settlement
    worker.stop()
    until(worker._stopping.is_set)
    stop.open()
    assert running.result(PATIENCE_S)
    publishing.result(PATIENCE_S)
    assert (handled, queue.depth()) == ([b"x"], 0)
    place.broker.close()


def test_a_worker_that_waits_cannot_be_stopped(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    worker = penstock.Worker(place.queue, lambda _: None)
    running = start(worker.run)
    place.waiting(1)
    worker.stop()
    assert running.result(PATIENCE_S)
    assert place.queue.stats().waiting == 0
    place.broker.close()
