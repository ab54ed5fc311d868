"""Events that belong together stay together, with what arrives when they are durable."""

from __future__ import annotations

from penstock.engine.change import Change, Content, add_row, empty_batch
from penstock.engine.events import Declared, Event
from penstock.engine.log import Log
from penstock.policy import Policy


def event(number: int) -> Event:
    return Declared(number, 1, "q", b"", 0)


def test_nothing_is_recorded_as_a_unit() -> None:
    change = Change()
    change.cut()
    assert not change
    assert change.units() == []


def test_a_cut_separates_an_event_from_what_arrives_with_it() -> None:
    change, log = Change(), Log(1, "default", "q", Policy.of())
    first, second = empty_batch(0), empty_batch(1)
    change.events.append(event(1))
    change.arrivals.append((log, 0, first))
    change.cut()
    assert change  # what was cut off still counts
    change.cut()
    change.events += [event(2), event(3)]
    change.arrivals.append((log, 5, second))
    units = change.units()
    assert [unit.events for unit in units] == [[event(1)], [event(2), event(3)]]
    assert [unit.arrivals for unit in units] == [[(log, 0, first)], [(log, 5, second)]]


def test_asking_for_units_twice_repeats_one() -> None:
    change = Change()
    change.events.append(event(1))
    assert len(change.units()) == 1
    assert len(change.units()) == 1


def test_a_row_that_is_added_loses_a_field() -> None:
    batch = empty_batch(9)
    add_row(batch, Content(1, b"abc", {"old": "1"}, "k", 3, b"p"), {"new": "1"})
    add_row(batch, Content(2, b"de", None, None, 4, None), {})
    assert (batch.payloads, batch.size, batch.timestamp_us) == ([b"abc", b"de"], 5, 9)
    assert (batch.priority, batch.key) == ([3, 4], ["k", None])
    assert (batch.headers, batch.properties) == ([{"new": "1"}, {}], [b"p", None])
    assert empty_batch(9).payloads == []


def test_messages_join_others_of_their_log_in_a_unit() -> None:
    change = Change()
    first, second = Log(1, "default", "a", Policy.of()), Log(2, "default", "b", Policy.of())
    batch = empty_batch(0)
    assert [change.add_arrival(log, 0, batch) for log in (first, second, first)] == [False, False, True]
    change.events.append(event(1))
    change.cut()
    assert not change.add_arrival(first, 1, batch)
