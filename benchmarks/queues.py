"""How fast are the queues, beside what one would write by hand, beside the disk itself, and beside other embedded queues?

Messages are 100 bytes, each payload an object of its own, made before the clock starts. Queues are used as anybody would, through `penstock.open`,
with the policy they have by default. Files are in a directory beside the current one, so on a real disk. What is read back was written just
before, so it comes from the kernel's memory.

The baselines are in `peers`.
"""

from __future__ import annotations

import asyncio
import queue as standard
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import penstock
from benchmarks import child, peers
from benchmarks.answer import Answer
from benchmarks.journal import BATCH, MB, POOL_BATCHES, payloads
from benchmarks.rounds import Contest, contest, rate
from benchmarks.session import Question, Session, main
from penstock.broker.sync import Broker, Queue
from penstock.journal.journal import Journal

MEMORY_BATCH: Final = 100
THREADS: Final = 16
NAME: Final = "orders"


class Load:
    """Batches of payloads without an end, from a pool that stays in the processor's cache."""

    def __init__(self, size: int = BATCH) -> None:
        self.size = size
        self.pool = [payloads(number, size) for number in range(POOL_BATCHES)]
        self._turn = cycle(self.pool)

    def batch(self) -> list[bytes]:
        return next(self._turn)

    def several(self, count: int) -> list[bytes]:
        """So many payloads in one list."""
        wanted: list[bytes] = []
        while len(wanted) < count:
            wanted += self.batch()
        return wanted[:count]


def between(outcome: Contest, ours: int, baseline: int) -> Contest:
    """Two of a contest's contenders, by themselves."""
    return Contest([outcome.rates[ours], outcome.rates[baseline]])


# --- the ways of using a queue ---


def publish_batches(queue: Queue, load: Load, batches: int) -> None:
    for _ in range(batches):
        queue.publish_many(load.batch())


def take_batches(queue: Queue, size: int, batches: int) -> None:
    """Receive and acknowledge, batch by batch."""
    for _ in range(batches):
        found = queue.receive_many(size)
        if len(found) != size:
            raise RuntimeError(f"{len(found)} messages came of the {size} that are queued")
        queue.ack_many(found)


def batch_trips(queue: Queue, load: Load, batches: int) -> None:
    """Each batch is published, received and acknowledged before the next."""
    for _ in range(batches):
        publish_batches(queue, load, 1)
        take_batches(queue, load.size, 1)


def publish_each(queue: Queue, wanted: Sequence[bytes]) -> None:
    for payload in wanted:
        queue.publish(payload)


def take_each(queue: Queue, count: int) -> None:
    """Receive and acknowledge, one by one."""
    for _ in range(count):
        delivery = queue.receive()
        if delivery is None:
            raise RuntimeError("a message that is queued did not come")
        delivery.ack()


def single_trips(queue: Queue, wanted: Sequence[bytes]) -> None:
    """Each message is published, received and acknowledged before the next."""
    for payload in wanted:
        queue.publish(payload)
        take_each(queue, 1)


def and_purge(queue: Queue, speed: float) -> float:
    """What was measured, leaving the queue empty for whoever comes next."""
    queue.purge()
    return speed


# --- in memory ---


def memory(session: Session) -> Iterator[Answer]:
    """Nothing but the work itself."""
    yield _memory_singles(session)
    yield _memory_batches(session)


def _memory_singles(session: Session) -> Answer:
    wanted = Load().several(session.work(30_000))
    byhand = peers.SimpleQueue()
    with penstock.open() as broker:
        queue = broker.queue(NAME)
        outcome = contest(
            [
                lambda: rate(lambda: single_trips(queue, wanted), len(wanted)),
                lambda: rate(lambda: _simple_trips(byhand, wanted), len(wanted)),
            ],
            session.rounds,
        )
    return Answer(
        name="memory-singles", question="memory: publish, receive, ack, one per call", unit="messages/s",
        ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(),
        against="deque + Condition + in-flight dict", target=1.0,
        how=f"{outcome.how} of {len(wanted):,} messages, each published, received and acknowledged before the next, in one thread; "
        "the baseline's ids are uuid4",
    )  # fmt: skip


