"""A small checksummed file that is replaced whole: summaries and snapshots come in one.

Layout::

     0                8          12         16                 24        28        32
    +----------------+----------+----------+------------------+---------+---------+----------…
    | magic PENSTOCK | what 4s  | version  | bytes u64        | body crc| head crc| body
    +----------------+----------+----------+------------------+---------+---------+----------…

A flipped bit, a cut or a foreign file is found by `unwrap`, which gives None: what an envelope holds can always be made again
from the segments, so damage to one costs time and never data. A later version is an error instead, because a
newer Penstock wrote it on purpose.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import CorruptJournal
from penstock.journal.checksum import crc32

MAGIC: Final = b"PENSTOCK"
HEAD: Final = struct.Struct("<8s4sIQII")
CHECKED: Final = struct.Struct("<8s4sIQI")
CRC: Final = struct.Struct("<I")


def wrap(what: bytes, version: int, body: bytes) -> bytes:
    """`body` in an envelope that says what it is."""
    checked = CHECKED.pack(MAGIC, what, version, len(body), crc32(body))
    return checked + CRC.pack(crc32(checked)) + body


def unwrap(what: bytes, version: int, data: bytes) -> bytes | None:
    """The body, or None if the envelope is damaged or is not of this kind."""
    if len(data) < HEAD.size:
        return None
    magic, found, written, size, body_crc, head_crc = HEAD.unpack_from(data)
    if magic != MAGIC or found != what or crc32(data[: CHECKED.size]) != head_crc:
        return None
    if written != version:
        raise CorruptJournal(
            f"{what.decode()} of format version {written} is not known to this version of Penstock "
            f"(it knows {version}): open the directory with a newer one"
        )
    body = data[HEAD.size :]
    return body if len(body) == size and crc32(body) == body_crc else None
