"""A shelf finds what is needed and keeps nothing else."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.broker import shelf as shelves
from penstock.broker.ledger import rows_of
from penstock.broker.shelf import BATCH_OVERHEAD_BYTES, JournalShelf, MemoryShelf, Row, runs_of
from penstock.clock import ManualClock
from penstock.engine.events import Published
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.journal import Journal
from penstock.model.batch import Batch, Run
from tests.unit.journal.watched import Watched

NOW = ManualClock.START_US


def batch_at(first: int, count: int = 1, size: int = 1) -> Batch:
    payloads = [(b"%d " % (first + row)).ljust(size, b".") for row in range(count)]
    return Batch(payloads, range(first + 1, first + count + 1), NOW, 100, first=first, size=count * size)


def payload(batch: Batch | None, offset: int) -> int | None:
    """The offset that a payload says it is of."""
    return None if batch is None else int(batch.payloads[offset - batch.first].split(b" ")[0])


# --- in memory ---


def test_a_batch_goes_before_its_last_message_or_stays_after_it() -> None:
    shelf = MemoryShelf()
    shelf.put(1, batch_at(0, 3))
    shelf.put(1, batch_at(3))
    shelf.put(1, batch_at(4, 2))
    shelf.drop(1, [0, 2])
    assert [payload(shelf.get(1, offset), offset) for offset in (1, 3, 4, 5, 6)] == [1, 3, 4, 5, None]
    shelf.drop(1, range(1, 2))
    assert [payload(shelf.get(1, offset), offset) for offset in range(6)] == [None, None, None, 3, 4, 5]
    shelf.drop(1, range(3, 6))
    assert [shelf.get(1, offset) for offset in range(6)] == [None] * 6
    assert shelf.of_log(1) == {}
    assert shelf._logs[1]._starts == []


@given(st.lists(st.integers(1, 5), max_size=30), st.randoms(use_true_random=False))
def test_dropping_in_any_order_keeps_what_is_needed_and_nothing_in_the_end(
    sizes: list[int], chance: Random
) -> None:
    shelf = MemoryShelf()
    first = 0
    for size in sizes:
        shelf.put(1, batch_at(first, size))
        first += size
    left = set(range(first))
    while left:
        start = chance.choice(sorted(left))
        stop = start + 1
        while stop in left and chance.random() < 0.7:
            stop += 1
        shelf.drop(1, range(start, stop))
        left -= set(range(start, stop))
        assert all(payload(shelf.get(1, offset), offset) == offset for offset in left)
    assert (shelf.of_log(1), sum(batch is not None for batch in shelf._of(1)._batches)) == ({}, 0)


def test_dropping_of_a_log_that_nobody_published_to_fails() -> None:
    shelf = MemoryShelf()
    shelf.drop(7, [0])
    shelf.drop_log(7)
    assert shelf.get(7, 0) is None


def test_a_plain_message_is_no_batch() -> None:
    shelf = MemoryShelf()
    shelf.of_log(1)[4] = (b"x", 99, NOW)
    found = shelf.get(1, 4)
    assert found == Batch([b"x"], [99], NOW, 100, first=4)


def test_a_deleted_log_is_kept_in_memory() -> None:
    shelf = MemoryShelf()
    shelf.put(1, batch_at(0))
    shelf.put(2, batch_at(0))
    shelf.drop_log(1)
    assert (shelf.get(1, 0), payload(shelf.get(2, 0), 0)) == (None, 0)


@pytest.mark.lengthy
@pytest.mark.parametrize("short_way", [True, False])
def test_memory_grows_with_every_message_that_was_ever_there(short_way: bool) -> None:
    broker = penstock.open(clock=ManualClock())
    if not short_way:
        broker._port._express = None  # type: ignore[attr-defined]
    queue = broker.queue("q")

    def go_round(times: int) -> None:
        for _ in range(times):
            if short_way:
                queue.publish(b"x" * 100)
                delivery = queue.receive()
                assert delivery is not None
                delivery.ack()
            else:
                queue.publish_many([b"x" * 100] * 100)
                queue.ack_many(queue.receive_many(100))

    rounds = 50_000 if short_way else 1000
    go_round(rounds // 5)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    go_round(rounds)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert queue.depth() == 0
    assert grown < 500_000


# --- rows ---


@given(st.lists(st.integers(1, 4), max_size=40), st.integers(0, 40))
def test_a_row_differs_from_a_dict(counts: list[int], gone: int) -> None:
    row, plain, first = Row(), dict[int, Batch](), 0
    made = []
    for count in counts:
        batch = batch_at(first, count)
        row.append(batch)
        made.append(batch)
        plain.update(dict.fromkeys(range(first, first + count), batch))
        first += count + 1  # an offset between them is missing
    for batch in made[:gone]:
        row.drop_first()
        plain = {offset: found for offset, found in plain.items() if found is not batch}
    for offset in range(-1, first + 2):
        assert row.find(offset) is plain.get(offset)


def test_a_row_keeps_the_places_of_what_was_dropped() -> None:
    row = Row()
    for first in range(20_000):
        row.append(batch_at(first))
        if first >= 10:
            row.drop_first()
            assert len(row._starts) <= 2100
    assert row.find(19_990) is not None
    assert row.find(19_989) is None


# --- over a journal ---


class Store:
    """A journal and the shelf before it, as the broker has them."""

    def __init__(self, path: Path) -> None:
        self.files = Watched()
        self.journal = Journal(path, files=self.files, clock=ManualClock(), segment_bytes=16384)
        self.shelf = JournalShelf()
        self.shelf.journal = self.journal

    def publish(self, log: int, batch: Batch) -> None:
        self.shelf.put(log, batch)
        self.journal.append(rows_of([Published(log, batch.first, batch)]), sync=True).wait()

    def reads(self) -> int:
        return sum(1 for call in self.files.calls if call in ("pread", "preadv"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "journal")
    yield found
    found.journal.close()


def test_what_was_just_published_is_read_from_the_disk(store: Store) -> None:
    store.publish(1, batch_at(0, 5))
    before = store.reads()
    assert [payload(store.shelf.get(1, offset), offset) for offset in range(5)] == [0, 1, 2, 3, 4]
    assert store.reads() == before


def test_what_went_off_the_shelf_is_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "CACHE_BYTES", 3 * (BATCH_OVERHEAD_BYTES + 100))
    for log in (1, 2):
        for first in range(0, 60, 3):
            store.publish(log, batch_at(first, 3, 20))
    assert store.shelf._bytes <= 3 * (BATCH_OVERHEAD_BYTES + 100)
    assert sum(sum(1 for b in row._batches if b) for row in store.shelf._published.values()) <= 3
    for log in (1, 2):
        assert [payload(store.shelf.get(log, offset), offset) for offset in range(60)] == list(range(60))
    assert store.shelf.get(1, 60) is None
    assert store.shelf.get(9, 0) is None


def test_a_batch_larger_than_the_shelf_is_not_on_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "CACHE_BYTES", 10)
    store.publish(1, batch_at(0, 2, 500))
    before = store.reads()
    assert payload(store.shelf.get(1, 1), 1) == 1
    assert store.reads() == before


def test_one_who_catches_up_reads_a_section_for_each_message(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelves, "CACHE_BYTES", 1)
    for first in range(200):
        store.publish(1, batch_at(first))
    before = store.reads()
    assert [payload(store.shelf.get(1, offset), offset) for offset in range(199)] == list(range(199))
    assert 0 < store.reads() - before < 60


def test_reading_ahead_has_no_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "CACHE_BYTES", 1)
    monkeypatch.setattr(shelves, "READ_AHEAD_BYTES", 2000)
    monkeypatch.setattr(shelves, "READ_AHEAD_LOGS", 2)
    for log in (1, 2, 3):
        for first in range(30):
            store.publish(log, batch_at(first, 1, 500))
    for log in (1, 2, 3):
        assert [payload(store.shelf.get(log, offset), offset) for offset in (0, 1)] == [0, 1]
    assert list(store.shelf._read_ahead) == [2, 3]
    assert all(len(row._batches) <= 4 for row in store.shelf._read_ahead.values())
    monkeypatch.setattr(shelves, "READ_AHEAD_SECTIONS", 2)
    store.shelf.get(1, 0)
    assert len(store.shelf._read_ahead[1]._batches) == 1  # who jumps gets nothing ahead
    store.shelf.get(1, 1)
    assert len(store.shelf._read_ahead[1]._batches) == 2
    store.shelf.get(1, 20)
    assert len(store.shelf._read_ahead[1]._batches) == 1


def test_what_the_cleaner_rewrote_is_mixed_up_or_what_it_dropped_comes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelves, "CACHE_BYTES", 1)
    for first in range(0, 200, 4):
        store.publish(1, batch_at(first, 4, 200))
    alive = {offset for offset in range(200) if offset % 7 == 3 or offset > 195}
    for _ in range(2):
        store.journal.rotate()
        store.journal.snapshot(b"")
        store.publish(2, batch_at(store.journal.next_offset(2)))
    cleaned = clean(
        store.journal,
        lambda log, first, last: [
            DeadRange(offset, offset, 0)
            for offset in range(first, last + 1)
            if log == 1 and offset not in alive
        ],
    )
    assert cleaned.segments_rewritten
    for offset in range(200):
        found = payload(store.shelf.get(1, offset), offset)
        assert found == offset if offset in alive else found in (None, offset)
    lost = [offset for offset in range(196) if offset not in alive]
    found_at_once, missing = runs_of(another_shelf(store), 1, range(200))
    assert {b.first + row for b, start, stop in found_at_once for row in range(start, stop)} >= alive
    assert set(missing) <= set(lost)
    assert missing


def another_shelf(store: Store) -> JournalShelf:
    fresh = JournalShelf()
    fresh.journal = store.journal
    return fresh


def test_a_plain_message_comes_back_as_another_or_is_looked_at_by_the_collector(store: Store) -> None:
    for first in range(0, 30, 3):
        plain = batch_at(first, 1, 20)
        store.shelf.put_plain(1, first, plain.payloads[0], plain.ids[0], NOW + first)
        store.shelf.put(1, batch_at(first + 1, 2))
    for first in range(0, 30, 3):
        plain = batch_at(first, 1, 20)
        expected = Batch(plain.payloads, list(plain.ids), NOW + first, 100, first=first, size=20)
        assert store.shelf.get(1, first) == expected
        assert [payload(store.shelf.get(1, first + row), first + row) for row in (1, 2)] == [
            first + 1,
            first + 2,
        ]
    several, lost = runs_of(store.shelf, 1, range(30))
    assert ([stop - start for _, start, stop in several], lost) == ([1, 2] * 10, [])
    row = store.shelf._published[1]
    assert [type(kept) for kept in row._batches] == [bytes, Batch] * 10
    assert not any(map(gc.is_tracked, [*row._batches, *store.shelf._order]))


@pytest.mark.parametrize("wanted", [range(10), range(3, 8), [1, 2, 5], range(8, 13)])
def test_plain_messages_that_are_wanted_together_are_many_batches(
    store: Store, wanted: Sequence[int]
) -> None:
    for offset in range(10):
        store.shelf.put_plain(1, offset, b"%d " % offset, offset + 1, NOW + offset)
    store.publish(1, batch_at(10, 3))
    runs, lost = runs_of(store.shelf, 1, wanted)
    found = [
        (batch.first + row, batch.payloads[row], batch.ids[row], batch.timestamp_us[row] if isinstance(batch.timestamp_us, list) else batch.timestamp_us)
        for batch, start, stop in runs
        for row in range(start, stop)
    ]  # fmt: skip
    assert found == [
        (offset, b"%d " % offset, offset + 1, NOW + (offset if offset < 10 else 0)) for offset in wanted
    ]
    assert lost == []
    assert len(runs) == (3 if isinstance(wanted, list) else 2 if wanted[-1] > 9 else 1)


def test_plain_messages_with_a_gap_between_them_are_moved_together() -> None:
    row = Row()
    for offset in (0, 1, 5, 6):
        row.append_plain(offset, b"%d " % offset, offset + 1, NOW)
    found = [row.find(offset, 9) for offset in (0, 5)]
    assert [(batch.first, len(batch.ids)) for batch in found if batch is not None] == [(0, 2), (5, 2)]
    assert [row.find(offset, 9) for offset in (2, 4, 7)] == [None] * 3


def test_plain_messages_count_otherwise_when_they_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "CACHE_BYTES", 3000)
    for first in range(0, 60, 2):
        for log in (1, 2):
            store.shelf.put_plain(log, first, b"%d " % first, first + 1, NOW)
            store.shelf.put(log, batch_at(first + 1))
            kept = store.shelf._published.values()
            assert store.shelf._bytes == sum(row.size for row in kept) <= 3000
            assert len(store.shelf._order) == sum(
                1 for row in kept for one in row._batches if one is not None
            )
    assert [payload(store.shelf.get(log, 58), 58) for log in (1, 2)] == [58, 58]
    store.shelf.drop_log(1)
    assert store.shelf._bytes == store.shelf._published[2].size > 0
    store.shelf.drop_log(2)
    assert store.shelf._bytes == 0


def test_a_deleted_log_stays_on_the_shelf(store: Store) -> None:
    store.publish(1, batch_at(0, 2))
    store.publish(2, batch_at(0, 2))
    store.shelf.drop_log(1)
    store.shelf.drop(2, [0])
    assert list(store.shelf._published) == [2]
    assert store.shelf._bytes == 2 + BATCH_OVERHEAD_BYTES
    assert len(store.shelf._order) == 1


# --- runs ---


def test_a_batch_is_cut_where_it_need_not_be() -> None:
    shelf = MemoryShelf()
    first, second = batch_at(0, 4), batch_at(4, 4)
    shelf.put(1, first)
    shelf.put(1, second)
    assert runs_of(shelf, 1, range(1, 7)) == ([Run(first, 1, 4), Run(second, 0, 3)], [])
    assert runs_of(shelf, 1, [1, 2, 3, 4]) == ([Run(first, 1, 4), Run(second, 0, 1)], [])
    assert runs_of(shelf, 1, [2, 1, 5]) == ([Run(first, 2, 3), Run(first, 1, 2), Run(second, 1, 2)], [])
    assert runs_of(shelf, 1, []) == ([], [])


def test_a_lost_message_takes_its_neighbours_with_it() -> None:
    shelf = MemoryShelf()
    first = batch_at(0, 2)
    shelf.put(1, first)
    shelf.put(1, second := batch_at(4))
    assert runs_of(shelf, 1, range(0, 6)) == ([Run(first, 0, 2), Run(second, 0, 1)], [2, 3, 5])
