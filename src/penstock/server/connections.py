"""Who may connect, for how long, and how much a connection may take: what uvicorn leaves to a proxy in front of it.

Theory of operation
-------------------
uvicorn pauses connections that send more than is read. It counts no connections by
address, has no bound on the head of a request (httptools keeps all of it) nor on how many requests come behind one another, and waits for ever for one that never ends: a few thousand clients that
send a byte a minute would take every connection there is. So its protocol class is subclassed (`Guard`):

- `Door` counts connections, in all and by address (of IPv6 by its /64, which is what one customer has), and refuses the one too many with a
  short answer, before a parser is made busy with it. With TLS they are counted when they are accepted (see `listening`), so that handshakes that never end count, too.
- `Guard.data_received` counts the bytes of a head or a body that is not whole yet. One that is never whole is refused when it is above its bound,
  and nobody has seen it. The bytes of bodies that came in several pieces are counted for all connections together, from the first until the answer: many
  that are each within their bound are not more than the memory there is. The one that goes beyond is refused.
- Headers behind a chunked body (trailers) are dropped: uvicorn puts them among the headers of the
  request, where an `Authorization` that no proxy has seen would count. They have the bound of a head.
- Time is looked at once a second, for all connections together (`Door.sweep`): a request that comes and goes within a second costs no timer.
  What a connection is doing (`Stage`) and for which request is compared with the second before. Who asks for nothing may stay for a time; a head must be there within one; a body may
  take a time and one second more for every so many bytes, so a client that sends a byte a second is cut, and a slow line is not; an answer that
  nobody takes is given up.

- Whether a client takes its answer is asked of the kernel, which counts the bytes that it acknowledged (`Guard._line`): our own buffer may be as full as a second ago though a stream went on, and of what waits
  behind TLS uvloop tells nothing. Large answers that are not read yet have a common bound, too; it is looked at before one is made (`Guard.has_room_for`), so that what it would have granted goes back.

Whoever is refused hears why: an answer is written, our side of the connection is closed, and what still comes is thrown away for a
moment, because a connection that is closed with unread bytes is reset, and the reset overtakes the answer.

An answer that is whole goes out by `Guard.answer`: its head is put together once, and it is one write. By ASGI's two messages it would be two system calls, each of which
wakes the client, and uvicorn looks at every header with two regular expressions: a seventh of what a publish costs. An answer in parts goes that way, and one whose turn is not yet there.

What always holds: a connection that was counted is uncounted when it is lost, and only then.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from itertools import chain
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from penstock.server.http.parties import CONNECTION

#: How long somebody who was refused may take to read why.
LINGER_S: Final = 2.0

#: So many at once; those beyond are closed at once: a refusal must be cheaper than what is refused.
LINGERING_MAX: Final = 256

#: A body that comes more slowly than that has its time cut short.
BODY_BYTES_PER_S: Final = 16 << 10

#: An answer of which nothing is taken for so long is given up.
STALLED_S: Final = 30.0

#: Requests that may wait behind the one that is being answered. What comes behind those is not read: the connection ends with the last of them, and the client asks again.
PIPELINED_MAX: Final = 32

#: Answers from this size on are counted until they are read.
LARGE_ANSWER_BYTES: Final = 64 << 10

#: What Linux tells of a connection: how much was acknowledged in all, and how many packets are not yet. Of what a TLS transport has, uvloop tells nothing.
_TCP_INFO_BYTES: Final = 160
_UNACKED, _ACKED_BYTES, _UNSENT_BYTES = (
    struct.Struct("=24xI"),
    struct.Struct("=120xQ"),
    struct.Struct("=144xI"),
)

#: Chunks have their lengths with them. A body may be larger by so much on the line, and by a quarter of itself.
FRAMING_BYTES: Final = 64 << 10

_END_OF_HEAD: Final = b"\r\n\r\n"
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_IPV6_NETWORK_BYTES: Final = 8


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What connections may take. See `settings` for what is usual."""

    connections: int
    connections_per_address: int
    head_bytes: int
    body_bytes: int
    bodies_bytes: int  # of all connections together; so many bytes of answers may wait for their readers, too
    head_s: float
    body_s: float
    idle_s: float

    @property
    def body_bytes_on_the_line(self) -> int:
        return self.body_bytes + self.body_bytes // 4 + FRAMING_BYTES

    @property
    def bodies_bytes_on_the_line(self) -> int:
        return max(self.bodies_bytes, self.body_bytes_on_the_line)  # one that is allowed must have room


