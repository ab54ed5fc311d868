"""A disk that is really full: a tmpfs of a few megabytes, and a limit on the size of files.

Publishing is refused with nothing changed, acknowledging goes on, and cleaning gives the space back.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from io import FileIO
from pathlib import Path

import pytest

from penstock import limits
from penstock.checkup.verify import verify
from penstock.errors import DiskFull, MaintenanceFailed
from penstock.journal import cleaner
from penstock.journal.cleaner import DeadRange
from penstock.journal.journal import Journal
from penstock.journal.kinds import SETTLEMENTS
from penstock.journal.rows import Rows, messages
from tests.faults.disk import Disk, SmallDisk
from tests.unit.journal.specimen import flip

ROOT = Path(__file__).parents[2]
SEGMENT_BYTES = 256 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path, 8) as disk:
        yield disk


def _payload(offset: int) -> bytes:
    return b"%d " % offset * 2000


def _open(disk: SmallDisk) -> Journal:
    return Journal(disk.path / "journal", segment_bytes=SEGMENT_BYTES)


def _publish(journal: Journal) -> None:
    offset = journal.next_offset(1)
    journal.commit([messages(1, [_payload(offset)], ids=offset, timestamp=0)])


def _publish_until_full(journal: Journal) -> int:
    """How many messages there are when the disk is full."""
    for _ in range(10_000):
        try:
            _publish(journal)
        except DiskFull:
            return journal.next_offset(1)
    raise AssertionError("the disk never got full")


def _settle(journal: Journal, offset: int) -> None:
    journal.commit([Rows(SETTLEMENTS, 1, 1, {"group": "default", "offset": offset, "outcome": 1, "time": 0})])


def _settled(journal: Journal) -> list[int]:
    return [
        offset
        for frame in journal.frames()
        for section in frame.sections
        if section.kind is SETTLEMENTS
        for offset in section.values("offset")
    ]


def _check_messages(journal: Journal, first: int, stop: int) -> None:
    found = [
        (offset, bytes(payload))
        for batch in journal.read(1)
        for offset, payload in zip(batch.offsets, batch.values("payload"), strict=True)
    ]
    assert found == [(offset, _payload(offset)) for offset in range(first, stop)]


def _write_for_ever(file: FileIO, size: int) -> None:
    while True:
        file.write(b"x" * size)


def _fill_the_rest(disk: SmallDisk) -> Path:
    """Somebody else takes every last byte."""
    filler = disk.path / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                _write_for_ever(file, size)
    return filler


def test_publishing_on_a_full_disk_changes_nothing(disk: SmallDisk) -> None:
    with _open(disk) as journal:
        count = _publish_until_full(journal)
        before = journal.stats()
        for _ in range(3):
            with pytest.raises(DiskFull):
                _publish(journal)
        after = journal.stats()
        assert (after.sequence, after.bytes, after.failure) == (before.sequence, before.bytes, None)
        assert journal.next_offset(1) == count
        _check_messages(journal, 0, count)


def test_acknowledging_goes_on_when_every_byte_is_taken(disk: SmallDisk) -> None:
    with _open(disk) as journal:
        count = _publish_until_full(journal)
        _fill_the_rest(disk)
        for offset in range(800):
            _settle(journal, offset)
        with pytest.raises(DiskFull):
            _publish(journal)
        assert _settled(journal) == list(range(800))
        _check_messages(journal, 0, count)


def test_a_full_disk_can_be_reopened_and_still_takes_acknowledgements(disk: SmallDisk) -> None:
    with _open(disk) as journal:
        count = _publish_until_full(journal)
        _fill_the_rest(disk)
        _settle(journal, 0)
    for offset in range(1, 40):
        with _open(disk) as journal:
            assert journal.recovery.end == "clean"
            _settle(journal, offset)
            if offset % 20 == 1:
                with pytest.raises(DiskFull):
                    _publish(journal)
    with _open(disk) as journal:
        assert _settled(journal) == list(range(40))
        _check_messages(journal, 0, count)


def test_a_full_disk_can_be_recovered_after_a_power_cut(disk: SmallDisk) -> None:
    with _open(disk) as journal:
        count = _publish_until_full(journal)
        mark = journal.directory.mark.read_bytes()
        _fill_the_rest(disk)
        for offset in range(50):
            _settle(journal, offset)
    journal.directory.mark.write_bytes(
        mark
    )  # it is not synced after each commit: this is what a power cut leaves
    with _open(disk) as journal:
        assert journal.recovery.rescued_frames == 50
        assert _settled(journal) == list(range(50))
        _settle(journal, 50)
        _check_messages(journal, 0, count)


@pytest.mark.parametrize(
    ("hurt", "gone"),
    [
        ("", False),
        ("1.summary", True),
        ("1.summary", False),
        ("2.segment", False),
        (".snapshot", False),
        ("lock", True),
    ],
)
def test_a_journal_with_something_to_mend_cannot_be_opened_on_a_full_disk(
    disk: SmallDisk, hurt: str, gone: bool
) -> None:
    """What cannot be written then is left out: a summary, a copy of what is damaged, a damaged snapshot's new place, the owner's name."""
    with _open(disk) as journal:
        for number in range(6):
            _publish(journal)
            if number == 2:
                journal.snapshot(b"state")
                journal.rotate()
    if hurt:
        file = max(path for path in (disk.path / "journal").iterdir() if path.name.endswith(hurt))
        if gone:
            file.unlink()
        else:
            flip(file, 8 * min(5000, file.stat().st_size // 2))
    left = [0, 1, 2, 3, 5] if hurt == "2.segment" else list(range(6))
    filler = _fill_the_rest(disk)
    for turn in range(3):
        with _open(disk) as journal:
            assert [offset for batch in journal.read(1) for offset in batch.offsets] == left
            assert journal.stats().damaged_messages == 6 - len(left)
            _settle(journal, turn)
            with pytest.raises(DiskFull) if turn < 2 else nullcontext():
                journal.commit([messages(2, [bytes(2 << 20)], ids=1, timestamp=0)])
        if turn == 1:
            filler.unlink()
    wrong = [finding.what for finding in verify(disk.path / "journal").damage]
    assert wrong == (["rot"] if hurt == "2.segment" else [])


def test_a_snapshot_that_does_not_fit_is_no_failure(disk: SmallDisk) -> None:
    with _open(disk) as journal:
        _publish_until_full(journal)
        _fill_the_rest(disk)
        with pytest.raises(MaintenanceFailed):
            journal.snapshot(b"x" * (1 << 20))
        assert journal._tail.held.active.room() >= limits.RESERVE_BYTES, "what it was lent of the reserve"
        _settle(journal, 0)
        assert journal.stats().failure is None


def test_the_cleaner_gives_space_back_on_a_full_disk(disk: SmallDisk) -> None:
    with _open(disk) as journal:
        count = _publish_until_full(journal)
        for offset in range(count):
            _settle(journal, offset)
        journal.snapshot(b"first", journal.stats().sequence - 1)
        journal.snapshot(b"second")
        _settle(journal, count)
        journal.snapshot(b"third")
        done = cleaner.clean(journal, lambda _log, first, last: [DeadRange(first, last, 1)])
        assert done.segments_dropped
        for _ in range(100):
            _publish(journal)
    with _open(disk) as journal:
        assert journal.recovery.end == "clean"
        assert journal.next_offset(1) == count + 100
        found = [offset for batch in journal.read(1) for offset in batch.offsets]
        assert found[-100:] == list(range(count, count + 100))


# --- a limit on the size of files gives real short writes ---

_WRITE_AGAINST_A_LIMIT = """
import json, resource, sys
from penstock import limits
from penstock.checkup.verify import verify
from penstock.errors import JournalFailed, MaintenanceFailed
from penstock.journal.journal import Journal
from penstock.journal.rows import messages

