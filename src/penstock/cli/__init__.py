"""`penstock …`: the command line.

It needs typer and rich, which an embedded queue does not; so this module imports neither before it knows that they are there, and
without them it says what to install.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Final

from penstock.cli import stopping, streams

NEEDED: Final = ("typer", "rich")

FAILED: Final = 2
INTERRUPTED: Final = 130


def main() -> None:
    """The entry point of the command `penstock`."""
    try:
        if sys.argv[1:2] == ["serve"]:  # its imports take a second, in which a supervisor may stop it
            stopping.sigterm_ends()
        streams.guard()
        status = _run()
        if status != INTERRUPTED:
            sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except OSError as error:
        sys.stderr.write(f"penstock: {streams.reason(error)}\n")
        status = FAILED
    if status == INTERRUPTED:
        streams.give_up_stdout()
        sys.stderr.flush()
        # All is closed. A handler that hangs must not keep a process alive that was told to stop at once, and Python would wait for its thread.
        os._exit(status)
    raise SystemExit(status)


def _run() -> int | str | None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f'penstock: the command line needs {" and ".join(missing)}; install with: pip install "penstock[cli]"\n'
        )
        return 1
    from penstock.cli.app import app

    try:
        app(prog_name="penstock")
    except SystemExit as end:
        return end.code
    return 0
