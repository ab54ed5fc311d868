"""What a client does when no answer comes, or not the one that it hoped for."""

from __future__ import annotations

import re
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

import penstock
from penstock import (
    Forbidden,
    LeaseLost,
    Message,
    PenstockError,
    QueueFull,
    QueueNotFound,
    QuotaExceeded,
    ServerUnavailable,
    Unauthorized,
    wire,
)
from penstock.client.asking import pause_after
from penstock.policy import Policy
from tests.conformance.background import PATIENCE_S, start
from tests.unit.client.script import CUT, Script, answer, packed, problem

INFO = packed(wire.LogInfo(namespace="default", name="orders", kind="queue", number=7, policy=wire.policy_out(Policy())))  # fmt: skip
IDS = packed(wire.Ids(ids=[1]))
LEASE = packed(
    wire.Leases(
        group="default", number=5, deliveries=[wire.DeliveryRow(id=1, offset=0, timestamp="2026-01-01T00:00:00Z", payload=b"a", attempt=1, receipt="r")]  # type: ignore[arg-type]
    )
)  # fmt: skip
DONE = answer("204 No Content", b"", wire.MSGPACK)


def test_an_unsafe_publish_is_sent_twice_or_its_outcome_is_thought_known() -> None:
    with Script(INFO, CUT, IDS) as server, penstock.connect(server.url, timeout=5) as broker:
        queue = broker.queue("orders")
        with pytest.raises(ServerUnavailable, match=rf"no answer from {server.url}.*dedup_id") as caught:
            queue.publish(b"a")
        assert caught.value.indeterminate
        assert len(server.heard) == 2


def test_a_publish_that_is_known_again_is_given_up() -> None:
    with Script(INFO, CUT, CUT, IDS) as server, penstock.connect(server.url) as broker:
        assert broker.queue("orders").publish(b"a", dedup_id="1") == 1
        assert len(server.heard) == 4


def test_one_message_without_an_id_does_not_spoil_a_batch() -> None:
    with Script(INFO, CUT, IDS) as server, penstock.connect(server.url) as broker:
        with pytest.raises(ServerUnavailable):
            broker.queue("orders").publish_many([Message(b"a", dedup_id="1"), b"b"])
        assert len(server.heard) == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [("receive", "what was handed out comes again"), ("purge", "look before you do it again")],
)
def test_only_a_failed_publish_is_told_of_dedup_ids(call: str, said: str) -> None:
    with Script(INFO, *[CUT] * 100) as server, penstock.connect(server.url, timeout=0.2) as broker:
        queue = broker.queue("orders")
        with pytest.raises(ServerUnavailable, match=said) as caught:
            getattr(queue, call)()
    assert "dedup_id" not in caught.value.message


def test_looking_is_given_up() -> None:
    with Script(CUT, CUT, packed(wire.Names(names=["a"]))) as server, penstock.connect(server.url) as broker:
        assert broker.list_queues() == ["a"]


def test_purging_is_done_twice() -> None:
    with Script(INFO, CUT, packed(wire.Count(count=0))) as server, penstock.connect(server.url) as broker:
        queue = broker.queue("orders")
        with pytest.raises(ServerUnavailable) as caught:
            queue.purge()
        assert caught.value.indeterminate


def test_a_repeated_ack_does_not_say_that_the_first_may_have_been_done() -> None:
    lost = problem("lease_lost", 409)
    with Script(INFO, LEASE, CUT, lost) as server, penstock.connect(server.url) as broker:
        found = broker.queue("orders").receive()
        assert found is not None
        with pytest.raises(
            LeaseLost, match="it is lease_lost .an earlier try had no answer, and may have been done"
        ):
            found.ack()


def test_a_deletion_that_was_done_is_an_error() -> None:
    gone = problem("queue_not_found", 404)
    with Script(INFO, CUT, gone) as server, penstock.connect(server.url) as broker:
        broker.delete_queue("orders")
    with Script(INFO, gone) as server, penstock.connect(server.url) as broker, pytest.raises(QueueNotFound):
        broker.delete_queue("orders")


def test_a_server_that_is_stopping_is_not_waited_for() -> None:
    stopping = problem("broker_closed", 503, retry_after="1")
    with Script(INFO, stopping, stopping, IDS) as server, penstock.connect(server.url) as broker:
        assert broker.queue("orders").publish(b"a") == 1


