"""Rows as lines: a table as wide as the terminal, or JSON. One commit is in memory at a time, however large the journal is."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size

from penstock.cli.output import console, harmless, moment
from penstock.cli.streams import stdout_is_unread
from penstock.journal import mark as marks
from penstock.journal import reading
from penstock.journal.frame import Frame
from penstock.journal.kinds import Kind
from penstock.journal.section import Section
from penstock.journal.view import DirectoryView

#: Column of the table, and how wide it is; what a row says beyond these comes behind them, as wide as there is room.
COLUMNS: Final = (("sequence", 10), ("time", 24), ("kind", 16), ("log", 5), ("offset", 10))

#: Of a payload, in the table: more than a terminal shows, and a large one does not fill the memory of a pager.
SHOWN_BYTES: Final = 4096


class Wanted(NamedTuple):
    """Which rows to print, and whether with their payloads."""

    log: int | None
    kind: Kind | None
    offset: int
    after: int
    limit: int | None
    payload: bool


Row = tuple[Frame, Section, Mapping[str, Any]]


def print_rows(path: Path, wanted: Wanted, *, as_json: bool) -> list[str]:
    """Print what is wanted, as long as somebody reads it; what could not be shown, and why."""
    view = DirectoryView(path.absolute())
    view.directory.require_journal()
    marked = marks.read_beside_owner(view.directory.files, view.directory.mark) is not None
    show = _as_json if as_json else _as_text
    width = _width()
    if not as_json:
        head = "  ".join(_fit(name, size) for name, size in COLUMNS)
        sys.stdout.write(_cropped(f"{head}  row", width) + "\n")
    for count, row in enumerate(_rows(view, wanted)):
        if stdout_is_unread() or (wanted.limit is not None and count >= wanted.limit):
            break
        line = show(*row, payload=wanted.payload)
        sys.stdout.write((line if as_json else _cropped(line, width)) + "\n")
    skipped = [f"skipped {damage}" for damage in view.damage]
    if not marked:
        skipped.append(
            f"only sealed segments could be shown, because {view.directory.mark} is damaged or gone"
        )
    return skipped


def _width() -> int | None:
    """How wide lines may be: as the terminal is, and without a bound in a pipe."""
    return console().width if sys.stdout.isatty() else None


def _rows(view: DirectoryView, wanted: Wanted) -> Iterator[Row]:
    if wanted.limit == 0:
        return
    for frame in reading.frames(view, wanted.after):
        for section in frame.sections:
            if _holds(section, wanted):
                yield from ((frame, section, row) for row in section.records() if _is_wanted(row, wanted))


def _holds(section: Section, wanted: Wanted) -> bool:
    """Whether a section may hold wanted rows, from its header alone."""
    kind = section.kind
    if kind is None or (wanted.kind is not None and kind is not wanted.kind):
        return False
    if wanted.log is not None and section.log != wanted.log:
        return False
    return not wanted.offset or (kind.place is not None and section.span.last >= wanted.offset)


def _is_wanted(row: Mapping[str, Any], wanted: Wanted) -> bool:
    return not wanted.offset or (row.get("offset") or 0) >= wanted.offset


# --- JSON ---


def _as_json(frame: Frame, section: Section, row: Mapping[str, Any], *, payload: bool) -> str:
    said: dict[str, Any] = {
        "sequence": frame.sequence,
        "committed_us": frame.header.time_us,
        "epoch": frame.header.epoch,
        "segment": frame.segment,
        "kind": section.kind.name if section.kind else None,
        "log": section.log,
    }
    for name, value in row.items():
        if name == "payload" and not payload:
            said["payload_bytes"] = len(value or b"")
        elif value is not None:
            said[name] = plain(value) if isinstance(value, bytes) else value
    return msgspec.json.encode(said).decode()


def plain(data: bytes) -> dict[str, str]:
    """Bytes as JSON can hold them: base64, and the text if it is one."""
    said = {"base64": base64.b64encode(data).decode()}
    with contextlib.suppress(UnicodeDecodeError):
        said["text"] = data.decode()
    return said


# --- text ---


def _as_text(frame: Frame, section: Section, row: Mapping[str, Any], *, payload: bool) -> str:
    kind = section.kind.name if section.kind else "?"
    offset = row.get("offset")
    cells = (
        frame.sequence,
        moment(frame.header.time_us),
        kind,
        section.log,
        "–" if offset is None else offset,
    )
    head = "  ".join(_fit(str(cell), size) for cell, (_, size) in zip(cells, COLUMNS, strict=True))
    rest = [_said(name, value, payload=payload) for name, value in row.items() if name != "offset"]
    return f"{head}  {' '.join(part for part in rest if part)}"


def _fit(text: str, width: int) -> str:
    """Padded on the right; a longer text is never cut, because a number that is cut is another number."""
    return text if cell_len(text) >= width else set_cell_size(text, width)


def _cropped(line: str, width: int | None) -> str:
    if width is None or cell_len(line) <= width:
        return line
    return set_cell_size(line, width - 1) + "…"


def _said(name: str, value: Any, *, payload: bool) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, bytes):
        if name == "payload" and not payload:
            return f"payload={len(value)} bytes"
        return f"{name}={shown(value)}"
    if isinstance(value, dict):
        return f"{name}={harmless(msgspec.json.encode(value).decode())}"
    return f"{name}={harmless(str(value))}"


def shown(data: bytes) -> str:
    """Bytes for people: as text if they are UTF-8, otherwise in hexadecimal."""
    try:
        text = harmless(data.decode())
    except UnicodeDecodeError:
        text = "0x" + data[:SHOWN_BYTES].hex()
        return text if len(data) <= SHOWN_BYTES else f"{text}… ({len(data)} bytes)"
    return text if len(text) <= SHOWN_BYTES else f"{text[:SHOWN_BYTES]}… ({len(data)} bytes)"
