"""A queue on disk: what was published is still there after the process is gone.

    python examples/persistent.py

It uses a temporary directory, so that nothing is left behind. Give `penstock.open` a directory of your own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import penstock


def produce(directory: Path) -> None:
    """The first process: it publishes, and ends."""
    with penstock.open(directory) as broker:
        # The policy is stored with the queue. Whoever opens it later need not repeat it.
        orders = broker.queue("orders", visibility_timeout=60)
        # When this returns, the messages are on disk: a power cut does not take them away.
        orders.publish_many([b"order 1", b"order 2", b"order 3"])
        print(f"published {orders.depth()}")


def consume_and_die(directory: Path) -> None:
    """The second process: it finishes one message, and ends with another in hand."""
    with penstock.open(directory) as broker:
        orders = broker.queue("orders")
        finished = orders.receive()
        if finished is not None:
            print(f"finished {finished.payload.decode()}")
            finished.ack()  # when this returns, it is never delivered again
        unfinished = orders.receive()
        if unfinished is not None:
            print(f"began {unfinished.payload.decode()}, and stopped")


def consume_the_rest(directory: Path) -> None:
    """The third process: what was not finished comes back, in its old place."""
    with penstock.open(directory) as broker:
        orders = broker.queue("orders")
        for delivery in orders.receive_many(10):
            print(f"finished {delivery.payload.decode()}, attempt {delivery.attempt}")
            delivery.ack()
        print(f"left: {orders.depth()}, visibility timeout: {orders.policy.visibility_timeout:g} s")


def main() -> None:
    # One process at a time owns a directory. To share it between processes, run `penstock serve`.
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "data"
        produce(directory)
        consume_and_die(directory)
        consume_the_rest(directory)


if __name__ == "__main__":
    main()
