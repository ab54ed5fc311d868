"""Answers as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.answer import Answer, amount


def show(title: str, answers: Sequence[Answer], console: Console | None = None) -> None:
    """Print the table, and below it how each figure was come by."""
    console = console or Console()
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", expand=False)
    table.add_column("question", ratio=3, overflow="fold")
    for heading in ("ours", "baseline", "ratio", "target", "met?"):
        table.add_column(heading, justify="right", no_wrap=True)
    for answer in answers:
        table.add_row(*_cells(answer))
    console.print(table)
    for answer in answers:
        console.print(f"[dim]{answer.name}: {_explained(answer)}[/dim]", highlight=False, soft_wrap=True)


def _cells(answer: Answer) -> list[str]:
    return [
        answer.question,
        amount(answer.ours, answer.unit),
        "" if answer.baseline is None else amount(answer.baseline, answer.unit),
        "" if answer.ratio is None else f"{answer.ratio:.3g} ×",
        answer.goal(),
        {None: "[dim]–[/dim]", True: "[green]yes[/green]", False: "[bold red]no[/bold red]"}[answer.met],
    ]


def _explained(answer: Answer) -> str:
    against = f" against {answer.against}" if answer.against else ""
    return f"{answer.unit}{against}; {answer.how}"
