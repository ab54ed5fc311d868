"""Whatever the OpenAPI document allows, and what it forbids, is answered as it says, and never with a mistake of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.broker.opening import on_disk
from penstock.server.bounds import Bounds
from penstock.server.http.app import ROUTES
from penstock.server.http.openapi import document
from penstock.server.http.route import Route
from penstock.wire import EVENTS
from tests.server.running import Running

SCHEMA: Final = schemathesis.openapi.from_dict(document(ROUTES, "0"))
CHECKS: Final = [status_code_conformance, content_type_conformance, response_schema_conformance]

#: What is no mistake of ours: an optional package is not there, not now, the disk is full.
ALLOWED: Final = {501, 503, 507}

#: Names that exist, so that what lies behind them is reached; and some that do not.
KNOWN: Final = {
    "namespace": ["default", "other"],
    "name": ["orders", "events", "orders.dlq", "nothing"],
    "group": ["default", "audit"],
    "consumer": ["worker"],
    "reader": ["billing"],
    "schedule": ["nightly"],
}

#: Examples of one route in `make faults`, for each round of it.
ROUNDS: Final = int(os.environ.get("PENSTOCK_FAULT_ROUNDS", "100"))

HERE: Final = "/v1/namespaces/default"

EVERY: Final = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("served") / "data"  # in memory there are no tables for Spark
    port = on_disk(directory, durability="os")
    bounds = Bounds(wait_s_max=0.01, heartbeat_s=0.01)
    with Running(port, bounds=bounds, directory=directory) as running:
        yield running.url
    port.close()


def furnish(url: str) -> None:
    """What a generated request may meet. Others may have deleted it meanwhile."""
    requests.put(f"{url}{HERE}/queues/orders", json={}, timeout=30)
    requests.put(f"{url}{HERE}/topics/events", json={}, timeout=30)
    requests.put(f"{url}{HERE}/logs/events/groups/audit", json={}, timeout=30)
    requests.post(f"{url}{HERE}/logs/orders/dead-letters", timeout=30)
    for name in ("orders", "events"):
        requests.post(f"{url}{HERE}/logs/{name}/messages", json={"messages": ["aGk="]}, timeout=30)
    lease = requests.post(f"{url}{HERE}/logs/orders/groups/default/lease", timeout=30).json()["deliveries"]
    if lease:
        reject = {"how": "reject", "receipts": [lease[0]["receipt"]]}
        requests.post(f"{url}{HERE}/logs/orders/settle", json=reject, timeout=30)


def answer_of(case: Any, url: str) -> requests.Response:
    """The answer to a generated request; of a stream the head only, since it does not end."""
    response = requests.request(**case.as_transport_kwargs(base_url=url), stream=True, timeout=30)
    if EVENTS not in response.headers.get("content-type", ""):
        _ = response.content
    response.close()
    return response


def tried(route: Route, url: str, examples: int, *, at_random: bool = False) -> None:
    operation: Any = SCHEMA[route.path][route.method]
    furnish(url)
    modes = [GenerationMode.POSITIVE]
    if not route.public:  # nothing can be wrong with a request of which nothing is read
        modes.append(GenerationMode.NEGATIVE)
    for mode in modes:

        @settings(
            max_examples=examples, deadline=None, database=None, derandomize=not at_random,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def attempt(case: Any, data: Any) -> None:
            for name, known in KNOWN.items():
                if name in (case.path_parameters or {}) and data.draw(st.booleans()):
                    case.path_parameters[name] = data.draw(st.sampled_from(known))
            response = answer_of(case, url)
            assert response.status_code < 500 or response.status_code in ALLOWED, response.text
            if EVENTS not in response.headers.get("content-type", "") and response.status_code != 405:
                case.validate_response(response, checks=CHECKS)

        attempt()


@pytest.mark.lengthy
@EVERY
def test_whatever_comes_is_answered_as_described(route: Route, url: str) -> None:
    tried(route, url, 6)


@pytest.mark.campaign
@EVERY
def test_much_of_whatever_comes_is_answered_as_described(route: Route, url: str) -> None:
    tried(route, url, ROUNDS, at_random=True)
