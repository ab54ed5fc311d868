"""Count the values of a large body before it is decoded.

A value of one byte takes up to some hundred bytes once it is decoded: 48 MB of empty items took
three gigabytes before their number was looked at. So the values are counted first, which makes
nothing of them, and a body with too many is refused.

A number, a text, bytes, a name in an object, a list and an object count as one value each; a list
and an object as `CONTAINER_VALUES` more, for what they take themselves. The count may be a little
too high for a body that is malformed, or has empty lists and objects; it is never too low.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from penstock.errors import BatchTooLarge

#: A list or an object takes as much memory as so many numbers or texts besides.
CONTAINER_VALUES: Final = 4

#: A byte makes one list at the most: a body of fewer bytes than the bound, by this, needs no count.
BYTE_VALUES_MAX: Final = 1 + CONTAINER_VALUES

#: JSON is looked at in pieces of so many bytes: others have their turn between two of them.
PIECE_BYTES: Final = 64 << 10

#: Escapes up to the first byte behind them: there a text can be cut.
_ESCAPES: Final = re.compile(rb"\\*+.", re.DOTALL)


def require_values(body: bytes, values_max: int, *, packed: bool) -> None:
    """Raise if a body has more values than that."""
    if packed:
        is_above = _msgpack_values(body, values_max) > values_max
    else:  # what stands in texts is left out only if it matters
        is_above = _json_values(body) >= values_max and _values_outside_texts(body, values_max) > values_max
    if is_above:
        raise BatchTooLarge(
            f"the body has more than {values_max} values (a list or an object counts as {BYTE_VALUES_MAX}): "
            "send less, or make it several requests"
        )


def _json_values(text: bytes) -> int:
    """Return how many values JSON has if no such sign stands in a text: before each but the outermost there is one."""
    containers = text.count(b"{") + text.count(b"[")
    return text.count(b",") + text.count(b":") + containers * BYTE_VALUES_MAX


def _values_outside_texts(body: bytes, values_max: int) -> int:
    """Return how many values JSON has, or a number above the bound."""
    found, at, is_inside = 1, 0, 0
    while at < len(body) and found <= values_max:
        cut = _ESCAPES.match(body, at + PIECE_BYTES)
        end = len(body) if cut is None else cut.end()
        piece = body[at:end].replace(rb"\\", b"").replace(rb"\"", b"")
        parts = piece.split(b'"')
        found += _json_values(b"".join(parts[is_inside::2]))
        is_inside = (is_inside + len(parts) - 1) % 2
        at = end
    return found


def _msgpack_values(body: bytes, values_max: int) -> int:
    """The same for msgpack, where each value begins with a byte that says its kind."""
    found = at = 0
    end = len(body)
    while at < end and found <= values_max:
        kind = body[at]
        width = _LENGTH_BYTES[kind]
        if width:
            at += int.from_bytes(body[at + 1 : at + 1 + width])
        at += _HEAD_BYTES[kind]
        found += _VALUES[kind]
    return found


def _table(usual: int, ranges: dict[int, Sequence[int]]) -> bytes:
    """Return a number for each kind."""
    found = bytearray([usual]) * 256
    for first, numbers in ranges.items():
        found[first : first + len(numbers)] = numbers
    return bytes(found)


#: How many bytes say how many follow: of bytes, extensions and texts.
_LENGTH_BYTES: Final = _table(0, {0xC4: (1, 2, 4, 1, 2, 4), 0xD9: (1, 2, 4)})

#: The other bytes of a value: short texts, bytes and extensions, numbers, short extensions and texts,
#: lists and objects.
_HEAD_BYTES: Final = _table(
    1,
    {
        0xA0: range(1, 33),
        0xC4: (2, 3, 5, 3, 4, 6),
        0xCA: (5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18, 2, 3, 5, 3, 5, 3, 5),
    },
)

_VALUES: Final = _table(1, {0x80: [BYTE_VALUES_MAX] * 32, 0xDC: [BYTE_VALUES_MAX] * 4})
