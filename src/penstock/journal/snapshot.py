"""The state at a sequence number, so that opening need not replay what came before. Two are always kept.

A snapshot holds the journal's own state (see `state`), opaque bytes of whoever uses the journal, and the index of the segment
that was being written, so that not even that is scanned from its start. It is written beside the others, synced, read back from
the disk, and only then given its name; then all but the two newest go. Frames are kept until both snapshots cover
them, so a damaged snapshot costs the time to replay from the one before it, and two damaged ones cost the time to replay
everything that is left. If segments were dropped, what only the two knew is gone: that is reported, and offsets are given up (see `recovery`).

A snapshot never covers a frame that is not synced: after a power cut it would be ahead of the journal.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock import limits
from penstock.journal import envelope
from penstock.journal.directory import SNAPSHOT, Directory
from penstock.journal.files import read_whole, write_whole
from penstock.journal.state import Stored
from penstock.journal.summary import Summary

WHAT: Final = b"SNAP"
VERSION: Final = 1


class Snapshot(msgspec.Struct, frozen=True):
    """What was true after `sequence`. The journal's own part may be of a later, synced commit: replaying is idempotent for it."""

    sequence: int
    epoch: int
    time_us: int
    journal: Stored
    active: Summary
    state: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Snapshot)


def write(directory: Directory, snapshot: Snapshot) -> None:
    """Write and read back a snapshot, then drop all but the newest two. A crash leaves a draft, or one too many."""
    data = envelope.wrap(WHAT, VERSION, _ENCODER.encode(snapshot))
    write_whole(directory.files, directory.file(snapshot.sequence, SNAPSHOT), data, check=True)
    outdated = directory.contents().snapshots[: -limits.SNAPSHOTS_KEPT]
    for sequence in outdated:
        directory.files.unlink(directory.file(sequence, SNAPSHOT))
    if outdated:
        directory.files.sync_directory(directory.path)


def read(directory: Directory, sequence: int) -> Snapshot | None:
    """The snapshot of that sequence number, or None if it is damaged, gone, or one of another number."""
    found = read_named(directory, sequence)
    return found if found is not None and found.sequence == sequence else None


def read_named(directory: Directory, sequence: int) -> Snapshot | None:
    """What is in the file of that name, whichever snapshot it is; None if it is damaged or gone."""
    try:
        body = envelope.unwrap(WHAT, VERSION, read_whole(directory.files, directory.file(sequence, SNAPSHOT)))
        return None if body is None else _DECODER.decode(body)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
