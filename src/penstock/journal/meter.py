"""How commits went: counted by the one who leads them, a few additions for each commit, whatever it holds.

Histograms have buckets of powers of two, so that finding one is a single look at a number's length. Bucket `n` of latencies counts
what took less than 2^n microseconds and not less than half of that; of sizes, up to 2^n messages and more than half of that. Whoever leads is alone; who reads meanwhile
may find a commit counted in one place and not yet in the other.
"""

from __future__ import annotations

from typing import Final

from penstock import limits

#: More than a minute (2^26 µs) is one bucket.
LATENCY_BUCKETS: Final = 27

#: A frame holds no more messages than the last but one says.
SIZE_BUCKETS: Final = (limits.FRAME_ROWS_MAX - 1).bit_length() + 2


class Histogram:
    """Numbers, by the powers of two that they are below or at."""

    __slots__ = ("buckets", "total")

    def __init__(self, buckets: int) -> None:
        self.buckets = [0] * buckets
        self.total = 0

    @property
    def count(self) -> int:
        return sum(self.buckets)


class Meter:
    """What a journal counts of its own commits since it was opened."""

    __slots__ = ("appends", "messages", "synced", "syncs", "written")

    def __init__(self) -> None:
        self.written = Histogram(LATENCY_BUCKETS)  # ns of commits that only wrote
        self.synced = Histogram(LATENCY_BUCKETS)  # ns of commits until they were synced
        self.messages = Histogram(SIZE_BUCKETS)  # messages in a commit that has some
        self.appends = 0  # what callers asked to be committed; many of them share a commit
        self.syncs = 0  # of the file, for whatever reason

    def committed(self, taken: Histogram, ns: int, appends: int) -> None:
        """A commit took so long, for so many callers."""
        taken.total += ns
        taken.buckets[min((ns // 1000).bit_length(), LATENCY_BUCKETS - 1)] += 1
        self.appends += appends

    def held(self, messages: int) -> None:
        """A commit held messages."""
        self.messages.total += messages
        self.messages.buckets[(messages - 1).bit_length()] += 1
