from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidName
from penstock.limits import NAME_CHARS_MAX
from penstock.names import check_name, dead_letter_name, is_dead_letter_name

FIRST = string.ascii_letters + string.digits + "_"
PLAIN_CHARS_MAX = NAME_CHARS_MAX - len(".dlq")


@pytest.mark.parametrize(
    "name", ["a", "_", "7", "Orders", "a.b-c_d:e@f", "amq.gen-x1", "x.dlqs", "dlq", "x-dlq"]
)
def test_a_valid_name_is_refused(name: str) -> None:
    assert check_name(name) == name


@given(st.text(alphabet=FIRST, min_size=1, max_size=1), st.text(alphabet=FIRST + ".-:@", max_size=250))
def test_some_valid_name_is_refused(first: str, rest: str) -> None:
    name = (first + rest).removesuffix(".dlq")
    assert check_name(name, reserved_ok=True) == name


@given(st.text(max_size=20))
def test_a_name_outside_the_alphabet_is_taken(name: str) -> None:
    try:
        check_name(name, reserved_ok=True)
    except InvalidName:
        return
    assert name
    assert name[0] in FIRST
    assert set(name) <= set(FIRST + ".-:@")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("new orders", "' ' at character 4"),
        (".hidden", r"'\.' at character 1"),
        ("-rf", "'-' at character 1"),
        ("../etc", r"'\.' at character 1"),
        ("a/b", "'/' at character 2"),
        ("a\n", r"'\\n' at character 2"),
        ("a\x00", "at character 2"),
        ("größe", "'ö' at character 3"),
        ("a" + "٣", "at character 2"),
        ("x" * (PLAIN_CHARS_MAX + 1), f"{PLAIN_CHARS_MAX + 1} characters; use at most {PLAIN_CHARS_MAX}"),
        ("orders.dlq", "reserved"),
        (".dlq", "at character 1"),
    ],
)
def test_an_invalid_name_is_taken_or_not_explained(name: str, said: str) -> None:
    with pytest.raises(InvalidName, match=said):
        check_name(name)


@pytest.mark.parametrize("wrong", [None, 7, b"orders", ["orders"]])
def test_something_that_is_no_text_is_taken(wrong: Any) -> None:
    with pytest.raises(InvalidName, match="give a str"):
        check_name(wrong)


def test_the_message_does_not_say_whose_name_it_is() -> None:
    with pytest.raises(InvalidName, match="^the namespace 'a b' has"):
        check_name("a b", kind="namespace")


def test_the_longest_name_leaves_no_room_for_its_dead_letters() -> None:
    longest = dead_letter_name("x" * PLAIN_CHARS_MAX)
    assert len(longest) == NAME_CHARS_MAX
    assert check_name(longest, reserved_ok=True) == longest


def test_the_reserved_suffix_makes_any_name_long_enough() -> None:
    with pytest.raises(InvalidName, match=f"at most {NAME_CHARS_MAX}"):
        check_name("x" * (PLAIN_CHARS_MAX + 1) + ".dlq", reserved_ok=True)


def test_dead_letters_have_dead_letters() -> None:
    assert is_dead_letter_name(dead_letter_name("orders"))
    assert not is_dead_letter_name("orders")
    with pytest.raises(InvalidName, match="none of its own"):
        dead_letter_name("orders.dlq")
    with pytest.raises(InvalidName, match="dead letters of dead letters"):
        check_name("orders.dlq.dlq", reserved_ok=True)


def test_an_invalid_name_gets_dead_letters() -> None:
    with pytest.raises(InvalidName, match="at character 2"):
        dead_letter_name("a b")
