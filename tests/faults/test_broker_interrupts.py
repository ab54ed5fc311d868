"""Ctrl-C at any moment in Penstock's code: the broker goes on whole or refuses everything, closes, and forgets nothing acknowledged."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import penstock
from penstock.broker.sync import Broker
from penstock.errors import JournalFailed
from penstock.journal.tail import Durability
from tests.faults import campaign

SOURCE = str(Path(penstock.__file__).parent)


class Interrupt(BaseException):
    """What a signal handler raises, wherever the main thread happens to be."""


@cache
def moments_of(code: CodeType) -> frozenset[int]:
    """Where in some code the interpreter looks for signals: at calls, but not between the body of a `with` and what ends it."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("PRECALL", "CACHE")]
    return frozenset(
        step.offset
        for place, step in enumerate(steps)
        if step.opname == "CALL"
        and not all(
            before.argval is None and before.opname == "LOAD_CONST"
            for before in steps[max(place - 3, 0) : place]
        )
    )


@contextmanager
def interrupted_at(moment: int) -> Iterator[list[int]]:
    """Raise `Interrupt` at such a moment of Penstock's code, counted from here; gives how many are left until then."""
    left = [moment]

    def trace(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        if event == "call":
            if not frame.f_code.co_filename.startswith(SOURCE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and frame.f_lasti in moments_of(frame.f_code):
            left[0] -= 1
            if left[0] == 0:
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield left
    finally:
        sys.settrace(before)


class Life:
    """What a program did with a queue, and heard of it."""

    def __init__(self) -> None:
        self.tried: set[bytes] = set()
        self.published: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.being_acked: set[bytes] = set()

    def publish(self, queue: Any, *payloads: bytes) -> None:
        self.tried.update(payloads)
        if len(payloads) == 1:
            queue.publish(payloads[0])
        else:
            queue.publish_many(list(payloads))
        self.published.update(payloads)

    def ack(self, delivery: Any) -> None:
        self.being_acked.add(delivery.payload)
        delivery.ack()
        self.acked.add(delivery.payload)

    def run(self, broker: Broker) -> None:
        queue = broker.queue("orders", visibility_timeout=None)
        self.publish(queue, b"a")
        self.publish(queue, b"b", b"c", b"d")
        with queue.subscribe() as consumer:
            for received in consumer.receive_many(2):
                self.ack(received)
        failed = queue.receive()
        if failed is not None:
            failed.nack(delay=0)
        self.publish(queue, b"e")
        last = queue.receive()
        if last is not None:
            self.ack(last)

    def require_kept(self, broker: Broker) -> None:
        """Drain what is left: everything acknowledged holds, and nothing was made up."""
        queue = broker.queue("orders")
        found = [message.payload for message in queue.receive_many(100)]
        stats = queue.stats()
        found_set = set(found)
        assert len(found) == len(found_set)
        assert found_set <= self.tried
        assert not found_set & self.acked
        assert stats.depth == stats.ready + stats.leased + stats.delayed + stats.retrying
        if stats.leased == len(found):  # else somebody was interrupted on the way to what it had received
            assert self.published - self.being_acked <= found_set


def moments_in(opened: Callable[[], Broker]) -> int:
    """How many moments one life has, without an interruption."""
    with opened() as broker, interrupted_at(sys.maxsize) as left, broker:
        Life().run(broker)
    return sys.maxsize - left[0]


def interrupted(life: Life, broker: Broker, moment: int) -> None:
    """A life that ends at some moment of it."""
    with interrupted_at(moment), suppress(Interrupt):
        life.run(broker)


def _try_in_memory(moments: Iterable[int]) -> tuple[int, int]:
    """How often it went on, and how often it refused everything."""
    refused = went_on = 0
    for moment in moments:
        life, broker = Life(), penstock.open()
        interrupted(life, broker, moment)
        try:
            life.require_kept(broker)
            went_on += 1
        except JournalFailed:
            refused += 1
        broker.close()
    return went_on, refused


def _try_on_disk(place: Path, durability: Durability, moments: Iterable[int]) -> None:
    for moment in moments:
        life = Life()
        broker = penstock.open(place / f"{moment}", durability=durability)
        with interrupted_at(moment), suppress(Interrupt), broker:
            life.run(broker)
        broker.close()  # once more, if the first time was interrupted before it began
        with penstock.open(place / f"{moment}", durability="os") as broker:
            life.require_kept(broker)


def test_in_memory_it_goes_on_whole_or_refuses_everything() -> None:
    went_on, refused = _try_in_memory(campaign.some(range(1, moments_in(penstock.open)), 300, "memory"))
    assert went_on
    assert refused


@pytest.mark.parametrize("durability", ["os", "commit"])
def test_on_disk_everything_acknowledged_is_there_afterwards(tmp_path: Path, durability: Durability) -> None:
    total = moments_in(lambda: penstock.open(tmp_path / "first", durability=durability))
    _try_on_disk(tmp_path, durability, campaign.some(range(1, total), 150, durability))


@pytest.mark.campaign
@pytest.mark.parametrize("durability", ["os", "commit"])
def test_on_disk_at_every_moment(tmp_path: Path, durability: Durability) -> None:
    total = moments_in(lambda: penstock.open(tmp_path / "first", durability=durability))
    _try_on_disk(tmp_path, durability, range(1, total))
