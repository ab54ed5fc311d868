"""Whoever waits gets what comes, leaves nothing behind when he goes, and does not keep a server from stopping."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx2
import pytest

from penstock.broker.embedded import Embedded
from penstock.clock import ManualClock
from penstock.model.queries import Find
from penstock.server.bounds import Bounds
from penstock.server.connections import Guard
from tests import asking
from tests.server.running import Running

HERE = "/v1/namespaces/default"
ORDERS = HERE + "/logs/orders"
LEASE = ORDERS + "/groups/default/lease"


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    for _ in range(30_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not happen")


def waiting(running: Running, count: int) -> Callable[[], bool]:
    return lambda: running.front.waiting == count


def stands_in_line(port: Embedded, count: int = 1) -> Callable[[], bool]:
    def look() -> bool:
        log = port.describe(Find("default", "orders")).wait()
        return log is not None and asking.stats(port, log).waiting == count

    return look


def connected(running: Running) -> socket.socket:
    host, _, number = running.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(number)))


def send_lease(connection: socket.socket, **body: Any) -> None:
    content = json.dumps({"wait": 40, **body}).encode()
    head = f"POST {LEASE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(16) as found:
        yield found


def later(
    pool: ThreadPoolExecutor, running: Running, method: str, path: str, **more: Any
) -> Future[httpx2.Response]:
    return pool.submit(httpx2.request, method, running.url + path, timeout=60, **more)


def test_whoever_waits_gets_what_is_published(
    client: httpx2.Client, running: Running, port: Embedded, pool: ThreadPoolExecutor
) -> None:
    client.put(HERE + "/queues/orders", json={})
    answer = later(pool, running, "POST", LEASE, json={"wait": 40})
    until(stands_in_line(port))
    client.post(ORDERS + "/messages", json={"messages": ["aGk="]})
    assert [one["payload"] for one in answer.result(30).json()["deliveries"]] == ["aGk="]
    until(waiting(running, 0))


def test_whoever_waits_for_nothing_gets_nothing_when_his_time_is_over(
    client: httpx2.Client, running: Running, port: Embedded, pool: ThreadPoolExecutor, clock: ManualClock
) -> None:
    client.put(HERE + "/queues/orders", json={})
    leasing = later(pool, running, "POST", LEASE, json={"wait": 40})
    reading = later(pool, running, "GET", ORDERS + "/messages?wait=40")
    watching = later(pool, running, "GET", ORDERS + "/watch?wait=40")
    until(waiting(running, 3))
    until(stands_in_line(port))
    clock.advance(seconds=41)
    assert leasing.result(30).json() == {"group": "default", "number": 0, "deliveries": []}
    assert reading.result(30).json() == {"messages": [], "next": 0, "missed": 0}
    assert watching.result(30).json() == {"was": False}


def test_nobody_waits_longer_than_the_server_lets_him(
    port: Embedded, pool: ThreadPoolExecutor, clock: ManualClock
) -> None:
    with Running(port, bounds=Bounds(wait_s_max=5)) as running:
        httpx2.put(running.url + HERE + "/queues/orders", json={})
        answer = later(pool, running, "POST", LEASE, json={"wait": 1e9})
        until(stands_in_line(port))
        clock.advance(seconds=6)
        assert answer.result(30).json()["deliveries"] == []


def test_a_waiting_lease_that_settles_gets_what_an_answer_may_hold(
    port: Embedded, pool: ThreadPoolExecutor
) -> None:
    with Running(port, bounds=Bounds(answer_bytes_max=1200)) as running:
        httpx2.put(running.url + HERE + "/queues/orders", json={})
        answer = later(pool, running, "POST", LEASE, json={"wait": 40, "count": 50, "auto_ack": True})
        until(stands_in_line(port))
        httpx2.post(running.url + ORDERS + "/messages", json={"messages": ["eHh4" * 130] * 5})
        assert [one["offset"] for one in answer.result(30).json()["deliveries"]] == [0, 1]
        assert httpx2.get(running.url + ORDERS + "/stats").json()["depth"] == 3


def test_readers_and_watchers_are_woken(
    client: httpx2.Client, running: Running, pool: ThreadPoolExecutor
) -> None:
    client.put(HERE + "/queues/orders", json={})
    reading = later(pool, running, "GET", ORDERS + "/messages?wait=40")
    watching = later(pool, running, "GET", ORDERS + "/watch?wait=40")
    until(waiting(running, 2))
    client.post(ORDERS + "/messages", json={"messages": ["aGk="]})
    assert reading.result(30).json()["next"] == 1
    assert watching.result(30).json() == {"was": True}


def test_a_client_that_goes_while_it_waits_leaves_nothing_leased(
    client: httpx2.Client, running: Running, port: Embedded
) -> None:
    client.put(HERE + "/queues/orders", json={})
    with closing(connected(running)) as gone:
        send_lease(gone)
        until(stands_in_line(port))
    until(stands_in_line(port, 0))
    until(waiting(running, 0))
    client.post(ORDERS + "/messages", json={"messages": ["aGk="]})
    found = client.get(ORDERS + "/stats").json()
    assert (found["ready"], found["leased"]) == (1, 0)


def test_what_was_granted_to_a_client_that_had_gone_goes_back(
    client: httpx2.Client, running: Running, port: Embedded
) -> None:
    """The message and the end of the connection are seen in the same turn of the loop."""
    client.put(HERE + "/queues/orders", json={})
    log = asking.find(port)
    assert running.loop is not None
    connection = connected(running)
    send_lease(connection)
    until(stands_in_line(port))
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        let_go.wait(30)

    running.loop.call_soon_threadsafe(hold)
    assert held.wait(30)
    asking.publish(port, log, [b"hi"])
    assert asking.stats(port, log).leased == 1
    connection.close()
    let_go.set()
    until(waiting(running, 0))
    found = asking.stats(port, log)
    assert (found.ready, found.leased) == (1, 0)
    assert client.post(LEASE).json()["deliveries"][0]["attempt"] == 1


@pytest.mark.parametrize("path", [LEASE, "/dequeue?topic=orders", "/dequeue?topic=orders&lease=60"])
def test_what_was_granted_at_once_to_a_client_that_had_gone_goes_back(
    client: httpx2.Client, running: Running, port: Embedded, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    client.put(HERE + "/queues/orders", json={})
    client.post(ORDERS + "/messages", json={"messages": ["aGk="]})
    log = asking.find(port)
    seen = threading.Event()
    is_closing = Guard.is_closing

    def has_gone(connection: Guard) -> bool:
        """As if its end had come while the lease was recorded."""
        seen.set()
        return True

    monkeypatch.setattr(Guard, "is_closing", has_gone)
    with closing(connected(running)) as gone:
        method = "POST" if path == LEASE else "GET"
        gone.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        assert seen.wait(30)
        until(lambda: asking.stats(port, log).ready == 1)
    monkeypatch.setattr(Guard, "is_closing", is_closing)
    assert client.post(LEASE).json()["deliveries"][0]["attempt"] == 1


def test_what_was_extended_for_a_client_that_had_gone_stays_leased(
    client: httpx2.Client, running: Running, port: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put(HERE + "/queues/orders", json={})
    client.post(ORDERS + "/messages", json={"messages": ["aGk="]})
    log = asking.find(port)
    extended, extend = threading.Event(), port.extend

    def extend_and_go(*given: Any) -> Any:
        extended.set()
        return extend(*given)

    monkeypatch.setattr(port, "extend", extend_and_go)
    monkeypatch.setattr(Guard, "is_closing", lambda _connection: extended.is_set())
    with closing(connected(running)) as gone:
        gone.sendall(b"GET /dequeue?topic=orders&lease=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert extended.wait(30)
        until(lambda: asking.stats(port, log).ready == 1)


def test_stopping_ends_what_waits_and_answers_it(port: Embedded, pool: ThreadPoolExecutor) -> None:
    with Running(port) as running:
        httpx2.put(running.url + HERE + "/queues/orders", json={})
        leasing = later(pool, running, "POST", LEASE, json={"wait": 40})
        reading = later(pool, running, "GET", ORDERS + "/messages?wait=40")
        until(waiting(running, 2))
        until(stands_in_line(port))
        running.stop()
        assert leasing.result(30).json()["deliveries"] == []
        assert reading.result(30).json()["messages"] == []


def test_while_it_stops_nobody_begins_to_wait_and_publishes_are_answered(port: Embedded) -> None:
    with Running(port) as running, httpx2.Client(base_url=running.url) as client:
        client.put(HERE + "/queues/orders", json={})
        assert running.loop is not None
        running.loop.call_soon_threadsafe(running.front.stop)
        until(lambda: running.front.stopping)
        assert client.post(LEASE, json={"wait": 40}).json()["deliveries"] == []
        assert client.get(ORDERS + "/messages?wait=40").json()["messages"] == []
        assert client.post(ORDERS + "/messages", json={"messages": [""]}).status_code == 200
        assert client.get("/ready").status_code == 503
        assert client.get("/health").text == "OK"


@pytest.mark.parametrize(
    "bounds", [Bounds(long_polls_max=1), Bounds(long_polls_per_caller_max=1)], ids=["in-all", "of-one-caller"]
)
def test_a_place_to_wait_is_not_to_be_had_by_everybody(port: Embedded, bounds: Bounds) -> None:
    with Running(port, bounds=bounds) as running, httpx2.Client(base_url=running.url) as client:
        client.put(HERE + "/queues/orders", json={})
        with closing(connected(running)) as one:
            send_lease(one)
            until(waiting(running, 1))
            for refused in (
                client.post(LEASE, json={"wait": 40}),
                client.get(ORDERS + "/messages?wait=40"),
                client.get(ORDERS + "/watch?wait=40"),
                client.get(ORDERS + "/tail"),
                client.get(HERE + "/stats/stream"),
                client.get("/dequeue?topic=orders&wait=40"),
            ):
                assert refused.status_code == 503
                assert refused.json()["code"] == "too_many_waiting"
                assert refused.headers["retry-after"] == "1"
            assert client.post(LEASE).status_code == 200  # who does not wait needs no place
        until(waiting(running, 0))
        client.post(ORDERS + "/messages", json={"messages": [""]})
        assert client.post(LEASE, json={"wait": 40}).status_code == 200


def test_a_queue_that_is_deleted_says_so_to_whoever_waits(
    client: httpx2.Client, running: Running, port: Embedded, pool: ThreadPoolExecutor
) -> None:
    client.put(HERE + "/queues/orders", json={})
    answer = later(pool, running, "POST", LEASE, json={"wait": 40})
    until(stands_in_line(port))
    client.delete(HERE + "/queues/orders")
    assert answer.result(30).json()["code"] == "queue_not_found"
