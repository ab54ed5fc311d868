"""What the server offers, described: an OpenAPI document made from the routes, and a page that shows it without fetching anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock import errors, wire
from penstock.limits import NAME_CHARS_MAX
from penstock.server.http.problem import TYPE
from penstock.server.http.route import Call, Plain, Query, Route

REFERENCE: Final = "#/components/schemas/{name}"

#: What any request may be answered with, and when.
COMMON: Final = {
    400: "the request is wrong: `detail` says what to change",
    401: "there is no valid token",
    403: "the token does not permit this",
    429: "the namespace has used its quota: come back after Retry-After seconds",
    500: "the server failed; its log says why, under the id in `instance`",
    503: "not now: the queue is full, too many wait, or the server is starting or stopping",
}
OF_BODIES: Final = {
    408: "the body did not come in time",
    413: "the body, a message or a batch is too large",
    507: "the disk is full",
}
OF_LOGS: Final = {
    404: "there is no such queue, topic, group or subscription",
    409: "it exists in another form, or the lease has ended",
    410: "the message's time is over already",
}

ALL: Final = {**COMMON, **OF_BODIES, **OF_LOGS}

NAME_PATTERN: Final = "^[A-Za-z0-9_][A-Za-z0-9._:@-]*$"

_KINDS: Final = {int: "integer", float: "number", bool: "boolean", str: "string"}


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The OpenAPI document of some routes."""
    listed = list(routes)
    wanted = [one for route in listed for one in (route.request, route.answer) if _has_schema(one)]
    schemas, components = msgspec.json.schema_components([*wanted, wire.Problem], ref_template=REFERENCE)
    by_type = {str(one): schema for one, schema in zip([*wanted, wire.Problem], schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    found: dict[str, Any] = _modern(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Penstock",
                "version": version,
                "description": "A durable message queue. Bodies are JSON (payloads in base64, times in RFC 3339, durations in seconds) or, by "
                "Content-Type and Accept, msgpack. Errors are application/problem+json; `code` says what is wrong.",
            },
            "servers": [{"url": "/"}],
            "security": [{"token": []}],
            "tags": [{"name": name} for name in dict.fromkeys(_tag(route) for route in listed)],
            "paths": paths,
            "components": {
                "schemas": components,
                "responses": _problems(by_type[str(wire.Problem)]),
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
            },
        }
    )
    return found


def _has_schema(one: Any) -> bool:
    return one is not None and one is not str


def _modern(found: Any) -> Any:
    """Write schemas so that readers of OpenAPI 3.0 know them too: base64 by format, pairs without `prefixItems`."""
    if isinstance(found, dict):
        changed = {key: _modern(value) for key, value in found.items()}
        if changed.get("contentEncoding") == "base64":
            changed["format"] = "byte"
        if "prefixItems" in changed:  # a tuple
            first, *others = changed.pop("prefixItems")
            alike = all(other == first for other in others)
            changed["items"] = first if alike else {"anyOf": [first, *others]}
        return changed
    return [_modern(one) for one in found] if isinstance(found, list) else found


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    takes = " or ".join(route.permission) + "".join(f", and {one}" for one in route.also)
    permission = f"Takes the permission {takes}." if route.permission else ""
    found: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "description": " ".join(filter(None, (route.note, permission))),
        "tags": [_tag(route)],
        "parameters": [_path_parameter(name) for name in route.parameters]
        + [_query_parameter(one) for one in route.all_queries()],
        "responses": _responses(route, schemas),
    }
    if route.public:
        found["security"] = []
    if route.request is not None:
        schema = schemas[str(route.request)]
        example = msgspec.to_builtins(route.example)
        found["requestBody"] = {
            "required": True,
            "content": {
                wire.JSON: {"schema": schema, "example": example},
                wire.MSGPACK: {"schema": schema},
            },
        }
    return found


def operation_id(route: Route) -> str:
    module = route.handler.__module__.rpartition(".")[2]
    return f"{module}.{route.handler.__name__}"


def _tag(route: Route) -> str:
    return route.handler.__module__.rpartition(".")[2]


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "pattern": NAME_PATTERN, "maxLength": NAME_CHARS_MAX}
    if name == "id":
        schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameter(one: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _KINDS[one.kind]}
    if one.kind in {int, float}:
        schema["minimum"] = 0
    if one.default is not None:
        schema["default"] = one.default
    return {"name": one.name, "in": "query", "required": False, "description": one.summary, "schema": schema}


