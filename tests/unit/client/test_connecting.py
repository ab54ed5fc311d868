"""What only `connect` can get wrong: addresses, tokens, certificates, packages that are not there, processes that fork."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import InvalidArgument, InvalidName, ServerUnavailable, wire
from tests.unit.client.script import Script, packed


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://host", "http://", "http://host:port", "http://host:0", "http://a b", "http://höst", "http://me:secret@host",
     "http://host?token=a", "http://host#a", None, 5, b"http://host", "http://host:99999"],
    ids=repr,
)  # fmt: skip
def test_something_is_taken_for_an_address(url: Any) -> None:
    with pytest.raises(InvalidArgument, match="url is"):
        penstock.connect(url)


@pytest.mark.parametrize("token", ["", "two words", "a\r\nHost: b", "ü", 5, b"a"], ids=repr)
def test_something_is_taken_for_a_token_or_shown(token: Any) -> None:
    with pytest.raises(InvalidArgument, match="penstock token") as caught:
        penstock.connect("http://127.0.0.1:1", token)
    assert not token or str(token) not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"namespace": "a b"}, InvalidName), ({"timeout": 0}, InvalidArgument), ({"timeout": "1"}, InvalidArgument),
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
        penstock.connect("http://127.0.0.1:1/")
    assert not caught.value.indeterminate


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
                    broker._port.names("default").wait()
                with pytest.raises(InvalidArgument, match="await"):
                    broker._port.close()

        asyncio.run(main())
