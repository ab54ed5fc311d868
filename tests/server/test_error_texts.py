"""What a client that is no Python program reads when its request is refused."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

HERE = "/v1/namespaces/default"
QUEUE = HERE + "/queues/orders"
LOG = HERE + "/logs/orders"

#: What only a Python program can write.
PYTHON = re.compile(r"\w\(|datetime\.|\bNone\b|\bTrue\b|Backoff|penstock\.\w")


@pytest.fixture
def orders(client: httpx2.Client) -> httpx2.Client:
    assert client.put(QUEUE, json={"policy": {"max_attempts": 5}}).status_code == 201
    assert client.put(HERE + "/topics/events", json={}).status_code == 201
    return client


def detail(answer: httpx2.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    found: str = answer.json()["detail"]
    return found


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", HERE + "/queues/nowhere", None),
        ("GET", HERE + "/logs/nowhere.dlq/stats", None),
        ("GET", HERE + "/topics/nowhere", None),
        ("GET", HERE + "/topics/orders", None),
        ("PUT", QUEUE, {"create": True}),
        ("PUT", QUEUE, {"policy": {"max_attempts": 6}}),
        ("PUT", QUEUE, {"policy": {"max_attempts": "6"}}),
        ("PUT", QUEUE, {"policy": {"backoff": 5}}),
        ("PUT", QUEUE, {"policy": {"backoff": {"initial": "5"}}}),
        ("PUT", QUEUE, {"policy": {"ttl": "5"}}),
        ("PUT", QUEUE, {"policy": {"durable": "yes"}}),
        ("PUT", QUEUE, {"policy": {"durable": False, "delivery": "exactly-once"}}),
        ("PUT", QUEUE, {"policy": {"single_active": True, "strategy": "random"}}),
        ("POST", LOG + "/groups/nobody/lease", {}),
        ("POST", HERE + "/logs/events/groups/nobody/lease", {}),
        ("POST", LOG + "/messages", {"messages": [{"payload": "", "key": ""}]}),
        ("POST", LOG + "/messages", {"messages": [{"payload": "", "deliver_at": "2030-01-01T00:00:00"}]}),
        ("POST", LOG + "/locate", {"timestamp": "2030-01-01T00:00:00"}),
        ("POST", "/enqueue", [{"topic": "a", "payload": "", "deliver_after": "2030-01-01T00:00:00"}]),
        ("POST", LOG + "/groups/default/consumers", {"consumer": "c", "silence": 0}),
        ("GET", HERE + "/messages/7/trace", None),
    ],
)
def test_no_error_advises_what_only_python_can_do(
    orders: httpx2.Client, method: str, path: str, body: Any
) -> None:
    answer = orders.request(method, path, json=body)
    assert answer.is_client_error
    assert PYTHON.search(answer.json()["detail"]) is None, answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "there is no body"),
        (b'[{"topic": "a"', "the body is not JSON: it ends too early"),
        (b"[{'topic': 'a'}]", "the body is not JSON: object keys must be strings (byte 2)"),
        (b'[{"payload": ""}]', "the field 'topic' is missing at $[0]"),
        (b'[{"topic": "a", "payload": "no base64"}]', "in JSON payloads are in base64"),
        (b'[{"topic": "a", "payload": "", "priorty": 1}]', "there is no field 'priorty' at $[0]"),
    ],
)
def test_a_body_that_cannot_be_read_gets_a_sentence_about_what_is_wrong(
    client: httpx2.Client, body: bytes, said: str
) -> None:
    assert said in detail(client.post("/enqueue", content=body), 400)


def test_a_missing_parameter_is_named(client: httpx2.Client) -> None:
    assert "the parameter 'topic' is missing" in detail(client.get("/dequeue"), 400)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_policy_at_the_top_level_is_told_where_it_belongs(orders: httpx2.Client, method: str) -> None:
    said = detail(orders.request(method, QUEUE, json={"max_attempts": 7}), 400)
    assert '{"policy": {"max_attempts": …}}' in said
    assert orders.get(QUEUE).json()["policy"]["max_attempts"] == 5


def test_the_first_page_leads_to_the_one_there_is(client: httpx2.Client) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
    assert client.head("/").status_code == 307