def _simple_trips(queue: peers.SimpleQueue, wanted: Sequence[bytes]) -> None:
    for payload in wanted:
        queue.publish(payload)
        message = queue.receive()
        if message is None:
            raise RuntimeError("a message that was published did not come")
        queue.ack(message.id)


def _memory_batches(session: Session) -> Answer:
    load = Load(MEMORY_BATCH)
    batches = session.work(2000)
    plain: standard.Queue[bytes] = standard.Queue()
    with penstock.open() as broker:
        queue = broker.queue(NAME)
        outcome = contest(
            [
                lambda: rate(lambda: batch_trips(queue, load, batches), batches * load.size),
                lambda: rate(lambda: _plain_trips(plain, load, batches), batches * load.size),
            ],
            session.rounds,
        )
    return Answer(
        name="memory-batches", question="memory: batches of 100, publish, receive, ack", unit="messages/s",
        ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(),
        against="queue.Queue put + get", target=1.2,
        how=f"{outcome.how} of {batches:,} batches: publish_many, receive_many, ack_many; "
        "the baseline puts the same 100 messages one by one and gets them, having no batches and no ack",
    )  # fmt: skip


def _plain_trips(queue: standard.Queue[bytes], load: Load, batches: int) -> None:
    for _ in range(batches):
        batch = load.batch()
        for payload in batch:
            queue.put(payload)
        for _ in batch:
            queue.get()


# --- on the disk, in batches ---


def durable(session: Session) -> Iterator[Answer]:
    """Batches of 1000, each on the disk before the next begins."""
    load, batches = Load(), session.work(200)
    length = _frame_bytes(session, load.batch())
    raw = peers.RawFile(session.place("raw") / "file", _frames(length, load))
    table, rows = peers.Table(session.place("table")), [[(p,) for p in batch] for batch in load.pool]
    turn = cycle(rows)
    amount = batches * BATCH
    with penstock.open(session.place("queues")) as broker:
        queue = broker.queue(NAME)
        outcome = contest(
            [
                lambda: and_purge(queue, rate(lambda: publish_batches(queue, load, batches), amount)),
                lambda: _kept_up(queue, load, batches),
                lambda: _caught_up(queue, load, batches),
                lambda: rate(lambda: raw.append_many(batches), amount),
                lambda: rate(lambda: table.publish_all(islice(turn, batches)), amount),
            ],
            session.rounds,
        )
    table.close()
    yield from _durable_answers(outcome, batches, length)


def _durable_answers(outcome: Contest, batches: int, length: int) -> Iterator[Answer]:
    raw = f"raw writes {length:,} bytes a batch, as publishing does, into a file that grows"
    disk, table = "raw write + fdatasync", "a sqlite3 table"
    for name, question, ours, baseline, against, target, how in (
        ("publish", "disk: publish_many of 1000", 0, 3, disk, 0.5, raw),
        ("publish-table", "… beside a plain table", 0, 4, table, 1.0, "the table: WAL, FULL, executemany, a commit a batch"),
        ("receive", "disk: receive_many + ack_many of 1000", 1, 3, disk, 0.25, f"each batch just published; {raw}"),
        ("receive-behind", "… by a consumer who is behind", 2, 3, disk, 0.25, f"{batches * BATCH:,} messages queued before; {raw}"),
    ):  # fmt: skip
        found = between(outcome, ours, baseline)
        yield Answer(
            name=name, question=question, unit="messages/s",
            ours=found.ours, baseline=found.baseline(), ratio=found.ratio(),
            against=against, target=target, how=f"{found.how} of {batches} batches, synced; {how}",
        )  # fmt: skip


def _kept_up(queue: Queue, load: Load, batches: int) -> float:
    """The rate of receiving and acknowledging what was published just before, which is not counted."""
    seconds = 0.0
    for _ in range(batches):
        publish_batches(queue, load, 1)
        seconds += 1 / rate(lambda: take_batches(queue, BATCH, 1), 1)
    return batches * BATCH / seconds


