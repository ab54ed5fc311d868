"""What is too large, too deep or not true is refused cheaply, and the server goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest

from penstock.broker.embedded import Embedded
from penstock.server.bounds import Bounds
from tests.server.running import Running

HERE = "/v1/namespaces/default"
MESSAGES = HERE + "/logs/orders/messages"
MOST = 10_000


@pytest.fixture
def small(port: Embedded) -> Iterator[Running]:
    with Running(port, bounds=Bounds(body_bytes_max=MOST)) as found:
        httpx2.put(found.url + HERE + "/queues/orders", json={})
        yield found


def refused(answer: httpx2.Response) -> None:
    assert answer.status_code == 413
    assert answer.json()["code"] == "batch_too_large"
    assert "10000 bytes" in answer.json()["detail"]


def conversation(running: Running, *parts: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    host, _, number = running.url.removeprefix("http://").partition(":")
    with closing(socket.create_connection((host, int(number)), timeout=30)) as connection:
        for part in parts:
            connection.sendall(part)
        found = b""
        while more := connection.recv(65_536):
            found += more
        return found


def test_a_body_that_is_too_large_is_not_read(small: Running) -> None:
    refused(httpx2.post(small.url + MESSAGES, content=b"x" * (MOST + 1)))


def test_a_length_that_claims_too_much_is_refused_before_anything_came(small: Running) -> None:
    for length in (MOST + 1, 10**12, 10**30):
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        found = conversation(small, head.encode())
        assert found.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
        assert b"connection: close" in found.lower()


def test_a_body_without_a_length_is_counted_as_it_comes(small: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    refused(httpx2.post(small.url + MESSAGES, content=endless()))


def test_a_body_that_never_ends_is_refused_while_it_comes(small: Running) -> None:
    head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
    # Far beyond the bound: a connection that were closed with something unread would be reset, and the answer lost.
    found = conversation(small, head, *[chunk] * 1000)
    assert found.startswith(b"HTTP/1.1 413")


def test_a_body_in_parts_is_put_together(small: Running) -> None:
    def parts() -> Iterator[bytes]:
        for byte in json.dumps({"messages": ["aGk="]}).encode():
            yield bytes([byte])

    assert httpx2.post(small.url + MESSAGES, content=parts()).status_code == 200


def test_a_client_that_goes_in_the_middle_of_a_body_harms_nobody(small: Running) -> None:
    host, _, number = small.url.removeprefix("http://").partition(":")
    with closing(socket.create_connection((host, int(number)))) as connection:
        connection.sendall(
            f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{{".encode()
        )
    stats = httpx2.get(small.url + HERE + "/logs/orders/stats").json()
    assert stats["published"] == 0


@pytest.mark.parametrize("what", ["[", '{"a":'])
def test_what_is_nested_without_end_is_the_callers_mistake(running: Running, what: str) -> None:
    deep = '{"policy": {"a": ' + what * 40_000
    answer = httpx2.put(running.url + HERE + "/queues/orders", content=deep)
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid_argument"
    assert httpx2.get(running.url + "/health").text == "OK"


def test_more_than_a_message_may_have_is_refused_whole(client: httpx2.Client) -> None:
    client.put(HERE + "/queues/orders", json={"policy": {"max_message_bytes": 10}})
    answer = client.post(MESSAGES, json={"messages": ["aGk=", "eHh4eHh4eHh4eHh4eHh4eA=="]})
    assert (answer.status_code, answer.json()["code"]) == (413, "message_too_large")
    assert client.get(HERE + "/logs/orders/stats").json()["published"] == 0
