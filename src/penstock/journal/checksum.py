"""The checksum of what may be long, a frame's body or a snapshot: CRC-32, by the fastest way that is installed.

It is zlib's checksum either way, byte for byte, so a journal may be written with one and read with the other. Of writing or reading a batch, zlib itself
takes a fifth to a third of the time: it goes through the bytes at 2.7 GB/s. `zlib-ng` has the processor multiply polynomials, at 45 GB/s
(100 KB: 2 µs instead of 40). It is not worth a dependency of everybody who embeds a queue, so it comes with `penstock[fast]`, which the server and Spark bring along.

Headers are so short that the way there and back is all that counts; they are checked with `zlib` everywhere.
"""

from __future__ import annotations

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # not installed, or not made for this machine
    from zlib import crc32

__all__ = ["crc32"]
