"""The page of a report: one file with everything in it, drawn here, that opens without a network (pure).

Charts are SVG, made of numbers only; every text that came from outside is escaped. Colours are the reader's: light or dark as the system says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

#: Points of a chart: more minutes than that are drawn several in one.
POINTS_MAX: Final = 180

#: Logs, groups of each in a chart, and rows of a table that are drawn; the tables beside the page have all of them.
LOGS_MAX: Final = 40
LINES_MAX: Final = 6
ROWS_MAX: Final = 50

WIDTH: Final = 560
HEIGHT: Final = 190
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 24

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]


class Line(NamedTuple):
    """A series of a chart: its name, and a value for each point (None: there is none)."""

    name: str
    values: Sequence[float | None]
    filled: bool = False
    colour: int | None = None  # by its number, if not in its turn


class Axis:
    """The minutes of a report, in at most `POINTS_MAX` steps."""

    def __init__(self, minutes: Iterable[datetime]) -> None:
        known = sorted(set(minutes)) or [datetime(1970, 1, 1, tzinfo=UTC)]
        self.first, self.last = known[0], known[-1]
        total = round((self.last - self.first).total_seconds() / 60) + 1
        self.step = max(1, ceil(total / POINTS_MAX))
        self.points = max(ceil(total / self.step), 1)

    def place(self, minute: datetime) -> int:
        return int((minute - self.first).total_seconds() // 60 // self.step)

    def sums(self, rows: Iterable[Row], column: str) -> list[float | None]:
        found: list[float | None] = [0.0] * self.points
        for row in rows:
            at = self.place(row["minute"])
            found[at] = (found[at] or 0.0) + (row[column] or 0)
        return found

    def highest(self, rows: Iterable[Row], column: str) -> list[float | None]:
        found: list[float | None] = [None] * self.points
        for row in rows:
            at = self.place(row["minute"])
            if row[column] is not None:
                found[at] = max(found[at] or 0.0, float(row[column]))
        return found

    def lasting(self, rows: Iterable[Row], column: str) -> list[float | None]:
        """A level that stays until it is said to be another."""
        found: list[float | None] = [None] * self.points
        for row in rows:
            found[self.place(row["minute"])] = float(row[column])
        level: float | None = None
        for at, value in enumerate(found):
            level = level if value is None else value
            found[at] = level
        return found

    def label(self, place: int) -> str:
        moment = datetime.fromtimestamp(self.first.timestamp() + 60 * self.step * place, UTC)
        return moment.strftime("%H:%M" if (self.last - self.first).days < 1 else "%d %b %H:%M")


def render(title: str, rows: Rows, made: datetime, skipped: Sequence[str] = ()) -> str:
    """The page. `skipped` says what could not be read."""
    stamped = [row["minute"] for name in ("published", "activity", "lag") for row in rows[name]]
    axis = Axis(stamped)
    names = _names(rows)
    parts = [
        f"<header><h1>{escape(title)}</h1><p>{_span(axis, bool(stamped))}</p></header>",
        _skipped(skipped),
        _tiles(rows),
        _contents(names),
        *(_section(name, rows, axis) for name in names[:LOGS_MAX]),
    ]
    if len(names) > LOGS_MAX:
        parts.append(f"<p>{len(names) - LOGS_MAX} more logs are in the tables beside this page.</p>")
    parts.append(f"<footer>Made by Penstock on {made:%Y-%m-%d %H:%M} UTC. Times are UTC.</footer>")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}: report</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _names(rows: Rows) -> list[tuple[str, str]]:
    """Logs, the busiest first."""
    weight: dict[tuple[str, str], int] = {}
    for row in rows["published"]:
        name = (row["namespace"], row["log"])
        weight[name] = weight.get(name, 0) + row["published"]
    for table in ("activity", "lag"):
        for row in rows[table]:
            weight.setdefault((row["namespace"], row["log"]), 0)
    return sorted(weight, key=lambda name: (-weight[name], name))


def _span(axis: Axis, known: bool) -> str:
    if not known:
        return "Nothing has happened yet."
    each = "minute" if axis.step == 1 else f"{axis.step} minutes"
    return f"{axis.first:%Y-%m-%d %H:%M} to {axis.last:%Y-%m-%d %H:%M} UTC; each point is {each}"


def _skipped(found: Sequence[str]) -> str:
    if not found:
        return ""
    lines = "".join(f"<li>{escape(one)}</li>" for one in found)
    return f'<section class="lost"><h2>Not everything could be read: the numbers are too low</h2><ul>{lines}</ul></section>'


def _tiles(rows: Rows) -> str:
    activity = rows["activity"]
    dead = sum(row["dead"] for row in activity)
    tiles = [
        ("published", sum(row["published"] for row in rows["published"]), ""),
        ("delivered", sum(row["delivered"] for row in activity), ""),
        ("acknowledged", sum(row["acked"] for row in activity), ""),
        ("retries", sum(row["retries"] for row in activity), ""),
        ("dead letters", dead, " bad" if dead else ""),
    ]
    return '<div class="tiles">' + "".join(
        f'<div class="tile{more}"><b>{_number(value)}</b><span>{name}</span></div>' for name, value, more in tiles
    ) + "</div>"  # fmt: skip


def _contents(names: list[tuple[str, str]]) -> str:
    if len(names) < 2:
        return ""
    links = " ".join(f'<a href="#{_anchor(name)}">{escape(_shown(name))}</a>' for name in names[:LOGS_MAX])
    return f"<nav>{links}</nav>"


def _anchor(name: tuple[str, str]) -> str:
    """Names have only letters, digits and . - _ : @; what came from elsewhere may have anything."""
    return escape("log-" + "-".join(name), quote=True).replace(" ", "-")


def _shown(name: tuple[str, str]) -> str:
    return name[1] if name[0] == "default" else "/".join(name)


def _section(name: tuple[str, str], rows: Rows, axis: Axis) -> str:
    mine = {
        table: [row for row in found if (row["namespace"], row["log"]) == name]
        for table, found in rows.items()
    }
    groups = sorted({row["group"] for table in ("activity", "lag") for row in mine[table]})
    shown = groups[:LINES_MAX]

    def of(table: str, group: str) -> list[Row]:
        return [row for row in mine[table] if row["group"] == group]

    flow = [Line("published", axis.sums(mine["published"], "published"), filled=True)]
    flow += [
        Line(
            f"acknowledged by {group}" if len(groups) > 1 else "acknowledged",
            axis.sums(of("activity", group), "acked"),
        )
        for group in shown
    ]
    trouble = [
        Line("retries", axis.sums(mine["activity"], "retries")), Line("dead letters", axis.sums(mine["activity"], "dead"), colour=4),
    ]  # fmt: skip
    latency = [Line(f"{p}", axis.highest(mine["latency"], f"ack_{p}_ms")) for p in ("p50", "p95", "p99")]
    lag = [Line(group, axis.lasting(of("lag", group), "lag"), filled=len(groups) == 1) for group in shown]
    charts = [
        _chart(f"Messages per {'minute' if axis.step == 1 else f'{axis.step} minutes'}", flow, axis),
        _chart("From published to acknowledged (the slowest group)", latency, axis, times=True),
        _chart("Lag: messages not settled", lag, axis),
        _chart("Retries and dead letters", trouble, axis),
    ]
    return (
        f'<section id="{_anchor(name)}"><h2>{escape(_shown(name))}</h2><div class="charts">{"".join(charts)}</div>'
        + _groups_table(mine, groups)
        + _dead_table(mine["dead"])
        + _keys_table(mine["keys"])
        + "</section>"
    )


def _groups_table(mine: Rows, groups: list[str]) -> str:
    lines = []
    for group in groups:
        activity = [row for row in mine["activity"] if row["group"] == group]
        times = next((row for row in mine["groups"] if row["group"] == group), {})
        lag = [row["lag"] for row in mine["lag"] if row["group"] == group]
        counts = [
            sum(row[column] for row in activity)
            for column in ("delivered", "acked", "retries", "dead", "expired")
        ]
        waits = [times.get(f"{what}_{p}_ms") for what in ("delivery", "ack") for p in ("p50", "p95", "p99")]
        lines.append([group, *counts, *(_ms(wait) for wait in waits), lag[-1] if lag else 0])
    heads = [
        "group", "delivered", "acked", "retries", "dead", "expired", "first delivery p50", "p95", "p99", "ack p50", "p95", "p99", "lag",
    ]  # fmt: skip
    return _table("Groups", heads, lines, texts=1)


def _dead_table(rows: Sequence[Row]) -> str:
    lines = [
        [
            row["group"],
            row["reason"],
            row["signature"] or "(no error given)",
            row["example"] or "",
            row["count"],
            f"{row['last']:%m-%d %H:%M}",
        ]
        for row in rows
    ]
    return _table(
        "Dead letters",
        ["group", "reason", "error, in general", "for example", "count", "last"],
        lines,
        texts=4,
    )


def _keys_table(rows: Sequence[Row]) -> str:
    """Bars: what matters is how much bigger the first ones are."""
    if not rows:
        return ""
    most = max(row["messages"] for row in rows)
    bars = "".join(
        f'<div><i style="width:{100 * row["messages"] / most:.1f}%"></i><span>{escape(row["key"])}</span><b>{_number(row["messages"])}</b></div>'
        for row in rows
    )
    return f'<h3>Biggest keys</h3><div class="bars">{bars}</div>'


def _table(title: str, heads: Sequence[str], lines: Sequence[Sequence[Any]], *, texts: int) -> str:
    """A table whose first columns are texts and whose others are numbers."""
    if not lines:
        return ""

    def cells(tag: str, values: Sequence[Any]) -> str:
        found = []
        for place, value in enumerate(values):
            shown = _number(value) if isinstance(value, int) else str(value)
            kind = "" if place < texts else ' class="n"'
            found.append(f"<{tag}{kind}>{escape(shown)}</{tag}>")
        return "<tr>" + "".join(found) + "</tr>"

    body = "".join(cells("td", line) for line in lines[:ROWS_MAX])
    more = (
        f"<p>{len(lines) - ROWS_MAX} more are in the tables beside this page.</p>"
        if len(lines) > ROWS_MAX
        else ""
    )
    return f'<h3>{escape(title)}</h3><div class="wide"><table><thead>{cells("th", heads)}</thead><tbody>{body}</tbody></table></div>{more}'


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 60_000:
        return f"{value / 60_000:.1f} min"
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


# --- charts ---


def _chart(title: str, lines: Sequence[Line], axis: Axis, *, times: bool = False) -> str:
    drawn = [line for line in lines if any(value is not None for value in line.values)]
    if not any(value for line in drawn for value in line.values):
        return f'<figure><figcaption>{escape(title)}</figcaption><div class="none">none</div></figure>'
    highest = max(value or 0.0 for line in drawn for value in line.values)
    unit = next((size for size, _ in _UNITS if highest >= 2 * size), 1) if times else 1
    top, ticks = _scale(highest / unit)
    top, ticks = top * unit, [tick * unit for tick in ticks]
    parts = [_grid(top, ticks, times=times), _dates(axis)]
    parts += [_drawn(line, number, top, axis) for number, line in enumerate(drawn)]
    legend = "".join(
        f'<span class="key {_colour(line, number)}">{escape(line.name)}</span>'
        for number, line in enumerate(drawn)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'
        f'<div class="legend">{legend}</div></figure>'
    )


def _colour(line: Line, number: int) -> str:
    return f"c{number % LINES_MAX if line.colour is None else line.colour}"


def _scale(highest: float) -> tuple[float, list[float]]:
    """A round number above the highest value, and where to draw lines below it."""
    raw = max(highest, 1e-9) / 4
    power = 10 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw - 1e-12)
    if highest >= 4:
        step = max(1, round(step)) if step >= 1 else step
    count = max(ceil(highest / step - 1e-9), 1)
    return step * count, [step * number for number in range(count + 1)]


def _x(place: float, axis: Axis) -> float:
    wide = WIDTH - LEFT - RIGHT
    return LEFT + (wide / 2 if axis.points == 1 else place * wide / (axis.points - 1))


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _grid(top: float, ticks: Iterable[float], *, times: bool) -> str:
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(tick, top):.1f}" y2="{_y(tick, top):.1f}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{_y(tick, top) + 3.5:.1f}" text-anchor="end">{_brief_ms(tick) if times else _short(tick)}</text>'
        for tick in ticks
    )


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


_UNITS: Final = ((3_600_000, "h"), (60_000, "min"), (1000, "s"))


def _brief_ms(value: float) -> str:
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} ms" if value else "0"


def _dates(axis: Axis) -> str:
    wanted = 2 if (axis.last - axis.first).days else 4
    places = sorted({round(part * (axis.points - 1) / wanted) for part in range(wanted + 1)})
    found = []
    for number, place in enumerate(places):
        anchor = (
            "middle"
            if len(places) == 1
            else "start"
            if number == 0
            else "end"
            if number == len(places) - 1
            else "middle"
        )
        found.append(
            f'<text class="tick" x="{_x(place, axis):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{axis.label(place)}</text>'
        )
    return "".join(found)


def _drawn(line: Line, number: int, top: float, axis: Axis) -> str:
    """A line, broken where there is no value; a single point between gaps is a dot."""
    colour = _colour(line, number)
    found = []
    for run in _runs(line.values):
        points = [(_x(place, axis), _y(value, top)) for place, value in run]
        if len(points) == 1:
            found.append(
                f'<circle class="{colour}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5"/>'
            )
            continue
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        if line.filled:
            floor_y = HEIGHT - BOTTOM
            found.append(
                f'<path class="area {colour}" d="M{points[0][0]:.1f} {floor_y}L{path}L{points[-1][0]:.1f} {floor_y}Z"/>'
            )
        found.append(f'<path class="line {colour}" d="M{path}"/>')
    return "".join(found)


def _runs(values: Sequence[float | None]) -> Iterable[list[tuple[int, float]]]:
    run: list[tuple[int, float]] = []
    for place, value in enumerate(values):
        if value is not None:
            run.append((place, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


STYLE: Final = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#66727f;--rule:#e3e7ec;--bad:#c2362f;
--c0:#2f6fde;--c1:#12956a;--c2:#d9822b;--c3:#8a4fd0;--c4:#c7407f;--c5:#5b7083}
@media (prefers-color-scheme:dark){:root{--paper:#12171d;--card:#1a2129;--ink:#e4e9ef;--soft:#93a0ad;--rule:#2b3540;--bad:#ff7b72;
--c0:#6ea3ff;--c1:#43c792;--c2:#f0a75b;--c3:#b98bf5;--c4:#f27fb1;--c5:#9fb2c4}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 20px 60px}
header h1{margin:0;font-size:26px;font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}
header p{margin:2px 0 18px;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:18px}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px 16px}
.tile b{display:block;font-size:25px;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.25}
.tile span{color:var(--soft);font-size:13px}.tile.bad b{color:var(--bad)}
nav{display:flex;flex-wrap:wrap;gap:6px 14px;margin-bottom:6px}
nav a{color:var(--c0);text-decoration:none;overflow-wrap:anywhere}nav a:hover{text-decoration:underline}
section{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:18px 20px;margin:18px 0}
section.lost{border-color:var(--bad)}section.lost h2{color:var(--bad)}
h2{margin:0 0 10px;font-size:19px;font-weight:650;overflow-wrap:anywhere}
h3{margin:18px 0 6px;font-size:14px;font-weight:600;color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:18px 24px}
figure{margin:0;min-width:0}figcaption{font-size:14px;font-weight:600;color:var(--soft);margin-bottom:4px}
svg{display:block;width:100%;height:auto}
.grid{stroke:var(--rule);stroke-width:1}.tick{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
.line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.area{fill:currentColor;opacity:.14}circle{fill:currentColor}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;padding-left:52px;font-size:13px}
.key::before{content:"";display:inline-block;width:10px;height:10px;border-radius:3px;background:currentColor;margin-right:6px}
.none{display:grid;place-items:center;height:110px;border:1px dashed var(--rule);border-radius:8px;color:var(--soft);font-size:13px}
.bars{columns:2 380px;column-gap:32px;font-size:14px}
.bars div{position:relative;display:flex;justify-content:space-between;gap:12px;padding:3px 8px;margin-bottom:3px;break-inside:avoid}
.bars i{position:absolute;inset:0 auto 0 0;background:var(--c0);opacity:.16;border-radius:4px}
.bars span{overflow-wrap:anywhere}.bars b{font-weight:500;font-variant-numeric:tabular-nums;white-space:nowrap}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top;max-width:420px;overflow-wrap:anywhere}
th{font-size:12px;font-weight:600;color:var(--soft);white-space:nowrap}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
footer{color:var(--soft);font-size:13px;margin-top:22px}
""".strip()
