"""Dead letters: messages that failed for good go to a queue of their own, and back when somebody redrives them.

Theory of operation
-------------------
Moving a message to the dead letters and removing it from where it failed is one unit, and so is moving it back. What is moved is stored again, with
a new id and offset: where a message is stored and where it came from are cleaned at different times.

A dead letter has nowhere else to go: it may be attempted without a limit, and rejecting it ends it. A queue that others name as theirs for dead letters
may also have messages of its own; those are what its own policy says, so the two are told apart by their headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.clock import SECOND_US
from penstock.engine import letter, overflow
from penstock.engine.change import Change, Content, add_row, empty_batch
from penstock.engine.events import Outcome, Settled
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.errors import DiskFull
from penstock.limits import ERROR_CHARS_MAX
from penstock.model.batch import Batch
from penstock.model.commands import DEFAULT_GROUP
from penstock.names import is_dead_letter_name
from penstock.ranges import RangeSet

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

#: Dead letters that are moved in one unit: so many, and of so many bytes.
BURIED_AT_ONCE: Final = 100
BURIED_BYTES: Final = 8 << 20

#: Messages that expire are moved in turns, so that others can do something between: so many, or of so many bytes as
#: above. Moving a thousand takes some 10 ms.
BURIED_IN_A_TURN: Final = 1000
TURN_US: Final = 20_000

#: More than the headers of a dead letter and its settlement take, an error of the greatest length included.
LETTER_OVERHEAD_BYTES: Final = 4 * ERROR_CHARS_MAX + 4096


def mortal(engine: Engine, log: Log, offsets: list[int]) -> list[int]:
    """Those that are no dead letters."""
    if not offsets or not engine.is_shared_grave(log):
        return offsets
    contents = zip(offsets, engine.fetch(log, offsets), strict=True)
    return [offset for offset, found in contents if found is None or not letter.is_letter(found.headers)]


def bury(
    engine: Engine, log: Log, group: Group, offsets: list[int], reason: str, error: str | None, now_us: int, change: Change,
    *, bytes_max: int | None = None,
) -> list[int]:  # fmt: skip
    """Move messages to the dead letters, each in one unit with its removal. Dead letters themselves are dropped.

    On a full disk it raises `DiskFull`, with nothing changed; if it is full only for the later ones of many, those are given back,
    as are those behind the first ones that have `bytes_max`.
    """
    octets = 0
    for start in range(0, len(offsets), BURIED_AT_ONCE):
        part = offsets[start : start + BURIED_AT_ONCE]
        contents = _contents(engine, log, part)
        for low, high in _bounded(contents):
            size = sum(map(_stored_bytes, contents[low:high]))
            try:
                engine.make_sure_of_room(change.bytes + size, False)
            except DiskFull:
                if start + low == 0:
                    raise
                return offsets[start + low :]
            _bury_part(engine, log, group, part[low:high], contents[low:high], reason, error, now_us, change)
            change.bytes += size
            if high - low < len(offsets):
                change.cut()
            octets += sum(len(one.payload) for one in contents[low:high] if one is not None)
            if bytes_max is not None and octets >= bytes_max:
                return offsets[start + high :]
    return []


def _contents(engine: Engine, log: Log, offsets: list[int]) -> list[Content | None]:
    """What is to be buried; None for what cannot be read any more, and for dead letters, which are dropped."""
    if is_dead_letter_name(log.name):
        return [None] * len(offsets)
    found = engine.fetch(log, offsets)
    if engine.is_shared_grave(log):
        return [None if one is None or letter.is_letter(one.headers) else one for one in found]
    return found


def _bury_part(
    engine: Engine, log: Log, group: Group, offsets: list[int], contents: list[Content | None], reason: str, error: str | None,
    now_us: int, change: Change,
) -> None:  # fmt: skip
    """One that cannot be read any more is left out of the letters: the journal has said that it is damaged."""
    attempts = [group.tally.get(offset) + (offset in group.leases) for offset in offsets]
    letters = empty_batch(now_us)
    for offset, attempt, content in zip(offsets, attempts, contents, strict=True):
        if content is not None:
            headers = letter.headers_of(
                content.headers, origin=log.name, group=group.name, id=content.id, reason=reason, error=error,
                attempts=attempt, first_us=group.tally.first_failed(offset) or now_us, last_us=now_us,
            )  # fmt: skip
            add_row(letters, content, headers)
    if letters.payloads:
        letters.ids = engine.take_ids(len(letters.payloads))
        engine.append(engine.dead_letters(log, now_us, change), letters, change)
    outcome = Outcome.DEAD if letters.payloads else Outcome.DROPPED
    log.counts.dead_lettered += len(letters.payloads)
    log.counts.dropped += len(offsets) - len(letters.payloads)
    engine.withdraw(log, group, offsets)
    engine.end(log, group, offsets, now_us)
    change.say(
        group,
        Settled(log.number, group.name, offsets, outcome, attempts, None, None, error or reason, now_us),
    )


def buried_bytes(engine: Engine, log: Log, offsets: Sequence[int]) -> int:
    """More than the dead letters of messages would take."""
    return sum(map(_stored_bytes, engine.fetch(log, offsets)))


# --- and back ---


def origin(engine: Engine, log: Log, headers: Mapping[str, str]) -> Log | None:
    """The log that a dead letter came from, if it still exists."""
    return engine.find(log.namespace, headers.get(letter.ORIGIN, ""))


def has_way_back(engine: Engine, log: Log, headers: Mapping[str, str], to: Log | None) -> bool:
    """Whether a message is a dead letter that can go back, or to another log: what a queue has of its own beside them stays."""
    if not (is_dead_letter_name(log.name) or letter.is_letter(headers)):
        return False
    home = to or origin(engine, log, headers)
    if home is None:
        return False
    # Where a group or a subscription has ended, nobody else is to get what failed for it.
    if to is not None or headers.get(letter.ORIGIN_GROUP) in home.groups:
        return True
    return home.kind == "queue" and not home.groups  # its own group comes with it


def redrive(
    engine: Engine, log: Log, offsets: Sequence[int], to: Log | None, now_us: int, change: Change
) -> list[int]:
    """Move dead letters back to where they failed, or to another log, as far as there is room; which ones were moved.

    What is handed out, or settled, is left where it is. If the first has no room it is `QueueFull`.
    """
    moved: list[int] = []
    for offset, content in zip(offsets, engine.fetch(log, offsets), strict=True):
        if content is None or not pending(log, range(offset, offset + 1)) or is_leased(log, offset):
            continue
        headers = content.headers or {}
        target = to or origin(engine, log, headers)
        if target is None:
            continue
        back = empty_batch(now_us)
        add_row(back, content, letter.headers_back(headers))
        if not _fits(target, back):
            if not moved:
                raise overflow.refusal(target, 1, back.size)
            break
        back.ids = engine.take_ids(1)
        name = headers.get(letter.ORIGIN_GROUP)
        back.target_group = name if to is None and name in target.groups else None
        if target.policy.ttl is not None:
            back.expires_at = now_us + round(target.policy.ttl * SECOND_US)
        engine.append(target, back, change)
        moved.append(offset)
    for group in log.all_groups():
        here = [offset for offset in sorted(moved) if offset not in group.settled]
        engine.settle(log, group, here, Outcome.REDRIVEN, now_us, change)
    return moved


def pending(log: Log, span: range) -> list[range]:
    """Which letters of a span nobody has dealt with: by the queue's own group, if it has one; what others look at beside it does not count."""
    own = log.groups.get(DEFAULT_GROUP)
    if own is not None:
        return own.settled.gaps(span.start, span.stop)
    return RangeSet(log.settled_by_all(span.start, span.stop)).gaps(span.start, span.stop)


def is_leased(log: Log, offset: int) -> bool:
    """Whether somebody has it in hand, in whichever group."""
    return any(offset in group.leases for group in log.groups.values())


def _fits(log: Log, batch: Batch) -> bool:
    policy = log.policy
    return (policy.max_depth is None or log.depth < policy.max_depth) and (
        policy.max_bytes is None or log.bytes + batch.size <= policy.max_bytes
    )


def _bounded(contents: list[Content | None]) -> Iterator[tuple[int, int]]:
    """Cut messages into parts of a bounded length, with at least one in each."""
    start = length = 0
    for place, content in enumerate(contents):
        more = 0 if content is None else len(content.payload)
        if place > start and length + more > BURIED_BYTES:
            yield start, place
            start, length = place, 0
        length += more
    yield start, len(contents)


def _stored_bytes(content: Content | None) -> int:
    """More than a dead letter takes beside what is written of the settlement."""
    if content is None:
        return LETTER_OVERHEAD_BYTES
    headers = sum(4 * (len(name) + len(value)) for name, value in (content.headers or {}).items())
    return LETTER_OVERHEAD_BYTES + len(content.payload) + len(content.properties or b"") + headers
