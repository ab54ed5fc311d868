"""Disks that can lose their power or be full: an ext4 file system on a loop device, and a small tmpfs. Both need root."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

#: `EXT4_IOC_SHUTDOWN` with the flag "without flushing the log": from here on nothing reaches the disk, as in a power cut.
SHUTDOWN: Final = 0x8004587D
WITHOUT_FLUSH: Final = struct.pack("I", 2)

IMAGE_BYTES: Final = 64 << 20


class Mounted:
    """A file system of our own; leaving the block takes it away, whatever happened."""

    def __init__(self, place: Path) -> None:
        self.path = place / "mount"
        self.path.mkdir(parents=True)

    def __enter__(self) -> Self:
        try:
            self._make()
            self.mount()
        except (OSError, subprocess.CalledProcessError) as error:
            self._take_away()
            pytest.skip(
                f"{self._what()} cannot be mounted here, so this fault was NOT tried: {_reason(error)}"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_away()

    def mount(self) -> None:
        raise NotImplementedError

    def unmount(self) -> None:
        _run("umount", str(self.path))

    def _make(self) -> None:
        if os.geteuid() != 0:
            raise PermissionError("only root may mount")

    def _what(self) -> str:
        raise NotImplementedError

    def _take_away(self) -> None:
        # Lazily if need be: a loop device that was mounted by `mount -o loop` goes with its last user.
        if (
            os.path.ismount(self.path)
            and subprocess.run(["umount", self.path], check=False, capture_output=True).returncode
        ):
            subprocess.run(["umount", "--lazy", self.path], check=False, capture_output=True)


class Disk(Mounted):
    """An ext4 disk whose power can be cut."""

    def _what(self) -> str:
        return "an ext4 file system on a loop device"

    def _make(self) -> None:
        super()._make()
        self._image = self.path.with_name("image")
        with self._image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        # Without ext4's kindness to programs that forget to sync a file before they rename it.
        _run("mount", "-o", "loop,noauto_da_alloc", str(self._image), str(self.path))

    def cut(self) -> None:
        """The power goes, now."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(fd)

    def restore(self) -> None:
        """The power is back. Nobody may have a file open."""
        self.unmount()
        self.mount()

    def wipe(self) -> None:
        for path in self.path.iterdir():
            if path.name != "lost+found":
                shutil.rmtree(path)


class SmallDisk(Mounted):
    """A disk of a few megabytes."""

    def __init__(self, place: Path, megabytes: int) -> None:
        super().__init__(place)
        self._megabytes = megabytes

    def _what(self) -> str:
        return "a small tmpfs"

    def mount(self) -> None:
        _run("mount", "-t", "tmpfs", "-o", f"size={self._megabytes}m", "penstock-test", str(self.path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]}: {error.stderr.strip()}"
    return str(error)
