"""The life of a server: how it starts, refuses to start, and ends, and what is left of it then."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock as library
from penstock.journal.directory import Directory, Ownership
from penstock.journal.files import Files
from penstock.server import serving, tls
from tests.server.process import Running, answer, ask, connected, ended, penstock, request, standin

pytestmark = pytest.mark.timeout(180)


def published(path: Path) -> list[bytes]:
    with library.open(path) as broker:
        return [message.payload for message in broker.get_queue("work").peek(100_000)]


# --- the end ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda found: found.name)
def test_a_signal_loses_a_long_poll_or_is_not_an_end_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with standin(tmp_path / "data") as server, connected(server) as poll:
        poll.sendall(request("/wait"))
        server.wait_for("waiting")
        server.send(number)
        assert answer(poll) == (200, b"nothing came")
        assert ended(poll)
        assert server.end() == serving.STOPPED


def test_an_idle_connection_keeps_a_server_alive(tmp_path: Path) -> None:
    with (
        standin(tmp_path / "data", shutdown_timeout="1h") as server,
        connected(server) as idle,
        connected(server) as used,
    ):
        used.sendall(request("/health"))
        assert answer(used)[0] == 200
        server.send(signal.SIGTERM)
        assert ended(idle)
        assert ended(used)
        assert server.end() == serving.STOPPED


def test_half_a_request_keeps_a_server_alive(tmp_path: Path) -> None:
    with standin(tmp_path / "data", shutdown_timeout="1h") as server, connected(server) as half:
        half.sendall(b"GET /health HTTP/1.1\r\nhost:")
        with connected(server) as other:  # so the first one was heard
            other.sendall(request("/health"))
            answer(other)
        server.send(signal.SIGTERM)
        assert ended(half)
        assert server.end() == serving.STOPPED


@pytest.mark.parametrize("path", ["/stubborn", "/deaf"])
def test_a_request_that_does_not_end_keeps_a_server_alive(tmp_path: Path, path: str) -> None:
    with standin(tmp_path / "data", shutdown_timeout="100ms") as server, connected(server) as poll:
        assert ask(server, "/publish", method="POST", body=b"kept")[0] == 200
        poll.sendall(request(path))
        server.wait_for("waiting")
        server.send(signal.SIGTERM)
        assert ended(poll)
        assert server.end() == serving.STOPPED
        server.wait_for("were cut")
    assert published(tmp_path / "data") == [b"kept"]


def test_a_client_that_does_not_read_keeps_a_server_alive(tmp_path: Path) -> None:
    with standin(tmp_path / "data", shutdown_timeout="100ms") as server, connected(server) as lazy:
        lazy.sendall(request("/big"))
        lazy.recv(1)
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED


def test_a_second_signal_waits_for_the_deadline(tmp_path: Path) -> None:
    with standin(tmp_path / "data", shutdown_timeout="1h") as server, connected(server) as poll:
        assert ask(server, "/publish", method="POST", body=b"kept")[0] == 200
        poll.sendall(request("/stubborn"))
        server.wait_for("waiting")
        server.send(signal.SIGTERM)
        server.wait_for("stopping")
        server.send(signal.SIGTERM)
        assert server.end() == serving.AT_ONCE
    assert published(tmp_path / "data") == [b"kept"]


def test_what_comes_after_the_signal_is_accepted(tmp_path: Path) -> None:
    with standin(tmp_path / "data", shutdown_timeout="1h") as server, connected(server) as poll:
        poll.sendall(request("/stubborn"))
        server.wait_for("waiting")
        server.send(signal.SIGTERM)
        server.wait_for("stopping")
        refused = False
        while not refused:  # what the kernel had accepted before is closed; then it refuses
            try:
                with connected(server) as late:
                    assert ended(late) or answer(late)[0] in {0, 503}
            except OSError:
                refused = True
        server.send(signal.SIGTERM)
        server.end()


def test_sigkill_loses_what_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []

    def publish(server: Running, worker: int) -> None:
        try:
            with connected(server) as made:
                for count in range(100_000):
                    body = f"{worker}-{count}".encode()
                    made.sendall(request("/publish", method="POST", body=body))
                    if answer(made)[0] != 200:
                        return
                    acknowledged.append(body)
                    if len(acknowledged) == 500:
                        server.send(signal.SIGKILL)
        except OSError:
            pass

    with standin(tmp_path / "data") as server:
        workers = [threading.Thread(target=publish, args=(server, number)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert server.end() == -signal.SIGKILL
    assert len(acknowledged) >= 500
    assert set(acknowledged) <= set(published(tmp_path / "data"))


def test_a_hangup_ends_a_server_or_is_not_heard(tmp_path: Path) -> None:
    with standin(tmp_path / "data") as server:
        server.wait_for("listening")
        server.send(signal.SIGHUP)
        server.wait_for("reloaded")
        assert ask(server, "/health")[0] == 200
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED


# --- the beginning ---


def test_a_second_server_takes_the_directory_or_does_not_say_who_has_it(tmp_path: Path) -> None:
    with standin(tmp_path / "data") as first:
        first.wait_for("listening")
        with standin(tmp_path / "data") as second:
            assert second.end() == serving.HELD
            assert f"is held by process {first.process.pid}" in second.said
        assert ask(first, "/health")[0] == 200


def test_a_second_server_on_the_same_port_does_not_say_who_has_the_directory(tmp_path: Path) -> None:
    with standin(tmp_path / "data") as first:
        host, port = first.address
        with standin(tmp_path / "data", http_addr=f"{host}:{port}") as second:
            assert second.end() == serving.HELD
            assert f"is held by process {first.process.pid}" in second.said


def test_a_port_that_is_taken_is_an_obscure_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with standin(tmp_path / "data", http_addr=f"127.0.0.1:{port}") as server:
            assert server.end() == serving.WRONG_USE
            assert f"127.0.0.1:{port} is taken" in server.said
            assert "Traceback" not in server.said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.com"])
def test_without_a_key_everybody_can_connect(tmp_path: Path, host: str) -> None:
    with penstock("serve", str(tmp_path / "data"), "--host", host, "--port", "0") as server:
        assert server.end() == serving.WRONG_USE
        assert "there is no key" in server.said
        assert "penstock token" in server.said
    assert not (tmp_path / "data").exists()


def test_a_host_that_is_none_is_an_obscure_error(tmp_path: Path) -> None:
    secret = {"PENSTOCK_JWT_SECRET": "0123456789abcdef0123456789abcdef"}
    with penstock("serve", str(tmp_path / "data"), "--host", "192.0.2.1", "--port", "0", **secret) as server:
        assert server.end() == serving.WRONG_USE
        assert "cannot listen on 192.0.2.1:0" in server.said


def test_a_wrong_setting_is_an_obscure_error(tmp_path: Path) -> None:
    with penstock("serve", str(tmp_path / "data"), PENSTOCK_STORAGE="shards") as server:
        assert server.end() == serving.WRONG_USE
        assert "PENSTOCK_STORAGE (environment) is 'shards', which are not built yet" in server.said


def test_what_is_no_journal_is_an_obscure_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with standin(tmp_path / "data") as server:
        assert server.end() == serving.WRONG_USE
        assert "Traceback" not in server.said


# --- TLS ---


def trusting(cert: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(cert))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # it is no authority, and yet the last one there is
    return context


def test_a_self_signed_certificate_is_not_the_one_that_is_served(tmp_path: Path) -> None:
    with standin(tmp_path / "data", tls_self_signed="on") as server:
        assert server.url.startswith("https://")
        context = trusting(tmp_path / "data" / "tls" / "self-signed-cert.pem")
        with connected(server) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as made:
            made.sendall(request("/health"))
            assert answer(made)[0] == 200
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED


def test_a_hangup_drops_connections_or_keeps_the_old_certificate(tmp_path: Path) -> None:
    old = tls.self_signed(tmp_path / "old")
    new = tls.self_signed(tmp_path / "new")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    for made_now, file in zip(old, files, strict=True):
        file.write_bytes(made_now.read_bytes())
    with standin(tmp_path / "data", tls_cert=files[0], tls_key=files[1]) as server:
        with (
            connected(server) as plain,
            trusting(old[0]).wrap_socket(plain, server_hostname="127.0.0.1") as before,
        ):
            before.sendall(request("/health"))
            assert answer(before)[0] == 200
            for made_now, file in zip(new, files, strict=True):
                file.write_bytes(made_now.read_bytes())
            server.send(signal.SIGHUP)
            server.wait_for("reloaded")
            with (
                connected(server) as other,
                trusting(new[0]).wrap_socket(other, server_hostname="127.0.0.1") as after,
            ):
                after.sendall(request("/health"))
                assert answer(after)[0] == 200
            before.sendall(request("/health"))
            assert answer(before)[0] == 200
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED


# --- between ---


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def opening(tmp_path: Path, **settings: object) -> Iterator[tuple[Running, Ownership, tuple[str, int]]]:
    """A server that listens and is not open yet: somebody who has the directory for a moment is waited for."""
    (tmp_path / "data").mkdir()
    holder = Ownership(Directory(Files(), tmp_path / "data"), momentary=True)
    address = ("127.0.0.1", free_port())
    try:
        with standin(tmp_path / "data", http_addr=f"127.0.0.1:{address[1]}", **settings) as server:
            accepted = False
            while not accepted:
                with suppress(ConnectionRefusedError), socket.create_connection(address):
                    accepted = True
            yield server, holder, address
    finally:
        holder.release()


def test_while_it_recovers_nobody_answers(tmp_path: Path) -> None:
    with opening(tmp_path) as (server, holder, address), socket.create_connection(address) as made:
        made.sendall(request("/health"))
        assert answer(made) == (200, b"OK")
        made.sendall(request("/publish", method="POST", body=b"early"))
        status, body = answer(made)
        assert (status, json.loads(body)["code"]) == (503, "starting")
        holder.release()
        server.wait_for("listening")
        made.sendall(
            request("/publish", method="POST", body=b"kept")
        )  # on the connection that was there before
        assert answer(made)[0] == 200
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED
    assert published(tmp_path / "data") == [b"kept"]


def test_a_signal_is_not_heard_while_it_recovers(tmp_path: Path) -> None:
    with opening(tmp_path, shutdown_timeout="100ms") as (server, _, _):
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED
        assert "Traceback" not in server.said


# --- the command itself, over the whole application ---

whole = pytest.mark.skipif(
    find_spec("penstock.server.http") is None or find_spec("penstock.server.http.mqueue") is None,
    reason="the routes are not there",
)


@whole
def test_the_command_does_not_serve_what_it_says(tmp_path: Path) -> None:
    with penstock("serve", str(tmp_path / "data"), "--port", "0", "--log-encoding", "console") as server:
        assert ask(server, "/health")[0] == 200
        body = b'[{"namespace": "default", "topic": "work", "priority": 1, "payload": "SGVsbG8="}]'
        assert ask(server, "/enqueue", method="POST", body=body)[0] in {200, 201, 202}
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED
    assert published(tmp_path / "data") == [b"Hello"]


@whole
def test_the_settings_of_queues_have_no_effect(tmp_path: Path) -> None:
    settings = {"PENSTOCK_MAX_QUEUE_DEPTH": "7", "PENSTOCK_MAX_RETRIES": "0", "PENSTOCK_DEFAULT_TTL": "1h"}
    with penstock("serve", str(tmp_path / "data"), "--port", "0", **settings) as server:
        body = b'[{"namespace": "default", "topic": "work", "priority": 1, "payload": "SGVsbG8="}]'
        assert ask(server, "/enqueue", method="POST", body=body)[0] in {200, 201, 202}
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED
    with library.open(tmp_path / "data") as broker:
        policy = broker.get_queue("work").policy
    assert (policy.max_depth, policy.max_attempts, policy.ttl) == (7, 1, 3600.0)


@whole
def test_a_long_poll_of_the_application_outlives_the_signal(tmp_path: Path) -> None:
    with penstock("serve", str(tmp_path / "data"), "--port", "0", "--shutdown-timeout", "1h") as server:
        with connected(server) as poll:
            poll.sendall(request("/dequeue?namespace=default&topic=work&limit=1&wait=50"))
            assert ask(server, "/health")[0] == 200  # so the first one was heard
            server.send(signal.SIGTERM)
            assert answer(poll)[0] in {200, 204}
        assert server.end() == serving.STOPPED
