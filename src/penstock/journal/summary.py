"""What a sealed segment holds, so that opening, reading and Spark need not scan it.

A summary is made from the segment, belongs to one generation of it, and is thrown away and made again whenever it is missing,
damaged or of another generation. It is trusted for where things are, never for what they are: every frame is still
checked when it is read.
"""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from penstock.journal import envelope
from penstock.journal.columns import Values
from penstock.journal.directory import SUMMARY, Directory
from penstock.journal.files import read_whole, write_whole
from penstock.journal.index import LogIndex, SegmentIndex
from penstock.journal.segment import Label
from penstock.model.damage import Damage

WHAT: Final = b"SUMM"
VERSION: Final = 1


class LogSummary(msgspec.Struct, frozen=True, array_like=True):
    """One log in the segment: its bounds, and the index's arrays as bytes."""

    log: int
    first: int
    last: int
    rows: int
    oldest: int
    newest: int
    offsets: bytes
    positions: bytes
    peaks: bytes


class Summary(msgspec.Struct, frozen=True):
    """A sealed segment's content: which logs, offset and time ranges, and where."""

    number: int
    generation: int
    first_sequence: int
    next_sequence: int
    last_sequence: int
    end: int
    epoch: int
    oldest: int
    newest: int
    frames: int
    kinds: dict[int, int]
    logs: list[LogSummary]
    sequences: bytes
    positions: bytes
    damage: list[Damage]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Summary)


def of(label: Label, end: int, next_sequence: int, index: SegmentIndex, damage: list[Damage]) -> Summary:
    """The summary of a segment that was written or scanned."""
    logs = [
        LogSummary(
            number, log.first, log.last, log.rows, log.oldest, log.newest,
            log.offsets.tobytes(), log.positions.tobytes(), log.peaks.tobytes(),
        )
        for number, log in sorted(index.logs.items())
    ]  # fmt: skip
    return Summary(
        label.number, label.generation, label.first_sequence, next_sequence, index.last_sequence, end, index.epoch, index.oldest,
        index.newest, index.frames, index.kinds, logs, index.sequences.tobytes(), index.positions.tobytes(), damage,
    )  # fmt: skip


def index_of(summary: Summary) -> SegmentIndex:
    """The index that a summary was made from."""
    index = SegmentIndex()
    for stored in summary.logs:
        log = index.logs[stored.log] = LogIndex()
        log.first, log.last, log.rows = stored.first, stored.last, stored.rows
        log.oldest, log.newest = stored.oldest, stored.newest
        log.offsets, log.positions, log.peaks = map(
            _numbers, (stored.offsets, stored.positions, stored.peaks)
        )
    index.kinds = dict(summary.kinds)
    index.frames, index.last_sequence, index.epoch = summary.frames, summary.last_sequence, summary.epoch
    index.oldest, index.newest = summary.oldest, summary.newest
    index.sequences, index.positions = _numbers(summary.sequences), _numbers(summary.positions)
    return index


def _numbers(data: Values) -> array[int]:
    return array("q", data)


def write(directory: Directory, summary: Summary) -> None:
    data = envelope.wrap(WHAT, VERSION, _ENCODER.encode(summary))
    write_whole(directory.files, directory.file(summary.number, SUMMARY), data)


def read(directory: Directory, number: int) -> Summary | None:
    """The stored summary, or None if there is none that can be trusted."""
    try:
        body = envelope.unwrap(WHAT, VERSION, read_whole(directory.files, directory.file(number, SUMMARY)))
        return None if body is None else _DECODER.decode(body)
    except (FileNotFoundError, IsADirectoryError, msgspec.DecodeError):
        return None
