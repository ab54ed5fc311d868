"""Messages for later: after a delay, at a moment, or not at all once they are too old.

    python examples/delayed.py

It takes about two seconds, because it waits for real delays.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import penstock


def main() -> None:
    with penstock.open() as broker:
        reminders = broker.queue("reminders")
        reminders.publish(b"now")

        # In a while: a number is seconds, and a timedelta does as well.
        reminders.publish(b"after a second", delay=1)
        reminders.publish(b"after half a second", delay=timedelta(milliseconds=500))

        # At a moment. It must know its time zone. A moment in the past counts as now.
        reminders.publish(b"at a moment", deliver_at=datetime.now(UTC) + timedelta(seconds=1.2))

        # Only while it is worth something: nobody takes this one in time.
        offers = broker.queue("offers")
        offers.publish(b"today only", ttl=0.5)

        stats = reminders.stats()
        print(f"ready: {stats.ready}, delayed: {stats.delayed}")

        # `receive(timeout=10)` waits for at most ten seconds and wakes as soon as something is due. Messages come in
        # the order of their due times, never early.
        while (delivery := reminders.receive(timeout=10)) is not None:
            print(f"{delivery.payload.decode()}, attempt {delivery.attempt}")
            if delivery.payload == b"at a moment" and delivery.attempt == 1:
                # Not able to handle it now? Ask for it again in a while.
                delivery.nack(delay=0.3)
            else:
                delivery.ack()
            if not reminders.depth():
                break

        # By now the offer has expired, and an expired message is never delivered.
        print(f"offers: {offers.receive()}")


if __name__ == "__main__":
    main()
