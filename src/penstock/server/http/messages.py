"""Messages: published, read, looked at, taken back, recurring, followed."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final, NamedTuple

from penstock import wire
from penstock.broker import calls
from penstock.broker.compose import publish_of
from penstock.broker.contents import at, octets_of, rows_within
from penstock.broker.port import UPCOMING
from penstock.clock import to_datetime
from penstock.engine.pattern import compile_pattern
from penstock.errors import InvalidArgument, PenstockError
from penstock.limits import BODY_VALUES_MAX, OFFSET_MAX
from penstock.message import Message
from penstock.model.batch import Batch, Run
from penstock.model.commands import Cancel, Handle, Publish, Unit, Unschedule
from penstock.model.queries import Locate, Names, OfNamespace, Timeline
from penstock.server.http import arrow
from penstock.server.http.logs import require_room_for_queues
from penstock.server.http.problem import Refusal
from penstock.server.http.route import LOG, NAMESPACE, THREAD_BYTES, WAIT, Call, Plain, Query, Route

ARROW: Final = wire.ARROW.encode()

#: A page is read in steps, so that its bytes are counted before there are too many of them: so many messages at first, then four times as many.
STEP_FIRST: Final = 16
STEP_MAX: Final = 4096

#: What one look shows at the most: it is looked up while everybody else waits.
PEEK_MAX: Final = 10_000

#: Ids are positive signed 64-bit integers.
ID_MAX: Final = 2**63 - 1


# --- publishing ---


def message_of(given: bytes | wire.Item) -> bytes | Message:
    """A message as the broker takes it."""
    if isinstance(given, bytes):
        return given
    return Message(
        given.payload,
        headers=given.headers,
        key=given.key,
        priority=given.priority,
        deliver_at=given.deliver_at,
        expires_at=given.expires_at,
        dedup_id=given.dedup_id,
        delay=given.delay,
        ttl=given.ttl,
    )


def size_of(messages: Iterable[bytes | Message]) -> int:
    """What counts for a quota of bytes: payloads, and what is said about them."""
    return sum(len(one) if isinstance(one, bytes) else _size_of(one) for one in messages)


def size_of_publish(command: Publish) -> int:
    """The same of a command."""
    octets, columns = sum(map(len, command.payloads)), command.columns
    if columns is None:
        return octets
    for column in (columns.key, columns.dedup_id):
        octets += sum(len(text.encode()) for text in column or () if text is not None)
    for headers in filter(None, columns.headers or ()):
        octets += sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    return octets


def _size_of(message: Message) -> int:
    texts = [message.key or "", message.dedup_id or "", *message.headers, *message.headers.values()]
    return len(message.payload) + sum(len(text.encode()) for text in texts)


def publish_within(call: Call, messages: list[bytes | wire.Item]) -> Publish:
    """Return the command that publishes messages, within the depth that the namespace may have."""
    limit = call.front.quotas.limit(call.namespace)
    command = publish_of([message_of(one) for one in messages])
    command.depth_max = None if limit is None else limit.depth
    return command


@contextmanager
def within_quota(call: Call, namespace: str, count: int, octets: int) -> Iterator[None]:
    """Take what is published inside from a namespace's quota, or refuse it; what is then refused for another reason is given back."""
    taken = call.front.quotas.take(namespace, count, octets) if count else None
    try:
        yield
    except PenstockError as error:
        if taken is not None and not getattr(error, "indeterminate", False):
            taken.give_back()
        raise


async def require_depth(call: Call, namespace: str, adding: int) -> None:
    """Raise `QuotaExceeded` if a namespace may not hold so many messages more: of what others publish for it."""
    limit = call.front.quotas.limit(namespace)
    if limit is not None and limit.depth is not None:
        depth = (await call.ask(OfNamespace(namespace))).depth
        call.front.quotas.require_room(namespace, depth=depth, adding=adding)


async def publish(call: Call) -> wire.Ids:
    command = publish_within(call, call.body.messages)
    name = call.path["name"]
    log, number = await call.front.found(call.namespace, name), call.query["log"]
    if log is None and number is None and command.payloads:
        await require_room_for_queues(call, (name,))
    elif log is None or number not in (None, log.number):
        log = await call.log()  # which says what is missing
    with within_quota(call, call.namespace, len(command.payloads), size_of_publish(command)):
        # A queue that is not there is made with its first messages, or not at all.
        (ids,) = await call.port.commit(Unit(call.namespace, ((log or name, command),))).get()
    return ids_reply(ids, call.packed)


