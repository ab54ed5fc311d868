"""What a test looks at, and how it takes messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from tests.conformance.surface import Delivery, Queue, Receiver

#: For a test that opens its broker again; what is in memory is gone then.
survives_a_restart = pytest.mark.usefixtures("durable")

#: For a test that needs the broker to be called in the test's own thread.
in_the_calling_thread = pytest.mark.usefixtures("sync_shell")

#: More than any test publishes where everything is looked at.
EVERYTHING = 1000


class HasPayload(Protocol):
    @property
    def payload(self) -> bytes: ...


def payloads(found: Iterable[HasPayload]) -> list[bytes]:
    return [one.payload for one in found]


def take(receiver: Receiver) -> Delivery:
    """The next delivery, which must be there."""
    delivery = receiver.receive()
    assert delivery is not None, "nothing was delivered"
    return delivery


def drain(receiver: Receiver) -> list[bytes]:
    """Take and acknowledge, one by one, until nothing more comes: the order of delivery."""
    taken = []
    while (delivery := receiver.receive()) is not None:
        taken.append(delivery.payload)
        delivery.ack()
    return taken


def counts(queue: Queue) -> dict[str, int]:
    found = queue.stats()
    return {
        "ready": found.ready,
        "delayed": found.delayed,
        "leased": found.leased,
        "retrying": found.retrying,
        "dead": found.dead,
        "depth": queue.depth(),
    }


def expected(
    *, ready: int = 0, delayed: int = 0, leased: int = 0, retrying: int = 0, dead: int = 0
) -> dict[str, int]:
    """What `counts` gives for these; the depth is everything that is not settled."""
    return {
        "ready": ready,
        "delayed": delayed,
        "leased": leased,
        "retrying": retrying,
        "dead": dead,
        "depth": ready + delayed + leased + retrying,
    }


@contextmanager
def unchanged(queue: Queue) -> Iterator[None]:
    """Whatever happens inside leaves the queue as it was."""
    before = (counts(queue), queue.peek(EVERYTHING), queue.policy)
    yield
    assert (counts(queue), queue.peek(EVERYTHING), queue.policy) == before
