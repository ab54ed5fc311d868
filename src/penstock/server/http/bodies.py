"""Bodies: from bytes to the wire's structs and back, in JSON or msgpack.

A request is what its Content-Type says; anything that is not msgpack is read as JSON, since curl sends JSON as a form unless it is told otherwise.
An answer is what `Accept` asks for, and if that says nothing, what the request was.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.errors import InvalidArgument

JSON_TYPE: Final = b"application/json"
MSGPACK_TYPE: Final = b"application/msgpack"

#: Whatever a stats struct holds that neither format knows (paths) goes as text.
encode_json: Final = msgspec.json.Encoder(enc_hook=str).encode
encode_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=str).encode


class Reading:
    """How the body of a route is read, in both formats: made once."""

    __slots__ = ("_json", "_msgpack", "optional")

    def __init__(self, wanted: Any) -> None:
        self._json = msgspec.json.Decoder(wanted)
        self._msgpack = msgspec.msgpack.Decoder(wanted)
        self.optional = _may_be_empty(wanted)

    def __call__(self, body: bytes, content_type: bytes) -> Any:
        packed = is_msgpack(content_type)
        if not body and self.optional:
            body = b"\x80" if packed else b"{}"
        try:
            return (self._msgpack if packed else self._json).decode(body)
        except msgspec.DecodeError as error:  # of which a value of the wrong type is one
            raise InvalidArgument(f"the body cannot be read: {error}") from None
        except RecursionError:
            raise InvalidArgument("the body cannot be read: it is nested too deep") from None
        except (ValueError, OverflowError) as error:  # dates out of any calendar, texts that are none
            raise InvalidArgument(f"the body cannot be read: {error}") from None


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
