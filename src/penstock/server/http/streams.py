"""Streams: messages and statistics as server-sent events.

An event of a message has its offset as its id. Whoever comes back says the last one he has seen (`Last-Event-ID`, as browsers do by themselves) and gets what follows it. While there is nothing to say, a comment says that
the stream lives. When the server stops, streams end; and so they do when their client has gone, and when its token is not valid any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from penstock import wire
from penstock.broker.ticket import Stoppable
from penstock.clock import SECOND_US
from penstock.errors import InvalidArgument, PenstockError
from penstock.model.batch import Run
from penstock.model.commands import Handle
from penstock.model.queries import Locate, Names, OfLog, OfNamespace
from penstock.model.stats import BrokerStats
from penstock.server.http.bodies import encode_json
from penstock.server.http.front import Front, require_present
from penstock.server.http.logs import what_may_be_seen
from penstock.server.http.messages import offset_of, page, rows_of
from penstock.server.http.route import LOG, NAMESPACE, Call, Events, Query, Route

#: Statistics come no oftener, and no more seldom.
INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 3600.0

#: Streams of a namespace share statistics that are no older than that, or than their interval.
SHARED_S_MAX: Final = 1.0

#: Queues and topics that are described in one event, and before others have their turn: each is looked at under the
#: broker's lock.
LOGS_MAX: Final = 1000
LOGS_AT_ONCE: Final = 20

#: What all of them take together, at the most: each stream sends it again and again.
STATS_BYTES_MAX: Final = 256 << 10

#: So much of a tail is sent together: a message by itself is often small.
TOGETHER_BYTES: Final = 64 << 10

#: Clocks differ a little: whoever waits for a moment of one by another does not look without end.
PAUSE_US_MIN: Final = 1000

ALIVE: Final = b": alive\n\n"
#: So long a browser waits before it comes back.
RETRY: Final = b"retry: 1000\n\n"


class StatsEvent(wire.Reply):
    """What a namespace holds, and each of its queues and topics; `left_out` counts those that were too many."""

    stats: BrokerStats
    logs: list[msgspec.Raw]  # of QueueStats
    left_out: int


# --- tails ---


async def tail(call: Call) -> Events:
    log = await call.log()
    return Events(_messages(call, log, await _beginning(call, log)))


async def _beginning(call: Call, log: Handle) -> int:
    """Behind the last event that was seen; or where the query says; or at what comes next."""
    seen = call.header(b"last-event-id")
    if seen:
        if not seen.isascii() or not seen.isdigit() or len(seen) > 19:
            raise InvalidArgument(f"Last-Event-ID is {seen[:40]!r}; give the id of an event of this stream")
        return offset_of(int(seen) + 1)
    offset, start = call.query["offset"], call.query["start"]
    if offset is not None:
        if start is not None:
            raise InvalidArgument("both offset and start are given; give one of them")
        return offset_of(offset)
    if start not in {None, "earliest", "latest"}:
        raise InvalidArgument(f"start is {start[:40]!r}; give earliest or latest")
    return await call.ask(Locate(log, wire.Place(at="earliest" if start == "earliest" else "latest")))


async def _messages(call: Call, log: Handle, offset: int) -> AsyncGenerator[bytes, None]:
    bounds = call.front.bounds
    yield RETRY
    waited = False
    while not call.front.stopping:
        call.require_caller()
        runs, offset, missed, _ = await page(call, log, offset, bounds.page_messages)
        if missed:
            yield b'event: missed\ndata: {"missed":%d}\n\n' % missed
        for events in _events(runs):
            yield events
            await require_present(call.connection)
        if waited and not runs:
            yield ALIVE
        waited = not runs
        if waited:
            ticket = call.port.read(log, offset, 1, wait_us=_pause_us(call, bounds.heartbeat_s))
            await call.front.outcome(ticket, call.connection)


def _events(runs: list[Run]) -> Iterator[bytes]:
    """An event for each message, some together."""
    parts: list[bytes] = []
    size = 0
    for run in runs:
        for row in rows_of([run], packed=False):
            data = encode_json(row)
            parts.append(b"id: %d\ndata: %s\n\n" % (row.offset, data))
            size += len(data)
            if size >= TOGETHER_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _pause_us(call: Call, seconds: float) -> int:
    """How long a stream may be silent: not beyond the end of its caller's token."""
    pause_us = round(seconds * SECOND_US)
    if call.caller.until_us is not None:
        pause_us = min(pause_us, call.caller.until_us - call.port.clock.now_us())
    return max(pause_us, PAUSE_US_MIN)


# --- statistics ---


