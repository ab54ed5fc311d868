"""`penstock pipeline …`: jobs on Spark over a broker's directory. Spark is only imported by a command that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli import INTERRUPTED, output
from penstock.cli.owning import Json
from penstock.cli.spark import Conf, Master, sparking

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help='Jobs on Spark over what a broker holds. They need pip install "penstock[spark]"; the broker may run meanwhile.',
)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The broker's directory.", show_default=False)]
Namespace = Annotated[str, typer.Option(help="The namespace.")]


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="Defines transform(messages), from DataFrame to DataFrame.", show_default=False)],
    path: Dir,
    topic: Annotated[str, typer.Argument(metavar="TOPIC[,TOPIC]", help="Which queues or topics are read.", show_default=False)],
    to: Annotated[str | None, typer.Option(metavar="LOG", help="Publish the result to this queue or topic.")] = None,
    route: Annotated[bool, typer.Option("--route", help="Publish each row to where its column topic says.")] = False,
    parquet: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the result as Parquet files.")] = None,
    target: Annotated[Path | None, typer.Option(metavar="DIR", help="The broker's directory that is published to; DIR, by default.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Work through what is there now, and end.")] = False,
    every: Annotated[float | None, typer.Option(metavar="SECONDS", help="A batch so often; as soon as there is something, by default.")] = None,
    max_per_batch: Annotated[int | None, typer.Option(metavar="MESSAGES", help="At most so many messages in a batch.", min=1)] = None,
    starting: Annotated[str, typer.Option("--from", metavar="earliest|latest|JSON", help="Where the first run begins.")] = "earliest",
    mode: Annotated[str, typer.Option(metavar="append|update", help="For aggregations: rows once final, or again whenever they change.")] = "append",
    namespace: Namespace = "default",
    name: Annotated[str | None, typer.Option(help="The query's name, under which its progress is kept and shown.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Where its progress is kept.")] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a transform of your own: from a log into a log, or into Parquet files. Exactly once.

    FILE.py defines transform(messages), which is given a streaming DataFrame of the messages (namespace, topic, offset, id, timestamp, key,
    payload, headers, priority, deliver_at, expires_at, target_group, dedup_id) and returns another. For a log it has a column payload, and may have key, headers,
    priority, deliver_at, ttl and dedup_id.

    It goes on until SIGTERM or Ctrl-C, which let the batch in hand finish; the second one stops it at once. Started again it goes on where it was.

    Exits with 0, with 130 if it was stopped at once, and with 2 if something is wrong; if that is in FILE.py, stderr says where.

    [bold]Examples[/bold]

      penstock pipeline run clean.py ./data orders --to clean-orders

      penstock pipeline run clean.py ./data orders --parquet ./lake/orders --once
    """
    with output.answering(path):
        with sparking("run", master, conf) as spark:
            from penstock.pipeline import transform

            with batches(
                "Transforming", None if once else f"running {file}; SIGTERM or Ctrl-C stops it"
            ) as tell:
                ran = transform.run(
                    spark, file, source=path, topic=topic, to=to, route=route, parquet=parquet, target=target,
                    once=once, every=every, max_per_batch=max_per_batch, starting=starting, mode=mode,
                    namespace=namespace, name=name, checkpoint=checkpoint, on_progress=tell, signals=True,
                )  # fmt: skip
        if as_json:
            output.print_json(ran)
        else:
            sys.stdout.write(f"{ran.messages:,} messages in {ran.batches:,} batches.\n")
    raise typer.Exit(output.FINE if ran.finished else INTERRUPTED)


# --- how commands talk ---


@contextmanager
def batches(what: str, greeting: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """Says that a stream has started, if it has no end, and counts its batches and rows on a terminal."""
    if not sys.stderr.isatty():
        yield lambda count, _rows: None if count or greeting is None else output.warn(f"penstock: {greeting}")
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{what} …")
        if greeting is not None:
            bar.console.print(f"penstock: {greeting}", markup=False, highlight=False)
        yield lambda count, rows: bar.update(
            task, description=f"{what}: {rows:,} messages in {count:,} batches"
        )
