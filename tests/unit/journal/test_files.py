"""Interrupted calls are made again, short writes are continued, a failed sync never is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock.journal.files import Answer, Files, read_whole, write_whole


class Stuttering(Files):
    """Every call is interrupted twice before it is made, and writes take three bytes at a time."""

    def __init__(self) -> None:
        self.interruptions = 0

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        if operation is not os.close and self.interruptions % 3 < 2:
            self.interruptions += 1
            raise InterruptedError
        self.interruptions += 1
        if operation is os.pwrite:
            fd, data, position = cast("tuple[int, bytes, int]", arguments)
            return operation(fd, data[:3], position)
        return operation(*arguments)


def test_interrupted_and_short_writes_are_finished(tmp_path: Path) -> None:
    write_whole(Stuttering(), tmp_path / "file", b"0123456789")
    assert read_whole(Stuttering(), tmp_path / "file") == b"0123456789"


def test_a_large_write_in_parts_that_is_cut_short_is_finished(tmp_path: Path) -> None:
    class Halving(Files):
        def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
            if operation is os.pwritev:
                fd, parts, position = cast("tuple[int, list[bytes], int]", arguments)
                return operation(fd, [b"".join(parts)[:40_001]], position)
            return operation(*arguments)

    parts = [bytes([n]) * 10_007 for n in range(9)]
    for files in (Halving(), Files()):
        fd = files.open(tmp_path / "file", write=True, create=True)
        files.write(fd, parts, 5)
        assert files.read(fd, 1 << 20, 5) == b"".join(parts)
        files.truncate(fd, 0)
        files.close(fd)


def test_a_disk_that_takes_no_bytes_is_an_error(tmp_path: Path) -> None:
    class Full(Files):
        def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
            return 0 if operation is os.pwrite else operation(*arguments)  # type: ignore[return-value]

    with pytest.raises(OSError, match="took no bytes"):
        write_whole(Full(), tmp_path / "file", b"x")


def test_a_failed_sync_is_not_made_again(tmp_path: Path) -> None:
    calls: list[str] = []

    class Failing(Files):
        def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
            calls.append(operation.__name__)
            if operation is os.fdatasync:
                raise OSError(errno.EIO, "no")
            return operation(*arguments)

    with pytest.raises(OSError, match="no"):
        write_whole(Failing(), tmp_path / "file", b"x")
    assert calls.count("fdatasync") == 1
    assert not (tmp_path / "file").exists()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    write_whole(Files(), tmp_path / "file", b"old")

    class Lying(Files):
        """Reads back something else than was written."""

        def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
            return b"rot" if operation is os.pread else operation(*arguments)  # type: ignore[return-value]

    with pytest.raises(OSError, match="reads back differently"):
        write_whole(Lying(), tmp_path / "file", b"new", check=True)
    assert read_whole(Files(), tmp_path / "file") == b"old"


def test_a_file_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    class Refusing(Files):
        """Fails once, at one call."""

        def __init__(self, name: str) -> None:
            self.name = name

        def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
            if operation.__name__ == self.name:
                raise OSError(errno.ENOSPC, "full")
            return operation(*arguments)

    for name in ("ftruncate", "pwrite", "fdatasync", "rename"):
        with pytest.raises(OSError, match="full"):
            write_whole(Refusing(name), tmp_path / "file", b"x")
        assert list(tmp_path.iterdir()) == []


def test_every_directory_that_is_made_is_synced_into_its_parent(tmp_path: Path) -> None:
    synced: list[str] = []

    class Noting(Files):
        def sync_directory(self, directory: Path) -> None:
            synced.append(directory.name)
            super().sync_directory(directory)

    Noting().make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path.name, "a", "b"]
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_generation_is_never_zero_and_never_the_same() -> None:
    found = {Files().random() for _ in range(1000)}
    assert len(found) == 1000
    assert 0 not in found
