"""A broker that publishes, consumes, rotates and cleans, and then waits until it is killed: `python -m tests.pipeline.publisher DIR ROUND [DURABILITY]`.

What it says on its standard output was acknowledged: "<round>-<number>" for each batch of `BATCH` messages of the queue `orders`.
"""

from __future__ import annotations

import sys

import penstock
from penstock.journal.tail import Durability

BATCH = 100
BATCHES = 60


def main(path: str, life: str, durability: Durability = "commit") -> None:
    # What is sealed, and what is snapshot, is synced: where that is not promised, there is little of either.
    tidy = durability == "commit"
    with penstock.open(path, segment_bytes=1 << (16 if tidy else 22), durability=durability) as broker:
        orders = broker.queue("orders", retain_seconds=86_400)
        churn = broker.queue("churn")
        for number in range(BATCHES):
            orders.publish_many([b"%s-%d-%d" % (life.encode(), number, row) for row in range(BATCH)])
            print(f"{life}-{number}", flush=True)
            churn.publish_many([b"%d %d" % (number, row) for row in range(200)])
            churn.ack_many(churn.receive_many(200))
            orders.ack_many(orders.receive_many(BATCH))
            if tidy and number % 10 == 9:
                broker._port.monitor.upkeep.run()  # type: ignore[attr-defined]
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
