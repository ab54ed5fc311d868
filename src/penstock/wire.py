"""What travels between a server and its clients: the bodies of requests and answers, the same in JSON and in msgpack.

Theory of operation
-------------------
A client is a broker's port over HTTP (see `broker.port`), so the wire is the port, written down: a request for each of its calls, at an address that names what it is about. Nothing here does
anything; the server's routes and the client read and write these structs, and neither knows the other.

- Where a body says what a command or an answer of the port says, it is that struct (`Alter`, `Place`, `Redrive`, statistics).
- Bytes (payloads) are base64 in JSON, as the founding document has them, and bytes in msgpack. Times are RFC 3339 with an offset in JSON; durations are seconds.
- An id has 63 bits, more than a number of JavaScript keeps: in JSON whatever has an `id` has an `id_str` too.
- A log is named in the address. Whoever holds a handle sends its number along (`?log=7`): then a queue that was deleted and made again under its name is not taken for the old one.
- What is left out has its default; what is not known is refused, so that a misspelt field is noticed.

To change it: fields may be added with a default. What exists keeps its name and meaning for the life of `/v1`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from penstock.errors import InvalidArgument
from penstock.limits import HEADERS_COUNT_MAX, OFFSET_MAX, PRIORITY_DEFAULT
from penstock.model.commands import Alter, How, Kind, Moment, Place, Redrive, Redriven
from penstock.model.stats import Step as TraceStep
from penstock.policy import Backoff, Policy

__all__ = ["Alter", "Kind", "Moment", "Place", "Redrive", "Redriven"]

#: The media types of a body, and what they are called in `Accept`.
JSON = "application/json"
MSGPACK = "application/msgpack"
ARROW = "application/vnd.apache.arrow.stream"
PROBLEM = "application/problem+json"
EVENTS = "text/event-stream"

#: The headers of a message that is to be published: more of them are refused while they are read.
Headers = Annotated[dict[str, str], msgspec.Meta(max_length=HEADERS_COUNT_MAX)]

#: After so many seconds without a word a consumer is thought dead, if it named no other silence: a server outlives its clients, and what they had must not be theirs for ever.
SILENCE_S = 60.0


class Body(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request."""


class Reply(msgspec.Struct, kw_only=True):
    """An answer. A client ignores what it does not know: a newer server may say more."""


# --- logs ---


class Declare(Body):
    """PUT /v1/namespaces/{namespace}/queues/{name}, or topics: made if it does not exist, unless `create` says that it must, or must not."""

    policy: dict[str, Any] = {}
    create: bool | None = None


class LogInfo(Reply):
    """A queue or a topic: what a handle knows. Its policy as `Policy` has it, with null for what is not limited."""

    namespace: str
    name: str
    kind: Kind
    number: int
    policy: dict[str, Any]


class Names(Reply):
    """Queues, topics or namespaces."""

    names: list[str]


class Count(Reply):
    """How many were removed, or moved."""

    count: int


# --- messages ---


# The garbage collector leaves items alone (`gc=False`): they hold nothing that could hold them, and a
# batch of half a million would make it look at all of them again and again.
class Item(Body, gc=False):
    """A message to be published. In the place of one, its payload alone may stand."""

    payload: bytes
    headers: Headers = {}
    key: str | None = None
    priority: int = PRIORITY_DEFAULT
    delay: float | None = None
    deliver_at: Moment | None = None
    ttl: float | None = None
    expires_at: Moment | None = None
    dedup_id: str | None = None


class Publish(Body):
    """POST …/logs/{name}/messages: all or none."""

    messages: list[bytes | Item]


class Ids(Reply):
    """Of what was published, in order; where a dedup_id was repeated, that of the first."""

    ids: list[int]
    ids_str: list[str] | None = None  # in JSON


class Route(Body):
    """POST /v1/namespaces/{namespace}/route: to every queue and topic whose name matches, all or none."""

    pattern: str
    message: bytes | Item


class Routed(Reply):
    """The ids by name."""

    ids: dict[str, int]


class MessageRow(Reply, omit_defaults=True):
    """A stored message."""

    id: int
    offset: int
    timestamp: datetime
    payload: bytes
    id_str: str | None = None
    headers: dict[str, str] = {}
    key: str | None = None
    priority: int = PRIORITY_DEFAULT
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    dedup_id: str | None = None
    properties: bytes | None = None  # opaque, of the front that published it


class Messages(Reply):
    """GET …/logs/{name}/peek?count: what would be handed out next."""

    messages: list[MessageRow]


class PageReply(Reply):
    """GET …/logs/{name}/messages?offset&count&wait: what is stored from an offset on; where to go on; how many were dropped before it."""

    messages: list[MessageRow]
    next: int
    missed: int


