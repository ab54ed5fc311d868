"""Which messages are meant: a boolean expression over a message.

``redrive(where="x-error LIKE '%timeout%'")`` and ``subscribe("audit", filter="region = 'eu' AND priority < 3")`` take
one. The language is SQL's, as far as JMS selectors have it; `filter_parser` has its grammar, `filter_tree` what a text
becomes, `like` how LIKE works, and ``docs/reference/filters.md`` says it to users.

A filter is compiled once, when it is given: each node of the tree becomes a function of the message, with constants
converted and kinds decided beforehand, so that asking about a message is a few calls and costs about a microsecond.

What always holds:

- Logic has three values, as in SQL: `True`, `False`, and `None` for unknown. What a message does not have is null, and
  comparing null with anything is unknown. A message matches only if the whole is true, so unknown and false end alike
  but are not: NOT turns false into true, and leaves unknown as it is.
- A filter that compiled never raises, whatever a message holds: text that is not a number is unknown where a number
  is wanted.
- There is no state, clock or chance in it: the same message always gets the same answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

from penstock import argument
from penstock.engine.filter_parser import parse
from penstock.engine.filter_tree import (
    READERS,
    And,
    Between,
    Comparison,
    Condition,
    Constant,
    Field,
    Header,
    In,
    IsNull,
    Kind,
    Like,
    Not,
    Operand,
    Operator,
    Or,
    kind_of,
    meeting,
    write,
)
from penstock.engine.like import compile_like, steps_of
from penstock.errors import InvalidArgument
from penstock.limits import FILTER_CHARS_MAX, FILTER_LIKE_STEPS_MAX, LIKE_CHARS_MAX


class Subject(Protocol):
    """What a filter looks at: a `Message`, a delivery, or anything else with these."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def key(self) -> str | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def id(self) -> int | None: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def timestamp(self) -> datetime | None: ...
    @property
    def payload(self) -> bytes: ...


Truth: TypeAlias = bool | None
"""True, false, or None for unknown."""

_Test: TypeAlias = Callable[[Subject], Truth]
# Any, because what is read and what it is compared with have the same kind, which no annotation can say.
_Read: TypeAlias = Callable[[Subject], Any]


#: What a message and a condition cost at most beside LIKE, in steps of `like.steps_of`.
MESSAGE_STEPS: Final = 4000
CONDITION_STEPS: Final = 2000


class Filter:
    """A filter, ready to be asked. Made by `compile_filter`.

    Two are equal if they say the same, however they are spaced and quoted. It can be pickled.

    >>> urgent = compile_filter("region='eu' and not (priority >= 3)")
    >>> urgent.text
    "region='eu' and not (priority >= 3)"
    >>> str(urgent)
    "region = 'eu' AND NOT priority >= 3"
    >>> urgent == compile_filter(str(urgent))
    True
    """

    __slots__ = ("_char_steps", "_message_steps", "_test", "_written", "condition", "text")

    def __init__(self, text: str, condition: Condition) -> None:
        self.text: Final = text
        self.condition: Final = condition
        self._written: Final = write(condition)
        self._test: Final = _compiled(condition)
        leaves = list(_leaves(condition))
        self._message_steps: Final = MESSAGE_STEPS + CONDITION_STEPS * len(leaves)
        self._char_steps: Final = sum(
            steps_of(one.pattern, one.escape) for one in leaves if isinstance(one, Like)
        )

    def matches(self, message: Subject) -> bool:
        """Whether the filter is true of a message; unknown is not.

        >>> from penstock import Message
        >>> retried = compile_filter("attempts > 3")
        >>> [retried.matches(Message(b"", headers=each)) for each in ({"attempts": "5"}, {"attempts": "many"}, {})]
        [True, False, False]
        """
        return self._test(message) is True

    def steps(self, message: Subject) -> int:
        """Return how many steps `matches` takes at most, about; one is half a nanosecond."""
        if not self._char_steps:
            return self._message_steps
        chars = len(message.key or "") + sum(map(len, message.headers.values()))
        return self._message_steps + self._char_steps * chars

    def __str__(self) -> str:
        return self._written

    def __repr__(self) -> str:
        return f"Filter({self._written!r})"

    def __eq__(self, other: object) -> bool:
        return self.condition == other.condition if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.condition)

    def __reduce__(self) -> tuple[Callable[[str], Filter], tuple[str]]:
        return compile_filter, (self.text,)


def compile_filter(text: str) -> Filter:
    """The filter that a text describes, or `InvalidArgument` that shows where it stops making sense.

    >>> from penstock import Message
    >>> compile_filter("x-error LIKE '%timeout%'").matches(Message(b"", headers={"x-error": "read timeout"}))
    True
    >>> compile_filter("region = ")
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: the filter is wrong: expected a value after '=' at character 10
      region =
               ^
    """
    plain = argument.text(text)
    if plain is not None:
        text = plain
    compiled = Filter(text, parse(text))
    # Its own text is a filter too, so it must not be longer than one may be.
    if len(str(compiled)) > FILTER_CHARS_MAX:
        raise InvalidArgument(
            f"the filter has {len(str(compiled))} characters when it is written out; give at most {FILTER_CHARS_MAX}"
        )
    _check_likes(compiled.condition)
    return compiled


def stored_filter(text: str) -> Filter:
    """Return a filter that was accepted before, also if a bound was lowered since."""
    return Filter(text, parse(text))


