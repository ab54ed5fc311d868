"""What Penstock's queues are measured beside: the disk itself, a queue by hand, a plain table, and two packages that people use instead.

The packages are in the extra `bench`. Each is used as its own documentation says, in the way that is quickest for it: where a package gets slower
with every message it has kept, it is given a new file for every round.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

#: How long a peer may wait for its own lock: long enough that sixteen threads on a busy disk never give up.
LOCK_TIMEOUT_S: Final = 60


class RawFile:
    """The limit: `os.write` and `os.fdatasync`, and nothing else."""

    def __init__(self, path: Path, frames: Sequence[bytes]) -> None:
        self._frames = cycle(frames)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def append(self) -> None:
        """One write, one sync."""
        os.write(self._fd, next(self._frames))
        os.fdatasync(self._fd)

    def append_many(self, times: int) -> None:
        """So many of them, one after the other."""
        for _ in range(times):
            self.append()


# --- in memory ---


class Held(NamedTuple):
    """A message of a `SimpleQueue`."""

    id: str
    body: bytes


class SimpleQueue:
    """A deque, a condition and a dict of what is in flight: the queue that one writes by hand, with uuid4 for ids."""

    def __init__(self, visibility_timeout: float = 30.0) -> None:
        self._queue: deque[Held] = deque()
        self._in_flight: dict[str, tuple[Held, float]] = {}
        self._visibility_timeout = visibility_timeout
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)

    def publish(self, body: bytes) -> str:
        """Append a message; its id."""
        with self._lock:
            message = Held(str(uuid.uuid4()), body)
            self._queue.append(message)
            self._condition.notify_all()
            return message.id

    def receive(self, timeout: float = 0) -> Held | None:
        """The next message, which is in flight from now on."""
        with self._lock:
            if not self._condition.wait_for(lambda: len(self._queue) > 0, timeout):
                return None
            message = self._queue.popleft()
            self._in_flight[message.id] = (message, time.time())
            return message

    def ack(self, message_id: str) -> None:
        """It was processed."""
        with self._lock:
            del self._in_flight[message_id]


# --- on the disk ---


class Peer(Protocol):
    """A queue on the disk that takes messages one by one."""

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Publish each, one call after the other."""
        ...

    def trips(self, payloads: Sequence[bytes]) -> None:
        """Publish, receive and acknowledge each before the next."""
        ...

    def take(self, count: int) -> None:
        """Receive and acknowledge so many, one by one."""
        ...

    def close(self) -> None: ...


class PersistQueue:
    """`persist-queue`: a SQLiteAckQueue, which commits and syncs each call (WAL, synchronous=FULL)."""

    def __init__(self, path: Path, *, threads: bool = False) -> None:
        import persistqueue

        self._queue = persistqueue.SQLiteAckQueue(str(path), multithreading=threads, timeout=LOCK_TIMEOUT_S)

    def publish(self, payloads: Sequence[bytes]) -> None:
        put = self._queue.put
        for payload in payloads:
            put(payload)

    def trips(self, payloads: Sequence[bytes]) -> None:
        queue = self._queue
        for payload in payloads:
            queue.put(payload)
            queue.ack(queue.get(block=False, raw=True))

    def take(self, count: int) -> None:
        queue = self._queue
        for _ in range(count):
            queue.ack(queue.get(block=False, raw=True))

    def close(self) -> None:
        self._queue.close()


class LiteQueue:
    """`litequeue`: it commits each call and leaves syncing to the system (WAL, synchronous=NORMAL)."""

    def __init__(self, path: Path) -> None:
        import litequeue

        self._queue = litequeue.LiteQueue(path / "queue.db")

    def publish(self, payloads: Sequence[bytes]) -> None:
        put = self._queue.put
        for payload in payloads:
            put(payload)

    def trips(self, payloads: Sequence[bytes]) -> None:
        queue: Any = self._queue
        for payload in payloads:
            queue.put(payload)
            queue.done(queue.pop().message_id)

    def take(self, count: int) -> None:
        queue: Any = self._queue
        for _ in range(count):
            queue.done(queue.pop().message_id)

    def close(self) -> None:
        self._queue.close()


class Table:
    """A plain table in sqlite3 (WAL, synchronous=FULL): no leases, no ids but the row's, every commit synced."""

    INSERT: Final = "INSERT INTO queue (payload) VALUES (?)"

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            path / "queue.db", timeout=LOCK_TIMEOUT_S, check_same_thread=False, isolation_level=None
        )
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE queue (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)",
        ):
            self._connection.execute(statement)

    def publish_all(self, batches: Iterable[Sequence[tuple[bytes]]]) -> None:
        """Each batch in a transaction of its own."""
        for rows in batches:
            self._connection.execute("BEGIN")
            self._connection.executemany(self.INSERT, rows)
            self._connection.execute("COMMIT")

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Each in a transaction of its own; threads take turns, which is quicker for them than a connection each."""
        execute = self._connection.execute
        for payload in payloads:
            with self._lock:
                execute(self.INSERT, (payload,))

    def close(self) -> None:
        self._connection.close()
