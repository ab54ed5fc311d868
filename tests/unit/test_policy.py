from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument, InvalidName
from penstock.limits import ATTEMPTS_MAX, COUNT_MAX, DURATION_S_MAX, MESSAGE_BYTES_MAX
from penstock.policy import Backoff, Policy, altered, checked, differences
from tests.conformance.oddities import Level, Word

# The defaults are promised in the documentation.
DEFAULTS = {
    "visibility_timeout": 30.0,
    "max_attempts": 3,
    "backoff": Backoff(initial=1, factor=2, maximum=300, jitter=0.1),
    "dead_letter": None,
    "ttl": None,
    "on_expire": "drop",
    "max_depth": None,
    "max_bytes": None,
    "overflow": "reject",
    "max_message_bytes": 1024 * 1024,
    "ordering": "fifo",
    "delivery": "at-least-once",
    "dedup_window": 300.0,
    "retain": "consumed",
    "retain_seconds": None,
    "retain_bytes": None,
    "strategy": "round-robin",
    "durable": True,
    "expires": None,
    "single_active": False,
}

# Another valid value of every field.
OTHERS = {
    "visibility_timeout": None,
    "max_attempts": None,
    "backoff": None,
    "dead_letter": "graveyard",
    "ttl": 60,
    "on_expire": "dead-letter",
    "max_depth": 1,
    "max_bytes": COUNT_MAX,
    "overflow": "drop-head",
    "max_message_bytes": MESSAGE_BYTES_MAX,
    "ordering": "key",
    "delivery": "at-most-once",
    "dedup_window": 0,
    "retain": "until-archived",
    "retain_seconds": timedelta(days=7),
    "retain_bytes": 1,
    "strategy": "random",
    "durable": False,
    "expires": 0.5,
    "single_active": True,
}

TIMES = ["visibility_timeout", "ttl", "dedup_window", "retain_seconds", "expires"]
POSITIVE_TIMES = ["visibility_timeout", "ttl", "retain_seconds", "expires"]
COUNTS = ["max_attempts", "max_depth", "max_bytes", "max_message_bytes", "retain_bytes"]
CHOICES = ["on_expire", "overflow", "ordering", "delivery", "retain", "strategy"]
FLAGS = ["durable", "single_active"]
REQUIRED = [
    "on_expire",
    "overflow",
    "max_message_bytes",
    "ordering",
    "delivery",
    "dedup_window",
    "retain",
    "durable",
]


def refused(field: str, value: Any) -> str:
    with pytest.raises((InvalidArgument, InvalidName)) as caught:
        Policy.of(**{field: value})
    assert field in caught.value.message
    with pytest.raises(type(caught.value)):
        altered(Policy(), **{field: value})
    with pytest.raises(type(caught.value)):
        differences(Policy(), {field: value})
    return caught.value.message


def test_a_default_has_changed() -> None:
    assert msgspec.structs.asdict(Policy()) == DEFAULTS
    assert Policy.of() == Policy()


@pytest.mark.parametrize("field", DEFAULTS)
def test_a_valid_value_is_refused_or_dropped(field: str) -> None:
    policy = Policy.of(**{field: OTHERS[field]})
    assert getattr(policy, field) != DEFAULTS[field]
    assert altered(Policy(), **{field: OTHERS[field]}) == policy
    assert [one.field for one in differences(Policy(), {field: OTHERS[field]})] == [field]
    assert differences(policy, {field: OTHERS[field]}) == []


@pytest.mark.parametrize("field", TIMES)
def test_a_time_means_another_thing_as_a_timedelta(field: str) -> None:
    assert (
        Policy.of(**{field: timedelta(minutes=1)}) == Policy.of(**{field: 60}) == Policy.of(**{field: 60.0})
    )
    assert type(getattr(Policy.of(**{field: 60}), field)) is float


@pytest.mark.parametrize("field", TIMES)
@pytest.mark.parametrize("value", [-1, float("nan"), True, "30", DURATION_S_MAX + 1, timedelta(seconds=-1)])
def test_a_senseless_time_is_taken(field: str, value: Any) -> None:
    assert repr(value) in refused(field, value)


@pytest.mark.parametrize("field", POSITIVE_TIMES)
@pytest.mark.parametrize("value", [0, 0.0, 1e-9, timedelta(0)])
def test_no_time_at_all_is_taken(field: str, value: Any) -> None:
    assert "more than 0 seconds" in refused(field, value)


