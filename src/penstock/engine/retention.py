"""How long messages are kept that every group has settled: for a time, for a number of bytes, for readers who asked to be waited for.

What a log keeps is everything from one offset on (`Log.kept_from`). It is moved forward when time passes, when more is published, and when a reader says how far it is; what
falls behind it and is settled is released. An unsettled message is stored however far it falls behind.

Replaying looks at no clock: it is moved with every event, to where it was then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.clock import SECOND_US
from penstock.engine.log import NOTHING_KEPT, Hold, Log, Position

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

#: The reader that stands for the archive. With `retain="until-archived"` it is waited for even before it comes.
ARCHIVE: Final = "penstock.archive"


def hold(log: Log, position: Position) -> bytes:
    """What is recorded of a reader that is about to ask to be waited for, or no longer does."""
    gone = log.unavailable(min(position.offset, log.next_offset), log.next_offset)
    return msgspec.msgpack.encode(Hold(position, gone.encode()))


def update(engine: Engine, log: Log, now_us: int | None) -> None:
    """Keep what must be kept at a time, or as far as can be said without one, and release the rest."""
    _move_floor(log, now_us)
    waits = log.policy.retain == "until-archived"
    held = (at.offset for name, at in log.readers.items() if at.holds or (waits and name == ARCHIVE))
    wanted = min(held, default=log.floor)
    if waits and ARCHIVE not in log.readers:
        wanted = 0
    wanted = min(wanted, log.floor)
    if wanted != log.kept_from:
        log.plain = None
        engine.released += [(log, run) for run in log.keep_from(wanted)]
        log.forget_settled()
    if now_us is not None and log.too_old_us is not None:
        engine.set_alarm(log)


def _move_floor(log: Log, now_us: int | None) -> None:
    """What the policy says by itself. It only moves forward, unless the policy is another one now."""
    policy, milestones = log.policy, log.milestones
    if policy.retain_seconds is None and policy.retain_bytes is None:
        log.floor = NOTHING_KEPT
        return
    floor = 0 if log.floor == NOTHING_KEPT else log.floor
    if now_us is not None and policy.retain_seconds is not None:
        oldest_us = now_us - round(policy.retain_seconds * SECOND_US)
        floor = max(
            floor, log.next_offset if milestones.peak < oldest_us else milestones.before_time(oldest_us)
        )
    if now_us is not None and policy.retain_bytes is not None:
        floor = max(floor, milestones.beyond_bytes(policy.retain_bytes))
    log.floor = floor
