"""`penstock …`: the command line.

It needs typer and rich, which an embedded queue does not; so this module imports neither before it knows that they are there, and
without them it says what to install.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

NEEDED: Final = ("typer", "rich")


def main() -> None:
    """The entry point of the command `penstock`."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f'penstock: the command line needs {" and ".join(missing)}; install with: pip install "penstock[cli]"\n'
        )
        raise SystemExit(1)
    from penstock.cli.app import app

    app(prog_name="penstock")
