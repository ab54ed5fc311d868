"""Spans of OpenTelemetry for publishing, receiving and settling, and the W3C context in the headers of messages.

Theory of operation
-------------------
Nothing of this is in a broker's way unless it is asked for: `TracedPort` is a port around another one, which adds spans to four calls
and hands all others through. Whoever wants no traces does not put it in place, and pays nothing. `traced(broker)` does it for a broker of this
process, and a server does it for its own port.

- *Publish* is a PRODUCER span until the messages are durable. Its context goes into their headers (`traceparent`, `tracestate`), unless the publisher
  has set those himself, or they would be one too many; without a valid context nothing is added.
- *Receive* is a CONSUMER span over the time that a call waited, made when it is answered: a call that got nothing makes none. It is a child of whatever the
  caller is in the middle of, and linked to the span in which each of its messages was published.
- *Settle* is a CLIENT span, a child of whatever the caller is in the middle of. Process a message in a span whose parent is
  `context_of(delivery)`, and its settling belongs to the trace in which it was published.
- A transaction is one span.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging; a span never says what a message contains.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from msgspec import structs
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock import argument
from penstock.broker.port import Granted, Handle, HostedPort, How, Operation, Port, Receipts
from penstock.broker.ticket import Stoppable, Ticket
from penstock.limits import HEADERS_BYTES_MAX, HEADERS_COUNT_MAX
from penstock.message import Message

#: What a span links to, at the most: an SDK keeps as many unless it is told otherwise.
LINKS_MAX: Final = 128

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
SYSTEM: Final = "penstock"

_W3C: Final = TraceContextTextMapPropagator()
T = TypeVar("T")
B = TypeVar("B", bound="_Broker")


class Headed(Protocol):
    """A delivery or a message."""

    @property
    def headers(self) -> dict[str, str]: ...


class _Broker(Protocol):
    _port: Port
    _namespace: str

    def __init__(self, port: Port, namespace: str) -> None: ...


def traced(broker: B, provider: TracerProvider | None = None) -> B:
    """The same broker, with spans; the global provider's unless one is given. Both may be used side by side."""
    return type(broker)(TracedPort(broker._port, provider), broker._namespace)


def context_of(delivery: Headed) -> Context:
    """The context in which a message was published, to be the parent of the span in which it is processed; an empty one if nobody said."""
    return _W3C.extract(delivery.headers, Context())


# --- the port ---


class TracedPort:
    """A port whose publishing, receiving and settling is traced."""

    #: The shells' short way around a port would leave no trace.
    express: None = None

    def __init__(self, port: Port, provider: TracerProvider | None = None) -> None:
        self._port = port
        self._tracer: Tracer = trace.get_tracer("penstock", tracer_provider=provider)
        self.clock = port.clock
        # Handed through as they are, at no cost.
        self.declare = port.declare
        self.names = port.names
        self.describe = port.describe
        self.change = port.change
        self.cancel = port.cancel
        self.schedule = port.schedule
        self.open_group = port.open_group
        self.close_group = port.close_group
        self.seek = port.seek
        self.attach = port.attach
        self.lag = port.lag
        self.heartbeat = port.heartbeat
        self.release = port.release
        self.extend = port.extend
        self.hand_over = port.hand_over
        self.peek = port.peek
        self.read = port.read
        self.watch = port.watch
        self.locate = port.locate
        self.position = port.position
        self.trace = port.trace
        self.redrive = port.redrive
        self.stats = port.stats
        self.close = port.close

    def __getattr__(self, name: str) -> Any:
        """What a port has beyond the protocol, such as `survey`."""
        return getattr(self._port, name)

    def namespaces(self) -> Ticket[list[str]]:
        """Of a port that hosts many."""
        return cast("HostedPort", self._port).namespaces()

    def depth(self, namespace: str) -> int:
        """The same."""
        return cast("HostedPort", self._port).depth(namespace)

    def held(self, log: Handle, id: int) -> Ticket[Receipts]:
        """The same."""
        return cast("HostedPort", self._port).held(log, id)

    def publish(self, log: Handle, messages: Iterable[bytes | Message]) -> Ticket[Sequence[int]]:
        span = self._span("publish", "send", log.namespace, log.name, SpanKind.PRODUCER)
        given, count = _stamped(messages, _carrier(span))
        if count is not None and count > 1:
            span.set_attribute("messaging.batch.message_count", count)
        return _begun(span, lambda: self._port.publish(log, given), _say_ids)

    def route(self, namespace: str, pattern: str, message: bytes | Message) -> Ticket[dict[str, int]]:
        span = self._span("publish", "send", namespace, argument.text(pattern), SpanKind.PRODUCER)
        stamped = _with_context(message, _carrier(span))
        return _begun(span, lambda: self._port.route(namespace, pattern, stamped), _say_routed)

    def transact(self, namespace: str, operations: Sequence[Operation]) -> Ticket[list[int]]:
        publishes = sum(bool(step.messages) for step in operations)
        kind = SpanKind.PRODUCER if publishes else SpanKind.CLIENT
        span = self._span("transact", "send" if publishes else "settle", namespace, None, kind)
        carrier = _carrier(span)
        steps = [step._replace(messages=_stamped(step.messages, carrier)[0]) for step in operations]
        span.set_attribute("messaging.batch.message_count", sum(len(step.messages) for step in operations))
        settled = sum(len(step.receipts.offsets) for step in operations if step.receipts is not None)
        span.set_attribute("penstock.settled_count", settled)
        return _begun(span, lambda: self._port.transact(namespace, steps))

    def settle(
        self,
        log: Handle,
        receipts: Receipts,
        how: How,
        *,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> Ticket[None]:
        span = self._span(how, "settle", log.namespace, log.name, SpanKind.CLIENT)
        span.set_attribute("messaging.consumer.group.name", receipts.group)
        if len(receipts.offsets) > 1:
            span.set_attribute("messaging.batch.message_count", len(receipts.offsets))
        return _begun(span, lambda: self._port.settle(log, receipts, how, delay_us=delay_us, error=error))

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool,
        ahead: int = 0, **bound: Any,
    ) -> Ticket[Granted | None]:  # fmt: skip
        receiving = _Receiving(self._tracer, log, group, consumer)
        try:
            ticket = self._port.lease(
                log, group, count, consumer=consumer, wait_us=wait_us, keep=keep, ahead=ahead, **bound
            )
        except BaseException as error:
            receiving.failed(error)
            raise
        return (
            _TracedWaiting(ticket, receiving)
            if isinstance(ticket, Stoppable)
            else _Received(ticket, receiving)
        )

    def _span(self, name: str, type_: str, namespace: str, place: str | None, kind: SpanKind) -> Span:
        attributes = _attributes(name, type_, namespace, place)
        return self._tracer.start_span(
            name if place is None else f"{name} {place}", kind=kind, attributes=attributes
        )


