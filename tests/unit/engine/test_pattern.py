from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from enum import StrEnum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.engine.pattern import compile_pattern, is_pattern
from penstock.errors import InvalidArgument, InvalidName
from penstock.limits import NAME_CHARS_MAX
from penstock.names import check_name

# Few words, so that patterns and names meet often.
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#", "#"]), min_size=1, max_size=8).map(".".join)
NAMES = st.lists(st.sampled_from(["a", "b", ""]), max_size=8).map(".".join) | st.lists(
    st.sampled_from("ab"), max_size=5
).map(".".join)


def naive(pattern: list[str], name: list[str]) -> bool:
    """By the definition: every number of words for each `#`, from left to right."""
    if not pattern:
        return not name
    if pattern[0] == "#":
        return any(naive(pattern[1:], name[start:]) for start in range(len(name) + 1))
    return bool(name) and pattern[0] in ("*", name[0]) and naive(pattern[1:], name[1:])


@given(PATTERNS, NAMES)
@example("#", "")
@example("*", "")
@example("#.#", "")
@example("#.*", "")
@example("#.*.#", "a")
@example("a.#", "a")
@example("#.a", "a")
@example("a.#.a", "a")
@example("a.#.#.b", "a.b")
@example("*", ".")
def test_a_name_is_matched_otherwise_than_the_definition_says(pattern: str, name: str) -> None:
    words = name.split(".") if name else []
    assert compile_pattern(pattern).matches(name) is naive(pattern.split("."), words)


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("orders", ["orders"], ["order", "orders.eu", "Orders", ""]),
        ("orders.*", ["orders.eu", "orders.-"], ["orders", "orders.eu.west"]),
        ("orders.#", ["orders", "orders.eu", "orders.eu.west"], ["ordersx", "x.orders"]),
        ("*.*", ["a.b"], ["a", "a.b.c"]),
        ("#.failed", ["failed", "a.failed", "a.b.failed"], ["failed.a", "afailed"]),
        ("*.orange.*", ["quick.orange.rabbit"], ["lazy.brown.fox", "orange", "quick.orange.male.rabbit"]),
        ("lazy.#", ["lazy", "lazy.orange.elephant"], ["quick.lazy"]),
        ("#.*", ["a", "a.b"], [""]),
    ],
)
def test_a_wildcard_stands_for_more_or_for_less(pattern: str, matched: list[str], others: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in matched + others if compiled.matches(name)] == matched


@given(st.text(alphabet="aB0_.-:@", min_size=1, max_size=20))
def test_a_plain_name_is_matched_by_another_or_not_by_itself(name: str) -> None:
    try:
        check_name(name)
        pattern = compile_pattern(name)
    except InvalidName:
        return  # what a pattern may be beyond that is tested below
    except InvalidArgument:
        assert "" in name.split(".")
        return
    assert not is_pattern(name)
    assert pattern.matches(name)
    assert not any(
        pattern.matches(other) for other in (name + "a", name + ".a", "a." + name, name.swapcase() + "b")
    )


@given(st.text(alphabet="ab*#.-_é \t", max_size=10))
def test_a_text_with_other_characters_is_taken(text: str) -> None:
    try:
        pattern = compile_pattern(text)
    except InvalidArgument as error:
        if text:
            sentence, line, caret = error.message.split("\n")
            at = caret.index("^") - 2
            assert f" at character {at + 1};" in sentence
            assert at <= len(text)
            assert line.startswith("  ")
        return
    words = text.split(".")
    assert all(word in ("*", "#") or (word and set(word) <= set("ab-_")) for word in words)
    assert text[0] != "-"
    assert pattern.text == text