# --- receiving and settling ---


class Lease(Body):
    """POST …/logs/{name}/groups/{group}/lease: messages, as soon as there is one, or nothing after `wait` seconds (at most what the server allows).

    The last `ahead` of `count` are only sent ahead: the client reports by `hand-over` when its code gets them.
    """

    count: int = 1
    wait: float = 0
    consumer: str | None = None
    auto_ack: bool = False
    ahead: int = 0


class DeliveryRow(Reply, omit_defaults=True):
    """A message that was handed out."""

    id: int
    offset: int
    timestamp: datetime
    payload: bytes
    attempt: int
    receipt: str
    id_str: str | None = None
    headers: dict[str, str] = {}
    key: str | None = None
    priority: int = PRIORITY_DEFAULT
    properties: bytes | None = None


class Leases(Reply):
    """What was handed out, and the number of the lease that holds all of it (0: settled already)."""

    group: str
    number: int
    deliveries: list[DeliveryRow]


class Held(Body):
    """Which leases are meant: either receipts, or what they say, in columns: group, offsets, numbers."""

    receipts: list[str] = []
    group: str | None = None
    offsets: list[int] = []
    numbers: list[int] = []


class Settle(Held):
    """POST …/logs/{name}/settle: all or none."""

    how: How = "ack"
    delay: float | None = None
    error: str | None = None


class Extend(Held, kw_only=True):
    """POST …/logs/{name}/extend: keep them for so many seconds from now."""

    seconds: float


class HandOver(Held):
    """POST …/logs/{name}/hand-over: the client's code gets these now, which were sent ahead. All are of one group."""


class HandedOver(Reply):
    """The offsets whose lease still holds; the client drops the others."""

    offsets: list[int]


# --- groups, consumers, readers ---


class OpenGroup(Body):
    """PUT …/logs/{name}/groups/{group}: made if it does not exist; what is given must be what is stored. A consumer may come with it."""

    filter: str | None = None
    strategy: str | None = None
    start: Place | None = None  # what is published from now on
    durable: bool = True
    consumer: str | None = None
    silence: float | None = None  # seconds after which a consumer that is not heard of is thought dead: 60


class Attach(Body):
    """POST …/logs/{name}/groups/{group}/consumers"""

    consumer: str
    silence: float | None = None


class Consumer(Reply):
    """The name that a consumer goes by; null if none came."""

    consumer: str | None


class Alive(Reply):
    """POST …/consumers/{consumer}/heartbeat: false if it was thought dead, and what it had was given to others."""

    alive: bool


class Lag(Reply):
    """GET …/groups/{group}/lag"""

    lag: int


class Offset(Reply):
    """POST …/logs/{name}/locate with a `Place`; GET and PUT …/readers/{reader}: null if nothing is committed."""

    offset: int | None


class Commit(Body):
    """PUT …/logs/{name}/readers/{reader}: a position that survives; `holds`: keep what is behind it until it has come by."""

    offset: int | None = None
    holds: bool | None = None


# --- the rest ---


class Operation(Settle, kw_only=True):
    """A step of a transaction: messages for a log (made on first use), or the end of leases of a log."""

    log: str
    number: int | None = None
    messages: list[bytes | Item] = []


class Transact(Body):
    """POST /v1/namespaces/{namespace}/transactions: all of it or nothing."""

    steps: list[Operation]


class Schedule(Body):
    """PUT …/logs/{name}/schedules/{schedule}: a message that recurs."""

    cron: str
    message: bytes | Item
    timezone: str = "UTC"
    missed: str = "once"


class Was(Reply):
    """Whether there was something of that name, or id."""

    was: bool


class Timeline(Reply):
    """GET /v1/namespaces/{namespace}/messages/{id}/trace"""

    steps: list[TraceStep]


class Problem(Reply, omit_defaults=True):
    """What went wrong (RFC 9457): `code` is that of `penstock.errors`, `retryable` whether the same request may succeed later."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    instance: str | None = None  # the request's id
    retry_after: float | None = None
    indeterminate: bool | None = None


# --- tables for Spark: see `pipeline.exchange` for what is trusted of it ---


class Narrowing(msgspec.Struct, forbid_unknown_fields=True):
    """What filters leave to be read: logs by the columns that name them, offsets from and before, and times of which segments may hold something."""

    names: dict[str, set[str]] = {}
    first: int = 0
    behind: int = OFFSET_MAX
    oldest_us: int | None = None
    newest_us: int | None = None


class Noted(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream has looked at already, so that it is looked at, and told, once: the epoch that its offsets were compared with, logs that are gone, commits that are."""

    epoch: int | None = None
    gone: set[tuple[str, int]] = set()
    cleaned: tuple[int, int] | None = None


