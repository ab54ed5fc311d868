"""Every kind of damage is found, named and mended; what is not damaged is never said to be."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.checkup import Checkup, repair, verify
from penstock.checkup.examination import Finding
from penstock.errors import CorruptJournal, DirectoryLocked, PenstockError
from penstock.journal import envelope, kinds
from penstock.journal import frame as frames
from penstock.journal import summary as summaries
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.frame import Body, Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED, HEADER, METADATA, Kind
from penstock.journal.rows import Rows, messages
from penstock.journal.segment import Scan, decode_label
from penstock.journal.state import DAMAGED
from tests.unit.journal.specimen import Specimen, batch, flip, give_room, make, offsets_of, reopened, set_mark
from tests.unit.journal.watched import Watched, failing

Offsets = set[tuple[int, int]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    """Six small segments, two snapshots, three logs."""
    return make(tmp_path_factory.mktemp("sound") / "journal", 60, segment_bytes=4096, snapshots=True)


@pytest.fixture
def journal(sound: Specimen, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return sound.copy(tmp_path / "journal")


def segment(path: Path, number: int) -> Path:
    return path / f"{number:020d}.segment"


def frames_of(path: Path, number: int) -> list[Frame]:
    files = Files()
    fd = files.open(segment(path, number))
    try:
        label = decode_label(files.read(fd, 128, 0))
        assert label is not None
        return [f for f in Scan(files, fd, label, limit=files.size(fd)) if isinstance(f, Frame)]
    finally:
        files.close(fd)


def with_messages(path: Path, number: int) -> Frame:
    """A frame with messages that has others before and behind it."""
    return next(f for f in frames_of(path, number)[1:-1] if f.header.messages)


def offsets(frame: Frame) -> Offsets:
    return {
        (s.log, o)
        for s in frame.sections
        for o in range(s.span.first, s.span.last + 1)
        if s.kind and s.kind.number == 1
    }


def named(findings: list[Finding]) -> Offsets:
    return {(log, o) for f in findings for log, first, last in f.spans for o in range(first, last + 1)}


def only(found: Checkup) -> Finding:
    assert len(found.damage) == 1, found.damage
    return found.damage[0]


def mended(path: Path, original: Specimen, lost: Offsets) -> None:
    """Repair, and see that exactly these messages are gone, are recorded, and that nothing more is found."""
    done = repair(path, yes=True)
    after = done.after or done.before  # an interrupted repair may have left nothing to do
    assert (after.damage, after.notes) == ([], [])
    recorded = {(log, o) for log, first, last in after.lost for o in range(first, last + 1)}
    assert lost <= recorded
    commits, _ = reopened(path)
    gone: Offsets = set()
    for commit in original.commits:
        if commit not in commits:
            gone |= offsets_of(commit)
    assert gone == lost
    assert verify(path).sound


# --- a sound journal ---


def test_sound_journal_has_no_finding_and_is_counted(sound: Specimen) -> None:
    found = verify(sound.path)
    assert (found.sound, found.notes, found.lost, found.holder) == (True, [], [], None)
    assert found.messages == sum(len(offsets_of(commit)) for commit in sound.commits)
    assert [s.sealed for s in found.segments] == [True] * (len(found.segments) - 1) + [False]


def test_verify_changes_no_byte(journal: Path) -> None:
    flip(segment(journal, 2), 8 * 700)
    before = {file.name: file.read_bytes() for file in journal.iterdir()}
    verify(journal)
    assert {file.name: file.read_bytes() for file in journal.iterdir()} == before


def test_progress_adds_up_to_every_byte(sound: Specimen) -> None:
    seen: list[int] = []
    verify(sound.path, progress=seen.append)
    assert sum(seen) == pytest.approx(
        sum(s.stat().st_size for s in sound.segments), abs=128 * len(sound.segments)
    )


def test_gap_that_a_writer_left_is_no_loss(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.commit([messages(1, [b"a"], ids=[1], timestamp=1)])
        journal.commit([messages(1, [b"b"], ids=[2], timestamp=1, offset=1000)])
    assert verify(tmp_path / "j").sound


def test_cleaned_messages_are_no_loss(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", segment_bytes=4096) as journal:
        for n in range(60):
            journal.commit([messages(1, [b"x" * 50] * 5, ids=range(5), timestamp=n)])
        journal.snapshot(b"", sequence=journal.durable_sequence - 1)
        journal.snapshot(b"")
        done = clean(
            journal,
            lambda _log, first, last: [DeadRange(o, o, 1) for o in range(first, min(last, 150) + 1) if o % 4],
        )
    assert done.segments_rewritten
    found = verify(tmp_path / "j")
    assert (found.damage, found.notes) == ([], [])


def test_directory_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptJournal, match="not a journal"):
        verify(tmp_path)


# --- each kind of damage ---


def test_flipped_payload_byte_is_rot_in_one_frame(journal: Path, sound: Specimen) -> None:
    frame = with_messages(journal, 3)
    flip(segment(journal, 3), 8 * (frame.header.end - 20))
    found = only(verify(journal))
    assert (found.what, found.segment, found.position, found.end) == (
        "rot",
        3,
        frame.header.position,
        frame.header.end,
    )
    assert named([found]) == offsets(frame)
    assert found.messages == frame.header.messages
    mended(journal, sound, offsets(frame))


def test_flipped_section_header_is_rot_and_its_messages_are_named_by_the_gap(
    journal: Path, sound: Specimen
) -> None:
    frame = with_messages(journal, 2)
    flip(segment(journal, 2), 8 * (frame.header.position + frames.HEADER.size + 9))
    found = only(verify(journal))
    assert (found.what, found.segment) == ("rot", 2)
    assert named([found]) == offsets(frame)
    mended(journal, sound, offsets(frame))


def test_flipped_frame_header_is_rot_and_its_messages_are_named_by_the_gap(
    journal: Path, sound: Specimen
) -> None:
    frame = with_messages(journal, 4)
    flip(segment(journal, 4), 8 * (frame.header.position + 20))
    found = only(verify(journal))
    assert (found.what, found.position, found.end) == ("rot", frame.header.position, frame.header.end)
    assert named([found]) == offsets(frame)
    mended(journal, sound, offsets(frame))


def test_flipped_label_costs_no_message(journal: Path, sound: Specimen) -> None:
    flip(segment(journal, 2), 8 * 30)
    found = only(verify(journal))
    assert (found.what, found.segment, found.position, found.end, found.messages) == ("header", 2, 0, 128, 0)
    mended(journal, sound, set())
    assert (journal / "quarantine" / f"header-of-{segment(journal, 2).name}.bytes").stat().st_size == 128


@pytest.mark.parametrize("behind", [3, 20, 68])
def test_flipped_seal_costs_no_message(journal: Path, sound: Specimen, behind: int) -> None:
    size = segment(journal, 2).stat().st_size
    flip(segment(journal, 2), 8 * (size - frames.OVERHEAD + behind))
    found = only(verify(journal))
    assert (found.what, found.segment, found.end, found.messages) == ("seal", 2, size, 0)
    mended(journal, sound, set())


def test_flipped_summary_costs_no_message(journal: Path, sound: Specimen) -> None:
    name = f"{3:020d}.summary"
    flip(journal / name, 8 * 100)
    found = only(verify(journal))
    assert (found.what, found.file) == ("summary", name)
    mended(journal, sound, set())
    assert (journal / "quarantine" / name).exists()


def test_summary_that_says_something_else_than_its_segment_is_found(journal: Path, sound: Specimen) -> None:
    directory = Directory(Files(), journal)
    stored = summaries.read(directory, 3)
    assert stored is not None
    changed = {**{f: getattr(stored, f) for f in stored.__struct_fields__}, "frames": stored.frames + 1}
    summaries.write(directory, summaries.Summary(**changed))
    assert only(verify(journal)).what == "summary"
    mended(journal, sound, set())


def test_missing_summary_is_only_noted(journal: Path) -> None:
    (journal / f"{3:020d}.summary").unlink()
    found = verify(journal)
    assert found.sound
    assert [note.what for note in found.notes] == ["leftover"]


def test_flipped_snapshot_is_named_and_set_aside(journal: Path, sound: Specimen) -> None:
    newest = max(journal.glob("*.snapshot"))
    flip(newest, 8 * 40)
    found = only(verify(journal))
    assert (found.what, found.file) == ("snapshot", newest.name)
    mended(journal, sound, set())
    assert (journal / "quarantine" / newest.name).exists()


def test_snapshot_under_another_number_is_found_and_set_aside(journal: Path, sound: Specimen) -> None:
    newest = max(journal.glob("*.snapshot"))
    assert envelope.unwrap(b"SNAP", 1, newest.read_bytes()) is not None
    newest.rename(journal / f"{999:020d}.snapshot")
    finding = only(verify(journal))
    assert finding.what == "snapshot"
    assert f"of commit {int(newest.stem)}," in finding.detail
    mended(journal, sound, set())
    assert (journal / "quarantine" / f"{999:020d}.snapshot").exists()


@pytest.mark.parametrize("gone", [True, False])
def test_damaged_or_missing_mark_costs_no_message(journal: Path, sound: Specimen, gone: bool) -> None:
    if gone:
        (journal / "mark").unlink()
    else:
        flip(journal / "mark", 100)
    give_room(journal)
    assert only(verify(journal)).what == "mark"
    mended(journal, sound, set())


def test_truncated_sealed_segment_names_what_was_cut(journal: Path, sound: Specimen) -> None:
    frame = with_messages(journal, 3)
    lost = {o for f in frames_of(journal, 3) if f.sequence >= frame.sequence for o in offsets(f)}
    os.truncate(segment(journal, 3), frame.header.position + 100)
    found = verify(journal).damage
    assert [(f.what, f.segment, f.position) for f in found] == [
        ("rot", 3, frame.header.position),
        ("rot", 3, frame.header.position + 100),
    ]
    assert found[0].messages == len(offsets(frame))
    assert named(found) == lost
    mended(journal, sound, lost)


def test_segment_truncated_between_two_frames_names_what_was_cut(journal: Path, sound: Specimen) -> None:
    frame = with_messages(journal, 3)
    lost = {o for f in frames_of(journal, 3) if f.sequence >= frame.sequence for o in offsets(f)}
    os.truncate(segment(journal, 3), frame.header.position)
    found = only(verify(journal))
    assert (found.what, named([found])) == ("rot", lost)
    mended(journal, sound, lost)


def test_deleted_segment_is_missing_and_its_messages_are_named(journal: Path, sound: Specimen) -> None:
    lost = {o for f in frames_of(journal, 4) for o in offsets(f)}
    segment(journal, 4).unlink()
    found = only(verify(journal))
    assert (found.what, found.segment, found.messages, named([found])) == ("missing", 4, len(lost), lost)
    mended(journal, sound, lost)
    assert verify(journal).gone == [4]


def test_segment_of_which_nothing_can_be_read_is_moved_into_quarantine(
    journal: Path, sound: Specimen
) -> None:
    lost = {o for f in frames_of(journal, 4) for o in offsets(f)}
    content = bytes(len(segment(journal, 4).read_bytes()))
    segment(journal, 4).write_bytes(content)
    assert only(verify(journal)).what == "rot"
    mended(journal, sound, lost)
    assert (journal / "quarantine" / segment(journal, 4).name).read_bytes() == content


def test_damage_in_the_segment_that_was_being_written_is_mended(journal: Path, sound: Specimen) -> None:
    frame = frames_of(journal, 6)[0]
    flip(segment(journal, 6), 8 * (frame.header.end - 20))
    assert only(verify(journal)).segment == 6
    mended(journal, sound, offsets(frame))


def test_end_below_the_mark_that_is_gone_is_rot(journal: Path) -> None:
    last = frames_of(journal, 6)[-1]
    os.truncate(segment(journal, 6), last.header.position)
    found = only(verify(journal))
    assert (found.what, found.position, found.end) == ("rot", last.header.position, last.header.end)
    assert repair(journal, yes=True).needed is False


def test_torn_end_above_the_mark_is_no_damage(journal: Path, sound: Specimen) -> None:
    *_, before, last = frames_of(journal, 6)
    set_mark(journal, sound.mark()._replace(sequence=before.sequence, end=before.header.end))
    os.truncate(segment(journal, 6), last.header.end - 10)
    found = verify(journal)
    assert found.sound
    assert [(n.what, n.position) for n in found.notes] == [("torn", last.header.position)]


def test_commits_above_the_mark_are_noted_and_rescued(journal: Path, sound: Specimen) -> None:
    *_, before, _last = frames_of(journal, 6)
    set_mark(journal, sound.mark()._replace(sequence=before.sequence, end=before.header.end))
    assert [n.what for n in verify(journal).notes] == ["unsynced"]
    mended(journal, sound, set())


@pytest.mark.parametrize("name", ["1.segment", f"{7:020d}.index", "old.snapshot"])
def test_foreign_file_is_named_and_stops_repair_before_it_begins(journal: Path, name: str) -> None:
    (journal / name).write_bytes(b"?")
    flip(journal / "mark", 100)
    mark = (journal / "mark").read_bytes()
    assert ("foreign", name) in [(f.what, f.file) for f in verify(journal).damage]
    with pytest.raises(CorruptJournal, match=name):
        repair(journal, yes=True)
    assert (journal / "mark").read_bytes() == mark


def test_repair_removes_nothing_that_it_has_no_room_to_keep_a_copy_of(journal: Path) -> None:
    damaged = journal / f"{2:020d}.segment"
    flip(damaged, 8 * 700)
    before = damaged.read_bytes()
    files = Watched()
    files.before = failing("open", errno.ENOSPC, path="quarantine")
    with pytest.raises(PenstockError):
        repair(journal, yes=True, files=files)
    assert damaged.read_bytes() == before
    assert [finding.segment for finding in verify(journal).damage] == [2]
    assert repair(journal, yes=True).kept


def test_segment_under_another_name_is_foreign(journal: Path) -> None:
    segment(journal, 2).write_bytes(segment(journal, 3).read_bytes())
    assert ("foreign", 2) in [(f.what, f.segment) for f in verify(journal).damage]


def test_drafts_are_only_noted(journal: Path) -> None:
    (journal / f"{9:020d}.segment.tmp").write_bytes(b"x")
    found = verify(journal)
    assert (found.sound, len(found.notes)) == (True, 1)


# --- columns behind right checksums ---


def _falling(body: bytearray) -> None:
    at = body.rindex(struct.pack("<3i", 0, 15, 30)) if struct.pack("<3i", 0, 15, 30) in body else -1
    assert at >= 0
    struct.pack_into("<3i", body, at, 0, 31, 30)


def _past_the_data(body: bytearray) -> None:
    at = body.rindex(struct.pack("<3i", 0, 15, 30))
    struct.pack_into("<3i", body, at, 0, 15, 3000)


def _outside_its_section(body: bytearray) -> None:
    struct.pack_into("<I", body, HEADER.size + 8, 1 << 20)


def _unknown_encoding(body: bytearray) -> None:
    body[HEADER.size + 2] = 9


@pytest.mark.parametrize("break_it", [_falling, _past_the_data, _outside_its_section, _unknown_encoding])
def test_column_that_cannot_be_read_is_found_behind_right_checksums(
    tmp_path: Path, break_it: Callable[[bytearray], None]
) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        for n in range(3):
            journal.commit(
                [
                    messages(
                        1, [b"payload %d of it" % n, b"payload %d of it" % (n + 1)], ids=[5, 3], timestamp=n
                    )
                ]
            )
    frame = frames_of(path, 1)[2]
    body = bytearray(frame.body)
    break_it(body)
    head = frame.header
    data = frames.encode(
        Body([bytes(body)], len(body), frame.spans(), head.messages), generation=head.generation, sequence=head.sequence,
        position=head.position, time_us=head.time_us, epoch=head.epoch,
    )  # fmt: skip
    with segment(path, 1).open("r+b") as file:
        file.seek(head.position)
        file.write(b"".join(data))
    found = only(verify(path))
    assert (found.what, found.position, found.end, found.spans) == (
        "columns",
        head.position,
        head.end,
        [(1, 2, 3)],
    )
    done = repair(path, yes=True)
    assert done.after is not None
    assert (done.after.sound, done.after.lost) == (True, [(1, 2, 3)])
    with Journal(path) as journal:
        assert [o for batch in journal.read(1) for o in batch.offsets] == [0, 1, 4, 5]


def rewritten(path: Path, number: int, frame: Frame, sections: int, body: bytes) -> None:
    """Put a frame with right checksums and another number of sections, or another body, in a frame's place."""
    head = frame.header
    spans = [frame.sections[0].span] * sections
    data = frames.encode(
        Body([body], len(body), spans, head.messages), generation=head.generation, sequence=head.sequence,
        position=head.position, time_us=head.time_us, epoch=head.epoch,
    )  # fmt: skip
    with segment(path, number).open("r+b") as file:
        file.seek(head.position)
        file.write(b"".join(data))


