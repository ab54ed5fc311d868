"""`kill -9` of a process whose threads publish, lease, ack, nack, reject, requeue and redrive, again and again over one directory.

What the process did, and what it was about to do, is heard over a pipe by an oracle, which compares it with what the next owner finds and is handed out:

1.  what was published is there, once, in the queue or in the dead letters, until somebody began to ack it; what was acked never comes back;
2.  nothing is there that nobody published, and payloads are what they were;
4.  nobody is handed a message that another thread has; a second settle is refused;
6.  a message is handed out at most `max_attempts` times, each time with the next number, whatever was killed in between; then it is in the dead letters,
    once, and says so;
7.  of a batch there is all or nothing.

What it would notice is tried as well: see `SABOTAGE` in `broker_child`, where lease rows are left out, answers do not wait for the journal,
acks are not replayed, the removal of what was dead-lettered is not recorded, and a batch is two commits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faults import campaign
from tests.faults.broker_child import MAX_ATTEMPTS, SABOTAGE, Orders, census, opened
from tests.faults.faulty_files import UnsyncedFiles
from tests.faults.nursery import Nursery

WORK, DEAD = "work", "work.dlq"


@dataclass
class Known:
    """What is known of a message."""

    batch: list[int]
    published: bool = False  # and told so
    seen: bool = False  # so it was published, told or not
    acking: bool = False  # somebody began to
    acked: bool = False
    attempt: int = 0  # the last that was handed out, in this life
    attempt_dead: int = 0  # the same, as a dead letter
    dead: bool = False  # it was seen there
    held: str = ""  # the queue from which a thread of the living process has it
    may_die: bool = False  # a reject, or the nack of the last attempt, was begun
    untold: int = 0  # lives since then, in each of which it may have been handed out once more without a word
    may_return: bool = False  # a redrive was under way after it may have died


@dataclass
class Oracle:
    """Hears what a process did and says what must hold."""

    known: dict[int, Known] = field(default_factory=dict)
    found: dict[str, tuple[int, list[Any]]] = field(default_factory=dict)
    redrives: int = 0  # under way

    def hear(self, name: str, *arguments: Any) -> None:
        handlers: dict[str, Callable[..., None]] = {
            "publish?": self.publishing, "published": self.published, "leased": self.leased, "ack?": self.acking, "ack": self.acked,
            "redrive?": self.redriving, "redriven": self.redriven, "reject?": self.rejecting, "nack?": self.returning, "requeue?": self.returning, "census": self.counted,
        }  # fmt: skip
        assert name != "error", arguments
        if name in handlers:
            handlers[name](*arguments)

    def publishing(self, numbers: list[int]) -> None:
        self.known.update({number: Known(numbers) for number in numbers})

    def published(self, numbers: list[int]) -> None:
        for number in numbers:
            self.known[number].published = True

    def leased(self, queue: str, rows: list[tuple[int, int]], whole: bool) -> None:
        assert whole, f"a payload of {rows} is not what it was"
        for number, attempt in rows:
            assert number in self.known, f"{number} was never published"
            known = self.known[number]
            known.seen, known.untold = True, 0
            assert not known.acked, f"{number} was acked, and comes back"
            assert not known.held, f"{number} is handed out, and somebody has it"
            known.held = queue
            if queue == DEAD:
                assert known.may_die, f"{number} is in the dead letters for no reason"
                assert attempt > known.attempt_dead, f"{number}: dead letter, attempt {attempt} again"
                known.attempt_dead, known.dead = attempt, True
                continue
            self._look_for_redrives(known)
            assert known.may_return or not known.dead, f"{number} is back from the dead letters by itself"
            if known.may_return and (known.dead or attempt <= known.attempt):
                # A new life, of whose first attempt nobody may have lived to tell.
                known.attempt, known.attempt_dead = 0, 0
                known.dead = known.may_die = known.may_return = False
            assert attempt > known.attempt, f"{number}: attempt {attempt} after {known.attempt}"
            assert attempt <= MAX_ATTEMPTS, f"{number}: attempt {attempt}"
            known.attempt = attempt
            known.may_die = known.may_die or attempt == MAX_ATTEMPTS

    def acking(self, numbers: list[int]) -> None:
        for number in numbers:
            self.known[number].acking = True

    def acked(self, numbers: list[int]) -> None:
        for number in numbers:
            self.known[number].acked = True

    def rejecting(self, numbers: list[int]) -> None:
        for number in numbers:
            self.known[number].may_die = True
        self.returning(numbers)

    def returning(self, numbers: list[int]) -> None:
        for number in numbers:
            self.known[number].held = ""

    def redriving(self) -> None:
        self.redrives += 1

    def redriven(self) -> None:
        for known in self.known.values():
            self._look_for_redrives(known)
        self.redrives -= 1

    def _look_for_redrives(self, known: Known) -> None:
        known.may_return = known.may_return or (known.may_die and self.redrives > 0)

    def counted(self, queue: str, depth: int, rows: list[Any]) -> None:
        self.found[queue] = (depth, rows)

    # --- after a kill ---

    def check(self) -> None:
        """What the next owner found is what it must be."""
        places: dict[int, str] = {}
        for known in self.known.values():
            known.untold += 1
        for queue, (depth, rows) in self.found.items():
            assert depth == len(rows), f"{queue} says {depth} and shows {len(rows)}"
            for number, whole, attempts, reason in rows:
                assert whole, f"the payload of {number} is not what it was"
                assert number in self.known, f"{number} was never published"
                assert number not in places, f"{number} is there twice: in {places[number]} and in {queue}"
                places[number] = queue
                self.known[number].seen = True
                if queue == DEAD:
                    self._check_letter(number, attempts, reason)
        for number, known in self.known.items():
            self._look_for_redrives(known)
            self._check(number, known, places.get(number))
            known.held = ""
        self.found, self.redrives = {}, 0

    def _check_letter(self, number: int, attempts: int, reason: str) -> None:
        known = self.known[number]
        last = known.attempt + known.untold >= MAX_ATTEMPTS  # a lease that nobody lived to tell of
        assert known.may_die or last, f"{number} is in the dead letters for no reason"
        known.may_die = known.dead = True
        assert reason in ("max-attempts", "rejected")
        assert attempts == MAX_ATTEMPTS or (reason == "rejected" and 1 <= attempts <= MAX_ATTEMPTS), attempts

    def _check(self, number: int, known: Known, place: str | None) -> None:
        if known.acked:
            assert place is None, f"{number} was acked, and is in {place}"
        if place is None and not known.acking:
            assert not known.published, f"{number} was published, and is nowhere"
            assert not known.seen, f"{number} was there, and is nowhere"
            there = [other for other in known.batch if self.known[other].seen]
            assert not there, f"{number} is missing, and {there} of its batch are there"
        if place == WORK and known.attempt >= MAX_ATTEMPTS:
            assert known.may_return, (
                f"{number} was attempted {known.attempt} times, and is not in the dead letters"
            )

    def forget(self) -> None:
        """Of what was acked it is enough to know that; of what never came to be, nothing."""
        for number in [
            number for number, known in self.known.items() if not known.seen and not known.published
        ]:
            del self.known[number]
        for known in self.known.values():
            known.batch = []


def _kill_again_and_again(path: Path, kills: int, seed: object, sabotage: str = "") -> None:
    chance = random.Random(f"{seed}")
    oracle = Oracle()
    first = 1
    with Nursery("tests.faults.broker_child") as nursery:
        for kill in range(kills):
            orders = Orders(str(path), kill, first, synced=chance.random() < 0.25, sabotage=sabotage)
            in_opening = kill and chance.random() < 0.15
            reports = 0 if in_opening else chance.randrange(1, 100)
            seconds = chance.random() * (0.03 if in_opening else 0.002)
            for report in nursery.life(orders, reports=reports, seconds=seconds):
                if report[0] == "begins":
                    oracle.check()
                    oracle.forget()
                oracle.hear(*report)
            oracle.found = {}  # one that was killed before it began has not told everything
            first += 10_000_000
    _check_here(path, oracle)


def _check_here(path: Path, oracle: Oracle) -> None:
    """Open it in this process, close it, and open it again."""
    for _ in range(2):
        with opened(str(path), UnsyncedFiles()) as broker:
            for name, (depth, rows) in census(broker).items():
                oracle.counted(name, depth, rows)
        oracle.check()


@pytest.mark.parametrize("part", range(4))
def test_killing_a_broker_breaks_no_promise(tmp_path: Path, part: int) -> None:
    _kill_again_and_again(tmp_path / "data", 40, part)


#: What the oracle says of each.
COMPLAINTS = {
    "a lease leaves no row": r"attempt \d after \d|was attempted \d+ times",
    "answers do not wait for the journal": "was published, and is nowhere|was acked, and",
    "some acks are not replayed": "was acked, and",
    "what was dead-lettered is not removed": "is there twice",
    "a batch is two commits": "of its batch are there",
}


@pytest.mark.parametrize("sabotage", [name for name in SABOTAGE if name])
def test_a_broken_broker_is_noticed(tmp_path: Path, sabotage: str) -> None:
    with pytest.raises(AssertionError, match=COMPLAINTS[sabotage]):  # noqa: PT012
        for part in range(5):
            _kill_again_and_again(tmp_path / f"{part}", 12, part, sabotage)


@pytest.mark.campaign
def test_killing_a_broker_for_long_breaks_no_promise(tmp_path: Path) -> None:
    for part in range(-(-campaign.rounds() // 50)):
        _kill_again_and_again(tmp_path / f"{part}", min(50, campaign.rounds()), f"campaign {part}")
