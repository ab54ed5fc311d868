"""One file of frames: append, scan, seal.

Theory of operation
-------------------
A segment begins with a header of 64 bytes, twice, so that one damaged place never costs it; then frames without a gap, and, once it
is finished, a *seal* (an empty frame that says so)::

     0                8         10      12       16             24                32                 40
    +----------------+---------+-------+--------+--------------+-----------------+------------------+
    | magic PENSTOCK | version | flags | 0      | number u64   | generation u64  | first sequence   |
    +----------------+---------+-------+--------+--------------+-----------------+------------------+
    40               48          52                            60        64
    +----------------+-----------+-----------------------------+---------+------------------------
    | created i64 µs | epoch u32 | 0                           | crc u32 | the same again, then frames …
    +----------------+-----------+-----------------------------+---------+------------------------

What always holds:

- A segment ends where its successor begins: frames with a sequence at or above the successor's first one are superseded (recovery
  has copied them), whatever they look like.
- Behind the last frame there is room taken in advance (zeros), or, in a recycled file, what its earlier life left: frames
  of another generation. Sealing cuts that off.
- The file is written at explicit positions, so a write that was interrupted is simply made again.

`Scan` walks a file and tells good frames from bad ranges. Behind a bad range it goes on at the next place where a header of this
generation, made for that very place, is whole; so one damaged byte never costs more than one frame.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock import limits
from penstock.errors import CorruptJournal
from penstock.journal import frame as frames
from penstock.journal.checksum import crc32
from penstock.journal.directory import FREE, TMP, Directory
from penstock.journal.files import NO_ROOM, Files
from penstock.journal.frame import EMPTY, SEAL, Body, Frame, Header
from penstock.journal.index import SegmentIndex
from penstock.journal.kernel import KernelSync
from penstock.journal.kinds import CLEANED, KINDS, METADATA, Span
from penstock.journal.section import intact_spans

MAGIC: Final = b"PENSTOCK"
VERSION: Final = 1
RECYCLED: Final = 1
GAPS: Final = 2

LAYOUT: Final = struct.Struct("<8sHHIQQQqIQI")
CHECKED: Final = struct.Struct("<8sHHIQQQqIQ")
CRC: Final = struct.Struct("<I")
START: Final = 2 * LAYOUT.size


class Label(NamedTuple):
    """A segment's header. `GAPS`: frames were left out on purpose, when it was rewritten or rescued."""

    number: int
    generation: int
    first_sequence: int
    created_us: int
    epoch: int
    flags: int = 0

    @property
    def recycled(self) -> bool:
        return bool(self.flags & RECYCLED)


def encode_label(label: Label) -> bytes:
    checked = CHECKED.pack(
        MAGIC, VERSION, label.flags, 0, label.number, label.generation, label.first_sequence, label.created_us,
        label.epoch, 0,
    )  # fmt: skip
    return 2 * (checked + CRC.pack(crc32(checked)))


def decode_label(data: bytes) -> Label | None:
    """The header of a segment, from the first of its two copies that is whole; None if neither is."""
    first = _decode_one(data[: LAYOUT.size])
    return first if first is not None else _decode_one(data[LAYOUT.size : START])


def _decode_one(data: bytes) -> Label | None:
    if len(data) < LAYOUT.size or crc32(data[: CHECKED.size]) != CRC.unpack_from(data, CHECKED.size)[0]:
        return None
    magic, version, flags, spare, number, generation, first, created, epoch, rest = CHECKED.unpack_from(data)
    if magic != MAGIC or spare or rest:
        return None
    if version != VERSION:
        raise CorruptJournal(
            f"a segment of format version {version} is not known to this version of Penstock (it knows {VERSION}): "
            "open the directory with a newer one"
        )
    return Label(number, generation, first, created, epoch, flags)


class Bad(NamedTuple):
    """A range of bytes that is not a good frame, and what can still be said of it.

    `flaw` says what is wrong with a frame whose checksums are right. No crash leaves such a thing: whoever wrote it was at fault.
    """

    segment: int
    position: int
    end: int
    header: Header | None
    spans: list[Span]
    flaw: str = ""


