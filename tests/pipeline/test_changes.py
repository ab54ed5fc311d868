"""Changes to a folder of files, broken off before each of their steps: what counts is exact at any moment, and the next run brings it to an end."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import CorruptJournal, DirectoryLocked
from penstock.pipeline.changes import Changes, Total
from penstock.pipeline.hadoop import Folder


class Killed(Exception):
    pass


class Mortal(Folder):
    """Dies before its n-th step."""

    steps_left = 1_000_000

    def _step(self) -> None:
        if not self.steps_left:
            raise Killed
        self.steps_left -= 1

    def make(self, name: str) -> None:
        self._step()
        super().make(name)

    def write(self, name: str, data: bytes) -> None:
        self._step()
        super().write(name, data)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self._step()
        super().remove(name)

    def sync(self, names: Iterable[str]) -> None:
        self._step()
        super().sync(names)

    def sync_folders(self, names: Iterable[str]) -> None:
        self._step()
        super().sync_folders(names)


def changes(folder: Folder) -> Changes:
    return Changes(folder, "_archive", "messages")


def stage(root: Path, **files: str) -> dict[str, str]:
    """Files as Spark would leave them, with the names that they are to have."""
    staging = root / "_archive/staging/messages/7"
    staging.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (staging / name).write_text(text)
    return {f"_archive/staging/messages/7/{name}": f"messages/day=1/{name}.parquet" for name in files}


def counted(root: Path, folder: Folder) -> set[str]:
    """What the files say that count."""
    found = [(root / one.name).read_text() for one in changes(folder).files()]
    assert len(found) == len(set(found))
    return set(found)


def at_rest(root: Path) -> set[str]:
    """What somebody sees who knows of no changes."""
    return {path.read_text() for path in root.glob("messages/**/*.parquet")}


@pytest.fixture
def root(tmp_path: Path, spark: SparkSession) -> Path:
    """Two small files that count."""
    root = tmp_path / "archive"
    root.mkdir()
    changes(Folder(spark, root)).make(stage(root, a="1", b="2"), [], Total(6))
    assert at_rest(root) == {"1", "2"}
    return root


def test_a_change_is_half_done_after_a_crash(root: Path, spark: SparkSession, tmp_path: Path) -> None:
    """It exchanges both files for others, and dies before each of its steps; then it dies in recovering, too."""
    before, after = {"1", "2"}, {"3", "4", "5"}
    outcomes = []
    for steps in range(100):
        copy = tmp_path / f"copy{steps}"
        shutil.copytree(root, copy)
        folder = Mortal(spark, copy)
        folder.steps_left = steps
        try:
            add = stage(copy, c="3", d="4", e="5")
            changes(folder).make(add, ["messages/day=1/a.parquet", "messages/day=1/b.parquet"], Total(7))
        except Killed:
            outcomes.append(recovered(copy, spark, steps, before, after))
        else:
            break
        finally:
            shutil.rmtree(copy)
    assert before in outcomes
    assert after in outcomes
    assert outcomes == sorted(outcomes, key=after.__eq__), "what is decided is not taken back"
    assert len(outcomes) > 12


def recovered(copy: Path, spark: SparkSession, steps: int, before: set[str], after: set[str]) -> set[str]:
    folder = Folder(spark, copy)
    seen = counted(copy, folder)
    assert seen in (before, after)
    dying = Mortal(spark, copy)
    dying.steps_left = steps % 5
    try:
        changes(dying).recover()
    except Killed:
        assert counted(copy, folder) in ([after] if seen == after else [before, after])
    changes(folder).recover()
    found = counted(copy, folder)
    assert found in ([after] if seen == after else [before, after])
    assert at_rest(copy) == found
    assert changes(folder).at_rest()
    assert changes(folder).total().batch == (7 if found == after else 6)
    assert not (copy / "_archive/staging/messages").exists()
    assert changes(folder).recover() is False
    return found


def test_a_staged_file_is_gone_and_nobody_says_so(root: Path, spark: SparkSession) -> None:
    folder = Mortal(spark, root)
    folder.steps_left = 8  # the intent is written
    with pytest.raises(Killed):
        changes(folder).make(stage(root, c="3", d="4"), [], Total(7))
    assert list(root.glob("_archive/changes/messages/*.intent"))
    shutil.rmtree(root / "_archive/staging")
    with pytest.raises(CorruptJournal, match="somebody removed it"):
        changes(Folder(spark, root)).recover()


def test_a_manifest_that_is_not_what_was_written_is_believed(root: Path, spark: SparkSession) -> None:
    [manifest] = root.glob("_archive/changes/messages/*.manifest")
    manifest.with_name(f".{manifest.name}.crc").unlink()
    manifest.write_text("{}")
    with pytest.raises(CorruptJournal, match="not what was written"):
        changes(Folder(spark, root)).files()


def test_two_at_once_own_a_folder(root: Path, spark: SparkSession) -> None:
    folder = Folder(spark, root)
    with (
        folder.owned("lock", "archiving into"),
        pytest.raises(DirectoryLocked, match="under way already"),
        folder.owned("lock", "archiving into"),
    ):
        pass
    with folder.owned("lock", "archiving into"):
        pass


def test_names_with_signs_are_not_what_they_were(tmp_path: Path, spark: SparkSession) -> None:
    folder = Folder(spark, tmp_path / "a folder")
    folder.make("t/topic=a%3Ab@c")
    folder.write("t/topic=a%3Ab@c/x", b"\x00\xff")
    assert [one.name for one in folder.files("t")] == ["t/topic=a%3Ab@c/x"]
    assert folder.read("t/topic=a%3Ab@c/x") == b"\x00\xff"
    assert folder.read("t/nothing") is None
    assert folder.names("nothing") == []
