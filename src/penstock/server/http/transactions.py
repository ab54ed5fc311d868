"""Several things at once: all of it or nothing."""

from __future__ import annotations

from typing import Final

from penstock import wire
from penstock.broker import calls
from penstock.errors import BatchTooLarge
from penstock.limits import BODY_VALUES_MIXED_MAX, STEPS_MAX
from penstock.model.commands import Handle, Step, Unit
from penstock.server.http.groups import receipts_of
from penstock.server.http.logs import require_room_for_queues
from penstock.server.http.messages import ids_reply, message_of, publish_within, size_of, within_quota
from penstock.server.http.route import NAMESPACE, Call, Route


async def transact(call: Call) -> wire.Ids:
    body: wire.Transact = call.body
    if len(body.steps) > STEPS_MAX:
        raise BatchTooLarge(
            f"a transaction of {len(body.steps)} steps is over the bound of {STEPS_MAX}: make it several"
        )
    # Whether the caller may do all of it is asked before anything else is told.
    if any(step.messages for step in body.steps):
        call.caller.require(call.namespace, "publish")
    if any(step.receipts or step.offsets for step in body.steps):
        call.caller.require(call.namespace, "consume")
    steps = [one for step in body.steps for one in await _steps(call, step)]
    await require_room_for_queues(call, [target for target, _ in steps])  # those that are given by name
    count = sum(len(step.messages) for step in body.steps)
    messages = [message_of(one) for step in body.steps for one in step.messages]
    with within_quota(call, call.namespace, count, size_of(messages)):
        answers = await call.port.commit(Unit(call.namespace, steps)).get()
    return ids_reply([one for answer in answers if answer is not None for one in answer], call.packed)


async def _steps(call: Call, step: wire.Operation) -> list[Step]:
    """A step as the port takes it. What a log's name means is found out when the whole is done, unless leases, or a number, say that it exists."""
    receipts = receipts_of(step)
    log: Handle | str = step.log
    if receipts or step.number is not None:
        log = await call.front.log(call.namespace, step.log, step.number)
    found: list[Step] = [(log, calls.settle(one, step.how, step.delay, step.error)) for one in receipts]
    if step.messages:
        found.append((log, publish_within(call, step.messages)))
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
