"""The kinds of rows a journal holds, and a section: rows of one kind for one log.

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

`Rows` are what a caller wants written: a column is one value for all rows, a `range`, or a list. A `Section` is what was
read: views into the frame. Single rows (one message, one ack) of the same kind and log that meet in a commit become
one section (`merge`); a batch is encoded by whoever brought it, so that a value that does not fit fails its
owner and never the commit of others.

Rows record outcomes, never commands: reading them back evaluates no policy, clock or chance.

To add a column: append it to its kind with the next number. Old readers skip it, old frames read as null. To add a kind: give
it the next number and decide whether a reader that does not know it may go on. Never renumber, never change a type.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

from penstock import limits
from penstock.errors import CorruptJournal, InvalidArgument
from penstock.journal import columns as layout
from penstock.journal.columns import Column, Encoding, Type, Values

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
    "action": _I16, "name": _UTF8, "body": _BINARY, "time": _I64,
})  # fmt: skip
SCHEDULES: Final = Kind(6, "schedules", place=None, time="time", columns={
    "id": _I64, "action": _I16, "due": _I64, "body": _BINARY, "time": _I64,
})  # fmt: skip
CLEANED: Final = Kind(7, "cleaned", place=None, time="time", columns={
    "segment": _I64, "first": _I64, "last": _I64, "outcome": _I16, "time": _I64, "position": _I64,
})  # fmt: skip
PRODUCER_COMMITS: Final = Kind(8, "producer_commits", place=None, time="time", columns={
    "producer": _UTF8, "batch": _I64, "part": _I64, "final": _I16, "time": _I64,
})  # fmt: skip

KINDS: Final[dict[int, Kind]] = {
    kind.number: kind
    for kind in (MESSAGES, LEASES, SETTLEMENTS, POSITIONS, METADATA, SCHEDULES, CLEANED, PRODUCER_COMMITS)
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


class Rows:
    """Rows to be written. Columns that are left out are null; `share` takes the payload column of other rows.

    >>> rows = Rows(SETTLEMENTS, 1, 3, {"group": "default", "offset": range(7, 10), "outcome": 1, "time": 0})
    >>> rows.span().first, rows.span().last
    (7, 9)
    """

    __slots__ = ("_encoded", "_placed", "_span", "bytes", "columns", "count", "kind", "log", "share", "spent")

    def __init__(
        self, kind: Kind, log: int, count: int, columns: dict[str, Values], share: Rows | None = None
    ) -> None:
        self.share: Rows | None
        self.kind: Kind
        self.count: int
        if type(count) is not int or not 1 <= count <= limits.FRAME_ROWS_MAX:
            raise InvalidArgument(f"a section holds 1 to {limits.FRAME_ROWS_MAX} rows, not {count!r}")
        if type(log) is not int or not 0 <= log <= limits.LOG_NUMBER_MAX:
            raise InvalidArgument(f"a log's number is 0 to {limits.LOG_NUMBER_MAX}, not {log!r}")
        if not columns.keys() <= kind.fields.keys():
            unknown = sorted(columns.keys() - kind.fields.keys())
            raise InvalidArgument(f"{kind.name} have no column {unknown}; they have {list(kind.fields)}")
        while share is not None and share.share is not None:
            share = share.share
        if share is not None and (kind is not MESSAGES or share.kind is not MESSAGES or share.count != count):
            raise InvalidArgument(
                "payloads are shared among messages, as many as there are in the rows they are shared with"
            )
        if share is not None and columns.get("payload") is not None:
            raise InvalidArgument("give payloads, or rows to share them with, not both")
        self.kind = kind
        self.log = log
        self.count = count
        self.columns = dict(columns)
        self.share = share
        self._encoded: list[bytes] | None = None
        self._span: Span | None = None
        self._placed = False
        self.spent = False  # queued: the journal holds on to them, and they cannot be appended again
        self.bytes = 0

    def place(self, expected: int) -> int:
        """Put messages at their log's next offsets, unless they came with their own; the offset behind them.

        Rows that were refused, and are appended again, get new ones.
        """
        columns = self.columns
        if self._placed or columns.get("offset") is None:
            columns["offset"] = expected if self.count == 1 else range(expected, expected + self.count)
            self._placed = True
            self._span = self._encoded = None
            return expected + self.count
        _check_rising(columns["offset"], self.count)
        span = self.span()
        if span.first < expected:
            raise InvalidArgument(
                f"offset {span.first} of log {self.log} is taken: the next one is {expected}"
            )
        if span.last > limits.OFFSET_MAX:
            raise InvalidArgument(f"an offset is at most {limits.OFFSET_MAX}, not {span.last}")
        return span.last + 1

    def prepare(self, *, alone: bool) -> None:
        """Check every value, so that writing cannot fail on one, and learn how many bytes it takes at the most.

        One row, with nothing shared, stays unencoded: it may be merged with its like. `alone` forbids that: another section of the
        same append refers to this one.
        """
        columns = self.columns
        for name in self.kind.required:
            if columns.get(name) is None and (name != "payload" or self.share is None):
                raise _missing(self.kind, name)
        if self.kind is MESSAGES:
            self._require_own_ids()
        elif self.kind is CLEANED:
            self._require_ranges()
        if self.count == 1 and self.share is None and not alone:
            self.bytes = _single_bytes(self)
        else:
            self._encoded, self.bytes = _encode(self, None)

    def _require_own_ids(self) -> None:
        if self.count > 1 and type(self.columns["id"]) is int:
            raise InvalidArgument(f"{self.count} messages cannot all have the id {self.columns['id']}")

    def _require_ranges(self) -> None:
        """A range or a segment that cannot be would stop every later opening."""
        listed = [self.columns.get(name) for name in ("first", "last", "segment", "position")]
        each = [v if isinstance(v, list | range) else [v] * self.count for v in listed]
        for first, last, segment, position in zip(*each, strict=False):
            if (segment is None and position is not None) or not (
                0 <= (segment or 0) <= limits.SEGMENT_NUMBER_MAX and 0 <= (position or 0) <= limits.OFFSET_MAX
            ):
                raise InvalidArgument(
                    f"a cleaned segment has a number of 0 to {limits.SEGMENT_NUMBER_MAX}, not {segment}, "
                    f"and damage is at a position of one, not at {position}"
                )
            if (first is None) != (last is None) or (
                first is not None and not 0 <= first <= last <= limits.OFFSET_MAX
            ):
                raise InvalidArgument(
                    f"a cleaned range goes from an offset to a later one, not from {first} to {last}"
                )

    def encoded(self, shared_index: int | None) -> tuple[list[bytes], int]:
        """The section in parts, and its length. A batch is what it was when it was appended, whatever became of its lists."""
        if self._encoded is None:  # a single row, or several that were joined
            single = _encode_one(self) if self.count == 1 else None
            return single or _encode(self, shared_index)
        if self.share is None:
            return self._encoded, self.bytes
        parts = self._encoded.copy()
        field = self.kind.fields["payload"]
        entry = sum(1 for values in self.columns.values() if not layout.all_null(values)) + 1
        parts[entry] = _TABLE[0](field.number, field.type, SHARED, 0, shared_index or 0)
        return parts, self.bytes

    def span(self) -> Span:
        """The bounds that go into the section's header. Columns must not change any more."""
        if self._span is None:
            first, last = self._bounds(self.kind.place)
            oldest, newest = self._bounds(self.kind.time)
            self._span = Span(self.kind.number, self.log, self.count, first, last, oldest, newest)
        return self._span

    def _bounds(self, column: str | None) -> tuple[int, int]:
        values = self.columns.get(column) if column else None
        if type(values) is int:
            return values, values
        if values is None:
            return 0, 0
        if type(values) is range:
            return (values[0], values[-1]) if values.step > 0 else (values[-1], values[0])
        try:
            return min(values), max(values)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"column {column!r} takes whole numbers: {error}") from error


