"""What a handler's outcome means for its message, and what a worker has in hand. Pure: no loop, no threads, no clock.

====================================  ==================================================================
the handler                           its message is
====================================  ==================================================================
returns anything else                 acknowledged: it never comes again
raises anything else                  retried later, by the queue's backoff; dead-lettered after its last attempt
returns a promise of work             the same: a generator has done nothing yet, nor has what is never awaited
raises or returns `Retry(delay=60)`   retried after 60 seconds; dead-lettered after its last attempt
raises or returns `Reject("why")`     dead-lettered now
====================================  ==================================================================
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.argument import error_text
from penstock.broker.deliveries import Leased
from penstock.clock import SECOND_US, Duration, duration_us
from penstock.model.commands import How


class Reject(Exception):
    """Raised or returned by a worker's handler: this message will never succeed, so it goes to the dead letters now.

    >>> raise Reject("no such customer")
    Traceback (most recent call last):
    ...
    penstock.broker.verdict.Reject: no such customer
    """

    error: object = None

    def __init__(self, error: object = None) -> None:
        super().__init__("" if error is None else error)
        self.error = error


class Retry(Exception):
    """Raised or returned by a worker's handler: not now, try it again after `delay` seconds, or by the queue's backoff.

    The attempt counts: after the queue's `max_attempts` the message goes to the dead letters.

    >>> Retry("the printer is out of paper", delay=60).delay
    60
    """

    error: object = None
    delay: Duration | None = None

    def __init__(self, error: object = None, *, delay: Duration | None = None) -> None:
        super().__init__("" if error is None else error)
        if delay is not None:
            duration_us(delay, "delay")
        self.error = error
        self.delay = delay


class Unfinished(Exception):
    """A handler returned a promise of work: nothing has been done."""


class Ending(NamedTuple):
    """How a call of the handler ended: what it returned, or what it raised.

    It is a value because not every error can be raised again where it is waited for: a future takes no `StopIteration`.
    """

    result: object = None
    error: BaseException | None = None


def ending_of(handler: Callable[[Any], object], delivery: object) -> Ending:
    """Call it."""
    try:
        return Ending(handler(delivery))
    except BaseException as error:  # whatever it raises, it is a message that failed
        return Ending(error=error)


def is_awaitable(result: object) -> bool:
    """Told by its type: an object that stands for another, which is not there, fails when it is asked for its class."""
    return issubclass(type(result), Awaitable)


def finished(result: object) -> object:
    """What a handler returned, unless it is only the promise of work.

    >>> finished(letter for letter in "abc")
    Traceback (most recent call last):
    ...
    penstock.broker.verdict.Unfinished: the handler returned a generator, and nothing was done: take the `yield` out of it
    """
    kind = type(result)
    if issubclass(kind, Generator | AsyncGenerator):
        advice = "take the `yield` out of it"
    elif issubclass(kind, Awaitable):
        advice = "make the handler a coroutine function, or have it return when the work is done"
    else:
        return result
    if issubclass(kind, Generator | Coroutine):
        with suppress(Exception):  # it is thrown away, whatever it says to that
            result.close()  # type: ignore[attr-defined]  # and nobody is warned that it was never awaited
    raise Unfinished(f"the handler returned a {kind.__name__}, and nothing was done: {advice}")


class Verdict(NamedTuple):
    """How a message is settled."""

    how: How
    delay: float | None = None  # seconds
    error: str | None = None


ACK = Verdict("ack")
GIVE_BACK = Verdict("unseen")


def returned(result: object) -> Verdict:
    """The verdict of a handler that returned.

    >>> returned("whatever").how, returned(Reject("broken")), returned(Retry(delay=2)).delay
    ('ack', Verdict(how='reject', delay=None, error='broken'), 2.0)
    """
    if result is Reject or result is Retry:  # the class alone: what else could be meant?
        return raised(Reject() if result is Reject else Retry())
    return raised(result) if issubclass(type(result), Reject | Retry) else ACK  # type: ignore[arg-type]


def raised(error: BaseException) -> Verdict:
    """The verdict of a handler that raised.

    >>> raised(ValueError("7"))
    Verdict(how='nack', delay=None, error='ValueError: 7')
    """
    if not isinstance(error, Reject | Retry):
        return Verdict("nack", error=error_text(error))
    text = error_text(error.__cause__ if error.error is None else error.error)
    if isinstance(error, Reject):
        return Verdict("reject", error=text)
    return Verdict(
        "nack", None if error.delay is None else duration_us(error.delay, "delay") / SECOND_US, text
    )


class Held:
    """One message in a worker's hands. Its lease is renewed at `renew_us`; None: it is not, or not any more."""

    __slots__ = ("delivery", "is_ahead", "lost", "renew_us")

    def __init__(self, delivery: Leased, renew_us: int | None) -> None:
        self.delivery = delivery
        self.renew_us = renew_us
        self.lost = False
        self.is_ahead = False  # the broker does not know yet that its handler begins


class Holding:
    """Everything that a worker has in hand."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, delivery: Leased, renew_us: int | None) -> Held:
        held = Held(delivery, renew_us)
        # Not by offset: one that was lost may be in hand twice, and the first of them is still being worked on.
        self._held[id(held)] = held
        return held

    def put_down(self, held: Held) -> None:
        self._held.pop(id(held), None)

    def next_us(self) -> int | None:
        """When the first lease must be renewed."""
        return min((h.renew_us for h in self._held.values() if h.renew_us is not None), default=None)

    def due(self, now_us: int) -> list[Held]:
        """Those whose leases must be renewed now."""
        return [h for h in self._held.values() if h.renew_us is not None and h.renew_us <= now_us]
