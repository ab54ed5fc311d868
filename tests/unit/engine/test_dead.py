"""What failed for good is in one place: in the dead letters, or back, as the policies of both queues say."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.clock import SECOND_US
from penstock.engine import dead
from penstock.engine.change import Change
from penstock.engine.log import Log
from penstock.errors import DiskFull, QueueFull
from tests.unit.engine.specimen import NOW, Machine


class Narrow(Machine):
    """A machine whose disk has room for so many more parts of dead letters."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def _make_room(self, size: int, settling: bool) -> None:
        del settling
        if self.parts == 0:
            raise DiskFull(f"no room for {size} bytes")
        self.parts -= 1


def fail(machine: Machine, log: Log, *payloads: bytes, **columns: Any) -> None:
    """Publish these and reject them."""
    first = log.next_offset
    machine.publish(log, *payloads, **columns)
    machine.lease(log, len(payloads))
    machine.settle(log, "reject", *range(first, log.next_offset))


def redrive(machine: Machine, log: Log, *offsets: int, to: Log | None = None) -> list[int]:
    change = Change()
    moved = dead.redrive(machine.engine, log, offsets, to, machine.now_us, change)
    machine.done(change)
    return moved


def payloads(machine: Machine, log: Log, offsets: list[int]) -> list[bytes | None]:
    return [None if found is None else found.payload for found in machine.engine.fetch(log, offsets)]


def reasons(machine: Machine, log: Log) -> list[str]:
    found = machine.engine.fetch(log, range(log.next_offset))
    return [one.headers["x-reason"] for one in found if one is not None and one.headers is not None]


# --- a queue that others name as theirs for dead letters ---


def graves(**policy: Any) -> tuple[Machine, Log, Log]:
    """A queue with messages of its own, and one that sends its dead letters there."""
    machine = Machine()
    return machine, machine.declare("work", **policy), machine.declare(dead_letter="work")


@pytest.mark.parametrize("how", ["nack", "reject", "time"])
def test_a_queue_that_others_name_loses_what_fails_in_it(how: str) -> None:
    machine, work, _ = graves(max_attempts=1)
    machine.publish(work, b"own")
    machine.lease(work)
    if how == "time":
        machine.pass_time(30)
    else:
        machine.settle(work, how, 0)
    own = machine.log("work.dlq")
    assert (work.depth, own.depth) == (0, 1)
    assert reasons(machine, own) == ["rejected" if how == "reject" else "max-attempts"]
    assert machine.engine.dead_letters(work, NOW, Change()) is own


@pytest.mark.parametrize("how", ["nack", "time"])
def test_a_letter_in_a_queue_with_a_limit_dies_again(how: str) -> None:
    machine, work, log = graves(max_attempts=1)
    fail(machine, log, b"letter")
    for _ in range(5):
        assert machine.lease(work) == [0]
        if how == "nack":
            machine.settle(work, "nack", 0, delay_us=0)
        else:
            machine.pass_time(30)
    assert work.depth == 1
    assert machine.engine.find("default", "work.dlq") is None


def test_a_rejected_letter_in_a_working_queue_goes_round() -> None:
    machine, work, log = graves()
    fail(machine, log, b"letter")
    machine.lease(work)
    machine.settle(work, "reject", 0)
    assert work.depth == 0
    assert machine.engine.find("default", "work.dlq") is None


def test_letters_and_own_messages_that_fail_together_are_mixed_up() -> None:
    machine, work, log = graves(max_attempts=1)
    machine.publish(work, b"own 0")
    fail(machine, log, b"letter 1")
    machine.publish(work, b"own 2")
    machine.lease(work, 3)
    machine.settle(work, "nack", 0, 1, 2)
    assert payloads(machine, machine.log("work.dlq"), [0, 1]) == [b"own 0", b"own 2"]
    assert (work.depth, work.group().retrying) == (1, 1)


def test_two_queues_that_name_each_other_send_letters_round() -> None:
    machine = Machine()
    one, two = machine.declare("one", dead_letter="two"), machine.declare("two", dead_letter="one")
    fail(machine, one, b"a")
    assert (one.depth, two.depth) == (0, 1)
    machine.lease(two)
    machine.settle(two, "reject", 0)
    assert (one.depth, two.depth) == (0, 0)


