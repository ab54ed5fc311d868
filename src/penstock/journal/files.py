"""The only place that touches the operating system, but for `kernel`, which is called from here.

Theory of operation
-------------------
Every system call goes through one gate, `Files.perform`, so a test can make the Nth of them fail, write short or be
interrupted, and the whole journal is tried against it with no other seam. Above the gate there are two rules:

- A call that a signal interrupted is made again. A write that was cut short is continued. Both are ordinary.
- Any other error is the caller's. In particular a failed `fdatasync` is never repeated: the kernel has marked the pages
  clean, so that the second one would succeed with the data gone.

Files are created with mode 0600, directories with 0700, and descriptors are closed on exec.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import JournalFailed
from penstock.journal.kernel import KernelSync

Answer = TypeVar("Answer")

#: Errors that mean that there is no room, on the disk or in a quota.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


#: From here on, handing the kernel the parts is cheaper than copying them together first …
VECTOR_BYTES_MIN: Final = 32 << 10
#: … unless there are more of them than it takes at once (IOV_MAX).
VECTOR_PARTS_MAX: Final = 1024


#: A bell is rung by an empty word, and nobody waits for whoever hears it.
_DATAGRAM: Final = socket.SOCK_DGRAM | getattr(socket, "SOCK_NONBLOCK", 0)


#: Those among them that giving space back can help against.
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Files:
    """System calls, each repeated while a signal interrupts it."""

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        """One system call. Tests put their faults here."""
        return operation(*arguments)

    def _call(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        while True:
            try:
                return self.perform(operation, *arguments)
            except InterruptedError:
                continue

    # --- files ---

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """A descriptor, for reading unless `write`. A pipe that somebody put in a file's place is no reason to wait."""
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= (os.O_CREAT if create else 0) | os.O_CLOEXEC | os.O_NONBLOCK
        return self._call(os.open, path, flags, 0o600)

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[int]:
        """A descriptor for reading, closed afterwards."""
        fd = self.open(path)
        try:
            yield fd
        finally:
            self.close(fd)

    def close(self, fd: int) -> None:
        """Linux closes the descriptor whatever it answers, so this is never repeated; what matters was synced before."""
        try:
            self.perform(os.close, fd)
        except OSError as error:
            if error.errno == errno.EBADF:
                raise

    def read(self, fd: int, size: int, position: int) -> bytes:
        """`size` bytes from `position`, or as many as the file has."""
        parts: list[bytes] = []
        while size > 0:
            part = self._call(os.pread, fd, size, position)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, fd: int, data: bytes | list[bytes], position: int) -> None:
        """All of `data`, which may come in parts, at `position`."""
        if type(data) is list:
            size = sum(map(len, data))
            if size >= VECTOR_BYTES_MIN and len(data) <= VECTOR_PARTS_MAX:
                written = self._call(os.pwritev, fd, data, position)
                if written == size:
                    return
                self._write_rest(fd, b"".join(data), position, written)
                return
            data = b"".join(data)
        written = self._call(os.pwrite, fd, data, position)
        if written < len(data):
            self._write_rest(fd, data, position, written)

    def _write_rest(self, fd: int, data: bytes | list[bytes], position: int, written: int) -> None:
        """The kernel took only so many bytes: go on behind them."""
        rest = memoryview(data)  # type: ignore[arg-type]
        while written < len(rest):
            more = self._call(os.pwrite, fd, rest[written:], position + written)
            if more == 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            written += more

    def sync(self, fd: int) -> None:
        """What was written is on the disk when this returns. Never call it again after it failed."""
        self._call(os.fdatasync, fd)

    def begin_sync(self, kernel: KernelSync, fd: int) -> None:
        """Have the kernel sync a file by itself."""
        self._call(kernel.begin, fd)

    def end_sync(self, kernel: KernelSync) -> None:
        """What was written before it began is on the disk when this returns. Never begin it again after it failed."""
        self._call(kernel.end)

    def size(self, fd: int) -> int:
        return self._call(os.fstat, fd).st_size

    def identity(self, path: Path) -> tuple[int, int, int]:
        """What stays the same while a file is the same one and nobody has written to it."""
        found = self._call(os.stat, path)
        return found.st_ino, found.st_mtime_ns, found.st_size

    def truncate(self, fd: int, size: int) -> None:
        self._call(os.ftruncate, fd, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Take room on the disk now, so that writing there cannot fail for want of it."""
        self._call(os.posix_fallocate, fd, position, size)

    def forget_cached(self, fd: int) -> None:
        """Ask the kernel to drop its copy, so that reading back reads the disk."""
        self._call(os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_DONTNEED)

    # --- directories ---

    def names(self, directory: Path) -> list[str]:
        return sorted(self._call(os.listdir, directory))

    def entries(self, directory: Path) -> list[tuple[str, bool]]:
        """Every name, and whether it is a file's: not a directory's, a pipe's, a socket's."""
        return self._call(_entries, directory)

    def make_directory(self, directory: Path) -> None:
        """The directory and its parents, each synced into its own parent."""
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._call(os.mkdir, path, 0o700)
            self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        self._call(os.rename, old, new)

    def link(self, old: Path, new: Path) -> bool:
        """A second name for a file; False if there is something of that name. Of several who try, one succeeds."""
        try:
            self._call(os.link, old, new)
        except FileExistsError:
            return False
        return True

    def unlink(self, path: Path) -> None:
        self._call(os.unlink, path)

    def exists(self, path: Path) -> bool:
        try:
            self._call(os.stat, path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def age_s(self, path: Path) -> float:
        """How long nobody has written to a file, by the clock of the machine that it was written on."""
        return time.time() - self._call(os.stat, path).st_mtime

    def sync_directory(self, directory: Path) -> None:
        """The names in it are on the disk when this returns."""
        fd = self._call(os.open, directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._call(os.fsync, fd)
        finally:
            self.close(fd)

    # --- a bell, by which one process wakes another; there is nothing of it on the disk, so it goes not through the gate ---

    def listen(self, directory: Path) -> socket.socket | None:
        """The bell of a directory, to be heard by one process at a time; None if it cannot be had."""
        with contextlib.ExitStack() as opened:
            try:
                bell = opened.enter_context(socket.socket(socket.AF_UNIX, _DATAGRAM))
                bell.bind(_bell_of(directory))
            except OSError:  # another has it, such as a child that was forked, or this is no Linux
                return None
            opened.pop_all()
            return bell

    def heard(self, bell: socket.socket, seconds: float) -> bool:
        """Wait until the bell rings, or for so long; whether it rang. All ringing up to now is heard then."""
        waiting = select.poll()  # unlike `select`, it takes any descriptor, however many a server has open
        waiting.register(bell, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            while True:
                bell.recv(1)
        return True

    def ring(self, directory: Path) -> bool:
        """Wake whoever listens to a directory's bell; False if nobody does."""
        try:
            with socket.socket(socket.AF_UNIX, _DATAGRAM) as hand:
                hand.sendto(b"!", _bell_of(directory))
        except BlockingIOError:  # it has been rung so often that it is full
            return True
        except OSError:
            return False
        return True

    # --- the rest ---

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        """Take the exclusive lock of an open file, or a shared one; False if another process has one that forbids it."""
        try:
            self._call(fcntl.flock, fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def pause(self, seconds: float) -> None:
        """Let others go first."""
        time.sleep(seconds)

    def random(self) -> int:
        """Sixty-four bits that nobody can guess, never zero."""
        return int.from_bytes(self._call(os.urandom, 8), "little") | 1

    def whoami(self) -> str:
        """This process, for people to read."""
        return f"process {os.getpid()} on {socket.gethostname()}"


def _entries(directory: Path) -> list[tuple[str, bool]]:
    with os.scandir(directory) as found:
        return sorted((entry.name, entry.is_file()) for entry in found)


def _bell_of(directory: Path) -> str:
    """A name that every process of this machine makes of a directory, whatever path leads there. It begins with a zero: there is no file of it."""
    found = os.stat(directory)
    return f"\0penstock/{found.st_dev:x}/{found.st_ino:x}"


@contextlib.contextmanager
def as_far_as_there_is_room() -> Iterator[None]:
    """Around what can be left out: on a full disk it is. Whoever acknowledges there must still be able to, and that gives room back."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def read_whole(files: Files, path: Path) -> bytes:
    """The content of a small file."""
    with files.opened(path) as fd:
        return files.read(fd, files.size(fd), 0)


def write_whole(files: Files, path: Path, data: bytes, *, check: bool = False) -> None:
    """Replace a small file as a whole: after a crash it is the old one or the new one, never a mixture.

    With `check` it is read back from the disk before it replaces the old one. If it cannot be written, nothing of it stays behind: on a
    full disk a draft would keep the room that it was refused for.
    """
    draft = path.with_name(path.name + ".tmp")
    try:
        _write_draft(files, draft, data, check=check)
        files.rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(draft)
        raise
    files.sync_directory(path.parent)


def _write_draft(files: Files, draft: Path, data: bytes, *, check: bool) -> None:
    fd = files.open(draft, write=True, create=True)
    try:
        files.truncate(fd, 0)
        files.write(fd, data, 0)
        files.sync(fd)
        if check:
            files.forget_cached(fd)
            if files.read(fd, len(data) + 1, 0) != data:
                raise OSError(errno.EIO, f"{draft.name} reads back differently from what was written")
    finally:
        files.close(fd)


def at_fork(in_child: Callable[[], None]) -> None:
    """Have `in_child` called in every child that this process forks."""
    os.register_at_fork(after_in_child=in_child)


def require_little_endian() -> None:
    """Columns are read in place as the machine's own numbers, so the machine must be little-endian."""
    if sys.byteorder != "little":
        raise JournalFailed("Penstock's journal needs a little-endian machine (x86-64, ARM64, RISC-V)")
