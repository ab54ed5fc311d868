"""LIKE: whether a text has the form that a pattern describes.

In a pattern ``%`` stands for any characters, none included, and ``_`` for exactly one; both match line ends too. After
the escape character, if there is one, ``%``, ``_`` and the escape character itself are meant literally. Case matters.

The usual translation into one regular expression (``%`` becomes ``.*``) goes back and forth: a pattern with k of them
can take n**k steps for a text of n characters. So a pattern is split at its ``%`` instead. What is left are pieces of a
fixed length: the first lies at the start of the text, the last at its end, and each one between is searched for once,
from the end of the one before. Taking its first place is always right, since that leaves the most room for the rest;
so nothing is ever tried twice.

What always holds: `_` at an end of a piece is only counted, and the rest of the piece is searched for. One without `_` in
it is found with `str.find`, in linear time; one with `_` is a regular expression without any quantifier, which takes
at most the length of the text times the length of the piece. `steps_of` says how much that is, so that a filter can
bound it (`limits`): up to that bound no linear algorithm in Python is faster than the regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from penstock.errors import InvalidArgument

Matcher = Callable[[str], bool]
"""Whether a text has the form."""

_Search = Callable[[str, int, int], int]
"""Where a piece begins within text[start:end], or -1."""

#: What `str.find` takes for a character of a text at most, in comparisons of a regular expression.
FIND_STEPS: Final = 4

# What stands for a `_` or a `%` that is not escaped; a character never equals them, since it is not longer than one.
_ANY_ONE: Final = "any one"
_ANY: Final = "any"


def compile_like(pattern: str, escape: str | None = None) -> Matcher:
    """The function that tells whether a text is like `pattern`.

    >>> timeout = compile_like("%time_out%")
    >>> timeout("connect: time-out after 30 s"), timeout("connection refused")
    (True, False)
    >>> compile_like("100!%", escape="!")("100%")
    True
    """
    pieces = _pieces(pattern, escape)
    if len(pieces) == 1:
        return _whole(pieces[0])
    first, *between, last = pieces
    between = [piece for piece in between if piece]
    if not between:
        return _ends(first, last)
    if not first and not last and len(between) == 1 and _ANY_ONE not in between[0]:
        return _contains("".join(between[0]))
    return _in_turn(first, between, last)


def steps_of(pattern: str, escape: str | None = None) -> int:
    """Return how many steps matching takes at most for a character; one is half a nanosecond.

    >>> steps_of("order.%"), steps_of("%timeout%"), steps_of("%time_out%")
    (0, 4, 8)
    """
    return max((_search_steps(piece) for piece in _pieces(pattern, escape)[1:-1] if piece), default=0)


# --- splitting a pattern ---


def _pieces(pattern: str, escape: str | None) -> list[list[str]]:
    """What stands between the `%`: one piece more than there are of them, some of them empty."""
    pieces: list[list[str]] = [[]]
    for symbol in _symbols(pattern, escape):
        if symbol == _ANY:
            pieces.append([])
        else:
            pieces[-1].append(symbol)
    return pieces


def _symbols(pattern: str, escape: str | None) -> Iterator[str]:
    meanings = {"%": _ANY, "_": _ANY_ONE}
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            yield _escaped(next(characters, ""), escape)
        else:
            yield meanings.get(character, character)


def _escaped(character: str, escape: str) -> str:
    if character not in ("%", "_", escape):
        found = repr(character) if character else "nothing"
        raise InvalidArgument(
            f"the escape character {escape!r} is followed by {found}, not by %, _ or itself"
        )
    return character


# --- matching a text ---


def _whole(piece: list[str]) -> Matcher:
    if _ANY_ONE not in piece:
        plain = "".join(piece)
        return lambda text: text == plain
    expression = _expression(piece)
    return lambda text: expression.fullmatch(text) is not None


def _contains(piece: str) -> Matcher:
    return lambda text: piece in text


def _ends(first: list[str], last: list[str]) -> Matcher:
    chars_min = len(first) + len(last)
    starts, ends = _search(first), _search(last)
    first_chars, last_chars = len(first), len(last)

    def matches(text: str) -> bool:
        chars = len(text)
        # A piece is searched for in a space that is as long as itself, so it is found there or nowhere.
        return (
            chars >= chars_min
            and starts(text, 0, first_chars) == 0
            and ends(text, chars - last_chars, chars) >= 0
        )

    return matches


def _in_turn(first: list[str], between: list[list[str]], last: list[str]) -> Matcher:
    around = _ends(first, last)
    searches = [(_search(piece), len(piece)) for piece in between]
    start, last_chars = len(first), len(last)

    def matches(text: str) -> bool:
        if not around(text):
            return False
        at, end = start, len(text) - last_chars
        for search, chars in searches:
            at = search(text, at, end)
            if at < 0:
                return False
            at += chars
        return True

    return matches


def _search(piece: list[str]) -> _Search:
    before, inner, after = _stripped(piece)
    search = _search_inner(inner)
    if not before and not after:
        return search

    def search_around(text: str, start: int, end: int) -> int:
        # Of nothing but `_`, the first place may lie behind the end.
        at = search(text, start + before, end - after) if end - start >= len(piece) else -1
        return at - before if at >= 0 else -1

    return search_around


def _search_inner(inner: list[str]) -> _Search:
    if _ANY_ONE not in inner:
        plain = "".join(inner)
        return lambda text, start, end: text.find(plain, start, end)
    expression = _expression(inner)

    def search(text: str, start: int, end: int) -> int:
        found = expression.search(text, start, end)
        return found.start() if found else -1

    return search


def _search_steps(piece: list[str]) -> int:
    inner = _stripped(piece)[1]
    return len(inner) if _ANY_ONE in inner else FIND_STEPS


def _stripped(piece: list[str]) -> tuple[int, list[str], int]:
    """Return how many `_` a piece begins with, what follows them, and how many it ends with."""
    before = next((at for at, symbol in enumerate(piece) if symbol != _ANY_ONE), len(piece))
    after = next((at for at, symbol in enumerate(reversed(piece)) if symbol != _ANY_ONE), 0)
    return before, piece[before : len(piece) - after], after


def _expression(piece: list[str]) -> re.Pattern[str]:
    return re.compile(
        "".join("." if symbol == _ANY_ONE else re.escape(symbol) for symbol in piece), re.DOTALL
    )
