"""The owner: group commit, durability, rotation, failure, the lock."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.broker.ledger import message_row
from penstock.checkup.verify import verify
from penstock.clock import ManualClock
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    DirectoryLocked,
    DiskFull,
    ForkedProcess,
    InvalidArgument,
    JournalFailed,
    MaintenanceFailed,
)
from penstock.journal.commit import Ticket
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED, LEASES, METADATA, SETTLEMENTS
from penstock.journal.reading import JournalReader
from penstock.journal.rows import Rows, messages
from penstock.journal.segment import Scan, decode_label
from penstock.journal.tail import Durability
from tests.conformance.background import interrupted_once
from tests.unit.journal.specimen import batch, content
from tests.unit.journal.watched import Before, Order, Watched, failing, nothing


def payloads(journal: Journal, log: int = 1) -> list[bytes]:
    return [bytes(p) for found in journal.read(log) for p in found.values("payload")]


def one(log: int, payload: bytes) -> Rows:
    return messages(log, [payload], ids=1, timestamp=1)


def ack(log: int, offset: int) -> Rows:
    return Rows(SETTLEMENTS, log, 1, {"group": "default", "offset": offset, "outcome": 1, "time": 1})


def fill_up(journal: Journal) -> None:
    for _ in range(3000):
        journal.commit([one(1, bytes(2000))], sync=False)


class Held:
    """Holds the leader inside its next sync until told to go on."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, name: str, arguments: tuple[object, ...]) -> None:
        if name == "fdatasync" and not self.inside.is_set():
            self.inside.set()
            self.go_on.wait()


@contextmanager
def somebody_leading(journal: Journal, files: Watched) -> Iterator[None]:
    """Within, somebody leads a commit, and is held inside its sync."""
    held = files.before = Held()
    leader = threading.Thread(target=lambda: journal.commit([one(1, b"leader")]))
    leader.start()
    held.inside.wait()
    try:
        yield
    finally:
        held.go_on.set()
        leader.join()


# --- committing ---


