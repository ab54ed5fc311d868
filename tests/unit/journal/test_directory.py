"""Names and ownership."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptJournal, DirectoryLocked
from penstock.journal.directory import Directory, Ownership, holder
from penstock.journal.files import Files


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(Files(), tmp_path)


def test_files_are_told_apart_by_name(directory: Directory) -> None:
    names = ["7.segment", "7.summary", "12.snapshot", "3.free", "8.segment.tmp"]
    for name in names:
        number, rest = name.split(".", 1)
        (directory.path / f"{int(number):020d}.{rest}").touch()
    (directory.path / "mark.tmp").touch()
    (directory.path / "readme.txt").touch()
    found = directory.contents()
    assert (found.segments, found.summaries, found.snapshots, found.free) == ([7], [7], [12], [3])
    assert found.drafts == ["00000000000000000008.segment.tmp", "mark.tmp"]


@pytest.mark.parametrize(
    "name", ["00000000000000000001.index", "1.segment", "old.snapshot", "copy of 1.summary", ".free"]
)
def test_a_file_that_only_looks_like_ours_is_not_passed_over(directory: Directory, name: str) -> None:
    (directory.path / name).touch()
    with pytest.raises(CorruptJournal, match="looks like"):
        directory.contents()


def test_the_same_damage_is_set_aside_once(directory: Directory) -> None:
    first = directory.set_aside("a.bytes", b"one")
    assert directory.set_aside("a.bytes", b"two") == first
    assert first.read_bytes() == b"one"


def test_asking_who_holds_a_directory_changes_nothing(directory: Directory) -> None:
    assert holder(directory) is None
    owner = Ownership(directory)
    held = directory.lock.read_bytes()
    assert holder(directory) == held.decode()
    assert directory.lock.read_bytes() == held
    owner.release()
    assert holder(directory) is None


def test_a_second_owner_is_refused_until_the_first_lets_go(directory: Directory) -> None:
    owner = Ownership(directory)
    with pytest.raises(DirectoryLocked) as refused:
        Ownership(directory)
    assert refused.value.holder == Files().whoami()
    owner.release()
    owner.release()
    Ownership(directory).release()
