"""What a filter says, as a tree, and the tree as text again.

Leaves are operands: a `Field` of the message, a `Header` of it, or a `Constant`. Each has a kind: text, number, boolean,
time or null. Above them are conditions, each true, false or unknown of a message. ``x NOT LIKE 'a'`` and
``NOT x LIKE 'a'`` are the same tree, so there is no node for a negated LIKE.

What always holds of a tree that was parsed: the operands that a node compares have a kind in which they can be compared
(`meeting`), a `Constant` that stands where a condition does is a boolean or null, and `write` gives a text that parses
to an equal tree, with no more parentheses than it takes.

Text that a message brings (its headers and its key) adapts: compared with something of another kind it is read as that
kind, and what cannot be read is unknown. A text that the author of the filter wrote does not adapt, since it can be
corrected; the one exception is that a time has no notation of its own and is written as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from penstock.limits import FILTER_NUMBER_CHARS_MAX

Kind: TypeAlias = Literal["text", "number", "boolean", "time", "null"]
Value: TypeAlias = str | int | float | bool | datetime | None
Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]

FIELDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "key": "text",
        "priority": "number",
        "id": "number",
        "offset": "number",
        "timestamp": "time",
        "payload_bytes": "number",
    }
)
"""The names that mean the message itself, and what kind each is. Any other name is a header."""

KEYWORDS: Final = frozenset("AND BETWEEN ESCAPE FALSE IN IS LIKE NOT NULL OR TRUE".split())
"""In any case, as in SQL."""

WORD: Final = r"[A-Za-z_][A-Za-z0-9_.:-]*"
"""A name that needs no double quotes."""

# Each part begins with what the one before cannot contain, so there is only one way to read a text.
NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""A whole or a decimal number, with an exponent if need be."""

_WORD: Final = re.compile(WORD)
_NUMBER: Final = re.compile(NUMBER)
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_BOOLEANS: Final = {"true": True, "false": False}


# --- the tree ---


class Field(msgspec.Struct, frozen=True):
    """Something that every message has, or could have: one of `FIELDS`."""

    name: str


class Header(msgspec.Struct, frozen=True):
    """The header of that name: text, or null if the message has none."""

    name: str


class Constant(msgspec.Struct, frozen=True):
    """What the filter says itself. The kind is part of it, since TRUE equals 1 in Python."""

    kind: Kind
    value: str | int | float | bool | None


Operand: TypeAlias = Field | Header | Constant


class Comparison(msgspec.Struct, frozen=True):
    left: Operand
    operator: Operator
    right: Operand


class Like(msgspec.Struct, frozen=True):
    operand: Operand
    pattern: str
    escape: str | None = None


class In(msgspec.Struct, frozen=True):
    operand: Operand
    values: tuple[Constant, ...]


class Between(msgspec.Struct, frozen=True):
    operand: Operand
    low: Operand
    high: Operand


class IsNull(msgspec.Struct, frozen=True):
    operand: Operand


class Not(msgspec.Struct, frozen=True):
    condition: Condition


class And(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...]


class Or(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...]


Condition: TypeAlias = Comparison | Like | In | Between | IsNull | Not | And | Or | Constant


# --- kinds ---


def kind_of(operand: Operand) -> Kind:
    """What kind an operand is before it is compared with anything."""
    if isinstance(operand, Constant):
        return operand.kind
    return FIELDS[operand.name] if isinstance(operand, Field) else "text"


def meeting(left: Operand, right: Operand) -> Kind | None:
    """The kind in which two operands are compared, or None if they cannot be.

    >>> meeting(Header("attempts"), Constant("number", 3))
    'number'
    >>> meeting(Field("priority"), Constant("text", "high")) is None
    True
    """
    kinds = kind_of(left), kind_of(right)
    if "null" in kinds:
        return "null"
    if kinds[0] == kinds[1] or _adapts(right, kinds[0]):
        return kinds[0]
    return kinds[1] if _adapts(left, kinds[1]) else None


def _adapts(operand: Operand, kind: Kind) -> bool:
    written = isinstance(operand, Constant)
    return kind_of(operand) == "text" and (kind == "time" or not written)


def read_number(text: str) -> int | float | None:
    """The number that a text is, written as in a filter; None if it is none, or is above what a float can hold.

    >>> read_number("42"), read_number("-1.5e3"), read_number("1_000"), read_number("nan")
    (42, -1500.0, None, None)
    """
    if len(text) > FILTER_NUMBER_CHARS_MAX:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def read_time(text: str) -> datetime | None:
    """The moment that an ISO 8601 text is; None if it is none, or says no time zone.

    >>> read_time("2026-01-31T12:00:00Z")
    datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.timezone.utc)
    >>> read_time("2026-01-31") is None
    True
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def read_boolean(text: str) -> bool | None:
    """``true`` and ``false`` in any case.

    >>> read_boolean("True"), read_boolean("no") is None
    (True, True)
    """
    return _BOOLEANS.get(text.lower())


READERS: Final[Mapping[Kind, Callable[[str], Value]]] = MappingProxyType(
    {"number": read_number, "time": read_time, "boolean": read_boolean}
)
"""How the text of a message is read when it is compared with another kind."""


# --- the tree as text ---


def write(node: Condition | Operand) -> str:
    """The text of a tree: keywords in capitals, single spaces, no needless quotes or parentheses.

    >>> write(Not(Like(Header("x-error"), "%isn't%")))
    "x-error NOT LIKE '%isn''t%'"
    """
    match node:
        case Field(name):
            return name
        case Header(name):
            return name if _is_bare(name) else _quoted(name, '"')
        case Constant(kind, value):
            return _constant(kind, value)
        case Comparison(left, operator, right):
            return f"{write(left)} {operator} {write(right)}"
        case Not(Like() | In() | Between() | IsNull() as inner):
            return _predicate(inner, "NOT ")
        case Not(inner):
            return "NOT " + _within(inner, (And, Or))
        case And(conditions):
            return " AND ".join(_within(inner, (And, Or)) for inner in conditions)
        case Or(conditions):
            return " OR ".join(_within(inner, (Or,)) for inner in conditions)
        case _:
            return _predicate(node, "")


def _predicate(node: Like | In | Between | IsNull, negation: str) -> str:
    match node:
        case IsNull(operand):
            return f"{write(operand)} IS {negation}NULL"
        case In(operand, values):
            return f"{write(operand)} {negation}IN ({', '.join(map(write, values))})"
        case Between(operand, low, high):
            return f"{write(operand)} {negation}BETWEEN {write(low)} AND {write(high)}"
        case Like(operand, pattern, escape):
            ending = "" if escape is None else " ESCAPE " + _quoted(escape, "'")
            return f"{write(operand)} {negation}LIKE {_quoted(pattern, chr(39))}{ending}"


def _within(condition: Condition, weaker: tuple[type, ...]) -> str:
    """A part of a condition, in parentheses if it would fall apart without them."""
    text = write(condition)
    return f"({text})" if isinstance(condition, weaker) else text


def _constant(kind: Kind, value: str | float | None) -> str:
    if isinstance(value, str):
        return _quoted(value, "'")
    if kind == "null":
        return "NULL"
    return repr(value).upper() if kind == "boolean" else repr(value)


def _is_bare(name: str) -> bool:
    # A bare name that is a field's in another case is refused as a likely mistake, so it is written with quotes.
    return bool(_WORD.fullmatch(name)) and name.upper() not in KEYWORDS and name.lower() not in FIELDS


def _quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote
