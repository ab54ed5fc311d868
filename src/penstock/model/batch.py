"""Messages as columns: one value for all rows, or a list or range with a value for each row.

`None` in the place of a column says that no message has a value there. So a batch of plain payloads
is a list of payloads and nothing else, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.limits import PRIORITY_DEFAULT

#: Microseconds: since 1970 UTC for a moment, or a length of time.
Microseconds = int | list[int | None] | None


class Columns(msgspec.Struct, gc=False):
    """What is said of messages to publish beside their payloads.

    A delay and a ttl count from when the broker publishes; `deliver_at` and `expires_at` are moments.
    `properties` are opaque bytes that a front stores with a message.
    """

    headers: list[dict[str, str] | None] | None = None
    key: list[str | None] | None = None
    priority: int | list[int] = PRIORITY_DEFAULT
    delay_us: Microseconds = None
    deliver_at: Microseconds = None
    ttl_us: Microseconds = None
    expires_at: Microseconds = None
    dedup_id: list[str | None] | None = None
    properties: list[bytes | None] | None = None

    def row(self, number: int) -> Columns:
        """Return what is said of one message."""
        values = (getattr(self, field) for field in self.__struct_fields__)
        return Columns(*[one[number : number + 1] if isinstance(one, list) else one for one in values])


class Batch(msgspec.Struct, gc=False):
    """Stored messages of one publish."""

    payloads: list[bytes]
    ids: Sequence[int]
    timestamp_us: int | list[int]
    priority: int | list[int]
    deliver_at: int | list[int | None] | None = None
    expires_at: int | list[int | None] | None = None
    key: list[str | None] | None = None
    dedup_id: list[str | None] | None = None
    headers: list[dict[str, str] | None] | None = None
    target_group: str | None = None
    properties: list[bytes | None] | None = None
    first: int = -1  # the offset of the first one, once it is known
    size: int = 0  # of all payloads

    @property
    def count(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> Batch:
        """Return some of the messages as a batch."""

        def cut(column: Any) -> Any:
            return column[start:stop] if isinstance(column, list | range) else column

        found = Batch(*[cut(getattr(self, field)) for field in self.__struct_fields__])
        found.first = self.first + start
        return found

    def rows(self, rows: list[int]) -> Batch:
        """Return some of the messages, by their numbers in the batch."""

        def pick(column: Any) -> Any:
            return [column[row] for row in rows] if isinstance(column, list | range) else column

        found = Batch(*[pick(getattr(self, field)) for field in self.__struct_fields__])
        found.size = sum(map(len, found.payloads))
        return found


class Run(NamedTuple):
    """Rows of a batch, from `start` to before `stop`."""

    batch: Batch
    start: int
    stop: int