def ids_reply(ids: Any, packed: bool) -> wire.Ids:
    listed = ids if type(ids) is list else list(ids)
    return wire.Ids(ids=listed, ids_str=None if packed else list(map(str, listed)))


async def route(call: Call) -> wire.Routed:
    body: wire.Route = call.body
    command = publish_within(call, [body.message])
    copies = await _matching(call, body.pattern) if call.front.quotas.limit(call.namespace) is not None else 1
    with within_quota(call, call.namespace, copies, copies * size_of_publish(command)):
        unit = Unit(call.namespace, ((calls.pattern(body.pattern), command),))
        (ids,) = await call.port.commit(unit).get()
    return wire.Routed(ids={name: given[0] for name, given in ids.items()})


async def _matching(call: Call, pattern: str) -> int:
    wanted = compile_pattern(pattern)
    names = [*await call.ask(Names(call.namespace, "queue")), *await call.ask(Names(call.namespace, "topic"))]
    return max(1, sum(map(wanted.matches, names)))


async def cancel(call: Call) -> wire.Was:
    return wire.Was(was=await call.do(await call.log(), Cancel(id_of(call.path["id"]))))


def id_of(given: str) -> int:
    if not given.isascii() or not given.isdigit() or len(given) > 19 or int(given) > ID_MAX:
        raise InvalidArgument(f"the id is {given[:40]!r}; give the number that a publish returned")
    return int(given)


async def schedule(call: Call) -> wire.Was:
    body: wire.Schedule = call.body
    log, message = await call.log(), message_of(body.message)
    command = calls.schedule(call.path["schedule"], body.cron, message, body.timezone, body.missed)
    await require_depth(call, call.namespace, 1)
    # That it is set is a message's worth of writing. Each time that it is due it counts again: see `Quotas.admits`.
    with within_quota(call, call.namespace, 1, size_of([message])):
        return wire.Was(was=await call.do(log, command))


async def unschedule(call: Call) -> wire.Was:
    name = calls.schedule_name(call.path["schedule"])
    return wire.Was(was=await call.do(await call.log(), Unschedule(name)))


# --- reading ---


def rows_of(runs: Iterable[Run], *, packed: bool) -> list[wire.MessageRow]:
    """Return stored messages as they travel."""
    return [_row(batch, row, packed=packed) for batch, start, stop in runs for row in range(start, stop)]


def _row(batch: Batch, row: int, *, packed: bool) -> wire.MessageRow:
    due, end = at(batch.deliver_at, row), at(batch.expires_at, row)
    return wire.MessageRow(
        id=batch.ids[row],
        offset=batch.first + row,
        timestamp=to_datetime(at(batch.timestamp_us, row)),
        payload=batch.payloads[row],
        id_str=None if packed else str(batch.ids[row]),
        headers=at(batch.headers, row) or {},
        key=at(batch.key, row),
        priority=at(batch.priority, row),
        deliver_at=None if due is None else to_datetime(due),
        expires_at=None if end is None else to_datetime(end),
        dedup_id=at(batch.dedup_id, row),
        properties=at(batch.properties, row),
    )


def offset_of(given: int | None) -> int:
    if given is None or not 0 <= given <= OFFSET_MAX:
        raise InvalidArgument(f"offset is {given}; give a number from 0 on")
    return given


class Stretch(NamedTuple):
    """What was read of a log: where to go on, how many messages were dropped before, and about what the rest takes."""

    runs: list[Run]
    next: int
    missed: int
    octets: int


