"""Rows that are sent to the spool by a client that means harm: the server answers 400 and goes on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from tests.server.process import Running, answer, connected, penstock

STAGED: Final = "/v1/namespaces/default/spool/staged/" + "0" * 32


def put(server: Running, body: bytes) -> int:
    """Send a body to the staging route of a server in a process of its own; the status of the answer."""
    head = f"PUT {STAGED} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    with connected(server) as made:
        made.sendall(head.encode() + body)
        return answer(made)[0]


def crafted() -> Iterator[bytes]:
    """Arrow streams with two bytes changed in the first message: pyarrow 26 reads past the end of most of them, and ends with SIGSEGV or SIGABRT."""
    rows = pa.RecordBatch.from_arrays([pa.array([b"x"] * 5)], names=["payload"])
    out = io.BytesIO()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_batch(rows)
    for at in range(32, 56):
        for value in (1, 2, 8):
            made = bytearray(out.getvalue())
            made[20], made[at] = 0, value
            yield bytes(made)


def test_crafted_arrow_does_not_end_the_server(tmp_path: Path) -> None:
    with penstock("serve", str(tmp_path / "data"), "--port", "0", "--log-encoding", "console") as server:
        assert {put(server, body) for body in crafted()} == {400}
        assert server.process.poll() is None
