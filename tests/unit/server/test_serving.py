"""What is read again on SIGHUP, and who may reach a server without a key."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)
from jwt.algorithms import ECAlgorithm

from penstock.broker.opening import in_memory
from penstock.errors import InvalidArgument, Unauthorized
from penstock.server import serving
from penstock.server.keys import Signer
from penstock.server.listening import bound_sockets
from penstock.server.quantity import Address
from penstock.server.settings import load

SECRET = "0123456789abcdef0123456789abcdef"
CLAIMS = {"sub": "worker", "exp": 1 << 32}


def pair() -> tuple[Signer, str]:
    """What signs, and the public key of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return Signer.from_pem(private), public.decode()


def as_jwks(public: str) -> str:
    """A public key as a set of one."""
    key = load_pem_public_key(public.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return json.dumps({"keys": [ECAlgorithm.to_jwk(key, as_dict=True) | {"alg": "ES256"}]})


@pytest.mark.parametrize(("setting", "stored"), [("jwt_public_key", str), ("jwt_jwks", as_jwks)])
def test_a_hangup_leaves_the_old_public_key_in_force(
    tmp_path: Path, setting: str, stored: Callable[[str], str]
) -> None:
    (old, old_public), (new, new_public) = pair(), pair()
    file = tmp_path / "key"
    file.write_text(stored(old_public))
    with closing(in_memory()) as port:
        settings = load({"storage": "memory", setting: str(file)})
        assembled = serving.assemble(settings, port, dict, serving.Admission.of(settings))
        accounts = assembled.app.front.accounts  # type: ignore[attr-defined]
        assert accounts.caller(f"Bearer {old.sign(CLAIMS)}").subject == "worker"
        file.write_text(stored(new_public))
        assembled.reload()
        assert accounts.caller(f"Bearer {new.sign(CLAIMS)}").subject == "worker"
        with pytest.raises(Unauthorized):
            accounts.caller(f"Bearer {old.sign(CLAIMS)}")
        file.unlink()
        with pytest.raises(InvalidArgument):
            assembled.reload()
        assert accounts.caller(f"Bearer {new.sign(CLAIMS)}").subject == "worker"


@pytest.mark.parametrize(
    "given", [{"jwt_secret": SECRET}, {"jwt_public_key": pair()[1]}], ids=lambda one: next(iter(one))
)
def test_a_key_that_is_in_no_file_is_said_to_be_read_again(
    caplog: pytest.LogCaptureFixture, given: dict[str, Any]
) -> None:
    with closing(in_memory()) as port:
        settings = load({"storage": "memory", **given})
        assembled = serving.assemble(settings, port, dict, serving.Admission.of(settings))
        with caplog.at_level(logging.INFO, "penstock.server"):
            assembled.reload()
    assert [record.getMessage() for record in caplog.records] == [
        "the key of tokens was not read again: it is in no file; start the server again to change it"
    ]


def test_a_certificate_that_fails_keeps_keys_from_being_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        ssl = None

        def reload(self) -> bool:
            raise RuntimeError("a mistake")

    async def app(*_: object) -> None: ...

    read: list[str] = []
    monkeypatch.setattr(serving, "tls_of", lambda _: Failing())
    found = serving.Serving(load({"storage": "memory"}), serving.assemble)
    found._assembled = serving.Assembled(app, lambda: None, lambda: read.append("keys"))
    found._on_hangup()
    assert read == ["keys"]
    assert "the certificate was not read again" in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.com"])
def test_without_a_key_everybody_can_connect(host: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no key"):
        serving.require_key_or_loopback(load({"host": host}))
    serving.require_key_or_loopback(load({"host": host, "jwt_secret": SECRET}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_server_for_this_machine_only_needs_a_key(host: str) -> None:
    serving.require_key_or_loopback(load({"host": host}))


def test_a_host_that_is_none_is_an_obscure_error() -> None:
    with pytest.raises(InvalidArgument, match=r"cannot listen on 192\.0\.2\.1:0"):
        bound_sockets(Address("192.0.2.1", 0))


@pytest.mark.parametrize(
    ("setting", "bound"),
    [
        ("max_body_size", "body_bytes_max"),
        ("max_staged_size", "staged_bytes_max"),
        ("max_wait", "wait_s_max"),
        ("max_long_polls", "long_polls_max"),
        ("max_long_polls_per_caller", "long_polls_per_caller_max"),
    ],
)
def test_a_limit_that_was_chosen_is_not_in_force(setting: str, bound: str) -> None:
    with closing(in_memory()) as port:
        settings = load({"storage": "memory", setting: "1234"})
        assembled = serving.assemble(settings, port, dict, serving.Admission.of(settings))
    assert getattr(assembled.app.front.bounds, bound) == 1234  # type: ignore[attr-defined]
