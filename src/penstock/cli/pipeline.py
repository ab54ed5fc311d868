"""`penstock pipeline …`: jobs on Spark over a broker's directory. Spark is only imported by a command that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli import INTERRUPTED, output
from penstock.cli.place import Json
from penstock.cli.spark import Conf, Master, sparking
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.pipeline.audit import Audit, Breach

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help='Jobs on Spark over what a broker holds. They need pip install "penstock\\[spark]"; the broker may run meanwhile.',
)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The broker's directory.", show_default=False)]
Namespace = Annotated[str, typer.Option(help="The namespace.")]
Everywhere = Annotated[str, typer.Option("--namespace", help="Only this namespace; * for all.")]
Topics = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC[,TOPIC]", help="Only these queues or topics.")
]

SkipLost = Annotated[bool, typer.Option("--skip-lost", help="Exit with 0 though something was damaged or missing, and was skipped.")]  # fmt: skip

#: Exit code of an audit that found something, and of a job that skipped something.
BREACHES = 1

#: What is told of a report.
REPORTED = ("published", "delivered", "acked", "retries", "dead")

#: What is told of each group.
COUNTS = ("published", "stored", "cleaned", "lost", "pending", "settled")


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
    skip_lost: Annotated[bool, typer.Option("--skip-lost", help="Go on past messages that are damaged, or were dropped before they were read; otherwise it stops there (failOnDataLoss=false).")] = False,
    mode: Annotated[str, typer.Option(metavar="append", help="Rows of aggregations are written once they are final (they need a watermark); there is no other mode.")] = "append",
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
                    options={"failOnDataLoss": "false"} if skip_lost else None,
                )  # fmt: skip
        if as_json:
            output.print_json(ran)
        else:
            sys.stdout.write(f"{ran.messages:,} messages in {ran.batches:,} batches.\n")
    raise typer.Exit(output.FINE if ran.finished else INTERRUPTED)


@app.command()
def archive(
    path: Dir,
    to: Annotated[str, typer.Argument(metavar="TO", help="The archive: a directory, or an address that Spark can write to.", show_default=False)],
    topic: Topics = None,
    namespace: Everywhere = "*",
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until SIGTERM or Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="With --continuous: a batch so often.")] = 10.0,
    skip_lost: SkipLost = False,
    compact: Annotated[bool, typer.Option(help="Make few large files of the small ones of days that are over.")] = True,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Bring what is new into an archive of Parquet files: messages, settlements and deliveries, by namespace, topic and day. Each row once.

    It may be interrupted at any point, and run again. What is archived is reported to the broker, so that a queue with retain="until-archived" may drop it.

    What is damaged or missing in DIR is skipped, and told by the run that comes across it.

    Exits with 0, with 1 if something was skipped, with 130 if it was interrupted, and with 2 if something is wrong.

    [bold]Examples[/bold]

      penstock pipeline archive ./data ./lake

      penstock pipeline archive ./data ./lake --topic orders,invoices --continuous --interval 60
    """
    with output.answering(path):
        with sparking("archive", master, conf) as spark:
            from penstock.pipeline import archive as job
            from penstock.pipeline.stopping import Stop, heeding

            stop = Stop()
            with saying("Archiving …") as say, heeding(stop) if continuous else nullcontext():
                if continuous:
                    output.warn(f"penstock: archiving {path}; SIGTERM or Ctrl-C stops it")
                done = job.archive(
                    spark, path, to, namespace=namespace, topics=names(topic), continuous=continuous, interval_s=interval,
                    compact=compact, until=lambda: bool(stop.times),
                    progress=lambda step: say(f"{step.what.capitalize()} {step.table}: {step.rows:,} rows, {step.files:,} files"),
                )  # fmt: skip
        if as_json:
            output.print_json(done)
        else:
            rows = ", ".join(f"{count:,} {table}" for table, count in done.rows.items() if count)
            written = f"{done.files:,} files written, {done.compacted:,} compacted"
            sys.stdout.write(f"Archived {rows or 'nothing new'}; {written}.\n")
            _print_skipped(done.skipped)
            for log in done.waiting:
                output.warn(
                    f"penstock: {log} waits to be archived as a whole, and this archive does not hold all of it"
                )
    raise typer.Exit(BREACHES if done.skipped and not skip_lost else output.FINE)


