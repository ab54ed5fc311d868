"""How a column is laid out in a section: the buffers that Arrow would use, so that nobody has to decode.

Theory of operation
-------------------
A column is a few *buffers*, each 8-byte aligned, little-endian, and exactly what Arrow's columnar format
prescribes for the type::

    I16, I32, I64   [validity] values
    UTF8, BINARY    [validity] offsets:i32[n+1]  data
    MAP             [validity] entries:i32[n+1]  key offsets:i32[m+1]  keys  value offsets:i32[m+1]  values

`validity` (a bitmap, least significant bit first) is there only if the column has nulls. What the buffers mean
is the column's *encoding*:

    PLAIN      the buffers above, for all rows
    CONSTANT   the buffers above, for one row, which stands for all of them
    SEQUENCE   one buffer, (start, step) as two i64: row i holds start + i * step
    SHARED     no buffer: the column of the same number in an earlier section of the frame, whose index is in `extra`

A column whose every value is null is not stored at all. The *table* at the head of a section names the columns::

     0      1      2         3        4
    +------+------+---------+--------+---------------+ then `buffers` times:  +----------------+----------------+
    | id u8| type | encoding| buffers| extra u32     |                        | place u32      | bytes u32      |
    +------+------+---------+--------+---------------+                        +----------------+----------------+

`extra` is the number of nulls (PLAIN), or the index of the section that is shared (SHARED). A place is counted from
the start of the section.

Python's cost is per column, not per value: values are packed by `struct`, lengths by `map(len, …)` and
`accumulate`, text by one `join` and one `encode`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Literal, NamedTuple

from penstock.errors import CorruptJournal, InvalidArgument


class Type(IntEnum):
    """What a column's values are. The numbers are stored: never renumber."""

    I16 = 1
    I32 = 2
    I64 = 3
    UTF8 = 4
    BINARY = 5
    MAP = 6


class Encoding(IntEnum):
    """How a column's buffers stand for its rows. The numbers are stored: never renumber."""

    PLAIN = 0
    CONSTANT = 1
    SEQUENCE = 2
    SHARED = 3


ENTRY: Final = struct.Struct("<BBBBI")
PLACE: Final = struct.Struct("<II")
SEQUENCE: Final = struct.Struct("<qq")

#: struct and memoryview format of each fixed-width type, and its width in bytes.
FIXED: Final[dict[int, tuple[Literal["h", "i", "q"], int]]] = {
    Type.I16: ("h", 2),
    Type.I32: ("i", 4),
    Type.I64: ("q", 8),
}

#: The numbers of a fixed-width type: from minus this up to, not including, this.
BOUNDS: Final[dict[int, int]] = {kind: 1 << (8 * width - 1) for kind, (_, width) in FIXED.items()}

#: Buffers of a plain column without nulls.
BUFFERS: Final[dict[int, int]] = {
    Type.I16: 1,
    Type.I32: 1,
    Type.I64: 1,
    Type.UTF8: 2,
    Type.BINARY: 2,
    Type.MAP: 5,
}

#: What a caller may give for a column: one value for all rows, a range, or a value for each row.
Values = Any

Encoded = tuple[int, int, list[bytes]]


class Buffers(NamedTuple):
    """A column that is laid out already: its encoding, its number of nulls, and its buffers."""

    encoding: int
    nulls: int
    parts: list[bytes]


# Plain numbers for the hot path: looking a member up in an Enum costs more than packing it.
_PLAIN, _CONSTANT, _SEQUENCE, _SHARED = (int(encoding) for encoding in Encoding)


_ONE: Final = {kind: struct.Struct(f"<{form}").pack for kind, (form, _) in FIXED.items()}
_ONE_END: Final = struct.Struct("<ii").pack
_FILLERS: Final[dict[int, Any]] = {Type.UTF8: "", Type.BINARY: b"", Type.MAP: {}}


