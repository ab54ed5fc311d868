"""The addresses of the founding document (MQueue): enqueue, dequeue, ack, nack, health, metrics. Its curl session works as written.

What it leaves open is decided so:

- An item's `topic` is a queue, made on first use. `priority`, `deliver_after`, `headers`, `key`, `ttl` and `dedup_id` may be left out.
- An array is all or none within a namespace: if it is for several, each is a unit of its own, in the order in which they first appear; who may not publish to one of them publishes nothing.
  If a later one is refused after an earlier one was done, the problem says which were.
- Enqueue answers 202, as what is accepted for somebody to work on: it is recorded by then. The others answer 200.
- `deliver_after` of what was not delayed is when it was published.
- A settle takes the `receipt`, which is safe, or the `id` alone, as the document has it: that ends whatever lease the message has now in the queue's own group, `default`. Whoever
  was too slow, and lost the message to somebody else, ends the other's lease then; so prefer receipts.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from penstock import wire
from penstock.broker import calls
from penstock.broker.compose import publish_of
from penstock.broker.contents import messages_of
from penstock.broker.port import Granted
from penstock.errors import InvalidArgument, PenstockError
from penstock.limits import BODY_VALUES_MAX, PRIORITY_DEFAULT
from penstock.message import Message
from penstock.model.commands import DEFAULT_GROUP, Handle, Publish, Receipts, Spec, Step, Unit
from penstock.model.queries import HeldBy, Namespaces
from penstock.names import check_name
from penstock.server.http.front import ClientGone
from penstock.server.http.groups import leased, receipt_of, unseen
from penstock.server.http.logs import require_room_for_queues
from penstock.server.http.messages import id_of, size_of_publish, within_quota
from penstock.server.http.problem import Refusal
from penstock.server.http.route import WAIT, Call, Plain, Query, Route

TEXT: Final = "text/plain; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


class EnqueueItem(wire.Body, gc=False):  # as `wire.Item`
    """A message for a queue."""

    topic: str
    payload: bytes
    namespace: str = "default"
    priority: int = PRIORITY_DEFAULT
    deliver_after: wire.Moment | None = None
    headers: wire.Headers = msgspec.field(default_factory=dict)
    key: str | None = None
    ttl: float | None = None
    dedup_id: str | None = None


class Enqueued(wire.Reply):
    """The id that a message was given; of a repeated `dedup_id`, that of the first."""

    id: int
    id_str: str


class DequeuedItem(wire.Reply, omit_defaults=True):
    """A message that was handed out."""

    id: int
    id_str: str
    namespace: str
    topic: str
    priority: int
    payload: bytes
    deliver_after: datetime
    attempts: int
    receipt: str
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    key: str | None = None


class Ack(wire.Body):
    """A message was processed. Give its receipt, or its id alone."""

    topic: str
    namespace: str = "default"
    id: int | str | None = None
    receipt: str | None = None


class Nack(Ack):
    """A message failed: it comes again, `delay` seconds from now, or when its queue's backoff says; or it has failed too often."""

    delay: float | None = None
    error: str | None = None


class Settled(wire.Reply):
    """What was done."""

    status: Literal["acked", "nacked"]


# --- enqueue ---


async def enqueue(call: Call) -> list[Enqueued]:
    items: list[EnqueueItem] = call.body
    by_namespace: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        by_namespace.setdefault(item.namespace, []).append(at)
    for namespace in by_namespace:
        call.caller.require(namespace, "publish")
        check_name(namespace, kind="namespace")
    ids: dict[int, int] = {}
    done: list[str] = []
    for namespace, places in by_namespace.items():
        try:
            given = await _published(call, namespace, [items[at] for at in places])
        except PenstockError as error:
            if done:
                error.args = (
                    f"{error.message} (of this array, what is for {', '.join(done)} was published)",
                )
            raise
        ids.update(zip(places, given, strict=True))
        done.append(namespace)
    return [Enqueued(id=ids[at], id_str=str(ids[at])) for at in range(len(items))]


