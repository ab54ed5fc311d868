"""Bodies: from bytes to the wire's structs and back, in JSON or msgpack.

A request is what its Content-Type says; anything that is not msgpack is read as JSON, since curl sends JSON as a form unless it is told otherwise.
An answer is what `Accept` asks for, and if that says nothing, what the request was.
"""

from __future__ import annotations

import re
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import defstruct

from penstock.errors import BatchTooLarge, InvalidArgument
from penstock.limits import BODY_VALUES_SMALL_MAX, MESSAGES_MAX
from penstock.policy import Policy
from penstock.server.http.body_values import BYTE_VALUES_MAX, require_values

JSON_TYPE: Final = b"application/json"
MSGPACK_TYPE: Final = b"application/msgpack"

#: Larger bodies are decoded in a thread, item by item: from here on that takes some 5 ms, and a thread costs one.
DECODED_AT_ONCE_BYTES: Final = 1 << 20

#: Values of one item: HEADERS_COUNT_MAX names and texts, its fields, and some to spare.
ITEM_VALUES_MAX: Final = 1024

#: Whatever a stats struct holds that neither format knows (paths) goes as text.
encode_json: Final = msgspec.json.Encoder(enc_hook=str).encode
encode_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=str).encode


class Reading:
    """How the body of a route is read, in both formats: made once."""

    __slots__ = ("_items", "_json", "_msgpack", "_uncounted_bytes", "_values_max", "optional", "takes_policy")

    def __init__(self, wanted: Any, values_max: int = BODY_VALUES_SMALL_MAX) -> None:
        self._items = Items.of(wanted)
        self._json = msgspec.json.Decoder(wanted)
        self._msgpack = msgspec.msgpack.Decoder(wanted)
        self._values_max = values_max
        self._uncounted_bytes = values_max // BYTE_VALUES_MAX
        self.optional = _may_be_empty(wanted)
        self.takes_policy = "policy" in getattr(wanted, "__struct_fields__", ())

    def __call__(self, body: bytes, content_type: bytes) -> Any:
        packed = is_msgpack(content_type)
        if not body and self.optional:
            body = b"\x80" if packed else b"{}"
        if len(body) > self._uncounted_bytes:
            require_values(body, self._values_max, packed=packed)
        try:
            if self._items is not None and len(body) >= DECODED_AT_ONCE_BYTES:
                return self._items.decode(body, packed=packed)
            return (self._msgpack if packed else self._json).decode(body)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"the body cannot be read: {self._wrong(str(error), packed)}") from None
        except msgspec.DecodeError as error:
            raise InvalidArgument(_unreadable(body, str(error), packed)) from None
        except RecursionError:
            raise InvalidArgument("the body cannot be read: it is nested too deep") from None
        except (ValueError, OverflowError) as error:  # dates out of any calendar, texts that are none
            raise InvalidArgument(f"the body cannot be read: {error}") from None

    def _wrong(self, said: str, packed: bool) -> str:
        """What is wrong with a value, and what to do."""
        found = _FIELD.fullmatch(said)
        if found is None:
            return f"{said}; in JSON payloads are in base64" if not packed and _BYTES.search(said) else said
        lacks, name, place = found[1] == "missing required", found[2], (found[3] and f" at {found[3]}") or ""
        if not lacks and self.takes_policy and name in Policy.__struct_fields__:
            return f'{name!r} is a field of a policy: write {{"policy": {{"{name}": …}}}}'
        return f"the field {name!r} is missing{place}" if lacks else f"there is no field {name!r}{place}"


class Items:
    """Bodies that are a list of items, decoded one item after the other.

    A decoder gives up the interpreter for nothing: while it decodes a large body, all other requests
    wait. Between two items they have their turn.
    """

    def __init__(self, field: str | None, kind: Any, whole: Any) -> None:
        self._field = field  # the list's own, or None if the body is the list
        self._whole = whole
        outer: Any = list[msgspec.Raw] if field is None else defstruct(
            "Parts", [(field, list[msgspec.Raw])], forbid_unknown_fields=True
        )  # fmt: skip
        self._json = msgspec.json.Decoder(outer), msgspec.json.Decoder(kind)
        self._msgpack = msgspec.msgpack.Decoder(outer), msgspec.msgpack.Decoder(kind)

    @classmethod
    def of(cls, wanted: Any) -> Items | None:
        """Return how a kind of body is decoded so; None if it is no list of items."""
        if get_origin(wanted) is list:
            return cls(None, get_args(wanted)[0], wanted)
        if not issubclass(wanted if isinstance(wanted, type) else object, msgspec.Struct):
            return None
        fields = get_type_hints(wanted)
        if len(fields) != 1 or get_origin(*fields.values()) is not list:
            return None
        ((field, kind),) = fields.items()
        return cls(field, get_args(kind)[0], wanted)

    def decode(self, body: bytes, *, packed: bool) -> Any:
        whole, one = self._msgpack if packed else self._json
        parts = whole.decode(body)
        items = parts if self._field is None else getattr(parts, self._field)
        if len(items) > MESSAGES_MAX:
            raise BatchTooLarge(
                f"a batch of {len(items)} messages is over the bound of {MESSAGES_MAX}: make it several"
            )
        found: list[Any] = []
        for raw in items:
            part = memoryview(raw)
            if len(part) > ITEM_VALUES_MAX // BYTE_VALUES_MAX:
                require_values(bytes(part), ITEM_VALUES_MAX, packed=packed)
            try:
                found.append(one.decode(part))
            except msgspec.ValidationError as error:
                place = f"{(self._field and '.' + self._field) or ''}[{len(found)}]"
                raise _at_place(error, place) from None
        return found if self._field is None else self._whole(**{self._field: found})


def _at_place(error: msgspec.ValidationError, place: str) -> msgspec.ValidationError:
    """The error of an item, as one of the body."""
    said, at, rest = str(error).partition(" - at `$")
    return msgspec.ValidationError(f"{said} - at `${place}{rest}" if at else f"{said} - at `${place}`")


_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*?)`(?: - at `(.*)`)?")
_BYTES: Final = re.compile(r"base64|Expected `bytes")


def _unreadable(body: bytes, said: str, packed: bool) -> str:
    """What is said of a body that is not in its format at all."""
    form = "msgpack" if packed else "JSON"
    if not body:
        return f"there is no body; send one in {form}"
    why = "it ends too early" if "truncated" in said else said.partition("malformed: ")[2] or said
    return f"the body is not {form}: {why}"


def _may_be_empty(wanted: Any) -> bool:
    """Whether every field of a struct has a default: then no body is as good as an empty one."""
    try:
        msgspec.json.decode(b"{}", type=wanted)
    except msgspec.DecodeError:
        return False
    return True


def is_msgpack(content_type: bytes) -> bool:
    return b"msgpack" in content_type


def wants_msgpack(accept: bytes, content_type: bytes) -> bool:
    """Which of the two formats the answer is to have."""
    if not accept or accept == b"*/*":
        return b"msgpack" in content_type
    packed = accept.find(b"msgpack")
    if packed < 0:
        return False
    plain = accept.find(b"json")
    return plain < 0 or packed < plain
