"""Opening a directory's queues for one command: whoever opens it owns it, and a mere look creates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.broker.embedded import Embedded
from penstock.broker.opening import on_disk
from penstock.broker.port import BrokerStats
from penstock.broker.sync import Broker
from penstock.cli import output
from penstock.errors import CorruptJournal
from penstock.journal.view import DirectoryView

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The queues' directory.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="One JSON object per message and line; bytes as base64.")
]

#: Messages that are taken, printed and settled together.
AT_ONCE: Final = 100


@contextmanager
def owned(path: Path, *, create: bool = False) -> Iterator[tuple[Broker, Embedded]]:
    """A directory's broker, and its port. It must exist, unless it may be created."""
    if not create:
        require_existing(path)
    port = on_disk(path)
    with Broker(port) as broker:
        warn_of_damage(broker.stats(), path)
        yield broker, port


def require_existing(path: Path) -> None:
    """Raise unless there are queues already: opening a directory would make them."""
    if not path.is_dir():
        raise CorruptJournal(f"{path} does not exist, or is not a directory; `penstock publish` makes one")
    DirectoryView(path.absolute()).directory.require_journal()


def warn_of_damage(found: BrokerStats, path: Path) -> None:
    damage = found.journal.damage
    if damage:
        what = f"{len(damage)} ranges of {path} are damaged and are left out"
        output.warn(f"penstock: {what}: see penstock journal verify {output.argument(path)}")