async def _published(call: Call, namespace: str, items: list[EnqueueItem]) -> list[int]:
    """The messages of one namespace, all or none; their ids in order."""
    call.namespace = namespace
    by_topic: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        by_topic.setdefault(item.topic, []).append(at)
    missed = [name for name in by_topic if await call.front.found(namespace, name) is None]
    await require_room_for_queues(call, missed)
    limit = call.front.quotas.limit(namespace)
    steps: list[Step] = []
    for topic, places in by_topic.items():
        command = publish_of([_message_of(items[at]) for at in places])
        command.depth_max = None if limit is None else limit.depth
        steps.append((topic if topic in missed else await call.front.log(namespace, topic), command))
    octets = sum(size_of_publish(command) for _, command in steps if isinstance(command, Publish))
    with within_quota(call, namespace, len(items), octets):
        answers = await call.port.commit(Unit(namespace, steps)).get()
    order = [at for places in by_topic.values() for at in places]
    given = [one for answer in answers for one in answer]
    return [one for _, one in sorted(zip(order, given, strict=True))]


def _message_of(item: EnqueueItem) -> bytes | Message:
    plain = not item.headers and item.priority == PRIORITY_DEFAULT
    if plain and not (item.key or item.deliver_after or item.ttl is not None or item.dedup_id):
        return item.payload
    return Message(
        item.payload, headers=item.headers, key=item.key, priority=item.priority, deliver_at=item.deliver_after,
        ttl=item.ttl, dedup_id=item.dedup_id,
    )  # fmt: skip


# --- dequeue ---


async def dequeue(call: Call) -> Any:
    namespace, topic = call.query["namespace"], call.query["topic"]
    call.caller.require(namespace, "consume")
    call.namespace = check_name(namespace, kind="namespace")
    if topic is None:
        raise InvalidArgument(
            "the parameter 'topic' is missing; say which queue is meant, as in ?topic=orders"
        )
    check_name(topic, kind="topic", reserved_ok=True)
    lease_s = None if call.query["lease"] is None else calls.extension(call.query["lease"])
    log = await call.front.found(namespace, topic)
    if log is None:
        if not call.wait_us(call.query["wait"]):
            return []  # nothing is there; and nobody waits, for whom it would have to be made
        log = await _made(call, topic)
    granted, octets = await leased(call, log, DEFAULT_GROUP, call.query["limit"], call.query["wait"])
    if granted is None:
        return []
    if lease_s is not None and granted.number:  # without a number it is settled: nothing is held
        offsets = list(granted.offsets)
        kept = Receipts(granted.group, offsets, [granted.number] * len(offsets))
        await call.port.extend(log, kept, lease_s).get()
        if call.connection.is_closing():
            await unseen(call, log, granted, offsets)
            raise ClientGone
    return await call.built(octets, lambda: _items(log, granted))


async def _made(call: Call, topic: str) -> Handle:
    await require_room_for_queues(call, (topic,))
    log = await call.port.declare(Spec(call.namespace, topic)).get()
    call.front.keep(log)
    return log


def _items(log: Handle, granted: Granted) -> list[DequeuedItem]:
    attempts = granted.attempts
    each = attempts if isinstance(attempts, list) else [attempts] * len(granted.offsets)
    found = zip(messages_of(granted.runs), granted.offsets, each, strict=True)
    return [_item(log, granted, message, offset, attempt) for message, offset, attempt in found]


def _item(log: Handle, granted: Granted, message: Any, offset: int, attempt: int) -> DequeuedItem:
    return DequeuedItem(
        id=message.id,
        id_str=str(message.id),
        namespace=log.namespace,
        topic=log.name,
        priority=message.priority,
        payload=message.payload,
        deliver_after=message.deliver_at or message.timestamp,
        attempts=attempt,
        receipt=f"{granted.group}:{offset}:{granted.number:x}",
        headers=message.headers,
        key=message.key,
    )


# --- ack and nack ---


async def _receipts(call: Call) -> tuple[Handle, Receipts]:
    """What lease is meant."""
    body: Ack = call.body
    call.caller.require(body.namespace, "consume")
    call.namespace = check_name(body.namespace, kind="namespace")
    log = await call.front.log(body.namespace, body.topic)
    if body.receipt is not None:
        group, offset, number = receipt_of(body.receipt)
        return log, Receipts(group, [offset], [number])
    if body.id is None:
        raise InvalidArgument(
            "there is neither a receipt nor an id; give the receipt that came with the item"
        )
    return log, await call.ask(HeldBy(log, id_of(str(body.id))))