@pytest.mark.parametrize(
    ("text", "what", "character"),
    [
        ("a..b", "a word is missing", 3),
        (".a", "a word is missing", 1),
        ("a.", "a word is missing", 3),
        (".", "a word is missing", 1),
        ("or*", "'*' within a word", 3),
        ("*or", "'*' within a word", 1),
        ("a.##", "'#' within a word", 3),
        ("a#.b", "'#' within a word", 2),
        ("*#", "'*' within a word", 1),
        ("a b.c", "unexpected ' '", 2),
        ("a.b/c", "unexpected '/'", 4),
        ("a.é", "unexpected 'é'", 3),
        ("a.b\n", "unexpected '\\n'", 4),
        ("\t*", "unexpected '\\t'", 1),
        ("\ud800", "unexpected '\\ud800'", 1),
        ("-a", "unexpected '-'", 1),
        (":", "unexpected ':'", 1),
    ],
)
def test_an_error_does_not_show_the_place(text: str, what: str, character: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_pattern(text)
    sentence, line, caret = caught.value.message.split("\n")
    assert sentence.startswith(f"the pattern is wrong: {what} at character {character}; ")
    assert line == "  " + "".join(each if each.isprintable() else " " for each in text).rstrip()
    assert caret == " " * (character + 1) + "^"


def test_the_place_is_lost_in_a_long_pattern() -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_pattern("a" * 100 + "*" + "b" * 100)
    sentence, line, caret = caught.value.message.split("\n")
    assert "character 101;" in sentence
    assert line[caret.index("^")] == "*"
    assert line == f"  …{'a' * 50}*{'b' * 49}…"


@pytest.mark.parametrize("text", ["a.-b", "a.:", "a.@.*", "*.-", "#.:a"])
def test_a_word_after_the_first_may_not_begin_as_in_a_name(text: str) -> None:
    assert compile_pattern(text).text == text


@pytest.mark.parametrize("text", [None, 7, b"orders.*", ["orders"], object()])
def test_something_else_than_a_text_is_taken(text: object) -> None:
    with pytest.raises(InvalidArgument, match="the pattern is .*; give a str, such as 'orders.*'"):
        compile_pattern(text)


def test_an_empty_pattern_is_taken() -> None:
    with pytest.raises(InvalidArgument, match="the pattern is empty; give words"):
        compile_pattern("")


def test_a_pattern_is_longer_than_any_name() -> None:
    assert compile_pattern("a" * NAME_CHARS_MAX).matches("a" * NAME_CHARS_MAX)
    with pytest.raises(InvalidArgument, match=f"has {NAME_CHARS_MAX + 1} characters; use at most"):
        compile_pattern("a" * (NAME_CHARS_MAX + 1))


def test_a_text_of_a_class_of_its_own_is_kept() -> None:
    class Names(StrEnum):
        ORDERS = "orders.*"

    assert type(compile_pattern(Names.ORDERS).text) is str


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*", True),
        ("#", True),
        ("a.#", True),
        ("a.*.b", True),
        ("a", False),
        ("a*", False),
        ("##", False),
        ("", False),
    ],
)
def test_a_name_is_taken_for_a_pattern_or_a_pattern_for_a_name(text: str, expected: bool) -> None:
    assert is_pattern(text) is expected


def test_patterns_are_equal_otherwise_than_by_their_texts() -> None:
    assert compile_pattern("a.*") == compile_pattern("a.*") != compile_pattern("a.#")
    assert len({compile_pattern("a.*"), compile_pattern("a.*"), compile_pattern("b")}) == 2
    assert repr(compile_pattern("a.*")) == "Pattern(text='a.*')"


def test_a_pattern_changes() -> None:
    pattern = compile_pattern("a.*")
    with pytest.raises(FrozenInstanceError):
        pattern.text = "b"  # type: ignore[misc]


def test_a_pattern_does_not_survive_pickling() -> None:
    pattern = pickle.loads(pickle.dumps(compile_pattern("a.#")))
    assert pattern == compile_pattern("a.#")
    assert pattern.matches("a.b")


@pytest.mark.parametrize("piece", ["#.a.", "#.*.", "#.#.a.", "#.a.*.", "*.#."])
def test_many_wildcards_take_for_ever_on_a_long_name(piece: str) -> None:
    # Trying every number of words for each `#` does not end in a lifetime here; the test's timeout would tell.
    pattern = compile_pattern(piece * ((NAME_CHARS_MAX - 1) // len(piece)) + "b")
    assert pattern.matches(".".join("a" * 10_000)) is False
    assert pattern.matches(".".join("a" * 10_000) + ".b") is True
