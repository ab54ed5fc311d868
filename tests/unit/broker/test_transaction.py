"""Several things at once: whatever fails in the middle, all of it is there or nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.broker import transaction
from penstock.errors import (
    BatchTooLarge,
    InvalidArgument,
    JournalFailed,
    LeaseLost,
    MessageTooLarge,
    PenstockError,
    QueueFull,
)
from penstock.journal.kinds import MESSAGES
from tests.unit.broker.test_embedded import Place
from tests.unit.journal.watched import failing, nothing


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.files.before = nothing
    found.broker.close()


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(None if request.param == "memory" else tmp_path / "data")
    yield found
    found.broker.close()


def seen(place: Place) -> dict[str, Any]:
    """How much each log holds, by state."""
    found = {}
    for name in (*place.broker.list_queues(), *place.broker.list_topics()):
        log = place.broker.queue(name) if name in place.broker.list_queues() else place.broker.topic(name)
        stats = log.stats()
        found[name] = (
            stats.ready,
            stats.delayed,
            stats.leased,
            stats.retrying,
            stats.dead,
            stats.next_offset,
        )
    return found


def prepared(place: Place) -> list[Any]:
    """Three messages in hand, a queue and a topic to publish to."""
    place.queue.publish_many([b"0", b"1", b"2"])
    place.broker.queue("other")
    place.broker.topic("events").subscribe("s")
    return place.queue.receive_many(3)


def everything(place: Place, held: list[Any]) -> None:
    """A transaction with a step of each kind."""
    with place.broker.transaction() as tx:
        tx.ack(held[0])
        tx.nack(held[1], delay=60, error="later")
        tx.reject(held[2], error="never")
        tx.publish("other", b"x")
        tx.publish("events", b"y", headers={"a": "b"})
        tx.publish("made", b"z", delay=60)


DONE = {
    "events": (1, 0, 0, 0, 0, 1), "made": (0, 1, 0, 0, 0, 1), "other": (1, 0, 0, 0, 0, 1), "q": (0, 0, 0, 1, 1, 3),
}  # fmt: skip
#: After a restart nothing is in anybody's hands.
UNDONE = {"events": (0, 0, 0, 0, 0, 0), "other": (0, 0, 0, 0, 0, 0), "q": (3, 0, 0, 0, 0, 3)}


def test_a_step_is_left_out(place: Place) -> None:
    everything(place, prepared(place))
    assert seen(place) == DONE


def test_a_transaction_is_several_frames(disk: Place) -> None:
    held = prepared(disk)
    journal = disk.port.monitor.journal
    assert journal is not None
    disk.files.calls.clear()
    everything(disk, held)
    assert disk.files.calls.count("fdatasync") == 1
    assert sum(disk.files.calls.count(name) for name in ("pwrite", "pwritev")) <= 2, "the frame, and the mark"


@pytest.mark.parametrize("call", ["pwritev", "pwrite", "fdatasync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_in_the_middle_leaves_half_of_it(disk: Place, call: str, error: int) -> None:
    held = prepared(disk)
    disk.files.before = failing(call, error)
    raised: PenstockError | None = None
    try:
        everything(disk, held)
    except PenstockError as refused:
        raised = refused
    disk.files.before = nothing
    after = disk.crashed()
    found = seen(after)
    after.broker.close()
    assert found in ((DONE, UNDONE) if raised is not None else (DONE,))
    if raised is not None:
        with pytest.raises(JournalFailed):
            disk.queue.publish(b"x")


def test_every_byte_at_which_a_frame_may_be_torn_leaves_half_of_it(disk: Place) -> None:
    """A write that was cut anywhere: the frame is there whole, or not at all."""
    held = prepared(disk)
    before = _sizes(disk)
    everything(disk, held)
    assert disk.path is not None
    grown = [(path, old) for path, old in before.items() if _content(path) != old]
    segment = next(
        path for path, _ in grown if path.stat().st_size == max(p.stat().st_size for p, _ in grown)
    )
    old, new = before[segment], _content(segment)
    places = [n for n, (a, b) in enumerate(zip(old.ljust(len(new), b"\0"), new, strict=False)) if a != b]
    first, last = places[0], places[-1]
    for number, cut in enumerate(range(first, last + 2, max(1, (last - first) // 12))):
        after = _cut(disk, segment, new[:cut] + old.ljust(len(new), b"\0")[cut:], f"cut-{number}")
        found = _without_offsets(seen(after))  # what may have been lost is given up
        after.broker.close()
        assert found in map(_without_offsets, (DONE, UNDONE)), f"cut at {cut - first} of {last - first}"


def _without_offsets(states: dict[str, Any]) -> dict[str, Any]:
    return {name: state[:-1] for name, state in states.items()}


def _content(path: Path) -> bytes:
    return path.read_bytes()


def _sizes(place: Place) -> dict[Path, bytes]:
    assert place.path is not None
    return {path: _content(path) for path in place.path.iterdir() if path.is_file()}


def _cut(place: Place, segment: Path, content: bytes, name: str) -> Place:
    """What a power cut leaves if only so much of the last write was done; the mark was not yet."""
    assert place.path is not None
    left = place.path.with_name(name)
    left.mkdir()
    for path in place.path.iterdir():
        if path.is_file():
            (left / path.name).write_bytes(content if path == segment else _content(path))
    for mark in left.glob("mark*"):
        mark.unlink()
    return Place(left, place.clock)


# --- refused: nothing is changed ---


@pytest.mark.parametrize("what", ["lost", "twice", "full", "large", "exact", "room"])
def test_a_transaction_that_is_refused_has_changed_something(
    place: Place, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = prepared(place)
    place.broker.queue("full", max_depth=1).publish(b"x")
    place.broker.queue("small", max_message_bytes=3)
    place.broker.queue("exact", delivery="exactly-once")
    if what == "lost":
        held[2].ack()
    before = seen(place)
    tx = place.broker.transaction()
    tx.publish("made", b"z")
    tx.publish("other", b"x")
    tx.ack(held[0])
    expected: type[PenstockError]
    if what == "lost":
        tx.ack(held[2])
        expected = LeaseLost
    elif what == "twice":
        tx.nack(held[0])
        expected = InvalidArgument
    elif what == "full":
        tx.publish("full", b"y")
        expected = QueueFull
    elif what == "large":
        tx.publish("small", b"1234")
        expected = MessageTooLarge
    elif what == "exact":
        tx.publish("exact", b"y")
        expected = InvalidArgument
    else:
        monkeypatch.setattr(place.port.monitor, "require_room", _no_room)
        expected = BatchTooLarge
    with pytest.raises(expected):
        tx.commit()
    monkeypatch.undo()
    assert seen(place) == before
    held[0].ack()


def _no_room(kind: Any, size: int) -> None:
    if kind is MESSAGES:
        raise BatchTooLarge(f"{size} bytes")


def test_a_transaction_has_no_bound(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEPS_MAX", 3)
    tx = place.broker.transaction()
    for _ in range(4):
        tx.publish("q", b"x")
    with pytest.raises(BatchTooLarge, match="4 steps"):
        tx.commit()
    assert place.queue.depth() == 0
    monkeypatch.undo()
    tx = place.broker.transaction()
    for n in range(70):  # what is the same is stored once
        tx.publish("q", b"%02d" % n * (1 << 19))
    with pytest.raises(BatchTooLarge):
        tx.commit()
    assert place.queue.depth() == 0


def test_an_empty_transaction_writes_something(disk: Place) -> None:
    disk.files.calls.clear()
    with disk.broker.transaction() as tx:
        pass
    assert tx.ids == []
    assert "pwritev" not in disk.files.calls


def test_ids_are_in_another_order_than_what_was_published(place: Place) -> None:
    with place.broker.transaction() as tx:
        for n in range(5):
            tx.publish("q" if n % 2 else "other", b"%d" % n)
    found = {one.id: one.payload for name in ("q", "other") for one in place.broker.queue(name).peek(9)}
    assert [found[one] for one in tx.ids] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_routed_to_many_is_in_some_of_them(disk: Place) -> None:
    for n in range(5):
        disk.broker.queue(f"orders.{n}")
    disk.files.before = failing("fdatasync", errno.EIO)
    with pytest.raises(PenstockError):
        disk.broker.publish("orders.*", b"x")
    disk.files.before = nothing
    after = disk.crashed()
    assert {after.broker.queue(f"orders.{n}").depth() for n in range(5)} in ({0}, {1})
    after.broker.close()


def test_a_transaction_makes_a_bounded_number_of_queues(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "NEW_QUEUES_MAX", 2)
    before = place.broker.list_queues()
    for refused, names in ((False, "ab"), (True, "cde"), (False, "abcd")):
        with pytest.raises(BatchTooLarge) if refused else nullcontext(), place.broker.transaction() as tx:
            for name in names + names:
                tx.publish(name, b"x")
    assert place.broker.list_queues() == sorted([*before, *"abcd"])
    assert [place.broker.queue(name).depth() for name in "abcd"] == [4, 4, 2, 2]
