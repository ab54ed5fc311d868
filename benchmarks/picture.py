"""Answers as a picture: a bar for each, from the target's line to where the figure is. To the right is better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.answer import Answer, amount

mpl.use("Agg")

MET = "#2a7f9e"
MISSED = "#c8553d"
INK = "#24292f"
FAINT = "#d8dee4"


def draw(title: str, answers: Sequence[Answer], path: Path) -> None:
    """Write the PNG. Only answers that are judged are in it, at the most ten times the target wide."""
    import matplotlib.pyplot as plt

    judged = [answer for answer in answers if answer.score is not None]
    if not judged:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.size": 10, "text.color": INK, "font.family": "DejaVu Sans"}):
        figure, axes = plt.subplots(figsize=(10, 1.3 + 0.52 * len(judged)), facecolor="white")
        _bars(axes, judged)
        _frame(axes)
        figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold")
        figure.tight_layout()
        figure.savefig(path, dpi=160, bbox_inches="tight", pad_inches=0.25)
        plt.close(figure)


WIDEST = 10.0
NARROWEST = 0.1


def _bars(axes: Any, judged: Sequence[Answer]) -> None:
    low = min([0.8, *(max(answer.score or 0, NARROWEST) * 0.8 for answer in judged)])
    for row, answer in enumerate(judged):
        score = min(max(answer.score or 0, NARROWEST), WIDEST)
        colour = MET if answer.met else MISSED
        axes.barh(row, score - 1, left=1, height=0.56, color=colour, zorder=2)
        beyond = " →" if (answer.score or 0) > WIDEST else ""
        axes.annotate(
            _label(answer) + beyond, (max(score, 1), row), xytext=(6, 0), textcoords="offset points",
            va="center", fontsize=9, zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    axes.set_yticks(range(len(judged)), [answer.question for answer in judged])
    axes.set_ylim(len(judged) - 0.4, -0.7)
    axes.set_xscale("log")
    axes.set_xlim(low, WIDEST * 3.2)


def _label(answer: Answer) -> str:
    value = amount(answer.ours, answer.unit)
    if answer.ratio is not None and answer.judged == "ratio":
        value += (
            f", {answer.ratio:.3g} × {answer.against}"
            if len(answer.against) < 28
            else f", {answer.ratio:.3g} ×"
        )
    return f"{value}   (target {answer.goal()})"


def _frame(axes: Any) -> None:
    ticks = [tick for tick in (0.1, 0.25, 0.5, 1, 2, 5, 10) if tick >= axes.get_xlim()[0]]
    axes.set_xticks(ticks, ["target" if tick == 1 else f"{tick:g} ×" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color=INK, linewidth=1, zorder=3)
    axes.grid(axis="x", color=FAINT, linewidth=0.7, zorder=0)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)