def encode(kind: Type, values: Values, rows: int) -> Encoded:
    """The encoding, number of nulls, and buffers of `values`; `rows` of them unless it is a single value."""
    if type(values) is not list:
        if type(values) is Buffers:
            return values
        if type(values) is range:
            _expect(len(values), rows)
            return _SEQUENCE, 0, [_sequence(kind, values)]
        return _CONSTANT, 0, _single(kind, values)
    _expect(len(values), rows)
    if rows == 1 or (values[0] == values[-1] and values.count(values[0]) == rows):
        return _CONSTANT, 0, _single(kind, values[0])
    try:
        return _PLAIN, 0, _plain(kind, values)
    except InvalidArgument:
        # Nulls are rare, and no type packs one: looking for them first would cost every column.
        if None not in values:
            raise
    filler = _FILLERS.get(kind, 0)
    filled = [filler if value is None else value for value in values]
    return _PLAIN, values.count(None), [_validity(values), *_plain(kind, filled)]


def _sequence(kind: Type, values: range) -> bytes:
    bound = BOUNDS.get(kind, 0)
    if not (-bound <= values[0] < bound and -bound <= values[-1] < bound):
        raise InvalidArgument(f"{values} does not fit a column of type {kind.name}")
    try:
        return SEQUENCE.pack(values.start, values.step)
    except struct.error as error:
        raise InvalidArgument(f"{values} has a step that does not fit 64 bits") from error


def _single(kind: Type, value: Any) -> list[bytes]:
    """The buffers of one row: what every commit of one message is made of."""
    if type(value) is int and kind in _ONE:
        try:
            return [_ONE[kind](value)]
        except struct.error as error:
            raise InvalidArgument(f"{value} does not fit a column of type {kind.name}") from error
    if type(value) is bytes and kind is Type.BINARY:
        return [_ONE_END(0, len(value)), value]
    return _plain(kind, [value])


def all_null(values: Values) -> bool:
    """Whether a column need not be stored."""
    if not isinstance(values, list):
        return values is None
    return (not values or values[0] is None) and values.count(None) == len(values)


def _expect(found: int, rows: int) -> None:
    if found != rows:
        raise InvalidArgument(f"a column has {found} values where its section has {rows} rows")


def _plain(kind: Type, values: list[Any]) -> list[bytes]:
    try:
        if kind in FIXED:
            return [struct.pack(f"<{len(values)}{FIXED[kind][0]}", *values)]
        if kind is Type.BINARY:
            return binary(values)
        if kind is Type.UTF8:
            return _utf8(values)
        return _map(values)
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"a value does not fit a column of type {kind.name}: {error}") from error


def _offsets(values: Sequence[Any]) -> bytes:
    lengths = list(map(len, values))
    if 0 < len(lengths) <= CACHED_ROWS_MAX and lengths.count(lengths[0]) == len(lengths):
        return _even_offsets(lengths[0], len(lengths))
    return struct.pack(f"<{len(lengths) + 1}i", *accumulate(lengths, initial=0))


#: What is kept for batches of one length is bounded in bytes too: 64 times 16 KiB.
CACHED_ROWS_MAX: Final = 4096


@lru_cache(maxsize=64)
def _even_offsets(size: int, rows: int) -> bytes:
    """Values of one size have the same offsets every time, and batches have few sizes."""
    return struct.pack(f"<{rows + 1}i", *range(0, size * rows + 1, size)) if size else bytes(4 * (rows + 1))


def binary(values: list[bytes]) -> list[bytes]:
    """Where each value ends, and all of them behind one another."""
    ends, data = _offsets(values), b"".join(values)
    if _LAST_END(ends, len(ends) - 4)[0] != len(data):
        raise TypeError("bytes are wanted, and something else has another length than it has bytes")
    return [ends, data]


_LAST_END: Final = struct.Struct("<i").unpack_from


def _utf8(values: list[str]) -> list[bytes]:
    data = "".join(values).encode()
    lengths: Sequence[Any] = values
    if not data.isascii():
        lengths = [value.encode() for value in values]
    return [_offsets(lengths), data]


def _map(values: list[Mapping[str, str]]) -> list[bytes]:
    keys = list(chain.from_iterable(values))
    texts = list(chain.from_iterable(value.values() for value in values))
    return [_offsets(values), *_utf8(keys), *_utf8(texts)]


