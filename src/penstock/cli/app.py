"""The commands of `penstock`, one group for each part of it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import bench, config, exchange, journal, pipeline, policies, queues, serve, token, top, work

app = typer.Typer(
    name="penstock",
    help="A durable message queue in Python whose data pipeline runs on Spark.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (exchange, queues, policies, work, top, bench, serve, config, token):
    app.add_typer(part.app)
app.add_typer(journal.app, name="journal")
app.add_typer(pipeline.app, name="pipeline")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """A durable message queue in Python whose data pipeline runs on Spark."""