async def page(call: Call, log: Handle, offset: int, count: int) -> Stretch:
    """What is stored from an offset on, up to so many messages, and to the bytes that an answer may have. One message always fits."""
    runs: list[Run] = []
    at, missed, octets, step = offset, 0, 0, STEP_FIRST
    most = call.front.bounds.answer_bytes_max
    while True:
        wanted = min(count, step)
        found = await call.port.read(log, at, wanted).get()
        rows = sum(stop - start for _, start, stop in found.runs)
        more = octets_of(found.runs)
        is_full = octets + more > most
        if is_full:
            rows = max(rows_within(found.runs, most - octets), 0 if runs else 1)
            if not rows:
                return Stretch(runs, at, missed, octets)
            # Where the last of them ends, and what was dropped up to there, the broker knows.
            found = await call.port.read(log, at, rows).get()
            more = octets_of(found.runs)
        runs += found.runs
        at, missed, octets = found.next, missed + found.missed, octets + more
        count -= rows
        if is_full or rows < wanted or count <= 0:
            return Stretch(runs, at, missed, octets)
        if step == STEP_MAX:
            await asyncio.sleep(0)  # others are to run meanwhile
        step = min(step * 4, STEP_MAX)


async def patient_page(call: Call, log: Handle) -> Stretch:
    """A page as the query asks for it, waiting for its first message if there is none."""
    offset, count = offset_of(call.query["offset"]), calls.count(call.query["count"])
    wait_us = call.wait_us(call.query["wait"])
    found = await page(call, log, offset, count)
    if found.runs or not wait_us:
        return found
    clock = call.port.clock
    end_us = clock.monotonic_us() + wait_us
    with call.front.place(call.caller):
        while not found.runs and not call.front.stopping:
            left_us = end_us - clock.monotonic_us()
            if left_us <= 0:
                break
            await call.front.outcome(call.port.read(log, found.next, 1, wait_us=left_us), call.connection)
            found = await page(call, log, offset, count)
    if found.runs:
        call.require_caller()
    return found


async def read(call: Call) -> Any:
    if ARROW in call.accept:
        return await _read_arrow(call)
    found = await patient_page(call, await call.log())

    def made() -> wire.PageReply:
        rows = rows_of(found.runs, packed=call.packed)
        return wire.PageReply(messages=rows, next=found.next, missed=found.missed)

    call.require_room(found.octets)
    return await call.built(found.octets, made)


async def _read_arrow(call: Call) -> Plain:
    if not arrow.is_there():
        raise Refusal(
            406, "not_acceptable", 'Arrow streams need pyarrow on the server: pip install "penstock[spark]"; or accept application/json'
        )  # fmt: skip
    found = await patient_page(call, await call.log())
    headers = (("penstock-next", str(found.next)), ("penstock-missed", str(found.missed)))
    if found.octets < THREAD_BYTES:
        body = arrow.stream_of(found.runs)
    else:
        body = await asyncio.to_thread(arrow.stream_of, found.runs)
    return Plain(body, wire.ARROW, headers=headers)


async def watch(call: Call) -> wire.Was:
    log, offset = await call.log(), offset_of(call.query["offset"])
    wait_us = call.wait_us(call.query["wait"])
    if wait_us and (await _latest(call, log)) <= offset:
        with call.front.place(call.caller):
            ticket = call.port.read(log, offset, 1, wait_us=wait_us)
            await call.front.outcome(ticket, call.connection, name=call.wait_name())
    return wire.Was(was=await _latest(call, log) > offset)


async def _latest(call: Call, log: Handle) -> int:
    return await call.ask(Locate(log, wire.Place(at="latest")))


async def peek(call: Call) -> Any:
    wanted = min(calls.count(call.query["count"]), PEEK_MAX)
    runs = (await call.port.read(await call.log(), UPCOMING, wanted).get()).runs
    octets = list(accumulate(octets_of([run]) for run in runs))  # of one message each
    del runs[max(1, bisect_right(octets, call.front.bounds.answer_bytes_max)) :]
    size = octets[len(runs) - 1] if runs else 0
    call.require_room(size)
    return await call.built(size, lambda: wire.Messages(messages=rows_of(runs, packed=call.packed)))


async def trace(call: Call) -> wire.Timeline:
    return wire.Timeline(steps=await call.ask(Timeline(call.namespace, id_of(call.path["id"]))))


# --- places ---


def checked_place(given: wire.Place) -> wire.Place:
    """Check that one place is named."""
    if given.at is None:
        return calls.place(given.offset, given.timestamp, given.message_id)
    if (given.offset, given.timestamp, given.message_id) != (None, None, None):
        raise InvalidArgument("give one of at, offset, timestamp and message_id")
    return given


async def locate(call: Call) -> wire.Offset:
    offset = await call.ask(Locate(await call.log(), checked_place(call.body)))
    return wire.Offset(offset=offset)