def flaw_of(frame: Frame) -> str:
    """Why a frame whose checksums are right cannot be taken in; "" if it can.

    That is looked at which everybody relies on: the sections' headers, and the columns from which the journal knows itself. Rows that only a newer
    version knows are no flaw: they are `CorruptJournal`, which says so.
    """
    try:
        for section in frame.sections:
            if section.kind is METADATA or section.kind is CLEANED:
                for name in section.kind.fields:
                    section.values(name)
    except CorruptJournal as error:
        if any(span.kind not in KINDS for span in intact_spans(frame.body)):
            raise
        return str(error)
    except (struct.error, ValueError, IndexError, TypeError, KeyError) as error:
        return f"a column cannot be read: {error}"
    return ""


class Scan:
    """Walks the frames of an open segment from `position` to `limit`; iterate once.

    Afterwards `end` is where the last frame ended, `seal` the seal if one was there, `last_sequence` the last good one.
    """

    def __init__(
        self,
        files: Files,
        fd: int,
        label: Label,
        *,
        position: int = START,
        limit: int,
        stop_sequence: int | None = None,
        last_sequence: int = 0,
    ) -> None:
        self._files = files
        self._fd = fd
        self._label = label
        self._limit = limit
        self._stop = stop_sequence
        self._base = 0
        self._window = memoryview(b"")
        self._chunk = limits.READ_CHUNK_BYTES
        self.end = position
        self.seal: Header | None = None
        self.stopped = False  # at the sequence number where it was to stop
        self.last_sequence = last_sequence

    def __iter__(self) -> Iterator[Frame | Bad]:
        while self.end + frames.HEADER.size <= self._limit:
            head = self._header(self.end)
            body = self._body(head) if head is not None else None
            if head is None or body is None or head.sequence <= self.last_sequence:
                following = self._next_header(self.end, head)
                if head is None and following is None:
                    return
                end = following if following is not None else self._limit
                if head is None:
                    yield Bad(self._label.number, self.end, end, None, [])
                else:
                    yield Bad(self._label.number, self.end, min(head.end, end), head, self._spans(head))
                    if following is None:
                        self.end = min(head.end, end)
                        return
                    if head.end < end:  # what is behind it was another frame, of which nothing is known
                        yield Bad(self._label.number, head.end, end, None, [])
                self.end = end
                continue
            if self._stop is not None and head.sequence >= self._stop and not head.seal:
                self.stopped = True
                return
            self.end = head.end
            if head.seal:
                self.seal = head
                return
            self.last_sequence = head.sequence
            frame = Frame(head, body, self._label.number)
            if flaw := flaw_of(frame):
                yield Bad(self._label.number, head.position, head.end, head, intact_spans(body), flaw)
            else:
                yield frame

    @property
    def sealed(self) -> bool:
        return self.seal is not None

    def _at(self, position: int, size: int) -> int:
        """Have `size` bytes from `position` in the window, as far as the limit goes; where they begin in it."""
        at = position - self._base
        if at < 0 or at + size > len(self._window):
            # Reads grow as the scan goes on: looking up one message is cheap, and so is walking a whole file.
            size = min(max(size, self._chunk), self._limit - position)
            self._chunk = min(self._chunk * 2, limits.SCAN_CHUNK_BYTES)
            self._window = memoryview(self._files.read(self._fd, size, position))
            self._base, at = position, 0
        return at

    def _header(self, position: int) -> Header | None:
        at = self._at(position, frames.HEADER.size)
        head = frames.header(self._window, at, self._label.generation)
        return head if head is not None and head.position == position else None

    def _body(self, head: Header) -> memoryview | None:
        if head.end > self._limit:
            return None
        at = self._at(head.position, head.bytes)  # before the window is looked at: this may exchange it
        return frames.body_of(self._window, at, head)

    def _spans(self, head: Header | None) -> list[Span]:
        if head is None:
            return []
        at = self._at(head.position, head.bytes) + frames.HEADER.size
        return intact_spans(self._window[at : at + head.body_bytes])

    def _next_header(self, position: int, head: Header | None) -> int | None:
        """The next place behind `position` where a header of ours is whole."""
        if head is not None and head.end < self._limit and self._header(head.end) is not None:
            return head.end
        pattern = frames.sought(self._label.generation)
        position += 8
        while position + frames.HEADER.size <= self._limit:
            at = self._at(position, frames.HEADER.size)
            # A file that is shorter than it was: do not step through what is gone.
            if len(self._window) - at < frames.HEADER.size:
                return None
            found = self._window.obj.find(pattern, at)  # type: ignore[attr-defined]
            if found < 0:
                position = max(self._base + len(self._window) - len(pattern), position) + 8 & ~7
                continue
            position = self._base + found
            if not position & 7 and self._header(position) is not None:
                return position
            position = (position + 8) & ~7
        return None


