"""The port over a server: every call of `broker.port.Port` as a request.

Nothing is decided here. A call checks what only its caller can get wrong, so that it is refused as an embedded broker would refuse it and nothing is sent, and begins a coroutine that asks the server (see `asking`). What is more than a request and its answer is elsewhere: gathering
publishes (`gathering`), consumers and what is in hand (`consuming`), messages ahead (`ahead`).

Which calls may be sent again though no answer came (`safe`): all that only look, or say how something should be in the end (declare, alter, seek, commit, extend). Receiving too: what was leased to nobody comes again when its lease ends. And settling: if the first try was done, the second is refused with `LeaseLost`,
whose text says that; the message may be settled or not, as after any lost lease. Not those that would do something twice: publishing without dedup ids, routing, transactions, redriving, purging, cancelling, and a consumer's coming.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from penstock import argument, wire
from penstock.broker.port import (
    BrokerStats,
    Granted,
    Handle,
    How,
    Kind,
    MessageId,
    Operation,
    Page,
    QueueStats,
    Receipts,
    Redriven,
    What,
)
from penstock.broker.scheduling import Recurring
from penstock.broker.ticket import Answer, Ticket
from penstock.broker.trace import Step
from penstock.broker.transaction import OPERATIONS_MAX
from penstock.client import rows
from penstock.client.asking import Ask, Server, closed
from penstock.client.consuming import EARLY_S, PARTING_S, POLL_S, Consuming, standing_in
from penstock.client.gathering import Gathering
from penstock.client.rows import RemoteHandle, seconds
from penstock.client.running import Call, Halt, Receiving, Runner
from penstock.clock import SECOND_US, Clock
from penstock.engine.filter import Filter, compile_filter
from penstock.engine.pattern import compile_pattern
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    InvalidArgument,
    PenstockError,
    QueueNotFound,
    TopicNotFound,
    WrongKind,
)
from penstock.journal.journal import Stats
from penstock.limits import DELIVERIES_MAX, OFFSET_MAX
from penstock.message import Message
from penstock.names import check_name
from penstock.policy import Policy, checked

T = TypeVar("T")

#: Ids have 63 bits.
ID_MAX: Final = (1 << 63) - 1

#: How long connecting tries at the least, with wait=0 too: a single try may fail by chance.
GREETING_S: Final = 1.0

#: Of everything there is one that was deleted, too: what is refused so.
GONE: Final = (QueueNotFound, TopicNotFound)


class RemotePort:
    """A broker on a server."""

    #: The silence after which a consumer is thought dead whose program names none. Tests have others.
    silence_s: float = wire.SILENCE_S

    def __init__(self, server: Server, runner: Runner, clock: Clock) -> None:
        self.clock = clock
        self._server = server
        self._runner = runner
        self._consuming = Consuming(server, clock, self.silence_s)
        self._handles: WeakValueDictionary[tuple[str, int], RemoteHandle] = WeakValueDictionary()
        self._closed = False
        self._closing = threading.Lock()

    # --- asking ---

    async def greet(self, wait_s: float) -> None:
        """Check that a server of ours answers and takes the token; wait for one that is starting."""
        patience_s = max(wait_s, GREETING_S)
        await self._server.ask(Ask("GET", "/v1/namespaces"), wire.Names, patience_s=patience_s)

    def _call(self, work: Coroutine[Any, Any, T], *, settling: bool = False) -> Ticket[T]:
        try:
            self._runner.require_own_process()
        except BaseException:
            work.close()
            raise
        if self._consuming.parting or (self._consuming.closing and not settling):
            work.close()
            raise closed()
        return Call(self._runner, work)

    def _ask(self, ask: Ask, kind: type[T], *, settling: bool = False) -> Ticket[T]:
        return self._call(self._answer(ask, kind), settling=settling)

    async def _answer(self, ask: Ask, kind: type[T]) -> T:
        found = await self._server.ask(ask, kind)
        if found is None:
            raise PenstockError(f"{self._server.url} answered nothing where something was asked")
        return found

    async def _done(self, ask: Ask, *, gone_is_done: bool = False) -> None:
        """Ask for something that has no answer."""
        try:
            await self._server.reply(ask)
        except GONE as error:
            if not (gone_is_done and getattr(error, "unanswered", False)):
                raise

    def _handle(self, info: wire.LogInfo) -> RemoteHandle:
        """All that this client has of a log is one handle."""
        policy = rows.policy_of(info.policy)
        found = self._handles.get((info.namespace, info.number))
        if found is None:
            found = RemoteHandle(info.namespace, info.name, info.kind, info.number, policy)
            self._handles[info.namespace, info.number] = found
        found.policy = policy
        return found

    # --- logs ---

    def declare(
        self, namespace: str, name: str, policy: dict[str, Any], *, create: bool | None, kind: Kind = "queue"
    ) -> Ticket[Handle]:
        name = check_name(name, kind=f"{kind} name", reserved_ok=create is False)
        given = checked(policy)
        Policy.of(**given)
        target = f"/v1/namespaces/{namespace}/{kind}s/{name}"
        ask = Ask("GET", target)
        if create is not False or given:
            ask = Ask("PUT", target, wire.Declare(policy=given, create=create), safe=create is not True)
        return self._call(self._declared(ask))

    async def _declared(self, ask: Ask) -> Handle:
        return self._handle(await self._answer(ask, wire.LogInfo))

    def find(self, namespace: str, name: str) -> Ticket[Handle | None]:
        return self._call(self._found(namespace, check_name(name, reserved_ok=True)))

    async def _found(self, namespace: str, name: str) -> Handle | None:
        for kind in ("queues", "topics"):
            with suppress(WrongKind, *GONE):
                return await self._declared(Ask("GET", f"/v1/namespaces/{namespace}/{kind}/{name}"))
        return None

    def names(self, namespace: str, kind: Kind = "queue") -> Ticket[list[str]]:
        return self._call(self._names(namespace, kind))

    async def _names(self, namespace: str, kind: Kind) -> list[str]:
        return (await self._answer(Ask("GET", f"/v1/namespaces/{namespace}/{kind}s"), wire.Names)).names

    def describe(self, log: Handle) -> Ticket[QueueStats]:
        return self._ask(Ask("GET", _own(log).address("/stats")), QueueStats)

    def stats(self, namespace: str) -> Ticket[BrokerStats]:
        return self._call(self._stats(namespace))

    async def _stats(self, namespace: str) -> BrokerStats:
        found = await self._answer(Ask("GET", f"/v1/namespaces/{namespace}"), BrokerStats)
        with suppress(msgspec.ValidationError):  # of another version: as it came
            if found.journal is not None:
                return msgspec.structs.replace(found, journal=msgspec.convert(found.journal, Stats))
        return found

    def change(self, log: Handle, what: What, **policy: Any) -> Ticket[Any]:
        found, given = _own(log), checked(policy)
        number = f"?log={found.number}"
        if what == "alter":
            return self._call(self._declared(Ask("PATCH", found.whole + number, wire.Alter(policy=given))))
        if what == "delete":
            return self._call(self._done(Ask("DELETE", found.whole + number), gone_is_done=True))
        if what == "purge":
            return self._call(self._count(Ask("POST", found.address("/purge"), safe=False)))
        source = "/redrive-source" if what == "redrive" else "/dead-letters"
        return self._call(self._maybe(Ask("POST", found.address(source))))

    async def _count(self, ask: Ask) -> int:
        return (await self._answer(ask, wire.Count)).count

    async def _maybe(self, ask: Ask) -> Handle | None:
        found = await self._server.ask(ask, wire.LogInfo)
        return None if found is None else self._handle(found)

    # --- publishing ---

    def publish(self, log: Handle, messages: Iterable[bytes | Message]) -> Ticket[Sequence[int]]:
        found, items = _own(log), rows.items(messages)
        if not items:
            return self._call(_at_once([]))
        return self._call(self._published(found, items))

    async def _published(self, log: RemoteHandle, items: list[bytes | wire.Item]) -> Sequence[int]:
        if log.outgoing is None:

            async def send(items: list[bytes | wire.Item], safe: bool) -> list[int]:
                ask = Ask("POST", log.address("/messages"), wire.Publish(messages=items), safe)
                return (await self._answer(ask, wire.Ids)).ids

            log.outgoing = Gathering(send, lambda: log.policy.dedup_window, self._server.trying_s)
        gathering: Gathering = log.outgoing
        return await gathering.publish(items)

    def route(self, namespace: str, pattern: str, message: bytes | Message) -> Ticket[dict[str, int]]:
        wanted, (item,) = compile_pattern(pattern), rows.items([message])
        body = wire.Route(pattern=wanted.text, message=item)
        target = f"/v1/namespaces/{namespace}/route"
        # For how long those whom it reaches remember a dedup id is not known here.
        return self._call(self._routed(Ask("POST", target, body, safe=False)))

    async def _routed(self, ask: Ask) -> dict[str, int]:
        return (await self._answer(ask, wire.Routed)).ids

    def transact(self, namespace: str, operations: Sequence[Operation]) -> Ticket[list[int]]:
        if len(operations) > OPERATIONS_MAX:
            raise BatchTooLarge(
                f"a transaction of {len(operations)} steps is over the bound of {OPERATIONS_MAX}: make it several"
            )
        steps = [_step(namespace, one) for one in operations]
        if not steps:
            return self._call(_at_once([]))
        target = f"/v1/namespaces/{namespace}/transactions"
        ask = Ask("POST", target, wire.Transact(steps=steps), safe=False)  # nothing tells that it was done
        return self._call(self._transacted(ask, operations))

    async def _transacted(self, ask: Ask, operations: Sequence[Operation]) -> list[int]:
        ids = (await self._answer(ask, wire.Ids)).ids
        for one in operations:
            if one.receipts is not None:
                self._consuming.put_down(_own(one.log), one.receipts)
        return ids

    def cancel(self, log: Handle, id: int) -> Ticket[bool]:
        found = _own(log)
        _require_id(id, found)
        return self._call(self._was(Ask("DELETE", found.address(f"/messages/{id}"), safe=False)))

    async def _was(self, ask: Ask) -> bool:
        return (await self._answer(ask, wire.Was)).was

    def schedule(self, log: Handle, name: str, recurring: Recurring | None) -> Ticket[bool]:
        target = _own(log).address(f"/schedules/{name}")
        if recurring is None:
            return self._call(self._was(Ask("DELETE", target, safe=False)))
        item = wire.Item(
            payload=recurring.payload, headers=recurring.headers, key=recurring.key, priority=recurring.priority,
            ttl=seconds(recurring.ttl_us),
        )  # fmt: skip
        when = recurring.when
        body = wire.Schedule(cron=when.cron, message=item, timezone=when.timezone, missed=recurring.missed)
        return self._call(self._was(Ask("PUT", target, body)))

    # --- groups ---

    def open_group(
        self, log: Handle, group: str, *, filter: str | None, strategy: str | None, start: Any, durable: bool,
        consumer: str | None = None, silence_us: int | None = None, prefetch: int = 1,
    ) -> Ticket[str | None]:  # fmt: skip
        found = _own(log)
        _require_place(start, found)
        terms = wire.OpenGroup(
            filter=None if filter is None else str(compile_filter(filter)), strategy=strategy,
            start=rows.place(start), durable=durable, consumer=consumer,
            silence=None if consumer is None else self._silence(silence_us),
        )  # fmt: skip
        return self._call(self._opened(found, group, terms, seconds(silence_us), prefetch))

    def _silence(self, given_us: int | None) -> float:
        return self.silence_s if given_us is None else given_us / SECOND_US

    async def _opened(
        self, log: RemoteHandle, group: str, terms: wire.OpenGroup, silence: float | None, prefetch: int
    ) -> str | None:
        if terms.consumer is None:
            await self._done(Ask("PUT", log.address(f"/groups/{group}"), terms))
            return None
        name = await self._consuming.attach(log, group, terms)
        return self._consuming.came(log, group, name, silence, prefetch, terms)

    def close_group(self, log: Handle, group: str) -> Ticket[None]:
        target = _own(log).address(f"/groups/{group}")
        return self._call(self._done(Ask("DELETE", target), gone_is_done=True))

    def seek(self, log: Handle, group: str, place: Any) -> Ticket[None]:
        _require_place(place, _own(log))
        return self._call(self._sought(_own(log), group, rows.place(place)))

    async def _sought(self, log: RemoteHandle, group: str, place: wire.Place) -> None:
        await self._done(Ask("POST", log.address(f"/groups/{group}/seek"), place))
        self._consuming.sent_elsewhere(log, group)

    def lag(self, log: Handle, group: str) -> Ticket[int]:
        return self._call(self._lag(Ask("GET", _own(log).address(f"/groups/{group}/lag"))))

    async def _lag(self, ask: Ask) -> int:
        return (await self._answer(ask, wire.Lag)).lag

    def attach(
        self, log: Handle, group: str, consumer: str, silence_us: int | None = None, prefetch: int = 1
    ) -> Ticket[str]:
        body = wire.Attach(consumer=consumer, silence=self._silence(silence_us))
        return self._call(self._attached(_own(log), group, body, seconds(silence_us), prefetch))

    async def _attached(
        self, log: RemoteHandle, group: str, body: wire.Attach, silence: float | None, prefetch: int
    ) -> str:
        name = await self._consuming.attach(log, group, body)
        return self._consuming.came(log, group, name, silence, prefetch, body)

    def heartbeat(self, log: Handle, group: str, consumer: str) -> Ticket[bool]:
        return self._call(self._consuming.heartbeat(_own(log), group, consumer), settling=True)

    def release(self, log: Handle, group: str, consumer: str, *, retire: bool = False) -> Ticket[None]:
        if self._consuming.closing:
            return Answer(None)  # closing the connection gives back what everybody has
        return self._call(self._consuming.release(_own(log), group, consumer, retire=retire))

    # --- receiving and settling ---

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None, wait_us: int | None, keep: bool,
        ahead: int = 0,
    ) -> Ticket[Granted | None]:  # fmt: skip
        if type(count) is not int or not 1 <= count <= DELIVERIES_MAX:
            raise InvalidArgument(
                f"the number of messages is {argument.quoted(count)}; give an int from 1 to {DELIVERIES_MAX}"
            )
        found, halt = _own(log), Halt()
        self._require_open()
        work = self._consuming.lease(found, group, count, consumer, wait_us, keep, halt, ahead)
        return Receiving(self._runner, work, halt, lambda granted: self._not_wanted(found, granted))

    def _require_open(self) -> None:
        self._runner.require_own_process()
        if self._consuming.closing:
            raise closed()

    def _not_wanted(self, log: RemoteHandle, granted: Granted | None) -> None:
        with suppress(BrokerClosed):
            self._runner.begin(self._consuming.give_back(log, granted))

    def settle(
        self,
        log: Handle,
        receipts: Receipts,
        how: How,
        *,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> Ticket[None]:
        if not receipts.offsets:
            raise InvalidArgument("nothing is given to settle")
        work = self._consuming.settle(_own(log), receipts, how, seconds(delay_us), error)
        return self._call(work, settling=True)

    def hand_over(self, log: Handle, receipts: Receipts) -> Ticket[list[int]]:
        return self._call(self._consuming.hand_over(_own(log), receipts), settling=True)

    def extend(self, log: Handle, receipts: Receipts, wait_us: int) -> Ticket[None]:
        return self._call(
            self._consuming.renew(_own(log), receipts, wait_us / SECOND_US), settling=True
        )  # fmt: skip

    # --- looking ---

    def peek(self, log: Handle, count: int) -> Ticket[list[Message]]:
        return self._call(self._peeked(Ask("GET", _own(log).address("/peek", count=count))))

    async def _peeked(self, ask: Ask) -> list[Message]:
        return [rows.message(row) for row in (await self._answer(ask, wire.Messages)).messages]

    def read(self, log: Handle, offset: int, count: int) -> Ticket[Page]:
        target = _own(log).address("/messages", offset=offset, count=count)
        return self._call(self._read(Ask("GET", target)))

    async def _read(self, ask: Ask) -> Page:
        return rows.page(await self._answer(ask, wire.PageReply))

    def watch(self, log: Handle, offset: int, *, wait_us: int | None) -> Ticket[Any]:
        self._require_open()
        halt = Halt()
        return Receiving(self._runner, self._watched(_own(log), offset, wait_us, halt), halt)

    async def _watched(self, log: RemoteHandle, offset: int, wait_us: int | None, halt: Halt) -> None:
        end_us = None if wait_us is None else self.clock.monotonic_us() + wait_us
        with standing_in(halt, self._consuming.halts):
            while True:
                asked_us = self.clock.monotonic_us()
                left_s = POLL_S if end_us is None else min(POLL_S, max(0, end_us - asked_us) / SECOND_US)
                ask = Ask("GET", log.address("/watch", offset=offset, wait=left_s), wait_s=left_s)
                found = await self._server.ask(ask, wire.Was, halt)
                if self._consuming.closing:
                    raise closed()
                now_us = self.clock.monotonic_us()
                if found is None or found.was or (end_us is not None and now_us >= end_us):
                    return
                if now_us < asked_us + left_s * SECOND_US:
                    await asyncio.sleep(EARLY_S)

    def locate(self, log: Handle, place: Any) -> Ticket[int]:
        found = _own(log)
        _require_place(place, found)
        return self._call(self._offset(Ask("POST", found.address("/locate"), rows.place(place))))

    async def _offset(self, ask: Ask) -> Any:
        return (await self._answer(ask, wire.Offset)).offset

    def position(
        self, log: Handle, reader: str, offset: int | None, *, holds: bool | None = None, forget: bool = False
    ) -> Ticket[int | None]:
        target = _own(log).address(f"/readers/{reader}")
        if forget:
            return self._call(self._done(Ask("DELETE", target)))
        if offset is None and holds is None:
            return self._call(self._offset(Ask("GET", target)))
        return self._call(self._offset(Ask("PUT", target, wire.Commit(offset=offset, holds=holds))))

    def trace(self, namespace: str, id: int) -> Ticket[list[Step]]:
        if not 0 <= id <= ID_MAX:
            return self._call(_at_once([]))  # nobody was ever given such an id
        return self._call(self._steps(Ask("GET", f"/v1/namespaces/{namespace}/messages/{id}/trace")))

    async def _steps(self, ask: Ask) -> list[Step]:
        return (await self._answer(ask, wire.Timeline)).steps

    def redrive(
        self,
        log: Handle,
        count: int,
        *,
        where: Filter | None,
        to: str | None,
        span: range | None,
    ) -> Ticket[Redriven]:
        body = wire.Redrive(
            count=count, where=None if where is None else str(where), to=to,
            span=None if span is None else (span.start, span.stop),
        )  # fmt: skip
        return self._call(self._redriven(Ask("POST", _own(log).address("/redrive"), body, safe=False)))

    async def _redriven(self, ask: Ask) -> Redriven:
        found = await self._answer(ask, wire.RedriveReply)
        return Redriven(found.moved, range(*found.left))

    # --- the end ---

    def close(self, timeout_s: float | None = None) -> None:
        """Give back what is in hand, and let go of the connections. With a timeout, it may be settled for so long before."""
        if self._runner.is_here():
            raise InvalidArgument(
                "this connection belongs to the event loop of this thread: await its close()"
            )
        with suppress(PenstockError):
            self._runner.require_own_process()
            with self._closing:
                if not self._closed:
                    self._close(timeout_s)

    def _close(self, timeout_s: float | None) -> None:
        try:
            if self._runner.loop.is_running():
                with suppress(RuntimeError):  # it has just ended
                    asyncio.run_coroutine_threadsafe(self._part(timeout_s), self._runner.loop).result()
        finally:
            self._closed = self._consuming.closing = self._consuming.parting = True
            self._runner.stop()

    async def _part(self, timeout_s: float | None) -> None:
        consuming, loop = self._consuming, asyncio.get_running_loop()
        consuming.closing = True
        end_s = loop.time() + PARTING_S
        for halt in list(consuming.halts):
            halt.say()
        try:
            if timeout_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(consuming.empty_handed.wait(), timeout_s)
            end_s = loop.time() + PARTING_S
            await consuming.part(end_s)
            await self._runner.settle(max(0, end_s - loop.time()))
        finally:
            self._closed = True
            self._server.closed.say()
            await self._server.close(max(0, end_s - loop.time()))


async def _at_once(value: T) -> T:
    return value


def _own(log: Handle | str) -> RemoteHandle:
    if not isinstance(log, RemoteHandle):
        raise InvalidArgument(f"{log!r} is not a queue or topic of this broker")
    return log


def _step(namespace: str, one: Operation) -> wire.Operation:
    """A step of a transaction as it travels."""
    if one.receipts is None:
        name, number = one.log if isinstance(one.log, str) else one.log.name, None
        if not isinstance(one.log, str):
            number = one.log.number
        return wire.Operation(log=name, number=number, messages=rows.items(list(one.messages)))
    log = _own(one.log)
    if log.namespace != namespace:
        raise InvalidArgument(
            f"a delivery of the namespace {log.namespace!r} cannot be settled in a transaction of {namespace!r}: "
            "begin it where the delivery is from"
        )
    return wire.Operation(
        log=log.name, number=log.number, how=one.how, delay=seconds(one.delay_us), error=one.error,
        **rows.columns(one.receipts),
    )  # fmt: skip


def _require_id(id: int, log: RemoteHandle) -> None:
    """What no id can be is not stored; it would not even fit into an address."""
    if not 0 <= id <= ID_MAX:
        raise InvalidArgument(
            f"no message with the id {argument.quoted(id)} is stored in {log.name!r}: it was never there, was consumed, dropped, or has expired"
        )


def _require_place(place: Any, log: RemoteHandle) -> None:
    if isinstance(place, MessageId):
        _require_id(place.id, log)
    elif isinstance(place, int) and not 0 <= place <= OFFSET_MAX:
        raise InvalidArgument(f"offset {argument.quoted(place)} is not stored in {log.name!r}")
