"""The mark: what is synced, written after each sync, for readers outside the owner and for recovery.

Layout, 48 bytes at the start of the file `mark`, overwritten in place (within one sector, so that no crash can tear it)::

     0           4          8              16             24             32          40         44      48
    +-----------+----------+--------------+--------------+--------------+-----------+----------+-------+
    | magic PNSM| version  | sequence u64 | segment u64  | end u64      | time i64  | epoch u32| crc   |
    +-----------+----------+--------------+--------------+--------------+-----------+----------+-------+

Every frame up to `sequence` is synced; the last of them ends at byte `end` of `segment`. The mark itself is synced only when
a journal is opened and closed: after a power cut it may be older than the truth, never newer. So a bad frame at or below it is rot (it was
synced once), and one above it, with nothing good behind it, is what a crash leaves.
A damaged or missing mark costs time: the last segment is then copied as if nothing in it were known to be synced.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from penstock import limits
from penstock.errors import CorruptJournal
from penstock.journal.checksum import crc32
from penstock.journal.files import Files, read_whole

MAGIC: Final = b"PNSM"
VERSION: Final = 1
LAYOUT: Final = struct.Struct("<4sIQQQqII")
CHECKED: Final = struct.Struct("<4sIQQQqI")
CRC: Final = struct.Struct("<I")


class Mark(NamedTuple):
    """Up to where a journal is known to be on the disk."""

    sequence: int
    segment: int
    end: int
    time_us: int
    epoch: int


def encode(mark: Mark) -> bytes:
    checked = CHECKED.pack(MAGIC, VERSION, *mark)
    return checked + CRC.pack(crc32(checked))


def decode(data: bytes) -> Mark | None:
    """The mark, or None if it is damaged, or was read while it was being written."""
    if len(data) < LAYOUT.size or crc32(data[: CHECKED.size]) != CRC.unpack_from(data, CHECKED.size)[0]:
        return None
    magic, version, *fields = CHECKED.unpack_from(data)
    if magic != MAGIC:
        return None
    if version != VERSION:
        raise CorruptJournal(f"the mark's format version {version} is not known to this version of Penstock")
    return Mark(*fields)


def read(files: Files, path: Path) -> Mark | None:
    """The mark in a file, or None if there is none that can be trusted."""
    try:
        return decode(read_whole(files, path)[: LAYOUT.size])
    except (FileNotFoundError, IsADirectoryError):
        return None


def read_beside_owner(files: Files, path: Path) -> Mark | None:
    """The same while somebody may be writing it: one that was read half written is whole the next time, a damaged one never is."""
    for _ in range(limits.MARK_READS_MAX):
        if (mark := read(files, path)) is not None or not path.exists():
            return mark
    return None


class MarkFile:
    """The owner's hold on the mark: it only ever moves forward."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._fd = files.open(path, write=True, create=True)

    def write(self, mark: Mark) -> None:
        self._files.write(self._fd, encode(mark), 0)

    def sync(self) -> None:
        self._files.sync(self._fd)

    def close(self) -> None:
        self._files.close(self._fd)
