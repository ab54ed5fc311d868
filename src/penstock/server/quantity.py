"""Lengths of time, sizes, counts and addresses as people write them in a configuration.

Each function takes what a source gave (text from the environment, a number or text from TOML), and gives a plain value or raises a `ValueError`
that says what would be right. `settings` adds which setting it was, and where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.limits import COUNT_MAX, DURATION_S_MAX

#: A `None` that can be written down, for a limit that is not to be there.
NOTHING: Final = frozenset({"none", "off", "unlimited"})

_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_TIME: Final = re.compile(rf"(?:{_PART.pattern})+")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})
_PORT_MAX: Final = 65_535
_DIGITS_MAX: Final = 20


class Address(NamedTuple):
    """Where a front listens. Port 0 is any that is free; an empty host is every address of the machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def seconds(given: Any) -> float:
    """A length of time: `90`, `1.5`, `500ms`, `1h30m`, `2d`.

    >>> seconds("1h30m"), seconds("500ms"), seconds(2)
    (5400.0, 0.5, 2.0)
    """
    text = str(given).strip().lower()
    if _NUMBER.fullmatch(text):
        value = float(text)
    elif _TIME.fullmatch(text):
        value = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
    else:
        raise ValueError("give a length of time, such as 90 (seconds), 500ms, 15m or 1h30m")
    if not 0 < value <= DURATION_S_MAX:
        raise ValueError("give more than 0 seconds, and less than a century")
    return value


def size_bytes(low: int, high: int) -> Callable[[Any], int]:
    """A number of bytes: `65536`, `64KiB`, `1MB` (which is 1,000,000), `1.5MiB`.

    >>> size_bytes(1, 1 << 30)("64 KiB"), size_bytes(1, 1 << 30)("1MB")
    (65536, 1000000)
    """

    def parse(given: Any) -> int:
        found = _SIZE.fullmatch(str(given).strip())
        if found is None:
            raise ValueError("give a number of bytes, such as 65536, 64KiB or 1MB")
        power = " kmgt".index(found[2].lower() or " ")
        scale: int = (1024 if found[3] else 1000) ** power
        value = round(float(found[1]) * scale)
        if not low <= value <= high:
            raise ValueError(f"give from {low} to {high} bytes")
        return value

    return parse


def count(low: int, high: int = COUNT_MAX) -> Callable[[Any], int]:
    """A whole number; `100_000` is one.

    >>> count(0)("100_000")
    100000
    """

    def parse(given: Any) -> int:
        text = str(given).strip()
        digits = text.replace("_", "")
        if type(given) is bool or not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
            raise ValueError(f"give a whole number from {low} to {high}")
        if not low <= int(digits) <= high:
            raise ValueError(f"give a whole number from {low} to {high}")
        return int(digits)

    return parse


def number(low: float, high: float) -> Callable[[Any], float]:
    """A number, whole or not, above `low`."""

    def parse(given: Any) -> float:
        text = str(given).strip()
        if not _NUMBER.fullmatch(text) or not low < float(text) <= high:
            raise ValueError(f"give a number above {low:g} and at most {high:g}")
        return float(text)

    return parse


def or_nothing(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, or `none`."""

    def parse_or(given: Any) -> Any:
        return None if str(given).strip().lower() in NOTHING else parse(given)

    return parse_or


def flag(given: Any) -> bool:
    """On or off.

    >>> flag("yes"), flag("0"), flag(True)
    (True, False, True)
    """
    text = str(given).strip().lower()
    if text in _YES or text in _NO:
        return text in _YES
    raise ValueError("give on or off (or true, yes, 1; false, no, 0)")


def choice(*words: str) -> Callable[[Any], str]:
    """One of some words."""

    def parse(given: Any) -> str:
        text = str(given).strip().lower()
        if text not in words:
            raise ValueError(f"give one of {', '.join(words)}")
        return text

    return parse


def address(given: Any) -> Address:
    """Where to listen: `127.0.0.1:8080`, `[::1]:8080`, `:8080` for every address of the machine.

    >>> address("[::1]:8080"), address(":8080").host
    (Address(host='::1', port=8080), '')
    """
    host, colon, port = str(given).strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("give an IPv6 address in brackets, such as [::1]:8080")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX or " " in host:
        raise ValueError("give HOST:PORT, such as 127.0.0.1:8080, or :8080 for every address of this machine")
    return Address("" if host == "*" else host, int(port))


def text(given: Any) -> str:
    """Text as it is."""
    return str(given)


def words(given: Any) -> tuple[str, ...]:
    """Several of something, with commas between them, or an array.

    >>> words("a:1, b:2"), words(["a:1", "b:2"])
    (('a:1', 'b:2'), ('a:1', 'b:2'))
    """
    parts = given if isinstance(given, list | tuple) else str(given).split(",")
    return tuple(part for part in (str(part).strip() for part in parts) if part)
