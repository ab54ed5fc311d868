"""A process that reads a live journal from outside: no lock, no word with its owner.

Run as `python -m tests.faults.outside_reader DIRECTORY`. It follows the logs, and again and again reads everything from
the start, while segments rotate, are rewritten, dropped and recycled under it. It says "pass" after each time and "end" when it has
seen each log's last message; anything wrong ends it with an exception.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

from penstock.journal import mark as marks
from penstock.journal import reading
from penstock.journal.kinds import MESSAGES
from penstock.journal.view import DirectoryView

LOGS: Final = (1, 2)
END: Final = "end"


def payload(log: int, offset: int) -> bytes:
    """What a message holds: any other bytes are wrong."""
    seed = hashlib.sha256(b"%d %d" % (log, offset)).digest()
    return seed * (1 + seed[0] % 12)


def never_dead(offset: int) -> bool:
    """Messages that nobody ever says are dead. In every other hundred there are none, so that whole segments go."""
    return offset // 100 % 2 == 1 and offset % 7 == 0


class Follower:
    """Reads one log, a little further each time."""

    def __init__(self, view: DirectoryView, log: int) -> None:
        self._view = view
        self._log = log
        self.following = 0
        self.ended = False

    def read(self) -> None:
        self.following = self._read(self.following)

    def read_again(self) -> None:
        """From the start, at least as far as before."""
        reached = self._read(0)
        assert reached >= self.following, f"log {self._log} ended at {reached} after {self.following}"

    def _read(self, following: int) -> int:
        for batch in reading.batches(self._view, self._log, following):
            columns = (batch.values(name) for name in ("offset", "payload", "key"))
            for offset, found, key in zip(*columns, strict=True):
                assert offset >= following, f"log {self._log}: {offset} after {following - 1}"
                missed = [o for o in range(following, offset) if never_dead(o)]
                assert not missed, f"log {self._log}: {missed} are alive and were not seen"
                assert bytes(found) == payload(self._log, offset), (
                    f"log {self._log}: {offset} is not what was written"
                )
                following = offset + 1
                self.ended |= key == END
        return following


def read_frames(view: DirectoryView) -> None:
    """Every frame from the start: in order, and never above the mark."""
    last = 0
    for frame in reading.frames(view):
        assert frame.sequence > last, f"commit {frame.sequence} after {last}"
        last = frame.sequence
        mark = marks.read(view.directory.files, view.directory.mark)
        assert mark is None or frame.sequence <= mark.sequence, f"{frame.sequence} is above the mark {mark}"
        for section in frame.sections:
            if section.kind is MESSAGES:
                for offset, found in zip(section.values("offset"), section.values("payload"), strict=True):
                    assert bytes(found) == payload(section.log, offset)


def main(path: Path) -> None:
    view = DirectoryView(path)
    followers = [Follower(view, log) for log in LOGS]
    while not all(follower.ended for follower in followers):
        for follower in followers:
            follower.read()
            follower.read_again()
        read_frames(view)
        read_frames(DirectoryView(path))
        assert not view.damage, view.damage
        os.write(1, b"pass\n")
    os.write(1, b"end\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