@pytest.mark.parametrize("sections", [0, 2])
def test_frame_with_a_wrong_number_of_sections_is_found_opened_around_and_mended(
    tmp_path: Path, sections: int
) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        for n in range(4):
            journal.commit([messages(1, [b"m%d" % n], ids=n, timestamp=n)])
        frame = list(journal.frames())[2]
    rewritten(path, 1, frame, sections, bytes(frame.body))
    found = only(verify(path))
    assert (found.what, found.position, found.spans) == ("columns", frame.header.position, [(1, 1, 1)])
    with Journal(path) as journal:
        assert [damage.position for damage in journal.recovery.damage] == [frame.header.position]
        assert [o for batch in journal.read(1) for o in batch.offsets] == [0, 2, 3]
    done = repair(path, yes=True)
    assert done.after is not None
    assert (done.after.sound, done.after.lost) == (True, [(1, 1, 1)])


@pytest.mark.parametrize("kind", [METADATA, CLEANED])
def test_frame_whose_table_of_columns_is_nonsense_can_be_opened_and_mended(
    tmp_path: Path, kind: Kind
) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.commit([Rows(kind, 1, 1, {"time": 5})])
        frame = list(journal.frames())[1]
    checked = kinds.CHECKED.unpack_from(frame.body)
    head = kinds.CHECKED.pack(*checked[:2], 60_000, *checked[3:])  # so many columns
    body = head + kinds.CRC.pack(zlib.crc32(head)) + bytes(frame.body[kinds.HEADER.size :])
    rewritten(path, 1, frame, 1, body)
    assert only(verify(path)).what == "columns"
    with Journal(path) as journal:
        assert [damage.position for damage in journal.recovery.damage] == [frame.header.position]
    assert repair(path, yes=True).needed is False


