"""Damage that grows, comes again, or is come across by several at once: told wholly, once, and recorded."""

from __future__ import annotations

import errno
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.checkup.verify import verify
from penstock.errors import JournalFailed
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.damage import new_parts, parts_outside
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.rows import messages
from penstock.journal.segment import Bad
from penstock.model.damage import MISSING, ROT, Damage
from tests.unit.journal.specimen import flip
from tests.unit.journal.watched import Watched, failing

LOG = 1


def filled(path: Path, count: int = 30, *, segment_bytes: int = 4096, snapshot: bool = False) -> list[Frame]:
    """A journal of single messages; its commits."""
    with Journal(path, segment_bytes=segment_bytes) as journal:
        for number in range(count):
            journal.commit([messages(LOG, [b"%03d" % number * 100], ids=number, timestamp=number)])
        if snapshot:
            journal.rotate()
            journal.snapshot(b"")
        return [frame for frame in journal.frames() if frame.header.messages]


def offset_of(frame: Frame) -> int:
    return frame.spans()[0].first


def segment(path: Path, number: int) -> Path:
    return path / f"{number:020d}.segment"


def zero(path: Path, first: Frame, last: Frame) -> None:
    with segment(path, first.segment).open("r+b") as file:
        file.seek(first.header.position)
        file.write(bytes(last.header.end - first.header.position))


def named(journal: Journal) -> list[int]:
    return sorted(o for d in journal.damage for _, first, last in d.spans for o in range(first, last + 1))


def test_parts_of_a_range_that_are_not_known() -> None:
    assert parts_outside(200, 500, []) == [range(200, 500)]
    assert parts_outside(200, 500, [range(100, 600)]) == []
    assert parts_outside(200, 500, [range(200, 300)]) == [range(300, 500)]
    assert parts_outside(200, 500, [range(200, 495)]) == [], "too little for a frame"
    assert parts_outside(200, 200, [range(200, 200)]) == []
    assert parts_outside(200, 200, [range(100, 300)]) == [range(200, 200)]


def test_a_bad_range_is_new_as_it_is_or_as_what_it_has_grown_by() -> None:
    bad = Bad(3, 200, 500, None, [])
    assert new_parts(bad, [Damage(2, 200, 500, ROT)]) == [bad]
    assert new_parts(bad, [Damage(3, 200, 300, ROT)]) == [Bad(3, 300, 500, None, [])]
    assert new_parts(bad, [Damage(3, 0, 0, MISSING)]) == []