@app.command()
def replay(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="An archive's directory, or a log of DIR such as orders or orders.dlq.", show_default=False)],
    into: Annotated[str, typer.Argument(metavar="LOG", help="The queue or topic that is published to.", show_default=False)],
    path: Dir,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC[,TOPIC]", help="Only these of an archive.")] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only messages for which this is true, by Spark's SQL.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Give them this header, or with priority=N this priority; may be given again.")] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave this header out; may be given again.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="PER_SECOND", help="At most so many in a second.")] = None,
    namespace: Namespace = "default",
    source_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="The broker's directory that the log SOURCE is in; DIR, by default.")] = None,
    source_namespace: Annotated[str | None, typer.Option(help="The namespace of what is replayed, if it is another one.")] = None,
    replay_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="What makes it another replay than one with the same arguments.")] = None,
    state: Annotated[str | None, typer.Option(metavar="DIR", help="Where its plan is kept.")] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Publish messages again: from an archive, a log, or its dead letters, into a log. Each message once, however often it is started.

    What is meant is settled when it begins for the first time; the same command, run again, goes on where it was, and does nothing once it is done. With another --id it is
    another replay.

    Exits with 0, with 130 if it was interrupted, and with 2 if something is wrong.

    [bold]Examples[/bold]

      penstock pipeline replay ./lake orders ./data --topic orders --where "day = '2026-11-16' AND key = 'k7'" --rate 500

      penstock pipeline replay orders.dlq orders ./data --where "headers['x-error'] LIKE '%timeout%'" --set priority=10 --set again=yes
    """
    with output.answering(path):
        headers, priority = changed(changes or [], unset or [])
        with sparking("replay", master, conf) as spark:
            from penstock.pipeline.replay import replay as job

            with saying("Planning …") as say:
                done = job(
                    spark, source, into, path, topics=names(topic), where=where, set_headers=headers, set_priority=priority,
                    rate=rate, namespace=namespace, source_path=source_dir, source_namespace=source_namespace, id=replay_id, state=state,
                    progress=lambda sent: say("Replaying", sent.messages, sent.of_messages),
                )  # fmt: skip
        if as_json:
            output.print_json(done)
        else:
            before = f"; {done.messages - done.written:,} were published before" if done.resumed else ""
            sys.stdout.write(
                f"Published {done.written:,} of {done.messages:,} messages{before}. Its id is {done.id}.\n"
            )


def changed(given: list[str], unset: list[str]) -> tuple[dict[str, str | None], int | None]:
    """The headers and the priority that `--set` and `--unset` name. A header called priority is headers.priority."""
    headers: dict[str, str | None] = dict.fromkeys(unset)
    priority = None
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"--set {one!r} is not NAME=VALUE, such as type=order or priority=10")
        if name != "priority":
            headers[name.removeprefix("headers.")] = value
        elif value.isascii() and value.isdigit():
            priority = int(value)
        else:
            raise InvalidArgument(
                f"--set {one!r}: a priority is a whole number; a header of that name is headers.priority"
            )
    return headers, priority


@app.command()
def report(
    path: Dir,
    to: Annotated[Path, typer.Argument(metavar="TO", help="The directory that the report is written to.", show_default=False)],
    topic: Topics = None,
    namespace: Everywhere = "*",
    skip_lost: SkipLost = False,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write a report: what was published, delivered, retried and given up per topic, group and minute; latencies, lag, errors, and the biggest keys.

    TO gets Parquet tables, and report.html, one page with charts that opens without a network. What is damaged or missing in DIR is skipped, and told on the page too.

    Exits with 0, with 1 if something was skipped, with 130 if it was interrupted, and with 2 if something is wrong.

    [bold]Examples[/bold]

      penstock pipeline report ./data ./report

      penstock pipeline report ./data ./report --topic orders --json | jq .dead
    """
    with output.answering(path):
        with sparking("report", master, conf) as spark:
            from penstock.pipeline.report import report_directory

            with saying("Reporting …") as say:
                done = report_directory(
                    spark, path, to, namespace=namespace, topics=names(topic),
                    progress=lambda what, done, total: say(f"Reporting: {what}", done, total),
                )  # fmt: skip
        if as_json:
            output.print_json(done)
        else:
            counts = ", ".join(f"{what} {getattr(done, what):,}" for what in REPORTED)
            sys.stdout.write(f"{counts.capitalize()}. The page is {done.page}\n")
            _print_skipped(done.skipped)
    raise typer.Exit(BREACHES if done.skipped and not skip_lost else output.FINE)


