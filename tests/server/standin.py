"""A server whose application is small and can be made to misbehave: what is tried with it is the life around an application.

python -m tests.server.standin data_dir=… http_addr=127.0.0.1:0 …
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from penstock.broker.embedded import Embedded
from penstock.errors import PenstockError
from penstock.model.commands import Publish, Spec
from penstock.server.serving import Admission, Assembled, Refused, exit_code_of, serve
from penstock.server.settings import Settings, load
from penstock.server.threads import Threads
from tests import asking

BIG = b"x" * (1 << 20)


class Application:
    """
    POST /publish   the body is published to the queue `work`, and the answer is its id
    POST /length    how long the body is
    GET  /wait      waits until the server stops
    GET  /stubborn  waits, whatever happens, until it is cancelled
    GET  /deaf      the same, and does not even hear that
    GET  /thread    the same, in a thread of the server's
    GET  /big       64 MiB
    """

    def __init__(self, port: Embedded) -> None:
        self.port = port
        self.stopping = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body = bytearray()
        more = scope["method"] == "POST"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        await getattr(self, scope["path"].strip("/"))(bytes(body), send)

    async def health(self, _body: bytes, send: Any) -> None:
        await _answer(send, b"OK\n")

    async def length(self, body: bytes, send: Any) -> None:
        await _answer(send, str(len(body)).encode())

    async def publish(self, body: bytes, send: Any) -> None:
        log = await self.port.declare(Spec("default", "work")).get()
        ((made,),) = await asking.begin(self.port, log, Publish([body])).get()
        await _answer(send, str(made).encode())

    async def wait(self, _body: bytes, send: Any) -> None:
        print("waiting", flush=True)
        await self.stopping.wait()
        await _answer(send, b"nothing came")

    async def stubborn(self, _body: bytes, send: Any) -> None:
        print("waiting", flush=True)
        await asyncio.Event().wait()

    async def deaf(self, _body: bytes, send: Any) -> None:
        print("waiting", flush=True)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def thread(self, _body: bytes, send: Any) -> None:
        print("waiting", flush=True)
        await Threads(1, "standin").run(threading.Event().wait)

    async def big(self, _body: bytes, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": BIG, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def assemble(_settings: Settings, port: Embedded, _refused: Refused, _admission: Admission) -> Assembled:
    app = Application(port)
    return Assembled(app, app.stopping.set, lambda: print("reloaded", flush=True))


if __name__ == "__main__":
    try:
        code = serve(load(dict(found.split("=", 1) for found in sys.argv[1:])), assemble)
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        code = exit_code_of(error)
    sys.exit(code)
