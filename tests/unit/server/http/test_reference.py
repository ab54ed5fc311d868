"""The page about HTTP has other addresses, bodies, permissions, parameters or bounds than the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from penstock.server.bounds import Bounds
from penstock.server.http.app import ROUTES
from penstock.server.http.mqueue import Ack, DequeuedItem, EnqueueItem, Nack
from penstock.server.http.route import NAMESPACE, Route

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "http.md").read_text("utf-8")

#: Under which heading the routes of a module stand.
HEADINGS = {
    "mqueue": "The founding document's",
    "logs": "Namespaces, queues and topics",
    "messages": "Messages",
    "groups": "Receiving",
    "readers": "Readers",
    "transactions": "Transactions",
    "streams": "Streams",
    "spark": "Tables for Spark",
}


def row_of(route: Route) -> list[str]:
    """A route as the page has it. What all addresses of a namespace begin with is left out."""
    path = route.path.replace(NAMESPACE, "…") + _query(route)
    takes = " or ".join(route.permission) + "".join(f", and {one}" for one in route.also)
    answer = _named(route.answer) or ("" if route.answer is None else "text")
    statuses = [route.succeeds, *(status for status in sorted(route.others) if status < 300)]
    told = " or ".join(map(str, statuses)) + (f" {answer}" if answer else "")
    return [f"`{route.method} {path}`", takes, _named(route.request), told, route.summary]


def _query(route: Route) -> str:
    return "?" + "&".join(one.name for one in route.query) if route.query else ""


def _named(kind: Any) -> str:
    if kind is None or kind is str:
        return ""
    if get_origin(kind) is list:
        return f"[`{get_args(kind)[0].__name__}`]"
    return f"`{kind.__name__}`"


def table(heading: str) -> list[list[str]]:
    part = PAGE.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return [line.strip("| ").split(" | ") for line in re.findall(r"^\| `.*\|$", part, re.MULTILINE)]


def test_the_page_has_another_route_than_the_table() -> None:
    for module, heading in HEADINGS.items():
        told = [route for route in ROUTES if route.handler.__module__.rpartition(".")[2] == module]
        assert told
        assert [" ".join(" ".join(cells).split()) for cells in table(heading)] == [
            " ".join(" ".join(row_of(route)).split()) for route in told
        ]
    assert {route.handler.__module__.rpartition(".")[2] for route in ROUTES} == set(HEADINGS)


def test_the_page_has_another_field_than_the_structs_of_the_document() -> None:
    for kind in (EnqueueItem, DequeuedItem, Ack, Nack):
        line = re.search(rf"^- `{kind.__name__}`: (.*)$", PAGE, re.MULTILINE)
        assert line, kind
        assert re.findall(r"`(\w+)`", line[1].partition(";")[0]) == [
            one.name for one in msgspec.structs.fields(kind)
        ]


def test_the_page_has_another_bound_than_the_code() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    bounds = Bounds()
    assert told == {
        name: f"{getattr(bounds, name):g}"
        if isinstance(getattr(bounds, name), float)
        else str(getattr(bounds, name))
        for name in Bounds.__struct_fields__
    }