_ID: Final = 412_390_178_816_270_336
_WHEN: Final = datetime.fromtimestamp(1_800_000_000, UTC)
_ITEM: Final = wire.Item(
    payload=b"order-123", key="customer-7", priority=1, headers={"type": "order"}, dedup_id="o-123"
)
_ROW: Final = wire.MessageRow(
    id=_ID, id_str=str(_ID), offset=11, timestamp=_WHEN, payload=b"order-123", key="customer-7", priority=1, headers={"type": "order"}
)  # fmt: skip

OFFSET: Final = Query("offset", int, "the first offset that is wanted", 0)
COUNT: Final = Query("count", int, "how many messages at the most", 100)

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST", path=LOG + "/messages", summary="Publish messages, all or none; a queue is made on first use", permission=("publish",), handler=publish,
        request=wire.Publish, values_max=BODY_VALUES_MAX, answer=wire.Ids, example=wire.Publish(messages=[b"hello", _ITEM]),
        answer_example=wire.Ids(ids=[_ID, _ID + 1], ids_str=[str(_ID), str(_ID + 1)]),
        note="In the place of a message, its payload alone may stand. A repeated `dedup_id` gives the id of the first. A queue that does not exist is made.",
    ),
    Route(
        method="GET", path=LOG + "/messages", summary="What is stored from an offset on", permission=("consume",), handler=read,
        query=(OFFSET, COUNT, WAIT), answer=wire.PageReply, answer_example=wire.PageReply(messages=[_ROW], next=12, missed=0),
        media=(wire.ARROW,), others={406: "Arrow was asked for, and this server has no pyarrow"},
        note="With `Accept: application/vnd.apache.arrow.stream` the messages come as an Arrow stream, and `next` and `missed` in the headers "
        "Penstock-Next and Penstock-Missed.",
    ),
    Route(
        method="DELETE", path=LOG + "/messages/{id}", summary="Take back a message that is not due yet", permission=("publish",),
        handler=cancel, answer=wire.Was, answer_example=wire.Was(was=True),
    ),
    Route(
        method="GET", path=LOG + "/watch", summary="Wait until there is a message of an offset", permission=("consume",), handler=watch,
        query=(OFFSET, WAIT), answer=wire.Was, answer_example=wire.Was(was=True),
    ),
    Route(
        method="GET", path=LOG + "/peek", summary="What would be handed out next, without taking it", permission=("consume",),
        handler=peek, query=(Query("count", int, f"how many messages; {PEEK_MAX} at the most", 1),), answer=wire.Messages,
        answer_example=wire.Messages(messages=[_ROW]),
    ),
    Route(
        method="POST", path=LOG + "/locate", summary="The offset of a place: the earliest, the latest, a time, a message's id",
        permission=("consume",), handler=locate, request=wire.Place, answer=wire.Offset, example=wire.Place(at="earliest"),
        answer_example=wire.Offset(offset=4),
    ),
    Route(
        method="PUT", path=LOG + "/schedules/{schedule}", summary="Have a message recur, in place of the one of that name",
        permission=("publish",), handler=schedule, request=wire.Schedule, answer=wire.Was,
        example=wire.Schedule(cron="0 3 * * *", timezone="Europe/Berlin", message=b"tidy up"), answer_example=wire.Was(was=False),
        others={501: "this server has no cronsim"},
    ),
    Route(
        method="DELETE", path=LOG + "/schedules/{schedule}", summary="A message recurs no more", permission=("publish",),
        handler=unschedule, answer=wire.Was, answer_example=wire.Was(was=True),
    ),
    Route(
        method="POST", path=NAMESPACE + "/route", summary="Publish to every queue and topic whose name matches, all or none",
        permission=("publish",), handler=route, request=wire.Route, answer=wire.Routed,
        example=wire.Route(pattern="orders.*", message=b"hello"), answer_example=wire.Routed(ids={"orders.eu": _ID, "orders.us": _ID + 1}),
    ),
    Route(
        method="GET", path=NAMESPACE + "/messages/{id}/trace", summary="What became of a message, as far as it is remembered",
        permission=("consume",), handler=trace, answer=wire.Timeline, answer_example=wire.Timeline(steps=[]),
    ),
)  # fmt: skip
