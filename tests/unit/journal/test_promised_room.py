"""Room that a caller was promised is there when it appends, whatever the journal and others do meanwhile."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BatchTooLarge, DiskFull
from penstock.journal.journal import Journal
from penstock.journal.kinds import MESSAGES
from penstock.journal.rows import messages
from tests.unit.journal.watched import Watched


class Quota(Watched):
    """A disk with room for so many bytes in a directory."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.left: int | None = None

    def perform(self, operation: Any, *arguments: Any) -> Any:
        if operation is os.posix_fallocate and self.left is not None:
            fd, position, size = arguments
            grows = max(0, position + size - os.fstat(fd).st_size)
            if sum(file.stat().st_size for file in self.path.iterdir()) + grows > self.left:
                raise OSError(errno.ENOSPC, "full")
        return super().perform(operation, *arguments)


@pytest.mark.parametrize("between", ["nothing", "a rotation", "a snapshot", "what the cleaner records"])
def test_room_that_was_promised_goes_to_others_or_stays_with_the_last_segment(
    tmp_path: Path, between: str
) -> None:
    files = Quota(tmp_path)
    journal = Journal(tmp_path, durability="os", segment_bytes=1 << 16, files=files)
    large = messages(1, [b"x" * (3 << 20)], ids=1, timestamp=0)
    journal.commit([messages(1, [b"first"], ids=0, timestamp=0)])
    files.left = sum(file.stat().st_size for file in tmp_path.iterdir()) + (6 << 20)
    journal.require_room(MESSAGES, (3 << 20) + 1000)
    if between == "a rotation":
        journal.rotate()
    elif between == "a snapshot":
        journal.snapshot(b"s" * 1000)
    elif between == "what the cleaner records":
        for _ in range(3):
            with suppress(DiskFull):
                journal.commit([messages(2, [b"y" * (1 << 20)], ids=1, timestamp=0)])
    journal.append([large], promised=True).wait()
    journal.close()
    with Journal(tmp_path) as journal:
        assert [len(p) for batch in journal.read(1) for p in batch.values("payload")] == [5, 3 << 20]


def test_what_was_refused_room_is_promised_it(tmp_path: Path) -> None:
    with Journal(tmp_path, durability="os") as journal:
        with pytest.raises(BatchTooLarge):
            journal.require_room(MESSAGES, 1 << 30)
        assert journal._tail.promised == 0
