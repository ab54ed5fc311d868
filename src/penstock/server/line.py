"""One write for one answer.

uvicorn writes the head of an answer and then its body, each by a system call, and each wakes the client. `Line` stands in the transport's place and keeps a head until the
body comes, which for nearly every answer is at once; one whose body takes its time goes out by itself before the loop waits again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

#: Where in a request's scope it says whether its connection is being closed: its `receive` hears of that some turns of the loop later.
IS_CLOSING: Final = "penstock.is_closing"

#: How the head of an answer begins.
_HEAD: Final = b"HTTP/1."


class Line:
    """A transport that writes a head together with what follows it; the rest is the transport's."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._call_soon = loop.call_soon
        self._head = b""  # that is kept

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            self._call_soon(self._let_go)
            return
        self._transport.write(data)

    def _let_go(self) -> None:
        if self._head:
            self.write(b"")

    def write_eof(self) -> None:
        self._let_go()
        self._transport.write_eof()

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def abort(self) -> None:
        self._head = b""
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
