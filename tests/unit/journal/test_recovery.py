"""Cut, flipped, torn, rotten, missing: what recovery must tell apart, and what it may never lose."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from penstock.checkup.verify import verify
from penstock.clock import ManualClock
from penstock.errors import CorruptJournal
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.reading import JournalReader
from penstock.journal.recovery import CLEAN, Recovery
from penstock.journal.rows import messages
from penstock.journal.segment import Scan, decode_label, encode_label
from penstock.model.damage import MISSING, ROT, TORN
from tests.unit.journal.specimen import (
    Specimen,
    batch,
    content,
    flip,
    give_room,
    make,
    offsets_of,
    reopened,
    set_mark,
)
from tests.unit.journal.watched import Order, Watched


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    """A journal of one segment."""
    return make(tmp_path_factory.mktemp("one") / "journal")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    """A journal of several small segments."""
    return make(tmp_path_factory.mktemp("many") / "journal", 40, segment_bytes=4096)


def frames_in(path: Path) -> list[Frame]:
    """The frames of a segment file, whatever the mark says."""
    files = Files()
    fd = files.open(path)
    try:
        label = decode_label(path.read_bytes())
        assert label is not None
        return [item for item in Scan(files, fd, label, limit=path.stat().st_size) if isinstance(item, Frame)]
    finally:
        files.close(fd)


def contents_of(path: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock"
    }


# --- flipped bits ---


def check_flip(specimen: Specimen, path: Path, segment: str, bit: int) -> None:
    """One flipped bit of a segment: found, never served, costs at most its frame, and no offset is used again."""
    flip(specimen.copy(path) / segment, bit)
    served, journal = reopened(path)
    lost = [commit for commit in specimen.commits if commit not in served]
    assert [commit for commit in served if commit not in specimen.commits] == []
    assert len(lost) <= 1
    assert journal.damage, "the damage was not noticed"
    reported = {(log, n) for damage in journal.damage for log, a, b in damage.spans for n in range(a, b + 1)}
    for log, offset in offsets_of(lost[0]) if lost else ():
        assert (log, offset) in reported or offset < journal.next_offset(log)
    assert reopened(path)[0] == served


def sampled(specimen: Specimen, step: int) -> Iterator[tuple[str, int]]:
    for segment in specimen.segments:
        for bit in range(segment.stat().st_size % step, segment.stat().st_size * 8, step):
            yield segment.name, bit


@pytest.mark.lengthy
def test_a_flipped_bit_in_a_segment_costs_at_most_its_frame(one: Specimen, tmp_path: Path) -> None:
    for segment, bit in sampled(one, 97):
        check_flip(one, tmp_path / "copy", segment, bit)


@pytest.mark.lengthy
def test_a_flipped_bit_among_several_segments_costs_at_most_its_frame(many: Specimen, tmp_path: Path) -> None:
    for segment, bit in sampled(many, 977):
        check_flip(many, tmp_path / "copy", segment, bit)


@pytest.mark.campaign
def test_every_flipped_bit_of_a_segment_costs_at_most_its_frame(one: Specimen, tmp_path: Path) -> None:
    for segment, bit in sampled(one, 1):
        check_flip(one, tmp_path / "copy", segment, bit)


@pytest.mark.campaign
def test_every_flipped_bit_of_several_segments_costs_at_most_its_frame(
    many: Specimen, tmp_path: Path
) -> None:
    for segment, bit in sampled(many, 1):
        check_flip(many, tmp_path / "copy", segment, bit)


def test_a_flip_in_the_last_acknowledged_frame_is_rot_and_not_a_torn_tail(
    one: Specimen, tmp_path: Path
) -> None:
    last = frames_in(one.segments[0])[-1].header
    for position in range(last.position, last.end, 5):
        path = one.copy(tmp_path / "copy")
        flip(path / one.segments[0].name, position * 8 + position % 8)
        rotten = (path / one.segments[0].name).read_bytes()
        served, journal = reopened(path)
        assert journal.recovery.end == ROT
        assert journal.recovery.cut == []
        for found in journal.recovery.damage:
            assert (path / "quarantine" / str(found.copy)).read_bytes() == rotten[found.position : found.end]
        assert served == one.commits[:-1]


def test_offsets_of_a_lost_frame_are_never_used_again(one: Specimen, tmp_path: Path) -> None:
    last = frames_in(one.segments[0])[-1].header
    flip(one.copy(tmp_path / "copy") / one.segments[0].name, last.position * 8)  # not even its header is left
    lost = offsets_of(one.commits[-1])
    with Journal(tmp_path / "copy") as journal:
        for log, offset in lost:
            assert journal.next_offset(log) > offset


def test_two_damaged_frames_cost_two_frames(one: Specimen, tmp_path: Path) -> None:
    path = one.copy(tmp_path / "copy")
    for frame in frames_in(one.segments[0])[3:5]:
        flip(path / one.segments[0].name, (frame.header.position + 70) * 8)
    served, journal = reopened(path)
    assert [c for c in one.commits if c not in served] == one.commits[2:4]
    assert len(journal.damage) == 2


# --- cuts ---


def check_cut(specimen: Specimen, path: Path, size: int) -> None:
    """The last segment cut at a byte: what is whole before it is served, the rest is reported."""
    specimen.copy(path)
    last = path / specimen.segments[-1].name
    whole = [content(f) for f in frames_in(last) if f.header.end <= size]
    with last.open("r+b") as file:
        file.truncate(size)
    served, journal = reopened(path)
    earlier = [c for c in specimen.commits if c not in [content(f) for f in frames_in(specimen.segments[-1])]]
    assert served == earlier + [commit for commit in whole if commit[1]]
    assert (journal.recovery.end == CLEAN) == (size == specimen.mark().end)
    assert journal.recovery.cut == []
    assert reopened(path)[0] == served


def cuts(specimen: Specimen, step: int) -> Iterable[int]:
    return range(specimen.mark().end, -1, -step)


@pytest.mark.lengthy
def test_a_segment_cut_below_the_mark_is_rot_and_all_before_is_served(one: Specimen, tmp_path: Path) -> None:
    for size in cuts(one, 31):
        check_cut(one, tmp_path / "copy", size)


@pytest.mark.campaign
def test_a_segment_cut_at_every_byte_serves_all_before(one: Specimen, many: Specimen, tmp_path: Path) -> None:
    for specimen in (one, many):
        for size in cuts(specimen, 1):
            check_cut(specimen, tmp_path / "copy", size)


def test_a_sealed_segment_cut_short_costs_nothing_of_the_others(many: Specimen, tmp_path: Path) -> None:
    middle = many.segments[1]
    inside = [content(frame) for frame in frames_in(middle)]
    for size in range(0, middle.stat().st_size, 577):
        path = many.copy(tmp_path / "copy")
        with (path / middle.name).open("r+b") as file:
            file.truncate(size)
        served, journal = reopened(path)
        assert [c for c in many.commits if c not in inside] == [c for c in served if c not in inside]
        assert journal.damage


def check_first_segment_cut(whole: Path, path: Path, size: int, held: set[int]) -> None:
    """Cut the first segment of a copy: at every opening, those messages of log 1 are named and counted which are not there any more."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole, path)
    os.truncate(path / f"{1:020d}.segment", size)
    for _ in range(3):
        with Journal(path) as journal:
            named = {n for one in journal.damage for _, a, b in one.spans for n in range(a, b + 1)}
            counted = journal.stats().damaged_messages
            left = {offset for batch in journal.read(log=1) for offset in batch.offsets}
        assert (named, counted) == (held - left, len(named)), size


