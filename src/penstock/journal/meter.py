"""How commits went: counted by the one who leads them, in a few additions for each commit, whatever it holds.

Histograms have buckets of powers of two, so that finding one is a single look at a number's length: bucket `n` counts numbers of `n` bits. Whoever leads counts, in
line, since a call would cost more than the counting; it is alone. Who reads meanwhile may find a commit counted in one place and not yet in the other.
"""

from __future__ import annotations

from typing import Final

#: More nanoseconds than anybody waits, more messages than a frame holds.
BUCKETS: Final = 64


class Histogram:
    """Numbers above 0, by how many bits they have: those of bucket `n` are below 2^n, and not below half of that."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.total = 0


class Meter:
    """What a journal counts of its own commits since it was opened."""

    __slots__ = ("commits", "messages", "syncs")

    def __init__(self) -> None:
        self.commits = (
            Histogram()
        )  # ns from the beginning of a commit until it was synced, for those that wait for that
        self.syncs = Histogram()  # ns of the syncs alone, whoever waits for them
        self.messages = Histogram()  # in a commit that has some