@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", COUNT_MAX + 1])
def test_a_senseless_count_is_taken(field: str, value: Any) -> None:
    assert f"{field} is {value!r}; give an int from 1 to " in refused(field, value)


def test_a_count_above_its_column_is_taken() -> None:
    refused("max_attempts", ATTEMPTS_MAX + 1)
    refused("max_message_bytes", MESSAGE_BYTES_MAX + 1)


@pytest.mark.parametrize("field", CHOICES)
@pytest.mark.parametrize("value", ["", "LIFO", None, 1, ["fifo"]])
def test_an_unknown_choice_is_taken(field: str, value: Any) -> None:
    said = refused(field, value)
    assert repr(DEFAULTS[field]) in said
    assert repr(OTHERS[field]) in said


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_flag_that_is_no_bool_is_taken(field: str, value: Any) -> None:
    assert "give true or false" in refused(field, value)


@pytest.mark.parametrize("field", REQUIRED)
def test_none_is_taken_where_it_means_nothing(field: str) -> None:
    refused(field, None)


@pytest.mark.parametrize("value", ["a b", "", 7])
def test_an_invalid_name_for_dead_letters_is_taken(value: Any) -> None:
    refused("dead_letter", value)


def test_dead_letters_cannot_go_where_others_go() -> None:
    assert Policy.of(dead_letter="orders.dlq").dead_letter == "orders.dlq"


@pytest.mark.parametrize("value", [1, "exponential", {"initial": 1}])
def test_a_backoff_that_is_none_is_taken(value: Any) -> None:
    assert "give a Backoff" in refused("backoff", value)


def test_a_misspelt_field_is_ignored() -> None:
    for call in (
        Policy.of,
        lambda **given: altered(Policy(), **given),
        lambda **given: differences(Policy(), given),
    ):
        with pytest.raises(
            InvalidArgument, match="no policy field 'visibility_timeot'; did you mean 'visibility_timeout'"
        ):
            call(visibility_timeot=5)
    with pytest.raises(InvalidArgument, match="there are visibility_timeout, max_attempts, "):
        Policy.of(zzz=5)


