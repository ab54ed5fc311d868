from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.engine.like import compile_like, steps_of
from penstock.errors import InvalidArgument
from penstock.limits import FILTER_CHARS_MAX, HEADERS_BYTES_MAX

# Few letters, so that patterns and texts meet often; a line end and a letter outside ASCII, so that they are met too.
LETTERS = "ab\né."
PATTERNS = st.text(alphabet=LETTERS + "%_", max_size=8) | st.lists(
    st.sampled_from(["a", "b", "%", "%", "_"]), max_size=8
).map("".join)
TEXTS = st.text(alphabet=LETTERS + "%_", max_size=12) | st.text(alphabet="ab", max_size=6)


def naive(pattern: str, text: str) -> bool:
    """By the definition: every way to divide the text, from left to right."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(naive(pattern[1:], text[start:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and naive(pattern[1:], text[1:])


@given(PATTERNS, TEXTS)
@example("a%a", "a")  # the first and the last piece may not share a character
@example("%ab%b", "aab")  # nor may one between and the last
@example("a%a%", "ab")  # nor the first and one between
@example("%ab%b%", "ab")  # nor two between
@example("a%_", "a")
@example("%", "")
@example("", "")
@example("", "a")
def test_a_text_is_matched_otherwise_than_the_definition_says(pattern: str, text: str) -> None:
    assert compile_like(pattern)(text) is naive(pattern, text)


@given(PATTERNS, TEXTS, st.sampled_from("!\\a%_"))
def test_an_escaped_pattern_matches_anything_but_itself(pattern: str, text: str, escape: str) -> None:
    literally = "".join(escape + each if each in ("%", "_", escape) else each for each in pattern)
    assert compile_like(literally, escape)(text) is (text == pattern)
    assert compile_like(literally, escape)(pattern)


@given(TEXTS, st.text(alphabet=LETTERS, max_size=4))
def test_something_before_or_after_is_not_allowed_by_a_percent_sign(around: str, inner: str) -> None:
    for pattern in (f"%{inner}%", f"%%{inner}%%"):
        assert compile_like(pattern)(around + inner + around)
    assert compile_like(f"{inner}%")(inner + around)
    assert compile_like(f"%{inner}")(around + inner)


@pytest.mark.parametrize(
    ("pattern", "escape", "said"),
    [
        ("a!", "!", "'!' is followed by nothing"),
        ("!!!", "!", "'!' is followed by nothing"),
        ("!a", "!", "'!' is followed by 'a'"),
        ("%a", "%", "'%' is followed by 'a'"),
    ],
)
def test_an_escape_character_before_anything_else_is_taken(pattern: str, escape: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        compile_like(pattern, escape)


@pytest.mark.parametrize("piece", ["a%", "a_%", "%a", "_%a", "aaaaaaab%", "a%b%", "_"])
def test_a_long_pattern_takes_for_ever_on_a_long_text(piece: str) -> None:
    # One regular expression with a `.*` for each `%` does not end in a lifetime here; the test's timeout would tell.
    pattern = "%" + piece * (FILTER_CHARS_MAX // len(piece)) + "c%"
    assert compile_like(pattern)("a" * HEADERS_BYTES_MAX) is False


@pytest.mark.parametrize("escape", [None, "!"])
def test_underscores_around_a_piece_match_any_characters(escape: str | None) -> None:
    for pattern, text in [("%__b_%", "aab."), ("%_", "a"), ("%_%", "a"), ("%_a%_b_%c_", "aababbca")]:
        assert compile_like(pattern, escape)(text) is naive(pattern, text) is True
    for pattern, text in [("%__b_%", "ab."), ("%__b_%", "aab"), ("%_%", ""), ("%_b%__c%", "abac")]:
        assert compile_like(pattern, escape)(text) is naive(pattern, text) is False


def test_steps_count_what_a_character_of_a_text_costs() -> None:
    assert steps_of("a%") == 0  # found at its place or nowhere
    assert steps_of("%" + "_" * 4000 + "x%") == steps_of("%x%")  # it is searched for as plain text
    assert steps_of("%" + "a_" * 50 + "b%") == 101
