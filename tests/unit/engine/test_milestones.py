"""The sparse index of a log against a plain list: it never points past what is asked for, and it stays small."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine import milestones
from penstock.engine.change import Change
from penstock.engine.milestones import STRIDE, Milestones
from penstock.policy import altered
from tests.unit.engine.specimen import NOW, Machine


class Listed:
    """A log and, of each message in it, the time, the id and the size."""

    def __init__(self, **policy: Any) -> None:
        self.machine = Machine()
        self.log = self.machine.declare(**policy)
        self.times: list[int] = []
        self.ids: list[int] = []
        self.sizes: list[int] = []

    def publish(self, count: int, time_us: int, size: int = 0) -> None:
        """Whatever the clock says: another owner may have another."""
        self.machine.now_us = time_us
        self.ids += self.machine.publish(self.log, *[b"x" * size] * count)
        self.times += [time_us] * count
        self.sizes += [size] * count

    def alter(self, **policy: Any) -> None:
        change = Change()
        self.machine.engine.alter(self.log, altered(self.log.policy, **policy), self.machine.now_us, change)
        self.machine.done(change)

    def check(self, found: Milestones, start: int = 0) -> None:
        """Nothing from an offset on is passed over, wherever one begins to look."""
        for offset in range(start, len(self.times)):
            assert found.before_id(self.ids[offset]) <= offset
        youngest = [0, *accumulate(self.times, max)]
        for time_us in {moment for each in set(self.times) for moment in (each - 1, each, each + 1)}:
            begin = found.before_time(time_us)
            assert begin <= start or youngest[begin] < time_us

    def check_bytes(self, found: Milestones) -> None:
        whole = sum(self.sizes)
        for kept in (0, 1, whole // 2, whole, whole + 1):
            assert sum(self.sizes[found.beyond_bytes(kept) :]) >= min(kept, whole)


#: Batches as (messages, microseconds that pass, bytes of each). The counts reach over a stride.
batches = st.lists(
    st.tuples(st.integers(1, STRIDE + 10), st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=12
)
#: The same with clocks that are set back between two.
odd_batches = st.lists(
    st.tuples(st.integers(1, STRIDE + 10), st.integers(-200, 200), st.integers(0, 9)), min_size=1, max_size=12
)


@given(given=batches)
def test_in_a_plain_log_a_message_is_passed_over(given: list[tuple[int, int, int]]) -> None:
    listed = Listed()
    time_us = NOW
    for count, passed, size in given:
        time_us += passed
        listed.publish(count, time_us, size)
    listed.check(listed.log.milestones)


@given(given=odd_batches)
@example(given=[(1, 0, 0), (255, 100, 0), (1, -90, 0)])
def test_a_clock_that_was_set_back_has_a_plain_log_pass_over_a_message(
    given: list[tuple[int, int, int]],
) -> None:
    listed = Listed()
    time_us = NOW
    for count, passed, size in given:
        time_us += passed
        listed.publish(count, time_us, size)
    listed.check(listed.log.milestones)


@given(given=odd_batches)
@example(given=[(3, 100, 5), (3, -50, 5), (3, 20, 5)])
def test_in_a_log_that_keeps_messages_one_is_passed_over_or_a_byte_too_many(
    given: list[tuple[int, int, int]],
) -> None:
    listed = Listed(retain_bytes=1 << 40)
    time_us = NOW
    for count, passed, size in given:
        time_us += passed
        listed.publish(count, time_us, size)
    listed.check(listed.log.milestones)
    listed.check_bytes(listed.log.milestones)


@given(before=batches, after=batches)
@example(before=[(1, 0, 0), (255, 100, 0)], after=[(1, 100, 0)])
def test_a_log_that_keeps_messages_from_now_on_passes_one_over(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]
) -> None:
    listed = Listed()
    time_us = NOW
    for published, policy in (
        (before, {"retain_seconds": 3600.0}),
        (after, {"retain_seconds": None}),
        (before, {}),
    ):
        for count, passed, size in published:
            time_us += passed
            listed.publish(count, time_us, size)
        listed.alter(**policy)
    listed.check(listed.log.milestones)


@settings(max_examples=50)
@given(given=odd_batches, cut=st.integers(0, 2000), entries=st.integers(2, 8), exact=st.booleans())
def test_thinning_forgetting_or_storing_passes_one_over(
    given: list[tuple[int, int, int]], cut: int, entries: int, exact: bool
) -> None:
    found = Milestones()
    listed = Listed()
    time_us, offset = NOW, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(milestones, "ENTRIES_MAX", entries)
        for count, passed, size in given:
            time_us += passed if exact else abs(passed)
            first_id = offset + 1
            if exact or offset >= found.next:
                found.note(offset, time_us, time_us, first_id, count * size, 1 if exact else 4)
            listed.times += [time_us] * count
            listed.ids += range(first_id, first_id + count)
            listed.sizes += [size] * count
            offset += count
            assert len(found) <= entries
            found = Milestones.decode(found.encode())
    listed.check(found)
    if exact:
        listed.check_bytes(found)
    found.forget_before(cut)
    listed.check(found, start=cut)


def test_a_batch_with_several_times_counts_by_one_of_them() -> None:
    found = Milestones()
    found.note(0, 10, 90, 1, 0, 1)
    found.note(3, 50, 60, 4, 0, 1)
    assert (found.before_time(10), found.before_time(90), found.before_time(91)) == (0, 0, 3)


def test_an_empty_index_points_somewhere() -> None:
    found = Milestones()
    assert (found.before_id(5), found.before_time(5), found.beyond_bytes(5), found.time_before(0)) == (
        0,
        0,
        0,
        None,
    )
    found.forget_before(7)
    assert len(found) == 0


def test_looking_begins_too_far_away() -> None:
    listed = Listed()
    for n in range(2000):
        listed.publish(1, NOW + n)
    found = listed.log.milestones
    for offset in range(0, 2000, 97):
        assert offset - found.before_id(listed.ids[offset]) <= STRIDE
        assert offset - found.before_time(listed.times[offset]) <= STRIDE + 1


def test_where_messages_are_kept_looking_begins_elsewhere_than_at_the_batch() -> None:
    listed = Listed(retain_seconds=3600)
    for n in range(100):
        listed.publish(3, NOW + n, 5)
    found = listed.log.milestones
    assert list(map(found.before_id, listed.ids)) == [offset - offset % 3 for offset in range(300)]
    assert found.before_time(NOW + 50) == 150
    assert found.beyond_bytes(15) == 297
    assert found.beyond_bytes(16) == 294
    assert found.time_before(0) == NOW
    assert found.time_before(297) is None


def test_memory_grows_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milestones, "ENTRIES_MAX", 64)
    found = Milestones()
    for offset in range(10_000):
        found.note(offset, NOW + offset, NOW + offset, offset + 1, 1, 1)
    assert len(found) <= 64
    # What is left is spread evenly: an entry in at most four strides of the ideal.
    assert max(offset - found.before_id(offset + 1) for offset in range(10_000)) <= 4 * 10_000 // 64


def test_what_is_stored_is_another_index() -> None:
    found = Milestones()
    for offset in range(50):
        found.note(offset, NOW + offset, NOW + offset, offset + 1, 3, 1)
    twin = Milestones.decode(found.encode())
    for index in (found, twin):
        index.note(50, NOW, NOW, 51, 3, 1)
    assert twin.encode() == found.encode()


def test_forgetting_takes_the_entry_that_covers_an_offset() -> None:
    found = Milestones()
    for offset in range(0, 100, 10):
        found.note(offset, NOW + offset, NOW + offset, offset + 1, 0, 1)
    found.forget_before(35)
    assert (len(found), found.before_id(36)) == (7, 30)
    found.forget_before(35)
    assert len(found) == 7


def test_a_policy_without_retention_counts_every_publish() -> None:
    listed = Listed()
    listed.publish(5, NOW)
    listed.publish(5, NOW)
    assert len(listed.log.milestones) == 1
