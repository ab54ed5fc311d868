from __future__ import annotations

from array import array

import pytest

from penstock.engine.packed import pack, unpack
from penstock.errors import InvalidArgument


def test_columns_are_not_little_endian_or_come_back_changed() -> None:
    columns = [array("q", [-1, 2**40]), array("Q", [2**64 - 1, 0]), array("i", [-5, 6])]
    stored = [pack(column) for column in columns]
    assert stored[0] == (-1).to_bytes(8, "little", signed=True) + (2**40).to_bytes(8, "little")
    assert unpack("qQi", stored) == columns


@pytest.mark.parametrize("stored", [(), (b"",), (b"", b"", b""), (bytes(8), bytes(8)), (bytes(12), bytes(6))])
def test_damaged_columns_are_taken(stored: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidArgument, match="damaged"):
        unpack("qi", stored)
