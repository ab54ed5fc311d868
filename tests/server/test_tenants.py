"""Two tenants on one server: neither sees, changes or learns anything of the other's, by any address or side door.

The requests are made from the table of routes, so a new row is tried without being named here.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx2
import msgspec
import pytest

from penstock.broker.embedded import Embedded
from penstock.broker.opening import in_memory
from penstock.clock import SECOND_US, ManualClock
from penstock.model.queries import Find, Names
from penstock.observe.metrics import CONTENT_TYPE, Metrics
from penstock.server.accounts import Accounts
from penstock.server.http.app import ROUTES
from penstock.server.http.route import Route
from penstock.server.keys import Keys, Signer
from tests import asking
from tests.server.running import Running
from tests.server.test_long_polls import until

SECRET: Final = "a secret of more than 32 bytes, for tests only"
PERMISSIONS: Final = ("publish", "consume", "admin")

#: What stands in an address, where the row does not say what exists.
NAMES: Final = {
    "name": "orders",
    "group": "audit",
    "consumer": "worker",
    "reader": "billing",
    "schedule": "nightly",
    "id": "1",
}

#: What these routes take, since they name the namespace elsewhere than in their address.
ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "/enqueue": ("publish",),
    "/dequeue": ("consume",),
    "/ack": ("consume",),
    "/nack": ("consume",),
}

GUARDED: Final = [route for route in ROUTES if route.permission or route.path in ELSEWHERE]

EVERY: Final = pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")


class Tenants:
    """A server, and those who call it."""

    def __init__(self, port: Embedded, url: str) -> None:
        self.port = port
        self.url = url
        self._signer = Signer.from_secret(SECRET)
        self._ends = port.clock.now_us() // SECOND_US + 3600

    def token(self, namespace: str, *permissions: str, denied: Sequence[str] = (), **claimed: Any) -> str:
        claims = {
            "sub": namespace,
            "exp": self._ends,
            "namespaces": [namespace],
            "permissions": list(permissions or PERMISSIONS),
            "deny": {"permissions": list(denied)},
            **claimed,
        }
        return self._signer.sign(claims)

    def client(
        self, namespace: str, *permissions: str, denied: Sequence[str] = (), **claimed: Any
    ) -> httpx2.Client:
        token = self.token(namespace, *permissions, denied=denied, **claimed)
        headers = {"authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30)

    def snapshot(self, namespace: str) -> Any:
        """All that can be known of a namespace."""
        names = [
            *self.port.describe(Names(namespace, "queue")).wait(),
            *self.port.describe(Names(namespace, "topic")).wait(),
            "orders.dlq",
        ]
        logs = [self.port.describe(Find(namespace, name)).wait() for name in names]
        return [
            (log.number, log.policy, asking.stats(self.port, log)) for log in logs if log is not None
        ], asking.broker_stats(self.port, namespace)


@pytest.fixture(scope="module")
def tenants() -> Iterator[Tenants]:
    clock = ManualClock()
    port = in_memory(clock, trace=True)
    accounts = Accounts(Keys.from_secret(SECRET), clock=clock)
    with Running(port, accounts=accounts, observer=Metrics(port, version="0")) as running:
        found = Tenants(port, running.url)
        furnish(found)
        yield found
    port.close()


def furnish(tenants: Tenants) -> None:
    """What the first tenant has, and the second would like to have."""
    with tenants.client("tenant-a") as owner:
        here = "/v1/namespaces/tenant-a"
        for request in (
            owner.put(here + "/queues/orders", json={}),
            owner.put(here + "/queues/grave", json={}),
            owner.put(here + "/topics/events", json={}),
            owner.put(
                here + "/logs/orders/groups/audit", json={"start": {"at": "earliest"}, "consumer": "worker"}
            ),
            owner.put(here + "/logs/orders/readers/billing", json={"offset": 0}),
            owner.put(here + "/logs/orders/schedules/nightly", json={"cron": "0 3 * * *", "message": ""}),
            owner.post(here + "/logs/orders/messages", json={"messages": ["c2VjcmV0"] * 3}),
            owner.post(here + "/logs/orders/dead-letters"),
        ):
            assert request.status_code in {200, 201}, request.text


def requested(route: Route, namespace: str) -> dict[str, Any]:
    """A request of a row that is in order, about a namespace."""
    query = {}
    if route.path == "/dequeue":
        query = {"namespace": namespace, "topic": "orders"}
    body = None
    if route.request is not None:
        body = msgspec.to_builtins(route.example)
        for item in body if isinstance(body, list) else [body]:
            if "topic" in item:
                item["namespace"] = namespace
    path = route.path.format(namespace=namespace, **NAMES)
    return {"method": route.method, "url": path, "params": query, "json": body}


def status_of(client: httpx2.Client, route: Route, namespace: str) -> tuple[int, Any]:
    """The answer; of a stream that is given, its head."""
    with client.stream(**requested(route, namespace)) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, None
        answer.read()
        return answer.status_code, answer.json() if answer.content.startswith(b"{") else answer.text


# --- every row ---


def test_whatever_names_a_namespace_is_guarded() -> None:
    free = {route.path for route in ROUTES} - {route.path for route in GUARDED}
    assert free == {"/health", "/ready", "/metrics", "/v1/namespaces", "/v1/waits/{wait}"}


@EVERY
def test_another_tenants_token_opens_nothing_and_changes_nothing(route: Route, tenants: Tenants) -> None:
    before = tenants.snapshot("tenant-a")
    with tenants.client("tenant-b") as other:
        status, answer = status_of(other, route, "tenant-a")
        assert (status, answer["code"]) == (403, "forbidden")
        # Neither does it learn whether there is such a namespace.
        absent, unknown = status_of(other, route, "tenant-x")
        assert absent == status
        assert unknown["detail"] == answer["detail"].replace("tenant-a", "tenant-x")
    assert tenants.snapshot("tenant-a") == before


@EVERY
def test_without_a_token_nothing_is_told(route: Route, tenants: Tenants) -> None:
    before = tenants.snapshot("tenant-a")
    with httpx2.Client(base_url=tenants.url) as nobody:
        status, answer = status_of(nobody, route, "tenant-a")
    assert (status, answer["code"]) == (401, "unauthorized")
    assert tenants.snapshot("tenant-a") == before


@EVERY
def test_a_permission_that_is_missing_is_missed(route: Route, tenants: Tenants) -> None:
    any_of = route.permission or ELSEWHERE[route.path]
    needed: list[tuple[str, ...]] = [any_of, *([route.also] if route.also else [])]
    for missing in needed:
        with tenants.client("tenant-a", denied=missing) as weak:
            before = tenants.snapshot("tenant-a")
            status, answer = status_of(weak, route, "tenant-a")
            assert (status, answer["code"]) == (403, "forbidden")
            assert tenants.snapshot("tenant-a") == before


@EVERY
def test_the_permissions_that_are_named_suffice(route: Route, tenants: Tenants) -> None:
    """In a namespace of its own, so that the others find theirs as it was."""
    for one in route.permission or ELSEWHERE[route.path]:
        # In a transaction each step takes its own.
        enough = {*route.permission, one} if route.path.endswith("/transactions") else {one, *route.also}
        with tenants.client("tenant-c", *enough) as owner:
            status, answer = status_of(owner, route, "tenant-c")
        assert status not in {401, 403}, (one, answer)


@pytest.mark.parametrize("permission", PERMISSIONS)
@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_whoever_may_use_a_queue_makes_it_and_an_admin_too(
    tenants: Tenants, permission: str, kind: str
) -> None:
    with tenants.client("tenant-d", permission) as one:
        where = f"/v1/namespaces/tenant-d/{kind}/{kind}.{permission}"
        assert one.put(where, json={}).status_code == 201
        assert one.get(where).status_code == 200
        assert one.delete(where).status_code == (204 if permission == "admin" else 403)


@pytest.mark.parametrize(
    ("permission", "step"),
    [
        ("consume", {"log": "orders", "messages": ["aGk="]}),
        ("publish", {"log": "orders", "receipts": ["default:0:1"]}),
        ("publish", {"log": "orders", "group": "default", "offsets": [0], "numbers": [1]}),
    ],
)
def test_a_step_of_a_transaction_takes_its_own_permission(
    tenants: Tenants, permission: str, step: dict[str, Any]
) -> None:
    with tenants.client("tenant-a", permission) as weak:
        answer = weak.post("/v1/namespaces/tenant-a/transactions", json={"steps": [step]})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_only_ones_own_namespaces_are_listed_and_measured(tenants: Tenants) -> None:
    with tenants.client("tenant-b") as other:
        other.put("/v1/namespaces/tenant-b/queues/mine", json={})
        assert other.get("/v1/namespaces").json() == {"names": ["tenant-b"]}
        answer = other.get("/metrics")
        assert answer.headers["content-type"] == CONTENT_TYPE
        metrics = answer.text
        assert 'namespace="tenant-b"' in metrics
        assert "tenant-a" not in metrics
    with tenants.client("*") as admin:
        assert "tenant-a" in admin.get("/v1/namespaces").json()["names"]
        assert 'namespace="tenant-a"' in admin.get("/metrics").text
    assert httpx2.get(tenants.url + "/metrics").status_code == 401


# --- side doors ---


@pytest.fixture
def other(tenants: Tenants) -> Iterator[httpx2.Client]:
    """The second tenant, who has a queue of the same name; afterwards the first one's things must be as they were."""
    before = tenants.snapshot("tenant-a")
    with tenants.client("tenant-b") as client:
        client.put(HERE + "/queues/orders", json={})
        yield client
    assert tenants.snapshot("tenant-a") == before


