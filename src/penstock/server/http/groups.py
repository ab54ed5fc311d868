"""Receiving: groups, their consumers, leases, and what ends those."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final

from penstock import wire
from penstock.broker import calls
from penstock.broker.contents import octets_of
from penstock.broker.deliveries import deliveries
from penstock.broker.port import Granted
from penstock.clock import to_datetime
from penstock.errors import BrokerClosed, InvalidArgument, Unauthorized
from penstock.limits import DELIVERIES_MAX
from penstock.model.commands import (
    Attach,
    CloseGroup,
    Handle,
    HandOver,
    Heartbeat,
    OpenGroup,
    Receipts,
    Release,
    Seek,
    Settle,
    Unit,
)
from penstock.model.queries import Lag
from penstock.server.http.messages import checked_place
from penstock.server.http.problem import Refusal
from penstock.server.http.route import LOG, Call, Query, Route

GROUP: Final = LOG + "/groups/{group}"
CONSUMER: Final = GROUP + "/consumers/{consumer}"


# --- handing out ---


async def lease(call: Call) -> Any:
    body: wire.Lease = call.body
    log, group = await call.log(), call.path["group"]
    if body.consumer is not None and _is_of_another_life(call):
        raise BrokerClosed(f"the consumer {body.consumer!r} was attached before the server restarted: attach it again")  # fmt: skip
    granted, octets = await leased(
        call, log, group, body.count, body.wait, body.consumer, settle=body.auto_ack, ahead=body.ahead
    )
    if granted is None:
        return wire.Leases(group=group, number=0, deliveries=[])

    def made() -> wire.Leases:
        make: Any = _packed_row if call.packed else _row
        return wire.Leases(group=group, number=granted.number, deliveries=deliveries(make, None, granted))

    return await call.built(octets, made)


async def leased(
    call: Call, log: Handle, group: str, count: int, wait: float, consumer: str | None = None, *, settle: bool = False,
    ahead: int = 0,
) -> tuple[Granted | None, int]:  # fmt: skip
    """Messages for somebody who waits for them, and about how many bytes they take. If he goes before he has them, they go back to their places."""
    wait_us = call.wait_us(wait)
    most = call.front.bounds.answer_bytes_max
    settles = settle or log.policy.delivery == "at-most-once"
    if settles and not call.connection.has_room_for(most):
        most = 0  # what is settled cannot go back afterwards, so it is one message at the most

    async def take_back(granted: Granted | None) -> None:
        if granted is not None and granted.number:
            await unseen(call, log, granted, list(granted.offsets))

    with call.front.place(call.caller) if wait_us else nullcontext():
        ticket = call.port.lease(
            log, group, count, consumer=consumer, wait_us=wait_us, settle=settle, ahead=ahead, bytes_max=most
        )
        granted = await call.front.outcome(ticket, call.connection, take_back, call.wait_name())
    if granted is None:
        return None, 0
    octets = octets_of(granted.runs)
    if granted.number:
        try:
            if wait_us:
                call.require_caller()
            call.require_room(octets)
        except (Refusal, Unauthorized):
            await unseen(call, log, granted, list(granted.offsets))
            raise
    return granted, octets


async def unseen(call: Call, log: Handle, granted: Granted, offsets: list[int]) -> None:
    await call.do(log, Settle(granted.group, offsets, [granted.number] * len(offsets), "unseen"))


def _row(
    _queue: None, group: str, number: int, offset: int, attempt: int, payload: bytes, id: int, timestamp_us: int, priority: int,
    key: str | None, headers: dict[str, str] | None, properties: bytes | None,
) -> wire.DeliveryRow:  # fmt: skip
    """What is told of a delivery, in JSON."""
    return wire.DeliveryRow(
        id=id, offset=offset, timestamp=to_datetime(timestamp_us), payload=payload, attempt=attempt,
        receipt=f"{group}:{offset}:{number:x}", id_str=str(id), headers=headers or {}, key=key, priority=priority, properties=properties,
    )  # fmt: skip


def _packed_row(
    _queue: None, group: str, number: int, offset: int, attempt: int, payload: bytes, id: int, timestamp_us: int, priority: int,
    key: str | None, headers: dict[str, str] | None, properties: bytes | None,
) -> wire.DeliveryRow:  # fmt: skip
    """The same in msgpack, where ids are numbers for everybody."""
    return wire.DeliveryRow(
        id=id, offset=offset, timestamp=to_datetime(timestamp_us), payload=payload, attempt=attempt,
        receipt=f"{group}:{offset}:{number:x}", headers=headers or {}, key=key, priority=priority, properties=properties,
    )  # fmt: skip


async def end_wait(call: Call) -> wire.Was:
    return wire.Was(was=call.front.end_wait(call.caller, call.path["wait"]))


# --- settling ---


def receipt_of(given: str) -> tuple[str, int, int]:
    """What a receipt says: group, offset, number of the lease."""
    group, colon, rest = given.rpartition(":")
    number = rest
    group, colon, offset = group.rpartition(":")
    if not colon or len(offset) > 19 or not (offset.isascii() and offset.isdigit()) or len(number) > 32:
        raise _no_receipt(given)
    try:
        return group, int(offset), int(number, 16)
    except ValueError:
        raise _no_receipt(given) from None


def _no_receipt(given: str) -> InvalidArgument:
    return InvalidArgument(f"{given[:80]!r} is no receipt; give one as it came with its delivery")


def receipts_of(body: wire.Held) -> list[Receipts]:
    """What leases are meant, by group: as receipts, or in columns."""
    if len(body.receipts) + len(body.offsets) > DELIVERIES_MAX:
        raise InvalidArgument(f"there are more than {DELIVERIES_MAX} receipts: make it several requests")
    if body.group is not None:
        if body.receipts or len(body.offsets) != len(body.numbers):
            raise InvalidArgument("give either receipts, or a group with as many offsets as numbers")
        return [Receipts(body.group, body.offsets, body.numbers)]
    if body.offsets or body.numbers:
        raise InvalidArgument("offsets and numbers need the group that they are of")
    by_group: dict[str, Receipts] = {}
    for one in body.receipts:
        group, offset, number = receipt_of(one)
        found = by_group.setdefault(group, Receipts(group, [], []))
        found.offsets.append(offset)
        found.numbers.append(number)
    return list(by_group.values())


async def settle(call: Call) -> None:
    body: wire.Settle = call.body
    log, found = await call.log(), receipts_of(body)
    if not found or not any(one.offsets for one in found):
        raise InvalidArgument("nothing is given to settle")
    steps = [(log, calls.settle(one, body.how, body.delay, body.error)) for one in found]
    await call.port.commit(Unit(log.namespace, steps)).get()


async def extend(call: Call) -> None:
    body: wire.Extend = call.body
    log, found = await call.log(), receipts_of(body)
    seconds = calls.extension(body.seconds)
    if not any(one.offsets for one in found):
        raise InvalidArgument("nothing is given to extend")
    for one in found:
        await call.port.extend(log, one, seconds).get()


async def hand_over(call: Call) -> wire.HandedOver:
    body: wire.HandOver = call.body
    log, found = await call.log(), receipts_of(body)
    if len(found) != 1:
        raise InvalidArgument("give the receipts of one group, and at least one")
    return wire.HandedOver(offsets=await call.do(log, HandOver(*found[0])))


# --- groups and consumers ---


def _silence(given: float | None) -> float | None:
    """No consumer is for ever here: its process may have been killed, and the server does not notice that."""
    return calls.silence(wire.SILENCE_S if given is None else given, "silence")


async def open_group(call: Call) -> wire.Consumer:
    body: wire.OpenGroup = call.body
    log, name = await call.log(), call.path["group"]
    command = OpenGroup(
        calls.subscription_name(name) if log.kind == "topic" else calls.group_name(name),
        body.filter,
        calls.strategy(body.strategy),
        None if body.start is None else checked_place(body.start),
        body.durable,
        None if body.consumer is None else calls.consumer_name(body.consumer),
        None if body.consumer is None else _silence(body.silence),
    )
    return wire.Consumer(consumer=await call.do(log, command))


async def close_group(call: Call) -> None:
    await call.do(await call.log(), CloseGroup(call.path["group"]))


async def seek(call: Call) -> None:
    await call.do(await call.log(), Seek(call.path["group"], checked_place(call.body)))


async def lag(call: Call) -> wire.Lag:
    return wire.Lag(lag=await call.ask(Lag(await call.log(), call.path["group"])))


async def attach(call: Call) -> wire.Consumer:
    body: wire.Attach = call.body
    coming = Attach(calls.consumer_name(body.consumer), _silence(body.silence))
    given: str = await call.port.consumer(await call.log(), call.path["group"], coming).get()
    return wire.Consumer(consumer=given)


def _is_of_another_life(call: Call) -> bool:
    """Whether the consumer was attached before a restart: its name may be another's now."""
    given = call.headers.get(b"penstock-life")
    return given is not None and given != call.front.life[1]