def _caught_up(queue: Queue, load: Load, batches: int) -> float:
    """The same, when all was published before."""
    publish_batches(queue, load, batches)
    return rate(lambda: take_batches(queue, BATCH, batches), batches * BATCH)


def _frame_bytes(session: Session, batch: list[bytes]) -> int:
    """How many bytes the journal writes for a publish."""
    path = session.place(f"frame-{len(batch)}")
    with penstock.open(path) as broker:
        queue = broker.queue(NAME)
        for _ in range(3):
            queue.publish_many(batch)
    with Journal(path) as journal:
        lengths = [f.header.bytes for f in journal.frames() if f.header.messages == len(batch)]
    if len(lengths) != 3:
        raise RuntimeError(f"3 batches were published, {len(lengths)} frames hold as many messages")
    return round(median(lengths))


def _frames(length: int, load: Load) -> list[bytes]:
    """Bytes for the baseline to write, no two alike."""
    return [b"".join(batch)[:length].ljust(length, b".") for batch in load.pool]


# --- on the disk, one at a time ---


def latency(session: Session) -> Iterator[Answer]:
    """One publisher, who waits for each message to be on the disk."""
    wanted = Load().several(session.work(1000))
    length = _frame_bytes(session, wanted[:1])
    raw = peers.RawFile(session.place("raw") / "file", _frames(length, Load(1)))
    path = session.place("asyncio")
    with penstock.open(session.place("queues")) as broker, asyncio.Runner() as runner:
        queue = broker.queue(NAME)
        loop_broker = runner.run(_aio_open(path))
        loop_queue = runner.run(loop_broker.queue(NAME))
        outcome = contest(
            [
                lambda: _p50_us(queue.publish, wanted),
                lambda: runner.run(_aio_p50_us(loop_queue, wanted)),
                lambda: _p50_us(lambda _: raw.append(), wanted),
            ],
            session.rounds,
        )
        runner.run(loop_broker.close())
    for number, name, question, target in (
        (0, "latency", "disk: publish, one at a time, p50", 1.3),
        (1, "latency-asyncio", "… awaited in asyncio", None),
    ):
        found = between(outcome, number, 2)
        yield Answer(
            name=name, question=question, unit="µs", wanted="at most",
            ours=found.ours, baseline=found.baseline(), ratio=found.ratio(),
            against="raw write + fdatasync", target=target,
            how=f"{found.how} of {len(wanted)} messages, each waited for; raw writes {length} bytes, as publishing does",
        )  # fmt: skip


async def _aio_open(path: Path) -> Any:
    return await penstock.aio.open(path)


def _p50_us(publish: Callable[[bytes], object], wanted: Sequence[bytes]) -> float:
    taken: list[float] = []
    clock = time.perf_counter
    for payload in wanted:
        started = clock()
        publish(payload)
        taken.append(clock() - started)
    return median(taken) * 1e6


async def _aio_p50_us(queue: Any, wanted: Sequence[bytes]) -> float:
    taken: list[float] = []
    clock = time.perf_counter
    for payload in wanted:
        started = clock()
        await queue.publish(payload)
        taken.append(clock() - started)
    return median(taken) * 1e6


# --- beside other embedded queues ---


def persist_queue(session: Session) -> Iterator[Answer]:
    """Everything synced."""
    load, batches = Load(), session.work(50)
    wanted = load.several(session.work(500))
    fresh = _Fresh(session, "persist-queue", peers.PersistQueue)
    with penstock.open(session.place("queues")) as broker:
        queue = broker.queue(NAME)
        outcome = contest(
            [
                lambda: and_purge(queue, rate(lambda: publish_batches(queue, load, batches), batches * BATCH)),
                lambda: rate(lambda: batch_trips(queue, load, batches), batches * BATCH),
                lambda: and_purge(queue, rate(lambda: publish_each(queue, wanted), len(wanted))),
                lambda: rate(lambda: single_trips(queue, wanted), len(wanted)),
                lambda: fresh.publish_rate(wanted),
                lambda: fresh.trip_rate(wanted),
            ],
            session.rounds,
        )  # fmt: skip
    for name, question, ours, baseline, target in (
        ("persist-batches-publish", "disk, batches of 1000: publish", 0, 4, 20.0),
        ("persist-batches-trip", "… publish, receive, ack", 1, 5, 20.0),
        ("persist-singles-publish", "disk, one by one: publish", 2, 4, 1.0),
        ("persist-singles-trip", "… publish, receive, ack", 3, 5, 1.0),
    ):
        found = between(outcome, ours, baseline)
        yield Answer(
            name=name, question=question, unit="messages/s",
            ours=found.ours, baseline=found.baseline(), ratio=found.ratio(), against="persist-queue", target=target,
            how=f"{found.how}, synced; SQLiteAckQueue has no batches, and a new file for each round of {len(wanted)} messages",
        )  # fmt: skip


