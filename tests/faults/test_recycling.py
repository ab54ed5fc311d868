"""A recycled file is full of frames of its earlier life. Here each of them lies exactly where a new one would."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.journal import cleaner
from penstock.journal.cleaner import DeadRange
from penstock.journal.journal import Journal
from penstock.journal.rows import messages
from tests.faults.faulty_files import UnsyncedFiles


def _open(path: Path) -> Journal:
    return Journal(path, segment_bytes=4096, files=UnsyncedFiles())


def _publish(journal: Journal) -> None:
    offset = journal.next_offset(1)
    journal.commit([messages(1, [b"%08d" % offset * 20], ids=offset, timestamp=offset)])


def _read(journal: Journal) -> list[tuple[int, bytes]]:
    return [
        (offset, bytes(payload))
        for batch in journal.read(1)
        for offset, payload in zip(batch.offsets, batch.values("payload"), strict=True)
    ]


def _until_recycled(journal: Journal) -> None:
    """Fill three segments with frames of one length, have the first two recycled, and come to write the second one's file.

    The first began with the frame of its epoch, so that what is behind it lies elsewhere.
    """
    while journal.segments()[-1].number < 4:
        _publish(journal)
    journal.snapshot(b"")
    _publish(journal)
    journal.snapshot(b"")
    cleaner.clean(journal, lambda _log, first, last: [DeadRange(first, last, 1)])
    assert journal.stats().free_segments == 2
    while journal.stats().free_segments:
        _publish(journal)
    assert journal.segments()[-1].label.recycled


def test_frames_of_a_files_earlier_life_are_neither_served_nor_called_damage(tmp_path: Path) -> None:
    with _open(tmp_path / "journal") as journal:
        _until_recycled(journal)
        segment = journal.segments()[-1].number
        for more in range(5):  # a crash with an empty segment, and with a few frames before the old ones
            copy = tmp_path / f"crashed-{more}"
            shutil.copytree(tmp_path / "journal", copy)
            with _open(copy) as crashed:
                assert crashed.recovery.end == "clean"
                assert crashed.recovery.cut == []
                assert _read(crashed) == _read(journal)
                assert crashed.next_offset(1) == journal.next_offset(1)
            _publish(journal)
        assert journal.segments()[-1].number == segment
