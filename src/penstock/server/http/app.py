"""The application: routes made into Litestar's handlers.

`create` gives a Litestar application for uvicorn. `app.state.front` is what its requests share; call its `stop()` in the loop when the server is to end, so that
nobody waits any longer.

Litestar finds an address, and is asked for each once: publishers and consumers use the same few of them again and again, and finding one takes a tenth of a publish. What it found is
remembered (`Application`) by all that it looks at: method, path and host. What it refuses is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from penstock.broker.port import HostedPort
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

_LOG: Final = logging.getLogger("penstock.server.http")

#: Addresses that are remembered, and how long one may be: at most some megabytes, whatever is asked for. Beyond it all of them are looked up anew.
FOUND_MAX: Final = 4096
FOUND_LENGTH_MAX: Final = 512

#: Where in a request's scope it stands by what its address is remembered.
_ADDRESS: Final = "penstock.address"

Address = tuple[str, str, bytes]


class Application(Litestar):
    """Litestar, with a memory for what it found."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._found: dict[Address, tuple[Endpoint, dict[str, Any]]] = {}
        super().__init__(*arguments, **settings)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            address = (scope["method"], scope["path"], _host(scope["headers"]))
            found = self._found.get(address)
            if found is not None:
                endpoint, scope["path_params"] = found
                await endpoint(scope, receive, send)
                return
            scope[_ADDRESS] = address
        await super().__call__(scope, receive, send)

    def remember(self, scope: Any, endpoint: Endpoint) -> None:
        """Litestar has found the endpoint of a request."""
        address: Address | None = scope.get(_ADDRESS)
        if address is None or sum(map(len, address)) > FOUND_LENGTH_MAX:
            return
        if len(self._found) >= FOUND_MAX:
            self._found.clear()
        self._found[address] = (endpoint, scope["path_params"])


def _host(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    for name, value in headers:
        if name == b"host":
            return value
    return b""


def create(
    port: HostedPort,
    *,
    accounts: Accounts | None = None,
    quotas: Quotas | None = None,
    bounds: Bounds | None = None,
    observer: Observer | None = None,
    directory: Path | None = None,
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
        ready=ready,
    )
    by_path: dict[str, list[Route]] = {}
    for route in (*routes, *openapi.routes(routes, _version())):
        by_path.setdefault(route.path, []).append(route)
    return Application(
        route_handlers=[_handler(Endpoint(front, found)) for found in by_path.values()],
        openapi_config=None,  # made from the routes: see `openapi`
        exception_handlers={HTTPException: _no_such_address, Exception: _mistake},
        logging_config=None,
        state=State({"front": front}),
        on_shutdown=[front.stop],
    )


def _handler(endpoint: Endpoint) -> HTTPRouteHandler:
    """An address as Litestar has it. The endpoint stands where middleware does, and lets nothing through: so neither request nor response objects are made."""

    async def arrived(scope: Any, receive: Any, send: Any) -> None:
        scope["litestar_app"].remember(scope, endpoint)
        await endpoint(scope, receive, send)

    def stand_in(app: Any) -> Any:  # noqa: ARG001  # by that name Litestar gives it
        return arrived

    return HTTPRouteHandler(
        _litestar_path(endpoint.path),
        http_method=endpoint.methods,
        middleware=[stand_in],
        name=endpoint.path,
    )(_never_called)


async def _never_called() -> None:
    """What Litestar would call: see `_handler`."""


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # run from its sources
        return "0"


def _litestar_path(path: str) -> str:
    """`/queues/{name}` as Litestar writes it."""
    return path.replace("}", ":str}")


def _no_such_address(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    found = request_id(request.headers.get("x-request-id", "").encode("latin-1", "replace") or None)
    if error.status_code == 404:
        refusal = Refusal(
            404, "not_found", f"there is nothing at {request.url.path[:200]!r}; GET /docs shows what there is"
        )
    elif error.status_code == 405:
        allow = (error.headers or {}).get("allow", "")
        refusal = Refusal(405, "method_not_allowed", f"this address takes {allow}", allow=allow, close=True)
    else:
        refusal = Refusal(error.status_code, "bad_request", error.detail)
    return _response(*problem.refused(refusal, found), found)


def _mistake(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    found = request_id(None)
    _LOG.error("request %s (%s) found a mistake of ours", found, request.url.path, exc_info=error)
    return _response(*problem.unexpected(found), found)


def _response(status: int, headers: problem.Headers, body: bytes, request: str) -> Response[bytes]:
    plain = {name.decode(): value.decode("latin-1") for name, value in headers}
    kind = plain.pop("content-type")
    return Response(body, status_code=status, headers={**plain, "x-request-id": request}, media_type=kind)
