"""A full queue refuses, or drops what would be delivered first: also what is still being recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.engine.change import Change
from penstock.engine.lane import Lanes, Piece
from penstock.engine.log import Log
from penstock.errors import QueueFull
from penstock.model.batch import Batch
from tests.unit.engine.specimen import NOW, Machine


class Slow(Machine):
    """A machine where what is published waits until it is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[Change] = []

    def send(self, log: Log, *payloads: bytes, **columns: Any) -> None:
        change = Change()
        first = 1000 + log.next_offset
        ids = range(first, first + len(payloads))
        size = sum(map(len, payloads))
        batch = Batch(list(payloads), ids, NOW, columns.pop("priority", 100), size=size, **columns)
        self.engine.publish(log, batch, NOW, change)
        self.under_way.append(change)

    def record(self) -> None:
        for change in self.under_way:
            self.done(change)
        self.under_way.clear()


def slow(**policy: Any) -> tuple[Slow, Log]:
    machine = Slow()
    return machine, machine.declare(overflow="drop-head", **policy)


@pytest.mark.parametrize("many", [3, 30])
def test_what_is_being_recorded_cannot_be_dropped(many: int) -> None:
    machine, log = slow(max_depth=2)
    for number in range(many):
        machine.send(log, b"%d" % number)
        assert log.depth <= 2
    machine.record()
    assert (log.depth, log.group().ready) == (2, 2)
    assert machine.lease(log, 99) == [many - 2, many - 1]


def test_a_batch_drops_many_that_are_being_recorded_one_by_one() -> None:
    machine, log = slow(max_depth=20)
    for number in range(20):
        machine.send(log, b"%d" % number, priority=number % 3)
    machine.send(log, *[b"x"] * 20)
    machine.record()
    assert machine.lease(log, 99) == list(range(20, 40))


def test_what_is_being_recorded_goes_before_what_is_ready() -> None:
    machine, log = slow(max_depth=3)
    machine.publish(log, b"0", b"1")
    machine.send(log, b"2")
    machine.send(log, b"3", b"4")
    machine.record()
    assert machine.lease(log, 9) == [2, 3, 4]


def test_a_part_of_a_batch_that_was_dropped_arrives() -> None:
    machine, log = slow(max_depth=4)
    machine.send(log, b"0", b"1", b"2", b"3", priority=[5, 5, 1, 5])
    machine.send(log, b"4", b"5")
    machine.record()
    assert (log.depth, machine.lease(log, 9)) == (4, [2, 3, 4, 5])


@pytest.mark.parametrize("how", ["stored", "recorded"])
def test_what_was_dropped_before_it_was_recorded_comes_back(how: str) -> None:
    machine, log = slow(max_depth=2)
    machine.publish(log, b"0")
    for number in range(1, 6):
        machine.send(log, b"%d" % number)
    if how == "stored":  # as a snapshot is: of now, and then what was on its way
        twin = Machine()
        twin.engine.restore(machine.engine.encode())
        for change in machine.under_way:
            for _, first, batch in change.arrivals:
                twin.engine.arrive([(twin.log(), first, batch)], NOW)
    else:
        machine.record()
        twin = machine.replayed()
    assert (twin.log().depth, twin.log().group().ready) == (2, 2)
    assert twin.lease(twin.log(), 9) == [4, 5]


def test_a_dropped_message_keeps_its_bytes() -> None:
    machine, log = slow(max_bytes=10)
    for letter in (b"a", b"b", b"c"):
        machine.send(log, letter * 4)
    assert log.bytes == 8
    machine.record()
    assert (log.bytes, machine.lease(log, 9)) == (8, [1, 2])


def test_a_dropped_message_stands_for_its_key() -> None:
    machine, log = slow(max_depth=2, ordering="key")
    for number in range(4):
        machine.send(log, b"%d" % number, key=["a"])
    machine.record()
    assert machine.lease(log, 9) == [2]
    machine.settle(log, "ack", 2)
    assert machine.lease(log, 9) == [3]


def test_what_is_leased_or_not_due_is_dropped_or_something_changed() -> None:
    machine, log = slow(max_depth=3)
    machine.publish(log, b"0", b"1", b"2", deliver_at=[None, NOW + 10, None])
    machine.lease(log)
    before = machine.engine.encode()
    with pytest.raises(QueueFull, match="leased or not due"):
        machine.publish(log, b"3", b"4")
    assert machine.engine.encode() == before
    machine.publish(log, b"3")
    assert machine.lease(log, 9) == [3]


def test_what_another_group_has_in_hand_is_not_dropped() -> None:
    machine, log = slow(max_depth=1)
    log.group(), log.group("beside")
    machine.publish(log, b"0")
    machine.lease(log, group="beside")
    with pytest.raises(QueueFull, match="leased"):
        machine.publish(log, b"1")


def test_a_batch_larger_than_the_queue_empties_it() -> None:
    machine, log = slow(max_depth=2)
    machine.publish(log, b"0", b"1")
    with pytest.raises(QueueFull):
        machine.publish(log, b"2", b"3", b"4")
    assert machine.lease(log, 9) == [0, 1]


def test_a_drop_looks_at_everything_that_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, log = slow(max_depth=100)
    machine.publish(log, *[b"x"] * 100, priority=[number % 50 for number in range(100)])
    seen = 0
    pieces = Lanes.pieces

    def counted(lanes: Lanes) -> Iterator[Piece]:
        nonlocal seen
        for piece in pieces(lanes):
            seen += 1
            yield piece

    monkeypatch.setattr(Lanes, "pieces", counted)
    machine.publish(log, b"y", b"z")
    assert log.depth == 100
    assert seen <= 3
