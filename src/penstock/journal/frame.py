"""A commit is a frame: a header with its own checksum, sections, and the body's checksum. It holds whole or not at all.

Theory of operation
-------------------
All numbers are little-endian; a frame begins and ends on a multiple of 8 bytes::

     0                     8            12        13      14           16                    24
    +---------------------+------------+---------+-------+------------+---------------------+
    | generation u64      | magic PNSK | version | flags | sections   | sequence u64        |
    +---------------------+------------+---------+-------+------------+---------------------+
    24                    32                    40          44           48          52        60         64
    +---------------------+---------------------+-----------+------------+-----------+---------+----------+
    | position u64        | time i64, µs        | epoch u32 | body u32   | messages  | 0       | crc u32  |
    +---------------------+---------------------+-----------+------------+-----------+---------+----------+
    | sections …  (`body` bytes)                                                                          |
    +----------------------------------------------------------------------------------+------------------+
    | crc32 of the body, begun with the header's crc u32                               | 0 u32            |
    +----------------------------------------------------------------------------------+------------------+

- *generation* is drawn at random for each life of a file. A recycled file is full of frames of its earlier life; none
  of them has this one's generation.
- *position* is the frame's own place in its file. A frame that somebody published as a message's payload is never taken
  for one of ours when the scan looks for the next good frame behind a damaged one.
- *sequence* grows by one with each commit of a journal, over all its files.
- *epoch* grows with each owner of the journal, so that what was written before a crash can be told from what came after.
- *messages* counts the message rows, so that damage to the body can still be counted.
- flag `SEAL`: an empty frame, the last of its segment; its sequence is the one that the next segment begins with.

The body's checksum begins with the header's, so a body never passes under another frame's header.

To change the layout: raise VERSION, keep the reader of the old one, add a golden file beside the old one
(docs/internals/journal-format.md has the steps).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock import limits
from penstock.errors import BatchTooLarge, CorruptJournal
from penstock.journal.checksum import crc32
from penstock.journal.kinds import MESSAGES, Span
from penstock.journal.rows import Rows
from penstock.journal.section import Section, sections

MAGIC: Final = b"PNSK"
VERSION: Final = 1
SEAL: Final = 1

HEADER: Final = struct.Struct("<Q4sBBHQQqIIIQI")
CHECKED: Final = struct.Struct("<Q4sBBHQQqIIIQ")
CRC: Final = struct.Struct("<I")
TRAILER: Final = struct.Struct("<II")
PREFIX: Final = struct.Struct("<Q4sB")
OVERHEAD: Final = HEADER.size + TRAILER.size


class Header(NamedTuple):
    """A frame's header, after its checksum was found right."""

    flags: int
    sections: int
    generation: int
    sequence: int
    position: int
    time_us: int
    epoch: int
    body_bytes: int
    messages: int
    crc: int

    @property
    def bytes(self) -> int:
        """The whole frame's length."""
        return OVERHEAD + self.body_bytes

    @property
    def end(self) -> int:
        """Where in its file the next frame begins."""
        return self.position + OVERHEAD + self.body_bytes

    @property
    def seal(self) -> bool:
        return bool(self.flags & SEAL)


class Frame:
    """A frame that was read and found whole."""

    __slots__ = ("_sections", "body", "header", "segment")

    def __init__(self, header: Header, body: memoryview, segment: int) -> None:
        self.header = header
        self.body = body
        self.segment = segment
        self._sections: list[Section] | None = None

    @property
    def sequence(self) -> int:
        return self.header.sequence

    @property
    def sections(self) -> list[Section]:
        """Its sections; a kind that this version must know and does not is `CorruptJournal`."""
        if self._sections is None:
            self._sections = sections(self.body, self.header.sections)
        return self._sections

    def spans(self) -> list[Span]:
        """What its sections' headers say."""
        return [section.span for section in self.sections]


