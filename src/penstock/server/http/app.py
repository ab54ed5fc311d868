"""The application: which endpoint an address has.

`create` gives an ASGI application for uvicorn. Call its front's `stop()` in the loop when the server
is to end, so that no request waits any longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from penstock.broker.port import Port
from penstock.server.bounds import Bounds
from penstock.server.http import (
    groups,
    logs,
    messages,
    mqueue,
    openapi,
    problem,
    readers,
    spark,
    streams,
    transactions,
)
from penstock.server.http.endpoint import Endpoint, request_id
from penstock.server.http.front import Front
from penstock.server.http.parties import Accounts, NoObserver, NoQuotas, Observer, OpenAccounts, Quotas
from penstock.server.http.problem import Refusal
from penstock.server.http.route import Route

#: Every address of the server.
ROUTES: Final[tuple[Route, ...]] = (
    *mqueue.ROUTES,
    *logs.ROUTES,
    *messages.ROUTES,
    *groups.ROUTES,
    *readers.ROUTES,
    *transactions.ROUTES,
    *streams.ROUTES,
    *spark.ROUTES,
)

#: What stands in the place of a segment that may be anything.
_ANY: Final = "{}"


class Application:
    """An ASGI application: it finds the endpoint of an address, which does the rest."""

    def __init__(self, front: Front, endpoints: Iterable[Endpoint]) -> None:
        self.front = front
        self._tree: dict[str, Any] = {}  # by segment; at the end of an address stands its endpoint, under ""
        for endpoint in endpoints:
            node = self._tree
            for segment in _segments(endpoint.path):
                node = node.setdefault(_ANY if segment.startswith("{") else segment, {})
            node[""] = (endpoint, _PARAMETER.findall(endpoint.path))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        endpoint, values = self._found(scope["path"])
        if endpoint is None or scope["type"] != "http":
            await _refuse(scope, send, _nothing_there(scope["path"]))
        elif scope["method"] not in endpoint.methods:
            await _refuse(scope, send, _other_methods(endpoint))
        else:
            scope["path_params"], scope["path_template"] = values, endpoint.path
            await endpoint(scope, receive, send)

    def _found(self, path: str) -> tuple[Endpoint | None, dict[str, str]]:
        """The endpoint of an address, and what stands in the places of its parameters."""
        node, values = self._tree, []
        for segment in _segments(path):
            following = node.get(segment) if segment != _ANY else None
            if following is None:
                following = node.get(_ANY)
                values.append(segment)
            if following is None:
                return None, {}
            node = following
        endpoint, names = node.get("", (None, ()))
        return endpoint, dict(zip(names, values, strict=False))

    async def _live(self, receive: Any, send: Any) -> None:
        """Wait for the end of the server; then no request waits any longer."""
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": message["type"] + ".complete"})
        self.front.stop()
        await send({"type": "lifespan.shutdown.complete"})


_PARAMETER: Final = re.compile(r"{(\w+)}")


def _segments(path: str) -> list[str]:
    """`/a//b/` and `/a/b` are the same address."""
    return [segment for segment in path.split("/") if segment]


def _nothing_there(path: str) -> Refusal:
    return Refusal(404, "not_found", f"there is nothing at {path[:200]!r}; GET /docs shows what there is")


def _other_methods(endpoint: Endpoint) -> Refusal:
    allow = ", ".join(endpoint.methods)
    return Refusal(405, "method_not_allowed", f"this address takes {allow}", allow=allow, close=True)


async def _refuse(scope: Any, send: Any, refusal: Refusal) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1000})
        return
    found = request_id(dict(scope["headers"]).get(b"x-request-id"))
    status, headers, body = problem.refused(refusal, found)
    headers = [*headers, (b"x-request-id", found.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def create(
    port: Port,
    *,
    accounts: Accounts | None = None,
    quotas: Quotas | None = None,
    bounds: Bounds | None = None,
    observer: Observer | None = None,
    directory: Path | None = None,
    intake: Any = None,
    ready: Callable[[], bool] = lambda: True,
    routes: tuple[Route, ...] = ROUTES,
) -> Application:
    """The application over a broker's port. Without accounts everybody may do everything."""
    front = Front(
        port,
        accounts=accounts or OpenAccounts(),
        quotas=quotas or NoQuotas(),
        bounds=bounds or Bounds(),
        observer=observer or NoObserver(),
        directory=directory,
        intake=intake,
        ready=ready,
    )
    by_path: dict[str, list[Route]] = {}
    for route in (*routes, *openapi.routes(routes, _version())):
        by_path.setdefault(route.path, []).append(route)
    return Application(front, [Endpoint(front, found) for found in by_path.values()])


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # run from its sources
        return "0"
