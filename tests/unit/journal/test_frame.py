"""A frame holds whole or not at all, and only at its own place."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock.errors import BatchTooLarge, CorruptJournal
from penstock.journal import frame as frames
from penstock.journal.frame import EMPTY, Frame
from penstock.journal.rows import Rows, messages


def rows(payload: bytes = b"hello") -> Rows:
    found = messages(1, [payload, payload], ids=range(2), timestamp=3, offset=range(2))
    found.prepare(alone=True)
    return found


def encoded(position: int = 64) -> bytes:
    content = frames.body([rows()])
    parts = frames.encode(
        content, generation=0xABCDEF0123456789, sequence=5, position=position, time_us=77, epoch=2
    )
    return b"".join(parts)


def test_a_frame_is_read_back_as_it_was_written() -> None:
    view = memoryview(encoded())
    head = frames.header(view, 0, 0xABCDEF0123456789)
    assert head is not None
    assert (head.sequence, head.position, head.time_us, head.epoch, head.messages) == (5, 64, 77, 2, 2)
    assert head.bytes == len(view)
    content = frames.body_of(view, 0, head)
    assert content is not None
    (section,) = Frame(head, content, 1).sections
    assert list(section.values("payload")) == [b"hello", b"hello"]


def test_every_flipped_bit_is_found() -> None:
    data = encoded()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        view = memoryview(bytes(flipped))
        head = frames.header(view, 0, 0xABCDEF0123456789)
        assert head is None or frames.body_of(view, 0, head) is None


def test_every_cut_is_found() -> None:
    data = encoded()
    for size in range(len(data)):
        view = memoryview(data[:size])
        head = frames.header(view, 0, None)
        assert head is None or frames.body_of(view, 0, head) is None


def test_a_body_never_passes_under_another_frames_header() -> None:
    one, other = encoded(64), encoded(128)
    mixed = memoryview(one[: frames.HEADER.size] + other[frames.HEADER.size :])
    head = frames.header(mixed, 0, None)
    assert head is not None
    assert frames.body_of(mixed, 0, head) is None


def test_another_generation_is_not_ours() -> None:
    assert frames.header(memoryview(encoded()), 0, 1) is None


def test_a_moved_frame_holds_the_same_commit() -> None:
    view = memoryview(encoded())
    head = frames.header(view, 0, None)
    assert head is not None
    content = frames.body_of(view, 0, head)
    assert content is not None
    moved = memoryview(b"".join(frames.moved(Frame(head, content, 1), generation=9, position=800)))
    new = frames.header(moved, 0, 9)
    assert new is not None
    assert new._replace(generation=head.generation, position=64, crc=head.crc) == head
    assert frames.body_of(moved, 0, new) == content


def test_a_newer_version_is_an_error_and_not_damage() -> None:
    data = bytearray(encoded())
    data[12] = 9
    checked = bytes(data[: frames.CHECKED.size])
    newer = checked + frames.CRC.pack(__import__("zlib").crc32(checked)) + bytes(data[frames.HEADER.size :])
    with pytest.raises(CorruptJournal, match="version 9"):
        frames.header(memoryview(newer), 0, None)


def test_a_commit_above_the_bound_is_refused() -> None:
    with pytest.raises(BatchTooLarge):
        frames.body([rows(bytes(limits.FRAME_BYTES_MAX))])


def test_frames_begin_and_end_on_a_multiple_of_eight() -> None:
    assert len(encoded()) % 8 == 0
    assert frames.HEADER.size == 64
    assert (
        len(b"".join(frames.encode(EMPTY, generation=1, sequence=1, position=64, time_us=0, epoch=1)))
        == frames.OVERHEAD
        == 72
    )