class Refusal(Enum):
    """Why a connection is refused or cut, and the answer for it, made once."""

    # fmt: off
    CROWDED = 503, "Service Unavailable", "too_many_connections", "the server has all the connections that it takes; try again soon"
    GREEDY = 503, "Service Unavailable", "too_many_connections", "your address has all the connections that one may have; close some, or use those you have"
    FULL = 503, "Service Unavailable", "too_many_transfers", "the bodies of requests that are on their way take all the memory there is for them; try again soon"
    STARTING = 503, "Service Unavailable", "starting", "the server is starting; try again soon"
    STOPPING = 503, "Service Unavailable", "broker_closed", "the server is stopping; try again once it is back"
    LARGE_HEAD = 431, "Request Header Fields Too Large", "headers_too_large", "the head of the request is larger than this server takes; send fewer or shorter headers"
    LARGE_BODY = 413, "Content Too Large", "batch_too_large", "the body of the request is larger than this server takes; make it several requests"
    SLOW = 408, "Request Timeout", "request_timeout", "the request did not arrive in time; send it faster, or in smaller parts"
    GARBLED = 400, "Bad Request", "invalid_argument", "this is not HTTP/1.1"
    # fmt: on

    def __init__(self, status: int, title: str, code: str, detail: str) -> None:
        again = status in {408, 503}
        problem = {
            "type": f"urn:penstock:error:{code}",
            "title": title,
            "status": status,
            "detail": detail,
        }
        self.body = msgspec.json.encode({**problem, "code": code, "retryable": again})
        self.status = status
        self.headers = [
            ("content-type", "application/problem+json"),
            ("content-length", str(len(self.body))),
            *([("retry-after", "1")] if again else []),
            ("connection", "close"),
        ]
        head = [f"HTTP/1.1 {status} {title}", *(f"{name}: {value}" for name, value in self.headers), "", ""]
        self.answer = "\r\n".join(head).encode() + self.body


class Stage(Enum):
    """What a connection is doing, as far as somebody must be hurried."""

    IDLE = "no request is there"
    HEAD = "the head of a request is on its way"
    BODY = "the body of a request is on its way"
    REST = "the body of a request that is answered is still coming"
    STALLED = "the answer is not being read"
    FINE = "nobody waits for the client"


class Door:
    """Counts those inside, and looks after them."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.stopping = False
        self.inside = 0
        self.held_bytes = 0  # of bodies
        self.empty = asyncio.Event()
        self.empty.set()
        self.refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)  # how often, for the metrics
        self._by_address: dict[str | bytes, int] = {}
        self._lingering: dict[asyncio.Transport, tuple[float, int]] = {}  # since when, with how much to read
        self.slow: set[Guard] = set()  # those who may not have read what they were answered

    def enter(self, address: str | bytes) -> Refusal | None:
        """Count a connection, or say why it may not come in."""
        here = self._by_address.get(address, 0)
        if self.stopping:
            return Refusal.STOPPING
        if self.inside >= self.bound.connections:
            return Refusal.CROWDED
        if here >= self.bound.connections_per_address:
            return Refusal.GREEDY
        self._by_address[address] = here + 1
        self.inside += 1
        self.empty.clear()
        return None

    def leave(self, address: str | bytes) -> None:
        """One that came in is gone."""
        self.inside -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if not self.inside:
            self.empty.set()

    def has_room_for(self, answer_bytes: int) -> bool:
        """Whether there is room for an answer of that size, beside all that waits to be read already. For one there always is."""
        waiting = sum(one.unread_bytes() for one in list(self.slow))
        return not waiting or waiting + answer_bytes <= self.bound.bodies_bytes_on_the_line

    def turn_away(self, transport: asyncio.Transport, why: Refusal, now_s: float) -> None:
        """Answer, and close once that can have been read."""
        self.refused[why] += 1
        transport.write(why.answer)
        self.see_off(transport, now_s)

    def see_off(self, transport: asyncio.Transport, now_s: float) -> None:
        """Close a connection over which something may still come, once what was answered can have been read."""
        if len(self._lingering) >= LINGERING_MAX or not transport.can_write_eof():
            transport.close()
        else:
            transport.write_eof()
            transport.resume_reading()
            self._lingering[transport] = (now_s, transport.get_write_buffer_size())

    def gone(self, transport: asyncio.Transport) -> None:
        self._lingering.pop(transport, None)

    def sweep(self, connections: Collection[Any], now_s: float) -> None:
        """Look at everybody, once a second."""
        for transport, (since_s, unsent) in list(self._lingering.items()):
            left = transport.get_write_buffer_size()
            if left < unsent:  # it is being read
                self._lingering[transport] = (now_s, left)
            elif now_s - since_s >= (STALLED_S if left else LINGER_S):
                transport.abort()
        for connection in list(connections):
            connection.hurry(now_s)

    def close(self) -> None:
        for transport in list(self._lingering):
            transport.abort()


class Trailers(list[tuple[bytes, bytes]]):
    """The headers of a request once its head is whole: counts what is added, and drops it."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self.bytes = 0
        self._bytes_max = bytes_max

    def append(self, header: tuple[bytes, bytes]) -> None:
        self.bytes += len(header[0]) + len(header[1]) + len(b": \r\n")
        if self.are_too_large:
            raise EOFError  # ends the parser

    @property
    def are_too_large(self) -> bool:
        return self.bytes > self._bytes_max


