"""Whether every value of a frame can be read. Its checksums say that the bytes are those that were written; this, that they make sense.

A checksum passes over bytes that a faulty writer put there, and a reader that trusts a column's table would then read past it
or stop in the middle of a batch. So a checkup looks at all that a reader takes for granted: buffers lie within their section,
behind its table and on multiples of 8; there are as many as the type needs, long enough for the rows; offsets start at
or above zero, never fall and end within their data; text is UTF-8; nulls are as many as the table says; a
shared column is in an earlier section of the same kind and length; the header's bounds are those of its columns.

Loops run in C (`sorted`, `min`, `sum`), so that a checkup is bound by the disk and the checksums, not by this.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

from penstock.errors import CorruptJournal
from penstock.journal import columns as layout
from penstock.journal.columns import BUFFERS, FIXED, Encoding, Type
from penstock.journal.frame import Frame
from penstock.journal.kinds import HEADER, MESSAGES, Field
from penstock.journal.section import Section


def flaw(frame: Frame) -> str | None:
    """What is wrong with a frame that a scan took for good, or None if every value of it can be read."""
    sections = frame.sections
    if sum(s.rows for s in sections if s.kind is MESSAGES) != frame.header.messages:
        return "its header counts other messages than its sections hold"
    at = 0
    try:
        for index, section in enumerate(sections):
            _check_section(sections, index, frame.body[at : at + section.bytes])
            at += section.bytes
    except _Unsound as found:
        return str(found)
    except (CorruptJournal, struct.error, ValueError, IndexError) as error:
        return f"section {index}: {error}"
    return None


class _Unsound(Exception):
    """A column cannot be read."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _Unsound(what)


def _check_section(sections: Sequence[Section], index: int, view: memoryview) -> None:
    section = sections[index]
    kind = section.kind
    if kind is None:  # a kind that may be skipped
        return
    where = f"section {index} ({kind.name} of log {section.log})"
    names = {field.number: name for name, field in kind.fields.items()}
    table_end = _table_end(view, section.columns_count)
    at = HEADER.size
    for _ in range(section.columns_count):
        number, stored, encoding, count, extra = layout.ENTRY.unpack_from(view, at)
        at += layout.ENTRY.size
        buffers = []
        for _ in range(count):
            place, size = layout.PLACE.unpack_from(view, at)
            at += layout.PLACE.size
            inside = table_end <= place and place + size <= len(view) and not place & 7
            _require(inside, f"{where}: a column lies outside its section")
            buffers.append(view[place : place + size])
        if number not in names:  # a column of a newer version, which readers skip
            continue
        column = f"{where}, column {names[number]!r}"
        _require(stored == kind.fields[names[number]].type, f"{column}: it is of another type")
        if encoding == Encoding.SHARED:
            _check_shared(sections, index, extra, column)
        else:
            _check_column(
                kind.fields[names[number]], encoding, buffers, nulls=extra, count=section.rows, column=column
            )
    _check_bounds(section, where)


def _table_end(view: memoryview, columns: int) -> int:
    at = HEADER.size
    for _ in range(columns):
        buffers = layout.ENTRY.unpack_from(view, at)[3]
        at += layout.ENTRY.size + buffers * layout.PLACE.size
    return at


def _check_shared(sections: Sequence[Section], index: int, source: int, column: str) -> None:
    _require(source < index, f"{column}: it shares a column of a section that is not before it")
    same = sections[source].kind is sections[index].kind and sections[source].rows == sections[index].rows
    _require(same, f"{column}: it shares a column of other rows")


def _check_column(
    field: Field, encoding: int, buffers: list[memoryview], *, nulls: int, count: int, column: str
) -> None:
    if encoding == Encoding.SEQUENCE:
        fits = field.type in FIXED and len(buffers) == 1 and len(buffers[0]) == layout.SEQUENCE.size
        _require(fits, f"{column}: it is not a start and a step")
        return
    _require(encoding in (Encoding.PLAIN, Encoding.CONSTANT), f"{column}: its encoding is not known")
    stored = 1 if encoding == Encoding.CONSTANT else count
    expected = BUFFERS[field.type] + (1 if nulls else 0)
    _require(len(buffers) == expected, f"{column}: {len(buffers)} buffers where there must be {expected}")
    if nulls:
        _check_validity(buffers.pop(0), stored, nulls, column)
    if field.type in FIXED:
        _require(len(buffers[0]) >= stored * FIXED[field.type][1], f"{column}: it is shorter than its rows")
    elif field.type is Type.MAP:
        entries = _rising(buffers[0], stored, f"{column}, its entries")
        _check_cuts(buffers[1], buffers[2], entries[-1], text=True, column=f"{column}, its keys")
        _check_cuts(buffers[3], buffers[4], entries[-1], text=True, column=f"{column}, its values")
    else:
        _check_cuts(buffers[0], buffers[1], stored, text=field.type is Type.UTF8, column=column)


def _check_validity(bits: memoryview, count: int, nulls: int, column: str) -> None:
    _require(len(bits) >= (count + 7) // 8, f"{column}: its validity is shorter than its rows")
    present = (int.from_bytes(bits, "little") & (1 << count) - 1).bit_count()
    _require(present == count - nulls, f"{column}: {count - present} nulls where its table says {nulls}")


def _rising(buffer: memoryview, count: int, column: str) -> list[int]:
    _require(len(buffer) >= 4 * (count + 1), f"{column}: too few offsets for its rows")
    offsets = buffer[: 4 * (count + 1)].cast("i").tolist()
    _require(offsets[0] >= 0 and offsets == sorted(offsets), f"{column}: its offsets fall")
    return offsets


def _check_cuts(offsets: memoryview, data: memoryview, count: int, *, text: bool, column: str) -> None:
    places = _rising(offsets, count, column)
    _require(places[-1] <= len(data), f"{column}: its offsets reach past its data")
    if not text:
        return
    whole = bytes(data)
    if whole.isascii():
        return
    try:
        for start, stop in pairwise(places):
            whole[start:stop].decode()
    except UnicodeDecodeError:
        raise _Unsound(f"{column}: it is not UTF-8") from None


def _check_bounds(section: Section, where: str) -> None:
    kind, span = section.kind, section.span
    if kind is None:
        return
    for name, low, high in ((kind.place, span.first, span.last), (kind.time, span.oldest, span.newest)):
        column = section.column(name) if name else None
        if column is None or column.nulls:
            continue
        values = column.values()
        _require(
            min(values) == low and max(values) == high,
            f"{where}: its header says other bounds than {name!r} has",
        )
