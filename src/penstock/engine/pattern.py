"""Topic patterns: which names are meant, as AMQP's topic exchanges say it.

A name is words separated by dots. In a pattern a word may be ``*``, which stands for exactly one word, or ``#``, which
stands for any number of them, none included: ``orders.*.created`` is ``orders.eu.created`` but not ``orders.created``, and
``orders.#`` is ``orders`` and all that begins with ``orders.``. Every other word stands for itself, and case matters, so a
plain name is a pattern that only it matches.

The usual way to match, trying for each ``#`` every number of words, goes back and forth: with k of them it can take n**k
steps for a name of n words. So all ways are followed at once instead, as one number with a bit for each place between
the words of the pattern: bit i is set if what was read of the name so far can be what the first i words of the pattern
say. A word of the name moves the bits at once, whatever their number::

    orders  .  #  .  failed
    0       1     2        3     a "#" may also stand for nothing, so what reaches 1 is at 2 too

What always holds: the work is one step for each word of the name, and a step is a few operations on a number of at most
129 bits. There is no state in a pattern: it can be shared between threads.

A valid name may have dots side by side, or at an end; a pattern may not, because that is nearly always a slip of the pen.
Such a name is matched all the same: between the dots is a word of no letters, which ``*`` and ``#`` stand for too. A name
without any characters, which only a routing key of AMQP can be, has no words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from penstock import argument
from penstock.errors import InvalidArgument
from penstock.limits import NAME_CHARS_MAX

ANY_WORD: Final = "*"
ANY_WORDS: Final = "#"

_WILDCARDS: Final = frozenset((ANY_WORD, ANY_WORDS))
_WORD: Final = re.compile(r"[A-Za-z0-9_:@-]*")
_ALLOWED: Final = "letters, digits and . - _ : @ are allowed, beginning with a letter, a digit or _"

# How much of a long pattern an error shows on each side of the place.
_SHOWN_CHARS: Final = 50


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, ready to be asked. Made by `compile_pattern`; two are equal if their texts are.

    >>> created = compile_pattern("orders.*.created")
    >>> created.text
    'orders.*.created'
    >>> created == compile_pattern("orders.*.created")
    True
    """

    text: str
    # Bit i of a mask belongs to word i of the pattern, once neighbouring `#` are one.
    _words: Mapping[str, int] = field(repr=False, compare=False)
    _any_word: int = field(repr=False, compare=False)
    _any_words: int = field(repr=False, compare=False)
    _end: int = field(repr=False, compare=False)

    def matches(self, name: str) -> bool:
        """Whether a name is one of those that are meant.

        >>> created = compile_pattern("orders.#.created")
        >>> [name for name in ("orders.created", "orders.eu.west.created", "orders.eu") if created.matches(name)]
        ['orders.created', 'orders.eu.west.created']
        """
        words, any_word, any_words = self._words, self._any_word, self._any_words
        # Neighbouring `#` are one, so one step over those that stand for nothing is enough.
        places = 1 | (1 & any_words) << 1
        for word in name.split(".") if name else ():
            places = (places & (words.get(word, 0) | any_word)) << 1 | places & any_words
            places |= (places & any_words) << 1
            if not places:
                return False
        return places & self._end != 0


def is_pattern(text: str) -> bool:
    """Whether a text has a wildcard among its words, so that it may mean more than one name.

    >>> is_pattern("orders.*"), is_pattern("orders.eu"), is_pattern("orders*")
    (True, False, False)
    """
    return not _WILDCARDS.isdisjoint(text.split("."))


def compile_pattern(text: object) -> Pattern:
    """The pattern that a text describes; an `InvalidArgument` shows the place where it does not describe one.

    >>> compile_pattern("orders.#").matches("orders.eu.created")
    True
    >>> compile_pattern("orders.eu*.created")
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: the pattern is wrong: '*' within a word at character 10; * and # stand for whole \
words, so put dots around them
      orders.eu*.created
               ^
    """
    plain = _checked(text)
    words = _distinct(plain.split("."))
    masks: dict[str, int] = {}
    for place, word in enumerate(words):
        masks[word] = masks.get(word, 0) | 1 << place
    any_word, any_words = masks.pop(ANY_WORD, 0), masks.pop(ANY_WORDS, 0)
    return Pattern(plain, masks, any_word, any_words, 1 << len(words))


def _distinct(words: list[str]) -> list[str]:
    """Neighbouring `#` as one: together they too stand for any number of words."""
    return [
        word
        for place, word in enumerate(words)
        if word != ANY_WORDS or not place or words[place - 1] != ANY_WORDS
    ]


# --- what is not a pattern ---


def _checked(text: object) -> str:
    plain = argument.text(text)
    if plain is None:
        raise InvalidArgument(f"the pattern is {argument.quoted(text)}; give a str, such as 'orders.*'")
    if not plain:
        raise InvalidArgument("the pattern is empty; give words separated by dots, such as 'orders.*'")
    if len(plain) > NAME_CHARS_MAX:
        raise InvalidArgument(
            f"the pattern {plain[:20]!r}... has {len(plain)} characters; use at most {NAME_CHARS_MAX}"
        )
    start = 0
    for word in plain.split("."):
        _check_word(plain, start, word)
        start += len(word) + 1
    return plain


def _check_word(text: str, start: int, word: str) -> None:
    if not word:
        _fail(text, start, "a word is missing", "put one dot between two words, and none at the ends")
    if word in _WILDCARDS:
        return
    found = _WORD.match(word)
    at = found.end() if found else 0
    # Within a name a word may begin with any of its characters, but the name itself may not.
    if not start and word[0] in ":@-":
        at = 0
    if at == len(word):
        return
    if word[at] in _WILDCARDS:
        _fail(
            text,
            start + at,
            f"{word[at]!r} within a word",
            "* and # stand for whole words, so put dots around them",
        )
    _fail(text, start + at, f"unexpected {word[at]!r}", _ALLOWED)


def _fail(text: str, at: int, what: str, advice: str) -> NoReturn:
    start, end = max(0, at - _SHOWN_CHARS), at + _SHOWN_CHARS
    before, after = "…" if start else "", "…" if end < len(text) else ""
    line = f"{before}{_printable(text[start:end])}{after}".rstrip()
    caret = " " * (len(before) + at - start) + "^"
    raise InvalidArgument(
        f"the pattern is wrong: {what} at character {at + 1}; {advice}\n  {line}\n  {caret}"
    )


def _printable(text: str) -> str:
    # A tab or a line end would put the caret elsewhere.
    return "".join(each if each.isprintable() else " " for each in text)