def test_rows_that_only_a_newer_version_knows_stop_verify_and_opening(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.commit([Rows(METADATA, 1, 1, {"time": 5})])
        frame = list(journal.frames())[1]
    head = kinds.CHECKED.pack(99, *kinds.CHECKED.unpack_from(frame.body)[1:])
    rewritten(
        path, 1, frame, 1, head + kinds.CRC.pack(zlib.crc32(head)) + bytes(frame.body[kinds.HEADER.size :])
    )
    for attempt in (verify, Journal):
        with pytest.raises(CorruptJournal, match="a newer one wrote them"):
            attempt(path)


# --- repair ---


def test_repair_without_yes_changes_nothing_and_says_what_it_would_do(journal: Path) -> None:
    flip(segment(journal, 3), 8 * 700)
    before = {file.name: file.read_bytes() for file in journal.iterdir()}
    plan = repair(journal, yes=False)
    assert (plan.needed, plan.done) == (True, False)
    assert {action.what for action in plan.plan} == {"recover", "record", "rewrite"}
    assert {file.name: file.read_bytes() for file in journal.iterdir()} == before


def test_repair_of_a_sound_journal_does_nothing(journal: Path) -> None:
    before = {file.name: file.read_bytes() for file in journal.iterdir()}
    assert repair(journal, yes=True).plan == []
    assert {file.name: file.read_bytes() for file in journal.iterdir()} == before


def test_repair_keeps_rows_of_every_kind_and_a_copy_of_what_it_removes(
    journal: Path, sound: Specimen
) -> None:
    frame = with_messages(journal, 2)
    start, end = frame.header.position, frame.header.end
    flip(segment(journal, 2), 8 * (end - 20))
    removed = segment(journal, 2).read_bytes()[start:end]
    done = repair(journal, yes=True)
    assert [(journal / "quarantine" / name).read_bytes() for name in done.kept] == [removed]
    commits, _ = reopened(journal)
    assert [c for c in sound.commits if c[0] != frame.sequence] == commits


def test_repaired_losses_survive_as_rows(journal: Path) -> None:
    frame = with_messages(journal, 1)
    flip(segment(journal, 1), 8 * (frame.header.end - 20))
    repair(journal, yes=True)
    with Journal(journal) as owner:
        rows = [r for f in owner.frames() for s in f.sections if s.kind is CLEANED for r in s.records()]
    assert {r["outcome"] for r in rows} >= {DAMAGED}


def test_second_damage_at_the_same_place_keeps_both_copies(journal: Path) -> None:
    for _ in range(2):
        frame = frames_of(journal, 2)[0]
        flip(segment(journal, 2), 8 * (frame.header.position + 70))
        assert repair(journal, yes=True).needed is False
    assert len(list((journal / "quarantine").glob(f"segment-{2:020d}-*"))) == 2


def test_new_rot_at_a_place_that_was_mended_before_is_new(tmp_path: Path) -> None:
    path = make(tmp_path / "journal", 60, segment_bytes=4096).path
    place = frames_of(path, 3)[0].header.position
    for _ in range(2):
        flip(segment(path, 3), 8 * (place + 70))
        with Journal(path) as opened:
            assert opened.recovery.end == "rot"
            assert [(damage.segment, damage.position) for damage in opened.recovery.damage] == [(3, place)]
        repair(path, yes=True)
        with Journal(path) as opened:
            assert opened.recovery.end == "clean"


def test_segment_that_is_gone_after_its_header_was_mended_is_missing(journal: Path) -> None:
    """Both are recorded at the segment's first byte."""
    flip(segment(journal, 3), 100)
    assert repair(journal, yes=True).needed is False
    segment(journal, 3).unlink()
    assert [f.what for f in verify(journal).damage if f.segment == 3] == ["missing"]


def test_repair_of_a_journal_in_use_is_refused(journal: Path) -> None:
    with Journal(journal):
        flip(segment(journal, 2), 8 * 700)
        with pytest.raises(DirectoryLocked):
            repair(journal, yes=True)


@pytest.mark.parametrize("missing", [[5, 6], [4, 5, 6], [1, 2], [1, 2, 3, 4, 5, 6], [2, 4, 6]])
def test_missing_segments_are_mended_by_one_repair(
    journal: Path, sound: Specimen, missing: list[int]
) -> None:
    assert len(sound.segments) == 6
    for number in missing:
        segment(journal, number).unlink()
    done = repair(journal, yes=True)
    assert done.after is not None
    assert (done.after.damage, done.after.notes, done.needed) == ([], [], False)
    assert len(done.plan) == len(set(done.plan))
    assert repair(journal, yes=True).plan == []


class Dying(Files):
    """Files of a process that dies at its Nth change of the disk: that one and all later ones fail."""

    CHANGES = frozenset(
        {os.pwrite, os.pwritev, os.rename, os.unlink, os.fdatasync, os.fsync, os.ftruncate, os.mkdir}
    )

    def __init__(self, lives: int) -> None:
        self.changes = 0
        self._lives = lives

    def perform(self, operation: Callable[..., Any], *arguments: object) -> Any:
        if operation in self.CHANGES:
            self.changes += 1
            if self.changes > self._lives:
                raise OSError(errno.EIO, "dead")
        return super().perform(operation, *arguments)


def hurt_everywhere(path: Path) -> Offsets:
    """Damage of every kind that repair mends; the messages that it costs."""
    lost: Offsets = {o for f in frames_of(path, 4) for o in offsets(f)}
    for number in (2, 5):
        frame = with_messages(path, number)
        flip(segment(path, number), 8 * (frame.header.end - 20))
        lost |= offsets(frame)
    segment(path, 4).unlink()
    flip(segment(path, 1), 8 * 30)
    flip(path / f"{3:020d}.summary", 8 * 100)
    flip(max(path.glob("*.snapshot")), 8 * 100)
    flip(path / "mark", 100)
    return lost


@pytest.mark.lengthy
def test_repair_that_dies_anywhere_is_finished_by_the_next(sound: Specimen, tmp_path: Path) -> None:
    journal = sound.copy(tmp_path / "journal")
    hurt_everywhere(journal)
    whole = Dying(sys.maxsize)
    repair(journal, yes=True, files=whole)
    for lives in range(0, whole.changes, 11):
        journal = sound.copy(tmp_path / "journal")
        lost = hurt_everywhere(journal)
        with pytest.raises((PenstockError, OSError)):
            repair(journal, yes=True, files=Dying(lives))
        mended(journal, sound, lost)


# --- beside an owner ---

OWNER = """
import sys
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.journal import Journal
from penstock.journal.rows import messages

journal = Journal(sys.argv[1], segment_bytes=8192, durability="os")
print("ready", flush=True)
n = 0
while True:
    n += 1
    journal.commit([messages(1, [b"x" * 50] * 7, ids=range(7), timestamp=n)])
    journal.sync()
    if n % 40 == 0:
        journal.snapshot(b"")
    if n % 80 == 0:
        top = journal.next_offset(1) - 300
        clean(journal, lambda log, first, last: [DeadRange(o, o, 1) for o in range(first, min(last, top) + 1) if o < top - 900 or o % 4])
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Path]:
    """A journal that another process writes, rotates, rewrites, drops and recycles."""
    path = tmp_path / "live"
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield path
        assert process.poll() is None
        process.kill()


def test_live_journal_of_another_process_verifies_clean(owner: Path) -> None:
    last = 0
    while last < 60:  # until segments have been rewritten, dropped and recycled under it many times
        found = verify(owner)
        assert (found.damage, found.notes) == ([], [])
        assert found.holder
        assert found.mark is not None
        last = found.mark.segment


def test_damage_in_a_live_journal_is_found_beside_its_owner(journal: Path) -> None:
    with Journal(journal) as held:
        held.commit([Rows(CLEANED, 9, 1, {"time": 1})])
        frame = with_messages(journal, 2)
        flip(segment(journal, 2), 8 * (frame.header.end - 20))
        found = verify(journal)
        assert found.holder
        assert named(found.damage) == offsets(frame)


def test_gaps_that_a_writer_left_around_damage_are_no_loss(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for n, payload in enumerate((b"FIRST", b"MIDDLE", b"LAST")):
            journal.commit([messages(1, [payload], ids=n, timestamp=0, offset=n * 100)])
    flip(segment(tmp_path, 1), segment(tmp_path, 1).read_bytes().index(b"MIDDLE") * 8)
    found = verify(tmp_path)
    assert named(found.damage) == {(1, 100)}
    assert found.unrecorded == [(1, 100, 100)]
    after = repair(tmp_path, yes=True).after
    assert after is not None
    assert after.sound
    assert after.lost == [(1, 100, 100)]


def test_logs_that_begin_above_what_damage_may_have_held_are_no_loss(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.commit([batch(1, 0, 3)])
        journal.rotate()
        journal.commit([batch(2, 0, 3)])
    segment(tmp_path, 2).write_bytes(b"junk")
    with Journal(tmp_path) as journal:
        journal.commit([batch(2, 0, 3), batch(3, 0, 3)])
        journal.rotate()
        journal.commit([batch(4, 0, 3)])
    assert verify(tmp_path).unrecorded == []
    with Journal(tmp_path) as journal:
        journal.snapshot(b"")
        journal.commit([batch(5, 0, 3)])
    assert verify(tmp_path).unrecorded == []


def test_slow_look_beside_a_cleaning_owner_finds_no_damage(tmp_path: Path) -> None:
    """In each look the owner drops what was listed, and what recorded the drop before, when verify comes to the first segment."""
    with Journal(tmp_path) as journal:

        def tidy() -> None:
            for log in (1, 3):  # log 3 stays
                journal.commit([messages(log, [b"a"] * 10, ids=range(10), timestamp=0)])
                journal.rotate()
            for _ in range(2):
                journal.commit([messages(2, [b"a"], ids=1, timestamp=0)])
                journal.snapshot(b"")
            clean(journal, lambda log, first, last: [DeadRange(first, last, 1)] if log < 3 else [])

        looks: list[int] = []

        def before(name: str, arguments: tuple[object, ...]) -> None:
            if name == "open" and str(arguments[0]).endswith("mark"):
                looks.append(0)
            elif name == "open" and str(arguments[0]).endswith(".segment") and not looks[-1]:
                looks[-1] = 1
                tidy()

        tidy()
        journal.commit([messages(1, [b"a"] * 10, ids=range(10), timestamp=0)])
        journal.snapshot(b"")
        files = Watched()
        files.before = before
        found = verify(tmp_path, files)
        assert 1 in looks
        assert found.damage == []
        assert found.unrecorded == []
