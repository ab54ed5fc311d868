"""Asking a server until it answers, as long as that is safe and there is patience.

Theory of operation
-------------------
Three things can happen to a request that is not answered, and they differ in what may be done:

- *Never sent* (nobody listens, no route, no connection free): nothing happened, so it is sent again, whatever it is.
- *Sent, and no answer*: it may have been done. Only what can be done twice without harm (`safe`) is sent again; everything else ends in `ServerUnavailable` with `indeterminate`.
- *Not now* (503): an error changes nothing, so what is safe is sent again when the server says so. A server that is starting or stopping is waited for by everybody: the next one may be up in a second.
  `QueueFull`, `DiskFull` and `QuotaExceeded` are answers, and not waited for: who publishes wants to know.

Between two tries there is a pause that doubles and is partly chance, so that a thousand clients do not come back in the same moment. All tries of a call together take `timeout_s` at the most, beside the time that it waits for messages.

An outage and its end are logged once for all calls of a client, if one of them goes on trying
through it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock import wire
from penstock.client.exchange import Exchange, NoAnswer, NotSent, Reply, Untrusted
from penstock.client.running import Halt
from penstock.clock import SECOND_US
from penstock.errors import BrokerClosed, PenstockError, ServerUnavailable, by_code
from penstock.policy import Backoff
from penstock.wire import Problem

T = TypeVar("T")

#: Between two tries: short while the server may be restarting, longer after `RESTART_S`.
PAUSE: Final = Backoff(initial=0.02, factor=2, maximum=0.4, jitter=0.5)
LATER_PAUSE: Final = Backoff(initial=0.02, factor=2, maximum=2, jitter=0.5)
RESTART_S: Final = 10.0

#: An outage is logged after so long, since a single connection may be cut at any time; and only by
#: a call that goes on trying for longer than the second one.
OUTAGE_S: Final = 0.1
LOGGED_PATIENCE_S: Final = 1.0

#: What of a stranger's answer is shown.
SHOWN_CHARS_MAX: Final = 200

#: What a gateway says when the server behind it did not answer. What became of the request is not known.
GATEWAY: Final = frozenset({502, 503, 504})

#: What a program that is told so should do something about, and not wait.
NOT_WAITED_FOR: Final = frozenset({"queue_full", "disk_full", "quota_exceeded"})

#: What a server says that is stopping, or is not there yet, or has no room for another connection: nothing was done, and it may be over soon.
STOPPING: Final = frozenset({"broker_closed"})
STARTING: Final = frozenset({"starting", "not_ready"})
CROWDED: Final = frozenset({"too_many_connections", "too_many_transfers"})

#: What is no answer of a server that serves.
AWAY: Final = STARTING | STOPPING | {ServerUnavailable.code}

_LOG: Final = logging.getLogger("penstock.client")

_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


class Ask(NamedTuple):
    """A request. `safe`: it may be sent again though it may have been done."""

    method: str
    target: str
    body: Any = None
    safe: bool = True
    wait_s: float = 0
    stopping_is_an_answer: bool = False  # of whoever finds out himself what it means
    life: bytes | None = None  # in which the consumer was attached: names are given anew in the next


class Outage:
    """A time without an answer, logged once for all calls that wait for its end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._since_s: float | None = None
        self._is_logged = False
        self._has_answered = False  # at any time: the end of connect's waiting is not logged

    def go_on(self, now_s: float, why: str, end_s: float) -> None:
        """A try failed at `now_s`; its call tries again until `end_s`."""
        if self._since_s is None:
            self._since_s = now_s
        left_s = end_s - now_s
        if not self._is_logged and now_s - self._since_s >= OUTAGE_S and left_s > LOGGED_PATIENCE_S:
            self._is_logged = True
            _LOG.warning("no answer from %s (%s); trying again for up to %.0f s", self._url, why, left_s)

    def end(self, now_s: float) -> None:
        """The server has answered."""
        if self._is_logged and self._has_answered and self._since_s is not None:
            # At the level of its beginning, so that a log has both or none.
            _LOG.warning("%s answers again after %.1f s", self._url, now_s - self._since_s)
        self._since_s, self._is_logged, self._has_answered = None, False, True