def test_a_message_of_its_own_is_taken_for_a_letter_that_goes_back() -> None:
    machine, work, log = graves()
    machine.publish(work, b"own")
    fail(machine, log, b"letter")
    assert redrive(machine, work, 0, 1) == [1]
    assert (work.depth, log.depth) == (1, 1)


# --- a disk that gets full in between ---


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_what_finds_no_room_behind_others_is_lost_or_takes_them_back(how: str) -> None:
    machine = Narrow(parts=1)
    log = machine.declare(max_attempts=1)
    machine.publish(log, *[b"x"] * 150)
    machine.lease(log, 150)
    machine.settle(log, how, *range(150))
    graveyard = machine.log("q.dlq")
    assert (graveyard.depth, log.depth, log.group().retrying) == (dead.BURIED_AT_ONCE, 50, 50)
    for twin in (machine.replayed(), machine.restored()):  # all of that was recorded
        assert (twin.log("q.dlq").group().ready, twin.log().depth) == (dead.BURIED_AT_ONCE, 50)
    machine.parts = 99
    machine.pass_time(10)  # their wait is over, and this is really the last time
    machine.settle(log, how, *machine.lease(log, 150))
    assert (graveyard.group().ready, log.depth) == (150, 0)


def test_the_first_part_without_room_changes_something() -> None:
    machine = Narrow(parts=0)
    log = machine.declare(max_attempts=1)
    machine.publish(log, *[b"x"] * 150)
    machine.lease(log, 150)
    before = machine.engine.encode()
    with pytest.raises(DiskFull):
        machine.settle(log, "nack", *range(150))
    assert machine.engine.encode() == before


def test_expired_messages_without_room_behind_others_are_delivered_or_lost() -> None:
    machine = Narrow(parts=1)
    log = machine.declare(on_expire="dead-letter")
    machine.publish(log, *[b"x"] * 150, expires_at=NOW + SECOND_US)
    machine.pass_time(1)
    assert (machine.log("q.dlq").depth, log.depth, machine.lease(log, 150)) == (100, 50, [])
    machine.parts = 99
    machine.pass_time(1)
    assert (machine.log("q.dlq").group().ready, log.depth, log.group().overdue) == (150, 0, set())


def test_expired_messages_of_all_logs_move_in_turns_and_are_never_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead, "BURIED_IN_A_TURN", 2)
    machine = Machine()
    logs = [machine.declare(name, on_expire="dead-letter") for name in ("a", "b")]
    for log in logs:
        machine.publish(log, *[b"x"] * 3, expires_at=NOW + SECOND_US)

    def moved() -> list[int]:
        return [3 - log.depth for log in logs]

    machine.pass_time(1)
    assert (sum(moved()), [machine.lease(log, 9) for log in logs]) == (2, [[], []])
    turns = []
    while (due_us := machine.engine.next_us) is not None:
        machine.pass_time((due_us - machine.now_us) / SECOND_US)
        turns.append(sum(moved()))
    assert (turns[0] <= 5, turns[1], moved()) == (True, 6, [3, 3])


def test_a_turn_of_expired_messages_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "BURIED_BYTES", 10)
    machine = Machine()
    log = machine.declare(on_expire="dead-letter")
    machine.publish(log, *[b"x" * 6] * 3, expires_at=NOW + SECOND_US)
    machine.pass_time(1)
    assert log.depth == 1
    machine.pass_time(dead.TURN_US / SECOND_US)
    assert log.depth == 0


# --- expired while it was handed out ---


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter"])
@pytest.mark.parametrize("how", ["nack", "reject", "give_back", "time", "restored", "replayed"])
def test_what_expired_in_somebodys_hands_dies_of_something_else(how: str, on_expire: str) -> None:
    machine = Machine()
    log = machine.declare(max_attempts=1, visibility_timeout=10, on_expire=on_expire)
    machine.publish(log, b"0", expires_at=NOW + 5 * SECOND_US)
    machine.lease(log)
    machine.pass_time(6)
    assert log.depth == 1
    if how == "time":
        machine.pass_time(4)
    elif how in ("restored", "replayed"):
        machine = getattr(machine, how)()
    else:
        machine.settle(log, how, 0)
    log = machine.log()
    assert (log.depth, log.group().ready, log.group().overdue) == (0, 0, set())
    graveyard = machine.engine.find("default", "q.dlq")
    if on_expire == "drop":
        assert graveyard is None
    else:
        assert graveyard is not None
        assert reasons(machine, graveyard) == ["expired"]


