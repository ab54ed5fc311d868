"""A message's timeline: everything that happened to it and its copies, nothing that happened to others, and a bound on all of it."""

from __future__ import annotations

import gc
import weakref
from datetime import UTC
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.broker import trace
from penstock.broker.trace import ERROR_ROW_CHARS, PARTS, Tracer, told
from penstock.clock import SECOND_US, ManualClock, to_datetime
from penstock.engine.change import Declaration
from penstock.engine.events import Action, Declared, Event, Leased, Outcome, Published, Settled
from penstock.engine.letter import ORIGIN_ID
from penstock.model.batch import Batch
from penstock.model.stats import Step
from penstock.policy import Policy

NOW = ManualClock.START_US
ORDERS, DEAD, EVENTS = 1, 2, 3
NAMES = {ORDERS: ("default", "orders"), DEAD: ("default", "orders.dlq"), EVENTS: ("other", "events")}


class Place:
    """A tracer, and the time, which goes on by a second with every unit."""

    def __init__(self, **bounds: int) -> None:
        self.tracer = Tracer(**bounds)
        self.names = dict(NAMES)
        self.now_us = NOW

    def note(self, *events: Event) -> None:
        self.tracer.note(events, self.now_us, self.names.get)
        self.now_us += SECOND_US

    def published(self, log: int, first: int, ids: Any, origins: list[str | None] | None = None) -> Published:
        headers = None if origins is None else [None if o is None else {ORIGIN_ID: o} for o in origins]
        return Published(log, first, Batch([b"x"] * len(ids), ids, self.now_us, 100, headers=headers))

    def leased(self, log: int, offsets: Any, attempts: Any = 1, consumer: str | None = "ann") -> Leased:
        return Leased(log, "default", offsets, attempts, consumer, self.now_us)

    def settled(self, log: int, offsets: Any, outcome: int, **more: Any) -> Settled:
        found = {"group": "default", "attempts": None, "due": None, "consumer": None, "error": None} | more
        return Settled(log=log, offsets=offsets, outcome=outcome, time_us=self.now_us, **found)

    def timeline(self, id: int, namespace: str = "default") -> list[Step]:
        return self.tracer.timeline(id, self.names.get, namespace)

    def told(self, id: int, namespace: str = "default") -> list[tuple[str, str, int]]:
        return [(step.what, step.queue, step.id) for step in self.timeline(id, namespace)]


@pytest.fixture
def place() -> Place:
    return Place()


# --- every kind of step ---


def test_a_publication_says_when_and_where(place: Place) -> None:
    place.note(place.published(ORDERS, 10, range(100, 103)))
    assert place.timeline(101) == [
        Step("published", to_datetime(NOW), "orders", None, None, None, None, None, 101)
    ]
    assert place.timeline(101)[0].at.tzinfo is UTC
    assert place.timeline(103) == []


def test_each_message_of_a_batch_has_its_own_time_if_they_differ(place: Place) -> None:
    place.note(Published(ORDERS, 0, Batch([b"a", b"b"], [100, 200], [NOW, NOW + 5], 100)))
    place.note(Published(ORDERS, 2, Batch([b"c"], [300], [NOW + 7], 100)))
    assert [place.timeline(one)[0].at for one in (100, 200, 300)] == [to_datetime(NOW + n) for n in (0, 5, 7)]


@pytest.mark.parametrize("offsets", [range(4, 5), range(3, 6), [9, 4, 1], [4]])
def test_a_lease_says_by_whom(place: Place, offsets: Any) -> None:
    place.note(place.published(ORDERS, 4, [104]))
    place.note(place.leased(ORDERS, offsets, 2, "bob"))
    second = to_datetime(NOW + SECOND_US)
    assert place.timeline(104)[1:] == [Step("leased", second, "orders", "default", "bob", 2, None, None, 104)]


@pytest.mark.parametrize("others", [[], [5, 7]])
def test_a_nack_says_why_and_until_when(place: Place, others: list[int]) -> None:
    place.note(place.published(ORDERS, 4, [104]))
    due_us = NOW + 60 * SECOND_US
    offsets = [*others, 4]
    place.note(
        place.settled(ORDERS, offsets, Outcome.RETRY, attempts=[9] * len(others) + [3], consumer="ann", error="no",
            due=[NOW] * len(others) + [due_us])
    )  # fmt: skip
    second = to_datetime(NOW + SECOND_US)
    assert place.timeline(104)[1:] == [
        Step("nacked", second, "orders", "default", "ann", 3, "no", to_datetime(due_us), 104)
    ]


