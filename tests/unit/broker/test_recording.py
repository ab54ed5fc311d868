"""Engine and journal agree: what cannot be recorded is refused before anything changes, or it is the end of the broker."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import embedded
from penstock.broker.sync import Queue
from penstock.errors import BatchTooLarge, DiskFull, PenstockError
from penstock.limits import FRAME_BYTES_MAX
from penstock.model.commands import Redrive, Redriven
from tests import asking
from tests.unit.broker.patience import PATIENCE_S, start, until
from tests.unit.broker.test_embedded import Place, fill
from tests.unit.journal.watched import failing, nothing


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.broker.close()


# --- an append that fails ---


def fail_once(place: Place, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The next append raises, after the engine was changed."""
    journal: Any = place.port.monitor.journal
    whole = journal.append

    def broken(*arguments: Any, **others: Any) -> Any:
        monkeypatch.setattr(journal, "append", whole)
        raise error

    monkeypatch.setattr(journal, "append", broken)


def _publish(queue: Queue) -> Callable[[], object]:
    return lambda: queue.publish(b"lost", headers={"not": "plain"})


def _receive(queue: Queue) -> Callable[[], object]:
    return lambda: queue.receive_many(2)


def _ack(queue: Queue) -> Callable[[], object]:
    held = queue.receive_many(2)
    return lambda: queue.ack_many(held)


def _alter(queue: Queue) -> Callable[[], object]:
    return lambda: queue.alter(max_attempts=9)


@pytest.mark.parametrize("prepare", [_publish, _receive, _ack, _alter])
@pytest.mark.parametrize(
    "error", [BatchTooLarge("too large"), DiskFull("full"), MemoryError(), KeyboardInterrupt()], ids=repr
)
def test_a_broker_goes_on_ahead_of_what_was_recorded(
    disk: Place, monkeypatch: pytest.MonkeyPatch, error: BaseException, prepare: Any
) -> None:
    disk.queue.publish_many([b"0", b"1"])
    other = disk.broker.queue("other")
    waiting = start(other.receive, None)
    until(lambda: other.stats().waiting == 1)
    change = prepare(disk.queue)
    fail_once(disk, monkeypatch, error)
    with pytest.raises(type(error)):
        change()
    for refused in (disk.queue.receive, disk.queue.stats, disk.queue.purge, lambda: other.publish(b"x")):
        with pytest.raises(PenstockError) as caught:
            refused()
        assert not caught.value.retryable
    with pytest.raises(PenstockError):
        waiting.result(PATIENCE_S)
    after = disk.crashed()
    assert after.payloads() == [b"0", b"1"]
    after.broker.close()


# --- the reserve of a full disk ---


def test_a_reserve_that_is_used_up_ends_the_broker(tmp_path: Path) -> None:
    place = Place(tmp_path / "data", segment_bytes=65536)
    queue = place.broker.queue("held", max_attempts=None, visibility_timeout=None, backoff=None)
    queue.publish_many([b"%d" % number for number in range(2000)])
    held = queue.receive_many(2000)
    place.files.before = failing("posix_fallocate", errno.ENOSPC)
    with pytest.raises(DiskFull):
        fill(place.queue)
    refused = None
    for used, delivery in enumerate(held):
        try:
            delivery.nack(error="why " * 1000)
        except DiskFull:
            refused = used
            break
    assert refused, "the reserve was never used up"
    before = queue.stats()
    assert (before.leased, before.retrying + before.ready) == (2000 - refused, refused)
    for settle in (held[-1].nack, held[-1].reject):
        with pytest.raises(DiskFull):
            settle(error="why " * 1000)
    assert queue.stats() == before  # nothing was changed, and it answers
    place.files.before = nothing
    held[-1].nack(error="there is room")
    queue.ack_many(held[refused:-1])
    assert queue.depth() == refused + 1
    after = place.crashed()
    assert after.broker.queue("held").depth() == refused + 1
    after.broker.close()
    place.broker.close()


# --- offsets that damage may have held ---


@pytest.mark.parametrize("published", ["one", "many"])
def test_the_offsets_of_a_damaged_end_are_used_again(disk: Place, published: str) -> None:
    disk.queue.publish(b"whole")
    damaged = [b"damaged %d" % number for number in range(1 if published == "one" else 3)]
    disk.queue.publish_many(damaged)
    (segment,) = damage_last(disk, damaged[-1])
    after = Place(segment.parent, disk.clock)
    found = asking.broker_stats(after.port).journal
    assert [damage.spans for damage in found.damage] == [[(1, 1, len(damaged))]]
    following = 1 + len(damaged)
    assert (after.queue.stats().next_offset, after.queue.depth()) == (following, 1)
    after.queue.publish(b"plain")
    after.queue.publish(b"not plain", headers={"a": "b"})
    got = [(one.offset, one.payload) for one in after.queue.receive_many(9)]
    assert got == [(0, b"whole"), (following, b"plain"), (following + 1, b"not plain")]
    after.broker.close()
    again = Place(segment.parent, disk.clock)
    assert [(one.offset, one.payload) for one in again.queue.receive_many(9)] == got
    again.broker.close()


def damage_last(place: Place, payload: bytes) -> list[Path]:
    """The segments of what a kill would leave, with a bit of a payload flipped."""
    assert place.path is not None
    left = place.path.with_name("damaged")
    shutil.copytree(place.path, left)
    segments = sorted(left.glob("*.segment"))
    data = bytearray(segments[-1].read_bytes())
    data[data.rindex(payload)] ^= 1
    segments[-1].write_bytes(data)
    return segments


# --- dead letters that go back ---


def buried(queue: Queue, payloads: list[bytes]) -> Queue:
    for payload in payloads:
        queue.publish(payload)
        delivery = queue.receive()
        assert delivery is not None
        delivery.reject()
    return queue.dead_letters()


def test_dead_letters_of_more_bytes_than_a_commit_holds_stay_dead() -> None:
    place = Place(None)
    queue = place.broker.queue("large", max_message_bytes=16 << 20)
    letter = bytes(FRAME_BYTES_MAX // 3)
    dead = buried(queue, [letter] * 4)
    assert dead.redrive() == 4
    assert (queue.depth(), dead.depth()) == (4, 0)
    place.broker.close()


def test_a_unit_of_dead_letters_that_go_back_is_larger_than_its_bound(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "REDRIVEN_BYTES", 10_000)
    dead = buried(disk.queue, [b"%d " % number * 400 for number in range(10)] + [b"x" * 50_000] + [b"y"] * 3)
    steps: list[Redriven] = []
    while not steps or steps[-1].left[0] < steps[-1].left[1]:
        span = steps[-1].left if steps else None
        steps.append(asking.do(disk.port, dead._log, Redrive(span=span)))
    assert sum(step.moved for step in steps) == 14
    assert max(step.moved for step in steps) <= 10
    sizes = [len(payload) for payload in disk.payloads()]
    for step in steps:
        unit, sizes = sizes[: step.moved], sizes[step.moved :]
        assert sum(unit) <= 10_000 or len(unit) == 1
    assert dead.depth() == 0
