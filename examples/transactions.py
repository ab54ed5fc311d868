"""Transactions: take a message, publish what follows from it, all or nothing.

    python examples/transactions.py

It shows a step of a pipeline that may be killed at any moment: no input is lost, and no output is there twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import penstock


def price(payload: bytes) -> bytes:
    """Your own work. This one cannot cope with everything."""
    count, what = payload.decode().split()
    return f"{int(count) * 10} euros for {what}".encode()


def step(broker: penstock.Broker, delivery: penstock.Delivery) -> None:
    """Acknowledge an order and publish what follows from it, in one commit."""
    with broker.transaction() as tx:
        tx.ack(delivery)
        tx.publish("invoices", price(delivery.payload))
        tx.publish("shipments", delivery.payload)
        # Nothing has happened yet. It all happens when the block ends, or, if it raises, nothing does.


def be_killed(directory: Path) -> None:
    """What the process that `main` starts does: it is killed in the middle of its second order."""
    broker = penstock.open(directory)
    orders = broker.queue("orders")
    first, second = orders.receive_many(2)
    step(broker, first)
    with broker.transaction() as tx:
        tx.publish("invoices", price(second.payload))
        tx.ack(second)
        os.kill(os.getpid(), signal.SIGKILL)


def tell(broker: penstock.Broker) -> None:
    orders, invoices = broker.queue("orders"), broker.queue("invoices")
    shown = ", ".join(message.payload.decode() for message in invoices.peek(10))
    print(f"orders: {orders.depth()}, dead: {orders.stats().dead}, invoices: {shown}")


def finish(directory: Path) -> None:
    with penstock.open(directory) as broker:
        orders = broker.queue("orders")
        tell(broker)
        while (delivery := orders.receive()) is not None:
            print(f"{delivery.payload.decode()}, attempt {delivery.attempt}")
            try:
                step(broker, delivery)
            except ValueError as error:
                # Nothing of the step has happened. What becomes of the order is said in a transaction of its own.
                with broker.transaction() as tx:
                    tx.reject(delivery, error=error)
                    tx.publish("complaints", delivery.payload)
                print("  rejected, and a complaint made")
        tell(broker)

        # Whoever has lost his lease publishes nothing: the message is somebody else's.
        orders.publish(b"1 hose")
        slow = orders.receive()
        if slow is not None:
            slow.requeue()  # as if its time were over
            try:
                step(broker, slow)
            except penstock.LeaseLost:
                print("too late: nothing was published")
        tell(broker)


def main() -> None:
    if sys.argv[1:2] == ["be-killed"]:
        be_killed(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "data"
        with penstock.open(directory) as broker:
            broker.queue("orders").publish_many([b"2 valves", b"3 pipes", b"some pumps"])
        subprocess.run([sys.executable, __file__, "be-killed", str(directory)], check=False)
        finish(directory)


if __name__ == "__main__":
    main()