async def heartbeat(call: Call) -> wire.Alive:
    if _is_of_another_life(call):
        return wire.Alive(alive=False)
    beat = Heartbeat(call.path["consumer"])
    return wire.Alive(alive=await call.port.consumer(await call.log(), call.path["group"], beat).get())


async def release(call: Call) -> None:
    if _is_of_another_life(call):
        return
    going = Release(call.path["consumer"], call.query["retire"])
    await call.port.consumer(await call.log(), call.path["group"], going).get()


_ID: Final = 412_390_178_816_270_336
_DELIVERY: Final = wire.DeliveryRow(
    id=_ID, id_str=str(_ID), offset=11, timestamp=datetime.fromtimestamp(1_800_000_000, UTC), payload=b"order-123", attempt=1,
    receipt="default:11:10000002a", key="customer-7",
)  # fmt: skip

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="PUT", path=GROUP, summary="A group of a queue, or a subscription of a topic, made if it does not exist",
        permission=("consume",), handler=open_group, request=wire.OpenGroup, answer=wire.Consumer,
        example=wire.OpenGroup(filter="region = 'eu'", start=wire.Place(at="earliest")), answer_example=wire.Consumer(consumer=None),
        note="What is given must be what is stored: 409 if it differs. A consumer may come with it.",
    ),
    Route(
        method="DELETE", path=GROUP, summary="End a group with all that waits in it", permission=("consume",), handler=close_group,
    ),
    Route(
        method="POST", path=GROUP + "/seek", summary="Send a whole group to a place", permission=("consume",), handler=seek,
        request=wire.Place, example=wire.Place(offset=4),
    ),
    Route(
        method="GET", path=GROUP + "/lag", summary="How many messages a group has not settled", permission=("consume",), handler=lag,
        answer=wire.Lag, answer_example=wire.Lag(lag=17),
    ),
    Route(
        method="POST", path=GROUP + "/lease", summary="Messages, as soon as there is one, or nothing after a time",
        permission=("consume",), handler=lease, request=wire.Lease, answer=wire.Leases, example=wire.Lease(count=100, wait=20),
        answer_example=wire.Leases(group="default", number=0x10000002A, deliveries=[_DELIVERY]),
        note="A queue's own group is called `default`. Fewer may come than were asked for, where an answer would become too large. "
        "A client that goes while it waits leaves nothing leased.",
    ),
    Route(
        method="DELETE", path="/v1/waits/{wait}", summary="End the wait of a request of one's own",
        handler=end_wait, answer=wire.Was, answer_example=wire.Was(was=True),
        note="A request that waits and has a header `Penstock-Wait: NAME` is answered at once then, with what it was granted, or nothing. So nothing is lost, "
        "as it may be when a connection is cut.",
    ),
    Route(
        method="POST", path=GROUP + "/consumers", summary="A consumer comes", permission=("consume",), handler=attach,
        request=wire.Attach, answer=wire.Consumer, example=wire.Attach(consumer="worker-1", silence=60),
        answer_example=wire.Consumer(consumer="worker-1"), note="The name that comes back is another one if that was taken. A consumer that is not heard of for `silence` seconds (60 if it names none) is thought dead: "
        "it lives while it waits, and each lease, settle, extend or heartbeat of it counts.",
    ),
    Route(
        method="POST", path=CONSUMER + "/heartbeat", summary="A consumer is alive", permission=("consume",), handler=heartbeat,
        answer=wire.Alive, answer_example=wire.Alive(alive=True),
    ),
    Route(
        method="DELETE", path=CONSUMER, summary="A consumer goes: what it has not settled goes back to its place",
        permission=("consume",), handler=release, query=(Query("retire", bool, "whether it is taken out by somebody else", False),),
    ),
    Route(
        method="POST", path=LOG + "/settle", summary="End leases, all or none", permission=("consume",), handler=settle,
        request=wire.Settle, example=wire.Settle(how="ack", receipts=["default:11:10000002a"]),
        note="By receipts, or by what they say in columns: `group`, `offsets`, `numbers`. `how` is ack, nack, reject, requeue or unseen.",
    ),
    Route(
        method="POST", path=LOG + "/hand-over", summary="Report that code gets messages that were sent ahead",
        permission=("consume",), handler=hand_over, request=wire.HandOver, answer=wire.HandedOver,
        example=wire.HandOver(receipts=["default:11:10000002a"]), answer_example=wire.HandedOver(offsets=[11]),
        note="Of a lease with `ahead`, the last messages count no attempt until this is answered, whatever ends their lease. The answer names "
        "those whose lease still holds: drop the others.",
    ),
    Route(
        method="POST", path=LOG + "/extend", summary="Let leases end later: so many seconds from now", permission=("consume",),
        handler=extend, request=wire.Extend, example=wire.Extend(seconds=60, receipts=["default:11:10000002a"]),
    ),
)  # fmt: skip