WORDS = {
    "ACKED": "acked", "RETRY": "nacked", "DEAD": "dead-lettered", "EXPIRED": "expired", "PURGED": "purged",
    "RETURNED": "returned", "DROPPED": "dropped", "REDRIVEN": "redriven", "FILTERED": "filtered", "UNSEEN": "unseen",
    "CANCELLED": "cancelled",
}  # fmt: skip


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("offsets", [range(0, 1), range(0, 1000), [0], [5, 0]])
def test_every_outcome_is_told(place: Place, outcome: Outcome, offsets: Any) -> None:
    place.note(place.published(ORDERS, 0, [100]))
    place.note(place.settled(ORDERS, offsets, int(outcome)))
    assert place.told(100)[1:] == [(WORDS.get(outcome.name, outcome.name.lower()), "orders", 100)]


def test_an_outcome_of_a_later_version_has_some_name() -> None:
    assert told(250) == "outcome-250"


def test_the_short_way_is_told_like_the_long_one(place: Place) -> None:
    place.tracer.published(ORDERS, 0, 100, NOW)
    place.tracer.leased(ORDERS, "default", 0, "ann", NOW + 1)
    place.tracer.acked(ORDERS, "default", 0, NOW + 2)
    long = Place()
    long.note(long.published(ORDERS, 0, [100]))
    long.note(Leased(ORDERS, "default", [0], 1, "ann", NOW + 1))
    long.note(Settled(ORDERS, "default", [0], Outcome.ACKED, 1, None, None, None, NOW + 2))
    assert place.timeline(100) == long.timeline(100)
    assert [step.what for step in place.timeline(100)] == ["published", "leased", "acked"]


def test_the_short_way_without_a_consumer_is_a_lease_all_the_same(place: Place) -> None:
    place.tracer.published(ORDERS, 0, 100, NOW)
    place.tracer.leased(ORDERS, "default", 0, None, NOW)
    assert [(step.what, step.consumer, step.attempt) for step in place.timeline(100)[1:]] == [
        ("leased", None, 1)
    ]


def test_every_group_is_told(place: Place) -> None:
    place.note(place.published(ORDERS, 0, range(100, 110)))
    for group in ("audit", "billing"):
        place.note(place.settled(ORDERS, range(0, 10), Outcome.ACKED, group=group))
    assert [step.group for step in place.timeline(105)] == [None, "audit", "billing"]


def test_mixed_attempts_go_to_their_messages(place: Place) -> None:
    place.note(place.published(ORDERS, 0, range(100, 104)))
    place.note(place.leased(ORDERS, [2, 0, 3, 1], [7, 5, 8, 6]))
    place.note(place.settled(ORDERS, range(0, 4), Outcome.ACKED, attempts=[5, 6, 7, 8]))
    for row in range(4):
        assert [step.attempt for step in place.timeline(100 + row)] == [None, 5 + row, 5 + row]


def test_what_happens_at_one_moment_is_told_in_order(place: Place) -> None:
    place.tracer.published(ORDERS, 0, 100, NOW)
    for outcome in (Outcome.RETURNED, Outcome.RETURNED, Outcome.ACKED):
        place.tracer.note([Leased(ORDERS, "default", [0], 1, None, NOW)], NOW, place.names.get)
        place.tracer.note([place.settled(ORDERS, [0], outcome)], NOW, place.names.get)
    assert [what for what, _, _ in place.told(100)] == [
        "published",
        *["leased", "returned"] * 2,
        "leased",
        "acked",
    ]


# --- copies ---


def ids_of(found: list[tuple[str, str, int]]) -> list[int]:
    return [last for *_, last in found]


def bury(
    place: Place, offsets: list[int], first: int, ids: Any, origins: list[str | None], group: str = "default"
) -> None:
    place.note(
        place.published(DEAD, first, ids, origins),
        place.settled(ORDERS, offsets, Outcome.DEAD, attempts=[3] * len(offsets), error="boom", group=group),
    )


def redrive(place: Place, offsets: list[int], first: int, ids: list[int], origins: list[str]) -> None:
    """As the engine does it: each is published alone, and they are settled together."""
    back = [place.published(ORDERS, first + row, [one], [origins[row]]) for row, one in enumerate(ids)]
    place.note(*back, place.settled(DEAD, offsets, Outcome.REDRIVEN))


def round_trips(place: Place) -> None:
    """Message 101 dies, goes back, dies again and goes back again, between others that do the same."""
    place.note(place.published(ORDERS, 0, range(100, 103)))
    bury(place, [0, 1], 0, [200, 201], ["100", "101"])
    redrive(place, [0, 1], 3, [300, 301], ["100", "101"])
    bury(place, [3, 4], 2, [400, 401], ["100", "101"])
    redrive(place, [2, 3], 5, [500, 501], ["100", "101"])
    place.tracer.leased(ORDERS, "default", 6, "ann", place.now_us)
    place.tracer.acked(ORDERS, "default", 6, place.now_us)


