"""Write the golden directories that `test_golden.py` opens: data as an earlier release wrote it.

Run once per release whose format is to be kept, with that release's source on the path:

    git worktree add ../old 8d71885
    PYTHONPATH=../old/src:. python tests/golden/make.py tests/golden

Each directory is written by a process of its own and packed into a `.tar.xz`. The files here were
written by commit 8d71885. Newer ones get a new name; these never change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import penstock
from penstock.clock import ManualClock
from penstock.journal.files import Files
from penstock.journal.kinds import MESSAGES
from penstock.journal.rows import Rows
from penstock.journal.spool import Manifest, Share, Spool
from penstock.limits import SEGMENT_BYTES_MIN

#: 2026-11-19, so that the test can open the copies at a known time.
NOW: Final = datetime(2026, 11, 19, tzinfo=UTC)
FAR: Final = datetime(2100, 1, 1, tzinfo=UTC)


def opened(path: Path) -> penstock.Broker:
    return penstock.open(
        path, clock=ManualClock(int(NOW.timestamp()) * 1_000_000), segment_bytes=SEGMENT_BYTES_MIN
    )


def fill_orders(broker: penstock.Broker) -> None:
    """Twenty orders; 0 is a dead letter, 2, 4, 6 and 8 are settled, 10 has failed once."""
    orders = broker.queue("orders", max_attempts=2, dedup_window=30 * 86_400)
    for number in range(20):
        orders.publish(
            b"order %d" % number,
            headers={"number": str(number)},
            key=f"customer-{number % 3}",
            priority=number % 2,
        )
    first = orders.receive()
    assert first is not None
    assert first.payload == b"order 0"
    first.reject(error="no such customer")
    for delivery in orders.receive_many(4):
        delivery.ack()
    tenth = orders.receive()
    assert tenth is not None
    assert tenth.payload == b"order 10"
    tenth.nack(delay=0, error="try again")
    orders.publish(b"far", deliver_at=FAR)
    orders.publish(b"once", dedup_id="d-1")


def fill_others(broker: penstock.Broker) -> None:
    events = broker.topic("events", retain_seconds=365 * 86_400)
    events.subscribe("audit", filter="kind = 'paid'").close()
    events.subscribe("all").close()
    for number in range(6):
        events.publish(b"event %d" % number, headers={"kind": "paid" if number % 2 else "made"})
    reader = events.reader("billing", hold=True)
    assert reader.read() is not None
    reader.commit()
    invoices = broker.queue("invoices")
    invoices.schedule("nightly", "0 2 * * *", b"close the books", timezone="Europe/Berlin")
    with broker.transaction() as unit:
        unit.publish("invoices", b"invoice 1")
        unit.publish("invoices", b"invoice 2")
    broker.queue("gone").publish(b"gone")
    broker.delete_queue("gone")
    broker.namespace("tenant").queue("orders").publish(b"a tenant's order")


def fill_log(broker: penstock.Broker) -> None:
    """Several segments: 300 messages, 100 of them settled."""
    log = broker.queue("log")
    for start in range(0, 300, 20):
        log.publish_many([b"%04d " % number + b"x" * 2000 for number in range(start, start + 20)])
    for delivery in log.receive_many(100):
        delivery.ack()


def write_closed(path: Path) -> None:
    with opened(path) as broker:
        fill_orders(broker)
        fill_others(broker)


def write_killed(path: Path) -> None:
    """Ten messages are leased when the process is killed."""
    broker = opened(path)
    fill_orders(broker)
    fill_others(broker)
    fill_log(broker)
    assert len(broker.queue("log").receive_many(10)) == 10
    broker.queue("invoices").publish(b"invoice 3")  # synced, and the leases with it
    os.kill(os.getpid(), signal.SIGKILL)


def write_snapshots(path: Path) -> None:
    """Opened and closed three times: two snapshots, and rows behind them."""
    with opened(path) as broker:
        fill_orders(broker)
    with opened(path) as broker:
        fill_others(broker)
    with opened(path) as broker:
        fill_log(broker)


def write_spool(path: Path) -> None:
    """A batch of a Spark query that its owner has not taken in."""
    with opened(path) as broker:
        fill_orders(broker)
    spool = Spool(Files(), path)
    spool.make()
    stager = spool.stage()
    payloads = [b"row 0", b"row 1", b"row 2"]
    columns = {"offset": range(3), "id": range(3), "timestamp": 0, "priority": 100, "payload": payloads}
    stager.add([Rows(MESSAGES, 0, 3, columns)])
    staged = stager.finish([Share("sunk", 3, 15, 5, True, None)])
    assert staged is not None
    assert spool.hand_in(Manifest("query:q", 7, "default", [staged]))


def write_damaged(path: Path) -> None:
    """One byte of the thirteenth segment is flipped."""
    with opened(path) as broker:
        fill_log(broker)
    segment = sorted(path.glob("*.segment"))[12]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0x10
    segment.write_bytes(content)


WRITERS: Final = {
    "closed": write_closed,
    "killed": write_killed,
    "snapshots": write_snapshots,
    "spool": write_spool,
    "damaged": write_damaged,
}


def main(target: Path) -> None:
    for name in WRITERS:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch, name)
            done = subprocess.run([sys.executable, __file__, "--write", name, directory], check=False)
            if done.returncode not in (0, -signal.SIGKILL):
                sys.exit(f"writing {name} ended with {done.returncode}")
            with tarfile.open(target / f"{name}.tar.xz", "w:xz") as packed:
                packed.add(directory, arcname=name, filter=anonymous)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        WRITERS[sys.argv[2]](Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]))
