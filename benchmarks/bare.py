"""The baseline of the server's benchmark: a bare Litestar route behind the same token check, on the same listener, which gives the same bytes back.

`python -m benchmarks.bare PORT` serves it until it is told to stop; the secret is in PENSTOCK_JWT_SECRET.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop
from litestar import Litestar, Request, Response, post

from penstock.clock import SystemClock
from penstock.server.accounts import Accounts
from penstock.server.keys import Keys
from penstock.server.listening import HttpFront
from penstock.server.quantity import Address
from penstock.server.serving import bound_of
from penstock.server.settings import load

PATH = "/bare"


def application(answer: bytes) -> Litestar:
    """One route."""
    accounts = Accounts(Keys.configured(os.environ["PENSTOCK_JWT_SECRET"], None, None), clock=SystemClock())

    @post(PATH, status_code=200)
    async def bare(request: Request) -> Response:  # type: ignore[type-arg]
        accounts.caller(request.headers.get("authorization")).require("default", "publish")
        await request.body()
        return Response(content=answer, media_type="application/json")

    return Litestar([bare], openapi_config=None)


async def serve(port: int, answer: bytes) -> None:
    front = HttpFront(Address("127.0.0.1", port), bound_of(load({})))
    await front.start()
    await front.serve(application(answer))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await front.stop(1.0)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2].encode()))
