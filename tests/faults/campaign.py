"""How long a campaign is."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def rounds(default: int = 100) -> int:
    """`make faults ROUNDS=…`."""
    return int(os.environ.get("PENSTOCK_FAULT_ROUNDS", default))


def some(items: Sequence[Item], count: int, seed: object) -> list[Item]:
    """At most `count` of them, spread over all, always the same ones for a seed."""
    if len(items) <= count:
        return list(items)
    chance = random.Random(str(seed))
    step = len(items) / count
    places = {int(at * step + chance.random() * step) for at in range(count)}  # two may meet at a border
    return [items[place] for place in sorted(places)]