def _validity(values: list[Any]) -> bytes:
    """A bitmap made at C speed: the digits of one large number, the first row in its lowest bit."""
    digits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return int(digits, 2).to_bytes((len(values) + 7) // 8, "little")


class Column:
    """One column of a section that was read: views into the frame, decoded only when asked for."""

    __slots__ = ("buffers", "encoding", "nulls", "rows", "type")

    def __init__(self, kind: int, encoding: int, nulls: int, rows: int, buffers: list[memoryview]) -> None:
        self.type = kind
        self.encoding = encoding
        self.nulls = nulls
        self.rows = rows
        self.buffers = buffers

    @property
    def constant(self) -> bool:
        """Whether one stored value stands for every row."""
        return self.encoding == Encoding.CONSTANT

    def values(self) -> Sequence[Any]:
        """A value for each row: a view of the stored numbers where that is possible, otherwise a list."""
        if self.encoding == Encoding.SEQUENCE:
            start, step = SEQUENCE.unpack(self.buffers[0])
            return range(start, start + step * self.rows, step) if step else [start] * self.rows
        stored = self._stored(1 if self.constant else self.rows)
        if self.nulls:
            stored = self._with_nulls(stored)
        return [stored[0]] * self.rows if self.constant else stored

    def numbers(self, rows: int) -> memoryview:
        """The first stored numbers of a fixed-width column, in place."""
        form, width = FIXED[self.type]
        return self.buffers[-1][: rows * width].cast(form)

    def _stored(self, rows: int) -> Sequence[Any]:
        if self.type in FIXED:
            return self.numbers(rows)
        if self.type == Type.MAP:
            return self._maps(rows)
        start = len(self.buffers) - 2
        return _cut(self.buffers[start], self.buffers[start + 1], rows, text=self.type == Type.UTF8)

    def _maps(self, rows: int) -> list[dict[str, str]]:
        entries = self.buffers[-5][: 4 * (rows + 1)].cast("i")
        total = entries[rows]
        keys = _cut(self.buffers[-4], self.buffers[-3], total, text=True)
        texts = _cut(self.buffers[-2], self.buffers[-1], total, text=True)
        return [dict(zip(keys[a:b], texts[a:b], strict=True)) for a, b in pairwise(entries)]

    def _with_nulls(self, stored: Sequence[Any]) -> list[Any]:
        bits = self.buffers[0]
        return [value if bits[i >> 3] >> (i & 7) & 1 else None for i, value in enumerate(stored)]


def _cut(offsets: memoryview, data: memoryview, rows: int, *, text: bool) -> list[Any]:
    whole = bytes(data)
    places = offsets[: 4 * (rows + 1)].cast("i")
    if text and whole.isascii():
        letters = whole.decode()
        return [letters[a:b] for a, b in pairwise(places)]
    if text:
        return [whole[a:b].decode() for a, b in pairwise(places)]
    return [whole[a:b] for a, b in pairwise(places)]


_PLACES: Final = tuple(struct.Struct("<" + "II" * buffers).unpack_from for buffers in range(7))


def parse(
    table: memoryview, section: memoryview, columns: int, rows: int
) -> tuple[dict[int, Column], dict[int, int]]:
    """The columns of a section by number, and the shared ones as (number, index of the section they are in)."""
    try:
        return _parse(table, section, columns, rows)
    except struct.error as error:
        raise CorruptJournal("a section's table of columns is cut short") from error


def _parse(
    table: memoryview, section: memoryview, columns: int, rows: int
) -> tuple[dict[int, Column], dict[int, int]]:
    found: dict[int, Column] = {}
    shared: dict[int, int] = {}
    end = len(section)
    unpack, step = ENTRY.unpack_from, ENTRY.size
    at = 0
    for _ in range(columns):
        number, kind, encoding, buffers, extra = unpack(table, at)
        at += step
        if buffers >= len(_PLACES):
            raise CorruptJournal("a column has more buffers than any type needs")
        places = _PLACES[buffers](table, at)
        at += PLACE.size * buffers
        views = []
        for i in range(0, 2 * buffers, 2):
            stop = places[i] + places[i + 1]
            if stop > end:
                raise CorruptJournal("a column reaches past its section")
            views.append(section[places[i] : stop])
        if encoding == _SHARED:
            shared[number] = extra
        elif kind in BUFFERS and encoding < _SHARED:
            found[number] = Column(kind, encoding, extra, rows, views)
    return found, shared
