"""Certificates that are replaced under a server with real connections, and those that must not come into force."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.errors import InvalidArgument
from penstock.limits import SELF_SIGNED_DAYS, TLS_FILE_BYTES_MAX, TLS_LOOK_S
from penstock.server.tls import LOCAL_HOSTS, Context, self_signed

TIMEOUT_S = 20


class Files:
    """A certificate and its key in two files, as a configuration names them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.made = 0
        self.cert, self.key = place / "cert.pem", place / "key.pem"
        self.replace()

    def another(self) -> tuple[Path, Path]:
        self.made += 1
        return self_signed(self.place / str(self.made))

    def replace(self) -> bytes:
        """Put new ones there, and give the certificate as a client sees it."""
        cert, key = self.another()
        key.replace(self.key)
        cert.replace(self.cert)
        return self.seen()

    def seen(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.cert.read_text())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@contextmanager
def echoing(context: Context, loop: Any) -> Iterator[int]:
    """A server in a thread that sends back each line, over TLS; gives its port."""
    ports: list[int] = []
    up, end = threading.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while line := await reader.readline():
                writer.write(line)
                await writer.drain()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context.ssl)
        ports.append(server.sockets[0].getsockname()[1])
        up.set()
        await end.wait()
        server.close()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            up.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(TIMEOUT_S)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(TIMEOUT_S)


def connect(port: int, trusted: Path | None = None, host: str = "localhost") -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=trusted)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if trusted is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S), server_hostname=host
    )


def said(connection: ssl.SSLSocket, text: bytes) -> bytes:
    connection.sendall(text + b"\n")
    return connection.recv(1000)


def shown(port: int) -> bytes | None:
    """The certificate that a new connection is shown."""
    with connect(port) as connection:
        assert said(connection, b"hello") == b"hello\n"
        return connection.getpeercert(binary_form=True)


# --- replacing ---


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_new_certificate_drops_connections_or_is_not_shown(files: Files, make_loop: Any) -> None:
    first = files.seen()
    context = Context(files.cert, files.key)
    with echoing(context, make_loop()) as port, connect(port) as old:
        assert said(old, b"before") == b"before\n"
        assert old.getpeercert(binary_form=True) == first
        second = files.replace()
        assert second != first
        assert shown(port) == first
        assert context.reload_if_changed()
        assert shown(port) == second
        assert said(old, b"after") == b"after\n"
        assert not context.reload_if_changed()


BROKEN = ["no key", "another key", "empty", "garbage", "huge", "directory", "key first", "passphrase"]


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_certificate_comes_into_force(
    files: Files, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = files.seen()
    context = Context(files.cert, files.key)
    with echoing(context, asyncio.new_event_loop()) as port, connect(port) as old:
        other_cert, other_key = files.another()
        match how:
            case "no key":
                files.key.unlink()
            case "another key":
                other_cert.replace(files.cert)
            case "empty":
                files.cert.write_bytes(b"")
            case "garbage":
                files.key.write_bytes(b"\xff" * 100)
            case "huge":
                files.cert.write_bytes(b"#" * (TLS_FILE_BYTES_MAX + 1))
            case "directory":
                files.cert.unlink()
                files.cert.mkdir()
            case "key first":
                other_key.replace(files.key)
            case "passphrase":
                key = load_pem_private_key(files.key.read_bytes(), password=None)
                files.key.write_bytes(
                    key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hello"))
                )
        with caplog.at_level(logging.INFO):
            assert not context.reload_if_changed()
            assert not context.reload_if_changed()  # looked at, and not good: said once
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "stays" in caplog.text
        assert shown(port) == first
        assert said(old, b"goes on") == b"goes on\n"
        # Without a word of ours OpenSSL would ask the terminal for it, and wait.
        with pytest.raises(
            InvalidArgument, match="without one" if how == "passphrase" else "TLS file|cannot be used"
        ):
            Context(files.cert, files.key)
        if how == "directory":
            files.cert.rmdir()
        second = files.replace()
        assert context.reload_if_changed()
        assert shown(port) == second


def test_a_link_that_is_turned_is_not_seen(files: Files, tmp_path: Path) -> None:
    for number in (1, 2):
        self_signed(tmp_path / f"v{number}")
    (tmp_path / "now").symlink_to(tmp_path / "v1")
    context = Context(tmp_path / "now" / "self-signed-cert.pem", tmp_path / "now" / "self-signed-key.pem")
    assert not context.reload_if_changed()
    (tmp_path / "next").symlink_to(tmp_path / "v2")
    (tmp_path / "next").replace(tmp_path / "now")
    assert context.reload_if_changed()


def test_one_file_with_both_is_not_taken(files: Files) -> None:
    both = files.place / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    with echoing(Context(both), asyncio.new_event_loop()) as port:
        assert shown(port) == files.seen()


def test_whoever_watches_sees_nothing(files: Files) -> None:
    context = Context(files.cert, files.key)
    pauses: list[float] = []
    replaced: list[bytes] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            replaced.append(files.replace())
        if len(pauses) == 5:
            raise asyncio.CancelledError

    async def watch() -> None:
        with pytest.raises(asyncio.CancelledError):
            await context.watch(pause)

    asyncio.run(watch())
    assert pauses == [TLS_LOOK_S] * 5
    with echoing(context, asyncio.new_event_loop()) as port:
        assert [shown(port)] == replaced


def test_an_old_protocol_is_spoken(files: Files) -> None:
    assert Context(files.cert, files.key).ssl.minimum_version >= ssl.TLSVersion.TLSv1_2


# --- self-signed ---


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_a_client_that_trusts_the_certificate_refuses_it(tmp_path: Path, host: str) -> None:
    cert, key = self_signed(tmp_path)
    with echoing(Context(cert, key), asyncio.new_event_loop()) as port:
        with connect(port, trusted=cert, host=host) as connection:
            assert said(connection, b"hello") == b"hello\n"
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(port, trusted=cert, host="example.org")


def test_others_can_read_the_key(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path / "new")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (key, cert, key.parent)] == [0o600, 0o600, 0o700]
    assert sorted(path.name for path in key.parent.iterdir()) == sorted([cert.name, key.name])


def test_a_certificate_that_is_trusted_already_is_replaced(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    before = cert.read_bytes()
    assert self_signed(tmp_path) == (cert, key)
    assert cert.read_bytes() == before
    self_signed(tmp_path, [*LOCAL_HOSTS, "broker.example"])
    assert cert.read_bytes() != before


@pytest.mark.parametrize("spoilt", ["cert", "key"])
def test_a_certificate_that_is_no_good_is_kept(tmp_path: Path, spoilt: str) -> None:
    cert, key = self_signed(tmp_path / "a")
    _, other_key = self_signed(tmp_path / "b")
    if spoilt == "cert":
        cert.write_bytes(b"")
    else:
        other_key.replace(key)
    self_signed(tmp_path / "a")
    Context(cert, key)


def test_a_certificate_lasts_for_ever_or_signs_others(tmp_path: Path) -> None:
    found = x509.load_pem_x509_certificate(self_signed(tmp_path)[0].read_bytes())
    left = found.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=SELF_SIGNED_DAYS - 1) < left <= timedelta(days=SELF_SIGNED_DAYS)
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_host_that_cannot_be_breaks_something(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="neither a host"):
        self_signed(tmp_path, ["bücher.example"])
