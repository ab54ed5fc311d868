"""The OpenAPI document, and the page made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.server.http.app import ROUTES
from penstock.server.http.openapi import document, page

DOCUMENT = document(ROUTES, "1.2.3")


def references(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if "$ref" in found:
            yield found["$ref"]
        for value in found.values():
            yield from references(value)
    elif isinstance(found, list):
        for value in found:
            yield from references(value)


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        at = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_described_with_examples_and_errors(route: Any) -> None:
    found = DOCUMENT["paths"][route.path][route.method.lower()]
    responses = found["responses"]
    assert str(route.succeeds) in responses
    assert {"400", "500", "503"} <= set(responses)
    assert route.public or {"401", "403", "429"} <= set(responses)
    if route.request is not None:
        content = found["requestBody"]["content"]
        assert content["application/json"]["example"]
        assert "application/msgpack" in content
        assert {"408", "413"} <= set(responses)
    if route.answer is not None:
        content = responses[str(route.succeeds)]["content"]
        assert any("example" in one for one in content.values())
    named = {one["name"] for one in found["parameters"] if one["in"] == "path"}
    assert named == set(re.findall(r"{(\w+)}", route.path))


def test_pair_is_described_for_readers_of_openapi_3_0() -> None:
    left = DOCUMENT["components"]["schemas"]["Redriven"]["properties"]["left"]
    assert (left["items"]["type"], left["minItems"], left["maxItems"]) == ("integer", 2, 2)


def test_payloads_are_base64() -> None:
    payload = DOCUMENT["components"]["schemas"]["Item"]["properties"]["payload"]
    assert payload["format"] == "byte"


def test_the_page_fetches_nothing() -> None:
    found = page(ROUTES, "1.2.3").decode()
    assert set(re.findall(r"(?:src|href)\s*=\s*['\"]?([^'\" >]+)", found)) == {"/openapi.json"}
    for what in ("<script", "<link", "<img", "url(", "@import"):
        assert what not in found
    for route in ROUTES:
        assert route.path in found