class Server:
    """One server, and what is known of it."""

    def __init__(self, exchange: Exchange, timeout_s: float) -> None:
        self._exchange = exchange
        self._timeout_s = timeout_s
        self.url = exchange.url
        self.closed = Halt()
        self.life: bytes | None = None  # which of its lives the server is in, as far as we have heard
        #: Requests that had no answer: a sign of a new life if the server does not tell it.
        self.failures = 0
        self._outage = Outage(exchange.url)

    async def ask(
        self, ask: Ask, kind: type[T], halt: Halt | None = None, *, timeout_s: float | None = None, patience_s: float | None = None
    ) -> T | None:  # fmt: skip
        """What the server answers; None if it says nothing, or if nobody wants to wait any longer."""
        reply = await self.reply(ask, halt, timeout_s=timeout_s, patience_s=patience_s)
        return None if reply is None or not reply.body else decoded(reply, kind, self.url)

    async def reply(
        self, ask: Ask, halt: Halt | None = None, *, timeout_s: float | None = None, patience_s: float | None = None
    ) -> Reply | None:  # fmt: skip
        """The same, not read yet. `timeout_s` is how long one try may take, `patience_s` how long there are others."""
        loop = asyncio.get_running_loop()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        patience_s = timeout_s if patience_s is None else patience_s
        body = None if ask.body is None else _encode(ask.body)
        tries, unanswered = 0, False
        end_s = None if ask.wait_s else loop.time() + patience_s  # of who waits, from the first failure on
        failed_s: float | None = None
        while True:
            if self.closed.said:
                raise closed()
            if halt is not None and halt.said:
                return None
            tries += 1
            pause_s = pause_after(tries, 0 if failed_s is None else loop.time() - failed_s, random.random())
            is_away = True
            try:
                reply = await self._exchange.send(
                    ask.method,
                    ask.target,
                    body,
                    timeout_s=timeout_s,
                    wait_s=ask.wait_s,
                    halt=halt,
                    life=ask.life,
                )
            except Untrusted as error:
                raise ServerUnavailable(f"the certificate of {self.url} is not trusted: {error}. Name the certificate of its authority (ca), or do not verify it (verify), to try") from None  # fmt: skip
            except NotSent as error:
                why = str(error)
                self.failures += 1
            except NoAnswer as error:
                if halt is not None and halt.said:
                    return None
                why, unanswered = str(error), True
                self.failures += 1
            else:
                self.life = reply.life or self.life
                failure = None if reply.status < 400 else error_of(reply, self.url)
                is_away = failure is not None and failure.code in AWAY
                if not is_away:
                    self._outage.end(loop.time())
                if failure is None:
                    return reply
                again_s = _again_s(ask, reply, failure, pause_s)
                if again_s is None:
                    raise _after(failure, unanswered)
                why, pause_s = str(failure), again_s
                unanswered = unanswered or getattr(failure, "indeterminate", False)
            failed_s = failed_s or loop.time()
            end_s = end_s or failed_s + patience_s
            if (unanswered and not ask.safe) or loop.time() + pause_s > end_s:
                raise self.away(why, tries, patience_s, unanswered, advice(ask.body))
            if is_away:
                self._outage.go_on(loop.time(), why, end_s)
            await self._pause(pause_s, halt)

    async def _pause(self, pause_s: float, halt: Halt | None) -> None:
        over = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        handle = asyncio.get_running_loop().call_later(pause_s, end)
        halts = [one for one in (self.closed, halt) if one is not None]
        for one in halts:
            one.heed(end)
        try:
            await over
        finally:
            handle.cancel()
            for one in halts:
                one.ignore(end)

    def away(
        self, why: str, tries: int, patience_s: float, unanswered: bool, advice: str
    ) -> ServerUnavailable:
        """What is said when no answer came."""
        often = "once" if tries == 1 else f"{tries} times within {patience_s:g} s"
        if unanswered:
            return ServerUnavailable(
                f"no answer from {self.url} ({why}; tried {often}): what became of the request is not known. "
                f"Look whether the server runs (`penstock serve`); {advice}",
                indeterminate=True,
            )
        return ServerUnavailable(
            f"no server answers at {self.url} ({why}; tried {often}): start one with `penstock serve`, or look at the address"
        )

    @property
    def trying_s(self) -> float:
        """How long after its first try a request may come there for the last time."""
        return 2 * self._timeout_s

    async def close(self, timeout_s: float | None = None) -> None:
        await self._exchange.close(timeout_s)