class Guard(HttpToolsProtocol):
    """A connection with bounds; the rest is uvicorn's."""

    door: Door

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._address: str | bytes | None = None  # under which it was counted
        self._refusal: Refusal | None = None  # if it is known before it has come
        self.came = False
        self._turned_away = False
        self._received = 0  # bytes of a head or body that is not whole
        self._held = 0  # bytes of a body in pieces that is not answered
        self._in_head = self._in_body = False
        self._is_deaf = False  # nothing more is parsed
        self._served: RequestResponseCycle | None = (
            None  # the request that is being answered; `cycle` is the one that came last
        )
        self._tail = b""  # the end of what has come of such a head
        self._trailers = Trailers(self.door.bound.head_bytes)
        self._stage = Stage.IDLE
        self._request: object = None  # the one for which it is in that stage
        self._since_s = self._moved_s = 0.0
        self._moved = (0, 0)  # how much had come, and had been read, when it last moved
        self._large = 0  # bytes of large answers, since all of them were read
        self._tell: Callable[[], object] | None = None  # who wants to know of the end

    # --- coming and going ---

    def expect(self, address: str | bytes, refusal: Refusal | None) -> None:
        """It was accepted, and is counted under this address, or to be refused; it comes when its handshake is done."""
        self._address = None if refusal is not None else address
        self._refusal = refusal

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.came = True
        refusal = self._refusal
        if refusal is None and self._address is None:
            address = address_of(transport.get_extra_info("peername"))
            refusal = self.door.enter(address)
            self._address = None if refusal is not None else address
        if refusal is not None:
            self.transport = transport
            self.turn_away(refusal)
            return
        self._since_s = self.loop.time()
        super().connection_made(transport)

    def give_up(self) -> None:
        """It was expected, and does not come."""
        if self._address is not None and not self.came:
            self.door.leave(self._address)
            self._address = None

    def connection_lost(self, error: Exception | None) -> None:
        self.door.gone(self.transport)
        self._release()
        if self._address is not None:
            self.door.leave(self._address)
            self._address = None
            super().connection_lost(error)
            self.let_go()

    def eof_received(self) -> None:
        """The client sends nothing more, and is taken for gone: the transport closes the connection now, and says later that it is lost."""
        self.let_go()

    def let_go(self) -> None:
        """Whatever is answered from here on, nobody hears it."""
        self.door.slow.discard(self)
        self.pipeline.clear()  # nobody serves them: they and this would hold one another in memory
        served = self._served
        if served is not None and not served.response_complete:
            served.disconnected = True
            served.message_event.set()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def turn_away(self, why: Refusal) -> None:
        """Answer that, if no other answer has begun, and end the connection."""
        self._turned_away = True
        self._release()
        self.connections.discard(self)
        served = self._served
        is_busy = served is not None and not served.response_complete
        self.let_go()
        if is_busy and (served.response_started or not served.more_body):  # type: ignore[union-attr]  # that is what is_busy says
            self.door.refused[why] += 1
            self.transport.abort()  # in the middle of an answer, or before that of an earlier request
        else:
            self.door.turn_away(self.transport, why, self.loop.time())

    # --- bytes ---

    def data_received(self, data: bytes) -> None:
        if self._turned_away or self._is_deaf:
            return
        bound, in_body = self.door.bound, self._in_body
        if not in_body and self._received + len(data) > bound.head_bytes:
            head = self._tail + data[: bound.head_bytes - self._received]
            if _END_OF_HEAD not in head:
                self.turn_away(Refusal.LARGE_HEAD)
                return
        if not in_body and b"pgrade:" in data:
            data = _without_upgrade(data)
        before, behind = self.cycle, self._trailers.bytes
        body_bytes = len(before.body) if in_body else 0
        super().data_received(data)
        if self._turned_away:
            return
        cycle = self.cycle
        if cycle is not before:  # a head is whole, and usually all of the request
            self._received, self._tail = 0, data[1 - len(_END_OF_HEAD) :]
            self._in_body = cycle.more_body
            if self._in_body:
                self._hold(len(data))
            return
        self._received += len(data)
        if not in_body:
            self._tail = data[1 - len(_END_OF_HEAD) :]
        elif not cycle.more_body:
            self._received, self._in_body = 0, False
        elif self._received > bound.body_bytes_on_the_line:
            self.turn_away(Refusal.LARGE_BODY)
        else:
            self._hold(len(data))
            self._count_trailers(behind, 0 if len(cycle.body) > body_bytes else len(data))

    def _count_trailers(self, before: int, unfinished: int) -> None:
        """Count what has come behind the body: of a trailer that is not whole yet, httptools tells nothing."""
        if self.cycle.response_complete:
            return  # the body is no longer looked at
        self._trailers.bytes = before + unfinished if unfinished else self._trailers.bytes - before
        if self._trailers.are_too_large and not self._turned_away:
            self.turn_away(Refusal.LARGE_HEAD)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            self._is_deaf, self.cycle.keep_alive = True, False
            raise EOFError  # ends the parser
        super().on_message_begin()
        self._in_head = True
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self._trailers.bytes = 0
        self.headers = self._trailers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def is_closing(self) -> bool:
        """Whether the connection is being closed, or has been: a request's `receive` hears of that some turns of the loop later."""
        return self._turned_away or self.transport.is_closing()

    def at_its_end(self, tell: Callable[[], object] | None) -> None:
        """Have that called when the connection is closed."""
        self._tell = tell
        if tell is not None:
            self.flow.resume_reading()  # of one who is not read from, nobody sees that he goes
            if self.is_closing():
                tell()

    def answer(self, scope: object, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Answer a request whole, by one write. False if nothing was done, because it has to go by ASGI's messages: the client is gone, does not read, or wants the head only."""
        cycle = self._served
        if cycle is None or cycle.scope is not scope or cycle.response_started or cycle.disconnected:
            return False
        if self.flow.write_paused or cycle.scope["method"] == "HEAD":
            return False
        if cycle.more_body:
            cycle.keep_alive = False
        lines = [name + b": " + value + b"\r\n" for name, value in chain(cycle.default_headers, headers)]
        if (b"connection", b"close") in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            raise RuntimeError("a header has a line break in it")  # somebody's text would be taken for ours
        cycle.waiting_for_100_continue = False
        cycle.response_started = True
        self.transport.write(b"%s%s\r\n%s" % (STATUS_LINE[status], head, body))
        if len(body) >= LARGE_ANSWER_BYTES:
            self._large += len(body)
            self.door.slow.add(self)
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._end(in_the_middle=cycle.more_body or self._is_deaf)
        cycle.on_response()
        return True

    def _end(self, *, in_the_middle: bool) -> None:
        """Close the connection behind an answer; if its request has not come whole, what is left of it is thrown away first."""
        if in_the_middle:
            self._turned_away = True
            self.connections.discard(self)
            self.door.see_off(self.transport, self.loop.time())
        else:
            self.transport.close()

    def _hold(self, count: int) -> None:
        if self.cycle.response_complete:
            return  # what comes behind an answer is thrown away
        self._held += count
        self.door.held_bytes += count
        if self.door.held_bytes > self.door.bound.bodies_bytes_on_the_line:
            self.turn_away(Refusal.FULL)

    def _release(self) -> None:
        self.door.held_bytes -= self._held
        self._held = 0

    def on_response_complete(self) -> None:
        """As uvicorn has it, but for its timer."""
        self._release()
        if self.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn says no more than ours
        if not self._is_deaf:
            self.turn_away(Refusal.LARGE_HEAD if self._trailers.are_too_large else Refusal.GARBLED)

    def _unsupported_upgrade_warning(self) -> None:
        # One that came in pieces. It is served, but httptools does not parse what comes behind it.
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def has_room_for(self, answer_bytes: int) -> bool:
        """Whether an answer of that size may be made."""
        return answer_bytes < LARGE_ANSWER_BYTES or self.door.has_room_for(answer_bytes)

    def unread_bytes(self) -> int:
        """Of large answers, as far as it is known: what is still here, in our memory."""
        left = self.transport.get_write_buffer_size()
        if self.scheme == "https" and self._line()[1]:
            left = self._large
        if not left:
            self._large = 0
            self.door.slow.discard(self)
        return left

    def _line(self) -> tuple[int, bool]:
        """How many bytes the client has taken in all, and whether some are on their way."""
        made = self.transport.get_extra_info("socket")
        try:
            info = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (acked,), (unacked,), (unsent,) = (
                one.unpack_from(info) for one in (_ACKED_BYTES, _UNACKED, _UNSENT_BYTES)
            )
        except (AttributeError, OSError, struct.error):  # it is closed, or the kernel is older than that
            return 0, self.transport.get_write_buffer_size() > 0
        return acked, bool(unacked or unsent)

    # --- time ---

    def hurry(self, now_s: float) -> None:
        """Look how long it has been at what it is doing."""
        if self._turned_away:
            return
        is_unread = self.scheme == "https" or self.transport.get_write_buffer_size() > 0
        taken, is_unread = self._line() if is_unread else (0, False)
        stage = self._stage_now(is_unread=is_unread)
        if stage is not self._stage or self.cycle is not self._request:
            self._stage, self._request, self._since_s, self._moved_s = stage, self.cycle, now_s, now_s
        if self._moved != (self._received, taken):
            self._moved, self._moved_s = (self._received, taken), now_s
        passed_s, still_s = now_s - self._since_s, now_s - self._moved_s
        bound = self.door.bound
        if stage is Stage.IDLE and passed_s >= bound.idle_s:
            self.transport.close()
        elif (stage is Stage.REST and passed_s >= LINGER_S) or (
            stage is Stage.STALLED and still_s >= STALLED_S
        ):
            self.transport.abort()
        elif (stage is Stage.HEAD and passed_s >= bound.head_s) or (
            stage is Stage.BODY
            and (
                passed_s >= bound.body_s + self._received / BODY_BYTES_PER_S
                or still_s >= max(STALLED_S, bound.body_s)
            )
        ):
            self.turn_away(Refusal.SLOW)

    def _stage_now(self, *, is_unread: bool) -> Stage:
        cycle = self.cycle
        if is_unread:
            return Stage.STALLED
        if self._in_body and not cycle.more_body:  # uvicorn has taken the rest meanwhile
            self._in_body, self._received = False, 0
        if self._in_body:
            if cycle.response_complete:
                return Stage.REST
            return Stage.FINE if self.flow.read_paused else Stage.BODY
        if cycle is None or cycle.response_complete:
            return Stage.HEAD if self._received or self._in_head else Stage.IDLE
        return Stage.FINE


def _without_upgrade(data: bytes) -> bytes:
    """A head that asks for no other protocol. Java's client asks for HTTP/2 by itself, and httptools then takes the body for that."""
    head, end, rest = data.partition(_END_OF_HEAD)
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest


def protocol(door: Door) -> type[asyncio.Protocol]:
    """uvicorn's protocol, guarded."""
    return type("Connection", (Guard,), {"door": door})


def address_of(peer: object) -> str | bytes:
    """By what a client is counted: its IPv4 address, or the network of its IPv6 one."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped) if address.ipv4_mapped else address.packed[:_IPV6_NETWORK_BYTES]
