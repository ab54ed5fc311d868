"""The addresses of /v1, over real sockets: what a client that is no Penstock client sees."""

from __future__ import annotations

import base64
import threading
from typing import Any

import httpx2
import msgspec
import pyarrow as pa
import pytest

from penstock import wire
from penstock.broker.contents import messages_of
from penstock.broker.deliveries import deliveries
from penstock.broker.embedded import Embedded
from penstock.clock import ManualClock
from penstock.server.bounds import Bounds
from penstock.server.connections import Door
from penstock.server.http import arrow, groups, messages, mqueue
from penstock.server.http.app import ROUTES
from tests.server.running import Running

HERE = "/v1/namespaces/default"
ORDERS = HERE + "/logs/orders"
PACKED = {"content-type": "application/msgpack", "accept": "application/msgpack"}


def text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def published(client: httpx2.Client, *payloads: bytes, name: str = "orders") -> list[int]:
    client.put(f"{HERE}/queues/{name}", json={})
    answer = client.post(f"{HERE}/logs/{name}/messages", json={"messages": [text(one) for one in payloads]})
    assert answer.status_code == 200
    found: list[int] = answer.json()["ids"]
    return found


def leased(client: httpx2.Client, **body: Any) -> Any:
    answer = client.post(ORDERS + "/groups/default/lease", json=body)
    assert answer.status_code == 200
    return answer.json()


def problem(answer: httpx2.Response, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (found["status"], found["code"]) == (status, code)
    assert found["instance"] == answer.headers["x-request-id"]
    detail: str = found["detail"]
    return detail


# --- logs ---


def test_a_publish_makes_its_queue_on_first_use(client: httpx2.Client) -> None:
    answer = client.post(ORDERS + "/messages", json={"messages": [text(b"a"), text(b"b")]})
    assert answer.status_code == 200
    assert [one["id"] for one in leased(client, count=9)["deliveries"]] == answer.json()["ids"]
    assert client.get(HERE + "/queues").json() == {"names": ["orders"]}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/logs/orders/messages?log=1", {"messages": [text(b"a")]}, 404),
        ("/logs/orders/messages", {"messages": [text(b"a" * (1 << 21))]}, 413),
        ("/logs/orders/messages", {"messages": []}, 404),
        ("/logs/orders.dlq/messages", {"messages": [text(b"a")]}, 400),
        ("/logs/new%20orders/messages", {"messages": [text(b"a")]}, 400),
    ],
)
def test_a_publish_that_is_refused_makes_no_queue(
    client: httpx2.Client, path: str, body: Any, status: int
) -> None:
    assert client.post(HERE + path, json=body).status_code == status
    assert client.get(HERE + "/queues").json() == {"names": []}


def test_a_queue_is_made_once_and_found_again(client: httpx2.Client) -> None:
    made = client.put(HERE + "/queues/orders", json={"policy": {"max_attempts": 5}})
    assert made.status_code == 201
    again = client.put(HERE + "/queues/orders")
    assert again.status_code == 200
    assert made.json() == again.json() == client.get(HERE + "/queues/orders").json()
    assert made.json()["policy"]["max_attempts"] == 5
    assert client.get(HERE + "/queues").json() == {"names": ["orders"]}
    assert client.get("/v1/namespaces").json() == {"names": ["default"]}


def test_a_backoff_travels(client: httpx2.Client) -> None:
    given = {"initial": 2, "factor": 3, "maximum": 60, "jitter": 0}
    made = client.put(HERE + "/queues/orders", json={"policy": {"backoff": given}})
    assert made.json()["policy"]["backoff"] == given
    problem(
        client.put(HERE + "/queues/more", json={"policy": {"backoff": {"inital": 2}}}),
        400,
        "invalid_argument",
    )


def test_another_policy_and_another_kind_are_conflicts(client: httpx2.Client) -> None:
    client.put(HERE + "/queues/orders", json={"policy": {"max_attempts": 5}})
    said = problem(
        client.put(HERE + "/queues/orders", json={"policy": {"max_attempts": 6}}), 409, "policy_conflict"
    )
    assert "max_attempts is 5, not 6" in said
    problem(client.put(HERE + "/queues/orders", json={"create": True}), 409, "policy_conflict")
    problem(client.put(HERE + "/topics/orders", json={}), 409, "wrong_kind")
    problem(client.get(HERE + "/queues/nothing"), 404, "queue_not_found")
    problem(client.put(HERE + "/topics/nothing", json={"create": False}), 404, "topic_not_found")