def _attributes(name: str, type_: str, namespace: str, place: str | None) -> dict[str, str]:
    found = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": type_,
        "penstock.namespace": namespace,
    }
    if place is not None:
        found["messaging.destination.name"] = place
    return found


# --- answers ---


def _begun(
    span: Span, call: Callable[[], Ticket[T]], say: Callable[[Span, T], None] | None = None
) -> Ticket[T]:
    """A ticket whose span ends when it is answered, or now if the call is refused."""
    try:
        return _Traced(call(), span, say)
    except BaseException as error:
        _failed(span, error)
        raise


class _Traced(Generic[T]):
    """A ticket whose span ends with it. Nobody may wait for it; then its span is never said, and nothing else is different."""

    __slots__ = ("_say", "_span", "_ticket")

    def __init__(self, ticket: Ticket[T], span: Span, say: Callable[[Span, T], None] | None) -> None:
        self._ticket = ticket
        self._span = span
        self._say = say

    def wait(self) -> T:
        try:
            return self._done(self._ticket.wait())
        except BaseException as error:
            _failed(self._span, error)
            raise

    async def get(self) -> T:
        try:
            return self._done(await self._ticket.get())
        except BaseException as error:
            _failed(self._span, error)
            raise

    def _done(self, answer: T) -> T:
        if self._say is not None and self._span.is_recording():
            self._say(self._span, answer)
        self._span.end()
        return answer


def _failed(span: Span, error: BaseException) -> None:
    """An error says what went wrong in its own words, which never quote payloads beyond what was a wrong argument."""
    if span.is_recording():
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error) if isinstance(error, Exception) else None))
        span.end()


def _say_ids(span: Span, ids: Sequence[int]) -> None:
    if len(ids) == 1:
        span.set_attribute("messaging.message.id", str(ids[0]))


def _say_routed(span: Span, ids: Mapping[str, int]) -> None:
    span.set_attribute("penstock.destinations", sorted(ids))


# --- receiving ---


class _Receiving:
    """The span of a receive, which is made when there is something to say."""

    __slots__ = ("_attributes", "_context", "_name", "_started_ns", "_tracer")

    def __init__(self, tracer: Tracer, log: Handle, group: str, consumer: str | None) -> None:
        self._tracer = tracer
        self._context = contexts.get_current()
        self._started_ns = time.time_ns()
        self._name = f"receive {log.name}"
        self._attributes: dict[str, Any] = _attributes("receive", "receive", log.namespace, log.name)
        self._attributes["messaging.consumer.group.name"] = group
        if consumer is not None:
            self._attributes["messaging.client.id"] = consumer

    def granted(self, granted: Granted | None) -> None:
        if granted is None:
            return
        count = len(granted.offsets)
        if count == 1:
            batch, row, _ = granted.runs[0]
            self._attributes["messaging.message.id"] = str(batch.ids[row])
        else:
            self._attributes["messaging.batch.message_count"] = count
        self._span(_links(granted)).end()

    def failed(self, error: BaseException) -> None:
        _failed(self._span(()), error)

    def _span(self, links: Sequence[Link]) -> Span:
        return self._tracer.start_span(
            self._name, context=self._context, kind=SpanKind.CONSUMER, attributes=self._attributes, links=links,
            start_time=self._started_ns,
        )  # fmt: skip


