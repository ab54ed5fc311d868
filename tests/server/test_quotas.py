"""What is above a namespace's quota is refused with the time to come back, and nothing of it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory, on_disk
from penstock.clock import ManualClock
from penstock.server.quotas import Quotas
from tests.server.running import Running

HERE = "/v1/namespaces/small"
ORDERS = HERE + "/logs/orders"
Serve = Callable[[str], httpx2.Client]


@pytest.fixture(params=["memory", "disk"])
def port(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Embedded]:
    """On a disk, what is published is there only when it is durable; a quota counts it before."""
    broker = in_memory(clock) if request.param == "memory" else on_disk(tmp_path / "data", clock)
    yield broker
    broker.close()


@pytest.fixture
def serve(port: Embedded, clock: ManualClock) -> Iterator[Serve]:
    running: list[Running] = []
    clients: list[httpx2.Client] = []

    def start(quota: str) -> httpx2.Client:
        quotas = Quotas.configured(quota, clock)
        port.monitor.engine.admits = quotas.admits
        running.append(Running(port, quotas=quotas))
        clients.append(httpx2.Client(base_url=running[-1].url))
        clients[-1].put(HERE + "/queues/orders", json={})
        return clients[-1]

    yield start
    for client in clients:
        client.close()
    for one in running:
        one.stop()


def item(payload: str = "aGk=") -> dict[str, Any]:
    return {"namespace": "small", "topic": "orders", "payload": payload}


def refused(answer: httpx2.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")


def published(client: httpx2.Client) -> int:
    found: int = client.get(HERE).json()["published"]
    return found


def test_enqueues_of_a_minute_are_counted_on_every_way_in(serve: Serve, clock: ManualClock) -> None:
    client = serve("small:4")
    assert client.post(ORDERS + "/messages", json={"messages": ["", ""]}).status_code == 200
    assert client.post("/enqueue", json=[item()]).status_code == 202
    two = {"steps": [{"log": "orders", "messages": ["", ""]}]}
    for answer in (
        client.post(ORDERS + "/messages", json={"messages": ["", ""]}),
        client.post("/enqueue", json=[item(), item()]),
        client.post(HERE + "/transactions", json=two),
    ):
        refused(answer)
        assert int(answer.headers["retry-after"]) > 0
    assert published(client) == 3
    assert client.post(HERE + "/route", json={"pattern": "orders", "message": ""}).status_code == 200
    refused(client.post(HERE + "/route", json={"pattern": "orders", "message": ""}))
    clock.advance(seconds=62)
    assert client.post(HERE + "/transactions", json=two).status_code == 200


def test_a_message_for_many_counts_as_many(serve: Serve) -> None:
    client = serve("small:2")
    for name in ("orders.a", "orders.b", "orders.c"):
        client.put(f"{HERE}/topics/{name}", json={})
    refused(client.post(HERE + "/route", json={"pattern": "orders.*", "message": ""}))
    assert published(client) == 0


def test_what_never_fits_is_not_to_be_tried_again(serve: Serve) -> None:
    client = serve("small:2")
    answer = client.post(ORDERS + "/messages", json={"messages": [""] * 3})
    refused(answer)
    assert not answer.json()["retryable"]
    assert "retry-after" not in answer.headers


def test_bytes_are_counted(serve: Serve) -> None:
    client = serve("small:100/bytes=10")
    assert client.post(ORDERS + "/messages", json={"messages": ["AAAAAAAA"]}).status_code == 200  # 6 bytes
    refused(client.post(ORDERS + "/messages", json={"messages": [{"payload": "AAAAAAAA"}]}))
    refused(client.post("/enqueue", json=[item("AAAAAAAA")]))
    assert published(client) == 1


def test_no_more_queues_are_made_than_the_quota_has_on_any_way(serve: Serve) -> None:
    client = serve("small:100/queues=2")
    assert client.put(HERE + "/topics/events", json={}).status_code == 201
    for answer in (
        client.put(HERE + "/queues/more", json={}),
        client.put(HERE + "/topics/more", json={}),
        client.post("/enqueue", json=[{**item(), "topic": "more"}]),
        client.get("/dequeue?namespace=small&topic=more&wait=1"),
        client.post(HERE + "/transactions", json={"steps": [{"log": "more", "messages": [""]}]}),
    ):
        refused(answer)
    assert client.put(HERE + "/queues/orders", json={}).status_code == 200  # what is there is not made
    assert client.get(HERE).json()["queues"] == 1


def test_a_queue_counts_from_when_a_policy_names_it_for_dead_letters(serve: Serve) -> None:
    client = serve("small:100/queues=3")
    naming = {"policy": {"dead_letter": "failed"}}
    assert client.patch(HERE + "/queues/orders", json=naming).status_code == 200
    refused(client.put(HERE + "/queues/more", json={"policy": {"dead_letter": "other"}}))
    assert client.put(HERE + "/queues/more", json=naming).status_code == 201  # both name the same one
    refused(client.patch(HERE + "/queues/more", json={"policy": {"dead_letter": "other"}}))
    refused(client.put(HERE + "/queues/third", json={}))
    assert client.post(ORDERS + "/dead-letters").json()["name"] == "failed"
    assert client.put(HERE + "/queues/failed", json={}).status_code == 200
    # What belongs to a queue, or is named no more, does not count.
    for name in ("orders", "more"):
        client.patch(HERE + f"/queues/{name}", json={"policy": {"dead_letter": None}})
        assert client.post(HERE + f"/logs/{name}/dead-letters").json()["name"] == f"{name}.dlq"
    client.delete(HERE + "/queues/failed")
    assert client.put(HERE + "/queues/third", json={}).status_code == 201
    refused(client.patch(HERE + "/queues/third", json={"policy": {"dead_letter": "nobody.dlq"}}))
    assert (
        client.patch(HERE + "/queues/third", json={"policy": {"dead_letter": "more.dlq"}}).status_code == 200
    )


def test_no_more_is_stored_than_the_quota_has(serve: Serve) -> None:
    client = serve("small:100/depth=2")
    assert client.post(ORDERS + "/messages", json={"messages": ["", ""]}).status_code == 200
    refused(client.post(ORDERS + "/messages", json={"messages": [""]}))
    found = client.post(ORDERS + "/groups/default/lease").json()["deliveries"]
    refused(client.post("/enqueue", json=[item()]))
    client.post(ORDERS + "/settle", json={"receipts": [found[0]["receipt"]]})
    assert client.post("/enqueue", json=[item()]).status_code == 202


def test_others_are_not_counted(serve: Serve) -> None:
    client = serve("small:1")
    items = [{**item(), "namespace": "other"}] * 5
    assert client.post("/enqueue", json=items).status_code == 202


def test_publishes_at_once_overfill_a_namespace(serve: Serve) -> None:
    client = serve("small:1000000/depth=4")
    with ThreadPoolExecutor(20) as many:
        body = {"messages": ["", "", ""]}
        answers = list(many.map(lambda _: client.post(ORDERS + "/messages", json=body), range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] + [429] * 19
    assert client.get(ORDERS + "/stats").json()["depth"] == 3


def test_what_is_refused_for_another_reason_is_counted(serve: Serve) -> None:
    client = serve("small:2")
    client.patch(HERE + "/queues/orders", json={"policy": {"max_message_bytes": 3}})
    large = "eHh4eHh4eHh4eHh4"
    for _ in range(5):
        assert client.post(ORDERS + "/messages", json={"messages": [large]}).status_code == 413
        assert client.post("/enqueue", json=[item(large)]).status_code == 413
        steps = {"steps": [{"log": "orders", "messages": [large]}]}
        assert client.post(HERE + "/transactions", json=steps).status_code == 413
        assert client.post(HERE + "/route", json={"pattern": "orders", "message": large}).status_code == 413
    assert client.post(ORDERS + "/messages", json={"messages": ["", ""]}).status_code == 200


def test_settling_is_refused_where_a_namespace_is_over_its_depth(serve: Serve) -> None:
    client = serve("small:1000/depth=2")
    client.post(ORDERS + "/messages", json={"messages": ["", ""]})
    leased = client.post(ORDERS + "/groups/default/lease", json={"count": 2}).json()["deliveries"]
    steps = {"steps": [{"log": "orders", "receipts": [one["receipt"] for one in leased]}]}
    assert client.post(HERE + "/transactions", json=steps).status_code == 200


def test_headers_pass_a_quota_of_bytes(serve: Serve) -> None:
    client = serve("small:1000/bytes=100")
    message = {"payload": "", "headers": {"x": "y" * 100}}
    refused(client.post(ORDERS + "/messages", json={"messages": [message]}))


def test_a_wrong_lease_takes_a_message(serve: Serve) -> None:
    client = serve("small:1000")
    client.post(ORDERS + "/messages", json={"messages": ["aGk="]})
    for wrong in ("-1", "nan", "1e30"):
        answer = client.get(f"/dequeue?namespace=small&topic=orders&lease={wrong}")
        assert answer.status_code == 400
    (found,) = client.get("/dequeue?namespace=small&topic=orders&lease=60").json()
    assert found["attempts"] == 1


def test_letters_of_several_bytes_pass_a_quota_of_bytes(serve: Serve) -> None:
    client = serve("small:100/bytes=100")
    refused(
        client.post(
            ORDERS + "/messages", json={"messages": [{"payload": "", "headers": {"x": "\u20ac" * 40}}]}
        )
    )


def test_who_has_all_his_queues_is_told_to_come_back(serve: Serve) -> None:
    answer = serve("small:100/queues=1").put(HERE + "/queues/more", json={})
    refused(answer)
    assert "retry-after" not in answer.headers
    assert answer.json().get("retry_after") is None


def test_a_message_that_recurs_passes_the_quota(serve: Serve, clock: ManualClock) -> None:
    client = serve("small:3/depth=3")
    hourly = {"cron": "0 * * * *", "message": "aGk="}
    for name in ("one", "two", "three"):
        assert client.put(f"{ORDERS}/schedules/{name}", json=hourly).status_code == 200
    refused(client.put(ORDERS + "/schedules/four", json=hourly))  # the minute is used up
    clock.advance(seconds=3600)
    assert published(client) == 3
    refused(client.post(ORDERS + "/messages", json={"messages": [""]}))  # they counted
    clock.advance(seconds=3600)
    assert published(client) == 3  # there is no room
    client.post(ORDERS + "/purge")
    clock.advance(seconds=3600)
    assert published(client) == 6


def test_a_message_that_its_queue_does_not_take_uses_up_the_quota(serve: Serve, clock: ManualClock) -> None:
    client = serve("small:2")
    client.put(HERE + "/queues/full", json={"policy": {"max_depth": 1}})
    assert client.post(HERE + "/logs/full/messages", json={"messages": [""]}).status_code == 200
    hourly = {"cron": "0 * * * *", "message": "aGk="}
    assert client.put(HERE + "/logs/full/schedules/one", json=hourly).status_code == 200
    clock.advance(seconds=3600)
    assert client.get(HERE + "/logs/full/stats").json()["published"] == 1
    assert client.post(ORDERS + "/messages", json={"messages": ["", ""]}).status_code == 200


def test_bytes_of_a_message_that_recurs_are_not_counted(serve: Serve, clock: ManualClock) -> None:
    client = serve("small:1000/bytes=1000")
    message = {"payload": "", "headers": {"note": "n" * 400}}
    client.put(ORDERS + "/schedules/one", json={"cron": "0 * * * *", "message": message})
    clock.advance(seconds=3600)
    assert published(client) == 1
    refused(client.post(ORDERS + "/messages", json={"messages": [message, message]}))
