"""Tables for Spark: the addresses that its source and sink use when they are given a `url` (see `server.desk` for what is done there).

Planning, reading and staging block and compute, so they run in threads of their own, a few at a time: the loop only passes on what they have made. A slow client holds a place among a bounded number, and no thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock import wire
from penstock.broker import calls
from penstock.errors import BatchTooLarge, InvalidArgument, QuotaExceeded
from penstock.limits import BODY_VALUES_MIXED_MAX, QUOTA_ROOM_RETRY_S
from penstock.model.commands import Commit, Place
from penstock.model.queries import Find, Locate
from penstock.server.http.front import ClientGone, Front, require_present
from penstock.server.http.logs import require_room_for_queues
from penstock.server.http.messages import require_depth, within_quota
from penstock.server.http.problem import Refusal
from penstock.server.http.route import NAMESPACE, Call, Route, Stream
from penstock.server.threads import Threads

if TYPE_CHECKING:
    from penstock.server.desk import Desk

#: Threads that plan, read and stage. Each computes, and takes its turns from the loop: more of them would not be faster.
WORKERS: Final = 2

#: Batches that are waited for at once, each by a thread that mostly sleeps; and how long one request waits.
COMMITS_MAX: Final = 8
COMMIT_WAIT_S_MAX: Final = 5.0

#: Tables that are on their way at once, in either direction. Each holds some 16 MiB.
TRANSFERS_MAX: Final = 32

_Found = TypeVar("_Found")


class Tables:
    """What the requests for Spark share: the desk, its threads, and the places."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._desk: Desk | None = None
        self._making = asyncio.Lock()  # there is one desk
        self._workers = Threads(WORKERS, "tables")
        self._waiters = Threads(COMMITS_MAX, "batches")
        self._transfers = 0
        self._coming: Counter[str] = Counter()  # bytes that are on their way, by namespace

    async def work(self, what: Callable[..., _Found], *arguments: Any, waiting: bool = False) -> _Found:
        """What a function gives that blocks."""
        pool = self._waiters if waiting else self._workers
        return await pool.run(what, *arguments)

    async def desk(self) -> Desk:
        async with self._making:
            if self._desk is None:
                self._desk = await self.work(self._made)
            return self._desk

    def _made(self) -> Desk:
        """Only now is that imported which not every server needs, or has."""
        directory = self._front.directory
        if directory is None or self._front.intake is None:
            raise InvalidArgument(
                "this server keeps everything in memory, and Spark reads what is on a disk: start it with a directory"
            )
        from penstock.server.desk import Desk

        return Desk(directory, self._front.intake)

    def enter(self) -> None:
        """Take a place for a table on its way; `leave` gives it back."""
        if self._transfers >= TRANSFERS_MAX:
            raise Refusal(
                503, "too_many_transfers", f"{TRANSFERS_MAX} tables are on their way already: try again later",
                retry_after_s=self._front.bounds.retry_after_s, close=True,
            )  # fmt: skip
        self._transfers += 1

    def leave(self) -> None:
        self._transfers -= 1

    @asynccontextmanager
    async def room(self, desk: Desk, namespace: str, octets: int) -> AsyncIterator[None]:
        """Have room for rows beside what a namespace has staged, or refuse them. Those that come at the same time count, though they may fail yet."""
        most = self._front.bounds.staged_bytes_max
        self._coming[namespace] += octets
        try:
            there = await self.work(desk.staged_bytes, namespace)
            others = there + self._coming[namespace] - octets
            if others and others + octets > most:  # the rows of one task always fit, or they never would
                raise QuotaExceeded(
                    f"the namespace {namespace!r} has {there} bytes of rows staged that are not published, and no more than {most} "
                    "may be: publish or abort them first; what is given up is removed after a day",
                    retry_after_s=QUOTA_ROOM_RETRY_S,
                )
            yield
        finally:
            self._coming[namespace] -= octets
            if not self._coming[namespace]:
                del self._coming[namespace]


def tables_of(call: Call) -> Tables:
    front = call.front
    if front.tables is None:
        front.tables = Tables(front)
    found: Tables = front.tables
    return found


# --- the source ---


async def log_names(call: Call) -> wire.Names:
    tables = tables_of(call)
    return await tables.work((await tables.desk()).names, call.namespace)


async def check(call: Call) -> wire.Checked:
    tables = tables_of(call)
    return await tables.work((await tables.desk()).check, call.namespace, call.body)