@pytest.mark.parametrize("covered", [False, True])
def test_a_sealed_segment_cut_within_a_frame_loses_more_than_it_names(tmp_path: Path, covered: bool) -> None:
    """What was behind the frame that was cut is lost, too: it is named and counted when the journal is opened, and the same ever after."""
    whole = tmp_path / "whole"
    with Journal(whole, segment_bytes=16384) as journal:
        for number in range(30):
            journal.commit(
                [messages(1, [b"%900d" % number] * 2, ids=[2 * number + 1, 2 * number + 2], timestamp=0)]
            )
        if covered:
            journal.snapshot(b"")
            journal.commit([messages(1, [b"e"], ids=[999], timestamp=0)])
        info = journal.segments()[0]
    held = set(range(info.index.logs[1].first, info.index.logs[1].last + 1))
    for size in range(info.end - 100, 200, -1777):
        check_first_segment_cut(whole, tmp_path / "copy", size, held)


@pytest.mark.parametrize("byte", [48, 70])
def test_a_flipped_bit_below_a_snapshot_costs_a_message_that_nobody_names(tmp_path: Path, byte: int) -> None:
    """In a frame's header, and in that of its section: a snapshot covers the frame, and not all of its sealed segment."""
    path = tmp_path / "journal"
    with Journal(path, segment_bytes=16384) as journal:
        for number in range(38):
            if number == 8:
                journal.snapshot(b"")
            journal.commit([messages(1, [b"%1000d" % number], ids=[number + 1], timestamp=0)])
        place = next(frame for frame in journal.frames() if frame.spans() and frame.spans()[0].first == 2)
    flip(path / f"{1:020d}.segment", 8 * (place.header.position + byte))
    for _ in range(3):
        with Journal(path) as journal:
            assert [one.spans for one in journal.damage] == [[(1, 2, 2)]]
            assert journal.stats().damaged_messages == 1
            left = [offset for batch in journal.read(log=1) for offset in batch.offsets]
            assert left == [0, 1, *range(3, 38)]


