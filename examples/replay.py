"""Replay: a log keeps what was consumed for a time, and readers and groups go back in it.

python examples/replay.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import penstock


def payloads(messages: list[penstock.Message]) -> str:
    return ", ".join(message.payload.decode() for message in messages) or "nothing"


def consume(directory: Path) -> None:
    """The first process: everything is published, and done."""
    with penstock.open(directory) as broker:
        # Without retention a message is gone once every group has settled it. Here it stays for a day.
        orders = broker.queue("orders", retain_seconds=24 * 3600)
        orders.publish_many([b"order 1", b"order 2", b"order 3", b"order 4"])
        orders.ack_many(orders.receive_many(10))
        print(f"waiting: {orders.depth()}")

        # A reader has its own position, and takes nothing away from anybody.
        reader = orders.reader("statistics")
        print(f"read: {payloads(reader.read_many(3))}; behind by {reader.lag()}")
        reader.commit()  # the next process goes on here


def read_again(directory: Path) -> None:
    """The second process: it goes on, and goes back."""
    with penstock.open(directory) as broker:
        orders = broker.queue("orders")
        reader = orders.reader("statistics")
        print(f"goes on at {reader.position()}: {payloads(reader.read_many(10))}")

        reader.seek(offset=1)  # or timestamp=, or message_id=
        print(f"from offset 1: {payloads(reader.read_many(10))}")
        reader.reset()
        print(f"from the start: {payloads(reader.read_many(10))}")
        try:
            reader.seek(message_id=4711)
        except penstock.InvalidArgument as error:
            print(f"refused: {str(error).partition(':')[0]}")

        # A reader only looks. To have messages worked on again, with leases and retries, send a group back.
        group = orders.group("default")
        group.seek(offset=2)
        for delivery in orders.receive_many(10):
            print(f"works again on {delivery.payload.decode()}, attempt {delivery.attempt}")
            delivery.ack()


def follow(directory: Path) -> None:
    """The third process: it follows what is published, and is waited for."""
    with penstock.open(directory) as broker:
        orders = broker.queue("orders")
        # What is behind the committed position of such a reader is kept, whatever the retention says.
        follower = orders.reader("archive", start="latest", hold=True)
        orders.publish_many([b"order 5", b"order 6"])
        for message in follower:  # it would wait for more, for ever
            print(f"follows: {message.payload.decode()}")
            if not follower.lag():
                break
        print(f"committed: {follower.commit()}, missed: {follower.missed}")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "data"
        consume(directory)
        read_again(directory)
        follow(directory)


if __name__ == "__main__":
    main()
