"""The kinds of rows a journal holds, and the header of a section: rows of one kind for one log.

Theory of operation
-------------------
A section is a header with its own checksum, a table of columns (see `columns`), and the columns' buffers::

     0        1      2           4          8                  16            20
    +--------+------+-----------+----------+------------------+-------------+
    | kind u8| bits | columns u16| rows u32 | log u64          | bytes u32   |
    +--------+------+-----------+----------+------------------+-------------+
    20               28              36               44               52        56
    +----------------+---------------+----------------+----------------+---------+
    | first i64      | last i64      | oldest i64     | newest i64     | crc u32 |
    +----------------+---------------+----------------+----------------+---------+

`first` and `last` bound the offsets, `oldest` and `newest` the times, of its rows, so that an index is built and a
reader skips without looking at a column. `bits` bit 0: a reader that does not know this kind must stop rather
than skip it; bit 1: it shares a column of an earlier section. The header's checksum lets a frame whose body rotted still say whose messages were lost.

Rows record outcomes, never commands: reading them back evaluates no policy, clock or chance.

To add a column: append it to its kind with the next number. Old readers skip it, old frames read as null. To add a kind: give
it the next number and decide whether a reader that does not know it may go on. Never renumber, never change a type.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.journal import columns as layout
from penstock.journal.columns import Encoding, Type

HEADER: Final = struct.Struct("<BBHIQIqqqqI")
CHECKED: Final = struct.Struct("<BBHIQIqqqq")
CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = HEADER.size
ENTRY_BYTES: Final = layout.ENTRY.size
PLACE_BYTES: Final = layout.PLACE.size
SHARED: Final = int(Encoding.SHARED)
MUST_KNOW: Final = 1
SHARES: Final = 2


class Field(NamedTuple):
    """A column of a kind: its stored number and type."""

    number: int
    type: Type


class Kind:
    """A kind of rows: its stored number, its columns, and which of them bound offsets and times."""

    def __init__(
        self,
        number: int,
        name: str,
        *,
        place: str | None,
        time: str,
        columns: dict[str, Type],
        required: frozenset[str] = frozenset(),
    ) -> None:
        self.number = number
        self.name = name
        self.bits = MUST_KNOW
        self.place = place
        self.time = time
        self.fields = {column: Field(i, kind) for i, (column, kind) in enumerate(columns.items(), 1)}
        # Columns without which a row cannot be told from a mistake, or found.
        self.required = required | {time} | ({place} if place else set())
        self.bounds = {column: layout.BOUNDS.get(kind, 0) for column, kind in columns.items()}
        self.blobs = frozenset(column for column, kind in columns.items() if kind is Type.BINARY)

    def __repr__(self) -> str:
        return f"Kind({self.name})"


_I16, _I32, _I64, _UTF8, _BINARY, _MAP = Type.I16, Type.I32, Type.I64, Type.UTF8, Type.BINARY, Type.MAP

MESSAGES: Final = Kind(1, "messages", place="offset", time="timestamp", columns={
    "offset": _I64, "id": _I64, "timestamp": _I64, "priority": _I16, "deliver_at": _I64, "expires_at": _I64,
    "target_group": _UTF8, "key": _UTF8, "dedup_id": _UTF8, "headers": _MAP, "properties": _BINARY, "payload": _BINARY,
}, required=frozenset({"id", "payload"}))  # fmt: skip
LEASES: Final = Kind(2, "leases", place="offset", time="time", columns={
    "group": _UTF8, "offset": _I64, "attempt": _I32, "consumer": _UTF8, "time": _I64,
})  # fmt: skip
SETTLEMENTS: Final = Kind(3, "settlements", place="offset", time="time", columns={
    "group": _UTF8, "offset": _I64, "outcome": _I16, "attempt": _I32, "due": _I64, "consumer": _UTF8, "error": _UTF8,
    "time": _I64,
})  # fmt: skip
POSITIONS: Final = Kind(4, "positions", place="offset", time="time", columns={
    "reader": _UTF8, "offset": _I64, "time": _I64,
})  # fmt: skip
METADATA: Final = Kind(5, "metadata", place=None, time="time", columns={
    "action": _I16, "name": _UTF8, "body": _BINARY, "time": _I64, "about": _UTF8,
})  # fmt: skip
SCHEDULES: Final = Kind(6, "schedules", place=None, time="time", columns={
    "name": _UTF8, "due": _I64, "body": _BINARY, "time": _I64,
})  # fmt: skip
CLEANED: Final = Kind(7, "cleaned", place=None, time="time", columns={
    "segment": _I64, "first": _I64, "last": _I64, "outcome": _I16, "time": _I64, "position": _I64, "end": _I64,
})  # fmt: skip
PRODUCER_COMMITS: Final = Kind(8, "producer_commits", place=None, time="time", columns={
    "producer": _UTF8, "batch": _I64, "part": _I64, "final": _I16, "time": _I64,
})  # fmt: skip

FRONT_METADATA: Final = Kind(9, "front_metadata", place=None, time="time", columns={
    "namespace": _UTF8, "key": _UTF8, "value": _BINARY, "time": _I64,
})  # fmt: skip

KINDS: Final[dict[int, Kind]] = {
    kind.number: kind
    for kind in (
        MESSAGES,
        LEASES,
        SETTLEMENTS,
        POSITIONS,
        METADATA,
        SCHEDULES,
        CLEANED,
        PRODUCER_COMMITS,
        FRONT_METADATA,
    )
}


class Span(NamedTuple):
    """What a section's header says of its rows; the index is made of these and of nothing else."""

    kind: int
    log: int
    rows: int
    first: int
    last: int
    oldest: int
    newest: int