@pytest.mark.parametrize("payloads", [[b""], [b"alike"], [b"", b"x"]])
@pytest.mark.parametrize("shared", [False, True])
def test_offsets_of_a_lost_frame_are_given_again(tmp_path: Path, payloads: list[bytes], shared: bool) -> None:
    """Its header is gone, so that only its bytes tell how many there were: also of messages that are all alike."""
    count = 6000
    with Journal(tmp_path) as journal:
        rows = [messages(LOG, payloads * (count // len(payloads)), ids=range(count), timestamp=0)]
        if shared:
            rows.append(messages(LOG + 1, rows[0], ids=range(count, 2 * count), timestamp=0))
        journal.commit(rows)
        (lost,) = [frame for frame in journal.frames() if frame.header.messages]
        assert [batch.values("id")[-1] for log in (LOG, LOG + 1) for batch in journal.read(log)] == [
            count - 1,
            *[2 * count - 1] * shared,
        ]
    with segment(tmp_path, 1).open("r+b") as file:
        file.seek(lost.header.position)
        file.write(bytes(64))
    with Journal(tmp_path) as journal:
        assert journal.next_offset(LOG) >= count
        assert journal.next_offset(LOG + 1) >= (count if shared else 0)


def test_an_owner_whose_file_was_removed_goes_on_acknowledging(tmp_path: Path) -> None:
    """What it writes to that file from here on is gone when it is closed."""
    journal = Journal(tmp_path)
    row = messages(LOG, [b"0", b"1", b"2"], ids=range(3), timestamp=0)
    journal.commit([row])
    segment(tmp_path, 1).unlink()
    assert list(journal.read(LOG)) == []
    assert named(journal) == [0, 1, 2]
    with pytest.raises(JournalFailed, match=r"1\.segment, which is being written, was removed"):
        journal.commit([messages(LOG, [b"3"], ids=3, timestamp=0)])
    journal.close()
    with Journal(tmp_path) as journal:
        assert [damage.what for damage in journal.damage] == [MISSING]
        assert journal.next_offset(LOG) >= 3


@pytest.mark.parametrize("at", [12, 24])
@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_what_damage_grows_by_is_new(tmp_path: Path, at: int, segment_bytes: int) -> None:
    commits = filled(tmp_path, segment_bytes=segment_bytes)
    first = commits[at]
    flip(segment(tmp_path, first.segment), (first.header.end - 40) * 8)
    with Journal(tmp_path, segment_bytes=segment_bytes) as journal:
        assert named(journal) == [offset_of(first)]
        following = journal.next_offset(LOG)
    grown = [one for one in commits[at : at + 4] if one.segment == first.segment]
    zero(tmp_path, first, grown[-1])
    lost = [offset_of(one) for one in grown]
    for _ in range(3):
        with Journal(tmp_path, segment_bytes=segment_bytes) as journal:
            assert named(journal) == lost
            assert journal.stats().damaged_messages == len(lost)
            assert journal.next_offset(LOG) >= following
            ranges = sorted((damage.position, damage.end) for damage in journal.damage)
            assert all(end <= start for (_, end), (start, _) in pairwise(ranges)), "they overlap"
        assert verify(tmp_path).lost == [(LOG, lost[0], lost[-1])]


def test_damage_at_the_end_that_grows_gives_up_more_offsets(tmp_path: Path) -> None:
    commits = filled(tmp_path, 12, segment_bytes=1 << 20)
    flip(segment(tmp_path, 1), (commits[6].header.end - 40) * 8)
    Journal(tmp_path).close()
    zero(tmp_path, commits[6], commits[-1])
    with Journal(tmp_path) as journal:
        assert journal.next_offset(LOG) > offset_of(commits[-1])


@pytest.mark.parametrize("gone", [True, False])
def test_a_segment_that_is_lost_after_its_header_was_is_lost(tmp_path: Path, gone: bool) -> None:
    commits = filled(tmp_path)
    last = max(frame.segment for frame in commits)
    path = segment(tmp_path, last)
    data = path.read_bytes()
    path.write_bytes(bytes(128) + data[128:])
    with Journal(tmp_path, segment_bytes=4096) as journal:
        assert journal.next_offset(LOG) == len(commits)
        assert not named(journal)
    if gone:
        path.unlink()
    else:
        path.write_bytes(bytes(len(data)))
    with Journal(tmp_path, segment_bytes=4096) as journal:
        assert journal.next_offset(LOG) >= len(commits)
        assert named(journal) == [offset_of(one) for one in commits if one.segment == last]
        assert journal.recovery.end == ROT


def test_a_lost_segment_without_a_summary_gives_up_the_offsets_that_it_may_have_held(tmp_path: Path) -> None:
    commits = filled(tmp_path)
    last = max(frame.segment for frame in commits)
    path = segment(tmp_path, last)
    path.write_bytes(bytes(128) + path.read_bytes()[128:])
    Journal(tmp_path, segment_bytes=4096).close()
    for size in (129, 128, 1, 0):
        os.truncate(path, size)
        path.with_suffix(".summary").unlink(missing_ok=True)
        with Journal(tmp_path, segment_bytes=4096) as journal:
            assert journal.next_offset(LOG) > len(commits)


def test_what_was_given_up_for_damage_is_given_up_again_when_the_record_of_it_is_lost(tmp_path: Path) -> None:
    commits = filled(tmp_path, 12, segment_bytes=1 << 20)
    zero(tmp_path, commits[6], commits[-1])
    with Journal(tmp_path) as journal:
        offset = journal.next_offset(LOG)
        journal.commit([messages(LOG, [b"x"], ids=0, timestamp=0)])
    os.truncate(segment(tmp_path, 2), 200)
    flip(segment(tmp_path, 1), (commits[3].header.end - 40) * 8)
    with Journal(tmp_path) as journal:
        assert journal.next_offset(LOG) > offset


def test_a_segment_that_is_lost_after_damage_in_it_still_tells_what_that_cost(tmp_path: Path) -> None:
    commits = filled(tmp_path)
    flip(segment(tmp_path, 1), (commits[3].header.end - 40) * 8)
    Journal(tmp_path, segment_bytes=4096).close()
    segment(tmp_path, 1).unlink()
    for _ in range(2):
        with Journal(tmp_path, segment_bytes=4096) as journal:
            assert named(journal) == [offset_of(one) for one in commits if one.segment == 1]


def test_damage_that_grows_while_the_journal_is_open_is_told_when_it_is_read(tmp_path: Path) -> None:
    commits = filled(tmp_path, 10, segment_bytes=1 << 20)
    with Journal(tmp_path) as journal:
        flip(segment(tmp_path, 1), (commits[2].header.end - 40) * 8)
        list(journal.read(LOG))
        assert named(journal) == [2]
        zero(tmp_path, commits[2], commits[5])
        list(journal.read(LOG))
        assert named(journal) == [2, 3, 4, 5]
    with Journal(tmp_path) as journal:
        assert named(journal) == [2, 3, 4, 5]


def test_many_who_come_across_the_same_damage_tell_it_once(tmp_path: Path) -> None:
    commits = filled(tmp_path, 40, segment_bytes=1 << 20, snapshot=True)
    hurt = [commits[at] for at in (5, 6, 20, 21, 22, 35)]
    for frame in hurt:
        flip(segment(tmp_path, 1), (frame.header.position + 8) * 8)  # not even its header is left
    with Journal(tmp_path) as journal:
        assert journal.damage == []
        gate = threading.Barrier(6)

        def read(start: int) -> None:
            gate.wait(30)
            list(journal.read(LOG, start))

        readers = [threading.Thread(target=read, args=(start,)) for start in (0, 4, 6, 19, 21, 30)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert named(journal) == [5, 6, 20, 21, 22, 35]
        assert journal.stats().damaged_messages == 6
    with Journal(tmp_path) as journal:
        assert named(journal) == [5, 6, 20, 21, 22, 35]


def test_on_a_full_disk_damage_that_is_read_is_named_without_a_copy(tmp_path: Path) -> None:
    commits = filled(tmp_path, snapshot=True)
    flip(segment(tmp_path, 1), (commits[3].header.position + 8) * 8)
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        files.before = failing("mkdir", errno.ENOSPC)
        list(journal.read(LOG))
        assert named(journal) == [3]
        assert [damage.copy for damage in journal.damage] == [None]


def test_what_was_cleaned_is_not_lost_with_the_record_of_it(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    with Journal(tmp_path, segment_bytes=4096) as journal:
        for _ in range(2):
            journal.commit([messages(2, [b"x"], ids=0, timestamp=0)])
            journal.rotate()
            journal.snapshot(b"")
        clean(journal, lambda log, first, last: [DeadRange(o, o, 0) for o in range(first, last) if o % 4])
        record = list(journal.frames())[-1]
        assert not record.header.messages
    flip(segment(tmp_path, record.segment), (record.header.end - 40) * 8)
    found = verify(tmp_path)
    assert [(finding.what, finding.spans) for finding in found.damage] == [("rot", [])]
    with Journal(tmp_path, segment_bytes=4096) as journal:
        assert named(journal) == []


def test_damage_to_a_frame_of_which_each_third_message_is_live_names_each_of_those(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.commit([messages(LOG, [b"x"] * 60_000, ids=range(60_000), timestamp=0)])
        for _ in range(2):
            journal.commit([messages(2, [b"x"], ids=0, timestamp=0)])
            journal.rotate()
            journal.snapshot(b"")
        clean(journal, lambda log, first, last: [DeadRange(o, o, 0) for o in range(first, last) if o % 3])
        frame = next(one for one in journal.frames() if one.header.messages)
        live = 20_001  # the last one, too
    flip(segment(tmp_path, frame.segment), (frame.header.end - 40) * 8)
    for _ in range(2):
        with Journal(tmp_path) as journal:
            list(journal.read(LOG))
            assert len(named(journal)) == journal.stats().damaged_messages == live
