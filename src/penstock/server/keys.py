"""The keys that tokens are signed with, and whether a token was.

A token is a JSON Web Token in its compact form (RFC 7519), ``header.payload.signature``, each part in base64url:

    {"alg": "HS256", "typ": "JWT"} . {"sub": "billing", "exp": 1767229200, "namespaces": ["tenant-a"]} . signature

What always holds:

- **A key has one algorithm, and brings it along.** What the header of a token says is compared with it and decides nothing. So ``none``
  verifies nothing, and a public key is never taken for a secret (both are how other verifiers were deceived).
- **Keys come from the configuration only.** The header may choose among them by ``kid``; keys and addresses in it (``jwk``, ``jku``,
  ``x5c``, ``x5u``) are not looked at. With a single key no ``kid`` is needed; one that names another key is refused.
- **Nothing is read of a token's payload before its signature is right**, and nothing at all of one that is too long.
- A name that occurs twice in a header or a payload is refused: readers differ in which of the two they take.
- Extensions that must be understood (``crit``) are not, so such a token is refused. So is a token of another kind by its ``typ``.

Everything that is wrong with a token is `Unauthorized`, with a sentence that names what is wrong and never shows the token. Everything
that is wrong with a key is `InvalidArgument`, when the keys are made: a server with a weak key does not start.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, RSAAlgorithm

from penstock import argument
from penstock.errors import InvalidArgument, Unauthorized
from penstock.limits import (
    KEYS_BYTES_MAX,
    KEYS_MAX,
    RSA_BITS_MIN,
    SECRET_BYTES_MIN,
    TOKEN_BYTES_MAX,
)
from penstock.server.settings import Settings, shown_path

Algorithm = Literal["HS256", "RS256", "ES256"]
"""What a key may be for."""

MAKE_A_SECRET: Final = "openssl rand -base64 32"

_BEGIN: Final = "-----BEGIN "
_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
_KINDS: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_BY_KIND: Final[Mapping[str, Algorithm]] = {"oct": "HS256", "RSA": "RS256", "EC P-256": "ES256"}


class Key(msgspec.Struct, frozen=True):
    """A key that verifies, the one algorithm it is for, and the name that tokens know it by."""

    algorithm: Algorithm
    material: Any
    kid: str | None = None

    def __repr__(self) -> str:
        return f"Key({self.algorithm}, kid={self.kid!r})"  # a secret must not reach a log


class Keys:
    """The keys of a server, and what they say about a token.

    >>> keys = Keys.from_secret("0123456789abcdef0123456789abcdef")
    >>> keys
    Keys(HS256)
    >>> token = Signer.from_secret("0123456789abcdef0123456789abcdef").sign({"sub": "billing"})
    >>> keys.payload(token)
    {'sub': 'billing'}
    >>> Keys.from_secret("secret")
    Traceback (most recent call last):
    ...
    penstock.errors.InvalidArgument: the JWT secret has 6 bytes; HS256 needs at least 32. Make one with: openssl rand -base64 32
    """

    def __init__(self, keys: list[Key]) -> None:
        if not keys:
            raise InvalidArgument("there is no key that a token could be verified with")
        self._sole = keys[0] if len(keys) == 1 else None
        self._by_kid = {key.kid: key for key in keys if key.kid is not None}
        if len(keys) > 1 and len(self._by_kid) < len(keys):
            raise InvalidArgument(
                "of several keys each needs a kid of its own, or a token could not name one"
            )
        self._verifiers = {
            name: jwt.PyJWS(algorithms=[name]) for name in sorted({key.algorithm for key in keys})
        }

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._verifiers)})"

    @classmethod
    def from_secret(cls, secret: str | bytes) -> Keys:
        """HS256 by a secret, which whoever makes tokens shares."""
        return cls([Key("HS256", _secret(secret))])

    @classmethod
    def from_pem(cls, pem: str | bytes) -> Keys:
        """RS256 or ES256 by a public key (or a certificate) in PEM."""
        return cls([_of_public(_public(pem))])

    @classmethod
    def from_jwks(cls, text: str | bytes) -> Keys:
        """The keys of a JWKS document (RFC 7517). Those for encryption, or for algorithms not known here, are left out."""
        entries = _entries(text)
        found = [key for place, entry in enumerate(entries, 1) if (key := _of_jwk(entry, place)) is not None]
        if not found:
            raise InvalidArgument("the JWKS has no key for HS256, RS256 or ES256; give one with a public key")
        return cls(found)

    @classmethod
    def configured(
        cls, secret: str | None = None, public_key: str | None = None, jwks_file: str | Path | None = None
    ) -> Keys | None:
        """The keys that a configuration names, reading files; None if it names none.

        A public key is given in PEM, or as the path of a file.
        """
        given = [value for value in (secret, public_key, jwks_file) if value]
        if len(given) > 1:
            raise InvalidArgument(
                "more than one of a JWT secret, a public key and a JWKS file is configured; give one (a JWKS file may hold several keys)"
            )
        if secret:
            return cls.from_secret(secret)
        if public_key:
            return cls.from_pem(in_pem(public_key, "the JWT public key"))
        return cls.from_jwks(read(Path(jwks_file), "the JWKS file")) if jwks_file else None

    def payload(self, token: str) -> dict[str, Any]:
        """What a token says, if one of the keys signed it; whether that holds now is for `Accounts` to judge."""
        if len(token) > TOKEN_BYTES_MAX:
            _refuse(f"has {len(token)} characters, above {TOKEN_BYTES_MAX}; ask for one with fewer claims")
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            _refuse("is not a JWT: it is not three parts in base64url with dots between")
        header = _object(_decoded(parts[1]), "header")
        key = self._key(header)
        try:
            verified = self._verifiers[key.algorithm].decode_complete(
                token, key.material, algorithms=[key.algorithm]
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            _refuse("has a signature that is not by this server's key")
        return _object(verified["payload"], "payload")

    def _key(self, header: dict[str, Any]) -> Key:
        kind, kid = header.get("typ", "JWT"), header.get("kid")
        if not isinstance(kind, str) or kind.lower() not in _KINDS:
            _refuse(f"is of type {argument.quoted(kind)}; it must be 'JWT'")
        if "crit" in header or "b64" in header:
            _refuse("demands an extension ('crit' or 'b64') that is not known here")
        if "kid" in header and not isinstance(kid, str):
            _refuse("has a 'kid' that is no text")
        key = self._named(kid)
        if header.get("alg") != key.algorithm:
            _refuse(
                f"is signed with {argument.quoted(header.get('alg'))}, but its key is for {key.algorithm} only"
            )
        return key

    def _named(self, kid: str | None) -> Key:
        """The key that a token names; the only one, if that has no name or the token names none."""
        if self._sole is not None and (kid is None or self._sole.kid is None):
            return self._sole
        if kid is None:
            _refuse("names no key ('kid' in its header), and this server has several")
        key = self._by_kid.get(kid)
        if key is None:
            _refuse(f"names the key {argument.quoted(kid)}, which this server does not have")
        return key


class Signer:
    """A key that makes tokens."""

    def __init__(self, algorithm: Algorithm, material: Any, kid: str | None = None) -> None:
        self.algorithm: Final = algorithm
        self.kid: Final = kid
        self._material = material

    def __repr__(self) -> str:
        return f"Signer({self.algorithm}, kid={self.kid!r})"

    @classmethod
    def from_secret(cls, secret: str | bytes, kid: str | None = None) -> Signer:
        """HS256, by the secret that the server has too."""
        return cls("HS256", _secret(secret), kid)

    @classmethod
    def from_pem(cls, pem: str | bytes, kid: str | None = None) -> Signer:
        """RS256 or ES256, by a private key in PEM."""
        try:
            key = load_pem_private_key(_octets(pem), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InvalidArgument(
                f"this is not a private key in PEM without a passphrase ({error}); make one with: "
                "openssl ecparam -name prime256v1 -genkey -noout -out key.pem"
            ) from None
        if isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
            return cls(_of_public(key.public_key()).algorithm, key, kid)
        raise InvalidArgument(
            f"a private key of type {type(key).__name__} signs no token here; give an RSA or a P-256 one"
        )

    def keys(self) -> Keys:
        """What verifies its tokens."""
        public = self._material if self.algorithm == "HS256" else self._material.public_key()
        return Keys([Key(self.algorithm, public, self.kid)])

    def sign(self, payload: Mapping[str, Any]) -> str:
        """The token that says this."""
        headers = None if self.kid is None else {"kid": self.kid}
        body = msgspec.json.encode(dict(payload))
        return jwt.PyJWS().encode(body, self._material, algorithm=self.algorithm, headers=headers)


def in_pem(given: str, what: str) -> str:
    """A key in PEM that was given as it is (its line ends perhaps as \\n, as environments have them), or as the path of a file."""
    if is_pem(given):
        return given.replace("\\n", "\n")
    try:
        return read(Path(given), what)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}; give a key in PEM, or the path of one") from None


def is_pem(given: str) -> bool:
    """Whether it is a key itself, and no path."""
    return given.lstrip().startswith(_BEGIN)


def read(path: Path, what: str) -> str:
    """A file of keys as text."""
    try:
        with path.open("rb") as file:
            data = file.read(KEYS_BYTES_MAX + 1)
        if len(data) > KEYS_BYTES_MAX:
            raise InvalidArgument(f"{what} {str(path)!r} has more than {KEYS_BYTES_MAX} bytes; give another")
        return data.decode()
    except InvalidArgument:  # a ValueError too
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise InvalidArgument(f"{what} {shown_path(path)} cannot be read: {reason}") from None


def _refuse(what: str) -> NoReturn:
    raise Unauthorized(f"the token {what}") from None


def keys_of(settings: Settings) -> Keys | None:
    """The keys that settings name. If something is wrong with them, the error says where they were given."""
    try:
        return Keys.configured(settings.secret_now("jwt_secret"), settings.jwt_public_key, settings.jwt_jwks)
    except InvalidArgument as error:
        given = (name for name in ("jwt_secret", "jwt_public_key", "jwt_jwks") if getattr(settings, name))
        raise InvalidArgument(
            f"{' and '.join(str(settings.sources[name]) for name in given)}: {error}"
        ) from None


# --- keys ---


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _secret(given: str | bytes) -> bytes:
    secret = _octets(given)
    if len(secret) < SECRET_BYTES_MIN:
        raise InvalidArgument(
            f"the JWT secret has {len(secret)} bytes; HS256 needs at least {SECRET_BYTES_MIN}. Make one with: {MAKE_A_SECRET}"
        )
    try:
        return HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(secret)
    except jwt.InvalidKeyError:
        # Public keys are public: as a secret it would let everybody sign.
        raise InvalidArgument(
            "the JWT secret is a key or a certificate; give that as the public key, or make a secret with: "
            f"{MAKE_A_SECRET}"
        ) from None


def _public(pem: str | bytes) -> object:
    data = _octets(pem)
    if b"PRIVATE KEY" in data:
        raise InvalidArgument(
            "this is a private key, which a server must not have; give the public one: openssl pkey -in key.pem -pubout"
        )
    try:
        if b"BEGIN CERTIFICATE" in data:
            return load_pem_x509_certificate(data).public_key()
        return load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidArgument(f"this is not a public key in PEM: {error}") from None


def _of_public(key: object, kid: str | None = None) -> Key:
    """The one algorithm that a public key is for."""
    if isinstance(key, RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise InvalidArgument(f"the RSA key has {key.key_size} bits; use at least {RSA_BITS_MIN}")
        return Key("RS256", key, kid)
    if isinstance(key, EllipticCurvePublicKey):
        if not isinstance(key.curve, SECP256R1):
            raise InvalidArgument(f"the key is on the curve {key.curve.name}; ES256 is on P-256 only")
        return Key("ES256", key, kid)
    raise InvalidArgument(
        f"a key of type {type(key).__name__} verifies no token here; give an RSA or a P-256 one"
    )


# --- JWKS ---


def _entries(text: str | bytes) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the JWKS is not JSON: {error}") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgument('the JWKS has no list of keys; it should look like {"keys": [{"kty": …}]}')
    if len(entries) > KEYS_MAX:
        raise InvalidArgument(f"the JWKS has {len(entries)} keys; use at most {KEYS_MAX}")
    return entries


def _of_jwk(entry: dict[str, Any], place: int) -> Key | None:
    """The key of an entry; None if it is for something that is not done here."""
    kind = f"{entry.get('kty')} {entry['crv']}" if "crv" in entry else f"{entry.get('kty')}"
    algorithm = _BY_KIND.get(kind)
    operations = entry.get("key_ops", ["verify"])
    if algorithm is None or entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    if not isinstance(operations, list) or not {"verify", "sign"} & {str(one) for one in operations}:
        return None
    kid = entry.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise InvalidArgument(f"key {place} of the JWKS has a kid that is no text")
    if "d" in entry:
        raise InvalidArgument(f"key {place} of the JWKS is a private key; a server needs the public one only")
    try:
        if algorithm == "HS256":
            return Key("HS256", _secret(HMACAlgorithm.from_jwk(entry)), kid)
        made = RSAAlgorithm.from_jwk(entry) if algorithm == "RS256" else ECAlgorithm.from_jwk(entry)
        return _of_public(made, kid)
    except InvalidArgument as error:
        raise InvalidArgument(f"key {place} of the JWKS: {error}") from None
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, UnsupportedAlgorithm) as error:
        raise InvalidArgument(f"key {place} of the JWKS is not a key: {argument.quoted(error)}") from None


# --- what a token holds ---


def _decoded(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        _refuse("is not a JWT: its header is not base64url")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        _refuse(f"has a {what} that is not JSON")
    if not isinstance(found, dict):
        _refuse(f"has a {what} that is no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse("says the same thing twice: a name occurs more than once in an object")
    return found


def _no_constant(_: str) -> NoReturn:
    raise ValueError
