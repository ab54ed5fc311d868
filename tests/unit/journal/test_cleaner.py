"""What is said to be dead goes, what is not stays, and what went is on record."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidArgument, MaintenanceFailed
from penstock.journal.cleaner import Dead, DeadRange, clean
from penstock.journal.columns import Type
from penstock.journal.journal import Journal
from penstock.journal.kinds import MESSAGES, SETTLEMENTS, Kind
from penstock.journal.rows import Rows, messages
from penstock.journal.tail import Durability
from penstock.limits import COMMIT_INTERVAL_MS_MAX
from penstock.model.damage import STATE
from tests.unit.journal.specimen import batch, flip
from tests.unit.journal.watched import Order, Watched, failing, nothing

SETTLED = 1


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal", segment_bytes=4096) as opened:
        yield opened


def fill(journal: Journal, commits: int = 60) -> None:
    for n in range(commits):
        ack = Rows(SETTLEMENTS, 1, 1, {"group": "g", "offset": n, "outcome": 1, "time": n})
        journal.commit([batch(1, n * 3, 3), batch(2, n, 1), ack])


def cover(journal: Journal) -> None:
    """Two snapshots, so that rows which are not messages need no keeping."""
    for n in range(2):
        journal.commit([batch(9, n, 1)])
        journal.snapshot(b"state")


def below(limits: dict[int, int]) -> Dead:
    def dead(log: int, first: int, last: int) -> list[DeadRange]:
        return [DeadRange(first, min(last, limits[log] - 1), SETTLED)] if limits.get(log, 0) > first else []

    return dead


def offsets(journal: Journal, log: int) -> list[int]:
    return [offset for found in journal.read(log) for offset in found.offsets]


def everything(log: int, first: int, last: int) -> list[DeadRange]:
    return [DeadRange(first, last, SETTLED)]


def test_dead_segments_are_dropped_and_what_went_is_on_record(journal: Journal) -> None:
    fill(journal)
    cover(journal)
    before = journal.stats()
    numbers = {info.number for info in journal.segments()}
    done = clean(journal, everything)
    assert done.segments_dropped > 3
    assert len(numbers - {info.number for info in journal.segments()}) == done.segments_dropped
    assert done.messages == before.messages - journal.stats().messages
    for log, next_offset in ((1, 180), (2, 60)):
        left = offsets(journal, log)
        gone = set(range(next_offset)) - set(left)
        recorded = journal.state.cleaned[log][SETTLED]
        assert all(offset in recorded for offset in gone)
        assert not any(offset in recorded for offset in left)


def test_what_is_not_said_to_be_dead_stays(journal: Journal) -> None:
    fill(journal)
    cover(journal)
    assert clean(journal, lambda log, first, last: []).segments_dropped == 0
    assert offsets(journal, 1) == list(range(180))


def test_nothing_goes_before_both_snapshots_cover_it(journal: Journal) -> None:
    def dropped() -> int:
        return clean(journal, everything).segments_dropped

    fill(journal, 1)
    journal.snapshot(b"")
    fill(journal, 30)
    assert dropped() == 0
    journal.snapshot(b"")
    assert dropped() == 0, "two are there, and only the newer one covers anything"
    segments = len(journal.segments())
    fill(journal, 30)
    journal.snapshot(b"")
    assert dropped() == segments - 1, "what the older one covers, and no more"


def test_a_mostly_dead_segment_is_rewritten_and_keeps_what_is_live(journal: Journal, tmp_path: Path) -> None:
    fill(journal)
    payloads = {
        o: bytes(p) for b in journal.read(2) for o, p in zip(b.offsets, b.values("payload"), strict=True)
    }
    ids = {o: i for b in journal.read(2) for o, i in zip(b.offsets, b.values("id"), strict=True)}
    cover(journal)
    bytes_before = journal.stats().bytes
    done = clean(journal, below({1: 180}))
    assert done.segments_rewritten > 3
    assert journal.stats().bytes < bytes_before * 0.7
    active = journal.segments()[-1].index.logs[1].first if 1 in journal.segments()[-1].index.logs else 180
    assert [offset for offset in offsets(journal, 1) if offset < active] == []
    after = {
        o: bytes(p) for b in journal.read(2) for o, p in zip(b.offsets, b.values("payload"), strict=True)
    }
    assert after == payloads
    assert {o: i for b in journal.read(2) for o, i in zip(b.offsets, b.values("id"), strict=True)} == ids
    assert clean(journal, below({1: 180})).segments_rewritten == 0, "there is nothing left to do"
    journal.close()
    with Journal(tmp_path / "journal", segment_bytes=4096) as again:
        assert again.damage == []
        assert offsets(again, 2) == list(range(60))


def test_a_segment_is_rewritten_again_and_then_dropped(journal: Journal) -> None:
    fill(journal)
    cover(journal)
    clean(journal, below({1: 180}))
    segments = journal.stats().segments
    assert clean(journal, below({1: 180, 2: 50})).segments_dropped > 0
    assert journal.stats().segments < segments
    assert offsets(journal, 2) == list(range(min(offsets(journal, 2)), 60))
    assert min(offsets(journal, 2)) <= 50


def test_cleaned_is_told_from_lost_after_reopening(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=4096) as journal:
        fill(journal)
        cover(journal)
        clean(journal, everything)
        cleaned = {log: outcomes[SETTLED] for log, outcomes in journal.state.cleaned.items()}
    for snapshot in tmp_path.glob("*.snapshot"):
        snapshot.unlink()  # it is also in the frames
    with Journal(tmp_path, segment_bytes=4096) as journal:
        assert [damage.what for damage in journal.damage] == [STATE], "what the snapshots held is gone"
        assert {log: journal.state.cleaned[log][SETTLED] for log in cleaned} == cleaned
        assert journal.stats().damaged_messages == 0
        assert journal.next_offset(1) >= 180


def test_payloads_stay_shared_only_among_sections_that_keep_the_same_rows(journal: Journal) -> None:
    for n in range(40):
        first = messages(1, [b"x%d" % n * 50, b"y"], ids=range(2), timestamp=n)
        others = [messages(log, first, ids=range(2), timestamp=n) for log in (2, 3, 4)]
        journal.commit([first, *others])
    cover(journal)

    def dead(log: int, first: int, last: int) -> list[DeadRange]:
        if log == 1:
            return [DeadRange(first, last, SETTLED)]
        if log == 2:
            return [DeadRange(n, n, SETTLED) for n in range(first, last + 1) if n % 2]
        return [DeadRange(first, last, SETTLED)] if log == 4 else []

    clean(journal, dead)
    for log, wanted in ((2, range(0, 80, 2)), (3, range(80))):
        found = {
            o: bytes(p)
            for b in journal.read(log)
            for o, p in zip(b.offsets, b.values("payload"), strict=True)
        }
        for offset in wanted:
            assert found[offset] == (b"y" if offset % 2 else b"x%d" % (offset // 2) * 50)


def test_dropped_segments_are_recycled_and_used_again(journal: Journal) -> None:
    fill(journal)
    cover(journal)
    clean(journal, everything)
    assert journal.stats().free_segments == 2
    assert len(list(journal.directory.path.glob("*.free"))) == 2
    fill(journal, 30)
    assert journal.stats().free_segments == 0
    assert any(info.label.recycled for info in journal.segments())
    assert offsets(journal, 2)[-30:] == list(range(60, 90))


def test_a_damaged_segment_is_left_alone(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=4096) as journal:
        fill(journal)
    flip(tmp_path / f"{1:020d}.segment", 300 * 8)
    with Journal(tmp_path, segment_bytes=4096) as journal:
        assert journal.damage
        cover(journal)
        clean(journal, everything)
        assert journal.segments()[0].number == 1


@pytest.mark.parametrize(
    "fault", [lambda: failing("rename", errno.EIO, times=1), lambda: failing("unlink", errno.EIO, times=1)]
)
def test_an_error_while_cleaning_is_not_the_journals_end(tmp_path: Path, fault: Callable[[], object]) -> None:
    files = Watched()
    with Journal(tmp_path, segment_bytes=4096, files=files) as journal:
        fill(journal)
        cover(journal)
        files.before = fault()  # type: ignore[assignment]
        with pytest.raises(MaintenanceFailed):
            clean(journal, everything)
        files.before = nothing
        journal.commit([batch(1, 180, 1)])
        clean(journal, everything)
    with Journal(tmp_path, segment_bytes=4096) as journal:
        assert journal.damage == []
        assert offsets(journal, 1)[-1] == 180


def test_what_was_recorded_but_not_dropped_is_dropped_the_next_time(tmp_path: Path) -> None:
    """Also in a segment that was rewritten before, where recorded offsets may be there or not."""
    files = Watched()
    with Journal(tmp_path, segment_bytes=4096, files=files) as journal:
        fill(journal)
        cover(journal)
        assert clean(journal, below({1: 180})).segments_rewritten > 3
        files.before = failing("unlink", errno.EIO, times=1, path=".segment")
        with pytest.raises(MaintenanceFailed):
            clean(journal, everything)
        files.before = nothing
    with Journal(tmp_path, segment_bytes=4096) as journal:
        cover(journal)
        clean(journal, everything)
        assert [
            info.index.messages for info in journal.segments() if info.sealed and 2 in info.index.logs
        ] == []
        assert journal.damage == []


def test_rot_that_nobody_has_found_yet_is_never_rewritten_away(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=1 << 20) as journal:
        for n in range(20):
            journal.commit([batch(1, n * 3, 3), batch(2, n, 1)])
        frame = list(journal.frames())[15]
        journal.rotate()
        cover(journal)
    flip(tmp_path / f"{1:020d}.segment", (frame.header.end - 30) * 8)
    with Journal(tmp_path, segment_bytes=1 << 20) as journal:
        assert journal.damage == [], "a snapshot covers it: opening does not look"
        clean(journal, below({1: 60}))
        (damage,) = journal.damage
        assert (damage.segment, damage.position) == (1, frame.header.position)
        assert damage.messages == 1, "the other three are on record as cleaned"
        assert journal.segments()[0].index.messages == 80, "it was left alone"


def test_rewriting_keeps_payloads_shared_when_their_first_holder_is_dead(journal: Journal) -> None:
    for n in range(30):
        first = messages(1, [bytes([n]) * 500, b"y"], ids=range(2), timestamp=n)
        journal.commit([first, *(messages(log, first, ids=range(2), timestamp=n) for log in range(2, 12))])
    cover(journal)
    before = journal.stats().bytes
    clean(journal, lambda log, first, last: [DeadRange(first, last, SETTLED)] if log < 8 else [])
    assert journal.stats().bytes < before
    for log in (8, 10, 11):
        found = [bytes(p) for b in journal.read(log) for p in b.values("payload")]
        assert found == [p for n in range(30) for p in (bytes([n]) * 500, b"y")]


def test_columns_of_a_newer_version_are_not_rewritten_away(tmp_path: Path) -> None:
    columns = {name: field.type for name, field in MESSAGES.fields.items()}
    newer = Kind(
        MESSAGES.number,
        "messages",
        place="offset",
        time="timestamp",
        columns={**columns, "colour": Type.UTF8},
    )
    with Journal(tmp_path) as journal:
        for n in range(10):
            row = {"offset": n, "id": n, "timestamp": n, "payload": b"x" * 50, "colour": f"colour {n}"}
            journal.commit([Rows(newer, 1, 1, row)])
        journal.rotate()
        cover(journal)
        segment = tmp_path / f"{1:020d}.segment"
        before = segment.read_bytes()
        assert clean(journal, below({1: 8})).segments_rewritten == 0
        assert segment.read_bytes() == before
        assert list(tmp_path.glob("*.tmp")) == []
        assert clean(journal, everything).segments_dropped == 1, "what is dead as a whole goes all the same"


def test_a_rewrite_that_fails_leaves_no_draft(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, segment_bytes=4096, files=files) as journal:
        fill(journal)
        cover(journal)
        files.before = failing("rename", errno.EIO, path=".segment.tmp")
        with pytest.raises(MaintenanceFailed):
            clean(journal, below({1: 180}))
        assert list(tmp_path.glob("*.tmp")) == []
        files.before = nothing
        assert clean(journal, below({1: 180})).segments_rewritten > 3


def test_the_owner_reads_everything_live_at_every_moment_of_a_cleaning(tmp_path: Path) -> None:
    """Another thread reads just when a file has got its new name, or has lost the old one."""
    files = Watched()
    with Journal(tmp_path, segment_bytes=4096, files=files) as journal:
        fill(journal)
        cover(journal)
        reads: list[list[int]] = []
        threads: list[threading.Thread] = []

        def after(name: str, arguments: tuple[object, ...]) -> None:
            if name in ("rename", "unlink") and ".segment" in str(arguments[0]):
                threads.append(threading.Thread(target=lambda: reads.append(offsets(journal, 2))))
                threads[-1].start()
                threads[-1].join(0.05)  # it may have to wait for us

        files.after = after
        done = clean(journal, below({1: 180, 2: 20}))
        files.after = nothing
        for thread in threads:
            thread.join()
        assert done.segments_dropped > 1
        assert done.segments_rewritten > 1
        assert len(reads) == done.segments_dropped + done.segments_rewritten
        assert all(read[-40:] == list(range(20, 60)) for read in reads)
        assert journal.damage == []
        assert journal.stats().damaged_messages == 0


def test_a_callback_that_wants_the_journal_tidied_is_refused_and_does_not_hang(journal: Journal) -> None:
    fill(journal)
    cover(journal)
    refused: list[InvalidArgument] = []

    def dead(log: int, first: int, last: int) -> list[DeadRange]:
        for what in (lambda: journal.snapshot(b""), lambda: clean(journal, everything), journal.close):
            with pytest.raises(InvalidArgument, match="until cleaning is done") as error:
                what()
            refused.append(error.value)
        journal.commit([batch(9, 0, 1)])
        return []

    clean(journal, dead)
    assert refused
    journal.snapshot(b"")
    assert clean(journal, everything).segments_dropped > 0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        [(0, 0, 1)],
        [(0,)],
        [None],
        [DeadRange(0, 0, -1)],
        [DeadRange(0, 0, 2**15)],
        [DeadRange("a", 0, 1)],  # type: ignore[arg-type]
        [DeadRange(0, 0.5, 1)],  # type: ignore[arg-type]
        [DeadRange(0, 0, None)],  # type: ignore[arg-type]
    ],
)
def test_an_answer_of_the_callback_that_cannot_be_meant_is_refused(journal: Journal, answer: Any) -> None:
    fill(journal)
    cover(journal)
    with pytest.raises(InvalidArgument, match="`dead` returns|an outcome is"):
        clean(journal, lambda log, first, last: answer)
    assert journal.state.cleaned == {}
    assert clean(journal, everything).segments_dropped > 0


def test_used_files_that_somebody_removed_do_not_stop_the_journal(journal: Journal) -> None:
    fill(journal)
    cover(journal)
    clean(journal, everything)
    free = sorted(journal.directory.path.glob("*.free"))
    assert len(free) == 2
    free[0].unlink()
    fill(journal, 6)
    assert journal.stats().free_segments == 0
    assert any(info.label.recycled for info in journal.segments()), "the other one is used"
    assert offsets(journal, 2)[-6:] == list(range(60, 66))


def test_a_used_file_stays_one_if_it_could_not_be_used(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, segment_bytes=4096, files=files) as journal:
        fill(journal)
        cover(journal)
        clean(journal, everything)
        files.before = failing("fdatasync", errno.ENOSPC, times=1)
        journal.rotate()  # on a full disk it goes on in the segment that it has
        files.before = nothing
        assert journal.stats().free_segments == 2
        fill(journal, 30)
        assert journal.stats().free_segments == 0


@pytest.mark.parametrize("durability", ["os", "interval"])
def test_what_is_dropped_is_on_record_on_the_disk_before(tmp_path: Path, durability: Durability) -> None:
    files = Watched()
    with Journal(
        tmp_path, files=files, durability=durability, commit_interval_ms=COMMIT_INTERVAL_MS_MAX
    ) as journal:
        journal.commit([batch(1, 0, 3)])
        journal.rotate()
        cover(journal)
        order = Order()
        synced: list[bool] = []

        def before(name: str, arguments: tuple[object, ...]) -> None:
            order(name, arguments)
            if name == "unlink" and str(arguments[0]).endswith(".segment"):
                written = max(order.last("pwrite", "2.segment"), order.last("pwritev", "2.segment"))
                synced.append(order.last("fdatasync", "2.segment") > written >= 0)

        files.before = before
        assert clean(journal, everything).segments_dropped == 1
        files.before = nothing
        assert synced == [True]


@pytest.mark.parametrize("recycled", [True, False])
def test_a_dropped_segment_is_gone_for_good_when_cleaning_returns(tmp_path: Path, recycled: bool) -> None:
    """Otherwise a power cut could bring it back after its number, and what it held, are on record as gone."""
    files = Watched()
    with Journal(tmp_path, segment_bytes=4096 if recycled else 1 << 20, files=files) as journal:
        while len(journal.segments()) < 2 and journal.next_offset(1) < 200:
            journal.commit([batch(1, 0, 3)])
        if not recycled:
            journal.rotate()
        cover(journal)
        order = files.before = Order()
        assert clean(journal, everything).segments_dropped == 1
        files.before = nothing
        gone = order.last("rename" if recycled else "unlink", ".segment")
        assert order.last("fsync", tmp_path.name) > max(gone, order.last("unlink", ".summary")) > 0
