"""Columns of integers, as they are stored.

The engine keeps large state in arrays of integers and not in objects. Stored, each array is its integers one after
another, little-endian on every machine, and a state of several arrays is a tuple of such columns:

    +---------+---------+-----+
    | value 0 | value 1 | ... |     8 bytes each ("q" signed, "Q" unsigned), or 4 ("i" signed)
    +---------+---------+-----+

What always holds: the columns of one state are equally long, for value i of each belongs to entry i. That is checked
here; what the values mean is checked by the state that reads them.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidArgument

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_SWAPPED: Final = sys.byteorder != "little"


def pack(column: array[int]) -> bytes:
    """The integers of `column` as bytes.

    >>> pack(array("i", [1, 258]))
    b'\\x01\\x00\\x00\\x00\\x02\\x01\\x00\\x00'
    """
    if _SWAPPED:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def unpack(typecodes: str, stored: Sequence[bytes]) -> list[array[int]]:
    """The columns that were packed, one for each character of `typecodes`. Checked: they may have been damaged.

    >>> unpack("qi", (bytes(16), bytes(8)))
    [array('q', [0, 0]), array('i', [0, 0])]
    """
    if len(stored) != len(typecodes):
        raise InvalidArgument(f"{len(stored)} stored columns where {len(typecodes)} belong; they are damaged")
    columns = [_unpacked(typecode, one) for typecode, one in zip(typecodes, stored, strict=True)]
    if len({len(column) for column in columns}) > 1:
        raise InvalidArgument("stored columns are not equally long; they are damaged")
    return columns


def _unpacked(typecode: str, stored: bytes) -> array[int]:
    column = array(typecode)
    if len(stored) % column.itemsize:
        raise InvalidArgument(f"a stored column ends within a value ({len(stored)} bytes); it is damaged")
    column.frombytes(stored)
    if _SWAPPED:
        column.byteswap()
    return column
