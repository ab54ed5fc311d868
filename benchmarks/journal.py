"""How fast is the journal, beside the disk itself and beside what one would write by hand?

Messages are 100 bytes, each payload an object of its own, made before the clock starts; building the rows is part of what is
measured. Files are in a directory beside the current one, so on a real disk. What is read back was written just before, so it comes
from the kernel's memory: recovery and reading are measured, not the disk. Where nothing else is
said all have the journal's checksum, which is zlib-ng's where that is installed, as `make bench` does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

from benchmarks import child
from benchmarks.answer import Answer
from benchmarks.rounds import contest, rate
from benchmarks.session import Question, Session, main
from penstock.journal import cleaner, frame
from penstock.journal.checksum import Checksum, crc32
from penstock.journal.journal import Journal
from penstock.journal.rows import Rows, messages

BATCH: Final = 1000
PAYLOAD_BYTES: Final = 100
LOG: Final = 1
MB: Final = 1e6

#: Payloads are made in so many different batches, which are then taken in turn: no more than stay in the processor's cache,
#: as payloads do that were just made.
POOL_BATCHES: Final = 8


def payloads(batch: int, size: int = BATCH) -> list[bytes]:
    """Payloads of which no two are the same object, or equal."""
    start = batch * size
    return [b"%-*d" % (PAYLOAD_BYTES, number) for number in range(start, start + size)]


class Source:
    """Batches of messages without an end: payloads from a pool, ids that grow."""

    def __init__(self) -> None:
        self.pool = [payloads(number) for number in range(POOL_BATCHES)]
        self._turn = cycle(self.pool)
        self._id = 1 << 40

    def rows(self) -> Rows:
        """The next batch, as a publisher would bring it."""
        self._id += BATCH
        return messages(LOG, next(self._turn), ids=range(self._id, self._id + BATCH), timestamp=self._id)

    def frames(self) -> list[bytes]:
        """The bytes that the journal writes for each batch of the pool."""
        return [self._frame() for _ in self.pool]

    def _frame(self) -> bytes:
        rows = self.rows()
        rows.columns["offset"] = range(self._id, self._id + BATCH)
        rows.prepare(alone=False)
        parts = frame.encode(frame.body([rows]), generation=1, sequence=1, position=64, time_us=1, epoch=1)
        return b"".join(parts)


def fill(journal: Journal, source: Source, batches: int, *, sync: bool = True) -> None:
    """Commit so many batches, one after the other."""
    for _ in range(batches):
        journal.commit([source.rows()], sync=sync)


# --- batches, each synced ---


def synced(session: Session) -> Iterator[Answer]:
    """Each batch on the disk before the next one begins."""
    batches = session.work(200)
    source = Source()
    raw = RawFile(session.place("raw") / "file", source)
    with Journal(session.place("fresh")) as journal:
        outcome = contest(
            [
                lambda: rate(lambda: fill(journal, source, batches), batches * BATCH),
                lambda: raw.rate(batches),
            ],
            session.rounds,
        )
        _expect_same_bytes(journal, raw)
    yield Answer(
        name="synced", question="batches of 1000, each synced", unit="messages/s",
        ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(),
        against="raw write + fdatasync", target=0.6,
        how=f"{outcome.how} of {batches} batches, both into files that grow; raw writes the same bytes",
    )  # fmt: skip


def recycled(session: Session) -> Iterator[Answer]:
    """The steady state: files are used again, so neither their size nor their extents change."""
    batches = session.work(200)
    source = Source()
    segment_bytes = session.work(128 << 20)
    over = RawFile(session.place("over") / "file", source, prewritten_bytes=segment_bytes * 2)
    raw = RawFile(session.place("raw") / "file", source)
    with Journal(session.place("recycled"), segment_bytes=segment_bytes) as journal:
        _wear_in(journal, source)
        outcome = contest(
            [
                lambda: rate(lambda: fill(journal, source, batches), batches * BATCH),
                lambda: raw.rate(batches),
                lambda: over.rate(batches),
            ],
            session.rounds,
        )
        if not journal.segments()[-1].label.recycled:
            raise RuntimeError("the journal ran out of recycled segments")
    for number, name, question, against, target in (
        (1, "recycled", "the same, on recycled segments", "raw write + fdatasync", 0.6),
        (2, "recycled-over", "… beside overwriting a file", "raw overwrite + fdatasync", None),
    ):
        yield Answer(
            name=name, question=question, unit="messages/s",
            ours=outcome.ours, baseline=outcome.baseline(number), ratio=outcome.ratio(number),
            against=against, target=target,
            how=f"{outcome.how} of {batches} batches; raw writes the same bytes",
        )  # fmt: skip


def _wear_in(journal: Journal, source: Source) -> None:
    """Write segments, have them cleaned, and go on until the journal writes into a used file."""
    batches = journal.segment_bytes // (BATCH * PAYLOAD_BYTES) + 1  # fill at least one segment
    fill(journal, source, 3 * batches, sync=False)
    for _ in range(2):  # the cleaner goes by the older of two snapshots, each of its own sequence number
        fill(journal, source, 1, sync=False)
        journal.snapshot(b"")
    cleaner.clean(journal, lambda _log, first, last: [cleaner.DeadRange(first, last, 0)])
    if not journal.stats().free_segments:
        raise RuntimeError("the cleaner left no segment to be recycled")
    active = journal.segments()[-1].number
    for _ in range(batches):
        if journal.segments()[-1].number == active:
            fill(journal, source, 1, sync=False)
    journal.sync()


class RawFile:
    """The limit: the journal's own bytes, by `os.write` and `os.fdatasync` and nothing else."""

    def __init__(self, path: Path, source: Source, prewritten_bytes: int = 0) -> None:
        frames = source.frames()
        self.frame_bytes = len(frames[0])
        self._frames = cycle(frames)
        self._bound = prewritten_bytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while os.lseek(self._fd, 0, os.SEEK_CUR) < prewritten_bytes:
            os.write(self._fd, next(self._frames))
        os.fdatasync(self._fd)
        if prewritten_bytes:
            os.lseek(self._fd, 0, os.SEEK_SET)

    def rate(self, batches: int) -> float:
        """Messages per second, written and synced batch by batch."""
        if self._bound and os.lseek(self._fd, 0, os.SEEK_CUR) + batches * self.frame_bytes > self._bound:
            os.lseek(self._fd, 0, os.SEEK_SET)
        return rate(lambda: self._write(batches), batches * BATCH)

    def _write(self, batches: int) -> None:
        fd = self._fd
        for _ in range(batches):
            os.write(fd, next(self._frames))
            os.fdatasync(fd)


