"""The mark is whole or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptJournal
from penstock.journal import mark as marks
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.journal.mark import Mark
from tests.unit.journal.specimen import batch


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    mark = Mark(5, 2, 4096, 77, 3)
    data = marks.encode(mark)
    assert marks.decode(data) == mark
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        assert marks.decode(bytes(flipped)) is None
    for size in range(len(data)):
        assert marks.decode(data[:size]) is None


def test_a_missing_mark_is_none(tmp_path: Path) -> None:
    assert marks.read(Files(), tmp_path / "mark") is None


def test_a_newer_version_is_an_error_and_not_damage() -> None:
    import zlib

    checked = marks.CHECKED.pack(marks.MAGIC, 9, 1, 1, 1, 1, 1)
    with pytest.raises(CorruptJournal, match="version 9"):
        marks.decode(checked + marks.CRC.pack(zlib.crc32(checked)))


def test_the_mark_follows_every_sync_and_nothing_else(tmp_path: Path) -> None:
    with Journal(tmp_path, durability="os") as journal:
        before = marks.read(Files(), tmp_path / "mark")
        journal.commit([batch(1, 0, 3)])
        assert marks.read(Files(), tmp_path / "mark") == before
        sequence = journal.sync()
        after = marks.read(Files(), tmp_path / "mark")
        assert after is not None
        assert (after.sequence, after.end) == (sequence, journal.segments()[-1].end)