def test_a_policy_is_changed(client: httpx2.Client) -> None:
    client.put(HERE + "/queues/orders", json={})
    changed = client.patch(HERE + "/queues/orders", json={"policy": {"max_attempts": 9}})
    assert changed.json()["policy"]["max_attempts"] == 9
    for wrong in ({"log": 1}, {"what": "delete"}, {"max_attempst": 1}):
        problem(client.patch(HERE + "/queues/orders", json={"policy": wrong}), 400, "invalid_argument")


def test_the_handle_of_a_deleted_queue_does_not_mean_the_next_of_its_name(client: httpx2.Client) -> None:
    old = client.put(HERE + "/topics/orders", json={}).json()["number"]
    assert client.get(f"{ORDERS}/stats?log={old}").status_code == 200
    assert client.delete(HERE + "/topics/orders").status_code == 204
    assert "was deleted" in problem(client.get(f"{ORDERS}/stats?log={old}"), 404, "topic_not_found")
    new = client.put(HERE + "/topics/orders", json={}).json()["number"]
    assert new != old
    assert "was deleted" in problem(client.get(f"{ORDERS}/stats?log={old}"), 404, "topic_not_found")
    assert client.get(f"{ORDERS}/stats?log={new}").status_code == 200
    assert client.get(f"{ORDERS}/stats").status_code == 200


def test_a_purge_counts(client: httpx2.Client) -> None:
    published(client, b"a", b"b")
    assert client.post(ORDERS + "/purge").json() == {"count": 2}
    assert client.get(ORDERS + "/stats").json()["depth"] == 0
    assert client.get(HERE).json()["published"] == 2


def test_dead_letters_are_found_and_go_back(client: httpx2.Client) -> None:
    published(client, b"a", b"b", b"c")
    assert client.post(ORDERS + "/redrive-source").status_code == 204
    receipts = [one["receipt"] for one in leased(client, count=3)["deliveries"]]
    client.post(ORDERS + "/settle", json={"how": "reject", "receipts": receipts, "error": "no"})
    dead = client.post(ORDERS + "/dead-letters").json()
    assert dead["name"] == "orders.dlq"
    assert client.post(ORDERS + "/redrive-source").json()["name"] == "orders.dlq"
    first = client.post(HERE + "/logs/orders.dlq/redrive", json={"count": 2}).json()
    assert first["moved"] == 2
    second = client.post(HERE + "/logs/orders.dlq/redrive", json={"span": first["left"]}).json()
    assert second["moved"] == 1
    assert client.get(ORDERS + "/stats").json()["ready"] == 3
    problem(client.post(HERE + "/logs/orders.dlq/redrive", json={"span": [-1, 5]}), 400, "invalid_argument")
    problem(client.post(HERE + "/logs/orders.dlq/redrive", json={"to": "no where"}), 400, "invalid_name")


# --- messages ---


def test_the_same_in_json_and_in_msgpack(client: httpx2.Client) -> None:
    item = {"payload": text(b"x"), "key": "k", "priority": 3, "headers": {"a": "b"}}
    client.put(HERE + "/queues/orders", json={})
    plain = client.post(ORDERS + "/messages", json={"messages": [text(b"bare"), item]}).json()
    assert plain["ids_str"] == [str(one) for one in plain["ids"]]
    body = msgspec.msgpack.encode({"messages": [b"bare", {**item, "payload": b"x"}]})
    packed = client.post(ORDERS + "/messages", content=body, headers=PACKED)
    assert packed.headers["content-type"] == "application/msgpack"
    assert len(msgspec.msgpack.decode(packed.content)["ids"]) == 2
    rows = client.get(ORDERS + "/messages").json()["messages"]
    assert rows[1]["payload"] == rows[3]["payload"] == text(b"x")
    assert (rows[3]["key"], rows[3]["priority"], rows[3]["headers"]) == ("k", 3, {"a": "b"})
    assert rows[0]["id_str"] == str(rows[0]["id"])
    raw = client.get(ORDERS + "/messages", headers={"accept": "application/msgpack"})
    assert msgspec.msgpack.decode(raw.content)["messages"][3]["payload"] == b"x"


def test_a_page_says_where_to_go_on(client: httpx2.Client) -> None:
    published(client, *(b"%d" % at for at in range(100)))
    first = client.get(ORDERS + "/messages?offset=10&count=60").json()
    assert [one["offset"] for one in first["messages"]] == list(range(10, 70))
    assert first["next"] == 70
    rest = client.get(ORDERS + f"/messages?offset={first['next']}").json()
    assert [one["offset"] for one in rest["messages"]] == list(range(70, 100))
    assert client.get(ORDERS + "/messages?offset=100").json() == {"messages": [], "next": 100, "missed": 0}


def test_an_answer_does_not_become_too_large(port: Embedded) -> None:
    with (
        Running(port, bounds=Bounds(answer_bytes_max=1200)) as running,
        httpx2.Client(base_url=running.url) as client,
    ):
        published(client, *(b"x" * 400 for _ in range(100)))
        page = client.get(ORDERS + "/messages?count=100").json()
        assert 0 < len(page["messages"]) < 100
        assert page["next"] == len(page["messages"])
        few = leased(client, count=50)["deliveries"]
        assert len(few) == 2
        assert client.get(ORDERS + "/stats").json()["leased"] == 2
        assert leased(client, count=50)["deliveries"][0]["offset"] == 2
        assert leased(client, count=1)["deliveries"][0]["attempt"] == 1
        assert len(client.get(ORDERS + "/peek?count=50").json()["messages"]) == 2


def test_what_there_is_no_room_for_is_granted_all_the_same(
    port: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too much waits already for clients who do not read."""
    monkeypatch.setattr(Door, "has_room_for", lambda _door, _octets: False)
    with Running(port) as running, httpx2.Client(base_url=running.url) as client:
        published(client, b"x" * 100_000, b"y" * 100_000)
        for refused in (
            client.post(ORDERS + "/groups/default/lease", json={"count": 2}),
            client.get("/dequeue?topic=orders&limit=2"),
            client.get(ORDERS + "/peek?count=2"),
            client.get(ORDERS + "/messages?count=2"),
        ):
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_transfers")
            assert refused.headers["retry-after"] == "1"
        found = client.get(ORDERS + "/stats").json()
        assert (found["ready"], found["leased"]) == (2, 0)
        # What is settled when it is handed out cannot go back: one is sent.
        taken = client.post(ORDERS + "/groups/default/lease", json={"count": 2, "auto_ack": True}).json()
        assert [one["attempt"] for one in taken["deliveries"]] == [1]
        assert client.get(ORDERS + "/stats").json()["ready"] == 1


@pytest.mark.parametrize("how", ["auto_ack", "at-most-once", "filtered"])
def test_an_answer_with_settled_messages_is_bounded_before_they_are_settled(port: Embedded, how: str) -> None:
    with (
        Running(port, bounds=Bounds(answer_bytes_max=1200)) as running,
        httpx2.Client(base_url=running.url) as client,
    ):
        policy = {"delivery": "at-most-once"} if how == "at-most-once" else {}
        client.put(HERE + "/queues/orders", json={"policy": policy})
        if how == "filtered":
            client.put(ORDERS + "/groups/default", json={"filter": "payload_bytes > 0"})
        published(client, *(b"x" * size for size in (400, 400, 400, 2000, 400)))
        answers = [leased(client, count=50, auto_ack=how != "at-most-once")["deliveries"] for _ in range(5)]
        assert [[one["offset"] for one in each] for each in answers] == [[0, 1], [2], [3], [4], []]
        assert client.get(ORDERS + "/stats").json()["depth"] == 0


def test_one_look_at_a_queue_takes_as_long_as_anybody_likes(
    port: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PEEK_MAX", 3)
    with Running(port) as running, httpx2.Client(base_url=running.url) as client:
        published(client, *(b"%d" % number for number in range(5)))
        assert len(client.get(ORDERS + "/peek?count=2").json()["messages"]) == 2
        assert len(client.get(ORDERS + "/peek?count=100").json()["messages"]) == 3


@pytest.mark.parametrize(
    "item",
    [{"headers": {"x": "\x01" * 400}}, {"headers": {f"{at:02}": "" for at in range(120)}}, {"key": "k" * 200, "dedup_id": "d" * 200}],
    ids=["headers that JSON escapes", "small headers", "key and dedup id"],
)  # fmt: skip
def test_answer_is_bounded_with_what_is_beside_payloads(port: Embedded, item: dict[str, Any]) -> None:
    with (
        Running(port, bounds=Bounds(answer_bytes_max=5600)) as running,
        httpx2.Client(base_url=running.url) as client,
    ):
        published(client)
        for at in range(10):
            one = {"payload": "", **item}
            if "dedup_id" in one:
                one["dedup_id"] += str(at)
            client.post(ORDERS + "/messages", json={"messages": [one]})
        page = client.get(ORDERS + "/messages?count=10").json()
        assert ([one["offset"] for one in page["messages"]], page["next"]) == ([0, 1], 2)
        assert len(client.get(ORDERS + "/peek?count=10").json()["messages"]) == 2
        assert len(leased(client, count=10)["deliveries"]) == 2
        assert client.get(ORDERS + "/stats").json()["leased"] == 2


def test_pages_go_on_where_one_became_too_large(port: Embedded, clock: ManualClock) -> None:
    """Also where messages were dropped."""
    with (
        Running(port, bounds=Bounds(answer_bytes_max=3000)) as running,
        httpx2.Client(base_url=running.url) as client,
    ):
        client.put(HERE + "/topics/orders", json={"policy": {"retain_seconds": 60}})
        client.post(ORDERS + "/messages", json={"messages": [""] * 7})
        clock.advance(seconds=120)
        client.post(ORDERS + "/messages", json={"messages": [text(b"x" * 400), ""] * 20})
        offset, seen, missed = 0, [], 0
        while offset < 47:
            page = client.get(ORDERS + f"/messages?offset={offset}&count=100").json()
            seen += [one["offset"] for one in page["messages"]]
            offset, missed = page["next"], missed + page["missed"]
            assert 0 < len(page["messages"]) < 12
        assert (seen, missed) == (list(range(7, 47)), 7)


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_answer_is_made_beside_the_loop(
    client: httpx2.Client, running: Running, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    threads: list[str] = []

    def seen(what: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            threads.append(threading.current_thread().name)
            return what(*arguments, **options)

        return made

    monkeypatch.setattr(messages, "rows_of", seen(messages.rows_of))
    monkeypatch.setattr(groups, "deliveries", seen(deliveries))
    monkeypatch.setattr(mqueue, "messages_of", seen(messages_of))
    monkeypatch.setattr(arrow, "stream_of", seen(arrow.stream_of))
    published(client, *[b"x" * 1000] * 900)
    accept = {"accept": "application/msgpack" if packed else "application/json"}
    for count, is_large in ((10, False), (290, True)):
        answers = [
            client.get(ORDERS + f"/messages?count={count}", headers=accept),
            client.get(ORDERS + f"/messages?count={count}", headers={"accept": wire.ARROW}),
            client.post(ORDERS + "/groups/default/lease", json={"count": count}, headers=accept),
            client.get(f"/dequeue?topic=orders&limit={count}", headers=accept),
        ]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert len(threads) == 4
        assert [name != "server of a test" for name in threads] == [is_large] * 4
        threads.clear()
        read = msgspec.msgpack.decode if packed else msgspec.json.decode
        assert len(read(answers[0].content)["messages"]) == count
        assert len(read(answers[2].content)["deliveries"]) == count
        assert len(read(answers[3].content)) == count
        assert pa.ipc.open_stream(answers[1].content).read_all().num_rows == count
        assert answers[0].headers["content-type"] == accept["accept"]
        assert "penstock-life" in answers[0].headers


def test_one_message_always_fits(port: Embedded) -> None:
    with (
        Running(port, bounds=Bounds(answer_bytes_max=10)) as running,
        httpx2.Client(base_url=running.url) as client,
    ):
        published(client, b"x" * 400, b"y" * 400)
        assert len(leased(client, count=5)["deliveries"]) == 1


def test_pages_come_as_arrow_too(client: httpx2.Client) -> None:
    published(client, b"a", b"b")
    item = {"payload": text(b"c"), "key": "k", "headers": {"a": "b"}, "priority": 3, "delay": 60, "ttl": 90}
    client.post(ORDERS + "/messages", json={"messages": [item, text(b"d")]})
    answer = client.get(
        ORDERS + "/messages?offset=1", headers={"accept": "application/vnd.apache.arrow.stream"}
    )
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert (answer.headers["penstock-next"], answer.headers["penstock-missed"]) == ("4", "0")
    rows = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    assert [row["payload"] for row in rows] == [b"b", b"c", b"d"]
    assert [row["offset"] for row in rows] == [1, 2, 3]
    assert (rows[1]["key"], rows[1]["headers"], rows[1]["priority"]) == ("k", [("a", "b")], 3)
    assert (rows[1]["deliver_at"] - rows[1]["timestamp"]).total_seconds() == 60
    assert (rows[1]["expires_at"] - rows[1]["timestamp"]).total_seconds() == 90
    assert rows[0]["headers"] is None
    assert rows[2]["deliver_at"] is None
    ids = [one["id"] for one in client.get(ORDERS + "/messages?offset=1").json()["messages"]]
    assert [row["id"] for row in rows] == ids


def test_a_message_that_is_not_due_is_taken_back(client: httpx2.Client) -> None:
    client.put(HERE + "/queues/orders", json={})
    ids = client.post(ORDERS + "/messages", json={"messages": [{"payload": "", "delay": 60}]}).json()["ids"]
    assert client.delete(f"{ORDERS}/messages/{ids[0]}").json() == {"was": True}
    problem(client.delete(f"{ORDERS}/messages/{ids[0]}"), 400, "invalid_argument")
    for wrong in ("x", "-1", "1e3", str(2**63), "9" * 4000):
        problem(client.delete(f"{ORDERS}/messages/{wrong}"), 400, "invalid_argument")


def test_a_message_recurs(client: httpx2.Client, clock: ManualClock) -> None:
    client.put(HERE + "/queues/orders", json={})
    given = {"cron": "* * * * *", "message": text(b"tick")}
    assert client.put(ORDERS + "/schedules/nightly", json=given).json() == {"was": False}
    assert client.put(ORDERS + "/schedules/nightly", json=given).json() == {"was": True}
    clock.advance(seconds=60)
    assert [one["payload"] for one in leased(client)["deliveries"]] == [text(b"tick")]
    assert client.delete(ORDERS + "/schedules/nightly").json() == {"was": True}
    problem(client.put(ORDERS + "/schedules/x", json={**given, "cron": "often"}), 400, "invalid_argument")


def test_a_message_goes_to_all_that_match(client: httpx2.Client) -> None:
    for name in ("orders.eu", "orders.us", "invoices"):
        client.put(f"{HERE}/queues/{name}", json={})
    answer = client.post(HERE + "/route", json={"pattern": "orders.*", "message": text(b"x")})
    assert set(answer.json()["ids"]) == {"orders.eu", "orders.us"}
    problem(client.post(HERE + "/route", json={"pattern": "no.*", "message": ""}), 404, "queue_not_found")


def test_a_timeline_is_told(clock: ManualClock) -> None:
    from penstock.broker.opening import in_memory

    port = in_memory(clock, trace=True)
    with Running(port) as running, httpx2.Client(base_url=running.url) as client:
        (id_,) = published(client, b"a")
        receipts = [one["receipt"] for one in leased(client)["deliveries"]]
        client.post(ORDERS + "/settle", json={"receipts": receipts})
        steps = client.get(f"{HERE}/messages/{id_}/trace").json()["steps"]
        assert [step["what"] for step in steps] == ["published", "leased", "acked"]
    port.close()


# --- receiving ---


def test_what_was_leased_is_settled_by_receipts_or_in_columns(client: httpx2.Client) -> None:
    published(client, b"a", b"b", b"c", b"d")
    found = leased(client, count=4)
    rows = found["deliveries"]
    assert client.post(ORDERS + "/settle", json={"receipts": [rows[0]["receipt"]]}).status_code == 204
    columns = {"group": "default", "offsets": [rows[1]["offset"]], "numbers": [found["number"]]}
    assert client.post(ORDERS + "/extend", json={**columns, "seconds": 600}).status_code == 204
    assert client.post(ORDERS + "/settle", json=columns).status_code == 204
    problem(client.post(ORDERS + "/settle", json=columns), 409, "lease_lost")
    assert (
        client.post(ORDERS + "/extend", json={"receipts": [rows[2]["receipt"]], "seconds": 5}).status_code
        == 204
    )
    assert client.get(ORDERS + "/stats").json()["leased"] == 2


def test_receipts_of_several_groups_are_settled_together_or_not_at_all(client: httpx2.Client) -> None:
    published(client, b"a")
    client.put(ORDERS + "/groups/a:b", json={"start": {"at": "earliest"}})
    one = leased(client)["deliveries"][0]["receipt"]
    two = client.post(ORDERS + "/groups/a:b/lease").json()["deliveries"][0]["receipt"]
    problem(client.post(ORDERS + "/settle", json={"receipts": [one, two[:-1] + "f"]}), 409, "lease_lost")
    assert client.post(ORDERS + "/settle", json={"receipts": [one, two]}).status_code == 204
    assert client.get(ORDERS + "/stats").json()["depth"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"receipts": ["x"]},
        {"receipts": ["default:1"]},
        {"receipts": ["default:one:1"]},
        {"receipts": ["default:1:xyz"]},
        {"receipts": ["default:" + "1" * 5000 + ":1"]},
        {"receipts": ["default:1:" + "f" * 5000]},
        {"offsets": [1], "numbers": [1]},
        {"group": "default", "offsets": [1, 2], "numbers": [1]},
        {"group": "default", "offsets": [1], "numbers": [1], "receipts": ["default:1:1"]},
    ],
)
def test_what_is_no_receipt_is_refused(client: httpx2.Client, body: dict[str, Any]) -> None:
    published(client, b"a")
    problem(client.post(ORDERS + "/settle", json=body), 400, "invalid_argument")
    problem(client.post(ORDERS + "/extend", json={**body, "seconds": 5}), 400, "invalid_argument")


def test_a_subscription_filters_and_is_sent_elsewhere(client: httpx2.Client) -> None:
    client.put(HERE + "/topics/orders", json={})
    audit = ORDERS + "/groups/audit"
    made = client.put(audit, json={"filter": "region = 'eu'", "consumer": "one"})
    assert made.json() == {"consumer": "one"}
    items = [{"payload": "", "headers": {"region": region}} for region in ("eu", "us", "eu")]
    client.post(ORDERS + "/messages", json={"messages": items})
    assert client.get(audit + "/lag").json() == {"lag": 3}
    assert len(client.post(audit + "/lease", json={"count": 9, "consumer": "one"}).json()["deliveries"]) == 2
    assert client.delete(audit + "/consumers/one").status_code == 204
    assert client.post(audit + "/seek", json={"at": "latest"}).status_code == 204
    assert client.post(audit + "/lease").json()["deliveries"] == []
    problem(client.put(audit, json={"filter": "region = 'us'"}), 409, "policy_conflict")
    problem(client.put(audit, json={"filter": "region ="}), 400, "invalid_argument")
    assert client.delete(audit).status_code == 204
    problem(client.get(audit + "/lag"), 404, "topic_not_found")


def test_consumers_come_and_go(client: httpx2.Client, clock: ManualClock) -> None:
    published(client, b"a")
    consumers = ORDERS + "/groups/default/consumers"
    assert client.post(consumers, json={"consumer": "w", "silence": 10}).json() == {"consumer": "w"}
    other = client.post(consumers, json={"consumer": "w"}).json()["consumer"]
    assert other != "w"
    assert client.post(consumers + "/w/heartbeat").json() == {"alive": True}
    clock.advance(seconds=11)
    assert client.post(consumers + "/w/heartbeat").json() == {"alive": False}
    assert client.delete(f"{consumers}/{other}?retire=true").status_code == 204
    problem(client.post(consumers, json={"consumer": "a b"}), 400, "invalid_name")


def test_a_reader_commits_and_is_forgotten(client: httpx2.Client) -> None:
    published(client, b"a", b"b")
    billing = ORDERS + "/readers/billing"
    assert client.get(billing).json() == {"offset": None}
    assert client.put(billing, json={"offset": 1}).json() == {"offset": 1}
    assert client.get(billing).json() == {"offset": 1}
    assert client.put(billing, json={"holds": True}).json() == {"offset": 1}
    assert client.delete(billing).json() == {"offset": None}
    problem(client.put(billing, json={"offset": -1}), 400, "invalid_argument")


def test_places_are_located(client: httpx2.Client) -> None:
    ids = published(client, b"a", b"b")
    for place, offset in (
        ({"at": "earliest"}, 0),
        ({"at": "latest"}, 2),
        ({"message_id": ids[1]}, 1),
        ({"offset": 1}, 1),
    ):
        assert client.post(ORDERS + "/locate", json=place).json() == {"offset": offset}
    assert client.post(ORDERS + "/locate", json={"timestamp": "2000-01-01T00:00:00Z"}).json() == {"offset": 0}
    for wrong in ({}, {"at": "earliest", "offset": 1}, {"offset": 7}, {"timestamp": "2000-01-01T00:00:00"}):
        problem(client.post(ORDERS + "/locate", json=wrong), 400, "invalid_argument")


def test_a_transaction_is_all_or_nothing(client: httpx2.Client) -> None:
    published(client, b"a")
    receipt = leased(client)["deliveries"][0]["receipt"]
    steps = [{"log": "orders", "receipts": [receipt]}, {"log": "invoices", "messages": [text(b"i")]}]
    wrong = [*steps, {"log": "orders", "receipts": ["default:7:7"]}]
    problem(client.post(HERE + "/transactions", json={"steps": wrong}), 409, "lease_lost")
    problem(client.get(HERE + "/queues/invoices"), 404, "queue_not_found")
    assert len(client.post(HERE + "/transactions", json={"steps": steps}).json()["ids"]) == 1
    assert client.get(HERE + "/logs/invoices/stats").json()["ready"] == 1
    assert client.get(ORDERS + "/stats").json()["depth"] == 0
    assert client.post(HERE + "/transactions", json={"steps": []}).json()["ids"] == []
    stale = [{"log": "orders", "number": 99, "messages": [""]}]
    problem(client.post(HERE + "/transactions", json={"steps": stale}), 404, "queue_not_found")


# --- what is no request ---


def test_what_does_not_exist_is_a_problem(client: httpx2.Client) -> None:
    assert "/docs" in problem(client.get("/v2"), 404, "not_found")
    answer = client.post("/v1/namespaces")
    assert "GET" in problem(answer, 405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]
    problem(client.get("/v1/namespaces/a b/queues"), 400, "invalid_name")
    problem(client.get("/v1/namespaces/" + "n" * 300), 400, "invalid_name")
    assert "there are: log" in problem(client.get(ORDERS + "/stats?depth=1"), 400, "invalid_argument")


def test_a_request_keeps_its_id(client: httpx2.Client) -> None:
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    answer = client.get(ORDERS + "/stats", headers={"x-request-id": "mine-2"})
    assert answer.json()["instance"] == "mine-2"
    assert client.get("/nothing", headers={"x-request-id": "mine-3"}).json()["instance"] == "mine-3"


def test_a_request_stands_in_the_log_with_its_id(
    client: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "penstock.server.http"):
        client.get("/health?secret=1", headers={"x-request-id": "mine-1"})
        client.get("/ready", headers={"x-request-id": "mine-2"})  # by then the first is written
    told = caplog.records[0]
    assert told.getMessage() == "GET /health"
    assert (told.__dict__["request_id"], told.__dict__["status"]) == ("mine-1", 400)


def test_a_supervisor_may_ask_for_the_head_only(client: httpx2.Client) -> None:
    answer = client.head("/health")
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "2", b"")
    assert client.head("/v1/namespaces").status_code == 405


def test_it_describes_itself(client: httpx2.Client) -> None:
    found = client.get("/openapi.json").json()
    assert set(found["paths"]) == {route.path for route in ROUTES}
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_a_mistake_of_ours_is_a_problem_and_the_next_request_is_served(
    client: httpx2.Client, port: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(client, b"a")
    monkeypatch.setattr(port, "describe", None)
    assert "the server made a mistake" in problem(client.get(ORDERS + "/stats"), 500, "penstock_error")
    monkeypatch.undo()
    assert client.get(ORDERS + "/stats").status_code == 200