def _missing(kind: Kind, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"each of the {kind.name} needs a value in column {name!r}; a payload may be empty (b'')"
    )


def _check_rising(offsets: Values, count: int) -> None:
    rising = offsets.step > 0 if type(offsets) is range else count == 1 and type(offsets) is int
    if type(offsets) is list:
        rising = all(type(offset) is int for offset in offsets) and all(a < b for a, b in pairwise(offsets))
    if not rising:
        raise InvalidArgument("offsets must be whole numbers, each above the one before")


def messages(
    log: int,
    payloads: list[bytes] | Rows,
    *,
    ids: Sequence[int] | int,
    timestamp: Values,
    offset: Values = None,
    priority: Values = limits.PRIORITY_DEFAULT,
    **columns: Values,
) -> Rows:
    """Messages to be written to `log`: at the journal's next offsets unless `offset` says which.

    `payloads` may be other messages of the same append: then their payloads are shared and stored once.
    """
    share = payloads if isinstance(payloads, Rows) else None
    if share is None and (type(payloads) is not list or not payloads):
        raise InvalidArgument(
            "payloads are a list of bytes, or rows of the same append whose payloads are shared"
        )
    count = share.count if share else len(payloads)  # type: ignore[arg-type]
    given: dict[str, Values] = {"id": ids, "timestamp": timestamp, "priority": priority, **columns}
    if offset is not None:
        given["offset"] = offset
    if share is None:
        given["payload"] = payloads[0] if count == 1 else payloads  # type: ignore[index]
    return Rows(MESSAGES, log, count, given, share)


