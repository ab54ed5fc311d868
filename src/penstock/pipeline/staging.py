"""From Arrow record batches to parts of staged files: what a task of the sink does, with no loop over rows.

Every message is checked here as `Message` is when it is published, so that a wrong one fails its task, with its column and row named, and never the commit of the others. What only the owner can know (whether
a queue takes so large a message, or so many) is looked at by him: see `broker.intake`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.clock import SECOND_US
from penstock.errors import BatchTooLarge, InvalidArgument, MessageTooLarge
from penstock.journal.arrow import TYPES, values_of
from penstock.journal.columns import Type
from penstock.journal.kinds import MESSAGES
from penstock.journal.rows import Rows
from penstock.journal.spool import Share
from penstock.names import check_name
from penstock.pipeline.parts import HEADER_BYTES, MOMENT_US_MAX, ROW_BYTES, note

#: What is staged, and its type there; the topic is the index of a share.
STAGED: Final[dict[str, Any]] = {
    "topic": pa.int32(),
    "priority": pa.int16(),
    "deliver_at": pa.int64(),
    "expires_at": pa.int64(),
    "key": pa.string(),
    "dedup_id": pa.string(),
    "headers": TYPES[Type.MAP],
    "payload": pa.binary(),
}


class Staging:
    """The rows of one task. `topic` is that of rows that have none; errors call the rows `where`.

    `shares` is what each topic has in the parts so far; the log of a section is an index of it.
    """

    def __init__(self, topic: str | None, where: str) -> None:
        self.shares: list[Share] = []
        self._topic = topic
        self._where = where
        self._seen = 0  # rows of earlier batches, from which rows are counted in errors
        self._indexes: dict[str, int] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0  # of what is waiting

    def parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Rows]]:
        """Yield the messages of record batches in parts of bounded length.

        Their columns are those that `sink` allows.
        """
        for batch in batches:
            if batch.num_rows:
                yield from self._full(batch)
        if self._waiting:
            yield self._part()

    def _full(self, batch: pa.RecordBatch) -> Iterator[list[Rows]]:
        """Yield the parts that a batch fills; the rest of it waits."""
        checked, sizes = self._checked(batch)
        ends = np.cumsum(sizes)
        start = 0
        while start < batch.num_rows:
            room = limits.SPOOL_PART_BYTES - self._bytes + (int(ends[start - 1]) if start else 0)
            stop = int(np.searchsorted(ends, room, side="right"))
            stop = max(min(stop, start + limits.SPOOL_PART_ROWS - self._rows), start)
            if stop == start and not self._rows:
                stop = start + 1  # one message alone may have more
            if stop > start:
                self._waiting.append(checked.slice(start, stop - start))
                self._rows += stop - start
                self._bytes += int(sizes[start:stop].sum())
            if stop < batch.num_rows:
                yield self._part()
            start = stop
        self._seen += batch.num_rows

    def _part(self) -> list[Rows]:
        """Return what is waiting, a section for each topic."""
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        return [self._section(index, part) for index, part in _by_topic(table)]

    def _section(self, index: int, part: pa.RecordBatch) -> Rows:
        count = part.num_rows
        columns: dict[str, Any] = {"offset": range(count), "id": range(count), "timestamp": 0}
        for name in ("priority", "deliver_at", "expires_at", "key", "dedup_id", "headers", "payload"):
            found = values_of(part.column(name), MESSAGES.fields[name].type)
            if found is not None:
                columns[name] = found
        rows = Rows(MESSAGES, index, count, columns)
        note(self.shares[index], rows)
        return rows

    # --- checking ---

    def _checked(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        """The columns as they are staged, and more bytes than each row takes."""
        given = {name: batch.column(name) for name in batch.schema.names}
        found: dict[str, Any] = {"payload": self._payload(given["payload"])}
        sizes = _lengths(found["payload"]) + ROW_BYTES
        found["topic"] = self._topics(given.get("topic"), batch.num_rows)
        found["priority"] = self._priority(given.get("priority"), batch.num_rows)
        for name, most in (("key", limits.KEY_BYTES_MAX), ("dedup_id", limits.DEDUP_ID_BYTES_MAX)):
            if name in given:
                found[name] = self._text(name, given[name], most)
                sizes = sizes + _lengths(found[name])
        if "headers" in given:
            found["headers"], more = self._headers(given["headers"])
            sizes = sizes + more
        if "deliver_at" in given:
            found["deliver_at"] = self._deliver_at(given["deliver_at"])
        if "ttl" in given:
            found["expires_at"] = self._ttl(given["ttl"])
        arrays = [
            found[name] if name in found else pa.nulls(batch.num_rows, kind) for name, kind in STAGED.items()
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(STAGED)), sizes

    def _require(self, column: str, good: Any, what: str, error: type[Exception] = InvalidArgument) -> None:
        """Raise what is wrong with the first row that is not good."""
        good = np.asarray(good)
        if not good.all():
            row = self._seen + int(np.argmin(good))
            raise error(f"column {column!r}, row {row} of {self._where}: {what}")

    def _payload(self, payload: Any) -> Any:
        self._require(
            "payload", payload.is_valid(), "a payload is not null; filter such rows out, or give an empty one"
        )
        payload = payload.cast(pa.binary())
        self._require(
            "payload",
            _lengths(payload) <= limits.MESSAGE_BYTES_MAX,
            f"a payload has at most {limits.MESSAGE_BYTES_MAX} bytes; publish a reference to it instead",
            MessageTooLarge,
        )
        return payload

    def _topics(self, topics: Any, rows: int) -> Any:
        """The index of each row's topic."""
        if topics is None or topics.null_count == rows:
            topics = None
        elif self._topic is not None:
            topics = topics.fill_null(self._topic)
        else:
            self._require(
                "topic", topics.is_valid(), "it is null; fill it, or give option topic for such rows"
            )
        if topics is None:
            if self._topic is None:
                self._require(
                    "topic", np.zeros(rows, bool), "it is null; fill it, or give option topic for such rows"
                )
            return pa.array(np.full(rows, self._index(str(self._topic)), dtype=np.int32))
        self._require_utf8("topic", topics)
        encoded = topics.dictionary_encode()
        indexes = np.array([self._index(name) for name in encoded.dictionary.to_pylist()], dtype=np.int32)
        return pa.array(indexes[np.asarray(encoded.indices)])

    def _index(self, topic: str) -> int:
        found = self._indexes.get(topic)
        if found is None:
            check_name(topic, kind="topic", reserved_ok=True)
            if len(self.shares) >= limits.SPOOL_TOPICS_MAX:
                raise BatchTooLarge(
                    f"column 'topic' has more than {limits.SPOOL_TOPICS_MAX} different values: is it the right one?"
                )
            found = self._indexes[topic] = len(self.shares)
            self.shares.append(Share(topic))
        return found

    def _priority(self, priority: Any, rows: int) -> Any:
        if priority is None:
            return pa.array(np.full(rows, limits.PRIORITY_DEFAULT, dtype=np.int16))
        priority = priority.cast(pa.int64()).fill_null(limits.PRIORITY_DEFAULT)
        numbers = np.asarray(priority)
        self._require(
            "priority",
            (numbers >= limits.PRIORITY_MIN) & (numbers <= limits.PRIORITY_MAX),
            f"a priority is {limits.PRIORITY_MIN} (first) to {limits.PRIORITY_MAX} (last)",
        )
        return priority.cast(pa.int16())

    def _text(self, name: str, texts: Any, most: int) -> Any:
        texts = texts.cast(pa.string())
        self._require_utf8(name, texts)
        lengths = _lengths(texts)
        there = np.asarray(texts.is_valid())
        self._require(name, ~there | (lengths > 0), f"it is empty; give null for no {name}")
        self._require(name, lengths <= most, f"it has at most {most} bytes; give a hash of it")
        return texts

    def _require_utf8(self, name: str, texts: Any) -> None:
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as error:  # which says which row
            raise InvalidArgument(f"column {name!r} of {self._where}: {error}; it must be UTF-8") from error

    def _headers(self, headers: Any) -> tuple[Any, Any]:
        headers = headers.cast(TYPES[Type.MAP])
        flat = headers.drop_null() if headers.null_count else headers
        places = np.asarray(flat.offsets)
        names, values = (child[int(places[0]) : int(places[-1])] for child in (flat.keys, flat.items))
        places = places - places[0]
        rows = np.flatnonzero(np.asarray(headers.is_valid()))  # of which the flat ones are
        good = np.ones(len(headers), bool)

        def require(each: Any, what: str) -> None:
            """Of each header: its row is the one that it lies in."""
            bad = np.flatnonzero(~np.asarray(each))
            good[rows[np.searchsorted(places, bad, side="right") - 1]] = False
            self._require("headers", good, what)

        require(values.is_valid(), "a header's value is null; leave the header out")
        for child in (names, values):
            self._require_utf8("headers", child)
        name_lengths = _lengths(names)
        require(name_lengths > 0, "a header has an empty name; give it one")
        sums = np.concatenate([[0], np.cumsum(name_lengths + _lengths(values))])
        sizes = np.zeros(len(headers), dtype=np.int64)
        counts = np.zeros(len(headers), dtype=np.int64)
        sizes[rows], counts[rows] = sums[places[1:]] - sums[places[:-1]], np.diff(places)
        most, longest = limits.HEADERS_COUNT_MAX, limits.HEADERS_BYTES_MAX
        self._require("headers", counts <= most, f"a message has at most {most} headers")
        self._require(
            "headers",
            sizes <= longest,
            f"headers have at most {longest} bytes; put the rest into the payload",
        )
        return headers, sizes + HEADER_BYTES * counts

    def _deliver_at(self, moments: Any) -> Any:
        moments = moments.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        numbers = np.asarray(moments.fill_null(0))
        self._require(
            "deliver_at", (numbers >= 0) & (numbers <= MOMENT_US_MAX), "it is not between 1970 and 9999"
        )
        return moments

    def _ttl(self, lengths: Any) -> Any:
        most = limits.DURATION_S_MAX
        if pa.types.is_duration(lengths.type):
            found = lengths.cast(pa.duration("us")).cast(pa.int64())
            numbers = np.asarray(found.fill_null(SECOND_US)) / SECOND_US
        else:
            numbers = np.asarray(lengths.cast(pa.float64()).fill_null(1.0))
            found = None
        self._require(
            "ttl",
            (numbers > 0) & (numbers <= most),
            f"a time to live is more than 0 and at most {most} seconds",
        )
        if found is None:
            us = np.maximum(np.rint(numbers * SECOND_US), 1).astype(np.int64)
            found = pa.array(us, mask=np.asarray(lengths.is_null()))
        return found


def _lengths(found: Any) -> Any:
    """The bytes of each value; none where it is null."""
    return np.asarray(pc.binary_length(found).fill_null(0)).astype(np.int64)


def _by_topic(table: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each topic, in their order."""
    codes = np.concatenate([np.asarray(chunk) for chunk in table.column("topic").chunks])
    if (codes != codes[0]).any():
        order = np.argsort(codes, kind="stable")
        table, codes = table.take(order), codes[order]
    (batch,) = table.combine_chunks().to_batches()
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for start, stop in pairwise(cuts):
        yield int(codes[start]), batch.slice(start, stop - start)
