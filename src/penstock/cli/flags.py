"""The flags of `penstock serve` and `penstock config`: one for each setting that is no secret, made from the table of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.server.settings import PANELS, TOML, Setting, Settings, load_here

Command = Callable[..., None]

#: The settings are looked for when a command asks for them, so that it can say in its own way what is wrong with them.
Loader = Callable[[], Settings]


def flagged(command: Command) -> Command:
    """A command that takes the flags of all settings: it is called with `settings` in their place."""
    own = [
        found.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, found in inspect.signature(command, eval_str=True).parameters.items()
        if name != "settings"
    ]
    flags = list(_flags())

    def called(directory: Path | None, config: Path | None, **given: Any) -> None:
        mine = {found.name: given.pop(found.name) for found in own}
        if directory is not None:
            given["data_dir"] = directory
        command(settings=lambda: load_here(given, config), **mine)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature([_directory(), _config(), *flags, *own])  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called


def _directory() -> inspect.Parameter:
    kind = Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="The queues' directory: --data-dir.", show_default=False),
    ]
    return _parameter("directory", kind)  # fmt: skip


def _config() -> inspect.Parameter:
    kind = Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help=f"A TOML file; {TOML} of this directory, if it is there.",
            show_default=False,
        ),
    ]
    return _parameter("config", kind)  # fmt: skip


def _flags() -> Iterator[inspect.Parameter]:
    for panel, rows in PANELS.items():
        if panel == "Network":
            yield _parameter("host", _kind(str, "--host", "HOST", "the host of --http-addr", panel))
            yield _parameter("port", _kind(str, "--port", "PORT", "the port of --http-addr", panel))
        for row in rows:
            if row.secret:
                name = f"{row.name}_file"
                yield _parameter(name, _kind(str, f"{row.flag}-file", "FILE", f"a file that holds it: {row.help}", panel, row))  # fmt: skip
            else:
                kind: type = bool if row.is_switch else str
                decl = f"{row.flag}/--no-{row.flag[2:]}" if row.is_switch else row.flag
                yield _parameter(row.name, _kind(kind, decl, None if row.is_switch else "", row.help, panel, row))  # fmt: skip


def _kind(
    kind: Any, flag: str, metavar: str | None, help: str, panel: str, row: Setting | None = None
) -> Any:
    default = "" if row is None or row.secret else _shown(row.default)
    hidden = row is not None and row.awaits is not None
    option = typer.Option(
        flag,
        metavar=metavar or None,
        help=help + default,
        rich_help_panel=panel,
        show_default=False,
        hidden=hidden,
    )
    return Annotated[kind | None, option]


def _shown(default: Any) -> str:
    if default is None or default in ("", ()):
        return ""
    if isinstance(default, bool):
        return " (on)" if default else " (off)"
    return f" ({default:g})" if isinstance(default, float) else f" ({default})"


def _parameter(name: str, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
