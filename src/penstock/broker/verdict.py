"""What a handler's outcome means for its message, and what a worker has in hand. Pure: no loop, no threads, no clock.

====================================  ==================================================================
the handler                           its message is
====================================  ==================================================================
returns anything else                 acknowledged: it never comes again
raises anything else                  retried later, by the queue's backoff; dead-lettered after its last attempt
raises or returns `Retry(delay=60)`   retried after 60 seconds; dead-lettered after its last attempt
raises or returns `Reject("why")`     dead-lettered now
====================================  ==================================================================
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.deliveries import Leased
from penstock.broker.port import How
from penstock.clock import Duration, duration_us
from penstock.engine.letter import error_text


class Reject(Exception):
    """Raised or returned by a worker's handler: this message will never succeed, so it goes to the dead letters now.

    >>> raise Reject("no such customer")
    Traceback (most recent call last):
    ...
    penstock.broker.verdict.Reject: no such customer
    """

    def __init__(self, error: object = None) -> None:
        super().__init__("" if error is None else error)
        self.error = error


class Retry(Exception):
    """Raised or returned by a worker's handler: not now, try it again after `delay` seconds, or by the queue's backoff.

    The attempt counts: after the queue's `max_attempts` the message goes to the dead letters.

    >>> Retry("the printer is out of paper", delay=60).delay
    60
    """

    def __init__(self, error: object = None, *, delay: Duration | None = None) -> None:
        super().__init__("" if error is None else error)
        if delay is not None:
            duration_us(delay, "delay")
        self.error = error
        self.delay = delay


class Verdict(NamedTuple):
    """How a message is settled."""

    how: How
    delay_us: int | None = None
    error: str | None = None


ACK = Verdict("ack")
GIVE_BACK = Verdict("requeue")


def returned(result: object) -> Verdict:
    """The verdict of a handler that returned.

    >>> returned("whatever").how, returned(Reject("broken")), returned(Retry(delay=2)).delay_us
    ('ack', Verdict(how='reject', delay_us=None, error='broken'), 2000000)
    """
    if result is Reject or result is Retry:  # the class alone: what else could be meant?
        return raised(Reject() if result is Reject else Retry())
    return raised(result) if isinstance(result, Reject | Retry) else ACK


def raised(error: BaseException) -> Verdict:
    """The verdict of a handler that raised.

    >>> raised(ValueError("7"))
    Verdict(how='nack', delay_us=None, error='ValueError: 7')
    """
    if not isinstance(error, Reject | Retry):
        return Verdict("nack", error=error_text(error))
    text = error_text(error.__cause__ if error.error is None else error.error)
    if isinstance(error, Reject):
        return Verdict("reject", error=text)
    return Verdict("nack", None if error.delay is None else duration_us(error.delay, "delay"), text)


class Held:
    """One message in a worker's hands. Its lease is renewed at `renew_us`; None: it is not, or not any more."""

    __slots__ = ("delivery", "lost", "renew_us")

    def __init__(self, delivery: Leased, renew_us: int | None) -> None:
        self.delivery = delivery
        self.renew_us = renew_us
        self.lost = False


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
