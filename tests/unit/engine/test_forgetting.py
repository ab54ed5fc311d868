"""What is kept of messages while they need it is gone when they are settled, by whichever way that happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.engine import log as logs
from penstock.engine.change import Change
from penstock.engine.log import Log
from tests.unit.engine.specimen import Machine

# --- attempts ---


def _fail(machine: Machine, log: Log, how: str) -> None:
    """All that is ready fails once, and is ready again."""
    offsets = machine.lease(log, 100)
    if how == "lease ends":
        machine.pass_time(31)
    else:
        machine.settle(log, how, *offsets)
        machine.pass_time(11)


def _ack(machine: Machine, log: Log) -> None:
    machine.settle(log, "ack", *machine.lease(log, 100))


def _settle_at_once(machine: Machine, log: Log) -> None:
    machine.grant(log, 100, keep=False)


def _reject(machine: Machine, log: Log) -> None:
    machine.settle(log, "reject", *machine.lease(log, 100))


def _purge(machine: Machine, log: Log) -> None:
    change = Change()
    machine.engine.purge(log, machine.now_us, change)
    machine.done(change)


def _die(machine: Machine, log: Log) -> None:
    for _ in range(2):
        machine.lease(log, 100)
        machine.pass_time(31)


def _expire(machine: Machine, log: Log) -> None:
    machine.pass_time(1000)


END = {"ack": _ack, "at once": _settle_at_once, "reject": _reject, "purge": _purge, "die": _die, "expire": _expire}  # fmt: skip


@pytest.mark.parametrize("end", END.values(), ids=END)
@pytest.mark.parametrize("how", ["nack", "give_back", "lease ends"])
def test_the_attempts_of_settled_messages_are_kept(how: str, end: Callable[[Machine, Log], None]) -> None:
    machine = Machine()
    log = machine.declare(visibility_timeout=30)
    machine.publish(log, *[b"x"] * 5, expires_at=machine.now_us + 500_000_000)
    group = log.group()
    _fail(machine, log, how)
    assert [attempts for _, attempts, _ in group.tally.items()] == [1] * 5
    end(machine, log)
    assert (log.depth, len(group.tally)) == (0, 0)
    machine.publish(log, b"y")
    assert group.attempts_of([5]) == 1  # no list: nobody is asked for
    for later in (machine.replayed(), machine.restored()):
        assert len(later.log().group().tally) == 0


# --- priorities ---


def _one_by_one(machine: Machine, log: Log, count: int) -> None:
    for number in range(count):
        machine.publish(log, b"x", priority=number % 2)
        machine.settle(log, "ack", *machine.lease(log))


def _in_batches(machine: Machine, log: Log, count: int) -> None:
    for _ in range(0, count, 10):
        machine.publish(log, *[b"x"] * 10, priority=[0, 1] * 5)
        machine.settle(log, "ack", *machine.lease(log, 10))


def _at_most_once(machine: Machine, log: Log, count: int) -> None:
    for number in range(count):
        machine.publish(log, b"x", priority=number % 2)
        machine.grant(log, keep=False)


@pytest.mark.parametrize("consume", [_one_by_one, _in_batches, _at_most_once])
def test_the_priorities_of_settled_messages_are_kept(
    monkeypatch: pytest.MonkeyPatch, consume: Callable[[Machine, Log, int], None]
) -> None:
    monkeypatch.setattr(logs, "FEW_KEPT", 20)
    machine = Machine()
    log = machine.declare()
    kept = 0
    for _ in range(30):
        consume(machine, log, 10)
        kept = max(kept, len(log.priorities))
    assert (log.depth, log.next_offset) == (0, 300)
    assert kept <= 21 + 10


def test_the_priority_of_a_message_that_is_left_is_forgotten_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "FEW_KEPT", 20)
    machine = Machine()
    log = machine.declare()
    machine.publish(log, b"first", priority=7)
    for number in range(100):
        machine.publish(log, b"x", priority=number % 2)
        machine.settle(log, "ack", *machine.lease(log))
    assert log.priorities.at(0) == 7
    assert machine.lease(log) == [0]
