"""A folder on whatever file system Hadoop can reach (local files, HDFS, S3), for the few files that a job writes itself.

Theory of operation
-------------------
Spark writes the large files; what is here moves, lists and removes them, and writes the small ones that say which of them count. Names are relative to the folder.

A small file is written whole under another name and then renamed, so that its name always stands for all of it. Files of this machine are synced before anything
refers to them: Hadoop's own writing is not. HDFS and object stores keep what was closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.errors import DirectoryLocked, InvalidArgument

DRAFT: Final = ".draft"

_MISSING: Final = "java.io.FileNotFoundException"


class Entry(msgspec.Struct, frozen=True):
    """A file: its name within the folder, and its length."""

    name: str
    bytes: int

    @property
    def parent(self) -> str:
        return self.name.rpartition("/")[0]


class Folder:
    """A folder by its path or URI. It need not exist."""

    def __init__(self, spark: SparkSession, path: str | Path) -> None:
        if not str(path):
            raise InvalidArgument("no folder is given: name a path, or a URI that Hadoop knows")
        jvm: Any = spark._jvm
        self._jvm = jvm
        session: Any = spark._jsparkSession
        given: Any = self._jvm.org.apache.hadoop.fs.Path(str(path))
        self._fs = given.getFileSystem(session.sessionState().newHadoopConf())
        root = self._fs.makeQualified(given)
        self.root: str = root.toString()
        self.local: Path | None = Path(root.toUri().getPath()) if root.toUri().getScheme() == "file" else None

    def path(self, name: str) -> str:
        """What Spark is told to read or write."""
        return f"{self.root}/{name}" if name else self.root

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name))

    # --- looking ---

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._at(name)))

    def names(self, name: str) -> list[str]:
        """What is directly in a folder, by name, in order; nothing if there is no such folder."""
        return sorted(found.getPath().getName() for found in self._status(name))

    def files(self, name: str) -> Iterator[Entry]:
        """The files in a folder and the folders in it, but for those that begin with a dot or an underscore, in order."""
        found = sorted((one.getPath().getName(), one) for one in self._status(name))
        for short, one in found:
            if short.startswith((".", "_")):
                continue
            inner = f"{name}/{short}" if name else short
            if one.isDirectory():
                yield from self.files(inner)
            else:
                yield Entry(inner, int(one.getLen()))

    def _status(self, name: str) -> list[Any]:
        try:
            return list(self._fs.listStatus(self._at(name)))
        except Py4JJavaError as error:
            if _is_missing(error):
                return []
            raise

    def read(self, name: str) -> bytes | None:
        """All of a small file; None if it is not there."""
        try:
            stream = self._fs.open(self._at(name))
        except Py4JJavaError as error:
            if _is_missing(error):
                return None
            raise
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    # --- changing ---

    def make(self, name: str) -> None:
        """Have a folder."""
        self._fs.mkdirs(self._at(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a small file. There must be none of that name."""
        draft = self._at(name + DRAFT)
        stream = self._fs.create(draft, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        self.sync([name + DRAFT])
        self.rename(name + DRAFT, name)
        self.sync_folders([name])

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, which no other file has."""
        if not self._fs.rename(self._at(old), self._at(new)):
            raise OSError(f"{self.path(old)} could not be renamed to {self.path(new)}")

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it. It may be gone already."""
        self._fs.delete(self._at(name), True)

    # --- making sure ---

    def sync(self, names: Iterable[str]) -> None:
        """Have the contents of files on the disk, if it is this machine's."""
        if self.local is None:
            return
        for name in names:
            path = self.local / name
            _sync(path)
            with contextlib.suppress(
                FileNotFoundError
            ):  # Hadoop's own checksum of it, which it refuses a file for
                _sync(path.with_name(f".{path.name}.crc"))

    def sync_folders(self, names: Iterable[str]) -> None:
        """Have the names of files on the disk, with those of the folders that lead to them."""
        if self.local is None:
            return
        above: set[Path] = set()
        for name in names:
            folder = (self.local / name).parent
            while folder not in above and (folder == self.local or self.local in folder.parents):
                above.add(folder)
                folder = folder.parent
        for folder in sorted(above | {self.local.parent}):
            _sync(folder)

    @contextlib.contextmanager
    def owned(self, name: str, what: str) -> Iterator[None]:
        """Be the only one who does something here. Only for files of this machine: elsewhere nobody can tell a lock from what a crash left of it."""
        if self.local is None:
            yield
            return
        (self.local / name).parent.mkdir(parents=True, exist_ok=True)
        with (self.local / name).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DirectoryLocked(
                    f"{what} {self.root} is under way already: wait until it ends"
                ) from error
            yield


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_missing(error: Py4JJavaError) -> bool:
    java: Any = error.java_exception
    return bool(java.getClass().getName() == _MISSING)
