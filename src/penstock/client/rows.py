"""Between what travels and what the shells work with: messages, deliveries, places and policies.

What is sent is checked here as the embedded broker checks it, so that a wrong argument is the same error, and nothing was sent. What depends on the queue (its limits, its time) is left to the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final, cast

from penstock import wire
from penstock.broker.port import Granted, Page
from penstock.clock import SECOND_US, to_datetime, to_us
from penstock.errors import Unsupported
from penstock.model.batch import Batch, Run
from penstock.model.commands import Handle, HandOver, Place, Publish, Receipts, Settle
from penstock.policy import Policy

_FIRST_US: Final = to_us(datetime.min.replace(tzinfo=UTC))


class RemoteHandle(Handle, eq=False, weakref=True):
    """A log on a server. All that one client has of a log is one handle, so all of it sees a policy that was altered."""

    outgoing: Any = None  # what gathers its publishes

    @property
    def path(self) -> str:
        """The address of what is in it."""
        return f"/v1/namespaces/{self.namespace}/logs/{self.name}"

    @property
    def whole(self) -> str:
        """The address of the log itself."""
        return f"/v1/namespaces/{self.namespace}/{self.kind}s/{self.name}"

    def address(self, rest: str = "", **query: object) -> str:
        """Of something in it. The number goes along: a log that was made again under its name is another one."""
        asked = "".join(f"&{name}={value}" for name, value in query.items() if value is not None)
        return f"{self.path}{rest}?log={self.number}{asked}"


def policy_of(given: dict[str, Any]) -> Policy:
    """A policy as the server describes it; what a newer one knows besides is left out."""
    known = {name: value for name, value in given.items() if name in Policy.__struct_fields__}
    return Policy.of(**wire.policy_in(known))


# --- out ---


def moment(given: datetime) -> datetime:
    """A time as it travels: in UTC, and not before what can be written."""
    return to_datetime(max(to_us(given), _FIRST_US))


def items(command: Publish) -> list[bytes | wire.Item]:
    """Messages that are about to be published, as they travel."""
    columns = command.columns
    if (
        command.each
        or command.depth_max is not None
        or (columns is not None and columns.properties is not None)
    ):
        raise Unsupported(
            "each, depth_max and properties do not travel over HTTP: publish in the process of the broker"
        )
    if columns is None:
        return cast("list[bytes | wire.Item]", command.payloads)
    names = ("headers", "key", "priority", "delay_us", "deliver_at", "ttl_us", "expires_at", "dedup_id")
    values = (getattr(columns, name) for name in names)
    each = [value if isinstance(value, list) else repeat(value) for value in values]
    return [_item(payload, *row) for payload, *row in zip(command.payloads, *each, strict=False)]


def _item(
    payload: bytes, headers: dict[str, str] | None, key: str | None, priority: int, delay_us: int | None,
    deliver_at: int | None, ttl_us: int | None, expires_at: int | None, dedup_id: str | None,
) -> wire.Item:  # fmt: skip
    return wire.Item(
        payload=payload, headers=headers or {}, key=key, priority=priority, delay=_seconds(delay_us),
        deliver_at=_moment(deliver_at), ttl=_seconds(ttl_us), expires_at=_moment(expires_at), dedup_id=dedup_id,
    )  # fmt: skip


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / SECOND_US


def _moment(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(max(us, _FIRST_US))


def size_of(one: bytes | wire.Item) -> int:
    """About what an item takes on its way."""
    if type(one) is bytes:
        return len(one) + 8
    found = cast(wire.Item, one)
    return len(found.payload) + 200 + sum(len(name) + len(value) + 8 for name, value in found.headers.items())


def is_known_again(one: bytes | wire.Item) -> bool:
    """Whether the server notices that it was published before."""
    return type(one) is not bytes and cast(wire.Item, one).dedup_id is not None


def place(given: Place) -> Place:
    """A place as it travels: its time in UTC."""
    return given if given.timestamp is None else Place(timestamp=moment(given.timestamp))


def columns(held: Receipts | Settle | HandOver) -> dict[str, Any]:
    """Which leases are meant, as it travels."""
    return {"group": held.group, "offsets": list(held.offsets), "numbers": list(held.numbers)}


# --- in ---


def granted(rows: Sequence[wire.DeliveryRow], group: str, number: int) -> Granted | None:
    """What was handed out."""
    if not rows:
        return None
    batch = Batch(
        payloads=[row.payload for row in rows],
        ids=[row.id for row in rows],
        timestamp_us=[to_us(row.timestamp) for row in rows],
        priority=[row.priority for row in rows],
        key=[row.key for row in rows],
        headers=[row.headers or None for row in rows],
        properties=[row.properties for row in rows],
    )
    return Granted(
        group,
        number,
        [row.offset for row in rows],
        [row.attempt for row in rows],
        [Run(batch, 0, len(rows))],
    )


def page(reply: wire.PageReply) -> Page:
    """What was read, in runs of offsets without a gap."""
    runs: list[Run] = []
    begin, rows = 0, reply.messages
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].offset != rows[end - 1].offset + 1:
            runs.append(Run(_stored(rows[begin:end]), 0, end - begin))
            begin = end
    return Page(runs, reply.next, reply.missed)


def _stored(rows: list[wire.MessageRow]) -> Batch:
    return Batch(
        payloads=[row.payload for row in rows],
        ids=[row.id for row in rows],
        timestamp_us=[to_us(row.timestamp) for row in rows],
        priority=[row.priority for row in rows],
        deliver_at=[None if row.deliver_at is None else to_us(row.deliver_at) for row in rows],
        expires_at=[None if row.expires_at is None else to_us(row.expires_at) for row in rows],
        key=[row.key for row in rows],
        dedup_id=[row.dedup_id for row in rows],
        headers=[row.headers or None for row in rows],
        properties=[row.properties for row in rows],
        first=rows[0].offset,
    )
