"""What a queue, topic, group, consumer or namespace may be called.

A name is 1 to 255 characters: ASCII letters, digits and ``. - _ : @``, beginning with a letter, a digit or ``_``. That
is what can be typed in a shell, put into a URL and sent as an AMQP short string without quoting, and what RabbitMQ's
usual clients make up themselves (``amq.gen-…``, ``celery@host.celery.pidbox``). Case matters.

The suffix ``.dlq`` is reserved: ``orders.dlq`` holds the dead letters of ``orders``, and a user cannot create one by
hand. Other names leave room for it, so that every queue's dead letters have a valid name.

Names never become file names: the journal numbers its files, so no name can escape from its directory, collide on a
file system that ignores case, or exceed its limit.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from penstock import argument
from penstock.errors import InvalidName, PenstockError, QueueNotFound, TopicNotFound
from penstock.limits import NAME_CHARS_MAX

DEAD_LETTER_SUFFIX: Final = ".dlq"

_VALID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@-]*")
_ALLOWED: Final = "letters, digits and . - _ : @ are allowed, beginning with a letter, a digit or _"


def check_name(name: str, *, kind: str = "name", reserved_ok: bool = False) -> str:
    """Give back a valid name, or raise `InvalidName` that says what is wrong with it and where.

    >>> check_name("orders.eu")
    'orders.eu'
    >>> check_name("new orders", kind="queue name")
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidName: the queue name 'new orders' has ' ' at character 4; letters, digits and . - _ : @ are \
allowed, beginning with a letter, a digit or _
    """
    plain = argument.text(name)
    if plain is None:
        raise InvalidName(f"the {kind} is {argument.quoted(name)}; give a str")
    _check_length(plain, kind)
    _check_characters(plain, kind)
    if plain.endswith(DEAD_LETTER_SUFFIX):
        _check_reserved(plain, kind, reserved_ok)
    return plain


def is_dead_letter_name(name: str) -> bool:
    """Whether a valid name is that of a queue's dead letters."""
    return name.endswith(DEAD_LETTER_SUFFIX)


def dead_letter_name(name: str) -> str:
    """The name of a queue's dead letters.

    >>> dead_letter_name("orders")
    'orders.dlq'
    """
    if is_dead_letter_name(name):
        raise InvalidName(f"{name!r} holds dead letters itself and has none of its own")
    return check_name(name) + DEAD_LETTER_SUFFIX


def is_part_of(name: str, others: Container[str]) -> bool:
    """Return whether a name is that of the dead letters of one of `others`, and so a part of it.

    >>> is_part_of("orders.dlq", {"orders"}), is_part_of("gone.dlq", {"orders"}), is_part_of("orders", {"orders"})
    (True, False, False)
    """
    return is_dead_letter_name(name) and name.removesuffix(DEAD_LETTER_SUFFIX) in others


def _check_length(name: str, kind: str) -> None:
    if not name:
        raise InvalidName(f"the {kind} is empty; {_ALLOWED}")
    # A plain name leaves room for the suffix of its dead letters.
    reserved = name.endswith(DEAD_LETTER_SUFFIX)
    chars_max = NAME_CHARS_MAX if reserved else NAME_CHARS_MAX - len(DEAD_LETTER_SUFFIX)
    if len(name) > chars_max:
        raise InvalidName(f"the {kind} {name[:20]!r}... has {len(name)} characters; use at most {chars_max}")


def _check_characters(name: str, kind: str) -> None:
    valid = _VALID.match(name)
    end = valid.end() if valid else 0
    if end < len(name):
        raise InvalidName(f"the {kind} {name!r} has {name[end]!r} at character {end + 1}; {_ALLOWED}")


def _check_reserved(name: str, kind: str, reserved_ok: bool) -> None:
    if not reserved_ok:
        raise InvalidName(
            f"the {kind} {name!r} ends with {DEAD_LETTER_SUFFIX!r}, which is reserved for dead letters; drop the suffix"
        )
    if name.removesuffix(DEAD_LETTER_SUFFIX).endswith(DEAD_LETTER_SUFFIX):
        raise InvalidName(f"the {kind} {name!r} would be dead letters of dead letters, which do not exist")


def not_found(kind: str, name: str, why: str = "does not exist") -> PenstockError:
    """Return the error that there is no queue or topic of a name."""
    error = TopicNotFound if kind == "topic" else QueueNotFound
    if is_dead_letter_name(name):
        return error(f"the {kind} {name!r} {why}; it is made with the first dead letter")
    return error(f"the {kind} {name!r} {why}; create it, or check the name and the namespace")
