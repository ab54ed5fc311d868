"""`--tracing`: what `penstock serve` puts together, over a real socket, with OpenTelemetry's own SDK in this process."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.broker import opening
from penstock.server.listening import HttpFront
from penstock.server.quantity import Address
from penstock.server.serving import Admission, Assembled, assemble, bound_of
from penstock.server.settings import load

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What the process's tracer provider is told."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


@pytest.fixture(params=["on", "off"])
def url(request: pytest.FixtureRequest, tmp_path: Path, spans: InMemorySpanExporter) -> Iterator[str]:
    settings = load({"tracing": request.param, "data_dir": str(tmp_path / "data")})
    port = opening.on_disk(tmp_path / "data")
    front = HttpFront(Address("127.0.0.1", 0), bound_of(settings))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    put_together: Assembled = assemble(settings, port, front.refused, Admission.of(settings))
    run(front.start())
    run(front.serve(put_together.app))
    yield f"{front.url}?{request.param}"
    put_together.stop()
    run(front.stop(5))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    port.close()


def asked(url: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"traceparent": REMOTE})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


def test_a_server_leaves_the_callers_trace_or_traces_unasked(url: str, spans: InMemorySpanExporter) -> None:
    url, _, tracing = url.partition("?")
    item = {"namespace": "default", "topic": "jobs", "priority": 1, "payload": "SGVsbG8="}
    asked(url, "/enqueue", [item])
    (found,) = asked(url, "/dequeue?namespace=default&topic=jobs&limit=1")
    asked(url, "/ack", {"receipt": found["receipt"], "namespace": "default", "topic": "jobs"})
    seen = spans.get_finished_spans()
    if tracing == "off":
        assert seen == ()
        return
    kinds = {span.kind.name for span in seen}
    assert {"SERVER", "PRODUCER", "CONSUMER"} <= kinds
    remote = int(REMOTE.split("-")[1], 16)
    for span in seen:
        assert span.context is not None
        assert span.context.trace_id == remote, span.name
