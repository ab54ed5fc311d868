"""The table of routes: what is made from it must hold for every row."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidArgument
from penstock.server.http.app import ROUTES
from penstock.server.http.bodies import Reading
from penstock.server.http.openapi import operation_id
from penstock.server.http.route import NAMESPACE, Query, Route, parsed

EVERY = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


def test_no_address_is_given_twice() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({operation_id(route) for route in ROUTES}) == len(ROUTES)


@EVERY
def test_a_route_of_a_namespace_takes_a_permission(route: Route) -> None:
    if route.path.startswith(NAMESPACE):
        assert route.permission
        assert not route.public


@EVERY
def test_only_what_tells_nothing_is_public(route: Route) -> None:
    assert not route.public or route.path in {"/health", "/ready"}


@EVERY
def test_an_example_is_what_the_route_reads(route: Route) -> None:
    if route.request is None:
        return
    body = msgspec.json.encode(route.example)
    assert Reading(route.request)(body, b"application/json") == route.example
    packed = msgspec.msgpack.encode(route.example)
    assert Reading(route.request)(packed, b"application/msgpack") == route.example


@EVERY
def test_an_example_of_an_answer_is_one(route: Route) -> None:
    if route.answer is None or route.answer is str:
        return
    assert (
        msgspec.json.decode(msgspec.json.encode(route.answer_example), type=route.answer)
        == route.answer_example
    )


@EVERY
def test_a_route_is_described(route: Route) -> None:
    assert re.fullmatch(r"[A-Z].*[^.]", route.summary)
    assert route.answer is None or route.answer_example is not None


KNOWN = {
    "count": Query("count", int, "how many", 1),
    "wait": Query("wait", float, "how long", 0.0),
    "retire": Query("retire", bool, "whether"),
    "topic": Query("topic", str, "which"),
}


def test_what_is_left_out_has_its_default() -> None:
    assert parsed(KNOWN, b"") == {"count": 1, "wait": 0.0, "retire": None, "topic": None}


def test_each_parameter_is_of_its_kind() -> None:
    found = parsed(KNOWN, b"count=7&wait=1.5&retire=true&topic=a%20b")
    assert found == {"count": 7, "wait": 1.5, "retire": True, "topic": "a b"}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (b"cuont=7", "there is no parameter 'cuont'; there are: count, wait, retire, topic"),
        (b"count=7&count=8", "'count' is given twice"),
        (b"count=many", "count is 'many'; give a whole number"),
        (b"count=", "give a whole number"),
        (b"count=1_000", "give a whole number"),
        ("count=٣".encode(), "cannot be read"),
        (b"count=%D9%A3", "give a whole number"),
        (b"count=" + b"9" * 5000, "give a whole number"),
        (b"wait=nan", "give a number of seconds"),
        (b"wait=inf", "give a number of seconds"),
        (b"wait=soon", "give a number of seconds"),
        (b"retire=perhaps", "give true or false"),
        (b"topic=%ff", "cannot be read"),
        (b"&".join([b"count=1"] * 51), "cannot be read"),
    ],
)
def test_a_parameter_that_is_wrong_is_refused_and_named(query: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        parsed(KNOWN, query)


def test_the_names_in_an_address_are_found() -> None:
    async def nothing(call: Any) -> None: ...

    route = Route(method="GET", path="/a/{namespace}/b/{name}", summary="x", handler=nothing)
    assert route.parameters == ["namespace", "name"]
