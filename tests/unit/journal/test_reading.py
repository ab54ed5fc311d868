"""Reading by offset, by time and by frame, from inside and from another process's view, and across damage."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.errors import CorruptJournal, InvalidArgument, MaintenanceFailed
from penstock.journal import JournalReader, reading
from penstock.journal import mark as marks
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.directory import SUMMARY
from penstock.journal.files import Answer, Files
from penstock.journal.journal import Journal, OwnerView
from penstock.journal.mark import Mark
from penstock.journal.rows import Rows, messages
from penstock.journal.segment import START
from penstock.journal.state import DAMAGED
from penstock.journal.view import DirectoryView, View
from penstock.model.damage import MISSING
from tests.unit.journal.specimen import batch, flip
from tests.unit.journal.watched import Watched, nothing

ViewOf = Callable[[Journal], View]


@pytest.fixture(params=["owner", "outside"])
def view_of(request: pytest.FixtureRequest) -> ViewOf:
    """The two ways of looking at a journal, which must see the same."""
    if request.param == "owner":
        return OwnerView
    return lambda journal: DirectoryView(journal.directory.path)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal", segment_bytes=1 << 15) as opened:
        yield opened


def timed(log: int, offset: int, count: int, timestamp: int) -> Rows:
    return messages(
        log,
        [b"%d/%d" % (log, offset + n) for n in range(count)],
        ids=range(offset, offset + count),
        timestamp=timestamp,
    )


def fill(journal: Journal, commits: int = 400) -> dict[int, list[bytes]]:
    """Log 1 densely, log 2 now and then, log 3 twice."""
    expected: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for n in range(commits):
        rows = [timed(1, len(expected[1]), 1 + n % 4, n * 10)]
        if n % 50 == 7:
            rows.append(timed(2, len(expected[2]), 1, n * 10))
        if n in (3, commits - 2):
            rows.append(timed(3, len(expected[3]), 2, n * 10))
        for r in rows:
            start = len(expected[r.log])
            expected[r.log] += [b"%d/%d" % (r.log, start + i) for i in range(r.count)]
        journal.commit(rows)
    return expected


def payloads(view: View, log: int, offset: int = 0) -> list[bytes]:
    return [bytes(p) for found in reading.batches(view, log, offset) for p in found.values("payload")]


def test_every_log_is_read_from_every_offset(journal: Journal, view_of: ViewOf) -> None:
    expected = fill(journal)
    assert len(journal.segments()) > 2
    view = view_of(journal)
    for log, all_of_it in expected.items():
        for offset in range(0, len(all_of_it) + 2, 1 if log > 1 else 37):
            assert payloads(view, log, offset) == all_of_it[offset:]
    assert payloads(view, 99) == []


def test_the_first_message_at_a_time_is_found(journal: Journal, view_of: ViewOf) -> None:
    fill(journal)
    view = view_of(journal)
    times = [
        (o, t)
        for b in reading.batches(view, 1)
        for o, t in zip(b.offsets, b.values("timestamp"), strict=True)
    ]
    for wanted in (-5, 0, 1, 10, 1995, 2000, 3990):
        assert reading.offset_at(view, 1, wanted) == next(o for o, t in times if t >= wanted)
    assert reading.offset_at(view, 1, 1 << 60) is None
    assert reading.offset_at(view, 3, 31) == 2
    assert reading.offset_at(view, 99, 0) is None


def test_a_time_is_found_though_the_clock_went_back(journal: Journal, view_of: ViewOf) -> None:
    stamps = [100, 200, 50, 60, 300, 10]
    for n, stamp in enumerate(stamps):
        journal.commit([timed(1, n, 1, stamp)])
    view = view_of(journal)
    for wanted in (0, 55, 100, 150, 250, 300):
        assert reading.offset_at(view, 1, wanted) == next(
            n for n, stamp in enumerate(stamps) if stamp >= wanted
        )


def test_frames_are_read_behind_a_sequence_number(journal: Journal, view_of: ViewOf) -> None:
    fill(journal)
    view = view_of(journal)
    last = journal.stats().sequence
    for after in (0, 1, 57, 300, last - 1, last):
        assert [frame.sequence for frame in reading.frames(view, after)] == list(range(after + 1, last + 1))


def test_reading_again_goes_on_where_the_journal_has_grown(journal: Journal, view_of: ViewOf) -> None:
    view = view_of(journal)
    seen: list[bytes] = []
    for round_ in range(30):
        journal.commit([timed(1, round_ * 20, 20, round_)])
        seen += payloads(view, 1, len(seen))
    assert seen == [b"1/%d" % n for n in range(600)]


def test_a_reader_goes_on_when_its_segment_is_dropped_rewritten_and_recycled(
    journal: Journal, view_of: ViewOf
) -> None:
    fill(journal)
    view = view_of(journal)
    iterator = reading.batches(view, 1)
    seen = [offset for _ in range(3) for offset in next(iterator).offsets]
    journal.snapshot(b"")
    journal.commit([timed(5, 0, 1, 0)])
    journal.snapshot(b"")
    done = clean(journal, lambda log, first, last: [DeadRange(first, last, 1)] if log == 1 else [])
    assert done.segments_dropped + done.segments_rewritten > 2
    for n in range(300):
        journal.commit([timed(6, n * 10, 10, 0)])
    seen += [offset for found in iterator for offset in found.offsets]
    assert seen == sorted(set(seen))
    assert payloads(view, 3) == [b"3/%d" % n for n in range(4)]
    assert journal.damage == []


def test_damage_is_found_when_it_is_first_read_and_everything_around_it_is_served(tmp_path: Path) -> None:
    """A snapshot covers the segment, so that opening does not look into it."""
    for position in (10, 70, 200):  # a frame's header, its section's header, its payloads
        path = tmp_path / str(position)
        with Journal(path, segment_bytes=4096) as journal:
            for n in range(60):
                journal.commit([batch(1, n * 3, 3), batch(2, n, 1)])
            journal.snapshot(b"")
            frame = next(f for f in journal.frames() if f.sequence == 5)
        flip(path / f"{1:020d}.segment", (frame.header.position + position) * 8)
        with Journal(path, segment_bytes=4096) as journal:
            assert journal.damage == []
            read = [offset for found in journal.read(1) for offset in found.offsets]
            assert read == [n for n in range(180) if n not in (9, 10, 11)]
            (damage,) = journal.damage
            assert sorted(damage.spans) == [(1, 9, 11), (2, 3, 3)]
            assert damage.messages == journal.stats().damaged_messages == 4
            assert (path / "quarantine" / str(damage.copy)).stat().st_size == damage.bytes
            list(journal.read(2))
            assert len(journal.damage) == 1
        with Journal(path, segment_bytes=4096) as journal:
            assert [d.spans for d in journal.damage] == [damage.spans], (
                "later owners know it from the summary"
            )
            assert journal.recovery.end == "clean", "it is on record, and not found again"


def test_a_segment_deleted_under_its_owner_is_reported_and_skipped(journal: Journal) -> None:
    fill(journal)
    victim = journal.segments()[1]
    journal.directory.segment(victim.number).unlink()
    read = [offset for found in journal.read(1) for offset in found.offsets]
    lost = victim.index.logs[1]
    assert read == [n for n in range(journal.next_offset(1)) if not lost.first <= n <= lost.last]
    (damage,) = journal.damage
    assert damage.what == MISSING
    assert (1, lost.first, lost.last) in damage.spans
    after = {log: journal.next_offset(log) for log in (1, 2, 3)}
    journal.close()
    with Journal(journal.directory.path, segment_bytes=1 << 15) as again:
        assert again.recovery.end == "clean", "it is on record, and not found again"
        assert {log: again.next_offset(log) for log in after} == after
        assert range(lost.first, lost.last + 1) in list(again.state.cleaned[1][DAMAGED])


def test_an_outside_reader_without_a_mark_reads_what_is_sealed(journal: Journal) -> None:
    expected = fill(journal)
    (journal.directory.path / "mark").unlink()
    found = payloads(DirectoryView(journal.directory.path), 1)
    sealed = sum(info.index.logs[1].rows for info in journal.segments()[:-1])
    assert found == expected[1][:sealed]


def test_a_batch_gives_columns_from_the_offset_that_was_asked_for(journal: Journal) -> None:
    journal.commit([timed(1, 0, 10, 5)])
    (found,) = journal.read(1, 7)
    assert len(found) == 3
    assert list(found.offsets) == [7, 8, 9]
    assert [bytes(p) for p in found.values("payload")] == [b"1/7", b"1/8", b"1/9"]
    assert list(found.values("timestamp")) == [5, 5, 5]
    assert list(found.values("key")) == [None] * 3


def test_an_outside_reader_sees_logs_times_frames_and_the_mark(journal: Journal) -> None:
    expected = fill(journal)
    reader = JournalReader(journal.directory.path)
    assert reader.logs() == {log: (0, len(found) - 1) for log, found in expected.items()}
    assert [bytes(p) for found in reader.read(2, 3) for p in found.values("payload")] == expected[2][3:]
    assert reader.offset_at(1, 2000) == journal.offset_at(1, 2000)
    assert reader.mark().sequence == journal.durable_sequence == list(reader.frames())[-1].sequence
    assert reader.damage == []


def test_a_directory_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(CorruptJournal, match="not a journal"):
            JournalReader(path)
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_damage_is_examined_does_not_reach_its_reader(tmp_path: Path) -> None:
    """The damage is read by somebody; to say what it cost, the segment's start is read as well, and the disk refuses that."""

    class Refusing(Files):
        armed = False

        def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
            if self.armed and operation is os.pread and arguments[2] == START:
                raise OSError(errno.EIO, "unreadable")
            return operation(*arguments)

    files = Refusing()
    with Journal(tmp_path, files=files) as journal:
        for n in range(6):
            journal.commit([messages(1, [b"%d" % n * 70_000], ids=n, timestamp=n)])
        journal.rotate()
        third = list(journal.frames())[4]
        flip(tmp_path / f"{1:020d}.segment", (third.header.position + 3) * 8)
        files.armed = True
        assert [o for found in journal.read(1, 3) for o in found.offsets] == [4, 5]
        assert [damage.position for damage in journal.damage] == [third.header.position]


