"""A tour of the journal: write, read, crash, damage, clean. Run it with `make run`.

Everything happens in a temporary directory, which is gone afterwards. Each stop prints what it does and what came out. It takes
about a second, and needs only `penstock[cli]`.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from penstock import checkup
from penstock.clock import SystemClock
from penstock.ids import SnowflakeIds
from penstock.journal import DeadRange, Journal, JournalReader, Rows, messages
from penstock.journal import clean as clean_journal
from penstock.journal.frame import Frame
from penstock.journal.kinds import METADATA

ORDERS, AUDIT = 1, 2
NAMES = {ORDERS: "orders", AUDIT: "audit"}
THREADS, EACH = 8, 25
ACKNOWLEDGED = 1  # an outcome is the caller's own number

# The journal says in its log what it finds damaged. Here it is damaged on purpose, and the tour says so itself.
logging.getLogger("penstock.journal").setLevel(logging.CRITICAL)

console = Console(highlight=False)
clock = SystemClock()
ids = SnowflakeIds(node=0, clock=clock)


def stop(title: str) -> None:
    console.print(f"\n[bold cyan]{title}[/]")


def say(text: str) -> None:
    console.print(Padding(text, (0, 0, 0, 2), expand=False))


# --- writing ---


def name_the_logs(journal: Journal) -> None:
    """A log is a number. Its name is a row like any other."""
    now = clock.now_us()
    journal.commit([Rows(METADATA, log, 1, {"action": 1, "name": NAMES[log], "time": now}) for log in NAMES])


def commit_a_batch(journal: Journal) -> None:
    stop("A commit is one frame: one write, one sync, all or nothing")
    orders = messages(
        ORDERS,
        [b'{"item": "valve"}', b'{"item": "pipe"}', b'{"item": "wheel"}'],
        ids=ids.take(3),
        timestamp=clock.now_us(),
        key=["customer-7", "customer-7", "customer-9"],
        headers=[{"type": "order"}, {"type": "order"}, {"type": "express"}],
    )
    audit = messages(
        AUDIT, orders, ids=ids.take(3), timestamp=clock.now_us()
    )  # the same payloads, stored once
    sequence = journal.commit([orders, audit])
    frame = next(islice(journal.frames(after=sequence - 1), 1))
    sizes = ", ".join(f"{NAMES[s.log]} {s.bytes} bytes" for s in frame.sections)
    say(
        f"commit {sequence}: 3 messages to each of two logs, {frame.header.bytes} bytes in segment {frame.segment}"
    )
    say(f"sections: {sizes}; the second one shares the payloads of the first")


def publish_from_threads(journal: Journal) -> None:
    stop(f"{THREADS} threads, each waiting for each of its own {EACH} messages to be on the disk")
    guard = threading.Lock()

    def publish() -> None:
        for number in range(EACH):
            with guard:  # ids are given by one thread at a time
                identity = ids.next()
            journal.commit(
                [messages(ORDERS, [b"single %d" % number], ids=identity, timestamp=clock.now_us())]
            )

    before = journal.stats().sequence
    people = [threading.Thread(target=publish) for _ in range(THREADS)]
    for thread in people:
        thread.start()
    for thread in people:
        thread.join()
    commits = journal.stats().sequence - before
    say(
        f"{THREADS * EACH} messages were durable after {commits} commits: whoever waits together is synced together"
    )


# --- reading ---


def read_by_offset_and_time(journal: Journal) -> None:
    stop("Reading: by offset, by time, in batches of columns")
    batch = next(journal.read(ORDERS, offset=1))
    table = Table("offset", "key", "headers", "payload")
    rows = zip(batch.offsets, *map(batch.values, ("key", "headers", "payload")), strict=True)
    for offset, key, headers, payload in rows:
        table.add_row(str(offset), key, str(headers), payload.decode())
    console.print(table)
    moment = clock.now_us()
    journal.commit([messages(ORDERS, [b"after the moment"], ids=ids.next(), timestamp=clock.now_us())])
    offset = journal.offset_at(ORDERS, moment)
    say(f"the first message that is not older than a moment ago has offset {offset}")


def read_from_another_process(path: Path) -> None:
    stop("Another process reads the live journal: no lock, up to the mark")
    answer = subprocess.run(
        [sys.executable, __file__, "read", str(path)], check=True, capture_output=True, text=True
    )
    say(answer.stdout.strip())


def be_the_other_process(path: Path) -> None:
    """What the process that `read_from_another_process` starts does."""
    reader = JournalReader(path)
    count = sum(len(batch) for batch in reader.read(ORDERS))
    sys.stdout.write(f"it sees {count} messages of the log 'orders', up to commit {reader.mark().sequence}\n")


# --- stopping and starting ---


def take_snapshots(journal: Journal) -> None:
    stop("Snapshots: two are kept, so that a damaged one costs time and nothing else")
    for number in (1, 2):
        journal.commit([messages(AUDIT, [b"audited"], ids=ids.next(), timestamp=clock.now_us())])
        sequence = journal.snapshot(b"whatever my state is, number %d" % number)
        say(f"the state after commit {sequence} is on the disk")
    journal.commit([messages(AUDIT, [b"after both"], ids=ids.next(), timestamp=clock.now_us())])


def reopen(path: Path) -> Journal:
    stop("Reopening: the newest snapshot is restored, what came after it is replayed")
    restored: list[bytes] = []
    replayed: list[Frame] = []
    journal = Journal(path, restore=restored.append, replay=replayed.append)
    report = journal.recovery
    say(f"end: {report.end}; restored {restored[0].decode()!r} of commit {report.snapshot}")
    say(
        f"replayed commits: {len(replayed)}, messages in them: {report.messages}; it took {report.seconds * 1000:.1f} ms"
    )
    say(f"epoch {journal.epoch}: the number of owners that the journal has had")
    return journal


def crash(journal: Journal, copy: Path) -> None:
    stop("A crash in the middle of a write (on a copy): a torn tail")
    journal.commit([messages(ORDERS, [b"never synced" * 10], ids=ids.next(), timestamp=0)], sync=False)
    end = journal.segments()[-1].end
    shutil.copytree(journal.directory.path, copy)
    with max(copy.glob("*.segment")).open("r+b") as file:
        file.truncate(end - 20)
    journal.sync()
    with Journal(copy) as reopened:
        report = reopened.recovery
        say(f"end: {report.end}; {report.cut[0]}")
        say(
            f"nobody was told that it is on the disk. It is cut off; a copy is in quarantine/{report.cut[0].copy}"
        )
        say(f"acknowledged messages lost: {reopened.stats().damaged_messages}")


def rot(path: Path, copy: Path) -> None:
    stop("A flipped bit (on a copy): rot")
    shutil.copytree(path, copy)
    frame = next(f for f in JournalReader(copy).frames() if f.header.messages)
    segment = copy / f"{frame.segment:020d}.segment"
    flip_bit(segment, byte=frame.header.end - 20)
    found = checkup.verify(copy)
    say("[bold]penstock journal verify[/] says:")
    for finding in found.damage:
        lost = ", ".join(f"{NAMES[log]} {first}–{last}" for log, first, last in finding.spans)
        say(f"  {finding.what} in {finding.file}, bytes {finding.position}–{finding.end}: {lost}")
    with Journal(copy) as journal:
        served = [offset for batch in journal.read(ORDERS) for offset in batch.offsets]
        say(f"opened all the same: {len(served)} messages of 'orders' are served, from offset {served[0]} on")
        say(
            f"{journal.stats().damaged_messages} messages count as damaged; their offsets are never used again"
        )


def flip_bit(path: Path, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ 1]))


# --- giving space back ---


def clean(journal: Journal) -> None:
    stop("Cleaning: what the caller says is dead goes, and that it went is recorded")
    before = journal.stats()
    done = clean_journal(journal, lambda _log, first, last: [DeadRange(first, last, ACKNOWLEDGED)])
    after = journal.stats()
    say(f"{done.segments_dropped} segment dropped, {done.messages} messages, {done.bytes} bytes")
    say(f"segments: {before.segments} before, {after.segments} after")
    for ranges in journal.state.cleaned[ORDERS][ACKNOWLEDGED]:
        say(f"on record as cleaned, not lost: offsets {ranges.start}–{ranges.stop - 1} of 'orders'")


def tour(place: Path) -> None:
    path = place / "journal"
    stop("Opening a directory")
    with Journal(path) as journal:
        say(
            f"a new journal, {journal.recovery.end}; files: {', '.join(sorted(file.name for file in path.iterdir()))}"
        )
        name_the_logs(journal)
        commit_a_batch(journal)
        publish_from_threads(journal)
        read_by_offset_and_time(journal)
        read_from_another_process(path)
        journal.rotate()  # seal the segment, as happens by itself every 128 MiB
        take_snapshots(journal)
    with reopen(path) as journal:
        crash(journal, place / "crashed")
    rot(path, place / "rotten")
    with Journal(path) as journal:
        clean(journal)
    stop("Where to look next")
    say("docs/tutorial/first-journal.md    the same, step by step, by your own hand")
    say("docs/internals/journal.md         how it works, and which test shows it")
    say("docs/reference/cli.md             penstock journal info|verify|repair|dump")
    say("make faults, make bench           what was tried against it; how fast it is")


def main() -> None:
    if sys.argv[1:2] == ["read"]:
        be_the_other_process(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-tour-") as place:
        tour(Path(place))


if __name__ == "__main__":
    main()
