"""Who waits is found in order, and who has gone leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.broker.handing import alive
from penstock.broker.lines import Lines
from penstock.broker.ticket import Waiting
from penstock.engine.log import Log
from penstock.policy import Policy
from tests.conformance.unheard import UnheardClock


def log_of(name: str = "q") -> Log:
    log = Log(1, "default", name, Policy())
    log.group()
    return log


def waiting(log: Log, deadline_us: int | None = None, group: str = "default") -> Waiting:
    return Waiting((log, group), 1, None, deadline_us=deadline_us, give_up=None)


def test_one_who_left_is_served_or_leaves_twice() -> None:
    lines, log = Lines(), log_of()
    first, second, third = waiting(log), waiting(log), waiting(log)
    for one in (first, second, third):
        lines.join(one)
    assert [lines.leave(second), lines.leave(second)] == [True, False]
    assert lines.of(log, "default") == [first, third]
    assert (lines.count, log.receivers) == (2, 2)


def test_a_line_is_changed_while_somebody_walks_along_it() -> None:
    lines, log = Lines(), log_of()
    everybody = [waiting(log) for _ in range(4)]
    for one in everybody:
        lines.join(one)
    for one in lines.of(log, "default"):
        lines.leave(one)
    assert (lines.count, lines.of(log, "default")) == (0, [])


def test_those_of_one_queue_are_found_in_another() -> None:
    lines, log, other = Lines(), log_of(), log_of("other")
    log.group("second")
    mine, group, theirs = waiting(log), waiting(log, group="second"), waiting(other)
    for one in (mine, group, theirs):
        lines.join(one)
    assert lines.of_log(log) == [mine, group]
    assert lines.of(log, "second") == [group]
    assert lines.everybody() == [mine, group, theirs]
    assert (log.receivers, other.receivers) == (2, 1)


def test_an_empty_line_is_kept() -> None:
    lines = Lines()
    for number in range(100):
        one = waiting(log_of(f"reply-{number}"), deadline_us=number)
        lines.join(one)
        lines.leave(one)
    assert (lines._lines, lines._patience, lines.count) == ({}, [], 0)


def test_patience_of_one_who_left_is_waited_for() -> None:
    lines, log = Lines(), log_of()
    near, far, endless = waiting(log, 10), waiting(log, 20), waiting(log)
    for one in (far, endless, near):
        lines.join(one)
    assert lines.next_us == 10
    lines.leave(near)
    assert lines.next_us == 20
    assert list(lines.out_of_patience(19)) == []
    assert list(lines.out_of_patience(20)) == [far]
    lines.leave(far)
    assert lines.of(log, "default") == [endless]
    moment: int | None = lines.next_us  # another than before
    assert moment is None


def test_two_whose_patience_ends_together_are_compared() -> None:
    lines, log = Lines(), log_of()
    both = [waiting(log, 10), waiting(log, 10)]
    for one in both:
        lines.join(one)
    assert list(lines.out_of_patience(10)) == both


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.none() | st.integers(0, 50)), max_size=60)


@given(STEPS)
def test_lines_differ_from_a_list(steps: list[tuple[bool, int, int | None]]) -> None:
    lines, logs, here = Lines(), [log_of("a"), log_of("b")], list[Waiting]()
    for comes, pick, deadline_us in steps:
        if comes:
            here.append(waiting(logs[pick % 2], deadline_us))
            lines.join(here[-1])
        elif here:
            assert lines.leave(here.pop(pick % len(here)))
        for log in logs:
            assert lines.of(log, "default") == [one for one in here if one.place[0] is log]
            assert log.receivers == len(lines.of(log, "default"))
        moments = [one.deadline_us for one in here if one.deadline_us is not None]
        assert (lines.count, lines.next_us) == (len(here), min(moments, default=None))


# --- in a broker ---


def test_a_deleted_queue_on_which_somebody_waited_is_kept_in_memory() -> None:
    clock = UnheardClock()
    broker = penstock.open(clock=clock)
    port: Any = broker._port
    kept = []
    for number in range(10):
        queue = broker.queue(f"reply-{number}")
        kept.append(weakref.ref(alive(queue._log)))
        ticket: Any = port.lease(queue._log, "default", 1, wait_us=1000)
        clock.advance(1)
        port.wake()
        assert ticket.wait() is None
        broker.delete_queue(queue.name)
        del queue, ticket
    gc.collect()
    assert [ref() for ref in kept] == [None] * 10
    broker.close()


def test_a_queue_on_which_nobody_waits_any_more_is_looked_at() -> None:
    clock = UnheardClock()
    broker = penstock.open(clock=clock)
    port: Any = broker._port
    for number in range(10):
        queue = broker.queue(f"q{number}")
        port.lease(queue._log, "default", 1, wait_us=1000)
    assert [broker.queue("q3").stats().waiting, port.monitor.lines.count] == [1, 10]
    clock.advance(1)
    port.wake()
    assert (port.monitor.lines._lines, port.monitor.lines._patience, port.monitor.lines.count) == ({}, [], 0)
    assert all(log.plain for log in port.monitor.engine.logs.values())  # their short ways are open
    broker.close()
