"""`penstock queues`, `stats`, `purge` and `redrive`: queues as a whole."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from penstock.broker import calls
from penstock.broker.port import QueueStats
from penstock.cli import output
from penstock.cli.place import Json, Name, Place, opened, placed
from penstock.errors import InvalidArgument

app = typer.Typer()

COUNTS = ("depth", "ready", "delayed", "leased", "retrying", "dead")

#: Exit code of a purge without --yes: nothing was done.
NOT_DONE = 1


@placed(app)
def queues(place: Place, as_json: Json = False) -> None:
    """List the queues, and how many messages each holds.

    [bold]Examples[/bold]

      penstock queues ./queue

      penstock queues http://127.0.0.1:8080 --namespace shop

      penstock queues ./queue --json | jq '.[] | select(.dead > 0) | .name'
    """
    with output.answering(place):
        with opened(place) as (broker, _):
            found = [broker.get_queue(name).stats() for name in broker.list_queues()]
        if as_json:
            output.print_json(found)
            return
        made = output.table(escape(str(place)), "name", *COUNTS, right=COUNTS)
        for one in found:
            made.add_row(escape(one.name), *(f"{getattr(one, name):,}" for name in COUNTS))
        output.console().print(made)


@placed(app)
def stats(
    place: Place,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only this queue.", show_default=False)] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Say what a queue holds, or what all queues and their journal hold.

    [bold]Examples[/bold]

      penstock stats ./queue

      penstock stats ./queue orders --json | jq .ready
    """
    with output.answering(place):
        with opened(place) as (broker, _):
            found: Any = broker.stats() if queue is None else broker.get_queue(queue).stats()
        if as_json:
            output.print_json(found)
        else:
            _print_stats(str(place) if queue is None else queue, found)


def _print_stats(title: str, found: Any) -> None:
    made = output.table(escape(title), "", "")
    made.show_header = False
    facts = msgspec.structs.asdict(found)
    facts.pop("name", None)
    journal = facts.pop("journal", None)
    if journal is not None:
        facts["segments"] = journal.segments
        facts["journal bytes"] = output.size(journal.bytes)
        facts["damaged messages"] = journal.damaged_messages
    if "groups" in facts:
        facts |= _said_of(found)
    for name, value in facts.items():
        if value is not None:
            made.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    output.console().print(made)


def _said_of(found: QueueStats) -> dict[str, str | None]:
    """What a log has many of, in lines; None where there are none."""
    lines = {
        "groups": [
            f"{name}: lag {one.lag:,}, leased {one.leased:,}, retrying {one.retrying:,}, consumers {len(one.consumers):,}"
            for name, one in found.groups.items()
        ],
        "readers": [f"{name}: {lag:,} behind" for name, lag in found.readers.items()],
        "schedules": found.schedules,
    }
    return {name: escape("\n".join(said)) or None for name, said in lines.items()}


@placed(app)
def purge(
    place: Place,
    queue: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Really do it. Without it, only say what would be removed.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Remove every message of a queue. Does nothing without --yes.

    Exits with 0, with 1 if --yes was missing and there is something to remove, and with 2 if there is no such directory or queue, or
    somebody else has it open.

    [bold]Examples[/bold]

      penstock purge ./queue orders            [dim]# what would be removed[/dim]

      penstock purge ./queue orders --yes
    """
    with output.answering(place):
        with opened(place) as (broker, _):
            found = broker.get_queue(queue)
            count = found.purge() if yes else found.depth()
        if as_json:
            output.print_json({"queue": queue, "messages": count, "done": yes})
        elif yes:
            sys.stdout.write(f"Removed {count:,} messages.\n")
        else:
            command = f"penstock purge --yes {place.typed()} {queue}"
            sys.stdout.write(
                f"{count:,} messages would be removed. Nothing was changed. To do it: {command}\n"
            )
    raise typer.Exit(output.FINE if yes or not count else NOT_DONE)


@placed(app)
def redrive(
    place: Place,
    queue: Name,
    where: Annotated[str | None, typer.Option(metavar="FILTER", help="Only dead letters that match.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1)] = None,
    rate: Annotated[float | None, typer.Option(metavar="PER_SECOND", help="At most so many in a second.")] = None,
    to: Annotated[str | None, typer.Option(metavar="QUEUE", help="To this queue, not to where they failed.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Move a queue's dead letters back to where they failed, with their attempts begun anew.

    Moving one and removing it from the dead letters is one commit: it may be interrupted at any point, and run again.

    [bold]Examples[/bold]

      penstock redrive ./queue orders

      penstock redrive ./queue orders --where "x-error LIKE '%timeout%'" --rate 100 --limit 1000
    """
    with output.answering(place):
        moved = _redrive(place, queue, where, limit, rate, to)
        if as_json:
            output.print_json({"queue": queue, "moved": moved})
        else:
            sys.stdout.write(f"Moved {moved:,} messages.\n")


def _redrive(
    place: Place, queue: str, where: str | None, limit: int | None, rate: float | None, to: str | None
) -> int:
    if rate is not None and not rate > 0:
        raise InvalidArgument(f"the rate is {rate}; give a number above 0")
    with opened(place) as (broker, port):
        found: QueueStats = broker.get_queue(queue).stats()
        log = port.declare(place.namespace, queue, {}, create=False).wait()
        if to is not None:
            broker.get_queue(to)
        dead = port.change(log, "redrive").wait()
        total = found.depth if dead is not None and dead.number == log.number else found.dead
        plan = calls.Redrive(port, dead, where, limit, rate, to)
        with output.progress_of(min(total, limit or total), "Redriving") as advance:
            while plan.more():
                before = plan.moved
                plan.took(plan.step().wait())
                advance(plan.moved - before)
                plan.pause()
        return plan.moved