def test_what_was_cleaned_before_a_segment_was_cut_is_called_damaged(tmp_path: Path) -> None:
    """A segment that was rewritten held less than the offsets from its first to its last: that the rest was cleaned, a later segment says."""
    whole = tmp_path / "whole"
    with Journal(whole, segment_bytes=16384) as journal:
        for number in range(40):
            journal.commit([messages(1, [b"%1000d" % number], ids=[number + 1], timestamp=0)])
        journal.snapshot(b"")
        journal.commit([messages(1, [b"e"], ids=[999], timestamp=0)])
        journal.snapshot(b"")
        clean(
            journal, lambda _log, first, last: [DeadRange(n, n, 0) for n in range(first, last + 1) if n % 4]
        )
        end = journal.segments()[0].end
        held = {offset for batch in journal.read(log=1) for offset in batch.offsets}
    for size in range(300, end - 80, 622):
        check_first_segment_cut(whole, tmp_path / "copy", size, held)


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_sealed_segment_that_lost_its_last_frames_is_reported_when_it_is_opened(
    many: Specimen, tmp_path: Path, zeroed: bool
) -> None:
    """Cut or zeroed where a frame begins there is nothing bad left: only the missing seal tells."""
    middle = many.segments[1]
    size = middle.stat().st_size
    heads = [frame.header for frame in frames_in(middle)]
    for head in heads:
        path = many.copy(tmp_path / "copy")
        with (path / middle.name).open("r+b") as file:
            file.truncate(head.position)
            file.truncate(size if zeroed else head.position)
        before = (path / middle.name).read_bytes()
        with Journal(path) as journal:
            (damage,) = journal.recovery.damage
            assert (journal.recovery.end, damage.position, damage.end) == (ROT, head.position, size)
            assert damage.frames == sum(other.position >= head.position for other in heads)
        inside = [content(frame) for frame in frames_in(middle) if frame.header.position >= head.position]
        lost = {offset for commit in inside for offset in offsets_of(commit)}
        named = {(log, n) for log, first, last in damage.spans for n in range(first, last + 1)}
        assert lost == named
        assert (path / middle.name).read_bytes() == before, "it is evidence"
        with Journal(path) as journal:
            assert journal.recovery.end == CLEAN, "it was accounted for"
            assert [known.position for known in journal.recovery.damage] == [head.position]


def test_a_sealed_segment_that_a_snapshot_covers_is_missed_when_it_is_cut(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=4096) as journal:
        for n in range(40):
            journal.commit([batch(1, n * 3, 3)])
        journal.snapshot(b"")
    victim = tmp_path / f"{2:020d}.segment"
    last = frames_in(victim)[-1]
    with victim.open("r+b") as file:
        file.truncate(last.header.position)
    with Journal(tmp_path, segment_bytes=4096) as journal:
        (damage,) = journal.recovery.damage
        assert damage.spans == [(1, last.sections[0].span.first, last.sections[0].span.last)]


