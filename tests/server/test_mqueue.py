"""The founding document's session, and what it leaves open."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import httpx2
import pytest

from penstock.clock import ManualClock
from tests.server.running import Running

ITEM = {"namespace": "default", "topic": "test-topic", "priority": 1, "payload": "SGVsbG8gV29ybGQ="}


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_documents_curl_session_works_as_written(running: Running) -> None:
    def curl(*arguments: str) -> str:
        done = subprocess.run(["curl", "-s", "-k", *arguments], capture_output=True, check=True, timeout=60)
        return done.stdout.decode()

    assert curl(f"{running.url}/health") == "OK"
    enqueued = curl(
        "-X", "POST", f"{running.url}/enqueue", "-H", "Authorization: Bearer <YOUR_JWT>", "-H", "Content-Type: application/json", "-d",
        """[{
    "namespace": "default",
    "topic": "test-topic",
    "priority": 1,
    "payload": "SGVsbG8gV29ybGQ=",
    "deliver_after": "2024-01-01T12:00:00Z"
  }]""",
    )  # fmt: skip
    (id_,) = [one["id"] for one in json.loads(enqueued)]
    dequeued = curl(
        f"{running.url}/dequeue?namespace=default&topic=test-topic&limit=1",
        "-H",
        "Authorization: Bearer <YOUR_JWT>",
    )
    (item,) = json.loads(dequeued)
    assert (item["id"], item["payload"], item["attempts"]) == (id_, "SGVsbG8gV29ybGQ=", 1)
    acked = curl(
        "-X", "POST", f"{running.url}/ack", "-H", "Authorization: Bearer <YOUR_JWT>", "-d",
        json.dumps({"id": id_, "namespace": "default", "topic": "test-topic"}),
    )  # fmt: skip
    assert json.loads(acked) == {"status": "acked"}
    assert curl(f"{running.url}/dequeue?namespace=default&topic=test-topic&limit=1") == "[]"


def test_an_array_may_be_for_several_queues_and_namespaces(client: httpx2.Client) -> None:
    items = [
        {**ITEM, "topic": topic, "namespace": space} for topic, space in zip("abab", "xxyx", strict=True)
    ]
    answer = client.post("/enqueue", json=items)
    assert answer.status_code == 202
    ids = [one["id"] for one in answer.json()]
    assert [one["id_str"] for one in answer.json()] == [str(one) for one in ids]
    found = {
        (space, topic): [
            one["id"] for one in client.get(f"/dequeue?namespace={space}&topic={topic}&limit=9").json()
        ]
        for space in "xy"
        for topic in "ab"
    }
    assert found == {("x", "a"): [ids[0]], ("x", "b"): [ids[1], ids[3]], ("y", "a"): [ids[2]], ("y", "b"): []}


def test_within_a_namespace_all_or_none_is_published(client: httpx2.Client) -> None:
    large = {**ITEM, "topic": "b", "payload": "A" * (1 << 21)}
    answer = client.post("/enqueue", json=[{**ITEM, "topic": "a"}, large])
    assert answer.status_code == 413
    assert client.get("/dequeue?topic=a").json() == []
    assert client.get("/v1/namespaces/default/queues").json() == {"names": []}


def test_what_was_published_before_another_namespace_was_refused_is_told(client: httpx2.Client) -> None:
    large = {**ITEM, "namespace": "y", "payload": "A" * (1 << 21)}
    answer = client.post("/enqueue", json=[{**ITEM, "namespace": "x"}, large])
    assert answer.status_code == 413
    assert "what is for x was published" in answer.json()["detail"]
    assert len(client.get("/dequeue?namespace=x&topic=test-topic").json()) == 1


def test_priority_goes_first_and_then_what_is_due(client: httpx2.Client, clock: ManualClock) -> None:
    when = "2000-01-01T00:00:00+00:00"
    client.post(
        "/enqueue",
        json=[
            {**ITEM, "priority": 9, "payload": "AAAA", "deliver_after": when},
            {**ITEM, "priority": 1, "payload": "AAAB", "deliver_after": "0001-01-01T00:00:00Z"},
            {
                **ITEM,
                "priority": 1,
                "payload": "AAAC",
                "deliver_after": "2999-01-01T00:00:00.123456789+01:00",
            },
        ],
    )
    found = client.get("/dequeue?topic=test-topic&limit=9").json()
    assert [one["payload"] for one in found] == ["AAAB", "AAAA"]
    assert [one["deliver_after"] for one in found] == ["0001-01-01T00:00:00Z", "2000-01-01T00:00:00Z"]


def test_a_past_deliver_after_delays_nothing_and_comes_back_as_it_was_given(client: httpx2.Client) -> None:
    given = ["2024-01-01T12:00:00Z", None, "0001-01-01T00:00:00+05:00", "2020-01-01T00:00:00Z"]
    items = [{**ITEM, "payload": f"AAA{n}", "deliver_after": when} for n, when in enumerate(given)]
    assert client.post("/enqueue", json=items).status_code == 202
    found = client.get("/dequeue?topic=test-topic&limit=9").json()
    assert [one["payload"] for one in found] == ["AAA0", "AAA1", "AAA2", "AAA3"]
    assert [one["deliver_after"] for one in found if one["payload"] != "AAA1"] == [
        "2024-01-01T12:00:00Z", "0001-01-01T00:00:00Z", "2020-01-01T00:00:00Z",
    ]  # fmt: skip


def test_headers_key_ttl_and_dedup_id_are_taken(client: httpx2.Client, clock: ManualClock) -> None:
    more = {"headers": {"a": "b"}, "key": "k", "ttl": 60, "dedup_id": "once"}
    first = client.post("/enqueue", json=[{**ITEM, **more}]).json()
    assert client.post("/enqueue", json=[{**ITEM, **more}]).json() == first
    (item,) = client.get("/dequeue?topic=test-topic&limit=9").json()
    assert (item["headers"], item["key"]) == ({"a": "b"}, "k")
    client.post("/enqueue", json=[{**ITEM, "topic": "t", "ttl": 1}])
    clock.advance(seconds=2)
    assert client.get("/dequeue?topic=t").json() == []


def test_a_lease_is_as_long_as_was_asked_for(client: httpx2.Client, clock: ManualClock) -> None:
    client.post("/enqueue", json=[ITEM])
    assert len(client.get("/dequeue?topic=test-topic&lease=600").json()) == 1
    clock.advance(seconds=599)
    assert client.get("/dequeue?topic=test-topic").json() == []
    clock.advance(seconds=2)
    (again,) = client.get("/dequeue?topic=test-topic").json()
    assert again["attempts"] == 2


def test_an_id_alone_settles_what_is_leased_now_and_a_receipt_only_its_own_lease(
    client: httpx2.Client, clock: ManualClock
) -> None:
    client.post("/enqueue", json=[ITEM])
    (first,) = client.get("/dequeue?topic=test-topic").json()
    clock.advance(seconds=31)
    named = {"namespace": "default", "topic": "test-topic"}
    assert client.post("/ack", json={**named, "id": first["id"]}).json()["code"] == "lease_lost"
    client.get("/dequeue?topic=test-topic")
    assert client.post("/ack", json={**named, "receipt": first["receipt"]}).json()["code"] == "lease_lost"
    assert client.post("/ack", json={**named, "id": first["id_str"]}).json() == {"status": "acked"}
    assert client.post("/ack", json={**named, "id": first["id"]}).status_code == 409


def test_a_nack_brings_it_back(client: httpx2.Client, clock: ManualClock) -> None:
    client.post("/enqueue", json=[ITEM])
    (first,) = client.get("/dequeue?topic=test-topic").json()
    named = {"namespace": "default", "topic": "test-topic"}
    answer = client.post("/nack", json={**named, "id": first["id"], "delay": 5, "error": "no"})
    assert answer.json() == {"status": "nacked"}
    assert client.get("/dequeue?topic=test-topic").json() == []
    clock.advance(seconds=6)
    assert client.get("/dequeue?topic=test-topic").json()[0]["attempts"] == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/enqueue", {}),
        ("/enqueue", [{}]),
        ("/enqueue", [{**ITEM, "topic": "a b"}]),
        ("/enqueue", [{**ITEM, "namespace": "a b"}]),
        ("/enqueue", [{**ITEM, "namespace": ""}]),
        ("/enqueue", [{**ITEM, "prioritty": 1}]),
        ("/enqueue", [{**ITEM, "priority": 256}]),
        ("/enqueue", [{**ITEM, "deliver_after": "soon"}]),
        ("/ack", {"topic": "test-topic"}),
        ("/ack", {"topic": "test-topic", "id": "one"}),
        ("/ack", {"topic": "test-topic", "id": -1}),
        ("/nack", {"topic": "test-topic", "receipt": "x"}),
        ("/nack", {"topic": "test-topic", "id": 1, "delay": -1}),
    ],
)
def test_what_is_wrong_is_refused(client: httpx2.Client, path: str, body: Any) -> None:
    client.post("/enqueue", json=[ITEM])
    assert client.post(path, json=body).status_code == 400


def test_nothing_is_made_by_looking(client: httpx2.Client) -> None:
    assert client.get("/dequeue?topic=nothing").json() == []
    assert client.get("/v1/namespaces/default/queues").json() == {"names": []}
    assert client.post("/ack", json={"topic": "nothing", "id": 1}).status_code == 404
    assert client.get("/dequeue").status_code == 400
    assert client.get("/dequeue?topic=a%20b").status_code == 400


def test_an_empty_array_is_nothing(client: httpx2.Client) -> None:
    answer = client.post("/enqueue", json=[])
    assert (answer.status_code, answer.json()) == (202, [])


def test_a_lease_of_what_is_settled_already_loses_it(client: httpx2.Client) -> None:
    client.put("/v1/namespaces/default/queues/once", json={"policy": {"delivery": "at-most-once"}})
    client.post("/enqueue", json=[{"namespace": "default", "topic": "once", "payload": "aGk="}])
    answer = client.get("/dequeue?namespace=default&topic=once&lease=10")
    assert (answer.status_code, [one["payload"] for one in answer.json()]) == (200, ["aGk="])
