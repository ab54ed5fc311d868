"""A dead letter says where it came from, and goes back as it was."""

from __future__ import annotations

import pytest

from penstock.argument import error_text, quoted
from penstock.clock import ManualClock
from penstock.engine import letter
from penstock.limits import ERROR_CHARS_MAX
from tests.conformance.oddities import Faceless, Mute, Sullen, SullenText

NOW = ManualClock.START_US


def dead(headers: dict[str, str] | None = None, error: str | None = "boom", id: int = 7) -> dict[str, str]:
    return letter.headers_of(
        headers, origin="orders", group="default", id=id, reason=letter.REJECTED, error=error, attempts=2,
        first_us=NOW, last_us=NOW + 1_500_000,
    )  # fmt: skip


def test_a_letter_says_too_little_or_too_much() -> None:
    assert dead({"type": "order"}) == {
        "type": "order",
        "x-origin": "orders",
        "x-origin-group": "default",
        "x-origin-id": "7",
        "x-reason": "rejected",
        "x-error": "boom",
        "x-attempts": "2",
        "x-first-failure": "2026-01-01T00:00:00+00:00",
        "x-last-failure": "2026-01-01T00:00:01.500000+00:00",
    }


def test_a_letter_changes_the_headers_it_was_made_of() -> None:
    given = {"type": "order"}
    dead(given)
    assert given == {"type": "order"}


@pytest.mark.parametrize("error", [None, ""])
def test_the_error_of_an_earlier_failure_is_told_again(error: str | None) -> None:
    assert "x-error" not in dead({"x-error": "of yesterday"}, error)


def test_a_message_that_fails_twice_forgets_its_first_id() -> None:
    back = letter.headers_back(dead(id=7))
    assert back == {"x-origin-id": "7"}
    assert dead(back, id=8)["x-origin-id"] == "7"


def test_a_header_of_the_publisher_is_lost_on_the_way_back() -> None:
    given = {"type": "order", "x-other": "1"}
    assert letter.headers_back(dead(given)) == {**given, "x-origin-id": "7"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, None),
        ("plain", "plain"),
        (ValueError("no such customer"), "ValueError: no such customer"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (404, "404"),
        ("a\ud800b", "a?b"),
        ("e" * ERROR_CHARS_MAX, "e" * ERROR_CHARS_MAX),
        ("e" * (ERROR_CHARS_MAX + 1), "e" * (ERROR_CHARS_MAX - 1) + "…"),
        (Mute(), "Mute"),
        (Sullen(), "Sullen"),
        (SullenText("text"), "SullenText"),
        (10**5000, "int"),
        (Faceless(), "Faceless"),
    ],
    ids=quoted,
)
def test_an_error_is_not_told_or_grows_without_a_bound(error: object, text: str | None) -> None:
    assert error_text(error) == text