class Reading(NamedTuple):
    """A segment's header as it was read, and whether it is `intact`, as it was written; None and intact if it is another segment's.

    If both copies are damaged it is `pieced` together from the first whole frame, which may be of the file's earlier life: see `labels`.
    """

    label: Label | None
    intact: bool = True
    pieced: Header | None = None


def read_label(files: Files, fd: int, number: int) -> Reading:
    """A segment's header, as far as the file itself tells it."""
    stored = files.read(fd, START, 0)
    label = decode_label(stored)
    if label is not None:
        return Reading(label, encode_label(label) == stored) if label.number == number else Reading(None)
    data = files.read(fd, limits.SCAN_CHUNK_BYTES, 0)
    view = memoryview(data)
    at = data.find(frames.MAGIC, START)
    while at >= 0:
        head = frames.header(view, at - 8, None) if at >= START + 8 and not at & 7 else None
        if head is not None and head.position == at - 8:
            flags = GAPS if head.position > START else 0
            label = Label(number, head.generation, head.sequence, head.time_us, head.epoch, flags)
            return Reading(label, intact=False, pieced=head)
        at = data.find(frames.MAGIC, at + 1)
    return Reading(None, intact=False)


_ZEROS: Final = bytes(limits.ALLOCATE_STEP_BYTES)