STORY = [
    ("published", "orders", 101),
    ("dead-lettered", "orders", 101),
    ("published", "orders.dlq", 201),
    ("redriven", "orders.dlq", 201),
    ("published", "orders", 301),
    ("dead-lettered", "orders", 301),
    ("published", "orders.dlq", 401),
    ("redriven", "orders.dlq", 401),
    ("published", "orders", 501),
    ("leased", "orders", 501),
    ("acked", "orders", 501),
]


@pytest.mark.parametrize(("id", "start"), [(101, 0), (201, 2), (301, 4), (401, 6), (501, 8)])
def test_a_message_is_followed_through_its_later_copies(place: Place, id: int, start: int) -> None:
    round_trips(place)
    assert place.told(id) == STORY[start:]


def test_times_never_go_back(place: Place) -> None:
    round_trips(place)
    times = [step.at for step in place.timeline(101)]
    assert times == sorted(times)


def test_copies_are_known_when_the_first_is_forgotten() -> None:
    place = Place(rows_max=11)
    round_trips(place)
    assert place.told(101) == STORY[-len(place.told(101)) :]
    assert 2 < len(place.told(101)) < len(STORY)


def test_the_letters_of_several_groups_are_told_apart(place: Place) -> None:
    place.note(place.published(ORDERS, 0, range(100, 102)))
    place.note(
        place.published(DEAD, 0, [200], ["100"]),
        place.settled(ORDERS, [0], Outcome.DEAD, group="audit"),
        place.published(DEAD, 1, [201], ["100"]),
        place.settled(ORDERS, [0], Outcome.DEAD, group="billing"),
    )
    redrive(place, [0, 1], 2, [300, 301], ["100", "100"])
    assert ids_of(place.told(100)) == [100, 100, 100, 200, 201, 200, 201, 300, 301]
    assert ids_of(place.told(200)) == [200, 200, 300]
    assert ids_of(place.told(201)) == [201, 201, 301]


def test_a_letter_that_could_not_be_written_does_not_shift_the_others(place: Place) -> None:
    place.note(place.published(ORDERS, 0, range(100, 103)))
    bury(place, [0, 1, 2], 0, [200, 202], ["100", "102"])  # 101 cannot be read any more
    redrive(place, [0, 1], 3, [300, 302], ["100", "102"])
    bury(place, [3, 4], 2, [402], ["102"])
    assert ids_of(place.told(101)) == [101, 101]
    assert ids_of(place.told(202)) == [202, 202, 302, 302, 402]
    assert ids_of(place.told(300)) == [300, 300]


@pytest.mark.parametrize("text", ["", "not a number", "9" * 10_000, "1" + "0" * 30])
def test_a_header_that_somebody_else_wrote_does_no_harm(place: Place, text: str) -> None:
    place.note(place.published(ORDERS, 0, [100], [text]))
    bury(place, [0], 0, [200], [text])
    assert ids_of(place.told(100)) == [100, 100, 200]


def test_a_transaction_that_also_publishes_does_not_confuse_copies(place: Place) -> None:
    place.note(place.published(ORDERS, 0, [100, 101]))
    place.note(
        place.settled(ORDERS, [1], Outcome.ACKED),
        place.published(ORDERS, 2, [102]),
        place.published(ORDERS, 3, [103], [None]),
        place.published(DEAD, 0, [200], ["100"]),
        place.settled(ORDERS, [0], Outcome.DEAD),
        place.leased(ORDERS, [2]),
    )
    assert ids_of(place.told(100)) == [100, 100, 200]
    assert place.told(101) == [("published", "orders", 101), ("acked", "orders", 101)]
    assert place.told(102) == [("published", "orders", 102), ("leased", "orders", 102)]
    assert place.told(103) == [("published", "orders", 103)]
    assert place.told(200) == [("published", "orders.dlq", 200)]


def test_many_rows_of_which_one_is_a_copy(place: Place) -> None:
    place.note(place.published(ORDERS, 0, range(1000, 1004), [None, "7", None, "8"]))
    assert place.told(8) == [("published", "orders", 1003)]
    assert place.told(1001) == [("published", "orders", 1001)]


# --- namespaces and names ---


