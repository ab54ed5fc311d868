"""How fast are topics, readers and transactions: fan-out, seeking, lag, replay, and what cleaning and tracing cost?

Messages are 100 bytes, each payload an object of its own, made before the clock starts. Everything is used as anybody would, through `penstock.open`. Files are in a directory
beside the current one, so on a real disk. What is read back was written just before, so it comes from the kernel's memory.

The baselines are in `streams`, or are ourselves: one subscriber beside ten, one idle subscription beside a hundred.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

import penstock
from benchmarks import child
from benchmarks.answer import Answer
from benchmarks.journal import BATCH, payloads
from benchmarks.queues import Load, and_purge, batch_trips, between, single_trips
from benchmarks.rounds import Contender, Contest, contest, rate, side_by_side
from benchmarks.session import Question, Session, main
from benchmarks.streams import FanOut, RedisStreams, SimpleFanOut, redis_is_here
from penstock.broker import upkeep
from penstock.broker.sync import Broker, Consumer, Log, Queue, Reader, Topic
from penstock.journal import cleaner

SUBSCRIBERS: Final = 10
IDLE: Final = 100

#: Messages after which two that are nearly alike take turns, where each message is waited for.
SLICE: Final = 20
NAME: Final = "orders"

#: More than is ever published: everything stays.
RETAIN_BYTES: Final = 1 << 40

#: Redis Streams, synced always, over the queue by hand (164,000/s and 77,000/s, measured together elsewhere): for where no server can be run.
REDIS_RATIO: Final = 2.13


# --- fan-out ---


class PenstockFanOut:
    """A topic with durable subscriptions, each with a consumer."""

    def __init__(self, broker: Broker, subscribers: int) -> None:
        self._topic = broker.topic(f"{NAME}-{subscribers}")
        self._consumers: list[Consumer] = [
            self._topic.subscribe(f"subscription-{number}") for number in range(subscribers)
        ]

    def publish(self, payloads: Sequence[bytes]) -> None:
        self._topic.publish_many(payloads)

    def take(self, subscriber: int, count: int) -> int:
        consumer = self._consumers[subscriber]
        found = consumer.receive_many(count)
        consumer.ack_many(found)
        return len(found)

    def empty(self) -> None:
        """What everybody has received is not kept."""


def kept_up(peer: FanOut, subscribers: int, load: Load, batches: int) -> float:
    """Deliveries per second, publishing included: each batch is published and taken by all before the next."""
    started = time.perf_counter()
    for _ in range(batches):
        peer.publish(load.batch())
        take_all(peer, subscribers, load.size, 1)
    seconds = time.perf_counter() - started
    peer.empty()
    return batches * load.size * subscribers / seconds


def behind(peer: FanOut, subscribers: int, load: Load, batches: int) -> float:
    """Deliveries per second, without publishing: everything was published before, and one subscriber after the other takes all of it."""
    for _ in range(batches):
        peer.publish(load.batch())
    speed = rate(lambda: take_all(peer, subscribers, load.size, batches), batches * load.size * subscribers)
    peer.empty()
    return speed


def take_all(peer: FanOut, subscribers: int, size: int, batches: int) -> None:
    for subscriber in range(subscribers):
        for _ in range(batches):
            if (came := peer.take(subscriber, size)) != size:
                raise RuntimeError(f"{came} messages came of the {size} that were published")


def fan_out(session: Session) -> Iterator[Answer]:
    """Ten subscribers beside one, and beside Redis."""
    load, batches = Load(), session.work(50)
    with ExitStack() as stack:
        broker = stack.enter_context(penstock.open(session.place("topics")))
        ten, one = PenstockFanOut(broker, SUBSCRIBERS), PenstockFanOut(broker, 1)
        by_hand = SimpleFanOut(SUBSCRIBERS)
        contenders: list[Contender] = [
            lambda: kept_up(ten, SUBSCRIBERS, load, batches),
            lambda: kept_up(one, 1, load, batches),
            lambda: behind(ten, SUBSCRIBERS, load, batches),
            lambda: behind(one, 1, load, batches),
            lambda: kept_up(by_hand, SUBSCRIBERS, load, batches),
        ]
        if redis_is_here():
            contenders += _redis(session, stack, load, batches)
        outcome = contest(contenders, session.rounds)
    yield from _fan_out_answers(outcome, batches)
    yield from _beside_others(outcome, batches)


def _redis(session: Session, stack: ExitStack, load: Load, batches: int) -> list[Contender]:
    always = stack.enter_context(closing(RedisStreams(session.place("redis-always"), SUBSCRIBERS, "always")))
    everysec = stack.enter_context(
        closing(RedisStreams(session.place("redis-everysec"), SUBSCRIBERS, "everysec"))
    )
    return [
        lambda: kept_up(always, SUBSCRIBERS, load, batches),
        lambda: kept_up(everysec, SUBSCRIBERS, load, batches),
    ]


def _fan_out_answers(outcome: Contest, batches: int) -> Iterator[Answer]:
    for name, question, ours, target, how in (
        ("fan-out", "disk: fan-out to ten, deliveries", 0, 0.8, "each batch is published, and taken by all, before the next; publishing is counted"),
        ("fan-out-behind", "… by subscribers who are behind", 2, 0.8, "all was published before, which is not counted; one subscriber takes all, then the next"),
    ):  # fmt: skip
        found = between(outcome, ours, ours + 1)
        yield Answer(
            name=name, question=question, unit="messages/s",
            ours=found.ours, baseline=found.baseline(), ratio=found.ratio(), against="one subscriber", target=target,
            how=f"{found.how} of {batches * BATCH:,} messages, durable subscriptions, every publish and ack synced, in batches of {BATCH}: {how}",
        )  # fmt: skip


def _beside_others(outcome: Contest, batches: int) -> Iterator[Answer]:
    measured = len(outcome.rates) > 5
    rows = [
        ("fan-out-by-hand", 4, "ten queues of deque + Condition + dict", None if measured else REDIS_RATIO)
    ]
    if measured:
        rows = [
            ("fan-out-redis", 5, "Redis Streams, synced always", 1.0),
            ("fan-out-redis-everysec", 6, "Redis Streams, every second", None),
            *rows,
        ]
    peers_md = (
        ""
        if measured
        else "; no Redis server here: the target is its ratio to this baseline on another machine"
    )
    for name, number, against, target in rows:
        found = between(outcome, 0, number)
        yield Answer(
            name=name, question=f"… beside {against}", unit="messages/s",
            ours=found.ours, baseline=found.baseline(), ratio=found.ratio(), against=against, target=target,
            how=f"{found.how} of {batches * BATCH:,} messages in batches of {BATCH}, publishing counted; ours is on disk, synced{peers_md}",
        )  # fmt: skip


def fan_out_memory(session: Session) -> Iterator[Answer]:
    """The same in memory: nothing but the work itself."""
    load, batches = Load(), session.work(50)
    with penstock.open() as broker:
        ten, one = PenstockFanOut(broker, SUBSCRIBERS), PenstockFanOut(broker, 1)
        outcome = contest(
            [
                lambda: kept_up(ten, SUBSCRIBERS, load, batches),
                lambda: kept_up(one, 1, load, batches),
            ],
            session.rounds,
        )
    yield Answer(
        name="fan-out-memory", question="memory: fan-out to ten, deliveries", unit="messages/s",
        ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(), against="one subscriber",
        how=f"{outcome.how} of {batches * BATCH:,} messages in batches of {BATCH}, publishing counted",
    )  # fmt: skip


# --- who is idle costs nothing ---


def idle(session: Session) -> Iterator[Answer]:
    """What publishing costs when a hundred do nothing."""
    single, load, batches = Load(SLICE), Load(), session.work(200)
    slices = session.work(4000) // SLICE
    with ExitStack() as stack:
        topics = [
            _topic(stack, session.place("hundred"), subscriptions=IDLE),
            _topic(stack, session.place("readers"), subscriptions=1, readers=IDLE),
            _topic(stack, session.place("one"), subscriptions=1),
        ]
        in_memory = [_topic(stack, None, subscriptions=number) for number in (IDLE, 1)]
        one_by_one = _costs([_publishing(topic, single) for topic in topics], slices, SLICE, session.rounds)
        in_batches = _costs(
            [_publishing_batches(topic, load) for topic in topics], batches, BATCH, session.rounds
        )
        memory = _costs([_publishing(topic, single) for topic in in_memory], slices, SLICE, session.rounds)
    each, several = f"{slices * SLICE:,} messages, one at a time", f"{batches} batches of {BATCH}"
    readers = "… with 100 idle readers and one subscription"
    synced = "synced; readers have committed a position; a broker for each"
    for name, question, outcome, target, how in (
        ("idle", "publish, one at a time, with 100 idle subscriptions", between(one_by_one, 0, 2), 1.1, f"{each}, {synced}"),
        ("idle-readers", readers, between(one_by_one, 1, 2), 1.1, f"{each}, {synced}"),
        ("idle-batches", "publish_many of 1000, with 100 idle subscriptions", between(in_batches, 0, 2), 1.1, f"{several}, {synced}"),
        ("idle-readers-batches", readers, between(in_batches, 1, 2), 1.1, f"{several}, {synced}"),
        ("idle-memory", "memory: publish, with 100 idle subscriptions", memory, None, f"{each}, in memory"),
    ):  # fmt: skip
        yield Answer(
            name=name, question=question, unit="µs", wanted="at most",
            ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(), against="one idle subscription", target=target,
            how=f"{outcome.how} of {how}; what a message costs, all taking turns after every batch or {SLICE} messages",
        )  # fmt: skip


def _costs(works: Sequence[Callable[[], object]], turns: int, amount: int, rounds: int) -> Contest:
    """Microseconds for a message, instead of messages for a second."""
    found = side_by_side(works, turns, amount, rounds)
    return Contest([[1e6 / speed for speed in speeds] for speeds in found.rates])


def _topic(stack: ExitStack, path: Path | None, *, subscriptions: int, readers: int = 0) -> Topic:
    """A topic that nobody takes from."""
    topic = stack.enter_context(penstock.open(path)).topic(NAME)
    for number in range(subscriptions):
        topic.subscribe(f"subscription-{number}").close()
    for number in range(readers):
        topic.reader(f"reader-{number}").commit()
    return topic


def _publishing(log: Log, load: Load) -> Callable[[], object]:
    def publish() -> None:
        for payload in load.batch():
            log.publish(payload)

    return publish


def _publishing_batches(log: Log, load: Load) -> Callable[[], object]:
    return lambda: log.publish_many(load.batch())


# --- seeking, and lag ---


class Known(NamedTuple):
    """A message that is looked for."""

    offset: int
    id: int


SEEKS: Final = 100
LAGS: Final = 1000


def seek(session: Session) -> Iterator[Answer]:
    """Ten million messages that are kept, and any of them at once; and how far behind somebody is."""
    yield from _seeking(session, session.work(10_000_000), BATCH)


def singles(session: Session) -> Iterator[Answer]:
    """The same one by one: this takes many minutes."""
    yield from _seeking(session, session.work(10_000_000), 1)


def _seeking(session: Session, count: int, size: int) -> Iterator[Answer]:
    path = session.place(f"kept-{size}")
    with session.progress(f"{count:,} messages, {size} a publish", count) as advance:
        for written, remembered in child.reports(keep, path, count, size):
            advance(written)
            known = remembered
    found = [child.last_report(look, path, known, turn) for turn in range(session.rounds)]
    way, end = ("in batches of 1000", "") if size > 1 else ("one by one", "-singles")
    for by, question in (("id", "seek by id"), ("time", "seek by time")):
        fresh = [each[by][0] for each in found]
        warm = [sorted(each[by][1:]) for each in found]
        how = f"{len(found)} rounds of {SEEKS} seeks to random messages, each round in a process of its own, each seek checked by reading on"
        for name, what, taken in (
            (f"seek-{by}", f"{count:,} messages, {way}: {question}, median", median(map(median, warm))),
            (f"seek-{by}-worst", "… the worst of a hundred", median(each[-1] for each in warm)),
            (f"seek-{by}-fresh", "… the first after opening", median(fresh)),
        ):
            yield Answer(
                name=name + end, question=what, unit="ms", ours=taken, judged="ours", wanted="at most", target=5,
                how=f"median of {how}; the worst of all took {max(each[-1] for each in warm):.2f} ms, the worst first one {max(fresh):.2f} ms",
            )  # fmt: skip
    for name, what in (("lag-group", "lag of a group"), ("lag-reader", "lag of a reader")):
        yield Answer(
            name=name + end, question=f"{count:,} messages, {way}: {what}", unit="µs",
            ours=median(each[name] for each in found), judged="ours", wanted="at most", target=100,
            how=f"median of {len(found)} processes, in each the median of {LAGS} calls; no message was settled",
        )  # fmt: skip


def keep(send: Callable[[object], None], path: Path, count: int, size: int) -> None:
    """In a child: publish into a topic that keeps everything, and remember a few."""
    chance = random.Random(count)  # nobody is to be surprised
    wanted = sorted({*chance.sample(range(count), SEEKS), 0, count - 1})
    known: list[Known] = []
    with penstock.open(path, durability="os") as broker:
        topic = broker.topic(NAME, retain_bytes=RETAIN_BYTES)
        topic.subscribe("everything").close()
        for first in range(0, count, BATCH):
            batch = payloads(first // BATCH)
            ids = topic.publish_many(batch) if size > 1 else [topic.publish(payload) for payload in batch]
            while len(known) < len(wanted) and wanted[len(known)] < first + BATCH:
                offset = wanted[len(known)]
                known.append(Known(offset, ids[offset - first]))
            if (first + BATCH) % (count // 20) == 0:
                send((first + BATCH, known))


def look(send: Callable[[object], None], path: Path, known: list[Known], turn: int) -> None:
    """In a child: milliseconds of seeks, the first one after opening first, and microseconds of asking for lag."""
    taken: dict[str, Any] = {}
    order = random.Random(turn).sample(known, len(known))
    with penstock.open(path, durability="os") as broker:
        topic = broker.topic(NAME)
        reader = topic.reader("one")
        taken["id"] = [_seek_id_ms(reader, one) for one in order]
    with penstock.open(path, durability="os") as broker:
        topic = broker.topic(NAME)
        times = [_at(topic, one.offset).timestamp for one in order]
    with penstock.open(path, durability="os") as broker:
        topic = broker.topic(NAME)
        reader = topic.reader("one")
        taken["time"] = [_seek_time_ms(reader, one, at) for one, at in zip(order, times, strict=True)]
        group = topic.subscription("everything")
        reader.seek(offset=0)
        everything = topic.stats().published
        if not group.lag() == reader.lag() == everything:
            raise RuntimeError(f"lags of {group.lag()} and {reader.lag()} behind {everything} messages")
        taken["lag-group"] = _p50_us(group.lag)
        taken["lag-reader"] = _p50_us(reader.lag)
    send(taken)


def _at(topic: Topic, offset: int) -> Any:
    """The message of an offset."""
    found = topic.reader("another", start=offset).read()
    if found is None or found.offset != offset:
        raise RuntimeError(f"the message {offset} is not there")
    return found


def _seek_id_ms(reader: Reader, known: Known) -> float:
    started = time.perf_counter()
    reader.seek(message_id=known.id)
    seconds = time.perf_counter() - started
    found = reader.read()
    if found is None or (found.offset, found.id) != known:
        raise RuntimeError(f"seeking {known} found {found}")
    return seconds * 1e3


def _seek_time_ms(reader: Reader, known: Known, at: Any) -> float:
    started = time.perf_counter()
    reader.seek(timestamp=at)
    seconds = time.perf_counter() - started
    found = reader.read()
    # Messages that were published together have one time: then the first of them is meant.
    if found is None or found.timestamp != at or not reader.position() <= known.offset + 1:
        raise RuntimeError(f"seeking the time {at} of {known} found {found}")
    return seconds * 1e3


def _p50_us(ask: Callable[[], object]) -> float:
    clock, taken = time.perf_counter, []
    for _ in range(LAGS):
        started = clock()
        ask()
        taken.append(clock() - started)
    return median(taken) * 1e6


# --- reading ---


def reading(session: Session) -> Iterator[Answer]:
    """A log from its beginning to its end, by a process that has just opened it."""
    for name, question, count, size, target in (
        ("read", "read_many(1000), published in batches of 1000", session.work(2_000_000), BATCH, 1e6),
        ("read-singles", "… published one by one", session.work(200_000), 1, None),
    ):
        path = session.place(name)
        child.last_report(keep, path, count, size)
        speeds = [float(child.last_report(read_all, path, count)) for _ in range(session.rounds)]
        yield Answer(
            name=name, question=question, unit="messages/s", ours=median(speeds), judged="ours", target=target,
            how=f"median of {len(speeds)} rounds of {count:,} messages, each in a process of its own, on disk; opening is not counted; "
            f"{min(speeds):,.0f} to {max(speeds):,.0f}",
        )  # fmt: skip


def read_all(send: Callable[[object], None], path: Path, count: int) -> None:
    """In a child: messages per second."""
    with penstock.open(path) as broker:
        reader = broker.topic(NAME).reader("replay")
        seen = 0
        started = time.perf_counter()
        while found := reader.read_many(BATCH):
            seen += len(found)
        speed = seen / (time.perf_counter() - started)
    if seen != count:
        raise RuntimeError(f"{seen} messages were read of {count}")
    send(speed)


# --- cleaning ---

#: Small, so that segments are sealed and rewritten all the time.
SEGMENT_BYTES: Final = 2 << 20

#: Of a thousand messages, so few are not acknowledged: a segment with them has to be rewritten.
LEFT_OF_BATCH: Final = 50

#: Of the other queue, whose messages are consumed: so many batches a second.
BATCHES_PER_S: Final = 100


def cleaning(session: Session) -> Iterator[Answer]:
    """What a publisher notices while segments are rewritten."""
    seconds = session.work(20)
    found: dict[bool, list[Any]] = {True: [], False: []}
    for turn in range(session.rounds if session.quick else 5):
        for tidy in (True, False) if turn % 2 else (False, True):
            found[tidy].append(
                child.last_report(publish_beside, session.place(f"{tidy}-{turn}"), seconds, tidy)
            )
    rewritten = sum(each["rewritten"] for each in found[True])
    if not rewritten:
        raise RuntimeError("the cleaner has rewritten nothing")
    for name, question, which in (
        ("cleaning", "disk: publish while segments are rewritten, p50", "p50"),
        ("cleaning-p99.9", "… p99.9", "p99.9"),
        ("cleaning-worst", "… the worst pause", "worst"),
    ):
        outcome = Contest([[each[which] for each in found[tidy]] for tidy in (True, False)])
        most = [max(each[which] for each in found[tidy]) for tidy in (True, False)]
        yield Answer(
            name=name, question=question, unit="ms", wanted="at most",
            ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(), against="the same without cleaning",
            how=f"{outcome.how} of {seconds} s, each in a process of its own: one message at a time, synced, beside a thread that publishes {BATCHES_PER_S} batches "
            f"a second and acknowledges most of them; {rewritten} segments of {SEGMENT_BYTES >> 20} MB were rewritten; the highest of all rounds: {most[0]:.2f} ms, without {most[1]:.2f} ms",
        )  # fmt: skip


def publish_beside(send: Callable[[object], None], path: Path, seconds: int, tidy: bool) -> None:
    """In a child: milliseconds of single publishes, while another thread gives the cleaner something to do, or nobody cleans."""
    done: list[cleaner.Cleaned] = []

    def counted(*arguments: Any, **settings: Any) -> cleaner.Cleaned:
        done.append(cleaner.clean(*arguments, **settings))
        return done[-1]

    never = sys.maxsize
    vars(upkeep).update(
        clean=counted,
        BYTES_AT_ONCE=2 * SEGMENT_BYTES if tidy else never,
        CHANGES_AT_ONCE=upkeep.CHANGES_AT_ONCE if tidy else never,
    )
    with penstock.open(path, segment_bytes=SEGMENT_BYTES) as broker:
        ended = threading.Event()
        other = threading.Thread(target=_consume_most, args=(broker.queue("consumed"), ended))
        other.start()
        try:
            taken = sorted(_publish_ms(broker.queue(NAME), seconds))
        finally:
            ended.set()
            other.join()
        rewritten = sum(each.segments_rewritten for each in done)
    send({"p50": median(taken), "p99.9": quantiles(taken, n=1000)[-1], "worst": taken[-1], "rewritten": rewritten})  # fmt: skip


def _publish_ms(queue: Queue, seconds: float) -> Iterator[float]:
    clock, load = time.perf_counter, Load()
    end = clock() + seconds
    while clock() < end:
        for payload in load.batch():
            started = clock()
            queue.publish(payload)
            yield (clock() - started) * 1e3


def _consume_most(queue: Queue, ended: threading.Event) -> None:
    load = Load()
    while not ended.wait(1 / BATCHES_PER_S):
        queue.publish_many(load.batch())
        found = queue.receive_many(BATCH)
        queue.ack_many(found[LEFT_OF_BATCH:])


# --- transactions ---


def transactions(session: Session) -> Iterator[Answer]:
    """Take a message from one queue, put another into the next."""
    wanted = Load().several(session.work(1000))
    with penstock.open(session.place("queues")) as broker:
        first, second = broker.queue("first"), broker.queue("second")
        outcome = contest(
            [
                lambda: _moved(first, second, wanted, lambda: _together(broker, first, second, wanted)),
                lambda: _moved(first, second, wanted, lambda: _apart(first, second, wanted)),
            ],
            session.rounds,
        )
    yield Answer(
        name="transaction", question="disk: receive, then ack and publish in one transaction", unit="messages/s",
        ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(), against="publish, then ack",
        how=f"{outcome.how} of {len(wanted)} messages, one at a time, synced",
    )  # fmt: skip


def _moved(first: Queue, second: Queue, wanted: Sequence[bytes], move: Callable[[], None]) -> float:
    first.publish_many(wanted)
    speed = rate(move, len(wanted))
    if first.depth() or second.depth() != len(wanted):
        raise RuntimeError("not every message was moved")
    return and_purge(second, speed)


def _together(broker: Broker, first: Queue, second: Queue, wanted: Sequence[bytes]) -> None:
    for payload in wanted:
        delivery = _next(first)
        with broker.transaction() as tx:
            tx.ack(delivery)
            tx.publish(second.name, payload)


def _apart(first: Queue, second: Queue, wanted: Sequence[bytes]) -> None:
    for payload in wanted:
        delivery = _next(first)
        second.publish(payload)
        delivery.ack()


def _next(queue: Queue) -> Any:
    delivery = queue.receive()
    if delivery is None:
        raise RuntimeError("a message that is queued did not come")
    return delivery


# --- tracing ---


def tracing(session: Session) -> Iterator[Answer]:
    """What it costs to remember what became of each message."""
    single, load, batches = Load(SLICE), Load(), session.work(100)
    slices, more = session.work(2000) // SLICE, session.work(20_000) // SLICE
    with ExitStack() as stack:
        synced = [_traced(stack, session, "commit", trace) for trace in (True, False)]
        loose = [_traced(stack, session, "os", trace) for trace in (True, False)]
        one_by_one = side_by_side([_trips(queue, single) for queue in synced], slices, SLICE, session.rounds)
        not_synced = side_by_side([_trips(queue, single) for queue in loose], more, SLICE, session.rounds)
        in_batches = side_by_side(
            [_batch_trip(queue, load) for queue in synced], batches, BATCH, session.rounds
        )
    for name, question, outcome, target, how in (
        ("trace", "disk: publish, receive, ack, one by one, traced", one_by_one, 0.9, f"{slices * SLICE:,} messages, synced"),
        ("trace-batches", "… in batches of 1000", in_batches, None, f"{batches} batches, synced"),
        ("trace-os", "… one by one, not synced", not_synced, None, f'{more * SLICE:,} messages, durability="os"'),
    ):  # fmt: skip
        yield Answer(
            name=name, question=question, unit="messages/s",
            ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(), against="trace=False", target=target,
            how=f"{outcome.how} of {how}; each published, received and acknowledged before the next, both taking turns after every batch or {SLICE} messages",
        )  # fmt: skip


def _traced(stack: ExitStack, session: Session, durability: Any, trace: bool) -> Queue:
    path = session.place(f"{durability}-{trace}")
    return stack.enter_context(penstock.open(path, durability=durability, trace=trace)).queue(NAME)


def _trips(queue: Queue, load: Load) -> Callable[[], object]:
    return lambda: single_trips(queue, load.batch())


def _batch_trip(queue: Queue, load: Load) -> Callable[[], object]:
    return lambda: batch_trips(queue, load, 1)


QUESTIONS: Final[dict[str, Question]] = {
    "fan-out": fan_out,
    "fan-out-memory": fan_out_memory,
    "idle": idle,
    "seek": seek,
    "reading": reading,
    "cleaning": cleaning,
    "transactions": transactions,
    "tracing": tracing,
    "singles": singles,
}

if __name__ == "__main__":
    sys.exit(main("logs", "Penstock's logs, 100-byte messages", QUESTIONS))