def _responses(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    found = {str(route.succeeds): _success(route, schemas)}
    problem = {"content": {wire.PROBLEM: {"schema": schemas[str(wire.Problem)]}}}
    told = dict(COMMON)
    if route.public:
        told = {code: told[code] for code in (400, 500, 503)}
    if route.request is not None:
        told |= OF_BODIES
    if route.parameters or route.path in {"/enqueue", "/ack", "/nack", "/dequeue"}:
        told |= OF_LOGS
    if route.method != "GET":
        told |= {507: OF_BODIES[507]}
    for status, when in route.others.items():
        if status == 204:
            found["204"] = {"description": when}
        elif status < 300:
            found[str(status)] = {**_success(route, schemas), "description": when}
        else:
            told[status] = when
    for status, when in sorted(told.items()):
        known = ALL.get(status) == when
        found[str(status)] = (
            {"$ref": f"#/components/responses/{status}"} if known else {"description": when, **problem}
        )
    return found


def _problems(schema: Any) -> dict[str, Any]:
    """What many routes may be answered with, written down once."""
    content = {wire.PROBLEM: {"schema": schema, "example": PROBLEM_EXAMPLE}}
    return {str(status): {"description": when, "content": content} for status, when in sorted(ALL.items())}


def _success(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    phrase = HTTPStatus(route.succeeds).phrase
    if route.answer is None:
        return {"description": phrase}
    if not _has_schema(route.answer):
        content = {
            media: {"schema": {"type": "string"}, "example": route.answer_example} for media in route.media
        }
        return {"description": phrase, "content": content}
    schema = schemas[str(route.answer)]
    example = msgspec.to_builtins(route.answer_example)
    content = {wire.JSON: {"schema": schema, "example": example}, wire.MSGPACK: {"schema": schema}}
    content |= {media: {} for media in route.media}
    return {"description": phrase, "content": content}


PROBLEM_EXAMPLE: Final = msgspec.to_builtins(
    wire.Problem(
        type=TYPE + errors.QueueNotFound.code,
        title="Queue not found",
        status=404,
        detail="the queue 'orders' does not exist; create it, or check the name and the namespace",
        code=errors.QueueNotFound.code,
        retryable=False,
        instance="5fcca320d8-1",
    )
)


# --- the page ---

_STYLE: Final = """
:root { color-scheme: light dark; --soft: #8882; --line: #8885; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
code, pre, summary b { font-family: ui-monospace, monospace; font-size: 13px; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .3rem .7rem; }
details[open] { background: var(--soft); }
summary { cursor: pointer; } summary span { opacity: .75; margin-left: .6rem; }
summary b { display: inline-block; min-width: 4.2rem; }
pre { background: var(--soft); padding: .6rem; border-radius: 6px; overflow-x: auto; }
table { border-collapse: collapse; } td { padding: .15rem .8rem .15rem 0; vertical-align: top; }
"""


def page(routes: Iterable[Route], version: str) -> bytes:
    """The routes as a page."""
    by_tag: dict[str, list[Route]] = {}
    for route in routes:
        by_tag.setdefault(_tag(route), []).append(route)
    head = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Penstock</title><style>{_STYLE}</style><h1>Penstock {escape(version)}</h1>"
        "<p>Bodies are JSON (payloads in base64, times in RFC 3339, durations in seconds) or, by Content-Type and Accept, msgpack. "
        "Errors are <code>application/problem+json</code>. For programs: <a href='/openapi.json'>/openapi.json</a>.</p>"
    )
    parts = [head]
    for tag, found in by_tag.items():
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += map(_shown, found)
    return "".join(parts).encode()


def _shown(route: Route) -> str:
    rows = [
        f"<tr><td><code>{escape(one.name)}</code><td>{escape(one.summary)}" for one in route.all_queries()
    ]
    takes = " or ".join(route.permission) + "".join(f", and {one}" for one in route.also)
    head = (
        f"<details id='{escape(operation_id(route))}'><summary><b>{route.method}</b><code>{escape(route.path)}</code>"
        f"<span>{escape(route.summary)}</span></summary>"
    )
    parts = [
        head,
        f"<p>{escape(route.note)}</p>" if route.note else "",
        f"<p>Takes the permission <b>{escape(takes)}</b>.</p>" if takes else "",
        f"<table>{''.join(rows)}</table>" if rows else "",
    ]
    if route.request is not None:
        parts.append(f"<p>Request</p><pre>{_pretty(route.example)}</pre>")
    if route.answer is not None:
        parts.append(f"<p>Answer {route.succeeds}</p><pre>{_pretty(route.answer_example)}</pre>")
    else:
        parts.append(f"<p>Answer {route.succeeds}, empty</p>")
    return "".join(parts) + "</details>"


def _pretty(example: Any) -> str:
    if isinstance(example, str):
        return escape(example)
    return escape(msgspec.json.format(msgspec.json.encode(example), indent=2).decode())


def routes(listed: tuple[Route, ...], version: str) -> tuple[Route, ...]:
    """The addresses of the description, which is made when it is first asked for."""

    @cache
    def described() -> tuple[bytes, bytes]:
        return msgspec.json.encode(document(listed, version)), page(listed, version)

    async def openapi(call: Call) -> Plain:
        del call
        return Plain(described()[0], wire.JSON)

    async def docs(call: Call) -> Plain:
        del call
        guard = (("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'"),)
        return Plain(described()[1], "text/html; charset=utf-8", headers=guard)

    async def first(call: Call) -> Plain:
        del call
        return Plain(b"", "text/plain", 307, (("location", "/docs"),))

    return (
        Route(
            method="GET", path="/", summary="Leads to /docs", handler=first, public=True, status=307, answer=str, media=("text/plain",),
            answer_example="",
        ),
        Route(
            method="GET", path="/openapi.json", summary="This, for programs", handler=openapi, public=True, answer=str,
            media=(wire.JSON,), answer_example="{…}",
        ),
        Route(
            method="GET", path="/docs", summary="This, for people", handler=docs, public=True, answer=str, media=("text/html",),
            answer_example="<!doctype html>…",
        ),
    )  # fmt: skip
