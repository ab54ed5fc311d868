"""What a receive gives: messages that are leased, as objects.

A delivery is a plain record of what was stored and which lease holds it, made in C from columns, a thousand at a time; what can be done
with it is added by the shell that hands it out (`sync.Delivery`, `aio.Delivery`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice, repeat
from typing import Any, TypeVar

import msgspec

from penstock import argument
from penstock.broker.port import Granted
from penstock.clock import to_datetime
from penstock.errors import InvalidArgument, LeaseLost
from penstock.model.commands import Receipts


class Leased(msgspec.Struct, gc=False, weakref=False):
    """A message and the lease that holds it."""

    _queue: Any
    _group: str
    _number: int
    offset: int
    attempt: int
    payload: bytes
    id: int
    _timestamp_us: int
    priority: int
    key: str | None
    _headers: dict[str, str] | None
    _properties: bytes | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What the publisher said about it; a copy, which may be changed."""
        return dict(self._headers) if self._headers else {}

    @property
    def timestamp(self) -> datetime:
        """When it was published."""
        return to_datetime(self._timestamp_us)

    @property
    def redelivered(self) -> bool:
        """Whether it was handed out before."""
        return self.attempt > 1

    @property
    def receipt(self) -> str:
        """What settles it: valid as long as this very lease is."""
        return f"{self._group}:{self.offset}:{self._number:x}"

    def _receipts(self) -> Receipts:
        return Receipts(self._group, [self.offset], [self._number])

    def __repr__(self) -> str:
        return f"Delivery(id={self.id}, offset={self.offset}, attempt={self.attempt}, payload={self.payload[:40]!r})"


D = TypeVar("D", bound=Leased)


def deliveries(kind: Callable[..., D], queue: Any, granted: Granted | None) -> list[D]:
    """The messages that were handed out."""
    if granted is None:
        return []
    if len(granted.offsets) == 1:
        return [_one(kind, queue, granted)]
    made: list[D] = []
    offsets = iter(granted.offsets)
    attempts = iter(granted.attempts) if isinstance(granted.attempts, list) else repeat(granted.attempts)
    for batch, start, stop in granted.runs:
        columns = (
            _each(column, start, stop)
            for column in (
                batch.payloads,
                batch.ids,
                batch.timestamp_us,
                batch.priority,
                batch.key,
                batch.headers,
                batch.properties,
            )
        )
        # The offsets come first among those that end: `map` stops there, and takes nothing from the others.
        these = islice(offsets, stop - start)
        made += map(
            kind, repeat(queue), repeat(granted.group), repeat(granted.number), these, attempts, *columns
        )
    return made


def _one(kind: Callable[..., D], queue: Any, granted: Granted) -> D:
    (offset,), attempts, ((batch, row, _),) = granted.offsets, granted.attempts, granted.runs
    timestamp_us, priority, key, headers = batch.timestamp_us, batch.priority, batch.key, batch.headers
    return kind(
        queue, granted.group, granted.number, offset, attempts[0] if type(attempts) is list else attempts,
        batch.payloads[row], batch.ids[row],
        timestamp_us[row] if type(timestamp_us) is list else timestamp_us,
        priority[row] if type(priority) is list else priority,
        None if key is None else key[row],
        None if headers is None else headers[row],
        None if batch.properties is None else batch.properties[row],
    )  # fmt: skip


def _each(column: Any, start: int, stop: int) -> Iterable[Any]:
    if isinstance(column, list | range):
        return column if stop - start == len(column) else column[start:stop]
    return repeat(column, stop - start)


def receipts(found: Iterable[Leased], queue: Any) -> list[Receipts]:
    """What acknowledges deliveries, by group. They must be of this queue; those that were settled when they were handed out are left out."""
    if not issubclass(type(found), Iterable) or issubclass(type(found), str | bytes):
        raise InvalidArgument(f"{argument.quoted(found)} is not a list of deliveries")
    listed = found if type(found) is list else list(found)
    for kind in set(map(type, listed)):
        if not issubclass(kind, Leased):
            raise InvalidArgument(f"a {kind.__name__} is not a delivery of the queue {queue.name!r}")
    for other in {one._queue for one in listed}:
        _require_same(other, queue)
    groups = {one._group for one in listed}
    numbers = [one._number for one in listed]
    if len(groups) == 1 and 0 not in numbers:  # nearly always
        return [Receipts(groups.pop(), [one.offset for one in listed], numbers)]
    listed = [one for one in listed if one._number]
    return [_of_group(group, listed) for group in dict.fromkeys([one._group for one in listed])]


def _require_same(other: Any, queue: Any) -> None:
    if other is queue:
        return
    if other.name != queue.name:
        raise InvalidArgument(f"a delivery of the queue {other.name!r} is none of {queue.name!r}")
    if other._port is not queue._port:
        raise LeaseLost(
            f"a delivery of {queue.name!r} was handed out by another broker, or by this one before it was opened again: drop the result"
        )


def _of_group(group: str, listed: list[Leased]) -> Receipts:
    mine = [one for one in listed if one._group == group]
    return Receipts(group, [one.offset for one in mine], [one._number for one in mine])
