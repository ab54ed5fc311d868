"""A header that cannot be believed hides at most its own segment, and never voids another."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.checkup import repair, verify
from penstock.errors import CorruptJournal
from penstock.journal import JournalReader
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.journal import Journal
from penstock.journal.rows import messages
from penstock.journal.segment import START, decode_label, encode_label
from penstock.model.damage import HEADER, ROT, STATE
from tests.unit.journal.specimen import Specimen, make, reopened

SMALL = 1 << 16


def segment(path: Path, number: int) -> Path:
    return path / f"{number:020d}.segment"


def recycled(path: Path) -> tuple[list[int], int]:
    """A journal that goes on in a used file, three messages in it; the offsets that are there, and that segment's number."""
    with Journal(path, segment_bytes=SMALL) as journal:

        def fill(count: int) -> None:
            for n in range(count):
                rows = messages(1, [b"%d" % n + b"." * 60], ids=n, timestamp=0)
                journal.commit([rows], sync=False)
            journal.sync()

        fill(700)
        for _ in range(2):
            fill(1)
            journal.snapshot(b"")
        clean(journal, lambda log, first, last: [DeadRange(first, last, 1)])
        while not journal.segments()[-1].label.recycled:
            fill(1)
        fill(3)
        return [o for found in journal.read(1) for o in found.offsets], journal.segments()[-1].number


@pytest.mark.parametrize("hints", ["all", "no summaries", "no mark", "no snapshots", "none"])
def test_frames_of_an_earlier_life_never_tell_where_a_segment_begins(tmp_path: Path, hints: str) -> None:
    """Both copies of the header and all new frames are in the first sector; behind it are whole frames of messages long cleaned."""
    path = tmp_path / "journal"
    offsets, last = recycled(path)
    inside = 3
    with segment(path, last).open("r+b") as file:
        file.write(bytes(4096))
    for summary in path.glob("*.summary") if hints in ("no summaries", "none") else ():
        summary.unlink()
    for snapshot in path.glob("*.snapshot") if hints in ("no snapshots", "none") else ():
        snapshot.unlink()
    if hints in ("no mark", "none"):
        (path / "mark").unlink()
    before = {file.name: file.stat().st_size for file in path.glob("*.segment")}
    outside = JournalReader(path)
    assert {o for found in outside.read(1) for o in found.offsets} <= set(offsets)
    assert [damage.segment for damage in outside.damage if damage.what == ROT] == [last]
    assert [f.segment for f in verify(path).damage if f.what == ROT and f.position == 0] == [last]
    with Journal(path, segment_bytes=SMALL) as journal:
        assert [o for found in journal.read(1) for o in found.offsets] == offsets[:-inside]
        found = [(d.segment, d.position, d.what) for d in journal.recovery.damage if d.what != STATE]
        assert found == [(last, 0, ROT)]
        assert journal.next_offset(1) > offsets[-1]
    assert {name: (path / name).stat().st_size for name in before} == before, "nothing was cut off"
    assert repair(path, yes=True).needed is False


def test_a_header_is_pieced_together_from_a_frame_that_fits(tmp_path: Path) -> None:
    specimen: Specimen = make(tmp_path / "journal", 40, segment_bytes=4096)
    for file in specimen.segments:
        path = specimen.copy(tmp_path / "copy")
        with (path / file.name).open("r+b") as opened:
            opened.write(bytes(START))
        served, journal = reopened(path)
        assert served == specimen.commits
        assert [damage.what for damage in journal.recovery.damage] == [HEADER]


def test_a_header_that_begins_before_an_earlier_ones_stops_the_start_before_anything_is_touched(
    tmp_path: Path,
) -> None:
    specimen = make(tmp_path / "journal", 40, segment_bytes=4096)
    file = specimen.segments[-1]
    label = decode_label(file.read_bytes())
    assert label is not None
    with file.open("r+b") as opened:
        opened.write(encode_label(label._replace(first_sequence=2)))
    specimen.segments[0].with_suffix(".summary").unlink()
    (specimen.path / "00000000000000000099.summary").write_bytes(b"?")
    before = {file.name: file.read_bytes() for file in specimen.path.iterdir()}
    with pytest.raises(CorruptJournal, match="begins at commit 2"):
        Journal(specimen.path)
    assert {file.name: file.read_bytes() for file in specimen.path.iterdir()} == before
    assert [f.what for f in verify(specimen.path).damage if f.segment == label.number] == ["foreign"]
    outside = JournalReader(specimen.path)
    assert list(outside.frames()) != []
    assert label.number in {damage.segment for damage in outside.damage}
