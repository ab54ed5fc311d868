"""Routes as data: from these rows the server's handlers, its OpenAPI document, the reference and the two-tenant test are made.

A row says where an address is, what it takes and gives, who may use it, and what does it. A handler gets a `Call` and gives a struct of the wire (`None` is an empty answer);
everything else is the same for all rows, and is done once, in `endpoint`.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from penstock import argument
from penstock.broker.port import Port
from penstock.clock import SECOND_US, duration_us
from penstock.errors import InvalidArgument
from penstock.limits import BODY_VALUES_SMALL_MAX
from penstock.model.commands import Command, Handle, Unit
from penstock.model.queries import Query as Query_
from penstock.server.accounts import Permission
from penstock.server.http.bodies import encode_json, encode_msgpack
from penstock.server.http.front import Front, Receive
from penstock.server.http.parties import Caller, Connection
from penstock.server.http.problem import RETRY_AFTER_S, Refusal

Method = Literal["GET", "PUT", "POST", "PATCH", "DELETE"]

#: Everything under `/v1` belongs to a namespace, and nearly all of it to a log of that.
NAMESPACE: Final = "/v1/namespaces/{namespace}"
LOG: Final = NAMESPACE + "/logs/{name}"

#: From here on making an answer takes milliseconds, of which others would have to wait for each. Below, a thread would cost more than it saves.
THREAD_BYTES: Final = 256 << 10

_WHOLE: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


T = TypeVar("T")


class Query(NamedTuple):
    """A parameter behind the question mark."""

    name: str
    kind: type[int] | type[float] | type[bool] | type[str]
    summary: str
    default: Any = None


LOG_NUMBER: Final = Query(
    "log", int, "the number of the log that is meant: another one of its name is refused"
)
WAIT: Final = Query("wait", float, "how many seconds to wait while there is nothing", 0.0)


class Plain(NamedTuple):
    """An answer that is no struct."""

    body: bytes
    content_type: str
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Events(NamedTuple):
    """An answer that goes on: server-sent events, one after another."""

    events: AsyncGenerator[bytes, None]


class Stream(NamedTuple):
    """An answer that comes in parts, as they are made. When it ends, or is not even begun, something is given back."""

    parts: AsyncGenerator[bytes, None]
    content_type: str
    close: Callable[[], None]


class Encoded(NamedTuple):
    """A struct as it is sent."""

    body: bytes


class Call:
    """A request on its way."""

    __slots__ = (
        "accept", "body", "caller", "connection", "content_type", "front", "headers", "namespace", "packed", "path", "port", "query",
        "receive", "request_id", "scope", "status",
    )  # fmt: skip

    scope: Any  # as ASGI has it
    connection: Connection
    front: Front
    port: Port
    caller: Caller
    namespace: str
    path: dict[str, Any]
    query: Mapping[str, Any]
    headers: Mapping[bytes, bytes]  # of the request
    body: Any
    packed: bool  # whether the answer goes as msgpack
    accept: bytes
    content_type: bytes
    receive: Receive
    request_id: str
    status: int | None

    async def log(self) -> Handle:
        """The queue or topic that is named in the address."""
        return await self.front.log(self.namespace, self.path["name"], self.query.get("log"))

    async def do(self, log: Handle, command: Command) -> Any:
        """Do one command; its answer."""
        (answer,) = await self.port.commit(Unit(log.namespace, ((log, command),))).get()
        return answer

    async def ask(self, query: Query_[T]) -> T:
        """Answer a query of the port."""
        return await self.port.describe(query).get()

    def wait_us(self, given: float) -> int:
        """Return how long a request waits: no longer than the server lets it, or its token lasts."""
        wait_us = min(duration_us(given, "wait"), round(self.front.bounds.wait_s_max * SECOND_US))
        if self.caller.until_us is not None:
            wait_us = max(0, min(wait_us, self.caller.until_us - self.port.clock.now_us()))
        return 0 if self.front.stopping else wait_us

    def require_caller(self) -> None:
        """Raise `Unauthorized` if the caller is nobody any more: the token has expired, or the key that it was signed with was replaced. For answers that go on, or were waited for."""
        self.front.accounts.caller(self.header(b"authorization"))

    async def built(self, octets: int, make: Callable[[], Any]) -> Any:
        """An answer of about so many bytes. What is large is made, and encoded, in a thread: others are not to wait for it."""
        if octets < THREAD_BYTES:
            return make()
        encode = encode_msgpack if self.packed else encode_json
        return Encoded(await asyncio.to_thread(lambda: encode(make())))

    def require_room(self, octets: int) -> None:
        """Raise unless an answer of about so many bytes may be made."""
        if not self.connection.has_room_for(octets):
            raise Refusal(
                503, "too_many_transfers", "the answers that clients do not read take all the memory there is for them: ask for less, or try again soon",
                retry_after_s=RETRY_AFTER_S,
            )  # fmt: skip

    def wait_name(self) -> tuple[str, str] | None:
        """What the client calls this request, to be able to end its wait."""
        found = self.header(b"penstock-wait")
        return None if found is None else (self.caller.party, found[:64])

    def header(self, name: bytes) -> str | None:
        """A header of the request."""
        found = self.headers.get(name)
        return None if found is None else found.decode("latin-1")


Handler = Callable[[Call], Awaitable[Any]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One address, and what is done there."""

    method: Method
    path: str
    summary: str
    handler: Handler
    permission: tuple[Permission, ...] = ()  # any of these, in the namespace of the address
    also: tuple[Permission, ...] = ()  # and any of these besides
    query: tuple[Query, ...] = ()
    request: Any = None  # what the body is read as
    values_max: int = BODY_VALUES_SMALL_MAX  # of the body
    answer: Any = None  # what comes back; None is an empty answer
    status: int | None = None  # 200, or 204 where nothing comes back
    others: dict[int, str] = {}  # further statuses, and when they come
    example: Any = None  # of a body
    answer_example: Any = None
    media: tuple[str, ...] = ()  # further media types of the answer
    public: bool = False  # no token is needed
    note: str = ""  # more than the summary says

    @property
    def succeeds(self) -> int:
        return self.status if self.status is not None else (200 if self.answer is not None else 204)

    @property
    def parameters(self) -> list[str]:
        """The names in the address."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def about_a_log(self) -> bool:
        return self.path.startswith(LOG)

    def all_queries(self) -> tuple[Query, ...]:
        return (*self.query, LOG_NUMBER) if self.about_a_log else self.query


def parsed(known: dict[str, Query], given: bytes) -> dict[str, Any]:
    """The parameters of a request, each of its kind. What the route does not know is refused, so that a misspelt one is noticed."""
    found = {name: one.default for name, one in known.items()}
    if not given:
        return found
    try:
        pairs = parse_qsl(given.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError as error:
        raise InvalidArgument(f"the query cannot be read: {error}") from None
    seen = set()
    for name, value in pairs:
        one = known.get(name)
        if one is None:
            there_are = ", ".join(known) if known else "none"
            raise InvalidArgument(f"there is no parameter {argument.quoted(name)}; there are: {there_are}")
        if name in seen:
            raise InvalidArgument(f"the parameter {name!r} is given twice; give it once")
        seen.add(name)
        found[name] = _value(one, value)
    return found


def _value(one: Query, value: str) -> Any:
    if one.kind is str:
        return value
    if one.kind is bool:
        if value.lower() not in _TRUTH:
            raise InvalidArgument(f"{one.name} is {argument.quoted(value)}; give true or false")
        return _TRUTH[value.lower()]
    if one.kind is int:
        if not _WHOLE.fullmatch(value):
            raise InvalidArgument(f"{one.name} is {argument.quoted(value)}; give a whole number")
        return int(value)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgument(f"{one.name} is {argument.quoted(value)}; give a number of seconds")
    return number
