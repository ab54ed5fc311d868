"""Where a command's queues are: in a directory, or at a server. Commands are given a `Broker` of either, and do not know which.

    penstock queues ./queue
    penstock queues http://127.0.0.1:8080
    penstock queues --url http://127.0.0.1:8080
    PENSTOCK_URL=http://127.0.0.1:8080 penstock queues

The first argument says where, unless `--url` does: then there is no such argument, and the queue comes first. `PENSTOCK_URL` does the same, but only
for want of anything else: a first argument that is an address, or has a slash (`./queue`), goes before it. No queue's name has a slash, so this is
never in doubt.

Whoever opens a directory owns it, and a mere look creates nothing. A token is never shown: neither in an error nor in what a command prints.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import typer
from typer.core import TyperCommand

from penstock.broker.opening import on_disk
from penstock.broker.port import Port
from penstock.broker.state_reader import StateReader
from penstock.broker.sync import Broker
from penstock.cli import output
from penstock.client import connect
from penstock.errors import CorruptJournal, DirectoryLocked, InvalidArgument
from penstock.journal.view import DirectoryView
from penstock.model.commands import DEFAULT_NAMESPACE
from penstock.model.damage import Damage
from penstock.model.stats import BrokerStats
from penstock.names import check_name

URL: Final = "PENSTOCK_URL"
TOKEN: Final = "PENSTOCK_TOKEN"
CA: Final = "PENSTOCK_CA"

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="One JSON object per message and line; bytes as base64.")
]

_PANEL: Final = "Where"
_OPTIONS: Final = {
    "url": Annotated[str | None, typer.Option("--url", metavar="URL", envvar=URL, help="A server's address, in place of the directory.", show_default=False, rich_help_panel=_PANEL)],
    "token": Annotated[str | None, typer.Option("--token", metavar="TOKEN", envvar=TOKEN, help="What the server lets you in by; others on this machine do not see the variable.", show_default=False, rich_help_panel=_PANEL)],
    "ca": Annotated[Path | None, typer.Option("--ca", metavar="FILE", envvar=CA, help="The certificate of an authority to trust, or the server's own.", show_default=False, rich_help_panel=_PANEL)],
    "verify": Annotated[bool, typer.Option("--verify/--no-verify", help="Only talk to a server whose certificate is trusted.", rich_help_panel=_PANEL)],
    "namespace": Annotated[str, typer.Option("--namespace", metavar="NAME", help="The namespace.", rich_help_panel=_PANEL)],
}  # fmt: skip
_ARGUMENT: Final = Annotated[
    str,
    typer.Argument(
        metavar="DIR|URL", help="The queues' directory, or a server's address.", show_default=False
    ),
]

#: What is rather an address without its beginning than a directory.
_BARE_ADDRESS: Final = re.compile(r"(\w[\w.-]*|\[[0-9a-fA-F:]+\]):\d{1,5}(/.*)?")

Command = Callable[..., None]


class Place(msgspec.Struct, frozen=True):
    """A directory, or a server; and the namespace in it."""

    path: Path | None
    url: str | None = None
    token: str | None = None
    ca: Path | None = None
    verify: bool = True
    namespace: str = DEFAULT_NAMESPACE

    @classmethod
    def of(
        cls,
        given: str,
        *,
        token: str | None = None,
        ca: Path | None = None,
        verify: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Place:
        """What somebody typed."""
        check_name(namespace, kind="namespace")
        if output.is_address(given):
            _check_address(given)
            return cls(None, given, token or None, ca, verify, namespace)
        if _BARE_ADDRESS.fullmatch(given) and not Path(given).exists():
            raise InvalidArgument(
                f"{given!r} is neither a directory nor an address; did you mean http://{given}?"
            )
        return cls(Path(given), namespace=namespace)

    def __str__(self) -> str:
        return self.url or str(self.path)

    def __repr__(self) -> str:
        return f"Place({str(self)!r})"  # without its token

    def typed(self) -> str:
        """As it may be typed behind a command."""
        within = "" if self.namespace == DEFAULT_NAMESPACE else f" --namespace {self.namespace}"
        return f"{output.argument(str(self))}{within}"


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, named = None, False
    if parts is not None and "@" in parts.netloc:
        raise InvalidArgument(
            f"an address has no user and no password in it; a token is given by {TOKEN} or --token"
        )
    if parts is None or not named:
        raise InvalidArgument(f"{url!r} is not an address such as http://127.0.0.1:8080")
    if parts.scheme.lower() not in ("http", "https"):
        raise InvalidArgument(f"{parts.scheme}:// is not spoken here; give http://… or https://…")


# --- on the command line ---


class PlacedCommand(TyperCommand):
    """A command whose first argument may be left out, because `--url` or `PENSTOCK_URL` says it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        found, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        first, url = found.get("place"), found.get("url")
        first = first if isinstance(first, str) else None
        if isinstance(url, str):
            if first is not None and (_says_where(first) or self._takes_only_a_place()):
                ctx.fail(f"Give one of --url and {first!r}")
            args = [url, *args]
        elif (known := os.environ.get(URL)) and not (
            first is not None and (_says_where(first) or self._takes_only_a_place())
        ):
            args = [known, *args]
        return super().parse_args(ctx, args)

    def _takes_only_a_place(self) -> bool:
        return sum(found.param_type_name == "argument" for found in self.params) == 1


