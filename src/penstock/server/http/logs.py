"""Namespaces, queues and topics: made, found, changed, described; and their dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock import wire
from penstock.broker import calls
from penstock.errors import InvalidArgument
from penstock.limits import OFFSET_MAX
from penstock.model.commands import (
    Alter,
    DeadLetters,
    Delete,
    Handle,
    Kind,
    Purge,
    Redrive,
    Redriven,
    Spec,
)
from penstock.model.queries import (
    ClaimedNames,
    Find,
    Names,
    Namespaces,
    OfLog,
    OfNamespace,
    RedriveSource,
)
from penstock.model.stats import BrokerStats, QueueStats
from penstock.names import check_name, is_part_of, not_found
from penstock.server.accounts import Permission
from penstock.server.http.route import LOG, LOG_NUMBER, NAMESPACE, Call, Route


def info(log: Handle) -> wire.LogInfo:
    """What is told of a log."""
    return wire.LogInfo(
        namespace=log.namespace,
        name=log.name,
        kind=log.kind,
        number=log.number,
        policy=wire.policy_out(log.policy),
    )


# --- namespaces ---


async def namespaces(call: Call) -> wire.Names:
    known = await call.ask(Namespaces())
    return wire.Names(names=call.caller.namespaces(known))


async def stats_of_namespace(call: Call) -> BrokerStats:
    found = await call.ask(OfNamespace(call.namespace))
    return what_may_be_seen(found, whole=call.caller.is_admin_of_all)


def what_may_be_seen(found: BrokerStats, *, whole: bool) -> BrokerStats:
    """The journal holds everybody's messages: what is known of it is for those who may see all of them."""
    return found if whole else msgspec.structs.replace(found, journal=None)


# --- queues and topics ---


async def require_room_for_queues(call: Call, names: Iterable[object]) -> None:
    """Raise `QuotaExceeded` if a namespace may not have queues or topics of these names besides its own.

    What is not a name yet is refused later, for that.
    """
    limit = call.front.quotas.limit(call.namespace)
    wanted = {name for name in names if isinstance(name, str)}
    if wanted and limit is not None and limit.queues is not None:
        there = await call.ask(ClaimedNames(call.namespace))
        adding = sum(not is_part_of(name, there | wanted) for name in wanted - there)
        if adding:
            call.front.quotas.require_room(call.namespace, queues=len(there), adding=adding)


async def _declared(call: Call, kind: Kind) -> wire.LogInfo:
    body: wire.Declare = call.body
    policy = wire.policy_in(body.policy)
    if await call.ask(Find(call.namespace, call.path["name"])) is None and body.create is not False:
        await require_room_for_queues(call, (call.path["name"], policy.get("dead_letter")))
        call.status = 201
    found = await call.port.declare(Spec(call.namespace, call.path["name"], policy, body.create, kind)).get()
    call.front.keep(found)
    return info(found)


async def _found(call: Call, kind: Kind) -> Handle:
    found = await call.port.declare(Spec(call.namespace, call.path["name"], {}, False, kind)).get()
    call.front.keep(found)
    return found


async def _meant(call: Call, kind: Kind) -> Handle:
    """The log of that name, and of that number if one is given."""
    found = await _found(call, kind)
    number = call.query["log"]
    if number is not None and found.number != number:
        raise not_found(kind, found.name, "was deleted")
    return found


async def _altered(call: Call, kind: Kind) -> wire.LogInfo:
    found, policy = await _meant(call, kind), wire.policy_in(call.body.policy)
    await require_room_for_queues(call, (policy.get("dead_letter"),))
    await call.do(found, Alter(policy))
    return info(await _found(call, kind))


async def _deleted(call: Call, kind: Kind) -> None:
    await call.do(await _meant(call, kind), Delete())


async def names_of_queues(call: Call) -> wire.Names:
    return wire.Names(names=await call.ask(Names(call.namespace, "queue")))


async def names_of_topics(call: Call) -> wire.Names:
    return wire.Names(names=await call.ask(Names(call.namespace, "topic")))


async def declare_queue(call: Call) -> wire.LogInfo:
    return await _declared(call, "queue")


async def declare_topic(call: Call) -> wire.LogInfo:
    return await _declared(call, "topic")


async def get_queue(call: Call) -> wire.LogInfo:
    return info(await _found(call, "queue"))


async def get_topic(call: Call) -> wire.LogInfo:
    return info(await _found(call, "topic"))


async def alter_queue(call: Call) -> wire.LogInfo:
    return await _altered(call, "queue")


async def alter_topic(call: Call) -> wire.LogInfo:
    return await _altered(call, "topic")


async def delete_queue(call: Call) -> None:
    await _deleted(call, "queue")


async def delete_topic(call: Call) -> None:
    await _deleted(call, "topic")


async def stats(call: Call) -> QueueStats:
    return await call.ask(OfLog(await call.log()))


async def purge(call: Call) -> wire.Count:
    return wire.Count(count=await call.do(await call.log(), Purge()))


# --- dead letters ---


async def dead_letters(call: Call) -> wire.LogInfo:
    found = await call.port.declare(DeadLetters(await call.log())).get()
    call.front.keep(found)
    return info(found)


async def redrive_source(call: Call) -> wire.LogInfo | None:
    found = await call.ask(RedriveSource(await call.log()))
    return None if found is None else info(found)


