"""Several things at once: all of it or nothing."""

from __future__ import annotations

from typing import Final

from penstock import wire
from penstock.broker import calls
from penstock.broker.port import Handle, Operation
from penstock.broker.transaction import OPERATIONS_MAX
from penstock.errors import BatchTooLarge
from penstock.limits import BODY_VALUES_MIXED_MAX
from penstock.server.http.groups import receipts_of
from penstock.server.http.logs import require_room_for_queues
from penstock.server.http.messages import ids_reply, message_of, size_of, within_quota
from penstock.server.http.route import NAMESPACE, Call, Route


async def transact(call: Call) -> wire.Ids:
    body: wire.Transact = call.body
    if len(body.steps) > OPERATIONS_MAX:
        raise BatchTooLarge(
            f"a transaction of {len(body.steps)} steps is over the bound of {OPERATIONS_MAX}: make it several"
        )
    # Whether he may do all of it is asked before anything else is told.
    if any(step.messages for step in body.steps):
        call.caller.require(call.namespace, "publish")
    if any(step.receipts or step.offsets for step in body.steps):
        call.caller.require(call.namespace, "consume")
    steps = [one for step in body.steps for one in await _operations(call, step)]
    require_room_for_queues(call, [step.log for step in steps])  # those that are given by name
    count = sum(len(step.messages) for step in steps)
    with within_quota(call, call.namespace, count, sum(size_of(step.messages) for step in steps)):
        return ids_reply(await call.port.transact(call.namespace, steps).get(), call.packed)


async def _operations(call: Call, step: wire.Operation) -> list[Operation]:
    """A step as the broker takes it. What a log's name means is found out when the whole is done, unless leases, or a number, say that it exists."""
    receipts = receipts_of(step)
    log: Handle | str = step.log
    if receipts or step.number is not None:
        log = await call.front.log(call.namespace, step.log, step.number)
    delay_us, error = calls.delay_us(step.delay), calls.error_text(step.error)
    found = [Operation(log, receipts=one, how=step.how, delay_us=delay_us, error=error) for one in receipts]
    if step.messages:
        found.append(Operation(log, [message_of(one) for one in step.messages]))
    return found


_ID: Final = 412_390_178_816_270_336

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST", path=NAMESPACE + "/transactions", summary="Publish and settle in one unit: all of it or nothing",
        permission=("publish", "consume"), handler=transact, request=wire.Transact, values_max=BODY_VALUES_MIXED_MAX, answer=wire.Ids,
        example=wire.Transact(
            steps=[
                wire.Operation(log="orders", receipts=["default:11:10000002a"]),
                wire.Operation(log="invoices", messages=[b"invoice-123"]),
            ]
        ),
        answer_example=wire.Ids(ids=[_ID], ids_str=[str(_ID)]),
        note="Publishing takes the permission publish, and settling consume. A log without a `number` is made on first use.",
    ),
)  # fmt: skip