def _says_where(argument: str) -> bool:
    return "/" in argument or argument in (".", "..")


def placed(app: typer.Typer) -> Callable[[Command], Command]:
    """Add a command to the application. It has a parameter `place: Place`, and gets the argument and the options that say it."""

    def register(command: Command) -> Command:
        app.command(command.__name__, cls=PlacedCommand)(_with_options(command))
        return command

    return register


def _with_options(command: Command) -> Command:
    own = inspect.signature(command, eval_str=True).parameters.values()
    given = [
        found.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if found.name != "place"
        else _parameter("place", _ARGUMENT, inspect.Parameter.empty)
        for found in own
    ]
    defaults = {"namespace": DEFAULT_NAMESPACE, "verify": True}
    where = [_parameter(name, kind, defaults.get(name)) for name, kind in _OPTIONS.items()]

    def called(place: str, **given: Any) -> None:
        said = {name: given.pop(name) for name in _OPTIONS}
        del said["url"]  # it is in its place by now
        with output.answering(place):
            found = Place.of(place, **said)
        command(place=found, **given)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature([*given, *where])  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


# --- opening ---


@contextmanager
def opened(
    place: Place, *, create: bool = False, patience_s: float | None = None, wait_s: float = 0, **settings: Any
) -> Iterator[tuple[Broker, Port]]:
    """A place's broker, and its port. A directory must exist, unless it may be created; `settings` are those of its journal.

    `patience_s` is how long a call tries to reach a server, `wait_s` how long connecting waits for
    one that is not there yet.
    """
    if place.path is None:
        with connect(str(place.url), **connection(place, patience_s, wait_s)) as broker:
            yield broker, broker._port
        return
    if not create:
        require_existing(place.path)
    with telling_of_servers():
        port = on_disk(place.path, **settings)
    with Broker(port) as broker:
        warn_of_damage(broker.stats(), place.path)
        yield broker if place.namespace == DEFAULT_NAMESPACE else broker.namespace(place.namespace), port


@contextmanager
def looked_at(place: Place, *, patience_s: float | None = None) -> Iterator[tuple[Broker, Port]]:
    """The same for a command that only looks: a directory that another process owns is read from outside, and stderr says so."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(opened(place, patience_s=patience_s))
        except DirectoryLocked as error:
            if place.path is None:
                raise
            found = stack.enter_context(_read(place, place.path, error.holder))
        yield found


@contextmanager
def _read(place: Place, path: Path, holder: str | None) -> Iterator[tuple[Broker, Port]]:
    port = StateReader(path)
    output.warn(f"penstock: {reading_from_outside(path, holder, port)}")
    with Broker(port) as broker:
        _warn_of(port.damage, path)
        yield broker if place.namespace == DEFAULT_NAMESPACE else broker.namespace(place.namespace), port


def reading_from_outside(path: Path, holder: str | None, port: StateReader) -> str:
    synced = output.moment(port.mark.time_us)
    return f"{holder} has {path} open: this is what its journal says, read-only, synced {synced}"


def connection(place: Place, patience_s: float | None = None, wait_s: float = 0) -> dict[str, Any]:
    """How to connect to a server."""
    said = {"token": place.token, "namespace": place.namespace, "ca": place.ca, "verify": place.verify, "wait": wait_s}  # fmt: skip
    return said if patience_s is None else {**said, "timeout": patience_s}


@contextmanager
def telling_of_servers() -> Iterator[None]:
    """Whoever finds a directory in use is told what to do if a server has it."""
    try:
        yield
    except DirectoryLocked as error:
        said = f"{error}. If that is a server, give its address in place of the directory: http://HOST:PORT"
        raise DirectoryLocked(said, holder=error.holder) from None


def require_existing(path: Path) -> None:
    """Raise unless there are queues already: opening a directory would make them."""
    if not path.is_dir():
        raise CorruptJournal(f"{path} does not exist, or is not a directory; `penstock publish` makes one")
    DirectoryView(path.absolute()).directory.require_journal()


def warn_of_damage(found: BrokerStats, path: Path) -> None:
    _warn_of(found.journal.damage, path)


def _warn_of(damage: list[Damage], path: Path) -> None:
    if damage:
        what = f"{len(damage)} ranges of {path} are damaged and are left out"
        output.warn(f"penstock: {what}: see penstock journal verify {output.argument(path)}")
