"""The port over a server: every call of `broker.port.Port` as a request.

Nothing is decided here. A call checks what only its caller can get wrong, so that it is refused as an embedded broker would refuse it and nothing is sent, and begins a coroutine that asks the server (see `asking`). What is more than a request and its answer is elsewhere: gathering
publishes (`gathering`), consumers and what is in hand (`consuming`), messages ahead (`ahead`).

Which calls may be sent again though no answer came (`safe`): all that only look, or say how something should be in the end (declare, alter, seek, commit, extend). Receiving too: what was leased to nobody comes again when its lease ends. And settling: if the first try was done, the second is refused with `LeaseLost`,
whose text says that; the message may be settled or not, as after any lost lease. Not those that would do something twice: publishing without dedup ids, routing, transactions, redriving, purging, cancelling, and a consumer's coming.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from penstock import argument, wire
from penstock.broker.compose import publish_of
from penstock.broker.port import Arrived, Granted, Page
from penstock.broker.ticket import Answer, Ticket
from penstock.client import rows
from penstock.client.asking import Ask, Server, closed
from penstock.client.consuming import EARLY_S, PARTING_S, POLL_S, Consuming, standing_in
from penstock.client.gathering import Gathering
from penstock.client.rows import RemoteHandle
from penstock.client.running import Call, Halt, Receiving, Runner
from penstock.clock import SECOND_US, Clock
from penstock.engine.filter import compile_filter
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    InvalidArgument,
    PenstockError,
    QueueNotFound,
    TopicNotFound,
    Unsupported,
    WrongKind,
)
from penstock.limits import DELIVERIES_MAX, OFFSET_MAX, STEPS_MAX
from penstock.model import commands, queries
from penstock.model.commands import (
    Attach,
    Command,
    DeadLetters,
    Handle,
    HandOver,
    Heartbeat,
    Pattern,
    Place,
    Presence,
    Publish,
    Receipts,
    Settle,
    Spec,
    Unit,
)
from penstock.model.damage import JournalStats
from penstock.model.stats import BrokerStats, QueueStats
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

    def declare(self, spec: Spec | DeadLetters) -> Ticket[Handle]:
        if isinstance(spec, DeadLetters):
            return self._call(self._declared(Ask("POST", _own(spec.log).address("/dead-letters"))))
        name = check_name(spec.name, kind=f"{spec.kind} name", reserved_ok=spec.create is False)
        given = checked(spec.policy)
        Policy.of(**given)
        target = f"/v1/namespaces/{spec.namespace}/{spec.kind}s/{name}"
        ask = Ask("GET", target)
        if spec.create is not False or given:
            body = wire.Declare(policy=given, create=spec.create)
            ask = Ask("PUT", target, body, safe=spec.create is not True)
        return self._call(self._declared(ask))

    async def _declared(self, ask: Ask) -> Handle:
        return self._handle(await self._answer(ask, wire.LogInfo))

    # --- looking ---

    def describe(self, query: queries.Query[T]) -> Ticket[T]:
        return self._call(self._described(query))

    async def _described(self, query: Any) -> Any:
        match query:
            case queries.Find():
                return await self._found(query.namespace, check_name(query.name, reserved_ok=True))
            case queries.Names():
                target = f"/v1/namespaces/{query.namespace}/{query.kind}s"
                return (await self._answer(Ask("GET", target), wire.Names)).names
            case queries.Namespaces():
                return (await self._answer(Ask("GET", "/v1/namespaces"), wire.Names)).names
            case queries.OfLog():
                return await self._answer(Ask("GET", _own(query.log).address("/stats")), QueueStats)
            case queries.OfNamespace():
                return await self._stats(query.namespace)
            case queries.Lag():
                target = _own(query.log).address(f"/groups/{query.group}/lag")
                return (await self._answer(Ask("GET", target), wire.Lag)).lag
            case queries.Locate():
                found = _own(query.log)
                _require_place(query.place, found)
                return await self._offset(Ask("POST", found.address("/locate"), rows.place(query.place)))
            case queries.Timeline():
                if not 0 <= query.id <= ID_MAX:
                    return []  # no message was ever given such an id
                target = f"/v1/namespaces/{query.namespace}/messages/{query.id}/trace"
                return (await self._answer(Ask("GET", target), wire.Timeline)).steps
            case queries.RedriveSource():
                ask = Ask("POST", _own(query.log).address("/redrive-source"))
                source = await self._server.ask(ask, wire.LogInfo)
                return None if source is None else self._handle(source)
        raise Unsupported(
            f"{type(query).__name__} is not asked over HTTP: ask the embedded broker, in the server's process"
        )

    async def _found(self, namespace: str, name: str) -> Handle | None:
        for kind in ("queues", "topics"):
            with suppress(WrongKind, *GONE):
                return await self._declared(Ask("GET", f"/v1/namespaces/{namespace}/{kind}/{name}"))
        return None

    async def _stats(self, namespace: str) -> BrokerStats:
        found = await self._answer(Ask("GET", f"/v1/namespaces/{namespace}"), BrokerStats)
        with suppress(msgspec.ValidationError):  # of another version: as it came
            if found.journal is not None:
                return msgspec.structs.replace(found, journal=msgspec.convert(found.journal, JournalStats))
        return found

    async def _offset(self, ask: Ask) -> Any:
        return (await self._answer(ask, wire.Offset)).offset

    def read(
        self, log: Handle, place: int | str | Place, count: int, *, wait_us: int | None = 0
    ) -> Ticket[Page]:
        found = _own(log)
        if isinstance(place, str):
            return self._call(self._upcoming(Ask("GET", found.address("/peek", count=count))))
        self._require_open()
        halt = Halt()
        return Receiving(self._runner, self._read(found, place, count, wait_us, halt), halt)

    async def _upcoming(self, ask: Ask) -> Page:
        found = await self._answer(ask, wire.Messages)
        return rows.page(wire.PageReply(messages=found.messages, next=0, missed=0))

    async def _read(
        self, log: RemoteHandle, place: int | Place, count: int, wait_us: int | None, halt: Halt
    ) -> Page:
        """Ask for a page until there is something, the time is over, or the caller waits no longer."""
        offset = await self._described(queries.Locate(log, place)) if isinstance(place, Place) else place
        end_us = None if wait_us is None else self.clock.monotonic_us() + wait_us
        with standing_in(halt, self._consuming.halts):
            while True:
                asked_us = self.clock.monotonic_us()
                left_s = POLL_S if end_us is None else min(POLL_S, max(0, end_us - asked_us) / SECOND_US)
                target = log.address("/messages", offset=offset, count=count, wait=left_s)
                reply = await self._server.ask(Ask("GET", target, wait_s=left_s), wire.PageReply, halt)
                if self._consuming.closing:
                    raise closed()
                now_us = self.clock.monotonic_us()
                if reply is None:
                    return Page([], offset, 0)
                if reply.messages or halt.said or (end_us is not None and now_us >= end_us):
                    return rows.page(reply)
                if now_us < asked_us + left_s * SECOND_US:
                    await asyncio.sleep(EARLY_S)

    def position(self, log: Handle, reader: str) -> Ticket[int | None]:
        return self._call(self._offset(Ask("GET", _own(log).address(f"/readers/{reader}"))))

    def arrivals(self, log: Handle, group: str, tell: Arrived | None) -> None:  # noqa: ARG002
        raise Unsupported("arrivals are told in the broker's own process: over HTTP, lease with a wait")

    # --- units ---

    def commit(self, unit: Unit) -> Ticket[list[Any]]:
        if len(unit.steps) > STEPS_MAX:
            raise BatchTooLarge(
                f"a transaction of {len(unit.steps)} steps is over the bound of {STEPS_MAX}: make it several"
            )
        if not unit.steps:
            return self._call(_at_once([]))
        if len(unit.steps) > 1:
            return self._call(self._transacted(unit, [_step(unit.namespace, *one) for one in unit.steps]))
        ((target, command),) = unit.steps
        if isinstance(command, Publish) and isinstance(target, Handle):
            return self._call(self._published(_own(target), rows.items(command)))
        if isinstance(command, Publish):
            return self._call(self._routed(unit.namespace, target, rows.items(command)))
        if isinstance(command, Settle) and not command.offsets:
            raise InvalidArgument("nothing is given to settle")
        if isinstance(command, commands.PutMetadata):
            raise _not_over_http(command)
        is_settling = isinstance(command, Settle | HandOver)
        return self._call(self._alone(_own(target), command), settling=is_settling)

    async def _alone(self, log: RemoteHandle, command: Command) -> list[Any]:
        return [await self._done(log, command)]

    async def _done(self, log: RemoteHandle, command: Command) -> Any:
        """Ask for one command; its answer."""
        body: Any
        match command:
            case Settle():
                return await self._consuming.settle(log, command)
            case HandOver():
                return await self._consuming.hand_over(log, command)
            case commands.Cancel():
                _require_id(command.id, log)
                return await self._was(Ask("DELETE", log.address(f"/messages/{command.id}"), safe=False))
            case commands.Schedule():
                (item,) = rows.items(publish_of([command.message]))
                body = wire.Schedule(
                    cron=command.cron, message=item, timezone=command.timezone, missed=command.missed
                )
                return await self._was(Ask("PUT", log.address(f"/schedules/{command.name}"), body))
            case commands.Unschedule():
                return await self._was(Ask("DELETE", log.address(f"/schedules/{command.name}"), safe=False))
            case commands.OpenGroup():
                return await self._opened(log, command)
            case commands.CloseGroup():
                await self._empty(Ask("DELETE", log.address(f"/groups/{command.group}")), gone_is_done=True)
            case commands.Seek():
                _require_place(command.place, log)
                target = log.address(f"/groups/{command.group}/seek")
                await self._empty(Ask("POST", target, rows.place(command.place)))
                self._consuming.sent_elsewhere(log, command.group)
            case commands.Commit():
                body = wire.Commit(offset=command.offset, holds=command.holds)
                return await self._offset(Ask("PUT", log.address(f"/readers/{command.reader}"), body))
            case commands.Forget():
                await self._empty(Ask("DELETE", log.address(f"/readers/{command.reader}")))
            case commands.Alter():
                body = commands.Alter(checked(command.policy))
                await self._declared(Ask("PATCH", f"{log.whole}?log={log.number}", body))
            case commands.Delete():
                await self._empty(Ask("DELETE", f"{log.whole}?log={log.number}"), gone_is_done=True)
                log.deleted = True
            case commands.Purge():
                ask = Ask("POST", log.address("/purge"), safe=False)
                return (await self._answer(ask, wire.Count)).count
            case commands.Redrive():
                ask = Ask("POST", log.address("/redrive"), command, safe=False)
                return await self._answer(ask, commands.Redriven)
            case _:
                raise _not_over_http(command)
        return None

    async def _empty(self, ask: Ask, *, gone_is_done: bool = False) -> None:
        """Ask for something that has no answer."""
        try:
            await self._server.reply(ask)
        except GONE as error:
            if not (gone_is_done and getattr(error, "unanswered", False)):
                raise

    async def _was(self, ask: Ask) -> bool:
        return (await self._answer(ask, wire.Was)).was

    async def _published(self, log: RemoteHandle, items: list[bytes | wire.Item]) -> list[Any]:
        if not items:
            return [[]]
        if log.outgoing is None:

            async def send(items: list[bytes | wire.Item], safe: bool) -> list[int]:
                ask = Ask("POST", log.address("/messages"), wire.Publish(messages=items), safe)
                return (await self._answer(ask, wire.Ids)).ids

            log.outgoing = Gathering(send, lambda: log.policy.dedup_window, self._server.trying_s)
        gathering: Gathering = log.outgoing
        return [await gathering.publish(items)]

    async def _routed(self, namespace: str, target: Any, items: list[bytes | wire.Item]) -> list[Any]:
        """Publish to the queue of a name, or to all that match a pattern."""
        if isinstance(target, Pattern):
            (item,) = items
            # For how long those whom it reaches remember a dedup id is not known here.
            ask = Ask("POST", f"/v1/namespaces/{namespace}/route", wire.Route(pattern=target.text, message=item), safe=False)  # fmt: skip
            found = await self._answer(ask, wire.Routed)
            return [{name: [given] for name, given in found.ids.items()}]
        ask = Ask("POST", f"/v1/namespaces/{namespace}/logs/{target}/messages", wire.Publish(messages=items), safe=False)  # fmt: skip
        return [(await self._answer(ask, wire.Ids)).ids]

    async def _transacted(self, unit: Unit, steps: list[wire.Operation]) -> list[Any]:
        target = f"/v1/namespaces/{unit.namespace}/transactions"
        ask = Ask("POST", target, wire.Transact(steps=steps), safe=False)  # nothing tells that it was done
        ids = iter((await self._answer(ask, wire.Ids)).ids)
        answers: list[Any] = []
        for target_, command in unit.steps:
            if isinstance(command, Settle):
                self._consuming.put_down(_own(target_), command)
                answers.append(None)
            else:
                answers.append(list(islice(ids, len(command.payloads))))  # type: ignore[attr-defined]
        return answers

    # --- groups and consumers ---

    def _silence(self, given: float | None) -> float:
        return self.silence_s if given is None else given

    async def _opened(self, log: RemoteHandle, command: commands.OpenGroup) -> str | None:
        group = command.group
        if command.start is not None:
            _require_place(command.start, log)
        terms = wire.OpenGroup(
            filter=None if command.filter is None else str(compile_filter(command.filter)),
            strategy=command.strategy, start=command.start and rows.place(command.start),
            durable=command.durable, consumer=command.consumer,
            silence=None if command.consumer is None else self._silence(command.silence),
        )  # fmt: skip
        if terms.consumer is None:
            await self._empty(Ask("PUT", log.address(f"/groups/{group}"), terms))
            return None
        name = await self._consuming.attach(log, group, terms)
        return self._consuming.came(log, group, name, command.silence, command.prefetch, terms)

    def consumer(self, log: Handle, group: str, presence: Presence) -> Ticket[Any]:
        found = _own(log)
        if isinstance(presence, Attach):
            return self._call(self._attached(found, group, presence))
        if isinstance(presence, Heartbeat):
            return self._call(self._consuming.heartbeat(found, group, presence.consumer), settling=True)
        if self._consuming.closing:
            return Answer(None)  # closing the connection gives back what everybody has
        return self._call(self._consuming.release(found, group, presence.consumer, retire=presence.retire))

    async def _attached(self, log: RemoteHandle, group: str, coming: Attach) -> str:
        body = wire.Attach(consumer=coming.consumer, silence=self._silence(coming.silence))
        name = await self._consuming.attach(log, group, body)
        return self._consuming.came(log, group, name, coming.silence, coming.prefetch, body)

    # --- receiving ---

    def lease(
        self, log: Handle, group: str, count: int, *, consumer: str | None = None, wait_us: int | None = 0,
        settle: bool = False, ahead: int = 0, bytes_max: int | None = None, rides: bool = False,  # noqa: ARG002  # the server's
    ) -> Ticket[Granted | None]:  # fmt: skip
        if type(count) is not int or not 1 <= count <= DELIVERIES_MAX:
            raise InvalidArgument(
                f"the number of messages is {argument.quoted(count)}; give an int from 1 to {DELIVERIES_MAX}"
            )
        found, halt = _own(log), Halt()
        self._require_open()
        work = self._consuming.lease(found, group, count, consumer, wait_us, not settle, halt, ahead)
        return Receiving(self._runner, work, halt, lambda granted: self._not_wanted(found, granted))

    def _require_open(self) -> None:
        self._runner.require_own_process()
        if self._consuming.closing:
            raise closed()

    def _not_wanted(self, log: RemoteHandle, granted: Granted | None) -> None:
        with suppress(BrokerClosed):
            self._runner.begin(self._consuming.give_back(log, granted))

    def extend(self, log: Handle, receipts: Receipts, seconds: float) -> Ticket[None]:
        return self._call(self._consuming.renew(_own(log), receipts, seconds), settling=True)

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


def _not_over_http(command: Command) -> Unsupported:
    return Unsupported(
        f"{type(command).__name__} is not done over HTTP: do it in the process of the broker, with penstock.open"
    )


async def _at_once(value: T) -> T:
    return value


def _own(log: object) -> RemoteHandle:
    if not isinstance(log, RemoteHandle):
        raise InvalidArgument(f"{argument.quoted(log)} is not a queue or topic of this broker")
    return log


def _step(namespace: str, target: Any, command: Command) -> wire.Operation:
    """A step of a transaction as it travels."""
    if isinstance(command, Publish):
        name, number = (target.name, target.number) if isinstance(target, Handle) else (target, None)
        return wire.Operation(log=name, number=number, messages=rows.items(command))
    if not isinstance(command, Settle):
        raise Unsupported(
            f"{type(command).__name__} is not done beside others over HTTP: do it by itself, or use the embedded broker"
        )
    log = _own(target)
    if log.namespace != namespace:
        raise InvalidArgument(
            f"a delivery of the namespace {log.namespace!r} cannot be settled in a transaction of {namespace!r}: "
            "begin it where the delivery is from"
        )
    return wire.Operation(
        log=log.name, number=log.number, how=command.how, delay=command.delay, error=command.error,
        group=command.group, offsets=command.offsets, numbers=command.numbers,
    )  # fmt: skip


def _require_id(id: int, log: RemoteHandle) -> None:
    """What no id can be is not stored; it would not even fit into an address."""
    if not 0 <= id <= ID_MAX:
        raise InvalidArgument(
            f"no message with the id {argument.quoted(id)} is stored in {log.name!r}: it was never there, was consumed, dropped, or has expired"
        )


def _require_place(place: Place, log: RemoteHandle) -> None:
    if place.message_id is not None:
        _require_id(place.message_id, log)
    elif place.offset is not None and not 0 <= place.offset <= OFFSET_MAX:
        raise InvalidArgument(f"offset {argument.quoted(place.offset)} is not stored in {log.name!r}")
