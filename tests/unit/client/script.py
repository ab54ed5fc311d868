"""A server that says what a test tells it to, and keeps what it hears: real sockets, and no broker."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

import msgspec

from penstock import wire

#: Close the connection without an answer.
CUT = b""


def packed(value: object, status: str = "200 OK", **headers: str) -> bytes:
    return answer(status, msgspec.msgpack.encode(value), wire.MSGPACK, **headers)


def problem(code: str, status: int, **headers: str) -> bytes:
    found = wire.Problem(
        type="about:blank", title="", status=status, detail=f"it is {code}", code=code, retryable=True
    )
    return answer(f"{status} No", msgspec.json.encode(found), wire.PROBLEM, **headers)


def answer(status: str, body: bytes, kind: str, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Script:
    """One answer after the other, whoever asks; then the last one again and again. The greeting of a client is answered beside,
    unless the test has an answer for it."""

    def __init__(self, *answers: bytes, greeting: bytes | None = None) -> None:
        self._answers = list(answers)
        self._greeting = greeting
        self.heard: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                made, _ = self._listening.accept()
            except OSError:
                return
            self._open.add(made)
            threading.Thread(target=self._converse, args=(made,), daemon=True).start()

    def _converse(self, made: socket.socket) -> None:
        try:
            with made, made.makefile("rb") as lines:
                while first := lines.readline().decode():
                    length = 0
                    while (line := lines.readline().strip().lower()) != b"":
                        if line.startswith(b"content-length:"):
                            length = int(line.partition(b":")[2])
                    lines.read(length)
                    said = self._answer(" ".join(first.split()[:2]))
                    if not said:
                        return
                    made.sendall(said)
        except OSError:  # the test is over
            return

    def _answer(self, request: str) -> bytes:
        if self._greeting is None and request == "GET /v1/namespaces":
            return packed(wire.Names(names=[]))
        self.heard.append(request)
        if self._greeting is not None:
            return self._greeting
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for made in self._open:
            try:
                made.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has ended already
                continue