#: More than a single value can take beside its own bytes: in the table, in offsets and bitmaps, in padding.
_NUMBER_OVERHEAD: Final = 32
_BLOB_OVERHEAD: Final = 64
_TEXT_OVERHEAD: Final = 24


def _single_bytes(rows: Rows) -> int:
    """Check the values of one row without encoding them; more bytes than they can take, alone or merged."""
    total = HEADER_BYTES
    bounds, blobs = rows.kind.bounds, rows.kind.blobs
    for name, value in rows.columns.items():
        if type(value) is int and -bounds[name] <= value < bounds[name]:
            total += _NUMBER_OVERHEAD
        elif type(value) is bytes and name in blobs:
            total += _BLOB_OVERHEAD + len(value)
        elif value is not None:
            total += _uncommon_bytes(rows, name, value)
    return total


def _uncommon_bytes(rows: Rows, name: str, value: Any) -> int:
    """The same for one value, of whatever type: most are numbers and bytes, and never come here."""
    if type(value) is list or type(value) is range:
        if len(value) != 1:
            raise InvalidArgument(f"a column has {len(value)} values where its section has 1 row")
        value = rows.columns[name] = value[0]
    kind = rows.kind.fields[name].type
    if value is None:
        if name in rows.kind.required:
            raise _missing(rows.kind, name)
        return 0
    if type(value) is int and -rows.kind.bounds[name] <= value < rows.kind.bounds[name]:
        return _NUMBER_OVERHEAD
    if kind is Type.BINARY and isinstance(value, bytes | bytearray | memoryview):
        value = rows.columns[name] = bytes(value)  # it may change before it is written
        return _BLOB_OVERHEAD + len(value)
    if kind is not Type.UTF8 and kind is not Type.MAP:
        raise InvalidArgument(f"{value!r} does not fit column {name!r}, of type {kind.name}")
    if type(value) is dict:
        value = rows.columns[name] = dict(value)  # it may change before it is written
    return 8 + sum(_TEXT_OVERHEAD + len(part) for part in layout.encode(kind, value, 1)[2])