@app.command()
def audit(
    path: Dir,
    topic: Topics = None,
    namespace: Everywhere = "*",
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Check that nothing is lost and nothing is there twice: every message is pending, settled, dead-lettered, expired or cleaned, in every group.

    A broker may be at work in the directory meanwhile: what looks wrong is looked at twice.

    Exits with 0, with 1 if there are breaches, which are printed with their offsets and ids, and with 2 if it could not be done.

    [bold]Examples[/bold]

      penstock pipeline audit ./data

      penstock pipeline audit ./data --topic orders --json | jq '.breaches[].ids'
    """
    with output.answering(path):
        with sparking("audit", master, conf) as spark:
            from penstock.pipeline.audit import audit_directory

            with saying("Auditing …") as say:
                found = audit_directory(
                    spark, path, namespace=namespace, topics=names(topic),
                    progress=lambda what, done, total: say(f"Auditing: {what}", done, total),
                )  # fmt: skip
        if as_json:
            output.print_json(found)
        else:
            _print_audit(found)
    raise typer.Exit(output.FINE if found.ok else BREACHES)


def _print_audit(found: Audit) -> None:
    made = output.table("Groups", "log", "group", *COUNTS, "outcomes", right=COUNTS)
    for one in found.groups:
        outcomes = ", ".join(f"{what} {count:,}" for what, count in sorted(one.outcomes.items()))
        made.add_row(
            escape(f"{one.namespace}/{one.log}"), escape(one.group or "–"), *(f"{getattr(one, name):,}" for name in COUNTS), outcomes
        )  # fmt: skip
    output.console().print(made)
    _print_breaches(found.breaches)
    for note in found.notes:
        output.warn(f"penstock: {note}")
    looked = f"{found.messages:,} messages, {found.settlements:,} settlements"
    sys.stdout.write(
        f"Sound: {looked}.\n" if found.ok else f"{len(found.breaches):,} breaches in {looked}.\n"
    )


def _print_breaches(breaches: list[Breach]) -> None:
    for breach in breaches:
        ids = f"; ids {', '.join(map(str, breach.ids))}" if breach.ids else ""
        sys.stdout.write(output.harmless(f"{breach}{ids}") + "\n")


def _print_skipped(skipped: list[Breach]) -> None:
    if skipped:
        sys.stdout.write("Skipped, because it could not be read:\n")
        _print_breaches(skipped)


# --- how commands talk ---


def names(given: str | None) -> list[str] | None:
    """What stands between commas."""
    return None if given is None else [one.strip() for one in given.split(",")]


@contextmanager
def saying(what: str) -> Iterator[Callable[..., None]]:
    """A bar on a terminal: `say(text)`, and `say(text, done, total)` where it is known how much there is."""
    if not sys.stderr.isatty():
        yield lambda _text, _done=0, _total=None: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def say(text: str, done: int = 0, total: int | None = None) -> None:
            bar.update(task, description=escape(text), completed=done, total=total)

        yield say


@contextmanager
def batches(what: str, greeting: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """Says that a stream has started, if it has no end, and counts its batches and rows on a terminal."""
    with saying(f"{what} …") as say:

        def tell(count: int, rows: int) -> None:
            if count:
                say(f"{what}: {rows:,} messages in {count:,} batches")
            elif greeting is not None:
                output.warn(f"penstock: {greeting}")

        yield tell