async def ack(call: Call) -> Settled:
    log, receipts = await _receipts(call)
    await call.do(log, calls.settle(receipts))
    return Settled(status="acked")


async def nack(call: Call) -> Settled:
    body: Nack = call.body
    calls.seconds(body.delay, "delay")  # what is wrong is said first, whether the message is leased or not
    log, receipts = await _receipts(call)
    await call.do(log, calls.settle(receipts, "nack", body.delay, body.error))
    return Settled(status="nacked")


# --- looking ---


async def health(call: Call) -> Plain:
    """Whether the process lives: that it answers at all says so."""
    del call
    return Plain(b"OK", TEXT)


async def ready(call: Call) -> Plain:
    if call.front.stopping or not call.front.ready():
        raise Refusal(
            503, "not_ready", "the server is starting or stopping: send what you have elsewhere, or later",
            retry_after_s=call.front.bounds.retry_after_s,
        )  # fmt: skip
    return Plain(b"READY", TEXT)


async def metrics(call: Call) -> Plain:
    seen = None
    if not call.caller.is_admin_of_all:
        known = await call.ask(Namespaces())
        seen = call.caller.namespaces(known)
    # In a thread: of thousands of queues it takes a while, and others are not to wait for it.
    return Plain(await asyncio.to_thread(call.front.observer.render, seen), METRICS)


_ID: Final = 412_390_178_816_270_336
_NAMESPACE: Final = Query("namespace", str, "whose queue it is", "default")
_TOPIC: Final = Query("topic", str, "which queue")
_LIMIT: Final = Query("limit", int, "how many messages at the most", 1)
_LEASE: Final = Query(
    "lease", float, "for how many seconds they are kept, instead of the queue's visibility_timeout"
)

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST", path="/enqueue", summary="Publish messages, to queues that are made on first use", handler=enqueue,
        request=list[EnqueueItem], values_max=BODY_VALUES_MAX, answer=list[Enqueued], status=202,
        example=[
            EnqueueItem(
                namespace="default", topic="test-topic", priority=1, payload=b"Hello World", deliver_after=datetime(2024, 1, 1, 12, tzinfo=UTC)
            )
        ],
        answer_example=[Enqueued(id=_ID, id_str=str(_ID))],
        note="All or none within a namespace. Takes the permission publish in each of them.",
    ),
    Route(
        method="GET", path="/dequeue", summary="Messages, by priority and then in order", handler=dequeue,
        query=(_NAMESPACE, _TOPIC, _LIMIT, WAIT, _LEASE), answer=list[DequeuedItem],
        answer_example=[
            DequeuedItem(
                id=_ID, id_str=str(_ID), namespace="default", topic="test-topic", priority=1, payload=b"Hello World",
                deliver_after=datetime(2024, 1, 1, 12, tzinfo=UTC), attempts=1, receipt="default:11:10000002a",
            )
        ],
        note="An empty list if there is nothing. Takes the permission consume.",
    ),
    Route(
        method="POST", path="/ack", summary="A message was processed", handler=ack, request=Ack, answer=Settled,
        example=Ack(id=_ID, namespace="default", topic="test-topic"), answer_example=Settled(status="acked"),
        note="By `receipt`, or by `id` alone, which ends whatever lease the message has now in the queue's own group. Takes the permission consume.",
    ),
    Route(
        method="POST", path="/nack", summary="A message failed, and comes again", handler=nack, request=Nack, answer=Settled,
        example=Nack(receipt="default:11:10000002a", namespace="default", topic="test-topic", delay=10, error="timeout"),
        answer_example=Settled(status="nacked"), note="Takes the permission consume.",
    ),
    Route(method="GET", path="/health", summary="Whether the server lives", handler=health, public=True, answer=str, answer_example="OK", media=("text/plain",)),
    Route(
        method="GET", path="/ready", summary="Whether requests are served: 200 if they are, 503 while the server starts or stops", handler=ready, public=True, answer=str,
        answer_example="READY", media=("text/plain",),
    ),
    Route(
        method="GET", path="/metrics", summary="Metrics for Prometheus, of the namespaces that the caller may see", handler=metrics,
        answer=str, answer_example="# HELP penstock_queue_depth …", media=("text/plain",),
    ),
)  # fmt: skip
