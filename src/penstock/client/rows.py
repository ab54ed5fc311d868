"""Between what travels and what the shells work with: messages, deliveries, places and policies.

What is sent is checked here as the embedded broker checks it, so that a wrong argument is the same error, and nothing was sent. What depends on the queue (its limits, its time) is left to the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from penstock import wire
from penstock.broker.port import Granted, Kind, MessageId, Page, Receipts
from penstock.broker.shelf import Run
from penstock.clock import SECOND_US, duration_us, to_datetime, to_us
from penstock.engine.events import Batch
from penstock.errors import BatchTooLarge, InvalidArgument
from penstock.limits import MESSAGE_BYTES_MAX, MESSAGES_MAX
from penstock.message import Message, check
from penstock.policy import Policy

_FIRST_US: Final = to_us(datetime.min.replace(tzinfo=UTC))


class RemoteHandle:
    """A log on a server. All that one client has of a log is one handle, so all of it sees a policy that was altered."""

    __slots__ = ("__weakref__", "kind", "name", "namespace", "number", "outgoing", "path", "policy", "whole")

    def __init__(self, namespace: str, name: str, kind: Kind, number: int, policy: Policy) -> None:
        self.namespace = namespace
        self.name = name
        self.kind = kind
        self.number = number
        self.policy = policy
        self.outgoing: Any = None  # what gathers its publishes
        self.path = f"/v1/namespaces/{namespace}/logs/{name}"
        self.whole = f"/v1/namespaces/{namespace}/{kind}s/{name}"

    def address(self, rest: str = "", **query: object) -> str:
        """Of something in it. The number goes along: a log that was made again under its name is another one."""
        asked = "".join(f"&{name}={value}" for name, value in query.items() if value is not None)
        return f"{self.path}{rest}?log={self.number}{asked}"

    def __repr__(self) -> str:
        return f"RemoteHandle({self.namespace!r}, {self.name!r}, {self.number})"


def policy_of(given: dict[str, Any]) -> Policy:
    """A policy as the server describes it; what a newer one knows besides is left out."""
    known = {name: value for name, value in given.items() if name in Policy.__struct_fields__}
    return Policy.of(**wire.policy_in(known))


# --- out ---


def moment(given: datetime) -> datetime:
    """A time as it travels: in UTC, and not before what can be written."""
    return to_datetime(max(to_us(given), _FIRST_US))


def seconds(us: int | None) -> float | None:
    return None if us is None else us / SECOND_US


def item(given: bytes | Message) -> bytes | wire.Item:
    """A message that is about to be published."""
    if type(given) is bytes:
        return given
    message = check(given if issubclass(type(given), Message) else Message(given), MESSAGE_BYTES_MAX)  # type: ignore[arg-type]
    return wire.Item(
        payload=message.payload,
        headers=message.headers,
        key=message.key,
        priority=message.priority,
        delay=None if message.delay is None else duration_us(message.delay, "delay") / SECOND_US,
        deliver_at=None if message.deliver_at is None else moment(message.deliver_at),
        ttl=None if message.ttl is None else duration_us(message.ttl, "ttl") / SECOND_US,
        expires_at=None if message.expires_at is None else moment(message.expires_at),
        dedup_id=message.dedup_id,
    )


def items(messages: Iterable[bytes | Message]) -> list[bytes | wire.Item]:
    """Messages that are about to be published."""
    kind = type(messages)
    if issubclass(kind, bytes | str | Message) or not issubclass(kind, Iterable):
        raise InvalidArgument(
            f"messages is a {kind.__name__}; give a list of bytes or Message, or use publish for one"
        )
    given = list(messages)
    if len(given) > MESSAGES_MAX:
        raise BatchTooLarge(
            f"a batch of {len(given)} messages is over the bound of {MESSAGES_MAX}: make it several"
        )
    if set(map(type, given)) == {bytes}:
        return cast("list[bytes | wire.Item]", given)
    return [item(one) for one in given]


def size_of(one: bytes | wire.Item) -> int:
    """About what an item takes on its way."""
    if type(one) is bytes:
        return len(one) + 8
    found = cast(wire.Item, one)
    return len(found.payload) + 200 + sum(len(name) + len(value) + 8 for name, value in found.headers.items())


def is_known_again(one: bytes | wire.Item) -> bool:
    """Whether the server notices that it was published before."""
    return type(one) is not bytes and cast(wire.Item, one).dedup_id is not None


def place(given: Any) -> wire.Place:
    if isinstance(given, MessageId):
        return wire.Place(message_id=given.id)
    if isinstance(given, datetime):
        return wire.Place(timestamp=moment(given))
    if isinstance(given, str):
        return wire.Place(at=given)  # type: ignore[arg-type]
    return wire.Place(offset=given)


def columns(receipts: Receipts) -> dict[str, Any]:
    return {"group": receipts.group, "offsets": list(receipts.offsets), "numbers": list(receipts.numbers)}


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
    )
    return Granted(
        group,
        number,
        [row.offset for row in rows],
        [row.attempt for row in rows],
        [Run(batch, 0, len(rows))],
    )


def message(row: wire.MessageRow) -> Message:
    return Message(
        row.payload, headers=row.headers, key=row.key, priority=row.priority, deliver_at=row.deliver_at,
        expires_at=row.expires_at, dedup_id=row.dedup_id, id=row.id, offset=row.offset, timestamp=row.timestamp,
    )  # fmt: skip


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
        first=rows[0].offset,
    )
