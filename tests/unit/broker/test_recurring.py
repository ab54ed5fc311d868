from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.broker.recurring import (
    ALIASES,
    CRON_CHARS_MAX,
    Recurrence,
    due_between,
    next_due_us,
    recurrence,
)
from penstock.clock import SECOND_US, to_datetime, to_us
from penstock.errors import InvalidArgument, MissingExtra

BERLIN = "Europe/Berlin"
MINUTE_US = 60 * SECOND_US
DAY_US = 1440 * MINUTE_US
ALL = 10**9

# In 2026 Berlin's clocks go from 02:00 to 03:00 on March 29th, and from 03:00 back to 02:00 on October 25th.
SPRING, AUTUMN = datetime(2026, 3, 29), datetime(2026, 10, 25)  # noqa: DTZ001


def local(moment: datetime, timezone: str = BERLIN, **parts: int) -> int:
    return to_us(moment.replace(tzinfo=ZoneInfo(timezone), **parts))


def of_day(cron: str, day: datetime, timezone: str = BERLIN) -> list[str]:
    """The due times of a local day, as its clocks show them, with the offset."""
    due = due_between(
        recurrence(cron, timezone),
        local(day, timezone) - 1,
        local(day + timedelta(days=1), timezone) - 1,
        ALL,
    )
    return [to_datetime(us).astimezone(ZoneInfo(timezone)).strftime("%H:%M%z") for us in due]


def some(cron: str, timezone: str, start: datetime, count: int) -> list[str]:
    return [
        to_datetime(us).isoformat(sep=" ")[:19]
        for us in islice(one_by_one(recurrence(cron, timezone), to_us(start)), count)
    ]


def one_by_one(recurring: Recurrence, after_us: int) -> Iterator[int]:
    while True:
        after_us = next_due_us(recurring, after_us)
        yield after_us


# --- clocks that are put forward and back ---


def test_a_local_time_that_does_not_exist_is_left_out() -> None:
    assert of_day("30 2 * * *", SPRING) == ["03:00+0200"]
    assert of_day("30 2 * * *", SPRING - timedelta(days=1)) == ["02:30+0100"]
    assert of_day("30 2 * * *", SPRING + timedelta(days=1)) == ["02:30+0200"]


def test_local_times_that_do_not_exist_are_due_more_than_once_together() -> None:
    assert of_day("*/5 2 * * *", SPRING) == ["03:00+0200"]
    assert of_day("0 2,3 * * *", SPRING) == ["03:00+0200"]
    assert of_day("0,30 1-3 * * *", SPRING) == ["01:00+0100", "01:30+0100", "03:00+0200", "03:30+0200"]


def test_a_local_time_that_exists_twice_is_due_twice() -> None:
    assert of_day("30 2 * * *", AUTUMN) == ["02:30+0200"]
    assert of_day("0,30 2,3 * * *", AUTUMN) == ["02:00+0200", "02:30+0200", "03:00+0100", "03:30+0100"]


@pytest.mark.parametrize("cron", ["15 30 2 * * *", "30 2-2 * * *", "30 2 * * SUN", "*/30 30 2 * * *"])
def test_seconds_or_another_spelling_make_a_difference(cron: str) -> None:
    assert set(of_day(cron, SPRING)) == {"03:00+0200"}
    assert set(of_day(cron, AUTUMN)) == {"02:30+0200"}


def test_every_few_hours_is_due_twice_or_not_at_all() -> None:
    assert of_day("0 */2 * * *", SPRING)[:3] == ["00:00+0100", "03:00+0200", "04:00+0200"]
    assert of_day("0 */2 * * *", AUTUMN)[:3] == ["00:00+0200", "02:00+0200", "04:00+0100"]


@pytest.mark.parametrize("cron", ["@hourly", "0 * * * *", "0 0-23 * * *", "0 */1 * * *", "0 0 * * * *"])
def test_every_hour_is_not_due_every_hour(cron: str) -> None:
    for day, hours in ((SPRING, 23), (AUTUMN, 25)):
        due = due_between(recurrence(cron, BERLIN), local(day) - 1, local(day + timedelta(days=1)) - 1, ALL)
        assert due == list(range(local(day), local(day + timedelta(days=1)), 60 * MINUTE_US))
        assert len(due) == hours


