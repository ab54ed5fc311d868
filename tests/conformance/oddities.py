"""What nobody should give, and somebody does: values that are wrong, too large, of classes of their own, or that fail when they are looked at."""

from __future__ import annotations

import enum
from collections import UserDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final, NoReturn

from penstock import Backoff, Message


class Refusal(Exception):
    """What an odd object raises: it must never be seen."""


def _refuse(*_: object, **__: object) -> NoReturn:
    raise Refusal


class Sullen:
    """Answers nothing."""

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = __format__ = __contains__ = _refuse


class Mute(Exception):
    """An error with a bug in its own class."""

    def __str__(self) -> str:
        detail: str = self.detail  # type: ignore[attr-defined]
        return detail


class SullenInt(int):
    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = __mul__ = __rmul__ = __format__ = _refuse


class SullenFloat(float):
    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __mul__ = __rmul__ = __round__ = __format__ = _refuse


class SullenText(str):
    __slots__ = ()
    __repr__ = __str__ = __eq__ = __hash__ = __len__ = __getitem__ = __format__ = _refuse
    encode = isascii = endswith = removesuffix = _refuse


class SullenBytes(bytes):
    __repr__ = __str__ = __eq__ = __hash__ = __len__ = __getitem__ = _refuse


class SullenSpan(timedelta):
    __repr__ = __str__ = __eq__ = __hash__ = __floordiv__ = __lt__ = __bool__ = _refuse


class Liar:
    """Says that it is of another class."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._kind


class Faceless:
    """Does not say of which class it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise Refusal


class Unreadable(Mapping[str, str]):
    def __getitem__(self, name: str) -> str:
        raise Refusal

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class Fickle(Mapping[Any, Any]):
    """Says something else each time: first what is right."""

    def __init__(self) -> None:
        self._asked = 0

    def __getitem__(self, name: object) -> Any:
        return "value" if name == "name" else 7

    def __iter__(self) -> Iterator[Any]:
        self._asked += 1
        return iter(["name"] if self._asked == 1 else [7])

    def __len__(self) -> int:
        return 1


class Nowhere(tzinfo):
    def utcoffset(self, moment: datetime | None, /) -> timedelta | None:
        raise Refusal

    tzname = dst = utcoffset  # type: ignore[assignment]


class Word(enum.StrEnum):
    KEY = "key"


class Mixed(str, enum.Enum):  # noqa: UP042  # it says another text of itself
    KEY = "key"


class Level(enum.IntEnum):
    FIVE = 5


def _deep() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(5_000):
        found = {"a": found}
    return found


NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


def oddities() -> dict[str, Any]:
    """Odd values by name, fresh each time: some remember that they were asked."""
    return {
        "true": True, "zero": 0, "negative": -1, "fraction": 1.5, "nan": float("nan"), "inf": float("inf"),
        "-inf": float("-inf"), "a large float": 1e308, "a small float": 5e-324, "64 bits": 2**63, "400 digits": 10**400,
        "-400 digits": -(10**400), "5000 digits": 10**5000, "-5000 digits": -(10**5000),
        "no text": "", "a surrogate": "\ud800", "a zero byte": "a\0b", "two lines": "a\nb", "a long text": "x" * 100_000,
        "bytes": b"x", "a buffer": bytearray(b"x"), "a view": memoryview(b"x"), "large bytes": b"x" * 2_000_000,
        "a list": [1], "a deep dict": _deep(), "a dict of ints": {1: 2}, "a dict of surrogates": {"a": "\ud800"},
        "a dict without a name": {"": "a"}, "a dict of sullen texts": {SullenTextOnce("a"): SullenText("b")},
        "a set": {1}, "an object": object(), "a class": int, "a function": print, "an error": Refusal(), "a mute error": Mute(), "dots": ...,
        "decimal": Decimal(1), "decimal nan": Decimal("nan"), "complex": 1j,
        "a message": Message(b"x"), "a backoff": Backoff(),
        "the longest span": timedelta.max, "the shortest span": timedelta.min, "a span": timedelta(seconds=1),
        "a naive moment": NOW.replace(tzinfo=None), "the last moment": datetime.max.replace(tzinfo=UTC),
        "after the last": datetime.max.replace(tzinfo=WEST), "before the first": datetime.min.replace(tzinfo=EAST),
        "nowhere": NOW.replace(tzinfo=Nowhere()), "an int of an enum": Level.FIVE, "a text of an enum": Word.KEY,
        "a mixed enum": Mixed.KEY, "sullen": Sullen(), "a sullen int": SullenInt(5), "a sullen float": SullenFloat(5),
        "a sullen text": SullenText("key"), "sullen bytes": SullenBytes(b"x"), "a sullen span": SullenSpan(seconds=1),
        "no int": Liar(int), "no text at all": Liar(str), "no bytes": Liar(bytes), "no span": Liar(timedelta),
        "no moment": Liar(datetime), "no message": Liar(Message), "no dict": Liar(dict), "faceless": Faceless(),
        "an unreadable mapping": Unreadable(), "a fickle mapping": Fickle(), "a user's dict": UserDict({"a": "b"}),
    }  # fmt: skip


class SullenTextOnce(str):
    """Can be a key of a dict, and nothing more."""

    __slots__ = ()
    __hash__ = str.__hash__
    __repr__ = __str__ = __len__ = __getitem__ = encode = isascii = _refuse