def litequeue(session: Session) -> Iterator[Answer]:
    """Nothing synced: both leave that to the operating system."""
    wanted = Load().several(session.work(10_000))
    some = len(wanted) // 50
    fresh = _Fresh(session, "litequeue", peers.LiteQueue)
    with penstock.open(session.place("queues"), durability="os") as broker:
        queue = broker.queue(NAME)
        mine = _Mine(queue)
        outcome = contest(
            [
                lambda: and_purge(queue, _life(mine, wanted, some)),
                lambda: and_purge(queue, rate(lambda: publish_each(queue, wanted), len(wanted))),
                lambda: rate(lambda: single_trips(queue, wanted), len(wanted)),
                lambda: fresh.life_rate(wanted, some),
                lambda: fresh.publish_rate(wanted),
                lambda: fresh.trip_rate(wanted),
            ],
            session.rounds,
        )
    deep = f"the seconds of publishing {len(wanted):,}, and of receiving and acknowledging {some} of them, each per message, added up"
    for name, question, ours, target, how in (
        ("os-life", f"not synced, one by one: the life of one of {len(wanted):,}", 0, 5.0, deep),
        ("os-publish", "… only publish", 1, None, "nothing received"),
        ("os-trip", "… with one in the queue", 2, None, "each published, received and acknowledged before the next"),
    ):  # fmt: skip
        found = between(outcome, ours, ours + 3)
        yield Answer(
            name=name, question=question, unit="messages/s",
            ours=found.ours, baseline=found.baseline(), ratio=found.ratio(), against="litequeue", target=target,
            how=f'{found.how}, durability="os": {how}; litequeue has a new file for each round',
        )  # fmt: skip


