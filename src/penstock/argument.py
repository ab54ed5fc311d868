"""What a caller gave: told by its type, made plain, and quoted in errors.

An argument may be of anybody's own class: an `IntEnum`, a `str` with methods of its own, an object whose `repr` fails, an int of five thousand
digits. Inside the broker there are only plain values, so whatever is compared, hashed and stored under its lock behaves as ints, texts and bytes
do, and what a caller hears of a wrong argument is an error of ours.

An object is told by `type`, not by `isinstance`: that asks the object itself for its class, and some lie, or fail.
"""

from __future__ import annotations

from typing import Final

from penstock.limits import ERROR_CHARS_MAX

#: As much of an argument as an error shows.
QUOTED_CHARS_MAX: Final = 200


def integer(value: object) -> int | None:
    """An int as a plain one; None if it is none.

    >>> from http import HTTPStatus
    >>> integer(7), integer(HTTPStatus.OK), integer(True), integer("7")
    (7, 200, None, None)
    """
    kind = type(value)
    if kind is int:
        return value  # type: ignore[return-value]
    # bool is an int in Python, but nobody means True messages.
    return int.__int__(value) if issubclass(kind, int) and kind is not bool else None  # type: ignore[arg-type]


def number(value: object) -> int | float | None:
    """An int or a float as a plain one; None if it is neither."""
    if issubclass(type(value), float):
        return float.__float__(value)  # type: ignore[arg-type]
    return integer(value)


def text(value: object) -> str | None:
    """A text as a plain one; None if it is none."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[return-value]
    return str.__str__(value) if issubclass(kind, str) else None


def octets(value: object) -> bytes | None:
    """Bytes as plain ones; None if they are none: a buffer that can still change is not."""
    kind = type(value)
    if kind is bytes:
        return value  # type: ignore[return-value]
    return b"".join((value,)) if issubclass(kind, bytes) else None  # type: ignore[arg-type]


def quoted(value: object) -> str:
    """An argument as an error shows it.

    >>> quoted("orders"), quoted(10**5000)
    ("'orders'", 'an object of type int')
    """
    if type(value) in {str, bytes}:
        value = value[:QUOTED_CHARS_MAX]  # type: ignore[index]  # of a payload, the beginning will do
    try:
        shown = text(repr(value)) or ""
    except Exception:  # whatever it is, and whatever it does: the caller is to hear what is wrong with it
        return f"an object of type {type(value).__name__}"
    return shown if len(shown) <= QUOTED_CHARS_MAX else shown[: QUOTED_CHARS_MAX - 1] + "…"


def error_text(error: object) -> str | None:
    """Return what a caller gave as the reason of a failure, as text of a bounded length.

    >>> error_text(ValueError("no such customer"))
    'ValueError: no such customer'
    """
    if error is None:
        return None
    name = type(error).__name__
    try:
        text = f"{name}: {error}" if isinstance(error, BaseException) else str(error)
    except Exception:  # somebody's own class: whatever it does, the failure is to be recorded
        text = name
    text = str.encode(text, "utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"