def test_a_lease_and_a_life_that_end_together_make_a_last_attempt() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=1, visibility_timeout=10)
    machine.publish(log, b"0", expires_at=NOW + 10 * SECOND_US)
    machine.lease(log)
    machine.pass_time(10)
    assert log.depth == 0
    assert machine.engine.find("default", "q.dlq") is None


def test_some_that_expired_take_others_with_them() -> None:
    machine = Machine()
    log = machine.declare(max_attempts=1, visibility_timeout=None)
    machine.publish(log, b"0", b"1", b"2", expires_at=[None, NOW + SECOND_US, None])
    machine.lease(log, 3)
    machine.pass_time(1)
    machine.settle(log, "reject", 0, 1, 2)
    graveyard = machine.log("q.dlq")
    assert payloads(machine, graveyard, [0, 1]) == [b"0", b"2"]
    assert (graveyard.depth, log.depth) == (2, 0)


# --- and back ---


def test_letters_go_back_by_priority_or_when_they_are_due() -> None:
    machine = Machine()
    log = machine.declare()
    fail(machine, log, b"0", b"1", b"2", b"3", priority=[9, 1, 5, 1])
    graveyard = machine.log("q.dlq")
    assert machine.lease(graveyard) == [1]
    machine.settle(graveyard, "nack", 1, delay_us=60 * SECOND_US)  # somebody looked at it
    assert redrive(machine, graveyard, 0, 1, 2, 3) == [0, 1, 2, 3]
    assert payloads(machine, log, [4, 5, 6, 7]) == [b"0", b"1", b"2", b"3"]
    assert (graveyard.depth, graveyard.group().retrying) == (0, 0)
    machine.pass_time(60)
    assert machine.lease(graveyard) == []


def test_a_redrive_fills_a_queue_above_its_depth() -> None:
    machine = Machine()
    log = machine.declare(max_depth=4)
    fail(machine, log, *[b"%d" % number for number in range(4)])
    machine.publish(log, b"4", b"5")
    graveyard = machine.log("q.dlq")
    assert redrive(machine, graveyard, 0, 1, 2, 3) == [0, 1]
    assert (log.depth, graveyard.depth) == (4, 2)
    before = machine.engine.encode()
    with pytest.raises(QueueFull):
        redrive(machine, graveyard, 2, 3)
    assert machine.engine.encode() == before


@pytest.mark.parametrize("overflow", ["reject", "drop-head"])
def test_a_redrive_drops_what_is_there(overflow: str) -> None:
    machine = Machine()
    log = machine.declare(max_depth=1, overflow=overflow)
    fail(machine, log, b"0")
    machine.publish(log, b"1")
    with pytest.raises(QueueFull):
        redrive(machine, machine.log("q.dlq"), 0)
    assert machine.lease(log, 9) == [1]


def test_a_redrive_fills_a_queue_above_its_bytes() -> None:
    machine = Machine()
    log = machine.declare(max_bytes=10)
    fail(machine, log, b"x" * 4)
    fail(machine, log, b"y" * 5)
    fail(machine, log, b"z" * 2)
    graveyard = machine.log("q.dlq")
    assert redrive(machine, graveyard, 0, 1, 2) == [0, 1]
    assert (log.bytes, graveyard.depth) == (9, 1)
    machine.settle(log, "ack", *machine.lease(log))
    assert redrive(machine, graveyard, 2) == [2]
    assert log.bytes == 7


@pytest.mark.parametrize("opened", ["live", "replayed", "restored"])
def test_a_redriven_message_outlives_the_queues_ttl(opened: str) -> None:
    machine = Machine()
    log = machine.declare(ttl=10)
    fail(machine, log, b"0")
    machine.pass_time(100)
    assert redrive(machine, machine.log("q.dlq"), 0) == [0]
    if opened != "live":
        machine = getattr(machine, opened)()
    machine.pass_time(9)
    assert machine.log().depth == 1
    machine.pass_time(1)
    assert (machine.log().depth, machine.lease(machine.log())) == (0, [])


def test_a_redrive_counts_the_limits_of_where_it_failed() -> None:
    machine = Machine()
    log, other = machine.declare(max_depth=1), machine.declare("other", ttl=10)
    fail(machine, log, b"0")
    fail(machine, log, b"1")
    assert redrive(machine, machine.log("q.dlq"), 0, 1, to=other) == [0, 1]
    machine.pass_time(10)
    assert (log.depth, other.depth) == (0, 0)
