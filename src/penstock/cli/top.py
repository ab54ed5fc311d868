"""`penstock top`: what happens in queues and topics, live.

Every interval the counters are read, and compared with those of the last time. The screen draws itself anew four times a second, so that it follows a
terminal that changes its size. A server that goes away stays on the screen as it was last seen, with a line that says so, until it is back.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.broker.state_reader import StateReader
from penstock.cli import output
from penstock.cli.place import Place, looked_at, placed
from penstock.cli.rates import ORDERS, Frame, Row, Snapshot, Watch, in_order, rows
from penstock.cli.stopping import sigterm_interrupts
from penstock.cli.streams import stdout_is_unread
from penstock.errors import PenstockError
from penstock.model.commands import DEFAULT_NAMESPACE

app = typer.Typer()

#: Often enough to see something happen, and seldom enough to cost nothing.
INTERVAL_S: Final = 2.0
INTERVAL_S_MIN: Final = 0.05

#: How long one question may take before the screen says that there is no answer.
PATIENCE_S: Final = 2.0

#: How often the screen is drawn, so that it fits the terminal soon after that has changed its size.
DRAWN_PER_S: Final = 4

#: Of a name, even where the terminal is narrow.
NAME_COLUMNS: Final = 16
KIND_COLUMNS: Final = 6

Sort = StrEnum("Sort", {name: name for name in ORDERS})  # type: ignore[misc]


@placed(app)
def top(
    place: Place,
    sort: Annotated[Sort, typer.Option("--sort", help="What comes first: the most of it.")] = Sort.activity,  # type: ignore[attr-defined]
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", help="Look so often.", min=INTERVAL_S_MIN)] = INTERVAL_S,
    once: Annotated[bool, typer.Option("--once", help="Look twice, an interval apart, print that, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, a line for each look, or one with --once.")] = False,
) -> None:  # fmt: skip
    """Show what happens in queues and topics, live: rates, depth, lag, consumers and dead letters.

    q or Ctrl-C ends it. If the server goes away it says so, and goes on when it is back. Where stdout is no terminal, one table follows the other.

    A directory that another process has open is read from outside: rates are those of what is synced, and consumers are not known.

    Exits with 0, and with 2 if there is no such place, or the server does not let you in.

    [bold]Examples[/bold]

      penstock top http://127.0.0.1:8080

      penstock top https://queues.example.org --namespace shop --sort lag --interval 5

      penstock top http://127.0.0.1:8080 --once --json | jq '.logs[] | select(.dead > 0) | .name'

      penstock top ./queue --once
    """
    with (
        suppress(KeyboardInterrupt),
        output.answering(place),
        looked_at(place, patience_s=PATIENCE_S) as (_, port),
    ):
        outside = port if isinstance(port, StateReader) else None
        looking = Looking(Watch(port, place.namespace), place, sort.value, interval, outside)
        if once:
            _print_once(looking, as_json=as_json)
        elif as_json:
            _print_for_ever(looking, _print_line)
        elif sys.stdout.isatty():
            _show(looking)
        else:
            _print_for_ever(looking, lambda frame: output.console().print(Screen(frame, sort.value)))


class Looking:
    """Frames, one after the other."""

    def __init__(
        self, watch: Watch, place: Place, order: str, interval_s: float, outside: StateReader | None = None
    ) -> None:
        self._watch = watch
        self._place = place
        self._order = order
        self._outside = outside
        self.interval_s = interval_s
        self._before: Snapshot | None = None
        self._shown: Frame | None = None

    def next(self) -> Frame:
        """What is to be seen now. The first look may fail; later ones are what was seen before, and why there is nothing new."""
        try:
            now = self._watch.look()
        except PenstockError as error:
            if self._shown is None or not error.retryable:
                raise
            self._before = None  # what happened meanwhile is not what happens now
            self._shown = msgspec.structs.replace(self._shown, error=self._shown.error or _no_answer(error))
            return self._shown
        found = rows(self._before, now, self._order)
        seconds = None if self._before is None else round(now.taken_s - self._before.taken_s, 3)
        self._before = now
        note = None
        if self._outside is not None:
            found = [_without_consumers(row) for row in found]
            note = f"read-only, from the journal that another process has open; synced {output.moment(self._outside.mark.time_us)}"
        self._shown = Frame(str(self._place), self._place.namespace, _now(), seconds, found, note=note)
        return self._shown


def _without_consumers(row: Row) -> Row:
    """Consumers are in the owner's memory only."""
    groups = {name: msgspec.structs.replace(one, consumers=None) for name, one in row.groups.items()}
    return msgspec.structs.replace(row, consumers=None, groups=groups)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _no_answer(error: PenstockError) -> str:
    return f"no answer since {datetime.now().astimezone():%H:%M:%S}: {error}"