HERE: Final = "/v1/namespaces/tenant-b"
MINE: Final = HERE + "/logs/orders"


def leased(client: httpx2.Client) -> str:
    client.post(MINE + "/messages", json={"messages": ["aGk="]})
    found: str = client.post(MINE + "/groups/default/lease").json()["deliveries"][0]["receipt"]
    return found


def test_a_dead_letter_target_is_ones_own(other: httpx2.Client) -> None:
    answer = other.put(HERE + "/queues/dying", json={"policy": {"dead_letter": "grave"}})
    assert answer.status_code in {
        201,
        404,
    }  # whether it has to exist or not: the other tenant's does not count
    for name in ("tenant-a/grave", "../tenant-a/grave"):
        assert other.put(HERE + "/queues/dying2", json={"policy": {"dead_letter": name}}).status_code == 400


def test_dead_letters_are_not_sent_to_another_tenant(other: httpx2.Client) -> None:
    other.put(HERE + "/queues/grave", json={})
    other.put(HERE + "/queues/dying", json={"policy": {"dead_letter": "grave"}})
    other.post(HERE + "/logs/dying/messages", json={"messages": ["aGk="]})
    receipt = other.post(HERE + "/logs/dying/groups/default/lease").json()["deliveries"][0]["receipt"]
    other.post(HERE + "/logs/dying/settle", json={"how": "reject", "receipts": [receipt]})
    assert other.get(HERE + "/logs/grave/stats").json()["depth"] == 1


