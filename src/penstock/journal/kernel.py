"""A sync that the kernel does by itself, and tells of its end.

Linux can be asked to sync a file (`io_submit` with `IOCB_CMD_FDSYNC`) and to ring an eventfd when it is done. So an event loop has a file synced without waiting for it and
without a thread: a thread that waits for a sync must win the interpreter back afterwards, from the very loop that it works for.

Where the kernel does not offer it (another system, a sandbox that forbids it), there is none, and the caller has a thread sync.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import struct
import sys
from contextlib import suppress
from typing import Any, Final, Self

#: One request, and one answer to it, as the kernel lays them out (`struct iocb`, `struct io_event`).
REQUEST: Final = struct.Struct("<QIIHhIQQqQII")
ANSWER: Final = struct.Struct("<QQqq")

FDSYNC: Final = 3
RING: Final = 1  # the request names an eventfd

#: The numbers of `io_setup`, `io_destroy`, `io_getevents` and `io_submit`: the C library has no names for them.
CALLS: Final = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}


class KernelSync:
    """At most one sync under way. `bell` is readable once it has ended, until `end` is called, and may ring once more for no reason (`hush`)."""

    def __init__(self, calls: tuple[int, int, int, int]) -> None:
        self._setup, self._destroy, self._get_events, self._submit = calls
        # Asking never waits, so it keeps the interpreter; hearing the answer may wait, and gives it up.
        self._ask = ctypes.PyDLL(None, use_errno=True).syscall
        self._wait = ctypes.CDLL(None, use_errno=True).syscall
        self._ask.restype = self._wait.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            _require(self._ask(self._setup, 1, ctypes.byref(self._context)))
        except BaseException:
            os.close(self.bell)
            raise
        self._request = ctypes.create_string_buffer(REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._answer = ctypes.create_string_buffer(ANSWER.size)
        self._one = ctypes.c_long(1)

    @classmethod
    def open(cls) -> Self | None:
        """One, if this machine's kernel offers it: that is tried with a file in memory."""
        calls = CALLS.get(platform.machine()) if sys.platform == "linux" else None
        if calls is None:
            return None
        try:
            made = cls(calls)
        except OSError:
            return None
        try:
            probe = os.memfd_create("penstock", os.MFD_CLOEXEC)
            try:
                made.begin(probe)
                made.end()
            finally:
                os.close(probe)
        except OSError:  # it was made, and syncs no files: Linux before 4.18
            made.close()
            return None
        return made

    def begin(self, fd: int) -> None:
        """Have what was written to a file synced."""
        REQUEST.pack_into(self._request, 0, 0, 0, 0, FDSYNC, 0, fd, 0, 0, 0, 0, RING, self.bell)
        _require(self._ask(self._submit, self._context, self._one, self._requests))

    def end(self) -> None:
        """Wait until it has ended, and raise what it failed with. Never begin it again for that file then."""
        _require(self._wait(self._get_events, self._context, self._one, self._one, self._answer, None))
        self.hush()  # who did not wait for the bell may be here before it rings
        result = ANSWER.unpack(self._answer.raw)[2]
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has, waiting for that for so long."""
        waiting = select.poll()
        waiting.register(self.bell, select.POLLIN)
        return bool(waiting.poll(timeout_s * 1000))

    def hush(self) -> None:
        """Have the bell ring no more."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.bell)

    def close(self) -> None:
        """Let go of it. What is under way ends first."""
        self._wait(self._destroy, self._context)
        os.close(self.bell)


def _require(result: Any) -> None:
    """What a system call answers, if it is an error, as one."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
