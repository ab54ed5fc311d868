"""How a queue or topic behaves: its policy.

A `Policy` is a value. It is checked whenever one is made (by a user, from the journal, by altering another), so one
that exists is valid, and it cannot be changed. Every field has a default, and a stored policy holds its fields by name,
so one written by an older version is read with the defaults of what it did not know yet.

Lengths of time may be given as seconds or as `timedelta`; a policy holds seconds, as floats, rounded to whole
microseconds so that what was stored compares equal to what is given again.

The checks are data: one row per field in `_FIELD_CHECKS`, then what two fields may not say together in
`_contradictions`. To add a field: give it a default in `Policy`, a row in the table, and a line in the reference.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
from msgspec.structs import force_setattr

from penstock import argument
from penstock.clock import SECOND_US, Duration, duration_us
from penstock.errors import InvalidArgument
from penstock.limits import (
    ATTEMPTS_MAX,
    BACKOFF_FACTOR_MAX,
    COUNT_MAX,
    MESSAGE_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX,
)
from penstock.names import check_name

OnExpire = Literal["drop", "dead-letter"]
Overflow = Literal["reject", "drop-head"]
Ordering = Literal["fifo", "key"]
DeliveryPromise = Literal["at-least-once", "at-most-once", "exactly-once"]
Retain = Literal["consumed", "until-archived"]
Strategy = Literal["round-robin", "least-busy", "random"]


# --- checks: each takes a field's name and value, and gives the value as it is stored ---

_Check = Callable[[str, Any], Any]


def _seconds(field: str, value: Any) -> float:
    return duration_us(value, field) / SECOND_US


def _some_seconds(field: str, value: Any) -> float:
    seconds = _seconds(field, value)
    if not seconds:
        raise InvalidArgument(f"{field} is {argument.quoted(value)}; give more than 0 seconds")
    return seconds


def _number(low: float, high: float) -> _Check:
    def check(field: str, value: Any) -> float:
        plain = argument.number(value)
        # `not low <= plain` also refuses nan.
        if plain is None or not low <= plain <= high:
            raise InvalidArgument(
                f"{field} is {argument.quoted(value)}; give a number from {low:g} to {high:g}"
            )
        return float(plain)

    return check


def _integer(low: int, high: int) -> _Check:
    def check(field: str, value: Any) -> int:
        plain = argument.integer(value)
        if plain is None or not low <= plain <= high:
            raise InvalidArgument(f"{field} is {argument.quoted(value)}; give an int from {low} to {high}")
        return plain

    return check


def _choice(literal: Any) -> _Check:
    choices = get_args(literal)

    def check(field: str, value: Any) -> str:
        plain = argument.text(value)
        if plain is None or plain not in choices:
            raise InvalidArgument(
                f"{field} is {argument.quoted(value)}; give one of {', '.join(map(repr, choices))}"
            )
        return plain

    return check


def _flag(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidArgument(f"{field} is {argument.quoted(value)}; give true or false")
    return value


def _name(field: str, value: Any) -> str:
    return check_name(value, kind=field, reserved_ok=True)


def _or_none(check: _Check) -> _Check:
    return lambda field, value: None if value is None else check(field, value)


_BACKOFF_CHECKS: Final[dict[str, _Check]] = {
    "initial": _seconds,
    "factor": _number(1, BACKOFF_FACTOR_MAX),
    "maximum": _seconds,
    "jitter": _number(0, 1),
}


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long a failed message waits before its next attempt.

    The wait begins at `initial`, grows by `factor` with each attempt, and never exceeds `maximum`. `jitter` is the part
    of it that chance may take away (0.1: up to a tenth), so that what failed together does not return together.

    >>> Backoff(initial=1, factor=2, maximum=300, jitter=0).delay_us(attempt=3, jitter_unit=0.5)
    4000000
    """

    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 300.0
    jitter: float = 0.1

    if TYPE_CHECKING:
        # What is stored is a float, what may be given is more.
        def __init__(
            self, *, initial: Duration = 1, factor: float = 2, maximum: Duration = 300, jitter: float = 0.1
        ) -> None: ...

    def __post_init__(self) -> None:
        for field, check in _BACKOFF_CHECKS.items():
            force_setattr(self, field, check(f"backoff.{field}", getattr(self, field)))
        if self.maximum < self.initial:
            raise InvalidArgument(
                f"backoff.maximum is {self.maximum:g} and backoff.initial is {self.initial:g}; "
                "give a maximum that is not below it"
            )

    def delay_us(self, attempt: int, jitter_unit: float) -> int:
        """The wait after failed attempt number `attempt` (from 1). Pure: chance comes in as `jitter_unit`, 0 to 1."""
        if attempt < 1 or not 0 <= jitter_unit <= 1:
            raise InvalidArgument(
                f"attempt is {attempt}, jitter_unit {jitter_unit}; give 1 or more, and 0 to 1"
            )
        seconds = self._grown(attempt - 1) * (1 - self.jitter * jitter_unit)
        return round(seconds * SECOND_US)

    def _grown(self, steps: int) -> float:
        # Compared as logarithms, because factor ** steps overflows long before attempts run out.
        if self.initial and steps * math.log(self.factor) < math.log(self.maximum / self.initial):
            return min(self.maximum, self.initial * self.factor**steps)
        return self.maximum if self.initial else 0.0


