"""What was recorded is what is read back: every event through the rows of a real journal."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.broker.ledger import events_of, rows_of
from penstock.clock import ManualClock
from penstock.engine.events import Action, Declared, Event, Leased, Outcome, Produced, Published, Settled
from penstock.journal.journal import Journal
from penstock.model.batch import Batch

NOW = ManualClock.START_US
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal", clock=ManualClock()) as found:
        yield found


def read_back(journal: Journal, after: int = 0, *, payloads: bool = True) -> list[Event]:
    journal.barrier().wait()
    return [
        event
        for frame in journal.frames(after)
        for event in events_of(frame, payloads_of=lambda _log: payloads)
    ]


def record(journal: Journal, *changes: list[Event]) -> list[Event]:
    """Record changes in one frame, and read that."""
    before = journal.durable_sequence
    tickets = [journal.append(rows_of(events), sync=True, then=None) for events in changes]
    for ticket in tickets:
        ticket.wait()
    return read_back(journal, before)


# --- one form for what can be written in several ways ---


def _each(column: Any, count: int) -> list[Any]:
    return list(column) if isinstance(column, list | range) else [column] * count


def plain(event: Event) -> Any:
    """An event with every column as a list."""
    if isinstance(event, Published):
        batch = event.batch
        names = [name for name in batch.__struct_fields__ if name not in ("first", "size", "payloads")]
        columns = {name: _each(getattr(batch, name), batch.count) for name in names}
        if batch.headers is not None:
            columns["headers"] = [headers or None for headers in batch.headers]
        return event.log, event.first, batch.first, batch.payloads, columns
    if isinstance(event, Leased):
        return event._replace(offsets=list(event.offsets), attempts=_each(event.attempts, len(event.offsets)))
    if isinstance(event, Settled):
        count = len(event.offsets)
        return event._replace(
            offsets=list(event.offsets),
            attempts=_each(event.attempts, count),
            due=_each(event.due, count),
        )
    return event


# --- every event ---


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[Any], *, constant: bool = True) -> Any:
        each = st.lists(st.none() | values, min_size=count, max_size=count)
        kinds = [st.none(), each.filter(lambda found: any(one is not None for one in found))]
        return draw(st.one_of(*kinds, values) if constant else st.one_of(*kinds))

    moments = st.integers(NOW, NOW + 10**12)
    first_id = draw(st.integers(1, 2**40))
    payloads = draw(st.lists(st.binary(max_size=20), min_size=count, max_size=count))
    return Batch(
        payloads=payloads,
        ids=draw(st.sampled_from([range(first_id, first_id + count), list(range(first_id, first_id + count))])),
        timestamp_us=draw(st.one_of(moments, st.lists(moments, min_size=count, max_size=count))),
        priority=draw(st.one_of(st.integers(0, 255), st.lists(st.integers(0, 255), min_size=count, max_size=count))),
        deliver_at=column(moments),
        expires_at=column(moments),
        key=column(TEXT, constant=False),
        dedup_id=column(TEXT, constant=False),
        headers=column(st.dictionaries(TEXT, TEXT, max_size=3), constant=False),
        target_group=draw(st.none() | TEXT),
        properties=column(st.binary(max_size=9), constant=False),
        size=sum(map(len, payloads)),
    )  # fmt: skip


@st.composite
def columns_of(draw: st.DrawFn, values: st.SearchStrategy[int], count: int) -> int | list[int]:
    return draw(st.one_of(values, st.lists(values, min_size=count, max_size=count)))


@st.composite
def others(draw: st.DrawFn) -> Event:
    first, count = draw(st.integers(0, 2**40)), draw(st.integers(1, 6))
    scattered = st.lists(st.integers(0, 2**40), min_size=count, max_size=count, unique=True)
    offsets = draw(st.one_of(st.just(range(first, first + count)), scattered))
    group, consumer, time_us = draw(TEXT), draw(st.none() | TEXT), draw(st.integers(NOW, NOW + 10**12))
    attempts = draw(columns_of(st.integers(1, 9), count))
    what = draw(st.sampled_from(["leased", "settled", "declared", "produced"]))
    if what == "leased":
        return Leased(3, group, offsets, attempts, consumer, time_us)
    if what == "declared":
        return Declared(3, draw(st.sampled_from(Action)), draw(TEXT), draw(st.binary(max_size=20)), time_us)
    if what == "produced":
        return Produced(draw(TEXT), first, count, draw(st.sampled_from([0, 1, 2])), time_us)
    due = draw(st.none() | columns_of(st.integers(NOW, NOW + 10**12), count))
    outcome = draw(st.sampled_from(Outcome))
    error = draw(st.none() | TEXT)
    return Settled(
        3, group, offsets, outcome, draw(st.sampled_from([attempts, None])), due, consumer, error, time_us
    )


@pytest.mark.lengthy
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(batches() | others(), min_size=1, max_size=5))
def test_an_event_comes_back_as_another(journal: Journal, given: list[Batch | Event]) -> None:
    events: list[Event] = []
    following = journal.next_offset(3)
    for one in given:
        if isinstance(one, Batch):
            one.first = following
            following += one.count
            events.append(Published(3, one.first, one))
        else:
            events.append(one)
    found = record(journal, *[[event] for event in events])
    assert _all_rows(found) == _all_rows(events)


def _all_rows(events: list[Event]) -> list[Any]:
    """Events row by row, by kind: which of them stand together may change, what they say and its order may not."""
    rows: list[Any] = []
    for event in events:
        if isinstance(event, Published):
            log, first, _, payloads, columns = plain(event)
            for row, payload in enumerate(payloads):
                each = tuple((name, values[row]) for name, values in columns.items())
                rows.append((0, log, first + row, payload, each))
        elif isinstance(event, Declared):
            rows.append((3, event))
        elif isinstance(event, Produced):
            rows.append((4, event))
        elif isinstance(event, Leased):
            found = plain(event)
            for offset, attempt in zip(found.offsets, found.attempts, strict=True):
                rows.append((1, found._replace(offsets=offset, attempts=attempt)))
        else:
            found = plain(event)
            for offset, attempt, due in zip(found.offsets, found.attempts, found.due, strict=True):
                rows.append((2, found._replace(offsets=offset, attempts=attempt, due=due)))
    return sorted(rows, key=lambda row: row[0])  # kinds may change places, rows of a kind may not


# --- events that met in one frame ---


def single(offset: int, payload: bytes, **columns: Any) -> list[Event]:
    timestamp = columns.pop("timestamp_us", NOW + offset)
    batch = Batch([payload], [100 + offset], timestamp, 100, first=offset, size=len(payload), **columns)
    return [Published(3, offset, batch)]


def test_single_messages_of_several_callers_are_mixed_up(journal: Journal) -> None:
    found = record(
        journal,
        single(0, b"a", key=["k"]),
        single(1, b"bb", deliver_at=NOW + 9),
        single(2, b"ccc", headers=[{"h": "1"}], timestamp_us=NOW),
    )
    assert len(found) == 1
    event = found[0]
    assert isinstance(event, Published)
    assert (event.first, event.batch.first, event.batch.size) == (0, 0, 6)
    assert event.batch.payloads == [b"a", b"bb", b"ccc"]
    assert event.batch.timestamp_us == [NOW, NOW + 1, NOW]
    assert list(event.batch.ids) == [100, 101, 102]
    assert (event.batch.key, event.batch.deliver_at) == (["k", None, None], [None, NOW + 9, None])
    assert event.batch.headers == [None, None, {"h": "1"}]


def test_messages_for_different_groups_that_met_are_for_one(journal: Journal) -> None:
    found = record(
        journal,
        single(0, b"0", target_group="a"),
        single(1, b"1", target_group="a"),
        single(2, b"2"),
        single(3, b"3", target_group="b"),
    )
    assert [(e.first, e.batch.count, e.batch.target_group) for e in found if isinstance(e, Published)] == [
        (0, 2, "a"),
        (2, 1, None),
        (3, 1, "b"),
    ]
    for event in found:
        assert isinstance(event, Published)
        assert event.batch.payloads == [b"%d" % (event.first + row) for row in range(event.batch.count)]
        assert event.batch.size == event.batch.count
        assert _each(event.batch.timestamp_us, event.batch.count) == [
            NOW + event.first + row for row in range(event.batch.count)
        ]


def test_skipped_offsets_are_closed_up(journal: Journal) -> None:
    found = record(journal, single(0, b"0"), single(4, b"4"), single(5, b"5"))
    assert [(e.first, e.batch.payloads) for e in found if isinstance(e, Published)] == [
        (0, [b"0"]),
        (4, [b"4", b"5"]),
    ]


def test_leases_of_several_callers_are_one(journal: Journal) -> None:
    events: list[Event] = [
        Leased(3, "g", [4], 1, "a", NOW),
        Leased(3, "g", [2], 3, "a", NOW),
        Leased(3, "g", [9], 1, "b", NOW),
        Leased(3, "h", [9], 1, "b", NOW + 1),
    ]
    found = record(journal, *[[event] for event in events])
    assert found == [
        Leased(3, "g", [4, 2], [1, 3], "a", NOW),
        Leased(3, "g", [9], [1], "b", NOW),
        Leased(3, "h", [9], [1], "b", NOW + 1),
    ]


def test_settlements_of_several_callers_are_one(journal: Journal) -> None:
    acked = Settled(3, "g", [4], Outcome.ACKED, 1, None, None, None, NOW)
    events: list[Event] = [
        acked,
        acked._replace(offsets=[1]),
        acked._replace(offsets=[2], outcome=Outcome.RETRY, due=NOW + 5),
        acked._replace(offsets=[3], outcome=Outcome.RETRY, due=NOW + 4, error="boom"),
        acked._replace(offsets=[5], time_us=NOW + 1),
    ]
    found = record(journal, *[[event] for event in events])
    assert [(list(e.offsets), e.outcome, e.due, e.error, e.time_us) for e in found if isinstance(e, Settled)] == [
        ([4, 1], Outcome.ACKED, None, None, NOW),
        ([2], Outcome.RETRY, [NOW + 5], None, NOW),
        ([3], Outcome.RETRY, [NOW + 4], "boom", NOW),
        ([5], Outcome.ACKED, None, None, NOW + 1),
    ]  # fmt: skip


# --- lengths ---


def test_a_settlement_longer_than_a_section_is_cut_short(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_ROWS_MAX", 4)
    offsets = list(range(0, 20, 2))
    attempts = list(range(1, 11))
    settled = Settled(3, "g", offsets, Outcome.RETRY, attempts, [NOW + a for a in attempts], None, "e", NOW)
    leased = Leased(3, "g", range(10), attempts, None, NOW)
    assert [rows.count for rows in rows_of([settled])] == [4, 4, 2]
    found = record(journal, [settled, leased])
    assert (
        functools.reduce(operator.iadd, (list(e.offsets) for e in found if isinstance(e, Settled)), [])
        == offsets
    )
    assert functools.reduce(
        operator.iadd, (_each(e.due, 0) for e in found if isinstance(e, Settled)), []
    ) == [NOW + a for a in attempts]
    assert (
        functools.reduce(operator.iadd, (_each(e.attempts, 0) for e in found if isinstance(e, Leased)), [])
        == attempts
    )
    assert functools.reduce(
        operator.iadd, (list(e.offsets) for e in found if isinstance(e, Leased)), []
    ) == list(range(10))


def test_payloads_are_read_though_nobody_needs_them(journal: Journal) -> None:
    record(journal, single(0, b"abc"))
    event = read_back(journal, payloads=False)[0]
    assert isinstance(event, Published)
    assert (event.batch.payloads, event.batch.size, event.batch.count) == ([], 0, 1)


def test_a_column_of_one_value_is_written_for_each_row(journal: Journal) -> None:
    batch = Batch([b"a", b"b"], range(5, 7), NOW, 7, expires_at=NOW + 5, first=0, size=2)
    event = record(journal, [Published(3, 0, batch)])[0]
    assert isinstance(event, Published)
    assert (event.batch.priority, event.batch.timestamp_us, event.batch.expires_at) == (7, NOW, NOW + 5)
    assert (event.batch.deliver_at, event.batch.key, event.batch.headers) == (None, None, None)


# --- when it is done ---


def test_what_follows_is_done_before_it_is_durable(journal: Journal) -> None:
    done: list[tuple[int, int]] = []

    def then(number: int) -> Callable[[], None]:
        return lambda: done.append((number, journal.durable_sequence))

    tickets = [journal.append(rows_of(single(n, b"")), sync=True, then=then(n)) for n in range(3)]
    assert done == []
    sequence = tickets[2].wait()
    assert [n for n, _ in done] == [0, 1, 2]
    assert all(durable >= sequence for _, durable in done)