async def plan(call: Call) -> wire.SparkPlanned:
    tables = tables_of(call)
    return await tables.work((await tables.desk()).plan, call.namespace, call.body)


async def offsets(call: Call) -> wire.SparkFound:
    tables = tables_of(call)
    return await tables.work((await tables.desk()).offsets, call.namespace, call.body)


async def read(call: Call) -> Stream:
    tables = tables_of(call)
    desk = await tables.desk()
    tables.enter()
    try:
        parts = await tables.work(desk.read, call.namespace, call.body)
    except BaseException:
        tables.leave()
        raise
    return Stream(_parts(tables, call, parts), wire.ARROW, tables.leave)


async def _parts(tables: Tables, call: Call, parts: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    while (part := await tables.work(next, parts, None)) is not None:
        await require_present(call.connection)
        call.require_caller()
        if part:
            yield part


async def progress(call: Call) -> wire.Checked:
    """A log that is gone, or is another one of its name, is passed over."""
    body: wire.SparkProgress = call.body
    reader = calls.reader_name(body.reader)
    for name, (number, offset) in body.logs.items():
        log = await call.ask(Find(call.namespace, name))
        if log is not None and log.number == number:
            end = await call.ask(Locate(log, Place(at="latest")))
            await call.do(log, Commit(reader, min(max(offset, 0), end), True))
    return wire.Checked()


# --- the sink ---


async def spool(call: Call) -> wire.Checked:
    await tables_of(call).desk()
    return wire.Checked()


async def stage(call: Call) -> wire.Staged:
    tables = tables_of(call)
    desk = await tables.desk()
    tables.enter()
    try:
        async with tables.room(desk, call.namespace, _claimed(call)):
            return await tables.work(desk.stage, call.namespace, call.path["name"], await _body(call))
    finally:
        tables.leave()


def _claimed(call: Call) -> int:
    """How many bytes will come, at the most. What their length claims is refused if it is too much."""
    most = call.front.bounds.body_bytes_max
    length = call.header(b"content-length") or ""
    if not length.isdigit():
        return most
    if int(length[:20]) > most:
        raise _too_large(most)
    return int(length)


async def _body(call: Call) -> bytes:
    """What was sent. It is no struct, and is counted as those are."""
    most = call.front.bounds.body_bytes_max
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await call.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(most: int) -> Refusal:
    return Refusal(
        413, BatchTooLarge.code, f"the rows are over the bound of {most} bytes: send them in several parts", close=True
    )  # fmt: skip


async def hand_in(call: Call) -> wire.Taken:
    tables = tables_of(call)
    desk = await tables.desk()
    body: wire.SpoolBatch = call.body
    manifest, first = await tables.work(desk.manifest, call.namespace, body)
    if manifest is None:
        return wire.Taken(taken=True)
    wait_s = 0.0 if call.front.stopping else min(max(body.wait, 0.0), COMMIT_WAIT_S_MAX)
    if not first:
        return await tables.work(desk.commit, manifest, body.files, wait_s, waiting=True)
    # A batch that comes for the first time counts, and the queues that it makes.
    shares = manifest.shares().values()
    await require_room_for_queues(call, [one.topic for one in shares])
    await require_depth(call, call.namespace, manifest.rows)
    with within_quota(call, call.namespace, manifest.rows, sum(one.bytes for one in shares)):
        return await tables.work(desk.commit, manifest, body.files, wait_s, waiting=True)


async def abort(call: Call) -> wire.Checked:
    tables = tables_of(call)
    return await tables.work((await tables.desk()).abort, call.namespace, call.body)


async def forget(call: Call) -> wire.Checked:
    tables = tables_of(call)
    return await tables.work((await tables.desk()).forget, call.namespace, call.body.producer)


_OPTIONS: Final = {"columns": "topic,offset,payload"}
_PLACE: Final = wire.StreamPlace(
    1, "the server's directory", "messages", None, {"default/orders": (1, 1, 12)}
)
_PORTION: Final = wire.Portion(1, 1, {1: (0, 12)})
_BATCH: Final = wire.SpoolBatch(
    producer="query:default/4b1f", batch=7, files=["0123456789abcdef" * 2 + ".staged"]
)
_LACKING: Final = {501: "this server has no pyarrow"}
_SPARK: Final = NAMESPACE + "/spark"
_SPOOL: Final = NAMESPACE + "/spool"

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET", path=_SPARK + "/logs", summary="The queues and topics of which there are tables, dead letters among them",
        permission=("consume",), handler=log_names, answer=wire.Names, answer_example=wire.Names(names=["orders", "orders.dlq"]), others=_LACKING,
    ),
    Route(
        method="POST", path=_SPARK + "/check", summary="Whether the options of a table are right", permission=("consume",), handler=check,
        request=wire.SparkCheck, answer=wire.Checked, example=wire.SparkCheck(options=_OPTIONS, topics=["orders"]),
        answer_example=wire.Checked(), others=_LACKING,
    ),
    Route(
        method="POST", path=_SPARK + "/plan", summary="What is to be read of a table, in portions for tasks", permission=("consume",),
        handler=plan, request=wire.SparkPlan, values_max=BODY_VALUES_MIXED_MAX, answer=wire.SparkPlanned, example=wire.SparkPlan(options=_OPTIONS, topics=["orders"]),
        answer_example=wire.SparkPlanned(portions=[_PORTION]), others=_LACKING,
    ),
    Route(
        method="POST", path=_SPARK + "/offsets", summary="Where a stream of a table begins, and where its next batch ends",
        permission=("consume",), handler=offsets, request=wire.SparkOffsets, values_max=BODY_VALUES_MIXED_MAX, answer=wire.SparkFound,
        example=wire.SparkOffsets(options=_OPTIONS, topics=["orders"], what="initial"),
        answer_example=wire.SparkFound(offset=_PLACE.offset(), end=_PLACE.offset(), noted=wire.Noted()), others=_LACKING,
    ),
    Route(
        method="POST", path=_SPARK + "/read", summary="The rows of a portion, as an Arrow stream", permission=("consume",), handler=read,
        request=wire.SparkRead, values_max=BODY_VALUES_MIXED_MAX, answer=str, media=(wire.ARROW,), example=wire.SparkRead(options=_OPTIONS, portion=_PORTION),
        answer_example="an Arrow stream", others=_LACKING, note="The stream ends with an empty batch whose metadata say how it ended; one without it was cut.",
    ),
    Route(
        method="POST", path=_SPARK + "/progress", summary="How far a stream is, under the name of a reader", permission=("consume",),
        handler=progress, request=wire.SparkProgress, values_max=BODY_VALUES_MIXED_MAX, answer=wire.Checked,
        example=wire.SparkProgress(reader="spark.billing", logs={"orders": (1, 12)}), answer_example=wire.Checked(),
    ),
    Route(
        method="GET", path=_SPOOL, summary="Whether rows can be written here", permission=("publish",), handler=spool, answer=wire.Checked,
        answer_example=wire.Checked(), others=_LACKING,
    ),
    Route(
        method="PUT", path=_SPOOL + "/staged/{name}", summary="Send a part of the rows of a task, in the journal's layout; nothing is published yet",
        permission=("publish",), handler=stage,
        answer=wire.Staged, answer_example=wire.Staged(name=_BATCH.files[0], shares=[wire.StagedShare(topic="orders", rows=2, bytes=10)]),
        others={**_LACKING, 413: "too many rows for one request"}, note="The body is a list of `SentRows` in msgpack, one for each topic. Their name is 32 random hexadecimal digits. Sent again, they are there once.",
    ),
    Route(
        method="POST", path=_SPOOL + "/batches", summary="Publish what was staged, once, however often this is said", permission=("publish",),
        handler=hand_in, request=wire.SpoolBatch, answer=wire.Taken, example=_BATCH, answer_example=wire.Taken(taken=True), others=_LACKING,
    ),
    Route(
        method="POST", path=_SPOOL + "/abort", summary="Remove what was staged for a batch, unless it was handed in", permission=("publish",),
        handler=abort, request=wire.SpoolBatch, answer=wire.Checked, example=_BATCH, answer_example=wire.Checked(), others=_LACKING,
    ),
    Route(
        method="POST", path=_SPOOL + "/forget", summary="Forget a write of one batch, of which the answer has come", permission=("publish",),
        handler=forget, request=wire.SpoolForget, answer=wire.Checked, example=wire.SpoolForget(producer="write:default/0123456789abcdef"),
        answer_example=wire.Checked(), others=_LACKING,
    ),
)  # fmt: skip