def test_rot_before_a_seal_that_nothing_follows_is_not_cut_off(many: Specimen, tmp_path: Path) -> None:
    """A crash came between the seal and the next segment's name, and then the last frame rotted."""
    path = many.copy(tmp_path / "copy")
    last = many.segments[-1]
    sealed = path / many.segments[-2].name
    (path / last.name).unlink()
    sealed.with_suffix(".summary").unlink()
    frame = frames_in(sealed)[-1]
    number = int(sealed.stem)
    mark = many.mark()._replace(sequence=frame.sequence, segment=number, end=frame.header.end)
    set_mark(path, mark)
    flip(sealed, (frame.header.position + 70) * 8)
    size = sealed.stat().st_size
    with Journal(path) as journal:
        assert [(d.segment, d.position) for d in journal.recovery.damage] == [(number, frame.header.position)]
    assert sealed.stat().st_size == size


def test_frames_that_a_successor_voids_and_does_not_hold_are_kept_aside(
    many: Specimen, tmp_path: Path
) -> None:
    """A header that is whole and rises, and is wrong all the same."""
    path = many.copy(tmp_path / "copy")
    before, after = (path / segment.name for segment in many.segments[:2])
    frames = frames_in(before)
    with before.open("r+b") as file:  # without a seal, as a rescue leaves it that was interrupted
        file.truncate(frames[-1].header.end)
    before.with_suffix(".summary").unlink()
    label = decode_label(after.read_bytes())
    assert label is not None
    with after.open("r+b") as file:
        file.write(encode_label(label._replace(first_sequence=frames[-2].sequence)))
    whole = before.read_bytes()
    with Journal(path) as journal:
        (cut,) = journal.recovery.cut
        assert (cut.position, cut.end) == (frames[-2].header.position, frames[-1].header.end)
    assert (path / "quarantine" / str(cut.copy)).read_bytes() == whole[cut.position : cut.end]


# --- torn tails, and frames above the mark ---


def unmarked(specimen: Specimen, path: Path, frames: int) -> list[Frame]:
    """A copy whose mark is `frames` commits behind, as a power cut leaves it; the frames above the mark."""
    specimen.copy(path)
    found = frames_in(specimen.segments[-1])
    head = found[-frames - 1].header
    set_mark(path, specimen.mark()._replace(sequence=head.sequence, end=head.end))
    return found[-frames:]


def test_torn_tail_is_truncated_and_kept_aside(one: Specimen, tmp_path: Path) -> None:
    (last,) = unmarked(one, tmp_path / "copy", 1)
    segment = tmp_path / "copy" / one.segments[-1].name
    for size in range(last.header.position + 1, last.header.end, 7):
        unmarked(one, tmp_path / "copy", 1)
        with segment.open("r+b") as file:
            file.truncate(size)
        left = segment.read_bytes()[last.header.position :]
        served, journal = reopened(tmp_path / "copy")
        assert served == one.commits[:-1]
        assert journal.recovery.end == TORN
        assert journal.damage == []
        (cut,) = journal.recovery.cut
        kept = (tmp_path / "copy" / "quarantine" / str(cut.copy)).read_bytes()
        assert kept.rstrip(b"\0") == left.rstrip(b"\0")
        assert reopened(tmp_path / "copy")[1].recovery.end == CLEAN


def test_good_frames_above_the_mark_are_rescued_into_a_new_segment(one: Specimen, tmp_path: Path) -> None:
    for count in (1, 2, 5):
        above = unmarked(one, tmp_path / "copy", count)
        served, journal = reopened(tmp_path / "copy")
        assert served == one.commits
        assert journal.recovery.rescued_frames == count
        assert len(journal.segments()) == 2
        assert journal.segments()[0].end == above[0].header.position + 72  # its seal


def test_a_bad_frame_above_the_mark_with_a_good_one_behind_is_rot(one: Specimen, tmp_path: Path) -> None:
    first, _ = unmarked(one, tmp_path / "copy", 2)
    flip(tmp_path / "copy" / one.segments[-1].name, (first.header.position + 80) * 8)
    served, journal = reopened(tmp_path / "copy")
    assert served == [*one.commits[:-2], one.commits[-1]]
    assert journal.recovery.end == ROT


