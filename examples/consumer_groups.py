"""Consumer groups: every message is done once in each group, by whichever of its consumers is free.

python examples/consumer_groups.py
"""

from __future__ import annotations

import threading

import penstock

ORDERS = 12


def work(consumer: penstock.Consumer, done: list[str], enough: threading.Event) -> None:
    """A worker's thread. It ends when its consumer is closed."""
    for delivery in consumer:
        delivery.ack()
        done.append(delivery.payload.decode())
        if len(done) == ORDERS:
            enough.set()


def share(group: penstock.Group) -> list[str]:
    """Let three workers of a group do what there is; what they have done, together."""
    done: list[str] = []
    enough = threading.Event()
    consumers = [group.add_consumer(f"{group.name}-{number}") for number in (1, 2, 3)]
    threads = [threading.Thread(target=work, args=(consumer, done, enough)) for consumer in consumers]
    for thread in threads:
        thread.start()
    enough.wait(timeout=30)
    for consumer in consumers:
        consumer.close()  # whoever waits is woken, and what was not settled would go to the others
    for thread in threads:
        thread.join()
    return done


def main() -> None:
    with penstock.open() as broker:
        orders = broker.queue("orders")
        # Groups are made before anything is published. Otherwise there would also be one called "default", for those
        # who receive from the queue itself.
        shipping = orders.group("shipping")
        billing = orders.group("billing", strategy="least-busy")
        orders.publish_many([f"order {number}".encode() for number in range(ORDERS)])
        print(f"shipping: {shipping.lag()} to do, billing: {billing.lag()} to do")

        done = share(shipping)
        print(f"shipping did {len(done)} orders, {len(set(done))} different ones")
        print(f"shipping: {shipping.lag()} to do, billing: {billing.lag()} to do")

        # A consumer that goes gives back what it has; the next one gets it, in its old place.
        clumsy = billing.add_consumer("clumsy")
        dropped = clumsy.receive()
        if dropped is not None:
            print(f"clumsy has {dropped.payload.decode()}, and goes")
        clumsy.close()
        with billing.add_consumer("careful") as careful:
            for delivery in careful.receive_many(2):
                print(f"careful has {delivery.payload.decode()}, attempt {delivery.attempt}")

        done = share(billing)
        print(f"billing did {len(done)} orders, {len(set(done))} different ones")
        # Every group has settled everything, so nothing is kept any more.
        print(f"depth: {orders.depth()}")


if __name__ == "__main__":
    main()
