"""What producers have handed in: the last batch of each, and how far it was taken in.

A *producer* is somebody who hands in numbered batches and may hand in the same one again, such as a streaming query of Spark. A batch is published in parts, each of them one unit with a
row that says so; a batch whose last part is recorded is never published again, however often it comes, nor is an older one. That needs one small record for each producer, kept for ever:
no dedup ids and no window, so it makes no difference how long the producer was away.

A producer that hands in one batch in its life (a batch write under a random name) is forgotten once nobody can hand in that batch any more; whoever calls knows when that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.engine.change import Change
from penstock.engine.events import Produced

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

#: What a part is: `final` in its row. The numbers are stored: never renumber.
MORE: Final = 0
FINAL: Final = 1
FORGOTTEN: Final = 2  # not a part: nothing is known of this producer any more


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The last batch of a producer, and how many parts of it are published."""

    batch: int
    parts: int
    final: bool


def parts_done(engine: Engine, producer: str, batch: int) -> int | None:
    """How many parts of a batch are published; None if all are, or a later batch was begun."""
    known = engine.producers.get(producer)
    if known is None or known.batch < batch:
        return 0
    return known.parts if known.batch == batch and not known.final else None


def record(
    engine: Engine, producer: str, batch: int, part: int, *, final: bool, now_us: int, change: Change
) -> None:
    """A part of a batch is published, in the same unit."""
    event = Produced(producer, batch, part, FINAL if final else MORE, now_us)
    take_in(engine, event)
    change.events.append(event)


def forget(engine: Engine, producer: str, now_us: int, change: Change) -> None:
    """Nobody will hand in a batch of this producer any more."""
    known = engine.producers.get(producer)
    if known is not None:
        event = Produced(producer, known.batch, 0, FORGOTTEN, now_us)
        take_in(engine, event)
        change.events.append(event)


def take_in(engine: Engine, event: Produced) -> None:
    """What was recorded of a producer, live or replayed."""
    if event.final == FORGOTTEN:
        engine.producers.pop(event.producer, None)
    else:
        engine.producers[event.producer] = Progress(event.batch, event.part + 1, event.final == FINAL)
