"""A storm of Ctrl-C: a commit may fail for it, but nobody is left waiting, and nothing acknowledged is lost."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path

from penstock.errors import JournalFailed
from penstock.journal import Journal, messages


class Interrupt(BaseException):
    """What the handler raises, wherever the main thread happens to be."""


def _raise(*_: object) -> None:
    raise Interrupt


def _publish_until_interrupted(journal: Journal, acknowledged: list[int]) -> None:
    """Publish on and on; another thread interrupts after a while that differs from call to call."""
    enough = len(acknowledged) + 1 + len(acknowledged) * 7 % 13
    main = threading.main_thread().ident or 0

    stopped = threading.Event()

    def interrupt() -> None:
        while len(acknowledged) < enough and not stopped.is_set():
            pass
        if not stopped.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        while True:
            number = acknowledged[-1] + 1 if acknowledged else 0
            journal.commit([messages(1, [b"%d" % number], ids=number, timestamp=0)])
            acknowledged.append(number)
    finally:
        stopped.set()
        thread.join()


def test_a_storm_of_interrupts_leaves_nobody_waiting_and_loses_nothing(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    journal = Journal(tmp_path, durability="os", segment_bytes=1 << 16)
    previous = signal.signal(signal.SIGUSR1, _raise)
    try:
        for _ in range(30):
            with suppress(Interrupt, JournalFailed):
                _publish_until_interrupted(journal, acknowledged)
            if journal.stats().failure is not None:
                journal.close()
                journal = Journal(tmp_path, durability="os", segment_bytes=1 << 16)
    finally:
        signal.signal(signal.SIGUSR1, previous)
        journal.close()
    with Journal(tmp_path) as journal:
        found = {int(bytes(p)) for batch in journal.read(1) for p in batch.values("payload")}
    assert set(acknowledged) <= found


def test_closing_that_is_interrupted_hangs_or_is_done_twice(tmp_path: Path) -> None:
    """Real signals, at any point of it: also inside the interpreter's own library."""
    previous = signal.signal(signal.SIGALRM, _raise)
    interrupted = 0
    try:
        for number in range(60):
            journal = Journal(tmp_path / "data", durability="os")
            journal.commit([messages(1, [b"%d" % number], ids=number, timestamp=0)])
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00001 * (1 + number % 30))
                journal.close()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            journal.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupted
    with Journal(tmp_path / "data") as journal:
        assert len([p for batch in journal.read(1) for p in batch.values("payload")]) == 60
