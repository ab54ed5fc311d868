"""Ten producers and five consumers at once, as threads and as tasks, while consumers die and time is moved by hand.

A consumer that dies leaves what it has, or is cancelled while it waits; another takes its place, and the clock takes the leases away. Then everything that was
published was acked once, or is in the dead letters once; nothing was handed out after its ack had returned; and the queue is empty, now and after
it was opened again.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import aio
from penstock.broker import aio as aio_shell
from penstock.broker import embedded, opening
from penstock.broker.sync import Broker, Delivery, Queue
from penstock.clock import ManualClock
from penstock.errors import LeaseLost
from penstock.policy import Backoff
from tests.conformance.unheard import UnheardClock
from tests.faults import campaign
from tests.faults.faulty_files import UnsyncedFiles

PRODUCERS, CONSUMERS = 10, 5
POLICY: dict[str, Any] = {"visibility_timeout": 5, "backoff": Backoff(initial=1, maximum=4, jitter=0.5)}
PATIENCE_S = 90


class Books:
    """Who was handed out and acked what."""

    def __init__(self, messages: int, dead: int | None) -> None:
        self.each = messages
        self.attempts_max = dead
        self._lock = threading.Lock()
        self.published: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.dead: set[bytes] = set()
        self.wrong: list[str] = []
        self.over = threading.Event()

    def payload(self, producer: int, number: int) -> bytes:
        return b"%d-%d" % (producer, number)

    def was_published(self, payloads: list[bytes]) -> None:
        with self._lock:
            self.published.update(payloads)

    def was_handed_out(self, payload: bytes) -> None:
        with self._lock:
            if payload in self.acked:
                self.wrong.append(f"{payload!r} was acked, and comes back")

    def was_acked(self, payload: bytes) -> None:
        with self._lock:
            self.acked[payload] += 1

    def went_wrong(self, error: BaseException) -> None:
        self.wrong.append(repr(error))
        self.over.set()

    def look(self, depth: int) -> None:
        """Whether all is done."""
        if len(self.published) == PRODUCERS * self.each and depth == 0:
            self.over.set()

    def check(self, dead: list[bytes]) -> None:
        assert not self.wrong
        assert len(self.published) == PRODUCERS * self.each
        assert all(times == 1 for times in self.acked.values()), "acked twice"
        assert len(dead) == len(set(dead)), "dead twice"
        assert not set(dead) & set(self.acked), "acked and dead"
        assert set(dead) | set(self.acked) == self.published
        if self.attempts_max is None:
            assert not dead


def _choice(chance: random.Random) -> str:
    return chance.choice(["ack"] * 6 + ["nack", "requeue", "abandon", "die"])


# --- threads ---


def _produce(queue: Queue, books: Books, producer: int) -> None:
    chance = random.Random(producer)
    number = 0
    while number < books.each:
        payloads = [
            books.payload(producer, n)
            for n in range(number, min(books.each, number + chance.randrange(1, 5)))
        ]
        if len(payloads) == 1:
            queue.publish(payloads[0], priority=chance.choice([1, 100]), delay=chance.choice([None, 2]))
        else:
            queue.publish_many(payloads)
        books.was_published(payloads)
        number += len(payloads)


def _settle(one: Delivery, how: str, books: Books) -> None:
    try:
        if how == "ack":
            one.ack()
            books.was_acked(one.payload)
        elif how in ("nack", "requeue"):
            getattr(one, how)()
    except LeaseLost:
        return  # its time was over


def _consume(queue: Queue, books: Books, consumer: int) -> None:
    """Lives on after each death, as another."""
    chance = random.Random(-consumer)
    while not books.over.is_set():
        with queue.subscribe() if chance.random() < 0.3 else _Nameless(queue) as source:
            _live(source, books, chance)


def _live(source: Any, books: Books, chance: random.Random) -> None:
    while not books.over.is_set():
        found = source.receive_many(chance.randrange(1, 5), timeout=chance.choice([0, 1]))
        for one in found:
            books.was_handed_out(one.payload)
        for one in found:
            how = _choice(chance)
            if how == "die":
                return
            _settle(one, how, books)


class _Nameless:
    """A consumer that gives nothing back when it goes."""

    def __init__(self, queue: Queue) -> None:
        self.receive_many = queue.receive_many

    def __enter__(self) -> _Nameless:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _run_threads(path: Path | None, books: Books) -> None:
    clock = UnheardClock()
    port = opening.in_memory(clock) if path is None else opening.on_disk(path, clock, files=UnsyncedFiles())
    broker = Broker(port)
    queue = broker.queue("work", max_attempts=books.attempts_max, **POLICY)

    def guarded(work: Any, number: int) -> None:
        try:
            work(queue, books, number)
        except BaseException as error:
            books.went_wrong(error)

    works = [*[(_produce, n) for n in range(PRODUCERS)], *[(_consume, n) for n in range(CONSUMERS)]]
    threads = [threading.Thread(target=guarded, args=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for _ in range(PATIENCE_S * 200):
        clock.advance(0.5)
        port.wake()
        books.look(queue.depth())
        if books.over.wait(0.005):
            break
    else:
        books.wrong.append(f"it never ended: {queue.stats()}")
    _end(threads, clock, port)
    dead = [message.payload for message in queue.dead_letters().peek(10_000)]
    books.check(dead)
    broker.close()
    if path is not None:
        _check_reopened(path, clock, dead)


def _end(threads: list[threading.Thread], clock: ManualClock, port: embedded.Embedded) -> None:
    for thread in threads:
        for _ in range(2000):
            clock.advance(0.5)  # nobody waits for longer
            port.wake()
            thread.join(0.005)
            if not thread.is_alive():
                break
        assert not thread.is_alive(), "somebody hangs"


def _check_reopened(path: Path, clock: ManualClock, dead: list[bytes]) -> None:
    with Broker(opening.on_disk(path, clock, files=UnsyncedFiles())) as broker:
        queue = broker.queue("work")
        assert queue.depth() == 0
        assert sorted(message.payload for message in queue.dead_letters().peek(10_000)) == sorted(dead)


# --- tasks ---


async def _produce_aio(queue: aio_shell.Queue, books: Books, producer: int) -> None:
    chance = random.Random(producer)
    number = 0
    while number < books.each:
        payloads = [
            books.payload(producer, n)
            for n in range(number, min(books.each, number + chance.randrange(1, 5)))
        ]
        if len(payloads) == 1:
            await queue.publish(payloads[0], priority=chance.choice([1, 100]), delay=chance.choice([None, 2]))
        else:
            await queue.publish_many(payloads)
        books.was_published(payloads)
        number += len(payloads)


async def _live_aio(queue: aio_shell.Queue, books: Books, chance: random.Random) -> None:
    while not books.over.is_set():
        found = await queue.receive_many(chance.randrange(1, 5), timeout=chance.choice([0, 1, None]))
        for one in found:
            books.was_handed_out(one.payload)
        for one in found:
            how = _choice(chance)
            if how == "die":
                return
            try:
                if how == "ack":
                    # An ack that is cancelled half-way may have been made or not: only a whole one counts.
                    await asyncio.shield(_ack_aio(one, books))
                elif how in ("nack", "requeue"):
                    await getattr(one, how)()
            except LeaseLost:
                continue
        await asyncio.sleep(0)


async def _ack_aio(one: Any, books: Books) -> None:
    await one.ack()
    books.was_acked(one.payload)


async def _consume_aio(queue: aio_shell.Queue, books: Books, consumer: int) -> None:
    """Lives on after each death, as another; some are cancelled wherever they are."""
    chance = random.Random(-consumer)
    while not books.over.is_set():
        life = asyncio.create_task(_live_aio(queue, books, chance))
        await asyncio.wait([life], timeout=chance.random() * 0.05)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        if (
            not life.cancelled()
            and life.exception() is not None
            and not isinstance(life.exception(), LeaseLost)
        ):
            raise RuntimeError("a consumer failed") from life.exception()


async def _run_tasks(path: Path | None, books: Books) -> None:
    clock = UnheardClock()
    broker = await aio.open(path, clock=clock, durability="os")
    queue = await broker.queue("work", max_attempts=books.attempts_max, **POLICY)
    tasks = [asyncio.create_task(_produce_aio(queue, books, n)) for n in range(PRODUCERS)]
    tasks += [asyncio.create_task(_consume_aio(queue, books, n)) for n in range(CONSUMERS)]
    for _ in range(PATIENCE_S * 200):
        clock.advance(0.5)
        await asyncio.to_thread(broker._port.wake)  # type: ignore[attr-defined]
        books.look(await queue.depth())
        for task in tasks:
            if task.done() and task.exception() is not None:
                books.went_wrong(task.exception() or RuntimeError())
        if books.over.is_set():
            break
        await asyncio.sleep(0.005)
    else:
        books.wrong.append(f"it never ended: {await queue.stats()}")
    books.over.set()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    left = asyncio.all_tasks() - {asyncio.current_task()}  # acks that were shielded
    await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 30)
    dead = [message.payload for message in await (await queue.dead_letters()).peek(10_000)]
    await broker.close()
    books.check(dead)
    if path is not None:
        await asyncio.to_thread(_check_reopened, path, clock, dead)


@pytest.mark.parametrize("attempts", [None, 3], ids=["no limit", "dead letters"])
@pytest.mark.parametrize("home", ["memory", "disk"])
def test_threads_lose_nothing_and_nothing_acked_comes_back(
    tmp_path: Path, home: str, attempts: int | None
) -> None:
    _run_threads(tmp_path / "data" if home == "disk" else None, Books(120, attempts))


@pytest.mark.parametrize("attempts", [None, 3], ids=["no limit", "dead letters"])
@pytest.mark.parametrize("home", ["memory", "disk"])
def test_tasks_lose_nothing_and_nothing_acked_comes_back(
    tmp_path: Path, home: str, attempts: int | None
) -> None:
    asyncio.run(_run_tasks(tmp_path / "data" if home == "disk" else None, Books(120, attempts)))


@pytest.mark.campaign
@pytest.mark.parametrize("home", ["memory", "disk"])
def test_threads_and_tasks_for_long(tmp_path: Path, home: str) -> None:
    for part in range(-(-campaign.rounds() // 10)):
        for attempts in (None, 3):
            path = tmp_path / f"{part} {attempts}"
            _run_threads(path / "threads" if home == "disk" else None, Books(200, attempts))
            asyncio.run(_run_tasks(path / "tasks" if home == "disk" else None, Books(200, attempts)))
