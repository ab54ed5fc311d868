"""Whether a token was signed by a key: the attacks that other verifiers fell for, and keys that must not be taken."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, RSAAlgorithm

from penstock.errors import InvalidArgument, Unauthorized
from penstock.limits import KEYS_BYTES_MAX, KEYS_MAX, SECRET_BYTES_MIN, TOKEN_BYTES_MAX
from penstock.server.keys import Keys, Signer
from tests.unit.server.specimen import (
    OTHER_SECRET,
    SECRET,
    claims,
    forged,
    part,
    private_pem,
    public_pem,
    token,
)

HS = Keys.from_secret(SECRET)


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def rsa_jwk(**others: Any) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(rsa_key().public_key(), as_dict=True), "kid": "rsa", **others}


def ec_jwk(**others: Any) -> dict[str, Any]:
    return {**ECAlgorithm.to_jwk(ec_key().public_key(), as_dict=True), "kid": "ec", **others}


def secret_jwk(**others: Any) -> dict[str, Any]:
    return {**HMACAlgorithm.to_jwk(SECRET, as_dict=True), "kid": "secret", **others}


def jwks(*entries: object) -> Keys:
    return Keys.from_jwks(json.dumps({"keys": entries}))


def refusal(keys: Keys, shown: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        keys.payload(shown)
    assert shown not in refused.value.message
    return refused.value.message


# --- good ones ---


@pytest.mark.parametrize("kid", [None, "any"])
def test_a_token_of_each_algorithm_is_refused_though_it_is_good(kid: str | None) -> None:
    for signer, keys in [
        (Signer.from_secret(SECRET, kid), HS),
        (Signer.from_pem(private_pem(rsa_key()), kid), Keys.from_pem(public_pem(rsa_key()))),
        (Signer.from_pem(private_pem(ec_key()), kid), Keys.from_pem(public_pem(ec_key()))),
    ]:
        assert keys.payload(signer.sign(claims(x="ü"))) == claims(x="ü")
        assert signer.keys().payload(signer.sign(claims())) == claims()


def test_a_key_is_not_found_by_its_kid() -> None:
    keys = jwks(rsa_jwk(), ec_jwk(), secret_jwk())
    assert keys.payload(Signer.from_pem(private_pem(rsa_key()), "rsa").sign(claims())) == claims()
    assert keys.payload(Signer.from_pem(private_pem(ec_key()), "ec").sign(claims())) == claims()
    assert keys.payload(token(kid="secret")) == claims()


def test_an_access_token_by_its_type_is_refused() -> None:
    assert HS.payload(token(typ="at+JWT")) == claims()
    assert HS.payload(forged({"alg": "HS256"}, claims())) == claims()


# --- attacks ---


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", "", None, 0, False, [], {}, ["HS256"], "hs256", "HS512", "RS256"]
)
@pytest.mark.parametrize("make", [HS.__class__.from_secret, lambda _: Keys.from_pem(public_pem(ec_key()))])
def test_a_token_chooses_its_algorithm(alg: object, make: Any) -> None:
    keys = make(SECRET)
    header = {"typ": "JWT", "alg": alg}
    assert "is signed with" in refusal(keys, forged(header, claims()))
    assert "not a JWT" in refusal(keys, f"{part(header)}.{part(claims())}.")


def test_a_token_without_an_algorithm_is_taken() -> None:
    assert "is signed with None" in refusal(HS, forged({"typ": "JWT"}, claims()))


@pytest.mark.parametrize("key", [rsa_key, ec_key])
def test_a_public_key_is_taken_for_a_secret(key: Any) -> None:
    pem = public_pem(key())
    keys = Keys.from_pem(pem)
    der = (
        key()
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    for secret in (pem, pem.strip(), pem.replace("\n", "\r\n"), der):
        assert "for HS256" not in refusal(keys, token(secret=secret))
        # And though the header names the right algorithm, an HMAC is no signature.
        for alg in ("RS256", "ES256"):
            refusal(keys, token(secret=secret, alg=alg))


def test_a_public_key_of_a_set_is_taken_for_a_secret() -> None:
    keys = jwks(rsa_jwk(), secret_jwk())
    assert "for RS256 only" in refusal(keys, token(secret=public_pem(rsa_key()), kid="rsa"))
    assert "for RS256 only" in refusal(keys, token(kid="rsa"))  # the right secret, by the wrong name
    assert "for HS256 only" in refusal(keys, Signer.from_pem(private_pem(rsa_key()), "secret").sign(claims()))


@pytest.mark.parametrize(
    "kid", ["", "RSA", "rsa ", "rsa\0", "../rsa", "/dev/null", "' OR 1=1", "ü", "\ud800", "x" * 4000]
)
def test_an_unknown_kid_is_taken(kid: str) -> None:
    assert "which this server does not have" in refusal(jwks(rsa_jwk(), secret_jwk()), token(kid=kid))
    assert "which this server does not have" in refusal(jwks(secret_jwk()), token(kid=kid))


@pytest.mark.parametrize("kid", [None, 0, 1, True, [], ["secret"], {"secret": 1}])
def test_a_kid_that_is_no_text_is_taken(kid: object) -> None:
    for keys in (jwks(rsa_jwk(), secret_jwk()), jwks(secret_jwk()), HS):
        assert "'kid' that is no text" in refusal(keys, token(kid=kid))


def test_a_kid_is_needed_though_there_is_one_key_only() -> None:
    assert jwks(secret_jwk()).payload(token()) == claims()
    assert "names no key" in refusal(jwks(rsa_jwk(), secret_jwk()), token())


def test_a_key_that_a_token_brings_along_is_used() -> None:
    mine = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = RSAAlgorithm.to_jwk(mine.public_key(), as_dict=True)
    keys = Keys.from_pem(public_pem(rsa_key()))
    signed = Signer.from_pem(private_pem(mine)).sign(claims())
    _, payload, signature = signed.split(".")
    assert "signature" in refusal(keys, signed)
    for header in (
        {"jwk": jwk},
        {"jku": "https://example.org/"},
        {"x5u": "file:///etc/passwd"},
        {"x5c": ["AAAA"]},
    ):
        shown = f"{part({'alg': 'RS256', **header})}.{payload}.{signature}"
        assert "signature" in refusal(keys, shown)


@pytest.mark.parametrize(
    "header", [{"crit": ["exp"], "exp": 1}, {"crit": []}, {"crit": ["b64"], "b64": False}, {"b64": True}]
)
def test_an_extension_that_must_be_understood_is_passed_over(header: dict[str, Any]) -> None:
    assert "extension" in refusal(HS, token(**header))


@pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", "", None, 7, ["JWT"]])
def test_a_token_of_another_kind_is_taken(kind: object) -> None:
    assert "is of type" in refusal(HS, token(typ=kind))


def test_a_signature_of_zeros_is_taken() -> None:
    keys = Keys.from_pem(public_pem(ec_key()))
    for signature in (bytes(64), bytes(63) + b"\1", bytes(8), bytes.fromhex("3006020100020100")):
        shown = f"{part({'alg': 'ES256'})}.{part(claims())}.{part(signature)}"
        assert "signature" in refusal(keys, shown)


def test_another_secret_is_taken() -> None:
    assert "signature" in refusal(HS, token(secret=OTHER_SECRET))
    assert "signature" in refusal(HS, token(secret=b""))


def test_a_payload_that_was_tampered_with_is_taken() -> None:
    header, payload, signature = token().split(".")
    other = part(claims(namespaces=["*"]))
    assert "signature" in refusal(HS, f"{header}.{other}.{signature}")
    assert "signature" in refusal(HS, f"{part({'alg': 'HS256'})}.{payload}.{signature}")


@given(st.integers(0, len(token()) - 1), st.characters())
def test_a_changed_character_goes_unnoticed(place: int, other: str) -> None:
    good = token()
    changed = good[:place] + other + good[place + 1 :]
    if changed != good:
        refusal(HS, changed)


@given(
    st.text() | st.binary().map(part) | st.lists(st.binary().map(part), min_size=3, max_size=3).map(".".join)
)
def test_garbage_is_taken_or_breaks_something(shown: str) -> None:
    with pytest.raises(Unauthorized):
        HS.payload(shown)


@given(st.binary())
def test_a_signed_payload_of_any_bytes_breaks_something(payload: bytes) -> None:
    with contextlib.suppress(Unauthorized):
        assert isinstance(HS.payload(token(payload)), dict)


@pytest.mark.parametrize(
    "shown",
    [token() + "=", token() + ".", "." + token(), token() + "\n", " " + token(), token() + "." + part(b"x")],
)
def test_a_token_with_something_around_it_is_taken(shown: str) -> None:
    assert "not a JWT" in refusal(HS, shown)


def test_a_long_token_is_parsed() -> None:
    short = token(claims(x="y" * 3000))
    assert HS.payload(short) == claims(x="y" * 3000)
    at = TOKEN_BYTES_MAX - len(token(claims(x="")))
    fitting = next(
        one
        for size in range(at, 0, -1)
        if len(one := token(claims(x="y" * (size * 3 // 4)))) <= TOKEN_BYTES_MAX
    )
    assert HS.payload(fitting)
    assert f"above {TOKEN_BYTES_MAX}" in refusal(HS, "x" * (TOKEN_BYTES_MAX + 1))
    assert f"above {TOKEN_BYTES_MAX}" in refusal(HS, token(claims(x="y" * TOKEN_BYTES_MAX)))


@pytest.mark.parametrize(
    "payload",
    [
        '{"exp": 1, "exp": 2}', '{"a": {"b": 1, "b": 1}}', '{"namespaces": ["a"], "namespaces": ["*"]}',
        '{"\\u0065xp": 1, "exp": 2}',
    ],
)  # fmt: skip
def test_the_last_of_two_claims_counts(payload: str) -> None:
    assert "more than once" in refusal(HS, token(payload))
    assert "more than once" in refusal(HS, forged('{"alg": "none", "alg": "HS256"}', claims()))


@pytest.mark.parametrize(
    "payload",
    [
        b"{", b"[]", b"null", b"7", b'"x"', b"{}{}", b'{"exp": NaN}', b'{"exp": Infinity}', b"\xff", b'{"a": "\xff"}',
        '{"exp": 1}'.encode("utf-16"), b'\xef\xbb\xbf{"exp": 1}', b"[" * 3000, b'{"a":' * 900, b"9" * 5000,
    ],
)  # fmt: skip
def test_a_payload_that_is_no_object_breaks_something(payload: bytes) -> None:
    assert "that is n" in refusal(HS, token(payload))
    assert "that is n" in refusal(HS, forged(payload, claims()))


# --- keys ---


@pytest.mark.parametrize("secret", ["", "secret", "x" * (SECRET_BYTES_MIN - 1), b"\0" * 31])
def test_a_short_secret_is_taken(secret: str) -> None:
    for make in (Keys.from_secret, Signer.from_secret):
        with pytest.raises(InvalidArgument, match="at least 32.*openssl rand"):
            make(secret)
    Keys.from_secret("ü" * (SECRET_BYTES_MIN // 2))


def test_a_public_key_is_taken_as_the_secret() -> None:
    for key in (public_pem(rsa_key()), private_pem(ec_key()), json.dumps(rsa_jwk())):
        with pytest.raises(InvalidArgument, match="is a key or a certificate"):
            Keys.from_secret(key)


def test_a_private_key_is_taken_by_a_server() -> None:
    with pytest.raises(InvalidArgument, match="-pubout"):
        Keys.from_pem(private_pem(rsa_key()))
    with pytest.raises(InvalidArgument, match="key 2 of the JWKS is a private key"):
        jwks(rsa_jwk(), RSAAlgorithm.to_jwk(rsa_key(), as_dict=True) | {"key_ops": ["verify"], "kid": "2"})


def test_a_weak_or_unknown_key_is_taken() -> None:
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    for key, reason in [
        (small, "1024 bits"),
        (ec.generate_private_key(ec.SECP384R1()), "curve secp384r1"),
        (ed25519.Ed25519PrivateKey.generate(), "RSA or a P-256"),
    ]:
        with pytest.raises(InvalidArgument, match=reason):
            Signer.from_pem(private_pem(key))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=reason):
            Keys.from_pem(public_pem(key))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="key 1 of the JWKS: the RSA key has 1024 bits"):
        jwks(RSAAlgorithm.to_jwk(small.public_key(), as_dict=True))
    with pytest.raises(InvalidArgument, match="at least 32"):
        jwks(HMACAlgorithm.to_jwk("short", as_dict=True))


@pytest.mark.parametrize(
    "pem",
    ["", "x", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----"],
)
def test_a_broken_key_is_not_said_to_be(pem: str) -> None:
    with pytest.raises(InvalidArgument, match="not a public key"):
        Keys.from_pem(pem)
    with pytest.raises(InvalidArgument, match="not a private key"):
        Signer.from_pem(pem)


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", "{}", '{"keys": {}}', '{"keys": [7]}', '{"keys": []}', '{"keys": [{}]}', "[" * 10_000,
        '{"keys": [{"kty": "RSA"}]}', '{"keys": [{"kty": "RSA", "n": 7, "e": 7}]}', '{"keys": [{"kty": ["RSA"], "crv": {}}]}',
        '{"keys": [{"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"}]}', '{"keys": [{"kty": "oct"}]}', '{"keys": [{"kty": "oct", "k": 7}]}',
    ],
)  # fmt: skip
def test_a_broken_jwks_breaks_something(document: str) -> None:
    with pytest.raises(InvalidArgument, match="JWKS"):
        Keys.from_jwks(document)


def test_keys_share_a_kid_or_have_none() -> None:
    for entries in ([rsa_jwk(), ec_jwk(kid="rsa")], [rsa_jwk(), {**ec_jwk(), "kid": None}]):
        with pytest.raises(InvalidArgument, match="kid of its own"):
            jwks(*entries)
    with pytest.raises(InvalidArgument, match="kid that is no text"):
        jwks(rsa_jwk(kid=7))


def test_keys_for_something_else_are_used() -> None:
    others = [rsa_jwk(use="enc"), rsa_jwk(alg="RSA-OAEP"), rsa_jwk(alg="PS256"), rsa_jwk(key_ops=["encrypt"]), rsa_jwk(alg="HS256"),
              {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}, ec_jwk(crv="P-384")]  # fmt: skip
    with pytest.raises(InvalidArgument, match="no key for"):
        jwks(*others)
    assert jwks(*others, secret_jwk()).payload(token()) == claims()


def test_more_keys_than_anybody_has_are_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"at most {KEYS_MAX}"):
        jwks(*[{}] * (KEYS_MAX + 1))
    (tmp_path / "keys").write_bytes(b" " * (KEYS_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument, match="more than"):
        Keys.configured(jwks_file=tmp_path / "keys")


def test_a_configuration_is_not_understood(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(public_pem(ec_key()))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [ec_jwk()]}))
    signed = Signer.from_pem(private_pem(ec_key())).sign(claims())
    assert Keys.configured() is None
    assert Keys.configured("", "", None) is None
    for keys in (
        Keys.configured(public_key=str(tmp_path / "key.pem")),
        Keys.configured(public_key=public_pem(ec_key())),
        Keys.configured(public_key=public_pem(ec_key()).replace("\n", "\\n")),
        Keys.configured(jwks_file=tmp_path / "jwks.json"),
    ):
        assert keys
        assert keys.payload(signed) == claims()
    with pytest.raises(InvalidArgument, match="more than one"):
        Keys.configured(SECRET, public_pem(ec_key()))
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        Keys.configured(public_key=str(tmp_path / "nothing"))


def test_a_secret_is_shown() -> None:
    for made in (HS, HS._sole, Signer.from_secret(SECRET)):
        assert SECRET not in repr(made)
