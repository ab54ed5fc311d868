"""Readers: positions that survive."""

from __future__ import annotations

from typing import Final

from penstock import wire
from penstock.broker import calls
from penstock.model.commands import Commit, Forget
from penstock.server.http.messages import offset_of
from penstock.server.http.route import LOG, Call, Route

READER: Final = LOG + "/readers/{reader}"


def _name(call: Call) -> str:
    return calls.reader_name(call.path["reader"])


async def position(call: Call) -> wire.Offset:
    return wire.Offset(offset=await call.port.position(await call.log(), _name(call)).get())


async def commit(call: Call) -> wire.Offset:
    body: wire.Commit = call.body
    offset = None if body.offset is None else offset_of(body.offset)
    return wire.Offset(offset=await call.do(await call.log(), Commit(_name(call), offset, body.holds)))


async def forget(call: Call) -> wire.Offset:
    await call.do(await call.log(), Forget(_name(call)))
    return wire.Offset(offset=None)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET", path=READER, summary="What a reader has committed; null if it has not", permission=("consume",), handler=position,
        answer=wire.Offset, answer_example=wire.Offset(offset=12),
    ),
    Route(
        method="PUT", path=READER, summary="Commit a reader's position, or have what is behind it kept", permission=("consume",),
        handler=commit, request=wire.Commit, answer=wire.Offset, example=wire.Commit(offset=12), answer_example=wire.Offset(offset=12),
    ),
    Route(
        method="DELETE", path=READER, summary="Forget what a reader has committed", permission=("consume",), handler=forget,
        answer=wire.Offset, answer_example=wire.Offset(offset=None),
    ),
)  # fmt: skip
