"""A real server in a process of its own, and clients that speak to it byte by byte."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from penstock.server.settings import SYNONYMS

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 60.0


class Running:
    """A server that was started. What it says is kept, and can be waited for."""

    def __init__(self, *command: str, **variables: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name not in SYNONYMS}  # fmt: skip
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")))
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**environment, "PYTHONPATH": path, **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        )  # fmt: skip
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
        with self._more:
            self._lines.append("")  # the end
            self._more.notify_all()

    @property
    def said(self) -> str:
        return "".join(self._lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has said that."""
        with self._more:
            heard = self._more.wait_for(
                lambda: re.search(pattern, self.said) or (self._lines and not self._lines[-1]), PATIENCE_S
            )
        assert isinstance(heard, re.Match), f"it did not say {pattern!r}, but: {self.said}"
        return heard

    @property
    def url(self) -> str:
        return self.wait_for(r"listening on (https?://[\w.:\[\]]+)")[1]

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host.strip("[]"), int(port)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if error is not None:
            sys.stderr.write(self.said)


def standin(path: Path | None = None, **settings: object) -> Running:
    """A server with the small application."""
    where = {"storage": "memory"} if path is None else {"data_dir": path}
    given = {"http_addr": "127.0.0.1:0", "log_encoding": "console", **where, **settings}
    return Running("-m", "tests.server.standin", *(f"{name}={value}" for name, value in given.items()))


def penstock(*arguments: str, **variables: str) -> Running:
    """The command itself."""
    return Running("-c", "from penstock.cli import main; main()", *arguments, **variables)


@contextmanager
def connected(server: Running, source: str | None = None) -> Iterator[socket.socket]:
    address = None if source is None else (source, 0)
    with socket.create_connection(server.address, PATIENCE_S, source_address=address) as made:
        yield made


def request(path: str, *, method: str = "GET", body: bytes = b"", headers: str = "") -> bytes:
    length = f"content-length: {len(body)}\r\n" if method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{length}{headers}\r\n".encode() + body


def answer(made: socket.socket) -> tuple[int, bytes]:
    """One answer with a Content-Length: its status and its body. (0, b"") if the connection ended instead."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = made.recv(65536)
        if not part:
            return 0, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head.lower())
    length = int(found[1]) if found else 0
    while len(body) < length:
        part = made.recv(65536)
        if not part:
            return 0, data
        body += part
    return int(head.split()[1]), body


def ended(made: socket.socket) -> bool:
    """Wait for the server to close the connection; False if it sends something else."""
    try:
        return made.recv(1) == b""
    except ConnectionResetError:
        return True


def ask(
    server: Running, path: str, *, method: str = "GET", body: bytes = b"", headers: str = ""
) -> tuple[int, bytes]:
    with connected(server) as made:
        made.sendall(request(path, method=method, body=body, headers=headers))
        return answer(made)
