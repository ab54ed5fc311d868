"""What a caller gives becomes columns, whole or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import limits
from penstock.broker import compose
from penstock.clock import SECOND_US, ManualClock, to_datetime
from penstock.errors import BatchTooLarge, InvalidArgument, MessageExpired, MessageTooLarge
from penstock.message import Message
from penstock.policy import Policy

NOW = ManualClock.START_US
PLAIN = Policy.of()


def batch_of(*messages: Any, **policy: Any) -> Any:
    return stored(list(messages), Policy.of(**policy))


def stored(messages: Any, policy: Policy = PLAIN, set_back_us: int = 0) -> Any:
    return compose.stored(compose.publish_of(messages), policy, NOW, set_back_us)


# --- bad input ---


@pytest.mark.parametrize("given", [b"x", "x", Message(b"x"), None, 7, object()])
def test_something_that_is_no_list_is_published(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="messages is a"):
        stored(given)


@pytest.mark.parametrize("given", [[], (), iter([]), {}])
def test_nothing_becomes_a_message(given: Any) -> None:
    assert stored(given).payloads == []


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        7,
        None,
        bytearray(b"x"),
        memoryview(b"x"),
        [b"x"],
        Message("text"),  # type: ignore[arg-type]
        Message(b"", headers=[("a", "b")]),  # type: ignore[arg-type]
        Message(b"", headers={"": "b"}),
        Message(b"", headers={"a": 1}),  # type: ignore[dict-item]
        Message(b"", headers={"a": "\ud800"}),
        Message(b"", key=""),
        Message(b"", key="\ud800"),
        Message(b"", key=7),  # type: ignore[arg-type]
        Message(b"", key="k" * (limits.KEY_BYTES_MAX + 1)),
        Message(b"", dedup_id=""),
        Message(b"", dedup_id="d" * (limits.DEDUP_ID_BYTES_MAX + 1)),
        Message(b"", priority=256),
        Message(b"", priority=-1),
        Message(b"", priority=True),
        Message(b"", priority=1.0),  # type: ignore[arg-type]
        Message(b"", delay=-1),
        Message(b"", delay=float("nan")),
        Message(b"", delay=float("inf")),
        Message(b"", delay=limits.DURATION_S_MAX + 1),
        Message(b"", delay="5"),  # type: ignore[arg-type]
        Message(b"", ttl=0),
        Message(b"", ttl=5, delay=5),
        Message(b"", delay=5, deliver_at=datetime(2030, 1, 1, tzinfo=UTC)),
        Message(b"", ttl=5, expires_at=datetime(2030, 1, 1, tzinfo=UTC)),
        Message(b"", deliver_at=datetime(2030, 1, 1)),  # noqa: DTZ001
        Message(b"", deliver_at="soon"),  # type: ignore[arg-type]
        Message(
            b"", deliver_at=datetime(2030, 1, 2, tzinfo=UTC), expires_at=datetime(2030, 1, 1, tzinfo=UTC)
        ),
    ],
    ids=repr,
)
def test_one_bad_message_among_good_ones_is_published(bad: Any) -> None:
    for given in ([bad], [b"good", bad], [Message(b"good"), bad, b"good"]):
        with pytest.raises(InvalidArgument):
            stored(given)


def test_a_message_above_the_bound_of_all_queues_is_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of its own queue is looked at when it is published."""
    monkeypatch.setattr(compose, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(MessageTooLarge):
        batch_of(b"ok", Message(b"x" * 11))


def test_a_batch_of_too_many_is_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "MESSAGES_MAX", 3)
    assert batch_of(b"", b"", b"").payloads == [b"", b"", b""]
    with pytest.raises(BatchTooLarge):
        batch_of(b"", b"", b"", b"")


@pytest.mark.parametrize("late_us", [0, 1, 10**12])
def test_a_message_whose_time_is_over_is_published(late_us: int) -> None:
    with pytest.raises(MessageExpired):
        batch_of(b"good", Message(b"", expires_at=to_datetime(NOW - late_us)))


# --- columns ---


def test_a_plain_batch_has_columns() -> None:
    batch = batch_of(b"a", b"bcd")
    assert (batch.payloads, batch.size, batch.priority, batch.timestamp_us) == ([b"a", b"bcd"], 4, 100, NOW)
    for name in ("deliver_at", "expires_at", "key", "dedup_id", "headers", "target_group", "properties"):
        assert getattr(batch, name) is None


def test_a_callers_list_changes_what_was_published() -> None:
    given = [b"a", b"b"]
    batch = stored(given)
    given.clear()
    assert batch.payloads == [b"a", b"b"]
    headers = {"a": "1"}
    batch = batch_of(Message(b"", headers=headers))
    headers["a"] = "2"
    assert batch.headers == [{"a": "1"}]


def test_one_value_for_all_becomes_a_list() -> None:
    end = to_datetime(NOW + 10**9)
    batch = batch_of(*[Message(b"x", priority=3, delay=5, expires_at=end) for _ in range(4)])
    assert (batch.priority, batch.deliver_at, batch.expires_at) == (3, NOW + 5 * SECOND_US, NOW + 10**9)


def test_differing_values_become_one() -> None:
    batch = batch_of(
        Message(b"0", priority=3, key="k", ttl=9),
        b"1",
        Message(b"2", delay=timedelta(seconds=2), dedup_id="d"),
    )
    assert batch.payloads == [b"0", b"1", b"2"]
    assert batch.priority == [3, 100, 100]
    assert batch.deliver_at == [None, None, NOW + 2 * SECOND_US]
    assert batch.expires_at == [NOW + 9 * SECOND_US, None, None]
    assert (batch.key, batch.dedup_id, batch.headers) == (["k", None, None], [None, None, "d"], None)


def test_any_iterable_is_refused() -> None:
    for given in ((b"a", b"b"), iter([b"a", b"b"]), dict.fromkeys([b"a", b"b"])):
        assert stored(given).payloads == [b"a", b"b"]


class Bytes(bytes):
    """Somebody's own kind."""


def test_a_kind_of_bytes_is_refused() -> None:
    assert batch_of(Bytes(b"a"), b"b").payloads == [b"a", b"b"]


# --- times ---


def test_a_moment_in_the_past_is_kept_as_it_was_given() -> None:
    for moment in (NOW, NOW - 1, 0):
        message = Message(b"", deliver_at=to_datetime(moment))
        assert stored([message]).deliver_at == moment
    assert stored([message], set_back_us=NOW).deliver_at == 0
    assert batch_of(Message(b"", delay=0)).deliver_at is None
    assert batch_of(Message(b"", deliver_at=to_datetime(NOW + 1))).deliver_at == NOW + 1


def test_the_ttl_of_the_queue_counts_before_the_messages_own() -> None:
    end = NOW + 60 * SECOND_US
    assert batch_of(b"a", b"b", ttl=60).expires_at == end
    assert batch_of(Message(b"a", key="k"), b"b", ttl=60).expires_at == end
    assert batch_of(Message(b"a", ttl=5), b"b", ttl=60).expires_at == [NOW + 5 * SECOND_US, end]
    assert batch_of(Message(b"a", ttl=5), Message(b"b", ttl=5), ttl=60).expires_at == NOW + 5 * SECOND_US
    assert batch_of(Message(b"a", ttl=90), ttl=60).expires_at == NOW + 90 * SECOND_US


def test_what_the_broker_gave_a_message_is_kept_when_it_is_published_again() -> None:
    read = Message(b"a", id=7, offset=3, timestamp=to_datetime(5))
    batch = batch_of(read)
    assert (list(batch.ids), batch.timestamp_us, batch.first) == ([], NOW, -1)
