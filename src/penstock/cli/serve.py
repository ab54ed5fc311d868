"""`penstock serve`: a directory's queues, for everyone on the network."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import typer

from penstock.cli import output
from penstock.cli.flags import Loader, flagged
from penstock.errors import PenstockError

app = typer.Typer()

#: What serving needs beside the command line.
NEEDED = ("uvicorn", "uvloop", "jwt", "structlog", "prometheus_client")


@app.command()
@flagged
def serve(settings: Loader) -> None:
    """Serve a directory's queues over HTTP, until SIGTERM or Ctrl-C.

    Without a key (PENSTOCK_JWT_SECRET, --jwt-public-key, --jwt-jwks) it listens on this machine only, and everybody on it may do everything. With one,
    callers show a token: penstock token makes it.

    Every flag may also be given as a variable (--http-addr as PENSTOCK_HTTP_ADDR), in a file .env, or in a TOML file, in that order: penstock config
    shows what is in force, and where it came from.

    The first signal lets requests finish, the second cuts them; the broker is closed and synced either way. SIGHUP reads certificate and keys again.

    Exits with 0 when it was told to stop, with 1 if the journal failed, with 2 if a setting is wrong or the port is taken, with 3 if somebody else has the
    directory open, and with 130 if it was stopped at once.

    [bold]Examples[/bold]

      penstock serve                                     [dim]# ./data on http://127.0.0.1:8080[/dim]

      penstock serve ./queue --port 9000 --durability interval

      penstock serve --storage memory --port 0           [dim]# to try: any free port, nothing is kept[/dim]

      penstock serve --tls-self-signed                   [dim]# curl -k https://127.0.0.1:8080/health[/dim]

      PENSTOCK_JWT_SECRET="$(openssl rand -base64 32)" penstock serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem

      penstock serve --config /etc/penstock.toml
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        output.warn(
            f'penstock: serving needs {", ".join(missing)}; install with: pip install "penstock[server]"'
        )
        raise typer.Exit(output.WRONG_USE)
    from penstock.server import serving, threads

    try:
        code = serving.serve(settings())
    except PenstockError as error:
        output.warn(f"penstock: {error}")
        code = serving.exit_code_of(error)
    if threads.any_busy():  # what Spark had asked for, or a recovery: see `threads`
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)
