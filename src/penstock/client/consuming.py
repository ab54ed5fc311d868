"""Consumers, and what they and others have in hand.

Theory of operation
-------------------
A receive that waits is a series of polls, each of a bounded length, until something comes or its time, by the port's clock, is over.

A server that was started again knows no consumers. Each says in its answers which of its lives it is in; when a consumer is unknown and the life is another one than that in which it came, it comes again, with its terms, under the name that it is given now, and goes on. In the same life it is
unknown because it was taken out or thought dead, and whoever uses it is told so; unless it was we who could not say in time that it lives (the network was cut, the process stood still): then it comes again, too. (What it had in hand when the server ended is somebody's again: its receipts are refused with `LeaseLost`.)

Unlike an embedded broker, a server outlives a consumer whose process is killed. So each comes with a silence after which it is thought dead, and this says for all of them that they live, from the loop, whatever their handlers do. The time between two beats is real time (a clock that a test moves by
hand does not make a loop go faster), the silence is by the server's clock. For a consumer whose program has named a silence itself (`heartbeat=`) nobody beats: there it is the program that says whether it lives, as in an embedded broker, or it would not be noticed when it hangs.

When the connection is closed, consumers go, and give back what they have. What was received without a consumer stays leased until its time is over, and somebody else may still settle it by its receipt. So that `close(timeout)` can wait for it, what is in hand is
remembered until it is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock import wire
from penstock.broker.port import Granted
from penstock.client.ahead import Ahead
from penstock.client.asking import Ask, Server, closed
from penstock.client.rows import RemoteHandle, columns, granted
from penstock.client.running import Halt
from penstock.clock import SECOND_US, Clock
from penstock.errors import (
    BrokerClosed,
    LeaseLost,
    PenstockError,
    QueueNotFound,
    ServerUnavailable,
    TopicNotFound,
)
from penstock.model.commands import HandOver, Receipts, Settle

#: The longest that one poll waits: whatever stands between must not take it for dead. A server may answer sooner.
POLL_S: Final = 20.0

#: Before the next poll, if one was answered with nothing before its time: the server is stopping, or allows less.
EARLY_S: Final = 0.05

#: Leases that are remembered. Who never settles must not fill the memory.
HAND_MAX: Final = 100_000

#: How long the end of a connection may take, all in all: what is not given back by then comes back when its lease ends, or its consumer was silent for too long.
PARTING_S: Final = 5.0

#: How many consumers say at once that they are alive: acks must not stand in line behind a thousand of them.
BEATING_MAX: Final = 8


#: What attaches a consumer: to a group that exists, or together with its subscription.
Coming = wire.Attach | wire.OpenGroup


class Attached:
    """A consumer of the server, and the request that attaches it again after a restart."""

    def __init__(self, name: str, silence: float | None, ours_s: float, request: Coming) -> None:
        self.name = name  # on the server, which adds a number to a name that is taken
        self.silence = ours_s if silence is None else silence
        self.is_beaten = silence is None  # nobody but us says that it lives
        self.heard_s = 0.0  # when the server last said that it does, by the loop's time
        self.request = request  # holds the name that was asked for
        self.ahead: Ahead | None = None
        self.gone = False
        self.halts: set[Halt] = set()
        self.life: bytes | None = None
        self.failures = 0
        self.coming = asyncio.Lock()

    def is_of(self, server: Server) -> bool:
        """Whether it came in the life that the server is in now."""
        if self.life is None or server.life is None:
            return self.failures == server.failures
        return self.life == server.life

    def was_unheard(self) -> bool:
        """Whether it may have been thought dead because we could not say that it lives."""
        return self.is_beaten and asyncio.get_running_loop().time() - self.heard_s > self.silence

    def came(self, server: Server, name: str) -> None:
        self.name, self.life, self.failures = name, server.life, server.failures
        self.heard_s = asyncio.get_running_loop().time()
        if self.ahead is not None:
            self.ahead.forget()


class Consuming:
    """What is received and settled over one connection."""

    def __init__(self, server: Server, clock: Clock, silence_s: float = wire.SILENCE_S) -> None:
        self._server = server
        self.clock = clock
        self.silence_s = silence_s
        self._beating: asyncio.Task[None] | None = None
        self.attached: dict[tuple[int, str, str], tuple[RemoteHandle, Attached]] = {}
        self.halts: set[Halt] = set()
        self.closing = False  # what is in hand may still be settled
        self.parting = False  # it goes back now
        # By lease: whose it is, and what of it is not settled.
        self._hand: dict[tuple[int, str, int], tuple[str | None, set[int]]] = {}
        self.empty_handed = asyncio.Event()
        self.empty_handed.set()

    @property
    def life(self) -> bytes | None:
        return self._server.life

    # --- receiving ---

    async def lease(
        self, log: RemoteHandle, group: str, count: int, consumer: str | None, wait_us: int | None, keep: bool, halt: Halt,
        ahead: int,
    ) -> Granted | None:  # fmt: skip
        """Messages, when there are some."""
        _, attached = self.attached.get((log.number, group, consumer or ""), (log, None))
        if consumer is not None and attached is None:
            raise BrokerClosed(f"the consumer {consumer!r} was closed or taken out: subscribe again")
        both = (self.halts, attached.halts) if attached is not None else (self.halts,)
        with standing_in(halt, *both):
            # What is settled when it is handed out is never fetched ahead: it would be gone with the buffer.
            kept = keep and log.policy.delivery != "at-most-once"
            if kept and attached is not None and attached.ahead is not None:
                found = await attached.ahead.take(count, wait_us, halt)
            else:
                leases = await self.poll(log, group, count, consumer, attached, wait_us, keep, halt, ahead)
                found = None if leases is None else granted(leases.deliveries, leases.group, leases.number)
        if found is not None:
            self._take(log, found, consumer)
        if self.closing and (halt.said if found is None else found.number):
            await self.give_back(log, found)
            raise closed()
        return found

    async def poll(
        self, log: RemoteHandle, group: str, count: int, consumer: str | None, attached: Attached | None,
        wait_us: int | None, keep: bool, halt: Halt | None, ahead: int,
    ) -> wire.Leases | None:  # fmt: skip
        """Ask until something comes, the time is over, or nobody wants to wait any longer."""
        end_us = None if wait_us is None else self.clock.monotonic_us() + wait_us
        while True:
            asked_us = self.clock.monotonic_us()
            left_s = POLL_S if end_us is None else min(POLL_S, max(0, end_us - asked_us) / SECOND_US)
            found = await self._leased(log, group, count, consumer, attached, left_s, keep, halt, ahead)
            if found is None or found.deliveries or left_s == 0:
                return found
            if (halt is not None and halt.said) or (attached is not None and attached.gone):
                return None
            now_us = self.clock.monotonic_us()
            if end_us is not None and now_us >= end_us:
                return None
            if now_us < asked_us + left_s * SECOND_US:
                await asyncio.sleep(EARLY_S)

    async def _leased(
        self, log: RemoteHandle, group: str, count: int, consumer: str | None, attached: Attached | None,
        wait_s: float, keep: bool, halt: Halt | None, ahead: int,
    ) -> wire.Leases | None:  # fmt: skip
        while True:
            name = consumer if attached is None else attached.name
            body = wire.Lease(count=count, wait=wait_s, consumer=name, auto_ack=not keep, ahead=ahead)
            target = log.address(f"/groups/{group}/lease")
            life = None if attached is None else attached.life
            ask = Ask("POST", target, body, wait_s=wait_s, stopping_is_an_answer=consumer is not None, life=life)  # fmt: skip
            try:
                return await self._server.ask(ask, wire.Leases, halt)
            except (BrokerClosed, QueueNotFound, TopicNotFound) as error:
                if attached is None or self.closing:
                    raise
                if attached.gone:
                    return None
                if not await self._came_again(log, group, attached, error):
                    raise

    async def _came_again(
        self, log: RemoteHandle, group: str, attached: Attached, error: PenstockError
    ) -> bool:
        """Have a consumer that the server does not know come again, if that is because the server is another one now."""
        async with attached.coming:
            if attached.is_of(self._server) and not attached.was_unheard():
                if not isinstance(error, BrokerClosed):
                    return False
                # Is it the consumer that is gone, or the server that goes? This waits for the next one, if there is one soon.
                if await self._beat(log, group, attached.name, attached.life):
                    return True
                if attached.is_of(self._server):
                    return False
            name = await self.attach(log, group, attached.request)
            attached.came(self._server, name)
            return True

    async def attach(self, log: RemoteHandle, group: str, request: Coming) -> str:
        """Attach a consumer; return its name on the server.

        If no answer comes, it may be attached, and a second one would stand beside it. So the
        request is sent again only to a server that has restarted since.
        """
        if isinstance(request, wire.Attach):
            ask = Ask("POST", log.address(f"/groups/{group}/consumers"), request, safe=False)
        else:
            ask = Ask("PUT", log.address(f"/groups/{group}"), request, safe=False)
        while True:
            life = self._server.life
            try:
                found = await self._server.ask(ask, wire.Consumer)
            except ServerUnavailable as error:
                if not error.indeterminate:
                    raise
                await self._beat(
                    log, group, str(request.consumer)
                )  # the answer says in which life the server is
                if life is None or self._server.life == life:
                    raise
                continue
            return str((found and found.consumer) or request.consumer)

    async def _beat(self, log: RemoteHandle, group: str, name: str, life: bytes | None = None) -> bool:
        target = log.address(f"/groups/{group}/consumers/{name}/heartbeat")
        found = await self._server.ask(Ask("POST", target, life=life), wire.Alive)
        return found is not None and found.alive

    async def heartbeat(self, log: RemoteHandle, group: str, consumer: str) -> bool:
        _, attached = self.attached.get((log.number, group, consumer), (log, None))
        if attached is None:
            return False
        return await self._beat(log, group, attached.name, attached.life)

    async def _beat_for_all(self) -> None:
        """As long as there are consumers who do not say themselves that they live. Two beats may be lost before one is thought dead."""
        while not self.parting and any(one.is_beaten for _, one in self.attached.values()):
            await asyncio.sleep(self.silence_s / 3)
            # Of another life, it is unknown, or somebody else has its name.
            living = [
                (log, group, one)
                for (_, group, _), (log, one) in self.attached.items()
                if one.is_beaten and one.is_of(self._server)
            ]
            for n in range(0, len(living), BEATING_MAX):
                beats = (self._beat_for(*one) for one in living[n : n + BEATING_MAX])
                await asyncio.gather(*beats, return_exceptions=True)

    async def _beat_for(self, log: RemoteHandle, group: str, attached: Attached) -> None:
        asked_s = asyncio.get_running_loop().time()
        target = log.address(f"/groups/{group}/consumers/{attached.name}/heartbeat")
        with suppress(PenstockError):  # the next one may be heard
            found = await self._server.ask(
                Ask("POST", target, life=attached.life),
                wire.Alive,
                patience_s=0,
                timeout_s=self.silence_s / 3,
            )
            if found is not None and found.alive:
                attached.heard_s = asked_s
            elif attached.is_of(self._server) and not attached.was_unheard():
                attached.is_beaten = False  # somebody took it out

    # --- coming and going ---

    def came(
        self, log: RemoteHandle, group: str, name: str, silence: float | None, prefetch: int, request: Coming
    ) -> str:  # fmt: skip
        """Register a consumer that the server has attached; return its name here."""
        attached = Attached(name, silence, self.silence_s, request)
        attached.came(self._server, name)
        name = self._free_name(log, group, name)
        if prefetch > 1:

            async def fetch(
                count: int, ahead: int, wait_us: int | None, halt: Halt | None
            ) -> wire.Leases | None:
                return await self.poll(log, group, count, name, attached, wait_us, True, halt, ahead)

            attached.ahead = Ahead(self, log, group, prefetch, fetch)
        self.attached[log.number, group, name] = (log, attached)
        if attached.is_beaten and (self._beating is None or self._beating.done()):
            self._beating = asyncio.get_running_loop().create_task(self._beat_for_all())
        return name

    def _free_name(self, log: RemoteHandle, group: str, name: str) -> str:
        """Return a name that no consumer has here: after a restart names differ from the server's."""
        names = (name, *(f"{name}~{number}" for number in range(2, len(self.attached) + 3)))
        return next(one for one in names if (log.number, group, one) not in self.attached)

    def _own_name(self, log: RemoteHandle, group: str, name: str) -> str:
        """Return the name here of a consumer, given its name on the server; "" if it is not ours."""
        ours = (key for key, (_, one) in self.attached.items() if one.name == name)
        return next((own for number, where, own in ours if (number, where) == (log.number, group)), "")

    async def release(
        self, log: RemoteHandle, group: str, consumer: str, *, retire: bool = False, timeout_s: float | None = None
    ) -> None:  # fmt: skip
        """A consumer goes: what it has goes back, what was only fetched ahead as if it had never been."""
        key = (log.number, group, self._own_name(log, group, consumer) if retire else consumer)
        _, attached = self.attached.pop(key, (log, None))
        name, life = consumer, None
        if attached is not None:
            name, life, attached.gone = attached.name, attached.life, True
            for halt in list(attached.halts):
                halt.say()
            if attached.ahead is not None:
                await attached.ahead.close()
        target = log.address(f"/groups/{group}/consumers/{name}", retire="true" if retire else None)
        with suppress(QueueNotFound, TopicNotFound):  # then nobody has anything there
            await self._server.reply(Ask("DELETE", target, life=life), timeout_s=timeout_s)
        for lease, (whose, _) in list(self._hand.items()):
            if (*lease[:2], whose) == key:
                del self._hand[lease]
        self._look_at_hands()

    def sent_elsewhere(self, log: RemoteHandle, group: str) -> None:
        """What a group had in hand is not its any more."""
        for (number, name, _), (_, attached) in self.attached.items():
            if (number, name) == (log.number, group) and attached.ahead is not None:
                attached.ahead.forget()

    # --- settling ---

    async def settle(self, log: RemoteHandle, command: Settle) -> None:
        body = wire.Settle(how=command.how, delay=command.delay, error=command.error, **columns(command))
        try:
            await self._server.reply(Ask("POST", log.address("/settle"), body))
        except LeaseLost:
            self.put_down(log, command)
            if self.parting:
                raise closed() from None
            raise
        self.put_down(log, command)

    async def unseen(self, log: RemoteHandle, receipts: Receipts) -> None:
        await self.settle(log, Settle(*receipts, "unseen"))

    async def hand_over(self, log: RemoteHandle, given: Receipts | HandOver) -> list[int]:
        """Have it recorded that code gets these; the offsets whose lease still holds."""
        ask = Ask("POST", log.address("/hand-over"), wire.HandOver(**columns(given)))
        found = await self._server.ask(ask, wire.HandedOver)
        return [] if found is None else found.offsets

    async def renew(self, log: RemoteHandle, receipts: Receipts, seconds: float) -> None:
        body = wire.Extend(seconds=seconds, **columns(receipts))
        await self._server.reply(Ask("POST", log.address("/extend"), body))

    async def give_back(self, log: RemoteHandle, found: Granted | None) -> None:
        """Whoever was granted messages will never see them."""
        if found is None or not found.number:
            return
        offsets = list(found.offsets)
        with suppress(PenstockError):  # then their leases end
            await self.unseen(log, Receipts(found.group, offsets, [found.number] * len(offsets)))

    # --- what is in hand ---

    def _take(self, log: RemoteHandle, found: Granted, consumer: str | None) -> None:
        if not found.number:
            return
        if len(self._hand) >= HAND_MAX:
            del self._hand[next(iter(self._hand))]
        key = (log.number, found.group, found.number)
        self._hand.setdefault(key, (consumer, set()))[1].update(found.offsets)
        self.empty_handed.clear()

    def put_down(self, log: RemoteHandle, receipts: Receipts | Settle) -> None:
        """They are settled, or lost."""
        for offset, number in zip(receipts.offsets, receipts.numbers, strict=True):
            key = (log.number, receipts.group, number)
            held = self._hand.get(key)
            if held is not None:
                held[1].discard(offset)
                if not held[1]:
                    del self._hand[key]
        self._look_at_hands()

    def _look_at_hands(self) -> None:
        if not self._hand:
            self.empty_handed.set()

    async def part(self, end_s: float) -> None:
        """Everybody goes: give back what is in hand, until then by the loop's time."""
        self.parting = True
        left_s = end_s - asyncio.get_running_loop().time()
        going = [
            asyncio.ensure_future(self.release(log, group, name, timeout_s=left_s))
            for (_, group, name), (log, _) in list(self.attached.items())
        ]
        if self._beating is not None:
            self._beating.cancel()
            going.append(self._beating)
        if not going:
            return
        # Whatever becomes of it: what cannot be given back now comes back by itself.
        _, late = await asyncio.wait(going, timeout=left_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)


@contextmanager
def standing_in(halt: Halt, *among: set[Halt]) -> Iterator[None]:
    """While it lasts, a halt is among those that somebody may say."""
    for one in among:
        one.add(halt)
    try:
        yield
    finally:
        for one in among:
            one.discard(halt)
