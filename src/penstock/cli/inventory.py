"""What a journal's directory holds, gathered without its lock for `penstock journal info`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.errors import InvalidArgument
from penstock.journal import mark as marks
from penstock.journal import reading
from penstock.journal import snapshot as snapshots
from penstock.journal.directory import holder
from penstock.journal.kinds import CLEANED, METADATA
from penstock.journal.snapshot import Snapshot
from penstock.journal.state import State
from penstock.journal.view import DirectoryView, SegmentInfo
from penstock.model.damage import HEADER, Damage


class MarkFacts(msgspec.Struct):
    """The mark: up to where the journal is synced."""

    sequence: int
    segment: int
    end: int
    time_us: int
    epoch: int


class LogRange(msgspec.Struct):
    """A log within one segment."""

    number: int
    first: int
    last: int
    messages: int


class SegmentFacts(msgspec.Struct):
    """One segment. `state` is sealed, active or damaged."""

    number: int
    state: str
    frames: int
    messages: int
    bytes: int
    oldest_us: int
    newest_us: int
    logs: list[LogRange]


class LogFacts(msgspec.Struct):
    """One log over all segments."""

    number: int
    name: str | None
    first: int | None
    next: int
    messages: int


class Inventory(msgspec.Struct):
    """A journal's directory. `snapshot_us` is the time of the newest whole snapshot."""

    path: str
    holder: str | None
    epoch: int
    mark: MarkFacts | None
    messages: int
    bytes: int
    segments: list[SegmentFacts]
    logs: list[LogFacts]
    snapshots: list[int]
    snapshot_us: int | None
    free: list[int]
    quarantine: list[str]
    damage: list[Damage]


def take(path: Path, progress: Callable[[int], None]) -> Inventory:
    """Look at a directory: summaries where there are any, and what was written since."""
    view = DirectoryView(path.absolute(), progress=progress)
    view.directory.require_journal()
    owner = holder(view.directory)
    mark = view.refresh()
    infos = view.segments()
    contents = view.directory.contents()
    segments = [_segment(info, view.damage) for info in infos]
    remembered = _newest(view, contents.snapshots)
    stored = marks.read(view.directory.files, view.directory.mark)
    return Inventory(
        path=str(view.directory.path),
        holder=owner,
        epoch=mark.epoch,
        mark=MarkFacts(*stored) if stored else None,
        messages=sum(s.messages for s in segments),
        bytes=sum(s.bytes for s in segments),
        segments=segments,
        logs=_logs(view, infos, remembered),
        snapshots=contents.snapshots,
        snapshot_us=remembered.time_us if remembered is not None else None,
        free=contents.free,
        quarantine=_names(view),
        damage=view.damage,
    )


def _segment(info: SegmentInfo, damage: list[Damage]) -> SegmentFacts:
    hurt = any(d.segment == info.number and d.what != HEADER for d in [*damage, *info.damage])
    index = info.index
    logs = [LogRange(number, log.first, log.last, log.rows) for number, log in sorted(index.logs.items())]
    state = "damaged" if hurt else "sealed" if info.sealed else "active"
    return SegmentFacts(
        info.number, state, index.frames, index.messages, info.end, index.oldest, index.newest, logs
    )


def _newest(view: DirectoryView, sequences: list[int]) -> Snapshot | None:
    """The newest whole snapshot."""
    for sequence in reversed(sequences):
        found = snapshots.read(view.directory, sequence)
        if found is not None:
            with suppress(InvalidArgument):
                State(found.journal)
                return found
    return None


def _logs(view: DirectoryView, infos: list[SegmentInfo], remembered: Snapshot | None) -> list[LogFacts]:
    state = State(remembered.journal if remembered is not None else None)
    covered = remembered.sequence if remembered is not None else 0
    first: dict[int, int] = {}
    messages: dict[int, int] = {}
    for info in infos:
        for number, log in info.index.logs.items():
            first.setdefault(number, log.first)
            messages[number] = messages.get(number, 0) + log.rows
            state.next_offsets[number] = max(state.next_offsets.get(number, 0), log.last + 1)
    telling = {METADATA.number, CLEANED.number}
    if any(telling & info.index.kinds.keys() and info.index.last_sequence > covered for info in infos):
        for frame in reading.frames(view, covered):
            state.apply(frame.spans(), lambda frame=frame: frame.sections)  # type: ignore[misc]
    numbers = sorted(state.next_offsets.keys() | state.names.keys())
    return [
        LogFacts(n, state.names.get(n), first.get(n), state.next_offset(n), messages.get(n, 0))
        for n in numbers
    ]


def _names(view: DirectoryView) -> list[str]:
    quarantine = view.directory.quarantine
    return view.directory.files.names(quarantine) if quarantine.is_dir() else []
