"""The tables that Spark sees: their columns, as Spark's types and as Arrow's, which must agree to the letter.

`messages` is what was published. `settlements` is how messages left a group, or went round again; `deliveries` is who was handed what: together
they are all that happened. A group of null means everybody: the message was removed for all groups at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from penstock.engine.events import Outcome
from penstock.errors import InvalidArgument
from penstock.journal.kinds import LEASES, MESSAGES, SETTLEMENTS, Kind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())

#: Stored numbers of outcomes as the table says them.
OUTCOMES: Final = {int(outcome): outcome.name.lower() for outcome in Outcome}

#: Only there when it is asked for: most readers have no use for it, and a map is the most expensive column.
HEADERS: Final = "headers"

#: Only there when it is named: opaque bytes that a front stored with a message.
PROPERTIES: Final = "properties"

#: Looked up among the messages, because settlements and leases are recorded by offset.
ID: Final = "id"


class Table(NamedTuple):
    """A table: the rows of the journal that it is made of, which column names their log, and all its columns."""

    name: str
    kind: Kind
    log: str
    columns: dict[str, Any]

    def may_lack(self, column: str) -> bool:
        """Whether a row may have no value in a column. Where Spark knows that all have one, it does not look."""
        return column not in ("namespace", self.log, "sequence") and column not in self.kind.required


MESSAGES_TABLE: Final = Table("messages", MESSAGES, "topic", {
    "namespace": pa.string(), "topic": pa.string(), "offset": pa.int64(), "id": pa.int64(), "timestamp": TIME,
    "key": pa.string(), "payload": pa.binary(), HEADERS: _MAP, "priority": pa.int16(), "deliver_at": TIME,
    "expires_at": TIME, "target_group": pa.string(), "dedup_id": pa.string(), PROPERTIES: pa.binary(),
})  # fmt: skip
SETTLEMENTS_TABLE: Final = Table("settlements", SETTLEMENTS, "log", {
    "namespace": pa.string(), "log": pa.string(), "group": pa.string(), "offset": pa.int64(), ID: pa.int64(),
    "outcome": pa.string(), "attempt": pa.int32(), "time": TIME, "consumer": pa.string(), "error": pa.string(),
    "due": TIME, "sequence": pa.int64(),
})  # fmt: skip
DELIVERIES_TABLE: Final = Table("deliveries", LEASES, "log", {
    "namespace": pa.string(), "log": pa.string(), "group": pa.string(), "offset": pa.int64(), ID: pa.int64(),
    "attempt": pa.int32(), "time": TIME, "consumer": pa.string(), "sequence": pa.int64(),
})  # fmt: skip

TABLES: Final = {table.name: table for table in (MESSAGES_TABLE, SETTLEMENTS_TABLE, DELIVERIES_TABLE)}


def arrow(table: Table, columns: tuple[str, ...]) -> pa.Schema:
    """Some columns of a table, as Arrow has them."""
    return pa.schema([pa.field(name, table.columns[name], nullable=table.may_lack(name)) for name in columns])


def spark(table: Table, columns: tuple[str, ...]) -> StructType:
    """The same, as Spark has them."""
    from pyspark.sql import types as t  # a server makes tables too, and has no Spark

    known: dict[Any, t.DataType] = {
        pa.string(): t.StringType(), pa.binary(): t.BinaryType(), pa.int16(): t.ShortType(), pa.int32(): t.IntegerType(),
        pa.int64(): t.LongType(), TIME: t.TimestampType(), _MAP: t.MapType(t.StringType(), t.StringType()),
    }  # fmt: skip
    return t.StructType(
        [t.StructField(name, known[table.columns[name]], table.may_lack(name)) for name in columns]
    )


def chosen(table: Table, wanted: str | None, *, headers: bool) -> tuple[str, ...]:
    """The columns that are asked for by name ("a, b"), or all but those that few need."""
    if wanted is None:
        left_out = {PROPERTIES} if headers else {PROPERTIES, HEADERS}
        return tuple(name for name in table.columns if name not in left_out)
    names = tuple(name.strip() for name in wanted.split(","))
    unknown = [name for name in names if name not in table.columns]
    if unknown or len(set(names)) < len(names):
        raise InvalidArgument(
            f"columns={wanted!r}: {table.name} have the columns {', '.join(table.columns)}; name some of them, each once"
        )
    return names
