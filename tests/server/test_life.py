"""The life of a server: how it starts, refuses to start, and ends, and what is left of it then."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import penstock as library
from penstock.journal.directory import Directory, Ownership
from penstock.journal.files import Files
from penstock.server import serving, tls
from penstock.server.keys import Signer
from tests.conformance.background import PATIENCE_S, start
from tests.server.process import Running, answer, ask, connected, ended, penstock, request, standin

pytestmark = pytest.mark.timeout(180)


def published(path: Path, name: str = "work") -> list[bytes]:
    with library.open(path) as broker:
        return [message.payload for message in broker.get_queue(name).peek(100_000)]


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


def test_an_idle_connection_or_half_a_request_keeps_a_server_alive(tmp_path: Path) -> None:
    with (
        standin(tmp_path / "data", shutdown_timeout="1h") as server,
        connected(server) as idle,
        connected(server) as half,
        connected(server) as used,
    ):
        half.sendall(b"GET /health HTTP/1.1\r\nhost:")
        used.sendall(request("/health"))  # when it is answered, the others were heard
        assert answer(used)[0] == 200
        server.send(signal.SIGTERM)
        assert ended(idle)
        assert ended(half)
        assert ended(used)
        assert server.end() == serving.STOPPED


@pytest.mark.parametrize("path", ["/stubborn", "/deaf", "/thread"])
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
        host, port = first.address
        with (
            standin(tmp_path / "data") as second,
            standin(tmp_path / "data", http_addr=f"{host}:{port}") as third,  # on the same port
        ):
            for other in (second, third):
                assert other.end() == serving.HELD
                assert f"is held by process {first.process.pid}" in other.said
        assert ask(first, "/health")[0] == 200


def test_a_port_that_is_taken_is_an_obscure_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with standin(tmp_path / "data", http_addr=f"127.0.0.1:{port}") as server:
            assert server.end() == serving.WRONG_USE
            assert f"127.0.0.1:{port} is taken" in server.said
            assert "Traceback" not in server.said
    assert not (tmp_path / "data").exists()


def test_without_a_key_everybody_can_connect(tmp_path: Path) -> None:
    with penstock("serve", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0") as server:
        assert server.end() == serving.WRONG_USE
        assert "there is no key" in server.said
        assert "penstock token" in server.said
    assert not (tmp_path / "data").exists()


def test_a_key_that_cannot_be_used_is_noticed_after_the_directory_was_made(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("no key at all")
    with penstock("serve", str(tmp_path / "data"), "--port", "0", "--jwt-public-key", str(key)) as server:
        assert server.end() == serving.WRONG_USE
        assert "--jwt-public-key" in server.said
        assert "Traceback" not in server.said
    assert not (tmp_path / "data").exists()


IMPORTING = """
import signal, sys
class Slow:
    def find_spec(self, name, *_):
        if name == "penstock.cli.app":
            print("importing", flush=True)
            while True:
                signal.pause()
