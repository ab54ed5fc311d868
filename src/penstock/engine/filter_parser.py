"""From the text of a filter to its tree.

    condition   = conjunction, { "OR", conjunction } ;
    conjunction = negation, { "AND", negation } ;
    negation    = "NOT", negation | predicate ;
    predicate   = "(", condition, ")" | "TRUE" | "FALSE" | "NULL"
                | operand, ( "=" | "<>" | "!=" | "<" | "<=" | ">" | ">=" ), operand
                | operand, [ "NOT" ], "LIKE", text, [ "ESCAPE", text ]
                | operand, [ "NOT" ], "IN", "(", literal, { ",", literal }, ")"
                | operand, [ "NOT" ], "BETWEEN", operand, "AND", operand
                | operand, "IS", [ "NOT" ], "NULL" ;
    operand     = name | literal ;

A tokenizer cuts the whole text first; then there is one method for each rule above, and each looks at one token to know
what to do. A row of ANDs or ORs is a loop and one node, however long; only parentheses and NOTs recur, and they are
counted.

What always holds: the work is linear in the length of the text, which is bounded. Whatever is wrong is an
`InvalidArgument` that shows the text with a caret below the place where it stopped making sense, and says what was
expected there. What can never be meant (a number compared with a text) is refused here too, while the place is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple, NoReturn, cast

from penstock import argument
from penstock.engine.filter_tree import (
    FIELDS,
    KEYWORDS,
    NUMBER,
    WORD,
    And,
    Between,
    Comparison,
    Condition,
    Constant,
    Field,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Operand,
    Operator,
    Or,
    kind_of,
    meeting,
    read_number,
    read_time,
    write,
)
from penstock.engine.like import compile_like
from penstock.errors import InvalidArgument
from penstock.limits import FILTER_CHARS_MAX, FILTER_DEPTH_MAX, FILTER_VALUES_MAX

# Possessive, so that a doubled quote is never taken apart to end the text early.
_TOKEN: Final = re.compile(
    rf"""(?P<space>\s+)
    | (?P<number>{NUMBER})
    | (?P<word>{WORD})
    | (?P<name>"(?:[^"]|"")*+")
    | (?P<text>'(?:[^']|'')*+')
    | (?P<symbol><>|!=|<=|>=|[=<>(),])""",
    re.VERBOSE,
)
_WORD_PART: Final = re.compile(r"[A-Za-z0-9_.:-]")

_COMPARISONS: Final[dict[str, Operator]] = {
    "=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_CONSTANTS: Final = {
    "TRUE": Constant("boolean", True),
    "FALSE": Constant("boolean", False),
    "NULL": Constant("null", None),
}
_KINDS: Final = {
    "text": "text",
    "number": "a number",
    "boolean": "a boolean",
    "time": "a time",
    "null": "null",
}
_TIME_EXAMPLE: Final = "'2026-01-31T12:00:00Z'"

# How much of a long filter an error shows on each side of the place, and of a token in its sentence.
_SHOWN_CHARS: Final = 50
_TOKEN_CHARS: Final = 20


def parse(text: str) -> Condition:
    """The tree of a filter.

    >>> parse("priority < 3")
    Comparison(left=Field(name='priority'), operator='<', right=Constant(kind='number', value=3))
    >>> parse("region LKE 'eu%'")
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: the filter is wrong: expected an operator such as = or LIKE after 'region' at \
character 8; did you mean LIKE?
      region LKE 'eu%'
             ^
    """
    _check_text(text)
    return _Parser(text).whole()


def _check_text(text: str) -> None:
    if type(text) is not str:
        raise InvalidArgument(f"the filter is {argument.quoted(text)}; give a str, such as \"region = 'eu'\"")
    if len(text) > FILTER_CHARS_MAX:
        raise InvalidArgument(f"the filter has {len(text)} characters; give at most {FILTER_CHARS_MAX}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        _fail(text, error.start, f"a character that cannot be stored as UTF-8 ({error.reason})")


def _fail(text: str, at: int, what: str, advice: str = "") -> NoReturn:
    start, end = max(0, at - _SHOWN_CHARS), at + _SHOWN_CHARS
    before, after = "…" if start else "", "…" if end < len(text) else ""
    line = f"{before}{_printable(text[start:end])}{after}".rstrip()
    caret = " " * (len(before) + at - start) + "^"
    sentence = _printable(f"the filter is wrong: {what} at character {at + 1}{advice}")
    raise InvalidArgument(f"{sentence}\n  {line}\n  {caret}")


def _printable(text: str) -> str:
    # A tab or a line end would put the caret elsewhere.
    return "".join(each if each.isprintable() else " " for each in text)


def _short(text: str) -> str:
    return text if len(text) <= _TOKEN_CHARS else text[: _TOKEN_CHARS - 1] + "…"


# --- tokens ---


class _Token(NamedTuple):
    kind: str  # number, word, keyword, name, text, symbol or end
    source: str
    at: int

    @property
    def content(self) -> str:
        """What is between the quotes."""
        quote = self.source[0]
        return self.source[1:-1].replace(quote * 2, quote)

    def __str__(self) -> str:
        short = _short(self.source)
        return short if self.kind in ("text", "name") else f"'{short}'"


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            _fail_character(text, at)
        kind, at = str(found.lastgroup), found.end()
        if kind == "number" and _WORD_PART.match(text, at):
            _fail(
                text, found.start(), "neither a number nor a name", "; a name like that goes in double quotes"
            )
        if kind == "word" and found[0].upper() in KEYWORDS:
            yield _Token("keyword", found[0], found.start())
        elif kind != "space":
            yield _Token(kind, found[0], found.start())
    yield _Token("end", "", at)


def _fail_character(text: str, at: int) -> NoReturn:
    character = text[at]
    if character in "'\"":
        _fail(text, at, f"the quote {character} is not closed")
    if character.isalnum():
        _fail(text, at, f"unexpected {character!r}", "; a name with such letters goes in double quotes")
    _fail(text, at, f"unexpected {character!r}")


# --- rules ---


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> Condition:
        condition = self._condition()
        if self._token.kind != "end":
            self._fail_expected("AND, OR or the end", ("AND", "OR"))
        return condition

    def _condition(self) -> Condition:
        found = [self._conjunction()]
        while self._accept("OR"):
            found.append(self._conjunction())
        return found[0] if len(found) == 1 else Or(tuple(found))

    def _conjunction(self) -> Condition:
        found = [self._negation()]
        while self._accept("AND"):
            found.append(self._negation())
        return found[0] if len(found) == 1 else And(tuple(found))

    def _negation(self) -> Condition:
        if not self._accept("NOT"):
            return self._predicate()
        self._descend()
        negated = Not(self._negation())
        self._depth -= 1
        return negated

    def _predicate(self) -> Condition:
        if self._accept("("):
            return self._parenthesised()
        operand, first = self._operand("a condition")
        operator = _COMPARISONS.get(self._token.source)
        if operator:
            return self._comparison(operand, operator)
        if self._accept("NOT"):
            return Not(self._worded(operand, first, "LIKE, IN or BETWEEN"))
        if self._accept("IS"):
            return self._is_null(operand)
        if operand in _CONSTANTS.values() and not self._at("LIKE", "IN", "BETWEEN"):
            return cast(Constant, operand)
        return self._worded(operand, first, "an operator such as = or LIKE")

    def _parenthesised(self) -> Condition:
        self._descend()
        condition = self._condition()
        self._expect(")", "AND, OR or ')'")
        self._depth -= 1
        return condition

    def _comparison(self, left: Operand, operator: Operator) -> Comparison:
        self._next += 1
        right, token = self._operand("a value")
        self._check_kinds(left, right, token, ordered=operator not in ("=", "<>"))
        return Comparison(left, operator, right)

    def _worded(self, operand: Operand, first: _Token, expected: str) -> Condition:
        """What follows an operand and begins with a keyword."""
        if not self._at("LIKE", "IN", "BETWEEN"):
            self._fail_expected(expected, ("LIKE", "IN", "BETWEEN", "IS", "NOT"))
        if self._accept("LIKE"):
            return self._like(operand, first)
        if self._accept("IN"):
            return self._in(operand)
        self._next += 1
        return self._between(operand)

    def _is_null(self, operand: Operand) -> Condition:
        negated = self._accept("NOT")
        self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
        return Not(IsNull(operand)) if negated else IsNull(operand)

    def _like(self, operand: Operand, first: _Token) -> Like:
        if kind_of(operand) not in ("text", "null"):
            self._fail(
                first, f"LIKE compares text, and {_short(write(operand))} is {_KINDS[kind_of(operand)]},"
            )
        pattern = self._quoted_text("a pattern in single quotes")
        escape = self._escape() if self._accept("ESCAPE") else None
        try:
            compile_like(pattern.content, escape)
        except InvalidArgument as error:
            self._fail(pattern, f"{error},")
        return Like(operand, pattern.content, escape)

    def _escape(self) -> str:
        token = self._quoted_text("one character in single quotes")
        if len(token.content) != 1:
            self._fail(token, f"{token} is not one character,")
        return token.content

    def _in(self, operand: Operand) -> In:
        self._expect("(", "'('")
        values = [self._listed(operand)]
        while self._accept(","):
            if len(values) == FILTER_VALUES_MAX:
                self._fail(self._token, f"more than {FILTER_VALUES_MAX} values in one list")
            values.append(self._listed(operand))
        self._expect(")", "',' or ')'")
        return In(operand, tuple(values))

    def _listed(self, operand: Operand) -> Constant:
        value, token = self._operand("a literal")
        if not isinstance(value, Constant):
            self._fail(token, f"{token} is a name, and a list holds literals only,")
        self._check_kinds(operand, value, token)
        return value

    def _between(self, operand: Operand) -> Between:
        low, token = self._operand("a value")
        self._check_kinds(operand, low, token, ordered=True)
        self._expect("AND", "AND")
        high, token = self._operand("a value")
        self._check_kinds(operand, high, token, ordered=True)
        return Between(operand, low, high)

    def _operand(self, expected: str) -> tuple[Operand, _Token]:
        token = self._token
        if token.kind == "keyword" and token.source.upper() in _CONSTANTS:
            operand: Operand = _CONSTANTS[token.source.upper()]
        elif token.kind in ("word", "name"):
            operand = self._named(token)
        elif token.kind == "number":
            operand = self._number(token)
        elif token.kind == "text":
            operand = Constant("text", token.content)
        else:
            self._fail_expected(expected)
        self._next += 1
        return operand, token

    def _named(self, token: _Token) -> Field | Header:
        if token.kind == "name":
            return self._header(token)
        if token.source in FIELDS:
            return Field(token.source)
        field = token.source.lower()
        if field in FIELDS:
            self._fail(
                token,
                f"{token} is neither the field {field} nor in double quotes, as a header of that name would be,",
            )
        return Header(token.source)

    def _header(self, token: _Token) -> Header:
        if not token.content:
            self._fail(token, "the name of a header is empty")
        return Header(token.content)

    def _number(self, token: _Token) -> Constant:
        value = read_number(token.source)
        if value is None:
            self._fail(token, f"the number {token} is too large or too long")
        return Constant("number", value)

    # --- what can be compared ---

    def _check_kinds(self, left: Operand, right: Operand, token: _Token, *, ordered: bool = False) -> None:
        kind = meeting(left, right)
        if kind is None:
            self._fail(
                token,
                f"{_described(left)} cannot be compared with {_described(right)},",
                _advice(left, right),
            )
        if kind == "boolean" and ordered:
            self._fail(token, "TRUE and FALSE have no order, so = and <> alone compare them,")
        if kind == "time":
            self._check_times((left, right), token)

    def _check_times(self, operands: Iterable[Operand], token: _Token) -> None:
        for operand in operands:
            if isinstance(operand, Constant) and not read_time(str(operand.value)):
                self._fail(
                    token,
                    f"{_short(write(operand))} is not a time with a time zone",
                    f"; write it as {_TIME_EXAMPLE}",
                )

    # --- reading tokens ---

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _at(self, *sources: str) -> bool:
        token = self._token
        return token.kind in ("keyword", "symbol") and token.source.upper() in sources

    def _accept(self, source: str) -> bool:
        """Go past that keyword or symbol, if it is next."""
        found = self._at(source)
        self._next += found
        return found

    def _expect(self, source: str, expected: str) -> None:
        if not self._accept(source):
            self._fail_expected(expected, (source,))

    def _quoted_text(self, expected: str) -> _Token:
        token = self._token
        if token.kind != "text":
            self._fail_expected(expected)
        self._next += 1
        return token

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > FILTER_DEPTH_MAX:
            token = self._tokens[self._next - 1]
            self._fail(token, f"more than {FILTER_DEPTH_MAX} parentheses and NOTs within one another")

    def _fail(self, token: _Token, what: str, advice: str = "") -> NoReturn:
        _fail(self._text, token.at, what, advice)

    def _fail_expected(self, expected: str, keywords: Sequence[str] = ()) -> NoReturn:
        after = f" after {self._tokens[self._next - 1]}" if self._next else ""
        self._fail(self._token, f"expected {expected}{after}", _hint(self._token, keywords))


def _hint(token: _Token, keywords: Sequence[str]) -> str:
    """What may have been meant by a token that was not expected; without keywords it should have been a value."""
    if token.kind == "keyword" and not keywords:
        return f'; a header of that name is written "{token.source}"'
    if token.kind == "word":
        near = get_close_matches(token.source[:_TOKEN_CHARS].upper(), keywords, n=1)
        return f"; did you mean {near[0]}?" if near else ""
    return ""


def _described(operand: Operand) -> str:
    return f"{_short(write(operand))} ({_KINDS[kind_of(operand)]})"


def _advice(left: Operand, right: Operand) -> str:
    if "time" in (kind_of(left), kind_of(right)):
        return f"; write a time as {_TIME_EXAMPLE}"
    return ""
