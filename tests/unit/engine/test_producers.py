"""How far batches of producers were taken in."""

from __future__ import annotations

from penstock.engine import producers
from penstock.engine.change import Change
from tests.unit.engine.specimen import NOW, Machine


def test_recorded_batch_and_older_ones_are_done() -> None:
    engine = Machine().engine

    def done() -> list[int | None]:
        return [producers.parts_done(engine, "p", batch) for batch in (2, 3, 4)]

    assert done() == [0, 0, 0]
    producers.record(engine, "p", 3, 0, final=False, now_us=NOW, change=Change())
    assert done() == [None, 1, 0]
    producers.record(engine, "p", 3, 1, final=True, now_us=NOW, change=Change())
    assert done() == [None, None, 0]
