"""Readers over the broker's own parts: places are found whatever the clock did, wherever a message is stored, and nothing is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.broker.contents import messages_of
from penstock.broker.opening import on_disk
from penstock.broker.reading import WINDOW, available
from penstock.broker.sync import Queue
from penstock.clock import to_datetime
from penstock.engine.milestones import STRIDE
from penstock.errors import InvalidArgument
from penstock.model.commands import Place as At
from penstock.model.commands import Publish
from penstock.model.queries import Locate
from tests import asking
from tests.unit.broker.patience import PATIENCE_S, start
from tests.unit.broker.test_embedded import Place


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.broker.close()


def everything(queue: Queue) -> list[Any]:
    return queue.reader("everything").read_many(100_000)


def check_times(queue: Queue) -> None:
    """For each time that a message has, and those just beside it, the first that is not older is found."""
    stored = everything(queue)
    reader = queue.reader("by-time")
    moments = {one.timestamp for one in stored}
    for moment in sorted({each + timedelta(microseconds=n) for each in moments for n in (-1, 0, 1)}):
        reader.seek(timestamp=moment)
        wanted = next((one.offset for one in stored if one.timestamp >= moment), None)
        assert reader.position() == (queue.stats().next_offset if wanted is None else wanted)


def check_ids(queue: Queue, step: int = 1) -> None:
    reader = queue.reader("by-id")
    for one in everything(queue)[::step]:
        reader.seek(message_id=one.id)
        found = reader.read()
        assert found is not None
        assert (found.id, found.offset, found.payload) == (one.id, one.offset, one.payload)


@pytest.fixture(params=[{}, {"retain_seconds": 10**6}, {"ttl": 10**6}], ids=repr)
def queue(request: pytest.FixtureRequest, place: Place) -> Queue:
    return place.broker.queue("read", **request.param)


# --- times ---


@pytest.mark.parametrize("size", [1, 3, STRIDE + 1])
def test_a_time_leads_past_a_message(place: Place, queue: Queue, size: int) -> None:
    for n in range(900 // size):
        queue.publish_many([b"%d" % n] * size) if size > 1 else queue.publish(b"%d" % n)
        if not n % 50 or size > 1:
            place.clock.advance(1)
    check_times(queue)
    check_ids(queue, 7)


def test_a_wall_clock_set_back_while_it_runs_leads_past_a_message(place: Place, queue: Queue) -> None:
    random = Random(7)
    for _ in range(60):
        queue.publish_many([b"x"] * random.randint(1, 40))
        queue.publish(b"y")
        place.clock.advance(1)
        if not random.randrange(5):
            place.clock.set_back(seconds=random.randint(1, 30))
        if not random.randrange(9):
            place.clock.set_forward(seconds=random.randint(1, 10))
    check_times(queue)
    check_ids(queue, 11)


@pytest.mark.parametrize("singly", [True, False])
@pytest.mark.parametrize("policy", [{}, {"retain_seconds": 10**6}], ids=repr)
@pytest.mark.parametrize("close", [True, False])
def test_a_wall_clock_set_back_between_two_owners_leads_past_a_message(
    disk: Place, singly: bool, policy: dict[str, Any], close: bool
) -> None:
    """The time in a log goes back then: a later message is older."""
    place = disk
    for owner in range(4):
        queue = place.broker.queue("read", **policy)
        for n in range(3):
            if singly:
                for _ in range(60):
                    queue.publish(b"%d" % n)
            else:
                queue.publish_many([b"%d" % n] * (STRIDE - 3))
            place.clock.advance(10)
        check_times(queue)
        check_ids(queue, 17)
        place.clock.set_back(seconds=25)
        if close:
            place.broker.close()
        place = place.crashed(f"owner-{owner}")
    queue = place.broker.queue("read")
    check_times(queue)
    check_ids(queue, 17)
    place.broker.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_policy_that_begins_to_keep_messages_leads_past_one(place: Place, when: str) -> None:
    queue = place.broker.queue("read")
    queue.publish(b"0")
    place.clock.advance(100)
    queue.publish_many([b"x"] * (STRIDE - 1))
    if when == "before":
        place.clock.advance(100)
    queue.alter(retain_seconds=10**6)
    if when == "after":
        place.clock.advance(100)
    queue.publish(b"last")
    check_times(queue)
    queue.alter(retain_seconds=None)
    place.clock.advance(100)
    for _ in range(STRIDE):
        queue.publish(b"x")
    check_times(queue)


# --- holes ---


def test_a_place_in_a_hole_is_found_or_the_message_behind_it_is_not(place: Place) -> None:
    queue = place.broker.queue("read", visibility_timeout=None)
    for _ in range(60):
        queue.publish_many([b"x"] * 10)
        place.clock.advance(1)
    taken = queue.receive_many(600)
    queue.ack_many([one for one in taken if one.offset % 7 or one.offset > 500])
    stored = everything(queue)
    assert [one.offset for one in stored] == [n for n in range(501) if not n % 7]
    check_ids(queue)
    check_times(queue)
    reader = queue.reader("r")
    for one in (taken[1], taken[-1]):
        with pytest.raises(InvalidArgument, match="is stored"):
            reader.seek(message_id=one.id)
        with pytest.raises(InvalidArgument, match="not stored"):
            reader.seek(offset=one.offset)
    reader.seek(offset=600)
    assert reader.read() is None
    with pytest.raises(InvalidArgument, match="not stored"):
        reader.seek(offset=601)


def test_a_hole_longer_than_a_window_ends_a_read(place: Place) -> None:
    queue = place.broker.queue("read", visibility_timeout=None)
    queue.publish_many([b"x"] * (3 * WINDOW))
    held = queue.receive_many(3 * WINDOW)
    queue.ack_many(held[1:-1])
    assert [one.offset for one in everything(queue)] == [0, 3 * WINDOW - 1]
    reader = queue.reader("r")
    assert [one.offset for one in reader.read_many(1)] == [0]
    assert [one.offset for one in reader.read_many(1)] == [3 * WINDOW - 1]
    assert reader.read_many(1) == []
    assert (reader.position(), reader.lag()) == (3 * WINDOW, 0)


def test_a_page_ends_within_a_batch_and_loses_the_rest(place: Place, queue: Queue) -> None:
    queue.publish_many([b"%d" % n for n in range(100)])
    reader = queue.reader("r")
    got: list[bytes] = []
    for size in (1, 7, 64, 5, 99):
        got += [one.payload for one in reader.read_many(size)]
    assert got == [b"%d" % n for n in range(100)]


def test_what_is_available_is_given_twice_or_out_of_order(place: Place) -> None:
    queue = place.broker.queue("read", visibility_timeout=None, retain_bytes=5)
    queue.publish_many([b"x"] * 50)
    held = queue.receive_many(50)
    queue.ack_many(held[10:40])
    log = place.port.monitor.engine.find("default", "read")
    assert log is not None
    found = [offset for part in available(log, 0, log.arrived) for offset in part]
    assert found == sorted(set(found))
    assert set(found) >= {*range(10), *range(40, 50)}


def test_a_read_ends_when_its_reader_is_closed_as_it_begins(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, read = place.queue.reader("r"), place.port.read

    def read_and_close(*given: Any, **more: Any) -> Any:
        ticket = read(*given, **more)
        reader.close()  # as another thread may, before the reader has the ticket
        return ticket

    monkeypatch.setattr(place.port, "read", read_and_close)
    reading = start(reader.read, None)
    try:
        assert reading.result(PATIENCE_S) is None
    finally:
        place.queue.publish(b"end")


# --- places ---


@pytest.mark.parametrize("wrong", [At(offset=-1), At(offset=2), At(message_id=-5)], ids=repr)
def test_what_is_no_place_is_one(place: Place, wrong: At) -> None:
    place.queue.publish(b"x")
    with pytest.raises(InvalidArgument):
        place.port.describe(Locate(place.queue._log, wrong)).wait()


def test_the_ends_are_elsewhere(place: Place) -> None:

    def located(**where: Any) -> int:
        return place.port.describe(Locate(place.queue._log, At(**where))).wait()

    assert [located(at="earliest"), located(at="latest"), located(offset=0)] == [0, 0, 0]
    place.queue.publish_many([b"0", b"1"])
    held = place.queue.receive()
    assert held is not None
    held.ack()
    assert [located(at="earliest"), located(at="latest")] == [1, 2]
    assert [located(offset=1), located(offset=2)] == [1, 2]
    assert located(timestamp=to_datetime(0)) == 1
    assert located(timestamp=to_datetime(place.clock.now_us() + 1)) == 2


def test_a_reader_begins_behind_what_is_just_becoming_durable(tmp_path: Path) -> None:
    port = on_disk(tmp_path / "q")
    try:
        log = asking.declare(port)
        # Nobody has waited for it: it is not on the disk yet.
        publishing = asking.begin(port, log, Publish([b"a", b"b"]))
        begins = port.describe(Locate(log, At(at="earliest"))).wait()
        publishing.wait()
        assert begins == 0
        assert [one.payload for one in messages_of(port.read(log, begins, 5).wait().runs)] == [b"a", b"b"]
    finally:
        port.close()