def _check_likes(condition: Condition) -> None:
    steps = 0
    for like in _leaves(condition):
        if not isinstance(like, Like):
            continue
        if len(like.pattern) > LIKE_CHARS_MAX:
            raise InvalidArgument(
                f"a pattern of LIKE has {len(like.pattern)} characters; give at most {LIKE_CHARS_MAX}"
            )
        steps += steps_of(like.pattern, like.escape)
    if steps > FILTER_LIKE_STEPS_MAX:
        raise InvalidArgument(
            f"the LIKE conditions of the filter take {steps} steps for each character of a text, and the bound is "
            f"{FILTER_LIKE_STEPS_MAX}: give fewer of them, or shorter pieces with a _ inside between two %"
        )


def _leaves(condition: Condition) -> Iterator[Condition]:
    """Yield the conditions that have none within them."""
    match condition:
        case And(conditions) | Or(conditions):
            for each in conditions:
                yield from _leaves(each)
        case Not(inner):
            yield from _leaves(inner)
        case _:
            yield condition


# --- conditions ---


def _compiled(node: Condition) -> _Test:
    match node:
        case And(conditions):
            return _all([_compiled(each) for each in conditions])
        case Or(conditions):
            return _any([_compiled(each) for each in conditions])
        case Not(condition):
            return _not(_compiled(condition))
        case Comparison(left, sign, right):
            return _comparison(left, sign, right)
        case Like(operand, pattern, escape):
            return _like(operand, pattern, escape)
        case In(operand, values):
            return _in(operand, values)
        case Between(operand, low, high):
            return _all([_comparison(operand, ">=", low), _comparison(operand, "<=", high)])
        case IsNull(operand):
            return _is_null(operand)
        case Constant(_, value):
            return _always(None if value is None else bool(value))


def _all(tests: Iterable[_Test]) -> _Test:
    tests = tuple(tests)

    def test(message: Subject) -> Truth:
        answer: Truth = True
        for each in tests:
            found = each(message)
            if found is False:
                return False
            if found is None:
                answer = None
        return answer

    return test


def _any(tests: Iterable[_Test]) -> _Test:
    tests = tuple(tests)

    def test(message: Subject) -> Truth:
        answer: Truth = False
        for each in tests:
            found = each(message)
            if found:
                return True
            if found is None:
                answer = None
        return answer

    return test


def _not(inner: _Test) -> _Test:
    def test(message: Subject) -> Truth:
        found = inner(message)
        return None if found is None else not found

    return test


def _always(answer: Truth) -> _Test:
    return lambda _: answer


# --- predicates ---

_OPERATORS: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_MIRRORED: Final[Mapping[Operator, Operator]] = {
    "=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip


def _comparison(left: Operand, sign: Operator, right: Operand) -> _Test:
    if isinstance(left, Constant):
        left, sign, right = right, _MIRRORED[sign], left
    kind = _kind(left, right)
    if kind == "null":
        return _always(None)
    if isinstance(right, Constant):
        return _against_constant(_reader(left, kind), _OPERATORS[sign], _converted(right, kind))
    return _against_another(_reader(left, kind), _OPERATORS[sign], _reader(right, kind))


def _against_constant(read: _Read, holds: Callable[[Any, Any], bool], constant: object) -> _Test:
    def test(message: Subject) -> Truth:
        value = read(message)
        return None if value is None else holds(value, constant)

    return test


def _against_another(read: _Read, holds: Callable[[Any, Any], bool], read_other: _Read) -> _Test:
    def test(message: Subject) -> Truth:
        value, other = read(message), read_other(message)
        return None if value is None or other is None else holds(value, other)

    return test


def _like(operand: Operand, pattern: str, escape: str | None) -> _Test:
    read, is_like = _reader(operand, kind_of(operand)), compile_like(pattern, escape)

    def test(message: Subject) -> Truth:
        text = read(message)
        return None if text is None else is_like(text)

    return test


def _in(operand: Operand, values: Iterable[Constant]) -> _Test:
    """True of one of the values: one look into a set for each kind that they have, joined by OR."""
    sets: dict[Kind, set[object]] = {}
    for value in values:
        kind = _kind(operand, value)
        sets.setdefault(kind, set()).add(_converted(value, kind))
    tests = [_in_one(operand, kind, found) for kind, found in sets.items()]
    return tests[0] if len(tests) == 1 else _any(tests)


def _in_one(operand: Operand, kind: Kind, values: set[object]) -> _Test:
    if kind == "null":
        return _always(None)
    return _against_constant(_reader(operand, kind), _is_among, frozenset(values))


def _is_among(value: object, values: frozenset[object]) -> bool:
    return value in values


def _is_null(operand: Operand) -> _Test:
    read = _reader(operand, kind_of(operand))
    return lambda message: read(message) is None


# --- operands ---


def _kind(left: Operand, right: Operand) -> Kind:
    kind = meeting(left, right)
    if kind is None:
        raise InvalidArgument(f"{write(left)} cannot be compared with {write(right)}")
    return kind


def _reader(operand: Operand, kind: Kind) -> _Read:
    """The function that gives an operand's value as that kind, or None."""
    if isinstance(operand, Constant):
        value = _converted(operand, kind)
        return lambda _: value
    read = _plain_reader(operand)
    return read if kind == kind_of(operand) else _converting(read, READERS[kind])


def _plain_reader(operand: Field | Header) -> _Read:
    name = operand.name
    if isinstance(operand, Header):
        return lambda message: message.headers.get(name)
    if name == "payload_bytes":
        return lambda message: len(message.payload)
    return operator.attrgetter(name)


def _converting(read: _Read, convert: Callable[[str], object]) -> _Read:
    def converted(message: Subject) -> object:
        text = read(message)
        return None if text is None else convert(text)

    return converted


def _converted(constant: Constant, kind: Kind) -> object:
    # The parser has seen that it can be: a text that stands for a time is the only one that is converted.
    if kind in (constant.kind, "null"):
        return constant.value
    return READERS[kind](str(constant.value))
