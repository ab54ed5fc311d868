"""What only `connect` can get wrong: addresses, tokens, certificates, packages that are not there, processes that fork."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import InvalidArgument, InvalidName, ServerUnavailable, Unauthorized, wire
from penstock.broker.opening import in_memory
from penstock.model.queries import Names
from tests.conformance.background import PATIENCE_S, start, until
from tests.server.process import penstock as penstock_command
from tests.server.running import Running
from tests.unit.client.script import Script, packed, problem


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://host", "http://", "http://host:port", "http://host:0", "http://a b", "http://höst", "http://me:secret@host",
     "http://host?token=a", "http://host#a", None, 5, b"http://host", "http://host:99999"],
    ids=repr,
)  # fmt: skip
def test_something_is_taken_for_an_address(url: Any) -> None:
    with pytest.raises(InvalidArgument, match="url is"):
        penstock.connect(url)


def test_an_address_with_a_password_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidArgument, match="url is more than an address"):
        penstock.connect("http://user:secret@localhost:8080")


@pytest.mark.parametrize("token", ["", "two words", "a\r\nHost: b", "ü", 5, b"a"], ids=repr)
def test_something_is_taken_for_a_token_or_shown(token: Any) -> None:
    with pytest.raises(InvalidArgument, match="penstock token") as caught:
        penstock.connect("http://127.0.0.1:1", token)
    assert not token or str(token) not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"namespace": "a b"}, InvalidName), ({"timeout": 0}, InvalidArgument), ({"timeout": "1"}, InvalidArgument),
        ({"wait": -1}, InvalidArgument),
        ({"verify": 1}, InvalidArgument), ({"ca": 5}, InvalidArgument),
    ],
)  # fmt: skip
def test_a_wrong_option_is_taken(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        penstock.connect("http://127.0.0.1:1", **given)
    with pytest.raises(error):
        penstock.aio.connect("http://127.0.0.1:1", **given)


def test_certificates_that_are_not_there_are_not_missed(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no.pem"):
        penstock.connect("https://127.0.0.1:1", ca=tmp_path / "no.pem")


def test_nobody_there_is_said_late_or_without_advice() -> None:
    with pytest.raises(ServerUnavailable, match="http://127.0.0.1:1 .*refused.*penstock serve") as caught:
        penstock.connect("http://127.0.0.1:1/", wait=0)
    assert not caught.value.indeterminate


async def connected(url: str) -> None:
    async with penstock.aio.connect(url, wait=PATIENCE_S) as broker:
        assert await broker.list_queues() == []


@pytest.mark.parametrize("connect", [lambda url: penstock.connect(url, wait=PATIENCE_S).close(), lambda url: asyncio.run(connected(url))], ids=["threads", "asyncio"])  # fmt: skip
def test_connect_waits_for_a_server_that_is_not_there_yet(
    connect: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    connecting = start(connect, f"http://127.0.0.1:{port}")
    until(lambda: "refused" in caplog.text)
    with closing(in_memory()) as inside, Running(inside, listen=port):
        connecting.result(PATIENCE_S)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "penstock.client"]
    assert line == f"no answer from http://127.0.0.1:{port} (Connection refused); trying again for up to 60 s"


def test_connect_refuses_a_token_at_once() -> None:
    with Script(greeting=problem("unauthorized", 401)) as server:
        with pytest.raises(Unauthorized):
            penstock.connect(server.url)
        assert server.heard == ["GET /v1/namespaces"]


def test_a_path_before_the_addresses_is_lost() -> None:
    with Script(packed(wire.Names(names=["a"]))) as server:
        with penstock.connect(f"{server.url}/queues/") as broker:
            assert broker.list_queues() == ["a"]
        assert server.heard == ["GET /queues/v1/namespaces", "GET /queues/v1/namespaces/default/queues"]


def test_a_namespace_is_forgotten() -> None:
    with Script(packed(wire.Names(names=["a"]))) as server:
        with penstock.connect(server.url, namespace="tenant") as broker:
            assert broker.list_queues() == ["a"]
        assert server.heard == ["GET /v1/namespaces/tenant/queues"]


@pytest.mark.parametrize("missing", ["httpcore2", "anyio"])
def test_a_missing_package_is_not_named(missing: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
import penstock
try:
    penstock.connect("http://127.0.0.1:1")
except penstock.MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'penstock[client]'" in done.stdout


def test_a_loop_that_has_ended_is_waited_for() -> None:
    with Script(packed(wire.Names(names=["a"]))) as server:

        async def main() -> Any:
            broker = await penstock.aio.connect(server.url)
            assert await broker.list_queues() == ["a"]
            port: Any = broker._port
            await port._server.close()  # its sockets belong to this loop
            return broker

        broker = asyncio.run(main())
        broker._port.close()
        with pytest.raises(penstock.BrokerClosed):
            asyncio.run(broker.list_queues())


def test_a_loop_waits_for_itself() -> None:
    with Script(packed(wire.Names(names=["a"]))) as server:

        async def main() -> None:
            async with penstock.aio.connect(server.url) as broker:
                with pytest.raises(InvalidArgument, match="await"):
                    broker._port.describe(Names("default")).wait()
                with pytest.raises(InvalidArgument, match="await"):
                    broker._port.close()

        asyncio.run(main())


def test_a_certificate_that_nobody_vouches_for_is_trusted_or_tried_again(tmp_path: Path) -> None:
    with penstock_command("serve", str(tmp_path / "data"), "--port", "0", "--tls-self-signed") as server:
        url = server.url
        with pytest.raises(ServerUnavailable, match="not trusted: self.signed certificate.*(ca).*(verify)"):
            penstock.connect(url)
        (certificate,) = tmp_path.rglob("*cert.pem")
        for trusting in ({"ca": certificate}, {"verify": False}):
            with penstock.connect(url, **trusting) as broker:
                queue = broker.queue("orders")
                queue.publish(b"a")
                found = queue.receive(timeout=10)
                assert found is not None
                found.ack()


def test_a_server_without_tls_is_blamed_for_its_certificate() -> None:
    inside = in_memory()
    with Running(inside) as server:
        with pytest.raises(ServerUnavailable, match="does not speak TLS: is it http://") as caught:
            penstock.connect(server.url.replace("http:", "https:"), verify=False, wait=0)
        assert "trusted" not in str(caught.value)
        assert not caught.value.indeterminate
    inside.close()


#: A fatal alert of TLS 1.2: the handshake failed.
ALERT = bytes.fromhex("15 03 03 00 02 02 28")


def test_a_handshake_that_fails_is_not_tried_again() -> None:
    """As that of a balancer does that is started again."""
    failed = 0

    def serve() -> None:
        nonlocal failed
        while True:
            try:
                made, _ = listening.accept()
            except OSError:
                return
            with made:
                made.recv(1 << 16)
                made.sendall(ALERT)
            failed += 1

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        with pytest.raises(ServerUnavailable) as caught:
            penstock.connect(f"https://127.0.0.1:{listening.getsockname()[1]}", wait=0)
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert "trusted" not in str(caught.value)
    assert not caught.value.indeterminate
    assert failed > 1