def test_a_commit_is_one_write_one_sync_and_the_mark(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        journal.commit([one(1, b"warm up")])
        files.calls.clear()
        journal.commit([batch(1, 0, 100), batch(2, 0, 100), ack(1, 0)])
        assert files.calls == ["pwrite", "fdatasync", "pwrite"]


def test_many_producers_share_one_write_and_one_sync(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        with somebody_leading(journal, files):
            tickets = [journal.append([one(1, b"%d" % n)]) for n in range(16)]
            files.calls.clear()
            waiting = [threading.Thread(target=ticket.wait) for ticket in tickets]
            for thread in waiting:
                thread.start()
        for thread in waiting:
            thread.join()
        assert len({ticket.sequence for ticket in tickets}) == 1
        assert files.calls.count("fdatasync") == 2  # the leader's own, and one for all sixteen
        assert payloads(journal) == [b"leader", *(b"%d" % n for n in range(16))]


def test_many_threads_lose_nothing_and_keep_their_own_order(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=1 << 16) as journal:

        def produce(name: int) -> None:
            for n in range(50):
                journal.commit([one(1, b"%d:%d" % (name, n))])

        threads = [threading.Thread(target=produce, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = payloads(journal)
    assert len(found) == 400
    for name in range(8):
        mine = [p for p in found if p.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, n) for n in range(50)]


def test_asyncio_never_writes_or_syncs_on_its_loop(tmp_path: Path) -> None:
    files = Watched()
    loops_thread = threading.get_ident()
    culprits: list[str] = []

    def note(name: str, arguments: tuple[object, ...]) -> None:
        if threading.get_ident() == loops_thread and name in ("pwrite", "fdatasync", "fsync"):
            culprits.append(name)

    async def publish_all(journal: Journal) -> list[int]:
        files.before = note
        return await asyncio.gather(*(journal.submit([one(1, b"%d" % n)]) for n in range(300)))

    with Journal(tmp_path, files=files) as journal:
        sequences = asyncio.run(publish_all(journal))
        files.before = nothing
        assert culprits == []
        assert payloads(journal) == [b"%d" % n for n in range(300)]
        assert len(set(sequences)) < 300
        assert sequences == sorted(sequences)


def test_a_cancelled_publisher_disturbs_nobody(tmp_path: Path) -> None:
    async def scenario(journal: Journal) -> None:
        futures = [journal.submit([one(1, b"%d" % n)]) for n in range(10)]
        futures[3].cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        assert [future.cancelled() for future in futures] == [n == 3 for n in range(10)]

    with Journal(tmp_path) as journal:
        asyncio.run(scenario(journal))
        assert payloads(journal) == [b"%d" % n for n in range(10)]


def test_threads_and_asyncio_share_commits(tmp_path: Path) -> None:
    async def scenario(journal: Journal) -> None:
        thread = threading.Thread(target=lambda: [journal.commit([one(2, b"t")]) for _ in range(100)])
        thread.start()
        for _ in range(20):
            await asyncio.gather(*(journal.submit([one(1, b"a")]) for _ in range(10)))
        await asyncio.to_thread(thread.join)

    with Journal(tmp_path) as journal:
        asyncio.run(scenario(journal))
        assert len(payloads(journal, 1)) == 200
        assert len(payloads(journal, 2)) == 100


@pytest.mark.parametrize(("durability", "syncs"), [("commit", 3), ("os", 0)])
def test_durability_decides_when_to_sync(tmp_path: Path, durability: Durability, syncs: int) -> None:
    files = Watched()
    with Journal(tmp_path, durability=durability, files=files) as journal:
        files.calls.clear()
        for n in range(3):
            journal.commit([one(1, b"%d" % n)])
        assert files.calls.count("fdatasync") == syncs
        assert journal.sync() == journal.stats().sequence == journal.durable_sequence
        assert files.calls.count("fdatasync") == max(syncs, 1)


def test_interval_syncs_by_itself_a_little_later(tmp_path: Path) -> None:
    files = Watched()
    synced = threading.Event()
    with Journal(tmp_path, durability="interval", commit_interval_ms=1, files=files) as journal:
        files.before = lambda name, arguments: synced.set() if name == "fdatasync" else None
        journal.commit([one(1, b"x")])
        assert synced.wait(30)


def test_os_syncs_by_itself_when_much_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_BEHIND_BYTES", 1000)
    files = Watched()
    synced = threading.Event()
    with Journal(tmp_path, durability="os", files=files) as journal:
        files.before = lambda name, arguments: synced.set() if name == "fdatasync" else None
        journal.commit([one(1, b"x")])
        assert not synced.is_set()
        journal.commit([one(1, bytes(1000))])
        assert synced.wait(30)


def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no thread left."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_without_a_thread_os_goes_on_and_syncs_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITE_BEHIND_BYTES", 1000)
    files = Watched()
    with Journal(tmp_path, durability="os", files=files) as journal:
        files.calls.clear()
        with monkeypatch.context() as meanwhile:
            without_threads(meanwhile)
            for _ in range(3):
                journal.commit([one(1, bytes(2000))])
        assert "fdatasync" not in files.calls
        synced = threading.Event()
        files.before = lambda name, arguments: synced.set() if name == "fdatasync" else None
        journal.commit([one(1, bytes(2000))])
        assert synced.wait(30), "a thread is not tried for again"
    with Journal(tmp_path) as journal:
        assert journal.stats().messages == 4


def test_without_a_thread_an_interval_is_refused_and_the_directory_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as meanwhile:
        without_threads(meanwhile)
        with pytest.raises(JournalFailed, match="can't start new thread"):
            Journal(tmp_path, durability="interval")
    Journal(tmp_path, durability="interval").close()


def test_without_a_thread_asyncio_hears_that_the_journal_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(journal: Journal) -> None:
        await journal.submit([one(1, b"x")])

    journal = Journal(tmp_path)
    with monkeypatch.context() as meanwhile:
        without_threads(meanwhile)
        with pytest.raises(JournalFailed, match="can't start new thread"):
            asyncio.run(publish(journal))
    journal.close()
    with Journal(tmp_path) as journal:
        journal.commit([one(1, b"y")])


def test_rows_that_need_not_be_synced_wait_for_no_sync(tmp_path: Path) -> None:
    files = Watched()
    lease = Rows(LEASES, 1, 1, {"group": "g", "offset": 0, "attempt": 1, "time": 0})
    with Journal(tmp_path, files=files) as journal:
        files.calls.clear()
        journal.commit([lease], sync=False)
        assert [call for call in files.calls if call != "posix_fallocate"] == ["pwrite"]
        assert journal.durable_sequence < journal.stats().sequence


def test_the_owner_reads_what_it_acknowledged_and_others_only_what_is_synced(tmp_path: Path) -> None:
    with Journal(tmp_path, durability="os") as journal:
        journal.commit([one(1, b"x")])
        assert payloads(journal) == [b"x"]
        assert list(JournalReader(tmp_path).read(1)) == []
        journal.sync()
        assert len(list(JournalReader(tmp_path).read(1))) == 1


def test_what_is_not_yet_acknowledged_is_not_read(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.commit([one(1, b"x")], sync=False)
        assert payloads(journal) == []
        journal.sync()
        assert payloads(journal) == [b"x"]


def test_deleting_still_works_on_a_full_disk(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        files.before = failing("posix_fallocate", errno.ENOSPC)
        with pytest.raises(DiskFull):
            fill_up(journal)
        journal.commit([Rows(METADATA, 1, 1, {"action": 3, "name": "gone", "time": 1})])


def test_a_snapshot_older_than_the_newest_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        early = journal.commit([one(1, b"x")])
        journal.commit([one(1, b"y")])
        journal.snapshot(b"new")
        with pytest.raises(InvalidArgument, match="older"):
            journal.snapshot(b"old", early)
        assert len(journal.stats().snapshots) == 1


def test_a_forked_child_is_refused_whatever_its_parent_was_waiting_for(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        with somebody_leading(journal, files):
            ticket = journal.append([one(1, b"queued")])
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    ticket.wait()
                except ForkedProcess:
                    journal.stats()
                    os._exit(7)
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        ticket.wait()
        assert payloads(journal) == [b"leader", b"queued"]


# --- what is refused, and changes nothing ---


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [one(1, b"ok"), messages(1, [b"x"], ids="no", timestamp=0)],  # type: ignore[arg-type]
        [one(1, b"ok"), messages(1, [b"x", "no"], ids=range(2), timestamp=0)],  # type: ignore[list-item]
        [messages(1, [b"x", b"y"], ids=range(3), timestamp=0)],
        [messages(1, [b"x", b"y"], ids=7, timestamp=0)],
        [messages(1, [b"x", None], ids=range(2), timestamp=0)],  # type: ignore[list-item]
        [messages(1, [b"x", b"y"], ids=[1, None], timestamp=0)],  # type: ignore[list-item]
        [messages(1, [b"x"], ids=[None], timestamp=0)],  # type: ignore[list-item]
        [messages(1, [b"x", b"y"], ids=range(2), timestamp=0, offset=5)],
        [messages(1, [b"x"], ids=1, timestamp=0, offset="no")],
        [messages(1, [b"x"], ids=1, timestamp=0, offset=1.5)],
        [one(1, b"ok"), Rows(SETTLEMENTS, 1, 1, {"group": "g", "offset": 1, "outcome": 1})],
        [Rows(SETTLEMENTS, 1, 2, {"group": "g", "offset": [1, None], "outcome": 1, "time": 1})],
        [Rows(LEASES, 1, 2, {"group": "g", "offset": [1, 2], "attempt": 1, "time": [None]})],
        [Rows(CLEANED, 1, 1, {"segment": -1, "time": 0})],
        [Rows(CLEANED, 1, 1, {"segment": 2**62, "time": 0})],
        [Rows(CLEANED, 1, 1, {"position": 5, "time": 0})],
        [one(1, b"ok"), messages(1, [b"x"], ids=1, timestamp=0, offset=0)],
        [messages(2, one(1, b"not in this append"), ids=1, timestamp=0)],
        [one(1, b"ok")] * 2,
        "rows",
        [1],
        one(1, b"not in a list"),
    ],
)
def test_bad_rows_are_refused_and_nothing_of_their_append_is_kept(tmp_path: Path, bad: Any) -> None:
    with Journal(tmp_path) as journal:
        before = journal.stats().sequence
        with pytest.raises(InvalidArgument):
            journal.commit(bad)
        assert journal.commit([one(1, b"next")]) == before + 1
        assert payloads(journal) == [b"next"]
        assert journal.next_offset(1) == 1


def test_an_append_above_the_bound_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        with pytest.raises(BatchTooLarge):
            journal.commit([messages(1, [bytes(limits.FRAME_BYTES_MAX)], ids=1, timestamp=0)])
        journal.commit([one(1, b"next")])
        assert payloads(journal) == [b"next"]


def test_what_waits_is_split_over_commits_when_it_is_too_much_for_one(tmp_path: Path) -> None:
    big = int(limits.FRAME_BYTES_MAX / 2.5)
    with Journal(tmp_path) as journal:
        tickets = [journal.append([one(1, bytes([n]) * big)]) for n in range(5)]
        tickets[-1].wait()
        assert [ticket.done for ticket in tickets] == [True] * 5
        assert [ticket.sequence - tickets[0].sequence for ticket in tickets] == [0, 0, 1, 1, 2]
        assert [p[:1] for p in payloads(journal)] == [bytes([n]) for n in range(5)]


@pytest.mark.parametrize(
    "settings",
    [{"durability": "maybe"}, {"commit_interval_ms": 0}, {"commit_interval_ms": 1e9}, {"segment_bytes": 10}],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Journal(tmp_path / "new", **settings)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("path", [None, 7, "a\0b", b"bytes", "a" * 300])
def test_what_is_no_path_is_refused(path: Any) -> None:
    for opening in (Journal, JournalReader, verify):
        with pytest.raises(InvalidArgument, match="directory"):
            opening(path)


def test_offsets_and_logs_below_zero_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for read in (journal.read, JournalReader(tmp_path).read):
            with pytest.raises(InvalidArgument, match="0 or more"):
                read(1, -1)
            with pytest.raises(InvalidArgument, match="0 or more"):
                read(-1)


def test_rows_are_appended_once_and_again_only_if_they_were_refused(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        rows = messages(1, [bytes(2000)], ids=1, timestamp=1)
        files.before = failing("posix_fallocate", errno.ENOSPC)
        with pytest.raises(DiskFull):
            fill_up(journal)
        with pytest.raises(DiskFull):
            journal.commit([rows])
        files.before = nothing
        journal.commit([one(1, b"in between")])
        journal.commit([rows])
        with pytest.raises(InvalidArgument, match="once"):
            journal.commit([rows])
        offsets = [offset for found in journal.read(1) for offset in found.offsets]
        assert offsets == list(range(journal.next_offset(1)))


@pytest.mark.parametrize(("log", "count"), [(2.0, 1), (True, 1), ("x", 1), (1, 1.0)])
def test_a_log_or_count_that_is_no_whole_number_is_refused(log: Any, count: Any) -> None:
    with pytest.raises(InvalidArgument):
        Rows(SETTLEMENTS, log, count, {"time": 0})


@pytest.mark.lengthy
def test_more_sections_than_a_frame_holds_are_refused_or_split_and_hurt_nobody(tmp_path: Path) -> None:
    with Journal(tmp_path, durability="os") as journal:
        with pytest.raises(BatchTooLarge):
            journal.commit([one(log, b"x") for log in range(limits.FRAME_SECTIONS_MAX + 1)])
        tickets = [journal.append([one(log, b"x")]) for log in range(limits.FRAME_SECTIONS_MAX + 10)]
        tickets[-1].wait()
        assert {ticket.error for ticket in tickets} == {None}


# --- rotation ---


def test_rotation_keeps_everything_and_recovery_reads_it_from_summaries(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=8192) as journal:
        for n in range(60):
            journal.commit([batch(n % 3, n, 4)])
        assert journal.stats().segments >= 3
        expected = {log: payloads(journal, log) for log in range(3)}
        read = [content(frame) for frame in journal.frames()]
    with Journal(tmp_path, segment_bytes=8192) as journal:
        assert journal.recovery.summaries_rebuilt == 0
        assert {log: payloads(journal, log) for log in range(3)} == expected
        assert [content(frame) for frame in journal.frames()][: len(read)] == read


def test_a_failing_summary_does_not_fail_the_journal(tmp_path: Path) -> None:
    files = Watched()
    files.before = failing("open", errno.EIO, path=".summary")
    with Journal(tmp_path, segment_bytes=4096, files=files) as journal:
        for n in range(40):
            journal.commit([batch(1, n, 4)])
        assert journal.stats().segments > 2
        assert len(payloads(journal)) == 160
    with Journal(tmp_path) as journal:
        assert journal.recovery.summaries_rebuilt > 1
        assert len(payloads(journal)) == 160


# --- failure ---


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
def test_an_error_on_writing_or_syncing_is_sticky_and_nothing_syncs_again(tmp_path: Path, name: str) -> None:
    files = Watched()
    journal = Journal(tmp_path, files=files)
    journal.commit([one(1, b"kept")])
    files.before = failing(name, errno.EIO, times=1)
    with pytest.raises(JournalFailed):
        journal.commit([one(1, b"indeterminate")])
    files.calls.clear()
    for _ in range(2):
        with pytest.raises(JournalFailed):
            journal.commit([one(1, b"refused")])
        with pytest.raises(JournalFailed):
            journal.sync()
    assert journal.stats().failure is not None
    journal.close()
    assert "fdatasync" not in files.calls
    assert "pwrite" not in files.calls
    with Journal(tmp_path) as journal:
        found = payloads(journal)
    assert found[0] == b"kept"
    assert set(found) <= {b"kept", b"indeterminate"}


def test_a_failed_sync_of_the_interval_thread_is_never_repeated_by_somebody_who_waits(tmp_path: Path) -> None:
    files = Watched()
    inside, go_on = threading.Event(), threading.Event()
    syncs: list[int] = []

    def fail_first(name: str, arguments: tuple[object, ...]) -> None:
        if name == "fdatasync":
            syncs.append(1)
            inside.set()
            go_on.wait()
            raise OSError(errno.EIO, "no")

    journal = Journal(tmp_path, durability="interval", commit_interval_ms=1, files=files)
    files.before = fail_first
    journal.commit([one(1, b"x")])
    inside.wait()
    outcome: list[BaseException] = []

    def sync() -> None:
        try:
            journal.sync()
        except JournalFailed as error:
            outcome.append(error)

    waiting = threading.Thread(target=sync)
    waiting.start()
    go_on.set()
    waiting.join()
    assert len(outcome) == 1
    assert len(syncs) == 1
    journal.close()
    assert len(syncs) == 1


def test_everybody_who_waits_fails_with_the_commit(tmp_path: Path) -> None:
    files = Watched()

    async def scenario(journal: Journal) -> list[BaseException | int]:
        files.before = failing("fdatasync", errno.EIO, times=1)
        return await asyncio.gather(
            *(journal.submit([one(1, b"x")]) for _ in range(20)), return_exceptions=True
        )

    journal = Journal(tmp_path, files=files)
    outcomes = asyncio.run(scenario(journal))
    assert all(isinstance(outcome, JournalFailed) for outcome in outcomes)
    journal.close()


def test_on_a_full_disk_publishing_is_refused_and_acknowledging_goes_on(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        journal.commit([one(1, b"kept")])
        files.before = failing("posix_fallocate", errno.ENOSPC)
        with pytest.raises(DiskFull, match="nothing was written"):
            fill_up(journal)
        before = journal.next_offset(1)
        with pytest.raises(DiskFull):
            journal.commit([one(1, bytes(2000))])
        assert journal.next_offset(1) == before
        for n in range(1000):
            journal.commit([ack(1, n)], sync=False)
        files.before = nothing
        journal.commit([one(1, b"room again")])
        assert payloads(journal)[-1] == b"room again"
        assert journal.stats().failure is None


def test_a_sparse_copy_has_its_reserve_on_the_disk_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "whole") as journal:
        journal.commit([one(1, b"x")])
    shutil.copytree(tmp_path / "whole", tmp_path / "sparse")
    path = tmp_path / "sparse" / f"{1:020d}.segment"
    size, data = path.stat().st_size, path.read_bytes().rstrip(b"\0")
    path.write_bytes(data)
    os.truncate(path, size)
    assert path.stat().st_blocks * 512 < limits.RESERVE_BYTES
    with Journal(tmp_path / "sparse"):
        assert path.stat().st_blocks * 512 >= limits.RESERVE_BYTES


def test_a_sparse_copy_on_a_full_disk_counts_on_nothing_that_is_not_there(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    files = Watched()
    files.before = failing("posix_fallocate", errno.ENOSPC)
    with Journal(tmp_path, files=files) as journal:
        with pytest.raises(DiskFull):
            journal.commit([one(1, b"x")])
        files.before = nothing
        journal.commit([one(1, b"x")])


@pytest.mark.parametrize("killed", [True, False])
def test_what_opening_writes_on_a_full_disk_is_cut_off_with_what_was_refused(
    tmp_path: Path, killed: bool
) -> None:
    with Journal(tmp_path / "a", durability="os") as journal:
        journal.commit([one(1, b"x")])
        if killed:
            shutil.copytree(tmp_path / "a", tmp_path / "b")
    if not killed:
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    files = Watched()

    def has_a_page_left(name: str, arguments: tuple[object, ...]) -> None:
        if name == "posix_fallocate" and arguments[-1] > 4096:  # type: ignore[operator]
            raise OSError(errno.ENOSPC, "full")

    files.before = has_a_page_left
    with Journal(tmp_path / "b", files=files) as journal:
        for _ in range(2):
            with pytest.raises(DiskFull):
                journal.commit([one(1, b"y")])
        assert verify(tmp_path / "b").damage == []
        assert journal._tail.held.active.room() >= 0
        files.before = nothing
        journal.commit([one(1, b"y")])
    assert verify(tmp_path / "b").damage == []
    with Journal(tmp_path / "b") as journal:
        assert (journal.recovery.end, journal.damage, journal.next_offset(1)) == ("clean", [], 2)
        assert payloads(journal) == [b"x", b"y"]


def test_a_full_disk_keeps_the_segment_instead_of_rotating(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, segment_bytes=4096, files=files) as journal:
        files.before = failing("posix_fallocate", errno.ENOSPC)
        for n in range(100):
            journal.commit([ack(1, n)])
        assert journal.stats().segments == 1
        assert list(tmp_path.glob("*.tmp")) == [], "a draft that was refused room keeps none"
        files.before = nothing
        journal.commit([ack(1, 100)])
        assert journal.stats().segments == 2


def test_a_failed_snapshot_is_not_the_journals_end(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        journal.commit([one(1, b"a")])
        files.before = failing("open", errno.ENOSPC, path=".snapshot")
        with pytest.raises(MaintenanceFailed):
            journal.snapshot(b"state")
        files.before = nothing
        journal.commit([one(1, b"b")])
        assert journal.snapshot(b"state") == journal.stats().sequence
        assert payloads(journal) == [b"a", b"b"]


def interrupting(name: str) -> Before:
    """Ctrl-C at the next call of that name."""
    fired: list[str] = []

    def before(called: str, arguments: tuple[object, ...]) -> None:
        if called == name and not fired:
            fired.append(called)
            raise KeyboardInterrupt

    return before


def test_ctrl_c_in_the_middle_of_a_commit_finishes_it_first(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        for name in ("pwrite", "fdatasync"):
            ticket = journal.append([one(1, name.encode())])
            files.before = interrupting(name)
            with pytest.raises(KeyboardInterrupt):
                ticket.wait()
            assert ticket.done
            assert ticket.error is None
        files.before = nothing
        journal.commit([one(1, b"after")])
        assert payloads(journal) == [b"pwrite", b"fdatasync", b"after"]


def test_a_thread_that_is_interrupted_while_it_waits_passes_the_lead_on(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        with somebody_leading(journal, files):
            mine = journal.append([one(1, b"interrupted")])
            with pytest.raises(KeyboardInterrupt), interrupted_once(lambda: mine._gate is not None):
                mine.wait()
        journal.commit([one(1, b"after")])
        assert payloads(journal) == [b"leader", b"interrupted", b"after"]


def test_several_threads_may_wait_for_one_ticket(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        with somebody_leading(journal, files):
            ticket = journal.append([one(1, b"shared")])
            waiting = [threading.Thread(target=ticket.wait) for _ in range(4)]
            for thread in waiting:
                thread.start()
            while ticket._gate is None:
                pass
        for thread in waiting:
            thread.join()
        assert payloads(journal) == [b"leader", b"shared"]


# --- owning ---


def test_a_second_owner_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    code = (
        "import sys; from penstock.journal.journal import Journal; from penstock.errors import DirectoryLocked\n"
        "try: Journal(sys.argv[1])\n"
        "except DirectoryLocked as error: print(error.holder, '|', error)"
    )
    with Journal(tmp_path):
        told = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout
        assert f"process {os.getpid()} on" in told
        assert "penstock serve" in told
        with pytest.raises(DirectoryLocked):
            Journal(tmp_path)
    Journal(tmp_path).close()


def test_the_lock_ends_with_its_owner_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    reading, writing = os.pipe()
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:  # the child: its copy must be useless, and must not keep the lock
        os.close(writing)
        os.write(begins, b"!")  # until it runs, it cannot let go of anything
        try:
            journal.append([one(1, b"from the child")])
            code = 1
        except ForkedProcess:
            code = 0
        os.read(reading, 1)
        os._exit(code)
    os.close(reading)
    os.close(begins)
    assert os.read(begun, 1) == b"!"
    os.close(begun)
    journal.commit([one(1, b"from the parent")])
    journal.close()
    with Journal(tmp_path) as again:
        assert payloads(again) == [b"from the parent"]
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_closed_journal_refuses_everything(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(BrokerClosed):
        journal.commit([one(1, b"x")])
    with pytest.raises(BrokerClosed):
        list(journal.read(1))


def test_two_threads_may_close_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    threads = [threading.Thread(target=journal.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Journal(tmp_path).close()


def test_closing_waits_for_whoever_tidies_and_nobody_tidies_a_closed_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    closing = threading.Thread(target=journal.close)
    with journal.tidying("a test"):
        closing.start()
        while not journal._closed:
            pass
        with pytest.raises(DirectoryLocked):
            Journal(tmp_path)
    closing.join()
    with pytest.raises(BrokerClosed), journal.tidying("too late"):
        pass


def test_closing_commits_what_is_queued(tmp_path: Path) -> None:
    journal = Journal(tmp_path, durability="os")
    journal.append([one(1, b"queued")])
    journal.close()
    with Journal(tmp_path) as journal:
        assert journal.recovery.end == "clean"
        assert payloads(journal) == [b"queued"]


def test_closing_under_load_leaves_nobody_waiting_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    for round_ in range(5):
        path = tmp_path / str(round_)
        journal = Journal(path, segment_bytes=4096)
        acknowledged: list[bytes] = []
        started = threading.Barrier(5)

        def produce(
            name: int,
            journal: Journal = journal,
            acknowledged: list[bytes] = acknowledged,
            started: threading.Barrier = started,
        ) -> None:
            started.wait()
            for n in range(10_000):
                payload = b"%d:%d" % (name, n)
                try:
                    journal.commit([one(1, payload)])
                except BrokerClosed:
                    return
                acknowledged.append(payload)

        threads = [threading.Thread(target=produce, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        while len(acknowledged) < 20:
            pass
        journal.close()
        for thread in threads:
            thread.join()
        with Journal(path) as journal:
            assert set(acknowledged) <= set(payloads(journal))


def test_closing_fails_the_futures_of_a_loop_that_still_publishes(tmp_path: Path) -> None:
    async def publish(journal: Journal, enough: threading.Event) -> int:
        done = 0
        try:
            while True:
                await journal.submit([one(1, b"x")])
                done += 1
                if done == 10:
                    enough.set()
        except BrokerClosed:
            return done

    journal = Journal(tmp_path)
    enough = threading.Event()

    def close_when_enough() -> int:
        enough.wait()
        journal.close()
        return 0

    async def scenario() -> list[int]:
        return await asyncio.gather(
            *(publish(journal, enough) for _ in range(8)), asyncio.to_thread(close_when_enough)
        )

    acknowledged = sum(asyncio.run(scenario()))
    with Journal(tmp_path) as again:
        assert len(payloads(again)) >= acknowledged


def test_every_owner_begins_a_new_epoch_even_if_it_writes_nothing(tmp_path: Path) -> None:
    epochs = []
    for _ in range(4):
        with Journal(tmp_path) as journal:
            epochs.append(journal.epoch)
    assert epochs == [1, 2, 3, 4]


def test_time_in_the_journal_never_goes_back_when_the_clock_does(tmp_path: Path) -> None:
    clock = ManualClock()
    with Journal(tmp_path, clock=clock) as journal:
        journal.commit([one(1, b"a")])
        clock.set_back(seconds=3600)
        journal.commit([one(1, b"b")])
        times = [frame.header.time_us for frame in journal.frames()]
    assert times == sorted(times)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal"
    with Journal(path, segment_bytes=4096) as journal:
        for n in range(40):
            journal.commit([batch(1, n, 4)])
        journal.snapshot(b"")
        for file in path.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_segment_gets_a_successor_only_once_its_seal_is_on_the_disk(tmp_path: Path) -> None:
    """The other way round, a crash in between would leave a segment with a successor and without a seal."""
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        journal.commit([one(1, b"a")])
        first = journal.directory.segment(1)
        order = Order()
        sealed: list[bool] = []

        def before(name: str, arguments: tuple[object, ...]) -> None:
            order(name, arguments)
            if name == "rename" and str(arguments[0]).endswith(".segment.tmp"):
                label = decode_label(first.read_bytes())
                assert label is not None
                with Files().opened(first) as fd:
                    scan = Scan(Files(), fd, label, limit=first.stat().st_size)
                    list(scan)
                sealed.append(
                    scan.sealed and order.last("fdatasync", first.name) > order.last("pwrite", first.name)
                )
                assert order.last("fdatasync", ".tmp") > order.last("pwrite", ".tmp") >= 0

        files.before = before
        journal.rotate()
        assert sealed == [True]
        files.before = nothing
        assert order.made[order.last("rename", ".segment.tmp") + 1] == ("fsync", tmp_path.name)


def test_a_journal_that_fails_while_it_rotates_is_synced_once_more(tmp_path: Path) -> None:
    files = Watched()
    journal = Journal(tmp_path, files=files)
    journal.commit([one(1, b"a")])
    synced: list[str] = []

    def before(name: str, arguments: tuple[object, ...]) -> None:
        if name == "posix_fallocate":  # of the next segment: meanwhile a sync of this one has failed
            journal._tail._fail(OSError(errno.EIO, "the disk"))
        elif name == "fdatasync":
            synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{arguments[0]}")))

    files.before = before
    with pytest.raises(JournalFailed):
        journal.rotate()
    journal.close()
    assert journal.directory.segment(1).name not in synced
    files.before = nothing


def test_more_rows_than_a_frame_holds_are_one_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        with somebody_leading(journal, files):
            monkeypatch.setattr(limits, "FRAME_ROWS_MAX", 10)
            tickets = [journal.append([batch(1, 0, 6)]) for _ in range(3)]
        first = tickets[0].wait()
        assert [ticket.wait() - first for ticket in tickets] == [0, 1, 2]


def test_an_offset_that_was_given_is_given_again_to_a_single_row(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append_one(message_row(1, 0, 1, 0, b"a"), sync=True, then=None).wait()
        with pytest.raises(InvalidArgument, match="taken"):
            journal.append_one(message_row(1, 0, 2, 0, b"b"), sync=True, then=None)
        assert payloads(journal) == [b"a"]


def test_what_was_queued_while_rotating_has_its_room_in_the_next_segment(tmp_path: Path) -> None:
    files = Watched()
    with Journal(tmp_path, files=files) as journal:
        tickets: list[Ticket] = []

        def before(name: str, arguments: tuple[object, ...]) -> None:
            if name == "rename" and str(arguments[0]).endswith(".segment.tmp"):
                tickets.append(journal.append([one(1, bytes(8 << 20))]))

        files.before = before
        journal.rotate()
        files.before = nothing
        taken = journal.directory.segment(2).stat().st_size
        assert taken >= (8 << 20) + limits.RESERVE_BYTES
        tickets[0].wait()


def test_the_mark_is_on_the_disk_when_a_journal_is_closed(tmp_path: Path) -> None:
    """Otherwise a power cut after a clean end would make the next opening rescue what needs no rescue."""
    files = Watched()
    journal = Journal(tmp_path, files=files)
    order = files.before = Order()
    journal.commit([one(1, b"a")])
    journal.close()
    assert order.last("fdatasync", "mark") > order.last("pwrite", "mark") >= 0


def test_a_log_of_which_nothing_is_known_begins_below_what_damage_may_have_held(tmp_path: Path) -> None:
    journal = Journal(tmp_path, durability="os")
    journal.state.floor = 5000
    assert journal.next_offset(7) == 5000
    journal.commit([messages(7, [b"a"], ids=1, timestamp=0)])
    with pytest.raises(InvalidArgument, match="taken"):
        journal.commit([messages(8, [b"b"], ids=2, timestamp=0, offset=4999)])
    assert [batch.offsets[0] for batch in journal.read(7)] == [5000]
    journal.close()
