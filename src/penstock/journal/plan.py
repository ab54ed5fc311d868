"""Sections of the shapes that nearly all have: a batch of plain messages, one message, one lease, one ack.

Theory of operation
-------------------
Whoever publishes makes sections of the same shape again and again: the same columns, numbers or ranges of numbers, texts of the same length, and
behind them the payloads. All that such sections differ in is their numbers, the letters of their texts, and how long the payloads are. So the
table of columns is made once for each shape, with a `struct` that packs all numbers and texts in one call: a *plan*.

What comes out is byte for byte what the general way makes of the same rows (`rows`), which is also the way for every other shape. One plain message is
also read back that way: its table is known by its bytes, and then everything is at its place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock.journal import columns as layout
from penstock.journal.columns import ENTRY, FIXED, PLACE, Encoding, Type, Values
from penstock.journal.kinds import HEADER_BYTES, MESSAGES, Kind

#: Programs have few shapes. Where there are more, all are forgotten at once and learned again.
PLANS_MAX: Final = 1024

#: A buffer from this length on stays a part of its own; what is smaller is cheaper to copy than to pass around.
LARGE_BYTES: Final = 16 << 10

_PLAIN, _CONSTANT, _SEQUENCE = int(Encoding.PLAIN), int(Encoding.CONSTANT), int(Encoding.SEQUENCE)
_BINARY: Final = int(Type.BINARY)
_NUMBER_ENTRY: Final = struct.Struct("<BBBBIII").pack
_TEXT_ENTRY: Final = struct.Struct("<BBBBIIIII").pack
_ENDS: Final = struct.Struct("<ii").pack
_PADDING: Final = tuple(bytes(n) for n in range(8))

#: In a shape, behind the name of a column: what it holds, or how long its text is.
_RANGE: Final = -1
_BYTES: Final = -2


class Laid(NamedTuple):
    """How many columns a section has, how long it is, and what follows its header: in parts, the first of them short."""

    columns: int
    size: int
    parts: list[bytes]


class _Plan(NamedTuple):
    """The layout of sections of one shape, without the bytes that the last column may carry."""

    columns: int
    table: bytes  # without the entry of those bytes
    pack: Callable[..., bytes]
    end: int  # where the values end: there the section ends too, if it carries no bytes


_plans: dict[tuple[Any, ...], _Plan] = {}


def lay_out(kind: Kind, columns: Mapping[str, Values], count: int) -> Laid | None:
    """The section of these rows; None if their shape is an uncommon one, or something about them is wrong.

    Common are numbers, ranges and texts, and behind them at most one column of bytes: one value, or one for each row.
    """
    shape: list[Any] = [kind]
    values: list[Any] = []
    carried: bytes | list[bytes] | None = None
    for name, value in columns.items():
        form = type(value)
        if carried is not None and value is not None:
            return None
        if form is int:
            shape.append(name)
            values.append(value)
        elif form is range:
            if len(value) != count or not _fits(kind, name, value):
                return None
            shape += (name, _RANGE)
            values += (value.start, value.step)
        elif form is str:
            try:
                raw = value.encode()
            except UnicodeEncodeError:
                return None
            shape += (name, len(raw))
            values += (0, len(raw), raw)
        elif form is bytes or (form is list and len(value) == count > 1):
            carried = value
            shape += (name, _BYTES)
        elif value is not None:
            return None
    known = tuple(shape)
    plan = _plans.get(known) or _learn(known)
    if plan is None:
        return None
    try:
        packed = plan.pack(*values)
        return (
            Laid(plan.columns, plan.end, [plan.table + packed])
            if carried is None
            else _carrying(plan, known, packed, carried)
        )
    except (struct.error, TypeError):
        return None


def _fits(kind: Kind, name: str, value: range) -> bool:
    bound = kind.bounds[name]
    return -bound <= value[0] < bound and -bound <= value[-1] < bound


def _carrying(
    plan: _Plan, shape: tuple[Any, ...], packed: bytes, carried: bytes | list[bytes]
) -> Laid | None:
    """The section with a column of bytes behind all others."""
    count, table, _, end = plan
    number = shape[0].fields[shape[-2]].number
    if type(carried) is bytes:
        length = len(carried)
        ends, encoding = _ENDS(0, length), _CONSTANT
    else:
        if carried[0] == carried[-1] or None in (
            carried[0],
            carried[-1],
        ):  # perhaps all are the same, and stored once
            return None
        (ends, carried), encoding = layout.binary(carried), _PLAIN  # type: ignore[arg-type]
        length = len(carried)
    ends_padding, padding = -len(ends) & 7, -length & 7
    place = end + len(ends) + ends_padding
    entry = _TEXT_ENTRY(number, _BINARY, encoding, 2, 0, end, len(ends), place, length)
    head = (table, entry, packed, ends, _PADDING[ends_padding])
    size = place + length + padding
    if length < LARGE_BYTES:
        return Laid(count, size, [b"".join((*head, carried, _PADDING[padding]))])
    return Laid(count, size, [b"".join(head), carried, _PADDING[padding]])


def _learn(shape: tuple[Any, ...]) -> _Plan | None:
    kind: Kind = shape[0]
    named = _columns_of(shape)
    place = HEADER_BYTES + sum(
        ENTRY.size + PLACE.size * (1 if length in (None, _RANGE) else 2) for _, length in named
    )
    table: list[bytes] = []
    form = "<"
    for name, length in named:
        number, stored = kind.fields[name]
        wanted = FIXED if length in (None, _RANGE) else (Type.BINARY,) if length == _BYTES else (Type.UTF8,)
        if stored not in wanted:
            return None
        if length is None:
            letter, width = FIXED[stored]
            table.append(_NUMBER_ENTRY(number, stored, _CONSTANT, 1, 0, place, width))
            form += f"{letter}{8 - width}x"
            place += 8
        elif length == _RANGE:
            table.append(_NUMBER_ENTRY(number, stored, _SEQUENCE, 1, 0, place, 16))
            form += "qq"
            place += 16
        elif length != _BYTES:
            padding = -length & 7
            table.append(_TEXT_ENTRY(number, stored, _CONSTANT, 2, 0, place, 8, place + 8, length))
            form += f"ii{length}s{padding}x"
            place += 8 + length + padding
    if len(_plans) >= PLANS_MAX:
        _plans.clear()
    plan = _plans[shape] = _Plan(len(named), b"".join(table), struct.Struct(form).pack, place)
    return plan


def _columns_of(shape: tuple[Any, ...]) -> list[tuple[str, int | None]]:
    """Names, with what stands behind them; None behind a number."""
    named: list[tuple[str, int | None]] = []
    for part in shape[1:]:
        if isinstance(part, str):
            named.append((part, None))
        else:
            named[-1] = (named[-1][0], part)
    return named


# --- reading ---


class PlainMessage(NamedTuple):
    """One message with nothing but these."""

    offset: int
    id: int
    timestamp: int
    priority: int
    payload: bytes


_PLAIN_SHAPE: Final = (MESSAGES, "offset", "id", "timestamp", "priority", "payload", _BYTES)
_PLAIN_NUMBERS: Final = struct.Struct("<qqqh")
_PLAIN_TABLE: Final[bytes] = _learn(_PLAIN_SHAPE).table  # type: ignore[union-attr]
_PLAIN_END: Final[int] = _learn(_PLAIN_SHAPE).end  # type: ignore[union-attr]
_PLAIN_ENTRY_AT: Final = HEADER_BYTES + len(_PLAIN_TABLE)
_PLAIN_NUMBERS_AT: Final = _PLAIN_ENTRY_AT + struct.calcsize("<BBBBIIIII")
_PLAIN_ENTRY: Final = struct.Struct("<BBBBIIIII").unpack_from
_PLAIN_KNOWN: Final = (
    MESSAGES.fields["payload"].number, _BINARY, _CONSTANT, 2, 0, _PLAIN_END, 8, _PLAIN_END + 8,
)  # fmt: skip


def plain_message(section: memoryview) -> PlainMessage | None:
    """The message of a section of one row, if it was laid out by the plan of plain messages; None if it must be read in general."""
    if section[HEADER_BYTES:_PLAIN_ENTRY_AT] != _PLAIN_TABLE or len(section) < _PLAIN_END + 8:
        return None
    *known, length = _PLAIN_ENTRY(section, _PLAIN_ENTRY_AT)
    start = _PLAIN_END + 8
    if tuple(known) != _PLAIN_KNOWN or start + length > len(section):
        return None
    offset, given, timestamp, priority = _PLAIN_NUMBERS.unpack_from(section, _PLAIN_NUMBERS_AT)
    return PlainMessage(offset, given, timestamp, priority, bytes(section[start : start + length]))