async def redrive(call: Call) -> Redriven:
    body: Redrive = call.body
    if body.span is not None and not all(0 <= one <= OFFSET_MAX for one in body.span):
        raise InvalidArgument(f"span is {body.span}; give two offsets")
    calls.count(body.count)
    if body.to is not None:
        check_name(body.to, kind="queue name", reserved_ok=True)
    done: Redriven = await call.do(await call.log(), body)
    return done


_ORDERS: Final = wire.LogInfo(
    namespace="default", name="orders", kind="queue", number=7, policy={"max_attempts": 5, "visibility_timeout": 30.0}
)  # fmt: skip


def _kind_routes(kind: str, handlers: dict[str, Any]) -> tuple[Route, ...]:
    """Queues and topics are made, found and changed alike."""
    path = NAMESPACE + f"/{kind}s"
    one = path + "/{name}"
    # Queues are made on first use: whoever may use them makes them.
    anyone: tuple[Permission, ...] = ("publish", "consume", "admin")
    return (
        Route(
            method="GET", path=path, summary=f"The names of a namespace's {kind}s", permission=anyone,
            handler=handlers["names"], answer=wire.Names, answer_example=wire.Names(names=["invoices", "orders"]),
        ),
        Route(
            method="PUT", path=one, summary=f"A {kind} of that name, made if it does not exist", permission=anyone,
            handler=handlers["declare"], request=wire.Declare, answer=wire.LogInfo, others={201: f"the {kind} was made"},
            example=wire.Declare(policy={"max_attempts": 5}), answer_example=_ORDERS,
            note="What is given of the policy is compared with what is stored: 409 if it differs. `create`: true if it must be new, false if it must exist.",
        ),
        Route(
            method="GET", path=one, summary=f"A {kind} that exists", permission=anyone, handler=handlers["get"],
            answer=wire.LogInfo, answer_example=_ORDERS,
        ),
        Route(
            method="PATCH", path=one, summary=f"Change the policy of a {kind}, from now on", permission=("admin",),
            handler=handlers["alter"], request=Alter, answer=wire.LogInfo, query=(LOG_NUMBER,),
            example=Alter(policy={"max_attempts": 10}), answer_example=_ORDERS,
        ),
        Route(
            method="DELETE", path=one, summary=f"Delete a {kind} with all that is in it", permission=("admin",),
            handler=handlers["delete"], query=(LOG_NUMBER,),
        ),
    )  # fmt: skip


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET", path="/v1/namespaces", summary="The namespaces that have queues or topics, as far as the caller may see them",
        handler=namespaces, answer=wire.Names, answer_example=wire.Names(names=["default", "tenant-a"]),
    ),
    Route(
        method="GET", path=NAMESPACE, summary="What a namespace holds, and for an admin of all what the journal knows of itself",
        permission=("consume",), handler=stats_of_namespace, answer=BrokerStats,
        answer_example=BrokerStats(
            queues=2, topics=1, ready=17, leased=3, delayed=0, retrying=1, published=1200, delivered=1190, acked=1179, journal=None
        ),
    ),
    *_kind_routes(
        "queue",
        {"names": names_of_queues, "declare": declare_queue, "get": get_queue, "alter": alter_queue, "delete": delete_queue},
    ),
    *_kind_routes(
        "topic",
        {"names": names_of_topics, "declare": declare_topic, "get": get_topic, "alter": alter_topic, "delete": delete_topic},
    ),
    Route(
        method="GET", path=LOG + "/stats", summary="What a queue or topic holds now", permission=("consume",), handler=stats,
        answer=QueueStats,
        answer_example=QueueStats(
            name="orders", depth=4, ready=2, delayed=1, leased=1, retrying=0, dead=0, bytes=None, next_offset=12, published=12,
            consumers=1, waiting=0, kind="queue", groups={}, readers={"billing": 3}, schedules=["nightly"],
        ),
    ),
    Route(
        method="POST", path=LOG + "/purge", summary="Remove every message that is not leased", permission=("admin",), handler=purge,
        answer=wire.Count, answer_example=wire.Count(count=17),
    ),
    Route(
        method="POST", path=LOG + "/dead-letters", summary="The queue of what failed for good, made if it does not exist",
        permission=("consume",), handler=dead_letters, answer=wire.LogInfo,
        answer_example=wire.LogInfo(namespace="default", name="orders.dlq", kind="queue", number=8, policy={"max_attempts": None}),
    ),
    Route(
        method="POST", path=LOG + "/redrive-source", summary="Where the dead letters are that a redrive would move",
        permission=("consume",), handler=redrive_source, answer=wire.LogInfo, others={204: "there are none"},
        answer_example=wire.LogInfo(namespace="default", name="orders.dlq", kind="queue", number=8, policy={"max_attempts": None}),
    ),
    Route(
        method="POST", path=LOG + "/redrive", summary="Move some dead letters back to where they failed, or to another queue, in one unit",
        permission=("consume",), also=("publish",), handler=redrive, request=Redrive, answer=Redriven,
        example=Redrive(count=100, where="x-error LIKE '%timeout%'"), answer_example=Redriven(moved=100, left=(100, 250)),
        note="Go on with `left` as the next `span` while its end is behind its beginning.",
    ),
)  # fmt: skip
