"""The checksum is zlib's, whoever computes it: what was written with one is read with the other."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from penstock.journal import Journal, JournalReader, messages
from penstock.journal.checksum import agrees, crc32

BATCH = [b"%0100d" % number for number in range(500)]

WITHOUT = f"""
import sys, zlib
from pathlib import Path
sys.modules["zlib_ng"] = None
from penstock.journal import Journal, JournalReader, messages
from penstock.journal.checksum import crc32
assert crc32 is zlib.crc32
path, batch = Path(sys.argv[2]), {BATCH!r}
if sys.argv[1] == "write":
    with Journal(path) as journal:
        journal.commit([messages(1, batch, ids=range(500), timestamp=0)])
else:
    read = [bytes(p) for found in JournalReader(path).read(1) for p in found.values("payload")]
    assert read == batch, len(read)
"""


def without_zlib_ng(what: str, path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT, what, str(path)], check=True, timeout=60)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 15, 16, 60, 63, 64, 255, 4096, 5121, 100_003])
def test_it_is_the_sum_of_zlib(length: int) -> None:
    data = bytes(number * 131 & 255 for number in range(length))
    assert crc32(data, 12345) == zlib.crc32(data, 12345)
    assert crc32(memoryview(data)[1:], 0xFFFFFFFF) == zlib.crc32(data[1:], 0xFFFFFFFF)


def test_what_zlib_ng_wrote_is_read_without_it(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.commit([messages(1, BATCH, ids=range(500), timestamp=0)])
    without_zlib_ng("read", tmp_path)


def test_what_was_written_without_it_is_read_by_zlib_ng(tmp_path: Path) -> None:
    without_zlib_ng("write", tmp_path)
    assert [bytes(p) for found in JournalReader(tmp_path).read(1) for p in found.values("payload")] == BATCH


def test_it_is_the_fast_one_where_that_is_installed() -> None:
    """The server and Spark bring it along, and so does what tests need."""
    assert crc32 is not zlib.crc32


@pytest.mark.parametrize(("above", "below"), [(64, 1 << 20), (20_000, 1 << 20), (-1, 20), (200, 1100)])
def test_one_that_is_wrong_is_believed(above: int, below: int) -> None:
    def wrong(data: bytes | memoryview, start: int = 0, /) -> int:
        return zlib.crc32(data, start) ^ (above < len(data) < below)

    assert agrees(crc32)
    assert agrees(zlib.crc32)
    assert not agrees(wrong)


def test_one_that_forgets_what_was_before_is_believed() -> None:
    def forgetful(data: bytes | memoryview, _start: int = 0, /) -> int:
        return zlib.crc32(data)

    assert not agrees(forgetful)


@pytest.mark.parametrize("there", ["types.SimpleNamespace(crc32=lambda *_: 7)", "types.SimpleNamespace()"])
def test_one_that_lies_or_does_not_load_is_in_the_way(there: str) -> None:
    """What a module does not have, too, is an `ImportError`, and not one of a module that is not found."""
    put = f"import sys, types, zlib\nsys.modules['zlib_ng.zlib_ng'] = sys.modules['zlib_ng'] = {there}\n"
    asked = "from penstock.journal.checksum import crc32\nassert crc32 is zlib.crc32"
    subprocess.run([sys.executable, "-c", put + asked], check=True, timeout=60)
