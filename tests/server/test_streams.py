"""Server-sent events: nothing is lost between two connections, and a stream ends when the server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.embedded import Embedded
from penstock.broker.handing import alive
from penstock.broker.opening import on_disk
from penstock.clock import SECOND_US, ManualClock
from penstock.model.queries import OfLog
from penstock.server.accounts import Accounts
from penstock.server.bounds import Bounds
from penstock.server.http import streams
from penstock.server.http.app import create
from penstock.server.http.parties import CONNECTION, NoConnection
from penstock.server.keys import Keys, Signer
from tests import asking
from tests.server.running import Running
from tests.server.test_long_polls import until, waiting

HERE = "/v1/namespaces/default"
ORDERS = HERE + "/logs/orders"


def publish(client: httpx2.Client, *payloads: str) -> None:
    assert client.post(ORDERS + "/messages", json={"messages": list(payloads)}).status_code == 200


@contextmanager
def stream(running: Running, path: str, **headers: str) -> Iterator[Iterator[dict[str, str]]]:
    """The events of a stream, each by its fields; what is no event has the field of its comment, or of what it sets."""
    with httpx2.stream("GET", running.url + path, headers=headers, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        def events() -> Iterator[dict[str, str]]:
            found: dict[str, str] = {}
            for line in answer.iter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    found[name] = value
                else:
                    yield found
                    found = {}

        yield events()


def payload(event: dict[str, str]) -> Any:
    return json.loads(event["data"])["payload"]


def test_a_tail_gives_what_is_stored_and_what_comes(client: httpx2.Client, running: Running) -> None:
    client.put(HERE + "/queues/orders", json={})
    publish(client, "AAAA", "AAAB")
    with stream(running, ORDERS + "/tail?start=earliest") as events:
        assert next(events) == {"retry": "1000"}
        assert [payload(next(events)), payload(next(events))] == ["AAAA", "AAAB"]
        publish(client, "AAAC")
        third = next(events)
        assert (third["id"], payload(third)) == ("2", "AAAC")
    until(waiting(running, 0))


def test_a_tail_goes_on_behind_the_last_event_that_was_seen(client: httpx2.Client, running: Running) -> None:
    client.put(HERE + "/queues/orders", json={})
    publish(client, "AAAA", "AAAB", "AAAC")
    with stream(running, ORDERS + "/tail?start=earliest", **{"last-event-id": "1"}) as events:
        next(events)
        assert next(events)["id"] == "2"


def test_a_tail_begins_at_an_offset_or_at_what_comes_next(client: httpx2.Client, running: Running) -> None:
    client.put(HERE + "/queues/orders", json={})
    publish(client, "AAAA", "AAAB")
    with stream(running, ORDERS + "/tail?offset=1") as events:
        next(events)
        assert next(events)["id"] == "1"
    with stream(running, ORDERS + "/tail") as events:
        next(events)
        publish(client, "AAAC")
        assert next(events)["id"] == "2"


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?start=middle", {}), ("?offset=-1", {}), ("?offset=1&start=latest", {}), ("", {"last-event-id": "x"})],
)
def test_a_tail_from_nowhere_is_refused(client: httpx2.Client, query: str, headers: dict[str, str]) -> None:
    client.put(HERE + "/queues/orders", json={})
    assert client.get(ORDERS + "/tail" + query, headers=headers).status_code == 400


def test_a_tail_of_nothing_is_not_found(client: httpx2.Client) -> None:
    assert client.get(ORDERS + "/tail").status_code == 404


def test_a_silent_tail_says_that_it_lives(port: Embedded, clock: ManualClock) -> None:
    with Running(port, bounds=Bounds(heartbeat_s=5)) as running:
        httpx2.put(running.url + HERE + "/queues/orders", json={})
        log = asking.find(port)
        assert log is not None
        with stream(running, ORDERS + "/tail") as events:
            next(events)
            for _ in range(2):
                until(lambda: bool(port.monitor.lines.of_log(alive(log))))
                clock.advance(seconds=5)
                assert next(events) == {"": "alive"}


def test_a_deleted_queue_ends_its_tail_with_a_problem(client: httpx2.Client, running: Running) -> None:
    client.put(HERE + "/queues/orders", json={})
    with stream(running, ORDERS + "/tail") as events:
        next(events)
        client.delete(HERE + "/queues/orders")
        last = next(events)
        assert last["event"] == "problem"
        assert json.loads(last["data"])["code"] == "queue_not_found"
        assert list(events) == []


def test_what_was_dropped_before_it_was_read_is_counted(
    client: httpx2.Client, running: Running, clock: ManualClock
) -> None:
    client.put(HERE + "/topics/orders", json={"policy": {"retain_seconds": 60}})
    publish(client, "AAAA", "AAAB")
    clock.advance(seconds=120)
    publish(client, "AAAC")
    with stream(running, ORDERS + "/tail?offset=0") as events:
        next(events)
        missed = next(events)
        assert (missed["event"], missed["data"]) == ("missed", '{"missed":2}')
        assert next(events)["id"] == "2"


def test_statistics_come_again_and_again(client: httpx2.Client, running: Running) -> None:
    client.put(HERE + "/queues/orders", json={})
    with stream(running, HERE + "/stats/stream?interval=0.1") as events:
        told = (json.loads(event["data"]) for event in events if "data" in event)  # others say that it lives
        first = next(told)
        assert (first["stats"]["queues"], first["logs"][0]["name"], first["left_out"]) == (1, "orders", 0)
        publish(client, "AAAA")
        while next(told)["logs"][0]["published"] == 0:
            pass
    assert client.get(HERE + "/stats/stream?interval=0").status_code == 400
    until(waiting(running, 0))


def told(running: Running, **headers: str) -> Any:
    """What the first event of a new stream of statistics says."""
    with stream(running, HERE + "/stats/stream?interval=3000", **headers) as events:
        return next(json.loads(event["data"]) for event in events if "data" in event)


def test_streams_of_a_namespace_share_statistics(port: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SHARED_S_MAX", 3000.0)
    described: list[str] = []
    describe = port.describe

    def noting(query: Any) -> Any:
        if isinstance(query, OfLog):
            described.append(query.log.name)
        return describe(query)

    monkeypatch.setattr(port, "describe", noting)
    for name in ("a", "b"):
        asking.declare(port, name)
    asking.declare(port, "c", "other")
    with Running(port) as running:
        assert [[log["name"] for log in told(running)["logs"]] for _ in range(3)] == [["a", "b"]] * 3
        assert described == ["a", "b"]
        with stream(running, "/v1/namespaces/other/stats/stream?interval=3000") as events:
            assert ["c" in event.get("data", "") for event in (next(events), next(events))] == [False, True]


def test_statistics_are_of_a_bounded_size(port: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STATS_BYTES_MAX", 1000)
    for at in range(20):
        asking.declare(port, f"q{at:02}")
    with Running(port) as running:
        found = told(running)
    assert 1 <= len(found["logs"]) <= 5
    assert (len(found["logs"]) + found["left_out"], found["stats"]["queues"]) == (20, 20)


def test_shared_statistics_tell_of_the_journal_to_an_admin_alone(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SHARED_S_MAX", 3000.0)
    port = on_disk(tmp_path / "data", clock)
    guarded = Guarded(port, clock)
    claims = {"exp": clock.now_us() // SECOND_US + 3600, "namespaces": ["*"], "permissions": ["*"]}
    admin = {"authorization": f"Bearer {Signer.from_secret(SECRET).sign(claims)}"}
    try:
        assert told(guarded.running, **admin)["stats"]["journal"] is not None
        assert told(guarded.running, **guarded.headers)["stats"]["journal"] is None
    finally:
        guarded.running.stop()
        port.close()


def test_streams_end_when_the_server_does(port: Embedded) -> None:
    with Running(port) as running:
        httpx2.put(running.url + HERE + "/queues/orders", json={})
        with (
            stream(running, ORDERS + "/tail") as tail,
            stream(running, HERE + "/stats/stream?interval=3000") as statistics,
        ):
            next(tail)
            next(statistics)
            next(statistics)
            until(waiting(running, 2))
            running.stop()
            assert list(tail) == []
            assert list(statistics) == []


# --- a client that has gone ---


class Ending(NoConnection):
    """A connection that ends."""

    def __init__(self) -> None:
        self._has_ended = False

    def end(self) -> None:
        self._has_ended = True

    def is_closing(self) -> bool:
        return self._has_ended


@pytest.mark.parametrize("path", [ORDERS + "/tail?start=earliest", HERE + "/stats/stream?interval=0.1"])
def test_a_stream_without_a_client_ends_and_keeps_nobody_from_his_turn(port: Embedded, path: str) -> None:
    """To one who has gone nothing is sent, and that never waits: the rest of a backlog would be read at one go."""
    log = asking.declare(port)
    asking.publish(port, log, [b"x"] * 500)
    turns, seen = 0, []

    async def converse() -> None:
        connection = Ending()

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if b"data: " in message.get("body", b""):
                seen.append(turns)
                asyncio.get_running_loop().call_soon(connection.end)

        async def another() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        app = create(port, bounds=Bounds(page_messages=10))
        bare, _, query = path.partition("?")
        scope = {"type": "http", "method": "GET", "path": bare, "raw_path": bare.encode(), "query_string": query.encode(), "headers": [],
                 "scheme": "http", "server": ("here", 80), "client": ("there", 1), "http_version": "1.1", "asgi": {"version": "3.0"},
                 "root_path": "", "extensions": {}, CONNECTION: connection}  # fmt: skip
        other = asyncio.ensure_future(another())
        await app(scope, receive, send)
        other.cancel()
        assert app.front.waiting == 0

    asyncio.run(asyncio.wait_for(converse(), 60))
    assert 1 <= len(seen) <= 3, "of fifty pages"
    assert len(set(seen)) == len(seen), "somebody else ran between any two"


# --- tokens ---

SECRET = "0123456789abcdef0123456789abcdef"


class Guarded:
    """A server with a key, and a token for an hour."""

    def __init__(self, port: Embedded, clock: ManualClock) -> None:
        self.accounts = Accounts(Keys.from_secret(SECRET), clock=clock)
        self.running = Running(port, accounts=self.accounts, bounds=Bounds(heartbeat_s=5))
        claims = {"sub": "reader", "exp": clock.now_us() // SECOND_US + 3600}
        self.headers = {"authorization": f"Bearer {Signer.from_secret(SECRET).sign(claims)}"}
        self.port = port
        self.log = asking.declare(port)

    def publish(self, payload: bytes) -> None:
        asking.publish(self.port, self.log, [payload])

    def stands_in_line(self) -> bool:
        return bool(self.port.monitor.lines.of_log(alive(self.log)))


@pytest.fixture
def guarded(port: Embedded, clock: ManualClock) -> Iterator[Guarded]:
    found = Guarded(port, clock)
    yield found
    found.running.stop()


def ends_unauthorized(events: Iterator[dict[str, str]]) -> None:
    *before, last = events
    assert all("id" not in one for one in before), "something was still told"
    assert (last["event"], json.loads(last["data"])["code"]) == ("problem", "unauthorized")


def test_a_tail_outlives_its_token(guarded: Guarded, clock: ManualClock) -> None:
    with stream(guarded.running, ORDERS + "/tail", **guarded.headers) as events:
        next(events)
        until(guarded.stands_in_line)
        clock.advance(seconds=3598)
        assert next(events) == {"": "alive"}
        until(guarded.stands_in_line)
        clock.advance(seconds=2)  # less than until the next heartbeat
        ends_unauthorized(events)


def test_a_tail_outlives_the_key_of_its_token(guarded: Guarded) -> None:
    with stream(guarded.running, ORDERS + "/tail", **guarded.headers) as events:
        next(events)
        guarded.accounts.replace(Keys.from_secret(SECRET))
        guarded.publish(b"for him")
        assert next(events)["id"] == "0", "the same key was read again"
        guarded.accounts.replace(Keys.from_secret(SECRET[::-1]))
        guarded.publish(b"for nobody")
        ends_unauthorized(events)


def test_statistics_outlive_their_token(guarded: Guarded, clock: ManualClock) -> None:
    with stream(guarded.running, HERE + "/stats/stream?interval=0.1", **guarded.headers) as events:
        next(events)
        assert next(events)["event"] == "stats"
        clock.advance(seconds=3600)
        ends_unauthorized(events)


def test_a_long_poll_ends_with_its_token(guarded: Guarded, clock: ManualClock) -> None:
    clock.advance(seconds=3590)
    asks = [("POST", ORDERS + "/groups/default/lease"), ("GET", ORDERS + "/messages?wait=40"), ("GET", "/dequeue?topic=orders&wait=40")]  # fmt: skip
    with ThreadPoolExecutor(3) as pool:
        answers = [
            pool.submit(httpx2.request, method, guarded.running.url + path, headers=guarded.headers, timeout=60,
                        json={"wait": 40} if method == "POST" else None)
            for method, path in asks
        ]  # fmt: skip
        until(lambda: len(guarded.port.monitor.lines.of_log(alive(guarded.log))) == 3)
        clock.advance(seconds=10)
        found = [answer.result(30) for answer in answers]
    assert [one.status_code for one in found] == [200] * 3
    assert found[0].json()["deliveries"] == found[1].json()["messages"] == found[2].json() == []


def test_a_long_poll_of_a_replaced_key_is_given_nothing(guarded: Guarded) -> None:
    with ThreadPoolExecutor(1) as pool:
        url = guarded.running.url + "/dequeue?topic=orders&wait=40"
        answer = pool.submit(httpx2.get, url, headers=guarded.headers, timeout=60)
        until(guarded.stands_in_line)
        guarded.accounts.replace(Keys.from_secret(SECRET[::-1]))
        guarded.publish(b"for nobody")
        assert answer.result(30).status_code == 401
    found = asking.stats(guarded.port, guarded.log)
    assert (found.ready, found.leased) == (1, 0)
