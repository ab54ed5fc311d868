"""The writer of a segment: what it does to the file around the frames. Scanning is tried by the tests of recovery."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock import limits
from penstock.journal import Durability, Journal, JournalReader, messages
from penstock.journal import frame as frames
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.segment import START, Label, Scan, Writer
from tests.unit.journal.watched import Watched, failing, nothing


class Zeros:
    """Notes where blocks of zeros were written."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []

    def __call__(self, name: str, arguments: tuple[object, ...]) -> None:
        if name == "pwrite":
            _, data, position = arguments
            assert isinstance(data, bytes | memoryview)
            assert isinstance(position, int)
            if not any(data):
                self.places.append((position, position + len(data)))


def publish(journal: Journal, number: int, size: int = 100) -> None:
    journal.commit([messages(1, [b"%0*d" % (size, number)], ids=number, timestamp=number)])


def test_a_new_file_is_prefilled_a_step_ahead(tmp_path: Path) -> None:
    files, zeros = Watched(), Zeros()
    with Journal(tmp_path, files=files) as journal:
        files.before = zeros
        for number in range(60):
            publish(journal, number, 20_000)
            assert not zeros.places or zeros.places[-1][1] > journal.segments()[-1].end
        files.before = nothing
        assert 2 <= len(zeros.places) <= 4
        assert all(stop - start == limits.ALLOCATE_STEP_BYTES for start, stop in zeros.places)
        assert len(list(JournalReader(tmp_path).frames())) == 61


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_only_where_every_commit_is_synced(tmp_path: Path, durability: Durability) -> None:
    files, zeros = Watched(), Zeros()
    files.before = zeros
    with Journal(tmp_path, files=files, durability=durability) as journal:
        for number in range(100):
            publish(journal, number, 20_000)
    assert zeros.places == []


def test_frames_longer_than_a_step_are_not_written_twice(tmp_path: Path) -> None:
    files, zeros = Watched(), Zeros()
    with Journal(tmp_path, files=files) as journal:
        for number in range(3):
            publish(journal, number, limits.ALLOCATE_STEP_BYTES)
            files.before = zeros
    assert zeros.places == []


def test_a_recycled_file_is_not_prefilled(tmp_path: Path) -> None:
    files, zeros = Watched(), Zeros()
    with Journal(tmp_path, files=files, segment_bytes=64 << 10) as journal:
        for number in range(10):
            publish(journal, number, 20_000)
        for number in range(2):
            publish(journal, number)
            journal.snapshot(b"")
        clean(journal, lambda _log, first, last: [DeadRange(first, last, 0)])
        assert journal.stats().free_segments
        journal.rotate()
        assert journal.segments()[-1].label.recycled
        room = journal.segments()[-1].end
        files.before = zeros
        publish(journal, 1)
    assert room == START
    assert zeros.places == []


def test_a_disk_that_refuses_zeros_costs_nothing(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        refuse = failing("pwrite", errno.ENOSPC)

        def refuse_zeros(name: str, arguments: tuple[object, ...]) -> None:
            if name == "pwrite" and isinstance(arguments[1], bytes) and not any(arguments[1]):
                refuse(name, arguments)

        files.before = refuse_zeros
        publish(journal, 1)
        publish(journal, 2)
        files.before = nothing
        assert journal.stats().failure is None
        assert [bytes(p) for batch in journal.read(1) for p in batch.values("payload")] == [
            b"%0100d" % 1,
            b"%0100d" % 2,
        ]


class Room:
    """Notes what room was taken, on a disk that has only so much of it at once; which it gives, before it says that it is not enough."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[int] = []
        self.refused = 0

    def __call__(self, name: str, arguments: tuple[object, ...]) -> None:
        if name == "posix_fallocate":
            fd, position, size = arguments
            assert isinstance(fd, int)
            assert isinstance(position, int)
            assert isinstance(size, int)
            assert os.fstat(fd).st_size == position
            if size > self.most:
                self.refused += 1
                os.posix_fallocate(fd, position, self.most)
                raise OSError(errno.ENOSPC, "no room for so much")
            self.taken.append(size)


def test_a_file_that_grows_takes_room_in_longer_steps(tmp_path: Path) -> None:
    files, room = Watched(), Room(1 << 30)
    files.before = room
    with Journal(tmp_path, files=files, durability="os") as journal:
        for number in range(100):
            publish(journal, number, 512 << 10)
            end = journal.segments()[-1].end
            ahead = sum(room.taken) - end
            assert ahead <= limits.RESERVE_BYTES + max(2 * limits.ALLOCATE_STEP_BYTES, end // 2)
    assert len(room.taken) < 25
    assert max(room.taken) == limits.ALLOCATE_STEP_BYTES_MAX


def test_on_a_disk_with_little_room_the_steps_are_short(tmp_path: Path) -> None:
    files, room = Watched(), Room(2 << 20)
    files.before = room
    with Journal(tmp_path, files=files, durability="os") as journal:
        for number in range(40):
            publish(journal, number, 512 << 10)
        assert journal.next_offset(1) == 40
    assert room.refused > 5
    assert max(room.taken) == 2 << 20
    assert room.taken[-1] == limits.ALLOCATE_STEP_BYTES


def grown(tmp_path: Path, files: Files) -> Writer:
    """The writer of a file of some length, of which nothing is written."""
    writer = Writer.draft(
        Directory(files, tmp_path), Label(1, 77, 1, 0, 1), recycle=None, reserve=limits.RESERVE_BYTES
    )
    writer.make_room(16 << 20)
    return writer


@pytest.mark.parametrize("to_the_last_byte", [False, True])
def test_what_is_taken_when_there_is_no_room_for_a_short_step(tmp_path: Path, to_the_last_byte: bool) -> None:
    files = Watched()
    writer = grown(tmp_path, files)
    room, before = Room(1000), writer.allocated
    files.before = room
    size = writer.room() + 1000
    if to_the_last_byte:
        writer.make_room(size, to_the_last_byte=True)
        assert room.taken == [1000]
    else:
        with pytest.raises(OSError, match="no room"):
            writer.make_room(size)
        assert writer.allocated == before
    assert os.fstat(writer.fd).st_size == writer.allocated
    writer.close()


def test_another_error_than_want_of_room_is_tried_again(tmp_path: Path) -> None:
    files = Watched()
    writer = grown(tmp_path, files)
    calls = 0

    def fail(name: str, _arguments: tuple[object, ...]) -> None:
        nonlocal calls
        calls += 1
        raise OSError(errno.EIO, name)

    files.before = fail
    with pytest.raises(OSError, match="posix_fallocate"):
        writer.make_room(writer.room() + 1, to_the_last_byte=True)
    assert calls == 1
    files.before = nothing
    writer.close()


def test_a_frame_whose_number_does_not_rise_is_not_served(tmp_path: Path) -> None:
    """Its checksums, generation and place are right: whoever wrote it was at fault, and the same commit must not count twice."""
    directory = Directory(Files(), tmp_path)
    writer = Writer.draft(directory, Label(1, 77, 1, 0, 1), recycle=None, reserve=0)
    for sequence in (5, 5, 3, 6):
        rows = messages(1, [b"%d" % sequence], ids=1, timestamp=0, offset=sequence)
        rows.prepare(alone=True)
        content = frames.body([rows])
        writer.write(content, sequence, 0, 1)
        writer.end += frames.OVERHEAD + content.bytes
    found = list(Scan(directory.files, writer.fd, writer.label, limit=writer.end))
    writer.close()
    assert [item.sequence if isinstance(item, Frame) else "bad" for item in found] == [5, "bad", "bad", 6]