@pytest.mark.parametrize("dedup_id", [None, "1"])
def test_a_quota_is_waited_for(dedup_id: str | None) -> None:
    quota = problem("quota_exceeded", 429, retry_after="0")
    with Script(INFO, quota, IDS) as server, penstock.connect(server.url) as broker:
        with pytest.raises(QuotaExceeded) as caught:
            broker.queue("orders").publish(b"a", dedup_id=dedup_id)
        assert caught.value.retry_after_s == 0
        assert len(server.heard) == 2


def test_more_patience_is_asked_for_than_there_is() -> None:
    busy = problem("too_many_waiting", 503, retry_after="3600")
    with Script(busy) as server, penstock.connect(server.url, timeout=1) as broker:
        with pytest.raises(ServerUnavailable, match="it is too_many_waiting"):
            broker.list_queues()
        assert len(server.heard) == 1


def test_a_full_queue_is_waited_for() -> None:
    full = problem("queue_full", 503, retry_after="1")
    with Script(INFO, full, IDS) as server, penstock.connect(server.url) as broker, pytest.raises(QueueFull):
        broker.queue("orders").publish(b"a", dedup_id="1")


@pytest.mark.parametrize(
    ("code", "status", "error"), [("unauthorized", 401, Unauthorized), ("forbidden", 403, Forbidden)]
)
def test_a_refusal_is_another_error(code: str, status: int, error: type[Exception]) -> None:
    with Script(problem(code, status)) as server, penstock.connect(server.url) as broker:
        queues = broker.list_queues
        with pytest.raises(error, match=f"it is {code}"):
            queues()


@pytest.mark.parametrize("status", ["404 Not Found", "200 OK", "500 Internal Server Error"])
def test_a_strangers_answer_is_taken_for_one_of_ours(status: str) -> None:
    page = answer(status, b"<h1>Welcome to nginx</h1>", "text/html")
    with Script(page) as server, penstock.connect(server.url, timeout=5) as broker:
        with pytest.raises(
            ServerUnavailable, match=rf"{status[:3]} as no Penstock server does.*text/html.*Welcome"
        ):
            broker.list_queues()
        assert len(server.heard) == 1


def test_a_gateway_without_a_server_is_not_tried_again_or_its_publish_is() -> None:
    page = answer("502 Bad Gateway", b"<h1>Bad gateway</h1>", "text/html")
    with Script(page, page, packed(wire.Names(names=[]))) as server, penstock.connect(server.url) as broker:
        assert broker.list_queues() == []
    with Script(INFO, page, IDS) as server, penstock.connect(server.url) as broker:
        with pytest.raises(ServerUnavailable) as caught:
            broker.queue("orders").publish(b"a")
        assert caught.value.indeterminate


def test_an_error_of_a_newer_server_is_not_understood() -> None:
    with Script(problem("from_the_future", 418)) as server, penstock.connect(server.url) as broker:
        queues = broker.list_queues
        with pytest.raises(penstock.PenstockError, match="it is from_the_future"):
            queues()


def test_settling_without_an_answer_is_given_up() -> None:
    with Script(INFO, LEASE, CUT, DONE) as server, penstock.connect(server.url) as broker:
        found = broker.queue("orders").receive()
        assert found is not None
        found.ack()
        assert [one.partition("?")[0].rpartition("/")[2] for one in server.heard[-2:]] == ["settle", "settle"]


def test_a_publish_that_will_be_forgotten_is_sent_twice() -> None:
    short = wire.LogInfo(
        namespace="default", name="orders", kind="queue", number=7, policy=wire.policy_out(Policy(dedup_window=5))
    )  # fmt: skip
    with Script(packed(short), CUT, IDS) as server, penstock.connect(server.url, timeout=5) as broker:
        with pytest.raises(ServerUnavailable) as caught:
            broker.queue("orders").publish(b"a", dedup_id="1")
        assert caught.value.indeterminate
        assert len(server.heard) == 2


def test_a_transaction_is_done_twice() -> None:
    with Script(CUT, IDS) as server, penstock.connect(server.url) as broker:
        transaction = broker.transaction()
        transaction.publish("orders", b"a", dedup_id="1")
        with pytest.raises(ServerUnavailable) as caught:
            transaction.commit()
        assert caught.value.indeterminate
        assert len(server.heard) == 1