class Body(NamedTuple):
    """A commit's sections, encoded in parts, before it is known where they go."""

    parts: list[bytes]
    bytes: int
    spans: list[Span]
    messages: int

    def sections(self) -> list[Section]:
        """What was encoded, as a reader will see it."""
        return sections(memoryview(b"".join(self.parts)), len(self.spans))


def body(batch: Sequence[Rows]) -> Body:
    """The sections of one commit. A row that shares another's payload must come after it."""
    if len(batch) == 1 and batch[0].share is None:  # nearly always
        only = batch[0]
        parts, size = only.encoded(None)
        if size <= limits.FRAME_BYTES_MAX:
            return Body(parts, size, [only.span()], only.count if only.kind is MESSAGES else 0)
    parts = []
    spans: list[Span] = []
    places: dict[int, int] = {}
    messages = size = 0
    for index, rows in enumerate(batch):
        places[id(rows)] = index
        encoded, length = rows.encoded(places[id(rows.share)] if rows.share is not None else None)
        parts += encoded
        size += length
        spans.append(rows.span())
        if rows.kind is MESSAGES:
            messages += rows.count
    if size > limits.FRAME_BYTES_MAX:
        raise BatchTooLarge(
            f"a commit of {size} bytes is over the bound of {limits.FRAME_BYTES_MAX}: make it several"
        )
    return Body(parts, size, spans, messages)


EMPTY: Final = Body([], 0, [], 0)


def encode(
    content: Body, generation: int, sequence: int, position: int, time_us: int, epoch: int, flags: int = 0
) -> list[bytes]:
    """The frame's bytes in parts, for that place and no other."""
    checked = CHECKED.pack(
        generation, MAGIC, VERSION, flags, len(content.spans), sequence, position, time_us, epoch, content.bytes,
        content.messages, 0,
    )  # fmt: skip
    return _closed(checked, content.parts)


def moved(frame: Frame, *, generation: int, position: int) -> list[bytes]:
    """The same commit, to be written at another place."""
    head = frame.header
    checked = CHECKED.pack(
        generation, MAGIC, VERSION, head.flags, head.sections, head.sequence, position, head.time_us, head.epoch,
        head.body_bytes, head.messages, 0,
    )  # fmt: skip
    return _closed(checked, [bytes(frame.body)])


def _closed(checked: bytes, parts: list[bytes]) -> list[bytes]:
    """The checksums are taken part by part: nothing is copied here."""
    crc = start = crc32(checked)
    for part in parts:
        crc = crc32(part, crc)
    return [checked, CRC.pack(start), *parts, TRAILER.pack(crc, 0)]


def header(data: memoryview, at: int, generation: int | None) -> Header | None:
    """The header at `at`, or None if there is no whole one of this generation (of any, where it is not known)."""
    if at + HEADER.size > len(data):
        return None
    found, magic, version, flags, count, sequence, position, time_us, epoch, size, messages, spare, crc = (
        HEADER.unpack_from(data, at)
    )
    if magic != MAGIC or (generation is not None and found != generation):
        return None
    if crc32(data[at : at + CHECKED.size]) != crc:
        return None
    if version != VERSION:
        raise CorruptJournal(
            f"a frame of format version {version} is not known to this version of Penstock (it knows {VERSION}): "
            "open the directory with a newer one"
        )
    if size > limits.FRAME_BYTES_MAX or size & 7 or spare:
        return None
    return Header(flags, count, found, sequence, position, time_us, epoch, size, messages, crc)


def body_of(data: memoryview, at: int, head: Header) -> memoryview | None:
    """The body behind a good header, or None if it is cut short or does not match its checksum."""
    start = at + HEADER.size
    end = start + head.body_bytes
    if end + TRAILER.size > len(data):
        return None
    crc, spare = TRAILER.unpack_from(data, end)
    content = data[start:end]
    return content if crc32(content, head.crc) == crc and not spare else None


def sought(generation: int) -> bytes:
    """The bytes that every frame of a generation begins with: what a scan searches for behind damage."""
    return PREFIX.pack(generation, MAGIC, VERSION)