def test_a_directory_that_never_stands_still_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOKS_MAX", 20)
    looks: list[Mark] = []

    class Moving(Files):
        """Before each look at the mark, it names a segment that is not there yet."""

        def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
            if operation is os.open and str(arguments[0]).endswith("mark"):
                looks.append(Mark(100 + len(looks), 100 + len(looks), START, 0, 1))
                (tmp_path / "mark").write_bytes(marks.encode(looks[-1]))
            return operation(*arguments)

    with Journal(tmp_path) as journal:
        journal.commit([batch(1, 0, 1)])
    with pytest.raises(MaintenanceFailed, match="20 looks"):
        JournalReader(tmp_path, Moving()).mark()


def test_looking_again_reads_no_header_of_a_sealed_segment_that_is_as_it_was(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for n in range(5):
            journal.commit([batch(1, n, 1)])
            journal.rotate()
        files = Watched()
        reader = JournalReader(tmp_path, files)
        reader.mark()
        files.calls.clear()
        reader.mark()
        assert files.calls.count("open") < 5, "the mark, the segment that is written, its summary"
        for n in range(2):
            journal.commit([batch(2, n, 1)])
            journal.snapshot(b"")
        clean(journal, lambda log, first, last: [DeadRange(first, first, 1)] if log == 1 else [])
        assert [o for found in reader.read(1) for o in found.offsets] == []


def busy(journal: Journal, *, summaries: bool = True) -> None:
    """What an owner may do while a reader rests: write on, rotate, and rewrite the segment that the reader's mark names."""
    for n in range(20, 400):
        journal.commit([messages(1, [b"%03d" % n * (20 + n % 7)], ids=n, timestamp=0)], sync=False)
    journal.rotate()
    for n in range(2):
        journal.commit([timed(2, n, 1, 0)])
        journal.snapshot(b"")

    def dead(log: int, first: int, last: int) -> list[DeadRange]:
        return [DeadRange(n, n, 1) for n in range(first, last + 1) if n % 3] if log == 1 else []

    assert clean(journal, dead).segments_rewritten == 1
    if not summaries:
        for summary in journal.directory.path.glob("*.summary"):
            summary.unlink()


def twenty(path: Path) -> Journal:
    journal = Journal(path, segment_bytes=1 << 20)
    for n in range(20):
        journal.commit([messages(1, [b"%03d" % n * 20], ids=n, timestamp=0)])
    return journal


@pytest.mark.parametrize("summaries", [True, False])
def test_an_outside_reader_whose_mark_is_of_a_segments_earlier_life_reports_no_rot(
    tmp_path: Path, summaries: bool
) -> None:
    with twenty(tmp_path) as journal:
        files = Watched()
        reader = JournalReader(tmp_path, files)

        def before(name: str, arguments: tuple[object, ...]) -> None:
            if name == "_entries":  # it has read the mark, and not yet the names
                files.before = nothing
                busy(journal, summaries=summaries)

        files.before = before
        read = [o for found in reader.read(1) for o in found.offsets]
        assert reader.damage == []
        assert read == list(range(0, 400, 3))


def test_an_owners_reader_whose_mark_is_of_a_segments_earlier_life_reports_no_rot(tmp_path: Path) -> None:
    class Resting(OwnerView):
        rests = 0

        def refresh(self) -> Mark:
            mark = super().refresh()
            self.rests += 1
            if self.rests == 1:
                busy(self._journal)
            return mark

    with twenty(tmp_path) as journal:
        read = [o for found in reading.batches(Resting(journal), 1) for o in found.offsets]
        assert journal.damage == []
        assert read == list(range(0, 400, 3))


def test_arguments_that_are_no_numbers_are_refused_before_anything_is_read(
    journal: Journal, view_of: ViewOf
) -> None:
    view = view_of(journal)
    wrong: Any = "x"
    calls: list[Callable[[], object]] = [
        lambda: reading.batches(view, wrong),
        lambda: reading.batches(view, 1, wrong),
        lambda: reading.batches(view, 1, None),  # type: ignore[arg-type]
        lambda: reading.frames(view, wrong),
        lambda: reading.offset_at(view, wrong, 0),
        lambda: reading.offset_at(view, 1, wrong),
        lambda: journal.next_offset(wrong),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="whole number"):
            call()


def test_an_outside_reader_still_reads_after_its_process_went_to_another_directory(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(journal, 5)
    monkeypatch.chdir(tmp_path)
    reader = JournalReader("journal")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [bytes(p) for found in reader.read(1) for p in found.values("payload")] == expected[1]


def test_a_look_that_was_spoilt_halfway_does_not_make_a_rewritten_segment_missing(tmp_path: Path) -> None:
    """The first look sees that both segments were exchanged, and is spoilt by segment 1, which goes just then; the second must still know."""
    with Journal(tmp_path) as journal:

        def cleaned(live: int) -> int:
            for _ in range(2):
                journal.commit([timed(9, 0, 1, 0)])
                journal.snapshot(b"")
            dead = {1: 10 - live, 2: 8}
            done = clean(
                journal, lambda log, first, last: [DeadRange(0, dead[log] - 1, 1)] if log in dead else []
            )
            return done.segments_dropped + done.segments_rewritten

        for log in (1, 2):
            journal.commit([timed(log, 0, 10, 0)])
            journal.rotate()
        files = Watched()
        reader = JournalReader(tmp_path, files)
        assert [o for found in reader.read(2) for o in found.offsets] == list(range(10))
        assert cleaned(live=2) == 2
        journal.directory.file(1, SUMMARY).unlink()  # as if it were not written yet
        opened: list[int] = []

        def before(name: str, arguments: tuple[object, ...]) -> None:
            if name == "open" and str(arguments[0]) == str(journal.directory.segment(1)):
                opened.append(len(opened))
                if len(opened) == 2:  # its header is known, and now it is to be scanned
                    assert cleaned(live=0) == 1

        files.before = before
        assert [o for found in reader.read(2) for o in found.offsets] == [8, 9]
        assert len(opened) > 1
        assert reader.damage == []
