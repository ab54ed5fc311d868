"""Messages of one key, one at a time, in a log with `ordering="key"`.

Theory of operation
-------------------
Of each key one message is *foremost*: it stands in a lane, is leased, or waits for its next attempt. The others of that key that are due
are *parked* here. When the foremost one is settled for good, the oldest that is parked takes its place. So the messages of a key
are never out of order or handed out together, a key that is stuck blocks only itself, and what is parked is not looked at again
until its turn comes.

A message without a key is never parked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class Keys:
    """The keys of a group that have unsettled messages."""

    __slots__ = ("_foremost", "_keys", "_parked", "parked")

    def __init__(self) -> None:
        self._foremost: dict[str, int] = {}
        self._keys: dict[int, str] = {}  # of every message here
        self._parked: dict[str, deque[int]] = {}
        self.parked = 0

    def __bool__(self) -> bool:
        return bool(self._keys)

    def arrive(self, key: str, offset: int) -> bool:
        """A message is due: True if it is its key's foremost now, False if it was parked."""
        self._keys[offset] = key
        if key not in self._foremost:
            self._foremost[key] = offset
            return True
        self._park(key, offset)
        return False

    def foremost(self, key: str) -> int | None:
        """The message that stands for a key."""
        return self._foremost.get(key)

    def take_place(self, key: str, offset: int) -> None:
        """A message that is due stands for its key from now on; the one that did is parked."""
        self._park(key, self._foremost[key])
        self._keys[offset] = key
        self._foremost[key] = offset

    def _park(self, key: str, offset: int) -> None:
        waiting = self._parked.get(key)
        if waiting is None:
            self._parked[key] = deque((offset,))
        elif offset > waiting[-1]:  # nearly always
            waiting.append(offset)
        else:
            insort(waiting, offset)
        self.parked += 1

    def settled(self, offset: int) -> int | None:
        """A message is gone for good: the one that takes its place as its key's foremost, if there is one."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        if self._foremost[key] != offset:
            self._unpark(key, offset)
            return None
        waiting = self._parked.get(key)
        if not waiting:
            del self._foremost[key]
            return None
        following = self._foremost[key] = waiting[0]
        self._unpark(key, following)
        return following

    def _unpark(self, key: str, offset: int) -> None:
        waiting = self._parked[key]
        if waiting[0] == offset:
            waiting.popleft()
        else:
            del waiting[bisect_left(waiting, offset)]
        self.parked -= 1
        if not waiting:
            del self._parked[key]

    def key_of(self, offset: int) -> str | None:
        """The key of a message that is here."""
        return self._keys.get(offset)

    def is_parked(self, offset: int) -> bool:
        """Whether it waits for another message of its key."""
        key = self._keys.get(offset)
        return key is not None and self._foremost[key] != offset

    # --- storing ---

    def encode(self) -> dict[str, list[int]]:
        """For each key the foremost offset, then those that are parked."""
        return {key: [offset, *self._parked.get(key, [])] for key, offset in self._foremost.items()}

    @classmethod
    def decode(cls, stored: dict[str, list[int]]) -> Keys:
        """What `encode` gave."""
        keys = cls()
        for key, (foremost, *parked) in stored.items():
            keys._foremost[key] = foremost
            keys._keys.update(dict.fromkeys((foremost, *parked), key))
            if parked:
                keys._parked[key] = deque(parked)
                keys.parked += len(parked)
        return keys