@pytest.mark.parametrize("code", ["starting", "not_ready", "too_many_connections"])
def test_a_server_that_is_starting_is_not_waited_for(code: str) -> None:
    busy = problem(code, 503, retry_after="0")
    with Script(INFO, busy, busy, IDS) as server, penstock.connect(server.url) as broker:
        assert broker.queue("orders").publish(b"a") == 1


def test_a_server_that_starts_is_asked_again_before_its_retry_after() -> None:
    starting = problem("starting", 503, retry_after="3600")
    with Script(INFO, starting, IDS) as server, penstock.connect(server.url) as broker:
        assert broker.queue("orders").publish(b"a") == 1


def test_pauses_stay_short_for_ten_seconds_and_grow_then() -> None:
    assert all(pause_after(tries, 9.9, chance) < 0.5 for tries in range(1, 100) for chance in (0, 1))
    assert pause_after(100, 10, 0) == 2


def test_an_outage_and_its_end_are_logged_once_for_all_calls(caplog: pytest.LogCaptureFixture) -> None:
    starting = [problem("starting", 503)] * 20  # the first ten take longer than `OUTAGE_S`
    with Script(INFO, *starting, IDS) as server, penstock.connect(server.url) as broker:
        queue = broker.queue("orders")
        calls: list[Future[Any]] = [start(queue.publish, b"a"), start(broker.list_queues)]
        for call in calls:
            with suppress(PenstockError):  # the script has no answer to the other one
                call.result(PATIENCE_S)
    outage, end = [one.getMessage() for one in caplog.records if one.name == "penstock.client"]
    assert re.fullmatch(
        rf"no answer from {server.url} \(it is starting\); trying again for up to 60 s", outage
    )
    assert re.fullmatch(rf"{server.url} answers again after \d+\.\d s", end)


def test_a_servers_own_mistake_is_thought_to_have_changed_nothing() -> None:
    with Script(INFO, problem("penstock_error", 500), IDS) as server, penstock.connect(server.url) as broker:
        queue = broker.queue("orders")
        with pytest.raises(PenstockError) as caught:
            queue.publish(b"a")
        assert caught.value.indeterminate  # type: ignore[attr-defined]
        assert len(server.heard) == 2


def came(name: str, life: str) -> bytes:
    return packed(wire.Consumer(consumer=name), penstock_life=life)


def alive(life: str) -> bytes:
    return packed(wire.Alive(alive=False), penstock_life=life)


def test_a_consumer_comes_twice_to_the_same_server() -> None:
    """The answer to its coming again was lost: there may be one of it already."""
    unknown = problem("broker_closed", 503, penstock_life="two")
    script = (INFO, came("w", "one"), unknown, CUT, alive("two"), DONE)
    with Script(*script) as server, penstock.connect(server.url) as broker:
        consumer = broker.queue("orders").subscribe("w")
        with pytest.raises(ServerUnavailable) as caught:
            consumer.receive(timeout=10)
        assert caught.value.indeterminate
        assert len([one for one in server.heard if "/consumers?" in one]) == 2


def test_a_consumer_that_came_to_a_server_that_is_no_more_does_not_come_again() -> None:
    unknown = problem("broker_closed", 503, penstock_life="two")
    script = (INFO, came("w", "one"), unknown, CUT, alive("three"), came("w", "three"), LEASE, DONE)
    with Script(*script) as server, penstock.connect(server.url) as broker:
        found = broker.queue("orders").subscribe("w").receive(timeout=10)
        assert found is not None
        assert len([one for one in server.heard if "/consumers?" in one]) == 3


def test_a_first_attach_goes_on_when_the_server_restarts_before_it_answers() -> None:
    first = packed(wire.LogInfo(namespace="default", name="orders", kind="queue", number=7, policy=wire.policy_out(Policy())), penstock_life="one")  # fmt: skip
    with Script(first, CUT, alive("two"), came("w", "two"), DONE) as server, penstock.connect(server.url) as broker:  # fmt: skip
        assert broker.queue("orders").subscribe("w").name == "w"
        assert len([one for one in server.heard if "/consumers?" in one]) == 2
