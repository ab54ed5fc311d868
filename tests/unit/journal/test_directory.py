"""Names and ownership."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptJournal, DirectoryLocked
from penstock.journal.directory import SNAPSHOT, Directory, Ownership, holder
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


def test_the_same_damage_is_kept_once_and_other_bytes_never_replace_it(directory: Directory) -> None:
    first = directory.keep("a.bytes", b"one")
    assert directory.keep("a.bytes", b"one") == first
    second = directory.keep("a.bytes", b"two")
    assert directory.keep("a.bytes", b"two") == second
    kept = {name: (directory.quarantine / name).read_bytes() for name in (first, second)}
    assert kept == {"a.bytes": b"one", second: b"two"}


def test_a_file_that_is_moved_aside_replaces_no_earlier_one(directory: Directory) -> None:
    for data in (b"one", b"two"):
        directory.file(7, SNAPSHOT).write_bytes(data)
        directory.move_aside(directory.file(7, SNAPSHOT))
    assert sorted(path.read_bytes() for path in directory.quarantine.iterdir()) == [b"one", b"two"]
    assert not directory.file(7, SNAPSHOT).exists()


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


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_that_somebody_removed_lets_no_second_owner_in(
    directory: Directory, replaced: bool
) -> None:
    owner = Ownership(directory)
    directory.lock.unlink()
    if replaced:
        directory.lock.touch()
    assert holder(directory) == "another process"
    with pytest.raises(DirectoryLocked, match="another process"):
        Ownership(directory)
    owner.release()
    assert holder(directory) is None
    Ownership(directory).release()
