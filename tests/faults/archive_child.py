"""A driver of Spark that archives a directory, compacts, and replays the archive, until it is killed: `python -m tests.faults.archive_child DIRECTORY ARCHIVE TARGET REPLAYS`.

It says what it begins and ends.
"""

from __future__ import annotations

import sys
from datetime import date

from penstock.pipeline import archive, replay
from tests.pipeline.conftest import started


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(directory: str, to: str, target: str, replays: str) -> None:
    spark = started()
    archive._today = lambda: date(9999, 1, 1)  # every day is over: all is compacted
    replay.CHUNK_ROWS = 100  # type: ignore[misc]
    say("begins")
    archive.archive(spark, directory, to, batch_rows=300)
    say("archived")
    for number in range(int(replays)):
        replay.replay(spark, to, f"again{number}", target, id=f"again{number}", where="offset < 300")
    say("ends")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