def test_a_damaged_mark_costs_time_and_no_data(one: Specimen, many: Specimen, tmp_path: Path) -> None:
    for specimen in (one, many):
        for bit in range(0, 48 * 8, 11):
            flip(specimen.copy(tmp_path / "copy") / "mark", bit)
            give_room(tmp_path / "copy")
            served, journal = reopened(tmp_path / "copy")
            assert served == specimen.commits
            assert journal.recovery.mark_damaged
            assert journal.damage == []


def test_a_missing_mark_costs_time_and_no_data(many: Specimen, tmp_path: Path) -> None:
    (many.copy(tmp_path / "copy") / "mark").unlink()
    give_room(tmp_path / "copy")
    served, journal = reopened(tmp_path / "copy")
    assert served == many.commits
    assert journal.damage == []


def test_a_torn_end_under_a_damaged_mark_is_reported_because_it_may_have_been_acknowledged(
    one: Specimen, tmp_path: Path
) -> None:
    path = one.copy(tmp_path / "copy")
    (path / "mark").unlink()
    with (path / one.segments[-1].name).open("r+b") as file:
        file.truncate(one.mark().end - 5)
    served, journal = reopened(path)
    assert served == one.commits[:-1]
    assert journal.recovery.end == ROT


def test_offsets_are_not_given_again_when_the_mark_is_gone_and_the_end_was_cut_between_two_frames(
    one: Specimen, tmp_path: Path
) -> None:
    path = one.copy(tmp_path / "copy")
    (path / "mark").unlink()
    os.truncate(path / one.segments[-1].name, frames_in(one.segments[-1])[-1].header.position)
    served, journal = reopened(path)
    assert served == one.commits[:-1]
    assert journal.recovery.end == ROT
    for log, offset in offsets_of(one.commits[-1]):
        assert journal.state.next_offset(log) > offset


