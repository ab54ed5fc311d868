"""Who of those that wait gets how many messages: round-robin, least-busy or random.

A pure function over what each one wants. Messages are dealt like cards, one after the other, so that two consumers who wait for a hundred each, and find ten, get five each. Who
was given nothing for the longest time comes first (round-robin), or who has least in hand (least-busy), or anybody (random).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from penstock.engine.group import Strategy


class Want(NamedTuple):
    """Somebody who waits: for how many, when he was last given something (counted), and how much he has in hand."""

    most: int
    turn: int
    busy: int


def shares(strategy: Strategy, ready: int, wants: list[Want], unit: Callable[[], float]) -> list[int]:
    """How many messages each one gets. `unit` draws a number from 0 to 1.

    >>> shares("round-robin", 10, [Want(100, 0, 0), Want(100, 0, 0), Want(2, 0, 0)], lambda: 0.0)
    [4, 4, 2]
    """
    if len(wants) == 1:
        return [min(ready, wants[0].most)]
    if strategy == "random":
        return _at_random(ready, wants, unit)
    return _in_turn(ready, wants, by_load=strategy == "least-busy")


def _in_turn(ready: int, wants: list[Want], *, by_load: bool) -> list[int]:
    given = [0] * len(wants)
    line = [(want.busy if by_load else 0, want.turn, place) for place, want in enumerate(wants) if want.most]
    heapq.heapify(line)
    while ready and line:
        load, turn, place = line[0]
        given[place] += 1
        ready -= 1
        if given[place] < wants[place].most:
            heapq.heapreplace(line, (load + 1, turn, place))
        else:
            heapq.heappop(line)
    return given


def _at_random(ready: int, wants: list[Want], unit: Callable[[], float]) -> list[int]:
    given = [0] * len(wants)
    line = [place for place, want in enumerate(wants) if want.most]
    while ready and line:
        at = min(int(unit() * len(line)), len(line) - 1)
        place = line[at]
        given[place] += 1
        ready -= 1
        if given[place] == wants[place].most:
            del line[at]
    return given