# --- in a pipe ---


def _print_once(looking: Looking, *, as_json: bool) -> None:
    looking.next()
    threading.Event().wait(looking.interval_s)
    frame = looking.next()
    if frame.error is not None:
        output.warn(f"penstock: {frame.error}")
        raise typer.Exit(output.WRONG_USE)
    if as_json:
        output.print_json(frame)
    else:
        output.console().print(Screen(frame, looking._order))


def _print_for_ever(looking: Looking, show: Callable[[Frame], None]) -> None:
    while not stdout_is_unread():
        show(looking.next())
        sys.stdout.flush()
        threading.Event().wait(looking.interval_s)


def _print_line(frame: Frame) -> None:
    sys.stdout.write(msgspec.json.encode(frame).decode() + "\n")


# --- on a terminal ---


def _show(looking: Looking) -> None:
    screen = Screen(looking.next(), looking._order, looking.interval_s)
    with (
        sigterm_interrupts(),
        _keys() as pressed,
        Live(
            screen,
            console=Console(file=sys.stdout, highlight=False),
            screen=True,
            refresh_per_second=DRAWN_PER_S,
        ) as live,
    ):
        while pressed(looking.interval_s) not in ("q", "Q"):
            screen.frame = looking.next()
            live.refresh()


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key, for so many seconds; "" if none was pressed. A stdin that is no terminal has no keys."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _waited
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> str:
        if not select.select([fd], [], [], seconds)[0]:
            return ""
        return os.read(fd, 1).decode("latin-1") or "q"  # nothing: the terminal is gone

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _waited(seconds: float) -> str:
    threading.Event().wait(seconds)
    return ""


# --- drawing ---


class Column(NamedTuple):
    """A column of numbers: its heading, of what field, how wide, and how soon it is left out where the terminal is narrow: the highest first."""

    heading: str
    field: str
    width: int
    rank: int


COLUMNS: Final = (
    Column("publish/s", "published_per_s", 9, 1),
    Column("deliver/s", "delivered_per_s", 9, 5),
    Column("ack/s", "acked_per_s", 8, 2),
    Column("depth", "depth", 9, 0),
    Column("ready", "ready", 9, 8),
    Column("delayed", "delayed", 8, 10),
    Column("leased", "leased", 7, 7),
    Column("retrying", "retrying", 8, 9),
    Column("dead", "dead", 7, 4),
    Column("lag", "lag", 9, 3),
    Column("consumers", "consumers", 9, 6),
)


def fitting(width: int) -> list[Column]:
    """The columns that there is room for beside a name."""
    left = width - NAME_COLUMNS - 1
    chosen = set()
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        left -= column.width + 1
        if left < 0:
            break
        chosen.add(column)
    return [column for column in COLUMNS if column in chosen]


class Screen:
    """A frame as a table that fits into the terminal, whatever its size is at the moment."""

    def __init__(self, frame: Frame, order: str, interval_s: float | None = None) -> None:
        self.frame = frame
        self._order = order
        self._interval_s = interval_s  # of a screen that lives; None for what is printed once

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        frame = self.frame
        yield _heading(frame)
        yield _totals(frame.logs)
        if frame.note is not None:
            yield Text(frame.note, style="dim", no_wrap=True, overflow="ellipsis")
        lines = list(_lines(in_order(frame.logs, self._order)))
        height = None if self._interval_s is None else options.height or console.size.height
        room = (
            len(lines) if height is None else max(1, height - 5 - (frame.note is not None))
        )  # heading, totals, note, names of columns, what is left out, footer
        yield _table(lines[:room], options.max_width, dim=frame.error is not None)
        if len(lines) > room:
            yield Text(f"… and {len(lines) - room:,} more lines", style="dim", no_wrap=True)
        if frame.error is not None:
            yield Text(
                f"{output.harmless(frame.error)}; trying again",
                style="bold red",
                no_wrap=True,
                overflow="ellipsis",
            )
        elif self._interval_s is not None:
            yield Text(
                f"q quits · by {self._order} · every {self._interval_s:g} s", style="dim", no_wrap=True
            )