journal = Journal(sys.argv[1])
acknowledged, failures = 0, []

def publish():
    global acknowledged
    journal.commit([messages(1, [b"%d " % acknowledged * 500], ids=acknowledged, timestamp=0)])
    acknowledged += 1

publish()
# Room for some more frames and a half, though more was taken in advance.
limit = journal.segments()[-1].end + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    journal.snapshot(b"s" * (2 * limit))
except MaintenanceFailed as error:
    failures.append(["snapshot", error.__cause__.errno])
try:
    while True:
        publish()
except JournalFailed as error:
    failures.append(["commit", error.__cause__.errno])
try:
    publish()
except JournalFailed as error:
    failures.append(["afterwards", error.__cause__.errno])
journal.close()
print(json.dumps([acknowledged, limit, failures]))
"""


@pytest.mark.parametrize("room", [2000, 5000, 7777])
def test_a_write_that_the_system_cuts_short_fails_for_good_and_costs_nothing_acknowledged(
    tmp_path: Path, room: int
) -> None:
    path = tmp_path / "journal"
    command = [sys.executable, "-c", _WRITE_AGAINST_A_LIMIT, str(path), str(room)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    acknowledged, limit, failures = json.loads(answer.stdout)
    assert failures == [["snapshot", errno.EFBIG], ["commit", errno.EFBIG], ["afterwards", errno.EFBIG]]
    assert acknowledged > 1 or room == 2000
    with Journal(path) as journal:
        found = [bytes(payload) for batch in journal.read(1) for payload in batch.values("payload")]
        assert found == [b"%d " % n * 500 for n in range(acknowledged)]
        (torn,) = journal.recovery.cut
        assert torn.end >= limit or torn.position < limit
        assert not journal.recovery.damage
        assert os.path.exists(journal.directory.quarantine / (torn.copy or ""))


def test_a_step_that_fails_takes_what_is_left_of_the_disk(tmp_path: Path) -> None:
    """ext4 takes all there is before it says that it is not enough, and leaves it with the file. Then there is none for the next segment, nor for a snapshot."""
    with (
        Disk(tmp_path) as disk,
        Journal(disk.path / "journal", segment_bytes=24 << 20, durability="os") as journal,
    ):

        def publish() -> None:
            journal.commit([messages(1, [b"x" * (256 << 10)], ids=0, timestamp=0)])

        def publish_without_end() -> None:
            while True:
                publish()
                require_what_is_known()

        def require_what_is_known() -> None:
            active = journal._tail.held.active
            assert os.fstat(active.fd).st_size == active.allocated

        with pytest.raises(DiskFull):
            publish_without_end()
        require_what_is_known()
        assert len(journal.segments()) > 1
        for _ in range(2):
            journal.commit([Rows(SETTLEMENTS, 1, 1, {"group": "g", "offset": 0, "outcome": 1, "time": 0})])
            journal.snapshot(b"")
        dropped = cleaner.clean(journal, lambda _log, first, last: [DeadRange(first, last, 0)])
        assert dropped.bytes > 20 << 20
        publish()