def _expect_same_bytes(journal: Journal, raw: RawFile) -> None:
    lengths = {f.header.bytes for f in journal.frames() if f.header.messages}
    if journal.damage:
        raise RuntimeError(f"the journal calls damaged what was just written: {journal.damage}")
    if lengths != {raw.frame_bytes}:
        raise RuntimeError(f"the baseline writes {raw.frame_bytes} bytes a batch, the journal {lengths}")


# --- batches, not synced ---


def unsynced(session: Session) -> Iterator[Answer]:
    """The journal's own work, without the disk: against what one would write by hand.

    Every turn begins with new files, in the memory that the last ones gave back. A virtual machine may have to ask its host for
    each page that it never used, which takes ten times as long as writing it and has nothing to do with who writes.
    """
    batches = session.work(1400)  # more than a segment: rotating is part of it
    fewer = batches // 4
    source = Source()
    ours, theirs = session.place("os"), session.place("records")

    def journal() -> float:
        _empty(ours)
        with Journal(ours, durability="os") as opened:
            return rate(lambda: fill(opened, source, batches), batches * BATCH)

    def byhand(checksum: Checksum, way: str, batches: int) -> float:
        _empty(theirs)
        with Records(theirs / "file", source.pool, checksum) as records:
            return rate(lambda: records.write(batches, getattr(records, way)), batches * BATCH)

    outcome = contest(
        [
            journal,
            lambda: byhand(crc32, "in_one", batches),
            lambda: byhand(crc32, "in_one_with_facts", batches),
            lambda: byhand(crc32, "one_by_one", fewer),
            lambda: byhand(crc32, "by_function", fewer),
            lambda: byhand(zlib.crc32, "by_function", fewer),
        ],
        session.rounds,
    )
    for number, name, target, against, question, record in (
        (4, "unsynced", 6.0, "a record per message, one write a batch", "batches of 1000, not synced", WHOLE),
        (5, "unsynced-zlib", None, "the same records, with Python's own crc32", "… beside such records with zlib's checksum", WHOLE),
        (2, "unsynced-inlined", None, "the same records, inlined", "… beside records made in one loop", WHOLE),
        (1, "unsynced-bare", None, "records of length, crc32, payload", "… beside records that hold nothing else", BARE),
        (3, "unsynced-each", None, "records, one write each", "… beside a write for each record", BARE),
    ):  # fmt: skip
        yield Answer(
            name=name, question=question, unit="messages/s",
            ours=outcome.ours, baseline=outcome.baseline(number), ratio=outcome.ratio(number),
            against=against, target=target, how=f"{outcome.how} of {batches} batches; a record is {record}",
        )  # fmt: skip


