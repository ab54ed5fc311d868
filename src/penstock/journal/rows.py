"""Rows to be written: columns of one kind for one log, checked, and encoded as a section.

Theory of operation
-------------------
`Rows` are what a caller wants written: a column is one value for all rows, a `range`, or a list. Single rows (one message, one ack) of the
same kind and log that meet in a commit become one section (`merge`); a batch is encoded by whoever brought it, so that a value that does not fit
fails its owner and never the commit of others.

How a section is laid out is drawn in `kinds`, how its columns are in `columns`. Sections of common shapes are laid out by a `plan`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final

from penstock import limits
from penstock.errors import InvalidArgument
from penstock.journal import columns as layout
from penstock.journal.checksum import crc32
from penstock.journal.columns import Type, Values
from penstock.journal.kinds import (
    CHECKED,
    CLEANED,
    CRC,
    ENTRY_BYTES,
    HEADER_BYTES,
    MESSAGES,
    METADATA,
    PLACE_BYTES,
    SHARED,
    SHARES,
    Kind,
    Span,
)
from penstock.journal.plan import LARGE_BYTES, lay_out

#: Bytes that are written one after the other.
Parts = list[bytes]


class Rows:
    """Rows to be written. Columns that are left out are null; `share` takes the payload column of other rows.

    >>> from penstock.journal.kinds import SETTLEMENTS
    >>> rows = Rows(SETTLEMENTS, 1, 3, {"group": "default", "offset": range(7, 10), "outcome": 1, "time": 0})
    >>> rows.span().first, rows.span().last
    (7, 9)
    """

    kind: Kind
    log: int
    count: int
    columns: dict[str, Values]
    # Some are made for every call of every caller: what most never use is only on the class.
    share: Rows | None = None
    spent = False  # queued: the journal holds on to them, and they cannot be appended again
    bytes = 0
    _encoded: Parts | None = None
    _span: Span | None = None
    _placed = False
    _shared_entry = 0  # which part says whose payloads these rows share

    def __init__(
        self, kind: Kind, log: int, count: int, columns: dict[str, Values], share: Rows | None = None
    ) -> None:
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
        if share is not None:
            self.share = share

    @classmethod
    def one(
        cls, kind: Kind, log: int, columns: dict[str, Values], *, place: int, time_us: int, size: int
    ) -> Rows:
        """A single row whose values are known to fit, and to take at most `size` bytes: nothing is looked at once more."""
        rows = cls.__new__(cls)
        rows.kind = kind
        rows.log = log
        rows.count = 1
        rows.columns = columns
        rows.bytes = size
        rows._span = Span(kind.number, log, 1, place, place, time_us, time_us)
        return rows

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
            raise taken(self.log, span.first, expected)
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
            if any(type(number) not in (int, type(None)) for number in (first, last, segment, position)):
                raise InvalidArgument("a cleaned range and its segment are whole numbers")
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

    def encoded(self, shared_index: int | None) -> tuple[Parts, int]:
        """The section in parts, and its length. A batch is what it was when it was appended, whatever became of its lists."""
        if self._encoded is None:  # a single row, or several that were joined
            return _encode(self, shared_index)
        if self.share is None:
            return self._encoded, self.bytes
        parts = self._encoded.copy()
        field = self.kind.fields["payload"]
        parts[self._shared_entry] = _TABLE[0](field.number, field.type, SHARED, 0, shared_index or 0)
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
        if type(values) is range and values:
            return (values[0], values[-1]) if values.step > 0 else (values[-1], values[0])
        # They go into headers, indexes and summaries, where something that is nearly an int would do harm much later.
        if type(values) is not list or set(map(type, values)) != {int}:
            raise InvalidArgument(f"column {column!r} takes whole numbers, one for each row")
        return min(values), max(values)


def taken(log: int, offset: int, expected: int) -> InvalidArgument:
    """What is said of messages that want an offset which was given before."""
    return InvalidArgument(f"offset {offset} of log {log} is taken: the next one is {expected}")


def _missing(kind: Kind, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"each of the {kind.name} needs a value in column {name!r}; a payload may be empty (b'')"
    )


def _check_rising(offsets: Values, count: int) -> None:
    rising = (
        offsets.step > 0 and len(offsets) > 0
        if type(offsets) is range
        else count == 1 and type(offsets) is int
    )
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
    given: dict[str, Values] = {
        "offset": offset, "id": ids, "timestamp": timestamp, "priority": priority, **columns,
    }  # fmt: skip
    if share is None:  # the payloads stand last: see `plan`
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
        if type(value) is list or type(value) is range:
            raise InvalidArgument(f"{value!r} is no value for column {name!r}")
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
    if isinstance(value, Mapping):
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


def _encode(rows: Rows, shared_index: int | None) -> tuple[list[bytes], int]:
    """The section in parts (header, table, buffers), and its length."""
    parts, size = _encode_shortest(rows, shared_index)
    ids = rows.columns.get("id")
    if type(ids) is range and size < limits.ROW_BYTES_MIN * rows.count:
        # Messages that are all alike would take no room each. Were their frame lost, header and all, nobody could tell how many offsets they had.
        rows.columns["id"] = list(ids)
        parts, size = _encode_shortest(rows, shared_index)
    return parts, size


def _encode_shortest(rows: Rows, shared_index: int | None) -> tuple[list[bytes], int]:
    """The same, with what can be said once said once."""
    laid = lay_out(rows.kind, rows.columns, rows.count) if rows.share is None else None
    if laid is not None:
        columns, size, (first, *others) = laid
        return [_header(rows, columns, size) + first, *others], size
    return _encode_any(rows, shared_index)


def _encode_any(rows: Rows, shared_index: int | None) -> tuple[list[bytes], int]:
    """The same in general."""
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
                coded.append((number, kind, _CONSTANT, 0, [_ONE_NUMBER[kind](values)]))
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
        rows._shared_entry = len(coded)
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
            if size >= LARGE_BYTES and large < 0:
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


#: How one number is stored by itself.
_ONE_NUMBER: Final = {kind: struct.Struct(f"<{form}").pack for kind, (form, _) in layout.FIXED.items()}
_CONSTANT: Final = int(layout.Encoding.CONSTANT)


def _header(rows: Rows, columns: int, size: int) -> bytes:
    kind, log, count, first, last, oldest, newest = rows.span()
    bits = rows.kind.bits | (SHARES if rows.share is not None else 0)
    checked = CHECKED.pack(kind, bits, columns, count, log, size, first, last, oldest, newest)
    return checked + CRC.pack(crc32(checked))
