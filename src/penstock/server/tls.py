"""Certificates: made to try things out, and replaced while the server runs.

A `Context` holds the one `ssl.SSLContext` that the server listens with. OpenSSL copies its certificate and key into each connection when that
begins, so loading others into a live context concerns the handshakes to come, and no connection notices.

What always holds:

- **A certificate that is broken never comes into force.** Both files are read into memory first, tried on a context of its own, and only then
  loaded, from the same bytes. If they do not fit one another (half of them is replaced, one is empty) the old ones stay, and the log says so, once.
- Files are looked at by their time, size and inode, so a symbolic link that is turned (as certbot and Kubernetes do) counts as a change.
- Keys that are made here are readable by their owner only, from the first byte.

At the start a broken certificate is `InvalidArgument`: there is no old one to go on with.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import InvalidArgument
from penstock.limits import SELF_SIGNED_DAYS, TLS_FILE_BYTES_MAX, TLS_LOOK_S

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

_log: Final = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]


class Context:
    """The server's side of TLS, with a certificate that may be replaced."""

    def __init__(self, cert: str | Path, key: str | Path | None = None) -> None:
        """Without a `key`, the file of the certificate holds that too."""
        self.cert: Final = Path(cert)
        self.key: Final = self.cert if key is None else Path(key)
        self._stamp = self._look()
        self.ssl: Final = _blank()
        self._load()

    def reload(self) -> bool:
        """Take the certificate that is in the files now, as on SIGHUP. Whether that could be done: if not, the old one stays."""
        self._stamp = self._look()
        try:
            self._load()
        except InvalidArgument as error:
            _log.error("%s; the certificate in force stays", error)
            return False
        _log.info("the certificate %s is in force for new connections", self.cert)
        return True

    def reload_if_changed(self) -> bool:
        """The same if the files have changed since they were looked at last, whatever came of that."""
        return self._look() != self._stamp and self.reload()

    async def watch(self, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Look at the files every now and then, until cancelled."""
        while True:
            await pause(TLS_LOOK_S)
            self.reload_if_changed()

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in (self.cert, self.key))

    def _load(self) -> None:
        with _held(_read(self.cert)) as cert, _held(_read(self.key)) as key:
            try:
                # Loading takes the certificate before it finds that the key is another's: so never first where it counts.
                for context in (_blank(), self.ssl):
                    context.load_cert_chain(cert, key, password=_no_passphrase)
            except (OSError, ValueError) as error:  # SSLError is an OSError
                reason = getattr(error, "reason", None) or error
                raise InvalidArgument(
                    f"the certificate {str(self.cert)!r} and the key {str(self.key)!r} cannot be used: {reason}"
                ) from None


def _blank() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_passphrase() -> str:
    # Without this OpenSSL asks on the terminal, and a server would stand still there.
    raise ValueError("it has a passphrase; store it without one, readable by the server only")


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(TLS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"the TLS file {str(path)!r} cannot be read: {error.strerror}") from None
    if len(data) > TLS_FILE_BYTES_MAX:
        raise InvalidArgument(f"the TLS file {str(path)!r} has more than {TLS_FILE_BYTES_MAX} bytes")
    return data


@contextmanager
def _held(data: bytes) -> Iterator[str]:
    """A path for bytes that do not change any more: OpenSSL reads certificates from files only."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("penstock-tls"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(prefix="penstock-tls-") as file:  # readable by its owner only
            file.write(data)
            file.flush()
            yield file.name


# --- self-signed ---


def self_signed(directory: str | Path | None = None, hosts: Iterable[str] = LOCAL_HOSTS) -> tuple[Path, Path]:
    """A certificate and a key for these hosts, signed by itself; those of the last time, while they are good for it.

    Nobody trusts it but who is told to (`curl --cacert cert.pem`, or `-k` to trust anything). Without a directory they are in a new
    temporary one, which is the caller's to remove.
    """
    place = Path(tempfile.mkdtemp(prefix="penstock-tls-") if directory is None else directory)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    cert, key = place / "self-signed-cert.pem", place / "self-signed-key.pem"
    names = [_general_name(host) for host in hosts]
    if not _is_good_for(cert, key, names):
        made = ec.generate_private_key(ec.SECP256R1())
        # The key first: a certificate is looked at before it is used again, and then has its key.
        _write(key, made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ))  # fmt: skip
        _write(cert, _certificate(made, names).public_bytes(serialization.Encoding.PEM))
    return cert, key


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InvalidArgument(f"{host!r} is neither a host's name in ASCII nor an address") from None


def _certificate(key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName]) -> x509.Certificate:
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Penstock, self-signed")])
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # for clients whose clock is behind
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # No authority: whoever trusts this certificate trusts this server, not whatever else its key would sign.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256())


def _is_good_for(cert: Path, key: Path, names: list[x509.GeneralName]) -> bool:
    """Whether what was made before has these names, fits its key, and lasts for another week."""
    try:
        found = x509.load_pem_x509_certificate(cert.read_bytes())
        held = serialization.load_pem_private_key(key.read_bytes(), password=None)
        told = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    lasting = found.not_valid_after_utc - datetime.now(UTC) > timedelta(days=7)
    return lasting and set(told) == set(names) and held.public_key() == found.public_key()


def _write(path: Path, data: bytes) -> None:
    """Replace a file at once, by one that only its owner can read."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
