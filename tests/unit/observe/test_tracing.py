"""Spans of real brokers, kept in memory by OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

import penstock
from penstock import aio
from penstock.clock import ManualClock
from penstock.limits import HEADERS_BYTES_MAX, HEADERS_COUNT_MAX
from penstock.model.commands import Publish
from penstock.observe.metrics import Metrics
from penstock.observe.tracing import LINKS_MAX, TracedPort, TracedRequests, context_of, traced
from tests import asking

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept:
    """A provider, and what it was told."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def clear(self) -> None:
        self._exporter.clear()


def context(span: ReadableSpan) -> SpanContext:
    found: SpanContext | None = span.context
    assert found is not None
    return found


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture(params=["memory", "disk"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Broker]:
    with penstock.open(None if request.param == "memory" else tmp_path, clock=ManualClock()) as found:
        yield found


@pytest.fixture
def broker(plain: penstock.Broker, kept: Kept) -> penstock.Broker:
    return traced(plain, kept.provider)


# --- the embedded broker ---


def test_a_message_is_in_another_trace_than_its_publisher(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    with kept.tracer.start_as_current_span("checkout") as checkout:
        given = orders.publish(b"a valve", headers={"type": "order"})
    publish = kept.one("publish orders")
    assert publish.kind is SpanKind.PRODUCER
    assert publish.parent == checkout.get_span_context()
    assert said(publish) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": str(given),
        "penstock.namespace": "default",
    }
    delivery = orders.receive()
    assert delivery is not None
    assert set(delivery.headers) == {"type", "traceparent"}
    receive = kept.one("receive orders")
    assert receive.kind is SpanKind.CONSUMER
    assert receive.parent is None
    assert linked(receive) == [context(publish).span_id]
    assert said(receive)["messaging.message.id"] == str(given)
    assert said(receive)["messaging.consumer.group.name"] == "default"
    with kept.tracer.start_as_current_span("fulfil", context=context_of(delivery)) as fulfil:
        delivery.ack()
    ack = kept.one("ack orders")
    assert ack.kind is SpanKind.CLIENT
    assert ack.parent == fulfil.get_span_context()
    assert context(ack).trace_id == checkout.get_span_context().trace_id
    assert said(ack)["messaging.operation.type"] == "settle"


def test_a_publish_without_a_span_around_it_has_none(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    orders.publish(b"x")
    publish = kept.one("publish orders")
    assert publish.parent is None
    delivery = orders.receive()
    assert delivery is not None
    found = trace.get_current_span(context_of(delivery)).get_span_context()
    assert (found.trace_id, found.span_id) == (context(publish).trace_id, context(publish).span_id)


def test_a_publishers_own_context_is_overwritten(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    for headers in ({"traceparent": PARENT}, {"Traceparent": PARENT}, {"tracestate": "a=b"}):
        orders.publish(b"x", headers=headers)
        delivery = orders.receive()
        assert delivery is not None
        assert delivery.headers == headers
    first = kept.spans()[1]
    assert [format(link.context.span_id, "016x") for link in first.links] == ["b7ad6b7169203331"]


def test_the_state_of_a_trace_is_lost_on_its_way(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    state = trace.TraceState([("vendor", "7")])
    caller = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=state))
    with trace.use_span(caller):
        orders.publish(b"x")
    delivery = orders.receive()
    assert delivery is not None
    assert delivery.headers["tracestate"] == "vendor=7"


def test_a_message_is_refused_because_it_is_traced(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")
    full = {f"h{number}": "x" for number in range(HEADERS_COUNT_MAX)}
    large = {"large": "x" * (HEADERS_BYTES_MAX - 10)}
    orders.publish(b"x", headers=full)
    orders.publish(b"x", headers=large)
    assert [one.headers for one in orders.receive_many(2)] == [full, large]


@pytest.mark.parametrize("wrong", [b"bytes", "text", 7, None, [7], [b"x", "text"], [penstock.Message("x")]])  # type: ignore[arg-type]
def test_what_is_wrong_is_said_in_other_words(plain: penstock.Broker, kept: Kept, wrong: Any) -> None:
    with pytest.raises(penstock.PenstockError) as untraced:
        plain.queue("orders").publish_many(wrong)
    with pytest.raises(penstock.PenstockError) as found:
        traced(plain, kept.provider).queue("orders").publish_many(wrong)
    assert (type(found.value), str(found.value)) == (type(untraced.value), str(untraced.value))
    assert kept.names() == []  # the broker was asked for nothing


def test_a_refused_publish_has_a_span_that_names_its_error(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders", max_depth=2)
    with pytest.raises(penstock.QueueFull):
        orders.publish_many([b"x"] * 3)
    span = kept.one("publish orders")
    assert span.status.status_code is StatusCode.ERROR
    assert said(span)["error.type"] == "QueueFull"


def test_a_generator_of_messages_is_lost(broker: penstock.Broker) -> None:
    orders = broker.queue("orders")

    def some(error: Exception | None) -> Iterator[bytes]:
        yield b"a"
        if error is not None:
            raise error
        yield b"b"

    with pytest.raises(ZeroDivisionError):
        orders.publish_many(some(ZeroDivisionError()))
    assert orders.depth() == 0
    orders.publish_many(some(None))
    assert [one.payload for one in orders.receive_many(10)] == [b"a", b"b"]


def test_a_batch_has_a_span_for_each_message(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    orders.publish_many([b"x"] * 3)
    with kept.tracer.start_as_current_span("another"):
        orders.publish_many([penstock.Message(b"y", key="k"), b"z"])
    batches = [span for span in kept.spans() if span.name == "publish orders"]
    assert [said(span)["messaging.batch.message_count"] for span in batches] == [3, 2]
    found = orders.receive_many(10)
    receive = kept.one("receive orders")
    assert linked(receive) == [context(span).span_id for span in batches]
    assert said(receive)["messaging.batch.message_count"] == 5
    orders.ack_many(found)
    assert said(kept.one("ack orders"))["messaging.batch.message_count"] == 5


def test_a_large_batch_has_links_without_an_end(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    for _ in range(LINKS_MAX + 20):
        orders.publish(b"x")
    assert len(orders.receive_many(1000)) == LINKS_MAX + 20
    assert len(kept.one("receive orders").links) == LINKS_MAX


def test_a_context_that_cannot_be_read_ends_the_receive(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    orders.publish(b"x", headers={"traceparent": "00-nonsense"})
    delivery = orders.receive()
    assert delivery is not None
    assert kept.one("receive orders").links == ()
    assert not trace.get_current_span(context_of(delivery)).get_span_context().is_valid


def test_polling_an_empty_queue_makes_spans(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    assert orders.receive() is None
    assert orders.receive_many(10) == []
    assert kept.names() == []


def test_nack_reject_and_a_lost_lease_look_alike(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders", backoff=None)
    orders.publish(b"x")
    first = orders.receive()
    assert first is not None
    first.nack(error="secret-42")
    again = orders.receive()
    assert again is not None
    again.requeue()
    last = orders.receive()
    assert last is not None
    last.reject()
    with pytest.raises(penstock.LeaseLost):
        last.ack()
    settles = [span for span in kept.spans() if said(span)["messaging.operation.type"] == "settle"]
    assert [span.name for span in settles] == ["nack orders", "requeue orders", "reject orders", "ack orders"]
    assert [span.status.status_code for span in settles] == [StatusCode.UNSET] * 3 + [StatusCode.ERROR]
    assert said(settles[-1])["error.type"] == "LeaseLost"
    assert "secret-42" not in str([span.to_json() for span in kept.spans()])


def test_dead_letters_and_redriven_messages_forget_where_they_came_from(
    broker: penstock.Broker, kept: Kept
) -> None:
    orders = broker.queue("orders")
    orders.publish(b"x")
    publish = context(kept.one("publish orders"))
    failed = orders.receive()
    assert failed is not None
    failed.reject()
    (letter,) = orders.dead_letters().peek()
    assert trace.get_current_span(context_of(letter)).get_span_context().span_id == publish.span_id
    orders.redrive()
    back = orders.receive()
    assert back is not None
    assert trace.get_current_span(context_of(back)).get_span_context().span_id == publish.span_id


def test_a_transaction_publishes_without_a_context(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    orders.publish_many([b"a", b"b"])
    found = orders.receive_many(2)
    kept.clear()
    with kept.tracer.start_as_current_span("step"), broker.transaction() as tx:
        for delivery in found:
            tx.ack(delivery)
        tx.publish("invoices", b"both")
    span = kept.one("transact")
    assert span.kind is SpanKind.PRODUCER
    assert (said(span)["messaging.batch.message_count"], said(span)["penstock.settled_count"]) == (1, 2)
    invoice = broker.queue("invoices").receive()
    assert invoice is not None
    published = trace.get_current_span(context_of(invoice)).get_span_context()
    assert published.span_id == context(span).span_id


def test_a_routed_message_has_no_context(broker: penstock.Broker, kept: Kept) -> None:
    broker.queue("orders.eu")
    broker.queue("orders.us")
    broker.publish("orders.*", b"x")
    assert said(kept.one("publish orders.*"))["penstock.destinations"] == ("orders.eu", "orders.us")
    delivery = broker.queue("orders.us").receive()
    assert delivery is not None
    assert "traceparent" in delivery.headers


def test_a_receive_that_waits_is_not_traced(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    ticket: Any = broker._port.lease(orders._log, "default", 1, wait_us=None)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(ticket.wait()))
    waiter.start()
    orders.publish(b"x")
    waiter.join()
    assert found[0].offsets == [0] or list(found[0].offsets) == [0]
    receive = kept.one("receive orders")
    assert len(receive.links) == 1
    stopped: Any = broker._port.lease(orders._log, "default", 1, wait_us=None)
    stopped.stop()
    assert stopped.wait() is None
    assert kept.names().count("receive orders") == 1


def test_a_worker_cannot_be_stopped(broker: penstock.Broker, kept: Kept) -> None:
    orders = broker.queue("orders")
    orders.publish(b"x")
    worker: penstock.Worker

    def handle(_delivery: penstock.Delivery) -> None:
        worker.stop()

    worker = penstock.Worker(orders, handle)
    worker.run()
    assert orders.depth() == 0
    assert {"receive orders", "ack orders"} <= set(kept.names())


def test_without_an_sdk_messages_are_changed_or_a_callers_context_is_lost(plain: penstock.Broker) -> None:
    """The global provider of these tests is that of the API, which does nothing."""
    orders = traced(plain).queue("orders")
    orders.publish(b"x")
    delivery = orders.receive()
    assert delivery is not None
    assert delivery.headers == {}
    caller = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1)))
    with trace.use_span(caller):
        orders.publish(b"y")
    delivery = orders.receive()
    assert delivery is not None
    assert trace.get_current_span(context_of(delivery)).get_span_context().span_id == 2


def test_the_untraced_broker_is_traced_too(plain: penstock.Broker, kept: Kept) -> None:
    broker = traced(plain, kept.provider)
    plain.queue("orders").publish(b"x")
    assert kept.names() == []
    delivery = broker.queue("orders").receive()
    assert delivery is not None
    assert delivery.headers == {}


def test_a_traced_port_cannot_be_watched(broker: penstock.Broker) -> None:
    broker.queue("orders").publish(b"x")
    text = Metrics(broker._port, version="1").render(["default"])
    assert b'penstock_messages_published_total{namespace="default",queue="orders"} 1.0' in text


# --- asyncio ---


def test_spans_of_tasks_are_mixed_up(kept: Kept) -> None:
    async def work() -> None:
        async with aio.open() as plain:
            broker = traced(plain, kept.provider)
            orders = await broker.queue("orders")

            async def one(name: str) -> None:
                with kept.tracer.start_as_current_span(name):
                    await orders.publish(name.encode())

            waiting = asyncio.create_task(orders.receive(timeout=None))
            await asyncio.sleep(0)
            await asyncio.gather(one("a"), one("b"))
            first = await waiting
            second = await orders.receive()
            for delivery in (first, second):
                assert delivery is not None
                name = delivery.payload.decode()
                with kept.tracer.start_as_current_span(f"process {name}", context=context_of(delivery)):
                    await delivery.ack()

    asyncio.run(work())
    for name in ("a", "b"):
        assert context(kept.one(name)).trace_id == context(kept.one(f"process {name}")).trace_id
    assert context(kept.one("a")).trace_id != context(kept.one("b")).trace_id
    assert kept.names().count("receive orders") == 2


def test_a_receive_that_is_cancelled_keeps_its_message(kept: Kept) -> None:
    async def work() -> int:
        async with aio.open() as plain:
            orders = await traced(plain, kept.provider).queue("orders")
            waiting = asyncio.create_task(orders.receive(timeout=None))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await orders.publish(b"x")
            return len(await orders.receive_many(10))

    assert asyncio.run(work()) == 1


# --- requests ---


def request(app: Any, headers: list[tuple[bytes, bytes]], **scope: Any) -> list[Any]:
    events: list[Any] = []

    async def send(event: Any) -> None:
        events.append(event)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    found = {
        "type": "http",
        "method": "POST",
        "path": "/enqueue",
        "headers": headers,
        "scheme": "http",
        **scope,
    }

    async def one() -> None:
        try:
            await app(found, receive, send)
        finally:
            assert not trace.get_current_span().get_span_context().is_valid  # the next request is another one

    asyncio.run(one())
    return events


def test_a_request_begins_a_trace_of_its_own(plain: penstock.Broker, kept: Kept) -> None:
    port = TracedPort(plain._port, kept.provider)
    log = plain.queue("orders")._log

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        scope["path_template"] = "/enqueue"
        await asking.begin(port, log, Publish([b"x"])).get()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    events = request(
        TracedRequests(app, kept.provider), [(b"traceparent", PARENT.encode()), (b"tracestate", b"a=1")]
    )
    assert [event["type"] for event in events] == ["http.response.start", "http.response.body"]
    served = kept.one("POST /enqueue")
    assert served.kind is SpanKind.SERVER
    assert served.parent is not None
    assert format(served.parent.span_id, "016x") == "b7ad6b7169203331"
    assert said(served)["http.response.status_code"] == 200
    publish = kept.one("publish orders")
    assert publish.parent is not None
    assert publish.parent.span_id == context(served).span_id
    (message,) = plain.queue("orders").peek()
    assert message.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert message.headers["tracestate"] == "a=1"


def test_a_request_that_fails_or_is_no_request_is_swallowed(kept: Kept) -> None:
    async def failing(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": []})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        request(TracedRequests(failing, kept.provider), [(b"traceparent", b"\xff\xfe")])
    span = kept.one("POST")
    assert span.status.status_code is StatusCode.ERROR
    assert span.parent is None
    seen: list[str] = []

    async def lifespan(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    request(TracedRequests(lifespan, kept.provider), [], type="lifespan")
    assert seen == ["lifespan"]
    assert not trace.get_current_span().get_span_context().is_valid
