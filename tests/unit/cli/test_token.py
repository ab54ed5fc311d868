"""What `penstock token` prints, where it takes its key from, and that a server takes what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.clock import SystemClock
from penstock.server.accounts import Accounts, Caller
from penstock.server.keys import Keys
from tests.unit.server.specimen import OTHER_SECRET, SECRET, private_pem, public_pem


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without `.env`, and an environment without keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("JWT_SECRET", "PENSTOCK_JWT_SECRET", "PENSTOCK_JWT_SECRET_FILE", "PENSTOCK_JWT_PRIVATE_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: object, **environ: str) -> Result:
    return CliRunner().invoke(app, ["token", *map(str, arguments)], env=environ)


def printed(*arguments: object, **environ: str) -> str:
    done = run(*arguments, **environ)
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return done.stdout.strip()


def caller(token: str, keys: Keys | None = None, **settings: Any) -> Caller:
    return Accounts(keys or Keys.from_secret(SECRET), clock=SystemClock(), **settings).caller(
        f"Bearer {token}"
    )


def complaint(*arguments: object, **environ: str) -> str:
    done = run(*arguments, **environ)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_token_says_something_else_than_was_asked() -> None:
    plain = caller(printed(PENSTOCK_JWT_SECRET=SECRET))
    assert plain.namespaces(["default", "a"]) == ["default"]
    assert plain.permissions == {"publish", "consume"}
    made = printed("-n", "team-*", "--namespace", "x", "-p", "consume", "--permission", "admin", "--deny-namespace", "team-secret",
                   "--deny-permission", "admin", "--subject", "report", "--expires", "30d", PENSTOCK_JWT_SECRET=SECRET)  # fmt: skip
    found = caller(made)
    assert found.subject == "report"
    assert found.namespaces(["team-a", "team-secret", "x", "default"]) == ["team-a", "x"]
    assert found.permissions == {"consume"}
    everything = caller(printed("-n", "*", "-p", "*", PENSTOCK_JWT_SECRET=SECRET))
    assert everything.is_admin_of_all


def test_a_token_lasts_for_another_time() -> None:
    for given, seconds in (("90", 90), ("1h30m", 5400), ("30d", 30 * 86_400), ("1ms", 1)):
        said = json.loads(run("--expires", given, "--json", PENSTOCK_JWT_SECRET=SECRET).stdout)
        assert said["claims"]["exp"] - said["claims"]["iat"] == seconds
        assert said["token"].count(".") == 2


def test_a_token_is_for_no_audience() -> None:
    made = printed("--audience", "penstock", "--issuer", "us", PENSTOCK_JWT_SECRET=SECRET)
    assert caller(made, audience="penstock", issuer="us").subject


def test_a_key_is_taken_from_somewhere_else(place: Path) -> None:
    (place / "secret").write_text(SECRET + "\n")
    (place / "other").write_text(OTHER_SECRET)
    (place / ".env").write_text(f"PENSTOCK_JWT_SECRET='{SECRET}'\nOTHER=1\n")
    assert caller(printed()).subject
    (place / ".env").write_text(f"PENSTOCK_JWT_SECRET='{OTHER_SECRET}'\n")
    assert caller(printed(PENSTOCK_JWT_SECRET=SECRET)).subject
    assert caller(printed(PENSTOCK_JWT_SECRET_FILE=str(place / "secret"))).subject
    assert caller(printed("--secret-file", "secret", PENSTOCK_JWT_SECRET=OTHER_SECRET)).subject
    assert caller(printed("--secret-file", "other"), Keys.from_secret(OTHER_SECRET)).subject


def test_secret_may_have_the_name_of_mqueue(place: Path) -> None:
    assert caller(printed(JWT_SECRET=SECRET)).subject
    assert "JWT_SECRET (the environment): the JWT secret has 6 bytes" in complaint(JWT_SECRET="secret")
    (place / ".env").write_text(f"PENSTOCK_JWT_SECRET={SECRET}\n")
    assert caller(printed(JWT_SECRET=OTHER_SECRET)).subject


def test_secret_given_as_a_private_key_is_in_no_error() -> None:
    assert SECRET not in complaint(PENSTOCK_JWT_PRIVATE_KEY=SECRET)


def test_a_private_key_is_not_used(place: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    keys = Keys.from_pem(public_pem(key))
    (place / "key.pem").write_text(private_pem(key))
    assert caller(printed("--key-file", "key.pem", "--kid", "2026"), keys).subject
    assert caller(printed(PENSTOCK_JWT_PRIVATE_KEY="key.pem"), keys).subject
    assert caller(printed(PENSTOCK_JWT_PRIVATE_KEY=private_pem(key)), keys).subject
    one_line = private_pem(key).replace("\n", "\\n")
    (place / ".env").write_text(f'PENSTOCK_JWT_PRIVATE_KEY="{one_line}"\n')
    assert caller(printed(), keys).subject
    assert "two keys" in complaint(PENSTOCK_JWT_PRIVATE_KEY="key.pem", PENSTOCK_JWT_SECRET=SECRET)
    assert "two keys" in complaint("--key-file", "key.pem", "--secret-file", "x")


def test_what_is_wrong_is_not_said(place: Path) -> None:
    assert "no key to sign with" in complaint()
    assert "at least 32. Make one with: openssl" in complaint(PENSTOCK_JWT_SECRET="secret")
    assert "cannot be read: No such file" in complaint("--secret-file", "nothing")
    assert "cannot be read: No such file" in complaint("--key-file", "nothing")
    (place / "public.pem").write_text(public_pem(ec.generate_private_key(ec.SECP256R1())))
    assert "not a private key" in complaint("--key-file", "public.pem")
    for option, value, reason in (
        ("--namespace", "a b", "no name of a namespace"),
        ("--permission", "write", "publish, consume and admin"),
        ("--deny-namespace", "", "no name of a namespace"),
        ("--subject", "a\nb", "printable"),
        ("--expires", "soon", "--expires is 'soon'; give a length of time"),
        ("--expires", "0", "more than 0 seconds"),
        ("--subject", "x" * 9000, "above 8192"),
    ):
        assert reason in complaint(option, value, PENSTOCK_JWT_SECRET=SECRET)
    (place / ".env").write_text("nonsense\n")
    assert ".env, line 1" in complaint()