def _links(granted: Granted) -> list[Link]:
    """The spans in which messages were published, each once."""
    found: dict[tuple[int, int], SpanContext] = {}
    for batch, start, stop in granted.runs:
        for headers in batch.headers[start:stop] if batch.headers is not None else ():
            if headers and TRACEPARENT in headers and len(found) < LINKS_MAX:
                said = trace.get_current_span(_W3C.extract(headers, Context())).get_span_context()
                if said.is_valid:
                    found.setdefault((said.trace_id, said.span_id), said)
    return [Link(said) for said in found.values()]


class _Received:
    """The ticket of a receive that does not wait."""

    __slots__ = ("_receiving", "_ticket")

    def __init__(self, ticket: Ticket[Granted | None], receiving: _Receiving) -> None:
        self._ticket = ticket
        self._receiving = receiving

    def wait(self) -> Granted | None:
        return _said(self._receiving, self._ticket.wait)

    async def get(self) -> Granted | None:
        return await _said_later(self._receiving, self._ticket.get)


class _TracedWaiting(Stoppable):
    """The ticket of one that does; who stops it stops the one inside."""

    __slots__ = ("_inside", "_receiving")

    def __init__(self, ticket: Any, receiving: _Receiving) -> None:
        self._inside = ticket
        self._receiving = receiving

    def stop(self) -> None:
        self._inside.stop()

    def wait(self) -> Any:
        return _said(self._receiving, self._inside.wait)

    async def get(self) -> Any:
        return await _said_later(self._receiving, self._inside.get)


def _said(receiving: _Receiving, answer: Callable[[], Granted | None]) -> Granted | None:
    try:
        granted = answer()
    except BaseException as error:
        receiving.failed(error)
        raise
    receiving.granted(granted)
    return granted


async def _said_later(
    receiving: _Receiving, answer: Callable[[], Awaitable[Granted | None]]
) -> Granted | None:
    try:
        granted = await answer()
    except BaseException as error:
        receiving.failed(error)
        raise
    receiving.granted(granted)
    return granted


# --- the context in headers ---


def _carrier(span: Span) -> dict[str, str]:
    """What goes into the headers of messages; empty if there is no context."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span))
    return carrier


def _stamped(messages: Any, carrier: dict[str, str]) -> tuple[Any, int | None]:
    """Messages with a context in their headers, and how many they are, if that is known before they are looked at.

    What is no list of messages is left to the port, which says so.
    """
    kind = type(messages)  # what an object says of itself may be anything
    if kind is list or kind is tuple:
        listed = [_with_context(one, carrier) for one in messages] if carrier else messages
        return listed, len(messages)
    if not carrier or issubclass(kind, bytes | str | Message) or not issubclass(kind, Iterable):
        return messages, None
    return (_with_context(one, carrier) for one in messages), None


def _with_context(message: Any, carrier: dict[str, str]) -> Any:
    if not carrier:
        return message
    if issubclass(type(message), Message):
        headers = message.headers
        if type(headers) is not dict or not _has_room(headers, carrier):
            return message
        return structs.replace(message, headers={**headers, **carrier})
    return Message(message, headers=dict(carrier)) if argument.octets(message) is not None else message


def _has_room(headers: dict[str, str], carrier: dict[str, str]) -> bool:
    """Whether a context may be added: not where the publisher said his own, and not where a message would be refused for it."""
    if not headers:
        return True
    if len(headers) + len(carrier) > HEADERS_COUNT_MAX:
        return False
    size = 0
    for name, value in (*headers.items(), *carrier.items()):
        if type(name) is not str or type(value) is not str:
            return False  # the port says what is wrong with it
        size += 4 * (len(name) + len(value))
    said = any(name.lower() in (TRACEPARENT, TRACESTATE) for name in headers)
    return not said and size <= HEADERS_BYTES_MAX


# --- requests ---

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class TracedRequests:
    """An ASGI application around another one: each request is a SERVER span that continues the caller's trace.

    What the request does (publish, receive, settle by a `TracedPort`) is inside it. The span is named by the route's template, as far as the application says it
    (`path_template` in the scope, as Litestar does); a path, and what is in a query, is anybody's text.
    """

    def __init__(self, app: App, provider: TracerProvider | None = None) -> None:
        self._app = app
        self._tracer = trace.get_tracer("penstock", tracer_provider=provider)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        span = self._tracer.start_span(
            method,
            context=_context_of_request(scope["headers"]),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.scheme": scope.get("scheme", "http")},
        )

        async def answer(event: Any) -> None:
            if event["type"] == "http.response.start":
                _say_status(span, event["status"])
            await send(event)

        token = contexts.attach(trace.set_span_in_context(span))
        try:
            await self._app(scope, receive, answer)
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            contexts.detach(token)
            template = scope.get("path_template")
            if isinstance(template, str) and span.is_recording():
                span.update_name(f"{method} {template}")
                span.set_attribute("http.route", template)
            span.end()


def _context_of_request(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    wanted = (TRACEPARENT.encode(), TRACESTATE.encode())
    carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name.lower() in wanted}
    return _W3C.extract({name.lower(): value for name, value in carrier.items()}, Context())


def _say_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