def test_no_namespace_hears_of_another(place: Place) -> None:
    place.note(place.published(EVENTS, 0, [100]))
    place.note(place.published(EVENTS, 1, [101], ["500"]))
    place.note(place.published(ORDERS, 0, [500]))
    assert place.told(100) == []
    assert place.told(100, "other") == [("published", "events", 100)]
    assert place.told(500) == [("published", "orders", 500)]
    assert place.told(500, "other") == [("published", "events", 101)]


def gone(place: Place, log: int) -> Declared:
    namespace, name = place.names.pop(log)
    body = msgspec.msgpack.encode(Declaration(namespace, name, Policy.of()))
    return Declared(log, Action.DELETE, name, body, place.now_us)


def test_a_log_that_is_gone_keeps_its_name(place: Place) -> None:
    place.note(place.published(ORDERS, 0, [100]))
    del place.names[ORDERS]
    assert place.told(100) == [("published", "orders", 100)]
    assert place.told(100, "other") == []


def test_a_log_of_the_short_way_alone_keeps_its_name_too(place: Place) -> None:
    place.tracer.published(ORDERS, 0, 100, NOW)
    place.note(gone(place, ORDERS))
    assert place.told(100) == [("published", "orders", 100)]


def test_a_log_of_which_nobody_knows_the_name_is_nobodys(place: Place) -> None:
    place.note(place.published(99, 0, [100]))
    assert place.told(100) == []


def test_names_of_logs_that_come_and_go_are_bounded() -> None:
    place = Place(rows_max=PARTS * 4)
    for number in range(5000):
        place.names[100 + number] = ("default", f"temporary-{number}")
        place.note(gone(place, 100 + number))
    assert sum(len(chunk.names) for chunk in [*place.tracer._older, place.tracer._chunk]) <= PARTS * 4


# --- bounds ---


def test_the_oldest_is_forgotten_first() -> None:
    place = Place(rows_max=10)
    for number in range(50):
        place.note(place.published(ORDERS, number, [100 + number]))
        assert place.tracer.rows == min(10, number + 1)
    assert [one for one in range(100, 150) if place.told(one)] == list(range(140, 150))


def test_the_short_way_is_bounded_too() -> None:
    place = Place(rows_max=1000)
    for number in range(5000):
        place.tracer.published(ORDERS, number, 10_000 + number, NOW + number)
        place.tracer.leased(ORDERS, "default", number, None, NOW + number)
        place.tracer.acked(ORDERS, "default", number, NOW + number)
        assert place.tracer.rows <= 1000
    assert place.tracer.rows >= 1000 - 1000 // PARTS
    assert len(place.told(14_999)) == 3
    assert place.told(10_000) == []


def test_batches_count_by_their_messages() -> None:
    place = Place(rows_max=1000)
    for number in range(20):
        place.note(place.published(ORDERS, 300 * number, range(300 * number, 300 * number + 300)))
        assert place.tracer.rows <= 1000
    assert [number for number in range(20) if place.told(300 * number + 299)] == [17, 18, 19]


def test_a_huge_unit_is_kept_until_there_is_a_newer_one() -> None:
    place = Place(rows_max=100)
    place.note(place.published(ORDERS, 0, [5]))
    place.note(
        place.published(ORDERS, 1, range(1000, 1_001_000)), place.settled(ORDERS, range(0, 1_000_001), Outcome.PURGED)
    )  # fmt: skip
    assert place.told(5) == []
    assert place.told(777_777) == [("published", "orders", 777_777), ("purged", "orders", 777_777)]
    place.note(place.published(ORDERS, 2_000_000, [7]))
    assert place.told(777_777) == []
    assert place.told(7) == [("published", "orders", 7)]
    assert place.tracer.rows == 1


def test_a_unit_stays_together() -> None:
    for size in range(1, 40):
        place = Place(rows_max=20)
        for number in range(10):
            ids = [1000 * number + row for row in range(size)]
            place.note(*[place.published(ORDERS, one, [one]) for one in ids])
        for number in range(10):
            known = [row for row in range(size) if place.told(1000 * number + row)]
            assert len(known) in (0, size)
        assert place.told(9000)


@pytest.mark.parametrize("short", [False, True])
def test_what_is_too_old_is_forgotten(short: bool) -> None:
    age_us = 640 * SECOND_US
    place = Place(age_us=age_us)
    for number in range(2000):
        if short:
            place.tracer.published(ORDERS, number, number, place.now_us)
            place.now_us += SECOND_US
        else:
            place.note(place.published(ORDERS, number, [number]))
    known = [number for number in range(2000) if place.told(number)]
    assert known == list(range(known[0], 2000))
    assert 640 - 640 // PARTS <= len(known) <= 641 + 640 // PARTS


