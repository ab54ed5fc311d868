"""Urgent messages first: a lower number goes before a higher one.

python examples/priority.py
"""

from __future__ import annotations

import penstock

# 0 is the most urgent and 255 the least; a message that says nothing has 100. Name the few that you use.
ALARM, NORMAL, CLEAN_UP = 0, 100, 200


def main() -> None:
    with penstock.open() as broker:
        tasks = broker.queue("tasks")

        tasks.publish(b"sweep the floor", priority=CLEAN_UP)
        tasks.publish(b"answer a letter")  # NORMAL
        tasks.publish(b"pump out the cellar", priority=ALARM)
        # In a batch, `Message` says what the arguments of `publish` say.
        tasks.publish_many(
            [
                b"answer another letter",
                penstock.Message(b"call the fire brigade", priority=ALARM),
                penstock.Message(b"empty the bin", priority=CLEAN_UP),
            ]
        )

        # Looking takes nothing away.
        print(f"next: {tasks.peek()[0].payload.decode()}")

        # A consumer takes messages one after the other: by priority, and within one priority in the order of
        # publishing. What it did not finish goes back to its place when the block ends.
        with tasks.subscribe("worker-1") as worker:
            for delivery in worker:
                print(f"{delivery.priority:>3}  {delivery.payload.decode()}")
                delivery.ack()
                # A message that arrives now goes before everything that is less urgent.
                if delivery.payload == b"answer a letter":
                    tasks.publish(b"put out the fire", priority=ALARM)
                # A worker would go on for ever, waiting for more; this one stops when there is nothing left.
                if not tasks.depth():
                    break


if __name__ == "__main__":
    main()