@pytest.mark.parametrize(
    "fields",
    [
        {"delivery": "exactly-once", "dedup_window": 0},
        {"delivery": "exactly-once", "durable": False},
        {"retain": "until-archived", "durable": False},
        {"single_active": True, "strategy": "random"},
    ],
)
def test_a_contradiction_is_taken(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Policy.of(**fields)
    assert all(field in caught.value.message for field in fields)
    for field, value in fields.items():
        rest = {name: other for name, other in fields.items() if name != field}
        with pytest.raises(InvalidArgument):
            altered(Policy.of(**rest), **{field: value})


def test_altering_changes_the_original_or_forgets_the_rest() -> None:
    before = Policy.of(max_attempts=7)
    after = altered(before, ttl=60)
    assert (before.ttl, after.ttl, after.max_attempts) == (None, 60.0, 7)


def test_a_difference_is_not_named() -> None:
    found = differences(Policy(), {"ttl": 60, "visibility_timeout": 30, "ordering": "key"})
    assert [str(one) for one in found] == ["ttl is None, not 60.0", "ordering is 'fifo', not 'key'"]


def test_what_was_not_given_counts_as_a_difference() -> None:
    assert differences(Policy.of(max_attempts=9), {}) == []


SECONDS = st.floats(0.001, DURATION_S_MAX)
BACKOFFS = st.builds(
    lambda low, more, factor, jitter: Backoff(
        initial=low, maximum=min(DURATION_S_MAX, low + more), factor=factor, jitter=jitter
    ),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(1, 1000),
    st.floats(0, 1),
)
POLICIES = st.builds(
    Policy,
    visibility_timeout=st.none() | SECONDS,
    max_attempts=st.none() | st.integers(1, ATTEMPTS_MAX),
    backoff=st.none() | BACKOFFS,
    ttl=st.none() | SECONDS,
    max_depth=st.none() | st.integers(1, COUNT_MAX),
    dedup_window=st.floats(0, DURATION_S_MAX),
    ordering=st.sampled_from(["fifo", "key"]),
    single_active=st.booleans(),
)


@given(POLICIES)
def test_a_stored_policy_comes_back_changed(policy: Policy) -> None:
    for codec in (msgspec.msgpack, msgspec.json):
        stored = codec.encode(policy)
        assert codec.decode(stored, type=Policy) == policy
        assert codec.encode(codec.decode(stored, type=Policy)) == stored


@given(POLICIES)
def test_giving_a_stored_policy_again_is_a_conflict(policy: Policy) -> None:
    assert differences(policy, msgspec.structs.asdict(policy)) == []


def test_a_policy_of_an_older_or_newer_version_is_not_read() -> None:
    stored = msgspec.msgpack.encode({"max_attempts": 9, "from_the_future": 1})
    assert msgspec.msgpack.decode(stored, type=Policy) == Policy(max_attempts=9)


def test_a_damaged_policy_is_read() -> None:
    stored = msgspec.msgpack.encode({"max_attempts": 0})
    with pytest.raises(msgspec.ValidationError, match="max_attempts is 0"):
        msgspec.msgpack.decode(stored, type=Policy)


# --- backoff ---


def test_the_wait_does_not_grow_as_promised() -> None:
    backoff = Backoff(initial=1, factor=2, maximum=300, jitter=0)
    assert [backoff.delay_us(attempt, 0.5) // 1_000_000 for attempt in range(1, 12)] == [
        1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300,
    ]  # fmt: skip


def test_jitter_lengthens_the_wait_or_takes_too_much() -> None:
    backoff = Backoff(initial=10, jitter=0.1)
    assert [backoff.delay_us(1, unit) for unit in (0, 0.5, 1)] == [10_000_000, 9_500_000, 9_000_000]


def test_a_message_that_fails_for_years_overflows() -> None:
    assert Backoff(factor=1000, jitter=0).delay_us(ATTEMPTS_MAX, 0) == 300_000_000
    assert Backoff(factor=1, jitter=0).delay_us(ATTEMPTS_MAX, 0) == 1_000_000


def test_no_wait_is_not_possible() -> None:
    assert Backoff(initial=0, maximum=0).delay_us(5, 0.5) == 0
    assert Backoff(initial=0).delay_us(5, 0.5) == 0
    assert Backoff(initial=5, maximum=5, jitter=0).delay_us(5, 0) == 5_000_000


@given(BACKOFFS, st.integers(1, 200), st.floats(0, 1))
def test_a_wait_is_outside_its_bounds_or_shrinks(backoff: Backoff, attempt: int, unit: float) -> None:
    delay_us = backoff.delay_us(attempt, unit)
    assert 0 <= delay_us <= backoff.maximum * 1_000_000 + 1
    assert delay_us >= backoff.initial * (1 - backoff.jitter) * 1_000_000 - 1
    assert delay_us <= backoff.delay_us(attempt + 1, unit) + 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"initial": -1}, r"backoff\.initial is -1"),
        ({"initial": "1"}, r"backoff\.initial is '1'"),
        ({"maximum": float("inf")}, r"backoff\.maximum is inf"),
        ({"initial": 10, "maximum": 5}, r"backoff\.maximum is 5 and backoff\.initial is 10"),
        ({"factor": 0.5}, r"backoff\.factor is 0\.5; give a number from 1 to 1000"),
        ({"factor": float("nan")}, r"backoff\.factor is nan"),
        ({"factor": True}, r"backoff\.factor is True"),
        ({"factor": 1001}, r"backoff\.factor is 1001"),
        ({"jitter": 1.1}, r"backoff\.jitter is 1\.1; give a number from 0 to 1"),
        ({"jitter": -0.1}, r"backoff\.jitter is -0\.1"),
    ],
)
def test_a_senseless_backoff_is_taken(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Backoff(**fields)


def test_backoff_does_not_take_timedeltas() -> None:
    assert Backoff(initial=timedelta(seconds=2), maximum=timedelta(minutes=1)) == Backoff(
        initial=2, maximum=60
    )


@pytest.mark.parametrize(("attempt", "unit"), [(0, 0), (-1, 0), (1, 1.5), (1, -0.1)])
def test_a_senseless_attempt_gets_a_wait(attempt: int, unit: float) -> None:
    with pytest.raises(InvalidArgument, match="attempt"):
        Backoff().delay_us(attempt, unit)


def test_checked_fields_are_not_as_a_policy_holds_them() -> None:
    found = checked({"ttl": timedelta(minutes=1), "max_attempts": Level.FIVE, "ordering": Word.KEY})
    assert found == {"ttl": 60.0, "max_attempts": 5, "ordering": "key"}
    assert [type(value) for value in found.values()] == [float, int, str]
    assert checked(found) == found
