"""What happened to the messages of one log, as numbers that only grow.

They count since the broker was opened, and are not stored: a monitoring system knows what to do with a counter that begins anew, and what must
survive is in the journal. What every single message touches on its shortest way (`Log.published`, `Log.delivered`, `Log.acked`) stands on the log
itself; everything here is counted by commands, once for all their messages.
"""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct):
    """In messages; one that several groups see is counted in each of them."""

    nacked: int = 0  # a consumer said that it failed, whatever became of it
    rejected: int = 0  # a consumer said that it failed for good
    returned: int = 0  # given back unsettled, by a consumer or because it went
    lease_expired: int = 0  # nobody settled it in time, or an earlier owner of the journal had it in hand
    dead_lettered: int = 0  # moved to the dead letters
    expired: int = 0  # its time was over: dropped, or dead-lettered
    dropped: int = 0  # to make room, unreadable, or rejected where there are no dead letters
    purged: int = 0
    redriven: int = 0  # moved from these dead letters to where it failed
    deduplicated: int = 0  # published again, and known by its dedup id

    def add(self, other: Counts) -> None:
        """Count what another one has counted, too."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTED = Counts.__struct_fields__
