"""How fast is the server, beside a bare route of the framework it is made with, and beside the disk?

The server is `penstock serve` as a user starts it, in a process of its own, with a key; messages have 100 bytes, and every publish and every ack is synced before it is answered. The load comes from this process, over
connections of the loopback (see `load`).
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import jwt
import msgspec
import uvloop

from benchmarks import load
from benchmarks.answer import Answer
from benchmarks.bare import PATH as BARE
from benchmarks.load import Load, percentile, repeated, request
from benchmarks.rounds import contest
from benchmarks.session import Question, Session, main

CONNECTIONS: Final = 64
PAYLOAD: Final = b"x" * 100
BATCH: Final = 100

#: Requests of a round, over all connections.
SINGLES: Final = 12_800
BATCHES: Final = 1_280

#: The rate of the end-to-end question, how many publish, and how often the one who consumes acknowledges what he has.
RATE: Final = 1000
PUBLISHERS: Final = 8
ACKNOWLEDGE_S: Final = 0.01

#: Latencies are looked at in rounds of about a second, for each round of the other questions so many: a machine that others use, too, stands still now and then.
ROUNDS: Final = 3

SECRET: Final = secrets.token_urlsafe(48)
LOGS: Final = "/v1/namespaces/default/logs"

_ONE: Final = msgspec.json.encode({"messages": [base64.b64encode(PAYLOAD).decode()]})
_ANSWER: Final = msgspec.json.encode({"ids": [1 << 60], "ids_str": [str(1 << 60)]})


def token() -> str:
    claims = {
        "exp": int(time.time()) + 3600,
        "namespaces": ["*"],
        "permissions": ["publish", "consume", "admin"],
    }
    return jwt.encode(claims, SECRET, algorithm="HS256")


TOKEN: Final = token()


class Server:
    """A process that listens."""

    def __init__(self, command: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [part.replace("{port}", str(self.port)) for part in command]
        self.process = subprocess.Popen(
            command, env={**os.environ, "PENSTOCK_JWT_SECRET": SECRET, "PENSTOCK_LOG_LEVEL": "warn"}
        )
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    if b" 503 " not in connection.recv(100):
                        return
            except OSError:
                if self.process.poll() is not None:
                    raise
            if time.monotonic() > until:
                raise RuntimeError("the server does not become ready")
            time.sleep(0.05)

    def load(self, connections: int, following: load.Next, rate: float | None = None) -> Load:
        with load.undisturbed():
            return uvloop.run(load.run("127.0.0.1", self.port, connections, following, rate))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def ours(path: Path) -> Iterator[Server]:
    """`penstock serve` over a directory, with a queue."""
    command = "from penstock.cli import main; main()"
    arguments = ["serve", "--data-dir", str(path), "--host", "127.0.0.1", "--port", "{port}"]
    server = Server([sys.executable, "-c", command, *arguments])
    try:
        declare = request("PUT", "/v1/namespaces/default/queues/orders", TOKEN, b"{}")
        server.load(1, repeated(declare, 1))
        yield server
    finally:
        server.stop()


@contextmanager
def bare() -> Iterator[Server]:
    server = Server([sys.executable, "-m", "benchmarks.bare", "{port}", _ANSWER.decode()])
    try:
        yield server
    finally:
        server.stop()


def sync_s(path: Path, every_s: float = 0.0) -> float:
    """What the disk takes to write and sync the bytes of a commit, in the median; one after another, or one every so often."""
    taken = []
    with (path / "sync").open("wb", buffering=0) as file:
        for _ in range(300):
            begun = time.perf_counter()
            file.write(b"x" * 400)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begun)
            time.sleep(max(0.0, every_s - taken[-1]))
    return median(taken)


# --- publishing ---


def publishing(session: Session) -> Iterator[Answer]:
    """Durable publishes over 64 connections, one by one and in batches."""
    rounds = session.rounds
    many = msgspec.json.encode({"messages": [base64.b64encode(PAYLOAD).decode()] * BATCH})
    path = session.place("data")
    singles, batches = session.work(SINGLES), session.work(BATCHES)
    loads: list[Load] = []
    with ours(path) as server, bare() as other:
        one = request("POST", f"{LOGS}/orders/messages", TOKEN, _ONE)
        hundred = request("POST", f"{LOGS}/orders/messages", TOKEN, many)
        nothing = request("POST", BARE, TOKEN, _ONE)

        def published() -> float:
            loads.append(server.load(CONNECTIONS, repeated(one, singles // CONNECTIONS)))
            return loads[-1].rate

        played = contest(
            [
                published,
                lambda: other.load(CONNECTIONS, repeated(nothing, singles // CONNECTIONS)).rate,
                lambda: BATCH * server.load(CONNECTIONS, repeated(hundred, batches // CONNECTIONS)).rate,
            ],
            rounds,
        )
        rate = played.ours / 2
        each = max(1, session.work(round(rate)) // CONNECTIONS)
        calm: list[Load] = []
        syncs: list[float] = []
        disk = session.place("disk")
        for _ in range(ROUNDS * rounds):
            syncs.append(sync_s(disk))
            calm.append(server.load(CONNECTIONS, repeated(one, each), rate))
    p99s = [found.percentile(0.99) for found in calm]
    everything = [latency for found in calm for latency in found.latencies]
    full = [1000 * median(found.percentile(share) for found in loads[1:]) for share in (0.5, 0.99)]
    yield Answer(
        name="singles", question=f"durable publishes, one by one, {CONNECTIONS} connections", unit="messages/s", ours=played.ours,
        baseline=played.baseline(), against="a bare Litestar route behind the same token check", ratio=played.ratio(), target=0.5, how=played.how,
    )  # fmt: skip
    yield Answer(
        name="singles-p99", question="the same at half that rate: how long one takes, p99", unit="s", ours=median(p99s),
        baseline=median(syncs), against="one sync of the disk", ratio=median(a / b for a, b in zip(p99s, syncs, strict=True)),
        wanted="at most", target=20,
        how=f"median of {len(calm)} rounds of a second, {rate:,.0f} a second, from when it was sent, or was due while the one before it was not answered; over all of them p50 {1000 * percentile(everything, 0.5):.2f} ms, "
        f"p99 {1000 * percentile(everything, 0.99):.2f} ms. At the full rate {CONNECTIONS} connections wait for one another: p50 {full[0]:.1f} ms, p99 {full[1]:.1f} ms",
    )  # fmt: skip
    yield Answer(
        name="batches", question=f"in batches of {BATCH}", unit="messages/s", ours=played.baseline(2), baseline=played.ours,
        against="one by one", ratio=median(a / b for a, b in zip(played.rates[2], played.rates[0], strict=True)), target=15, how=played.how,
    )  # fmt: skip


# --- receiving ---


def receiving(session: Session) -> Iterator[Answer]:
    """Receive and ack, one by one and in batches."""
    path = session.place("data")
    batches, singles = session.work(BATCHES), session.work(SINGLES) // 4
    many = msgspec.json.encode({"messages": [base64.b64encode(PAYLOAD).decode()] * BATCH})
    with ours(path) as server:
        fill = request("POST", f"{LOGS}/orders/messages", TOKEN, many)
        one = request("POST", f"{LOGS}/orders/messages", TOKEN, _ONE)

        def consumed(count: int, requests: int) -> float:
            amount = requests * count
            server.load(8, repeated(fill, -(-amount // BATCH // 8) + 1))
            found = server.load(CONNECTIONS, consuming(count, requests // CONNECTIONS))
            return len(found.latencies) / 2 * count / found.seconds

        played = contest(
            [
                lambda: consumed(BATCH, batches),
                lambda: server.load(CONNECTIONS, repeated(one, singles // CONNECTIONS)).rate,
                lambda: consumed(1, singles),
            ],
            session.rounds,
        )
    yield Answer(
        name="receive", question=f"receive and ack in batches of {BATCH}", unit="messages/s", ours=played.ours, baseline=played.baseline(),
        against="durable publishes one by one", ratio=played.ratio(), target=10,
        how=f"{played.how}; one by one {played.baseline(2):,.0f}/s",
    )  # fmt: skip


def consuming(count: int, each: int) -> load.Next:
    """Take so many messages, and acknowledge them; so often on each connection."""
    kind = "application/msgpack"
    lease = request(
        "POST", f"{LOGS}/orders/groups/default/lease", TOKEN, msgspec.msgpack.encode({"count": count}), kind
    )
    left: dict[int, int] = {}

    def following(number: int, answered: bytes) -> bytes | None:
        if answered:
            found = msgspec.msgpack.decode(answered)
            return _settle(found, kind)
        left[number] = left.get(number, each) - 1
        return lease if left[number] >= 0 else None

    return following


def _settle(found: dict[str, Any], kind: str) -> bytes:
    """Acknowledge what was handed out."""
    offsets = [one["offset"] for one in found["deliveries"]]
    body = {"group": "default", "offsets": offsets, "numbers": [found["number"]] * len(offsets)}
    return request("POST", f"{LOGS}/orders/settle", TOKEN, msgspec.msgpack.encode(body), kind)


# --- end to end ---


def end_to_end(session: Session) -> Iterator[Answer]:
    """A message every millisecond: from the publisher's hand to the consumer's."""
    path = session.place("data")
    found: list[list[float]] = []
    floors: list[float] = []
    disk = session.place("disk")
    with ours(path) as server, echo() as port:
        for _ in range(ROUNDS * session.rounds + 1):
            with load.undisturbed():
                floors.append(round_trip_s(port, 1 / RATE) + sync_s(disk, 1 / RATE))
                found.append(uvloop.run(Paced(server, session.work(RATE)).run()))
    found, floors = found[1:], floors[1:]
    everything = [latency for each in found for latency in each]
    for share, target in ((0.5, 6), (0.99, 10)):
        each = [percentile(latencies, share) for latencies in found]
        yield Answer(
            name=f"end-to-end-p{share * 100:.0f}", question=f"publish to receive at {RATE:,} messages/s, p{share * 100:.0f}", unit="s",
            ours=median(each), baseline=median(floors), against="a loopback TCP round trip and one sync",
            ratio=median(a / b for a, b in zip(each, floors, strict=True)), wanted="at most", target=target,
            how=f"both at that rate; median of {len(each)} rounds of a second; over all {len(everything):,} messages {1000 * percentile(everything, share):.2f} ms",
        )  # fmt: skip


class Paced:
    """Messages that are published at a steady rate, with the time in them, by some; and one who receives them.

    He has two connections, as a consumer has who fetches ahead: over one he asks for messages, and again as soon as he has some; over the other he acknowledges, now and then, all that he has.
    """

    def __init__(self, server: Server, count: int) -> None:
        self._server = server
        self._count = count - count % PUBLISHERS
        self._left = dict.fromkeys(range(PUBLISHERS), self._count // PUBLISHERS)
        self._latencies: list[float] = []
        self._held: list[tuple[int, int]] = []

    async def run(self) -> list[float]:
        """How long each message took, but for the first tenth."""
        acknowledging = asyncio.create_task(self._acknowledge())
        consuming = asyncio.create_task(self._load(1, self._consume))
        await self._load(PUBLISHERS, self._publish, RATE)
        await consuming
        await acknowledging
        return self._latencies[self._count // 10 :]

    def _load(
        self, connections: int, following: load.Next, rate: float | None = None
    ) -> Coroutine[Any, Any, Load]:
        return load.run("127.0.0.1", self._server.port, connections, following, rate)

    def _publish(self, number: int, _answered: bytes) -> bytes | None:
        self._left[number] -= 1
        if self._left[number] < 0:
            return None
        return _packed(f"{LOGS}/orders/messages", {"messages": [b"%.9f" % time.perf_counter()]})

    def _consume(self, _number: int, answered: bytes) -> bytes | None:
        if answered:
            now, found = time.perf_counter(), msgspec.msgpack.decode(answered)
            for one in found["deliveries"]:
                self._latencies.append(now - float(one["payload"]))
                self._held.append((one["offset"], found["number"]))
        if len(self._latencies) >= self._count:
            return None
        return _packed(f"{LOGS}/orders/groups/default/lease", {"count": BATCH, "wait": 10})

    async def _acknowledge(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        done = 0
        while done < self._count:
            await asyncio.sleep(ACKNOWLEDGE_S)
            held, self._held = self._held, []
            if held:
                offsets, numbers = zip(*held, strict=True)
                body = {"group": "default", "offsets": offsets, "numbers": numbers}
                writer.write(_packed(f"{LOGS}/orders/settle", body))
                answer = await reader.readuntil(b"\r\n\r\n")
                if not answer.startswith(b"HTTP/1.1 204 "):
                    raise RuntimeError(f"the server answers {answer!r}")
                done += len(held)
        writer.close()


def _packed(path: str, body: dict[str, Any]) -> bytes:
    return request("POST", path, TOKEN, msgspec.msgpack.encode(body), "application/msgpack")


_ECHO: Final = """
import asyncio, uvloop

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

async def main():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

uvloop.run(main())
"""


@contextmanager
def echo() -> Iterator[int]:
    """A process that sends everything back; its port."""
    process = subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def round_trip_s(port: int, every_s: float) -> float:
    """A hundred bytes there and back over the loopback, to another process, one every so often, in the median.

    One after another would be five times as fast: neither process would ever sleep.
    """
    return uvloop.run(_round_trips(port, every_s))


async def _round_trips(port: int, every_s: float) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = []
    for _ in range(300):
        begun = time.perf_counter()
        writer.write(PAYLOAD)
        await reader.readexactly(len(PAYLOAD))
        taken.append(time.perf_counter() - begun)
        await asyncio.sleep(max(0.0, every_s - taken[-1]))
    writer.close()
    return median(taken)


QUESTIONS: Final[dict[str, Question]] = {
    "publish": publishing,
    "receive": receiving,
    "end-to-end": end_to_end,
}

if __name__ == "__main__":
    sys.exit(main("server", "The server over HTTP, 100-byte messages", QUESTIONS))
