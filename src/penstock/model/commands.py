"""What changes something: commands, and the unit that holds some of them, all or none.

A unit is a list of steps, each a target and a command. The target is a log (its handle, or its name
where a queue may be made on first use), or a pattern that names several. The answer to a unit is a
list with an answer for each step; what a command answers stands in its docstring.

Where an HTTP body says the same as a command, it is the command: durations are seconds, places are
as a user names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from penstock.message import Message
from penstock.model.batch import Columns
from penstock.policy import Policy

How = Literal["ack", "nack", "reject", "requeue", "unseen"]
Kind = Literal["queue", "topic"]

DEFAULT_NAMESPACE = "default"
DEFAULT_GROUP = "default"

#: A time that names its zone: one without an offset may mean any.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Handle(msgspec.Struct, eq=False, weakref=True):
    """What a caller holds of a log. The port that made it keeps `policy` and `deleted` current."""

    namespace: str
    name: str
    kind: Kind
    number: int
    policy: Policy
    deleted: bool = False


class Pattern(msgspec.Struct, frozen=True):
    """Every log whose name matches, such as `orders.*`."""

    text: str


Target = Handle | str | Pattern


class Spec(msgspec.Struct):
    """A queue or topic to declare: made if it does not exist, unless `create` says that it must, or must not."""

    namespace: str
    name: str
    policy: dict[str, Any] = {}
    create: bool | None = None
    kind: Kind = "queue"


class DeadLetters(msgspec.Struct):
    """The queue that receives the dead letters of a log, made if it does not exist."""

    log: Handle


class Receipts(NamedTuple):
    """Leased messages of one group: their offsets, and the numbers of the leases that hold them."""

    group: str
    offsets: list[int]
    numbers: list[int]


class Command(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A step of a unit, without its target."""


# --- messages ---


class Publish(Command):
    """Append messages to a log; their ids. To a pattern: the ids by name of log.

    With `each`, what is refused is left out, and has the error in the place of its id.
    `depth_max` bounds how many messages the namespace may hold afterwards.
    """

    payloads: list[bytes]
    columns: Columns | None = None
    each: bool = False
    depth_max: int | None = None


class Cancel(Command):
    """Remove a message that is not due yet; whether it was there."""

    id: int


class Schedule(Command):
    """Have a message recur, in place of the one of that name; whether there was one."""

    name: str
    cron: str
    message: Message
    timezone: str = "UTC"
    missed: str = "once"


class Unschedule(Command):
    """End a recurring message; whether there was one."""

    name: str


# --- leases ---


class Settle(Command):
    """End leases of one group."""

    group: str
    offsets: list[int]
    numbers: list[int]
    how: How = "ack"
    delay: float | None = None
    error: str | None = None


class HandOver(Command):
    """Record that code gets messages that were leased ahead; the offsets whose lease still holds."""

    group: str
    offsets: list[int]
    numbers: list[int]


# --- groups and readers ---


class Place(Command):
    """A place in a log: one of these. `at` is "earliest" or "latest"."""

    at: Literal["earliest", "latest"] | None = None
    offset: int | None = None
    timestamp: Moment | None = None
    message_id: int | None = None


class OpenGroup(Command):
    """Make a group, or open the one of that name if it has the same terms.

    A consumer may come with it (see `Attach`): its name, which is another one if that is taken.
    """

    group: str
    filter: str | None = None
    strategy: str | None = None
    start: Place | None = None  # what is published from now on
    durable: bool = True
    consumer: str | None = None
    silence: float | None = None
    prefetch: int = 1


class CloseGroup(Command):
    """End a group with all that waits in it."""

    group: str


class Seek(Command):
    """Send a whole group to a place."""

    group: str
    place: Place


class Commit(Command):
    """Store how far a reader is; its position. With `holds`, what is behind it is kept for it."""

    reader: str
    offset: int | None = None
    holds: bool | None = None


class Forget(Command):
    """Forget a reader."""

    reader: str


# --- logs as a whole, and metadata ---


class Alter(Command):
    """Change a log's policy from now on."""

    policy: dict[str, Any]


class Delete(Command):
    """Delete a log."""


class Purge(Command):
    """Remove every message that is not leased; how many."""


class Redrive(Command):
    """Move some dead letters back to where they failed, or to another queue; see `Redriven`.

    `where` is a filter; `span` holds the offsets to look at, all at first.
    """

    count: int = 100
    where: str | None = None
    to: str | None = None
    span: tuple[int, int] | None = None


class Redriven(msgspec.Struct):
    """How many dead letters were moved, and the offsets that were not looked at yet."""

    moved: int
    left: tuple[int, int]


class PutMetadata(Command):
    """Store opaque bytes of a front under a key of the namespace; `None` removes them. It has no target."""

    key: str
    value: bytes | None


Step = tuple[Target | None, Command]


class Unit(msgspec.Struct):
    """Commands that hold together or not at all.

    With `wait=False` the answer does not wait for the disk: the unit is durable with the next frame,
    or within 2 ms.
    """

    namespace: str
    steps: Sequence[Step]
    wait: bool = True


# --- consumers ---


class Attach(msgspec.Struct):
    """A consumer comes; the name it goes by, which is another one if that is taken.

    One that is not heard of for `silence` seconds is thought dead. `prefetch` is how many messages
    may be sent ahead to it, where there is a way to be sent on.
    """

    consumer: str
    silence: float | None = None
    prefetch: int = 1


class Heartbeat(msgspec.Struct):
    """A consumer is alive; False if it was thought dead, and what it had was given to others."""

    consumer: str


class Release(msgspec.Struct):
    """A consumer goes, or is taken out (`retire`): what it has goes back to its place."""

    consumer: str
    retire: bool = False


Presence = Attach | Heartbeat | Release
