"""The options of the source, named as Spark's source for Kafka names them; what is wrong with them is said when a table is loaded.

=====================  ==================================================================================================
option                 meaning
=====================  ==================================================================================================
path                   the directory of a broker; `load("data")` sets it
url                    instead of a directory: a server (`penstock serve`), such as https://queues.example:8080
token                  what the server lets you in by; the environment variable PENSTOCK_TOKEN if it is not given
table                  messages (default), settlements, deliveries
namespace              "default", another one's name, or "*" for all
topic                  queues and topics by name, separated by commas; all of the namespace if neither this nor a pattern is given
topicPattern           a regular expression that the whole name matches
startingOffsets        earliest, latest, or JSON: {"orders": 12, "events": -2} (-2: earliest, -1: latest). A batch reads from the
                       earliest by default, a stream from the latest. Only messages have offsets of their own log
endingOffsets          the same, exclusive; for batches, latest by default
startingTimestamp      messages from this time on: milliseconds since 1970, or ISO 8601
endingTimestamp        messages before this time; for batches
maxOffsetsPerTrigger   rows in one micro-batch, spread over the logs by how much each has; for streams
minPartitions          at least so many partitions, if there is that much to read
failOnDataLoss         true: fail when messages that should be there are not; false: go on, and say so in the log
includeHeaders         true: the column `headers`
columns                only these columns, separated by commas: others are not even read
reader                 the name under which a stream's progress appears in the broker (default: spark.<name or id of the query>)
pushFilters            true: filters on topic, namespace, offset and timestamp leave out what need not be read. For a DataFrame that is used in
                       one place of one query: Spark 4.3 would apply them to every other use of it. Needs the session's setting
                       spark.sql.python.filterPushdown.enabled. The options above do the same, at all times
asOf                   read the journal as it was at this commit (a sequence number): two tables of one moment
=====================  ==================================================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.clock import SECOND_US
from penstock.errors import InvalidArgument, InvalidName
from penstock.limits import OFFSET_MAX
from penstock.names import check_name
from penstock.pipeline import schema
from penstock.pipeline.schema import Table

EARLIEST: Final = -2
LATEST: Final = -1
EVERYWHERE: Final = "*"

_NAMES: Final = (
    "path", "url", "token", "table", "namespace", "topic", "topicPattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "includeHeaders", "columns", "reader", "pushFilters", "asOf",
)  # fmt: skip
_SPELLING: Final = {name.lower(): name for name in _NAMES}

#: Where reading begins or ends: the same for every log, or by name.
Place = int | dict[str, int]


class Server(msgspec.Struct, frozen=True):
    """A server, and what it lets one in by, which is never shown: whatever is printed may end in a log."""

    url: str
    token: str | None

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]


class Options(msgspec.Struct, frozen=True):
    """What a table is to be read of, and how: from the directory `path`, or from `server`, which is given these options as they were `given`."""

    path: str
    table_name: str
    columns: tuple[str, ...]
    namespace: str
    topics: tuple[str, ...] | None
    pattern: str | None
    starting: Place | None
    ending: Place | None
    starting_us: int | None
    ending_us: int | None
    max_rows: int | None
    min_partitions: int
    fail_on_data_loss: bool
    reader: str | None
    as_of: int | None
    push_filters: bool
    server: Server | None = None
    given: dict[str, str] = {}
    #: What the data's place is called where that is not its path: a server does not tell its own.
    called: str | None = None

    @property
    def place(self) -> str:
        """Where the data is, for people to read, and for those who compare two places."""
        return self.called or self.path

    @property
    def table(self) -> Table:
        return schema.TABLES[
            self.table_name
        ]  # by name: options travel between processes, and kinds are told by identity

    def wants(self, namespace: str, name: str) -> bool:
        """Whether a log is meant."""
        if self.namespace not in (EVERYWHERE, namespace):
            return False
        if self.topics is not None:
            return name in self.topics
        return self.pattern is None or re.fullmatch(self.pattern, name) is not None

    def for_batch(self) -> Options:
        """The same, if a batch can be read with it."""
        if self.max_rows is not None:
            raise InvalidArgument(
                "maxOffsetsPerTrigger is for streams; a batch ends by endingOffsets or endingTimestamp"
            )
        if self.reader is not None:
            raise InvalidArgument(
                "reader is for streams, which have a position; a batch reads from and to where it is told"
            )
        if _is_latest(self.starting):
            raise InvalidArgument(
                "startingOffsets=latest is for streams: a batch that begins at the latest offset is empty; give earliest, or offsets"
            )
        return self

    def for_stream(self) -> Options:
        """The same, if a stream can be read with it."""
        for name, given in (
            ("endingOffsets", self.ending), ("endingTimestamp", self.ending_us), ("asOf", self.as_of),
            ("pushFilters", self.push_filters or None),
        ):  # fmt: skip
            if given is not None:
                raise InvalidArgument(
                    f"{name} is for batches; a stream has no end: use trigger(availableNow=True) to read what is there now"
                )
        return self


def parse(given: Mapping[str, str]) -> Options:
    """What the options say. Spark has lower-cased their names."""
    known: dict[str, str] = {}
    for key, value in given.items():
        name = _SPELLING.get(key.lower())
        if name is None:
            raise InvalidArgument(f"the source penstock has no option {key!r}; it has {', '.join(_NAMES)}")
        known[name] = value
    server = server_of(known)
    table = _table(known.get("table", schema.MESSAGES_TABLE.name))
    headers = _flag(known, "includeHeaders", default=False)
    if headers and table is not schema.MESSAGES_TABLE:
        raise InvalidArgument(f"includeHeaders=true: {table.name} have no headers, only messages have")
    columns = schema.chosen(table, known.get("columns"), headers=headers)
    if "columns" in known and headers and schema.HEADERS not in columns:
        raise InvalidArgument(
            "includeHeaders=true, and columns does not name headers: add it, or leave includeHeaders out"
        )
    for one, other in (
        ("topic", "topicPattern"), ("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")
    ):  # fmt: skip
        if one in known and other in known:
            raise InvalidArgument(f"{one} and {other} contradict each other: give one of them")
    if table is not schema.MESSAGES_TABLE:
        _refuse_offsets(known, table)
    found = Options(
        path=_path(known) if server is None else "",
        table_name=table.name,
        columns=columns,
        namespace=_namespace(known.get("namespace", "default")),
        topics=_topics(known.get("topic")),
        pattern=_pattern(known.get("topicPattern")),
        starting=_place(known, "startingOffsets"),
        ending=_place(known, "endingOffsets"),
        starting_us=_time(known, "startingTimestamp"),
        ending_us=_time(known, "endingTimestamp"),
        max_rows=_count(known, "maxOffsetsPerTrigger"),
        min_partitions=_count(known, "minPartitions") or 1,
        fail_on_data_loss=_flag(known, "failOnDataLoss", default=True),
        reader=None if "reader" not in known else check_name(known["reader"], kind="reader name"),
        as_of=_count(known, "asOf"),
        push_filters=_flag(known, "pushFilters", default=False),
        server=server,
        given={name: value for name, value in known.items() if name not in _PLACES},
        called=None if server is None else server.url,
    )
    if server is not None and found.namespace == EVERYWHERE:
        raise InvalidArgument("namespace=*: of a server one namespace is read at a time; name it")
    if isinstance(found.starting, dict) and isinstance(found.ending, dict):
        for name in found.starting.keys() & found.ending.keys():
            if 0 <= found.ending[name] < found.starting[name]:
                raise InvalidArgument(
                    f"startingOffsets of {name} is {found.starting[name]}, behind endingOffsets, which is {found.ending[name]}: exchange them"
                )
    if found.starting_us is not None and found.ending_us is not None and found.starting_us > found.ending_us:
        raise InvalidArgument("startingTimestamp is after endingTimestamp: exchange them")
    return found


def _table(name: str) -> Table:
    if name not in schema.TABLES:
        raise InvalidArgument(f"table={name!r}; give one of {', '.join(schema.TABLES)}")
    return schema.TABLES[name]


def _refuse_offsets(known: Mapping[str, str], table: Table) -> None:
    """What is recorded of messages is ordered by commits, not by the offsets of a log."""
    for name in ("startingOffsets", "endingOffsets"):
        if known.get(name, "earliest").strip().lower() not in ("earliest", "latest"):
            raise InvalidArgument(
                f"{name}={known[name]!r}: {table.name} are read in the order in which they happened, not by offset; "
                "give earliest or latest, a time, or filter by the column `offset`"
            )


#: Where the data is: a server knows that better.
_PLACES: Final = frozenset({"path", "url", "token", "namespace"})

#: Whose value is the token where no option gives one. It is in no query's plan, and on no page of Spark's.
TOKEN: Final = "PENSTOCK_TOKEN"


def server_of(known: Mapping[str, str]) -> Server | None:
    """The server that the options name; None if it is a directory. Their names are in lower case, or as people write them."""
    url, token = known.get("url"), known.get("token")
    if url is None:
        if token is not None:
            raise InvalidArgument(
                "token is for a server, and none is given: add option url, or leave token out"
            )
        return None
    if known.get("path"):
        raise InvalidArgument(
            "path and url contradict each other: give one of them, and call load(), save() or start() without a path for a url"
        )
    parts = urlsplit(url.strip())
    try:
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        sound = False
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(
            "url has a user or a password in it, which would be seen: give option token instead"
        )
    if not sound or parts.query or parts.fragment:
        raise InvalidArgument(f"url={url!r}; give a server's address, such as https://queues.example:8080")
    given = token if token is not None else os.environ.get(TOKEN)
    if given is not None and not re.fullmatch(r"[!-~]{1,16384}", given):
        raise InvalidArgument(
            "token has characters that no token has, or is empty: give what `penstock token` has printed"
        )
    return Server(url.strip().rstrip("/"), given)


def _path(known: Mapping[str, str]) -> str:
    if not known.get("path"):
        raise InvalidArgument(
            'no directory is given: load("DIR"), or option("path", "DIR"); or option("url", "http://…") for a server'
        )
    return local_path(known["path"])


def local_path(given: str) -> str:
    """A directory as people and Spark write it: plainly, or as file:/x and file:///x."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", given):
        return given
    parts = urlsplit(given)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise InvalidArgument(
            f"{given!r} is not on a file system of this machine: a broker's directory is read and written as files, mount it and give its path"
        )
    return unquote(parts.path)