class StreamPlace(msgspec.Struct, forbid_unknown_fields=True):
    """Where a stream of a table is: what a checkpoint holds."""

    penstock: int
    path: str
    table: str
    reader: str | None = None
    logs: dict[str, tuple[int, int, int]] | None = None
    sequence: int | None = None
    epoch: int | None = None
    cleaned: dict[str, int] = {}  # of each log, how many messages behind its offset were cleaned by then

    def offset(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "penstock": self.penstock,
            "path": self.path,
            "table": self.table,
            "reader": self.reader,
        }
        if self.logs is not None:
            found["logs"] = {name: list(place) for name, place in self.logs.items()}
        if self.sequence is not None:
            found["sequence"], found["epoch"] = self.sequence, self.epoch or 0
        if self.cleaned:
            found["cleaned"] = self.cleaned
        return found


class Portion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one task reads: commits by sequence number, and of each log, by number, the offsets from and before."""

    first: int
    stop: int
    logs: dict[int, tuple[int, int]]


class Asking(Body):
    """What every question about a table has: the options as they were given, and which logs are meant if not all of the namespace are."""

    options: dict[str, str] = {}
    topics: list[str] | None = None


class SparkCheck(Asking):
    """POST …/spark/check: is everything right with the options?"""


class SparkPlan(Asking):
    """POST …/spark/plan: what is to be read of a table, or, between two offsets, of a stream."""

    narrowing: Narrowing | None = None
    start: StreamPlace | None = None
    end: StreamPlace | None = None


class SparkOffsets(Asking, kw_only=True):
    """POST …/spark/offsets: where a stream begins, where a batch of it ends, or up to where everything is synced."""

    what: Literal["initial", "latest", "end"]
    start: StreamPlace | None = None
    rows: int | None = None
    final: StreamPlace | None = None
    noted: Noted | None = None


class SparkRead(Asking, kw_only=True):
    """POST …/spark/read: the rows of a portion, as Arrow's IPC stream."""

    portion: Portion


class SparkProgress(Body):
    """POST …/spark/progress: how far a stream is, under the name of a reader; of each log its number and the next offset."""

    reader: str
    logs: dict[str, tuple[int, int]]


class SpoolBatch(Body):
    """POST …/spool/batches: publish what was staged, once, however often this is said. POST …/spool/abort: it is not wanted."""

    producer: str
    batch: int
    files: list[str]
    wait: float = 0.0


class SpoolForget(Body):
    """POST …/spool/forget: the answer about a producer of one batch has arrived, and nobody will ask again."""

    producer: str


class Checked(Reply):
    """Nothing is wrong; what was said about it beside that."""

    warnings: list[str] = []


class SparkPlanned(Reply):
    """Portions, at least one."""

    portions: list[Portion]
    warnings: list[str] = []


class SparkFound(Reply):
    """An offset, the end that was seen with it, and what has been looked at."""

    offset: dict[str, Any]
    end: dict[str, Any]
    noted: Noted
    warnings: list[str] = []


class SentRows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """PUT …/spool/staged/{name}, whose body is a list of these in msgpack: messages for one topic.

    The section is in the journal's layout (see `pipeline.parts`).
    """

    topic: str
    section: bytes


class StagedShare(Reply):
    """What was staged for a topic."""

    topic: str
    rows: int
    bytes: int


class Staged(Reply):
    """PUT …/spool/staged/{name}: what the server calls it, and what is in it."""

    name: str
    shares: list[StagedShare] = []


class Taken(Reply):
    """Whether a batch was published within that time. If not, it is on the server's disk, and will be."""

    taken: bool


# --- policies ---


def policy_out(policy: Policy) -> dict[str, Any]:
    """A policy as it travels: plain values, a backoff as an object."""
    found: dict[str, Any] = msgspec.to_builtins(policy)
    return found


def policy_in(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of a policy as the broker takes them."""
    backoff = given.get("backoff")
    if backoff is None:
        return given
    if not isinstance(backoff, dict):
        raise InvalidArgument(
            'backoff is not an object; give one such as {"initial": 1, "factor": 2}, or null'
        )
    unknown = [name for name in backoff if name not in Backoff.__struct_fields__]
    if unknown:
        raise InvalidArgument(f"backoff has no {unknown[0]!r}; it has {', '.join(Backoff.__struct_fields__)}")
    try:
        return {**given, "backoff": msgspec.convert(backoff, Backoff)}
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"backoff is wrong: {error}") from None
