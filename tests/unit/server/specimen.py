"""Tokens as their makers and their forgers write them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from penstock.clock import SECOND_US, ManualClock

SECRET: Final = "a secret of more than 32 bytes, for tests only"
OTHER_SECRET: Final = "another secret of more than 32 bytes, for tests"

#: What a manual clock says at first.
NOW_S: Final = ManualClock.START_US // SECOND_US

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def part(value: object) -> str:
    """A header or a payload, in base64url; bytes and text as they are."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def mac(text: str, secret: str | bytes = SECRET) -> str:
    key = secret.encode() if isinstance(secret, str) else secret
    return part(hmac.digest(key, text.encode(), hashlib.sha256))


def forged(header: object, payload: object, secret: str | bytes = SECRET) -> str:
    """A token with any header and any payload, signed by HMAC whatever it says."""
    text = f"{part(header)}.{part(payload)}"
    return f"{text}.{mac(text, secret)}"


def token(payload: object = None, secret: str | bytes = SECRET, **header: Any) -> str:
    """A good token, but for what is given."""
    return forged({"alg": "HS256", "typ": "JWT", **header}, claims() if payload is None else payload, secret)


def claims(**others: Any) -> dict[str, Any]:
    return {"sub": "billing", "exp": NOW_S + 3600, **others}


def private_pem(key: PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def public_pem(key: PrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )
