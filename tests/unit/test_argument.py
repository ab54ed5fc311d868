from __future__ import annotations

from typing import Any

import pytest

from penstock import argument
from penstock.argument import QUOTED_CHARS_MAX, quoted
from tests.conformance.oddities import (
    Faceless,
    Level,
    Liar,
    Mixed,
    Sullen,
    SullenBytes,
    SullenFloat,
    SullenInt,
    SullenText,
    Word,
    oddities,
)


@pytest.mark.parametrize(
    ("check", "value", "plain"),
    [
        (argument.integer, 7, 7),
        (argument.integer, Level.FIVE, 5),
        (argument.integer, SullenInt(5), 5),
        (argument.integer, 10**5000, 10**5000),
        (argument.number, 1.5, 1.5),
        (argument.number, SullenFloat(1.5), 1.5),
        (argument.number, Level.FIVE, 5),
        (argument.text, "a", "a"),
        (argument.text, Word.KEY, "key"),
        (argument.text, Mixed.KEY, "key"),
        (argument.text, SullenText("a"), "a"),
        (argument.octets, b"a", b"a"),
        (argument.octets, SullenBytes(b"a"), b"a"),
    ],
    ids=quoted,
)
def test_a_value_keeps_its_own_class_or_is_another(check: Any, value: object, plain: object) -> None:
    found = check(value)
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (argument.integer, [True, 1.0, "1", None, Liar(int), Faceless()]),
        (argument.number, [True, 1j, "1", None, Liar(float), Faceless()]),
        (argument.text, [b"a", 1, None, Liar(str), Faceless()]),
        (argument.octets, ["a", bytearray(b"a"), memoryview(b"a"), None, Liar(bytes), Faceless()]),
    ],
    ids=quoted,
)
def test_a_value_of_another_kind_is_taken(check: Any, wrong: list[object]) -> None:
    assert [check(value) for value in wrong] == [None] * len(wrong)


def test_a_value_cannot_be_quoted_or_takes_a_page() -> None:
    assert quoted("orders") == "'orders'"
    assert quoted(Sullen()) == "an object of type Sullen"
    assert quoted(10**5000) == "an object of type int"
    assert quoted("x" * 1000) == "'" + "x" * (QUOTED_CHARS_MAX - 2) + "…"
    assert all(len(quoted(odd)) <= QUOTED_CHARS_MAX for odd in oddities().values())