sys.meta_path.insert(0, Slow())
from penstock.cli import main
main()
"""


def test_a_signal_while_it_imports_is_not_an_end_in_order() -> None:
    with Running("-c", IMPORTING, "serve") as server:
        server.wait_for("importing")
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED


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


def test_handshakes_that_never_end_are_not_counted(tmp_path: Path) -> None:
    settings = {"max_connections_per_address": 2, "shutdown_timeout": "1h", "tls_self_signed": "on"}
    with standin(tmp_path / "data", **settings) as server, ExitStack() as stack:
        server.wait_for("listening")
        context = trusting(tmp_path / "data" / "tls" / "self-signed-cert.pem")

        def status(source: str) -> int:
            with (
                connected(server, source) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as made,
            ):
                made.sendall(request("/health"))
                return answer(made)[0]

        silent = [stack.enter_context(connected(server, "127.0.0.2")) for _ in range(2)]
        assert status("127.0.0.2") == 503
        assert status("127.0.0.3") == 200
        silent.pop().close()
        while status("127.0.0.2") != 200:  # until the server has seen it
            pass
        server.send(signal.SIGTERM)
        assert ended(silent[0])
        assert server.end() == serving.STOPPED
        assert "Traceback" not in server.said


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
def opening(
    tmp_path: Path, begin: Callable[..., Running] = standin, **settings: object
) -> Iterator[tuple[Running, Ownership, tuple[str, int]]]:
    """A server that listens and is not open yet: somebody who has the directory for a moment is waited for."""
    (tmp_path / "data").mkdir()
    holder = Ownership(Directory(Files(), tmp_path / "data"), momentary=True)
    address = ("127.0.0.1", free_port())
    try:
        with begin(tmp_path / "data", http_addr=f"127.0.0.1:{address[1]}", **settings) as server:
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


def test_the_command_does_not_serve_what_it_says_or_a_long_poll_outlives_the_signal(tmp_path: Path) -> None:
    settings = {"PENSTOCK_MAX_QUEUE_DEPTH": "7", "PENSTOCK_MAX_RETRIES": "0", "PENSTOCK_DEFAULT_TTL": "1h"}
    command = ["serve", str(tmp_path / "data"), "--port", "0", "--shutdown-timeout", "1h"]
    with penstock(*command, "--log-encoding", "console", **settings) as server:
        body = b'[{"namespace": "default", "topic": "jobs", "priority": 1, "payload": "SGVsbG8="}]'
        assert ask(server, "/enqueue", method="POST", body=body)[0] == 202
        with connected(server) as poll, connected(server) as tail:
            tail.sendall(request("/v1/namespaces/default/logs/jobs/tail?start=earliest"))
            assert b" 200 OK" in tail.recv(65536)
            poll.sendall(request("/dequeue?namespace=default&topic=other&limit=1&wait=50"))
            assert ask(server, "/health")[0] == 200  # so the first one was heard
            server.send(signal.SIGTERM)
            assert answer(poll) == (200, b"[]")
        assert server.end() == serving.STOPPED
    assert published(tmp_path / "data", "jobs") == [b"Hello"]
    with library.open(tmp_path / "data") as broker:
        policy = broker.get_queue("jobs").policy
    assert (policy.max_depth, policy.max_attempts, policy.ttl) == (7, 1, 3600.0)


def serve(path: Path, http_addr: str) -> Running:
    return penstock("serve", str(path), "--http-addr", http_addr, "--log-encoding", "console")


def test_ready_answers_200_only_once_requests_are_served_and_connect_waits(tmp_path: Path) -> None:
    with opening(tmp_path, serve) as (server, holder, address), socket.create_connection(address) as made:
        for path, status in (("/health", 200), ("/ready", 503)):
            made.sendall(request(path))
            assert answer(made)[0] == status
        connecting = start(library.connect, f"http://127.0.0.1:{address[1]}", wait=PATIENCE_S)
        holder.release()
        connecting.result(PATIENCE_S).close()
        made.sendall(request("/ready"))
        assert answer(made) == (200, b"READY")
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED


def test_a_hangup_leaves_the_old_secret_in_force(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    old, new = (f"{number}123456789abcdef0123456789abcdef" for number in range(2))
    claims = {"sub": "worker", "exp": 1 << 32}
    shown = [f"authorization: Bearer {Signer.from_secret(one).sign(claims)}\r\n" for one in (old, new)]
    file.write_text(old)
    command = ["serve", "--storage", "memory", "--port", "0", "--jwt-secret-file", str(file)]

    def statuses(server: Running) -> list[int]:
        return [ask(server, "/dequeue?namespace=default&topic=x&limit=1", headers=one)[0] for one in shown]

    with penstock(*command) as server:
        assert statuses(server) == [200, 401]
        file.write_text("")
        server.send(signal.SIGHUP)
        server.wait_for("the key of tokens was not read again, the one in force stays.*is empty")
        assert statuses(server) == [200, 401]
        file.write_text(new + "\n")
        server.send(signal.SIGHUP)
        server.wait_for("the key of tokens was read again from")
        assert statuses(server) == [401, 200]  # the first one had been remembered
        server.send(signal.SIGTERM)
        assert server.end() == serving.STOPPED
