"""Rows that a client sends to the spool and no sink makes.

The server refuses them with 400 and goes on; what it takes, the owner of the journal can read.
`make faults` tries a million mutations of bodies that are right.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import random
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock import wire
from penstock.broker.intake import _batches_of
from penstock.errors import PenstockError
from penstock.journal.checksum import crc32
from penstock.journal.kinds import CHECKED, CRC, HEADER
from penstock.journal.spool import Manifest, Spool
from penstock.pipeline.parts import received, sent
from penstock.pipeline.staging import Staging
from penstock.server.desk import Desk, own_name
from penstock.server.http.app import create
from penstock.server.http.spark import Tables
from tests.faults.campaign import rounds
from tests.faults.faulty_files import UnsyncedFiles
from tests.server.process import Running
from tests.server.process import penstock as command
from tests.unit.pipeline.test_parts import rich

NAME: Final = "0" * 32
STAGED: Final = f"/v1/namespaces/default/spool/staged/{NAME}"
PATIENCE_S: Final = 60.0

#: Of a round of the campaign: most at the desk, one in ten through the application. A hundredth more
#: goes to a server in a process of its own.
MUTATIONS: Final = 10_000


def crafted() -> Iterator[bytes]:
    """Arrow streams with two bytes changed in the first message: most end pyarrow 26 by a signal."""
    rows = pa.RecordBatch.from_arrays([pa.array([b"x"] * 5)], names=["payload"])
    out = io.BytesIO()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_batch(rows)
    for at in range(32, 56):
        for value in (1, 2, 8):
            made = bytearray(out.getvalue())
            made[20], made[at] = 0, value
            yield bytes(made)


def bodies() -> list[list[wire.SentRows]]:
    """Bodies that a sink sends: with all columns and with few, of one row and of many."""
    plain = pa.RecordBatch.from_arrays([pa.array([b"a", b"", b"c"])], names=["payload"])
    found = []
    for batch in (plain, plain.slice(0, 1), rich(1), rich(5), rich(40)):
        staging = Staging("out", "the data")
        found += [sent(part, staging.shares) for part in staging.parts([batch])]
    return found


class Mutations:
    """Bodies that are nearly right; always the same ones for a seed."""

    def __init__(self, seed: object) -> None:
        self._chance = random.Random(str(seed))
        self._bodies = bodies()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            rows = self._chance.choice(self._bodies)
            if self._chance.random() < 0.2:
                yield self._changed(msgspec.msgpack.encode(rows))
                continue
            at = self._chance.randrange(len(rows))
            one = wire.SentRows(rows[at].topic, self._section(rows[at].section))
            yield msgspec.msgpack.encode([*rows[:at], one, *rows[at + 1 :]])

    def _section(self, data: bytes) -> bytes:
        """Return a changed section whose header has the right checksum again, and mostly the right length."""
        end = self._chance.choice(
            (HEADER.size, 4 * HEADER.size, len(data))
        )  # header, table of columns, or all
        made = self._changed(data[:end]) + data[end:]
        if len(made) < HEADER.size:
            return made
        if self._chance.random() < 0.9:
            made = made[:16] + struct.pack("<I", len(made)) + made[20:]
        checked = made[: CHECKED.size]
        return checked + CRC.pack(crc32(checked)) + made[HEADER.size :]

    def _changed(self, data: bytes) -> bytes:
        made = bytearray(data)
        for _ in range(self._chance.choice((1, 1, 1, 2, 3, 8))):
            at = self._chance.randrange(len(made) + 1)
            kind = self._chance.randrange(6)
            if kind == 0:
                del made[at : at + self._chance.choice((1, 4, 8, len(made)))]
            elif kind == 1:
                made[at:at] = self._chance.randbytes(self._chance.choice((1, 4, 8, 100)))
            elif kind == 2:
                made[at : at + 1] = self._chance.randbytes(1)
            elif kind == 3:
                number = self._chance.choice((0, 1, 2, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1))
                made[at & ~3 : (at & ~3) + 4] = struct.pack("<I", number)
            elif kind == 4 and at < len(made):
                made[at] ^= 1 << self._chance.randrange(8)
            else:
                start = self._chance.randrange(len(made) + 1)
                made[at:at] = made[start : start + self._chance.choice((4, 8, 64))]
        return bytes(made)


class Application:
    """The application of a server over a directory, asked without a socket."""

    def __init__(self, path: Path) -> None:
        self._broker = penstock.open(path, durability="os")
        port: Any = self._broker._port
        self._app: Any = create(port, directory=path, intake=port.monitor.intake)
        self._spool = Spool(UnsyncedFiles(), path)
        self.statuses: Counter[int] = Counter()

    async def try_all(self, mutations: Mutations, count: int) -> None:
        front = self._app.front
        front.tables = Tables(front)
        desk = await front.tables.desk()
        desk._spool = self._spool
        for body, number in zip(mutations, range(count), strict=False):
            if number % 10:  # the threads that stand between cost more than what is tried
                status = self._stage(desk, body)
            else:
                status = await asyncio.wait_for(self._put(body), PATIENCE_S)
            self.statuses[status] += 1
            assert status in (200, 400), (status, body.hex())
            if status == 200:
                self._read(body)

    def _stage(self, desk: Desk, body: bytes) -> int:
        try:
            desk.stage("default", NAME, body)
        except PenstockError as error:
            return error.http_status
        return 200

    async def _put(self, body: bytes) -> int:
        told: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            told.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "PUT", "scheme": "http",
            "path": STAGED, "raw_path": STAGED.encode(), "root_path": "", "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "extensions": {},
        }  # fmt: skip
        await self._app(scope, receive, send)
        status: int = told[0]["status"]
        return status

    def _read(self, body: bytes) -> None:
        """Read what was staged as the owner does, and compare it with what was sent."""
        file = self._spool.noted(own_name("default", NAME))
        assert file is not None
        manifest = Manifest("query:default/q", 0, "default", [file])
        self._spool.examine(manifest)
        (part,) = self._spool.parts(manifest, 0)
        found = {topic: len(batch.payloads) for topic, batch, _ in _batches_of(part)}
        assert found == {share.topic: share.rows for share in received(body)[1]}

    def close(self) -> None:
        self._broker.close()


def put(server: Running, connection: http.client.HTTPConnection, body: bytes) -> int:
    connection.request("PUT", STAGED, body)
    with connection.getresponse() as answer:
        answer.read()
    return answer.status


def peak_bytes(server: Running) -> int:
    """Return the most memory that a server has had so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def try_over_http(path: Path, mutations: Mutations, count: int) -> None:
    """Send crafted bodies to a server in a process of its own, and what is right before and after."""
    with command("serve", str(path), "--port", "0", "--log-encoding", "console") as server:
        right = [msgspec.msgpack.encode(one) for one in bodies()]
        with closing(http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)) as connection:
            assert {put(server, connection, one) for one in right} == {200}
            before = peak_bytes(server)
            assert {put(server, connection, one) for one in crafted()} == {400}
            found = {put(server, connection, one) for one, _ in zip(mutations, range(count), strict=False)}
            assert found <= {200, 400}
            assert {put(server, connection, one) for one in right} == {200}
            assert peak_bytes(server) - before < 64 << 20
        assert server.process.poll() is None


def test_crafted_bodies_do_not_end_the_server(tmp_path: Path) -> None:
    try_over_http(tmp_path / "data", Mutations("short"), 100)


def test_mutations_of_bodies_are_refused_or_can_be_read(tmp_path: Path) -> None:
    app = Application(tmp_path / "data")
    with closing(app):
        asyncio.run(app.try_all(Mutations("short"), 2_000))
    assert min(app.statuses[200], app.statuses[400]) > 100, app.statuses


@pytest.mark.campaign
def test_a_million_mutations_of_bodies_are_refused_or_can_be_read(tmp_path: Path) -> None:
    app = Application(tmp_path / "data")
    with closing(app):
        for number in range(rounds()):
            asyncio.run(app.try_all(Mutations(number), MUTATIONS))
    print(app.statuses)


@pytest.mark.campaign
def test_many_crafted_bodies_do_not_end_the_server(tmp_path: Path) -> None:
    try_over_http(tmp_path / "data", Mutations("http"), rounds() * MUTATIONS // 100)
