"""Attempts of messages that a client holds in its buffer, when the server or the client is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as library
from penstock.broker.opening import in_memory
from penstock.clock import ManualClock
from tests.server.process import Running as Process
from tests.server.running import Running
from tests.server.test_client_restart import Place

pytestmark = pytest.mark.timeout(180)


def test_buffered_messages_keep_their_attempts_when_the_server_is_killed(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    try:
        with library.connect(place.url) as broker:
            queue = broker.queue("orders", max_attempts=3)
            queue.publish_many([b"%d" % n for n in range(100)])
            with queue.subscribe(prefetch=50) as consumer:
                held = []
                for _ in range(5):  # each kill takes an attempt of the one that code had
                    delivery = consumer.receive(timeout=None)
                    assert delivery is not None
                    held.append((delivery.payload, delivery.attempt))
                    place.restart()
                rest = {one.payload: one.attempt for _ in range(99) if (one := consumer.receive(timeout=9))}
        assert held == [(b"0", 1), (b"0", 2), (b"0", 3), (b"1", 1), (b"1", 2)]
        assert rest == {b"%d" % n: 3 if n == 1 else 1 for n in range(1, 100)}
    finally:
        place.server.__exit__(None, None, None)


#: Handles messages until one kills it at once.
CHILD = """
import os, sys, penstock
with penstock.connect(sys.argv[1]) as broker:
    with broker.queue("orders").subscribe(prefetch=50) as consumer:
        for delivery in consumer:
            print(delivery.payload.decode(), delivery.attempt, flush=True)
            if delivery.payload == b"poison":
                os.kill(os.getpid(), 9)
            delivery.ack()
            if delivery.payload == b"last":
                break
"""


def test_poison_that_kills_its_client_is_dead_lettered_alone() -> None:
    clock = ManualClock()
    port = in_memory(clock)
    with Running(port) as server, library.connect(server.url, clock=clock) as broker:
        queue = broker.queue("orders", max_attempts=3)
        queue.publish_many([b"first", b"poison", b"second", b"last"])
        said = []
        for _ in range(4):
            with Process("-c", CHILD, server.url) as child:
                child.end()
            said.append(child.said.splitlines())
            clock.advance(3600)  # a silent consumer is thought dead
        assert said == [["first 1", "poison 1"], ["poison 2"], ["poison 3"], ["second 1", "last 1"]]
        assert [one.payload for one in queue.dead_letters().peek(9)] == [b"poison"]
    port.close()