async def stats(call: Call) -> Events:
    interval_s = call.query["interval"]
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        raise InvalidArgument(
            f"interval is {interval_s:g}; give from {INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} seconds"
        )
    await call.ask(OfNamespace(call.namespace))  # refused now, if at all
    return Events(_statistics(call, interval_s))


async def _statistics(call: Call, interval_s: float) -> AsyncGenerator[bytes, None]:
    yield RETRY
    loop = asyncio.get_running_loop()
    while not call.front.stopping:
        call.require_caller()
        yield await _event(call, interval_s)
        await require_present(call.connection)
        end = loop.time() + interval_s
        while (left_s := end - loop.time()) > 0:
            pause_us = _pause_us(call, min(left_s, call.front.bounds.heartbeat_s))
            await call.front.outcome(_Pause(pause_us / SECOND_US), call.connection)
            if call.front.stopping:
                return
            call.require_caller()
            if loop.time() < end:
                yield ALIVE


async def _event(call: Call, interval_s: float) -> bytes:
    """Return an event for a stream: the last one of its namespace, unless that is too old for it."""
    now_s, made = asyncio.get_running_loop().time(), call.front.statistics
    found = made.get(call.namespace)
    if found is None or found.is_older(min(interval_s, SHARED_S_MAX), now_s):
        for name in [name for name, one in made.items() if one.is_older(SHARED_S_MAX, now_s)]:
            del made[name]
        found = made[call.namespace] = _Statistics(call.front, call.namespace, now_s)
    return await found.event(whole=call.caller.is_admin_of_all)


class _Statistics:
    """Statistics of a namespace, made once for all streams that want them at about the same time."""

    def __init__(self, front: Front, namespace: str, began_s: float) -> None:
        self._began_s = began_s
        self._making = asyncio.ensure_future(_described(front, namespace))
        self._events: dict[bool, bytes] = {}

    def is_older(self, seconds: float, now_s: float) -> bool:
        return self._making.done() and now_s - self._began_s >= seconds

    async def event(self, *, whole: bool) -> bytes:
        """Return the event, with what is known of the journal if it is the `whole`."""
        found = await asyncio.shield(self._making)  # the stream that wanted it first may end
        if whole not in self._events:
            told = StatsEvent(what_may_be_seen(found.stats, whole=whole), found.logs, found.left_out)
            self._events[whole] = b"event: stats\ndata: %s\n\n" % encode_json(told)
        return self._events[whole]


async def _described(front: Front, namespace: str) -> StatsEvent:
    async with front.describing:
        names = await front.port.describe(Names(namespace, "queue")).get()
        names += await front.port.describe(Names(namespace, "topic")).get()
        logs: list[msgspec.Raw] = []
        size = 0
        for at, name in enumerate(names[:LOGS_MAX]):
            if at % LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)  # others are to run meanwhile
            try:
                log = await front.log(namespace, name)
                told = encode_json(await front.port.describe(OfLog(log)).get())
            except PenstockError:  # deleted just now
                continue
            size += len(told)
            if size > STATS_BYTES_MAX:
                left_out = len(names) - at
                break
            logs.append(msgspec.Raw(told))
        else:
            left_out = max(0, len(names) - LOGS_MAX)
        return StatsEvent(await front.port.describe(OfNamespace(namespace)).get(), logs, left_out)


class _Pause(Stoppable):
    """A ticket of time that passes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = asyncio.Event()

    def stop(self) -> None:
        self._over.set()

    def wait(self) -> None:
        raise NotImplementedError

    async def get(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), self._seconds)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET", path=LOG + "/tail", summary="Messages as they come, as server-sent events", permission=("consume",), handler=tail,
        query=(
            Query("offset", int, "the first offset that is wanted"),
            Query("start", str, "earliest, or latest (if nothing is given): what is published from now on"),
        ),
        answer=str, media=(wire.EVENTS,), answer_example='id: 11\ndata: {"id":412390178816270336,"offset":11,…}\n\n',
        note="The id of an event is the message's offset; `Last-Event-ID` resumes behind it. An event `missed` says how many messages were "
        "dropped before they were read, an event `problem` what ended the stream.",
    ),
    Route(
        method="GET", path=NAMESPACE + "/stats/stream", summary="What a namespace and each of its queues and topics hold, again and again",
        permission=("consume",), handler=stats, query=(Query("interval", float, "seconds from one event to the next", 1.0),), answer=str,
        media=(wire.EVENTS,), answer_example='event: stats\ndata: {"stats":{"queues":2,…},"logs":[…],"left_out":0}\n\n',
    ),
)  # fmt: skip
