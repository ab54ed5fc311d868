"""A tour of the queues: publish, work, fail, look at the dead letters, try them again, restart.

    python examples/tour.py

Everything happens in a temporary directory, which is gone afterwards. It takes about a second and needs nothing but
Penstock. `journal_tour.py` shows the floor below: what happens to bytes, crashes and damage.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import penstock

# A worker says in its log what its handler raised. Here it raises on purpose, and the tour says so itself.
logging.getLogger("penstock.worker").setLevel(logging.CRITICAL)


def stop(title: str) -> None:
    print(f"\n{title}")


def say(text: str) -> None:
    print(f"  {text}")


# --- putting in, taking out ---


def publish(orders: penstock.Queue) -> None:
    stop("Publish: when it returns, the message is on the disk")
    orders.publish(b"a valve", key="customer-7", headers={"type": "order"})
    orders.publish_many([b"a pipe", b"a broken wheel", b"a hose"])
    orders.publish(b"a fire pump", priority=0)  # lower goes first; 100 is the default
    orders.publish(b"a reminder", delay=3600)
    orders.publish(b"a tap", dedup_id="order-4711")
    orders.publish(b"a tap", dedup_id="order-4711")  # the producer was not sure, and did it again
    found = orders.stats()
    say(f"ready: {found.ready}, delayed: {found.delayed}; the repeated order is there once")


def take_one(orders: penstock.Queue) -> None:
    stop("Receive: a message is hidden from others until it is settled, or its time is over")
    delivery = orders.receive()
    if delivery is not None:
        say(f"{delivery.payload.decode()!r} comes first, with priority {delivery.priority}")
        say(f"next for anybody else: {orders.peek()[0].payload.decode()!r}")
        delivery.ack()
        say("acknowledged: it never comes again")


# --- working ---


def work(orders: penstock.Queue) -> None:
    stop("Work: a handler that returns acknowledges, one that raises has it tried again")

    def handle(delivery: penstock.Delivery) -> None:
        what = delivery.payload.decode()
        if "broken" in what:
            say(f"attempt {delivery.attempt}: {what!r} fails")
            if delivery.attempt == orders.policy.max_attempts:
                worker.stop()
            raise ValueError("no such part")
        say(f"attempt {delivery.attempt}: {what!r} is done")

    worker = penstock.Worker(orders, handle)
    worker.run()
    say(f"acknowledged: {worker.processed}, failed attempts: {worker.failed}")


def bury_and_redrive(orders: penstock.Queue) -> None:
    stop("Dead letters: what failed for good is kept, and says why")
    for message in orders.dead_letters().peek(10):
        headers = message.headers
        why = f"{headers['x-reason']} after {headers['x-attempts']} attempts, {headers['x-error']}"
        say(f"{message.payload.decode()!r}: {why}")
    stop("Redrive: once the cause is mended, those that match get another chance")
    moved = orders.dead_letters().redrive(where="x-error LIKE '%no such part%'")
    say(f"moved back: {moved}")
    say(f"dead: {orders.stats().dead}, ready: {orders.stats().ready}")


# --- stopping and starting ---


def be_killed(directory: Path) -> None:
    """What the process that `restart` starts does: it takes a message, and never comes back."""
    orders = penstock.open(directory).queue("orders")
    delivery = orders.receive()
    if delivery is not None:
        print(
            f"another process took {delivery.payload.decode()!r}, and is killed with it in hand", flush=True
        )

    os.kill(os.getpid(), signal.SIGKILL)


def restart(directory: Path) -> None:
    stop("Restart: after kill -9 everything is there, in its place, and the attempt was counted")
    killed = subprocess.run(
        [sys.executable, __file__, "be-killed", str(directory)], check=False, capture_output=True, text=True
    )
    say(killed.stdout.strip())
    with penstock.open(directory) as broker:
        orders = broker.queue("orders")  # its policy is stored with it
        delivery = orders.receive()
        if delivery is not None:
            say(f"{delivery.payload.decode()!r} is back, attempt {delivery.attempt}")
            delivery.ack()
        found = orders.stats()
        say(f"left: {found.depth}, of which delayed: {found.delayed}")


def tour(directory: Path) -> None:
    stop("Open a directory: a queue inside this process, no server")
    with penstock.open(directory) as broker:
        orders = broker.queue("orders", max_attempts=2, backoff=penstock.Backoff(initial=0.1))
        say(f"{orders} tries each message {orders.policy.max_attempts} times")
        publish(orders)
        take_one(orders)
        work(orders)
        bury_and_redrive(orders)
    restart(directory)
    stop("Where to look next")
    say("docs/tutorial/first-queue.md      the same, step by step, by your own hand")
    say("docs/reference/queues.md          every method, setting and error, and what is promised")
    say("python examples/journal_tour.py   the journal below: crash, damage, cleaning")


def main() -> None:
    if sys.argv[1:2] == ["be-killed"]:
        be_killed(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-tour-") as place:
        tour(Path(place) / "data")


if __name__ == "__main__":
    main()