class _Mine:
    """A queue of ours, used as the peers are."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def publish(self, payloads: Sequence[bytes]) -> None:
        publish_each(self._queue, payloads)

    def take(self, count: int) -> None:
        take_each(self._queue, count)


def _life(queue: _Mine | peers.Peer, wanted: Sequence[bytes], some: int) -> float:
    """Lives per second of messages that are published while others wait, and received with as many behind them."""
    published = rate(lambda: queue.publish(wanted), len(wanted))
    return 1 / (1 / published + 1 / rate(lambda: queue.take(some), some))


class _Fresh:
    """A peer that gets a new file for each round; making it is not counted."""

    def __init__(self, session: Session, name: str, make: Callable[[Path], peers.Peer]) -> None:
        self._session = session
        self._names = (f"{name}-{number}" for number in numbers())
        self._make = make

    def publish_rate(self, wanted: Sequence[bytes]) -> float:
        return self._rate(lambda peer: peer.publish(wanted), len(wanted))

    def trip_rate(self, wanted: Sequence[bytes]) -> float:
        return self._rate(lambda peer: peer.trips(wanted), len(wanted))

    def life_rate(self, wanted: Sequence[bytes], some: int) -> float:
        return self._with_one(lambda peer: _life(peer, wanted, some))

    def _rate(self, use: Callable[[peers.Peer], None], amount: int) -> float:
        return self._with_one(lambda peer: rate(lambda: use(peer), amount))

    def _with_one(self, measure: Callable[[peers.Peer], float]) -> float:
        peer = self._make(self._session.place(next(self._names)))
        try:
            return measure(peer)
        finally:
            peer.close()


def threads(session: Session) -> Iterator[Answer]:
    """Publishers who each wait for their own message to be on the disk."""
    wanted = Load().several(session.work(4800) // THREADS)
    amount = THREADS * len(wanted)
    persist = peers.PersistQueue(session.place("persist-queue"), threads=True)
    table = peers.Table(session.place("table"))
    with penstock.open(session.place("queues")) as broker:
        queue = broker.queue(NAME)
        outcome = contest(
            [
                lambda: rate(lambda: _in_threads(lambda: publish_each(queue, wanted)), amount),
                lambda: rate(lambda: _in_threads(lambda: persist.publish(wanted)), amount),
                lambda: rate(lambda: _in_threads(lambda: table.publish(wanted)), amount),
            ],
            session.rounds,
        )
    persist.close()
    table.close()
    ours, *others = outcome.rates
    best = Contest([ours, [max(pair) for pair in zip(*others, strict=True)]])
    yield Answer(
        name="threads", question="disk: 16 threads publish, each waits", unit="messages/s",
        ours=best.ours, baseline=best.baseline(), ratio=best.ratio(), against="the best peer", target=2.0,
        how=f"{best.how} of {amount} messages, synced; persist-queue {outcome.baseline(1):,.0f}/s, a sqlite3 table whose threads take "
        f"turns {outcome.baseline(2):,.0f}/s, and the better of them in each round is the baseline",
    )  # fmt: skip


def _in_threads(work: Callable[[], None]) -> None:
    people = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in people:
        thread.start()
    for thread in people:
        thread.join()


# --- a deep queue ---


def deep(session: Session) -> Iterator[Answer]:
    """Ten million messages that nobody has received yet."""
    yield from _deep(session, "deep", session.work(10_000_000), BATCH)


def singles(session: Session) -> Iterator[Answer]:
    """The same one by one, and a million of them after a kill: this takes many minutes."""
    count = 50_000 if session.quick else 10_000_000  # a tenth would take minutes, too
    yield from _deep(session, "singles", count, 1)
    session.clear()
    yield _reopening(session, "singles-killed", 10_000 if session.quick else 1_000_000, 1, clean=False)


def _deep(session: Session, name: str, count: int, size: int) -> Iterator[Answer]:
    found: dict[str, Any] = {}
    path = session.place(name)
    with session.progress(f"{count:,} messages, {size} a call", count) as advance:
        for written, report in child.reports(fill_and_compare, path, count, size, session.rounds):
            advance(written)
            found.update(report)
    way = "in batches" if size > 1 else "one by one"
    yield Answer(
        name=f"{name}-memory", question=f"{count:,} queued, {way}: memory", unit="MB",
        ours=found["highest"] / MB, judged="ours", wanted="at most", target=200,
        how=f"the highest of a process of its own, from beginning to end; resident {found['resident'] / MB:.0f} MB when all are queued, "
        f"{found['before'] / MB:.0f} MB before the first; published at {found['speed']:,.0f}/s, not synced; one run",
    )  # fmt: skip
    for what, outcome in (("publish", found["publish"]), ("receive", found["receive"])):
        yield Answer(
            name=f"{name}-{what}", question=f"… {what}{' + ack' if what == 'receive' else ''}", unit="µs",
            ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(),
            against="with a thousand queued", wanted="at most", target=1.3,
            how=f"{outcome.how}; time for each message, {'100 a call' if size > 1 else 'one by one'}, not synced; the oldest are received, which "
            "have to be read from the journal when there are many",
        )  # fmt: skip


def fill_and_compare(send: Callable[[object], None], path: Path, count: int, size: int, rounds: int) -> None:
    """In a child: queue `count` messages, `size` a call, and see what a message costs then beside a queue of a thousand."""
    with (
        penstock.open(path / "many", durability="os") as many,
        penstock.open(path / "few", durability="os") as few,
    ):
        before = child.resident_bytes()
        speed = _fill(many, count, size, lambda done: send((done, {})))
        send((count, {"before": before, "resident": child.resident_bytes(), "speed": speed}))
        _fill(few, 1000, size, lambda _: None)
        at_once = 100 if size > 1 else 1
        both = [Costs(broker.queue(NAME), at_once) for broker in (many, few)]
        publish = contest([each.publish_us for each in both], rounds)
        receive = contest([each.receive_us for each in both], rounds)
        send((count, {"publish": publish, "receive": receive, "highest": _highest_bytes()}))


def _fill(broker: Broker, count: int, size: int, done: Callable[[int], None]) -> float:
    queue, step = broker.queue(NAME), max(count // 20, size)
    started = time.perf_counter()
    for first in range(0, count, step):
        for start in range(first, first + step, BATCH):
            batch = payloads(start // BATCH)
            if size == 1:
                publish_each(queue, batch)
            else:
                queue.publish_many(batch)
        done(first + step)
    return count / (time.perf_counter() - started)


class Costs:
    """What a message costs in a queue that keeps its depth: as many are received as are published."""

    CALLS: Final = 250

    def __init__(self, queue: Queue, at_once: int) -> None:
        self._queue = queue
        self._load = Load(at_once)

    def publish_us(self) -> float:
        return self._run()[0]

    def receive_us(self) -> float:
        return self._run()[1]

    def _run(self) -> tuple[float, float]:
        """Microseconds for publishing a message, and for receiving and acknowledging one."""
        publishing = receiving = 0.0
        clock, queue, load = time.perf_counter, self._queue, self._load
        for _ in range(self.CALLS):
            started = clock()
            queue.publish_many(load.batch())
            published = clock()
            take_batches(queue, load.size, 1)
            publishing += published - started
            receiving += clock() - published
        messages = self.CALLS * load.size
        return publishing / messages * 1e6, receiving / messages * 1e6


def _highest_bytes() -> int:
    """The most that this process ever had in memory. (`getrusage` would count what its parent had.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not say how much memory this process had at most")


# --- opening ---


def reopening(session: Session) -> Iterator[Answer]:
    """A million messages, and how soon the first of them can be had."""
    count = session.work(1_000_000)
    yield _reopening(session, "closed", count, BATCH, clean=True)
    session.clear()
    yield _reopening(session, "killed", count, BATCH, clean=False)


def _reopening(session: Session, name: str, count: int, size: int, *, clean: bool) -> Answer:
    path = session.place(name)
    child.last_report(leave_behind, path, count, size, clean)
    rounds = session.rounds if size > 1 else 3  # what is read frame by frame takes long
    seconds = [float(child.last_report(open_and_receive, path, clean)) for _ in range(rounds)]
    end = "a clean close" if clean else "kill -9"
    way = "in batches of 1000" if size > 1 else "one by one"
    return Answer(
        name=name, question=f"{count:,} messages, {way}: open after {end}", unit="s",
        ours=median(seconds), judged="ours", wanted="at most", target=1 if clean else 5,
        how=f"median of {len(seconds)} rounds, each in a process of its own that ended likewise; from `open` to the first message received; "
        f"the first time took {seconds[0]:.2f} s",
    )  # fmt: skip


def leave_behind(send: Callable[[object], None], path: Path, count: int, size: int, clean: bool) -> None:
    """In a child: publish, and close or die."""
    broker = penstock.open(path, durability="commit" if size > 1 else "os")
    _fill(broker, count, size, lambda _: None)
    send(count)
    _end(broker, clean)


def open_and_receive(send: Callable[[object], None], path: Path, clean: bool) -> None:
    """In a child: how long it takes from opening to the first message; then close or die."""
    started = time.perf_counter()
    broker = penstock.open(path)
    delivery = broker.queue(NAME).receive()
    seconds = time.perf_counter() - started
    if delivery is None:
        raise RuntimeError("what was published is not there")
    send(seconds)
    _end(broker, clean)


def _end(broker: Broker, clean: bool) -> None:
    if clean:
        broker.close()
    else:
        child.crash()


QUESTIONS: Final[dict[str, Question]] = {
    "memory": memory,
    "durable": durable,
    "latency": latency,
    "persist-queue": persist_queue,
    "litequeue": litequeue,
    "threads": threads,
    "deep": deep,
    "reopening": reopening,
    "singles": singles,
}

if __name__ == "__main__":
    sys.exit(main("queues", "Penstock's queues, 100-byte messages", QUESTIONS))
