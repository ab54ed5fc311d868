"""`penstock token`: an account, which is a token and nothing else."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.clock import SECOND_US, Clock, SystemClock
from penstock.errors import InvalidArgument, MissingExtra

if TYPE_CHECKING:
    from penstock.server.keys import Signer

app = typer.Typer()

SECRET: Final = "PENSTOCK_JWT_SECRET"
SECRET_FILE: Final = "PENSTOCK_JWT_SECRET_FILE"
PRIVATE_KEY: Final = "PENSTOCK_JWT_PRIVATE_KEY"
MQUEUE_SECRET: Final = "JWT_SECRET"

#: As the server takes them: MQueue's name counts where there is none of ours.
VARIABLES: Final = ((SECRET, SECRET_FILE, PRIVATE_KEY), (MQUEUE_SECRET,))

DOTENV: Final = Path(".env")


# A row is a line.
# fmt: off
@app.command()
def token(
    namespace: Annotated[list[str] | None, typer.Option("--namespace", "-n", metavar="NAME", help="A namespace, or several by a pattern such as 'team-*'; may be given again. Without it: default.", show_default=False)] = None,
    permission: Annotated[list[str] | None, typer.Option("--permission", "-p", metavar="NAME", help="publish, consume or admin, or '*' for all; may be given again. Without it: publish and consume.", show_default=False)] = None,
    expires: Annotated[str, typer.Option(metavar="TIME", help="For how long from now: 90 (seconds), 15m, 1h30m, 30d.")] = "1h",
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="Who it is for; stands in the server's log.")] = None,
    deny_namespace: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Closed to it, whatever --namespace says; may be given again.")] = None,
    deny_permission: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Not permitted, whatever --permission says; may be given again.")] = None,
    audience: Annotated[str | None, typer.Option(metavar="NAME", help="The server that it is for, if that is configured to be one.")] = None,
    issuer: Annotated[str | None, typer.Option(metavar="NAME", help="Who makes it, if the server asks for that.")] = None,
    secret_file: Annotated[Path | None, typer.Option(metavar="FILE", help=f"The secret is in a file (HS256). Otherwise {SECRET}, from the environment or .env.")] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help=f"The private key, in PEM (RS256, ES256). Otherwise {PRIVATE_KEY}, likewise.")] = None,
    kid: Annotated[str | None, typer.Option("--kid", metavar="NAME", help="The name of the key, for a server that has several (JWKS).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the token and its claims as JSON.")] = False,
) -> None:
    # fmt: on
    """Print a token for a server: who has it may do what it says, until it expires.

    It is signed with the secret that the server has too, or with the private key whose public one the server has. Whoever can read that can make
    any token; a token itself cannot be taken back before it expires. Nothing is sent anywhere.

    [bold]Examples[/bold]

      export PENSTOCK_JWT_SECRET="$(openssl rand -base64 32)"      [dim]# for the server and for this[/dim]

      penstock token --namespace tenant-a

      penstock token --namespace 'team-*' --deny-namespace team-secret --permission consume --expires 30d --subject report

      penstock token --namespace '*' --permission '*' --subject operator      [dim]# everything[/dim]

      curl -H "Authorization: Bearer $(penstock token -n tenant-a)" http://127.0.0.1:8080/v1/namespaces/tenant-a/queues

      penstock token -n tenant-a --key-file key.pem --kid 2026-11      [dim]# RS256 or ES256[/dim]
    """
    with output.answering(DOTENV):
        require_jwt()
        signer = _signer(secret_file, key_file, kid)
        claims = _claims(namespace, permission, deny_namespace, deny_permission)
        named = {"sub": subject, "aud": audience, "iss": issuer}
        claims |= {name: value for name, value in named.items() if value is not None}
        made, claims = sign(signer, claims, expires, SystemClock())
        if as_json:
            output.print_json({"token": made, "claims": claims})
        else:
            sys.stdout.write(f"{made}\n")


def sign(signer: Signer, claims: dict[str, Any], expires: str, clock: Clock) -> tuple[str, dict[str, Any]]:
    """A token with these claims for some time from now, and all that it says. A server would take it: that is tried."""
    from penstock.server import quantity
    from penstock.server.accounts import Accounts

    try:
        lasting_s = quantity.seconds(expires)
    except ValueError as error:
        raise InvalidArgument(f"--expires is {expires!r}; {error}") from None
    now_s = clock.now_us() // SECOND_US
    claims = {**claims, "iat": now_s, "exp": now_s + max(1, round(lasting_s))}
    made = signer.sign(claims)
    accounts = Accounts(signer.keys(), clock=clock, audience=claims.get("aud"), issuer=claims.get("iss"))
    accounts.caller_by_token(made)
    return made, claims


def _claims(
    namespaces: list[str] | None,
    permissions: list[str] | None,
    denied_namespaces: list[str] | None,
    denied_permissions: list[str] | None,
) -> dict[str, Any]:
    from penstock.server.accounts import NAMESPACES_DEFAULT, PERMISSIONS_DEFAULT

    denied = {"namespaces": denied_namespaces, "permissions": denied_permissions}
    denied = {name: value for name, value in denied.items() if value}
    allowed = {
        "namespaces": namespaces or [*NAMESPACES_DEFAULT],
        "permissions": permissions or [*PERMISSIONS_DEFAULT],
    }
    return allowed | ({"deny": denied} if denied else {})


def require_jwt() -> None:
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise MissingExtra('tokens need PyJWT and cryptography; install with: pip install "penstock[server]"')


# --- the key ---


def _signer(secret_file: Path | None, key_file: Path | None, kid: str | None) -> Signer:
    """Return the key that a flag, the environment or `.env` names; MQueue's name comes last."""
    from penstock.server.keys import MAKE_A_SECRET, Signer, read

    if secret_file is not None and key_file is not None:
        raise InvalidArgument("--secret-file and --key-file are two keys; give one of them")
    if secret_file is not None:
        return Signer.from_secret(_secret_in(secret_file), kid)
    if key_file is not None:
        return Signer.from_pem(read(key_file, "the private key"), kid)
    places = (("the environment", os.environ), (str(DOTENV), _dotenv()))
    for names, (where, variables) in product(VARIABLES, places):
        if found := {name: variables[name] for name in names if variables.get(name)}:
            return _of_variables(found, where, kid)
    raise InvalidArgument(
        f"there is no key to sign with: set {SECRET} (or {PRIVATE_KEY}) in the environment or in .env as the server has it, "
        f"or give --secret-file or --key-file. A new secret: {MAKE_A_SECRET}"
    )


def _of_variables(found: dict[str, str], where: str, kid: str | None) -> Signer:
    from penstock.server.keys import Signer, in_pem

    if PRIVATE_KEY in found and len(found) > 1:
        raise InvalidArgument(
            f"{' and '.join(found)} are two keys, both set in {where}; choose with --secret-file or --key-file"
        )
    try:
        if PRIVATE_KEY in found:
            return Signer.from_pem(in_pem(found[PRIVATE_KEY], "the private key"), kid)
        secret = found.get(SECRET) or found.get(MQUEUE_SECRET) or _secret_in(Path(found[SECRET_FILE]))
        return Signer.from_secret(secret, kid)
    except InvalidArgument as error:
        raise InvalidArgument(f"{' and '.join(found)} ({where}): {error}") from None


def _secret_in(path: Path) -> str:
    """The secret in a file. An editor ends its last line, and that is not meant."""
    from penstock.server.keys import read

    return read(path.expanduser(), "the secret's file").rstrip("\r\n")


def _dotenv() -> dict[str, str]:
    from penstock.server import dotenv
    from penstock.server.keys import read

    if not DOTENV.is_file():
        return {}
    return {name: line.value for name, line in dotenv.parse(read(DOTENV, "the file")).items()}
