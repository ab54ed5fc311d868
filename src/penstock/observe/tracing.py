"""Spans of OpenTelemetry for publishing, receiving and settling, and the W3C context in the headers of messages.

Theory of operation
-------------------
Nothing of this is in a broker's way unless it is asked for: `TracedPort` is a port around another one, which adds spans to two calls
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
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import structs
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.broker.port import Granted, Port
from penstock.broker.ticket import Stoppable, Ticket
from penstock.limits import HEADERS_BYTES_MAX, HEADERS_COUNT_MAX
from penstock.model.batch import Columns
from penstock.model.commands import Handle, Pattern, Publish, Settle, Target, Unit

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
    """A port whose units and leases are traced."""

    def __init__(self, port: Port, provider: TracerProvider | None = None) -> None:
        self._port = port
        self._tracer: Tracer = trace.get_tracer("penstock", tracer_provider=provider)
        self.clock = port.clock
        # Handed through as they are, at no cost.
        self.declare = port.declare
        self.describe = port.describe
        self.extend = port.extend
        self.read = port.read
        self.position = port.position
        self.consumer = port.consumer
        self.arrivals = port.arrivals
        self.close = port.close

    def commit(self, unit: Unit) -> Ticket[list[Any]]:
        if not any(isinstance(command, Publish | Settle) for _, command in unit.steps):
            return self._port.commit(unit)
        span = self._span_of(unit)
        carrier = _carrier(span)
        steps = [
            (target, _with_context(command, carrier) if isinstance(command, Publish) else command)
            for target, command in unit.steps
        ]
        stamped = Unit(unit.namespace, steps, unit.wait)
        return _begun(span, lambda: self._port.commit(stamped), _say_ids)

    def _span_of(self, unit: Unit) -> Span:
        """A span that is named after the only step, or after the transaction."""
        published = sum(len(command.payloads) for _, command in unit.steps if isinstance(command, Publish))
        settled = sum(len(command.offsets) for _, command in unit.steps if isinstance(command, Settle))
        kind = SpanKind.PRODUCER if published else SpanKind.CLIENT
        type_ = "send" if published else "settle"
        if len(unit.steps) > 1:
            span = self._span("transact", type_, unit.namespace, None, kind)
            span.set_attribute("messaging.batch.message_count", published)
            span.set_attribute("penstock.settled_count", settled)
            return span
        ((target, command),) = unit.steps
        name = command.how if isinstance(command, Settle) else "publish"
        span = self._span(name, type_, unit.namespace, _name_of(target), kind)
        if isinstance(command, Settle):
            span.set_attribute("messaging.consumer.group.name", command.group)
        if published + settled > 1:
            span.set_attribute("messaging.batch.message_count", published + settled)
        return span

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None = None, **options: Any
    ) -> Ticket[Granted | None]:
        receiving = _Receiving(self._tracer, log, group, consumer)
        try:
            ticket = self._port.lease(log, group, count, consumer=consumer, **options)
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


def _name_of(target: Target | None) -> str | None:
    if isinstance(target, Handle):
        return target.name
    return target.text if isinstance(target, Pattern) else target


def _say_ids(span: Span, answers: list[Any]) -> None:
    """Say the id of a message that was published alone, or where one went."""
    if len(answers) != 1 or answers[0] is None:
        return
    if isinstance(answers[0], dict):
        span.set_attribute("penstock.destinations", sorted(answers[0]))
    elif len(answers[0]) == 1:
        span.set_attribute("messaging.message.id", str(answers[0][0]))


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


def _with_context(command: Publish, carrier: dict[str, str]) -> Publish:
    """The same messages, with a context in their headers."""
    if not carrier:
        return command
    columns = command.columns or Columns()
    given = columns.headers or [None] * len(command.payloads)
    headers = [{**(one or {}), **carrier} if _has_room(one or {}, carrier) else one for one in given]
    return structs.replace(command, columns=structs.replace(columns, headers=headers))


def _has_room(headers: dict[str, str], carrier: dict[str, str]) -> bool:
    """Whether a context may be added: not where the publisher said his own, and not where a message would be refused for it."""
    if not headers:
        return True
    if len(headers) + len(carrier) > HEADERS_COUNT_MAX:
        return False
    size = 0
    for name, value in (*headers.items(), *carrier.items()):
        size += 4 * (len(name) + len(value))
    said = any(name.lower() in (TRACEPARENT, TRACESTATE) for name in headers)
    return not said and size <= HEADERS_BYTES_MAX


# --- requests ---

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class TracedRequests:
    """An ASGI application around another one: each request is a SERVER span that continues the caller's trace.

    What the request does (publish, receive, settle by a `TracedPort`) is inside it. The span is named by the route's template, as far as the application says it
    (`path_template` in the scope); a path, and what is in a query, is anybody's text.
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
