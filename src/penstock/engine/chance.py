"""Chance, from a seed: the same seed gives the same jitter, so a test and a replay know it in advance.

SplitMix64, which is small and passes the usual tests; nothing here is secret.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


class Chance:
    """A stream of numbers from 0 to 1.

    >>> Chance(1).unit() == Chance(1).unit()
    True
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def unit(self) -> float:
        """The next one: at least 0, below 1."""
        self._state = (self._state + _STEP) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)
