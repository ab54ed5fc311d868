"""The way of measuring: ours and the baselines take turns, so that whatever else the machine does hits them alike.

A *contender* does a fixed amount of work and returns how much of it got done per second. Each round runs every contender once,
in an order that turns about from round to round; the first round only warms up. A ratio is taken within each round,
and the median of these is what counts. Where two are nearly alike, they take turns within a round too (`side_by_side`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

Contender = Callable[[], float]


class Contest(NamedTuple):
    """The rates of each contender, ours first, round by round."""

    rates: list[list[float]]

    @property
    def ours(self) -> float:
        return median(self.rates[0])

    def baseline(self, number: int = 1) -> float:
        """The median rate of a baseline."""
        return median(self.rates[number])

    def ratio(self, number: int = 1) -> float:
        """The median of ours over a baseline's, round by round."""
        return median(a / b for a, b in zip(self.rates[0], self.rates[number], strict=True))

    @property
    def how(self) -> str:
        return f"median of {len(self.rates[0])} interleaved rounds"


def contest(contenders: Sequence[Contender], rounds: int) -> Contest:
    """Let the contenders take turns."""
    rates: list[list[float]] = [[] for _ in contenders]
    places = list(range(len(contenders)))
    for turn in range(rounds + 1):
        for place in places if turn % 2 else reversed(places):
            gc.collect()
            rate = contenders[place]()
            if turn:
                rates[place].append(rate)
    return Contest(rates)


def side_by_side(works: Sequence[Callable[[], object]], turns: int, amount: int, rounds: int) -> Contest:
    """Let pieces of work take turns within each round too, where they hardly differ; rates, if each piece does an `amount`."""
    rates: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        gc.collect()
        seconds = _in_turn(works, turns)
        if number:
            for place, spent in enumerate(seconds):
                rates[place].append(turns * amount / spent)
    return Contest(rates)


def _in_turn(works: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """The seconds that each took; nobody is always the first, or behind the same one."""
    seconds = [0.0 for _ in works]
    clock, places = time.perf_counter, list(range(len(works)))
    for turn in range(turns):
        for place in places if turn % 2 else reversed(places):
            started = clock()
            works[place]()
            seconds[place] += clock() - started
        places.append(places.pop(0))
    return seconds


def rate(work: Callable[[], object], amount: int) -> float:
    """How much of `amount` is done per second by `work`."""
    started = time.perf_counter()
    work()
    return amount / (time.perf_counter() - started)
