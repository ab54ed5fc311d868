"""An envelope is whole or nothing."""

from __future__ import annotations

import pytest

from penstock.errors import CorruptJournal
from penstock.journal import envelope


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    data = envelope.wrap(b"TEST", 1, b"the body")
    assert envelope.unwrap(b"TEST", 1, data) == b"the body"
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        assert envelope.unwrap(b"TEST", 1, bytes(flipped)) is None
    for size in range(len(data)):
        assert envelope.unwrap(b"TEST", 1, data[:size]) is None
    assert envelope.unwrap(b"TEST", 1, data + b"x") is None


def test_an_envelope_of_another_kind_is_not_opened() -> None:
    assert envelope.unwrap(b"ELSE", 1, envelope.wrap(b"TEST", 1, b"")) is None


def test_a_newer_version_is_an_error_and_not_damage() -> None:
    with pytest.raises(CorruptJournal, match="version 2"):
        envelope.unwrap(b"TEST", 1, envelope.wrap(b"TEST", 2, b""))
