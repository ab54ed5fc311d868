"""`penstock work`: a function, called with every message of a queue."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Annotated, Any

import typer

from penstock import aio
from penstock.broker.worker import AioWorker, Worker, is_coroutine_function
from penstock.cli import INTERRUPTED, output
from penstock.cli.place import (
    Json,
    Name,
    Place,
    connection,
    opened,
    placed,
    require_existing,
    telling_of_servers,
    warn_of_damage,
)
from penstock.client.connecting import WAIT_S
from penstock.errors import InvalidArgument
from penstock.limits import CONCURRENCY_MAX, PREFETCH_MAX
from penstock.model.commands import DEFAULT_NAMESPACE
from penstock.names import is_dead_letter_name

app = typer.Typer()

Handler = Callable[[Any], Any]


@placed(app)
def work(
    place: Place,
    queue: Name,
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What is called with each delivery.", show_default=False)],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Messages handled at once.", min=1, max=CONCURRENCY_MAX)] = 1,
    prefetch: Annotated[int | None, typer.Option(help="Messages held at once, begun or not; as many as are handled, by default.", min=1, max=PREFETCH_MAX)] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Call a function with every message of a queue, until SIGTERM or Ctrl-C.

    When it returns, the message is acknowledged; when it raises, the message is retried by the queue's backoff, and dead-lettered
    after its last attempt. It may raise penstock.Retry(delay=60) or penstock.Reject("why"). A queue that does not exist is made. A plain function is called in threads, a coroutine
    function on an event loop. Modules are looked for in the current directory, too.

    The first signal lets what is in hand finish; the second gives it back at once. Failures and progress go to stderr.

    With a server's address it waits ten seconds for a server that is not there yet or is starting,
    and goes on when the server restarts.

    Exits with 0, with 130 if it was stopped at once, and with 2 if there is no such directory or function, or another process has the
    directory open.

    [bold]Examples[/bold]

      penstock work ./queue orders shop.orders:handle

      penstock work ./queue orders shop.orders:handle --concurrency 8 --prefetch 100

      penstock work http://127.0.0.1:8080 orders shop.orders:handle
    """
    with output.answering(place):
        if place.path is not None:
            require_existing(place.path)
        handler = load(function)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="penstock: %(message)s", force=True)
        settings = {"concurrency": concurrency, "prefetch": prefetch}
        # Behind a decorator it may still be one: then what it returns is to be awaited.
        run = _run_aio if is_coroutine_function(inspect.unwrap(handler)) else _run
        finished, worker = run(place, queue, handler, settings)
        counts = {"processed": worker.processed, "failed": worker.failed, "lost": worker.lost}
        if as_json:
            output.print_json({"queue": queue, **counts, "finished": finished})
        else:
            sys.stdout.write(
                ", ".join(f"{what} {count:,}" for what, count in counts.items()).capitalize() + ".\n"
            )
    raise typer.Exit(output.FINE if finished else INTERRUPTED)


def _run(place: Place, queue: str, handler: Handler, settings: dict[str, Any]) -> tuple[bool, Worker]:
    with opened(place, wait_s=WAIT_S) as (broker, _):
        found = broker.get_queue(queue) if is_dead_letter_name(queue) else broker.queue(queue)
        worker = Worker(found, handler, **settings)
        _greet(queue)
        return worker.run(signals=True), worker


def _run_aio(place: Place, queue: str, handler: Handler, settings: dict[str, Any]) -> tuple[bool, AioWorker]:
    """The same on an event loop."""

    async def main() -> tuple[bool, AioWorker]:
        async with _opened_aio(place) as broker:
            get = broker.get_queue if is_dead_letter_name(queue) else broker.queue
            worker = AioWorker(await get(queue), handler, **settings)
            _greet(queue)
            return await worker.run(signals=True), worker

    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        finished, worker = runner.run(main())
        if not finished:
            stack.pop_all()  # closing it would wait for a coroutine that does not hear when it is cancelled
        return finished, worker


@asynccontextmanager
async def _opened_aio(place: Place) -> AsyncIterator[aio.Broker]:
    if place.path is None:
        async with aio.connect(str(place.url), **connection(place, wait_s=WAIT_S)) as broker:
            yield broker
        return
    with telling_of_servers():
        opening = await aio.open(place.path)
    async with opening as broker:
        warn_of_damage(await broker.stats(), place.path)
        yield broker if place.namespace == DEFAULT_NAMESPACE else broker.namespace(place.namespace)


def _greet(queue: str) -> None:
    logging.getLogger("penstock.worker").info("working on %r; SIGTERM or Ctrl-C stops it", queue)


def load(function: str) -> Handler:
    """The function that `module:function` names."""
    module, colon, name = function.partition(":")
    if not colon or not module or not name:
        raise InvalidArgument(f"{function!r} is not MODULE:FUNCTION, such as shop.orders:handle")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _imported(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidArgument(f"there is no function {name!r} in the module {module!r}")
    handler: Handler = found
    return handler


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{module}.".startswith(f"{error.name}.")
        ):
            raise InvalidArgument(f"there is no module {module!r}, neither here nor installed") from None
        at = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno})"
        raise InvalidArgument(f"the module {module!r} cannot be imported: {why}") from None
