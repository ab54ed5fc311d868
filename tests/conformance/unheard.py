"""Time that passes before anybody has noticed."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import ManualClock


class UnheardClock(ManualClock):
    """A clock whose moves no broker hears of, until somebody calls it or has it look at the clock.

    A broker must do the same whether its timer was in time or is late. With a `ManualClock` it is never late.
    """

    def tell(self, follower: Callable[[], object]) -> None:
        """Nobody is told."""
