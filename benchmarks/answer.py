"""What a question came to: our figure, the baseline's, their ratio, and the target that it is judged by."""

from __future__ import annotations

from typing import Literal

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. What is `judged` is the ratio or our own figure; without a target nothing is."""

    name: str
    question: str
    unit: str
    ours: float
    baseline: float | None = None
    against: str = ""
    ratio: float | None = None
    judged: Literal["ratio", "ours"] = "ratio"
    wanted: Literal["at least", "at most"] = "at least"
    target: float | None = None
    how: str = ""

    @property
    def value(self) -> float:
        """The figure that the target speaks of."""
        return self.ratio if self.judged == "ratio" and self.ratio is not None else self.ours

    @property
    def score(self) -> float | None:
        """How far the target is met: 1 is just met, more is better, whichever way the figure goes."""
        if self.target is None:
            return None
        small = 1e-9  # a growth of nothing must not divide by zero
        if self.wanted == "at least":
            return self.value / self.target
        return self.target / max(self.value, self.target * small)

    @property
    def met(self) -> bool | None:
        return None if self.score is None else self.score >= 1

    def goal(self) -> str:
        """The target, in words."""
        if self.target is None:
            return ""
        sign = "≥" if self.wanted == "at least" else "<"
        return (
            f"{sign} {self.target:g} ×"
            if self.judged == "ratio"
            else f"{sign} {amount(self.target, self.unit)}"
        )


def amount(value: float, unit: str) -> str:
    """A figure as people write it.

    >>> amount(1_893_000, "messages/s"), amount(0.0712, "s"), amount(3300, "commits/s")
    ('1.89 M/s', '71 ms', '3,300/s')
    """
    if unit.endswith("/s"):
        return f"{value / 1e6:.3g} M/s" if value >= 1e6 else f"{value:,.0f}/s"
    if unit == "s":
        digits = 0 if value >= 0.01 else 2
        return f"{value * 1000:.{digits}f} ms" if value < 1 else f"{value:.2f} s"
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