class Writer:
    """The segment that is appended to. Its caller decides when to sync.

    Where every commit is synced, a new file is *prefilled*, a step ahead of the frames: blocks that were written once can be synced
    without the file system's own journal, as in a recycled segment. That costs a second write of each block, and makes syncs
    about a third quicker.
    """

    def __init__(
        self, directory: Directory, label: Label, fd: int, end: int, allocated: int, written: int
    ) -> None:
        self._files = directory.files
        self.fd = fd
        self.label = label
        self.end = end
        self.allocated = allocated
        self._written = written  # nothing was ever written from here on
        self._synced = end  # where the frames ended at the last sync
        self.index = SegmentIndex()

    @classmethod
    def draft(cls, directory: Directory, label: Label, *, recycle: int | None, reserve: int) -> Writer:
        """A new segment under a name that recovery throws away: a used file, or a new one with `reserve` bytes taken."""
        files = directory.files
        if recycle is not None:
            fd = files.open(directory.file(recycle, FREE), write=True)
            label = label._replace(flags=label.flags | RECYCLED)
        else:
            fd = files.open(cls._draft_path(directory, label.number), write=True, create=True)
        try:
            if recycle is None:
                files.truncate(fd, 0)
                files.allocate(fd, 0, START + reserve)
            files.write(fd, encode_label(label), 0)
            size = files.size(fd)
            return cls(directory, label, fd, START, size, START if recycle is None else size)
        except BaseException:
            files.close(fd)
            if recycle is None:
                with contextlib.suppress(OSError):  # recovery would throw it away, later
                    files.unlink(cls._draft_path(directory, label.number))
            raise

    @staticmethod
    def _draft_path(directory: Directory, number: int) -> Path:
        path = directory.segment(number)
        return path.with_name(path.name + TMP)

    @classmethod
    def reopened(cls, directory: Directory, label: Label, end: int) -> Writer:
        """A segment that exists, to be written on from `end`."""
        files = directory.files
        fd = files.open(directory.segment(label.number), write=True)
        try:
            size = files.size(fd)
            return cls(directory, label, fd, end, size, size)
        except BaseException:
            files.close(fd)
            raise

    def claim_room(self) -> None:
        """Make sure of the room behind the last frame: in a sparse copy of a journal it is only a number."""
        try:
            self._files.allocate(self.fd, self.end, self.room())
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.allocated = self.end

    def publish(self, directory: Directory, *, recycle: int | None) -> None:
        """Give a synced draft its name. From here on it is part of the journal."""
        self.rename(directory, recycle=recycle)
        self._files.sync_directory(directory.path)

    def rename(self, directory: Directory, *, recycle: int | None) -> None:
        """Give a synced draft its name, not yet for good."""
        old = (
            self._draft_path(directory, self.label.number)
            if recycle is None
            else directory.file(recycle, FREE)
        )
        self._files.rename(old, directory.segment(self.label.number))

    def discard(self, directory: Directory, *, recycle: int | None) -> None:
        """Give the space of a new draft back, now if it can be; recovery would, later. A used file stays what it was."""
        if recycle is None:
            with contextlib.suppress(OSError):
                self._files.unlink(self._draft_path(directory, self.label.number))

    def write(self, content: Body, sequence: int, time_us: int, epoch: int, flags: int = 0) -> None:
        """Write a frame behind the last one: made again, it writes the same bytes to the same place."""
        end = self.end
        data = frames.encode(content, self.label.generation, sequence, end, time_us, epoch, flags)
        self._put(data, frames.OVERHEAD + content.bytes)

    def _put(self, data: list[bytes], size: int) -> None:
        stop = self.end + size
        if stop > self.allocated:
            # Nobody took room for it, as when a journal is opened on a full disk. From here on it counts as taken, so that it is not
            # given back with what was asked for in vain.
            self.allocated = stop
        self._files.write(self.fd, data, self.end)

    def advance(self, content: Body, sequence: int, time_us: int, epoch: int) -> None:
        """Go behind a frame that was written."""
        self.index.add_frame(self.end, sequence, time_us, epoch, content.spans)
        self.end += frames.OVERHEAD + content.bytes

    def append_moved(self, frame: Frame) -> None:
        """Write a frame of another segment behind the last one."""
        head = frame.header
        self._put(frames.moved(frame, generation=self.label.generation, position=self.end), head.bytes)
        self.index.add_frame(self.end, head.sequence, head.time_us, head.epoch, frame.spans())
        self.end += head.bytes

    def seal(self, *, sequence: int, time_us: int, epoch: int) -> None:
        """Say that this is the end, and sync. `sequence` is the one the next segment begins with."""
        self.write(EMPTY, sequence, time_us, epoch, SEAL)
        self.end += frames.OVERHEAD
        self.sync()

    def sync(self) -> None:
        self._files.sync(self.fd)

    def begin_sync(self, kernel: KernelSync) -> None:
        self._files.begin_sync(kernel, self.fd)

    def room(self) -> int:
        """Bytes that can be written without asking the disk for more."""
        return self.allocated - self.end

    def make_room(self, size: int, *, to_the_last_byte: bool = False) -> None:
        """Take room for `size` more bytes than are written, in steps: the longer the file, the longer they are, as far as the disk has room.

        What is left of a short step stays free for snapshots, without which nothing is cleaned; `to_the_last_byte` takes even that.
        """
        wanted = self.end + size
        if wanted <= self.allocated:
            return
        short = limits.ALLOCATE_STEP_BYTES
        long = min(self.allocated // 4, limits.ALLOCATE_STEP_BYTES_MAX) // short * short
        if long > short and self._allocated_in(long, wanted):
            return
        if to_the_last_byte and self._allocated_in(short, wanted):
            return
        self._allocate(wanted if to_the_last_byte else -(-wanted // short) * short)

    def _allocated_in(self, step: int, wanted: int) -> bool:
        """Take room up to the next multiple of a step; False if there is not so much."""
        try:
            self._allocate(-(-wanted // step) * step)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def _allocate(self, wanted: int) -> None:
        try:
            self._files.allocate(self.fd, self.allocated, wanted - self.allocated)
        except OSError as error:
            # A file system may take all that there is before it says that it is not enough (ext4 does). Others need it.
            if error.errno in NO_ROOM:
                with contextlib.suppress(OSError):
                    self._files.truncate(self.fd, self.allocated)
            raise
        self.allocated = wanted

    def prefill(self) -> None:
        """Write zeros behind the last frame, if room there was taken but never written: to be synced with that frame."""
        grown, self._synced = self.end - self._synced, self.end
        if self.end < self._written or grown > len(_ZEROS) // 4:  # long frames would gain little
            return
        step = min(self.allocated - self.end, len(_ZEROS))
        with contextlib.suppress(OSError):  # it only saves time
            self._files.write(self.fd, _ZEROS[:step], self.end)
        self._written = self.end + step

    def trim(self, keep: int = 0) -> None:
        """Give back the room behind the last frame, all but `keep` bytes of it."""
        if self.allocated > self.end + keep:
            self._files.truncate(self.fd, self.end + keep)
            self.allocated = self.end + keep
            self._written = min(self._written, self.allocated)

    def close(self) -> None:
        self._files.close(self.fd)