def _backoff(field: str, value: Any) -> Backoff:
    if not issubclass(type(value), Backoff):
        raise InvalidArgument(
            f"{field} is {argument.quoted(value)}; give a Backoff, such as Backoff(initial=1), or None"
        )
    found: Backoff = value
    return found


_FIELD_CHECKS: Final[dict[str, _Check]] = {
    "visibility_timeout": _or_none(_some_seconds),
    "max_attempts": _or_none(_integer(1, ATTEMPTS_MAX)),
    "backoff": _or_none(_backoff),
    "dead_letter": _or_none(_name),
    "ttl": _or_none(_some_seconds),
    "on_expire": _choice(OnExpire),
    "max_depth": _or_none(_integer(1, COUNT_MAX)),
    "max_bytes": _or_none(_integer(1, COUNT_MAX)),
    "overflow": _choice(Overflow),
    "max_message_bytes": _integer(1, MESSAGE_BYTES_MAX),
    "ordering": _choice(Ordering),
    "delivery": _choice(DeliveryPromise),
    "dedup_window": _seconds,
    "retain": _choice(Retain),
    "retain_seconds": _or_none(_some_seconds),
    "retain_bytes": _or_none(_integer(1, COUNT_MAX)),
    "strategy": _choice(Strategy),
    "durable": _flag,
    "expires": _or_none(_some_seconds),
    "single_active": _flag,
}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be chosen for a queue or a topic.

    >>> policy = Policy.of(max_attempts=5, visibility_timeout=60)
    >>> policy.max_attempts, policy.visibility_timeout, policy.ordering
    (5, 60.0, 'fifo')
    >>> Policy.of(max_attempt=5)
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: there is no policy field 'max_attempt'; did you mean 'max_attempts'?
    """

    visibility_timeout: float | None = 30.0  # None: held until the consumer goes
    max_attempts: int | None = 3  # None: no limit
    backoff: Backoff | None = Backoff()  # None: retried at once
    dead_letter: str | None = None  # None: <name>.dlq
    ttl: float | None = None
    on_expire: OnExpire = "drop"
    max_depth: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = "reject"
    max_message_bytes: int = MESSAGE_BYTES_DEFAULT
    ordering: Ordering = "fifo"
    delivery: DeliveryPromise = "at-least-once"
    dedup_window: float = 300.0
    retain: Retain = "consumed"
    retain_seconds: float | None = None
    retain_bytes: int | None = None
    strategy: Strategy = "round-robin"
    durable: bool = True
    expires: float | None = None  # delete the queue when it was unused for so long
    single_active: bool = False

    def __post_init__(self) -> None:
        for field, check in _FIELD_CHECKS.items():
            force_setattr(self, field, check(field, getattr(self, field)))
        for problem in _contradictions(self):
            raise InvalidArgument(problem)

    @classmethod
    def of(cls, **given: Any) -> Policy:
        """The policy with these fields and defaults for the rest; times are seconds or `timedelta`."""
        _check_known(given)
        return cls(**given)


class Difference(msgspec.Struct, frozen=True):
    """One field in which a stored policy and what was given differ."""

    field: str
    stored: Any
    given: Any

    def __str__(self) -> str:
        return f"{self.field} is {self.stored!r}, not {self.given!r}"


def differences(stored: Policy, given: Mapping[str, Any]) -> list[Difference]:
    """In what the stored policy differs from the arguments that were given; those not given do not count.

    >>> [str(one) for one in differences(Policy(), {"max_attempts": 5, "visibility_timeout": 30})]
    ['max_attempts is 3, not 5']
    """
    return [
        Difference(field, getattr(stored, field), value)
        for field, value in checked(given).items()
        if value != getattr(stored, field)
    ]


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a policy as it would hold them. Each is right by itself; whether they contradict one another is seen in the whole.

    >>> checked({"ttl": 60})
    {'ttl': 60.0}
    """
    _check_known(given)
    return {field: _FIELD_CHECKS[field](field, value) for field, value in given.items()}


def altered(policy: Policy, **changes: Any) -> Policy:
    """The policy with some fields changed, checked as a whole.

    >>> altered(Policy(max_attempts=5), ttl=60).max_attempts
    5
    """
    _check_known(changes)
    return msgspec.structs.replace(policy, **changes)


def _check_known(given: Mapping[str, Any]) -> None:
    for field in given:
        if field not in _FIELD_CHECKS:
            near = difflib.get_close_matches(field, _FIELD_CHECKS, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_FIELD_CHECKS)}"
            raise InvalidArgument(f"there is no policy field {field!r}; {advice}")


def _contradictions(policy: Policy) -> Iterator[str]:
    """What two fields may not say together."""
    if policy.delivery == "exactly-once" and not policy.dedup_window:
        yield "delivery is 'exactly-once' and dedup_window is 0, which remembers nothing; give a dedup_window"
    if policy.delivery == "exactly-once" and not policy.durable:
        yield "delivery is 'exactly-once' and durable is off, which forgets on restart; leave it on"
    if policy.retain == "until-archived" and not policy.durable:
        yield "retain is 'until-archived' and durable is off, which leaves nothing to archive; leave it on"
    if policy.single_active and policy.strategy != "round-robin":
        yield f"strategy is {policy.strategy!r} and single_active is on: one consumer gets all; leave one of them out"