class Line(NamedTuple):
    """A log, or one of its groups or readers below it."""

    name: str
    of: Any
    kind: str


def _heading(frame: Frame) -> Text:
    queues = sum(row.kind == "queue" for row in frame.logs)
    made = Text(no_wrap=True, overflow="ellipsis")
    made.append(output.harmless(frame.where), style="bold")
    if frame.namespace != DEFAULT_NAMESPACE:
        made.append(f"  {frame.namespace}", style="bold")
    topics = len(frame.logs) - queues
    made.append(f"  {queues:,} queues, {topics:,} topics  {frame.time[11:19]}")
    return made


def _totals(found: list[Row]) -> Text:
    rates = (
        f"{name} {_rate(_sum(found, field))}/s"
        for name, field in (
            ("published", "published_per_s"),
            ("delivered", "delivered_per_s"),
            ("acked", "acked_per_s"),
        )
    )
    counts = (f"{name} {sum(getattr(row, name) for row in found):,}" for name in ("depth", "dead"))
    return Text("  ".join((*rates, *counts)), no_wrap=True, overflow="ellipsis")


def _sum(found: list[Row], field: str) -> float | None:
    known = [value for row in found if (value := getattr(row, field)) is not None]
    return sum(known) if known else None


def _lines(found: list[Row]) -> Iterator[Line]:
    for row in found:
        yield Line(row.name, row, row.kind)
        if row.kind == "topic" or set(row.groups) - {"default"}:
            yield from (Line(f"  {name}", share, "group") for name, share in sorted(row.groups.items()))
        yield from (Line(f"  {name} (reader)", lag, "reader") for name, lag in sorted(row.readers.items()))


def _table(lines: list[Line], width: int, *, dim: bool) -> Table:
    made = Table(
        box=None, expand=False, padding=(0, 1, 0, 0), header_style="bold reverse", style="dim" if dim else ""
    )
    columns = fitting(width)
    left = width - sum(column.width + 1 for column in columns) - 1
    with_kind = left >= NAME_COLUMNS + KIND_COLUMNS + 1
    longest = max((len(line.name) for line in lines), default=0)
    made.add_column(
        "name",
        no_wrap=True,
        overflow="ellipsis",
        width=min(max(left - (KIND_COLUMNS + 1) * with_kind, NAME_COLUMNS), max(longest, NAME_COLUMNS)),
    )
    if with_kind:
        made.add_column("kind", width=KIND_COLUMNS, no_wrap=True)
    for column in columns:
        made.add_column(column.heading, justify="right", width=column.width, no_wrap=True)
    for line in lines:
        cells = [Text(output.harmless(line.name), style="" if isinstance(line.of, Row) else "dim")]
        if with_kind:
            cells.append(Text(line.kind, style="dim"))
        cells += [_cell(line.of, column) for column in columns]
        made.add_row(*cells)
    return made


def _cell(of: Any, column: Column) -> Text:
    if isinstance(of, int):  # a reader has a lag and nothing else
        value = of if column.field == "lag" else None
    else:
        value = getattr(of, column.field, None)
    if column.field.endswith("_per_s"):
        return Text(_rate(value) if isinstance(of, Row) else "", style="" if value else "dim")
    if value is None:
        return Text("")
    return Text(_count(value), style="dim" if not value else "red" if column.field == "dead" else "")


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if 0 < value < 100 else _count(round(value))


def _count(value: int) -> str:
    return f"{value:,}" if value < 10_000_000 else f"{value / 1e6:,.1f}M"
