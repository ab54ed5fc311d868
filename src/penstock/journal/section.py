"""A section that was read: rows of one kind for one log, as views into their frame.

Its header (drawn in `kinds`) is checked when it is made, its table of columns when it is first asked for one, and no value is decoded before
somebody wants it. So whoever only counts, or skips, pays for headers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import CorruptJournal, InvalidArgument
from penstock.journal import columns as layout
from penstock.journal.checksum import crc32
from penstock.journal.columns import Column
from penstock.journal.kinds import CHECKED, HEADER, KINDS, MESSAGES, MUST_KNOW, SHARES, Kind, Span
from penstock.journal.plan import PlainMessage, plain_message
from penstock.limits import FRAME_ROWS_MAX


class Section:
    """A section that was read: its header is checked, its columns are views, decoded when asked for.

    It knows another section only if it shares with it: two that knew each other would keep their frame's bytes alive until the
    garbage collector comes.
    """

    __slots__ = ("_columns", "_holders", "_shared", "_view", "columns_count", "kind_bits", "span")

    def __init__(self, view: memoryview) -> None:
        if len(view) < HEADER.size:
            raise CorruptJournal("a section's header is cut short")
        number, bits, columns, rows, log, size, first, last, oldest, newest, crc = HEADER.unpack_from(view)
        if crc32(view[: CHECKED.size]) != crc or not HEADER.size <= size <= len(view):
            raise CorruptJournal("a section's header does not match its checksum")
        if rows > FRAME_ROWS_MAX:  # one stored value may stand for so many
            raise CorruptJournal(f"a section claims {rows} rows, and holds at most {FRAME_ROWS_MAX}")
        self.span = Span(number, log, rows, first, last, oldest, newest)
        self.kind_bits = bits
        self.columns_count = columns
        self._view = view[:size]
        self._columns: dict[int, Column] | None = None
        self._shared: dict[int, int] = {}
        self._holders: dict[int, Section] = {}

    @property
    def bytes(self) -> int:
        """How many bytes of its frame it takes."""
        return len(self._view)

    @property
    def kind(self) -> Kind | None:
        """What its rows are, or None if this version does not know."""
        return KINDS.get(self.span.kind)

    @property
    def log(self) -> int:
        return self.span.log

    @property
    def rows(self) -> int:
        return self.span.rows

    def find_holders(self, earlier: Sequence[Section]) -> None:
        """Know the sections whose columns this one shares, which must come before it."""
        self._parse()
        for number, index in self._shared.items():
            if index >= len(earlier):
                raise CorruptJournal("a section shares a column of one that is not before it")
            self._holders[number] = earlier[index]
        self._columns = None

    def _parse(self) -> None:
        table = self._view[HEADER.size :]
        self._columns, self._shared = layout.parse(table, self._view, self.columns_count, self.rows)

    def columns(self) -> dict[int, Column]:
        """The columns as they are stored, by number; one that is not there is null in every row."""
        if self._columns is None:
            self._parse()
            for number, holder in self._holders.items():
                self._columns = {**(self._columns or {}), number: holder.columns()[number]}
        return self._columns or {}

    def column(self, name: str) -> Column | None:
        """The column of that name as it is stored, or None if every value is null."""
        kind = self.kind
        if kind is None:
            raise CorruptJournal(f"rows of kind {self.span.kind} are not known to this version of Penstock")
        if name not in kind.fields:
            raise InvalidArgument(f"{kind.name} have no column {name!r}; they have {list(kind.fields)}")
        return self.columns().get(kind.fields[name].number)

    def values(self, name: str) -> Sequence[Any]:
        """A value for each row."""
        column = self.column(name)
        return [None] * self.rows if column is None else column.values()

    def plain_message(self) -> PlainMessage | None:
        """What it holds, if that is one message without any properties; None also where that is not quickly told."""
        single = self.span.rows == 1 and self.span.kind == MESSAGES.number and self.columns_count == 5
        return plain_message(self._view) if single else None

    def shares(self) -> int | None:
        """The index in its frame of the section whose payloads these rows share."""
        self.columns()
        return self._shared.get(MESSAGES.fields["payload"].number) if self.kind is MESSAGES else None

    def records(self) -> Iterator[Mapping[str, Any]]:
        """The rows one by one, as dictionaries: for people and tests."""
        names = list(self.kind.fields) if self.kind else []
        lists = [self.values(name) for name in names]
        for row in zip(*lists, strict=True):
            yield dict(zip(names, row, strict=True))


def sections(body: memoryview, count: int) -> list[Section]:
    """The `count` sections of a frame's body, which must fill it exactly."""
    found: list[Section] = []
    at = 0
    for _ in range(count):
        section = Section(body[at:])
        if section.kind_bits & SHARES:
            section.find_holders(found)
        if section.kind is None and section.kind_bits & MUST_KNOW:
            raise CorruptJournal(
                f"rows of kind {section.span.kind} are not known to this version of Penstock: a newer one wrote them"
            )
        found.append(section)
        at += section.bytes
    if at != len(body):
        raise CorruptJournal("a frame's sections do not fill its body")
    return found


def intact_spans(body: memoryview) -> list[Span]:
    """What can still be said of a damaged frame: the spans whose headers are whole, from the front. The last one's rows may be cut off."""
    found: list[Span] = []
    at = 0
    while at + HEADER.size <= len(body):
        number, _, _, rows, log, size, first, last, oldest, newest, crc = HEADER.unpack_from(body, at)
        if crc32(body[at : at + CHECKED.size]) != crc or size < HEADER.size:
            break
        found.append(Span(number, log, rows, first, last, oldest, newest))
        at += size
    return found
