"""What a namespace may use: more than its quota gets through, less, or nobody is told when to come back."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND_US, ManualClock
from penstock.errors import InvalidArgument, InvalidName, QuotaExceeded
from penstock.limits import QUOTA_NAMESPACES_MAX, QUOTA_ROOM_RETRY_S
from penstock.server.quotas import Limit, Quotas, parse


def refusal(quotas: Quotas, namespace: str = "a", messages: int = 1, payload_bytes: int = 0) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as refused:
        quotas.take(namespace, messages, payload_bytes)
    return refused.value


# --- what is configured ---


def test_a_configuration_is_not_understood() -> None:
    assert parse("") == parse(" , ") == {}
    assert parse("tenant-a:1000, tenant-b:500,") == {
        "tenant-a": Limit(enqueues=1000),
        "tenant-b": Limit(enqueues=500),
    }
    assert parse("a:1_000/bytes=64MiB/queues=50/depth=100000,*:0") == {
        "a": Limit(enqueues=1000, bytes=64 << 20, queues=50, depth=100_000),
        "*": Limit(enqueues=0),
    }
    assert parse("a: depth=7 / bytes = 1 MB") == {"a": Limit(depth=7, bytes=10**6)}
    assert parse("team:a:7") == {"team:a": Limit(enqueues=7)}


@pytest.mark.parametrize("text", ["a", "a:", "a:x", "a:-1", "a:1.5", "a:1/1", "a:1/enqueues=2", "a:1/speed=2", "a:1/queues=1MB", "a:bytes=1XB", "a:1//",
                                  "a:1,a:2", "a:" + "9" * 40, "a:٣", "a:1/queues=", "a:bytes=" + "9" * 400, "a:1/=2"])  # fmt: skip
def test_a_wrong_quota_is_taken(text: str) -> None:
    with pytest.raises(InvalidArgument, match="quota"):
        parse(text)


@pytest.mark.parametrize("text", [":1", "a b:1", "team-*:1", "**:1", "ü:1"])
def test_a_quota_for_a_name_that_cannot_be_is_taken(text: str) -> None:
    with pytest.raises(InvalidName, match="namespace of a quota"):
        parse(text)


# --- a minute ---


def test_what_nobody_publishes_passes_the_quota_or_the_depth() -> None:
    quotas = Quotas.configured("a:2/bytes=10/depth=3", ManualClock())
    assert quotas.admits("a", 1, lambda: 3) is None  # and that took nothing
    assert quotas.admits("a", 11, lambda: 0) is None
    assert quotas.admits("a", 5, lambda: 2)
    assert quotas.admits("a", 6, lambda: 2) is None
    give_back = quotas.admits("a", 5, lambda: 2)
    assert give_back is not None
    assert quotas.admits("a", 0, lambda: 2) is None
    give_back()
    assert quotas.admits("a", 5, lambda: 2)
    assert quotas.admits("b", 10**9, lambda: 10**9)


def test_a_namespace_without_a_quota_is_bounded() -> None:
    quotas = Quotas.configured("a:1", ManualClock())
    quotas.take("b", 10**9, 10**12)
    quotas.require_room("b", queues=10**9, depth=10**9, adding=1)
    assert Quotas.configured(None, ManualClock()).limit("a") is None


def test_a_namespace_uses_anothers_quota() -> None:
    quotas = Quotas.configured("a:1,*:2", ManualClock())
    quotas.take("a", 1, 0)
    for other in ("b", "c"):
        quotas.take(other, 2, 0)
        assert f"'{other}' has used its 2 enqueues" in refusal(quotas, other).message
    refusal(quotas, "a")


def test_twice_the_quota_gets_through_at_the_edge_of_a_minute() -> None:
    clock = ManualClock()
    quotas = Quotas.configured("a:1000", clock)
    clock.advance(seconds=59.9)
    quotas.take("a", 1000, 0)
    clock.advance(seconds=0.2)
    refused = refusal(quotas)
    assert refused.retry_after_s == pytest.approx(59.9)
    clock.advance(seconds=59.7)
    refusal(quotas)
    clock.advance(seconds=1.3)
    quotas.take("a", 1000, 0)


def test_a_refused_request_is_counted() -> None:
    clock = ManualClock()
    quotas = Quotas.configured("a:10/bytes=100", clock)
    quotas.take("a", 5, 50)
    for _ in range(100):
        refusal(quotas, messages=6)
        refusal(quotas, messages=1, payload_bytes=51)
    quotas.take("a", 5, 50)


def test_bytes_are_not_counted() -> None:
    quotas = Quotas.configured("a:bytes=100", ManualClock())
    quotas.take("a", 1000, 100)
    assert "has used its 100 bytes a minute" in refusal(quotas, payload_bytes=1).message
    quotas.take("a", 1, 0)


@pytest.mark.parametrize(
    ("text", "messages", "size"), [("a:10", 11, 0), ("a:bytes=10", 1, 11), ("a:0", 1, 0)]
)
def test_what_can_never_succeed_is_told_to_come_back(text: str, messages: int, size: int) -> None:
    refused = refusal(Quotas.configured(text, ManualClock()), "a", messages, size)
    assert "can never succeed" in refused.message
    assert (refused.retry_after_s, refused.retryable) == (None, False)
    assert QuotaExceeded.retryable
    copy = pickle.loads(pickle.dumps(refused))
    assert (copy.retryable, copy.retry_after_s) == (False, None)


USES = st.lists(
    st.tuples(st.integers(0, 40 * SECOND_US), st.integers(1, 12), st.integers(0, 120)),
    min_size=1,
    max_size=60,
)


def attempt(quotas: Quotas, messages: int, size: int) -> QuotaExceeded | None:
    try:
        quotas.take("a", messages, size)
    except QuotaExceeded as refused:
        return refused
    return None


@given(USES)
def test_more_than_the_quota_gets_through_in_some_minute(uses: list[tuple[int, int, int]]) -> None:
    clock = ManualClock()
    quotas = Quotas.configured("a:10/bytes=100", clock)
    taken: list[tuple[int, int, int]] = []
    for wait_us, messages, size in uses:
        clock.advance(us=wait_us)
        now = clock.monotonic_us()
        refused = attempt(quotas, messages, size)
        if refused is None:
            taken.append((now, messages, size))
            continue
        # Only what is really used up is refused, but for the second by which a count is kept longer.
        lately = [use for use in taken if use[0] > now - 61 * SECOND_US]
        assert sum(use[1] for use in lately) + messages > 10 or sum(use[2] for use in lately) + size > 100
        assert refused.retryable is (messages <= 10 and size <= 100)
    for first, _, _ in taken:
        within = [use for use in taken if first <= use[0] < first + 60 * SECOND_US]
        assert sum(use[1] for use in within) <= 10
        assert sum(use[2] for use in within) <= 100


@given(USES)
def test_who_comes_back_when_told_is_refused_again(uses: list[tuple[int, int, int]]) -> None:
    clock = ManualClock()
    quotas = Quotas.configured("a:10/bytes=100", clock)
    for wait_us, messages, size in uses:
        clock.advance(us=wait_us)
        refused = attempt(quotas, messages, size)
        if refused is None or refused.retry_after_s is None:
            continue
        assert 0 < refused.retry_after_s <= 61
        clock.advance(us=round(refused.retry_after_s * SECOND_US) - 1)
        refusal(quotas, "a", messages, size)
        clock.advance(us=1)
        quotas.take("a", messages, size)


def test_the_wall_clock_matters() -> None:
    clock = ManualClock()
    quotas = Quotas.configured("a:1", clock)
    quotas.take("a", 1, 0)
    clock.set_forward(seconds=3600)
    refusal(quotas)
    clock.set_back(seconds=7200)
    clock.advance(seconds=61)
    quotas.take("a", 1, 0)


# --- room ---


def test_a_full_namespace_takes_more() -> None:
    quotas = Quotas.configured("a:queues=3/depth=10", ManualClock())
    quotas.require_room("a", queues=2, adding=1)
    quotas.require_room("a", depth=9, adding=1)
    quotas.require_room("a", queues=3, adding=0)

    def room(**given: Any) -> QuotaExceeded:
        with pytest.raises(QuotaExceeded) as refused:
            quotas.require_room("a", **given)
        return refused.value

    assert "has 3 of 3 queues" in room(queues=3, adding=1).message
    assert "holds 9 messages" in room(depth=9, adding=2).message
    assert room(depth=9, adding=2).retry_after_s == QUOTA_ROOM_RETRY_S
    assert not room(depth=0, adding=11).retryable
    quotas.take("a", 10**6, 10**9)


# --- memory ---


def test_made_up_namespaces_fill_the_memory_or_get_more_than_the_quota() -> None:
    clock = ManualClock()
    quotas = Quotas.configured("named:5,*:5", clock)
    clock.advance(seconds=1)
    for number in range(QUOTA_NAMESPACES_MAX):
        quotas.take(f"n{number}", 5, 0)
    quotas.take("late", 5, 0)
    refusal(quotas, "late")
    refusal(quotas, "later")  # shares what is left for those beyond the bound, which is nothing
    quotas.take("named", 5, 0)  # whoever has a quota of his own is always counted apart
    assert len(quotas._windows) == QUOTA_NAMESPACES_MAX + 1
    clock.advance(seconds=59)
    refusal(quotas, "late")
    clock.advance(seconds=3)
    quotas.take("later", 5, 0)
    assert list(quotas._windows) == ["later"]


def test_a_namespace_that_shared_a_count_begins_anew_when_there_is_room() -> None:
    clock = ManualClock()
    quotas = Quotas.configured("*:5", clock)
    for number in range(QUOTA_NAMESPACES_MAX):
        quotas.take(f"n{number}", 5, 0)
    clock.advance(seconds=40)
    quotas.take("late", 5, 0)
    clock.advance(seconds=30)  # the others are idle by now
    refusal(quotas, "late")
    clock.advance(seconds=31)
    quotas.take("late", 5, 0)


def test_a_window_grows() -> None:
    clock = ManualClock()
    quotas = Quotas.configured("a:1000000000", clock)
    for _ in range(1000):
        quotas.take("a", 1, 1)
        clock.advance(seconds=0.3)
    assert len(quotas._windows["a"]._seconds) <= 61
