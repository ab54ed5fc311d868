"""`penstock queues`, `stats`, `purge` and `redrive`: queues as a whole."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from penstock.broker import calls
from penstock.broker.pauses import pause
from penstock.cli import output
from penstock.cli.place import Json, Name, Place, looked_at, opened, placed
from penstock.errors import InvalidArgument
from penstock.model.commands import Spec, Unit
from penstock.model.queries import RedriveSource
from penstock.model.stats import QueueStats

app = typer.Typer()

COUNTS = ("depth", "ready", "delayed", "leased", "retrying", "dead")

#: What only a running broker knows; the second two since it was opened.
SINCE = ("delivered", "acked")
LIVE = ("consumers", "waiting", "written", *SINCE)

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
        with looked_at(place) as (broker, _):
            found = [broker.get_queue(name).stats() for name in broker.list_queues()]
        if as_json:
            output.print_json([_stored(place, one) for one in found])
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
        with looked_at(place) as (broker, _):
            stats: Any = broker.stats() if queue is None else broker.get_queue(queue).stats()
        found = _stored(place, stats)
        if as_json:
            output.print_json(found)
        else:
            _print_stats(str(place) if queue is None else queue, found)


def _stored(place: Place, stats: Any) -> dict[str, Any]:
    """Statistics without what a directory does not hold: only its owner's process knows that, since it began."""
    found: dict[str, Any] = msgspec.to_builtins(stats, enc_hook=str)
    if place.path is not None:
        for part in (found, *found.get("groups", {}).values(), found.get("journal") or {}):
            for name in LIVE:
                part.pop(name, None)
    return found


def _print_stats(title: str, facts: dict[str, Any]) -> None:
    made = output.table(escape(title), "", "")
    made.show_header = False
    facts.pop("name", None)
    journal = facts.pop("journal", None)
    if journal is not None:
        facts["segments"] = journal["segments"]
        facts["journal bytes"] = output.size(journal["bytes"])
        facts["damaged messages"] = journal["damaged_messages"]
    if "groups" in facts:
        facts |= _said_of(facts)
    for name, value in facts.items():
        if value is not None:
            shown = name.replace("_", " ") + (" since the server began" if name in SINCE else "")
            made.add_row(shown, f"{value:,}" if isinstance(value, int) else str(value))
    output.console().print(made)


def _said_of(found: dict[str, Any]) -> dict[str, str | None]:
    """What a log has many of, in lines; None where there are none."""
    lines = {
        "groups": [f"{name}: {_said_of_group(one)}" for name, one in found["groups"].items()],
        "readers": [f"{name}: {lag:,} behind" for name, lag in found["readers"].items()],
        "schedules": found["schedules"],
    }
    return {name: escape("\n".join(said)) or None for name, said in lines.items()}


def _said_of_group(one: dict[str, Any]) -> str:
    counts = [f"{name} {one[name]:,}" for name in ("lag", "leased", "retrying")]
    if "consumers" in one:
        counts.append(f"consumers {len(one['consumers']):,}")
    return ", ".join(counts)


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
        log = port.declare(Spec(place.namespace, queue, create=False)).wait()
        if to is not None:
            broker.get_queue(to)
        dead = port.describe(RedriveSource(log)).wait()
        total = found.depth if dead is not None and dead.number == log.number else found.dead
        plan = calls.Redriving(dead, where, limit, rate, to)
        with output.progress_of(min(total, limit or total), "Redriving") as advance:
            while dead is not None and plan.more():
                before = plan.moved
                plan.took(port.commit(Unit(dead.namespace, ((dead, plan.step()),))).wait()[0])
                advance(plan.moved - before)
                pause(plan.pause_s())
        return plan.moved
