"""Publish and subscribe: every subscription gets every message, at its own pace, and misses none.

python examples/publish_subscribe.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import penstock


def take_all(consumer: penstock.Consumer) -> str:
    """What is waiting for a consumer, acknowledged. A service would iterate instead: `for delivery in consumer`."""
    found = consumer.receive_many(100)
    if found:
        consumer.ack_many(found)
    return ", ".join(delivery.payload.decode() for delivery in found) or "nothing"


def publish(directory: Path) -> None:
    """The first process: it makes the subscriptions, publishes, and ends."""
    with penstock.open(directory) as broker:
        events = broker.topic("events")
        # A subscription gets what is published after it began, so it is made first. These two are durable: they
        # are there until `unsubscribe`, whether anybody listens or not.
        events.subscribe("audit").close()
        europe = events.subscribe("europe", filter="region = 'eu'")
        # This one leaves nothing behind when it is closed, and needs no name.
        dashboard = events.subscribe(durable=False)
        print(f"subscriptions: {events.subscriber_count()}")

        # One write, however many subscriptions there are.
        events.publish(b"order 1", headers={"region": "eu"})
        events.publish(b"order 2", headers={"region": "us"})
        events.publish(b"order 3", headers={"region": "eu"})

        print(f"dashboard: {take_all(dashboard)}")
        print(f"europe: {take_all(europe)}")
        dashboard.close()


def catch_up(directory: Path) -> None:
    """The second process: who was not there has lost nothing."""
    with penstock.open(directory) as broker:
        events = broker.topic("events")
        print(f"subscriptions: {events.subscriber_count()}")
        print(f"audit is behind by {events.subscription('audit').lag()}")
        with events.subscribe("audit") as audit:
            print(f"audit: {take_all(audit)}")

        # A message that fails for one subscription fails for that one only, and goes back only to it.
        events.publish(b"order 4", headers={"region": "eu"})
        with events.subscribe("europe", filter="region = 'eu'") as europe:
            delivery = europe.receive()
            if delivery is not None:
                delivery.reject(error="no such customer")
            print(f"redriven: {events.redrive()}")
            print(f"europe: {take_all(europe)}")
        with events.subscribe("audit") as audit:
            print(f"audit: {take_all(audit)}")

        # One message to every queue and topic whose name matches.
        broker.queue("reports.eu")
        broker.queue("reports.us")
        print(f"routed to: {', '.join(sorted(broker.publish('reports.*', b'make the report')))}")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "data"
        publish(directory)
        catch_up(directory)


if __name__ == "__main__":
    main()
