"""A queue inside your process: publish, receive, acknowledge, fail, look at what failed.

    python examples/basic.py

It keeps everything in memory; `persistent.py` is the same on disk.
"""

from __future__ import annotations

import penstock


def handle(payload: bytes) -> None:
    """Your own work. This one cannot cope with everything."""
    if payload == b"order 3":
        raise ValueError("no such customer")
    print(f"handled {payload.decode()}")


def main() -> None:
    # Without a path a broker keeps everything in memory. It is closed when the block ends.
    with penstock.open() as broker:
        # A queue is made when it is first used. After two attempts a message has failed for good; without a backoff
        # it is tried again at once. (The default is three attempts, with a growing wait between them.)
        orders = broker.queue("orders", max_attempts=2, backoff=None)

        # A payload is bytes; headers say something about it. Each publish gives the new message's id.
        orders.publish(b"order 1", headers={"type": "order"})
        orders.publish_many([b"order 2", b"order 3"])
        print(f"waiting: {orders.depth()}")

        # Take one after the other. A message that was received is hidden from everybody else until it is settled, or
        # until its visibility timeout is over. `receive()` does not wait; `receive(timeout=10)` would, for 10 seconds.
        while (delivery := orders.receive()) is not None:
            try:
                handle(delivery.payload)
            except ValueError as error:
                print(f"failed {delivery.payload.decode()}, attempt {delivery.attempt}: {error}")
                delivery.nack(error=error)  # try again later, or give up after max_attempts
            else:
                delivery.ack()  # done: it is never delivered again

        # What failed for good is in the dead letters, with the reason in its headers.
        for message in orders.dead_letters().peek(10):
            print(f"dead: {message.payload.decode()} ({message.headers['x-reason']})")

        # Once the cause is mended, they get another chance.
        print(f"redriven: {orders.dead_letters().redrive()}")
        print(f"waiting: {orders.depth()}")


if __name__ == "__main__":
    main()