def test_a_redrive_goes_to_ones_own_queues(other: httpx2.Client) -> None:
    other.post(MINE + "/settle", json={"how": "reject", "receipts": [leased(other)]})
    answer = other.post(HERE + "/logs/orders.dlq/redrive", json={"to": "events"})
    assert (answer.status_code, answer.json()["code"]) == (404, "queue_not_found")
    assert other.post(HERE + "/logs/orders.dlq/redrive", json={"to": "tenant-a/orders"}).status_code == 400


def test_a_transaction_stays_in_its_namespace(other: httpx2.Client, tenants: Tenants) -> None:
    steps: list[dict[str, Any]] = [{"log": "events", "messages": ["aGk="]}]
    assert other.post(HERE + "/transactions", json={"steps": steps}).status_code == 200
    assert other.get(HERE + "/logs/events/stats").json()["published"] == 1
    theirs = asking.find(tenants.port, "orders", "tenant-a")
    stolen = [{"log": "orders", "number": theirs.number, "messages": ["aGk="]}]
    assert other.post(HERE + "/transactions", json={"steps": stolen}).status_code == 404
    assert other.post("/v1/namespaces/tenant-a/transactions", json={"steps": []}).status_code == 403


def test_a_receipt_of_another_tenant_is_none(tenants: Tenants) -> None:
    with tenants.client("tenant-a") as owner, tenants.client("tenant-b") as other:
        other.put(HERE + "/queues/orders", json={})
        lease = owner.post("/v1/namespaces/tenant-a/logs/orders/groups/audit/lease").json()["deliveries"][0]
        for answer in (
            other.post(MINE + "/settle", json={"receipts": [lease["receipt"]]}),
            other.post(MINE + "/extend", json={"receipts": [lease["receipt"]], "seconds": 60}),
            other.post(
                HERE + "/transactions", json={"steps": [{"log": "orders", "receipts": [lease["receipt"]]}]}
            ),
            other.post("/ack", json={"namespace": "tenant-b", "topic": "orders", "id": lease["id"]}),
            other.post(
                "/nack", json={"namespace": "tenant-b", "topic": "orders", "receipt": lease["receipt"]}
            ),
        ):
            assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
        unseen = {"how": "unseen", "receipts": [lease["receipt"]]}
        assert owner.post("/v1/namespaces/tenant-a/logs/orders/settle", json=unseen).status_code == 204


def test_readers_and_groups_of_the_same_name_are_not_shared(other: httpx2.Client) -> None:
    assert other.get(MINE + "/readers/billing").json() == {"offset": None}
    assert other.delete(MINE + "/readers/billing").status_code == 200
    assert other.get(MINE + "/groups/audit/lag").status_code == 404
    assert other.delete(MINE + "/schedules/nightly").json() == {"was": False}


def test_a_pattern_matches_ones_own_names_only(other: httpx2.Client) -> None:
    for pattern in ("#", "*", "grave", "tenant-a.#"):
        answer = other.post(HERE + "/route", json={"pattern": pattern, "message": "aGk="})
        assert answer.status_code in {200, 400, 404}
        assert (
            "grave" not in answer.json().get("ids", {})
            or other.get(HERE + "/queues/grave").status_code == 200
        )


def test_ids_of_another_tenant_are_unknown(other: httpx2.Client, tenants: Tenants) -> None:
    with tenants.client("tenant-a") as owner:
        id_ = owner.get("/v1/namespaces/tenant-a/logs/orders/messages").json()["messages"][0]["id"]
        assert owner.get(f"/v1/namespaces/tenant-a/messages/{id_}/trace").json()["steps"]
    assert other.get(f"{HERE}/messages/{id_}/trace").json() == {"steps": []}
    assert other.delete(f"{MINE}/messages/{id_}").status_code == 400
    assert other.post(MINE + "/locate", json={"message_id": id_}).status_code == 400


def test_the_number_of_another_tenants_log_is_not_a_way_in(other: httpx2.Client, tenants: Tenants) -> None:
    theirs = asking.find(tenants.port, "orders", "tenant-a")
    assert other.get(f"{MINE}/messages?log={theirs.number}").status_code == 404


def test_an_array_with_another_tenants_item_publishes_nothing(other: httpx2.Client) -> None:
    before = other.get(MINE + "/stats").json()
    items = [{"namespace": space, "topic": "orders", "payload": ""} for space in ("tenant-b", "tenant-a")]
    assert other.post("/enqueue", json=items).status_code == 403
    assert other.get(MINE + "/stats").json() == before


def test_the_wait_of_another_tenant_is_not_ended(tenants: Tenants) -> None:
    """Whatever he is called. Those of one tenant go by their names, also with a token that was renewed."""
    lease = "/v1/namespaces/tenant-a/logs/grave/groups/default/lease"
    with (
        tenants.client("tenant-a", sub="worker") as owner,
        tenants.client("tenant-a", sub="worker", iat=1) as same,
        tenants.client("tenant-a", sub="another") as colleague,
        tenants.client("tenant-b", sub="worker") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(owner.post, lease, json={"wait": 40}, headers={"penstock-wait": "mine"})
        grave = asking.find(tenants.port, "grave", "tenant-a")
        until(lambda: asking.stats(tenants.port, grave).waiting == 1)
        assert other.delete("/v1/waits/mine").json() == {"was": False}
        assert colleague.delete("/v1/waits/mine").json() == {"was": False}
        assert httpx2.delete(tenants.url + "/v1/waits/mine").status_code == 401
        assert same.delete("/v1/waits/mine").json() == {"was": True}
        assert answer.result(30).json()["deliveries"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/namespaces/tenant-b/../tenant-a/queues",
        "/v1/namespaces/tenant-b/%2e%2e/tenant-a/queues",
        "/v1/namespaces/tenant-b%2f..%2ftenant-a/queues",
        "/v1/namespaces/tenant-b/queues/../../tenant-a/queues",
        "/v1/namespaces//tenant-a/queues",
        "//v1/namespaces/tenant-a/queues",
        "/v1/namespaces/tenant-a%00/queues",
        "/v1/namespaces/TENANT-A/queues",
        "/v1/namespaces/tenant-a;tenant-b/queues",
        "/v1/namespaces/*/queues",
    ],
)
def test_an_address_written_otherwise_leads_nowhere(path: str, tenants: Tenants) -> None:
    host = tenants.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("GET", path, headers={"authorization": f"Bearer {tenants.token('tenant-b')}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status in {400, 403, 404}
    assert b"orders" not in body


def test_what_the_journal_knows_is_for_those_who_may_see_everything(tmp_path: Any) -> None:
    from penstock.broker.opening import on_disk

    clock = ManualClock()
    port = on_disk(tmp_path / "data", clock)
    with Running(port, accounts=Accounts(Keys.from_secret(SECRET), clock=clock)) as running:
        tenants = Tenants(port, running.url)
        with tenants.client("default") as one:
            assert one.get("/v1/namespaces/default").json()["journal"] is None
            with one.stream("GET", "/v1/namespaces/default/stats/stream") as events:
                data = next(line for line in events.iter_lines() if line.startswith("data: "))
                assert '"journal":null' in data
        with tenants.client("*") as admin:
            assert admin.get("/v1/namespaces/default").json()["journal"]["segments"] == 1
    port.close()
