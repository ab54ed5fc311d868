"""What a full queue does with what is published: it refuses it, or drops what would be delivered first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.engine.change import Change
from penstock.engine.events import Outcome
from penstock.engine.group import Group
from penstock.engine.log import Log
from penstock.errors import QueueFull
from penstock.model.batch import Batch
from penstock.policy import Policy

if TYPE_CHECKING:
    from penstock.engine.engine import Engine


def make_room(
    engine: Engine, log: Log, batch: Batch, now_us: int, change: Change, *, planned: bool = False
) -> None:
    """Refuse a batch for which there is no room, or drop what is oldest, as the policy says.

    What was `planned` is not refused: it was looked at before, and other things happened in the same unit since.
    """
    policy = log.policy
    count, size = len(batch.ids), batch.size
    too_many = log.depth + count - (policy.max_depth or log.depth + count)
    too_large = log.bytes + size - (policy.max_bytes or log.bytes + size)
    if too_many <= 0 and too_large <= 0:
        return
    if policy.overflow == "reject":
        if planned:
            return
        raise refusal(log, count, size)
    victims = _victims(log, too_many, too_large, planned=planned)
    if not victims:
        return
    log.dropped_before = max(log.dropped_before, *(offset + 1 for offset in victims))
    for group in log.all_groups():
        here = [offset for offset in victims if offset not in group.settled and offset not in group.leases]
        engine.settle(log, group, sorted(here), Outcome.DROPPED, now_us, change)


def require_room(log: Log, count: int, size: int, depth: int, bytes_: int) -> None:
    """Refuse so many messages for which there is no room beside so many others, unless some of those can be dropped for them."""
    policy = log.policy
    too_many = 0 if policy.max_depth is None else depth + count - policy.max_depth
    too_large = 0 if policy.max_bytes is None else bytes_ + size - policy.max_bytes
    if too_many > 0 or too_large > 0:
        if policy.overflow == "reject":
            raise refusal(log, count, size)
        _victims(log, too_many, too_large)


def require_room_anew(name: str, count: int, policy: Policy) -> None:
    """The same for a log that is not made yet."""
    if policy.max_depth is not None and count > policy.max_depth:
        raise QueueFull(
            f"{name!r} would be made for {count} messages, and its limit is max_depth={policy.max_depth}: publish fewer"
        )


def refusal(log: Log, count: int, size: int) -> QueueFull:
    return QueueFull(
        f"{log.name!r} has {log.depth} messages of {log.bytes} bytes, and {count} more of {size} bytes are over its "
        f"limit (max_depth={log.policy.max_depth}, max_bytes={log.policy.max_bytes}): publish again once consumers have caught up"
    )


def _victims(log: Log, too_many: int, too_large: int, *, planned: bool = False) -> list[int]:
    """So many messages, of so many bytes, that would be delivered first."""
    furthest = min(log.all_groups(), key=lambda found: len(found.settled), default=None)
    victims: list[int] = []
    for offset in _first_to_go(log, furthest) if furthest is not None else ():
        if len(victims) >= too_many and too_large <= 0:
            break
        if any(offset in group.leases for group in log.groups.values()):
            continue
        victims.append(offset)
        too_large -= log.sizes.get(offset, 0)
    if not planned and (len(victims) < too_many or too_large > 0):
        raise QueueFull(
            f"{log.name!r} is full of messages that are leased or not due yet, and the batch is larger than what could be dropped"
        )
    return victims


def _first_to_go(log: Log, group: Group) -> Iterator[int]:
    """What is ready, in order, and then what is being recorded and will be ready."""
    for piece in group.lanes.pieces():
        yield from range(piece[1], piece[2])
    for gap in group.settled.gaps(log.arrived, log.next_offset):
        yield from gap
