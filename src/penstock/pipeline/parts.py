"""Parts of staged files as a task sends them to a server: the journal's own layout, checked there.

Theory of operation
-------------------
A task of the sink turns its Arrow batches into parts in its own process (`staging`), whether it
stages them in a directory or sends them to a server. A server never reads Arrow that a client
made: pyarrow believes the types, offsets and lengths in the metadata of a stream, and a stream with
two changed bytes ends the process before its content can be validated. What travels is a list of
`wire.SentRows`: for each topic a section, laid out as `journal.section` and `journal.columns` say,
with plain columns and without compression.

`received` reads it with `struct`, `memoryview` and NumPy views, which check each access. Each
length in it is compared with the bytes that came before anything of that length is made; the
number of rows, topics and columns is bounded. The rows that it returns are built anew from buffers
that were checked: each value is one that `Staging` could have made, so the owner of the journal can
decode them, and a part takes no more room in a commit than one of a local task. Offsets, ids and
timestamps of the client are ignored.

Staged files have had this layout from the beginning, checksummed as segments are. The owner of a
directory reads those of earlier versions as before, and never reads Arrow from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from penstock import limits, wire
from penstock.clock import SECOND_US
from penstock.errors import CorruptJournal, InvalidArgument
from penstock.journal.columns import BUFFERS, FIXED, Buffers, Column, Encoding
from penstock.journal.kinds import MESSAGES, MUST_KNOW
from penstock.journal.rows import Rows
from penstock.journal.section import Section
from penstock.journal.spool import Share
from penstock.names import check_name

#: More than a message takes in a staged file beside its payload and texts, and more than a header
#: takes beside its own.
ROW_BYTES: Final = 64
HEADER_BYTES: Final = 16

#: The latest moment that a datetime can say: 9999-12-31.
MOMENT_US_MAX: Final = 253_402_300_799_999_999

#: The columns that are kept. Of numbers the least and the most, of texts the most bytes.
_NUMBERS: Final = {
    "priority": (limits.PRIORITY_MIN, limits.PRIORITY_MAX),
    "deliver_at": (0, MOMENT_US_MAX),
    "expires_at": (1, limits.DURATION_S_MAX * SECOND_US),
}
_TEXTS: Final = {"key": limits.KEY_BYTES_MAX, "dedup_id": limits.DEDUP_ID_BYTES_MAX}
_KEPT: Final = (*_NUMBERS, *_TEXTS, "headers", "payload")
_IGNORED: Final = ("offset", "id", "timestamp")
_NAMES: Final = {MESSAGES.fields[name].number: name for name in (*_IGNORED, *_KEPT)}

_Sent = Annotated[list[wire.SentRows], msgspec.Meta(min_length=1, max_length=limits.SPOOL_TOPICS_MAX)]
_DECODER: Final = msgspec.msgpack.Decoder(_Sent)


def sent(part: Sequence[Rows], shares: Sequence[Share]) -> list[wire.SentRows]:
    """Return a part as it travels to a server. The log of a section is an index of `shares`."""
    for rows in part:
        rows.prepare(alone=True)
    return [wire.SentRows(shares[rows.log].topic, b"".join(rows.encoded(None)[0])) for rows in part]


def received(body: bytes) -> tuple[list[Rows], list[Share]]:
    """Return the sections of a part that a client has sent, and what each topic has in it.

    What no sink sends is refused.
    """
    try:
        sent = _DECODER.decode(body)
        shares = [Share(check_name(one.topic, kind="topic", reserved_ok=True)) for one in sent]
        _require(len({share.topic for share in shares}) == len(shares), "a topic occurs twice")
        found = [_checked(index, one.section) for index, one in enumerate(sent)]
    except (msgspec.DecodeError, CorruptJournal, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"the rows cannot be read: {error}; they come from a sink of the same version of Penstock"
        ) from None
    count, size = sum(rows.count for rows, _ in found), sum(size for _, size in found)
    _require(count <= limits.SPOOL_PART_ROWS, f"a part has at most {limits.SPOOL_PART_ROWS} rows")
    _require(
        count == 1 or size <= limits.SPOOL_PART_BYTES, f"a part has at most {limits.SPOOL_PART_BYTES} bytes"
    )
    for share, (rows, _) in zip(shares, found, strict=True):
        note(share, rows)
    return [rows for rows, _ in found], shares


def note(share: Share, rows: Rows) -> None:
    """Add what rows have to the share of their topic."""
    columns = rows.columns
    lengths = np.diff(np.frombuffer(columns["payload"].parts[0], "<i4"))
    share.rows += rows.count
    share.bytes += int(lengths.sum())
    share.largest = max(share.largest, int(lengths.max()))
    share.nameless = share.nameless or "dedup_id" not in columns or columns["dedup_id"].nulls > 0
    if "deliver_at" in columns:
        due, is_due = _each(columns["deliver_at"], rows.count)
        _, ends = _each(columns.get("expires_at"), rows.count)
        if (is_due & ~ends).any():
            share.latest = max(int(due[is_due & ~ends].max()), share.latest or 0)


def _each(column: Buffers | int | None, rows: int) -> tuple[Any, Any]:
    """Return the moments of a column, and in which rows there is one."""
    if not isinstance(column, Buffers):
        return np.full(rows, column or 0), np.full(rows, column is not None)
    return np.frombuffer(column.parts[-1], "<i8"), _present(column.parts, column.nulls, rows)


def _present(buffers: Any, nulls: int, rows: int) -> Any:
    """Return which rows have a value. The bitmap is there if not all have one."""
    if not nulls:
        return np.ones(rows, bool)
    _require(len(buffers[0]) == (rows + 7) // 8, "a bitmap of nulls has another length than its rows")
    bits = np.unpackbits(np.frombuffer(buffers[0], np.uint8), count=rows, bitorder="little").view(bool)
    _require(rows - int(bits.sum()) == nulls, "a column has another number of nulls than it says")
    return bits


# --- checking ---


def _require(good: Any, what: str) -> None:
    if not good:
        raise InvalidArgument(f"the rows cannot be staged: {what}; send them with the sink of Penstock")


def _checked(index: int, data: bytes) -> tuple[Rows, int]:
    """Return the rows of a section, with the log `index`, and more bytes than they take."""
    section = Section(memoryview(data))
    _require(section.kind is MESSAGES and section.kind_bits == MUST_KNOW, "a section has no messages")
    _require(section.bytes == len(data), "a section has another length than it says")
    _require(1 <= section.rows <= limits.SPOOL_PART_ROWS, f"a part has 1 to {limits.SPOOL_PART_ROWS} rows")
    _require(section.columns_count <= len(_NAMES), "a section has more columns than there are")
    columns = {_NAMES[number]: column for number, column in section.columns().items() if number in _NAMES}
    _require(len(columns) == section.columns_count, "a column is not known, or occurs twice")
    _require({"priority", "payload"} <= columns.keys(), "a column priority or payload is missing")
    kept: dict[str, Any] = {"offset": range(section.rows), "id": range(section.rows), "timestamp": 0}
    size = ROW_BYTES * section.rows
    for name in (name for name in _KEPT if name in columns):
        kept[name], more = _column(name, columns[name])
        size += more
    return Rows(MESSAGES, index, section.rows, kept), size


def _column(name: str, column: Column) -> tuple[Buffers | int, int]:
    """Return a column whose buffers fit its rows and one another, and the bytes of its values."""
    _require(column.type == MESSAGES.fields[name].type, f"column {name!r} has another type")
    _require(name not in ("priority", "payload") or not column.nulls, f"column {name!r} has nulls")
    if column.constant and name in _NUMBERS:
        _require(len(column.buffers) == 1 and not column.nulls, f"column {name!r} has other buffers")
        return int(_numbers(name, column, 1)[0]), 0
    _require(
        column.encoding == Encoding.PLAIN
        and len(column.buffers) == BUFFERS[column.type] + (1 if column.nulls else 0),
        f"column {name!r} has other buffers",
    )
    if name in _NUMBERS:
        _numbers(name, column, column.rows)
        size = 0
    else:
        size = _headers(column) if name == "headers" else _values(name, column)
    return Buffers(int(Encoding.PLAIN), column.nulls, [bytes(one) for one in column.buffers]), size


def _numbers(name: str, column: Column, rows: int) -> Any:
    _, width = FIXED[column.type]
    _require(len(column.buffers[-1]) == width * rows, f"column {name!r} has another length than its rows")
    found = np.frombuffer(column.buffers[-1], f"<i{width}")
    least, most = _NUMBERS[name]
    outside = ((found < least) | (found > most)) & _present(column.buffers, column.nulls, rows)
    _require(not outside.any(), f"column {name!r} has a number outside {least} to {most}")
    return found


def _values(name: str, column: Column) -> int:
    """Check texts or payloads; return how many bytes they have."""
    ends, data = column.buffers[-2:]
    lengths = np.diff(
        _text_ends(ends, data, column.rows) if name in _TEXTS else _ends(ends, column.rows, len(data))
    )
    present = _present(column.buffers, column.nulls, column.rows)
    least, most = (1, _TEXTS[name]) if name in _TEXTS else (0, limits.MESSAGE_BYTES_MAX)
    outside = ((lengths < least) | (lengths > most)) & present
    _require(not outside.any(), f"column {name!r} has a value outside {least} to {most} bytes")
    return len(data)


def _headers(column: Column) -> int:
    """Check headers; return how many bytes they take."""
    _present(column.buffers, column.nulls, column.rows)
    entries, name_ends, names, text_ends, texts = column.buffers[-5:]
    places = _ends(entries, column.rows, None)
    count = int(places[-1])
    starts = _text_ends(name_ends, names, count)
    _require((np.diff(starts) > 0).all(), "a header has an empty name")
    sizes = np.diff((starts.astype(np.int64) + _text_ends(text_ends, texts, count))[places])
    _require((np.diff(places) <= limits.HEADERS_COUNT_MAX).all(), "a message has too many headers")
    _require((sizes <= limits.HEADERS_BYTES_MAX).all(), "the headers of a message have too many bytes")
    return int(sizes.sum()) + HEADER_BYTES * count


def _text_ends(ends: memoryview, data: memoryview, count: int) -> Any:
    """The same as `_ends`, of texts: all of them are UTF-8, and none ends within a character."""
    found = _ends(ends, count, len(data))
    whole = bytes(data)
    if not whole.isascii():
        whole.decode()
        inside = np.frombuffer(whole, np.uint8)[found[found < len(whole)]]
        _require((inside & 0xC0 != 0x80).all(), "a text ends within a character")
    return found


def _ends(buffer: memoryview, count: int, last: int | None) -> Any:
    """Return where `count` values begin and end: from 0, none before the one before it, up to `last`."""
    _require(len(buffer) == 4 * (count + 1), "offsets have another length than their values")
    found = np.frombuffer(buffer, "<i4")
    _require(found[0] == 0 and (found[1:] >= found[:-1]).all(), "offsets do not grow from 0")
    _require(last is None or found[-1] == last, "offsets do not end where their values do")
    return found
