"""`penstock bench`: how fast a directory or a server is, on this machine, with a load of your choice."""

from __future__ import annotations

import secrets
import sys
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated, Any, Final, get_args

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from penstock.broker.sync import Broker
from penstock.cli import output
from penstock.cli.load import Bench, Load, Part, Results
from penstock.cli.place import Json, Place, opened, placed
from penstock.cli.stopping import sigterm_interrupts
from penstock.errors import InvalidArgument, PenstockError
from penstock.journal.tail import Durability as Promise
from penstock.limits import CONCURRENCY_MAX, MESSAGE_BYTES_DEFAULT, MESSAGE_BYTES_MAX, PREFETCH_MAX

app = typer.Typer()

#: A queue that could not be deleted, because the process was killed, goes when it was unused for so long.
EXPIRES_S: Final = 600

#: Of the wanted rate. Below it, what is measured is another thing than what was asked for.
REACHED: Final = 0.9

Durability = StrEnum("Durability", {name: name for name in get_args(Promise)})  # type: ignore[misc]


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    where: str
    queue: str
    durability: str | None  # None: as the server has it
    load: Load
    results: Results
    deleted: bool


@placed(app)
def bench(
    place: Place,
    messages: Annotated[int, typer.Option("--messages", "-n", help="How many are published, and received.", min=1)] = 10_000,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", help="Of each message.", min=0, max=MESSAGE_BYTES_MAX)] = 256,
    batch: Annotated[int, typer.Option("--batch", help="Messages of one call.", min=1, max=PREFETCH_MAX)] = 100,
    producers: Annotated[int, typer.Option("--producers", help="Threads that publish.", min=1, max=CONCURRENCY_MAX)] = 16,
    consumers: Annotated[int, typer.Option("--consumers", help="Threads that receive.", min=1, max=CONCURRENCY_MAX)] = 4,
    rate: Annotated[float, typer.Option("--rate", metavar="PER_SECOND", help="Messages a second while it is measured how long one is on its way; 0 leaves that out.", min=0)] = 1_000,
    durability: Annotated[Durability | None, typer.Option("--durability", help="What a publish waits for, in a directory (commit); a server has its own.", show_default=False)] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure how fast messages are published, received and acknowledged, and how long one is on its way.

    It uses a queue of its own, which it deletes at the end, also when it is interrupted; if it cannot, it says so. A directory is made if it does not
    exist. First all messages are published in batches; then they are received and acknowledged in batches; then single messages are published at the rate,
    for up to 5 seconds, and received as they come.

    Exits with 0, with 130 if it was interrupted, and with 2 if something is wrong.

    [bold]Examples[/bold]

      penstock bench ./queue

      penstock bench http://127.0.0.1:8080 --messages 100000 --producers 16 --consumers 16

      penstock bench ./queue --batch 1 --size 1024 --durability interval --json
    """
    load = Load(messages, size, batch, producers, consumers, rate)
    with output.answering(place):
        promise = _promise(place, durability)
        name = f"bench-{secrets.token_hex(4)}"
        settings: dict[str, Any] = {} if promise is None else {"durability": promise}
        with ExitStack() as stack:
            stack.enter_context(sigterm_interrupts())
            broker, _ = stack.enter_context(opened(place, create=True, **settings))
            results, deleted = _measured(broker, name, load)
        if as_json:
            output.print_json(Report(str(place), name, promise, load, results, deleted))
        else:
            _print(place, promise, load, results)
        if results.end_to_end is not None and results.end_to_end.per_second < REACHED * rate:
            output.warn(f"penstock: {results.end_to_end.per_second:,.0f} messages a second were reached, not {rate:,.0f}: the times on their way are those of a load that is too high")  # fmt: skip


def _promise(place: Place, durability: StrEnum | None) -> str | None:
    if place.path is not None:
        return "commit" if durability is None else durability.value
    if durability is not None:
        raise InvalidArgument(
            "--durability is for a directory; what a server's publish waits for, it decides"
        )
    return None


def _measured(broker: Broker, name: str, load: Load) -> tuple[Results, bool]:
    """What the load gave, and whether the queue is gone."""
    queue = broker.create_queue(
        name, expires=EXPIRES_S, max_message_bytes=max(MESSAGE_BYTES_DEFAULT, load.size)
    )
    under = Bench(queue, load)
    deleted = False
    try:
        with output.progress_of(load.messages, "Publishing") as advance:
            published = under.publish(advance)
        with output.progress_of(load.messages, "Receiving") as advance:
            received = under.receive(advance)
        on_its_way = None
        if load.rate:
            with output.progress_of(load.end_to_end_messages, "End to end") as advance:
                on_its_way = under.end_to_end(advance)
    finally:
        deleted = _is_deleted(broker, name)
    return Results(published, received, on_its_way), deleted


def _is_deleted(broker: Broker, name: str) -> bool:
    try:
        broker.delete_queue(name)
    except PenstockError as error:
        output.warn(f"penstock: the queue {name!r} could not be deleted: {error}")
        output.warn(f"penstock: it goes by itself when it was not used for {EXPIRES_S // 60} minutes")
        return False
    return True


def _print(place: Place, promise: str | None, load: Load, results: Results) -> None:
    numbers = ("messages", "messages/s", "MiB/s", "p50 ms", "p95 ms", "p99 ms", "max ms")
    made = output.table(escape(str(place)), "", *numbers, "of", right=numbers)
    at_once = f"{load.batch:,} at once"
    _add(made, f"publish, {at_once}, {load.producers:,} producers", results.publish, "each call")
    _add(made, f"receive + ack, {at_once}, {load.consumers:,} consumers", results.receive, "each call")
    if results.end_to_end is not None:
        _add(made, f"end to end, {load.rate:,.0f}/s", results.end_to_end, "each message")
    output.console().print(made)
    kept = "as the server has it" if promise is None else promise
    sys.stdout.write(f"Messages of {output.size(load.size)}. Durability: {kept}.\n")


def _add(made: Table, what: str, part: Part, of: str) -> None:
    times = (part.p50_ms, part.p95_ms, part.p99_ms, part.max_ms)
    made.add_row(
        what,
        f"{part.messages:,}",
        f"{part.per_second:,.0f}",
        f"{part.mib_per_second:,.1f}",
        *(f"{one:,.2f}" for one in times),
        of,
    )
