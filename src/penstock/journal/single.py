"""One row as a section: one message, one lease, one ack.

Theory of operation
-------------------
Whoever publishes one message at a time makes a section of one row each time, and nearly always of the same shape: the same columns, with texts of
the same length. All that such sections differ in is their numbers, the letters of their texts, and how long the payload is. So the table of
columns is made once for each shape, with a `struct` that packs all values in one call: a *plan*.

What comes out is byte for byte what the general way makes of the same row (`rows`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock.journal.columns import ENTRY, FIXED, PLACE, Encoding, Type, Values
from penstock.journal.kinds import HEADER_BYTES, Kind

#: Programs have few shapes. Where there are more, all are forgotten at once and learned again.
PLANS_MAX: Final = 1024

#: A value of so many bytes is better not copied: it is left to the general way.
LARGE_BYTES: Final = 16 << 10

_CONSTANT: Final = int(Encoding.CONSTANT)
_BINARY: Final = int(Type.BINARY)
_NUMBER_ENTRY: Final = struct.Struct("<BBBBIII").pack
_TEXT_ENTRY: Final = struct.Struct("<BBBBIIIII").pack
_ENDS: Final = struct.Struct("<ii").pack
_PADDING: Final = tuple(bytes(n) for n in range(8))


class _Plan(NamedTuple):
    """The layout of rows of one shape, without the bytes that the last column may carry."""

    columns: int
    table: bytes  # without the entry of those bytes
    pack: Callable[..., bytes]
    end: int  # where the values end: there the section ends too, if it carries no bytes


_plans: dict[tuple[Any, ...], _Plan] = {}


def encode(kind: Kind, columns: Mapping[str, Values]) -> tuple[int, int, bytes] | None:
    """How many columns a row has, how long its section is, and what follows the section's header.

    None if it is of an uncommon shape. Common are numbers and texts, and behind them at most one value of bytes.
    """
    shape: list[Any] = [kind]
    values: list[Any] = []
    carried: bytes | None = None
    for name, value in columns.items():
        form = type(value)
        if carried is not None and value is not None:
            return None
        if form is int:
            shape.append(name)
            values.append(value)
        elif form is str:
            raw = value.encode()
            shape += (name, len(raw))
            values += (0, len(raw), raw)
        elif form is bytes:
            carried = value
            shape += (name, -1)
        elif value is not None:
            return None
    known = tuple(shape)
    plan = _plans.get(known) or _learn(known)
    if carried is None:
        return plan.columns, plan.end, plan.table + plan.pack(*values)
    count, table, pack, end = plan
    length = len(carried)
    if length >= LARGE_BYTES:
        return None
    padding = -length & 7
    entry = _TEXT_ENTRY(kind.fields[shape[-2]].number, _BINARY, _CONSTANT, 2, 0, end, 8, end + 8, length)
    body = b"".join((table, entry, pack(*values), _ENDS(0, length), carried, _PADDING[padding]))
    return count, end + 8 + length + padding, body


def _learn(shape: tuple[Any, ...]) -> _Plan:
    kind: Kind = shape[0]
    named = _columns_of(shape)
    place = HEADER_BYTES + sum(ENTRY.size + PLACE.size * (1 if length is None else 2) for _, length in named)
    table: list[bytes] = []
    form = "<"
    for name, length in named:
        number, stored = kind.fields[name]
        if length is None:
            letter, width = FIXED[stored]
            table.append(_NUMBER_ENTRY(number, stored, _CONSTANT, 1, 0, place, width))
            form += f"{letter}{8 - width}x"
            place += 8
        elif length >= 0:
            padding = -length & 7
            table.append(_TEXT_ENTRY(number, stored, _CONSTANT, 2, 0, place, 8, place + 8, length))
            form += f"ii{length}s{padding}x"
            place += 8 + length + padding
    if len(_plans) >= PLANS_MAX:
        _plans.clear()
    plan = _plans[shape] = _Plan(len(named), b"".join(table), struct.Struct(form).pack, place)
    return plan


def _columns_of(shape: tuple[Any, ...]) -> list[tuple[str, int | None]]:
    """Names, with the length of a text, -1 for what is carried, and None for a number."""
    named: list[tuple[str, int | None]] = []
    for part in shape[1:]:
        if isinstance(part, str):
            named.append((part, None))
        else:
            named[-1] = (named[-1][0], part)
    return named
