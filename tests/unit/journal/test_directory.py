"""Names and ownership."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import limits
from penstock.errors import CorruptJournal, DirectoryLocked
from penstock.journal.directory import MOMENTARY, SNAPSHOT, Directory, Ownership, holder, seems_held_elsewhere
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


class Waiting(Files):
    """Instead of pausing, something happens."""

    def __init__(self, meanwhile: Callable[[int], None] = lambda _pauses: None) -> None:
        self.pauses = 0
        self._meanwhile = meanwhile

    def pause(self, seconds: float) -> None:
        assert seconds == limits.LOCK_PAUSE_S
        self.pauses += 1
        self._meanwhile(self.pauses)


def test_an_owner_for_the_moment_is_not_waited_for(directory: Directory) -> None:
    brief = Ownership(directory, momentary=True)
    assert holder(directory) == Files().whoami() + MOMENTARY
    files = Waiting(lambda pauses: brief.leave() if pauses == 50 else None)
    owner = Ownership(Directory(files, directory.path))
    assert files.pauses == 50
    assert holder(directory) == Files().whoami()
    owner.release()


def test_an_owner_for_the_moment_is_waited_for_without_end_or_by_his_like(directory: Directory) -> None:
    brief = Ownership(directory, momentary=True)
    for momentary, pauses in ((False, limits.LOCK_MOMENT_S / limits.LOCK_PAUSE_S), (True, limits.LOCK_TRIES)):
        files = Waiting()
        with pytest.raises(DirectoryLocked, match="for the moment"):
            Ownership(Directory(files, directory.path), momentary=momentary)
        assert files.pauses == pauses - 1
    brief.leave()


def test_an_owner_who_came_after_one_for_the_moment_is_waited_for(directory: Directory) -> None:
    brief = Ownership(directory, momentary=True)
    stays: list[Ownership] = []

    def another(pauses: int) -> None:
        if pauses == 5:
            brief.leave()
            stays.append(Ownership(directory))

    files = Waiting(another)
    with pytest.raises(DirectoryLocked) as refused:
        Ownership(Directory(files, directory.path))
    assert refused.value.holder == Files().whoami()
    assert files.pauses == 5
    stays[0].release()


def test_one_who_asks_is_taken_for_the_holder_by_another_who_asks(directory: Directory) -> None:
    with directory.files.opened(directory.path) as fd:
        assert directory.files.lock(fd, shared=True)
        assert holder(directory) is None


class Elsewhere(Files):
    def whoami(self) -> str:
        return "process 7 on another.example"


@pytest.mark.parametrize("momentary", [False, True])
def test_an_owner_whose_lock_is_not_heard_is_overlooked(directory: Directory, momentary: bool) -> None:
    """As on a file system that hands on no locks between machines: here nobody holds it any more."""
    directory.mark.touch()
    assert not seems_held_elsewhere(directory), "nobody ever did"
    Ownership(Directory(Elsewhere(), directory.path), momentary=momentary).release()
    assert seems_held_elsewhere(directory)
    old = directory.mark.stat().st_mtime - limits.ELSEWHERE_S - 1
    os.utime(directory.mark, (old, old))
    assert not seems_held_elsewhere(directory), "long ago"
    directory.mark.unlink()
    assert not seems_held_elsewhere(directory)
    directory.mark.touch()
    Ownership(directory).release()
    assert not seems_held_elsewhere(directory), "it was here"
    Ownership(Directory(Elsewhere(), directory.path), momentary=True).leave()
    assert not seems_held_elsewhere(directory), "he said that he is gone"


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
