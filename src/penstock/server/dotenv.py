"""The file `.env`: variables for the environment, one on a line, as shells and Compose write them.

    # a comment
    PENSTOCK_HTTP_ADDR=127.0.0.1:8080      # one behind a value, after a blank
    export PENSTOCK_LOG_LEVEL="debug"      # `export` may stand in front
    PENSTOCK_JWT_SECRET='as it is: # $HOME \\n'
    PENSTOCK_JWT_PUBLIC_KEY="-----BEGIN PUBLIC KEY-----
    …a quoted value may have several lines…
    -----END PUBLIC KEY-----"

Without quotes a value ends at the end of its line, or at a blank and `#`; blanks around it do not count. In single quotes everything is as
it is. In double quotes `\\n`, `\\r`, `\\t`, `\\"`, `\\\\` and `\\$` stand for what they do in C and in a shell. `$NAME` is not
replaced: who reads the file sees what is meant, and a secret may have a `$` in it. The last of two lines with the same name counts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.errors import InvalidArgument

_NAME: Final = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*")
_BLANK: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_REST: Final = re.compile(r"[ \t]*(?:[ \t]#[^\n]*)?(?:\n|\Z)")
_PLAIN: Final = re.compile(r"(?:(?![ \t]+(?:#|\n|\Z))[^\n])*")
_ESCAPED: Final = re.compile(r"\\([nrt\"\\$])")
_QUOTED: Final = {"'": re.compile(r"'([^']*)'"), '"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)}
_MEANING: Final = {"n": "\n", "r": "\r", "t": "\t"}


class Line(NamedTuple):
    """A value, and the line it begins in."""

    value: str
    number: int


def parse(text: str, where: str = ".env") -> dict[str, Line]:
    """The variables of a file.

    >>> parse("export A='x # y'\\nB = 1 # one")
    {'A': Line(value='x # y', number=1), 'B': Line(value='1', number=2)}
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found: dict[str, Line] = {}
    position = 0
    while position < len(text):
        if blank := _BLANK.match(text, position):
            position = blank.end()
            continue
        number = text.count("\n", 0, position) + 1
        name = _NAME.match(text, position)
        if name is None:
            raise InvalidArgument(f"{where}, line {number} is not NAME=value; a comment begins with #")
        value, position = _value(text, name.end(), f"{where}, line {number}: {name[1]}")
        found[name[1]] = Line(value, number)
    return found


def _value(text: str, start: int, what: str) -> tuple[str, int]:
    """The value that begins there, and where the next line does."""
    quote = text[start : start + 1]
    if quote not in _QUOTED:
        plain = _PLAIN.match(text, start)
        assert plain is not None  # it matches nothing, too
        value, end = plain[0], plain.end()
    else:
        quoted = _QUOTED[quote].match(text, start)
        if quoted is None:
            raise InvalidArgument(f"{what} begins with {quote} and does not end with one")
        value, end = quoted[1], quoted.end()
        if quote == '"':
            value = _ESCAPED.sub(lambda found: _MEANING.get(found[1], found[1]), value)
    rest = _REST.match(text, end)
    if rest is None:
        raise InvalidArgument(f"{what} has something behind its closing quote; put the whole value in quotes")
    return value, rest.end()