def test_recovering_twice_gives_the_same_bytes(one: Specimen, many: Specimen, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    for specimen in (one, many):
        unmarked(specimen, path, 3)
        flip(path / specimen.segments[-1].name, (specimen.mark().end - 20) * 8)
        flip(path / specimen.segments[0].name, 700 * 8)
        for round_ in range(3):
            Recovery(Directory(Files(), path), ManualClock()).run()
            if round_ == 0:
                expected = contents_of(path)
        assert contents_of(path) == expected


# --- files that are missing, foreign or from another version ---


def test_a_deleted_segment_is_reported_missing_and_the_others_are_served(
    many: Specimen, tmp_path: Path
) -> None:
    for segment in many.segments:
        inside = [content(frame) for frame in frames_in(segment)]
        path = many.copy(tmp_path / "copy")
        (path / segment.name).unlink()
        served, journal = reopened(path)
        assert [c for c in many.commits if c not in inside] == served
        assert [damage.what for damage in journal.damage] == [MISSING]
        with Journal(path) as again:
            assert again.recovery.end == CLEAN, "it was accounted for"


def test_an_unknown_file_with_a_name_like_ours_stops_the_start(one: Specimen, tmp_path: Path) -> None:
    for name in ("00000000000000000009.delta", "extra.segment", "9.snapshot", "x.free"):
        path = one.copy(tmp_path / "copy")
        (path / name).write_bytes(b"?")
        before = contents_of(path)
        with pytest.raises(CorruptJournal, match=name):
            Journal(path)
        assert contents_of(path) == before


@pytest.mark.parametrize(
    "name",
    ["00000000000000000007.segment", "mark", "00000000000000000002.snapshot", "00000000000000000001.summary"],
)
@pytest.mark.parametrize("make_it", [Path.mkdir, os.mkfifo])
def test_a_directory_or_a_pipe_in_the_place_of_a_file_stops_the_start(
    many: Specimen, tmp_path: Path, name: str, make_it: Callable[[Path], None]
) -> None:
    path = many.copy(tmp_path / "copy")
    (path / name).unlink(missing_ok=True)
    make_it(path / name)
    stops_the_start(path, name)


def test_a_file_in_the_place_of_the_quarantine_stops_the_start(many: Specimen, tmp_path: Path) -> None:
    path = many.copy(tmp_path / "copy")
    (path / "quarantine").touch()
    stops_the_start(path, "quarantine")


def stops_the_start(path: Path, name: str) -> None:
    before = contents_of(path)
    with pytest.raises(CorruptJournal, match=name):
        Journal(path)
    assert contents_of(path) == before
    with pytest.raises(CorruptJournal, match=name):
        list(JournalReader(path).read(1))
    assert [finding.file for finding in verify(path).damage if finding.what == "foreign"] == [name]


def test_other_files_are_left_alone(one: Specimen, tmp_path: Path) -> None:
    path = one.copy(tmp_path / "copy")
    (path / "notes.txt").write_text("mine")
    assert reopened(path)[0] == one.commits
    assert (path / "notes.txt").read_text() == "mine"


def test_a_segment_under_another_ones_name_stops_the_start(many: Specimen, tmp_path: Path) -> None:
    path = many.copy(tmp_path / "copy")
    shutil.copy(path / many.segments[0].name, path / many.segments[1].name)
    with pytest.raises(CorruptJournal, match="another segment"):
        Journal(path)


def test_drafts_of_a_crash_are_thrown_away(one: Specimen, tmp_path: Path) -> None:
    path = one.copy(tmp_path / "copy")
    (path / "00000000000000000002.segment.tmp").write_bytes(b"half")
    (path / "00000000000000000077.snapshot.tmp").write_bytes(b"half")
    assert reopened(path)[0] == one.commits
    assert list(path.glob("*.tmp")) == []


def test_a_message_that_holds_a_whole_segment_is_never_taken_for_frames(
    one: Specimen, tmp_path: Path
) -> None:
    """Somebody backs up a journal through its own queue, and then the frame that carries it is damaged."""
    path = one.copy(tmp_path / "copy")
    stolen = (path / one.segments[0].name).read_bytes()
    with Journal(path) as journal:
        journal.commit([messages(9, [stolen, b"x" * 3, stolen], ids=range(3), timestamp=0)])
        journal.commit([batch(9, 3, 1)])
        last = journal.segments()[-1]
    segment = path / f"{last.number:020d}.segment"
    carrier = next(f for f in frames_in(segment) if f.header.body_bytes > len(stolen))
    flip(segment, (carrier.header.position + 1) * 8)
    served, journal = reopened(path)
    assert [c for c in served if c[0] <= one.commits[-1][0]] == one.commits
    assert len(served) == len(one.commits) + 1
    assert [(damage.position, damage.end) for damage in journal.damage] == [
        (carrier.header.position, carrier.header.end)
    ]


def test_stale_frames_of_a_recycled_file_are_never_served(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, segment_bytes=4096) as journal:
        while len(journal.segments()) < 3:
            journal.commit([batch(1, 0, 3)])
        journal.snapshot(b"")
        journal.commit([batch(1, 0, 1)])
        journal.snapshot(b"")
        clean(journal, lambda log, first, last: [DeadRange(first, last, 1)] if log == 1 else [])
        assert journal.stats().free_segments
        while journal.stats().free_segments:
            journal.commit([batch(2, 0, 1)])
        journal.commit([batch(2, 0, 1)])
        recycled = journal.segments()[-1]
        expected = [content(frame) for frame in journal.frames()]
        assert recycled.label.recycled
    replayed: list[int] = []
    with Journal(path, replay=lambda frame: replayed.append(frame.sequence)) as journal:
        assert journal.recovery.end == CLEAN
        assert [content(frame) for frame in journal.frames()][: len(expected)] == expected


def test_recovery_reports_what_it_found(many: Specimen, tmp_path: Path) -> None:
    path = many.copy(tmp_path / "copy")
    for summary in path.glob("*.summary"):
        summary.unlink()
    seen: list[int] = []
    with Journal(path, progress=seen.append) as journal:
        report = journal.recovery
    assert report.segments == len(many.segments)
    assert report.frames == len(many.commits) + 1  # the frame that began the epoch
    assert report.messages == sum(len(offsets_of(commit)) for commit in many.commits)
    assert report.summaries_rebuilt == len(many.segments) - 1
    assert report.bytes >= sum(seen) > 0
    assert report.seconds >= 0


def test_a_segment_cut_exactly_between_two_frames_is_rot_and_its_offsets_are_given_up(
    one: Specimen, tmp_path: Path
) -> None:
    for frame in frames_in(one.segments[-1])[2:]:
        path = one.copy(tmp_path / "copy")
        with (path / one.segments[-1].name).open("r+b") as file:
            file.truncate(frame.header.position)
        served, journal = reopened(path)
        assert journal.recovery.end == ROT
        for commit in one.commits:
            for log, offset in offsets_of(commit) if commit not in served else ():
                assert journal.next_offset(log) > offset


def test_offsets_of_a_deleted_segment_are_never_used_again(many: Specimen, tmp_path: Path) -> None:
    for segment in many.segments:
        path = many.copy(tmp_path / "copy")
        (path / segment.name).unlink()
        with Journal(path) as journal:
            for commit in many.commits:
                for log, offset in offsets_of(commit):
                    assert journal.next_offset(log) > offset


def test_a_frame_that_crosses_what_is_read_at_once_is_not_taken_for_rot(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for n in range(200):
            journal.commit([messages(1, [b"%d" % n * 3000] * 3, ids=range(3), timestamp=n)])
        expected = [content(frame) for frame in journal.frames()]
    with Journal(tmp_path) as journal:
        assert journal.damage == []
        assert [content(frame) for frame in journal.frames()][: len(expected)] == expected


def test_damage_that_spans_two_frames_gives_up_the_offsets_of_both(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for n in range(10):
            journal.commit([messages(1, [b"m%d" % n], ids=n, timestamp=n)])
        *_, a, b = journal.frames()
    Journal(tmp_path).close()
    segment = tmp_path / f"{1:020d}.segment"
    data = bytearray(segment.read_bytes())
    data[a.header.end - 60 : b.header.position + 64] = bytes(b.header.position + 64 - a.header.end + 60)
    segment.write_bytes(data)
    with Journal(tmp_path) as journal:
        assert journal.next_offset(1) >= 10
        assert [offset for found in journal.read(1) for offset in found.offsets] == list(range(8))


def test_a_flipped_bit_in_a_fresh_recycled_segments_header_brings_nothing_back(tmp_path: Path) -> None:
    with Journal(tmp_path / "live", segment_bytes=4096) as journal:
        while len(journal.segments()) < 4:
            journal.commit([batch(1, 0, 3)])
        for n in range(2):
            journal.commit([batch(2, n, 1)])
            journal.snapshot(b"")
        clean(journal, lambda log, first, last: [DeadRange(first, last, 1)] if log == 1 else [])
        journal.commit([batch(3, 0, 5)])
        journal.rotate()
        assert journal.segments()[-1].label.recycled
        shutil.copytree(tmp_path / "live", tmp_path / "copy")
        expected = {log: [o for found in journal.read(log) for o in found.offsets] for log in (1, 2, 3)}
        last = journal.segments()[-1].number
    for bit in range(0, 128 * 8, 37):
        shutil.rmtree(tmp_path / "try", ignore_errors=True)
        shutil.copytree(tmp_path / "copy", tmp_path / "try")
        (tmp_path / "try" / "lock").unlink()
        for summary in (tmp_path / "try").glob("*.summary"):
            summary.unlink()
        flip(tmp_path / "try" / f"{last:020d}.segment", bit)
        with Journal(tmp_path / "try", segment_bytes=4096) as journal:
            assert {
                log: [o for found in journal.read(log) for o in found.offsets] for log in (1, 2, 3)
            } == expected


def test_a_stray_file_with_a_number_far_off_stops_the_start(one: Specimen, tmp_path: Path) -> None:
    path = one.copy(tmp_path / "copy")
    (path / "00000000000000100000.segment").touch()
    with pytest.raises(CorruptJournal, match="move it away"):
        Journal(path)


def test_a_deleted_segment_that_a_snapshot_covers_is_named_by_its_neighbours(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=4096) as journal:
        for n in range(40):
            journal.commit([batch(1, n * 3, 3)])
        journal.snapshot(b"")
        victim = journal.segments()[1]
    (tmp_path / f"{victim.number:020d}.segment").unlink()
    entry = victim.index.logs[1]
    with Journal(tmp_path, segment_bytes=4096) as journal:
        (damage,) = journal.damage
        assert damage.spans == [(1, entry.first, entry.last)]
        assert journal.stats().damaged_messages == entry.rows
        assert journal.next_offset(1) == 120, "the snapshot knows it"


def test_a_journal_whose_segments_are_all_gone_is_not_new(many: Specimen, tmp_path: Path) -> None:
    path = many.copy(tmp_path / "copy")
    for segment in path.glob("*.segment"):
        segment.unlink()
    with Journal(path) as journal:
        assert journal.recovery.end == ROT


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("left", [b"", bytes(20), b"junk" * 100], ids=["nothing", "zeros", "junk"])
def test_offsets_of_a_last_segment_of_which_nothing_is_left_are_never_used_again(
    tmp_path: Path, left: bytes, snapshot: bool
) -> None:
    """Also of a log that was in no other segment, and also if a snapshot covers the segment's beginning."""
    with Journal(tmp_path) as journal:
        journal.commit([messages(1, [b"a"], ids=1, timestamp=0)])
        journal.rotate()
        for n in range(500):
            if n == 100 and snapshot:
                journal.snapshot(b"")
            rows = [messages(log, [b"a%d" % n], ids=n, timestamp=0) for log in (1, 2)]
            journal.commit(rows, sync=False)
        journal.commit([messages(3, [b"b"] * 5, ids=range(5), timestamp=0)])
        last = journal.segments()[-1].number
    (tmp_path / f"{last:020d}.segment").write_bytes(left)
    with Journal(tmp_path) as journal:
        assert journal.recovery.end == ROT
        assert journal.next_offset(1) > 500
        assert journal.next_offset(2) > 499
        assert journal.next_offset(3) > 4
        journal.commit([messages(log, [b"new"], ids=1, timestamp=0) for log in (1, 2, 3)])
        after = [journal.next_offset(log) for log in (1, 2, 3)]
    with Journal(tmp_path) as journal:
        assert journal.recovery.end == CLEAN
        assert [journal.next_offset(log) for log in (1, 2, 3)] == after
        lost = [span for damage in journal.damage for span in damage.spans]
        assert all(last <= 500 for _, _, last in lost), "what was given up is no loss"


def test_offsets_that_a_caller_skipped_are_not_blamed_on_damage_that_is_fully_known(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for n, payload in enumerate((b"FIRST", b"MIDDLE", b"LAST")):
            journal.commit([messages(1, [payload], ids=n, timestamp=0, offset=n * 100)])
    segment = tmp_path / f"{1:020d}.segment"
    flip(segment, segment.read_bytes().index(b"MIDDLE") * 8)
    with Journal(tmp_path) as journal:
        (damage,) = journal.damage
        assert damage.spans == [(1, 100, 100)]
        assert journal.stats().damaged_messages == 1


def test_offsets_that_a_caller_skipped_are_not_blamed_on_damage_elsewhere(tmp_path: Path) -> None:
    """The damage is of another log, and behind it this one goes on where it was, before it skips."""
    with Journal(tmp_path) as journal:
        journal.commit([batch(1, 0, 2)])
        journal.commit([batch(2, 0, 2)])
        journal.commit([batch(1, 2, 2)])
        journal.commit([messages(1, [b"skipped"], ids=1, timestamp=0, offset=100)])
        victim = list(journal.frames())[2]
    flip(tmp_path / f"{1:020d}.segment", (victim.header.position + 5) * 8)
    with Journal(tmp_path) as journal:
        (damage,) = journal.damage
        assert damage.spans == []


def test_a_rescue_is_on_the_disk_before_it_voids_what_it_was_copied_from(
    one: Specimen, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    unmarked(one, path, 2)
    files = Watched()
    order = Order()
    synced: list[bool] = []

    def before(name: str, arguments: tuple[object, ...]) -> None:
        order(name, arguments)
        if name == "rename" and str(arguments[0]).endswith(".segment.tmp"):
            synced.append(order.last("fdatasync", ".segment.tmp") > order.last("pwrite", ".segment.tmp") >= 0)

    files.before = before
    with Journal(path, files=files) as journal:
        assert journal.recovery.rescued_frames == 2
    assert synced == [True]
    marked = [name for name, file in order.made if file == "mark"]
    assert marked[:2] == ["pwrite", "fdatasync"], "else it would be rescued once more"