def _namespace(name: str) -> str:
    return name if name == EVERYWHERE else check_name(name, kind="namespace")


def _topics(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(name.strip() for name in given.split(","))
    try:
        return tuple(check_name(name, kind="topic", reserved_ok=True) for name in names)
    except InvalidName as error:
        raise InvalidArgument(
            f"topic={given!r}: {error}; names are separated by commas, and topicPattern takes an expression"
        ) from error


def _pattern(given: str | None) -> str | None:
    if given is not None:
        try:
            re.compile(given)
        except re.error as error:
            raise InvalidArgument(f"topicPattern={given!r} is no regular expression: {error}") from error
    return given


def _place(known: Mapping[str, str], name: str) -> Place | None:
    given = known.get(name)
    if given is None:
        return None
    word = given.strip().lower()
    if word in ("earliest", "latest"):
        if name == "endingOffsets" and word == "earliest":
            raise InvalidArgument("endingOffsets=earliest reads nothing: give latest, or offsets")
        return EARLIEST if word == "earliest" else LATEST
    try:
        return msgspec.json.decode(
            given, type=dict[str, Annotated[int, msgspec.Meta(ge=EARLIEST, le=OFFSET_MAX)]]
        )
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f'{name}={given!r}: give earliest, latest, or offsets by name as JSON, such as {{"orders": 12}} ({error})'
        ) from error


def _time(known: Mapping[str, str], name: str) -> int | None:
    given = known.get(name)
    if given is None:
        return None
    if re.fullmatch(r"[0-9]{1,15}", given.strip()):
        return int(given) * 1000
    try:
        moment = datetime.fromisoformat(given.strip())
    except ValueError as error:
        raise InvalidArgument(
            f"{name}={given!r}: give milliseconds since 1970, or ISO 8601 such as 2026-11-16T08:00:00Z"
        ) from error
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{name}={given!r} has no time zone: add Z for UTC, or an offset such as +01:00"
        )
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * SECOND_US + since.microseconds


def _count(known: Mapping[str, str], name: str) -> int | None:
    given = known.get(name)
    if given is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", given.strip()) or not int(given):
        raise InvalidArgument(f"{name}={given!r}; give a whole number above 0")
    return int(given)


def _flag(known: Mapping[str, str], name: str, *, default: bool) -> bool:
    given = known.get(name)
    if given is None:
        return default
    word = given.strip().lower()
    if word not in ("true", "false"):
        raise InvalidArgument(f"{name}={given!r}; give true or false")
    return word == "true"


def _is_latest(place: Place | None) -> bool:
    return place == LATEST or (isinstance(place, dict) and LATEST in place.values())
