"""Files whose Nth system call goes wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.journal.files import Files

Answer = TypeVar("Answer")

EIO: Final = "EIO"
ENOSPC: Final = "ENOSPC"
EINTR: Final = "EINTR"
SHORT: Final = "short"
KINDS: Final = (EIO, ENOSPC, EINTR, SHORT)

#: A signal interrupts as often as this in a row; for ever would be a hang, and rightly so.
INTERRUPTIONS: Final = 5

#: The calls that a full disk can refuse.
_TAKE_ROOM: Final = (
    os.pwrite, os.pwritev, os.posix_fallocate, os.fdatasync, os.fsync, os.rename, os.mkdir, os.open,
)  # fmt: skip

#: The calls that never fail so: they neither wait nor touch the disk.
_NEVER: Final = (os.urandom,)


class UnsyncedFiles(Files):
    """Files that leave syncing to the kernel. Where no power is cut, nobody can tell, and it is ten times as fast."""

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        if operation is os.fdatasync or operation is os.fsync:
            return None  # type: ignore[return-value]
        return operation(*arguments)


class FaultyFiles(UnsyncedFiles):
    """Once armed, the Nth call that the fault applies to fails; with `forever`, so do all later ones.

    A closed descriptor stays closed whatever closing it says, as on Linux.
    """

    def __init__(self) -> None:
        self._kind = ""
        self._nth = 0
        self._forever = False
        self._left = 0
        self.calls = 0
        self.fired = False

    def arm(self, kind: str, nth: int, *, forever: bool) -> None:
        self._kind, self._nth, self._forever = kind, nth, forever
        self._left = INTERRUPTIONS
        self.calls = 0
        self.fired = False

    def disarm(self) -> None:
        self._kind = ""

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        if not self._applies(operation, arguments):
            return super().perform(operation, *arguments)
        self.calls += 1
        if not self._strikes():
            return super().perform(operation, *arguments)
        self.fired = True
        if self._kind == SHORT:
            fd, data, position = arguments
            whole = b"".join(data) if isinstance(data, list) else data
            half: Any = memoryview(whole)[: max(len(whole) // 2, 1)]  # type: ignore[arg-type]
            return operation(fd, [half] if isinstance(data, list) else half, position)
        if operation == os.close:
            super().perform(operation, *arguments)
        number = getattr(errno, self._kind)
        raise OSError(number, f"{os.strerror(number)} ({operation.__name__}, call {self.calls})")

    def _strikes(self) -> bool:
        if self._kind == EINTR:
            struck = self.calls == self._nth or (self._forever and self.calls > self._nth and self._left > 0)
            self._left = self._left - 1 if struck else INTERRUPTIONS if self._forever else 0
            return struck
        return self.calls == self._nth or (self._forever and self.calls > self._nth)

    def _applies(self, operation: Callable[..., object], arguments: tuple[object, ...]) -> bool:
        if operation in _NEVER or not self._kind:
            return False
        if self._kind == SHORT:
            return operation in (os.pwrite, os.pwritev) and len(arguments[1]) > 1  # type: ignore[arg-type]
        if self._kind == ENOSPC:
            return operation in _TAKE_ROOM and not (operation is os.open and not _creates(arguments))
        return True


def _creates(arguments: tuple[object, ...]) -> bool:
    return bool(int(arguments[1]) & os.O_CREAT)  # type: ignore[call-overload]