def advice(body: Any) -> str:
    """Return what to do about a request that had no answer."""
    if isinstance(body, wire.Publish):
        return "a publish with a dedup_id can be done again"
    if isinstance(body, wire.Lease):
        return "what was handed out comes again when its lease ends"
    return "look before you do it again"


def pause_after(tries: int, failing_s: float, chance: float) -> float:
    """Return the seconds to wait after so many failed tries, the first of them `failing_s` ago."""
    pause = PAUSE if failing_s < RESTART_S else LATER_PAUSE
    return pause.delay_us(tries, chance) / SECOND_US


def closed() -> BrokerClosed:
    return BrokerClosed("the connection is closed: connect again")


def decoded(reply: Reply, kind: type[T], url: str) -> T:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        found: T = decoder.decode(reply.body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise stranger(reply, url, str(error)) from error
    return found


def error_of(reply: Reply, url: str) -> PenstockError:
    """What an answer that is no success says."""
    if reply.is_problem:
        try:
            problem = msgspec.json.decode(reply.body, type=Problem)
        except (msgspec.MsgspecError, ValueError) as error:
            return stranger(reply, url, str(error))
        found = by_code(problem.code)(problem.detail)
        if type(found) is PenstockError:  # of a server's own, or of a newer one
            found.code = problem.code  # type: ignore[misc]
            found.retryable = problem.retryable
            found.indeterminate = reply.status == 500  # type: ignore[attr-defined]  # a mistake of its own, made at any point
        again_s = problem.retry_after if problem.retry_after is not None else reply.retry_after_s
        if again_s is not None:
            found.retry_after_s = again_s  # type: ignore[attr-defined]
        if problem.indeterminate is not None:
            found.indeterminate = problem.indeterminate  # type: ignore[attr-defined]
        return found
    return stranger(reply, url, "no problem+json")


def stranger(reply: Reply, url: str, why: str) -> ServerUnavailable:
    """An answer that no Penstock server gives: there is something between, or it is something else."""
    shown = reply.body[:SHOWN_CHARS_MAX].decode("utf-8", "replace")
    return ServerUnavailable(
        f"{url} answered {reply.status} as no Penstock server does ({why}; {reply.kind or 'no content type'}): {shown!r}. "
        "Look at the address, and at what stands between",
        indeterminate=reply.status in GATEWAY or reply.status < 300,
    )


def _again_s(ask: Ask, reply: Reply, failure: PenstockError, pause_s: float) -> float | None:
    """After how long the same may be asked again; None if this is the answer."""
    if not reply.is_problem:
        return pause_s if ask.safe and reply.status in GATEWAY else None
    if failure.code in STOPPING:
        return None if ask.stopping_is_an_answer else pause_s
    if failure.code in STARTING:
        return pause_s  # it cannot know how long its start takes
    if failure.code in CROWDED:
        return max(pause_s, reply.retry_after_s or 0.0)
    if failure.code in NOT_WAITED_FOR or reply.status != 503 or not ask.safe:
        return None
    if reply.retry_after_s is None:
        return None
    return max(pause_s, reply.retry_after_s)


def _after(failure: PenstockError, unanswered: bool) -> PenstockError:
    """What is refused after a try that had no answer may be refused because that one was done."""
    if unanswered and failure.args:
        failure.args = (f"{failure.args[0]} (an earlier try had no answer, and may have been done)",)
        failure.unanswered = True  # type: ignore[attr-defined]
    return failure