def test_in_the_second_pass_of_an_hour_what_was_due_in_the_first_is_due_again() -> None:
    half_past_two = recurrence("30 2 * * *", BERLIN)
    tomorrow = local(AUTUMN + timedelta(days=1), hour=2, minute=30)
    assert next_due_us(half_past_two, local(AUTUMN, hour=2, minute=15, fold=0)) == local(
        AUTUMN, hour=2, minute=30, fold=0
    )
    assert next_due_us(half_past_two, local(AUTUMN, hour=2, minute=15, fold=1)) == tomorrow
    assert next_due_us(half_past_two, local(AUTUMN, hour=2, minute=45, fold=1)) == tomorrow


ZONES = {
    BERLIN: [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)],
    "America/New_York": [datetime(2026, 3, 8, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)],
    "Australia/Lord_Howe": [
        datetime(2026, 4, 5, tzinfo=UTC),
        datetime(2026, 10, 4, tzinfo=UTC),
    ],  # by half an hour
    "America/Santiago": [datetime(2026, 4, 5, tzinfo=UTC), datetime(2026, 9, 6, tzinfo=UTC)],  # at midnight
    "Pacific/Apia": [datetime(2011, 12, 30, tzinfo=UTC)],  # by a whole day
    "Asia/Kolkata": [datetime(2026, 1, 1, tzinfo=UTC)],  # never
    "UTC": [datetime(2026, 12, 31, tzinfo=UTC)],
}
PLACES = st.sampled_from([(zone, day) for zone, days in ZONES.items() for day in days])