def test_after_a_long_silence_all_is_forgotten_but_the_newest() -> None:
    place = Place(age_us=60 * SECOND_US)
    place.note(place.published(ORDERS, 0, [100]))
    place.now_us += 3600 * SECOND_US
    assert place.told(100)  # nobody came to forget it
    place.note(place.published(ORDERS, 1, [101]))
    assert place.told(100) == []
    assert place.told(101)


def test_long_errors_count_for_more_and_shared_ones_once() -> None:
    place = Place(rows_max=10_000)
    error = "x" * (10 * ERROR_ROW_CHARS)
    place.note(*[place.settled(ORDERS, [offset], Outcome.RETRY, error=error) for offset in range(5)])
    assert place.tracer.rows == 15


def test_contents_are_not_kept_alive(place: Place) -> None:
    class Watched(dict[str, str]):
        pass

    headers = Watched({ORIGIN_ID: "1", "other": "x"})
    alive = weakref.ref(headers)
    payloads = [b"x" * 1000]
    held = gc.get_referrers(payloads)
    place.note(Published(ORDERS, 0, Batch(payloads, [100], NOW, 100, headers=[headers])))
    del headers
    gc.collect()
    assert alive() is None
    assert len(gc.get_referrers(payloads)) <= len(held)
    assert place.told(100)


def test_a_range_is_never_walked() -> None:
    """It would take for ever."""
    place = Place()
    huge = range(0, 2**50)
    place.note(
        place.published(ORDERS, 2**49, [101]),
        place.leased(ORDERS, huge),
        place.settled(ORDERS, huge, Outcome.PURGED),
    )
    assert [what for what, _, _ in place.told(101)] == ["published", "leased", "purged"]


# --- against a list of everything ---


class Naive:
    """Every step of every message, kept one by one."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, Step]] = []

    def add(self, log: int, offset: int, step: Step) -> None:
        self.steps.append((log, offset, step))

    def timeline(self, id: int) -> list[Step]:
        where = next(((log, offset) for log, offset, step in self.steps if step.id == id), None)
        return [step for log, offset, step in self.steps if (log, offset) == where]


@pytest.mark.parametrize("seed", range(30))
def test_it_says_what_a_list_of_everything_says(seed: int) -> None:
    random = Random(seed)
    place, naive = Place(), Naive()
    ids: dict[tuple[int, int], int] = {}
    ends = {ORDERS: 0, DEAD: 0}
    for _ in range(60):
        log = random.choice([ORDERS, DEAD])
        at = to_datetime(place.now_us)
        queue = NAMES[log][1]
        if not ends[log] or random.random() < 0.3:
            given: Any = range(len(ids) + 1, len(ids) + 1 + random.randint(1, 5))
            for row, one in enumerate(given):
                ids[log, ends[log] + row] = one
                naive.add(
                    log, ends[log] + row, Step("published", at, queue, None, None, None, None, None, one)
                )
            if len(given) == 1 and random.random() < 0.5:
                place.tracer.published(log, ends[log], given[0], place.now_us)
            else:
                place.note(place.published(log, ends[log], random.choice([given, list(given)])))
            ends[log] += len(given)
            continue
        start = random.randrange(ends[log])
        offsets: Any = range(start, random.randint(start + 1, ends[log]))
        if random.random() < 0.5:
            offsets = random.sample(range(ends[log]), random.randint(1, ends[log]))
        attempts: Any = random.choice([4, [random.randint(1, 9) for _ in offsets]])
        outcome = random.choice([None, Outcome.RETRY, Outcome.ACKED, Outcome.EXPIRED, Outcome.RETURNED])
        due: Any = None
        if outcome is Outcome.RETRY:
            due = random.choice([place.now_us + 9, [place.now_us + row for row, _ in enumerate(offsets)]])
        what = "leased" if outcome is None else WORDS[outcome.name]
        error = None if outcome is None else "why"
        for row, offset in enumerate(offsets):
            attempt = attempts[row] if isinstance(attempts, list) else attempts
            moment = due[row] if isinstance(due, list) else due
            until = None if moment is None else to_datetime(moment)
            one = ids[log, offset]
            naive.add(log, offset, Step(what, at, queue, "default", "ann", attempt, error, until, one))
        if outcome is None:
            place.note(place.leased(log, offsets, attempts))
        else:
            place.note(
                place.settled(log, offsets, outcome, attempts=attempts, due=due, consumer="ann", error="why")
            )
    assert len(ids) > 10
    for one in [*ids.values(), 10**6]:
        assert place.timeline(one) == naive.timeline(one)


def test_the_defaults_are_bounds() -> None:
    assert Tracer()._rows_max == trace.ROWS_MAX
    assert Tracer()._age_us == trace.AGE_US
