"""The checksum of everything in a journal's files: CRC-32, by the fastest way that is installed.

It is zlib's checksum either way, byte for byte, so a journal may be written with one and read with the other. Of writing or reading a batch, zlib itself
takes a fifth to a third of the time: it goes through the bytes at 2.7 GB/s. `zlib-ng` has the processor multiply polynomials, at 45 GB/s
(100 KB: 2 µs instead of 40). It is not worth a dependency of everybody who embeds a queue, so it comes with `penstock[fast]`, which the server and Spark bring along.
Which instructions it uses depends on the processor, so it is believed only where it agrees with zlib.
"""

from __future__ import annotations

import zlib
from typing import Final, Protocol


class Checksum(Protocol):
    """The checksum of some bytes, begun with that of those before them."""

    def __call__(self, data: bytes | memoryview, start: int = 0, /) -> int: ...


#: Lengths at which implementations change their way: below a word, a vector, several of them, and with a rest behind.
_LENGTHS: Final = (0, 7, 16, 63, 257, 1031, 16_391, 70_001)
_TRIED: Final = bytes(range(251)) * 280


def agrees(checksum: Checksum) -> bool:
    """Whether a checksum is that of zlib, as far as a few lengths tell."""
    whole = memoryview(_TRIED)
    return all(
        checksum(whole[1 : 1 + length], 0xC0FFEE) == zlib.crc32(whole[1 : 1 + length], 0xC0FFEE)
        for length in _LENGTHS
    )


def _fastest() -> Checksum:
    try:
        from zlib_ng.zlib_ng import crc32 as fast
    except ImportError:  # not installed, or not made for this machine
        return zlib.crc32
    return fast if agrees(fast) else zlib.crc32


crc32: Final[Checksum] = _fastest()