def merge(batch: Sequence[Rows]) -> list[Rows]:
    """Single rows of the same kind and log become one section, wherever replaying in order cannot tell.

    Sections of different logs may change places; within one log only neighbours are joined, and metadata, which may
    concern any log, is never moved past.
    """
    groups: list[list[Rows]] = []
    latest: dict[int, list[Rows]] = {}
    for rows in batch:
        group = latest.get(rows.log)
        if rows._encoded is None and group is not None:
            head = group[0]
            if head._encoded is None and head.kind is rows.kind:
                group.append(rows)
                continue
        group = [rows]
        groups.append(group)
        if rows.kind is METADATA:
            latest.clear()
        else:
            latest[rows.log] = group
    return [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _joined(group: list[Rows]) -> Rows:
    head = group[0]
    every = [rows.columns for rows in group]
    columns: dict[str, Values] = {}
    for name in dict.fromkeys(chain.from_iterable(every)):
        columns[name] = [given.get(name) for given in every]
    return Rows(head.kind, head.log, len(group), columns)


_PADDING: Final = tuple(bytes(n) for n in range(8))
_TABLE: Final = tuple(struct.Struct("<BBBBI" + "II" * buffers).pack for buffers in range(7))


#: A buffer from this length on stays a part of its own; what is smaller is cheaper to copy than to pass around.
_LARGE_BYTES: Final = 16 << 10


def _encode(rows: Rows, shared_index: int | None) -> tuple[list[bytes], int]:
    """The section in parts (header, table, buffers), and its length. Every commit passes here, so it is one plain function."""
    fields = rows.kind.fields
    required = rows.kind.required
    count = rows.count
    coded: list[tuple[int, int, int, int, list[bytes]]] = []
    place = HEADER_BYTES
    for name, values in rows.columns.items():
        number, kind = fields[name]
        form = type(values)
        if form is int and kind in _ONE_NUMBER:
            try:
                coded.append((number, kind, _CONSTANT, 0, [_ONE_NUMBER[kind][1](values)]))
            except struct.error as error:
                raise InvalidArgument(
                    f"{values} does not fit column {name!r}, of type {kind.name}"
                ) from error
            place += ENTRY_BYTES + PLACE_BYTES
            continue
        if values is None or (form is list and layout.all_null(values)):
            if name in required and not (name == "payload" and rows.share):
                raise _missing(rows.kind, name)
            continue
        encoding, nulls, parts = layout.encode(kind, values, count)
        if nulls and name in required:
            raise _missing(rows.kind, name)
        coded.append((number, kind, encoding, nulls, parts))
        place += ENTRY_BYTES + PLACE_BYTES * len(parts)
    if rows.share is not None:
        number, kind = fields["payload"]
        coded.append((number, kind, SHARED, shared_index or 0, []))
        place += ENTRY_BYTES
    table: list[bytes] = []
    data: list[bytes] = []
    large = -1
    for number, code, encoding, extra, parts in coded:
        if len(parts) == 1:  # numbers: nearly every column
            part = parts[0]
            size = len(part)
            table.append(_TABLE[1](number, code, encoding, 1, extra, place, size))
            data.append(part)
            padding = -size & 7
            if padding:
                data.append(_PADDING[padding])
            place += size + padding
            continue
        places: list[int] = []
        for part in parts:
            size = len(part)
            places += (place, size)
            if size >= _LARGE_BYTES and large < 0:
                large = len(data)
            data.append(part)
            padding = -size & 7
            if padding:
                data.append(_PADDING[padding])
            place += size + padding
        table.append(_TABLE[len(parts)](number, code, encoding, len(parts), extra, *places))
    head = [_header(rows, len(coded), place), *table]
    if rows.share is not None:  # the entry of the shared column is put in when it is known
        return [*head, *data], place
    if large < 0:
        return [b"".join([*head, *data])], place
    return [b"".join([*head, *data[:large]]), *data[large:]], place


#: How one number is stored: padded to 8 bytes, by itself, and its own width.
_ONE_NUMBER: Final = {
    Type.I16: (struct.Struct("<h6x").pack, struct.Struct("<h").pack, 2),
    Type.I32: (struct.Struct("<i4x").pack, struct.Struct("<i").pack, 4),
    Type.I64: (struct.Struct("<q").pack, struct.Struct("<q").pack, 8),
}
_ENDS: Final = struct.Struct("<ii").pack
_CONSTANT: Final = int(Encoding.CONSTANT)


def _encode_one(rows: Rows) -> tuple[list[bytes], int] | None:
    """The same for a single row, byte for byte: one message, one lease, one ack. None if it has a map, or much to carry."""
    fields = rows.kind.fields
    items = [(fields[name], value) for name, value in rows.columns.items() if value is not None]
    place = HEADER_BYTES + (ENTRY_BYTES + PLACE_BYTES) * len(items)
    for (_, kind), value in items:
        if kind not in _ONE_NUMBER:
            if kind is _MAP or len(value) >= _LARGE_BYTES:
                return None
            place += PLACE_BYTES
    table: list[bytes] = []
    data: list[bytes] = []
    for (number, kind), value in items:
        one = _ONE_NUMBER.get(kind)
        if one is not None:
            pack, _, width = one
            table.append(_TABLE[1](number, kind, _CONSTANT, 1, 0, place, width))
            data.append(pack(value))
            place += 8
            continue
        raw = value.encode() if kind is _UTF8 else value
        size = len(raw)
        padding = -size & 7
        table.append(_TABLE[2](number, kind, _CONSTANT, 2, 0, place, 8, place + 8, size))
        data += (_ENDS(0, size), raw, _PADDING[padding])
        place += 8 + size + padding
    return [b"".join([_header(rows, len(items), place), *table, *data])], place


def _header(rows: Rows, columns: int, size: int) -> bytes:
    kind, log, count, first, last, oldest, newest = rows.span()
    bits = rows.kind.bits | (SHARES if rows.share is not None else 0)
    checked = CHECKED.pack(kind, bits, columns, count, log, size, first, last, oldest, newest)
    return checked + CRC.pack(zlib.crc32(checked))


class Section:
    """A section that was read: its header is checked, its columns are views, decoded when asked for.

    It knows another section only if it shares with it: two that knew each other would keep their frame's bytes alive until the
    garbage collector comes.
    """

    __slots__ = ("_columns", "_holders", "_shared", "_view", "columns_count", "kind_bits", "span")

    def __init__(self, view: memoryview) -> None:
        if len(view) < HEADER.size:
            raise CorruptJournal("a section's header is cut short")
        number, bits, columns, rows, log, size, first, last, oldest, newest, crc = HEADER.unpack_from(view)
        if zlib.crc32(view[: CHECKED.size]) != crc or not HEADER.size <= size <= len(view):
            raise CorruptJournal("a section's header does not match its checksum")
        self.span = Span(number, log, rows, first, last, oldest, newest)
        self.kind_bits = bits
        self.columns_count = columns
        self._view = view[:size]
        self._columns: dict[int, Column] | None = None
        self._shared: dict[int, int] = {}
        self._holders: dict[int, Section] = {}

    @property
    def bytes(self) -> int:
        """How many bytes of its frame it takes."""
        return len(self._view)

    @property
    def kind(self) -> Kind | None:
        """What its rows are, or None if this version does not know."""
        return KINDS.get(self.span.kind)

    @property
    def log(self) -> int:
        return self.span.log

    @property
    def rows(self) -> int:
        return self.span.rows

    def find_holders(self, earlier: Sequence[Section]) -> None:
        """Know the sections whose columns this one shares, which must come before it."""
        self._parse()
        for number, index in self._shared.items():
            if index >= len(earlier):
                raise CorruptJournal("a section shares a column of one that is not before it")
            self._holders[number] = earlier[index]
        self._columns = None

    def _parse(self) -> None:
        table = self._view[HEADER.size :]
        self._columns, self._shared = layout.parse(table, self._view, self.columns_count, self.rows)

    def columns(self) -> dict[int, Column]:
        """The columns as they are stored, by number; one that is not there is null in every row."""
        if self._columns is None:
            self._parse()
            for number, holder in self._holders.items():
                self._columns = {**(self._columns or {}), number: holder.columns()[number]}
        return self._columns or {}

    def column(self, name: str) -> Column | None:
        """The column of that name as it is stored, or None if every value is null."""
        kind = self.kind
        if kind is None:
            raise CorruptJournal(f"rows of kind {self.span.kind} are not known to this version of Penstock")
        if name not in kind.fields:
            raise InvalidArgument(f"{kind.name} have no column {name!r}; they have {list(kind.fields)}")
        return self.columns().get(kind.fields[name].number)

    def values(self, name: str) -> Sequence[Any]:
        """A value for each row."""
        column = self.column(name)
        return [None] * self.rows if column is None else column.values()

    def shares(self) -> int | None:
        """The index in its frame of the section whose payloads these rows share."""
        self.columns()
        return self._shared.get(MESSAGES.fields["payload"].number) if self.kind is MESSAGES else None

    def records(self) -> Iterator[Mapping[str, Any]]:
        """The rows one by one, as dictionaries: for people and tests."""
        names = list(self.kind.fields) if self.kind else []
        lists = [self.values(name) for name in names]
        for row in zip(*lists, strict=True):
            yield dict(zip(names, row, strict=True))


def sections(body: memoryview, count: int) -> list[Section]:
    """The `count` sections of a frame's body, which must fill it exactly."""
    found: list[Section] = []
    at = 0
    for _ in range(count):
        section = Section(body[at:])
        if section.kind_bits & SHARES:
            section.find_holders(found)
        if section.kind is None and section.kind_bits & MUST_KNOW:
            raise CorruptJournal(
                f"rows of kind {section.span.kind} are not known to this version of Penstock: a newer one wrote them"
            )
        found.append(section)
        at += section.bytes
    if at != len(body):
        raise CorruptJournal("a frame's sections do not fill its body")
    return found


def intact_spans(body: memoryview) -> list[Span]:
    """What can still be said of a damaged frame: the spans whose headers are whole, from the front."""
    found: list[Span] = []
    at = 0
    while at + HEADER.size <= len(body):
        try:
            section = Section(body[at:])
        except CorruptJournal:
            break
        found.append(section.span)
        at += section.bytes
    return found
