"""What a journal says of itself: what was found broken, what opening found, how much there is."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import structs

from penstock import limits

ROT: Final = "rot"
TORN: Final = "torn"
MISSING: Final = "missing"
HEADER: Final = "header"
STATE: Final = "state"

#: How a journal was left that was never opened before.
NEW: Final = "new"

#: Messages, as (log, first offset, last offset).
Offsets = tuple[int, int, int]


def known_messages(spans: list[Offsets]) -> int:
    """Return how many messages are named."""
    return sum(last - first + 1 for _, first, last in spans)


class Damage(msgspec.Struct, frozen=True):
    """A range of a segment that cannot be served.

    `what` is `rot` (it was whole once), `torn` (a crash cut it off before it was acknowledged), `missing` (the whole
    segment is gone), `header` (the segment's own header, which costs no message) or `state` (every snapshot is damaged, and what
    they alone still knew of segments that were dropped is gone).
    `messages` counts those known to be in it, by log and offsets in `spans`; `frames` is 0 where it cannot be told.
    """

    segment: int
    position: int
    end: int
    what: str
    frames: int = 0
    messages: int = 0
    spans: list[Offsets] = []
    copy: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it is known which messages it cost."""
        return self.what == HEADER or (bool(self.frames) and known_messages(self.spans) >= self.messages)

    @property
    def bytes(self) -> int:
        return self.end - self.position

    @property
    def reach(self) -> int:
        """Where it ends. A segment that is gone, or of which nothing can be read, is gone to its end, wherever that was."""
        return limits.OFFSET_MAX if self.whole_file else self.end

    @property
    def whole_file(self) -> bool:
        """Whether nothing of a segment could be read, so that it is not known either how long it was."""
        return self.what == MISSING or (self.what == ROT and self.position == 0)

    def costing(self, spans: list[Offsets]) -> Damage:
        """The same damage, which cost these messages as well."""
        spans = [*self.spans, *spans]
        return structs.replace(self, spans=spans, messages=max(self.messages, known_messages(spans)))

    def __str__(self) -> str:
        logs = ", ".join(f"log {log} offsets {first}–{last}" for log, first, last in self.spans)
        return (
            f"{self.what} in segment {self.segment}, bytes {self.position}–{self.end}: {self.messages} messages"
            + (f" ({logs})" if logs else "")
        )


class Report(msgspec.Struct):
    """What opening found and did. `end` is how the journal was left: new, clean, torn, or rot that nobody had found before.

    `damage` lists all that is known, `cut` the torn ends that were cut off.
    """

    end: str = NEW
    frames: int = 0
    messages: int = 0
    segments: int = 0
    bytes: int = 0
    snapshot: int | None = None
    rescued_frames: int = 0
    summaries_rebuilt: int = 0
    snapshots_damaged: int = 0
    mark_damaged: bool = False
    seconds: float = 0.0
    cut: list[Damage] = []
    damage: list[Damage] = []


class JournalStats(msgspec.Struct, frozen=True):
    """What the journal knows of itself."""

    sequence: int
    durable_sequence: int
    epoch: int
    segments: int
    bytes: int
    written: int  # since it was opened
    messages: int
    free_segments: int
    snapshots: list[int]
    snapshot_us: int | None  # when the newest one was taken
    damaged_messages: int
    damage: list[Damage]
    failure: str | None
    recovery: Report
