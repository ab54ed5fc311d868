"""Load on an HTTP server from this process: connections that each send a request, wait for its answer, and send the next.

Or each has a time for every request, as users do who know nothing of one another (`every_s`). A request whose time comes while the one before it is not answered counts from that time, so that waiting for a slow
one is not left out; any other counts from when it was sent, which a loop whose timers count milliseconds does up to one of them too late.

A client library would take more of two cores than the server that it measures, so requests are bytes made beforehand, and of an answer only its status and its length are looked at.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

#: What ends the head of an answer, and how it says how long its body is.
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"

#: How late a timer of the loop may be.
TIMER_S: Final = 0.0015

Next = Callable[[int, bytes], bytes | None]
"""The next request of a connection, by its number and the body of the last answer (empty at first); None when it is done."""


class Load(NamedTuple):
    """How long it took, and how long each answer took, in seconds."""

    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """The latency that so large a share of the answers stays within."""
        return percentile(self.latencies, share)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Connection(asyncio.Protocol):
    """One request at a time, over one connection."""

    def __init__(self, number: int, following: Next, latencies: list[float], every_s: float = 0.0) -> None:
        self._number = number
        self._every_s = every_s
        self._due = 0.0
        self._following = following
        self._latencies = latencies
        self._received = b""
        self._wanted = -1  # bytes of the answer in hand, once that is known
        self._body = 0
        self._sent = 0.0
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def begin(self, after_s: float = 0.0) -> None:
        self._due = time.perf_counter() + after_s - self._every_s
        self._next(b"")

    def _next(self, answered: bytes) -> None:
        """Send the next request, when it is time."""
        if not self._every_s:
            self._send(answered)
            return
        self._due += self._every_s
        early_s = self._due - time.perf_counter()
        if early_s > 0:
            asyncio.get_running_loop().call_later(early_s, self._send_in_time, answered)
        else:
            self._send(answered, self._due)

    def _send_in_time(self, answered: bytes) -> None:
        late_s = time.perf_counter() - self._due
        self._send(answered, self._due if late_s > TIMER_S else None)

    def _send(self, answered: bytes, due: float | None = None) -> None:
        request = self._following(self._number, answered)
        if self._transport is None or request is None:
            self.finish(None)
            return
        self._received, self._wanted = b"", -1
        self._sent = time.perf_counter() if due is None else due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._wanted < 0:
            self._read_head()
        if 0 <= self._wanted <= len(self._received):
            self._latencies.append(time.perf_counter() - self._sent)
            self._next(self._received[self._body :])

    def _read_head(self) -> None:
        end = self._received.find(_END)
        if end < 0:
            return
        head = self._received[:end].lower()
        if not head.startswith(b"http/1.1 2"):
            self.finish(RuntimeError(f"the server answers {self._received[:500]!r}"))
            return
        found = head.find(_LENGTH)
        length = int(head[found + len(_LENGTH) :].split(b"\r\n", 1)[0]) if found >= 0 else 0
        self._body = end + len(_END)
        self._wanted = self._body + length

    def connection_lost(self, error: Exception | None) -> None:
        self.finish(error or ConnectionError("the server closed the connection"))

    def finish(self, error: Exception | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)
        if self._transport is not None:
            self._transport.close()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Python looks for garbage before and afterwards: its pauses are this process's, and would be taken for the server's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def run(host: str, port: int, connections: int, following: Next, rate: float | None = None) -> Load:
    """Have so many connections work until each is done; with a rate, all of them together so many requests a second."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    every_s = 0.0 if rate is None else connections / rate
    opened = [
        (await loop.create_connection(lambda number=number: Connection(number, following, latencies, every_s), host, port))[1]  # type: ignore[misc]
        for number in range(connections)
    ]  # fmt: skip
    started = time.perf_counter()
    for number, connection in enumerate(opened):
        connection.begin(every_s * number / connections)
    await asyncio.gather(*(connection.done for connection in opened))
    return Load(time.perf_counter() - started, latencies)


def repeated(request: bytes, each: int) -> Next:
    """The same request, so many times on each connection."""
    left: dict[int, int] = {}

    def following(number: int, _answered: bytes) -> bytes | None:
        left[number] = left.get(number, each) - 1
        return request if left[number] >= 0 else None

    return following


def request(method: str, path: str, token: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A request as bytes."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: penstock\r\nAuthorization: Bearer {token}\r\nAccept: {kind}\r\n"
    )
    if body or method != "GET":
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body