def _empty(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


BARE: Final = "length, crc32 and payload: less than the journal's row holds"
WHOLE: Final = "length, crc32, all that a row of the journal can hold, and payload"


class Records:
    """One checksummed record for each message, as one would write it by hand."""

    HEAD: Final = struct.Struct("<II")
    # offset, id, timestamp, priority, due, expiry, and the lengths of key, dedup id and headers
    FACTS: Final = struct.Struct("<QQQHQQHHI")

    def __init__(self, path: Path, pool: list[list[bytes]], checksum: Checksum) -> None:
        self._turn = cycle(pool)
        self._crc32 = checksum
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def write(self, batches: int, way: Callable[[list[bytes]], None]) -> None:
        """So many batches, in one of the ways below."""
        for _ in range(batches):
            way(next(self._turn))
            self._id += BATCH

    def in_one(self, batch: list[bytes]) -> None:
        """The records of a batch in one write."""
        head, crc32 = self.HEAD.pack, self._crc32
        parts: list[bytes] = []
        add = parts.append
        for payload in batch:
            add(head(len(payload), crc32(payload)))
            add(payload)
        os.write(self._fd, b"".join(parts))

    def by_function(self, batch: list[bytes]) -> None:
        """As it is usually written: a function that encodes one message with all that it can have."""
        now = self._id
        os.write(
            self._fd,
            b"".join(
                [
                    self._record(n, n, now, 100, None, None, None, None, None, p)
                    for n, p in enumerate(batch, now)
                ]
            ),
        )

    def _record(
        self, offset: int, id_: int, timestamp: int, priority: int, due: int | None, expiry: int | None, key: str | None,
        dedup_id: str | None, headers: dict[str, str] | None, payload: bytes,
    ) -> bytes:  # fmt: skip
        name = key.encode() if key else b""
        unique = dedup_id.encode() if dedup_id else b""
        extra = b"\0".join(f"{k}={v}".encode() for k, v in headers.items()) if headers else b""
        facts = self.FACTS.pack(
            offset, id_, timestamp, priority, due or 0, expiry or 0, len(name), len(unique), len(extra)
        )
        record = facts + name + unique + extra + payload
        return self.HEAD.pack(len(record), self._crc32(record)) + record

    def in_one_with_facts(self, batch: list[bytes]) -> None:
        """The same, with what the journal keeps of a message beside its payload."""
        head, facts, crc32, now = self.HEAD.pack, self.FACTS.pack, self._crc32, self._id
        parts: list[bytes] = []
        add = parts.append
        for number, payload in enumerate(batch, self._id):
            record = facts(number, number, now, 100, 0, 0, 0, 0, 0) + payload
            add(head(len(record), crc32(record)))
            add(record)
        os.write(self._fd, b"".join(parts))

    def one_by_one(self, batch: list[bytes]) -> None:
        """Each record in its own write."""
        head, crc32, fd, write = self.HEAD.pack, self._crc32, self._fd, os.write
        for payload in batch:
            write(fd, head(len(payload), crc32(payload)) + payload)


# --- opening and reading ---


def recovery(session: Session) -> Iterator[Answer]:
    """Open what a process that was killed left behind."""
    count = session.work(2_000_000)
    path = session.place("left") / "journal"
    child.last_report(leave_behind, path, count, 0)
    outcome = contest(
        [lambda: _recovery_rate(path, count), lambda: _checked_read_rate(path, count)], session.rounds
    )
    yield Answer(
        name="recovery", question="recovery, no snapshot", unit="messages/s",
        ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(),
        against="reading the files + crc32", judged="ours", target=5e6,
        how=f"{outcome.how}, {count:,} messages in batches of 1000, each after a kill, from opening to ready",
    )  # fmt: skip


def snapshot(session: Session) -> Iterator[Answer]:
    """A million messages, of which a snapshot covers 99 %."""
    count = session.work(1_000_000)
    path = session.place("left") / "journal"
    child.last_report(leave_behind, path, count, count // 100 * 99)
    seconds = [float(child.last_report(open_it, path)) for _ in range(session.rounds)]
    yield Answer(
        name="snapshot", question=f"opening {count:,} messages with a snapshot", unit="s",
        ours=median(seconds), judged="ours", wanted="at most", target=0.3,
        how=f"median of {len(seconds)} rounds, each after a kill; the snapshot covers 99 % of the messages",
    )  # fmt: skip


def leave_behind(send: Callable[[object], None], path: Path, count: int, snapshot_at: int) -> None:
    """In a child: write, and die without closing."""
    journal, source = Journal(path), Source()
    fill(journal, source, snapshot_at // BATCH, sync=False)
    if snapshot_at:
        journal.snapshot(b"")
    fill(journal, source, (count - snapshot_at) // BATCH, sync=False)
    journal.sync()
    send(count)
    child.crash()


def open_it(send: Callable[[object], None], path: Path) -> None:
    """In a child: how long opening takes; then die without closing."""
    started = time.perf_counter()
    journal = Journal(path)
    seconds = time.perf_counter() - started
    if journal.recovery.damage or not journal.next_offset(LOG):
        raise RuntimeError("recovery did not find what was written")
    send(seconds)
    child.crash()


def _recovery_rate(path: Path, count: int) -> float:
    return count / float(child.last_report(open_it, path))


def _checked_read_rate(path: Path, count: int) -> float:
    return rate(lambda: sum(_checked(file) for file in path.iterdir() if file.is_file()), count)


def _checked(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while part := file.read(4 << 20):
            crc = crc32(part, crc)
    return crc


def arrow(session: Session) -> Iterator[Answer]:
    """Every message as a row of an Arrow table, every column of it."""
    from penstock.journal.arrow import record_batch

    count = session.work(2_000_000)
    path = session.place("arrow")
    with Journal(path, durability="os") as journal:
        fill(journal, Source(), count // BATCH)
        journal.sync()

        def read() -> None:
            rows = sum(record_batch(s).num_rows for f in journal.frames() for s in f.sections)
            if rows != count:
                raise RuntimeError(f"{rows} rows came back of {count}")

        outcome = contest(
            [lambda: rate(read, count), lambda: _checked_read_rate(path, count)], session.rounds
        )
    yield Answer(
        name="arrow", question="reading into Arrow, all columns", unit="rows/s",
        ours=outcome.ours, baseline=outcome.baseline(), ratio=outcome.ratio(),
        against="reading the files + crc32", judged="ours", target=1e7,
        how=f"{outcome.how}, {count:,} messages in batches of 1000; every frame's checksum is checked",
    )  # fmt: skip


# --- many publishers ---


def concurrent(session: Session) -> Iterator[Answer]:
    """Publishers that each wait for their own message to be on the disk."""
    each = session.work(80)
    alone = session.work(1000)
    by_threads = session.work(3200)
    with Journal(session.place("concurrent")) as journal:
        people = Publishers(journal)
        outcome = contest(
            [
                lambda: rate(lambda: asyncio.run(people.loop(256, each)), 256 * each),
                lambda: rate(lambda: people.one(alone), alone),
                lambda: rate(lambda: people.threads(16, by_threads // 16), by_threads),
                lambda: rate(lambda: asyncio.run(people.loop(1, alone)), alone),
            ],
            session.rounds,
        )
    threads = outcome._replace(rates=[outcome.rates[2], outcome.rates[1]])
    for name, question, found, number, against, target in (
        ("asyncio", "256 asyncio publishers", outcome, 3, "one asyncio publisher", 25.0),
        ("asyncio-thread", "… beside one thread", outcome, 1, "one thread that waits", None),
        ("threads", "16 threads", threads, 1, "one thread that waits", 3.0),
    ):
        yield Answer(
            name=name, question=question, unit="commits/s",
            ours=found.ours, baseline=found.baseline(number), ratio=found.ratio(number),
            against=against, target=target,
            how=f"{found.how}; each publisher waits for each of its messages to be synced",
        )  # fmt: skip


class Publishers:
    """Publishers of single messages, in one journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._id = 0

    def _single(self) -> list[Rows]:
        self._id += 1
        return [messages(LOG, [b"%-*d" % (PAYLOAD_BYTES, self._id)], ids=self._id, timestamp=self._id)]

    def one(self, count: int) -> None:
        """One after the other, each waited for."""
        for _ in range(count):
            self._journal.commit(self._single())

    def threads(self, publishers: int, each: int) -> None:
        """So many threads, each waiting for its own."""
        people = [threading.Thread(target=self.one, args=(each,)) for _ in range(publishers)]
        for thread in people:
            thread.start()
        for thread in people:
            thread.join()

    async def loop(self, publishers: int, each: int) -> None:
        """So many tasks, each awaiting its own."""
        await asyncio.gather(*(self._task(each) for _ in range(publishers)))

    async def _task(self, count: int) -> None:
        for _ in range(count):
            await self._journal.submit(self._single())


# --- memory ---


def memory(session: Session) -> Iterator[Answer]:
    """What ten million messages in batches cost in memory."""
    count = session.work(10_000_000)
    taken = _samples(session, count, BATCH)
    early, late = taken[count // 10]["resident"] / MB, taken[count]["resident"] / MB
    highest = taken[count]["highest"] / MB
    yield Answer(
        name="memory", question=f"growth of memory over {count:,} messages", unit="MB",
        ours=max(0.0, late - early), judged="ours", wanted="at most", target=10,
        how=f"resident {early:.1f} MB after {count // 10:,}, {late:.1f} MB after {count:,}, highest {highest:.1f} MB; "
        "in a process of its own, one run",
    )  # fmt: skip
    yield _index_answer("index-batches", f"index of {count:,} messages in batches", taken, count)


def singles(session: Session) -> Iterator[Answer]:
    """The same one by one: this takes minutes."""
    count = session.work(10_000_000)
    yield _index_answer("singles", f"index of {count:,} single messages", _samples(session, count, 1), count)


def _index_answer(name: str, question: str, taken: dict[int, Sample], count: int) -> Answer:
    early, late = taken[count // 10], taken[count]
    return Answer(
        name=name, question=question, unit="MB",
        ours=late["index"] / MB, judged="ours", wanted="at most", target=50,
        how=f"sum of sys.getsizeof over the index's arrays in {late['segments']:.0f} segments; resident memory grew by "
        f"{(late['resident'] - early['resident']) / MB:.1f} MB from {count // 10:,} messages on; one run, "
        f"{late['rate']:,.0f} messages/s",
    )  # fmt: skip


Sample = dict[str, float]


def _samples(session: Session, count: int, size: int) -> dict[int, Sample]:
    """Samples of a child that writes, by the number of messages written."""
    taken: dict[int, Sample] = {}
    path = session.place(f"memory-{size}")
    with session.progress(f"{count:,} messages, {size} a commit", count) as advance:
        for written, sample in child.reports(write_and_sample, path, count, size):
            taken[written] = sample
            advance(written)
    return taken


def write_and_sample(send: Callable[[object], None], path: Path, count: int, size: int) -> None:
    """In a child: write `count` messages, `size` a commit, looking at memory twenty times."""
    highest = 0
    started = time.perf_counter()
    with Journal(path, durability="os") as journal:
        for first in range(0, count, size):
            batch = payloads(first // size, size)
            journal.commit([messages(LOG, batch, ids=range(first, first + size), timestamp=first)])
            written = first + size
            if written % (count // 20) == 0:
                highest = max(highest, child.resident_bytes())
                send((written, _sample(journal, highest, written / (time.perf_counter() - started))))


def _sample(journal: Journal, highest: int, speed: float) -> Sample:
    infos = journal.segments()
    return {
        "resident": child.resident_bytes(),
        "highest": highest,
        "index": sum(_index_bytes(info.index) for info in infos),
        "segments": len(infos),
        "rate": speed,
    }


def _index_bytes(index: Any) -> int:
    """An index with its arrays and dictionaries."""
    own = [index, index.logs, index.kinds, index.sequences, index.positions]
    for log in index.logs.values():
        own += [log, log.offsets, log.positions, log.peaks]
    return sum(map(sys.getsizeof, own))


QUESTIONS: Final[dict[str, Question]] = {
    "synced": synced,
    "recycled": recycled,
    "unsynced": unsynced,
    "recovery": recovery,
    "snapshot": snapshot,
    "arrow": arrow,
    "concurrent": concurrent,
    "memory": memory,
    "singles": singles,
}

if __name__ == "__main__":
    sys.exit(main("journal", "Penstock's journal, 100-byte messages", QUESTIONS))