def by_definition(
    minutes: set[int], hours: set[int], weekdays: set[int], zone: ZoneInfo, after_us: int, until_us: int
) -> list[int]:
    """Minute by minute."""

    def meant(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours and wall.isoweekday() % 7 in weekdays

    found = []
    for us in range(after_us // MINUTE_US * MINUTE_US + MINUTE_US, until_us + 1, MINUTE_US):
        now, before = (to_datetime(each).astimezone(zone) for each in (us, us - MINUTE_US))
        jump = (now.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
        if len(hours) == 24:
            due = meant(now)
        else:
            # The second pass of an hour has fold=1. After a jump, all that it left out is due.
            left_out = (now - timedelta(minutes=back) for back in range(jump // timedelta(minutes=1) + 1))
            due = not now.fold and any(map(meant, left_out))
        if due:
            found.append(us)
    return found


def written(chosen: set[int], all_of_them: int) -> str:
    return "*" if len(chosen) == all_of_them else ",".join(map(str, sorted(chosen)))


@given(
    st.sets(st.integers(0, 59), min_size=1, max_size=4),
    st.sets(st.integers(0, 4) | st.integers(0, 23), min_size=1, max_size=6) | st.just(set(range(24))),
    st.sets(st.integers(0, 6), min_size=1, max_size=3) | st.just(set(range(7))),
    PLACES,
    st.integers(-1440, 1440),
    st.integers(1, 5),
    st.integers(0, 59),
)
@example({0}, set(range(24)), {6}, ("America/Santiago", ZONES["America/Santiago"][0]), 0, 3, 0)
@example({0, 30}, set(range(24)), {0}, ("America/Santiago", ZONES["America/Santiago"][1]), -1440, 3, 0)
@example({0, 30}, {0, 12, 23}, set(range(7)), ("Pacific/Apia", ZONES["Pacific/Apia"][0]), -1440, 3, 0)
@example(
    {30}, set(range(24)), set(range(7)), ("Australia/Lord_Howe", ZONES["Australia/Lord_Howe"][0]), -541, 1, 0
)
@example({45}, {1, 2}, set(range(7)), ("Australia/Lord_Howe", ZONES["Australia/Lord_Howe"][0]), -1440, 3, 0)
def test_due_times_are_not_those_that_the_rule_gives(
    minutes: set[int],
    hours: set[int],
    weekdays: set[int],
    place: tuple[str, datetime],
    shift: int,
    most: int,
    seconds: int,
) -> None:
    timezone, day = place
    cron = f"{written(minutes, 60)} {written(hours, 24)} * * {written(weekdays, 7)}"
    recurring = recurrence(cron, timezone)
    after_us = to_us(day) + shift * MINUTE_US + seconds * SECOND_US
    until_us = after_us + 2 * DAY_US
    expected = by_definition(minutes, hours, weekdays, ZoneInfo(timezone), after_us, until_us)

    assert due_between(recurring, after_us, until_us, ALL) == expected
    assert due_between(recurring, after_us, until_us, most) == expected[-most:]
    assert list(islice(one_by_one(recurring, after_us), len(expected))) == expected
    assert next_due_us(recurring, (expected or [after_us])[-1]) > until_us


# --- what an expression means ---


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/20 * * * *", ["2026-01-01 00:20:00", "2026-01-01 00:40:00", "2026-01-01 01:00:00"]),
        ("*/20 * * * * *", ["2026-01-01 00:00:20", "2026-01-01 00:00:40", "2026-01-01 00:01:00"]),
        ("5 0 9 * * *", ["2026-01-01 09:00:05", "2026-01-02 09:00:05"]),
        ("0 9 * * MON-FRI", ["2026-01-01 09:00:00", "2026-01-02 09:00:00", "2026-01-05 09:00:00"]),
        ("0 9 * * mon", ["2026-01-05 09:00:00", "2026-01-12 09:00:00"]),
        ("0 0 13 * FRI", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),  # either
        ("0 0 L * *", ["2026-01-31 00:00:00", "2026-02-28 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 * 2 MON#5", ["2044-02-29 00:00:00", "2072-02-29 00:00:00", "2112-02-29 00:00:00"]),
        ("0 0 30 2 MON", ["2026-02-02 00:00:00", "2026-02-09 00:00:00"]),
        ("@hourly", ["2026-01-01 01:00:00", "2026-01-01 02:00:00"]),
        ("@daily", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("@midnight", ["2026-01-02 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("@annually", ["2027-01-01 00:00:00"]),
    ],
)
def test_an_expression_means_something_else(cron: str, expected: list[str]) -> None:
    assert some(cron, "UTC", datetime(2026, 1, 1, tzinfo=UTC), len(expected)) == expected


def test_the_zone_is_forgotten() -> None:
    start = datetime(2026, 7, 1, tzinfo=UTC)
    assert some("0 9 * * *", BERLIN, start, 1) == ["2026-07-01 07:00:00"]
    assert some("0 9 * * *", "Asia/Kolkata", start, 1) == ["2026-07-01 03:30:00"]
    assert some("@daily", "America/New_York", start, 1) == ["2026-07-01 04:00:00"]


def test_the_moment_itself_is_due_or_the_next_one_is_passed_over() -> None:
    minutely = recurrence("* * * * *", "UTC")
    assert next_due_us(minutely, 0) == MINUTE_US
    assert next_due_us(minutely, MINUTE_US - 1) == MINUTE_US
    assert next_due_us(minutely, MINUTE_US) == 2 * MINUTE_US
    assert next_due_us(minutely, -1) == 0
    assert due_between(minutely, 0, MINUTE_US, ALL) == [MINUTE_US]
    assert due_between(minutely, 0, MINUTE_US - 1, ALL) == []
    assert due_between(minutely, MINUTE_US, MINUTE_US, ALL) == []
    assert due_between(minutely, MINUTE_US, 0, ALL) == []
    assert due_between(minutely, 0, 10 * MINUTE_US, 0) == []


@pytest.mark.parametrize(
    ("cron", "count"),
    [
        ("* * * * * *", 3),  # 946 million of them
        ("* * * * 1 *", 3),  # dense in January, and then nothing for months
        ("* * 3 1 1 *", 4000),
        ("0 0 29 2 *", 7),
        ("0 0 * 2 MON#5", 1),
    ],
)
def test_looking_back_over_thirty_years_takes_for_ever(cron: str, count: int) -> None:
    # Counting them all does not end within the test's timeout.
    until_us = to_us(datetime(2025, 12, 31, tzinfo=UTC))
    after_us = to_us(datetime(1996, 12, 31, tzinfo=UTC))
    due = due_between(recurrence(cron, BERLIN), after_us, until_us, count)
    assert len(due) == count
    assert due == sorted(set(due))
    assert all(after_us < us <= until_us for us in due)
    assert list(islice(one_by_one(recurrence(cron, BERLIN), due[0] - 1), min(count, 10))) == due[:10]
    assert next_due_us(recurrence(cron, BERLIN), due[-1]) > until_us


def test_the_end_of_the_calendar_is_another_error() -> None:
    last_us = to_us(datetime.max.replace(tzinfo=UTC))
    for cron in ("@yearly", "* * * * *"):
        for after_us in (last_us, last_us + 1, 2 * last_us):
            with pytest.raises(InvalidArgument, match="is not due in the years after"):
                next_due_us(recurrence(cron, "UTC"), after_us)


# --- what is refused ---


@pytest.mark.parametrize(
    "cron",
    [
        "0 0 30 2 *",
        "0 0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 30 FEB *",
        "* * */20 * 1L",
    ],
)
def test_what_is_never_due_is_taken(cron: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        recurrence(cron, BERLIN)
    assert caught.value.message.startswith(f"the cron expression '{cron}' is never due")


@pytest.mark.parametrize(
    ("cron", "what", "character"),
    [
        ("60 * * * *", "bad minute '60'", 1),
        ("* 24 * * *", "bad hour '24'", 3),
        ("* * 0 * *", "bad day-of-month '0'", 5),
        ("* * 32 2 *", "bad day-of-month '32'", 5),
        ("* * * 13 *", "bad month '13'", 7),
        ("* * * * 8", "bad day-of-week '8'", 9),
        ("* * * * FRI-MON", "bad day-of-week 'FRI-MON'", 9),
        ("60 * * * * *", "bad second '60'", 1),
        ("0 x * * * *", "bad minute 'X'", 3),
        ("*/0 * * * *", "bad minute '*/0'", 1),
        ("1,, * * * *", "bad minute '1,,'", 1),
        ("5-1 * * * *", "bad minute '5-1'", 1),
        ("  *\t*   *  JANUARY *", "bad month 'JANUARY'", 12),
        ("* * * * frı", "unexpected 'ı'", 11),
        ("* * * * ²L", "unexpected '²'", 9),
    ],
)
def test_an_error_does_not_show_the_place(cron: str, what: str, character: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        recurrence(cron, "UTC")
    sentence, line, caret = caught.value.message.split("\n")
    assert sentence.lower().startswith(
        f"the cron expression is wrong: {what.lower()} at character {character}; give "
    )
    assert line == "  " + cron.replace("\t", " ")
    assert caret == " " * (character + 1) + "^"


def test_the_place_is_lost_in_a_long_expression() -> None:
    with pytest.raises(InvalidArgument) as caught:
        recurrence(",".join(map(str, range(60))) + " 24 * * *", "UTC")
    _, line, caret = caught.value.message.split("\n")
    assert line[caret.index("^") :].startswith("24 ")
    assert line.startswith("  …")


@pytest.mark.parametrize("cron", ["", " ", "*", "* * * *", "* * * * * * *"])
def test_too_few_or_too_many_fields_are_taken(cron: str) -> None:
    with pytest.raises(InvalidArgument, match=f"has {len(cron.split())} fields; give five .minute hour"):
        recurrence(cron, "UTC")


@pytest.mark.parametrize("cron", ["@reboot", "@", "@every 5m", "@dailyy"])
def test_an_unknown_alias_is_taken(cron: str) -> None:
    with pytest.raises(InvalidArgument, match=f"is '{cron}'; give @hourly, @daily, .*or five fields"):
        recurrence(cron, "UTC")


def test_an_expression_without_end_is_taken() -> None:
    with pytest.raises(InvalidArgument, match=f"has {CRON_CHARS_MAX + 1} characters; give at most"):
        recurrence("9" * (CRON_CHARS_MAX + 1), "UTC")
    everything = " ".join(
        ",".join(map(str, values))
        for values in (range(60), range(60), range(24), range(1, 32), range(1, 13), range(7))
    )
    assert recurrence(everything.ljust(CRON_CHARS_MAX), "UTC").cron == everything


@pytest.mark.parametrize("cron", [None, 5, b"* * * * *", ["*"] * 5])
def test_something_else_than_a_text_is_taken_for_an_expression(cron: object) -> None:
    with pytest.raises(InvalidArgument, match="the cron expression is .*; give a str"):
        recurrence(cron, "UTC")


@pytest.mark.parametrize("timezone", [None, 5, b"UTC", UTC, ZoneInfo(BERLIN)])
def test_something_else_than_a_name_is_taken_for_a_time_zone(timezone: object) -> None:
    with pytest.raises(InvalidArgument, match="the time zone is .*; give its name as a str"):
        recurrence("@daily", timezone)


@pytest.mark.parametrize(
    ("timezone", "advice"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("europe/berlin", "did you mean 'Europe/Berlin'"),
        ("utc", "did you mean 'UTC'"),
        ("Mars/Olympus", "give a name such as 'Europe/Berlin' or 'UTC'"),
        ("", "give a name such as"),
        ("Europe", "did you mean"),  # a directory of the data
        ("zone.tab", "give a name such as"),  # a file of the data, but not a time zone
        ("../../etc/passwd", "give a name such as"),
        ("/etc/passwd", "give a name such as"),
        ("\0", "give a name such as"),
        ("\ud800", "give a name such as"),
        ("x" * 5000, "give a name such as"),
    ],
)
def test_an_unknown_time_zone_is_taken(timezone: str, advice: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^the time zone .* is not known; {advice}"):
        recurrence("@daily", timezone)


@given(st.text(alphabet="0123456789*/-,#LW MONJAN@", max_size=30) | st.text(max_size=20))
@example("* * * * 1L/2")
@example("* * L/2 * *")
@example("0 0 LW,31 2 *")
@example("* * L-3 * *")
def test_some_expression_fails_otherwise_than_it_should(cron: str) -> None:
    try:
        recurring = recurrence(cron, BERLIN)
    except InvalidArgument:
        return
    assert recurrence(recurring.cron, BERLIN) == recurring
    assert next_due_us(recurring, 0) > 0


# --- what is kept ---


def test_two_that_say_the_same_differ_by_their_spaces() -> None:
    assert recurrence("  0\t9  * * *\n", "UTC") == recurrence("0 9 * * *", "UTC")
    assert recurrence(" @Daily ", "UTC") == Recurrence(ALIASES["@daily"], "UTC")


def test_an_argument_of_a_class_of_its_own_is_kept() -> None:
    class Times(StrEnum):
        NOON = "0 12 * * *"
        ZONE = "UTC"

    recurring = recurrence(Times.NOON, Times.ZONE)
    assert type(recurring.cron) is type(recurring.timezone) is str


def test_a_stored_recurrence_comes_back_otherwise() -> None:
    recurring = recurrence("0 9 * * MON", BERLIN)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(recurring), type=Recurrence) == recurring


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (Recurrence("0 9 * * *", "Mars/Olympus"), "the time zone 'Mars/Olympus' is not known"),
        (Recurrence("0 25 * * *", BERLIN), "bad hour '25' at character 3"),
        (Recurrence("0 9 *", BERLIN), "the cron expression '0 9 \\*' is wrong: wrong number of fields"),
    ],
)
def test_a_stored_recurrence_that_cannot_be_read_is_another_error(stored: Recurrence, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        next_due_us(stored, 0)
    with pytest.raises(InvalidArgument, match=said):
        due_between(stored, 0, DAY_US, 1)


# --- what is not installed ---


def test_without_cronsim_nobody_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)  # so an import fails as if it were not there
    with pytest.raises(MissingExtra, match=r'pip install "penstock\[schedule\]"'):
        recurrence("@daily", "UTC")
    with pytest.raises(MissingExtra, match=r'pip install "penstock\[schedule\]"'):
        next_due_us(Recurrence("0 0 * * *", "UTC"), 0)


def test_without_time_zone_data_nobody_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.recurring.available_timezones", set)
    with pytest.raises(InvalidArgument, match="pip install tzdata"):
        recurrence("@daily", "Mars/Olympus")
    assert recurrence("@daily", "UTC").timezone == "UTC"


def test_cronsim_is_imported_before_it_is_needed() -> None:
    told = "import sys, penstock.broker.recurring; sys.exit('cronsim' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], check=False).returncode == 0
