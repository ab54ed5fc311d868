"""`penstock config`: what a server would be started with here, and where each value comes from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.flags import Loader, flagged
from penstock.cli.place import Json
from penstock.cli.token import require_jwt
from penstock.errors import PenstockError
from penstock.server.settings import PANELS, Settings, plain

app = typer.Typer()


@app.command()
@flagged
def config(
    settings: Loader,
    as_json: Json = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not the default.")] = False,
) -> None:
    """Show every setting of penstock serve: its value, where that comes from, and the default.

    It takes the flags that serve takes. Sources, the first that has a value wins: flags, the environment, the file .env of this directory, a TOML
    file (--config, or penstock.toml of this directory), the default. Secrets are shown as ***.

    The variables of MQueue and GoMQ (LOG_LEVEL, GOMQ_DATA_DIR) work as well; a name with PENSTOCK_
    wins over them.

    Exits with 0, and with 2 if something is wrong with a setting.

    [bold]Examples[/bold]

      penstock config --changed

      PENSTOCK_HTTP_ADDR=:9000 penstock config --json

      penstock config --config /etc/penstock.toml
    """
    try:
        found = settings()
        if found.has_key:
            require_jwt()
            from penstock.server.keys import keys_of

            keys_of(found)
    except PenstockError as error:
        output.warn(f"penstock: {error}")
        raise typer.Exit(output.WRONG_USE) from None
    for warning in found.warnings:
        output.warn(f"penstock: {warning}")
    if as_json:
        output.print_json(as_object(found, changed=changed))
        return
    table = output.table("", "setting", "value", "source", "default")
    for panel, rows in PANELS.items():
        shown = [row for row in rows if not changed or found.sources[row.name].kind != "default"]
        if shown:
            table.add_section()
            table.add_row(f"[bold]{panel}[/bold]")
        for row in shown:
            table.add_row(
                row.name,
                output.harmless(_text(found.shown(row.name))),
                output.harmless(str(found.sources[row.name])),
                _text(plain(row.default)),
            )
    output.console().print(table)


def as_object(found: Settings, *, changed: bool = False) -> dict[str, Any]:
    """Settings by name: value, source, default."""
    return {
        row.name: {
            "value": found.shown(row.name),
            "source": str(found.sources[row.name]),
            "default": plain(row.default),
            "variable": row.variable,
        }
        for rows in PANELS.values()
        for row in rows
        if not changed or found.sources[row.name].kind != "default"
    }


def _text(value: Any) -> str:
    if value is None or value == "" or value == []:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, list) else str(value)
